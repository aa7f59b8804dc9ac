"""Many calls, one wait: `Device.batch`.

A batch has the verbs of the device without ``await``. Each is checked and sent at once, in the caller's task; leaving
the block waits for all of them. So a call costs only its record. The ordinary launch is of a loaded kernel, on arrays
that only this lane has used since they were last checked (`Block.fast`). It goes straight from its arguments into the
ring (``_calls/launching.py``). Everything else takes the way of an awaited call, without the mailbox.

A batch belongs to its generation. When that is lost, every later verb and the end of the block raise `ContextLost`.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, Unpack, final

import numpy as np
import numpy.typing as npt
import trio

from ._arrays.arrays import DeviceArray, as_host, check_host, check_like
from ._arrays.ownership import own
from ._calls.known import KnownCall
from ._calls.launching import Launcher, LaunchPath
from ._generation.requests import CommandRequest
from ._generation.timeline import LaneBook, Launch, the_lane
from ._libraries import BatchLibraries
from ._supervision.mailbox import Mailbox
from ._transfers.batch_areas import BatchSlots
from ._transfers.copies import THREAD_BYTES, plan_copy, plan_copy_in, plan_copy_out, take_by_helpers
from ._transfers.memory import plan_fill, tear_halves
from ._values.errors import ContextLost, DeviceClosed, DeviceError, DeviceFailed, InvalidArgument, fresh
from ._values.util import NoPublicConstructor
from ._wire.protocol import BATCH_COMMANDS, BATCH_LIMIT, LANE_COMPUTE, LANE_COPY_IN, LANE_COPY_OUT
from ._wire.records.event import MARK
from .libraries.modules.kernel import (
    ORDINARY,
    AttributeKeywords,
    Dimensions,
    Kernel,
    LaunchKeywords,
    Overwrites,
    PreparedLaunch,
    ReadOnly,
    _options,
    names_nothing,
)

if TYPE_CHECKING:
    from ._device import Device
    from ._generation.generation import Generation
    from .libraries.graphs.graph import Graph
    from .libraries.lanes.verbs import Event, Lane


_LAUNCHED: Final = "launch takes a kernel or a prepared launch"


class _Mark(CommandRequest):
    """The end of what a batch has sent to a lane so far."""

    __slots__ = ()

    def __init__(self, lane: int) -> None:
        super().__init__(MARK, b"", (), lane=lane, operation="the end of a batch")


class _ShortLaunches:
    """Receives the outcomes of a batch's launches that went the short way."""

    __slots__ = ("_errors", "_mailbox")

    def __init__(self, mailbox: Mailbox, errors: list[DeviceError]) -> None:
        self._mailbox = mailbox
        self._errors = errors

    def launches_finished(self, count: int) -> None:
        """Count them for their actor."""
        self._mailbox.count_finished(count)

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Keep the error for `flush`."""
        self._mailbox.count_finished(1, "failed")
        self._mailbox.count_finished(-1)  # `launches_finished` follows, and counts it as one that has not failed
        self._errors.append(error)

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """Count them: the end of the batch reports the loss, since the mark behind the launches is lost as well."""
        self._mailbox.count_finished(count, "lost")
        if not any(isinstance(each, ContextLost) for each in self._errors):
            self._errors.append(error)


@final
class Batch(BatchLibraries, metaclass=NoPublicConstructor):
    """Many calls and one wait for all of them, made by `Device.batch`.

    The verbs are those of the device, its kernels and arrays, without ``await``: each checks its arguments, is sent at
    once, and is in order with everything else. Results are valid when the block has been left, or `flush` has returned.
    An error that only the worker can find is raised there too, and names the call.
    """

    __slots__ = (
        "__weakref__",
        "_calls",
        "_device",
        "_errors",
        "_generation",
        "_lane",
        "_lane_held",
        "_launched",
        "_launchers",
        "_over",
        "_owners",
        "_path",
        "_requests",
        "_short_launches",
        "_slots",
    )

    _made_by = "`async with dev.batch()`"

    def __init__(self, device: Device, lane: Lane) -> None:
        super().__init__()
        self._device = device
        self._lane = lane._number
        self._lane_held = lane
        self._over = False
        self._generation: Generation | None = None
        self._path: LaunchPath | None = None
        self._launchers: dict[object, Launcher] = {}
        self._launched = False
        self._requests: collections.deque[CommandRequest] = collections.deque()
        self._calls = 0
        """The number of calls that sent those."""
        self._slots = BatchSlots(device._batch_areas)
        self._errors: list[DeviceError] = []
        self._short_launches = _ShortLaunches(device._module_mailbox, self._errors)
        self._owners: dict[str, _ShortLaunches] = {}

    def __repr__(self) -> str:
        number = self._generation.number if self._generation is not None else 0
        return f"<Batch on device {self._device.index}, generation {number}{', ended' if self._over else ''}>"

    # --- its life -----------------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Self:
        """Wait until the device runs, and no lost worker touches its memory any more.

        Raises `DeviceFailed` or `DeviceClosed`.
        """
        self._device._home.check_task()
        if self._generation is not None:
            raise InvalidArgument("a batch can be entered only once: make another one with dev.batch()")
        generation = await self._device._running_generation()
        while generation.arena.quarantine:  # verbs of a batch cannot wait for that
            await self._device._generation_changed.wait()
            generation = await self._device._running_generation()
        self._generation = generation
        self._lane_held._batches += 1
        book = generation.timeline.book(self._lane)
        if generation.ring is not None and self._lane_held.ordered:
            self._path = LaunchPath(generation, book, BATCH_LIMIT, unsigned=True)
            self._launchers = self._path.launchers
        return self

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for everything. If an exception leaves the block, do not wait: the calls that were sent go on."""
        self._device._home.check_task()
        try:
            if error is None:
                await self.flush()
        finally:
            self._over = True
            self._lane_held._batches -= 1
            if self._path is not None:
                self._path.close()
            self._libraries.clear()
            for request in self._requests:
                request.drop()
                request.siblings = ()
            self._requests.clear()
            self._slots.close()

    @trio.lowlevel.enable_ki_protection
    async def flush(self) -> None:
        """Wait until every call sent so far is done, and there is room for more.

        Raises the first error of a call that failed, which names it; `ContextLost` if the generation was lost. Each
        error is raised once.
        """
        self._device._home.check_task()
        generation = self._check()
        if self._launched:
            while not generation.admission.has_room_for_batch(self._lane, 1):
                await generation.admission.wait_room(self._lane)
                self._check()
            self._begin(_Mark(self._lane), generation)
            self._launched = False
        await trio.lowlevel.checkpoint()
        held = 0
        while self._requests:
            first = self._requests[0]
            await first.wait_answered()
            if first.burden >= THREAD_BYTES:
                await take_by_helpers(self._requests)
            held += first.burden
            self._hear_first()
            if held >= THREAD_BYTES:
                held = 0
                await trio.lowlevel.checkpoint()
        lanes = {self._lane, LANE_COMPUTE, LANE_COPY_IN, LANE_COPY_OUT}
        while generation.loss is None and not all(generation.admission.has_room_for_batch(lane, 1) for lane in lanes):
            await generation.admission.wait_room(None)  # others use the lanes as well
        errors = list(self._errors)
        self._errors.clear()
        if errors:
            for other in errors[1:4]:
                errors[0].add_note(f"and: {other}")
            raise errors[0]

    def _check(self) -> Generation:
        """Return the generation that takes a call now. Raises an error if the batch takes none."""
        if self._generation is None or self._over:
            raise InvalidArgument("a batch takes calls only inside its `async with` block", device=self._device.index)
        self._device._check_open()
        if self._generation.loss is not None:
            raise self._generation.loss.error(self._device.index, self._generation.number)
        return self._generation

    # --- verbs --------------------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    def launch(
        self,
        kernel: Kernel | PreparedLaunch,
        grid: Dimensions = 0,
        block: Dimensions = 0,
        *arguments: object,
        shared_bytes: int = 0,
        **options: Unpack[LaunchKeywords],
    ) -> None:
        """Launch a `kernel`, or a prepared launch, which takes no further arguments (``cuLaunchKernelEx``).

        `grid`, `block`, `arguments`, `shared_bytes` and the `options`, which are `touches`, `hang_timeout`,
        `cooperative`, `cluster`, `programmatic` and `priority`, are those of `Kernel.launch`; a cooperative grid is
        checked as by `Kernel.launch_nowait`. Up to 16 launches in quick succession may share the ticket that reports
        their end. Only between those can a programmatic launch begin early. A launch with a `hang_timeout` has its own
        ticket. Launches with attributes are fastest when they are prepared.

        Raises `InvalidArgument` and `StaleArray` as `Kernel.launch` does, before anything is sent; `ContextLost` when
        the batch's generation is lost; `trio.WouldBlock` when 4096 calls are unfinished: `await batch.flush()`.
        """
        # Keywords with defaults would cost a tenth of a launch's time, even when they are not given.
        try:
            launcher = self._launchers.get(kernel._key)
        except AttributeError:  # not a kernel: refused below
            launcher = None
        if (
            launcher is not None
            and (not options or _are_ordinary(**options))
            and launcher(kernel, grid, block, shared_bytes, arguments, self._short_launches)
        ):
            self._launched = True
            return
        self._launch_slowly(kernel, grid, block, arguments, shared_bytes, **options)

    def _launch_slowly(
        self,
        kernel: Kernel | PreparedLaunch,
        grid: Dimensions,
        block: Dimensions,
        arguments: tuple[object, ...],
        shared_bytes: int,
        *,
        touches: Iterable[DeviceArray | ReadOnly | Overwrites] = (),
        hang_timeout: float | None = None,
        **attributes: Unpack[AttributeKeywords],
    ) -> None:
        options = _options(**attributes)
        if isinstance(kernel, PreparedLaunch):
            self._launch_prepared_slowly(kernel, grid, block, arguments, shared_bytes, touches, hang_timeout, options)
            return
        self._check()
        own(self._device, kernel, Kernel, _LAUNCHED)
        request = kernel._request(grid, block, arguments, shared_bytes, touches, hang_timeout, self._lane, options)
        self._send_launch(kernel, request)

    def _launch_prepared_slowly(
        self, prepared: PreparedLaunch, grid: object, block: object, arguments: object, *others: object
    ) -> None:
        shared_bytes, touches, hang_timeout, options = others
        more = {
            "a grid": _is_given(grid),
            "a block": _is_given(block),
            "arguments": _is_given(arguments),
            "shared_bytes": _is_given(shared_bytes),
            "touches": not names_nothing(touches),
            "options": options is not ORDINARY,
        }
        if any(more.values()):
            given = " and ".join(name for name, is_given in more.items() if is_given)
            raise InvalidArgument(
                "a prepared launch has its grid, block, arguments and options, and here it was given "
                f"{given}: give nothing else, or prepare another launch"
            )
        self._check()
        own(self._device, prepared, PreparedLaunch, _LAUNCHED)
        request = prepared._request(hang_timeout, self._lane)  # type: ignore[arg-type]
        self._send_launch(prepared.kernel, request)
        if self._path is not None:
            self._path.learn_prepared(prepared)

    @trio.lowlevel.enable_ki_protection
    def launch_graph(self, graph: Graph) -> None:
        """Launch a `graph`, always on the compute lane, whatever the batch's lane is (``cuGraphLaunch``).

        Raises as `Graph.launch` does, and as `launch`.
        """
        self._check()
        if graph not in self._device._graphs:
            from .libraries.graphs.graph import Graph

            own(self._device, graph, Graph, "launch_graph takes a graph")
        self._send(graph._request(None))

    @trio.lowlevel.enable_ki_protection
    def fill(self, array: DeviceArray, value: complex | np.generic) -> None:
        """Set every element of `array`, of any shape and dtype, to `value` (``cuMemsetD32Async`` and its kin).

        Raises as `DeviceArray.fill` does, and as `launch`; `InvalidArgument` for an array of another device.
        """
        self._check()
        self._device._check_usable(array)
        self._send_all(plan_fill(array, value, self._lane))

    @trio.lowlevel.enable_ki_protection
    def copy_from(self, array: DeviceArray, source: npt.ArrayLike | DeviceArray) -> None:
        """Overwrite `array` with `source`, of the same shape and dtype, on the host or on this device.

        Host memory is read now, unless it is pinned memory, which the GPU reads when it reaches the copy. Reading
        blocks every task: some 0.2 ms for a MiB, or 3 to 8 ms if the two memory orders differ.
        ``await array.copy_from(source)``, outside of the batch or in its block, reads in other threads.

        Raises as `DeviceArray.copy_from` does, and as `launch`; `trio.WouldBlock` too when 96 MiB of copies with the
        host are unfinished; `OutOfHostMemory`. Raises `InvalidArgument` for arrays of another device; for one copy with
        the host above 96 MiB, unless the memory is pinned; and for arrays of one device whose copy has to go through
        the host. Await those.
        """
        self._check()
        self._device._check_usable(array)
        if isinstance(source, DeviceArray):
            self._device._check_usable(source)
            check_like(array, source)
            requests = plan_copy(source, array, self._lane)
            if requests is None:
                raise InvalidArgument(
                    "a batch cannot copy between these arrays, because the copy goes through the host: "
                    "use `await array.copy_from(source)`"
                )
            self._send_all(requests)
            return
        host = as_host(source)
        check_host(array, host)
        self._hear_answered()
        self._send_all(plan_copy_in(array, host, self._slots))

    @trio.lowlevel.enable_ki_protection
    def copy_to(self, array: DeviceArray, out: npt.NDArray[Any]) -> None:
        """Copy `array` into the writable numpy array `out`, of the same shape and dtype. `out` is valid at the end.

        The end is that of the block, or of the next `flush`. Raises as `DeviceArray.copy_to` does, and as `copy_from`.
        """
        self._check()
        self._device._check_usable(array)
        check_host(array, out, writable=True)
        self._hear_answered()
        self._send_all(plan_copy_out(array, np.asarray(out), self._slots))

    @trio.lowlevel.enable_ki_protection
    def to_host(self, array: DeviceArray) -> npt.NDArray[Any]:
        """Return a new numpy array of the shape and dtype of `array`. It is valid at the end; see `copy_to`.

        Raises as `DeviceArray.to_host` does, and as `copy_from`.
        """
        self._check()
        self._device._check_usable(array)
        host: npt.NDArray[Any] = np.empty(array.shape, array.dtype)
        self._hear_answered()
        self._send_all(plan_copy_out(array, host, self._slots))
        return host

    @trio.lowlevel.enable_ki_protection
    def to_device(self, source: npt.ArrayLike | DeviceArray) -> DeviceArray:
        """Return a new device array with a copy of `source`, of its shape and dtype; see `Device.to_device`.

        A source on the host is read now, at the cost that `copy_from` gives; ``await dev.to_device(source)`` reads in
        threads. Arrays of other libraries on the GPU are only taken by that.

        Raises as `Device.to_device` does, and as `copy_from`.
        """
        self._check()
        if isinstance(source, DeviceArray):
            self._device._check_usable(source)
        given = source if isinstance(source, DeviceArray) else as_host(source)
        array = self._device.empty(given.shape, given.dtype)
        try:
            self.copy_from(array, given)
        except BaseException:
            array.free()
            raise
        return array

    @trio.lowlevel.enable_ki_protection
    def record(self) -> Event:
        """Return an event behind all work that the batch's lane has so far. Raises as `Lane.record` does."""
        self._check()
        return self._lane_held._record(self._send)

    @trio.lowlevel.enable_ki_protection
    def _repeat(self, call: KnownCall, arrays: tuple[DeviceArray, ...]) -> DeviceArray:
        """Send a library's call once more."""
        launcher = self._launchers.get(call._key)
        if launcher is not None and launcher(call, 0, 0, 0, arrays, self._owners[call.kind.later.engine]):
            self._launched = True
            return call.answer(arrays)
        self._check_room(self._lane, 1)
        request, result = call.again(self._device, arrays, self._lane)
        generation = self._send(request)
        if self._path is not None and call.repeats_exactly:
            actor = self._device._actor_of(request.verb)
            self._owners.setdefault(actor.name, _ShortLaunches(actor.mailbox, self._errors))
            self._path.learn_call(call)
            for block in request.blocks():
                generation.order.promote(block, self._lane)
        return result

    def _send_launch(self, kernel: Kernel, request: CommandRequest) -> None:
        """Launch the general way; the next launch may go the short way."""
        generation = self._send(request)
        if self._path is not None:
            self._path.learn(kernel)
            for block in request.blocks():
                generation.order.promote(block, self._lane)

    def _send(self, request: CommandRequest) -> Generation:
        """Send a call that is one command."""
        try:
            generation = self._check_room(request._lane, 1)
            if request.takes_slot:
                request.equip(self._slots.acquire)
            self._begin(request, generation)
        except BaseException:
            if not request.sent:
                request.drop()
            raise
        return generation

    def _send_all(self, requests: Sequence[CommandRequest]) -> None:
        """Send the commands of one call, all of them. If there is no room, send none and raise `WouldBlock`."""
        if len(requests) == 1:
            self._send(requests[0])
            return
        for request in requests:
            request.siblings = requests
        try:
            self._slots.check(sum(request.slot_bytes for request in requests if request.takes_slot))
            for lane in {request._lane for request in requests}:
                generation = self._check_room(lane, len(requests))
            for request in requests:
                if request.takes_slot:
                    request.equip(self._slots.acquire)
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
        generation = self._check()
        if self._requests and self._requests[0].answered:
            self._hear_answered()
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
                device=self._device.index,
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
        own = {self._short_launches, *self._owners.values()}
        return self._calls + sum(launch[1] in own for launch in book.launches)

    def _begin(self, request: CommandRequest, generation: Generation) -> None:
        """Begin a request, and keep it until its end is known."""
        generation.order.for_batch = True
        try:
            self._device._actor_of(request.verb).begin(request, generation)
        finally:
            generation.order.for_batch = False
        self._requests.append(request)
        if not request.siblings or request.siblings[0] is request:
            self._calls += 1

    def _hear_answered(self) -> None:
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

    def _hear(self, request: CommandRequest) -> None:
        error = request.error
        if error is None:
            try:
                request.take()
            except DeviceError as found:  # the answer reports an error of the call
                self._errors.append(found)
        elif isinstance(error, ContextLost | DeviceFailed | DeviceClosed):  # one error for all calls that it has ended
            if not any(isinstance(each, type(error)) for each in self._errors):
                self._errors.append(fresh(error))
        elif isinstance(error, DeviceError):
            tear_halves(request.siblings, error, request)
            self._errors.append(error)
        request.siblings = ()  # they refer to it in turn: break the cycle


def _is_given(value: object) -> bool:
    """Return whether a value was given: anything but None, 0 and the empty; an array always was."""
    try:
        return bool(value)
    except Exception:
        return True


def _are_ordinary(touches: object = (), hang_timeout: object = None, **attributes: Unpack[AttributeKeywords]) -> bool:
    """Return whether the given options are equal to the defaults."""
    return names_nothing(touches) and hang_timeout is None and _options(**attributes) is ORDINARY
