"""The kernels of `simulator.py`: one translation unit each, as somebody would write it, and what it is run on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
import numpy as np

N: Final = 1_000_000
THREADS: Final = 256
BLOCKS: Final = -(-N // THREADS)

Extent = tuple[int, int, int]


@attrs.frozen
class Kernel:
    """A kernel, its launch, and the seconds that a run of it should not exceed on two cores."""

    title: str
    name: str
    source: str = attrs.field(repr=False)
    grid: Extent
    block: Extent
    arguments: Callable[[], list[Any]]
    """The same ones in every call: floats, ints, and arrays that are copied to the device."""
    aim: float | None = None
    contracted: bool = True
    """Whether the compiler may fuse products and sums."""


SAXPY: Final = r"""
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""

MATMUL: Final = r"""
#define TILE 16
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n)
{
    __shared__ float left[TILE][TILE], right[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int at = 0; at < n; at += TILE) {
        left[threadIdx.y][threadIdx.x] = a[row * n + at + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[(at + threadIdx.y) * n + column];
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}
"""

MANDELBROT: Final = r"""
extern "C" __global__ void mandelbrot(int* counts, int width, int height, int limit)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    float re = -2.0f + 2.75f * x / width, im = -1.25f + 2.5f * y / height, a = 0, b = 0;
    int count = 0;
    while (count < limit && a * a + b * b < 4.0f) {
        float next = a * a - b * b + re;
        b = 2.0f * a * b + im;
        a = next;
        ++count;
    }
    counts[y * width + x] = count;
}
"""

REDUCE: Final = r"""
extern "C" __global__ void block_sum(const float* x, float* sums, int n)
{
    __shared__ float s[256];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    s[t] = i < n ? x[i] : 0.0f;
    for (int half = blockDim.x / 2; half; half /= 2) {
        __syncthreads();
        if (t < half) s[t] += s[t + half];
    }
    if (t == 0) sums[blockIdx.x] = s[0];
}
"""

HISTOGRAM: Final = r"""
extern "C" __global__ void histogram(const unsigned char* x, int n, unsigned* counts)
{
    __shared__ unsigned local[256];
    local[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[x[i]], 1);
    __syncthreads();
    atomicAdd(&counts[threadIdx.x], local[threadIdx.x]);
}
"""

GRAVITY: Final = r"""
extern "C" __global__ void gravity(const float4* bodies, float4* forces, int n)
{
    __shared__ float4 tile[64];
    int i = blockIdx.x * 64 + threadIdx.x;
    float4 me = bodies[i];
    float3 sum = make_float3(0, 0, 0);
    for (int first = 0; first < n; first += 64) {
        tile[threadIdx.x] = bodies[first + threadIdx.x];
        __syncthreads();
        for (int k = 0; k < 64; ++k) {
            float4 other = tile[k];
            float x = other.x - me.x, y = other.y - me.y, z = other.z - me.z;
            float near = rsqrtf(x * x + y * y + z * z + 0.01f), pull = other.w * near * near * near;
            sum.x += x * pull;
            sum.y += y * pull;
            sum.z += z * pull;
        }
        __syncthreads();
    }
    forces[i] = make_float4(sum.x, sum.y, sum.z, 0);
}
"""

BLACK_SCHOLES: Final = r"""
__device__ float normal_distribution(float x) { return 0.5f * erfcf(-0.70710678118654752f * x); }

extern "C" __global__ void black_scholes(const float* price, const float* strike, const float* years, float rate,
                                         float volatility, float* call, float* put, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float spread = volatility * sqrtf(years[i]);
    float d1 = (logf(price[i] / strike[i]) + (rate + 0.5f * volatility * volatility) * years[i]) / spread;
    float d2 = d1 - spread, later = strike[i] * expf(-rate * years[i]);
    call[i] = price[i] * normal_distribution(d1) - later * normal_distribution(d2);
    put[i] = later * normal_distribution(-d2) - price[i] * normal_distribution(-d1);
}
"""

FFT: Final = r"""
extern "C" __global__ void fft_256(const float2* in, float2* out)
{
    __shared__ float2 s[256];
    int t = threadIdx.x;
    in += blockIdx.x * 256;
    out += blockIdx.x * 256;
    for (int i = t; i < 256; i += 128) s[__brev(i) >> 24] = in[i];
    for (int half = 1; half < 256; half *= 2) {
        __syncthreads();
        int k = t % half, low = t / half * 2 * half + k;
        float sine, cosine;
        sincospif(-(float)k / half, &sine, &cosine);
        float2 a = s[low], b = s[low + half];
        b = make_float2(b.x * cosine - b.y * sine, b.x * sine + b.y * cosine);
        s[low] = make_float2(a.x + b.x, a.y + b.y);
        s[low + half] = make_float2(a.x - b.x, a.y - b.y);
    }
    __syncthreads();
    for (int i = t; i < 256; i += 128) out[i] = s[i];
}
"""


def uniform(*shape: int, low: float = 0, high: float = 1) -> np.ndarray:
    """Numbers of single precision, the same ones in every call."""
    return np.random.default_rng(8).uniform(low, high, shape).astype(np.float32)


def empty(*shape: int) -> np.ndarray:
    """What a kernel writes in single precision."""
    return np.zeros(shape, np.float32)


def _pixels() -> list[Any]:
    return [np.zeros((512, 512), np.int32), 512, 512, 256]


def _bytes() -> list[Any]:
    return [np.random.default_rng(8).integers(0, 256, N).astype(np.uint8), N, np.zeros(256, np.uint32)]


def _options() -> list[Any]:
    ends = ((5, 30), (1, 100), (0.25, 10))
    return [*(uniform(N, low=low, high=high) for low, high in ends), 0.03, 0.3, empty(N), empty(N), N]


LINE: Final[tuple[Extent, Extent]] = (BLOCKS, 1, 1), (THREADS, 1, 1)
"""The launch of a thread for each of `N` items."""

KERNELS: Final = (
    Kernel("saxpy, 1e6", "saxpy", SAXPY, *LINE, lambda: [0.9, uniform(N), uniform(N), N], 0.010),
    Kernel("tiled product, 256 x 256", "matmul", MATMUL, (16, 16, 1), (16, 16, 1),
           lambda: [uniform(256, 256), uniform(256, 256), empty(256, 256), 256], 0.060),
    Kernel("Mandelbrot set, 512 x 512", "mandelbrot", MANDELBROT, (32, 64, 1), (16, 8, 1), _pixels, 0.150, False),
    Kernel("sums of blocks, 1e6", "block_sum", REDUCE, *LINE, lambda: [uniform(N), empty(BLOCKS), N], 0.020),
    Kernel("histogram, 1e6", "histogram", HISTOGRAM, (128, 1, 1), (256, 1, 1), _bytes),
    Kernel("gravity, 1024 bodies", "gravity", GRAVITY, (16, 1, 1), (64, 1, 1),
           lambda: [uniform(1024, 4), empty(1024, 4), 1024]),
    Kernel("Black-Scholes, 1e6", "black_scholes", BLACK_SCHOLES, *LINE, _options),
    Kernel("FFT of 256 points, 1024 times", "fft_256", FFT, (1024, 1, 1), (128, 1, 1),
           lambda: [uniform(1024, 256, 2), empty(1024, 256, 2)]),
)  # fmt: skip
"""Those of the study, and what was aimed at."""
