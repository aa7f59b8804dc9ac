"""A CuPy program with a kernel of its own, as a plain program of atomr_trio: no async anywhere.

CuPy                                          here
kernel = cupy.RawKernel(SOURCE, "escape")     kernel = dev.nvrtc.compile(SOURCE, "escape")
counts = cupy.empty(shape, cupy.int32)        counts = dev.empty(shape, np.int32)
kernel(grid, block, (counts, width, ...))     kernel.launch(grid, block, counts, width, ...)
counts.get()                                  counts.to_host()

python examples/mandelbrot.py --backend sim --picture mandelbrot.png
"""

import argparse
import importlib.util
import sys

import numpy as np
from numpy.typing import NDArray

import atomr_trio

SOURCE = """
// How many steps z = z * z + c takes to leave the circle of radius 2; `most` where it does not.
extern "C" __global__ void escape(int *counts, int width, int height, int most)
{
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (column >= width || row >= height) return;
    double cx = -2.25 + 3.0 * column / width, cy = -1.0 + 2.0 * row / height, x = 0, y = 0;
    int count = 0;
    while (count < most && x * x + y * y <= 4) {
        double next = x * x - y * y + cx;
        y = 2 * (x * y) + cy;
        x = next;
        count++;
    }
    counts[row * width + column] = count;
}
"""
BLOCK = (16, 16)


def on_the_device(options: argparse.Namespace, width: int, height: int, most: int) -> NDArray[np.int32]:
    """The counts of all points."""
    # The block closes the device. `dev = atomr_trio.start()` works too: the device is closed with the program.
    with atomr_trio.start(backend=options.backend) as dev:
        # No product and sum become one operation that rounds once, so that numpy finds the same numbers.
        kernel = dev.nvrtc.compile(SOURCE, "escape", atomr_trio.NvrtcOptions(fmad=False))
        counts = dev.empty((height, width), np.int32)
        kernel.launch(kernel.grid_for((width, height), BLOCK), BLOCK, counts, width, height, most)
        return counts.to_host()


def by_numpy(width: int, height: int, most: int) -> NDArray[np.int32]:
    """The same on the host."""
    cx, cy = -2.25 + 3.0 * np.arange(width) / width, (-1.0 + 2.0 * np.arange(height) / height)[:, None]
    x, y, counts = np.zeros((height, width)), np.zeros((height, width)), np.zeros((height, width), np.int32)
    for _ in range(most):
        inside = x * x + y * y <= 4
        counts += inside
        following = x * x - y * y + cx
        y = np.where(inside, 2 * (x * y) + cy, y)
        x = np.where(inside, following, x)
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["sim", "cuda"], help="default: ATOMR_TRIO_BACKEND, else cuda")
    parser.add_argument("--width", type=int, default=96, help="points from left to right")
    parser.add_argument("--most", type=int, default=60, help="steps at most")
    parser.add_argument("--picture", metavar="PNG", help="draw to this file; needs matplotlib")
    options = parser.parse_args()
    if options.picture and not importlib.util.find_spec("matplotlib"):
        sys.exit("--picture needs matplotlib: pip install matplotlib")
    size = options.width, options.width * 2 // 3, options.most
    counts = on_the_device(options, *size)
    np.testing.assert_array_equal(counts, by_numpy(*size))
    print(f"{counts.size} points, {np.count_nonzero(counts == options.most)} of them in the set, as numpy finds too")
    if options.picture:
        from matplotlib.image import imsave

        imsave(options.picture, np.log(counts), cmap="twilight_shifted")
