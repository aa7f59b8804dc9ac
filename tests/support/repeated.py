"""What tests of repeated calls share: both forms of calling, and which way a call has taken."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from atomr_trio._calls.known import KnownCall, KnownCalls
from atomr_trio._calls.launching import AwaitedLaunches
from atomr_trio._calls.verbs import Library
from atomr_trio._device.device import core_of

N = 4
LIBRARIES = ("blas", "blaslt")

Numbers = npt.NDArray[Any]


def matrix(seed: int, dtype: Any = np.float32) -> Numbers:
    """Small whole numbers, so that products are exact."""
    return np.random.default_rng(seed).integers(-3, 4, (N, N)).astype(dtype)


class Ways:
    """Which way a call takes: it is "planned", goes the "general" way without that, or the "short" one."""

    def __init__(self, dev: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._planned = self._published = 0
        self.verbs: list[str] = []
        """Under which verbs calls were published, but for those that went the short way."""
        plan, generation = Library._planner, core_of(dev).current
        publish = generation.publish

        def planned(library: Any) -> Any:
            self._planned += 1
            return plan(library)

        def published(lane: int, verb: Any, *arguments: Any, **more: Any) -> Any:
            if verb.engine in LIBRARIES and verb.name != "define":
                self._published += 1
                self.verbs.append(verb.name)
            return publish(lane, verb, *arguments, **more)

        monkeypatch.setattr(Library, "_planner", planned)
        monkeypatch.setattr(generation, "publish", published)

    def forget(self) -> None:
        """Begin anew: many calls were made."""
        self._planned = self._published = 0

    def last(self) -> str:
        """The way of the one call that was made since this was asked."""
        planned, published = self._planned, self._published
        self.forget()
        assert planned <= published <= 1
        return "planned" if planned else "general" if published else "short"


class Form:
    """One form of calling: awaited, or in a batch, whose calls are done with the next `flush`."""

    def __init__(self, dev: Any, batch: Any = None) -> None:
        self.dev = dev
        self.batch = batch

    async def __call__(self, verb: str, *arguments: Any, library: str = "blas", **keywords: Any) -> Any:
        result = getattr(getattr(self.batch or self.dev, library), verb)(*arguments, **keywords)
        return await result if self.batch is None else result

    async def write(self, array: Any, numbers: Any) -> None:
        if self.batch is None:
            await array.copy_from(numbers)
        else:
            self.batch.copy_from(array, numbers)

    async def read(self, array: Any) -> Numbers:
        """The elements; in a batch they are there after `flush`."""
        return await array.to_host() if self.batch is None else self.batch.to_host(array)

    async def flush(self) -> None:
        if self.batch is not None:
            await self.batch.flush()

    @property
    def launchers(self) -> Any:
        """The calls that go the short way."""
        path = core_of(self.dev).part(AwaitedLaunches).path if self.batch is None else self.batch._sender.path
        return {} if path is None else path.launchers


@contextlib.asynccontextmanager
async def form(dev: Any, name: str) -> Any:
    if name == "awaited":
        yield Form(dev)
        return
    async with dev.batch() as batch:
        yield Form(dev, batch)


both = pytest.mark.parametrize("name", ["awaited", "in a batch"])


def repeated(name: str, taken: list[str]) -> bool:
    """Tell whether calls went the way of repetitions whose arrays other lanes use between them.

    Awaited calls find that use done. In a batch it may or may not be, which makes the difference.
    """
    return set(taken) <= ({"short"} if name == "awaited" else {"short", "general"})


async def given(dev: Any, *seeds: int, dtype: Any = np.float32) -> list[Any]:
    return [await dev.to_device(matrix(seed, dtype)) for seed in seeds]


def known(dev: Any) -> list[KnownCall]:
    return list(core_of(dev).part(KnownCalls)._calls.values())


def blas_actor(dev: Any) -> Any:
    return next(actor for actor in dev.statistics().actors if actor.name == "blas")


async def made_short(call: Form, verb: str, *arguments: Any, **keywords: Any) -> None:
    """Make a call often enough that it goes the short way."""
    for _ in range(3):
        await call(verb, *arguments, **keywords)
    await call.flush()
