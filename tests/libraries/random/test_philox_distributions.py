"""The distributions of the stateless form: samples against scipy, with fixed seeds, and parameters at their edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats

from atomr_trio.libraries.random.distributions import SOURCE_OF, alias_table
from atomr_trio.libraries.random.images import SOURCES
from support.philox import CONTINUOUS, DISTRIBUTIONS_OF_WHOLES, PVALS, Example, fit_of, fit_of_counts

pytestmark = [pytest.mark.used_workers, pytest.mark.usefixtures("kept_compiles")]

KEY = 20261126
SIZE = 10_000
ENOUGH = 1e-3
"""The least probability of a sample. The seeds are fixed, so a sample that fits fits always."""


async def drawn(dev: Any, *arguments: Any, **keywords: Any) -> Any:
    return await (await dev.random.philox(*arguments, **keywords)).to_host()


def fit(example: Example, sample: Any) -> float:
    return (fit_of if example in CONTINUOUS else fit_of_counts)(sample, example.frozen)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.long
async def test_samples_fit_their_distributions(dev, source):
    for example in (each for each in (*CONTINUOUS, *DISTRIBUTIONS_OF_WHOLES) if SOURCE_OF[each.distribution] == source):
        sample = await drawn(dev, KEY, 1, SIZE, example.distribution, dtype=example.dtype, **example.parameters)
        assert fit(example, sample) > ENOUGH, str(example)
        # Neighbours are independent: the correlation of ranks, which every distribution has.
        if example in CONTINUOUS:
            assert scipy.stats.spearmanr(sample[:-1], sample[1:]).pvalue > ENOUGH, str(example)


@pytest.mark.sweep
@pytest.mark.parametrize("key", range(2))
@pytest.mark.parametrize("example", [*CONTINUOUS, *DISTRIBUTIONS_OF_WHOLES], ids=str)
async def test_a_large_sample_fits_its_distribution(dev, example, key):
    sample = await drawn(
        dev, key, key * 10**12, 1_000_000, example.distribution, dtype=example.dtype, **example.parameters
    )
    assert fit(example, sample) > 1e-5


async def test_choices_have_their_probabilities(dev):
    sample = await drawn(dev, KEY, 0, SIZE, "discrete", pvals=PVALS)
    found, likely = np.bincount(sample, minlength=len(PVALS)), np.array(PVALS) > 0
    assert not found[~likely].any()
    assert scipy.stats.chisquare(found[likely], np.array(PVALS)[likely] * SIZE).pvalue > ENOUGH


@pytest.mark.long
async def test_rows_of_categories_have_their_probabilities(dev):
    for trials in (7, 400):
        await check_rows(dev, trials)


async def check_rows(dev: Any, trials: int) -> None:
    rows = await drawn(dev, KEY, 0, 2000, "multinomial", n=trials, pvals=PVALS)
    assert rows.shape == (2000, len(PVALS))
    assert (rows.sum(axis=1) == trials).all()
    assert not rows[:, np.array(PVALS) == 0].any()
    for category, chance in enumerate(PVALS):
        if chance:
            assert fit_of_counts(rows[:, category], scipy.stats.binom(trials, chance)) > ENOUGH
    expected = -trials * PVALS[2] * PVALS[4]
    assert np.cov(rows[:, 2], rows[:, 4])[0, 1] == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 128, 129, 1001, 65536])
def test_the_table_of_choices_has_the_probabilities_that_it_was_made_of(count):
    rng = np.random.default_rng(count)
    weights = (
        *(rng.random(count), rng.random(count) ** 9, (rng.random(count) < 0.3) + 1e-9),
        *(
            np.ones(count),
            np.arange(count) + (count == 1),
            1.0 + rng.integers(0, 3, count),
        ),  # some are just 1 on average
    )
    for each in weights:
        chances = each / each.sum()
        table = alias_table(chances)
        kept, other = table[:count].astype(np.float64) * 2.0**-64, table[count:].astype(int)
        found = kept.copy()
        np.add.at(found, other, 1 - kept)
        assert abs(found / count - chances).max() < 1e-14


async def test_a_table_of_many_probabilities_is_uploaded(dev):
    for count in (128, 129, 300):
        chances = np.arange(count, dtype=np.float64)
        chances /= chances.sum()
        sample = await drawn(dev, KEY, 0, SIZE, "discrete", pvals=chances)
        assert fit_of_counts(sample, scipy.stats.rv_discrete(values=(np.arange(count), chances))) > ENOUGH
    for count in (256, 257):
        chances = np.zeros(count)
        chances[:3] = 0.25, 0.5, 0.25
        ((first, second, third, *others),) = await drawn(dev, KEY, 0, 1, "multinomial", n=10**4, pvals=chances)
        assert (first + second + third, sum(others)) == (10**4, 0)
        assert scipy.stats.chisquare((first, second, third), (2500, 5000, 2500)).pvalue > ENOUGH


# --- edges ------------------------------------------------------------------------------------------------------------

CONSTANT = (
    ("uniform", {"low": 2.5, "high": 2.5}, 2.5),
    ("normal", {"loc": -1.5, "scale": 0}, -1.5),
    ("lognormal", {"mean": 0, "sigma": -0.0}, 1.0),
    ("exponential", {"scale": 0}, 0.0),
    ("cauchy", {"loc": 3, "scale": 0.0}, 3.0),
    ("gamma", {"shape": 0.0}, 0.0),
    ("gamma", {"shape": 1e-300}, 0.0),
    ("gamma", {"shape": 2.0, "scale": 0}, 0.0),
    ("gamma", {"shape": 0.5, "scale": 0}, 0.0),
    ("integers", {"low": 7, "high": 8}, 7),
    ("integers", {"low": 1}, 0),
    ("poisson", {"lam": 0}, 0),
    ("poisson", {"lam": 5e-324}, 0),
    ("binomial", {"n": 0, "p": 0.5}, 0),
    ("binomial", {"n": 9, "p": 0}, 0),
    ("binomial", {"n": 9, "p": 1}, 9),
    ("binomial", {"n": 2**63 - 1, "p": 1.0}, 2**63 - 1),
    ("bernoulli", {"p": 0.0}, 0),
    ("bernoulli", {"p": 5e-324}, 0),
    ("bernoulli", {"p": 1}, 1),
    ("discrete", {"pvals": [1]}, 0),
    ("discrete", {"pvals": [0.0, 0.0, 1.0, 0.0]}, 2),
    ("multinomial", {"n": 0, "pvals": [0.5, 0.5]}, 0),
    ("multinomial", {"n": 5, "pvals": [1.0]}, 5),
)


@pytest.mark.long
async def test_what_is_certain_is_drawn(dev):
    async with dev.batch() as batch:
        drawn = [batch.to_host(batch.random.philox(3, 0, 99, name, **parameters)) for name, parameters, _ in CONSTANT]
    for (name, parameters, value), host in zip(CONSTANT, drawn, strict=True):
        assert (host == value).all(), (name, parameters)


async def test_a_category_that_is_certain_has_all(dev):
    rows = await drawn(dev, 3, 0, 50, "multinomial", n=2**63 - 1, pvals=[0.0, 1.0, 0.0])
    assert rows.tolist() == [[0, 2**63 - 1, 0]] * 50


FULL_RANGES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


async def test_integers_of_the_whole_range_of_a_dtype(dev):
    for dtype in FULL_RANGES:
        await check_range(dev, dtype)


async def check_range(dev: Any, dtype: str) -> None:
    bounds = np.iinfo(dtype)
    sample = await drawn(dev, KEY, 0, 8000, "integers", low=bounds.min, high=bounds.max, endpoint=True, dtype=dtype)
    behind = await drawn(dev, KEY, 0, 8000, "integers", low=bounds.min, high=int(bounds.max) + 1, dtype=dtype)
    assert (sample == behind).all()
    width = float(bounds.max) - float(bounds.min) + 1
    assert fit_of((sample - np.float64(bounds.min) + np.random.default_rng(1).random(8000)) / width, uniform) > ENOUGH
    if sample.itemsize == 1:
        assert set(sample.tolist()) == set(range(bounds.min, bounds.max + 1))


uniform = scipy.stats.uniform()


async def test_integers_that_are_often_rejected_are_all_equally_likely(dev):
    span = 3 << 62  # a quarter of all words is rejected
    sample = await drawn(dev, KEY, 0, SIZE, "integers", low=5, high=5 + span, dtype="uint64")
    assert fit_of((sample - np.uint64(5)) / float(span), uniform) > ENOUGH
    assert (await drawn(dev, KEY, 0, 100, "integers", low=0, high=2, dtype="bool")).dtype == bool


async def test_intervals_are_closed_above_and_may_be_turned(dev):
    for low, high, dtype in ((5, 3, "float64"), (1, 1 + 2**-22, "float32"), (-1e308, 7e307, "float64")):
        sample = await drawn(dev, KEY, 0, 5000, "uniform", low=low, high=high, dtype=dtype)
        assert sample.min() >= min(low, high)
        assert sample.max() <= max(low, high)
        assert abs(sample / 2 - (low + high) / 4).max() <= abs(high - low) / 4


async def test_gamma_of_a_large_shape_is_nearly_normal(dev):
    sample = await drawn(dev, KEY, 0, 1000, "gamma", shape=1e300)
    assert abs(sample / 1e300 - 1).max() < 1e-15  # the deviation is less than the distance of two numbers
    for shape in (1e8, 1e16):
        sample = await drawn(dev, KEY, 0, SIZE, "gamma", shape=shape)
        # In 1e16 the distance of two numbers is 2.
        steps = np.random.default_rng(2).random(SIZE) * (2 if shape == 1e16 else 0)
        assert fit_of((sample - shape + steps) / shape**0.5, scipy.stats.norm()) > ENOUGH


async def test_gamma_of_a_small_shape_keeps_what_a_large_scale_makes_of_it(dev):
    sample = await drawn(dev, KEY, 0, SIZE, "gamma", shape=0.002, scale=1e300)
    assert np.isfinite(sample).all()
    logarithms = np.log(sample[sample > 0]) - np.log(1e300)
    expected = scipy.stats.gamma(0.002)
    assert (sample > 0).mean() == pytest.approx(1 - np.exp(0.002 * (np.log(5e-324) - np.log(1e300))), abs=0.01)
    assert (logarithms > -100).sum() / SIZE == pytest.approx(expected.sf(np.exp(-100)), abs=0.01)


async def test_beta_of_small_parameters_is_one_of_two_ends_and_of_large_ones_is_right(dev):
    for a, b, chance in ((5e-324, 5e-324, 0.5), (5e-324, 15e-324, 0.25), (3e-310, 1e-310, 0.75), (1e-5, 1e-5, 0.5)):
        sample = await drawn(dev, KEY, 0, 2000, "beta", a=a, b=b)
        assert ((sample >= 0) & (sample <= 1)).all()
        assert ((sample < 0.01) | (sample > 0.99)).mean() > 0.99
        assert (sample > 0.5).mean() == pytest.approx(chance, abs=0.04)

    sample = await drawn(dev, KEY, 0, 1000, "beta", a=1e308, b=1e308)
    assert abs(sample - 0.5).max() < 1e-15
    sample = await drawn(dev, KEY, 0, SIZE, "beta", a=1e6, b=3e6)
    assert fit_of(sample, scipy.stats.beta(1e6, 3e6)) > ENOUGH


async def test_t_of_few_and_of_many_degrees_of_freedom(dev):
    for df in (5e-324, 1e-310, 1e-3):
        sample = await drawn(dev, KEY, 0, 5000, "standard_t", df=df)
        assert not np.isnan(sample).any()
        assert (abs(sample) > 1e30).mean() > 0.9
        assert (sample > 0).mean() == pytest.approx(0.5, abs=0.03)
    assert fit_of(await drawn(dev, KEY, 0, SIZE, "standard_t", df=1e15), scipy.stats.norm()) > ENOUGH


MOST_LAM = 2**63 - 1 - 10 * (2**63 - 1) ** 0.5


@pytest.mark.long
async def test_counts_with_a_large_mean_are_nearly_normal(dev):
    for lam in (1e10, 1e14 + 0.5, 1e17, MOST_LAM):
        sample = await drawn(dev, KEY, 0, SIZE, "poisson", lam=lam)
        assert (sample > 0).all()
        assert fit_of((sample - int(lam)) / lam**0.5, scipy.stats.norm()) > ENOUGH, lam
        assert len(set((sample % 64).tolist())) == 64  # no number is left out
    for n, p in ((10**12, 0.3), (2**63 - 1, 0.5), (2**63 - 1, 0.999), (2**62, 1e-9)):
        sample = await drawn(dev, KEY, 0, SIZE, "binomial", n=n, p=p)
        mean = (n * int(p * 2**53)) >> 53
        assert fit_of((sample - mean) / (n * p * (1 - p)) ** 0.5, scipy.stats.norm()) > ENOUGH, (n, p)
        assert len(set((sample % 64).tolist())) == 64
    sample = await drawn(dev, KEY, 0, SIZE, "binomial", n=2**62, p=4.5 * 2.0**-62)
    assert fit_of_counts(sample, scipy.stats.poisson(4.5)) > ENOUGH


async def test_cauchy_has_both_tails(dev):
    sample = await drawn(dev, KEY, 0, 200_000, "cauchy")
    assert np.isfinite(sample).all()
    for sign in (-1, 1):
        assert (sign * sample > 100).mean() == pytest.approx(1 / (100 * np.pi), rel=0.1)
