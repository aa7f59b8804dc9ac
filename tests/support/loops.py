"""A worker's loop with a driver of its own, so that the loop of Python and the native one can be fed the same records.

The driver's two functions are C functions that lead back here. They note each call, and answer with the status that a
test asks for. The GPU is a counter that runs a number of tickets behind what was signed. Everything between the ring
and these functions is the worker's own.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import socket
import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from atomr_trio._wire.channel import TimelinePage
from atomr_trio._wire.protocol import (
    CONTROL_LANE,
    HEADER,
    MAX_LANES,
    RECORDS_READ_WORD,
    RECORDS_SENT_WORD,
    REPEATED,
    UNSIGNED,
    Mode,
    VerbTable,
    counter_word,
    encode_wait,
)
from atomr_trio._wire.ready import filled, ready_head, with_holes
from atomr_trio._wire.records import context as context_records
from atomr_trio._wire.records.module import LAUNCH
from atomr_trio._wire.ring import GROUPS, NUMBER, SLOT_BYTES, SLOTS, Ring, announcer, group_index
from atomr_trio._worker import native
from atomr_trio._worker.base.lanes import Command, Following, Lane, NativeCall, NativeLaunch, Ready, Target
from atomr_trio._worker.base.shared_words import STREAM, Arguments, Words
from atomr_trio._worker.main import IDLE_SECONDS, Worker
from atomr_trio._worker.ready import ReadyCalls

KERNELS = {1: 0, 2: 8, 3: 40, (1 << 64) - 1: 392}
"""The bytes of the parameters of the kernels that there are. The last one fills a slot."""
LANES = 3
"""How many lanes a machine has; records name them 0, 1 and 2, whatever numbers they have there."""
LAST_TICKET = (1 << 56) - 1
"""The highest ticket that a command can wait for. The sender gives out a million in a second for 2,000 years."""
LAST_RECORD = (1 << 64) - 1
"""The highest number of a record."""
TOY = VerbTable("toy", 7)
DO = TOY.verb("do", Mode.ENQUEUES, {"what": "Q"})
BLOCK = TOY.verb("block", Mode.BLOCKS, {"what": "Q"})
FORGET = TOY.verb("forget", Mode.ENQUEUES, {"what": "Q"})
REPEAT = TOY.verb("repeat", Mode.ENQUEUES, {"what": "Q"})
ENTRIES = 9
"""What a repeated call puts into the stream if it is noted."""
FIRST = 7
"""The first argument of a repeated call; that of the functions that follow it is larger by 1 each."""
DO_TYPE = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_uint64,) * 12)
"""A function of twelve arguments, of which half are on the stack."""
_PAGE_ON_DEVICE = 1 << 40
_FIELDS = struct.Struct("<Q6III")


class Launch(NamedTuple):
    """A launch of a kernel, by its number."""

    lane: int
    kernel: int
    parameters: bytes
    unsigned: bool = True
    dimensions: tuple[int, int, int, int, int, int] = (1, 1, 1, 1, 1, 1)
    shared: int = 0
    options: int = 0


class Other(NamedTuple):
    """A command of one of the verbs above; it waits for the last command before it of another lane.

    A repeated one has the number `what` as a word, or as a constant.
    """

    lane: int
    verb: int
    what: int
    unsigned: bool = True
    waits_for: int | None = None
    as_word: bool = True


class CudaError(Exception):
    """An error of the stand-in for the driver, as the worker reads it."""

    library = "cuda"

    def __init__(self, status: int, function: str) -> None:
        super().__init__(status, function)
        self.status, self.name, self.text, self.function = status, f"status {status}", "refused", function


class LibraryMissing(Exception):
    """No library is missing here."""


class _ToyEngine:
    """An engine of one library, whose calls are noted."""

    table = TOY

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.calls = {verb.number: self._call for verb in TOY.verbs}

    def _call(self, command: Command, lane: Lane) -> None:
        if command.verb is FORGET:
            self._machine.worker.forget_hot()
        self._make(command.verb.number, command.payload, lane)

    def _make(self, verb: int, payload: bytes, lane: Lane) -> None:
        if status := self._machine.note(("call", lane.index, verb, payload)):
            raise CudaError(status, "toyDo")

    def hot_call(self, verb: int, payload: bytes, lane: Lane, places: Sequence[int] = ()) -> Ready | None:
        def call(words: tuple[int, ...]) -> int:
            given = filled(payload, places, words) if places else payload
            if self._machine.alone == "noted":
                lane.weigh(lane.made_now, ENTRIES)
            status = self._machine.note(("call", lane.index, verb, given))
            for part in range(1, self._machine.following + 1):
                if not status and (status := self._machine.note((f"part {part}", lane.index, verb, given))):
                    self._machine.failed_part = part
            return status

        def native() -> NativeCall:
            number = Words(1)
            arguments = Arguments((FIRST, lane.index, verb, number.address, *range(4, 11), -1))
            number.set(struct.unpack("<Q", payload))
            returns = self._machine.returns and bool(places)
            if returns:
                self._machine.returning.add(number.address)
            setting = self._machine.setting
            function = ctypes.cast(self._machine.do, ctypes.c_void_p).value or 0
            most = self._machine.most_word
            following = []
            for part in range(1, self._machine.following + 1):
                behind = Arguments((FIRST + part, lane.index, verb, number.address, *range(4, 11), -1))
                following.append(Following(function, behind, partial(refused, part)))
            return NativeCall(
                function,
                arguments,
                [Target(word, number.address, most=most) for word in range(len(places))],
                setting.address,
                setting.view[0],
                then=following,
                keep=(number, setting),
                entries=ENTRIES if self._machine.alone == "noted" else 0,
                returned=0 if returns else None,
            )

        def refused(part: int, status: int) -> CudaError:
            self._machine.effects.append(("undone", part))
            return CudaError(status, f"toyDoPart{part}")

        def error(status: int) -> CudaError:
            part, self._machine.failed_part = self._machine.failed_part, 0
            return refused(part, status) if part else CudaError(status, "toyDo")

        alone = self._machine.alone
        return Ready(call, error, native=native, alone=alone is not None, bounded=alone in ("bounded", "noted"))

    def forget_lane(self, index: int) -> tuple[()]:
        return ()

    def close(self) -> None:
        """There is nothing to close."""


class _Modules:
    """An engine of modules, with the kernels above: its configurations are numbers."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def hot_launch(self, fields: bytes, length: int, lane: Lane) -> Any:
        kernel, *rest = _FIELDS.unpack_from(fields)
        if kernel not in KERNELS or length != LAUNCH.struct.size + KERNELS[kernel]:
            return None
        size = ctypes.c_size_t(KERNELS[kernel])
        extra = (ctypes.c_uint64 * 5)(1, 0, 2, ctypes.addressof(size), 0)
        config = self._machine.config_of(lane.index, tuple(rest))

        def call(address: int, _keep: Any = size) -> int:
            extra[1] = address
            return self._machine.launch(config, kernel, None, ctypes.addressof(extra) if size.value else None)

        return call, NativeLaunch(config, kernel, size.value, None)

    def general(self, command: Command, lane: Lane) -> None:
        kernel, *rest = _FIELDS.unpack_from(command.payload)
        parameters = command.payload[LAUNCH.struct.size :]
        if kernel not in KERNELS or len(parameters) != KERNELS[kernel]:
            raise CudaError(400, "cuLaunchKernelEx")
        config = self._machine.config_of(lane.index, tuple(rest))
        if status := self._machine.note(("launch", lane.index, kernel, self._machine.configs[config], parameters)):
            raise CudaError(status, "cuLaunchKernelEx")

    def launch_error(self, status: int) -> Exception:
        return CudaError(status, "cuLaunchKernelEx")


class Machine:
    """A worker with lanes and engines, and the ring before it.

    `refused` has the status of the calls that fail, by their number; `refused_tickets` that of the tickets, by lane and
    ticket, of which the first attempt alone fails unless the context is lost. The GPU is `lag` tickets behind.
    Repeated calls are made `alone` if that is not None. Native code makes them too if it says that they are "bounded",
    or "noted" with what they put into the stream. So many `following` calls are behind each; native code takes words up
    to `most_word`. A call with words `returns` one of them natively unless it is refused. So many records were
    `read_before`, and so many tickets of each lane `signed_before`. The lanes have these numbers.
    """

    def __init__(
        self,
        *,
        natively: bool,
        refused: Mapping[int, int] | None = None,
        refused_tickets: Mapping[tuple[int, int], int] | None = None,
        lag: int = 0,
        read_before: int = 0,
        signed_before: int = 0,
        lanes: Sequence[int] = range(LANES),
        following: int = 0,
        alone: str | None = None,
        most_word: int = (1 << 64) - 1,
        returns: bool = False,
    ) -> None:
        self.refused = refused or {}
        self.refused_tickets = dict(refused_tickets or {})
        self.lag = lag
        self.alone = alone
        self.following, self.failed_part, self.most_word = following, 0, most_word
        self.returns = returns
        self.returning: set[int] = set()
        """The addresses of the words that calls return."""
        self.effects: list[tuple[Any, ...]] = []
        """Every call of the driver, in its order."""
        self.messages: list[dict[str, Any]] = []
        self.returned: list[int] = []
        """The reasons for which native code has returned."""
        self._made = itertools.count(1)
        self._lock = threading.Lock()
        self._configs: dict[tuple[Any, ...], int] = {}
        self.configs: dict[int, tuple[Any, ...]] = {}
        self._sockets = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.worker = worker = Worker(self._sockets[0], "sim", 0, 0, 0)
        worker.post = lambda message, descriptors=(): self.messages.append(message)  # type: ignore[method-assign]
        self.page = worker._page = TimelinePage.new()
        self.ring = worker._ring = Ring.new()
        self.page.words[RECORDS_SENT_WORD] = self.page.words[RECORDS_READ_WORD] = self.sent = read_before
        worker._page_address = _PAGE_ON_DEVICE
        worker._wake, worker._bell = os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK)
        self._announce = announcer(self.page.words, worker._bell)
        worker._spin_seconds = 0.01
        worker.cuda_error, worker.library_missing = CudaError, LibraryMissing
        self._failing: list[BaseException] = []
        self.setting = Words(1)
        """A setting of the toy library, on which native code looks before each call."""
        self.do = DO_TYPE(self._guarded(self._do))
        self.launch = native.LAUNCH_TYPE(self._guarded(self._launch))
        self.write = native.WRITE_TYPE(self._guarded(self._write))
        query = SimpleNamespace(status=lambda stream: 0)
        nothing = lambda *arguments: 0  # noqa: E731
        write = SimpleNamespace(library=SimpleNamespace(error=CudaError), symbol="cuStreamWriteValue64")
        self.driver = SimpleNamespace(
            cuStreamQuery=query, cuEventRecord=nothing, cuStreamWaitEvent=nothing, cuStreamWriteValue64=write
        )
        worker._driver = self.driver
        worker.bind_thread = lambda: None  # type: ignore[method-assign]
        modules, toy = _Modules(self), _ToyEngine(self)
        worker.engines = {TOY.number: toy}
        worker._verbs = {(TOY.number, verb.number): (verb, toy.calls[verb.number]) for verb in TOY.verbs}
        worker._verbs[LAUNCH.engine_number, LAUNCH.number] = (LAUNCH, modules.general)
        worker._ready = ReadyCalls(worker.engines, modules, worker._verbs)
        self.numbers = tuple(lanes)
        self.first = signed_before + 1
        """The first ticket of each lane."""
        self.tickets = dict.fromkeys(self.numbers, signed_before)
        for index in self.numbers:
            self.page.words[counter_word(index)] = signed_before
            self._open_lane(index)
        if natively:
            run = native.mapped()

            def noted(address: int) -> int:
                reason = run(address)
                self.returned.append(reason)
                return reason

            worker._native = native.NativeLoop(
                noted, worker._loop, self.ring, self.page, _PAGE_ON_DEVICE, self.launch, self.write, IDLE_SECONDS
            )

    def _open_lane(self, index: int) -> None:
        lane = self.worker._add_lane(index)
        lane._write_value, lane._driver = self.write, self.driver
        lane.stream = ctypes.c_void_p(index + 1)
        lane.shared.view[STREAM] = index + 1

    def _guarded(self, function: Any) -> Any:
        """The function, for C: an exception of it fails the test in `run`, since C cannot."""

        def call(*arguments: Any) -> int:
            try:
                return int(function(*arguments))
            except BaseException as error:
                self._failing.append(error)
                return 719

        return call

    # The driver.

    def config_of(self, lane: int, rest: tuple[Any, ...]) -> int:
        """The number of a configuration: the lane, the dimensions, the shared memory and the options."""
        config = self._configs.setdefault((lane, *rest), len(self._configs) + 1)
        self.configs[config] = rest
        self._lane_of_config = {number: key[0] for key, number in self._configs.items()}
        return config

    def note(self, effect: tuple[Any, ...]) -> int:
        """Note a call, and return its status."""
        with self._lock:
            self.effects.append(effect)
            return self.refused.get(next(self._made), 0)

    def _launch(self, config: int, kernel: int, parameters: int | None, extra: int | None) -> int:
        assert parameters is None
        content = b""
        if extra is not None:
            pointer, address, size, size_address, end = (ctypes.c_uint64 * 5).from_address(extra)
            assert (pointer, size, end) == (1, 2, 0)
            content = ctypes.string_at(address, ctypes.c_size_t.from_address(size_address).value)
        return self.note(("launch", self._lane_of_config[config], kernel, self.configs[config], content))

    def _do(self, *arguments: int) -> int:
        handle, lane, verb, number, *rest, last = arguments
        assert (rest, last) == (list(range(4, 11)), (1 << 64) - 1)
        given = ctypes.string_at(number, 8)
        status = self.note((f"part {handle - FIRST}" if handle > FIRST else "call", lane, verb, given))
        if handle > FIRST or number not in self.returning:
            return status
        return ctypes.c_int(int.from_bytes(given[:4], "little") ^ status).value

    def _write(self, stream: int, address: int, value: int, flags: int) -> int:
        lane = stream - 1
        assert (address, flags) == (_PAGE_ON_DEVICE + counter_word(lane) * 8, 0)
        with self._lock:
            if status := self.refused_tickets.pop((lane, value), 0):
                self.effects.append(("ticket refused", lane, value))
                return status
            self.effects.append(("ticket", lane, value))
            self.page.words[counter_word(lane)] = max(self.page.words[counter_word(lane)], value - self.lag)
        return 0

    # The records.

    def put(self, record: Launch | Other) -> None:
        """Write a record into the ring, and do not count it yet."""
        lane = self.numbers[record.lane]
        ticket = self.tickets[lane] = self.tickets[lane] + 1
        mark = UNSIGNED if record.unsigned else 0
        if isinstance(record, Launch):
            payload = _FIELDS.pack(record.kernel, *record.dimensions, record.shared, record.options) + record.parameters
            self._put(HEADER.pack(ticket, lane, LAUNCH.engine_number, LAUNCH.number | mark, 0, len(payload)), payload)
            return
        waits = b""
        if record.waits_for is not None and record.waits_for != record.lane:
            other = self.numbers[record.waits_for]
            if self.tickets[other] >= self.first:
                waits = struct.pack("<Q", encode_wait(other, self.tickets[other]))
        payload = struct.pack("<Q", record.what)
        if record.verb == REPEAT.number and not waits:
            places = [0] if record.as_word else []
            identity = 0 if record.as_word else record.what + 1
            head = ready_head(identity % (1 << 64), places) + (payload if places else b"")
            payload = with_holes(payload, places)
            size = len(head) + len(payload) - 8 * len(places)
            header = HEADER.pack(ticket, lane, TOY.number, record.verb | mark | REPEATED, len(places), size)
            self._put(header + head, payload)
            return
        header = HEADER.pack(ticket, lane, TOY.number, record.verb | mark, len(waits) // 8, len(payload))
        self._put(header + waits, payload)

    def close_after_all(self) -> None:
        """Write the record that ends the loop."""
        header = HEADER.pack(0, CONTROL_LANE, context_records.CONTEXT.number, context_records.CLOSE.number, 0, 0)
        self._put(header, b"")

    def _put(self, header: bytes, payload: bytes) -> None:
        record = header + payload
        assert NUMBER.size + len(record) <= SLOT_BYTES
        at = self.sent % SLOTS * SLOT_BYTES
        self.ring.slots[at : at + SLOT_BYTES] = bytes(SLOT_BYTES)
        self.sent += 1
        NUMBER.pack_into(self.ring.slots, at, self.sent)
        self.ring.slots[at + NUMBER.size : at + NUMBER.size + len(record)] = record

    @property
    def last_slot(self) -> memoryview[int]:
        """The slot of the record that was written last."""
        at = (self.sent - 1) % SLOTS * SLOT_BYTES
        return self.ring.slots[at : at + SLOT_BYTES]

    def count(self) -> None:
        """Let the worker see all records that were written, and wake it if it sleeps."""
        self.page.words[RECORDS_SENT_WORD] = self.sent
        self._announce()

    # The run.

    def run(self, records: Iterable[Launch | Other]) -> None:
        """Run records that are all in the ring when the loop begins, and wait until the lanes are idle."""
        for record in records:
            self.put(record)
        self.close_after_all()
        self.count()
        self.loop()

    def loop(self) -> None:
        """Run the loop until a record ends it."""
        assert self.worker.run() is context_records.CLOSE
        for lane in self.worker._lanes.values():
            lane.finish()
        if self._failing:
            raise self._failing[0]

    def of_lane(self, index: int) -> list[tuple[Any, ...]]:
        """What the driver was asked on a lane, in its order."""
        return [effect for effect in self.effects if effect[1] == self.numbers[index]]

    def state(self) -> dict[str, Any]:
        """What the lanes and the page show in the end."""
        lanes = self.worker._lanes.values()
        return {
            "accepted": [lane.accepted for lane in lanes],
            "submitted": [lane.submitted for lane in lanes],
            "signed": [lane.signed for lane in lanes],
            "read": self.page.words[RECORDS_READ_WORD],
            "statuses": [
                [self.page.status(lane, ticket) for ticket in range(self.first, self.tickets[lane] + 1)]
                for lane in self.numbers
            ],
            "failures": [self.page.failures(lane) for lane in range(MAX_LANES)],
            "errors": [message for message in self.messages if message["kind"] == "error"],
            "lost": [message for message in self.messages if message["kind"] == "lost"],
        }

    def groups(self, index: int) -> list[int]:
        """The sizes of the groups of a lane that the page's reader sees, by their first tickets."""
        lane = self.numbers[index]
        sizes, first = [], self.first
        while first <= self.worker._lanes[lane].signed and first < self.first + GROUPS:
            size = self.ring.groups[group_index(lane, first)]
            if not size:
                break
            sizes.append(size)
            first += size
        return sizes

    def close(self) -> None:
        """Give back what it has."""
        for end in self._sockets:
            end.close()
        os.close(self.worker._wake)
        os.close(self.worker._bell)
        self.ring.close()
        self.page.close()
