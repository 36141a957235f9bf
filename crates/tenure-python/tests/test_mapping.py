import pytest
import tenure


def test_mapping_is_zeroed_and_writable():
    mapping = tenure.Mapping(3 << 20)
    view = memoryview(mapping)
    assert len(mapping) == len(view) == 3 << 20
    assert not view.readonly and not any(view[:: 64 << 10])
    view[7] = 9
    assert memoryview(mapping)[7] == 9


def test_populated_mapping_is_resident():
    before = tenure.stats()["populate_bytes"]
    mapping = tenure.Mapping(4 << 20, populate=True, huge_pages=False)
    assert tenure.stats()["populate_bytes"] == before + (4 << 20)
    assert not any(memoryview(mapping)[:: 64 << 10])


def test_release_with_views_is_refused():
    mapping = tenure.Mapping(1 << 20)
    view = memoryview(mapping)
    part = view[5:]
    with pytest.raises(BufferError, match="views of it exist"):
        mapping.release()
    part[0] = 1
    part.release()
    view.release()
    mapping.release()
    mapping.release()
    assert len(mapping) == 0
    with pytest.raises(ValueError, match="released"):
        memoryview(mapping)


def test_with_block_releases_mapping():
    with tenure.Mapping(1) as mapping:
        assert len(mapping) == 1
    assert len(mapping) == 0 and "released" in repr(mapping)
    with pytest.raises(ValueError, match="released"):
        with mapping:
            raise AssertionError("entered")


@pytest.mark.parametrize(
    ("length", "error"), [(0, ValueError), (-1, ValueError), ("1", TypeError), (1.5, TypeError)]
)
def test_wrong_length_is_refused(length, error):
    with pytest.raises(error):
        tenure.Mapping(length)


def test_mapping_larger_than_memory_is_memory_error():
    with pytest.raises(MemoryError):
        tenure.Mapping(1 << 45, populate=True)


def test_populate_reports_progress_and_keeps_contents():
    data = bytearray(b"x" * (8 << 20))
    calls = []
    tenure.populate(data, progress=lambda done, total: calls.append((done, total)))
    assert data == b"x" * (8 << 20)
    assert calls and calls[-1][0] == calls[-1][1] >= 8 << 20
    assert calls == sorted(calls)


def test_populate_ends_with_the_error_of_its_callback():
    with tenure.Mapping(64 << 20) as mapping:

        def fail(done, total):
            raise KeyError("stop")

        with pytest.raises(KeyError, match="stop"):
            tenure.populate(mapping, progress=fail)


def test_populate_refuses_what_is_no_buffer():
    for wrong in (3, "text", None):
        with pytest.raises(TypeError):
            tenure.populate(wrong)
    with pytest.raises(ValueError, match="threads"):
        tenure.populate(bytearray(1), threads=0)
    tenure.populate(bytearray())


def test_signals_interrupt_populate_with_their_own_exception(python):
    python(
        """
        import signal, threading, tenure
        class Stop(Exception): pass
        def stop(*_):
            raise Stop
        signal.signal(signal.SIGUSR1, stop)
        main = threading.main_thread().ident

        def interrupted(call):
            # The signal comes from another thread, at some moment of the call.
            done = threading.Event()
            def send():
                while not done.wait(0.0005):
                    signal.pthread_kill(main, signal.SIGUSR1)
            thread = threading.Thread(target=send)
            try:
                try:
                    thread.start()
                    for _ in range(100_000):
                        call()
                except Stop:
                    return True
                finally:
                    done.set()
            except Stop:
                # Between the statements.
                done.set()
                return True

        assert interrupted(lambda: tenure.Mapping(256 << 20, populate=True))
        """
    )


def test_wrong_arguments_are_named_and_their_own_errors_kept(tmp_path):
    class Broken:
        def __index__(self):
            raise KeyError("mine")

    path = tmp_path / "file"
    path.write_bytes(b"x")
    calls = {
        "length": [tenure.Mapping, tenure.VolatileBuffer],
        "budget": [lambda budget: tenure.LockedFile(path, budget=budget)],
        "threads": [lambda threads: tenure.populate(bytearray(1), threads=threads)],
    }
    for name, called in calls.items():
        for call in called:
            for wrong, error in ((-1, ValueError), (2**70, ValueError), ("1", TypeError)):
                with pytest.raises(error, match=name):
                    call(wrong)
            with pytest.raises(KeyError, match="mine"):
                call(Broken())
