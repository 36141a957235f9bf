"""joblib.Memory on the store."""

import pickle
import threading
import warnings

import pytest

joblib = pytest.importorskip("joblib", reason="python3 has no joblib")

import tenure  # noqa: E402
import tenure.joblib  # noqa: E402

tenure.joblib.register()
calls = []


def double(number, plus=0):
    calls.append(number)
    return [2 * number + plus]


def lock(number):
    calls.append(number)
    return threading.Lock()


def array(length):
    import numpy

    calls.append(length)
    return numpy.arange(length)


@pytest.fixture
def memory(request):
    calls.clear()
    memory = joblib.Memory(request.node.name, backend="tenure", verbose=0)
    yield memory
    memory.clear(warn=False)


def test_function_is_called_once_for_each_arguments(memory):
    cached = memory.cache(double)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [cached(2), cached(2), cached(2, plus=1), cached(number=2)] == [[4], [4], [5], [4]]
    assert calls == [2, 2]
    assert cached.check_call_in_cache(2) and not cached.check_call_in_cache(3)
    # The caller's changes do not reach what is kept.
    cached(2).append("changed")
    assert cached(2) == [4]


def test_purged_result_is_made_again(memory):
    cached = memory.cache(double)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cached(2)
        tenure.purge_all()
        assert cached(2) == [4] and calls == [2, 2]
        assert cached(2) == [4] and calls == [2, 2]


def test_result_that_cannot_be_pickled_is_returned_with_a_warning(memory):
    cached = memory.cache(lock)
    for _ in range(2):
        with pytest.warns(Warning, match="not kept"):
            assert cached(1).acquire()
    assert calls == [1, 1]


def test_shelved_results_and_clear(memory):
    cached = memory.cache(double)
    shelved = cached.call_and_shelve(5)
    assert shelved.get() == [10]
    shelved.clear()
    with pytest.raises(KeyError):
        shelved.get()
    cached(5)
    memory.clear(warn=False)
    assert cached(5) == [10] and calls == [5, 5, 5]
    cached.clear(warn=False)
    assert cached(5) == [10] and calls == [5] * 4


def test_reduce_size_removes_the_oldest(memory):
    cached = memory.cache(double)
    for number in range(10):
        cached(number)
    cached(0)
    memory.reduce_size(items_limit=4)
    kept = [number for number in range(10) if cached.check_call_in_cache(number)]
    assert len(kept) == 4 and 0 in kept
    memory.reduce_size(bytes_limit=0)
    assert memory.store_backend.get_items() == []


def test_arrays_are_writable_unless_they_are_mapped(memory):
    numpy = pytest.importorskip("numpy")
    cached = memory.cache(array)
    cached(1000)[3] = 7
    found = cached(1000)
    assert (found == numpy.arange(1000)).all() and found.flags.writeable
    mapped = joblib.Memory(memory.location, backend="tenure", verbose=0, mmap_mode="r")
    found = mapped.cache(array)(1000)
    assert (found == numpy.arange(1000)).all() and not found.flags.writeable
    assert calls == [1000]


def test_function_goes_to_workers_and_back(memory):
    cached = memory.cache(double)
    cached(1)
    again = pickle.loads(pickle.dumps(memory)).cache(double)
    assert again(1) == [2] and calls == [1]
    results = joblib.Parallel(n_jobs=2, backend="threading")(
        joblib.delayed(cached)(number % 3) for number in range(30)
    )
    assert results == [[2 * (number % 3)] for number in range(30)]


def test_times_of_purged_results_do_not_pile_up(memory):
    cached = memory.cache(double)
    cached(0)
    store = memory.store_backend
    for number in range(1500):
        store.dump_item(("f", str(number)), number)
        if number % 50 == 0:
            tenure.purge_all()
    assert len(store._shelf.used) < 800
