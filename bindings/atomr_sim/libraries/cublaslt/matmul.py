"""The computations of the simulated cublasLtMatmul.

A ``Multiplication`` is one call. It adds in the accumulator type of the arithmetic, continues in the type of alpha and
beta, and rounds once, when it stores:

    x = alpha * scaleA * scaleB * op(A) op(B) + beta * scaleC * C + bias
    D = scaleD * activation(x)                                               aux = scaleAux * x

The names are those of the documentation; GELU is its approximation by tanh.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atomr_cuda.cublaslt import (
    cublasLtMatmulMatrixScale_t as ScaleMode,
    cublasOperation_t as Operation,
)
from atomr_cuda.library_types import cudaDataType as Type

from ...ptx.numeric import clamp, to_integer
from ..cublas.level3 import multiply
from ..dense import ELEMENTS, Element, Operand
from .problem import BIAS_TYPES, ELEMENT_TYPES, Does, Factor, Problem, placed

if TYPE_CHECKING:
    from ...engine.memory import AddressSpace, Array

_FLOAT = ELEMENTS[Type.CUDA_R_32F]
_BYTE = Element(np.dtype(np.uint8), np.dtype(np.uint8))

_GELU_SCALE, _GELU_CUBIC = math.sqrt(2 / math.pi), 0.044715


def gelu(x: Array) -> Array:
    """GELU by its approximation 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    result: Array = 0.5 * x * (1 + np.tanh(_GELU_SCALE * (x + _GELU_CUBIC * x**3)))
    return result


def gelu_gradient(x: Array) -> Array:
    """The derivative of ``gelu``."""
    t = np.tanh(_GELU_SCALE * (x + _GELU_CUBIC * x**3))
    result: Array = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * _GELU_SCALE * (1 + 3 * _GELU_CUBIC * x * x)
    return result


def store(operand: Operand, space: AddressSpace, values: Array) -> None:
    """Write results: integers are rounded to the nearest one, and saturate."""
    number = operand.element.number
    if number.kind == "i":
        values = to_integer(values, "rni", number.type) if values.dtype.kind == "f" else clamp(values, number.type)
    operand.write(space, values)


def transposed(operation: int, values: Array) -> Array:
    """Return the result of an operation on each matrix."""
    if operation == Operation.CUBLAS_OP_N:
        return values
    values = values.swapaxes(-1, -2)
    return values.conj() if operation == Operation.CUBLAS_OP_C else values


def scaled(factor: Any, values: Array) -> Array:
    """A product that leaves values unchanged if all factors are one: a complex infinity stays the same."""
    return values if np.all(factor == 1) else factor * values


@dataclass(frozen=True)
class Multiplication:
    """One call: a checked problem and the arguments of the call."""

    problem: Problem
    a: int
    b: int
    c: int
    d: int
    alpha: Factor
    beta: Factor
    splits: int
    workspace: int

    def run(self, space: AddressSpace) -> None:
        """Compute, and write D and all results of the epilogue."""
        problem, product = self.problem, self.problem.product
        number = ELEMENTS[product.scale_type].number
        a, b = self._factor(space, "a"), self._factor(space, "b")
        sums = self._sums(space, a, b).astype(number)
        values = scaled(self._input_scale(space), scaled(self.alpha.read(space), sums))
        values = self._epilogue(space, self._plus_c(space, values))
        self._gradient_of_bias(space, a, b, values)
        self._put_maximum(space, product.amax_d_pointer, values)
        values = scaled(self._scale(space, product.d_scale_pointer), values)
        store(placed(problem.d, self.d), space, values.astype(number, copy=False))

    def _factor(self, space: AddressSpace, name: str) -> Array:
        """Return op(A) or op(B), in the accumulator's type."""
        values = placed(getattr(self.problem, name), getattr(self, name)).read(space)
        operation = getattr(self.problem.product, f"trans{name}")
        return transposed(operation, values.astype(self.problem.accumulator.number))

    def _sums(self, space: AddressSpace, a: Array, b: Array) -> Array:
        """Return the product itself. An algorithm that cuts the sums keeps the parts in the workspace."""
        arithmetic, number = self.problem.product.compute_type, self.problem.accumulator.number
        pieces = np.array_split(np.arange(a.shape[-1]), self.splits)
        parts = np.stack([multiply(a[..., piece], b[:, piece], arithmetic, number) for piece in pieces])
        if self.splits == 1:
            return parts[0]
        strides = tuple(math.prod(parts.shape[axis + 1 :]) for axis in range(parts.ndim))
        kept = Operand(self.problem.accumulator, self.workspace, parts.shape, strides)
        kept.write(space, parts)
        total: Array = kept.read(space).sum(axis=0, dtype=parts.dtype)
        return total

    def _plus_c(self, space: AddressSpace, values: Array) -> Array:
        beta = self.beta.read(space)
        if not np.any(beta):
            return values
        c = placed(self.problem.c, self.c).read(space).astype(values.dtype)
        c = scaled(self._scale(space, self.problem.product.c_scale_pointer), c)
        return values + np.where(beta == 0, values.dtype.type(0), scaled(beta, c))

    def _scale(self, space: AddressSpace, address: int) -> Any:
        return Operand(_FLOAT, address, (1, 1, 1), (1, 1, 1)).read(space) if address else 1

    def _input_scale(self, space: AddressSpace) -> Any:
        """Return the scales of A and B: a number for each, or one for each row of A and each column of B."""
        product, (rows, cols, _) = self.problem.product, self.problem.shape
        if product.a_scale_mode == ScaleMode.CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F:
            return self._scale(space, product.a_scale_pointer) * self._scale(space, product.b_scale_pointer)
        vectors = ((product.a_scale_pointer, (1, rows, 1)), (product.b_scale_pointer, (1, 1, cols)))
        a, b = (Operand(_FLOAT, at, shape, (1, 1, 1)).read(space) if at else 1 for at, shape in vectors)
        return a * b

    def _put_maximum(self, space: AddressSpace, address: int, values: Array) -> None:
        if address:
            Operand(_FLOAT, address, (1,), (1,)).write(space, np.max(np.abs(values)))

    # The epilogue.

    def _epilogue(self, space: AddressSpace, values: Array) -> Array:
        does = self.problem.product.epilogue
        if does & Does.BIAS:
            values = values + self._bias(values.shape[1]).read(space)[:, :, None].astype(values.dtype)
        if does & Does.GRADIENT:
            return self._gradient(space, values)
        if does & Does.AUX:
            self._keep_aux(space, values)
        if does & Does.RELU:
            values = np.maximum(values, values.dtype.type(0))
        return gelu(values) if does & Does.GELU else values

    def _bias(self, length: int) -> Operand:
        product = self.problem.product
        element = ELEMENT_TYPES[BIAS_TYPES[self.problem.types] or 0]
        shape = (self.problem.d.batch_count, length)
        return Operand(element, product.bias_pointer, shape, (product.bias_batch_stride, 1))

    def _gradient_of_bias(self, space: AddressSpace, a: Array, b: Array, values: Array) -> None:
        """Return the sums over columns of the gradient, or over the inner dimension of a factor."""
        does = self.problem.product.epilogue
        for bit, summed, axis in ((Does.BGRAD, values, 2), (Does.BGRADA, a, 2), (Does.BGRADB, b, 1)):
            if does & bit:
                sums = summed.sum(axis=axis)
                self._bias(sums.shape[1]).write(space, sums)

    def _mask(self) -> Operand:
        """Return the auxiliary matrix of bits, in column-major order, the lowest bit of a byte first."""
        product, d = self.problem.product, self.problem.d
        shape = (d.batch_count, d.cols, -(-d.rows // 8))
        strides = (product.epilogue_aux_batch_stride // 8, product.epilogue_aux_ld // 8, 1)
        return Operand(_BYTE, product.epilogue_aux_pointer, shape, strides)

    def _aux(self) -> Operand:
        """Return the auxiliary matrix of the activation's arguments."""
        product, d = self.problem.product, self.problem.d
        strides = (product.epilogue_aux_batch_stride, 1, product.epilogue_aux_ld)
        element = ELEMENT_TYPES[self.problem.aux_type]
        return Operand(element, product.epilogue_aux_pointer, (d.batch_count, d.rows, d.cols), strides)

    def _keep_aux(self, space: AddressSpace, values: Array) -> None:
        product = self.problem.product
        if product.epilogue & Does.BITS:
            self._mask().write(space, np.packbits(values.swapaxes(1, 2) > 0, axis=-1, bitorder="little"))
            return
        self._put_maximum(space, product.epilogue_aux_amax_pointer, values)
        store(self._aux(), space, values * self._scale(space, product.epilogue_aux_scale_pointer))

    def _gradient(self, space: AddressSpace, values: Array) -> Array:
        if not self.problem.product.epilogue & Does.BITS:
            return values * gelu_gradient(self._aux().read(space).astype(values.dtype))
        passed = np.unpackbits(self._mask().read(space), axis=-1, count=values.shape[1], bitorder="little")
        return np.where(passed.swapaxes(1, 2), values, values.dtype.type(0))
