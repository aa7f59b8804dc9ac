"""The commands of a batch: sent at once in the caller's task, kept until their end is known, and heard in order.

The verbs of a batch, the public ones and those of libraries, end here. Nothing here waits: what has no room is refused
with `trio.WouldBlock`, and `flush` is what waits.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
import trio

from .._arrays.arrays import DeviceArray, check_host, check_usable
from .._arrays.memory import DeviceMemory
from .._generation.core import DeviceCore
from .._generation.generation import Generation
from .._generation.requests import CallKind, CommandRequest
from .._generation.timeline import LaneBook, Launch, the_lane
from .._supervision.mailbox import Mailbox
from .._transfers.batch_areas import BatchSlots
from .._transfers.batch_copies import BatchCopies, BatchCopy, SingleBatchCopy
from .._transfers.copies import take_by_helpers
from .._transfers.copy_plan import THREAD_BYTES, Way
from .._transfers.memory import tear_halves
from .._transfers.transfers import Transfers
from .._values.errors import ContextLost, DeviceClosed, DeviceError, DeviceFailed, InvalidArgument, fresh
from .._values.util import known
from .._wire.protocol import BATCH_COMMANDS, BATCH_LIMIT, LANE_COMPUTE, LANE_COPY_IN, LANE_COPY_OUT
from .._wire.records.event import MARK
from .batch_ends import OPERATION, AwaitedEnd
from .known import HostAnswer, KnownCall
from .launching import BatchPaths, LaunchPath, batch_paths
from .moves import Moves, moves_of

if TYPE_CHECKING:
    from .._transfers.staging import Slot
    from .repeating import CallLauncher


class _Mark(CommandRequest):
    """The end of what a batch has sent to a lane so far, in the general way."""

    __slots__ = ()

    def __init__(self, lane: int) -> None:
        super().__init__(MARK, b"", (), lane=lane, operation=OPERATION)


class ShortLaunches:
    """Receives the outcomes of a batch's launches that went the short way."""

    __slots__ = ("errors", "mailbox")

    def __init__(self, mailbox: Mailbox, errors: list[DeviceError]) -> None:
        self.mailbox: Mailbox = mailbox
        self.errors: list[DeviceError] = errors
        """The errors of the batch, which no other has."""

    def launches_finished(self, count: int) -> None:
        """Count them for their actor."""
        self.mailbox.count_finished(count)

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Keep the error for `flush`."""
        self.mailbox.count_finished(1, "failed")
        self.mailbox.count_finished(-1)  # `launches_finished` follows, and counts it as one that has not failed
        self.errors.append(error)

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """Count them: the end of the batch reports the loss, since the mark behind the launches is lost as well."""
        self.mailbox.count_finished(count, "lost")
        if not any(isinstance(each, ContextLost) for each in self.errors):
            self.errors.append(error)


class ShortAnswer(ShortLaunches):
    """Receives the outcome of one call that went the short way, and its answer."""

    __slots__ = ("_answer", "_failed", "_slot", "value")

    def __init__(self, mailbox: Mailbox, errors: list[DeviceError], answer: HostAnswer, slot: Slot) -> None:
        self.mailbox = mailbox  # a call of `ShortLaunches.__init__` would take as long as all of these
        self.errors = errors
        self._answer = answer
        self._slot = slot
        self._failed = False
        self.value: npt.NDArray[Any] = answer.new()
        """The array that takes the answer."""

    def launches_finished(self, count: int) -> None:
        """Take the answer, unless the call has failed."""
        super().launches_finished(count)
        error = None if self._failed else self._answer.fetch(self._slot, self.value)
        self._slot.release()
        if isinstance(error, DeviceError):
            self.errors.append(error)

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Keep the error for `flush`."""
        super().launch_failed(launch, error)
        self._failed = True

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """Count it, and release the slot now, so that it is kept back while the worker may write it."""
        super().launches_lost(count, error)
        self._slot.release()


Owner = TypeVar("Owner", bound=ShortLaunches)


class BatchSender:
    """Sends the calls of one batch to its lane, in the generation that it was entered in."""

    def __init__(self, device: DeviceCore, lane: int) -> None:
        self.device: DeviceCore = device
        self.lane: int = lane
        self.ordered: bool = True
        """False if its lane waits for nothing, and nothing for it."""
        self.over: bool = False
        self.launched: bool = False
        """True if the end of a call may be told only with that of one that follows."""
        self.generation: Generation | None = None
        self.path: LaunchPath | None = None
        """The short way, where there is one."""
        self.signed_path: LaunchPath | None = None
        """That of ends and events, which have tickets of their own."""
        self._end: AwaitedEnd | None = None
        """The last one that was sent by it."""
        self.launchers: dict[object, Any] = {}
        """Its functions; none without one."""
        self.slots: BatchSlots = BatchSlots(device.part(Transfers).batch_areas)
        self._staging = device.part(Transfers).staging
        self.memory: DeviceMemory = device.part(DeviceMemory)
        self._requests: collections.deque[CommandRequest | SingleBatchCopy | BatchCopy] = collections.deque()
        self._copies: BatchCopies | None = None
        self._calls = 0
        """The number of calls that sent those."""
        self._errors: list[DeviceError] = []
        self.launches: ShortLaunches = ShortLaunches(device.module_actor.mailbox, self._errors)
        self.memory_launches: ShortLaunches = ShortLaunches(device.memory_actor.mailbox, self._errors)
        self.moves: Moves | None = None
        """The short way of fills and copies, where there is one."""
        self._owners: dict[str, ShortLaunches] = {}
        self._special: dict[tuple[object, str], ShortLaunches] = {}
        self.owners: dict[object, Any] = {}
        """What receives the outcomes of a call on the short way, where that is of a class of its own, by its key."""

    @trio.lowlevel.enable_ki_protection
    async def enter(self, *, ordered: bool) -> None:
        """Wait until the device runs, and no lost worker touches its memory any more."""
        self.ordered = ordered
        generation = self.device.serving
        if generation is None or generation.refusing:
            generation = await self.device.running_generation()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()  # the turn is that of the end
            self.device.check_open()
        while generation.arena.quarantine:  # verbs of a batch cannot wait for that
            await self.device.changed.wait()
            generation = await self.device.running_generation()
        self.generation = generation
        if generation.ring is not None and ordered:
            if self.lane == LANE_COMPUTE:
                self.path, self.signed_path = self.device.part(BatchPaths).of(generation)
            else:
                self.path, self.signed_path = batch_paths(generation, self.lane)
            self.launchers = self.path.launchers
            self.moves = moves_of(self.path, self.device)

    @trio.lowlevel.enable_ki_protection
    def close(self) -> None:
        """End the batch: calls that were sent go on, and their outcomes are dropped."""
        self.over = True
        self.launchers = {}
        self.moves = None
        if self.lane != LANE_COMPUTE:
            for path in (self.path, self.signed_path):
                if path is not None:
                    path.close()
        for request in self._requests:
            request.drop()
            request.siblings = ()
        self._requests.clear()
        self.slots.close()

    @trio.lowlevel.enable_ki_protection
    async def flush(self) -> None:
        """Wait for everything that was sent, and until there is room for more; see `Batch.flush`."""
        generation = self.check()
        await self._hear_all(generation)
        lanes = {self.lane, LANE_COMPUTE, LANE_COPY_IN, LANE_COPY_OUT}
        while generation.loss is None and not all(generation.admission.has_room_for_batch(lane, 1) for lane in lanes):
            await generation.admission.wait_room(None)  # others use the lanes as well
        self._raise_errors()

    @trio.lowlevel.enable_ki_protection
    async def finish(self) -> None:
        """Wait for everything that was sent. Raises as `flush` does."""
        await self._hear_all(self.check())
        self._raise_errors()

    async def _hear_all(self, generation: Generation) -> None:
        # A flush that was cancelled has left an end behind, which another one waits for too.
        pending = self.launched or (self._end is not None and not self._end.over)
        end = AwaitedEnd.sent(self.signed_path) if pending and self.signed_path is not None else None
        if end is not None:
            self._end, self.launched = end, False
            await self._hear_end(end)
        else:
            if pending:
                while not generation.admission.has_room_for_batch(self.lane, 1):
                    await generation.admission.wait_room(self.lane)
                    self.check()
                self._begin(_Mark(self.lane), generation)
                self.launched = False
            await trio.lowlevel.checkpoint()
        held = 0
        while self._requests:
            first = self._requests[0]
            if not first.answered:
                await first.wait_answered()
            burden = first.burden
            if burden >= THREAD_BYTES:
                await take_by_helpers(self._requests)
                burden = first.burden
            held += burden
            self._hear_first()
            if held >= THREAD_BYTES:
                held = 0
                await trio.lowlevel.checkpoint()

    def _raise_errors(self) -> None:
        """Raise the first error, if there are any, and forget them all."""
        if self._errors:
            first, *others = self._errors
            self._errors.clear()
            for other in others[:3]:
                first.add_note(f"and: {other}")
            raise first

    async def _hear_end(self, end: AwaitedEnd) -> None:
        try:
            await end.wait()
        except ContextLost as lost:
            if not any(isinstance(each, ContextLost) for each in self._errors):
                self._errors.append(lost)

    def check(self) -> Generation:
        """Return the generation that takes a call now. Raises an error if the batch takes none."""
        if self.generation is None or self.over:
            raise InvalidArgument("a batch takes calls only inside its `async with` block", device=self.device.index)
        self.device.check_open()
        if self.generation.loss is not None:
            raise self.generation.loss.error(self.device.index, self.generation.number)
        return self.generation

    def check_copy(self, array: DeviceArray, host: npt.NDArray[Any], *, writable: bool = False) -> None:
        """Raise what `check`, `check_usable` and `check_host` raise, in a third of their time if it is nothing."""
        device, generation = self.device, self.generation
        if (
            self.over
            or generation is None
            or generation.loss is not None
            or device.ended is not None
            or not device.home.here()
        ):
            self.check()
        storage = getattr(array, "_storage", None)  # it may be anything
        if storage is None or storage.device is not device or storage.block.freed:
            check_usable(device, array)
        if (
            type(host) is not np.ndarray
            or host.shape != array.shape
            or host.dtype is not array.dtype
            or (writable and not host.flags.writeable)
        ):
            check_host(array, host, writable=writable)

    # --- sending ------------------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    def repeat(self, call: KnownCall, arrays: tuple[DeviceArray, ...]) -> object:
        """Send a library's call once more. Returns its result.

        Returns None, and does nothing, for a call with an answer that cannot go the short way now.
        """
        try:
            launcher = self.launchers[call._key]
        except KeyError:
            launcher = None
            if self.path is not None and not self.over:
                launcher = self.path.learn_call(call, self.memory)
        answer = call.answer
        if launcher is not None:
            owner = self._owners.get(call._engine) or self._owner_of(call)
            if call.new is not None:
                result: DeviceArray | None = launcher(call, arrays, owner)
                if result is not None:
                    self.launched = True
                    return result
            elif answer is not None:
                return self._answered(call, answer, arrays, launcher)
            elif launcher(call, arrays, owner):
                self.launched = True
                place = call.place
                return arrays[place] if type(place) is int else call.result(arrays)
        if answer is not None:
            return None
        self._check_room(self.lane, 1)
        request, found = call.again(self.device, arrays, self.lane)
        generation = self.send(request)
        if self.path is not None:
            generation.order.promote_all(request.blocks(), self.lane)
        return found

    def _answered(
        self, call: KnownCall, answer: HostAnswer, arrays: tuple[DeviceArray, ...], launcher: CallLauncher
    ) -> npt.NDArray[Any] | None:
        """Send a call with an answer, whose array is set when it is done; None if it cannot go this way now."""
        slot = self._staging.acquire_for_batch(answer.nbytes)
        if slot is None:
            return None
        mailbox = self._owners[call._engine].mailbox
        owner = ShortAnswer(mailbox, self._errors, answer, slot)
        if not launcher(call, arrays, owner, None, slot.place):
            slot.release()
            return None
        self.launched = True
        return owner.value

    def _owner_of(self, call: KnownCall) -> ShortLaunches:
        owner = self._owners.get(call._engine)
        if owner is None:
            mailbox = self.device.actor_of(call.kind.later).mailbox
            owner = self._owners[call._engine] = ShortLaunches(mailbox, self._errors)
        return owner

    def owner(self, kind: CallKind, make: Callable[[Mailbox, list[DeviceError]], Owner]) -> Owner:
        """Return what receives the outcomes of calls of this engine on the short way, of a class of its own."""
        key = make, kind.later.engine
        owner = self._special.get(key)
        if owner is None:
            owner = self._special[key] = make(self.mailbox_of(kind), self._errors)
        return owner  # type: ignore[return-value]

    def mailbox_of(self, kind: CallKind) -> Mailbox:
        """Return the mailbox whose statistics count calls of this kind."""
        return self.device.actor_of(kind.later).mailbox

    @property
    def errors(self) -> list[DeviceError]:
        """The errors that the end of the batch will raise."""
        return self._errors

    @trio.lowlevel.enable_ki_protection
    def copy(self, array: DeviceArray, host: npt.NDArray[Any], way: Way) -> bool:
        """Copy between two checked arrays by the short way; return false if it has to go the general way.

        The caller has called `check`.
        """
        copies, requests = self._copies, self._requests
        if copies is None:
            generation = known(self.generation, "a batch that takes calls was entered")
            copies = self._copies = BatchCopies(self.device, generation, self.slots)
        if requests and requests[0].answered:
            self.hear_answered()
        copy = copies.plan(array, host, way)
        if copy is None:
            return False
        book = copy.path.book
        if self._calls + len(book.launches) + len(book.in_flight) >= BATCH_LIMIT:
            self._check_room(way.lane, copy.count)
        copies.send(copy)
        requests.append(copy)
        self._calls += 1
        return True

    @trio.lowlevel.enable_ki_protection
    def send(self, request: CommandRequest) -> Generation:
        """Send a call that is one command."""
        try:
            generation = self._check_room(request.lane, 1)
            if generation.admission.waits_for_peers(request):
                raise generation.admission.refusal(request)
            if request.takes_slot:
                request.equip(self.slots.acquire)
            self._begin(request, generation)
        except BaseException:
            if not request.sent:
                request.drop()
            raise
        return generation

    @trio.lowlevel.enable_ki_protection
    def send_all(self, requests: Sequence[CommandRequest]) -> None:
        """Send the commands of one call, all of them. If there is no room, send none and raise `WouldBlock`."""
        if len(requests) == 1:
            self.send(requests[0])
            return
        for request in requests:
            request.siblings = requests
        try:
            self.slots.check(sum(request.slot_bytes for request in requests if request.takes_slot))
            for lane in {request.lane for request in requests}:
                generation = self._check_room(lane, len(requests))
            for request in requests:
                if generation.admission.waits_for_peers(request):
                    raise generation.admission.refusal(request)
            for request in requests:
                if request.takes_slot:
                    request.equip(self.slots.acquire)
            for request in requests:
                self._begin(request, generation)
        except BaseException as error:
            tear_halves(requests, error, None)
            for request in requests:
                if not request.sent:
                    request.drop()
                    request.siblings = ()
            raise

    def _check_room(self, lane: int, count: int) -> Generation:
        """Return the generation if a call of `count` commands has room in the lane; else raise `trio.WouldBlock`."""
        generation = self.check()
        if self._requests and self._requests[0].answered:
            self.hear_answered()
        book = generation.timeline.book(lane)
        few = self._calls + len(book.launches) < BATCH_LIMIT or self._unfinished_calls(book) < BATCH_LIMIT
        if not (few and generation.admission.has_room_for_batch(lane, count)):
            self._refuse(generation, book, count)
        return generation

    def _refuse(self, generation: Generation, book: LaneBook, count: int) -> NoReturn:
        """Raise the error for a call of `count` commands that has no room in the lane now, or can never have any."""
        if count > BATCH_COMMANDS:
            raise InvalidArgument(
                f"the call needs {count} commands, and a batch takes at most {BATCH_COMMANDS} at a time",
                device=self.device.index,
                generation=generation.number,
                advice="await the call outside of the batch, or split it.",
            )
        raise trio.WouldBlock(
            f"{self._unfinished_calls(book)} calls of the batch are unfinished, {book.unfinished} commands of "
            f"{the_lane(book.index)} in all; a batch takes {BATCH_LIMIT} calls, and a lane {BATCH_COMMANDS} "
            "commands: `await batch.flush()` makes room"
        )

    def _unfinished_calls(self, book: LaneBook) -> int:
        """Return the number of the batch's unfinished calls that may be in this lane."""
        own = self._errors
        return self._calls + sum(getattr(launch[1], "errors", None) is own for launch in book.launches)

    def _begin(self, request: CommandRequest, generation: Generation) -> None:
        """Begin a request, and keep it until its end is known."""
        order = generation.order
        order.for_batch, order.shares_tickets = True, request.lane == self.lane and self.path is not None
        try:
            self.device.actor_of(request.verb).begin(request, generation)
        finally:
            order.for_batch = order.shares_tickets = False
        if request.verb.shares:
            self.launched = True
        self._requests.append(request)
        if not request.siblings or request.siblings[0] is request:
            self._calls += 1

    # --- hearing ------------------------------------------------------------------------------------------------------

    def hear_answered(self) -> None:
        """Take the outcomes of the oldest requests, which also gives their slots back, unless that takes long."""
        left = THREAD_BYTES
        while self._requests and self._requests[0].answered and self._requests[0].burden < left:
            left -= self._requests[0].burden
            self._hear_first()

    def _hear_first(self) -> None:
        """Take the outcome of the oldest request, which is settled and which no task waits for."""
        request = self._requests.popleft()
        if not request.siblings or request.siblings[0] is request:
            self._calls -= 1
        self._hear(request)

    def _hear(self, request: CommandRequest | SingleBatchCopy | BatchCopy) -> None:
        error = request.error
        if error is None:
            try:
                request.take()
            except DeviceError as found:  # the answer reports an error of the call
                self._errors.append(found)
        elif isinstance(error, ContextLost | DeviceFailed | DeviceClosed):  # one error for all calls that it has ended
            first = next((each for each in self._errors if isinstance(each, type(error))), None)
            if first is None:
                first = fresh(error)
                self._errors.append(first)
            if first.position is None and request.position is not None:
                first.position = request.position()
        elif isinstance(error, DeviceError):
            tear_halves(request.siblings, error, request)
            self._errors.append(error)
        request.siblings = ()  # they refer to it in turn: break the cycle
