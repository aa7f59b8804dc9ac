"""Records of events."""

from __future__ import annotations

from ..protocol import Mode, VerbTable

EVENT = VerbTable("event", 5)

MARK = EVENT.verb("mark", Mode.ENQUEUES, {})
"""Do nothing. The ticket tells that everything before it on the lane is done, and later work waits for its waits."""

RECORD = EVENT.verb("record", Mode.ENQUEUES, {"event": "Q"})
"""Record the time on the GPU when the lane gets here."""

ELAPSED = EVENT.verb("elapsed", Mode.ENQUEUES, {"earlier": "Q", "later": "Q"}, answers=True)
"""Answer with the milliseconds between two recorded times; the tickets of both events have been reached."""

DROP = EVENT.verb("drop", Mode.ENQUEUES, {"event": "Q"})
"""Destroy an event, and others whose numbers follow."""
