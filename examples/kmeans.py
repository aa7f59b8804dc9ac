"""k-means: each point joins the nearest of k centres, and each centre moves to the middle of its points.

The points stay on the device. What comes back after a round is one number: how many points have changed sides.

    python examples/kmeans.py --backend sim --picture kmeans.png
"""

import argparse
import importlib.util
import sys

import numpy as np
import trio
from numpy.typing import NDArray

import atomr_trio

SOURCE = """
extern "C" __global__ void join(const float2 *points, const float2 *centres, int *labels, float *sums, int *counts,
                                int *changed, int n, int k)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int best = 0; float least = 1e30f;
    for (int j = 0; j < k; j++) {
        float dx = points[i].x - centres[j].x, dy = points[i].y - centres[j].y, distance = dx * dx + dy * dy;
        if (distance < least) { least = distance; best = j; }
    }
    if (labels[i] != best) { labels[i] = best; atomicAdd(changed, 1); }
    atomicAdd(&sums[2 * best], points[i].x);
    atomicAdd(&sums[2 * best + 1], points[i].y);
    atomicAdd(&counts[best], 1);
}
extern "C" __global__ void move(float2 *centres, const float *sums, const int *counts)
{
    int j = threadIdx.x;
    if (counts[j] > 0) centres[j] = make_float2(sums[2 * j] / counts[j], sums[2 * j + 1] / counts[j]);
}
"""
Labelled = tuple[NDArray[np.int32], NDArray[np.float32]]


async def on_the_device(options: argparse.Namespace, host: NDArray[np.float32], k: int) -> Labelled:
    """The centre of each point, and the centres. A `float2 *` takes an array of floats with an even size."""
    async with atomr_trio.open_device(backend=options.backend) as dev:
        join = await dev.nvrtc.compile(SOURCE, "join")
        move = await dev.nvrtc.compile(SOURCE, "move")
        points, centres = await dev.to_device(host), await dev.to_device(host[:k])
        labels = dev.full(len(host), -1, np.int32)
        sums, counts, changed = dev.empty((k, 2), np.float32), dev.empty(k, np.int32), dev.empty(1, np.int32)
        while True:
            async with dev.batch() as batch:
                for each in (sums, counts, changed):
                    batch.fill(each, 0)
                outputs = labels, sums, counts, changed
                batch.launch(join, join.grid_for(len(host), 256), 256, points, centres, *outputs, len(host), k)
                batch.launch(move, 1, k, centres, sums, counts)
                count = batch.to_host(changed)
            if count[0] == 0:
                return await labels.to_host(), await centres.to_host()


def by_numpy(points: NDArray[np.float32], k: int) -> Labelled:
    """The same on the host."""
    centres, labels = points[:k].copy(), np.full(len(points), -1, np.int32)
    while True:
        nearest = ((points[:, None] - centres) ** 2).sum(-1).argmin(1).astype(np.int32)
        if (nearest == labels).all():
            return labels, centres
        labels, centres = nearest, np.array([points[nearest == j].mean(0) for j in range(k)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["sim", "cuda"], help="default: ATOMR_TRIO_BACKEND, else cuda")
    parser.add_argument("--points", type=int, default=1500)
    parser.add_argument("--picture", metavar="PNG", help="draw the points to this file; needs matplotlib")
    options = parser.parse_args()
    if options.picture and not importlib.util.find_spec("matplotlib"):
        sys.exit("--picture needs matplotlib: pip install matplotlib")
    middles = np.array([(0, 0), (6, 1), (2, 6), (-5, 4), (-3, -5)])
    noise = np.random.default_rng(1).normal(size=(options.points, 2))
    points = (middles[np.arange(options.points) % 5] + noise).astype(np.float32)
    labels, centres = trio.run(on_the_device, options, points, 5)
    expected, expected_centres = by_numpy(points, 5)
    # Sums of floats in another order have other last bits, so a point in the very middle may join either side.
    print(f"{(labels == expected).mean():.2%} of the points joined the same centre as with numpy")
    if (labels != expected).mean() > 0.001:
        sys.exit("too many points joined another centre")
    np.testing.assert_allclose(centres, expected_centres, atol=0.01)
    if options.picture:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(3.8, 2.8), layout="constrained")
        axes = figure.subplots()
        axes.scatter(points[:, 0], points[:, 1], c=labels, s=4, cmap="tab10")
        axes.scatter(centres[:, 0], centres[:, 1], marker="x", color="black", s=80)
        figure.savefig(options.picture, dpi=100)
