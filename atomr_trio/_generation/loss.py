"""The ways in which a worker ends, or does not start, and the errors that users see of them."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import attrs

from .._values.errors import (
    ContextLost,
    DeviceError,
    DeviceFailed,
    LibraryNotFound,
    advice_on_simulator,
    in_flight_in_words,
)
from .._values.findings import Finding
from .._wire.limits import low_limits
from .._wire.status import StatusClass

BEING_REBUILT = "the device is being rebuilt: use the awaited form, which waits for that, or `dev.wait_generation`"


class LossKind(enum.Enum):
    """The kind of end of a generation."""

    FAULT = "fault"
    EXIT = "exit"
    STOPPED = "stopped"
    HANG = "hang"
    ACTORS = "actors"
    RESTART = "restart"
    GROUP = "group"
    """The strategy of the group has restarted it, because another member was lost."""


@attrs.frozen
class Loss:
    """The cause of the loss of a generation."""

    kind: LossKind
    reason: str
    reported_by: str
    """The source of the report: a call of the driver, or a task that watches the worker."""
    status: int | None = None
    status_class: StatusClass | None = None
    status_name: str | None = None
    library: str | None = None
    operation: str | None = None
    findings: tuple[Finding, ...] = ()
    in_flight: tuple[str, ...] = ()
    """The requests that were started and not finished."""
    simulated: bool = False
    """True if the generation was one of the simulator."""
    message: str = attrs.field(init=False)
    """The message of the errors, made once: there may be thousands of requests, and as many errors."""

    @message.default
    def _message_of(self) -> str:
        return f"{self.reason} (in flight: {in_flight_in_words(self.in_flight)})" if self.in_flight else self.reason

    @property
    def gone(self) -> bool:
        """True if no restart can help."""
        return self.status_class is StatusClass.GONE

    def error(self, device: int, generation: int) -> ContextLost:
        """Return a fresh exception for one request that was started."""
        return ContextLost(
            self.message,
            reason=self.reason,
            findings=self.findings,
            in_flight=self.in_flight,
            status=self.status,
            status_name=self.status_name,
            library=self.library,
            operation=self.operation,
            device=device,
            generation=generation,
            advice=advice_on_simulator(self.status) if self.simulated and not self.findings else None,
        )


MakeError = Callable[[], DeviceError]
"""A function that makes a fresh exception for each request."""


class StartFailed(Exception):
    """A worker could not be made ready; `error` is what a user should see."""

    def __init__(self, error: DeviceError, *, gone: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.gone = gone


def start_failure(
    device: int | None,
    message: dict[str, Any],
    last_words: str,
    what: str = "a worker for the device could not be started",
) -> StartFailed:
    """Return the error of a start that failed, from the worker's message or a text of ours.

    `last_words` are added where the message does not say all by itself.
    """
    text = message["text"]
    if message.get("type") is None:
        text += last_words
    if message.get("type") in ("LibraryMissing", "SymbolMissing"):
        # The text has the places, unless it was too long for a message.
        looked = "".join(f"\n  - {place}" for place in message.get("looked", ()) if place not in text)
        return StartFailed(LibraryNotFound(text + looked, device=device, advice=message.get("advice")), gone=True)
    status = message.get("status")
    library = message.get("library", "cuda")
    # The worker has this process's limits. The driver reports a limit that is too low as a missing GPU.
    low = low_limits()
    if low:
        text += f" (a low limit may be the cause: {low})"
    gone = not low and message.get("class") == StatusClass.GONE.value
    error = DeviceFailed(
        f"{what}: {text}",
        device=device,
        status=status,
        status_name=message.get("name"),
        library=library if status is not None else None,
        operation=message.get("function"),
        advice=message.get("advice"),
    )
    return StartFailed(error, gone=gone)
