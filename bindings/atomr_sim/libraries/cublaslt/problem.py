"""The problems of the simulated cublasLtMatmul: the supported combinations of types, and the conditions of each.

A ``Problem`` is a product as its descriptors describe it. It refuses everything that the documentation of
cublasLtMatmul does not list for a GPU of compute capability 9.0. These rules apply whatever capability the driver
reports, which only determines the kernels that may be loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntFlag
from typing import TYPE_CHECKING, Any

from atomr_cuda.cublaslt import (
    cublasComputeType_t as Compute,
    cublasFillMode_t,
    cublasLtBatchMode_t,
    cublasLtEpilogue_t as Epilogue,
    cublasLtMatmulMatrixScale_t as ScaleMode,
    cublasLtOrder_t as Order,
    cublasLtPointerMode_t as PointerMode,
    cublasOperation_t as Operation,
)
from atomr_cuda.library_types import cudaDataType as Type

from ..._status import require
from .. import float8
from ..dense import ELEMENTS, Element, Operand, host_values
from .descriptors import INVALID_VALUE, LAYOUT, MATMUL, NOT_SUPPORTED, Descriptor

if TYPE_CHECKING:
    from ...engine.memory import AddressSpace

ELEMENT_TYPES: dict[int, Element] = {**ELEMENTS, Type.CUDA_R_8F_E4M3: float8.E4M3, Type.CUDA_R_8F_E5M2: float8.E5M2}
_FP8 = (Type.CUDA_R_8F_E4M3, Type.CUDA_R_8F_E5M2)
_FLOAT = ELEMENTS[Type.CUDA_R_32F]


# The combinations of types: (arithmetic, scale, A, B, C, D) to the bias; None if there is no epilogue.

_HALF = (Compute.CUBLAS_COMPUTE_16F, Compute.CUBLAS_COMPUTE_16F_PEDANTIC)
_INTEGER = (Compute.CUBLAS_COMPUTE_32I, Compute.CUBLAS_COMPUTE_32I_PEDANTIC)
_SINGLE = (Compute.CUBLAS_COMPUTE_32F, Compute.CUBLAS_COMPUTE_32F_PEDANTIC)
_FAST = (
    Compute.CUBLAS_COMPUTE_32F_FAST_16F,
    Compute.CUBLAS_COMPUTE_32F_FAST_16BF,
    Compute.CUBLAS_COMPUTE_32F_FAST_TF32,
    Compute.CUBLAS_COMPUTE_32F_EMULATED_16BFX9,
)
_DOUBLE = (
    Compute.CUBLAS_COMPUTE_64F,
    Compute.CUBLAS_COMPUTE_64F_PEDANTIC,
    Compute.CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT,
)

# Arithmetics, scale, A and B, C and D, bias.
_REGULAR = (
    (_HALF, Type.CUDA_R_16F, Type.CUDA_R_16F, Type.CUDA_R_16F, Type.CUDA_R_16F),
    (_INTEGER, Type.CUDA_R_32I, Type.CUDA_R_8I, Type.CUDA_R_32I, None),
    (_INTEGER, Type.CUDA_R_32F, Type.CUDA_R_8I, Type.CUDA_R_8I, None),
    (_SINGLE, Type.CUDA_R_32F, Type.CUDA_R_16BF, Type.CUDA_R_16BF, Type.CUDA_R_16BF),
    (_SINGLE, Type.CUDA_R_32F, Type.CUDA_R_16F, Type.CUDA_R_16F, Type.CUDA_R_16F),
    (_SINGLE, Type.CUDA_R_32F, Type.CUDA_R_8I, Type.CUDA_R_32F, None),
    (_SINGLE, Type.CUDA_R_32F, Type.CUDA_R_16BF, Type.CUDA_R_32F, Type.CUDA_R_32F),
    (_SINGLE, Type.CUDA_R_32F, Type.CUDA_R_16F, Type.CUDA_R_32F, Type.CUDA_R_32F),
    (_SINGLE + _FAST, Type.CUDA_R_32F, Type.CUDA_R_32F, Type.CUDA_R_32F, Type.CUDA_R_32F),
    (_SINGLE + _FAST, Type.CUDA_C_32F, Type.CUDA_C_32F, Type.CUDA_C_32F, None),
    (_DOUBLE, Type.CUDA_R_64F, Type.CUDA_R_64F, Type.CUDA_R_64F, Type.CUDA_R_64F),
    (_DOUBLE, Type.CUDA_C_64F, Type.CUDA_C_64F, Type.CUDA_C_64F, None),
)

# A and B, of 8 bits, and the types of D besides the type of C, if C has 16 bits.
_NARROW = (
    (Type.CUDA_R_8F_E4M3, Type.CUDA_R_8F_E4M3, (Type.CUDA_R_8F_E4M3,)),
    (Type.CUDA_R_8F_E4M3, Type.CUDA_R_8F_E5M2, _FP8),
    (Type.CUDA_R_8F_E5M2, Type.CUDA_R_8F_E4M3, _FP8),
)

_Types = tuple[int, ...]


def _all_types() -> Iterator[tuple[_Types, int | None]]:
    for arithmetics, scale, factor, result, bias in _REGULAR:
        for arithmetic in arithmetics:
            yield (arithmetic, scale, factor, factor, result, result), bias
    for a, b, narrow in _NARROW:
        given = (Compute.CUBLAS_COMPUTE_32F, Type.CUDA_R_32F, a, b)
        yield (*given, Type.CUDA_R_32F, Type.CUDA_R_32F), Type.CUDA_R_16BF
        for c in (Type.CUDA_R_16BF, Type.CUDA_R_16F):
            for d in (c, *narrow):
                yield (*given, c, d), c


BIAS_TYPES: dict[_Types, int | None] = dict(_all_types())


def granule(types: _Types) -> int:
    """The bytes of which pointers, leading dimensions and strides are multiples; 1 if any element is allowed."""
    arithmetic, _, a, *_ = types
    if a in _FP8:
        return 16
    return 4 if arithmetic in _INTEGER else 1


# The epilogue, which is a mask of its parts.


class Does(IntFlag):
    """The parts of an epilogue."""

    RELU = 2
    BIAS = 4
    DRELU = 8
    BGRAD = 16
    GELU = 32
    DGELU = 64
    AUX = 128
    BGRADA = 256
    BGRADB = 512

    ACTIVATION = RELU | GELU | DRELU | DGELU
    GRADIENT = DRELU | DGELU
    BITS = RELU | DRELU
    """The parts for which the auxiliary matrix has bits."""
    BIAS_GRADIENT = BGRAD | BGRADA | BGRADB
    """The parts for which the bias is a result."""


_EPILOGUES = frozenset(int(each) for each in Epilogue)
# The elements of which the auxiliary leading dimension and stride are multiples, and the boundary of the matrix in
# memory.
_MASK_GRANULE, _AUX_GRANULE, _AUX_ALIGNMENT = 128, 8, 16


def placed(layout: Descriptor, address: int | None) -> Operand:
    """Return the matrices of a layout in memory: an array of matrix, row, column."""
    steps = (1, layout.ld) if layout.order == Order.CUBLASLT_ORDER_COL else (layout.ld, 1)
    shape = (layout.batch_count, layout.rows, layout.cols)
    return Operand(ELEMENT_TYPES[layout.type], address or 0, shape, (layout.strided_batch_offset, *steps))


def check_layout(layout: Descriptor, *, broadcast: bool = False) -> None:
    """Refuse an invalid matrix, and a layout that is not simulated. ``broadcast`` allows a leading dimension of 0."""
    rows_first = layout.order == Order.CUBLASLT_ORDER_COL
    require(layout.rows > 0 and layout.cols > 0 and layout.batch_count > 0, INVALID_VALUE)
    require(layout.order in (Order.CUBLASLT_ORDER_COL, Order.CUBLASLT_ORDER_ROW), NOT_SUPPORTED)
    require(layout.ld >= (layout.rows if rows_first else layout.cols) or (broadcast and layout.ld == 0), INVALID_VALUE)
    require(layout.strided_batch_offset >= 0, INVALID_VALUE)
    require(layout.batch_mode == cublasLtBatchMode_t.CUBLASLT_BATCH_MODE_STRIDED, NOT_SUPPORTED)
    require(layout.plane_offset == 0, NOT_SUPPORTED)


_OPERATIONS = (Operation.CUBLAS_OP_N, Operation.CUBLAS_OP_T, Operation.CUBLAS_OP_C)


def shape_of(operation: int, layout: Descriptor) -> tuple[int, int]:
    """Return rows and columns of the result of an operation on a matrix; refuse an unknown operation."""
    require(operation in _OPERATIONS, NOT_SUPPORTED)
    rows, cols = int(layout.rows), int(layout.cols)
    return (rows, cols) if operation == Operation.CUBLAS_OP_N else (cols, rows)


# Alpha and beta.


@dataclass(frozen=True)
class Factor:
    """Alpha or beta: a number that is known at the call, or one or more numbers in memory of the device."""

    known: Any = 0
    memory: Operand | None = None

    @classmethod
    def on_host(cls, element: Element, address: int) -> Factor:
        """Return one number in memory of the host, which is read now."""
        return cls(host_values(element, address, 1)[0])

    @classmethod
    def on_device(cls, element: Element, address: int, count: int = 1, batches: int = 1, stride: int = 0) -> Factor:
        """Return one number for all rows, or one for each row and for each matrix."""
        return cls(memory=Operand(element, address, (batches, count, 1), (stride, 1, 1)))

    @property
    def is_zero(self) -> bool:
        """Tell whether the factor is known to be zero, so that its operand is not read."""
        return self.memory is None and self.known == 0

    def read(self, space: AddressSpace) -> Any:
        """Return the factor, which numpy broadcasts over matrix, row, column."""
        return self.known if self.memory is None else self.memory.read(space)


_HOST, _DEVICE, _VECTOR, _ZERO = range(4)
_PLACES: dict[int, tuple[int, int]] = {
    PointerMode.CUBLASLT_POINTER_MODE_HOST: (_HOST, _HOST),
    PointerMode.CUBLASLT_POINTER_MODE_DEVICE: (_DEVICE, _DEVICE),
    PointerMode.CUBLASLT_POINTER_MODE_DEVICE_VECTOR: (_VECTOR, _VECTOR),
    PointerMode.CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_ZERO: (_VECTOR, _ZERO),
    PointerMode.CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST: (_VECTOR, _HOST),
}
_INTEGER_MODES = (
    PointerMode.CUBLASLT_POINTER_MODE_HOST,
    PointerMode.CUBLASLT_POINTER_MODE_DEVICE,
    PointerMode.CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST,
)


@dataclass(frozen=True)
class Problem:
    """A product: its descriptor and the layouts of its matrices, all of them copies."""

    product: Descriptor
    a: Descriptor
    b: Descriptor
    c: Descriptor
    d: Descriptor

    @classmethod
    def read(cls, product: int | None, a: int | None, b: int | None, c: int | None, d: int | None) -> Problem:
        """Copy the descriptors at these addresses. C has the layout of D if no other is given."""
        problem = cls(MATMUL.read(product), *(LAYOUT.read(each) for each in (a, b, c or d, d)))
        problem._check()
        return problem

    @property
    def layouts(self) -> tuple[Descriptor, ...]:
        return self.a, self.b, self.c, self.d

    @property
    def types(self) -> _Types:
        """The key of the table of types."""
        return self.product.compute_type, self.product.scale_type, *(layout.type for layout in self.layouts)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return rows and columns of D, and the length of the sums."""
        return self.d.rows, self.d.cols, shape_of(self.product.transa, self.a)[1]

    @property
    def accumulator(self) -> Element:
        """The type of the sums. Those of half precision are rounded to it, and kept as single precision."""
        if self.product.compute_type in _INTEGER:
            return ELEMENTS[Type.CUDA_R_32I]
        return _FLOAT if self.product.scale_type == Type.CUDA_R_16F else ELEMENTS[self.product.scale_type]

    @property
    def granule(self) -> int:
        """The bytes of which pointers, leading dimensions and strides are multiples."""
        return granule(self.types)

    @property
    def aux_type(self) -> int:
        """The element type of an auxiliary matrix that does not have bits."""
        chosen: int = self.product.epilogue_aux_data_type
        return self.d.type if chosen < 0 else chosen

    def workspace(self, splits: int) -> int:
        """The bytes of workspace for an algorithm that cuts the sums into parts."""
        rows, cols, _ = self.shape
        return splits * self.d.batch_count * rows * cols * self.accumulator.size if splits > 1 else 0

    def _check(self) -> None:
        self._check_shapes()
        self._check_types()
        self._check_forms()
        if self.granule > 1:
            self._check_tensor_core()
        self._check_epilogue()
        self._check_scales()

    def _check_shapes(self) -> None:
        for layout in self.layouts:
            check_layout(layout, broadcast=layout is self.c)
            require(layout.batch_count == self.d.batch_count, INVALID_VALUE)
        require(self.d.batch_count == 1 or self.d.strided_batch_offset > 0, INVALID_VALUE)
        rows, inner = shape_of(self.product.transa, self.a)
        inner_of_b, cols = shape_of(self.product.transb, self.b)
        require(inner == inner_of_b, INVALID_VALUE)
        require((rows, cols) == (self.d.rows, self.d.cols) == (self.c.rows, self.c.cols), INVALID_VALUE)
        require(self.c.order == self.d.order, INVALID_VALUE)

    def _check_types(self) -> None:
        require(self.types in BIAS_TYPES, NOT_SUPPORTED)

    def _check_forms(self) -> None:
        product = self.product
        require(product.transc == Operation.CUBLAS_OP_N, NOT_SUPPORTED)
        require(product.fill_mode == cublasFillMode_t.CUBLAS_FILL_MODE_FULL, NOT_SUPPORTED)
        require(product.pointer_mode in _PLACES, INVALID_VALUE)
        by_batch = product.pointer_mode == PointerMode.CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST
        require(product.alpha_vector_batch_stride == 0 or by_batch, INVALID_VALUE)
        by_row = [layout.order == Order.CUBLASLT_ORDER_ROW for layout in self.layouts]
        conjugates = Operation.CUBLAS_OP_C in (product.transa, product.transb)
        if ELEMENT_TYPES[self.a.type].is_complex and conjugates:
            require(all(by_row) or not any(by_row), NOT_SUPPORTED)

    def _check_tensor_core(self) -> None:
        """Check the conditions of kernels for elements of 8 bits: both factors are contiguous along the sums, with
        sizes that are multiples."""
        product = self.product
        form = product.transa, product.transb
        require(form == (Operation.CUBLAS_OP_T, Operation.CUBLAS_OP_N), NOT_SUPPORTED)
        require(self.a.type in _FP8 or product.pointer_mode in _INTEGER_MODES, NOT_SUPPORTED)
        for layout in self.layouts:
            size = ELEMENT_TYPES[layout.type].size if self.a.type in _FP8 else 1
            lengths = (layout.rows, layout.ld, layout.strided_batch_offset)
            require(layout.order == Order.CUBLASLT_ORDER_COL, NOT_SUPPORTED)
            require(all(length * size % self.granule == 0 for length in lengths), NOT_SUPPORTED)

    def _check_epilogue(self) -> None:
        does, bias = self.product.epilogue, BIAS_TYPES[self.types]
        require(does in _EPILOGUES, NOT_SUPPORTED)
        if does == Epilogue.CUBLASLT_EPILOGUE_DEFAULT:
            return
        require(bias is not None, NOT_SUPPORTED)
        if self.d.order == Order.CUBLASLT_ORDER_ROW:
            require(not does & Does.AUX and not (does & Does.ACTIVATION and does & Does.BIAS), NOT_SUPPORTED)
        if does & (Does.BGRADA | Does.BGRADB):
            require(self.a.type not in _FP8, NOT_SUPPORTED)
        if does & (Does.BIAS | Does.BIAS_GRADIENT):
            self._check_bias(bias)
        if does & Does.AUX:
            self._check_aux()

    def _check_bias(self, bias: int | None) -> None:
        product = self.product
        require(product.bias_data_type in (-1, bias), NOT_SUPPORTED)
        require(product.bias_pointer % ELEMENT_TYPES[bias or 0].size == 0, NOT_SUPPORTED)
        require(product.bias_batch_stride >= 0, INVALID_VALUE)
        if product.epilogue & Does.BIAS_GRADIENT and self.d.batch_count > 1:
            require(product.bias_batch_stride > 0, NOT_SUPPORTED)

    def _check_aux(self) -> None:
        product = self.product
        granule = _MASK_GRANULE if product.epilogue & Does.BITS else _AUX_GRANULE
        require(product.epilogue_aux_ld >= self.d.rows and product.epilogue_aux_ld % granule == 0, NOT_SUPPORTED)
        stride = product.epilogue_aux_batch_stride
        require(stride >= 0 and stride % granule == 0, NOT_SUPPORTED)
        require(product.epilogue_aux_pointer % _AUX_ALIGNMENT == 0, NOT_SUPPORTED)
        if self.d.batch_count > 1 and not product.epilogue & Does.GRADIENT:
            require(stride > 0, NOT_SUPPORTED)
        require(product.epilogue_aux_data_type in self._aux_types(), INVALID_VALUE)

    def _aux_types(self) -> tuple[int, ...]:
        """Check the type of the auxiliary matrix; -1 means that it is not given."""
        if self.product.epilogue & Does.BITS:
            return (-1,)
        if self.d.type not in _FP8:
            return -1, self.d.type
        keeps_other = self.product.epilogue == Epilogue.CUBLASLT_EPILOGUE_GELU_AUX
        if not keeps_other or Type.CUDA_R_8F_E5M2 in self.types:
            return (-1,)
        return (-1, self.c.type, *((self.d.type,) if self.c.type == Type.CUDA_R_16F else ()))

    def _check_scales(self) -> None:
        """Check scales, and maxima of absolute values. They need elements of 8 bits; C may then have a scale, too."""
        product = self.product
        takes_scales = self.a.type in _FP8
        stores_aux = product.epilogue & Does.GELU and product.epilogue & Does.AUX and self.aux_type in _FP8
        for pointer, allowed in (
            (product.a_scale_pointer, takes_scales),
            (product.b_scale_pointer, takes_scales),
            (product.c_scale_pointer, takes_scales),
            (product.d_scale_pointer, self.d.type in _FP8),
            (product.amax_d_pointer, self.d.type in _FP8),
            (product.epilogue_aux_scale_pointer, stores_aux),
            (product.epilogue_aux_amax_pointer, stores_aux),
            (product.d_out_scale_pointer, False),
        ):
            require(allowed or not pointer, INVALID_VALUE)
        self._check_scale_modes()

    def _check_scale_modes(self) -> None:
        product = self.product
        scalar, outer = (
            ScaleMode.CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
            ScaleMode.CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
        )
        others = product.c_scale_mode, product.d_scale_mode, product.epilogue_aux_scale_mode, product.d_out_scale_mode
        require(all(mode == scalar for mode in others), NOT_SUPPORTED)
        modes = product.a_scale_mode, product.b_scale_mode
        allowed = self.a.type in _FP8 and self.d.type not in _FP8
        require(modes == (scalar, scalar) or (modes == (outer, outer) and allowed), NOT_SUPPORTED)

    # Checks of a call.

    def check_pointers(self, a: int | None, b: int | None, c: int | None, d: int | None) -> None:
        """Refuse missing and misaligned matrices, and a C that is D with another layout."""
        require(a and b and d, INVALID_VALUE)
        for address, layout in zip((a, b, c, d), self.layouts, strict=True):
            require((address or 0) % ELEMENT_TYPES[layout.type].size == 0, INVALID_VALUE)
            require((address or 0) % self.granule == 0, NOT_SUPPORTED)
        if c == d:
            apart = ("type", "ld", "strided_batch_offset")
            require(all(getattr(self.c, name) == getattr(self.d, name) for name in apart), INVALID_VALUE)
        does = self.product.epilogue
        require(self.product.bias_pointer or not does & (Does.BIAS | Does.BIAS_GRADIENT), INVALID_VALUE)
        require(self.product.epilogue_aux_pointer or not does & Does.AUX, INVALID_VALUE)

    def factors(self, alpha: int | None, beta: int | None) -> tuple[Factor, Factor]:
        """Return alpha and beta; those on the host are read now."""
        found = [self._factor(*each) for each in zip(_PLACES[self.product.pointer_mode], (alpha, beta), strict=True)]
        if self.product.scale_type == Type.CUDA_R_32I:
            require(all(factor.memory is not None or factor.known in (0, 1) for factor in found), NOT_SUPPORTED)
        return found[0], found[1]

    def _factor(self, place: int, address: int | None) -> Factor:
        if place == _ZERO:
            return Factor()
        require(address, INVALID_VALUE)
        element, at = ELEMENTS[self.product.scale_type], address or 0
        if place == _HOST:
            return Factor.on_host(element, at)
        if place == _DEVICE:
            return Factor.on_device(element, at)
        return Factor.on_device(element, at, self.d.rows, self.d.batch_count, self.product.alpha_vector_batch_stride)
