"""The records of NCCL: collectives, which are commands of a lane, and what is asked about communicators.

A communicator has a number, which the user's process gives it; no two of a worker have the same.
"""

from __future__ import annotations

import struct
from typing import Final

from ..._wire.protocol import Mode, VerbTable
from .registration import REGISTRATION

NCCL = VerbTable(REGISTRATION.name, REGISTRATION.number)

RUN = NCCL.verb("run", Mode.ENQUEUES, {"communicator": "Q"})
"""Enqueue the calls of the tail, each a `CALL`, as one group if they are several."""

FIRST_RUN = NCCL.verb("first_run", Mode.BLOCKS, {"communicator": "Q"})
"""The same where a call is the first of its kind on a communicator. It may connect the members, and wait for them; and
it may load a kernel of NCCL, for which the driver waits until the GPU has nothing to do."""

CALL: Final = struct.Struct("<BBBxiQQQ8s")
"""A call: its number in `CALLS`, its ``ncclDataType_t``, its operation, the root or the other rank, the count of
elements, the addresses of what is sent and received, and the bytes of the factor of a pre-multiplied sum."""

ADDRESSES_AT: Final = (16, 24)
"""The offsets of its addresses: of what is sent, and of what is received."""

READY_LIMIT: Final = 64
"""So many collectives a lane has unfinished at most when one goes the short way. A stream has room for about a thousand
entries, of which a collective is taken to make ten; in native code nobody counts them."""
_ENTRIES_OF_GROUPS: Final = 384
"""So many of these entries the groups of a lane make at most: behind them there is room for other collectives."""


def entries_of_group(calls: int) -> int:
    """Return the entries of a stream's queue that a group of so many calls is taken to make."""
    return 8 + 2 * calls


def ready_limit(calls: int) -> int:
    """Return how many commands a lane has unfinished at most when a command of so many calls goes the short way."""
    return READY_LIMIT if calls == 1 else min(READY_LIMIT, max(1, _ENTRIES_OF_GROUPS // entries_of_group(calls)))


KIND_BYTES: Final = 8
"""So many of them, the first ones, say what kind of call it is."""

PREMULTIPLIED: Final = 5
"""The operation of a pre-multiplied sum; those below are an ``ncclRedOp_t``."""

CALLS: Final = (
    "ncclAllReduce",
    "ncclReduceScatter",
    "ncclReduce",
    "ncclBroadcast",
    "ncclAllGather",
    "ncclSend",
    "ncclRecv",
)
"""The functions that move data. All other collectives are groups of sends and receives."""

COMMUNICATORS = VerbTable("communicators", 12)
"""What is asked about communicators. These records have no ticket: threads of their own handle them, beside the lanes.
An answer is a message with the number of the question."""

ENVIRONMENT = COMMUNICATORS.verb("environment", Mode.BLOCKS, {})
"""Set variables of the environment before NCCL reads them. The payload is JSON: `defaults` are set where there is no
such variable, `given` always."""

UNIQUE_ID = COMMUNICATORS.verb("unique_id", Mode.BLOCKS, {"question": "Q"})
"""Answer with an id for a new communicator, and listen for its other ranks: the worker of rank 0 is asked."""

INIT = COMMUNICATORS.verb("init", Mode.BLOCKS, {"question": "Q", "communicator": "Q", "rank": "I", "size": "I"})
"""Make a communicator with the id of the tail, and answer when all ranks have come."""

ABORT = COMMUNICATORS.verb("abort", Mode.BLOCKS, {"question": "Q", "communicator": "Q"})
"""Abort a communicator, also one that is still being made, and answer when that is done. What comes for it later is
refused."""

WARM = COMMUNICATORS.verb("warm", Mode.BLOCKS, {"question": "Q"})
"""Make a communicator of one rank, run a collective on it, and keep it. The next `INIT` then takes a tenth of the
time."""
