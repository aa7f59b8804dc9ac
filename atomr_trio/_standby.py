"""Standby workers: kept warm behind the generation in service, so that taking over needs no process and no context.

A standby has its context, maps every chunk, loads every module and opens every library when the worker in service
does, and has registered the staging area. What it lacks is a number and actors, and it gets both when it takes over;
its place is then filled again in the background, once the worker that was lost has left the GPU.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import trio

from ._events import EventHub, StandbyLost, StandbyReady
from ._generation import Generation, StartFailed
from ._supervision import RestartPolicy


class Standbys:
    """The standbys of one device, each kept by a task that runs `keep_one`."""

    def __init__(self, count: int, policy: RestartPolicy, events: EventHub) -> None:
        self.count = count
        self.generations: list[Generation] = []
        """Every standby there is, ready or nearly so: they are told of chunks and modules."""
        self._policy = policy
        self._events = events
        self._starting = 0
        self._changed = trio.Event()

    def __repr__(self) -> str:
        return f"<Standbys: {self.ready} of {self.count} ready, {self._starting} starting>"

    @property
    def ready(self) -> int:
        """How many could take over now."""
        return sum(generation.ready for generation in self.generations)

    @property
    def expected(self) -> bool:
        """Whether `take` will have one, unless a start fails."""
        return self.ready > 0 or self._starting > 0

    @trio.lowlevel.enable_ki_protection
    async def take(self) -> Generation | None:
        """The one that is to take over, waiting for one that is just being started; None if there is none."""
        while True:
            for generation in self.generations:
                if generation.ready:
                    self.generations.remove(generation)
                    return generation
            if not self._starting:
                return None
            await self._changed.wait()

    async def wait_changed(self) -> None:
        """Wait until there is news, of a standby or of the device."""
        await self._changed.wait()

    def announce(self) -> None:
        """Wake whoever waits for news."""
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

        `may_start` waits for a moment when the GPU has room for one more worker. `start` makes a worker ready and has
        it watched over; it shows the generation to its argument as soon as that knows of a chunk. `retire` ends one.
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
            return await start(show)
        except BaseException:
            for generation in shown:
                self.generations.remove(generation)
            raise
        finally:
            self._starting -= 1
            self.announce()

    async def _stand_by(self, standby: Generation, retire: Callable[[Generation], Awaitable[None]]) -> bool:
        """Wait until a standby takes over; false if it ended before, and then it is retired."""
        try:
            await standby.relieved.wait()
        finally:
            taken = standby not in self.generations
            if not taken:
                self.generations.remove(standby)
                await retire(standby)
        if not taken and standby.loss is not None:
            self._events.publish(StandbyLost(reason=standby.loss.reason))
        return taken
