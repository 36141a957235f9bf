"""tenure on the workers of a Dask cluster."""

import threading
from typing import Any

from dask._task_spec import Task
from distributed import WorkerPlugin
from tornado.ioloop import PeriodicCallback

from . import _cache, heap
from ._arguments import fraction_of, priority_of, seconds_of

__all__ = ["HeapPlugin", "ResultsPlugin"]

# How often the cache looks at the worker's memory, in milliseconds: as often as Dask's own
# memory monitor.
_INTERVAL = 100


class HeapPlugin(WorkerPlugin):  # type: ignore[misc, unused-ignore]
    """Install the heap on every worker, so that its freed arrays go back to the kernel.

    Dask's memory monitor counts RSS, in which lazily free memory is. So that memory is
    given back as soon as it is no longer kept for reuse (``muzzy_decay`` is 0).

    >>> client.register_plugin(tenure.dask.HeapPlugin())    # doctest: +SKIP

    :param dirty_decay: how long freed memory is kept for reuse, in seconds.
    """

    name = "tenure-heap"

    def __init__(self, dirty_decay: float = 0.5) -> None:
        self.dirty_decay = seconds_of("dirty_decay", dirty_decay)

    def setup(self, worker: Any) -> None:
        """Called by Dask on each worker."""
        heap.install(dirty_decay=self.dirty_decay, muzzy_decay=0)


class ResultsPlugin(WorkerPlugin):  # type: ignore[misc, unused-ignore]
    """Keep the results of tasks on every worker as long as there is memory for them.

    Dask forgets a result when nobody refers to it any more. This keeps a copy of each in
    volatile memory, and a task with the same key, function and arguments that comes to the
    worker again returns the copy. As everywhere in Dask, a key stands for what the task
    depends on. Asynchronous tasks, and results that cannot be pickled, are not kept.

    The kernel may take the copies when any process needs memory. While the worker takes more
    than ``max_fraction`` of its memory limit, they are dropped, so that Dask neither spills
    nor pauses because of them.

    >>> client.register_plugin(tenure.dask.ResultsPlugin())    # doctest: +SKIP

    :param max_fraction: of the worker's memory limit; None for Dask's own target, which is
        0.6 by default.
    :param priority: of the copies, from 0 (given up first) to 3.
    """

    name = "tenure-results"

    def __init__(self, max_fraction: float | None = None, priority: int = 1) -> None:
        if max_fraction is not None:
            max_fraction = fraction_of("max_fraction", max_fraction)
        self.max_fraction = max_fraction
        self.priority = priority_of(priority)

    def setup(self, worker: Any) -> None:
        """Called by Dask on each worker."""
        self._worker = worker
        self._results = _Results(self.priority)
        limit, fraction = worker.memory_manager.memory_limit, self.max_fraction
        if fraction is None:
            fraction = worker.memory_manager.memory_target_fraction
        self._max_bytes = int(limit * fraction) if limit and fraction else None
        callback = PeriodicCallback(self._look_at_memory, _INTERVAL)
        worker.periodic_callbacks[self.name] = callback
        callback.start()

    def teardown(self, worker: Any) -> None:
        """Called by Dask when the worker closes, or the plugin is removed."""
        callback = worker.periodic_callbacks.pop(self.name, None)
        if callback is not None:
            callback.stop()
        self._results.cache.clear()

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        """Called by Dask when a task changes its state."""
        if finish == "executing":
            task = self._worker.state.tasks.get(key)
            spec = task and task.run_spec
            if isinstance(spec, Task) and not isinstance(spec, _Kept) and not spec.is_coro:
                task.run_spec = _Kept(spec, self._results)

    def stats(self) -> dict[str, int]:
        """Return the tasks that were spared and run, and what the cache has done."""
        found = self._results.cache.stats()
        return {**found, "spared": self._results.spared, "run": self._results.run}

    def _look_at_memory(self) -> None:
        if self._max_bytes is not None:
            results = self._results
            results.is_full = self._worker.monitor.get_process_memory() > self._max_bytes
            if results.is_full and len(results.cache):
                results.cache.clear()


class _Results:
    """The copies, and how often they served."""

    def __init__(self, priority: int) -> None:
        self.cache: _cache.Cache[Any, Any] = _cache.Cache(priority=priority)
        self.lock = threading.Lock()
        self.spared = self.run = 0
        # Whether the worker takes too much memory for copies.
        self.is_full = False

    def count(self, *, is_spared: bool) -> None:
        with self.lock:
            self.spared += is_spared
            self.run += not is_spared


class _Kept(Task):  # type: ignore[misc, unused-ignore]
    """A task that looks for its result before it runs, in the worker's thread."""

    __slots__ = ("_results", "_task")

    def __init__(self, task: Task, results: _Results) -> None:
        super().__init__(task.key, task.func, *task.args, **task.kwargs)
        self._task = task
        self._results = results

    def __reduce__(self) -> Any:
        # Where it goes to another process, the task itself is meant.
        return _same, (self._task,)

    def __call__(self, values: Any = ()) -> Any:
        results, key = self._results, None
        try:
            # The token stands for the function and the arguments; some have none.
            key = (self._task.key, self._task._get_token())
            # Tasks may write to their arguments: each has arrays of its own.
            result = results.cache._load(key, is_writable=True)
        except Exception:
            # Also where what was pickled cannot be unpickled: the task runs.
            pass
        else:
            results.count(is_spared=True)
            return result
        result = self._task(values)
        results.count(is_spared=False)
        if key is not None and not results.is_full:
            try:
                results.cache[key] = result
            except Exception:
                # It cannot be pickled, or there is no address space for it.
                results.cache.pop(key, None)
        return result


def _same(task: Task) -> Task:
    return task
