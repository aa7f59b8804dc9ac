"""The common code of the simulated libraries of linear algebra: their tables, and arrays in simulated memory.

A ``Counterpart`` stands where a library stands: a table of Python functions, with one gate in front of each that counts
the call, strikes with an injected fault, and lets no exception cross into C. What a call computes is queued on a
simulated stream as a kernel is, so it keeps its place among kernels and copies and is lost with them.

An ``Operand`` is a vector or a matrix in the memory of the simulated GPU. It is read as numbers that numpy computes
with, and written element by element, so that what lies between columns stays as it is; an address that the GPU must not
touch is an illegal address, and costs the process its context.

This file knows no function of any library.
"""

from __future__ import annotations

import contextlib
import ctypes
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from atomr_cuda.library_types import cudaDataType

from .._environment import complain
from .._status import Refused
from ..driver.captures import UNSUPPORTED
from ..driver.process import Process
from ..engine.memory import MISALIGNED_ADDRESS, DeviceFault
from ..ptx.numeric import bf16_to_f32, f32_to_bf16

if TYPE_CHECKING:
    from atomr_cuda._library import Library, Symbol, Table, Variable

    from ..engine.memory import AddressSpace, Array

Implementation = Callable[..., "int | None"]
_Object = TypeVar("_Object")


# The place of a library.


@dataclass(frozen=True)
class Statuses:
    """The numbers that a library gives its statuses."""

    not_initialized: int
    invalid_value: int
    execution_failed: int
    internal_error: int
    not_supported: int


class Counterpart:
    """The functions of one library in Python, what they refuse with, and its variables."""

    def __init__(self, library: Library, statuses: Statuses) -> None:
        self.library = library
        self.statuses = statuses
        self._implementations: dict[str, Implementation] = {}
        self._variables: dict[str, int] = {}

    def entry(self, *functions: Symbol) -> Callable[[Implementation], Implementation]:
        """Mark the implementation of declared functions. It gets the process first, then what the C function gets, and
        returns the C function's result; None is success."""

        def mark(implementation: Implementation) -> Implementation:
            for function in functions:
                if function.symbol in self._implementations:
                    raise ValueError(f"{function.symbol} is implemented twice")
                self._implementations[function.symbol] = implementation
            return implementation

        return mark

    def holds(self, variable: Variable, pointer: int) -> None:
        """Say what a declared variable holds: any number by which functions know it."""
        if variable.symbol in self._variables:
            raise ValueError(f"{variable.symbol} is given twice")
        self._variables[variable.symbol] = pointer

    def table(self, process: Process) -> Table:
        """Return the table that replaces the library in this process. A function that has no implementation is missing
        in it, and a variable that holds nothing."""
        functions = {symbol: self._gate(process, symbol, each) for symbol, each in self._implementations.items()}
        return functions | self._variables

    def _gate(self, process: Process, symbol: str, implementation: Implementation) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            try:
                process.calls[symbol] += 1
                injected = process.faults.strike(symbol)
                if injected is not None:
                    # A fault that costs the context has a status of the driver, which a library does not know.
                    lost = injected and injected == process.fate.status
                    return self.statuses.execution_failed if lost else injected
                return implementation(process, *arguments) or 0
            except Refused as refused:
                return refused.status
            except BaseException:
                # Past this frame is C code: an exception would be swallowed and the call would seem to succeed.
                complain(f"{symbol} failed inside the simulator")
                traceback.print_exc()
                return self.statuses.internal_error

        return call

    def require(self, condition: object, status: int | None = None) -> None:
        """Refuse unless the condition holds: with the library's "invalid value" where no status is given."""
        if not condition:
            raise Refused(self.statuses.invalid_value if status is None else status)

    def give(self, pointer: Any, value: Any) -> None:
        """Write a result through a pointer argument; "invalid value" for a null pointer."""
        self.require(pointer)
        pointer[0] = value

    def handle(self, process: Process, number: int | None, kind: type[_Object]) -> _Object:
        """The object behind a number that the library has given; "not initialized" when there is none."""
        return process.handles.get(number, kind, self.statuses.not_initialized)

    def add_handle(self, process: Process, thing: object) -> int:
        """Keep an object until the current context ends; returns its number. "Not initialized" without a context."""
        self.require(process.stack and process.stack[-1].active, self.statuses.not_initialized)
        self.require(not process.fate.status, self.statuses.not_initialized)
        return process.handles.add(thing, process.stack[-1].handle)

    def drop_handle(self, process: Process, number: int | None) -> None:
        """Forget an object that the library has given, when all work of the current context is done.

        While a stream is captured, that is not waited for, and the capture is void; the caller hears nothing of either.
        """
        if process.stack and process.stack[-1].active:
            with contextlib.suppress(Refused):
                process.synchronize_context()
        process.handles.pop(number)

    def submit(self, process: Process, stream: int | None, work: Callable[[], None], *, wait: bool = False) -> None:
        """Queue work on a stream, and ``wait`` until it is done if asked to. "Execution failed" where the context is
        lost, in either case, and where there is none; and where a stream that is captured would have to be waited for.
        """

        def quietly() -> None:
            with np.errstate(all="ignore"):
                work()

        try:
            if wait:
                process.captures.forbid([process.stream(stream)], UNSUPPORTED)
            place = 0 if process.fate.status else process.submit(stream, quietly, kernel=True)
            status = process.stream(stream).synchronize(place) if wait else process.fate.status
        except Refused:
            raise Refused(self.statuses.execution_failed) from None
        self.require(not status, self.statuses.execution_failed)


# Elements.


def _same(values: Any) -> Any:
    return values


@dataclass(frozen=True)
class Element:
    """The storage of one number in memory, and the type of numpy that computes with it.

    ``storage`` and ``number`` differ where numpy does not have the type (bfloat16), or would compute in it too coarsely
    (float16). Then ``widen`` and ``round`` convert between them.
    """

    storage: np.dtype[Any]
    number: np.dtype[Any]
    widen: Callable[[Array], Array] = _same
    round: Callable[[Array], Array] = _same

    @property
    def size(self) -> int:
        """Bytes of one element in memory."""
        return self.storage.itemsize

    @property
    def is_complex(self) -> bool:
        return self.number.kind == "c"


def _plain(kind: type[Any]) -> Element:
    return Element(np.dtype(kind), np.dtype(kind))


def _half(values: Array) -> Array:
    return values.astype(np.float16)


ELEMENTS: dict[int, Element] = {
    cudaDataType.CUDA_R_16F: Element(np.dtype(np.float16), np.dtype(np.float32), round=_half),
    cudaDataType.CUDA_R_16BF: Element(np.dtype(np.uint16), np.dtype(np.float32), bf16_to_f32, f32_to_bf16),
    cudaDataType.CUDA_R_32F: _plain(np.float32),
    cudaDataType.CUDA_R_64F: _plain(np.float64),
    cudaDataType.CUDA_C_32F: _plain(np.complex64),
    cudaDataType.CUDA_C_64F: _plain(np.complex128),
    cudaDataType.CUDA_R_8I: _plain(np.int8),
    cudaDataType.CUDA_R_32I: _plain(np.int32),
    cudaDataType.CUDA_R_64I: _plain(np.int64),
}
"""The element types that the simulated libraries compute with."""


# Operands.


@dataclass(frozen=True)
class Operand:
    """An array in simulated memory: the address of its first element, its shape, and the distances from one element to
    the next along each axis, counted in elements; they may be negative."""

    element: Element
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def memory(self, space: AddressSpace) -> Array:
        """The elements where they lie, to be written too. A device fault where the GPU cannot reach all of them."""
        size = self.element.size
        if 0 in self.shape:
            return np.empty(self.shape, self.element.storage)
        if self.address % size:
            raise DeviceFault(MISALIGNED_ADDRESS, f"an operand at {self.address:#x}, which is no multiple of {size}")
        steps = [(length - 1) * stride for length, stride in zip(self.shape, self.strides, strict=True)]
        before = -sum(step for step in steps if step < 0)
        after = sum(step for step in steps if step > 0)
        reached = space.view(self.address - before * size, (before + after + 1) * size)
        strides = tuple(stride * size for stride in self.strides)
        return np.ndarray(self.shape, self.element.storage, reached, before * size, strides)

    def read(self, space: AddressSpace) -> Array:
        """A copy of the elements as numbers."""
        raw = np.array(self.memory(space), order="K")
        return self.element.widen(raw).astype(self.element.number, copy=False)

    def write(self, space: AddressSpace, values: Any, where: Any = True) -> None:
        """Round each value once and put it into its place; ``where`` is a mask of the elements that are written."""
        numbers = np.asarray(values).astype(self.element.number, copy=False)
        np.copyto(self.memory(space), self.element.round(numbers), where=where, casting="no")


def vector(element: Element, address: int | None, count: int, step: int = 1) -> Operand:
    """A vector as BLAS describes it: with a negative step the address is that of the last element."""
    first = (address or 0) + max(0, (1 - count) * step) * element.size
    return Operand(element, first, (count,), (step,))


def matrix(element: Element, address: int | None, rows: int, columns: int, leading: int) -> Operand:
    """A matrix that lies column by column, its columns ``leading`` elements apart."""
    return Operand(element, address or 0, (rows, columns), (1, leading))


def host_values(element: Element, address: int, count: int) -> Array:
    """Numbers that lie in memory of the host, read now."""
    raw = np.frombuffer(ctypes.string_at(address, count * element.size), element.storage)
    return element.widen(raw).astype(element.number, copy=False)


def put_host_values(element: Element, address: int, values: Any) -> None:
    """Write numbers into memory of the host."""
    data = element.round(np.asarray(values, element.number)).tobytes()
    ctypes.memmove(address, data, len(data))


# What a special matrix reads and writes.


def triangle(order: int, lower: bool) -> Array:
    """A mask of one triangle of a square matrix, with its diagonal."""
    mask: Array = np.tri(order, dtype=bool)
    return mask if lower else mask.T
