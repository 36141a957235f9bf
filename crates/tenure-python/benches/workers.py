"""Prints what a Dask worker holds six seconds after its arrays were dropped.

    python workers.py [ROUNDS]

It is the script of dask/distributed#5971, 7000 random arrays of 160 KiB, and a variant with
arrays of 8 KiB to 2 MiB. The worker has the C library's heap, that with
MALLOC_TRIM_THRESHOLD_=65536, or tenure's by `HeapPlugin`, in turn. Needs dask, distributed,
numpy 1.22 or later, and 3 GiB of memory.
"""

import os
import statistics
import sys
import time

import dask
import numpy
import tenure
import tenure.dask
from distributed import Client, LocalCluster, wait

MIB = 1 << 20
KINDS = ("glibc", "trim", "heap")
TRIM = {"MALLOC_TRIM_THRESHOLD_": 65536}
ALIKE, MIXED = [160 << 10] * 7000, [8 << 10, 30 << 10, 60 << 10, 160 << 10, 2 << 20] * 500


def make(seed, size):
    """As `dask.array.random.random`: an array of this many bytes."""
    return numpy.random.default_rng(seed).random(size // 8)


def look():
    return tenure.residency().rss, time.process_time()


def once(kind, sizes):
    """Returns the RSS afterwards, and the seconds of the clock and of the worker's CPUs."""
    # The nanny leaves what it sets in this process.
    os.environ.pop("MALLOC_TRIM_THRESHOLD_", None)
    environment = {"distributed.nanny.pre-spawn-environ": TRIM if kind == "trim" else {}}
    with dask.config.set(environment), LocalCluster(
        n_workers=1, threads_per_worker=2, memory_limit="2 GiB", dashboard_address=None
    ) as cluster, Client(cluster) as client:
        if kind == "heap":
            client.register_plugin(tenure.dask.HeapPlugin())
        client.run(make, 0, 8)
        ((_, cpu_before),) = client.run(look).values()
        start = time.perf_counter()
        futures = client.map(make, range(len(sizes)), sizes, pure=False, batch_size=1000)
        wait(futures)
        wall = time.perf_counter() - start
        ((_, cpu),) = client.run(look).values()
        assert all(future.status == "finished" for future in futures)
        del futures
        time.sleep(6)
        ((rss, _),) = client.run(look).values()
        return rss, wall, cpu - cpu_before


def main(rounds):
    for name, sizes in ("arrays of 160 KiB", ALIKE), ("arrays of 8 KiB to 2 MiB", MIXED):
        found = {kind: [] for kind in KINDS}
        for _ in range(rounds):
            for kind in KINDS:
                found[kind].append(once(kind, sizes))
        rss, wall, cpu = (
            {kind: statistics.median(it[place] for it in found[kind]) for kind in KINDS}
            for place in range(3)
        )
        held = ", ".join(f"{kind} {rss[kind] / MIB:.0f} MiB" for kind in KINDS)
        print(f"a worker after {name}: {held}; heap/trim {rss['heap'] / rss['trim']:.2f}")
        for what, seconds in ("clock", wall), ("worker's CPUs", cpu):
            ratios = ", ".join(f"{kind} {seconds['glibc'] / seconds[kind]:.2f}" for kind in KINDS)
            print(f"    speed by the {what}, as a ratio to glibc: {ratios}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
