"""The registration of modules and kernels."""

from __future__ import annotations

from ..._wire.registration import Registration

REGISTRATION = Registration(name="module", number=2, engine="ModuleEngine", uses=("lanes",))
