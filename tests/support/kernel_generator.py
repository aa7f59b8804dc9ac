"""Small random kernels in CUDA C++, each with a direct evaluation of the same tree in Python.

Every piece of a kernel is made as a pair: the C++ that the compiler sees, and a function that computes the same for
all threads at once with numpy.  The operations that they are made of, and why results agree to the bit, are in
`kernel_operations`; the caller turns contraction off.

It knows the language, and nothing of the device that runs the kernels.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from support.kernel_operations import (
    ADDED_FLOATS,
    ATOMICS,
    COMPARISONS,
    CONNECTIVES,
    FLOATS,
    INTEGERS,
    KINDS,
    NARROW,
    PRELUDE,
    REDUCTIONS,
    WIDE,
    Array,
    Meaning,
    bits_in_memory,
    bits_of,
    conversion,
    dtype_of,
    operations,
    rounded,
    word,
    wrapping,
)

INPUTS = 2
"""Input arrays of each kind."""
ARRAY = 8
"""Elements of a local array, and of the targets of one atomic operation."""
OWN = 4
"""Elements of a piece of global memory that a thread has for itself."""
MAXIMUM_DEPTH = 3

SHAPES = ((32,), (64,), (96,), (20,), (48,), (8, 4), (16, 2, 2), (4, 4, 4), (32, 3), (5, 4), (3, 4, 5), (7, 3))
"""Blocks of threads; in most of them all warps are full."""
GRIDS = ((1,), (2,), (3,), (2, 2), (1, 2, 1))


class State:
    """What all threads of a launch hold; `mask` has those that run the statement at hand."""

    def __init__(self, threads: int, lanes: int, out: Array) -> None:
        self.threads = threads
        self.lanes = lanes
        self.block = np.arange(lanes) // threads
        self.out = out
        self.mask = np.ones(lanes, bool)
        self.gone = np.zeros(lanes, bool)
        """The threads that have returned."""
        self.broken: list[Array] = []
        """For each loop around the statement, the threads that have left it."""
        self.values: dict[str, Array] = {}

    def go_on(self, mask: Array) -> None:
        """From now on these threads run, but for those that have returned."""
        self.mask = mask & ~self.gone

    def assign(self, name: str, value: Array) -> None:
        """Give a variable a value in the threads that run."""
        assert value.dtype == self.values[name].dtype, name
        self.values[name] = np.where(self.mask, value, self.values[name])

    def called_with(self, values: dict[str, Array]) -> State:
        """What a function sees: its parameters."""
        inner = State(self.threads, self.lanes, self.out)
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
    """A device function without side effects; it is never inlined, so that calls are calls."""

    name: str
    kind: str
    parameters: list[tuple[str, str]]
    lines: list[str]
    value: Callable[[State], Array]
    """Of a state in which the parameters have values."""

    @property
    def text(self) -> str:
        """Its definition."""
        parameters = ", ".join(f"{kind} {name}" for name, kind in self.parameters)
        return f"__device__ __noinline__ {self.kind} {self.name}({parameters}) {{ {' '.join(self.lines)} }}"


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
    chosen = np.choose(rng.integers(0, len(choices), count), choices)
    return rounded(kind, chosen) if kind in NARROW else chosen.astype(dtype)


@dataclass
class RandomKernel:
    """A kernel `name(const char *in, u64 *out, int p, float q, u64 r)`, its launch, and what `out` holds after it."""

    name: str
    seed: int
    source: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    inputs: Array
    start: Array
    scalars: tuple[int, float, int]
    expected: Array
    variables: list[str]

    def place(self, at: int) -> str:
        """What the word of `out` with that number is."""
        lanes = math.prod(self.grid) * math.prod(self.block)
        variable, thread = divmod(at, lanes)
        if variable < len(self.variables):
            return f"{self.variables[variable]} of thread {thread}"
        return f"word {at - lanes * len(self.variables)} of the memory"


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
    returns: bool = False
    """Whether a thread may return, so that the others have to do without it."""

    def inside(self, together: bool = False, leaves: bool | None = None) -> _Scope:
        """The scope of a statement within a statement."""
        return _Scope(self.depth + 1, together, self.leaves if leaves is None else leaves, self.returns)


@dataclass
class _Writer:
    """Writes one kernel."""

    seed: int
    rng: random.Random = field(init=False)
    readable: dict[str, list[Expression]] = field(init=False, default_factory=dict)
    loaded: dict[str, list[tuple[int, Array]]] = field(init=False, default_factory=dict)
    """The input arrays that may be read at any index: where they begin, and what they hold."""
    variables: list[tuple[str, str]] = field(init=False, default_factory=list)
    functions: list[Function] = field(init=False, default_factory=list)
    shared: dict[str, int] = field(init=False, default_factory=dict)
    pieces: list[tuple[str, int]] = field(init=False, default_factory=list)
    """Pieces of the memory behind the results: what they hold, and how many words they are long."""
    names: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.grid, self.block = self.rng.choice(GRIDS), self.rng.choice(SHAPES)
        self.threads = math.prod(self.block)
        self.lanes = math.prod(self.grid) * self.threads
        self.warps = self.threads % 32 == 0

    # The whole

    def write(self) -> RandomKernel:
        """Declare variables from the input, then do a number of things with them."""
        data = np.random.default_rng(self.seed)
        scalars = (self.rng.randint(-100, 100), self.rng.randint(-64, 64) / 8, self.rng.getrandbits(64))
        inputs = {(kind, at): _data(data, kind, self.lanes) for kind in KINDS for at in range(INPUTS)}
        declarations, given = self._inputs(inputs, scalars)
        for _ in range(self.rng.randint(0, 2)):
            self.functions.append(self.rng.choice((self._function, self._function, self._recursive_function))())
        body = [self._statement(_Scope()) for _ in range(self.rng.randint(4, 9))]
        if self.rng.random() < 0.4:
            body += self._end_where_threads_return()
        body.append(self._results())
        start = np.concatenate([np.zeros(len(self.variables) * self.lanes, np.uint64), *self._memory(data)])
        state = State(self.threads, self.lanes, start.copy())
        state.values |= given
        for statement in body:
            statement.run(state)
        name = f"k{self.seed}"
        source = self._source(name, declarations, body)
        packed = np.frombuffer(b"".join(_padded(_bytes(kind, held)) for (kind, _), held in inputs.items()), np.uint8)
        variables = [variable for variable, _ in self.variables]
        return RandomKernel(
            name, self.seed, source, self.grid, self.block, packed, start, scalars, state.out, variables
        )

    def _results(self) -> Statement:
        """Write all variables to `out`."""

        def run(state: State) -> None:
            for at, (name, kind) in enumerate(self.variables):
                row = state.out[at * self.lanes : (at + 1) * self.lanes]
                row[state.mask] = word(kind, state.values[name])[state.mask]

        lines = [f"out[{at * self.lanes} + i] = word({name});" for at, (name, _) in enumerate(self.variables)]
        return Statement(lines, run)

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
            self.loaded.setdefault(kind, []).append((offset, values))
            offset += len(_padded(_bytes(kind, values)))
        uniform = {"p": ("i32", scalars[0]), "q": ("f32", scalars[1]), "r": ("u64", scalars[2])}
        given |= {name: np.full(self.lanes, value, dtype_of(kind)) for name, (kind, value) in uniform.items()}
        lane = np.arange(self.lanes, dtype=np.int32)
        width, height = (*self.block, 1)[:2]
        given |= {"t": lane % self.threads, "b": lane // self.threads}
        given |= {"x": given["t"] % width, "y": given["t"] // width % height, "z": given["t"] // width // height}
        kinds = {name: kind for name, (kind, _) in uniform.items()} | dict.fromkeys("tbxyz", "i32")
        for name, kind in kinds.items():
            self.readable.setdefault(kind, []).append(_variable(name, kind))
        return lines, given

    def _piece(self, kind: str, words: int) -> int:
        """Take so many words of the memory for something of a kind; returns the number of the first."""
        self.pieces.append((kind, words))
        return sum(taken for _, taken in self.pieces[:-1])

    def _memory(self, rng: np.random.Generator) -> list[Array]:
        """What is in the memory before the launch: any bits, or where floats are added small whole numbers."""
        found = []
        for kind, words in self.pieces:
            piece = rng.integers(0, 1 << 63, words, np.uint64)
            if kind in ADDED_FLOATS:
                piece.view(dtype_of(kind))[:] = rng.integers(-9, 10, words * 64 // bits_of(kind))
            found.append(piece)
        return found

    def _declare(self, name: str, kind: str) -> None:
        self.variables.append((name, kind))
        self.readable.setdefault(kind, []).append(_variable(name, kind))

    def _source(self, name: str, declarations: list[str], body: list[Statement]) -> str:
        head = f'extern "C" __global__ void {name}(const char *in, u64 *out, int p, float q, u64 r) {{'
        lines = [f"__shared__ {kind} s_{kind}[{size}];" for kind, size in self.shared.items()]
        lines += ["int x = threadIdx.x, y = threadIdx.y, z = threadIdx.z, t = x + blockDim.x * (y + blockDim.y * z);"]
        lines += [f"int b = blockIdx.x + gridDim.x * blockIdx.y, i = b * {self.threads} + t;"]
        lines += [f"u64 *memory = out + {len(self.variables) * self.lanes};"]
        lines += declarations
        lines += [line for statement in body for line in statement.lines]
        lines.append("}")
        return "\n".join([*(function.text for function in self.functions), head, *lines])

    def _name(self) -> str:
        self.names += 1
        return f"v{self.names}"

    # Expressions

    def _expression(self, kind: str, depth: int = MAXIMUM_DEPTH) -> Expression:
        roll = self.rng.random()
        if depth == 0 or roll < 0.10:
            return self._leaf(kind)
        if roll < 0.13 and self.loaded:
            return self._load(kind)
        if roll < 0.30:
            return self._converted(kind, depth)
        if roll < 0.36:
            return self._chosen(kind, depth)
        if roll < 0.42 and any(function.kind == kind for function in self.functions):
            return self._call(kind, depth)
        template, meaning = self.rng.choice(operations(kind))
        count = sum(f"{{{operand}}}" in template for operand in "abc")
        operands = [self._expression(kind, depth - 1) for _ in range(count)]
        return _applied(kind, template, meaning, operands)

    def _leaf(self, kind: str) -> Expression:
        if kind in self.readable and self.rng.random() < 0.8:
            return self.rng.choice(self.readable[kind])
        return self._constant(kind)

    def _load(self, kind: str) -> Expression:
        """An input of whatever thread."""
        index, lanes = self._expression("u32", 1), np.uint32(self.lanes)
        offset, values = self.rng.choice(self.loaded[kind])
        text = f"((const {kind} *)(in + {offset}))[{index.text} % {self.lanes}u]"
        return Expression(kind, text, lambda state: values[index.value(state) % lanes])

    def _constant(self, kind: str) -> Expression:
        if kind in FLOATS:
            value = np.array([self.rng.choice((0.0, 1.0, -1.5, 3.0, 1e-3, 1e10, self.rng.uniform(-9, 9)))])
            typed = rounded(kind, value) if kind in NARROW else value.astype(dtype_of(kind))
        else:
            bits = self.rng.choice((self.rng.getrandbits(bits_of(kind)), self.rng.randint(0, 15)))
            typed = np.array([bits], np.uint64).astype(dtype_of(kind))
        text = _LITERALS.get(kind, f"({kind}){{:#x}}ull").format(int(bits_in_memory(kind, typed)[0]))
        return Expression(kind, text, lambda state: np.full(state.lanes, typed[0]))

    def _converted(self, kind: str, depth: int) -> Expression:
        source = self._expression(self.rng.choice([other for other in KINDS if other != kind]), depth - 1)
        template, meaning = conversion(kind, source.kind)
        return _applied(kind, template, meaning, [source])

    def _chosen(self, kind: str, depth: int) -> Expression:
        condition = self._condition(depth - 1)
        one, other = self._expression(kind, depth - 1), self._expression(kind, depth - 1)
        return _applied(kind, "({a} ? {b} : {c})", np.where, [condition, one, other])

    def _call(self, kind: str, depth: int) -> Expression:
        function = self.rng.choice([function for function in self.functions if function.kind == kind])
        names = [name for name, _ in function.parameters]
        given = [
            self._index(7) if name == "n" else self._expression(parameter, depth - 1)
            for name, parameter in function.parameters
        ]

        def value(state: State) -> Array:
            arguments = [argument.value(state) for argument in given]
            return function.value(state.called_with(dict(zip(names, arguments, strict=True))))

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
        """An expression of its parameters."""
        parameters = [(f"a{at}", self.rng.choice(KINDS)) for at in range(self.rng.randint(1, 3))]
        kind = self.rng.choice(KINDS)
        (result,) = self._expressions_of(parameters, [kind])
        lines = [f"return {result.text};"]
        return Function(f"call{self.seed}_{len(self.functions)}", kind, parameters, lines, result.value)

    def _recursive_function(self) -> Function:
        """It calls itself as often as its first parameter says."""
        name, kind = f"call{self.seed}_{len(self.functions)}", self.rng.choice(KINDS)
        parameters = [("n", "i32"), ("a", kind)]
        last, inner = self._expressions_of(parameters, [kind, kind])
        (joined,) = self._expressions_of([*parameters, ("rest", kind)], [kind])

        def value(state: State) -> Array:
            if (state.values["n"] <= 0).all():
                return last.value(state)
            below = state.called_with({"n": state.values["n"] - np.int32(1), "a": inner.value(state)})
            whole = state.called_with({**state.values, "rest": value(below)})
            return np.where(state.values["n"] <= 0, last.value(state), joined.value(whole))

        again = f"{kind} rest = {name}(n - 1, {inner.text});"
        lines = [f"if (n <= 0) return {last.text};", again, f"return {joined.text};"]
        return Function(name, kind, parameters, lines, value)

    def _expressions_of(self, parameters: list[tuple[str, str]], kinds: Sequence[str]) -> list[Expression]:
        """Expressions in which nothing but some parameters occur."""
        outer = self.readable, self.loaded
        self.readable, self.loaded = {}, {}
        for name, kind in parameters:
            self.readable.setdefault(kind, []).append(_variable(name, kind))
        found = [self._expression(kind, 2) for kind in kinds]
        self.readable, self.loaded = outer
        return found

    # Statements

    def _statement(self, scope: _Scope) -> Statement:
        choices: list[tuple[int, Callable[[_Scope], Statement]]]
        choices = [(6, self._assignment), (2, self._atomic), (1, self._own_memory)]
        if scope.depth < 2:
            choices += [(3, self._branch), (2, self._loop), (1, self._do_loop), (1, self._switch)]
            choices += [(1, self._local_array), (1, self._float_atomic)]
        if scope.leaves:
            choices += [(2, self._jump)]
        if scope.returns:
            choices += [(2, self._return)]
        if scope.together:
            choices += [(2, self._exchange), (1, self._shared_atomic), (1, self._block_vote)]
        if scope.together and self.warps:
            choices += [(2, self._shuffle), (1, self._ballot), (1, self._match), (2, self._part_of_warp)]
        weights, makers = zip(*choices, strict=True)
        return self.rng.choices(makers, weights)[0](scope)

    def _block(self, scope: _Scope, most: int = 3) -> Statement:
        return _sequence([self._statement(scope) for _ in range(self.rng.randint(1, most))])

    def _end_where_threads_return(self) -> list[Statement]:
        """Statements among which threads return; those that are left still wait for each other."""
        scope = _Scope(together=False, returns=True)
        barrier = Statement(["__syncthreads();"], lambda state: None)
        return [self._results(), self._return(scope), self._statement(scope), barrier, self._block(scope), barrier]

    def _target(self, *kinds: str) -> tuple[str, str]:
        return self.rng.choice([(name, kind) for name, kind in self.variables if kind in (kinds or KINDS)])

    def _in_memory(self, kind: str, words: int) -> tuple[str, Callable[[State], Array]]:
        """A piece of the memory: its address in C++, and its elements."""
        first, results = self._piece(kind, words), len(self.variables) * self.lanes
        return (
            f"(({kind} *)(memory + {first}))",
            lambda state: state.out[results + first :][:words].view(dtype_of(kind)),
        )

    def _assignment(self, scope: _Scope) -> Statement:
        name, kind = self._target()
        value = self._expression(kind)
        return Statement([f"{name} = {value.text};"], lambda state: state.assign(name, value.value(state)))

    def _branch(self, scope: _Scope) -> Statement:
        """Where the condition is the same in a whole block, its threads stay together."""
        together = scope.together and self.rng.random() < 0.4
        condition = self._block_condition() if together else self._condition()
        inner = scope.inside(together)
        taken, other = self._block(inner), self._block(inner)

        def run(state: State) -> None:
            entered, chosen = state.mask, condition.value(state)
            state.mask = entered & chosen
            taken.run(state)
            after, state.mask = state.mask, entered & ~chosen
            other.run(state)
            state.go_on(state.mask | after)

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
        body = self._block(scope.inside(together, not together))
        self.readable["i32"].pop()

        def run(state: State) -> None:
            entered = state.mask
            state.values[name] = np.zeros(state.lanes, np.int32)
            active = entered
            while (active := active & (state.values[name] < bound.value(state))).any():
                state.mask = active
                state.broken.append(np.zeros(state.lanes, bool))
                body.run(state)
                active = active & ~state.broken.pop() & ~state.gone
                state.values[name] = state.values[name] + active.astype(np.int32)
            state.go_on(entered)

        return Statement([f"for (int {name} = 0; {name} < {bound.text}; {name}++) {{", *_indented(body), "}"], run)

    def _do_loop(self, scope: _Scope) -> Statement:
        """At least one turn, and at most four."""
        name, turns, condition = self._name(), np.int32(self.rng.randint(2, 4)), self._condition()
        self.readable["i32"].append(_variable(name, "i32"))
        body = self._block(scope.inside(leaves=True))
        self.readable["i32"].pop()

        def run(state: State) -> None:
            active = entered = state.mask
            state.values[name] = np.zeros(state.lanes, np.int32)
            while active.any():
                state.mask = active
                state.broken.append(np.zeros(state.lanes, bool))
                body.run(state)
                active = active & ~state.broken.pop() & ~state.gone
                state.values[name] = state.values[name] + active.astype(np.int32)
                active = active & (state.values[name] < turns) & condition.value(state)
            state.go_on(entered)

        end = f"}} while (++{name} < {turns} && {condition.text});"
        return Statement(["{", f"    int {name} = 0;", "    do {", *_indented(body, 2), f"    {end}", "}"], run)

    def _jump(self, scope: _Scope) -> Statement:
        """`break` or `continue`."""
        word, condition = self.rng.choice(("break", "continue")), self._condition()

        def run(state: State) -> None:
            leaving = state.mask & condition.value(state)
            if word == "break":
                state.broken[-1] = state.broken[-1] | leaving
            state.mask = state.mask & ~leaving

        return Statement([f"if ({condition.text}) {word};"], run)

    def _return(self, scope: _Scope) -> Statement:
        """The end for some threads."""
        condition = self._condition()

        def run(state: State) -> None:
            state.gone = state.gone | (state.mask & condition.value(state))
            state.go_on(state.mask)

        return Statement([f"if ({condition.text}) return;"], run)

    def _switch(self, scope: _Scope) -> Statement:
        """Cases in any order, with labels that are dense or far apart; some fall through to the next, some are long."""
        subject, count = self._index(7), self.rng.randint(3, 8)
        labels: list[int | None] = [*self.rng.sample(range(8), count)]
        if self.rng.random() < 0.5:
            labels.insert(self.rng.randint(0, count), None)
        spread = self.rng.choice((1, 1, 37))
        inner = scope.inside(leaves=False)
        cases = [self._block(inner, 2) if self.rng.random() < 0.2 else self._assignment(inner) for _ in labels]
        falls = [self.rng.random() < 0.25 for _ in labels]

        def run(state: State) -> None:
            entered, chosen = state.mask, subject.value(state)
            falling = np.zeros(state.lanes, bool)
            for label, case, fall in zip(labels, cases, falls, strict=True):
                found = ~np.isin(chosen, [other for other in labels if other is not None])
                state.go_on(entered & ((found if label is None else chosen == label) | falling))
                case.run(state)
                falling = state.mask if fall else np.zeros(state.lanes, bool)
            state.go_on(entered)

        lines = [f"switch ({subject.text} * {spread}) {{"]
        for label, case, fall in zip(labels, cases, falls, strict=True):
            lines += ["default: {" if label is None else f"case {label * spread}: {{", *_indented(case)]
            lines += ["}" if fall else "} break;"]
        return Statement([*lines, "}"], run)

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

    def _own_memory(self, scope: _Scope) -> Statement:
        """A write to global memory that a thread has for itself, and a read of it."""
        name, kind = self._target(*INTEGERS)
        place, elements = self._in_memory(kind, -(-self.lanes * OWN * bits_of(kind) // 64))
        value, to, source = self._expression(kind, 2), self._index(OWN - 1), self._index(OWN - 1)

        def run(state: State) -> None:
            mine, held = np.arange(state.lanes) * OWN, elements(state)
            at = (mine + to.value(state))[state.mask]
            held[at] = value.value(state)[state.mask]
            state.assign(name, held[mine + source.value(state)])

        return Statement(
            [
                f"{place}[i * {OWN} + {to.text}] = {value.text};",
                f"{name} = {place}[i * {OWN} + {source.text}];",
            ],
            run,
        )

    def _atomic(self, scope: _Scope) -> Statement:
        """An atomic operation on global memory."""
        operation, kind, function = self._atomic_operation()
        return self._global_atomic(operation, kind, function, self._expression(kind, 2))

    def _float_atomic(self, scope: _Scope) -> Statement:
        """A sum of small whole numbers, which is exact in any order."""
        kind = self.rng.choice(list(ADDED_FLOATS) if scope.depth == 0 else ["f32", "f64"])
        template, meaning = conversion(kind, "i32")
        number = _applied(kind, template, meaning, [self._index(ADDED_FLOATS[kind])])
        return self._global_atomic("atomicAdd", kind, np.add, number)

    def _global_atomic(self, operation: str, kind: str, function: Any, value: Expression) -> Statement:
        index = self._index(ARRAY - 1)
        place, elements = self._in_memory(kind, ARRAY * bits_of(kind) // 64)

        def run(state: State) -> None:
            function.at(elements(state), index.value(state)[state.mask], value.value(state)[state.mask])

        return Statement([f"{operation}({place} + {index.text}, {value.text});"], run)

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

    def _part_of_warp(self, scope: _Scope) -> Statement:
        """Those for which a condition holds do something together."""
        kind, make, meaning = self.rng.choice(_TOGETHER)
        name, _ = self._target(kind)
        mask, condition = self._name(), self._condition()
        value = self._expression(kind, 2)

        def run(state: State) -> None:
            chosen, values = condition.value(state), value.value(state)
            results = values.copy()
            for first in range(0, state.lanes, 32):
                lanes = np.flatnonzero(chosen[first : first + 32])
                if len(lanes):
                    results[first + lanes] = meaning(values[first + lanes], lanes)
            entered, state.mask = state.mask, state.mask & chosen
            state.assign(name, results)
            state.mask = entered

        call = make.format(mask=mask, value=value.text)
        lines = [
            f"unsigned {mask} = __ballot_sync(~0u, {condition.text});",
            f"if ({mask} >> (t & 31) & 1) {name} = {call};",
        ]
        return Statement(["{", *(f"    {line}" for line in lines), "}"], run)


def _lane_mask(lanes: Array) -> np.uint32:
    return np.uint32((1 << lanes).sum())


def _match_few(values: Array, lanes: Array) -> Array:
    few = values & 3
    return np.array([_lane_mask(lanes[few == value]) for value in few])


_TOGETHER: tuple[tuple[str, str, Callable[[Array, Array], Any]], ...] = (
    *(
        (kind, f"reduced_{name}({{mask}}, {{value}})", lambda values, lanes, all_of=function.reduce: all_of(values))
        for name, (kinds, function) in REDUCTIONS.items()
        for kind in kinds
    ),
    *((kind, "__shfl_sync({mask}, {value}, __ffs({mask}) - 1)", lambda values, lanes: values[0]) for kind in WIDE),
    *[("u32", "__ballot_sync({mask}, {value} & 1)", lambda values, lanes: _lane_mask(lanes[values & 1 == 1]))] * 3,
    *[("u32", "__match_any_sync({mask}, {value} & 3)", _match_few)] * 3,
)
"""What some lanes of a warp do together: the kind of their values, the C++, and the meaning for values and lanes."""

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


_LITERALS = {
    "f16": "__ushort_as_half({:#x})",
    "bf16": "__ushort_as_bfloat16({:#x})",
    "f32": "__uint_as_float({:#x}u)",
    "f64": "__longlong_as_double({:#x}ll)",
}
"""A float in C++, of its bits."""


def _variable(name: str, kind: str) -> Expression:
    return Expression(kind, name, lambda state: state.values[name])


def _constant(kind: str, number: int) -> Expression:
    return Expression(kind, str(number), lambda state: np.full(state.lanes, number, dtype_of(kind)))


def _applied(kind: str, template: str, meaning: Meaning, operands: Sequence[Expression]) -> Expression:
    """An operation on some operands."""
    texts = dict(zip("abc", (operand.text for operand in operands), strict=False))
    if kind in INTEGERS:
        texts |= {"t": kind, "u": wrapping(kind), "w": str(bits_of(kind) - 1)}
    values = [operand.value for operand in operands]
    return Expression(kind, template.format(**texts), lambda state: meaning(*(value(state) for value in values)))


def _sequence(statements: Sequence[Statement]) -> Statement:
    def run(state: State) -> None:
        for statement in statements:
            statement.run(state)

    return Statement([line for statement in statements for line in statement.lines], run)


def _indented(statement: Statement, levels: int = 1) -> list[str]:
    return [f"{'    ' * levels}{line}" for line in statement.lines]


def _bytes(kind: str, values: Array) -> bytes:
    """What the device finds in memory."""
    return bits_in_memory(kind, values).tobytes()


def _padded(data: bytes) -> bytes:
    """As long as a multiple of 16 bytes, so that what follows is aligned."""
    return data + bytes(-len(data) % 16)
