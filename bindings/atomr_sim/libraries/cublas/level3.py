"""Products of matrices in the simulated cuBLAS. Signatures are described in ``calls``.

A product is computed in the accumulator type of the call's arithmetic, and rounded once when it is stored. For the fast
arithmetics the inputs are rounded to the numbers that tensor cores multiply.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from atomr_cuda import cublas
from atomr_cuda.cublas import cublasComputeType_t as C, cublasGemmAlgo_t, cublasMath_t
from atomr_cuda.library_types import cudaDataType as T

from ..._status import Refused
from ..dense import ELEMENTS, Element, triangle
from .calls import Operation, operation, read_signature
from .handle import counterpart, entry, require, the_handle
from .matrices import combined, real_diagonal, scaled, symmetric, transposed
from .triangular import triangular

if TYPE_CHECKING:
    from ...driver.process import Process
    from ...engine.memory import Array


# The arithmetic of products.

# The table of cublasGemmEx: the types of A and B, and of C, that an arithmetic multiplies, and the type of the factors.
# Other combinations are not supported.
_SINGLE = {(T.CUDA_R_32F, T.CUDA_R_32F): T.CUDA_R_32F, (T.CUDA_C_32F, T.CUDA_C_32F): T.CUDA_C_32F}
_DOUBLE = {(T.CUDA_R_64F, T.CUDA_R_64F): T.CUDA_R_64F, (T.CUDA_C_64F, T.CUDA_C_64F): T.CUDA_C_64F}
_MIXED = {
    (T.CUDA_R_16BF, T.CUDA_R_16BF): T.CUDA_R_32F,
    (T.CUDA_R_16F, T.CUDA_R_16F): T.CUDA_R_32F,
    (T.CUDA_R_8I, T.CUDA_R_32F): T.CUDA_R_32F,
    (T.CUDA_R_16BF, T.CUDA_R_32F): T.CUDA_R_32F,
    (T.CUDA_R_16F, T.CUDA_R_32F): T.CUDA_R_32F,
    (T.CUDA_C_8I, T.CUDA_C_32F): T.CUDA_C_32F,
} | _SINGLE
_HALF = {(T.CUDA_R_16F, T.CUDA_R_16F): T.CUDA_R_16F}
_INTEGER = {(T.CUDA_R_8I, T.CUDA_R_32I): T.CUDA_R_32I}

SUPPORTED: dict[int, dict[tuple[T, T], T]] = {
    C.CUBLAS_COMPUTE_16F: _HALF,
    C.CUBLAS_COMPUTE_16F_PEDANTIC: _HALF,
    C.CUBLAS_COMPUTE_32I: _INTEGER,
    C.CUBLAS_COMPUTE_32I_PEDANTIC: _INTEGER,
    C.CUBLAS_COMPUTE_32F: _MIXED,
    C.CUBLAS_COMPUTE_32F_PEDANTIC: _MIXED,
    C.CUBLAS_COMPUTE_32F_FAST_16F: _SINGLE,
    C.CUBLAS_COMPUTE_32F_FAST_16BF: _SINGLE,
    C.CUBLAS_COMPUTE_32F_FAST_TF32: _SINGLE,
    C.CUBLAS_COMPUTE_32F_EMULATED_16BFX9: _SINGLE,
    C.CUBLAS_COMPUTE_64F: _DOUBLE,
    C.CUBLAS_COMPUTE_64F_PEDANTIC: _DOUBLE,
    C.CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT: _DOUBLE,
}


def _product_types(said: Mapping[str, int]) -> dict[str, Element]:
    """Return the element types of a typed product, or refuse them."""
    factor = SUPPORTED.get(said["compute"], {}).get((T(said["A"]), T(said["C"]))) if said["A"] == said["B"] else None
    if factor is None:
        raise Refused(counterpart.statuses.not_supported)
    return {name: ELEMENTS[said[name]] for name in "ABC"} | dict.fromkeys(("alpha", "beta"), ELEMENTS[factor])


def _to_tf32(values: Array) -> Array:
    """Round single precision to 10 bits of mantissa, to nearest, ties away from zero."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(values), rounded, values)


def _through(kind: T) -> Callable[[Array], Array]:
    element = ELEMENTS[kind]
    return lambda values: element.widen(element.round(values)).astype(np.float32)


# The rounding of single precision before an arithmetic multiplies it.
_ROUNDING: dict[int, Callable[[Array], Array]] = {
    C.CUBLAS_COMPUTE_32F_FAST_TF32: _to_tf32,
    C.CUBLAS_COMPUTE_32F_FAST_16F: _through(T.CUDA_R_16F),
    C.CUBLAS_COMPUTE_32F_FAST_16BF: _through(T.CUDA_R_16BF),
}
# The arithmetic that the math mode of a handle selects for a product in single precision that names none, or names the
# plain one.
_BY_MATH_MODE: dict[int, int] = {
    cublasMath_t.CUBLAS_TENSOR_OP_MATH: C.CUBLAS_COMPUTE_32F_FAST_16F,
    cublasMath_t.CUBLAS_TF32_TENSOR_OP_MATH: C.CUBLAS_COMPUTE_32F_FAST_TF32,
}
_REDUCED_PRECISION_BIT = cublasMath_t.CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION


def _arithmetic(call: Any) -> int:
    named = getattr(call, "compute", C.CUBLAS_COMPUTE_32F)
    if named != C.CUBLAS_COMPUTE_32F:
        return int(named)
    return _BY_MATH_MODE.get(call.math_mode & ~_REDUCED_PRECISION_BIT, named)


def _rounded(values: Array, arithmetic: int) -> Array:
    """Return inputs as an arithmetic multiplies them; the parts of a complex number are rounded separately."""
    rounding = _ROUNDING.get(arithmetic)
    if rounding is None or values.dtype not in (np.float32, np.complex64):
        return values
    if values.dtype == np.float32:
        return rounding(values)
    result: Array = np.empty_like(values)
    result.real, result.imag = rounding(values.real), rounding(values.imag)
    return result


def multiply(a: Array, b: Array, arithmetic: int, factor: np.dtype[Any]) -> Array:
    """Return a b in an arithmetic, as numbers of the type of its factors."""
    if factor.kind == "i":
        # The products of bytes and their sums are exact in double precision; an overflow wraps around.
        return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64).astype(factor)
    product = _rounded(a, arithmetic).astype(factor, copy=False) @ _rounded(b, arithmetic).astype(factor, copy=False)
    if arithmetic in (C.CUBLAS_COMPUTE_16F, C.CUBLAS_COMPUTE_16F_PEDANTIC):
        return product.astype(np.float16).astype(factor)
    return product


# General products.

_A, _B = "(m/k@transa,k/m@transa)", "(k/n@transb,n/k@transb)"
_SIZES = "transa transb m n k"


_ONE = f"{_SIZES} alpha A{_A}! B{_B}! beta C(m,n)! compute algorithm"
_BATCH = f"{_SIZES} alpha A*{_A}! B*{_B}! beta C*(m,n)! batch compute algorithm"
_STRIDED = f"{_SIZES} alpha A+{_A}! B+{_B}! beta C+(m,n)! batch compute algorithm"


def _check_bytes(given: Any) -> None:
    """Bytes are multiplied four at a time."""
    if given.compute in (C.CUBLAS_COMPUTE_32I, C.CUBLAS_COMPUTE_32I_PEDANTIC):
        numbers = (number or 0 for each in (given.A, given.B) for number in (each.value, each.step))
        require(all(number % 4 == 0 for number in numbers), counterpart.statuses.not_supported)


@operation("cublas{}gemm_64", "S D C Z", f"{_SIZES} alpha A{_A} B{_B} beta C(m,n)")
@operation("cublasGemmEx_64", _product_types, _ONE, check=_check_bytes)
@operation("cublasGemmBatchedEx_64", _product_types, _BATCH, check=_check_bytes)
@operation("cublasGemmStridedBatchedEx_64", _product_types, _STRIDED, check=_check_bytes)
def gemm(call: Any) -> None:
    """C = alpha op(A) op(B) + beta C."""

    def product() -> Array:
        a, b = transposed(call.A.read(), call.transa), transposed(call.B.read(), call.transb)
        return multiply(a, b, _arithmetic(call), np.asarray(call.alpha).dtype)

    call.C.write(combined(call.alpha, product, call.beta, call.C.read))


_GROUP = Operation(read_signature(_BATCH), _product_types, gemm, _check_bytes)


@entry(cublas.cublasGemmGroupedBatchedEx_64)
def _gemm_grouped(process: Process, number: int | None, *arguments: Any) -> None:
    """Each group is a batch with its own sizes and factors; the third argument from the end is the number of groups."""
    handle = the_handle(process, number)
    require(not handle.mode("PointerMode"), counterpart.statuses.not_supported)
    require(arguments[-3] >= 0)
    batches = [_GROUP.bound(process, handle, group) for group in _groups(*arguments)]
    for batch in batches:
        _GROUP.submit(process, handle, batch)


def _groups(*arguments: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the arguments of each group's batch: host arrays at the group, tables of addresses at its beginning."""
    *operations, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc, count, sizes, compute = arguments
    words = [(ctypes.c_int * count).from_address(each) for each in operations]
    m, n, k, lda, ldb, ldc, sizes = (
        (ctypes.c_int64 * count).from_address(each) for each in (m, n, k, lda, ldb, ldc, sizes)
    )
    factor = _product_types({"A": a_type, "B": b_type, "C": c_type, "compute": compute})["alpha"].size
    first = 0
    for at in range(count):
        yield (
            *(each[at] for each in (*words, m, n, k)),
            alpha + at * factor,
            *(a + first * 8, a_type, lda[at], b + first * 8, b_type, ldb[at]),
            beta + at * factor,
            *(c + first * 8, c_type, ldc[at], sizes[at], compute, cublasGemmAlgo_t.CUBLAS_GEMM_DEFAULT),
        )
        first += sizes[at]


# Symmetric and Hermitian matrices.


def _product(call: Any, a: Array, b: Array) -> Array:
    """Return a b in the arithmetic that the math mode of the handle selects."""
    return multiply(a, b, _arithmetic(call), a.dtype)


@operation("cublas{}symm_64", "S D C Z", "side uplo m n alpha A(m/n@side,m/n@side) B(m,n) beta C(m,n)")
@operation("cublas{}hemm_64", "C Z", "side uplo m n alpha A(m/n@side,m/n@side) B(m,n) beta C(m,n)", hermitian=True)
def _symm(call: Any, hermitian: bool = False) -> None:
    def product() -> Array:
        a, b = symmetric(call.A.read(), call.uplo == 0, hermitian), call.B.read()
        return _product(call, b, a) if call.side else _product(call, a, b)

    call.C.write(combined(call.alpha, product, call.beta, call.C.read))


def _rank_k(words: str, operands: str) -> str:
    """Return the signature of an update of one triangle of C."""
    return f"uplo trans={words} n k {operands} C(n,n)"


_FACTOR = "(n/k@trans,k/n@trans)"


@operation("cublas{}syrk_64", "S D", _rank_k("NTC", f"alpha A{_FACTOR} beta"))
@operation("cublas{}syrk_64", "C Z", _rank_k("NT", f"alpha A{_FACTOR} beta"))
@operation("cublas{}herk_64", "C Z", _rank_k("NC", f"alpha:R A{_FACTOR} beta:R"), hermitian=True)
def _syrk(call: Any, hermitian: bool = False) -> None:
    def product() -> Array:
        a = transposed(call.A.read(), call.trans)
        return scaled(call.alpha, _product(call, a, transposed(a, 2 if hermitian else 1)))

    _update(call, product, hermitian)


@operation("cublas{}syrkx_64", "S D", _rank_k("NTC", f"alpha A{_FACTOR} B{_FACTOR} beta"))
@operation("cublas{}syrkx_64", "C Z", _rank_k("NT", f"alpha A{_FACTOR} B{_FACTOR} beta"))
@operation("cublas{}herkx_64", "C Z", _rank_k("NC", f"alpha A{_FACTOR} B{_FACTOR} beta:R"), hermitian=True)
@operation("cublas{}syr2k_64", "S D", _rank_k("NTC", f"alpha A{_FACTOR} B{_FACTOR} beta"), twice=True)
@operation("cublas{}syr2k_64", "C Z", _rank_k("NT", f"alpha A{_FACTOR} B{_FACTOR} beta"), twice=True)
@operation("cublas{}her2k_64", "C Z", _rank_k("NC", f"alpha A{_FACTOR} B{_FACTOR} beta:R"), hermitian=True, twice=True)
def _syr2k(call: Any, hermitian: bool = False, twice: bool = False) -> None:
    flip = 2 if hermitian else 1

    def product() -> Array:
        a, b = transposed(call.A.read(), call.trans), transposed(call.B.read(), call.trans)
        half = scaled(call.alpha, _product(call, a, transposed(b, flip)))
        return half + transposed(half, flip) if twice else half

    _update(call, product, hermitian)


def _update(call: Any, product: Callable[[], Array], hermitian: bool) -> None:
    """Write one triangle of product + beta C; the diagonal of a Hermitian matrix is real, before and after."""
    if (call.alpha == 0 or call.k == 0) and call.beta == 1:
        return
    target = (lambda: real_diagonal(call.C.read())) if hermitian else call.C.read
    total = combined(1 if call.alpha != 0 else 0, product, call.beta, target)
    whole = np.broadcast_to(total, (call.n, call.n)).copy()
    call.C.write(real_diagonal(whole) if hermitian else whole, triangle(call.n, call.uplo == 0))


# Triangular matrices.

_TRIANGLE = "side uplo trans diag m n alpha A{many}(m/n@side,m/n@side) B{many}(m,n)"


def _of_triangle(call: Any, routine: str) -> Any:
    """Return alpha op(A) B or similar; zero when alpha is zero, and then neither is read."""
    if call.alpha == 0:
        return 0
    arithmetic = _arithmetic(call)
    a, b = _rounded(call.A.read(), arithmetic), scaled(call.alpha, _rounded(call.B.read(), arithmetic))
    return triangular(routine, a, b, call.uplo == 0, call.trans, call.diag == 1, right=call.side == 1)


@operation("cublas{}trmm_64", "S D C Z", f"{_TRIANGLE.format(many='')} C(m,n)")
def _trmm(call: Any) -> None:
    call.C.write(_of_triangle(call, "trmm"))


@operation("cublas{}trsm_64", "S D C Z", _TRIANGLE.format(many=""))
@operation("cublas{}trsmBatched_64", "S D C Z", f"{_TRIANGLE.format(many='*')} batch")
def _trsm(call: Any) -> None:
    call.B.write(_of_triangle(call, "trsm"))


# Sums of matrices, and diagonal ones.


@operation(
    "cublas{}geam_64",
    "S D C Z",
    "transa transb m n alpha A(m/n@transa,n/m@transa) beta B(m/n@transb,n/m@transb) C(m,n)",
)
def _geam(call: Any) -> None:
    # As seen on an H200, where complex infinities become NaN by a factor of one, too.
    terms = ((call.alpha, call.A, call.transa), (call.beta, call.B, call.transb))
    products = [factor * transposed(matrix.read(), word) for factor, matrix, word in terms if factor != 0]
    call.C.write(sum(products[1:], products[0]) if products else 0)


@operation("cublas{}dgmm_64", "S D C Z", "mode m n A(m,n) x(m/n@mode) C(m,n)")
def _dgmm(call: Any) -> None:
    x = call.x.read()
    call.C.write(call.A.read() * (x if call.mode else x[:, np.newaxis]))
