"""The verbs of generators: samples against scipy, by distribution, moments and correlation, with fixed seeds."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import scipy.stats

from support.philox import fit_of, fit_of_counts

pytestmark = [pytest.mark.used_workers, pytest.mark.usefixtures("kept_compiles")]

SIZE = 20_000
ENOUGH = 1e-3
"""The least probability of a sample. The seeds are fixed, so a sample that fits fits always."""
ERRORS = 5.0
"""A moment of a sample is off by so many standard errors at most."""


class Case(NamedTuple):
    """A verb with its parameters, and what its numbers are distributed like."""

    verb: str
    parameters: dict[str, Any]
    frozen: Any
    dtype: str
    moments: int = 4
    """How many of the first moments are looked at: there are not always so many."""

    def __str__(self) -> str:
        return f"{self.verb}-{self.dtype}"


OF_CURAND = (
    Case("uniform", {}, scipy.stats.uniform(), "float64"),
    Case("uniform", {"low": -3.0, "high": 5.0}, scipy.stats.uniform(-3, 8), "float32"),
    Case("normal", {}, scipy.stats.norm(), "float64"),
    Case("normal", {"loc": 2.0, "scale": 0.5}, scipy.stats.norm(2, 0.5), "float32"),
    Case("lognormal", {"mean": 0.5, "sigma": 0.25}, scipy.stats.lognorm(0.25, scale=np.exp(0.5)), "float64"),
    Case("lognormal", {"sigma": 0.25}, scipy.stats.lognorm(0.25), "float32"),
    Case("poisson", {"lam": 0.7}, scipy.stats.poisson(0.7), "int64"),
    Case("poisson", {"lam": 40.0}, scipy.stats.poisson(40), "uint32"),
    Case("poisson", {"lam": 3000.0}, scipy.stats.poisson(3000), "int32"),
)
OF_OUR_OWN = (
    Case("integers", {"low": -4, "high": 9}, scipy.stats.randint(-4, 9), "int64"),
    Case("exponential", {"scale": 2.0}, scipy.stats.expon(scale=2), "float64"),
    Case("gamma", {"shape": 2.5, "scale": 0.5}, scipy.stats.gamma(2.5, scale=0.5), "float64"),
    Case("gamma", {"shape": 0.4}, scipy.stats.gamma(0.4), "float32"),
    Case("beta", {"a": 0.5, "b": 2.0}, scipy.stats.beta(0.5, 2), "float64"),
    Case("cauchy", {"loc": 1.0, "scale": 2.0}, scipy.stats.cauchy(1, 2), "float64", 0),
    Case("binomial", {"n": 30, "p": 0.1}, scipy.stats.binom(30, 0.1), "int64"),
    Case("binomial", {"n": 5000, "p": 0.7}, scipy.stats.binom(5000, 0.7), "int32"),
    Case("standard_t", {"df": 12.0}, scipy.stats.t(12), "float64", 2),
    Case("bernoulli", {"p": 0.3}, scipy.stats.bernoulli(0.3), "bool"),
    Case("discrete", {"pvals": [0.1, 0.2, 0.7]}, scipy.stats.rv_discrete(values=([0, 1, 2], [0.1, 0.2, 0.7])), "int64"),
)


def check(case: Case, sample: npt.NDArray[Any]) -> None:
    assert sample.dtype == case.dtype
    counts = sample.dtype.kind != "f"
    wide = sample.astype(np.float64)
    probability = fit_of_counts(sample.astype(np.int64), case.frozen) if counts else fit_of(wide, case.frozen)
    assert probability > ENOUGH
    mean = float(case.frozen.mean()) if case.moments else 0.0
    for power in range(1, case.moments + 1):
        powers = (wide - mean) ** power
        error = powers.std() / np.sqrt(sample.size)
        assert abs(powers.mean() - central_moment(case.frozen, power)) < ERRORS * error, power
    for distance in (1, 2, 4, 1024):
        assert scipy.stats.spearmanr(wide[:-distance], wide[distance:]).pvalue > ENOUGH / 10, distance


def central_moment(frozen: Any, power: int) -> float:
    _, variance, skewness, kurtosis = (float(each) for each in frozen.stats(moments="mvsk"))
    return (0.0, variance, skewness * variance**1.5, (kurtosis + 3) * variance**2)[power - 1]


async def drawn(generator: Any, case: Case) -> npt.NDArray[Any]:
    x = await getattr(generator, case.verb)(**case.parameters, size=SIZE, dtype=case.dtype)
    return await x.to_host()


@pytest.mark.parametrize("case", [*OF_CURAND, *OF_OUR_OWN], ids=str)
async def test_numbers_of_a_generator_have_their_distribution(dev, case):
    check(case, await drawn(dev.random.generator("philox", 20261126, offset=5), case))


@pytest.mark.parametrize("kind", ["xorwow", "mrg32k3a", "mtgp32"])
async def test_numbers_of_other_kinds_have_their_distribution(dev, kind):
    generator = dev.random.generator(kind, 7, ordering="legacy")
    for case in OF_CURAND:
        check(case, await drawn(generator, case))


async def test_numbers_of_halves_have_their_distribution(dev):
    """They have few digits, which a test of continuous distributions would notice."""
    generator = dev.random.generator("philox", 3)
    for verb, spread in (("uniform", 2.0**-10), ("normal", 2.0**-9)):
        sample = await (await getattr(generator, verb)(size=SIZE, dtype="float16")).to_host()
        assert sample.dtype == np.float16
        blurred = sample.astype(np.float64) * (1 + spread * (np.random.default_rng(1).random(SIZE) - 0.5))
        assert fit_of(blurred, {"uniform": scipy.stats.uniform(), "normal": scipy.stats.norm()}[verb]) > ENOUGH


@pytest.mark.parametrize("kind", ["sobol32", "scrambled_sobol32", "sobol64", "scrambled_sobol64"])
async def test_quasi_numbers_fill_each_dimension_evenly(dev, kind):
    """Of 2**12 points each interval of 2**-12 has one, but for the one of point 0 where it is no number of (0, 1]."""
    points, dims = 1 << 12, 3
    generator = dev.random.generator(kind, dims=dims)
    sample = (await (await generator.uniform(size=(dims, points))).to_host()).clip(0, np.nextafter(1, 0))
    for numbers in sample:
        assert (np.bincount((numbers * points).astype(int), minlength=points) == 1).all()
    assert abs(np.corrcoef(sample) - np.eye(dims)).max() < 0.02


async def test_rows_of_a_generator_have_their_means_and_covariances(dev):
    chances = np.array([0.2, 0.5, 0.3])
    rows = await (await dev.random.generator("philox", 11).multinomial(40, chances, size=SIZE)).to_host()
    assert (rows.sum(axis=1) == 40).all()
    expected = 40 * (np.diag(chances) - np.outer(chances, chances))
    errors = 40 * 3 / np.sqrt(SIZE)
    assert abs(rows.mean(axis=0) - 40 * chances).max() < ERRORS * np.sqrt(expected.max() / SIZE)
    assert abs(np.cov(rows.T) - expected).max() < errors
