"""Dense solvers: verbs of cuSOLVER on arrays that lie as numpy's do, under LAPACK's names and under numpy's.

In the order in which the files can be read: `types` and `plans` have what all verbs share, `factorizations` and
`spectra` the verbs of LAPACK, `numpy_front` what is made of them.
"""

from __future__ import annotations

from ..._calls import Awaited, Batched
from ...worker.engines.solver import SOLVER
from .numpy_front import NumpyVerbs

__all__ = ["BatchSolver", "Solver"]


class _SolverVerbs(NumpyVerbs):
    __slots__ = ()

    _table = SOLVER


class Solver(_SolverVerbs, Awaited):
    """Dense solvers on the device's compute lane: `dev.solver`.

    Functions that use up what they are given work on a copy unless they are told to overwrite it.

    Results are new arrays, or those given as `out`, which is returned then: of the result's shape and dtype, of any
    strides, sharing memory with no input; of several results a tuple or list, with None for each that is to be new. A
    result is computed where `out` lies as the library writes it, column by column or as a contiguous vector, and is
    copied there at the end otherwise. An `out` that does not fit raises `InvalidArgument`, and nothing is sent.

    Matrices are looked at for NaN and infinities beside the call, by a kernel that reads each of them once; nothing
    waits for it. What follows is said by each verb. ``check_finite=False`` leaves that out.

    Where a verb raises what it found in a matrix (`SingularMatrixError` and its like), `out` holds no result. Awaited,
    `solve`, `inv` and `lstsq` leave it as it was; every other verb, and every one in a batch, may have written to it.
    """

    __slots__ = ()


class BatchSolver(_SolverVerbs, Batched):
    """The verbs of `Solver` in a batch, without ``await``: `batch.solver`.

    What an ``info`` says of a call (`SingularMatrixError` and its like) is raised at the end of the batch.
    """

    __slots__ = ()
