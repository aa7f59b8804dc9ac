"""The short way into the ring of calls that differ in several words, and may have several new arrays.

Their function is generated from the text of that of a repeated call (``repeating.py``), which has one word alone or one
new array. The checks of new arrays are inline here, because a call for each would cost more.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from .._arrays.arrays import DeviceArray
from .._generation.timeline import LaunchOwner, Operand
from .._memory.arena import Block
from .new_results import may_take, takes
from .repeating import NOTES_OF_FIXED, RepeatedCall, function_of, launcher_of

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
    return cast("WordsLauncher", launcher_of(path, call, _OF_SEVERAL, more))


_BLOCKS = "    blocks = [array._storage.block for array in new]\n"
_EACH = "    for block in blocks:\n"
_CHECKS = """\
    for used, _ in operands:
        if used.fast != token:
            if not path.admit(operands):
                return False
            sent = sender.sent + 1  # fills of new arrays may have been sent
            break
"""
_OF_SEVERAL: Final = function_of(
    _BLOCKS + _EACH + textwrap.indent(may_take("block"), "    ") + _CHECKS,
    NOTES_OF_FIXED + _EACH + textwrap.indent(takes("block"), "    "),
    "*word, ",
)
"""The function of all of them: its `new` are arrays, and its `word` is all words."""
