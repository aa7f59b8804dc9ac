"""Small random kernels in CUDA C++, each with a direct evaluation of the same tree in Python.

Every piece of a kernel is made as a pair: the C++ that the compiler sees, and a function that computes the same for
all threads at once with numpy.  The C++ has no undefined behaviour: signed sums wrap by way of unsigned types, shifts
and indices are masked, divisors are never 0.  Floats take part only in operations that are exact or rounded once, and
the caller turns contraction off, so results agree to the bit; a NaN is only known to be one.

It knows the language, and nothing of the device that runs the kernels.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

TYPES: dict[str, tuple[str, Any]] = {
    "i8": ("signed char", np.int8),
    "u8": ("unsigned char", np.uint8),
    "i16": ("short", np.int16),
    "u16": ("unsigned short", np.uint16),
    "i32": ("int", np.int32),
    "u32": ("unsigned", np.uint32),
    "i64": ("long long", np.int64),
    "u64": ("unsigned long long", np.uint64),
    "f32": ("float", np.float32),
    "f64": ("double", np.float64),
}
"""What a kind of value is called in C++ and in numpy."""

KINDS = tuple(TYPES)
INTEGERS = KINDS[:8]
FLOATS = KINDS[8:]
WIDE = ("i32", "u32", "i64", "u64", "f32", "f64")
"""Kinds that a shuffle moves."""

INPUTS = 2
"""Input arrays of each kind."""
ARRAY = 8
"""Elements of a local array, and of the targets of one atomic operation."""
MAXIMUM_DEPTH = 3

PRELUDE = """
typedef signed char i8; typedef unsigned char u8; typedef short i16; typedef unsigned short u16;
typedef int i32; typedef unsigned u32; typedef long long i64; typedef unsigned long long u64;
typedef float f32; typedef double f64;
template <class T> __device__ T quotient(T a, T b) { return b == 0 ? a : b == (T)-1 ? (T)(0ull - a) : (T)(a / b); }
template <class T> __device__ T remains(T a, T b) { return b == 0 || b == (T)-1 ? (T)0 : (T)(a % b); }
template <class T> __device__ u64 word(T x) { return (u64)x; }
template <> __device__ u64 word(f32 x) { return x != x ? 0x7fc00000 : __float_as_uint(x); }
template <> __device__ u64 word(f64 x) { return x != x ? 0x7ff8ull << 48 : (u64)__double_as_longlong(x); }
"""


def dtype_of(kind: str) -> Any:
    """The numpy type of a kind."""
    return np.dtype(TYPES[kind][1])


def bits_of(kind: str) -> int:
    """The width of a kind."""
    return int(kind[1:])


class State:
    """What all threads of a launch hold; `mask` has those that run the statement at hand."""

    def __init__(self, threads: int, lanes: int, counters: Array) -> None:
        self.threads = threads
        self.lanes = lanes
        self.block = np.arange(lanes) // threads
        self.counters = counters
        self.mask = np.ones(lanes, bool)
        self.broken: list[Array] = []
        self.values: dict[str, Array] = {}

    def assign(self, name: str, value: Array) -> None:
        """Give a variable a value in the threads that run."""
        self.values[name] = np.where(self.mask, value, self.values[name])

    def called_with(self, values: dict[str, Array]) -> State:
        """What a function sees: its parameters."""
        inner = State(self.threads, self.lanes, self.counters)
        inner.values = values
        return inner


class Expression(NamedTuple):
    """A value without side effects: its kind (`bool` for a condition), its C++, and what it is in each thread."""

    kind: str
    text: str
    value: Callable[[State], Array]


class Statement(NamedTuple):
    """Something done: its lines of C++, and what it does to the state."""

    lines: list[str]
    run: Callable[[State], None]


@dataclass
class Function:
    """A device function that returns an expression of its parameters."""

    name: str
    parameters: list[tuple[str, str]]
    result: Expression

    @property
    def text(self) -> str:
        """Its definition; it is never inlined, so that calls are calls."""
        parameters = ", ".join(f"{kind} {name}" for name, kind in self.parameters)
        head = f"__device__ __noinline__ {self.result.kind} {self.name}({parameters})"
        return f"{head} {{ return {self.result.text}; }}"


# --- operations: C++ with {a}, {b}, {c} for the operands and {t} for the kind, and their meaning ----------------------

Meaning = Callable[..., Array]


def _unsigned(kind: str) -> str:
    """The kind in which sums of a kind wrap: C++ widens what is narrower than int."""
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
        return np.where((a == 0) & (b == 0), zero, function(a, b))

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
    ("fmin({a}, {b})", _extreme(np.fmin, True)),
    ("fmax({a}, {b})", _extreme(np.fmax, False)),
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


def _operations(kind: str) -> Sequence[tuple[str, Meaning]]:
    if kind in FLOATS:
        return (*FLOAT_OPERATIONS, FUSED[kind])
    return (*INTEGER_OPERATIONS, *SPECIAL.get(kind, ()))


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


def _conversion(to: str, source: str) -> tuple[str, Meaning]:
    """A cast. From a float to an integer it is an intrinsic: C++ leaves open what numbers out of range become."""
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

REDUCTIONS: dict[str, tuple[tuple[str, ...], Any]] = {
    "add": (("i32", "u32"), np.add),
    "min": (("i32", "u32"), np.minimum),
    "max": (("i32", "u32"), np.maximum),
    "and": (("u32",), np.bitwise_and),
    "or": (("u32",), np.bitwise_or),
    "xor": (("u32",), np.bitwise_xor),
}


def _word(kind: str, value: Array) -> Array:
    """What the prelude's `word` makes of a value."""
    if kind in INTEGERS:
        return value.astype(np.uint64)
    nan = 0x7FC00000 if kind == "f32" else 0x7FF8 << 48
    bits = value.view(f"u{value.dtype.itemsize}").astype(np.uint64)
    return np.where(np.isnan(value), np.uint64(nan), bits)


# --- data -------------------------------------------------------------------------------------------------------------


def _data(rng: np.random.Generator, kind: str, count: int) -> Array:
    """Values of a kind: some small, some with any bits, some at the edges."""
    dtype = dtype_of(kind)
    any_bits = np.frombuffer(rng.bytes(count * dtype.itemsize), dtype)
    if kind in FLOATS:
        limits = np.finfo(dtype)
        edges = [0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan, limits.max, limits.tiny, limits.smallest_subnormal]
        plain = (rng.standard_normal(count) * 10.0 ** rng.integers(-3, 6, count)).astype(dtype)
        whole = rng.integers(-100, 100, count).astype(dtype)
    else:
        whole_limits = np.iinfo(dtype)
        edges = [whole_limits.min, whole_limits.max, 0, 1, whole_limits.max // 2 + 1]
        plain = any_bits
        whole = rng.integers(0, 100, count).astype(dtype)
    choices = [plain, plain, whole, whole, any_bits, rng.choice(np.array(edges, dtype), count)]
    return np.choose(rng.integers(0, len(choices), count), choices).astype(dtype)


@dataclass
class RandomKernel:
    """A kernel `name(const char *in, u64 *out, int p, float q, u64 r)`, its launch, and what `out` holds after it."""

    name: str
    seed: int
    source: str
    blocks: int
    threads: int
    inputs: Array
    start: Array
    scalars: tuple[int, float, int]
    expected: Array
    variables: list[str]

    def place(self, at: int) -> str:
        """What the word of `out` with that number is."""
        lanes = self.blocks * self.threads
        variable, thread = divmod(at, lanes)
        if variable < len(self.variables):
            return f"{self.variables[variable]} of thread {thread}"
        return f"counter {at - lanes * len(self.variables)}"


def translation_unit(kernels: Sequence[RandomKernel]) -> str:
    """The source of several kernels, which the compiler takes at once."""
    return PRELUDE + "\n".join(kernel.source for kernel in kernels)


def random_kernel(seed: int) -> RandomKernel:
    """The kernel of that seed: the same one whenever it is asked for."""
    with np.errstate(all="ignore"):
        return _Writer(seed).write()


@dataclass
class _Scope:
    """What may be said at a place: how deep it is, and whether all threads of a block are there together."""

    depth: int = 0
    together: bool = True
    leaves: bool = False
    """Whether a thread may leave the innermost loop before the others."""


@dataclass
class _Writer:
    """Writes one kernel."""

    seed: int
    rng: random.Random = field(init=False)
    readable: dict[str, list[Expression]] = field(init=False, default_factory=dict)
    variables: list[tuple[str, str]] = field(init=False, default_factory=list)
    functions: list[Function] = field(init=False, default_factory=list)
    shared: dict[str, int] = field(init=False, default_factory=dict)
    groups: list[str] = field(init=False, default_factory=list)
    names: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.blocks = self.rng.randint(1, 3)
        self.threads = self.rng.choice((32, 64, 96, 32, 64, 20, 48))
        self.lanes = self.blocks * self.threads
        self.warps = self.threads % 32 == 0

    # The whole

    def write(self) -> RandomKernel:
        """Declare variables from the input, then do a number of things with them."""
        data = np.random.default_rng(self.seed)
        scalars = (self.rng.randint(-100, 100), self.rng.randint(-64, 64) / 8, self.rng.getrandbits(64))
        inputs = {(kind, at): _data(data, kind, self.lanes) for kind in KINDS for at in range(INPUTS)}
        declarations, given = self._inputs(inputs, scalars)
        for _ in range(self.rng.randint(0, 2)):
            self.functions.append(self._function())
        body = [self._statement(_Scope()) for _ in range(self.rng.randint(4, 9))]
        start = np.zeros(len(self.variables) * self.lanes + len(self.groups) * ARRAY, np.uint64)
        counters = start[len(self.variables) * self.lanes :]
        counters[:] = data.integers(0, 1 << 63, len(counters), np.uint64)
        expected = start.copy()
        state = State(self.threads, self.lanes, expected[len(self.variables) * self.lanes :])
        state.values |= given
        for statement in body:
            statement.run(state)
        for at, (name, kind) in enumerate(self.variables):
            expected[at * self.lanes : (at + 1) * self.lanes] = _word(kind, state.values[name])
        name = f"k{self.seed}"
        source = self._source(name, declarations, body)
        packed = np.frombuffer(b"".join(_padded(values.tobytes()) for values in inputs.values()), np.uint8)
        variables = [variable for variable, _ in self.variables]
        shape = self.blocks, self.threads
        return RandomKernel(name, self.seed, source, *shape, packed, start, scalars, expected, variables)

    def _inputs(
        self, inputs: dict[tuple[str, int], Array], scalars: tuple[int, float, int]
    ) -> tuple[list[str], dict[str, Array]]:
        lines: list[str] = []
        given: dict[str, Array] = {}
        offset = 0
        for (kind, at), values in inputs.items():
            name = f"{kind}_{at}"
            lines.append(f"{kind} {name} = ((const {kind} *)(in + {offset}))[i];")
            given[name] = values
            self._declare(name, kind)
            offset += len(_padded(values.tobytes()))
        thread = np.arange(self.lanes, dtype=np.int32) % self.threads
        uniform = {"p": ("i32", scalars[0]), "q": ("f32", scalars[1]), "r": ("u64", scalars[2])}
        given |= {name: np.full(self.lanes, value, dtype_of(kind)) for name, (kind, value) in uniform.items()}
        given |= {"t": thread, "b": np.arange(self.lanes, dtype=np.int32) // self.threads}
        for name, kind in (*((name, kind) for name, (kind, _) in uniform.items()), ("t", "i32"), ("b", "i32")):
            self.readable.setdefault(kind, []).append(_variable(name, kind))
        return lines, given

    def _declare(self, name: str, kind: str) -> None:
        self.variables.append((name, kind))
        self.readable.setdefault(kind, []).append(_variable(name, kind))

    def _source(self, name: str, declarations: list[str], body: list[Statement]) -> str:
        head = f'extern "C" __global__ void {name}(const char *in, u64 *out, int p, float q, u64 r) {{'
        lines = [f"__shared__ {kind} s_{kind}[{size}];" for kind, size in self.shared.items()]
        lines += ["int t = threadIdx.x, b = blockIdx.x, i = b * blockDim.x + t;"]
        lines += [f"u64 *counters = out + {len(self.variables) * self.lanes};"]
        lines += declarations
        lines += [line for statement in body for line in statement.lines]
        lines += [f"out[{at * self.lanes} + i] = word({name});" for at, (name, _) in enumerate(self.variables)]
        lines.append("}")
        return "\n".join([*(function.text for function in self.functions), head, *lines])

    def _name(self) -> str:
        self.names += 1
        return f"v{self.names}"

    # Expressions

    def _expression(self, kind: str, depth: int = MAXIMUM_DEPTH) -> Expression:
        roll = self.rng.random()
        if depth == 0 or roll < 0.12:
            return self._leaf(kind)
        if roll < 0.30:
            return self._converted(kind, depth)
        if roll < 0.36:
            return self._chosen(kind, depth)
        if roll < 0.42 and any(function.result.kind == kind for function in self.functions):
            return self._call(kind, depth)
        template, meaning = self.rng.choice(_operations(kind))
        count = sum(f"{{{operand}}}" in template for operand in "abc")
        operands = [self._expression(kind, depth - 1) for _ in range(count)]
        return _applied(kind, template, meaning, operands)

    def _leaf(self, kind: str) -> Expression:
        if kind in self.readable and self.rng.random() < 0.8:
            return self.rng.choice(self.readable[kind])
        return self._constant(kind)

    def _constant(self, kind: str) -> Expression:
        if kind in FLOATS:
            value = np.array([self.rng.choice((0.0, 1.0, -1.5, 3.0, 1e-3, 1e10, self.rng.uniform(-9, 9)))])
        else:
            bits = self.rng.choice((self.rng.getrandbits(bits_of(kind)), self.rng.randint(0, 15)))
            value = np.array([bits], np.uint64)
        typed = value.astype(dtype_of(kind))
        raw = int(typed.view(f"u{typed.itemsize}")[0])
        text = {"f32": f"__uint_as_float({raw:#x}u)", "f64": f"__longlong_as_double({raw:#x}ll)"}.get(
            kind, f"({kind}){raw:#x}ull"
        )
        return Expression(kind, text, lambda state: np.full(state.lanes, typed[0]))

    def _converted(self, kind: str, depth: int) -> Expression:
        source = self._expression(self.rng.choice([other for other in KINDS if other != kind]), depth - 1)
        template, meaning = _conversion(kind, source.kind)
        return _applied(kind, template, meaning, [source])

    def _chosen(self, kind: str, depth: int) -> Expression:
        condition = self._condition(depth - 1)
        one, other = self._expression(kind, depth - 1), self._expression(kind, depth - 1)
        return _applied(kind, "({a} ? {b} : {c})", np.where, [condition, one, other])

    def _call(self, kind: str, depth: int) -> Expression:
        function = self.rng.choice([function for function in self.functions if function.result.kind == kind])
        given = [self._expression(parameter, depth - 1) for _, parameter in function.parameters]

        def value(state: State) -> Array:
            names = [name for name, _ in function.parameters]
            arguments = [argument.value(state) for argument in given]
            return function.result.value(state.called_with(dict(zip(names, arguments, strict=True))))

        return Expression(kind, f"{function.name}({', '.join(argument.text for argument in given)})", value)

    def _condition(self, depth: int = 2) -> Expression:
        if depth > 0 and self.rng.random() < 0.3:
            connective = self.rng.choice(list(CONNECTIVES))
            parts = [self._condition(depth - 1), self._condition(depth - 1)]
            return _applied("bool", f"({{a}} {connective} {{b}})", CONNECTIVES[connective], parts)
        kind = self.rng.choice(KINDS)
        comparison = self.rng.choice(list(COMPARISONS))
        sides = [self._expression(kind, max(depth - 1, 0)) for _ in range(2)]
        return _applied("bool", f"({{a}} {comparison} {{b}})", COMPARISONS[comparison], sides)

    def _index(self, mask: int) -> Expression:
        """A number from 0 to `mask`, which is a power of two less one."""
        number = self._expression("i32", 1)
        return _applied("i32", f"({{a}} & {mask})", lambda a: a & np.int32(mask), [number])

    def _function(self) -> Function:
        outer, self.readable = self.readable, {}
        parameters = [(f"a{at}", self.rng.choice(KINDS)) for at in range(self.rng.randint(1, 3))]
        for name, kind in parameters:
            self.readable.setdefault(kind, []).append(_variable(name, kind))
        result = self._expression(self.rng.choice(KINDS))
        self.readable = outer
        return Function(f"call{self.seed}_{len(self.functions)}", parameters, result)

    # Statements

    def _statement(self, scope: _Scope) -> Statement:
        choices: list[tuple[int, Callable[[_Scope], Statement]]] = [(6, self._assignment), (2, self._atomic)]
        if scope.depth < 2:
            choices += [(3, self._branch), (2, self._loop), (1, self._switch), (1, self._local_array)]
        if scope.leaves:
            choices += [(2, self._jump)]
        if scope.together:
            choices += [(2, self._exchange), (1, self._shared_atomic), (1, self._block_vote)]
        if scope.together and self.warps:
            choices += [(2, self._shuffle), (1, self._ballot), (1, self._match), (1, self._reduction)]
        weights, makers = zip(*choices, strict=True)
        return self.rng.choices(makers, weights)[0](scope)

    def _block(self, scope: _Scope, most: int = 3) -> Statement:
        return _sequence([self._statement(scope) for _ in range(self.rng.randint(1, most))])

    def _target(self, *kinds: str) -> tuple[str, str]:
        return self.rng.choice([(name, kind) for name, kind in self.variables if kind in (kinds or KINDS)])

    def _assignment(self, scope: _Scope) -> Statement:
        name, kind = self._target()
        value = self._expression(kind)
        return Statement([f"{name} = {value.text};"], lambda state: state.assign(name, value.value(state)))

    def _branch(self, scope: _Scope) -> Statement:
        """Where the condition is the same in a whole block, its threads stay together."""
        together = scope.together and self.rng.random() < 0.4
        condition = self._block_condition() if together else self._condition()
        inner = _Scope(scope.depth + 1, together, scope.leaves)
        taken, other = self._block(inner), self._block(inner)

        def run(state: State) -> None:
            entered, chosen = state.mask, condition.value(state)
            state.mask = entered & chosen
            taken.run(state)
            after, state.mask = state.mask, entered & ~chosen
            other.run(state)
            state.mask = state.mask | after

        lines = [f"if ({condition.text}) {{", *_indented(taken), "} else {", *_indented(other), "}"]
        return Statement(lines, run)

    def _block_condition(self) -> Expression:
        name = self.rng.choice(("b", "p"))
        limit = self.rng.randint(0, 2)
        return Expression("bool", f"({name} > {limit})", lambda state: state.values[name] > limit)

    def _loop(self, scope: _Scope) -> Statement:
        """At most seven turns. The bound is looked at in each turn, and may change."""
        name = self._name()
        together = scope.together and self.rng.random() < 0.4
        turns = self.rng.randint(1, 4)
        number = np.int32(turns)
        bound = (
            Expression("i32", f"{turns}", lambda state: np.full(state.lanes, number)) if together else self._index(7)
        )
        self.readable["i32"].append(_variable(name, "i32"))
        body = self._block(_Scope(scope.depth + 1, together, not together))
        self.readable["i32"].pop()

        def run(state: State) -> None:
            entered = state.mask
            state.values[name] = np.zeros(state.lanes, np.int32)
            active = entered
            while (active := active & (state.values[name] < bound.value(state))).any():
                state.mask = active
                state.broken.append(np.zeros(state.lanes, bool))
                body.run(state)
                active = active & ~state.broken.pop()
                state.values[name] = state.values[name] + active.astype(np.int32)
            state.mask = entered

        return Statement([f"for (int {name} = 0; {name} < {bound.text}; {name}++) {{", *_indented(body), "}"], run)

    def _jump(self, scope: _Scope) -> Statement:
        """`break` or `continue`."""
        word, condition = self.rng.choice(("break", "continue")), self._condition()

        def run(state: State) -> None:
            leaving = state.mask & condition.value(state)
            if word == "break":
                state.broken[-1] = state.broken[-1] | leaving
            state.mask = state.mask & ~leaving

        return Statement([f"if ({condition.text}) {word};"], run)

    def _switch(self, scope: _Scope) -> Statement:
        """Eight cases, some of which fall through to the next."""
        name, kind = self._target()
        subject = self._index(7)
        values = [self._expression(kind, 1) for _ in range(8)]
        falls = [self.rng.random() < 0.25 for _ in range(8)]

        def run(state: State) -> None:
            entered, chosen = state.mask, subject.value(state)
            falling = np.zeros(state.lanes, bool)
            for at in range(8):
                state.mask = entered & ((chosen == at) | falling)
                state.assign(name, values[at].value(state))
                falling = state.mask if falls[at] else np.zeros(state.lanes, bool)
            state.mask = entered

        cases = [
            f"    case {at}: {name} = {value.text};{'' if fall else ' break;'}"
            for at, (value, fall) in enumerate(zip(values, falls, strict=True))
        ]
        return Statement([f"switch ({subject.text}) {{", *cases, "}"], run)

    def _local_array(self, scope: _Scope) -> Statement:
        """A local array, which is filled, changed at one place, and read at another."""
        array, (name, kind) = self._name(), self._target()
        fill, value = self._expression(kind, 1), self._expression(kind, 2)
        to, source = self._index(ARRAY - 1), self._index(ARRAY - 1)

        def run(state: State) -> None:
            rows = np.repeat(fill.value(state)[:, None], ARRAY, 1)
            lanes = np.arange(state.lanes)
            rows[lanes, to.value(state)] = value.value(state)
            state.assign(name, rows[lanes, source.value(state)])

        counter = self._name()
        lines = [
            f"{kind} {array}[{ARRAY}];",
            f"for (int {counter} = 0; {counter} < {ARRAY}; {counter}++) {array}[{counter}] = {fill.text};",
            f"{array}[{to.text}] = {value.text};",
            f"{name} = {array}[{source.text}];",
        ]
        return Statement(["{", *(f"    {line}" for line in lines), "}"], run)

    def _atomic(self, scope: _Scope) -> Statement:
        """An atomic operation on global memory."""
        operation, kind, function = self._atomic_operation()
        group, index, value = len(self.groups), self._index(ARRAY - 1), self._expression(kind, 2)
        self.groups.append(kind)

        def run(state: State) -> None:
            words = state.counters[group * ARRAY : (group + 1) * ARRAY].view(dtype_of(kind))
            places = index.value(state) * (64 // bits_of(kind))
            function.at(words, places[state.mask], value.value(state)[state.mask])

        place = f"({kind} *)(counters + {group * ARRAY} + {index.text})"
        return Statement([f"{operation}({place}, {value.text});"], run)

    def _atomic_operation(self) -> tuple[str, str, Any]:
        operation = self.rng.choice(list(ATOMICS))
        kinds, function = ATOMICS[operation]
        return operation, self.rng.choice(kinds), function

    # What the threads of a block do together

    def _shared_array(self, kind: str) -> str:
        self.shared[kind] = max(self.threads, ARRAY)
        return f"s_{kind}"

    def _exchange(self, scope: _Scope) -> Statement:
        """Each thread reads what another one has written to shared memory."""
        name, kind = self._target()
        value, distance, array = self._expression(kind, 2), self.rng.randrange(self.threads), self._shared_array(kind)

        def run(state: State) -> None:
            written = value.value(state).reshape(-1, state.threads)
            state.assign(name, np.roll(written, -distance, 1).ravel())

        read = f"{name} = {array}[(t + {distance}) % {self.threads}];"
        return Statement(
            [f"{array}[t] = {value.text};", "__syncthreads();", read, "__syncthreads();"],
            run,
        )

    def _shared_atomic(self, scope: _Scope) -> Statement:
        """Some threads of a block change shared memory, and all read it."""
        operation, kind, function = self._atomic_operation()
        name, _ = self._target(kind)
        array, condition = self._shared_array(kind), self._condition(1)
        start, value = self._constant(kind), self._expression(kind, 2)
        to, source = self._index(ARRAY - 1), self._index(ARRAY - 1)

        def run(state: State) -> None:
            rows = np.full((state.lanes // state.threads, ARRAY), start.value(state)[0])
            chosen = state.mask & condition.value(state)
            places = state.block[chosen], to.value(state)[chosen]
            function.at(rows, places, value.value(state)[chosen])
            state.assign(name, rows[state.block, source.value(state)])

        lines = [
            f"if (t < {ARRAY}) {array}[t] = {start.text};",
            "__syncthreads();",
            f"if ({condition.text}) {operation}(&{array}[{to.text}], {value.text});",
            "__syncthreads();",
            f"{name} = {array}[{source.text}];",
            "__syncthreads();",
        ]
        return Statement(lines, run)

    def _block_vote(self, scope: _Scope) -> Statement:
        mode, meaning = self.rng.choice(
            (("count({})", lambda rows: rows.sum(1)), ("and({}) != 0", lambda rows: rows.all(1)),
             ("or({}) != 0", lambda rows: rows.any(1)))
        )  # fmt: skip
        name, _ = self._target("i32")
        condition = self._condition()

        def run(state: State) -> None:
            votes = meaning(condition.value(state).reshape(-1, state.threads)).astype(np.int32)
            state.assign(name, votes[state.block])

        return Statement([f"{name} = __syncthreads_{mode.format(condition.text)};"], run)

    # What the threads of a warp do together

    def _shuffle(self, scope: _Scope) -> Statement:
        name, kind = self._target(*WIDE)
        value, width = self._expression(kind, 2), self.rng.choice((32, 32, 16, 8, 4))
        mode = self.rng.choice(("", "_up", "_down", "_xor"))
        distance = self.rng.randrange(32)
        source = self._index(31) if not mode else _constant("u32" if mode != "_xor" else "i32", distance)

        def run(state: State) -> None:
            lane = np.arange(state.lanes) % 32
            base = lane & -width
            wanted = _SHUFFLES[mode](lane, source.value(state).astype(np.int64), base, width)
            fits = (wanted < base + width) if mode != "_up" else (wanted >= base)
            at = np.arange(state.lanes) - lane + np.where(fits, wanted, lane)
            state.assign(name, value.value(state)[at])

        return Statement([f"{name} = __shfl{mode}_sync(~0u, {value.text}, {source.text}, {width});"], run)

    def _ballot(self, scope: _Scope) -> Statement:
        name, _ = self._target("u32")
        mode, condition = self.rng.choice(list(_VOTES)), self._condition()

        def run(state: State) -> None:
            votes = _VOTES[mode](condition.value(state).reshape(-1, 32))
            state.assign(name, np.repeat(votes, 32).astype(np.uint32))

        text = f"__{mode}_sync(~0u, {condition.text})"
        return Statement([f"{name} = {text if mode == 'ballot' else f'{text} != 0'};"], run)

    def _match(self, scope: _Scope) -> Statement:
        """Few different values, so that some match."""
        name, _ = self._target("u32")
        value = self._index(3)

        def run(state: State) -> None:
            rows = value.value(state).reshape(-1, 32)
            equal = rows[:, :, None] == rows[:, None, :]
            state.assign(name, (equal * (1 << np.arange(32))).sum(2).ravel().astype(np.uint32))

        return Statement([f"{name} = __match_any_sync(~0u, {value.text});"], run)

    def _reduction(self, scope: _Scope) -> Statement:
        """Those for which a condition holds reduce their values."""
        operation = self.rng.choice(list(REDUCTIONS))
        kinds, function = REDUCTIONS[operation]
        kind = self.rng.choice(kinds)
        name, _ = self._target(kind)
        mask, condition, value = self._name(), self._condition(), self._expression(kind, 2)

        def run(state: State) -> None:
            chosen, values = condition.value(state), value.value(state)
            results = values.copy()
            for first in range(0, state.lanes, 32):
                warp = np.arange(first, first + 32)[chosen[first : first + 32]]
                if len(warp):
                    results[warp] = function.reduce(values[warp], dtype=values.dtype)
            entered, state.mask = state.mask, state.mask & chosen
            state.assign(name, results)
            state.mask = entered

        lines = [
            f"unsigned {mask} = __ballot_sync(~0u, {condition.text});",
            f"if ({mask} >> (t & 31) & 1) {name} = __reduce_{operation}_sync({mask}, {value.text});",
        ]
        return Statement(["{", *(f"    {line}" for line in lines), "}"], run)


_SHUFFLES: dict[str, Callable[[Array, Array, Array, int], Array]] = {
    "": lambda lane, given, base, width: base + (given & (width - 1)),
    "_up": lambda lane, given, base, width: lane - given,
    "_down": lambda lane, given, base, width: lane + given,
    "_xor": lambda lane, given, base, width: lane ^ given,
}
"""The lane that each lane reads; its own, where that is beyond its segment."""

_VOTES: dict[str, Meaning] = {
    "ballot": lambda rows: (rows * (1 << np.arange(32))).sum(1),
    "any": lambda rows: rows.any(1),
    "all": lambda rows: rows.all(1),
}


def _variable(name: str, kind: str) -> Expression:
    return Expression(kind, name, lambda state: state.values[name])


def _constant(kind: str, number: int) -> Expression:
    return Expression(kind, str(number), lambda state: np.full(state.lanes, number, dtype_of(kind)))


def _applied(kind: str, template: str, meaning: Meaning, operands: Sequence[Expression]) -> Expression:
    """An operation on some operands."""
    texts = dict(zip("abc", (operand.text for operand in operands), strict=False))
    if kind in INTEGERS:
        texts |= {"t": kind, "u": _unsigned(kind), "w": str(bits_of(kind) - 1)}
    values = [operand.value for operand in operands]
    return Expression(kind, template.format(**texts), lambda state: meaning(*(value(state) for value in values)))


def _sequence(statements: Sequence[Statement]) -> Statement:
    def run(state: State) -> None:
        for statement in statements:
            statement.run(state)

    return Statement([line for statement in statements for line in statement.lines], run)


def _indented(statement: Statement) -> list[str]:
    return [f"    {line}" for line in statement.lines]


def _padded(data: bytes) -> bytes:
    """As long as a multiple of 16 bytes, so that what follows is aligned."""
    return data + bytes(-len(data) % 16)
