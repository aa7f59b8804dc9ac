"""What random kernels compute with: kinds of values, operations on them in C++, and what they mean in numpy.

The C++ has no undefined behaviour: signed sums wrap by way of unsigned types, shifts are masked, divisors are never 0.
Floats take part only in operations that are exact or rounded once, so results are the same to the bit wherever they
are computed; a NaN is only known to be one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Meaning = Callable[..., Array]

TYPES: dict[str, tuple[str, Any]] = {
    "i8": ("signed char", np.int8),
    "u8": ("unsigned char", np.uint8),
    "i16": ("short", np.int16),
    "u16": ("unsigned short", np.uint16),
    "i32": ("int", np.int32),
    "u32": ("unsigned", np.uint32),
    "i64": ("long long", np.int64),
    "u64": ("unsigned long long", np.uint64),
    "f16": ("__half", np.float16),
    "bf16": ("__nv_bfloat16", np.float32),
    "f32": ("float", np.float32),
    "f64": ("double", np.float64),
}
"""What a kind of value is called in C++, and the numpy type that holds it: for bfloat16, floats equal to it."""

KINDS = tuple(TYPES)
INTEGERS = KINDS[:8]
FLOATS = KINDS[8:]
NARROW = ("f16", "bf16")
WIDE = ("i32", "u32", "i64", "u64", *FLOATS)
"""Kinds that a shuffle moves."""

PRELUDE = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
typedef signed char i8; typedef unsigned char u8; typedef short i16; typedef unsigned short u16;
typedef int i32; typedef unsigned u32; typedef long long i64; typedef unsigned long long u64;
typedef __half f16; typedef __nv_bfloat16 bf16; typedef float f32; typedef double f64;

template <class T> __device__ T quotient(T a, T b) { return b == 0 ? a : b == (T)-1 ? (T)(0ull - a) : (T)(a / b); }
template <class T> __device__ T remains(T a, T b) { return b == 0 || b == (T)-1 ? (T)0 : (T)(a % b); }

template <class T> __device__ u64 word(T x) { return (u64)x; }
template <> __device__ u64 word(f16 x) { return __hisnan(x) ? 0x7e00 : __half_as_ushort(x); }
template <> __device__ u64 word(bf16 x) { return __hisnan(x) ? 0x7fc0 : __bfloat16_as_ushort(x); }
template <> __device__ u64 word(f32 x) { return x != x ? 0x7fc00000 : __float_as_uint(x); }
template <> __device__ u64 word(f64 x) { return x != x ? 0x7ff8ull << 48 : (u64)__double_as_longlong(x); }

__device__ __half2 pair(f16 a, f16 b) { return __halves2half2(a, b); }
__device__ __nv_bfloat162 pair(bf16 a, bf16 b) { return __halves2bfloat162(a, b); }
__device__ f16 lower(__half2 x) { return __low2half(x); }
__device__ f16 upper(__half2 x) { return __high2half(x); }
__device__ bf16 lower(__nv_bfloat162 x) { return __low2bfloat16(x); }
__device__ bf16 upper(__nv_bfloat162 x) { return __high2bfloat16(x); }

__device__ f16 fused(f16 a, f16 b, f16 c) { return __hfma(a, b, c); }
#if __CUDA_ARCH__ >= 800
__device__ bf16 fused(bf16 a, bf16 b, bf16 c) { return __hfma(a, b, c); }
#define REDUCED(name, T, joined) __device__ T reduced_##name(u32 mask, T a) { return __reduce_##name##_sync(mask, a); }
#else
__device__ bf16 fused(bf16 a, bf16 b, bf16 c)  // what is not exact gets an odd last bit, which the next rounding heeds
{
    f64 low = __fma_rd(a, b, c), high = __fma_ru(a, b, c), odd = __double_as_longlong(low) & 1 ? low : high;
    f32 below = __double2float_rd(odd), above = __double2float_ru(odd);
    return __float2bfloat16_rn(__float_as_uint(below) & 1 ? below : above);
}
#define REDUCED(name, T, joined) __device__ T reduced_##name(u32 mask, T x) { \\
    T a = __shfl_sync(mask, x, __ffs(mask) - 1); \\
    for (u32 rest = mask & (mask - 1); rest; rest &= rest - 1) { \\
        T b = __shfl_sync(mask, x, __ffs(rest) - 1); a = joined; } \\
    return a; }
#endif
REDUCED(add, u32, a + b) REDUCED(min, u32, min(a, b)) REDUCED(max, u32, max(a, b))
REDUCED(add, i32, (i32)((u32)a + (u32)b)) REDUCED(min, i32, min(a, b)) REDUCED(max, i32, max(a, b))
REDUCED(and, u32, a & b) REDUCED(or, u32, a | b) REDUCED(xor, u32, a ^ b)
"""
"""What every source begins with. Capability 7.5 has neither reductions of a warp nor fused bfloat16."""


def dtype_of(kind: str) -> Any:
    """The numpy type that holds a kind."""
    return np.dtype(TYPES[kind][1])


def bits_of(kind: str) -> int:
    """The width of a kind in memory."""
    return int(kind.lstrip("biuf"))


# --- operations: C++ with {a}, {b}, {c} for the operands and {t} for the kind, and their meaning ----------------------


def wrapping(kind: str) -> str:
    """The unsigned kind in which sums of a kind wrap: C++ widens what is narrower than int."""
    return "u64" if bits_of(kind) == 64 else "u32"


def _quotient(a: Array, b: Array) -> Array:
    """Toward zero. A divisor of 0 or -1 is spelled out in the prelude, unsigned numbers included."""
    ones = b == b.dtype.type(-1 if b.dtype.kind == "i" else np.iinfo(b.dtype).max)
    safe = np.where((b == 0) | ones, b.dtype.type(1), b)
    down = a // safe
    toward_zero = down + ((a % safe != 0) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return np.where(b == 0, a, np.where(ones, np.zeros_like(a) - a, toward_zero))


def _remainder(a: Array, b: Array) -> Array:
    ones = b == b.dtype.type(-1 if b.dtype.kind == "i" else np.iinfo(b.dtype).max)
    safe = np.where((b == 0) | ones, b.dtype.type(1), b)
    return np.where((b == 0) | ones, b.dtype.type(0), np.fmod(a, safe))


def _shift(function: Callable[[Array, Array], Array]) -> Meaning:
    def shifted(a: Array, b: Array) -> Array:
        return function(a, (b & b.dtype.type(a.dtype.itemsize * 8 - 1)).astype(a.dtype))

    return shifted


INTEGER_OPERATIONS: tuple[tuple[str, Meaning], ...] = (
    ("({t})(({u}){a} + ({u}){b})", lambda a, b: a + b),
    ("({t})(({u}){a} - ({u}){b})", lambda a, b: a - b),
    ("({t})(({u}){a} * ({u}){b})", lambda a, b: a * b),
    ("({t})(({u}){a} * ({u}){b} + ({u}){c})", lambda a, b, c: a * b + c),
    ("({t})({a} & {b})", lambda a, b: a & b),
    ("({t})({a} | {b})", lambda a, b: a | b),
    ("({t})({a} ^ {b})", lambda a, b: a ^ b),
    ("({t})(({a} & {b}) ^ ({c} & ~{b}))", lambda a, b, c: (a & b) ^ (c & ~b)),
    ("({t})~{a}", lambda a: ~a),
    ("({t})(({u})0 - ({u}){a})", lambda a: np.zeros_like(a) - a),
    ("({t})(({u}){a} << ({b} & {w}))", _shift(lambda a, n: a << n)),
    ("({t})({a} >> ({b} & {w}))", _shift(lambda a, n: a >> n)),
    ("quotient<{t}>({a}, {b})", _quotient),
    ("remains<{t}>({a}, {b})", _remainder),
    ("({t})({a} < {b} ? {a} : {b})", np.minimum),
    ("({t})({a} > {b} ? {a} : {b})", np.maximum),
    ("({t})({a} < 0 ? ({u})0 - ({u}){a} : ({u}){a})", np.abs),
)
"""Of any kind of integer. {u} is a type that wraps, {w} the width less one."""


def _each(function: Callable[..., Any]) -> Meaning:
    """Apply a function of Python integers to each element; the result is cut to the first operand's kind."""

    def apply(*operands: Array) -> Array:
        kind = operands[0].dtype
        cut = (1 << (kind.itemsize * 8)) - 1
        rows = zip(*(operand.tolist() for operand in operands), strict=True)
        return np.array([function(*row) & cut for row in rows], f"u{kind.itemsize}").view(kind)

    return apply


def _bits(function: Callable[[str], int], width: int) -> Meaning:
    """Of the digits of a number."""
    return _each(lambda a: function(format(a, f"0{width}b")))


def _permuted(a: int, b: int, selector: int) -> int:
    taken = (b << 32 | a).to_bytes(8, "little")
    return int.from_bytes(bytes(taken[selector >> 4 * at & 7] for at in range(4)), "little")


def _signed24(value: int) -> int:
    return (value & 0xFFFFFF) - (value << 1 & 0x1000000)


SPECIAL: dict[str, tuple[tuple[str, Meaning], ...]] = {
    "u32": (
        ("(u32)__popc({a})", _bits(lambda digits: digits.count("1"), 32)),
        ("(u32)__clz({a})", _bits(lambda digits: (digits + "1").index("1"), 32)),
        ("(u32)__ffs({a})", _each(lambda a: (a & -a).bit_length())),
        ("__brev({a})", _bits(lambda digits: int(digits[::-1], 2), 32)),
        ("__umulhi({a}, {b})", _each(lambda a, b: a * b >> 32)),
        ("__umul24({a}, {b})", _each(lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF))),
        ("__usad({a}, {b}, {c})", _each(lambda a, b, c: abs(a - b) + c)),
        ("__uhadd({a}, {b})", _each(lambda a, b: (a + b) >> 1)),
        ("__urhadd({a}, {b})", _each(lambda a, b: (a + b + 1) >> 1)),
        ("__byte_perm({a}, {b}, {c} & 0x7777)", _each(_permuted)),
        ("__funnelshift_l({a}, {b}, {c})", _each(lambda a, b, c: (b << 32 | a) << (c & 31) >> 32)),
        ("__funnelshift_lc({a}, {b}, {c})", _each(lambda a, b, c: (b << 32 | a) << min(c, 32) >> 32)),
        ("__funnelshift_r({a}, {b}, {c})", _each(lambda a, b, c: (b << 32 | a) >> (c & 31))),
        ("__funnelshift_rc({a}, {b}, {c})", _each(lambda a, b, c: (b << 32 | a) >> min(c, 32))),
        ("__dp4a({a}, {b}, {c})", _each(lambda a, b, c: c + sum((a >> s & 255) * (b >> s & 255) for s in _BYTES))),
        (
            "__vadd4({a}, {b})",
            _each(lambda a, b: sum((((a >> s) + (b >> s)) & 255) << s for s in _BYTES)),
        ),
        ("({a} << 7 | {a} >> 25)", _each(lambda a: a << 7 | a >> 25)),
        ("({a} >> 5 & 0x3ff)", _each(lambda a: a >> 5 & 0x3FF)),
        ("(({a} & ~0xff00u) | ({b} & 0xffu) << 8)", _each(lambda a, b: a & ~0xFF00 | (b & 255) << 8)),
    ),
    "i32": (
        ("__mulhi({a}, {b})", _each(lambda a, b: a * b >> 32)),
        ("__mul24({a}, {b})", _each(lambda a, b: _signed24(a) * _signed24(b))),
        ("__hadd({a}, {b})", _each(lambda a, b: (a + b) >> 1)),
        ("__rhadd({a}, {b})", _each(lambda a, b: (a + b + 1) >> 1)),
        ("min({a}, {b})", np.minimum),
        ("max({a}, {b})", np.maximum),
    ),
    "u64": (
        ("(u64)__popcll({a})", _bits(lambda digits: digits.count("1"), 64)),
        ("(u64)__clzll({a})", _bits(lambda digits: (digits + "1").index("1"), 64)),
        ("(u64)__ffsll({a})", _each(lambda a: (a & -a).bit_length())),
        ("__brevll({a})", _bits(lambda digits: int(digits[::-1], 2), 64)),
        ("__umul64hi({a}, {b})", _each(lambda a, b: a * b >> 64)),
        ("((u64)(u32){a} * (u32){b})", _each(lambda a, b: (a & 0xFFFFFFFF) * (b & 0xFFFFFFFF))),
        ("({a} << 40 | {a} >> 24)", _each(lambda a: a << 40 | a >> 24)),
    ),
    "i64": (
        ("__mul64hi({a}, {b})", _each(lambda a, b: a * b >> 64)),
        ("min({a}, {b})", np.minimum),
        ("max({a}, {b})", np.maximum),
    ),
}
"""Of one kind of integer."""

_BYTES = (0, 8, 16, 24)


def _fused(name: str, kind: Any) -> Meaning:
    """The C library's own fused product and sum: rounded once."""
    function = getattr(ctypes.CDLL(None), name)
    function.argtypes, function.restype = [kind] * 3, kind

    def apply(a: Array, b: Array, c: Array) -> Array:
        rows = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
        return np.array([function(*row) for row in rows], a.dtype)

    return apply


def _extreme(function: Callable[[Array, Array], Array], lesser: bool) -> Meaning:
    """NaN loses against a number, and -0 is less than 0."""

    def apply(a: Array, b: Array) -> Array:
        zeros = np.signbit(a) | np.signbit(b) if lesser else np.signbit(a) & np.signbit(b)
        zero = np.where(zeros, a.dtype.type(-0.0), a.dtype.type(0.0))
        number = np.where(np.isnan(a), b, np.where(np.isnan(b), a, function(a, b)))
        return np.where((a == 0) & (b == 0), zero, number)

    return apply


FLOAT_OPERATIONS: tuple[tuple[str, Meaning], ...] = (
    ("({a} + {b})", lambda a, b: a + b),
    ("({a} - {b})", lambda a, b: a - b),
    ("({a} * {b})", lambda a, b: a * b),
    ("({a} * {b} + {c})", lambda a, b, c: a * b + c),
    ("({a} / {b})", lambda a, b: a / b),
    ("sqrt({a})", np.sqrt),
    ("fabs({a})", np.abs),
    ("(-{a})", lambda a: -a),
    ("fmin({a}, {b})", _extreme(np.minimum, True)),
    ("fmax({a}, {b})", _extreme(np.maximum, False)),
    ("floor({a})", np.floor),
    ("ceil({a})", np.ceil),
    ("trunc({a})", np.trunc),
    ("rint({a})", np.rint),
    ("({a} < {b} ? {b} : {c})", lambda a, b, c: np.where(a < b, b, c)),
)
FUSED: dict[str, tuple[str, Meaning]] = {
    "f32": ("__fmaf_rn({a}, {b}, {c})", _fused("fmaf", ctypes.c_float)),
    "f64": ("__fma_rn({a}, {b}, {c})", _fused("fma", ctypes.c_double)),
}


def _to_bfloat16(x: Array) -> Array:
    """Doubles, rounded once to what bfloat16 has: to a float with an odd last bit if it is not exact, then on."""
    near = x.astype(np.float32)
    wide, bits = near.astype(np.float64), near.view(np.uint32)
    toward_zero = bits - (np.abs(wide) > np.abs(x)).astype(np.uint32)
    odd = np.where(wide == x, bits, toward_zero | np.uint32(1))
    rounded = odd + np.uint32(0x7FFF) + (odd >> np.uint32(16) & np.uint32(1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), np.float32(np.nan), rounded.view(np.float32))


def rounded(kind: str, x: Array) -> Array:
    """Floats of any kind as floats of a narrow one."""
    return _to_bfloat16(x.astype(np.float64)) if kind == "bf16" else x.astype(np.float16)


def _widened(kind: str, function: Callable[..., Array]) -> Meaning:
    """A function of doubles, of whose result a narrow float is made."""
    return lambda *operands: rounded(kind, function(*(operand.astype(np.float64) for operand in operands)))


def _odd_fused(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, where the product is exact, with an odd last bit if the sum is not."""
    product = a * b
    total = product + c
    back = total - product
    error = (product - (total - back)) + (c - back)
    inexact = np.isfinite(error) & (error != 0)
    even = total.view(np.uint64) & np.uint64(1) == 0
    return np.where(inexact & even, np.nextafter(total, np.copysign(np.inf, error)), total)


def _narrow_operations(kind: str) -> tuple[tuple[str, Meaning], ...]:
    """Twice the precision and two more bits make rounding twice harmless, but for the fused operation."""
    add, subtract, multiply = (_widened(kind, function) for function in (np.add, np.subtract, np.multiply))
    return (
        ("__hadd_rn({a}, {b})", add),
        ("__hsub_rn({a}, {b})", subtract),
        ("__hmul_rn({a}, {b})", multiply),
        ("lower(__hadd2_rn(pair({a}, {c}), pair({b}, {c})))", lambda a, b, c: add(a, b)),
        ("upper(__hmul2_rn(pair({c}, {a}), pair({c}, {b})))", lambda a, b, c: multiply(a, b)),
        ("fused({a}, {b}, {c})", _widened(kind, _odd_fused)),
        ("__habs({a})", np.abs),
        ("(-{a})", lambda a: -a),
        ("__hmin({a}, {b})", _extreme(np.minimum, True)),
        ("__hmax({a}, {b})", _extreme(np.maximum, False)),
        ("hfloor({a})", np.floor),
        ("hceil({a})", np.ceil),
        ("htrunc({a})", np.trunc),
        ("hrint({a})", np.rint),
        ("({a} < {b} ? {b} : {c})", lambda a, b, c: np.where(a < b, b, c)),
    )


_OPERATIONS: dict[str, Sequence[tuple[str, Meaning]]] = {
    **{kind: (*INTEGER_OPERATIONS, *SPECIAL.get(kind, ())) for kind in INTEGERS},
    **{kind: _narrow_operations(kind) for kind in NARROW},
    **{kind: (*FLOAT_OPERATIONS, FUSED[kind]) for kind in FUSED},
}


def operations(kind: str) -> Sequence[tuple[str, Meaning]]:
    """What there is to do with values of a kind."""
    return _OPERATIONS[kind]


def _to_integer(to: str, source: str) -> Meaning:
    """Toward zero, to the nearest integer that there is. NaN is 0, or the highest bit where a side has 64 bits."""
    limits = np.iinfo(dtype_of(to))
    wide = 64 in (bits_of(to), bits_of(source))
    nan = (1 << (limits.bits - 1)) * (1 if limits.min == 0 else -1) if wide else 0

    def one(value: float) -> int:
        if value != value:
            return nan
        return limits.max if value >= limits.max else limits.min if value <= limits.min else int(value)

    return lambda x: np.array([one(value) for value in x.tolist()], dtype_of(to))


_INTEGER_NAMES = {"i32": "int", "u32": "uint", "i64": "ll", "u64": "ull"}


_FROM_FLOAT = {"f16": "__float2half_rn", "bf16": "__float2bfloat16_rn"}


def conversion(to: str, source: str) -> tuple[str, Meaning]:
    """A cast. From a float to an integer it is an intrinsic: C++ leaves open what numbers out of range become.

    A narrow float becomes something else by way of a float, and comes from it.
    """
    if source in NARROW:
        if to == "f32":
            return "(f32){a}", lambda a: a.astype(np.float32)
        template, meaning = conversion(to, "f32")
        return template.format(a="((f32){a})"), lambda a: meaning(a.astype(np.float32))
    if to in NARROW:
        return f"{_FROM_FLOAT[to]}((f32){{a}})", lambda a: rounded(to, a.astype(np.float32))
    if source in FLOATS and to in INTEGERS:
        middle = to if to in _INTEGER_NAMES else "i32"
        cast = _to_integer(middle, source)
        name = {"f32": "float", "f64": "double"}[source]
        return f"({to})__{name}2{_INTEGER_NAMES[middle]}_rz({{a}})", lambda a: cast(a).astype(dtype_of(to))
    return f"({to}){{a}}", lambda a: a.astype(dtype_of(to))


COMPARISONS: dict[str, Meaning] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}

CONNECTIVES: dict[str, Meaning] = {"&&": np.logical_and, "||": np.logical_or}

ATOMICS: dict[str, tuple[tuple[str, ...], Any]] = {
    "atomicAdd": (("i32", "u32", "u64"), np.add),
    "atomicMin": (("i32", "u32", "i64", "u64"), np.minimum),
    "atomicMax": (("i32", "u32", "i64", "u64"), np.maximum),
    "atomicAnd": (("i32", "u32", "u64"), np.bitwise_and),
    "atomicOr": (("i32", "u32", "u64"), np.bitwise_or),
    "atomicXor": (("i32", "u32", "u64"), np.bitwise_xor),
}
"""Their effects commute; their results, which tell the order, are not looked at."""

ADDED_FLOATS: dict[str, int] = {"f32": 63, "f64": 63, "f16": 3}
"""Kinds of float that atomics add, and the greatest of the whole numbers that are added: their sums are exact."""

REDUCTIONS: dict[str, tuple[tuple[str, ...], Any]] = {
    "add": (("i32", "u32"), np.add),
    "min": (("i32", "u32"), np.minimum),
    "max": (("i32", "u32"), np.maximum),
    "and": (("u32",), np.bitwise_and),
    "or": (("u32",), np.bitwise_or),
    "xor": (("u32",), np.bitwise_xor),
}


def word(kind: str, value: Array) -> Array:
    """What the prelude's `word` makes of a value."""
    if kind in INTEGERS:
        return value.astype(np.uint64)
    return np.where(np.isnan(value), np.uint64(_NAN[kind]), bits_in_memory(kind, value).astype(np.uint64))


def bits_in_memory(kind: str, value: Array) -> Array:
    """The bits of a value, as unsigned numbers of the kind's width."""
    bits = value.view(f"u{value.dtype.itemsize}")
    return (bits >> np.uint32(16)).astype(np.uint16) if kind == "bf16" else bits


_NAN = {"f16": 0x7E00, "bf16": 0x7FC0, "f32": 0x7FC00000, "f64": 0x7FF8 << 48}
