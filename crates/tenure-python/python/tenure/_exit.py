"""The end of a process that does not wait for its memory."""

import atexit
import gc
import os
import sys
import threading
from _io import _IOBase, _TextIOBase
from typing import Any, NoReturn

from . import _native


def fast_exit(code: int = 0) -> NoReturn:
    """End the process with this exit code, without freeing its objects one by one.

    It waits for threads that are not daemons, runs the functions registered with
    :mod:`atexit`, and flushes open files and the streams of C, as the usual end does; a
    stream that a thread waits at holds it up for a second at most. Then the process ends, and
    a helper frees its memory, so that the parent's ``wait`` returns at once. No destructor
    (``__del__``, ``weakref.finalize`` with ``atexit=False``) runs.

    An exit function that calls it ends the process with its code, and the functions that were
    registered before that one are not called.

    In a child of ``os.fork`` or ``multiprocessing`` it ends the child.

    :param code: from 0 to 255.
    """
    if not isinstance(code, int):
        raise TypeError(f"code must be an int, not {type(code).__name__}")
    if not 0 <= code <= 255:
        raise ValueError(f"code must be from 0 to 255, not {code}")
    global _ending
    caller = (os.getpid(), threading.get_ident())
    if _ending != caller:
        _ending = caller
        # As one of the functions it would be called by its own call.
        atexit.unregister(fast_exit)
        if threading.current_thread() is threading.main_thread():
            # The interpreter itself calls it by this name.
            getattr(threading, "_shutdown")()
        atexit._run_exitfuncs()
    _flush_files()
    _native.flush_c_streams(_MAX_WAIT)
    try:
        _native.enable_teardown()
    except OSError:
        # Without a helper the kernel frees the memory before the parent's wait returns.
        pass
    os._exit(code)


# The process and the thread that run exit functions.
_ending = (0, 0)

# How long a thread that waits for input may keep a stream locked, in seconds.
_MAX_WAIT = 1


def _flush_files() -> None:
    """Flush what is buffered, text before the bytes below it."""
    # Only by their types: asking an object, such as a proxy, may run its code.
    files: list[Any] = [it for it in gc.get_objects() if issubclass(type(it), _IOBase)]
    files.sort(key=lambda it: not issubclass(type(it), _TextIOBase))
    shared = []
    for file in [sys.stdout, sys.stderr, *files]:
        try:
            if file.closed or not file.writable():
                continue
            if file.readable():
                shared.append(file)
            else:
                file.flush()
        except Exception:
            # As at the usual end: the other files are flushed all the same.
            pass
    if shared:
        # A thread that waits for input from such a file has it locked.
        helper = threading.Thread(target=_flush_each, args=(shared,), daemon=True)
        try:
            # Before Python 3.12 a start waits for ever once the interpreter ends, where a
            # flush no longer waits for threads.
            if sys.is_finalizing():
                raise RuntimeError
            helper.start()
        except RuntimeError:
            _flush_each(shared)
        else:
            helper.join(_MAX_WAIT)


def _flush_each(files: list[Any]) -> None:
    for file in files:
        try:
            file.flush()
        except Exception:
            pass
