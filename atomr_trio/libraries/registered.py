"""The registered libraries. Made by `make registered` from ``libraries/*/registration.py``: not to be edited.

Only names and strings are loaded with this file, on either side of the process boundary.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .._calls.batch_sender import BatchSender
    from .._calls.recorded import CallRecorder
    from .._generation.core import DeviceCore
    from .blas.verbs import BatchBlas, Blas, RecordedBlas
    from .blaslt.verbs import BatchBlasLt, BlasLt, RecordedBlasLt
    from .fft.verbs import BatchFft, Fft, RecordedFft
    from .random.verbs import BatchRandom, Random, RecordedRandom
    from .solver.verbs import BatchSolver, Solver

__all__ = [
    "BatchBlas",
    "BatchBlasLt",
    "BatchFft",
    "BatchRandom",
    "BatchSolver",
    "Blas",
    "BlasLt",
    "Fft",
    "Random",
    "RecordedBlas",
    "RecordedBlasLt",
    "RecordedFft",
    "RecordedRandom",
    "Solver",
]

FOLDERS: Final = ("blas", "blaslt", "fft", "lanes", "modules", "graphs", "nccl", "random", "solver")
"""The folders of the libraries that have engines, each behind those that it requires."""

ACTORS: Final = ("blas", "blaslt", "fft", "random", "solver")
"""The names of the actors of libraries, which are also those of their engines and of their properties."""

RECORDED: Final = ("blas", "blaslt", "fft", "random")
"""The names of the properties of a recorder of graphs: the libraries whose calls can be captured."""

HOMES: Final[dict[str, tuple[str, ...]]] = {
    "libraries.blas.verbs": ("BatchBlas", "Blas", "RecordedBlas"),
    "libraries.blaslt.verbs": ("BatchBlasLt", "BlasLt", "RecordedBlasLt"),
    "libraries.fft.verbs": ("BatchFft", "Fft", "RecordedFft"),
    "libraries.random.verbs": ("BatchRandom", "Random", "RecordedRandom"),
    "libraries.solver.verbs": ("BatchSolver", "Solver"),
}
"""The module of each public name."""


@functools.cache
def _verbs(folder: str) -> Any:
    """Return the module of a library's verbs."""
    return importlib.import_module(f".{folder}.verbs", __package__)


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
    def fft(self) -> Fft:
        """Fourier transforms (cuFFT): `await dev.fft.rfft(x)`."""
        from .fft.verbs import Fft

        return Fft(self._core)

    @functools.cached_property
    def random(self) -> Random:
        """Random numbers (cuRAND): `await dev.random.normal(size=1000)`."""
        from .random.verbs import Random

        return Random(self._core)

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
        library = self._libraries[folder] = getattr(_verbs(folder), form)(*self._library_arguments)
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
    def fft(self) -> BatchFft:
        """Fourier transforms (cuFFT): `batch.fft.rfft(x)`, done at the end of the batch."""
        library: BatchFft = self._libraries.get("fft") or self._make("fft", "BatchFft")
        return library

    @property
    def random(self) -> BatchRandom:
        """Random numbers (cuRAND): `batch.random.normal(size=1000)`, done at the end of the batch."""
        library: BatchRandom = self._libraries.get("random") or self._make("random", "BatchRandom")
        return library

    @property
    def solver(self) -> BatchSolver:
        """Factorizations, linear systems, eigenvalues, singular values (cuSOLVER): `batch.solver.solve(a, b)`, done at the end of the batch."""
        library: BatchSolver = self._libraries.get("solver") or self._make("solver", "BatchSolver")
        return library


class RecorderLibraries:
    """The properties of `GraphRecorder` for the libraries whose calls can be captured: the same verbs, recorded."""

    __slots__ = ("_libraries", "_library_arguments")

    def __init__(self, device: DeviceCore, recorder: CallRecorder) -> None:
        self._library_arguments = device, recorder
        self._libraries: dict[str, Any] = {}

    def _make(self, folder: str, form: str) -> Any:
        library = self._libraries[folder] = getattr(_verbs(folder), form)(*self._library_arguments)
        return library

    @property
    def blas(self) -> RecordedBlas:
        """Dense linear algebra (cuBLAS): `graph.blas.gemm(a, b)`, done with each launch of the graph."""
        library: RecordedBlas = self._libraries.get("blas") or self._make("blas", "RecordedBlas")
        return library

    @property
    def blaslt(self) -> RecordedBlasLt:
        """Products of matrices with epilogues (cuBLASLt): `graph.blaslt.matmul(a, b, ...)`, done with each launch of the graph."""
        library: RecordedBlasLt = self._libraries.get("blaslt") or self._make("blaslt", "RecordedBlasLt")
        return library

    @property
    def fft(self) -> RecordedFft:
        """Fourier transforms (cuFFT): `graph.fft.rfft(x)`, done with each launch of the graph."""
        library: RecordedFft = self._libraries.get("fft") or self._make("fft", "RecordedFft")
        return library

    @property
    def random(self) -> RecordedRandom:
        """Random numbers (cuRAND): `graph.random.normal(size=1000)`, done with each launch of the graph."""
        library: RecordedRandom = self._libraries.get("random") or self._make("random", "RecordedRandom")
        return library
