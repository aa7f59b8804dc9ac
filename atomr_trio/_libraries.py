"""The mathematical libraries of a device and of a batch: one line of `LIBRARIES` and two properties for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from ._batch import Batch
    from ._device import Device
    from .actors.blas import BatchBlas, Blas
    from .actors.blaslt import BatchBlasLt, BlasLt
    from .actors.solver import BatchSolver, Solver

LIBRARIES: Final = ("blas", "blaslt", "solver")
"""The names of their actors, which are those of their engines."""


class DeviceLibraries:
    """What `Device` has of them."""

    @property
    def blas(self) -> Blas:
        """Dense linear algebra (cuBLAS): `await dev.blas.gemm(a, b)`."""
        from .actors.blas import Blas

        return Blas(cast("Device", self))

    @property
    def blaslt(self) -> BlasLt:
        """Products of matrices with all that is done to them (cuBLASLt): `await dev.blaslt.matmul(a, b, ...)`."""
        from .actors.blaslt import BlasLt

        return BlasLt(cast("Device", self))

    @property
    def solver(self) -> Solver:
        """Factorizations, linear systems, eigenvalues, singular values (cuSOLVER): `await dev.solver.solve(a, b)`."""
        from .actors.solver import Solver

        return Solver(cast("Device", self))


class BatchLibraries:
    """What `Batch` has of them: the same verbs, without ``await``."""

    __slots__ = ()

    @property
    def blas(self) -> BatchBlas:
        """Dense linear algebra (cuBLAS): `batch.blas.gemm(a, b)`, done at the end of the batch."""
        from .actors.blas import BatchBlas

        batch = cast("Batch", self)
        return BatchBlas(batch._device, batch)

    @property
    def blaslt(self) -> BatchBlasLt:
        """Products of matrices with all that is done to them (cuBLASLt): `batch.blaslt.matmul(a, b, ...)`."""
        from .actors.blaslt import BatchBlasLt

        batch = cast("Batch", self)
        return BatchBlasLt(batch._device, batch)

    @property
    def solver(self) -> BatchSolver:
        """Factorizations, linear systems, eigenvalues, singular values (cuSOLVER): `batch.solver.solve(a, b)`."""
        from .actors.solver import BatchSolver

        batch = cast("Batch", self)
        return BatchSolver(batch._device, batch)
