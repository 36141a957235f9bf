import os
import threading

import pytest
import tenure


def test_contents_stay_between_pins():
    buffer = tenure.VolatileBuffer(100_000)
    with buffer.pinned() as view:
        assert len(view) == len(buffer) == 100_000
        view[:] = b"v" * 100_000
    with buffer.pinned() as view:
        assert bytes(view) == b"v" * 100_000


def test_purged_contents_are_reported_once_and_zeros_then():
    buffer = tenure.VolatileBuffer(20_000)
    with buffer.pinned() as view:
        view[:] = b"v" * 20_000
    buffer.purge()
    assert not buffer.is_intact()
    with pytest.raises(tenure.Purged) as raised:
        buffer.pinned().__enter__()
    ranges = raised.value.ranges
    assert sum(length for _, length in ranges) >= 20_000
    assert min(start for start, _ in ranges) == 0
    with buffer.pinned() as view:
        assert not any(view)


def test_view_that_outlives_its_block_raises():
    buffer = tenure.VolatileBuffer(4096)
    with buffer.pinned() as view:
        pass
    with pytest.raises(ValueError):
        view[0]
    buffer.purge()
    with pytest.raises(ValueError):
        bytes(view)


def test_part_that_outlives_its_block_keeps_buffer_pinned():
    buffer = tenure.VolatileBuffer(4096)
    with buffer.pinned() as view:
        view[:4] = b"kept"
        part = view[:4]
    with pytest.raises(BufferError):
        buffer.purge()
    tenure.purge_all()
    assert bytes(part) == b"kept"
    part.release()
    del part
    buffer.purge()


def test_pins_nest_and_end_with_exceptions():
    buffer = tenure.VolatileBuffer(4096)
    with pytest.raises(ZeroDivisionError):
        with buffer.pinned() as outer, buffer.pinned() as inner:
            inner[0] = 5
            assert outer[0] == 5
            1 / 0
    buffer.purge()


def test_offered_contents_come_back(python):
    python(
        """
        import tenure
        tenure.set_offer_delay(0)
        buffers = [tenure.VolatileBuffer(1 << 16) for _ in range(50)]
        for round in range(20):
            for number, buffer in enumerate(buffers):
                try:
                    with buffer.pinned() as view:
                        assert set(view[:: 1 << 12]) <= {0, number}
                        view[:] = bytes([number]) * (1 << 16)
                except tenure.Purged:
                    pass
        assert tenure.stats()["mark_nonvolatile_calls"] >= 1000
        """
    )


def test_child_has_contents_of_its_own():
    buffer = tenure.VolatileBuffer(4096)
    with buffer.pinned() as view:
        view[0] = 1
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with buffer.pinned() as view:
                status = 0 if view[0] == 1 else 2
                view[0] = 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with buffer.pinned() as view:
        assert view[0] == 1


def test_forks_beside_pins_of_other_threads_do_not_hang():
    buffers = [tenure.VolatileBuffer(1 << 16) for _ in range(4)]
    done = threading.Event()

    def work(buffer):
        while not done.is_set():
            with buffer.pinned() as view:
                view[0] = 1
            buffer.is_intact()

    threads = [threading.Thread(target=work, args=(it,)) for it in buffers]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    for buffer in buffers:
                        with buffer.pinned() as view:
                            view[0] = 2
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        done.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [((0,), ValueError), ((-1,), ValueError), (("a",), TypeError)],
)
def test_wrong_arguments_are_refused(arguments, error):
    with pytest.raises(error):
        tenure.VolatileBuffer(*arguments)
    for priority in (-1, 4):
        with pytest.raises(ValueError, match="priority"):
            tenure.VolatileBuffer(1, priority=priority)
