"""The native loop: the launches of the ring and their tickets without the interpreter.

The code is that of ``native_code.py``. It runs the records that it knows from a table, which this module fills, and
returns with a reason for everything else. Python then goes on, and comes back. While the code runs, other threads have
the interpreter.

Mapping the code needs the standard library alone. A system may forbid it; then the loop of Python runs, which does the
same (docs/architecture/native-loop.md).
"""

from __future__ import annotations

import binascii
import ctypes
import functools
import mmap
import os
import struct
import time
from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, c_int, c_long, c_size_t, c_uint, c_uint64, c_void_p, cast
from typing import Any, Final, NamedTuple

from .._wire.backends import NATIVE_VARIABLE, native_loop_wanted
from .._wire.channel import TimelinePage
from .._wire.protocol import MAX_LANES, RECORDS_READ_WORD, counter_word
from .._wire.ring import GROUPS, ORDERED_STORES, Ring
from . import native_code, native_layout
from .base.lanes import Following, HotCall, Lane, NativeLaunch, Target
from .base.pointers import pointer_to
from .base.shared_words import (
    CLOCK_GETTIME,
    COUNTER,
    COUNTER_ON_DEVICE,
    ENTRY,
    LANE_GROUPS,
    LAUNCH,
    MOST,
    PAGE_ADDRESS,
    PART,
    PATIENCE,
    SCHED_YIELD,
    SLOTS_ADDRESS,
    STALE,
    STATUS,
    TABLE,
    TABLE_MASK,
    TOLD,
    WRITE_VALUE,
    Words,
    address_of,
)
from .native_layout import (
    CALL_WORDS,
    ENTRY_STRIDE,
    ENTRY_WORDS,
    KEY_BYTES,
    KEY_WORDS,
    LINK_WORDS,
    TARGET_WORDS,
    Reason,
    hash_of,
)

LAUNCH_TYPE: Final = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_void_p)
WRITE_TYPE: Final = CFUNCTYPE(c_int, c_void_p, c_uint64, c_uint64, c_uint)
_RUN_TYPE = CFUNCTYPE(c_uint64, c_void_p)

_NOEXEC_SEAL = 0x0008
"""``MFD_NOEXEC_SEAL``: this file is never a program. Linux 6.3 and newer know it, and may insist on it."""
_SEALS = (1 << 1) | (1 << 2) | (1 << 3) | (1 << 0)
"""``F_SEAL_SHRINK``, ``F_SEAL_GROW``, ``F_SEAL_WRITE`` and ``F_SEAL_SEAL``."""
_ADD_SEALS = 1033
_MAP_FAILED = c_void_p(-1).value

_PLACES = 4096
_MOST_KNOWN = _PLACES // 2
_RECORDS = 256
"""The records after which the code returns, so that the lanes are looked after while the ring never becomes empty."""
_KEY = struct.Struct(f"={KEY_WORDS}Q")
_LANE, _SIGNS, _CALL, _CONFIG, _FUNCTION, _SIZE = (
    ENTRY_WORDS.index(name) for name in ("lane", "signs", "call", "config", "function", "size")
)


class Unavailable(Exception):
    """The native loop does not run here; the text says why."""


def check(backend: str, wanted: bool | None) -> None:
    """Raise `Unavailable` with the reason if this worker is not to run the native loop, or cannot.

    `wanted` is the result of `native_loop_wanted`.
    """
    if wanted is False:
        raise Unavailable(f"{NATIVE_VARIABLE}=0")
    if backend == "sim" and not wanted:
        raise Unavailable(f"a simulated device has functions of Python; {NATIVE_VARIABLE}=1 runs it nevertheless")
    if not ORDERED_STORES:
        raise Unavailable("it exists for x86-64 Linux only")
    if native_code.LAYOUT != native_layout.LAYOUT:
        raise Unavailable("its code was made for other records; `make native` makes it anew")


@functools.cache
def mapped() -> Callable[[int], int]:
    """Map the code into this process and return its function. Raises `Unavailable`."""
    code = binascii.a2b_base64(native_code.CODE)
    try:
        address = _map(code)
    except OSError as error:
        raise Unavailable(f"the system does not allow its code: {error.strerror or error}") from None
    if ctypes.string_at(address, len(code)) != code:
        raise Unavailable("its code is not in the memory that was mapped")
    return _RUN_TYPE(address)


def _map(code: bytes) -> int:
    """Return the address of executable memory with this content, which nobody can change. Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fcntl.argtypes = [c_int, c_int, c_int]
    libc.mmap.argtypes = [c_void_p, c_size_t, c_int, c_int, c_int, c_long]
    libc.mmap.restype = c_void_p
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        descriptor = os.memfd_create("atomr-trio-native", flags | _NOEXEC_SEAL)
    except OSError:
        descriptor = os.memfd_create("atomr-trio-native", flags)
    try:
        os.write(descriptor, code)
        if libc.fcntl(descriptor, _ADD_SEALS, _SEALS):
            raise _last_error()
        address = libc.mmap(None, len(code), mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, descriptor, 0)
    finally:
        os.close(descriptor)
    if address is None or address == _MAP_FAILED:
        raise _last_error()
    return int(address)


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


class Duties(NamedTuple):
    """The duties of the loop's thread besides records: functions of the worker, of which `_run_ring` says when."""

    note_work: Callable[[], None]
    """Something was made, which may print."""
    sign_idle_lanes: Callable[[], None]
    look: Callable[[], object]
    offer_room: Callable[[], None]
    tell_parent: Callable[[], None]
    sleep: Callable[[int], None]
    """Sleep until there are more than so many records."""
    spin_seconds: Callable[[], float]
    """The time without a record after which the thread sleeps. Each sleep may change it."""
    expects_a_record: Callable[[float], bool]
    """Whether it goes on without sleep for as long again, after so many seconds without a record."""


class NativeLoop:
    """The table of the launches that the code knows, and its way in."""

    def __init__(
        self,
        run: Callable[[int], int],
        loop: Words,
        ring: Ring,
        page: TimelinePage,
        page_on_device: int,
        launch: Any,
        write_value: Any,
        patience: float,
    ) -> None:
        """`loop` are the words of `LOOP_WORDS`; `page_on_device` is the page's address for the device; `launch` and
        `write_value` are pointers to the driver's functions.

        The code waits `patience` seconds for a record.
        """
        self._run = run
        self._address = loop.address
        self._state = loop.view
        self._words = page.words
        libc = ctypes.CDLL(None)
        self._pointers = (launch, write_value, libc.sched_yield, libc.clock_gettime)  # which must live as long
        self._memory = mmap.mmap(-1, _PLACES * ENTRY_STRIDE * 8)
        self._table: memoryview[int] = memoryview(self._memory).cast("Q")
        self._table_address = address_of(memoryview(self._memory))
        self.known: Final[dict[bytes, HotCall]] = {}
        """The launches that the code knows, by what is the same in each of their records."""
        self._places: dict[int, HotCall] = {}
        self._following: dict[int, Sequence[Following]] = {}
        """By the address of their entries: the functions that follow others."""
        self._kept: list[object] = []
        """The owners of what the entries point to."""
        state = self._state
        state[SLOTS_ADDRESS] = address_of(ring.slots)
        state[PAGE_ADDRESS] = address_of(page.bytes)
        self._page_on_device = page_on_device
        self._groups = address_of(ring.groups)
        state[TABLE] = self._table_address
        state[TABLE_MASK] = _PLACES - 1
        for place, pointer in zip((LAUNCH, WRITE_VALUE, SCHED_YIELD, CLOCK_GETTIME), self._pointers, strict=True):
            state[place] = cast(pointer, c_void_p).value or 0
        state[MOST] = _RECORDS
        state[PATIENCE] = int(patience * 1e9)
        state[STALE] = 0

    def run(self) -> int:
        """Run what the code knows, and return why it stopped: a `Reason`."""
        return self._run(self._address)

    def serve(self, duties: Duties, look_period: float) -> None:
        """Run the launches that the code knows and wait for records, until the next one is for Python.

        The thread looks after the lanes every `look_period`, in seconds.
        """
        words, clock = self._words, time.perf_counter
        read, signed = words[RECORDS_READ_WORD], False
        since = now = clock()
        until, look_at = now + duties.spin_seconds(), now + look_period
        while True:
            reason = self.run()
            if reason == Reason.RECORD:
                if not self._state[STALE]:
                    return
                self.forget()
                continue
            if reason == Reason.TELL:
                self._counters_are_told()
                duties.tell_parent()
                continue
            if words[RECORDS_READ_WORD] != read:
                read, signed = words[RECORDS_READ_WORD], False
                duties.note_work()
            now = clock()
            if reason == Reason.EMPTY:
                if not signed:
                    duties.sign_idle_lanes()
                    since, until, signed = now, now + duties.spin_seconds(), True
                if now > look_at:
                    look_at = now + look_period
                    duties.look()
                    duties.offer_room()
                if now > until:
                    if duties.expects_a_record(now - since):
                        until = now + duties.spin_seconds()
                    else:
                        duties.sleep(read)
                        since = clock()
                        until = since + duties.spin_seconds()
            elif reason == Reason.MOST:
                duties.look()
            elif reason == Reason.FAILED and self._places[self._state[ENTRY]].again:
                return  # the record is not counted as read, so Python takes it
            else:
                self._go_on_behind(reason)

    def _go_on_behind(self, reason: int) -> None:
        """Do what is left of a launch that the code has made, or that the driver has refused to it."""
        hot, status = self._places[self._state[ENTRY]], self._state[STATUS]
        lane = hot.lane
        if reason == Reason.WAITERS:
            lane.tell_waiting()
            return
        if reason == Reason.FAILED:
            ticket = lane.accepted + 1
            part = self._state[PART]
            error = self._following[self._state[ENTRY]][part - 1].refused if part else hot.error
            lane.failed_hot(hot.verb, ticket, error(status))
            lane.made_hot(ticket, signs=hot.joins is None)
        else:
            lane.ticket_refused_hot(lane.accepted, status)
        self._words[RECORDS_READ_WORD] += 1

    def takes(self, launch: bytes) -> bool:
        """Return whether the code would probably make this launch: it knows it, and the lane has none before it."""
        hot = self.known.get(launch)
        return hot is not None and not hot.lane.pending

    def add(self, launch: bytes, hot: HotCall) -> None:
        """Let the code make a launch or call from now on. Called by the loop's thread, as all that changes the table.

        One that native code cannot make is not asked for again.
        """
        if self._state[STALE] or len(self.known) >= _MOST_KNOWN:
            self.forget()
        if launch in self.known or hot.native is None or len(launch) != KEY_BYTES:
            return
        native = hot.native()
        if native is None:
            hot.native = None
            return
        words, key = self._table, _KEY.unpack(launch)
        place = hash_of(key) % _PLACES
        while words[place * ENTRY_STRIDE + _LANE]:
            place = (place + 1) % _PLACES
        at = place * ENTRY_STRIDE
        for offset, word in enumerate(key):
            words[at + offset] = word
        words[at + _SIGNS] = hot.joins is None
        if isinstance(native, NativeLaunch):
            words[at + _CALL] = 0
            words[at + _CONFIG] = native.config
            words[at + _FUNCTION] = native.function
            words[at + _SIZE] = native.parameter_bytes
            self._kept.append(native.keep)
        else:
            links: list[Words] = []
            then = 0
            for each in reversed(native.then):
                link = Words(len(LINK_WORDS))
                link.set((each.function, each.arguments.address, then, each.guard, each.expected, 0))
                links.append(link)
                then = link.address
            targets = list(native.targets)
            call = Words(len(CALL_WORDS) + len(TARGET_WORDS) * (len(targets) + 1))
            if native.returned is not None:
                targets.append(Target(native.returned, call.address + 8 * LINK_WORDS.index("returns")))
            given = [native.function, native.arguments.address, then, native.guard, native.expected, 0]
            given += [max(native.entries - 1, 0), len(targets)]
            for target in targets:
                given += [8 * target.word, target.most, target.base, target.address]
            call.set(given)
            self._following[self._table_address + at * 8] = native.then
            words[at + _CALL] = call.address
            self._kept.append((native, call, links))
        self._show(hot.lane)
        words[at + _LANE] = hot.lane.shared.address
        self.known[launch] = hot
        self._places[self._table_address + at * 8] = hot

    def _show(self, lane: Lane) -> None:
        """Write where the counter of a lane is, and the sizes of its groups."""
        counter, words = counter_word(lane.index) * 8, lane.shared.view
        words[COUNTER] = self._state[PAGE_ADDRESS] + counter
        words[COUNTER_ON_DEVICE] = self._page_on_device + counter
        words[LANE_GROUPS] = self._groups + lane.index * GROUPS

    def forget(self) -> None:
        """Empty the table. What its entries point to may go only now, not when another thread says so."""
        self._state[STALE] = 0
        if self.known:
            ctypes.memset(self._table_address, 0, len(self._memory))
        self.known.clear()
        self._places.clear()
        self._following.clear()
        self._kept.clear()

    def _counters_are_told(self) -> None:
        """The user's process is going to be told of all that the counters show now."""
        self._state[TOLD] = sum(self._words[counter_word(lane)] for lane in range(MAX_LANES)) % (1 << 64)


def loop_for(
    *,
    backend: str,
    driver: Any,
    loop: Words,
    ring: Ring | None,
    page: TimelinePage,
    page_on_device: int,
    patience: float,
    give_up: Callable[[BaseException], object],
) -> tuple[NativeLoop | None, str | None]:
    """Return the native loop of a worker; or None, and the reason why its loop is the one of Python."""
    if ring is None:
        return None, "records come through the socket"
    try:
        check(backend, native_loop_wanted())
        run = mapped()
    except Unavailable as error:
        return None, str(error)
    launch = pointer_to(driver.cuLaunchKernelEx, give_up)
    write = pointer_to(driver.cuStreamWriteValue64, give_up)
    return NativeLoop(run, loop, ring, page, page_on_device, launch, write, patience), None


def address_of_function(run: Callable[[int], int]) -> int:
    """Return the address of the code of what `mapped` returned."""
    return cast(run, c_void_p).value or 0  # type: ignore[arg-type]
