"""Standby workers, kept ready behind the generation in service, so that taking over needs no new process or context.

A standby has its context, maps every chunk, loads every module and opens every library when the worker in service
does, and has registered the staging area. It has no number and no actors; it gets both when it takes over.
Its place is then filled again in the background, once the lost worker has left the GPU.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import trio

from .._supervision.policy import RestartPolicy
from .._values.events import EventHub, StandbyLost, StandbyReady
from .generation import Generation
from .loss import StartFailed


class Standbys:
    """The standbys of one device, each kept by a task that runs `keep_one`."""

    def __init__(self, count: int, policy: RestartPolicy, events: EventHub) -> None:
        self.count = count
        self.generations: list[Generation] = []
        """Every standby, ready or nearly ready: they are told of chunks and modules."""
        self._standing: set[Generation] = set()
        """Those of them whose start is over. Before that a worker may be ready and wait for memory of other devices:
        nobody watches it yet, and the start that waits would have to answer for a generation that serves."""
        self._policy = policy
        self._events = events
        self._starting = 0
        self._changed = trio.Event()

    def __repr__(self) -> str:
        return f"<Standbys: {self.ready} of {self.count} ready, {self._starting} starting>"

    @property
    def ready(self) -> int:
        """The number of standbys that could take over now."""
        return sum(generation.ready for generation in self._standing)

    @property
    def expected(self) -> bool:
        """True if `take` will have one, unless a start fails."""
        return self.ready > 0 or self._starting > 0

    @trio.lowlevel.enable_ki_protection
    async def take(self) -> Generation | None:
        """Return the standby that is to take over. Waits for one that is being started; None if there is none."""
        while True:
            for generation in self.generations:
                if generation.ready and generation in self._standing:
                    self._forget(generation)
                    return generation
            if not self._starting:
                return None
            await self._changed.wait()

    async def wait_changed(self) -> None:
        """Wait until a standby or the device changes."""
        await self._changed.wait()

    def announce(self) -> None:
        """Wake every task that waits for a change."""
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    @trio.lowlevel.enable_ki_protection
    async def keep_one(
        self,
        may_start: Callable[[], Awaitable[None]],
        start: Callable[[Callable[[Generation], None]], Awaitable[Generation]],
        retire: Callable[[Generation], Awaitable[None]],
    ) -> None:
        """Keep one place filled until cancelled.

        `may_start` waits until the GPU has room for one more worker. `start` makes a worker ready and starts its
        watching tasks; it passes the generation to its argument as soon as it knows of a chunk. `retire` ends one.
        """
        failures = 0
        while True:
            await may_start()
            begun = time.monotonic()
            try:
                standby = await self._start(start)
            except StartFailed as failed:
                self._events.publish(StandbyLost(reason=str(failed)))
            else:
                self._events.publish(StandbyReady(seconds=time.monotonic() - begun, standbys=self.ready))
                self.announce()
                if await self._stand_by(standby, retire):
                    failures = 0
                    continue
            failures += 1
            await trio.sleep(self._policy.backoff(failures))

    async def _start(self, start: Callable[[Callable[[Generation], None]], Awaitable[Generation]]) -> Generation:
        shown: list[Generation] = []

        def show(generation: Generation) -> None:
            shown.append(generation)
            self.generations.append(generation)

        self._starting += 1
        try:
            standby = await start(show)
            self._standing.add(standby)
            return standby
        except BaseException:
            for generation in shown:
                self.generations.remove(generation)
            raise
        finally:
            self._starting -= 1
            self.announce()

    def _forget(self, standby: Generation) -> None:
        self.generations.remove(standby)
        self._standing.remove(standby)

    async def _stand_by(self, standby: Generation, retire: Callable[[Generation], Awaitable[None]]) -> bool:
        """Wait until a standby takes over. Returns false if it ended before; it is then retired."""
        try:
            await standby.relieved.wait()
        finally:
            taken = standby not in self.generations
            if not taken:
                self._forget(standby)
                await retire(standby)
        if not taken and standby.loss is not None:
            self._events.publish(StandbyLost(reason=standby.loss.reason))
        return taken
