"""VolatileBuffer: readable and writable inside ``with buffer.pinned() as view`` only."""

from types import TracebackType
from typing import Self, final

from . import _native
from ._arguments import priority_of


class VolatileBuffer(_native.VolatileBuffer):
    """Memory of this process that the kernel may take while it is not pinned.

    :param length: the size in bytes, at least 1.
    :param priority: from 0 (purged first) to 3; 2 by default.

    >>> import tenure
    >>> buffer = tenure.VolatileBuffer(1 << 20)
    >>> with buffer.pinned() as view:
    ...     view[:5] = b"hello"
    >>> with buffer.pinned() as view:
    ...     bytes(view[:5])
    b'hello'

    Where memory became short in between, ``pinned`` raises :class:`tenure.Purged`.
    """

    __slots__ = ()

    def __new__(cls, length: int, *, priority: int = 2) -> Self:
        return super().__new__(cls, length, priority=priority_of(priority))

    def pinned(self) -> "_Pinned":
        """Return a context manager that keeps the contents and gives a memoryview.

        Entering raises :class:`tenure.Purged` where contents were lost, with ``ranges``; the
        lost bytes are zeros the next time. The view is released at the end of the block. What
        was made of it and still lives, such as an array, keeps the buffer pinned.
        """
        return _Pinned(self)


@final
class _Pinned:
    __slots__ = ("_buffer", "_views")

    def __init__(self, buffer: VolatileBuffer) -> None:
        self._buffer = buffer
        self._views: list[memoryview] = []

    def __enter__(self) -> memoryview:
        view = memoryview(self._buffer._pin())
        self._views.append(view)
        return view

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._views.pop().release()
        except BufferError:
            # An array or another view made of it keeps the contents pinned.
            pass
