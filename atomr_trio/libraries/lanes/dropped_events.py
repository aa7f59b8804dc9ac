"""Events that nobody has any more: the worker destroys them, several by one command."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Final

from ..._generation.core import DeviceCore, DevicePart
from ..._generation.timeline import Unwatched
from ..._wire.protocol import LANE_COMPUTE
from ..._wire.records.event import DROP

if TYPE_CHECKING:
    from ..._generation.generation import Generation
    from ..._memory.arena import Ticket

AT_ONCE: Final = 12
"""So many are destroyed by one command. Their numbers fit into one record, with the lanes that it waits for."""


class DroppedEvents(DevicePart):
    """The events of a device that were collected."""

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self._events: collections.deque[tuple[int, int, Ticket]] = collections.deque()
        """The generation of each, its number and the ticket of its recording."""

    def add(self, generation: int, number: int, recorded: Ticket) -> None:
        """Note an event that was collected; in any thread, and at any moment."""
        self._events.append((generation, number, recorded))
        if len(self._events) == 1 or not len(self._events) % AT_ONCE:
            self.device.dropped.append(self._destroy)

    def generation_lost(self, number: int) -> None:
        """Forget its events: they are gone with its worker."""
        self._events.clear()

    @property
    def are_many(self) -> bool:
        """True if there are enough for a command."""
        return len(self._events) >= AT_ONCE

    def _destroy(self, generation: Generation) -> None:
        """Make the worker in service destroy the oldest of them. Those of lost generations are gone already."""
        if generation is not self.device.current:
            return  # the one in service is asked too
        numbers: list[int] = []
        after: dict[int, int] = {}
        for _ in range(min(len(self._events), AT_ONCE)):
            of_generation, number, (lane, ticket) = self._events.popleft()
            if of_generation == generation.number:
                numbers.append(number)
                after[lane] = max(ticket, after.get(lane, 0))
        if numbers:
            # Behind their recordings, which may be waiting for other lanes.
            payload = b"".join(map(DROP.struct.pack, numbers))
            waits = tuple(after.items())
            generation.publish(LANE_COMPUTE, DROP, payload, (), Unwatched(), after=waits, aside=True)
        if self._events:
            self.device.dropped.append(self._destroy)
