"""Two GPUs train one model together, and one of them is lost on the way.

Each has half of the data and a copy of the weights, and computes the gradient by its half. A collective of NCCL sums
the gradients, and each makes the same step. One worker is killed in the middle.

    ATOMR_TRIO_SIM_DEVICES=2 python examples/data_parallel.py --backend sim
"""

import argparse
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import numpy as np
import trio
from numpy.typing import NDArray

import atomr_trio
from atomr_trio import ContextLost, WorldLost, overwrites
from atomr_trio.testing import kill_worker

SOURCE = """
extern "C" __global__ void errors(const float *scores, const float *labels, float *wrong, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) wrong[i] = 1 / (1 + expf(-scores[i])) - labels[i];
}
extern "C" __global__ void descend(const float *now, const float *gradient, float *next, float rate) {
    next[threadIdx.x] = now[threadIdx.x] - rate * gradient[threadIdx.x];
}
"""
FEATURES, RATE = 8, 2.0
Numbers = NDArray[np.float32]


async def until_done(*calls: Callable[[], Awaitable[object]]) -> None:
    """Await calls at the same time, and again what a loss interrupts. A call may not change what it reads."""

    async def again(call: Callable[[], Awaitable[object]]) -> None:
        while True:
            with suppress(ContextLost, WorldLost):
                await call()
                return

    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(again, call)


class Part:
    """The part of one device: its half of the data, and the weights, which two arrays hold in turn."""

    async def prepare(self, dev: atomr_trio.Device, x: Numbers, labels: Numbers) -> None:
        self.dev, self.n = dev, len(x)
        self.x, self.labels = await dev.to_device(x), await dev.to_device(labels)
        self.errors, self.descend = [await dev.nvrtc.compile(SOURCE, name) for name in ("errors", "descend")]
        self.now, self.next, self.gradient, self.total = (dev.zeros(FEATURES, np.float32) for _ in range(4))

    async def compute(self) -> None:
        async with self.dev.batch() as batch:
            wrong = self.dev.empty(self.n, np.float32)
            arrays = batch.blas.gemv(self.x, self.now), self.labels, overwrites(wrong)
            batch.launch(self.errors, self.errors.grid_for(self.n, 128), 128, *arrays, self.n)
            batch.blas.gemv(self.x.T, wrong, out=self.gradient)

    async def step(self, rate: float) -> None:
        await self.descend.launch(1, FEATURES, self.now, self.total, overwrites(self.next), rate)
        self.now, self.next = self.next, self.now


async def train(options: argparse.Namespace, x: Numbers, y: Numbers) -> Numbers:
    async with atomr_trio.open_devices([0, 1], backend=options.backend) as devices:
        world, parts = await devices.world(), [Part(), Part()]
        for part, dev, rows, labels in zip(parts, devices, np.split(x, 2), np.split(y, 2), strict=True):
            await part.prepare(dev, rows, labels)
        for number in range(options.steps):
            if number == options.steps // 2:
                kill_worker(devices[1])
            await until_done(*(part.compute for part in parts))
            arrays = [part.gradient for part in parts], [part.total for part in parts]
            await until_done(partial(world.all_reduce, *arrays))
            await until_done(*(partial(part.step, RATE / len(x)) for part in parts))
        print("generations of the devices:", [dev.generation for dev in devices])
        return np.array([await part.now.to_host() for part in parts])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["sim", "cuda"], help="default: ATOMR_TRIO_BACKEND, else cuda")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    x = np.random.default_rng(5).normal(size=(256, FEATURES)).astype(np.float32)
    y = (x @ np.arange(-4, 4) > 0).astype(np.float32)
    weights, expected = trio.run(train, options, x, y), np.zeros(FEATURES)
    for _ in range(options.steps):
        expected -= RATE / len(x) * (x.T @ (1 / (1 + np.exp(-(x @ expected))) - y))
    np.testing.assert_allclose(weights, [expected, expected], atol=1e-4)
    print(
        f"the weights are those of numpy; {((x @ weights[0] > 0) == y).mean():.0%} of the points are on the right side"
    )
