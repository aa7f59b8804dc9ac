"""What is left of a program's state after a fault, thing by thing; and a sum that goes on.

python examples/state_through_faults.py --backend sim
"""

import argparse
import sys

import numpy as np
import trio
from numpy.typing import NDArray

import atomr_trio

SOURCE = """
__device__ int calls = 100;
extern "C" __global__ void collect(const int *numbers, int *sums, int bug) {
    sums[threadIdx.x] += numbers[threadIdx.x];
    if (threadIdx.x == 0) calls++;
    if (bug) __trap();  // what was written before is not undone
}
extern "C" __global__ void count(int *out) { *out = calls; }
"""
N = 32


async def state_of(array: atomr_trio.DeviceArray) -> str:
    """The first element of an array, or that nobody knows it."""
    try:
        return str((await array.to_host())[0])
    except atomr_trio.StaleArray:
        return "torn"


async def look(dev: atomr_trio.Device) -> dict[str, str]:
    """Lose the device in the middle of a kernel, and look at everything."""
    program = await dev.nvrtc.compile_program(SOURCE)
    read, written, other = [await dev.to_device(np.full(N, each, np.int32)) for each in (1, 2, 3)]
    unused, calls = dev.full(N, 4), dev.empty(1, np.int32)
    drawn, undisturbed = dev.random.generator(seed=9), dev.random.generator(seed=9)
    numbers = await drawn.integers(0, 1000, 4)
    try:
        await program["collect"].launch(1, N, read, written, 1)
    except atomr_trio.ContextLost as lost:
        await dev.wait_generation(after=lost.generation)
    found = {
        "an array that the kernel only read": await state_of(read),
        "the array that it was writing": await state_of(written),
        "an array that it did not have": await state_of(other),
        "an array that nobody had used yet": await state_of(unused),
    }
    await written.fill(5)
    found["the torn array, when all of it was overwritten"] = await state_of(written)
    await program["count"].launch(1, 1, calls)  # the same object; its code is loaded again
    found["a variable of the module"] = await state_of(calls)
    both = np.concatenate([await numbers.to_host(), await (await drawn.integers(0, 1000, 4)).to_host()])
    expected = await (await undisturbed.integers(0, 1000, 8)).to_host()
    found["the generator of random numbers"] = "goes on" if np.array_equal(both, expected) else "other numbers"
    return found


async def add_up(dev: atomr_trio.Device, rows: NDArray[np.int32], bugs: set[int]) -> NDArray[np.int32]:
    """Sum all rows in place. A copy on the device is renewed every five rows; a loss goes back to it."""
    collect, data = await dev.nvrtc.compile(SOURCE, "collect"), await dev.to_device(rows)
    sums, saved, spare = (dev.zeros(N, np.int32) for _ in range(3))
    row, saved_at, whole = 0, 0, True
    while row < len(rows):
        try:
            if not whole:
                await sums.copy_from(saved)
                row, whole = saved_at, True
            if row >= saved_at + 5:
                await spare.copy_from(sums)  # not to `saved`: it would be torn, if the loss came now
                saved, spare, saved_at = spare, saved, row
            await collect.launch(1, N, data[row], sums, int(row in bugs))
            row += 1
        except atomr_trio.ContextLost:
            whole = False
            bugs.discard(row)
            print(f"lost in row {row}; back to row {saved_at}")
    return await sums.to_host()


async def main(options: argparse.Namespace) -> None:
    async with atomr_trio.open_device(backend=options.backend) as dev:
        found = await look(dev)
        for name, state in found.items():
            print(f"{name:48}{state}")
        if list(found.values()) != ["1", "torn", "3", "4", "5", "100", "goes on"]:
            sys.exit("that is not what the documentation promises")
        rows = np.random.default_rng(4).integers(0, 100, (20, N), dtype=np.int32)
        np.testing.assert_array_equal(await add_up(dev, rows, {13}), rows.sum(0))
        print("all rows are added up, in generation", dev.generation)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["sim", "cuda"], help="default: ATOMR_TRIO_BACKEND, else cuda")
    trio.run(main, parser.parse_args())
