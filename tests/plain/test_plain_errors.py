"""Tracebacks of the blocking face: none of the device's own run for an error that is meant, all of it for a defect."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

import atomr_trio
from atomr_trio import InvalidArgument, OutsideRun, plain
from atomr_trio.plain import _errors
from support import chosen_backend

SOURCE = 'extern "C" __global__ void add(int *x, int a) { x[threadIdx.x] += a; }'
THIS_LIBRARY = (str(Path(atomr_trio.__file__).parent), "/outcome/", "/trio/")


@pytest.fixture(scope="module")
def dev() -> Iterator[plain.Device]:
    with atomr_trio.start(0, backend=chosen_backend()) as device:
        yield device


def inner_frames(error: BaseException) -> list[str]:
    return [
        each.name
        for each in traceback.extract_tb(error.__traceback__)
        if any(part in each.filename for part in THIS_LIBRARY)
    ]


VERBS: dict[str, Callable[[plain.Device], object]] = {
    "launch": lambda dev: dev.nvrtc.compile(SOURCE, "add").launch(1, 1, "a", 1),
    "compile": lambda dev: dev.nvrtc.compile("nonsense", "add"),
    "copy_from": lambda dev: dev.zeros(3).copy_from(np.zeros(4)),
    "zeros": lambda dev: dev.zeros(-1),
    "reshape": lambda dev: dev.zeros((2, 2)).reshape(3),
    "__len__": lambda dev: len(dev.zeros(())),
    "asum": lambda dev: dev.blas.asum(dev.zeros(3, np.int8)),
    "capture": lambda dev: dev.capture(lambda _recorder: None),
}


@pytest.mark.parametrize("name", VERBS)
def test_only_the_verb_itself_is_shown(dev, name):
    with pytest.raises((atomr_trio.DeviceError, TypeError)) as raised:
        VERBS[name](dev)
    assert inner_frames(raised.value) in ([name], [])
    assert inner_frames(raised.value.__cause__ or raised.value) in ([name], [])
    assert "During handling of" not in "".join(traceback.format_exception(raised.value))


def test_of_a_loss_only_the_verb_is_shown(dev):
    wild = dev.nvrtc.compile('extern "C" __global__ void wild() { *(volatile int *)16 = 1; }', "wild")
    with pytest.raises(atomr_trio.ContextLost) as raised:
        wild.launch(1, 1)
    assert inner_frames(raised.value) == ["launch"]


def test_under_asyncio_nothing_of_the_library_is_shown(dev):
    x = dev.zeros(3)

    async def main() -> None:
        await dev.in_asyncio(x.copy_from, np.zeros(4))

    with pytest.raises(InvalidArgument) as raised:
        asyncio.run(main())
    assert inner_frames(raised.value) == []


async def wrong_copy(dev: atomr_trio.Device) -> None:
    await dev.zeros(3).copy_from(np.zeros(4))


def test_the_frames_of_the_program_stay(dev):
    with pytest.raises(InvalidArgument) as raised:
        dev.run(wrong_copy, dev)
    assert inner_frames(raised.value) == []
    assert traceback.extract_tb(raised.value.__traceback__)[-1].name == "wrong_copy"


def test_the_error_that_a_verb_was_called_for_stays(dev):
    def again() -> None:
        try:
            raise KeyError
        except KeyError:
            dev.zeros(3).copy_from(np.zeros(4))

    shown = "".join(traceback.format_exception(_caught(again)))
    assert "During handling of" in shown


async def defect(_dev: object) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("function", "error"), [(defect, ZeroDivisionError), (lambda _dev: len(7), TypeError)], ids=["other", "built in"]
)
def test_what_is_no_error_of_the_library_keeps_its_frames(dev, function, error):
    with pytest.raises(error) as raised:
        dev.run(function, dev)
    assert {"run", "wait", "_awaited_here"} <= set(inner_frames(raised.value))


def _caught(function: Callable[[], object]) -> Exception:
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("it raised nothing")


def test_an_error_of_a_built_in_kind_is_meant_where_a_statement_of_the_library_raises_it():
    assert not _errors.is_meant(_caught(lambda: len(7)))  # type: ignore[arg-type]
    assert not _errors.is_meant(_caught(lambda: atomr_trio.RestartPolicy(nonsense=1)))  # type: ignore[call-arg]
    assert not _errors.is_meant(atomr_trio.ActorCrashed("a defect"))
    assert _errors.is_meant(_caught(lambda: atomr_trio.RestartPolicy(intensity="many")))  # type: ignore[arg-type]


def test_the_advice_of_a_call_in_the_wrong_place_speaks_of_await(dev):
    async def block(_dev: object) -> None:
        dev.zeros(1).to_host()

    with pytest.raises(OutsideRun) as raised:
        dev.run(block, dev)
    assert "await the verb of the awaited face" in (raised.value.advice or "")
    error = OutsideRun("it must `await x.to_host()`", advice="write `async with open_device()`")
    _errors.prepare(error)
    assert (error.message, error.advice) == ("it must `await x.to_host()`", "write `async with open_device()`")


AWAITED_ELSEWHERE: dict[str, tuple[Callable[[Any], object], str]] = {
    "asyncio": (asyncio.run, "`await dev.in_asyncio(x.to_host)` instead of"),
    "another trio run": (lambda coroutine: trio.run(lambda: coroutine), "`await trio.to_thread.run_sync(x.to_host)`"),
    "another thread": (lambda coroutine: coroutine.send(None), "call the blocking verb, `x.to_host()`"),
}


@pytest.mark.parametrize("caller", AWAITED_ELSEWHERE)
def test_an_awaited_verb_in_the_wrong_place_is_told_of_the_blocking_face(dev, caller):
    run, advice = AWAITED_ELSEWHERE[caller]
    x = dev.zeros(3)
    with pytest.raises(OutsideRun) as raised:
        run(x.awaited.to_host())
    assert raised.value.caller == caller
    assert advice in (raised.value.advice or "")
    assert "from_thread" not in (raised.value.advice or "")
    if caller == "another thread":
        with pytest.raises(OutsideRun, match=r"instead of `await x\.awaited"):
            dev.awaited.zeros(3)
