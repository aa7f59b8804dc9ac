"""The task that sleeps until its commands have ended. An event of trio would do the same in twice the time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio


class Sleeper:
    """An owner of commands for which one task sleeps at a time."""

    __slots__ = ("_sleeping",)

    def __init__(self) -> None:
        self._sleeping: trio.lowlevel.Task | None = None

    async def _sleep(self) -> None:
        """Sleep until `_wake` is called. A task that is cancelled leaves at once."""
        self._sleeping = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, raise_cancel: Callable[[], Any]) -> trio.lowlevel.Abort:
        self._sleeping = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake(self) -> None:
        """Wake the task, if one sleeps."""
        task = self._sleeping
        if task is not None:
            self._sleeping = None
            trio.lowlevel.reschedule(task)
