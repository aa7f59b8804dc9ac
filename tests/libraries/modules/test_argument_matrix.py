"""The tables of the guide that say which arguments a parameter takes, cell by cell, on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_trio import Device, InvalidArgument, NvrtcOptions, strided
from support import ROOT
from support.kernel_bench import NO_HEADERS, cuda_headers

PAGE = ROOT / "docs" / "guide" / "arguments.md"
SOURCE = """
#include <cuda_fp16.h>
#include <cuda/std/complex>
struct Body { float x, y, z; double mass; };
enum Mode : int { NEAR, FAR };
enum class Small : unsigned char { ONE };
template <class T> using complex = cuda::std::complex<T>;
"""
NUMBERS: dict[str, Any] = {
    "`True`": True,
    "`1`": 1,
    "`-1`": -1,
    "`200`": 200,
    "`2**31`": 2**31,
    "`2**24 + 1`": 2**24 + 1,
    "`0.1`": 0.1,
    "`np.float32(0.1)`": np.float32(0.1),
    "`np.float64(0.1)`": np.float64(0.1),
    "`np.float16(0.5)`": np.float16(0.5),
    "`np.complex64(1j)`": np.complex64(1j),
    "its bytes": bytes,
    "an array": np.zeros(48, np.float32),
}
"""By the heads of the columns: what is given by value; `bytes` stands for as many zeros as the parameter has bytes."""
DTYPES = ("bool", "int8", "uint8", "float16", "int32", "uint32", "float32", "int64", "uint64", "float64", "complex64")
TAKEN = "yes"


def tables() -> list[list[list[str]]]:
    """The cells of each table of the page whose first head is "a parameter"; the heads come first."""
    found: list[list[list[str]]] = []
    inside = False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and not inside and cells[0] == "a parameter":
            found.append([])
            inside = True
        elif not cells:
            inside = False
        if inside and not set(line) <= {"|", "-", " ", ":"}:
            found[-1].append(cells)
    return found


def array_of(dev: Device, name: str) -> Any:
    """What the head of a column of arrays stands for: 48 elements, or a column of them."""
    if name == "`0`":
        return 0
    if name in DTYPES:
        return dev.zeros(48, name)
    column = dev.zeros((6, 8), np.float32)[:, 1]
    return strided(column) if name.startswith("`strided") else column


def _named(declared: str) -> str:
    return declared.replace("(*)", "(*a)") if "(*)" in declared else f"{declared} a"


async def kernels(dev: Device, rows: list[list[str]]) -> list[Any]:
    """A kernel for the parameter of each row."""
    if cuda_headers() is None:
        pytest.skip(NO_HEADERS)
    declared = [row[0].strip("`") for row in rows]
    source = SOURCE + "".join(
        f'extern "C" __global__ void k{i}({_named(each)}) {{}}\n' for i, each in enumerate(declared)
    )
    program = await dev.nvrtc.compile_program(source, NvrtcOptions(bundled_headers=True))
    return [program[f"k{i}"] for i in range(len(rows))]


async def takes(kernel: Any, argument: Any) -> bool:
    try:
        await kernel.launch(1, 1, argument)
    except InvalidArgument:
        return False
    return True


def argument_for(given: Any, dev: Device, kernel: Any) -> Any:
    if given is bytes:
        return bytes(kernel.parameters[0].size)
    return dev.zeros(given.shape, given.dtype) if isinstance(given, np.ndarray) else given


@pytest.mark.long
async def test_what_a_parameter_takes_by_value_is_what_the_table_says(dev: Device) -> None:
    heads, *rows = tables()[0]
    assert heads[1:] == list(NUMBERS)
    for row, kernel in zip(rows, await kernels(dev, rows), strict=True):
        assert kernel.signature.typed
        for head, cell in zip(heads[1:], row[1:], strict=True):
            taken = await takes(kernel, argument_for(NUMBERS[head], dev, kernel))
            assert cell == (TAKEN if taken else ""), f"{row[0]} and {head}"


@pytest.mark.long
async def test_which_arrays_a_pointer_takes_is_what_the_table_says(dev: Device) -> None:
    heads, *rows = tables()[1]
    assert set(DTYPES) < set(heads)
    for row, kernel in zip(rows, await kernels(dev, rows), strict=True):
        assert kernel.signature.typed
        for head, cell in zip(heads[1:], row[1:], strict=True):
            assert cell == (TAKEN if await takes(kernel, array_of(dev, head)) else ""), f"{row[0]} and {head}"


async def test_what_is_refused_says_what_to_write_instead(dev: Device) -> None:
    source = 'extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {}'
    saxpy = await dev.nvrtc.compile(source, "saxpy")
    assert repr(saxpy) == f"<Kernel saxpy(float a, const float *x, float *y, int n), {saxpy.module.target}>"
    x, wide = dev.zeros(8, np.float32), dev.zeros(8, np.float64)
    table = dev.zeros((4, 4), np.float32)
    for arguments, said in (
        ((1.0, wide, x, 8), r"argument 1 .*`const float \*x`, got an array of np.float64(.|\n)*x\.view\('float32'\)"),
        ((1.0, table.T, x, 8), r"argument 1 .*strides are \(4, 16\)(.|\n)*strided\(x\)"),
        ((1.0, x, table[:, 0], 4), r"argument 2 .*`float \*y`(.|\n)*strided\(x\)"),
        ((1.0, x, x, 8.0), r"argument 3 .*`int n`, got float 8.0(.|\n)*pass int\(x\)"),
        ((1.0, x, x, x), r"argument 3 .*a device array can only go where the kernel takes a pointer"),
        ((1.0, x, x), r"takes 4 arguments, got 3(.|\n)*for `float a`; .*for `int n`"),
        ((1j, x, x, 8), r"argument 0 .*`float a`, got complex"),
        ((1.0, None, x, 8), r"null pointer is the integer 0"),
        ((1.0, -1, x, 8), r"argument 1 .*got int -1"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            await saxpy.launch(1, 1, *arguments)
        with pytest.raises(InvalidArgument, match=said):
            saxpy.prepare(1, 1, *arguments)
        async with dev.batch() as batch:
            with pytest.raises(InvalidArgument, match=said):
                batch.launch(saxpy, 1, 1, *arguments)
        with pytest.raises(InvalidArgument, match=said):
            await dev.capture(lambda recorder, given=arguments: recorder.launch(saxpy, 1, 1, *given))


async def test_what_is_refused_in_a_batch_is_refused_warm_too(dev: Device) -> None:
    """The short way has its own checks: after a launch that fits, each of the others is refused as before it."""
    source = 'extern "C" __global__ void k(float *x, float2 *p, const int *i, unsigned n, bool b, signed char c) {}'
    kernel = await dev.nvrtc.compile(source, "k")
    x, wide, i = dev.zeros(48, np.float32), dev.zeros(48, np.float64), dev.zeros(48, np.int32)
    right = (x, x, i, 7, True, -1)
    wrong = [
        *((0, each) for each in (wide, i, x[::2], dev.zeros((4, 4), np.float32).T, "x", 1.0, -1, 2**64)),
        *((1, each) for each in (wide, x[1:], x[:3], x[::2])),
        *((2, each) for each in (x, i[::2], None)),
        *((3, each) for each in (-1, 2**32, 1.0, x, np.int64(-1))),
        *((4, each) for each in (2, -1, 1.0, x)),
        *((5, each) for each in (200, -129, 1.0)),
    ]
    async with dev.batch() as batch:
        for place, each in wrong:
            for _ in range(3):
                batch.launch(kernel, 1, 1, *right)
            with pytest.raises(InvalidArgument, match=f"argument {place} "):
                batch.launch(kernel, 1, 1, *right[:place], each, *right[place + 1 :])
        for place, each in ((0, strided(x[::2])), (1, dev.zeros(8, np.complex64)), (1, x[2:]), (2, 0), (4, False)):
            batch.launch(kernel, 1, 1, *right[:place], each, *right[place + 1 :])
    for place, each in wrong:
        await kernel.launch(1, 1, *right)
        with pytest.raises(InvalidArgument, match=f"argument {place} "):
            await kernel.launch(1, 1, *right[:place], each, *right[place + 1 :])


def test_the_page_has_both_tables() -> None:
    assert [len(table) > 15 for table in tables()] == [True, True]
