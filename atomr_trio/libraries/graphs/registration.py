"""The registration of graphs."""

from __future__ import annotations

from ..._wire.registration import Registration

REGISTRATION = Registration(name="graph", number=16, engine="GraphEngine", requires=("modules",))
