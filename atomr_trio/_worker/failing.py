"""The message of a process of ours that cannot serve, for the user's process."""

from __future__ import annotations

from typing import Any

from .._wire import channel
from .._wire.limits import reason_of
from .._wire.status import classify


def failure_message(error: BaseException, advice: str | None = None) -> dict[str, Any]:
    """Return what the user's process needs to know to raise an error that a user understands."""
    message: dict[str, Any] = {"kind": "failed", "text": channel.clip(reason_of(error)), "type": type(error).__name__}
    for field in ("status", "name", "library", "function", "extra", "looked"):
        if hasattr(error, field):
            message[field] = getattr(error, field)
    if hasattr(error, "text"):
        message["text"] = channel.clip(error.text)
    if "status" in message and "library" in message:
        message["class"] = classify(message["status"], message["library"]).value
    if advice is not None:
        message["advice"] = advice
    return message
