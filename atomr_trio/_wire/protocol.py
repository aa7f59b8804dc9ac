"""The records that cross between the user's process and a worker, and the page that both can see.

A record is a fixed header, the tickets that it waits for, and the fields of one verb. The verbs are declared in
``_wire/records``, a file for each library. This module knows only the encoding of a verb. It imports the standard
library alone, because both sides of the process boundary import it.
"""

from __future__ import annotations

import enum
import struct
from typing import Final

# --- the header of a record -------------------------------------------------------------------------------------------

HEADER: Final = struct.Struct("<QBBBBI")
"""The header: ticket, lane, engine, verb, number of waits, bytes after the header and the waits.

The ticket is first, so that the fields that are the same in every launch of a kernel are one piece of memory.
"""

MAX_WAITS: Final = 255
CONTROL_LANE: Final = 255
"""The pseudo-lane of records without a ticket: the loop thread handles them at once (``records/context.py``)."""
SOCKET_LANE: Final = 254
"""A mark in the ring: the next record in order comes through the socket."""
UNSIGNED: Final = 0x80
"""A flag, added to the verb's number: the command needs no ticket of its own; a later command's ticket is enough."""
REPEATED: Final = 0x40
"""A flag, added to the verb's number: the record was sent before and will be sent again, so the worker prepares it."""
VERB_NUMBERS: Final = 0x3F
"""The bits of that byte for the verb's number."""

_REQUIRED: Final = 1 << 63
_LANE_SHIFT: Final = 56
_TICKET_MASK: Final = (1 << _LANE_SHIFT) - 1


def encode_wait(lane: int, ticket: int, *, required: bool = False) -> int:
    """One wait: run only after `ticket` of `lane`. If `required` is set, a failure of that command fails this one."""
    return ticket | lane << _LANE_SHIFT | (_REQUIRED if required else 0)


def decode_wait(word: int) -> tuple[int, int, bool]:
    """The lane, the ticket, and whether the command that holds it must have succeeded."""
    return word >> _LANE_SHIFT & 0x7F, word & _TICKET_MASK, bool(word & _REQUIRED)


# --- lanes ------------------------------------------------------------------------------------------------------------

LANE_COMPUTE: Final = 0
LANE_COPY_IN: Final = 1
LANE_COPY_OUT: Final = 2
LANE_NAMES: Final = ("compute", "copy-in", "copy-out")
LANES: Final = len(LANE_NAMES)
"""Lanes that are always there; a program may open more."""
MAX_LANES: Final = 16
LANE_LIMIT: Final = 512
"""The limit of a lane's unfinished commands, for awaited verbs and for ``_nowait`` verbs. Batches are counted apart."""
INLINE_LIMIT: Final = 256
"""The number of unfinished commands above which a lane's own thread makes its calls, instead of the shared loop thread.
"""
DRIVER_LIMIT: Final = 400
"""The number of unfinished commands above which that thread waits. Each command is a launch and a ticket. The driver
blocks a call beyond about a thousand of those, and then holds the stream: even a query of it does not return."""
BATCH_LIMIT: Final = 4096
"""The number of unfinished calls at which a batch takes no more. One call may be several commands, and may need others:
a module that must be loaded, memory that must be made, a fill."""
BATCH_COMMANDS: Final = 8 * BATCH_LIMIT
"""The number of a lane's unfinished commands at which a batch takes no more: eight for each call. The worker keeps the
commands that the driver has no room for. The user's process keeps those that the ring has no room for."""
GROUP_LIMIT: Final = 16
"""The number of unsigned commands that may share one ticket. Signing each one costs a third as much as its launch."""

# --- the timeline page ------------------------------------------------------------------------------------------------

CELL: Final = 64
"""The bytes of a cache line: every shared word has its own."""

HEARTBEAT_CELL: Final = 0
ASLEEP_CELL: Final = 1
SELF_TEST_CELL: Final = 2
RECORDS_READ_CELL: Final = 3
RECORDS_SENT_CELL: Final = 4
WORKER_ASLEEP_CELL: Final = 5
SENDER_WAITS_CELL: Final = 6
WORKSPACES_CELL: Final = 7
FIRST_COUNTER_CELL: Final = 8
FIRST_FAILURES_CELL: Final = FIRST_COUNTER_CELL + MAX_LANES
STATUSES_OFFSET: Final = 4096
STATUS_BYTES: Final = 2
STATUSES_PER_LANE: Final = BATCH_COMMANDS + 16 * LANE_LIMIT
"""The number of statuses: one for each ticket in use. This includes awaited commands, and the commands that the last
one of a batch needs."""

PAGE_BYTES: Final = STATUSES_OFFSET + MAX_LANES * STATUSES_PER_LANE * STATUS_BYTES


def counter_word(lane: int) -> int:
    """Return the index of a lane's counter in the page seen as 64-bit words."""
    return (FIRST_COUNTER_CELL + lane) * CELL // 8


def failures_word(lane: int) -> int:
    """Return the index of the word that counts a lane's failed commands."""
    return (FIRST_FAILURES_CELL + lane) * CELL // 8


def status_place(lane: int, ticket: int) -> int:
    """Return the index of a command's status in the page seen as 16-bit words. 0 is success."""
    return STATUSES_OFFSET // STATUS_BYTES + lane * STATUSES_PER_LANE + ticket % STATUSES_PER_LANE


HEARTBEAT_WORD: Final = HEARTBEAT_CELL * CELL // 8
ASLEEP_WORD: Final = ASLEEP_CELL * CELL // 8
SELF_TEST_WORD: Final = SELF_TEST_CELL * CELL // 8
RECORDS_READ_WORD: Final = RECORDS_READ_CELL * CELL // 8
RECORDS_SENT_WORD: Final = RECORDS_SENT_CELL * CELL // 8
WORKER_ASLEEP_WORD: Final = WORKER_ASLEEP_CELL * CELL // 8
WORKSPACES_WORD: Final = WORKSPACES_CELL * CELL // 8
"""The bytes of device memory that the worker has taken for workspaces: of plans, and of calls in graphs."""
SENDER_WAITS_WORD: Final = SENDER_WAITS_CELL * CELL // 8
"""Not 0 while the sender has records for which the ring had no room: the worker says ``room`` when it has read all."""

ENGINE_BUG: Final = -1
"""The status of a command whose engine raised an exception that is not a status of a library: an internal error."""
LIBRARY_MISSING: Final = -2
"""The status of a command whose library is not installed, or whose function the library does not have."""
HOST_SHORTAGE: Final = -3
"""The status of a command for which the worker's process has no descriptor, memory or thread left."""

# --- how a worker ends by itself --------------------------------------------------------------------------------------

EXIT_BUG: Final = 70
EXIT_ORPHANED: Final = 71
EXIT_NO_HOST_MEMORY: Final = 72
EXIT_LOST: Final = 73
EXIT_TEXTS: Final = {
    EXIT_BUG: "an internal error in the worker; its last output is in the log",
    EXIT_ORPHANED: "its channel was closed",
    EXIT_NO_HOST_MEMORY: "it ran out of host memory, or of another resource of the host; its last output is in the log",
    EXIT_LOST: "its context was lost, and the user's process did not end the worker",
}
"""The meanings of a worker's own exit statuses. Any other comes from a library that called ``exit``."""

# --- verbs ------------------------------------------------------------------------------------------------------------


class Role(enum.Enum):
    """The effect of a command on the memory of one operand."""

    READ = "reads"
    WRITE = "writes"
    MAY_WRITE = "may write"
    """As `WRITE`: the command is not known to write the operand, and nothing proves that it only reads it."""
    OVERWRITE = "overwrites"
    """The command writes every byte of the operand and reads none, so it makes a torn array valid again."""


class Mode(enum.Enum):
    """The way a verb runs: it only puts work on a stream, or it may block the thread that runs it."""

    ENQUEUES = "enqueues"
    BLOCKS = "blocks"


class Verb:
    """One verb of an engine: the form of its record, its effects on the operands, and how it runs."""

    __slots__ = (
        "answers",
        "capturable",
        "engine",
        "engine_number",
        "fields",
        "mode",
        "name",
        "number",
        "operation",
        "roles",
        "shares",
        "struct",
    )

    def __init__(
        self,
        engine: str,
        engine_number: int,
        number: int,
        name: str,
        mode: Mode,
        fields: dict[str, str],
        roles: dict[str, Role],
        *,
        answers: bool,
        capturable: bool,
        shares: bool,
    ) -> None:
        unknown = roles.keys() - fields.keys()
        if unknown:
            raise ValueError(f"{engine}.{name} gives roles to fields that it does not have: {sorted(unknown)}")
        self.engine: str = engine
        self.engine_number: int = engine_number
        self.number: int = number
        self.name: str = name
        self.operation: str = f"{engine}.{name}"
        """The full name, for errors."""
        self.mode: Mode = mode
        self.answers: bool = answers
        """True if it has a result: its message must be read before its ticket is settled."""
        self.capturable: bool = capturable
        """True if it can be a step of a graph."""
        self.shares: bool = shares
        """True if a command of a batch may share the ticket of one that follows; see `UNSIGNED`."""
        self.fields: tuple[str, ...] = tuple(fields)
        self.roles: dict[str, Role] = roles
        """What becomes of the arrays at addresses among the fields, if the array is no view of a part."""
        self.struct: struct.Struct = struct.Struct("<" + "".join(fields.values()))

    def __repr__(self) -> str:
        return f"<Verb {self.operation} {self.mode.value}>"


class VerbTable:
    """The verbs of one engine, in the order of their declaration."""

    def __init__(self, engine: str, number: int) -> None:
        self.engine = engine
        self.number = number
        self.verbs: list[Verb] = []

    def verb(
        self,
        name: str,
        mode: Mode,
        fields: dict[str, str],
        roles: dict[str, Role] | None = None,
        *,
        answers: bool = False,
        capturable: bool = False,
        shares: bool = False,
    ) -> Verb:
        """Declare a verb. `fields` maps each field to its ``struct`` format; `roles` gives the operands among them."""
        number = len(self.verbs)
        verb = Verb(
            self.engine,
            self.number,
            number,
            name,
            mode,
            fields,
            roles or {},
            answers=answers,
            capturable=capturable,
            shares=shares,
        )
        self.verbs.append(verb)
        return verb
