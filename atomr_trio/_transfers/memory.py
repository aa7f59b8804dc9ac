"""Fills, and helpers for every verb that writes an array: verbs of the memory actor. Copies are in ``copies.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import trio

from .._arrays import layout as _layout
from .._arrays.arrays import check_usable
from .._generation.requests import CommandRequest
from .._memory.arena import Block
from .._values.dtypes import number_kind
from .._values.errors import InvalidArgument
from .._values.util import shown
from .._wire.protocol import LANE_COMPUTE, Role
from .._wire.records.memory import FILL

if TYPE_CHECKING:
    from .._arrays.arrays import DeviceArray
    from .._generation.requests import Series

T = TypeVar("T")


def tear(block: Block, error: BaseException, *, begun: int, pieces: int) -> None:
    """Mark the array of a writing verb of several commands as torn when `error` ends the verb early.

    If the caller is cancelled (anything but an `Exception`), begun commands go on: if all were begun, the array is
    complete.
    """
    finishes = begun == pieces and not isinstance(error, Exception)
    if pieces > 1 and begun and not finishes and not block.freed:
        block.fast = 0
        block.tear(block.torn or f"a write that did not finish ({type(error).__name__})")


def tear_halves(requests: Sequence[CommandRequest | Series], error: BaseException, failed: object) -> None:
    """Mark the arrays that a verb of several commands leaves half written when `error` ends it early.

    Commands that had begun after the one that `failed`, if one has, have worked on its missing results.
    """
    writers: dict[Block, list[CommandRequest | Series]] = {}
    misled: set[Block] = set()
    behind = False
    for request in requests:
        written = [block for block, role in request.operands if role is not Role.READ]
        for block in written:
            writers.setdefault(block, []).append(request)
        if behind and request.sent:
            misled.update(written)
        behind = behind or request is failed
    for block, those in writers.items():
        tear(block, error, begun=sum(each.sent for each in those), pieces=len(those) + (block in misled))


async def ask_all(target: DeviceArray, requests: Sequence[CommandRequest]) -> None:
    """Overwrite an array by several commands, one after another."""
    if not requests:
        await trio.lowlevel.checkpoint()
    for number, request in enumerate(requests):
        try:
            await target._storage.device.memory_actor.mailbox.ask(request)
        except BaseException as error:
            tear(target._block, error, begun=number + request.sent, pieces=len(requests))
            raise


def overlap(first: DeviceArray, second: DeviceArray) -> bool:
    """Return whether the byte ranges of two views of one block overlap. It may be true for disjoint elements."""
    (begin, end), (other_begin, other_end) = reach(first), reach(second)
    return first.size > 0 and begin < other_end and other_begin < end


def reach(array: DeviceArray) -> tuple[int, int]:
    """Return the address of the lowest byte of a non-empty array, and that behind the highest."""
    steps = [(length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)]
    low = array.address + sum(step for step in steps if step < 0)
    return low, array.address + sum(step for step in steps if step > 0) + array.itemsize


def plan_fill(array: DeviceArray, value: complex | np.generic, lane: int = LANE_COMPUTE) -> list[CommandRequest]:
    """Return the requests that set every element of a checked array.

    Raises `InvalidArgument` for a value that the dtype cannot hold.
    """
    return plan_pattern(array, pattern_of(value, array.dtype), lane)


def plan_pattern(array: DeviceArray, pattern: bytes, lane: int) -> list[CommandRequest]:
    """Return the requests that set every element of a checked array to these bytes."""
    packing = _layout.packing(array.shape, array.strides)
    base = array.address + packing.offset
    role = Role.OVERWRITE if array._covers_block else Role.WRITE
    requests = []
    for rows in _layout.rows(packing.shape, array.itemsize, packing.strides, packing.strides):
        fields = (base + rows.offset, rows.pitch, array.itemsize, rows.width // array.itemsize, rows.height)
        payload, operands = FILL.struct.pack(*fields, pattern), ((array._block, role),)
        requests.append(CommandRequest(FILL, payload, operands, keep=array, lane=lane, operation="memory.fill"))
        role = Role.WRITE
    return requests


@trio.lowlevel.enable_ki_protection
async def fill(array: DeviceArray, value: complex | np.generic) -> None:
    """Set every element. See `DeviceArray.fill`."""
    check_usable(array._storage.device, array)
    await ask_all(array, plan_fill(array, value))


def pattern_of(value: object, dtype: np.dtype[Any]) -> bytes:
    """Return the bytes of one element with this value; raises `InvalidArgument` if the dtype cannot hold it."""
    try:
        kind = number_kind(dtype)
        # numpy makes an object array of an int above 64 bits, but a float array may hold the value.
        wide = isinstance(value, int) and not -(2**63) <= value < 2**64
        if wide and kind in "biu":
            raise TypeError("it is out of range")
        scalar = np.asarray(float(value) if wide else value)  # type: ignore[arg-type]
        given = number_kind(scalar.dtype)
        if scalar.ndim or given not in "biufc":
            raise TypeError(f"a {type(value).__name__} is not a number")
        if given == "c" and kind != "c":
            raise TypeError("a complex number does not fit in a real array")
        if given in "fc" and kind in "biu":
            raise TypeError("a float does not fit in an integer array")
        if kind in "iu" and not np.iinfo(dtype).min <= int(scalar) <= np.iinfo(dtype).max:
            raise TypeError("it is out of range")
        with np.errstate(over="ignore", invalid="ignore"):
            element = scalar.astype(dtype)
        # A type without infinities converts too large values to NaN.
        parts = (np.real, np.imag) if kind == "c" else (np.asarray,)
        if kind in "fc" and any(_special(part(element)) != _special(part(scalar)) for part in parts):
            raise TypeError("it is out of range")
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"cannot fill {dtype.name} elements with {shown(value)}: {error}") from None
    return element.tobytes()


def _special(number: npt.NDArray[Any]) -> tuple[bool, bool]:
    """Return whether a real number is NaN, and whether it is infinite. ml_dtypes warns of a NaN that signals."""
    with np.errstate(invalid="ignore"):
        return bool(np.isnan(number)), bool(np.isinf(number))
