"""The end of a process that does not wait for its memory."""

import atexit
import gc
import io
import os
import sys
import threading
from typing import NoReturn

from . import _native


def fast_exit(code: int = 0) -> NoReturn:
    """End the process with this exit code, without freeing its objects one by one.

    It waits for threads that are not daemons, runs the functions registered with
    :mod:`atexit`, and flushes open files, as the usual end does. Then the process ends, and
    a helper frees its memory, so that the parent's ``wait`` returns at once. No destructor
    (``__del__``, ``weakref.finalize`` with ``atexit=False``) runs.

    In a child of ``os.fork`` or ``multiprocessing`` it ends the child.

    :param code: from 0 to 255.
    """
    if not isinstance(code, int):
        raise TypeError(f"code must be an int, not {type(code).__name__}")
    if not 0 <= code <= 255:
        raise ValueError(f"code must be from 0 to 255, not {code}")
    if threading.current_thread() is threading.main_thread():
        # The interpreter itself calls it by this name.
        getattr(threading, "_shutdown")()
    atexit._run_exitfuncs()
    _flush_files()
    _native.flush_c_streams()
    try:
        _native.enable_teardown()
    except OSError:
        # Without a helper the kernel frees the memory before the parent's wait returns.
        pass
    os._exit(code)


def _flush_files() -> None:
    """Flush what is buffered, text before the bytes below it."""
    files = [it for it in gc.get_objects() if isinstance(it, io.IOBase)]
    files.sort(key=lambda it: not isinstance(it, io.TextIOBase))
    for file in [sys.stdout, sys.stderr, *files]:
        try:
            # A reader may be locked by a thread that waits for input.
            if not file.closed and file.writable():
                file.flush()
        except Exception:
            # As at the usual end: the other files are flushed all the same.
            pass
