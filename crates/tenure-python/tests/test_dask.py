"""The plugin on two worker processes."""

import pytest

pytest.importorskip("distributed", reason="python3 has no distributed")
pytest.importorskip("numpy", reason="python3 has no numpy")

from conftest import wait_until  # noqa: E402
from distributed import Client, LocalCluster  # noqa: E402
from tenure.dask import HeapPlugin, ResultsPlugin  # noqa: E402


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


def wait_until_forgotten(client, key):
    def is_forgotten():
        return not client.run_on_scheduler(
            lambda dask_scheduler: key in dask_scheduler.tasks
        )

    wait_until(is_forgotten, "the scheduler has forgotten the task")


def keep_what_nobody_needs():
    import tenure

    tenure.set_offer_delay(600)


@pytest.fixture(scope="module")
def client():
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster, Client(cluster) as client:
        client.register_plugin(HeapPlugin(dirty_decay=0.05))
        client.run(keep_what_nobody_needs)
        yield client


def test_workers_have_the_heap_and_give_memory_back(client):
    sums = client.gather(client.map(make_and_drop, range(8)))
    assert sums == [seed * 8e6 for seed in range(8)]
    found = client.run(settled)
    assert len(found) == 2
    for stats, is_installed_now in found.values():
        assert not is_installed_now
        assert stats["dirty_bytes"] + stats["muzzy_bytes"] < LITTLE


def stats_of(dask_worker):
    return dask_worker.plugins["tenure-results"].stats()


def totals(client):
    found = list(client.run(stats_of).values())
    assert len(found) == 2
    return {name: sum(it[name] for it in found) for name in found[0]}


def make(path, number):
    # Tells each run.
    with open(path, "a") as file:
        file.write(f"{number}\n")
    import numpy

    return {"array": numpy.full(50_000, number), "number": number}


def write_to(made):
    made["array"][0] = -1
    return int(made["array"].sum())


def lock(number):
    import threading

    return threading.Lock().__class__.__name__ and (it for it in range(number))


async def asynchronous(number):
    return number + 1


def fail(number):
    raise KeyError(number)


@pytest.fixture
def results(client):
    """Registers the plugin anew; yields the client and what runs a task of a key."""
    client.register_plugin(ResultsPlugin(max_fraction=1.0))

    def compute(worker, key, function, *arguments):
        """The result, which nobody refers to afterwards."""
        future = client.submit(function, *arguments, key=key, workers=[worker])
        result = future.result()
        future.release()
        wait_until_forgotten(client, key)
        return result

    yield client, compute
    client.unregister_worker_plugin("tenure-results")


def test_task_that_comes_again_returns_its_kept_result(results, tmp_path):
    client, compute = results
    runs = str(tmp_path / "runs")
    for worker in client.scheduler_info()["workers"]:
        for _ in range(3):
            found = compute(worker, "make-1", make, runs, 1)
            assert found["number"] == 1 and (found["array"] == 1).all()
    # Once on each worker.
    assert open(runs).read() == "1\n1\n"
    assert totals(client)["spared"] == 4
    # The same key with other arguments, and another key, are other tasks.
    worker = next(iter(client.scheduler_info()["workers"]))
    assert compute(worker, "make-1", make, runs, 2)["number"] == 2
    assert compute(worker, "make-2", make, runs, 1)["number"] == 1
    assert open(runs).read() == "1\n1\n2\n1\n"


def test_tasks_may_write_to_kept_results(results, tmp_path):
    client, compute = results
    worker = next(iter(client.scheduler_info()["workers"]))
    runs = str(tmp_path / "runs")
    for number in range(3):
        made = client.submit(make, runs, 1, key="made", workers=[worker])
        assert compute(worker, f"written-{number}", write_to, made) == 49_998
        made.release()
        wait_until_forgotten(client, "made")
    assert open(runs).read() == "1\n"


def test_purged_results_are_made_again(results, tmp_path):
    client, compute = results
    worker = next(iter(client.scheduler_info()["workers"]))
    runs = str(tmp_path / "runs")

    def purge():
        import tenure

        tenure.purge_all()

    for _ in range(2):
        assert compute(worker, "make-1", make, runs, 1)["number"] == 1
        client.run(purge)
    assert open(runs).read() == "1\n1\n"


def test_results_that_cannot_be_kept_do_no_harm(results):
    client, compute = results
    worker = next(iter(client.scheduler_info()["workers"]))
    for number in range(2):
        with pytest.raises(KeyError, match="7"):
            compute(worker, f"fail-{number}", fail, 7)
        assert compute(worker, "async", asynchronous, 7) == 8
        held = client.submit(lock, 3, key="generator", workers=[worker])
        assert compute(worker, "list", list, held) == [0, 1, 2]
        held.release()
    assert totals(client)["spared"] == 1


def test_worker_that_takes_much_memory_keeps_no_results(results, tmp_path):
    client, compute = results
    worker = next(iter(client.scheduler_info()["workers"]))
    compute(worker, "make-1", make, str(tmp_path / "runs"), 1)
    assert totals(client)["values"] >= 1

    def exceed(dask_worker):
        dask_worker.plugins["tenure-results"]._max_bytes = 1

    client.run(exceed)
    wait_until(lambda: totals(client)["values"] == 0, "the copies are dropped")
    compute(worker, "make-1", make, str(tmp_path / "runs"), 1)
    assert totals(client)["values"] == 0


def test_wrong_arguments_are_refused():
    for plugin, parameter, value, error in (
        (HeapPlugin, "dirty_decay", -1, ValueError),
        (HeapPlugin, "dirty_decay", float("nan"), ValueError),
        (HeapPlugin, "dirty_decay", "5", TypeError),
        (ResultsPlugin, "max_fraction", 0, ValueError),
        (ResultsPlugin, "max_fraction", 1.5, ValueError),
        (ResultsPlugin, "max_fraction", "5", TypeError),
        (ResultsPlugin, "priority", 4, ValueError),
        (ResultsPlugin, "priority", 1.5, TypeError),
    ):
        with pytest.raises(error, match=parameter):
            plugin(**{parameter: value})
