"""Records of the context itself. They have no ticket: the worker's loop handles them at once, between commands."""

from __future__ import annotations

from ..protocol import Mode, VerbTable

CONTEXT = VerbTable("context", 0)

CLOSE = CONTEXT.verb("close", Mode.BLOCKS, {})
"""Give the context back and exit, when all requests are done."""

RESET = CONTEXT.verb("reset", Mode.BLOCKS, {})
"""Give back everything but the context when all requests are done, say ``hello``, and wait to be adopted again."""

MAP_CHUNK = CONTEXT.verb("map_chunk", Mode.ENQUEUES, {"address": "Q", "size": "Q"})
"""To a standby worker: map the chunk behind the record's descriptor, which the worker in service has just made."""

UNMAP_CHUNK = CONTEXT.verb("unmap_chunk", Mode.ENQUEUES, {"address": "Q"})
"""To a standby worker: unmap a chunk that the device no longer has."""

MAP_PEER_CHUNK = CONTEXT.verb("map_peer_chunk", Mode.ENQUEUES, {"address": "Q", "size": "Q"})
"""To a worker that has no work yet: do as for `MAP_PEER`. The answer is a ``peer_chunk`` message with the address and
the error, None if there is none."""

UNMAP_PEER_CHUNK = CONTEXT.verb("unmap_peer_chunk", Mode.ENQUEUES, {"address": "Q"})
"""To a worker that has no work yet: do as for `UNMAP_PEER`. There is no answer."""

SERVE = CONTEXT.verb("serve", Mode.ENQUEUES, {})
"""To a standby worker: it takes over, and rehearses no more."""

EXPORT_CHUNK = CONTEXT.verb("export_chunk", Mode.ENQUEUES, {"address": "Q"})
"""Send the descriptor of a chunk again: the user's process had no room for it."""

OPEN_LANE = CONTEXT.verb("open_lane", Mode.BLOCKS, {"lane": "Q", "priority": "q"})
"""Make one more lane, with a priority as for ``cuStreamCreateWithPriority``."""

CLOSE_LANE = CONTEXT.verb("close_lane", Mode.BLOCKS, {"lane": "Q"})
"""Close a lane whose commands are all finished."""

PROBE = CONTEXT.verb("probe", Mode.ENQUEUES, {})
"""Query every stream for a fault, and answer ``probed`` if there is none."""

INJECT = CONTEXT.verb("inject", Mode.ENQUEUES, {})
"""Simulator only: make calls of the driver fail. The payload is JSON. `faults` has the form of
``atomr_cuda.injection``; `instead` tells whether earlier faults are withdrawn."""
