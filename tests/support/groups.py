"""Several devices at once, for tests: simulated ones, or the first ones of the machine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import atomr_trio
from support import chosen_backend, skip_without

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
) -> AsyncIterator[atomr_trio.Devices]:
    """Open the first devices as one group, whose kernels may use each other's arrays by default."""
    skip_without(count)
    options.setdefault("group_policy", options.get("restart_policy"))
    with simulated(count, access):
        async with atomr_trio.open_devices(range(count), peers=peers, backend=chosen_backend(), **options) as devices:
            yield devices
