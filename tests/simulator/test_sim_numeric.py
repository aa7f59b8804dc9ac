"""The arithmetic of the simulator's instructions, compiled by the real NVRTC, against exact references."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from kernels import precise
from support.sim import Machine

ARCHITECTURES = (*(pytest.param(arch, marks=pytest.mark.sweep) for arch in ("compute_80", "compute_90")), "compute_120")


@pytest.fixture(params=ARCHITECTURES)
def gpu(request: pytest.FixtureRequest) -> Machine:
    """One simulated GPU for each dialect of PTX that the compiler writes."""
    return Machine(request.param)


@pytest.fixture
def plain() -> Machine:
    """One dialect, where the dialect does not matter."""
    return Machine("compute_80")


def random(seed: int, n: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def elementwise(
    gpu: Machine, expression: str, result: str, kinds: str, *inputs: np.ndarray, options: tuple[str, ...] = ()
) -> np.ndarray:
    """Evaluate a C expression over a, b, c for each element."""
    names = "abc"[: len(inputs)]
    arguments = ", ".join(f"const {kind}* p{name}" for name, kind in zip(names, kinds.split(","), strict=True))
    loads = " ".join(f"auto {name} = p{name}[i];" for name in names)
    source = f"""
    typedef long long ll; typedef unsigned long long ull; typedef unsigned u32;
    typedef unsigned short u16; typedef unsigned char u8;
    extern "C" __global__ void k({result}* out, {arguments}, int n) {{
        int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return; {loads} out[i] = {expression}; }}"""
    types = {"float": "f4", "double": "f8", "int": "i4", "ll": "i8", "ull": "u8", "u32": "u4", "u16": "u2", "u8": "u1",
             "short": "i2", "signed char": "i1"}  # fmt: skip
    n = inputs[0].size
    out = gpu.zeros(n, types[result])
    kernel = gpu.kernel(source, "k", *options)
    gpu.launch(
        kernel,
        -(-n // 128),
        128,
        out,
        *(gpu.array(value, types[kind]) for value, kind in zip(inputs, kinds.split(","), strict=True)),
        n,
    )
    return out


INTERESTING = {
    "i4": [0, 1, -1, 2, -2, 7, -7, 100, 31, 32, 33, 2**31 - 1, -(2**31), 123456789, -987654321, 65535, 65536],
    "u4": [0, 1, 2, 7, 31, 32, 33, 100, 2**31, 2**32 - 1, 123456789, 65535, 65536, 0x80008001],
    "i8": [0, 1, -1, 3, -3, 63, 64, 2**63 - 1, -(2**63), 2**32, -(2**32) - 1, 123456789012345678, -98765432109876543],
    "u8": [0, 1, 3, 63, 64, 2**63, 2**64 - 1, 2**32, 2**32 - 1, 12345678901234567890],
}


def pairs(kind: str) -> tuple[np.ndarray, np.ndarray]:
    values = np.array(INTERESTING[kind], kind)
    a, b = np.meshgrid(values, values)
    return a.ravel(), b.ravel()


def python_integers(kind: str, function: Any) -> np.ndarray:
    """The exact result, cut to the type."""
    a, b = pairs(kind)
    bits = np.dtype(kind).itemsize * 8
    exact = [function(x, y) & (2**bits - 1) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    return np.array(exact, f"u{bits // 8}").view(kind)


def truncated(x: int, y: int) -> int:
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


@pytest.mark.parametrize("kind", ["i4", "u4", "i8", "u8"])
@pytest.mark.parametrize(
    ("expression", "function"),
    [
        ("a + b", lambda x, y: x + y),
        ("a - b", lambda x, y: x - y),
        ("a * b", lambda x, y: x * y),
        ("a * b + a", lambda x, y: x * y + x),
        ("b ? a / (b ? b : 1) : 0", lambda x, y: truncated(x, y) if y else 0),
        ("b ? a % (b ? b : 1) : 0", lambda x, y: x - truncated(x, y) * y if y else 0),
        ("a & ~b", lambda x, y: x & ~y),
        ("a ^ (b | 12)", lambda x, y: x ^ (y | 12)),
        ("a < b ? a : b", lambda x, y: min(x, y)),
        ("max(a, b)", lambda x, y: max(x, y)),
        ("a << (b & 15)", lambda x, y: x << (y & 15)),
        ("a >> (b & 15)", lambda x, y: x >> (y & 15)),
        ("(a > b) - (a < b) + 2 * (a == b)", lambda x, y: (x > y) - (x < y) + 2 * (x == y)),
    ],
)
def test_integer_arithmetic(plain: Machine, kind: str, expression: str, function: Any) -> None:
    name = {"i4": "int", "u4": "u32", "i8": "ll", "u8": "ull"}[kind]
    result = elementwise(plain, expression, name, f"{name},{name}", *pairs(kind))
    np.testing.assert_array_equal(result, python_integers(kind, function))


def bits_of(value: int) -> str:
    return format(value, "032b")


@pytest.mark.parametrize(
    ("expression", "function"),
    [
        ("__popc(a)", lambda x, y: bits_of(x).count("1")),
        ("__clz(a)", lambda x, y: 32 - x.bit_length()),
        ("__brev(a)", lambda x, y: int(bits_of(x)[::-1], 2)),
        ("__ffs(a)", lambda x, y: (x & -x).bit_length()),
        ("__umulhi(a, b)", lambda x, y: x * y >> 32),
        ("__umul24(a, b)", lambda x, y: (x & 0xFFFFFF) * (y & 0xFFFFFF)),
        ("__funnelshift_l(a, b, 5)", lambda x, y: ((y << 32 | x) << 5) >> 32),
        ("__funnelshift_rc(a, b, b)", lambda x, y: (y << 32 | x) >> min(y, 32)),
        ("__usad(a, b, 9)", lambda x, y: abs(x - y) + 9),
        ("__dp4a(a, b, 1u)", lambda x, y: 1 + sum((x >> s & 255) * (y >> s & 255) for s in (0, 8, 16, 24))),
        (
            "__byte_perm(a, b, 0x7041)",
            lambda x, y: int.from_bytes([(y << 32 | x) >> 8 * n & 255 for n in (1, 4, 0, 7)], "little"),
        ),
    ],
)
def test_bit_instructions(gpu: Machine, expression: str, function: Any) -> None:
    result = elementwise(gpu, expression, "u32", "u32,u32", *pairs("u4"))
    np.testing.assert_array_equal(result, python_integers("u4", function))


@pytest.mark.parametrize(
    ("expression", "function"),
    [
        ("__mul64hi(a, b)", lambda x, y: x * y >> 64),
        ("(ll)__umul64hi((ull)a, (ull)b)", lambda x, y: (x % 2**64) * (y % 2**64) >> 64),
        (
            "(ll)__popcll(a) * 100 + __clzll(b)",
            lambda x, y: bin(x % 2**64).count("1") * 100 + 64 - (y % 2**64).bit_length(),
        ),
        ("(ll)__brevll(a)", lambda x, y: int(format(x % 2**64, "064b")[::-1], 2)),
    ],
)
def test_wide_products_and_bits(plain: Machine, expression: str, function: Any) -> None:
    result = elementwise(plain, expression, "ll", "ll,ll", *pairs("i8"))
    np.testing.assert_array_equal(result, python_integers("i8", function))


def ptx_machine_function(body: str, kinds: str = "u32") -> str:
    return f'[](u32 a, u32 b) {{ u32 r; asm("{body}" : "=r"(r) : "r"(a), "r"(b)); return r; }}(a, b)'


@pytest.mark.parametrize(
    ("body", "function"),
    [
        ("shl.b32 %0, %1, %2;", lambda x, y: x << y if y < 32 else 0),
        ("shr.u32 %0, %1, %2;", lambda x, y: x >> min(y, 40)),
        ("shr.s32 %0, %1, %2;", lambda x, y: (x - (x >> 31 << 32)) >> min(y, 40)),
        ("div.u32 %0, %1, %2;", lambda x, y: x // y if y else 2**32 - 1),
        ("bfe.u32 %0, %1, %2, 9;", lambda x, y: (x >> (y & 255)) & 511),
        ("bfi.b32 %0, %1, 0x12345678, %2, 9;", lambda x, y: _insert(x, 0x12345678, y & 255, 9)),
        ("lop3.b32 %0, %1, %2, 0xff00ff00, 0xe8;", lambda x, y: (x & y) | (x & 0xFF00FF00) | (y & 0xFF00FF00)),
        ("bmsk.clamp.b32 %0, %1, %2;", lambda x, y: (((1 << min(y, 99)) - 1) << min(x, 99)) if x < 32 else 0),
        ("{ .reg .pred p; setp.hi.u32 p, %1, %2; @p mov.u32 %0, 7; @!p add.u32 %0, %1, 1; }",
         lambda x, y: 7 if x > y else x + 1),
        ("{ .reg .pred p, q; setp.lt.and.s32 p|q, %1, %2, 1; selp.u32 %0, 3, 4, q; }",
         lambda x, y: 4 if _s(x) < _s(y) else 3),
        ("{ .reg .u32 c; add.cc.u32 c, %1, %2; addc.u32 %0, 0, 0; }", lambda x, y: (x + y) >> 32),
        ("{ .reg .u32 c; sub.cc.u32 c, %1, %2; subc.u32 %0, 5, 0; }", lambda x, y: 5 - (x < y)),
        ("{ .reg .u32 c; mad.lo.cc.u32 c, %1, %2, 77; madc.hi.u32 %0, %1, %2, 1; }",
         lambda x, y: ((x * y + 77) >> 32) + 1),
        ("set.lt.u32.s32 %0, %1, %2;", lambda x, y: -(_s(x) < _s(y))),
        ("cnot.b32 %0, %1;", lambda x, y: int(x == 0)),
        ("add.sat.s32 %0, %1, %2;", lambda x, y: max(-(2**31), min(2**31 - 1, _s(x) + _s(y)))),
        ("cvt.sat.s8.s32 %0, %1;", lambda x, y: max(-128, min(127, _s(x)))),
        ("cvt.u8.u32 %0, %1;", lambda x, y: x & 255),
        ("bfind.u32 %0, %1;", lambda x, y: x.bit_length() - 1),
        ("bfind.shiftamt.s32 %0, %1;",
         lambda x, y: 32 - (_s(x) ^ -(x >> 31)).bit_length() if _s(x) ^ -(x >> 31) else -1),
    ],
)  # fmt: skip
def test_single_instructions(plain: Machine, body: str, function: Any) -> None:
    result = elementwise(plain, ptx_machine_function(body), "u32", "u32,u32", *pairs("u4"))
    expected = python_integers("u4", function)
    np.testing.assert_array_equal(result, expected)


def _s(value: int) -> int:
    return value - (value >> 31 << 32)


def _insert(field: int, into: int, at: int, length: int) -> int:
    mask = ((1 << length) - 1) << at & 0xFFFFFFFF
    return into & ~mask | field << at & mask


FLOATS = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.7, -3.7, 1e-3, 1e10, -1e10, 2147483648.0, 4294967295.0, 1e20, -1e20,
     np.inf, -np.inf, np.nan, 3.4e38, 1e-38, 1e-44, 127.5, 255.49, 65504.0]
)  # fmt: skip


def float_pairs(kind: str) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.meshgrid(FLOATS, FLOATS)
    return a.ravel().astype(kind), b.ravel().astype(kind)


@pytest.mark.parametrize(("name", "kind"), [("float", "f4"), ("double", "f8")])
@pytest.mark.parametrize(
    ("expression", "function"),
    [
        ("a + b", lambda a, b: a + b),
        ("a - b", lambda a, b: a - b),
        ("a * b", lambda a, b: a * b),
        ("a / b", lambda a, b: a / b),
        ("sqrt(a)", lambda a, b: np.sqrt(a)),
        ("fmin(a, b)", np.fmin),
        ("fmax(a, b)", np.fmax),
        ("fabs(a)", lambda a, b: np.abs(a)),
        ("copysign(a, b)", np.copysign),
        ("floor(a)", lambda a, b: np.floor(a)),
        ("ceil(a)", lambda a, b: np.ceil(a)),
        ("trunc(a)", lambda a, b: np.trunc(a)),
        ("rint(a)", lambda a, b: np.rint(a)),
        ("(a < b) + 2 * (a <= b) + 4 * (a == b) + 8 * (a != b) + 16 * (a >= b) + 32 * isnan(a) + 64 * !(a < b)",
         lambda a, b: (a < b) + 2.0 * (a <= b) + 4 * (a == b) + 8 * (a != b) + 16 * (a >= b) + 32 * np.isnan(a)
         + 64 * ~(a < b)),
    ],
)  # fmt: skip
def test_float_arithmetic(gpu: Machine, name: str, kind: str, expression: str, function: Any) -> None:
    a, b = float_pairs(kind)
    result = elementwise(gpu, expression, name, f"{name},{name}", a, b)
    with np.errstate(all="ignore"):
        expected = function(a, b).astype(kind)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("function", "kind", "tolerance"),
    [
        (f, "float", 2e-6)
        for f in ("sinf", "cosf", "expf", "logf", "tanhf", "cbrtf", "rsqrtf", "erff", "atanf", "log2f", "exp2f")
    ]
    + [
        (f, "double", 1e-15)
        for f in ("sin", "cos", "exp", "log", "tanh", "cbrt", "rsqrt", "atan", "log2", "exp2", "log1p")
    ],
)
def test_mathematical_functions(gpu: Machine, function: str, kind: str, tolerance: float) -> None:
    x = np.concatenate([np.linspace(0.01, 20, 200), [1e-5, 105414.0, 110000.0]])
    if function in ("exp", "expf", "exp2", "exp2f", "tanh", "tanhf"):
        x = x[x < 80]
    x = x.astype("f4" if kind == "float" else "f8")
    name = function.removesuffix("f") if function != "erff" else "erf"
    reference = {"rsqrt": lambda v: 1 / math.sqrt(v), "erf": math.erf, "cbrt": np.cbrt, "exp2": np.exp2}.get(
        name
    ) or getattr(math, name)
    result = elementwise(gpu, f"{function}(a)", kind, kind, x)
    expected = np.array([reference(float(v)) for v in x])
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


def test_fast_math_uses_the_approximate_instructions(gpu: Machine) -> None:
    x = np.linspace(0.1, 6, 100).astype("f4")
    result = elementwise(
        gpu,
        "sinf(a) + cosf(a) + expf(a) + logf(a) + a / 3.3f + sqrtf(a)",
        "float",
        "float",
        x,
        options=("--use_fast_math",),
    )
    wide = x.astype("f8")
    np.testing.assert_allclose(
        result, np.sin(wide) + np.cos(wide) + np.exp(wide) + np.log(wide) + wide / 3.3 + np.sqrt(wide), rtol=1e-5
    )


def test_fma_rounds_once(gpu: Machine) -> None:
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal(500), rng.standard_normal(500)
    c = -(a * b) * (1 + rng.integers(-3, 4, 500) * 2.0**-52)
    result = elementwise(gpu, "fma(a, b, c)", "double", "double,double,double", a, b, c)
    exact = [
        float(Fraction(x) * Fraction(y) + Fraction(z))
        for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    ]
    np.testing.assert_array_equal(result, exact)


def test_fma_in_single_precision_is_not_rounded_twice(gpu: Machine) -> None:
    # 1 + 2^-24 + 2^-60 lies just above half way between two floats; through f64 alone the last term is lost.
    a, b = np.array([2.0**-30], "f4"), np.array([2.0**-30], "f4")
    c = np.array([1.0], "f4")
    assert elementwise(gpu, "__fmaf_rn(a, b, c)", "float", "float,float,float", a, b, c)[0] == 1.0
    x = np.array([1 + 2.0**-12], "f4")
    y = np.array([1 + 2.0**-12 + 2.0**-23], "f4")
    tiny = np.array([2.0**-80], "f4")
    up = elementwise(gpu, "__fmaf_rn(a, a, c)", "float", "float,float,float", x, x, tiny)[0]
    assert up == np.float32(1 + 2.0**-11 + 2.0**-23), "x * x is exactly half way, and the addend decides"
    down = elementwise(gpu, "__fmaf_rn(a, a, -c)", "float", "float,float,float", x, x, tiny)[0]
    assert down == np.float32(1 + 2.0**-11)
    assert y[0] != x[0]


@pytest.mark.parametrize("mode", ["rn", "rz", "ru", "rd"])
def test_directed_rounding(plain: Machine, mode: str) -> None:
    a, b = random(11, 300), random(12, 300)
    expression = f"__fadd_{mode}(a, b) * 0 + __fmul_{mode}(a, b)"
    for expression, exact in (
        (f"__fadd_{mode}(a, b)", lambda x, y: x + y),
        (f"__fmul_{mode}(a, b)", lambda x, y: x * y),
        (f"__fdiv_{mode}(a, b)", lambda x, y: x / y),
        (f"__fmaf_{mode}(a, b, a)", lambda x, y: x * y + x),
    ):
        result = elementwise(plain, expression, "float", "float,float", a, b)
        for x, y, got in zip(a.tolist(), b.tolist(), result.tolist(), strict=True):
            truth = exact(Fraction(x), Fraction(y))
            error = Fraction(got) - truth
            unit = Fraction(float(np.spacing(np.float32(abs(got)))))
            assert abs(error) < unit
            assert {"rn": abs(error) <= unit / 2, "rz": abs(got) <= abs(truth), "ru": error >= 0, "rd": error <= 0}[
                mode
            ]


TOPMOST = {"int": -(2**31), "u32": 2**31, "ll": -(2**63), "ull": 2**63}


@pytest.mark.parametrize("source", ["float", "double"])
@pytest.mark.parametrize(
    ("function", "result", "limits"),
    [
        ("(int)", "int", (-(2**31), 2**31 - 1)),
        ("(u32)", "u32", (0, 2**32 - 1)),
        ("(ll)", "ll", (-(2**63), 2**63 - 1)),
        ("(ull)", "ull", (0, 2**64 - 1)),
        ("__{}2int_rn", "int", (-(2**31), 2**31 - 1)),
        ("__{}2int_rd", "int", (-(2**31), 2**31 - 1)),
        ("__{}2int_ru", "int", (-(2**31), 2**31 - 1)),
        ("__{}2ll_rn", "ll", (-(2**63), 2**63 - 1)),
        ("__{}2uint_ru", "u32", (0, 2**32 - 1)),
    ],
)
def test_floats_become_integers_by_clamping(
    gpu: Machine, source: str, function: str, result: str, limits: tuple[int, int]
) -> None:
    # NaN becomes 0, or, where either type has 64 bits, the topmost bit alone (PTX ISA 9.0, `cvt`).
    a = FLOATS.astype({"float": "f4", "double": "f8"}[source])
    values = elementwise(gpu, f"{function.format(source)}(a)", result, source, a)
    rounding = {"rn": np.rint, "rd": np.floor, "ru": np.ceil}.get(function[-2:], np.trunc)
    unknown = TOPMOST[result] if source == "double" or result in ("ll", "ull") else 0
    for x, got in zip(a, values.tolist(), strict=True):
        low, high = limits
        if np.isnan(x):
            assert got == unknown
        else:
            expected = low if x < low else high if x > high else int(rounding(x))
            assert got == max(low, min(high, expected)), x


def test_conversions_between_every_width(gpu: Machine) -> None:
    a = np.array(INTERESTING["i4"], "i4")
    for result, kind in (
        ("u8", "u1"),
        ("signed char", "i1"),
        ("u16", "u2"),
        ("short", "i2"),
        ("ll", "i8"),
        ("ull", "u8"),
    ):
        np.testing.assert_array_equal(elementwise(gpu, f"({result})a", result, "int", a), a.astype(kind))
    wide = np.array(INTERESTING["i8"], "i8")
    np.testing.assert_array_equal(elementwise(gpu, "(float)a", "float", "ll", wide), wide.astype("f4"))
    np.testing.assert_array_equal(elementwise(gpu, "(double)a", "double", "ll", wide), wide.astype("f8"))
    unsigned = np.array(INTERESTING["u8"], "u8")
    np.testing.assert_array_equal(elementwise(gpu, "(float)a", "float", "ull", unsigned), unsigned.astype("f4"))
    for name, kind, values in (("ll", "ll", wide), ("ull", "ull", unsigned)):
        for mode, sign in (("ru", 1), ("rd", -1)):
            rounded = elementwise(gpu, f"__{name}2float_{mode}(a)", "float", kind, values)
            for x, exact in zip(rounded, values.tolist(), strict=True):
                error = sign * (int(x) - exact)
                assert 0 <= error < max(1, int(abs(np.spacing(x)))), (mode, exact)


def test_small_integers_keep_their_sign(gpu: Machine) -> None:
    a = np.arange(-128, 128).astype("i1")
    result = elementwise(gpu, "a * a - a", "int", "signed char", a)
    np.testing.assert_array_equal(result, a.astype("i4") ** 2 - a)
    np.testing.assert_array_equal(elementwise(gpu, "a >> 3", "short", "signed char", a), a.astype("i2") >> 3)


def test_half_precision(gpu: Machine) -> None:
    source = """
    typedef unsigned short h;
    __device__ float up(h x) {
        float f; asm("{ .reg .f16 t; mov.b16 t, %1; cvt.f32.f16 %0, t; }" : "=f"(f) : "h"(x)); return f; }
    extern "C" __global__ void k(const float* x, h* rounded, h* sum, h* product, float* back, unsigned* packed, int n) {
        int i = threadIdx.x; if (i >= n) return;
        h a, b, c;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(a) : "f"(x[i]));
        asm("add.f16 %0, %1, %1;" : "=h"(b) : "h"(a));
        asm("fma.rn.f16 %0, %1, %1, %2;" : "=h"(c) : "h"(a), "h"(b));
        rounded[i] = a; sum[i] = b; product[i] = c; back[i] = up(c);
        unsigned two, three;
        asm("mov.b32 %0, {%1, %2};" : "=r"(two) : "h"(a), "h"(b));
        asm("mul.f16x2 %0, %1, %1;" : "=r"(three) : "r"(two));
        packed[i] = three;
    }"""
    x = gpu.array(np.concatenate([random(5, 60), [0, -0.0, 7e4, 1e-7]]), "f4")
    outs = [gpu.zeros(64, kind) for kind in ("f2", "f2", "f2", "f4", "u4")]
    gpu.run(source, "k", 1, 64, x, *outs, 64)
    rounded, total, product, back, packed = outs
    with np.errstate(all="ignore"):
        half = x.astype("f2")
        wide = half.astype("f8")
        np.testing.assert_array_equal(rounded, half)
        np.testing.assert_array_equal(total, half + half)
        np.testing.assert_array_equal(product, (wide * wide + (half + half)).astype("f2"))
        np.testing.assert_array_equal(back, product.astype("f4"))
        np.testing.assert_array_equal(packed.view("f2").reshape(-1, 2), np.stack([half * half, (half + half) ** 2], 1))


# One rounding, everywhere


def exact_floats(values: list[Fraction], kind: Any) -> np.ndarray:
    """Fractions rounded to nearest even, subnormal and infinite results too."""
    return np.array([precise.rounded(value, kind) for value in values])


def fractions(*columns: np.ndarray) -> list[list[Fraction]]:
    return [[Fraction(float(x)) for x in column] for column in columns]


def test_fma_in_single_precision_rounds_once_below_the_normal_range(gpu: Machine) -> None:
    rng = np.random.default_rng(20)
    # Products just above and just below half a unit of the smallest numbers: the rest is beyond what a double keeps.
    a = (2.0**-75 * (1 + rng.choice([-(2.0**-23), 2.0**-23], 500))).astype("f4")
    b = (2.0**-75 * (1 + rng.choice([-(2.0**-23), 2.0**-23], 500))).astype("f4")
    c = (rng.integers(2**21, 2**22, 500) * 2.0**-149).astype("f4")
    result = elementwise(gpu, "__fmaf_rn(a, b, c)", "float", "float,float,float", a, b, c)
    exact = exact_floats([x * y + z for x, y, z in zip(*fractions(a, b, c), strict=True)], np.float32)
    np.testing.assert_array_equal(result, exact)


@pytest.mark.parametrize("mode", ["rn", "rz", "ru", "rd"])
def test_a_product_beyond_the_range_does_not_outweigh_an_infinite_summand(plain: Machine, mode: str) -> None:
    big, inf = 1.7e308, math.inf
    rows = [(1e10, -big, inf, inf), (big, big, -inf, -inf), (big, 2.0, inf, inf), (inf, 2.0, -inf, math.nan)]
    a, b, c, expected = np.array(rows).T
    result = elementwise(plain, f"__fma_{mode}(a, b, c)", "double", "double,double,double", a, b, c)
    np.testing.assert_array_equal(result, expected)


def test_fma_in_double_precision_rounds_once_at_the_ends_of_the_range(plain: Machine) -> None:
    rng = np.random.default_rng(21)
    n = 400
    a, b, c = rng.uniform(1, 2, n), rng.uniform(1, 2, n), rng.uniform(-2, 2, n)
    ends = rng.choice([-1074, -1060, -600, -530, 500, 512, 1000, 1023], n)
    other = rng.choice([-500, -20, 0, 11, 23, 511, 520], n)
    a, b = np.ldexp(a, ends), np.ldexp(b, other)
    c = np.ldexp(c, np.clip(ends + other + rng.integers(-60, 60, n), -1074, 1023))
    c[::7] = 0.0
    result = elementwise(plain, "fma(a, b, c)", "double", "double,double,double", a, b, c)
    exact = exact_floats([x * y + z for x, y, z in zip(*fractions(a, b, c), strict=True)], np.float64)
    np.testing.assert_array_equal(result, exact)


@pytest.mark.parametrize("mode", ["rz", "ru", "rd"])
@pytest.mark.parametrize(("name", "letter"), [("float", "f"), ("double", "d")])
def test_directed_rounding_at_the_ends_of_the_range(plain: Machine, name: str, letter: str, mode: str) -> None:
    kind = {"float": np.float32, "double": np.float64}[name]
    limits = np.finfo(kind)
    values = [limits.max, -limits.max, limits.tiny, -limits.tiny, limits.smallest_subnormal, 3, -0.7, limits.max / 3]
    a, b = (grid.ravel().astype(kind) for grid in np.meshgrid(values, values))
    operations = {
        f"__{letter}add_{mode}(a, b)": lambda x, y: x + y,
        f"__{letter}mul_{mode}(a, b)": lambda x, y: x * y,
        f"__{letter}div_{mode}(a, b)": lambda x, y: x / y,
        f"__fma{letter.strip('d')}_{mode}(a, b, b)": lambda x, y: x * y + y,
    }
    for expression, exact in operations.items():
        result = elementwise(plain, expression, name, f"{name},{name}", a, b)
        pairs = zip(*fractions(a, b), strict=True)
        expected = np.array([precise.rounded(exact(x, y), kind, mode) for x, y in pairs])
        np.testing.assert_array_equal(result, expected, err_msg=expression)
    roots = elementwise(plain, f"__{letter}sqrt_{mode}(fabs(a))", name, name, a)
    for x, root in zip(*fractions(np.abs(a), roots), strict=True):
        assert root**2 >= x if mode == "ru" else root**2 <= x
        neighbour = Fraction(float(np.nextafter(kind(float(root)), kind(0 if mode == "ru" else np.inf))))
        assert neighbour**2 < x if mode == "ru" else neighbour**2 > x


def test_a_narrowing_that_overflows_goes_where_the_rounding_says(plain: Machine) -> None:
    x = np.array([1e300, -1e300, np.inf, 3.5e38, 1e-300, -1e-300])
    largest, tiny = np.finfo("f4").max, np.float32(1e-45)
    for mode, expected in {
        "rz": [largest, -largest, np.inf, largest, 0, 0],
        "ru": [np.inf, -largest, np.inf, np.inf, tiny, 0],
        "rd": [largest, -np.inf, np.inf, largest, 0, -tiny],
    }.items():
        result = elementwise(plain, f"__double2float_{mode}(a)", "float", "double", x)
        np.testing.assert_array_equal(result, np.array(expected, "f4"), err_msg=mode)


def words(gpu: Machine, body: str, *inputs: Any, kinds: str = "u32,u32") -> np.ndarray:
    """Run one instruction whose result is a 32-bit word; `%0` is the result, `%1` and `%2` are the inputs."""
    constraint = {"u32": "r", "int": "r", "float": "f", "double": "d", "ll": "l"}
    operands = ", ".join(f'"{constraint[kind]}"({name})' for kind, name in zip(kinds.split(","), "abc", strict=False))
    parameters = ", ".join(f"{kind} {name}" for kind, name in zip(kinds.split(","), "abc", strict=False))
    names = ", ".join("abc"[: len(inputs)])
    function = f'[]({parameters}) {{ u32 r; asm("{body}" : "=r"(r) : {operands}); return r; }}({names})'
    return elementwise(gpu, function, "u32", kinds, *inputs)


def packed(low: Any, high: Any, kind: str) -> np.ndarray:
    return np.stack([np.asarray(low, kind), np.asarray(high, kind)], axis=1).view("u4").ravel()


H = np.array([0, -0.0, 1, -1, 2.5, -2.5, np.inf, -np.inf, np.nan, 65504, 6e-8, 0.1])


@pytest.mark.parametrize(
    ("instruction", "function"),
    [
        ("set.lt.f16x2.f16x2", lambda a, b: (a < b).astype("f2")),
        ("set.geu.f16x2.f16x2", lambda a, b: (~(a < b)).astype("f2")),
        ("set.ne.u32.f16x2", lambda a, b: np.where((a < b) | (a > b), 0xFFFF, 0).astype("u2").view("f2")),
        ("set.nan.u32.f16x2", lambda a, b: np.where(np.isnan(a + b) & (np.isnan(a) | np.isnan(b)), 0xFFFF, 0)
         .astype("u2").view("f2")),
        ("max.NaN.f16x2", lambda a, b: np.maximum(a, b)),
        ("min.f16x2", np.fmin),
        ("add.sat.f16x2", lambda a, b: np.clip(np.nan_to_num(a.astype("f8") + b, nan=0), 0, 1).astype("f2")),
        ("sub.f16x2", lambda a, b: a - b),
    ],
)  # fmt: skip
def test_pairs_of_halves(plain: Machine, instruction: str, function: Any) -> None:
    a, b = (grid.ravel().astype("f2") for grid in np.meshgrid(H, H))
    result = words(plain, f"{instruction} %0, %1, %2;", packed(a, b, "f2"), packed(b, b, "f2"))
    with np.errstate(all="ignore"):
        expected = np.stack([function(a, b), function(b, b)], axis=1)
    got = result.view("f2").reshape(-1, 2)
    if instruction.startswith("set"):
        np.testing.assert_array_equal(got.view("u2"), expected.view("u2"))
    else:
        np.testing.assert_array_equal(got, expected)


def test_predicates_of_halves_and_the_first_destination_is_for_the_lower_one(plain: Machine) -> None:
    a, b = (grid.ravel().astype("f2") for grid in np.meshgrid(H, H))
    body = "{ .reg .pred p, q; setp.lt.f16x2 p|q, %1, %2; selp.u32 %0, 1, 0, p; @q add.u32 %0, %0, 2; }"
    result = words(plain, body, packed(a, b, "f2"), packed(b, a, "f2"))
    np.testing.assert_array_equal(result, (a < b) + 2 * (b < a))


@pytest.mark.parametrize("arch", ["compute_90"])
@pytest.mark.parametrize(
    ("instruction", "kind", "function"),
    [
        ("add.s16x2", "i2", np.add), ("add.u16x2", "u2", np.add), ("min.s16x2", "i2", np.minimum),
        ("max.u16x2", "u2", np.maximum), ("max.s16x2.relu", "i2", lambda a, b: np.maximum(np.maximum(a, b), 0)),
    ],
)  # fmt: skip
def test_pairs_of_integers(arch: str, instruction: str, kind: str, function: Any) -> None:
    a, b = pairs("u4")
    result = words(Machine(arch), f"{instruction} %0, %1, %2;", a, b)
    expected = function(a.view(kind), b.view(kind)).astype(kind)
    np.testing.assert_array_equal(result.view(kind), expected)


@pytest.mark.parametrize(
    ("expression", "function"),
    [
        ("__vabsdiffu4(a, b)", lambda x, y: sum(abs((x >> s & 255) - (y >> s & 255)) << s for s in (0, 8, 16, 24))),
        ("__vsadu4(a, b)", lambda x, y: sum(abs((x >> s & 255) - (y >> s & 255)) for s in (0, 8, 16, 24))),
        ("__vsadu2(a, b)", lambda x, y: sum(abs((x >> s & 65535) - (y >> s & 65535)) for s in (0, 16))),
        ("__fns(a, b & 31, 2)", lambda x, y: _nth_bit(x, y & 31, 2)),
        ("__fns(a, b & 31, -3)", lambda x, y: _nth_bit(x, y & 31, -3)),
        ("__fns(a, b & 31, 0)", lambda x, y: y & 31 if x >> (y & 31) & 1 else 2**32 - 1),
        ("(u32)(warpSize + b)", lambda x, y: 32 + y),
    ],
)
def test_more_instructions_on_bits(gpu: Machine, expression: str, function: Any) -> None:
    result = elementwise(gpu, expression, "u32", "u32,u32", *pairs("u4"))
    np.testing.assert_array_equal(result, python_integers("u4", function))


def _nth_bit(mask: int, base: int, offset: int) -> int:
    step = 1 if offset > 0 else -1
    places = [at for at in range(base, 32 if step > 0 else -1, step) if mask >> at & 1]
    return places[abs(offset) - 1] if len(places) >= abs(offset) else 2**32 - 1


def test_relu_keeps_nan(plain: Machine) -> None:
    a = np.array([np.nan, -1, -0.0, 2], "f2")
    one = np.ones(4, "f2")
    body = "fma.rn.relu.f16x2 %0, %1, %2, %1;"
    result = words(plain, body, packed(a, a, "f2"), packed(one, one, "f2")).view("f2")[::2]
    np.testing.assert_array_equal(result, np.array([np.nan, 0, 0, 4], "f2"))


BRAIN = 2.0 ** np.arange(-4.0, 5) * np.array([1, -1, 1.0078125, 1.5, -1.9921875, 1.25, 3.0, 1.0, -1.5])


def brain_bits(values: list[Fraction]) -> list[int]:
    """Fractions as bfloat16, rounded once to nearest even: eight bits of significand."""
    result = []
    for value in values:
        exponent = math.frexp(float(value))[1]
        whole = round(value / Fraction(2) ** (exponent - 8))  # of halves, Python takes the even one
        result.append(int(np.float32(float(whole * Fraction(2) ** (exponent - 8))).view("u4")) >> 16)
    return result


def test_fma_of_brain_floats_rounds_once(plain: Machine) -> None:
    a, b = (grid.ravel().astype("f4") for grid in np.meshgrid(BRAIN, BRAIN))
    # The addend is far below the product, which lies half way between two results: only one rounding sees it.
    for addend in (2.0**-20, -(2.0**-20), 2.0**-40, -(2.0**-40)):
        c = np.full_like(a, addend)
        words_of = [value.view("u4") >> 16 for value in (a, b, c)]
        body = "fma.rn.bf16x2 %0, %1, %2, %3;"
        result = words(plain, body, *words_of, kinds="u32,u32,u32") & 0xFFFF
        exact = [x * y + z for x, y, z in zip(*fractions(a, b, c), strict=True)]
        np.testing.assert_array_equal(result, brain_bits(exact))


def test_numbers_become_16_bit_floats_with_one_rounding() -> None:
    gpu = Machine("compute_90")
    n = np.array([2**24 + 2**16 + 1, -(2**24) - 2**16 - 1, 2**31 - 1, 257, 258, 259, 0x1010001, 33, -7], "i4")
    result = words(gpu, "{ .reg .b16 t; cvt.rn.bf16.s32 t, %1; cvt.u32.u16 %0, t; }", n, kinds="int")
    np.testing.assert_array_equal(result, brain_bits([Fraction(x) for x in n.tolist()]))
    wide = np.array([2**56 + 2**48 + 1, 2**40 + 2**32 + 1, 2**40 + 2**32], "i8")
    result = words(gpu, "{ .reg .b16 t; cvt.rn.bf16.s64 t, %1; cvt.u32.u16 %0, t; }", wide, kinds="ll")
    np.testing.assert_array_equal(result, brain_bits([Fraction(x) for x in wide.tolist()]))
    d = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8, -3 - 2.0**-7 - 2.0**-50])
    result = words(gpu, "{ .reg .b16 t; cvt.rn.bf16.f64 t, %1; cvt.u32.u16 %0, t; }", d, kinds="double")
    np.testing.assert_array_equal(result, brain_bits([Fraction(x) for x in d.tolist()]))
    f = np.array([1 + 2.0**-11, -1 - 2.0**-11, 70000, -70000, 1e-8, -1e-8, 0.0], "f4")
    for mode, bits in {
        "rz": [0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0, 0x8000, 0],
        "rp": [0x3C01, 0xBC00, 0x7C00, 0xFBFF, 1, 0x8000, 0],
        "rm": [0x3C00, 0xBC01, 0x7BFF, 0xFC00, 0, 0x8001, 0],
    }.items():
        result = words(gpu, f"{{ .reg .b16 t; cvt.{mode}.f16.f32 t, %1; cvt.u32.u16 %0, t; }}", f, kinds="float")
        assert result.tolist() == bits, mode
