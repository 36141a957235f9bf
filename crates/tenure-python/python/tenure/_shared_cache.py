"""A cache that several processes of one user share by its name."""

import pickle
import struct
from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar, cast, overload

from . import _native
from ._arguments import priority_of
from ._vanishing import RAISE, VanishingMapping

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")


class SharedCache(VanishingMapping[K, V], Generic[K, V]):
    """A mapping that the processes of one user share by its name, without a server.

    What one process puts in, all find, for as long as there is memory for it: the machine
    gives values up under memory pressure, and then the key is gone. The values lie in
    ``/dev/shm/tenure.NAME``, also after the processes have ended, until :meth:`unlink` or
    the end of the machine; several processes may use a name at the same time, with the same
    version of Python or not.

    A value is a pickle (protocol 5), and a look-up copies it out of the shared memory. An array
    in it is a read-only view of that copy, which belongs to this process. A file of another user, or one that others may
    write to, is refused; but each process of this user is trusted: unpickling a value runs
    what it says.

    Keys are ``str``, ``bytes``, ``int``, ``float``, ``bool``, ``None``, and tuples of them;
    equal numbers are the same key, as in a dict. To list the keys reads all values.

    :param name: 1 to 200 bytes, without a slash.
    :param priority: of this process's values, from 0 (given up first) to 3.
    :param max_bytes: how many bytes all values may have when this process puts one in; None
        for as many as there is memory for.
    :param time_to_live: after how many seconds a value is missing for this process; None:
        never.
    :raises OSError: where the file cannot be made or belongs to another user.

    >>> import os, tenure
    >>> cache = tenure.SharedCache(f"example.{os.getpid()}")
    >>> cache["a"] = [1, 2, 3]
    >>> cache.get("a")
    [1, 2, 3]
    >>> cache.unlink()

    It can be passed to other processes: its pickle is the name and the parameters.
    """

    def __init__(
        self,
        name: str,
        *,
        priority: int = 2,
        max_bytes: int | None = None,
        time_to_live: float | None = None,
    ) -> None:
        priority = priority_of(priority)
        self._native = _native.SharedCache(name, max_bytes, time_to_live)
        self._arguments = (name, priority, max_bytes, time_to_live)

    @property
    def name(self) -> str:
        """The name."""
        return self._arguments[0]

    def __getitem__(self, key: K) -> V:
        parts = self._native.get(_bytes_of(key))
        if parts is None:
            raise KeyError(key)
        return cast(V, pickle.loads(parts[0], buffers=map(memoryview, parts[1:])))

    def __setitem__(self, key: K, value: V) -> None:
        encoded = _bytes_of(key)
        buffers: list[pickle.PickleBuffer] = []
        parts: list[Any] = [pickle.dumps(value, protocol=5, buffer_callback=buffers.append)]
        parts.extend(it.raw() for it in buffers)
        self._native.insert(encoded, parts, self._arguments[1])

    def __delitem__(self, key: K) -> None:
        if not self._native.remove(_bytes_of(key)):
            raise KeyError(key)

    @overload
    def pop(self, key: K) -> V: ...
    @overload
    def pop(self, key: K, default: T) -> V | T: ...

    def pop(self, key: K, default: Any = RAISE) -> Any:
        """Remove a value and return it. No two processes get the same one."""
        encoded = _bytes_of(key)
        parts = self._native.get(encoded)
        if parts is None or not self._native.remove(encoded):
            if default is RAISE:
                raise KeyError(key)
            return default
        return pickle.loads(parts[0], buffers=map(memoryview, parts[1:]))

    def __contains__(self, key: object) -> bool:
        return self._native.contains(_bytes_of(key))

    def __iter__(self) -> Iterator[K]:
        for encoded in self._native.keys():
            try:
                key = _key_of(encoded)
            except (ValueError, RecursionError):
                # Another program's.
                continue
            yield cast(K, key)

    def __len__(self) -> int:
        return self._native.stats()["values"]

    def clear(self) -> None:
        """Remove all values, for all processes."""
        self._native.clear()

    def unlink(self) -> None:
        """Remove the name. Processes that use the cache keep it; a new one begins empty.

        :raises FileNotFoundError: where it is removed already.
        """
        _native.SharedCache.unlink(self.name)

    def stats(self) -> dict[str, int]:
        """Return what this object has done, and the values and bytes in the cache."""
        return self._native.stats()

    def __reduce__(self) -> Any:
        return _open, (type(self), *self._arguments)

    def __repr__(self) -> str:
        return f"<tenure.SharedCache {self.name!r}>"


def _open(
    kind: type[SharedCache[Any, Any]],
    name: str,
    priority: int,
    max_bytes: int | None,
    time_to_live: float | None,
) -> SharedCache[Any, Any]:
    return kind(name, priority=priority, max_bytes=max_bytes, time_to_live=time_to_live)


def _bytes_of(key: object) -> bytes:
    """Returns a key's bytes in the file, which are the same where keys are equal."""
    # A subclass may be equal to something else.
    kind = type(key)
    if kind is str:
        return b"s" + cast(str, key).encode("utf-8", "surrogatepass")
    if kind is bytes:
        return b"b" + cast(bytes, key)
    if kind is int or kind is bool:
        return b"i%x" % cast(int, key)
    if kind is float:
        number = cast(float, key)
        if number.is_integer():
            return b"i%x" % int(number)
        return b"f" + struct.pack("<d", number)
    if key is None:
        return b"n"
    if kind is tuple:
        parts = [_bytes_of(it) for it in cast(tuple[object, ...], key)]
        return b"t" + b"".join(b"%x:%b" % (len(it), it) for it in parts)
    hash(key)
    raise TypeError(
        "key must be a str, bytes, int, float, bool, None or a tuple of them, "
        f"not {kind.__name__}"
    )


def _key_of(encoded: bytes) -> object:
    """Returns the key of bytes that any program may have written."""
    kind, rest = encoded[:1], encoded[1:]
    if kind == b"s":
        return rest.decode("utf-8", "surrogatepass")
    if kind == b"b":
        return rest
    if kind == b"i":
        return int(rest, 16)
    if kind == b"f" and len(rest) == 8:
        return struct.unpack("<d", rest)[0]
    if kind == b"n" and not rest:
        return None
    if kind != b"t":
        raise ValueError("no key")
    parts = []
    while rest:
        length, colon, rest = rest.partition(b":")
        end = int(length, 16)
        if not colon or not 0 < end <= len(rest):
            raise ValueError("no key")
        parts.append(_key_of(rest[:end]))
        rest = rest[end:]
    return tuple(parts)
