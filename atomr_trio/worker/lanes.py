"""Lanes: the order in which a worker runs its commands, and the ticket that ends each of them.

A lane is one CUDA stream with a counter in the timeline page. The loop thread runs a command at once when it only
enqueues, the lane has nothing waiting and not too much unfinished, and every ticket it waits for is already submitted.
Otherwise the command joins the lane's queue, which a thread of the lane serves in order. Waiting for another lane is an
event recorded on that lane's stream at that moment: it covers everything submitted there, the awaited ticket included.
"""

from __future__ import annotations

import collections
import itertools
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref
from typing import Any, NoReturn, Protocol

from .channel import TimelinePage, clip
from .protocol import (
    DRIVER_LIMIT,
    ENGINE_BUG,
    INLINE_LIMIT,
    LANE_NAMES,
    SLOTS_PER_LANE,
    Mode,
    Verb,
    VerbTable,
    counter_word,
)
from .status import StatusClass, classify

_CU_STREAM_NON_BLOCKING = 1
_POLL_SECONDS = 200e-6
_ITEMS_PER_MESSAGE = 50
_CU_EVENT_DISABLE_TIMING = 2


class WorkerServices(Protocol):
    """What an engine may ask of the worker it runs in."""

    device: int
    durable: bool
    prints: bool
    poisoned: bool
    staging_address: int
    cuda_error: type[Any]

    def bind_thread(self) -> None:
        """Make the context current in the calling thread."""

    def post(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a message to the user's process."""

    def synchronize(self) -> None:
        """Wait until every stream is idle."""

    def lost(self, error: Any, operation: str) -> None:
        """The context is gone: say so once, run nothing more."""

    def give_up(self, bug: BaseException) -> NoReturn:
        """End the process: what happened leaves nothing to go on with."""


class Engine(Protocol):
    """One library's engine: its verbs and the calls behind them."""

    @property
    def table(self) -> VerbTable:
        """Its verbs."""

    @property
    def calls(self) -> Mapping[int, Callable[[Command, Lane], Any]]:
        """What runs each verb, by the verb's number."""

    def close(self) -> None:
        """Destroy what the engine holds; only on a clean close."""


class Command:
    """One record, taken apart."""

    __slots__ = ("call", "descriptors", "payload", "ticket", "verb", "waits")

    def __init__(
        self,
        verb: Verb,
        call: Callable[[Command, Lane], Any],
        ticket: int,
        waits: list[tuple[int, int, bool]],
        payload: bytes,
        descriptors: list[int],
    ) -> None:
        self.verb: Verb = verb
        self.call: Callable[[Command, Lane], Any] = call
        self.ticket: int = ticket
        self.waits: list[tuple[int, int, bool]] = waits
        self.payload: bytes = payload
        self.descriptors: list[int] = descriptors

    @property
    def operation(self) -> str:
        """The verb's full name, for errors."""
        return f"{self.verb.engine}.{self.verb.name}"


class RequiredCommandFailed(Exception):
    """A command that this one builds on (a chunk, a module) has failed; it fails with the same words."""

    def __init__(self, failure: dict[str, Any]) -> None:
        self.failure = failure


class Lane:
    """One stream, its counter, and the queue of what could not run at once."""

    def __init__(self, index: int, page: TimelinePage, page_address: int, services: WorkerServices) -> None:
        from atomr_cuda import driver

        self.index = index
        self.submitted: int = 0
        self.failures: dict[int, dict[str, Any]] = {}
        self._driver = driver
        self._page = page
        self._services = services
        self._counter_address = page_address + counter_word(index) * 8
        self._peers: Sequence[Lane] = ()
        self._pending = 0
        self._queue: collections.deque[Command | None] = collections.deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        stream = driver.CUstream()
        driver.cuStreamCreate(byref(stream), _CU_STREAM_NON_BLOCKING)
        self.stream = stream
        event = driver.CUevent()
        driver.cuEventCreate(byref(event), _CU_EVENT_DISABLE_TIMING)
        self._event = event

    def connect(self, lanes: Sequence[Lane]) -> None:
        """Make the other lanes known, so that commands can wait for them."""
        self._peers = lanes

    @property
    def finished(self) -> int:
        """The highest ticket that the GPU has reached."""
        return self._page.finished(self.index)

    @property
    def busy(self) -> bool:
        """Whether a command is waiting or running."""
        return self._pending > 0 or self.submitted > self.finished

    def accept(self, command: Command) -> None:
        """Take a command in submission order; called by the loop thread alone."""
        at_once = (
            command.verb.mode is Mode.ENQUEUES
            and self._pending == 0
            and command.ticket - self.finished <= INLINE_LIMIT
            and all(self._peers[lane].submitted >= ticket for lane, ticket, _ in command.waits)
        )
        if at_once:
            self._perform(command)
            return
        with self._changed:
            self._pending += 1
            self._queue.append(command)
            if self._thread is None:
                name = f"lane-{LANE_NAMES[self.index] if self.index < len(LANE_NAMES) else self.index}"
                self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait_submitted(self, ticket: int) -> None:
        """Block until every call of the commands up to `ticket` has been made."""
        with self._changed:
            while self.submitted < ticket:
                self._changed.wait()

    def _serve(self) -> None:
        self._services.bind_thread()
        while True:
            with self._changed:
                while not self._queue:
                    self._changed.wait()
                command = self._queue.popleft()
            if command is None:
                return
            for lane, ticket, _ in command.waits:
                if lane != self.index:
                    self._peers[lane].wait_submitted(ticket)
            while command.ticket - self.finished > DRIVER_LIMIT:
                time.sleep(_POLL_SECONDS)
            self._perform(command)
            with self._changed:
                self._pending -= 1

    def _perform(self, command: Command) -> None:
        """Order the command after what it waits for, make its calls, and let the GPU write its ticket."""
        if self._services.poisoned:
            return
        try:
            self._order_after(command)
            result = command.call(command, self)
            if result is not None:
                self._post_result(command, result)
        except self._services.cuda_error as error:
            if classify(error.status) in (StatusClass.POISONS, StatusClass.GONE):
                self._services.lost(error, command.operation)
                return
            self._fail(command, error.status, error.name, error.text, error.library)
        except RequiredCommandFailed as failed:
            failure = failed.failure
            self._fail(command, failure["status"], failure["name"], failure["text"], failure["library"])
        except MemoryError as bug:
            self._services.give_up(bug)
        except Exception as bug:
            traceback.print_exc(file=sys.stderr)
            self._fail(command, ENGINE_BUG, type(bug).__name__, traceback.format_exc(), command.verb.engine)
        self._sign(command)

    def _post_result(self, command: Command, result: dict[str, Any]) -> None:
        """Send what a command returns, in parts that each fit into a message."""
        items = iter(result.items())
        while part := dict(itertools.islice(items, _ITEMS_PER_MESSAGE)):
            self._services.post({"kind": "result", "lane": self.index, "ticket": command.ticket, "value": part})

    def _order_after(self, command: Command) -> None:
        for lane, ticket, required in command.waits:
            peer = self._peers[lane]
            if lane != self.index and peer.finished < ticket:
                self._driver.cuEventRecord(self._event, peer.stream)
                self._driver.cuStreamWaitEvent(self.stream, self._event, 0)
            if required and ticket in peer.failures:
                raise RequiredCommandFailed(peer.failures[ticket])

    def _fail(self, command: Command, status: int, name: str, text: str, library: str) -> None:
        """Only this command failed: its status goes into its slot and its words by message, both before its ticket."""
        failure = {"status": status, "name": name, "text": clip(text), "library": library}
        self.failures[command.ticket] = failure
        while next(iter(self.failures)) < command.ticket - SLOTS_PER_LANE:
            del self.failures[next(iter(self.failures))]  # nobody can require that one any more
        self._page.set_status(self.index, command.ticket, status)
        self._services.post({"kind": "error", "lane": self.index, "ticket": command.ticket, **failure})

    def _sign(self, command: Command) -> None:
        try:
            self._driver.cuStreamWriteValue64(self.stream, self._counter_address, command.ticket, 0)
        except self._services.cuda_error as error:
            self._services.lost(error, command.operation)
            return
        with self._changed:
            self.submitted = command.ticket
            self._changed.notify_all()

    def finish(self) -> None:
        """Make the calls of what is still queued, and end the lane's thread."""
        if self._thread is not None:
            with self._changed:
                self._queue.append(None)
                self._changed.notify_all()
            self._thread.join()

    def close(self) -> None:
        """Give the stream back; only after `finish`, when nothing is running."""
        self._driver.cuStreamDestroy(self.stream)
        self._driver.cuEventDestroy(self._event)
