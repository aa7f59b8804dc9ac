"""The short way of a launch into the ring.

The ordinary launch is of a loaded kernel, on arrays that only its lane has used since they were last checked
(`Block.fast`), with arguments of the usual types. It needs no question, no wait and no other command, so it goes
straight from its arguments into its slot: that takes a microsecond or two, where the general way takes thirty. A
`LaunchPath` makes, for each kernel, a function with all constant values precomputed. In every other case the function
returns false and has no effect, and the caller goes the general way. The functions of a kernel and of a prepared launch
begin and end with the same lines (``kernel_launches.py``) as that of a repeated call (``repeating.py``).

A launch keeps no object alive. A path finds the function of a kernel by the kernel's key, an object that is equal only
to itself. The function gets the kernel with each call, and is dropped when the kernel is collected.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy.typing as npt
import trio

from .._arrays.access import ReadOnly, Strided, Writes
from .._arrays.arrays import DeviceArray
from .._arrays.memory import DeviceMemory
from .._generation.core import DeviceCore, DevicePart
from .._generation.timeline import LaneBook, Launch, Launchable, LaunchOwner, Operand
from .._memory.arena import Block, ChunkState, Recipe, Ticket
from .._memory.peers import PeerBlock
from .._supervision.home import who_may_call
from .._supervision.mailbox import Mailbox
from .._transfers.transfers import Transfers
from .._values.errors import DeviceError
from .._values.parameters import Dimensions, Parameter
from .._values.signatures import KernelSignature
from .._values.statistics import Outcome
from .._wire.protocol import (
    BATCH_LIMIT,
    HEADER,
    LANE_COMPUTE,
    LANE_LIMIT,
    UNSIGNED,
    Role,
    counter_word,
)
from .._wire.records.module import LAUNCH
from .._wire.ring import MAX_RECORD
from .first_fills import FilledFirst, first_fill
from .kernel_launches import kernel_launcher, prepared_launcher
from .known import HostAnswer, KnownCall
from .repeating import (
    CallLauncher,
    FixedCall,
    RepeatedCall,
    SeriesCall,
    SeriesLauncher,
    call_launcher,
    fixed_launcher,
    new_launcher,
    series_launcher,
    words_of_call_launcher,
)

if TYPE_CHECKING:
    from .._generation.actor import Actor
    from .._generation.generation import Generation
    from .._generation.requests import CommandRequest
    from .._generation.sender import Sender
    from .._transfers.staging import Slot


class Kept(Protocol):
    """What a path keeps a function for."""

    @property
    def _key(self) -> object:
        """An object of its own, by which a path finds its function."""

    def _of(self, thing: Any) -> bool:
        """Return whether it is of this module or plan, and ends with it."""


class Launched(Launchable, Kept, Protocol):
    """What can go the short way: a kernel, a launch with its arguments bound, a repeated call of a library."""


class LaunchedKernel(Launched, Protocol):
    """A kernel. Its arguments are encoded with each launch."""

    signature: KernelSignature
    _number: int
    """Its number in the worker."""
    _record: struct.Struct
    """A whole record of a launch, from its number in the ring on."""
    _record_bytes: int
    """The bytes of the payload."""

    def _is_loaded(self, generation: Generation) -> bool:
        """Return whether it may be launched in the generation without another command or question."""

    def _known_dimensions(self, grid: Dimensions, block: Dimensions, shared: int) -> bytes | None:
        """Return checked dimensions as they are written; None if they are new or invalid."""


class LaunchedRecord(Launched, Protocol):
    """A launch whose record is always the same, with the memory that it reads and writes."""

    _payload: bytes
    _blocks: tuple[Block, ...]
    """Those that it writes, and behind them those that it reads. With their numbers the key changes."""
    _reads: tuple[Block, ...]
    _writes: tuple[Block, ...]
    _arguments: tuple[object, ...]

    @property
    def _operands(self) -> Sequence[Operand]:
        """Its access to memory."""


Launcher = Callable[[Any, Dimensions, Dimensions, int, tuple[object, ...], LaunchOwner], bool]
"""A function of its kernel or call, the grid, the block, the bytes of dynamic shared memory, the arguments, and the
owner, which is told of the end. A prepared launch has the grid and all up to its arguments itself, so zeros and
nothing are given for them."""

Call = TypeVar("Call", bound=RepeatedCall)

_LONGEST_PAYLOAD = MAX_RECORD - HEADER.size
_MARKED = (ReadOnly, Writes, Strided)
_FENCE_MASK = 15
"""A fence follows only every 16th launch that others follow (see ``ring.py``)."""


class LaunchPath:
    """The short way to one lane of one generation."""

    def __init__(
        self, generation: Generation, book: LaneBook, limit: int, *, unsigned: bool, followed: bool = True
    ) -> None:
        self.generation: Generation = generation
        self.sender: Sender = generation.sender
        self.book: LaneBook = book
        self.here: Callable[[], bool] = who_may_call()
        self.limit: int = limit
        """The most unfinished commands of the lane."""
        self.token: int = generation.token + book.index
        self.verb: int = LAUNCH.number | (UNSIGNED if unsigned else 0)
        self.fence_mask: int = _FENCE_MASK if unsigned and followed else 0
        """The fence follows a record whose number has none of these bits."""
        self.wakes: bool = unsigned
        """True if nobody looks for the end of a launch, so that the settler must know of it."""
        self.last_record: int = 0
        """Records up to this one may be sent without further checks: they have slots, and tickets, each of which
        takes a record. `Sender.close_short_ways` revokes it."""
        self.counter: int = counter_word(book.index)
        """The index in the page of the ticket that the lane has reached."""
        self.launchers: dict[object, Any] = {}
        """The launch functions, by the key of their kernel (`Launcher`) or call (`CallLauncher` or `NewLauncher`)."""
        self.moves: Any = None
        """Its fills and copies (`Moves`), once they are needed."""
        self._watches: dict[object, weakref.ref[Kept]] = {}
        """Weak references to those kernels and calls, by the same keys."""
        self.sender.short_ways.add(self)

    def look_again(self) -> bool:
        """Return whether one more launch may go this way, as things are now."""
        sender = self.sender
        room = sender.room(self.counter, self.book.issued, self.limit)
        self.last_record = sender.sent + room
        return room > 0

    def learn(self, kernel: LaunchedKernel) -> None:
        """Prepare the short way for a kernel, if its module is loaded and its parameters fit in a slot."""
        if kernel._key not in self.launchers and self._may_learn(kernel):
            self._keep(kernel, kernel_launcher(self, kernel))

    def learn_prepared(self, prepared: LaunchedRecord, kernel: LaunchedKernel) -> None:
        """Prepare the short way for a launch of `kernel` with its arguments bound."""
        if prepared._key not in self.launchers and self._may_learn(kernel):
            self._keep(prepared, prepared_launcher(self, prepared, kernel._record_bytes))

    def learn_call(self, call: KnownCall, memory: DeviceMemory) -> Any:
        """Prepare the short way for a repeated call of a library, and return it; None if it has none (yet).

        It is a `NewLauncher` for a call with a new result, and a `CallLauncher` for any other.
        """
        if self.sender.refusing or not call.may_be_short(self.generation, self.book.index):
            return None
        launcher = call_launcher(self, call) if call.new is None else new_launcher(self, call, memory)
        self._keep(call, launcher)
        return launcher

    def learn_series(self, series: SeriesCall, memory: DeviceMemory) -> SeriesLauncher | None:
        """Prepare the short way for a verb of several calls, and return it; None if it has none (yet)."""
        if self.sender.refusing or not self.book.open:  # the first command of a lane opens it
            return None
        if not all(part.may_be_short(self.generation, self.book.index) for part in series.parts):
            return None
        launcher = series_launcher(self, series, memory)
        self._keep(series, launcher)
        return launcher

    def learn_graph(self, launch: FixedCall) -> CallLauncher:
        """Prepare the short way for the launches of a graph that the worker has built, and return it."""
        return self.learned(launch, fixed_launcher)

    def learned(self, call: Call, make: Callable[[LaunchPath, Call], CallLauncher]) -> CallLauncher:
        """Return the short way of a call, which `make` makes if there is none yet."""
        launcher: CallLauncher | None = self.launchers.get(call._key)
        if launcher is None:
            launcher = make(self, call)
            self._keep(call, launcher)
        return launcher

    def admit(self, operands: Sequence[Operand]) -> bool:
        """Return whether a call on these need not wait for any other lane, and make them ready to be noted.

        It has no effect if it returns false: others would wait for a ticket that may never be issued. Arrays of another
        device, or of memory that is not the arena's, are left to the general way.
        """
        generation, lane, token = self.generation, self.book.index, self.token
        arena = generation.arena
        if arena.quarantine:
            return False
        reached, number = generation.timeline.reached, generation.number
        fills = 0
        for block, role in operands:
            if block.fast != token:
                known = block in arena.blocks or isinstance(block, PeerBlock)
                if not (known and self._is_free(block, role, reached)):
                    return False
                fills += block.recipe is not None
        if fills and not self.has_room(fills + 1):
            return False
        for block, role in operands:
            if block.fast != token:
                block.settle(number)
                if block.recipe is not None:
                    self._fill_first(block, block.recipe)
                    continue
                if role is not Role.READ:
                    block.written = True
                block.fast = 0
                generation.order.promote(block, lane)
        return True

    def admit_all(self, arguments: Sequence[object], parameters: Sequence[Parameter]) -> bool:
        """Make the arrays among a kernel's arguments its lane's alone, if no other lane has work on any of them.

        Returns whether something has changed, so that the launch may be tried again. An array that nothing has written
        yet is left to the general way if the kernel only reads it.
        """
        token, operands = self.token, []
        for argument, parameter in zip(arguments, parameters, strict=False):
            array = argument.array if isinstance(argument, _MARKED) else argument
            if type(array) is DeviceArray:
                block = array._storage.block
                if block.fast != token:
                    if not block.written and block.recipe is None and (parameter.reads or type(argument) is ReadOnly):
                        return False
                    operands.append((block, Role.WRITE))
        return bool(operands) and self.admit(operands)

    def take_over(self, blocks: Iterable[tuple[Block, int]]) -> bool:
        """Return whether blocks that go the short way on other lanes are idle, and let them go that on this one.

        It is a part of `admit`, and takes a quarter of the time.
        """
        generation = self.generation
        if generation.arena.quarantine or generation.order.others is not None:
            return False
        lane, token, reached = self.book.index, self.token, generation.timeline.reached
        for block, _ in blocks:
            writer, reader, readers = block.writer, block.reader, block.readers
            if (
                (writer is not None and writer[0] != lane and not reached(writer))
                or (reader is not None and reader[0] != lane and not reached(reader))
                or (readers and not all(each[0] == lane or reached(each) for each in readers.items()))
            ):
                return False
            block.fast = token
        return True

    def give_back(self, blocks: Iterable[tuple[Block, int]]) -> None:
        """Let blocks go the short way on the lanes that they were taken from, if they are intact and idle."""
        book, token, generation = self.book, self.token, self.generation
        idle, first = generation.timeline.reached((book.index, book.issued)), token - book.index
        for block, lane in blocks:
            if idle and block.fast == token:
                block.fast = first + lane
            else:
                generation.order.promote(block, lane)

    def has_room(self, count: int) -> bool:
        """Return whether so many records may go this way now."""
        last = self.sender.sent + count
        return last <= self.last_record or (self.look_again() and last <= self.last_record)

    def is_fresh(self, block: Block) -> bool:
        """Return whether no command has used a block yet, and only this lane may still work on its memory.

        Most new arrays are so. It is the same question as that of `admit`, and takes a fifth of the time.
        """
        if (
            block.written
            or block.freed
            or block.writer is not None
            or block.reader is not None
            or block.recipe is not None
            or block.lost is not None
            or block.chunk.state is not ChunkState.READY
            or block.peers
            or not self.book.open
        ):
            return False
        generation = self.generation
        if generation.arena.quarantine or generation.order.others is not None:
            return False
        if block.readers and block.epoch == generation.number:
            words, lane = self.sender.words, self.book.index
            for other, last in block.readers.items():
                if other != lane and words[counter_word(other)] < last:
                    return False
        return True

    def _fill_first(self, block: Block, recipe: Recipe) -> None:
        """Send the fill of a block that is free, ahead of the call that touches it. There is room."""
        found = first_fill(recipe)
        assert found is not None
        fill, count, bits = found
        mine = self.book.index, self.book.issued + 1
        owner = FilledFirst(block, recipe, mine)
        launcher = self.learned(fill, words_of_call_launcher)
        if not launcher(fill, (block,), owner, None, 0, (block.address, count, bits)):
            raise AssertionError("there was room for the record")
        recipe.ticket = mine[1]
        block.writer, block.readers, block.written, block.fast = mine, {}, True, self.token

    def _is_free(self, block: Block, role: Role, reached: Callable[[Ticket], bool]) -> bool:
        if (
            block.freed
            or block.lost is not None
            or block.torn is not None
            or block.chunk.state is not ChunkState.READY
            or (
                block.recipe is not None
                and (self.book.index != LANE_COMPUTE or bool(block.peers) or first_fill(block.recipe) is None)
            )
        ):
            return False
        others = self.generation.order.others
        if others is not None and others.uses(block):
            return False
        peers = self.generation.order.peers
        if block.peers and not (peers is not None and peers.takes_alone(block)):
            return False
        if block.epoch != self.generation.number:
            return True
        lane = self.book.index
        writer = block.writer
        if writer is not None and writer[0] != lane and not reached(writer):
            return False
        return role is Role.READ or all(each[0] == lane or reached(each) for each in block.last_uses().items())

    def _keep(self, what: Kept, launcher: Any) -> None:
        key, launchers, watches = what._key, self.launchers, self._watches

        def forget(_: object) -> None:  # in any thread, at any time
            launchers.pop(key, None)
            watches.pop(key, None)

        watches[key] = weakref.ref(what, forget)
        launchers[key] = launcher

    def forget(self, thing: Any) -> None:
        """Forget an unloaded module, or a dropped plan: what is of it goes the general way from now on."""
        for key, watch in list(self._watches.items()):
            what = watch()
            if what is not None and what._of(thing):
                self.launchers.pop(key, None)
                self._watches.pop(key, None)

    def close(self) -> None:
        """End the path. It breaks the reference cycle with the functions, which would otherwise outlive it."""
        self.launchers.clear()
        self.moves = None
        self._watches.clear()

    def _may_learn(self, kernel: LaunchedKernel) -> bool:
        return kernel._record_bytes <= _LONGEST_PAYLOAD and kernel._is_loaded(self.generation)


class AwaitedLaunch:
    """One launch that went the short way, and the task that waits for it.

    Its task polls for the end itself, if no other task does: that saves waking the settler first.
    """

    __slots__ = ("_abandoned", "_done", "_error", "_mailbox", "_path", "_task")

    def __init__(self, path: LaunchPath, mailbox: Mailbox | None) -> None:
        """`mailbox` is that of the actor whose statistics count it."""
        self._path = path
        self._mailbox = mailbox
        self._task: trio.lowlevel.Task | None = None
        self._done = self._abandoned = False
        self._error: DeviceError | None = None

    @trio.lowlevel.enable_ki_protection
    async def wait(self) -> None:
        """Wait until the launch has run, and raise its error. Cancelling works at once, whatever it is doing."""
        path = self._path
        settler = path.generation.settler
        try:
            if settler.begin_looking():
                try:
                    await settler.look(path.counter, path.book.issued)
                finally:
                    settler.end_looking(self)
            if not self._done:
                self._task = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._abort)  # a caller who is cancelled leaves at once
        except BaseException:
            self._abandoned = not self._done
            raise
        if self._error is not None:
            raise self._error

    def _abort(self, raise_cancel: Callable[[], Any]) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def launches_finished(self, count: int) -> None:
        """Wake the task: the launch has run, or failed alone."""
        self._end("ok" if self._error is None else "failed")

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Keep the error of a launch that failed alone; `launches_finished` follows."""
        self._error = error

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """Keep the error and wake the task: the generation was lost before the launch was seen to end."""
        self._error = error
        self._end("lost")

    def _end(self, kind: Outcome) -> None:
        self._done = True
        if self._mailbox is not None:
            self._mailbox.count_finished(1, "abandoned" if self._abandoned else kind)
        if self._task is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task)


class UnheardLaunches:
    """Counts the outcomes of launches that nobody waits for."""

    __slots__ = ("_mailbox",)

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    def launches_finished(self, count: int) -> None:
        """Count them for their actor."""
        self._mailbox.count_finished(count)

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Count it as failed; `launches_finished` follows."""
        self._mailbox.count_finished(1, "failed")
        self._mailbox.count_finished(-1)

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """Count them as lost."""
        self._mailbox.count_finished(count, "lost")


class AwaitedAnswer(AwaitedLaunch):
    """A call whose answer comes to the host in a slot. Its task leaves the slot when it does not wait any more."""

    __slots__ = ("slot",)

    def __init__(self, path: LaunchPath, mailbox: Mailbox, slot: Slot) -> None:
        super().__init__(path, mailbox)
        self.slot: Slot = slot

    def leave(self) -> None:
        """Release the slot, unless the call is not done: then its end does."""
        if self._done and self._error is None:
            self.slot.release()

    def _end(self, kind: Outcome) -> None:
        # A slot of a lost worker is released at once, so that it is kept back while the worker may write it.
        if self._abandoned or self._error is not None:
            self.slot.release()
        super()._end(kind)


class AwaitedLaunches(DevicePart):
    """The short way of a device's awaited launches, to its compute lane."""

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self.path: LaunchPath | None = None
        self.unheard_path: LaunchPath | None = None
        """The same for launches that nobody waits for. Those in quick succession share a ticket, as in a batch."""
        self._unheard: UnheardLaunches | None = None
        self.memory: DeviceMemory = device.part(DeviceMemory)
        self._staging = device.part(Transfers).staging

    def begin(
        self,
        what: Launched,
        grid: Dimensions,
        block: Dimensions,
        shared_bytes: int,
        arguments: tuple[object, ...],
        actor: Actor,
    ) -> AwaitedLaunch | None:
        """Launch the short way and return an object to wait for; None if the launch must go the general way.

        The short way is allowed only if it would be the actor's next request.
        """
        path, mailbox = self.path, actor.mailbox
        if path is None or mailbox.posted != mailbox.taken or actor.current is not None:
            return None
        launcher = path.launchers.get(what._key)
        if launcher is None:
            return None
        awaited = AwaitedLaunch(path, mailbox)
        return awaited if launcher(what, grid, block, shared_bytes, arguments, awaited) else None

    def learn(self, kernel: LaunchedKernel, request: CommandRequest, prepared: LaunchedRecord | None = None) -> None:
        """Prepare the short way for the next launch of a kernel, after a `request` that went the general way."""
        path = self.present_path() if request.lane == LANE_COMPUTE else None
        if path is not None:
            path.learn(kernel)
            if prepared is not None:
                path.learn_prepared(prepared, kernel)
            path.generation.order.promote_all(request.blocks(), LANE_COMPUTE)

    def begin_graph(self, launch: RepeatedCall, kept: tuple[object, ...]) -> AwaitedLaunch | None:
        """Launch a graph the short way and return an object to wait for; None if it must go the general way."""
        path, actor = self.path, self.device.module_actor
        if path is None or actor.mailbox.posted != actor.mailbox.taken or actor.current is not None:
            return None
        launcher: CallLauncher | None = path.launchers.get(launch._key)
        if launcher is None:
            return None
        awaited = AwaitedLaunch(path, actor.mailbox)
        return awaited if launcher(launch, kept, awaited) else None

    def begin_unheard(self, launch: RepeatedCall, kept: tuple[object, ...]) -> bool:
        """Launch a graph the short way that nobody waits for; return false if it must go the general way."""
        path, actor = self.unheard_path, self.device.module_actor
        if path is None or actor.mailbox.posted != actor.mailbox.taken or actor.current is not None:
            return False
        launcher: CallLauncher | None = path.launchers.get(launch._key)
        if launcher is None:
            return False
        if self._unheard is None:
            self._unheard = UnheardLaunches(actor.mailbox)
        return launcher(launch, kept, self._unheard)

    @trio.lowlevel.enable_ki_protection
    async def repeat(self, call: KnownCall, arrays: tuple[DeviceArray, ...]) -> object:
        """Make a library's call once more, and wait until it is done. Returns its result.

        Returns None, and does nothing, for a call with an answer that cannot go the short way now.
        """
        actor = self.device.actor_of(call.kind.later)
        await trio.lowlevel.checkpoint_if_cancelled()
        new, mailbox = call.new, actor.mailbox
        path = self.path or self.present_path()
        if path is not None and mailbox.posted == mailbox.taken and actor.current is None:
            launcher = path.launchers.get(call._key) or path.learn_call(call, self.memory)
            if launcher is not None:
                if call.answer is not None:
                    return await self._answered(call, call.answer, arrays, path, mailbox, launcher)
                awaited = AwaitedLaunch(path, mailbox)
                if new is None:
                    if launcher(call, arrays, awaited):
                        await awaited.wait()
                        return call.result(arrays)
                else:
                    result: DeviceArray | None = launcher(call, arrays, awaited)
                    if result is not None:
                        await awaited.wait()
                        return result
        if call.answer is not None:
            return None
        request, made = call.again(self.device, arrays, LANE_COMPUTE)
        await actor.mailbox.ask(request)
        path = self.present_path()
        if path is not None:
            path.generation.order.promote_all(request.blocks(), LANE_COMPUTE)
        return made

    async def _answered(
        self,
        call: KnownCall,
        answer: HostAnswer,
        arrays: tuple[DeviceArray, ...],
        path: LaunchPath,
        mailbox: Mailbox,
        launcher: CallLauncher,
    ) -> npt.NDArray[Any] | None:
        """Make a call with an answer, and wait for it; None if it cannot go this way now."""
        if not self._staging.has_free(answer.nbytes):
            return None
        awaited = AwaitedAnswer(path, mailbox, self._staging.acquire_nowait(answer.nbytes))
        if not launcher(call, arrays, awaited, None, awaited.slot.place):
            awaited.slot.release()
            return None
        try:
            await awaited.wait()
            value = answer.new()
            error = answer.fetch(awaited.slot, value)
        finally:
            awaited.leave()
        if error is not None:
            raise error
        return value

    def generation_lost(self, number: int) -> None:
        """Drop the paths into a lost generation."""
        paths = self.path, self.unheard_path
        self.path = self.unheard_path = None
        for path in paths:
            if path is not None:
                path.close()

    def present_path(self) -> LaunchPath | None:
        """Return the path into the generation in service, if it has one."""
        generation = self._reachable()
        if generation is None:
            return None
        if self.path is None or self.path.generation is not generation:
            book = generation.timeline.book(LANE_COMPUTE)
            self.path = LaunchPath(generation, book, LANE_LIMIT, unsigned=False)
        return self.path

    def present_unheard_path(self) -> LaunchPath | None:
        """Return the path of launches that nobody waits for into the generation in service, if it has one."""
        generation = self._reachable()
        if generation is None:
            return None
        if self.unheard_path is None or self.unheard_path.generation is not generation:
            book = generation.timeline.book(LANE_COMPUTE)
            self.unheard_path = LaunchPath(generation, book, LANE_LIMIT, unsigned=True, followed=False)
        return self.unheard_path

    def _reachable(self) -> Generation | None:
        generation = self.device.current
        return None if generation is None or generation.refusing or generation.ring is None else generation


class BatchPaths(DevicePart):
    """The short way of a device's batches, to its compute lane. All batches of a generation have the same one.

    To learn what it knows takes a tenth of a millisecond for each kernel, and most batches launch what others launched.
    Batches of other lanes have their own: a lane that is closed leaves its number to another.
    """

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self._paths: tuple[LaunchPath, LaunchPath] | None = None

    def of(self, generation: Generation) -> tuple[LaunchPath, LaunchPath]:
        """Return the paths of calls and of ends into a generation that has a ring."""
        paths = self._paths
        if paths is None or paths[0].generation is not generation:
            paths = self._paths = batch_paths(generation, LANE_COMPUTE)
        return paths

    def generation_lost(self, number: int) -> None:
        """Drop the paths into a lost generation."""
        paths, self._paths = self._paths, None
        for path in paths or ():
            path.close()


def batch_paths(generation: Generation, lane: int) -> tuple[LaunchPath, LaunchPath]:
    """Return the short ways of a batch's calls to a lane, whose ends nobody waits for, and of its own end."""
    book = generation.timeline.book(lane)
    calls = LaunchPath(generation, book, BATCH_LIMIT, unsigned=True)
    return calls, LaunchPath(generation, book, BATCH_LIMIT, unsigned=False)
