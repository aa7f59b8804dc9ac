"""What a worker does with the first use of something: no more than it must, because a recovery waits for it.

A worker that is ready, and a standby ahead of time, has imported and built all that the first launch, copy or call
needs.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import trio

from atomr_trio._device.device import core_of
from support import child_environment
from support.rogue import compile_rogue

DEADLINE = 60

TELL_IMPORTS = """
import os, sys

def tell(event, arguments, write=os.write, file=os.open({path!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)):
    if event == "import":
        write(file, f"{{os.getpid()}} {{arguments[0]}}\\n".encode())

sys.addaudithook(tell)
"""

SIMULATOR = ("atomr_sim", "numpy", "scipy", "concurrent", "queue")
"""What the simulated GPU alone needs."""


@pytest.fixture
def imports(tmp_path, monkeypatch):
    """Names that a worker started from now on has imported so far, in order; a sitecustomize in its path notes them."""
    names = tmp_path / "imports"
    (tmp_path / "sitecustomize.py").write_text(TELL_IMPORTS.format(path=str(names)))
    monkeypatch.syspath_prepend(str(tmp_path))

    def imported(generation):
        lines = [line.split() for line in names.read_text().splitlines()]
        return [name for process, name in lines if int(process) == generation.process.pid]

    return imported


async def use_everything(dev):
    (touch,) = await compile_rogue(dev, "touch")
    x = dev.zeros(8, np.int32)
    await touch.launch(1, 8, x, 8)
    await touch.prepare(1, 8, x, 8).launch()
    await touch.launch(1, 8, x, 8, cooperative=True)
    await touch.suggest_block()
    async with dev.batch() as batch:
        batch.launch(touch, 1, 8, x, 8)
        batch.fill(x[::2], 3)
        batch.to_host(x)
        batch.to_device(np.arange(3.0))
    async with dev.lane() as lane:
        await touch.launch(1, 8, x, 8, lane=lane)
        earlier, later = lane.record(), lane.record()
        await later.elapsed_since(earlier)
    graph = await dev.capture(lambda recorder: recorder.launch(touch, 1, 8, x, 8))
    await graph.launch()
    pinned = dev.pinned_empty(8, np.int32)
    await x.copy_to(pinned)
    await x.copy_from(np.arange(16, dtype=np.int32)[::2])
    await dev.zeros((4, 4)).T.to_host()
    await dev.trim()


async def test_a_worker_that_is_ready_imports_nothing_more(open_test_device, imports):
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            at_start = imports(core_of(dev).current)
            await use_everything(dev)
            late = imports(core_of(dev).current)[len(at_start) :]
    assert "atomr_cuda.driver" in at_start, "the answer is no worker's"
    assert [name for name in late if not name.startswith(SIMULATOR)] == []


async def call_libraries(dev):
    a = await dev.to_device(np.eye(4, dtype=np.float32))
    await dev.blas.gemm(a, a)
    await dev.blaslt.matmul(a, a)
    await dev.solver.solve(a, a)


@pytest.mark.long
@pytest.mark.parametrize("called_before_the_standby_is_ready", [True, False])
async def test_a_standby_has_the_libraries_open_that_the_program_has_called(
    open_test_device, imports, called_before_the_standby_is_ready
):
    """The second fault too: what has taken over tells the next standby."""
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1) as dev:
            if not called_before_the_standby_is_ready:
                await dev.wait_standby()
            await call_libraries(dev)
            for _ in range(2):
                await dev.wait_standby()
                (standby,) = core_of(dev).standbys.generations
                await standby.settler.wait_idle()
                ahead = imports(standby)
                await dev.restart("for the test")
                assert core_of(dev).current is standby
                await call_libraries(dev)
                late = imports(standby)[len(ahead) :]
                # The simulator computes with scipy; what a library needs to be loaded is there.
                assert [
                    name for name in late if name.startswith(("atomr_cuda", "atomr_sim", "atomr_trio", "cuda"))
                ] == []


async def test_a_standby_opens_no_library_that_the_program_has_not_called(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1) as dev:
            await dev.wait_standby()
            a = await dev.to_device(np.eye(4))
            await dev.blas.gemm(a, a)
            (standby,) = core_of(dev).standbys.generations
            assert {opening.engine for opening in standby.opened} == {"blas"}


def test_what_the_attributes_of_a_first_launch_need_is_there_when_the_engine_is_made():
    code = """
import sys, types
from atomr_cuda import CudaError, driver
from atomr_trio.libraries.modules.engine import LaunchOptions, ModuleEngine
driver.library.replace({"cuLaunchKernelEx": lambda *_: 0})
engine = ModuleEngine(types.SimpleNamespace(cuda_error=CudaError))
before = set(sys.modules)
engine._attributes_of(LaunchOptions(cooperative=True))
print(*sorted(set(sys.modules) - before))
"""
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
