"""The states of a device, as its user sees them."""

from __future__ import annotations

import enum


@enum.unique
class DeviceState(enum.Enum):
    """The state of a device."""

    STARTING = "starting"
    """The first generation is being built; the block of `open_device` has not begun."""

    RUNNING = "running"
    """A generation is up and takes requests."""

    REBUILDING = "rebuilding"
    """A generation was lost and the next is not up yet; requests wait."""

    CLOSING = "closing"
    """The user left the block; running work may finish, new requests are refused."""

    CLOSED = "closed"
    """Every resource has been released."""

    FAILED = "failed"
    """The supervision gave up; there will be no further generation."""
