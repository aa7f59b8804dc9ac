"""Images that only a GPU can load: machine code, of which the driver tells the kernels and our reader the variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_trio import (
    CommandFailed,
    ImageKind,
    InvalidArgument,
    NvrtcOptions,
    ParameterKind,
    StaleArray,
    StaleKernel,
    compile_to_cubin,
)
from support.linking import fatbin_of

SOURCE = r"""
__device__ int counter = 5;
__constant__ float table[4];
static __device__ double hidden[2];
struct Pair { int first; double second; };
extern "C" __global__ void look(float *out, int at) { out[threadIdx.x] = table[at] + counter + (float)hidden[1]; }
extern "C" __global__ void keep(double value) { hidden[1] = value; }
extern "C" __global__ void add(float *x, float f, double d, Pair pair, unsigned char small)
{
    x[threadIdx.x] += f + d + pair.first + pair.second + small;
}
"""


def cubin_for(dev: Any, source: str = SOURCE) -> bytes:
    return compile_to_cubin(source, options=NvrtcOptions(arch="sm_{}{}".format(*dev.info.capability)))


async def test_a_cubin_tells_its_kernels_and_variables(dev: Any) -> None:
    image = cubin_for(dev)
    module = await dev.module.load(image)
    assert (module.image_kind, module.cubin, module.ptx) == (ImageKind.CUBIN, image, None)
    assert module.target == "sm_{}{}".format(*dev.info.capability)
    assert set(module) == {"look", "keep", "add"}
    assert module.globals["counter"] == 4
    assert module.globals["table"] == 16
    table = module.global_("table", np.float32)
    await table.copy_from(np.arange(4, dtype=np.float32) * 10)
    x = dev.zeros(4, np.float32)
    await module["look"].launch(1, 4, x, np.int32(2))
    assert (await x.to_host()).tolist() == [25] * 4
    assert (await table.to_host()).tolist() == [0, 10, 20, 30]


async def test_without_ptx_a_value_has_to_have_the_parameters_size(dev: Any) -> None:
    add = (await dev.module.load(cubin_for(dev)))["add"]
    assert {parameter.kind for parameter in add.parameters} == {ParameterKind.BYTES}
    assert [parameter.size for parameter in add.parameters] == [8, 4, 8, 16, 1]
    pair = np.array([(3, 0.25)], np.dtype([("first", "<i4"), ("second", "<f8")], align=True))[0]
    x = dev.zeros(8, np.float32)
    await add.launch(1, 4, x[4:], np.float32(0.5), np.float64(1), pair, 2)
    assert (await x.to_host()).tolist() == [0] * 4 + [6.75] * 4
    for wrong in ((x, 0.5, np.float64(1), pair, 2), (x, np.float64(0.5), np.float64(1), pair, 2)):
        with pytest.raises(InvalidArgument):
            await add.launch(1, 4, *wrong)


async def test_a_cubin_for_another_architecture_is_refused_by_the_driver(dev: Any) -> None:
    other = "sm_75" if dev.info.capability[0] != 7 else "sm_90"
    image = compile_to_cubin(SOURCE, options=NvrtcOptions(arch=other))
    with pytest.raises(CommandFailed) as refused:
        await dev.module.load(image)
    assert refused.value.status == 209
    assert dev.generation == 1


async def test_a_fatbin_has_its_kernels_listed_by_the_driver_and_its_variables_asked_for(dev: Any) -> None:
    image = fatbin_of(cubin_for(dev), "{}{}".format(*dev.info.capability))
    module = await dev.module.load(image, variables=["table", "missing"])
    assert module.image_kind is ImageKind.FATBIN
    assert set(module) == {"look", "keep", "add"}
    assert dict(module.globals) == {"table": 16}
    table, x = module.global_("table", np.float32), dev.zeros(4, np.float32)
    for _ in range(2):
        await table.fill(3.0)
        await module["look"].launch(1, 4, x, 1)
        assert (await x.to_host()).tolist() == [8] * 4
        await dev.restart("to have it listed again")


async def test_the_variables_of_a_cubin_are_those_of_each_generation(dev: Any) -> None:
    module = await dev.module.load(cubin_for(dev))
    table, counter, look = module.global_("table", np.float32), module.global_("counter", np.int32), module["look"]
    await table.fill(1.0)
    await dev.restart("to move the variables")
    assert (await counter.to_host()).tolist() == [5]
    with pytest.raises(StaleArray):
        await table.to_host()
    x = dev.zeros(4, np.float32)
    with pytest.raises(StaleKernel):
        await look.launch(1, 4, x, 1)
    await table.fill(2.0)
    await look.launch(1, 4, x, 1)
    assert (await x.to_host()).tolist() == [7] * 4
