"""Level 2: a matrix and vectors.

Functions for different kinds of matrices differ only in their sizes and words, which come first. `_product`, `_update`
and `_triangular` do the rest for all of them.
"""

from __future__ import annotations

import operator
from typing import SupportsIndex

from ..._arrays.arrays import DeviceArray
from ..._calls.apart import check_apart
from ..._calls.library_types import letter_of
from ..._calls.linear import OPERATIONS, Matrix, Operation, Vector, check_operation
from ..._calls.verbs import Scalar, verb
from ..._values.errors import InvalidArgument
from ..._values.util import shown
from .matrices import MatrixOperands, is_same_place, word
from .records import flags
from .vectors import DTYPES, PARTS, check_real, factor


class MatrixVectorVerbs(MatrixOperands):
    """Verbs on a matrix and vectors.

    A matrix is an array of two axes that lies row by row or column by column, such as a transposed view or a part of a
    larger one. Another array is copied first if it is only read. Vectors and dtypes are those of level 1. No function
    of cuBLAS conjugates a matrix that lies row by row without transposing it; then copies of the vectors are conjugated
    instead.
    """

    __slots__ = ()

    # Products.

    @verb
    def gemv(
        self,
        a: DeviceArray,
        x: DeviceArray,
        *,
        alpha: complex = 1,
        beta: complex = 0,
        out: DeviceArray | None = None,
        op_a: Operation = "N",
    ) -> DeviceArray:
        """``alpha * op_a(a) @ x + beta * out``, the product of a matrix and a vector (``cublasSgemv``).

        `a` is of shape (m, n) after `op_a`, which is "N", "T" for transposed, or "C" for transposed and conjugated; `x`
        is of shape (n,), and `out` of shape (m,), a new array if it is not given. All are of one dtype, which is that
        of the scalars `alpha` and `beta` too. A `beta` of zero means that `out` is not read.

        Raises `InvalidArgument` for arrays and scalars that do not fit together, for a `beta` without `out`, and for an
        `out` that shares memory with an input.
        """
        seen, source, letter = self._anyhow(self._taken(a, "a", 2)), self._source(x, "x"), letter_of(a, x)
        code = _operation(seen, check_operation(op_a, "op_a"), letter)
        m, n = a.shape if op_a == "N" else a.shape[::-1]
        target = self._factors_fit(source, (m, n), out, beta, a, x)
        words = (OPERATIONS["N"] if code is None else code, *seen.seen)
        return self._product(
            f"{letter}gemv", words, seen, source, target, alpha=alpha, beta=beta, conjugates=code is None
        )

    @verb
    def gbmv(
        self,
        ab: DeviceArray,
        x: DeviceArray,
        kl: SupportsIndex,
        ku: SupportsIndex,
        *,
        rows: SupportsIndex | None = None,
        alpha: complex = 1,
        beta: complex = 0,
        out: DeviceArray | None = None,
        op_a: Operation = "N",
    ) -> DeviceArray:
        """``alpha * op_a(a) @ x + beta * out`` for a band matrix (``cublasSgbmv``).

        `ab` holds the diagonals of a matrix of any shape (m, n), as `scipy.linalg.solve_banded` takes them: it is of
        shape (kl + ku + 1, n), with ``a[i, j]`` in ``ab[ku + i - j, j]``; the numbers of diagonals below and above the
        main one are `kl` and `ku`, and the number m of `rows` is n by default. An array that lies row by row is copied
        first. `x`, `alpha`, `beta`, `out`, `op_a` and the dtype are those of `gemv`.

        Raises `InvalidArgument` for an invalid number and a band of another width, and as `gemv` does.
        """
        below, above = _count(kl, "kl"), _count(ku, "ku")
        band, source, letter = self._band(ab), self._source(x, "x"), letter_of(ab, x)
        if len(ab) != below + above + 1:
            raise InvalidArgument(f"ab has {len(ab)} rows, and the band has {below + above + 1} diagonals")
        code = OPERATIONS[check_operation(op_a, "op_a")]
        shape = (ab.shape[1] if rows is None else _count(rows, "rows"), ab.shape[1])
        target = self._factors_fit(source, shape if op_a == "N" else shape[::-1], out, beta, ab, x)
        words = (code, *shape, below, above)
        return self._product(f"{letter}gbmv", words, band, source, target, alpha=alpha, beta=beta)

    @verb
    def symv(
        self,
        a: DeviceArray,
        x: DeviceArray,
        *,
        alpha: complex = 1,
        beta: complex = 0,
        out: DeviceArray | None = None,
        lower: bool = True,
        deterministic: bool = True,
    ) -> DeviceArray:
        """``alpha * a @ x + beta * out`` for a symmetric matrix (``cublasSsymv``).

        `a` is of shape (n, n); only its `lower` triangle is read, or else the upper one. `x` is of shape (n,), and so
        is `out`, a new array if it is not given. All are of one dtype, which is that of the scalars `alpha` and `beta`
        too. A `beta` of zero means that `out` is not read. Without `deterministic` it is faster, and the bits may
        differ from call to call (``cublasSetAtomicsMode``).

        Raises `InvalidArgument` for arrays and scalars that do not fit together, for a `beta` without `out`, and for an
        `out` that shares memory with an input.
        """
        atomics = not deterministic
        return self._symmetric_product(a, x, alpha, beta, out, lower=lower, hermitian=False, atomics=atomics)

    @verb
    def hemv(
        self,
        a: DeviceArray,
        x: DeviceArray,
        *,
        alpha: complex = 1,
        beta: complex = 0,
        out: DeviceArray | None = None,
        lower: bool = True,
        deterministic: bool = True,
    ) -> DeviceArray:
        """``alpha * a @ x + beta * out`` for a Hermitian matrix (``cublasChemv``).

        `a`, `x`, `alpha`, `beta`, `out`, `lower`, `deterministic`, their shapes and the dtype are those of `symv`. For
        a real dtype it is the same. The imaginary parts of the diagonal of `a` are taken to be zero.

        Raises as `symv` does.
        """
        atomics = not deterministic
        return self._symmetric_product(a, x, alpha, beta, out, lower=lower, hermitian=True, atomics=atomics)

    @verb
    def sbmv(
        self,
        ab: DeviceArray,
        x: DeviceArray,
        *,
        alpha: complex = 1,
        beta: complex = 0,
        out: DeviceArray | None = None,
        lower: bool = True,
    ) -> DeviceArray:
        """``alpha * a @ x + beta * out`` for a symmetric band matrix of a real dtype (``cublasSsbmv``).

        `ab` holds the diagonals of one triangle, as `scipy.linalg.solveh_banded` takes them: it is of shape (k + 1, n),
        with ``a[i, j]`` of the `lower` triangle in ``ab[i - j, j]``, or else of the upper one in ``ab[k + i - j, j]``.
        An array that lies row by row is copied first. `x`, `alpha`, `beta` and `out` are those of `symv`, and the dtype
        is float32 or float64.

        Raises as `symv` does.
        """
        return self._symmetric_band_product(ab, x, alpha, beta, out, lower=lower, hermitian=False)

    @verb
    def hbmv(
        self,
        ab: DeviceArray,
        x: DeviceArray,
        *,
        alpha: complex = 1,
        beta: complex = 0,
        out: DeviceArray | None = None,
        lower: bool = True,
    ) -> DeviceArray:
        """``alpha * a @ x + beta * out`` for a Hermitian band matrix (``cublasChbmv``).

        `ab`, `x`, `alpha`, `beta`, `out`, `lower` and their shapes are those of `sbmv`. For a real dtype it is the
        same; the dtype may be complex64 or complex128, too. The imaginary parts of the diagonal are taken to be zero.

        Raises as `symv` does.
        """
        return self._symmetric_band_product(ab, x, alpha, beta, out, lower=lower, hermitian=True)

    # Updates of a matrix.

    @verb
    def ger(
        self, x: DeviceArray, y: DeviceArray, a: DeviceArray, alpha: complex = 1, *, conjugate: bool = False
    ) -> DeviceArray:
        """Add ``alpha * outer(x, y)`` to `a` in its place, and return `a` (``cublasSger``, ``cublasCgeru``).

        `x` is of shape (m,), `y` of shape (n,) and `a` of shape (m, n), all of one dtype, which is that of the scalar
        `alpha` too. With `conjugate` the elements of `y` are conjugated (``cublasCgerc``).

        Raises `InvalidArgument` for arrays and scalars that do not fit together, and for an `a` that shares memory with
        an input or has no contiguous axis.
        """
        first, second, target = (
            self._source(x, "x"),
            self._source(y, "y"),
            self._target_matrix(self._taken(a, "a", 2), "a"),
        )
        letter, scalar = letter_of(x, y, a), factor(alpha, a.dtype)
        if a.shape != (first.length, second.length):
            raise InvalidArgument(f"a has shape {a.shape}, and the update has shape {(first.length, second.length)}")
        check_apart(a, x, y)
        if not a.size:
            return a
        conjugate = conjugate and letter in "CZ"
        if target.by_rows:  # its transpose is updated, with y as the first; cuBLAS conjugates the second
            first, second, conjugate = self._conjugated(second, when=conjugate), first, False
        variant = "" if letter in "SD" else "c" if conjugate else "u"
        sizes = (first.length, second.length)
        return self._update(f"{letter}ger{variant}", *sizes, scalar, first, second, target=target)

    @verb
    def syr(self, x: DeviceArray, a: DeviceArray, alpha: complex = 1, *, lower: bool = True) -> DeviceArray:
        """Add ``alpha * outer(x, x)`` to one triangle of `a` in its place, and return `a` (``cublasSsyr``).

        `x` is of shape (n,) and `a` of shape (n, n), of one dtype, which is that of the scalar `alpha` too. It is the
        `lower` triangle, or else the upper one; the rest of `a` stays as it is.

        Raises `InvalidArgument` for arrays and scalars that do not fit together, and for an `a` that shares memory with
        an input or has no contiguous axis.
        """
        return self._symmetric_update("r", a, alpha, x, lower=lower, hermitian=False)

    @verb
    def her(self, x: DeviceArray, a: DeviceArray, alpha: float = 1, *, lower: bool = True) -> DeviceArray:
        """Add ``alpha * outer(x, conj(x))`` to one triangle of `a` in its place, and return `a` (``cublasCher``).

        `x`, `a`, `lower`, their shapes and the dtype are those of `syr`. For a real dtype it is the same. The scalar
        `alpha` is a real number. The resulting diagonal is real.

        Raises as `syr` does.
        """
        return self._symmetric_update("r", a, alpha, x, lower=lower, hermitian=True)

    @verb
    def syr2(
        self, x: DeviceArray, y: DeviceArray, a: DeviceArray, alpha: complex = 1, *, lower: bool = True
    ) -> DeviceArray:
        """Add ``alpha * (outer(x, y) + outer(y, x))`` to one triangle of `a`, and return `a` (``cublasSsyr2``).

        `x` and `y` are of shape (n,); `a`, `alpha`, `lower` and the dtype are those of `syr`.

        Raises as `syr` does.
        """
        return self._symmetric_update("r2", a, alpha, x, y, lower=lower, hermitian=False)

    @verb
    def her2(
        self, x: DeviceArray, y: DeviceArray, a: DeviceArray, alpha: complex = 1, *, lower: bool = True
    ) -> DeviceArray:
        """Add ``alpha * outer(x, conj(y))`` and its adjoint to one triangle of `a`, and return `a` (``cublasCher2``).

        `x`, `y`, `a`, `alpha`, `lower`, their shapes and the dtype are those of `syr2`. For a real dtype it is the
        same. The resulting diagonal is real.

        Raises as `syr` does.
        """
        return self._symmetric_update("r2", a, alpha, x, y, lower=lower, hermitian=True)

    # Triangular matrices.

    @verb
    def trmv(
        self,
        a: DeviceArray,
        x: DeviceArray,
        *,
        lower: bool = True,
        op_a: Operation = "N",
        unit_diagonal: bool = False,
        out: DeviceArray | None = None,
    ) -> DeviceArray:
        """``op_a(a) @ x``, the product of a triangular matrix and a vector (``cublasStrmv``).

        `a` is of shape (n, n); only its `lower` triangle is read, or else the upper one. With `unit_diagonal` its
        diagonal is not read, and taken to be ones. `op_a` is "N", "T" for transposed, or "C" for transposed and
        conjugated. `x` and `out` are of shape (n,); `out` may be `x` itself, and is a new array if it is not given. All
        are of one dtype.

        Raises `InvalidArgument` for arrays that do not fit together, and for an `out` that shares memory with an input
        and is not `x`.
        """
        return self._triangular("trmv", a, x, out, lower=lower, op_a=op_a, unit_diagonal=unit_diagonal)

    @verb
    def trsv(
        self,
        a: DeviceArray,
        x: DeviceArray,
        *,
        lower: bool = True,
        op_a: Operation = "N",
        unit_diagonal: bool = False,
        out: DeviceArray | None = None,
    ) -> DeviceArray:
        """The z of ``op_a(a) @ z == x`` for a triangular matrix (``cublasStrsv``).

        `a`, `x`, `lower`, `op_a`, `unit_diagonal`, `out`, their shapes and the dtype are those of `trmv`. Zeros on
        the diagonal raise no error: there the result is infinite, or not a number.

        Raises as `trmv` does.
        """
        return self._triangular("trsv", a, x, out, lower=lower, op_a=op_a, unit_diagonal=unit_diagonal)

    # Shared by the verbs.

    def _factors_fit(
        self, source: Vector, shape: tuple[int, ...], out: DeviceArray | None, beta: complex, *inputs: DeviceArray
    ) -> Vector:
        """Return the target of a product of a matrix of this shape and a vector."""
        rows, columns = shape
        _check_length(source, "x", columns)
        return self._product_target(out, rows, beta, *inputs)

    def _product(
        self,
        name: str,
        words: tuple[int, ...],
        seen: Matrix,
        source: Vector,
        target: Vector,
        *,
        alpha: complex,
        beta: complex,
        conjugates: bool = False,
        flags: int = 0,
    ) -> DeviceArray:
        """Compute ``y = alpha A x + beta y``, or its conjugate: ``conj(y) = conj(alpha) conj(A) conj(x) + ...``."""
        dtype, keeps = target.array.dtype, beta != 0
        first, second = (factor(each, dtype, conjugate=conjugates) for each in (alpha, beta))
        if not target.length:
            return target.array
        if not source.length:
            self._scale(target, beta)
            return target.array
        x = self._conjugated(source, when=conjugates)
        with self._through_conjugate(target, keeps=keeps, when=conjugates) as y:
            function = f"cublas{name}_64"
            self._run(name[1:], function, *words, first, seen, x, second, y, writes=(y,), keeps=keeps, flags=flags)
        return target.array

    def _symmetric_product(
        self,
        a: DeviceArray,
        x: DeviceArray,
        alpha: complex,
        beta: complex,
        out: DeviceArray | None,
        *,
        lower: bool,
        hermitian: bool,
        atomics: bool,
    ) -> DeviceArray:
        seen, source, letter = self._anyhow(self._square(a, "a")), self._source(x, "x"), letter_of(a, x)
        target = self._factors_fit(source, a.shape, out, beta, a, x)
        kind = _kind(letter, hermitian)
        words = (word(lower, seen.by_rows), source.length)
        # The transpose of a Hermitian matrix is its conjugate.
        conjugates = kind == "he" and seen.by_rows
        name, mode = f"{letter}{kind}mv", flags(atomics=atomics)
        return self._product(
            name, words, seen, source, target, alpha=alpha, beta=beta, conjugates=conjugates, flags=mode
        )

    def _symmetric_band_product(
        self,
        ab: DeviceArray,
        x: DeviceArray,
        alpha: complex,
        beta: complex,
        out: DeviceArray | None,
        *,
        lower: bool,
        hermitian: bool,
    ) -> DeviceArray:
        band, source, letter = self._band(ab), self._source(x, "x"), letter_of(ab, x)
        if not len(ab):
            raise InvalidArgument("ab has no rows, and a band has at least one diagonal")
        if not hermitian:
            check_real(letter)
        diagonals, order = ab.shape
        target = self._factors_fit(source, (order, order), out, beta, ab, x)
        words = (word(lower, band.by_rows), order, diagonals - 1)
        kind = _kind(letter, hermitian)[0]
        return self._product(f"{letter}{kind}bmv", words, band, source, target, alpha=alpha, beta=beta)

    def _band(self, ab: DeviceArray) -> Matrix:
        """Return the diagonals of a band matrix, in the order that the library must see."""
        return self._ordered(self._anyhow(self._taken(ab, "ab", 2)).array, by_rows=False)

    def _symmetric_update(
        self, rank: str, a: DeviceArray, alpha: complex, *vectors: DeviceArray, lower: bool, hermitian: bool
    ) -> DeviceArray:
        target = self._target_matrix(self._square(a, "a"), "a")
        sources = [self._source(each, name) for each, name in zip(vectors, "xy", strict=False)]
        letter = letter_of(*vectors, a)
        for source, name in zip(sources, "xy", strict=False):
            _check_length(source, name, len(a))
        check_apart(a, *vectors)
        kind = _kind(letter, hermitian)
        # The transpose of a Hermitian matrix is its conjugate.
        conjugates = kind == "he" and target.by_rows
        dtype = DTYPES[PARTS[letter]] if kind + rank == "her" else a.dtype
        scalar = factor(alpha, dtype, conjugate=conjugates)
        if not a.size:
            return a
        sources = [self._conjugated(source, when=conjugates) for source in sources]
        words = (word(lower, target.by_rows), len(a))
        return self._update(f"{letter}{kind}{rank}", *words, scalar, *sources, target=target)

    def _update(self, name: str, *arguments: int | Scalar | Vector, target: Matrix) -> DeviceArray:
        """Add a product of vectors to a matrix."""
        self._run(name[1:], f"cublas{name}_64", *arguments, target, writes=(target,))
        return target.array

    def _triangular(
        self,
        name: str,
        a: DeviceArray,
        x: DeviceArray,
        out: DeviceArray | None,
        *,
        lower: bool,
        op_a: Operation,
        unit_diagonal: bool,
    ) -> DeviceArray:
        seen, source, letter = self._anyhow(self._square(a, "a")), self._source(x, "x"), letter_of(a, x)
        _check_length(source, "x", len(a))
        code = _operation(seen, check_operation(op_a, "op_a"), letter)
        in_place = isinstance(out, DeviceArray) and is_same_place(out, x)
        target = self._product_target(out, source.length, 0, a, *([] if in_place else [x]))
        if not target.length:
            return target.array
        if not in_place:
            self._move(source, target)
        with self._through_conjugate(target, keeps=True, when=code is None) as y:
            words = (word(lower, seen.by_rows), OPERATIONS["N"] if code is None else code, int(bool(unit_diagonal)))
            self._run(name, f"cublas{letter}{name}_64", *words, target.length, seen, y, writes=(y,))
        return target.array


def _kind(letter: str, hermitian: bool) -> str:
    """Return the first letters of functions on symmetric or Hermitian matrices; for real matrices they are the same."""
    return "he" if hermitian and letter in "CZ" else "sy"


def _operation(seen: Matrix, wanted: Operation, letter: str) -> int | None:
    """Return the library's operation on the matrix that it sees; None for a conjugation without transposition."""
    return seen.operation("T" if wanted == "C" and letter in "SD" else wanted, by_rows=False)


def _check_length(vector: Vector, name: str, length: int) -> None:
    if vector.length != length:
        raise InvalidArgument(f"{name} has {vector.length} elements, and the matrix has {length} rows or columns there")


def _count(value: SupportsIndex, name: str) -> int:
    """Return a number of rows or diagonals. Raises `InvalidArgument` for anything else."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise InvalidArgument(f"{name} is an int of at least 0, not {shown(value)}")
    return number
