"""Arrays of another device of the same group: whether a device can reach them, and its accounts of their memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from .._generation.peers import Peers
from .._values.errors import InvalidArgument
from .arrays import DeviceArray, Storage, check_usable
from .ownership import foreign

if TYPE_CHECKING:
    from .._generation.core import DeviceCore
    from .._memory.arena import Block


def check_of_group(device: DeviceCore, array: DeviceArray) -> None:
    """Raise `InvalidArgument` unless this is a usable array of the device, or of another device of its group.

    Raises `DeviceClosed` or `DeviceFailed` if its own device takes no requests any more.
    """
    owner = array._storage.device
    if owner is not device and (device.group is None or owner not in device.group.members):
        raise foreign(device, array)
    device.check_open()
    check_usable(owner, array)


def why_out_of_reach(device: DeviceCore, array: DeviceArray) -> str | None:
    """Return why a device of a group cannot map another's array; None if it can."""
    storage = array._storage
    owner = storage.device
    if owner.index not in device.info.peers or owner.index in device.part(Peers).unreachable:
        return f"device {device.index} has no peer access to device {owner.index}"
    if not owner.info.durable:
        return f"memory of device {owner.index} has no descriptors, and cannot be mapped elsewhere"
    if type(storage) is not Storage:
        return "it is a variable of a module, which only its own device can reach"
    if storage.memory.interop is not None and storage.memory.interop.uses(storage.block):
        return "it is shared with another library, whose work only its own device can be ordered with"
    return None


def block_of(device: DeviceCore, array: DeviceArray) -> Block:
    """Return the device's account of an array that it owns or can reach."""
    storage = array._storage
    if storage.device is device:
        return storage.block
    return device.part(Peers).account(storage.block, storage.device)


def check_operand(device: DeviceCore, array: DeviceArray) -> None:
    """Raise `InvalidArgument` for an array of another device that kernels of this one may not, or cannot, use."""
    owner = array._storage.device
    if device.group is None or owner not in device.group.members:
        raise foreign(device, array)
    owner.check_open()
    if not device.group.peers:
        why = f"kernels of device {device.index} take arrays of device {owner.index} only where that was asked for"
        advice = "open the group by open_devices(..., peers=True), or copy the array: `await mine.copy_from(array)`"
    elif device.options.checks:
        why = f"the checks of device {device.index} know its own arrays alone"
        advice = "open the group without `check`, or copy the array: `await mine.copy_from(array)`"
    else:
        found = why_out_of_reach(device, array)
        if found is None:
            return
        why, advice = found, "copy the array: `await mine.copy_from(array)`"
    raise InvalidArgument(
        f"{array!r} is of device {owner.index}: {why}",
        device=device.index,
        generation=device.generation,
        advice=advice,
    )


def operand_block(device: DeviceCore, array: DeviceArray) -> Block:
    """Return the device's account of another device's array that is given to one of its kernels.

    Raises `InvalidArgument`, and `trio.WouldBlock` if the array's memory does not exist yet: see `prepare`.
    """
    check_operand(device, array)
    if not exists(array):
        raise trio.WouldBlock(
            f"{array!r} has no memory yet on its own device: use the awaited form, which waits for it"
        )
    return block_of(device, array)


def exists(array: DeviceArray) -> bool:
    """Return whether the memory of an array exists and has its first contents, or never will."""
    block = array._storage.block
    return block.lost is not None or (block.recipe is None and block.chunk.descriptor >= 0)


async def prepare(array: DeviceArray) -> None:
    """Make the memory of an array exist before another device uses it.

    Raises what a command of its own device raises that reads it.
    """
    if not exists(array):
        owner = array._storage.device
        await owner.part(Peers).prepare(array._storage.block)
        if owner.current is not None and not exists(array):
            owner.current.inbox.drain()  # the descriptor comes before the end of the command
