"""One collective: a request with a part for each member, which are published together and end together.

A part is one command of its member's collective lane. All parts are checked before the first is sent, and then all are
sent in one stretch without a checkpoint: so whatever is cancelled, and whichever task comes first, all members have the
same collectives in the same order.

A collective has succeeded when every part has ended without an error. If a member is lost before that, its epoch ends
(``epochs.py``), and the request is settled with `WorldLost`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import outcome

from ..._generation.requests import CommandRequest
from ..._memory.arena import Block, ChunkState
from ..._supervision.mailbox import Request
from ..._supervision.states import RequestState
from ..._wire.protocol import MAX_LANES, Role, Verb
from ..._wire.records.event import MARK
from .records import CALL, CALLS, FIRST_RUN, KIND_BYTES, RUN

if TYPE_CHECKING:
    from ..._arrays.arrays import DeviceArray
    from ..._generation.core import DeviceCore
    from ..._generation.generation import Generation
    from ..._generation.order import Checked
    from ..._generation.timeline import Command, Operand
    from ..._memory.arena import Ticket
    from ..._values.errors import DeviceError
    from .epochs import Epoch

_NUMBERS = {name: number for number, name in enumerate(CALLS)}
Kind = tuple[bytes, int]
"""The kind of a call. A worker's first call of each may wait for the members, and for the load of a kernel of NCCL.

It is the function, the dtype, the operation and the other rank, and the size to a power of two, by which NCCL chooses a
protocol.
"""

_NEVER_LATE = math.inf
"""A part that waits for another member does not hang; `World` watches the time of whole collectives."""


def add_access(roles: dict[Block, Role], block: Block, role: Role) -> None:
    """Add an access to a block to those of other calls, or of other arrays in it."""
    before = roles.get(block)
    roles[block] = role if before in (None, role) else Role.WRITE


class Member(Protocol):
    """The part of one member, as those see it that look after losses."""

    @property
    def rank(self) -> int:
        """The member's rank."""

    @property
    def core(self) -> DeviceCore:
        """The member."""

    @property
    def operation(self) -> str:
        """The name of the verb."""

    @property
    def roles(self) -> Mapping[Block, Role]:
        """Its access to memory."""

    @property
    def generation(self) -> Generation | None:
        """The generation that it was published in."""

    @property
    def place(self) -> Ticket:
        """Its lane, and its ticket."""

    @property
    def after(self) -> tuple[int, ...]:
        """The tickets that each lane of the generation had issued when it was published."""

    @property
    def begun(self) -> bool:
        """True if nothing delays it any more but the other members."""

    @property
    def reached(self) -> bool:
        """True if its ticket was reached, without an error."""

    @property
    def over(self) -> bool:
        """True once its ticket was reached, or its generation is settled."""


class Part(Request):
    """The command of one member. Its device admits it as it does a request, and tells it of the end."""

    __slots__ = (
        *("after", "behind", "calls", "collective", "command", "core", "failed", "generation", "over", "rank", "roles"),
        *("_accesses", "kinds", "short"),
    )

    def __init__(self, collective: Collective, rank: int, core: DeviceCore, lane: int) -> None:
        super().__init__(collective.operation, lane)
        self.collective: Collective = collective
        self.rank: int = rank
        self.core: DeviceCore = core
        self.calls: list[bytes] = []
        self.roles: dict[Block, Role] = {}
        self.behind: bool = False
        """True if it comes behind all work of its device."""
        self.generation: Generation | None = None
        """The generation that it was published in."""
        self.command: Command | None = None
        self.after: tuple[int, ...] = ()
        """The tickets that each lane of the generation had issued when it was published."""
        self.over: bool = False
        """True once its ticket was reached, or its generation is settled."""
        self.failed: bool = False
        """True if it has ended with an error."""
        self.short: list[tuple[Block, int]] = []
        """The blocks that went the short way before, each with the lane."""
        self.kinds: set[Kind] = set()
        """The kinds of its calls."""
        self._accesses: tuple[Operand, ...] = ()

    # --- what it does -------------------------------------------------------------------------------------------------

    def call(
        self,
        name: str,
        kind: int,
        count: int,
        *,
        source: int = 0,
        target: int = 0,
        operation: int = 0,
        root: int = 0,
        factor: bytes = b"",
    ) -> None:
        """Add a call."""
        record = CALL.pack(_NUMBERS[name], kind, operation, root, count, source, target, factor)
        self.calls.append(record)
        self.kinds.add((record[:KIND_BYTES], count.bit_length()))

    def reads(self, array: DeviceArray) -> None:
        """Note that it reads an array."""
        self.add(array._block, Role.READ)

    def writes(self, array: DeviceArray) -> None:
        """Note that it writes all elements of an array."""
        self.add(array._block, Role.OVERWRITE if array._covers_block else Role.WRITE)

    def add(self, block: Block, role: Role) -> None:
        """Note an access to a block, beside those that were noted before."""
        add_access(self.roles, block, role)

    @property
    def lane_number(self) -> int:
        """The number of its lane."""
        assert self.lane is not None
        return self.lane

    def blocks(self) -> Iterable[Block]:
        """Return the memory that it works on."""
        return self.roles

    def seal(self) -> None:
        """Note that nothing will be added any more."""
        self._accesses = tuple(self.roles.items())

    def accesses(self) -> Sequence[Operand]:
        """Return that memory, and how it is used, once it is sealed."""
        return self._accesses

    # --- its memory ---------------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """True if its memory exists, with the contents that it reads: no other command has to come first, and fail."""
        for block, role in self._accesses:
            if block.chunk.state is not ChunkState.READY or (block.recipe is not None and role is not Role.OVERWRITE):
                return False
        return True

    async def prepare(self) -> None:
        """Make its memory exist. Raises what a command of the device raises."""
        await self.core.memory_actor.mailbox.ask(_Existence(self))

    # --- its command --------------------------------------------------------------------------------------------------

    def check(self, generation: Generation, communicator: int, *, first: bool) -> Checked:
        """Check its command. Raises what refuses it; only what makes its memory may have been sent then."""
        verb, payload = self.record(communicator, first=first)
        after: Iterable[Ticket] = ()
        if self.behind:
            after = tuple((book.index, book.issued) for book in generation.timeline.lanes if book.busy)
        return generation.order.check(
            self.lane_number,
            verb,
            payload,
            self.accesses(),
            self,
            after=after,
            operation=self.operation,
            hang_timeout=_NEVER_LATE,
        )

    def record(self, communicator: int, *, first: bool) -> tuple[Verb, bytes]:
        """Return the verb and the payload of its command."""
        return FIRST_RUN if first else RUN, RUN.struct.pack(communicator) + b"".join(self.calls)

    def commit(self, checked: Checked, generation: Generation) -> None:
        """Send a checked command."""
        self.generation = generation
        token = generation.token
        self.short = [(block, block.fast - token) for block in self.roles if 0 <= block.fast - token < MAX_LANES]
        self.command = generation.order.commit(checked)
        self.after = tuple([book.issued for book in generation.timeline.lanes])

    @property
    def place(self) -> Ticket:
        """Its lane, and its ticket, once it was published."""
        assert self.command is not None
        return self.command.lane, self.command.ticket

    @property
    def begun(self) -> bool:
        """True if nothing delays it any more but the other members."""
        generation, command = self.generation, self.command
        if self.over or generation is None or command is None:
            return True
        reached = generation.timeline.reached
        return reached((command.lane, command.ticket - 1)) and all(map(reached, command.waits))

    @property
    def reached(self) -> bool:
        """True if its ticket was reached, without an error."""
        if self.over or self.generation is None or self.command is None:
            return self.over and not self.failed
        place = self.place
        return self.generation.timeline.reached(place) and not self.generation.page.status(*place)

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Note that its ticket was reached."""
        self.over, self.failed = True, error is not None
        if self.short and error is None and self.generation is not None:
            for block, lane in self.short:
                self.generation.order.promote(block, lane)
        self.short = []
        self.collective.part_ended(self, error)

    def command_lost(self, command: Command, error: DeviceError) -> None:
        """Note that its generation has ended before its ticket was reached."""
        self.over = self.failed = True
        self.collective.part_ended(self, error)


class Collective(Request):
    """A request to a world."""

    __slots__ = ("begun_since", "epoch", "keep", "lost", "parts", "result", "spoiled")

    def __init__(self, operation: str) -> None:
        super().__init__(operation, lane=None)
        self.parts: Sequence[Member] = []
        """Those of the members that take part, in the order of their ranks."""
        self.result: Any = None
        """Its new outputs, if it goes the short way."""
        self.keep: list[DeviceArray] = []
        """Its arrays, which must not be collected before it is over."""
        self.epoch: Epoch | None = None
        self.begun_since: float | None = None
        """The time since which nothing delays any part of it, as far as was seen."""
        self.lost: bool = False
        """True if its epoch has ended under it."""
        self.spoiled: Callable[[], DeviceError] | None = None
        """Makes its error, if it runs on what a lost collective has left behind."""

    def begin(self, epoch: Epoch, parts: Sequence[Member]) -> None:
        """Note that its parts are sent from now on. `Epoch.end_publishing` follows."""
        self.parts, self.epoch = parts, epoch
        self.state = RequestState.STARTED
        epoch.begin_publishing(self)

    @property
    def reached(self) -> bool:
        """True if every part has ended without an error, as far as the counters tell."""
        return all(part.reached for part in self.parts)

    def part_ended(self, part: Member, error: DeviceError | None) -> None:
        """Handle the end of a part."""
        epoch = self.epoch
        if self.lost or epoch is None:
            return
        if error is not None:
            epoch.part_failed(self, part.rank, error)
            return
        for each in self.parts:
            if not each.over:
                return
        self.over()

    def over(self) -> bool:
        """Handle the end of its last part, none of which has failed. Returns true if there is nothing to tell."""
        assert self.epoch is not None
        self.epoch.collective_over(self)
        if self.spoiled is None and self._task is None and self.state is RequestState.STARTED:
            self.state: RequestState = RequestState.SETTLED  # as `finish` does it, and nobody asks
            self.ended(delivered=True)
            return True
        if self.open:
            if self.spoiled is None:
                self.finish()
            else:
                self.settle(outcome.Error(self.spoiled()))
        return False

    def lose(self, error: DeviceError) -> None:
        """Settle it, whose epoch has ended. What its members are still told of it does not count."""
        self.lost = True
        if self.open:
            self.settle(outcome.Error(error))

    def ended(self, *, delivered: bool) -> None:
        """Let the arrays go, but for those of the result, and the parts, which know the collective."""
        self.keep, self.parts = [], ()


class Published(Collective):
    """A collective that goes the general way: its parts are requests of their devices."""

    __slots__ = ("commands",)

    def __init__(self, operation: str) -> None:
        super().__init__(operation)
        self.commands: list[Part] = []
        """Its parts, until it is over."""

    def ended(self, *, delivered: bool) -> None:
        """Let its parts go too."""
        super().ended(delivered=delivered)
        self.commands = []

    def publish(self, epoch: Epoch) -> None:
        """Check every part, and then send every part. Raises what refuses it; no part was sent then."""
        checked: list[Checked] = []
        try:
            for part in self.commands:
                first = not part.kinds <= epoch.known_kinds[part.rank]
                checked.append(part.check(epoch.generations[part.rank], epoch.communicator, first=first))
        except BaseException:
            for each in checked:
                each.withdraw()
            raise
        self.begin(epoch, self.commands)
        try:
            for part, each in zip(self.commands, checked, strict=True):
                part.commit(each, epoch.generations[part.rank])
                epoch.known_kinds[part.rank] |= part.kinds
        finally:
            epoch.end_publishing()

    def admitted(self, epoch: Epoch) -> bool:
        """Return whether every member takes its part right now."""
        for part in self.commands:
            if not part.exists or not epoch.generations[part.rank].admission.takes(part):
                return False
        return True


class _Existence(CommandRequest):
    """Makes the memory of a part exist, with the first contents of what is read."""

    __slots__ = ("_part",)

    def __init__(self, part: Part) -> None:
        reads = tuple((block, Role.READ) for block, role in part.roles.items() if role is not Role.OVERWRITE)
        super().__init__(MARK, b"", reads, operation=part.operation)
        self._part = part

    def _publish(self, generation: Generation, requires: Iterable[int] = ()) -> None:
        required = set(requires)
        for block in self._part.roles:
            if block.chunk.state is not ChunkState.READY:
                generation.order.require_chunk(block.chunk, required)
        super()._publish(generation, required)
