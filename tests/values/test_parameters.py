"""The parameters of a kernel: what is read from PTX, what is packed, and what is refused."""

from __future__ import annotations

import ctypes
import enum
import math
import pickle
import random
import struct

import numpy as np
import pytest

from atomr_trio._values.errors import InvalidArgument
from atomr_trio._values.parameters import Parameter, ParameterKind
from atomr_trio._values.signatures import KernelSignature, parse_signatures
from support.nvrtc import compile_ptx

KINDS = """
struct Particle { float mass; double x; char tag[5]; };
struct Empty {};
enum Colour { RED };
extern "C" __global__ void every(float a, double b, int c, unsigned char d, short e, long long f, bool g,
                                 const float* __restrict__ p, Particle s, float3 t, float4 u, Empty v, Colour w,
                                 void (*fp)(int), float (&array)[4], int2 x) {}
extern "C" __global__ void __launch_bounds__(128, 2) nothing() {}
template <class T, int N> __global__ void scale(T* p, T by) { *p *= by * N; }
template __global__ void scale<double, 3>(double*, double);
"""
DIALECTS = ("compute_80", "compute_90", "compute_100", "compute_120")


class Array:
    """Stands for a device array: the packer only knows it through `address_of`."""

    def __init__(self, address: int) -> None:
        self.address = address


def address_of(value: object, parameter: Parameter) -> int | None:
    return value.address if isinstance(value, Array) else None


def signature(*types: str) -> KernelSignature:
    header = ", ".join(f".param {declared} p{index}" for index, declared in enumerate(types))
    return parse_signatures(f".visible .entry k({header}) {{ ret; }}")["k"]


def pack(declared: str, value: object) -> bytes:
    return signature(declared).pack((value,), address_of)


def refusal(declared: str, value: object) -> str:
    with pytest.raises(InvalidArgument) as caught:
        pack(declared, value)
    return str(caught.value)


# ---------------------------------------------------------------------------------------------------- reading headers


@pytest.mark.parametrize("arch", DIALECTS)
def test_every_dialect_of_nvrtc_gives_the_same_parameters(arch: str) -> None:
    signatures = parse_signatures(compile_ptx(KINDS, arch))
    F, N, P, S = ParameterKind.FLOAT, ParameterKind.INTEGER, ParameterKind.POINTER_OR_INTEGER, ParameterKind.STRUCT
    assert [(p.kind, p.size, p.alignment, p.offset) for p in signatures["every"].parameters] == [
        (F, 4, 4, 0),
        (F, 8, 8, 8),
        (N, 4, 4, 16),
        (N, 1, 1, 20),
        (N, 2, 2, 22),
        (P, 8, 8, 24),
        (N, 1, 1, 32),
        (P, 8, 8, 40),
        (S, 24, 8, 48),
        (S, 12, 4, 72),
        (S, 16, 16, 96),
        (S, 1, 1, 112),
        (N, 4, 4, 116),
        (P, 8, 8, 120),
        (P, 8, 8, 128),
        (S, 8, 8, 136),
    ]
    assert signatures["every"].bytes == 144
    assert [p.type_name for p in signatures["every"].parameters][:9:8] == [".f32", ".b8[24]"]
    assert signatures["nothing"].parameters == ()
    assert signatures["nothing"].bytes == 0
    (template,) = (name for name in signatures if "scale" in name)
    assert [p.kind for p in signatures[template].parameters] == [P, F]


@pytest.mark.parametrize(
    ("declared", "kind", "size", "alignment"),
    [
        (".f32", ParameterKind.FLOAT, 4, 4),
        (".b32", ParameterKind.INTEGER, 4, 4),
        (".s16", ParameterKind.INTEGER, 2, 2),
        (".u64 .ptr .global .align 1", ParameterKind.POINTER_OR_INTEGER, 8, 8),
        (".u64 .ptr .align 16", ParameterKind.POINTER_OR_INTEGER, 8, 8),
        (".u64 .ptr .shared", ParameterKind.POINTER_OR_INTEGER, 8, 8),
        (".align 16 .u64", ParameterKind.POINTER_OR_INTEGER, 8, 16),
        (".b128", ParameterKind.STRUCT, 16, 16),
    ],
)
def test_a_declaration_is_understood(declared: str, kind: ParameterKind, size: int, alignment: int) -> None:
    (parameter,) = signature(declared).parameters
    assert (parameter.kind, parameter.size, parameter.alignment) == (kind, size, alignment)


def test_hand_written_headers_are_read() -> None:
    # Hand-written PTX.
    ptx = """
    // .visible .entry commented(.param .u32 a)
    /* .entry also_commented() */
    .file 1 "odd .entry name(.param .f32 x).cu"
    .entry bare { ret; }
    .weak .entry _$odd%name ( .param .align 0x8 .b8 s [ 12 ] ,
        .param .f32 v[2], .param .u8 last ) .maxntid 256, 1, 1 { ret; }
    .visible .func (.param .b32 r) helper(.param .b32 a) { ret; }
    """
    signatures = parse_signatures(ptx)
    assert list(signatures) == ["bare", "_$odd%name"]
    first, second, last = signatures["_$odd%name"].parameters
    assert (first.kind, first.size, first.alignment) == (ParameterKind.STRUCT, 12, 8)
    assert (second.kind, second.size, second.offset) == (ParameterKind.STRUCT, 8, 12)
    assert (last.offset, signatures["_$odd%name"].bytes) == (20, 21)


@pytest.mark.parametrize("declared", [".texref", ".f128", ".align .f32", "f32"])
def test_a_header_that_is_not_understood_is_refused_by_name(declared: str) -> None:
    with pytest.raises(InvalidArgument, match=r"kernel 'k' declares parameter 1 as '.*p1'"):
        signature(".u32", declared)


def test_a_signature_is_a_value() -> None:
    one, other = signature(".f32", ".u64"), signature(".f32", ".u64")
    one.pack((1.0, 2), address_of)
    assert one == other
    assert hash(one) == hash(other)
    assert pickle.loads(pickle.dumps(one)).pack((1.0, 2), address_of) == other.pack((1.0, 2), address_of)


# ---------------------------------------------------------------------------------------------------- packing


@pytest.mark.parametrize("seed", range(20))
def test_a_block_is_laid_out_as_a_c_compiler_does(seed: int) -> None:
    random_ = random.Random(seed)
    choices = [
        (".f32", ctypes.c_float, 1.5),
        (".f64", ctypes.c_double, -2.25),
        (".u8", ctypes.c_uint8, 200),
        (".u16", ctypes.c_uint16, 60_000),
        (".u32", ctypes.c_uint32, 4_000_000_000),
        (".u64", ctypes.c_uint64, 1 << 63),
        (".align 2 .b8 {}[6]", ctypes.c_uint16 * 3, struct.pack("<3H", 1, 2, 3)),
        (".align 8 .b8 {}[16]", ctypes.c_uint64 * 2, struct.pack("<2Q", 4, 5)),
    ]
    picked = [random_.choice(choices) for _ in range(random_.randint(1, 30))]

    class Block(ctypes.Structure):
        _fields_ = [(f"p{index}", kind) for index, (_, kind, _) in enumerate(picked)]

    names = [declared if "{}" in declared else declared + " {}" for declared, _, _ in picked]
    header = ", ".join(".param " + name.format(f"p{index}") for index, name in enumerate(names))
    kernel = parse_signatures(f".entry k({header}) {{ ret; }}")["k"]
    expected = Block()
    for index, (_, kind, value) in enumerate(picked):
        setattr(expected, f"p{index}", kind.from_buffer_copy(value) if isinstance(value, bytes) else value)
    assert [p.offset for p in kernel.parameters] == [getattr(Block, f"p{i}").offset for i in range(len(picked))]
    block = kernel.pack([value for _, _, value in picked], address_of)
    assert len(block) == kernel.bytes
    assert block == bytes(expected)[: kernel.bytes]


class Level(enum.IntEnum):
    HIGH = 7


class Real(float):
    pass


@pytest.mark.parametrize(
    ("declared", "value", "expected"),
    [
        (".u32", 7, struct.pack("<I", 7)),
        (".u32", 2**32 - 1, b"\xff" * 4),
        (".u32", -(2**31), struct.pack("<i", -(2**31))),
        (".s8", -128, b"\x80"),
        (".u8", 255, b"\xff"),
        (".u16", True, b"\x01\x00"),
        (".u32", Level.HIGH, struct.pack("<I", 7)),
        (".u32", np.int64(-5), struct.pack("<i", -5)),
        (".u8", np.bool_(True), b"\x01"),
        (".u64", 2**64 - 1, b"\xff" * 8),
        (".u64", -1, b"\xff" * 8),
        (".u64", np.uint64(2**63), struct.pack("<Q", 2**63)),
        (".u64", Array(0x7F00_0000_1000), struct.pack("<Q", 0x7F00_0000_1000)),
        (".u64 .ptr .align 1", Array(1 << 44), struct.pack("<Q", 1 << 44)),
        (".f32", 2.5, struct.pack("<f", 2.5)),
        (".f32", 0.1, struct.pack("<f", 0.1)),
        (".f32", math.inf, struct.pack("<f", math.inf)),
        (".f32", 1e-60, struct.pack("<f", 0.0)),
        (".f32", Real(2.5), struct.pack("<f", 2.5)),
        (".f32", 2**24, struct.pack("<f", 2.0**24)),
        (".f32", True, struct.pack("<f", 1.0)),
        (".f32", np.int32(-3), struct.pack("<f", -3.0)),
        (".f32", np.float32(0.1), struct.pack("<f", 0.1)),
        (".f32", np.float16(1.5), struct.pack("<f", 1.5)),
        (".f64", 1e300, struct.pack("<d", 1e300)),
        (".f64", np.float32(1.5), struct.pack("<d", 1.5)),
        (".f64", np.float64(0.1), struct.pack("<d", 0.1)),
        (".f64", 2**100, struct.pack("<d", 2.0**100)),
    ],
)
def test_a_number_is_packed_in_the_width_of_its_parameter(declared: str, value: object, expected: bytes) -> None:
    assert pack(declared, value) == expected


def test_nan_stays_nan() -> None:
    assert math.isnan(struct.unpack("<f", pack(".f32", math.nan))[0])
    assert math.isnan(struct.unpack("<d", pack(".f64", np.float32(math.nan)))[0])


class Pair(ctypes.Structure):
    _fields_ = [("a", ctypes.c_int32), ("b", ctypes.c_float)]


@pytest.mark.parametrize(
    "value",
    [
        Pair(3, 2.5),
        struct.pack("<if", 3, 2.5),
        bytearray(struct.pack("<if", 3, 2.5)),
        memoryview(struct.pack("<if", 3, 2.5)),
        np.array([(3, 2.5)], dtype=[("a", np.int32), ("b", np.float32)])[0],
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_struct_takes_bytes_and_whatever_has_its_layout(value: object) -> None:
    kernel = parse_signatures(".entry k(.param .align 4 .b8 s[8])")["k"]
    assert kernel.pack((value,), address_of) == struct.pack("<if", 3, 2.5)


@pytest.mark.parametrize(
    ("size", "value", "expected"),
    [
        (16, 1 + 2j, struct.pack("<dd", 1, 2)),
        (16, np.complex128(1 + 2j), struct.pack("<dd", 1, 2)),
        (8, np.complex64(1 + 2j), struct.pack("<ff", 1, 2)),
        (2, np.float16(1.5), struct.pack("<e", 1.5)),
    ],
)
def test_complex_numbers_and_halves_are_structs(size: int, value: object, expected: bytes) -> None:
    kernel = parse_signatures(f".entry k(.param .align 2 .b8 s[{size}])")["k"]
    assert kernel.pack((value,), address_of) == expected


def test_a_mutable_struct_is_copied_when_it_is_packed() -> None:
    kernel = parse_signatures(".entry k(.param .align 1 .b8 s[2])")["k"]
    data = bytearray(b"ab")
    block = kernel.pack((data,), address_of)
    data[:] = b"xy"
    assert block == b"ab"


# ---------------------------------------------------------------------------------------------------- refusing


@pytest.mark.parametrize(
    ("declared", "value", "said"),
    [
        (".u32", 2**32, "outside of -2**31 ... 2**32 - 1"),
        (".u32", -(2**31) - 1, "outside"),
        (".u8", np.int64(256), "outside"),
        (".u64", 2**64, "outside of -2**63"),
        (".u64", -(2**63) - 1, "outside"),
        (".u32", 2.0, "pass int(x)"),
        (".u64", 2.0, "pass int(x)"),
        (".u32", np.float32(2), "pass int(x)"),
        (".u32", Array(1), "a device array can only go where the kernel takes a pointer"),
        (".f32", Array(1), "a device array can only go where the kernel takes a pointer"),
        (".f32", 1e39, "finite and does not fit"),
        (".f32", 3.4028235677973366e38, "finite and does not fit"),
        (".f32", Real(1e39), "finite and does not fit"),
        (".f32", np.float64(0.5), "np.float32(x) rounds it"),
        (".f32", 2**24 + 1, "cannot be represented exactly"),
        (".f32", 2**200, "cannot be represented exactly"),
        (".f64", 2**53 + 1, "cannot be represented exactly"),
        (".f64", 2**2000, "cannot be represented exactly"),
        (".f64", np.longdouble(0.5), "of 16 bytes does not fit"),
        (".f64", 1j, "got complex"),
        (".f32", "1.0", "got str '1.0'"),
        (".u64", None, "a null pointer is the integer 0"),
        (".u32", None, "got NoneType"),
        (".u64", "address", "got str"),
        (".u64", [1, 2], "got list"),
        (".u64", np.zeros(3, np.float32), "dev.to_device"),
        (".u32", np.array(3), "dev.to_device"),
        (".f32", np.zeros(1), "numpy.ndarray of float64, shape (1,)"),
        (".u64", b"12345678", "got bytes"),
        (".b128", 3, "expected a struct of 16 bytes (.b128), got int 3"),
        (".b128", Array(1), "a device array can only go where"),
        (".b128", b"short", "it has 5 bytes"),
        (".b128", bytearray(17), "it has 17 bytes"),
        (".b128", np.complex64(1), "it has 8 bytes"),
        (".b128", np.zeros(2), "dev.to_device"),
        (".b128", np.float64(1), "a struct takes structured and complex scalars, and float16"),
        (".b128", [0] * 16, "got list"),
        (".b128", "x" * 16, "got str"),
        (".b128", None, "got NoneType"),
    ],
)
def test_what_does_not_fit_is_refused(declared: str, value: object, said: str) -> None:
    text = refusal(declared, value)
    assert said in text
    assert text.startswith("argument 0 of kernel 'k': expected ")


def test_a_python_complex_is_not_narrowed_and_the_advice_says_how() -> None:
    kernel = parse_signatures(".entry k(.param .align 8 .b8 s[8])")["k"]
    with pytest.raises(InvalidArgument, match=r"np\.complex64"):
        kernel.pack((1j,), address_of)


@pytest.mark.parametrize(
    "dtype", [np.dtype([("a", ">i4"), ("b", "<i4")]), np.dtype([("a", object)])], ids=["swapped", "objects"]
)
def test_a_structured_scalar_whose_bytes_mean_nothing_on_a_gpu_is_refused(dtype: np.dtype) -> None:
    kernel = parse_signatures(".entry k(.param .align 8 .b8 s[8])")["k"]
    with pytest.raises(InvalidArgument, match="Python objects or swapped bytes"):
        kernel.pack((np.zeros(1, dtype)[0],), address_of)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_arguments_is_refused_with_what_the_kernel_takes(count: int) -> None:
    with pytest.raises(InvalidArgument, match=rf"takes 2 arguments, got {count}") as caught:
        signature(".f32", ".u64").pack((1,) * count, address_of)
    assert "a float of 4 bytes (.f32); a device array or an integer of 8 bytes (.u64)" in str(caught.value)


@pytest.mark.parametrize("kind", [tuple, list])
def test_arguments_that_are_packed_into_one_are_said_to_be(kind: type) -> None:
    with pytest.raises(InvalidArgument, match="takes 2 arguments, got 1") as caught:
        signature(".f32", ".u64").pack((kind((1, 2)),), address_of)
    assert f"not packed into a {kind.__name__}: `launch(grid, block, x, y)`; it takes: a float" in str(caught.value)
    with pytest.raises(InvalidArgument, match="takes 0 arguments, got 1") as caught:
        signature().pack((kind(),), address_of)
    assert "not packed" in str(caught.value)


def test_the_argument_that_is_wrong_is_the_one_named() -> None:
    kernel = signature(".f32", ".u64", ".f32", ".u8")
    for index, bad in enumerate((1e39, None, 1e39, 256)):
        good: list[object] = [1.0, Array(8), 2.0, 3]
        good[index] = bad
        with pytest.raises(InvalidArgument, match=f"argument {index} of kernel 'k'"):
            kernel.pack(good, address_of)


def test_what_the_address_function_raises_passes_through() -> None:
    def freed(value: object, parameter: Parameter) -> int | None:
        raise InvalidArgument("the array was freed")

    with pytest.raises(InvalidArgument, match=r"^the array was freed$"):
        signature(".u64").pack((Array(1),), freed)
    with pytest.raises(InvalidArgument, match=r"^the array was freed$"):
        signature(".u32").pack((Array(1),), freed)


def test_a_kernel_without_parameters_packs_to_nothing() -> None:
    assert parse_signatures(".entry k() { ret; }")["k"].pack((), address_of) == b""
