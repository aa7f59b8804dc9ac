"""The run behind a blocking face, without a device: how calls end when the run does not go on as usual."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import outcome
import pytest
import trio

from atomr_trio import DeviceClosed, DeviceFailed, InvalidArgument, OutsideRun
from atomr_trio._values.errors import AtomrInternalError
from atomr_trio.plain._loop import Call, Loop

DEADLINE = 30


def loop_of(*, entering: Callable[[], object] = lambda: None, leaving: Callable[[], object] = lambda: None) -> Loop:
    face = SimpleNamespace(_core=SimpleNamespace(ended=None))

    @contextlib.asynccontextmanager
    async def opening() -> AsyncIterator[Any]:
        entering()
        try:
            yield face
        finally:
            leaving()

    return Loop(opening, "a loop of a test")


def raises(error: BaseException) -> Callable[[], object]:
    def act() -> object:
        raise error

    return act


async def answer(value: int) -> int:
    await trio.lowlevel.checkpoint()
    return value


def test_a_call_has_its_result_and_after_the_end_the_error_of_that() -> None:
    loop = loop_of()
    loop.open()
    assert loop.wait(answer, (3,), {}) == 3
    with pytest.raises(OutsideRun, match="inside of the run"):
        loop.wait(call_again, (loop,), {})
    loop.close()
    assert loop.is_over
    loop.begin_close()
    loop.close()
    assert loop.post(lambda: None) is False
    with pytest.raises(DeviceClosed):
        loop.wait(answer, (3,), {})
    assert loop.at_once(lambda: 4, (), {}) == 4


async def call_again(loop: Loop) -> int:
    result: int = loop.wait(answer, (3,), {})
    return result


def test_an_error_of_opening_is_raised_by_open_and_by_every_call() -> None:
    loop = loop_of(entering=raises(InvalidArgument("there is no such device")))
    with pytest.raises(InvalidArgument, match="no such device"):
        loop.open()
    with pytest.raises(InvalidArgument, match="no such device"):
        loop.wait(answer, (3,), {})


@pytest.mark.parametrize("error", [ValueError("a bug"), DeviceFailed("no GPU any more")])
def test_a_run_that_ends_by_an_error_tells_it_once_at_closing_and_calls_get_theirs(error: Exception) -> None:
    loop = loop_of(leaving=raises(error))
    loop.open()
    begun = threading.Event()

    async def wait_for_ever() -> None:
        begun.set()
        await trio.sleep_forever()

    found: list[BaseException] = []

    def call() -> None:
        try:
            loop.wait(wait_for_ever, (), {})
        except BaseException as caught:
            found.append(caught)

    thread = threading.Thread(target=call)
    thread.start()
    assert begun.wait(DEADLINE)
    with pytest.raises(type(error)):
        loop.close(DEADLINE)
    thread.join(DEADLINE)
    assert len(found) == 1
    loop.failure = error
    assert isinstance(loop.error(), DeviceFailed if isinstance(error, DeviceFailed) else AtomrInternalError)
    loop.failure = None
    loop.close(DEADLINE)


def test_closing_waits_no_longer_than_it_is_told() -> None:
    release = threading.Event()
    loop = loop_of(leaving=lambda: release.wait(DEADLINE))
    loop.open()
    loop.close(0.01)
    assert not loop.is_over
    release.set()
    loop.close()
    assert loop.is_over


def test_a_thread_that_cannot_be_started_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = loop_of()
    monkeypatch.setattr(loop.thread, "start", raises(RuntimeError("can't start new thread")))
    with pytest.raises(RuntimeError, match="can't start"):
        loop.open()


def test_a_call_is_settled_once() -> None:
    loop = loop_of()
    loop.open()
    told: list[object] = []
    call = Call(loop, answer, (3,), {}, told.append)
    call.cancel()
    assert isinstance(call.outcome, outcome.Error)
    assert isinstance(call.outcome.error, KeyboardInterrupt)
    call.begin()
    call.settle(outcome.Value(3))
    assert told == [None]
    loop.close()
    late = Call(loop, answer, (3,), {}, told.append)
    loop.begin(late)
    assert isinstance(late.outcome, outcome.Error)
    assert told == [None, None]


def test_in_a_forked_child_nothing_is_left_of_it() -> None:
    loop = loop_of()
    loop.open()
    process, loop._process = loop._process, -1
    assert isinstance(loop.error(), DeviceFailed)
    with pytest.raises(DeviceFailed, match="forked"):
        loop.close()
    loop._process = process
    loop.close()
    loop.forget_in_child()
    assert not loop.calls
