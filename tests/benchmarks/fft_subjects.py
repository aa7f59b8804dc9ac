"""The subjects of the benchmark of transforms, one in each process: `fft_subjects.py WHO BACKEND`.

A subject is asked for four things. It makes a transform ready (`take NUMBER`, by the place in the plan). It computes it
so many times and waits once (`turn COUNT`). It tells the caller's time of each of so many calls that nobody waits for
(`caller COUNT`), and the time of the first use of a transform in its process (`first NUMBER`).

All have the same numbers, drawn from the normal distribution, and all results are compared with numpy's before anything
is timed. atomr_trio and the bare calls write to memory that they hold; the functions of CuPy and PyTorch take that of
their results from a pool. These two keep plans as they do for everyone. They load cuFFT when they are imported, so
their first plan does not have to; that of the others does.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from ctypes import byref, c_longlong, c_size_t
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
    check_error,
    checked,
    each,
    refusal,
    serve,
    turn,
)

# --- what is computed -------------------------------------------------------------------------------------------------

CALLER_ROW: Final = "a transform that nobody waits for, caller"
PRIME: Final = 1_048_573
"""The largest below 2^20."""
ERRORS: Final = {False: 1e-5, True: 1e-13}
"""By single or double precision, the most that a result may be wrong by: a wrong call is found by it, and no more."""


@attrs.frozen
class Transform:
    """A transform of contiguous arrays from one to the other, forward or, if it is real, in both directions."""

    verb: str
    """Its name in ``numpy.fft``."""
    lengths: tuple[int, ...]
    count: int = 1
    double: bool = False
    exact: bool = False
    """True for an inverse with its defaults: the input is kept, and the result is scaled. Others do neither."""
    note: str = ""

    @property
    def name(self) -> str:
        """Its row in the table."""
        lengths = self.lengths
        power = len(lengths) == 1 and lengths[0].bit_count() == 1
        size = f"2^{lengths[0].bit_length() - 1}" if power else " x ".join(map(str, lengths))
        kind = " complex128" if self.double else ""
        stack = f"{self.count} of " if self.count > 1 else ""
        default = ", by default" if self.exact else ""
        return f"{self.verb}{kind}, {stack}{size}{default}{self.note}"

    @property
    def judged(self) -> bool:
        """True if the bare call does the same, and no less."""
        return not self.exact

    @property
    def points(self) -> int:
        """Those of one of them."""
        return math.prod(self.lengths)

    @property
    def operations(self) -> float:
        """Multiplications and additions, by the usual measure: a real transform has half as many."""
        return (5 if self.letters == "CC" else 2.5) * self.count * self.points * math.log2(self.points)

    @property
    def letters(self) -> str:
        """The types of the input and of the output, real or complex."""
        return {"rfft": "RC", "irfft": "CR"}.get(self.verb, "CC")

    def shape(self, side: int) -> tuple[int, ...]:
        """That of the input (0) or of the output (1)."""
        stack = (self.count,) if self.count > 1 else ()
        *others, last = self.lengths
        halved = self.letters != "CC" and self.letters[side] == "C"
        return (*stack, *others, last // 2 + 1 if halved else last)

    def dtype(self, side: int) -> np.dtype[Any]:
        """That of the input (0) or of the output (1)."""
        kinds = {"C": (np.complex64, np.complex128), "R": (np.float32, np.float64)}
        return np.dtype(kinds[self.letters[side]][self.double])

    def options(self) -> dict[str, Any]:
        """The arguments beside the arrays."""
        return {"norm": "forward", "overwrite_x": True} if self.letters == "CR" and not self.exact else {}

    @property
    def scale(self) -> float:
        """The factor by which the library's own result differs."""
        return 1 / self.points if self.exact else 1.0


@attrs.frozen
class Plan:
    """What is computed, and how long."""

    transforms: tuple[Transform, ...]
    seconds: float
    """The approximate length of each turn."""
    repetitions: int
    calls: int
    """Calls of which the caller's time is taken, fewer than a stream takes without blocking."""
    new: tuple[Transform, ...]
    """Transforms that are used for the first time, one after the other, in a process that has used none."""
    starts: int
    """Processes of each subject in which that is done."""
    uncounted: int
    """The first of them, which fill caches, do not count."""


def _transforms(short: int, medium: int, long: int, prime: int, batch: int) -> Iterator[Transform]:
    """Those that are measured; the lengths are powers of two, given as these."""
    for power in range(short, long + 1, (long - short) // 4):
        yield Transform("fft", (1 << power,))
    yield Transform("fft", (1 << medium,), double=True)
    for power in (medium, medium + 2):
        yield Transform("rfft", (1 << power,))
        yield Transform("irfft", (1 << power,))
        yield Transform("irfft", (1 << power,), exact=True)
    yield Transform("fft2", (1 << medium // 2 + 1,) * 2)
    yield Transform("fftn", (1 << medium // 2 - 3,) * 3)
    yield Transform("fft", (1 << short,), batch)
    yield Transform("fft", (prime,), note=", prime")


PLANS: Final[Mapping[str, Plan]] = {
    "cuda": Plan(
        transforms=tuple(_transforms(10, 22, 26, PRIME, 4096)),
        seconds=0.15,  # the end of a batch is seen later than that of a stream: by half a millisecond or so
        repetitions=9,
        calls=500,
        new=(
            Transform("fft", (1 << 18,)),
            Transform("fft", (1 << 18,), 2),
            Transform("fft", (1 << 19,)),
            Transform("rfft", (1 << 20,)),
            Transform("fft", (PRIME,), note=", prime"),
            Transform("fftn", (256,) * 3),
        ),
        starts=5,
        uncounted=1,
    ),
    "sim": Plan(
        transforms=tuple(_transforms(3, 8, 7, 17, 4)),
        seconds=0.0,
        repetitions=2,
        calls=5,
        new=(Transform("fft", (16,)), Transform("fft", (32,))),
        starts=1,
        uncounted=0,
    ),
}
"""The simulator shows that everything works, and says nothing of speed."""


class Numbers:
    """The input of a transform on the host."""

    def __init__(self, transform: Transform) -> None:
        self._transform = transform
        dtype, shape = transform.dtype(0), transform.shape(0)
        count = math.prod(shape) * (2 if dtype.kind == "c" else 1)
        drawn = np.random.default_rng(7).standard_normal(count, dtype="f8" if transform.double else "f4")
        self.source: np.ndarray = drawn.view(dtype).reshape(shape)
        if transform.letters == "CR":  # so it is the transform of real numbers
            for index in (0, -1):
                self.source[..., index].imag = 0

    def error_of(self, result: np.ndarray) -> float:
        """The relative error of a result, in the Euclidean norm."""
        wide = self.source.astype(np.complex128 if self.source.dtype.kind == "c" else np.float64)
        expected = getattr(np.fft, self._transform.verb)(wide, norm=self._transform.options().get("norm"))
        return float(np.linalg.norm((result - expected).ravel()) / np.linalg.norm(expected.ravel()))


# --- the subjects -----------------------------------------------------------------------------------------------------


class Subject(Computing, Protocol):
    """A subject that transforms arrays."""

    async def place(self, transform: Transform, numbers: Numbers) -> None:
        """Put the arrays to the device, and let go of those before. A plan is made by the first computation."""

    async def result(self) -> np.ndarray:
        """The output."""

    async def caller(self, count: int) -> dict[str, float]:
        """By row, the seconds that each of so many calls takes of the caller."""

    def workspace(self) -> int | None:
        """The bytes of its workspace, if it tells."""


class Ours:
    """atomr_trio, in a batch."""

    _x: Any
    _out: Any
    _options: Any

    def __init__(self, dev: Any) -> None:
        self._dev = dev
        self._kernel: Any = None

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, backend: str) -> AsyncIterator[Ours]:
        import atomr_trio

        async with atomr_trio.open_device(0, backend=backend) as dev:  # type: ignore[arg-type]
            yield cls(dev)

    async def place(self, transform: Transform, numbers: Numbers) -> None:
        self._x = self._out = self._options = None
        self._x = await self._dev.to_device(numbers.source)
        self._out = self._dev.empty(transform.shape(1), transform.dtype(1))
        await self._out.fill(0)
        self._verb = transform.verb
        self._options = {"out": self._out, **transform.options()}

    async def compute(self, count: int) -> None:
        x, options = self._x, self._options
        async with self._dev.batch() as batch:
            compute = getattr(batch.fft, self._verb)
            for _ in range(count):
                compute(x, **options)

    async def result(self) -> np.ndarray:
        found: np.ndarray = await self._out.to_host()
        return found

    async def caller(self, count: int) -> dict[str, float]:
        dev = self._dev
        if self._kernel is None:
            self._kernel = await dev.nvrtc.compile(EMPTY, "empty")
            self._launched = (1, 1, 1.0, dev.zeros(1, np.float32), dev.zeros(1, np.float32), 1)

        def transform(batch: Any) -> Callable[[], object]:
            return functools.partial(getattr(batch.fft, self._verb), self._x, **self._options)

        def launch(batch: Any) -> Callable[[], object]:
            return functools.partial(batch.launch, self._kernel, *self._launched)

        return {CALLER_ROW: await self._each(count, transform), LAUNCH_ROW: await self._each(count, launch)}

    async def _each(self, count: int, call_of: Callable[[Any], Callable[[], object]]) -> float:
        async with self._dev.batch() as batch:
            return each(count, call_of(batch))

    def workspace(self) -> int | None:
        """That of the lane, which all plans share: it is as large as the largest needs it."""
        nbytes: int = self._dev.statistics().memory.workspaces
        return nbytes


class Foreign(Others):
    """What the others have in common."""

    async def caller(self, count: int) -> dict[str, float]:
        self._wait()
        seconds = each(count, self._call)
        self._wait()
        return {CALLER_ROW: seconds}

    def workspace(self) -> int | None:
        return None


class Raw(Bare, Foreign):
    """cuFFT, called through ctypes as this library declares it. It scales nothing, whatever the transform."""

    def __init__(self) -> None:
        from atomr_cuda import cufft

        super().__init__()
        self._cufft = cufft
        self._plan: int | None = None
        self._size = c_size_t()

    async def place(self, transform: Transform, numbers: Numbers) -> None:
        if self._plan is not None:
            self._cufft.cufftDestroy(self._plan)
            self._plan = None
        self._free_all()
        self._scale = transform.scale
        self._result = np.zeros(transform.shape(1), transform.dtype(1))
        x, self._out = self._upload(numbers.source), self._upload(self._result)
        self._settle()

        def make_and_call() -> None:
            self._call = checked(self._planned(transform, x, self._out))
            self._call()

        self._call = make_and_call

    def _planned(self, transform: Transform, x: int, out: int) -> Callable[[], int]:
        cufft, plan = self._cufft, self._cufft.cufftHandle()
        names = {"CC": "C2C", "RC": "R2C", "CR": "C2R"} if not transform.double else {"CC": "Z2Z"}
        name, lengths = names[transform.letters], transform.lengths
        cufft.cufftCreate(byref(plan))
        self._plan = plan.value
        cufft.cufftSetAutoAllocation(self._plan, 0)
        packed = (None, 1, 0)  # one behind the other
        cufft.cufftMakePlanMany64(
            *(self._plan, len(lengths), (c_longlong * len(lengths))(*lengths), *packed, *packed),
            *(cufft.cufftType[f"CUFFT_{name}"], transform.count, byref(self._size)),
        )
        cufft.cufftSetStream(self._plan, self._stream)
        if self._size.value:
            cufft.cufftSetWorkArea(self._plan, self._memory(self._size.value))
        direction = (cufft.CUFFT_FORWARD,) if transform.letters == "CC" else ()
        return functools.partial(cufft.library.functions[f"cufftExec{name}"].bind(), self._plan, x, out, *direction)

    async def result(self) -> np.ndarray:
        found: np.ndarray = self._download(self._out, self._result) * self._result.dtype.type(self._scale)
        return found

    def workspace(self) -> int | None:
        """That of this plan alone."""
        return self._size.value


class Pooled(Foreign):
    """The functions of others, whose results are new arrays in memory of a pool."""

    _out: Any

    def _use(self, function: Callable[..., Any], x: Any, options: dict[str, Any]) -> None:
        def call() -> None:
            self._out = function(x, **options)

        self._call, self._out = call, None


class Cupy(OnCupy, Pooled):
    """CuPy, by its functions with scipy's names."""

    def __init__(self) -> None:
        super().__init__()
        self._fft: Any = importlib.import_module("cupyx.scipy.fft")

    async def place(self, transform: Transform, numbers: Numbers) -> None:
        self._use(getattr(self._fft, transform.verb), self._cupy.asarray(numbers.source), transform.options())
        self._wait()

    async def result(self) -> np.ndarray:
        found: np.ndarray = self._out.get()
        return found


class Torch(OnTorch, Pooled):
    """PyTorch. It copies the input of each inverse to real numbers, and to an `out` it copies the result."""

    async def place(self, transform: Transform, numbers: Numbers) -> None:
        if transform.options():
            raise Missing("PyTorch has no transform that does without a copy")
        self._use(getattr(self._torch.fft, transform.verb), self._torch.from_numpy(numbers.source).cuda(), {})
        self._wait()

    async def result(self) -> np.ndarray:
        found: np.ndarray = self._out.cpu().numpy()
        return found


SUBJECTS: Final[Mapping[str, Callable[[str], AbstractAsyncContextManager[Subject]]]] = {
    OURS: Ours.opened,
    RAW: Raw.opened,
    CUPY: Cupy.opened,
    TORCH: Torch.opened,
}


# --- questions and answers --------------------------------------------------------------------------------------------


async def take(subject: Subject, plan: Plan, number: int) -> str | None:
    """Make a transform ready; return why it cannot be measured, if that is so."""
    return await refusal(_use(subject, plan.transforms[number], []))


async def first(subject: Subject, plan: Plan, number: int) -> dict[str, Any]:
    """Use a transform for the first time: the seconds until the result is there, and the bytes of the workspace."""
    seconds: list[float] = []
    refused = await refusal(_use(subject, plan.new[number], seconds))
    return {"refused": refused} if refused else {"seconds": seconds[0], "workspace": subject.workspace()}


async def _use(subject: Subject, transform: Transform, seconds: list[float]) -> None:
    """Compute it once, with the time that this takes, and check the result. Raises `Missing`."""
    numbers = Numbers(transform)
    await subject.place(transform, numbers)
    begun = time.perf_counter()
    await subject.compute(1)
    seconds.append(time.perf_counter() - begun)
    check_error(numbers.error_of(await subject.result()), ERRORS[transform.double])


async def answer(who: str, backend: str) -> None:
    """Answer questions until there are no more."""
    plan = PLANS[backend]
    async with SUBJECTS[who](backend) as subject:
        await answer_all(
            {
                "take": functools.partial(take, subject, plan),
                "turn": functools.partial(turn, subject),
                "caller": subject.caller,
                "first": functools.partial(first, subject, plan),
            }
        )


if __name__ == "__main__":
    serve(answer)
