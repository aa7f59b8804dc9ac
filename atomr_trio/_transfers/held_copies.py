"""What the copies have in common of which helpers may copy a part.

Each slot has two holders: the task with its helpers, which is left when none of these copies any more, and the
commands, which are when none is unfinished. If the generation is lost while the task is under way, a slot is free when
the lost worker cannot write to it any more, and no helper works on it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from .._values.errors import DeviceError
from .crew import Crew
from .pile import SPIN_SECONDS, Piece, Pile, give_way
from .short_copies import CopyPath, ShortCopy, bytes_of
from .staging import Slot

if TYPE_CHECKING:
    from .._arrays.arrays import DeviceArray


class HeldCopy(ShortCopy):
    """A copy of several pieces under way, whose slots are held twice."""

    __slots__ = ("_address", "_commands_hold", "_held", "_memory", "_pile")

    def __init__(
        self, path: CopyPath, array: DeviceArray, host: npt.NDArray[Any], slots: list[Slot], crew: Crew
    ) -> None:
        super().__init__(path, array, host, [])
        self._address: int = array._storage.block.address + array._offset
        self._memory = bytes_of(host)
        self._held = slots
        for slot in slots:
            slot.share()
        self._commands_hold = True
        self._pile: Pile = Pile(crew, self._copy_by_helper)

    def _copy_by_helper(self, piece: Piece) -> bool:
        """Copy in a helper's thread. Returns false if the task is to do it."""
        raise NotImplementedError

    def _has_come(self, ticket: int) -> bool:
        """Wait in a helper's thread for what is to be copied from a slot.

        Returns false if the task has to see to it: after a failure, a loss or a long time.
        """
        path, words, until = self._path, self._path.words, 0.0
        try:
            while words[path.counter] < ticket:
                now = time.perf_counter()
                until = until or now + SPIN_SECONDS
                if self._pile.closed or now > until:
                    return False
                give_way()
            return self._is_sound()
        except ValueError:  # the page is closed: the generation is over
            return False

    def _stop_looking(self) -> None:
        if self._looks:
            self._looks = False
            self._path.settler.end_looking()

    def _leave(self) -> None:
        """Let the slots go, which neither the task nor a helper needs any more."""
        self._left = True
        for slot in self._held:
            slot.release()
        self._release_ended()

    def _release_ended(self) -> None:
        if self._left and self._ended == self._begun:
            self._release_of_commands()

    def _release_of_commands(self) -> None:
        if self._commands_hold:
            self._commands_hold = False
            for slot in self._held:
                slot.release()

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """Keep the error, and wake the task: the generation was lost before the commands were seen to end."""
        self._release_of_commands()
        super().launches_lost(count, error)
