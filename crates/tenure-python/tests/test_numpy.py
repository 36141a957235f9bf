"""Arrays in caches, in volatile memory and in the heap."""

import pytest

numpy = pytest.importorskip("numpy", reason="python3 has no numpy")

import tenure  # noqa: E402


def test_array_comes_back_without_a_copy():
    cache = tenure.Cache()
    array = numpy.arange(1_000_000, dtype=numpy.float32).reshape(1000, 1000)
    cache["a"] = {"image": array, "name": "x"}
    found = cache["a"]["image"]
    assert (found == array).all() and not found.flags.writeable and not found.flags.owndata
    # It stays while the array lives, whatever becomes of the cache.
    del cache["a"]
    cache.clear()
    tenure.purge_all()
    assert (found == array).all()


def test_array_of_a_released_pin_stays():
    buffer = tenure.VolatileBuffer(8000)
    with buffer.pinned() as view:
        array = numpy.frombuffer(view, dtype=numpy.int64)
        array[:] = 7
    tenure.purge_all()
    assert (array == 7).all()
    with pytest.raises(BufferError):
        buffer.purge()
    del array
    buffer.purge()


def test_array_over_mapping_keeps_it():
    mapping = tenure.Mapping(8 << 20, populate=True)
    array = numpy.frombuffer(mapping, dtype=numpy.uint8)
    array[5] = 1
    with pytest.raises(BufferError):
        mapping.release()
    del array
    mapping.release()


def test_populate_of_arrays_in_either_order():
    for order in "CF":
        array = numpy.zeros((1024, 1024), order=order)
        tenure.populate(array)
        assert not array.any()
    with pytest.raises((ValueError, BufferError)):
        tenure.populate(numpy.zeros((64, 64))[:, ::2])


def test_heap_serves_arrays_of_all_threads_and_those_before_stay(python):
    python(
        """
        import threading, tenure
        import numpy
        before, small = numpy.ones(1 << 20), numpy.ones(10)
        assert not tenure.heap.serves_numpy()
        assert tenure.heap.install() and tenure.heap.serves_numpy()
        assert not tenure.heap.install()

        def use():
            array = numpy.ones(4 << 20)
            assert tenure.heap.stats()["in_use_bytes"] >= array.nbytes
            array.resize(8 << 20, refcheck=False)
            assert array.sum() == 4 << 20
            zeros = numpy.zeros((1 << 10, 1 << 10))
            assert not zeros.any()
            # To a small block, and back.
            array.resize(10, refcheck=False)
            array.resize(1 << 20, refcheck=False)
            assert array.sum() == 10

        threads = [threading.Thread(target=use) for _ in range(3)]
        for it in threads: it.start()
        for it in threads: it.join()
        use()
        assert tenure.heap.stats()["in_use_bytes"] < 1 << 20
        # What was there is freed and resized by what allocated it.
        before.resize(2 << 20, refcheck=False)
        assert before.sum() == 1 << 20 and small.sum() == 10
        del before, small
        """
    )


def test_heap_reaches_numpy_that_is_imported_later(python):
    python(
        """
        import tenure
        tenure.heap.install()
        import numpy
        assert tenure.heap.serves_numpy()
        array = numpy.ones(1 << 20)
        assert tenure.heap.stats()["in_use_bytes"] >= array.nbytes
        """
    )


def test_too_large_array_is_numpys_own_error_with_the_heap(python):
    python(
        """
        import numpy, tenure
        tenure.heap.install()
        for make in (numpy.empty, numpy.zeros):
            try:
                make(1 << 59, dtype=numpy.uint8)
            except MemoryError as error:
                assert "Unable to allocate" in str(error)
            else:
                raise AssertionError
        array = numpy.ones(1 << 20)
        try:
            array.resize(1 << 56, refcheck=False)
        except MemoryError:
            assert array.sum() == 1 << 20
        """
    )
