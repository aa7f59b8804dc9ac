"""Calls of libraries that standbys rehearse, so that the first ones after a takeover take no longer than others.

Every call that is planned is noted, not those that are repeated from memory. Calls that differ in the addresses of
their arrays alone are one. A standby gets the note of each at once, and a new standby gets those that were noted last.
What it does with them is in ``_worker/base/rehearsal.py``. A device without standbys notes nothing.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from .._generation.core import DeviceCore, DevicePart
from .._generation.timeline import Unwatched
from .._wire.protocol import LANE_COMPUTE
from .._wire.records.rehearsal import REHEARSE
from .plans import Plans

if TYPE_CHECKING:
    from .._generation.generation import Generation
    from .._generation.requests import CommandRequest, Rehearsal

_MOST: Final = 256


class Rehearsals(DevicePart):
    """The calls of one device that its standbys rehearse, the newest last."""

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self._plans = device.part(Plans)  # it comes before this, so that plans are defined first
        self._noted: collections.OrderedDict[Hashable, Rehearsal] = collections.OrderedDict()

    def __repr__(self) -> str:
        return f"<Rehearsals: {len(self._noted)}>"

    def note(self, requests: Iterable[CommandRequest]) -> None:
        """Note the calls that a verb has made, which were sent."""
        new = []
        for request in requests:
            for key, make in request.rehearsals():
                if key not in self._noted:
                    self._noted[key] = make()
                    new.append(self._noted[key])
        while len(self._noted) > _MOST:
            self._noted.popitem(last=False)
        if new:
            for standby in self.device.standbys.generations:
                self._send(new, standby)

    def warm(self, standby: Generation) -> None:
        """Have a new standby rehearse all of them."""
        self._send(list(self._noted.values()), standby)

    def _send(self, rehearsals: Sequence[Rehearsal], standby: Generation) -> None:
        if not standby.ready:
            return
        there = [each for each in rehearsals if _has_plan(each, standby)]
        for number, each in enumerate(there, 1):
            self._publish(each, standby, ends=number == len(there))

    def _publish(self, rehearsal: Rehearsal, standby: Generation, *, ends: bool) -> None:
        verb = rehearsal.verb
        head = REHEARSE.struct.pack(verb.engine_number, verb.number, ends)
        # The first call of a library may take as long as it does in service, where that is no hang either.
        standby.publish(
            LANE_COMPUTE,
            REHEARSE,
            head + rehearsal.payload,
            (),
            Unwatched(),
            operation=f"the rehearsal of {rehearsal.operation}",
            hang_timeout=math.inf,
        )


def _has_plan(rehearsal: Rehearsal, standby: Generation) -> bool:
    return rehearsal.plan is None or (LANE_COMPUTE, rehearsal.plan) in standby.plans
