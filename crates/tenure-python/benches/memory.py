"""Prints figures of the Python package, each beside the older way where there is one.

    python memory.py del|cache|shared|rss|speed

Needs numpy 1.22 or later, whose arrays come from the heap, and 4.5 GiB of memory.
"""

import multiprocessing
import os
import statistics
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
    """How long `del` of 4 GiB takes, in the heap and in the C library's."""

    def once():
        kept = [numpy.ones(4096 * MIB, dtype=numpy.uint8)]
        return timed(kept.clear)

    plain = min(once() for _ in range(3))
    tenure.heap.install()
    ours = min(once() for _ in range(3))
    print(f"del of 4 GiB: {ours * 1e3:.3f} ms, without the heap {plain * 1e3:.1f} ms")


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


def hits(name, count=20_000):
    """Looks values up again and again. Returns the median of the seconds of a look-up, and the
    seconds of the CPU that one takes."""
    cache = tenure.SharedCache(name)
    cpu = time.process_time()
    for number in range(count):
        cache.get(number % 64)
    cpu = time.process_time() - cpu
    median = statistics.median(timed(lambda: cache.get(number % 64)) for number in range(count))
    assert cache.stats()["hits"] == 2 * count
    return median, cpu / count


def shared():
    """How long a hit of a value of 8 KiB takes, in processes at the same time."""
    name = f"memory.py.{os.getpid()}"
    cache = tenure.SharedCache(name)
    try:
        for kind, value in (("bytes", bytes(8192)), ("an array", numpy.zeros(1024))):
            for number in range(64):
                cache[number] = value
            alone, _ = hits(name)
            with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
                found = pool.starmap(hits, [(name,)] * PROCESSES * 3, chunksize=3)
            median, cpu = (statistics.median(it) * 1e6 for it in zip(*found))
            print(
                f"hit of {kind} of 8 KiB in tenure.SharedCache: {alone * 1e6:.1f} µs in the "
                f"median; in {PROCESSES} processes at once {median:.1f} µs, {cpu:.1f} µs of a CPU"
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
    """Prints what is resident, and the seconds of the clock and of the CPUs."""
    if kind == "heap":
        tenure.heap.install(muzzy_decay=0)
        assert tenure.heap.serves_numpy()
    if name == "speed":
        array, laps = numpy.ones(500_000), []
        for _ in range(15):
            start, cpu = time.perf_counter(), time.process_time()
            for _ in range(40):
                ((array * 2 + 1) ** 2).copy()
            laps.append((time.perf_counter() - start, time.process_time() - cpu))
        # The first laps populate the heap.
        wall, cpu = (statistics.median(it) for it in zip(*laps[3:]))
        print(tenure.residency().rss, wall, cpu)
        return
    start, cpu = time.perf_counter(), time.process_time()
    left = churn(SIZES[name])
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    time.sleep(6)
    print(tenure.residency().rss, wall, cpu)
    del left


KINDS = {"glibc": {}, "trim": {"MALLOC_TRIM_THRESHOLD_": "65536"}, "heap": {}}
ROUNDS = 3


def in_children(name):
    """Runs the kinds in turn: the medians of what the children print, by kind."""
    found = {kind: [] for kind in KINDS}
    for _ in range(ROUNDS):
        for kind, variables in KINDS.items():
            command = [sys.executable, __file__, "child", kind, name]
            environment = {**os.environ, **variables}
            options = {"capture_output": True, "text": True, "check": True}
            done = subprocess.run(command, env=environment, **options)
            found[kind].append([float(it) for it in done.stdout.split()])
    medians = {kind: [statistics.median(it) for it in zip(*rows)] for kind, rows in found.items()}
    return [{kind: medians[kind][place] for kind in KINDS} for place in range(3)]


def print_speed(wall, cpu):
    for what, seconds in ("clock", wall), ("CPUs", cpu):
        ratios = ", ".join(f"{kind} {seconds['glibc'] / it:.2f}" for kind, it in seconds.items())
        print(f"    speed by the {what}, as a ratio to glibc: {ratios}")


def rss():
    """What is resident six seconds after arrays were dropped."""
    for name in SIZES:
        rss, wall, cpu = in_children(name)
        sizes = ", ".join(f"{kind} {bytes / MIB:.0f} MiB" for kind, bytes in rss.items())
        print(f"{name}: {sizes}; heap/trim {rss['heap'] / rss['trim']:.2f}")
        print_speed(wall, cpu)


def speed():
    """Temporaries and copies of arrays of 4 MB."""
    _, wall, cpu = in_children("speed")
    print("copies and temporaries of 4 MB:")
    print_speed(wall, cpu)


COMMANDS = {"del": delete, "cache": cache, "shared": shared, "rss": rss, "speed": speed}

if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(*sys.argv[2:])
    else:
        for name in sys.argv[1:] or COMMANDS:
            COMMANDS[name]()
