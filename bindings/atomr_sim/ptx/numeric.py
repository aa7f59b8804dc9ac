"""The arithmetic of PTX that numpy lacks: exact fused multiply-add, directed rounding, wide products, bit fields.

Every function takes typed numpy scalars or arrays, in any mix, and returns bits of a definite type. This file does not
depend on lanes or instructions. The approximate functions (`ex2.approx` and its like) are exact to the last bit or so,
where the hardware is not: compare with tolerances.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from .minifloat import E4M3, E5M2

Value = Any
"""A numpy scalar or array: functions here are written for both."""

U16, U32, U64 = np.uint16, np.uint32, np.uint64
S32, S64 = np.int32, np.int64
F16, F32, F64 = np.float16, np.float32, np.float64

_SPLITTER = F64(134217729.0)
_ONE64 = U64(1)
_SMALLEST_NORMAL_F32 = F32(2.0**-126)


def _two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """a + b rounded, and the error that rounding made (exact)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def _two_product(a: Value, b: Value) -> tuple[Value, Value]:
    """a * b rounded, and the error that rounding made (exact while nothing overflows or underflows)."""
    product = a * b
    big = _SPLITTER * a
    a_high = big - (big - a)
    a_low = a - a_high
    big = _SPLITTER * b
    b_high = big - (big - b)
    b_low = b - b_high
    return product, a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


def _odd_sum(a: Value, b: Value) -> Value:
    """a + b rounded to odd: an inexact result gets an odd last bit, so that a second rounding cannot go wrong."""
    total, error = _two_sum(a, b)
    bits = total.view(S64)
    outward = (error > 0) == (total > 0)
    moved = np.where(outward, bits + 1, bits - 1)
    keep = (error == 0) | ((bits & 1) != 0) | ~np.isfinite(total)
    return np.where(keep, bits, moved).view(F64)


def fma_f64(a: Value, b: Value, c: Value) -> Value:
    """a * b + c with one rounding: Boldo and Melquiond's method, and fractions beyond the range of its splitting."""
    product, low = _two_product(b, a)
    high, rest = _two_sum(c, low)
    top, remainder = _two_sum(product, high)
    exact = top + _odd_sum(rest, remainder)
    result = np.where(np.isfinite(exact) & (product != 0), exact, product + c)
    overflown = np.isinf(product)
    if np.any(overflown):
        # The product is finite before it is rounded: it cannot outweigh an infinite summand.
        result = np.where(overflown & np.isfinite(a) & np.isfinite(b) & np.isinf(c), c, result)
    beyond = _beyond_splitting(a, b, c, product)
    return np.where(beyond, _fma_by_fractions(a, b, c, beyond)[0], result) if np.any(beyond) else result


def _beyond_splitting(a: Value, b: Value, c: Value, product: Value) -> Value:
    """Return where the operands are finite and `_two_product` is not exact."""
    size = np.abs(product)
    outside = ~((size > 1e-260) & (size < 1e290)) | (np.abs(a) > 1e290) | (np.abs(b) > 1e290)
    if np.any(outside):
        outside = outside & (a != 0) & (b != 0) & np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    return outside


@np.vectorize(otypes=[F64, F64])
def _fma_by_fractions(a: float, b: float, c: float, wanted: bool) -> tuple[float, float]:
    """a * b + c, rounded to nearest, and the sign of the error that rounding made; zeros if it is not requested."""
    if not wanted:
        return 0.0, 0.0
    total = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    try:
        nearest = float(total)
    except OverflowError:
        nearest = math.inf if total > 0 else -math.inf
        return nearest, -nearest
    error = total - Fraction(nearest)
    return nearest, float(error > 0) - float(error < 0)


def fma_f32(a: Value, b: Value, c: Value) -> Value:
    """a * b + c with one rounding.

    The product of two f32 is exact in f64.  Rounding the sum twice can only go wrong when the first rounding lands
    exactly half way between two f32, or below the normal range, so these lanes alone are done again.
    """
    total = np.multiply(a, b, dtype=F64)
    total += c
    rounded = total.astype(F32)
    small = np.abs(rounded) <= _SMALLEST_NORMAL_F32
    if np.count_nonzero(small):
        small = small & (total != 0)
    # In place, here and above: arrays of f64 overflow the processor's caches.
    cut_off = total.view(U64)
    cut_off &= U64(0x1FFFFFFF)
    doubtful = small | (cut_off == U64(0x10000000))
    return _through_odd(rounded, doubtful, a, b, c) if np.count_nonzero(doubtful) else rounded


def _through_odd(rounded: Value, doubtful: Value, *operands: Value) -> Value:
    """Compute the doubtful sums of f32 again, rounded to odd first; all others are kept."""
    a, b, c = (np.broadcast_to(value, np.shape(doubtful))[doubtful].astype(F64) for value in operands)
    result = np.asarray(rounded)
    result[doubtful] = _odd_sum(a * b, c).astype(F32)
    return result[()]


def fma_f16(a: Value, b: Value, c: Value) -> Value:
    """a * b + c of f16 with one rounding: the product is exact in f64, and the sum is rounded to odd."""
    return _odd_sum(a.astype(F64) * b, np.asarray(c, F64)).astype(F16)


def fma_bf16(a: Value, b: Value, c: Value) -> Value:
    """a * b + c of bf16, held as f32 and rounded to odd: rounding it once more, to bf16, cannot go wrong."""
    return _odd_f32(_odd_sum(a.astype(F64) * b, np.asarray(c, F64)))


def _odd_f32(value: Value) -> Value:
    """An f64 as f32, rounded to odd."""
    cut = narrow(value, "rz")
    inexact = cut.astype(F64) != value
    return np.where(np.isfinite(value), (cut.view(U32) | inexact.astype(U32)).view(F32), cut)


def _directed(rounded: Value, error: Value, mode: str) -> Value:
    """Move a nearest-even result by one unit if its error shows that the requested direction is the other one."""
    if mode == "rp":
        move, toward = error > 0, np.inf
    elif mode == "rm":
        move, toward = error < 0, -np.inf
    else:
        move, toward = ((error < 0) & (rounded > 0)) | ((error > 0) & (rounded < 0)), 0.0
    return np.where(move, np.nextafter(rounded, rounded.dtype.type(toward)), rounded)


def narrow(value: Value, mode: str) -> Value:
    """An f64 as f32, rounded as `mode` says."""
    rounded = value.astype(F32)
    if mode == "rn":
        return rounded
    return _directed(rounded, value - rounded.astype(F64), mode)


def add_directed(a: Value, b: Value, mode: str) -> Value:
    """a + b in the operands' own type with the rounding `mode`."""
    total, error = _two_sum(a.astype(F64), b.astype(F64))
    if a.dtype == F32:
        rounded = total.astype(F32)
        return _directed(rounded, (total - rounded) + error, mode)
    overflown = np.isinf(total) & np.isfinite(a) & np.isfinite(b)
    return _directed(total, np.where(overflown, -total, error), mode)


def mul_directed(a: Value, b: Value, mode: str) -> Value:
    """a * b in the operands' own type with the rounding `mode`."""
    if a.dtype == F32:
        return narrow(a.astype(F64) * b, mode)
    return fma_directed(a, b, F64(-0.0), mode)


def fma_directed(a: Value, b: Value, c: Value, mode: str) -> Value:
    """a * b + c in the operands' own type with the rounding `mode`."""
    if a.dtype == F32:
        total, error = _two_sum(a.astype(F64) * b, np.asarray(c, F64))
        rounded = total.astype(F32)
        return _directed(rounded, (total - rounded) + error, mode)
    product, low = _two_product(a, b)
    rounded = fma_f64(a, b, c)
    total, rest = _two_sum(product, c)
    error = (total - rounded) + (rest + low)
    beyond = _beyond_splitting(a, b, c, product)
    if np.any(beyond):
        error = np.where(beyond, _fma_by_fractions(a, b, c, beyond)[1], error)
    return _directed(rounded, error, mode)


def _residual(a: Value, b: Value, c: Value) -> Value:
    """a * b + c of f64; if it is too small for one, a number with its sign."""
    result = fma_f64(a, b, c)
    lost = (result == 0) & (c != 0) & (np.abs(c) < 1e-290)
    return np.where(lost, _fma_by_fractions(a, b, c, lost)[1], result) if np.any(lost) else result


def div_directed(a: Value, b: Value, mode: str) -> Value:
    """a / b with the rounding `mode`; the remainder tells on which side of the quotient the exact value is."""
    quotient = a / b
    wide = a.dtype == F32
    remainder = a.astype(F64) - quotient.astype(F64) * b if wide else _residual(-quotient, b, a)
    return _directed(quotient, np.where(np.signbit(b), -remainder, remainder), mode)


def sqrt_directed(a: Value, mode: str) -> Value:
    """The square root with the rounding `mode`."""
    root = np.sqrt(a)
    remainder = a.astype(F64) - root.astype(F64) * root if a.dtype == F32 else _residual(-root, root, a)
    return _directed(root, remainder, mode)


_SMALLEST_NORMAL = {np.dtype(F16): F16(2.0**-14), np.dtype(F32): _SMALLEST_NORMAL_F32}


def flush(value: Value) -> Value:
    """`.ftz`: subnormal f32 and f16 become zero of the same sign."""
    return np.where(np.abs(value) < _SMALLEST_NORMAL[value.dtype], np.copysign(value.dtype.type(0), value), value)


def saturate(value: Value) -> Value:
    """`.sat` on floats: into [0, 1], and NaN becomes 0."""
    one = value.dtype.type(1)
    return np.fmin(np.fmax(value * one, value.dtype.type(0)), one)  # a signalling NaN becomes quiet, see `_unless_nan`


def relu(value: Value) -> Value:
    """`.relu`: a negative number becomes 0, and NaN stays."""
    return np.where(value <= 0, value.dtype.type(0), value)


def high_word(value: Value) -> Value:
    """An f64 whose lower 32 bits are zero, as the approximations of the hardware deliver it."""
    return (np.asarray(value).view(U64) & U64(0xFFFFFFFF00000000)).view(F64)


def rsqrt_f32(value: Value) -> Value:
    """One over the square root, rounded once from f64."""
    return (F64(1) / np.sqrt(value.astype(F64))).astype(F32)


def minimum(a: Value, b: Value) -> Value:
    """The smaller one; NaN loses, and -0 is below +0."""
    return np.where((a == b) & (a == 0), np.where(np.signbit(a), a, b), _unless_nan(np.minimum(a, b), a, b))


def maximum(a: Value, b: Value) -> Value:
    """The larger one; NaN loses, and +0 is above -0."""
    return np.where((a == b) & (a == 0), np.where(np.signbit(a), b, a), _unless_nan(np.maximum(a, b), a, b))


def _unless_nan(result: Value, a: Value, b: Value) -> Value:
    """The other operand where one is NaN.  (numpy's `fmin` lets a signalling NaN win in short arrays.)"""
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, result)) if np.isnan(result.max()) else result


def nan_if_any(result: Value, *operands: Value) -> Value:
    """`.NaN` of min and max: NaN wins."""
    for operand in operands:
        result = np.where(np.isnan(operand), result.dtype.type(np.nan), result)
    return result


def xor_sign(magnitude: Value, a: Value, b: Value) -> Value:
    """`.xorsign.abs` of min and max: negative where exactly one of the operands is."""
    return np.where(np.signbit(a) ^ np.signbit(b), -magnitude, magnitude)


def bf16_to_f32(bits: Value) -> Value:
    """The f32 with these upper 16 bits."""
    return (bits.astype(U32) << U32(16)).view(F32)


def f32_to_bf16(value: Value, mode: str = "rn") -> Value:
    """The upper half of an f32, rounded as `mode` says."""
    bits = np.asarray(value, F32).view(U32)
    if mode == "rn":
        up = U32(0x7FFF) + ((bits >> U32(16)) & U32(1))
    else:
        up = np.where({"rz": False, "rp": value > 0, "rm": value < 0}[mode], U32(0xFFFF), U32(0))
    return np.where(np.isnan(value), U32(0x7FFF), (bits + up) >> U32(16)).astype(U16)


_NAN: dict[Any, Any] = {np.dtype(F32): U32(0x7FFFFFFF).view(F32), np.dtype(F16): U16(0x7FFF).view(F16)}


def one_nan(value: Value) -> Value:
    """Return a result of float arithmetic as hardware gives it: a NaN is always the same one, whatever the operands
    were."""
    # The largest of some numbers is NaN if any of them is, and finding it is faster than checking each of them.
    return np.where(np.isnan(value), _NAN[value.dtype], value) if np.isnan(value.max()) else value


def negated(value: Value) -> Value:
    """`neg` of an f64: NaN becomes quiet, and keeps its sign."""
    return np.where(np.isnan(value), value * F64(1), -value) if np.isnan(value.max()) else -value


def to_half(value: Value, kind: str, mode: str) -> Value:
    """Any number as f16, or as an f32 that is a bf16, rounded once."""
    wide = _widened(value, mode)
    if kind == "f16":
        rounded = wide.astype(F16)
        return rounded if mode == "rn" else _directed(rounded, wide - rounded.astype(F64), mode)
    return bf16_to_f32(f32_to_bf16(_odd_f32(wide) if mode == "rn" else narrow(wide, mode), mode))


def _widened(value: Value, mode: str) -> Value:
    """Return any number as an f64 that one more rounding makes the right result; only 64-bit integers do not fit."""
    if value.dtype.kind == "f":
        return value.astype(F64) * F64(1)  # which makes NaN quiet
    if value.dtype.itemsize < 8:
        return value.astype(F64)
    if mode != "rn":
        return integer_to_float(value, F64, mode)
    cut = integer_to_float(value, F64, "rz")
    return (cut.view(U64) | (cut.astype(value.dtype) != value).astype(U64)).view(F64)


_HALVES: dict[str, tuple[Callable[[Value], Value], Callable[[Value], Value]]] = {
    "f16x2": (lambda bits: bits.view(F16), lambda value: one_nan(np.asarray(value, F16)).view(U16)),
    "bf16x2": (bf16_to_f32, lambda value: f32_to_bf16(np.asarray(value, F32))),
    "f32x2": (lambda bits: bits.view(F32), lambda value: one_nan(np.asarray(value, F32)).view(U32)),
    "u16x2": (lambda bits: bits, lambda value: value),
    "s16x2": (lambda bits: bits.view(np.int16), lambda value: value.view(U16)),
}
"""The conversions from the bits of a half to a number, and back."""


def halves(operation: Any, kind: str, *packed: Value) -> Value:
    """Apply `operation` to the low and to the high halves of registers that hold two numbers."""
    unpack, pack = _HALVES[kind]
    word, half, bits = (U64, U32, 32) if kind == "f32x2" else (U32, U16, 16)
    result: Value = word(0)
    for shift in (word(0), word(bits)):
        parts = [unpack((value >> shift).astype(half)) for value in packed]
        result = result | (pack(operation(*parts)).astype(word) << shift)
    return result


def compare_halves(operation: Any, kind: str, true: Value, a: Value, b: Value) -> Value:
    """Compare the halves of two registers: the bits `true` in each half for which the operation holds."""
    unpack, _ = _HALVES[kind]
    result: Value = U32(0)
    for shift in (U32(0), U32(16)):
        parts = [unpack(((value >> shift) & U32(0xFFFF)).astype(U16)) for value in (a, b)]
        result = result | np.where(operation(*parts), true << shift, U32(0))
    return result


def pack_halves(kind: str, high: Value, low: Value) -> Value:
    """Two 16-bit floats in one register."""
    _, pack = _HALVES[kind]
    return pack(high).astype(U32) << U32(16) | pack(low).astype(U32)


FLOAT8 = {"e4m3x2": E4M3, "e5m2x2": E5M2}
"""Pairs of 8-bit floats in a register of 16 bits."""


def to_float8(kind: str, high: Value, low: Value) -> Value:
    """Two numbers as 8-bit floats, saturated; NaN has one code."""
    codes = [np.where(np.isnan(value), U16(0x7F), FLOAT8[kind].round(value).astype(U16)) for value in (high, low)]
    return codes[0] << U16(8) | codes[1]


def from_float8(kind: str, codes: Value) -> tuple[Value, Value]:
    """Return the two numbers, the upper one first, as f16, which can hold every 8-bit float."""
    widen = FLOAT8[kind].widen
    return widen(codes >> U16(8)).astype(F16), widen(codes & U16(0xFF)).astype(F16)


_TF32 = ~U32(0x1FFF)
"""The bits of an f32 that tensor cores read."""


def to_tf32(value: Value, mode: str) -> Value:
    """An f32 with its mantissa rounded to the 10 bits that tensor cores read; `rna` takes ties away from zero.

    A NaN loses its low bits: with `rna` only those, and it may then be an infinity; else it is always the same one.
    """
    bits = np.asarray(value).view(U32)
    up: Value = {"rna": U32(0x1000), "rn": U32(0xFFF) + ((bits >> U32(13)) & U32(1)), "rz": U32(0)}[mode]
    nan = bits & _TF32 if mode == "rna" else _TF32 & U32(0x7FFFFFFF)
    return np.where(np.isnan(value), nan, (bits + up) & _TF32).view(F32)


_LARGEST: dict[str, Any] = {"f16": F16(65504), "bf16": F32(2.0**128 - 2.0**120)}


def finite(value: Value, kind: str) -> Value:
    """`.satfinite`: a number beyond the range of the type becomes its largest number; NaN stays."""
    return np.clip(value, -_LARGEST[kind], _LARGEST[kind])


def finite_tf32(value: Value) -> Value:
    """`.satfinite` of a tf32: an infinity becomes the largest number, by a step down that is made for NaN too."""
    bits = value.view(U32)
    return np.where(np.isfinite(value), bits, bits - U32(0x2000)).view(F32)


def pack_integers(high: Value, low: Value, above: Value, bits: int, signed: bool) -> Value:
    """`cvt.pack`: two integers, each clamped to this many bits, above them the low bits of `above`."""
    smallest, largest = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    parts = [np.clip(value, smallest, largest).view(U32) & U32((1 << bits) - 1) for value in (high, low)]
    return (above << U32(2 * bits) if bits < 16 else U32(0)) | parts[0] << U32(bits) | parts[1]


def to_integer(value: Value, mode: str, dtype: Any) -> Value:
    """A float as an integer: rounded as `mode` says, and clamped to the type.

    NaN becomes 0, or, if either type has 64 bits, the number with only the topmost bit.
    """
    rounded = ROUNDINGS[mode](value.astype(F64))
    limits = np.iinfo(dtype)
    unknown = dtype(limits.min or limits.max // 2 + 1) if limits.bits == 64 or value.dtype == F64 else dtype(0)
    # The top of a 64-bit range is not an f64: everything from its successor on is clamped.
    above = rounded >= F64(float(limits.max) + 1.0 if limits.bits < 64 else 2.0 ** (limits.bits - (limits.min < 0)))
    below = rounded < F64(limits.min)
    safe = np.where(above | below | np.isnan(rounded), F64(0), rounded)
    result = np.where(above, dtype(limits.max), np.where(below, dtype(limits.min), safe.astype(dtype)))
    return np.where(np.isnan(rounded), unknown, result)


ROUNDINGS: dict[str, Callable[[Value], Value]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
    "rna": lambda x: np.trunc(x + np.copysign(0.5, x)),
}


def clamp(value: Value, dtype: Any) -> Value:
    """`.sat` between integer types: the nearest value that the type can hold."""
    limits, source = np.iinfo(dtype), np.iinfo(value.dtype)
    low, high = max(limits.min, source.min), min(limits.max, source.max)
    return np.clip(value, value.dtype.type(low), value.dtype.type(high)).astype(dtype)


def integer_to_float(value: Value, dtype: Any, mode: str) -> Value:
    """An integer as a float, rounded as `mode` says."""
    result = value.astype(dtype)
    if mode == "rn" or (dtype is F64 and value.dtype.itemsize < 8):
        return result
    if value.dtype.itemsize < 8:
        return _directed(result, value.astype(F64) - result.astype(F64), mode)
    # 64-bit integers: compare as integers; a float beyond the range of the type is too large.
    beyond = result >= result.dtype.type(2.0**64 if value.dtype.kind == "u" else 2.0**63)
    back = np.where(beyond, result.dtype.type(0), result).astype(value.dtype)
    error = np.where(beyond, -1.0, (value.astype(S64) - back.astype(S64)).astype(F64))
    return _directed(result, error, mode)


def divide(a: Value, b: Value) -> Value:
    """Integer division toward zero; division by zero gives all ones, as on hardware."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    quotient = a // safe if a.dtype.kind == "u" else (a - np.fmod(a, safe)) // safe
    return np.where(b == 0, ~a.dtype.type(0), quotient)


def remainder(a: Value, b: Value) -> Value:
    """The remainder of integer division toward zero; for zero it is all ones, as on hardware."""
    return np.where(b == 0, ~a.dtype.type(0), np.fmod(a, np.where(b == 0, b.dtype.type(1), b)))


def multiply_high(a: Value, b: Value) -> Value:
    """The upper half of the product of two integers of one type."""
    bits = a.dtype.itemsize * 8
    if bits < 64:
        wide = S64 if a.dtype.kind == "i" else U64
        return ((a.astype(wide) * b.astype(wide)) >> wide(bits)).astype(a.dtype)
    mask, half = U64(0xFFFFFFFF), U64(32)
    x, y = a.view(U64), b.view(U64)
    x0, x1, y0, y1 = x & mask, x >> half, y & mask, y >> half
    middle = x1 * y0 + ((x0 * y0) >> half)
    other = x0 * y1 + (middle & mask)
    high = x1 * y1 + (middle >> half) + (other >> half)
    if a.dtype.kind == "i":
        high = high - np.where(a < 0, y, U64(0)) - np.where(b < 0, x, U64(0))
    return high.view(a.dtype)


def shift_left(a: Value, count: Value) -> Value:
    """Shift; the result is zero from the width on."""
    bits = a.dtype.itemsize * 8
    return np.where(count >= bits, a.dtype.type(0), a << np.minimum(count, U32(bits - 1)).astype(a.dtype))


def shift_right(a: Value, count: Value) -> Value:
    """Shift, arithmetically for signed types; from the width on, only the sign is left."""
    bits = a.dtype.itemsize * 8
    shifted = a >> np.minimum(count, U32(bits - 1)).astype(a.dtype)
    return shifted if a.dtype.kind == "i" else np.where(count >= bits, a.dtype.type(0), shifted)


def funnel(low: Value, high: Value, count: Value, left: bool, wrap: bool) -> Value:
    """32 bits out of the 64 of `high:low`, shifted by `count` (modulo 32, or at most 32)."""
    amount = (count & U32(31) if wrap else np.minimum(count, U32(32))).astype(U64)
    both = (high.astype(U64) << U64(32)) | low.astype(U64)
    if left:
        return ((both << amount) >> U64(32)).astype(U32)
    return (both >> amount).astype(U32)


def count_leading_zeros(a: Value) -> Value:
    """`clz`, as u32; the width for 0."""
    bits = a.dtype.itemsize * 8
    filled = a
    step = 1
    while step < bits:
        filled = filled | (filled >> a.dtype.type(step))
        step *= 2
    return U32(bits) - np.bitwise_count(filled).astype(U32)


def find_leading_bit(a: Value, as_shift: bool) -> Value:
    """The position of the highest bit that differs from the sign; all ones if there is none."""
    bits = a.dtype.itemsize * 8
    magnitude = np.where(a < 0, ~a, a) if a.dtype.kind == "i" else a
    zeros = count_leading_zeros(np.asarray(magnitude).view(U32 if bits == 32 else U64))
    return np.where(zeros == bits, U32(0xFFFFFFFF), zeros if as_shift else U32(bits - 1) - zeros)


def reverse_bits(a: Value) -> Value:
    """`brev`: the highest bit becomes the lowest."""
    kind = a.dtype.type
    bits = a.dtype.itemsize * 8
    step = bits // 2
    while step:
        mask = kind(sum(((1 << step) - 1) << at for at in range(0, bits, 2 * step)))
        a = ((a >> kind(step)) & mask) | ((a & mask) << kind(step))
        step //= 2
    return a


def extract_bits(a: Value, position: Value, length: Value) -> Value:
    """`bfe`: bits beyond the top are the sign (or zero, for unsigned types)."""
    bits = a.dtype.itemsize * 8
    position = np.minimum(position & U32(255), U32(255))
    length = length & U32(255)
    field = shift_right(a, position)
    if a.dtype.kind == "u":
        mask = np.where(length >= bits, ~a.dtype.type(0), shift_left(a.dtype.type(1), length) - a.dtype.type(1))
        return field & mask
    room = np.where(length >= bits, U32(0), U32(bits) - np.minimum(length, U32(bits)))
    kept = shift_right(shift_left(field, room), room)
    return np.where(length == 0, a.dtype.type(0), np.where(length >= bits, field, kept))


def insert_bits(a: Value, b: Value, position: Value, length: Value) -> Value:
    """`bfi`: `length` low bits of `a` put into `b` at `position`."""
    kind = a.dtype.type
    bits = a.dtype.itemsize * 8
    position, length = position & U32(255), length & U32(255)
    ones = np.where(length >= bits, ~kind(0), shift_left(kind(1), length) - kind(1))
    mask = shift_left(ones, position)
    return (b & ~mask) | (shift_left(a, position) & mask)


def bit_mask(position: Value, length: Value, wrap: bool) -> Value:
    """`bmsk`: `length` ones from `position` on."""
    if wrap:
        position, length = position & U32(31), length & U32(31)
    ones = np.where(length >= 32, ~U32(0), shift_left(U32(1), length) - U32(1))
    return shift_left(ones, position)


def find_nth_bit(mask: Value, base: Value, offset: Value) -> Value:
    """`fns`: the place of the n-th set bit from `base` on, upwards or downwards; all ones if there is none."""
    left = np.maximum(np.abs(offset.astype(S64)) - 1, 0)
    result: Value = U32(0xFFFFFFFF)
    for step in range(32):
        place = base.astype(S64) + np.sign(offset.astype(S64)) * step
        inside = (place >= 0) & (place < 32) & ((step == 0) | (offset != 0))
        found = inside & ((mask >> np.where(inside, place, 0).astype(U32)) & U32(1) != 0)
        result = np.where(found & (left == 0), place.astype(U32), result)
        left = left - found
    return result


def permute(a: Value, b: Value, selector: Value) -> Value:
    """`prmt` in its general form: each nibble of the selector picks a byte, or its sign eight times."""
    both = (b.astype(U64) << U64(32)) | a.astype(U64)
    result: Value = U32(0)
    for at in range(4):
        nibble = (selector >> U32(4 * at)) & U32(15)
        byte = ((both >> ((nibble & U32(7)).astype(U64) * U64(8))) & U64(255)).astype(U32)
        signs = np.where(byte >= 128, U32(255), U32(0))
        result = result | (np.where(nibble >= 8, signs, byte) << U32(8 * at))
    return result


_PERMUTE_MODES = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


def permute_mode(a: Value, b: Value, selector: Value, mode: str) -> Value:
    """`prmt` with a mode: the lower two bits of the selector choose one of four patterns."""
    patterns = np.array(_PERMUTE_MODES[mode], U32)
    return permute(a, b, patterns[selector & U32(3)])


def logic3(a: Value, b: Value, c: Value, table: int) -> Value:
    """`lop3`: any function of three bits, by its truth table."""
    result = a & U32(0)
    for row in range(8):
        if table >> row & 1:
            terms = [value if row >> place & 1 else ~value for value, place in ((a, 2), (b, 1), (c, 0))]
            result = result | (terms[0] & terms[1] & terms[2])
    return result


def dot(a: Value, b: Value, c: Value, a_signed: bool, b_signed: bool, pieces: list[tuple[int, int, int, int]]) -> Value:
    """`dp4a` and `dp2a`: products of parts of two registers, added to a third.

    A piece is (shift in a, bits in a, shift in b, bits in b).
    """
    total = c.view(U32)
    for a_shift, a_bits, b_shift, b_bits in pieces:
        left = _part(a, a_shift, a_bits, a_signed)
        total = total + left * _part(b, b_shift, b_bits, b_signed)
    return total


def part_differences(a: Value, b: Value, c: Value, bits: int, signed: tuple[bool, bool], add: bool) -> Value:
    """`vabsdiff2` and `vabsdiff4`: absolute differences of parts of two registers, side by side or added to c."""
    total: Value = c if add else U32(0)
    for at in range(0, 32, bits):
        left, right = _part(a, at, bits, signed[0]), _part(b, at, bits, signed[1])
        difference = np.abs(left.view(S32) - right.view(S32)).view(U32)
        total = total + (difference if add else difference << U32(at))
    return total


def _part(value: Value, shift: int, bits: int, signed: bool) -> Value:
    room = 32 - bits
    raised = value << U32(room - shift)
    return (raised.view(S32) >> S32(room)).view(U32) if signed else raised >> U32(room)
