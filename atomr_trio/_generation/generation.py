"""One generation: a worker process, the commands published to it, and the handling of its end.

This file is about one worker. Mailboxes, the arena and the restart budget outlive it and belong to the device. A
generation is lost once, by `lose`, whatever noticed it. That cancels its scope, and the device then runs the fence:
kill, reap, read the counters one last time, settle.

A standby is a generation whose worker is ready and that has no number yet: the device gives it one when it takes over.

Every duty has a part, in a file of its own: `adoption` begins and ends the worker, `order` publishes, `sender` carries
records to the worker, `chunks` keeps the device memory, `inbox` reads what the worker says, `admission` knows the room,
`settler` tells owners of the end of their commands, `watch` notices a worker that is gone, and `output` logs what it
prints. They share the `Life`, which has the number and the state. This class makes them and puts them together.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs
import trio

from .._memory.arena import Arena, Block
from .._values.info import DeviceInfo
from .._values.lane_options import LaneOptions
from .._wire.channel import SharedMemory, TimelinePage
from .._wire.protocol import LANE_COMPUTE, MAX_LANES, WORKSPACES_WORD, Verb
from .._wire.records import context as context_records
from .._wire.ring import ORDERED_STORES, Ring
from .admission import Admission
from .adoption import Adoption
from .chunks import Chunks
from .inbox import Inbox
from .life import Event, Life
from .loss import Loss, MakeError
from .order import Order
from .output import OutputLog, WorkerOutput
from .process import WorkerProcess
from .sender import Sender
from .settler import Settler
from .timeline import Operand, Timeline, Unwatched
from .watch import Watch

if TYPE_CHECKING:
    from .services import ForeignOrder, Publish

_TOKENS = itertools.count(1)


class Generation(Life):
    """One worker in service: its life, and the parts that share it."""

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
        super().__init__(device, number, greeted=process.greeted)
        self.standbys = standbys
        """The device's standbys, which are told of every chunk."""
        self.process = process
        self.hang_timeout = hang_timeout
        with contextlib.ExitStack() as undo:
            self._wake = _new_eventfd(undo)
            self._bell = _new_eventfd(undo)
            self.page: TimelinePage = undo.enter_context(contextlib.closing(TimelinePage.new()))
            ring = undo.enter_context(contextlib.closing(Ring.new())) if with_ring else None
            undo.pop_all()
        self.ring: Ring | None = ring
        self.timeline: Timeline = Timeline(self.page, None if ring is None else ring.groups)
        self.token: int = next(_TOKENS) * MAX_LANES
        """Unique among the generations of all devices; see `Block.fast`."""
        self.over: trio.Event = trio.Event()
        """Set when its tasks have ended."""
        self.info: DeviceInfo | None = None
        self.modules: dict[int, int] = {}
        """The modules that its worker was told to load, by number: the ticket of a load under way, or 0."""
        self.called: set[tuple[str, int, int]] = set()
        """Functions of libraries that were called here before: the library, the lane, the function's number."""
        self.plans: set[tuple[int, int]] = set()
        """The plans that its worker was told to define, by lane and number."""
        self.opened: set[Verb] = set()
        """The verbs that open the libraries that were called here, or opened ahead of time; its standbys follow."""
        self.variables: dict[int, dict[str, int]] = {}
        """The addresses of the variables of each module that its worker has loaded."""
        self.graphs: dict[int, Any] = {}
        """The graphs that its worker was told to build, by number; `BuiltGraph` of the library of graphs."""
        self._interop: ForeignOrder | None = None

        self.sender: Sender = Sender(self, process, self.page, ring, self._bell)
        self.chunks: Chunks = Chunks(self, self.sender, arena, standbys, self.page.descriptor)
        self.log: OutputLog = OutputLog(self)
        self.output: WorkerOutput = WorkerOutput(process, self.log.line)
        self.inbox: Inbox = Inbox(self, process, self.sender, self.chunks, self.log)
        self.admission: Admission = Admission(self, self.timeline, self.chunks, self.sender)
        self.settler: Settler = Settler(
            self, self.timeline, self.page, self._wake, self.inbox, self.admission, self.chunks, spin
        )
        self.order: Order = Order(
            self,
            self.timeline,
            self.page,
            self.sender,
            self.chunks,
            self.settler.wake,
            self.token,
            lane_options,
        )
        self.watch: Watch = Watch(
            self, process, self.timeline, self.sender, self.chunks, self.inbox, self.settler, hang_timeout
        )
        self.settler.roused = self.watch.rouse
        self.adoption: Adoption = Adoption(
            self,
            process,
            self.timeline,
            self.sender,
            self.chunks,
            self.inbox,
            self.settler,
            self.output,
            self.log,
            staging=staging,
            wake=self._wake,
            bell=self._bell,
            spin=spin,
        )
        self.publish: Publish = self.order.publish  # the verb of most callers, without a call in between

    def __repr__(self) -> str:
        state = f"lost: {self.loss.reason}" if self.loss else "running"
        return f"<Generation {self.number} of device {self.device}, worker {self.process.pid}, {state}>"

    @property
    def refusing(self) -> bool:
        """True if it takes no requests any more: it is lost, or the device is being closed."""
        return self.sender.refusing

    @property
    def arena(self) -> Arena:
        """The device's arena; it exists once the first worker has reported the size of the memory."""
        return self.chunks.arena

    @arena.setter
    def arena(self, arena: Arena) -> None:
        self.chunks.arena = arena

    @property
    def interop(self) -> ForeignOrder | None:
        """Puts commands in order with other libraries of this process, once an array is shared with one."""
        return self._interop

    @interop.setter
    def interop(self, interop: ForeignOrder | None) -> None:
        self._interop = interop
        self.order.others = None if interop is None else _OrderHere(interop, self)

    # --- the beginning ------------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def start(self, show: Callable[[Generation], None] | None = None) -> None:
        """Wait until the worker is ready for records. Raises `StartFailed`, after `START_TIMEOUT` at the latest.

        From the moment that `show` is called with it, it must be told of every chunk that is added or removed.
        """
        await self.adoption.run(lambda: None if show is None else show(self))
        self.info = DeviceInfo._from_worker(self.device, self.process.backend, self.inbox.started)
        self.chunks.durable = self.info.durable

    def take_over(self, number: int) -> None:
        """Become generation `number`, with exactly the chunks that exist now."""
        self.number = number
        self.relieved.set()
        self.sender.send_control(context_records.SERVE)
        self.chunks.unmirror_dropped()

    @property
    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """The functions that run while the worker lives, each in a task."""
        return (
            self.inbox.run,
            self.sender.run,
            self.settler.run,
            self.output.run,
            self.watch.run_exit,
            self.watch.run_watchdog,
        )

    # --- what its worker has ------------------------------------------------------------------------------------------

    def note_opened(self, opening: Verb) -> None:
        """Note the first call of a library. The standbys open it too, so that no takeover waits for that."""
        self.opened.add(opening)
        for standby in self.standbys:
            standby.open_library(opening)

    def open_library(self, opening: Verb) -> None:
        """Make a standby's worker load a library and create its handle for the compute lane; the first call does if
        that fails."""
        if self.ready and opening not in self.opened:
            self.opened.add(opening)
            self.publish(LANE_COMPUTE, opening, b"", (), Unwatched())

    def close_lane(self, lane: int) -> None:
        """Make the worker close a lane, if it has it; all its commands must be finished."""
        if self.order.close_lane(lane):
            # The libraries' handles are destroyed with it, and its number will be used again.
            self.called.difference_update([call for call in self.called if call[1] == lane])
            self.plans = {place for place in self.plans if place[0] != lane}

    def drop_module(self, number: int) -> bool:
        """Forget a module. Returns whether its worker was told to load it, and so must be told to unload it."""
        self.variables.pop(number, None)
        return self.modules.pop(number, None) is not None

    def forget_plan(self, lane: int, number: int, engine: str) -> None:
        """Note that its worker does not have a plan any more."""
        self.plans.discard((lane, number))
        self.called.discard((engine, lane, number))

    def workspace_bytes(self) -> int:
        """Return the bytes of device memory that the plans of its worker have taken for their workspaces."""
        return self.page.words[WORKSPACES_WORD] if self.ready else 0

    @property
    def workspace_room(self) -> int:
        """The bytes that all workspaces of its worker may take in all."""
        return max(0, self.arena.limit - self.arena.reserved)

    def request_faults(self, faults: str, *, instead: bool = False) -> None:
        """Make the simulated driver of the worker fail, as ``atomr_cuda.injection`` describes.

        `instead` withdraws the faults that were requested before.
        """
        message = json.dumps({"faults": faults, "instead": instead}).encode()
        self.sender.send_control(context_records.INJECT, message)

    # --- the end ------------------------------------------------------------------------------------------------------

    def lose(self, loss: Loss) -> None:
        """End the generation, and note what was in flight. Only the first reason counts."""
        if self.loss is None:
            simulated = self.process.backend != "cuda"
            loss = attrs.evolve(loss, in_flight=self.timeline.in_flight(), simulated=simulated)
        super().lose(loss)

    def settle_reaped(self, make_error: MakeError) -> None:
        """Settle by the last readings: tickets that the counters cover succeeded; every other one gets a fresh error.

        Call it only after the reap and the rest of the output. Arrays that unfinished commands were writing are torn.
        """
        self.inbox.drain()
        self.settler.settle_finished()
        self.settler.settle_rest(make_error)

    def settle_faulted(self, make_error: MakeError) -> tuple[int, ...]:
        """Settle at once, when the driver itself has reported the loss and the next worker may serve before the reap.

        Returns the ticket that each lane had reached. Memory that later commands touch must not be used until the reap,
        because their copies may still write. They count as unfinished, even those that still complete.
        """
        self.inbox.drain()
        self.output.turn()
        reached = self.timeline.counters
        self.settler.settle_finished()
        self.settler.settle_rest(make_error)
        self.move(Event.BURIED)
        return reached

    def forget(self) -> None:
        """Close the copies of the descriptors in a forked child."""
        self.sender.refuse()
        self.process.forget()
        self.let_worker_go()

    def close(self) -> None:
        """Unmap the page and close the descriptors; the worker must have been reaped."""
        self.process.close()
        self.let_worker_go()

    def let_worker_go(self) -> None:
        """Unmap the page and close all descriptors but the worker process's own. It must have been reset or reaped."""
        self.move(Event.RELEASED)
        if self._interop is not None:
            self._interop.generation_over(self)
        self.page.close()
        if self.ring is not None:
            self.ring.close()
        self.sender.close()
        self.chunks.close()
        if self._wake >= 0:
            os.close(self._wake)
            os.close(self._bell)
            self._wake = self._bell = -1


class _OrderHere:
    """The order of the commands of one generation with other libraries."""

    def __init__(self, interop: ForeignOrder, generation: Generation) -> None:
        self._interop = interop
        self._generation = generation

    def order(self, lane: int, operands: Sequence[Operand], required: set[int]) -> None:
        self._interop.order(self._generation, lane, operands, required)

    def uses(self, block: Block) -> bool:
        return self._interop.uses(block)


def _new_eventfd(undo: contextlib.ExitStack) -> int:
    descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    undo.callback(os.close, descriptor)
    return descriptor
