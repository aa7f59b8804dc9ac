"""A small package with kernels: the root mean square of a signal, and a filter."""

import math

import numpy as np

import atomr_trio

SOURCE = """
extern "C" __global__ void clip(float *x, int n, float most)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = fminf(fmaxf(x[i], -most), most);
}
extern "C" __global__ void differences(const float *x, float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i + 1] - x[i];
}
"""


async def loudness(dev: atomr_trio.Device, x: atomr_trio.DeviceArray) -> float:
    """The root mean square of a signal."""
    return float(await dev.blas.nrm2(x)) / math.sqrt(x.size)


async def clip(dev: atomr_trio.Device, x: atomr_trio.DeviceArray, most: float) -> None:
    """Clip a signal in place."""
    kernel = await dev.nvrtc.compile(SOURCE, "clip")
    await kernel.launch(kernel.grid_for(x.size, 128), 128, x, x.size, most)


async def differences(dev: atomr_trio.Device, x: atomr_trio.DeviceArray) -> atomr_trio.DeviceArray:
    """The differences of neighbours: one element less than the signal has."""
    y = dev.empty(x.size - 1, np.float32)
    kernel = await dev.nvrtc.compile(SOURCE, "differences")
    await kernel.launch(kernel.grid_for(y.size, 128), 128, x, atomr_trio.overwrites(y), y.size)
    return y
