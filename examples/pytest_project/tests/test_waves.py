"""Tests with the plugin of atomr_trio: `gpu_device` is a device for one test, and a test that loses it fails alone."""

import numpy as np
import pytest
import waves

import atomr_trio
from atomr_trio.testing import Fault, cause


@pytest.fixture
def signal():
    return np.sin(np.arange(1000) / 10).astype(np.float32)


async def test_loudness_is_the_root_mean_square(gpu_device, signal):
    x = await gpu_device.to_device(signal)
    assert await waves.loudness(gpu_device, x) == pytest.approx(np.sqrt(np.mean(signal**2)), rel=1e-5)


@pytest.mark.parametrize("most", [0.0, 0.25, 2.0])
async def test_clip_is_that_of_numpy(gpu_device, signal, most):
    x = await gpu_device.to_device(signal)
    await waves.clip(gpu_device, x, most)
    np.testing.assert_array_equal(await x.to_host(), np.clip(signal, -most, most))


@pytest.mark.parametrize("n", [2, 128, 129, 1000])
async def test_differences_are_those_of_numpy(gpu_device, signal, n):
    # Each array of this device ends where its memory ends. A kernel that reads on would fail here.
    y = await waves.differences(gpu_device, await gpu_device.to_device(signal[:n]))
    np.testing.assert_allclose(await y.to_host(), np.diff(signal[:n]), atol=1e-6)


async def test_a_signal_of_another_type_is_refused(gpu_device, signal):
    x = await gpu_device.to_device(signal.astype(np.float64))
    with pytest.raises(atomr_trio.InvalidArgument, match="float32"):
        await waves.clip(gpu_device, x, 0.5)


@pytest.mark.gpu_faults
async def test_a_signal_survives_a_fault(gpu_device, signal):
    x = await gpu_device.to_device(signal)
    lost = await cause(gpu_device, Fault.ILLEGAL_ADDRESS)
    await gpu_device.wait_generation(after=lost.generation)
    assert await waves.loudness(gpu_device, x) == pytest.approx(np.sqrt(np.mean(signal**2)), rel=1e-5)
