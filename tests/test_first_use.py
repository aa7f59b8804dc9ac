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

from rogue import compile_rogue
from support import child_environment

DEADLINE = 60

TELL_IMPORTS = """
import os, sys

def tell(event, arguments, write=os.write, file=os.open({path!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)):
    if event == "import":
        write(file, arguments[0].encode() + b"\\n")

sys.addaudithook(tell)
"""

THE_SIMULATOR_S = ("atomr_cuda.sim", "numpy", "scipy", "concurrent", "queue")
"""The simulated GPU's own, which a real worker has no use for."""


@pytest.fixture
def imports(tmp_path, monkeypatch):
    """What workers started from now on have imported so far, in order; a sitecustomize in their path notes it."""
    names = tmp_path / "imports"
    (tmp_path / "sitecustomize.py").write_text(TELL_IMPORTS.format(path=str(names)))
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda: names.read_text().split() if names.exists() else []


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
            at_start = imports()
            await use_everything(dev)
            late = imports()[len(at_start) :]
    assert "atomr_cuda.driver" in at_start, "the answer is no worker's"
    assert [name for name in late if not name.startswith(THE_SIMULATOR_S)] == []


def test_what_the_attributes_of_a_first_launch_need_is_there_when_the_engine_is_made():
    code = """
import sys
from atomr_cuda import driver
from atomr_trio.worker.engines.module import LaunchOptions, ModuleEngine
driver.library.replace({"cuLaunchKernelEx": lambda *_: 0})
engine = ModuleEngine(None)
before = set(sys.modules)
engine._attributes_of(LaunchOptions(cooperative=True))
print(*sorted(set(sys.modules) - before))
"""
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
