"""Records of the libraries that plan: a plan is defined once for a lane of a worker, and then executed by number."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol

from ..protocol import Mode, Verb, VerbTable

WORD = 8
MOST_DEFINED = 96 * 1024
"""The most bytes of a program that are in a record: a message of the channel has 192 KiB at most."""
_EXECUTE = {"plan": "Q"}


class Encoded(Protocol):
    """What is defined: a program, or a sequence of calls."""

    def encode(self) -> bytes:
        """Return it as it crosses."""


class DefiningTable(Protocol):
    """A table with the verbs that define something once for a lane, execute it by number, and drop it."""

    engine: str
    define: Verb
    first_execute: Verb
    execute: Verb
    drop: Verb
    open: Verb


class PlanTable(VerbTable):
    """What of a library programs may use, functions and variables, and the verbs that define, execute and drop plans.

    The tail of an execution has the addresses as 64-bit words, and behind them the scalars. That of a definition has
    the program, which is `program` bytes long, and behind it the addresses of an example. If both are more than
    `MOST_DEFINED` bytes, they are in a file, whose descriptor comes with the record.
    """

    def __init__(
        self, engine: str, number: int, functions: tuple[str, ...], *, variables: tuple[str, ...] = ()
    ) -> None:
        super().__init__(engine, number)
        self.functions: frozenset[str] = frozenset(functions)
        self.variables: frozenset[str] = frozenset(variables)
        self.define: Verb = self.verb(
            "define", Mode.BLOCKS, {"plan": "Q", "allowed": "Q", "program": "I"}, answers=True
        )
        """Make a plan. All workspaces of the worker may take `allowed` bytes of device memory. Answers with the numbers
        that the program names."""
        self.first_execute: Verb = self.verb("first_execute", Mode.BLOCKS, _EXECUTE)
        """The same, when its kernels may have to be loaded."""
        self.execute: Verb = self.verb("execute", Mode.ENQUEUES, _EXECUTE, capturable=True, shares=True)
        """Execute a plan that was defined before for this lane."""
        self.drop: Verb = self.verb("drop", Mode.BLOCKS, _EXECUTE)
        """Give a plan back, once its last execution is done."""
        self.open: Verb = self.verb("open", Mode.BLOCKS, {})
        """Load the library and make its handle, ahead of the first plan: a standby has the time."""
        self.restore: Verb = self.verb("restore", Mode.BLOCKS, {"plan": "Q", "calls": "I"})
        """Bring the objects of a plan to another state by so many of the calls that its program has for that. What
        follows is a `RESTORED` for each, and its scalars behind that; or they are in a file, as with a definition."""


PLACE_OF_ADDRESSES = struct.calcsize("<" + "".join(_EXECUTE.values()))
"""The offset of the addresses in the tail of an execution."""


RESTORED = struct.Struct("<II")
"""A call of `PlanTable.restore`: its place among those of the program, and how often it is made."""


def pack_addresses(addresses: Sequence[int]) -> bytes:
    """Return addresses as they are written."""
    return struct.pack(f"<{len(addresses)}Q", *addresses)


def unpack_addresses(payload: bytes, place: int, count: int) -> tuple[int, ...]:
    """Return `count` addresses from a place on."""
    return struct.unpack_from(f"<{count}Q", payload, place)
