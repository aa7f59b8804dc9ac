"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._twins import Verbs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, SupportsIndex

    import numpy.typing as npt

    from ...libraries.random.generator import Size
    from .._types import AnyArray
    from .arrays import DeviceArray
    from .generators import RandomGenerator


class OwnVerbs(Verbs):
    """Verbs of `dev.random`, in all forms."""

    __slots__ = ()

    def integers(
        self,
        low: SupportsIndex,
        high: SupportsIndex | None = None,
        size: Size = None,
        *,
        endpoint: bool = False,
        dtype: npt.DTypeLike | None = None,
        out: AnyArray | None = None,
        generator: RandomGenerator | None = None,
    ) -> DeviceArray:
        """Draw integers of an interval, all equally likely (``cuLaunchKernel``).

        They are numbers from `low` up to `high`, without that, or with it if `endpoint` is True; from 0 up to `low` if
        there is no `high`.

        The result has shape `size`, and `dtype`: int64 by default, any other integer, or bool. `size`, `out` and
        `generator` are those of `normal`. Each number takes one place of a sequence beside that of cuRAND, and is a
        function of the seed and that place.

        Raises what `normal` raises, and `InvalidArgument` for an empty interval, and one that the dtype does not hold,
        and for a generator of a quasi kind; `LibraryNotFound` when there is no NVRTC.
        """
        result: DeviceArray = self._do(
            self._awaited.integers,
            (low, high, size),
            {"endpoint": endpoint, "dtype": dtype, "out": out, "generator": generator},
        )
        return result

    def exponential(
        self,
        scale: float = 1.0,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: AnyArray | None = None,
        generator: RandomGenerator | None = None,
    ) -> DeviceArray:
        """Draw exponential numbers of mean `scale`, by inversion (``cuLaunchKernel``).

        `scale` is a number from 0 on.

        The result has shape `size`, and `dtype`: float64 by default, or float32. `size`, `out` and `generator` are
        those of `normal`. Each number takes one place of a sequence beside that of cuRAND, and is a function of the
        seed and that place.

        Raises what `normal` raises, and `InvalidArgument` for a `scale` that is none, and for a generator of a quasi
        kind; `LibraryNotFound` when there is no NVRTC.
        """
        result: DeviceArray = self._do(
            self._awaited.exponential, (scale, size), {"dtype": dtype, "out": out, "generator": generator}
        )
        return result

    def gamma(
        self,
        shape: float,
        scale: float = 1.0,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: AnyArray | None = None,
        generator: RandomGenerator | None = None,
    ) -> DeviceArray:
        """Draw numbers of the gamma distribution (``cuLaunchKernel``).

        `shape` and `scale` are numbers from 0 on: the mean is shape * scale. `shape` is a number here, not the lengths
        of the result. They are made by the method of Marsaglia and Tsang (2000).

        The result has shape `size`, and `dtype`: float64 by default, or float32. `size`, `out` and `generator` are
        those of `normal`. Each number takes one place of a sequence beside that of cuRAND, and is a function of the
        seed and that place.

        Raises what `normal` raises, and `InvalidArgument` for a `shape` or `scale` that is none, and for a generator of
        a quasi kind; `LibraryNotFound` when there is no NVRTC.
        """
        result: DeviceArray = self._do(
            self._awaited.gamma, (shape, scale, size), {"dtype": dtype, "out": out, "generator": generator}
        )
        return result

    def beta(
        self,
        a: float,
        b: float,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: AnyArray | None = None,
        generator: RandomGenerator | None = None,
    ) -> DeviceArray:
        """Draw numbers of the beta distribution (``cuLaunchKernel``).

        `a` and `b` are numbers above 0. Each result is made of two gamma numbers.

        The result has shape `size`, and `dtype`: float64 by default, or float32. `size`, `out` and `generator` are
        those of `normal`. Each number takes one place of a sequence beside that of cuRAND, and is a function of the
        seed and that place.

        Raises what `normal` raises, and `InvalidArgument` for an `a` or `b` that is none, and for a generator of a
        quasi kind; `LibraryNotFound` when there is no NVRTC.
        """
        result: DeviceArray = self._do(
            self._awaited.beta, (a, b, size), {"dtype": dtype, "out": out, "generator": generator}
        )
        return result

    def cauchy(
        self,
        loc: float = 0.0,
        scale: float = 1.0,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: AnyArray | None = None,
        generator: RandomGenerator | None = None,
    ) -> DeviceArray:
        """Draw numbers of the Cauchy distribution, by inversion (``cuLaunchKernel``).

        `loc` is the median, and `scale` half of the width of the middle half, a number from 0 on.

        The result has shape `size`, and `dtype`: float64 by default, or float32. `size`, `out` and `generator` are
        those of `normal`. Each number takes one place of a sequence beside that of cuRAND, and is a function of the
        seed and that place.

        Raises what `normal` raises, and `InvalidArgument` for a `loc` or `scale` that is none, and for a generator of a
        quasi kind; `LibraryNotFound` when there is no NVRTC.
        """
        result: DeviceArray = self._do(
            self._awaited.cauchy, (loc, scale, size), {"dtype": dtype, "out": out, "generator": generator}
        )
        return result

    def binomial(
        self,
        n: SupportsIndex,
        p: float,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: AnyArray | None = None,
        generator: RandomGenerator | None = None,
    ) -> DeviceArray:
        """Draw numbers of successes in `n` trials, each of probability `p` (``cuLaunchKernel``).

        `n` is a number from 0 on, and `p` one from 0 to 1. Below a mean of 10 they are made by summation, from there on
        by BTRS of Hoermann (1993).

        The result has shape `size`, and `dtype`: int64 by default, or any other integer. `size`, `out` and `generator`
        are those of `normal`. Each number takes one place of a sequence beside that of cuRAND, and is a function of the
        seed and that place.

        Raises what `normal` raises, and `InvalidArgument` for an `n` or `p` that is none, and for a generator of a
        quasi kind; `LibraryNotFound` when there is no NVRTC.
        """
        result: DeviceArray = self._do(
            self._awaited.binomial, (n, p, size), {"dtype": dtype, "out": out, "generator": generator}
        )
        return result

    def standard_t(
        self,
        df: float,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: AnyArray | None = None,
        generator: RandomGenerator | None = None,
    ) -> DeviceArray:
        """Draw numbers of Student's t distribution with `df` degrees of freedom (``cuLaunchKernel``).

        `df` is a number above 0. Each result is made of a normal and a gamma number.

        The result has shape `size`, and `dtype`: float64 by default, or float32. `size`, `out` and `generator` are
        those of `normal`. Each number takes one place of a sequence beside that of cuRAND, and is a function of the
        seed and that place.

        Raises what `normal` raises, and `InvalidArgument` for a `df` that is none, and for a generator of a quasi kind;
        `LibraryNotFound` when there is no NVRTC.
        """
        result: DeviceArray = self._do(
            self._awaited.standard_t, (df, size), {"dtype": dtype, "out": out, "generator": generator}
        )
        return result

    def multinomial(
        self,
        n: SupportsIndex,
        pvals: Sequence[float] | npt.NDArray[Any],
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: AnyArray | None = None,
        generator: RandomGenerator | None = None,
    ) -> DeviceArray:
        """Draw how often each of several outcomes comes in `n` trials (``cuLaunchKernel``).

        `n` is a number of trials from 0 on. `pvals` are the probabilities, numbers on the host whose sum is 1, at most
        65,536. They are made by conditional binomial numbers.

        The result has shape `size`, behind which comes an axis of the outcomes, and `dtype`: int64 by default, or any
        other integer. `size`, `out` and `generator` are those of `normal`. Each number takes one place of a sequence
        beside that of cuRAND, and is a function of the seed and that place.

        Raises what `normal` raises, and `InvalidArgument` for an `n` or `pvals` that is none, and for a generator of a
        quasi kind; `LibraryNotFound` when there is no NVRTC.
        """
        result: DeviceArray = self._do(
            self._awaited.multinomial, (n, pvals, size), {"dtype": dtype, "out": out, "generator": generator}
        )
        return result

    def bernoulli(
        self,
        p: float,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: AnyArray | None = None,
        generator: RandomGenerator | None = None,
    ) -> DeviceArray:
        """Draw truths, each with probability `p` (``cuLaunchKernel``).

        `p` is a number from 0 to 1.

        The result has shape `size`, and `dtype`: bool by default, or any integer. `size`, `out` and `generator` are
        those of `normal`. Each number takes one place of a sequence beside that of cuRAND, and is a function of the
        seed and that place.

        Raises what `normal` raises, and `InvalidArgument` for a `p` that is none, and for a generator of a quasi kind;
        `LibraryNotFound` when there is no NVRTC.
        """
        result: DeviceArray = self._do(
            self._awaited.bernoulli, (p, size), {"dtype": dtype, "out": out, "generator": generator}
        )
        return result

    def discrete(
        self,
        pvals: Sequence[float] | npt.NDArray[Any],
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: AnyArray | None = None,
        generator: RandomGenerator | None = None,
    ) -> DeviceArray:
        """Draw places in a list of probabilities, each as often as it says (``cuLaunchKernel``).

        `pvals` are the probabilities, numbers on the host whose sum is 1, at most 65,536. They are drawn by the alias
        table of Walker (1977).

        The result has shape `size`, and `dtype`: int64 by default, or any other integer. `size`, `out` and `generator`
        are those of `normal`. Each number takes one place of a sequence beside that of cuRAND, and is a function of the
        seed and that place.

        Raises what `normal` raises, and `InvalidArgument` for `pvals` that are none, and for a generator of a quasi
        kind; `LibraryNotFound` when there is no NVRTC.
        """
        result: DeviceArray = self._do(
            self._awaited.discrete, (pvals, size), {"dtype": dtype, "out": out, "generator": generator}
        )
        return result
