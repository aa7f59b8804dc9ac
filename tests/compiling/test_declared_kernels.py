"""Kernels that are declared in Python: a signature there, and a body in CUDA C++."""

from __future__ import annotations

import gc
import inspect
import linecache
import sys
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import trio
import trio.testing

import atomr_trio
from atomr_trio import (
    CompileError,
    ContextLost,
    InvalidArgument,
    NvrtcOptions,
    Overwrites,
    ReadOnly,
    StaleArray,
    StaleKernel,
    Writes,
    testing,
)
from atomr_trio._wire.protocol import Role
from atomr_trio.libraries.modules.kernel import ORDINARY
from support import chosen_backend

HOST = np.arange(8, dtype=np.float32)


@atomr_trio.kernel("""
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
""")
def saxpy(a: np.float32, x: ReadOnly[np.float32], y: Writes[np.float32], n: np.int32) -> None:
    """Add a * x to y."""


@atomr_trio.kernel(
    "y[threadIdx.x] = sine(x[threadIdx.x]);",
    preamble="""
__device__ __noinline__ float sine(float x) { return x + 1; }
""",
)
def step(x: ReadOnly[np.float32], y: Overwrites[np.float32]) -> None: ...


BROKEN = """
    int i = 0;
    y[i] = nothing;
"""


@atomr_trio.kernel(BROKEN)
def broken(y: Writes[np.float32]) -> None: ...


def line_of(text: str) -> int:
    lines = inspect.getsource(inspect.getmodule(line_of)).splitlines()  # type: ignore[arg-type]
    return next(number for number, line in enumerate(lines, 1) if text in line)


def declare(function: Any, body: str | None = "", **options: Any) -> atomr_trio.DeclaredKernel:
    return atomr_trio.kernel(body, **options)(function)


# ------------------------------------------------------------------------------------------------- on devices


async def test_a_declared_kernel_is_compiled_once_for_a_device_and_launched_as_others_are(dev):
    x, y = await dev.to_device(HOST), dev.zeros(8, np.float32)
    async with dev.events() as events:
        kernel = await saxpy.on(dev)
        assert type(kernel) is atomr_trio.Kernel
        assert kernel is await dev.nvrtc.kernel(saxpy)
        await kernel.launch(1, 8, 2.0, x, y, 8)
        await saxpy.launch(dev, 1, 8, 1.0, x, y, 8, hang_timeout=60.0)
        async with dev.batch() as batch:
            batch.launch(kernel, 1, 8, 1.0, x, y, 8)
        graph = await dev.capture(lambda recorder: recorder.launch(kernel, 1, 8, 1.0, x, y, 8))
        await graph.launch()
        assert (await y.to_host()).tolist() == (5 * HOST).tolist()
        await dev.nvrtc.compile('extern "C" __global__ void other() {}', "other")
        started = []
        async for event in events:
            started += [event.program] if isinstance(event, atomr_trio.CompileStarted) else []
            if len(started) == 2:
                break
    assert started == ["saxpy.cu", "kernel.cu"]


async def test_two_tasks_that_ask_at_once_get_the_same_kernel(dev):
    kernels = []

    async def ask() -> None:
        kernels.append(await step.on(dev))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        nursery.start_soon(ask)
    assert kernels[0] is kernels[1]


async def test_a_kernel_survives_a_loss_and_is_made_anew_when_its_module_was_unloaded(dev):
    x, y = await dev.to_device(HOST), dev.zeros(8, np.float32)
    kernel = await saxpy.on(dev)
    await dev.restart("for the test")
    assert await saxpy.on(dev) is kernel
    await kernel.module.unload()
    await saxpy.launch(dev, 1, 8, 1.0, x, y, 8)
    assert (await y.to_host()).tolist() == HOST.tolist()


async def test_in_the_strict_mode_a_kernel_of_a_lost_generation_is_made_anew(open_test_device):
    async with open_test_device(on_fault="stale") as dev:
        kernel = await saxpy.on(dev)
        await dev.restart("for the test")
        x, y = await dev.to_device(HOST), dev.zeros(8, np.float32)
        with pytest.raises(StaleKernel):
            await kernel.launch(1, 8, 1.0, x, y, 8)
        await saxpy.launch(dev, 1, 8, 1.0, x, y, 8)


async def test_a_device_keeps_the_kernel_as_long_as_its_declaration_exists(dev):
    def nothing(x: Writes[np.int32]) -> None: ...

    declared = declare(nothing)
    kept = weakref.ref(await declared.on(dev))
    gc.collect()
    assert kept() is not None
    del declared
    gc.collect()
    assert kept() is None


async def test_a_declared_write_counts_though_the_code_only_reads(dev):
    def look(x: Writes[np.float32], y: Writes[np.float32]) -> None: ...

    kernel = await declare(look, "if (x[0] == 7) y[0] = 1;").on(dev)
    assert [each.reads for each in kernel.parameters] == [False, False]
    x, y = (dev.zeros(1, np.float32) for _ in range(2))
    _, operands, _ = kernel._checked(1, 1, (x, y), 0, (), ORDINARY)
    assert [role for _, role in operands] == [Role.WRITE] * 2
    _, operands, _ = kernel._checked(1, 1, (atomr_trio.read_only(x), y), 0, (), ORDINARY)
    assert [role for _, role in operands] == [Role.READ, Role.WRITE]


async def test_what_is_declared_of_arrays_counts_where_a_launch_says_nothing(dev):
    def hidden(x: ReadOnly[np.float32], y: Overwrites[np.float32], z: Writes[np.float32]) -> None: ...

    declared = declare(
        hidden,
        "take((float *)x); take(y); take(z);",
        preamble="__device__ __noinline__ void take(float *p) { *p = 7; }",
    )
    kernel = await declared.on(dev)
    assert [each.reads for each in kernel.parameters] == [True, False, False]
    x, y, z = (dev.zeros(1, np.float32) for _ in range(3))
    _, operands, _ = kernel._checked(1, 1, (x, y, z), 0, (), ORDINARY)
    assert [role for _, role in operands] == [Role.READ, Role.OVERWRITE, Role.WRITE]
    _, operands, _ = kernel._checked(1, 1, (x, y, 0xBAD0), 0, (), ORDINARY)
    assert [role for _, role in operands] == [Role.READ, Role.OVERWRITE]
    _, operands, _ = kernel._checked(1, 1, (atomr_trio.writes(x), atomr_trio.writes(y), z), 0, (), ORDINARY)
    assert [role for _, role in operands] == [Role.WRITE] * 3


async def test_a_torn_array_may_be_given_where_it_is_overwritten(dev):
    x, y = await dev.to_device(HOST), await dev.to_device(HOST)
    kernel = await step.on(dev)
    await kernel.launch(1, 8, x, y)
    async with testing.endless_kernel(dev):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tear, dev, y)
            await trio.testing.wait_all_tasks_blocked()
            testing.kill_worker(dev)
    assert y.state == "torn"
    with pytest.raises(StaleArray):
        await y.to_host()
    await kernel.launch(1, 8, x, y)
    assert (await y.to_host()).tolist() == (HOST + 1).tolist()


async def tear(dev: atomr_trio.Device, array: atomr_trio.DeviceArray) -> None:
    with pytest.raises(ContextLost):
        await array.fill(0)


def test_both_faces_use_the_same_declaration():
    with atomr_trio.start(0, backend=chosen_backend()) as dev:
        x, y = dev.to_device(HOST), dev.zeros(8, np.float32)
        kernel = saxpy.on(dev)
        assert type(kernel) is atomr_trio.plain.Kernel
        assert saxpy.on(dev) is kernel
        kernel.launch(1, 8, 2.0, x, y, 8)
        assert saxpy.launch(dev, 1, 8, 1.0, x, y, 8) is None
        with dev.batch() as batch:
            batch.launch(kernel, 1, 8, 1.0, x, y, 8)
        assert y.tolist() == (4 * HOST).tolist()


async def test_every_dtype_has_its_type_in_cpp(dev):
    def each(
        a: np.bool_,
        b: np.int8,
        c: np.uint8,
        d: np.int16,
        e: np.uint16,
        f: np.int32,
        g: np.uint32,
        h: np.int64,
        i: np.uint64,
        j: np.float32,
        k: np.float64,
        z: np.complex64,
        m: np.float16,
        n: ml_dtypes.bfloat16,
        o: ReadOnly[ml_dtypes.bfloat16],
        p: ReadOnly[np.complex128],
        out: Overwrites[np.float64],
    ) -> None: ...

    body = """
    out[0] = a + b + c + d + e + f + g + h + i + j + k + z.x + z.y + double(__half2float(m)) + __bfloat162float(n);
    out[1] = __bfloat162float(o[0]) + p[0].y;
    """
    declared = declare(each, body)
    assert declared.options.bundled_headers
    assert "unsigned long long i, float j, double k, float2 z, __half m, __nv_bfloat16 n" in declared.source
    assert declared.source.startswith("#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n")
    o = await dev.to_device(np.array([2], ml_dtypes.bfloat16))
    p = await dev.to_device(np.array([3j]))
    out = dev.zeros(2, np.float64)
    numbers = (True, -1, 1, -2, 2, -3, 3, -4, 4, 0.5, 0.25, np.complex64(1 + 2j), np.float16(1), ml_dtypes.bfloat16(1))
    await declared.launch(dev, 1, 1, *numbers, o, p, out)
    assert (await out.to_host()).tolist() == [6.75, 5.0]


async def test_options_and_a_file_beside_the_module(dev):
    def scale(a: np.float32, x: Writes[np.float32]) -> None: ...

    declared = declare(scale, None, file="body_of_scale.cu", options=NvrtcOptions(name="mine.cu", lineinfo=True))
    assert declared.options.name == "mine.cu"
    assert 'body_of_scale.cu"\nint i = threadIdx.x;\n' in declared.source
    x = await dev.to_device(HOST)
    await declared.launch(dev, 1, 8, 3.0, x)
    assert (await x.to_host()).tolist() == (3 * HOST).tolist()


# ------------------------------------------------------------------------------------------------- places of errors


async def test_an_error_names_the_line_in_the_users_file(dev):
    with pytest.raises(CompileError) as caught:
        await broken.on(dev)
    place = f"{__file__}({line_of('y[i] = nothing;')}): error"
    assert place in caught.value.message
    assert place in caught.value.log


async def test_an_error_in_a_body_file_names_that_file(dev, tmp_path):
    path = tmp_path / 'a "b.cu'
    path.write_text("int i = 0;\nx[i] = nothing;\n")

    def scale(x: Writes[np.float32]) -> None: ...

    with pytest.raises(CompileError, match=r'a "b\.cu\(2\): error'):
        await declare(scale, None, file=path).on(dev)


async def test_an_error_in_a_preamble_names_its_line(dev):
    def nothing() -> None: ...

    declared = declare(
        nothing,
        preamble="""
        __device__ int one = none;  // in the preamble
        """,
    )
    with pytest.raises(CompileError, match=rf"\({line_of('// in the ' + 'preamble')}\): error"):
        await declared.on(dev)


@pytest.mark.parametrize("joiner", ["\\n", "\n"], ids=["a literal on one line", "not Python"])
async def test_an_error_in_a_body_that_is_found_nowhere_counts_its_own_lines(dev, joiner):
    def other(x: Writes[np.float32]) -> None: ...

    lines = ["int i = 0;", "x[i] = nothing;"]
    linecache.cache["<cell>"] = (1, None, [f"%magic '{joiner}'\n"], "<cell>")
    other.__code__ = other.__code__.replace(co_filename="<cell>")
    with pytest.raises(CompileError, match=r"<body of other>\(2\): error"):
        await declare(other, "\n".join(lines)).on(dev)


async def test_an_error_in_a_cell_of_a_notebook_counts_the_lines_of_the_cell(dev):
    lines = ["import atomr_trio", "@atomr_trio.kernel('''", "int i = nothing;", "''')", "def celled() -> None: ..."]
    linecache.cache["<in 7>"] = (1, None, [f"{line}\n" for line in lines], "<in 7>")
    scope: dict[str, Any] = {}
    exec(compile("\n".join(lines), "<in 7>", "exec"), scope)
    with pytest.raises(CompileError, match=r"<cell of celled>\(3\): error"):
        await scope["celled"].on(dev)


async def test_a_function_without_a_source_is_named(dev):
    scope: dict[str, Any] = {"np": np, "atomr_trio": atomr_trio}
    exec("@atomr_trio.kernel('int i = nothing;')\ndef made(int: np.int32) -> None: ...", scope)
    with pytest.raises(CompileError, match=r"<signature of made>\(1\): error"):
        await scope["made"].on(dev)


# ------------------------------------------------------------------------------------------------- refusals


def test_it_is_shown_by_its_signature_in_cpp():
    assert repr(saxpy) == "<DeclaredKernel saxpy(float a, const float *x, float *y, int n)>"
    assert (saxpy.__doc__, saxpy.__name__, list(saxpy.signature.parameters)) == ("Add a * x to y.", "saxpy", [*"axyn"])
    with pytest.raises(TypeError, match=r"await saxpy\.launch\(dev"):
        saxpy(1, 2, 3, 4)


def without(x) -> None: ...
def of_int(x: int) -> None: ...
def of_text(x: str) -> None: ...
def of_array(x: atomr_trio.DeviceArray) -> None: ...
def of_time(x: np.datetime64) -> None: ...
def by_keyword(*, x: np.int32) -> None: ...
def of_many(*x: np.int32) -> None: ...
def with_default(x: np.int32 = 1) -> None: ...  # type: ignore[assignment]
def of_times(x: ReadOnly[np.datetime64]) -> None: ...
def of_nothing(x: nothing_of_this_name) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def returning(x: np.int32) -> np.int32: ...  # type: ignore[empty-body]
def gröss(x: np.int32) -> None: ...
def of_umlaut(größe: np.int32) -> None: ...


def with_a_body(x: np.int32) -> None:
    print(x)


def with_a_value(x: np.int32) -> int:
    return 1


async def waiting(x: np.int32) -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (without, "'x' of without has no annotation"),
        (of_int, r"(?s)'x' of of_int is annotated with .*int.*a number has a width"),
        (of_text, r"(?s)annotated with .*str.*ReadOnly\[np"),
        (of_array, r"(?s)annotated with .*DeviceArray.*ReadOnly\[np"),
        (of_time, "cannot be a number of datetime64: arrays cannot have dtype"),
        (by_keyword, "no place of its own or a default"),
        (of_many, "no place of its own or a default"),
        (with_default, "no place of its own or a default"),
        (of_times, "arrays cannot have dtype"),
        (of_nothing, "annotations of of_nothing cannot be evaluated: name 'nothing_of_this_name'"),
        (returning, "annotated to return something"),
        (gröss, "cannot be the name of a kernel"),
        (of_umlaut, "cannot have this name"),
        (with_a_body, "has a body in Python"),
        (with_a_value, "has a body in Python"),
        (waiting, "has a body in Python"),
        (print, "declared by a function, not <built-in"),
        (lambda: 1, "cannot be the name of a kernel"),
    ],
)
def test_a_wrong_declaration_is_refused_when_it_is_made(function, message):
    with pytest.raises(InvalidArgument, match=message):
        declare(function)


def test_a_dtype_whose_package_is_missing_is_named(monkeypatch):
    def narrow(x: Any) -> None: ...

    narrow.__annotations__["x"] = "ReadOnly['bfloat16']"
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(atomr_trio.LibraryNotFound, match="ml_dtypes"):
        declare(narrow)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "a body or a file, and not both"),
        ({"body": "", "file": "x.cu"}, "a body or a file, and not both"),
        ({"body": saxpy.__wrapped__}, "the body of the kernel is missing"),  # type: ignore[attr-defined]
        ({"body": 7}, "body is a string of CUDA C"),
        ({"body": "", "preamble": 7}, "preamble is a string of CUDA C"),
        ({"body": "\0"}, "NUL character"),
        ({"body": "", "options": "fast"}, "options is an NvrtcOptions"),
        ({"file": 7}, "file is the path of a file, not 7"),
        ({"file": "not_there.cu"}, r"body of of_nothing cannot be read from .*compiling/not_there\.cu: .*No such file"),
    ],
)
def test_wrong_arguments_are_refused_when_a_kernel_is_declared(given, message):
    def of_nothing() -> None: ...

    with pytest.raises(InvalidArgument, match=message):
        atomr_trio.kernel(**given)(of_nothing)


def test_a_body_file_that_is_no_text_is_refused(tmp_path, monkeypatch):
    def scale() -> None: ...

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scale, "__module__", "of no file")
    (tmp_path / "body.cu").write_bytes(b"\xff")
    with pytest.raises(InvalidArgument, match=r"body\.cu: 'utf-8'"):
        declare(scale, None, file="body.cu")
    (tmp_path / "body.cu").write_bytes(b"\0")
    with pytest.raises(InvalidArgument, match="NUL"):
        declare(scale, None, file="body.cu")


async def test_what_is_no_device_and_no_declaration_is_refused(dev):
    with pytest.raises(InvalidArgument, match="dev is a device, not 7"):
        saxpy.on(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"declared by atomr_trio\.kernel, not 'saxpy'"):
        await dev.nvrtc.kernel("saxpy")


@atomr_trio.kernel("")
def nothing() -> None: ...


def test_the_grid_is_that_of_a_kernel_and_needs_no_device():
    assert [nothing.grid_for(n, 128) for n in (0, 1, 128, 129, 1_000_000)] == [1, 1, 1, 2, 7813]
    assert nothing.grid_for((100, 33), (32, 8)) == (4, 5)
    for n, block, message in (
        (10, 1025, "block.x is 1025"),
        (10, (64, 32), "2048 threads; a device takes at most 1024"),
        ((1, 65536), 1, "grid.y is 65536"),
        (-1, 32, "n is a number of elements"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            nothing.grid_for(n, block)


async def test_the_limits_of_a_grid_hold_for_this_device(open_test_device):
    async with open_test_device() as dev:
        for n, block in (((2**31 - 1, 65535, 65535), 1), (1000, 1024), ((5, 6, 7), (2, 2, 64))):
            assert nothing.grid_for(n, block) == (await nothing.on(dev)).grid_for(n, block)
