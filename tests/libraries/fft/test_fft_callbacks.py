"""Callbacks of cuFFT as far as no GPU is needed: what is compiled, what is refused, and what a plan comes to.

What they compute is in ``gpu/test_fft_callbacks_gpu.py``: the simulator has none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_cuda.constants import cufft
from atomr_trio import CommandFailed, CompileError, FftCallback, InvalidArgument, NvrtcOptions, strided, writes
from atomr_trio._arrays.layout import contiguous_strides
from atomr_trio._device.device import core_of
from atomr_trio._wire.programs import Address, Bytes, Call, Create, Query, Room, Slot, Words
from atomr_trio.libraries.fft.axes import transform_of
from atomr_trio.libraries.fft.programs import transform_program
from atomr_trio.libraries.fft.records import Callback, Problem, Side
from support.blas import submitted
from support.fft import ONE_AXIS, assert_near, exact, numbers
from support.fft_callbacks import TYPES, scaled, window

pytestmark = pytest.mark.used_workers


# --- what is compiled -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
async def test_the_type_of_a_function_says_what_it_does(dev, dtype):
    load = await dev.fft.callback(window(dtype, 8), "window")
    store = await dev.fft.callback(scaled(dtype), "scaled")
    assert (load.name, load.kind, load.dtype) == ("window", "load", np.dtype(dtype))
    assert (store.name, store.kind, store.dtype) == ("scaled", "store", np.dtype(dtype))
    assert repr(load) == f"<FftCallback window: loads {dtype}>"
    assert repr(store) == f"<FftCallback scaled: stores {dtype}>"


async def test_a_source_may_have_several_callbacks_and_take_options(dev):
    source = window("float32", 8) + scaled("complex64", "FACTOR") + "static __device__ int helper;"
    options = NvrtcOptions(defines={"FACTOR": "2.0f"}, extra_options=["-rdc=true"], arch="compute_80")
    assert (await dev.fft.callback(source, "window", options)).kind == "load"
    assert (await dev.fft.callback(source, "scaled", options)).kind == "store"


async def test_a_source_that_does_not_compile_is_an_error_with_its_line(dev):
    with pytest.raises(CompileError, match=r'kernel.cu\(2\): error: identifier "wrong" is undefined'):
        await dev.fft.callback("\n__device__ float f(void *data, unsigned long long, void *, void *) { wrong; }", "f")


GIVEN = "(void *data, unsigned long long offset, void *info, void *shared)"
REFUSED: dict[str, tuple[str, str]] = {
    "another name": ("the source has no function f that others may call; it has g", f"__device__ float g{GIVEN} {{}}"),
    "no function": (
        "it has none",
        "static __device__ float x;",
    ),
    "static": ("the source has no function f", f"static __device__ float f{GIVEN} {{ return 0; }}"),
    "in a namespace": ("the source has no function f", f"namespace n {{ __device__ float f{GIVEN} {{ return 0; }} }}"),
    "a template": ("the source has no function f", f"template <class T> __device__ float f{GIVEN} {{ return 0; }}"),
    'extern "C"': ('f is declared extern "C"', f'extern "C" __device__ float f{GIVEN} {{ return 0; }}'),
    "a kernel": ("f has other parameters", "__global__ void f(float *) {} __device__ float f(int) { return 0; }"),
    "an offset of another type": (
        "f has other parameters than a callback: a load callback is",
        "__device__ float f(void *data, size_t offset, void *info, void *shared) { return 0; }",
    ),
    "an element of another type": (
        "f has other parameters",
        "__device__ void f(void *data, unsigned long long offset, int element, void *info, void *shared) {}",
    ),
    "an integer": ("f returns no element", f"__device__ int f{GIVEN} {{ return 0; }}"),
    "nothing": ("f returns no element", f"__device__ void f{GIVEN} {{}}"),
    "a reference": ("f cannot be called", f"__device__ float x; __device__ float &f{GIVEN} {{ return x; }}"),
    "two of one name": (
        "f is the name of 2 callbacks",
        f"__device__ float f{GIVEN} {{ return 0; }}"
        "__device__ void f(void *data, unsigned long long offset, float element, void *info, void *shared) {}",
    ),
}


@pytest.mark.parametrize(("match", "source"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_is_no_callback_is_refused(dev, match, source):
    with pytest.raises(InvalidArgument, match=match):
        await dev.fft.callback(source, "f")


async def test_arguments_that_are_none_are_refused(dev):
    source = window("float32", 8)
    for match, arguments in (
        ("a callback has a plain C.. name", (source, "")),
        ("a callback has a plain C.. name", (source, "n::window")),
        ("a callback has a plain C.. name", (source, 3)),
        ("the source has to be a string", (b"source", "window")),
        ("options is an NvrtcOptions", (source, "window", {})),
        ("contradicts debug", (source, "window", NvrtcOptions(debug=True))),
        ("contradicts lto", (source, "window", NvrtcOptions(extra_options=["-rdc=false"]))),
    ):
        with pytest.raises(InvalidArgument, match=match):
            await dev.fft.callback(*arguments)
    with pytest.raises(TypeError, match="no public constructor"):
        FftCallback()


# --- in plans ---------------------------------------------------------------------------------------------------------


@pytest.mark.sim_only
async def test_the_simulator_has_no_callbacks_and_says_so_before_anything_is_sent(dev):
    load = await dev.fft.callback(window("complex64", 8), "window")
    before = submitted(dev)
    with pytest.raises(InvalidArgument, match=r"the simulator has no callbacks of cuFFT \(cufftXtSetJITCallback\)"):
        dev.fft.plan("fft", (4, 8), "complex64", load=load)
    assert submitted(dev) == before


@pytest.fixture
def as_on_a_gpu(dev: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the user's side go on where it refuses the simulator."""
    monkeypatch.setattr(core_of(dev), "backend", "cuda")


async def test_what_a_plan_is_given_for_callbacks_is_checked(dev, open_test_device, as_on_a_gpu):
    load = await dev.fft.callback(window("complex64", 8), "window")
    store = await dev.fft.callback(scaled("complex64"), "scaled")
    both = window("complex64", 8) + scaled("complex64")
    twins = {"load": await dev.fft.callback(both, "window"), "store": await dev.fft.callback(both, "scaled")}
    info = dev.zeros(16, "float32")
    module = await dev.nvrtc.compile_program("__device__ float table[8];", NvrtcOptions(name_expressions=["&table"]))
    freed = dev.zeros(8, "float32")
    freed.free()
    before = submitted(dev)
    async with open_test_device() as other:
        for match, dtype, given in (
            ("load is made by dev.fft.callback, it is not 'window'", "complex64", {"load": "window"}),
            ("scaled is a store callback, and was given as load", "complex64", {"load": store}),
            ("window is a load callback, and was given as store", "complex64", {"store": load}),
            ("input has dtype complex128, and window loads complex64: .* double2", "complex128", {"load": load}),
            ("output has dtype complex128, and scaled stores complex64", "complex128", {"store": store}),
            ("input has dtype int32", "int32", {"load": load}),
            ("load_info is for a callback: give load too", "complex64", {"load_info": info}),
            ("load_info is an array on the device", "complex64", {"load": load, "load_info": np.zeros(8)}),
            ("belongs to another device", "complex64", {"load": load, "load_info": other.zeros(8, "float32")}),
            ("the array was freed", "complex64", {"store": store, "store_info": writes(freed)}),
            ("address of a module's variable", "complex64", {"load": load, "load_info": module.global_("&table")}),
            ("store_info is not contiguous", "complex64", {"store": store, "store_info": info[::2]}),
            ("load and store both define _Z6scaledPvy6float2S_S_, _Z6windowPvyS_S_", "complex64", twins),
        ):
            with pytest.raises(InvalidArgument, match=match):
                dev.fft.plan("fft", (4, 8), dtype, **given)
    plan = dev.fft.plan("fft", (4, 8), "complex64", load=load, store=store, store_info=strided(writes(info[::2])))
    assert (plan.load, plan.store) == (load, store)
    plain = dev.fft.plan("fft", (4, 8), "complex64")
    assert (plain.load, plain.store) == (None, None)
    x = dev.zeros((4, 8), "complex64")
    with pytest.raises(InvalidArgument, match="not aligned"):
        await dev.fft.plan("rfft", 8, "float32", load=await dev.fft.callback(window("float32", 8), "window"))(
            dev.zeros(9, "float32")[1:]
        )
    shared = dev.zeros((5, 8), "complex64")
    plan = dev.fft.plan("fft", (4, 8), "complex64", load=load, load_info=shared[3:])
    with pytest.raises(InvalidArgument, match="shares memory with an input"):
        await plan(x, shared[:4])
    plan = dev.fft.plan("fft", (4, 8), "complex64", load=load, load_info=writes(shared[3:]))
    with pytest.raises(InvalidArgument, match="shares memory with an input"):
        await plan(shared[:4])
    plan = dev.fft.plan("fft", (4, 8), "complex64", load=load, load_info=info)
    info.free()
    with pytest.raises(InvalidArgument, match="the array was freed"):
        await plan(x)
    assert submitted(dev) == before


@pytest.mark.sim_only
async def test_a_cufft_that_refuses_callbacks_fails_the_call_and_nothing_else(dev, as_on_a_gpu):
    store = await dev.fft.callback(scaled("complex64", "2"), "scaled")
    plan = dev.fft.plan("fft", (4, 8), "complex64", store=store)
    host = numbers((4, 8), "complex64")
    x, generation = await dev.to_device(host), dev.generation
    for _ in range(2):
        with pytest.raises(CommandFailed, match=r"cufftXtSetJITCallback: .*this layout with callbacks") as caught:
            await plan(x)
        assert (caught.value.status, caught.value.library) == (cufft.CUFFT_NOT_SUPPORTED, "cufft")
    assert_near(await (await dev.fft.fft(x)).to_host(), exact("fft", host), 8)
    assert dev.generation == generation


def side(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...] | None = None, *, aligned: bool = True) -> Side:
    return Side(dtype, shape, strides or contiguous_strides(shape, np.dtype(dtype).itemsize), 0, aligned)


def problem(
    name: str, source: Side, hooks: str, *, overwrites: bool = False, out: Side | None = None, **given: Any
) -> Problem:
    """A transform with callbacks, by the letters l and s."""
    lengths, axes = (given.get("n"), given.get("axis", -1)) if name in ONE_AXIS else (given.get("s"), given.get("axes"))
    transform = transform_of(name, source.dtype, source.shape, lengths, axes, given.get("norm"))
    target = out or side(transform.dtype, transform.shape)
    load = Callback("reads", b"image", source.dtype, 1 << 20) if "l" in hooks else None
    store = Callback("puts", b"other image", transform.dtype, 0) if "s" in hooks else None
    head = transform.operations, source, target, transform.scale, transform.conjugated
    return Problem(*head, False, overwrites, load, store)


def test_callbacks_are_set_before_cufft_plans_with_what_they_are_given():
    made = transform_program(problem("rfft", side("float32", (4, 8)), "ls"))
    create, automatic, load, store, plan, stream, room = made.make
    assert (type(create), create.function) == (Create, "cufftCreate")
    assert (type(automatic), automatic.function) == (Call, "cufftSetAutoAllocation")
    name, image, words = Bytes(b"reads\0"), Bytes(b"image"), Words((Address(2),))
    assert load == Call("cufftXtSetJITCallback", (Slot(0), name, image, 5, cufft.CUFFT_CB_LD_REAL, words))
    name, image, words = Bytes(b"puts\0"), Bytes(b"other image"), Words((Address(3),))
    assert store == Call("cufftXtSetJITCallback", (Slot(0), name, image, 11, cufft.CUFFT_CB_ST_COMPLEX, words))
    assert (type(plan), plan.function) == (Query, "cufftMakePlanMany64")
    assert (type(stream), stream.function) == (Call, "cufftSetStream")
    assert isinstance(room, Room)
    assert made.addresses == 4
    plain = transform_program(problem("rfft", side("float32", (4, 8)), ""))
    assert [each for each in made.make if each not in (load, store)] == list(plain.make)
    assert (made.execute, plain.addresses) == (plain.execute, 2)


KINDS = {
    ("fft", "complex64"): (cufft.CUFFT_CB_LD_COMPLEX, cufft.CUFFT_CB_ST_COMPLEX),
    ("fft", "complex128"): (cufft.CUFFT_CB_LD_COMPLEX_DOUBLE, cufft.CUFFT_CB_ST_COMPLEX_DOUBLE),
    ("rfft", "float64"): (cufft.CUFFT_CB_LD_REAL_DOUBLE, cufft.CUFFT_CB_ST_COMPLEX_DOUBLE),
    ("irfft", "complex64"): (cufft.CUFFT_CB_LD_COMPLEX, cufft.CUFFT_CB_ST_REAL),
    ("irfft", "complex128"): (cufft.CUFFT_CB_LD_COMPLEX_DOUBLE, cufft.CUFFT_CB_ST_REAL_DOUBLE),
}


@pytest.mark.parametrize(("name", "dtype"), KINDS)
def test_a_callback_is_told_by_the_type_of_its_elements(name, dtype):
    made = transform_program(
        problem(name, side(dtype, (4, 9)), "ls", overwrites=True, norm="forward" if name == "irfft" else None)
    )
    found = tuple(step.arguments[4] for step in made.make if getattr(step, "function", "") == "cufftXtSetJITCallback")
    assert found == KINDS[name, dtype]
    assert [type(step).__name__ for step in made.execute] == ["Set", "Call"]  # no kernel before a transform to real


SPECTRUM = side("complex64", (4, 9))
SIGNAL = side("complex64", (4, 8))
NOT_DIRECT: dict[str, tuple[str, dict[str, Any]]] = {
    "what is converted": (
        "converted from float32 to complex64",
        {"name": "fft", "source": side("float32", (4, 8)), "hooks": "l"},
    ),
    "zeros that are added": ("padded with zeros", {"name": "fft", "source": SIGNAL, "hooks": "l", "n": 16}),
    "half a signal": ("conjugated before", {"name": "hfft", "source": SPECTRUM, "hooks": "l", "overwrites": True}),
    "half a spectrum that must last": ("give overwrite_x=True", {"name": "irfft", "source": SPECTRUM, "hooks": "l"}),
    "what is not aligned": (
        "not aligned",
        {"name": "rfft", "source": side("float32", (4, 8), aligned=False), "hooks": "l"},
    ),
    "what lies backwards": (
        "cannot read its layout",
        {"name": "fft", "source": side("complex64", (4, 8), (64, -8)), "hooks": "l"},
    ),
    "a result that is scaled": (
        r"multiply by 0.125 in the callback, and give the norm that does not scale, .forward. for an inverse",
        {"name": "ifft", "source": SIGNAL, "hooks": "s"},
    ),
    "a result that is scaled behind what was destroyed": (
        "multiply by 0.0625",
        {"name": "irfft", "source": SPECTRUM, "hooks": "s", "overwrites": True},
    ),
    "a result that is conjugated": (
        "copied there, since it is conjugated",
        {"name": "ihfft", "source": side("float32", (4, 8)), "hooks": "s", "norm": "forward"},
    ),
    "a result that lies backwards": (
        "cannot write to its layout",
        {"name": "fft", "source": SIGNAL, "hooks": "s", "out": side("complex64", (4, 8), (64, -8))},
    ),
    "four axes": (
        "takes 2: transform one to three",
        {"name": "fftn", "source": side("complex64", (2, 3, 4, 5)), "hooks": "l"},
    ),
    "a middle axis": (
        "takes 8",
        {"name": "fft", "source": side("complex64", (8, 1 << 15, 128)), "hooks": "s", "axis": 1},
    ),
    "one point": ("takes 0", {"name": "fft", "source": side("complex64", (4, 1)), "hooks": "s"}),
}


@pytest.mark.parametrize(("match", "given"), NOT_DIRECT.values(), ids=NOT_DIRECT.keys())
def test_what_callbacks_cannot_see_is_refused_with_the_reason(match, given):
    with pytest.raises(InvalidArgument, match=match):
        transform_program(problem(**given))


DIRECT: dict[str, tuple[str, dict[str, Any]]] = {
    "a result that is scaled behind a load": ("tc", {"name": "ifft", "source": SIGNAL, "hooks": "l"}),
    "half a spectrum is copied and scaled before a store": (
        "cht",
        {"name": "irfft", "source": SPECTRUM, "hooks": "s"},
    ),
    "half a spectrum that is loaded": (
        "tc",
        {"name": "irfft", "source": SPECTRUM, "hooks": "l", "overwrites": True},
    ),
    "integers before a store": ("ct", {"name": "fft", "source": side("int16", (4, 8)), "hooks": "s"}),
    "what is left out": ("t", {"name": "fft", "source": SIGNAL, "hooks": "ls", "n": 5}),
    "rows that are apart": ("t", {"name": "fft", "source": side("complex64", (4, 8), (128, 8)), "hooks": "ls"}),
}


@pytest.mark.parametrize(("expected", "given"), DIRECT.values(), ids=DIRECT.keys())
def test_copies_where_no_callback_sees_them_are_made(expected, given):
    letters = {"Arrange": "c", "Launch": "h", "Call": "t", "Set": ""}
    assert "".join(letters[type(step).__name__] for step in transform_program(problem(**given)).execute) == expected
