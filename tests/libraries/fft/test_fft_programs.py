"""What a transform comes to: which passes of cuFFT, and which copies beside them. Nothing here is run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from atomr_trio._arrays.layout import contiguous_strides
from atomr_trio._wire.programs import Arrange, Call, Launch, Most, Program, Query, Room, Set
from atomr_trio.libraries.fft.axes import transform_of
from atomr_trio.libraries.fft.layouts import Buffer, fit
from atomr_trio.libraries.fft.programs import transform_program
from atomr_trio.libraries.fft.records import Operation, Problem, Side
from support.fft import ONE_AXIS

MIB = 1 << 20


def side(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...] | None = None, *, aligned: bool = True) -> Side:
    return Side(dtype, shape, strides or contiguous_strides(shape, np.dtype(dtype).itemsize), 0, aligned)


def program(name: str, source: Side, *, in_place: bool = False, overwrites: bool = False, **given: Any) -> Program:
    lengths, axes = (given.get("n"), given.get("axis", -1)) if name in ONE_AXIS else (given.get("s"), given.get("axes"))
    transform = transform_of(name, source.dtype, source.shape, lengths, axes, given.get("norm"))
    target = source if in_place else side(transform.dtype, transform.shape)
    return transform_program(
        Problem(transform.operations, source, target, transform.scale, transform.conjugated, in_place, overwrites)
    )


def steps(made: Program) -> str:
    """The steps of an execution: c for a copy, h for the kernel before a transform to real numbers, t for a transform.

    A bar is before the bytes of the workspace beside the work area, if there are any.
    """
    letters = {Arrange: "c", Launch: "h", Call: "t"}
    found = "".join(letters[type(step)] for step in made.execute if type(step) is not Set)
    pieces = sum(sum(map(int, step.pieces[1:])) for step in made.make if isinstance(step, Room))
    return f"{found}|{pieces}" if pieces else found


IMAGES = side("complex64", (100, 30, 40))

PROGRAMS: dict[str, tuple[str, Program]] = {
    "a contiguous array": ("t", program("fft", IMAGES)),
    "one that is scaled in place behind": ("tc", program("ifft", IMAGES)),
    "in place": ("t", program("fft", IMAGES, in_place=True)),
    "the last two axes": ("t", program("fftn", IMAGES, axes=(1, 2))),
    "the first axis": ("t", program("fft", IMAGES, axis=0)),
    "all axes": ("t", program("fftn", IMAGES)),
    "the outer two axes": ("t", program("fftn", IMAGES, axes=(0, 2))),
    "four axes in two passes, the second in place": ("tt", program("fftn", side("complex64", (8, 9, 10, 11)))),
    "the middle of a small array is copied to the end and back": ("ctc|960000", program("fft", IMAGES, axis=1)),
    "the middle of a large one is done in parts": (
        "t" * 8,
        program("fft", side("complex64", (8, MIB // 32, 128)), axis=1),
    ),
    "real numbers": ("t", program("rfft", side("float32", (100, 40)))),
    "real numbers of two axes": ("t", program("rfftn", side("float32", (100, 30, 40)), axes=(1, 2))),
    "real numbers whose halved axis is not the last": ("tt", program("rfftn", side("float32", (30, 40)), axes=(1, 0))),
    "a spectrum is copied, with its scale": ("cht|16800", program("irfft", side("complex64", (100, 21)))),
    "a spectrum of images": ("cht|504000", program("irfftn", side("complex64", (100, 30, 21)), axes=(1, 2))),
    "a spectrum that may be lost": (
        "ht",
        program("irfft", side("complex64", (100, 21)), overwrites=True, norm="forward"),
    ),
    "a spectrum of four axes needs no copy": ("thtc|27648", program("irfftn", side("complex64", (8, 9, 8, 6)))),
    "half a signal is conjugated by the copy": ("cht|16800", program("hfft", side("complex64", (100, 21)))),
    "the half of a spectrum of a signal": ("tc", program("ihfft", side("float32", (100, 40)))),
    "integers are converted to where the result comes to lie": ("ct", program("fft", side("int16", (100, 40)))),
    "integers to real transforms": ("ct|32000", program("rfft", side("int16", (100, 40)))),
    "zeros are added there": ("ct", program("fft", IMAGES, n=50)),
    "what is left out is not copied": ("t", program("fft", IMAGES, n=30)),
    "a real array that is not aligned": ("ct|16000", program("rfft", side("float32", (100, 40), aligned=False))),
    "a view that is spread": ("t", program("fft", side("complex64", (100, 40), (1280, 16)))),
    "a view backwards": ("ct", program("fft", side("complex64", (100, 40), (320, -8)))),
    "a transposed array": ("t", program("fft", side("complex64", (100, 40), (8, 800)))),
    "a repeated array": ("ct", program("fft", side("complex64", (100, 40), (0, 8)))),
    "one point is only copied": ("c", program("fft", side("float32", (100, 1)))),
    "one real number is the real part": ("c", program("irfft", side("complex64", (100, 7)), n=1)),
    "nothing at all": ("", program("fft", side("complex64", (100, 1)), in_place=True)),
    "an axis that is named twice": ("tt|960000", program("fftn", IMAGES, axes=(2, 2))),
}


@pytest.mark.parametrize(("expected", "made"), PROGRAMS.values(), ids=PROGRAMS.keys())
def test_the_steps_of_a_transform(expected, made):
    assert steps(made) == expected


def test_equal_passes_share_a_plan_of_cufft_and_all_share_a_work_area():
    made = program("fft", side("complex64", (8, MIB // 32, 128)), axis=1)
    assert sum(isinstance(step, Query) for step in made.make) == 1
    made = program("fftn", IMAGES, axes=(2, 2))
    assert sum(isinstance(step, Query) for step in made.make) == 1
    made = program("fftn", side("complex64", (8, 9, 10, 11)))
    (room,) = (step for step in made.make if isinstance(step, Room))
    assert sum(isinstance(step, Query) for step in made.make) == 2
    assert isinstance(room.pieces[0], Most)
    assert len(room.pieces[0].sizes) == 3


def test_a_plan_counts_the_kernels_that_it_may_launch():
    entries = [program("fft", side("complex64", (4, n))).entries for n in (64, 1 << 20, 131)]
    assert entries[0] == 1
    assert entries[0] < entries[1] < entries[2]


def test_a_layout_covers_each_element_once():
    """Against the formula of the library's documentation, for layouts that it takes."""
    shape, dtype = (3, 4, 5, 6), "complex64"
    for order in ((0, 1, 2, 3), (3, 1, 0, 2), (1, 0, 3, 2)):
        strides = np.empty(shape, dtype).transpose(order).copy().transpose(np.argsort(order)).strides
        array = Buffer(Buffer.given(0, side(dtype, shape, strides), owned=False).place, dtype, shape, strides)
        for axes in ((0,), (3,), (2, 3), (0, 1), (1, 2, 3), (0, 2)):
            found = fit(array, array, [Operation("c", axis, shape[axis], inverse=False) for axis in axes])
            if found is None:
                continue
            layout, places = found.layout, []
            for read, written in found.offsets:
                assert read == written
                for b in range(layout.batch):
                    for index in np.ndindex(layout.lengths):
                        at = 0
                        for length, i in zip(layout.source_embedding, index, strict=True):
                            at = at * length + i
                        places.append(read // 8 + b * layout.source_distance + at * layout.source_stride)
            assert sorted(places) == list(range(math.prod(shape)))
