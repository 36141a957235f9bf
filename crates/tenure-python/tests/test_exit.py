import subprocess
import sys
import textwrap

import pytest
import tenure


def test_exit_code_and_handlers(python):
    program = """
        import atexit, sys, threading, tenure
        atexit.register(print, "handler")
        print("out")
        print("err", file=sys.stderr)
        threading.Timer(0.05, print, ["thread"]).start()
        tenure.fast_exit(7)
        print("never")
        """
    assert python(program, code=7).split() == ["out", "thread", "handler"]


def test_open_files_are_flushed(python, tmp_path):
    path = tmp_path / "text"
    python(
        f"""
        import tenure
        text = open({str(path)!r}, "w")
        text.write("text")
        raw = open({str(path) + "2"!r}, "wb")
        raw.write(b"bytes")
        tenure.fast_exit()
        """
    )
    assert path.read_text() == "text"
    assert (tmp_path / "text2").read_bytes() == b"bytes"


def test_exit_beside_thread_that_reads_input():
    program = """
        import threading, time, tenure
        reader = threading.Thread(target=input, daemon=True)
        reader.start()
        time.sleep(0.2)
        print("out")
        tenure.fast_exit(3)
        """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.wait(timeout=120) == 3
        assert child.stdout.read() == b"out\n"
    finally:
        child.kill()
        child.communicate()


def test_destructors_do_not_run(python):
    program = """
        import tenure
        class Noisy:
            def __del__(self):
                print("deleted")
        kept = [Noisy()]
        tenure.fast_exit()
        """
    assert python(program) == ""


def test_wrong_codes_are_refused():
    for code, error in ((-1, ValueError), (256, ValueError), ("1", TypeError), (None, TypeError)):
        with pytest.raises(error, match="code"):
            tenure.fast_exit(code)
