"""docs/adding-a-library.md is followed to the letter: its library is added to a copy of the package, and works."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.adding import add_libraries, run_there

pytestmark = pytest.mark.sim_only

PROGRAM = """
import numpy as np, trio
import atomr_trio
from atomr_trio.testing import Fault, cause

async def main():
    async with atomr_trio.open_device(backend="sim", hang_timeout=5) as dev:
        x, y = [await dev.to_device(np.arange(4, dtype=np.float64)) for _ in range(2)]
        assert await dev.vector.axpby(x, y, 2, 1) is y
        print((await y.to_host()).tolist(), float(await dev.vector.sum(y)))
        try:
            await cause(dev, Fault.TRAP)
        except atomr_trio.ContextLost:
            pass
        async with dev.batch() as batch:
            for _ in range(3):
                batch.vector.axpby(x, y)
            total = batch.vector.sum(y)
        print(dev.generation, float(total), type(dev.vector) is atomr_trio.Vectors)
        try:
            await dev.vector.sum(dev.zeros(3, np.int32))
        except atomr_trio.InvalidArgument as error:
            print(error.message)
        sums = await dev.running.total(y)
        before = dev.statistics().memory.workspaces
        async with dev.batch() as batch:
            for _ in range(3):
                again = batch.running.total(y, sums)
        print((await again.to_host()).tolist(), before)
        print((await (await dev.running.nonzero(y)).to_host()).tolist())

trio.run(main)
"""


@pytest.mark.long
def test_the_library_of_the_page_is_added_by_what_the_page_says(tmp_path: Path) -> None:
    files = add_libraries(tmp_path)
    assert {Path(name).name for name in files} == {
        "cuvector.py",
        "functions.py",
        "registration.py",
        "records.py",
        "engine.py",
        "verbs.py",
        "programs.py",
        "curunning.py",
    }
    assert run_there(tmp_path, "-c", PROGRAM).splitlines() == [
        "[0.0, 3.0, 6.0, 9.0] 18.0",
        "2 6.0 True",
        "vectors are all of float32, or all of float64, not of int32",
        "[0.0, 1.0, 3.0, 6.0] 256",
        "[1.0, 2.0, 3.0]",
    ]
