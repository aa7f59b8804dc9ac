"""The home of a device: one thread, and the trio run in it that opened the device.

All of a device's state on this side of the process boundary is plain data that one thread changes between two
checkpoints: the ring, the arena, the books of the lanes. A call from another thread could corrupt it, and a task of
another event loop would never be woken. So every verb checks first where it is called.

The thread and the presence of a task decide that. A thread has one trio run at a time, guest runs
included, so a task in the right thread is of the right run or of a later one. An instrument is told of the end of the
run, however it ends. From then on the device takes no requests, so a later run is not mistaken for it.

A verb without await needs no task: between two turns of a guest run its host's callbacks may call it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import trio
from trio.lowlevel import in_trio_run, in_trio_task

from .._values.errors import DeviceError, OutsideRun, fresh

_HAVE_IT_CALLED = (
    "have a task of that run make the call: `trio.from_thread.run(verb, ..., trio_token=token)` in a thread, or "
    "`trio.from_thread.run_sync` for a verb without await; `token` is what `trio.lowlevel.current_trio_token()` "
    "returns in that run"
)


def this_thread() -> Callable[[], bool]:
    """Return a function that tells whether it is called in the thread that this was called in."""
    lock = threading.RLock()
    lock.acquire()
    # Called for each launch: it takes a third of the time of comparing `get_ident`, which makes an int.
    is_owned: Callable[[], bool] = lock._is_owned  # type: ignore[attr-defined]
    return is_owned


HELD: Final[trio.lowlevel.RunVar[Callable[[], bool] | None]] = trio.lowlevel.RunVar("atomr_trio.turn", None)
"""Set by a run that lends its turn to other threads: a function that tells whether the caller has it."""


def _lent() -> Callable[[], bool] | None:
    return HELD.get() if in_trio_run() else None


def who_may_call() -> Callable[[], bool]:
    """Return a function that tells whether it is called where the current run's devices may be used.

    That is in the thread of the run, or, if the run lends its turn, in the thread that has it.
    """
    return _lent() or this_thread()


class Resident(Protocol):
    """A device, as its home sees it."""

    ended: DeviceError | None

    @property
    def index(self) -> int:
        """Its number."""

    @property
    def generation(self) -> int:
        """The number of its generation."""

    def abandon(self) -> None:
        """Take no more requests: its run has ended."""


class Home(trio.abc.Instrument):
    """The trio run, and the thread, that a device belongs to."""

    def __init__(self, device: Resident) -> None:
        self._device = device
        self.here: Callable[[], bool] = who_may_call()
        """True if the caller is in the device's thread, or in the one that its run has lent its turn to."""
        self._advice: Mapping[str, str] = _ADVICE if _lent() is None else _ADVICE_FOR_START
        self._thread_name = threading.current_thread().name
        self.over: bool = False
        """True once the run has ended."""

    def __repr__(self) -> str:
        return f"<Home of device {self._device.index}: the trio run of thread {self._thread_name!r}>"

    def check_thread(self) -> None:
        """Raise `OutsideRun` in another thread, for a verb without await."""
        if not self.here():
            raise self.error()

    def check_task(self) -> None:
        """Raise `OutsideRun` unless a task of the run is calling, for a verb that is awaited."""
        if not self.here() or not in_trio_task() or self.over:
            raise self.error()

    def error(self) -> DeviceError:
        """Return the error of a call from elsewhere: that of an ended device, if it has ended; else `OutsideRun`."""
        device = self._device
        if device.ended is not None:
            return fresh(device.ended)
        caller = _caller(self.here())
        thread, home = threading.current_thread().name, self._thread_name
        return OutsideRun(
            f"{_PLACES[caller].format(thread=thread)}, and the device belongs to the trio run of thread {home!r}",
            caller=caller,
            thread=thread,
            home=home,
            device=device.index,
            generation=device.generation,
            advice=self._advice[caller],
        )

    def enter(self) -> None:
        """Listen for the end of the run, until `leave`."""
        trio.lowlevel.add_instrument(self)

    def desert(self) -> None:
        """Refuse every caller from now on: the run has ended, or this is a forked child."""
        self.over = True

    def after_run(self) -> None:
        """Called by trio when the run has ended and the device was not closed."""
        self.desert()
        self._device.abandon()

    def leave(self) -> None:
        """Stop listening for the end of the run: the device is closed."""
        if not self.over:
            trio.lowlevel.remove_instrument(self)


_PLACES = {
    "another trio run": "the call came from a trio run of thread {thread!r}",
    "asyncio": "the call came from asyncio, in thread {thread!r}",
    "another thread": "the call came from thread {thread!r}",
    "no task": "the call did not come from a trio task",
}
_ADVICE: Final = {
    "another trio run": f"open a device inside this run, or {_HAVE_IT_CALLED}",
    "asyncio": "await it in a trio task, or under asyncio by `asyncio.to_thread(trio.from_thread.run, verb, ..., "
    "trio_token=token)`; `token` is what `trio.lowlevel.current_trio_token()` returns in the device's run",
    "another thread": _HAVE_IT_CALLED,
    "no task": _HAVE_IT_CALLED,
}
_CALL_IT: Final = "call the blocking verb, `x.to_host()` instead of `await x.awaited.to_host()`"
_ADVICE_FOR_START: Final = {
    "another trio run": "the device is one of `atomr_trio.start`: call the blocking verb in a thread, "
    "`await trio.to_thread.run_sync(x.to_host)`",
    "asyncio": "the device is one of `atomr_trio.start`: `await dev.in_asyncio(x.to_host)` instead of "
    "`await x.awaited.to_host()`, or call the blocking verb",
    "another thread": f"the device is one of `atomr_trio.start`: {_CALL_IT}",
    "no task": f"the device is one of `atomr_trio.start`: {_CALL_IT}",
}
"""For a run that lends its turn: its device has a blocking face."""


def _caller(here: bool) -> str:
    """Return a word for the caller, given whether it is in the right thread."""
    if in_trio_task() and not here:
        return "another trio run"
    if _in_asyncio():
        return "asyncio"
    return "no task" if here else "another thread"


def _in_asyncio() -> bool:
    asyncio = sys.modules.get("asyncio")  # importing it takes long, and a program that uses it has imported it
    if asyncio is None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def check_can_open(device: int | None = None) -> None:
    """Raise `OutsideRun` outside of trio's tasks, where no device can be opened."""
    if in_trio_task():
        return
    caller = "asyncio" if _in_asyncio() else "no task"
    raise OutsideRun(
        "a device must be opened by a trio task, and the caller is not one",
        caller=caller,
        thread=threading.current_thread().name,
        device=device,
        advice="run the program by `trio.run(main)`; in a notebook or beside another event loop use "
        "`atomr_trio.start`, or run trio in its own thread, or as its guest (`trio.lowlevel.start_guest_run`)",
    )
