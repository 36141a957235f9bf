"""The backend, as Django's own tests use a cache."""

import os
import threading

import pytest

pytest.importorskip("django", reason="python3 has no django")

import tenure  # noqa: E402
from django.conf import settings  # noqa: E402
from django.core import cache as django_cache  # noqa: E402

BACKEND = "tenure.django.Cache"
if not settings.configured:
    settings.configure(
        CACHES={
            "default": {"BACKEND": BACKEND, "LOCATION": "a"},
            "same": {"BACKEND": BACKEND, "LOCATION": "a"},
            "other": {"BACKEND": BACKEND, "LOCATION": "b", "KEY_PREFIX": "p"},
            "short": {"BACKEND": BACKEND, "LOCATION": "c", "TIMEOUT": 0, "OPTIONS": {"PRIORITY": 0}},
        }
    )


@pytest.fixture
def cache():
    cache = django_cache.caches["default"]
    cache.clear()
    return cache


@pytest.fixture
def clock(monkeypatch):
    """Sets Django's time and the backend's."""
    import time

    class Clock:
        now = 1000.0

    monkeypatch.setattr(time, "time", lambda: Clock.now)
    return Clock


def test_values_come_back_as_they_were(cache):
    for number, value in enumerate([None, 0, "text", b"bytes", [1, {2}], {"k": bytearray(9000)}]):
        cache.set(f"key{number}", value)
        assert cache.get(f"key{number}", "missing") == value and f"key{number}" in cache
    assert cache.get("none") is None and cache.get("none", 3) == 3
    cache.set_many({"x": 1, "y": 2})
    assert cache.get_many(["x", "y", "z"]) == {"x": 1, "y": 2}
    assert cache.delete("x") is True and cache.delete("x") is False
    assert cache.get_or_set("w", lambda: 5) == 5
    cache.delete_many(["y", "w"])
    assert cache.get("y") is None and not cache.has_key("w")
    cache.clear()
    assert cache.get("key2") is None


def test_caches_of_a_location_share_values_and_others_do_not(cache):
    cache.set("k", "value")
    assert django_cache.caches["same"].get("k") == "value"
    assert django_cache.caches["other"].get("k") is None
    cache.set("k", "new", version=2)
    assert (cache.get("k"), cache.get("k", version=2)) == ("value", "new")


def test_value_ends_after_its_time(cache, clock):
    cache.set("k", 1, timeout=10)
    cache.set("for ever".replace(" ", "-"), 1, timeout=None)
    cache.set("zero", 1, timeout=0)
    assert cache.get("zero") is None
    clock.now += 9
    assert cache.get("k") == 1
    clock.now += 1
    assert cache.get("k") is None and "k" not in cache
    clock.now += 1e9
    assert cache.get("for-ever") == 1
    django_cache.caches["short"].set("k", 1)
    assert django_cache.caches["short"].get("k") is None


def test_touch_changes_the_end_of_what_is_there(cache, clock):
    cache.set("k", 1, timeout=10)
    assert cache.touch("k", timeout=100) is True
    clock.now += 50
    assert cache.get("k") == 1
    clock.now += 51
    assert cache.touch("k", timeout=100) is False and cache.get("k") is None
    assert cache.touch("none") is False


def test_touch_beside_set_brings_no_old_value_back(cache):
    done, failures = threading.Event(), []

    def touch():
        while not done.is_set():
            cache.touch("k", timeout=1000)

    threads = [threading.Thread(target=touch) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(2000):
            cache.set("k", number)
            if cache.get("k") != number:
                failures.append(number)
            if number % 7 == 0:
                cache.delete("k")
                if cache.get("k") is not None:
                    failures.append(-number)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert failures == []


def test_touch_of_a_purged_value_is_false(cache):
    cache.set("k", "v" * 10_000)
    tenure.purge_all()
    assert cache.touch("k") is False and cache.get("k") is None


def test_add_sets_a_missing_value_only(cache, clock):
    assert cache.add("k", 1, timeout=10) is True
    assert cache.add("k", 2) is False and cache.get("k") == 1
    clock.now += 11
    assert cache.add("k", 3) is True and cache.get("k") == 3


def test_concurrent_adds_of_a_key_set_one(cache):
    for number in range(50):
        added, barrier = [], threading.Barrier(4)

        def add(value):
            barrier.wait()
            if cache.add(f"k{number}", value):
                added.append(value)

        threads = [threading.Thread(target=add, args=(value,)) for value in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert added == [cache.get(f"k{number}")]


def test_incr_adds_and_keeps_the_end(cache, clock):
    cache.set("k", 40, timeout=10)
    assert cache.incr("k") == 41 and cache.decr("k", 2) == 39
    clock.now += 11
    with pytest.raises(ValueError, match="'k' not found"):
        cache.incr("k")
    cache.set("text", "t")
    with pytest.raises(TypeError):
        cache.incr("text")


class Disturbed(int):
    """A number to which another thread comes first when something is added."""

    disturb = []

    def __add__(self, other):
        if self.disturb:
            self.disturb.pop()()
        return int(self) + other


def test_incr_does_not_undo_what_was_set_meanwhile(cache):
    cache.set("k", Disturbed(1))
    Disturbed.disturb.append(lambda: cache.set("k", 100))
    assert cache.incr("k") == 101 and cache.get("k") == 101
    cache.set("k", Disturbed(1))
    Disturbed.disturb.append(lambda: cache.delete("k"))
    with pytest.raises(ValueError, match="not found"):
        cache.incr("k")
    assert cache.get("k") is None


def test_concurrent_incr_loses_nothing(cache):
    cache.set("k", 0)
    threads = [
        threading.Thread(target=lambda: [cache.incr("k") for _ in range(200)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.get("k") == 800


def test_what_cannot_be_pickled_raises_its_own_error(cache):
    cache.set("k", 1)
    with pytest.raises(Exception, match="pickle"):
        cache.set("k", threading.Lock())
    assert cache.get("k") == 1


def test_times_of_purged_values_do_not_pile_up(cache):
    for number in range(2000):
        cache.set(f"k{number}", number)
        if number % 50 == 0:
            tenure.purge_all()
    assert len(cache._shared._ends) < 1000


def test_child_begins_with_an_empty_cache(cache):
    cache.set("k", "parent")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            assert cache.get("k") is None and cache.add("k", "child") and cache.get("k") == "child"
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert cache.get("k") == "parent"
