"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from .._twins import Twin

if TYPE_CHECKING:
    from types import TracebackType
    from typing import ClassVar

    import atomr_trio


class Event(Twin):
    """A point in the work of a lane, made by `Lane.record`; it belongs to the generation that it was recorded in."""

    __slots__ = ()

    _made_by: ClassVar[str] = "`lane.record()`"

    @property
    def awaited(self) -> atomr_trio.Event:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.Event = self._awaited
        return value

    @property
    def lane(self) -> Lane:
        """The lane that it was recorded in."""
        value: Lane = self._seen(self._awaited.lane)
        return value

    @property
    def generation(self) -> int:
        """The generation that it was recorded in."""
        value: int = self._awaited.generation
        return value

    @property
    def reached(self) -> bool:
        """True if all work of the lane before it is done."""
        value: bool = self._awaited.reached
        return value

    def wait(self) -> None:
        """Wait until the event is reached. Raises `ContextLost` if its generation was lost before."""
        self._wait(self._awaited.wait)

    def elapsed_since(self, earlier: Event) -> float:
        """Wait for both events, and return the seconds from `earlier` to this one on the GPU (``cuEventElapsedTime``).

        Raises `InvalidArgument` for an event of another device or generation, `ContextLost` if the generation is lost.
        """
        result: float = self._wait(self._awaited.elapsed_since, (earlier,))
        return result


class Lane(Twin):
    """A lane of a device, whose work runs in the order of submission. Made by `Device.lane`."""

    __slots__ = ()

    _made_by: ClassVar[str] = "`with dev.lane()`, or dev.compute_lane"

    @property
    def awaited(self) -> atomr_trio.Lane:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.Lane = self._awaited
        return value

    @property
    def name(self) -> str:
        """Its name in statistics and errors."""
        value: str = self._awaited.name
        return value

    @property
    def priority(self) -> int:
        """Its priority: a lower number is more urgent (``cuStreamCreateWithPriority``)."""
        value: int = self._awaited.priority
        return value

    @property
    def ordered(self) -> bool:
        """True if its work is in order with the work of other lanes on the same arrays."""
        value: bool = self._awaited.ordered
        return value

    def record(self) -> Event:
        """Return an event behind all work of the lane so far (``cuEventRecord``). Sends it, and does not wait.

        Raises `trio.WouldBlock` when 512 commands of the lane, those of batches not counted, are unfinished, or the
        device is being rebuilt; `Batch.record` takes more.
        """
        result: Event = self._enqueue(self._awaited.record)
        return result

    def wait_for(self, event: Event) -> None:
        """Delay the lane's work from now on until `event`, of another lane, is reached. Does not wait itself.

        An event of a lost generation is over and delays nothing.

        Raises `InvalidArgument` for anything but an event of this device, `trio.WouldBlock` as `record` does.
        """
        self._enqueue(self._awaited.wait_for, (event,))

    def synchronize(self) -> None:
        """Wait until all work of the lane so far is done.

        While the device is being rebuilt there is no such work, and this waits for the next generation.

        Raises `ContextLost` if the generation is lost meanwhile, and with it the lane's work; `InvalidArgument` once
        the lane is closed.
        """
        self._wait(self._awaited.synchronize)

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave(kind, error, traceback)
