"""tenure on the workers of a Dask cluster."""

from typing import Any

from distributed import WorkerPlugin

from . import heap

__all__ = ["HeapPlugin"]


class HeapPlugin(WorkerPlugin):  # type: ignore[misc, unused-ignore]
    """Install the heap on every worker, so that its freed arrays go back to the kernel.

    Dask's memory monitor counts RSS, in which lazily free memory is. So that memory is
    given back as soon as it is no longer kept for reuse (``muzzy_decay`` is 0).

    >>> client.register_plugin(tenure.dask.HeapPlugin())    # doctest: +SKIP

    :param dirty_decay: how long freed memory is kept for reuse, in seconds.
    """

    name = "tenure-heap"

    def __init__(self, dirty_decay: float = 0.5) -> None:
        self.dirty_decay = dirty_decay

    def setup(self, worker: Any) -> None:
        """Called by Dask on each worker."""
        heap.install(dirty_decay=self.dirty_decay, muzzy_decay=0)
