"""How short memory is, and what to call when that changes."""

import atexit
import enum
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType

from . import _native

__all__ = ["Level", "Subscription", "level", "subscribe"]


class Level(enum.IntEnum):
    """How short memory is for this process."""

    NONE = 0
    SOME = 1
    SEVERE = 2


def level() -> Level:
    """Return how short memory is now.

    It looks at the headroom of the machine and of the memory cgroups around the process, and
    at the time that programs wait for memory (PSI).
    """
    return Level(_native.pressure_level())


class Subscription:
    """Ends with :meth:`close`, or at the end of a ``with`` block."""

    def __init__(self, callback: Callable[[Level], object]) -> None:
        self._callback = callback
        self._told = Level.NONE
        self._is_closed = False

    def close(self) -> None:
        """End the subscription. A call that is running goes on."""
        # Only a flag: the garbage collector may call this in any place.
        self._is_closed = True

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _tell(self, level: Level) -> None:
        if self._is_closed or self._told == level:
            return
        self._told = level
        try:
            self._callback(level)
        except BaseException as error:
            self.close()
            thread = threading.current_thread()
            details = (type(error), error, error.__traceback__, thread)
            threading.excepthook(threading.ExceptHookArgs(details))


def subscribe(callback: Callable[[Level], object]) -> Subscription:
    """Call ``callback(level)`` when the level changes, from a thread of tenure's.

    If there is pressure already, the first call comes at once. What the callback raises goes
    to :func:`threading.excepthook`, and the callback is not called again. A child of
    ``os.fork`` has the subscriptions of its parent.
    """
    if not callable(callback):
        raise TypeError("callback must be callable")
    subscription = Subscription(callback)
    _watcher.add(subscription)
    return subscription


class _Watcher:
    """One thread that serves all subscriptions, while there are any."""

    def __init__(self) -> None:
        # A destructor may subscribe while this thread has the lock.
        self._lock = threading.RLock()
        self._subscriptions: list[Subscription] = []
        self._watch: _native.PressureWatch | None = None
        self._thread: threading.Thread | None = None

    def add(self, subscription: Subscription) -> None:
        with self._lock:
            if self._thread is None:
                self._start()
            self._subscriptions.append(subscription)
            assert self._watch is not None
            self._watch.wake()

    def ensure(self) -> None:
        """Starts the thread if a child could not, and goes without if it cannot either."""
        if self._thread is None:
            with self._lock:
                if self._thread is None and any(not it._is_closed for it in self._subscriptions):
                    try:
                        self._start()
                    except Exception:
                        return

    def _start(self) -> None:
        """Starts the thread, which tells the level at once; on failure nothing changes."""
        if sys.is_finalizing():
            # Before Python 3.12 the start waits for ever: no other thread gets the GIL now.
            raise RuntimeError("the interpreter ends: no thread can be started")
        watch = _native.PressureWatch()
        target, arguments = self._run, (watch,)
        thread = threading.Thread(target=target, args=arguments, name="tenure-pressure")
        # A program ends although it has subscriptions: `end` stops the thread then.
        thread.daemon = True
        try:
            thread.start()
        except BaseException:
            # A signal handler may have raised although the thread has started.
            watch.stop()
            raise
        self._watch, self._thread = watch, thread
        watch.wake()

    def _run(self, watch: _native.PressureWatch) -> None:
        while True:
            known = watch.wait()
            if known is None:
                return
            with self._lock:
                opened = [it for it in self._subscriptions if not it._is_closed]
                self._subscriptions = opened
                if not opened:
                    self._thread = self._watch = None
                    return
                # Later changes of the list make a new one.
                opened = list(opened)
            for subscription in opened:
                subscription._tell(Level(known))
            del opened, subscription

    def end(self) -> None:
        """Stops the thread before the interpreter ends: it must not wait for the GIL then."""
        with self._lock:
            thread, watch = self._thread, self._watch
        if watch is not None:
            watch.stop()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_in_parent(self) -> None:
        self._lock.release()

    def after_in_child(self) -> None:
        self._thread = self._watch = None
        try:
            if any(not it._is_closed for it in self._subscriptions):
                self._start()
        except Exception:
            # Without memory or a thread the child goes without; its next subscription
            # tries again.
            pass
        finally:
            self._lock.release()


_watcher = _Watcher()
atexit.register(_watcher.end)
os.register_at_fork(
    before=_watcher.before_fork,
    after_in_parent=_watcher.after_in_parent,
    after_in_child=_watcher.after_in_child,
)
