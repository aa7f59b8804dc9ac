"""Transforms are known by the forms of their arrays: a repetition on others is what planning it anew would be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_trio import InvalidArgument
from atomr_trio._calls.known import _repeatable, form_of
from atomr_trio._device.device import core_of
from atomr_trio._memory.arena import ALIGNMENT
from atomr_trio._wire.protocol import LANE_COMPUTE

N = 8
COMPLEX, REAL = np.dtype(np.complex64), np.dtype(np.float32)
VERBS: dict[str, tuple[np.dtype[Any], ...]] = {
    **dict.fromkeys(("fft", "ifft", "fft2", "ifft2", "fftn", "hfft", "irfft", "irfftn", "fftshift"), (COMPLEX,)),
    **dict.fromkeys(("rfft", "rfft2", "rfftn", "ihfft", "ifftshift"), (REAL,)),
    "fftconvolve": (REAL, REAL),
}


def plain(dev: Any, dtype: Any) -> Any:
    return dev.empty((N, N), dtype)


def behind(dev: Any, dtype: Any) -> Any:
    return dev.empty((N + 3, N), dtype)[3:]


def strided(dev: Any, dtype: Any) -> Any:
    return dev.empty((N, 2 * N), dtype)[:, ::2]


def turned(dev: Any, dtype: Any) -> Any:
    return dev.empty((N, N), dtype)[::-1, ::-1]


def transposed(dev: Any, dtype: Any) -> Any:
    return dev.empty((N, N), dtype).T


class Planned:
    """A call that was planned, and is never sent."""

    def __init__(self, dev: Any, verb: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._planner = dev.fft._planner()
        self.plan = getattr(type(self._planner), verb).plan
        self.result = self.plan(self._planner, *arguments, **keywords)
        self.requests, self.made = self._planner._requests, self._planner._made


@pytest.mark.halved
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("layout", [plain, behind, strided, turned, transposed])
@pytest.mark.parametrize("out", ["new", "its own", "in place"])
async def test_a_repetition_on_other_arrays_is_what_planning_it_anew_would_be(dev, verb, layout, out):
    calls = []
    for gap in (0, 3):
        seat = dev.empty((gap + 1) * ALIGNMENT, np.uint8)
        arrays = tuple(layout(dev, dtype) for dtype in VERBS[verb])
        keywords: dict[str, Any] = {}
        if out == "in place":
            keywords["out"] = arrays[0]
        elif out == "its own":
            template = Planned(dev, verb, arrays, {}).result
            keywords["out"] = dev.empty(template.shape, template.dtype)
        calls.append((seat, arrays, keywords))
    (_, arrays, keywords), (_, others, more) = calls
    try:
        first = Planned(dev, verb, arrays, keywords)
    except (InvalidArgument, TypeError):
        assert out != "new", "only some take an array for the result, or their own"
        return
    given = form_of(first.plan, arrays, keywords)
    again = form_of(first.plan, others, more)
    assert given is not None
    assert again is not None
    assert given[0] == again[0]
    kept = _repeatable(given[1], first.requests, first.made, first.result)
    assert kept is not None
    request, result = kept.again(core_of(dev), again[1], LANE_COMPUTE)
    if out == "new":
        result.free()
    anew = Planned(dev, verb, others, more)
    (expected,) = anew.requests
    assert (result.address, result.shape, result.dtype) == (anew.result.address, anew.result.shape, anew.result.dtype)
    assert request.payload == expected.payload
    assert [role for _, role in request.operands] == [role for _, role in expected.operands]
    blocks = {block.address for block, _ in request.operands}
    assert blocks == {block.address for block, _ in expected.operands}


@pytest.mark.parametrize("batched", [False, True])
async def test_transforms_of_results_of_transforms_are_right(dev, batched):
    """Each is of memory that the one before has just been given."""
    rng = np.random.default_rng(3)
    numbers = (rng.standard_normal((N, N)) + 1j * rng.standard_normal((N, N))).astype(np.complex64)
    x = await dev.to_device(numbers)
    for _ in range(4):
        each = x
        if batched:
            async with dev.batch() as batch:
                for _ in range(6):
                    each = batch.fft.ifft(batch.fft.fft(each))
        else:
            for _ in range(6):
                each = await dev.fft.ifft(await dev.fft.fft(each))
        np.testing.assert_allclose(await each.to_host(), numbers, atol=1e-4)
