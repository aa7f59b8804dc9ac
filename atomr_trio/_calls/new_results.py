"""The short way of a repeated call with a new result: one function takes the memory, sends the record, makes the array.

In a loop such as ``r = batch.blas.gemm(a, b)`` each result is dropped when the next one, or the one after it, is made.
Its block is then at the head of the arena's orphans. If only this lane has used it (`Block.fast`) and nobody else knows
it, it becomes the block of the new result as it is: the call runs behind all work on it. That needs neither the arena
nor an account of what to wait for. In every other case the arena allocates, and it is found whether the lane may write
to what that returns without waiting (``repeating.py``).

The call does not keep that block: it could not be used again before the call is seen to be done, and a batch is seen to
be done at its end. So each call would have a block of its own, in memory that no cache holds. Who must know the new
result of an unfinished call, because the call fails or is lost, finds it by its birth (`Arena.born`).
"""

from __future__ import annotations

import functools
from sys import getrefcount
from types import CodeType
from typing import TYPE_CHECKING, Protocol, cast

from .._arrays.arrays import DeviceArray, Storage
from .._memory.arena import AT_A_TIME, KNOWN_HERE_ALONE
from .repeating import (
    Access,
    arrays_of_call,
    checks_of_call,
    launcher_of,
    may_take,
    notes_of_call,
    record,
    takes,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._arrays.memory import DeviceMemory
    from .._generation.timeline import LaunchOwner
    from .known import KnownCall, Source
    from .launching import LaunchPath


class NewLauncher(Protocol):
    """The function of one form of calls with a new result."""

    def __call__(
        self, call: KnownCall, given: tuple[object, ...], owner: LaunchOwner, numbers: Sequence[int] = (), /
    ) -> DeviceArray | None:
        """Write the record of the call into the ring, and return its result.

        Returns None, without any effect, if it must go the general way. See `CallLauncher` for what it is given.
        """


_BEGIN = """\
def launch(call, given, owner, numbers=()):
    sent = sender.sent + 1
    if not here() or (sent > path.last_record and not path.look_again()):
        return None
"""
_TAKE_AGAIN = """\
    if orphans:
        new = orphans[0]
        if (
            new.fast == token
            and new.nbytes == nbytes
            and getrefcount(new) == known_alone
            and not new.peers
            and not new.chunk.guard
            and not arena.damaged
            and not arena.quarantine
            and arena.promises is None
            and order.others is None
        ):
            orphans.popleft()
            if orphans:
                arena.collect(AT_A_TIME)
            new.recipe = result = None
        else:
            new = None
    else:
        new = None
    if new is None:
"""
_ALLOCATE = """\
    result = call.new_result(memory)
    new = result._storage.block
"""
_BIRTH = "    new.born = me\n"
_END = """\
    if result is None:
        storage = bare(Storage)
        storage.memory = memory
        storage.device = device
        storage.block = new
        storage.uses = None
        result = bare(DeviceArray)
        result._storage = storage
        result._offset = 0
        result.shape = shape
        result.strides = strides
        result.dtype = result._plain = dtype
        result._form = form
    return result
"""
_TAKEN_AGAIN = KNOWN_HERE_ALONE + 1
"""The references to a block that nobody but `launch` and the arena knows: the queue of orphans has one as well."""


@functools.lru_cache(maxsize=1024)
def _compiled(access: Access, sources: tuple[Source, ...], *, again: bool) -> CodeType:
    allocate = _ALLOCATE + may_take("new")
    if again:
        allocate = _TAKE_AGAIN + "".join(f"    {line}\n" for line in allocate.splitlines())
    looks = arrays_of_call([*(i for i, _ in access), *(i for i, _ in sources if i >= 0)])
    text = _BEGIN + looks + checks_of_call(access) + allocate + "    word = new.address\n"
    text += record(notes_of_call(access) + takes("new") + _BIRTH, words(sources))
    return compile((text + _END).replace("return False", "return None"), "<a repeated call>", "exec")


def new_launcher(path: LaunchPath, call: KnownCall, memory: DeviceMemory) -> NewLauncher:
    """Return the function of a form of calls with a new result for the lane of a path. It holds no array."""
    new = call.new
    assert new is not None
    shape, strides, nbytes, dtype = new.layout
    more = {
        "AT_A_TIME": AT_A_TIME,
        "DeviceArray": DeviceArray,
        "Storage": Storage,
        "bare": object.__new__,
        "device": memory.device,
        "dtype": dtype,
        "form": new.form,
        "getrefcount": getrefcount,
        "known_alone": _TAKEN_AGAIN,
        "memory": memory,
        "nbytes": nbytes,
        "orphans": memory.orphans,
        "shape": shape,
        "strides": strides,
    }
    code = _compiled(call.access, call.sources, again=memory.is_plain and KNOWN_HERE_ALONE > 0)
    return cast("NewLauncher", launcher_of(path, call, code, more))
