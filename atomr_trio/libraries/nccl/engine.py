"""The engine of NCCL: communicators by their numbers, and the collectives on them.

A collective is a command of a lane, and only enqueues. Everything else may wait for other processes, so each question
has a thread of its own: an init waits for all ranks, and an abort takes half a second.

A member that is gone leaves the others inside NCCL, where only an abort reaches them. An abort sets a flag, the kernels
leave, and the stream goes on: what was queued behind the collective runs on garbage. The user's process knows what that
was. After an abort the memory of the communicator is gone, so no call may be under way that is not itself waiting for a
member: the thread of the abort waits a little for such calls (`_CALL_SECONDS`). A call that was made ready looks, like
every other, whether its communicator still is what it was made for.

``ncclCommFinalize`` and ``ncclCommDestroy`` wait for all ranks, and are never called: communicators end by an abort.
"""

from __future__ import annotations

import json
import os
import threading
from ctypes import byref, c_int, create_string_buffer
from functools import partial
from typing import TYPE_CHECKING, Any

from atomr_cuda.constants import nccl as constants
from atomr_cuda.constants.driver import CU_STREAM_NON_BLOCKING

from ..._wire.limits import shortage
from ..._wire.protocol import ENGINE_BUG, HOST_SHORTAGE, LIBRARY_MISSING, VerbTable
from ..._wire.ready import filled
from ..._wire.status import StatusClass, classify
from ..._worker.base.calls import made_ready
from ..._worker.base.lanes import CommandRefused, Following
from ..._worker.base.native_calls import Word, native_call
from ..._worker.base.shared_words import Words
from .records import (
    ABORT,
    ADDRESSES_AT,
    CALL,
    CALLS,
    COMMUNICATORS,
    ENVIRONMENT,
    FIRST_RUN,
    INIT,
    NCCL,
    PREMULTIPLIED,
    RUN,
    UNIQUE_ID,
    WARM,
    entries_of_group,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..._wire.protocol import Verb
    from ..._worker.base.lanes import Command, Lane, NativeCall, Ready, RecordWords, Target, WorkerServices

_CALL_SECONDS = 0.1
"""The time that an abort waits for a call that is under way. One that takes longer waits for a member that is gone."""
_LOOK_SECONDS = 1e-3
_WARM_BYTES = 1024
_TARGET_AT = RUN.struct.size + ADDRESSES_AT[1]
"""The place of the address of what a single call receives."""

_ADDRESSES = (-3, -2)
"""The places of the two addresses among the fields of a `CALL`."""

_environment: bytes | None = None
"""The record by which the environment of this process was set; None before the first."""


class _Communicator:
    """One rank's end of a communicator, from the question for it to its abort."""

    def __init__(self) -> None:
        self.handle: Any = None
        self.ready: bool = False
        self.ended: bool = False
        """True once it was aborted, or is about to be."""
        self.made: threading.Event = threading.Event()
        """Set when the init has returned, whether it has succeeded or not."""
        self.calling: threading.Lock = threading.Lock()
        """Held during a call."""
        self.alive: Words = Words(1)
        """1 until it is aborted; native code looks at it."""
        self.alive.set([1])

    def end(self) -> bool:
        """Let nobody call it any more. Returns false if it was ended before. Called by the loop's thread."""
        if self.ended:
            return False
        self.ended = True
        self.alive.set([0])
        return True


class NcclEngine:
    """The calls behind the verbs."""

    table = NCCL
    control_table: VerbTable = COMMUNICATORS

    def __init__(self, services: WorkerServices) -> None:
        from atomr_cuda import driver, nccl

        self._services = services
        self._driver = driver
        self._nccl: Any = nccl
        self._communicators: dict[int, _Communicator] = {}
        self._warm: Any = None
        self._threads: set[threading.Thread] = set()
        self._conflict = False
        """True if this process has used NCCL with another environment than the one that is wanted."""
        self.calls: dict[int, Callable[[Command, Lane], Any]] = {RUN.number: self._run, FIRST_RUN.number: self._run}
        self.controls: Mapping[int, Callable[[bytes], None]] = {
            ENVIRONMENT.number: self._set_environment,
            UNIQUE_ID.number: self._ask(UNIQUE_ID, self._unique_id),
            INIT.number: self._init,
            ABORT.number: self._begin_abort,
            WARM.number: self._ask(WARM, self._make_warm),
        }
        """What handles the records of communicators, by the verb's number; each is given the payload."""

    # --- collectives --------------------------------------------------------------------------------------------------

    def _run(self, command: Command, lane: Lane) -> None:
        (number,) = RUN.struct.unpack_from(command.payload)
        calls = list(CALL.iter_unpack(command.payload[RUN.struct.size :]))
        communicator = self._communicators.get(number)
        if communicator is None or not communicator.ready:
            raise _refused("the communicator does not exist, or not any more")
        lane.weigh(command.ticket, entries_of_group(len(calls)))
        with lane.calling, communicator.calling:
            if communicator.ended:
                raise _refused("the communicator was aborted")
            if len(calls) == 1:
                self._call(communicator.handle, lane.stream, *calls[0])
            else:
                self._call_all(communicator.handle, lane.stream, calls)

    def _call_all(self, handle: Any, stream: Any, calls: list[tuple[Any, ...]]) -> None:
        """Make the calls in one group, which is ended whatever happens in it."""
        self._nccl.ncclGroupStart()
        try:
            for call in calls:
                self._call(handle, stream, *call)
        except BaseException:
            self._nccl.ncclGroupEnd.status()
            raise
        self._nccl.ncclGroupEnd()

    def _call(
        self,
        handle: Any,
        stream: Any,
        function: int,
        kind: int,
        operation: int,
        root: int,
        count: int,
        source: int,
        target: int,
        factor: bytes,
    ) -> None:
        nccl = self._nccl
        call, rest = getattr(nccl, CALLS[function]), (root, count, source, target, factor, handle, stream)
        if operation != PREMULTIPLIED:
            call(*_arguments(function, kind, operation, *rest))
            return
        made, scalar = c_int(), create_string_buffer(factor, len(factor))
        nccl.ncclRedOpCreatePreMulSum(byref(made), scalar, kind, constants.ncclScalarHostImmediate, handle)
        try:
            call(*_arguments(function, kind, made.value, *rest))
        finally:  # which an operation outlives that was given to a call
            nccl.ncclRedOpDestroy(made.value, handle)

    def hot_call(self, verb: int, payload: bytes, lane: Lane, places: Sequence[int] = ()) -> Ready | None:
        """Return the calls of a `RUN`, ready to be made; see `RepeatingEngine`. None if one makes an operation."""
        (number,) = RUN.struct.unpack_from(payload)
        communicator = self._communicators.get(number)
        if verb != RUN.number or communicator is None or not communicator.ready or communicator.ended:
            return None
        records = list(CALL.iter_unpack(payload[RUN.struct.size :]))
        if any(operation == PREMULTIPLIED for _, _, operation, *_ in records):
            return None
        handle, stream = communicator.handle, lane.stream
        if len(records) == 1 and tuple(places) in ((), (_TARGET_AT,)):
            return self._ready_call(communicator, records[0], stream, new=bool(places))
        if places:
            ready = self._ready_calls(communicator, lane, payload, tuple(places))
        else:
            calls = [self._made_up(record, handle, stream) for record in records]
            ready = self._ready_group(communicator, lane, len(calls), lambda _: calls)
        return ready._replace(native=partial(self._native_group, communicator, lane, records, places), bounded=True)

    def _made_up(self, record: tuple[Any, ...], handle: Any, stream: Any) -> Callable[[], int]:
        arguments = _arguments(*(*record, handle, stream))
        return partial(getattr(self._nccl, CALLS[record[0]]).bind(), *arguments)

    def _ready_call(self, made: _Communicator, record: tuple[Any, ...], stream: Any, *, new: bool) -> Ready:
        """Return one call. The address of its output is a word of the record if `new` is true."""
        function = getattr(self._nccl, CALLS[record[0]])
        head, factor = record[:-2], record[-1]
        status, handle = function.status, made.handle
        fixed = _arguments(*(*record, handle, stream))

        def call(words: RecordWords) -> int:
            with made.calling:
                if made.ended:
                    raise _refused("the communicator was aborted")
                arguments = _arguments(*(*head, words[0], factor, handle, stream)) if new else fixed
                found: int = status(*arguments)
                return found

        ready = made_ready(lambda: None, call, partial(_error, function.library, function.symbol))
        target = Word(0) if new else record[-2]
        words = _arguments(*(*head, target, factor, handle.value, stream.value))
        return ready._replace(native=partial(self._native, made, function, words, int(new)))

    def _ready_calls(self, made: _Communicator, lane: Lane, payload: bytes, places: tuple[int, ...]) -> Ready:
        """Return calls some of whose addresses are words of the record."""

        def calls(words: RecordWords) -> list[Callable[[], int]]:
            records = CALL.iter_unpack(filled(payload, places, words)[RUN.struct.size :])
            return [self._made_up(record, made.handle, lane.stream) for record in records]

        return self._ready_group(made, lane, (len(payload) - RUN.struct.size) // CALL.size, calls)

    def _ready_group(
        self, made: _Communicator, lane: Lane, count: int, calls: Callable[[RecordWords], list[Callable[[], int]]]
    ) -> Ready:
        """Return several calls that are made together."""
        nccl, entries = self._nccl, entries_of_group(count)
        start, end = nccl.ncclGroupStart.bind(), nccl.ncclGroupEnd.bind()

        def call(words: RecordWords) -> int:
            with made.calling:
                if made.ended:
                    raise _refused("the communicator was aborted")
                status: int = start()
                for each in calls(words):
                    status = status or each()
                ended: int = end()
                return status or ended

        error_of = partial(_error, nccl.ncclGroupEnd.library, "ncclGroupEnd")
        return made_ready(lambda: lane.weigh(lane.made_now, entries), call, error_of, alone=True)

    def _native(
        self, communicator: _Communicator, function: Any, arguments: Sequence[int | Word], words: int
    ) -> NativeCall | None:
        """Return a call for native code, which makes it only until the communicator is aborted."""
        made = native_call(function, arguments, words, self._services.give_up)
        if made is None:
            return None
        alive = communicator.alive
        return made._replace(guard=alive.address, expected=1, keep=(made.keep, alive))

    def _native_group(
        self, communicator: _Communicator, lane: Lane, records: Sequence[tuple[Any, ...]], places: Sequence[int]
    ) -> NativeCall | None:
        """Return calls for native code, which makes them as one group; the addresses at some places are words."""
        nccl, number_at = self._nccl, {place: number for number, place in enumerate(places)}
        functions: list[tuple[Any, Sequence[int | Word], list[int]]] = [(nccl.ncclGroupStart, (), [])]
        for at, record in enumerate(records):
            given, words = list(record), list[int]()
            for field, offset in zip(_ADDRESSES, ADDRESSES_AT, strict=True):
                number = number_at.get(RUN.struct.size + CALL.size * at + offset)
                if number is not None:
                    given[field] = Word(len(words))
                    words.append(number)
            arguments = _arguments(*(*given, communicator.handle.value, lane.stream.value))
            if sum(isinstance(each, Word) for each in arguments) < len(words):
                return None
            functions.append((getattr(nccl, CALLS[record[0]]), arguments, words))
        functions.append((nccl.ncclGroupEnd, (), []))
        calls: list[NativeCall] = []
        targets: list[Target] = []
        for function, its_arguments, words in functions:
            call = native_call(function, its_arguments, len(words), self._services.give_up)
            if call is None:
                return None
            calls.append(call)
            targets += [target._replace(word=words[target.word]) for target in call.targets]
        alive, end = communicator.alive, nccl.ncclGroupEnd
        error = partial(_error, end.library, end.symbol)

        def refused(status: int) -> Exception:
            end.status()  # whatever happens in a group, it is ended
            return error(status)

        return calls[0]._replace(
            targets=targets,
            guard=alive.address,
            expected=1,
            then=[
                *(Following(call.function, call.arguments, refused) for call in calls[1:-1]),
                Following(calls[-1].function, calls[-1].arguments, error),
            ],
            keep=(calls, alive),
        )

    # --- questions ----------------------------------------------------------------------------------------------------

    def _set_environment(self, payload: bytes) -> None:
        """Set it, if NCCL has not been used yet: a process of a pool may have been, for other devices."""
        global _environment
        if _environment is not None:
            self._conflict = _environment != payload
            return
        _environment = payload
        variables = json.loads(payload)
        for name, value in variables["defaults"].items():
            os.environ.setdefault(name, value)
        os.environ.update(variables["given"])

    def _ask(self, verb: Verb, answer: Callable[..., dict[str, Any]]) -> Callable[[bytes], None]:
        def ask(payload: bytes) -> None:
            self._answer(verb, *verb.struct.unpack_from(payload), function=answer)

        return ask

    def _answer(self, verb: Verb, question: int, *arguments: Any, function: Callable[..., dict[str, Any]]) -> None:
        """Answer a question in a thread of its own."""

        def run() -> None:
            try:
                self._services.bind_thread()
                told = self._told(verb, function, arguments)
                if told is not None:
                    self._services.post({"kind": "answer", "question": question, **told})
            except BaseException as bug:
                self._services.give_up(bug)
            finally:
                self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name=f"nccl-{verb.name}", daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no thread left
            self._threads.discard(thread)
            failure = _failure(HOST_SHORTAGE, type(error).__name__, str(error), "nccl")
            self._services.post({"kind": "answer", "question": question, "failure": failure})

    def _told(
        self, verb: Verb, function: Callable[..., dict[str, Any]], arguments: tuple[Any, ...]
    ) -> dict[str, Any] | None:
        """What a question is answered; None if the context is lost, which was said then."""
        try:
            return function(*arguments)
        except Exception as error:
            return self._told_of(verb, error)

    def _told_of(self, verb: Verb, error: Exception) -> dict[str, Any] | None:
        services = self._services
        if isinstance(error, CommandRefused):
            return {"failure": error.failure}
        if isinstance(error, services.cuda_error):
            if classify(error.status, error.library) in (StatusClass.POISONS, StatusClass.GONE):
                services.lost(error, verb.operation)
                return None
            text = f"{error.function}: {error.text}"
            return {"failure": _failure(error.status, error.name, text, error.library)}
        if isinstance(error, services.library_missing):
            return {"failure": _failure(LIBRARY_MISSING, type(error).__name__, str(error), error.library)}
        if (words := shortage(error)) is not None:
            return {"failure": _failure(HOST_SHORTAGE, type(error).__name__, words, "nccl")}
        return {"failure": _failure(ENGINE_BUG, type(error).__name__, repr(error), "nccl")}

    def _check_environment(self) -> None:
        if self._conflict:
            raise _refused("the worker came from a pool, and has used NCCL with other settings of `nccl=`")

    def _unique_id(self) -> dict[str, Any]:
        self._check_environment()
        made = self._nccl.ncclUniqueId()
        self._nccl.ncclGetUniqueId(byref(made))
        return {"id": bytes(made).hex(), "version": self._version()}

    def _version(self) -> int:
        version = c_int()
        self._nccl.ncclGetVersion(byref(version))
        return version.value

    def _init(self, payload: bytes) -> None:
        """The communicator is known from now on, so that an abort finds it."""
        question, number, rank, size = INIT.struct.unpack_from(payload)
        communicator = self._communicators[number] = _Communicator()
        unique_id = payload[INIT.struct.size :]
        self._answer(INIT, question, communicator, rank, size, unique_id, function=self._make)

    def _make(self, communicator: _Communicator, rank: int, size: int, unique_id: bytes) -> dict[str, Any]:
        try:
            self._check_environment()
            if communicator.ended:
                raise _refused("the communicator was aborted before it was made")
            handle = communicator.handle = self._nccl.ncclComm_t()
            self._begin(handle, rank, size, unique_id)
            communicator.ready = True
        finally:
            communicator.made.set()
        return {}

    def _begin(self, handle: Any, rank: int, size: int, unique_id: bytes) -> None:
        nccl = self._nccl
        config = nccl.new_config(self._version())
        config.blocking = 1
        given = nccl.ncclUniqueId.from_buffer_copy(unique_id)
        nccl.ncclCommInitRankConfig(byref(handle), size, given, rank, byref(config))

    def _begin_abort(self, payload: bytes) -> None:
        """Native code makes calls in this thread alone, so none is under way, and none will be."""
        question, number = ABORT.struct.unpack_from(payload)
        communicator = self._communicators.get(number)
        if communicator is None or not communicator.end():
            communicator = None
        self._answer(ABORT, question, number, communicator, function=self._abort)

    def _abort(self, number: int, communicator: _Communicator | None) -> dict[str, Any]:
        if communicator is not None:
            self._end(communicator)
            del self._communicators[number]
        return {}

    def _end(self, communicator: _Communicator) -> None:
        """Abort it. One that is still being made is aborted once there is a handle, unless its init ends before."""
        abort = self._nccl.ncclCommAbort
        while not communicator.made.wait(_LOOK_SECONDS):
            handle = communicator.handle
            if handle is not None and handle.value:
                abort.status(handle)
                communicator.made.wait()
                return
        if not communicator.ready:
            return
        quiet = communicator.calling.acquire(timeout=_CALL_SECONDS)
        try:
            abort(communicator.handle)
        finally:
            if quiet:
                communicator.calling.release()

    def _make_warm(self) -> dict[str, Any]:
        if self._warm is not None:
            return {}
        handle = self._warm = self._nccl.ncclComm_t()
        made = self._nccl.ncclUniqueId()
        self._nccl.ncclGetUniqueId(byref(made))
        self._begin(handle, 0, 1, bytes(made))
        self._run_once(handle)
        return {"version": self._version()}

    def _run_once(self, handle: Any) -> None:
        driver = self._driver
        stream, memory = driver.CUstream(), driver.CUdeviceptr()
        driver.cuStreamCreateWithPriority(byref(stream), CU_STREAM_NON_BLOCKING, 0)
        try:
            driver.cuMemAlloc(byref(memory), _WARM_BYTES)
            try:
                count = _WARM_BYTES // 4
                kind, operation = constants.ncclInt32, constants.ncclSum
                self._nccl.ncclAllReduce(memory.value, memory.value, count, kind, operation, handle, stream)
                driver.cuStreamSynchronize(stream)
            finally:
                driver.cuMemFree(memory)
        finally:
            driver.cuStreamDestroy(stream)

    # --- the end ------------------------------------------------------------------------------------------------------

    def forget_lane(self, index: int) -> tuple[()]:
        """Nothing here belongs to a lane."""
        return ()

    def close(self) -> None:
        """Abort every communicator, and wait for the threads: they are inside NCCL until then."""
        for communicator in list(self._communicators.values()):
            if not communicator.made.is_set() and communicator.end():
                self._end(communicator)
        for thread in tuple(self._threads):
            thread.join()
        made = [each.handle for each in self._communicators.values() if each.ready and not each.ended]
        if self._warm is not None:
            made.append(self._warm)
        self._communicators.clear()
        self._warm = None
        if made:  # in one group: one by one they could wait for each other
            self._nccl.ncclGroupStart()
            for handle in made:
                self._nccl.ncclCommAbort.status(handle)
            self._nccl.ncclGroupEnd.status()


def _arguments(
    function: int,
    kind: int,
    operation: int,
    root: int,
    count: int,
    source: int,
    target: int,
    _factor: bytes,
    handle: Any,
    stream: Any,
) -> tuple[Any, ...]:
    """Return what a function is called with."""
    match CALLS[function]:
        case "ncclAllReduce" | "ncclReduceScatter":
            return source, target, count, kind, operation, handle, stream
        case "ncclReduce":
            return source, target, count, kind, operation, root, handle, stream
        case "ncclBroadcast":
            return source, target, count, kind, root, handle, stream
        case "ncclAllGather":
            return source, target, count, kind, handle, stream
        case "ncclSend":
            return source, count, kind, root, handle, stream
        case _:
            return target, count, kind, root, handle, stream


def _error(library: Any, function: str, status: int) -> Exception:
    error: Exception = library.error(status, function)
    return error


def _failure(status: int, name: str, text: str, library: str) -> dict[str, Any]:
    return CommandRefused(status, name, text, library).failure


def _refused(text: str) -> CommandRefused:
    return CommandRefused(constants.ncclInvalidUsage, "ncclInvalidUsage", text, "nccl")
