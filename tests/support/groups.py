"""Several devices at once, for tests: simulated ones, or the first ones of the machine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import atomr_trio
from atomr_trio._device import group as _group
from atomr_trio._generation.peers import Peers
from support import ON_GPU, chosen_backend, set_constant, skip_without

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


@contextlib.contextmanager
def found_apart() -> Iterator[None]:
    """Have each member of a group that is opened here know, before it maps anything, that it cannot reach the others.

    So it is on a host whose driver grants access that does not work. The check of a group goes on from there.
    """
    check = _group.check_access

    async def note_and_check(group: Any) -> None:
        for member in group.members:
            member.part(Peers).unreachable.update(other.index for other in group.others(member))
        await check(group)

    with pytest.MonkeyPatch.context() as patch:
        set_constant(patch, _group, "check_access", note_and_check)
        yield


@contextlib.asynccontextmanager
async def open_group(
    count: int = 2, *, access: str | None = None, peers: bool = True, **options: Any
) -> AsyncIterator[atomr_trio.Devices]:
    """Open the first devices as one group, whose kernels may use each other's arrays by default.

    `access` is what the driver grants, which can be said of simulated devices alone; see also `found_apart`.
    """
    if access is not None and ON_GPU:
        raise ValueError("a real driver grants what it does, whatever a test wants; use found_apart()")
    skip_without(count)
    options.setdefault("group_policy", options.get("restart_policy"))
    with simulated(count, access):
        async with atomr_trio.open_devices(range(count), peers=peers, backend=chosen_backend(), **options) as devices:
            yield devices
