"""What the tests of the stateless form share: a model in numpy, examples of all distributions, and tests of samples."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

WORD = 0xFFFFFFFF
Array = npt.NDArray[Any]


def block(counters: list[Array], key: int) -> list[Array]:
    """Philox4x32-10 of counters of four words: their four words, all as uint64."""
    c = [np.asarray(each, np.uint64) for each in counters]
    low, high = key & WORD, key >> 32
    for _ in range(10):
        one, other = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (other >> np.uint64(32)) ^ c[1] ^ np.uint64(low),
            other & np.uint64(WORD),
            (one >> np.uint64(32)) ^ c[3] ^ np.uint64(high),
            one & np.uint64(WORD),
        ]
        low, high = (low + 0x9E3779B9) & WORD, (high + 0xBB67AE85) & WORD
    return c


def of_rounds(rounds: Array, threads: Array, key: int) -> Array:
    """The words of cuRAND's blocks, of shape (n, 4): block `rounds` of each thread."""
    zero = np.zeros_like(rounds)
    return np.stack(block([rounds & np.uint64(WORD), rounds >> np.uint64(32), threads, zero], key), axis=-1)


def positions(position: int, count: int) -> Array:
    return np.uint64(position) + np.arange(count, dtype=np.uint64)


def words(key: int, position: int, count: int) -> Array:
    """The generator's words from a position on."""
    at = positions(position, count)
    blocks = of_rounds(at >> np.uint64(18), (at >> np.uint64(2)) & np.uint64(0xFFFF), key)
    return blocks[np.arange(count), (at & np.uint64(3)).astype(int)].astype(np.uint32)


def halves(key: int, position: int, count: int) -> Array:
    """The two words of each number that takes two, of shape (n, 2), while all numbers have taken two."""
    round_, slot = divmod(position, 1 << 18)
    at = np.uint64(slot) + np.arange(count, dtype=np.uint64)
    lane = (at & np.uint64(3)).astype(int)
    rounds = np.uint64(round_) + np.uint64(2) * (at >> np.uint64(18)) + (lane // 2).astype(np.uint64)
    blocks = of_rounds(rounds, (at >> np.uint64(2)) & np.uint64(0xFFFF), key)
    first = 2 * (lane % 2)
    return np.stack([blocks[np.arange(count), first + each] for each in (0, 1)], axis=-1)


def uniform32(key: int, position: int, count: int) -> Array:
    return words(key, position, count).astype(np.float32) * np.float32(2**-32) + np.float32(2**-33)


def uniform64(key: int, position: int, count: int) -> Array:
    pairs = halves(key, position, count)
    return (pairs[:, 0] ^ (pairs[:, 1] << np.uint64(21))).astype(np.float64) * 2.0**-53 + 2.0**-54


# --- the distributions ------------------------------------------------------------------------------------------------


@attrs.frozen
class Example:
    """A distribution with parameters, and what scipy has for it."""

    distribution: str
    parameters: dict[str, Any]
    expected: tuple[Any, ...]
    """The name in ``scipy.stats``, and its arguments."""
    dtype: str | None = None

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in self.parameters.items()]
        return " ".join([self.distribution, *words, *([self.dtype] if self.dtype else [])])

    @property
    def frozen(self) -> Any:
        import scipy.stats

        name, *arguments = self.expected
        return getattr(scipy.stats, name)(*arguments)


CONTINUOUS = (
    Example("uniform", {}, ("uniform",)),
    Example("uniform", {"low": -3.0, "high": 5.0}, ("uniform", -3, 8), "float32"),
    Example("normal", {}, ("norm",)),
    Example("normal", {"loc": 2.0, "scale": 3.0}, ("norm", 2, 3), "float32"),
    Example("lognormal", {"mean": 0.5, "sigma": 0.25}, ("lognorm", 0.25, 0, np.exp(0.5))),
    Example("lognormal", {}, ("lognorm", 1), "float32"),
    Example("exponential", {"scale": 2.0}, ("expon", 0, 2)),
    Example("exponential", {}, ("expon",), "float32"),
    Example("cauchy", {}, ("cauchy",)),
    Example("cauchy", {"loc": 1.0, "scale": 4.0}, ("cauchy", 1, 4), "float32"),
    Example("gamma", {"shape": 0.05}, ("gamma", 0.05)),
    Example("gamma", {"shape": 0.7, "scale": 3.0}, ("gamma", 0.7, 0, 3), "float32"),
    Example("gamma", {"shape": 1.0}, ("gamma", 1)),
    Example("gamma", {"shape": 4.5, "scale": 0.5}, ("gamma", 4.5, 0, 0.5)),
    Example("gamma", {"shape": 1000.0}, ("gamma", 1000)),
    Example("beta", {"a": 0.1, "b": 0.2}, ("beta", 0.1, 0.2)),
    Example("beta", {"a": 0.5, "b": 3.0}, ("beta", 0.5, 3), "float32"),
    Example("beta", {"a": 2.0, "b": 5.0}, ("beta", 2, 5)),
    Example("beta", {"a": 200.0, "b": 1.0}, ("beta", 200, 1)),
    Example("standard_t", {"df": 0.5}, ("t", 0.5)),
    Example("standard_t", {"df": 3.0}, ("t", 3), "float32"),
    Example("standard_t", {"df": 50.0}, ("t", 50)),
)
DISTRIBUTIONS_OF_WHOLES = (
    Example("integers", {"low": 0, "high": 10}, ("randint", 0, 10)),
    Example("integers", {"low": -7, "high": 5, "endpoint": True}, ("randint", -7, 6), "int8"),
    Example("poisson", {"lam": 0.3}, ("poisson", 0.3)),
    Example("poisson", {"lam": 9.9}, ("poisson", 9.9), "uint32"),
    Example("poisson", {"lam": 10.0}, ("poisson", 10)),
    Example("poisson", {"lam": 47.5}, ("poisson", 47.5), "uint8"),
    Example("poisson", {"lam": 12345.6}, ("poisson", 12345.6)),
    Example("binomial", {"n": 20, "p": 0.2}, ("binom", 20, 0.2)),
    Example("binomial", {"n": 15, "p": 0.9}, ("binom", 15, 0.9), "int16"),
    Example("binomial", {"n": 25, "p": 0.41}, ("binom", 25, 0.41)),
    Example("binomial", {"n": 1000, "p": 0.75}, ("binom", 1000, 0.75), "int32"),
    Example("binomial", {"n": 10**6, "p": 0.5}, ("binom", 10**6, 0.5)),
    Example("binomial", {"n": 10**9, "p": 3e-9}, ("binom", 10**9, 3e-9)),
    Example("bernoulli", {"p": 0.3}, ("bernoulli", 0.3)),
    Example("bernoulli", {"p": 0.99}, ("bernoulli", 0.99), "uint8"),
)
PVALS = (0.05, 0.0, 0.3, 0.2, 0.25, 0.125, 0.0, 0.075)
ONE_OF_EACH = (
    ("bits", {}, "uint32"),
    ("bits", {}, "uint64"),
    ("uniform", {"low": -1.0, "high": 3.0}, "float32"),
    ("uniform", {}, "float64"),
    ("normal", {}, "float32"),
    ("normal", {"loc": 1.0}, "float64"),
    ("lognormal", {}, "float32"),
    ("lognormal", {"sigma": 0.5}, "float64"),
    ("exponential", {}, "float64"),
    ("cauchy", {}, "float32"),
    ("gamma", {"shape": 2.5}, "float32"),
    ("gamma", {"shape": 0.3}, "float64"),
    ("beta", {"a": 0.5, "b": 2.0}, "float64"),
    ("standard_t", {"df": 1.5}, "float32"),
    ("integers", {"low": 0, "high": 3 << 61}, "uint64"),
    ("poisson", {"lam": 3.0}, "int8"),
    ("poisson", {"lam": 30.0}, "int64"),
    ("binomial", {"n": 9, "p": 0.4}, "uint16"),
    ("binomial", {"n": 900, "p": 0.6}, "int64"),
    ("multinomial", {"n": 100, "pvals": (0.25, 0.75, 0.0)}, "int64"),
    ("bernoulli", {"p": 0.5}, "bool"),
    ("discrete", {"pvals": PVALS}, "int32"),
)
"""Every distribution, with each of its kernels: its parameters, and a dtype."""


# --- samples ----------------------------------------------------------------------------------------------------------


def fit_of(sample: Array, distribution: Any) -> float:
    """The probability of a sample that fits a continuous distribution no better (Kolmogorov and Smirnov)."""
    import scipy.stats

    return float(scipy.stats.kstest(sample.astype(np.float64), distribution.cdf).pvalue)


def fit_of_counts(sample: Array, distribution: Any) -> float:
    """The same of a discrete distribution (chi-square), in about 40 groups of numbers that are about equally likely."""
    import scipy.stats

    first, last = distribution.ppf(1e-12), distribution.ppf(1 - 1e-12)
    quantiles = distribution.ppf(np.linspace(0, 1, 41)[1:-1])
    edges = np.arange(first, last) if last - first <= 40 else np.unique(quantiles)
    below = distribution.cdf(edges)
    chances = np.diff(np.concatenate(([0.0], below, [1.0])))
    found = np.bincount(np.searchsorted(edges, sample), minlength=len(chances))
    likely = chances * len(sample) > 5
    chances, found = (np.append(each[likely], each[~likely].sum()) for each in (chances, found))
    if chances[-1] * len(sample) < 5:  # too few to be a group
        chances, found = np.append(chances[:-2], chances[-2:].sum()), np.append(found[:-2], found[-2:].sum())
    return float(scipy.stats.chisquare(found, chances * len(sample)).pvalue)
