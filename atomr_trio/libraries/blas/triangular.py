"""Products with triangular matrices, and triangular systems: one, a stack, or a list of them."""

from __future__ import annotations

from collections.abc import Sequence

from ..._arrays.arrays import DeviceArray
from ..._calls.apart import check_all_apart, check_apart
from ..._calls.library_types import letter_of
from ..._calls.linear import Matrix, Operation, broadcast, check_operation
from ..._calls.verbs import Scalar, verb
from ..._values.errors import InvalidArgument
from .matrices import MatrixOperands, check_sides, common_stack, is_same_place, repeated, word
from .types import MathMode, math_flags
from .vectors import factor


class TriangularVerbs(MatrixOperands):
    """Verbs on matrices of which one is triangular."""

    __slots__ = ()

    @verb
    def trmm(
        self,
        a: DeviceArray,
        b: DeviceArray,
        *,
        left: bool = True,
        lower: bool = True,
        op_a: Operation = "N",
        unit_diagonal: bool = False,
        alpha: complex = 1,
        out: DeviceArray | None = None,
        compute: MathMode | None = None,
    ) -> DeviceArray:
        """``alpha * op_a(a) @ b`` for a triangular `a`, or ``b @ op_a(a)`` if it is not `left` (``cublasStrmm``).

        `a` is of shape (m, m), or (n, n) on the right; only its `lower` triangle is read, or else the upper one. With
        `unit_diagonal` its diagonal is not read, and taken to be ones. `op_a` is "N", "T" for transposed, or "C" for
        transposed and conjugated. `b` and `out` are of shape (m, n); `out` may be `b` itself, and is a new array if it
        is not given. All are of one dtype, float32, float64, complex64 or complex128; `alpha` is a number of it. A `b`
        whose order is not that of `out` is copied, and so is a complex `a` that would have to be conjugated without
        being transposed.

        `compute` selects the arithmetic: with "tf32" the tensor cores multiply float32 and complex64 numbers rounded to
        10 bits of mantissa; "pedantic" disables all such optimisations (``cublasSetMathMode``).

        Raises `InvalidArgument` for shapes or dtypes that do not fit together, for an `out` that shares memory with an
        input and is not `b`, and for a `compute` that the dtype does not support.
        """
        special, other = self._square(a, "a"), self._taken(b, "b", 2)
        target, letter = self._triangular_output(special, other, left, op_a, out)
        number, mode = factor(alpha, other.dtype), math_flags(compute, other.dtype)
        if other.size:
            in_place = is_same_place(target.array, other)
            source = target if in_place else self._ordered(other, target.by_rows)
            seen, operation = self._operand(special, op_a, target.by_rows)
            words = (*_triangle_words(seen, operation, target, left, lower, unit_diagonal), *target.seen)
            operands, function = (number, seen, source, target), f"cublas{letter}trmm_64"
            self._run("trmm", function, *words, *operands, writes=(target,), keeps=in_place, flags=mode)
        return target.array

    @verb
    def trsm(
        self,
        a: DeviceArray,
        b: DeviceArray,
        *,
        left: bool = True,
        lower: bool = True,
        op_a: Operation = "N",
        unit_diagonal: bool = False,
        alpha: complex = 1,
        out: DeviceArray | None = None,
        compute: MathMode | None = None,
    ) -> DeviceArray:
        """Return the x of ``op_a(a) @ x == alpha * b``, or of ``x @ op_a(a) == alpha * b`` (``cublasStrsm``).

        `a`, `b`, `left`, `lower`, `op_a`, `unit_diagonal`, `alpha`, `out`, `compute` and the dtype are those of `trmm`.
        An array of a shape with more axes is a stack of matrices, which are broadcast as numpy does, and solved in one
        call (``cublasStrsmBatched``). Zeros on the diagonal raise no error: there the result is infinite,
        or not a number. If `out` is not `b`, `b` is copied to it first.

        Raises as `trmm` does, and `InvalidArgument` for stacks that do not fit together.
        """
        special, other = self._square(a, "a", stacked=True), self._stack(b, "b")
        target, letter = self._triangular_output(special, other, left, op_a, out)
        number, mode = factor(alpha, other.dtype), math_flags(compute, other.dtype)
        if target.array.size:
            if not is_same_place(target.array, other):
                self._transfer(broadcast(other, target.array.shape), target.array)
            seen, operation = self._operand(special, op_a, target.by_rows)
            words = _triangle_words(seen, operation, target, left, lower, unit_diagonal)
            if target.count == 1:
                operands, function = (*target.seen, number, seen, target), f"cublas{letter}trsm_64"
                self._run("trsm", function, *words, *operands, writes=(target,), flags=mode)
            else:
                self._solve(letter, words, number, repeated(seen, target.array.shape[:-2]), target, mode)
        return target.array

    @verb
    def trsm_batched(
        self,
        a: Sequence[DeviceArray],
        b: Sequence[DeviceArray],
        *,
        left: bool = True,
        lower: bool = True,
        op_a: Operation = "N",
        unit_diagonal: bool = False,
        alpha: complex = 1,
        out: Sequence[DeviceArray] | None = None,
        compute: MathMode | None = None,
    ) -> list[DeviceArray]:
        """Return the solutions of `trsm` for two lists of matrices of one length, in one call (``cublasStrsmBatched``).

        All of `a` are of one shape, and so are all of `b`; the dtype, `left`, `lower`, `op_a`, `unit_diagonal`, `alpha`
        and `compute` are those of `trsm`, for all alike. `out` is a list of as many arrays, which have the same
        strides, and may be those of `b`; without it the results are the parts of one new array. Those of `a` are copied
        if they lie differently.

        Raises `InvalidArgument` as `trsm` does, for lists of different lengths, and for arrays of different
        shapes or dtypes in a list.
        """
        special, other = self._list(a, "a"), self._list(b, "b")
        if len(special) != len(other):
            raise InvalidArgument(f"a has {len(special)} arrays and b has {len(other)}: give the same number")
        self._square(special[0], "a[0]")
        check_sides(special[0], other[0], left)
        check_operation(op_a, "op_a")
        target = self._output_list(out, len(other), (other[0].shape[0], other[0].shape[1]), other[0].dtype)
        letter = letter_of(special[0], other[0], target.array)
        moves = [pair for pair in zip(other, target.arrays, strict=True) if not is_same_place(*pair)]
        check_all_apart(target.arrays, [*special, *(source for source, _ in moves)])
        number, mode = factor(alpha, other[0].dtype), math_flags(compute, other[0].dtype)
        if target.array.size:
            for source, result in moves:
                self._transfer(source, result)
            seen, operation = self._operand_list(special, op_a, target.by_rows)
            words = _triangle_words(seen, operation, target, left, lower, unit_diagonal)
            self._solve(letter, words, number, seen, target, mode)
        return list(target.arrays)

    def _triangular_output(
        self, special: DeviceArray, other: DeviceArray, left: bool, op_a: Operation, out: DeviceArray | None
    ) -> tuple[Matrix, str]:
        """Return the output of a verb with a triangular matrix, and the letter of the dtype."""
        check_sides(special, other, left)
        check_operation(op_a, "op_a")
        target = self._output(out, (*common_stack(special, other), *other.shape[-2:]), other.dtype)
        letter = letter_of(special, other, target.array)
        check_apart(target.array, special)
        if not is_same_place(target.array, other):
            check_apart(target.array, other)
        return target, letter

    def _solve(
        self, letter: str, words: tuple[int, ...], number: Scalar, special: Matrix, target: Matrix, flags: int
    ) -> None:
        """Plan the solution of the systems of many matrices."""
        table, (a, b) = self._addresses(special, target)
        operands = self._operands()
        operands.reads(*special.arrays, table)
        operands.writes(*target.arrays)
        self._call(
            f"cublas{letter}trsmBatched_64",
            *(*words, *target.seen),
            *(number, a, special.leading, b, target.leading, target.count),
            operation="trsm",
            operands=operands,
            flags=flags,
        )


def _triangle_words(
    seen: Matrix, operation: int, target: Matrix, left: bool, lower: bool, unit_diagonal: bool
) -> tuple[int, ...]:
    """Return the words of a call for a triangular matrix: its side, its triangle, its operation, its diagonal."""
    return word(left, target.by_rows), word(lower, seen.by_rows), operation, int(bool(unit_diagonal))
