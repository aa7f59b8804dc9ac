"""Modules: what is in an image, its variables as arrays, how it survives a fault, and how it is unloaded."""

from __future__ import annotations

import contextlib
import gc
import struct
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import HealthCheck, example, given, strategies as st

from atomr_trio import (
    CommandFailed,
    ContextLost,
    ContextWasLost,
    Device,
    DeviceArray,
    ImageKind,
    InvalidArgument,
    Module,
    NvrtcOptions,
    OutOfDeviceMemory,
    Parameter,
    ParameterKind,
    Program,
    RestartPolicy,
    StaleArray,
    StaleKernel,
    compile_to_cubin,
    compile_to_ltoir,
    compile_to_ptx,
    overwrites,
    read_only,
)
from atomr_trio._compiling.images import read_image
from atomr_trio._device.device import core_of
from atomr_trio._generation.admission import Admission
from atomr_trio._values.signatures import signature_of_layout
from atomr_trio.libraries.modules.engine import may_print
from support.linking import fatbin_of
from support.rogue import WILD, compile_rogue, gated, kill_worker, process_exists, until
from support.strategies import examples

pytestmark = pytest.mark.used_workers

SOURCE = r"""
__device__ int counter = 5;
__constant__ float table[4];
namespace ns { __device__ double inner[2]; }
struct Pair { int first; double second; };

extern "C" __global__ void look(float *out, int at) { out[threadIdx.x] = table[at] + counter + (float)ns::inner[1]; }
extern "C" __global__ void count() { atomicAdd(&counter, 1); }
extern "C" __global__ void add(float *x, int n, float f, double d, Pair pair, unsigned char small)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += f + d + pair.first + pair.second + small;
}
template <class T, int N> __global__ void fill(T *x) { x[threadIdx.x] = N; }
"""
NAMES = ("fill<float, 7>", "&ns::inner")
TEMPLATED = NvrtcOptions(name_expressions=NAMES)
ANY_NUMBER = RestartPolicy(intensity=float("inf"), backoff_min=0.01)
DEADLINE = 60

PTX = compile_to_ptx(SOURCE, options=NvrtcOptions(arch="compute_80", name_expressions=NAMES))
CUBIN = compile_to_cubin(SOURCE, options=NvrtcOptions(arch="sm_80", name_expressions=NAMES))


async def lose(dev: Device) -> None:
    """Have a fault, and wait for the generation after it."""
    (touch,) = await compile_rogue(dev, "touch")
    with pytest.raises(ContextLost) as lost:
        await touch.launch(1, 1, WILD, 1)
    await dev.wait_generation(after=lost.value.generation)


# --- what is in it ----------------------------------------------------------------------------------------------------


async def test_a_module_is_a_mapping_of_the_names_of_its_kernels(dev: Device) -> None:
    module = await dev.module.load(PTX.encode())
    assert isinstance(module, Module)
    assert {"look", "count", "add"} < set(module)
    assert len(module) == 4 == len(list(module))
    assert "look" in module
    assert "nothing" not in module
    assert module["look"] is module.function("look")
    assert module["look"].module is module
    assert (module.image_kind, module.target, module.ptx, module.cubin) == (ImageKind.PTX, "compute_80", PTX, None)
    assert dict(module.globals) == {"counter": 4, "table": 16, "_ZN2ns5innerE": 16}
    assert module.device is dev
    assert module.log == ""
    for wrong in ("nothing", "", None, 7):
        with pytest.raises(InvalidArgument):
            module.function(wrong)  # type: ignore[arg-type]


async def test_an_image_comes_as_bytes_as_text_or_as_a_file(dev: Device, tmp_path: Path) -> None:
    file = tmp_path / "kernels.ptx"
    file.write_text(PTX)
    for image in (PTX, PTX.encode(), bytearray(PTX.encode()), memoryview(PTX.encode() + b"\0"), file, str(file)):
        module = await dev.module.load(image)
        x = await dev.to_device(np.zeros(4, np.float32))
        await module["look"].launch(1, 4, x, 0)
        assert (await x.to_host()).tolist() == [5] * 4
    assert (await dev.module.load(file)).name == "kernels.ptx"
    assert (await dev.module.load(file, name="mine")).name == "mine"
    for wrong in (tmp_path / "missing.ptx", tmp_path, "a\0b", None, 3.5, ["x"]):
        with pytest.raises(InvalidArgument):
            await dev.module.load(wrong)  # type: ignore[arg-type]


async def test_a_program_knows_the_names_of_the_source(dev: Device) -> None:
    program = await dev.nvrtc.compile_program(SOURCE, TEMPLATED)
    assert isinstance(program, Program)
    assert set(program) == {"look", "count", "add", "fill<float, 7>"}
    x = await dev.to_device(np.zeros(4, np.float32))
    await program["fill<float, 7>"].launch(1, 4, overwrites(x))
    assert (await x.to_host()).tolist() == [7] * 4
    inner = program.global_("&ns::inner", np.float64)
    await inner.copy_from(np.array([0.0, 100.0]))
    await program["look"].launch(1, 4, x, 0)
    assert (await x.to_host()).tolist() == [105] * 4
    assert (program["&ns::inner"].dtype, program["&ns::inner"].shape) == (np.uint8, (16,))
    assert (await program["&counter"].to_host()).view(np.int32).tolist() == [5]
    assert program.ptx is not None
    assert (program.cubin is None) == (dev.backend == "sim")
    assert program.ltoir is None
    assert program.log == ""
    for wrong in ("&missing", "fill<float, 8>", "&fill<float, 7>", ""):
        with pytest.raises(InvalidArgument):
            program[wrong]


async def test_compile_shares_a_program_and_compile_program_gives_one_of_its_own(dev: Device) -> None:
    first, second = [await dev.nvrtc.compile(SOURCE, name) for name in ("look", "count")]
    assert first.module is second.module
    own, other = [await dev.nvrtc.compile_program(SOURCE) for _ in range(2)]
    assert len({first.module, own, other}) == 3
    await own["count"].launch(1, 32)
    values = [await module.global_("counter", np.int32).to_host() for module in (first.module, own, other)]
    assert [int(value[0]) for value in values] == [5, 37, 5]
    await first.module.unload()
    third = await dev.nvrtc.compile(SOURCE, "look")
    await third.launch(1, 4, dev.zeros(4, np.float32), 0)


async def test_intermediate_code_is_linked_for_the_device_when_it_is_loaded(dev: Device) -> None:
    options = NvrtcOptions(lto=True, arch="compute_80", name_expressions=NAMES)
    program = await dev.nvrtc.compile_program(SOURCE, options)
    module = await dev.module.load(compile_to_ltoir(SOURCE, options=options))
    assert program.ltoir is not None
    x = await dev.to_device(np.zeros(4, np.float32))
    await program["fill<float, 7>"].launch(1, 4, overwrites(x))
    assert (await x.to_host()).tolist() == [7] * 4
    for kernel in (module["look"], program["look"], await dev.nvrtc.compile(SOURCE, "look", options)):
        await x.fill(0.0)
        await kernel.launch(1, 4, x, 0)
        assert (await x.to_host()).tolist() == [5] * 4
    assert module.image_kind is (ImageKind.PTX if dev.backend == "sim" else ImageKind.CUBIN)


# --- variables as arrays ----------------------------------------------------------------------------------------------


async def test_a_variable_is_an_array_like_any_other(dev: Device) -> None:
    module = await dev.module.load(PTX)
    table, counter = module.global_("table", np.float32), module.global_("counter", np.int32)
    assert (table.shape, table.dtype, table.state, table.nbytes) == ((4,), np.float32, "ready", 16)
    await table.copy_from(np.arange(4, dtype=np.float32))
    await table[1:3].fill(50.0)
    assert (await table.reshape(2, 2).to_host()).tolist() == [[0, 50], [50, 3]]
    x = await dev.to_device(np.zeros(4, np.float32))
    await module["look"].launch(1, 4, overwrites(x), 2)
    assert (await x.to_host()).tolist() == [55] * 4
    await x.copy_from(table)
    assert (await x.to_host()).tolist() == [0, 50, 50, 3]
    (touch,) = await compile_rogue(dev, "touch")
    await touch.launch(1, 32, counter, 1)
    out = np.zeros(1, np.int32)
    await counter.copy_to(out)
    assert out.tolist() == [6]


async def test_what_is_done_to_a_variable_is_in_order_across_lanes(dev: Device) -> None:
    """A copy out waits for the kernel that was given the variable, and that for the copy in."""
    module = await dev.module.load(PTX)
    counter = module.global_("counter", np.int32)
    (touch,) = await compile_rogue(dev, "touch")
    async with dev.lane() as lane, gated(dev, lane) as gate, trio.open_nursery() as nursery:
        nursery.start_soon(counter.copy_from, np.array([10], np.int32))
        await trio.testing.wait_all_tasks_blocked(0.01)
        touch.launch_nowait(1, 32, counter, 1, lane=lane)
        results: list[int] = []

        async def read() -> None:
            results.append(int((await counter.to_host())[0]))

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert results == []
        await gate.open()
    assert results == [11]


async def test_a_variable_is_not_freed_and_not_shared(dev: Device) -> None:
    module = await dev.module.load(PTX)
    table = module.global_("table", np.float32)
    for refused in (table.free, table[1:].free):
        with pytest.raises(InvalidArgument, match="cannot be freed alone"):
            refused()
    with pytest.raises(InvalidArgument, match="cannot be shared"):
        await dev.share(table)
    with pytest.raises((InvalidArgument, AttributeError)):
        table.__dlpack__()
    with pytest.raises((InvalidArgument, AttributeError)):
        _ = table.__cuda_array_interface__
    in_use = dev.statistics().memory.in_use
    del table
    gc.collect()
    await dev.empty(1).copy_from(np.zeros(1))
    assert dev.statistics().memory.in_use <= in_use + 512
    assert (await module.global_("table").to_host()).tolist() == [0] * 16


async def test_a_variable_is_asked_for_by_its_name_and_a_fitting_dtype(dev: Device) -> None:
    module = await dev.module.load(PTX)
    for name, dtype, says in (
        ("nothing", np.uint8, "has no variable 'nothing'; it has: counter, table"),
        ("counter", np.float64, "4 bytes, not a multiple of the size of float64"),
        ("counter", "text", "is not a numpy dtype"),
        (7, np.uint8, "a variable's name is a string that is not empty, not 7"),
        ("look", np.uint8, "has no variable 'look'"),
    ):
        with pytest.raises(InvalidArgument, match=says):
            module.global_(name, dtype)  # type: ignore[arg-type]


async def test_arrays_and_kernels_keep_their_module(dev: Device) -> None:
    module = await dev.module.load(PTX)
    known = weakref.ref(module)
    table = module.global_("table", np.float32)
    kernel = module["look"]
    del module
    gc.collect()
    assert known() is not None
    await kernel.launch(1, 4, dev.zeros(4, np.float32), 0)
    view = table[1:]
    del kernel, table
    gc.collect()
    assert (await view.to_host()).tolist() == [0] * 3


# --- after a fault ----------------------------------------------------------------------------------------------------


async def test_what_nobody_wrote_begins_anew_after_a_fault(open_test_device: Any) -> None:
    async with open_test_device(restart_policy=ANY_NUMBER) as dev:
        module = await dev.module.load(PTX)
        counter, table = module.global_("counter", np.int32), module.global_("table", np.float32)
        x = dev.zeros(4, np.float32)
        await module["look"].launch(1, 4, x, 0)
        await module["count"].launch(1, 32)
        assert (await counter.to_host()).tolist() == [37]
        for _ in range(2):
            await lose(dev)
            assert counter.state == "ready"
            assert (await counter.to_host()).tolist() == [5]
            await module["look"].launch(1, 4, x, 0)
            assert (await x.to_host()).tolist() == [5] * 4
            await module["look"].launch(1, 4, x, 0)
        assert table.generation == dev.generation == 3


async def _copy(table: DeviceArray, dev: Device) -> None:
    await table.copy_from(np.full(4, 10, np.float32))


async def _fill(table: DeviceArray, dev: Device) -> None:
    await table[:2].fill(10.0)


async def _launch(table: DeviceArray, dev: Device) -> None:
    (touch,) = await compile_rogue(dev, "touch")
    await touch.launch(1, 4, table, 4)


@pytest.mark.parametrize("write", [_copy, _fill, _launch])
async def test_what_was_written_is_stale_after_a_fault_until_it_is_written_again_whole(
    open_test_device: Any, write: Any
) -> None:
    async with open_test_device(restart_policy=ANY_NUMBER) as dev:
        module = await dev.module.load(PTX)
        table, look, x = module.global_("table", np.float32), module["look"], dev.zeros(4, np.float32)
        prepared = look.prepare(1, 4, x, 1)
        await write(table, dev)
        await prepared.launch()
        for _ in range(2):
            await lose(dev)
            assert table.state == "torn"
            for use in (table.to_host, lambda: table[:2].fill(7.0)):  # half of it is not the whole
                with pytest.raises(StaleArray, match="were lost with generation"):
                    await use()
            for launch in (lambda: look.launch(1, 4, x, 1), prepared.launch):
                with pytest.raises(StaleKernel, match="the contents of table"):
                    await launch()
            await table.copy_from(np.full(4, 20, np.float32))
            await look.launch(1, 4, x, 1)
            await prepared.launch()
            assert (await x.to_host()).tolist() == [25] * 4
            assert (await table.to_host()).tolist() == [20] * 4


async def test_what_was_written_is_remembered_when_its_array_is_gone(open_test_device: Any) -> None:
    async with open_test_device(restart_policy=ANY_NUMBER) as dev:
        module = await dev.module.load(PTX)
        await module.global_("table", np.float32).fill(3.0)
        gc.collect()
        await lose(dev)
        with pytest.raises(StaleKernel):
            await module["look"].launch(1, 4, dev.zeros(4, np.float32), 1)
        await module.global_("table", np.float32).fill(3.0)
        await module["look"].launch(1, 4, dev.zeros(4, np.float32), 1)


async def test_a_kernel_of_the_module_may_itself_write_what_is_stale(open_test_device: Any) -> None:
    async with open_test_device(restart_policy=ANY_NUMBER) as dev:
        module = await dev.module.load(PTX)
        table = module.global_("table", np.float32)
        await table.fill(3.0)
        await lose(dev)
        await module["_Z4fillIfLi7EEvPT_"].launch(1, 4, overwrites(table))
        assert (await table.to_host()).tolist() == [7] * 4
        await module["look"].launch(1, 4, dev.zeros(4, np.float32), 1)


async def test_an_array_that_is_used_while_the_generation_changes_is_that_of_the_next(open_test_device: Any) -> None:
    """Its address is another then, so nothing may be made of the old one."""
    async with open_test_device(restart_policy=ANY_NUMBER) as dev:
        module = await dev.module.load(PTX)
        counter, table = module.global_("counter", np.int32), module.global_("table", np.float32)
        (touch,) = await compile_rogue(dev, "touch")
        prepared = touch.prepare(1, 32, counter, 1)
        await table.fill(1.0)
        kill_worker(dev)
        with trio.fail_after(DEADLINE):
            await until(lambda: core_of(dev).current.loss is not None)
            await table.fill(2.0)  # nobody has waited for the next generation here
            await touch.launch(1, 32, counter, 1)
            await prepared.launch()
            assert (await counter.to_host()).tolist() == [7]
            assert (await table.to_host()).tolist() == [2] * 4


async def test_a_graph_with_a_variable_has_to_be_captured_again_after_a_fault(open_test_device: Any) -> None:
    async with open_test_device(restart_policy=ANY_NUMBER) as dev:
        module = await dev.module.load(PTX)
        counter = module.global_("counter", np.int32)
        x = dev.zeros(1, np.int32)
        graph = await dev.capture(lambda g: g.copy(counter, x))
        await graph.launch()
        assert (await x.to_host()).tolist() == [5]
        await lose(dev)
        with pytest.raises(StaleArray, match="its address was that of generation 1"):
            await graph.launch()
        await (await dev.capture(lambda g: g.copy(counter, x))).launch()
        assert (await x.to_host()).tolist() == [5]


async def test_a_takeover_looks_at_the_modules_with_variables_alone(
    open_test_device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, Module]] = []
    for name in ("_begins_anew", "_settle_in", "_generation_lost"):
        whole = getattr(Module, name)

        def noted(module: Module, *given: Any, name: str = name, whole: Any = whole) -> Any:
            seen.append((name, module))
            return whole(module, *given)

        monkeypatch.setattr(Module, name, noted)
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=ANY_NUMBER) as dev:
            module = await dev.nvrtc.compile_program(SOURCE)
            plain = [await dev.nvrtc.compile(f'extern "C" __global__ void f{n}() {{}}', f"f{n}") for n in range(3)]
            unloaded = await dev.nvrtc.compile_program(SOURCE + "__device__ int more;")
            await unloaded.unload()
            assert (await module.global_("counter", np.int32).to_host()) == 5
            seen.clear()
            await dev.restart("for the test")
            assert [(name, each is module) for name, each in seen] == [
                ("_generation_lost", True),
                ("_begins_anew", True),
                ("_settle_in", True),
            ]
            for kernel in plain:
                await kernel.launch(1, 1)
            assert (await module.global_("counter", np.int32).to_host()) == 5


async def test_a_standby_has_the_variables_too(open_test_device: Any) -> None:
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1, restart_policy=ANY_NUMBER) as dev:
            await dev.wait_standby()
            module = await dev.module.load(PTX)
            table, counter = module.global_("table", np.float32), module.global_("counter", np.int32)
            await table.fill(1.0)
            for _ in range(2):
                await dev.wait_standby()
                await lose(dev)
                assert (await counter.to_host()).tolist() == [5]
                with pytest.raises(StaleArray):
                    await table.to_host()
                await table.fill(1.0)
                await module["look"].launch(1, 4, dev.zeros(4, np.float32), 1)


@pytest.mark.sim_only
async def test_a_module_that_cannot_be_loaded_again_says_so_until_it_can(
    open_test_device: Any, monkeypatch: Any
) -> None:
    async with open_test_device(restart_policy=ANY_NUMBER) as dev:
        module = await dev.module.load(PTX, name="mine")
        counter = module.global_("counter", np.int32)
        monkeypatch.setenv("ATOMR_TRIO_SIM_FAULTS", "cuModuleLoadDataEx:200:1")
        assert await dev.restart("to have it loaded again") == 2
        with pytest.raises(StaleArray, match="'mine', could not be loaded again"):
            await counter.to_host()
        await module["count"].launch(1, 1)
        assert (await counter.to_host()).tolist() == [6]


@pytest.mark.sim_only
async def test_a_generation_that_is_lost_while_it_loads_its_modules_makes_way_for_the_next(
    open_test_device, monkeypatch
):
    async with open_test_device(restart_policy=ANY_NUMBER) as dev:
        module = await dev.module.load(PTX)
        counter = module.global_("counter", np.int32)
        async with dev.events() as events:
            with trio.fail_after(DEADLINE):
                monkeypatch.setenv("ATOMR_TRIO_SIM_FAULTS", "cuModuleLoadDataEx:700:1")
                kill_worker(dev)
                async for event in events:
                    if isinstance(event, ContextWasLost) and event.generation == 2:
                        break
                monkeypatch.delenv("ATOMR_TRIO_SIM_FAULTS")
                assert await dev.wait_generation(after=2) >= 3
                await module["count"].launch(1, 1)
                assert (await counter.to_host()).tolist() == [6]


@pytest.mark.sim_only
async def test_closing_while_a_generation_loads_its_modules_leaves_no_process(open_test_device, monkeypatch):
    pids = []
    with trio.fail_after(DEADLINE):
        async with open_test_device(workers=None, restart_policy=ANY_NUMBER, close_timeout=0.5) as dev:
            module = await dev.module.load(PTX)
            begun = trio.Event()

            async def stand_still(admission: Any, lane: int | None) -> None:
                pids.append(admission._life.process.pid)
                begun.set()
                await trio.sleep_forever()

            monkeypatch.setattr(Admission, "wait_room", stand_still)
            kill_worker(dev)
            await begun.wait()
            assert module.globals, "it is these that have to be placed"
    assert len(pids) == 1
    assert not process_exists(pids[0])


async def test_in_the_strict_mode_a_module_is_of_one_generation(open_test_device: Any) -> None:
    async with open_test_device(restart_policy=ANY_NUMBER, on_fault="stale") as dev:
        module = await dev.module.load(PTX)
        counter = module.global_("counter", np.int32)
        await lose(dev)
        with pytest.raises(StaleArray, match='on_fault="stale"'):
            await counter.to_host()
        with pytest.raises(StaleArray, match='on_fault="stale"'):
            await counter.fill(1)
        with pytest.raises(StaleKernel, match="belongs to generation 1"):
            await module["count"].launch(1, 1)
        again = await dev.module.load(PTX)
        assert (await again.global_("counter", np.int32).to_host()).tolist() == [5]


# --- unloading --------------------------------------------------------------------------------------------------------


async def test_what_is_of_an_unloaded_module_says_so(dev: Device) -> None:
    module = await dev.module.load(PTX, name="mine")
    look, table, x = module["look"], module.global_("table", np.float32), dev.zeros(4, np.float32)
    prepared = look.prepare(1, 4, x, 1)
    graph = await dev.capture(lambda g: g.launch(look, 1, 4, x, 1))
    for _ in range(2):
        await look.launch(1, 4, x, 1)
        await prepared.launch()
        await graph.launch()
    async with dev.batch() as batch:
        batch.launch(look, 1, 4, x, 1)
        await batch.flush()
        await module.unload()
        with pytest.raises(InvalidArgument, match="'mine' was unloaded"):
            batch.launch(look, 1, 4, x, 1)
    for use in (
        lambda: look.launch(1, 4, x, 1),
        prepared.launch,
        graph.launch,
        lambda: dev.capture(lambda g: g.launch(look, 1, 4, x, 1)),
    ):
        with pytest.raises(InvalidArgument, match="'mine' was unloaded"):
            await use()
    for refused in (lambda: look.launch_nowait(1, 4, x, 1), lambda: module["look"], lambda: module.global_("table")):
        with pytest.raises(InvalidArgument, match="'mine' was unloaded"):
            refused()
    for touch in (table.to_host, lambda: table.fill(1.0), lambda: x.copy_from(table)):
        with pytest.raises(StaleArray, match="'mine', was unloaded"):
            await touch()
    assert repr(module) == "<Module 'mine', unloaded>"
    await module.unload()
    await x.fill(1.0)
    assert dev.generation == 1


async def test_a_module_is_unloaded_at_the_end_of_its_block_and_stays_so_after_a_fault(open_test_device: Any) -> None:
    async with open_test_device(restart_policy=ANY_NUMBER, standby=1) as dev:
        await dev.wait_standby()
        async with await dev.module.load(PTX) as module:
            await module["count"].launch(1, 1)
        await dev.wait_standby()
        with trio.fail_after(DEADLINE):
            await lose(dev)
        with pytest.raises(InvalidArgument, match="was unloaded"):
            await module["count"].launch(1, 1)
        assert module._number not in core_of(dev).current.modules


async def test_leaving_a_module_keeps_the_exception_of_the_block_whatever_is_cancelled(dev: Device) -> None:
    module = await dev.module.load(PTX)

    async def leave() -> None:
        with trio.CancelScope() as scope:
            async with module:
                await module["count"].launch(1, 1)
                scope.cancel()
                raise KeyError("the body's")

    with pytest.raises(KeyError, match="the body's"):
        await leave()
    with pytest.raises(InvalidArgument, match="was unloaded"):
        await module["count"].launch(1, 1)
    assert module._number not in core_of(dev).current.modules


async def test_a_module_is_unloaded_when_its_block_is_cancelled(dev: Device) -> None:
    with trio.CancelScope() as scope:
        async with await dev.module.load(PTX) as module:
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    with pytest.raises(InvalidArgument, match="was unloaded"):
        await module["count"].launch(1, 1)
    assert dev.generation == 1


async def test_leaving_a_module_of_a_device_that_is_closed_keeps_the_exception_of_the_block(
    open_test_device: Any,
) -> None:
    async def leave() -> None:
        async with open_test_device() as dev:
            module = await dev.module.load(PTX)
            await module.__aenter__()
        error = KeyError("the body's")
        await module.__aexit__(KeyError, error, None)
        raise error

    with pytest.raises(KeyError, match="the body's"):
        await leave()


async def test_unloading_waits_for_what_runs_on_every_lane(dev: Device) -> None:
    module = await dev.module.load(PTX)
    x = dev.zeros(4, np.float32)
    await module["look"].launch(1, 4, x, 0)
    unloaded = trio.Event()

    async def unload() -> None:
        await module.unload()
        unloaded.set()

    async with dev.lane() as lane, gated(dev, lane) as gate, trio.open_nursery() as nursery:
        module["look"].launch_nowait(1, 4, x, 0, lane=lane)
        nursery.start_soon(unload)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not unloaded.is_set()
        await gate.open()
    assert unloaded.is_set()
    assert (await x.to_host()).tolist() == [5] * 4


async def test_a_launch_holds_its_module_and_its_arrays_until_it_has_run(dev: Device) -> None:
    """Not until it was sent: what is collected meanwhile would be unloaded, and its memory given to others."""
    module = await dev.module.load(PTX)
    x = dev.zeros(4, np.float32)
    await module["look"].launch(1, 4, x, 0)
    known, array = weakref.ref(module), weakref.ref(x)
    async with dev.lane() as lane, gated(dev, lane) as gate:
        module["look"].launch_nowait(1, 4, x, 0, lane=lane)
        del module, x
        gc.collect()
        assert known() is not None
        assert array() is not None
        await gate.open()
        with trio.fail_after(DEADLINE):
            while array() is not None:
                await trio.lowlevel.checkpoint()
                gc.collect()


async def test_a_module_that_nobody_has_is_unloaded(dev: Device) -> None:
    module = await dev.module.load(PTX)
    number = module._number
    assert number in core_of(dev).current.modules
    del module
    gc.collect()
    other = await dev.module.load(PTX)
    assert number not in core_of(dev).current.modules
    await other["count"].launch(1, 1)


# --- images that cannot be loaded -------------------------------------------------------------------------------------


def damaged_elf(field: str, value: int) -> bytes:
    """The cubin with one field of its ELF header overwritten, as `elf.h` places them."""
    offset, form = {
        "class": (4, "<B"),
        "machine": (18, "<H"),
        "segments": (32, "<Q"),
        "sections": (40, "<Q"),
        "segment_bytes": (54, "<H"),
        "section_bytes": (58, "<H"),
        "section_count": (60, "<H"),
    }[field]
    data = bytearray(CUBIN)
    struct.pack_into(form, data, offset, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (b"", "it is empty"),
        (b"\0\0\0", "it is empty"),
        (b"garbage", "neither PTX nor a cubin"),
        (b"\xff\xfe\0\1" * 20, "neither PTX nor a cubin"),
        (PTX[: PTX.index("ret;")], "ends in the middle of a function"),
        (PTX[:60], "neither PTX nor a cubin"),
        (PTX.replace(".target", "\0.target"), "neither PTX nor a cubin"),
        (PTX.replace(".param .u64", ".param .zzz"), "which cannot be parsed"),
        (CUBIN[:4], "fewer than the header of a cubin"),
        (CUBIN[:63], "fewer than the header of a cubin"),
        (CUBIN[:-1], r"its headers speak of [\d,]+ bytes and it has"),
        (CUBIN[: len(CUBIN) // 2], r"its headers speak of [\d,]+ bytes"),
        (damaged_elf("class", 1), "not one with code for NVIDIA GPUs"),
        (damaged_elf("machine", 62), "not one with code for NVIDIA GPUs"),
        (damaged_elf("segments", 1 << 40), "its headers speak of"),
        (damaged_elf("sections", 1 << 63), "its headers speak of"),
        (damaged_elf("section_count", 65535), "its headers speak of"),
        (damaged_elf("segment_bytes", 7), "another size than ELF's"),
        (damaged_elf("section_bytes", 7), "another size than ELF's"),
        (b"\x50\xed\x55\xba", "fewer than the header of a fatbin"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 40), "its headers speak of"),
    ],
    ids=range(21),
)
def test_an_image_that_is_none_or_not_whole_is_refused(image: bytes | str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        read_image(image.encode() if isinstance(image, str) else image)


async def test_an_image_that_is_not_whole_is_refused_before_it_is_sent(dev: Device) -> None:
    for image in (b"", CUBIN[:-1], PTX[:60].encode()):
        with pytest.raises(InvalidArgument, match="the image cannot be loaded"):
            await dev.module.load(image)
    assert dev.statistics().actors[1].accepted == 0


def test_an_elf_section_that_reaches_behind_the_end_is_seen() -> None:
    at = struct.unpack_from("<Q", CUBIN, 40)[0] + 3 * 64 + 32  # the size of the symbol table's section
    data = bytearray(CUBIN)
    struct.pack_into("<Q", data, at, len(CUBIN))
    with pytest.raises(InvalidArgument, match="its headers speak of"):
        read_image(bytes(data))


def test_a_cubin_tells_its_kernels_variables_and_architecture() -> None:
    image = read_image(CUBIN)
    assert (image.kind, image.target) == (ImageKind.CUBIN, "sm_80")
    assert image.kernels is not None
    assert set(image.kernels) == {"look", "count", "add", "_Z4fillIfLi7EEvPT_"}
    assert set(image.variables) == {"counter", "table", "_ZN2ns5innerE"}


def test_an_image_whose_names_cannot_be_read_is_taken_to_print() -> None:
    assert may_print(b"call.uni (retval0), vprintf, (param0, param1);")
    assert may_print(fatbin_of(CUBIN, "80"))
    assert not may_print(CUBIN)


def test_a_fatbin_is_whole_or_refused() -> None:
    image = fatbin_of(CUBIN, "80")
    read = read_image(image)
    assert (read.kind, read.target, read.kernels, read.variables) == (ImageKind.FATBIN, None, None, ())
    with pytest.raises(InvalidArgument, match="its headers speak of"):
        read_image(image[:-1])


@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("image", "status", "says"),
    [
        (CUBIN, 209, "no kernel image|takes PTX|code for this GPU"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 4) + b"data", 209, "."),
        (PTX.replace(".version ", ".version 9"), 222, "is newer than"),
        (PTX.replace(".target sm_80", ".target sm_90"), 218, "is for sm_90, but the simulated GPU has capability 8.0"),
        (PTX.replace("cvt.rn.f32.s32", "cvt.xx.f32.s32"), 801, "cvt.xx.f32.s32"),
        (PTX.replace(".address_size 64", ".address_sise 64"), 218, "unknown directive"),
    ],
    ids=["cubin", "fatbin", "version", "target", "instruction", "directive"],
)
async def test_what_the_driver_refuses_comes_with_its_words(
    dev: Device, image: bytes | str, status: int, says: str
) -> None:
    with pytest.raises(CommandFailed, match=says) as refused:
        await dev.module.load(image)
    assert refused.value.status == status
    assert refused.value.operation == "module.load"
    assert dev.generation == 1


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """An image with bits flipped, cut short, or with a piece of it repeated; or bytes that never were one."""
    image = bytearray(draw(st.sampled_from([PTX.encode(), CUBIN])))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(image) - 1))
        kind = draw(st.sampled_from(["flip", "cut", "repeat", "garbage"]))
        if kind == "flip":
            image[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            image = image[: at + 1]
        elif kind == "repeat":
            image[at:at] = image[at : at + draw(st.integers(1, 80))]
        else:
            image = bytearray(draw(st.binary(min_size=1, max_size=200)))
    return bytes(image)


@pytest.mark.sim_only
async def test_a_damaged_image_costs_one_typed_error_and_no_worker(open_test_device: Any) -> None:
    """On the simulator: a driver may well crash by a damaged cubin, and then the worker is what it costs."""
    async with open_test_device() as dev:
        good = (await dev.module.load(PTX))["look"]
        x = dev.zeros(4, np.float32)

        @given(damaged())
        @example(PTX.replace("counter = 5", "counter[99999999999999] = 5").encode())
        @examples(0.6, suppress_health_check=list(HealthCheck))
        def images(image: bytes) -> None:
            seen.append(image)

        seen: list[bytes] = []
        await trio.to_thread.run_sync(images)
        refused = 0
        for image in seen:
            try:
                module = await dev.module.load(image)
            except (InvalidArgument, CommandFailed, OutOfDeviceMemory):
                refused += 1
            else:
                await module.unload()
        assert 0 < refused < len(seen)
        await good.launch(1, 4, x, 0)
        assert (await x.to_host()).tolist() == [5] * 4
        assert dev.generation == 1


@given(damaged())
def test_reading_a_damaged_image_raises_nothing_but_invalid_argument(image: bytes) -> None:
    with contextlib.suppress(InvalidArgument):
        read_image(image)


# --- kernels of images without PTX ------------------------------------------------------------------------------------


def test_without_ptx_an_argument_has_to_say_how_many_bytes_it_has() -> None:
    signature = signature_of_layout("k", [[0, 8], [8, 4], [12, 1], [16, 16]])
    assert {parameter.kind for parameter in signature.parameters} == {ParameterKind.BYTES}
    assert [parameter.alignment for parameter in signature.parameters] == [8, 4, 1, 16]
    array = object()

    def address_of(value: object, parameter: Parameter) -> int | None:
        return 0x1234 if value is array else None

    pair = np.array([(1, 2.5)], np.dtype([("first", "<i4"), ("second", "<f8")], align=True))[0]
    packed = signature.pack((array, np.float32(1.5), True, pair), address_of)
    assert packed == struct.pack("<QfB3x", 0x1234, 1.5, 1) + pair.tobytes()
    assert len(packed) == signature.bytes == 32
    assert signature.pack((np.float64(2), -1, np.int8(-1), bytes(16)), address_of) == (
        struct.pack("<diB3x", 2.0, -1, 255) + bytes(16)
    )
    for arguments, says in (
        ((1.5, 0, 0, pair), r"np\.float32\(x\) has 4 bytes, np\.float64\(x\) 8"),
        ((0, 1.5, 0, pair), r"np\.float32\(x\) has 4 bytes"),
        ((0, array, 0, pair), "a device array can only go where the kernel takes a pointer"),
        ((0, np.float64(1), 0, pair), "a float64 of 8 bytes"),
        ((0, 1 << 32, 0, pair), "outside of"),
        ((0, 0, 256, pair), "outside of"),
        ((0, 0, 0, bytes(15)), "15 bytes"),
        ((0, 0, 0, 7), "a value of exactly 16 bytes"),
        ((None, 0, 0, pair), "a null pointer is the integer 0"),
    ):
        with pytest.raises(InvalidArgument, match=says):
            signature.pack(arguments, address_of)


async def test_arguments_go_through_a_loaded_modules_kernels_as_through_compiled_ones(dev: Device) -> None:
    loaded = (await dev.module.load(PTX))["add"]
    compiled = await dev.nvrtc.compile(SOURCE, "add")
    pair = np.array([(3, 0.25)], np.dtype([("first", "<i4"), ("second", "<f8")], align=True))[0]
    x = await dev.to_device(np.zeros((4, 4), np.float32))
    for kernel in (loaded, compiled):
        for y in (x, x[2:], read_only(x)):
            await x.fill(0.0)
            await kernel.launch(1, 4, y, np.int64(4), 0.5, np.float32(1.0), pair.tobytes(), np.uint8(2))
            host = await x.to_host()
            assert host.sum() == 4 * 6.75
            assert (host[2] if isinstance(y, DeviceArray) and y.shape[0] == 2 else host[0]).tolist() == [6.75] * 4
        with pytest.raises(InvalidArgument, match="takes 6 arguments, got 1"):
            await kernel.launch(1, 4, x)
        with pytest.raises(InvalidArgument, match="expected an integer "):
            await kernel.launch(1, 4, x, 4.0, 0.5, 1.0, pair, 2)
    assert [each.type_name for each in loaded.parameters] == [each.type_name for each in compiled.parameters]


async def test_what_the_compiler_keeps_for_itself_is_no_variable(dev):
    """A module with variables is loaded before a new generation serves; one that asserts and prints need not be."""
    source = r"""
    extern "C" __global__ void k(int *x) { assert(*x != 7); if (*x == 8) printf("%s is %d", __func__, *x); }
    """
    program = await dev.nvrtc.compile_program(source)
    assert "__unnamed_" in (program.ptx or "")
    assert dict(program.globals) == {}
