"""Prints figures of the Python package, each beside the older way where there is one.

    python memory.py del|cache|shared|rss|speed

Needs numpy 1.22 or later, whose arrays come from the heap, and 2.5 GiB of memory.
"""

import multiprocessing
import os
import subprocess
import sys
import threading
import time

import numpy
import tenure

MIB = 1 << 20


def timed(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def delete():
    """How long `del` of 2 GiB takes, in the heap and in the C library's."""

    def once():
        kept = [numpy.ones(2048 * MIB, dtype=numpy.uint8)]
        return timed(kept.clear)

    plain = min(once() for _ in range(3))
    tenure.heap.install()
    ours = min(once() for _ in range(3))
    print(f"del of 2 GiB: {ours * 1e3:.3f} ms, without the heap {plain * 1e3:.1f} ms")


def cache():
    """How long an array of 800 MB takes to come out of a cache, and to be copied."""
    cache, array = tenure.Cache(), numpy.ones(100_000_000)
    cache["a"] = array
    found = []
    best = min(timed(lambda: found.append(cache["a"])) for _ in range(20))
    assert all((it[::100_000] == 1).all() for it in found)
    found.clear()
    copied = timed(array.copy)
    print(f"800 MB out of tenure.Cache: {best * 1e6:.1f} µs; a copy of it: {copied * 1e3:.0f} ms")


PROCESSES = 4


def hits(name, value, count=20_000):
    """Looks a value up again and again: seconds, and seconds of the CPU, for a look-up."""
    cache = tenure.SharedCache(name)
    for number in range(64):
        cache[number] = value
    start, cpu = time.perf_counter(), time.process_time()
    for number in range(count):
        cache.get(number % 64)
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    assert cache.stats()["hits"] == count
    return wall / count, cpu / count


def shared():
    """How long a hit of a value of 8 KiB takes, in processes at the same time."""
    name = f"memory.py.{os.getpid()}"
    cache = tenure.SharedCache(name)
    try:
        for kind, value in (("bytes", bytes(8192)), ("an array", numpy.zeros(1024))):
            alone = min(hits(name, value)[0] for _ in range(3))
            with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
                found = pool.starmap(hits, [(name, value)] * PROCESSES * 3, chunksize=3)
            wall, cpu = (sorted(it)[len(it) // 2] * 1e6 for it in zip(*found))
            print(
                f"hit of {kind} of 8 KiB in tenure.SharedCache: {alone * 1e6:.1f} µs; in "
                f"{PROCESSES} processes at once {wall:.1f} µs, {cpu:.1f} µs of them on a CPU"
            )
    finally:
        cache.unlink()


# Tables of which the larger parts are columns, and the rest are rows and names.
SIZES = {"large blocks": [(8 * MIB, 60), (1 * MIB, 200)], "mixed sizes": [(4 * MIB, 60), (60_000, 6000)]}


def churn(sizes):
    """Threads make arrays and drop them; then one in 40 is left."""

    def work(seed):
        random, kept = numpy.random.default_rng(seed), []
        for size, count in sizes:
            for number in range(count // 4):
                kept.append(numpy.ones(int(random.integers(size // 2, size)), dtype=numpy.uint8))
        random.shuffle(kept)
        left.extend(kept[::40])

    left = []
    for _ in range(3):
        left.clear()
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return left


def child(kind, name):
    if kind == "heap":
        tenure.heap.install(muzzy_decay=0)
        assert tenure.heap.serves_numpy()
    if name == "speed":
        array = numpy.ones(500_000)
        best = min(timed(lambda: [((array * 2 + 1) ** 2).copy() for _ in range(40)]) for _ in range(15))
        print(best)
        return
    left = churn(SIZES[name])
    time.sleep(6)
    print(tenure.residency().rss, sum(it.nbytes for it in left))


KINDS = {"glibc": {}, "trim": {"MALLOC_TRIM_THRESHOLD_": "65536"}, "heap": {}}


def in_children(name):
    found = {}
    for kind, variables in KINDS.items():
        command = [sys.executable, __file__, "child", kind, name]
        environment = {**os.environ, **variables}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found[kind] = float(done.stdout.split()[0])
    return found


def rss():
    """What is resident six seconds after arrays were dropped."""
    for name in SIZES:
        found = in_children(name)
        sizes = ", ".join(f"{kind} {bytes / MIB:.0f} MiB" for kind, bytes in found.items())
        print(f"{name}: {sizes}; heap/trim {found['heap'] / found['trim']:.2f}")


def speed():
    """Temporaries and copies of arrays of 4 MB."""
    found = in_children("speed")
    ratios = ", ".join(f"{kind} {found['glibc'] / it:.2f}" for kind, it in found.items())
    print(f"speed of copies and temporaries, as a ratio to glibc: {ratios}")


COMMANDS = {"del": delete, "cache": cache, "shared": shared, "rss": rss, "speed": speed}

if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(*sys.argv[2:])
    else:
        for name in sys.argv[1:] or COMMANDS:
            COMMANDS[name]()
