"""Graphs of the simulated driver, and copies of boxes, through the public table and against the driver's rules."""

from __future__ import annotations

from ctypes import addressof, byref, c_float, c_int, c_uint64, c_void_p
from typing import Any

import numpy as np
import pytest

from atomr_cuda import driver
from atomr_cuda.driver import (
    CUDA_KERNEL_NODE_PARAMS,
    CUDA_MEMCPY3D,
    CUDA_MEMSET_NODE_PARAMS,
    CUgraphInstantiate_flags,
    CUmemorytype,
    CUresult,
)
from support import sim_process as helper
from support.sim_process import run_in_process

pytestmark = pytest.mark.sim_only

INVALID = CUresult.CUDA_ERROR_INVALID_VALUE
SOURCE = """
extern "C" __global__ void add(int *x, int a) { x[threadIdx.x] += a; }
extern "C" __global__ void scale(int *x, int a) { x[threadIdx.x] *= a; }
"""


@pytest.fixture(autouse=True)
def context():
    handle = helper.begin()
    yield handle
    driver.cuCtxSetCurrent(handle)
    driver.cuDevicePrimaryCtxRelease(0)
    driver.cuCtxSetCurrent(None)


def new_graph() -> c_void_p:
    handle = c_void_p()
    driver.cuGraphCreate(handle, 0)
    return handle


def nodes_of(*nodes: c_void_p) -> Any:
    return (c_void_p * len(nodes))(*(node.value for node in nodes))


def kernel_parameters(function: c_void_p, *arguments: Any, block: int = 4) -> CUDA_KERNEL_NODE_PARAMS:
    """Parameters that keep alive what they point to."""
    addresses = (c_void_p * len(arguments))(*(addressof(argument) for argument in arguments))
    parameters = CUDA_KERNEL_NODE_PARAMS(function.value, 1, 1, 1, block, 1, 1, 0, addressof(addresses))
    parameters.keep = arguments, addresses
    return parameters


def box(source: int, target: int, width: int, height: int = 1, depth: int = 1, pitch: int = 0) -> CUDA_MEMCPY3D:
    """A copy between two places of one layout in device memory."""
    copy = CUDA_MEMCPY3D()
    copy.srcMemoryType = copy.dstMemoryType = CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.srcDevice, copy.dstDevice = source, target
    copy.srcPitch = copy.dstPitch = pitch or width
    copy.srcHeight = copy.dstHeight = height
    copy.WidthInBytes, copy.Height, copy.Depth = width, height, depth
    return copy


def add_kernel(graph: c_void_p, parameters: CUDA_KERNEL_NODE_PARAMS, *before: c_void_p) -> c_void_p:
    node = c_void_p()
    driver.cuGraphAddKernelNode(node, graph, nodes_of(*before), len(before), parameters)
    return node


def add_memcpy(graph: c_void_p, context: c_void_p, copy: CUDA_MEMCPY3D, *before: c_void_p) -> c_void_p:
    node = c_void_p()
    driver.cuGraphAddMemcpyNode(node, graph, nodes_of(*before), len(before), copy, context)
    return node


def add_memset(graph: c_void_p, context: c_void_p, fill: CUDA_MEMSET_NODE_PARAMS, *before: c_void_p) -> c_void_p:
    node = c_void_p()
    driver.cuGraphAddMemsetNode(node, graph, nodes_of(*before), len(before), fill, context)
    return node


def add_empty(graph: c_void_p, *before: c_void_p) -> c_void_p:
    node = c_void_p()
    driver.cuGraphAddEmptyNode(node, graph, nodes_of(*before), len(before))
    return node


def instantiate(graph: c_void_p) -> c_void_p:
    handle = c_void_p()
    driver.cuGraphInstantiate(handle, graph, 0)
    return handle


def run(executable: c_void_p, on: c_void_p | None = None) -> None:
    driver.cuGraphLaunch(executable, on)
    driver.cuStreamSynchronize(on)


def ints(address: int, count: int = 4) -> list[int]:
    return np.frombuffer(helper.read(address, 4 * count), np.int32).tolist()


@pytest.fixture
def functions() -> tuple[c_void_p, c_void_p]:
    module = helper.load(SOURCE)
    return helper.function(module, "add"), helper.function(module, "scale")


def test_a_node_whose_parameters_are_one_buffer_takes_no_cooperative_attribute(functions):
    """As it is on an H200, where the same node with an array of addresses takes it."""
    value = driver.CUlaunchAttributeValue(cooperative=1)
    cooperative = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    data, size = (c_uint64 * 2)(helper.allocate(16), 1), c_uint64(12)
    extra = (c_uint64 * 5)(1, addressof(data), 2, addressof(size), 0)
    buffered = CUDA_KERNEL_NODE_PARAMS(functions[0].value, 1, 1, 1, 4, 1, 1, 0, None, addressof(extra))
    listed = kernel_parameters(functions[0], c_uint64(data[0]), c_int(1))
    statuses = [
        driver.cuGraphKernelNodeSetAttribute.status(add_kernel(new_graph(), each), cooperative, value)
        for each in (buffered, listed)
    ]
    assert statuses == [INVALID, 0]


# Running.


def test_nodes_run_after_those_that_they_depend_on_whatever_the_order_of_adding(context, functions):
    """(((2 + 3) * 10) + 1): the last node is added first, and its edges come later."""
    add, scale = functions
    x, y = helper.allocate(16), helper.allocate(16)
    graph = new_graph()
    last = add_memcpy(graph, context, box(x, y, 16))
    seed = add_memset(graph, context, CUDA_MEMSET_NODE_PARAMS(x, 0, 2, 4, 4, 1))
    first = add_kernel(graph, kernel_parameters(add, c_uint64(x), c_int(3)), seed)
    second = add_kernel(graph, kernel_parameters(scale, c_uint64(x), c_int(10)), first)
    third = add_kernel(graph, kernel_parameters(add, c_uint64(x), c_int(1)), second)
    join = add_empty(graph, third)
    driver.cuGraphAddDependencies(graph, nodes_of(join), nodes_of(last), 1)
    executable, on = instantiate(graph), helper.stream()
    driver.cuGraphUpload(executable, on)
    for _ in range(2):
        run(executable, on)
        assert ints(y) == [51] * 4


def test_nodes_without_an_edge_between_them_run_last_added_first(context, functions):
    """Any order is right; this one shows whoever forgets an edge."""
    add, scale = functions
    x = helper.allocate(16)
    helper.write(x, bytes(16))
    graph = new_graph()
    add_kernel(graph, kernel_parameters(add, c_uint64(x), c_int(3)))
    add_kernel(graph, kernel_parameters(scale, c_uint64(x), c_int(10)))
    run(instantiate(graph))
    assert ints(x) == [3] * 4


def test_parameters_are_copied_when_the_node_is_added(context, functions):
    add, _ = functions
    x = helper.allocate(16)
    helper.write(x, bytes(16))
    amount, graph = c_int(5), new_graph()
    parameters = kernel_parameters(add, c_uint64(x), amount)
    add_kernel(graph, parameters)
    amount.value, parameters.blockDimX = 77, 1
    run(instantiate(graph))
    assert ints(x) == [5] * 4


def test_an_instantiated_graph_outlives_its_graph_and_its_launch_outlives_it(context, functions):
    add, _ = functions
    x, flag, on = helper.allocate(16), helper.allocate(8), helper.stream()
    helper.write(x, bytes(16))
    helper.write(flag, bytes(8))
    graph = new_graph()
    node = add_kernel(graph, kernel_parameters(add, c_uint64(x), c_int(1)))
    executable = instantiate(graph)
    driver.cuGraphDestroy(graph)
    driver.cuStreamWaitValue64(on, flag, 1, 0)
    driver.cuGraphLaunch(executable, on)
    driver.cuGraphExecDestroy(executable)
    assert ints(x) == [0] * 4
    helper.write(flag, (1).to_bytes(8, "little"))
    driver.cuStreamSynchronize(on)
    assert ints(x) == [1] * 4
    other = kernel_parameters(add, c_uint64(x), c_int(2))
    assert driver.cuGraphLaunch.status(executable, on) == INVALID
    assert driver.cuGraphExecDestroy.status(executable) == INVALID
    assert driver.cuGraphExecKernelNodeSetParams.status(executable, node, other) == INVALID
    assert driver.cuGraphDestroy.status(graph) == INVALID
    assert driver.cuGraphInstantiate.status(byref(c_void_p()), graph, 0) == INVALID


def test_launches_of_one_graph_are_in_order_also_on_two_streams(context):
    x, flag, first, second = helper.allocate(16), helper.allocate(8), helper.stream(), helper.stream()
    helper.write(x, bytes(16))
    helper.write(flag, bytes(8))
    graph = new_graph()
    add_memset(graph, context, CUDA_MEMSET_NODE_PARAMS(x, 0, 7, 4, 4, 1))
    executable = instantiate(graph)
    driver.cuStreamWaitValue64(first, flag, 1, 0)
    driver.cuGraphLaunch(executable, first)
    driver.cuGraphLaunch(executable, second)
    assert driver.cuStreamQuery.status(second) == CUresult.CUDA_ERROR_NOT_READY
    helper.write(flag, (1).to_bytes(8, "little"))
    driver.cuStreamSynchronize(second)
    assert driver.cuStreamQuery.status(first) == 0
    assert ints(x) == [7] * 4


@pytest.mark.parametrize(("size", "value", "expected"), [(1, 0x1FF, 0xFF), (2, 0xABCD, 0xABCD), (4, 2**31, 2**31)])
def test_a_memset_node_fills_rows_of_every_width_and_takes_the_low_bytes(context, size, value, expected):
    x = helper.allocate(64)
    helper.write(x, bytes(64))
    graph = new_graph()
    add_memset(graph, context, CUDA_MEMSET_NODE_PARAMS(x, 16, value, size, 2, 3))
    run(instantiate(graph))
    rows = np.frombuffer(helper.read(x, 64), f"u{size}").reshape(4, -1)
    assert (rows[:3, :2] == expected).all()
    assert int((rows != 0).sum()) == 6


# Changing what was instantiated.


def test_a_change_counts_from_the_next_launch_and_for_this_instance_alone(context, functions):
    add, scale = functions
    x, y, flag, on = helper.allocate(16), helper.allocate(16), helper.allocate(8), helper.stream()
    for address in (x, y):
        helper.write(address, bytes(16))
    helper.write(flag, bytes(8))
    graph = new_graph()
    node = add_kernel(graph, kernel_parameters(add, c_uint64(x), c_int(3)))
    changed, other = instantiate(graph), instantiate(graph)
    driver.cuStreamWaitValue64(on, flag, 1, 0)
    driver.cuGraphLaunch(changed, on)
    driver.cuGraphExecKernelNodeSetParams(changed, node, kernel_parameters(scale, c_uint64(x), c_int(5)))
    helper.write(flag, (1).to_bytes(8, "little"))
    driver.cuStreamSynchronize(on)
    assert ints(x) == [3] * 4
    run(changed)
    assert ints(x) == [15] * 4
    run(other)
    assert ints(x) == [18] * 4
    run(instantiate(graph))
    assert ints(x) == [21] * 4


def test_copies_of_one_run_may_change_and_copies_of_rows_may_not(context):
    x, y, z = (helper.allocate(64) for _ in range(3))
    for number, address in enumerate((x, y, z), 1):
        helper.write(address, bytes([number]) * 64)
    graph = new_graph()
    node = add_memcpy(graph, context, box(x, z, 64))
    executable = instantiate(graph)
    change = driver.cuGraphExecMemcpyNodeSetParams
    change(executable, node, box(y, z, 32), context)
    run(executable)
    assert helper.read(z, 64) == b"\2" * 32 + b"\3" * 32
    assert change.status(executable, node, box(y, z, 4, 2, pitch=8), context) == INVALID
    rows = add_memcpy(graph, context, box(x, z, 4, 2, pitch=8))
    executable = instantiate(graph)
    assert change.status(executable, rows, box(x, z, 4, 2, pitch=8), context) == INVALID
    assert change.status(executable, rows, box(x, z, 4), context) == INVALID


def test_a_memset_may_change_its_value_and_place_and_not_its_size(context):
    x, y = helper.allocate(64), helper.allocate(64)
    helper.write(y, bytes(64))
    graph = new_graph()
    node = add_memset(graph, context, CUDA_MEMSET_NODE_PARAMS(x, 0, 1, 1, 8, 1))
    executable = instantiate(graph)
    change = driver.cuGraphExecMemsetNodeSetParams
    change(executable, node, CUDA_MEMSET_NODE_PARAMS(y, 0, 9, 1, 8, 1), context)
    run(executable)
    assert helper.read(y, 64) == b"\t" * 8 + bytes(56)
    for refused in ((y, 0, 9, 1, 9, 1), (y, 0, 9, 2, 8, 1), (y, 16, 9, 1, 8, 2), (y, 0, 9, 1, 0, 1)):
        assert change.status(executable, node, CUDA_MEMSET_NODE_PARAMS(*refused), context) == INVALID


def test_only_a_node_of_the_graph_that_was_instantiated_can_be_changed(context, functions):
    add, _ = functions
    x = helper.allocate(16)
    parameters = kernel_parameters(add, c_uint64(x), c_int(1))
    graph, other = new_graph(), new_graph()
    node, foreign = add_kernel(graph, parameters), add_kernel(other, parameters)
    executable = instantiate(graph)
    late = add_kernel(graph, parameters)
    empty = add_empty(graph)
    change = driver.cuGraphExecKernelNodeSetParams
    assert change.status(executable, node, parameters) == 0
    for wrong in (foreign, late, empty, graph, executable, c_void_p(12345)):
        assert change.status(executable, wrong, parameters) == INVALID
    assert change.status(graph, node, parameters) == INVALID
    fill = CUDA_MEMSET_NODE_PARAMS(x, 0, 1, 1, 8, 1)
    assert driver.cuGraphExecMemsetNodeSetParams.status(executable, node, fill, context) == INVALID


# What is refused.


def test_edges_in_a_circle_are_refused_when_the_graph_is_instantiated():
    graph = new_graph()
    first = add_empty(graph)
    second = add_empty(graph, first)
    driver.cuGraphAddDependencies(graph, nodes_of(second), nodes_of(first), 1)
    assert driver.cuGraphInstantiate.status(byref(c_void_p()), graph, 0) == INVALID


def test_edges_that_cannot_be_are_refused():
    graph, other = new_graph(), new_graph()
    first, foreign = add_empty(graph), add_empty(other)
    second = add_empty(graph, first)
    add, connect = driver.cuGraphAddEmptyNode.status, driver.cuGraphAddDependencies.status
    node = c_void_p()
    assert add(byref(node), graph, nodes_of(foreign), 1) == INVALID
    assert add(byref(node), graph, nodes_of(first, first), 2) == INVALID
    assert add(byref(node), graph, nodes_of(graph), 1) == INVALID
    assert add(byref(node), graph, None, 1) == INVALID
    assert add(None, graph, None, 0) == INVALID
    assert add(byref(node), foreign, None, 0) == INVALID
    assert connect(graph, nodes_of(first), nodes_of(second), 1) == INVALID, "it is there already"
    assert connect(graph, nodes_of(first), nodes_of(foreign), 1) == INVALID
    assert connect(graph, None, None, 0) == 0
    third = add_empty(graph)
    assert connect(graph, nodes_of(first, first), nodes_of(third, third), 2) == INVALID
    assert connect(graph, nodes_of(first), nodes_of(third), 1) == 0


def test_parameters_that_cannot_be_are_refused_when_they_are_given(context, functions):
    add, _ = functions
    x, graph, node = helper.allocate(16), new_graph(), c_void_p()
    good = kernel_parameters(add, c_uint64(x), c_int(1))
    status = driver.cuGraphAddKernelNode.status
    assert status(byref(node), graph, None, 0, None) == INVALID
    good.blockDimX = 2000
    assert status(byref(node), graph, None, 0, good) == INVALID
    unknown = CUDA_KERNEL_NODE_PARAMS(graph.value, 1, 1, 1, 1, 1, 1)
    assert status(byref(node), graph, None, 0, unknown) == CUresult.CUDA_ERROR_INVALID_HANDLE
    library = CUDA_KERNEL_NODE_PARAMS(None, 1, 1, 1, 1, 1, 1, 0, None, None, 64)
    assert status(byref(node), graph, None, 0, library) == CUresult.CUDA_ERROR_NOT_SUPPORTED
    copies = driver.cuGraphAddMemcpyNode.status
    assert copies(byref(node), graph, None, 0, box(x, 0xBAD000, 16), context) == INVALID
    assert copies(byref(node), graph, None, 0, box(x, x + 8, 0), context) == INVALID
    assert copies(byref(node), graph, None, 0, box(x, x + 8, 8), None) == INVALID
    fills = driver.cuGraphAddMemsetNode.status
    for refused in ((0xBAD000, 0, 1, 1, 4, 1), (x, 0, 1, 3, 4, 1), (x + 1, 0, 1, 4, 1, 1), (x, 0, 1, 1, 0, 1)):
        assert fills(byref(node), graph, None, 0, CUDA_MEMSET_NODE_PARAMS(*refused), context) == INVALID
    assert fills(byref(node), graph, None, 0, CUDA_MEMSET_NODE_PARAMS(x, 0, 1, 1, 4, 1), None) == INVALID


def test_flags_that_change_what_a_graph_is_are_refused():
    graph, executable, flags = new_graph(), c_void_p(), CUgraphInstantiate_flags
    status = driver.cuGraphInstantiate.status
    assert driver.cuGraphCreate.status(byref(c_void_p()), 1) == INVALID
    assert status(byref(executable), graph, flags.CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) == 0
    assert status(byref(executable), graph, flags.CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) == INVALID
    assert (
        status(byref(executable), graph, flags.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
        == CUresult.CUDA_ERROR_NOT_SUPPORTED
    )
    assert status(None, graph, 0) == INVALID


def test_graphs_end_with_their_context(context):
    graph = new_graph()
    add_empty(graph)
    executable = instantiate(graph)
    driver.cuDevicePrimaryCtxReset(0)
    assert driver.cuGraphDestroy.status(graph) == INVALID
    assert driver.cuGraphExecDestroy.status(executable) == INVALID


# Faults.

# The last node comes after one that faults.
FAULTY = '''
begin()
module = load("""
extern "C" __global__ void wild(int *p) { *p = 1; }
extern "C" __global__ void add(int *p) { *p += 1; }
""")
graph, executable, x, on = c_void_p(), c_void_p(), allocate(4), stream()
cuGraphCreate(graph, 0)
write(x, bytes(4))
before = None
for name, address in ("add", x), ("wild", 0xBAD0), ("add", x):
    argument, node = c_uint64(address), c_void_p()
    addresses = (c_void_p * 1)(ctypes.addressof(argument))
    given = CUDA_KERNEL_NODE_PARAMS(function(module, name).value, 1, 1, 1, 1, 1, 1, 0, ctypes.addressof(addresses))
    cuGraphAddKernelNode(node, graph, before and byref(before), 0 if before is None else 1, given)
    before = node
cuGraphInstantiate(executable, graph, 0)
print(cuGraphLaunch.status(executable, on), cuStreamSynchronize.status(on), cuGraphLaunch.status(executable, on))
print(ctypes.c_int.from_address(x).value, cuGraphDestroy.status(graph), cuGraphCreate.status(graph, 0))
'''


def test_a_fault_in_a_node_loses_the_process_and_nothing_behind_it_runs():
    assert run_in_process(FAULTY).stdout.split() == ["0", "700", "700", "1", "700", "700"]


def test_a_node_whose_memory_is_gone_faults_when_it_runs():
    done = run_in_process("""
        begin()
        address, _ = durable()
        context, graph, executable, node = c_void_p(), c_void_p(), c_void_p(), c_void_p()
        cuCtxGetCurrent(context)
        cuGraphCreate(graph, 0)
        cuGraphAddMemsetNode(node, graph, None, 0, CUDA_MEMSET_NODE_PARAMS(address, 0, 1, 1, 8, 1), context)
        cuGraphInstantiate(executable, graph, 0)
        cuMemUnmap(address, GRANULE)
        print(cuGraphLaunch.status(executable, None), cuCtxSynchronize.status())
    """)
    assert done.stdout.split() == ["0", "700"]


# Copies of boxes.


def test_a_box_is_copied_between_pitches_and_planes():
    source = np.arange(5 * 6 * 8, dtype=np.uint8).reshape(5, 6, 8)
    address = helper.allocate(4 * 7 * 32)
    helper.write(address, bytes(4 * 7 * 32))
    copy = CUDA_MEMCPY3D()
    copy.srcMemoryType, copy.srcHost = CUmemorytype.CU_MEMORYTYPE_HOST, source.ctypes.data
    copy.srcPitch, copy.srcHeight, copy.srcXInBytes, copy.srcY, copy.srcZ = 8, 6, 2, 1, 2
    copy.dstMemoryType, copy.dstDevice = CUmemorytype.CU_MEMORYTYPE_DEVICE, address
    copy.dstPitch, copy.dstHeight, copy.dstY, copy.dstZ = 32, 7, 3, 1
    copy.WidthInBytes, copy.Height, copy.Depth = 5, 4, 3
    for call in (lambda: driver.cuMemcpy3D(copy), lambda: driver.cuMemcpy3DAsync(copy, None)):
        helper.write(address, bytes(4 * 7 * 32))
        call()
        driver.cuCtxSynchronize()
        got = np.frombuffer(helper.read(address, 4 * 7 * 32), np.uint8).reshape(4, 7, 32)
        expected = np.zeros_like(got)
        expected[1:4, 3:7, :5] = source[2:5, 1:5, 2:7]
        assert (got == expected).all()
    for field, wrong in (("Depth", 4), ("dstPitch", 4), ("dstHeight", 6), ("srcLOD", 1), ("srcMemoryType", 3)):
        before = getattr(copy, field)
        setattr(copy, field, wrong)
        assert driver.cuMemcpy3DAsync.status(copy, None) == INVALID, field
        assert driver.cuMemcpy3D.status(copy) == INVALID, field
        setattr(copy, field, before)
    copy.Depth = 0
    assert driver.cuMemcpy3D.status(copy) == 0
    assert driver.cuMemcpy3D.status(None) == INVALID


def test_pageable_boxes_are_read_before_the_call_returns_and_written_before_it_returns():
    address, on, flag = helper.allocate(16), helper.stream(), helper.allocate(8)
    helper.write(flag, bytes(8))
    source, result = np.arange(16, dtype=np.uint8), np.zeros(16, np.uint8)
    there, back = box(source.ctypes.data, address, 4, 2, 2), box(address, result.ctypes.data, 4, 2, 2)
    there.srcMemoryType, there.srcHost = CUmemorytype.CU_MEMORYTYPE_HOST, source.ctypes.data
    back.dstMemoryType, back.dstHost = CUmemorytype.CU_MEMORYTYPE_HOST, result.ctypes.data
    driver.cuStreamWaitValue64(on, flag, 1, 0)
    driver.cuMemcpy3DAsync(there, on)
    source[:] = 99
    helper.write(flag, (1).to_bytes(8, "little"))
    driver.cuMemcpy3DAsync(back, on)
    assert result.tolist() == list(range(16))


def test_floats_reach_a_node_unchanged(context):
    module = helper.load('extern "C" __global__ void put(float *x, float a) { *x = a; }')
    x, graph = helper.allocate(4), new_graph()
    add_kernel(graph, kernel_parameters(helper.function(module, "put"), c_uint64(x), c_float(0.5), block=1))
    run(instantiate(graph))
    assert np.frombuffer(helper.read(x, 4), np.float32)[0] == 0.5
