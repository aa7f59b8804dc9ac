"""Level 3: products with symmetric, Hermitian and diagonal matrices, updates, and sums.

General products are in `products`, verbs with triangular matrices in `triangular`.
"""

from __future__ import annotations

import numpy as np

from ..._arrays.arrays import DeviceArray
from ..._calls.apart import check_apart
from ..._calls.library_types import letter_of
from ..._calls.linear import OPERATIONS, Operation, check_array, check_operation
from ..._calls.verbs import verb
from ..._values.errors import InvalidArgument
from .matrices import MatrixOperands, check_factor, check_same, check_sides, is_same_place, word
from .types import MathMode, math_flags
from .vectors import factor


class MatrixVerbs(MatrixOperands):
    """Verbs on matrices of which one is symmetric, Hermitian or diagonal, and sums."""

    __slots__ = ()

    # --- symmetric and Hermitian matrices -----------------------------------------------------------------------------

    @verb
    def symm(
        self,
        a: DeviceArray,
        b: DeviceArray,
        *,
        left: bool = True,
        lower: bool = True,
        alpha: complex = 1,
        beta: complex = 0,
        out: DeviceArray | None = None,
        compute: MathMode | None = None,
    ) -> DeviceArray:
        """``alpha * a @ b + beta * out`` for a symmetric `a`, or ``b @ a`` if it is not `left` (``cublasSsymm``).

        `a` is of shape (m, m), or (n, n) on the right; only its `lower` triangle is read, or else the upper one. `b`
        and `out` are of shape (m, n), `out` a new array if it is not given. All are of one dtype, float32, float64,
        complex64 or complex128; `alpha` and `beta` are numbers of it. A `b` in another order than `out` is copied.

        `compute` selects the arithmetic: with "tf32" the tensor cores multiply float32 and complex64 numbers rounded to
        10 bits of mantissa; "pedantic" disables all such optimisations (``cublasSetMathMode``).

        Raises `InvalidArgument` for shapes or dtypes that do not fit together, for an `out` that shares memory with an
        input, and for a `compute` that the dtype does not support.
        """
        return self._multiply_symmetric("symm", a, b, left, lower, alpha, beta, out, compute)

    @verb
    def hemm(
        self,
        a: DeviceArray,
        b: DeviceArray,
        *,
        left: bool = True,
        lower: bool = True,
        alpha: complex = 1,
        beta: complex = 0,
        out: DeviceArray | None = None,
        compute: MathMode | None = None,
    ) -> DeviceArray:
        """``alpha * a @ b + beta * out`` for a Hermitian `a`, or ``b @ a`` if it is not `left` (``cublasChemm``).

        `a`, `b`, `left`, `lower`, `alpha`, `beta`, `out` and `compute` are those of `symm`, of the same shapes, and of
        dtype complex64 or complex128. The imaginary parts of the diagonal of `a` are taken to be zero. An `a` or `b`
        whose order is not that of `out` is copied.

        Raises as `symm` does.
        """
        return self._multiply_symmetric("hemm", a, b, left, lower, alpha, beta, out, compute)

    def _multiply_symmetric(
        self,
        name: str,
        a: DeviceArray,
        b: DeviceArray,
        left: bool,
        lower: bool,
        alpha: complex,
        beta: complex,
        out: DeviceArray | None,
        compute: MathMode | None,
    ) -> DeviceArray:
        special, other = self._square(a, "a"), self._taken(b, "b", 2)
        check_sides(special, other, left)
        target = self._output(out, other.shape, other.dtype)
        letter = _letter_of(name, special, other, target.array)
        check_apart(target.array, special, other)
        scalars = factor(alpha, other.dtype), factor(beta, other.dtype)
        check_factor(beta, out)
        mode = math_flags(compute, other.dtype)
        if other.size:
            turned = target.by_rows
            seen = self._ordered(special, turned) if name == "hemm" else self._anyhow(special)
            sides = word(left, turned), word(lower, seen.by_rows)
            operands = (scalars[0], seen, self._ordered(other, turned), scalars[1], target)
            words, function = (*sides, *target.seen), f"cublas{letter}{name}_64"
            self._run(name, function, *words, *operands, writes=(target,), keeps=beta != 0, flags=mode)
        return target.array

    # --- updates of one triangle --------------------------------------------------------------------------------------

    @verb
    def syrk(
        self,
        a: DeviceArray,
        *,
        lower: bool = True,
        op: Operation = "N",
        alpha: complex = 1,
        beta: complex = 0,
        out: DeviceArray | None = None,
        compute: MathMode | None = None,
    ) -> DeviceArray:
        """``alpha * op(a) @ op(a).T + beta * out``, a symmetric matrix, one triangle of it (``cublasSsyrk``).

        `op` is "N", for `a` of shape (n, k), or "T", for (k, n). `out` is of shape (n, n). Only its `lower` triangle
        is read and written, or else the upper one; a new array, if `out` is not given, has zeros in the other one. All
        are of one dtype, float32, float64, complex64 or complex128; `alpha` and `beta` are numbers of it. `compute` is
        that of `symm`.

        Raises `InvalidArgument` for shapes or dtypes that do not fit together, for another `op`, for an `out` that
        shares memory with an input, and for a `compute` that the dtype does not support.
        """
        return self._update_triangle("syrk", (a,), lower, op, alpha, beta, out, compute)

    @verb
    def herk(
        self,
        a: DeviceArray,
        *,
        lower: bool = True,
        op: Operation = "N",
        alpha: float = 1,
        beta: float = 0,
        out: DeviceArray | None = None,
        compute: MathMode | None = None,
    ) -> DeviceArray:
        """``alpha * op(a) @ op(a).conj().T + beta * out``, a Hermitian matrix, one triangle of it (``cublasCherk``).

        `op` is "N", for `a` of shape (n, k), or "C", for (k, n). `lower`, `out` and `compute` are those of `syrk`, of
        dtype complex64 or complex128; `alpha` and `beta` are real numbers. The diagonal of the result is real. An `a`
        whose order is not that of `out` is copied.

        Raises as `syrk` does.
        """
        return self._update_triangle("herk", (a,), lower, op, alpha, beta, out, compute)

    @verb
    def syr2k(
        self,
        a: DeviceArray,
        b: DeviceArray,
        *,
        lower: bool = True,
        op: Operation = "N",
        alpha: complex = 1,
        beta: complex = 0,
        out: DeviceArray | None = None,
        compute: MathMode | None = None,
    ) -> DeviceArray:
        """``alpha * (op(a) @ op(b).T + op(b) @ op(a).T) + beta * out``, one triangle of it (``cublasSsyr2k``).

        `a` and `b` are of one shape, and lie in one order: otherwise `b` is copied. `lower`, `op`, `alpha`, `beta`,
        `out`, `compute` and the dtype are those of `syrk`.

        Raises as `syrk` does.
        """
        return self._update_triangle("syr2k", (a, b), lower, op, alpha, beta, out, compute)

    @verb
    def her2k(
        self,
        a: DeviceArray,
        b: DeviceArray,
        *,
        lower: bool = True,
        op: Operation = "N",
        alpha: complex = 1,
        beta: float = 0,
        out: DeviceArray | None = None,
        compute: MathMode | None = None,
    ) -> DeviceArray:
        """``h + h.conj().T + beta * out``, h being ``alpha * op(a) @ op(b).conj().T``, one triangle (``cublasCher2k``).

        `a` and `b` are of one shape; `lower`, `op`, `beta`, `out`, `compute` and the dtype are those of `herk`; `alpha`
        may be complex. The diagonal of the result is real. An `a` or `b` whose order is not that of `out` is copied.

        Raises as `syrk` does.
        """
        return self._update_triangle("her2k", (a, b), lower, op, alpha, beta, out, compute)

    def _update_triangle(
        self,
        name: str,
        given: tuple[DeviceArray, ...],
        lower: bool,
        op: Operation,
        alpha: complex,
        beta: complex,
        out: DeviceArray | None,
        compute: MathMode | None,
    ) -> DeviceArray:
        inputs = [self._taken(array, letter, 2) for array, letter in zip(given, "ab", strict=False)]
        check_same(inputs[-1], inputs[0].shape, "b")
        hermitian = name.startswith("her")
        transposes = _transposes(op, hermitian, inputs[0])
        n, k = reversed(inputs[0].shape) if transposes else inputs[0].shape
        dtype = inputs[0].dtype
        letter = _letter_of(name, *inputs)
        target = self._output(out, (n, n), dtype, zeros=True)
        letter_of(target.array, *inputs)
        check_apart(target.array, *inputs)
        real = np.empty(0, dtype).real.dtype
        turned = target.by_rows
        scalars = (
            factor(alpha, real if name == "herk" else dtype, conjugate=name == "her2k" and turned),
            factor(beta, real if hermitian else dtype),
        )
        check_factor(beta, out)
        mode = math_flags(compute, dtype)
        if n:
            if not k:
                inputs = [self._memory.zeros((1, n) if transposes else (n, 1), dtype)] * len(inputs)
            first = self._ordered(inputs[0], turned) if hermitian else self._anyhow(inputs[0])
            seen = [first, *(self._ordered(each, first.by_rows) for each in inputs[1:])]
            operation = OPERATIONS[("C" if hermitian else "T") if transposes ^ first.by_rows else "N"]
            words = (word(lower, turned), operation, n, k or 1)
            function = f"cublas{letter}{name}_64"
            self._run(name, function, *words, scalars[0], *seen, scalars[1], target, writes=(target,), flags=mode)
        return target.array

    # --- sums, and diagonal matrices ----------------------------------------------------------------------------------

    @verb
    def geam(
        self,
        a: DeviceArray,
        b: DeviceArray | None = None,
        *,
        alpha: complex = 1,
        beta: complex = 1,
        op_a: Operation = "N",
        op_b: Operation = "N",
        out: DeviceArray | None = None,
    ) -> DeviceArray:
        """``alpha * op_a(a) + beta * op_b(b)``, or without `b` only the first term (``cublasSgeam``).

        `a`, `b` and `out` are of shape (m, n) after `op_a` and `op_b`, which are "N", "T" for transposed, or "C" for
        transposed and conjugated; of one dtype, float32, float64, complex64 or complex128. `alpha` and `beta` are
        numbers of it. `out` may be `a` or `b` itself if its operation is "N", and is a new array if it is not given.
        Complex arrays that would have to be conjugated without being transposed are copied first.

        Raises `InvalidArgument` for shapes or dtypes that do not fit together, and for an `out` that shares memory with
        an input that it is not.
        """
        terms = [(self._taken(a, "a", 2), check_operation(op_a, "op_a"), alpha)]
        if b is not None:
            terms.append((self._taken(b, "b", 2), check_operation(op_b, "op_b"), beta))
        arrays = [array for array, _, _ in terms]
        shape = _shape_after(*terms[0][:2])
        if _shape_after(*terms[-1][:2]) != shape:
            raise InvalidArgument(f"a has shape {shape} and b has {_shape_after(*terms[-1][:2])}, after op_a and op_b")
        target = self._output(out, shape, arrays[0].dtype)
        letter_of(target.array, *arrays)
        in_place = [operation == "N" and is_same_place(array, target.array) for array, operation, _ in terms]
        check_apart(target.array, *(array for array, stays in zip(arrays, in_place, strict=True) if not stays))
        factors = [factor(number, target.array.dtype) for _, _, number in terms]
        if target.array.size:
            seen = [
                (target, OPERATIONS["N"]) if stays else self._operand(array, operation, target.by_rows)
                for (array, operation, _), stays in zip(terms, in_place, strict=True)
            ]
            if b is None:
                seen, factors = [*seen, *seen], [*factors, factor(0, target.array.dtype)]
            self._add(target, (factors[0], *seen[0]), (factors[1], *seen[1]), keeps=any(in_place))
        return target.array

    @verb
    def dgmm(
        self, a: DeviceArray, x: DeviceArray, *, left: bool = False, out: DeviceArray | None = None
    ) -> DeviceArray:
        """``a * x``, each column times a number, or on the `left` ``x[:, None] * a``, each row (``cublasSdgmm``).

        `a` and `out` are of shape (m, n), `x` of shape (n,), or (m,) on the `left`; all of one dtype, float32, float64,
        complex64 or complex128. `out` may be `a` itself, and is a new array if it is not given. An `a` whose order is
        not that of `out` is copied.

        Raises `InvalidArgument` for shapes or dtypes that do not fit together, and for an `out` that shares memory with
        an input and is not `a`.
        """
        given, diagonal = self._taken(a, "a", 2), self._source(x, "x")
        target = self._output(out, given.shape, given.dtype)
        letter = letter_of(target.array, given, diagonal.array)
        if diagonal.length != given.shape[0 if left else 1]:
            raise InvalidArgument(f"x has {diagonal.length} elements, and a has shape {given.shape}")
        in_place = is_same_place(target.array, given)
        check_apart(target.array, check_array(x, "x"), *(() if in_place else (given,)))
        if given.size:
            source = target if in_place else self._ordered(given, target.by_rows)
            words = (word(left, target.by_rows), *target.seen)
            self._run(
                "dgmm", f"cublas{letter}dgmm_64", *words, source, diagonal, target, writes=(target,), keeps=in_place
            )
        return target.array


def _letter_of(name: str, *arrays: DeviceArray) -> str:
    """Return the letter of the arrays' common dtype, which must be complex for Hermitian matrices."""
    letter = letter_of(*arrays)
    if name.startswith("he") and letter not in "CZ":
        counterpart = name.replace("he", "sy", 1)
        raise InvalidArgument(f"{name} is for complex matrices; for {arrays[0].dtype.name} use {counterpart}")
    return letter


def _transposes(op: Operation, hermitian: bool, array: DeviceArray) -> bool:
    """Return whether an update is by the transpose of its matrix. Raises `InvalidArgument` for another operation."""
    check_operation(op, "op")
    allowed = {"N", "C"} if hermitian else {"N", "T"} if array.dtype.kind == "c" else {"N", "T", "C"}
    if op not in allowed:
        raise InvalidArgument(f"op is {' or '.join(sorted(allowed, reverse=True))} here, not {op}")
    return op != "N"


def _shape_after(array: DeviceArray, operation: Operation) -> tuple[int, ...]:
    return array.shape if operation == "N" else array.shape[::-1]
