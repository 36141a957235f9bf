"""Subscriptions and PressureDict. The pressure itself is the library's; here `_Watcher` is
told levels by a watch of the tests' own."""

import gc
import os
import threading
import weakref

import pytest
import tenure
from conftest import wait_until
from tenure import pressure
from tenure.pressure import Level


class Watch:
    """Stands for the native one."""

    all = []

    def __init__(self):
        self.condition = threading.Condition()
        self.level, self.is_new, self.is_stopped = 0, False, False
        Watch.all.append(self)

    def change(self, **values):
        with self.condition:
            for name, value in values.items():
                setattr(self, name, value)
            self.condition.notify_all()

    def wait(self):
        with self.condition:
            self.condition.wait_for(lambda: self.is_new or self.is_stopped)
            self.is_new = False
            return None if self.is_stopped else self.level

    def wake(self):
        self.change(is_new=True)

    def stop(self):
        self.change(is_stopped=True)


@pytest.fixture
def tell(monkeypatch):
    """Returns a function that sets the level for all subscriptions of a watcher."""
    monkeypatch.setattr(pressure._native, "PressureWatch", Watch)
    watcher = pressure._Watcher()
    monkeypatch.setattr(pressure, "_watcher", watcher)
    yield lambda level: Watch.all[-1].change(level=level, is_new=True)
    watcher.end()


def test_callback_gets_each_change_once(tell):
    levels = []
    with pressure.subscribe(levels.append):
        tell(2)
        wait_until(lambda: levels == [Level.SEVERE])
        tell(2)
        tell(0)
        wait_until(lambda: levels == [Level.SEVERE, Level.NONE])
    with pressure.subscribe(lambda level: None):
        tell(1)
    assert Level.SOME not in levels


def test_raising_callback_is_reported_and_called_once(tell, monkeypatch):
    reported, calls, others = [], [], []
    monkeypatch.setattr(threading, "excepthook", reported.append)

    def fail(level):
        calls.append(level)
        raise KeyError("mine")

    with pressure.subscribe(fail), pressure.subscribe(others.append):
        tell(1)
        wait_until(lambda: others == [1])
        tell(2)
        wait_until(lambda: others == [1, 2])
    assert calls == [1] and reported[0].exc_type is KeyError


def test_dict_lets_go_of_the_oldest_half_then_of_all(tell):
    entries = tenure.PressureDict()
    for number in range(10):
        entries[number] = object()
    assert entries[0] is not None
    tell(1)
    wait_until(lambda: len(entries) == 5)
    assert list(entries) == [6, 7, 8, 9, 0]
    tell(2)
    wait_until(lambda: len(entries) == 0)
    tell(0)
    wait_until(lambda: entries._level is Level.NONE)
    entries["a"] = 1
    assert entries["a"] == 1 and "a" in entries and dict(entries) == {"a": 1}
    del entries["a"]
    with pytest.raises(KeyError):
        entries["a"]


def test_dict_that_empties_while_it_is_listed_is_shorter(tell):
    entries = tenure.PressureDict()
    entries.update(a=1, b=2, c=3)
    items, values = iter(entries.items()), iter(entries.values())
    assert next(items) == ("a", 1) and next(values) in (1, 2, 3)
    assert entries.pop("b") == 2 and entries.popitem()[0] in ("a", "c")
    entries.clear()
    assert list(items) == list(values) == []
    assert entries.pop("a", None) is None and 1 not in entries.values()
    for empty in (lambda: entries.pop("a"), entries.popitem):
        with pytest.raises(KeyError):
            empty()


def test_dict_is_freed_although_it_is_subscribed(tell):
    entries = tenure.PressureDict()
    reference = weakref.ref(entries)
    del entries
    gc.collect()
    assert reference() is None


def test_child_goes_on_with_its_subscriptions(python):
    assert "child told" in python(
        """
        import os, threading
        from tenure import pressure
        told = threading.Event()
        subscription = pressure.subscribe(lambda level: told.set())
        pid = os.fork()
        if pid == 0:
            # The level itself is left as it is: the thread is there and calls.
            subscription._told = None
            pressure._watcher._watch.wake()
            assert told.wait(60)
            print("child told", flush=True)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        """
    )


def test_child_uses_dict_that_another_thread_held(python):
    python(
        """
        import faulthandler, os, threading
        import tenure

        class Key:
            def __hash__(self):
                return 1

            def __eq__(self, other):
                if threading.current_thread() is not threading.main_thread():
                    held.set()
                    end.wait()
                return self is other

        held, end = threading.Event(), threading.Event()
        entries = tenure.PressureDict()
        first = Key()
        entries[first] = 1
        thread = threading.Thread(target=lambda: entries.get(Key()), daemon=True)
        thread.start()
        assert held.wait(60)
        pid = os.fork()
        if pid == 0:
            faulthandler.dump_traceback_later(60, exit=True)
            entries["a"] = 2
            assert entries[first] == 1 and dict(entries) == {first: 1, "a": 2}
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        end.set()
        thread.join()
        """
    )


def test_program_with_subscription_ends(python):
    python("import tenure\nkept = tenure.pressure.subscribe(print)\n")
    python("import tenure\nkept = tenure.PressureDict()\n")


def test_subscription_needs_a_callable():
    with pytest.raises(TypeError, match="callable"):
        pressure.subscribe(3)
