"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._twins import Awaits, Enqueues
from .lib_random_own_verbs import OwnVerbs
from .lib_random_philox import PhiloxVerbs
from .lib_random_verbs import RandomVerbs

if TYPE_CHECKING:
    from typing import SupportsIndex

    import atomr_trio

    from .generators import RandomGenerator


class BatchRandom(Enqueues, RandomVerbs, OwnVerbs, PhiloxVerbs):
    """The verbs of `Random` in a batch, without waiting: `batch.random`.

    Draws are in the order of the calls. Those of cuRAND are on the compute lane, whatever the lane of the batch is, and
    those of kernels of our own are on that lane. If a call is refused because there is no room (`trio.WouldBlock`), the
    generator does not move.
    """

    __slots__ = ()

    @property
    def awaited(self) -> atomr_trio.BatchRandom:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.BatchRandom = self._awaited
        return value


class Random(Awaits, RandomVerbs, OwnVerbs, PhiloxVerbs):
    """Random numbers on the device's compute lane: `dev.random`.

    Numbers come from a generator. Its stream survives a fault: the numbers behind it are those that would have come
    without it. Verbs that name no generator draw from that of the device, which is of the kind philox.

    Parameters of distributions are numbers, not arrays.
    """

    __slots__ = ()

    @property
    def awaited(self) -> atomr_trio.Random:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.Random = self._awaited
        return value

    def generator(
        self,
        kind: str = "philox",
        seed: SupportsIndex | None = None,
        *,
        ordering: str | None = None,
        dims: SupportsIndex = 1,
        offset: SupportsIndex = 0,
    ) -> RandomGenerator:
        """Return a new generator. Nothing is sent: the library makes it at its first draw.

        `kind` is "philox", "xorwow", "mrg32k3a", "mtgp32" or "mt19937", whose numbers look random; or "sobol32",
        "scrambled_sobol32", "sobol64" or "scrambled_sobol64", whose numbers fill a space of `dims` dimensions evenly,
        at most 20,000. These draw numbers of each dimension one after the other: all of the first, then all of the
        second.

        `seed` is a number from 0 up to 2**64, without that, by default one of the operating system. The quasi kinds
        have none. `ordering` is the name of a way to deal out the numbers of the parallel sequences: "default", "best",
        "legacy", and of xorwow "seeded". `offset` is the number of the first element, in the order of the sequence; the
        Mersenne twisters have none.

        After a fault the generator is made anew at its position. The Mersenne twisters draw everything once more for
        that, which takes the GPU about as long as all of their draws did.

        Raises `InvalidArgument` for a kind, ordering, seed, offset or number of dimensions that does not exist.
        """
        result: RandomGenerator = self._enqueue(
            self._awaited.generator, (kind, seed), {"ordering": ordering, "dims": dims, "offset": offset}
        )
        return result

    def seed(self, seed: SupportsIndex | None = None) -> None:
        """Let the generator of the device begin with another `seed`, a number, by default one of the operating system.

        Raises `InvalidArgument` for a number that is negative, or 2**64 or more.
        """
        self._enqueue(self._awaited.seed, (seed,))

    def load(self, *names: str) -> None:
        """Compile the kernels of these distributions, of all without `names` (``nvrtcCompileProgram``).

        `names` are names of verbs. What is there already costs nothing, so a batch or a recorder need not wait for the
        compiler afterwards.

        Raises `InvalidArgument` for a name that is none, and `LibraryNotFound` when there is no NVRTC.
        """
        self._wait(self._awaited.load, (*names,))

    @property
    def default_generator(self) -> RandomGenerator:
        """The generator of the device, from which verbs draw that name no other."""
        value: RandomGenerator = self._seen(self._awaited.default_generator)
        return value


class RecordedRandom(Enqueues, RandomVerbs, OwnVerbs, PhiloxVerbs):
    """The stateless verbs of `Random` as nodes of a graph: `graph.random` of a `GraphRecorder`.

    A launch of a graph does the same each time. So verbs that draw from a generator raise `InvalidArgument`.
    """

    __slots__ = ()

    @property
    def awaited(self) -> atomr_trio.RecordedRandom:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.RecordedRandom = self._awaited
        return value
