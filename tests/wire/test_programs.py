"""Programs of plans as they cross: what is written is what is read, and nothing else is."""

from __future__ import annotations

import json
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from atomr_trio._wire.programs import (
    OF_LANE,
    OF_PLAN,
    Address,
    Arrange,
    BadProgram,
    Bytes,
    Call,
    Choose,
    Create,
    Destroy,
    Exported,
    Handle,
    Launch,
    Most,
    Number,
    Out,
    Program,
    Query,
    Ref,
    Repeat,
    Require,
    Room,
    RoomOf,
    Scalars,
    Set,
    Slot,
    Stream,
    Values,
    Words,
)

counts = st.integers(0, 1 << 40)
fields = st.sampled_from(["", "algo", "state_2"])
places = st.builds(Address, counts, counts) | st.builds(RoomOf, counts, counts)
slots = st.builds(Slot, counts, fields)
arguments = st.one_of(
    st.none(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(allow_nan=False),
    st.builds(Slot, counts, fields),
    st.builds(Ref, counts, fields),
    st.builds(Out, counts),
    st.builds(Bytes, st.binary(min_size=1)),
    st.builds(Values, st.lists(st.integers(-(1 << 63), (1 << 63) - 1)).map(tuple)),
    places,
    st.builds(Words, st.lists(places | slots).map(tuple)),
    st.builds(Scalars, counts),
    st.builds(Number, counts, st.sampled_from("fdiIqQ")),
    st.builds(Stream),
    st.builds(Handle),
    st.builds(Exported, st.text()),
)
lists = st.lists(arguments, max_size=5).map(tuple)
names = st.text(min_size=1, max_size=9)
sizes = st.integers(-(1 << 40), 1 << 40)
pieces = counts | st.builds(Slot, counts, fields)
most = st.lists(pieces, min_size=1).map(tuple)
copies = st.tuples(st.just("float32"), st.lists(counts).map(tuple), st.floats(allow_nan=False), st.booleans())
steps = st.one_of(
    st.builds(Create, names, lists, names),
    st.builds(Query, names, lists),
    st.builds(Call, names, lists),
    st.builds(Set, names, lists),
    st.builds(Repeat, names, lists, counts),
    st.builds(
        Choose, st.builds(Number, counts, st.just("I")), st.lists(st.tuples(names, lists), min_size=1).map(tuple)
    ),
    st.builds(Room, st.lists(pieces | st.builds(Most, most)).map(tuple), st.sampled_from([OF_LANE, OF_PLAN])),
    st.builds(Require, st.builds(Slot, counts, fields), sizes, sizes, sizes),
    st.builds(Destroy, counts),
    st.builds(Arrange, places, places, copies),
    st.builds(
        Launch,
        names,
        st.lists(places | counts | st.builds(Number, counts, st.sampled_from("fdiIqQ"))).map(tuple),
        counts | st.builds(Number, counts, st.sampled_from("IQ")),
    ),
)
programs = st.builds(
    Program,
    st.lists(steps, max_size=4).map(tuple),
    st.lists(steps, max_size=4).map(tuple),
    counts,
    counts,
    counts,
    st.dictionaries(st.integers(0, 999), st.text()),
    st.lists(slots).map(tuple),
    st.binary(),
    st.dictionaries(names, counts),
    st.booleans(),
    st.lists(st.builds(Call, names, lists), max_size=3).map(tuple),
    counts,
)


@hypothesis.given(programs)
def test_a_program_is_read_as_it_was_written(program: Program) -> None:
    read = Program.read(program.encode())
    assert read == program
    assert read.encode() == program.encode()
    kinds = [[type(each) for each in (*part, *(value for step in part for value in step))] for part in read[:2]]
    assert kinds == [
        [type(each) for each in (*part, *(value for step in part for value in step))] for part in program[:2]
    ]


GOOD: dict[str, Any] = {
    "make": [],
    "execute": [],
    "addresses": 0,
    "scalars": 0,
    "entries": 0,
    "texts": {},
    "answers": [],
    "image": 0,
    "kernels": {},
    "moves": False,
    "restore": [],
    "restore_scalars": 0,
}
CALL = ["Call", "f", ["", 1]]

BAD: dict[str, Any] = {
    "no JSON": b"\xff",
    "half of it": b'{"make": [',
    "a list": [],
    "a part that is missing": {name: value for name, value in GOOD.items() if name != "execute"},
    "a negative number of addresses": GOOD | {"addresses": -1},
    "a number that is a truth": GOOD | {"scalars": True},
    "a number as text": GOOD | {"entries": "3"},
    "steps that are none": GOOD | {"make": 3},
    "a step that is none": GOOD | {"make": [3]},
    "an empty step": GOOD | {"make": [[]]},
    "an unknown step": GOOD | {"make": [["Jump", 3]]},
    "a step with too little": GOOD | {"make": [["Call", "f"]]},
    "a step with too much": GOOD | {"make": [[*CALL, 3]]},
    "a function by number": GOOD | {"make": [["Call", 3, ["", 1]]]},
    "arguments that are none": GOOD | {"make": [["Call", "f", 3]]},
    "an argument that is a truth": GOOD | {"make": [["Call", "f", ["", True]]]},
    "an argument that is text": GOOD | {"make": [["Call", "f", ["", "text"]]]},
    "an unknown argument": GOOD | {"make": [["Call", "f", ["", ["Pointer", 4096]]]]},
    "an argument with too much": GOOD | {"make": [["Call", "f", ["", ["Address", 0, 0, 0]]]]},
    "a negative offset": GOOD | {"make": [["Call", "f", ["", ["Address", 0, -8]]]]},
    "a slot by name": GOOD | {"make": [["Call", "f", ["", ["Slot", "a", ""]]]]},
    "a field that is none": GOOD | {"make": [["Call", "f", ["", ["Slot", 0, "a.b"]]]]},
    "bytes that are none": GOOD | {"make": [["Call", "f", ["", ["Bytes", "xy"]]]]},
    "no bytes at all": GOOD | {"make": [["Call", "f", ["", ["Bytes", ""]]]]},
    "words that are numbers": GOOD | {"make": [["Call", "f", ["", ["Words", ["", 4096]]]]]},
    "an unknown format": GOOD | {"make": [["Call", "f", ["", ["Number", 0, "P"]]]]},
    "a workspace of nobody": GOOD | {"make": [["Room", ["", 8], "me"]]},
    "a workspace of less than nothing": GOOD | {"make": [["Room", ["", -8], OF_LANE]]},
    "a copy from a number": GOOD | {"execute": [["Arrange", 4096, ["Address", 0, 0], [""]]]},
    "a piece that is the largest of none": GOOD | {"make": [["Room", ["", ["Most", [""]]], OF_LANE]]},
    "a piece that is the largest of a number": GOOD | {"make": [["Room", ["", ["Most", 8]], OF_LANE]]},
    "the largest of sizes as an argument": GOOD | {"make": [["Call", "f", ["", ["Most", ["", 8]]]]]},
    "a kernel by number": GOOD | {"execute": [["Launch", 3, ["", 1], 1]]},
    "a word of a kernel that is too large": GOOD | {"execute": [["Launch", "k", ["", 1 << 64], 1]]},
    "a word of a kernel that is negative": GOOD | {"execute": [["Launch", "k", ["", -1], 1]]},
    "a kernel of less than no threads": GOOD | {"execute": [["Launch", "k", ["", 1], -1]]},
    "a kernel of so many threads as a float says": GOOD | {"execute": [["Launch", "k", ["", 1], ["Number", 0, "d"]]]},
    "a kernel of so many threads as a signed number says": GOOD
    | {"execute": [["Launch", "k", ["", 1], ["Number", 0, "q"]]]},
    "a word of a kernel of an unknown format": GOOD | {"execute": [["Launch", "k", ["", ["Number", 0, "P"]], 1]]},
    "an image that is cut off": json.dumps(GOOD | {"image": 5}).encode() + b"\0abcd",
    "an image that is longer": json.dumps(GOOD | {"image": 3}).encode() + b"\0abcd",
    "an image that does not come": GOOD | {"image": 4},
    "an image that nobody spoke of": json.dumps(GOOD).encode() + b"\0abcd",
    "an image without a size": json.dumps({**GOOD, "image": None}).encode() + b"\0abcd",
    "kernels of an image that are none": GOOD | {"kernels": []},
    "a kernel of an image with less than no parameters": GOOD | {"kernels": {"k": -1}},
    "a function that is called less than not at all": GOOD | {"make": [["Repeat", "f", ["", 1], -1]]},
    "a choice by a number that is there": GOOD | {"execute": [["Choose", 0, ["", ["", "f", ["", 1]]]]]},
    "a choice by a float": GOOD | {"execute": [["Choose", ["Number", 0, "f"], ["", ["", "f", ["", 1]]]]]},
    "a choice of nothing": GOOD | {"execute": [["Choose", ["Number", 0, "I"], [""]]]},
    "a choice of what is no call": GOOD | {"execute": [["Choose", ["Number", 0, "I"], ["", ["", 3, ["", 1]]]]]},
    "a choice of half a call": GOOD | {"execute": [["Choose", ["Number", 0, "I"], ["", ["", "f"]]]]},
    "a choice of arguments that are none": GOOD | {"execute": [["Choose", ["Number", 0, "I"], ["", ["", "f", 1]]]]},
    "a truth by number": GOOD | {"moves": 1},
    "a step to a state that is no call": GOOD | {"restore": [["Repeat", "f", ["", 1], 1]]},
    "a call to a state that is none": GOOD | {"restore": [3]},
    "a negative number of scalars of a state": GOOD | {"restore_scalars": -1},
    "a status by name": GOOD | {"make": [["Require", ["Slot", 0, ""], 0, 1, "x"]]},
    "an answer that is none": GOOD | {"answers": [3]},
    "answers that are none": GOOD | {"answers": {}},
    "an answer of a field that is none": GOOD | {"answers": [["Slot", 0, "a.b"]]},
    "texts that are none": GOOD | {"texts": []},
    "a text for no status": GOOD | {"texts": {"x": "y"}},
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_what_is_no_program_is_refused(data: Any) -> None:
    assert Program.read(json.dumps(GOOD).encode()) == Program((), (), 0)
    with pytest.raises(BadProgram):
        Program.read(data if isinstance(data, bytes) else json.dumps(data).encode())
