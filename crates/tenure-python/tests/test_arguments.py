"""Wrong arguments of every public function: TypeError or ValueError with the parameter's name."""

import os

import pytest
import tenure

SIZES = [-1, -(2**70), 2**70]
LENGTHS = [*SIZES, 0, 2**63, 2**64 - 1]
NO_SIZES = ["5", 3.5, [], object()]
TIMES = [-1, -0.5, float("nan"), float("inf"), 2**70, 10**400, -(10**400)]
NO_TIMES = ["5", [], object()]
PRIORITIES = [-1, 4, 2**70]


@pytest.fixture(scope="module")
def name():
    if not os.path.isdir("/dev/shm"):
        yield None
        return
    cache = tenure.SharedCache(f"arguments.{os.getpid()}")
    yield cache.name
    cache.unlink()


def calls(name):
    """Functions, with the values that they refuse by ValueError and by TypeError."""
    page = bytearray(4096)
    return [
        ("length", lambda it: tenure.Mapping(it), LENGTHS, [*NO_SIZES, None]),
        ("populate", lambda it: tenure.Mapping(4096, populate=it), [], ["5", 3, None]),
        ("huge_pages", lambda it: tenure.Mapping(4096, huge_pages=it), [], ["5", 3]),
        ("length", lambda it: tenure.VolatileBuffer(it), LENGTHS, [*NO_SIZES, None]),
        ("priority", lambda it: tenure.VolatileBuffer(1, priority=it), PRIORITIES, NO_SIZES),
        ("priority", lambda it: tenure.Cache(priority=it), PRIORITIES, [*NO_SIZES, 2.0]),
        ("priority", lambda it: tenure.cache(priority=it), PRIORITIES, NO_SIZES),
        ("path", lambda it: tenure.LockedFile(it), ["\0"], [None, 3.5, []]),
        ("budget", lambda it: tenure.LockedFile(__file__, it), SIZES, NO_SIZES),
        ("threads", lambda it: tenure.populate(page, threads=it), [*SIZES, 0], NO_SIZES),
        ("progress", lambda it: tenure.populate(page, progress=it), [], [5, "x"]),
        ("pid", lambda it: tenure.residency(it), [*SIZES, 2**32], NO_SIZES),
        ("seconds", lambda it: tenure.set_offer_delay(it), TIMES, [*NO_TIMES, None]),
        ("callback", lambda it: tenure.pressure.subscribe(it), [], [None, 5, "x"]),
        ("function", lambda it: tenure.cache(it), [], [5, "x"]),
        ("code", lambda it: tenure.fast_exit(it), [-1, 256, 2**70], ["5", 3.5, None]),
        ("dirty_decay", lambda it: tenure.heap.install(dirty_decay=it), TIMES, NO_TIMES),
        ("muzzy_decay", lambda it: tenure.heap.install(muzzy_decay=it), TIMES, NO_TIMES),
        *(shared_calls(name) if name else []),
    ]


def shared_calls(name):
    return [
        ("priority", lambda it: tenure.SharedCache(name, priority=it), PRIORITIES, NO_SIZES),
        ("max_bytes", lambda it: tenure.SharedCache(name, max_bytes=it), SIZES, NO_SIZES),
        ("time_to_live", lambda it: tenure.SharedCache(name, time_to_live=it), TIMES, NO_TIMES),
        ("name", lambda it: tenure.SharedCache(it), ["", "a/b", "\0", "n" * 300], [None, 5, b"n"]),
    ]


def test_wrong_arguments_are_named(name):
    for parameter, call, wrong_values, wrong_types in calls(name):
        for kind, arguments in (ValueError, wrong_values), (TypeError, wrong_types):
            for argument in arguments:
                try:
                    call(argument)
                except kind as error:
                    # A note names it below the message.
                    text = "\n".join([str(error), *getattr(error, "__notes__", [])])
                    assert parameter in text, (parameter, argument, error)
                except BaseException as error:
                    raise AssertionError((parameter, argument, error)) from error
                else:
                    raise AssertionError((parameter, argument, "is accepted"))
    assert tenure.heap.stats()["blocks"] == 0


def test_error_of_an_argument_itself_is_raised():
    class Broken:
        def __index__(self):
            raise ZeroDivisionError

        __float__ = __index__

    for call in (
        lambda it: tenure.Mapping(it),
        lambda it: tenure.Cache(priority=it),
        lambda it: tenure.VolatileBuffer(1, priority=it),
        lambda it: tenure.residency(it),
        lambda it: tenure.set_offer_delay(it),
    ):
        with pytest.raises(ZeroDivisionError):
            call(Broken())


def test_largest_times_are_accepted(python):
    # What is added to a time may overflow.
    python(
        """
        import os, tenure
        tenure.set_offer_delay(1e19)
        buffer = tenure.VolatileBuffer(4096)
        with buffer.pinned():
            pass
        if os.path.isdir("/dev/shm"):
            cache = tenure.SharedCache(f"times.{os.getpid()}", time_to_live=1e19)
            cache.unlink()
            cache[1] = 2
            assert cache.get(1, 2) == 2
        tenure.heap.install(dirty_decay=1e19, muzzy_decay=1e19)
        for _ in range(3):
            bytearray(9 << 20)
        """
    )
