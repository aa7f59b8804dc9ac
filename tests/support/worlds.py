"""Worlds, for tests: groups that have one, and what is looked at after a loss."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import trio
import trio.testing

import atomr_trio
from support import ON_GPU
from support.groups import open_group
from support.rogue import compile_rogue, until

ANY_NUMBER = atomr_trio.RestartPolicy(intensity=math.inf, backoff_min=0.01)
DEADLINE = 60
SETTINGS: dict[str, str] = {"NVLS_ENABLE": "0"} if ON_GPU else {}
"""What worlds of tests tell NCCL: no multicast on the machines of this project."""


@contextlib.asynccontextmanager
async def open_world(count: int = 2, **options: Any) -> AsyncIterator[tuple[atomr_trio.Devices, atomr_trio.World]]:
    """Open a group and a world of all of its devices."""
    options.setdefault("restart_policy", ANY_NUMBER)
    deadline = options.pop("deadline", DEADLINE)
    settings = {"nccl": SETTINGS, "deterministic": options.pop("deterministic", True)}
    async with open_group(count, **options) as devices:
        with trio.fail_after(deadline):
            yield devices, await devices.world(**settings)


async def put(devices: Sequence[Any], *arrays: Any) -> list[Any]:
    """One array for each device."""
    return [await dev.to_device(np.asarray(array)) for dev, array in zip(devices, arrays, strict=True)]


async def get(arrays: Sequence[Any]) -> list[Any]:
    """The contents of several arrays."""
    return [await array.to_host() for array in arrays]


async def quiet() -> None:
    """Wait until nothing can go on. The watches of several devices wake up often, so the pause is short."""
    await trio.testing.wait_all_tasks_blocked(0.005)


async def under_way(world: atomr_trio.World, count: int = 1) -> None:
    """Wait until so many collectives of a world were published and are not over."""
    actor = world._actor
    await until(lambda: actor._epoch is not None and len(actor._epoch._pending) >= count)


async def tried(dev: Any, name: str) -> Any:
    """The kernel ``wild`` or ``spin``, which was launched once without harm.

    A driver loads a kernel when it is launched first, and waits for all that runs on the GPU. Behind a collective that
    waits for its other members, a fault would be late by as long as these take.
    """
    (kernel,) = await compile_rogue(dev, name)
    with await dev.to_device(np.ones(1, np.int32)) as word:
        await kernel.launch(1, 1, word.address, touches=[word])
    return kernel
