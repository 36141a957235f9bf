import pytest
import tenure


def test_installed_heap_serves_blocks(python):
    python(
        """
        import tenure
        assert tenure.heap.stats()["blocks"] == 0
        before = bytearray(5 << 20)
        assert tenure.heap.install(dirty_decay=0.1, muzzy_decay=0) is True
        assert tenure.heap.install() is False
        # Of what installing has imported.
        first = tenure.heap.stats()["in_use_bytes"]
        blocks = [bytes([n]) * (1 << 20) for n in range(20)]
        small = [bytes([n]) * 1000 for n in range(200)]
        assert 20 << 20 <= tenure.heap.stats()["in_use_bytes"] - first < 40 << 20
        assert all(block == bytes([n]) * (1 << 20) for n, block in enumerate(blocks))
        growing = bytearray()
        for n in range(64):
            growing += bytes([n]) * 100_000
        assert all(growing[n * 100_000] == n for n in range(64))
        del growing[100:]
        assert len(growing) == 100
        before.extend(b"x" * (9 << 20))
        assert before[-1] == ord("x") and before[0] == 0
        del blocks, before, growing
        assert tenure.heap.stats()["in_use_bytes"] - first < 1 << 20
        """
    )


def test_freed_memory_is_returned_after_decay(python):
    python(
        """
        import time, tenure
        tenure.heap.install(dirty_decay=0.05, muzzy_decay=0.05)
        block = bytes(64 << 20)
        del block
        for _ in range(2000):
            stats = tenure.heap.stats()
            # The heap starts no thread to give back less than 4 MiB.
            if stats["dirty_bytes"] + stats["muzzy_bytes"] < 4 << 20:
                break
            time.sleep(0.02)
        else:
            raise AssertionError(stats)
        """
    )


def test_heap_and_forks(python):
    python(
        """
        import os, threading, tenure
        tenure.heap.install()
        done = threading.Event()
        def work():
            while not done.is_set():
                bytearray(1 << 20)
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads: thread.start()
        kept = bytes([7]) * (1 << 20)
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                block = bytearray(3 << 20)
                os._exit(0 if kept[9] == 7 and not any(block[::4096]) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        done.set()
        for thread in threads: thread.join()
        """
    )


def test_wrong_decay_is_refused():
    for name in ("dirty_decay", "muzzy_decay"):
        with pytest.raises(ValueError, match=name):
            tenure.heap.install(**{name: -1})
        with pytest.raises(TypeError):
            tenure.heap.install(**{name: "long"})


def test_heap_with_limited_addresses_serves_what_fits(python):
    python(
        """
        import resource, tenure
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, hard))
        assert tenure.heap.install()
        block = bytearray(5 << 20)
        assert tenure.heap.stats()["in_use_bytes"] >= 5 << 20
        try:
            bytearray(1 << 30)
        except MemoryError:
            pass
        else:
            raise AssertionError("allocated")
        block = bytearray(9 << 20)
        assert tenure.heap.stats()["in_use_bytes"] >= 9 << 20
        """
    )


def test_numpy_that_is_not_installed_is_not_served(python):
    python(
        """
        import importlib.util, sys, tenure
        importlib.util.find_spec("numpy")
        assert tenure.heap.serves_numpy() is False
        sys.modules["numpy"] = None
        tenure.heap.install()
        # From numpy 2.5 on the interpreter's own functions allocate its arrays.
        assert tenure.heap.serves_numpy() is (tenure.heap._numpy_version() >= (2, 5))
        """
    )


def test_numpy_that_cannot_be_imported_leaves_the_heap_for_the_rest(python, tmp_path):
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy/__init__.py").write_text("raise OSError('no descriptors')")
    (tmp_path / "numpy-2.0.0.dist-info").mkdir()
    (tmp_path / "numpy-2.0.0.dist-info/METADATA").write_text("Name: numpy\nVersion: 2.0.0\n")
    python(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import tenure
        assert tenure.heap.install() and not tenure.heap.serves_numpy()
        block = bytearray(1 << 20)
        assert tenure.heap.stats()["in_use_bytes"] >= 1 << 20
        """
    )


def test_heap_is_refused_while_tracemalloc_traces(python):
    python(
        """
        import tracemalloc, tenure
        tracemalloc.start()
        try:
            tenure.heap.install()
        except RuntimeError as error:
            assert "tracemalloc" in str(error)
        else:
            raise AssertionError("installed")
        blocks = [bytes(1 << 20) for _ in range(5)]
        tracemalloc.stop()
        del blocks
        assert tenure.heap.install()
        tracemalloc.start()
        assert tenure.heap.install() is False
        blocks = [bytes(1 << 20) for _ in range(50)]
        assert tracemalloc.get_traced_memory()[0] >= 50 << 20
        assert tenure.heap.stats()["in_use_bytes"] >= 50 << 20
        tracemalloc.stop()
        del blocks
        assert tenure.heap.stats()["in_use_bytes"] < 50 << 20
        """
    )
