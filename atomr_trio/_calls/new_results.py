"""The lines by which a repeated call takes memory for its new results (``repeating.py``), and makes the arrays.

In a loop such as ``r = batch.blas.gemm(a, b)`` each result is dropped when the next one, or the one after it, is made.
Its block is then at the head of the arena's orphans. If only this lane has used it (`Block.fast`) and nobody else knows
it, it becomes the block of the new result as it is: the call runs behind all work on it. That needs neither the arena
nor an account of what to wait for. In every other case the arena allocates, and it is found whether the lane may write
to what that returns without waiting.

The call does not keep that block: it could not be used again before the call is seen to be done, and a batch is seen to
be done at its end. So each call would have a block of its own, in memory that no cache holds. Who must know the new
result of an unfinished call, because the call fails or is lost, finds it by its birth (`Arena.born`).
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getrefcount
from typing import TYPE_CHECKING, Any, Final

from .._arrays.arrays import DeviceArray, Layout, Storage
from .._memory.arena import AT_A_TIME, KNOWN_HERE_ALONE

if TYPE_CHECKING:
    from .._arrays.memory import DeviceMemory

_MAY_TAKE = """\
    if {new}.chunk.state is not READY or arena.quarantine:
        return False
    if {new}.readers and {new}.epoch == number:
        for other in {new}.readers:
            if other != lane and words[counter_word(other)] < {new}.readers[other]:
                return False
    if order.others is not None and order.others.uses({new}):
        return False
"""
_TAKES = """\
    {new}.epoch = number
    {new}.writer = me
    if {new}.readers:
        {new}.readers = {{}}
    {new}.written = True
    {new}.fast = token
"""
_BORN = "    {new}.born = {birth}\n"
_TAKE_AGAIN = """\
    made{i} = None
    if orphans:
        {new} = orphans[0]
        if (
            {new}.fast == token
            and {new}.nbytes == nbytes{i}
            and getrefcount({new}) == known_alone
            and not {new}.peers
            and not {new}.chunk.guard
            and not arena.quarantine
            and arena.promises is None
            and order.others is None
        ):
            orphans.popleft()
{collects}            {new}.recipe = None
            storage = bare(Storage)
            storage.memory = memory
            storage.device = device
            storage.block = {new}
            storage.uses = None
            made{i} = bare(DeviceArray)
            made{i}._storage = storage
            made{i}._offset = 0
            made{i}.shape = shape{i}
            made{i}.strides = strides{i}
            made{i}.dtype = made{i}._plain = dtype{i}
            made{i}._form = form{i}
    if made{i} is None:
"""
"""It makes the same array as `new_array`. Nothing may come between the look at the queue and the change of it."""
_COLLECTS = """\
            if orphans:
                arena.collect(AT_A_TIME)
"""
"""The others go to their bins when the last result of a call is made: they may be those of the earlier ones."""
_ALLOCATE = """\
    made{i} = allocate(layout{i}, form{i})
    {new} = made{i}._storage.block
"""


def may_take(new: str) -> str:
    """Return the lines that leave if the lane may not write the block of this name, which is new, without waiting."""
    return _MAY_TAKE.format(new=new)


def takes(new: str, birth: str = "") -> str:
    """Return the lines by which such a block becomes the lane's own; the result of a call has a birth."""
    return _TAKES.format(new=new) + (_BORN.format(new=new, birth=birth) if birth else "")


def birth_of(number: int) -> str:
    """Return the birth of the new result of this number, in the first part of a call (`Birth`)."""
    return f"(*me, {number})" if number else "me"


def made(i: int, new: str, *, again: bool, last: bool = True) -> str:
    """Return the lines that make an array for the new result of this number, with a block of this name.

    They leave if the lane may not write to it without waiting. `again` says that blocks may be taken again, `last` that
    it is the last new result of its call.
    """
    allocates = _ALLOCATE + may_take(new).replace("{", "{{").replace("}", "}}")
    if again:
        allocates = _TAKE_AGAIN + "".join(f"    {line}\n" for line in allocates.splitlines())
    return allocates.format(i=i, new=new, collects=_COLLECTS if last else "")


def takes_again(memory: DeviceMemory) -> bool:
    """Return whether a device's blocks may be taken again: nobody else must be told of a new array."""
    return memory.is_plain and KNOWN_HERE_ALONE > 0


def names_of_new(memory: DeviceMemory, new: Sequence[tuple[Layout, object]]) -> dict[str, Any]:
    """Return the names in those lines, for new results of these layouts and forms."""
    found = {
        "AT_A_TIME": AT_A_TIME,
        "DeviceArray": DeviceArray,
        "Storage": Storage,
        "allocate": memory.again,
        "bare": object.__new__,
        "device": memory.device,
        "getrefcount": getrefcount,
        "known_alone": _KNOWN_ALONE,
        "memory": memory,
        "orphans": memory.orphans,
    }
    for number, (layout, form) in enumerate(new):
        shape, strides, nbytes, dtype = layout
        each = {"layout": layout, "form": form, "shape": shape, "strides": strides, "nbytes": nbytes, "dtype": dtype}
        found |= {f"{name}{number}": value for name, value in each.items()}
    return found


_KNOWN_ALONE: Final = KNOWN_HERE_ALONE + 1
"""The references to a block that only such a function and the arena know: the queue of orphans has one as well."""
