"""Products of general matrices, of all types that cuBLAS supports: one, a stack, or a list of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs
import numpy.typing as npt

from ..._arrays.arrays import DeviceArray
from ..._calls.apart import check_all_apart, check_apart
from ..._calls.library_types import DATA_TYPES, check_output_dtype, name_of
from ..._calls.linear import Matrix, Operation, check_operation
from ..._calls.verbs import Address, Operands, Scalar, verb
from ..._values.errors import InvalidArgument
from .matrices import MatrixOperands, check_factor, common_stack, items, repeated
from .types import DEFAULT_ALGORITHM, OUTPUTS, Compute, product_of

Operand = tuple[Matrix, int]
"""A matrix, or many, and the word for its operation."""

FOUR: Final = 4
"""The multiple of the sizes, leading dimensions and addresses of matrices of bytes."""


@attrs.frozen
class _Product:
    """The parameters of a product besides its matrices."""

    k: int
    alpha: Scalar
    beta: Scalar
    keeps: bool
    """True if beta is not zero."""
    kind: int
    """``cublasComputeType_t``."""


class ProductVerbs(MatrixOperands):
    """Verbs that multiply general matrices."""

    __slots__ = ()

    @verb
    def gemm(
        self,
        a: DeviceArray,
        b: DeviceArray,
        *,
        alpha: complex = 1,
        beta: complex = 0,
        out: DeviceArray | None = None,
        op_a: Operation = "N",
        op_b: Operation = "N",
        dtype: npt.DTypeLike | None = None,
        compute: Compute | None = None,
    ) -> DeviceArray:
        """``alpha * op_a(a) @ op_b(b) + beta * out``, the product of two matrices (``cublasGemmEx``).

        `a` and `b` are of shape (m, k) and (k, n) after `op_a` and `op_b`, which are "N", "T" for transposed, or "C"
        for transposed and conjugated; of one dtype, float32, float64, complex64, complex128, float16, bfloat16 or int8.
        `out` is of shape (m, n), and a new array of `dtype` if it is not given: by default the dtype of the inputs, and
        int32 for int8; sums of float16 and bfloat16 are computed, and may be kept, in float32. `alpha` and `beta` are
        of the dtype of the sums. `compute` selects the arithmetic: "tf32" and the fast ones round the inputs first,
        "pedantic" disables all such optimisations, "emulated" uses the tensor cores for all digits (CUDA 13).

        Further axes in front make stacks of matrices, which are broadcast as `numpy.matmul` does; that is one call
        (``cublasGemmStridedBatchedEx``, or ``cublasGemmBatchedEx`` where the matrices are not equally far apart).

        Arrays may have any strides. Arrays that cuBLAS does not take are copied first; so are complex arrays that would
        have to be conjugated without being transposed, and int8 arrays whose sizes or leading dimensions are not
        multiples of 4.

        Raises `InvalidArgument` for shapes, dtypes or an `out` that do not fit together, for an `out` that shares
        memory with an input, and for a `compute` that the dtypes do not support.
        """
        left, right = self._stack(a, "a"), self._stack(b, "b")
        m, n, k = _sizes(left, right, op_a, op_b)
        target = self._output(out, (*common_stack(left, right), m, n), _output_dtype(left, dtype))
        check_output_dtype(target.array, dtype)
        product = _checked(left, right, target, k, alpha, beta, compute)
        check_factor(beta, out)
        check_apart(target.array, left, right)
        if target.array.size:
            first = self._operand(left if k else self._zeros(left, op_a, m), op_a, target.by_rows)
            second = self._operand(right if k else self._zeros(right, op_b, n, is_right=True), op_b, target.by_rows)
            self._multiply(first, second, target, product)
        return target.array

    @verb
    def gemm_batched(
        self,
        a: Sequence[DeviceArray],
        b: Sequence[DeviceArray],
        *,
        alpha: complex = 1,
        beta: complex = 0,
        out: Sequence[DeviceArray] | None = None,
        op_a: Operation = "N",
        op_b: Operation = "N",
        dtype: npt.DTypeLike | None = None,
        compute: Compute | None = None,
    ) -> list[DeviceArray]:
        """Return the products of the matrices of two lists of one length, in one call (``cublasGemmBatchedEx``).

        All of `a` are of one shape, and so are all of `b`; dtypes, `alpha`, `beta`, `op_a`, `op_b`, `dtype` and
        `compute` are those of `gemm`, for all products alike. `out` is a list of as many arrays, which have the same
        strides; without it the results are the parts of one new array. Inputs that lie differently are copied first.

        Raises `InvalidArgument` as `gemm` does, for lists of different lengths, and for arrays of different
        shapes or dtypes in a list.
        """
        left, right = self._list(a, "a"), self._list(b, "b")
        if len(left) != len(right):
            raise InvalidArgument(f"a has {len(left)} arrays and b has {len(right)}: give the same number")
        m, n, k = _sizes(left[0], right[0], op_a, op_b)
        target = self._output_list(out, len(left), (m, n), _output_dtype(left[0], dtype))
        check_output_dtype(target.array, dtype)
        product = _checked(left[0], right[0], target, k, alpha, beta, compute)
        check_factor(beta, out)
        check_all_apart(target.arrays, [*left, *right])
        if target.array.size:
            if not k:
                left = [self._zeros(left[0], op_a, m)] * len(left)
                right = [self._zeros(right[0], op_b, n, is_right=True)] * len(right)
            first = self._operand_list(left, op_a, target.by_rows)
            second = self._operand_list(right, op_b, target.by_rows)
            self._multiply(first, second, target, product)
        return list(target.arrays)

    def _zeros(self, like: DeviceArray, operation: Operation, length: int, *, is_right: bool = False) -> DeviceArray:
        """Return a matrix of zeros for one without columns, or without rows: both add zero to a product."""
        shape = (FOUR, length) if is_right ^ (operation != "N") else (length, FOUR)
        return self._memory.zeros(shape, like.dtype)

    def _multiply(self, left: Operand, right: Operand, target: Matrix, product: _Product) -> None:
        """Plan products, with matrices of bytes padded to multiples of four."""
        wide = target
        if name_of(left[0].array.dtype) == "int8" and not all(map(_is_of_fours, (left[0], right[0], target))):
            left, right = ((self._padded(matrix, zeros=True), operation) for matrix, operation in (left, right))
            wide = self._padded(target, zeros=False, keeps=product.keeps)
            product = attrs.evolve(product, k=_up(product.k))
        if not target.listed:
            stack = wide.array.shape[:-2]
            left, right = ((repeated(matrix, stack), operation) for matrix, operation in (left, right))
        self._send_product(left, right, wide, product)
        if wide is not target:
            for part, whole in _pairs(target, wide):
                self._copy(whole, part)

    def _padded(self, matrix: Matrix, *, zeros: bool, keeps: bool = True) -> Matrix:
        """Return a copy whose sizes are multiples of four; without the content if that is not needed."""
        stack = (matrix.count,) if matrix.listed else matrix.array.shape[:-2]
        shape = (*stack, _up(matrix.rows), _up(matrix.columns))
        padded = self._new_matrix(shape, matrix.array.dtype, matrix.by_rows, zeros=zeros)
        if keeps:
            for part, whole in _pairs(matrix, padded):
                self._copy(part, whole)
        return padded

    def _send_product(self, left: Operand, right: Operand, target: Matrix, product: _Product) -> None:
        """Plan all products at once, or one by one if their addresses are not allowed in a batched call."""
        (a, op_a), (b, op_b) = (right, left) if target.by_rows else (left, right)
        matrices = (a, b, target)
        if target.count > 1 and not _is_regular(matrices) and any(map(_is_odd, matrices)):
            for one, other, result in zip(*map(items, (left[0], right[0], target)), strict=True):
                self._send_product((one, left[1]), (other, right[1]), result, product)
            return
        operands = self._operands()
        operands.reads(*a.arrays, *b.arrays)
        operands.writes(*target.arrays, keeps=product.keeps)
        form, (first, second, result_words) = self._places(matrices, operands)
        self._call(
            f"cublasGemm{form}Ex_64",
            *(op_a, op_b, *target.seen, product.k),
            product.alpha,
            *(*first, *second),
            product.beta,
            *result_words,
            *((target.count,) if form else ()),
            *(product.kind, DEFAULT_ALGORITHM),
            operation="gemm",
            operands=operands,
        )

    def _places(self, matrices: tuple[Matrix, ...], operands: Operands) -> tuple[str, list[tuple[int, ...]]]:
        """Return the function for these, and the words that give each address."""
        places: Sequence[int] = [Address(matrix.address) for matrix in matrices]
        distances: list[tuple[int, ...]] = [() for _ in matrices]
        form = ""
        if matrices[-1].count > 1 and _is_regular(matrices):
            form, distances = "StridedBatched", [(matrix.distance or 0,) for matrix in matrices]
        elif matrices[-1].count > 1:
            form = "Batched"
            table, places = self._addresses(*matrices)
            operands.reads(table)
        return form, [
            (place, DATA_TYPES[name_of(matrix.array.dtype)], matrix.leading, *distance)
            for place, matrix, distance in zip(places, matrices, distances, strict=True)
        ]


def _is_regular(matrices: tuple[Matrix, ...]) -> bool:
    """Return whether the matrices of each operand are at equal distances."""
    return all(matrix.distance is not None for matrix in matrices)


def _sizes(left: DeviceArray, right: DeviceArray, op_a: Operation, op_b: Operation) -> tuple[int, int, int]:
    """Return the rows and columns of a product, and the length of its sums."""
    check_operation(op_a, "op_a")
    check_operation(op_b, "op_b")
    m, k = left.shape[-2:] if op_a == "N" else left.shape[:-3:-1]
    rows, n = right.shape[-2:] if op_b == "N" else right.shape[:-3:-1]
    if rows != k:
        raise InvalidArgument(f"a has {k} columns and b has {rows} rows, after op_a and op_b")
    return m, n, k


def _output_dtype(inputs: DeviceArray, dtype: npt.DTypeLike | None) -> npt.DTypeLike:
    return OUTPUTS.get(name_of(inputs.dtype), inputs.dtype) if dtype is None else dtype


def _checked(
    left: DeviceArray,
    right: DeviceArray,
    target: Matrix,
    k: int,
    alpha: complex,
    beta: complex,
    compute: Compute | None,
) -> _Product:
    kinds, kind = product_of(left, right, target.array, compute)
    scalars = Scalar.of(alpha, kinds.scalar), Scalar.of(beta, kinds.scalar)
    return _Product(k or FOUR, *scalars, keeps=beta != 0, kind=kind)


def _up(length: int) -> int:
    return -(-length // FOUR) * FOUR


def _pairs(matrix: Matrix, padded: Matrix) -> list[tuple[DeviceArray, DeviceArray]]:
    """Return the arrays of a matrix, or of many, each with the part of the padded array that has its elements."""
    parts = padded.array[..., : matrix.rows, : matrix.columns]
    if matrix.listed:
        return [(array, parts[index]) for index, array in enumerate(matrix.listed)]
    return [(matrix.array, parts)]


def _is_of_fours(matrix: Matrix) -> bool:
    numbers = (matrix.rows, matrix.columns, matrix.leading)
    return not any(number % FOUR for number in numbers) and not _is_odd(matrix)


def _is_odd(matrix: Matrix) -> bool:
    """Return whether an address is not a multiple of four, which a product by addresses may need."""
    return bool((matrix.addresses % FOUR).any())
