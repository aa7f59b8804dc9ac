"""The simulated cuBLAS: its version, its handles, and their settings.

The computations are in ``level1`` and the files after it. The math mode rounds the inputs of products. The other
modes for speed have no effect here: they are kept and returned.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

from atomr_cuda import cublas
from atomr_cuda.cublas import cublasMath_t, cublasStatus_t
from atomr_cuda.library_types import cudaEmulationMantissaControl, cudaEmulationSpecialValuesSupport

from ...driver.device import DRIVER_VERSION
from ...driver.process import Process
from ..dense import Counterpart, Implementation, Statuses

counterpart: Counterpart = Counterpart(
    cublas.library,
    Statuses(
        not_initialized=cublasStatus_t.CUBLAS_STATUS_NOT_INITIALIZED,
        invalid_value=cublasStatus_t.CUBLAS_STATUS_INVALID_VALUE,
        execution_failed=cublasStatus_t.CUBLAS_STATUS_EXECUTION_FAILED,
        internal_error=cublasStatus_t.CUBLAS_STATUS_INTERNAL_ERROR,
        not_supported=cublasStatus_t.CUBLAS_STATUS_NOT_SUPPORTED,
    ),
)
entry: Callable[..., Callable[[Implementation], Implementation]] = counterpart.entry
require: Callable[..., None] = counterpart.require

VERSION = (DRIVER_VERSION // 1000, 1, 0)
"""The version: the oldest of its CUDA generation that has every function of the table."""

_WORKSPACE_ALIGNMENT = 256


@dataclass
class Handle:
    """The object that cublasCreate makes."""

    stream: int | None = None
    workspace: tuple[int, int] | None = None
    """The address and bytes of the workspace, if the caller has given one; nothing is ever written there."""
    modes: dict[str, Any] = field(default_factory=dict)
    """The settings that differ from the default, by their names."""

    def mode(self, name: str) -> Any:
        return self.modes.get(name, _MODES[name].default)


def the_handle(process: Process, number: int | None) -> Handle:
    """Return the handle behind a number, or refuse it."""
    return counterpart.handle(process, number, Handle)


@entry(cublas.cublasGetProperty)
def _get_property(process: Process, part: int, result: Any) -> None:
    require(result and 0 <= part < len(VERSION))
    result[0] = VERSION[part]


@entry(cublas.cublasGetCudartVersion)
def _get_cudart_version(process: Process) -> int:
    return DRIVER_VERSION


@entry(cublas.cublasCreate)
def _create(process: Process, result: Any) -> None:
    require(result)
    result[0] = counterpart.add_handle(process, Handle())


@entry(cublas.cublasDestroy)
def _destroy(process: Process, number: int | None) -> None:
    the_handle(process, number)
    counterpart.drop_handle(process, number)


@entry(cublas.cublasGetVersion)
def _get_version(process: Process, number: int | None, result: Any) -> None:
    the_handle(process, number)
    require(result)
    major, minor, patch = VERSION
    result[0] = major * 10000 + minor * 100 + patch


@entry(cublas.cublasSetStream)
def _set_stream(process: Process, number: int | None, stream: int | None) -> None:
    handle = the_handle(process, number)
    handle.stream, handle.workspace = stream, None


@entry(cublas.cublasGetStream)
def _get_stream(process: Process, number: int | None, result: Any) -> None:
    handle = the_handle(process, number)
    require(result)
    result[0] = handle.stream


@entry(cublas.cublasSetWorkspace)
def _set_workspace(process: Process, number: int | None, address: int | None, size: int) -> None:
    handle = the_handle(process, number)
    require((address or 0) % _WORKSPACE_ALIGNMENT == 0)
    handle.workspace = (address, size) if address else None


@dataclass(frozen=True)
class _Mode:
    """A setting of a handle: its default, and its allowed values."""

    default: Any
    allowed: Container[int] | None = None


_MATH = frozenset(mode | reduced for mode in cublasMath_t for reduced in (0, 16))
_COUNT = range(1 << 31)

# By the names that follow cublasSet and cublasGet.
_MODES = {
    "PointerMode": _Mode(0, frozenset(cublas.cublasPointerMode_t)),
    "AtomicsMode": _Mode(0, frozenset(cublas.cublasAtomicsMode_t)),
    "MathMode": _Mode(0, _MATH),
    "SmCountTarget": _Mode(0, _COUNT),
    "EmulationStrategy": _Mode(0, frozenset(cublas.cublasEmulationStrategy_t)),
    "EmulationSpecialValuesSupport": _Mode(
        int(cudaEmulationSpecialValuesSupport.CUDA_EMULATION_SPECIAL_VALUES_SUPPORT_DEFAULT), range(0x10000)
    ),
    "FixedPointEmulationMantissaControl": _Mode(0, frozenset(cudaEmulationMantissaControl)),
    "FixedPointEmulationMaxMantissaBitCount": _Mode(0, _COUNT),
    "FixedPointEmulationMantissaBitOffset": _Mode(0, range(-64, 64)),
    "FixedPointEmulationMantissaBitCountPointer": _Mode(None),
}


def _define_mode(name: str, mode: _Mode) -> None:
    @entry(getattr(cublas, f"cublasSet{name}"))
    def set_mode(process: Process, number: int | None, value: Any) -> None:
        handle = the_handle(process, number)
        require(mode.allowed is None or value in mode.allowed)
        handle.modes[name] = value

    @entry(getattr(cublas, f"cublasGet{name}"))
    def get_mode(process: Process, number: int | None, result: Any) -> None:
        handle = the_handle(process, number)
        require(result)
        result[0] = handle.mode(name)


for _name, _mode in _MODES.items():
    _define_mode(_name, _mode)
