"""Many calls, one wait: `Device.batch`.

A batch has the verbs of the device without ``await``. Each is checked and sent at once, in the caller's task; leaving
the block waits for all of them. So a call costs what its record costs. The ordinary launch, of a kernel that is loaded,
on arrays that only this lane has used since they were last looked at (`Block.fast`), goes straight from its arguments
into the ring (``_launching.py``); everything else takes the way that an awaited call takes, minus the mailbox.

A batch belongs to its generation. When that is lost, every later verb and the end of the block raise `ContextLost`.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack, final

import numpy as np
import numpy.typing as npt
import trio

from ._arrays import DeviceArray, as_host, check_host, check_like
from ._errors import ContextLost, DeviceError, InvalidArgument
from ._known_calls import KnownCall
from ._launching import Launcher, LaunchPath
from ._libraries import BatchLibraries
from ._mailbox import Mailbox
from ._ownership import own
from ._requests import CommandRequest
from ._timeline import Launch
from ._util import NoPublicConstructor
from .actors.copies import plan_copy, plan_copy_in, plan_copy_out
from .actors.kernel import (
    ORDINARY,
    AttributeKeywords,
    Dimensions,
    Kernel,
    LaunchKeywords,
    Overwrites,
    PreparedLaunch,
    ReadOnly,
    _options,
)
from .actors.memory import plan_fill, tear, tear_halves
from .worker.engines.event import MARK
from .worker.protocol import BATCH_LIMIT, LANE_COMPUTE, LANE_LIMIT

if TYPE_CHECKING:
    from ._device import Device
    from ._generation import Generation
    from ._lanes import Event, Lane
    from .actors.graph import Graph


_LAUNCHED: Final = "launch takes a kernel or a prepared launch"


class _Mark(CommandRequest):
    """The end of what a batch has sent to a lane so far."""

    __slots__ = ()

    def __init__(self, lane: int) -> None:
        super().__init__(MARK, b"", (), lane=lane, operation="the end of a batch")


class _ShortLaunches:
    """Hears what became of the launches of a batch that went the short way."""

    __slots__ = ("_errors", "_mailbox")

    def __init__(self, mailbox: Mailbox, errors: list[DeviceError]) -> None:
        self._mailbox = mailbox
        self._errors = errors

    def launches_finished(self, count: int) -> None:
        """Count them as those of their actor."""
        self._mailbox.count_finished(count)

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Keep the error for `flush`."""
        self._mailbox.count_finished(1, "failed")
        self._mailbox.count_finished(-1)  # `launches_finished`, which follows, takes it for one that has not failed
        self._errors.append(error)

    def launch_lost(self, launch: Launch, error: DeviceError) -> None:
        """The end of the batch tells of the loss; the mark behind the launches is lost as well."""
        self._mailbox.count_finished(1, "lost")
        if not any(isinstance(each, ContextLost) for each in self._errors):
            self._errors.append(error)


@final
class Batch(BatchLibraries, metaclass=NoPublicConstructor):
    """Many calls and one wait for all of them, made by `Device.batch`.

    The verbs are those of the device, its kernels and arrays, without ``await``: each checks its arguments, is sent at
    once, and is in order with everything else. What one returns is there when the block has been left, or `flush` has
    returned. An error that only the worker can find is raised there too, and names the call.
    """

    __slots__ = (
        "__weakref__",
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
        self._errors: list[DeviceError] = []
        self._short_launches = _ShortLaunches(device._module_mailbox, self._errors)
        self._owners: dict[str, _ShortLaunches] = {}

    def __repr__(self) -> str:
        number = self._generation.number if self._generation is not None else 0
        return f"<Batch on device {self._device.index}, generation {number}{', ended' if self._over else ''}>"

    # --- its life -----------------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Self:
        """Wait until the device runs. Raises `DeviceFailed` or `DeviceClosed`."""
        self._device._home.check_task()
        if self._generation is not None:
            raise InvalidArgument("a batch is entered once: make another one with dev.batch()")
        self._generation = generation = await self._device._running_generation()
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
        """Wait for everything, unless the block was left by an exception: what was sent then goes on by itself."""
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

    @trio.lowlevel.enable_ki_protection
    async def flush(self) -> None:
        """Wait until everything that was sent so far is done, which also makes room for more.

        Raises the first error of a call that failed, which names it; `ContextLost` if the generation was lost. A call
        whose error was raised is not heard of again.
        """
        self._device._home.check_task()
        generation = self._check()
        if self._launched:
            mark = _Mark(self._lane)
            while not generation.takes(mark):
                await generation.wait_room(self._lane)
                self._check()
            self._begin(mark)
            self._launched = False
        await trio.lowlevel.checkpoint()
        while self._requests:
            await self._requests[0].wait_answered()
            self._hear(self._requests.popleft())
        errors = list(self._errors)
        self._errors.clear()
        if errors:
            for other in errors[1:4]:
                errors[0].add_note(f"and: {other}")
            raise errors[0]

    def _check(self) -> Generation:
        """The generation that takes a call now; raises what refuses it."""
        if self._generation is None or self._over:
            raise InvalidArgument("a batch takes calls inside of its `async with` block", device=self._device.index)
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
        """Launch a `kernel`, or make a prepared launch, which takes no further arguments (``cuLaunchKernelEx``).

        `grid`, `block`, `arguments`, `shared_bytes` and the `options`, which are `touches`, `hang_timeout`,
        `cooperative`, `cluster`, `programmatic` and `priority`, are those of `Kernel.launch`; a cooperative grid is
        checked as by `Kernel.launch_nowait`. Up to 16 launches that come in quick succession may share the ticket that
        tells of their end, and only between those can a programmatic launch begin early; one that is given a
        `hang_timeout` has its own. Launches with attributes are fastest when they are prepared.

        Raises `InvalidArgument` and `StaleArray` as `Kernel.launch` does, before anything is sent; `ContextLost` when
        the batch's generation is lost; `trio.WouldBlock` when 4096 launches are unfinished: `await batch.flush()`.
        """
        # Keywords with defaults would take a tenth of a launch's time, each time that they are not given.
        try:
            launcher = self._launchers.get(kernel._key)
        except AttributeError:  # it is no kernel, and is refused as such
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
        self._begin_launch(kernel, request)

    def _launch_prepared_slowly(
        self, prepared: PreparedLaunch, grid: object, block: object, arguments: object, *others: object
    ) -> None:
        shared_bytes, touches, hang_timeout, options = others
        if grid != 0 or block != 0 or arguments or shared_bytes or touches or options is not ORDINARY:
            raise InvalidArgument("a prepared launch brings its grid, its block, its arguments and its options along")
        self._check()
        own(self._device, prepared, PreparedLaunch, _LAUNCHED)
        request = prepared._request(hang_timeout, self._lane)  # type: ignore[arg-type]
        self._begin_launch(prepared.kernel, request)
        if self._path is not None:
            self._path.learn_prepared(prepared)

    @trio.lowlevel.enable_ki_protection
    def launch_graph(self, graph: Graph) -> None:
        """Launch a `graph`, on the compute lane whatever the batch's (``cuGraphLaunch``).

        Raises as `Graph.launch` does, and as `launch`.
        """
        self._check()
        if graph not in self._device._graphs:
            from .actors.graph import Graph

            own(self._device, graph, Graph, "launch_graph takes a graph")
        self._begin(graph._request(None))

    @trio.lowlevel.enable_ki_protection
    def fill(self, array: DeviceArray, value: complex | np.generic) -> None:
        """Set every element of `array`, of any shape and dtype, to `value` (``cuMemsetD32Async`` and its kin).

        Raises as `DeviceArray.fill` does, and as `launch`; `InvalidArgument` for an array of another device.
        """
        self._check()
        self._device._check_usable(array)
        self._begin_all(array, plan_fill(array, value, self._lane))

    @trio.lowlevel.enable_ki_protection
    def copy_from(self, array: DeviceArray, source: npt.ArrayLike | DeviceArray) -> None:
        """Overwrite `array` with `source`, of the same shape and dtype, on the host or on this device.

        What is on the host is read now, unless it is pinned memory: the GPU reads that, when it gets there.

        Raises as `DeviceArray.copy_from` does, and as `launch`; `trio.WouldBlock` too when the staging area, of 94 MiB,
        has no room; `InvalidArgument` for arrays of another device, and between arrays that only go through the host:
        do those outside of the batch.
        """
        self._check()
        self._device._check_usable(array)
        if isinstance(source, DeviceArray):
            self._device._check_usable(source)
            check_like(array, source)
            requests = plan_copy(source, array, self._lane)
            if requests is None:
                raise InvalidArgument("these arrays are copied through the host: use `await array.copy_from(source)`")
            self._begin_all(array, requests)
            return
        host = as_host(source)
        check_host(array, host)
        self._begin_all(array, plan_copy_in(array, host))

    @trio.lowlevel.enable_ki_protection
    def copy_to(self, array: DeviceArray, out: npt.NDArray[Any]) -> None:
        """Copy `array` into the writable numpy array `out`, of the same shape and dtype: it has the bytes at the end.

        The end is that of the block, or of the next `flush`. Raises as `DeviceArray.copy_to` does, and as `copy_from`.
        """
        self._check()
        self._device._check_usable(array)
        check_host(array, out, writable=True)
        self._begin_all(array, plan_copy_out(array, np.asarray(out)), writes=False)

    @trio.lowlevel.enable_ki_protection
    def to_host(self, array: DeviceArray) -> npt.NDArray[Any]:
        """A new numpy array of the shape and dtype of `array`, whose elements are there at the end; see `copy_to`.

        Raises as `DeviceArray.to_host` does, and as `copy_from`.
        """
        self._check()
        self._device._check_usable(array)
        host: npt.NDArray[Any] = np.empty(array.shape, array.dtype)
        self._begin_all(array, plan_copy_out(array, host), writes=False)
        return host

    @trio.lowlevel.enable_ki_protection
    def to_device(self, source: npt.ArrayLike) -> DeviceArray:
        """A new device array with a copy of `source`, of its shape and dtype; see `Device.to_device`.

        Raises as `Device.to_device` does, and as `copy_from`.
        """
        self._check()
        host = as_host(source)
        array = self._device.empty(host.shape, host.dtype)
        try:
            self.copy_from(array, host)
        except BaseException:
            array.free()
            raise
        return array

    @trio.lowlevel.enable_ki_protection
    def record(self) -> Event:
        """An event behind what the batch's lane has been given so far. Raises as `Lane.record` does."""
        self._check()
        return self._lane_held.record()

    @trio.lowlevel.enable_ki_protection
    def _repeat(self, call: KnownCall, arrays: tuple[DeviceArray, ...]) -> DeviceArray:
        """Send a library's call once more."""
        launcher = self._launchers.get(call._key)
        if launcher is not None and launcher(call, 0, 0, 0, arrays, self._owners[call.kind.later.engine]):
            self._launched = True
            return call.answer(arrays)
        generation = self._check()
        if generation.timeline.book(self._lane).unfinished >= BATCH_LIMIT:
            raise trio.WouldBlock
        request, result = call.again(self._device, arrays, self._lane)
        self._begin(request)
        if self._path is not None and call.repeats_exactly:
            actor = self._device._actor_of(request.verb)
            self._owners.setdefault(actor.name, _ShortLaunches(actor.mailbox, self._errors))
            self._path.learn_call(call)
            for block in request.blocks():
                generation.promote(block, self._lane)
        return result

    def _begin_launch(self, kernel: Kernel, request: CommandRequest) -> None:
        """Launch what is not as usual: the next one may be."""
        generation = self._check()
        if generation.timeline.book(self._lane).unfinished >= BATCH_LIMIT:
            raise trio.WouldBlock
        self._begin(request)
        if self._path is not None:
            self._path.learn(kernel)
            for block in request.blocks():
                generation.promote(block, self._lane)

    def _begin(self, request: CommandRequest) -> None:
        """Send a request, and keep it until its end has been heard of."""
        generation = self._check()
        requests = self._requests
        while requests and requests[0].answered:
            self._hear(requests.popleft())
        self._device._actor_of(request.verb).begin_nowait(request, generation)
        requests.append(request)

    def _begin_all(self, array: DeviceArray, requests: Sequence[CommandRequest], *, writes: bool = True) -> None:
        """Send the requests of one verb: all of them, or, by `WouldBlock`, none."""
        begun = 0
        try:
            self._check_room(requests)
            for request in requests:
                self._begin(request)
                begun += 1
        except BaseException as error:
            for request in requests[begun:]:
                request.drop()
            if writes:
                tear(array._block, error, begun=begun, pieces=len(requests))
            raise

    def _check_room(self, requests: Sequence[CommandRequest]) -> None:
        """Raise `trio.WouldBlock` unless their lane has room for all commands of a verb."""
        if requests:
            book = self._check().timeline.book(requests[0].lane or LANE_COMPUTE)
            if len(book.in_flight) + len(requests) > LANE_LIMIT:
                raise trio.WouldBlock

    def _hear(self, request: CommandRequest) -> None:
        """A request is settled and nobody waits for it: take what came of it."""
        error = request.error
        if error is None:
            try:
                request.take()
            except DeviceError as found:  # what the answer says of the call
                self._errors.append(found)
        elif isinstance(error, DeviceError):
            if not isinstance(error, ContextLost):
                tear_halves(request.siblings, error, request)
            self._errors.append(error)
        request.siblings = ()  # which hold it in turn


def _are_ordinary(touches: object = (), hang_timeout: object = None, **attributes: Unpack[AttributeKeywords]) -> bool:
    """Whether options that were given say what holds without them."""
    return not touches and hang_timeout is None and _options(**attributes) is ORDINARY
