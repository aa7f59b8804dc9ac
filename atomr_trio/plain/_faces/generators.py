"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._twins import Twin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, ClassVar, SupportsIndex

    import numpy.typing as npt

    import atomr_trio

    from ...libraries.random.generator import Size
    from .._types import AnyArray
    from .arrays import DeviceArray


class RandomGenerator(Twin):
    """A stream of random numbers: made by `dev.random.generator`.

    It is a position in a sequence, which moves on with each call of its verbs, in the order of the calls, also of
    several threads and batches. The numbers depend on the position alone: after a loss they are those that would have
    come without it. A call that was lost, cancelled or has failed keeps its numbers, and the next one goes on behind
    them.

    The library's generators of the kinds philox, xorwow and mrg32k3a can begin only where all of their parallel
    sequences have come equally far. Of the draws behind such a place, what is less than a round is recorded, and made
    once more after a loss. The record has at most 64 draws that differ from their neighbours in how many words a number
    takes, of 16 million numbers in all. Behind that the generator moves on to a round that nothing has reached: always,
    with a loss or without one. Draws that all take equally many words never come to that.
    """

    __slots__ = ()

    _made_by: ClassVar[str] = "`dev.random.generator(...)`"

    @property
    def awaited(self) -> atomr_trio.RandomGenerator:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.RandomGenerator = self._awaited
        return value

    @property
    def kind(self) -> str:
        """The name of its kind, such as "philox"."""
        value: str = self._awaited.kind
        return value

    @property
    def seed(self) -> int:
        """The number that tells its sequence from others of its kind; 0 for a quasi kind."""
        value: int = self._awaited.seed
        return value

    @property
    def ordering(self) -> str:
        """The name of its ordering: how it deals out the numbers of its parallel sequences."""
        value: str = self._awaited.ordering
        return value

    @property
    def dims(self) -> int:
        """The number of dimensions of a quasi kind; 1 for others."""
        value: int = self._awaited.dims
        return value

    @property
    def state(self) -> dict[str, Any]:
        """Where it stands, as numbers, strings and lists: the argument of `seek`, of any generator of its kind."""
        value: dict[str, Any] = self._awaited.state
        return value

    def seek(self, state: Mapping[str, Any]) -> None:
        """Go where another generator of the same kind stood, or this one: its `state`, or the `position` of an error.

        Raises `InvalidArgument` for anything else, also for the state of another kind.
        """
        self._enqueue(self._awaited.seek, (state,))

    def spawn(self, n_children: SupportsIndex) -> list[RandomGenerator]:
        """Return `n_children` new generators of the same kind, a number of independent streams.

        Their seeds come from ``numpy.random.SeedSequence(seed, spawn_key=(number,))``, where the children of a
        generator are numbered from 0 on. So each call makes others, and the same ones come again from the same state.

        Raises `InvalidArgument` for a quasi kind, which has no seed, and for a number that is negative.
        """
        result: list[RandomGenerator] = self._enqueue(self._awaited.spawn, (n_children,))
        return result

    def bits(
        self, size: Size = None, dtype: npt.DTypeLike | None = None, *, out: AnyArray | None = None
    ) -> DeviceArray:
        """Draw random bits (``curandGenerate``).

        `size`, `dtype` and `out` are those of `Random.bits`, as are the shape and the dtype of the result.

        Raises what `Random.bits` raises.
        """
        result: DeviceArray = self._wait(self._awaited.bits, (size, dtype), {"out": out})
        return result

    def uniform(
        self,
        low: float = 0.0,
        high: float = 1.0,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: AnyArray | None = None,
    ) -> DeviceArray:
        """Draw uniform numbers (``curandGenerateUniform``).

        `low`, `high`, `size`, `dtype` and `out` are those of `Random.uniform`, as are the shape and the dtype of the
        result.

        Raises what `Random.uniform` raises.
        """
        result: DeviceArray = self._wait(self._awaited.uniform, (low, high, size), {"dtype": dtype, "out": out})
        return result

    def normal(
        self,
        loc: float = 0.0,
        scale: float = 1.0,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: AnyArray | None = None,
    ) -> DeviceArray:
        """Draw normal numbers (``curandGenerateNormal``).

        `loc`, `scale`, `size`, `dtype` and `out` are those of `Random.normal`, as are the shape and the dtype of the
        result.

        Raises what `Random.normal` raises.
        """
        result: DeviceArray = self._wait(self._awaited.normal, (loc, scale, size), {"dtype": dtype, "out": out})
        return result

    def lognormal(
        self,
        mean: float = 0.0,
        sigma: float = 1.0,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: AnyArray | None = None,
    ) -> DeviceArray:
        """Draw numbers whose logarithms are normal (``curandGenerateLogNormal``).

        `mean`, `sigma`, `size`, `dtype` and `out` are those of `Random.lognormal`, as are the shape and the dtype of
        the result.

        Raises what `Random.lognormal` raises.
        """
        result: DeviceArray = self._wait(self._awaited.lognormal, (mean, sigma, size), {"dtype": dtype, "out": out})
        return result

    def poisson(
        self, lam: float = 1.0, size: Size = None, *, dtype: npt.DTypeLike | None = None, out: AnyArray | None = None
    ) -> DeviceArray:
        """Draw Poisson numbers (``curandGeneratePoisson``).

        `lam`, `size`, `dtype` and `out` are those of `Random.poisson`, as are the shape and the dtype of the result.

        Raises what `Random.poisson` raises.
        """
        result: DeviceArray = self._wait(self._awaited.poisson, (lam, size), {"dtype": dtype, "out": out})
        return result

    def integers(
        self,
        low: SupportsIndex,
        high: SupportsIndex | None = None,
        size: Size = None,
        *,
        endpoint: bool = False,
        dtype: npt.DTypeLike | None = None,
        out: AnyArray | None = None,
    ) -> DeviceArray:
        """Draw integers of an interval, all equally likely (``cuLaunchKernel``).

        `low`, `high`, `endpoint`, `size`, `dtype` and `out` are those of `Random.integers`, as are the shape and the
        dtype of the result.

        Raises what `Random.integers` raises.
        """
        result: DeviceArray = self._wait(
            self._awaited.integers, (low, high, size), {"endpoint": endpoint, "dtype": dtype, "out": out}
        )
        return result

    def exponential(
        self, scale: float = 1.0, size: Size = None, *, dtype: npt.DTypeLike | None = None, out: AnyArray | None = None
    ) -> DeviceArray:
        """Draw exponential numbers (``cuLaunchKernel``).

        `scale`, `size`, `dtype` and `out` are those of `Random.exponential`, as are the shape and the dtype of the
        result.

        Raises what `Random.exponential` raises.
        """
        result: DeviceArray = self._wait(self._awaited.exponential, (scale, size), {"dtype": dtype, "out": out})
        return result

    def gamma(
        self,
        shape: float,
        scale: float = 1.0,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: AnyArray | None = None,
    ) -> DeviceArray:
        """Draw numbers of the gamma distribution (``cuLaunchKernel``).

        `shape`, `scale`, `size`, `dtype` and `out` are those of `Random.gamma`, as are the shape and the dtype of the
        result.

        Raises what `Random.gamma` raises.
        """
        result: DeviceArray = self._wait(self._awaited.gamma, (shape, scale, size), {"dtype": dtype, "out": out})
        return result

    def beta(
        self, a: float, b: float, size: Size = None, *, dtype: npt.DTypeLike | None = None, out: AnyArray | None = None
    ) -> DeviceArray:
        """Draw numbers of the beta distribution (``cuLaunchKernel``).

        `a`, `b`, `size`, `dtype` and `out` are those of `Random.beta`, as are the shape and the dtype of the result.

        Raises what `Random.beta` raises.
        """
        result: DeviceArray = self._wait(self._awaited.beta, (a, b, size), {"dtype": dtype, "out": out})
        return result

    def cauchy(
        self,
        loc: float = 0.0,
        scale: float = 1.0,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: AnyArray | None = None,
    ) -> DeviceArray:
        """Draw numbers of the Cauchy distribution (``cuLaunchKernel``).

        `loc`, `scale`, `size`, `dtype` and `out` are those of `Random.cauchy`, as are the shape and the dtype of the
        result.

        Raises what `Random.cauchy` raises.
        """
        result: DeviceArray = self._wait(self._awaited.cauchy, (loc, scale, size), {"dtype": dtype, "out": out})
        return result

    def binomial(
        self,
        n: SupportsIndex,
        p: float,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: AnyArray | None = None,
    ) -> DeviceArray:
        """Draw numbers of successes in trials (``cuLaunchKernel``).

        `n`, `p`, `size`, `dtype` and `out` are those of `Random.binomial`, as are the shape and the dtype of the
        result.

        Raises what `Random.binomial` raises.
        """
        result: DeviceArray = self._wait(self._awaited.binomial, (n, p, size), {"dtype": dtype, "out": out})
        return result

    def standard_t(
        self, df: float, size: Size = None, *, dtype: npt.DTypeLike | None = None, out: AnyArray | None = None
    ) -> DeviceArray:
        """Draw numbers of Student's t distribution (``cuLaunchKernel``).

        `df`, `size`, `dtype` and `out` are those of `Random.standard_t`, as are the shape and the dtype of the result.

        Raises what `Random.standard_t` raises.
        """
        result: DeviceArray = self._wait(self._awaited.standard_t, (df, size), {"dtype": dtype, "out": out})
        return result

    def multinomial(
        self,
        n: SupportsIndex,
        pvals: Sequence[float] | npt.NDArray[Any],
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: AnyArray | None = None,
    ) -> DeviceArray:
        """Draw how often each of several outcomes comes in trials (``cuLaunchKernel``).

        `n`, `pvals`, `size`, `dtype` and `out` are those of `Random.multinomial`, as are the shape and the dtype of the
        result.

        Raises what `Random.multinomial` raises.
        """
        result: DeviceArray = self._wait(self._awaited.multinomial, (n, pvals, size), {"dtype": dtype, "out": out})
        return result

    def bernoulli(
        self, p: float, size: Size = None, *, dtype: npt.DTypeLike | None = None, out: AnyArray | None = None
    ) -> DeviceArray:
        """Draw truths (``cuLaunchKernel``).

        `p`, `size`, `dtype` and `out` are those of `Random.bernoulli`, as are the shape and the dtype of the result.

        Raises what `Random.bernoulli` raises.
        """
        result: DeviceArray = self._wait(self._awaited.bernoulli, (p, size), {"dtype": dtype, "out": out})
        return result

    def discrete(
        self,
        pvals: Sequence[float] | npt.NDArray[Any],
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: AnyArray | None = None,
    ) -> DeviceArray:
        """Draw places in a list of probabilities, each as often as it says (``cuLaunchKernel``).

        `pvals`, `size`, `dtype` and `out` are those of `Random.discrete`, as are the shape and the dtype of the result.

        Raises what `Random.discrete` raises.
        """
        result: DeviceArray = self._wait(self._awaited.discrete, (pvals, size), {"dtype": dtype, "out": out})
        return result
