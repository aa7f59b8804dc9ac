"""Several devices at once, for tests: simulated ones, or the first ones of the machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import trio

from atomr_trio._device.lifetime import OpenedDevice, block_of, checked_options
from atomr_trio._generation.group import Group
from support import ON_GPU, chosen_backend

DEVICES = "ATOMR_TRIO_SIM_DEVICES"
PEERS = "ATOMR_TRIO_SIM_PEERS"


@contextlib.contextmanager
def simulated(count: int, peers: str | None = None) -> Iterator[None]:
    """Have the simulator's workers that are started here see so many devices.

    Those have peer access to each other as `peers` says, None for all.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DEVICES, str(count))
        if peers is None:
            patch.delenv(PEERS, raising=False)
        else:
            patch.setenv(PEERS, peers)
        yield


@contextlib.asynccontextmanager
async def open_group(
    count: int = 2, *, access: str | None = None, peers: bool = True, **options: Any
) -> AsyncIterator[Any]:
    """Open the first devices as one group."""
    if ON_GPU and len(os.listdir("/proc/driver/nvidia/gpus")) < count:
        pytest.skip(f"needs {count} GPUs")
    with simulated(count, access):
        backend, checked = checked_options(0, backend=chosen_backend(), **options)
        opened = [OpenedDevice(index, backend, checked) for index in range(count)]
        Group([each.core for each in opened], peers=peers)
        async with block_of(
            opened, [each.device for each in opened], trio.CancelScope(), lambda: None, [None] * count
        ) as devices:
            yield devices
