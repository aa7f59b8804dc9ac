"""What must be true of the real device before any other test of this folder means something."""

from __future__ import annotations

import numpy as np

from support import gpu_memory

SOURCE = """
extern "C" __global__ void twice(float *x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= 2;
}
"""


async def test_the_device_describes_itself(dev):
    assert dev.info.backend == "cuda"
    assert "NVIDIA" in dev.info.name
    assert dev.info.capability >= (7, 5)
    assert dev.info.total_memory > 1 << 30
    assert dev.info.driver_version >= (12, 0)
    assert dev.info.warp_size == 32
    assert dev.info.max_threads_per_block == 1024


async def test_what_its_worker_holds_is_told_apart_from_what_others_hold(dev):
    before = gpu_memory()
    array = await dev.to_device(np.ones(256 << 20, np.uint8))
    assert gpu_memory() >= before + 256
    array.free()


async def test_a_kernel_computes_on_it(dev):
    host = np.arange(1000, dtype=np.float32)
    array = await dev.to_device(host)
    kernel = await dev.nvrtc.compile(SOURCE, "twice")
    await kernel.launch(4, 256, array, host.size)
    assert np.array_equal(await array.to_host(), host * 2)
    assert dev.generation == 1
