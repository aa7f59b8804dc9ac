"""A right call of each verb of the libraries, for tests that make it wrong in one place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any


def numbered(arguments: Iterable[Any]) -> Iterator[tuple[int | str, Any]]:
    """Arguments by their numbers, and by their names those of a dict."""
    for index, given in enumerate(arguments):
        yield from given.items() if isinstance(given, dict) else [(index, given)]


@contextlib.contextmanager
def noting(call: object) -> Iterator[None]:
    """Have what is raised tell of which call."""
    try:
        yield
    except BaseException as error:
        error.add_note(str(call))
        raise


VECTOR, MATRIX, PART, OTHER = (4,), (4, 4), (3, 4), (4, 5)
FACTORS = {"alpha": 1.0, "beta": 0.0}
MODE = {"compute": "pedantic"}
PRODUCT = {**FACTORS, "op_a": "N", "op_b": "N", "dtype": "float32", **MODE}

VERBS: dict[str, tuple[Any, ...]] = {
    "blas.axpy": (VECTOR, VECTOR, 1.0),
    "blas.copy": (VECTOR, VECTOR),
    "blas.swap": (VECTOR, VECTOR),
    "blas.scal": (VECTOR, 1.0),
    "blas.dot": (VECTOR, VECTOR, {"out": ()}),
    "blas.nrm2": (VECTOR, {"out": ()}),
    "blas.asum": (VECTOR, {"out": ()}),
    "blas.iamax": (VECTOR, {"out": ((), "int64")}),
    "blas.iamin": (VECTOR, {"out": ((), "int64")}),
    "blas.rot": (VECTOR, VECTOR, 1.0, 0.0),
    "blas.rotg": ((), ()),
    "blas.rotm": (VECTOR, VECTOR, (5,)),
    "blas.rotmg": ((), (), (), ()),
    "blas.gemv": (MATRIX, VECTOR, {**FACTORS, "op_a": "N", "out": VECTOR}),
    "blas.gbmv": (PART, VECTOR, 1, 1, {**FACTORS, "op_a": "N", "rows": 4, "out": VECTOR}),
    "blas.symv": (MATRIX, VECTOR, {**FACTORS, "out": VECTOR}),
    "blas.hemv": (MATRIX, VECTOR, {**FACTORS, "out": VECTOR}),
    "blas.sbmv": (PART, VECTOR, {**FACTORS, "out": VECTOR}),
    "blas.hbmv": (PART, VECTOR, {**FACTORS, "out": VECTOR}),
    "blas.ger": (VECTOR, VECTOR, MATRIX, 1.0),
    "blas.syr": (VECTOR, MATRIX, 1.0),
    "blas.her": (VECTOR, MATRIX, 1.0),
    "blas.syr2": (VECTOR, VECTOR, MATRIX, 1.0),
    "blas.her2": (VECTOR, VECTOR, MATRIX, 1.0),
    "blas.trmv": (MATRIX, VECTOR, {"op_a": "N", "out": VECTOR}),
    "blas.trsv": (MATRIX, VECTOR, {"op_a": "N", "out": VECTOR}),
    "blas.gemm": (PART, OTHER, {**PRODUCT, "out": (3, 5)}),
    "blas.gemm_batched": ([PART], [OTHER], {**PRODUCT, "out": [(3, 5)]}),
    "blas.symm": (MATRIX, OTHER, {**FACTORS, **MODE, "out": OTHER}),
    "blas.syrk": (MATRIX, {**FACTORS, **MODE, "op": "N", "out": MATRIX}),
    "blas.syr2k": (MATRIX, MATRIX, {**FACTORS, **MODE, "op": "N", "out": MATRIX}),
    "blas.trmm": (MATRIX, OTHER, {"alpha": 1.0, **MODE, "op_a": "N", "out": OTHER}),
    "blas.trsm": (MATRIX, OTHER, {"alpha": 1.0, **MODE, "op_a": "N", "out": OTHER}),
    "blas.trsm_batched": ([MATRIX], [OTHER], {"alpha": 1.0, **MODE, "op_a": "N", "out": [OTHER]}),
    "blas.geam": (PART, {"b": PART, **FACTORS, "op_a": "N", "op_b": "N", "out": PART}),
    "blas.dgmm": (PART, VECTOR, {"out": PART}),
    "blaslt.matmul": (
        PART,
        OTHER,
        {**PRODUCT, "beta": 1.0, "c": (3, 5), "out": (3, 5), "epilogue": "bias", "bias": (5,)},
    ),
    "blaslt.matmul with aux": ((12, 24), (24, 40), {"epilogue": "relu_aux", "aux": ((12, 16), "uint8")}),
    "blaslt.matmul with a gradient": ((12, 24), (24, 40), {"epilogue": "bgradb", "bias_gradient": (40,)}),
    "fft.fft": (MATRIX, 4, -1, "ortho", {"out": ((4, 4), "complex64"), "overwrite_x": False}),
    "fft.ifft": (MATRIX, 4, -1, "ortho", {"out": ((4, 4), "complex64"), "overwrite_x": False}),
    "fft.fft2": (MATRIX, {"norm": "ortho", "out": ((4, 4), "complex64"), "overwrite_x": False}),
    "fft.ifft2": (MATRIX, {"norm": "ortho", "out": ((4, 4), "complex64"), "overwrite_x": False}),
    "fft.fftn": (MATRIX, {"norm": "ortho", "out": ((4, 4), "complex64"), "overwrite_x": False}),
    "fft.ifftn": (MATRIX, {"norm": "ortho", "out": ((4, 4), "complex64"), "overwrite_x": False}),
    "fft.rfft": (MATRIX, 4, -1, "ortho", {"out": ((4, 3), "complex64"), "overwrite_x": False}),
    "fft.irfft": (MATRIX, 4, -1, "ortho", {"out": MATRIX, "overwrite_x": False}),
    "fft.rfft2": (MATRIX, {"norm": "ortho", "out": ((4, 3), "complex64"), "overwrite_x": False}),
    "fft.irfft2": (MATRIX, {"norm": "ortho", "out": (4, 6), "overwrite_x": False}),
    "fft.rfftn": (MATRIX, {"norm": "ortho", "out": ((4, 3), "complex64"), "overwrite_x": False}),
    "fft.irfftn": (MATRIX, {"norm": "ortho", "out": (4, 6), "overwrite_x": False}),
    "fft.hfft": (MATRIX, 4, -1, "ortho", {"out": MATRIX, "overwrite_x": False}),
    "fft.ihfft": (MATRIX, 4, -1, "ortho", {"out": ((4, 3), "complex64"), "overwrite_x": False}),
    "fft.fftshift": (MATRIX, 0),
    "fft.ifftshift": (MATRIX, 0),
    "fft.fftconvolve": (MATRIX, MATRIX, "same"),
    "solver.getrf": (MATRIX,),
    "solver.getrs": (MATRIX, (VECTOR, "int64"), OTHER, {"op": "N"}),
    "solver.getri": (MATRIX, (VECTOR, "int64")),
    "solver.potrf": (MATRIX,),
    "solver.potrs": (MATRIX, OTHER),
    "solver.potri": (MATRIX,),
    "solver.geqrf": (MATRIX,),
    "solver.orgqr": (MATRIX, VECTOR),
    "solver.ormqr": (MATRIX, VECTOR, OTHER, {"op": "N"}),
    "solver.gels": (MATRIX, OTHER),
    "solver.syevd": (MATRIX,),
    "solver.syevdx": (MATRIX, 0, 2),
    "solver.syevj": (MATRIX, {"max_sweeps": 9}),
    "solver.sygvd": (MATRIX, MATRIX, {"kind": 1}),
    "solver.gesvd": (MATRIX,),
    "solver.gesvdj": (MATRIX, {"max_sweeps": 9}),
    "solver.gesvda": (MATRIX, 2),
    "solver.solve": (MATRIX, OTHER),
    "solver.inv": (MATRIX,),
    "solver.lstsq": (MATRIX, OTHER),
    "solver.cholesky": (MATRIX,),
    "solver.qr": (MATRIX, {"mode": "reduced"}),
    "solver.eigh": (MATRIX,),
    "solver.eigvalsh": (MATRIX,),
    "solver.svd": (MATRIX,),
    "solver.det": (MATRIX,),
    "solver.slogdet": (MATRIX,),
}
"""A right call of each verb: a shape stands for an array of float32, or of the dtype beside it."""


def dtype_of(given: Any) -> tuple[tuple[int, ...], str]:
    """The shape and the dtype of an array that is stood for."""
    return given if given and isinstance(given[0], tuple) else (given, "float32")
