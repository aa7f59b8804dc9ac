"""Generators of cuRAND on the host, which need no GPU: they give the numbers that a generator on a device should."""

from __future__ import annotations

from ctypes import byref, c_void_p
from typing import Any

import numpy as np
import numpy.typing as npt

from atomr_cuda import curand
from atomr_trio.libraries.random.positions import KINDS, Place

DTYPES = {
    "words": np.uint32,
    "long": np.uint64,
    "uniform32": np.float32,
    "uniform64": np.float64,
    "normal32": np.float32,
    "normal64": np.float64,
    "lognormal32": np.float32,
    "lognormal64": np.float64,
    "poisson": np.uint32,
}
"""The dtype of the numbers of each draw."""
_FUNCTIONS = {
    "words": curand.curandGenerate,
    "long": curand.curandGenerateLongLong,
    "uniform32": curand.curandGenerateUniform,
    "uniform64": curand.curandGenerateUniformDouble,
    "normal32": curand.curandGenerateNormal,
    "normal64": curand.curandGenerateNormalDouble,
    "lognormal32": curand.curandGenerateLogNormal,
    "lognormal64": curand.curandGenerateLogNormalDouble,
    "poisson": curand.curandGeneratePoisson,
}


class HostGenerator:
    """A generator of cuRAND on the host, which begins at a place."""

    def __init__(self, place: Place) -> None:
        kind = KINDS[place.kind]
        self._generator = c_void_p()
        curand.curandCreateGeneratorHost(byref(self._generator), kind.number)
        if kind.is_quasi:
            curand.curandSetQuasiRandomGeneratorDimensions(self._generator, place.dims)
        else:
            curand.curandSetPseudoRandomGeneratorSeed(self._generator, place.seed)
        curand.curandSetGeneratorOrdering(self._generator, kind.orderings[place.ordering])
        if kind.has_offset:
            curand.curandSetGeneratorOffset(self._generator, place.offset)
        for entry in place.record:
            self.draw(entry.draw, entry.numbers, entry.lam)

    def draw(self, draw: str, count: int, *parameters: float) -> npt.NDArray[Any]:
        """Return the next numbers. `parameters` are the mean and the deviation, by default 0 and 1, or lambda."""
        if "normal" in draw:
            parameters = parameters if len(parameters) == 2 else (0.0, 1.0)
        elif draw != "poisson":
            parameters = ()
        numbers = np.zeros(count, DTYPES[draw])
        _FUNCTIONS[draw](self._generator, numbers.ctypes.data, count, *parameters)
        return numbers

    def __del__(self) -> None:
        curand.curandDestroyGenerator(self._generator)
