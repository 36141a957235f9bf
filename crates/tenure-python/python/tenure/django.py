"""A cache backend for Django whose values the kernel may take when it needs memory.

In the settings::

    CACHES = {
        "default": {"BACKEND": "tenure.django.Cache", "LOCATION": "a name"},
    }

Each process has values of its own, as with Django's ``LocMemCache``; caches of one
``LOCATION`` share them. ``MAX_ENTRIES`` and ``CULL_FREQUENCY`` have no meaning: there are as
many values as there is memory for. The option ``PRIORITY`` is that of :class:`tenure.Cache`.
"""

import time
from typing import Any

from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache

from . import _cache, _native

__all__ = ["Cache"]

# How many more times than values there may be before those without a value are dropped.
_SPARE_TIMES = 64


class _Values(_cache.Cache[str, Any]):
    """Values, and the times when they end. The lock is that of all caches, which forks
    wait for; an entry and its time are changed together with the lock held."""

    def __init__(self, priority: int) -> None:
        super().__init__(priority=priority)
        self._ends: dict[str, float | None] = {}

    def live(self, key: str) -> _native.Entry | None:
        """Returns the entry of a value that has not ended, with the lock held."""
        self._values()
        entry = self._entries.get(key)
        if entry is None:
            return None
        end = self._ends.get(key, 0.0)
        is_over = end is not None and end <= time.time()
        return None if is_over or not entry.is_there() else entry

    def put(self, key: str, entry: _native.Entry | None, end: float | None) -> None:
        """Gives a key its value and the end of it, with the lock held."""
        self._keep(key, entry)
        self._ends[key] = end
        if len(self._ends) > 2 * len(self._entries) + _SPARE_TIMES:
            self._ends = {it: self._ends[it] for it in self._entries}

    def take(self, key: str) -> bool:
        """Removes a value, with the lock held. Returns whether it was there."""
        was_live = self.live(key) is not None
        self._entries.pop(key, None)
        self._ends.pop(key, None)
        return was_live


_locations: dict[tuple[str, int], _Values] = {}


class Cache(BaseCache):  # type: ignore[misc, unused-ignore]
    """Django's cache in volatile memory: ``"BACKEND": "tenure.django.Cache"``."""

    def __init__(self, location: str, params: dict[str, Any]) -> None:
        super().__init__(params)  # type: ignore[no-untyped-call, unused-ignore]
        priority = (params.get("OPTIONS") or {}).get("PRIORITY", 2)
        with _cache._lock:
            values = _locations.get((location, priority))
            if values is None:
                values = _locations[location, priority] = _Values(priority)
        self._shared = values

    def add(
        self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: Any = None
    ) -> bool:
        """Set a value if the key has none. Return whether it had none."""
        key = self.make_and_validate_key(key, version=version)
        entry, end = self._shared._dump(value), self.get_backend_timeout(timeout)
        with _cache._lock:
            if self._shared.live(key) is not None:
                return False
            self._shared.put(key, entry, end)
        self._shared._sweep()
        return True

    def get(self, key: str, default: Any = None, version: Any = None) -> Any:
        """Return the value, or the default where it has ended or was taken."""
        key = self.make_and_validate_key(key, version=version)
        with _cache._lock:
            entry = self._shared.live(key)
            if entry is None:
                self._shared.take(key)
                return default
        try:
            return self._shared._load_entry(key, entry, is_writable=True)
        except KeyError:
            if entry.is_there():
                # The value's own.
                raise
            return default

    def set(
        self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: Any = None
    ) -> None:
        """Set a value, for so many seconds."""
        key = self.make_and_validate_key(key, version=version)
        entry, end = self._shared._dump(value), self.get_backend_timeout(timeout)
        with _cache._lock:
            self._shared.put(key, entry, end)
        self._shared._sweep()

    def touch(self, key: str, timeout: Any = DEFAULT_TIMEOUT, version: Any = None) -> bool:
        """Give the value that is there another time to live. Return whether there is one."""
        key = self.make_and_validate_key(key, version=version)
        with _cache._lock:
            if self._shared.live(key) is None:
                return False
            self._shared._ends[key] = self.get_backend_timeout(timeout)
            return True

    def incr(self, key: str, delta: int = 1, version: Any = None) -> Any:
        """Add to a value, which keeps its end. ValueError where there is none."""
        made = self.make_and_validate_key(key, version=version)
        while True:
            with _cache._lock:
                before = self._shared.live(made)
            if before is None:
                raise ValueError(f"Key {key!r} not found")
            try:
                value = self._shared._load_entry(made, before, is_writable=True) + delta
            except KeyError:
                continue
            entry = self._shared._dump(value)
            with _cache._lock:
                # Unless another thread has changed it meanwhile.
                if self._shared.live(made) is before:
                    self._shared.put(made, entry, self._shared._ends[made])
                    return value

    def has_key(self, key: str, version: Any = None) -> bool:
        """Return whether the key has a value that has not ended."""
        key = self.make_and_validate_key(key, version=version)
        with _cache._lock:
            return self._shared.live(key) is not None

    def delete(self, key: str, version: Any = None) -> bool:
        """Remove a value. Return whether there was one."""
        key = self.make_and_validate_key(key, version=version)
        with _cache._lock:
            return self._shared.take(key)

    def clear(self) -> None:
        """Remove the values of all caches with this location."""
        with _cache._lock:
            self._shared.clear()
            self._shared._ends = {}
