"""Dense solvers: verbs of cuSOLVER on arrays in numpy's order, under LAPACK's names and under numpy's.

The files, in the order in which they can be read: `types` and `plans` have the shared parts, `factorizations` and
`spectra` the verbs of LAPACK, `numpy_front` the verbs of numpy that are made of them.
"""

from __future__ import annotations

from ..._calls.verbs import Awaited, Batched
from .numpy_front import NumpyVerbs
from .records import SOLVER

__all__ = ["BatchSolver", "Solver"]


class _SolverVerbs(NumpyVerbs):
    __slots__ = ()

    _table = SOLVER


class Solver(_SolverVerbs, Awaited):
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


class BatchSolver(_SolverVerbs, Batched):
    """The verbs of `Solver` in a batch, without ``await``: `batch.solver`.

    Errors from an ``info`` (`SingularMatrixError` and its like) are raised at the end of the batch.
    """

    __slots__ = ()
