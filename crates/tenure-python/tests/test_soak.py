"""Everything at once, from threads and forked children, with purges as under pressure.

TENURE_SOAK_S says for how many seconds; the seed of each run is printed."""

import faulthandler
import os
import pickle
import random
import threading
import time
import traceback

import tenure

SECONDS = float(os.environ.get("TENURE_SOAK_S", "20"))
KEYS = 60

cache = tenure.Cache()
shared = tenure.SharedCache(f"soak.{os.getpid()}", max_bytes=64 << 20)
# Children of fork share it by its mapping.
shared.unlink()
buffers = [tenure.VolatileBuffer(4096 * (1 + n % 5)) for n in range(12)]
locks = [threading.Lock() for _ in buffers]
objects = tenure.PressureDict()
# In a child of fork: the numbers of the buffers that have an owner in the parent alone.
pinned_at_fork = set()


def value_of(key):
    return {"key": key, "bytes": bytes([key]) * (key * 997 % 40_000), "list": [key] * 20}


@tenure.cache
def computed(key):
    return value_of(key)


def use_cache(rng):
    key = rng.randrange(KEYS)
    found = cache.get(key)
    assert found is None or found == value_of(key), key
    if rng.random() < 0.5:
        cache[key] = value_of(key)
    elif rng.random() < 0.1:
        cache.pop(key, None)
    assert computed(key) == value_of(key)


def use_buffer(rng):
    number = rng.randrange(len(buffers))
    with locks[number]:
        buffer = buffers[number]
        try:
            with buffer.pinned() as view:
                expected = {0, number}
                assert set(view[::512]) <= expected, (number, set(view[::512]))
                view[:] = bytes([number]) * len(buffer)
        except tenure.Purged as lost:
            assert all(length > 0 for _, length in lost.ranges)
        if rng.random() < 0.05 and number not in pinned_at_fork:
            buffer.purge()


def use_shared(rng):
    key = rng.randrange(KEYS)
    found = shared.get(key)
    assert found is None or found == value_of(key), key
    if rng.random() < 0.5:
        shared[key] = value_of(key)
    elif rng.random() < 0.1:
        shared.pop(key, None)


def use_pins(rng):
    """Values outlive their keys, and pins their cache, as long as they are referred to."""
    kept = tenure.Cache()
    buffers = [pickle.PickleBuffer(bytes([n]) * rng.randrange(1, 200_000)) for n in range(5)]
    lengths = [len(buffer.raw()) for buffer in buffers]
    kept["pins"] = buffers
    views = kept.get("pins")
    del kept, buffers
    for n, view in enumerate(views or []):
        assert len(view) == lengths[n] and set(bytes(view)[::97]) == {n}


def use_populate(rng):
    block = bytearray(rng.randrange(1, 1 << 20))
    tenure.populate(block, progress=lambda done, total: None)
    assert not any(block[::4096])


def use_mapping(rng):
    with tenure.Mapping(rng.randrange(1, 3 << 20), populate=rng.random() < 0.5) as mapping:
        view = memoryview(mapping)
        assert not any(view[::4096])
        view[-1] = 1
        view.release()


def use_heap(rng):
    size = rng.randrange(1 << 18, 4 << 20)
    block = bytearray(size)
    assert not any(block[::4096])
    block.extend(b"x" * rng.randrange(1 << 20))
    assert block[-1:] in (b"x", b"\0")


def use_objects(rng):
    key = rng.randrange(KEYS)
    found = objects.get(key)
    assert found is None or found == [key]
    objects[key] = [key]


def look(rng):
    assert tenure.headroom() >= 0
    tenure.residency()
    tenure.stats()
    if rng.random() < 0.2:
        tenure.purge_all()


USES = [use_cache, use_cache, use_buffer, use_buffer, use_shared, use_pins]
USES += [use_populate, use_mapping, use_heap, use_objects, look]


def work(seed, is_over, failures):
    rng = random.Random(seed)
    try:
        while not is_over():
            rng.choice(USES)(rng)
    except BaseException as error:
        failures.append(error)
        raise


def child(seed):
    """Uses everything in a child. Buffers that other threads had pinned stay so in it."""
    faulthandler.dump_traceback_later(120)
    for number, lock in enumerate(locks):
        if lock.locked():
            pinned_at_fork.add(number)
        # A thread that has just taken a lock, and waits for the GIL, has not marked it yet.
        locks[number] = threading.Lock()
    rounds = iter(range(40))
    work(seed, lambda: next(rounds, None) is None, [])
    os._exit(0)


def test_soak():
    seed = random.randrange(1 << 30)
    print("seed", seed)
    tenure.heap.install(dirty_decay=0.1, muzzy_decay=0.1)
    tenure.set_offer_delay(0.005)
    end, failures = time.monotonic() + SECONDS, []
    is_over = lambda: time.monotonic() > end or bool(failures)  # noqa: E731
    threads = [
        threading.Thread(target=work, args=(seed + n, is_over, failures)) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    forks = 0
    while not is_over():
        forks += 1
        pid = os.fork()
        if pid == 0:
            try:
                child(seed + 1000 + forks)
            except BaseException:
                # The captured output of a child is shown with the test's, its buffers are not.
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == 0, (seed, forks, status)
        time.sleep(0.02)
    for thread in threads:
        thread.join()
    assert failures == [] and forks > 0
