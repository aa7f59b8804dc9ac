"""What a generation asks of the layers above it, as Protocols: it knows neither arrays nor libraries by their names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .._memory.arena import Block, Chunk, Ticket
    from .._memory.peers import PeerChunk
    from .._wire.protocol import Verb
    from .generation import Generation
    from .peers import Wish
    from .timeline import Command, CommandOwner, Operand


class Publish(Protocol):
    """`Order.publish`, as an attribute that needs no call in between."""

    def __call__(
        self,
        lane: int,
        verb: Verb,
        payload: bytes,
        operands: Sequence[Operand],
        owner: CommandOwner,
        *,
        requires: Iterable[int] = (),
        after: Iterable[Ticket] = (),
        descriptors: Sequence[int] = (),
        operation: str | None = None,
        hang_timeout: float | None = None,
        aside: bool = False,
    ) -> Command:
        """Send one command."""


class Publisher(Protocol):
    """Publishes commands to one worker."""

    def publish(
        self,
        lane: int,
        verb: Verb,
        payload: bytes,
        operands: Sequence[Operand],
        owner: CommandOwner,
        *,
        after: Iterable[Ticket] = (),
        descriptors: Sequence[int] = (),
    ) -> Command:
        """Send one command; see `Order.publish`."""


class OrderHere(Protocol):
    """A `ForeignOrder` of one generation."""

    def order(self, lane: int, operands: Sequence[Operand], required: set[int]) -> None:
        """Order the command that is about to be published; see `ForeignOrder.order`."""

    def uses(self, block: Block) -> bool:
        """Return whether another library uses the block."""


class ForeignOrder(Protocol):
    """The order of commands and the streams of other libraries of this process, which share arrays."""

    def order(self, generation: Generation, lane: int, operands: Sequence[Operand], required: set[int]) -> None:
        """Order the command that is about to be published with the streams that use its operands.

        Adds to `required` the tickets of the compute lane that the command requires. Raises `CommandFailed`.
        """

    def uses(self, block: Block) -> bool:
        """Return whether another library uses the block."""

    def generation_over(self, generation: Generation) -> None:
        """End every wait for a generation whose worker is gone or idle."""


class PeerOrder(Protocol):
    """The order of commands and the work of other devices on the same memory; `Peers`."""

    def overlaps(self, operands: Iterable[Operand]) -> bool:
        """Return whether unfinished work of another device must not overlap with a command on these."""

    def blocked(self, operands: Sequence[Operand], wish: Wish | None = None) -> bool:
        """Return whether a command on these has to wait for another device, or for requests in front of its wish."""

    def wishing(self, operands: Sequence[Operand]) -> contextlib.AbstractContextManager[Wish]:
        """Wait in turn, in this block."""

    def takes_alone(self, block: Block) -> bool:
        """Return whether no other device has work on a block; then each of them will ask before its next."""

    def press(self, operands: Iterable[Operand]) -> None:
        """See to it that the work of others on these is heard of."""


class PeerMemory(Protocol):
    """The memory of the other devices of a group, for the chunks of one worker; `Peers`."""

    def ranges(self) -> list[tuple[int, int]]:
        """Return the base and the extent of the addresses of each other member."""

    def wanted(self) -> list[PeerChunk]:
        """Return the chunks that a new worker is to map."""

    def chunk_ended(self, chunk: Chunk) -> None:
        """Note that an own chunk exists no more."""


class Neighbours(Protocol):
    """Those who wait for a device's work and are not of this device; `Group`."""

    @property
    def watched(self) -> bool:
        """True if there are any."""

    def wake(self) -> None:
        """Make them look again."""


class ShortPath(Protocol):
    """A short way into a generation's ring."""

    last_record: int
    """The number of the record that it wrote last; 0 if another record may have come behind it."""

    def forget(self, thing: Any) -> None:
        """Forget an unloaded module or a dropped plan: what is of it goes the general way from now on."""
