"""A copy between each two devices of a group that is compared, before any program relies on their access to each other.

The driver's word is not enough: on some virtualised hosts it grants access, and the mapping is a private copy.
"""

from __future__ import annotations

import contextlib
import logging

import numpy as np
import numpy.typing as npt
import trio

from .._arrays.arrays import DeviceArray
from .._arrays.memory import DeviceMemory
from .._generation.core import DeviceCore
from .._generation.group import Group
from .._generation.peers import Peers
from .._values.errors import CommandFailed, DeviceError, OutOfHostMemory

log = logging.getLogger("atomr_trio.device")
WORDS = 64


@trio.lowlevel.enable_ki_protection
async def check_access(group: Group) -> None:
    """Copy once from each device of a group to each that can access it, and note where other bytes arrive.

    Between those, arrays are copied through the host from then on.
    """
    sent: dict[DeviceCore, DeviceArray] = {}

    async def send(member: DeviceCore) -> None:
        with contextlib.suppress(DeviceError):  # a device that is lost or out of memory now is not judged
            sent[member] = await _array(member, _words_of(member))

    async def receive(member: DeviceCore) -> None:
        for other in group.others(member):
            if other in sent and other.index in member.info.peers:
                with contextlib.suppress(DeviceError):
                    await _compare(member, other, sent[other])

    for step in (send, receive):
        async with trio.open_nursery() as nursery:
            for member in group.members:
                nursery.start_soon(step, member)
    for array in sent.values():
        array.free()


def _words_of(member: DeviceCore) -> npt.NDArray[np.uint64]:
    """Return numbers that no other device has."""
    return np.arange(WORDS, dtype=np.uint64) + np.uint64((member.index + 1) << 32)


async def _array(member: DeviceCore, host: npt.NDArray[np.uint64]) -> DeviceArray:
    array = member.part(DeviceMemory).empty(WORDS, np.uint64)
    await array.copy_from(host)
    return array


async def _compare(member: DeviceCore, other: DeviceCore, theirs: DeviceArray) -> None:
    why: object = "other bytes arrive"
    mine = await _array(member, np.zeros(WORDS, np.uint64))
    try:
        await mine.copy_from(theirs)
        right = np.array_equal(await mine.to_host(), _words_of(other))
    except (CommandFailed, OutOfHostMemory) as error:
        right, why = False, error
    mine.free()
    if not right:
        log.warning(
            "device %d does not read the memory of device %d, though the driver grants access: %s",
            member.index,
            other.index,
            why,
        )
        member.part(Peers).unreachable.add(other.index)
