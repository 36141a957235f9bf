"""Large blocks of this interpreter from tenure's heap, whose memory comes back.

============================  ==================================  =====================
memory of                     ``heap.install()`` reaches it        ``tenure run --heap``
============================  ==================================  =====================
bytes, bytearray, str, list   blocks of 256 KiB and more           the same
numpy from 2.5 on             arrays of 256 KiB and more           the same
older numpy, pandas on it     no                                   yes
pyarrow, polars, torch        no: they have allocators of their    where they use malloc
                              own
============================  ==================================  =====================
"""

import os

from . import _native

__all__ = ["install", "serves_numpy", "stats"]


def install(*, dirty_decay: float | None = None, muzzy_decay: float | None = None) -> bool:
    """Serve this interpreter's large blocks from tenure's heap from now on.

    What was allocated before is freed as before. Memory of freed blocks is reused for
    ``dirty_decay`` seconds (0.5 by default), then the kernel may take it, and after
    ``muzzy_decay`` seconds more (5 by default) it is given back; under memory pressure at
    once.

    :returns: True if this call installed it; False if it is installed, or if the program
        runs under ``tenure run --heap`` already.
    :raises OSError: where the heap cannot be started, as with RLIMIT_AS.
    """
    if "libtenure_preload" in os.environ.get("LD_PRELOAD", "") and "TENURE_HEAP" in os.environ:
        return False
    return _native.heap_install(dirty_decay, muzzy_decay)


def serves_numpy() -> bool:
    """Return whether arrays of the installed numpy, if there is one, come from the heap now."""
    try:
        import numpy
    except ImportError:
        return False
    version = numpy.lib.NumpyVersion(numpy.__version__)
    return version >= "2.5.0.dev0" and _native.heap_is_installed()


def stats() -> dict[str, int]:
    """Return what the heap holds, in bytes: in use, dirty, muzzy, and given back in all."""
    return _native.heap_stats()
