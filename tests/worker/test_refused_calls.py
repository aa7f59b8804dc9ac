"""Every call that the worker makes for a request, refused once: the request is told, and nothing is left behind.

A test makes the same request again and again, and has the first call of it fail, then the second, until it has been
through all of them without a failure. After each it makes the request once more.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

import atomr_sim
from atomr_cuda import CudaError, driver
from atomr_trio import CommandFailed, ContextLost, OutOfDeviceMemory
from atomr_trio._calls.verbs import CallRequest, Scalar
from atomr_trio._device.device import core_of
from atomr_trio._wire import status
from atomr_trio._wire.protocol import WORKSPACES_WORD
from atomr_trio._wire.records.memory import CREATE_CHUNK, FILL, MAP_PEER, MEMORY, RELEASE_CHUNK, UNMAP_PEER
from atomr_trio._wire.records.module import LOAD, UNLOAD
from atomr_trio._worker.base.calls import CallEngine
from atomr_trio._worker.base.capture_turns import CaptureTurns
from atomr_trio._worker.base.giving_back import GivingBack
from atomr_trio._worker.base.lanes import Command, Lane
from atomr_trio._worker.base.memory import MemoryEngine
from atomr_trio._worker.base.workspaces import Workspaces
from atomr_trio.libraries.blas.engine import blas_engine
from atomr_trio.libraries.blas.records import BLAS
from atomr_trio.libraries.blas.registration import REGISTRATION
from atomr_trio.libraries.graphs.engine import GraphEngine
from atomr_trio.libraries.graphs.records import BUILD, DESTROY, Step, encode_steps
from atomr_trio.libraries.modules.engine import ModuleEngine
from atomr_trio.libraries.solver.engine import solver_engine
from atomr_trio.libraries.solver.engine_kernels import FiniteKernels
from atomr_trio.testing import worker_pid
from support import sim_process
from support.nvrtc import compile_ptx
from support.rogue import gated

pytestmark = pytest.mark.sim_only
DEADLINE = 60
REFUSED = 8
"""A status of every library that concerns the request alone."""
OUT_OF_MEMORY = 2
UNTOUCHED = 12
"""After so many calls that were refused in vain the request has no more of them.

A refusal is in vain, too, when it meets what a thread gives back of the request before. For a graph with a handle these
are up to nine calls, and on a busy machine all of them come in front of the request's own.
"""
N = 8
NUMBERS = np.arange(N, dtype=np.float32)
ADD = """
__device__ float factor = 2;
extern "C" __global__ void add(float *x, float a) { x[threadIdx.x] += a * factor; }
"""
SOURCE = (
    ADD
    + r"""
extern "C" __global__ void scale(float *x, float a) { extern __shared__ float s[]; x[threadIdx.x] *= a; }
"""
)


Request = Callable[[], Awaitable[Any]]
Prepare = Callable[[Any], contextlib.AbstractAsyncContextManager[Request]]


async def held(dev: Any, request: Request) -> tuple[int, int]:
    """Descriptors and mappings that the worker has, after a request that lets go of what others have left."""
    gc.collect()
    await request()
    process = Path(f"/proc/{worker_pid(dev)}")
    mappings = sum("atomr" in line or "cuda" in line for line in (process / "maps").read_text().splitlines())
    return len(os.listdir(process / "fd")), mappings


@contextlib.asynccontextmanager
async def new_memory(dev: Any) -> AsyncIterator[Request]:
    async def request() -> None:
        with dev.empty(N, np.float32, guarded=True) as x:  # a chunk of its own
            await x.copy_from(NUMBERS)
            assert (await x.to_host() == NUMBERS).all()

    yield request


@contextlib.asynccontextmanager
async def load(dev: Any) -> AsyncIterator[Request]:
    image = compile_ptx(ADD)

    async def request() -> None:
        async with await dev.module.load(image) as module:
            x = await dev.to_device(NUMBERS)
            await module["add"].launch(1, N, x, 1.0)
            assert (await x.to_host() == NUMBERS + 2).all()

    yield request


@contextlib.asynccontextmanager
async def launch(dev: Any) -> AsyncIterator[Request]:
    scale = await dev.nvrtc.compile(SOURCE, "scale")
    shared = iter(range(48 * 1024 + 16, 1 << 20, 16))

    async def request() -> None:
        x = await dev.to_device(NUMBERS)
        await scale.launch(1, N, x, 3.0, shared_bytes=next(shared))
        assert (await x.to_host() == NUMBERS * 3).all()

    yield request


@contextlib.asynccontextmanager
async def events(dev: Any) -> AsyncIterator[Request]:
    async def request() -> None:
        first, second = dev.compute_lane.record(), dev.compute_lane.record()
        assert await second.elapsed_since(first) >= 0

    yield request


@contextlib.asynccontextmanager
async def graph(dev: Any) -> AsyncIterator[Request]:
    add = await dev.nvrtc.compile(SOURCE, "add")
    x, y = await dev.to_device(NUMBERS), await dev.to_device(NUMBERS)
    wide = dev.zeros(N, np.complex128)
    await wide.to_host()

    def record(graph: Any) -> None:
        graph.launch(add, 1, N, x, 1.0)
        graph.copy(x, y)
        graph.fill(wide, 1j)

    async def request() -> None:
        await x.copy_from(NUMBERS)
        built = await dev.capture(record)
        await built.launch()
        assert (await y.to_host() == NUMBERS + 2).all()
        assert (await wide.to_host() == 1j).all()

    yield request


@contextlib.asynccontextmanager
async def graph_calls(dev: Any) -> AsyncIterator[Request]:
    """Each time a graph with a handle and a workspace of its own."""
    a, x = await dev.to_device(np.eye(N, dtype=np.float32) * 3), await dev.to_device(NUMBERS)
    found = []

    def record(graph: Any) -> None:
        found[:] = graph.blas.gemv(a, x), graph.blas.gemm(a, a)

    async def request() -> None:
        built = await dev.capture(record)
        await built.launch()
        vector, matrix = found
        assert (await vector.to_host() == NUMBERS * 3).all()
        assert (await matrix.to_host() == np.eye(N) * 9).all()

    yield request


@contextlib.asynccontextmanager
async def update_calls(dev: Any) -> AsyncIterator[Request]:
    x, y = await dev.to_device(NUMBERS), dev.zeros(N, np.float32)
    built = await dev.capture(lambda graph: graph.blas.axpy(x, y))
    numbers = itertools.count(2)

    async def request() -> None:
        number = next(numbers)
        await y.fill(0)
        built.update(built.nodes[0], x, y, number)
        await built.launch()
        assert (await y.to_host() == NUMBERS * number).all()

    yield request


@contextlib.asynccontextmanager
async def update(dev: Any) -> AsyncIterator[Request]:
    add = await dev.nvrtc.compile(SOURCE, "add")
    x = await dev.to_device(NUMBERS)
    nodes: list[Any] = []

    def record(graph: Any) -> None:
        graph.launch(add, 1, N, x, 1.0)
        nodes.append(graph.fill(x, 1))

    built, numbers = await dev.capture(record), iter(range(2, 1000))

    async def request() -> None:
        number = next(numbers)
        built.update(nodes[0], x, number)
        await built.launch()
        assert (await x.to_host() == number).all()

    yield request


@contextlib.asynccontextmanager
async def blas(dev: Any) -> AsyncIterator[Request]:
    """On a lane that has just been opened: it needs a stream and a handle, and gives both back."""
    a = await dev.to_device(np.eye(N, dtype=np.float32) * 3)
    x = await dev.to_device(np.full(4, 2, np.float32))

    async def request() -> None:
        async with dev.lane() as lane, dev.batch(lane=lane) as batch:
            product, norm = batch.blas.gemm(a, a), batch.blas.nrm2(x)
        assert (await product.to_host() == np.eye(N) * 9).all()
        assert (norm) == 4

    yield request


@contextlib.asynccontextmanager
async def blaslt(dev: Any) -> AsyncIterator[Request]:
    a = await dev.to_device(np.eye(N, dtype=np.float32) * 3)
    bias = await dev.to_device(NUMBERS)

    async def request() -> None:
        async with dev.lane() as lane, dev.batch(lane=lane) as batch:
            product = batch.blaslt.matmul(a, a, bias=bias, epilogue="bias")
        assert (await product.to_host() == np.eye(N) * 9 + NUMBERS).all()

    yield request


@contextlib.asynccontextmanager
async def solver(dev: Any) -> AsyncIterator[Request]:
    host = np.eye(N, dtype=np.float32) * 4
    a = await dev.to_device(host)

    async def request() -> None:
        async with dev.lane() as lane, dev.batch(lane=lane) as batch:
            factor = batch.solver.cholesky(a)
        assert np.allclose(await factor.to_host(), np.eye(N) * 2)

    yield request


@contextlib.asynccontextmanager
async def pinned(dev: Any) -> AsyncIterator[Request]:
    async def request() -> None:
        host = dev.pinned_empty(N, np.float32)
        host[:] = NUMBERS
        x = dev.empty(N, np.float32)
        await x.copy_from(host)
        assert (await x.to_host() == NUMBERS).all()

    yield request


@contextlib.asynccontextmanager
async def copies(dev: Any) -> AsyncIterator[Request]:
    host = np.arange(6 * 5 * 4, dtype=np.float32).reshape(6, 5, 4)
    x, y = await dev.to_device(host), dev.empty(host.shape, np.float32)

    async def request() -> None:
        await y.copy_from(x[::-1])
        await y[::2, ::2].copy_from(host[::2, ::2])
        await y.fill(0)
        await y[::2, ::2].fill(1)
        await y[::3].copy_from(x[::3])
        assert (await y[::3, ::2].to_host() == host[::3, ::2]).all()

    yield request


@contextlib.asynccontextmanager
async def large_copies(dev: Any) -> AsyncIterator[Request]:
    host = np.arange(3 << 20, dtype=np.float32)
    x = dev.empty(host.shape, np.float32)
    await x.copy_from(host)

    async def request() -> None:
        await x.copy_from(host)
        assert (await x.to_host() == host).all()

    yield request


OF_THE_DRIVER: list[Prepare] = [new_memory, load, launch, events, graph, update, pinned, copies, large_copies]
OF_LIBRARIES: list[Prepare] = [blas, blaslt, solver, graph_calls, update_calls]
CASES = [
    *(pytest.param(prepare, REFUSED, id=prepare.__name__) for prepare in (*OF_THE_DRIVER, *OF_LIBRARIES)),
    *(
        pytest.param(prepare, OUT_OF_MEMORY, id=f"{prepare.__name__}-memory", marks=pytest.mark.soak)
        for prepare in OF_THE_DRIVER
    ),
]


async def tried(request: Request, status: int) -> bool:
    """Make a request; whether it was refused, as it must be then."""
    seen, words = None, ""
    try:
        await request()
    except (CommandFailed, OutOfDeviceMemory) as error:
        seen = error.status
        words = str(error)
    assert seen is None or (seen == status and re.match(r"(the .*: )?cu\w+: ", words)), words
    return seen is not None


@pytest.mark.parametrize(("prepare", "status"), CASES)
async def test_a_request_outlives_the_refusal_of_any_call_that_is_made_for_it(dev, prepare, status):
    with trio.fail_after(DEADLINE):
        async with prepare(dev) as request:
            for _ in range(2):
                await request()
            before = (0, 0)
            call = refused = vain = 0
            while not refused or vain < UNTOUCHED:
                call += 1
                core_of(dev).current.request_faults(f"*:{status}:{call}", instead=True)
                told = await tried(request, status)
                core_of(dev).current.request_faults("", instead=True)
                refused, vain = refused + told, 0 if told else vain + 1
                await request()
                assert dev.generation == 1, f"call {call} has cost the generation"
                if call == 1:
                    before = await held(dev, request)
            after = await held(dev, request)
            assert all(now <= then for now, then in zip(after, before, strict=True)), (after, before)


async def test_lanes_wait_for_each_other_though_the_driver_refuses_to_let_them(dev):
    """Whoever is ordered after a command is ordered after what that one waits for, too."""
    add, scale = await dev.nvrtc.compile(SOURCE, "add"), await dev.nvrtc.compile(SOURCE, "scale")
    x, y = await dev.to_device(NUMBERS), await dev.to_device(NUMBERS)
    with trio.fail_after(DEADLINE):
        async with dev.lane() as slow, dev.lane() as other, gated(dev, slow):
            add.launch_nowait(1, N, x, 0.5, lane=slow)
            core_of(dev).current.request_faults("cuEventRecord:8:1*3,cuStreamWaitEvent:8:1*3")
            scale.launch_nowait(1, N, x, 3.0, lane=other)
            scale.launch_nowait(1, N, y, 3.0, lane=other)
            add.launch_nowait(1, N, x, 1.0)
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert dev.statistics().lanes[0].unfinished >= 1
        assert (await x.to_host() == (NUMBERS + 1) * 3 + 2).all()
        assert (await y.to_host() == NUMBERS * 3).all()
    assert dev.generation == 1


async def test_a_ticket_that_is_refused_once_is_written_all_the_same(dev):
    add = await dev.nvrtc.compile(SOURCE, "add")
    x = await dev.to_device(NUMBERS)
    with trio.fail_after(DEADLINE):
        for number in range(1, 4):
            core_of(dev).current.request_faults(f"cuStreamWriteValue64:{REFUSED}")
            await add.launch(1, N, x, 0.5)
            assert (await x.to_host() == NUMBERS + number).all()
        assert dev.generation == 1
        core_of(dev).current.request_faults(f"cuStreamWriteValue64:{REFUSED}:1*2")
        with pytest.raises(ContextLost):
            await add.launch(1, N, x, 0.5)


@pytest.mark.parametrize("function", ["cuStreamCreateWithPriority", "cuEventCreate"])
async def test_a_lane_that_gets_no_stream_fails_its_commands_in_order_until_it_gets_one(dev, function):
    add = await dev.nvrtc.compile(SOURCE, "add")
    x = await dev.to_device(NUMBERS)
    core_of(dev).current.request_faults(f"{function}:{REFUSED}:1*3")
    with trio.fail_after(DEADLINE):
        async with dev.lane() as lane:
            for _ in range(2):
                with pytest.raises(CommandFailed):
                    await add.launch(1, N, x, 1.0, lane=lane)
            await add.launch(1, N, x, 1.0, lane=lane)
    assert (await x.to_host() == NUMBERS + 2).all()
    assert dev.generation == 1


# --- what the driver has given, counted in this process ---------------------------------------------------------------


class GivingBackQuietly(GivingBack):
    """What is refused is tried again with the next, and nobody is told: as a worker does it in a thread."""

    def __init__(self) -> None:
        super().__init__(CudaError)

    def make(self, calls: Any) -> None:
        with contextlib.suppress(CudaError):
            super().make(calls)


@pytest.fixture
def services() -> Iterator[Any]:
    """What an engine asks of its worker, for the simulated driver of this process."""
    context = sim_process.begin()
    words = [0] * (WORKSPACES_WORD + 1)
    yield SimpleNamespace(
        words=words,
        workspaces=Workspaces(words),
        device=0,
        durable=True,
        prints=False,
        poisoned=False,
        staging_address=0,
        cuda_error=CudaError,
        engines={MEMORY.number: SimpleNamespace(table=MEMORY, forget_lane=lambda index: [])},
        capture_turns=CaptureTurns(),
        give_back=GivingBackQuietly().make,
        wait_given_back=lambda: None,
        synchronize=driver.cuCtxSynchronize,
        forget_hot=lambda: None,
        post=lambda message, descriptors=(): None,
    )
    atomr_sim.withdraw()
    driver.cuCtxSetCurrent(context)
    driver.cuDevicePrimaryCtxRelease(0)
    driver.cuCtxSetCurrent(None)


def given() -> tuple[int, int]:
    """Handles that this process has of the driver, and bytes of device memory that are free."""
    process = atomr_sim.driver.functions._process
    assert process is not None
    return len(process.handles._objects), sim_process.free_memory()


Call = Callable[[], None]


def of_memory(services: Any, lane: Any) -> tuple[Call, Call]:
    engine, address = MemoryEngine(services), sim_process.reserve(4 * sim_process.GRANULE)
    create = CREATE_CHUNK.struct.pack(address, sim_process.GRANULE)
    release = RELEASE_CHUNK.struct.pack(address)
    return (
        lambda: engine.calls[CREATE_CHUNK.number](command(CREATE_CHUNK, create), lane),
        lambda: engine.calls[RELEASE_CHUNK.number](command(RELEASE_CHUNK, release), lane),
    )


def of_peers(services: Any, lane: Any) -> tuple[Call, Call]:
    """A chunk that is mapped as another device's; its descriptor is all that is held of it beside that."""
    engine, handle = MemoryEngine(services), sim_process.create(sim_process.GRANULE)
    descriptor = sim_process.export(handle)
    driver.cuMemRelease(handle)
    address, size = 0x2000_0000_0000, sim_process.GRANULE
    engine.peers.reserve([(address, 4 * size)])
    take, unmap = MAP_PEER.struct.pack(address, size), UNMAP_PEER.struct.pack(address)
    record = Command(MAP_PEER, lambda command, lane: None, 1, [], take, [])

    def do() -> None:
        record.descriptors.append(os.dup(descriptor))
        engine.calls[MAP_PEER.number](record, lane)

    return do, lambda: engine.calls[UNMAP_PEER.number](command(UNMAP_PEER, unmap), lane)


def of_modules(services: Any, lane: Any) -> tuple[Call, Call]:
    engine, image = ModuleEngine(services), compile_ptx(ADD).encode()
    wanted = json.dumps({"kernels": None, "globals": ["factor"]}).encode()
    load, unload = LOAD.struct.pack(1, len(image)), UNLOAD.struct.pack(1)
    return (
        lambda: engine.calls[LOAD.number](command(LOAD, load, image + wanted), lane) and None,
        lambda: engine.calls[UNLOAD.number](command(UNLOAD, unload), lane),
    )


def of_graphs(services: Any, lane: Any) -> tuple[Call, Call]:
    engine, address = GraphEngine(services, ModuleEngine(services)), sim_process.allocate(4096)
    fill = FILL.struct.pack(address, 0, 16, 8, 1, bytes(range(16)))
    steps = encode_steps([Step(0, (), ((FILL, fill),)), Step(1, (0,), ((FILL, fill),))])
    build, destroy = BUILD.struct.pack(1, 1 << 30), DESTROY.struct.pack(1)
    return (
        lambda: engine.calls[BUILD.number](command(BUILD, build, steps), lane),
        lambda: engine.calls[DESTROY.number](command(DESTROY, destroy), lane),
    )


def of_calls_in_graphs(services: Any, lane: Any) -> tuple[Call, Call]:
    blas = services.engines[BLAS.number] = blas_engine(services)
    engine, address = GraphEngine(services, ModuleEngine(services)), sim_process.allocate(4096)
    status.describe("cublas", REGISTRATION.statuses or {})
    words = (4, Scalar.of(2, "f4"), address, 1, address + 256, 1)
    others: dict[str, Any] = {"lane": 0, "operation": "axpy", "flags": 0, **dict.fromkeys(("answer", "check", "keep"))}
    axpy = CallRequest(BLAS, "cublasSaxpy_64", words, (), **others)
    steps = encode_steps([Step(number, (), ((BLAS.call, axpy.payload),)) for number in range(2)])
    build, destroy = BUILD.struct.pack(1, 1 << 30), DESTROY.struct.pack(1)

    def undo() -> None:
        engine.calls[DESTROY.number](command(DESTROY, destroy), lane)
        assert not blas._lanes, "the handle is no longer known"

    return lambda: engine.calls[BUILD.number](command(BUILD, build, steps), lane), undo


def of_lanes(services: Any, lane: Any) -> tuple[Call, Call]:
    page: Any = SimpleNamespace(finished=lambda lane: 0, words=[0] * 512)
    other, giving_back = Lane(3, page, 0, None, services), GivingBack(CudaError)
    return other.open, lambda: giving_back.make(other.close())


def of_blas(services: Any, lane: Any) -> tuple[Call, Call]:
    return of_library(blas_engine(services), lane)


def of_solver(services: Any, lane: Any) -> tuple[Call, Call]:
    return of_library(solver_engine(services), lane)


def of_kernels_of_our_own(services: Any, lane: Any) -> tuple[Call, Call]:
    kernels = FiniteKernels(driver)
    return kernels.load, kernels.unload


def of_library(engine: CallEngine, lane: Any) -> tuple[Call, Call]:
    """A handle: made by the first call, given back with the lane."""
    giving_back = GivingBack(CudaError)
    return lambda: engine._open(lane) and None, lambda: giving_back.make(engine.forget_lane(lane.index))


def command(verb: Any, payload: bytes, content: bytes = b"") -> Command:
    descriptors = []
    if content:
        descriptors.append(os.memfd_create("test"))
        os.write(descriptors[0], content)
    return Command(verb, lambda command, lane: None, 1, [], payload, descriptors)


@pytest.mark.parametrize(
    "make",
    [
        of_memory,
        of_peers,
        of_modules,
        of_graphs,
        of_calls_in_graphs,
        of_lanes,
        of_blas,
        of_solver,
        of_kernels_of_our_own,
    ],
)
def test_what_was_begun_is_given_back_whichever_call_is_refused(services, make):
    stream = sim_process.stream()
    lane: Any = SimpleNamespace(index=0, stream=stream, ask=lambda call: call(stream))
    do, undo = make(services, lane)
    do()
    undo()
    before = given()
    for refused_in in (do, undo):
        call = refused = 0
        while call - refused < 2:  # one call may be refused in vain: it is made again
            call += 1
            if refused_in is undo:
                do()
            told = refuses(refused_in, call)
            refused += told
            if refused_in is do and not told:
                undo()
            do()  # which makes up for what could not be given back
            undo()
            assert given() == before, f"{call} of {refused_in} has left something"
            assert services.words[WORKSPACES_WORD] == 0
        assert refused


def refuses(function: Call, call: int) -> bool:
    """Make a function's call with this number fail; whether it says so, and of which function of the library."""
    atomr_sim.inject(f"*:{REFUSED}:{call}")
    error = None
    try:
        function()
    except CudaError as refusal:
        error = refusal
    atomr_sim.withdraw()
    assert error is None or (error.status == REFUSED and error.function)
    return error is not None
