"""What was linked is loaded by the driver and computes the right numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_trio import LinkInput, LinkOptions, link
from atomr_trio._compiling.linker import bridge_ptx, cubin_from_ptx, link_program
from support.linking import HELPER, KERNEL, cubin, device_runtime, fatbin, ltoir, ptx

TABLE = '__device__ int table[4] = {1, 2, 3, 4};\nextern "C" __global__ void bump(int n) { table[threadIdx.x] += n; }'
PARENT = """
__global__ void child(float *y, float x) { y[threadIdx.x] = x; }
extern "C" __global__ void parent(float *y) { child<<<1, 32>>>(y, 8.0f); }
"""


@pytest.fixture
def arch(dev: Any) -> str:
    major, minor = dev.info.capability
    return f"sm_{major}{minor}"


async def applied(dev: Any, image: bytes) -> np.ndarray:
    """What `apply` makes of 0 ... 31."""
    module = await dev.module.load(image)
    y = await dev.to_device(np.arange(32, dtype=np.float32))
    await module.function("apply").launch(1, 32, y)
    return await y.to_host()


@pytest.mark.parametrize("callee", ["ltoir", "ptx", "cubin", "fatbin"])
@pytest.mark.parametrize("caller", ["ltoir", "ptx", "cubin"])
async def test_a_kernel_calls_a_function_of_another_image(dev, arch, caller, callee):
    made = {
        "ltoir": ltoir,
        "ptx": ptx,
        "cubin": lambda source: cubin(source, arch),
        "fatbin": lambda source: fatbin(source, arch.removeprefix("sm_")),
    }
    image = link([made[caller](KERNEL), LinkInput(made[callee](HELPER), "helper")], arch=arch)
    assert np.array_equal(await applied(dev, image), 3 * np.arange(32, dtype=np.float32) + 1)


@pytest.mark.parametrize("options", [LinkOptions(), LinkOptions(debug=True), LinkOptions(fmad=False, lineinfo=True)])
async def test_options_change_how_and_not_what(dev, arch, options):
    image = link([ltoir(KERNEL), ltoir(HELPER)], arch=arch, options=options)
    assert np.array_equal(await applied(dev, image), 3 * np.arange(32, dtype=np.float32) + 1)


async def test_linked_ptx_runs(dev, arch):
    image = link([ltoir(KERNEL), ltoir(HELPER)], arch=arch.replace("sm_", "compute_"))
    newest_driver = link_program([image], LinkOptions(), arch).image
    assert np.array_equal(await applied(dev, newest_driver), 3 * np.arange(32, dtype=np.float32) + 1)


async def test_a_variable_of_a_linked_image_keeps_its_first_value(dev, arch):
    module = await dev.module.load(link([ltoir(TABLE), ltoir(HELPER)], arch=arch))
    await module.function("bump").launch(1, 4, 10)
    assert list(await module.global_("table", np.int32).to_host()) == [11, 12, 13, 14]


async def test_a_kernel_launches_a_kernel_through_the_device_runtime(dev, arch):
    module = await dev.module.load(link([cubin(PARENT, arch), device_runtime()], arch=arch))
    y = dev.zeros(32, np.float32)
    await module.function("parent").launch(1, 1, y)
    assert (await y.to_host() == 8).all()


async def test_a_cubin_made_of_ptx_runs_on_this_driver(dev, arch):
    source = 'extern "C" __global__ void apply(float *y) { y[threadIdx.x] += 1; }'
    for image in (cubin_from_ptx(ptx(source), arch), bridge_ptx(ptx(source), dev.info.capability, (13, 0))):
        assert np.array_equal(await applied(dev, image), np.arange(32, dtype=np.float32) + 1)
