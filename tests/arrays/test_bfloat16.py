"""The narrow floats of ml_dtypes: storage, fills and kernel arguments, and that nobody pays for them unasked.

ml_dtypes is imported here, and not asked for: a run without it fails to collect this file.
"""

from __future__ import annotations

import itertools
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from cuda import pathfinder

import support
from atomr_cuda import nvrtc
from atomr_trio import InvalidArgument, LibraryNotFound, NvrtcOptions, overwrites, read_only
from atomr_trio._transfers.memory import pattern_of
from atomr_trio._values.dtypes import NARROW_FLOATS, check_dtype, is_of_ml_dtypes, number_kind
from atomr_trio._values.signatures import parse_signatures

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
NAMES = sorted(name for name, each in NARROW_FLOATS.items() if each.package == "ml_dtypes")

SOURCE = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
typedef __nv_bfloat16 bf16;

extern "C" __global__ void arithmetic(const bf16 *x, const bf16 *y, bf16 *sum, bf16 *difference, bf16 *product, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    sum[i] = __hadd_rn(x[i], y[i]);
    difference[i] = __hsub_rn(x[i], y[i]);
    product[i] = __hmul_rn(x[i], y[i]);
}

extern "C" __global__ void fused(const bf16 *x, const bf16 *y, const bf16 *z, bf16 *out) {
    int i = threadIdx.x;
    out[i] = __hfma(x[i], y[i], z[i]);
}

extern "C" __global__ void axpy(bf16 a, const bf16 *x, bf16 *y) {
    int i = threadIdx.x;
    y[i] = __hadd_rn(__hmul_rn(a, x[i]), y[i]);
}

extern "C" __global__ void widen(const bf16 *x, float *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = __bfloat162float(x[i]);
}

extern "C" __global__ void narrow(const float *x, bf16 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __float2bfloat16_rn(x[i]);
}

extern "C" __global__ void by_value(unsigned short *out, bf16 a, __half b, __nv_fp8_e4m3 c, __nv_fp8_e5m2 d, float e) {
    out[0] = __bfloat16_as_ushort(a);
    out[1] = __half_as_ushort(b);
    out[2] = c.__x;
    out[3] = d.__x;
    out[4] = (unsigned short)e;
}
"""


@pytest.fixture(scope="module")
def options(tmp_path_factory) -> NvrtcOptions:
    """Options that find CUDA's headers: NVRTC carries them since 13.3, before that a toolkit or a wheel has them."""
    if nvrtc_version() >= (13, 3):
        folder = tmp_path_factory.mktemp("headers") / "cuda"
        return NvrtcOptions(extra_options=[f"--use-bundled-headers={folder}"])
    found = [pathfinder.find_nvidia_header_directory(name) for name in ("cudart", "cccl")]
    assert all(found), f"this NVRTC brings no headers, and the CUDA toolkit's were not found either: {found}"
    return NvrtcOptions(include_paths=found)


def nvrtc_version() -> tuple[int, int]:
    major, minor = nvrtc.c_int(), nvrtc.c_int()
    nvrtc.nvrtcVersion(major, minor)
    return major.value, minor.value


def values(name: str) -> np.ndarray:
    """Every bit pattern of a type, in order."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    return np.arange(256**dtype.itemsize, dtype=f"u{dtype.itemsize}").view(dtype)


def same(seen: np.ndarray, expected: np.ndarray) -> bool:
    """Bit for bit, with shape and dtype."""
    return seen.shape == expected.shape and seen.dtype == expected.dtype and seen.tobytes() == expected.tobytes()


def same_numbers(seen: np.ndarray, expected: np.ndarray) -> bool:
    """Bit for bit, but for NaN, of which the GPU makes another one than the CPU."""
    both_nan = np.isnan(seen) & np.isnan(expected)
    return bool(np.all(both_nan | (seen.view(np.uint16) == expected.view(np.uint16))))


# --- storage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
async def test_every_value_survives_every_way_of_copying_bit_for_bit(dev, name):
    host = values(name)
    array = await dev.to_device(host)
    assert (array.dtype, array.itemsize, array.size) == (host.dtype, host.dtype.itemsize, host.size)
    assert same(await array.to_host(), host)

    # Rows backwards and with gaps, and from there into another array.
    folded = host.reshape(16, -1)
    view = dev.empty((32, host.size // 16 + 3), name)[::-2, 2:-1]
    await view.copy_from(folded)
    assert same(await view.to_host(), folded)
    other = dev.empty(host.size, host.dtype)
    await other.reshape(16, -1).copy_from(view)
    out = np.empty_like(host)
    await other.copy_to(out)
    assert same(out, host)


@pytest.mark.parametrize("name", NAMES)
async def test_a_type_goes_by_name_class_and_dtype(dev, name):
    kind = getattr(ml_dtypes, name)
    for dtype in (name, kind, np.dtype(kind)):
        assert dev.empty(3, dtype).dtype == np.dtype(kind)
        assert same(await dev.zeros((2, 3), dtype).to_host(), np.zeros((2, 3), kind))
        assert same(await dev.full(5, 1.5, dtype).to_host(), np.full(5, 1.5, kind))
    assert repr(dev.empty((2, 3), kind)) == f"<DeviceArray (2, 3) {name}, ready, on device 0, generation 1>"
    assert dev.full(2, kind(1.5)).dtype == kind, "the value has a type of its own"


async def test_another_dtype_is_named_as_a_program_writes_it(dev):
    narrow, wide = dev.zeros(3, BFLOAT16), dev.zeros(3, np.float32)
    with pytest.raises(InvalidArgument, match=r"convert with \.astype\(ml_dtypes\.bfloat16\)"):
        await narrow.copy_from(np.zeros(3, np.float32))
    with pytest.raises(InvalidArgument, match=r"convert with \.astype\(np\.float32\)"):
        await wide.copy_from(np.zeros(3, BFLOAT16))
    with pytest.raises(InvalidArgument, match="dtypes differ"):
        await narrow.copy_from(dev.zeros(3, np.float16))
    with pytest.raises(InvalidArgument, match="dtypes differ"):
        await narrow.copy_from(np.zeros(3, "V2"))


@pytest.mark.parametrize("dtype", ["int4", ml_dtypes.int4, ml_dtypes.float8_e8m0fnu, BFLOAT16.newbyteorder(">"), "V2"])
async def test_other_types_are_refused_and_what_there_is_is_listed(dev, dtype):
    with pytest.raises(InvalidArgument, match=r"numpy dtype|of ml_dtypes bfloat16, float8_e4m3fn, float8_e5m2"):
        dev.empty(3, dtype)


# --- fills ------------------------------------------------------------------------------------------------------------

# Halves are rounded to even, as by ml_dtypes: 1 + 2^-8 lies between 0x3f80 and 0x3f81, 1 + 3 * 2^-8 between that and 2.
ROUNDED = [
    (1.0, "bfloat16", 0x3F80), (1 + 2**-8, "bfloat16", 0x3F80), (1 + 3 * 2**-8, "bfloat16", 0x3F82),
    (0.1, "bfloat16", 0x3DCD), (-2.5, "bfloat16", 0xC020), (-0.0, "bfloat16", 0x8000), (True, "bfloat16", 0x3F80),
    (257, "bfloat16", 0x4380), (2**100, "bfloat16", 0x7180), (3.396e38, "bfloat16", 0x7F7F), (1e-60, "bfloat16", 0),
    (2.0**-133, "bfloat16", 1), (float("inf"), "bfloat16", 0x7F80), (np.float16(1.5), "bfloat16", 0x3FC0),
    (np.float64(0.1), "bfloat16", 0x3DCD), (np.int8(-3), "bfloat16", 0xC040),
    (ml_dtypes.bfloat16(1.5), "bfloat16", 0x3FC0), (ml_dtypes.float8_e5m2(1.5), "bfloat16", 0x3FC0),
    (1.0625, "float8_e4m3fn", 0x38), (448, "float8_e4m3fn", 0x7E), (ml_dtypes.bfloat16(-1), "float8_e4m3fn", 0xB8),
    (1.125, "float8_e5m2", 0x3C), (57344, "float8_e5m2", 0x7B), (float("-inf"), "float8_e5m2", 0xFC),
]  # fmt: skip
TOO_MUCH = [
    (3.4e38, "bfloat16"), (2**128, "bfloat16"), (10**400, "bfloat16"), (1j, "bfloat16"), ("1", "bfloat16"),
    (480.0, "float8_e4m3fn"), (float("inf"), "float8_e4m3fn"), (65536, "float8_e5m2"), (np.ones(2), "float8_e5m2"),
    (ml_dtypes.bfloat16(1), "int32"), (ml_dtypes.bfloat16(1), "bool"), (ml_dtypes.bfloat16(1e38), "float16"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "name", "bits"), ROUNDED)
def test_a_fill_value_is_rounded_as_ml_dtypes_rounds(value, name, bits):
    dtype = check_dtype(name)
    pattern = pattern_of(value, dtype)
    assert pattern == bits.to_bytes(dtype.itemsize, "little")
    assert pattern == dtype.type(float(value)).tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_every_value_is_its_own_fill_pattern(name):
    dtype = check_dtype(name)
    assert b"".join(pattern_of(value, dtype) for value in values(name)) == values(name).tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_nan_fills_with_nan(name):
    dtype = check_dtype(name)
    assert np.isnan(np.frombuffer(pattern_of(float("nan"), dtype), dtype)).all()


@pytest.mark.parametrize(("value", "name"), TOO_MUCH)
def test_a_fill_value_that_the_type_does_not_have_is_refused(value, name):
    with pytest.raises(InvalidArgument, match=f"cannot fill {name} elements"):
        pattern_of(value, check_dtype(name))


async def test_a_fill_writes_the_view_it_is_given_and_nothing_else(dev):
    for name in NAMES:
        array, expected = dev.zeros((6, 10), name), np.zeros((6, 10), name)
        await array[1::2, 3:7].fill(0.1)
        expected[1::2, 3:7] = 0.1
        assert same(await array.to_host(), expected)


# --- kernels ----------------------------------------------------------------------------------------------------------


async def test_bfloat16_arithmetic_is_that_of_ml_dtypes(dev, options):
    kernel = await dev.nvrtc.compile(SOURCE, "arithmetic", options=options)
    random = np.random.default_rng(16)
    # Exponents of 2^-60 ... 2^60 keep products normal; below that ml_dtypes rounds twice.
    bits = random.integers(67 << 7, 187 << 7, (2, 10_000)) | random.integers(0, 2, (2, 10_000)) << 15
    special = [0x0000, 0x8000, 0x3F80, 0xBF80, 0x7F80, 0xFF80, 0x7FC0, 0x0001, 0x8001, 0x7F7F, 0xFF7F, 0x0080, 0x4000]
    pairs = np.array(list(itertools.product(special, special))).T
    x, y = np.concatenate([bits, pairs], axis=1).astype(np.uint16).view(BFLOAT16)
    operands = [await dev.to_device(each) for each in (x, y)]
    results = [dev.empty(x.size, BFLOAT16) for _ in range(3)]
    await kernel.launch(-(-x.size // 256), 256, *map(read_only, operands), *map(overwrites, results), x.size)
    with np.errstate(all="ignore"):
        for array, expected in zip(results, (x + y, x - y, x * y), strict=True):
            assert same_numbers(await array.to_host(), expected)


async def test_a_fused_multiply_add_is_rounded_once(dev, options):
    """259 lies half way between two numbers, so the last bit of the exact sum decides."""
    kernel = await dev.nvrtc.compile(SOURCE, "fused", options=options)
    x, y = dev.full(5, 7, BFLOAT16), dev.full(5, 37, BFLOAT16)
    z = await dev.to_device(np.array([-(2.0**-20), 2.0**-20, 0, -(2.0**-100), 2.0**-100], BFLOAT16))
    out = dev.empty(5, BFLOAT16)
    await kernel.launch(1, 5, x, y, z, out)
    assert (await out.to_host()).astype(int).tolist() == [258, 260, 260, 258, 260]


async def test_every_bfloat16_is_the_upper_half_of_a_float(dev, options):
    kernel = await dev.nvrtc.compile(SOURCE, "widen", options=options)
    x = values("bfloat16")
    array, out = await dev.to_device(x), dev.empty(x.size, np.float32)
    await kernel.launch(x.size // 256, 256, read_only(array), out)
    seen = await out.to_host()
    expected = (x.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    number = ~np.isnan(expected)
    assert same(seen[number], expected[number])
    assert np.isnan(seen[~number]).all()


async def test_a_kernel_rounds_floats_as_ml_dtypes_does(dev, options):
    kernel = await dev.nvrtc.compile(SOURCE, "narrow", options=options)
    random = np.random.default_rng(32)
    anything = random.integers(0, 2**32, 20_000, dtype=np.uint32)
    halfway = (anything & np.uint32(0xFFFF0000)) | np.uint32(0x8000)
    beside = [halfway, halfway + np.uint32(1), halfway - np.uint32(1)]
    x = np.concatenate([anything, *beside]).view(np.float32)
    array, out = await dev.to_device(x), dev.empty(x.size, BFLOAT16)
    await kernel.launch(-(-x.size // 256), 256, read_only(array), out, x.size)
    with np.errstate(all="ignore"):
        assert same_numbers(await out.to_host(), x.astype(BFLOAT16))


async def test_narrow_floats_go_by_value(dev, options):
    kernel = await dev.nvrtc.compile(SOURCE, "by_value", options=options)
    assert [each.type_name for each in kernel.parameters[1:5]] == [".b8[2]", ".b8[2]", ".b8[1]", ".b8[1]"]
    out = dev.empty(5, np.uint16)
    given = (
        ml_dtypes.bfloat16(-0.1), np.float16(0.1), ml_dtypes.float8_e4m3fn(3.5), ml_dtypes.float8_e5m2(-96),
        ml_dtypes.bfloat16(300),
    )  # fmt: skip
    await kernel.launch(1, 1, out, *given)
    expected = [int.from_bytes(each.tobytes(), "little") for each in given[:4]] + [300]
    assert (await out.to_host()).tolist() == expected

    axpy = await dev.nvrtc.compile(SOURCE, "axpy", options=options)
    x, y = np.linspace(-3, 5, 64).astype(BFLOAT16), np.linspace(0.1, 7, 64).astype(BFLOAT16)
    on_device = [await dev.to_device(each) for each in (x, y)]
    await axpy.launch(1, 64, ml_dtypes.bfloat16(1.7), *on_device)
    assert same(await on_device[1].to_host(), ml_dtypes.bfloat16(1.7) * x + y)


# --- packing, without a device ----------------------------------------------------------------------------------------


def pack(declared: str, value: object) -> bytes:
    return bytes(parse_signatures(f".entry k(.param {declared})")["k"].pack((value,), lambda each, parameter: None))


@pytest.mark.parametrize("name", [*NAMES, "float16"])
def test_a_scalar_is_the_bytes_of_a_class_of_its_size(name):
    scalar = (np.float16 if name == "float16" else getattr(ml_dtypes, name))(-1.5)
    size = scalar.dtype.itemsize
    assert pack(f".align {size} .b8 x[{size}]", scalar) == scalar.tobytes()
    with pytest.raises(InvalidArgument, match=rf"got \w+\.{name}\(-1\.5\): it has {size} byte"):
        pack(".align 4 .b8 x[4]", scalar)


@pytest.mark.parametrize("name", NAMES)
def test_a_float_parameter_takes_a_narrower_float(name):
    scalar = getattr(ml_dtypes, name)(-1.5)
    assert pack(".f32 x", scalar) == np.float32(-1.5).tobytes()
    assert pack(".f64 x", scalar) == np.float64(-1.5).tobytes()
    for integer in (".u32 x", ".u64 x"):
        with pytest.raises(InvalidArgument, match=rf"got ml_dtypes\.{name}\(-1\.5\)"):
            pack(integer, scalar)


def test_a_float_of_the_same_size_and_another_type_is_refused():
    with pytest.raises(InvalidArgument, match=r"a bfloat16 of 2 bytes does not fit"):
        pack(".f16 x", ml_dtypes.bfloat16(1.5))
    assert pack(".f16 x", ml_dtypes.float8_e5m2(1.5)) == np.float16(1.5).tobytes()


@pytest.mark.parametrize("value", [1.5, 3, np.float32(1.5), np.float64(1.5)])
def test_a_number_that_is_no_narrow_float_is_told_which_there_are(value):
    """PTX does not say whether two bytes are a half or a bfloat16, so a plain number cannot be converted."""
    with pytest.raises(InvalidArgument) as caught:
        pack(".align 2 .b8 x[2]", value)
    assert "numpy.float16(x) for __half, ml_dtypes.bfloat16(x) for __nv_bfloat16" in str(caught.value)
    with pytest.raises(InvalidArgument) as caught:
        pack(".align 1 .b8 x[1]", value)
    assert "ml_dtypes.float8_e4m3fn(x) for __nv_fp8_e4m3" in str(caught.value)


# --- who pays for it --------------------------------------------------------------------------------------------------


async def test_without_ml_dtypes_its_names_say_what_to_install(dev, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)  # as an import finds it where the package is missing
    for name, make in itertools.product(NAMES, (dev.empty, dev.zeros, lambda n, d: dev.full(n, 1, d))):
        with pytest.raises(LibraryNotFound, match=f"dtype '{name}' needs the Python package ml_dtypes") as caught:
            make(3, name)
        assert isinstance(caught.value, ImportError)
        assert 'pip install "atomr-trio[bfloat16]"' in str(caught.value)
    assert (await dev.zeros(3, "float16").to_host()).tolist() == [0, 0, 0]


PROGRAM = """
import sys
import numpy as np, trio
import atomr_trio
from atomr_trio.testing import worker_pid
async def main():
    async with atomr_trio.open_device(0, backend={backend!r}) as dev:
        array = dev.full(3, 1.5, "float16")
        await array.fill(np.float32(2.5))
        try:
            dev.empty(3, "V2")
        except atomr_trio.InvalidArgument:
            pass
        print(await array.to_host(), "ml_dtypes" in sys.modules)
        array = dev.full(3, 1.5, "bfloat16")
        print(await array.to_host(), "ml_dtypes" in sys.modules)
        libraries = open(f"/proc/{{worker_pid(dev)}}/maps").read()
        print("python" in libraries, "ml_dtypes" in libraries)
trio.run(main)
"""


def test_ml_dtypes_is_imported_when_it_is_named_and_never_by_the_worker():
    program = PROGRAM.format(backend=support.chosen_backend())
    command = [sys.executable, "-c", program]
    environment = support.child_environment()
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines() == ["[2.5 2.5 2.5] False", "[1.5 1.5 1.5] True", "True False"]


def test_numpys_types_are_not_taken_for_ml_dtypes():
    for dtype in map(np.dtype, ("f2", "V2", "V1", [("a", "f2")], object)):
        assert not is_of_ml_dtypes(dtype)
        assert number_kind(dtype) == dtype.kind
    assert number_kind(BFLOAT16) == "f" != BFLOAT16.kind
    assert all(is_of_ml_dtypes(np.dtype(getattr(ml_dtypes, name))) for name in NAMES)
