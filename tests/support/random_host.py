"""Generators of cuRAND on the host, which need no GPU: they give the numbers that a generator on a device should."""

from __future__ import annotations

from ctypes import byref, c_void_p
from typing import Any

import numpy as np
import numpy.typing as npt

from atomr_cuda import curand
from atomr_trio import RandomGenerator
from atomr_trio.libraries.random.positions import KINDS, Place, drawn, even
from atomr_trio.libraries.random.programs import FUNCTIONS
from support import ON_GPU

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
        self._generator = c_void_p()
        curand.curandCreateGeneratorHost(byref(self._generator), KINDS[place.kind].number)
        self.bring(place)

    def bring(self, place: Place) -> None:
        """Go to a place of the same kind, wherever it stands."""
        kind = KINDS[place.kind]
        if kind.is_quasi:
            curand.curandSetQuasiRandomGeneratorDimensions(self._generator, place.dims)
        else:
            curand.curandSetPseudoRandomGeneratorSeed(self._generator, place.seed)
        curand.curandSetGeneratorOrdering(self._generator, kind.orderings[place.ordering])
        if kind.has_offset:
            curand.curandSetGeneratorOffset(self._generator, place.offset)
        curand.curandGenerateSeeds(self._generator)
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


_DRAWS = {"bits_uint32": "words", "bits_uint64": "long", "poisson_uint32": "poisson"}


class Shadow:
    """What a generator on a device should give: one on the host, which nothing ever happens to.

    It begins where that one stands.
    """

    def __init__(self, generator: RandomGenerator) -> None:
        self.place: Place = generator._state.place
        self._bounds = generator._bounds
        self._host = HostGenerator(self.place)

    def draw(self, name: str, count: int, *parameters: float) -> npt.NDArray[Any]:
        """Return the next numbers of a function, such as "normal_float32"."""
        function = FUNCTIONS[name]
        verb, _, bits = name.partition("_float")
        needed = even(self.place.kind, function.draw, count)
        numbers = self._host.draw(_DRAWS.get(name, f"{verb}{bits}"), needed, *parameters)
        lam = parameters[0] if verb == "poisson_uint32" else 0.0
        result = drawn(self.place, function.draw, needed, lam, self._bounds)
        if result.place != result.drawn:
            self._host = HostGenerator(result.place)
        self.place = result.place
        return numbers[:count]


def assert_drawn(found: npt.NDArray[Any], right: npt.NDArray[Any], name: str) -> None:
    """Check numbers of a device against those of the host, whose normals differ from a GPU's in their last bits."""
    if not ON_GPU or "normal" not in name:
        np.testing.assert_array_equal(found, right)
        return
    # Of 4 million of each kind on an H200, those in float32 differed by 2.9e-6 at most; in float64 by 3.0e-15, of the
    # quasi kinds by 4.5e-15 and of mtgp32 by 4.8e-7. The fast sine in float32 is off by 4e-7 times at most 6.7.
    # A float64 normal is a radius of at most 8.6 times a sine, and the host rounds the angle, which is below 2 pi, by
    # up to 4.4e-16: 3.8e-15 in all. Of 2.5 billion by Philox and XORWOW, 21 were above 3e-15 + 1e-15 |x|, by a tenth.
    within = 4e-6 if found.dtype == np.float32 else 1e-6 if "mtgp32" in name else 4e-15
    relative = 0.0 if found.dtype == np.float32 else 1e-15
    if name.startswith("lognormal"):
        found, right = np.log(found), np.log(right)
        within *= 2
    np.testing.assert_allclose(found, right, rtol=relative, atol=within)
