"""What mappings have in common whose entries can vanish at any time."""

from collections.abc import Hashable, ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# The default of `pop` that stands for none.
RAISE: Any = object()


class VanishingMapping(MutableMapping[K, V], Generic[K, V]):
    """A mapping that another thread, or the kernel, takes entries from.

    The methods of :class:`MutableMapping` look a key up twice, or list the keys first, and
    raise KeyError for what vanishes in between. ``dict(mapping)`` does so still:
    use ``dict(mapping.items())``.
    """

    def items(self) -> ItemsView[K, V]:
        return _Items(self)

    def values(self) -> ValuesView[V]:
        return _Values(self)

    def popitem(self) -> tuple[K, V]:
        for key in self:
            try:
                return key, self.pop(key)
            except KeyError:
                continue
        raise KeyError("the mapping is empty")


def _entries(mapping: Mapping[K, V]) -> Iterator[tuple[K, V]]:
    for key in mapping:
        try:
            value = mapping[key]
        except KeyError:
            continue
        yield key, value


class _Items(ItemsView[K, V]):
    _mapping: Mapping[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return _entries(self._mapping)


class _Values(ValuesView[V]):
    _mapping: Mapping[Hashable, V]

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in _entries(self._mapping))

    def __contains__(self, value: object) -> bool:
        return any(it is value or it == value for it in self)
