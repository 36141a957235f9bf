import os
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


def test_streams_of_c_are_flushed(python, tmp_path):
    path = tmp_path / "c"
    program = f"""
        import ctypes, threading, tenure
        c = ctypes.CDLL(None)
        c.fopen.restype = ctypes.c_void_p
        stream = c.fopen({str(path).encode()!r}, b"w")
        c.fputs(b"file", ctypes.c_void_p(stream))
        c.printf(b"printed")
        tenure.fast_exit()
        """
    assert python(program) == "printed"
    assert path.read_bytes() == b"file"


def test_exit_beside_thread_that_has_a_stream_locked(tmp_path):
    # From a terminal Python reads by C's stdin.
    path = tmp_path / "c"
    program = f"""
        import ctypes, sys, threading, tenure
        c = ctypes.CDLL(None)
        c.fopen.restype = ctypes.c_void_p
        stream = c.fopen({str(path).encode()!r}, b"w")
        c.fputs(b"file", ctypes.c_void_p(stream))
        assert sys.stdin.isatty()
        readers = [threading.Thread(target=input, daemon=True),
                   threading.Thread(target=c.getchar, daemon=True)]
        for reader in readers:
            reader.start()
        print("out", flush=True)
        tenure.fast_exit(3)
        """
    master, slave = os.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdin=slave,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        out = child.stdout.read()
        assert (child.wait(timeout=120), out) == (3, b"out\n"), out
        assert path.read_bytes() == b"file"
    finally:
        child.kill()
        child.wait()
        os.close(master)
        os.close(slave)


def test_exit_beside_thread_that_reads_a_file_of_both_directions():
    program = """
        import io, threading, tenure
        is_inside = threading.Event()
        class Slow(io.RawIOBase):
            def readable(self): return True
            def writable(self): return True
            def seekable(self): return True
            def seek(self, offset, whence=0): return 0
            def tell(self): return 0
            def write(self, data): return len(data)
            def readinto(self, buffer):
                is_inside.set()
                threading.Event().wait()
        file = io.BufferedRandom(Slow())
        class Broken:
            @property
            def __class__(self):
                raise ReferenceError("gone")
        kept = Broken()
        threading.Thread(target=file.read, args=(1,), daemon=True).start()
        is_inside.wait()
        print("out")
        tenure.fast_exit(3)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"")


@pytest.mark.parametrize("how", ["tenure.fast_exit, 7", "lambda: tenure.fast_exit(7)"])
@pytest.mark.parametrize("end", ["tenure.fast_exit(3)", "sys.exit(3)"])
def test_exit_function_that_exits_itself_ends_the_process(python, how, end):
    program = f"""
        import atexit, sys, tenure
        atexit.register({how})
        atexit.register(print, "handler")
        {end}
        """
    # Registered by itself, it has nothing to add to its own call.
    code = 3 if (how, end) == ("tenure.fast_exit, 7", "tenure.fast_exit(3)") else 7
    assert "handler" in python(program, code=code)
