"""Lanes: the order in which a worker runs its commands, and the ticket that ends each of them.

A lane is one CUDA stream with a counter in the timeline page. The loop thread runs a command at once when it only
enqueues, the lane has nothing waiting and not too much unfinished, and every ticket it waits for is already submitted.
Otherwise the command joins the lane's queue, which a thread of the lane serves in order; but where nothing is missing
but room, and the call is ready, the loop thread waits for that (``full_lane.py``). Waiting for another lane is an
event on that lane's stream, recorded there once for all who wait for the same ticket or an earlier one.
A command names the lanes that it waits for by themselves, not by number: one that is closed meanwhile, and whose number
may be another's by then, is still there for it.

Others rely on the waits of a command, whether it succeeds or not: its ticket tells them that those are over as well. So
where the driver refuses such an event, or the lane has no stream, the lane's thread waits until the GPU is there.

The driver has room for about a thousand unfinished entries of a stream. The call that finds none blocks, and with it
every other call that names the stream, a query as well. So a command waits until there is room for its entries, of
which it names the number if that is not one. How many a library's call makes is not known; while one is under way, no
other thread of the worker enters the stream unless it may block as well.

Having the GPU write a ticket costs as much as a third of a launch. A command that came unsigned therefore shares the
ticket of one that follows: of the next signed one, or of the last one of its group, which is full after `GROUP_LIMIT`,
old after `GROUP_SECONDS` unless the GPU has enough before it, and complete when nothing else has come for
`IDLE_SECONDS` (``main.py``). The lane's thread completes a group before anything that may take long: nobody else would
meanwhile.
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
from typing import Any, NamedTuple, NoReturn, Protocol, runtime_checkable

from atomr_cuda.constants.driver import CU_EVENT_DISABLE_TIMING, CU_STREAM_NON_BLOCKING, CUDA_ERROR_OPERATING_SYSTEM

from ..._wire.channel import TimelinePage, check_all_came, clip
from ..._wire.limits import no_descriptor_left, shortage
from ..._wire.protocol import (
    DRIVER_LIMIT,
    ENGINE_BUG,
    GROUP_LIMIT,
    HOST_SHORTAGE,
    INLINE_LIMIT,
    LANE_NAMES,
    LIBRARY_MISSING,
    STATUSES_PER_LANE,
    Mode,
    Verb,
    VerbTable,
    counter_word,
    failures_word,
)
from ..._wire.ring import fence, group_index
from ..._wire.status import StatusClass, classify
from .capture_turns import CaptureTurns
from .shared_words import (
    ACCEPTED,
    COUNTED,
    COUNTED_ENTRIES,
    LANE_WORDS,
    NOTED,
    NOTED_ENTRIES,
    NOTES,
    NOTES_ADDRESS,
    PENDING,
    SIGNED,
    STREAM,
    SUBMITTED,
    SURPLUS,
    UNSIGNED_ENTRIES,
    WAITERS,
    Arguments,
    Words,
)
from .workspaces import Workspaces

_POLL_SECONDS = 200e-6
_ITEMS_PER_MESSAGE = 50
_FATAL = (StatusClass.POISONS, StatusClass.GONE)
GROUP_ENTRIES = 32
"""With so many entries of the stream's queue a group is full. Room is seen to be free only at the end of a group: the
GPU would have nothing to do when it waits for one that takes all the room that there is."""
_LAUNCHES = "launches"
GROUP_SECONDS = 1e-3
"""After this a group is signed, however small it is: long enough for `GROUP_LIMIT` products of matrices."""


RecordWords = tuple[int, ...]
"""The words of a ready record (``_wire/ready.py``)."""


class NativeLaunch(NamedTuple):
    """A launch for native code: the arguments of ``cuLaunchKernelEx``, apart from the address of the parameters."""

    config: int
    function: int
    parameter_bytes: int
    keep: object
    """The owner of the memory at these addresses."""


class Target(NamedTuple):
    """A place for a word of a record."""

    word: int
    """The number of the word. One may have several places."""
    address: int
    """The address of the place: that of an argument, or of a number to which one points."""
    base: int = 0
    """A number that is added to the word."""
    most: int = (1 << 64) - 1
    """The largest word that native code takes."""


class Following(NamedTuple):
    """A function that native code calls behind the others of a call, if none of those was refused."""

    function: int
    arguments: Arguments
    refused: Callable[[int], Exception]
    """Called if it is refused: it ends what those before it have begun, and returns the error for the status."""
    guard: int = 0
    expected: int = 0
    """As in `NativeCall`."""


class NativeCall(NamedTuple):
    """A call of a library for native code. A function takes the first of its arguments of each kind: integers and
    addresses, and floating-point numbers."""

    function: int
    arguments: Arguments
    targets: Sequence[Target]
    """The places for the words of a record."""
    guard: int = 0
    """The address of a word with a setting; 0 if there is none."""
    expected: int = 0
    """Native code makes the call only while the setting is this."""
    then: Sequence[Following] = ()
    """The functions that follow."""
    keep: object = None
    """The owner of the memory at these addresses."""
    entries: int = 0
    """The entries of the stream's queue that native code notes, as `Lane.weigh` does."""
    returned: int | None = None
    """The number of the word that the first function returns unless it is refused; None if it returns 0."""


class Ready(NamedTuple):
    """A call that an engine has made ready."""

    call: Callable[[Any], int]
    """Makes the call with the words of its record, and returns the status. A call without words ignores its argument.
    """
    error: Callable[[int], Exception]
    """Returns the error for a status."""
    alone: bool = False
    """True if `call` notes what it puts into the stream by `Lane.weigh`, so that the lane must know its ticket."""
    native: Callable[[], NativeCall | None] | None = None
    """Returns the same for native code, None if that cannot make the call."""
    again: bool = False
    """True if a call that is refused to native code is made again by `call`, which may find another way."""
    bounded: bool = False
    """True if native code may make it too although it is made alone: it notes as many entries, or the user's process
    sends only so many that the stream has room for them without a note."""


class WorkerServices(Protocol):
    """The services of a worker for its engines."""

    device: int
    durable: bool
    rehearses: bool
    """True for a standby that has not been told to serve."""
    prints: bool
    poisoned: bool
    staging_address: int
    user_process: int
    """The number of the user's process."""
    workspaces: Workspaces
    cuda_error: type[Any]
    library_missing: type[Any]
    capture_turns: CaptureTurns
    """Whose turn it is: captures, or calls that may synchronise the context."""

    @property
    def engines(self) -> Mapping[int, Engine]:
        """All engines, by their numbers, once they are made."""

    def bind_thread(self) -> None:
        """Make the context current in the calling thread."""

    def post(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a message to the user's process."""

    def synchronize(self) -> None:
        """Wait until every stream is idle."""

    def give_back(self, calls: Sequence[Callable[[], object]]) -> None:
        """Make calls that give something back, in a thread: the driver may let them wait for all that runs."""

    def wait_given_back(self) -> bool:
        """Wait until those calls were made. Returns whether some may have been under way before."""

    def lost(self, error: Any, operation: str) -> None:
        """The context is gone: say so once, run nothing more."""

    def staged(self, place: int) -> int:
        """The address of a place in host memory, as a ``staging`` field of a record names it."""

    def forget_hot(self) -> None:
        """Some launches that were made ready for the ring are not valid any more."""

    def give_up(self, bug: BaseException) -> NoReturn:
        """End the process: what happened leaves nothing to go on with."""


class Engine(Protocol):
    """One library's engine: its verbs and the calls behind them."""

    @property
    def table(self) -> VerbTable:
        """Its verbs."""

    @property
    def calls(self) -> Mapping[int, Callable[[Command, Lane], Any]]:
        """The functions behind the verbs, by the verb's number."""

    def forget_lane(self, index: int) -> Sequence[Callable[[], object]]:
        """Let go of what was prepared for a lane that is closed; the calls that give it back to the driver.

        They are made elsewhere, each whether the others succeed or not: the driver may let them wait for all that runs.
        """

    def close(self) -> None:
        """Destroy what the engine holds; only on a clean close."""


@runtime_checkable
class RepeatingEngine(Engine, Protocol):
    """One whose calls can be made ready to be made again and again."""

    def hot_call(self, verb: int, payload: bytes, lane: Lane, places: Sequence[int] = ()) -> Ready | None:
        """A function that makes the call of a record and returns its status, and the exception for one.

        In `payload` there are zeros at `places`: the words there come with each call. None for what can only be made in
        the general way, now.
        """


@runtime_checkable
class CapturableEngine(Engine, Protocol):
    """One that makes ahead what its calls need, since a capture allows neither allocating nor waiting."""

    def prepare_capture(self, verb: int, payload: bytes, lane: Lane, allowed: int, *, launches: bool = True) -> None:
        """Make all that the call of a record needs on this lane, whose stream is not captured yet.

        All workspaces of the worker may take `allowed` bytes of device memory. What calls that were captured before use
        must stay in its place until `forget_lane`, if `launches` is true: their graphs are to be launched.
        """


@runtime_checkable
class PreparingEngine(Engine, Protocol):
    """One that makes ahead of time what its calls need on a lane, while the worker is a standby."""

    def prepare_ahead(self, verb: int, payload: bytes, lane: Lane, most: int) -> None:
        """Make what the call of a record needs, but no workspace of more than `most` bytes."""


@runtime_checkable
class QuestionedEngine(Engine, Protocol):
    """One that is asked about what belongs to no lane: by records without a ticket, which a standby takes too."""

    @property
    def control_table(self) -> VerbTable:
        """The verbs of those records."""

    @property
    def controls(self) -> Mapping[int, Callable[[bytes], None]]:
        """The functions behind them, by the verb's number. Each is given the payload, and must not block."""


Wait = tuple["Lane", int, bool]
"""A lane, a ticket of it, and whether the command that holds it must have succeeded."""


def _may_want_descriptors(error: Any) -> bool:
    """Return whether a library may have been refused a descriptor: it then reports no memory, or nothing specific."""
    no_memory = classify(error.status, error.library) is StatusClass.OUT_OF_MEMORY
    return no_memory or (error.library == "cuda" and error.status == CUDA_ERROR_OPERATING_SYSTEM)


class Command:
    """One record, taken apart."""

    __slots__ = ("call", "descriptors", "payload", "ticket", "unsigned", "verb", "waits")

    def __init__(
        self,
        verb: Verb,
        call: Callable[[Command, Lane], Any],
        ticket: int,
        waits: Sequence[Wait],
        payload: bytes,
        descriptors: list[int],
        *,
        unsigned: bool = False,
    ) -> None:
        self.verb: Verb = verb
        self.call: Callable[[Command, Lane], Any] = call
        self.ticket: int = ticket
        self.waits: Sequence[Wait] = waits
        self.payload: bytes = payload
        self.descriptors: list[int] = descriptors
        self.unsigned: bool = unsigned

    def take_descriptor(self) -> int:
        """The descriptor that has come with it. Raises `OSError` if this process had no room for it."""
        check_all_came(self.descriptors)
        return self.descriptors.pop()


class HotCall:
    """A launch made ready, or a library's call: what is the same in every record of it is not read again."""

    __slots__ = ("again", "call", "error", "joins", "lane", "native", "verb", "words")

    def __init__(
        self,
        verb: Verb,
        lane: Lane,
        call: Callable[[Any], int],
        error: Callable[[int], Exception],
        *,
        unsigned: bool,
        words: Callable[[memoryview, int], RecordWords] | None = None,
        native: Callable[[], NativeLaunch | NativeCall | None] | None = None,
        again: bool = False,
    ) -> None:
        self.verb: Verb = verb
        self.lane: Lane = lane
        self.joins: Lane | None = lane if unsigned else None
        """The lane, if others may come before it is signed."""
        self.call: Callable[[Any], int] = call
        """Launches with the parameter block at an address, or makes the call with its words; returns the status."""
        self.error: Callable[[int], Exception] = error
        self.words: Callable[[memoryview, int], RecordWords] | None = words
        """Reads the words at a place of the ring; None for a launch, and for a call without any."""
        self.native: Callable[[], NativeLaunch | NativeCall | None] | None = native
        """Returns the same for native code, None if that cannot make the call."""
        self.again: bool = again
        """True if a call that is refused to native code is made again by `call`."""


class _OrderRefused(Exception):
    """The driver does not let a stream wait for another one now."""


class CommandRefused(Exception):
    """A command fails alone, for a reason that is known; `failure` is what the user's process is told."""

    def __init__(
        self, status: int, name: str, text: str, library: str, kind: StatusClass = StatusClass.REQUEST
    ) -> None:
        super().__init__(text)
        self.failure: dict[str, Any] = {
            "status": status,
            "class": kind.value,
            "name": name,
            "text": clip(text),
            "library": library,
        }


class RequiredCommandFailed(CommandRefused):
    """A command that this one builds on (a chunk, a module) has failed; it fails with the same words."""

    def __init__(self, failure: dict[str, Any]) -> None:
        kind = StatusClass(failure["class"])
        super().__init__(failure["status"], failure["name"], failure["text"], failure["library"], kind)


class Lane:
    """One stream, its counter, and the queue of what could not run at once."""

    def __init__(
        self,
        index: int,
        page: TimelinePage,
        page_address: int,
        groups: memoryview | None,
        services: WorkerServices,
        priority: int = 0,
    ) -> None:
        from atomr_cuda import driver

        self.index: int = index
        self.shared: Words = Words(len(LANE_WORDS))
        """What the native loop reads and writes of it."""
        self._state = self.shared.view
        self._state[ACCEPTED] = self._state[SUBMITTED] = self._state[SIGNED] = page.finished(index)
        self.failures: dict[int, dict[str, Any]] = {}
        self._driver = driver
        self._write_value = driver.cuStreamWriteValue64.bind()
        self._page = page
        self._words = page.words
        self._counter = counter_word(index)
        self._counter_address = page_address + counter_word(index) * 8
        self._groups = groups
        self._services = services
        self._priority = priority
        self._queue: collections.deque[Command | None] = collections.deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self.calling: threading.Lock = threading.Lock()
        """Held during a call that may block because it makes a number of entries that nobody knows."""
        self._heavy: collections.deque[tuple[int, int]] = collections.deque()
        self._notes = Words(2 * NOTES)
        """The same of calls that native code has made."""
        self._state[NOTES_ADDRESS] = self._notes.address
        self._weighing = threading.Lock()
        self._marking = threading.Lock()
        self._marked = self.submitted
        """The last ticket that the lane's event covers."""
        self._repeats: int = 0
        self._group_began = 0.0
        self.room_until: int = 0
        self.stream: Any = None
        """None while there is none: it could not be made yet, or was given back."""
        self._event: Any = None
        self._part = 0
        """Which part of the command has failed last, if it is a sequence of several."""
        self._asking = 0
        """The number of threads that ask the driver about the stream."""
        self._asked = threading.Condition()

    def open(self) -> None:
        """Make its stream. Until that has succeeded each command tries it, and fails if it is refused."""
        driver = self._driver
        event, stream = driver.CUevent(), driver.CUstream()
        driver.cuEventCreate(byref(event), CU_EVENT_DISABLE_TIMING)
        try:
            driver.cuStreamCreateWithPriority(byref(stream), CU_STREAM_NON_BLOCKING, self._priority)
        except BaseException:
            driver.cuEventDestroy.status(event)
            raise
        self.stream, self._event = stream, event
        self._state[STREAM] = stream.value

    @property
    def accepted(self) -> int:
        """The ticket of the last command that came. The loop's thread alone writes it."""
        return self._state[ACCEPTED]

    @accepted.setter
    def accepted(self, ticket: int) -> None:
        self._state[ACCEPTED] = ticket

    @property
    def submitted(self) -> int:
        """The last ticket whose calls were made."""
        return self._state[SUBMITTED]

    @property
    def signed(self) -> int:
        """The last ticket that the GPU was told to write."""
        return self._state[SIGNED]

    @property
    def pending(self) -> int:
        """The number of commands in the queue and in the hands of its thread."""
        return self._state[PENDING]

    @property
    def finished(self) -> int:
        """The highest ticket that the GPU has reached."""
        return self._words[self._counter]

    @property
    def busy(self) -> bool:
        """True if a command is waiting or running."""
        state = self._state
        return state[PENDING] > 0 or state[SUBMITTED] > self._words[self._counter]

    def accept(self, command: Command) -> None:
        """Take a command in submission order; called by the loop thread alone."""
        self._check_next(command.ticket)
        self.accepted = command.ticket
        at_once = (
            command.verb.mode is Mode.ENQUEUES
            and self._takes(command.ticket)
            and all(lane.submitted >= ticket and not lane.calling.locked() for lane, ticket, _ in command.waits)
            and self.stream is not None
        )
        if not (at_once and self._perform(command, self._order_after)):
            self._queue_up(command)

    def _queue_up(self, command: Command) -> None:
        with self._changed:
            self._state[PENDING] += 1
            self._queue.append(command)
            started = self._thread is not None or self._starts_thread()
            self._changed.notify_all()
        if not started:
            self._serve_next()

    def _starts_thread(self) -> bool:
        """Start the lane's thread; false if the system has none left. The loop thread then does its work.

        It then waits for other lanes, and everything that it can wait for was accepted before.
        """
        name = f"lane-{LANE_NAMES[self.index] if self.index < len(LANE_NAMES) else self.index}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has none left; the next command asks again
            return False
        self._thread = thread
        return True

    @property
    def made_now(self) -> int:
        """The ticket of the command whose calls are being made by a function that was made ready."""
        return self._repeats or self.accepted + 1

    def repeat(self, ticket: int, hot: HotCall, words: RecordWords = ()) -> None:
        """Make a library's call that was made ready, as the command with this ticket, which was accepted before.

        Raises the error of a call that is refused.
        """
        self._repeats = ticket
        try:
            with self.calling:
                status = hot.call(words)
        finally:
            self._repeats = 0
        if status:
            raise hot.error(status)

    def takes_at_once(self, ticket: int) -> bool:
        """Return whether the loop thread may make the calls of the command with this ticket, which has no waits."""
        return ticket == self._state[ACCEPTED] + 1 and not self._services.poisoned and self._takes(ticket)

    def bound_of_group(self, ticket: int) -> int:
        """The last ticket that the loop thread may give out, from this one on, before it tells `made_hot`."""
        return min(max(ticket, self._state[SIGNED] + GROUP_LIMIT), self.room_until)

    def made_hot(self, ticket: int, *, signs: bool) -> None:
        """The loop thread has made launches up to this ticket, which wants to be signed at once, or can wait."""
        state = self._state
        state[ACCEPTED] = ticket
        if signs or ticket - state[SIGNED] >= GROUP_LIMIT or state[UNSIGNED_ENTRIES] >= GROUP_ENTRIES:
            self._sign(ticket, _LAUNCHES)
        self._tell_submitted(ticket)

    def ticket_refused_hot(self, ticket: int, status: int) -> None:
        """Native code has made a launch, but the driver has refused its ticket."""
        self._refused_ticket(ticket, status, _LAUNCHES)
        self._tell_submitted(ticket)

    def tell_waiting(self) -> None:
        """Wake the threads that wait for a ticket of the lane."""
        if self._state[WAITERS]:
            with self._changed:
                self._changed.notify_all()

    def _tell_submitted(self, ticket: int) -> None:
        self._state[SUBMITTED] = ticket
        self.tell_waiting()

    def failed_hot(self, verb: Verb, ticket: int, error: Exception) -> None:
        """One of those launches was refused."""
        self._failed(verb, ticket, error)

    def _takes(self, ticket: int) -> bool:
        """Return whether the loop thread may make the calls of this command: no queue, and room in the stream."""
        if self._state[PENDING]:
            return False
        self.room_until = self._room(INLINE_LIMIT)
        return ticket <= self.room_until

    def weigh(self, ticket: int, entries: int) -> None:
        """Note how many entries of the stream's queue the command with this ticket makes, the ticket apart."""
        if entries > 1:
            with self._weighing:
                self._heavy.append((ticket, entries - 1))
                self._state[SURPLUS] += entries - 1
                self._state[UNSIGNED_ENTRIES] += entries - 1

    def _room(self, limit: int) -> int:
        """The last ticket that the stream has room for: `limit` ordinary commands, each a launch and its ticket."""
        finished, state = self._words[self._counter], self._state
        if not self._heavy and state[NOTED] == state[COUNTED]:
            return finished + limit
        with self._weighing:
            while self._heavy and self._heavy[0][0] <= finished:
                state[SURPLUS] -= self._heavy.popleft()[1]
            notes, counted = self._notes.view, state[COUNTED]
            while counted < state[NOTED] and notes[at := 2 * (counted % NOTES)] <= finished:
                state[COUNTED_ENTRIES] += notes[at + 1]
                counted += 1
            state[COUNTED] = counted
            surplus = state[SURPLUS] + state[NOTED_ENTRIES] - state[COUNTED_ENTRIES]
            return finished + limit - surplus // 2

    def _check_next(self, ticket: int) -> None:
        """A record that went astray, or was written over, does not pass for another."""
        if ticket != self.accepted + 1:
            raise ValueError(f"lane {self.index} was given ticket {ticket} after {self.accepted}")

    def wait_submitted(self, ticket: int) -> None:
        """Block until every call of the commands up to `ticket` has been made."""
        with self._changed:
            self._state[WAITERS] += 1
            fence()  # the native loop does it the other way round: it stores the ticket, then looks for waiters
            while self.submitted < ticket:
                self._changed.wait()
            self._state[WAITERS] -= 1

    def _serve(self) -> None:
        """In a thread of its own. Were that to end alone, everything behind it would wait for ever."""
        try:
            self._services.bind_thread()
            while self._serve_next():
                pass
        except BaseException as bug:
            self._services.give_up(bug)

    def _serve_next(self) -> bool:
        """Run the next command of the queue, when there is one; false for the end of the queue."""
        with self._changed:
            while not self._queue:
                self._changed.wait()
            command = self._queue.popleft()
        if command is None:
            return False
        self._perform_in_turn(command)
        if not self._queue:
            self.sign()
        with self._changed:
            self._state[PENDING] -= 1
        return True

    def _perform_in_turn(self, command: Command) -> None:
        awaited = [(lane, ticket) for lane, ticket, _ in command.waits if lane.submitted < ticket]
        if awaited or command.verb.mode is Mode.BLOCKS:
            self.sign()
        for lane, ticket in awaited:
            lane.wait_submitted(ticket)
        while command.ticket > max(self._room(DRIVER_LIMIT), self.finished + 1):
            sign_for_room(self)
            time.sleep(_POLL_SECONDS)
        self._perform(command, self._order_after_in_turn)

    def _perform(self, command: Command, order_after: Callable[[Sequence[Wait]], None]) -> bool:
        """Order the command after what it waits for, make its calls, and let the GPU write its ticket.

        False if nothing was done, because the order cannot be made in this way.
        """
        if self._services.poisoned:
            return True
        try:
            if command.waits:
                order_after(command.waits)
                self.weigh(command.ticket, 1 + len(command.waits))
            if self.stream is None:
                self.open()
            result = command.call(command, self)
            if result is not None:
                self._post_result(command, result)
        except _OrderRefused:
            return False
        except Exception as error:
            if not self._failed(command.verb, command.ticket, error):
                return True
        self._made(command.verb, command.ticket, unsigned=command.unsigned)
        return True

    def _failed(self, verb: Verb, ticket: int, error: Exception) -> bool:
        """A call has failed: only this command, which is noted, or with it the context: then false."""
        self._part = getattr(error, "part", 0)
        if isinstance(error, self._services.cuda_error):
            if classify(error.status, error.library) in _FATAL:
                self._services.lost(error, verb.operation)
                return False
            short = no_descriptor_left() if _may_want_descriptors(error) else None
            text = f"{error.function}: {error.text}"
            if short is None:
                kind = classify(error.status, error.library)
                self._fail(ticket, error.status, error.name, text, error.library, kind)
            else:
                self._fail(ticket, HOST_SHORTAGE, error.name, f"{text}; {shortage(short)}", error.library)
        elif isinstance(error, CommandRefused):
            failure = error.failure
            kind = StatusClass(failure["class"])
            self._fail(ticket, failure["status"], failure["name"], failure["text"], failure["library"], kind)
        elif isinstance(error, self._services.library_missing):
            self._fail(ticket, LIBRARY_MISSING, type(error).__name__, str(error), error.library)
        elif isinstance(error, MemoryError):
            self._services.give_up(error)
        elif (words := shortage(error)) is not None:
            self._fail(ticket, HOST_SHORTAGE, type(error).__name__, words, verb.engine)
        else:
            traceback.print_exception(error, file=sys.stderr)
            text = "".join(traceback.format_exception(error))
            self._fail(ticket, ENGINE_BUG, type(error).__name__, text, verb.engine)
        return True

    def _post_result(self, command: Command, result: dict[str, Any]) -> None:
        """Send what a command returns, in parts that each fit into a message."""
        items = iter(result.items())
        while part := dict(itertools.islice(items, _ITEMS_PER_MESSAGE)):
            self._services.post({"kind": "result", "lane": self.index, "ticket": command.ticket, "value": part})

    def _order_after(self, waits: Sequence[Wait]) -> None:
        """Have the GPU wait. Raises `_OrderRefused`."""
        for lane, ticket, _ in waits:
            if lane is not self and lane.finished < ticket:
                try:
                    lane.hold(self.stream, ticket)
                except self._services.cuda_error as error:
                    if classify(error.status) in _FATAL:
                        raise
                    raise _OrderRefused from error
        for lane, ticket, required in waits:
            if required and ticket in lane.failures:
                raise RequiredCommandFailed(lane.failures[ticket])

    def hold(self, stream: Any, ticket: int) -> None:
        """Let another stream wait for a ticket of this lane, which was submitted. Raises what the driver does.

        The event is recorded anew only for a ticket that it does not cover: a mark is an entry of this lane's stream,
        and a thousand commands of other lanes may wait for one kernel. Who waits must do so before the event is
        recorded again: behind later commands, which may themselves wait for that stream, neither would ever go on.
        """
        with self._marking:
            if self._marked < ticket:
                covered = self.submitted
                self._driver.cuEventRecord(self._event, self.stream)
                self._marked = covered
                self.weigh(covered, 2)
            self._driver.cuStreamWaitEvent(stream, self._event, 0)

    def _order_after_in_turn(self, waits: Sequence[Wait]) -> None:
        """The same in the lane's thread, which can wait itself."""
        while True:
            try:
                if self.stream is not None or all(lane.finished >= ticket for lane, ticket, _ in waits):
                    self._order_after(waits)
                    return
            except _OrderRefused:
                pass
            if self._services.poisoned:
                return
            time.sleep(_POLL_SECONDS)

    def _fail(
        self,
        ticket: int,
        status: int,
        name: str,
        text: str,
        library: str,
        kind: StatusClass = StatusClass.REQUEST,
    ) -> None:
        """Only this command failed: its words go by message, its status into the page, both before its ticket."""
        failure = {"status": status, "class": kind.value, "name": name, "text": clip(text), "library": library}
        if self._part:
            failure["part"] = self._part
        self.failures[ticket] = failure
        while next(iter(self.failures)) < ticket - STATUSES_PER_LANE:
            del self.failures[next(iter(self.failures))]  # nobody can require that one any more
        self._services.post({"kind": "error", "lane": self.index, "ticket": ticket, **failure})
        self._page.set_status(self.index, ticket, status)
        self._words[failures_word(self.index)] += 1

    def _made(self, verb: Verb, ticket: int, *, unsigned: bool) -> None:
        """The calls of a command were made: sign it, or let it share the ticket of one that follows.

        Other lanes hear of it behind that: what they sign after it must not be seen before it.
        """
        shares = False
        if unsigned:
            now = time.perf_counter()
            if ticket == self.signed + 1:
                self._group_began = now
            # Nobody sees it earlier while the GPU has a whole group of signed commands before it.
            in_time = now - self._group_began < GROUP_SECONDS or self.signed - self.finished >= GROUP_LIMIT
            full = ticket - self.signed >= GROUP_LIMIT or self._state[UNSIGNED_ENTRIES] >= GROUP_ENTRIES
            shares = in_time and not full
        if not shares:
            self._sign(ticket, verb.operation)
        self._tell_submitted(ticket)

    def sign(self) -> None:
        """Sign what was submitted, if it is not; by the lane's thread while anything is pending, else by the loop's."""
        if self.submitted != self.signed and not self._services.poisoned:
            self._sign(self.submitted, "the end of a group")

    def sign_when_idle(self) -> None:
        """Sign what was submitted, unless the lane's own thread is going to."""
        if self.submitted != self.signed and not self.pending:
            self.sign()

    def _sign(self, ticket: int, operation: str) -> None:
        state = self._state
        if self._groups is not None:
            signed = state[SIGNED]
            self._groups[group_index(self.index, signed + 1)] = min(255, ticket - signed)
        state[SIGNED] = ticket
        state[UNSIGNED_ENTRIES] = 0
        if self.stream is None:
            self._words[self._counter] = ticket  # nothing of it has ever run: each command has failed
            return
        status = self._write_value(self.stream, self._counter_address, ticket, 0)
        if status:
            self._refused_ticket(ticket, status, operation)

    def _refused_ticket(self, ticket: int, status: int, operation: str) -> None:
        """Ask again unless the context is lost: without its ticket nothing of the lane ever ends."""
        if classify(status) not in _FATAL:
            status = self._write_value(self.stream, self._counter_address, ticket, 0)
        if status:
            function = self._driver.cuStreamWriteValue64
            self._services.lost(function.library.error(status, function.symbol), operation)

    def finish(self) -> None:
        """Make the calls of what is still queued, and end the lane's thread."""
        if self._thread is not None:
            with self._changed:
                self._queue.append(None)
                self._changed.notify_all()
            self._thread.join()
        self.sign()

    def ask(self, call: Callable[[Any], int]) -> int:
        """Call a function of the driver with the stream, from any thread; 0 if there is none, or no more."""
        with self._asked:
            stream = self.stream
            if stream is None:
                return 0
            self._asking += 1
        try:
            return call(stream)
        finally:
            with self._asked:
                self._asking -= 1
                self._asked.notify_all()

    def query(self, call: Callable[[Any], int]) -> int:
        """`ask`, unless a call is under way that may block: then 0. That call tells of a lost context itself."""
        if not self.calling.acquire(blocking=False):
            return 0
        try:
            return self.ask(call)
        finally:
            self.calling.release()

    def close(self) -> Sequence[Callable[[], object]]:
        """The calls that give the stream back; only after `finish`, when nothing is running."""
        with self._asked:
            stream, event, self.stream, self._event = self.stream, self._event, None, None
            self._state[STREAM] = 0
            self._asked.wait_for(lambda: not self._asking)
        if stream is None:
            return ()
        destroy_stream, destroy_event = self._driver.cuStreamDestroy, self._driver.cuEventDestroy
        return (lambda: destroy_stream(stream), lambda: destroy_event(event))


def sign_for_room(lane: Lane) -> None:
    """Sign what was submitted to a lane if nothing might ever be seen to finish otherwise.

    Each ticket is a pause between two kernels, so not at each turn of a wait.
    """
    if lane.signed <= lane.finished or lane.submitted - lane.signed >= GROUP_LIMIT:
        lane.sign()
