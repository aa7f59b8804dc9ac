"""Dense linear algebra by cuBLAS: its functions by name, and the settings of its handles."""

from __future__ import annotations

from ctypes import byref
from typing import TYPE_CHECKING, Any

from .calls import DEVICE_SCALARS, CallEngine, CallTable, Handles

if TYPE_CHECKING:
    from ..lanes import Lane, WorkerServices

# --- the records ------------------------------------------------------------------------------------------------------

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
BLAS = CallTable("blas", 6, _FUNCTIONS)

ATOMICS = 2
"""A flag: sums may use atomics. This is faster, and the bits may differ from run to run (`cublasSetAtomicsMode`)."""
MATH = 0b1100
"""The bits of the flags that select how products are computed (`cublasSetMathMode`)."""
MATH_MODES = {"default": 0, "pedantic": 2, "tf32": 3}
"""The values of `cublasMath_t` for these bits."""

_MODES = {
    "cublasSetPointerMode": DEVICE_SCALARS,
    "cublasSetAtomicsMode": ATOMICS,
    "cublasSetMathMode": MATH,
}
"""The functions that set a handle, each with the bits of the flags that it sets."""


def flags(*, device_scalars: bool = False, atomics: bool = False, math: str = "default") -> int:
    """Return the flags of a call."""
    return DEVICE_SCALARS * device_scalars | ATOMICS * atomics | MATH_MODES[math] * _unit(MATH)


def _unit(bits: int) -> int:
    """The lowest of these bits."""
    return bits & -bits


# --- the calls --------------------------------------------------------------------------------------------------------


class _Handles(Handles):
    def __init__(self, cublas: Any) -> None:
        self._cublas = cublas
        self._flags: dict[int, int] = {}
        """The settings of each handle. A setting that failed halfway is missing, because it is unknown."""

    def create(self, lane: Lane) -> Any:
        handle = self._cublas.cublasHandle_t()
        self._cublas.cublasCreate(byref(handle))
        try:
            self._cublas.cublasSetStream(handle, lane.stream)
        except BaseException:
            self._cublas.cublasDestroy.status(handle)
            raise
        self._flags[handle.value] = 0
        return handle

    def configure(self, handle: Any, flags: int) -> None:
        before = self._flags.pop(handle.value, ~flags)
        for setter, bits in _MODES.items():
            if (before ^ flags) & bits:
                getattr(self._cublas, setter)(handle, (flags & bits) // _unit(bits))
        self._flags[handle.value] = flags

    def destroy(self, handle: Any) -> None:
        self._flags.pop(handle.value, None)
        self._cublas.cublasDestroy(handle)


def blas_engine(services: WorkerServices) -> CallEngine:
    """The engine of cuBLAS. Nothing is loaded before its first call."""
    from atomr_cuda import cublas

    return CallEngine(services, BLAS, cublas, _Handles(cublas))
