"""What a worker knows by a number or an address is made known to the next one, or refused there by its own error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_trio import CommandFailed, ContextLost, Device, DeviceArray, NvrtcOptions, Program
from atomr_trio.testing import ReturnStatus, hold_rebuild, inject, kill_worker
from support.rogue import until

N = 32
SOURCE = f"""
__device__ int spare[{N}];
extern "C" __global__ void add(int *x, int n) {{ x[threadIdx.x] += n + spare[threadIdx.x]; }}
extern "C" __global__ void nothing() {{ }}
"""


async def program_of(dev: Device) -> Program:
    return await dev.nvrtc.compile_program(SOURCE, NvrtcOptions(name_expressions=["&spare"]))


async def zeros_of(dev: Device) -> DeviceArray:
    return await dev.to_device(np.zeros(N, np.int32))


async def test_what_is_asked_for_in_a_rebuild_is_done_by_the_next_worker_or_lost_with_what_only_the_old_one_had(dev):
    program, x, y, z = await program_of(dev), await zeros_of(dev), await zeros_of(dev), await zeros_of(dev)
    kernel, spare = program.function("add"), program.global_("&spare", np.int32)
    prepared = kernel.prepare(1, N, y, 2)
    a, out = await dev.to_device(np.eye(4, dtype=np.float32)), dev.empty((4, 4), np.float32)
    graph = await dev.capture(lambda recorder: recorder.launch(kernel, 1, N, z, 3))
    for _ in range(2):  # the second time each is known by heart
        await kernel.launch(1, N, x, 1)
        await prepared.launch()
        await graph.launch()
        await dev.blaslt.matmul(a, a, out=out)
    earlier, later = dev.compute_lane.record(), dev.compute_lane.record()
    await later.wait()
    assert await later.elapsed_since(earlier) >= 0
    answers: dict[str, Any] = {}
    lost: list[int | None] = []

    async def ask(name: str, call: Any, *arguments: Any) -> None:
        answers[name] = await call(*arguments)

    async def ask_for_the_time() -> None:
        with pytest.raises(ContextLost) as caught:
            await later.elapsed_since(earlier)
        lost.append(caught.value.generation)

    async with trio.open_nursery() as nursery:
        with hold_rebuild(dev):
            kill_worker(dev)
            await until(lambda: dev.state.value != "running")
            nursery.start_soon(ask_for_the_time)
            nursery.start_soon(ask, "launch", kernel.launch, 1, N, x, 10)
            nursery.start_soon(ask, "prepared", prepared.launch)
            nursery.start_soon(ask, "graph", graph.launch)
            nursery.start_soon(ask, "plan", dev.blaslt.matmul, a, a)
            nursery.start_soon(ask, "variable", spare.to_host)
            nursery.start_soon(ask, "occupancy", kernel.occupancy, N)
            nursery.start_soon(ask, "another module", dev.nvrtc.compile, SOURCE, "nothing")
            await trio.testing.wait_all_tasks_blocked()
    await ask_for_the_time()
    assert (dev.generation, lost) == (2, [1, 1])
    assert [(await each.to_host())[0] for each in (x, y, z)] == [12, 6, 9]
    np.testing.assert_array_equal(await answers["plan"].to_host(), np.eye(4))
    np.testing.assert_array_equal(answers["variable"], np.zeros(N))
    await answers["another module"].launch(1, 1)
    assert not any(actor.restarts for actor in dev.statistics().actors)


@pytest.mark.sim_only
async def test_a_load_in_which_the_driver_refuses_to_answer_fails_and_the_next_one_knows_all(dev):
    for function in ("cuModuleGetGlobal", "cuFuncGetParamInfo", "cuFuncGetAttribute", "cuModuleGetFunction"):
        inject(dev, function, ReturnStatus(801))
        with pytest.raises(CommandFailed) as caught:
            await program_of(dev)
        assert (caught.value.status, caught.value.operation) == (801, "module.load")
        program, x = await program_of(dev), await zeros_of(dev)
        assert program.global_("&spare", np.int32).shape == (N,)
        await program.function("add").launch(1, N, x, 4)
        assert (await x.to_host() == 4).all()
