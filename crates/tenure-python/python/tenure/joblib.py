"""A store for ``joblib.Memory`` in volatile memory instead of files.

>>> import tenure.joblib                                           # doctest: +SKIP
>>> tenure.joblib.register()                                       # doctest: +SKIP
>>> memory = joblib.Memory("a name", backend="tenure", verbose=0)  # doctest: +SKIP
>>> simulate = memory.cache(simulate)                              # doctest: +SKIP

Results stay as long as there is memory for them, and in this process only: a worker process
begins with an empty store. A result that cannot be pickled is not kept, and the function
returns it all the same. With ``mmap_mode="r"`` arrays come back read-only and without a copy.
Needs joblib 1.4 or later.
"""

import io
import time
import warnings
from datetime import datetime
from typing import Any

import joblib
from joblib._store_backends import (
    CacheItemInfo,
    CacheWarning,
    StoreBackendBase,
    StoreBackendMixin,
)

from . import _cache

__all__ = ["Store", "register"]

# How many more times of use than results there may be before those without one are dropped.
_SPARE_TIMES = 64


class _Shelf:
    """What is stored under one location."""

    def __init__(self) -> None:
        # Results and what joblib notes about them, which go together with memory.
        self.results: _cache.Cache[str, Any] = _cache.Cache()
        self.used: dict[str, float] = {}
        # The source of functions. Without it joblib would drop their results.
        self.files: dict[str, bytes] = {}
        self.folders: set[str] = set()


_shelves: dict[str, _Shelf] = {}


class _File(io.BytesIO):
    """A small file that is there once it is closed."""

    def __init__(self, files: dict[str, bytes], path: str) -> None:
        super().__init__()
        self._files, self._path = files, path

    def close(self) -> None:
        if not self.closed:
            self._files[self._path] = self.getvalue()
        super().close()


class Store(StoreBackendBase, StoreBackendMixin):  # type: ignore[misc, unused-ignore]
    """The store that joblib makes for ``joblib.Memory(location, backend="tenure")``."""

    location: Any = None

    def configure(
        self, location: str, verbose: int = 0, backend_options: dict[str, Any] | None = None
    ) -> None:
        """Called by joblib. Stores of one location share what they hold."""
        self.location = location
        self.verbose = verbose
        self.mmap_mode = (backend_options or {}).get("mmap_mode")

    @property
    def _shelf(self) -> _Shelf:
        # A store that comes out of a pickle finds what its process has.
        return _shelves.setdefault(self.location, _Shelf())

    def _path(self, call_id: Any) -> str:
        return "/".join([str(self.location), *call_id])

    def load_item(
        self, call_id: Any, verbose: int = 1, timestamp: Any = None, metadata: Any = None
    ) -> Any:
        """Return a result. KeyError where it was taken."""
        path, shelf = self._path(call_id), self._shelf
        item = shelf.results._load(path + "/output", is_writable=self.mmap_mode != "r")
        shelf.used[path] = time.time()
        return item

    def dump_item(self, call_id: Any, item: Any, verbose: int = 1) -> None:
        """Keep a result, or warn if it cannot be pickled."""
        path, shelf = self._path(call_id), self._shelf
        try:
            shelf.results[path + "/output"] = item
        except Exception as error:
            shelf.results.pop(path + "/output", None)
            warnings.warn(f"the result is not kept: {error}", CacheWarning, stacklevel=2)
            return
        shelf.used[path] = time.time()
        if len(shelf.used) > 2 * len(shelf.results) + _SPARE_TIMES:
            kept = [it for it in list(shelf.used) if it + "/output" in shelf.results]
            shelf.used = {it: shelf.used.get(it, 0.0) for it in kept}

    def contains_item(self, call_id: Any) -> bool:
        """Return whether there is a result."""
        return self._path(call_id) + "/output" in self._shelf.results

    def clear_item(self, call_id: Any) -> None:
        """Remove a result."""
        self._remove_item(self._path(call_id))

    def _remove_item(self, path: str) -> bool:
        shelf = self._shelf
        shelf.used.pop(path, None)
        shelf.results.pop(path + "/metadata", None)
        return shelf.results.pop(path + "/output", shelf) is not shelf

    def get_metadata(self, call_id: Any) -> Any:
        """Return what joblib has noted about a result."""
        return self._shelf.results.get(self._path(call_id) + "/metadata", {})

    def store_metadata(self, call_id: Any, metadata: Any) -> None:
        """Note something about a result."""
        try:
            self._shelf.results[self._path(call_id) + "/metadata"] = metadata
        except Exception as error:
            warnings.warn(f"no metadata are kept: {error}", CacheWarning, stacklevel=2)

    def get_items(self) -> list[Any]:
        """Return all results, with their sizes in bytes, for ``Memory.reduce_size``."""
        shelf, items = self._shelf, []
        for key in list(shelf.results):
            path, _, kind = key.rpartition("/")
            entry = shelf.results._entries.get(key)
            if kind == "output" and entry is not None:
                size = sum(length for _, length in entry.places)
                used = datetime.fromtimestamp(shelf.used.get(path, 0.0))
                items.append(CacheItemInfo(path, size, used))
        return items

    def clear_location(self, location: str) -> None:
        """Remove what is below a path: all, a function, or a result."""
        if self._remove_item(location):
            return
        shelf, below = self._shelf, location + "/"
        shelf.folders -= {it for it in shelf.folders if it == location or it.startswith(below)}
        for mapping in (shelf.results, shelf.files):
            for key in [it for it in list(mapping) if it.startswith(below)]:
                mapping.pop(key, None)

    def create_location(self, location: str) -> None:
        """Make the place for a function's source."""
        self._shelf.folders.add(location)

    def _item_exists(self, location: str) -> bool:
        return location in self._shelf.folders or location in self._shelf.files

    def _open_item(self, path: str, mode: str) -> io.BytesIO:
        if mode == "wb":
            return _File(self._shelf.files, path)
        try:
            return io.BytesIO(self._shelf.files[path])
        except KeyError:
            raise FileNotFoundError(path) from None

    def _move_item(self, source: str, destination: str) -> None:
        self._shelf.files[destination] = self._shelf.files.pop(source)


def register() -> None:
    """Make ``joblib.Memory(location, backend="tenure")`` use this store."""
    joblib.register_store_backend("tenure", Store)
