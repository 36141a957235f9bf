"""The plugin on two worker processes."""

import pytest

pytest.importorskip("distributed", reason="python3 has no distributed")
pytest.importorskip("numpy", reason="python3 has no numpy")

from distributed import Client, LocalCluster  # noqa: E402
from tenure.dask import HeapPlugin  # noqa: E402


# The heap starts no thread to give back less.
LITTLE = 4 << 20


def make_and_drop(seed):
    import numpy

    arrays = [numpy.full(1_000_000, seed, dtype=numpy.float64) for _ in range(8)]
    return float(sum(array.sum() for array in arrays))


def settled():
    """What the heap holds once nothing is kept for reuse."""
    # It runs on a worker, which has nothing of this file.
    import time

    import tenure

    little = 4 << 20
    for _ in range(3000):
        stats = tenure.heap.stats()
        if stats["dirty_bytes"] + stats["muzzy_bytes"] < little:
            break
        time.sleep(0.02)
    return stats, tenure.heap.install()


def test_workers_have_the_heap_and_give_memory_back():
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster, Client(cluster) as client:
        client.register_plugin(HeapPlugin(dirty_decay=0.05))
        sums = client.gather(client.map(make_and_drop, range(8)))
        assert sums == [seed * 8e6 for seed in range(8)]
        found = client.run(settled)
        assert len(found) == 2
        for stats, is_installed_now in found.values():
            assert not is_installed_now
            assert stats["dirty_bytes"] + stats["muzzy_bytes"] < LITTLE
