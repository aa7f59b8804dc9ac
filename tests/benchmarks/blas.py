"""Products of matrices beside the bare cuBLAS, CuPy and PyTorch: `make bench-blas`.

Square products of growing size in several arithmetics, and a stack of small ones. Each subject has a process of its
own, computes the same product again and again on memory that it holds, waits once for all of them, and tells the time
of one. The figures belong to this machine; only ratios within one run carry over to others.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import trio
from speed_report import (
    CUPY,
    HEADER,
    OURS,
    RAW,
    TORCH,
    Absent,
    Measure,
    NotMeasured,
    Table,
    Verdict,
    comparisons,
    line,
    picture,
)

import atomr_trio
from atomr_trio._cli.progress import Progress

Backend = Literal["cuda", "sim"]


@attrs.frozen
class Arithmetic:
    """One kind of product: the type of its elements, and how it is computed."""

    name: str
    dtype: str
    compute: str | None = None


KINDS: Final = (
    Arithmetic("float32", "float32"),
    Arithmetic("TF32", "float32", "tf32"),
    Arithmetic("bfloat16", "bfloat16"),
    Arithmetic("float16", "float16"),
    Arithmetic("float64", "float64"),
)
SIZES: Final = (256, 1024, 2048, 4096, 8192)
TINY_SIZES: Final = (16, 32)
LIMIT: Final = 1.02
JUDGED_FROM: Final = 2048
SECONDS: Final = 0.05
"""About so long each repetition computes."""
REPETITIONS: Final = 7

_DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
_COMPUTE = {("float32", None): 68, ("float32", "tf32"): 77, ("bfloat16", None): 68, ("float16", None): 68}
_COMPUTE[("float64", None)] = 70

Repeat = Callable[[int], None]
"""Computes a product so many times, and waits for them."""


def row(kind: Arithmetic, size: int) -> str:
    return f"gemm {kind.name}, {size} x {size}"


def timed(what: str, who: str, repeat: Repeat) -> Measure:
    """The time of one product, by several repetitions of many."""
    repeat(2)
    started = time.perf_counter()
    repeat(3)
    count = min(max(int(SECONDS * 3 / (time.perf_counter() - started)), 1), 400)
    repeat(count)
    return Measure(what, who, tuple(once(repeat, count) for _ in range(REPETITIONS)))


def once(repeat: Repeat, count: int) -> float:
    started = time.perf_counter()
    repeat(count)
    return (time.perf_counter() - started) / count


# --- the subjects -----------------------------------------------------------------------------------------------------


async def ours(backend: Backend, sizes: tuple[int, ...]) -> None:
    async with atomr_trio.open_device(0, backend=backend) as dev:
        for kind in KINDS:
            for size in sizes:
                a, b, out = (dev.full((size, size), 1, kind.dtype) for _ in range(3))

                async def many(count: int, a: Any = a, b: Any = b, out: Any = out, kind: Arithmetic = kind) -> None:
                    async with dev.batch() as batch:
                        for _ in range(count):
                            batch.blas.gemm(a, b, out=out, compute=kind.compute)  # type: ignore[arg-type]

                tell(await timed_async(row(kind, size), OURS, many))


async def timed_async(what: str, who: str, many: Callable[[int], Awaitable[None]]) -> Measure:
    """As `timed`, for what is awaited."""
    await many(2)
    started = time.perf_counter()
    await many(3)
    count = min(max(int(SECONDS * 3 / (time.perf_counter() - started)), 1), 400)
    await many(count)
    values = []
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        await many(count)
        values.append((time.perf_counter() - started) / count)
    return Measure(what, who, tuple(values))


def raw(sizes: tuple[int, ...]) -> None:
    """`cublasGemmEx` by ctypes, in this process, on a stream of its own."""
    from atomr_cuda import cublas, driver

    context, stream, handle = driver.CUcontext(), driver.CUstream(), cublas.cublasHandle_t()
    driver.cuInit(0)
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    driver.cuCtxSetCurrent(context)
    driver.cuStreamCreate(ctypes.byref(stream), 1)
    cublas.cublasCreate(ctypes.byref(handle))
    cublas.cublasSetStream(handle, stream)
    gemm = cublas.cublasGemmEx_64.bind()
    for kind in KINDS:
        scalar = ctypes.c_double if kind.dtype == "float64" else ctypes.c_float
        one, zero = scalar(1), scalar(0)
        number, compute = _DATA_TYPES[kind.dtype], _COMPUTE[kind.dtype, kind.compute]
        for size in sizes:
            memory = [driver.CUdeviceptr() for _ in range(3)]
            for each in memory:
                driver.cuMemAlloc(ctypes.byref(each), size * size * 8)
                driver.cuMemsetD8(each, 0x3C, size * size * 8)
            a, b, c = (each.value for each in memory)
            call = functools.partial(
                *(gemm, handle, 0, 0, size, size, size, ctypes.addressof(one), a, number, size, b, number, size),
                *(ctypes.addressof(zero), c, number, size, compute, -1),
            )

            def repeat(count: int, call: Callable[[], int] = call) -> None:
                for _ in range(count):
                    if call():
                        raise SystemExit("cublasGemmEx failed")
                driver.cuStreamSynchronize(stream)

            tell(timed(row(kind, size), RAW, repeat))
            for each in memory:
                driver.cuMemFree(each)


def cupy_subject(sizes: tuple[int, ...]) -> None:
    import cupy

    for kind in KINDS:
        if kind.dtype == "bfloat16" or kind.compute is not None:
            continue  # it has no bfloat16, and no way to ask for TF32 in the process
        for size in sizes:
            a, b, out = (cupy.ones((size, size), kind.dtype) for _ in range(3))

            def repeat(count: int, a: Any = a, b: Any = b, out: Any = out) -> None:
                for _ in range(count):
                    cupy.matmul(a, b, out=out)
                cupy.cuda.get_current_stream().synchronize()

            tell(timed(row(kind, size), CUPY, repeat))


def torch_subject(sizes: tuple[int, ...]) -> None:
    import torch

    for kind in KINDS:
        torch.backends.cuda.matmul.allow_tf32 = kind.compute == "tf32"
        for size in sizes:
            a, b, out = (torch.ones((size, size), dtype=getattr(torch, kind.dtype), device="cuda") for _ in range(3))

            def repeat(count: int, a: Any = a, b: Any = b, out: Any = out) -> None:
                for _ in range(count):
                    torch.matmul(a, b, out=out)
                torch.cuda.synchronize()

            tell(timed(row(kind, size), TORCH, repeat))


def tell(measure: Measure) -> None:
    print(json.dumps({"what": measure.what, "who": measure.who, "values": list(measure.values)}), flush=True)


def subject(who: str, backend: Backend, sizes: tuple[int, ...]) -> None:
    if who == OURS:
        trio.run(ours, backend, sizes)
    else:
        {RAW: raw, CUPY: cupy_subject, TORCH: torch_subject}[who](sizes)


# --- the run ----------------------------------------------------------------------------------------------------------


def measured_by(who: str, backend: Backend) -> Iterator[Measure | Absent]:
    command = [sys.executable, __file__, "--subject", who, "--backend", backend]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stderr is not None
    for text in child.stdout:
        yield Measure(**json.loads(text))
    last = (child.stderr.read().strip().splitlines() or [""])[-1]
    if child.wait():
        yield Absent("gemm", who, last)


def verdicts(table: Table) -> Iterator[Verdict]:
    """No product from a certain size on takes more than 2 % over the bare call."""
    for kind in KINDS:
        for size in SIZES:
            if size >= JUDGED_FROM:
                what = row(kind, size)
                name = f"{what}: {LIMIT} x cublasGemmEx"
                try:
                    figure, limit = table.median(what, OURS), LIMIT * table.median(what, RAW)
                except NotMeasured as missing:
                    yield Verdict(name, None, missing=f"not measured: {missing}")
                else:
                    yield Verdict(name, figure <= limit, figure, limit)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", choices=("cuda", "sim"), default="cuda")
    parser.add_argument("--svg", type=Path, help="draw the picture there")
    parser.add_argument("--subject", choices=(OURS, RAW, CUPY, TORCH), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sizes = SIZES if arguments.backend == "cuda" else TINY_SIZES
    if arguments.subject:
        subject(arguments.subject, arguments.backend, sizes)
        return
    table, subjects = Table(), (OURS, RAW, CUPY, TORCH) if arguments.backend == "cuda" else (OURS,)
    progress = Progress("measuring", len(subjects), sys.stderr, unit="subject")
    print(HEADER)
    for done, who in enumerate(subjects, start=1):
        for each in measured_by(who, arguments.backend):
            if isinstance(each, Absent):
                print(f"  {each.who} was not measured to its end: {each.reason}")
            else:
                table.measures.append(each)
                print(line(each), flush=True)
        progress.update(done)
    progress.finish()
    print("\ntimes as long as ours, by medians:", *comparisons(table), sep="\n")
    judgements = list(verdicts(table)) if arguments.backend == "cuda" else []
    print(*judgements, sep="\n")
    if arguments.svg:
        title = f"Products of matrices, medians of {REPETITIONS}"
        arguments.svg.write_text("\n".join(picture(table, title, judgements)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
