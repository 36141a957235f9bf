"""Caches that keep as many values as there is memory for."""

import functools
import os
import pickle
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from . import _native
from ._arguments import priority_of
from ._vanishing import RAISE, VanishingMapping

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

# Of all caches: it is held for an operation or two on dicts, and forks wait for it.
_lock = threading.RLock()
_generation = 0

# How many keys each insertion looks at, to forget those whose values have gone.
_SWEPT = 2


def _object(value: _native.Value, entry: _native.Entry, *, is_writable: bool = False) -> Any:
    """Returns the object; with arrays of their own memory if they are to be writable."""
    view = memoryview(value)
    parts = [view[start : start + length] for start, length in entry.places]
    buffers: list[Any] = [bytearray(it) for it in parts[1:]] if is_writable else parts[1:]
    return pickle.loads(parts[0], buffers=buffers)


class Cache(VanishingMapping[K, V], Generic[K, V]):
    """A mapping that keeps its values as long as there is memory for them.

    Values are kept as pickles (protocol 5) in volatile memory: the kernel may take them
    when it needs memory, for this process or another. Then the key is gone, too. Arrays come
    back without a copy, as read-only views of the kept bytes, which stay as long as the array
    lives.

    :param priority: from 0 (given up first) to 3.

    >>> import tenure
    >>> cache = tenure.Cache()
    >>> cache["a"] = [1, 2, 3]
    >>> cache.get("a")
    [1, 2, 3]

    A child of ``os.fork`` begins with an empty cache.
    """

    def __init__(self, *, priority: int = 2) -> None:
        self._priority = priority_of(priority)
        self._generation = _generation
        self._native = _native.Cache()
        self._entries: dict[K, _native.Entry] = {}
        # Keys with their entries' numbers: an entry here would keep a replaced value.
        self._queue: deque[tuple[K, int]] = deque()

    def _values(self) -> _native.Cache:
        """Returns the cache of bytes; a new one in a child."""
        if self._generation != _generation:
            with _lock:
                if self._generation != _generation:
                    self._native = _native.Cache()
                    self._entries = {}
                    self._queue = deque()
                    self._generation = _generation
        return self._native

    def __getitem__(self, key: K) -> V:
        return cast(V, self._load(key, is_writable=False))

    def _load(self, key: K, *, is_writable: bool) -> Any:
        self._values()
        entry = self._entries[key]
        return self._load_entry(key, entry, is_writable=is_writable)

    def _load_entry(self, key: K, entry: _native.Entry, *, is_writable: bool) -> Any:
        value = entry.get()
        if value is None:
            self._forget(key, entry)
            raise KeyError(key)
        return _object(value, entry, is_writable=is_writable)

    def __setitem__(self, key: K, value: V) -> None:
        hash(key)
        entry = self._dump(value)
        with _lock:
            old = self._keep(key, entry)
        # The value that was there goes with its entry, without the lock.
        del old
        self._sweep()

    def _dump(self, value: object) -> _native.Entry | None:
        """Puts a value in, without a key yet; None where there is no memory for it."""
        buffers: list[pickle.PickleBuffer] = []
        parts: list[Any] = [pickle.dumps(value, protocol=5, buffer_callback=buffers.append)]
        parts.extend(it.raw() for it in buffers)
        return self._values().insert(parts, self._priority)

    def _keep(self, key: K, entry: _native.Entry | None) -> _native.Entry | None:
        """Gives the entry to a key, with the lock held. Returns the one that it had."""
        old = self._entries.pop(key, None)
        if entry is not None:
            self._queue.append((key, entry.number))
            self._entries[key] = entry
        return old

    def __delitem__(self, key: K) -> None:
        self._values()
        with _lock:
            entry = self._entries.pop(key)
        if not entry.remove():
            raise KeyError(key)

    @overload
    def pop(self, key: K) -> V: ...
    @overload
    def pop(self, key: K, default: T) -> V | T: ...

    def pop(self, key: K, default: Any = RAISE) -> Any:
        self._values()
        with _lock:
            entry = self._entries.pop(key, None)
        value = None if entry is None else entry.get()
        if entry is None or value is None:
            if default is RAISE:
                raise KeyError(key)
            return default
        entry.remove()
        return _object(value, entry)

    def __contains__(self, key: object) -> bool:
        self._values()
        entry = self._entries.get(cast(K, key))
        return entry is not None and entry.is_there()

    def __iter__(self) -> Iterator[K]:
        self._values()
        with _lock:
            entries = list(self._entries.items())
        return (key for key, entry in entries if entry.is_there())

    def __len__(self) -> int:
        return len(self._values())

    def clear(self) -> None:
        """Remove all values, and give their memory back."""
        values = self._values()
        with _lock:
            entries, self._entries = self._entries, {}
            queue, self._queue = self._queue, deque()
        values.clear()
        # Keys are dropped without the lock: their destructors may use the cache.
        del entries, queue

    def stats(self) -> dict[str, int]:
        """Return what the cache has done, and the values and bytes in it."""
        return self._values().stats()

    def __repr__(self) -> str:
        return f"<tenure.Cache of {len(self)} values>"

    def _forget(self, key: K, entry: _native.Entry) -> None:
        with _lock:
            if self._entries.get(key) is entry:
                del self._entries[key]

    def _sweep(self) -> None:
        """Forgets keys whose values have gone, a few at a time."""
        for _ in range(_SWEPT):
            with _lock:
                if not self._queue:
                    return
                key, number = self._queue.popleft()
                entry = self._entries.get(key)
                if entry is None or entry.number != number:
                    continue
                if entry.is_there():
                    self._queue.append((key, number))
                    continue
            self._forget(key, entry)


class Cached(Protocol[P, R_co]):
    """A function whose results are kept."""

    __wrapped__: Callable[..., Any]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    def cache_info(self) -> "functools._CacheInfo": ...
    def cache_clear(self) -> None: ...
    def cache_parameters(self) -> dict[str, Any]: ...


@overload
def cache(function: Callable[P, R], /) -> Cached[P, R]: ...
@overload
def cache(*, typed: bool = False, priority: int = 2) -> Callable[[Callable[P, R]], Cached[P, R]]: ...


def cache(function: Any = None, /, *, typed: bool = False, priority: int = 2) -> Any:
    """Keep the results of a function as long as there is memory for them.

    Like :func:`functools.cache`, but the results are kept as pickles in volatile memory: the
    kernel may take them, and then the function is called again. Arguments must be hashable,
    and results picklable; arrays come back read-only.

    :param typed: whether arguments of different types are different, as 3 and 3.0.
    :param priority: from 0 (given up first) to 3.

    >>> import tenure
    >>> @tenure.cache
    ... def square(number):
    ...     return number * number
    >>> square(3), square(3)
    (9, 9)
    >>> square.cache_info()
    CacheInfo(hits=1, misses=1, maxsize=None, currsize=1)
    """
    priority = priority_of(priority)
    if function is None:
        return functools.partial(cache, typed=typed, priority=priority)
    if not callable(function):
        raise TypeError("function must be callable")
    results: Cache[Any, Any] = Cache(priority=priority)
    counts = [0, 0]

    @functools.wraps(function)
    def cached(*args: Any, **kwargs: Any) -> Any:
        key = functools._make_key(args, kwargs, typed)
        try:
            result = results[key]
        except KeyError:
            pass
        else:
            counts[0] += 1
            return result
        counts[1] += 1
        result = function(*args, **kwargs)
        results[key] = result
        return result

    def cache_info() -> functools._CacheInfo:
        return functools._CacheInfo(counts[0], counts[1], None, len(results))

    def cache_clear() -> None:
        results.clear()
        counts[:] = [0, 0]

    def cache_parameters() -> dict[str, Any]:
        return {"maxsize": None, "typed": typed}

    wrapper = cast(Any, cached)
    wrapper.cache_info = cache_info
    wrapper.cache_clear = cache_clear
    wrapper.cache_parameters = cache_parameters
    return wrapper


def _after_in_child() -> None:
    global _generation
    _generation += 1
    _lock.release()


os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_after_in_child
)
