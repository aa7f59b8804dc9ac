"""Generators that users hold: where each stands, and the plan that stands for it in workers."""

from __future__ import annotations

import secrets
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, final

import numpy as np
import numpy.typing as npt

from ..._calls.stateful import Holder, StatefulPlan
from ..._generation.core import DeviceCore, DevicePart
from ..._values.errors import InvalidArgument
from ..._values.util import NoPublicConstructor
from .positions import BOUNDS, END, KINDS, Bounds, Place
from .programs import GENERATOR
from .records import RANDOM
from .states import State, check_dims, check_kind, check_offset, check_ordering, integer, read_state

if TYPE_CHECKING:
    from ..._arrays.arrays import DeviceArray
    from .verbs import Random

_MOST_SPAWNED: Final = 1 << 20
Size = SupportsIndex | Sequence[SupportsIndex] | None


@final
class RandomGenerator(Holder[State], metaclass=NoPublicConstructor):
    """A stream of random numbers: made by `dev.random.generator`.

    It is a position in a sequence, which moves on with each call of its verbs, in the order of the calls, also of
    several tasks and batches. The numbers depend on the position alone: after a loss they are those that would have
    come without it. A call that was lost, cancelled or has failed keeps its numbers, and the next one goes on behind
    them.

    The library's generators of the kinds philox, xorwow and mrg32k3a can begin only where all of their parallel
    sequences have come equally far. Of the draws behind such a place, what is less than a round is recorded, and made
    once more after a loss. The record has at most 64 draws that differ from their neighbours in how many words a number
    takes, of 16 million numbers in all. Behind that the generator moves on to a round that nothing has reached: always,
    with a loss or without one. Draws that all take equally many words never come to that.
    """

    __slots__ = ("__weakref__", "_bounds", "_device", "_known", "_lam")

    _made_by = "`dev.random.generator(...)`"

    def __init__(self, device: DeviceCore, state: State, bounds: Bounds = BOUNDS) -> None:
        super().__init__(state, StatefulPlan(device, RANDOM, GENERATOR, 1, "random.generator"))
        self._device = device
        self._bounds = bounds
        self._lam = 0.0
        """The mean of the Poisson numbers drawn last. For another one the library makes a table, and waits."""
        self._known: dict[Hashable, Any] = {}
        """The draws that it has made before, by their arguments; see ``repeated.py``."""

    def __del__(self) -> None:
        # Any thread, any time: only note it.
        if hasattr(self, "_plan") and self._plan.was_used:
            self._device.dropped.append(self._plan.end_in)

    def __repr__(self) -> str:
        place = self._state.place
        dims = f" of {place.dims} dimensions" if KINDS[place.kind].is_quasi else f" of seed {place.seed}"
        return f"<RandomGenerator {place.kind}{dims} on device {self._device.index}>"

    @property
    def _owner(self) -> DeviceCore:
        return self._device

    @property
    def _random(self) -> Random:
        random: Random = self._device.face.random
        return random

    @property
    def kind(self) -> str:
        """The name of its kind, such as "philox"."""
        return self._state.place.kind

    @property
    def seed(self) -> int:
        """The number that tells its sequence from others of its kind; 0 for a quasi kind."""
        return self._state.place.seed

    @property
    def ordering(self) -> str:
        """The name of its ordering: how it deals out the numbers of its parallel sequences."""
        return self._state.place.ordering

    @property
    def dims(self) -> int:
        """The number of dimensions of a quasi kind; 1 for others."""
        return self._state.place.dims

    @property
    def state(self) -> dict[str, Any]:
        """Where it stands, as numbers, strings and lists: the argument of `seek`, of any generator of its kind."""
        return self._state.plain()

    def seek(self, state: Mapping[str, Any]) -> None:
        """Go where another generator of the same kind stood, or this one: its `state`, or the `position` of an error.

        Raises `InvalidArgument` for anything else, also for the state of another kind.
        """
        self._device.check_open()
        found = read_state(state)
        if found.place.kind != self.kind:
            raise InvalidArgument(f"the state is of {found.place.kind}, and the generator of {self.kind}")
        before = self._state.place
        if (found.place.ordering, found.place.dims) != (before.ordering, before.dims):
            self._known.clear()  # it deals the numbers out in another way
        self._state = found

    def spawn(self, n_children: SupportsIndex) -> list[RandomGenerator]:
        """Return `n_children` new generators of the same kind, a number of independent streams.

        Their seeds come from ``numpy.random.SeedSequence(seed, spawn_key=(number,))``, where the children of a
        generator are numbered from 0 on. So each call makes others, and the same ones come again from the same state.

        Raises `InvalidArgument` for a quasi kind, which has no seed, and for a number that is negative.
        """
        self._device.check_open()
        count = integer(n_children, "n_children", 0, _MOST_SPAWNED + 1)
        state = self._state
        if KINDS[self.kind].is_quasi:
            raise InvalidArgument(f"{self.kind} has no seed: make generators of other offsets")
        numbers = range(state.spawned, state.spawned + count)
        seeds = [
            np.random.SeedSequence(self.seed, spawn_key=(number,)).generate_state(1, np.uint64) for number in numbers
        ]
        self._state = state._replace(spawned=state.spawned + count)
        places = [Place(self.kind, self.ordering, int(seed[0]), 1) for seed in seeds]
        return [RandomGenerator._create(self._device, State(place), self._bounds) for place in places]

    # Verbs.

    async def bits(
        self, size: Size = None, dtype: npt.DTypeLike | None = None, *, out: DeviceArray | None = None
    ) -> DeviceArray:
        """Draw random bits (``curandGenerate``).

        `size`, `dtype` and `out` are those of `Random.bits`, as are the shape and the dtype of the result.

        Raises what `Random.bits` raises.
        """
        return await self._random.bits(size, dtype, out=out, generator=self)

    async def uniform(
        self,
        low: float = 0.0,
        high: float = 1.0,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: DeviceArray | None = None,
    ) -> DeviceArray:
        """Draw uniform numbers (``curandGenerateUniform``).

        `low`, `high`, `size`, `dtype` and `out` are those of `Random.uniform`, as are the shape and the dtype of the
        result.

        Raises what `Random.uniform` raises.
        """
        return await self._random.uniform(low, high, size, dtype=dtype, out=out, generator=self)

    async def normal(
        self,
        loc: float = 0.0,
        scale: float = 1.0,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: DeviceArray | None = None,
    ) -> DeviceArray:
        """Draw normal numbers (``curandGenerateNormal``).

        `loc`, `scale`, `size`, `dtype` and `out` are those of `Random.normal`, as are the shape and the dtype of the
        result.

        Raises what `Random.normal` raises.
        """
        return await self._random.normal(loc, scale, size, dtype=dtype, out=out, generator=self)

    async def lognormal(
        self,
        mean: float = 0.0,
        sigma: float = 1.0,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: DeviceArray | None = None,
    ) -> DeviceArray:
        """Draw numbers whose logarithms are normal (``curandGenerateLogNormal``).

        `mean`, `sigma`, `size`, `dtype` and `out` are those of `Random.lognormal`, as are the shape and the dtype of
        the result.

        Raises what `Random.lognormal` raises.
        """
        return await self._random.lognormal(mean, sigma, size, dtype=dtype, out=out, generator=self)

    async def poisson(
        self,
        lam: float = 1.0,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: DeviceArray | None = None,
    ) -> DeviceArray:
        """Draw Poisson numbers (``curandGeneratePoisson``).

        `lam`, `size`, `dtype` and `out` are those of `Random.poisson`, as are the shape and the dtype of the result.

        Raises what `Random.poisson` raises.
        """
        return await self._random.poisson(lam, size, dtype=dtype, out=out, generator=self)

    async def integers(
        self,
        low: SupportsIndex,
        high: SupportsIndex | None = None,
        size: Size = None,
        *,
        endpoint: bool = False,
        dtype: npt.DTypeLike | None = None,
        out: DeviceArray | None = None,
    ) -> DeviceArray:
        """Draw integers of an interval, all equally likely (``cuLaunchKernel``).

        `low`, `high`, `endpoint`, `size`, `dtype` and `out` are those of `Random.integers`, as are the shape and the
        dtype of the result.

        Raises what `Random.integers` raises.
        """
        return await self._random.integers(low, high, size, endpoint=endpoint, dtype=dtype, out=out, generator=self)

    async def exponential(
        self,
        scale: float = 1.0,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: DeviceArray | None = None,
    ) -> DeviceArray:
        """Draw exponential numbers (``cuLaunchKernel``).

        `scale`, `size`, `dtype` and `out` are those of `Random.exponential`, as are the shape and the dtype of the
        result.

        Raises what `Random.exponential` raises.
        """
        return await self._random.exponential(scale, size, dtype=dtype, out=out, generator=self)

    async def gamma(
        self,
        shape: float,
        scale: float = 1.0,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: DeviceArray | None = None,
    ) -> DeviceArray:
        """Draw numbers of the gamma distribution (``cuLaunchKernel``).

        `shape`, `scale`, `size`, `dtype` and `out` are those of `Random.gamma`, as are the shape and the dtype of the
        result.

        Raises what `Random.gamma` raises.
        """
        return await self._random.gamma(shape, scale, size, dtype=dtype, out=out, generator=self)

    async def beta(
        self,
        a: float,
        b: float,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: DeviceArray | None = None,
    ) -> DeviceArray:
        """Draw numbers of the beta distribution (``cuLaunchKernel``).

        `a`, `b`, `size`, `dtype` and `out` are those of `Random.beta`, as are the shape and the dtype of the result.

        Raises what `Random.beta` raises.
        """
        return await self._random.beta(a, b, size, dtype=dtype, out=out, generator=self)

    async def cauchy(
        self,
        loc: float = 0.0,
        scale: float = 1.0,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: DeviceArray | None = None,
    ) -> DeviceArray:
        """Draw numbers of the Cauchy distribution (``cuLaunchKernel``).

        `loc`, `scale`, `size`, `dtype` and `out` are those of `Random.cauchy`, as are the shape and the dtype of the
        result.

        Raises what `Random.cauchy` raises.
        """
        return await self._random.cauchy(loc, scale, size, dtype=dtype, out=out, generator=self)

    async def binomial(
        self,
        n: SupportsIndex,
        p: float,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: DeviceArray | None = None,
    ) -> DeviceArray:
        """Draw numbers of successes in trials (``cuLaunchKernel``).

        `n`, `p`, `size`, `dtype` and `out` are those of `Random.binomial`, as are the shape and the dtype of the
        result.

        Raises what `Random.binomial` raises.
        """
        return await self._random.binomial(n, p, size, dtype=dtype, out=out, generator=self)

    async def standard_t(
        self,
        df: float,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: DeviceArray | None = None,
    ) -> DeviceArray:
        """Draw numbers of Student's t distribution (``cuLaunchKernel``).

        `df`, `size`, `dtype` and `out` are those of `Random.standard_t`, as are the shape and the dtype of the result.

        Raises what `Random.standard_t` raises.
        """
        return await self._random.standard_t(df, size, dtype=dtype, out=out, generator=self)

    async def multinomial(
        self,
        n: SupportsIndex,
        pvals: Sequence[float] | npt.NDArray[Any],
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: DeviceArray | None = None,
    ) -> DeviceArray:
        """Draw how often each of several outcomes comes in trials (``cuLaunchKernel``).

        `n`, `pvals`, `size`, `dtype` and `out` are those of `Random.multinomial`, as are the shape and the dtype of the
        result.

        Raises what `Random.multinomial` raises.
        """
        return await self._random.multinomial(n, pvals, size, dtype=dtype, out=out, generator=self)

    async def bernoulli(
        self,
        p: float,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: DeviceArray | None = None,
    ) -> DeviceArray:
        """Draw truths (``cuLaunchKernel``).

        `p`, `size`, `dtype` and `out` are those of `Random.bernoulli`, as are the shape and the dtype of the result.

        Raises what `Random.bernoulli` raises.
        """
        return await self._random.bernoulli(p, size, dtype=dtype, out=out, generator=self)

    async def discrete(
        self,
        pvals: Sequence[float] | npt.NDArray[Any],
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: DeviceArray | None = None,
    ) -> DeviceArray:
        """Draw places in a list of probabilities, each as often as it says (``cuLaunchKernel``).

        `pvals`, `size`, `dtype` and `out` are those of `Random.discrete`, as are the shape and the dtype of the result.

        Raises what `Random.discrete` raises.
        """
        return await self._random.discrete(pvals, size, dtype=dtype, out=out, generator=self)


def make_generator(
    device: DeviceCore, kind: str, seed: object, ordering: object, dims: object, offset: object
) -> RandomGenerator:
    """Return a new generator. Raises `InvalidArgument`."""
    device.check_open()
    is_quasi = check_kind(kind).is_quasi
    if is_quasi and seed is not None:
        raise InvalidArgument(f"{kind} has no seed: its numbers are given by its offset alone")
    found = 0 if is_quasi else secrets.randbits(64) if seed is None else integer(seed, "seed", 0, END)
    place = Place(kind, check_ordering(kind, ordering), found, check_dims(kind, dims), check_offset(kind, offset))
    return RandomGenerator._create(device, State(place, own=0 if is_quasi else place.offset))


class DefaultGenerator(DevicePart):
    """The generator of a device, which draws where no other is named."""

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self.generator: RandomGenerator | None = None
        """It, once something has been drawn or a seed was given; it stays the same object."""

    def get(self) -> RandomGenerator:
        """Return it."""
        if self.generator is None:
            self.seed(None)
        assert self.generator is not None
        return self.generator

    def seed(self, seed: object) -> None:
        """Begin with another seed, or with one of the operating system for None. Raises `InvalidArgument`."""
        new = make_generator(self.device, "philox", seed, None, 1, 0)
        if self.generator is None:
            self.generator = new
        else:
            self.generator._state = new._state
