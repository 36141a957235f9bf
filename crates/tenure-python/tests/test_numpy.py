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


def test_heap_serves_arrays(python):
    program = """
        import numpy, tenure
        before = numpy.ones(1 << 20)
        assert tenure.heap.install() and not tenure.heap.install()
        if tenure.heap.serves_numpy():
            array = numpy.ones(4 << 20)
            assert tenure.heap.stats()["in_use_bytes"] >= array.nbytes
            array = numpy.resize(array, 8 << 20)
            assert array.sum() == 8 << 20
            del array
            print("served")
        assert before.sum() == 1 << 20
        del before
        """
    served = python(program)
    version = tuple(int(part) for part in numpy.__version__.split(".")[:2])
    assert served == ("served\n" if version >= (2, 5) else "")
