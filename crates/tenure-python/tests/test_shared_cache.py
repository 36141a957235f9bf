"""SharedCache: what processes share by name."""

import array
import os
import pickle
import subprocess
import sys
import threading

import pytest
import tenure

if not os.path.isdir("/dev/shm"):
    pytest.skip("there is no /dev/shm", allow_module_level=True)


def path_of(name):
    return f"/dev/shm/tenure.{name}"


@pytest.fixture
def cache():
    """A small cache. Any process gives its values up under pressure, so that a test asks with
    `has` whether one is there or was evicted."""
    cache = tenure.SharedCache(f"test.py.{os.getpid()}", max_bytes=32 << 20)
    yield cache
    if os.path.exists(path_of(cache.name)):
        cache.unlink()


def has(cache, key, value):
    found = cache.get(key, cache)
    return found == value if found is not cache else cache.stats()["evicted"] > 0


KEYS = ["", "ä\ud800", b"", b"\0", 0, -1, 1 << 20_000, 1.5, float("inf"), None, (), ((),), ("a", ("b", 1))]


def test_values_come_back_under_all_kinds_of_keys(cache):
    for key in KEYS:
        cache[key] = {"key": key}
    for key in KEYS:
        assert has(cache, key, {"key": key})
    stats = cache.stats()
    if not stats["evicted"]:
        assert set(cache) == set(KEYS) and len(cache) == len(KEYS)
        assert all(key in cache for key in KEYS) and "missing" not in cache
        assert dict(cache.items()) == {key: {"key": key} for key in KEYS}


def test_buffers_come_back_as_views(cache):
    cache["buffer"] = [pickle.PickleBuffer(b"bytes" * 100), pickle.PickleBuffer(b"")]
    found = cache.pop("buffer", None)
    assert found == [b"bytes" * 100, b""] if found else cache.stats()["evicted"] > 0
    assert all(isinstance(it, memoryview) and it.readonly for it in found or [])


def test_equal_numbers_are_one_key_and_others_are_not(cache):
    for keys in ([1, 1.0, True], [0, -0.0, False], [(2,), (2.0,)]):
        cache[keys[0]] = keys[0]
        for key in keys:
            assert has(cache, key, keys[0])
    for key in ("1", b"1", (1,), 1.5, ((1,),), "i1"):
        assert key not in cache


def test_other_keys_are_refused(cache):
    for key in (frozenset(), object(), 1j, type("Name", (str,), {})("a"), (1, object())):
        for use in (cache.get, cache.__contains__, cache.pop, cache.__delitem__):
            with pytest.raises(TypeError, match="key must be"):
                use(key)
        with pytest.raises(TypeError, match="key must be"):
            cache[key] = 1
    with pytest.raises(TypeError, match="unhashable"):
        cache[[]] = 1


def test_shared_cache_is_a_mutable_mapping(cache):
    cache.update({"a": 1, "b": 2})
    assert cache.pop("a", 1) == 1 and cache.pop("a", "none") == "none"
    for missing in (cache.__getitem__, cache.__delitem__, cache.pop):
        with pytest.raises(KeyError):
            missing("a")
    assert cache.setdefault("c", 3) == 3
    cache.clear()
    assert len(cache) == 0 and list(cache) == [] and not cache
    with pytest.raises(KeyError):
        cache.popitem()
    assert cache.name in repr(cache)


LENGTHS = (0, 1, 63, 64, 65, 100_000)


def test_buffers_lie_beside_the_pickle_and_are_read_only(cache):
    cache["blocks"] = [pickle.PickleBuffer(bytearray([it % 251]) * it) for it in LENGTHS]
    found = cache.get("blocks")
    if found is None:
        assert cache.stats()["evicted"]
        return
    for length, view in zip(LENGTHS, map(memoryview, found)):
        assert view.readonly and bytes(view) == bytes([length % 251]) * length
    # They stay whatever becomes of the value.
    cache["blocks"] = None
    cache.clear()
    assert bytes(found[4]) == bytes([65]) * 65


def test_what_cannot_be_pickled_raises_its_own_error_and_changes_nothing(cache):
    cache["a"] = 1
    with pytest.raises(Exception, match="pickle"):
        cache["a"] = threading.Lock()
    assert has(cache, "a", 1)

    class Odd:
        def __reduce__(self):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cache["a"] = Odd()
    assert has(cache, "a", 1)


def test_wrong_arguments_are_named():
    with pytest.raises(TypeError):
        tenure.SharedCache(3)
    for name in ("", "a/b", "a\0b", "x" * 201):
        with pytest.raises(ValueError, match="a name has 1 to 200 bytes"):
            tenure.SharedCache(name)
    for wrong in ({"max_bytes": -1}, {"time_to_live": -1}, {"priority": 4}, {"priority": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            tenure.SharedCache("test.wrong", **wrong)
    with pytest.raises(TypeError, match="max_bytes"):
        tenure.SharedCache("test.wrong", max_bytes="much")
    assert not os.path.exists(path_of("test.wrong"))


def test_expired_value_is_missing(cache):
    other = tenure.SharedCache(cache.name, time_to_live=0)
    other["a"] = 1
    assert "a" not in other and other.get("a") is None
    assert has(cache, "a", 1)


def test_value_is_found_by_processes_of_all_kinds(cache, python):
    cache["parent"] = [1, b"2" * 10_000]
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            assert has(cache, "parent", [1, b"2" * 10_000])
            cache["forked"] = "forked"
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert has(cache, "forked", "forked")
    # The cache itself goes to another process as its name.
    program = """
        import pickle, sys
        cache = pickle.loads(bytes.fromhex(sys.stdin.read()))
        print(cache.get("parent"))
        cache["other"] = {"pid": 1}
        """
    printed = python(program, input=pickle.dumps(cache).hex())
    assert printed.strip() in (str([1, b"2" * 10_000]), "None")
    assert has(cache, "other", {"pid": 1})


def test_values_are_whole_while_writers_are_killed(cache):
    program = """
import sys, tenure
cache = tenure.SharedCache(sys.argv[1])
print("ready", flush=True)
while True:
    for number in range(20):
        cache[number] = bytes([number]) * (number * 997 % 40_000)
        cache.pop(number // 2, None)
"""
    expected = [{None, b"", bytes([it]) * (it * 997 % 40_000)} for it in range(20)]
    for round in range(6):
        command = [sys.executable, "-B", "-c", program, cache.name]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            try:
                assert writer.stdout.readline() == b"ready\n"
                # Later in each round.
                for number in range(20 * 20 * round):
                    assert cache.get(number % 20) in expected[number % 20]
            finally:
                writer.kill()
        for number in range(20):
            assert cache.get(number) in expected[number]
            cache[number] = b""
            assert has(cache, number, b"")


def test_threads_and_forks_at_the_same_time(cache):
    done, failures = threading.Event(), []

    def work(seed):
        try:
            number = seed
            while not done.is_set():
                number = (number * 7 + 1) % 40
                found = cache.get(number)
                assert found is None or found == bytes([number]) * 3000
                cache[number] = bytes([number]) * 3000
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    for number in range(40):
                        found = cache.get(number)
                        assert found is None or found == bytes([number]) * 3000
                        cache[number] = bytes([number]) * 3000
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert failures == []


def test_value_is_popped_by_one_process_only(cache):
    for number in range(200):
        cache[number] = number
    readers = []
    for _ in range(3):
        read, write = os.pipe()
        if os.fork() == 0:
            status = 1
            try:
                taken = [cache.pop(number, -1) for number in range(200)]
                os.write(write, array.array("h", taken).tobytes())
                status = 0
            finally:
                os._exit(status)
        os.close(write)
        readers.append(read)
    taken = []
    for read in readers:
        with open(read, "rb") as file:
            taken.extend(it for it in array.array("h", file.read()) if it >= 0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    assert sorted(taken) == list(range(200)) or cache.stats()["evicted"]


def test_values_of_other_programs_are_missing(cache):
    odd = [b"", b"tenurPy1", b"tenurPy1" + bytes(8), b"tenurPy1" + b"\xff" * 8, b"x" * 100]
    odd += [b"tenurPy1" + (1).to_bytes(8, "little") + n.to_bytes(8, "little") for n in (4000, 1 << 63, 2**64 - 1)]
    odd.append(b"tenurPy1" + (2).to_bytes(8, "little") + b"\xff" * 16)
    # The same lengths and bytes as a value of this package has, in the file of the cache.
    for number, head in enumerate(odd):
        key = f"key {number}"
        cache[key] = "marker"
        replace_in_file(cache, b"tenurPy1" + (1).to_bytes(8, "little"), head.ljust(24, b"\0"))
        assert cache.get(key, "missing") == "missing"
        assert cache.pop(key, "missing") == "missing"
        cache.clear()
    # A damaged pickle is the unpickler's own error.
    cache["key"] = "marker"
    replace_in_file(cache, b"\x80\x05", b"\xff\xff")
    try:
        assert cache.get("key", "missing") == "missing" and cache.stats()["evicted"]
    except pickle.UnpicklingError:
        pass
    cache.clear()
    for number, key in enumerate((b"i" + b"z" * 5, b"t9:s", b"t0:", b"tzz", b"?", b"f123", b"s\xff")):
        cache._native.insert(key, [pickle.dumps(number)], 2)
    assert list(cache) == []
    assert len(cache) == 7 or cache.stats()["evicted"]


def replace_in_file(cache, old, new):
    """Writes to the cache's file, as a process of the same user may."""
    with open(path_of(cache.name), "r+b", buffering=0) as file:
        end, place = os.path.getsize(file.name), 0
        while place < end:
            # Only what was written: the file is sparse, and long.
            try:
                place = os.lseek(file.fileno(), place, os.SEEK_DATA)
            except OSError:
                return
            block = os.pread(file.fileno(), 1 << 20, place)
            found = block.find(old)
            if found >= 0:
                os.pwrite(file.fileno(), new, place + found)
            place += len(block)


def test_truncated_file_is_an_error(cache):
    cache["a"] = 1
    os.truncate(path_of(cache.name), 100)
    assert cache.get("a") is None and "a" not in cache and next(iter(cache), None) is None
    with pytest.raises(OSError):
        cache["a"] = 1
    with pytest.raises(OSError):
        len(cache)
    with pytest.raises(OSError):
        tenure.SharedCache(cache.name)


def test_file_that_others_may_open_is_refused(tmp_path):
    name = f"test.open.{os.getpid()}"
    cache = tenure.SharedCache(name, max_bytes=1 << 20)
    try:
        assert os.stat(path_of(name)).st_mode & 0o777 == 0o600
        os.chmod(path_of(name), 0o660)
        with pytest.raises(PermissionError):
            tenure.SharedCache(name)
        os.unlink(path_of(name))
        os.symlink(tmp_path / "elsewhere", path_of(name))
        with pytest.raises(OSError):
            tenure.SharedCache(name)
    finally:
        os.unlink(path_of(name))
    cache["a"] = 1
    with pytest.raises(FileNotFoundError):
        cache.unlink()


def test_cache_ends_with_its_interpreter_and_threads_at_work(python, cache):
    program = """
        import sys, threading, tenure
        cache = tenure.SharedCache(sys.stdin.read())
        started = threading.Event()
        def work():
            while True:
                cache["a"] = b"v" * 5_000_000
                cache.get("a")
                started.set()
        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        started.wait()
        """
    python(program, input=cache.name)


def test_array_is_a_read_only_view_of_the_copy(cache):
    try:
        import numpy
    except ImportError:
        return
    cache["a"] = {"x": numpy.arange(5000.0).reshape(50, 100), "part": numpy.ones((40, 40))[:, ::2]}
    found = cache.get("a")
    if found is None:
        assert cache.stats()["evicted"]
        return
    assert (found["x"] == numpy.arange(5000.0).reshape(50, 100)).all()
    assert not found["x"].flags.writeable and not found["x"].flags.owndata
    assert found["x"].flags.aligned and found["part"].shape == (40, 20)
