"""Faults of the simulated driver: how they are written down, which call they are for, and what they do to it."""

from __future__ import annotations

import math
import signal
import subprocess
import threading
from ctypes import c_uint64

import pytest
from hypothesis import given, strategies as st

import atomr_sim
from atomr_cuda import driver
from atomr_cuda.injection import (
    FAULTS_VARIABLE,
    Crash,
    Delay,
    Exit,
    Hang,
    Injection,
    NoHostMemory,
    Poison,
    ReturnStatus,
    asked_for,
    parse,
)
from atomr_sim.driver.faults import Faults
from atomr_sim.driver.streams import Fate
from atomr_trio._generation.process import NUMBER_VARIABLE
from support.sim_process import begin, run_in_process

ACTIONS = st.one_of(
    st.builds(ReturnStatus, st.integers(0, 2**31)),
    st.builds(Poison, st.integers(1, 2**31)),
    st.builds(Crash, st.sampled_from(signal.Signals)),
    st.builds(Exit, st.integers(0, 255)),
    st.builds(Delay, st.floats(0, 1e9)),
    st.sampled_from([Hang(), NoHostMemory()]),
)
COUNTS = st.integers(1, 2**40)
FOREVER = st.just(math.inf)


@st.composite
def injections(draw: st.DrawFn) -> Injection:
    first = draw(st.none() | COUNTS)
    last = math.inf if first is None else draw(FOREVER | st.integers(first, 2**41))
    return Injection(
        draw(st.text("cuMZ_09", min_size=1)), draw(ACTIONS), draw(COUNTS), draw(COUNTS | FOREVER), first, last
    )


# --- how they are written down ----------------------------------------------------------------------------------------


@given(st.lists(injections(), max_size=4))
def test_what_is_written_down_is_what_is_read(wanted):
    assert parse(",".join(map(str, wanted))) == tuple(wanted)


@pytest.mark.parametrize(
    ("text", "injection"),
    [
        ("cuInit:100:1", Injection("cuInit", ReturnStatus(100))),
        ("cuInit:100", Injection("cuInit", ReturnStatus(100))),
        (" cuInit:return=100:2 ", Injection("cuInit", ReturnStatus(100), call=2)),
        ("cuInit:700:2:sticky", Injection("cuInit", Poison(700), call=2)),
        ("cuInit:poison=700:2*", Injection("cuInit", Poison(700), call=2, times=math.inf)),
        ("cuInit:hang:3*4", Injection("cuInit", Hang(), call=3, times=4)),
        ("cuInit:crash=SIGABRT", Injection("cuInit", Crash(signal.SIGABRT))),
        ("cuInit:exit=3@2-", Injection("cuInit", Exit(3), first_worker=2)),
        ("cuInit:delay=0.5:1@2-3", Injection("cuInit", Delay(0.5), first_worker=2, last_worker=3)),
        ("cuInit:nomemory", Injection("cuInit", NoHostMemory())),
    ],
)
def test_each_form_is_read(text, injection):
    assert parse(text) == (injection,)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cuInit", "function:action:calls"),
        ("cuInit:100:1:twice", "function:action:calls"),
        ("cuInit:100:one", "function:action:calls"),
        ("cuInit:-1", "function:action:calls"),
        ("cuInit:sleep=1", "'sleep=1' is not an action"),
        ("cuInit:hang=1", "'hang=1' is not an action"),
        ("cuInit:exit", "'exit' is not an action"),
        ("cuInit:exit=256", "from 0 to 255"),
        ("cuInit:poison=0", "greater than 0"),
        ("cuInit:delay=inf", "finite"),
        ("cuInit:delay=nan", "finite"),
        ("cuInit:delay=-1", "finite"),
        ("cuInit:exit=x", "invalid literal"),
        ("cuInit:crash=SIGNOTHING", "no signal 'SIGNOTHING'"),
        ("cuInit:hang:1:sticky", "only a status can be sticky"),
        ("cuInit:1:0", "call is 0; calls are counted from 1"),
        ("cuInit:1:1*0", "times must be a whole number"),
        ("cuInit:1:1@0-", "from 0 to inf"),
        ("cuInit:1:1@3-2", "from 3 to 2"),
    ],
)
def test_what_makes_no_sense_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        parse(text)


def test_a_fault_does_not_come_half_a_time():
    with pytest.raises(ValueError, match=r"a whole number from 1 on, not 1\.5"):
        Injection("cuInit", Hang(), times=1.5)


def test_a_name_and_its_symbol_are_the_same_function_and_others_are_refused():
    assert Injection("cuMemAlloc", Hang()).declared() is Injection("cuMemAlloc_v2", Hang()).declared()
    for name in ("cuNothing", "library", "CUdevice"):
        with pytest.raises(ValueError, match=f"no function '{name}'"):
            Injection(name, Hang()).declared()


# --- which call -------------------------------------------------------------------------------------------------------


def struck(faults: str, calls: int = 5) -> list[int | None]:
    """The statuses that calls of one function must return."""
    made = Faults(Fate())
    for injection in parse(faults):
        made.add("f", injection)
    return [made.strike("f") for _ in range(calls)]


@pytest.mark.parametrize(
    ("faults", "statuses"),
    [
        ("f:7", [7, None, None, None, None]),
        ("f:7:3", [None, None, 7, None, None]),
        ("f:7:2*2", [None, 7, 7, None, None]),
        ("f:7:4*", [None, None, None, 7, 7]),
        ("f:7:2,f:8:3", [None, 7, 8, None, None]),
        ("f:7:2*2,f:8:3*2", [None, 7, 7, 8, None]),
        ("f:0:2", [None, 0, None, None, None]),
    ],
)
def test_a_fault_comes_at_the_calls_that_were_asked_for(faults, statuses):
    assert struck(faults) == statuses


def test_calls_of_many_threads_are_counted_once_each():
    made = Faults(Fate())
    made.add("f", *parse("f:7:100"))
    seen: list[int | None] = []
    threads = [threading.Thread(target=lambda: seen.extend(made.strike("f") for _ in range(50))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 200
    assert seen.count(7) == 1


def test_other_functions_are_not_touched():
    made = Faults(Fate())
    made.add("f", *parse("f:7:1*"))
    assert made.strike("g") is None


def test_faults_that_are_withdrawn_do_not_come():
    made = Faults(Fate())
    made.add("f", *parse("f:7:2*"))
    assert made.strike("f") is None
    made.withdraw()
    assert made.strike("f") is None


# --- which process ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("worker", "statuses"), [("1", [1]), ("2", [1, 2]), ("3", [1, 2, 3]), ("4", [1, 3]), ("", [1]), (None, [1])]
)
def test_each_worker_gets_what_is_for_its_number(worker, statuses):
    environment = {FAULTS_VARIABLE: "f:1,f:2:1@2-3,f:3:1@3-"}
    if worker is not None:
        environment[NUMBER_VARIABLE] = worker
    assert [injection.action.status for injection in asked_for(environment)] == statuses


def test_an_environment_that_asks_for_nothing_has_no_faults():
    assert asked_for({}) == ()


# --- what it does -----------------------------------------------------------------------------------------------------


def outcome_of(action: str) -> subprocess.CompletedProcess[str]:
    """A process in which the second of three calls meets an action."""
    return run_in_process(
        """
        import time
        begin()
        for _ in range(3):
            began = time.monotonic()
            status = cuMemAlloc.status(c_uint64(), 64)
            print(status, int(time.monotonic() - began >= 0.25), flush=True)
        """,
        check=False,
        ATOMR_TRIO_SIM_FAULTS=f"cuMemAlloc:{action}:2",
    )


@pytest.mark.parametrize(
    ("action", "lines", "exit_status"),
    [
        ("return=2", ["0 0", "2 0", "0 0"], 0),
        ("poison=719", ["0 0", "719 0", "719 0"], 0),
        ("delay=0.25", ["0 0", "0 1", "0 0"], 0),
        ("exit=3", ["0 0"], 3),
        ("crash=SIGABRT", ["0 0"], -signal.SIGABRT),
        ("crash=SIGSEGV", ["0 0"], -signal.SIGSEGV),
    ],
)
def test_each_action_does_what_it_says(action, lines, exit_status):
    done = outcome_of(action)
    assert (done.stdout.splitlines(), done.returncode) == (lines, exit_status)


def test_a_call_that_hangs_holds_its_own_thread_alone():
    done = run_in_process(
        """
        import threading
        begin()
        atomr_sim.inject("cuMemAlloc:hang")
        returned = threading.Event()
        hung = threading.Thread(target=lambda: (cuMemAlloc.status(c_uint64(), 64), returned.set()), daemon=True)
        hung.start()
        print(returned.wait(0.2), hung.is_alive(), cuMemAlloc.status(c_uint64(), 64), flush=True)
        import os; os._exit(0)
        """
    )
    assert done.stdout.split() == ["False", "True", "0"]


def test_want_of_host_memory_is_an_exception_in_the_caller_and_in_no_other_thread():
    begin()
    atomr_sim.inject("cuMemAlloc:nomemory:1*2")
    for call in (driver.cuMemAlloc, driver.cuMemAlloc.status):
        with pytest.raises(MemoryError, match="cuMemAlloc_v2: injected lack of host memory"):
            call(c_uint64(), 64)
    assert driver.cuMemAlloc.status(c_uint64(), 64) == 0
