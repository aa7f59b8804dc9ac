"""How an open device ends: closed by its user, given up by its supervision, or forked into another process.

Every request that was not begun is settled here with the error of the end, and every resource that outlives the
generations is released here.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

import outcome
import trio

from .._generation.adoption import reap
from .._generation.core import DeviceCore
from .._supervision.policy import GiveUp
from .._values.errors import AtomrInternalError, DeviceClosed, DeviceError, DeviceFailed
from .._values.events import DeviceGaveUp
from .._values.state import DeviceState

log = logging.getLogger("atomr_trio.device")


def _more_restarts(argument: str) -> str:
    return (
        "fix the cause, which is `__cause__`, or allow more restarts: "
        f"`{argument}=RestartPolicy(intensity=..., period=...)`. The device's arrays and kernels have ended with it: "
        "open the device again and make them anew."
    )


class Ending:
    """The end of one device. The body of its block runs in `body_scope`, which a failure cancels."""

    def __init__(self, core: DeviceCore) -> None:
        self._core = core
        self.begun: trio.Event = trio.Event()
        """Set when the body of the block was left."""
        self.deadline: float = math.inf
        """The moment at which a closed device kills its worker, by the monotonic clock."""
        self.failure: Exception | None = None
        """The error of a device that was given up. The block raises it, unless a group goes on without the device."""
        self.told: Callable[[], None] | None = None
        """Called instead of cancelling the body, when the device has failed: its group decides about the body."""
        self.body_scope: trio.CancelScope = trio.CancelScope()
        self.standby_scope: trio.CancelScope = trio.CancelScope()
        self.rebuild_scope: trio.CancelScope | None = None
        """The scope of a rebuild that is under way."""

    def give_up(self, decision: GiveUp, cause: BaseException) -> DeviceError:
        """Fail the device for good; returns a fresh error for one request."""
        core = self._core
        if core.ended is None:
            failure = DeviceFailed(
                f"the device is given up: {decision.reason}",
                device=core.index,
                generation=core.generation,
                status=getattr(cause, "status", None),
                status_name=getattr(cause, "status_name", None),
                advice=_more_restarts(decision.spent) if decision.spent is not None else None,
            )
            failure.__cause__ = cause
            core.events.publish(DeviceGaveUp(reason=decision.reason))
            self._fail(failure, cause)
        return core.end_error()

    def _fail(self, failure: Exception, cause: BaseException) -> None:
        core = self._core
        self.failure = failure
        failure.__cause__ = cause
        if core.ended is None:
            shown = failure
            if not isinstance(shown, DeviceError):
                shown = DeviceFailed(str(failure), device=core.index, generation=core.generation)
                shown.__cause__ = cause
            core.ended = shown
        self._settle_queued()
        core.announce()
        if self.told is None:
            self.body_scope.cancel(reason=f"device {core.index} failed: {failure}")
        else:
            self.told()

    async def fail_by_bug(self, bug: Exception) -> None:
        """End the device after an internal error of the supervision, so that no task waits for ever."""
        core = self._core
        reason = f"the supervisor of device {core.index} crashed: {bug!r}"
        if core.state in (DeviceState.RUNNING, DeviceState.REBUILDING):
            core.supervision.fail(reason)
        core.last_error = reason
        core.events.publish(DeviceGaveUp(reason=reason))
        self._fail(AtomrInternalError(reason), bug)
        for generation in core.all_generations():
            try:
                with trio.move_on_after(core.options.close_timeout):
                    await reap(generation.process)
                    await generation.output.rest()
                generation.settle_reaped(core.end_error)
                generation.close()
            except Exception:
                text = "generation %d of device %d was not settled"
                log.critical(text, generation.number, core.index, exc_info=True)

    def begin(self) -> None:
        """Begin the end after the body: refuse new requests, settle queued ones, let started ones finish."""
        core = self._core
        if core.ended is None:
            core.ended = DeviceClosed("the device was closed", device=core.index, generation=core.generation)
        self._settle_queued()
        if core.state in (DeviceState.RUNNING, DeviceState.REBUILDING):
            core.supervision.closing()
        for generation in core.all_generations():
            generation.sender.refuse()
        self.deadline = time.monotonic() + core.options.close_timeout
        self.begun.set()
        self.standby_scope.cancel(reason="the device is closed")
        core.announce()
        if self.rebuild_scope is not None:
            self.rebuild_scope.cancel(reason="the device is closed")

    def _settle_queued(self) -> None:
        core = self._core
        for actor in core.actors:
            actor.close(outcome.Error(core.end_error()))
            actor.mailbox.close(core.end_error)
        for part in core.parts:
            part.settle_queued(core.end_error)

    async def give_memory_back(self) -> None:
        """Give memory that nothing needs any more back to the system; every worker is gone."""
        for part in reversed(self._core.parts):
            await part.give_back()

    def release(self) -> None:
        """Close the resources that outlive the generations."""
        core = self._core
        core.home.leave()
        if core.state is not DeviceState.CLOSED:
            core.supervision.closed()
        core.events.close()
        for part in reversed(core.parts):
            part.close()

    def forget_in_child(self) -> None:
        """End the device in a forked child: it belongs to the parent. Close the child's descriptors, settle nothing."""
        core = self._core
        core.ended = DeviceFailed(
            "this process was forked from the one that opened the device",
            device=core.index,
            generation=core.generation,
            advice="open the device in the child, or start children with the spawn method",
        )
        core.home.desert()
        if core.state is not DeviceState.CLOSED:
            core.supervision.closed()
        for generation in core.all_generations():
            generation.forget()
        for part in reversed(core.parts):
            part.forget()
