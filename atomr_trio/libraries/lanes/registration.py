"""The registration of lanes and events."""

from __future__ import annotations

from ..._wire.registration import Registration

REGISTRATION = Registration(name="event", number=5, engine="EventEngine")
