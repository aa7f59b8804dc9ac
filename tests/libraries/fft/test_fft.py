"""Transforms by `dev.fft`: names, lengths, precision, layouts, and what is kept, against numpy in double precision."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from atomr_trio import CommandFailed, InvalidArgument
from atomr_trio.libraries.fft import layouts
from atomr_trio.libraries.fft.programs import transform_program
from atomr_trio.testing import ReturnStatus, inject
from support.blas import submitted
from support.fft import (
    COMPLEX,
    FORWARD_REAL,
    ONE_AXIS,
    PRECISIONS,
    TO_REAL,
    TRANSFORMS,
    assert_near,
    exact,
    numbers,
    result_dtype,
)
from support.linear import FORMS, ask

pytestmark = pytest.mark.used_workers

batched = pytest.mark.parametrize("batched", FORMS.values(), ids=FORMS.keys())

LENGTHS = (1, 2, 3, 8, 15, 64, 97, 131, 1024, 1009)


async def transformed(dev: Any, name: str, x: Any, *arguments: Any, **keywords: Any) -> Any:
    """The result of a transform of a numpy array, on the host."""
    given = await dev.to_device(x)
    result = await (await getattr(dev.fft, name)(given, *arguments, **keywords)).to_host()
    assert (await given.to_host()).tobytes() == x.tobytes(), "the input was changed"
    return result


# --- against numpy ----------------------------------------------------------------------------------------------------


@batched
@pytest.mark.parametrize("name", TRANSFORMS)
async def test_every_transform_has_the_defaults_of_numpy(dev, name, batched):
    x = numbers((3, 4, 6), "float64" if name in FORWARD_REAL else "complex128")
    result = await ask(dev, batched, f"fft.{name}", await dev.to_device(x))
    assert_near(await result.to_host(), exact(name, x), 144)


@pytest.mark.parametrize("dtype", PRECISIONS)
async def test_the_precision_is_that_of_the_input_and_integers_become_double(dev, dtype):
    for name in TRANSFORMS:
        if name in FORWARD_REAL and dtype.startswith("complex"):
            continue
        x = numbers((4, 6), dtype)
        result = await transformed(dev, name, x)
        assert result.dtype.name == result_dtype(name, dtype)
        assert_near(result, exact(name, x), 48)


@pytest.mark.parametrize("length", LENGTHS)
async def test_any_number_of_points_is_transformed(dev, length):
    for name, dtype in itertools.product(ONE_AXIS, ("float32", "float64")):
        x = numbers((3, length // 2 + 1 if name in TO_REAL else length), dtype)
        if name not in FORWARD_REAL:
            x = x + 1j * numbers(x.shape, dtype, 1)
        result = await transformed(dev, name, x, n=length)
        assert_near(result, exact(name, x, n=length), length, bluestein=length in (97, 131, 1009))


@pytest.mark.parametrize("norm", [None, "backward", "ortho", "forward"])
async def test_a_transform_and_its_inverse_are_scaled_as_by_numpy(dev, norm):
    for name in TRANSFORMS:
        x = numbers((4, 6), "float64")
        assert_near(await transformed(dev, name, x, norm=norm), exact(name, x, norm=norm), 48)
    for there, back in (("fft", "ifft"), ("rfft", "irfft"), ("hfft", "ihfft"), ("rfftn", "irfftn")):
        x = numbers((4, 6), "float64")
        both = await transformed(dev, back, await transformed(dev, there, x, norm=norm), norm=norm)
        assert_near(both, x.astype(both.dtype), 48)


@pytest.mark.parametrize("axes", [(0,), (2,), (0, 2), (2, 0), (3, 1, 0), (0, 1, 2, 3), (-1, -2), (4, 3, 2, 1, 0)])
async def test_any_axes_are_transformed(dev, axes):
    x = numbers((2, 3, 4, 5, 6), "float64")
    for name in ("fftn", "ifftn", "rfftn", "irfftn"):
        assert_near(await transformed(dev, name, x, axes=axes), exact(name, x, axes=axes), 720)


@pytest.mark.parametrize(
    "keywords",
    [
        {"s": (3, 7)},
        {"s": (-1, 9)},
        {"s": (5, -1), "axes": (0, 2)},
        {"s": (3, 4), "axes": (1, 1)},
        {"s": (6, 4, 3), "axes": (1, 0, 1)},
        {"axes": (0, 0, 2)},
        {"axes": (2, 1, 2)},
        {"s": (1, 1)},
        {"s": (1, 4)},
        {"s": (4, 1)},
        {"s": (9,), "axes": (0,)},
    ],
)
@pytest.mark.filterwarnings("ignore:`axes` should not be `None`:DeprecationWarning")
async def test_lengths_and_axes_that_are_named_twice_mean_what_they_mean_to_numpy(dev, keywords):
    x = numbers((4, 5, 6), "float64")
    for name in ("fftn", "ifftn", "rfftn", "irfftn"):
        assert_near(await transformed(dev, name, x, **keywords), exact(name, x, **keywords), 360)
    assert_near(await transformed(dev, "fft2", x, s=(3, 3)), exact("fft2", x, s=(3, 3)), 9)


async def test_lengths_without_axes_are_those_of_the_last(dev):
    x = numbers((4, 5, 6), "float64")
    assert_near(await transformed(dev, "fftn", x, s=(3, 7)), exact("fftn", x, s=(3, 7), axes=(-2, -1)), 21)


@pytest.mark.parametrize("lengths", [(8,), (9,), (8192,), (4, 6), (5, 3), (3, 4, 5), (2, 3, 4, 6)])
async def test_half_a_spectrum_of_any_numbers_becomes_what_numpy_makes_of_it(dev, lengths):
    """Also where it is not that of real numbers, for which the library promises nothing."""
    axes = tuple(range(1, len(lengths) + 1))
    half = (*lengths[:-1], lengths[-1] // 2 + 1)
    for dtype, overwrite in itertools.product(("complex64", "complex128"), (False, True)):
        x = numbers((2, *half), dtype)
        given = await dev.to_device(x)
        result = await dev.fft.irfftn(given, s=lengths, axes=axes, overwrite_x=overwrite)
        assert_near(await result.to_host(), exact("irfftn", x, s=lengths, axes=axes), int(np.prod(lengths)))
        if not overwrite:
            assert (await given.to_host()).tobytes() == x.tobytes()


async def test_exact_cases(dev):
    impulse, ones = np.zeros((4, 8), np.float32), np.ones((4, 8), np.float32)
    impulse[0, 0] = 1
    assert (await transformed(dev, "fft2", impulse) == 1).all()
    assert (await transformed(dev, "rfft2", impulse) == 1).all()
    spectrum = await transformed(dev, "fft2", ones)
    assert spectrum[0, 0] == 32
    assert np.count_nonzero(spectrum) == 1
    assert (await transformed(dev, "ifft2", spectrum) == 1).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
async def test_numbers_that_are_not_finite_stay_in_their_transform(dev, bad):
    x = numbers((3, 8), "float64")
    x[1, 2] = bad
    for name in ("fft", "ifft", "rfft", "hfft", "irfft"):
        result = await transformed(dev, name, x)
        assert not np.isfinite(result[1]).any()
        assert_near(result[::2], exact(name, x[::2]), 16)
    # numpy does not look at imaginary parts where there can be none.
    half = numbers((3, 5), "complex128")
    wrong = half.copy()
    wrong.imag[1, 0] = wrong.imag[1, 4] = bad
    assert (await transformed(dev, "irfft", wrong) == await transformed(dev, "irfft", half)).all()


async def test_an_empty_array_has_an_empty_result_and_nothing_is_sent(dev):
    before = submitted(dev)
    for name in ("fft", "irfft", "fftn"):
        keywords = {"axes": (1,)} if name == "fftn" else {}
        result = await getattr(dev.fft, name)(dev.empty((0, 6), "float32"), **keywords)
        assert result.shape == exact(name, np.empty((0, 6)), **keywords).shape
    assert (await dev.fft.fftshift(dev.empty((0, 6), "int8"))).shape == (0, 6)
    assert submitted(dev) == before


# --- layouts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rfft", "fft", "irfft"])
async def test_a_view_that_is_not_aligned_is_copied_and_not_computed_wrong(dev, name):
    for dtype in ("float32", "float64"):
        whole = numbers((3, 33), dtype)
        given = await dev.to_device(whole)
        x, width = whole[:, 1:], 17 if name == "rfft" else 62 if name == "irfft" else 32
        out = dev.zeros((3, width + 1), result_dtype(name, dtype))[:, 1:]
        await getattr(dev.fft, name)(given[:, 1:], out=out)
        assert_near(await out.to_host(), exact(name, x), width)


@pytest.mark.parametrize("name", [*COMPLEX[-2:], "rfftn", "irfftn"])
async def test_arrays_of_many_axes(dev, name):
    for axes in ((0,), (-1,), (8, 0, 4)):
        x = numbers((2,) * 10, "float32").transpose(9, 1, 3, 5, 7, 0, 2, 4, 6, 8)
        given = (await dev.to_device(x.transpose(5, 1, 6, 2, 7, 3, 8, 4, 9, 0))).transpose(9, 1, 3, 5, 7, 0, 2, 4, 6, 8)
        assert given.strides == x.strides
        result = await getattr(dev.fft, name)(given, axes=axes)
        assert_near(await result.to_host(), exact(name, x, axes=axes), 8)


async def test_arrays_of_too_many_axes_are_refused(dev):
    order = (*range(19, -1, -2), *range(0, 20, 2))
    x = dev.zeros((2,) * 20, "float32").transpose(*order)
    before = submitted(dev)
    with pytest.raises(InvalidArgument, match="too many axes to be copied"):
        await dev.fft.fft(x)
    assert submitted(dev) == before
    assert (await dev.fft.fft(dev.zeros((2,) * 20, "float32"))).shape == (2,) * 20


@pytest.mark.parametrize("name", ["fft", "rfft", "irfft"])
async def test_a_large_middle_axis_is_done_by_several_executions(dev, name, monkeypatch):
    """Instead of a copy to another layout and back, which would take longer."""
    monkeypatch.setattr(layouts, "_BYTES_OF_AN_EXECUTION", 64)
    transform_program.cache_clear()
    try:
        dtype = "float32" if name == "rfft" else "complex64"
        x = numbers((3, 8, 6, 2), dtype)
        given = await dev.to_device(x)
        for axis in (1, 2):
            result = await getattr(dev.fft, name)(given, axis=axis)
            assert_near(await result.to_host(), exact(name, x, axis=axis), 14)
    finally:
        transform_program.cache_clear()


# --- results ----------------------------------------------------------------------------------------------------------


@batched
async def test_a_result_is_written_to_out_and_out_is_returned(dev, batched):
    x = numbers((4, 6), "float32")
    given, out = await dev.to_device(x), dev.zeros((4, 4), "complex64")
    assert await ask(dev, batched, "fft.rfft", given, out=out) is out
    assert_near(await out.to_host(), exact("rfft", x), 6)
    real = dev.zeros((2, 6, 4), "float32").transpose(0, 2, 1)[1]
    assert await ask(dev, batched, "fft.irfft", out, out=real) is real
    assert_near(await real.to_host(), x.astype(float), 6)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("status", "text"),
    [(8, r"so many points.*CUFFT_INVALID_SIZE"), (5, "CUFFT_INTERNAL_ERROR")],
    ids=["a size", "an internal error, of which the driver knows nothing"],
)
async def test_a_refusal_of_the_library_says_what_it_does_not_support_and_harms_nothing(dev, status, text):
    x = await dev.to_device(numbers((4, 6), "float32"))
    inject(dev, "cufftMakePlanMany64", ReturnStatus(status))
    with pytest.raises(CommandFailed, match=text):
        await dev.fft.fft(x)
    assert dev.generation == 1
    assert_near(await (await dev.fft.fft(x)).to_host(), exact("fft", numbers((4, 6), "float32")), 6)
