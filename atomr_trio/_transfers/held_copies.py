"""What the copies have in common of which helpers may copy a part.

Each slot has two holders: the task with its helpers, which is left when none of these copies any more, and the
commands, which are when none is unfinished. If the generation is lost while the task is under way, a slot is free when
the lost worker cannot write to it any more, and no helper works on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from .._values.errors import DeviceError
from .short_copies import CopyPath, ShortCopy, bytes_of
from .staging import Slot

if TYPE_CHECKING:
    from .._arrays.arrays import DeviceArray


class HeldCopy(ShortCopy):
    """A copy of several pieces under way, whose slots are held twice."""

    __slots__ = ("_address", "_commands_hold", "_held", "_memory")

    def __init__(self, path: CopyPath, array: DeviceArray, host: npt.NDArray[Any], slots: list[Slot]) -> None:
        super().__init__(path, array, host, [])
        self._address: int = array._storage.block.address + array._offset
        self._memory = bytes_of(host)
        self._held = slots
        for slot in slots:
            slot.share()
        self._commands_hold = True

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
