"""The registered libraries. Made by `make registered` from ``libraries/*/registration.py``: not to be edited.

Only names and strings are loaded with this file, on either side of the process boundary.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .._calls.batch_sender import BatchSender
    from .._generation.core import DeviceCore
    from .blas.verbs import BatchBlas, Blas
    from .blaslt.verbs import BatchBlasLt, BlasLt
    from .solver.verbs import BatchSolver, Solver

__all__ = ["BatchBlas", "BatchBlasLt", "BatchSolver", "Blas", "BlasLt", "Solver"]

FOLDERS: Final = ("blas", "blaslt", "lanes", "modules", "graphs", "solver")
"""The folders of the libraries that have engines, each behind those that it requires."""

ACTORS: Final = ("blas", "blaslt", "solver")
"""The names of the actors of libraries, which are also those of their engines and of their properties."""

HOMES: Final = {
    "libraries.blas.verbs": ("BatchBlas", "Blas"),
    "libraries.blaslt.verbs": ("BatchBlasLt", "BlasLt"),
    "libraries.solver.verbs": ("BatchSolver", "Solver"),
}
"""The module of each public name."""


class DeviceLibraries:
    """The properties of `Device` for the libraries."""

    _core: DeviceCore

    @functools.cached_property
    def blas(self) -> Blas:
        """Dense linear algebra (cuBLAS): `await dev.blas.gemm(a, b)`."""
        from .blas.verbs import Blas

        return Blas(self._core)

    @functools.cached_property
    def blaslt(self) -> BlasLt:
        """Products of matrices with epilogues (cuBLASLt): `await dev.blaslt.matmul(a, b, ...)`."""
        from .blaslt.verbs import BlasLt

        return BlasLt(self._core)

    @functools.cached_property
    def solver(self) -> Solver:
        """Factorizations, linear systems, eigenvalues, singular values (cuSOLVER): `await dev.solver.solve(a, b)`."""
        from .solver.verbs import Solver

        return Solver(self._core)


class BatchLibraries:
    """The properties of `Batch` for the libraries: the same verbs, without ``await``."""

    __slots__ = ("_libraries", "_library_arguments")

    def __init__(self, device: DeviceCore, sender: BatchSender) -> None:
        self._library_arguments = device, sender
        self._libraries: dict[str, Any] = {}

    def _make(self, folder: str, form: str) -> Any:
        verbs = importlib.import_module(f".{folder}.verbs", __package__)
        library = self._libraries[folder] = getattr(verbs, form)(*self._library_arguments)
        return library

    @property
    def blas(self) -> BatchBlas:
        """Dense linear algebra (cuBLAS): `batch.blas.gemm(a, b)`, done at the end of the batch."""
        library: BatchBlas = self._libraries.get("blas") or self._make("blas", "BatchBlas")
        return library

    @property
    def blaslt(self) -> BatchBlasLt:
        """Products of matrices with epilogues (cuBLASLt): `batch.blaslt.matmul(a, b, ...)`, done at the end of the batch."""
        library: BatchBlasLt = self._libraries.get("blaslt") or self._make("blaslt", "BatchBlasLt")
        return library

    @property
    def solver(self) -> BatchSolver:
        """Factorizations, linear systems, eigenvalues, singular values (cuSOLVER): `batch.solver.solve(a, b)`, done at the end of the batch."""
        library: BatchSolver = self._libraries.get("solver") or self._make("solver", "BatchSolver")
        return library
