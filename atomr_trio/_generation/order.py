"""The order of commands: tickets, lanes, and what each command waits for.

A command is published in two steps. `check` may raise; it prepares the memory that the command needs, and leaves no
other trace. `commit` cannot raise: it gives the command its ticket and sends it. Several generations can so be checked
before any of them is committed, in one stretch without a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .._memory.arena import Block, Chunk, ChunkState, Recipe, Ticket
from .._memory.peers import PeerBlock
from .._values.errors import AtomrInternalError, CommandFailed, DeviceError, InvalidArgument, stale_array
from .._values.lane_options import LaneOptions
from .._wire.channel import TimelinePage
from .._wire.protocol import (
    HEADER,
    LANE_COMPUTE,
    LANE_LIMIT,
    LANES,
    MAX_WAITS,
    UNSIGNED,
    Mode,
    Role,
    Verb,
    encode_wait,
)
from .._wire.records import context as context_records
from .._wire.records.memory import FILL
from .chunks import Chunks
from .life import Life
from .sender import Sender, close_all
from .timeline import Command, CommandOwner, LaneBook, Operand, Timeline

if TYPE_CHECKING:
    from .services import OrderHere, PeerOrder


class Checked(NamedTuple):
    """A command that can be committed, in the same stretch without a checkpoint."""

    command: Command
    book: LaneBook
    verb: Verb
    payload: bytes
    required: set[int]
    """The tickets of the compute lane that must have succeeded."""
    after: set[Ticket]
    descriptors: Sequence[int]
    """Copies, which belong to the command."""
    ordered: bool
    """False on a lane whose user makes the order."""

    def withdraw(self) -> None:
        """Drop a command that will not be committed."""
        close_all(self.descriptors)


class Order:
    """The commands of one generation, in the order of submission."""

    def __init__(
        self,
        life: Life,
        timeline: Timeline,
        page: TimelinePage,
        sender: Sender,
        chunks: Chunks,
        wake_settler: Callable[[], None],
        token: int,
        lane_options: Mapping[int, LaneOptions],
    ) -> None:
        self.for_batch: bool = False
        """True while a batch publishes its work."""
        self.shares_tickets: bool = False
        """True while it publishes for its own lane, whose end it marks: commands there need no tickets of their own."""
        self.others: OrderHere | None = None
        """Puts commands in order with other libraries of this process, once an array is shared with one."""
        self.peers: PeerOrder | None = None
        """Tells what waits for other devices; None for a device without a group."""
        self._life = life
        self._timeline = timeline
        self._page = page
        self._sender = sender
        self._chunks = chunks
        self._wake_settler = wake_settler
        self._token = token
        self._lane_options = lane_options

    def __repr__(self) -> str:
        return f"<Order of generation {self._life.number}: {len(self._timeline.lanes)} lanes>"

    def publish(
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
        """Send one command to the worker, ordered after everything that touches its operands, and after `after`.

        `requires` are tickets of the compute lane that must have succeeded; `hang_timeout` is in seconds, None for the
        device's; `aside` says that it takes no room from awaited verbs. Raises `StaleArray` before anything is sent.
        From here on the command is settled by its ticket or by the loss of the generation.
        """
        return self.commit(
            self.check(
                lane, verb, payload, operands, owner, requires, after, descriptors, operation, hang_timeout, aside
            )
        )

    def check(
        self,
        lane: int,
        verb: Verb,
        payload: bytes,
        operands: Sequence[Operand],
        owner: CommandOwner,
        requires: Iterable[int] = (),
        after: Iterable[Ticket] = (),
        descriptors: Sequence[int] = (),
        operation: str | None = None,
        hang_timeout: float | None = None,
        aside: bool = False,
    ) -> Checked:
        """Return the command that `publish` would send, ready for `commit`, or for `Checked.withdraw`.

        It publishes only what makes the operands' memory: chunks and fills, which may stay. Raises as `publish` does.
        """
        operation = operation or f"{verb.engine}.{verb.name}"
        quarantine = self._chunks.arena.quarantine
        for block, role in operands:
            if block.freed or block.lost is not None or block.torn is not None or quarantine:
                self.check_block(block, role, operation)
        if self.peers is not None and self.peers.overlaps(operands):
            raise AtomrInternalError(f"{operation} was admitted to memory that another device still uses")
        required = set(requires)
        if len(operands) > LANE_LIMIT // 4:
            self._check_fills(operands, operation)
        for block, role in operands:
            if block.chunk.state is not ChunkState.READY:
                self.require_chunk(block.chunk, required)
            if block.recipe is not None and role is not Role.OVERWRITE:
                required.add(self._filled(block, block.recipe))
        if len(required) > MAX_WAITS - len(self._timeline.lanes):
            raise CommandFailed(
                f"one command cannot wait for {len(required)} others: use fewer new arrays at a time",
                device=self._life.device,
                generation=self._life.number,
                operation=operation,
            )
        if self.others is not None:
            self.others.order(lane, operands, required)
        waits: set[Ticket] = {wait for wait in after if wait[0] != lane}
        book = self._timeline.book(lane)
        ordered = lane < LANES or self._lane_options[lane].ordered
        copies = self._sender.copies_of(descriptors, operation) if descriptors else ()
        batched = aside or self.for_batch
        command = Command(
            lane, 0, verb.engine, operation, operands, owner, (), hang_timeout, batched=batched, answers=verb.answers
        )
        command.blocks = verb.mode is Mode.BLOCKS
        return Checked(command, book, verb, payload, required, waits, copies, ordered)

    def commit(self, checked: Checked) -> Command:
        """Give a checked command its ticket, and send it. Raises nothing."""
        command, book, verb, payload, required, waits, copies, ordered = checked
        lane, operands = command.lane, command.operands
        if not book.open:
            self._open_lane(book)
        ticket = book.issued + 1
        healed: list[tuple[Block, str | None, Recipe | None]] | None = None
        token, number = self._token + lane, self._life.number
        for block, role in operands:
            if ordered:
                block.claim(role, lane, ticket, number, waits)
            else:
                block.claim_unordered(lane, ticket, number)
            if block.fast != token:
                block.fast = 0
            if role is Role.OVERWRITE and (block.torn is not None or block.recipe is not None):
                healed = healed or []
                healed.append((block, block.torn, block.recipe))
                block.torn = block.recipe = None
        open_waits = self._timeline.still_open(waits) if waits else ()
        words = [encode_wait(*wait) for wait in open_waits]
        words += [encode_wait(LANE_COMPUTE, each, required=True) for each in required]
        book.issued = command.ticket = ticket
        command.waits = open_waits
        if required and lane != LANE_COMPUTE:
            command.waits += tuple((LANE_COMPUTE, each) for each in required)
        command.place = self._sender.sent + len(self._sender.outbox) + 1
        command.healed = healed
        self._page.set_status(lane, ticket, 0)
        book.begin(command)
        number = verb.number | UNSIGNED if verb.shares and self.shares_tickets else verb.number
        header = HEADER.pack(ticket, lane, verb.engine_number, number, len(words), len(payload))
        if words:
            header += b"".join(word.to_bytes(8, "little") for word in words)
        book.waited += len(open_waits)
        self._sender.send(header + payload, copies)
        self._wake_settler()
        return command

    def promote_all(self, blocks: Iterable[Block], lane: int) -> None:
        """Do so with these."""
        for block in blocks:
            self.promote(block, lane)

    def promote(self, block: Block, lane: int) -> None:
        """Let a block go the short way on a lane, if it is intact and no other lane has work on it.

        This is revoked by work of another lane, by an error, and by freeing, filling or sharing the block.
        """
        reached = self._timeline.reached
        for reader in [reader for reader in block.all_readers.items() if reader[0] != lane and reached(reader)]:
            del block.readers[reader[0]]
        writer = block.writer
        if (
            block.epoch == self._life.number
            and (writer is None or writer[0] == lane or reached(writer))
            and block.readers.keys() <= {lane}
            and block.written
            and block.recipe is None
            and block.torn is None
            and block.lost is None
            and not block.freed
            and block.chunk.state is ChunkState.READY
            and not (self.others is not None and self.others.uses(block))
            and (not block.peers or (self.peers is not None and self.peers.takes_alone(block)))
        ):
            block.fast = self._token + lane

    # --- lanes ----------------------------------------------------------------------------------------------------

    def close_lane(self, lane: int) -> bool:
        """Make the worker close a lane; all its commands must be finished. Returns false if the worker has none."""
        book = self._timeline.book(lane)
        if not book.open or self._life.loss is not None:
            return False
        book.open = False
        self._sender.send_control(context_records.CLOSE_LANE, context_records.CLOSE_LANE.struct.pack(lane))
        return True

    def _open_lane(self, book: LaneBook) -> None:
        book.open = True
        payload = context_records.OPEN_LANE.struct.pack(book.index, self._lane_options[book.index].priority)
        self._sender.send_control(context_records.OPEN_LANE, payload)

    # --- memory ---------------------------------------------------------------------------------------------------

    def check_block(self, block: Block, role: Role, operation: str) -> None:
        """Raise the error of a block that a command may not use: `InvalidArgument` or `StaleArray`."""
        if block.freed:
            raise InvalidArgument(
                "the array was freed", device=self._life.device, generation=self._life.number, operation=operation
            )
        if block.lost is not None:
            raise stale_array(
                block.torn,
                block.lost,
                device=self._life.device,
                generation=self._life.number,
                operation=operation,
            )
        arena = self._chunks.arena
        if arena.quarantine and arena.quarantined(block):
            raise AtomrInternalError(f"{operation} was admitted to memory that a lost worker may still write")
        if block.torn is not None and role is not Role.OVERWRITE:
            raise stale_array(
                block.torn,
                block.lost,
                device=self._life.device,
                generation=self._life.number,
                operation=operation,
            )

    def require_chunk(self, chunk: Chunk, required: set[int]) -> None:
        """Create a chunk that does not exist yet, and add the ticket of its creation to `required`."""
        self._chunks.require(chunk, required, self)

    def release_retired(self, then: CommandOwner | None = None) -> int:
        """Release the chunks that the arena has dropped to the GPU. Returns their bytes; `then` is told of the end."""
        return self._chunks.release_retired(self, then)

    def _check_fills(self, operands: Sequence[Operand], operation: str) -> None:
        """Raise `InvalidArgument` if a command needs more fills than the compute lane has spare result slots."""
        fills = sum(block.recipe is not None for block, _ in operands)
        if fills > LANE_LIMIT // 4:
            raise CommandFailed(
                f"one command needs {fills} fills of new arrays, which is too many: use fewer new arrays at a time",
                device=self._life.device,
                generation=self._life.number,
                operation=operation,
            )

    def _filled(self, block: Block, recipe: Recipe) -> int:
        """Return the ticket of the fill that a block still needs, and send the fill if it was not sent yet."""
        if isinstance(block, PeerBlock):
            raise AtomrInternalError("a command came before the first content of another device's array")
        if not recipe.ticket:
            payload = FILL.struct.pack(block.address, 0, recipe.itemsize, recipe.count, 1, recipe.pattern)
            block.recipe = None  # the fill itself needs no fill
            owner = _FillOwner(block, recipe)
            try:
                recipe.ticket = self.publish(LANE_COMPUTE, FILL, payload, ((block, Role.OVERWRITE),), owner).ticket
            finally:
                block.recipe = recipe
        return recipe.ticket


class _FillOwner:
    """The owner of the fill that a recipe requires."""

    def __init__(self, block: Block, recipe: Recipe) -> None:
        self._block = block
        self._recipe = recipe

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        self._ended(followed=error is None)

    def command_lost(self, command: Command, error: DeviceError) -> None:
        # No command had written the block before the fill, so another fill restores all of it.
        if self._block.writer == (command.lane, command.ticket):
            self._block.torn = None
        self._ended(followed=False)

    def _ended(self, *, followed: bool) -> None:
        self._block.fast = 0
        if self._block.recipe is self._recipe:  # otherwise a later command has overwritten the whole block
            self._block.recipe = None if followed else self._recipe.anew()
