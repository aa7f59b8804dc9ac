"""The planning of the solver's verbs: matrices column by column, and the calls for each matrix of a stack.

LAPACK needs matrices that lie column by column. Most functions destroy their input, and so need a copy. cuBLAS
transposes matrices that lie row by row on the way into that copy.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard, overload

import attrs
import numpy as np
import numpy.typing as npt

from ..._arrays.arrays import DeviceArray, check_usable
from ..._calls.apart import check_all_apart, check_apart
from ..._calls.known_sequences import SequencedLibrary
from ..._calls.library_types import LETTERS, letter_of
from ..._calls.linear import OPERATIONS, Matrix, broadcast, check_array, layout_refusal, matrix_of, strides_text
from ..._calls.verbs import (
    Address,
    Answer,
    Argument,
    CallRequest,
    JoinedRequest,
    Operands,
    Scalar,
    Verdict,
)
from ..._transfers.memory import pattern_of, plan_fill, plan_pattern
from ..._values.errors import InvalidArgument
from ..._values.util import known, shown
from ..._wire.records.calls import ANSWER_BYTES, CallTable
from ..blas.records import BLAS
from . import records_finite as finite
from .records import NONDETERMINISTIC, PART, SOLVER, TOGETHER, Function
from .records_finite import INFINITY, NAN
from .types import (
    INFOS,
    ITERATIONS,
    QUICK,
    QUICK_ORDER,
    REAL,
    Infos,
    Kind,
    Look,
    Sight,
    arguments_of,
    function_of,
    operation_of,
)


def swapped(array: DeviceArray) -> DeviceArray:
    """Return a view of a stack with transposed matrices."""
    return array.transpose(*range(array.ndim - 2), array.ndim - 1, array.ndim - 2)


def turned(array: DeviceArray | None, when: bool = True) -> DeviceArray | None:
    """Return the same for an array that may be None; without `when`, the array itself."""
    return swapped(array) if when and array is not None else array


def values_of(matrices: DeviceArray, count: int | None = None) -> Kind:
    """Return the shape and dtype of the singular values or eigenvalues of matrices: of all, or of `count` each."""
    number = min(matrices.shape[-2:]) if count is None else count
    return (*matrices.shape[:-2], number), REAL[matrices.dtype.name]


class Addresses(Sequence[Address]):
    """The addresses of many matrices or vectors. Each is made when it is asked for: there may be thousands."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: npt.NDArray[np.int64]) -> None:
        self.numbers: npt.NDArray[np.int64] = numbers

    def __len__(self) -> int:
        """Return their number."""
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Address: ...
    @overload
    def __getitem__(self, index: slice) -> Addresses: ...
    def __getitem__(self, index: int | slice) -> Address | Addresses:
        """Return one of them, or some."""
        return Addresses(self.numbers[index]) if isinstance(index, slice) else Address(self.numbers[index])

    def of(self, which: npt.NDArray[np.int64]) -> Addresses:
        """Return those with these numbers."""
        return Addresses(self.numbers[which])


def lines(vectors: DeviceArray) -> Addresses:
    """Return the address of each vector of a stack of contiguous vectors."""
    step, count = vectors.shape[-1] * vectors.itemsize, math.prod(vectors.shape[:-1])
    return Addresses(vectors.address + step * np.arange(count))


def places(matrices: Matrix) -> Addresses:
    """Return the address of each matrix of a stack."""
    return Addresses(matrices.addresses)


def check_square(array: DeviceArray, name: str) -> None:
    """Raise `InvalidArgument` for a matrix that is not square."""
    if array.shape[-1] != array.shape[-2]:
        raise InvalidArgument(f"{name} is square, not of shape {array.shape}")


def check_number(value: object, name: str, most: int, *, least: int = 1) -> int:
    """Return a number from `least` to `most`. Raises `InvalidArgument` for anything else."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidArgument(f"{name} is a number from {least} to {most}, not {shown(value)}")
    return int(value)


@attrs.frozen
class Sides:
    """Right-hand sides, one for each matrix of a stack."""

    array: DeviceArray
    """A view of shape (..., rows, columns), in which a vector is a matrix of one column."""
    is_vector: bool

    def solution(self, rows: int) -> Kind:
        """Return the shape and dtype of a solution of `rows` rows."""
        shape = (*self.array.shape[:-2], rows, self.array.shape[-1])
        return shape[:-1] if self.is_vector else shape, self.array.dtype

    def result(self, matrices: DeviceArray) -> DeviceArray:
        """Return a solution as the user gets it: vectors if vectors were given."""
        return matrices[..., 0] if self.is_vector else matrices


class Kept(NamedTuple):
    """What an array held before a verb, and the info that says whether it has to hold that again."""

    info: DeviceArray
    saved: DeviceArray
    out: DeviceArray


Looks = Sequence[Look | None]
"""The looks at the operands of a call; None for one that is not looked at."""


@attrs.frozen
class Routine:
    """A function of a library, to be called for the matrices of a stack."""

    library: SolverPlans
    device: int
    function: Function
    table: CallTable
    """The library of the function."""
    operation: str
    dtype: np.dtype[Any]
    operands: Operands
    order: int
    """The order of the matrix, for the meaning of an info."""
    stack: tuple[int, ...]
    flags: int
    infos: DeviceArray | None
    """The array for the infos of a stack, which is read once; None if each call answers its own info."""
    tolerant: bool
    """True if an info is not an error."""
    looks: tuple[Look, ...] = ()
    """The looks at its operands; their answers are there when an info is."""

    @property
    def iterates(self) -> bool:
        """Whether it waits for the looks: with NaN it may take a thousand times as long as without, or never end."""
        return self.operation in ITERATIONS

    def each(self, **values: Argument | Sequence[int]) -> None:
        """Call it for each matrix of the stack; a list has a value for each of them."""
        lists = {word: value for word, value in values.items() if isinstance(value, Sequence)}
        common = {word: value for word, value in values.items() if not isinstance(value, Sequence)}
        count = len(next(iter(lists.values())))
        infos = self.infos

        def values_of_one(index: int) -> dict[str, Argument]:
            return {**common, **{word: of_each[index] for word, of_each in lists.items()}}

        def arguments(index: int) -> list[Argument]:
            info = {} if infos is None else {"info": Address(infos.address + index * infos.itemsize)}
            return arguments_of(self.function, self.dtype, {**info, **values_of_one(index)})

        if infos is None and "info" in self.function.words:
            for index in range(count):
                self.many(index, 1, **values_of_one(index))
        else:
            joined = self._held_back if self.iterates and self.looks else None
            quick = self._is_quick(common)
            self.library._call_each(count, self.function.name, arguments, **self._words, joined=joined, quick=quick)

    def _held_back(self, index: int, call: CallRequest) -> JoinedRequest:
        stops = [self.library._stop(look, index, 1) for look in self.looks]
        return self.library._joined([*stops, call], call)

    def many(self, first: int, count: int, **values: Argument) -> None:
        """Call it for `count` matrices at once, from number `first` on."""
        if "info" not in self.function.words:
            self._call(values)
            return
        check = None if self.tolerant else self.check(first)
        call = self._call(values, answer=np.empty(count, np.int32), check=check)
        if _is_own(call):
            self._join_looks(call, first, count)

    def _join_looks(self, call: CallRequest, first: int, count: int) -> None:
        """Make one command of a call and the looks right before it, each of which may stop what comes behind it."""
        requests = self.library._requests
        requests.pop()
        before = set()
        while requests and requests[-1] in [look.request for look in self.looks]:
            before.add(requests.pop())
        parts = []
        for look in self.looks:
            if look.request in before:
                parts.append(look.request)
            if self.iterates:
                parts.append(self.library._stop(look, first, count))
        requests.append(self.library._joined([*parts, call], call) if parts else call)

    def _call(self, values: Mapping[str, Argument], **answer: Any) -> CallRequest:
        arguments = arguments_of(self.function, self.dtype, values)
        quick = self._is_quick(values)
        return self.library._call(self.function.name, *arguments, **self._words, **answer, quick=quick)

    def _is_quick(self, values: Mapping[str, Argument | Sequence[int]]) -> bool:
        sizes = [value for word, value in values.items() if word in ("m", "n", "nrhs") and isinstance(value, int)]
        return self.function.name in QUICK and max(sizes) <= QUICK_ORDER

    @property
    def _words(self) -> dict[str, Any]:
        return {"operation": self.operation, "operands": self.operands, "flags": self.flags, "table": self.table}

    def check(self, first: int) -> Infos:
        """Return what the infos of the matrices from number `first` on mean."""
        sights = tuple(look.sight for look in self.looks)
        return Infos(self.operation, self.order, self.stack, self.device, sights, first)


class SolverPlans(SequencedLibrary):
    """The base of the solver's verbs."""

    __slots__ = ()

    # Arguments.

    def _given(self, array: object, name: str, *, square: bool = False) -> DeviceArray:
        """Return a matrix, or a stack, of a supported type. Raises `InvalidArgument` for anything else."""
        given = check_array(array, name)
        check_usable(self._device, given)
        letter_of(given)
        if given.ndim < 2:
            raise InvalidArgument(f"{name} has two axes or more, not {given.ndim}: its shape is {given.shape}")
        if square:
            check_square(given, name)
        return given

    def _vectors(self, array: object, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """Return contiguous vectors of this shape: pivots, or the scales of reflectors. Raises `InvalidArgument`."""
        given = check_array(array, name)
        check_usable(self._device, given)
        if given.shape != shape or given.dtype != dtype:
            raise InvalidArgument(
                f"{name} has shape {given.shape} and dtype {given.dtype.name}, which must be {shape} and "
                f"{np.dtype(dtype).name}"
            )
        if given.contiguous:
            return given
        packed = self._empty(shape, dtype)
        self._copy(given, packed)
        return packed

    def _by_columns(self, array: DeviceArray) -> Matrix:
        """Return the matrices of an array column by column, copied if necessary."""
        return matrix_of(array, by_rows=False) or self._copied(array)

    def _copied(self, array: DeviceArray, out: DeviceArray | None = None) -> Matrix:
        copy = self._columns((array.shape, array.dtype), out)
        self._transfer(array, copy)
        return self._seen(copy)

    def _used_up(self, array: DeviceArray, name: str, overwrite: bool, out: DeviceArray | None = None) -> Matrix:
        """Return the matrices of an array for a call that overwrites them: a copy, or with `overwrite` the array."""
        if not overwrite:
            return self._copied(array, out)
        if out is not None:
            raise InvalidArgument(f"give overwrite_{name} or out, not both")
        seen = matrix_of(array, by_rows=False)
        if seen is None or _has_repeats(array):
            needed = "the library needs matrices that lie column by column, such as `a.T` of an array in numpy's order"
            text = layout_refusal(array, needed, written=True)
            raise InvalidArgument(f"{name} cannot be overwritten: {text}")
        return seen

    def _used_up_anyhow(
        self, array: DeviceArray, out: DeviceArray | None = None, *, looks: bool
    ) -> tuple[Matrix, bool, DeviceArray | None]:
        """Return a copy in the order of `out`, else of the array, and whether the library sees the transpose.

        If a look at it follows that can make the copy, the third is the array to make it of.
        """
        place = out if out is not None and matrix_of(out) is not None else None
        seen = matrix_of(array if place is None else place)
        transposed = seen is not None and seen.by_rows
        if not transposed:
            copy = self._columns((array.shape, array.dtype), place)
        else:
            copy = self._empty(array.shape, array.dtype) if place is None else place
        is_taken = looks and _is_taken(array, copy)
        if not is_taken:
            self._transfer(array, copy)
        return self._seen(swapped(copy) if transposed else copy), transposed, array if is_taken else None

    def _right_sides(self, b: object, name: str, a: DeviceArray, rows: int) -> Sides:
        """Return right-hand sides for matrices `a`.

        An array of one axis is a vector, as in numpy; leading axes are broadcast.
        """
        given = check_array(b, name)
        check_usable(self._device, given)
        letter_of(a, given)
        is_vector = given.ndim == 1
        if not given.ndim:
            raise InvalidArgument(f"{name} has one axis or more, not 0")
        sides = broadcast(given, (1, *given.shape)).T if is_vector else given
        if sides.shape[-2] != rows:
            raise InvalidArgument(f"{name} has {sides.shape[-2]} rows, not {rows}: its shape is {given.shape}")
        try:
            stack = np.broadcast_shapes(a.shape[:-2], sides.shape[:-2])
        except ValueError:
            raise InvalidArgument(f"stacks of shapes {a.shape} and {given.shape} do not fit together") from None
        return Sides(broadcast(sides, (*stack, *sides.shape[-2:])), is_vector)

    def _overwritten_sides(
        self, b: DeviceArray, name: str, sides: Sides, overwrite: bool, *others: DeviceArray
    ) -> tuple[Matrix, DeviceArray]:
        """Return right-hand sides, to be overwritten by the solution, and the array that the user gets."""
        if overwrite:
            shape, _ = sides.solution(sides.array.shape[-2])
            if b.shape != shape:
                raise InvalidArgument(f"{name} cannot be overwritten by a solution of shape {shape}")
            check_apart(b, *others)
        work = self._used_up(sides.array, name, overwrite)
        return work, b if overwrite else sides.result(work.array)

    # Results.

    def _out(self, out: object, kind: Kind, *inputs: DeviceArray) -> DeviceArray | None:
        """Return the checked `out` of a result, or None. Raises `InvalidArgument` for an array that does not fit."""
        (given,) = self._outs(None if out is None else (out,), (kind,), inputs, "out")
        return given

    def _outs(
        self, out: object, kinds: Sequence[Kind | None], inputs: Sequence[DeviceArray], name: str = "out[{}]"
    ) -> list[DeviceArray | None]:
        """Return the checked `out` of several results. A `kind` of None is that of a result that is not computed."""
        if out is None:
            return [None] * len(kinds)
        if not isinstance(out, tuple | list) or len(out) != len(kinds):
            raise InvalidArgument(f"out is a tuple of {len(kinds)}, each an array or None, not {shown(out)}")
        for index, (each, kind) in enumerate(zip(out, kinds, strict=True)):
            if each is not None:
                self._check_out(each, name.format(index), kind)
        check_all_apart([each for each in out if each is not None], inputs)
        return list(out)

    def _check_out(self, out: object, name: str, kind: Kind | None) -> None:
        given = check_array(out, name)
        check_usable(self._device, given)
        if kind is None:
            raise InvalidArgument(f"{name} is for a result that is not computed: it must be None")
        shape, dtype = kind
        if given.shape != shape or given.dtype != dtype:
            raise InvalidArgument(
                f"{name} has shape {given.shape} and dtype {given.dtype.name}, which must be {shape} and "
                f"{np.dtype(dtype).name}"
            )
        if _has_repeats(given):
            raise InvalidArgument(f"{name} has elements that share memory: {strides_text(given)}")

    def _columns(
        self, kind: Kind, out: DeviceArray | None, takes: Callable[[Matrix], bool] | None = None
    ) -> DeviceArray:
        """Return the memory for matrices that are computed column by column: `out` if it lies so, else new memory.

        `takes` is a further condition of the library.
        """
        shape, dtype = kind
        place = out if out is None or out.ndim == len(shape) else out[..., None]
        seen = None if place is None or place.shape != shape else matrix_of(place, by_rows=False)
        fits = seen is not None and (takes is None or takes(seen))
        return known(place, "it fits") if fits else self._new_columns(shape, dtype)

    def _lines(self, kind: Kind, out: DeviceArray | None) -> DeviceArray:
        """Return the memory for vectors that are computed contiguously: `out` if it lies so, else new memory."""
        shape, dtype = kind
        return out if out is not None and out.shape == shape and out.contiguous else self._empty(shape, dtype)

    @overload
    def _deliver(self, result: DeviceArray, out: DeviceArray | None) -> DeviceArray: ...
    @overload
    def _deliver(self, result: DeviceArray | None, out: DeviceArray | None) -> DeviceArray | None: ...
    def _deliver(self, result: DeviceArray | None, out: DeviceArray | None) -> DeviceArray | None:
        """Plan the copy of a result to `out`, unless it was computed there. Returns the array that the user gets."""
        if result is None or out is None:
            return result
        if (result.address, result.strides) != (out.address, out.strides):
            (self._transfer if out.ndim > 1 else self._copy)(result, out)
        return out

    def _deliver_all(
        self, results: tuple[DeviceArray | None, DeviceArray, DeviceArray | None], outs: Sequence[DeviceArray | None]
    ) -> tuple[DeviceArray | None, DeviceArray, DeviceArray | None]:
        (u, values, v), (u_out, values_out, v_out) = results, outs
        return self._deliver(u, u_out), self._deliver(values, values_out), self._deliver(v, v_out)

    # New memory.

    def _new_columns(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """Return new matrices that lie column by column."""
        return swapped(self._empty((*shape[:-2], shape[-1], shape[-2]), dtype))

    def _seen(self, columns: DeviceArray) -> Matrix:
        return known(matrix_of(columns, by_rows=False), "the matrices lie column by column")

    # Further steps.

    def _fill(self, array: DeviceArray, value: complex) -> None:
        self._requests += plan_fill(array, value, self._lane)

    def _make_identity(self, array: DeviceArray) -> None:
        self._fill(array, 0)
        diagonals, one = _diagonal(array), pattern_of(1, array.dtype)
        if _are_many(diagonals):
            order = diagonals.shape[-1]
            self._plan_alike(order, lambda index: plan_pattern(diagonals[..., index], one, self._lane))
        else:
            self._requests += plan_pattern(diagonals, one, self._lane)

    def _clear_below(self, array: DeviceArray, look: Look | None = None) -> None:
        """Plan zeros below the diagonal, and NaN in all else of matrices that have no answer."""
        seen, found = matrix_of(array), None if look is None else look.on_device
        if seen is None or seen.distance is None or not array.size:
            self._taint(look, self._seen(array if matrix_of(array, by_rows=False) is not None else swapped(array)))
            zero = pattern_of(0, array.dtype)
            for view in _below_diagonal(array):
                self._requests += plan_pattern(view, zero, self._lane)
            return
        kind, words, place_of = _many(seen)
        columns, rows = (seen.columns, seen.rows) if not seen.by_rows else (seen.rows, seen.columns)
        operands = self._operands()
        operands.writes(array)
        step, mask = 0, 0
        if look is not None and found is not None:
            operands.reads(found)
            step, mask = int(found.size > 1), look.sight.spoils
        part = finite.ABOVE if seen.by_rows else finite.BELOW
        for first, count in chunks(seen.count):
            matrices = (kind, place_of(first), rows, columns, *words[2:])
            place = 0 if found is None else Address(found.address + step * first * found.itemsize)
            more = (count, part, place, step, mask)
            self._call("clear", *matrices, *more, operation="clear", operands=operands, quick=True)

    def _keep(self, out: DeviceArray | None, factors: Matrix) -> Kept | None:
        """Have an `out` that is given to an awaited verb kept, right behind the factorization that may fail.

        `_restore` then writes it back. Where that cannot be, nothing is written to it before the verb has waited.
        """
        if out is None or self._batch is not None:
            return None
        memory = out._block
        if factors.count != 1 or memory.torn is not None or self._device.options.checks or not _is_packed(out):
            self._spared = out
            return None
        info, saved = self._empty((1,), np.int32), self._empty(out.shape, out.dtype)
        operands = self._operands()
        operands.writes(info)
        self._call("keep", Answer(), Address(info.address), 4, operation="keep", operands=operands, quick=True)
        operands = self._operands()
        operands.reads(out)
        operands.writes(saved)
        words = (Address(out.address), Address(saved.address), out.nbytes)
        self._call("keep", *words, operation="keep", operands=operands, quick=True)
        return Kept(info, saved, out)

    def _restore(self, kept: Kept | None, look: Look | None) -> None:
        if kept is None:
            return
        info, saved, out = kept
        operands = self._operands()
        operands.reads(info, saved)
        operands.writes(out)
        place = None if look is None else look.on_device
        found, mask = (0, 0) if look is None or place is None else (Address(place.address), look.sight.spoils)
        if place is not None:
            operands.reads(place)
        words = (Address(saved.address), Address(out.address), out.nbytes // 4, Address(info.address), found, mask)
        self._call("restore", *words, operation="restore", operands=operands, quick=True)

    def _transfer(self, source: DeviceArray, target: DeviceArray) -> None:
        """Plan a copy of matrices, by cuBLAS between row by row and column by column."""
        if _is_to_be_turned(source, target):
            self._transfer_rows(source, target)
        elif _is_to_be_turned(swapped(source), swapped(target)):
            self._transfer_rows(swapped(source), swapped(target))
        else:
            self._copy(source, target)

    def _transfer_rows(self, source: DeviceArray, target: DeviceArray) -> None:
        """Plan a copy of matrices that lie row by row to others that lie column by column."""
        seen, columns = known(matrix_of(source, by_rows=True), "that was asked before"), source.shape[-1]
        if seen.count <= columns:
            self._turn(seen, self._seen(target))
        else:
            self._plan_alike(columns, lambda column: self._copies(source[..., column], target[..., column]))

    def _turn(self, source: Matrix, target: Matrix, *, conjugated: bool = False) -> None:
        """Transpose what a library sees of matrices into others (``cublasSgeam``, or, bit by bit, our own kernel)."""
        operands = self._operands()
        operands.reads(source.array)
        operands.writes(target.array, keeps=target.count > 1)
        if source.array.dtype.kind == "c" and not conjugated:
            self._turn_bits(source, target, operands)
            return
        dtype, word = source.array.dtype, OPERATIONS["C" if conjugated else "T"]
        one, zero = Scalar.of(1, dtype), Scalar.of(0, dtype)
        rows, columns = target.seen
        origins, ends = places(source), places(target)

        def arguments(index: int) -> tuple[Argument, ...]:
            first = (origins[index], source.leading)
            return (word, word, rows, columns, one, *first, zero, *first, ends[index], target.leading)

        name = f"cublas{LETTERS[dtype.name]}geam_64"
        self._call_each(len(origins), name, arguments, operation="transpose", operands=operands, quick=True, table=BLAS)

    def _turn_bits(self, source: Matrix, target: Matrix, operands: Operands) -> None:
        kind = finite.LETTERS.index(LETTERS[source.array.dtype.name])
        columns, rows = target.seen
        origins, ends = places(source), places(target)

        def arguments(index: int) -> tuple[Argument, ...]:
            return (kind, origins[index], rows, columns, source.leading, ends[index], target.leading)

        self._call_each(len(origins), "turn", arguments, operation="transpose", operands=operands, quick=True)

    def _copy_spread(self, source: DeviceArray, step: int, target: DeviceArray, target_step: int) -> None:
        """Copy units of 32 bits, every `step`-th of an array to every `target_step`-th of one of the same size."""
        operands = self._operands()
        operands.reads(source)
        operands.writes(target)
        arguments = (source.size, Address(source.address), step, Address(target.address), target_step)
        self._call("cublasScopy_64", *arguments, operation="copy", operands=operands, table=BLAS, quick=True)

    def _read(
        self, array: DeviceArray, out: npt.NDArray[Any], check: Verdict | None = None, *, increment: int = 1
    ) -> None:
        """Plan a copy of elements that are `increment` apart to a host array; `check` is called with all of them.

        cuBLAS's copy moves them to the answers of the lane, whatever the bits mean.
        """
        flat, step = out.reshape(-1), ANSWER_BYTES // out.itemsize
        operands = self._operands()
        operands.reads(array)
        name = f"cublas{_MOVED_AS[out.itemsize]}copy_64"

        def arguments(index: int) -> tuple[Argument, ...]:
            address = Address(array.address + index * step * increment * out.itemsize)
            return (min(step, flat.size - index * step), address, increment, Answer(), 1)

        def answer(index: int) -> npt.NDArray[Any]:
            return flat[index * step : (index + 1) * step]

        whole = None if check is None else _whole(check, out)
        self._answer_each(
            -(-flat.size // step), name, arguments, answer, whole, operation="read", operands=operands, table=BLAS
        )

    def _read_diagonals(self, work: Matrix, check: Verdict) -> None:
        """Plan a call of `check` with the diagonals of matrices, of shape (..., k)."""
        array, order = work.array, min(work.rows, work.columns)
        out: npt.NDArray[Any] = np.empty((*array.shape[:-2], order), array.dtype)
        if work.count == 1:
            self._read(array, out, check, increment=work.leading + 1)
            return
        packed = self._empty(out.shape, out.dtype)
        diagonals = _diagonal(array)
        if _are_many(packed):
            self._plan_alike(order, lambda index: self._copies(diagonals[..., index], packed[..., index]))
        else:
            self._copy(diagonals, packed)
        self._read(packed, out, check)

    @contextlib.contextmanager
    def _routine(
        self,
        name: str,
        array: DeviceArray,
        operands: Operands,
        *,
        order: int = 0,
        deterministic: bool = True,
        tolerant: bool = False,
        looks: Looks = (),
    ) -> Iterator[Routine]:
        """Yield a function to be called for the matrices of an array; its infos are read at the end of the block."""
        stack = array.shape[:-2]
        infos = None
        if math.prod(stack) > 1 and "Batched" not in name:
            infos = self._empty((math.prod(stack),), np.int32)
            operands.writes(infos)
        function, table = function_of(name, LETTERS[array.dtype.name])
        routine = Routine(
            library=self,
            device=self._device.index,
            function=function,
            table=table,
            operation=operation_of(name),
            dtype=array.dtype,
            operands=operands,
            order=order,
            stack=stack,
            flags=0 if deterministic else NONDETERMINISTIC,
            infos=infos,
            tolerant=tolerant,
            looks=tuple(look for look in looks if look is not None),
        )
        yield routine
        if infos is not None and not tolerant:
            self._read(infos, np.empty(infos.shape, np.int32), routine.check(0))

    def _factor_many(
        self,
        name: str,
        work: Matrix,
        operands: Operands,
        *,
        tolerant: bool = False,
        looks: Looks = (),
        **values: int | DeviceArray,
    ) -> None:
        """Factor a stack of square matrices by a batched function; the arrays have a part for each matrix."""
        table = self._upload(work.addresses)
        operands.reads(table)
        arrays = {"A": table, **{word: each for word, each in values.items() if isinstance(each, DeviceArray)}}
        words: dict[str, Any] = {"n": work.rows, "lda": work.leading, **values}
        with self._routine(name, work.array, operands, tolerant=tolerant, looks=looks) as factor:
            for first, count in chunks(work.count):
                starts = {
                    word: Address(each.address + each.nbytes // work.count * first) for word, each in arrays.items()
                }
                factor.many(first, count, batch=count, **{**words, **starts})

    # NaN and infinities.

    def _look(
        self,
        verb: str,
        operand: str,
        matrices: Matrix,
        check_finite: bool,
        *,
        spoils: int = NAN | INFINITY,
        lower: bool | None = None,
        refuses: bool = True,
        spreads: bool = False,
        source: DeviceArray | None = None,
    ) -> Look | None:
        """Have matrices looked at for NaN and infinities, or one triangle; None if that is not asked for.

        What is found is answered beside the call that follows, by no wait of its own: who looks at the infos of that
        looks at this as well. `spreads` keeps it on the device, for `_taint`. With a `source`, that is copied to the
        matrix, as much of it as is looked at.
        """
        array = matrices.array
        if not check_finite or not array.size:
            return None
        found: npt.NDArray[np.int32] = np.zeros(matrices.count, np.int32)
        is_even = matrices.distance is not None
        may_stop_some = refuses and matrices.count > 1
        place = self._empty(found.shape, found.dtype) if spreads or may_stop_some or not is_even else None
        operands = self._operands()
        operands.reads(array if source is None else source)
        if source is not None:
            operands.writes(array, keeps=False)
        if place is not None:
            operands.writes(place)
        origin = Address(source.address) if source is not None else 0
        part = finite.ALL if lower is None else finite.BELOW if lower else finite.ABOVE
        kind, words, place_of = _many(matrices)
        at = 0 if place is None else place.address
        alone = None

        def arguments(index: int) -> tuple[Argument, ...]:
            return (kind, place_of(index), *words, part, 1, Address(at + index * found.itemsize), 0, 0)

        if is_even:
            for first, count in chunks(matrices.count):
                copy = 0 if place is None else Address(at + first * found.itemsize)
                call = (kind, place_of(first), *words, part, count, Answer(), copy, origin)
                answer = found[first : first + count]
                request = self._call(
                    "look", *call, operation="check_finite", operands=operands, quick=True, answer=answer
                )
            alone = request if matrices.count <= INFOS else None
        elif place is not None:
            self._call_each(matrices.count, "look", arguments, operation="check_finite", operands=operands, quick=True)
            self._read(place, found)
        return Look(Sight(verb, operand, array.shape[:-2], spoils, refuses, found), place, alone)

    def _stop(self, look: Look, first: int, count: int) -> CallRequest:
        """A call that leaves out what stands behind it in its command if a look has found anything in these matrices.

        The look is the part before it in the same command, or has kept what it found on the device.
        """
        operands = self._operands()
        place = look.on_device
        if place is not None:
            operands.reads(place)
        found = Answer() if place is None else Address(place.address + first * place.itemsize)
        words = (found, count, look.sight.spoils)
        return self._request("stop", words, operands.roles(), operands, "check_finite", 0, None)

    def _joined(self, parts: Sequence[CallRequest], main: CallRequest) -> JoinedRequest:
        return JoinedRequest(TOGETHER, PART, parts, main.operation)

    def _taint(self, look: Look | None, results: Matrix, which: npt.NDArray[np.int64] | None = None) -> None:
        """Have NaN written over the results of matrices that have no answer.

        `which` matrix each result is of, where it is not the one of the same number, or the only one.
        """
        if look is None or not results.array.size:
            return
        found = known(look.on_device, "it was to be kept there")
        operands = self._operands()
        operands.reads(found)
        operands.writes(results.array)
        kind, lie, place_of = _many(results)
        step = int(found.size > 1)

        def arguments(index: int, count: int = 1) -> tuple[Argument, ...]:
            number = step * (index if which is None else int(which[index]))
            place = Address(found.address + number * found.itemsize)
            return (kind, place_of(index), *lie, count, place, step, look.sight.spoils)

        if results.distance is not None and (which is None or not step):
            for first, count in chunks(results.count):
                before = self._requests[-1]
                taint = self._call(
                    "taint", *arguments(first, count), operation="check_finite", operands=operands, quick=True
                )
                if isinstance(before, JoinedRequest) or _is_own(before):
                    parts = before.parts if isinstance(before, JoinedRequest) else (before,)
                    self._requests[-2:] = [JoinedRequest(TOGETHER, PART, (*parts, taint), before.operation)]
        else:
            self._call_each(results.count, "taint", arguments, operation="check_finite", operands=operands, quick=True)

    def _upload_pairs(self, matrices: Addresses, sides: Addresses) -> tuple[DeviceArray, int, int]:
        """Return a table of the addresses of matrices and right-hand sides, and the addresses of its two halves."""
        table = self._upload(np.stack([matrices.numbers, sides.numbers]))
        first, second = lines(table)
        return table, first, second


def _whole(check: Verdict, out: npt.NDArray[Any]) -> Verdict:
    return lambda _: check(out)


def _is_own(request: object) -> TypeGuard[CallRequest]:
    """Return whether it is a call of the solver's own library."""
    return isinstance(request, CallRequest) and request._table is SOLVER


_MOVED_AS = {4: "S", 8: "D", 16: "Z"}
"""The letters of cuBLAS's types by their sizes in bytes."""


def chunks(count: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a stack for one call each: the first number, and the count."""
    for first in range(0, count, INFOS):
        yield first, min(INFOS, count - first)


def _many(matrices: Matrix) -> tuple[int, tuple[int, int, int, int], Callable[[int], Address]]:
    """Matrices in the first words of `finite.WORDS`: their type, how they lie, and where each of them begins."""
    kind = finite.LETTERS.index(LETTERS[matrices.array.dtype.name])
    words = (matrices.rows, matrices.columns, matrices.leading, matrices.distance or 0)
    if matrices.distance is None:
        return kind, words, places(matrices).__getitem__
    step = matrices.distance * matrices.array.itemsize
    return kind, words, lambda index: Address(matrices.address + index * step)


def _is_taken(array: DeviceArray, copy: DeviceArray) -> bool:
    """Return whether a look can copy a matrix: a small one, to memory of the same layout."""
    numbers = array.size * (1 + (array.dtype.kind == "c"))
    return array.size == math.prod(array.shape[-2:]) and numbers <= finite.TAKEN and array.strides == copy.strides


def _is_packed(array: DeviceArray) -> bool:
    """Return whether the elements fill the memory from the first one on, in whatever order."""
    size = array.itemsize
    for stride, length in sorted(zip(array.strides, array.shape, strict=True)):
        if length > 1 and stride != size:
            return False
        size *= length
    return size > 0


def _has_repeats(array: DeviceArray) -> bool:
    """Return whether an axis repeats the same elements."""
    return any(not stride and length > 1 for length, stride in zip(array.shape, array.strides, strict=True))


def _is_to_be_turned(source: DeviceArray, target: DeviceArray) -> bool:
    """Return whether one array is row by row, the other column by column, and neither is both."""
    ways = [matrix_of(each, by_rows) is not None for each in (source, target) for by_rows in (True, False)]
    return source.size > 0 and min(source.shape[-2:]) > 1 and ways == [True, False, False, True]


def _view(array: DeviceArray, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> DeviceArray:
    """Return a view with the same leading axes, from `offset` bytes behind the first element."""
    leading = array.ndim - 2
    return DeviceArray._create(
        array._storage,
        array._offset + offset,
        (*array.shape[:leading], *shape),
        (*array.strides[:leading], *strides),
        array.dtype,
    )


def _diagonal(array: DeviceArray) -> DeviceArray:
    """Return a view of the diagonals of a stack of matrices."""
    row, column = array.strides[-2:]
    return _view(array, 0, (min(array.shape[-2:]),), (row + column,))


def _are_many(vectors: DeviceArray) -> bool:
    """Return whether a stack of vectors takes fewer commands across the vectors than along them."""
    *stack, length = vectors.shape
    return math.prod(stack) > length


def _below_diagonal(array: DeviceArray) -> Iterator[DeviceArray]:
    """Yield views that cover the elements below the diagonal of matrices with at least as many rows as columns.

    One command fills each view. A single matrix has about three times the root of its order of them, a stack as many as
    its matrices have columns.
    """
    rows, columns = array.shape[-2:]
    if rows > columns:
        yield array[..., columns:, :]
    count = math.prod(array.shape[:-2])
    yield from _lines_below(array) if columns < 9 * count**2 and count > 1 else _squares_below(array)


def _lines_below(array: DeviceArray) -> Iterator[DeviceArray]:
    """Yield the elements below the diagonal of each column, or of each row if the rows are contiguous."""
    order = array.shape[-1]
    for index in range(1, order):
        if array.strides[-1] == array.itemsize:
            yield array[..., index, :index]
        else:
            yield array[..., index:order, index - 1]


def _squares_below(array: DeviceArray) -> Iterator[DeviceArray]:
    """Yield squares that make up the triangle below the diagonal.

    The triangle of a square is a square and two triangles of half its size, so all squares of one size lie along the
    diagonal at equal steps.
    """
    order = array.shape[-1]
    row, column = array.strides[-2:]
    size = 1
    while size < order:
        step = 2 * size
        whole = order // step
        if whole <= size:
            for index in range(whole):
                yield _view(array, index * step * (row + column) + size * row, (size, size), (row, column))
        else:
            for index in range(size):
                yield _view(array, size * row + index * column, (whole, size), (step * (row + column), row))
        rest = order - whole * step - size
        if rest > 0:
            yield _view(array, whole * step * (row + column) + size * row, (rest, size), (row, column))
        size = step
