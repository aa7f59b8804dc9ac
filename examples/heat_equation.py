"""Heat spreads in a plate, and matplotlib draws it.

Two arrays take turns: a step reads the one and overwrites the other. Many steps are sent as one batch, and there is
one wait for all of them.

    python examples/heat_equation.py --backend sim --picture heat.png
"""

import argparse
import importlib.util
import sys

import numpy as np
import trio
from numpy.typing import NDArray

import atomr_trio
from atomr_trio import overwrites, read_only

SOURCE = """
// Each cell moves towards the mean of its four neighbours. The edge keeps its temperature.
extern "C" __global__ void step(const float *now, float *next, int n)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= n || y >= n) return;
    int i = y * n + x;
    bool edge = x == 0 || y == 0 || x == n - 1 || y == n - 1;
    next[i] = edge ? now[i] : now[i] + 0.2f * (now[i - 1] + now[i + 1] + now[i - n] + now[i + n] - 4 * now[i]);
}
"""
BLOCK = (16, 16)
STEPS_IN_A_BATCH = 50


def first_state(n: int) -> NDArray[np.float32]:
    """A cold plate with a hot edge on the left, and two hot discs in it."""
    y, x = np.mgrid[:n, :n] / n
    plate = np.zeros((n, n), np.float32)
    plate[(x - 0.7) ** 2 + (y - 0.3) ** 2 < 0.02] = 100
    plate[(x - 0.6) ** 2 + (y - 0.75) ** 2 < 0.01] = 70
    plate[:, 0] = 80
    return plate


async def simulate(options: argparse.Namespace, plate: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """The plate after each batch."""
    n = len(plate)
    states = [plate]
    async with atomr_trio.open_device(backend=options.backend) as dev:
        step = await dev.nvrtc.compile(SOURCE, "step")
        grid = step.grid_for((n, n), BLOCK)
        now, following = await dev.to_device(plate), dev.empty(plate.shape, np.float32)
        for begin in range(0, options.steps, STEPS_IN_A_BATCH):
            async with dev.batch() as batch:
                for _ in range(min(STEPS_IN_A_BATCH, options.steps - begin)):
                    batch.launch(step, grid, BLOCK, read_only(now), overwrites(following), n)
                    now, following = following, now
            states.append(await now.to_host())
    return states


def by_numpy(plate: NDArray[np.float32], steps: int) -> NDArray[np.float32]:
    """The same on the host."""
    plate = plate.copy()
    for _ in range(steps):
        inner = plate[1:-1, 1:-1]
        around = plate[1:-1, :-2] + plate[1:-1, 2:] + plate[:-2, 1:-1] + plate[2:, 1:-1]
        plate[1:-1, 1:-1] = inner + np.float32(0.2) * (around - 4 * inner)
    return plate


def draw(states: list[NDArray[np.float32]], path: str) -> None:
    """The first state, one in the middle, and the last."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 2.2), layout="constrained")
    for axes, at in zip(figure.subplots(1, 3), (0, len(states) // 2, len(states) - 1), strict=True):
        axes.imshow(states[at], cmap="inferno", vmin=0, vmax=100)
        axes.set(title=f"batch {at}", xticks=[], yticks=[])
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["sim", "cuda"], help="default: ATOMR_TRIO_BACKEND, else cuda")
    parser.add_argument("--size", type=int, default=48, help="cells of a side")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--picture", metavar="PNG", help="draw three states to this file; needs matplotlib")
    options = parser.parse_args()
    if options.picture and not importlib.util.find_spec("matplotlib"):
        sys.exit("--picture needs matplotlib: pip install matplotlib")
    states = trio.run(simulate, options, first_state(options.size))
    np.testing.assert_allclose(states[-1], by_numpy(states[0], options.steps), atol=1e-3)
    print(f"{options.steps} steps on {options.size} x {options.size} cells agree with numpy")
    if options.picture:
        draw(states, options.picture)
