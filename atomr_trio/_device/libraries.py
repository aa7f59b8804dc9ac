"""The mathematical libraries of a device and of a batch: one line of `LIBRARIES` and two properties for each."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .._calls.batch_sender import BatchSender
    from .._generation.core import DeviceCore
    from ..libraries.blas.verbs import BatchBlas, Blas
    from ..libraries.blaslt.verbs import BatchBlasLt, BlasLt
    from ..libraries.solver.verbs import BatchSolver, Solver

LIBRARIES: Final = ("blas", "blaslt", "solver")
"""The names of their actors, which are also those of their engines."""


class DeviceLibraries:
    """The properties of `Device` for the libraries."""

    _core: DeviceCore

    @functools.cached_property
    def blas(self) -> Blas:
        """Dense linear algebra (cuBLAS): `await dev.blas.gemm(a, b)`."""
        from ..libraries.blas.verbs import Blas

        return Blas(self._core)

    @functools.cached_property
    def blaslt(self) -> BlasLt:
        """Products of matrices with epilogues (cuBLASLt): `await dev.blaslt.matmul(a, b, ...)`."""
        from ..libraries.blaslt.verbs import BlasLt

        return BlasLt(self._core)

    @functools.cached_property
    def solver(self) -> Solver:
        """Factorizations, linear systems, eigenvalues, singular values (cuSOLVER): `await dev.solver.solve(a, b)`."""
        from ..libraries.solver.verbs import Solver

        return Solver(self._core)


class BatchLibraries:
    """The properties of `Batch` for the libraries: the same verbs, without ``await``."""

    __slots__ = ("_libraries", "_library_arguments")

    def __init__(self, device: DeviceCore, sender: BatchSender) -> None:
        self._library_arguments = device, sender
        self._libraries: dict[str, Any] = {}

    def _make(self, name: str, form: str) -> Any:
        verbs = importlib.import_module(f"..libraries.{name}.verbs", __package__)
        library = self._libraries[name] = getattr(verbs, form)(*self._library_arguments)
        return library

    @property
    def blas(self) -> BatchBlas:
        """Dense linear algebra (cuBLAS): `batch.blas.gemm(a, b)`, done at the end of the batch."""
        library: BatchBlas = self._libraries.get("blas") or self._make("blas", "BatchBlas")
        return library

    @property
    def blaslt(self) -> BatchBlasLt:
        """Products of matrices with epilogues (cuBLASLt): `batch.blaslt.matmul(a, b, ...)`."""
        library: BatchBlasLt = self._libraries.get("blaslt") or self._make("blaslt", "BatchBlasLt")
        return library

    @property
    def solver(self) -> BatchSolver:
        """Factorizations, linear systems, eigenvalues, singular values (cuSOLVER): `batch.solver.solve(a, b)`."""
        library: BatchSolver = self._libraries.get("solver") or self._make("solver", "BatchSolver")
        return library
