"""Records of work that other libraries of the user's process share."""

from __future__ import annotations

from ..protocol import Mode, VerbTable

INTEROP = VerbTable("interop", 20)

ATTACH = INTEROP.verb("attach", Mode.BLOCKS, {"size": "Q"})
"""Register the page of words behind the record's descriptor with the device."""

WAIT = INTEROP.verb("wait", Mode.ENQUEUES, {"offset": "Q", "value": "Q"})
"""Let later work on the lane wait until the word at this offset of the page is at least `value`."""

SETTLE = INTEROP.verb("settle", Mode.ENQUEUES, {})
"""Do nothing. When its ticket is reached, so is everything that it was ordered after."""
