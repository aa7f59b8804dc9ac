"""The supervisor of a device: runs its generations one after the other, with standbys beside them.

It runs in a task of the device's own nursery, shielded from every cancellation outside. A generation that is lost goes
through the fence, or is buried while a standby takes over at once; what comes next is decided by the policy of
``_supervision``.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable
from typing import Protocol

import trio

from .._arrays.memory import DeviceMemory
from .._generation.actor import Actor
from .._generation.adoption import discard, reap
from .._generation.core import DeviceCore
from .._generation.generation import Generation
from .._generation.loss import Loss, LossKind, MakeError, StartFailed
from .._generation.process import WorkerProcess
from .._supervision.policy import GiveUp, LoseContext, Rebuild, RestartActor, StayDown
from .._supervision.realtime import RealTimer
from .._transfers.staging import Slot
from .._transfers.transfers import Transfers
from .._values.errors import DeviceError, InvalidArgument, OutOfHostMemory
from .._values.events import ActorRestarted, ContextRebuilt, ContextWasLost, WorkerReaped
from .._values.state import DeviceState
from .._values.util import known
from .ending import Ending
from .workers import Workers

log = logging.getLogger("atomr_trio.device")

_HURRY_SECONDS = 1.0
"""A new standby waits so long at most while its start would hold up something else."""

_TURNS_BEFORE_ACTORS = 8
"""In so many turns a first launch is sent, and its result is there."""
_AFTERMATH_SECONDS = 5e-3
"""So long after the reap this process lets go of what it shared with a lost worker. That takes a third of a
millisecond, in which the first results of the next worker would wait."""


class GroupWatch(Protocol):
    """The supervision of the group that a device belongs to. It may end the device for the sake of the others."""

    def lost(self, core: DeviceCore, loss: Loss, *, free: bool) -> GiveUp | None:
        """Note that a member was lost. `free` says that the loss is not a failure."""

    def start_failed(self, core: DeviceCore, reason: str) -> GiveUp | None:
        """Note that a member could not be rebuilt, and may try again."""

    def started(self, core: DeviceCore) -> None:
        """Note that a member's next generation is in service."""


class Supervisor:
    """Moves one device from generation to generation."""

    def __init__(self, core: DeviceCore) -> None:
        self.core: DeviceCore = core
        self.group: GroupWatch | None = None
        """What supervises the group of the device, if it has one."""
        self.ending: Ending = Ending(core)
        self.workers: Workers = Workers(core, self.ending)
        self._background: trio.Nursery | None = None

    # --- the beginning ------------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def begin(self, process: WorkerProcess | None = None) -> None:
        """Start the first generation, by a process that was started already, if there is one.

        Raises the error that a user should see.
        """
        try:
            generation = await self.workers.build(process)
        except StartFailed as failed:
            raise failed.error from None
        info, standby = generation.info, self.core.options.standby
        if standby and info is not None and info.compute_mode != "default":
            await self.workers.dismiss(generation)
            raise InvalidArgument(
                f"standby={standby} needs several processes on the GPU, and its compute mode is {info.compute_mode}",
                device=self.core.index,
                advice="open it with standby=0, or have its compute mode set to default",
            )
        set_aside = self.core.part(DeviceMemory).set_aside
        if info is not None and set_aside >= info.free_memory and self.core.options.memory_limit is None:
            await self.workers.dismiss(generation)
            raise InvalidArgument(
                f"standby={standby} leaves no memory for arrays: {info.free_memory:,} bytes are free, and the standbys "
                f"take about {set_aside:,}",
                device=self.core.index,
                advice="open it with fewer standbys, or end other programs that use the GPU",
            )
        self._put_in_service(generation)

    def _put_in_service(self, generation: Generation) -> None:
        core = self.core
        core.known_info = core.known_info or generation.info
        for part in core.parts:  # one may raise
            part.settle_in(generation)
        core.supervision.started(trio.current_time())
        core.current = generation
        core.serving_since = trio.current_time()
        generation.serve()
        core.announce()

    # --- generations --------------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Run the generations one after the other until the device is closed or given up, with standbys beside them."""
        core = self.core
        with trio.CancelScope(shield=True):
            try:
                async with trio.open_nursery() as self._background:
                    await self._serve_generations(self._background)
                    self.ending.standby_scope.cancel(reason=f"device {core.index} has ended")
            except Exception as bug:
                if core.home.over:  # trio itself has failed, and its tasks are being collected
                    raise
                log.critical("the supervisor of device %d crashed", core.index, exc_info=True)
                await self.ending.fail_by_bug(_alone(bug))
            finally:
                for generation in core.all_generations():
                    generation.process.kill()

    @trio.lowlevel.enable_ki_protection
    async def _serve_generations(self, background: trio.Nursery) -> None:
        core = self.core
        self._watch(background, known(core.current, "the first generation has begun"))
        background.start_soon(self._keep_standbys, name=f"atomr_trio.device{core.index}.standbys")
        while core.current is not None:
            generation = core.current
            await generation.over.wait()
            await trio.lowlevel.checkpoint_if_cancelled()  # it ended by an internal error: so does the supervision
            if generation.loss is None:
                await self.workers.close(generation)
                core.current = None
            else:
                core.current = await self._recover(generation, background)

    def _watch(self, background: trio.Nursery, generation: Generation) -> None:
        background.start_soon(self._run_generation, generation, name=f"atomr_trio.device{self.core.index}.generation")

    @trio.lowlevel.enable_ki_protection
    async def _run_generation(self, generation: Generation) -> None:
        """Run one generation in one nursery: the tasks that watch its worker and, once it is in service, its actors."""
        try:
            with generation.scope:
                async with trio.open_nursery() as nursery:
                    for task in generation.tasks:
                        nursery.start_soon(task)
                    await generation.in_service.wait()
                    await self._until_actors_are_wanted()
                    name = f"atomr_trio.device{self.core.index}.generation{generation.number}"
                    for actor in self.core.actors:
                        nursery.start_soon(self._run_actor, generation, actor, name=f"{name}.{actor.name}")
                    nursery.start_soon(self._watch_closing, generation, name=f"{name}.closing")
        finally:
            generation.over.set()

    async def _until_actors_are_wanted(self) -> None:
        """Let those go first who have waited for the generation: their first call needs no actor if it is alone.

        To start all actors takes 0.15 ms, a tenth of a takeover.
        """
        for _ in range(_TURNS_BEFORE_ACTORS):
            if any(
                actor.current is not None or actor.mailbox.posted != actor.mailbox.taken for actor in self.core.actors
            ):
                return
            await trio.lowlevel.checkpoint()

    @trio.lowlevel.enable_ki_protection
    async def _run_actor(self, generation: Generation, actor: Actor) -> None:
        """Run one actor, and start it again after an internal error as long as the context is healthy."""
        core = self.core
        while True:
            with trio.CancelScope() as actor.scope:
                try:
                    await actor.run(generation)
                    return
                except Exception as bug:
                    crash = bug
                    actor.scope.cancel(reason=f"the {actor.name} actor crashed: {bug!r}")
            log.error("the %s actor of device %d crashed", actor.name, core.index, exc_info=crash)
            core.last_error = f"the {actor.name} actor crashed: {crash!r}"
            await generation.inbox.probe()
            decision = core.supervision.actor_crashed(actor.name, trio.current_time(), repr(crash))
            if isinstance(decision, LoseContext):
                generation.lose(Loss(LossKind.ACTORS, decision.reason, reported_by="the supervision"))
                await trio.sleep_forever()
            if not isinstance(decision, RestartActor):
                return
            actor.mailbox.restarts += 1
            core.events.publish(ActorRestarted(actor=actor.name, error=crash))
            del crash  # its traceback holds the request, and so the arrays

    @trio.lowlevel.enable_ki_protection
    async def _watch_closing(self, generation: Generation) -> None:
        """After the body, let started work finish, for `close_timeout` at most; then end the generation."""
        await self.ending.begun.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_in_time, generation)
            await generation.settler.wait_idle()
            generation.scope.cancel(reason=f"device {self.core.index} is closed")

    @trio.lowlevel.enable_ki_protection
    async def _end_in_time(self, generation: Generation) -> None:
        with RealTimer(self.core.options.close_timeout) as timer:
            await timer.tick()
        generation.scope.cancel(reason=f"device {self.core.index} is closed, and close_timeout is over")

    # --- a loss -------------------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def _recover(self, generation: Generation, background: trio.Nursery) -> Generation | None:
        """Handle a loss: decide, run the fence, and return the next generation, or None if there will be none."""
        core = self.core
        loss = known(generation.loss, "nothing was lost")
        noticed = time.monotonic()
        generation.process.kill()
        core.last_error = loss.reason
        core.events.publish(
            ContextWasLost(
                generation=generation.number,
                reason=loss.reason,
                status=loss.status,
                reported_by=loss.reported_by,
                in_flight=loss.in_flight,
                actors=generation.timeline.busy_engines(),
                findings=loss.findings,
            )
        )
        # What checks find is what they were asked for, and ends a healthy context, like a restart by the program.
        deliberate = loss.kind in (LossKind.RESTART, LossKind.GROUP) or bool(loss.findings)
        decision = core.supervision.lost(trio.current_time(), loss.reason, gone=loss.gone, deliberate=deliberate)
        if self.group is not None and not isinstance(decision, StayDown):
            spent = self.group.lost(core, loss, free=deliberate)
            if spent is not None and isinstance(decision, Rebuild):
                decision = core.supervision.fail(spent.reason, spent.spent)

        def lost() -> DeviceError:
            return loss.error(core.index, generation.number)

        if isinstance(decision, GiveUp):
            error = lost()
            await self.workers.fence(generation, lambda: self.ending.give_up(decision, error))
            self.ending.give_up(decision, error)  # also when no running request could raise it
            return None
        if not isinstance(decision, Rebuild) or self.ending.begun.is_set():
            await self.workers.fence(generation, lost)
            return None
        # The pending writes are known only when the driver itself has reported the loss. After a hang or a kill from
        # outside, nothing may run before the reap.
        if loss.kind is LossKind.FAULT and core.info.durable and core.standbys.ready:
            self._bury(background, generation, lost, noticed)
            process = None
        else:
            process = await self._fence_while_starting(generation, lost, noticed)
        core.announce()
        return await self._rebuild(process, noticed, background)

    def _bury(self, background: trio.Nursery, generation: Generation, lost: MakeError, noticed: float) -> None:
        """Settle a lost generation at once, and touch none of the memory that it was working on until it is reaped."""
        with self.core.part(Transfers).staging.hold_back() as slots:
            reached = generation.settle_faulted(lost)
        generation.arena.begin_quarantine(generation.number, reached)
        self._forget_generation(generation)
        self.core.dying.add(generation)
        background.start_soon(self._finish_burial, generation, slots, noticed)

    @trio.lowlevel.enable_ki_protection
    async def _finish_burial(self, generation: Generation, slots: list[Slot], noticed: float) -> None:
        core = self.core
        await reap(generation.process)
        await generation.output.rest()
        generation.arena.end_quarantine(generation.number)
        for slot in slots:
            slot.release()
        self._announce_reaped(generation, noticed)
        if core.current is not None:
            core.current.admission.wake()
        core.announce()
        with RealTimer(_AFTERMATH_SECONDS) as timer:
            await timer.tick()
        generation.close()
        core.dying.discard(generation)
        core.announce()

    @trio.lowlevel.enable_ki_protection
    async def _fence_while_starting(
        self, generation: Generation, lost: MakeError, noticed: float
    ) -> WorkerProcess | None:
        """Run the fence. Returns the process that is started meanwhile, if there is to be one.

        The next process touches no memory before it is told to adopt.
        """
        process = None
        if not self.core.standbys.expected and self.core.info.compute_mode == "default":
            with contextlib.suppress(StartFailed):  # `_rebuild` tries again, and counts it
                process = self.workers.spawn()
        try:
            # The start, the end of thousands of launches and the next generation take a millisecond or more each.
            await trio.lowlevel.checkpoint()
            await self.workers.fence(generation, lost)
            # No task runs between these: one that is told of the loss finds decided what has survived it.
            self._announce_reaped(generation, noticed)
            self._forget_generation(generation)
            await trio.lowlevel.checkpoint()
        except BaseException:
            if process is not None:
                await discard(process)
            raise
        return process

    def _announce_reaped(self, generation: Generation, noticed: float) -> None:
        self.core.events.publish(WorkerReaped(generation=generation.number, seconds=time.monotonic() - noticed))

    def _forget_generation(self, generation: Generation) -> None:
        """Decide which memory survives the generation. All of its commands are settled."""
        for part in self.core.parts:
            part.generation_lost(generation.number)

    @trio.lowlevel.enable_ki_protection
    async def _rebuild(
        self, process: WorkerProcess | None, noticed: float, background: trio.Nursery
    ) -> Generation | None:
        """Let a standby take over, or start workers until one serves, the budget is spent, or the device is closed."""
        core, ending, workers = self.core, self.ending, self.workers
        if core.rebuild_held is not None:
            await core.rebuild_held.wait()
        while not ending.begun.is_set():
            with trio.CancelScope() as ending.rebuild_scope:
                try:
                    generation = await core.standbys.take() if process is None else None
                    by_standby = generation is not None
                    if generation is None:
                        started, process = process, None
                        generation = await workers.build(started)
                        self._watch(background, generation)
                    else:
                        generation.take_over(core.supervision.next_generation)
                    await self._restore(generation)
                    if ending.begun.is_set():
                        await workers.retire(generation)
                        return None
                    try:
                        self._put_in_service(generation)
                    except OSError as error:  # the disk has no room for the files of the checks
                        await workers.retire(generation)
                        raise workers.not_started(error) from error
                    seconds = time.monotonic() - noticed
                    if self.group is not None:
                        self.group.started(core)
                    core.events.publish(
                        ContextRebuilt(generation=generation.number, seconds=seconds, by_standby=by_standby)
                    )
                    return generation
                except StartFailed as failed:
                    core.last_error = str(failed)
                    decision = core.supervision.start_failed(trio.current_time(), str(failed), gone=failed.gone)
                    if self.group is not None and isinstance(decision, Rebuild):
                        spent = self.group.start_failed(core, str(failed))
                        decision = decision if spent is None else core.supervision.fail(spent.reason, spent.spent)
                    if isinstance(decision, GiveUp):
                        ending.give_up(decision, failed.error)
                        return None
                    if isinstance(decision, Rebuild):
                        await trio.sleep(decision.delay)
                finally:
                    ending.rebuild_scope = None
        if process is not None:
            await workers.put_back(process)
        return None

    @trio.lowlevel.enable_ki_protection
    async def _restore(self, generation: Generation) -> None:
        """Do what must be done in a generation before it serves."""
        try:
            for part in self.core.parts:
                await part.restore(generation)
        except BaseException as error:
            await self.workers.retire(generation)
            if isinstance(error, OutOfHostMemory):
                raise StartFailed(error, gone=False) from None
            raise

    # --- standbys -----------------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def _keep_standbys(self) -> None:
        standbys = self.core.standbys
        with self.ending.standby_scope:
            async with trio.open_nursery() as nursery:
                for _ in range(standbys.count):
                    nursery.start_soon(standbys.keep_one, self._settled, self._start_standby, self.workers.retire)

    @trio.lowlevel.enable_ki_protection
    async def _settled(self) -> None:
        """Wait until a generation is in service and no lost generation's worker is on the GPU any more.

        Then wait a little more while the device is needed for something that a start would hold up.
        """
        core, until = self.core, math.inf
        while True:
            if core.dying or core.state is not DeviceState.RUNNING:
                await core.changed.wait()
            elif not any(part.hurried for part in core.parts):
                return
            else:
                until = min(until, trio.current_time() + _HURRY_SECONDS)
                with trio.move_on_at(until) as scope:
                    await core.changed.wait()
                if scope.cancelled_caught:
                    return

    @trio.lowlevel.enable_ki_protection
    async def _start_standby(self, show: Callable[[Generation], None]) -> Generation:
        standby = await self.workers.build(show=show)
        self._watch(known(self._background, "a standby is started while the device is supervised"), standby)
        for part in self.core.parts:
            part.warm(standby)
        for opening in () if self.core.current is None else tuple(self.core.current.opened):
            standby.open_library(opening)
        return standby


def _alone(error: Exception) -> Exception:
    """Return the single exception that a nursery has wrapped, or `error` itself."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
