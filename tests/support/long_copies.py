"""Copies of a MiB and more, for tests."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import trio

import atomr_trio
from atomr_trio._device.device import core_of
from atomr_trio._transfers.short_ways import ShortCopies
from atomr_trio._transfers.transfers import Transfers

from . import open_test_device
from .strategies import numbers, same


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
