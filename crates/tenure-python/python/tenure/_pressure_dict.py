"""A dict that lets go of its oldest entries under memory pressure."""

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar, overload

from . import pressure
from ._vanishing import RAISE, VanishingMapping

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")


class PressureDict(VanishingMapping[K, V], Generic[K, V]):
    """A mapping of objects that lets go of entries while memory is short.

    It suits objects that cannot be pickled and can be made again. Under some pressure it
    lets go of the least recently used half, under severe pressure of all, and again for as
    long as the pressure lasts and entries come. The objects' memory is free once nobody else
    refers to them; whether it goes back to the kernel is the allocator's matter (see
    :mod:`tenure.heap`).

    >>> import tenure
    >>> parsed = tenure.PressureDict()
    >>> parsed["a"] = object()
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.RLock()
        reference = weakref.ref(self)

        def follow(level: pressure.Level) -> None:
            it = reference()
            if it is not None:
                it._follow(level)

        self._level = pressure.Level.NONE
        _all[id(self)] = self
        subscription = pressure.subscribe(follow)
        weakref.finalize(self, subscription.close).atexit = False

    def _follow(self, level: pressure.Level) -> None:
        self._level = level
        self._shrink()

    def _shrink(self) -> None:
        # Objects are dropped without the lock: their destructors may use this mapping.
        dropped: list[V] = []
        with self._lock:
            if self._level is pressure.Level.NONE:
                return
            kept = len(self._entries) // 2 if self._level is pressure.Level.SOME else 0
            while len(self._entries) > kept:
                dropped.append(self._entries.popitem(last=False)[1])
        dropped.clear()

    def __getitem__(self, key: K) -> V:
        with self._lock:
            value = self._entries[key]
            self._entries.move_to_end(key)
            return value

    def __setitem__(self, key: K, value: V) -> None:
        with self._lock:
            old = self._entries.get(key)
            self._entries[key] = value
            self._entries.move_to_end(key)
        del old

    def __delitem__(self, key: K) -> None:
        with self._lock:
            old = self._entries.pop(key)
        del old

    @overload
    def pop(self, key: K) -> V: ...
    @overload
    def pop(self, key: K, default: T) -> V | T: ...

    def pop(self, key: K, default: Any = RAISE) -> Any:
        with self._lock:
            value = self._entries.pop(key, default)
        if value is RAISE:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[K]:
        with self._lock:
            return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __repr__(self) -> str:
        return f"<tenure.PressureDict of {len(self)} entries>"


# By address: mappings have no hash.
_all: weakref.WeakValueDictionary[int, PressureDict[Any, Any]] = weakref.WeakValueDictionary()


def _after_in_child() -> None:
    # A thread that the child lacks may hold a lock. Between its operations on the dict, and
    # within one while it compares keys, the dict is whole.
    for it in list(_all.values()):
        it._lock = threading.RLock()


os.register_at_fork(after_in_child=_after_in_child)
