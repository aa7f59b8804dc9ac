"""`python -m atomr_trio run`: a kernel of a CUDA file on .npy arrays, without a line of Python.

The kernel's arguments are bound in the order in which --in, --out, --inout and --arg stand on the command line.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import numpy.typing as npt

import atomr_trio
from atomr_trio._cli.choice import Choice, choose, device_argument
from atomr_trio._cli.output import what_hinders_writing

if TYPE_CHECKING:
    from atomr_trio import Device, DeviceArray

_OUTPUT = re.compile(r"(?P<name>[^=]+)=\s*(?P<dtype>\w+)\s*\[(?P<shape>[\d\s]+(,[\d\s]+)*)\]\s*")
_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|\d+)[uUlL]*")
_FLOAT_SUFFIXES = "fF"


class BadCommandLine(Exception):
    """The command line does not fit the content of the files; exit status 2."""


@attrs.frozen
class Operand:
    """One argument of the kernel: a number, or an array that is read, written, or both."""

    number: int | float | None = None
    read_from: Path | None = None
    write_to: Path | None = None
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()


def dimensions(text: str) -> tuple[int, ...]:
    """Read `256`, `16,16` or `8,8,4`."""
    parts = text.split(",")
    if len(parts) > 3 or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not one to three positive numbers with commas between them")
    return tuple(int(part) for part in parts)


def input_operand(text: str) -> Operand:
    """Read `x.npy`: an array that the kernel only reads."""
    return Operand(read_from=Path(text))


def inout_operand(text: str) -> Operand:
    """Read `x.npy`, which is written back, or `y=x.npy`: start from x.npy and write y.npy."""
    name, equals, source = text.partition("=")
    return Operand(read_from=Path(source if equals else name), write_to=npy_path(name))


def output_operand(text: str) -> Operand:
    """Read `y=float32[480,640]`: an array of zeros before the launch, y.npy after it."""
    match = _OUTPUT.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} does not have the form y=float32[480,640]")
    try:
        shape = tuple(int(side) for side in match["shape"].split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} does not have the form y=float32[480,640]") from None
    return Operand(write_to=npy_path(match["name"].strip()), dtype=dtype_named(match["dtype"]), shape=shape)


def dtype_named(name: str) -> np.dtype[Any]:
    """Read `float32`, or a type of ml_dtypes such as `bfloat16`."""
    with contextlib.suppress(TypeError):
        return np.dtype(name)
    try:
        narrow: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    except ImportError:
        install = 'pip install "atomr-trio[bfloat16]"'
        text = f"{name!r} is not a dtype of numpy; for those of ml_dtypes: {install}"
        raise argparse.ArgumentTypeError(text) from None
    except (AttributeError, TypeError):
        raise argparse.ArgumentTypeError(f"{name!r} is not a dtype of numpy or ml_dtypes") from None
    return narrow


def number_operand(text: str) -> Operand:
    """Read `3`, `0x10`, `2.5`, `2.5f` or `1e-3`; the kernel's own parameter determines width and range."""
    try:
        if _INTEGER.fullmatch(text):
            return Operand(number=int(text.rstrip("uUlL"), 0))
        return Operand(number=float(text.rstrip(_FLOAT_SUFFIXES) if text[-1:] in _FLOAT_SUFFIXES else text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither an integer nor a floating point number") from None


def npy_path(name: str) -> Path:
    """Return the file's name: `y` and `y.npy` both mean the file y.npy."""
    return Path(name if name.endswith(".npy") else name + ".npy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_launch_arguments(parser, required=True)
    parser.add_argument("--device", type=device_argument, metavar="0|sim", help="default: GPU 0 if it works, else sim")


def add_launch_arguments(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add all arguments but the device; `required` tells whether there must be a kernel to launch."""
    parser.add_argument("file", type=Path, help="the CUDA C++ source")
    parser.add_argument(
        "--kernel", required=required, metavar="NAME", help='an extern "C" kernel, or a C++ name expression'
    )
    parser.add_argument(
        "--grid", required=required, type=dimensions, metavar="G[,G,G]", help="blocks in each direction"
    )
    parser.add_argument(
        "--block", required=required, type=dimensions, metavar="B[,B,B]", help="threads in each direction"
    )
    parser.add_argument("--shared", type=int, default=0, metavar="BYTES", help="dynamic shared memory of a block")
    parser.add_argument("-D", dest="defines", action="append", default=[], metavar="NAME[=VALUE]", help="a macro")
    parser.add_argument("-I", dest="include_paths", action="append", default=[], metavar="FOLDER", help="for headers")
    operands = parser.add_argument_group("arguments of the kernel, in its own order")
    for flag, kind, metavar, text in (
        ("--in", input_operand, "X.npy", "an array that is only read"),
        (
            "--inout",
            inout_operand,
            "[Y=]X.npy",
            "an array that is read and written; the result goes to Y.npy or back to X.npy",
        ),
        (
            "--out",
            output_operand,
            "Y=DTYPE[N,M]",
            "an array of zeros whose result goes to Y.npy; bfloat16 is a DTYPE, too",
        ),
        ("--arg", number_operand, "NUMBER", "an integer or a floating point number; --arg=-2.5f when it is negative"),
    ):
        operands.add_argument(flag, dest="operands", action="append", type=kind, metavar=metavar, help=text)


def read_arrays(operands: Sequence[Operand]) -> list[npt.NDArray[Any] | None]:
    """Load every input before a device is opened, so that a missing file costs nothing."""
    arrays: list[npt.NDArray[Any] | None] = []
    for operand in operands:
        if operand.read_from is None:
            arrays.append(None)
            continue
        try:
            arrays.append(np.load(operand.read_from, allow_pickle=False))
        except OSError as error:
            raise BadCommandLine(f"cannot read {operand.read_from}: {error.strerror or error}") from error
        except ValueError as error:
            raise BadCommandLine(f"{operand.read_from} is not a .npy file with plain numbers: {error}") from error
    return arrays


def check_outputs(operands: Sequence[Operand]) -> None:
    """Refuse a result that could not be written, before the kernel runs that computes it."""
    paths = [operand.write_to for operand in operands if operand.write_to is not None]
    for path in paths:
        problem = what_hinders_writing(path)
        if problem is not None:
            raise BadCommandLine(problem)
    twice = [path for path in paths if paths.count(path) > 1]
    if twice:
        raise BadCommandLine(f"two results would be written to {twice[0]}: give them different names")


def read_source(path: Path) -> str:
    """Return the text of the CUDA file."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadCommandLine(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def macros(defines: Sequence[str]) -> dict[str, str]:
    """Read `-D N=3`, and `-D FAST`, which means FAST=1 as it does for a C compiler."""
    pairs = (define.partition("=") for define in defines)
    return {name: value if equals else "1" for name, equals, value in pairs}


async def bind(dev: Device, operands: Sequence[Operand], arrays: Sequence[npt.NDArray[Any] | None]) -> list[object]:
    """Return the launch's arguments: numbers unchanged, arrays on the device, read-only ones marked so."""
    bound: list[object] = []
    for operand, array in zip(operands, arrays, strict=True):
        if operand.number is not None:
            bound.append(operand.number)
        elif operand.dtype is not None:
            bound.append(dev.zeros(operand.shape, operand.dtype))
        else:
            assert array is not None  # the other inputs were read by `read_arrays`
            on_device = await dev.to_device(array)
            bound.append(on_device if operand.write_to else atomr_trio.read_only(on_device))
    return bound


async def write_back(operand: Operand, array: DeviceArray) -> None:
    """Fetch one result and write its file."""
    assert operand.write_to is not None  # read-only arrays are bound by `read_only`
    result = await array.to_host()
    np.save(operand.write_to, result, allow_pickle=False)
    extremes = f", {result.min()} to {result.max()}" if result.size else ""
    print(f"{operand.write_to}: {result.dtype}{list(result.shape)}{extremes}")
    if result.dtype.type.__module__ == "ml_dtypes":
        name = f"ml_dtypes.{result.dtype.name}"
        print(f"{operand.write_to}: .npy files do not name this dtype; read it by np.load(...).view({name})")


def compile_options(arguments: argparse.Namespace, *, bundled_headers: bool = False) -> atomr_trio.NvrtcOptions:
    """Return the compile options of the command line."""
    return atomr_trio.NvrtcOptions(
        name=str(arguments.file),
        defines=macros(arguments.defines),
        include_paths=[str(arguments.file.parent), *arguments.include_paths],
        name_expressions=[arguments.kernel] if arguments.kernel else [],
        bundled_headers=bundled_headers,
    )


async def launch(
    dev: Device,
    arguments: argparse.Namespace,
    source: str,
    options: atomr_trio.NvrtcOptions,
    arrays: Sequence[npt.NDArray[Any] | None],
) -> None:
    """Compile, launch, and write the results."""
    operands: Sequence[Operand] = arguments.operands or ()
    kernel = await dev.nvrtc.compile(source, arguments.kernel, options=options)
    bound = await bind(dev, operands, arrays)
    started = time.perf_counter()
    await kernel.launch(arguments.grid, arguments.block, *bound, shared_bytes=arguments.shared)
    seconds = time.perf_counter() - started
    choice = Choice(dev.index, dev.backend)
    print(kernel.signature.described(arguments.kernel))
    print(f"{arguments.kernel} on {choice} ({dev.info.name}): {seconds * 1e3:.3f} ms, launch to result")
    for operand, value in zip(operands, bound, strict=True):
        if isinstance(value, atomr_trio.DeviceArray):
            await write_back(operand, value)


async def main(arguments: argparse.Namespace) -> int:
    """Run the kernel; return 2 when the command line was wrong, detected by argparse or by the device."""
    try:
        source, arrays = read_source(arguments.file), read_arrays(arguments.operands or ())
        check_outputs(arguments.operands or ())
        choice, why_not_a_gpu = await choose(arguments.device)
        if why_not_a_gpu is not None:
            print(f"using the simulator: {why_not_a_gpu}")
        async with atomr_trio.open_device(choice.index, backend=choice.backend) as dev:
            await launch(dev, arguments, source, compile_options(arguments), arrays)
    except (BadCommandLine, atomr_trio.InvalidArgument) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
