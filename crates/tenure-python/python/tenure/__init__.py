"""Memory that comes back, and caches without a size, on stock Linux kernels.

======================  ==========================================================
``Cache``, ``cache``    as many values as there is memory for; no size to guess
``SharedCache``         the same, shared by the processes of one user by its name
``PressureDict``        a dict that lets go of its oldest entries under pressure
``VolatileBuffer``      memory that the kernel may take while nobody uses it
``Mapping``             memory that is there at once, and goes in microseconds
``LockedFile``          a mapped file whose used pages stay in memory
``populate``            faults a buffer in now, in parallel
``heap``                blocks of this interpreter from tenure's heap
``pressure``            how short memory is, and what to call when that changes
``residency``           what is in memory, and how much of it is lazily free
``headroom``            how much more memory there is, in bytes
``stats``               what tenure has done in this process
``fast_exit``           ends the process without waiting for its memory
======================  ==========================================================

All sizes are in bytes, all times in seconds.
"""

import os as _os

try:
    from . import _native
except ImportError as error:
    if "subinterpreters" not in str(error):
        raise
    message = "tenure cannot be used in a sub-interpreter that has a GIL of its own"
    raise ImportError(message, name=__name__) from error
from . import heap, pressure
from ._cache import Cache, cache
from ._exit import fast_exit
from ._native import (
    LockedFile,
    Mapping,
    Purged,
    Residency,
    __version__,
    headroom,
    populate,
    purge_all,
    residency,
    set_offer_delay,
    stats,
)
from ._pressure_dict import PressureDict
from ._shared_cache import SharedCache
from ._volatile import VolatileBuffer

__all__ = [
    "Cache",
    "LockedFile",
    "Mapping",
    "PressureDict",
    "Purged",
    "Residency",
    "SharedCache",
    "VolatileBuffer",
    "__version__",
    "cache",
    "fast_exit",
    "headroom",
    "heap",
    "populate",
    "pressure",
    "purge_all",
    "residency",
    "set_offer_delay",
    "stats",
]

_os.register_at_fork(
    before=_native.before_fork,
    after_in_parent=_native.after_fork,
    after_in_child=_native.after_fork,
)
