"""Calls of a library of C functions, by record: the common code of the engines of the mathematical libraries.

A record names a function and gives its arguments one by one, so there is no code for any single function here: its
declaration in the bindings has the types of its arguments. The sender has checked the record.
"""

from __future__ import annotations

import functools
import math
import struct
from ctypes import addressof, byref, c_int, create_string_buffer
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..._wire.records.calls import ANSWER_BYTES, HEAD, SIZE, STAGING_AT, WORD, CallTable, Option, Workspace
from ..._wire.records.memory import OFFSET_MASK
from ..._wire.status import StatusClass, classify
from . import workspaces
from .lanes import Following, NativeCall, Ready, Target
from .native_calls import NativeStep, Word, native_call
from .shared_words import Words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..._wire.records.sequences import Step
    from .lanes import Command, Lane, RecordWords, WorkerServices

    Made = Callable[[Sequence[int], int], None]
    """A step of a sequence, as a function of the words of an execution, and of its ticket."""


class PreparedStep(NamedTuple):
    """A step of a sequence, ready to be made."""

    make: Made
    refused: Callable[[int], Exception]
    """Returns the error for a status."""
    entries: int = 1
    """How many entries of the stream's queue it makes."""
    native: Callable[[], NativeCall | None] | None = None
    """Returns the same for native code after it was made once, whose words are those of the execution; None if that
    cannot make it."""


class Bound:
    """A function, ready to be called with the words of a record."""

    __slots__ = (
        "call",
        "entries",
        "function",
        "kinds",
        "numbers_on_host",
        "option",
        "query",
        "symbol",
        "words",
        "workspace",
    )

    def __init__(self, table: CallTable, name: str, bindings: Any) -> None:
        function = getattr(bindings, name)
        kinds = function.argtypes[1:]
        self.function: Any = function
        self.call: Callable[..., int] = function.bind()
        self.kinds: tuple[Any, ...] = tuple(kinds)
        """The types of its arguments behind the handle."""
        self.symbol: str = function.symbol
        self.entries: int = _ENTRIES_OF_A_LONG_CALL if any(part in name for part in _LONG_CALLS) else ENTRIES_OF_A_CALL
        self.words: struct.Struct = struct.Struct(f"<{len(kinds)}q")
        self.option: Option | None = table.options.get(name)
        self.workspace: Workspace | None = table.workspaces.get(name)
        self.query: Any = None if self.workspace is None else getattr(bindings, self.workspace.query)
        self.numbers_on_host: tuple[tuple[int, Any], ...] = tuple(
            (place, kind._type_) for place, kind in enumerate(kinds) if hasattr(kind, "contents")
        )
        """The words for counts that the function returns on the host, and that also follow from its other results.

        The word of the record is the number of such counts, if there is more than one.
        """

    @property
    def is_of_library(self) -> bool:
        """Tell whether it depends on how the handle is set."""
        return True

    @property
    def takes_words_alone(self) -> bool:
        """Tell whether the record's words are all of its arguments."""
        return self.option is None and self.workspace is None and not self.numbers_on_host


ENTRIES_OF_A_CALL: Final = 3
"""Entries of a stream's queue that a call is taken to make: a product in parts, their sum, and a clearing before."""
_ENTRIES_OF_A_LONG_CALL = 16
_LONG_CALLS = ("trsm", "trsv", "trmm", "syrk", "syr2k", "herk", "her2k", "symm", "hemm", "getr")
"""Functions of cuBLAS that take a matrix apart and work on its blocks one after the other."""

_SCALAR: Final = struct.Struct("<Q")
_Simple: Any = c_int.__base__
"""The base of the types of single numbers and pointers."""
_UNKNOWN: Final = (1 << 64) - 1
"""The word of a setting that is unknown."""
_NOT_MADE = -1
"""The status of a call that was not made."""


def made_ready(
    prepare: Callable[[], None],
    call: Callable[[RecordWords], int],
    error_of: Callable[[int], Exception],
    *,
    alone: bool = False,
) -> Ready:
    """A call for `RepeatingEngine`: `prepare` sets what other calls may have set otherwise meanwhile.

    `prepare` and `call` may raise.
    """
    failures: list[Exception] = []

    def again(words: RecordWords) -> int:
        try:
            prepare()
            return call(words)
        except Exception as error:
            failures.append(error)
            return _NOT_MADE

    def error_or_failure(status: int) -> Exception:
        return failures.pop() if failures else error_of(status)

    return Ready(again, error_or_failure, alone)


def no_status(status: int) -> Exception:
    """The error of a status of a call that has none: it raises its errors."""
    raise AssertionError(f"the call raises its errors, and returns no status {status}")


def converted(arguments: Sequence[Any], kinds: Sequence[Any]) -> list[Any]:
    """Return arguments with the numbers among them as objects of ctypes, which a call passes on twice as fast."""
    return [
        kind(argument) if type(argument) is int and issubclass(kind, _Simple) else argument
        for argument, kind in zip(arguments, kinds, strict=True)
    ]


class LaneHandle:
    """The objects of a library for one lane: its handle, whose stream is always the lane's, and the results."""

    __slots__ = (
        "answers",
        "captured_room",
        "flags",
        "flags_word",
        "host_room",
        "options",
        "room",
        "room_bytes",
        "settings",
        "value",
    )

    def __init__(self, value: Any, answers: int) -> None:
        self.value: Any = value
        self.answers: int = answers
        self.options: dict[str, Any] = {}
        self.settings: dict[str, int] = {}
        """The present settings of the options."""
        self.room: Any = None
        """The workspace on the device, which grows and is never given back before the lane is closed."""
        self.room_bytes: int = 0
        self.host_room: Any = None
        self.captured_room: Any = None
        """The library's own workspace for calls that are captured; None if none was captured."""
        self.flags: int | None = None
        """The present setting; None when it is unknown."""
        self.flags_word: Words = Words(1)
        """The same for native code."""
        self.flags_word.view[0] = _UNKNOWN


class Handles:
    """The functions that make, set and destroy a library's handles."""

    flags: int = -1
    """The flags of a call that `configure` looks at."""
    captured_room_bytes: int = 0
    """The size of the workspace that `lend` gives to a handle whose calls are captured."""

    def create(self, lane: Lane) -> Any:
        """A handle whose work goes to the lane's stream."""
        raise NotImplementedError

    def destroy(self, handle: Any) -> None:
        """Give it back."""
        raise NotImplementedError

    def configure(self, handle: Any, flags: int) -> None:
        """Set what a call asks for, for a library of which that can be asked."""

    def lend(self, handle: Any, address: int, size: int) -> None:
        """Give the library memory to work in, in place of what it would allocate during a call."""

    # For a library whose calls take objects of its own.

    def create_option(self, kind: str) -> Any:
        """An object of a kind that `CallTable.options` names."""
        raise KeyError(kind)

    def set_option(self, kind: str, option: Any, setting: int) -> None:
        """Set it as a call asks for; 0 says as the library has it."""
        raise KeyError(kind)

    def has_settings(self, kind: str) -> bool:
        """Return whether `set_option` does anything to such an object."""
        return True

    def destroy_option(self, kind: str, option: Any) -> None:
        """Give it back."""
        raise KeyError(kind)


class CallEngine:
    """Makes the calls of one library."""

    def __init__(self, services: WorkerServices, table: CallTable, bindings: Any, handles: Handles) -> None:
        from atomr_cuda import driver

        self.table = table
        self._driver = driver
        self._services = services
        self._bindings = bindings
        self._library: Any = bindings.library
        self._handles = handles
        self._bound: dict[int, Bound] = {}
        self._lanes: dict[int, LaneHandle] = {}
        self.calls: dict[int, Callable[[Command, Lane], Any]] = {
            table.call.number: self._call,
            table.first_call.number: self._call,
            table.open.number: self._open_ahead,
        }

    def _call(self, command: Command, lane: Lane) -> None:
        self._make(command.payload, command.ticket, lane)

    def _make(self, payload: bytes, ticket: int, lane: Lane) -> None:
        """Make the call that a record, or a part of one, describes."""
        number, flags, scalars, answers, answer_bytes, staging = HEAD.unpack_from(payload)
        bound = self._bound.get(number) or self._bind(number)
        handle = self._lanes.get(lane.index) or self._open(lane)
        words: list[Any] = list(bound.words.unpack_from(payload, HEAD.size))
        if scalars:
            area = create_string_buffer(payload[HEAD.size + bound.words.size :])
            _shift(words, scalars, addressof(area))
        if answers:
            _shift(words, answers, handle.answers)
        for place, number_type in bound.numbers_on_host:
            words[place] = (number_type * (words[place] or 1))()
        if bound.option is not None:
            place = bound.option.place
            words[place] = self._option(handle, bound.option.kind, words[place])
        if bound.workspace is not None:
            self._make_room(bound, bound.workspace, handle, words, lane)
        if bound.is_of_library and flags & self._handles.flags != handle.flags:
            self._set(handle, flags & self._handles.flags)
        lane.weigh(ticket, bound.entries)
        with lane.calling:
            status = bound.call(handle.value, *words)
        if status:
            raise refusal(self._driver, self._library, status, bound.symbol, lane)
        if answer_bytes:
            target = self._services.staged(staging)
            self._driver.cuMemcpyDtoHAsync(target, handle.answers, answer_bytes, lane.stream)

    def prepared(self, step: Step, lane: Lane, answers: int) -> PreparedStep:
        """Return the call of a sequence's step.

        Nothing of the payload is looked at again.

        What depends on the sizes alone is asked once: the library's workspace. The call writes what it answers behind
        the address `answers`, and whoever makes the sequence fetches it, and holds `Lane.calling`. Raises as the call
        does.
        """
        number, flags, scalars, marks, *_ = HEAD.unpack_from(step.payload)
        bound = self._bound.get(number) or self._bind(number)
        handle, is_of_library = self._lanes.get(lane.index) or self._open(lane), bound.is_of_library
        flags &= self._handles.flags
        words: list[Any] = list(bound.words.unpack_from(step.payload, HEAD.size))
        area = create_string_buffer(step.payload[HEAD.size + bound.words.size :])
        holes, slot = _holes_of(step, bound)
        _shift(words, scalars, addressof(area))
        _shift(words, marks, answers + slot)
        for place, number_type in bound.numbers_on_host:
            words[place] = (number_type * (words[place] or 1))()
        option, workspace = bound.option, bound.workspace
        setting = 0 if option is None else words[option.place]
        call = self.ready(bound, handle.value, words, [place for place, _, _ in holes])
        sizes: tuple[int, ...] = ()

        def make(given: Sequence[int], ticket: int, _keep: object = area) -> None:
            nonlocal sizes
            for place, word, more in holes:
                words[place] = given[word] + more
            if option is not None:
                words[option.place] = self._option(handle, option.kind, setting)
            if workspace is not None:
                sizes = sizes or self._room_of(bound, workspace, handle, words)
                self._provide(workspace, sizes, handle, words, lane)
            if is_of_library and flags != handle.flags:
                self._set(handle, flags)
            status = call()
            if status:
                raise refused(status)

        def refused(status: int) -> Exception:
            return self.refused(bound, status, lane)

        def native() -> NativeCall | None:
            if option is not None and self._handles.has_settings(option.kind):
                return None
            if workspace is not None:
                if not sizes:
                    return None
                self._provide(workspace, sizes, handle, words, lane)
            given = words.copy()
            if option is not None:
                given[option.place] = self._option(handle, option.kind, setting)
            for place, word, more in holes:
                given[place] = Word(word, more)
            call = self.native(bound, handle, given)
            if call is None or not is_of_library:
                return call
            flags_word = handle.flags_word
            return call._replace(guard=flags_word.address, expected=flags, keep=(call.keep, area, flags_word))

        return PreparedStep(make, refused, bound.entries, native)

    def native(self, bound: Bound, handle: LaneHandle, words: Sequence[Any]) -> NativeCall | None:
        """Return a call of a function for native code, with words of a record among its own; None if that cannot be."""
        return native_call(bound.function, (handle.value.value, *words), None, self._services.give_up)

    def refused(self, bound: Bound, status: int, lane: Lane) -> Exception:
        """Return the error of a step of a sequence."""
        return refusal(self._driver, self._library, status, bound.symbol, lane)

    def ready(self, bound: Bound, handle: Any, words: list[Any], changing: Sequence[int]) -> Callable[[], int]:
        """Return a call of a function with these words; those at the places `changing` are read each time."""
        function = bound.call
        return lambda: function(handle, *words)

    def answers_of(self, lane: Lane) -> int:
        """Return the address of the lane's memory for the results of calls."""
        return (self._lanes.get(lane.index) or self._open(lane)).answers

    def prepare_capture(self, verb: int, payload: bytes, lane: Lane, allowed: int, *, launches: bool = True) -> None:
        """Make the lane's handle and its workspace; see `CapturableEngine`."""
        number, _, _, answers, *_ = HEAD.unpack_from(payload)
        if answers and launches:
            raise ValueError(f"a call of {self.table.functions[number]} with an answer cannot be captured")
        bound = self._bound.get(number) or self._bind(number)
        self._prepare_handle(lane, allowed)
        if bound.workspace is not None and not launches:
            self._prepare_room(bound, bound.workspace, payload, lane)

    def prepare_ahead(self, verb: int, payload: bytes, lane: Lane, most: int) -> None:
        """Make what a later call of a lane needs: its handle, and a workspace of at most so many bytes."""
        if verb != self.table.call.number:
            return
        number, *_ = HEAD.unpack_from(payload)
        bound = self._bound.get(number) or self._bind(number)
        if lane.index not in self._lanes:
            self._open(lane)
        if bound.workspace is not None:
            self._prepare_room(bound, bound.workspace, payload, lane, most)

    def _prepare_room(
        self, bound: Bound, workspace: Workspace, payload: bytes, lane: Lane, most: float = math.inf
    ) -> None:
        """Make the workspace of one call, unless it is larger. Earlier calls of the lane may lose theirs."""
        _, _, scalars, answers, *_ = HEAD.unpack_from(payload)
        handle = self._lanes[lane.index]
        words: list[Any] = list(bound.words.unpack_from(payload, HEAD.size))
        area = create_string_buffer(payload[HEAD.size + bound.words.size :])
        _shift(words, scalars, addressof(area))
        _shift(words, answers, handle.answers)
        if bound.option is not None:
            words[bound.option.place] = self._option(handle, bound.option.kind, words[bound.option.place])
        sizes = self._room_of(bound, workspace, handle, words)
        if sizes[0] * workspace.unit <= most:
            self._provide(workspace, sizes, handle, words, lane)

    def _prepare_handle(self, lane: Lane, allowed: int) -> None:
        handle, size = self._lanes.get(lane.index), self._handles.captured_room_bytes
        if not size or (handle is not None and handle.captured_room is not None):
            if handle is None:
                self._open(lane)
            return
        user = f"{self.table.engine} in a graph"
        room = workspaces.allocate(self._services, self._driver, user, size, size, allowed)
        try:
            handle = handle or self._open(lane)
            self._handles.lend(handle.value, room.value, size)
        except BaseException:
            workspaces.release(self._services, self._driver, room, size)
            raise
        handle.captured_room = room

    def hot_call(self, verb: int, payload: bytes, lane: Lane, places: Sequence[int] = ()) -> Ready | None:
        """Return a call that differs from others in the words at `places`, ready to be made; see `RepeatingEngine`."""
        number, flags, scalars, answers, answer_bytes, _ = HEAD.unpack_from(payload)
        bound, handle = self._bound.get(number), self._lanes.get(lane.index)
        if bound is None or handle is None or not bound.takes_words_alone:
            return None
        flags &= self._handles.flags
        split = _split_places(places, scalars | answers, bound.words.size)
        if split is None or (answer_bytes and not split.staging):
            return None
        words = list(bound.words.unpack_from(payload, HEAD.size))
        area = create_string_buffer(payload[HEAD.size + bound.words.size :])
        _shift(words, scalars, addressof(area))
        _shift(words, answers, handle.answers)
        call = _with_words(functools.partial(bound.call, handle.value), converted(words, bound.kinds), area, split)
        if answer_bytes:
            call = self._then_fetch(call, handle.answers, answer_bytes, split.staging[0], lane)

        def prepare(_keep: object = area) -> None:  # what the addresses point to lives as long as this does
            if handle.flags != flags:
                self._set(handle, flags)
            if bound.entries > ENTRIES_OF_A_CALL:
                lane.weigh(lane.made_now, bound.entries)

        def error_of(status: int) -> Exception:
            return refusal(self._driver, self._library, status, bound.symbol, lane)

        def native() -> NativeCall | None:
            given = words.copy()
            for index, argument in split.arguments:
                given[argument] = Word(index)
            form = self.native(bound, handle, given)
            if form is None:
                return None
            form = form._replace(
                targets=[*form.targets, *(Target(index, addressof(area) + offset) for index, offset in split.scalars)],
                guard=handle.flags_word.address,
                expected=flags,
                keep=(form.keep, area, handle.flags_word),
                entries=bound.entries if alone else 0,
            )
            return self._fetching(form, handle.answers, answer_bytes, split.staging[0], lane) if answer_bytes else form

        alone = bound.entries > ENTRIES_OF_A_CALL
        return made_ready(prepare, call, error_of, alone=alone)._replace(native=native, bounded=True)

    def _then_fetch(
        self, call: Callable[[RecordWords], int], answers: int, size: int, place: int, lane: Lane
    ) -> Callable[[RecordWords], int]:
        """Return a function that copies the answer of a call to the host behind it, to the place that a word names."""
        function, staged = self._driver.cuMemcpyDtoHAsync, self._services.staged
        copy = function.bind()

        def call_and_fetch(words: RecordWords) -> int:
            target = staged(words[place])
            status = call(words)
            if not status and (failed := copy(target, answers, size, lane.stream)):
                raise function.library.error(failed, function.symbol)
            return status

        return call_and_fetch

    def _set(self, handle: LaneHandle, flags: int) -> None:
        handle.flags, handle.flags_word.view[0] = None, _UNKNOWN
        self._handles.configure(handle.value, flags)
        handle.flags = handle.flags_word.view[0] = flags

    def _fetching(self, form: NativeCall, answers: int, size: int, place: int, lane: Lane) -> NativeCall | None:
        """The same, with a copy of the answer to the host behind the call: to the staging area, as most answers are."""
        fetch = self.native_fetch(place, answers, size, lane)
        if fetch is None:
            return None
        call, refused = fetch
        return form._replace(
            targets=[*form.targets, *call.targets],
            then=[Following(call.function, call.arguments, refused)],
            keep=(form.keep, call.keep),
        )

    def native_fetch(self, word: int, answers: int, size: int, lane: Lane) -> NativeStep | None:
        """Return the copy of answers to the slot at the place that a word names, if that is in the staging area."""
        copy = self._driver.cuMemcpyDtoHAsync
        target = Word(word, self._services.staged(0), OFFSET_MASK)
        call = native_call(copy, (target, answers, size, lane.stream.value), None, self._services.give_up)
        return None if call is None else NativeStep(call, lambda status: copy.library.error(status, copy.symbol))

    def _bind(self, number: int) -> Bound:
        bound = self._bound[number] = Bound(self.table, self.table.functions[number], self._bindings)
        return bound

    def _option(self, handle: LaneHandle, kind: str, setting: int) -> Any:
        option = handle.options.get(kind)
        if option is None:
            option = handle.options[kind] = self._handles.create_option(kind)
        if setting != handle.settings.get(kind):
            handle.settings.pop(kind, None)
            self._handles.set_option(kind, option, setting)
            handle.settings[kind] = setting
        return option

    def _make_room(self, bound: Bound, workspace: Workspace, handle: LaneHandle, words: list[Any], lane: Lane) -> None:
        """Query the workspace that the call needs, provide it, and write it into the call's words."""
        self._provide(workspace, self._room_of(bound, workspace, handle, words), handle, words, lane)

    def _room_of(self, bound: Bound, workspace: Workspace, handle: LaneHandle, words: list[Any]) -> tuple[int, ...]:
        """Return the size of the workspace that the call needs: that on the device, and one on the host if any."""
        kinds = zip(workspace.takes, bound.query.argtypes[1:], strict=True)
        asked = [kind._type_() if place == SIZE else words[place] for place, kind in kinds]
        bound.query(handle.value, *asked)
        return tuple(asked[place].value for place, taken in enumerate(workspace.takes) if taken == SIZE)

    def _provide(
        self, workspace: Workspace, sizes: tuple[int, ...], handle: LaneHandle, words: list[Any], lane: Lane
    ) -> None:
        """Provide such a workspace, and write it into the call's words."""
        device, *host = sizes
        place = workspace.place
        words[place] = self._room(handle, device * workspace.unit, lane)
        if workspace.told:
            words[place + 1] = device
        if host:
            if handle.host_room is None or len(handle.host_room) < host[0]:
                self._services.forget_hot()  # as in `_room`
                self._driver.cuStreamSynchronize(lane.stream)
                handle.host_room = create_string_buffer(max(host[0], 1))
            words[place + 2], words[place + 3] = addressof(handle.host_room), host[0]

    def _room(self, handle: LaneHandle, size: int, lane: Lane) -> Any:
        if size > handle.room_bytes:
            self._services.forget_hot()  # native code knows the old one
            self._driver.cuStreamSynchronize(lane.stream)  # running work may still use it
            self._give_room_back(handle)
            room = self._driver.CUdeviceptr()
            self._driver.cuMemAlloc(byref(room), size)
            handle.room, handle.room_bytes = room, size
        return 0 if handle.room is None else handle.room.value

    def _give_room_back(self, handle: LaneHandle) -> None:
        if handle.room is not None:
            self._driver.cuMemFree(handle.room)
            handle.room, handle.room_bytes = None, 0

    def _give_captured_room_back(self, handle: LaneHandle) -> None:
        if handle.captured_room is not None:
            size = self._handles.captured_room_bytes
            workspaces.release(self._services, self._driver, handle.captured_room, size)
            handle.captured_room = None

    def _open_ahead(self, command: Command, lane: Lane) -> None:
        if lane.index not in self._lanes:
            self._open(lane)

    def _open(self, lane: Lane) -> LaneHandle:
        answers = self._driver.CUdeviceptr()
        self._driver.cuMemAlloc(byref(answers), ANSWER_BYTES)
        try:
            value = self._handles.create(lane)
        except BaseException:
            self._driver.cuMemFree.status(answers)
            raise
        handle = self._lanes[lane.index] = LaneHandle(value, answers.value)
        return handle

    def forget_lane(self, index: int) -> list[Callable[[], object]]:
        """Forget the objects of a lane that is closed, and return the calls that give them back."""
        handle = self._lanes.pop(index, None)
        if handle is None:
            return []
        options = handle.options.items()
        return [
            *(functools.partial(self._handles.destroy_option, kind, option) for kind, option in options),
            functools.partial(self._destroy, handle.value),
            functools.partial(self._give_room_back, handle),
            functools.partial(self._give_captured_room_back, handle),
            functools.partial(self._driver.cuMemFree, handle.answers),
        ]

    def _destroy(self, handle: Any) -> None:
        with self._services.capture_turns.synchronize():
            self._handles.destroy(handle)

    def close(self) -> None:
        """Give every handle back."""
        for index in list(self._lanes):
            for call in self.forget_lane(index):
                call()


def refusal(driver: Any, library: Any, status: int, symbol: str, lane: Lane) -> Exception:
    """Return the text of a status. If the library only reports a failure, the text is the driver's."""
    if classify(status, library.name) in (StatusClass.POISONS, StatusClass.UNCERTAIN):
        query = driver.cuStreamQuery
        driver_status = query.status(lane.stream)
        if driver_status and classify(driver_status) in (StatusClass.POISONS, StatusClass.GONE):
            fault: Exception = query.library.error(driver_status, symbol)
            return fault
    error: Exception = library.error(status, symbol)
    return error


def _holes_of(step: Step, bound: Bound) -> tuple[list[tuple[int, int, int]], int]:
    """Return the holes among the words of a call, by the places of these, and the offset of its answer in the slot."""
    holes, slot = [], 0
    for hole in step.holes:
        place, rest = divmod(hole.offset - HEAD.size, WORD)
        if hole.offset == STAGING_AT:
            slot = hole.more
        elif rest or not 0 <= place < bound.words.size // WORD:
            raise ValueError(f"byte {hole.offset} of a call of {bound.symbol} is no word")
        else:
            holes.append((place, hole.word, hole.more))
    return holes, slot


class _Split(NamedTuple):
    """The words of a ready record, by their indices, and what each of them is."""

    arguments: tuple[tuple[int, int], ...]
    """Those that are arguments of the function, with the indices of these."""
    scalars: tuple[tuple[int, int], ...]
    """Those that are numbers which the function reads from the host, with their offsets among these."""
    staging: tuple[int, ...]
    """The one that is the place of the answer."""


def _split_places(places: Sequence[int], marked: int, words: int) -> _Split | None:
    """Return what the words at these places of a record are; None if one of them is anything else.

    `marked` are the arguments that are offsets, which no word can change; `words` are the bytes of all arguments.
    """
    arguments: list[tuple[int, int]] = []
    scalars: list[tuple[int, int]] = []
    staging: list[int] = []
    for index, place in enumerate(places):
        argument, offset = divmod(place - HEAD.size, WORD)
        if place == STAGING_AT:
            staging.append(index)
        elif place >= HEAD.size + words:
            scalars.append((index, place - HEAD.size - words))
        elif place < HEAD.size or offset or marked >> argument & 1:
            return None
        else:
            arguments.append((index, argument))
    return _Split(tuple(arguments), tuple(scalars), tuple(staging))


def _with_words(
    function: Callable[..., int], given: list[Any], area: Any, split: _Split
) -> Callable[[RecordWords], int]:
    """Return a function that calls another with `given` arguments, of which some are the words that come with a call.

    Its lane makes one call at a time, so the arguments and `area`, the scalars, are written where they are.
    """
    if not split.arguments and not split.scalars:
        constant = functools.partial(function, *given)
        return lambda _words: constant()
    if len(split.arguments) == 1 and not split.scalars:
        ((index, argument),) = split.arguments

        def call_with_one(words: RecordWords) -> int:
            given[argument] = words[index]
            return function(*given)

        return call_with_one

    def call_with_words(words: RecordWords) -> int:
        for index, argument in split.arguments:
            given[argument] = words[index]
        for index, offset in split.scalars:
            _SCALAR.pack_into(area, offset, words[index])
        return function(*given)

    return call_with_words


def _shift(words: list[Any], marks: int, base: int) -> None:
    """Add `base` to the words that are marked."""
    index = 0
    while marks:
        if marks & 1:
            words[index] += base
        marks >>= 1
        index += 1
