"""Records of the context itself. They have no ticket: the worker's loop handles them at once, between commands."""

from __future__ import annotations

from ..protocol import Mode, VerbTable

CONTEXT = VerbTable("context", 0)

CLOSE = CONTEXT.verb("close", Mode.BLOCKS, {})
"""Everything asked for is done: give the context back and exit."""

RESET = CONTEXT.verb("reset", Mode.BLOCKS, {})
"""Everything asked for is done: give all of it back but the context, say ``hello``, and wait to be adopted again."""

MAP_CHUNK = CONTEXT.verb("map_chunk", Mode.ENQUEUES, {"address": "Q", "size": "Q"})
"""To a standby: map the chunk behind the record's descriptor, which the worker in service has just made."""

UNMAP_CHUNK = CONTEXT.verb("unmap_chunk", Mode.ENQUEUES, {"address": "Q"})
"""To a standby: let go of a chunk that the device no longer has."""

EXPORT_CHUNK = CONTEXT.verb("export_chunk", Mode.ENQUEUES, {"address": "Q"})
"""Send the descriptor of a chunk once more: the user's process had no place for it."""

OPEN_LANE = CONTEXT.verb("open_lane", Mode.BLOCKS, {"lane": "Q", "priority": "q"})
"""Make one more lane, with a priority as ``cuStreamCreateWithPriority`` has it."""

CLOSE_LANE = CONTEXT.verb("close_lane", Mode.BLOCKS, {"lane": "Q"})
"""Give a lane back whose commands are all finished."""

PROBE = CONTEXT.verb("probe", Mode.ENQUEUES, {})
"""Ask every stream for a fault, and answer ``probed`` if there is none."""

INJECT = CONTEXT.verb("inject", Mode.ENQUEUES, {})
"""Simulator only: make calls of the driver fail. The payload is JSON: `faults`, in ``atomr_cuda.injection``'s words,
and `instead`, whether those asked for before are withdrawn."""
