"""Records of rehearsals: calls that a standby makes ahead of time, without any effect, so that they are quick later."""

from __future__ import annotations

from ..protocol import Mode, VerbTable

REHEARSAL = VerbTable("rehearsal", 21)

REHEARSE = REHEARSAL.verb("rehearse", Mode.BLOCKS, {"engine": "Q", "verb": "Q", "ends": "Q"})
"""Make the call of a record, whose payload follows, without running it: its kernels are loaded, and nothing else.

The objects of libraries that this takes are kept for the next such record, unless `ends` is 1. A worker in service does
nothing. A call that fails is no error: the first real one says so.
"""
