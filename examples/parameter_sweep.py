"""One function for many parameters, on all devices: the map x -> r x (1 - x), from order to chaos.

`devices.map` gives each device the next item when it is done with one. A worker is killed in the middle; `retry` says
that an item may be run again.

    ATOMR_TRIO_SIM_DEVICES=2 python examples/parameter_sweep.py --backend sim --picture sweep.png
"""

import argparse
import importlib.util
import math
import sys

import numpy as np
import trio
from numpy.typing import NDArray

import atomr_trio
from atomr_trio.testing import kill_worker

SOURCE = """
// A thread for each r. The exponent says how fast neighbours part: it is below 0 where there is order.
extern "C" __global__ void follow(const double *r, double *exponent, double *seen, int n, int skipped, int steps,
                                  int kept)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double x = 0.3, sum = 0;
    for (int step = 0; step < skipped + steps; step++) {
        x = r[i] * x * (1 - x);
        if (step >= skipped) sum += log(fmax(fabs(r[i] * (1 - 2 * x)), 1e-12));
        if (step >= skipped + steps - kept) seen[(step - skipped - steps + kept) * n + i] = x;
    }
    exponent[i] = sum / steps;
}
"""
SKIPPED, STEPS, KEPT = 40, 60, 32
Swept = tuple[NDArray[np.float64], NDArray[np.float64]]


async def sweep(options: argparse.Namespace, items: list[NDArray[np.float64]]) -> list[Swept]:
    """The exponents and the last values of each item, which is an array of values of r."""
    unlucky, calls = {len(items) // 2}, 0

    async def follow(dev: atomr_trio.Device, number: int) -> Swept:
        nonlocal calls
        calls += 1
        kernel = await dev.nvrtc.compile(SOURCE, "follow")  # compiled once, whoever asks
        n = len(items[number])
        exponent, seen = dev.empty(n), dev.empty((KEPT, n))
        if number in unlucky:
            unlucky.clear()
            kill_worker(dev)
        r = await dev.to_device(items[number])
        await kernel.launch(kernel.grid_for(n, 64), 64, r, exponent, seen, n, SKIPPED, STEPS, KEPT)
        return await exponent.to_host(), await seen.to_host()

    async with atomr_trio.open_devices(backend=options.backend) as devices:
        results = await devices.map(follow, range(len(items)), retry=2)
        print(f"{calls} calls for {len(items)} items, on {len(devices)} devices")
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["sim", "cuda"], help="default: ATOMR_TRIO_BACKEND, else cuda")
    parser.add_argument("--items", type=int, default=4)
    parser.add_argument("--values", type=int, default=100, help="values of r in an item")
    parser.add_argument("--picture", metavar="PNG", help="draw to this file; needs matplotlib")
    options = parser.parse_args()
    if options.picture and not importlib.util.find_spec("matplotlib"):
        sys.exit("--picture needs matplotlib: pip install matplotlib")
    r = np.linspace(2.5, 4, options.items * options.values)
    results = trio.run(sweep, options, np.split(r, options.items))
    exponent = np.concatenate([each for each, _ in results])
    # Known: below r = 3 all comes to rest at 1 - 1/r, where the exponent is log |2 - r|; at r = 4 it is log 2.
    resting = r < 2.9
    np.testing.assert_allclose(exponent[resting], np.log(np.abs(2 - r[resting])), atol=0.02)
    np.testing.assert_allclose(exponent[-1], math.log(2), atol=0.1)
    print(f"{len(r)} values of r; order ends near r = {r[exponent > 0][0]:.2f}")
    if options.picture:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 3.4), layout="constrained")
        above, below = figure.subplots(2, sharex=True)
        seen = np.concatenate([each for _, each in results], axis=1)
        above.plot(np.broadcast_to(r, seen.shape).ravel(), seen.ravel(), ",", color="tab:blue")
        below.plot(r, np.maximum(exponent, -1.5), linewidth=0.8, color="tab:red")
        below.axhline(0, color="grey", linewidth=0.5)
        above.set(ylabel="x")
        below.set(xlabel="r", ylabel="exponent")
        figure.savefig(options.picture, dpi=100)
