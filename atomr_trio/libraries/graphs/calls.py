"""Calls of libraries as steps of a graph: the records that the worker captures, and their access to memory.

A call is made with every launch, and each time all of it is done: copies that it needs before, and zeros where it needs
those. So an array that the call has made itself is overwritten by each launch, whatever is left in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..._calls.plans import PlanKind, PlanRequest
from ..._calls.recorded import Planned
from ..._calls.verbs import UploadRequest
from ..._generation.requests import CommandRequest
from ..._memory.arena import Block
from ..._transfers.memory import plan_fill
from ..._values.errors import InvalidArgument
from ..._wire.protocol import Role, Verb
from ..._wire.records.memory import BOX, COPY, COPY_MANY

Record = tuple[Verb, bytes]

MOST_RECORDS = 256
"""The most records of one call: each is a node of the driver's graph, or more."""


def call_records(planned: Planned) -> tuple[list[Record], dict[Block, Role]]:
    """Return the records of a call, in order, and its access to each block. Raises `InvalidArgument`."""
    for request in planned.requests:
        _check_capturable(planned.operation, request)
    written = {block for request in planned.requests for block, role in request.operands if role is not Role.READ}
    fills = [fill for array in planned.zeros if array._block in written for fill in plan_fill(array, 0)]
    requests = [*fills, *planned.requests]
    records = [record for request in requests for record in _records_of(request)]
    if len(records) > MOST_RECORDS:
        raise InvalidArgument(
            f"{planned.operation} of these arrays cannot be captured: it takes {len(records)} commands, and a node at "
            f"most {MOST_RECORDS}",
            advice="copy arrays with scattered elements to contiguous ones first",
        )
    roles = _roles_of(requests)
    made = {array._block for array in planned.made}
    return records, {block: Role.OVERWRITE if block in made and block in written else roles[block] for block in roles}


def plans_of(planned: Planned) -> tuple[PlanKind, ...]:
    """Return the plans that a call executes."""
    return tuple(request.plan for request in planned.requests if isinstance(request, PlanRequest))


def _check_capturable(operation: str, request: CommandRequest) -> None:
    if isinstance(request, UploadRequest):
        raise InvalidArgument(
            f"{operation} of these arrays cannot be captured: it needs a table of addresses from the host",
            advice="record a call for each matrix",
        )
    if request.slot_bytes:
        raise InvalidArgument(
            f"{operation} cannot be captured when its result is for the host",
            advice="give out, an array on the device",
        )
    if not (request.verb.capturable or request.verb is COPY_MANY):
        raise InvalidArgument(
            f"{operation} cannot be captured: {request.verb.operation} waits for the GPU, or for the host",
            advice="call it outside of the graph",
        )


def _records_of(request: CommandRequest) -> Iterator[Record]:
    if request.verb is COPY_MANY:
        boxes = range(0, len(request.payload), BOX.size)
        yield from ((COPY, request.payload[at : at + BOX.size]) for at in boxes)
    else:
        yield request.verb, request.payload


def _roles_of(requests: Sequence[CommandRequest]) -> dict[Block, Role]:
    """Return one role for each block of commands that run one after the other."""
    roles: dict[Block, Role] = {}
    for request in requests:
        for block, role in request.operands:
            before = roles.setdefault(block, role)
            if before is Role.READ and role is not Role.READ:
                roles[block] = Role.WRITE
    return roles
