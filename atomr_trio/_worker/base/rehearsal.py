"""Rehearsals: a standby makes the calls of libraries that the program makes, ahead of time and without any effect.

The first call of a library's function loads kernels, which takes up to tenths of a second. A standby makes it on a lane
for captures: the call becomes a graph, which is given back and never launched. So the kernels are loaded, and nothing
runs. The record can be that of the program, with the addresses of its arrays, of any size. What the call of the program
needs on its own lane, such as a workspace, is made there.

Nothing here may fail: what a library refuses is reported by the first real call. A rehearsal that has begun is in the
way of a standby that takes over, so those that have not begun are then left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..._wire.records.rehearsal import REHEARSAL, REHEARSE
from ..._wire.status import StatusClass, classify
from .captures import CaptureLane
from .lanes import PreparingEngine

if TYPE_CHECKING:
    from collections.abc import Callable

    from .lanes import Command, Lane, WorkerServices

MOST_ROOM: Final = 64 << 20
"""The bytes of workspaces that rehearsals may take at a time. A call that wants more is not rehearsed."""


class RehearsalEngine:
    """Makes rehearsals, until the worker is in service."""

    table = REHEARSAL

    def __init__(self, services: WorkerServices) -> None:
        from atomr_cuda import driver

        self._driver = driver
        self._services = services
        self._stage: CaptureLane | None = None
        self.calls: dict[int, Callable[[Command, Lane], Any]] = {REHEARSE.number: self._rehearse}

    def _rehearse(self, command: Command, lane: Lane) -> None:
        engine, verb, ends = REHEARSE.struct.unpack_from(command.payload)
        if self._services.rehearses:
            self._make(engine, verb, command.payload[REHEARSE.struct.size :], lane)
        if ends or not self._services.rehearses:
            self._strike()

    def _make(self, engine_number: int, number: int, payload: bytes, lane: Lane) -> None:
        services = self._services
        engine = services.engines[engine_number]
        verb = engine.table.verbs[number]
        try:
            if isinstance(engine, PreparingEngine):
                engine.prepare_ahead(number, payload, lane, MOST_ROOM)
            self._stage = stage = self._stage or CaptureLane(services)
            stage.prepare(verb, payload, services.workspaces.taken + MOST_ROOM, launches=False)
            self._driver.cuGraphDestroy(stage.capture(verb, payload))
        except (services.cuda_error, services.library_missing, LookupError) as error:
            self._check(error)

    def _check(self, error: Exception) -> None:
        """Say that the context is lost if it is."""
        status = getattr(error, "status", 0)
        if status and classify(status, getattr(error, "library", "cuda")) in (StatusClass.POISONS, StatusClass.GONE):
            self._services.lost(error, REHEARSE.operation)

    def _strike(self) -> None:
        """Give back what the libraries have made for the lane."""
        stage, self._stage = self._stage, None
        if stage is not None:
            engines = list(self._services.engines.values())
            calls = [call for engine in engines for call in engine.forget_lane(stage.index)]
            self._services.give_back([*calls, stage.destroy])

    def forget_lane(self, index: int) -> tuple[()]:
        """Nothing here belongs to a lane of the program."""
        return ()

    def close(self) -> None:
        """Give everything back."""
        self._strike()
        self._services.wait_given_back()
