"""Transforms in half precision, whose complex numbers are pairs along the last axis."""

from __future__ import annotations

import math
from typing import Any

import attrs
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from atomr_cuda.constants import cufft, library_types
from atomr_trio import InvalidArgument
from atomr_trio._device.device import core_of
from atomr_trio._wire.programs import Call, Create, Query, Room, Set
from atomr_trio.libraries.fft.axes import transform_of
from atomr_trio.libraries.fft.programs import transform_program
from atomr_trio.libraries.fft.records import Problem
from atomr_trio.libraries.fft.sides import side
from support.blas import submitted
from support.fft import TO_REAL, exact
from support.linear import FORMS

pytestmark = [pytest.mark.used_workers, pytest.mark.halved]

DTYPES: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
REAL_INPUT = ("rfft", "rfft2", "rfftn")


def halves(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """Numbers as halves; complex ones as pairs."""
    if values.dtype.kind == "c":
        values = np.stack([values.real, values.imag], -1)
    return values.astype(DTYPES[dtype])


def wide(values: npt.NDArray[Any], *, pairs: bool) -> npt.NDArray[Any]:
    """What halves stand for, in double precision."""
    numbers = values.astype(np.float64)
    return numbers[..., 0] + 1j * numbers[..., 1] if pairs else numbers


def made(name: str, shape: tuple[int, ...], dtype: str, seed: int = 0) -> npt.NDArray[Any]:
    """An input of this shape, without the axis of pairs. That of a transform to real numbers is their spectrum."""
    rng = np.random.default_rng(seed)
    if name in REAL_INPUT:
        return halves(rng.uniform(-1, 1, shape), dtype)
    if name not in TO_REAL:
        return halves(rng.uniform(-1, 1, shape) + 1j * rng.uniform(-1, 1, shape), dtype)
    real = rng.uniform(-1, 1, (*shape[:-1], 2 * (shape[-1] - 1)))
    return halves(
        np.fft.rfftn(real) if name == "irfftn" else np.fft.rfft2(real) if "2" in name else np.fft.rfft(real), dtype
    )


def assert_close(found: npt.NDArray[Any], expected: Any, dtype: str, points: int, *, pairs: bool) -> None:
    assert found.dtype == np.dtype(DTYPES[dtype])
    numbers = wide(found, pairs=pairs)
    assert numbers.shape == expected.shape
    error, size = float(np.linalg.norm(numbers - expected)), float(np.linalg.norm(expected))
    bound = EPSILON[dtype] * max(math.log2(points), 1)
    assert error <= bound * size, f"an error of {error / size:.3g}, and {bound:.3g} is allowed"


CASES: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "fft": ("fft", (3, 64), {}),
    "ifft": ("ifft", (3, 64), {}),
    "fft along the first axis": ("fft", (32, 5), {"axis": 0}),
    "fft along a middle axis": ("fft", (3, 16, 5), {"axis": 1}),
    "fft ortho": ("fft", (4, 256), {"norm": "ortho"}),
    "fft forward": ("fft", (4, 64), {"norm": "forward"}),
    "ifft forward": ("ifft", (4, 64), {"norm": "forward"}),
    "fft of more points": ("fft", (3, 20), {"n": 32}),
    "fft of fewer points": ("fft", (3, 20), {"n": 16}),
    "fft of one point": ("fft", (3, 20), {"n": 1}),
    "fft2": ("fft2", (3, 8, 16), {}),
    "ifft2": ("ifft2", (8, 16), {"norm": "ortho"}),
    "fftn": ("fftn", (4, 8, 16), {}),
    "ifftn of four axes": ("ifftn", (2, 4, 8, 4), {}),
    "rfft": ("rfft", (3, 64), {}),
    "rfft along the first axis": ("rfft", (64, 3), {"axis": 0, "norm": "ortho"}),
    "rfft of more points": ("rfft", (3, 20), {"n": 32}),
    "rfft of one point": ("rfft", (3, 20), {"n": 1}),
    "irfft": ("irfft", (3, 33), {}),
    "irfft forward": ("irfft", (3, 33), {"norm": "forward"}),
    "irfft of fewer points": ("irfft", (3, 33), {"n": 16}),
    "rfft2": ("rfft2", (3, 8, 16), {}),
    "irfft2": ("irfft2", (3, 8, 9), {}),
    "rfftn": ("rfftn", (4, 8, 16), {}),
    "irfftn": ("irfftn", (4, 8, 9), {"norm": "ortho"}),
}


@pytest.mark.parametrize("batched", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "shape", "keywords"), CASES.values(), ids=CASES.keys())
async def test_a_transform_in_half_precision_is_that_of_numpy(dev, name, shape, keywords, dtype, batched):
    host = made(name, shape, dtype)
    expected = exact(name, wide(host, pairs=name not in REAL_INPUT), **keywords)
    x = await dev.to_device(host)
    if batched:
        async with dev.batch() as batch:
            result = getattr(batch.fft, name)(x, pairs=True, **keywords)
    else:
        result = await getattr(dev.fft, name)(x, pairs=True, **keywords)
    assert_close(await result.to_host(), expected, dtype, max(math.prod(shape), 2), pairs=name not in TO_REAL)
    assert ((await x.to_host()).view(np.uint16) == host.view(np.uint16)).all()


@pytest.mark.parametrize("dtype", DTYPES)
async def test_views_results_that_are_given_and_transforms_in_place(dev, dtype):
    whole = made("fft", (16, 64), dtype)
    x, numbers = await dev.to_device(whole), wide(whole, pairs=True)
    for view, known in ((x[::2], numbers[::2]), (x[:, ::-2], numbers[:, ::-2]), (x.transpose(1, 0, 2), numbers.T)):
        found = await (await dev.fft.ifft(view, pairs=True)).to_host()
        assert_close(found, exact("ifft", known), dtype, 64, pairs=True)
    out = dev.zeros((16, 66, 2), dtype)[:, 1:65]
    assert await dev.fft.fft(x, out=out, pairs=True) is out
    assert_close(await out.to_host(), exact("fft", numbers), dtype, 64, pairs=True)
    real = await dev.to_device(halves(np.random.default_rng(1).uniform(-1, 1, 257), dtype))
    found = await (await dev.fft.rfft(real[1:], pairs=True)).to_host()  # it is not aligned to a pair
    assert_close(found, exact("rfft", wide(await real.to_host(), pairs=False)[1:]), dtype, 256, pairs=True)
    every_other = await (await dev.fft.rfft(real[:256:2], pairs=True)).to_host()
    assert_close(every_other, exact("rfft", wide(await real.to_host(), pairs=False)[:256:2]), dtype, 128, pairs=True)
    for name in ("fft", "ifft"):
        again = await dev.to_device(whole)
        assert await getattr(dev.fft, name)(again, out=again, pairs=True) is again
        assert_close(await again.to_host(), exact(name, numbers), dtype, 64, pairs=True)


@pytest.mark.parametrize("dtype", DTYPES)
async def test_half_a_spectrum_that_is_none_of_real_numbers_is_taken_as_numpy_takes_it(dev, dtype):
    for name, shape in (("irfft", (3, 33)), ("irfft2", (3, 8, 9))):
        host = made("fft", shape, dtype)
        expected = exact(name, wide(host, pairs=True))
        found = await (await getattr(dev.fft, name)(await dev.to_device(host), pairs=True)).to_host()
        assert_close(found, expected, dtype, math.prod(shape), pairs=False)


async def test_an_inverse_is_scaled_before_what_it_adds_up_is_too_large(dev):
    host = halves(np.full((1024,), 60_000 + 0j), "float16")
    found = await (await dev.fft.ifft(await dev.to_device(host), pairs=True)).to_host()
    assert_close(found, exact("ifft", wide(host, pairs=True)), "float16", 1024, pairs=True)


@pytest.mark.parametrize("dtype", DTYPES)
async def test_a_plan_in_half_precision_is_called_like_a_verb(dev, dtype):
    plan = dev.fft.plan("irfft", (3, 33, 2), dtype, pairs=True)
    assert (plan.shape, plan.out_shape, plan.out_dtype) == ((3, 33, 2), (3, 64), np.dtype(DTYPES[dtype]))
    host = made("irfft", (3, 33), dtype)
    found = await (await plan(await dev.to_device(host))).to_host()
    assert_close(found, exact("irfft", wide(host, pairs=True)), dtype, 64, pairs=False)
    plan = dev.fft.plan("rfft", (64, 3), dtype, axis=0, pairs=True, strides=(2, 128), out_strides=(4, 132, 2))
    assert (plan.out_shape, plan.out_strides) == ((33, 3, 2), (4, 132, 2))
    host = made("rfft", (3, 64), dtype)
    out = dev.zeros((3, 33, 2), dtype).transpose(1, 0, 2)
    await plan((await dev.to_device(host)).T, out)
    assert_close(await out.to_host(), exact("rfft", wide(host, pairs=False)).T, dtype, 64, pairs=True)


async def test_halves_without_pairs_are_converted_as_before(dev):
    host = halves(np.random.default_rng(0).uniform(-1, 1, (3, 2)), "float16")
    assert (await dev.fft.fft(await dev.to_device(host))).dtype == np.complex64


async def test_what_half_precision_does_not_have_is_refused_and_nothing_is_sent(dev):
    x = dev.zeros((4, 8, 2), "float16")
    plan = dev.fft.plan("fft", (4, 8, 2), "float16", pairs=True)
    before = submitted(dev)
    for match, name, array, keywords in (
        ("powers of two alone; along axis 1 fft has 12 points", "fft", dev.zeros((4, 12, 2), "float16"), {}),
        ("along axis 0 fft2 has 6 points", "fft2", x, {"s": (6, 8)}),
        ("along axis 1 irfft has 14 points", "irfft", x, {}),
        ("pairs=True is for float16 and bfloat16, not float32", "fft", dev.zeros((8, 2), "float32"), {}),
        ("pairs=True is for float16 and bfloat16, not complex64", "ifft", dev.zeros((8, 2), "complex64"), {}),
        ("the last axis of x has the 2 parts", "fft", dev.zeros((2, 8), "float16"), {}),
        ("the last axis of x has the 2 parts", "irfft", dev.zeros((), "float16"), {}),
        ("axis 2 is out of range for an array of 2 axes", "fft", x, {"axis": 2}),
        ("the two parts of a number lie side by side", "fft", dev.zeros((8, 4), "float16")[:, ::2], {}),
        ("pairs is True or False", "fft", x, {"pairs": 1}),
        ("the result has .4, 8, 2. and float16", "fft", x, {"out": dev.zeros((4, 8), "complex64")}),
        ("the result has .4, 8. and float16", "irfft", x, {"n": 8, "out": dev.zeros((4, 8, 2), "float16")}),
        ("side by side, and out has", "fft", x, {"out": dev.zeros((4, 8, 4), "float16")[:, :, ::2]}),
        ("shares memory", "fft", x[:2], {"out": x[1:3]}),
    ):
        with pytest.raises(InvalidArgument, match=match):
            await getattr(dev.fft, name)(array, **{"pairs": True, **keywords})
    for match, arguments, keywords in (
        ("hfft is not there in half precision", ("hfft", (4, 8, 2), "float16"), {}),
        ("side by side", ("fft", (4, 8, 2), "float16"), {"strides": (32, 4, 64)}),
        ("side by side", ("fft", (4, 8, 2), "float16"), {"out_strides": (32, 4, 64)}),
        ("powers of two", ("rfft", 6, "bfloat16"), {}),
        ("takes 4,294,967,296 elements at most", ("fft", (1 << 17, 1 << 16, 2), "float16"), {}),
    ):
        with pytest.raises(InvalidArgument, match=match):
            dev.fft.plan(*arguments, pairs=True, **keywords)
    with pytest.raises(InvalidArgument, match="the plan is for shape"):
        await plan(dev.zeros((8, 4, 2), "float16"))
    assert submitted(dev) == before


async def test_a_gpu_without_bfloat16_refuses_it(dev, monkeypatch):
    x = dev.zeros((4, 8, 2), "bfloat16")
    monkeypatch.setattr(core_of(dev), "known_info", attrs.evolve(dev.info, capability=(7, 5)))
    with pytest.raises(InvalidArgument, match=r"bfloat16 on GPUs of capability 8\.0 and newer"):
        await dev.fft.fft(x, pairs=True)


def test_cufft_is_told_the_type_of_each_side_and_that_of_the_computation():
    found = {}
    for name, dtype, source, strides in (
        ("fft", "float16", "complex_float16", (32, 4)),
        ("rfft", "bfloat16", "bfloat16", (16, 2)),
        ("irfft", "float16", "complex_float16", (32, 4)),
    ):
        shape = (4, 8, 2) if source.startswith("complex") else (4, 8)
        transform = transform_of(name, dtype, shape, 8, -1, "forward" if name == "irfft" else None, pairs=True)
        target_strides = {"complex_float16": (32, 4), "complex_bfloat16": (20, 4), "float16": (16, 2)}[transform.dtype]
        target = side(transform.dtype, transform.shape, target_strides)
        given = side(source, shape[:2], strides)
        made_ = transform_program(Problem(transform.operations, given, target, transform.scale, "", False, True))
        assert [type(step) for step in made_.make] == [Create, Call, Query, Call, Room]
        assert made_.make[2].function == "cufftXtMakePlanMany"
        arguments = made_.make[2].arguments
        found[name] = arguments[6], arguments[10], arguments[13]
        last = made_.execute[-1]
        assert (type(made_.execute[0]), last.function) == (Set, "cufftXtExec")
        assert last.arguments[3] == (cufft.CUFFT_INVERSE if name == "irfft" else cufft.CUFFT_FORWARD)
    whole, real = library_types.CUDA_C_16F, library_types.CUDA_R_16F
    assert found == {
        "fft": (whole, whole, whole),
        "rfft": (library_types.CUDA_R_16BF, library_types.CUDA_C_16BF, library_types.CUDA_C_16BF),
        "irfft": (whole, real, whole),
    }
