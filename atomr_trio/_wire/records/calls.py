"""The plain half of a library's call table: its functions, and the layout of a call."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from ..protocol import Mode, Verb, VerbTable

if TYPE_CHECKING:
    from collections.abc import Mapping


_FIELDS = {"function": "H", "flags": "H", "scalars": "I", "answers": "I", "answer_bytes": "I", "staging": "Q"}
HEAD = struct.Struct("<" + "".join(_FIELDS.values()))
WORD = 8
STAGING_AT = HEAD.size - WORD
"""The offset of the field `staging`."""

DEVICE_SCALARS = 1
"""The one flag that all engines have: the scalars of the call, those it reads and those it answers, are on the GPU."""

ANSWER_BYTES = 4096
"""The bytes of a lane's memory for the results of calls, before they are copied to the host."""


SIZE = -1


class Workspace(NamedTuple):
    """The workspace that a function needs, and the words of the call that describe it, all by their places."""

    query: str
    """The function that says how much, for the device, and for the host where the call wants room there as well."""
    takes: tuple[int, ...]
    """The arguments of the query: words of the call by their places, and `SIZE` for a size that it returns."""
    place: int
    """The word with the address; the size is in the next. A workspace on the host comes behind in the same way."""
    unit: int = 1
    """The number of bytes in which the size is counted."""
    told: bool = True
    """True if the call takes the size."""


class Option(NamedTuple):
    """An object of the library that a call takes: the place of its word, and the kind of object, kept for each lane.

    In the record, the word at that place is the object's setting, as the library's `Handles` understand it.
    """

    place: int
    kind: str


class CallTable(VerbTable):
    """The functions of a library that can be called, and the two verbs that do: once with its first use, and later.

    A record's tail has a 64-bit word for each argument behind the handle, then the bytes of the scalars. In the words
    that `scalars` marks, by a bit each, is an offset among those bytes; in those that `answers` marks, one in the
    lane's room for answers, of which `answer_bytes` go to the place `staging` of the host when the call is done.
    """

    def __init__(
        self,
        engine: str,
        number: int,
        functions: tuple[str, ...],
        *,
        mode: Mode = Mode.ENQUEUES,
        workspaces: Mapping[str, Workspace] | None = None,
        options: Mapping[str, Option] | None = None,
        capturable: bool = False,
    ) -> None:
        super().__init__(engine, number)
        if capturable and (workspaces or mode is Mode.BLOCKS):
            raise ValueError(f"calls of {engine} cannot be captured: they wait, or their workspaces grow")
        self.functions: tuple[str, ...] = functions
        self.workspaces: Mapping[str, Workspace] = workspaces or {}
        self.options: Mapping[str, Option] = options or {}
        self.numbers: Mapping[str, int] = {name: index for index, name in enumerate(functions)}
        self.call: Verb = self.verb("call", mode, _FIELDS, capturable=capturable)
        self.first_call: Verb = self.verb("first_call", Mode.BLOCKS, _FIELDS)
        """The library makes its handle or loads the function's kernels: nothing for the thread that all lanes share."""
        self.open: Verb = self.verb("open", Mode.BLOCKS, {})
        """Load the library and make the lane's handle, ahead of the first call: a standby has the time."""
