"""Graphs: launches, copies, fills and calls of libraries that are recorded once and launched together.

A recording becomes a *plan*: its steps, their order, and the whole graph's access to each block. A plan never changes;
`update` makes another one. Each generation is told of a graph when a launch needs it. The plan that it was told is
compared with the plan of the launch: right before the launch the graph is built, or its steps are changed. So an update
needs no memory on the device, every launch runs with the arguments at the time of its call, and a graph outlives the
worker that it was built in.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, final

import numpy as np
import outcome
import trio

from ..._arrays import layout as _layout
from ..._arrays.access import Marked
from ..._arrays.arrays import DeviceArray, check_like, check_usable
from ..._arrays.ownership import own
from ..._calls.launching import AwaitedLaunches, LaunchPath
from ..._calls.plans import Plans
from ..._generation.core import DeviceCore, DevicePart
from ..._generation.requests import CommandRequest
from ..._generation.timeline import Command, Unwatched
from ..._memory.arena import Block, ChunkState
from ..._memory.peers import PeerBlock
from ..._supervision.mailbox import Request
from ..._supervision.states import RequestState
from ..._transfers.memory import overlap, pattern_of
from ..._values.errors import DeviceError, InvalidArgument, RequestError, StaleKernel
from ..._values.parameters import Dimensions
from ..._values.shortage import host_limits, shortage_of
from ..._values.util import Living, NoPublicConstructor, check_seconds, known
from ..._wire.protocol import LANE_COMPUTE, Role, Verb
from ..._wire.records.memory import BOX, COPY, FILL
from ..._wire.records.module import LAUNCH
from ..modules.kernel import GivenOptions, Kernel, options_of, tuple_of_touched
from ..modules.module import Module
from ..registered import RECORDED, RecorderLibraries
from .calls import call_records, plans_of
from .nodes import GraphNode, Nodes, Recording
from .plan import FEW, BuiltGraph, GraphPlan, GraphStep, StepOrder, combined
from .records import BUILD, DESTROY, LAUNCH_GRAPH, UPDATE_CALLS
from .repeated import MOST_CHANGES, RepeatedLaunch
from .steps import Records

if TYPE_CHECKING:
    from ..._calls.recorded import Planned
    from ..._generation.generation import Generation

LARGEST_UPDATE = 32 * 1024
"""If the changed steps take more bytes than this, they are not changed one by one: the graph is built again."""

MOST_BOXES = 256
"""The most boxes of bytes of one copy or fill: each is a node of the driver's graph."""

# --- what is recorded -------------------------------------------------------------------------------------------------


def _launch_step(
    kernel: Kernel,
    grid: Dimensions,
    block: Dimensions,
    shared_bytes: int,
    touches: Any,
    options: GivenOptions,
    *arguments: object,
) -> GraphStep:
    payload, operands, keep = kernel._checked(grid, block, arguments, shared_bytes, touches, options)
    if any(isinstance(each, PeerBlock) for each, _ in operands):
        raise InvalidArgument(
            "a graph takes arrays of its own device alone",
            device=kernel._module._device.index,
            advice="copy the array first: `await mine.copy_from(array)`",
        )
    return GraphStep(
        kernel._operation,
        Records.of(((LAUNCH, payload),)),
        combined(operands),
        functools.partial(_launch_step, kernel, grid, block, shared_bytes, touches, options),
        (kernel, keep),
        kernel._module,
        _renumber_launch,
    )


def _renumber_launch(step: GraphStep, arguments: tuple[object, ...]) -> GraphStep | None:
    """Return a launch with other numbers on the same arrays; None if it must be checked anew."""
    kernel, (before, touched) = step.keep
    payload = kernel._repacked(step.records.launch, before, arguments)
    if payload is None:
        return None
    for block in step.roles:
        if block.freed:
            return None
    keep = (kernel, (arguments, touched))
    records = step.records.with_launch(payload)
    return GraphStep(step.operation, records, step.roles, step.change, keep, step.module, step.renumber)


def _call_step(planned: Planned) -> GraphStep:
    records, roles = call_records(planned)
    keep = (planned.made, planned.zeros, [request.keep for request in planned.requests])
    return GraphStep(
        planned.operation,
        Records.of(records, has_calls=True, plans=plans_of(planned)),
        roles,
        lambda *arguments, **keywords: _call_step(planned.again(*arguments, **keywords)),
        keep,
    )


def _copy_step(device: DeviceCore, *arguments: object) -> GraphStep:
    source, target = _two(arguments, "copy", "a source and a target")
    for array in (source, target):
        _check_array(device, array, "copy")
    check_like(target, source)
    if source._block is target._block and overlap(source, target):
        raise InvalidArgument("the two arrays share memory: copy through a third one")
    packing = _layout.packing(target.shape, target.strides)
    walk, offset = packing.follow(source.shape, source.strides)
    to, origin = target.address + packing.offset, source.address + offset
    boxes = _few(_layout.boxes(packing.shape, target.itemsize, packing.strides, walk), "copy")
    payloads = (BOX.pack(*box.side(to), *box.other_side(origin), box.width, box.height, box.depth) for box in boxes)
    records = Records.of([(COPY, payload) for payload in payloads])
    operands = ((target._block, _role_of_target(target)), (source._block, Role.READ))
    return GraphStep("copy", records, combined(operands), functools.partial(_copy_step, device), arguments)


def _fill_step(device: DeviceCore, *arguments: object) -> GraphStep:
    array, value = _two(arguments, "fill", "an array and a value")
    _check_array(device, array, "fill")
    pattern = pattern_of(value, array.dtype)
    packing = _layout.packing(array.shape, array.strides)
    base, size = array.address + packing.offset, array.itemsize
    boxes = _layout.boxes(packing.shape, size, packing.strides, packing.strides)
    planes = _few((plane for box in boxes for plane in _layout.cut(box, box.width * box.height)), "fill")
    records = Records.of(
        [
            (FILL, FILL.struct.pack(base + rows.offset, rows.pitch, size, rows.width // size, rows.height, pattern))
            for rows in planes
        ]
    )
    roles = {array._block: _role_of_target(array)}
    return GraphStep("fill", records, roles, functools.partial(_fill_step, device), array)


def _few(boxes: Iterator[_layout.Box], verb: str) -> list[_layout.Box]:
    """Return the boxes of a copy or a fill. Raises `InvalidArgument` if they are too many for a node."""
    some = list(itertools.islice(boxes, MOST_BOXES + 1))
    if len(some) > MOST_BOXES:
        raise InvalidArgument(
            f"a {verb} of elements that are so scattered cannot be captured: it takes more than {MOST_BOXES} "
            f"boxes of bytes",
            advice="launch a kernel that does it",
        )
    return some


def _role_of_target(array: DeviceArray) -> Role:
    return Role.OVERWRITE if array._covers_block else Role.WRITE


def _two(arguments: tuple[object, ...], verb: str, what: str) -> tuple[Any, Any]:
    if len(arguments) != 2:
        raise InvalidArgument(f"{verb} takes {what}, not {len(arguments)} arguments")
    return arguments[0], arguments[1]


def _check_array(device: DeviceCore, array: object, verb: str) -> None:
    if isinstance(array, np.ndarray):
        raise InvalidArgument(f"a {verb} with memory of the host cannot be captured: it takes device arrays")
    check_usable(device, own(device, array, DeviceArray, f"{verb} takes device arrays"))


@final
class GraphRecorder(RecorderLibraries, metaclass=NoPublicConstructor):
    """Records the operations of a graph; `await dev.capture(record)` passes one to `record`.

    It has the verbs that can be captured. Each checks its arguments and sends nothing. Its own verbs return their node;
    those of a library, such as ``graph.blas.gemm(a, b)``, return their result, and `last` is their node. The name of
    any other verb of a device or an array raises `InvalidArgument`.
    """

    __slots__ = ("_device", "_last", "_modules", "_open", "_order", "_recording", "_steps")

    _made_by = "`await dev.capture(record)`"

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device, self)
        self._device = device
        self._recording = Recording(device)
        self._last: GraphNode | None = None
        self._steps: list[GraphStep] = []
        self._modules: dict[Module, None] = {}
        self._order = StepOrder()
        self._open = True

    def __repr__(self) -> str:
        return f"<GraphRecorder with {len(self._steps)} nodes>"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise InvalidArgument(
            f"{name} cannot be captured: a graph is made of launch, copy and fill, and of the verbs of "
            f"{' and '.join(RECORDED)}"
        )

    @property
    def last(self) -> GraphNode:
        """The node of the verb that was called last. Raises `InvalidArgument` if there was none."""
        if self._last is None:
            raise InvalidArgument("nothing was recorded yet")
        return self._last

    def launch(
        self,
        kernel: Kernel,
        grid: Dimensions,
        block: Dimensions,
        *arguments: object,
        shared_bytes: int = 0,
        touches: Iterable[DeviceArray | Marked] = (),
        cooperative: bool = False,
        cluster: Dimensions | None = None,
        programmatic: bool = False,
        priority: int | None = None,
    ) -> GraphNode:
        """Record the launch of a `kernel` (``cuGraphAddKernelNode``).

        `grid`, `block`, `arguments`, `shared_bytes`, `touches`, `cooperative`, `cluster`, `programmatic` and `priority`
        are those of `Kernel.launch`, a cooperative grid is checked as by `Kernel.launch_nowait`; arrays may have any
        shape and dtype. The node keeps its options when `Graph.update` changes its arguments.

        Raises `InvalidArgument` as `Kernel.launch` does, for a kernel of another device, and for a programmatic launch:
        a node of a graph begins only when those before it have ended.
        """
        if programmatic is True:
            raise InvalidArgument("a programmatic launch cannot be captured: its node begins when others have ended")
        own(self._device, kernel, Kernel, "launch takes a kernel")
        options = options_of(cooperative, cluster, programmatic, priority)
        touched = tuple_of_touched(touches)
        return self._add(_launch_step(kernel, grid, block, shared_bytes, touched, options, *arguments))

    def copy(self, source: DeviceArray, target: DeviceArray) -> GraphNode:
        """Record that the elements of `target` are overwritten with those of `source` (``cuGraphAddMemcpyNode``).

        Both are arrays of the graph's device, of one shape and dtype, contiguous or not. It is one node of the graph,
        even if it takes several on the device.

        Raises `InvalidArgument` if shapes, dtypes or devices differ, the two share memory, one was freed, or the
        elements are too scattered for a copy engine; and for a numpy array, since copies with the host cannot be
        captured.
        """
        return self._add(_copy_step(self._device, source, target))

    def fill(self, array: DeviceArray, value: complex | np.generic) -> GraphNode:
        """Record that every element of `array`, of any shape and dtype, is set to `value` (``cuGraphAddMemsetNode``).

        `value` is a Python or numpy number.

        Raises `InvalidArgument` for a value that the dtype cannot hold, and for an array of another device or one that
        was freed.
        """
        return self._add(_fill_step(self._device, array, value))

    def _check_open(self) -> None:
        """Raise `InvalidArgument` if the recording has ended."""
        if not self._open:
            raise InvalidArgument("the recording has ended: capture another graph")

    def _add_call(self, planned: Planned) -> None:
        """Record a call of a library. Raises `InvalidArgument` if it cannot be captured."""
        self._add(_call_step(planned))

    def _add(self, step: GraphStep) -> GraphNode:
        self._check_open()
        number = len(self._steps)
        self._steps.append(step)
        if step.module is not None:
            self._modules[step.module] = None
        self._recording.operations.append(step.operation)
        self._last = GraphNode(number, step.operation, self._order.take_in(step), self._recording)
        return self._last

    def _end(self) -> None:
        """Take no more; and let go of the libraries, which refer to it in turn."""
        self._open = False
        self._libraries.clear()

    def _finished(self) -> GraphPlan:
        """Return the plan of the recording. Raises `InvalidArgument` if it is empty."""
        if not self._steps:
            raise InvalidArgument("nothing was recorded: a graph has at least one node")
        return GraphPlan.of(self._steps, self._modules, self._order)


async def _recorded(record: Callable[[GraphRecorder], object], recorder: GraphRecorder) -> None:
    """Call a recording function, plain or async. Raises `InvalidArgument` if its body did not run."""
    result = record(recorder)
    if inspect.iscoroutine(result):
        result = await result
    if inspect.iscoroutine(result):
        result.close()  # avoids the warning that it was never awaited
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise InvalidArgument(f"record is a plain function or an async one, and returned {type(result).__name__}")


# --- graphs -----------------------------------------------------------------------------------------------------------


@final
class Graph(metaclass=NoPublicConstructor):
    """Launches, copies, fills and calls of libraries that are launched together, made by `await dev.capture(record)`.

    It stays valid when a generation is lost: it is built again from the recording. It keeps its arrays and kernels
    alive. Nodes that touch the same array run in the order of the recording if one of them writes it; others may run
    side by side.
    """

    __slots__ = ("__weakref__", "_born", "_device", "_launches", "_number", "_plan", "_recording", "_repeated")

    _made_by = "`await dev.capture(record)`"

    def __init__(self, device: DeviceCore, plan: GraphPlan, recording: Recording, born: int) -> None:
        self._device = device
        self._number = device.next_number()
        self._plan = plan
        self._recording = recording
        self._born = born
        """The generation that it was captured in."""
        self._launches = device.part(AwaitedLaunches)
        self._repeated: RepeatedLaunch | None = None
        """A launch of the present plan that may go the short way, where that was prepared."""
        device.part(Graphs).living.add(self)

    def __repr__(self) -> str:
        return f"<Graph {self._number} with {len(self)} nodes>"

    def __len__(self) -> int:
        return len(self._plan)

    @property
    def _owner(self) -> DeviceCore:
        return self._device

    def __del__(self) -> None:
        # Any thread, any time: only note it. The worker is told with the next module or graph.
        if hasattr(self, "_number"):
            self._device.dropped.append(functools.partial(_destroy_unused, self._number))

    @property
    def nodes(self) -> Sequence[GraphNode]:
        """The operations, in the order of recording, as they are now.

        A later update does not change this sequence. Each node is made when you first look at it, so a look at a few
        nodes of a large graph costs no more than those.
        """
        return Nodes(self._recording, self._plan.order_as_needed())

    async def launch(self, *, hang_timeout: float | None = None) -> None:
        """Launch the graph and wait until all of it has run (``cuGraphLaunch``).

        It is one command: it waits for all work that is under way on its arrays, and later work on them waits for all
        of it. `hang_timeout` is the time in seconds that this launch may run before its worker is killed; by default
        that of `open_device`.

        Raises `InvalidArgument` for an array that was freed; `StaleArray` for one that is lost, or torn, unless the
        graph overwrites all of it first; `StaleKernel` after a fault if the device was opened with
        ``on_fault="stale"``; `ContextLost` if the context is lost while it runs: its outputs are then torn.
        """
        self._device.home.check_task()
        plan, repeated = self._plan, self._repeated
        if repeated is not None and hang_timeout is None:
            await trio.lowlevel.checkpoint_if_cancelled()
            kept = (self, plan)
            launched = self._launches.begin_graph(repeated, kept)
            if launched is not None:
                await launched.wait()
                return
        async with _described_ahead(plan, self._is_brought_by_changes):
            await self._device.module_actor.mailbox.ask(self._request(hang_timeout, plan))
        self._learn(plan, self._launches.present_path())

    def launch_nowait(self, *, hang_timeout: float | None = None) -> None:
        """Launch the graph, and do not wait for it. `hang_timeout` is that of `launch`, in seconds.

        It is submitted before this returns, so the caller's next work on its arrays is ordered after it. Its outcome
        is seen only in `dev.statistics()`. Launches in quick succession may share the ticket that reports their end,
        as in a batch: if a fault interrupts them, the arrays of all of them are torn.

        Raises `trio.WouldBlock` while the device is being rebuilt, and when 512 commands of the lane, without those of
        batches, are unfinished; and the errors that `launch` raises before anything is sent.
        """
        plan = self._plan
        if hang_timeout is None:
            self._device.check_running()  # first of all: a path belongs to the thread that makes it
            path = self._launches.present_unheard_path()
            if path is not None:
                self._catch_up(path)
            if self._repeated is not None and self._launches.begin_unheard(self._repeated, (self, plan)):
                return
        request = self._request(hang_timeout)
        self._device.check_running()
        self._device.module_actor.begin_nowait(request, self._device.current)
        self._learn(plan, self._launches.present_unheard_path())

    def update(self, node: GraphNode, *arguments: object, **keywords: object) -> None:
        """Give a node other arguments, from the next launch on. Sends nothing: the launch sends the change.

        `node` comes from the recording or from `nodes`. `arguments` are those of the kernel for a launch, whose grid,
        block and `touches` stay; the source and the target for a copy; the array and the value for a fill. A call of a
        library takes all `arguments` and `keywords` of its verb anew; without an ``out`` its result goes to the array
        that the recording has returned, and must be of that shape and dtype. Earlier launches run with the arguments
        at that time. The change is made in place if the driver can do it
        (``cuGraphExecKernelNodeSetParams`` and its kin). If the arrays bring other dependencies, or a copy is not
        contiguous, the graph is built again. An update costs the same in a graph of any size; other numbers for the
        same arrays of a kernel cost least, some microseconds with the launch. The next launch finds
        other dependencies, at some 3 us a node; `launch` lets other tasks run meanwhile.

        Raises `InvalidArgument` as the verb itself does, and for a node of another graph; the graph is then unchanged.
        """
        if getattr(node, "_recording", None) is not self._recording:
            own(self._device, node, GraphNode, "update takes a node of the graph")
            raise InvalidArgument(f"the node belongs to another graph: {node!r}")
        self._device.check_open()
        before, number = self._plan, node.index
        step = before.step(number)
        if keywords and not step.records.has_calls:
            raise InvalidArgument(f"a {step.operation} is updated by its arguments in order, without keywords")
        changed = None if step.renumber is None else step.renumber(step, arguments)
        if changed is None:
            changed = step.change(*arguments, **keywords)
        self._plan = plan = before.with_step(number, changed)
        repeated = self._repeated
        if repeated is not None and not (plan.keeps_order_of(before) and repeated.note(number, changed.records)):
            self._repeated = None

    def clone(self) -> Graph:
        """Return another graph with the same nodes and arguments, which is updated separately. Sends nothing.

        It is built with its first launch; launches of a graph never overlap each other on the device, and those of a
        clone may. The nodes of this graph are valid for the clone too.

        Raises `DeviceClosed` or `DeviceFailed` once the device takes no requests.
        """
        self._device.check_open()
        return Graph._create(self._device, self._plan, self._recording, self._born)

    # --- in a generation ----------------------------------------------------------------------------------------------

    def _learn(self, plan: GraphPlan, path: LaunchPath | None) -> None:
        """Prepare the short way for the next launch by this plan, if the worker has built the graph by it.

        A launch there requires no other command, so an update or build that may still fail must be over.
        """
        built = None if path is None else path.generation.graphs.get(self._number)
        if path is None or built is None or plan is not self._plan or built.records is not plan.records or built.ticket:
            return
        if self._repeated is None or self._repeated.changes:
            self._repeated = RepeatedLaunch(self._number, _operation_of(plan), plan, plan.records)
        path.learn_graph(self._repeated)

    def _catch_up(self, path: LaunchPath) -> None:
        """Prepare the short way for the next launch, if the worker has the graph but for a few changes of numbers.

        Nothing is settled within a batch. So after one update that goes the general way all would, until its end.
        """
        plan, repeated, generation = self._plan, self._repeated, path.generation
        built = generation.graphs.get(self._number)
        if built is None or built.ticket or (repeated is not None and repeated._key in path.launchers):
            return
        if repeated is None:
            if not plan.has_order(built.ancestors):
                return
            repeated = RepeatedLaunch(self._number, _operation_of(plan), plan, built.records)
            changes = list(itertools.islice(plan.changes_of(built.records), MOST_CHANGES + 1))
            if len(changes) > MOST_CHANGES or not all(repeated.note(number, records) for number, records in changes):
                return
        elif not repeated.follows(built):
            return
        for module in plan.modules:
            module._check_usable(generation, repeated.operation, plan.operands)
        self._repeated = repeated
        path.learn_graph(repeated)

    def _change_failed(self, generation: Generation, built: BuiltGraph) -> None:
        """Let the next launch build the graph: nobody knows what arguments it has in the worker."""
        self._repeated = None
        if generation.graphs.get(self._number) is built:
            del generation.graphs[self._number]

    def _request(self, hang_timeout: float | None, plan: GraphPlan | None = None) -> _LaunchRequest:
        self._device.check_open()
        if hang_timeout is not None:
            check_seconds("hang_timeout", hang_timeout)
        plan = plan or self._plan
        plan.check_freed()
        return _LaunchRequest(self, plan, hang_timeout)

    def _require(self, generation: Generation, plan: GraphPlan) -> tuple[int, ...]:
        """Tell a worker of the graph by this plan. Returns the ticket of that, if a launch must check it."""
        built = generation.graphs.get(self._number)
        if built is None or built.records is not plan.records:
            built = self._bring(generation, built, plan)
        return (built.ticket,) if built.ticket else ()

    def _is_brought_by_changes(self, plan: GraphPlan) -> bool:
        """Return whether the worker in service is told little for a launch by this plan."""
        if len(plan) <= FEW:  # to look would cost as much as to describe it
            return True
        generation = self._device.serving
        built = None if generation is None else generation.graphs.get(self._number)
        if built is None or built.records is plan.records:
            return built is not None
        return built.keeps_order_of(plan) and plan.difference(built.records, LARGEST_UPDATE) is not None

    def _bring(self, generation: Generation, built: BuiltGraph | None, plan: GraphPlan) -> BuiltGraph:
        self._repeated = None  # the worker is about to launch by this plan, which may be an older one
        for block, role in plan.operands:
            generation.order.check_block(block, role, f"launch of {self!r}")
        if built is not None and not plan.is_described and built.keeps_order_of(plan):
            changes = plan.difference(built.records, LARGEST_UPDATE)
            if changes is not None:
                self._change(generation, built, plan, *changes)
                return built
        return self._build(generation, plan)

    def _build(self, generation: Generation, plan: GraphPlan, request: _CaptureRequest | None = None) -> BuiltGraph:
        """Publish the build, behind the modules and chunks that it needs. `request` is told of its end."""
        plan.check_freed()
        self._device.release_dropped(generation)
        built = BuiltGraph(plan)
        required = {ticket for module in plan.modules for ticket in module._require(generation)}
        self._require_chunks(generation, plan, required)
        owner = _Preparation(self, generation, built, request)
        payload = BUILD.struct.pack(self._number, generation.workspace_room)
        with (
            self._defined(generation, plan),
            host_limits(
                "the graph cannot be described to the worker",
                device=generation.device,
                generation=generation.number,
                operation="graph.build",
            ),
            plan.take_description() as file,
        ):
            command = generation.publish(
                LANE_COMPUTE, BUILD, payload, (), owner, requires=required, descriptors=(file.fileno(),)
            )
        built.ticket = command.ticket
        generation.graphs[self._number] = built
        return built

    def _change(self, generation: Generation, built: BuiltGraph, plan: GraphPlan, verb: Verb, changes: bytes) -> None:
        """Publish the changes. They fail if an earlier command of the graph failed, so the newest ticket is enough."""
        required = {built.ticket} if built.ticket else set()
        self._require_chunks(generation, plan, required)
        owner = _Preparation(self, generation, built)
        payload = verb.struct.pack(self._number, generation.workspace_room) + changes
        with self._defined(generation, plan) if verb is UPDATE_CALLS else contextlib.nullcontext():
            command = generation.publish(LANE_COMPUTE, verb, payload, (), owner, requires=required)
        built.records, built.ticket = plan.records, command.ticket

    def _defined(self, generation: Generation, plan: GraphPlan) -> contextlib.AbstractContextManager[None]:
        """Define the plans of libraries on the compute lane, and keep them there until the block is left.

        The worker makes each of them once more for the graph, which keeps its own.
        """
        return self._device.part(Plans).defined(plan.plans, generation, LANE_COMPUTE)

    def _require_chunks(self, generation: Generation, plan: GraphPlan, required: set[int]) -> None:
        """Create the chunks of copies and fills, since the driver checks their addresses when the graph is built."""
        for chunk in {block.chunk for block, _ in plan.operands}:
            generation.order.require_chunk(chunk, required)

    def _warm(self, standby: Generation) -> None:
        """Make a standby build the graph, so that its first launch there finds it built."""
        plan = self._plan
        mapped = all(_is_mapped(block) for block, _ in plan.operands)
        if mapped and standby.ready and not self._device.strict and self._number not in standby.graphs:
            with contextlib.suppress(RequestError):  # then its first launch there builds it, or raises the error
                self._build(standby, plan)


def _is_mapped(block: Block) -> bool:
    """Return whether a standby has the memory of a block too."""
    return not block.freed and block.chunk.state is ChunkState.READY and block.chunk.descriptor >= 0


def _operation_of(plan: GraphPlan) -> str:
    return f"launch of a graph of {len(plan)} nodes"


class _LaunchRequest(CommandRequest):
    """One launch of a graph, by the plan at the time of its call."""

    __slots__ = ("_graph", "_plan")

    def __init__(self, graph: Graph, plan: GraphPlan, hang_timeout: float | None) -> None:
        payload = LAUNCH_GRAPH.struct.pack(graph._number)
        operation, keep = _operation_of(plan), (graph, plan)
        super().__init__(
            LAUNCH_GRAPH, payload, plan.operands, keep=keep, operation=operation, hang_timeout=hang_timeout
        )
        self._graph = graph
        self._plan = plan

    def start(self, generation: Generation) -> None:
        _check_born(self._graph._device, "the graph", self._graph._born, generation, "capture it again")
        for module in self._plan.modules:
            module._check_usable(generation, self.operation, self.operands)
        self._publish(generation, requires=self._graph._require(generation, self._plan))
        self.state = RequestState.STARTED


class _CaptureRequest(Request):
    """The first build of a graph."""

    __slots__ = ("_device", "_plan", "_recording", "graph")

    def __init__(self, device: DeviceCore, plan: GraphPlan, recording: Recording) -> None:
        super().__init__("graph.capture")
        self._device = device
        self._plan = plan
        self._recording = recording
        self.graph: Graph | None = None

    def start(self, generation: Generation) -> None:
        """Build the graph."""
        for module in self._plan.modules:
            module._check_usable(generation, "graph.capture", self._plan.operands)
        self.graph = Graph._create(self._device, self._plan, self._recording, generation.number)
        self.graph._build(generation, self._plan, self)
        self.state = RequestState.STARTED

    def settle_with(self, error: DeviceError | None) -> None:
        """Settle after the end of the build, or the loss of its generation."""
        if self.open:
            self.settle(outcome.Value(known(self.graph, "it was built")) if error is None else outcome.Error(error))


class _Preparation:
    """The owner of a build or an update. After a failed one, the next launch builds the graph again."""

    def __init__(
        self, graph: Graph, generation: Generation, built: BuiltGraph, request: _CaptureRequest | None = None
    ) -> None:
        self._graph = graph
        self._generation = generation
        self._built = built
        self._request = request

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Let the standbys build the graph too. Commands that require it get the same error."""
        graph, generation, built = self._graph, self._generation, self._built
        if error is not None:
            graph._change_failed(generation, built)
        elif built.ticket == command.ticket:
            built.ticket = 0
            for standby in generation.standbys:
                graph._warm(standby)
        self._settle(error)

    def command_lost(self, command: Command, error: DeviceError) -> None:
        """Settle the request: the next generation builds the graph again."""
        self._settle(error)

    def _settle(self, error: DeviceError | None) -> None:
        if self._request is not None:
            self._request.settle_with(error)


def _check_born(device: DeviceCore, what: str, born: int, generation: Generation, advice: str) -> None:
    if device.strict and born != generation.number:
        raise StaleKernel(
            f'{what} belongs to generation {born} and the device was opened with on_fault="stale"',
            device=generation.device,
            generation=generation.number,
            operation="graph.launch",
            advice=advice,
        )


def _destroy_unused(number: int, generation: Generation) -> None:
    """Make a worker destroy a graph that was collected, if it was told to build it."""
    if generation.graphs.pop(number, None) is not None:
        generation.publish(LANE_COMPUTE, DESTROY, DESTROY.struct.pack(number), (), Unwatched())


class Graphs(DevicePart):
    """The graphs of an open device."""

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self.living: Living[Graph] = Living()

    def warm(self, standby: Generation) -> None:
        """Make a new standby build all of them."""
        for graph in self.living:
            graph._warm(standby)


async def capture(device: DeviceCore, record: Callable[[GraphRecorder], object]) -> Graph:
    """Record a graph and build it. See `Device.capture`."""
    device.check_open()
    if not callable(record):
        raise InvalidArgument(f"record is a function, not {type(record).__name__}")
    await trio.lowlevel.checkpoint_if_cancelled()  # the caller's code must not run in a cancelled scope
    recorder = GraphRecorder._create(device)
    task = trio.lowlevel.current_task()
    device.recording.append(task)
    try:
        await _recorded(record, recorder)
    finally:
        device.recording.remove(task)
        recorder._end()
    plan = recorder._finished()
    async with _described_ahead(plan, lambda _: False):
        request = _CaptureRequest(device, plan, recorder._recording)
        graph: Graph = await device.module_actor.mailbox.ask(request)
        return graph


@contextlib.asynccontextmanager
async def _described_ahead(plan: GraphPlan, is_needless: Callable[[GraphPlan], bool]) -> AsyncIterator[None]:
    """Find the order of a plan and describe it, unless that is needless, and let other tasks run meanwhile.

    Nothing is sent. Without room for it, the build tries again, and raises the error.
    """
    try:
        for _ in plan.find_order():
            await trio.lowlevel.checkpoint()
        if not is_needless(plan):
            try:
                for _ in plan.describe():
                    await trio.lowlevel.checkpoint()
            except OSError as error:
                if shortage_of(error) is None:
                    raise
        yield
    finally:
        plan.forget_description()  # another task's request may have built the graph, or this one was refused
