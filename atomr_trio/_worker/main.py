"""The worker's process: it owns the CUDA context, so that a fault kills it and nothing else.

Started by plain exec with a socket as its only tie to the user's process. It first makes the context and reserves the
address range of its device, which touches no memory of anybody; then it waits for the message that hands over the
timeline page, the ring, the staging area and the chunks of the generation before, and from then on runs records until
the socket ends, a ``close`` record comes, or it is killed. While there is nothing to run it looks for records for a
while, giving way to every other thread at each turn, and then sleeps. After a ``reset`` record it waits to be adopted
again, context and all. A standby is a worker that was adopted and has not been given work yet. No trio and no numpy in
here.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import math
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from ctypes import addressof, c_char, c_int, c_void_p
from typing import TYPE_CHECKING, Any, NoReturn

from atomr_cuda.constants.driver import CUDA_ERROR_ASSERT, CUDA_ERROR_NOT_READY

from .._wire import channel
from .._wire.backends import LIBRARIES_VARIABLE
from .._wire.channel import SharedMemory, TimelinePage
from .._wire.host_reading import reason_against
from .._wire.limits import raise_descriptor_limit, shortage
from .._wire.protocol import (
    ASLEEP_WORD,
    CONTROL_LANE,
    EXIT_BUG,
    EXIT_NO_HOST_MEMORY,
    EXIT_ORPHANED,
    HEADER,
    LANE_COMPUTE,
    LANES,
    RECORDS_READ_WORD,
    RECORDS_SENT_WORD,
    REPEATED,
    SELF_TEST_WORD,
    SENDER_WAITS_WORD,
    SOCKET_LANE,
    UNSIGNED,
    VERB_NUMBERS,
    WORKER_ASLEEP_WORD,
    Verb,
    decode_wait,
)
from .._wire.ready import general_payload
from .._wire.records import context as context_records
from .._wire.records.memory import MEMORY
from .._wire.records.module import MODULE
from .._wire.ring import LATER_NET_SECONDS, MAX_RECORD, NET_SECONDS, NUMBER, SLOT_MASK, SLOT_SHIFT, Ring, fence
from .._wire.status import StatusClass, classify
from ..libraries.modules.engine import ModuleEngine
from . import native, registry as engines
from .base.capture_turns import CaptureTurns
from .base.giving_back import GivingBack, GivingBackLater
from .base.lanes import Command, Lane, QuestionedEngine
from .base.memory import MemoryEngine
from .base.shared_words import LOOP_WORDS, POISONED, STALE, TURNS, Words
from .base.workspaces import Workspaces
from .chunk_records import ChunkRecords
from .context import Context
from .failing import failure_message
from .full_lane import FullLane
from .heart import Heart
from .native import Duties
from .parent import die_with_parent, sleep_precisely
from .ready import BEHIND, LAUNCH_RECORD, ReadyCalls

if TYPE_CHECKING:
    from .begin import ContextAhead

LOOK_PERIODS = {"cuda": 30e-6, "sim": 150e-6}
"""The interval at which the counters are looked at while a lane is busy, for a parent that sleeps."""
LOOK_SHARES = {"cuda": 0, "sim": 0.125}
"""The interval of the monitor grows to this part of the time that it has looked in vain. The simulator computes in this
very process, and each look interrupts it."""
LONGEST_LOOK_PERIOD = 2e-3
"""The interval, in seconds, grows no further."""
QUERY_PERIOD = 100e-6
"""The interval at which the driver is asked about faults, which costs more than a look."""
IDLE_SECONDS = 50e-6
"""Commands that may share a ticket are signed after this time without a record: a ticket costs as much as a call."""
LEAST_SPIN = 16
"""The shortest time of polling is this part of the longest."""
SPINS_BESIDE_PARENT = 4
"""A worker whose parent polls for the end of a command polls on: when the parent sees it, the next record comes. It is
this many times the longest time of polling at most."""
HELD_UP_SECONDS = 0.05
"""After so long without a turn the loop's thread is taken to be held up inside a call."""
_HURRIED_SECONDS = 20e-6
"""A lane's thread waits so long for the loop's thread, while that reads what is queued for it, where Python's own
interval is 5 ms. It gives the interpreter up in each call of the driver, so the GPU would run dry."""
_READ_MASK = 15
"""So many records, and one, are read before the sender is told of it."""


class Worker:
    """The context, its lanes and engines, and the threads that watch them."""

    def __init__(self, sock: socket.socket, backend: str, device: int, base: int, extent: int) -> None:
        self.sock = sock
        self.backend = backend
        self.device = device
        self.base = base
        self.extent = extent
        self.poisoned: bool = False
        self.rehearses: bool = True
        self.prints: bool = False
        self.durable: bool = False
        self.staging_address: int = 0
        self.user_process: int = os.getppid()
        self.moments: dict[str, float] = {}
        """The ends of the steps of its start, on the clock of `time.monotonic`: what `make bench-start` shows."""
        self._printed = False
        self._lost_lock = threading.Lock()
        self._buffer = bytearray(channel.MAX_MESSAGE)
        self._work = threading.Event()
        self._flush_wanted = threading.Event()
        self._lanes: dict[int, Lane] = {}
        self._ring: Ring | None = None
        self._awake = False
        """True while the loop's thread looks after the lanes itself."""
        self._questions: dict[int, Mapping[int, Callable[[bytes], None]]] = {}
        """What handles the records of engines that are asked without a ticket, by the number of the table."""
        self._loop = Words(len(LOOP_WORDS))
        self._state = self._loop.view
        """The words that the native loop shares. `TURNS` goes on while the loop's thread looks after the lanes."""
        self._native: native.NativeLoop | None = None
        """None while the loop of Python runs."""
        self._longest_spin = 0.0
        self._spin_seconds = 0.0
        """How long polling for a record is worthwhile at present."""
        self._look_period: float = LOOK_PERIODS[backend]
        self._look_share: float = LOOK_SHARES[backend]
        self._query_at = 0.0
        self._look_at = 0.0
        self._signalled: list[int] = []
        self._ended = threading.Event()
        self._heart = Heart(self._is_idle, self._ended)
        self._threads: list[threading.Thread] = []
        self._later = GivingBackLater(functools.partial(self._start_thread, "give-back"), self._give_back_now)
        self.give_back: Callable[[Sequence[Callable[[], object]]], None] = self._later.make
        self.wait_given_back: Callable[[], bool] = self._later.join
        self.capture_turns: CaptureTurns = CaptureTurns()
        self._control: dict[Verb, Callable[[bytes, list[int]], None]] = {
            context_records.PROBE: self._probe,
            context_records.SERVE: self._serve,
            context_records.INJECT: self._inject,
            context_records.OPEN_LANE: self._open_lane,
            context_records.CLOSE_LANE: self._close_lane,
        }
        self._libc = ctypes.CDLL(None)
        self._libc.fflush.argtypes = [c_void_p]
        self._libc.fflush.restype = c_int
        self._libc.sched_yield.argtypes = []
        self._libc.sched_yield.restype = c_int

    # Services to the engines.

    def post(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a message to the user's process; when that is gone, so are we."""
        try:
            channel.send_message(self.sock, message, descriptors)
        except OSError:
            os._exit(EXIT_ORPHANED)

    def staged(self, place: int) -> int:
        """The address of a place in host memory, as a ``staging`` field of a record names it."""
        return self._memory.staged(place)

    def give_up(self, bug: BaseException) -> NoReturn:
        """End the process: what happened leaves nothing to go on with."""
        exit_by(bug)

    def bind_thread(self) -> None:
        """Make the context current in the calling thread."""
        self._context.bind_thread()

    def synchronize(self) -> None:
        """Wait until every stream is idle."""
        with self.capture_turns.synchronize():
            self._driver.cuCtxSynchronize()

    def lost(self, error: Any, operation: str) -> None:
        """Say once that the context is gone. Queued copies go on landing until the parent has killed this process."""
        with self._lost_lock:
            if self.poisoned:
                return
            self.poisoned = True
            self._state[POISONED] = 1
            self._heart.lost_at = time.monotonic()  # whatever holds up what follows, the process ends
            self._heart.rouse()
        if error.status == CUDA_ERROR_ASSERT:
            self._driver.cuCtxSynchronize.status()  # makes the driver print the assertion
        self._libc.fflush(None)
        self.post(
            {
                "kind": "lost",
                "status": error.status,
                "class": classify(error.status, error.library).value,
                "name": error.name,
                "text": channel.clip(error.text),
                "library": error.library,
                "operation": operation,
            }
        )

    # Start.

    def open_context(self, ahead: ContextAhead | None) -> None:
        """Load the code of the engines and the driver, and retain the primary context."""
        self.moments["imported"] = time.monotonic()
        from atomr_cuda import driver
        from atomr_cuda._library import CudaError, LibraryMissing

        if self.backend == "sim":
            import atomr_sim

            atomr_sim.install()
        self.cuda_error = CudaError
        self._giving_back = GivingBack(CudaError)
        self.library_missing = LibraryMissing
        self._driver = driver
        engines.load()
        self.moments["engines imported"] = time.monotonic()
        if wanted := os.environ.get(LIBRARIES_VARIABLE):
            self._start_thread("load-libraries", functools.partial(engines.load_libraries, wanted.split(",")))
        retained = ahead is not None and ahead.wait()
        self._context = Context(driver, self.device, self.base, self.extent)
        if retained:
            self._context.release()  # it is retained twice now
        self.moments |= {} if ahead is None else ahead.moments
        self.moments["addresses reserved"] = time.monotonic()

    def adopt(self) -> bool:
        """Receive what this generation works on; false when the parent closed the channel instead."""
        data, descriptors = channel.receive_bytes(self.sock, self._buffer)
        if not data:
            return False
        self.moments["adopted"] = time.monotonic()
        config = json.loads(data)
        channel.check_all_came(descriptors)
        page, staging, self._wake, self._bell, *others = descriptors
        ring, chunks = (others[:1], others[1:]) if config["ring"] else ([], others)
        self._page = TimelinePage(page)
        self._ring = Ring(ring[0]) if ring else None
        self._longest_spin = self._spin_seconds = config["spin_seconds"]
        page_address = self._context.register(self._page)
        self._staging = SharedMemory(staging, config["staging_bytes"])
        self.staging_address = self._context.register(self._staging)
        self.moments["host memory registered"] = time.monotonic()
        self.durable = config["durable"] and self._context.shares_memory
        self._page_address = page_address
        self.rehearses = True
        self._lanes = {}
        for index in range(LANES):
            self._add_lane(index).open()
        self.moments["lanes opened"] = time.monotonic()
        self.workspaces = Workspaces(self._page.words)
        self.engines = engines.build(self)
        memory = self.engines[MEMORY.number]
        assert isinstance(memory, MemoryEngine)
        self._memory = memory
        self._control |= ChunkRecords(self, memory).calls
        modules = self.engines[MODULE.number]
        assert isinstance(modules, ModuleEngine)
        self._verbs = {
            (number, verb.number): (verb, engine.calls[verb.number])
            for number, engine in self.engines.items()
            for verb in engine.table.verbs
        }
        self._questions = {
            engine.control_table.number: engine.controls
            for engine in self.engines.values()
            if isinstance(engine, QuestionedEngine)
        }
        self._ready = ReadyCalls(self.engines, modules, self._verbs)
        self._native, python_loop = native.loop_for(
            backend=self.backend,
            driver=self._driver,
            loop=self._loop,
            ring=self._ring,
            page=self._page,
            page_on_device=page_address,
            patience=IDLE_SECONDS,
            give_up=exit_by,
        )
        self.moments["engines made"] = time.monotonic()
        self._memory.peers.reserve((base, extent) for base, extent in config.get("peers", ()))
        for (address, size), descriptor in zip(config["chunks"], chunks, strict=True):
            self._memory.adopt_chunk(address, size, descriptor)
        self.moments["memory imported"] = time.monotonic()
        self._context.test(self._lanes[LANE_COMPUTE].stream, page_address, self._page.words, SELF_TEST_WORD)
        self.moments["self-test"] = time.monotonic()
        self._start_threads()
        free, _ = self._memory.memory_info()
        facts = {
            **self._context.facts(),
            "free_memory": free,
            "durable": self.durable,
            "python_loop": python_loop,
            "no_reading": reason_against(self.user_process, *config["beacon"]),
        }
        self.moments["facts asked"] = time.monotonic()
        self.post({"kind": "ready", **facts, "moments": self.moments})
        return True

    def _add_lane(self, index: int, priority: int = 0) -> Lane:
        groups = None if self._ring is None else self._ring.groups
        lane = Lane(index, self._page, self._page_address, groups, self, priority)
        self._lanes = {**self._lanes, index: lane}  # other threads go through the one that was there
        return lane

    # Threads.

    def _start_threads(self) -> None:
        self._ended.clear()
        self._heart.words = self._page.words
        watching = {"beat": self._heart.beat, "monitor": self._monitor, "flush_printf": self._flush_printf}
        self._threads = [self._start_thread(name, target) for name, target in watching.items()]

    def _start_thread(self, name: str, target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=_guarded, args=(target,), name=name, daemon=True)
        thread.start()
        return thread

    def _end_threads(self) -> None:
        self._ended.set()
        self._heart.rouse()
        self._work.set()
        self._flush_wanted.set()
        for thread in self._threads:
            thread.join()
        self._work.clear()
        self._flush_wanted.clear()

    def _is_idle(self) -> bool:
        """Return whether the loop's thread sleeps, and nothing else has work either."""
        return self._ring is not None and not self._awake and not any(lane.busy for lane in tuple(self._lanes.values()))

    def _monitor(self) -> None:
        """Look after the lanes whenever the loop's thread does not: while it sleeps, or is held up inside a call.

        While that one is awake it looks itself: two threads would fight for the interpreter.
        """
        self.bind_thread()
        sleep_precisely()
        turns, signalled, since = -1, self._signalled, time.perf_counter()
        while not self._ended.is_set():
            if (not self._awake or turns == self._state[TURNS]) and self._look():
                now = time.perf_counter()
                if self._signalled is not signalled:
                    signalled, since = self._signalled, now
                time.sleep(max(self._look_period, min((now - since) * self._look_share, LONGEST_LOOK_PERIOD)))
                continue
            turns = self._state[TURNS]
            self._work.clear()
            if self._awake:
                self._work.wait(HELD_UP_SECONDS)
            elif not self._ended.is_set() and not any(lane.busy for lane in self._lanes.values()):
                self._work.wait()
            since = time.perf_counter()

    def _look(self) -> bool:
        """Wake the parent if it sleeps and a ticket came, and ask busy streams for faults; whether anything is busy."""
        self._tell_parent()  # first: the driver takes some time to answer
        busy, now = False, time.perf_counter()
        asks = now >= self._query_at and not self.poisoned
        if asks:
            self._query_at = now + QUERY_PERIOD
        for lane in self._lanes.values():
            if lane.busy:
                busy = True
                if asks:
                    self._query(lane)
        if not busy and self.prints and self._printed and not self.poisoned:
            self._printed = False
            self._flush_wanted.set()
        return busy

    def _tell_parent(self) -> None:
        """Wake the parent if it sleeps and a ticket came that nobody has woken it for."""
        if self._page.words[ASLEEP_WORD]:
            finished = [lane.finished for lane in self._lanes.values()]
            if finished != self._signalled:
                self._signalled = finished
                os.eventfd_write(self._wake, 1)

    def _query(self, lane: Lane) -> None:
        query = self._driver.cuStreamQuery
        status = lane.query(query.status)
        if status not in (0, CUDA_ERROR_NOT_READY) and classify(status) in (StatusClass.POISONS, StatusClass.GONE):
            self.lost(query.library.error(status, query.symbol), "stream query")

    def _flush_printf(self) -> None:
        """Device ``printf`` waits in a buffer until a stream is synchronised.

        In a thread of its own: by the time it synchronises there may be a long kernel again.
        """
        self.bind_thread()
        while True:
            self._flush_wanted.wait()
            self._flush_wanted.clear()
            if self._ended.is_set():  # asked after the clearing, which may have cleared the call to end
                return
            for lane in self._lanes.values():
                lane.ask(self._driver.cuStreamSynchronize.status)
            self._libc.fflush(None)  # the driver prints through C's own buffers

    # The loop.

    def run(self) -> Verb:
        """Run records in the order they come, until one asks for the end: `CLOSE` or `RESET`, which it returns."""
        if self._ring is None:
            return self._run_socket()
        return self._run_ring(self._ring)

    def _run_socket(self) -> Verb:
        words = self._page.words
        while True:
            data, descriptors = self._receive()
            words[RECORDS_READ_WORD] += 1
            if (end := self._take(data, descriptors)) is not None:
                return end

    def _run_ring(self, ring: Ring) -> Verb:
        """See ``ring.py`` for who writes what. A launch that is ready is made straight from its slot.

        While launches follow each other on one lane, what has to be kept of it is kept in local variables, and the lane
        hears of them together, at `bound` at the latest.
        """
        words, slots, ready, native = self._page.words, ring.slots, self._ready, self._native
        patience, hurried = sys.getswitchinterval(), False
        unpack, get_ready = LAUNCH_RECORD.unpack_from, ready.calls.get
        full = FullLane(
            words,
            slots,
            lambda: self._lanes,
            lambda: self.poisoned,
            self._take_from_ring,
            self._look_while_full,
            self._longest_spin,
            self._look_period,
        )
        self._awake = True
        base = addressof(c_char.from_buffer(ring.map)) + BEHIND
        read = words[RECORDS_READ_WORD]

        def note_work() -> None:
            self._printed = True

        duties = Duties(
            note_work,
            self._sign_idle_lanes,
            self._look,
            self._offer_room,
            self._tell_parent,
            self._sleep,
            lambda: self._spin_seconds,
            self._expects_a_record,
        )
        while True:
            if native is not None:
                native.serve(duties, self._look_period)
                read = words[RECORDS_READ_WORD]
            sent, first = words[RECORDS_SENT_WORD], read
            if sent == read:
                self._wait_for_record(read)
                continue
            self._state[TURNS] += 1
            lane: Lane | None = None
            signs = False
            last = bound = 0
            while read < sent:
                at = (read & SLOT_MASK) << SLOT_SHIFT
                number, ticket, launch = unpack(slots, at)
                if native is not None and read != first and native.takes(launch):
                    break
                read += 1
                if number != read:
                    raise ValueError(f"slot {at >> SLOT_SHIFT} of the ring has record {number} instead of {read}")
                if full.has_taken(number):
                    continue
                hot = get_ready(launch)
                if hot is None or hot.joins is not lane or ticket > bound or ticket != last + 1:
                    if lane is not None:
                        lane.made_hot(last, signs=signs)
                        lane, bound = None, 0  # no launch may join what the lane has heard of
                        words[RECORDS_READ_WORD] = read - 1
                    if hot is None:
                        hot = ready.of_record(slots, at, self._lanes)
                    if hot is not None and not hot.lane.takes_at_once(ticket):
                        words[RECORDS_READ_WORD] = read - 1
                        waited = full.wait(hot.lane, ticket, read)
                        hot = ready.of_record(slots, at, self._lanes) if waited else None  # it may be another by now
                    if hot is None or not hot.lane.takes_at_once(ticket):
                        if (queued := ready.queued(slots, at, self._lanes)) is not None:
                            self._give(*queued)
                            if not hurried:
                                sys.setswitchinterval(_HURRIED_SECONDS)
                                hurried = True
                            continue
                        if hurried:  # an ordinary command takes longer when threads take turns so often
                            sys.setswitchinterval(patience)
                            hurried = False
                        if (end := self._take_from_ring(slots, at)) is not None:
                            words[RECORDS_READ_WORD] = read
                            return end
                        continue
                    if native is not None and hot.native is not None and ready.holds(launch, hot):
                        native.add(launch, hot)
                    lane, signs = hot.lane, hot.joins is None
                    bound = ticket if signs else lane.bound_of_group(ticket)
                words_of = hot.words
                status = hot.call(base + at if words_of is None else words_of(slots, at + BEHIND))
                last = ticket
                if status:
                    hot.lane.failed_hot(hot.verb, ticket, hot.error(status))
            if lane is not None:
                lane.made_hot(last, signs=signs)
            words[RECORDS_READ_WORD] = read
            self._printed = True

    def forget_hot(self) -> None:
        """Some launches that were made ready for the ring are not valid any more. Called by any thread."""
        self._ready.forget()
        self._state[STALE] = 1

    def _take_from_ring(self, slots: memoryview, at: int) -> Verb | None:
        _, lane, _, _, waits, length = HEADER.unpack_from(slots, at + NUMBER.size)
        if lane == SOCKET_LANE:
            return self._take(*self._receive())
        size = HEADER.size + 8 * waits + length
        if size > MAX_RECORD:
            raise ValueError(f"a record of {size} bytes has no place in a slot of the ring")
        return self._take(bytes(slots[at + NUMBER.size : at + NUMBER.size + size]), [])

    def _wait_for_record(self, read: int) -> None:
        """Until there are more than `read` records: look for some time, then sleep on the doorbell."""
        words = self._page.words
        sched_yield, clock = self._libc.sched_yield, time.perf_counter
        begun = now = clock()
        until, look_at, sign_at = now + self._spin_seconds, now + self._look_period, now + IDLE_SECONDS
        while words[RECORDS_SENT_WORD] == read:
            # Through ctypes, so that it gives up the interpreter's lock as well: a spinner starves its neighbours.
            sched_yield()
            now = clock()
            if now > sign_at:
                self._sign_idle_lanes()
                sign_at = math.inf
            if now > look_at:
                look_at = now + self._look_period
                self._state[TURNS] += 1
                self._look()
                self._offer_room()
            elif words[ASLEEP_WORD]:
                self._tell_parent()
            if now > until:
                if self._expects_a_record(now - begun):
                    until = now + self._spin_seconds
                else:
                    self._sleep(read)

    def _look_while_full(self) -> None:
        """A turn of the loop's thread while it waits for room in a lane."""
        self._libc.sched_yield()
        self._state[TURNS] += 1
        if time.perf_counter() > self._look_at:
            self._look_at = time.perf_counter() + self._look_period
            self._look()
        elif self._page.words[ASLEEP_WORD]:
            self._tell_parent()

    def _offer_room(self) -> None:
        """The ring is empty: say so to a sender that waits for room in it."""
        words = self._page.words
        if words[SENDER_WAITS_WORD]:
            words[SENDER_WAITS_WORD] = 0
            self.post({"kind": "room"})

    def _sign_idle_lanes(self) -> None:
        for lane in self._lanes.values():
            lane.sign_when_idle()

    def _expects_a_record(self, waited: float) -> bool:
        """Return whether the parent polls for the end of a command, and will soon see it; `waited` are seconds."""
        return (
            waited < SPINS_BESIDE_PARENT * self._longest_spin
            and not self._page.words[ASLEEP_WORD]
            and any(lane.busy for lane in self._lanes.values())
        )

    def _sleep(self, read: int) -> None:
        """Sleep on the doorbell. Polling is for records that come soon: each that does not come halves its time.

        One that comes so soon that polling would have found it brings the whole time back.
        """
        begun = time.perf_counter()
        self._sign_idle_lanes()
        words = self._page.words
        self._awake = False
        self._work.set()
        words[WORKER_ASLEEP_WORD] = 1
        fence()
        self._offer_room()
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        net = NET_SECONDS
        while words[RECORDS_SENT_WORD] == read:
            if poll.poll(net * 1000):
                os.eventfd_read(self._bell)
            net = LATER_NET_SECONDS
        words[WORKER_ASLEEP_WORD] = 0
        if time.perf_counter() - begun <= self._longest_spin:
            self._spin_seconds = self._longest_spin
        else:
            self._spin_seconds = max(self._longest_spin / LEAST_SPIN, self._spin_seconds / 2)
        self._awake = True
        self._heart.rouse()
        self._work.set()

    def _receive(self) -> tuple[bytes, list[int]]:
        data, descriptors = channel.receive_bytes(self.sock, self._buffer)
        if not data:
            os._exit(EXIT_ORPHANED)
        return data, descriptors

    def _take(self, data: bytes, descriptors: list[int]) -> Verb | None:
        """Give a record to its lane, or do what it asks of the worker itself; the verb if it asks for the end."""
        ticket, lane, engine, verb_number, wait_count, length = HEADER.unpack_from(data)
        start = HEADER.size + 8 * wait_count
        if len(data) != start + length:
            raise ValueError(f"a record of {len(data)} bytes says it has {start + length}")
        if lane == CONTROL_LANE:
            if engine in self._questions:
                self._questions[engine][verb_number](data[start:])
                return None
            control: Verb = context_records.CONTEXT.verbs[verb_number]
            if control in _ENDS:
                return control
            self._control[control](data[start:], descriptors)
            return None
        payload, words = data[start:], range(HEADER.size, start, 8)
        if verb_number & REPEATED:
            payload, words = general_payload(data[HEADER.size :], wait_count), range(0)
        awaited = [decode_wait(int.from_bytes(data[at : at + 8], "little")) for at in words]
        waits = [(self._lanes[other], reached, required) for other, reached, required in awaited]
        verb, call = self._verbs[engine, verb_number & VERB_NUMBERS]
        unsigned = bool(verb_number & UNSIGNED)
        self._give(self._lanes[lane], Command(verb, call, ticket, waits, payload, descriptors, unsigned=unsigned))
        return None

    def _give(self, lane: Lane, command: Command) -> None:
        lane.accept(command)
        self._printed = True
        if not self._awake and not self._work.is_set():
            self._work.set()

    # Control records.

    def _probe(self, payload: bytes, descriptors: list[int]) -> None:
        for lane in self._lanes.values():
            self._query(lane)
        if not self.poisoned:
            self.post({"kind": "probed"})

    def _serve(self, payload: bytes, descriptors: list[int]) -> None:
        self.rehearses = False

    def _open_lane(self, payload: bytes, descriptors: list[int]) -> None:
        index, priority = context_records.OPEN_LANE.struct.unpack(payload)
        lane = self._add_lane(index, priority)
        with contextlib.suppress(self.cuda_error):  # its first command tries again, and can fail alone
            lane.open()

    def _close_lane(self, payload: bytes, descriptors: list[int]) -> None:
        """Nothing names it any more. What it had goes back to the driver in a thread: that may wait for what runs."""
        (index,) = context_records.CLOSE_LANE.struct.unpack(payload)
        lane = self._lanes[index]
        lane.finish()
        self._lanes = {number: other for number, other in self._lanes.items() if number != index}
        self.forget_hot()
        calls = [call for engine in self.engines.values() for call in engine.forget_lane(index)]
        if calls:
            self.give_back([*calls, *lane.close()])
        else:
            self._give_back_now(lane.close())

    def _give_back_now(self, calls: Sequence[Callable[[], object]]) -> None:
        """Make calls that end something, each of them whatever becomes of the others."""
        try:
            self.bind_thread()
            self._giving_back.make(calls)
        except self.cuda_error as error:
            if classify(error.status, error.library) in (StatusClass.POISONS, StatusClass.GONE):
                self.lost(error, context_records.CLOSE_LANE.operation)

    def _inject(self, payload: bytes, descriptors: list[int]) -> None:
        if self.backend != "sim":
            raise ValueError("calls of a real driver cannot be made to fail")
        import atomr_sim

        wanted = json.loads(payload)
        if wanted["instead"]:
            atomr_sim.withdraw()
        atomr_sim.inject(wanted["faults"])

    # The end.

    def release(self) -> None:
        """Give back, in order, what `adopt` took and what the engines made; what still runs must come to an end."""
        for lane in self._lanes.values():
            lane.finish()
        self._later.join()
        self._driver.cuCtxSynchronize()
        self._libc.fflush(None)  # what kernels printed last; os._exit leaves C's buffers as they are
        self._end_threads()
        for engine in reversed(self.engines.values()):
            engine.close()
        for lane in self._lanes.values():
            for call in lane.close():
                call()
        for memory in (self._page, self._staging):
            self._context.unregister(memory)
            memory.close()
        if self._ring is not None:
            self._ring.close()
        os.close(self._wake)
        os.close(self._bell)
        self.prints = False
        self._printed = False

    def reset(self) -> None:
        """Become as it was before the adoption, the simulated driver's injected faults included."""
        self.release()
        if self.backend == "sim":
            import atomr_sim

            atomr_sim.withdraw()

    def close(self) -> None:
        """Give the context back as well."""
        self.release()
        self._context.release()


_ENDS = (context_records.CLOSE, context_records.RESET)


def exit_by(bug: BaseException) -> NoReturn:
    """End the process because of something that it cannot go on after, whether that can be told or not."""
    words = shortage(bug)
    try:
        import traceback

        traceback.print_exception(bug)
        if words is not None:
            print(words, file=sys.stderr)
        sys.stderr.flush()
    finally:
        os._exit(EXIT_BUG if words is None else EXIT_NO_HOST_MEMORY)


def _guarded(target: Callable[[], None]) -> None:
    """Run what a thread is for. One that ended by an exception would leave a worker that does only part of its work."""
    try:
        target()
    except BaseException as bug:
        exit_by(bug)


def _watch_socket(sock: socket.socket) -> None:
    """End the process when the parent's end is closed, whatever the loop thread is doing."""
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLRDHUP)
    poll.poll()
    os._exit(EXIT_ORPHANED)


def _report_failure(sock: socket.socket, error: BaseException, advice: str | None = None) -> None:
    channel.send_message(sock, failure_message(error, advice))


def serve(worker: Worker) -> None:
    """Be adopted and run records, again after each reset."""
    while True:
        worker.post({"kind": "hello"})
        try:
            if not worker.adopt():
                os._exit(EXIT_ORPHANED)
        except Exception as error:
            _report_failure(worker.sock, error)
            os._exit(EXIT_BUG)
        end = worker.run()
        if worker.poisoned:
            return  # whoever asked reads of the loss, and of the exit
        if end is context_records.CLOSE:
            worker.close()
            return
        worker.reset()


def main(arguments: Sequence[str], ahead: ContextAhead | None = None) -> None:
    """Run a worker: socket descriptor, parent's process number, backend, device, base and extent of its addresses.

    `ahead` is what ``begin.py`` has begun.
    """
    descriptor, parent, backend, device, base, extent = arguments
    die_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the driver may run a program, and wants to know how that ended
    if ahead is None:
        raise_descriptor_limit()
    sock = socket.socket(fileno=int(descriptor))
    try:
        watch = functools.partial(_watch_socket, sock)
        threading.Thread(target=_guarded, args=(watch,), name="parent-watch", daemon=True).start()
        worker = Worker(sock, backend, int(device), int(base), int(extent))
        worker.open_context(ahead)
        raise_descriptor_limit()  # not before: see ``begin.py``
    except Exception as error:
        from .._wire.machine import of_failed_start

        _report_failure(sock, error, of_failed_start(backend, int(device), error))
        os._exit(EXIT_BUG)
    serve(worker)
    sys.stdout.flush()
    sys.stderr.flush()
    # No interpreter shutdown: daemon threads of ours may be inside the driver.
    os._exit(0)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BaseException as _bug:
        exit_by(_bug)
