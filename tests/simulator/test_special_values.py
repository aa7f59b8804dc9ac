"""What arithmetic makes of NaN, infinities and zero divisors, bit for bit, on the simulator and on a GPU alike.

Which results are NaN is the business of other tests; here it is which of the many NaN they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pytest

from atomr_trio import Device, NvrtcOptions, read_only
from support import open_test_device

pytestmark = pytest.mark.used_workers


def words(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


F16 = words(0x7E00, 0xFE00, 0x7C01, 0xFC01, 0x7FFF, 0x7C00, 0xFC00, 0x8000, 0x3C00)
BF16 = words(0x7FC0, 0xFFC0, 0x7F81, 0xFF81, 0x7FFF, 0x7F80, 0xFF80, 0x8000, 0x3F80)
F32 = words(
    *(0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F812345),
    *(0x7F800000, 0xFF800000, 0x80000000, 0x3F800000),
)
F64 = words(
    *(0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000001, 0x7FFFFFFFFFFFFFFF),
    *(0x7FF0000000000000, 0xFFF0000000000000, 0x8000000000000000, 0x3FF0000000000000),
)
QUIET64 = 0x0008000000000000
OTHER = {"f16": 0xFE12, "bf16": 0xFFD2, "f32": 0xFFC01234, "f64": 0xFFF8000000001234}
"""A NaN to calculate with."""
BITS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}
LETTERS = {16: "h", 32: "r", 64: "l"}
C_TYPES = {16: "unsigned short", 32: "unsigned int", 64: "unsigned long long"}


@attrs.frozen
class Case:
    """One kernel of one instruction: `%0` is its result, `%1` comes from an array, `%2` from a parameter."""

    name: str
    text: str
    bits: tuple[int, int]
    """Of the result and of the operands."""
    given: np.ndarray
    second: int
    expected: np.ndarray
    """The bits of the result, or `ANYTHING`."""
    since: tuple[int, int] = (8, 0)

    def source(self, number: int) -> str:
        result, operand = self.bits
        return f"""extern "C" __global__ void k{number}(const unsigned long long *in, unsigned long long *out,
    unsigned long long other, int n) {{
    int i = threadIdx.x;
    if (i >= n) return;
    {C_TYPES[operand]} x = ({C_TYPES[operand]})in[i], y = ({C_TYPES[operand]})other;
    {C_TYPES[result]} r;
    asm volatile("{self.text}" : "={LETTERS[result]}"(r) : "{LETTERS[operand]}"(x), "{LETTERS[operand]}"(y));
    out[i] = r; }}"""


ANYTHING = 0x5A5A5A5A5A5A5A5A
"""Stands for a result that is not looked at."""


def is_nan(kind: str, values: np.ndarray) -> np.ndarray:
    infinity = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000, "f64": 0x7FF0000000000000}[kind]
    return (values & np.uint64((1 << (BITS[kind] - 1)) - 1)) > infinity


def always(kind: str, nan: int, values: np.ndarray, either: bool) -> np.ndarray:
    """The same NaN for every NaN that is given; for all, if the other operand is one as well."""
    return np.where(is_nan(kind, values) | either, np.uint64(nan), np.uint64(ANYTHING))


GIVEN = {"f16": F16, "bf16": BF16, "f32": F32}
THE_NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF}
OF_TWO = {
    "add": ("f16", "f32"),
    "mul": ("f16", "f32"),
    "sub": ("f16", "f32"),
    "max.NaN": ("f16", "f32"),
    "div.rn": ("f32",),
    "div.full": ("f32",),
}
"""Operations whose result is NaN if one of two operands is."""
OF_ONE = {
    "neg": ("f16", "bf16", "f32"),
    "abs": ("f16", "bf16", "f32"),
    **dict.fromkeys(("sqrt.rn", "rcp.rn", "ex2.approx", "lg2.approx", "sin.approx", "cos.approx"), ("f32",)),
    **dict.fromkeys(("rsqrt.approx", "tanh.approx", "cvt.rni.f32", "neg.ftz", "abs.ftz"), ("f32",)),
}


def of_arithmetic() -> list[Case]:
    cases = []
    for operation, kinds in OF_TWO.items():
        for kind in kinds:
            for second, either in ((OTHER[kind], True), (int(GIVEN[kind][-1]), False)):
                expected = always(kind, THE_NAN[kind], GIVEN[kind], either)
                text = f"{operation}.{kind} %0, %1, %2;"
                name = f"{operation}.{kind} with {second:#x}"
                cases.append(Case(name, text, (BITS[kind],) * 2, GIVEN[kind], second, expected))
    for operation, kinds in OF_ONE.items():
        for kind in kinds:
            expected = always(kind, THE_NAN[kind], GIVEN[kind], either=False)
            bits = (BITS[kind],) * 2
            cases.append(Case(f"{operation}.{kind}", f"{operation}.{kind} %0, %1;", bits, GIVEN[kind], 0, expected))
    for kind in ("f16", "f32"):  # of two NaN
        expected = always(kind, THE_NAN[kind], GIVEN[kind], either=False)
        for operation, form in (("min", "%0, %1, %2"), ("fma.rn", "%0, %1, %2, %1")):
            text = f"{operation}.{kind} {form};"
            cases.append(Case(text, text, (BITS[kind],) * 2, GIVEN[kind], OTHER[kind], expected))
    return cases


def of_extremes() -> list[Case]:
    """A NaN of either kind loses against a number, in the last lanes too, of which numpy takes each by itself."""
    cases = []
    for kind, number in (("f16", 0x3C00), ("f32", 0x3F800000), ("f64", 0x3FF0000000000000)):
        values = GIVEN.get(kind, F64)[::-1]
        expected = np.where(is_nan(kind, values), np.uint64(number), np.uint64(ANYTHING))
        for operation in ("min", "max"):
            for form in ("%0, %1, %2", "%0, %2, %1"):
                text = f"{operation}.{kind} {form};"
                cases.append(Case(f"{text} with a number", text, (BITS[kind],) * 2, values, number, expected))
    return cases


def of_conversions() -> list[Case]:
    def case(to: str, source: str, given: np.ndarray, expected: Sequence[int] | np.ndarray, mode: str = "") -> Case:
        text = f"cvt{mode}.{to}.{source} %0, %1;"
        return Case(text, text, (BITS[to], BITS[source]), given, 0, np.array(expected, np.uint64))

    wide = is_nan("f32", F32)
    as_f64 = np.where(wide, (F32 >> 31 << 63) | (0x7FF8 << 48) | ((F32 & 0x3FFFFF) << 29), ANYTHING)
    half = is_nan("f16", F16)
    half_as_f64 = np.where(half, (F16 >> 15 << 63) | (0x7FF8 << 48) | ((F16 & 0x1FF) << 42), ANYTHING)
    any_f64 = [ANYTHING] * 4
    return [
        case("f16", "f32", F32, always("f32", 0x7FFF, F32, either=False), ".rn"),
        case("bf16", "f32", F32, always("f32", 0x7FFF, F32, either=False), ".rn"),
        case("f32", "f16", F16, always("f16", 0x7FFFFFFF, F16, either=False)),
        case("f64", "f32", F32, as_f64),
        case("f64", "f16", F16, half_as_f64),
        case("f16", "f64", F64, [0x7E00, 0xFE00, 0x7E00, 0x7FFF, *any_f64], ".rn"),
        case("f32", "f64", F64, [0x7FC00000, 0xFFC00000, 0x7FC00000, 0x7FFFFFFF, *any_f64], ".rn"),
        attrs.evolve(case("f32", "bf16", BF16, np.where(is_nan("bf16", BF16), BF16 << 16, ANYTHING)), since=(9, 0)),
    ]


def of_f64() -> list[Case]:
    """An f64 keeps its NaN, made quiet; of two, the second operand's."""
    nan = is_nan("f64", F64)
    quiet = np.where(nan, F64 | np.uint64(QUIET64), np.uint64(ANYTHING))
    second = np.full(F64.size, OTHER["f64"], np.uint64)
    both = {"add.f64 %0, %1, %2;": second, "mul.f64 %0, %1, %2;": second, "fma.rn.f64 %0, %1, %2, %1;": second}
    both |= dict.fromkeys(("min.f64 %0, %1, %2;", "max.f64 %0, %1, %2;"), np.where(nan, second, ANYTHING))
    alone = dict.fromkeys(("add.f64 %0, %1, %1;", "neg.f64 %0, %1;", "sqrt.rn.f64 %0, %1;"), quiet)
    return [Case(text, text, (64, 64), F64, OTHER["f64"], expected) for text, expected in (both | alone).items()]


def of_tf32() -> list[Case]:
    given = np.concatenate([F32, words(0x7F7FFFFF, 0x7F801000, 0x7F800FFF, 0x7FFFEFFF, 0x7FA01800, 0xFF801FFF)])
    nan = is_nan("f32", given)
    cut = given & ~np.uint64(0x1FFF)
    infinite = np.isinf(given.astype(np.uint32).view(np.float32))
    same = np.where(nan, 0x7FFFE000, ANYTHING)
    forms = {
        "rna": (np.where(nan, cut, ANYTHING), (8, 0)),
        "rna.satfinite": (np.where(nan | infinite, cut - 0x2000, ANYTHING), (9, 0)),
        **dict.fromkeys(("rn", "rz", "rn.relu"), (same, (9, 0))),
    }
    return [
        Case(
            f"cvt.{form}.tf32.f32",
            f"cvt.{form}.tf32.f32 %0, %1;",
            (32, 32),
            given,
            0,
            expected.astype(np.uint64),
            since,
        )
        for form, (expected, since) in forms.items()
    ]


def of_division() -> list[Case]:
    """Quotients and remainders by zero are all ones."""
    cases = []
    for bits in (16, 32, 64):
        given = words(0, 1, 7, 1 << (bits - 1), (1 << bits) - 1)
        ones = np.full(given.size, (1 << bits) - 1, np.uint64)
        for operation in ("div", "rem"):
            for sign in "us":
                text = f"{operation}.{sign}{bits} %0, %1, %2;"
                cases.append(Case(text, text, (bits, bits), given, 0, ones))
    return cases


def of_bits() -> list[Case]:
    """What looks at no number keeps every NaN as it is."""
    return [
        Case("copysign", "copysign.f32 %0, %2, %1;", (32, 32), F32, 0x3F800000, F32 & np.uint64(0x7FFFFFFF)),
        Case("mov", "mov.b32 %0, %1;", (32, 32), F32, 0, F32),
        Case("selp", "{.reg .pred p; setp.ne.u32 p, %1, %2; selp.f32 %0, %1, %2, p;}", (32, 32), F32, 0, F32),
        Case("mixed", MIXED, (32, 32), F32, 0x3F800000, np.where(F32 == 0x80000000, 0x3F800000, F32)),
    ]


MIXED = (
    "{.reg .f32 a, b, c; .reg .pred p; mov.b32 a, %1; mov.b32 b, %2; add.f32 c, a, b; setp.ne.u32 p, %1, 0x80000000;"
    " @p mov.b32 c, %1; mov.b32 %0, c;}"
)
"""A register that holds a sum in one lane, and in all others bits that no arithmetic made."""

PAIRS = {
    "add.f16x2": "add.f16x2 %0, %1, %2;",
    "neg.f16x2": "neg.f16x2 %0, %1;",
    "abs.bf16x2": "abs.bf16x2 %0, %1;",
    "cvt.rn.f16x2.f32": "cvt.rn.f16x2.f32 %0, %1, %1;",
    "cvt.rn.bf16x2.f32": "cvt.rn.bf16x2.f32 %0, %1, %1;",
}


def of_pairs() -> list[Case]:
    twice = (F32.size, 0x7FFF7FFF)
    cases = []
    for name, text in PAIRS.items():
        if ".f32" in name:
            given, nan = F32, is_nan("f32", F32)
        else:
            kind = name.split(".")[1].removesuffix("x2")
            given, nan = GIVEN[kind] * np.uint64(0x10001), is_nan(kind, GIVEN[kind])
        expected = np.where(nan, np.uint64(twice[1]), np.uint64(ANYTHING))
        cases.append(Case(name, text, (32, 32), given, 0x3C003C00, expected))
    codes = np.arange(256, dtype=np.uint64)
    for kind, largest in (("e4m3", 0x7E), ("e5m2", 0x7C)):
        expected = np.where(codes & 0x7F > largest, 0x7FFF7FFF, ANYTHING).astype(np.uint64)
        text = f"cvt.rn.f16x2.{kind}x2 %0, %1;"
        cases.append(Case(text, text, (32, 16), codes * np.uint64(0x101), 0, expected, (9, 0)))
    return cases


CASES = [
    *of_arithmetic(),
    *of_extremes(),
    *of_conversions(),
    *of_f64(),
    *of_tf32(),
    *of_division(),
    *of_bits(),
    *of_pairs(),
]


async def differences(dev: Device, arch: str, cases: list[Case]) -> list[str]:
    source = "\n".join(case.source(number) for number, case in enumerate(cases))
    options = NvrtcOptions(arch=arch)
    wrong = []
    for number, case in enumerate(cases):
        kernel = await dev.nvrtc.compile(source, f"k{number}", options)
        given, out = await dev.to_device(case.given), dev.zeros(case.given.size, np.uint64)
        await kernel.launch(1, 256, read_only(given), out, case.second, case.given.size)
        found = await out.to_host()
        differ = (case.expected != ANYTHING) & (found != case.expected)
        wrong += [
            f"{case.name} of {x:#x} is {y:#x}, not {z:#x}"
            for x, y, z in zip(case.given[differ], found[differ], case.expected[differ], strict=True)
        ]
    return wrong


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)], ids=["compute_80", "compute_90"])
@pytest.mark.long
async def test_special_values_are_those_of_the_hardware(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]
) -> None:
    monkeypatch.setenv("ATOMR_TRIO_SIM_CAPABILITY", ".".join(map(str, capability)))
    async with open_test_device() as dev:
        if dev.info.capability < capability:
            pytest.skip(f"a device of capability {dev.info.capability} runs no such code")
        cases = [case for case in CASES if case.since == capability]
        assert await differences(dev, "compute_{}{}".format(*capability), cases) == []


def test_every_case_looks_at_something() -> None:
    assert [case.name for case in CASES if (case.expected == ANYTHING).all()] == []
    assert len({case.name for case in CASES}) == len(CASES)


SUMS: dict[str, Any] = {
    "kept": "o[i] = atomicAdd(p + i, 1.0f) + 1.0f;",
    "not kept": "atomicAdd(p + i, 1.0f);",
}


@pytest.mark.parametrize("form", SUMS)
async def test_atomic_sums_make_the_same_nan(dev: Device, form: str) -> None:
    source = f'extern "C" __global__ void sums(float *p, float *o) {{ int i = threadIdx.x; {SUMS[form]} }}'
    sums = await dev.nvrtc.compile(source, "sums")
    nan = await dev.to_device(F32[:7].astype(np.uint32))
    out = dev.zeros(7, np.uint32)
    await sums.launch(1, 7, nan.view(np.float32), out.view(np.float32))
    assert (await nan.to_host()).tolist() == [0x7FFFFFFF] * 7
    if form == "kept":
        assert (await out.to_host()).tolist() == [0x7FFFFFFF] * 7
