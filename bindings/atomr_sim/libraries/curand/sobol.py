"""Sobol's numbers of 32 bits by scipy, in the order in which the library gives them: one dimension after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .philox import scaled, uniform32

if TYPE_CHECKING:
    from ...engine.memory import Array
    from .kinds import Draw, Settings


class SobolModel:
    """A generator. Its offset is a number of points, and it goes through all of them."""

    def __init__(self, settings: Settings) -> None:
        from scipy.stats import qmc  # type: ignore[import-untyped, unused-ignore]

        self._dimensions = settings.dimensions
        self._engine = qmc.Sobol(settings.dimensions, scramble=False, bits=32)
        self._ahead = self._engine.random(1)
        """The next point. The first one is taken at once: without it scipy warns of counts that are no power of 2."""
        self._skip(settings.offset)

    def _skip(self, points: int) -> None:
        if points:
            self._engine.fast_forward(points - 1)
            self._ahead = self._engine.random(1)

    @staticmethod
    def draws(draw: Draw) -> bool:
        """Tell whether the model has a function."""
        return not draw.is_poisson

    def draw(self, draw: Draw, count: int, parameters: tuple[float, ...]) -> Array:
        """The next numbers, as an array of shape (count,)."""
        from scipy.special import ndtri  # type: ignore[import-untyped, unused-ignore]

        following = self._engine.random(count // self._dimensions)
        points = np.concatenate((self._ahead, following))
        self._ahead = points[-1:]
        words = (points[:-1].T.reshape(-1) * 2.0**32).astype(np.uint32)
        if draw.is_normal:
            with np.errstate(all="ignore"):
                return scaled(draw, ndtri(words * 2.0**-32 + 2.0**-33).astype(draw.dtype), parameters)
        if draw.name == "curandGenerateUniformDouble":
            return words * 2.0**-32 + 2.0**-32
        return uniform32(words) if draw.name == "curandGenerateUniform" else words

    def close(self) -> None:
        """It owns nothing."""
