"""The functions of cuBLAS that a record may name, and the flags of a call."""

from __future__ import annotations

from atomr_cuda.constants.cublas import CUBLAS_DEFAULT_MATH, CUBLAS_PEDANTIC_MATH, CUBLAS_TF32_TENSOR_OP_MATH

from ..._wire.records.calls import DEVICE_SCALARS, CallTable
from .registration import REGISTRATION

LETTERS = ("S", "D", "C", "Z")
"""The element types that the letters in function names stand for: single and double precision, real and complex."""


def _of(letters: str, *names: str, suffix: str = "_64") -> tuple[str, ...]:
    return tuple(f"cublas{letter}{name}{suffix}" for name in names for letter in letters.split())


def _of_all(*names: str) -> tuple[str, ...]:
    return _of("S D C Z", *names)


_FUNCTIONS = (
    *_of_all("axpy", "copy", "swap", "scal", "rot"),
    *_of_all("gemv", "trmv", "trsv", "gbmv", "symv", "syr", "syr2"),
    *_of_all("symm", "syrk", "syr2k", "trmm", "trsm", "trsmBatched", "geam", "dgmm"),
    *_of("C Z", "hemm", "herk", "her2k"),
    *("cublasGemmEx_64", "cublasGemmStridedBatchedEx_64", "cublasGemmBatchedEx_64"),
    *_of("S D", "dot", "rotm"),
    *_of("C Z", "dotu", "dotc"),
    *_of("S D Sc Dz", "nrm2", "asum"),
    *_of("Is Id Ic Iz", "amax", "amin"),
    *_of("Cs Zd", "scal", "rot"),
    *("cublasSrotg", "cublasDrotg", "cublasCrotg", "cublasZrotg", "cublasSrotmg", "cublasDrotmg"),
    *_of("S D", "ger", "sbmv"),
    *_of("C Z", "geru", "gerc", "hemv", "hbmv", "her", "her2"),
    *_of("S D C Z", "getrfBatched", "getrsBatched", suffix=""),
)
BLAS = CallTable(REGISTRATION.name, REGISTRATION.number, _FUNCTIONS, capturable=True)

ATOMICS = 2
"""A flag: sums may use atomics. This is faster, and the bits may differ from run to run (`cublasSetAtomicsMode`)."""
MATH = 0b1100
"""The bits of the flags that select how products are computed (`cublasSetMathMode`)."""
MATH_MODES = {"default": CUBLAS_DEFAULT_MATH, "pedantic": CUBLAS_PEDANTIC_MATH, "tf32": CUBLAS_TF32_TENSOR_OP_MATH}
"""The values of `cublasMath_t` for these bits."""

MODES = {
    "cublasSetPointerMode": DEVICE_SCALARS,
    "cublasSetAtomicsMode": ATOMICS,
    "cublasSetMathMode": MATH,
}
"""The functions that set a handle, each with the bits of the flags that it sets."""


def flags(*, device_scalars: bool = False, atomics: bool = False, math: str = "default") -> int:
    """Return the flags of a call."""
    return DEVICE_SCALARS * device_scalars | ATOMICS * atomics | MATH_MODES[math] * unit(MATH)


def unit(bits: int) -> int:
    """The lowest of these bits."""
    return bits & -bits
