"""The end of what a batch has sent, by the short way: a record that does nothing, and has a ticket.

The launches of a batch share tickets, so something must say where the last of them ends. A request would too, but its
way to the worker and that of its answer take five times as long: most of the time of a batch of a few calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final

import trio

from .._generation.requests import CallKind
from .._generation.timeline import Operand
from .._memory.arena import Block
from .._wire.ready import new_identity, ready_head
from .._wire.records.event import MARK
from .launching import AwaitedLaunch, LaunchPath
from .repeating import fixed_launcher

OPERATION: Final = "the end of a batch"


class _End:
    """All ends are this one call, as a launch path knows it: on no memory, and always the same."""

    _engine: ClassVar[str] = MARK.engine
    changes: ClassVar[Mapping[int, object]] = MappingProxyType({})

    def __init__(self) -> None:
        self.kind: CallKind = CallKind(MARK, MARK, MARK, 0)
        self.payload: bytes = b""
        self.places: tuple[int, ...] = ()
        self.head: bytes = ready_head(new_identity(), self.places)
        self.operands: tuple[Operand, ...] = ()
        self.blocks: tuple[Block, ...] = ()
        self.reads: tuple[Block, ...] = ()
        self.writes: tuple[Block, ...] = ()
        self._key: object = object()

    def bring(self, path: LaunchPath, given: tuple[object, ...]) -> bool:
        """Nothing of it ever changes."""
        return True

    def _of(self, thing: Any) -> bool:
        return False

    def _describe(self, arguments: tuple[object, ...]) -> tuple[str, Sequence[Operand]]:
        return OPERATION, ()


_END: Final = _End()


class AwaitedEnd(AwaitedLaunch):
    """An end, and the task that waits for it. It is no call of an actor, so nothing counts it."""

    __slots__ = ("_ticket",)

    def __init__(self, path: LaunchPath) -> None:
        super().__init__(path, None)
        self._ticket: int = 0

    @classmethod
    def sent(cls, path: LaunchPath) -> AwaitedEnd | None:
        """Send an end by the short way, and return what waits for it; None if it must go the general way.

        `path` is one of calls that are waited for.
        """
        if path.generation.refusing or not path.book.open:  # the first command of a lane opens it
            return None
        end = cls(path)
        launcher = path.launchers.get(_END._key) or path.learned(_END, fixed_launcher)
        if not launcher(_END, (), end):
            return None
        end._ticket = path.book.issued
        return end

    @property
    def over(self) -> bool:
        """True once it was settled."""
        return self._done

    @trio.lowlevel.enable_ki_protection
    async def wait(self) -> None:
        """Wait for it, and raise the error of a loss. Cancelling works at once.

        The settler polls already, for the launches before it. This task looks for the ticket beside it: else it would
        hear of the end two turns of the scheduler later.
        """
        path = self._path
        settler = path.generation.settler
        alone = settler.begin_looking()
        try:
            await settler.look(path.counter, self._ticket)
        finally:
            if alone:
                settler.end_looking()
            elif not settler.over and path.sender.words[path.counter] >= self._ticket:
                settler.settle_finished()
        if not self._done:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        if self._error is not None:
            raise self._error
