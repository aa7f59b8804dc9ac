"""Copies of a MiB and more, for tests."""

from __future__ import annotations

import contextlib
import math
import random
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
import trio

import atomr_trio
from atomr_trio import ContextLost, RestartPolicy, StaleArray
from atomr_trio._device.device import core_of
from atomr_trio._transfers import held_copies
from atomr_trio._transfers.short_ways import ShortCopies
from atomr_trio._transfers.staging import Slot
from atomr_trio._transfers.transfers import Transfers
from atomr_trio._wire.protocol import LANE_COPY_IN, LANE_COPY_OUT

from . import open_test_device, set_constant
from .rogue import gated, kill_worker, until
from .strategies import numbers, same

LANES = {"in": LANE_COPY_IN, "out": LANE_COPY_OUT}
NAMES = {"in": "load_freely", "out": "store_freely"}


@contextlib.asynccontextmanager
async def scenario(**options: Any) -> AsyncIterator[atomr_trio.Device]:
    """A device whose copies have learnt the short way, and have no helpers."""
    with trio.fail_after(60):
        async with open_test_device(**options) as dev:
            core_of(dev).part(Transfers).crew.beside = 0
            await (await dev.to_device(np.zeros(10, np.uint8))).to_host()
            yield dev


def submitted(dev: atomr_trio.Device, lane: int) -> int:
    return dev.statistics().lanes[lane].submitted


def is_clean(dev: atomr_trio.Device) -> bool:
    """No slot is held, and no long copy under way."""
    device = core_of(dev)
    paths = device.part(ShortCopies)._paths.values()
    return device.part(Transfers).staging.idle and not any(path.long for path in paths)


def in_use(dev: atomr_trio.Device) -> int:
    return core_of(dev).current.arena.in_use


async def check_every_byte(dev: atomr_trio.Device, size: int, before: Callable[[], object] = lambda: None) -> None:
    """Copy so many bytes to an array and back, at its begin and behind it; `before` is called ahead of that."""
    array = dev.empty(size + 3, np.uint8)
    await array[:1].copy_from(np.ones(1, np.uint8))  # makes its memory
    before()
    for begin, seed in ((0, 1), (3, 2)):
        view = array[begin : begin + size]
        host, out = numbers(size, np.uint8, seed=seed), np.zeros(size, np.uint8)
        await view.copy_from(host)
        await view.copy_to(out)
        assert same(out, host)
    assert is_clean(dev)


def with_helpers(dev: Any, count: int = 2) -> Transfers:
    transfers = core_of(dev).part(Transfers)
    transfers.crew.beside = count
    return transfers


def verb(array: Any, direction: str) -> Callable[..., Any]:
    return array.copy_from if direction == "in" else array.copy_to


@contextlib.asynccontextmanager
async def held_up(dev: atomr_trio.Device, direction: str):
    """A gate before everything that the copies' lane is given in this block, if it is not opened."""
    blocked = await dev.to_device(np.zeros(10, np.uint8))
    async with gated(dev) as gate:
        before = submitted(dev, LANES[direction])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_fill, blocked)
            await until(lambda: blocked._block.writer is not None and blocked._block.writer[0] == 0)
            copy = blocked.copy_from if direction == "in" else blocked.copy_to
            nursery.start_soon(_whatever_becomes_of, copy, np.zeros(10, np.uint8))
            await until(lambda: submitted(dev, LANES[direction]) == before + 1)
            yield gate
            with contextlib.suppress(ContextLost):
                await gate.open()


async def _fill(array: Any) -> None:
    await _whatever_becomes_of(array.fill, 7)


async def _whatever_becomes_of(verb: Any, *arguments: object) -> None:
    with contextlib.suppress(ContextLost):
        await verb(*arguments)


class Memcpys:
    """Has the task's memcpys wait for one of a helper, or a helper's wait for `go`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, direction: str) -> None:
        self.by_task, self.by_helpers = [], []
        self.begun, self.go, self.helped = (threading.Event() for _ in range(3))
        self.helper_waits = False
        self.error: BaseException | None = None
        self._main = threading.current_thread()
        # A helper waits for the GPU as long as it takes.
        set_constant(monkeypatch, held_copies, "SPIN_SECONDS", 20.0)
        copy = getattr(Slot, NAMES[direction])
        monkeypatch.setattr(Slot, NAMES[direction], lambda slot, memory: self._copy(copy, slot, memory))

    def forget(self) -> None:
        """Forget the memcpys so far: the task waits for the next one of a helper."""
        self.by_helpers.clear()
        self.by_task.clear()
        self.helped.clear()

    def _copy(self, copy: Callable[[Slot, Any], None], slot: Slot, memory: Any) -> None:
        if threading.current_thread() is self._main:
            self.by_task.append(slot)
            assert (self.begun if self.helper_waits else self.helped).wait(20)
            copy(slot, memory)
            return
        self.by_helpers.append(slot)
        self.begun.set()
        if self.helper_waits:
            assert self.go.wait(20)
        if self.error is not None:
            self.helped.set()
            raise self.error
        copy(slot, memory)
        self.helped.set()


class RandomCopies:
    """Copies of parts of an array, many of which are cancelled or lose their worker, and what the array holds."""

    def __init__(self, dev: Any, seed: int, least: int, most: int) -> None:
        """The copies have between `least` and `most` bytes."""
        self.dev = dev
        self.kills = 0
        self._random = random.Random(seed)
        self._least, self._most = least, most
        self._first = numbers(most, np.uint8, seed=seed)

    async def play(self, kills: int) -> None:
        """Copy until so many workers were killed. What a copy to the host has returned is always right."""
        array = await self.dev.to_device(self._first)
        expected = self._first.copy()
        while self.kills < kills:
            size = self._random.randint(self._least, self._most)
            begin = self._random.randint(0, self._most - size)
            there, here = array[begin : begin + size], slice(begin, begin + size)
            incoming = self._random.random() < 0.5
            host = np.roll(self._first, self.kills + begin)[:size] + np.uint8(1) if incoming else np.zeros(size, "u1")
            done = await self._copy(there.copy_from if incoming else there.copy_to, host)
            written = expected.copy()
            if incoming:
                written[here] = host
            elif done:
                assert same(host, expected[here])
            got = await self._bytes_of(array, expected)
            assert same(got, written) or (not done and same(got, expected))
            expected = got

    async def _copy(self, verb: Any, host: Any) -> bool:
        done = False
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(self._disturb, scope)
            with scope, contextlib.suppress(ContextLost):
                await verb(host)
                done = True
        return done

    async def _disturb(self, scope: trio.CancelScope) -> None:
        kills, leaves = self._random.random() < 0.5, self._random.random() < 0.2
        await trio.sleep(self._random.random() * 4e-3)
        if kills:
            self.kills += 1
            kill_worker(self.dev)
        if leaves:
            scope.cancel()

    async def _bytes_of(self, array: Any, expected: Any) -> Any:
        while True:
            try:
                if array.state == "torn":
                    await array.copy_from(expected)
                return await array.to_host()
            except (ContextLost, StaleArray):  # the worker's end was noticed meanwhile
                await trio.sleep(0.005)


async def check_random_kills(kills: int, least: int, most: int) -> None:
    """Kill so many workers at any time under copies of `least` to `most` bytes; none may cost a byte."""
    with trio.fail_after(30 + kills):
        async with open_test_device(standby=1, restart_policy=RestartPolicy(intensity=math.inf)) as dev:
            with_helpers(dev, 1)
            await (await dev.to_device(np.zeros(10, np.uint8))).to_host()
            await RandomCopies(dev, kills, least, most).play(kills)
            await until(lambda: is_clean(dev))
