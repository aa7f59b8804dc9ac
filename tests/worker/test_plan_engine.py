"""The interpreter of plans in the worker, with a library that notes what is done to it."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from ctypes import c_void_p
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest
from hypothesis import given, strategies as st

from atomr_cuda._library import CudaError, Library, SymbolMissing
from atomr_trio._calls.stateful import restoring
from atomr_trio._wire.programs import (
    OF_LANE,
    OF_PLAN,
    Address,
    Argument,
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
    Step,
    Stream,
    Values,
    Words,
)
from atomr_trio._wire.protocol import WORKSPACES_WORD
from atomr_trio._wire.ready import filled, with_holes
from atomr_trio._wire.records.plans import PlanTable
from atomr_trio._worker.base.calls import ENTRIES_OF_A_CALL
from atomr_trio._worker.base.kernels import Kernel, Kernels
from atomr_trio._worker.base.plans import PlanEngine
from support import native_forms
from support.strategies import examples
from support.toy_library import Bench

THE_THING = Slot(0)
THING = Create("toyCreate", (Out(0), 4), "toyDestroy")
ASK_NOTHING = Create("toyCreate", (Out(9), 1), "toyDestroy")
OTHER = Create("toyCreate", (Out(1), 5), "toyDestroy")
ASK = Query("toyAsk", (Slot(0), Out(2), Out(3)))


def run(*, room: Argument = None, size: Argument = 0, thing: Argument = THE_THING) -> Call:
    """A call of everything that an execution may give."""
    given = (Handle(), thing, Address(0), Address(1, 16), Scalars(0), Number(4, "d"), Slot(3), room, size, Stream())
    return Call("toyRun", given)


def program(*make: Step, execute: tuple[Step, ...] = (), **more: Any) -> Program:
    return Program(make or (THING, ASK), execute or (run(),), 2, 12, **more)


SCALARS = b"abcd" + bytes.fromhex("000000000000f83f")  # 1.5


def taken(bench: Bench) -> int:
    """The bytes of all workspaces, as the user's process sees them."""
    return bench.words[WORKSPACES_WORD]


KERNELS = {"add": Kernel("", 2)}


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.engine.kernels = Kernels(bench.memory, KERNELS)
    return bench


def ran(bench: Bench) -> list[tuple[Any, ...]]:
    """The calls of toyRun, without the objects that they name."""
    found = [call for call in bench.toy.calls if call[0] == "toyRun"]
    bench.toy.calls.clear()
    return found


def test_a_plan_makes_its_objects_once_and_calls_with_what_each_execution_gives(bench: Bench) -> None:
    bench.define(program())
    assert taken(bench) == 0
    assert bench.toy.names() == ["toyCreate", "toyAsk", "toyOpen"]
    bench.execute(scalars=SCALARS)
    bench.execute(addresses=(1 << 40, 0), scalars=b"wxyz" + bytes(8))
    first, second = bench.toy.calls
    thing, handle = 1, 2
    assert first == ("toyRun", handle, thing, 512, 1040, b"abcd", 1.5, 3, None, 0, 0x51)
    assert second == ("toyRun", handle, thing, 1 << 40, None, b"wxyz", 0.0, 3, None, 0, 0x51)
    assert bench.lane.weighed == [(1, ENTRIES_OF_A_CALL)] * 2


def test_a_step_of_each_kind(bench: Bench) -> None:
    content = program(
        THING,
        Call("toySet", (Slot(0), 7, Bytes(b"value"), 5)),
        Call("toyShape", (Slot(0), Values((-3, 1 << 40)), 2)),
        Call("toySet", (Slot(0), 8, Words((Address(0), Address(1, 8))), 16)),
        OTHER,
        ASK,
        Create("toyNumber", (Out(4), Slot(0)), "toyForget"),
        Require(Slot(2, "state"), 0, 0, 0),
        Require(Slot(3), 1, 9, 15),
        Destroy(1),
        Room((Slot(2, "bytes"), 0, 300), OF_LANE),
        execute=(run(room=RoomOf(2, 4), size=Slot(2, "bytes"), thing=Ref(2, "name")), run(room=RoomOf(1))),
        entries=40,
    )
    bench.define(content)
    assert taken(bench) == 1536
    told = [call for call in bench.toy.calls if call[0] in ("toySet", "toyShape", "toyDestroy")]
    words = (512).to_bytes(8, "little") + (1032).to_bytes(8, "little")
    assert told == [("toySet", 7, b"value"), ("toyShape", -3, 1 << 40), ("toySet", 8, words), ("toyDestroy", 2)]
    assert bench.toy.alive == {1: "object of 4", 3: "number", 4: "handle"}
    (room,) = bench.memory.allocated
    bench.toy.calls.clear()
    bench.execute(scalars=SCALARS)
    with_room, without = ran(bench)
    assert (with_room[-3:], without[-3:]) == ((room + 1024 + 4, 1000, 0x51), (None, 0, 0x51))
    assert bench.lane.weighed == [(1, 40)]
    bench.drop()
    assert bench.toy.alive == {4: "handle"}
    bench.engine.close()
    assert (bench.toy.alive, bench.memory.allocated) == ({}, {})


def test_a_piece_that_several_objects_use_is_as_large_as_the_largest_needs(bench: Bench) -> None:
    most = Most((256, Slot(2, "bytes"), Slot(3)))
    bench.define(program(THING, ASK, Room((most, 8), OF_LANE)))
    assert taken(bench) == 1024 + 256


def test_a_kernel_of_the_engine_is_launched_with_the_words_of_each_execution(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[Any] = []

    def prepare(self: Kernels, name: str, threads: int) -> Any:
        return lambda *words: launched.append((name, threads, *words)) or 0

    monkeypatch.setattr(Kernels, "prepare", prepare)
    content = program(execute=(run(), Launch("add", (Address(1, 8), 1 << 63), 1000), run()))
    bench.define(content)
    bench.execute(scalars=SCALARS)
    bench.execute(addresses=(512, 4096), scalars=SCALARS)
    assert [each[:4] for each in launched] == [("add", 1000, 1032, 1 << 63), ("add", 1000, 4104, 1 << 63)]
    assert {each[4].value for each in launched} == {0x51}
    assert bench.lane.weighed == [(1, 3 * ENTRIES_OF_A_CALL)] * 2


def test_what_a_call_is_given_lasts_until_the_plan_is_made(bench: Bench) -> None:
    image = bytes(range(256)) * 2000
    hook = Call("toyHook", (Slot(0), Bytes(b"load\0"), Bytes(image), len(image), Words((Address(0), Address(1, 8)))))
    bench.define(program(THING, hook, Call("toyShape", (Slot(0), Values((1,)), 1)), ASK))
    assert next(call[1:] for call in bench.toy.calls if call[0] == "hooked") == (b"load", image, 512, 1032)


def test_a_definition_may_come_in_a_file(bench: Bench) -> None:
    bench.define(program(THING, Call("toySet", (Slot(0), 7, Bytes(b"value"), 5)), ASK), by_file=True)
    assert ("toySet", 7, b"value") in bench.toy.calls
    bench.execute(scalars=SCALARS)
    with pytest.raises(BadProgram, match="number of addresses"):
        bench.define(program(), example=(1,), by_file=True)


def test_a_companion_is_loaded_before_the_function_that_looks_for_it(bench: Bench) -> None:
    loaded: list[str] = []

    def load() -> None:
        assert not any(name == "toyShape" for name, *_ in bench.toy.calls)
        loaded.append("companion")

    bench.engine._companions = {"toyShape": SimpleNamespace(load=load)}
    bench.define(program())
    assert loaded == []
    for _ in range(2):
        bench.define(program(THING, Call("toyShape", (Slot(0), Values((1,)), 1)), ASK))
    assert loaded == ["companion"]


# --- variables --------------------------------------------------------------------------------------------------------


def test_a_variable_is_given_by_the_pointer_that_it_holds(bench: Bench) -> None:
    bench.define(program(THING, ASK, execute=(run(thing=Exported("TOY_WORD")), run(thing=Exported("TOY_NULL")))))
    bench.execute(scalars=SCALARS)
    assert [call[2] for call in ran(bench)] == [0xF00D, None]


def test_a_variable_that_the_library_lacks_is_a_missing_symbol_and_gives_back_what_was_made(bench: Bench) -> None:
    for _ in range(2):
        with pytest.raises(SymbolMissing, match=r"has no variable TOY_NEW: it needs version 13.9 or newer"):
            bench.define(program(THING, ASK, execute=(run(thing=Exported("TOY_NEW")),)))
    assert set(bench.toy.alive.values()) <= {"handle"}
    with pytest.raises(SymbolMissing):
        bench.execute(scalars=SCALARS)


def test_a_program_passes_variables_of_a_real_library_to_its_functions(bench: Bench) -> None:
    library = Library("real", sonames=("libc.so.6",), describe=lambda status: (f"C_{status}", "a status"))
    bindings = SimpleNamespace(library=library, fileno=library("fileno", c_void_p))
    bindings.stdout, bindings.stderr = library.variable("stdout"), library.variable("stderr")
    table = PlanTable("real", 98, ("fileno",), variables=("stdout", "stderr"))
    bench.table, bench.engine = table, PlanEngine(bench.services, table, bindings)
    bench.engine.driver = bench.memory
    for name, number in (("stdout", 1), ("stderr", 2)):
        with pytest.raises(CudaError) as caught:
            bench.define(Program((Call("fileno", (Exported(name),)),), (), 0), example=())
        assert (caught.value.status, caught.value.function) == (number, "fileno")


SHAPES = tuple(("toyShape", (Slot(0), Values(tuple(range(count))), count)) for count in (1, 2, 3))


def test_a_call_is_repeated_while_a_plan_is_made(bench: Bench) -> None:
    bench.define(program(THING, ASK, Repeat(*SHAPES[1], 3), Repeat(*SHAPES[0], 0)))
    assert bench.toy.names() == ["toyCreate", "toyAsk", "toyShape", "toyShape", "toyShape", "toyOpen"]
    bench.toy.statuses["toyShape"] = 7
    with pytest.raises(CudaError) as caught:
        bench.define(program(THING, Repeat(*SHAPES[1], 3), execute=(Call(*SHAPES[0]),)))
    assert (caught.value.status, caught.value.function) == (7, "toyShape")
    assert bench.toy.names() == ["toyCreate", "toyShape", "toyDestroy"]


def chosen(place: int) -> bytes:
    return place.to_bytes(4, "little") + bytes(8)


def test_an_execution_chooses_one_of_several_calls(bench: Bench) -> None:
    bench.define(program(THING, execute=(Choose(Number(0, "I"), SHAPES),)))
    bench.toy.calls.clear()
    for place in (2, 0, 1):
        bench.execute(scalars=chosen(place))
    assert bench.toy.calls == [("toyShape", 0, 1, 2), ("toyShape", 0), ("toyShape", 0, 1)]
    for place in (3, (1 << 32) - 1):
        with pytest.raises(BadProgram, match=f"{place} is none of 3 calls"):
            bench.execute(scalars=chosen(place))
    assert len(bench.toy.calls) == 3


def test_a_refused_choice_names_the_function_that_was_chosen(bench: Bench) -> None:
    both = (SHAPES[0], ("toySet", (Slot(0), 7, Bytes(b"v"), 1)))
    bench.define(program(THING, execute=(Choose(Number(0, "I"), both),)))
    bench.toy.statuses["toySet"] = 7
    with pytest.raises(CudaError) as caught:
        bench.execute(scalars=chosen(1))
    assert (caught.value.status, caught.value.function) == (7, "toySet")


@pytest.mark.parametrize("moves", [False, True])
def test_behind_a_failed_execution_of_a_plan_with_a_state_none_is_made_until_it_is_defined_anew(
    bench: Bench, moves: bool
) -> None:
    content = program(THING, execute=(Choose(Number(0, "I"), SHAPES),), moves=moves)
    bench.define(content)
    bench.toy.statuses["toyShape"] = 7
    with pytest.raises(CudaError):
        bench.execute(scalars=chosen(0))
    bench.toy.calls.clear()
    if moves:
        with pytest.raises(CudaError) as caught:
            bench.execute(scalars=chosen(1))
        assert (caught.value.status, caught.value.function) == (7, "toyShape")
        assert bench.toy.calls == []
        bench.drop()
        bench.define(content)
        bench.toy.calls.clear()
    bench.execute(scalars=chosen(1))
    assert bench.toy.calls == [("toyShape", 0, 1)]


STATE = (
    Call("toyShape", (Slot(0), Values((0, 1)), Number(0, "i"))),
    Call("toySet", (Slot(0), Number(0, "i"), RoomOf(1), Slot(3))),
    Call("toyHook", (Slot(0), Bytes(b"name\0"), Scalars(8), 4, Words((Slot(0), Slot(0))))),
)
"""The calls that bring a plan to a state."""


def with_state(*calls: Call, scalars: int = 16) -> Program:
    return program(THING, ASK, Room((64, 8), OF_LANE))._replace(restore=calls, restore_scalars=scalars)


def brought(place: int, number: int, text: bytes = b"", times: int = 1) -> bytes:
    return restoring(place, struct.pack("<Q8s", number, text), times)


@pytest.mark.parametrize("by_file", [False, True])
def test_a_plan_is_brought_to_a_state_by_calls_with_its_objects_and_its_workspace(bench: Bench, by_file: bool) -> None:
    bench.define(with_state(*STATE))
    bench.toy.calls.clear()
    room = bench.memory.allocated.copy()
    bench.toy._toySet = lambda *arguments: None  # type: ignore[method-assign]
    calls = [brought(0, 2, times=2), brought(1, 7), brought(0, 1), brought(2, 0, b"code"), brought(0, 2, times=0)]
    bench.restore(*calls, by_file=by_file)
    ((address, _),) = room.items()
    assert bench.toy.calls == [
        *[("toyShape", 0, 1)] * 2,
        ("toySet", 1, 7, address + 256, 3),
        ("toyShape", 0),
        ("toyHook", 1, "...", ANY, 4, "..."),
    ]
    assert bench.memory.allocated == room
    bench.toy.calls.clear()
    bench.restore()
    bench.execute(scalars=SCALARS)
    assert bench.toy.names() == ["toyRun"]


def test_what_a_call_to_a_state_points_to_lasts_until_all_are_made(bench: Bench) -> None:
    seen: list[Any] = []
    ask = Call("toyShape", (Slot(0), Values((0, 1)), 1))
    bench.define(with_state(STATE[2], ask))
    bench.toy._toyShape = lambda *_: seen.append(bench.toy._hook())  # type: ignore[method-assign,misc]
    bench.restore(brought(0, 0, b"code"), brought(1, 0, b"none"))
    assert seen == [(b"name", b"code", 1, 1)]


BAD_STATES = {
    "an object": (THING,),
    "a number": (ASK,),
    "a call that is repeated": (Repeat(*SHAPES[0], 2),),
    "a new object": (Call("toyCreate", (Out(1), 5)),),
    "a slot that is empty": (Call("toyShape", (Slot(1), Values((0,)), 1)),),
    "a slot that each execution fills": (Call("toyShape", (Slot(7), Values((0,)), 1)),),
    "an object of another type": (Call("toyShape", (Slot(3), Values((0,)), 1)),),
    "a piece that is not there": (Call("toySet", (Slot(0), 7, RoomOf(2), 8)),),
    "a function that programs may not call": (Call("toySecret", (Slot(0),)),),
    "an address": (Call("toySet", (Slot(0), 7, Address(0), 8)),),
    "a scalar behind the last": (Call("toySet", (Slot(0), Number(16, "i"), RoomOf(0), 8)),),
    "a scalar of another type": (Call("toySet", (Slot(0), Number(0, "d"), RoomOf(0), 8)),),
    "bytes behind the last scalar": (Call("toySet", (Slot(0), 7, Scalars(16), 8)),),
}


@pytest.mark.parametrize("bad", BAD_STATES.values(), ids=BAD_STATES.keys())
def test_a_plan_whose_calls_to_a_state_do_not_fit_it_is_not_made(bench: Bench, bad: tuple[Any, ...]) -> None:
    anew = Create("toyNumber", (Out(7), Slot(0)), "toyForget")
    content = with_state(*bad)._replace(execute=(anew,))
    with pytest.raises(BadProgram):
        bench.define(content)
    assert bench.toy.calls == []
    bench.define(content._replace(restore=STATE))


BAD_RESTORINGS = {
    "another call": [brought(0, 1), brought(3, 1)],
    "a call with fewer scalars": [brought(0, 1), brought(0, 1)[:-1]],
    "more than its calls": [brought(0, 1), brought(0, 1), b"\0"],
}


@pytest.mark.parametrize("bad", BAD_RESTORINGS.values(), ids=BAD_RESTORINGS.keys())
def test_a_state_that_does_not_fit_the_plan_calls_nothing_and_costs_the_plan(bench: Bench, bad: list[bytes]) -> None:
    bench.define(with_state(*STATE))
    bench.toy.calls.clear()
    with pytest.raises(BadProgram):
        bench.restore(*bad, count=2, ticket=5)
    with pytest.raises(BadProgram):
        bench.execute(scalars=SCALARS)
    assert bench.toy.calls == []
    bench.lane.finished = 5
    bench.define(program())
    assert bench.toy.names() == ["toyDestroy", "toyCreate", "toyAsk"]
    bench.execute(scalars=SCALARS)


def test_a_state_that_is_refused_costs_the_plan_and_one_of_an_unknown_plan_is_an_error(bench: Bench) -> None:
    with pytest.raises(KeyError):
        bench.restore()
    bench.define(with_state(*STATE))
    bench.toy.statuses["toyShape"] = 7
    for attempt in (lambda: bench.restore(brought(0, 1)), lambda: bench.execute(scalars=SCALARS)):
        with pytest.raises(CudaError) as caught:
            attempt()
        assert (caught.value.status, caught.value.function) == (7, "toyShape")
    with pytest.raises(CudaError):
        bench.restore()


def test_a_call_of_a_plan_with_a_state_that_was_made_ready_ends_with_a_failure(bench: Bench) -> None:
    bench.define(program(THING, execute=(Choose(Number(0, "I"), SHAPES),), moves=True))
    request = (bench.table.execute.number, bench.payload(scalars=chosen(1)), bench.lane)
    ready = bench.engine.hot_call(*request)
    assert ready is not None
    call, error_of, *_ = ready
    assert call(0) == 0
    bench.toy.statuses["toyShape"] = 7
    status = call(0)
    assert (status, error_of(status).function) == (7, "toyShape")  # type: ignore[attr-defined]
    bench.toy.calls.clear()
    status = call(0)
    assert status
    assert error_of(status).status == 7  # type: ignore[attr-defined]
    assert bench.toy.calls == []
    assert bench.engine.hot_call(*request) is None


IMAGE: dict[str, Any] = {"image": b"image", "kernels": {"sub": 2}}

# --- what is refused --------------------------------------------------------------------------------------------------

BAD: dict[str, Program] = {
    "a function of another library": program(Call("cuMemFree", (Address(0),))),
    "a variable that programs may not use": program(THING, ASK, execute=(run(thing=Exported("TOY_SECRET")),)),
    "a variable that is not there": program(THING, ASK, execute=(run(thing=Exported("TOY_WORDS")),)),
    "a function as a variable": program(THING, ASK, execute=(run(thing=Exported("toyCreate")),)),
    "a variable as a function": program(Call("TOY_WORD", ())),
    "a variable for a number": program(Create("toyCreate", (Out(0), Exported("TOY_WORD")), "toyDestroy")),
    "a function that programs may not call": program(Call("toySecret", (Slot(0),))),
    "what is no function": program(Call("library", ())),
    "an attribute of the bindings": program(Call("calls", ())),
    "too few arguments": program(THING, Call("toySet", (Slot(0), 7))),
    "a number for a pointer": program(Call("toySet", (4096, 7, Bytes(b"v"), 1))),
    "a number that is too large": program(THING, Call("toySet", (Slot(0), 1 << 31, Bytes(b"v"), 1))),
    "a negative size": program(THING, Call("toySet", (Slot(0), 7, Bytes(b"v"), -1))),
    "a float for an integer": program(THING, Call("toySet", (Slot(0), 7.0, Bytes(b"v"), 1))),
    "an integer for a float": program(
        THING, ASK, execute=(Call("toyRun", (*run().arguments[:5], 1, *run().arguments[6:])),)
    ),
    "nothing for a number": program(THING, Call("toySet", (Slot(0), None, Bytes(b"v"), 1))),
    "a slot that is empty": program(Call("toySet", (Slot(0), 7, Bytes(b"v"), 1))),
    "a slot that is filled later": program(Call("toyShape", (Slot(0), Values((1,)), 1)), THING),
    "a slot that was given back": program(THING, Destroy(0), Call("toyShape", (Slot(0), Values((1,)), 1))),
    "a slot that is filled twice": program(THING, THING),
    "two new slots that are one": program(THING, Query("toyAsk", (Slot(0), Out(3), Out(3)))),
    "an object without a new slot": program(THING, Create("toySet", (Slot(0), 7, Bytes(b"v"), 1), "toyDestroy")),
    "two objects at once": program(THING, Create("toyAsk", (Slot(0), Out(2), Out(3)), "toyDestroy")),
    "an answer without a new slot": program(THING, Query("toySet", (Slot(0), 7, Bytes(b"v"), 1))),
    "a new slot in a plain call": program(Call("toyCreate", (Out(0), 4))),
    "an object that another function gives back": program(Create("toyCreate", (Out(0), 4), "toyForget")),
    "an object that nothing gives back": program(Create("toyCreate", (Out(0), 4), "toySecret")),
    "a structure for a number": program(THING, ASK, Call("toySet", (Slot(0), Slot(2), Bytes(b"v"), 1))),
    "a field that is not there": program(THING, ASK, Require(Slot(2, "status"), 0, 0, 0)),
    "a field of a number": program(THING, ASK, Require(Slot(3, "state"), 0, 0, 0)),
    "a field that is no number": program(THING, ASK, Require(Slot(2, "name"), 0, 0, 0)),
    "an object as a number": program(THING, Require(Slot(0), 0, 0, 0)),
    "numbers of another type": program(THING, Call("toyShape", (Slot(0), Bytes(b"12345678"), 1))),
    "numbers that are too large": program(THING, Call("toyShape", (Slot(0), Values((1 << 63,)), 1))),
    "an address that does not come": program(THING, ASK, execute=(Call("toySet", (Slot(0), 7, Address(2), 1)),)),
    "words of an address that does not come": program(
        THING, ASK, execute=(Call("toySet", (Slot(0), 7, Words((Address(0), Address(2))), 1)),)
    ),
    "a workspace that is not there": program(THING, ASK, execute=(run(room=RoomOf(0)),)),
    "a piece of a workspace that is not there": program(
        THING, ASK, Room((8,), OF_LANE), execute=(run(room=RoomOf(1)),)
    ),
    "two workspaces of the lane": program(THING, Room((8,), OF_LANE), Room((8,), OF_PLAN), Room((8,), OF_LANE)),
    "scalars while the plan is made": program(THING, Call("toySet", (Slot(0), 7, Scalars(0), 1))),
    "a number of an execution while the plan is made": program(
        THING, ASK, Call("toyRun", (*run().arguments[:4], None, Number(4, "d"), *run().arguments[6:]))
    ),
    "a workspace of an object's size": program(THING, Room((Slot(0),), OF_LANE)),
    "scalars that do not come": program(THING, ASK, execute=(Call("toySet", (Slot(0), 7, Scalars(12), 1)),)),
    "a number that does not come": program(
        THING, ASK, execute=(Call("toyRun", (*run().arguments[:5], Number(5, "d"), *run().arguments[6:])),)
    ),
    "a number of another kind": program(
        THING, ASK, execute=(Call("toyRun", (*run().arguments[:5], Number(4, "f"), *run().arguments[6:])),)
    ),
    "an object that is made twice": program(THING, execute=(THING,)),
    "what is set of an object that each execution makes": program(
        ASK_NOTHING, execute=(THING, Set("toySet", (Slot(0), 7, Bytes(b"v"), 1)))
    ),
    "an object that each execution gives back": program(THING, ASK, execute=(Destroy(0),)),
    "a number that each execution requires": program(THING, ASK, execute=(Require(Slot(3), 0, 9, 0),)),
    "words of an object that is not there": program(Call("toySet", (Slot(0), 7, Words((Slot(0),)), 8))),
    "a text without an end": program(THING, Call("toyHook", (Slot(0), Bytes(b"load"), Bytes(b"i"), 1, None))),
    "numbers for pointers": program(THING, Call("toyHook", (Slot(0), Bytes(b"n\0"), Bytes(b"i"), 1, Values((1,))))),
    "words of a number": program(THING, ASK, execute=(Call("toySet", (Slot(0), 7, Words((Slot(3),)), 8)),)),
    "an answer that is not there": program(THING, ASK, answers=(Slot(7),)),
    "an answer that is an object": program(THING, ASK, answers=(Slot(0),)),
    "what is set while the plan is made": program(THING, Set("toySet", (Slot(0), 7, Bytes(b"v"), 1))),
    "a workspace that each execution takes": program(execute=(Room((8,), OF_LANE),)),
    "a copy while the plan is made": program(Arrange(Address(0), Address(1), ())),
    "a kernel while the plan is made": program(Launch("add", (Address(0), 8), 8)),
    "a kernel that is not there": program(execute=(Launch("sub", (Address(0), 8), 8),)),
    "a kernel with too few words": program(execute=(Launch("add", (Address(0),), 8),)),
    "a kernel with an address that does not come": program(execute=(Launch("add", (Address(2), 8), 8),)),
    "a kernel with a workspace that is not there": program(execute=(Launch("add", (RoomOf(0), 8), 8),)),
    "a kernel with a scalar that does not come": program(execute=(Launch("add", (Address(0), Number(8, "d")), 8),)),
    "a kernel of so many threads as do not come": program(execute=(Launch("add", (Address(0), 8), Number(9, "I")),)),
    "a kernel of an image with too few words": program(execute=(Launch("sub", (Address(0),), 8),), **IMAGE),
    "a kernel that the image does not name": program(execute=(Launch("div", (Address(0), 8), 8),), **IMAGE),
    "a kernel that is the engine's and the image's": program(
        execute=(Launch("add", (Address(0), 8), 8),), image=b"image", kernels={"add": 2}
    ),
    "an image that names no kernels": program(image=b"image"),
    "kernels without an image": program(kernels={"sub": 2}),
    "the most of an object": program(THING, Room((Most((8, Slot(0))),), OF_LANE)),
    "a call that each execution repeats": program(THING, execute=(Repeat(*SHAPES[0], 2),)),
    "a call that fills a slot again and again": program(Repeat("toyCreate", (Out(0), 4), 2)),
    "a choice while the plan is made": program(THING, Choose(Number(0, "I"), SHAPES)),
    "a choice by a scalar that does not come": program(THING, execute=(Choose(Number(9, "I"), SHAPES),)),
    "a choice of a function that programs may not call": program(
        THING, execute=(Choose(Number(0, "I"), (SHAPES[0], ("toySecret", (Slot(0),)))),)
    ),
    "a choice of a call with too few arguments": program(
        THING, execute=(Choose(Number(0, "I"), (SHAPES[0], ("toySet", (Slot(0), 7)))),)
    ),
    "a copy to nowhere": program(execute=(Arrange(Address(0), Address(2), ()),)),
    "what was never made is given back": program(Destroy(0)),
    "what was given back is given back": program(THING, Destroy(0), Destroy(0)),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_a_program_that_does_not_fit_the_library_calls_nothing(bench: Bench, bad: Program) -> None:
    with pytest.raises(BadProgram):
        bench.define(bad)
    with pytest.raises(BadProgram):  # what was sent behind it fails with the same words
        bench.execute(scalars=SCALARS)
    assert (bench.toy.calls, bench.memory.allocated) == ([], {})


def test_what_is_no_program_calls_nothing(bench: Bench) -> None:
    for content in (b"", b"{}", program().encode()[:-1]):
        with pytest.raises(BadProgram):
            bench.define(content)
    with pytest.raises(BadProgram, match="number of addresses"):
        bench.define(program(), example=(1,))
    assert bench.toy.calls == []
    bench.define(program())  # the next one under the number counts
    bench.execute(scalars=SCALARS)
    with pytest.raises(BadProgram, match="has 35 bytes, not 36"):
        bench.execute(scalars=SCALARS[:-1])


def test_an_execution_of_a_plan_that_was_never_defined_is_an_error(bench: Bench) -> None:
    with pytest.raises(KeyError):
        bench.execute()
    bench.define(program())
    with pytest.raises(KeyError):
        bench.execute(scalars=SCALARS, lane=bench.new_lane(1))


@pytest.mark.parametrize("function", ["toyCreate", "toyAsk", "toySet"])
def test_a_step_that_is_refused_gives_back_what_was_made_before(bench: Bench, function: str) -> None:
    content = program(THING, Call("toySet", (Slot(0), 7, Bytes(b"value"), 5)), ASK, Room((64,), OF_PLAN))
    bench.toy.statuses[function] = 6
    for attempt in (lambda: bench.define(content), lambda: bench.execute(scalars=SCALARS)):
        with pytest.raises(CudaError, match="a toy") as caught:
            attempt()
        assert (caught.value.status, caught.value.function) == (6, function)
    assert (bench.toy.alive, bench.memory.allocated) == ({}, {})
    bench.define(content)
    bench.execute(scalars=SCALARS)


@pytest.mark.parametrize("driver", [0, 700])
def test_a_status_that_may_mean_a_fault_is_that_of_the_driver_where_the_driver_reports_one(bench: Bench, driver: int):
    bench.toy.statuses["toyAsk"], bench.memory.fault = 6, driver
    with pytest.raises(CudaError) as error:
        bench.define(program(texts={6: "the toy has no such hook"}))
    assert (error.value.status, error.value.library) == ((700, "cuda") if driver else (6, "toy"))
    assert ("no such hook" in error.value.text) is not bool(driver)


@pytest.mark.parametrize(("answers", "status"), [({"count": 0}, 15), ({"count": 10}, 15), ({"state": 8}, 8)])
def test_an_answer_that_is_not_what_the_plan_needs_is_a_status_with_its_words(
    bench: Bench, answers: dict[str, int], status: int
) -> None:
    needs = (THING, ASK, Require(Slot(3), 1, 9, 15), Require(Slot(2, "state"), 0, 0, 0))
    bench.toy.answers |= answers
    with pytest.raises(CudaError) as caught:
        bench.define(program(*needs, texts={15: "there is no such toy"}))
    assert (caught.value.status, caught.value.function) == (status, "toyAsk")
    assert ("there is no such toy" in str(caught.value)) == (status == 15)
    assert bench.toy.alive == {}


def test_an_execution_that_is_refused_is_an_error_of_its_function_and_the_plan_stays(bench: Bench) -> None:
    bench.define(program(texts={3: "the toy is broken"}))
    bench.toy.statuses["toyRun"] = 3
    with pytest.raises(CudaError, match="the toy is broken") as caught:
        bench.execute(scalars=SCALARS)
    assert caught.value.function == "toyRun"
    bench.execute(scalars=SCALARS)


# --- settings ---------------------------------------------------------------------------------------------------------


def settings(bench: Bench) -> list[bytes]:
    found = [content for name, _, content in (call for call in bench.toy.calls if call[0] == "toySet")]
    bench.toy.calls.clear()
    return [content.rstrip(b"\0") for content in found]


def test_what_is_set_is_set_again_only_where_its_addresses_have_changed(bench: Bench) -> None:
    def setting(number: int) -> Set:
        return Set("toySet", (Slot(0), number, Words((Address(number),)), 8))

    bench.define(program(execute=(setting(0), setting(1), run())))
    places = [bytes([number, 2]) for number in range(1, 9)]
    at = [int.from_bytes(place, "little") for place in places]

    def execute(first: int, second: int) -> list[bytes]:
        bench.execute(addresses=(at[first], at[second]), scalars=SCALARS)
        return settings(bench)

    assert execute(0, 1) == [places[0], places[1]]
    assert execute(0, 1) == []
    assert execute(0, 2) == [places[2]]
    assert execute(3, 2) == [places[3]]
    bench.toy.statuses["toySet"] = 1
    with pytest.raises(CudaError):
        execute(4, 5)
    bench.toy.calls.clear()
    assert execute(3, 2) == [places[3], places[2]]  # what is set is not known any more


def test_a_call_that_is_ready_sets_what_others_have_set_meanwhile(bench: Bench) -> None:
    bench.define(program(execute=(Set("toySet", (Slot(0), 1, Words((Address(0),)), 8)), run())))
    verb = bench.table.execute.number
    one, other = (
        bench.engine.hot_call(verb, bench.payload(1, (place, 1), SCALARS), bench.lane) for place in (257, 514)
    )
    assert one is not None
    assert other is not None
    bench.toy.calls.clear()
    assert [one[0](0), one[0](0), other[0](0), one[0](0)] == [0] * 4
    assert [call[0] for call in bench.toy.calls] == ["toySet", "toyRun", "toyRun", *["toySet", "toyRun"] * 2]
    assert [call[3] for call in ran(bench)] == [257, 257, 514, 257]
    bench.toy.statuses["toyRun"] = 4
    assert one[0](0) == 4
    assert isinstance(one[1](4), CudaError)
    bench.execute(addresses=(514, 1), scalars=SCALARS)
    bench.toy.statuses["toySet"] = 5
    status = one[0](0)
    error = one[1](status)
    assert isinstance(error, CudaError)
    assert (status, error.status, error.function) == (-1, 5, "toySet")


SET_BY_WORDS = Set("toySet", (Slot(0), 1, Words((Address(0), Address(1, 8))), 16))
PACK = Call("toySet", (Slot(1), 3, Words((Address(0), Slot(0), Address(1, 8))), 24))
TAKES_WORDS: dict[str, Program] = {
    "one call": program(),
    "several calls": program(execute=(run(), Call(*SHAPES[1]), run(thing=Slot(0)))),
    "a setting by words": program(execute=(SET_BY_WORDS, run())),
    "words behind a pointer": program(
        execute=(Call("toySet", (Slot(0), 3, Words((Address(0), Slot(0), Address(1, 8))), 24)), run())
    ),
    "a setting that stays": program(execute=(Set("toySet", (Slot(0), 1, Bytes(b"v"), 1)), run())),
    "a workspace": program(THING, ASK, Room((100, 200), OF_PLAN), execute=(run(room=RoomOf(1, 8), size=200),)),
    "objects of its own": program(execute=(OTHER, PACK, run(thing=Slot(1)))),
    "an answer of its own": program(execute=(Query("toyAsk", (Slot(0), Out(4), Out(5))), run())),
    "a choice": program(execute=(Choose(Number(0, "I"), SHAPES), run())),
}
LEFT_TO_PYTHON = ("objects of its own", "an answer of its own")
"""What native code does not do, as with a number by value that differs each time."""
PLACES = {"first": 8, "second": 16, "scalar": 24 + 4}


@pytest.mark.parametrize("what", TAKES_WORDS)
@pytest.mark.parametrize("which", [("first",), ("second",), ("scalar",), ("second", "first"), ("scalar", "first")])
def test_an_execution_that_is_ready_does_with_its_words_what_the_general_way_does(
    bench: Bench, what: str, which: tuple[str, ...]
) -> None:
    bench.define(TAKES_WORDS[what])
    verb, places = bench.table.execute.number, tuple(PLACES[each] for each in which)
    whole = bench.payload(1, (512, 1024), (2).to_bytes(4, "little") + SCALARS[4:])
    ready = bench.engine.hot_call(verb, with_holes(whole, places), bench.lane, places)
    if what == "a choice" and "scalar" in which:
        assert ready is None, "a word may be what chooses"
        return
    assert ready is not None
    bench.toy.calls.clear()
    bench.execute(addresses=(512, 1024), scalars=whole[24:])
    bench.toy.calls.clear()
    assert ready.native is not None
    native = ready.native()
    assert (native is not None) == (what not in LEFT_TO_PYTHON and "scalar" not in which)
    for turn in range(1, 5):
        words = tuple(struct.unpack("<Q", struct.pack("<d", turn + at / 4))[0] for at in range(len(which)))
        assert ready.call(words) == 0
        made = list(bench.toy.calls)
        bench.toy.calls.clear()
        bench.execute(addresses=(512, 1024), scalars=whole[24:])  # whoever comes between
        bench.toy.calls.clear()
        payload = filled(whole, places, words)
        command: Any = SimpleNamespace(payload=payload, ticket=1)
        bench.engine.calls[verb](command, bench.lane)
        assert numbered(made) == numbered(bench.toy.calls)
        assert [call for call in made if call[0] == "toyRun"] != []
        if native is not None:
            bench.toy.calls.clear()
            assert native_forms.made(native, words) == 0
            assert bench.toy.calls == made
        bench.execute(addresses=(512, 1024), scalars=whole[24:])
        bench.toy.calls.clear()
    bench.toy.statuses["toyRun"] = 4
    assert ready.call(words) == 4
    assert isinstance(ready.error(4), CudaError)
    assert ready.call(words) == 0


def numbered(calls: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Calls with their objects by the order in which these were made, which each execution does anew."""
    names: dict[Any, int] = {}
    made = {call[1] for call in calls if call[0] in ("toyDestroy", "toyForget")}
    return [tuple(names.setdefault(each, -len(names)) if each in made else each for each in call) for call in calls]


def test_a_word_is_a_whole_address_or_among_the_scalars(bench: Bench) -> None:
    bench.define(program())
    verb, whole = bench.table.execute.number, bench.payload(1, (512, 1024), SCALARS)
    for place in (0, 4, 9, 12, 20):
        assert bench.engine.hot_call(verb, with_holes(whole, (place,)), bench.lane, (place,)) is None


def test_several_calls_are_ready_as_one_and_the_error_names_the_one_that_was_refused(bench: Bench) -> None:
    bench.define(program(execute=(run(), Call("toySet", (Slot(0), 1, Bytes(b"v"), 1)), run()), entries=50))
    ready = bench.engine.hot_call(bench.table.execute.number, bench.payload(1, (1, 2), SCALARS), bench.lane)
    assert ready is not None
    bench.toy.calls.clear()
    assert ready[0](0) == 0
    assert bench.toy.names() == ["toyRun", "toySet", "toyRun"]
    assert bench.lane.weighed == [(bench.lane.made_now, 50)]
    bench.toy.statuses["toySet"] = 4
    status = ready[0](0)
    error = ready[1](status)
    assert bench.toy.names() == ["toyRun", "toySet"]
    assert isinstance(error, CudaError)
    assert (status, error.function) == (4, "toySet")


def test_native_code_makes_several_calls_and_the_error_names_the_one_that_was_refused(bench: Bench) -> None:
    bench.define(program(execute=(run(), Call("toySet", (Slot(0), 1, Bytes(b"v"), 1)), run()), entries=50))
    ready = bench.engine.hot_call(bench.table.execute.number, bench.payload(1, (1, 2), SCALARS), bench.lane)
    assert ready is not None
    assert ready.native is not None
    native = ready.native()
    assert native is not None
    assert (native.entries, ready.bounded) == (50, True)
    bench.toy.calls.clear()
    assert native_forms.made(native, ()) == 0
    assert bench.toy.names() == ["toyRun", "toySet", "toyRun"]
    for each, name in ((native.then[0].refused, "toySet"), (native.then[1].refused, "toyRun"), (ready.error, "toyRun")):
        error = each(4)
        assert isinstance(error, CudaError)
        assert (error.status, error.function) == (4, name)
    assert bench.bugs == []


def test_native_code_waits_for_the_setting_that_its_call_needs(bench: Bench) -> None:
    bench.define(program(execute=(Set("toySet", (Slot(0), 1, Words((Address(0),)), 8)), run())))
    verb = bench.table.execute.number
    ready = [bench.engine.hot_call(verb, bench.payload(1, (place, 1), SCALARS), bench.lane) for place in (257, 514)]
    one, other = ready
    assert one is not None
    assert one.native is not None
    assert other is not None
    assert other.native is not None
    natives = one.native(), other.native()
    assert natives[0] is not None
    assert natives[1] is not None
    for each, expected in ((one, (True, False)), (other, (False, True)), (one, (True, False))):
        assert each.call(0) == 0
        assert tuple(map(native_forms.takes, natives)) == expected
    bench.execute(addresses=(300, 1), scalars=SCALARS)
    assert tuple(map(native_forms.takes, natives)) == (False, False)
    bench.toy.statuses["toySet"] = 5
    assert one.call(0) == -1
    assert one.error(-1) is not None
    assert tuple(map(native_forms.takes, natives)) == (False, False)


def test_native_code_sets_what_its_words_decide_and_the_error_names_the_function(bench: Bench) -> None:
    bench.define(TAKES_WORDS["a setting by words"])
    verb, places = bench.table.execute.number, (PLACES["first"],)
    whole = bench.payload(1, (512, 1024), SCALARS)
    ready = bench.engine.hot_call(verb, with_holes(whole, places), bench.lane, places)
    constant = bench.engine.hot_call(verb, whole, bench.lane)
    assert ready is not None
    assert ready.native is not None
    assert constant is not None
    assert constant.native is not None
    constant.call(())
    guarded = constant.native()
    assert guarded is not None
    assert native_forms.takes(guarded)
    native = ready.native()
    assert native is not None
    assert not native_forms.takes(guarded), "what is set is not known any more"
    bench.toy.calls.clear()
    for first in (514, 1028):
        assert native_forms.made(native, (first,)) == 0
        assert settings(bench) == [first.to_bytes(8, "little") + (1032).to_bytes(2, "little")]
    for _ in range(2):  # native code may have come between
        bench.execute(addresses=(512, 1024), scalars=SCALARS)
        assert len(settings(bench)) == 1
    assert constant.call(()) == 0
    assert not native_forms.takes(guarded)
    for each, name in ((ready.error, "toySet"), (native.then[0].refused, "toyRun")):
        error = each(4)
        assert isinstance(error, CudaError)
        assert (error.status, error.function) == (4, name)
    assert bench.bugs == []


def test_an_execution_that_failed_in_the_general_way_lends_its_function_to_no_other_error(bench: Bench) -> None:
    bench.define(program(execute=(SET_BY_WORDS, run(), Call(*SHAPES[0]))))
    verb, places = bench.table.execute.number, (PLACES["first"],)
    whole = bench.payload(1, (512, 1024), SCALARS)
    ready = bench.engine.hot_call(verb, with_holes(whole, places), bench.lane, places)
    assert ready is not None
    bench.toy.statuses["toyShape"] = 4
    with pytest.raises(CudaError) as caught:
        bench.execute(scalars=SCALARS)
    assert caught.value.function == "toyShape"
    error = ready.error(5)  # of native code, whose first function was refused
    assert isinstance(error, CudaError)
    assert error.function == "toySet"


class _Settings:
    """A plan whose product is right only with the settings of its own addresses and of its workspace.

    Its executions are made in all ways, and each product is checked: a library would make a wrong one in silence.
    """

    def __init__(self) -> None:
        self.bench = Bench()
        self._natives: dict[tuple[Any, ...], Any] = {}
        self._room = 256
        self._define()

    def _define(self) -> None:
        set_by = (Address(0), Address(1, 16), RoomOf(0))
        sets = tuple(Set("toySet", (Slot(0), at, Words((each,)), 8)) for at, each in enumerate(set_by))
        self.bench.define(program(THING, ASK, Room((256,), OF_LANE), execute=(*sets, run(room=RoomOf(0)))))

    def _forget(self) -> None:
        """Forget what a worker would."""
        if self.bench.forgotten:
            self._natives.clear()
            self.bench.forgotten = 0

    def fail(self, function: str) -> None:
        """Let the next call of a function fail."""
        self.bench.toy.statuses[function] = 5

    def define_anew(self) -> None:
        self.bench.drop()
        self._define()
        self._forget()

    def grow(self) -> None:
        """Let another plan need a larger workspace."""
        self._room += 256
        with self._aside():
            self.bench.define(with_room(self._room), 2)
        self._forget()

    def capture(self, *addresses: int) -> None:
        """Make a plan for the lane of a graph."""
        bench, other = self.bench, self.bench.new_lane(1)
        with self._aside(), contextlib.suppress(CudaError):
            payload = bench.payload(1, addresses, SCALARS)
            bench.engine.prepare_capture(bench.table.execute.number, payload, other, 1 << 20)
        for call in bench.engine.forget_lane(1):
            call()

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """Calls for other objects, whose settings are not those of this plan."""
        before = list(self.bench.toy.calls)
        yield
        self.bench.toy.calls[:] = before

    def execute(self, way: str, which: tuple[str, ...], *addresses: int) -> None:
        """Execute it in a way, with the addresses in these places as words."""
        bench, verb = self.bench, self.bench.table.execute.number
        if way == "general":
            with contextlib.suppress(CudaError):
                bench.execute(addresses=addresses, scalars=SCALARS)
            return
        whole, places = bench.payload(1, addresses, SCALARS), tuple(PLACES[each] for each in which)
        words = [addresses[("first", "second").index(each)] for each in which]
        payload = with_holes(whole, places)
        if (payload, places) not in self._natives:
            self._natives[payload, places] = [bench.engine.hot_call(verb, payload, bench.lane, places), None]
        ready, native = kept = self._natives[payload, places]
        if way == "native" and native is None:
            native = kept[1] = ready.native()
        if way == "native" and native_forms.takes(native):
            assert native_forms.made(native, words) in (0, 5)
        elif status := ready.call(tuple(words)):
            assert ready.error(status).status == 5

    def check(self) -> None:
        """Go through what was called: each product has its own settings."""
        known: dict[int, bytes] = {}
        for name, *told in self.bench.toy.calls:
            if name == "toyCreate":
                known.clear()
            elif name == "toySet" and isinstance(told[1], bytes):
                known[told[0]] = told[1]
            elif name == "toySet":  # it was refused
                known.pop(told[1], None)
            elif name == "toyRun" and isinstance(told[4], bytes):
                wanted = [each.to_bytes(8, "little") for each in (told[2], told[3], told[7])]
                assert [known.get(at) for at in range(3)] == wanted


_executions = [
    (_Settings.execute, way, which, *addresses)
    for way in ("general", "python", "native", "native")
    for which in ((), ("first",), ("second", "first"))
    for addresses in ((256, 256), (256, 512), (512, 512))
]
_between = [
    (_Settings.fail, "toySet"),
    (_Settings.fail, "toyRun"),
    (_Settings.define_anew,),
    (_Settings.grow,),
    (_Settings.capture, 512, 256),
]


@examples(1)
@given(st.lists(st.sampled_from([*_executions, *_between]), min_size=20, max_size=40))
def test_no_product_is_made_with_the_settings_of_another(steps: list[tuple[Any, ...]]) -> None:
    each = _Settings()
    for step, *given_to_it in steps:
        step(each, *given_to_it)
    each.check()
    assert each.bench.bugs == []


def test_an_address_behind_a_pointer_that_is_0_stays_that(bench: Bench) -> None:
    bench.define(TAKES_WORDS["a setting by words"], example=(512, 0))
    verb, places = bench.table.execute.number, (PLACES["second"],)
    ready = bench.engine.hot_call(verb, with_holes(bench.payload(1, (512, 0), SCALARS), places), bench.lane, places)
    assert ready is not None
    assert ready.native is not None
    assert ready.native() is None, "native code would add the offset"


def test_behind_a_failure_of_a_plan_with_a_state_native_code_makes_no_call_of_it(bench: Bench) -> None:
    bench.define(program(THING, execute=(Choose(Number(0, "I"), SHAPES),), moves=True))
    ready = bench.engine.hot_call(bench.table.execute.number, bench.payload(scalars=chosen(1)), bench.lane)
    assert ready is not None
    assert ready.native is not None
    assert ready.native() is not None
    assert bench.forgotten == 0
    error = ready.error(7)
    assert isinstance(error, CudaError)
    assert (error.status, error.function, bench.forgotten) == (7, "toyShape", 1)


def test_only_an_execution_of_a_plan_that_exists_is_made_ready(bench: Bench) -> None:
    execute, define = bench.table.execute.number, bench.table.define.number
    payload = bench.payload(1, (1, 2), SCALARS)
    assert bench.engine.hot_call(execute, payload, bench.lane) is None
    bench.define(program())
    assert bench.engine.hot_call(execute, bench.payload(2, (1, 2), SCALARS), bench.lane) is None
    assert bench.engine.hot_call(define, payload, bench.lane) is None
    assert bench.engine.hot_call(execute, payload, bench.new_lane(1)) is None
    assert bench.engine.hot_call(execute, payload, bench.lane) is not None


def test_an_execution_may_make_objects_that_last_as_long_as_it_does(bench: Bench) -> None:
    pack = (
        OTHER,
        Call("toySet", (Slot(1), 3, Words((Address(0), Slot(0), Address(1, 8))), 24)),
        Create("toyNumber", (Out(4), Slot(1)), "toyForget"),
        run(thing=Slot(1)),
    )
    bench.define(program(execute=pack))
    bench.toy.calls.clear()
    ready = bench.engine.hot_call(bench.table.execute.number, bench.payload(1, (7, 9), SCALARS), bench.lane)
    assert ready is not None
    before = dict(bench.toy.alive)
    for execute in (lambda: bench.execute(addresses=(7, 9), scalars=SCALARS), lambda: ready[0](0)):
        assert execute() in (None, 0)
        words = [call[2] for call in bench.toy.calls if call[0] == "toySet"]
        assert words == [b"".join(each.to_bytes(8, "little") for each in (7, 1, 17))]
        assert bench.toy.names() == ["toyCreate", "toySet", "toyNumber", "toyRun", "toyForget", "toyDestroy"]
        assert bench.toy.alive == before
    for function in ("toySet", "toyRun"):  # one that is refused leaves nothing behind either
        bench.toy.statuses[function] = 6
        with pytest.raises(CudaError) as caught:
            bench.execute(addresses=(7, 9), scalars=SCALARS)
        assert caught.value.function == function
        bench.toy.statuses[function] = 6
        error = ready[1](ready[0](0))
        assert isinstance(error, CudaError)
        assert error.function == function
        assert bench.toy.alive == before


def test_a_definition_answers_numbers_that_were_not_known_before(bench: Bench) -> None:
    told = bench.define(program(answers=(Slot(3), Slot(2, "bytes"))))
    assert told == {"answers": (3, 1000)}


# --- workspaces -------------------------------------------------------------------------------------------------------


def with_room(size: int, owner: str = OF_LANE) -> Program:
    return program(THING, ASK, Room((size,), owner), execute=(run(room=RoomOf(0)),))


def room_of(bench: Bench, number: int, lane: Any = None) -> int:
    bench.toy.calls.clear()
    bench.execute(number, scalars=SCALARS, lane=lane)
    (call,) = ran(bench)
    return int(call[-3])


def test_the_plans_of_a_lane_share_one_workspace_which_grows_when_a_plan_is_made(bench: Bench) -> None:
    bench.define(with_room(1000), 1)
    assert taken(bench) == 1024
    bench.define(with_room(100), 2)
    assert taken(bench) == 1024
    small = room_of(bench, 1)
    assert small == room_of(bench, 2)
    assert (bench.forgotten, bench.memory.synchronized) == (0, 0)
    bench.define(with_room(5000), 3)
    assert taken(bench) == 5120
    # The old one was given back behind the work that may use it, and no call is ready with its address.
    assert (bench.forgotten, bench.memory.synchronized) == (1, 1)
    large = room_of(bench, 1)
    assert large == room_of(bench, 2) == room_of(bench, 3) != small
    assert bench.memory.allocated == {large: 5120}
    other = bench.new_lane(1)
    bench.define(with_room(64), 1, lane=other)
    assert taken(bench) == 5376
    assert room_of(bench, 1, other) != room_of(bench, 1)
    for number in (1, 2, 3):
        bench.drop(number)
    assert bench.memory.allocated[large] == 5120
    for call in bench.engine.forget_lane(0):
        call()
    assert list(bench.memory.allocated.values()) == [256]
    bench.engine.close()
    assert bench.memory.allocated == {}
    assert taken(bench) == 0


def test_a_plan_with_a_workspace_of_its_own_gives_it_back_when_it_is_dropped(bench: Bench) -> None:
    bench.define(with_room(1000, OF_PLAN), 1)
    assert taken(bench) == 1024
    bench.define(with_room(1000, OF_PLAN), 2)
    assert taken(bench) == 2048
    assert room_of(bench, 1) != room_of(bench, 2)
    bench.drop(1)
    bench.drop(2)
    assert taken(bench) == 2048  # a thread waits for the last execution
    assert (bench.memory.synchronized, len(bench.memory.allocated)) == (0, 2)
    bench.give_back()
    assert bench.memory.synchronized == 2
    assert (taken(bench), bench.memory.allocated) == (0, {})
    bench.define(with_room(0, OF_PLAN), 4)
    assert taken(bench) == 0


def test_a_plan_without_memory_of_its_own_is_destroyed_with_the_next_when_the_gpu_has_reached_its_last_execution(
    bench: Bench,
) -> None:
    bench.define(program(), 1)
    bench.lane.finished = 3
    bench.drop(1, ticket=9)
    bench.define(program(), 2)
    assert (list(bench.toy.alive.values()).count("object of 4"), bench.later) == (2, [])
    bench.lane.finished = 8
    bench.define(program(), 3)
    assert list(bench.toy.alive.values()).count("object of 4") == 2


# The sequence of a product of two sparse matrices: a workspace, work in it that tells the size of a second one, work
# in that, and then the size of the result.


def work(room: Argument, size: Argument) -> Call:
    return Call(
        "toyRun",
        (Handle(), Slot(0), Address(0), Address(1), Bytes(b"beta"), 1.0, Slot(3), room, size, Stream()),
    )


SPARSE = program(
    THING,
    ASK,
    Room((16, Slot(2, "bytes")), OF_PLAN),
    work(RoomOf(1), Slot(2, "bytes")),
    Query("toyAsk", (Slot(0), Out(4), Out(5))),
    Room((Slot(4, "bytes"),), OF_PLAN),
    work(RoomOf(2), Slot(4, "bytes")),
    Query("toyAsk", (Slot(0), Out(6), Out(7))),
    execute=(run(room=RoomOf(2)), run(room=RoomOf(1)), run(room=RoomOf(0))),
    answers=(Slot(7), Slot(6, "state")),
)


def test_workspaces_of_a_plan_follow_each_other_while_it_is_made_and_it_answers_at_the_end(bench: Bench) -> None:
    assert bench.define(SPARSE, example=(512, 0)) == {"answers": (3, 0)}
    first, second = bench.memory.allocated
    assert bench.memory.allocated == {first: 256 + 1024, second: 1024}
    assert taken(bench) == 256 + 1024 + 1024
    assert [call[-3:] for call in ran(bench)] == [(first + 256, 1000, 0x51), (second, 1000, 0x51)]
    bench.define(with_room(5000), 2)  # the lane's own is another
    bench.execute(addresses=(512, 4096), scalars=SCALARS)
    assert [call[-3] for call in ran(bench)] == [second, first + 256, first]
    bench.drop()
    bench.give_back()
    assert list(bench.memory.allocated.values()) == [5120]


@pytest.mark.parametrize(("allowed", "left"), [(2303, 1023), (1279, 1279)])
def test_a_second_workspace_that_is_refused_gives_back_the_first(bench: Bench, allowed: int, left: int) -> None:
    with pytest.raises(CudaError, match=rf"the memory limit leaves {left:,}:"):
        bench.define(SPARSE, allowed=allowed)
    assert (taken(bench), bench.memory.allocated) == (0, {})
    assert set(bench.toy.alive.values()) <= {"handle"}


def test_a_plan_waits_for_memory_that_is_being_given_back_before_it_is_refused(bench: Bench) -> None:
    for number in range(1, 4):
        bench.define(SPARSE, number, allowed=2304)
        bench.drop(number)
    assert (taken(bench), bench.memory.synchronized, len(bench.later)) == (2304, 2, 2)
    bench.toy.names()
    with pytest.raises(CudaError, match="leaves 2,303"):
        bench.define(with_room(2304, OF_PLAN), allowed=2303)
    assert bench.toy.names().count("toyCreate") == 2
    with pytest.raises(CudaError, match="leaves 2,303"):
        bench.define(with_room(2304, OF_PLAN), allowed=2303)
    assert bench.toy.names().count("toyCreate") == 1, "nothing was being given back"


def test_a_workspace_of_the_lane_goes_with_those_of_the_plan(bench: Bench) -> None:
    rooms = (Room((8,), OF_PLAN), Room((300,), OF_LANE), Room((8,), OF_PLAN))
    bench.define(program(THING, ASK, *rooms, execute=tuple(run(room=RoomOf(piece)) for piece in range(3))))
    before = {size: place for place, size in bench.memory.allocated.items()}
    bench.define(with_room(5000), 2)
    (lane,) = [place for place, size in bench.memory.allocated.items() if size == 5120]
    bench.execute(scalars=SCALARS)
    first, middle, last = [call[-3] for call in ran(bench)]
    assert (middle, {first, last} < set(bench.memory.allocated), first == last) == (lane, True, False)
    assert before.keys() == {256, 512}


def test_workspaces_of_all_lanes_and_owners_are_held_against_what_is_allowed(bench: Bench) -> None:
    other = bench.new_lane(1)
    bench.define(with_room(1024), 1, allowed=3072)
    bench.define(with_room(1024, OF_PLAN), 2, allowed=3072)
    bench.define(with_room(1024), 3, lane=other, allowed=3072)
    for refused in (with_room(1280), with_room(1, OF_PLAN)):
        with pytest.raises(CudaError, match="the memory limit leaves 0") as caught:
            bench.define(refused, 4, allowed=3072)
        assert (caught.value.status, caught.value.library) == (2, "cuda")
    assert len(bench.memory.allocated) == 3
    assert len([what for what in bench.toy.alive.values() if what != "handle"]) == 3
    bench.drop(2, ticket=1)
    bench.define(with_room(2048), 4, allowed=3072)
    assert taken(bench) == 3072
    with pytest.raises(CudaError, match=r"needs 256 bytes .* leaves 0"):
        bench.define(with_room(1, OF_PLAN), 5, allowed=3072)
    bench.define(with_room(1, OF_PLAN), 5, allowed=3072 + 256)


def test_a_workspace_that_the_gpu_has_no_memory_for_leaves_the_old_one(bench: Bench) -> None:
    bench = Bench(memory=4096)
    bench.define(with_room(2048), 1)
    before = room_of(bench, 1)
    with pytest.raises(CudaError, match="no memory"):
        bench.define(with_room(4096), 2)
    assert room_of(bench, 1) == before
    assert bench.forgotten == 0
    bench.define(with_room(512, OF_PLAN), 3, allowed=2048 + 512)  # what was refused does not count


# --- lanes and handles ------------------------------------------------------------------------------------------------


def test_each_lane_has_a_handle_or_all_have_one() -> None:
    for shared in (False, True):
        bench = Bench(shared=shared)
        other = bench.new_lane(1)
        for lane in (bench.lane, other):
            bench.define(program(), lane=lane)
            bench.execute(scalars=SCALARS, lane=lane)
        handles = {call[1] for call in bench.toy.calls if call[0] == "toyRun"}
        streams = [call[-1] for call in bench.toy.calls if call[0] == "toyRun"]
        assert (len(handles), streams) == (1 if shared else 2, [0x51, 0x52])
        for call in bench.engine.forget_lane(1):
            call()
        assert list(bench.toy.alive.values()).count("handle") == 1
        bench.engine.close()
        assert bench.toy.alive == {}


def test_a_library_is_opened_ahead_of_its_first_plan(bench: Bench) -> None:
    bench.engine.calls[bench.table.open.number](None, bench.lane)
    assert bench.toy.names() == ["toyOpen"]
    bench.define(program())
    assert bench.toy.names() == ["toyCreate", "toyAsk"]
    assert bench.toy.alive == {1: "handle", 2: "object of 4"}


def test_what_is_dropped_is_not_ready_any_more(bench: Bench) -> None:
    again = (bench.table.execute.number, bench.payload(1, (1, 2), SCALARS), bench.lane)
    bench.define(program())
    assert bench.engine.hot_call(*again) is not None
    bench.drop()
    assert bench.forgotten == 1
    assert bench.engine.hot_call(*again) is None
    bench.drop()  # one that was never made, or was dropped before
    bench.define(program())
    bench.execute(scalars=SCALARS)
    bench.drop()  # one that was never made ready
    assert bench.forgotten == 1


def test_the_stream_of_a_plan_is_that_of_its_lane(bench: Bench) -> None:
    bench.lane.stream = c_void_p(0x77)
    bench.define(program())
    bench.execute(scalars=SCALARS)
    assert [call[-1] for call in ran(bench)] == [0x77]
