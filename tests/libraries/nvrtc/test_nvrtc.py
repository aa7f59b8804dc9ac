"""The compiler's actor: compiles beside everything else, gives up what nobody wants, and says what it does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import trio

import atomr_trio
from atomr_trio import CompileFinished, CompileStarted, NvrtcOptions
from atomr_trio._calls.compiling import Compiling
from atomr_trio._compiling.cache import NvrtcCache
from atomr_trio._compiling.caching import CachingCompiler
from atomr_trio._compiling.compiler import CompiledProgram, compile_program
from atomr_trio._compiling.service import CompileService
from atomr_trio._device.device import core_of
from support import open_test_device

pytestmark = pytest.mark.used_workers

ADD = 'extern "C" __global__ void add(int* x) { x[threadIdx.x] += N; }'


def add(n: int) -> NvrtcOptions:
    return NvrtcOptions(defines={"N": n}, name="add.cu")


class SlowCompiler:
    """NVRTC behind a gate, which keeps no thread longer than a minute."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)
        self.threads: list[int] = []

    def __call__(self, *arguments: Any, **named: Any) -> CompiledProgram:
        self.threads.append(threading.get_ident())
        self.entered.release()
        assert self.gate.wait(60)
        return compile_program(*arguments, **named)

    async def wait_entered(self) -> None:
        assert await trio.to_thread.run_sync(self.entered.acquire, True, 60)


@pytest.fixture
def slow() -> Iterator[SlowCompiler]:
    compiler = SlowCompiler()
    yield compiler
    compiler.gate.set()


def use(dev: Any, compile_with: Any = compile_program, cache: NvrtcCache | None = None) -> CompileService:
    """Give a device a service of its own."""
    cache = NvrtcCache(max_bytes=0) if cache is None else cache
    core_of(dev).part(Compiling).service = CompileService(compiler=CachingCompiler(lambda: cache, compile_with))
    service: CompileService = core_of(dev).part(Compiling).service
    return service


async def until_idle(dev: Any) -> None:
    with trio.fail_after(60):
        while dev.nvrtc.statistics().in_flight:
            await trio.lowlevel.checkpoint()


# --- beside everything else -------------------------------------------------------------------------------------------


async def test_launches_go_on_while_64_programs_are_compiled(dev: Any, slow: SlowCompiler) -> None:
    kernel = await dev.nvrtc.compile(ADD, "add", add(1))
    x = await dev.to_device(np.zeros(32, np.int32))
    use(dev, slow)
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for n in range(64):
                nursery.start_soon(dev.nvrtc.compile, ADD, "add", add(100 + n))
            await slow.wait_entered()
            for _ in range(20):
                await kernel.launch(1, 32, x)
            assert (await x.to_host()).tolist() == [20] * 32
            while (asked := dev.nvrtc.statistics().in_flight + dev.nvrtc.statistics().waiting) < 64:
                await trio.lowlevel.checkpoint()  # each is looked up in the cache first, in a thread
            assert asked == 64
            nursery.cancel_scope.cancel()
    assert threading.get_ident() not in slow.threads


async def test_whoever_asks_for_the_same_shares_one_compile(dev: Any, slow: SlowCompiler) -> None:
    use(dev, slow)
    kernels = list[Any]()

    async def compile_it() -> None:
        kernels.append(await dev.nvrtc.compile(ADD, "add", add(1)))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(compile_it)
            await slow.wait_entered()
            slow.gate.set()
    assert len(kernels) == 10
    assert len(slow.threads) == 1


async def test_devices_of_one_run_share_the_compiler() -> None:
    async with open_test_device() as one:
        await one.nvrtc.compile(ADD, "add", add(7))
        before = one.nvrtc.statistics()
        async with open_test_device() as other:
            await other.nvrtc.compile(ADD, "add", add(7))
            assert other.nvrtc.statistics() == attrs.evolve(before, hits=before.hits + 1)


async def test_a_define_makes_another_kernel(dev: Any, tmp_path: Path) -> None:
    for origin in (None, "disk"):
        use(dev, cache=NvrtcCache(tmp_path))
        x = await dev.to_device(np.zeros(1, np.int32))
        async with dev.events() as events:
            for n in (1, 20):
                await (await dev.nvrtc.compile(ADD, "add", add(n))).launch(1, 1, x)
                started, finished = await anext(events), await anext(events)
                assert isinstance(started, CompileStarted)
                assert isinstance(finished, CompileFinished)
                assert finished.cached == origin
        assert (await x.to_host()).tolist() == [21]


# --- generations ------------------------------------------------------------------------------------------------------


async def test_a_kernel_compiled_across_a_loss_runs_in_the_new_generation(dev: Any, slow: SlowCompiler) -> None:
    use(dev, slow)
    x = await dev.to_device(np.zeros(4, np.int32))
    kernels = list[Any]()

    async def compile_it() -> None:
        kernels.append(await dev.nvrtc.compile(ADD, "add", add(3)))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(compile_it)
            await slow.wait_entered()
            await dev.restart("while a compile is under way")
            slow.gate.set()
        assert dev.generation == 2
        await kernels[0].launch(1, 4, x)
        assert (await x.to_host()).tolist() == [3] * 4
        await dev.restart("once more")
        await kernels[0].launch(1, 4, x)
        assert (await x.to_host()).tolist() == [6] * 4


# --- giving up --------------------------------------------------------------------------------------------------------


async def test_a_cancelled_caller_ends_the_compile(dev: Any, slow: SlowCompiler) -> None:
    use(dev, slow)
    async with dev.events() as events:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(dev.nvrtc.compile, ADD, "add", add(1))
                await slow.wait_entered()
                nursery.cancel_scope.cancel()
            assert dev.nvrtc.statistics().cancelled == 1
            assert isinstance(await anext(events), CompileStarted)
            finished = await anext(events)
    assert isinstance(finished, CompileFinished)
    assert finished.error == "cancelled"
    slow.gate.set()
    await until_idle(dev)
    # NVRTC was told to stop, so that there is nothing to be found.
    await dev.nvrtc.compile(ADD, "add", add(1))
    assert len(slow.threads) == 2


async def test_a_cancelled_caller_leaves_the_compile_to_the_others(dev: Any, slow: SlowCompiler) -> None:
    use(dev, slow)
    impatient = trio.CancelScope()
    kernels = list[Any]()

    async def compile_it(scope: trio.CancelScope) -> None:
        with scope:
            kernels.append(await dev.nvrtc.compile(ADD, "add", add(1)))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(compile_it, impatient)
            nursery.start_soon(compile_it, trio.CancelScope())
            await slow.wait_entered()
            await trio.testing.wait_all_tasks_blocked()
            impatient.cancel()
            await trio.testing.wait_all_tasks_blocked()
            slow.gate.set()
    assert len(kernels) == 1
    assert len(slow.threads) == 1


async def test_closing_the_device_ends_its_compiles(slow: SlowCompiler) -> None:
    errors = list[Exception]()

    async def compile_it(dev: Any) -> None:
        try:
            await dev.nvrtc.compile(ADD, "add", add(1))
        except atomr_trio.DeviceClosed as error:
            errors.append(error)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            async with open_test_device() as dev:
                service = use(dev, slow)
                nursery.start_soon(compile_it, dev)
                await slow.wait_entered()
    assert len(errors) == 1
    assert service.statistics().cancelled == 1


# --- what it says -----------------------------------------------------------------------------------------------------


async def test_events_tell_where_a_program_came_from(dev: Any) -> None:
    use(dev)
    async with dev.events() as events:
        for cached in (None, "memory"):
            await dev.nvrtc.compile(ADD, "add", add(1))
            started, finished = await anext(events), await anext(events)
            assert (started.program, started.target) == ("add.cu", finished.target)
            assert (finished.program, finished.cached, finished.error) == ("add.cu", cached, None)
            assert finished.seconds >= 0
        with pytest.raises(atomr_trio.CompileError):
            await dev.nvrtc.compile("?", "add")
        assert isinstance(await anext(events), CompileStarted)
        finished = await anext(events)
    assert finished.cached is None
    assert "error" in finished.error
