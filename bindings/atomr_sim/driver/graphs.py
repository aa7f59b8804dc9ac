"""Graphs of the simulated driver: nodes and their edges, captures, instantiated graphs, and their launches.

A node's parameters are checked and copied when they are given, as in the driver. An instantiated graph keeps its own
copy of them. It is one piece of work of the stream on which it is launched, and a fault in a node ends that stream like
the fault of a launch. Nodes that no edge orders run in the reverse order of their addition, so that a missing edge
shows.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from atomr_cuda import driver
from atomr_cuda.driver import (
    CUDA_KERNEL_NODE_PARAMS,
    CUDA_MEMCPY3D,
    CUDA_MEMSET_NODE_PARAMS,
    CUgraphInstantiate_flags,
    CUgraphNodeType,
    CUstreamCaptureStatus,
)

from .._status import INVALID_VALUE, NOT_SUPPORTED, Refused, require
from ..engine.memory import ILLEGAL_ADDRESS, DeviceFault
from .captures import IMPLICIT, UNSUPPORTED, CapturedNode, NodeForm
from .launches import Attributes, PreparedKernel, prepared as prepared_launch
from .process import Context, Process
from .streams import DefaultStream, Stream
from .table import Needs, entry, give
from .transfers import BoxCopy, Fill, is_empty

_KERNEL = CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL
_MEMCPY = CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMCPY
_MEMSET = CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET
_EMPTY = CUgraphNodeType.CU_GRAPH_NODE_TYPE_EMPTY
_CHILD = CUgraphNodeType.CU_GRAPH_NODE_TYPE_GRAPH
_ALLOCATING = (CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEM_ALLOC, CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEM_FREE)
"""The kinds of nodes that a child graph must not have."""

_HARMLESS_FLAGS = (
    CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
    | CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY
)
"""Flags without an effect here. Of the others, the flag for an upload is for ``cuGraphInstantiateWithParams`` alone."""


class Task:
    """The work of a node, with the parameters that it was given."""

    def __init__(
        self,
        kind: CUgraphNodeType,
        work: Callable[[], None],
        extent: tuple[Any, ...] = (),
        children: Sequence[Task] = (),
    ) -> None:
        self.kind = kind
        self.work = work
        self.extent = extent
        """The property that an instantiated node cannot change; for a copy, whether it has more than one dimension; for
        a child graph, its edges."""
        self.children = children
        """The tasks of a child graph, in the order in which its nodes were added."""

    @property
    def has_kernels(self) -> bool:
        return self.kind is _KERNEL or any(child.has_kernels for child in self.children)

    def replaceable_by(self, other: Task) -> bool:
        """Tell whether an instantiated node with this task can be given another one."""
        if self.kind is not other.kind:
            return False
        if self.kind is _CHILD:
            alike = self.extent == other.extent and len(self.children) == len(other.children)
            return alike and all(map(Task.replaceable_by, self.children, other.children))
        if self.kind is _MEMCPY:
            return not any((*self.extent, *other.extent))
        return self.extent == other.extent

    def keeping_attributes_of(self, other: Task) -> Task:
        """Return this task, for a kernel with the attributes of the task that it replaces."""
        if isinstance(self.work, PreparedKernel) and isinstance(other.work, PreparedKernel):
            return Task(self.kind, self.work.with_attributes(other.work.attributes))
        return self


class Node:
    """One node of a graph, and the nodes that come before it."""

    def __init__(self, graph: Graph, task: Task, before: Iterable[Node]) -> None:
        self.graph = graph
        self.task = task
        self.before: list[Node] = list(before)


class Graph:
    """Nodes in the order in which they were added, with the numbers that stand for them."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}

    def in_order(self) -> list[Node]:
        """Return the nodes, each after those that come before it; refuse edges that form a cycle."""
        nodes = list(self.nodes.values())
        place = {node: -index for index, node in enumerate(nodes)}
        missing = {node: len(node.before) for node in nodes}
        after: dict[Node, list[Node]] = {node: [] for node in nodes}
        for node in nodes:
            for earlier in node.before:
                after[earlier].append(node)
        ready = [place[node] for node in nodes if not missing[node]]
        heapq.heapify(ready)
        ordered = []
        while ready:
            node = nodes[-heapq.heappop(ready)]
            ordered.append(node)
            for later in after[node]:
                missing[later] -= 1
                if not missing[later]:
                    heapq.heappush(ready, place[later])
        require(len(ordered) == len(nodes))
        return ordered


class ExecutableGraph:
    """A graph as it was when it was instantiated, and the stream of its last launch."""

    def __init__(self, graph: Graph) -> None:
        self.tasks: dict[Node, Task] = {node: node.task for node in graph.in_order()}
        self._last: tuple[Stream, int] | None = None

    def launch(self, process: Process, stream_handle: int | None) -> None:
        """Queue the present tasks of the nodes, after the stream's work and after the last launch of this graph."""
        tasks = list(self.tasks.values())
        stream = process.stream(stream_handle)
        kernels = any(task.has_kernels for task in tasks)
        if stream.capture is not None:
            process.submit(stream_handle, lambda: _run(process, tasks), form=NodeForm(_CHILD))
            return
        if self._last is not None and self._last[0] is not stream:
            earlier, last_place = self._last
            process.submit(stream_handle, lambda: earlier.wait_inside(last_place))
        self._last = stream, process.submit(stream_handle, lambda: _run(process, tasks), kernel=kernels)


def _run(process: Process, tasks: list[Task]) -> None:
    for task in tasks:
        if task.kind is _KERNEL and process.fate.status:
            raise DeviceFault(process.fate.status, "a kernel of a graph was due in a lost process")
        task.work()


# The tasks of nodes.


def _kernel(process: Process, given: Any) -> Task:
    require(given)
    wanted: CUDA_KERNEL_NODE_PARAMS = given[0]
    require(wanted.func or not wanted.kern, NOT_SUPPORTED)
    grid = (wanted.gridDimX, wanted.gridDimY, wanted.gridDimZ)
    block = (wanted.blockDimX, wanted.blockDimY, wanted.blockDimZ)
    shared, parameters, extra = wanted.sharedMemBytes, wanted.kernelParams, wanted.extra
    kernel = prepared_launch(process, wanted.func, grid, block, shared, parameters, extra)
    return Task(_KERNEL, kernel.with_attributes(Attributes()))


@entry(driver.cuGraphKernelNodeSetAttribute)
def _set_attribute(process: Process, handle: int | None, number: int, value: Any) -> None:
    require(value)
    node = process.handles.get(handle, Node, INVALID_VALUE)
    kernel = node.task.work
    require(isinstance(kernel, PreparedKernel))
    assert isinstance(kernel, PreparedKernel)
    attributes = kernel.attributes.having(number, value[0])
    require(not (attributes.cooperative and kernel.in_one_buffer))  # as seen on an H200
    node.task = Task(_KERNEL, kernel.with_attributes(attributes))


def _memcpy(process: Process, given: Any, context: int | None) -> Task:
    require(given)
    device = process.handles.get(context, Context, INVALID_VALUE).device
    wanted = CUDA_MEMCPY3D.from_buffer_copy(given[0])
    require(not is_empty(wanted))
    flat = BoxCopy(process, device, wanted).one_dimensional
    return Task(_MEMCPY, _checked_again(lambda: BoxCopy(process, device, wanted).move), (not flat,))


def _memset(process: Process, given: Any, context: int | None) -> Task:
    require(given)
    device = process.handles.get(context, Context, INVALID_VALUE).device
    wanted: CUDA_MEMSET_NODE_PARAMS = given[0]
    size, width, height = wanted.elementSize, wanted.width, wanted.height
    require(size in (1, 2, 4))
    pitch = wanted.pitch if height > 1 else 0
    fill = Fill(wanted.dst, size, width, height, pitch)
    require(not fill.empty)
    value = wanted.value & (1 << 8 * size) - 1
    fill.prepared(process, device, value)
    return Task(_MEMSET, _checked_again(lambda: fill.prepared(process, device, value)), (size, width, height, pitch))


def _checked_again(prepare: Callable[[], Callable[[], None]]) -> Callable[[], None]:
    """Return the function that a node runs each time: its memory may be gone since its parameters were checked."""

    def work() -> None:
        try:
            move = prepare()
        except Refused:
            raise DeviceFault(ILLEGAL_ADDRESS, "a node of a graph uses memory that no longer exists") from None
        move()

    return work


# Making graphs.


def _graph(process: Process, handle: int | None) -> Graph:
    return process.handles.get(handle, Graph, INVALID_VALUE)


def _executable(process: Process, handle: int | None) -> ExecutableGraph:
    return process.handles.get(handle, ExecutableGraph, INVALID_VALUE)


@entry(driver.cuGraphCreate)
def _graph_create(process: Process, result: Any, flags: int) -> None:
    require(result and flags == 0)
    give(result, process.handles.add(Graph(), process.current().handle))


@entry(driver.cuGraphDestroy)
def _graph_destroy(process: Process, handle: int | None) -> None:
    for node in _graph(process, handle).nodes:
        process.handles.pop(node)
    process.handles.pop(handle)


def _nodes(process: Process, graph: Graph, handles: Any, count: int) -> list[Node]:
    """Return the nodes behind an array of handles, all of which must be of this graph."""
    require(handles or not count)
    nodes = [process.handles.get(handles[at], Node, INVALID_VALUE) for at in range(count)]
    require(all(node.graph is graph for node in nodes))
    return nodes


def _add(process: Process, result: Any, handle: int | None, before: Any, count: int, make: Callable[[], Task]) -> None:
    require(result)
    graph = _graph(process, handle)
    earlier = _nodes(process, graph, before, count)
    require(len(set(earlier)) == count)
    node = Node(graph, make(), earlier)
    number = process.handles.add(node, process.current().handle)
    graph.nodes[number] = node
    give(result, number)


@entry(driver.cuGraphAddEmptyNode)
def _add_empty(process: Process, result: Any, graph: int | None, before: Any, count: int) -> None:
    _add(process, result, graph, before, count, lambda: Task(_EMPTY, lambda: None))


@entry(driver.cuGraphAddDependencies)
def _add_dependencies(process: Process, handle: int | None, before: Any, after: Any, count: int) -> None:
    graph = _graph(process, handle)
    edges = list(zip(*(_nodes(process, graph, each, count) for each in (before, after)), strict=True))
    require(len(set(edges)) == count and all(earlier not in later.before for earlier, later in edges))
    for earlier, later in edges:
        later.before.append(earlier)


# What a graph consists of.


def _give_all(found: Sequence[Any], result: Any, count: Any) -> None:
    """Give as many of these as there is room for; the rest of the room is empty."""
    for at in range(count[0] if result else 0):
        result[at] = found[at] if at < len(found) else None


@entry(driver.cuGraphGetNodes)
def _get_nodes(process: Process, handle: int | None, nodes: Any, count: Any) -> None:
    require(count)
    found = list(_graph(process, handle).nodes)
    _give_all(found, nodes, count)
    count[0] = min(count[0], len(found)) if nodes else len(found)


@entry(driver.cuGraphGetEdges)
def _get_edges(process: Process, handle: int | None, before: Any, after: Any, count: Any) -> None:
    require(count and bool(before) == bool(after))
    numbers = {node: number for number, node in _graph(process, handle).nodes.items()}
    edges = [(numbers[earlier], number) for node, number in numbers.items() for earlier in node.before]
    _give_all([earlier for earlier, _ in edges], before, count)
    _give_all([later for _, later in edges], after, count)
    count[0] = min(count[0], len(edges)) if before else len(edges)


@entry(driver.cuGraphNodeGetType)
def _node_type(process: Process, handle: int | None, kind: Any) -> None:
    require(kind)
    give(kind, process.handles.get(handle, Node, INVALID_VALUE).task.kind)


def _child(process: Process, handle: int | None) -> Task:
    """Return the task that is a copy of a graph as it is now."""
    graph = _graph(process, handle)
    nodes = list(graph.nodes.values())
    require(not any(node.task.kind in _ALLOCATING for node in nodes), NOT_SUPPORTED)
    edges = tuple(tuple(nodes.index(earlier) for earlier in node.before) for node in nodes)
    ordered = [node.task for node in graph.in_order()]
    return Task(_CHILD, lambda: _run(process, ordered), edges, [node.task for node in nodes])


# Captures.


@entry(driver.cuStreamBeginCapture)
def _begin_capture(process: Process, handle: int | None, mode: int) -> None:
    stream = process.stream(handle)
    require(not isinstance(stream, DefaultStream), UNSUPPORTED)
    process.captures.begin(stream, mode)


@entry(driver.cuStreamEndCapture)
def _end_capture(process: Process, handle: int | None, result: Any) -> None:
    give(result, None)
    capture = process.captures.end(process.stream(handle))
    owner = process.current().handle
    graph, made = Graph(), dict[CapturedNode, Node]()
    for captured in capture.nodes:
        form = captured.form
        node = made[captured] = Node(
            graph, Task(form.kind, captured.work, form.extent), [made[each] for each in captured.before]
        )
        graph.nodes[process.handles.add(node, owner)] = node
    give(result, process.handles.add(graph, owner))


def _capture_status(process: Process, handle: int | None, status: Any, number: Any = None) -> None:
    stream = process.stream(handle)
    if isinstance(stream, DefaultStream):
        blocking = process.current().blocking_streams()
        require(all(each.capture is None for each in blocking), IMPLICIT)
    capture = stream.capture
    if capture is None:
        found = CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    elif capture.valid:
        found = CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    else:
        found = CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_INVALIDATED
    give(status, found)
    if number and capture is not None:
        give(number, capture.number)


@entry(driver.cuStreamIsCapturing)
def _is_capturing(process: Process, handle: int | None, status: Any) -> None:
    _capture_status(process, handle, status)


@entry(driver.cuStreamGetCaptureInfo_v2)
@entry(driver.cuStreamGetCaptureInfo_v3)
def _capture_info(process: Process, handle: int | None, status: Any, number: Any, *others: Any) -> None:
    require(not any(others), NOT_SUPPORTED)  # the graph so far, and the nodes that the next one would come after
    _capture_status(process, handle, status, number)


@entry(driver.cuThreadExchangeStreamCaptureMode, Needs.INIT)
def _exchange_mode(process: Process, mode: Any) -> None:
    require(mode)
    give(mode, process.captures.exchange_mode(mode[0]))


# Instantiated graphs.


@entry(driver.cuGraphInstantiate)
def _instantiate(process: Process, result: Any, handle: int | None, flags: int) -> None:
    require(result)
    require(not flags & CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH, NOT_SUPPORTED)
    require(flags & ~_HARMLESS_FLAGS == 0)
    give(result, process.handles.add(ExecutableGraph(_graph(process, handle)), process.current().handle))


@entry(driver.cuGraphExecDestroy)
def _exec_destroy(process: Process, handle: int | None) -> None:
    _executable(process, handle)
    process.handles.pop(handle)  # a launch may still be running


@entry(driver.cuGraphUpload)
def _upload(process: Process, handle: int | None, stream: int | None) -> None:
    _executable(process, handle)
    process.submit(stream, lambda: None)


@entry(driver.cuGraphLaunch)
def _launch(process: Process, handle: int | None, stream: int | None) -> None:
    _executable(process, handle).launch(process, stream)


def _exchange(process: Process, handle: int | None, node_handle: int | None, task: Task) -> None:
    """Give an instantiated node another task; earlier launches and the graph keep the old one."""
    tasks = _executable(process, handle).tasks
    node = process.handles.get(node_handle, Node, INVALID_VALUE)
    require(node in tasks and tasks[node].replaceable_by(task))
    tasks[node] = task.keeping_attributes_of(tasks[node])


def _define_kind(name: str, make: Callable[..., Task]) -> None:
    """Return the functions that add a node of one kind and change an instantiated one. Some take a context too."""

    @entry(getattr(driver, f"cuGraphAdd{name}Node"))
    def add(
        process: Process, result: Any, graph: int | None, before: Any, count: int, given: Any, *context: int | None
    ) -> None:
        _add(process, result, graph, before, count, lambda: make(process, given, *context))

    @entry(getattr(driver, f"cuGraphExec{name}NodeSetParams"))
    def change(process: Process, graph: int | None, node: int | None, given: Any, *context: int | None) -> None:
        _exchange(process, graph, node, make(process, given, *context))


for _name, _make in (("Kernel", _kernel), ("Memcpy", _memcpy), ("Memset", _memset), ("ChildGraph", _child)):
    _define_kind(_name, _make)
