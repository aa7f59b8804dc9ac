"""The trio run of one `start`, in a thread of its own, and the calls that other threads make in it.

A verb begins in the thread that calls it, and most verbs end there (``_lent_tasks.py``). One that has to wait goes on
in the run. A function of the program is handed to the run whole, which makes a system task of it, in the context of the
caller. In both cases the caller waits on a queue.

When the caller is interrupted (`KeyboardInterrupt`), its call is cancelled, like an awaited verb whose scope is. It
waits until that is done: memory of the caller is not touched any more then. Every verb ends soon after that.

Nothing here waits for a run without a bound, and the thread is a daemon, so that an interpreter always ends. The run's
thread starts the workers, and they end with it: it is the thread that has to live, not the one that called `start`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import CoroutineType
from typing import Any, Final

import trio
from trio.lowlevel import in_trio_task

from .._supervision.home import HELD
from .._values.errors import AtomrInternalError, DeviceClosed, DeviceError, DeviceFailed, OutsideRun, fresh
from .._values.util import Living, known
from . import _interrupts
from ._call import Ask, Call
from ._interrupts import forget_noted, guarded, raise_noted
from ._lent_tasks import MOST, LentTask
from ._turn import Turn, is_in_task

SECONDS_AT_EXIT: Final = 30.0
"""The longest that an interpreter waits at its exit for one device to close, in seconds: far above what is usual."""

_LOOK_AGAIN: Final = 0.05
"""Seconds after which a thread looks for the end of its call again, should an interrupt have hidden it."""
_CLOSED: Final = "the device was closed"
_USE_THE_AWAITED = "await the verb of the awaited face (`dev.awaited`), which this task may use"
_OPEN_ONE = (
    "in a program of trio open the device by `async with atomr_trio.open_device()`, or make the call in a thread, "
    "`await trio.to_thread.run_sync(verb, ...)`"
)

Box = queue.SimpleQueue[Callable[[], None] | None]
"""What a call has for the thread that waits for it: jobs, and None at the end."""


class Loop:
    """The thread and the trio run of one `start`."""

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[Any]], name: str) -> None:
        self._opening = opening
        self.calls: set[Call] = set()
        """Those that have not ended."""
        self.face: Any = None
        """The awaited face: a `Device` or `Devices`."""
        self.is_over: bool = False
        """True once the run has ended, and in a forked child."""
        self.failure: BaseException | None = None
        """The error that the run ended with."""
        self.making: threading.RLock = threading.RLock()
        """Held while a twin is made, so that two threads make the same one."""
        self._process = os.getpid()
        self._turn: Turn | None = None
        self._free_tasks: list[LentTask] = []
        """Those that no call uses. Changed with the turn."""
        self._lent_tasks = 0
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._closing: trio.Event | None = None
        self._opened: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self.thread: threading.Thread = threading.Thread(target=self._main, name=name, daemon=True)
        """The run's thread."""

    # --- its life -----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start the run, and wait until the device is open. Raises the error of opening it."""
        self._check_place()
        _loops.add(self)
        has_begun = False
        try:
            has_begun = _interrupts.begin()
            _start(self.thread)
            raise_noted()
            self._opened.get()
            if self.face is None:
                self.thread.join()  # all that it has to do is done
        except BaseException:
            has_begun = _interrupts.begin() or has_begun  # an interrupt has ended it
            self._abandon()
            forget_noted()
            raise
        finally:
            _interrupts.end(has_begun)
        if self.face is None:
            raise known(self.failure, "it has ended without a device")

    def _main(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:
            self.failure = error
        finally:
            self.is_over = True
            _loops.discard(self)
            self._settle_all()
            self._opened.put(None)
            self._ended.set()

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._closing = trio.Event()
        self._turn = Turn(lambda: bool(self.calls))
        HELD.set(self._turn.held)
        if self._turn.is_taken:
            self._lend_one_more()
            for _ in range(2):  # it runs behind the first, and is free behind the second
                await trio.lowlevel.cancel_shielded_checkpoint()
        with self._scope:
            async with self._opening() as face:
                self.face = face
                self._opened.put(None)
                await self._closing.wait()

    def _settle_all(self) -> None:
        for call in list(self.calls):
            call.settle_over()

    def _settle_if_over(self) -> None:
        if self.is_over:  # it has ended meanwhile, and did not see the call
            self._settle_all()

    def begin_close(self) -> None:
        """Begin to close the device. In any thread, at any time; waits for nothing."""
        if not self.is_over and self._closing is not None:
            self.post(self._closing.set)

    @guarded
    def _abandon(self) -> None:
        """Close it, whether it is open yet or not, and wait for its end."""
        if self.thread.ident is None:
            return  # the thread could not be started
        while self._token is None and not self._ended.wait(0.001):
            pass  # the run begins next
        self.begin_close()
        if self.face is None:
            self.post(self._scope.cancel)
        self._ended.wait()
        self.thread.join()

    @guarded
    def _end(self, seconds: float | None) -> None:
        """Begin to close, and wait for the end."""
        self.begin_close()
        if self._ended.wait(seconds):
            self.thread.join(seconds)

    def close(self, seconds: float | None = None) -> None:
        """Close the device, and wait until its worker is gone; at most `seconds`, if they are given.

        Raises `DeviceFailed` if the supervision has given the device up, once.
        """
        if os.getpid() != self._process:
            raise self.error()
        self._check_place()
        has_begun = False
        try:
            has_begun = _interrupts.begin()
            self._end(seconds)
        finally:
            _interrupts.end(has_begun)
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def forget_in_child(self) -> None:
        """End it in a forked child: the thread is the parent's. Every call gets the error of the device there."""
        self.is_over = True
        self.calls.clear()
        self.making = threading.RLock()  # a thread that is not here may have held the other

    # --- calls --------------------------------------------------------------------------------------------------------

    def error(self) -> BaseException:
        """Return the error of a call that comes too late."""
        if os.getpid() != self._process:
            return DeviceFailed(
                "this process was forked from the one that opened the device",
                advice="open the device in the child, or start children with the spawn method",
            )
        ended = _end_of(self.face)
        if ended is not None:
            return fresh(ended)
        if isinstance(self.failure, DeviceError):
            return fresh(self.failure)
        if self.failure is not None:
            error = AtomrInternalError("the run of the device has ended with an error")
            error.__cause__ = self.failure
            return error
        return DeviceClosed(_CLOSED)

    def _check_place(self) -> None:
        """Raise `OutsideRun` where a blocking call could never end: in the run itself, and in a task of trio."""
        is_own = self._turn is not None and self._turn.held()
        if not is_own and not in_trio_task():
            return
        raise OutsideRun(
            "a blocking call came from inside of the run that it would wait for"
            if is_own
            else "a blocking call came from a task of trio, which it would block with all other tasks",
            caller="the device's own run" if is_own else "another trio run",
            thread=threading.current_thread().name,
            home=self.thread.name,
            advice=_USE_THE_AWAITED if is_own else _OPEN_ONE,
        )

    @guarded
    def post(self, function: Callable[[], object]) -> bool:
        """Have the run's thread call a function soon. Returns false if the run has ended."""
        try:
            known(self._token, "the run has begun").run_sync_soon(function)
        except trio.RunFinishedError:
            return False
        return True

    def wait(
        self, function: Callable[..., Awaitable[Any]], arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Any:
        """Await a function in the run, and return its result.

        Raises what it raises; `OutsideRun` in a task of trio; the error of the device's end, once the run has ended.
        """
        self._check_place()
        box: Box = queue.SimpleQueue()
        call = Call(self, function, arguments, keywords, box.put)
        return self._waited([(call, box)], self.begin, call)

    def wait_asking(self, function: Callable[[Ask], Awaitable[Any]]) -> Any:
        """Await a function in the run, which may have this thread call functions meanwhile. Raises as `wait` does."""
        self._check_place()
        box: Box = queue.SimpleQueue()
        calls: list[Call] = []

        async def asking() -> Any:
            return await function(calls[0].ask)

        calls.append(Call(self, asking, (), {}, box.put))
        return self._waited([(calls[0], box)], self.begin, calls[0])

    def wait_here(
        self, verb: Callable[..., Awaitable[Any]], arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Any:
        """Await a verb of the library: it begins in this thread, with the turn of the run. Raises as `wait` does."""
        turn = self._turn
        if turn is None or not turn.is_taken or self.is_over or turn.held() or is_in_task():
            return self.wait(verb, arguments, keywords)
        made: list[tuple[Call, Box]] = []
        return self._waited(made, self._begin_here, turn, made, verb, arguments, keywords)

    def _waited(self, made: list[tuple[Call, Box]], begin: Callable[..., Any], *arguments: Any) -> Any:
        """Begin a call, and return its result. If `made` has it then, wait for its end first."""
        has_begun = False
        try:
            has_begun = _interrupts.begin()
            result = begin(*arguments)
            if not made:
                return result
            raise_noted()
            while (job := made[0][1].get()) is not None:
                job()
        except BaseException:
            if made:
                has_begun = _interrupts.begin() or has_begun  # an interrupt has ended it
                _settled(*made[0], self.post)
                forget_noted()
            raise
        finally:
            _interrupts.end(has_begun)
        end = known(made[0][0].outcome, "its end was told")
        try:
            return end.unwrap()
        finally:
            del end, made  # or the traceback of an error would hold what it holds

    @guarded
    def _begin_here(
        self,
        turn: Turn,
        made: list[tuple[Call, Box]],
        verb: Callable[..., Awaitable[Any]],
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
    ) -> Any:
        """Return the result of a verb, or put the call that it goes on as into `made`."""

        def make() -> Call:
            box: Box = queue.SimpleQueue()
            call = Call(self, verb, arguments, keywords, box.put)
            self.calls.add(call)
            made.append((call, box))
            return call

        if _interrupts.may_be_cut_off():
            self._hand_over(make())
            return None
        return turn.run(self._attempt, (turn, make, verb, arguments, keywords), {})

    def _attempt(
        self,
        turn: Turn,
        make: Callable[[], Call],
        verb: Callable[..., Awaitable[Any]],
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
    ) -> Any:
        """Begin a verb in this thread, which has the turn."""
        if turn.is_over:
            raise self.error()
        if not self._free_tasks:
            make().begin()
            self._lend_one_more()
        else:
            awaited = verb(*arguments, **keywords)
            coroutine = awaited if type(awaited) is CoroutineType else _coroutine(awaited)
            task = self._free_tasks.pop()
            result = task.attempt(coroutine, turn.is_wanted, make)
            if type(result) is not Call:
                return result
            if not self._free_tasks:
                self._lend_one_more()
        turn.hurry()
        turn.wake()
        return None

    def _lend_one_more(self) -> None:
        """Have one more task that can be lent, if there are not too many. Called with the turn."""
        if self._lent_tasks < MOST:
            with contextlib.suppress(RuntimeError):  # the run is about to end
                trio.lowlevel.spawn_system_task(LentTask(self._free_tasks).serve)
                self._lent_tasks += 1

    @guarded
    def begin(self, call: Call) -> None:
        """Hand a call to the run. It is settled in any case."""
        self.calls.add(call)
        self._hand_over(call)

    def _hand_over(self, call: Call) -> None:
        if self._turn is not None:
            self._turn.hurry()
        if self.is_over or not self.post(call.begin):
            call.settle_over()
        else:
            self._settle_if_over()

    def at_once(self, verb: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Call a verb without await: in the caller's thread, with the turn of the run. Raises as `wait` does."""
        if self.is_over:
            return verb(*arguments, **keywords)  # it raises the error of the end, if it uses the device
        turn = self._turn
        assert turn is not None  # the device is open
        if turn.held():
            return verb(*arguments, **keywords)
        if not turn.is_taken:
            return self.wait(_awaited(verb), arguments, keywords)
        if is_in_task():
            self._check_place()
        has_begun = False
        try:
            has_begun = _interrupts.begin()
            return turn.run(verb, arguments, keywords)
        finally:
            _interrupts.end(has_begun)


@guarded
def _settled(call: Call, box: Box, post: Callable[..., bool]) -> None:
    """Cancel a call, and wait for its end, whatever interrupts this."""
    is_told = False
    while call.outcome is None:
        with contextlib.suppress(KeyboardInterrupt, queue.Empty):
            if not is_told:
                post(call.cancel)  # if the run has ended, that settles the call
                is_told = True
            box.get(timeout=_LOOK_AGAIN)


@guarded
def _start(thread: threading.Thread) -> None:
    thread.start()


async def _coroutine(awaited: Awaitable[Any]) -> Any:
    return await awaited


def _awaited(verb: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    async def call(*arguments: Any, **keywords: Any) -> Any:
        return verb(*arguments, **keywords)

    return call


def _end_of(face: Any) -> DeviceError | None:
    """Return the error of a device's end, or that of the first one of a group; None while one takes requests."""
    if face is None:
        return None
    cores = [each._core for each in (face if hasattr(face, "alive") else [face])]
    ends = [core.ended for core in cores if core.ended is not None]
    return ends[0] if len(ends) == len(cores) else None


# --- the end of the process -------------------------------------------------------------------------------------------

_loops: Final[Living[Loop]] = Living()
"""The loops of this process that have not ended."""


def _close_all() -> None:
    """Close every device at the exit of the interpreter."""
    for loop in _loops:
        if not loop.is_over:
            loop.begin_close()
    for loop in _loops:
        if not loop.is_over:
            with contextlib.suppress(Exception):  # the log has it, and nobody is left to handle it
                loop.close(SECONDS_AT_EXIT)


def _forget_in_child() -> None:
    for loop in _loops:
        loop.forget_in_child()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):  # not on every system that can import this package
    os.register_at_fork(after_in_child=_forget_in_child)
