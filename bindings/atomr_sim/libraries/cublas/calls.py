"""The arguments of a call of cuBLAS: one line, a signature, describes them, and they are checked here by it.

The families differ only in the computation and in the roles of their arguments. So each is a Python function of the
meaning of its arguments (``level1`` and the files after it), and a signature that maps the C arguments to these. A
signature lists the C arguments in the header's order, after the handle:

    n                  a size, which must not be negative
    count              a size of which a negative one counts as nothing; the steps of its vectors may be zero
    trans  uplo  ...   a word of an enumeration; ``trans=NT`` narrows which words are allowed
    alpha              the address of a scalar, in host or device memory as the handle's pointer mode says
    result>            one that is written; a call that writes to host memory waits for the stream
    param[5]           five of them
    x(n)               the address and the step of a vector of n elements
    x~(n)              the same, of which nothing is used unless its step is positive
    A(m,n)             the address and the leading dimension of a matrix of m rows
    tau*(n)  A*(m,n)   an array of addresses in device memory, one for each item of a batch; such vectors have step 1
    A+(m,n)            a matrix of the first item, and behind the leading dimension the distance to that of the next
    info#(n)           n elements for each item, one item behind the other, without a step
    info^              a number in host memory that says which argument is wrong, counted from 1 behind the handle
    batch              how many items there are: what is computed is computed for each

A length is a Python expression over the words and sizes. ``m/k@trans`` is m where the word is 0 (not transposed, on the
left), else k. ``!`` after an operand means that its type follows it as an argument. ``:R`` means that its type is not
that of the elements but another one of its letter (see ``LETTERS``). An operand of a typed call that has neither has
the type of the next operand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import CodeType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from atomr_cuda import cublas
from atomr_cuda.cublas import cublasComputeType_t, cublasGemmAlgo_t
from atomr_cuda.driver import CUgraphNodeType
from atomr_cuda.library_types import cudaDataType as T

from ..._status import Refused
from ...driver.captures import NodeForm
from .. import dense
from ..dense import ELEMENTS, Element, Operand
from .handle import Handle, counterpart, entry, require, the_handle

if TYPE_CHECKING:
    from ...driver.process import Process
    from ...engine.memory import AddressSpace, Array

Handler = Callable[..., None]
Types = Callable[[Mapping[str, int]], "Mapping[str, Element]"]


def _letter(element: T, scalar: T, real: T) -> dict[str, Element]:
    of_the_letter = {"E": element, "S": scalar, "R": real, "L": T.CUDA_R_64I, "I": T.CUDA_R_32I}
    return {name: ELEMENTS[kind] for name, kind in of_the_letter.items()}


LETTERS: dict[str, dict[str, Element]] = {
    "S": _letter(T.CUDA_R_32F, T.CUDA_R_32F, T.CUDA_R_32F),
    "D": _letter(T.CUDA_R_64F, T.CUDA_R_64F, T.CUDA_R_64F),
    "C": _letter(T.CUDA_C_32F, T.CUDA_C_32F, T.CUDA_R_32F),
    "Z": _letter(T.CUDA_C_64F, T.CUDA_C_64F, T.CUDA_R_64F),
    "Cs": _letter(T.CUDA_C_32F, T.CUDA_R_32F, T.CUDA_R_32F),
    "Zd": _letter(T.CUDA_C_64F, T.CUDA_R_64F, T.CUDA_R_64F),
}
"""The meaning of the letters of a name: the type of elements (E), of scalars (S), and of real parts (R). The integers,
of 64 bits (L) and of 32 (I), are the same in all."""
# Names of norms and sums have the type of the result, too. Names of an element's index have the type of the elements,
# after the I.
LETTERS |= {"Sc": LETTERS["C"], "Dz": LETTERS["Z"]}
LETTERS |= {f"I{letter.lower()}": LETTERS[letter] for letter in "SDCZ"}

_OPERATIONS = {"N": 0, "T": 1, "C": 2}
_WORDS: dict[str, frozenset[int]] = {
    "trans": frozenset(_OPERATIONS.values()),
    "transa": frozenset(_OPERATIONS.values()),
    "transb": frozenset(_OPERATIONS.values()),
    "uplo": frozenset((0, 1)),
    "diag": frozenset((0, 1)),
    "side": frozenset((0, 1)),
    "mode": frozenset((0, 1)),
    "execution": frozenset(T),
    "compute": frozenset(cublasComputeType_t),
    "algorithm": frozenset(cublasGemmAlgo_t),
}

_TOKEN = re.compile(
    r"(?P<name>[a-zA-Z]\w*)(=(?P<narrow>[NTC]+))?(?P<many>[*+#^~]?)(\((?P<shape>.*)\))?(\[(?P<count>\d)\])?"
    r"(?P<written>>?)(:(?P<kind>[A-Z]))?(?P<typed>!?)"
)
_CHOICE = re.compile(r"(\w+)/(\w+)@(\w+)")


@dataclass(frozen=True)
class _Parameter:
    """One entry of a signature."""

    name: str
    allowed: frozenset[int] | None
    many: str
    lengths: tuple[CodeType, ...]
    count: int
    kind: str
    typed: bool
    written: bool
    is_scalar: bool
    may_rest: bool
    """True if its step may be zero."""

    def take(self, arguments: Iterator[Any]) -> _Taken:
        """The C arguments of this entry."""
        value = next(arguments)
        kind = next(arguments) if self.typed else None
        has_step = len(self.lengths) == 2 or (bool(self.lengths) and self.many in ("", "~"))
        step = next(arguments) if has_step else 1
        return _Taken(value, kind, step, next(arguments) if self.many == "+" else 0)


@dataclass(frozen=True)
class _Taken:
    """The argument for one entry of a signature: a number or an address, and the other arguments of an operand."""

    value: Any
    kind: int | None
    step: int
    distance: int


def _read_token(text: str) -> _Parameter:
    found = _TOKEN.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is not an entry of a signature")
    name, narrow, shape = found["name"], found["narrow"], found["shape"]
    words = frozenset(_OPERATIONS[letter] for letter in narrow) if narrow else _WORDS.get(name)
    lengths = [
        _CHOICE.sub(r"(\2 if \3 else \1)", length) for length in re.split(r",(?![^(]*\))", shape or "") if length
    ]
    is_number = name in _SIZES or words is not None
    return _Parameter(
        name,
        words,
        found["many"],
        tuple(compile(length, text, "eval") for length in lengths),
        int(found["count"] or 1),
        found["kind"] or "E",
        bool(found["typed"]),
        bool(found["written"]),
        is_scalar=not (is_number or lengths or found["many"] == "^"),
        may_rest=shape == "count",
    )


_SIZES = frozenset(("count", "m", "n", "k", "kl", "ku", "nrhs", "batch"))


def read_signature(text: str) -> tuple[_Parameter, ...]:
    """Return the entries of a signature."""
    # A length may contain a comma, but no blank.
    return tuple(map(_read_token, text.split()))


# The arguments of a handler.


class Argument:
    """An operand of one item, with the memory that it lies in."""

    def __init__(self, operand: Operand, space: AddressSpace) -> None:
        self._operand = operand
        self._space = space
        self.element: Element = operand.element
        self.shape: tuple[int, ...] = operand.shape
        self.is_null: bool = not operand.address

    def read(self) -> Array:
        """Return a copy of the elements as numbers."""
        return self._operand.read(self._space)

    def write(self, values: Any, where: Any = True) -> None:
        """Write values into their places, each rounded once; ``where`` is a mask of those that are written."""
        self._operand.write(self._space, values, where)


class _HostScalar:
    """A scalar in host memory: read when the call is made, and written before it returns."""

    def __init__(self, element: Element, address: int, count: int) -> None:
        self.element = element
        self._address = address
        self._values = dense.host_values(element, address, count)

    def read(self) -> Array:
        return self._values

    def write(self, values: Any) -> None:
        self._values = np.broadcast_to(np.asarray(values, self.element.number), self._values.shape)

    def deliver(self) -> None:
        dense.put_host_values(self.element, self._address, self._values)


Scalar = Argument | _HostScalar


class Call:
    """A call whose arguments were checked: the arguments of its handler for each item of its batch."""

    def __init__(self, process: Process, handle: Handle, signature: tuple[_Parameter, ...], types: Types) -> None:
        self._space = process.space
        self._on_device = bool(handle.mode("PointerMode"))
        self._signature = signature
        self._types = types
        self._scalars: dict[str, Scalar] = {}
        self._operands: dict[str, Callable[[int], Operand]] = {}
        self._numbers: dict[str, int] = {"math_mode": handle.mode("MathMode")}

    def bind(self, arguments: tuple[Any, ...], check: Handler | None = None) -> None:
        """Take the arguments, or refuse them."""
        rest = iter(arguments)
        taken = {each.name: each.take(rest) for each in self._signature}
        wrong = next((taken[each.name].value for each in self._signature if each.many == "^"), None)
        for position, each in enumerate(self._signature, 1):
            if each.allowed is not None or each.name in _SIZES:
                self._check(wrong, position, self._is_right(each, taken[each.name].value))
        elements = self._elements(taken)
        for position, each in enumerate(self._signature, 1):
            if each.is_scalar:
                self._check(wrong, position, taken[each.name].value)
                self._scalars[each.name] = self._scalar(each, taken[each.name], elements[each.name])
            elif each.lengths:
                shape = self._shape(each, taken[each.name])
                self._check(wrong, position, _step_is_right(each, shape, taken[each.name].step))
                self._operands[each.name] = self._operand(each, taken[each.name], elements[each.name], shape)
        self._check(wrong, 0, True)
        if check:
            check(SimpleNamespace(**{**taken, **self._numbers}))

    def _shape(self, parameter: _Parameter, taken: _Taken) -> tuple[int, ...]:
        if parameter.many == "~" and taken.step <= 0:
            return (0,)
        return tuple(eval(length, {"min": min}, self._numbers) for length in parameter.lengths)

    def _is_right(self, parameter: _Parameter, value: int) -> bool:
        """Keep a size or a word; tell whether it is one."""
        self._numbers[parameter.name] = max(0, value)
        if parameter.allowed is not None:
            return value in parameter.allowed
        return value >= 0 or parameter.name == "count"

    @staticmethod
    def _check(wrong: Any, position: int, condition: object) -> None:
        """Refuse unless the condition holds, and tell which argument is wrong if the caller asks for it."""
        if wrong:
            wrong[0] = 0 if condition else -position
        require(condition)

    def _elements(self, taken: Mapping[str, _Taken]) -> dict[str, Element]:
        """Return the element type of each operand."""
        said = {each.name: taken[each.name].kind for each in self._signature}
        known = self._types({**{name: kind for name, kind in said.items() if kind is not None}, **self._numbers})
        elements: dict[str, Element] = {}
        following = ""
        for each in reversed(self._signature):
            following = each.name if each.typed else following
            if each.is_scalar or each.lengths:
                elements[each.name] = known[next(name for name in (each.name, each.kind, following) if name in known)]
        return elements

    def _scalar(self, parameter: _Parameter, taken: _Taken, element: Element) -> Scalar:
        if self._on_device:
            return Argument(dense.vector(element, taken.value, parameter.count), self._space)
        return _HostScalar(element, taken.value, parameter.count)

    def _operand(
        self, parameter: _Parameter, taken: _Taken, element: Element, shape: tuple[int, ...]
    ) -> Callable[[int], Operand]:
        """Return an operand by the number of its item."""
        base = taken.value or 0
        distance = {"+": taken.distance, "#": shape[0]}.get(parameter.many, 0) * element.size

        def at(item: int) -> Operand:
            address = self._address(base, item) if parameter.many == "*" else base and base + item * distance
            if len(shape) == 1:
                return dense.vector(element, address, shape[0], taken.step)
            rows, columns = shape
            return dense.matrix(element, address, rows, columns, taken.step)

        return at

    def _address(self, table: int, item: int) -> int:
        """Return an address in device memory, from a table of addresses."""
        return int(self._space.load(table + 8 * item, np.dtype(np.uint64), 8))

    def run(self, handler: Handler) -> None:
        """Compute each item. Called when the stream comes to it."""
        inputs = {name: each if self._is_written(name) else _value(each) for name, each in self._scalars.items()}
        for item in range(self._numbers.get("batch", 1)):
            operands = {name: Argument(at(item), self._space) for name, at in self._operands.items()}
            handler(SimpleNamespace(**self._numbers, **inputs, **operands))

    def _is_written(self, name: str) -> bool:
        return any(each.written for each in self._signature if each.name == name)

    @property
    def answers(self) -> list[_HostScalar]:
        """Write the results that must be in host memory when the call returns."""
        written = (self._scalars[each.name] for each in self._signature if each.written)
        return [scalar for scalar in written if isinstance(scalar, _HostScalar)]


def _value(scalar: Scalar) -> Any:
    values = scalar.read()
    return values[0] if values.size == 1 else values


def _step_is_right(parameter: _Parameter, shape: tuple[int, ...], step: int) -> bool:
    if len(shape) == 2:
        return step >= max(1, shape[0])
    return step != 0 or parameter.may_rest


# The way a family enters the table.


_ALLOCATION = NodeForm(CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEM_ALLOC)


def _nothing() -> None:
    """Do nothing: the simulated functions need no workspace."""


@dataclass(frozen=True)
class Operation:
    """A function of the library: the reader of its arguments, and the handler that computes it."""

    signature: tuple[_Parameter, ...]
    types: Types
    handler: Handler
    check: Handler | None = None

    def bound(self, process: Process, handle: Handle, arguments: tuple[Any, ...]) -> Call:
        """Return the call with these arguments, or refuse it."""
        call = Call(process, handle, self.signature, self.types)
        call.bind(arguments, self.check)
        return call

    def submit(self, process: Process, handle: Handle, call: Call) -> None:
        """Queue a call, and wait for it if its result goes to host memory.

        If a call is captured and the handle has no workspace of the caller's, the graph allocates one for itself.
        """
        answers = call.answers
        if handle.workspace is None and process.stream(handle.stream).capture is not None:
            process.submit(handle.stream, _nothing, form=_ALLOCATION)
        counterpart.submit(process, handle.stream, lambda: call.run(self.handler), wait=bool(answers))
        for answer in answers:
            answer.deliver()


def operation(
    pattern: str, types: str | Types, signature: str, *, check: Handler | None = None, **variant: Any
) -> Callable[[Handler], Handler]:
    """Let a handler compute a family of functions.

    ``pattern`` is the name of the C function, with ``{}`` for the letters that ``types`` lists. A typed call has no
    letters, and ``types`` finds the elements of its operands. ``check`` refuses what a signature cannot describe. It
    gets each word and size by its name, and the argument for each operand. The handler gets ``variant``.
    """
    parameters = read_signature(signature)

    def mark(handler: Handler) -> Handler:
        computed = partial(handler, **variant) if variant else handler
        if isinstance(types, str):
            for letter in types.split():
                known = _fixed(LETTERS[letter])
                _define(getattr(cublas, pattern.format(letter)), Operation(parameters, known, computed, check))
        else:
            _define(getattr(cublas, pattern), Operation(parameters, types, computed, check))
        return handler

    return mark


def _fixed(elements: Mapping[str, Element]) -> Types:
    return lambda _: elements


def _define(function: Any, what: Operation) -> None:
    @entry(function)
    def call(process: Process, number: int | None, *arguments: Any) -> None:
        handle = the_handle(process, number)
        what.submit(process, handle, what.bound(process, handle, arguments))


def listed(*rows: Mapping[str, int]) -> Types:
    """Return the types of a typed call, which must be one of these rows: operands, words and their values."""

    def find(said: Mapping[str, int]) -> dict[str, Element]:
        for row in rows:
            if all(said.get(name, kind) == kind for name, kind in row.items()):
                return {name: ELEMENTS[kind] for name, kind in row.items()}
        raise Refused(counterpart.statuses.not_supported)

    return find
