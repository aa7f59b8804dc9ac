"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from .._twins import Twin

if TYPE_CHECKING:
    from types import TracebackType
    from typing import ClassVar

    import atomr_trio


class Retry(Twin):
    """The attempts of a block, made by `retry`: an iterator that ends when an attempt was not lost."""

    __slots__ = ()

    _made_by: ClassVar[str] = "`atomr_trio.retry(dev)`"

    @property
    def awaited(self) -> atomr_trio.Retry:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.Retry = self._awaited
        return value

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Attempt:
        item: Attempt = self._next()
        return item


class Attempt(Twin):
    """One run of the block of a `retry`: a context manager, which catches a loss while attempts are left."""

    __slots__ = ()

    _made_by: ClassVar[str] = "`for attempt in atomr_trio.retry(dev)`"

    @property
    def awaited(self) -> atomr_trio.Attempt:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.Attempt = self._awaited
        return value

    @property
    def number(self) -> int:
        """Its number, from 1. It is known when the block begins: what is lost while arrays are saved or written back
        counts too.
        """
        value: int = self._awaited.number
        return value

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        result: bool = self._leave(kind, error, traceback)
        return result
