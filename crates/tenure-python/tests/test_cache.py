import gc
import os
import threading
import weakref

import pytest
import tenure


def test_values_come_back_as_they_were():
    cache = tenure.Cache()
    values = {"a": [1, 2.5, None], 3: b"bytes" * 1000, (1, "t"): {"k": {1, 2}}, None: bytearray(b"x")}
    for key, value in values.items():
        cache[key] = value
    assert {key: cache[key] for key in cache} == values
    assert len(cache) == len(values) and "a" in cache and "b" not in cache
    assert "Cache of 4" in repr(cache)


def test_cache_is_a_mutable_mapping():
    cache = tenure.Cache()
    cache.update({"a": 1, "b": 2})
    assert cache.pop("a") == 1 and cache.pop("a", "none") == "none"
    assert cache.setdefault("b", 3) == 2 and cache.setdefault("c", 3) == 3
    assert sorted(cache.items()) == [("b", 2), ("c", 3)]
    with pytest.raises(KeyError):
        del cache["a"]
    with pytest.raises(KeyError):
        cache["a"]
    del cache["b"]
    assert list(cache) == ["c"]
    cache.clear()
    assert len(cache) == 0 and list(cache) == [] and cache.stats()["values"] == 0


def test_keys_are_equal_as_in_a_dict():
    cache = tenure.Cache()
    cache[1] = "one"
    assert cache[1.0] == cache[True] == "one"
    cache[0.0] = "zero"
    assert cache[-0.0] == "zero" and len(cache) == 2
    nan = float("nan")
    cache[nan] = "nan"
    assert cache[nan] == "nan"
    with pytest.raises(TypeError):
        cache[[]] = 1
    with pytest.raises(TypeError):
        cache[[]]


def test_replaced_value_is_removed():
    cache = tenure.Cache()
    for number in range(100):
        cache["a"] = number
    assert cache["a"] == 99
    assert cache.stats()["values"] == 1


def test_purged_value_and_its_key_are_gone():
    cache = tenure.Cache()
    for number in range(50):
        cache[number] = b"v" * 10_000
    tenure.purge_all()
    assert cache.get(0) is None and 1 not in cache and list(cache) == []
    # The keys go with later insertions.
    for number in range(100, 160):
        cache[number] = b"w"
    assert len(cache._entries) <= 61
    assert cache[159] == b"w"


def test_what_cannot_be_pickled_raises_its_own_error():
    cache = tenure.Cache()
    cache["a"] = 1
    with pytest.raises(Exception, match="pickle"):
        cache["a"] = threading.Lock()
    assert cache["a"] == 1
    with pytest.raises(ValueError, match="priority"):
        tenure.Cache(priority=4)


def test_concurrent_use_returns_right_values():
    cache = tenure.Cache()
    failures = []

    def work(seed):
        try:
            for round in range(300):
                key = (seed * 7 + round) % 40
                value = cache.get(key)
                if value is not None and value != bytes([key]) * 3000:
                    failures.append((key, value[:10]))
                cache[key] = bytes([key]) * 3000
                if round % 50 == 0:
                    cache.pop(key, None)
                    list(cache)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert cache.stats()["values"] <= 40


def test_child_begins_with_an_empty_cache():
    cache = tenure.Cache()
    cache["a"] = "parent"
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            assert "a" not in cache and len(cache) == 0
            cache["a"] = "child"
            assert cache["a"] == "child"
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert cache["a"] == "parent"


def test_forks_beside_other_threads_do_not_hang():
    cache = tenure.Cache()
    done = threading.Event()

    def work():
        number = 0
        while not done.is_set():
            number += 1
            cache[number % 100] = b"v" * 1000
            cache.get(number * 7 % 100)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    cache["a"] = 1
                    status = 0 if cache["a"] == 1 else 2
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_key_whose_destructor_uses_the_cache():
    cache = tenure.Cache()

    class Key:
        def __del__(self):
            cache["deleted"] = True

    cache[Key()] = 1
    cache.clear()
    gc.collect()
    assert cache["deleted"]


def test_function_is_called_once_for_each_arguments():
    calls = []

    @tenure.cache
    def double(number, *, plus=0):
        "Doubles."
        calls.append(number)
        return 2 * number + plus

    assert [double(2), double(2), double(2, plus=1)] == [4, 4, 5]
    assert calls == [2, 2]
    assert double.cache_info() == (1, 2, None, 2)
    assert double.__name__ == "double" and double.__doc__ == "Doubles."
    assert double.__wrapped__(1) == 2
    tenure.purge_all()
    assert double(2) == 4 and calls == [2, 2, 1, 2]
    double.cache_clear()
    assert double.cache_info() == (0, 0, None, 0)
    assert double.cache_parameters() == {"maxsize": None, "typed": False}


def test_typed_function_and_errors():
    @tenure.cache(typed=True)
    def name(value):
        if value is None:
            raise KeyError("mine")
        return type(value).__name__

    assert [name(1), name(1.0), name(1)] == ["int", "float", "int"]
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            name(None)
    assert name.cache_info()[:2] == (1, 4)
    with pytest.raises(TypeError):
        name([])
    with pytest.raises(TypeError):
        tenure.cache(3)


def test_function_is_freed_with_its_results():
    @tenure.cache
    def one():
        return 1

    one()
    reference = weakref.ref(one)
    del one
    gc.collect()
    assert reference() is None


def test_pop_of_value_that_is_purged_in_between_has_it():
    class Purging:
        """Purges the value as soon as it has been found."""

        def __init__(self, native):
            self.native = native

        def get(self, number):
            return self.native.get(number)

        def remove(self, number):
            self.native.remove(number)
            return False

        def contains(self, number):
            return self.native.contains(number)

    cache = tenure.Cache()
    cache["a"] = cache["b"] = [1]
    cache._native = Purging(cache._native)
    assert cache.pop("a", None) == [1] and cache.pop("a", None) is None
    with pytest.raises(KeyError):
        cache.pop("a")
    assert cache.popitem() == ("b", [1])
    with pytest.raises(KeyError):
        cache.popitem()
