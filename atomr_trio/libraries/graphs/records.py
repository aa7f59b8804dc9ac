"""Records of graphs."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..._wire.protocol import Mode, Verb, VerbTable
from .registration import REGISTRATION

GRAPH = VerbTable(REGISTRATION.name, REGISTRATION.number)

_BUILD = {"graph": "Q", "allowed": "Q"}
"""All workspaces of the worker may take `allowed` bytes of device memory."""

BUILD = GRAPH.verb("build", Mode.BLOCKS, _BUILD)
"""Build a graph of the steps in the record's descriptor. It replaces an older graph with the same number."""

LAUNCH_GRAPH = GRAPH.verb("launch", Mode.ENQUEUES, {"graph": "Q"}, shares=True)

UPDATE = GRAPH.verb("update", Mode.ENQUEUES, _BUILD)
"""Replace steps by those of the tail that have the same numbers. The edges stay."""

UPDATE_CALLS = GRAPH.verb("update_calls", Mode.BLOCKS, _BUILD)
"""The same, where calls of libraries are among the steps: to capture one may take long the first time."""

SET_ARGUMENTS = GRAPH.verb("set_arguments", Mode.ENQUEUES, {"graph": "Q", "step": "Q"}, shares=True)
"""Give a step that is one launch the parameter block of the tail, which may be longer by up to seven bytes. If that
fails, so does every later launch of the graph, until it is built anew."""

DESTROY = GRAPH.verb("destroy", Mode.BLOCKS, {"graph": "Q"})

_STEP = struct.Struct("<III")
"""The step's number, the number of steps that it comes after, and the number of its records."""
_RECORD = struct.Struct("<BBI")
"""The engine, the verb, and the bytes of the payload."""


class Step(NamedTuple):
    """One operation of a graph."""

    number: int
    after: tuple[int, ...]
    """The numbers of earlier steps."""
    records: tuple[tuple[Verb, bytes], ...]
    """Verbs and payloads, in order."""


def encode_steps(steps: Iterable[Step]) -> bytes:
    """Return steps in the form in which they are sent to the worker."""
    return b"".join(
        part
        for number, after, records in steps
        for part in (encode_head(number, after, len(records)), encode_records(records))
    )


def encode_head(number: int, after: Sequence[int], records: int) -> bytes:
    """Return the head of a step that has this number of records."""
    return _STEP.pack(number, len(after), records) + struct.pack(f"<{len(after)}I", *after)


def encode_records(records: Iterable[tuple[Verb, bytes]]) -> bytes:
    """Return the records of a step."""
    return b"".join(
        part
        for verb, payload in records
        for part in (_RECORD.pack(verb.engine_number, verb.number, len(payload)), payload)
    )


Verbs = Mapping[tuple[int, int], Verb]
"""Verbs by the number of their engine and their own."""


def capturable(tables: Iterable[VerbTable]) -> Verbs:
    """Return the verbs in these tables that can be steps of a graph."""
    return {(verb.engine_number, verb.number): verb for table in tables for verb in table.verbs if verb.capturable}


def decode_steps(data: bytes, verbs: Verbs) -> Iterator[Step]:
    """Return the steps that `encode_steps` wrote, which are of these verbs."""
    at = 0
    while at < len(data):
        number, before, count = _STEP.unpack_from(data, at)
        at += _STEP.size
        after = struct.unpack_from(f"<{before}I", data, at)
        at += 4 * before
        records = []
        for _ in range(count):
            engine, verb, length = _RECORD.unpack_from(data, at)
            at += _RECORD.size
            records.append((verbs[engine, verb], data[at : at + length]))
            at += length
        yield Step(number, after, tuple(records))
