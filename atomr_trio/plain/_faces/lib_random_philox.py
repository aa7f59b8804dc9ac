"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._twins import Verbs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, SupportsIndex

    import numpy.typing as npt

    from .._types import AnyArray
    from .arrays import DeviceArray


class PhiloxVerbs(Verbs):
    """Verbs of `dev.random`, in all forms."""

    __slots__ = ()

    def philox(
        self,
        /,
        key: SupportsIndex,
        counter: SupportsIndex,
        size: SupportsIndex | Sequence[SupportsIndex] | None = None,
        distribution: str = "bits",
        *,
        dtype: npt.DTypeLike | None = None,
        out: AnyArray | None = None,
        **parameters: Any,
    ) -> DeviceArray:
        """Numbers that depend on nothing but the arguments: Philox4x32-10 of a key and a counter (``cuLaunchKernel``).

        `key` and `counter` are integers from 0 to 2**64 - 1: the seed, and the position of the first number. `size` is
        the shape of the result, a single number by default. `distribution` is the name of a verb of `Random`, and
        `parameters` are those of that verb, by name. `dtype` is that of the result, by default that of the verb. `out`
        is an array for the result, of its shape and dtype and of any strides; without it, the result is new.

        The same arguments give the same numbers in every call, batch and graph, after a loss, and on both backends but
        for the last bits of logarithms and roots. A draw in two parts gives the numbers of one, if the second begins
        where the first ended: each number takes one position, and of bits in uint64 two.

        bits, uniform, normal and lognormal are cuRAND's numbers of its Philox generator with that seed and offset. In
        float64 the last three take two words each, and positions are the generator's slots: a draw of n numbers from
        ``p`` on ends at ``(p // T + 2 * c) * T + q`` with ``T = 262144`` and ``c, q = divmod(p % T + n, T)``. From an
        offset that is a multiple of T, the numbers are those of a cuRAND generator with this offset. uniform is open at
        `low` and closed at `high`, but for rounding.

        The others, and poisson, use counters that cuRAND never does:

        - exponential and cauchy by inversion; bernoulli by one comparison;
        - gamma by Marsaglia and Tsang (2000), for shapes below 1 by the power of a uniform number; beta and standard_t
          from gamma variables;
        - integers by Lemire (2019), all equally likely;
        - poisson by summation below a mean of 10, and by PTRS of Hoermann (1993) from there on; binomial by summation
          and BTRS of Hoermann (1993) in the same way; multinomial by conditional binomials; with the probabilities of
          Loader (2000);
        - discrete by the alias table of Walker (1977).

        `lam`, `shape`, `scale` and `sigma` may be 0, as in numpy. `pvals` are at most 65,536 probabilities on the host
        whose sum is 1. More than 128 of them for discrete, and 256 for multinomial, are not possible in a graph.

        The first call of a kind compiles a kernel: waited for, or, in a batch and in a graph, while the device is
        blocked for about half a second; `Random.load` does so before.

        Raises `InvalidArgument` for anything else: unknown names, parameters and dtypes, numbers that are not finite or
        out of range, arrays as parameters, a counter that would pass 2**64, and an `out` that does not fit. Raises
        `LibraryNotFound` when there is no NVRTC.
        """
        result: DeviceArray = self._do(
            self._awaited.philox, (key, counter, size, distribution), {"dtype": dtype, "out": out, **parameters}
        )
        return result
