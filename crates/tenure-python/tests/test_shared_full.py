"""SharedCache where /dev/shm is full."""

import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import pytest
import tenure

COMMAND = ["unshare", "--user", "--map-root-user", "--mount"]
COMMAND += ["sh", "-c", 'mount -t tmpfs -o size="$0" tenure /dev/shm && exec "$@"']
if shutil.which("unshare") is None or not os.path.isdir("/dev/shm"):
    pytest.skip("unshare or /dev/shm is missing", allow_module_level=True)
if subprocess.run([*COMMAND, "1m", "true"], capture_output=True).returncode != 0:
    pytest.skip("this user cannot mount a file system", allow_module_level=True)


def run(size, program):
    """Runs a program with a /dev/shm of its own, of this size."""
    command = [*COMMAND, size, sys.executable, "-B", "-c", textwrap.dedent(program)]
    folder = pathlib.Path(tenure.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (done.stdout, done.stderr)


def test_values_without_space_are_not_kept_and_others_stay_whole():
    run(
        "8m",
        """
        import os, tenure
        cache = tenure.SharedCache("full", max_bytes=32 << 20)
        for number in range(100):
            cache[number] = bytes([number]) * 300_000
        found = {key: value for key, value in cache.items()}
        assert all(value == bytes([key]) * 300_000 for key, value in found.items())
        assert len(found) < 40, len(found)
        # Another program fills what is left.
        cache.clear()
        with open("/dev/shm/other", "wb", buffering=0) as file:
            try:
                while file.write(bytes(1 << 20)): pass
            except OSError: pass
            try:
                while file.write(bytes(4096)): pass
            except OSError: pass
        cache["a"] = b"v" * 300_000
        assert "a" not in cache and cache.stats()["refused"] >= 1, cache.stats()
        os.unlink("/dev/shm/other")
        cache["a"] = b"v" * 300_000
        assert cache["a"] == b"v" * 300_000
        """,
    )


def test_file_without_space_is_an_error():
    run(
        "64k",
        """
        import errno, tenure
        try:
            tenure.SharedCache("full", max_bytes=1 << 30)
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
        else:
            raise AssertionError
        """,
    )
