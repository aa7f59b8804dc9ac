"""One generation: a worker process, the commands published to it, and the handling of its end.

This file is about one worker. Mailboxes, the arena and the restart budget outlive it and belong to the device. A
generation is lost once, by `lose`, whatever noticed it. That cancels its scope, and the device then runs the fence:
kill, reap, read the counters one last time, settle.

A standby is a generation whose worker is ready and that has no number yet: the device gives it one when it takes over.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import errno
import itertools
import json
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import attrs
import trio

from .._memory.arena import AT_A_TIME, Arena, Block, Chunk, ChunkState, Recipe, Ticket
from .._supervision.closing import close_in_thread
from .._supervision.mailbox import Request
from .._supervision.realtime import Patience, RealTimer
from .._values.errors import (
    ActorCrashed,
    AtomrInternalError,
    CommandFailed,
    ContextLost,
    DeviceError,
    DeviceFailed,
    InvalidArgument,
    LibraryNotFound,
    OutOfHostMemory,
    StaleArray,
    error_from_status,
)
from .._values.findings import Finding, in_short, read_findings
from .._values.info import DeviceInfo
from .._values.lane_options import LaneOptions
from .._values.shortage import host_limits
from .._values.util import Living
from .._wire import channel
from .._wire.channel import NO_DESCRIPTOR, SharedMemory, TimelinePage
from .._wire.limits import low_limits, reason_of, shortage
from .._wire.protocol import (
    BATCH_COMMANDS,
    CONTROL_LANE,
    ENGINE_BUG,
    HEADER,
    HOST_SHORTAGE,
    LANE_COMPUTE,
    LANE_LIMIT,
    LANES,
    LIBRARY_MISSING,
    MAX_LANES,
    MAX_WAITS,
    RECORDS_READ_WORD,
    RECORDS_SENT_WORD,
    SENDER_WAITS_WORD,
    SOCKET_LANE,
    WORKER_ASLEEP_WORD,
    Mode,
    Role,
    Verb,
    encode_wait,
)
from .._wire.records import context as context_records
from .._wire.records.memory import CREATE_CHUNK, FILL, RELEASE_CHUNK
from .._wire.ring import MAX_RECORD, NUMBER, ORDERED_STORES, SLOT_MASK, SLOT_SHIFT, SLOTS, Ring, fence
from .._wire.status import StatusClass, classify
from .output import WorkerOutput
from .process import WorkerProcess
from .timeline import Command, CommandOwner, LaneBook, Launches, LaunchOwner, Operand, Timeline, the_lane

if TYPE_CHECKING:
    from .services import ForeignOrder, ShortPath

log = logging.getLogger("atomr_trio._worker")
device_log = logging.getLogger("atomr_trio.device")
"""The log of the kernels' output, line by line."""

SPIN_SECONDS = 200e-6
"""Seconds that a wait polls the counters between checkpoints before it blocks on the descriptor."""

WATCH_PERIOD = 0.1
STOPPED_SECONDS = 2.0
"""A heartbeat that stands still this long means a stopped worker."""
DEAF_SECONDS = 10.0
"""A worker that leaves records unread this long is stuck inside a call, even if its heartbeat goes on."""

STANDSTILL_PERIODS = 5
"""A watchdog that is this many periods late was stopped in between."""

START_TIMEOUT = 60.0
END_TIMEOUT = 1.0  # of a process whose socket has ended; what is still there is killed
REAP_TIMEOUT = 30.0
"""Seconds of real time, as for all of the above: a test's clock must not make a healthy worker look dead."""

OUTBOX_BYTES = 192 << 20
"""Batches send no more while this many bytes of records wait here: 4096 launches of the largest kind."""

COMPUTE_LIMIT = LANE_LIMIT + LANE_LIMIT // 2
"""Unfinished commands of the compute lane, those of batches apart, with which other lanes take no more either."""

DRAINED_AT_ONCE = 1024
"""The number of waiting records that are sent in one turn, which takes a few milliseconds."""

BEING_REBUILT = "the device is being rebuilt: use the awaited form, which waits for that, or `dev.wait_generation`"

TAIL_LINES = 40
LAST_WORDS = 2000
"""Characters of a worker's output that the error of a start quotes."""

_TOKENS = itertools.count(1)
_BY_SOCKET = HEADER.pack(0, SOCKET_LANE, 0, 0, 0, 0)


class LossKind(enum.Enum):
    """The kind of end of a generation."""

    FAULT = "fault"
    EXIT = "exit"
    STOPPED = "stopped"
    HANG = "hang"
    ACTORS = "actors"
    RESTART = "restart"


@attrs.frozen
class Loss:
    """The cause of the loss of a generation."""

    kind: LossKind
    reason: str
    reported_by: str
    """The source of the report: a call of the driver, or a task that watches the worker."""
    status: int | None = None
    status_name: str | None = None
    library: str | None = None
    operation: str | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def gone(self) -> bool:
        """True if no restart can help."""
        return self.status is not None and classify(self.status, self.library or "cuda") is StatusClass.GONE

    def error(self, device: int, generation: int) -> ContextLost:
        """Return a fresh exception for one request that was started."""
        return ContextLost(
            self.reason,
            reason=self.reason,
            findings=self.findings,
            status=self.status,
            status_name=self.status_name,
            library=self.library,
            operation=self.operation,
            device=device,
            generation=generation,
        )


MakeError = Callable[[], DeviceError]
"""A function that makes a fresh exception for each request."""


class StartFailed(Exception):
    """A worker could not be made ready; `error` is what a user should see."""

    def __init__(self, error: DeviceError, *, gone: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.gone = gone


class Generation:
    """One worker in service."""

    def __init__(
        self,
        device: int,
        number: int,
        process: WorkerProcess,
        arena: Arena | None,
        staging: SharedMemory,
        hang_timeout: float | None,
        standbys: Sequence[Generation] = (),
        *,
        lane_options: Mapping[int, LaneOptions] = MappingProxyType({}),
        spin: float = 0.0,
        with_ring: bool = ORDERED_STORES,
    ) -> None:
        self.device = device
        self.number: int = number
        self.standbys = standbys
        """The device's standbys, which are told of every chunk."""
        self.process = process
        self.staging = staging
        self.hang_timeout = hang_timeout
        with contextlib.ExitStack() as undo:
            self._buffer = bytearray(channel.MAX_MESSAGE)
            self._wake = _new_eventfd(undo)
            self.bell: int = _new_eventfd(undo)
            """Written when a record has come and the worker is asleep."""
            self.page: TimelinePage = undo.enter_context(contextlib.closing(TimelinePage.new()))
            self.ring: Ring | None = undo.enter_context(contextlib.closing(Ring.new())) if with_ring else None
            undo.pop_all()
        self.timeline: Timeline = Timeline(self.page, None if self.ring is None else self.ring.groups)
        self.token: int = next(_TOKENS) * MAX_LANES
        """Unique among the generations of all devices; see `Block.fast`."""
        self.sent: int = 0
        """The number of records that were sent."""
        self._lane_options = lane_options
        self._spin = spin
        self._longest_patience: float = max(spin, SPIN_SECONDS)
        self.patience: float = self._longest_patience
        """The time in seconds for which polling for an end is worthwhile before blocking."""
        self._looked_for = False
        self.in_service: trio.Event = trio.Event()
        """Set when it takes requests; a standby's is not, yet."""
        self.relieved: trio.Event = trio.Event()
        """Set when it is not a standby any more: it takes over, or is lost."""
        self.over: trio.Event = trio.Event()
        """Set when its tasks have ended."""
        self.interop: ForeignOrder | None = None
        """Puts commands in order with other libraries of this process, once an array is shared with one."""
        self.modules: dict[int, int] = {}
        """The modules that its worker was told to load, by number: the ticket of a load under way, or 0."""
        self.called: set[tuple[str, int, int]] = set()
        """Functions of libraries that were called here before: the library, the lane, the function's number."""
        self.opened: set[Verb] = set()
        """The verbs that open the libraries that were called here, or opened ahead of time; its standbys follow."""
        self.variables: dict[int, dict[str, int]] = {}
        """The addresses of the variables of each module that its worker has loaded."""
        self.launch_paths: Living[ShortPath] = Living()
        """The short ways into it, which are told of modules that are unloaded."""
        self.graphs: dict[int, Any] = {}
        """The graphs that its worker was told to build, by number; `BuiltGraph` of the library of graphs."""
        self.loss: Loss | None = None
        self._refusing = False
        self.info: DeviceInfo | None = None
        self.scope: trio.CancelScope = trio.CancelScope()
        self.output_tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
        self._arena = arena
        self.outbox: collections.deque[tuple[bytes, Sequence[int]]] = collections.deque()
        """Records that did not fit in the ring or the socket, with their descriptors, in order."""
        self.outbox_bytes: int = 0
        """The bytes of those records."""
        self._socket_is_full = trio.Event()
        self._cut_off = False
        """True if the socket cannot be written any more."""
        self.for_batch: bool = False
        """True while a batch publishes its work."""
        self._activity = trio.Event()
        self._room: list[trio.Event] = []
        self._failures: dict[Ticket, dict[str, Any]] = {}
        self._results: dict[Ticket, Any] = {}
        self._started: dict[str, Any] | None = None
        self._hello = process.greeted
        self._adopted = False
        self._ended = False
        self._buried = False
        self._why_torn: dict[str, str] = {}
        """The texts about blocks that the loss has torn, by the operation that was writing them."""
        self._mapped: dict[int, Chunk] = {}
        self._places = _Places(self.page.descriptor)
        self._unkept: dict[int, Chunk] = {}
        """Chunks, by address, whose descriptor was dropped because this process had no place for it."""
        self._probes: collections.deque[trio.Event] = collections.deque()
        self._output = WorkerOutput(process, self._log_line)
        self._waiting = [0] * MAX_LANES
        self._idle = trio.Event()

    def __repr__(self) -> str:
        state = f"lost: {self.loss.reason}" if self.loss else "running"
        return f"<Generation {self.number} of device {self.device}, worker {self.process.pid}, {state}>"

    @property
    def refusing(self) -> bool:
        """True if it takes no requests any more: it is lost, or the device is being closed."""
        return self._refusing

    @refusing.setter
    def refusing(self, refusing: bool) -> None:
        self._refusing = refusing
        self.close_short_ways()

    def close_short_ways(self) -> None:
        """Make every short way check again before its next launch, which must not overtake the work that waits here."""
        for path in self.launch_paths:
            path.last_record = 0

    @property
    def arena(self) -> Arena:
        """The device's arena; it exists once the first worker has reported the size of the memory."""
        if self._arena is None:
            raise AssertionError("the arena is used before the first worker is ready")
        return self._arena

    @arena.setter
    def arena(self, arena: Arena) -> None:
        self._arena = arena

    # --- start --------------------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def start(self, show: Callable[[Generation], None] | None = None) -> None:
        """Wait until the worker is ready for records. Raises `StartFailed`, at the latest after `START_TIMEOUT`.

        From the moment that `show` is called with it, it must be told of every chunk that is added or removed.
        """
        patience = Patience(START_TIMEOUT)
        while not self._hello:
            await self._wait_start_message(patience)
        try:
            self._adopt()
        except ConnectionError:
            await self._ended_while_starting()
        except OSError as error:
            text = f"the worker could not be handed its memory: {reason_of(error)}"
            raise self._start_failure({"text": text}) from None
        if show is not None:
            show(self)
        while self._started is None:
            await self._wait_start_message(patience)
        self.info = DeviceInfo._from_worker(self.device, self.process.backend, self._started)

    def _adopt(self) -> None:
        """Hand over the page, the staging area and every chunk. The worker says `ready` after its self-test."""
        chunks = []
        if self._arena is not None:
            chunks = [chunk for chunk in self._arena.chunks if chunk.descriptor >= 0]
        self._mapped = {chunk.address: chunk for chunk in chunks}
        message = {
            "staging_bytes": self.staging.size,
            "durable": True,
            "ring": self.ring is not None,
            "spin_seconds": self._spin,
            "chunks": [(chunk.address, chunk.size) for chunk in chunks],
        }
        descriptors = [self.page.descriptor, self.staging.descriptor, self._wake, self.bell]
        if self.ring is not None:
            descriptors.append(self.ring.descriptor)
        descriptors += [chunk.descriptor for chunk in chunks]
        channel.send_message(self.process.sock, message, descriptors)
        self._adopted = True

    async def _wait_start_message(self, patience: Patience) -> None:
        if not await self._hears(self.process.sock.fileno(), patience):
            await self._output.rest()
            raise self._start_failure({"text": f"the worker was not ready within {START_TIMEOUT:g} s"})
        self.drain_messages()
        if self._ended:
            await self._ended_while_starting()
        if self.loss is not None:
            await self._output.rest()
            reason = self.loss.reason + self._last_words()
            raise StartFailed(DeviceFailed(reason, device=self.device, status=self.loss.status), gone=self.loss.gone)

    async def _ended_while_starting(self) -> NoReturn:
        self.drain_messages()  # they may contain the reason
        if not self.process.reap():  # it is about to end by itself, and then its end tells who has ended it
            await Patience(END_TIMEOUT).readable(self.process.pidfd)
        await reap(self.process)
        await self._output.rest()
        raise self._start_failure({"text": f"the worker {self.process.end_text()} while it started"})

    def _last_words(self) -> str:
        """Return the end of the worker's output, to be added to the reason of a failed start."""
        words = " | ".join(list(self.output_tail)[-5:])
        cut = "..." if len(words) > LAST_WORDS else ""
        return f"; its last words: {cut}{words[-LAST_WORDS:]}" if words else ""

    def _start_failure(self, message: dict[str, Any]) -> StartFailed:
        text = message["text"]
        if message.get("type") is None:
            text += self._last_words()
        if message.get("type") in ("LibraryMissing", "SymbolMissing"):
            # The text has the places, unless it was too long for a message.
            looked = "".join(f"\n  - {place}" for place in message.get("looked", ()) if place not in text)
            return StartFailed(
                LibraryNotFound(text + looked, device=self.device, advice=message.get("advice")), gone=True
            )
        status = message.get("status")
        library = message.get("library", "cuda")
        # The worker has this process's limits. The driver reports a limit that is too low as a missing GPU.
        low = low_limits()
        if low:
            text += f" (a low limit may be the cause: {low})"
        gone = not low and status is not None and classify(status, library) is StatusClass.GONE
        error = DeviceFailed(
            f"a worker for the device could not be started: {text}",
            device=self.device,
            status=status,
            status_name=message.get("name"),
            library=library if status is not None else None,
            operation=message.get("function"),
            advice=message.get("advice"),
        )
        return StartFailed(error, gone=gone)

    @property
    def ready(self) -> bool:
        """True if its worker runs records."""
        return self._started is not None and self.loss is None

    # --- as a standby -------------------------------------------------------------------------------------------------

    def mirror(self, chunk: Chunk) -> None:
        """Make a standby's worker map a chunk, whose descriptor has just come."""
        for other in [each for each in self._mapped.values() if _overlap(each, chunk)]:
            self.unmirror(other)
        self._mapped[chunk.address] = chunk
        try:
            copies = self._copies_of((chunk.descriptor,), context_records.MAP_CHUNK.operation)
        except OutOfHostMemory as refused:
            self.lose(Loss(LossKind.EXIT, refused.message, reported_by="the writer"))  # it can be started again
            return
        payload = context_records.MAP_CHUNK.struct.pack(chunk.address, chunk.size)
        self._send_control(context_records.MAP_CHUNK, payload, copies)

    def unmirror(self, chunk: Chunk) -> None:
        """Make a standby's worker release a chunk, if it has it."""
        if self._mapped.get(chunk.address) is chunk:
            del self._mapped[chunk.address]
            payload = context_records.UNMAP_CHUNK.struct.pack(chunk.address)
            self._send_control(context_records.UNMAP_CHUNK, payload)

    def note_opened(self, opening: Verb) -> None:
        """Note the first call of a library. The standbys open it too, so that no takeover waits for that."""
        self.opened.add(opening)
        for standby in self.standbys:
            standby.open_library(opening)

    def open_library(self, opening: Verb) -> None:
        """Make a standby's worker load a library and create its handle for the compute lane."""
        if self.ready and opening not in self.opened:
            self.opened.add(opening)
            self.publish(LANE_COMPUTE, opening, b"", (), _OpeningOwner())

    def take_over(self, number: int) -> None:
        """Become generation `number`, with exactly the chunks that exist now."""
        self.number = number
        self.relieved.set()
        for chunk in list(self._mapped.values()):
            if chunk not in self.arena.chunks:
                self.unmirror(chunk)

    # --- publishing ---------------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def admit(self, request: Request) -> None:
        """Wait until a request can begin: its lane has room, and no lost worker may still touch its memory."""
        while not self.takes(request):
            await self.wait_room(request.lane)

    @trio.lowlevel.enable_ki_protection
    async def wait_room(self, lane: int | None) -> None:
        """Wait until the lane may have room for a request, or until the generation is lost."""
        if lane is not None:
            self._waiting[lane] += 1
        event = trio.Event()
        self._room.append(event)
        try:
            await event.wait()
        finally:
            if lane is not None:
                self._waiting[lane] -= 1

    def takes(self, request: Request) -> bool:
        """Return whether a request can begin right now."""
        if self.loss is not None or not (request.lane is None or self._has_room(request.lane)):
            return False
        arena = self.arena
        return not arena.quarantine or not any(arena.quarantined(block) for block in request.blocks())

    def wake_waiters(self) -> None:
        """Make every actor check its condition again."""
        waiters, self._room = self._room, []
        for event in waiters:
            event.set()

    def refusal(self, request: Request) -> trio.WouldBlock:
        """Return the error that says why a request cannot begin right now, for a caller that does not wait."""
        if self.loss is not None:
            return trio.WouldBlock(BEING_REBUILT)
        lane = request.lane
        if lane is None or self._has_room(lane):
            return trio.WouldBlock(
                f"{request.operation} works on memory that a lost worker may still write until it is gone: use the "
                "awaited form, which waits for that"
            )
        full, most = (lane, LANE_LIMIT) if self._is_full(lane) else (LANE_COMPUTE, COMPUTE_LIMIT)
        return trio.WouldBlock(
            f"{self.timeline.book(full).admitted} commands of {the_lane(full)} are unfinished that are not a batch's; "
            f"without waiting it takes one more while they are fewer than {most}: use the awaited form, which waits "
            "for room, or a batch, which takes more"
        )

    def _is_full(self, lane: int) -> bool:
        return self.timeline.book(lane).admitted >= LANE_LIMIT

    def _has_room(self, lane: int) -> bool:
        if self._is_full(lane):
            return False
        # A command of another lane may bring along a chunk or a fill, and those run on the compute lane.
        return lane == LANE_COMPUTE or self.timeline.lanes[LANE_COMPUTE].admitted < COMPUTE_LIMIT

    def has_room_for_batch(self, lane: int, count: int) -> bool:
        """Return whether a lane takes `count` more commands of batches."""
        most, compute = BATCH_COMMANDS - count, self.timeline.lanes[LANE_COMPUTE]
        if len(compute.in_flight) + len(compute.launches) > most or self.outbox_bytes > OUTBOX_BYTES:
            return False
        return lane == LANE_COMPUTE or self.timeline.book(lane).unfinished <= most

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
        operation = operation or f"{verb.engine}.{verb.name}"
        for block, role in operands:
            self._check_block(block, role, operation)
        required = set(requires)
        if len(operands) > LANE_LIMIT // 4:
            self._check_fills(operands, operation)
        for block, role in operands:
            self._prepare_block(block, role, required)
        if len(required) > MAX_WAITS - len(self.timeline.lanes):
            raise CommandFailed(
                f"one command cannot wait for {len(required)} others: use fewer new arrays at a time",
                device=self.device,
                generation=self.number,
                operation=operation,
            )
        if self.interop is not None:
            self.interop.order(self, lane, operands, required)
        copies = self._copies_of(descriptors, operation) if descriptors else ()
        book = self.timeline.book(lane)
        if not book.open:
            self._open_lane(book)
        ticket = book.issued + 1
        waits: set[Ticket] = {wait for wait in after if wait[0] != lane}
        healed: list[tuple[Block, str | None, Recipe | None]] | None = None
        token = self.token + lane
        ordered = book.index < LANES or self._lane_options[lane].ordered
        for block, role in operands:
            if ordered:
                block.claim(role, lane, ticket, self.number, waits)
            else:
                block.claim_unordered(lane, ticket, self.number)
            if block.fast != token:
                block.fast = 0
            if role is Role.OVERWRITE and (block.torn is not None or block.recipe is not None):
                healed = healed or []
                healed.append((block, block.torn, block.recipe))
                block.torn = block.recipe = None
        open_waits = self.timeline.still_open(waits) if waits else ()
        words = [encode_wait(*wait) for wait in open_waits]
        words += [encode_wait(LANE_COMPUTE, each, required=True) for each in required]
        book.issued = ticket
        held_up_by = open_waits
        if required and lane != LANE_COMPUTE:
            held_up_by += tuple((LANE_COMPUTE, each) for each in required)
        batched = aside or self.for_batch
        command = Command(
            lane, ticket, verb.engine, operation, operands, owner, held_up_by, hang_timeout, batched=batched
        )
        command.place = self.sent + len(self.outbox) + 1
        command.blocks = verb.mode is Mode.BLOCKS
        command.healed = healed
        self.page.set_status(lane, ticket, 0)
        book.begin(command)
        header = HEADER.pack(ticket, lane, verb.engine_number, verb.number, len(words), len(payload))
        if words:
            header += b"".join(word.to_bytes(8, "little") for word in words)
        book.waited += len(open_waits)
        self._send(header + payload, copies)
        self.wake_settler()
        return command

    def promote(self, block: Block, lane: int) -> None:
        """Let a block go the short way on a lane, if it is intact and no other lane has work on it.

        This is revoked by work of another lane, by an error, and by freeing, filling or sharing the block.
        """
        reached = self.timeline.reached
        for reader in [reader for reader in block.readers.items() if reader[0] != lane and reached(reader)]:
            del block.readers[reader[0]]
        writer = block.writer
        if (
            block.epoch == self.number
            and (writer is None or writer[0] == lane or reached(writer))
            and block.readers.keys() <= {lane}
            and block.written
            and block.recipe is None
            and block.torn is None
            and block.lost is None
            and not block.freed
            and block.chunk.state is ChunkState.READY
            and not (self.interop is not None and self.interop.uses(block))
        ):
            block.fast = self.token + lane

    def begin_looking(self) -> bool:
        """Return whether the caller, who has just sent a command, must poll for its end: if no other task does.

        It settles what has ended, polls for `patience` at most, and calls `end_looking` afterwards.
        """
        if self._looked_for or self._activity.is_set():
            return False
        self._looked_for = True
        return True

    async def look_for(self, request: Request) -> None:
        """Poll until a request has its answer or polling is not worthwhile any more, after a true `begin_looking`."""
        until = time.perf_counter() + self.patience
        try:
            while True:
                await trio.lowlevel.checkpoint()
                self.settle_finished()
                if request.answered or time.perf_counter() > until:
                    break
        finally:
            self.end_looking()

    def end_looking(self, looker: LaunchOwner | None = None) -> None:
        """Settle what has ended, and leave unfinished commands to the settler again."""
        self._looked_for = False
        if (looker is not None and self._settled_alone(looker)) or self.settle_finished():
            self.patience = self._longest_patience
        elif not self.timeline.idle:
            self.patience = max(SPIN_SECONDS / 16, self.patience / 2)
        if not self.timeline.idle:
            self.wake_settler()
        elif not self._idle.is_set():
            self._idle.set()

    def _settled_alone(self, looker: LaunchOwner) -> bool:
        """Settle the only launch, if it is this one and has run without an error: the most usual case."""
        book = self.timeline.lanes[LANE_COMPUTE]
        launches = book.launches
        if len(launches) != 1 or book.in_flight or launches[0][1] is not looker:
            return False
        if self.page.finished(LANE_COMPUTE) < launches[0][0] or self.page.failures(LANE_COMPUTE) != book.failures:
            return False
        launches.popleft()
        looker.launches_finished(1)
        if self._room:
            self.wake_waiters()
        return True

    def wake_settler(self) -> None:
        """Make sure that ended commands are settled: by the task that polls, if there is one, else by the settler."""
        if not self._looked_for and not self._activity.is_set():
            self._activity.set()

    def _open_lane(self, book: LaneBook) -> None:
        book.open = True
        payload = context_records.OPEN_LANE.struct.pack(book.index, self._lane_options[book.index].priority)
        self._send_control(context_records.OPEN_LANE, payload)

    def close_lane(self, lane: int) -> None:
        """Make the worker close a lane, if it has it; all its commands must be finished."""
        book = self.timeline.book(lane)
        if book.open and self.loss is None:
            book.open = False
            # The libraries' handles are destroyed with it, and its number will be used again.
            self.called = {call for call in self.called if call[1] != lane}
            self._send_control(context_records.CLOSE_LANE, context_records.CLOSE_LANE.struct.pack(lane))

    def drop_module(self, number: int) -> bool:
        """Forget a module. Returns whether its worker was told to load it, and so must be told to unload it."""
        self.variables.pop(number, None)
        return self.modules.pop(number, None) is not None

    def _check_block(self, block: Block, role: Role, operation: str) -> None:
        if block.freed:
            raise InvalidArgument(
                "the array was freed", device=self.device, generation=self.number, operation=operation
            )
        if block.lost is not None:
            raise StaleArray(
                f"the array's memory is lost: {block.lost}",
                device=self.device,
                generation=self.number,
                operation=operation,
            )
        if self.arena.quarantine and self.arena.quarantined(block):
            raise AtomrInternalError(f"{operation} was admitted to memory that a lost worker may still write")
        if block.torn is not None and role is not Role.OVERWRITE:
            raise StaleArray(
                f"the array is torn: {block.torn}",
                device=self.device,
                generation=self.number,
                operation=operation,
            )

    def _check_fills(self, operands: Sequence[Operand], operation: str) -> None:
        """Raise `InvalidArgument` if a command needs more fills than the compute lane has spare result slots."""
        fills = sum(block.recipe is not None for block, _ in operands)
        if fills > LANE_LIMIT // 4:
            raise CommandFailed(
                f"one command needs {fills} fills of new arrays, which is too many: use fewer new arrays at a time",
                device=self.device,
                generation=self.number,
                operation=operation,
            )

    def require_chunk(self, chunk: Chunk, required: set[int]) -> None:
        """Create a chunk that does not exist yet, and add the ticket of its creation to `required`."""
        if chunk.state is not ChunkState.READY:
            if chunk.state is ChunkState.PLANNED:
                self._create_chunk(chunk)
            required.add(chunk.ticket)

    def _prepare_block(self, block: Block, role: Role, required: set[int]) -> None:
        """Create the chunk and send the fill that the block still needs."""
        self.require_chunk(block.chunk, required)
        recipe = block.recipe
        if recipe is None or role is Role.OVERWRITE:
            return
        if not recipe.ticket:
            payload = FILL.struct.pack(block.address, 0, recipe.itemsize, recipe.count, 1, recipe.pattern)
            block.recipe = None  # the fill itself needs no fill
            owner = _FillOwner(block, recipe)
            try:
                recipe.ticket = self.publish(LANE_COMPUTE, FILL, payload, ((block, Role.OVERWRITE),), owner).ticket
            finally:
                block.recipe = recipe
        required.add(recipe.ticket)

    def release_retired(self, then: CommandOwner | None = None) -> int:
        """Release the chunks that the arena has dropped to the GPU. Returns their bytes; `then` is told of the end."""
        retired, self.arena.retired = self.arena.retired, []
        for number, chunk in enumerate(retired, 1):
            owner = _ReleaseOwner(self, chunk, then if number == len(retired) else None)
            payload = RELEASE_CHUNK.struct.pack(chunk.address)
            self.publish(LANE_COMPUTE, RELEASE_CHUNK, payload, (), owner, after=chunk.last_use(self.number))
        return sum(chunk.size for chunk in retired)

    def _create_chunk(self, chunk: Chunk) -> None:
        durable = self.info is None or self.info.durable
        if durable:
            with self._host_limits("a descriptor of new device memory has no place", CREATE_CHUNK.operation):
                self._places.hold(chunk.address)
        self.release_retired()
        spare = self.arena.offer_unused()
        payload = CREATE_CHUNK.struct.pack(chunk.address, chunk.size)
        payload += b"".join(each.address.to_bytes(8, "little") for each in spare)
        chunk.state = ChunkState.CREATING
        owner = _ChunkOwner(self, chunk, spare)
        after = [ticket for each in spare for ticket in each.last_use(self.number)]
        command = self.publish(LANE_COMPUTE, CREATE_CHUNK, payload, (), owner, after=after)
        chunk.ticket = command.ticket

    def _host_limits(self, what: str, operation: str) -> contextlib.AbstractContextManager[None]:
        return host_limits(what, device=self.device, generation=self.number, operation=operation)

    def _copies_of(self, descriptors: Sequence[int], operation: str) -> list[int]:
        """Return copies of the descriptors that a record will carry: their owner may close them before it is sent.

        They are made before the command has a ticket, because a command with a ticket must be sent. Raises
        `OutOfHostMemory`.
        """
        copies: list[int] = []
        try:
            with self._host_limits("a descriptor cannot be handed to the worker", operation):
                copies.extend(map(os.dup, descriptors))
        except BaseException:
            _close_all(copies)
            raise
        return copies

    def _send(self, record: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a record, or let it wait for room; the descriptors are closed when it is sent."""
        if (not self.outbox or self.drain_outbox()) and self._sent_now(record, descriptors):
            if descriptors:
                _close_all(descriptors)
            return
        self.outbox.append((record, descriptors))
        self.outbox_bytes += len(record)
        self.close_short_ways()
        self.drain_outbox()

    def drain_outbox(self) -> bool:
        """Send waiting records, in order, as far as there is room. Returns whether none waits any more."""
        until = self.sent + DRAINED_AT_ONCE
        while self.outbox:
            record, descriptors = self.outbox[0]
            if self.sent >= until:  # the writer goes on, after other tasks have run
                self._socket_is_full.set()
                return False
            if not self._sent_now(record, descriptors):
                if not self._may_have_room():
                    return False
                continue
            self.outbox.popleft()
            self.outbox_bytes -= len(record)
            _close_all(descriptors)
        return True

    def _may_have_room(self) -> bool:
        """Ask to be told when there is room again. Returns whether there is room already."""
        words = self.page.words
        if self.ring is None or self.sent - words[RECORDS_READ_WORD] < SLOTS:
            self._socket_is_full.set()
            return False
        words[SENDER_WAITS_WORD] = 1
        fence()  # as in ``ring.py``: the worker publishes what it has read, and then checks who waits
        return self.sent - words[RECORDS_READ_WORD] < SLOTS

    def _sent_now(self, record: bytes, descriptors: Sequence[int]) -> bool:
        """Send a record, if there is room for it. A record that can never be sent loses the generation."""
        ring = self.ring
        if ring is None:
            return self._sent_by_socket(record, descriptors)
        words = self.page.words
        if self.sent - words[RECORDS_READ_WORD] >= SLOTS:
            return False
        if descriptors or len(record) > MAX_RECORD:
            if not self._sent_by_socket(record, descriptors):
                return False
            self.sent -= 1
            record = _BY_SOCKET
        at = (self.sent & SLOT_MASK) << SLOT_SHIFT
        NUMBER.pack_into(ring.slots, at, self.sent + 1)
        ring.slots[at + NUMBER.size : at + NUMBER.size + len(record)] = record
        self.sent += 1
        words[RECORDS_SENT_WORD] = self.sent
        fence()
        if words[WORKER_ASLEEP_WORD]:
            os.eventfd_write(self.bell, 1)
        return True

    def _sent_by_socket(self, record: bytes, descriptors: Sequence[int]) -> bool:
        try:
            channel.send_bytes(self.process.sock, record, descriptors)
        except OSError as error:
            if shortage(error) is not None:  # the socket is full, or the system is short of memory: it may pass
                return False
            self._send_failed(error)
        self.sent += 1
        return True

    def _send_failed(self, error: OSError) -> None:
        """Lose the generation: a record that cannot be sent has a ticket already."""
        self._cut_off = True
        # When the worker is gone, its exit is the reason.
        if error.errno not in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN):
            reason = f"a record could not be sent to the worker: {error}"
            self.lose(Loss(LossKind.EXIT, reason, reported_by="the writer"))

    def _send_control(self, verb: Verb, payload: bytes = b"", descriptors: Sequence[int] = ()) -> None:
        header = HEADER.pack(0, CONTROL_LANE, verb.engine_number, verb.number, 0, len(payload))
        self._send(header + payload, descriptors)

    @trio.lowlevel.enable_ki_protection
    async def end_worker(self, deadline: float) -> None:
        """Ask the worker to release everything and exit, and wait for that until `deadline`.

        `deadline` is on the clock of `time.monotonic`, here and in `reset`.
        """
        self._send_control(context_records.CLOSE)
        await self._hears(self.process.pidfd, Patience(deadline - time.monotonic()))

    def request_faults(self, faults: str, *, instead: bool = False) -> None:
        """Make the simulated driver of the worker fail, as ``atomr_cuda.injection`` describes.

        `instead` withdraws the faults that were requested before.
        """
        self._send_control(context_records.INJECT, json.dumps({"faults": faults, "instead": instead}).encode())

    @trio.lowlevel.enable_ki_protection
    async def reset(self, deadline: float) -> bool:
        """Make the worker release everything but its context. Returns whether it has done so by `deadline`.

        Unfinished work must end by itself. The process can then be adopted again, as another generation; a process that
        was never adopted can be adopted at once.
        """
        if self._adopted:
            self._hello = False
            self._send_control(context_records.RESET)
            if not await self._is_greeted_again(Patience(deadline - time.monotonic())):
                return False
            self.settle_finished()
        await self._output.rest()
        self.process.greeted = self._hello
        return self.timeline.idle

    async def _is_greeted_again(self, patience: Patience) -> bool:
        while not self._hello:
            if self.outbox or not await self._hears(self.process.sock.fileno(), patience):
                return False
            try:
                self.drain_messages()
            except StartFailed:
                return False
            if self._ended or self.loss is not None:
                return False
        return True

    async def _hears(self, descriptor: int, patience: Patience) -> bool:
        """Wait for a descriptor of the worker, and read its output meanwhile. Returns whether it is readable."""
        watched = {descriptor, self.process.output}
        while ready := await patience.readable(*watched):
            if self.process.output in ready and not self._output.turn() and self._output.ended:
                watched.remove(self.process.output)
            if descriptor in ready:
                return True
            if patience.left <= 0:  # a worker that prints without end is not read for ever
                break
        return False

    @trio.lowlevel.enable_ki_protection
    async def probe(self) -> None:
        """Ask the worker whether the context is healthy; if it is not, the generation is lost and this is cancelled."""
        answered = trio.Event()
        self._probes.append(answered)  # two actors may ask at the same time; the answers come in order
        self._send_control(context_records.PROBE)
        await answered.wait()

    # --- what comes back ----------------------------------------------------------------------------------------------

    def drain_messages(self) -> None:
        """Handle every message that has arrived; none any more once another generation has taken over."""
        while not self._ended and not self._buried:
            try:
                with self._places if self._places.held else _NO_PLACES:
                    data, descriptors = channel.receive_bytes(self.process.sock, self._buffer)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # it left records unread; the kernel reports that once, before the messages that it had sent
            if not data:
                self._ended = True
                return
            try:
                self._handle(json.loads(data), descriptors)
            except (ValueError, KeyError, IndexError, TypeError) as garbled:
                # The worker's memory was overwritten: not an internal error here, but the end of that worker.
                reason = f"the worker sent a message that cannot be read: {garbled!r}"
                self.lose(Loss(LossKind.EXIT, reason, reported_by="the reader"))

    def _handle(self, message: dict[str, Any], descriptors: list[int]) -> None:
        kind = message.pop("kind")
        match kind:
            case "error":
                self._failures[message["lane"], message["ticket"]] = message
            case "result":
                # A long answer comes in parts.
                self._results.setdefault((message["lane"], message["ticket"]), {}).update(message["value"])
            case "lost":
                findings = read_findings(self.process.findings())
                reason = in_short(findings) if findings else message["text"] or message["name"]
                self.lose(
                    Loss(
                        LossKind.FAULT,
                        reason,
                        status=message["status"],
                        status_name=message["name"],
                        library=message["library"],
                        operation=message["operation"],
                        findings=findings,
                        reported_by=f"the driver, to {message['operation']}",
                    )
                )
            case "chunk":
                self._keep_descriptor(message["address"], descriptors.pop())
            case "exported":
                self._keep_exported(message["address"], descriptors.pop() if descriptors else NO_DESCRIPTOR)
            case "released":
                self._drop_released(message["chunks"])
            case "probed":
                self._probes.popleft().set()
            case "room":
                self.drain_outbox()
            case "hello":
                self._hello = True
            case "ready":
                self._started = message
            case "failed":
                raise self._start_failure(message)
            case _:
                raise ValueError(f"there is no message of kind {kind!r}")

    def _keep_descriptor(self, address: int, descriptor: int) -> None:
        self._places.give_up(address)
        chunk = next((each for each in self.arena.chunks if each.address == address), None)
        if chunk is None:
            _close_all(each for each in (descriptor,) if each != NO_DESCRIPTOR)
        elif descriptor == NO_DESCRIPTOR:
            self._unkept[address] = chunk
        else:
            self._keep(chunk, descriptor)

    def _keep(self, chunk: Chunk, descriptor: int) -> None:
        chunk.close()
        chunk.descriptor = descriptor
        for standby in self.standbys:
            standby.mirror(chunk)

    def _ask_for_unkept(self) -> None:
        """Make the worker send the dropped descriptors again: memory outlives it only with its descriptor."""
        for address in self._unkept:
            if not self._places.awaits(address):
                with contextlib.suppress(OSError):  # there is no place yet
                    self._places.hold(address)
                    payload = context_records.EXPORT_CHUNK.struct.pack(address)
                    self._send_control(context_records.EXPORT_CHUNK, payload)

    def _keep_exported(self, address: int, descriptor: int) -> None:
        self._places.give_up(address)
        if descriptor != NO_DESCRIPTOR:
            chunk = self._unkept.pop(address, None)
            if chunk is None:  # it was given back meanwhile
                os.close(descriptor)
            else:
                self._keep(chunk, descriptor)

    def await_no_more(self, chunk: Chunk) -> None:
        """Note that a chunk's descriptor has come, or never will."""
        if self._unkept.get(chunk.address) is not chunk:
            self._places.give_up(chunk.address)

    def _drop_released(self, addresses: list[int]) -> None:
        for chunk in [each for each in self.arena.chunks if each.address in addresses]:
            self.arena.drop(chunk)
            self.let_go(chunk)

    def let_go(self, chunk: Chunk, then: Callable[[], None] | None = None) -> None:
        """Close a chunk that the arena and the worker no longer have, here and in the standbys; then call `then`."""
        if self._unkept.get(chunk.address) is chunk:
            del self._unkept[chunk.address]
        for standby in self.standbys:
            standby.unmirror(chunk)
        close_in_thread(chunk.part_with_descriptor(), [], then)

    def settle_finished(self) -> bool:
        """Settle everything whose ticket was reached; true if there was anything."""
        progressed = False
        for finished in self.timeline.take_finished():
            progressed = True
            if isinstance(finished, Command):
                self._settle(finished)
            else:
                self._settle_launches(finished)
        if progressed and self._room:
            self.wake_waiters()
        return progressed

    def _settle_launches(self, finished: Launches) -> None:
        book, launches = finished.book, finished.items
        failures = self.page.failures(book.index)
        if failures != book.failures:
            book.failures = failures
            self.drain_messages()
            for launch in launches:
                failure = self._failures.pop((book.index, launch[0]), None)
                if failure is not None:
                    launch[1].launch_failed(launch, self._error_of(launch[2]._describe(launch[3])[0], failure))
        owner, count = launches[0][1], 0
        for launch in launches:
            if launch[1] is not owner:
                owner.launches_finished(count)
                owner, count = launch[1], 0
            count += 1
        owner.launches_finished(count)

    def _settle(self, command: Command) -> None:
        key = (command.lane, command.ticket)
        status = self.page.status(*key)
        if status or command.operation in _WITH_RESULT:
            self.drain_messages()
        if not status:
            command.owner.command_finished(command, None, self._results.pop(key, None))
            return
        for block, torn, recipe in command.healed or ():
            block.torn = None
            if torn is not None:
                block.tear(torn)
            block.fast = 0
            # The fill must not overwrite what a later command has written.
            if block.writer == key and recipe is not None:
                block.recipe = recipe.anew()
        failure = self._failures.pop(key, None)
        if failure is None:
            failure = {"status": status, "name": "", "text": "the worker did not say why", "library": "cuda"}
        command.owner.command_finished(command, self._error_of(command.operation, failure), None)

    def _error_of(self, operation: str, failure: dict[str, Any]) -> DeviceError:
        if failure["status"] == ENGINE_BUG:
            return ActorCrashed(
                f"the worker's part of {operation} crashed: {failure['text']}",
                actor=failure["library"],
                device=self.device,
                generation=self.number,
                operation=operation,
            )
        if failure["status"] == HOST_SHORTAGE:
            return OutOfHostMemory(
                f"the worker could not run it: {failure['text']}",
                device=self.device,
                generation=self.number,
                operation=operation,
            )
        if failure["status"] == LIBRARY_MISSING:
            return LibraryNotFound(
                failure["text"],
                library=failure["library"],
                device=self.device,
                generation=self.number,
                operation=operation,
            )
        return error_from_status(
            failure["status"],
            failure["name"],
            failure["text"],
            operation=operation,
            device=self.device,
            generation=self.number,
            library=failure["library"],
        )

    # --- tasks --------------------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def run_reader(self) -> None:
        """Read the worker's messages; a fault that it reports ends the generation."""
        while not self._ended:
            await trio.lowlevel.wait_readable(self.process.sock)
            self.drain_messages()

    @trio.lowlevel.enable_ki_protection
    async def run_writer(self) -> None:
        """Send records that did not fit in the socket. For those of the ring, the worker tells when there is room."""
        while not self._cut_off:
            await self._socket_is_full.wait()
            await trio.lowlevel.wait_writable(self.process.sock)
            self._socket_is_full = trio.Event()
            self.drain_outbox()

    @trio.lowlevel.enable_ki_protection
    async def run_settler(self) -> None:
        """Settle commands as their tickets are reached: poll for a while, with checkpoints, then block.

        Polling is worthwhile as long as commands end within the time. Each poll without success halves the time, until
        one succeeds.
        """
        last = time.perf_counter()
        while True:
            if self.timeline.idle:
                self._idle.set()
                self._activity = trio.Event()
                await self._activity.wait()
                last = time.perf_counter()
            if self.settle_finished():
                last = time.perf_counter()
                self.patience = self._longest_patience
            if time.perf_counter() - last < self.patience:
                await trio.lowlevel.checkpoint()
                continue
            self.patience = max(SPIN_SECONDS / 16, self.patience / 2)
            self.page.set_asleep(True)
            fence()
            try:
                if not self.settle_finished():
                    await trio.lowlevel.wait_readable(self._wake)
                    os.eventfd_read(self._wake)
            except BlockingIOError:
                pass
            finally:
                self.page.set_asleep(False)
            last = time.perf_counter()

    @trio.lowlevel.enable_ki_protection
    async def run_output(self) -> None:
        """Forward what the worker prints to the log, line by line."""
        while True:
            if self._output.turn():
                await trio.lowlevel.checkpoint()
            elif self._output.ended:
                return
            else:
                await trio.lowlevel.wait_readable(self.process.output)

    @trio.lowlevel.enable_ki_protection
    async def end_output(self) -> None:
        """Log the remaining output of a worker that is gone."""
        await self._output.rest()

    def _log_line(self, text: str) -> None:
        self.output_tail.append(text)
        device_log.info("%s", text, extra={"device": self.device, "generation": self.number})

    @trio.lowlevel.enable_ki_protection
    async def run_exit_watch(self) -> None:
        """Notice that the process has ended."""
        await trio.lowlevel.wait_readable(self.process.pidfd)
        self.process.reap()
        self.drain_messages()
        reason = f"the worker process {self.process.end_text()}"
        self.lose(Loss(LossKind.EXIT, reason, reported_by="the operating system"))

    @trio.lowlevel.enable_ki_protection
    async def run_watchdog(self) -> None:
        """Lose the generation, by real time, if its worker stops or reads nothing, or a command runs too long."""
        period = WATCH_PERIOD if self.hang_timeout is None else min(WATCH_PERIOD, max(0.001, self.hang_timeout / 4))
        heart = _Pulse(STOPPED_SECONDS, "the worker gave no sign of life for {seconds:.1f} s")
        ears = _Pulse(DEAF_SECONDS, "the worker has read nothing of what it was sent for {seconds:.1f} s")
        awake = _AwakeClock(period)
        with RealTimer(period) as timer:
            while True:
                await timer.tick()
                now = time.monotonic()
                self.settle_finished()
                if self._unkept:
                    self._ask_for_unkept()
                while self._arena is not None and self._arena.orphans:
                    self._arena.collect(AT_A_TIME)
                    await trio.lowlevel.checkpoint()
                read = self.page.records_read()
                # A worker that has read everything is not deaf, so its time starts again.
                still = heart.still(self.page.heartbeat(), now) or ears.still(read if read < self.sent else -now, now)
                if still is not None:
                    self.lose(Loss(LossKind.STOPPED, still, reported_by="the watchdog"))
                self._check_hang(awake.look(now))

    def _check_hang(self, now: float) -> None:
        overdue = self.timeline.overdue(now, self.hang_timeout, self._places_of_launches)
        if overdue is not None:
            reason = f"{overdue.operation} {overdue.did} longer than hang_timeout={overdue.limit:g} s"
            self.lose(Loss(LossKind.HANG, reason, reported_by="the watchdog", operation=overdue.operation))

    def _places_of_launches(self, launches: Collection[Ticket]) -> Mapping[Ticket, int]:
        """The numbers of the records of launches that went the short way, which leads into the ring."""
        return {} if self.ring is None else self.ring.places_of(launches, self.sent)

    def waiting(self, lane: int) -> int:
        """Return the number of actors that wait for room on a lane."""
        return self._waiting[lane]

    def in_flight(self) -> tuple[str, ...]:
        """Return the operations that were started and not finished."""
        lanes = self.timeline.lanes
        launched = [launch[2] for lane in lanes for launch in lane.launches]
        names = {each: each._describe(())[0] for each in set(launched)}  # whatever it was given
        return (*(command.operation for lane in lanes for command in lane.in_flight), *map(names.__getitem__, launched))

    def busy_engines(self) -> tuple[str, ...]:
        """Return the libraries that have commands started and not finished."""
        engines = {command.engine for lane in self.timeline.lanes for command in lane.in_flight}
        return tuple(sorted(engines.union(self.launched())))

    def launched(self) -> collections.Counter[str]:
        """Return the number of unsettled launches and calls that went the short way, by engine."""
        return collections.Counter(launch[2]._engine for lane in self.timeline.lanes for launch in lane.launches)

    @trio.lowlevel.enable_ki_protection
    async def wait_idle(self) -> None:
        """Wait until nothing is unfinished."""
        while not self.timeline.idle:
            self._idle = trio.Event()
            await self._idle.wait()

    # --- the end ------------------------------------------------------------------------------------------------------

    def lose(self, loss: Loss) -> None:
        """End the generation. Only the first reason counts."""
        if self.loss is None:
            self.loss = loss
            self.refusing = True
            self.relieved.set()
            self.wake_waiters()
            self.scope.cancel(reason=f"generation {self.number} of device {self.device} lost: {loss.reason}")

    def settle_reaped(self, make_error: MakeError) -> None:
        """Settle by the last readings: tickets that the counters cover succeeded; every other one gets a fresh error.

        Call it only after the reap and `end_output`. Arrays that unfinished commands were writing are torn.
        """
        self.drain_messages()
        self.settle_finished()
        self._settle_rest(make_error)

    def settle_faulted(self, make_error: MakeError) -> tuple[int, ...]:
        """Settle at once, when the driver itself has reported the loss and the next worker may serve before the reap.

        Returns the ticket that each lane had reached. Memory that later commands touch must not be used until the reap,
        because their copies may still write. They count as unfinished, even those that still complete.
        """
        self.drain_messages()
        self._output.turn()
        reached = self.timeline.counters
        self.settle_finished()
        self._settle_rest(make_error)
        self._buried = True
        return reached

    def _settle_rest(self, make_error: MakeError) -> None:
        lost = list(self.timeline.take_rest())
        launches = list(self.timeline.take_rest_of_launches())
        for command in lost:
            self._tear(command.operation, command.operands)
        # Of thousands of launches many are the same, down to the objects that they were given.
        for launched, arguments in {(launch[2], *map(id, launch[3])): launch[2:] for launch in launches}.values():
            self._tear(*launched._describe(arguments))
        # Every waiter has its own error. A batch raises one for all its calls, of which there may be thousands.
        for owner, count in collections.Counter(launch[1] for launch in launches).items():
            owner.launches_lost(count, make_error())
        for_batches: DeviceError | None = None
        for command in lost:
            if command.batched and for_batches is None:
                for_batches = make_error()
            try:
                command.owner.command_lost(command, for_batches if command.batched and for_batches else make_error())
            except Exception:  # an internal error must not leave the others without an answer
                log.critical("settling %r of generation %d failed", command, self.number, exc_info=True)
        self.wake_waiters()

    def _tear(self, operation: str, operands: Sequence[Operand]) -> None:
        why = self._why_torn.setdefault(operation, f"{operation} was writing it when generation {self.number} was lost")
        for block, role in operands:
            if role is not Role.READ and not block.freed and block.torn is not why:
                block.tear(why)

    def forget(self) -> None:
        """Close the copies of the descriptors in a forked child."""
        self.refusing = True
        self.process.forget()
        self.let_worker_go()

    def close(self) -> None:
        """Unmap the page and close the descriptors; the worker must have been reaped."""
        self.process.close()
        self.let_worker_go()

    def let_worker_go(self) -> None:
        """Unmap the page and close all descriptors but the worker process's own. It must have been reset or reaped."""
        if self.interop is not None:
            self.interop.generation_over(self)
        self.page.close()
        if self.ring is not None:
            self.ring.close()
        while self.outbox:
            _close_all(self.outbox.popleft()[1])
        self._places.close()
        if self._wake >= 0:
            os.close(self._wake)
            os.close(self.bell)
            self._wake = self.bell = -1


class _Pulse:
    """A number that should change, and the time of its last change."""

    def __init__(self, limit: float, text: str) -> None:
        self._limit = limit
        self._text = text
        self._value: float | None = None
        self._since = self._seen = time.monotonic()

    def still(self, value: float, now: float) -> str | None:
        """Return a text if the number has not changed for too long; None otherwise."""
        # If the time between two looks is that long, this process was stopped itself, and cannot judge.
        if value != self._value or now - self._seen > self._limit / 2:
            self._value, self._since = value, now
        self._seen = now
        return self._text.format(seconds=now - self._since) if now - self._since > self._limit else None


class _AwakeClock:
    """A clock of the seconds for which this process has run; it is read once in each period.

    Time while this process was stopped does not count for a command: its worker may have been stopped as well.
    """

    def __init__(self, period: float) -> None:
        self._period = period
        self._ran = 0.0
        self._seen = time.monotonic()

    def look(self, now: float) -> float:
        """Return the seconds up to `now`. An interval between two looks that is far too long counts as one period."""
        stretch, self._seen = now - self._seen, now
        self._ran += stretch if 0 <= stretch < STANDSTILL_PERIODS * self._period else self._period
        return self._ran


class _Places:
    """Descriptors that reserve places in this process's table for others that are on their way from the worker.

    The kernel drops a descriptor if the receiver's table has no place for it, and then the memory would not outlive its
    worker. So a place is reserved before memory is requested. If there is none, the caller gets an error, and nothing
    was requested.
    """

    def __init__(self, descriptor: int) -> None:
        self._copied = descriptor
        self._awaited: set[int] = set()
        self.held: list[int] = []
        """The reserved places."""

    def hold(self, address: int) -> None:
        """Reserve a place for the descriptor of the chunk at an address. Raises `OSError` if there is none."""
        self.held.append(os.dup(self._copied))
        self._awaited.add(address)

    def awaits(self, address: int) -> bool:
        """Return whether the descriptor of the chunk at an address is awaited."""
        return address in self._awaited

    def __enter__(self) -> None:
        """Free one of the places for the descriptor that is received in this block."""
        os.close(self.held.pop())

    def __exit__(self, *_exc_info: object) -> None:
        self._balance()

    def give_up(self, address: int) -> None:
        """Note that a descriptor has come, or is not awaited any more."""
        self._awaited.discard(address)
        self._balance()

    def _balance(self) -> None:
        """Hold as many places as descriptors are awaited, or as many as the system has."""
        while len(self.held) > len(self._awaited):
            os.close(self.held.pop())
        with contextlib.suppress(OSError):  # another thread took the place: the worker can send the descriptor again
            while len(self.held) < len(self._awaited):
                self.held.append(os.dup(self._copied))

    def close(self) -> None:
        """Release every place: nothing is awaited any more."""
        self._awaited.clear()
        self._balance()


_NO_PLACES = contextlib.nullcontext()


def _new_eventfd(undo: contextlib.ExitStack) -> int:
    descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    undo.callback(os.close, descriptor)
    return descriptor


def _overlap(first: Chunk, second: Chunk) -> bool:
    return first.address < second.address + second.size and second.address < first.address + first.size


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


@trio.lowlevel.enable_ki_protection
async def reap(process: WorkerProcess) -> None:
    """Kill a worker and wait until the kernel has reaped it. From then on it touches no memory."""
    process.kill()
    patience = Patience(REAP_TIMEOUT)
    while not process.reap():
        # A process that is readable and not reaped is held by a debugger, or one will reap it first.
        if not await patience.readable(process.pidfd) or patience.left <= 0:
            raise AtomrInternalError(f"worker {process.pid} was killed and not reaped within {REAP_TIMEOUT:g} s")


_WITH_RESULT = frozenset(
    {"module.load", "module.occupancy", "module.suggest_block", "memory.create_chunk", "event.elapsed"}
)
"""Operations whose messages must be read before their ticket is settled."""


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


class _ChunkOwner:
    """The owner of the creation of a chunk."""

    def __init__(self, generation: Generation, chunk: Chunk, spare: list[Chunk]) -> None:
        self._generation = generation
        self._arena = generation.arena
        self._chunk = chunk
        self._spare = spare

    def _take_back(self) -> None:
        for chunk in self._spare:
            chunk.offered = False

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        self._take_back()
        self._generation.await_no_more(self._chunk)
        if self._chunk.ticket == command.ticket:
            if error is None:
                self._chunk.state = ChunkState.READY
            else:
                self._arena.creation_failed(self._chunk)

    def command_lost(self, command: Command, error: DeviceError) -> None:
        self._take_back()


class _OpeningOwner:
    """The owner of opening a library ahead of time. No task waits for it; the first call opens one that failed."""

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Nothing to do."""

    def command_lost(self, command: Command, error: DeviceError) -> None:
        """Nothing to do."""


class _ReleaseOwner:
    """The owner of the release of a chunk that the arena has dropped."""

    def __init__(self, generation: Generation, chunk: Chunk, then: CommandOwner | None) -> None:
        self._generation = generation
        self._chunk = chunk
        self._then = then

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        then = self._then
        self._generation.let_go(
            self._chunk, None if then is None else lambda: then.command_finished(command, error, value)
        )

    def command_lost(self, command: Command, error: DeviceError) -> None:
        close_in_thread(self._chunk.part_with_descriptor(), [])
        if self._then is not None:
            self._then.command_lost(command, error)
