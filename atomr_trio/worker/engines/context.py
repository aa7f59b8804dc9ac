"""Records of the context itself. They have no ticket: the worker's loop handles them at once, between commands."""

from __future__ import annotations

from ..protocol import Mode, VerbTable

CONTEXT = VerbTable("context", 0)

CLOSE = CONTEXT.verb("close", Mode.BLOCKS, {})
"""Everything asked for is done: give the context back and exit."""

PROBE = CONTEXT.verb("probe", Mode.ENQUEUES, {})
"""Ask every stream for a fault, and answer ``probed`` if there is none."""
