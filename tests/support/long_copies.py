"""Copies of a MiB and more, for tests."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
import trio

import atomr_trio
from atomr_trio import ContextLost
from atomr_trio._device.device import core_of
from atomr_trio._transfers import held_copies
from atomr_trio._transfers.short_ways import ShortCopies
from atomr_trio._transfers.staging import Slot
from atomr_trio._transfers.transfers import Transfers
from atomr_trio._wire.protocol import LANE_COPY_IN, LANE_COPY_OUT

from . import open_test_device, set_constant
from .rogue import gated, until
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
