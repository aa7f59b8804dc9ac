"""Random numbers, as verbs: those of cuRAND's generators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

import numpy.typing as npt
import trio

from ..._arrays.arrays import DeviceArray
from ..._calls.known import is_stateful, stateful
from ..._calls.outgoing import Outgoing
from ..._calls.recorded import Recorded
from ..._calls.verbs import Awaited, Batched, verb
from ..._values.errors import InvalidArgument
from ..._values.util import shown
from ..._wire.protocol import LANE_COMPUTE
from .drawing import Converting
from .generator import DefaultGenerator, RandomGenerator, Size, make_generator
from .own_verbs import OwnVerbs
from .parameters import held, scalar, scale as checked_scale
from .philox import load_kernels
from .positions import KINDS, MOST_LAM
from .programs import SCALES, Conversion
from .questions import ASKS
from .repeated import learn

if TYPE_CHECKING:
    from ..._calls.batch_sender import BatchSender
    from ..._generation.core import DeviceCore

T = TypeVar("T")

_FLOATS = ("float64", "float32", "float16", "bfloat16")
_COUNTS = ("int64", "int32", "uint64", "uint32")
_WIDEN = Conversion("widen")


class _RandomVerbs(OwnVerbs):
    """The verbs, in all forms."""

    __slots__ = ()

    @verb
    @stateful
    def bits(
        self,
        size: Size = None,
        dtype: npt.DTypeLike | None = None,
        *,
        out: DeviceArray | None = None,
        generator: RandomGenerator | None = None,
    ) -> DeviceArray:
        """Draw integers all of whose bits are random (``curandGenerate``).

        The result has shape `size`, an integer or a sequence of lengths, () by default; and `dtype`, uint32 by default
        or uint64. It is `out` if that is given: an array of such a dtype, of any strides, whose shape is `size`.
        `generator` draws them, by default the one of the device.

        A uint64 is two words of a pseudo kind, the lower one first. Of the quasi kinds, those of 32 bits give uint32,
        and those of 64 bits uint64.

        Raises `InvalidArgument` for another dtype, for a `size` or `out` that does not fit, and for a `generator` of
        another device, at its end, or whose dimensions the number of elements is no multiple of.
        """
        drawer = self._generator_of(generator)
        kind, bits = KINDS[drawer.kind], f"uint{KINDS[drawer.kind].bits}"
        names = (bits,) if kind.is_quasi else ("uint32", "uint64")
        target = self._target(size, dtype, out, names)
        is_pair = target[1] == "uint64" and not kind.is_quasi
        name = "bits_uint64" if kind.is_quasi and kind.bits > 32 else "bits_uint32"
        return self._drawn(drawer, name, (), target, per_element=2 if is_pair else 1)

    @verb
    @stateful
    def uniform(
        self,
        low: float = 0.0,
        high: float = 1.0,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: DeviceArray | None = None,
        generator: RandomGenerator | None = None,
    ) -> DeviceArray:
        """Draw numbers of the interval from `low` to `high`, all equally likely (``curandGenerateUniform``).

        `low` is no result, and `high` is one: the other way round than with numpy. Other numbers than 0 and 1 are
        low + x (high - low), rounded, which may be `low` where that is large beside the difference.

        The result has shape `size`, an integer or a sequence of lengths, () by default; and `dtype`, float64 by
        default, float32, or float16 and bfloat16, which are rounded from float32 and may be 0. It is `out` if that is
        given: an array of such a dtype, of any strides, whose shape is `size`. `generator` draws them, by default the
        one of the device.

        Raises `InvalidArgument` for numbers `low` and `high` that are not finite or fall, for another dtype, for a
        `size` or `out` that does not fit, and for a `generator` of another device, at its end, or whose dimensions the
        number of elements is no multiple of.
        """
        drawer, target = self._generator_of(generator), self._target(size, dtype, out, _FLOATS)
        native, halved = _native(target[1])
        first, last = (held(scalar(value, name), name, native) for value, name in ((low, "low"), (high, "high")))
        span = held(last - first, "the difference of high and low", native)
        if span < 0:
            raise InvalidArgument(f"low is at most high: {shown(low)} and {shown(high)}")
        scaled = [(SCALES[native], (first, span, last))] if (first, last) != (0.0, 1.0) else []
        return self._drawn(drawer, f"uniform_{native}", (), target, [*scaled, *halved])

    @verb
    @stateful
    def normal(
        self,
        loc: float = 0.0,
        scale: float = 1.0,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: DeviceArray | None = None,
        generator: RandomGenerator | None = None,
    ) -> DeviceArray:
        """Draw normal numbers of mean `loc` and standard deviation `scale` (``curandGenerateNormal``).

        The pseudo kinds make them in pairs, and an odd number of them moves the generator by one more.

        The result has shape `size`, an integer or a sequence of lengths, () by default; and `dtype`, float64 by
        default, float32, or float16 and bfloat16, which are rounded from float32. It is `out` if that is given: an
        array of such a dtype, of any strides, whose shape is `size`. `generator` draws them, by default the one of the
        device.

        Raises `InvalidArgument` for numbers `loc` and `scale` that are not finite, a negative `scale`, another dtype, a
        `size` or `out` that does not fit, and for a `generator` of another device, at its end, or whose dimensions the
        number of elements is no multiple of.
        """
        return self._drawn_normal("normal", (loc, "loc"), (scale, "scale"), size, dtype, out, generator)

    @verb
    @stateful
    def lognormal(
        self,
        mean: float = 0.0,
        sigma: float = 1.0,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: DeviceArray | None = None,
        generator: RandomGenerator | None = None,
    ) -> DeviceArray:
        """Draw numbers whose logarithms are normal, of mean `mean` and deviation `sigma` (``curandGenerateLogNormal``).

        `mean` and `sigma` are numbers. The pseudo kinds make them in pairs, and an odd number of them moves the
        generator by one more.

        The result has shape `size`, an integer or a sequence of lengths, () by default; and `dtype`, float64 by
        default, float32, or float16 and bfloat16, which are rounded from float32. It is `out` if that is given: an
        array of such a dtype, of any strides, whose shape is `size`. `generator` draws them, by default the one of the
        device.

        Raises `InvalidArgument` for numbers `mean` and `sigma` that are not finite, a negative `sigma`, another dtype,
        a `size` or `out` that does not fit, and for a `generator` of another device, at its end, or whose dimensions
        the number of elements is no multiple of.
        """
        return self._drawn_normal("lognormal", (mean, "mean"), (sigma, "sigma"), size, dtype, out, generator)

    @verb
    @stateful
    def poisson(
        self,
        lam: float = 1.0,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: DeviceArray | None = None,
        generator: RandomGenerator | None = None,
    ) -> DeviceArray:
        """Draw numbers of events, of which `lam` are expected (``curandGeneratePoisson``).

        The first draw of another `lam` makes a table, and waits for the draws before it.

        The result has shape `size`, an integer or a sequence of lengths, () by default; and `dtype`, int64 by default,
        int32, uint64 or uint32. It is `out` if that is given: an array of such a dtype, of any strides, whose shape is
        `size`. `generator` draws them, by default the one of the device.

        Raises `InvalidArgument` for a number `lam` that is not above 0 or above 400,000, for another dtype, for a
        `size` or `out` that does not fit, and for a `generator` of another device, at its end, or whose dimensions the
        number of elements is no multiple of.
        """
        drawer, target = self._generator_of(generator), self._target(size, dtype, out, _COUNTS)
        mean = scalar(lam, "lam")
        if not 0 < mean <= MOST_LAM:
            raise InvalidArgument(f"lam is above 0 and at most {MOST_LAM:,.0f}, not {shown(lam)}")
        wide: list[Converting] = [(_WIDEN, ())] if target[1].endswith("64") else []
        return self._drawn(drawer, "poisson_uint32", (mean,), target, wide)

    # What they have in common.

    def _drawn_normal(
        self,
        verb: str,
        mean: tuple[object, str],
        deviation: tuple[object, str],
        size: Size,
        dtype: npt.DTypeLike | None,
        out: object,
        generator: object,
    ) -> DeviceArray:
        drawer, target = self._generator_of(generator), self._target(size, dtype, out, _FLOATS)
        native, halved = _native(target[1])
        parameters = (
            held(scalar(*mean), mean[1], native),
            held(checked_scale(*deviation), deviation[1], native),
        )
        return self._drawn(drawer, f"{verb}_{native}", parameters, target, halved)


def _native(dtype: str) -> tuple[str, list[Converting]]:
    """Return the dtype that the library gives, and what makes the wanted one of it."""
    if dtype in ("float32", "float64"):
        return dtype, []
    return "float32", [(Conversion(f"halve_{dtype}"), ())]


class Random(_RandomVerbs, Awaited):
    """Random numbers on the device's compute lane: `dev.random`.

    Numbers come from a generator. Its stream survives a fault: the numbers behind it are those that would have come
    without it. Verbs that name no generator draw from that of the device, which is of the kind philox.

    Parameters of distributions are numbers, not arrays.
    """

    __slots__ = ("_default",)

    def __init__(self, device: DeviceCore, batch: BatchSender | None = None) -> None:
        super().__init__(device, batch)
        self._default = device.part(DefaultGenerator)

    async def _ask(self, plan: Callable[..., T], arguments: Sequence[object], keywords: dict[str, Any]) -> T:
        ask = ASKS[plan]
        if ask is None:
            return await super()._ask(plan, arguments, keywords)
        self._device.home.check_task()
        question = ask(arguments, keywords)
        generator, learns = None, False
        if question is not None:
            key, generator, arrays = question
            if generator is None:
                generator = self._default.generator or self._default.get()
            if generator._device is self._device:
                known = generator._known.get(key)
                learns = known is None
                if known is not None:
                    await trio.lowlevel.checkpoint_if_cancelled()
                    begun = known.begin(self._launches, generator, arrays)
                    if begun is not None:
                        awaited, drawn = begun
                        await awaited.wait()
                        return drawn  # type: ignore[no-any-return]
        await self._begin_verb(plan, arguments, keywords)
        planner = self._planner()
        result = plan(planner, *arguments, **keywords)
        requests = await planner._ask_all()
        if learns and question is not None and generator is not None:
            learn(question, generator, planner._drawing, requests, planner._made, result)
        return result

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
        "legacy", and of xorwow "seeded". `offset` is the number of the first element, in the order of the sequence;
        the Mersenne twisters have none.

        After a fault the generator is made anew at its position. The Mersenne twisters draw everything once more for
        that, which takes the GPU about as long as all of their draws did.

        Raises `InvalidArgument` for a kind, ordering, seed, offset or number of dimensions that does not exist.
        """
        return make_generator(self._device, kind, seed, ordering, dims, offset)

    def seed(self, seed: SupportsIndex | None = None) -> None:
        """Let the generator of the device begin with another `seed`, a number, by default one of the operating system.

        Raises `InvalidArgument` for a number that is negative, or 2**64 or more.
        """
        self._device.check_open()
        self._device.part(DefaultGenerator).seed(seed)

    async def load(self, *names: str) -> None:
        """Compile the kernels of these distributions, of all without `names` (``nvrtcCompileProgram``).

        `names` are names of verbs. What is there already costs nothing, so a batch or a recorder need not wait for the
        compiler afterwards.

        Raises `InvalidArgument` for a name that is none, and `LibraryNotFound` when there is no NVRTC.
        """
        await load_kernels(self._device, names)

    @property
    def default_generator(self) -> RandomGenerator:
        """The generator of the device, from which verbs draw that name no other."""
        return self._generator_of(None)


class BatchRandom(_RandomVerbs, Batched):
    """The verbs of `Random` in a batch, without ``await``: `batch.random`.

    Draws are in the order of the calls. Those of cuRAND are on the compute lane, whatever the lane of the batch is, and
    those of kernels of our own are on that lane. If a call is refused because there is no room (`trio.WouldBlock`), the
    generator does not move.
    """

    __slots__ = ("_default",)

    def __init__(self, device: DeviceCore, batch: BatchSender | None = None) -> None:
        super().__init__(device, batch)
        self._default = device.part(DefaultGenerator)

    def _send(self, plan: Callable[..., T], arguments: Sequence[object], keywords: dict[str, Any]) -> T:
        ask = ASKS[plan]
        if ask is None:
            return super()._send(plan, arguments, keywords)
        batch = self._batch
        assert batch is not None  # this is its form for batches
        question = ask(arguments, keywords) if batch.lane == LANE_COMPUTE else None
        generator, learns = None, False
        if question is not None:
            key, generator, arrays = question
            if generator is None:
                generator = self._default.generator or self._default.get()
            if generator._device is self._device:
                known = generator._known.get(key)
                learns = known is None
                if known is not None:
                    drawn = known.send(batch, generator, arrays)
                    if drawn is not None:
                        return drawn  # type: ignore[no-any-return]
        batch.check()
        planner = self._planner()
        result = plan(planner, *arguments, **keywords)
        requests = Outgoing(planner._requests).take()
        try:
            batch.send_all(requests)
        except BaseException:
            if planner._began is not None and not any(request.sent for request in requests):
                began, stood = planner._began
                began._state, began._lam = stood, 0.0
            raise
        self._rehearse(requests)
        if learns and question is not None and generator is not None:
            learn(question, generator, planner._drawing, requests, planner._made, result)
        return result


class RecordedRandom(_RandomVerbs, Recorded):
    """The stateless verbs of `Random` as nodes of a graph: `graph.random` of a `GraphRecorder`.

    A launch of a graph does the same each time. So verbs that draw from a generator raise `InvalidArgument`.
    """

    __slots__ = ()

    def _send(self, plan: Callable[..., T], arguments: Sequence[object], keywords: dict[str, Any]) -> T:
        if is_stateful(plan):
            name = f"random.{plan.__name__}"
            raise InvalidArgument(
                f"{name} cannot be recorded: it draws from a generator, which every launch would have to move on",
                advice="record `random.philox`, whose numbers depend on its arguments alone; or draw before the launch",
            )
        return super()._send(plan, arguments, keywords)
