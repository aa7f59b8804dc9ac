"""What a statistical test finds in a block of words, and its p-value: kinds of evidence that add up over blocks.

A p-value is the probability of something at least as far from what is expected, in whichever direction: also of
numbers that fit too well. Words that are random have p-values that are spread evenly from 0 to 1.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import attrs
import numpy as np
import numpy.typing as npt
from scipy import stats

Array = npt.NDArray[Any]

LEAST_EXPECTED: Final = 10.0
"""Cells in which fewer are expected are joined with their neighbours."""


class Evidence(Protocol):
    """What was found in some blocks."""

    def plus(self, other: Any) -> Any:
        """Return what was found in these and other blocks, by the same test."""

    @property
    def p(self) -> float:
        """The p-value of all of it."""


def both_sides(below: float, above: float) -> float:
    """Return the p-value, of the probabilities to be at most there and at least there."""
    return float(min(1.0, 2 * min(below, above)))


@attrs.frozen
class Cells:
    """How many things fell into each of several cells, and the probabilities of the cells."""

    observed: Array
    chances: Array

    def plus(self, other: Cells) -> Cells:
        """Add the numbers of each cell."""
        return Cells(self.observed + other.observed, self.chances)

    @property
    def p(self) -> float:
        """By Pearson's chi-square; 1 where there are too few things for two cells."""
        expected = self.chances * self.observed.sum()
        starts, filled = [0], 0.0
        for cell, each in enumerate(expected):
            if filled >= LEAST_EXPECTED:
                starts.append(cell)
                filled = 0.0
            filled += each
        if filled < LEAST_EXPECTED and len(starts) > 1:
            starts.pop()
        if len(starts) < 2:
            return 1.0
        expected, observed = np.add.reduceat(expected, starts), np.add.reduceat(self.observed, starts)
        statistic = (np.square(observed - expected) / expected).sum()
        freedom = len(starts) - 1
        return both_sides(stats.chi2.cdf(statistic, freedom), stats.chi2.sf(statistic, freedom))


@attrs.frozen
class Halves:
    """How often each of several things came that comes with probability 1/2, and the numbers of trials."""

    hits: Array
    trials: Array

    def plus(self, other: Halves) -> Halves:
        """Add both."""
        return Halves(self.hits + other.hits, self.trials + other.trials)

    @property
    def p(self) -> float:
        """By the sum of the squares of their deviations, in standard deviations."""
        statistic = (np.square(2.0 * self.hits - self.trials) / self.trials).sum()
        freedom = len(self.hits)
        return both_sides(stats.chi2.cdf(statistic, freedom), stats.chi2.sf(statistic, freedom))


@attrs.frozen
class Events:
    """How many rare things came, and how many are expected."""

    count: int
    expected: float

    def plus(self, other: Events) -> Events:
        """Add both."""
        return Events(self.count + other.count, self.expected + other.expected)

    @property
    def p(self) -> float:
        """By the distribution of Poisson. A half of the probability of this very count is on each side."""
        half = stats.poisson.pmf(self.count, self.expected) / 2
        below, above = stats.poisson.cdf(self.count, self.expected), stats.poisson.sf(self.count, self.expected)
        return both_sides(below - half, above + half)


@attrs.frozen
class Powers:
    """The power at each of several frequencies, summed over segments in each of which it has mean 1."""

    powers: Array
    segments: int

    def plus(self, other: Powers) -> Powers:
        """Add both."""
        return Powers(self.powers + other.powers, self.segments + other.segments)

    @property
    def p(self) -> float:
        """By the power that is furthest away, which the gamma distribution tells."""
        below, above = (getattr(stats.gamma, side)(self.powers, self.segments) for side in ("cdf", "sf"))
        least = float(np.minimum(1.0, 2 * np.minimum(below, above)).min())
        return float(-np.expm1(len(self.powers) * np.log1p(-least))) if least < 1 else 1.0


def uniformity(p_values: Array) -> float:
    """Return the p-value of p-values of independent blocks, which are spread evenly (Kolmogorov and Smirnov)."""
    return float(stats.kstest(p_values, "uniform").pvalue)
