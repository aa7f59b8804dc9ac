"""The subjects of the benchmark of random numbers, one in each process: `random_subjects.py WHO BACKEND`.

A subject is asked for three things. It makes a draw ready (`take NUMBER`, by the place in the plan). It draws so many
times and waits once (`turn COUNT`). It tells the caller's time of each of so many calls that nobody waits for
(`caller COUNT`).

atomr_trio and the bare calls have Philox generators of cuRAND, in its default ordering, and write to memory that they
hold. CuPy has a `Generator` of Philox, of its default size; its results take memory from a pool. PyTorch has its
default generator, which is Philox as well, and fills a tensor that it holds, but for Poisson, gamma and binomial
numbers: these have a tensor of parameters, and their results take memory from a pool. dtypes differ where one does not
have that of the others: each draw says which it has.

Every subject's mean and spread are compared with those of the distribution before anything is timed.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from ctypes import byref
from typing import Any, Final, Protocol

import attrs
import numpy as np
from speed_report import CUPY, OURS, RAW, TORCH
from turns import (
    EMPTY,
    LAUNCH_ROW,
    Bare,
    Computing,
    Missing,
    OnCupy,
    OnTorch,
    Others,
    answer_all,
    each,
    refusal,
    serve,
    turn,
)

# --- what is drawn ----------------------------------------------------------------------------------------------------

CALLER_ROW: Final = "a draw that nobody waits for, caller"
SEED: Final = 7
LOOKED_AT: Final = 1 << 19
"""So many numbers of each end of a result are compared with the distribution."""
DEVIATIONS: Final = 6.0
"""So many standard errors may the mean and the spread of a sample be away from those of the distribution."""


@attrs.frozen
class Law:
    """A distribution with its parameters."""

    verb: str
    """Its name in `dev.random`."""
    parameters: Mapping[str, float]
    mean: float
    variance: float
    kurtosis: float
    """The fourth central moment over the square of the variance."""

    def deviation_of(self, sample: np.ndarray) -> float:
        """Return how many standard errors the mean and the spread of a sample are away, whichever is further."""
        numbers = sample.astype(np.float64)
        if self.verb == "bits":
            numbers *= 2.0**-32
        centred = (numbers - self.mean) / math.sqrt(self.variance)
        errors = abs(centred.mean()), abs(np.square(centred).mean() - 1) / math.sqrt(self.kurtosis - 1)
        return float(max(errors) * math.sqrt(numbers.size))


BITS: Final = Law("bits", {}, 1 / 2, 1 / 12, 1.8)
UNIFORM: Final = Law("uniform", {}, 1 / 2, 1 / 12, 1.8)
NORMAL: Final = Law("normal", {}, 0, 1, 3)
POISSON: Final = Law("poisson", {"lam": 10.0}, 10, 10, 3 + 1 / 10)
GAMMA: Final = Law("gamma", {"shape": 2.5}, 2.5, 2.5, 3 + 6 / 2.5)
BINOMIAL: Final = Law("binomial", {"n": 100, "p": 0.3}, 30, 21, 3 + (1 - 6 * 0.21) / 21)
EXPONENTIAL: Final = Law("exponential", {}, 1, 1, 9)


@attrs.frozen
class Draw:
    """So many numbers of a distribution, in one array."""

    law: Law
    dtype: str
    """That of ours, and of the bare call."""
    count: int

    @property
    def name(self) -> str:
        """Its row in the table."""
        parameters = ", ".join(f"{value:g}" for value in self.law.parameters.values())
        verb = f"{self.law.verb}({parameters})" if parameters else self.law.verb
        return f"{verb} {self.dtype}, 10^{round(math.log10(self.count))}"

    @property
    def operations(self) -> float:
        """The numbers."""
        return float(self.count)

    @property
    def judged_by(self) -> str | None:
        """The subject that ours is compared with."""
        if self.law in (GAMMA, BINOMIAL):
            return CUPY
        return RAW if (self.law.verb, self.dtype) in FUNCTIONS else None


@attrs.frozen
class Plan:
    """What is drawn, and how long."""

    draws: tuple[Draw, ...]
    seconds: float
    """The approximate length of each turn."""
    repetitions: int
    calls: int
    """Calls of which the caller's time is taken, fewer than a stream takes without blocking."""


FUNCTIONS: Final[Mapping[tuple[str, str], tuple[str, Sequence[float]]]] = {
    ("bits", "uint32"): ("curandGenerate", ()),
    ("uniform", "float32"): ("curandGenerateUniform", ()),
    ("uniform", "float64"): ("curandGenerateUniformDouble", ()),
    ("normal", "float32"): ("curandGenerateNormal", (0.0, 1.0)),
    ("normal", "float64"): ("curandGenerateNormalDouble", (0.0, 1.0)),
    ("poisson", "uint32"): ("curandGeneratePoisson", (10.0,)),
}
"""The functions of cuRAND by verb and dtype, and what is given to them behind the count."""


def _draws(powers: Sequence[int]) -> Iterator[Draw]:
    """All, of so many numbers: the exponents of 10."""
    kinds = (
        *((law, dtype) for law, dtype in ((BITS, "uint32"), (POISSON, "uint32"), (BINOMIAL, "int64"))),
        *((law, dtype) for law in (UNIFORM, NORMAL) for dtype in ("float32", "float64")),
        *((law, "float64") for law in (GAMMA, EXPONENTIAL)),
    )
    for law, dtype in kinds:
        for power in powers:
            yield Draw(law, dtype, 10**power)


PLANS: Final[Mapping[str, Plan]] = {
    "cuda": Plan(
        draws=tuple(_draws((3, 5, 7, 8))),
        seconds=0.1,  # the end of a batch is seen later than that of a stream: by half a millisecond or so
        repetitions=7,
        calls=500,
    ),
    "sim": Plan(draws=tuple(_draws((2, 3))), seconds=0.0, repetitions=2, calls=5),
}
"""The simulator shows that everything works, and says nothing of speed."""


# --- the subjects -----------------------------------------------------------------------------------------------------


class Subject(Computing, Protocol):
    """A subject that draws numbers."""

    async def place(self, draw: Draw) -> None:
        """Get ready, and let go of what was before."""

    async def result(self) -> np.ndarray:
        """The numbers at both ends of the last draw, `LOOKED_AT` of each, or all."""

    async def caller(self, count: int) -> dict[str, float]:
        """By row, the seconds that each of so many calls takes of the caller."""


def ends(count: int) -> list[slice]:
    """Return the parts of a result that are looked at."""
    return [slice(0, count)] if count <= 2 * LOOKED_AT else [slice(0, LOOKED_AT), slice(count - LOOKED_AT, count)]


class Ours:
    """atomr_trio, in a batch."""

    _out: Any
    _options: dict[str, Any]

    def __init__(self, dev: Any) -> None:
        self._dev = dev
        self._generator = dev.random.generator("philox", SEED)
        self._kernel: Any = None

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, backend: str) -> AsyncIterator[Ours]:
        import atomr_trio

        async with atomr_trio.open_device(0, backend=backend) as dev:  # type: ignore[arg-type]
            yield cls(dev)

    async def place(self, draw: Draw) -> None:
        self._out, self._options = None, {}
        self._out = self._dev.empty(draw.count, draw.dtype)
        await self._out.fill(0)
        await self._dev.random.load(draw.law.verb)
        self._verb = draw.law.verb
        self._options = {**draw.law.parameters, "out": self._out, "generator": self._generator}

    async def compute(self, count: int) -> None:
        options = self._options
        async with self._dev.batch() as batch:
            draw = getattr(batch.random, self._verb)
            for _ in range(count):
                draw(**options)

    async def result(self) -> np.ndarray:
        return np.concatenate([await self._out[part].to_host() for part in ends(self._out.size)])

    async def caller(self, count: int) -> dict[str, float]:
        dev = self._dev
        if self._kernel is None:
            self._kernel = await dev.nvrtc.compile(EMPTY, "empty")
            self._launched = (1, 1, 1.0, dev.zeros(1, np.float32), dev.zeros(1, np.float32), 1)

        def draw(batch: Any) -> Callable[[], object]:
            return functools.partial(getattr(batch.random, self._verb), **self._options)

        def launch(batch: Any) -> Callable[[], object]:
            return functools.partial(batch.launch, self._kernel, *self._launched)

        return {CALLER_ROW: await self._each(count, draw), LAUNCH_ROW: await self._each(count, launch)}

    async def _each(self, count: int, call_of: Callable[[Any], Callable[[], object]]) -> float:
        async with self._dev.batch() as batch:
            return each(count, call_of(batch))


class Foreign(Others):
    """What the others have in common."""

    async def caller(self, count: int) -> dict[str, float]:
        self._wait()
        seconds = each(count, self._call)
        self._wait()
        return {CALLER_ROW: seconds}


class Raw(Bare, Foreign):
    """cuRAND, called through ctypes as this library declares it."""

    def __init__(self) -> None:
        from atomr_cuda import curand

        super().__init__()
        self._curand = curand
        generator = curand.curandGenerator_t()
        curand.curandCreateGenerator(byref(generator), curand.curandRngType_t.CURAND_RNG_PSEUDO_PHILOX4_32_10)
        self._generator = generator.value
        curand.curandSetStream(self._generator, self._stream)
        curand.curandSetPseudoRandomGeneratorSeed(self._generator, SEED)
        curand.curandGenerateSeeds(self._generator)

    async def place(self, draw: Draw) -> None:
        self._free_all()
        found = FUNCTIONS.get((draw.law.verb, draw.dtype))
        if found is None:
            raise Missing(f"cuRAND has no {draw.law.verb}")
        name, parameters = found
        self._drawn, self._out = draw, self._memory(draw.count * np.dtype(draw.dtype).itemsize)
        function = self._curand.library.functions[name].bind()

        def call() -> None:
            if status := function(self._generator, self._out, draw.count, *parameters):
                raise RuntimeError(f"{name} returned {status}")

        self._call = call

    async def result(self) -> np.ndarray:
        dtype = np.dtype(self._drawn.dtype)
        return np.concatenate(
            [
                self._download(self._out + part.start * dtype.itemsize, np.empty(part.stop - part.start, dtype))
                for part in ends(self._drawn.count)
            ]
        )


class Cupy(OnCupy, Foreign):
    """CuPy. Its `Generator` copies to an `out`, where it takes one, so it is given none."""

    _out: Any

    def __init__(self) -> None:
        super().__init__()
        random = self._cupy.random
        self._bits: Any = random.Philox4x3210(SEED)
        self._generator: Any = random.Generator(self._bits)

    async def place(self, draw: Draw) -> None:
        self._out = None
        generator, count = self._generator, draw.count
        functions: Mapping[str, Callable[[], Any]] = {
            "bits": functools.partial(self._bits.random_raw, count),
            "uniform": functools.partial(generator.random, count, draw.dtype),
            "normal": functools.partial(generator.standard_normal, count, draw.dtype),
            "poisson": functools.partial(generator.poisson, 10.0, count),
            "gamma": functools.partial(generator.standard_gamma, 2.5, count, draw.dtype),
            "binomial": functools.partial(generator.binomial, 100, 0.3, count),
            "exponential": functools.partial(generator.standard_exponential, count, draw.dtype),
        }
        function = functions[draw.law.verb]

        def call() -> None:
            self._out = None
            self._out = function()

        self._call, self._drawn = call, draw
        self._wait()

    async def result(self) -> np.ndarray:
        found = np.concatenate([self._out[part].get() for part in ends(self._drawn.count)])
        return found.view(np.uint32) if self._drawn.law is BITS else found


class Torch(OnTorch, Foreign):
    """PyTorch. Its Poisson and binomial numbers are float32, and its bits are int32."""

    _out: Any

    async def place(self, draw: Draw) -> None:
        self._out = None
        torch, verb, count = self._torch, draw.law.verb, draw.count
        torch.manual_seed(SEED)

        def full(value: float, dtype: Any = torch.float32) -> Any:
            return torch.full((count,), value, dtype=dtype, device="cuda")

        def fresh(function: Callable[[], Any]) -> Callable[[], None]:
            def call() -> None:
                self._out = None
                self._out = function()

            return call

        if verb == "poisson":
            self._call = fresh(functools.partial(torch.poisson, full(10.0)))
        elif verb == "gamma":
            self._call = fresh(functools.partial(torch._standard_gamma, full(2.5, torch.float64)))
        elif verb == "binomial":
            self._call = fresh(functools.partial(torch.binomial, full(100.0), full(0.3)))
        else:
            self._out = full(0, torch.int32 if verb == "bits" else getattr(torch, draw.dtype))
            self._call = {
                "bits": functools.partial(self._out.random_, -(1 << 31), 1 << 31),
                "uniform": self._out.uniform_,
                "normal": self._out.normal_,
                "exponential": self._out.exponential_,
            }[verb]
        self._drawn = draw
        self._wait()

    async def result(self) -> np.ndarray:
        found = np.concatenate([self._out[part].cpu().numpy() for part in ends(self._drawn.count)])
        return found.view(np.uint32) if self._drawn.law is BITS else found


SUBJECTS: Final[Mapping[str, Callable[[str], AbstractAsyncContextManager[Subject]]]] = {
    OURS: Ours.opened,
    RAW: Raw.opened,
    CUPY: Cupy.opened,
    TORCH: Torch.opened,
}


# --- questions and answers --------------------------------------------------------------------------------------------


async def take(subject: Subject, plan: Plan, number: int) -> str | None:
    """Make a draw ready; return why it cannot be measured, if that is so."""
    return await refusal(_draw(subject, plan.draws[number]))


async def _draw(subject: Subject, draw: Draw) -> None:
    """Draw twice, and compare the numbers with the distribution and with each other. Raises `Missing`."""
    await subject.place(draw)
    await subject.compute(1)
    first = await subject.result()
    await subject.compute(1)
    second = await subject.result()
    for sample in (first, second):
        deviation = draw.law.deviation_of(sample)
        if not deviation <= DEVIATIONS:
            raise Missing(f"wrong by {deviation:.2g} standard errors")
    if np.array_equal(first, second):
        raise Missing("the same numbers came twice")


async def answer(who: str, backend: str) -> None:
    """Answer questions until there are no more."""
    plan = PLANS[backend]
    async with SUBJECTS[who](backend) as subject:
        await answer_all(
            {
                "take": functools.partial(take, subject, plan),
                "turn": functools.partial(turn, subject),
                "caller": subject.caller,
            }
        )


if __name__ == "__main__":
    serve(answer)
