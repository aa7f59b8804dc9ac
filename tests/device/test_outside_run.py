"""What a call gets that does not come from the trio run that opened the device, and that the device lives on.

`VERBS` is every public verb that uses a device; a test holds it complete, so that a new verb has to be added here. Each
is called from other threads, runs and libraries. Libraries' verbs are found by themselves.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import functools
import inspect
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio

import atomr_trio
from atomr_trio import Device, OutsideRun, testing
from atomr_trio._calls.verbs import Library, is_verb
from atomr_trio._values import habits
from atomr_trio.libraries.registered import ACTORS as LIBRARIES
from support import ON_GPU, child_environment, open_test_device, open_test_devices
from support.draws import DRAWS
from support.public_interface import CALLABLES, FACES

SOURCE = r"""
__device__ int counter;
extern "C" __global__ void add(int *x, int a) { x[threadIdx.x] += a; counter = a; }
"""
LENGTH = 32
HOST = np.arange(LENGTH, dtype=np.int32)


@atomr_trio.kernel("x[threadIdx.x] += 1;")
def add_one(x: atomr_trio.Writes[np.int32]) -> None: ...


Stage = Any
"""A device and one of everything that is made of it; see `on_stage`."""


@contextlib.asynccontextmanager
async def on_stage(dev: Device) -> AsyncIterator[Stage]:
    """What the verbs are called on. Launches of the kernel and a product of matrices have been made before."""
    kernel = await dev.nvrtc.compile(SOURCE, "add")
    program = await dev.nvrtc.compile_program(SOURCE)
    image = program.cubin or program.ptx or ""
    module = await dev.module.load(image)
    x, y = await dev.to_device(HOST), await dev.to_device(HOST)
    a, c = await dev.to_device(np.eye(4, dtype=np.float32)), dev.zeros((4, 4), np.float32)
    prepared = kernel.prepare(1, LENGTH, x, 0)
    recorders: list[atomr_trio.GraphRecorder] = []

    def record(recorder: atomr_trio.GraphRecorder) -> None:
        recorders.append(recorder)
        recorder.launch(kernel, 1, LENGTH, x, 0)

    graph = await dev.capture(record)
    for _ in range(2):
        await kernel.launch(1, LENGTH, x, 0)
        await prepared.launch()
        await dev.blas.gemm(a, a, out=c)
    async with open_test_devices([0]) as devices, dev.lane() as lane, dev.batch() as batch, dev.events() as events:
        reservation = devices.reserve(1)
        reservation.__enter__()
        for _ in range(2):
            batch.launch(kernel, 1, LENGTH, x, 0)
            batch.launch(prepared)
            batch.blas.gemm(a, a, out=c)
            await batch.flush()
        generator = dev.random.generator("philox", 7)
        event = dev.compute_lane.record()
        await event.wait()
        word = testing.EndlessKernel(y)
        attempts = atomr_trio.retry(dev)
        attempt = await anext(attempts)
        yield SimpleNamespace(**{name: value for name, value in locals().items() if name not in ("record", "_")})


VERBS: dict[str, Callable[[Stage], Any]] = {
    "Attempt.__aenter__": lambda s: s.attempt.__aenter__(),
    "Attempt.__aexit__": lambda s: s.attempt.__aexit__(None, None, None),
    "Batch.__aenter__": lambda s: s.dev.batch().__aenter__(),
    "Batch.__aexit__": lambda s: s.batch.__aexit__(None, None, None),
    "Batch.copy_from": lambda s: s.batch.copy_from(s.x, HOST),
    "Batch.copy_to": lambda s: s.batch.copy_to(s.x, HOST.copy()),
    "Batch.fill": lambda s: s.batch.fill(s.x, 1),
    "Batch.flush": lambda s: s.batch.flush(),
    "Batch.launch": lambda s: s.batch.launch(s.kernel, 1, LENGTH, s.x, 1),
    "Batch.launch, prepared": lambda s: s.batch.launch(s.prepared),
    "Batch.launch, for the first time": lambda s: s.batch.launch(s.module["add"], 1, LENGTH, s.x, 1),
    "Batch.launch_graph": lambda s: s.batch.launch_graph(s.graph),
    "Batch.record": lambda s: s.batch.record(),
    "Batch.to_device": lambda s: s.batch.to_device(HOST),
    "Batch.to_host": lambda s: s.batch.to_host(s.x),
    "DeclaredKernel.launch": lambda s: add_one.launch(s.dev, 1, LENGTH, s.x),
    "DeclaredKernel.on": lambda s: add_one.on(s.dev),
    "Device.capture": lambda s: s.dev.capture(lambda recorder: recorder.fill(s.x, 1)),
    "Device.empty": lambda s: s.dev.empty(LENGTH),
    "Device.events": lambda s: s.dev.events(),
    "Device.full": lambda s: s.dev.full(LENGTH, 1),
    "Device.lane": lambda s: s.dev.lane(),
    "Device.memory_map": lambda s: s.dev.memory_map(),
    "Device.map_memory": lambda s: s.dev.map_memory(),
    "Device.pinned_empty": lambda s: s.dev.pinned_empty(LENGTH),
    "Device.restart": lambda s: s.dev.restart("a test"),
    "Device.share": lambda s: s.dev.share(s.x),
    "Device.statistics": lambda s: s.dev.statistics(),
    "Device.to_device": lambda s: s.dev.to_device(HOST),
    "Device.trim": lambda s: s.dev.trim(),
    "Device.wait_generation": lambda s: s.dev.wait_generation(after=0),
    "Device.wait_standby": lambda s: s.dev.wait_standby(),
    "Device.zeros": lambda s: s.dev.zeros(LENGTH),
    "Devices.events": lambda s: s.devices.events(),
    "Devices.map": lambda s: s.devices.map(lambda dev, item: dev.trim(), [1]),
    "Devices.pick": lambda s: s.devices.pick(),
    "Devices.statistics": lambda s: s.devices.statistics(),
    "DeviceArray.__dlpack__": lambda s: s.x.__dlpack__(),
    "DeviceArray.__dlpack_device__": lambda s: s.x.__dlpack_device__(),
    "DeviceArray.__exit__": lambda s: s.x.__exit__(None, None, None),
    "DeviceArray.copy_from": lambda s: s.x.copy_from(HOST),
    "DeviceArray.copy_from, another array": lambda s: s.x.copy_from(s.y),
    "DeviceArray.copy_to": lambda s: s.x.copy_to(HOST.copy()),
    "DeviceArray.fill": lambda s: s.x.fill(1),
    "DeviceArray.free": lambda s: s.x.free(),
    "DeviceArray.to_host": lambda s: s.x.to_host(),
    "Event.elapsed_since": lambda s: s.event.elapsed_since(s.event),
    "Event.wait": lambda s: s.event.wait(),
    "Graph.clone": lambda s: s.graph.clone(),
    "Graph.launch": lambda s: s.graph.launch(),
    "Graph.launch_nowait": lambda s: s.graph.launch_nowait(),
    "Graph.update": lambda s: s.graph.update(s.graph.nodes[0], s.x, 2),
    "GraphRecorder.copy": lambda s: s.recorders[0].copy(s.x, s.y),
    "GraphRecorder.fill": lambda s: s.recorders[0].fill(s.x, 1),
    "GraphRecorder.launch": lambda s: s.recorders[0].launch(s.kernel, 1, LENGTH, s.x, 1),
    "Kernel.launch": lambda s: s.kernel.launch(1, LENGTH, s.x, 1),
    "Kernel.launch, in a lane": lambda s: s.kernel.launch(1, LENGTH, s.x, 1, lane=s.lane),
    "Kernel.launch_nowait": lambda s: s.kernel.launch_nowait(1, LENGTH, s.x, 1),
    "Kernel.occupancy": lambda s: s.kernel.occupancy(LENGTH),
    "Kernel.prepare": lambda s: s.kernel.prepare(1, LENGTH, s.x, 1),
    "Kernel.suggest_block": lambda s: s.kernel.suggest_block(),
    "Lane.__aenter__": lambda s: s.lane.__aenter__(),
    "Lane.__aexit__": lambda s: s.lane.__aexit__(None, None, None),
    "Lane.record": lambda s: s.lane.record(),
    "Lane.synchronize": lambda s: s.lane.synchronize(),
    "Lane.wait_for": lambda s: s.lane.wait_for(s.event),
    "Module.__aenter__": lambda s: s.module.__aenter__(),
    "Module.__aexit__": lambda s: s.module.__aexit__(None, None, None),
    "Module.__getitem__": lambda s: s.module["add"],
    "Module.function": lambda s: s.module.function("add"),
    "Module.global_": lambda s: s.module.global_("counter"),
    "Module.unload": lambda s: s.module.unload(),
    "ModuleLoader.load": lambda s: s.dev.module.load(s.image),
    "Nvrtc.compile": lambda s: s.dev.nvrtc.compile(SOURCE, "add"),
    "Nvrtc.compile_program": lambda s: s.dev.nvrtc.compile_program(SOURCE),
    "Nvrtc.kernel": lambda s: s.dev.nvrtc.kernel(add_one),
    "PreparedLaunch.__setitem__": lambda s: s.prepared.__setitem__(1, 7),
    "PreparedLaunch.launch": lambda s: s.prepared.launch(),
    "PreparedLaunch.launch_nowait": lambda s: s.prepared.launch_nowait(),
    "Program.__getitem__": lambda s: s.program["&counter"],
    "Program.function": lambda s: s.program.function("add"),
    "Program.global_": lambda s: s.program.global_("counter"),
    "Program.unload": lambda s: s.program.unload(),
    **{
        f"RandomGenerator.{verb}": lambda s, verb=verb, given=given: getattr(s.generator, verb)(*given, size=4)
        for verb, given in DRAWS.items()
    },
    "RandomGenerator.seek": lambda s: s.generator.seek(s.generator.state),
    "RandomGenerator.spawn": lambda s: s.generator.spawn(1),
    "Reservation.__enter__": lambda s: s.devices.reserve(1).__enter__(),
    "Reservation.__exit__": lambda s: s.reservation.__exit__(None, None, None),
    "Retry.__anext__": lambda s: s.attempts.__anext__(),
    "Subscription.__aenter__": lambda s: s.events.__aenter__(),
    "Subscription.__aexit__": lambda s: s.events.__aexit__(None, None, None),
    "Subscription.__anext__": lambda s: s.events.__anext__(),
    "Subscription.__enter__": lambda s: s.events.__enter__(),
    "Subscription.__exit__": lambda s: s.events.__exit__(None, None, None),
    "retry": lambda s: atomr_trio.retry(s.dev),
    "testing.EndlessKernel.end": lambda s: s.word.end(),
    "testing.cause": lambda s: testing.cause(s.dev, testing.Fault.TRAP),
    "testing.endless_kernel": lambda s: testing.endless_kernel(s.dev).__aenter__(),
    "testing.hold_rebuild": lambda s: testing.hold_rebuild(s.dev).__enter__(),
    "testing.hold_worker": lambda s: testing.hold_worker(s.dev).__enter__(),
    "testing.kill_worker": lambda s: testing.kill_worker(s.dev),
    "testing.launch_once": lambda s: testing.launch_once(s.dev),
    "testing.worker_pid": lambda s: testing.worker_pid(s.dev),
}
"""Each public verb that uses a device, called; behind a comma, another way that its call goes."""

if ON_GPU:
    VERBS["DeviceArray.__cuda_array_interface__"] = lambda s: s.x.__cuda_array_interface__
else:
    VERBS["testing.inject"] = lambda s: testing.inject(s.dev, "cuMemAlloc", testing.Delay(0.0))

ANYWHERE = {
    "Device.batch",  # whose verbs refuse
    "DeviceArray.__array__",
    "DeviceArray.__contains__",
    "DeviceArray.__enter__",
    "DeviceArray.__getitem__",
    "DeviceArray.__len__",
    "DeviceArray.reshape",
    "DeviceArray.transpose",
    "DeviceArray.view",
    "Devices.__getitem__",
    "Devices.__len__",
    "Devices.reserve",  # whose block refuses
    "Graph.__len__",
    "Kernel.grid_for",
    "Module.__contains__",
    "Module.__iter__",
    "Module.__len__",
    "Nvrtc.statistics",
    "PreparedLaunch.__getitem__",
    "PreparedLaunch.__len__",
    "Retry.__aiter__",
    "Subscription.__aiter__",
    "open_device",  # in another run and in another thread: that is another device
    "open_devices",
    "start",  # which opens a device with a run of its own
    "start_devices",
    "overwrites",
    "read_only",
    "strided",
    "writes",
    "testing.check_actor",  # which opens a device of its own
    "testing.inject_at_start",
} | ({"testing.inject"} if ON_GPU else {"DeviceArray.__cuda_array_interface__"})
"""What uses a device, or looks as if it did, and may be called anywhere: it changes nothing of the device."""

OF_NO_DEVICE = (
    *("ActorStatistics", "Finding", "KernelSignature", "LaneStatistics", "LinkInput", "LinkOptions", "MemoryChunk"),
    *("MemoryMap", "MemoryStatistics", "NvrtcCache", "NvrtcCacheKey", "NvrtcOptions", "OtherThread", "Parameter"),
    *("DeviceSnapshot", "LeastLoaded", "MostFree", "Placement", "RoundRobin"),
    *("Devices.world", "PremultipliedSum", "Sharded", "World", "premultiplied_sum"),  # tests/libraries/nccl has these
    *("RestartPolicy", "compile_to_cubin", "compile_to_ltoir", "compile_to_ptx", "kept_findings", "link"),
    *("DeclaredKernel.grid_for", "kernel", "testing.FaultSigns", "testing.WorkerPool"),
)
"""Functions, and classes of values, that know no device."""

SPECIAL = (
    *("__aenter__", "__aexit__", "__enter__", "__exit__", "__aiter__", "__anext__", "__iter__", "__len__"),
    *("__contains__", "__getitem__", "__setitem__", "__array__", "__dlpack__", "__dlpack_device__"),
    "__cuda_array_interface__",
)


def special_methods() -> Iterator[str]:
    """The special methods of public classes that are written here."""
    for face in FACES:
        prefix = face.__name__.partition(".")[2]
        for name in face.__all__:
            cls = getattr(face, name)
            if inspect.isclass(cls):
                shown = f"{prefix}.{name}" if prefix else name
                yield from (f"{shown}.{each}" for each in SPECIAL if is_given(cls, each))


def is_given(cls: type, name: str) -> bool:
    """Whether a class has a special method for more than to refuse it."""
    return name in vars(cls) and getattr(vars(cls)[name], "__module__", None) != habits.__name__


def library_verbs(stage: Stage) -> dict[str, Callable[[Stage], Any]]:
    """The verbs of the mathematical libraries, awaited and in a batch. From elsewhere they look at no argument."""
    found: dict[str, Callable[[Stage], Any]] = {}
    for form, library in itertools.product(("dev", "batch"), LIBRARIES):
        verbs = getattr(getattr(stage, form), library)
        for name in dir(type(verbs)):
            if is_verb(inspect.getattr_static(type(verbs), name)):
                call = getattr(verbs, name)
                found[f"{form}.{library}.{name}"] = lambda _, call=call: call()
    return found


def every_verb(stage: Stage) -> dict[str, Callable[[Stage], Any]]:
    """All of them, with the ways that a repeated call of a library goes."""
    known = {
        "dev.blas.gemm, repeated": lambda s: s.dev.blas.gemm(s.a, s.a, out=s.c),
        "batch.blas.gemm, repeated": lambda s: s.batch.blas.gemm(s.a, s.a, out=s.c),
    }
    return {**VERBS, **known, **library_verbs(stage)}


def test_every_public_verb_is_here():
    functions = {member.name for member in CALLABLES if not isinstance(member.value, property)}
    libraries = {name for face in FACES for name in face.__all__ if issubclass_of_library(getattr(face, name))}
    named = {name for name in {*functions, *special_methods()} if name.partition(".")[0] not in libraries}
    used = {name for name in named if not name.startswith(tuple(OF_NO_DEVICE))}
    assert used - {name.partition(",")[0] for name in VERBS} - ANYWHERE == set()
    assert {name.partition(",")[0] for name in VERBS} - named == set()
    assert ANYWHERE - named == set()


def issubclass_of_library(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, Library)


# ---------------------------------------------------------------------------------------------------- elsewhere


def step(call: Callable[[Stage], Any], stage: Stage) -> str:
    """What a call raises at once, awaited or not, without any event loop: the name of the exception."""
    return outcome_of(lambda: run_first_step(call(stage)))


def run_first_step(result: Any) -> None:
    if inspect.iscoroutine(result):
        try:
            result.send(None)
        finally:
            result.close()


def outcome_of(call: Callable[[], object]) -> str:
    try:
        return f"returned {call()!r}"
    except BaseException as error:
        return named(error)


def named(error: BaseException) -> str:
    return f"{type(error).__name__} {error.caller}" if isinstance(error, OutsideRun) else f"{type(error).__name__}"


async def outcomes(stage: Stage) -> dict[str, str]:
    """What each verb raises, called and awaited in the task of some event loop."""
    found = {}
    for name, call in every_verb(stage).items():
        try:
            result = call(stage)
            found[name] = f"returned {await result if inspect.isawaitable(result) else result!r}"
        except BaseException as error:
            found[name] = named(error)
    return found


def steps(stage: Stage) -> dict[str, str]:
    """What each verb raises at once."""
    return {name: step(call, stage) for name, call in every_verb(stage).items()}


def in_a_thread(work: Callable[[], Any]) -> Any:
    """Have a new thread do something while this one waits, and return what came of it."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), name="elsewhere")
    thread.start()
    thread.join(60)
    assert results, "the thread raised, or is still at it"
    return results[0]


PLACES: dict[str, Callable[[Stage], dict[str, str]]] = {
    "another thread": steps,
    "another trio run": lambda stage: trio.run(outcomes, stage),
    "asyncio": lambda stage: asyncio.run(outcomes(stage)),
}


async def check_alive(stage: Stage) -> None:
    """The device works, in every form, and nothing that was refused has happened."""
    stage.batch.launch(stage.kernel, 1, LENGTH, stage.x, 1)
    stage.batch.launch(stage.prepared)
    await stage.batch.flush()
    np.testing.assert_array_equal(await stage.x.to_host(), HOST + 1)
    np.testing.assert_array_equal(await stage.y.to_host(), HOST)
    await stage.kernel.launch(1, LENGTH, stage.x, -1)
    await stage.graph.launch()
    await stage.lane.synchronize()
    np.testing.assert_array_equal(await stage.x.to_host(), HOST)
    assert stage.dev.generation == 1


async def test_a_verb_from_elsewhere_is_refused_and_the_device_lives_on(dev):
    async with on_stage(dev) as stage:
        before = dev.statistics()
        for place, call_all in PLACES.items():
            # The loop stands still meanwhile, as if it were busy.
            found = in_a_thread(lambda call_all=call_all: call_all(stage))
            assert {name: text for name, text in found.items() if text != f"OutsideRun {place}"} == {}
        after = dev.statistics()
        assert (after.actors, after.lanes, after.memory) == (before.actors, before.lanes, before.memory)
        await check_alive(stage)


async def test_a_recorder_takes_nothing_from_another_thread(dev):
    async with on_stage(dev) as stage:
        found = {}

        def record(recorder: atomr_trio.GraphRecorder) -> None:
            there = SimpleNamespace(**{**vars(stage), "recorders": [recorder]})
            verbs = {name: call for name, call in VERBS.items() if name.startswith("GraphRecorder.")}
            found.update(in_a_thread(lambda: {name: step(call, there) for name, call in verbs.items()}))
            recorder.fill(stage.y, 3)

        graph = await dev.capture(record)
        assert set(found.values()) == {"OutsideRun another thread"}
        assert len(graph) == 1


async def test_many_threads_at_once_are_all_refused(dev):
    async with on_stage(dev) as stage:
        results: list[dict[str, str]] = []
        threads = [threading.Thread(target=lambda: results.append(steps(stage))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for _ in range(20):  # while the device's own run goes on
            stage.batch.launch(stage.kernel, 1, LENGTH, stage.x, 0)
            await stage.batch.flush()
            await stage.kernel.launch(1, LENGTH, stage.x, 0)
        for thread in threads:
            await trio.to_thread.run_sync(thread.join)
        assert len(results) == 8
        assert {text for found in results for text in found.values()} == {"OutsideRun another thread"}
        await check_alive(stage)


async def test_what_the_error_says(dev):
    x = await dev.to_device(HOST)

    def refused() -> OutsideRun:
        with pytest.raises(OutsideRun) as caught:
            x.to_host().send(None)
        return caught.value

    error = in_a_thread(refused)
    home = threading.current_thread().name
    assert (error.caller, error.thread, error.home) == ("another thread", "elsewhere", home)
    assert error.message.startswith("the call came from thread 'elsewhere', and the device belongs to the trio run of")
    assert "`trio.from_thread.run(verb, ..., trio_token=token)`" in str(error)
    assert f"caller='another thread', thread='elsewhere', home={home!r}" in repr(error)
    assert isinstance(error, RuntimeError)
    assert isinstance(error, atomr_trio.RequestError)

    async def refused_there() -> None:
        with pytest.raises(OutsideRun, match="open a device inside this run, or have a task of that run make the call"):
            await x.to_host()

    in_a_thread(lambda: trio.run(refused_there))


async def test_what_the_error_advises_works_in_a_thread_in_another_run_and_under_asyncio(dev):
    x = await dev.to_device(HOST)
    token = trio.lowlevel.current_trio_token()

    def by_thread() -> Any:
        return trio.from_thread.run(x.to_host, trio_token=token)

    async def by_asyncio() -> Any:
        return await asyncio.to_thread(trio.from_thread.run, x.to_host, trio_token=token)

    async def by_another_run() -> Any:
        return await trio.to_thread.run_sync(by_thread)

    ways = (by_thread, lambda: asyncio.run(by_asyncio()), lambda: trio.run(by_another_run))
    for way in ways:
        np.testing.assert_array_equal(await trio.to_thread.run_sync(way), HOST)
    await trio.to_thread.run_sync(lambda: trio.from_thread.run_sync(x.free, trio_token=token))
    assert x.state == "freed"


# ---------------------------------------------------------------------------------------------------- asyncio


def beside_asyncio(main: Callable[[Stage], Awaitable[None]]) -> None:
    """Run asyncio with trio as its guest, which opens a device, and then `main` in a task of asyncio."""

    async def host() -> None:
        loop = asyncio.get_running_loop()
        ready, done = asyncio.Event(), loop.create_future()
        found: list[Any] = []

        async def guest() -> None:
            async with open_test_device() as dev, on_stage(dev) as stage:
                leave = trio.Event()
                found.extend((stage, leave, trio.lowlevel.current_trio_token()))
                ready.set()
                await leave.wait()
                await check_alive(stage)

        trio.lowlevel.start_guest_run(
            guest, run_sync_soon_threadsafe=loop.call_soon_threadsafe, done_callback=done.set_result
        )
        either = asyncio.ensure_future(ready.wait())
        await asyncio.wait({either, done}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        try:
            if found:
                stage, leave, token = found
                stage.token = token
                await main(stage)
                leave.set()
        finally:
            (await asyncio.wait_for(done, 60)).unwrap()

    asyncio.run(host())


def test_under_asyncio_with_trio_as_its_guest_a_verb_that_is_awaited_is_refused():
    async def main(stage: Stage) -> None:
        found = {}
        for name, call in every_verb(stage).items():
            if name not in WITHOUT_AWAIT and not name.startswith("batch."):
                result = call(stage)
                try:
                    found[name] = f"returned {await result!r}"
                except BaseException as error:
                    found[name] = named(error)
        assert len(found) > 100
        assert {name: text for name, text in found.items() if text != "OutsideRun asyncio"} == {}
        result = await asyncio.to_thread(trio.from_thread.run, stage.x.to_host, trio_token=stage.token)
        np.testing.assert_array_equal(result, HOST)

    beside_asyncio(main)


WITHOUT_AWAIT = {
    name
    for name in VERBS
    if not inspect.iscoroutinefunction(
        getattr(functools.reduce(getattr, name.partition(",")[0].split("."), atomr_trio), "__wrapped__", None)
        or functools.reduce(getattr, name.partition(",")[0].split("."), atomr_trio)
    )
}


def test_under_asyncio_with_trio_as_its_guest_verbs_without_await_work_in_its_callbacks():
    async def main(stage: Stage) -> None:
        stage.batch.launch(stage.kernel, 1, LENGTH, stage.x, 5)
        stage.kernel.launch_nowait(1, LENGTH, stage.x, -5)
        stage.graph.launch_nowait()
        stage.batch.fill(stage.dev.zeros(LENGTH, np.int32), 3)
        stage.dev.empty(LENGTH).free()
        stage.lane.record()
        assert stage.dev.statistics().generation == 1

    beside_asyncio(main)


def test_a_device_is_opened_in_a_trio_task():
    def error_of(coroutine: Any) -> str:
        return outcome_of(lambda: run_first_step(coroutine))

    async def under_asyncio() -> str:
        return error_of(open_test_device().__aenter__())

    assert error_of(open_test_device().__aenter__()) == "OutsideRun no task"
    assert asyncio.run(under_asyncio()) == "OutsideRun asyncio"


# ---------------------------------------------------------------------------------------------------- ended, forked

SILENT = {
    *("Devices.events", "Devices.statistics", "Reservation.__exit__"),
    "Device.memory_map",
    "Device.statistics",
    "DeviceArray.__exit__",
    "DeviceArray.free",
    "Module.__getitem__",
    "Module.function",
    "Module.global_",
    "Program.__getitem__",
    "Program.function",
    "Program.global_",
    "Device.events",
    "Subscription.__enter__",
    "Subscription.__exit__",
    "testing.hold_rebuild",
}
"""Verbs without await that a device which has ended still answers, in the thread where it was."""


ABANDONED = """
import contextlib, select
import trio
from atomr_trio import DeviceClosed
from atomr_trio.testing._workers import generation_of
from support import open_test_device
from device.test_outside_run import in_a_thread, on_stage, outcomes, steps

stages = []

async def leave_it_open():
    stack = contextlib.AsyncExitStack()
    dev = await stack.enter_async_context(open_test_device())
    stages.append(await stack.enter_async_context(on_stage(dev)))
    stages[0].stack, stages[0].process = stack, generation_of(dev).process

try:
    trio.run(leave_it_open)  # the device's nursery is left open, which trio does not forgive
except trio.TrioInternalError:
    pass
[stage] = stages
assert select.select([stage.process.pidfd], [], [], 60)[0], 'its worker was not killed'
found = [trio.run(outcomes, stage), in_a_thread(lambda: steps(stage))]
try:
    stage.dev.empty(3)
except DeviceClosed as error:
    found.append(error.message)
print(found)
"""


@pytest.mark.long
def test_when_the_run_has_ended_the_device_is_closed_also_for_a_later_run():
    environment = child_environment(PYTHONWARNINGS="ignore")
    command = [sys.executable, "-c", ABANDONED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    later, thread, message = ast.literal_eval(done.stdout)
    assert {name: text for name, text in later.items() if text != "DeviceClosed" and name not in SILENT} == {}
    unlike = {name: text for name, text in thread.items() if text != "DeviceClosed"}
    assert set(unlike) == {"DeviceArray.__exit__", "DeviceArray.free"}
    assert message == "the trio run that opened the device has ended before the block of open_device was left"


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
async def test_in_a_forked_child_every_verb_says_so(dev):
    async with on_stage(dev) as stage:
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                found = steps(stage)
                loud = {name: text for name, text in found.items() if name not in SILENT}
                os.write(theirs, repr({name: text for name, text in loud.items() if text != "DeviceFailed"}).encode())
            except BaseException as error:
                os.write(theirs, repr(error).encode())
            finally:
                os._exit(0)
        os.close(theirs)
        await trio.lowlevel.wait_readable(ours)
        answer = os.read(ours, 4096).decode()
        os.close(ours)
        await trio.to_thread.run_sync(os.waitpid, child, 0)
        assert answer == "{}"
        await check_alive(stage)
