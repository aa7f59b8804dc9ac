"""Many calls, one wait: `Device.batch`.

A batch has the verbs of the device without ``await``. Each is checked and sent at once, in the caller's task; leaving
the block waits for all of them. So a call costs only its record. The ordinary launch is of a loaded kernel, on arrays
that only this lane has used since they were last checked (`Block.fast`). It goes straight from its arguments into the
ring (``_calls/launching.py``). Everything else takes the way of an awaited call, without the mailbox.

A batch belongs to its generation. When that is lost, every later verb and the end of the block raise `ContextLost`.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack, final

import numpy as np
import numpy.typing as npt
import trio

from .._arrays.access import Marked
from .._arrays.arrays import DeviceArray, as_host, check_host, check_same_form, check_usable
from .._arrays.memory import DeviceMemory
from .._arrays.ownership import own
from .._arrays.peers import block_of, check_of_group, exists, why_out_of_reach
from .._calls.batch_sender import BatchSender
from .._calls.known import KnownCalls, Question
from .._calls.launching import Launcher
from .._calls.short_transfers import learn_move, question_of_copy, question_of_fill
from .._generation.core import DeviceCore
from .._generation.requests import CommandRequest
from .._transfers.copy_plan import TO_DEVICE, TO_HOST, plan_copy, plan_copy_in, plan_copy_out
from .._transfers.memory import plan_fill
from .._values.errors import InvalidArgument
from .._values.habits import BLOCK, refuse_habits
from .._values.parameters import Dimensions
from .._values.util import NoPublicConstructor
from .._wire.protocol import LANE_COMPUTE
from ..libraries.graphs.graph import Graph
from ..libraries.graphs.repeated import RepeatedLaunch
from ..libraries.modules.kernel import (
    ORDINARY,
    AttributeKeywords,
    Kernel,
    LaunchKeywords,
    PreparedLaunch,
    names_nothing,
    options_of,
)
from ..libraries.registered import BatchLibraries

if TYPE_CHECKING:
    from ..libraries.lanes.verbs import Event, Lane

_LAUNCHED: Final = "launch takes a kernel or a prepared launch"


@final
class Batch(BatchLibraries, metaclass=NoPublicConstructor):
    """Many calls and one wait for all of them, made by `Device.batch`.

    The verbs are those of the device, its kernels and arrays, without ``await``: each checks its arguments, is sent at
    once, and is in order with everything else. Results are valid when the block has been left, or `flush` has returned.
    An error that only the worker can find is raised there too, and names the call.
    """

    __slots__ = ("__weakref__", "_known", "_lane_held", "_launchers", "_sender", "_short_launches")

    _made_by = "`async with dev.batch()`"

    def __init__(self, device: DeviceCore, lane: Lane) -> None:
        self._sender = BatchSender(device, lane._number)
        super().__init__(device, self._sender)
        self._known = device.part(KnownCalls)
        self._lane_held = lane
        self._launchers: dict[object, Launcher] = {}
        self._short_launches = self._sender.launches

    def __repr__(self) -> str:
        generation = self._sender.generation
        number = 0 if generation is None else generation.number
        ended = ", ended" if self._sender.over else ""
        return f"<Batch on device {self._sender.device.index}, generation {number}{ended}>"

    # --- its life -----------------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Self:
        """Wait until the device runs, and no lost worker touches its memory any more.

        Raises `DeviceFailed` or `DeviceClosed`.
        """
        self._sender.device.home.check_task()
        if self._sender.generation is not None:
            raise InvalidArgument("a batch can be entered only once: make another one with dev.batch()")
        await self._sender.enter(ordered=self._lane_held.ordered)
        self._lane_held._batches += 1
        self._launchers = self._sender.launchers
        return self

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for everything. If an exception leaves the block, do not wait: the calls that were sent go on."""
        self._sender.device.home.check_task()
        try:
            if error is None:
                await self._sender.finish()
        finally:
            self._lane_held._batches -= 1
            self._libraries.clear()
            self._launchers = {}
            self._sender.close()

    @trio.lowlevel.enable_ki_protection
    async def flush(self) -> None:
        """Wait until every call sent so far is done, and there is room for more.

        Raises the first error of a call that failed, which names it; `ContextLost` if the generation was lost. Each
        error is raised once.
        """
        self._sender.device.home.check_task()
        await self._sender.flush()

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
            launcher: Launcher | None = self._launchers[kernel._key]
        except (KeyError, AttributeError):  # it has no short way yet; or it is not a kernel, which is refused below
            launcher = None
        if (
            launcher is not None
            and (not options or _are_ordinary(**options))
            and launcher(kernel, grid, block, shared_bytes, arguments, self._short_launches)
        ):
            self._sender.launched = True
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
        touches: Iterable[DeviceArray | Marked] = (),
        hang_timeout: float | None = None,
        **attributes: Unpack[AttributeKeywords],
    ) -> None:
        options = options_of(**attributes)
        if isinstance(kernel, PreparedLaunch):
            self._launch_prepared_slowly(kernel, grid, block, arguments, shared_bytes, touches, hang_timeout, options)
            return
        self._sender.check()
        own(self._sender.device, kernel, Kernel, _LAUNCHED)
        lane = self._sender.lane
        request = kernel._request(grid, block, arguments, shared_bytes, touches, hang_timeout, lane, options)
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
        self._sender.check()
        own(self._sender.device, prepared, PreparedLaunch, _LAUNCHED)
        request = prepared._request(hang_timeout, self._sender.lane)  # type: ignore[arg-type]
        self._send_launch(prepared.kernel, request)
        if self._sender.path is not None:
            self._sender.path.learn_prepared(prepared, prepared.kernel)

    @trio.lowlevel.enable_ki_protection
    def launch_graph(self, graph: Graph) -> None:
        """Launch a `graph`, always on the compute lane, whatever the batch's lane is (``cuGraphLaunch``).

        Raises as `Graph.launch` does, and as `launch`.
        """
        if self._launches_again(graph):
            return
        self._sender.check()
        own(self._sender.device, graph, Graph, "launch_graph takes a graph")
        path = self._sender.path if self._sender.lane == LANE_COMPUTE else None
        if path is not None:
            graph._catch_up(path)
            if self._launches_again(graph):
                return
        self._sender.send(graph._request(None))
        graph._learn(graph._plan, path)

    def _launches_again(self, graph: Graph) -> bool:
        """Launch a graph by the short way, if it has one now."""
        repeated: RepeatedLaunch | None = getattr(graph, "_repeated", None)
        launcher: Any = None if repeated is None else self._launchers.get(repeated._key)
        if launcher is None or not launcher(repeated, (graph, graph._plan), self._short_launches):
            return False
        self._sender.launched = True
        return True

    @trio.lowlevel.enable_ki_protection
    def fill(self, array: DeviceArray, value: complex | np.generic) -> None:
        """Set every element of `array`, of any shape and dtype, to `value` (``cuMemsetD32Async`` and its kin).

        Raises as `DeviceArray.fill` does, and as `launch`; `InvalidArgument` for an array of another device.
        """
        moves = self._sender.moves
        if moves is not None and moves.fill(array, value, self._sender.memory_launches):
            self._sender.launched = True
            return
        question = question_of_fill(array, value)
        if question is not None and self._repeats(question):
            return
        self._sender.check()
        check_usable(self._sender.device, array)
        requests = plan_fill(array, value, self._sender.lane)
        self._sender.send_all(requests)
        if question is not None:
            learn_move(self._known, question, requests)

    @trio.lowlevel.enable_ki_protection
    def copy_from(self, array: DeviceArray, source: npt.ArrayLike | DeviceArray) -> None:
        """Overwrite `array` with `source`, of the same shape and dtype, on the host or on a device of the same group.

        Host memory is read now, unless it is pinned memory, which the GPU reads when it reaches the copy. Reading
        blocks every task: some 0.2 ms for a MiB, or 3 to 8 ms if the two memory orders differ.
        ``await array.copy_from(source)``, outside of the batch or in its block, reads in other threads.

        Raises as `DeviceArray.copy_from` does, and as `launch`; `trio.WouldBlock` too when 96 MiB of copies with the
        host are unfinished, and when the source is of another device that still writes it; `OutOfHostMemory`. Raises
        `InvalidArgument` for an array of a device that is not of the group; for one copy with the host above 96 MiB,
        unless the memory is pinned; and for arrays whose copy has to go through the host. Await those.
        """
        if type(source) is DeviceArray:
            sender = self._sender
            moves = sender.moves
            if moves is not None and moves.copy(source, array, sender.memory_launches):
                sender.launched = True
                return
        elif type(source) is np.ndarray:
            self._sender.check_copy(array, source)
            self._copy_in(array, source)
            return
        question = question_of_copy(array, source)
        if question is not None and self._repeats(question):
            return
        self._sender.check()
        check_usable(self._sender.device, array)
        if isinstance(source, DeviceArray):
            requests = self._plan_copy(source, array)
            if requests is None:
                raise InvalidArgument(
                    "a batch cannot copy between these arrays, because the copy goes through the host: "
                    "use `await array.copy_from(source)`"
                )
            self._sender.send_all(requests)
            if question is not None:
                learn_move(self._known, question, requests)
            return
        host = as_host(source)
        check_host(array, host)
        self._copy_in(array, host)

    def _repeats(self, question: Question) -> bool:
        """Send a fill or copy that was made before; return false, without any effect, if it must be planned."""
        known = self._known.find(question[0])
        return known is not None and known.send(self._sender, question[1]) is not None

    @trio.lowlevel.enable_ki_protection
    def copy_to(self, array: DeviceArray, out: npt.NDArray[Any]) -> None:
        """Copy `array` into the writable numpy array `out`, of the same shape and dtype. `out` is valid at the end.

        The end is that of the block, or of the next `flush`. Raises as `DeviceArray.copy_to` does, and as `copy_from`.
        """
        self._sender.check_copy(array, out, writable=True)
        self._copy_out(array, out if type(out) is np.ndarray else np.asarray(out))

    @trio.lowlevel.enable_ki_protection
    def to_host(self, array: DeviceArray) -> npt.NDArray[Any]:
        """Return a new numpy array of the shape and dtype of `array`. It is valid at the end; see `copy_to`.

        Raises as `DeviceArray.to_host` does, and as `copy_from`.
        """
        self._sender.check()
        check_usable(self._sender.device, array)
        host: npt.NDArray[Any] = np.empty(array.shape, array.dtype)
        self._copy_out(array, host)
        return host

    @trio.lowlevel.enable_ki_protection
    def to_device(self, source: npt.ArrayLike | DeviceArray) -> DeviceArray:
        """Return a new device array with a copy of `source`, of its shape and dtype; see `Device.to_device`.

        A source on the host is read now, at the cost that `copy_from` gives; ``await dev.to_device(source)`` reads in
        threads. Arrays of other libraries on the GPU are only taken by that.

        Raises as `Device.to_device` does, and as `copy_from`.
        """
        self._sender.check()
        if isinstance(source, DeviceArray):
            check_of_group(self._sender.device, source)
        given = source if isinstance(source, DeviceArray) else as_host(source)
        array = self._sender.device.part(DeviceMemory).empty(given.shape, given.dtype)
        try:
            if isinstance(given, DeviceArray):
                self.copy_from(array, given)
            else:
                self._copy_in(array, given)
        except BaseException:
            array.free()
            raise
        return array

    @trio.lowlevel.enable_ki_protection
    def record(self) -> Event:
        """Return an event behind all work that the batch's lane has so far. Raises as `Lane.record` does."""
        sender = self._sender
        sender.check()
        event = self._lane_held._record(sender.send, sender.signed_path, sender.launches)
        sender.launched = True  # the batch waits for it too
        return event

    def _plan_copy(self, source: DeviceArray, target: DeviceArray) -> list[CommandRequest] | None:
        """Return the requests of a copy between two arrays of the device or of its group; None if the host must copy.

        Raises `trio.WouldBlock` for an array of another device whose memory does not exist yet.
        """
        device, lane = self._sender.device, self._sender.lane
        check_of_group(device, source)
        check_same_form(target, source)
        if source._storage.device is device:
            return plan_copy(source, target, lane)
        if why_out_of_reach(device, source) is not None:
            return None
        if not exists(source):
            raise trio.WouldBlock(
                f"{source!r} has no memory yet on its own device: use `await array.copy_from(source)`, which waits"
            )
        return plan_copy(source, target, lane, account=block_of(device, source))

    def _copy_in(self, array: DeviceArray, host: npt.NDArray[Any]) -> None:
        if not self._sender.copy(array, host, TO_DEVICE):
            self._sender.hear_answered()
            self._sender.send_all(plan_copy_in(array, host, self._sender.slots))

    def _copy_out(self, array: DeviceArray, host: npt.NDArray[Any]) -> None:
        if not self._sender.copy(array, host, TO_HOST):
            self._sender.hear_answered()
            self._sender.send_all(plan_copy_out(array, host, self._sender.slots))

    def _send_launch(self, kernel: Kernel, request: CommandRequest) -> None:
        """Launch the general way; the next launch may go the short way."""
        generation = self._sender.send(request)
        if self._sender.path is not None:
            self._sender.path.learn(kernel)
            generation.order.promote_all(request.blocks(), self._sender.lane)


refuse_habits(Batch, BLOCK)


def _is_given(value: object) -> bool:
    """Return whether a value was given: anything but None, 0 and the empty; an array always was."""
    try:
        return bool(value)
    except Exception:
        return True


def _are_ordinary(touches: object = (), hang_timeout: object = None, **attributes: Unpack[AttributeKeywords]) -> bool:
    """Return whether the given options are equal to the defaults."""
    return names_nothing(touches) and hang_timeout is None and options_of(**attributes) is ORDINARY
