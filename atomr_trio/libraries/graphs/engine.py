"""Graphs: commands that are described once, and launched together.

A graph is described by steps. A step has one or several records of other engines, in order, and the steps that it comes
after. Only the user's process knows which arrays a step uses, and has made the edges from that. Launches, copies and
fills are added node by node.

What a call of a library puts on the GPU is the library's business, so such a call is captured: on a lane that the graph
has for itself (``_worker/base/captures.py``), into a graph that becomes a child of this one. Calls of one library use
one handle and one workspace. So they run one after the other, whatever else orders them.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Sequence
from ctypes import addressof, byref, c_int, c_size_t, c_void_p, create_string_buffer
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from atomr_cuda.constants.driver import (
    CU_GRAPH_NODE_TYPE_KERNEL,
    CU_LAUNCH_ATTRIBUTE_PRIORITY,
    CU_MEMORYTYPE_DEVICE,
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
    CUDA_ERROR_INVALID_VALUE,
    CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY,
)

from ..._wire.protocol import Verb
from ..._wire.records.memory import BOX, COPY, FILL
from ..._wire.records.module import LAUNCH
from ..._wire.status import StatusClass, classify
from ..._worker.base.calls import made_ready
from ..._worker.base.captures import CaptureLane
from ..._worker.base.giving_back import GivingBack
from ..._worker.base.lanes import NativeCall, Ready, RecordWords, Target
from ..._worker.base.memory import SEED_BYTES
from ..._worker.base.native_calls import native_call

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..._worker.base.lanes import Command, Lane, WorkerServices
    from ..modules.engine import ModuleEngine
from .records import (
    BUILD,
    DESTROY,
    GRAPH,
    LAUNCH_GRAPH,
    SET_ARGUMENTS,
    UPDATE,
    UPDATE_CALLS,
    Step,
    Verbs,
    capturable,
    decode_steps,
)

_WORD = 8
_LONGEST_ROW = 1 << 30
"""A copy node is described by rows with a pitch, and a pitch has 31 bits."""
_MOST_ENTRIES = 256
"""Of a stream's queue that a launch is taken to make, however many nodes its graph has."""


_NOT_IN_PLACE = frozenset({CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE})
"""Statuses of the driver for a change that it can make only by a new graph."""

_Triple = tuple[int, int, int]


class _Kind(NamedTuple):
    """The functions of the driver for one kind of node."""

    add: Any
    change: Any
    """Change a node of an instantiated graph."""
    takes_context: bool


class _Part(NamedTuple):
    """One node of the driver: its kind, its parameters, and the memory that these point to."""

    kind: _Kind
    parameters: Any
    """A structure, or a child graph."""
    keep: Any = None
    attributes: Sequence[Any] = ()
    """The ``CUlaunchAttribute`` array of a kernel. It stays with the node when its parameters change."""
    engine: int = 0
    """The number of the engine whose call a child graph is; 0 for what is no child graph."""

    @property
    def argument(self) -> Any:
        """The parameters as the functions take them."""
        return self.parameters if self.engine else byref(self.parameters)


class _Launch:
    """A kernel's node whose arguments are set again and again: only the bytes of its parameters change."""

    __slots__ = ("block", "content", "node", "parameters")

    def __init__(self, payload: bytes, node: Any, part: _Part) -> None:
        buffer, _ = part.keep
        self.node: Any = node
        self.parameters: _Part = part
        """Points to these bytes."""
        self.content: memoryview = memoryview(buffer).cast("B")[: len(payload)]
        """The payload of its record."""
        self.block: memoryview = memoryview(buffer).cast("B")[LAUNCH.struct.size :]
        """Its parameter block, with room for whole words."""

    @property
    def address(self) -> int:
        """The address of the parameter block."""
        return addressof(self.parameters.keep[0]) + LAUNCH.struct.size


def _with(nodes: list[Any], another: Any) -> list[Any]:
    """Return nodes to come after, with one more; the driver takes none twice."""
    if another is None or any(node.value == another.value for node in nodes):
        return nodes
    return [*nodes, another]


class _BuiltGraph:
    """A graph in the driver: the nodes of each step, and the graph that is launched."""

    __slots__ = (
        "allowed",
        "apart",
        "entries",
        "executable",
        "graph",
        "has_priorities",
        "lane",
        "last_calls",
        "launches",
        "nodes",
        "others",
        "steps",
    )

    def __init__(self, steps: list[Step], graph: Any, lane: CaptureLane | None, allowed: int) -> None:
        self.steps = steps
        self.graph = graph
        self.nodes: list[list[Any]] = []
        self.executable: Any = None
        self.lane: CaptureLane | None = lane
        """The lane of its calls of libraries, if it has any."""
        self.allowed: int = allowed
        """The bytes that all workspaces of the worker may take, when it was built or changed last."""
        self.last_calls: dict[int, Any] = {}
        """The last node that is a call of a library, by the number of its engine."""
        self.others: int = 0
        """The number of nodes that are no kernels."""
        self.apart: int = 0
        """The number of nodes that do not come just after the one that was added before."""
        self.entries: int = 1
        """The number of entries of a stream's queue that a launch makes; see `_entries_of`."""
        self.has_priorities = False
        """Tell whether a node has its own priority. The others then get the default priority of a stream."""
        self.launches: dict[int, _Launch] = {}
        """The launches whose arguments were set, by the number of their step. They have the arguments as they are."""

    def present_steps(self) -> list[Step]:
        """Return the steps with their arguments as they are."""
        for number, launch in self.launches.items():
            self.steps[number] = self.steps[number]._replace(records=((LAUNCH, bytes(launch.content)),))
        return self.steps


def _entries_of(built: _BuiltGraph) -> int:
    """Return the most entries of a stream's queue that a launch is taken to make.

    On an H200 a stream took 1,020 launches of a graph of kernels in one line, however long, or in layers; 10 with 100
    fills in one line, 25 with 20 fills among 80 kernels, and 81 with 100 nodes side by side. The nodes of child graphs
    count as others do: on an H100 it took 1,021 with 100 children of a kernel each, or with 10 of two, and 92 with five
    in each of which a fill lay between two kernels.
    """
    return min(1 + 2 * built.others + built.apart // 7, _MOST_ENTRIES)


class GraphEngine:
    """The calls behind the verbs above."""

    table = GRAPH

    def __init__(self, services: WorkerServices, modules: ModuleEngine) -> None:
        from atomr_cuda import driver

        self._driver = driver
        self._services = services
        self._modules = modules
        self._graphs: dict[int, _BuiltGraph] = {}
        self._refused: dict[int, Exception] = {}
        """The errors of changes that have failed, by the number of the graph. Until it is built anew, nobody knows
        which arguments a launch would have."""
        self._giving_back = GivingBack(services.cuda_error)
        self._verbs: Verbs = {}
        """Those that can be steps, of all engines, once they are needed."""
        self._kernel = _Kind(driver.cuGraphAddKernelNode, driver.cuGraphExecKernelNodeSetParams, False)
        self._memcpy = _Kind(driver.cuGraphAddMemcpyNode, driver.cuGraphExecMemcpyNodeSetParams, True)
        self._memset = _Kind(driver.cuGraphAddMemsetNode, driver.cuGraphExecMemsetNodeSetParams, True)
        self._child = _Kind(driver.cuGraphAddChildGraphNode, driver.cuGraphExecChildGraphNodeSetParams, False)
        self._parts: dict[Verb, Callable[[bytes], Iterator[_Part]]] = {
            LAUNCH: self._launch_parts,
            COPY: self._copy_parts,
            FILL: self._fill_parts,
        }
        self.calls: dict[int, Callable[[Command, Lane], Any]] = {
            BUILD.number: self._build,
            LAUNCH_GRAPH.number: self._launch,
            UPDATE.number: self._update,
            UPDATE_CALLS.number: self._update,
            SET_ARGUMENTS.number: self._set_arguments,
            DESTROY.number: self._destroy,
        }

    # Records.

    def _build(self, command: Command, lane: Lane) -> None:
        number, allowed = BUILD.struct.unpack_from(command.payload)
        with open(command.take_descriptor(), "rb") as file:
            file.seek(0)  # it was written through the same descriptor
            steps = self._decoded(file.read())
        self._rebuild(number, steps, lane, allowed)

    def _whole(self, number: int) -> _BuiltGraph:
        """Return a graph. Raises the error of a change of it that has failed."""
        error = self._refused.get(number)
        if error is not None:
            raise error.with_traceback(None)
        return self._graphs[number]

    def _launch(self, command: Command, lane: Lane) -> None:
        (number,) = LAUNCH_GRAPH.struct.unpack(command.payload)
        built = self._whole(number)
        lane.weigh(command.ticket, built.entries)
        with lane.calling:
            self._driver.cuGraphLaunch(built.executable, lane.stream)

    def hot_call(self, verb: int, payload: bytes, lane: Lane, places: Sequence[int] = ()) -> Ready | None:
        """Return a launch, or a change of arguments, ready to be made; see `RepeatingEngine`."""
        if verb not in (LAUNCH_GRAPH.number, SET_ARGUMENTS.number):
            return None
        (number,) = LAUNCH_GRAPH.struct.unpack_from(payload)
        built = self._graphs.get(number)
        if built is None or number in self._refused:
            return None
        return (self._ready_launch if verb == LAUNCH_GRAPH.number else self._ready_change)(built, payload, lane, places)

    def _ready_launch(self, built: _BuiltGraph, payload: bytes, lane: Lane, places: Sequence[int]) -> Ready | None:
        if places:
            return None
        launch = self._driver.cuGraphLaunch
        call = partial(launch.status, built.executable, lane.stream)
        entries = built.entries

        def error_of(status: int) -> Exception:
            error: Exception = launch.library.error(status, launch.symbol)
            return error

        if entries == 1:
            arguments = (built.executable.value, lane.stream.value)
            native = partial(native_call, launch, arguments, 0, self._services.give_up)
            return Ready(lambda _: call(), error_of, alone=False, native=native)
        return made_ready(lambda: lane.weigh(lane.made_now, entries), lambda _: call(), error_of, alone=True)

    def _ready_change(self, built: _BuiltGraph, payload: bytes, lane: Lane, places: Sequence[int]) -> Ready | None:
        number, step = SET_ARGUMENTS.struct.unpack_from(payload)
        if tuple(places) != tuple(range(SET_ARGUMENTS.struct.size, len(payload), _WORD)):
            return None
        try:
            launch, change = self._launch_of(built, step), self._kernel.change
        except self._services.cuda_error:
            return None
        write = struct.Struct(f"<{len(places)}Q").pack_into
        call = partial(change.status, built.executable, launch.node, launch.parameters.argument)

        def set_words(words: RecordWords) -> int:
            write(launch.block, 0, *words)
            status: int = call()
            if status in _NOT_IN_PLACE:
                self._rebuild(number, built.present_steps(), lane, built.allowed)
                return 0
            return status

        def error_of(status: int) -> Exception:
            error: Exception = change.library.error(status, change.symbol)
            return error

        def native() -> NativeCall | None:
            arguments = (built.executable.value, launch.node.value, addressof(launch.parameters.parameters))
            made = native_call(change, arguments, 0, self._services.give_up)
            targets = [Target(index, launch.address + _WORD * index) for index in range(len(places))]
            return None if made is None else made._replace(targets=targets, keep=(made.keep, launch))

        ready = made_ready(lambda: None, set_words, error_of)
        return ready._replace(error=lambda status: self._refuse(number, ready.error(status)), native=native, again=True)

    def _set_arguments(self, command: Command, lane: Lane) -> None:
        number, step = SET_ARGUMENTS.struct.unpack_from(command.payload)
        built, given = self._whole(number), command.payload[SET_ARGUMENTS.struct.size :]
        with self._refusing(number):
            launch = self._launch_of(built, step)
            launch.block[: len(given)] = given
            if not self._changes(built, launch.node, launch.parameters):
                self._rebuild(number, built.present_steps(), lane, built.allowed)

    def _launch_of(self, built: _BuiltGraph, step: int) -> _Launch:
        """Return the node of a step that is one launch, to set its arguments."""
        launch = built.launches.get(step)
        if launch is None:
            ((_, payload),), (node,) = built.steps[step].records, built.nodes[step]
            (part,) = self._launch_parts(payload)
            launch = built.launches[step] = _Launch(payload, node, part)
        return launch

    def _refuse(self, number: int, error: Exception) -> Exception:
        """Note that a change has failed, and return its error. No launch is made ready from now on."""
        self._refused[number] = error
        self._services.forget_hot()
        return error

    @contextlib.contextmanager
    def _refusing(self, number: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._refuse(number, error)
            raise

    def _update(self, command: Command, lane: Lane) -> None:
        number, allowed = UPDATE.struct.unpack_from(command.payload)
        built = self._whole(number)
        built.allowed = allowed
        fits = True
        with self._refusing(number):
            with contextlib.ExitStack() as captured:
                for step in self._decoded(command.payload[UPDATE.struct.size :]):
                    built.steps[step.number] = step._replace(after=built.steps[step.number].after)
                    launch = built.launches.get(step.number)
                    if launch is not None:
                        ((_, payload),) = step.records
                        launch.content[:] = payload
                    fits = fits and self._change(built, step, captured)
            if not fits:
                self._rebuild(number, built.present_steps(), lane, allowed)

    def _destroy(self, command: Command, lane: Lane) -> None:
        (number,) = DESTROY.struct.unpack_from(command.payload)
        built = self._graphs.pop(number, None)
        self._refused.pop(number, None)
        if built is not None:
            self._services.forget_hot()
            self._give_back(built, lane)

    def _rebuild(self, number: int, steps: list[Step], lane: Lane, allowed: int) -> None:
        """Build a graph in the place of an older one, if there is one. It takes over the lane of the older one's calls.

        Launches of the two never overlap, since all are in the order of one lane. So one workspace is enough.
        """
        older = self._graphs.pop(number, None)
        calls_lane = None
        if older is not None:
            self._services.forget_hot()
            calls_lane, older.lane = older.lane, None
            with contextlib.suppress(self._services.cuda_error):
                self._give_back(older, lane)
        self._graphs[number] = self._built(steps, lane, calls_lane, allowed)
        self._refused.pop(number, None)

    def _decoded(self, content: bytes) -> list[Step]:
        verbs = self._verbs = self._verbs or capturable(engine.table for engine in self._services.engines.values())
        return list(decode_steps(content, verbs))

    def _give_back(self, built: _BuiltGraph, lane: Lane) -> None:
        """Give a graph back. A launch that runs on this lane goes on; the driver waits for it.

        What its calls used is given back in a thread, which waits for the last launch.
        """
        try:
            self._giving_back.make(self._calls_to_destroy(built))
        finally:
            if built.lane is not None:
                wait = partial(lane.ask, self._driver.cuStreamSynchronize.status)
                self._services.give_back([wait, *self._forgotten(built.lane)])

    def _forgotten(self, lane: CaptureLane) -> list[Callable[[], object]]:
        """Let every engine forget a lane of a graph, and return the calls that give all of it back."""
        found = (engine.forget_lane(lane.index) for engine in self._services.engines.values())
        return [*(call for calls in found for call in calls), lane.destroy]

    def _calls_to_destroy(self, built: _BuiltGraph) -> list[Callable[[], object]]:
        driver = self._driver
        calls = [partial(driver.cuGraphExecDestroy, built.executable)] if built.executable is not None else []
        return [*calls, partial(driver.cuGraphDestroy, built.graph)] if built.graph.value else []

    def forget_lane(self, index: int) -> tuple[()]:
        """Nothing here belongs to a lane."""
        return ()

    def close(self) -> None:
        """Give every graph back."""
        for built in self._graphs.values():
            self._giving_back.make(self._calls_to_destroy(built))
            if built.lane is not None:
                self._giving_back.make(self._forgotten(built.lane))
        self._graphs.clear()

    # Building.

    def _built(self, steps: list[Step], lane: Lane, calls_lane: CaptureLane | None, allowed: int) -> _BuiltGraph:
        driver = self._driver
        built = _BuiltGraph(steps, driver.CUgraph(), calls_lane, allowed)
        try:
            driver.cuGraphCreate(byref(built.graph), 0)
            self._prepare_all_calls(built, steps)
            with contextlib.ExitStack() as captured:
                for step in steps:
                    built.nodes.append(self._add_step(built, step, captured))
            executable = driver.CUgraphExec()
            driver.cuGraphInstantiate(
                byref(executable),
                built.graph,
                CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY if built.has_priorities else 0,
            )
            built.executable = executable
            built.entries = _entries_of(built)
            driver.cuGraphUpload(executable, lane.stream)  # otherwise the first launch would take the time
        except BaseException:
            with contextlib.suppress(self._services.cuda_error):
                self._give_back(built, lane)
            raise
        return built

    def _prepare_all_calls(self, built: _BuiltGraph, steps: Sequence[Step]) -> None:
        """Do it again if there is too little memory while older graphs are about to give theirs back."""
        try:
            self._prepare_calls(built, steps)
        except self._services.cuda_error as error:
            if classify(error.status, error.library) is not StatusClass.OUT_OF_MEMORY:
                raise
            self._services.wait_given_back()
            self._prepare_calls(built, steps)

    def _prepare_calls(self, built: _BuiltGraph, steps: Sequence[Step]) -> None:
        """Make all that the calls of libraries in these steps need, before the first of them is captured."""
        for step in steps:
            for verb, payload in step.records:
                if verb not in self._parts:
                    built.lane = built.lane or CaptureLane(self._services)
                    built.lane.prepare(verb, payload, built.allowed)

    def _add_step(self, built: _BuiltGraph, step: Step, captured: contextlib.ExitStack) -> list[Any]:
        """Add the nodes of a step in order. The first one comes after the last node of every step before it.

        What `captured` is given is destroyed once all steps were added.
        """
        before = [built.nodes[number][-1] for number in step.after]
        nodes: list[Any] = []
        for part in self._parts_of(built, step, captured):
            context = (self._context(),) if part.kind.takes_context else ()
            if part.engine:
                before = _with(before, built.last_calls.get(part.engine))
            others, apart = self._contents_of(part)
            built.others += others
            built.apart += apart + (not (nodes or (step.number and step.after == (step.number - 1,))))
            nodes.append(self._add(built.graph, part.kind.add, before, part.argument, *context))
            if part.engine:
                built.last_calls[part.engine] = nodes[-1]
            for attribute in part.attributes:
                self._driver.cuGraphKernelNodeSetAttribute(nodes[-1], attribute.id, byref(attribute.value))
                built.has_priorities |= attribute.id == CU_LAUNCH_ATTRIBUTE_PRIORITY
            before = nodes[-1:]
        # A copy of no elements moves nothing, and keeps its place in the order.
        return nodes or [self._add(built.graph, self._driver.cuGraphAddEmptyNode, before)]

    def _contents_of(self, part: _Part) -> tuple[int, int]:
        """Return the numbers of a node's nodes that are no kernels, and of those that may lie beside others.

        Both of a node without a child graph are its own.
        """
        if not part.engine:
            return part.kind is not self._kernel, 0
        driver, graph = self._driver, part.parameters
        count, kind = c_size_t(), c_int()
        driver.cuGraphGetNodes(graph, None, byref(count))
        nodes = (driver.CUgraphNode * count.value)()
        driver.cuGraphGetNodes(graph, nodes, byref(count))
        others = 0
        for node in nodes:
            driver.cuGraphNodeGetType(node, byref(kind))
            others += kind.value != CU_GRAPH_NODE_TYPE_KERNEL
        edges = c_size_t(len(nodes))
        before, after = ((driver.CUgraphNode * len(nodes))() for _ in range(2))
        # It refuses edges with more to them than order.
        refused = driver.cuGraphGetEdges.status(graph, before, after, byref(edges))
        earlier = {node for node in before if node}
        in_line = not refused and edges.value == len(earlier) == len(nodes) - 1
        return others, 0 if in_line else len(nodes)

    def _add(self, graph: Any, add: Callable[..., Any], before: Sequence[Any], *arguments: Any) -> Any:
        node = self._driver.CUgraphNode()
        handles = (self._driver.CUgraphNode * len(before))(*(each.value for each in before))
        add(byref(node), graph, handles, len(before), *arguments)
        return node

    def _change(self, built: _BuiltGraph, step: Step, captured: contextlib.ExitStack) -> bool:
        """Change the parameters of a step's nodes in place; return false when the driver refuses them."""
        self._prepare_calls(built, [step])
        nodes, parts = built.nodes[step.number], list(self._parts_of(built, step, captured))
        if len(nodes) != len(parts):
            return False
        return all(self._changes(built, node, part) for node, part in zip(nodes, parts, strict=True))

    def _changes(self, built: _BuiltGraph, node: Any, part: _Part) -> bool:
        """Change the parameters of a node in place; return false when the driver refuses them."""
        context = (self._context(),) if part.kind.takes_context else ()
        try:
            part.kind.change(built.executable, node, part.argument, *context)
        except self._services.cuda_error as error:
            # Copies of rows cannot be changed, nor can the kind of a node or the size of a fill.
            if error.status not in _NOT_IN_PLACE:
                raise
            return False
        return True

    def _context(self) -> Any:
        context = self._driver.CUcontext()
        self._driver.cuCtxGetCurrent(byref(context))
        return context

    # Nodes.

    def _parts_of(self, built: _BuiltGraph, step: Step, captured: contextlib.ExitStack) -> Iterator[_Part]:
        for verb, payload in step.records:
            make = self._parts.get(verb)
            if make is not None:
                yield from make(payload)
            elif built.lane is not None:
                graph = built.lane.capture(verb, payload)
                captured.callback(self._driver.cuGraphDestroy, graph)  # its node has a copy
                yield _Part(self._child, graph, engine=verb.engine_number)

    def _launch_parts(self, payload: bytes) -> Iterator[_Part]:
        _, gx, gy, gz, bx, by, bz, shared, _ = LAUNCH.struct.unpack_from(payload)
        function, offsets, attributes = self._modules.for_graph(payload)
        # Not one buffer of all parameters, as for a launch: a node with such a buffer takes no cooperative attribute.
        buffer = create_string_buffer(payload, len(payload) + _WORD)
        first = addressof(buffer) + LAUNCH.struct.size
        pointers = (c_void_p * max(len(offsets), 1))(*(first + offset for offset in offsets))
        where = addressof(pointers)
        parameters = self._driver.CUDA_KERNEL_NODE_PARAMS(function, gx, gy, gz, bx, by, bz, shared, where, None)
        yield _Part(self._kernel, parameters, (buffer, pointers), attributes)

    def _copy_parts(self, payload: bytes) -> Iterator[_Part]:
        for *sides, width, height, depth in BOX.iter_unpack(payload):
            destination, source = (sides[0], sides[1], sides[2]), (sides[3], sides[4], sides[5])
            if height == depth == 1:
                yield from self._run_parts(destination[0], source[0], width)
            else:
                yield self._copied(destination, source, (width, height, depth))

    def _run_parts(self, destination: int, source: int, size: int) -> Iterator[_Part]:
        """A copy of one run of bytes."""
        for at in range(0, size, _LONGEST_ROW):
            width = min(_LONGEST_ROW, size - at)
            yield self._copied((destination + at, width, 1), (source + at, width, 1), (width, 1, 1))

    def _copied(self, destination: _Triple, source: _Triple, extent: _Triple) -> _Part:
        """Copy planes of rows. Each side is an address, a pitch, and the number of rows from one plane to the next."""
        box = self._driver.CUDA_MEMCPY3D()
        box.dstMemoryType = box.srcMemoryType = CU_MEMORYTYPE_DEVICE
        box.dstDevice, box.dstPitch, box.dstHeight = destination
        box.srcDevice, box.srcPitch, box.srcHeight = source
        box.WidthInBytes, box.Height, box.Depth = extent
        return _Part(self._memcpy, box)

    def _fill_parts(self, payload: bytes) -> Iterator[_Part]:
        address, pitch, itemsize, width, height, pattern = FILL.struct.unpack(payload)
        unit = min(itemsize, 4)
        words = [pattern[at : at + unit] for at in range(0, itemsize, unit)]
        if len(set(words)) == 1:
            yield self._filled(address, pitch, words[0], width * len(words), height)
        else:
            yield from self._fill_wide_parts(address, pitch, words, width, height)

    def _filled(self, address: int, pitch: int, word: bytes, width: int, height: int) -> _Part:
        """Fill `height` rows of `width` words of 1, 2 or 4 bytes."""
        value = int.from_bytes(word, "little")
        return _Part(
            self._memset, self._driver.CUDA_MEMSET_NODE_PARAMS(address, pitch, value, len(word), width, height)
        )

    def _fill_wide_parts(
        self, address: int, pitch: int, words: list[bytes], width: int, height: int
    ) -> Iterator[_Part]:
        """Fill with a wider pattern. The driver sets at most four bytes at a time, so the first part is written word by
        word, and copies double it."""
        itemsize = 4 * len(words)
        total = width * itemsize
        done = min(total, SEED_BYTES // itemsize * itemsize)
        for number, word in enumerate(words):
            yield self._filled(address + 4 * number, itemsize, word, 1, done // itemsize)
        while done < total:
            step = min(done, total - done)
            yield from self._run_parts(address + done, address, step)
            done += step
        rows = 1
        while rows < height:
            step = min(rows, height - rows)
            yield self._copied((address + rows * pitch, pitch, step), (address, pitch, step), (total, step, 1))
            rows += step
