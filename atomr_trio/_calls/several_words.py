"""The short way into the ring of calls that differ in several words, and may have several new arrays.

Their function is generated from the text of that of a repeated call (``repeating.py``), which has one word alone or one
new array. The checks of new arrays are inline here, because a call for each would cost more.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, Protocol, cast

from .._arrays.arrays import DeviceArray
from .._generation.timeline import LaunchOwner, Operand
from .._memory.arena import Block
from .repeating import _MAY_TAKE, _NOTES_OF_FIXED, _TAKES, _TEXT, RepeatedCall, _launcher

if TYPE_CHECKING:
    from .._generation.generation import Generation
    from .launching import LaunchPath


class WordsCall(RepeatedCall, Protocol):
    """A call whose records differ in some words."""

    blocks: tuple[Operand, ...]
    """The memory that it was given."""
    reads: tuple[Block, ...]
    writes: tuple[Block, ...]

    def may_be_short(self, generation: Generation, lane: int) -> bool:
        """Return whether its records may go straight into the ring."""


WordsLauncher = Callable[[Any, tuple[object, ...], LaunchOwner, Sequence[DeviceArray], Sequence[int]], bool]
"""A function of a call, the objects to keep alive, the owner that is told of the end, the new arrays, and the words.

It writes the record into the ring. It returns false, without any effect, if the call must go the general way.
"""


def words_launcher(path: LaunchPath, call: WordsCall) -> WordsLauncher | None:
    """Return the function of a call for the lane of a path; None if it has none (yet)."""
    launcher: WordsLauncher | None = path.launchers.get(call._key)
    if launcher is None and not path.sender.refusing and call.may_be_short(path.generation, path.book.index):
        launcher = _new_launcher(path, call)
        path._keep(call, launcher)
    return launcher


def _new_launcher(path: LaunchPath, call: WordsCall) -> WordsLauncher:
    """Return that function. It holds no array of the call."""
    more = {"operands": call.blocks, "reads": call.reads, "writes": call.writes}
    return cast("WordsLauncher", _launcher(path, call, _compiled(len(call.places)), more))


_OF_EACH = """\
    blocks = [array._storage.block for array in new]
    for new in blocks:
"""
_NEW = _OF_EACH + textwrap.indent(_MAY_TAKE, "    ")
_CHECKS = """\
    for used, _ in operands:
        if used.fast != token:
            if not path.admit(operands):
                return False
            sent = sender.sent + 1  # fills of new arrays may have been sent
            break
"""
_TAKES_ALL = "    for new in blocks:\n" + textwrap.indent(_TAKES, "    ")


@functools.lru_cache
def _compiled(count: int) -> CodeType:
    """Return the function for so many words: its `new` are arrays, and its `word` is all of them."""
    notes = _NOTES_OF_FIXED + _TAKES_ALL
    text = _TEXT.format(arrays="", new=_NEW, checks=_CHECKS, notes=notes, words="*word, ")
    return compile(text, "<a call with several words>", "exec")
