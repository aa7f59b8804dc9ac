"""Verbs that begin in their caller's thread, in the name of a task that the run lends: every way that one can end."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import math
import signal
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import outcome
import pytest
import trio
import trio.lowlevel

from atomr_trio import DeviceClosed, OutsideRun
from atomr_trio.plain import _lent_tasks, _turn
from atomr_trio.plain._loop import Loop

DEADLINE = 30


@contextlib.asynccontextmanager
async def opening() -> AsyncIterator[Any]:
    yield SimpleNamespace(_core=SimpleNamespace(ended=None))


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop(opening, "a loop of a test")
    loop.open()
    yield loop
    loop.close(DEADLINE)
    assert loop.is_over, "whatever a test does, the run ends"


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody wants the turn, and no thread is too slow."""
    monkeypatch.setattr(_lent_tasks, "LONGEST", DEADLINE)
    monkeypatch.setattr(_turn.Turn, "is_wanted", lambda _: False)


def wait(loop: Loop, verb: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    return loop.wait_here(verb, arguments, {})


def is_here() -> bool:
    """Return whether this is the thread of the test."""
    return threading.current_thread() is threading.main_thread()


async def checkpoints(count: int = 3) -> list[bool]:
    places = [is_here()]
    for _ in range(count):
        await trio.lowlevel.checkpoint()
        places.append(is_here())
    return places


async def sleeps() -> tuple[bool, bool]:
    before = is_here()
    await trio.sleep(0.001)
    return before, is_here()


def test_a_verb_that_does_not_wait_ends_where_it_began(loop, calm):
    for _ in range(100):
        assert wait(loop, checkpoints) == [True] * 4
    assert not loop.calls


def test_one_that_waits_begins_here_and_goes_on_in_the_run(loop, calm):
    for _ in range(5):
        assert wait(loop, sleeps) == (True, False)
        assert wait(loop, checkpoints, 1) == [True] * 2


def test_it_is_in_a_task_of_the_run_all_the_time(loop):
    async def look() -> tuple[object, object]:
        first = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()
        await trio.lowlevel.checkpoint()
        await trio.sleep(0.001)
        return first, (trio.lowlevel.current_task(), trio.lowlevel.current_trio_token())

    before, after = wait(loop, look)
    assert before == after
    assert not trio.lowlevel.in_trio_run()
    assert not trio.lowlevel.in_trio_task()


def test_its_errors_are_raised_and_its_task_is_free_again(loop, calm):
    async def fail(sleep: bool) -> None:
        await trio.sleep(0.001 if sleep else 0)
        raise KeyError("mine")

    def refuse() -> Awaitable[None]:
        raise KeyError("mine")

    for _ in range(2 * _lent_tasks.MOST):
        for given in ((fail, False), (fail, True), (refuse,)):
            with pytest.raises(KeyError, match="mine"):
                wait(loop, *given)
    assert wait(loop, checkpoints, 1) == [True, True]


def test_any_awaitable_will_do(loop):
    class Later:
        def __await__(self) -> Generator[Any, Any, list[bool]]:
            return checkpoints(1).__await__()

    assert len(wait(loop, Later)) == 2


def test_a_keyboard_interrupt_of_the_verb_itself_passes_and_its_task_is_free_again(loop, calm):
    async def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wait(loop, fail)
    assert wait(loop, checkpoints, 1) == [True, True]


# ------------------------------------------------------------------------------------------------------ scopes


@pytest.mark.parametrize("before", [0, 0.001], ids=["here", "in the run"])
def test_a_scope_that_is_cancelled_ends_its_block(loop, before):
    async def cancelled() -> str:
        with trio.CancelScope() as scope:
            if before:
                await trio.sleep(before)
            scope.cancel()
            await trio.lowlevel.checkpoint()
            return "not cancelled"
        await trio.lowlevel.checkpoint()
        return "cancelled"

    assert wait(loop, cancelled) == "cancelled"


def test_a_scope_that_was_cancelled_before_it_was_entered_ends_its_block(loop):
    async def cancelled() -> str:
        scope = trio.CancelScope()
        scope.cancel()
        with scope:
            await trio.sleep_forever()
        return "cancelled"

    assert wait(loop, cancelled) == "cancelled"


def test_a_cancelled_scope_that_was_left_does_not_cancel_what_follows(loop):
    async def go_on() -> str:
        scope = trio.CancelScope()
        scope.__enter__()
        scope.cancel()
        scope.__exit__(None, None, None)
        await trio.sleep(0.001)
        return "went on"

    assert wait(loop, go_on) == "went on"


def test_a_deadline_ends_a_block_also_while_the_run_sleeps_for_longer(loop):
    async def too_long() -> bool:
        with trio.move_on_after(0.01) as scope:
            await trio.sleep_forever()
        return scope.cancelled_caught

    begun = time.monotonic()
    assert wait(loop, too_long)
    assert time.monotonic() - begun < DEADLINE


def test_a_shield_holds(loop):
    async def shielded() -> str:
        with trio.CancelScope() as scope:
            scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.sleep(0.001)
                return "done"

    assert wait(loop, shielded) == "done"


def test_no_deadline_of_an_earlier_call_holds_for_a_later_one(loop):
    async def limit() -> float:
        return trio.current_effective_deadline()

    async def timed() -> float:
        with trio.move_on_after(100):
            await trio.lowlevel.checkpoint()
            return trio.current_effective_deadline()

    assert wait(loop, timed) < math.inf
    assert wait(loop, limit) == math.inf


def test_it_may_open_a_nursery_and_threads(loop):
    async def both() -> list[str]:
        found: list[str] = []

        async def one(word: str) -> None:
            found.append(await trio.to_thread.run_sync(lambda: word))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, "a")
            nursery.start_soon(one, "b")
        return sorted(found)

    assert wait(loop, both) == ["a", "b"]


# ------------------------------------------------------------------------------------------------------ the turn


def test_where_a_task_of_the_run_is_ready_the_verb_goes_on_in_the_run(loop):
    async def meet() -> tuple[bool, bool]:
        met = trio.Event()

        async def other() -> None:
            met.set()

        trio.lowlevel.spawn_system_task(other)
        while not met.is_set():
            await trio.lowlevel.checkpoint()
        return met.is_set(), is_here()

    assert wait(loop, meet) == (True, False)


def test_a_verb_that_looks_for_long_goes_on_in_the_run(loop, monkeypatch):
    monkeypatch.setattr(_lent_tasks, "LONGEST", 0.0)
    assert wait(loop, checkpoints) == [True, False, False, False]


def test_a_verb_that_looks_for_what_another_thread_does_lets_it_have_the_turn(loop):
    seen: list[int] = []

    async def look() -> bool:
        begun.set()
        while not seen:
            await trio.lowlevel.checkpoint()
        return is_here()

    begun = threading.Event()
    with ThreadPoolExecutor(1) as pool:

        def enqueue() -> None:
            begun.wait(DEADLINE)
            loop.at_once(seen.append, (1,), {})

        other = pool.submit(enqueue)
        wait(loop, look)
        other.result(DEADLINE)
    assert seen == [1]


def test_many_threads_wait_at_once_more_than_there_are_tasks_to_lend(loop):
    count = 3 * _lent_tasks.MOST
    opened: list[trio.Event] = []
    begun = threading.Barrier(count + 1)

    async def pass_gate(number: int) -> int:
        if not opened:
            opened.append(trio.Event())
        arrived.append(number)
        await opened[0].wait()
        return number

    arrived: list[int] = []

    def call(number: int) -> int:
        begun.wait(DEADLINE)
        result: int = wait(loop, pass_gate, number)
        return result

    with ThreadPoolExecutor(count) as pool:
        calls = [pool.submit(call, number) for number in range(count)]
        begun.wait(DEADLINE)
        while len(arrived) < count:
            time.sleep(0.001)
        loop.at_once(lambda: opened[0].set(), (), {})
        assert [each.result(DEADLINE) for each in calls] == list(range(count))
    assert not loop.calls
    assert loop._lent_tasks == _lent_tasks.MOST
    assert len(wait(loop, checkpoints, 1)) == 2


def test_threads_that_call_all_the_time_have_their_own_results(loop):
    async def mixed(number: int) -> int:
        for turn in range(3):
            if (number + turn) % 3:
                await trio.lowlevel.checkpoint()
            else:
                await trio.sleep(0.0001)
        return number

    def call(first: int) -> bool:
        return all(wait(loop, mixed, first + step) == first + step for step in range(100))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(0, 8000, 1000)))
    assert not loop.calls


# ------------------------------------------------------------------------------------------------------ contexts


def test_it_runs_in_the_context_of_its_caller(loop):
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(7)

    async def read() -> tuple[int, int]:
        before = variable.get()
        await trio.sleep(0.001)
        return before, variable.get()

    assert wait(loop, read) == (7, 7)


def test_nothing_of_a_call_is_kept(loop):
    class Kept:
        pass

    async def take(thing: object, seconds: float) -> None:
        await trio.sleep(seconds)

    for seconds in (0, 0.001):
        thing = Kept()
        watch = weakref.ref(thing)
        wait(loop, take, thing, seconds)
        del thing
        gc.collect()
        assert watch() is None


# ------------------------------------------------------------------------------------------------------ its ends


def test_an_interrupt_cancels_a_verb_that_waits(loop, calm):
    ended: list[str] = []

    async def wait_for_ever() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("run" if not is_here() else "here")

    def interrupt() -> None:
        while not loop.calls:
            time.sleep(0.001)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        wait(loop, wait_for_ever)
    thread.join()
    assert ended == ["run"]
    assert not loop.calls
    assert wait(loop, sleeps) == (True, False)


def test_an_interrupt_between_two_steps_comes_behind_them(loop, calm):
    async def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)
        await trio.lowlevel.checkpoint()
        steps.append("went on")

    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        wait(loop, interrupted)
    assert steps == ["went on"]
    assert wait(loop, checkpoints, 1) == [True, True]


def test_an_interrupt_before_a_verb_waits_cancels_it(loop):
    async def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)
        await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        wait(loop, interrupted)
    assert not loop.calls


def test_where_a_handler_of_the_program_might_raise_the_verb_is_handed_to_the_run(loop, calm):
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        assert wait(loop, checkpoints) == [False] * 4
    finally:
        signal.signal(signal.SIGINT, before)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert wait(loop, checkpoints) == [True] * 4
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_verb_that_waits_when_the_run_ends_has_the_error_of_that(loop):
    cleaned: list[object] = []

    async def wait_for_ever() -> None:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            cleaned.append(trio.current_effective_deadline())

    begun = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(wait, loop, wait_for_ever)
        assert begun.wait(DEADLINE)
        loop.close(DEADLINE)
        with pytest.raises(DeviceClosed):
            call.result(DEADLINE)
    assert cleaned == [-math.inf]
    assert not loop.calls
    with pytest.raises(DeviceClosed):
        wait(loop, checkpoints)


def test_a_verb_that_begins_when_the_run_has_just_ended_has_the_error_of_that(loop, monkeypatch):
    loop.close(DEADLINE)
    monkeypatch.setattr(loop, "is_over", False)  # it was not when the caller looked
    with pytest.raises(DeviceClosed):
        wait(loop, checkpoints)
    monkeypatch.undo()


def test_a_blocking_verb_within_one_is_refused(loop, calm):
    async def within() -> None:
        wait(loop, checkpoints)

    with pytest.raises(OutsideRun, match="inside of the run"):
        wait(loop, within)
    assert wait(loop, checkpoints, 1) == [True, True]


def test_a_trio_that_has_none_of_the_names_is_handed_the_calls(monkeypatch):
    monkeypatch.setattr(_lent_tasks, "_SLEEP", None)
    loop = Loop(opening, "a loop of a test")
    loop.open()
    try:
        assert wait(loop, checkpoints) == [False] * 4
        assert wait(loop, sleeps) == (False, False)
    finally:
        loop.close(DEADLINE)
    assert loop.is_over


def test_a_call_that_was_handed_over_ends_once(loop):
    """Its outcome stays what it was, whatever comes behind."""
    told: list[object] = []
    call = _lent_tasks.Call(loop, checkpoints, (1,), {}, told.append)
    call.settle(outcome.Value(1))
    call.settle_interrupted()
    call.settle_over()
    assert told == [None]
    assert call.outcome == outcome.Value(1)
