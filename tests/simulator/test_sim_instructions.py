"""Single instructions of PTX on the simulator, against numpy and small models in Python, over values at the edges.

Most of the PTX here is written by hand, so that each form of an instruction is met, whatever the compiler prefers; what
the compiler makes of intrinsics and of the classes in CUDA's headers comes last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from atomr_sim.engine.memory import LAUNCH_FAILED, MISALIGNED_ADDRESS, DeviceFault
from atomr_sim.engine.simt import KernelFunction, LoadedModule
from atomr_sim.ptx.text import NOT_SUPPORTED, LoadError
from atomr_trio import NvrtcOptions
from support.sim import Machine

HEADER = ".version 9.0\n.target sm_100a\n.address_size 64\n"
_REGISTERS = {1: ".b16", 2: ".b16", 4: ".b32", 8: ".b64"}


def loaded(machine: Machine, body: str, parameters: int = 1, variables: str = "") -> KernelFunction:
    """A kernel with the addresses of its arrays in %p0, %p1, ... and the number of its thread in %t and %t64."""
    names = [f"p{at}" for at in range(parameters)]
    declared = ", ".join(f".param .u64 {name}" for name in names)
    taken = " ".join(f".reg .u64 %{name}; ld.param.u64 %{name}, [{name}];" for name in names)
    text = f"""{HEADER}{variables}
    .visible .entry k({declared}) {{
    .reg .b16 %h<9>; .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .f32 %f<9>; .reg .pred %q<9>;
    .reg .b32 %t; .reg .u64 %t64; mov.u32 %t, %tid.x; cvt.u64.u32 %t64, %t;
    {taken}
    {body}
    ret; }}"""
    return LoadedModule(text, machine.memory).functions["k"]


def evaluated(instruction: str, result: Any, *inputs: np.ndarray, before: str = "", after: str = "") -> np.ndarray:
    """What an instruction makes of %a, %b, %c (one value of each input in each lane) in %x, as an array of `result`."""
    machine = Machine()
    n, out = inputs[0].size, np.dtype(result)
    body = [f".reg {_REGISTERS[out.itemsize]} %x; .reg .u64 %at;"]
    for at, (name, values) in enumerate(zip("abc", inputs, strict=False)):
        size = values.dtype.itemsize
        body.append(f".reg {_REGISTERS[size]} %{name}; mad.lo.u64 %at, %t64, {size}, %p{at + 1};")
        body.append(f"ld.global.b{8 * size} %{name}, [%at];")
    body += [before, f"{instruction};", after]
    body.append(f"mad.lo.u64 %at, %t64, {out.itemsize}, %p0; st.global.b{8 * out.itemsize} [%at], %x;")
    kernel = loaded(machine, "\n".join(body), len(inputs) + 1)
    found = machine.zeros(n, out)
    for start in range(0, n, 1024):
        part = slice(start, start + 1024)
        piece = machine.zeros(found[part].size, out)
        machine.launch(kernel, 1, piece.size, piece, *(machine.array(values[part]) for values in inputs))
        found[part] = piece
    return found


def same(got: np.ndarray, wanted: np.ndarray) -> None:
    """Equal, NaN for NaN, and zeros with their signs."""
    np.testing.assert_array_equal(got, wanted, strict=True)
    if got.dtype.kind == "f":
        number = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(wanted)[number])


def crossed(*values: Any) -> list[np.ndarray]:
    """Every combination of values, as one array for each operand."""
    return [np.ascontiguousarray(part.ravel()) for part in np.meshgrid(*values)]


# Pairs of halves

HALVES = np.array(
    [0.0, -0.0, 1.0, -1.5, 65504.0, -65504.0, 6e-8, -6.1e-5, 3.5e-5, 0.333, np.inf, -np.inf, np.nan, 1024.5], np.float16
)
BRAIN_BITS = np.array([0, 0x8000, 0x3F80, 0xBFC0, 0x7F7F, 0xFF7F, 1, 0x8001, 0x3EAB, 0x7F80, 0xFF80, 0x7FFF], np.uint16)


def brain(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_brain(value: np.ndarray) -> np.ndarray:
    """f64 to bf16 by looking for the nearest of all bf16, ties to the even code."""
    codes = np.arange(0x7F80, dtype=np.uint16)
    numbers = brain(codes).astype(np.float64)
    middles = (numbers[1:] + numbers[:-1]) / 2
    size = np.abs(value)
    low, high = np.searchsorted(middles, size, "left"), np.searchsorted(middles, size, "right")
    code = np.where(low % 2, high, low)
    # Half a unit above the largest number, rounding gives infinity.
    code = np.where(size >= numbers[-1] + (numbers[-1] - numbers[-2]) / 2, 0x7F80, code)
    return np.where(np.isnan(value), 0x7FFF, code | np.signbit(value) * 0x8000).astype(np.uint16)


def smaller(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where((a == b) & np.signbit(a), a, np.where((a < b) | np.isnan(b), a, b))


def larger(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where((a == b) & np.signbit(b), a, np.where((a > b) | np.isnan(b), a, b))


def with_nan(value: np.ndarray, *operands: np.ndarray) -> np.ndarray:
    return np.where(np.any(np.isnan(operands), axis=0), np.nan, value)


def positive(value: np.ndarray) -> np.ndarray:
    return np.where(value <= 0, 0.0, value)


def limited(value: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(value), 0.0, np.clip(value, 0.0, 1.0))


def signed_by_both(value: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(np.signbit(a) != np.signbit(b), -value, value)


Model = Callable[..., np.ndarray]
PACKED: dict[str, Model] = {
    "add": lambda a, b: a + b,
    "sub.rn": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "fma.rn": lambda a, b, c: a * b + c,
    "fma.rn.relu": lambda a, b, c: positive(a * b + c),
    "min": smaller,
    "max": larger,
    "min.NaN": lambda a, b: with_nan(smaller(a, b), a, b),
    "max.NaN": lambda a, b: with_nan(larger(a, b), a, b),
    "min.xorsign.abs": lambda a, b: signed_by_both(smaller(np.abs(a), np.abs(b)), a, b),
    "max.NaN.xorsign.abs": lambda a, b: with_nan(signed_by_both(larger(np.abs(a), np.abs(b)), a, b), a, b),
    "neg": lambda a: -a,
    "abs": np.abs,
}
ONLY_F16: dict[str, Model] = {
    "add.sat": lambda a, b: limited((a + b).astype(np.float16).astype(np.float64)),
    "fma.rn.sat": lambda a, b, c: limited((a * b + c).astype(np.float16).astype(np.float64)),
}


def flushed(value: np.ndarray) -> np.ndarray:
    """Without the subnormal numbers of f16."""
    return np.where(np.abs(value) < 2.0**-14, np.copysign(0.0, value), value)


def operands_of(model: Model) -> int:
    return 1 if model is np.abs else model.__code__.co_argcount


@pytest.mark.parametrize("name", [*PACKED, *ONLY_F16])
def test_arithmetic_on_pairs_of_f16(name: str) -> None:
    model = (PACKED | ONLY_F16)[name]
    inputs = crossed(*[HALVES] * operands_of(model))
    pairs = [np.stack([values, values[::-1]], axis=1).ravel().view(np.uint32) for values in inputs]
    registers = ", ".join(f"%{letter}" for letter in "abc"[: len(inputs)])
    got = evaluated(f"{name}.f16x2 %x, {registers}", np.uint32, *pairs).view(np.float16)
    with np.errstate(all="ignore"):
        wanted = model(*(values.astype(np.float64) for values in inputs)).astype(np.float16)
    same(got[0::2], wanted)
    same(got[1::2], wanted[::-1])


@pytest.mark.parametrize("name", PACKED)
def test_arithmetic_on_pairs_of_bf16(name: str) -> None:
    model = PACKED[name]
    inputs = crossed(*[BRAIN_BITS] * operands_of(model))
    pairs = [np.stack([values, values[::-1]], axis=1).ravel().view(np.uint32) for values in inputs]
    registers = ", ".join(f"%{letter}" for letter in "abc"[: len(inputs)])
    got = evaluated(f"{name}.bf16x2 %x, {registers}", np.uint32, *pairs).view(np.uint16)
    with np.errstate(all="ignore"):
        wanted = brain(to_brain(model(*(brain(values).astype(np.float64) for values in inputs))))
    same(brain(got[0::2]), wanted)
    same(brain(got[1::2]), wanted[::-1])


@pytest.mark.parametrize("name", ["add", "mul", "fma.rn"])
def test_subnormal_f16_are_zero_where_the_instruction_says_so(name: str) -> None:
    model = PACKED[name]
    inputs = crossed(*[HALVES] * operands_of(model))
    registers = ", ".join(f"%{letter}" for letter in "abc"[: len(inputs)])
    opcode, *modes = name.split(".")
    mnemonic = ".".join([opcode, *modes, "ftz", "f16"])
    got = evaluated(f"{mnemonic} %x, {registers}", np.float16, *inputs)
    with np.errstate(all="ignore"):
        exact = model(*(flushed(values.astype(np.float64)) for values in inputs)).astype(np.float16)
        wanted = flushed(exact.astype(np.float64)).astype(np.float16)
    same(got, wanted)


COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: (a < b) | (a > b),
    "lt": lambda a, b: a < b,
    "geu": lambda a, b: ~(a < b),
    "equ": lambda a, b: ~((a < b) | (a > b)),
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}


@pytest.mark.parametrize("comparison", COMPARED)
def test_comparisons_of_pairs_with_a_third_predicate(comparison: str) -> None:
    a, b = crossed(HALVES, HALVES)
    pairs = [np.stack([values, values[::-1]], axis=1).ravel().view(np.uint32) for values in (a, b)]
    got = evaluated(
        f"setp.{comparison}.and.f16x2 %q1|%q2, %a, %b, %q3",
        np.uint32,
        *pairs,
        before="and.b32 %r1, %t, 1; setp.eq.u32 %q3, %r1, 1;",
        after="selp.u32 %x, 1, 0, %q1; @%q2 or.b32 %x, %x, 2;",
    )
    holds, odd = COMPARED[comparison](a, b), np.arange(a.size) % 1024 % 2 == 1
    same(got, ((holds & odd) + 2 * (holds[::-1] & odd)).astype(np.uint32))


def test_pairs_of_f32() -> None:
    numbers = np.array([0.0, -0.0, 1.0, 1.0000001, -3.25, 1e-40, 3e38, np.inf, np.nan], np.float32)
    a, b, c = crossed(numbers, numbers, numbers)
    pairs = [np.stack([values, values[::-1]], axis=1).ravel().view(np.uint64) for values in (a, b, c)]
    with np.errstate(all="ignore"):
        models = {
            "add.rn.f32x2 %x, %a, %b": a + b,
            "mul.rn.f32x2 %x, %a, %b": a * b,
            "sub.rn.f32x2 %x, %a, %b": a - b,
            "fma.rn.f32x2 %x, %a, %b, %c": fused(a, b, c),
        }
    for instruction, wanted in models.items():
        got = evaluated(instruction, np.uint64, *pairs).view(np.float32)
        same(got[0::2], wanted)
        same(got[1::2], wanted[::-1])


def test_pairs_of_f32_rounded_toward_zero_and_without_subnormal_numbers() -> None:
    a = np.array([1.0, -1.0, 1e-30, -1e-30, 3.0, 0.1], np.float32)
    b = np.array([2.0**-30, -(2.0**-30), 1e-10, 1e-10, 1e-40, 0.1], np.float32)
    pairs = [np.repeat(values, 2).view(np.uint64) for values in (a, b)]
    exact = a.astype(np.float64) * b
    product = exact.astype(np.float32)
    product = np.where(np.abs(product) > np.abs(exact), np.nextafter(product, np.float32(0)), product)
    same(evaluated("mul.rz.f32x2 %x, %a, %b", np.uint64, *pairs).view(np.float32)[::2], product)
    b = np.where(np.abs(b) < 2.0**-126, np.float32(0), b)
    product = a * b
    product = np.where(np.abs(product) < 2.0**-126, np.copysign(np.float32(0), product), product)
    same(evaluated("mul.rn.ftz.f32x2 %x, %a, %b", np.uint64, *pairs).view(np.float32)[::2], product)


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c rounded once, as these values need no more than a long double has."""
    return (a.astype(np.longdouble) * b + c).astype(np.float32)


def test_the_extreme_of_three() -> None:
    numbers = np.array([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan], np.float32)
    a, b, c = crossed(numbers, numbers, numbers)
    same(evaluated("min.f32 %x, %a, %b, %c", np.float32, a, b, c), smaller(smaller(a, b), c))
    same(evaluated("max.f32 %x, %a, %b, %c", np.float32, a, b, c), larger(larger(a, b), c))
    wanted = with_nan(larger(larger(np.abs(a), np.abs(b)), np.abs(c)), a, b, c).astype(np.float32)
    same(evaluated("max.NaN.abs.f32 %x, %a, %b, %c", np.float32, a, b, c), wanted)


# Conversions


def float8(code: int, mantissa: int, bias: int, infinity: bool) -> float:
    """The number that a code of E4M3 (without infinity) or E5M2 stands for."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, fraction = (code & 0x7F) >> mantissa, code & ((1 << mantissa) - 1)
    top = (0x7F >> mantissa) == exponent
    if top and infinity:
        return sign * np.inf if not fraction else np.nan
    if top and fraction == (1 << mantissa) - 1:
        return np.nan
    if not exponent:
        return sign * fraction * 2.0 ** (1 - bias - mantissa)
    return sign * (1 + fraction / (1 << mantissa)) * 2.0 ** (exponent - bias)


FLOAT8 = {
    kind: np.array([float8(code, *form) for code in range(256)], np.float32)
    for kind, form in {"e4m3": (3, 7, False), "e5m2": (2, 15, True)}.items()
}


def nearest_float8(kind: str, value: float) -> int:
    """The code of the nearest finite number, the even one of two; 0x7f for NaN."""
    if np.isnan(value):
        return 0x7F
    finite = [code for code in range(128) if np.isfinite(FLOAT8[kind][code])]
    size = min(abs(value), float(FLOAT8[kind][finite[-1]]))
    code = min(finite, key=lambda code: (abs(float(FLOAT8[kind][code]) - size), code % 2))
    return code | (0x80 if np.signbit(value) else 0)


def float8_inputs(kind: str) -> np.ndarray:
    """All numbers, the middles between neighbours and what is next to them, and what is out of range."""
    numbers = np.unique(FLOAT8[kind][np.isfinite(FLOAT8[kind])])
    middles = (numbers[1:] + numbers[:-1]) / 2
    beside = [np.nextafter(middles, np.float32(toward)) for toward in (-np.inf, np.inf)]
    rest = np.array([-0.0, 1e-40, 1e9, -1e9, 448.1, 464.0, 57344.1, 61440.0, np.inf, -np.inf, np.nan], np.float32)
    return np.concatenate([numbers, middles, *beside, rest]).astype(np.float32)


@pytest.mark.parametrize("kind", FLOAT8)
def test_numbers_become_8_bit_floats(kind: str) -> None:
    values = float8_inputs(kind)
    wanted = np.array([nearest_float8(kind, float(value)) for value in values], np.uint16)
    got = evaluated(f"cvt.rn.satfinite.{kind}x2.f32 %x, %a, %b", np.uint16, values, values[::-1].copy())
    same(got, wanted << 8 | wanted[::-1])
    got = evaluated(f"cvt.rn.satfinite.relu.{kind}x2.f32 %x, %a, %b", np.uint16, values, values[::-1].copy())
    no_less = np.where((values <= 0) & ~np.isnan(values), 0, wanted)
    same(got, (no_less << 8 | no_less[::-1]).astype(np.uint16))


@pytest.mark.parametrize("kind", FLOAT8)
def test_halves_become_8_bit_floats_and_come_back(kind: str) -> None:
    with np.errstate(over="ignore"):
        values = float8_inputs(kind).astype(np.float16)
    wanted = np.array([nearest_float8(kind, float(value)) for value in values], np.uint16)
    pairs = np.stack([values[::-1], values], axis=1).ravel().view(np.uint32)
    same(evaluated(f"cvt.rn.satfinite.{kind}x2.f16x2 %x, %a", np.uint16, pairs), wanted << 8 | wanted[::-1])
    codes = np.arange(256, dtype=np.uint16)
    halves = evaluated(f"cvt.rn.f16x2.{kind}x2 %x, %a", np.uint32, codes << 8 | codes[::-1]).view(np.float16)
    same(halves[1::2], FLOAT8[kind].astype(np.float16))
    same(halves[0::2], FLOAT8[kind][::-1].astype(np.float16))


@pytest.mark.parametrize("mode", ["rna", "rn", "rz"])
def test_f32_lose_13_bits_as_tf32(mode: str) -> None:
    kept = np.array([0x3F800000, 0x3F802000, 0x00000000, 0x7F7FE000, 0xC0490000], np.uint32)
    low = np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF], np.uint32)
    high, tail = crossed(kept, low)
    even = (high >> 13) % 2 == 0
    up = {"rz": tail < 0, "rna": tail >= 0x1000, "rn": (tail > 0x1000) | ((tail == 0x1000) & ~even)}[mode]
    wanted = (high + np.where(up, 0x2000, 0)).astype(np.uint32).view(np.float32)
    same(evaluated(f"cvt.{mode}.tf32.f32 %x, %a", np.float32, (high | tail).view(np.float32)), wanted)


def test_tf32_that_saturate_and_tf32_that_are_not_negative() -> None:
    values = np.array([0.0, 1.5, -1.5, 3.4028235e38, -3.4028235e38, np.inf, -np.inf, np.nan], np.float32)
    largest = np.float32(2.0**128 - 2.0**117)
    same(evaluated("cvt.rna.satfinite.tf32.f32 %x, %a", np.float32, values), np.clip(values, -largest, largest))
    rounded = np.where(np.abs(values) > largest, np.copysign(np.float32(np.inf), values), values)
    same(evaluated("cvt.rn.relu.tf32.f32 %x, %a", np.float32, values), positive(rounded).astype(np.float32))


def test_narrowing_that_saturates_to_finite_numbers() -> None:
    values = np.array([0.0, -0.0, 1.5, 65504.0, 65520.0, -1e9, np.inf, -np.inf, np.nan, 3.4e38], np.float32)
    with np.errstate(over="ignore"):
        halves = np.clip(values.astype(np.float16), np.float16(-65504), np.float16(65504))
    same(evaluated("cvt.rn.satfinite.f16.f32 %x, %a", np.float16, values), halves)
    got = evaluated("cvt.rn.satfinite.f16x2.f32 %x, %a, %b", np.uint32, values, values[::-1].copy()).view(np.float16)
    same(got[1::2], halves)
    same(got[0::2], halves[::-1])
    with np.errstate(invalid="ignore"):
        wanted = np.clip(brain(to_brain(values.astype(np.float64))), -brain(BRAIN_BITS)[4], brain(BRAIN_BITS)[4])
    same(brain(evaluated("cvt.rn.satfinite.bf16.f32 %x, %a", np.uint16, values)), wanted)


@pytest.mark.parametrize(("kind", "bits"), [("s16", 16), ("u16", 16), ("s8", 8), ("u8", 8), ("s4", 4), ("u2", 2)])
def test_integers_are_packed_and_clamped(kind: str, bits: int) -> None:
    values = np.array([0, 1, -1, 3, 7, -8, -9, 127, 128, -128, 255, 256, 32767, 40000, -40000, 2**31 - 1], np.int32)
    a, b = crossed(values, values)
    above = np.arange(a.size, dtype=np.uint32) * np.uint32(0x01234567)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if kind[0] == "s" else (0, 2**bits - 1)
    first, second = (np.clip(part.astype(np.int64), low, high) & (2**bits - 1) for part in (a, b))
    together = first << bits | second
    if bits == 16:
        same(evaluated(f"cvt.pack.sat.{kind}.s32 %x, %a, %b", np.uint32, a, b), together.astype(np.uint32))
        return
    wanted = (above.astype(np.int64) << 2 * bits | together).astype(np.uint32)
    same(evaluated(f"cvt.pack.sat.{kind}.s32.b32 %x, %a, %b, %c", np.uint32, a, b, above), wanted)


def test_a_subnormal_f16_that_comes_out_of_a_conversion_is_kept() -> None:
    values = np.array([1e-40, -1e-40, 3e-6, -3e-6, 6e-8, 1.0, np.nan], np.float32)
    wanted = np.where(np.abs(values) < 2.0**-126, np.copysign(np.float32(0), values), values).astype(np.float16)
    same(evaluated("cvt.rn.ftz.f16.f32 %x, %a", np.float16, values), wanted)


# Bits

WORDS = np.array([0, 1, 0x80000000, 0xFFFFFFFF, 0x7FFFFFFF, 0x12345678, 0xF0F0F0F0, 0xFF00], np.uint32)


def test_logic_of_three_with_a_predicate() -> None:
    a, b = crossed(WORDS, WORDS)
    c = a[::-1].copy()
    wanted = (a & b) ^ c
    got = evaluated(
        "lop3.or.b32 %x|%q1, %a, %b, %c, 0x6a, %q2",
        np.uint32,
        a,
        b,
        c,
        before="setp.eq.u32 %q2, %t, 3;",
        after="@%q1 add.u32 %x, %x, 1;",
    )
    same(got, wanted + ((wanted != 0) | (np.arange(a.size) == 3)).astype(np.uint32))


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_the_lowest_bits_as_a_number(kind: str, mode: str) -> None:
    a, count = crossed(WORDS, np.array([0, 1, 7, 8, 31, 32, 33, 63, 64, 2**32 - 1], np.uint32))
    wanted = []
    for value, bits in zip(a.tolist(), count.tolist(), strict=True):
        kept = min(bits, 32) if mode == "clamp" else bits % 32
        part = value & ((1 << kept) - 1)
        negative = kind == "s32" and kept and part >> (kept - 1)
        wanted.append((part - (1 << kept) if negative else part) & 0xFFFFFFFF)
    same(evaluated(f"szext.{mode}.{kind} %x, %a, %b", np.uint32, a, count), np.array(wanted, np.uint32))


# Barriers of a block


def test_halves_of_a_block_wait_at_barriers_of_their_own() -> None:
    machine = Machine()
    source = """
    extern "C" __global__ void k(int* out, int* turn) {
        __shared__ int s[128];
        int t = threadIdx.x, half = t / 64;
        for (int round = 0; round <= half * 3; ++round) {
            s[t] = t + round;
            asm volatile("bar.sync %0, %1;" :: "r"(half + 1), "r"(64) : "memory");
            int next = s[half * 64 + (t + 1) % 64];
            asm volatile("bar.sync %0, 64;" :: "r"(half + 1) : "memory");
            out[blockIdx.x * 128 + t] = next;
        }
    }"""
    out = machine.zeros((3, 128), np.int32)
    machine.run(source, "k", 3, 128, out, machine.zeros(1, np.int32))
    lane = np.arange(128)
    wanted = lane // 64 * 64 + (lane + 1) % 64 + lane // 64 * 3
    np.testing.assert_array_equal(out, np.broadcast_to(wanted, (3, 128)))


@pytest.mark.parametrize("arch", ["compute_75", "compute_100"])
def test_a_producer_arrives_and_does_not_wait(arch: str) -> None:
    machine = Machine(arch)
    source = """
    extern "C" __global__ void k(int* out) {
        __shared__ int box[2][32];
        int t = threadIdx.x % 32;
        if (threadIdx.x < 32) {
            for (int i = 0; i < 6; ++i) {
                if (i > 1) asm volatile("bar.sync %0, 64;" :: "r"(3 + i % 2) : "memory");
                box[i % 2][t] = 100 * i + t;
                asm volatile("bar.arrive %0, 64;" :: "r"(1 + i % 2) : "memory");
            }
        } else {
            for (int i = 0; i < 6; ++i) {
                asm volatile("bar.sync %0, 64;" :: "r"(1 + i % 2) : "memory");
                out[32 * i + t] = box[i % 2][31 - t];
                if (i < 4) asm volatile("bar.arrive %0, 64;" :: "r"(3 + i % 2) : "memory");
            }
        }
    }"""
    out = machine.zeros((6, 32), np.int32)
    machine.run(source, "k", 1, 64, out)
    np.testing.assert_array_equal(out, 100 * np.arange(6)[:, None] + 31 - np.arange(32))


def test_votes_of_parts_of_a_block_at_different_barriers() -> None:
    machine = Machine()
    body = """
    shr.u32 %r1, %t, 6; and.b32 %r2, %t, 3; setp.eq.u32 %q1, %r2, 0; setp.lt.u32 %q2, %t, 64;
    barrier.cta.red.popc.aligned.u32 %r3, %r1, 64, %q1;
    barrier.cta.red.and.aligned.pred %q3, %r1, 64, %q2;
    bar.red.or.pred %q4, %r1, 64, %q2;
    selp.u32 %r4, 100, 0, %q3; add.u32 %r3, %r3, %r4; selp.u32 %r4, 1000, 0, %q4; add.u32 %r3, %r3, %r4;
    mad.lo.u64 %d1, %t64, 4, %p0; st.global.u32 [%d1], %r3;"""
    out = machine.zeros(128, np.uint32)
    machine.launch(loaded(machine, body), 1, 128, out)
    np.testing.assert_array_equal(out, np.repeat(np.uint32([1116, 16]), 64))


def test_a_warp_counts_as_a_whole_one_even_where_it_lacks_lanes() -> None:
    machine = Machine()
    body = """
    .reg .u64 %s; setp.eq.u32 %q1, %t, 3; @%q1 exit;
    bar.sync 1, 64;
    mad.lo.u64 %d1, %t64, 4, %p0; st.global.u32 [%d1], 1;"""
    out = machine.zeros(40, np.uint32)
    machine.launch(loaded(machine, body), 1, 40, out)
    np.testing.assert_array_equal(out, np.arange(40) != 3)


def test_lanes_that_exit_while_their_warp_waits_come_with_it() -> None:
    machine = Machine()
    body = """
    and.b32 %r1, %t, 31; setp.ge.u32 %q1, %r1, 20; @%q1 bra LEAVING;
    bar.sync 1, 64;
    mad.lo.u64 %d1, %t64, 4, %p0; st.global.u32 [%d1], 1;
    LEAVING:"""
    out = machine.zeros(64, np.uint32)
    machine.launch(loaded(machine, body), 1, 64, out)
    np.testing.assert_array_equal(out, np.arange(64) % 32 < 20)


@pytest.mark.parametrize(("body", "says"), [("bar.sync %t;", "no barrier 16"), ("bar.sync 1, 96;", "never reach")])
def test_barriers_that_cannot_open(body: str, says: str) -> None:
    machine = Machine()
    with pytest.raises(DeviceFault, match=says) as fault:
        machine.launch(loaded(machine, body), 1, 32, machine.zeros(1, np.int32))
    assert fault.value.status == LAUNCH_FAILED


# Barriers in memory

SHARED = ".extern .shared .align 16 .b8 s[];\n"


def test_the_phases_of_a_memory_barrier() -> None:
    machine = Machine()
    asked = []

    def ask(question: str) -> str:
        asked.append(question)
        return f"{question}; selp.u32 %r5, 1, 0, %q1; st.global.u32 [%p0 + {4 * len(asked) - 4}], %r5;"

    body = f"""
    mbarrier.init.shared::cta.b64 [s], 3;
    {ask("mbarrier.test_wait.parity.shared.b64 %q1, [s], 1")}
    {ask("mbarrier.test_wait.parity.shared.b64 %q1, [s], 0")}
    mbarrier.arrive.shared.b64 %d1, [s];
    mbarrier.pending_count.b64 %r6, %d1; st.global.u32 [%p0 + 100], %r6;
    mbarrier.arrive.noComplete.shared.b64 %d2, [s], 1;
    mbarrier.pending_count.b64 %r6, %d2; st.global.u32 [%p0 + 104], %r6;
    {ask("mbarrier.test_wait.shared.b64 %q1, [s], %d1")}
    mbarrier.arrive.shared.b64 _, [s];
    {ask("mbarrier.try_wait.shared.b64 %q1, [s], %d1")}
    {ask("mbarrier.test_wait.parity.shared.b64 %q1, [s], 0")}
    {ask("mbarrier.test_wait.parity.shared.b64 %q1, [s], 1")}
    mbarrier.arrive_drop.shared.b64 %d3, [s];
    mbarrier.arrive.release.cta.shared::cta.b64 %d4, [s], 2;
    {ask("mbarrier.test_wait.shared.b64 %q1, [s], %d3")}
    mbarrier.arrive.expect_tx.shared::cta.b64 %d5, [s], 48;
    mbarrier.arrive.shared.b64 %d6, [s];
    {ask("mbarrier.test_wait.shared.b64 %q1, [s], %d5")}
    mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [s], 40;
    {ask("mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %q1, [s], 0, 100")}
    mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [s], 8;
    mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [s], 16;
    {ask("mbarrier.test_wait.shared.b64 %q1, [s], %d6")}
    mbarrier.inval.shared.b64 [s];"""
    out = machine.zeros(32, np.uint32)
    machine.launch(loaded(machine, body, variables=SHARED), 1, 1, out, shared=64)
    assert out[: len(asked)].tolist() == [1, 0, 0, 1, 1, 0, 1, 0, 0, 1]
    assert out[25:27].tolist() == [3, 2]


@pytest.mark.parametrize("arch", ["compute_80", "compute_100"])
def test_lanes_wait_for_a_memory_barrier_phase_after_phase(arch: str) -> None:
    machine = Machine(arch)
    source = """
    extern "C" __global__ void k(int* out) {
        __shared__ unsigned long long b; __shared__ int s[96];
        unsigned at = (unsigned)__cvta_generic_to_shared(&b);
        int t = threadIdx.x;
        if (!t) asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(at), "r"(96) : "memory");
        s[t] = t;
        __syncthreads();
        for (int round = 0; round < 8; ++round) {
            int mine = s[(t + 1) % 96];
            for (int half = 0; half < 2; ++half) {
                unsigned long long state; int over = 0;
                asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(at) : "memory");
                while (!over)
                    asm volatile("{ .reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2; selp.s32 %0, 1, 0, p; }"
                                 : "=r"(over) : "r"(at), "l"(state) : "memory");
                if (!half) s[t] = mine;
            }
        }
        out[blockIdx.x * 96 + t] = s[t];
    }"""
    out = machine.zeros((2, 96), np.int32)
    machine.run(source, "k", 2, 96, out)
    np.testing.assert_array_equal(out, np.broadcast_to((np.arange(96) + 8) % 96, (2, 96)))


# Copies that nobody waits for


def test_a_copy_fills_up_with_zeros_what_its_source_does_not_have() -> None:
    machine = Machine()
    body = """
    shl.b32 %r1, %t, 4; mad.lo.u64 %d1, %t64, 16, %p1;
    mov.u32 %r2, s; add.u32 %r1, %r1, %r2;
    st.shared.v4.u32 [%r1], {-1, -1, -1, -1};
    cp.async.cg.shared.global [%r1], [%d1], 16, %t;
    cp.async.commit_group; cp.async.wait_group 0;
    ld.shared.v4.u32 {%r3, %r4, %r5, %r6}, [%r1];
    mad.lo.u64 %d2, %t64, 16, %p0; st.global.v4.u32 [%d2], {%r3, %r4, %r5, %r6};"""
    source = machine.array(np.arange(1, 17 * 16 + 1) % 251, np.uint8)
    out = machine.zeros((17, 16), np.uint8)
    machine.launch(loaded(machine, body, 2, SHARED), 1, 17, out, source, shared=17 * 16)
    kept = np.arange(16) < np.arange(17)[:, None]
    np.testing.assert_array_equal(out, np.where(kept, source.reshape(17, 16), 0))


def test_a_copy_that_is_ignored_leaves_zeros_and_reads_nothing() -> None:
    machine = Machine()
    body = """
    shl.b32 %r1, %t, 2; setp.gt.u32 %q1, %t, 3; mad.lo.u64 %d1, %t64, 4, %p1;
    mov.u32 %r2, s; add.u32 %r1, %r1, %r2; st.shared.u32 [%r1], 7;
    cp.async.ca.shared.global [%r1], [%d1], 4, %q1;
    ld.shared.u32 %r3, [%r1]; mad.lo.u64 %d2, %t64, 4, %p0; st.global.u32 [%d2], %r3;"""
    out = machine.zeros(8, np.uint32)
    # Of the source, only four words are there.
    machine.launch(loaded(machine, body, 2, SHARED), 1, 8, out, machine.array([5, 6, 7, 8], np.uint32), shared=32)
    assert out.tolist() == [5, 6, 7, 8, 0, 0, 0, 0]


def test_copies_arrive_at_a_memory_barrier() -> None:
    machine = Machine()
    body = """
    mbarrier.init.shared.b64 [s], 2;
    cp.async.ca.shared.global [s + 16], [%p0], 4; cp.async.mbarrier.arrive.noinc.shared::cta.b64 [s];
    cp.async.mbarrier.arrive.shared.b64 [s];
    mbarrier.test_wait.parity.shared.b64 %q1, [s], 0; selp.u32 %r5, 1, 0, %q1; st.global.u32 [%p0], %r5;
    mbarrier.arrive.shared.b64 %d1, [s];
    mbarrier.test_wait.parity.shared.b64 %q1, [s], 0; selp.u32 %r5, 1, 0, %q1; st.global.u32 [%p0 + 4], %r5;"""
    out = machine.array([9, 9], np.uint32)
    machine.launch(loaded(machine, body, variables=SHARED), 1, 1, out, shared=32)
    assert out.tolist() == [0, 1]


BULK = """
    mbarrier.init.shared.b64 [s], 1;
    mov.u32 %r1, s; add.u32 %r1, %r1, 16;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [s], 96;
    mbarrier.test_wait.parity.shared.b64 %q1, [s], 0; selp.u32 %r5, 1, 0, %q1; st.global.u32 [%p2], %r5;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%p1], 64, [s];
    createpolicy.fractional.L2::evict_last.b64 %d1, 1.0;
    add.u32 %r2, %r1, 64; add.u64 %d2, %p1, 64;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [%r2], [%d2], 32, [s], %d1;
    mbarrier.test_wait.parity.shared.b64 %q1, [s], 0; selp.u32 %r5, 1, 0, %q1; st.global.u32 [%p2 + 4], %r5;
    fence.proxy.async.shared::cta;
    cp.async.bulk.global.shared::cta.bulk_group [%p0], [%r1], 96;
    cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; cp.async.bulk.wait_group 0;"""


def test_bulk_copies_tell_a_memory_barrier_what_they_brought() -> None:
    machine = Machine()
    source, out, over = machine.array(range(96), np.uint8), machine.zeros(96, np.uint8), machine.zeros(2, np.uint32)
    machine.launch(loaded(machine, BULK, 3, SHARED), 1, 1, out, source, over, shared=128)
    np.testing.assert_array_equal(out, source)
    assert over.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("cp.async.bulk.global.shared::cta.bulk_group [%p0], [s + 8], 16;", MISALIGNED_ADDRESS),
        ("cp.async.bulk.global.shared::cta.bulk_group [%p0], [s], 24;", MISALIGNED_ADDRESS),
        ("cp.async.bulk.global.shared::cta.bulk_group [%p0], [s + 112], 32;", 700),
        ("cp.async.bulk.global.shared::cta.bulk_group [%p0 + 96], [s], 64;", 700),
        ("cp.async.ca.shared.global [s + 124], [%p0], 8, %t;", 700),
        ("brkpt;", LAUNCH_FAILED),
        ("trap;", LAUNCH_FAILED),
    ],
)
def test_what_costs_the_process_its_context(body: str, status: int) -> None:
    machine = Machine()
    with pytest.raises(DeviceFault) as fault:
        machine.launch(loaded(machine, body, variables=SHARED), 1, 32, machine.zeros(128, np.uint8), shared=128)
    assert fault.value.status == status


def test_hints_to_caches_change_nothing() -> None:
    machine = Machine()
    body = """
    createpolicy.fractional.L2::evict_first.L2::evict_unchanged.b64 %d1, 0.5;
    createpolicy.cvt.L2.b64 %d2, %d1; createpolicy.range.L2::evict_last.b64 %d3, [%p0], 64, 128;
    prefetch.global.L2::evict_last [%p0]; applypriority.global.L2::evict_normal [%p0], 128; prefetchu.L1 [%p0];
    griddepcontrol.wait; setmaxnreg.inc.sync.aligned.u32 240; nanosleep.u32 20; pmevent 1;
    ld.global.nc.L1::no_allocate.L2::cache_hint.L2::256B.v2.u32 {%r1, %r2}, [%p0], %d1;
    ld.relaxed.cluster.global.L1::evict_last.u32 %r3, [%p0 + 8];
    add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r3;
    st.global.L2::cache_hint.u32 [%p0 + 12], %r1, %d2;
    atom.global.add.L2::cache_hint.u32 %r4, [%p0], 5, %d3; red.global.add.L2::cache_hint.u32 [%p0 + 4], %r4, %d1;
    discard.global.L2 [%p0], 128;"""
    out = machine.array([1, 2, 4, 0], np.uint32)
    machine.launch(loaded(machine, body), 1, 1, out)
    assert out.tolist() == [6, 3, 4, 7]


# What is left out

REFUSED = {
    "matrices": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4},{%r1,%r2,%r3,%r4},{%r5,%r6},"
    "{%f1,%f2,%f3,%f4}",
    "matrices loaded": "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1,%r2,%r3,%r4}, [%r5]",
    "fragments": "wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%d1],{%f1,%f2,%f3,%f4,%f5,%f6,%f7,%f8}, %r1",
    "groups of warps": "wgmma.fence.sync.aligned",
    "tensor memory": "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32",
    "tensor maps": "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], "
    "[%d1, {%r2,%r3}], [%r4]",
    "tensor maps changed": "tensormap.replace.tile.global_address.global.b1024.b64 [%d1], %d2",
    "bulk reductions": "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%d1], [%r1], %r2",
    "multicast": "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r1], [%d1], "
    "%r2, [%r3], %h1",
    "other blocks": "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r1], [%r2], %r3, [%r4]",
    "clusters": "mapa.shared::cluster.u32 %r1, %r2, 0",
    "barriers of clusters": "barrier.cluster.arrive.release.aligned",
    "stores to other blocks": "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r1], %r2, [%r3]",
    "sums in other blocks": "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r1], "
    "%r2, [%r3]",
    "memory filled": "st.bulk.weak.shared::cta [%r1], 64, 0",
    "textures": "tex.2d.v4.f32.f32 {%f1,%f2,%f3,%f4}, [%d1, {%f5,%f6}]",
    "surfaces": "sust.b.2d.b32.trap [%d1, {%r1,%r2}], {%r3}",
    "questions to textures": "txq.width.b32 %r1, [%d1]",
    "several devices": "multimem.ld_reduce.relaxed.sys.global.add.u32 %r1, [%d1]",
    "cancelled blocks": "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r1], "
    "[%r2]",
    "floats of 4 bits": "cvt.rn.satfinite.e2m1x2.f32 %h1, %f1, %f2",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_left_out_is_named_with_its_line_and_kernel(what: str) -> None:
    body = f"mov.u32 %r1, 1;\n\n{REFUSED[what]};"
    with pytest.raises(LoadError) as error:
        loaded(Machine(), body)
    assert error.value.status == NOT_SUPPORTED
    line = HEADER.count("\n") + 8
    assert str(error.value) == f"line {line}: instruction '{REFUSED[what]}' is not simulated (in kernel k)"


def test_a_launch_by_the_device_is_left_out() -> None:
    source = """
    __global__ void child(int* out) { out[0] = 1; }
    extern "C" __global__ void parent(int* out) { child<<<1, 1>>>(out); }"""
    with pytest.raises(LoadError, match=r"line \d+: instruction 'call.*cudaCDP.*not simulated \(in kernel parent") as e:
        Machine("compute_90").load(source, "-rdc=true")
    assert e.value.status == NOT_SUPPORTED


# What the compiler makes of intrinsics on parts of words

PARTS: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "avg": lambda a, b: (a + b + (a + b >= 0)) >> 1,
    "hadd": lambda a, b: (a + b) >> 1,
    "max": max,
    "min": min,
    "absdiff": lambda a, b: abs(a - b),
    "cmpeq": lambda a, b: -(a == b),
    "cmpne": lambda a, b: -(a != b),
    "cmpge": lambda a, b: -(a >= b),
    "cmplt": lambda a, b: -(a < b),
    "setgt": lambda a, b: int(a > b),
    "setle": lambda a, b: int(a <= b),
}


def by_parts(function: Callable[..., int], a: int, b: int, bits: int, signed: bool, saturated: bool) -> int:
    """Apply a function of integers to the parts of two words."""
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    result = 0
    for at in range(0, 32, bits):
        pair = [(word >> at) & ((1 << bits) - 1) for word in (a, b)]
        value = function(*(part - (1 << bits) if signed and part >> (bits - 1) else part for part in pair))
        value = min(max(value, low), high) if saturated else value
        result |= (value & ((1 << bits) - 1)) << at
    return result


INTRINSICS = [
    (f"{name}{kind}", name, kind.startswith("s"), len(kind) == 2)
    for name, kinds in {
        "add": ("", "ss", "us"), "sub": ("", "ss", "us"), "avg": ("s", "u"), "hadd": ("u",), "max": ("s", "u"),
        "min": ("s", "u"), "absdiff": ("s", "u"), "cmpeq": ("",), "cmpne": ("",), "cmpge": ("s", "u"),
        "cmplt": ("s", "u"), "setgt": ("s", "u"), "setle": ("s", "u"),
    }.items()
    for kind in kinds
]  # fmt: skip


@pytest.mark.parametrize("arch", ["compute_75", "compute_80", "compute_90", "compute_100"])
def test_intrinsics_on_parts_of_words(arch: str) -> None:
    machine = Machine(arch)
    words = np.array(
        [0, 0x7F80FF01, 0x80007FFF, 0xFFFFFFFF, 0x01020304, 0x8080807F, 0x00FF7F80, 0xDEADBEEF, 0x7FFF8000], np.uint32
    )
    a, b = crossed(words, words)
    calls = [(f"__v{name}{parts}", parts, *rest) for name, *rest in INTRINSICS for parts in (2, 4)]
    stores = "\n".join(f"out[{at} * n + i] = {call[0]}(a[i], b[i]);" for at, call in enumerate(calls))
    source = f"""extern "C" __global__ void k(unsigned* out, const unsigned* a, const unsigned* b, int n) {{
        int i = threadIdx.x; {stores} }}"""
    out = machine.zeros((len(calls), a.size), np.uint32)
    machine.run(source, "k", 1, a.size, out, machine.array(a), machine.array(b), a.size)
    for row, (intrinsic, parts, name, signed, saturated) in zip(out, calls, strict=True):
        wanted = [
            by_parts(PARTS[name], x, y, 32 // parts, signed, saturated)
            for x, y in zip(a.tolist(), b.tolist(), strict=True)
        ]
        np.testing.assert_array_equal(row, np.array(wanted, np.uint32), err_msg=intrinsic)


# What the classes of CUDA's headers need


@pytest.fixture(scope="module")
def headers() -> tuple[str, ...]:
    """The compiler's options by which the headers that it carries are found."""
    flags = NvrtcOptions(bundled_headers=True).flags("compute_80")
    return tuple(flag for flag in flags if not flag.startswith("--gpu-architecture"))


CLASSES = r"""
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda/ptx>
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
namespace cg = cooperative_groups;
using Barrier = cuda::barrier<cuda::thread_scope_block>;

extern "C" __global__ void rotate(int* out) {
    __shared__ Barrier barrier;
    __shared__ int s[64];
    int t = threadIdx.x;
    if (!t) init(&barrier, blockDim.x);
    __syncthreads();
    for (int round = 0; round < 5; ++round) {
        s[t] = round + t;
        auto token = barrier.arrive();
        barrier.wait(cuda::std::move(token));
        out[t] += s[63 - t];
        barrier.arrive_and_wait();
    }
    if (t == 5) { barrier.arrive_and_drop(); return; }
    for (int round = 0; round < 3; ++round) barrier.arrive_and_wait();
    out[t] += 1000;
}

extern "C" __global__ void stream(int* out, const int* in, int n) {
    auto block = cg::this_thread_block();
    __shared__ int s[2][64];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto pipe = cuda::make_pipeline(block, &state);
    for (int fetched = 0, used = 0; used < n; ++used) {
        for (; fetched < n && fetched < used + 2; ++fetched) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, s[fetched % 2], in + 64 * fetched, sizeof(int) * 64, pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        out[64 * used + threadIdx.x] = s[used % 2][63 - threadIdx.x];
        pipe.consumer_release();
    }
}

extern "C" __global__ void bulk(int* out, const int* in) {
#if __CUDA_ARCH__ >= 900
    namespace ptx = cuda::ptx;
    __shared__ alignas(128) int s[64];
    __shared__ Barrier barrier;
    if (!threadIdx.x) { init(&barrier, blockDim.x); ptx::fence_proxy_async(ptx::space_shared); }
    __syncthreads();
    Barrier::arrival_token token;
    if (!threadIdx.x) {
        cuda::memcpy_async(s, in + 64 * blockIdx.x, cuda::aligned_size_t<16>(256), barrier);
        token = cuda::device::barrier_arrive_tx(barrier, 1, 0);
    } else {
        token = barrier.arrive();
    }
    barrier.wait(cuda::std::move(token));
    s[threadIdx.x] *= 2;
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
    if (!threadIdx.x) {
        ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, out + 64 * blockIdx.x, s, 256);
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
    }
#endif
}

template <cuda::thread_scope scope>
__device__ void update(int* out) {
    using namespace cuda::std;
    cuda::atomic_ref<int, scope> word(out[0]), top(out[1]), low(out[2]);
    word.fetch_add(1, memory_order_relaxed);
    word.fetch_sub(3, memory_order_seq_cst);
    top.fetch_max(static_cast<int>(threadIdx.x), memory_order_acq_rel);
    low.fetch_min(-static_cast<int>(threadIdx.x), memory_order_release);
    cuda::atomic_ref<int, scope> count(out[3]);
    int seen = count.load(memory_order_acquire);
    while (!count.compare_exchange_weak(seen, seen + 2, memory_order_acq_rel, memory_order_relaxed)) { }
    cuda::atomic_thread_fence(memory_order_seq_cst, scope);
}

extern "C" __global__ void atomics(int* out) {
    update<cuda::thread_scope_system>(out);
    update<cuda::thread_scope_device>(out + 4);
    update<cuda::thread_scope_block>(out + 8);
}
"""


@pytest.fixture(scope="module", params=[pytest.param("compute_80", marks=pytest.mark.long), "compute_100"])
def classes(request: pytest.FixtureRequest, headers: tuple[str, ...]) -> tuple[Machine, dict[str, KernelFunction]]:
    """The kernels of `CLASSES`, compiled once for each dialect."""
    machine = Machine(request.param)
    return machine, machine.load(CLASSES, *headers).functions


def test_lanes_rotate_through_a_barrier_object(classes: tuple[Machine, dict[str, KernelFunction]]) -> None:
    machine, kernels = classes
    out = machine.zeros(64, np.int32)
    machine.launch(kernels["rotate"], 1, 64, out)
    lane = np.arange(64)
    np.testing.assert_array_equal(out, 5 * (63 - lane) + 10 + 1000 * (lane != 5))


def test_a_pipeline_brings_one_tile_while_another_is_used(classes: tuple[Machine, dict[str, KernelFunction]]) -> None:
    machine, kernels = classes
    source, out = machine.array(np.arange(7 * 64).reshape(7, 64), np.int32), machine.zeros((7, 64), np.int32)
    machine.launch(kernels["stream"], 1, 64, out, source, 7)
    np.testing.assert_array_equal(out, source[:, ::-1])


def test_bulk_copies_through_a_barrier_object(classes: tuple[Machine, dict[str, KernelFunction]]) -> None:
    machine, kernels = classes
    source, out = machine.array(range(192), np.int32), machine.zeros(192, np.int32)
    machine.launch(kernels["bulk"], 3, 64, out, source)
    # Older devices have no such copies, and the kernel is empty there.
    np.testing.assert_array_equal(out, 2 * source if machine.arch == "compute_100" else 0 * source)


def test_references_to_atomics_of_every_order_and_scope(classes: tuple[Machine, dict[str, KernelFunction]]) -> None:
    machine, kernels = classes
    out = machine.zeros((3, 4), np.int32)
    machine.launch(kernels["atomics"], 2, 96, out)
    np.testing.assert_array_equal(out, np.broadcast_to([-384, 95, -95, 384], (3, 4)))


@pytest.mark.long
@pytest.mark.parametrize("arch", ["compute_75", pytest.param("compute_90", marks=pytest.mark.sweep), "compute_100"])
def test_8_bit_floats_are_the_same_in_software_and_by_instruction(arch: str, headers: tuple[str, ...]) -> None:
    machine = Machine(arch)
    source = """
    #include <cuda_fp8.h>
    extern "C" __global__ void k(__nv_fp8_e4m3* e4, __nv_fp8_e5m2* e5, float* back, const float* in, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        e4[i] = __nv_fp8_e4m3(in[i]);
        e5[i] = __nv_fp8_e5m2(in[i]);
        back[i] = (float)e4[i];
        back[n + i] = (float)e5[i];
    }"""
    values = np.concatenate([float8_inputs("e4m3"), float8_inputs("e5m2")])
    e4, e5 = (machine.zeros(values.size, np.uint8) for _ in range(2))
    back = machine.zeros((2, values.size), np.float32)
    kernel = machine.kernel(source, "k", *headers)
    machine.launch(kernel, -(-values.size // 128), 128, e4, e5, back, machine.array(values), values.size)
    for kind, codes, numbers in (("e4m3", e4, back[0]), ("e5m2", e5, back[1])):
        wanted = np.array([nearest_float8(kind, float(value)) for value in values])
        # Which NaN it is may differ.
        same(FLOAT8[kind][codes], FLOAT8[kind][wanted])
        same(numbers, FLOAT8[kind][wanted])
