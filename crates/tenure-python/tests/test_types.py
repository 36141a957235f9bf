"""The types that the package declares: among themselves, and beside what is there."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("mypy", reason="python3 has no mypy")

import tenure  # noqa: E402


def check(*command):
    folder = os.path.dirname(os.path.dirname(tenure.__file__))
    environment = {**os.environ, "MYPYPATH": folder, "MYPY_CACHE_DIR": os.devnull}
    done = subprocess.run(
        [sys.executable, "-B", "-m", *command],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_package_is_strictly_typed():
    # Dask, Django and joblib are not typed, and need not be installed.
    untyped = ["--ignore-missing-imports", "--follow-untyped-imports"]
    untyped += [f"--untyped-calls-exclude={it}" for it in ("joblib", "tenure.django")]
    check("mypy", "--strict", *untyped, "-p", "tenure")


def test_stubs_agree_with_the_library(tmp_path):
    # Before Python 3.12 classes do not show that they have the buffer protocol.
    allowed = tmp_path / "allowed"
    allowed.write_text(".*\\.__(release_)?buffer__\ntenure._native.__all__\n")
    options = ["--allowlist", str(allowed), "--ignore-unused-allowlist"]
    check("mypy.stubtest", *options, "tenure._native")
