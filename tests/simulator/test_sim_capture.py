"""Captures of streams and child graphs of the simulated driver, through the public table, by the driver's rules."""

from __future__ import annotations

import threading
from collections.abc import Callable
from ctypes import addressof, byref, c_float, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

import numpy as np
import pytest

from atomr_cuda import cublas, cublaslt, cufft, cusolver, driver
from atomr_cuda.driver import CUresult as R, CUstreamCaptureMode, CUstreamCaptureStatus
from support import sim_process as helper

pytestmark = pytest.mark.sim_only

GLOBAL, THREAD_LOCAL, RELAXED = CUstreamCaptureMode
NONE, ACTIVE, INVALIDATED = CUstreamCaptureStatus
SOURCE = """
extern "C" __global__ void add(int *x, int a) { x[threadIdx.x] += a; }
extern "C" __global__ void scale(int *x, int a) { x[threadIdx.x] *= a; }
"""
N = 4


@pytest.fixture(autouse=True)
def context():
    handle = helper.begin()
    yield handle
    driver.cuCtxSetCurrent(handle)
    while begun:  # the context may live on in other files of this process, and with it what is not ended
        driver.cuStreamDestroy.status(begun.pop())
    driver.cuDevicePrimaryCtxRelease(0)
    driver.cuCtxSetCurrent(None)


@pytest.fixture
def functions() -> tuple[c_void_p, c_void_p]:
    module = helper.load(SOURCE)
    return helper.function(module, "add"), helper.function(module, "scale")


def zeros(count: int = N) -> int:
    address = helper.allocate(4 * count)
    helper.write(address, bytes(4 * count))
    return address


def ints(address: int, count: int = N) -> list[int]:
    return np.frombuffer(helper.read(address, 4 * count), np.int32).tolist()


def launch(function: c_void_p, x: int, amount: int, on: c_void_p) -> int:
    arguments = c_uint64(x), c_int(amount)
    addresses = (c_void_p * 2)(*(addressof(each) for each in arguments))
    return driver.cuLaunchKernel.status(function, 1, 1, 1, N, 1, 1, 0, on, addressof(addresses), None)


begun: list[c_void_p] = []
"""The streams that were captured in the present test."""


def begin(mode: int = THREAD_LOCAL) -> c_void_p:
    on = helper.stream()
    begun.append(on)
    driver.cuStreamBeginCapture(on, mode)
    return on


def end(on: c_void_p) -> c_void_p:
    graph = c_void_p()
    driver.cuStreamEndCapture(on, byref(graph))
    return graph


def state(on: c_void_p) -> int:
    status = c_int(-1)
    driver.cuStreamIsCapturing(on, byref(status))
    return status.value


def instantiate(graph: c_void_p) -> c_void_p:
    handle = c_void_p()
    driver.cuGraphInstantiate(byref(handle), graph, 0)
    return handle


def run(executable: c_void_p) -> None:
    driver.cuGraphLaunch(executable, None)
    driver.cuStreamSynchronize(None)


def new_graph() -> c_void_p:
    graph = c_void_p()
    driver.cuGraphCreate(byref(graph), 0)
    return graph


def add_child(graph: c_void_p, child: c_void_p, *before: c_void_p) -> c_void_p:
    node = c_void_p()
    handles = (c_void_p * len(before))(*(each.value for each in before))
    driver.cuGraphAddChildGraphNode(byref(node), graph, handles, len(before), child)
    return node


def captured(*calls: Callable[[c_void_p], object]) -> c_void_p:
    on = begin()
    for call in calls:
        call(on)
    return end(on)


def elsewhere(work: Callable[[], object]) -> Any:
    """What a function returns in another thread, in the same context."""
    found: list[Any] = []
    current = c_void_p()
    driver.cuCtxGetCurrent(byref(current))

    def there() -> None:
        driver.cuCtxSetCurrent(current)
        found.append(work())

    thread = threading.Thread(target=there)
    thread.start()
    thread.join()
    return found[0]


# --- what is captured -------------------------------------------------------------------------------------------------


def test_a_graph_tells_its_nodes_their_kinds_and_its_edges(functions):
    add, _ = functions
    x = zeros()
    graph = captured(
        lambda on: driver.cuMemsetD32Async(x, 2, N, on),
        lambda on: launch(add, x, 3, on),
        lambda on: launch(add, x, 4, on),
    )
    count, kind = c_size_t(), c_int()
    driver.cuGraphGetNodes(graph, None, byref(count))
    assert count.value == 3
    count.value, nodes = 5, (c_void_p * 5)(*[1] * 5)
    driver.cuGraphGetNodes(graph, nodes, byref(count))
    assert count.value == 3
    assert nodes[3:] == [None] * 2
    kinds = [driver.cuGraphNodeGetType(node, byref(kind)) or kind.value for node in nodes[:3]]
    assert [driver.CUgraphNodeType(each).name.rsplit("_", 1)[1] for each in kinds] == ["MEMSET", "KERNEL", "KERNEL"]
    driver.cuGraphGetEdges(graph, None, None, byref(count))
    assert count.value == 2
    before, after = (c_void_p * 2)(), (c_void_p * 2)()
    driver.cuGraphGetEdges(graph, before, after, byref(count))
    assert list(zip(before, after, strict=True)) == [(nodes[0], nodes[1]), (nodes[1], nodes[2])]
    count.value = 1
    driver.cuGraphGetNodes(graph, nodes, byref(count))
    assert (count.value, nodes[0]) == (1, before[0])
    for refused in (
        driver.cuGraphGetNodes.status(graph, nodes, None),
        driver.cuGraphGetEdges.status(graph, before, None, byref(count)),
        driver.cuGraphNodeGetType.status(graph, byref(kind)),
    ):
        assert refused == R.CUDA_ERROR_INVALID_VALUE
    driver.cuGraphDestroy(graph)


def test_work_is_kept_in_order_and_runs_with_each_launch_of_the_graph(functions):
    add, scale = functions
    x, y = zeros(), zeros()
    on = begin()
    assert state(on) == ACTIVE
    driver.cuMemsetD32Async(x, 2, N, on)
    assert launch(add, x, 3, on) == 0
    assert launch(scale, x, 10, on) == 0
    driver.cuMemcpyDtoDAsync(y, x, 4 * N, on)
    assert launch(add, y, 1, on) == 0
    graph = end(on)
    assert state(on) == NONE
    assert (ints(x), ints(y)) == ([0] * N, [0] * N), "nothing has run"
    executable = instantiate(graph)
    driver.cuGraphDestroy(graph)
    for _ in range(2):
        helper.write(y, bytes(4 * N))
        run(executable)
        assert (ints(x), ints(y)) == ([50] * N, [51] * N)


def test_what_an_empty_capture_makes_is_a_graph_without_nodes():
    run(instantiate(end(begin())))


def test_a_stream_works_as_before_after_its_capture(functions):
    x = zeros()
    on = begin()
    launch(functions[0], x, 5, on)
    end(on)
    assert launch(functions[0], x, 1, on) == 0
    driver.cuStreamSynchronize(on)
    assert ints(x) == [1] * N


def test_arguments_are_those_at_the_call_and_host_memory_is_read_by_the_launch(functions):
    x, host = zeros(), (c_int * N)(1, 2, 3, 4)
    on = begin()
    driver.cuMemcpyHtoDAsync(x, host, 4 * N, on)
    executable = instantiate(end(on))
    host[0] = 9
    run(executable)
    assert ints(x) == [9, 2, 3, 4]


def test_a_copy_to_the_host_is_not_waited_for():
    x, host = zeros(), (c_int * N)(7, 7, 7, 7)
    on = begin()
    driver.cuMemcpyDtoHAsync(host, x, 4 * N, on)
    executable = instantiate(end(on))
    assert list(host) == [7] * N
    run(executable)
    assert list(host) == [0] * N


def test_memory_that_is_gone_when_the_graph_runs_is_a_fault():
    code = f"""
        from ctypes import byref, c_void_p
        import support.sim_process as helper
        from atomr_cuda import driver
        helper.begin()
        x, on, graph, executable = helper.allocate(16), helper.stream(), c_void_p(), c_void_p()
        driver.cuStreamBeginCapture(on, {int(THREAD_LOCAL)})
        driver.cuMemsetD32Async(x, 1, 4, on)
        driver.cuStreamEndCapture(on, byref(graph))
        driver.cuGraphInstantiate(byref(executable), graph, 0)
        driver.cuMemFree(x)
        driver.cuGraphLaunch(executable, None)
        print(driver.cuStreamSynchronize.status(None))
    """
    assert helper.run_in_process(code).stdout.split() == ["700"]


def test_a_graph_launched_into_a_capture_is_part_of_it(functions):
    x = zeros()
    inner = instantiate(captured(lambda on: launch(functions[0], x, 3, on)))
    outer = instantiate(captured(lambda on: driver.cuGraphLaunch(inner, on), lambda on: launch(functions[1], x, 2, on)))
    run(outer)
    run(outer)
    assert ints(x) == [18] * N


def test_each_capture_has_a_number_of_its_own():
    first, second = begin(), begin()
    numbers = []
    for on in (first, second):
        status, number = c_int(), c_uint64()
        driver.cuStreamGetCaptureInfo_v2(on, byref(status), byref(number), None, None, None)
        assert status.value == ACTIVE
        numbers.append(number.value)
    assert numbers[0] != numbers[1]
    end(first), end(second)


# --- fork and join ----------------------------------------------------------------------------------------------------


def test_another_stream_joins_by_an_event_and_is_waited_for(functions):
    add, scale = functions
    x, y = zeros(), zeros()
    origin, side, forked, joined = begin(), helper.stream(), helper.event(), helper.event()
    launch(add, x, 1, origin)
    driver.cuEventRecord(forked, origin)
    driver.cuStreamWaitEvent(side, forked, 0)
    assert state(side) == ACTIVE
    driver.cuMemcpyDtoDAsync(y, x, 4 * N, side)
    driver.cuEventRecord(joined, side)
    driver.cuStreamWaitEvent(origin, joined, 0)
    launch(scale, y, 7, origin)
    executable = instantiate(end(origin))
    assert state(side) == NONE
    run(executable)
    run(executable)
    assert (ints(x), ints(y)) == ([2] * N, [14] * N)


def test_a_stream_that_is_not_waited_for_spoils_the_capture(functions):
    x = zeros()
    origin, side, forked = begin(), helper.stream(), helper.event()
    driver.cuEventRecord(forked, origin)
    driver.cuStreamWaitEvent(side, forked, 0)
    launch(functions[0], x, 1, side)
    graph = c_void_p(1)
    assert driver.cuStreamEndCapture.status(side, byref(graph)) == R.CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
    assert driver.cuStreamEndCapture.status(origin, byref(graph)) == R.CUDA_ERROR_STREAM_CAPTURE_UNJOINED
    assert not graph.value
    assert (state(origin), state(side)) == (NONE, NONE)


def test_work_from_outside_cannot_be_waited_for_and_captures_do_not_merge():
    outside, event = helper.stream(), helper.event()
    driver.cuEventRecord(event, outside)
    on = begin()
    assert driver.cuStreamWaitEvent.status(on, event, 0) == R.CUDA_ERROR_STREAM_CAPTURE_ISOLATION
    assert state(on) == INVALIDATED
    first, second = begin(), begin()
    driver.cuEventRecord(event, first)
    assert driver.cuStreamWaitEvent.status(second, event, 0) == R.CUDA_ERROR_STREAM_CAPTURE_MERGE
    assert (state(first), state(second)) == (INVALIDATED, INVALIDATED)


def test_an_event_of_a_capture_is_nothing_to_wait_for_outside():
    on, event = begin(RELAXED), helper.event()
    driver.cuEventRecord(event, on)
    assert driver.cuEventQuery.status(event) == R.CUDA_ERROR_CAPTURED_EVENT
    assert state(on) == INVALIDATED
    on = begin(RELAXED)
    driver.cuEventRecord(event, on)
    end(on)
    for call in (
        lambda: driver.cuEventSynchronize.status(event),
        lambda: driver.cuStreamWaitEvent.status(helper.stream(), event, 0),
    ):
        assert call() == R.CUDA_ERROR_CAPTURED_EVENT
    driver.cuEventRecord(event, on)
    driver.cuEventSynchronize(event)


# --- what a capture forbids -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        driver.cuStreamSynchronize.status,
        driver.cuStreamQuery.status,
        lambda on: driver.cuCtxSynchronize.status(),
    ],
    ids=["stream synchronize", "stream query", "context synchronize"],
)
@pytest.mark.parametrize("mode", CUstreamCaptureMode)
def test_nobody_may_ask_for_the_end_of_what_is_captured(functions, call, mode):
    on = begin(mode)
    assert call(on) == R.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    assert state(on) == INVALIDATED
    assert launch(functions[0], zeros_in(RELAXED), 1, on) == R.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    graph = c_void_p(1)
    assert driver.cuStreamEndCapture.status(on, byref(graph)) == R.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    assert not graph.value
    assert state(on) == NONE
    driver.cuStreamSynchronize(on)


def zeros_in(mode: int) -> int:
    """Memory that is allocated whatever is captured."""
    before = c_int(mode)
    driver.cuThreadExchangeStreamCaptureMode(byref(before))
    try:
        return helper.allocate(4 * N)
    finally:
        driver.cuThreadExchangeStreamCaptureMode(byref(before))


@pytest.mark.parametrize("mode", CUstreamCaptureMode)
def test_memory_is_not_allocated_by_a_thread_that_captures_unless_relaxed(mode):
    on, address = begin(mode), c_uint64()
    wanted = 0 if mode is RELAXED else R.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    assert driver.cuMemAlloc.status(byref(address), 64) == wanted
    assert state(on) == (ACTIVE if mode is RELAXED else INVALIDATED)


@pytest.mark.parametrize("mode", CUstreamCaptureMode)
def test_another_thread_may_allocate_and_free_unless_the_capture_is_global(mode):
    on = begin(mode)

    def allocate() -> int:
        address = c_uint64()
        return driver.cuMemAlloc.status(byref(address), 64) or driver.cuMemFree.status(address)

    assert elsewhere(allocate) == (R.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if mode is GLOBAL else 0)
    assert state(on) == (INVALIDATED if mode is GLOBAL else ACTIVE)


def test_a_thread_that_does_not_care_may_allocate_during_a_global_capture():
    on = begin(GLOBAL)
    mode = c_int(RELAXED)
    driver.cuThreadExchangeStreamCaptureMode(byref(mode))
    assert mode.value == GLOBAL
    helper.allocate(64)
    driver.cuThreadExchangeStreamCaptureMode(byref(mode))
    assert (state(on), mode.value) == (ACTIVE, RELAXED)


def test_the_default_stream_is_not_captured_nor_used_while_one_is_that_it_waits_for():
    x = zeros()
    assert driver.cuStreamBeginCapture.status(None, RELAXED) == R.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    blocking = helper.stream(0)
    driver.cuStreamBeginCapture(blocking, RELAXED)
    status = c_int()
    assert driver.cuStreamIsCapturing.status(None, byref(status)) == R.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    assert state(blocking) == ACTIVE
    assert driver.cuMemsetD32.status(x, 1, N) == R.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    assert state(blocking) == INVALIDATED
    driver.cuStreamDestroy(blocking)
    apart = begin(RELAXED)
    driver.cuMemsetD32(x, 1, N)
    assert state(apart) == ACTIVE


def test_a_capture_is_begun_once_and_ended_by_its_own_thread(functions):
    on, graph = begin(THREAD_LOCAL), c_void_p()
    assert driver.cuStreamBeginCapture.status(on, RELAXED) == R.CUDA_ERROR_ILLEGAL_STATE
    wrong = elsewhere(lambda: driver.cuStreamEndCapture.status(on, byref(graph)))
    assert wrong == R.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
    end(on)
    assert driver.cuStreamEndCapture.status(on, byref(graph)) == R.CUDA_ERROR_ILLEGAL_STATE
    relaxed = begin(RELAXED)
    assert elsewhere(lambda: driver.cuStreamEndCapture.status(relaxed, byref(graph))) == 0
    assert driver.cuStreamBeginCapture.status(relaxed, 3) == R.CUDA_ERROR_INVALID_VALUE


def test_a_capture_ends_with_its_stream():
    on = begin(GLOBAL)
    driver.cuStreamDestroy(on)
    helper.allocate(64)


def test_other_streams_go_on_meanwhile(functions):
    x, other = zeros(), helper.stream()
    on = begin(THREAD_LOCAL)
    launch(functions[0], x, 100, on)
    launch(functions[0], x, 1, other)
    driver.cuStreamSynchronize(other)
    assert ints(x) == [1] * N
    run(instantiate(end(on)))
    assert ints(x) == [101] * N


# --- child graphs -----------------------------------------------------------------------------------------------------


def test_a_child_graph_is_a_copy_that_runs_in_its_place(functions):
    add, scale = functions
    x = zeros()
    first = captured(lambda on: launch(add, x, 1, on), lambda on: launch(scale, x, 10, on))
    second = captured(lambda on: launch(add, x, 2, on))
    graph = new_graph()
    add_child(graph, second, add_child(graph, first))
    driver.cuGraphDestroy(first)
    driver.cuGraphDestroy(second)
    executable = instantiate(graph)
    run(executable)
    assert ints(x) == [12] * N
    run(executable)
    assert ints(x) == [132] * N


def test_an_instantiated_child_graph_takes_another_of_the_same_form(functions):
    add, scale = functions
    x = zeros()
    graph = new_graph()
    node = add_child(graph, captured(lambda on: launch(add, x, 1, on)))
    executable = instantiate(graph)
    run(executable)
    other = captured(lambda on: launch(add, x, 10, on))
    assert driver.cuGraphExecChildGraphNodeSetParams.status(executable, node, other) == 0
    driver.cuGraphDestroy(other)
    run(executable)
    assert ints(x) == [11] * N
    run(instantiate(graph))
    assert ints(x) == [12] * N, "the graph itself is as it was"
    for calls in (
        [lambda on: launch(add, x, 1, on), lambda on: launch(scale, x, 1, on)],
        [lambda on: driver.cuMemsetD32Async(x, 1, N, on)],
        [],
    ):
        status = driver.cuGraphExecChildGraphNodeSetParams.status(executable, node, captured(*calls))
        assert status == R.CUDA_ERROR_INVALID_VALUE


def test_a_fill_in_a_child_graph_keeps_its_size(functions):
    x = zeros()
    graph = new_graph()
    node = add_child(graph, captured(lambda on: driver.cuMemsetD32Async(x, 1, N, on)))
    executable = instantiate(graph)
    smaller, same = (captured(lambda on, n=n: driver.cuMemsetD32Async(x, 5, n, on)) for n in (N - 1, N))
    change = driver.cuGraphExecChildGraphNodeSetParams.status
    assert change(executable, node, smaller) == R.CUDA_ERROR_INVALID_VALUE
    assert change(executable, node, same) == 0
    run(executable)
    assert ints(x) == [5] * N


def test_what_is_no_graph_is_no_child():
    node = c_void_p()
    assert driver.cuGraphAddChildGraphNode.status(byref(node), new_graph(), None, 0, None) == R.CUDA_ERROR_INVALID_VALUE


# --- libraries --------------------------------------------------------------------------------------------------------


def new_blas(on: c_void_p, *, workspace: bool) -> c_void_p:
    handle = c_void_p()
    cublas.cublasCreate(byref(handle))
    cublas.cublasSetStream(handle, on)
    if workspace:
        cublas.cublasSetWorkspace(handle, helper.allocate(1 << 20), 1 << 20)
    return handle


def floats(*values: float) -> int:
    address = helper.allocate(4 * len(values))
    helper.write(address, np.array(values, np.float32).tobytes())
    return address


def read_floats(address: int, count: int) -> list[float]:
    return np.frombuffer(helper.read(address, 4 * count), np.float32).tolist()


def axpy(handle: c_void_p, alpha: float, x: int, y: int) -> int:
    return cublas.cublasSaxpy_64.status(handle, 3, byref(c_float(alpha)), x, 1, y, 1)


def test_a_librarys_call_is_captured_and_made_with_each_launch():
    on = helper.stream()
    blas, x, y = new_blas(on, workspace=True), floats(1, 2, 3), floats(0, 0, 0)
    driver.cuStreamBeginCapture(on, THREAD_LOCAL)
    assert axpy(blas, 2, x, y) == 0
    graph = new_graph()
    add_child(graph, end(on))
    assert read_floats(y, 3) == [0, 0, 0]
    executable = instantiate(graph)
    run(executable)
    run(executable)
    assert read_floats(y, 3) == [4, 8, 12]


def test_a_librarys_call_allocates_in_the_graph_unless_it_was_given_a_workspace():
    on = helper.stream()
    blas, x, y = new_blas(on, workspace=False), floats(1, 2, 3), floats(0, 0, 0)
    driver.cuStreamBeginCapture(on, THREAD_LOCAL)
    axpy(blas, 1, x, y)
    graph, node = end(on), c_void_p()
    run(instantiate(graph))
    assert read_floats(y, 3) == [1, 2, 3]
    status = driver.cuGraphAddChildGraphNode.status(byref(node), new_graph(), None, 0, graph)
    assert status == R.CUDA_ERROR_NOT_SUPPORTED


def test_a_result_for_the_host_cannot_be_captured():
    on = helper.stream()
    blas, x, result = new_blas(on, workspace=True), floats(1, 2, 3), c_float(-1)
    driver.cuStreamBeginCapture(on, THREAD_LOCAL)
    status = cublas.cublasSdot_64.status(blas, 3, x, 1, x, 1, byref(result))
    assert status == cublas.cublasStatus_t.CUBLAS_STATUS_EXECUTION_FAILED
    assert result.value == -1
    assert state(on) == INVALIDATED
    assert axpy(blas, 1, x, x) == cublas.cublasStatus_t.CUBLAS_STATUS_EXECUTION_FAILED
    graph = c_void_p()
    assert driver.cuStreamEndCapture.status(on, byref(graph)) == R.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    assert axpy(blas, 1, x, floats(0, 0, 0)) == 0


def made(create: Callable[..., object], *arguments: Any) -> Any:
    handle = (c_int if create is cufft.cufftCreate else c_void_p)()
    create(byref(handle), *arguments)
    return handle


@pytest.mark.parametrize("mode", [THREAD_LOCAL, RELAXED])
@pytest.mark.parametrize(
    ("create", "destroy"),
    [
        (cublas.cublasCreate, cublas.cublasDestroy),
        (cublaslt.cublasLtCreate, cublaslt.cublasLtDestroy),
        (cusolver.cusolverDnCreate, cusolver.cusolverDnDestroy),
    ],
    ids=lambda function: function.symbol,
)
def test_a_handle_that_goes_in_another_thread_voids_a_capture_and_says_nothing(create, destroy, mode):
    """As on an H100 with libraries of CUDA 13."""
    handle, on = made(create), begin(mode)
    elsewhere(lambda: made(create))
    assert state(on) == ACTIVE
    assert elsewhere(lambda: destroy.status(handle)) == 0
    assert state(on) == INVALIDATED


@pytest.mark.parametrize(("length", "status", "after"), [(1024, 0, ACTIVE), (127, 0, ACTIVE), (131, 5, INVALIDATED)])
def test_a_plan_with_a_large_prime_factor_cannot_be_made_during_a_capture(length, status, after):
    """As on an H100 with cuFFT of CUDA 13, in whichever thread."""
    plan, on, size = made(cufft.cufftCreate), begin(THREAD_LOCAL), c_size_t()
    make = cufft.cufftMakePlan1d.status
    assert elsewhere(lambda: make(plan, length, cufft.cufftType.CUFFT_C2C, 1, byref(size))) == status
    assert state(on) == after
