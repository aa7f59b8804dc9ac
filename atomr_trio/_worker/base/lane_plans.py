"""What an engine of plans keeps for one lane: its plans, those that are about to go, a handle and a workspace."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from .lanes import Lane
    from .plans import PlanEngine, _Plan


class LanePlans:
    """What is kept for one lane."""

    def __init__(self, engine: PlanEngine) -> None:
        self._engine = engine
        self.plans: dict[int, _Plan] = {}
        self.failed: dict[int, Exception] = {}
        """The errors of plans that could not be made, for the executions that were sent behind."""
        self.dropped: list[tuple[int, _Plan]] = []
        """Plans that are not used any more, with the last ticket that may use them."""
        self.handle: Any = None
        self.room: Any = None
        self.room_bytes: int = 0
        self.is_captured: bool = False
        """True for the lane of a graph. What calls were captured with stays in its place."""
        self._retired: list[tuple[Any, int]] = []
        """Workspaces that captured calls may still use."""

    def grow(self, size: int, allowed: int, lane: Lane) -> None:
        """Make the lane's workspace at least so large. Raises an error if all take more than `allowed` bytes then.

        The old one is given back behind that, since its plans need it if there is no memory for a new one.
        """
        if size <= self.room_bytes:
            return
        old, before = self.room, self.room_bytes
        self.room = self._engine.allocate(size, size if self.is_captured else size - before, allowed)
        self.room_bytes = size
        if old is not None and self.is_captured:
            self._retired.append((old, before))
        elif old is not None:
            self._engine.services.forget_hot()
            self._engine.driver.cuStreamSynchronize(lane.stream)  # running work may still use it
            self._engine.release(old, 0)

    def collect(self, finished: int) -> None:
        """Destroy the plans whose last execution the GPU has reached."""
        ready = [plan for ticket, plan in self.dropped if ticket <= finished]
        self.dropped = [each for each in self.dropped if each[0] > finished]
        for plan in ready:
            plan.destroy()

    def close(self) -> list[Callable[[], object]]:
        """Return the calls that give everything back."""
        plans = [*self.plans.values(), *(plan for _, plan in self.dropped)]
        calls: list[Callable[[], object]] = [plan.destroy for plan in plans]
        rooms = [*self._retired, *([(self.room, self.room_bytes)] if self.room is not None else [])]
        return calls + [functools.partial(self._engine.release, *each) for each in rooms]
