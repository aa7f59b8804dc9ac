"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from .._twins import Twin

if TYPE_CHECKING:
    from types import TracebackType

    import atomr_trio

    from ..._values.events import DeviceEvent


class Subscription(Twin):
    """One listener: a context manager that is an iterator over events while its block runs.

    Made by `Device.events` and `Devices.events`.
    """

    __slots__ = ()

    @property
    def awaited(self) -> atomr_trio.Subscription:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.Subscription = self._awaited
        return value

    def __enter__(self) -> Self:
        result: Self = self._enter_at_once()
        return result

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._enqueue(self._awaited.__exit__, (kind, error, traceback))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> DeviceEvent:
        item: DeviceEvent = self._next()
        return item
