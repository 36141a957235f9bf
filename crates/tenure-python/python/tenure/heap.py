"""Blocks of this interpreter from tenure's heap, whose memory comes back.

============================  =============================  ===============================
memory of                     ``heap.install()`` reaches it  ``tenure run --heap`` reaches it
============================  =============================  ===============================
bytes, bytearray, str, list   blocks of more than 512 bytes  the same
numpy from 1.22 on            arrays                         the same
pandas                        columns that are numpy's       the same
pyarrow                       no                             with the system's memory pool
polars                        no                             no
torch, libraries in C         no                             what calls malloc
============================  =============================  ===============================
"""

import importlib.metadata
import os
import tracemalloc
from typing import Any

from . import _native

__all__ = ["install", "serves_numpy", "stats"]


def install(*, dirty_decay: float | None = None, muzzy_decay: float | None = None) -> bool:
    """Serve this interpreter's blocks from tenure's heap from now on.

    What was allocated before is freed as before. Free pages are reused for
    ``dirty_decay`` seconds (4 by default), then the kernel may take them, and after
    ``muzzy_decay`` seconds more (1 by default) they are given back; under memory pressure
    at once.

    Numpy from 1.22 to 2.4 is imported, if it is installed: its arrays get their memory from
    handlers, and this replaces what the default handler calls, for all threads. Arrays under
    a handler that the program has set (``PyDataMem_SetHandler``) are not reached.

    :returns: True if this call installed it; False if it is installed, or if the program
        runs under ``tenure run --heap`` already.
    :raises OSError: where there is no memory for the heap.
    :raises RuntimeError: while :mod:`tracemalloc` traces. It can be started afterwards.
    """
    if "libtenure_preload" in os.environ.get("LD_PRELOAD", "") and "TENURE_HEAP" in os.environ:
        return False
    if tracemalloc.is_tracing() and not _native.heap_is_installed():
        # Its end puts the functions back that it has found, which cannot free the heap's blocks.
        raise RuntimeError("tracemalloc is tracing: install the heap before tracemalloc.start()")
    is_installed = _native.heap_install(dirty_decay, muzzy_decay)
    if _numpy_version() < (2, 5):
        _serve_numpy()
    return is_installed


def _numpy_version() -> tuple[int, ...]:
    """Returns the first numbers of numpy's version; (0,) if it is not installed."""
    try:
        version = importlib.metadata.version("numpy")
        return tuple(int(it) for it in version.split(".")[:2])
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return (0,)


def _serve_numpy() -> None:
    try:
        import numpy
    except Exception:
        # It is broken, or there is no descriptor: the heap serves the rest.
        return
    core: Any = getattr(numpy, "_core", None) or getattr(numpy, "core", None)
    api = getattr(getattr(core, "_multiarray_umath", None), "_ARRAY_API", None)
    if api is not None:
        _native.serve_numpy(api)


def serves_numpy() -> bool:
    """Return whether arrays of the installed numpy, if there is one, come from the heap now."""
    if _native.numpy_is_served():
        return True
    return _numpy_version() >= (2, 5) and _native.heap_is_installed()


def stats() -> dict[str, int]:
    """Return what the heap holds, and what it has given back; zeros before :func:`install`.

    ``blocks`` have ``in_use_bytes``, rounded up to the sizes in which blocks are made. Of free
    pages ``dirty_bytes`` are kept for reuse, and the kernel may take ``muzzy_bytes``.
    ``retained_bytes`` are addresses without memory that are kept for reuse, and
    ``returned_bytes`` the memory that was given back to the kernel, in all.
    """
    return _native.heap_stats()
