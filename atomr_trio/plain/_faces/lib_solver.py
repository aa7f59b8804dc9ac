"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._twins import Awaits, Enqueues
from .lib_solver_factorizations import FactorizationVerbs
from .lib_solver_numpy_front import NumpyVerbs
from .lib_solver_spectra import SpectrumVerbs

if TYPE_CHECKING:
    import atomr_trio


class BatchSolver(Enqueues, NumpyVerbs, FactorizationVerbs, SpectrumVerbs):
    """The verbs of `Solver` in a batch, without waiting: `batch.solver`.

    Errors from an ``info`` (`SingularMatrixError` and its like) are raised at the end of the batch.
    """

    __slots__ = ()

    @property
    def awaited(self) -> atomr_trio.BatchSolver:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.BatchSolver = self._awaited
        return value


class Solver(Awaits, NumpyVerbs, FactorizationVerbs, SpectrumVerbs):
    """Dense solvers on the device's compute lane: `dev.solver`.

    Functions that destroy their input work on a copy unless they are told to overwrite it.

    Results are new arrays, or the arrays given as `out`, which are then returned. An `out` has the result's shape and
    dtype, may have any strides, and shares memory with no input. For several results it is a tuple or list, with None
    for each new array. A result is computed in `out` if that lies as the library writes it, column by column or as a
    contiguous vector; otherwise it is copied there at the end. An `out` that does not fit raises `InvalidArgument`, and
    nothing is sent.

    Beside the call, a kernel reads each matrix once and looks for NaN and infinities; nothing waits for it but an
    iteration, which might not end. Each verb says what follows. ``check_finite=False`` leaves the look out.

    If a verb raises an error about a matrix (`SingularMatrixError` and its like), `out` holds no result. Awaited,
    `solve`, `inv` and `lstsq` leave it unchanged; every other verb, and every verb of a batch, may have written to it.
    """

    __slots__ = ()

    @property
    def awaited(self) -> atomr_trio.Solver:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.Solver = self._awaited
        return value
