"""The worker processes of a device: taken from a pool or started, made ready, given back or ended."""

from __future__ import annotations

import time
from collections.abc import Callable

import trio

from .._arrays.memory import DeviceMemory
from .._generation.adoption import discard, reap
from .._generation.core import DeviceCore
from .._generation.generation import Generation
from .._generation.loss import MakeError, StartFailed
from .._generation.peers import Peers
from .._generation.process import WorkerProcess
from .._transfers.transfers import Transfers
from .._values.errors import DeviceClosed, DeviceError, DeviceFailed, InvalidArgument
from .._values.shortage import shortage_of
from .._values.util import known
from .._wire.limits import reason_of
from ..libraries.lanes.verbs import Lanes
from .ending import Ending


class Workers:
    """Begins and ends the worker processes of one device."""

    def __init__(self, core: DeviceCore, ending: Ending) -> None:
        self._core = core
        self._ending = ending
        self._pool = core.options.workers

    def spawn(self) -> WorkerProcess:
        """Take a worker process from the pool, or start one. Raises `StartFailed` when the system has no room."""
        core = self._core
        try:
            if self._pool is not None:
                return self._checked_alike(self._pool.take(core.backend, core.index))
            ahead = [folder for part in core.parts for folder in part.libraries]
            return WorkerProcess(core.backend, core.index, core.options.checks, ahead)
        except DeviceError as refused:
            raise StartFailed(refused, gone=True) from None
        except (OSError, MemoryError) as error:
            raise self.not_started(error) from error

    def not_started(self, error: Exception) -> StartFailed:
        """Return the error of a start that failed because the system had no room; the next start may find room."""
        text = f"a worker for the device could not be started: {reason_of(error)}"
        return StartFailed(DeviceFailed(text, device=self._core.index), gone=False)

    def _checked_alike(self, process: WorkerProcess) -> WorkerProcess:
        """Return a worker of the pool if it makes the checks of this device; else raise `InvalidArgument`."""
        wanted = self._core.options.checks
        if process.checks == wanted:
            return process
        known(self._pool, "it came from there").give_back(process)
        has, wants = (", ".join(checks) or "nothing" for checks in (process.checks, wanted))
        raise InvalidArgument(
            f"the device was opened with check={wants}, and the workers of its pool with check={has}",
            device=self._core.index,
            advice="give the same `check` to open_device and to the WorkerPool.",
        )

    @trio.lowlevel.enable_ki_protection
    async def build(
        self, process: WorkerProcess | None = None, show: Callable[[Generation], None] | None = None
    ) -> Generation:
        """Make a process, started or not, the next generation, or a standby, which is given to `show`.

        Raises `StartFailed`; the process is then reaped. If this is cancelled, the process goes back to the pool.
        """
        core = self._core
        try:
            process = process or self.spawn()
            generation = Generation(
                core.index,
                core.supervision.next_generation,
                process,
                core.part(DeviceMemory).maybe_arena,
                core.part(Transfers).staging.memory,
                core.options.hang_timeout,
                core.standbys.generations,
                lane_options=core.part(Lanes).options,
                spin=core.options.spin,
            )
            if core.group is not None:
                core.part(Peers).introduce(generation)
        except BaseException as error:
            if process is not None:
                await self.put_back(process)
            if not isinstance(error, OSError | MemoryError):
                raise
            raise self.not_started(error) from error
        try:
            await generation.start(show)
        except StartFailed:
            await discard(process)
            generation.close()
            raise
        except BaseException as error:
            await self.dismiss(generation)
            if not isinstance(error, Exception) or shortage_of(error) is None:
                raise
            raise self.not_started(error) from error
        return generation

    async def put_back(self, process: WorkerProcess) -> None:
        """Give back or end a worker that was never adopted."""
        if self._pool is None:
            await discard(process)
        else:
            self._pool.give_back(process)

    @trio.lowlevel.enable_ki_protection
    async def retire(self, generation: Generation) -> None:
        """End a generation that never served."""
        reason = f"generation {generation.number} of device {self._core.index} is not needed any more"
        generation.scope.cancel(reason=reason)
        with trio.CancelScope(shield=True):  # its tasks end at once
            await generation.over.wait()
        await self.dismiss(generation)

    @trio.lowlevel.enable_ki_protection
    async def dismiss(self, generation: Generation) -> None:
        """Give back or end a worker that is not needed and that no task watches."""
        with trio.CancelScope(shield=True):  # bounded by `close_timeout` and by `reap` itself
            if await self._give_back(generation):
                return
            await reap(generation.process)
        generation.close()

    async def _give_back(self, generation: Generation) -> bool:
        """Give a healthy worker that came from a pool back to it. Returns whether it was given back."""
        if self._pool is None or generation.loss is not None:
            return False
        deadline = min(self._ending.deadline, time.monotonic() + self._core.options.close_timeout)
        if not await generation.adoption.reset(deadline):
            return False
        if generation is self._core.current:
            self._core.part(DeviceMemory).dismissed()
        generation.let_worker_go()
        self._pool.give_back(generation.process)
        return True

    @trio.lowlevel.enable_ki_protection
    async def close(self, generation: Generation) -> None:
        """End the worker in service cleanly: nothing is running, so it may release everything itself."""
        if generation.timeline.idle:
            if await self._give_back(generation):
                return
            if self._pool is None:
                await generation.adoption.end(self._ending.deadline)
        await self.fence(generation, self._closed_error)

    def _closed_error(self) -> DeviceError:
        return DeviceClosed("the device was closed", device=self._core.index, generation=self._core.generation)

    @trio.lowlevel.enable_ki_protection
    async def fence(self, generation: Generation, make_error: MakeError) -> None:
        """Kill, reap, read the counters one last time, settle the rest, unmap."""
        await reap(generation.process)
        await generation.output.rest()
        generation.settle_reaped(make_error)
        generation.close()
