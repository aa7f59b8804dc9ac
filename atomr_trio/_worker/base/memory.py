"""Memory: chunks of the arena, copies from and to the host, copies on the device, fills, and pinned host memory."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from ctypes import addressof, byref, c_char, c_int, c_size_t, c_uint64
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from atomr_cuda.constants import driver as cuda

from ..._wire.channel import SharedMemory
from ..._wire.protocol import CELL, DRIVER_LIMIT
from ..._wire.records.memory import (
    AREA_SHIFT,
    BOX,
    COPY,
    COPY_ENDS,
    COPY_IN,
    COPY_IN_BOX,
    COPY_IN_MANY,
    COPY_IN_READ,
    COPY_IN_STREAM,
    COPY_MANY,
    COPY_OUT,
    COPY_OUT_BOX,
    COPY_OUT_MANY,
    COPY_OUT_STREAM,
    COPY_WORDS,
    CREATE_CHUNK,
    FILL,
    FILL_START,
    FILL_WORDS,
    MAP_PEER,
    MEMORY,
    OFFSET_MASK,
    PLACES_OF_A_BOX,
    PLACES_OF_A_READ,
    PLACES_OF_PINNED,
    REGISTER_HOST,
    RELEASE_CHUNK,
    SLOT,
    STAGING_AREA,
    UNMAP_PEER,
    UNREGISTER_HOST,
)
from .calls import made_ready, no_status
from .chunks import Chunks
from .giving_back import GivingBack
from .lanes import NativeCall, Ready, Target
from .native_calls import Word, native_call
from .peers import PeerMemory
from .reading import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .lanes import Command, Lane, RecordWords, WorkerServices

_POLL_SECONDS = 200e-6
_RELEASE_SECONDS = 1.0
SEED_BYTES = 64 * 1024
"""The part of a fill with a wide pattern that is written item by item, before copies double it."""
WORD_BYTES = 8
"""The bytes of a word of a ready record."""
_PLACES_OF_A_RUN = tuple(range(0, COPY_IN.struct.size, 8))
"""The offsets of the fields of `COPY_IN` and `COPY_OUT`."""
_NOT_MADE = -1
"""The status of a copy that was not made."""
_ENTRIES_OF_A_2D_FILL = 4
"""At most: on an H200 fewer than 400 pairs of these fills filled a stream, so one makes more than one entry."""


class _Way(NamedTuple):
    """The kinds of memory of a copy, and the function that copies a single run of bytes."""

    destination: int
    source: int
    run: str


_IN = _Way(cuda.CU_MEMORYTYPE_DEVICE, cuda.CU_MEMORYTYPE_HOST, "cuMemcpyHtoDAsync")
_OUT = _Way(cuda.CU_MEMORYTYPE_HOST, cuda.CU_MEMORYTYPE_DEVICE, "cuMemcpyDtoHAsync")
_ON_DEVICE = _Way(cuda.CU_MEMORYTYPE_DEVICE, cuda.CU_MEMORYTYPE_DEVICE, "cuMemcpyDtoDAsync")
_ADDRESS_FIELDS = {cuda.CU_MEMORYTYPE_HOST: "Host", cuda.CU_MEMORYTYPE_DEVICE: "Device"}


def _describe(shape: Any, way: _Way, destination: tuple[int, int], source: tuple[int, int]) -> None:
    """Fill in the fields that rectangles and boxes have in common: each side's address and pitch."""
    for prefix, memory, (address, pitch) in (("dst", way.destination, destination), ("src", way.source, source)):
        setattr(shape, f"{prefix}MemoryType", memory)
        setattr(shape, f"{prefix}{_ADDRESS_FIELDS[memory]}", address)
        setattr(shape, f"{prefix}Pitch", pitch)


def _refused(function: Any, status: int) -> Exception:
    error: Exception = function.library.error(status, function.symbol)
    return error


class MemoryEngine:
    """The calls behind the verbs above."""

    table = MEMORY

    def __init__(self, services: WorkerServices) -> None:
        from atomr_cuda import driver

        self._driver = driver
        self._services = services
        self._chunks = Chunks(driver, services)
        self.peers: PeerMemory = PeerMemory(driver, services)
        """The chunks of other devices."""
        self._areas: dict[int, SharedMemory] = {}
        self._addresses = {STAGING_AREA: services.staging_address}
        self._reading = Reading(driver, services, self.staged)
        self._refused: dict[int, Any] = {}
        self._registering = threading.Lock()
        self._giving_back = GivingBack(services.cuda_error)
        self._memsets = {1: driver.cuMemsetD8Async, 2: driver.cuMemsetD16Async, 4: driver.cuMemsetD32Async}
        self.calls: dict[int, Callable[[Command, Lane], Any]] = {
            CREATE_CHUNK.number: self._create_chunk,
            RELEASE_CHUNK.number: self._release_chunk,
            MAP_PEER.number: self._map_peer,
            UNMAP_PEER.number: self._unmap_peer,
            COPY_IN.number: self._copy_in,
            COPY_IN_READ.number: self._reading.copy,
            COPY_OUT.number: self._copy_out,
            COPY_IN_BOX.number: partial(self._copy_boxes, _IN),
            COPY_OUT_BOX.number: partial(self._copy_boxes, _OUT),
            COPY.number: partial(self._copy_boxes, _ON_DEVICE),
            COPY_IN_MANY.number: partial(self._copy_boxes, _IN),
            COPY_OUT_MANY.number: partial(self._copy_boxes, _OUT),
            COPY_MANY.number: partial(self._copy_boxes, _ON_DEVICE),
            COPY_IN_STREAM.number: partial(self._copy_stream, _IN),
            COPY_OUT_STREAM.number: partial(self._copy_stream, _OUT),
            FILL.number: self._fill,
            REGISTER_HOST.number: self._register_host,
            UNREGISTER_HOST.number: self._unregister_host,
        }

    def forget_lane(self, index: int) -> tuple[()]:
        """Nothing here belongs to a lane."""
        return ()

    def hot_call(self, verb: int, payload: bytes, lane: Lane, places: Sequence[int] = ()) -> Ready | None:
        """Return a fill, or a copy of one run of bytes or of one rectangle, ready to be made; see `RepeatingEngine`."""
        on_device = verb in (COPY.number, FILL.number)
        return (self._hot_on_device if on_device else self._hot_to_host)(verb, payload, lane, tuple(places))

    # Chunks.

    def adopt_chunk(self, address: int, size: int, descriptor: int) -> None:
        """Map a chunk of an earlier generation at the same address. The descriptor is closed."""
        self._chunks.adopt(address, size, descriptor)

    def drop_chunk(self, address: int) -> None:
        """Unmap a chunk and release it; the last holder's release frees the memory. A refused call can be repeated."""
        self._chunks.drop(address)

    def _create_chunk(self, command: Command, lane: Lane) -> None:
        address, size = CREATE_CHUNK.struct.unpack_from(command.payload)
        tail = command.payload[CREATE_CHUNK.struct.size :]
        spare = struct.unpack(f"<{len(tail) // 8}Q", tail)
        driver = self._driver
        self._chunks.make_way(address, size)
        properties = driver.CUmemAllocationProp()
        properties.type = cuda.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = cuda.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = self._services.device
        durable = self._services.durable
        properties.requestedHandleTypes = (
            cuda.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR if durable else cuda.CU_MEM_HANDLE_TYPE_NONE
        )
        handle = driver.CUmemGenericAllocationHandle()
        status = driver.cuMemCreate.status(byref(handle), size, byref(properties), 0)
        if status == cuda.CUDA_ERROR_OUT_OF_MEMORY and spare:
            self._release(spare)
            status = self._create_when_released(handle, size, properties)
        if status:
            driver.cuMemCreate(byref(handle), size, byref(properties), 0)
        self._chunks.map(address, size, handle.value)
        if durable:
            descriptor = c_int(-1)
            export = driver.cuMemExportToShareableHandle
            try:
                export(byref(descriptor), handle, cuda.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
            except BaseException:
                self._chunks.undo(address)
                raise
            # The user's process has the descriptor before it sees the ticket: a finished write is never lost.
            self._services.post({"kind": "chunk", "address": address}, [descriptor.value])
            os.close(descriptor.value)

    def _release(self, spare: Iterable[int]) -> None:
        """Release chunks that the user's process does not need, and tell it which, even after an error."""
        released: list[int] = []
        self._services.synchronize()
        try:
            for other in spare:
                self._chunks.drop(other)
                released.append(other)
        finally:
            self._services.post({"kind": "released", "chunks": released})

    def export_again(self, address: int) -> None:
        """Send the descriptor of a chunk again. The message has no descriptor if there is no chunk, or no room."""
        message = {"kind": "exported", "address": address}
        descriptor = c_int(-1)
        if address in self._chunks:
            handle = self._chunks.handle(address)
            kind = cuda.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
            with contextlib.suppress(OSError, self._services.cuda_error):
                self._driver.cuMemExportToShareableHandle(byref(descriptor), handle, kind, 0)
        if descriptor.value < 0:
            self._services.post(message)
        else:
            self._services.post(message, [descriptor.value])
            os.close(descriptor.value)

    def _create_when_released(self, handle: Any, size: int, properties: Any) -> int:
        """Release a chunk. The memory is free once the user's process has closed its descriptors too; it was just told
        to."""
        deadline = time.monotonic() + _RELEASE_SECONDS
        while True:
            status: int = self._driver.cuMemCreate.status(byref(handle), size, byref(properties), 0)
            if status != cuda.CUDA_ERROR_OUT_OF_MEMORY or time.monotonic() > deadline:
                return status
            time.sleep(0.005)

    def _release_chunk(self, command: Command, lane: Lane) -> None:
        (address,) = RELEASE_CHUNK.struct.unpack_from(command.payload)
        if address in self._chunks:  # or its creation had failed
            self._services.synchronize()
            self._chunks.drop(address)

    def _map_peer(self, command: Command, lane: Lane) -> None:
        address, size = MAP_PEER.struct.unpack_from(command.payload)
        self.peers.map(address, size, command.take_descriptor())

    def _unmap_peer(self, command: Command, lane: Lane) -> None:
        (address,) = UNMAP_PEER.struct.unpack_from(command.payload)
        self._services.synchronize()
        self.peers.unmap(address)

    # Copies.

    def _copy_in(self, command: Command, lane: Lane) -> None:
        destination, staging, size = COPY_IN.struct.unpack_from(command.payload)
        self._driver.cuMemcpyHtoDAsync(destination, self.staged(staging), size, lane.stream)

    def _copy_out(self, command: Command, lane: Lane) -> None:
        source, staging, size = COPY_OUT.struct.unpack_from(command.payload)
        self._driver.cuMemcpyDtoHAsync(self.staged(staging), source, size, lane.stream)

    def _hot_on_device(self, verb: int, payload: bytes, lane: Lane, places: tuple[int, ...]) -> Ready | None:
        """Return a fill or a copy on the device, of one run of bytes. The general way refuses a corrupt payload."""
        stream = lane.stream
        if verb == COPY.number and places == COPY_WORDS:
            if len(payload) != BOX.size or BOX.unpack(payload)[7:] != (1, 1):
                return None
            copy = self._driver.cuMemcpyDtoDAsync
            run = copy.status
            native = partial(self._native, copy, (Word(0), Word(1), Word(2), stream.value))
            call = lambda words: run(words[0], words[1], words[2], stream)  # noqa: E731
            return Ready(call, partial(_refused, copy), native=native)
        if verb == FILL.number and places == FILL_WORDS and len(payload) == FILL.struct.size:
            _, _, itemsize, _, height, _ = FILL.struct.unpack(payload)
            fill = self._memsets.get(itemsize)
            if height != 1 or itemsize > WORD_BYTES:
                return None
            if fill is None:
                rows = self._driver.cuMemsetD2D32Async
                wide = partial(self._fill_wide, lane, itemsize)
                return made_ready(lambda: None, wide, partial(_refused, rows), alone=True)
            mask = (1 << 8 * itemsize) - 1
            put = fill.status
            native = partial(self._native, fill, (Word(0), Word(2), Word(1), stream.value))
            call = lambda words: put(words[0], words[2] & mask, words[1], stream)  # noqa: E731
            return Ready(call, partial(_refused, fill), native=native)
        if verb == COPY.number and places == COPY_ENDS and len(payload) == BOX.size:
            return self._hot_box(payload, lane)
        if verb == FILL.number and places == FILL_START and len(payload) == FILL.struct.size:
            return self._hot_rows_of_fill(payload, lane)
        return None

    def _hot_box(self, payload: bytes, lane: Lane) -> Ready:
        """Return a copy on the device of which only the two addresses differ."""
        _, to_pitch, to_rows, _, pitch, rows, *extent = BOX.unpack(payload)
        width, height, depth = extent
        if height == depth == 1:
            copy, stream = self._driver.cuMemcpyDtoDAsync, lane.stream
            run = copy.status
            native = partial(self._native, copy, (Word(0), Word(1), width, stream.value), words=2)
            return Ready(lambda words: run(*words, width, stream), partial(_refused, copy), native=native)

        def call(words: RecordWords) -> int:
            to, origin = words
            self._copy_box(lane, _ON_DEVICE, (to, to_pitch, to_rows), (origin, pitch, rows), (width, height, depth))
            return 0

        return made_ready(lambda: None, call, no_status)

    def _hot_rows_of_fill(self, payload: bytes, lane: Lane) -> Ready:
        """Return a fill of which only the address differs."""
        _, pitch, itemsize, width, height, pattern = FILL.struct.unpack(payload)
        fill = self._memsets.get(itemsize)
        if height == 1 and fill is not None:
            put, stream, value = fill.status, lane.stream, int.from_bytes(pattern[:itemsize], "little")
            native = partial(self._native, fill, (Word(0), value, width, stream.value), words=1)
            return Ready(lambda words: put(words[0], value, width, stream), partial(_refused, fill), native=native)
        entries = self._entries_of_fill(itemsize, width, height)

        def call(words: RecordWords) -> int:
            lane.weigh(lane.made_now, entries)
            self._fill_rows(lane, words[0], pitch, itemsize, width, height, pattern)
            return 0

        return made_ready(lambda: None, call, no_status, alone=entries > 1)

    def _native(self, function: Any, arguments: Sequence[int | Word], words: int = 3) -> NativeCall | None:
        """The same for native code: a call whose words are among its arguments."""
        return native_call(function, arguments, words, self._services.give_up)

    def _hot_to_host(self, verb: int, payload: bytes, lane: Lane, places: tuple[int, ...]) -> Ready | None:
        """Return a copy between host and device, of one run of bytes, whose fields are all words, or of a rectangle."""
        refused: list[Exception] = []
        native: Callable[[], NativeCall | None] | None = None
        if verb in (COPY_IN.number, COPY_OUT.number) and places == _PLACES_OF_A_RUN:
            function = self._driver.cuMemcpyHtoDAsync if verb == COPY_IN.number else self._driver.cuMemcpyDtoHAsync
            make = self._hot_in if verb == COPY_IN.number else self._hot_out
            call = make(function.bind(), lane.stream, refused)
            host = Word(1, self.staged(0), OFFSET_MASK)  # in the staging area, where small copies are
            array = Word(0)
            ends = (array, host) if verb == COPY_IN.number else (host, array)
            native = partial(self._native, function, (*ends, Word(2), lane.stream.value))
        elif verb == COPY_IN_READ.number and places == PLACES_OF_A_READ:
            return self._reading.ready(lane)
        elif verb in PLACES_OF_PINNED and places == PLACES_OF_PINNED[verb]:
            return self._hot_pinned(verb, payload, lane)
        elif verb in (COPY_IN_BOX.number, COPY_OUT_BOX.number) and places == PLACES_OF_A_BOX:
            function = self._driver.cuMemcpy2DAsync
            box = BOX.unpack_from(payload, COPY_IN_BOX.struct.size)
            if box[-1] > 1:
                return None
            call, native = self._hot_rows(_IN if verb == COPY_IN_BOX.number else _OUT, box, lane.stream, refused)
        else:
            return None

        def error_of(status: int) -> Exception:
            return refused.pop() if refused else function.library.error(status, function.symbol)

        return Ready(call, error_of, native=native)

    def _hot_pinned(self, verb: int, payload: bytes, lane: Lane) -> Ready | None:
        """Return a copy of a run of bytes between the device and one area of pinned memory, which is known by now.

        The general way refuses a copy of memory that could not be registered.
        """
        (area,) = COPY_IN_BOX.struct.unpack_from(payload)
        base = self._addresses.get(area)
        if base is None or BOX.unpack_from(payload, COPY_IN_BOX.struct.size)[7:] != (1, 1):
            return None
        function = self._driver.cuMemcpyHtoDAsync if verb == COPY_IN_BOX.number else self._driver.cuMemcpyDtoHAsync
        copy, stream = function.status, lane.stream
        ends = (Word(0), Word(1, base, OFFSET_MASK))
        if verb == COPY_IN_BOX.number:
            call = lambda words: copy(words[0], base + words[1], words[2], stream)  # noqa: E731
        else:
            call = lambda words: copy(base + words[1], words[0], words[2], stream)  # noqa: E731
            ends = ends[::-1]
        native = partial(self._native, function, (*ends, Word(2), stream.value))
        return Ready(call, partial(_refused, function), native=native)

    def _hot_in(self, copy: Callable[..., int], stream: Any, refused: list[Exception]) -> Callable[[RecordWords], int]:
        addresses = self._addresses

        def copy_in(words: RecordWords) -> int:
            destination, place, size = words
            try:
                return copy(destination, addresses[place >> AREA_SHIFT] + (place & OFFSET_MASK), size, stream)
            except Exception as error:
                return self._not_made(place >> AREA_SHIFT, error, refused)

        return copy_in

    def _hot_out(self, copy: Callable[..., int], stream: Any, refused: list[Exception]) -> Callable[[RecordWords], int]:
        addresses = self._addresses

        def copy_out(words: RecordWords) -> int:
            source, place, size = words
            try:
                return copy(addresses[place >> AREA_SHIFT] + (place & OFFSET_MASK), source, size, stream)
            except Exception as error:
                return self._not_made(place >> AREA_SHIFT, error, refused)

        return copy_out

    def _hot_rows(
        self, way: _Way, box: tuple[int, ...], stream: Any, refused: list[Exception]
    ) -> tuple[Callable[[RecordWords], int], Callable[[], NativeCall | None]]:
        """Return a copy of rows, and the same for native code, which makes those of the staging area.

        The words are the area, the destination and the source; one of these is an offset in the area.
        """
        addresses = self._addresses
        _, to_pitch, _, _, source_pitch, _, width, height, _ = box
        shape = self._driver.CUDA_MEMCPY2D()
        _describe(shape, way, (0, to_pitch), (0, source_pitch))
        shape.WidthInBytes, shape.Height = width, height
        copy: Callable[..., int] = self._driver.cuMemcpy2DAsync.bind()
        where, incoming = byref(shape), way is _IN

        def copy_rows(words: RecordWords) -> int:
            area, destination, source = words
            try:
                if incoming:
                    shape.dstDevice, shape.srcHost = destination, addresses[area] + source
                else:
                    shape.dstHost, shape.srcDevice = addresses[area] + destination, source
                return copy(where, stream)
            except Exception as error:
                return self._not_made(area, error, refused)

        def native() -> NativeCall | None:
            made = native_call(self._driver.cuMemcpy2DAsync, (where, stream.value), 0, self._services.give_up)
            if made is None:
                return None
            fields, begin, nowhere = type(shape), addressof(shape), c_uint64()
            here, host = (1, 2) if incoming else (2, 1)
            names = ("dstDevice", "srcHost") if incoming else ("srcDevice", "dstHost")
            targets = [
                Target(0, addressof(nowhere), most=STAGING_AREA),
                Target(here, begin + getattr(fields, names[0]).offset),
                Target(host, begin + getattr(fields, names[1]).offset, self.staged(0), OFFSET_MASK),
            ]
            return made._replace(targets=targets, keep=(made.keep, shape, nowhere))

        return copy_rows, native

    def _not_made(self, area: int, error: Exception, refused: list[Exception]) -> int:
        """Note the reason why a copy was not made: the memory could not be registered, or another error."""
        refused.append(self._refused.get(area, error))
        return _NOT_MADE

    def _copy_stream(self, way: _Way, command: Command, lane: Lane) -> None:
        driver, base, verb = self._driver, self._services.staging_address, command.verb
        address, size, piece, first = verb.struct.unpack_from(command.payload)
        slots = list(SLOT.iter_unpack(memoryview(command.payload)[verb.struct.size :]))
        count = -(-size // piece)
        # The host may reuse a slot only after the GPU, and the GPU needs what the host has just written there.
        behind = 0 if way is _IN else len(slots)
        self._await_room(command, lane, 2 * count)
        for number in range(count):
            slot, gate = slots[number % len(slots)]
            if number >= behind:
                awaited = first + number - behind
                driver.cuStreamWaitValue64(lane.stream, base + gate, awaited, cuda.CU_STREAM_WAIT_VALUE_GEQ)
            host, device = base + slot, address + number * piece
            destination, source = (device, host) if way is _IN else (host, device)
            getattr(driver, way.run)(destination, source, min(piece, size - number * piece), lane.stream)
            driver.cuStreamWriteValue64(lane.stream, base + gate + CELL, first + number, 0)

    def _copy_boxes(self, way: _Way, command: Command, lane: Lane) -> None:
        head = command.verb.struct.size
        base = self._host_address(*command.verb.struct.unpack_from(command.payload)) if head else 0
        boxes = list(BOX.iter_unpack(memoryview(command.payload)[head:]))
        if len(boxes) > 1:
            self._await_room(command, lane, len(boxes))
        to_base = base if way.destination == cuda.CU_MEMORYTYPE_HOST else 0
        source_base = base if way.source == cuda.CU_MEMORYTYPE_HOST else 0
        for to, to_pitch, to_rows, source, source_pitch, source_rows, width, height, depth in boxes:
            destination, origin = (to_base + to, to_pitch, to_rows), (source_base + source, source_pitch, source_rows)
            self._copy_box(lane, way, destination, origin, (width, height, depth))

    def _copy_box(
        self,
        lane: Lane,
        way: _Way,
        destination: tuple[int, int, int],
        source: tuple[int, int, int],
        extent: tuple[int, int, int],
    ) -> None:
        """Copy planes of rows of bytes; each side is an address, a pitch, and the rows from plane to plane."""
        width, height, depth = extent
        if depth > 1:
            self._copy_planes(lane, way, destination, source, extent)
        elif height > 1:
            self._copy_rows(lane, way, destination[:2], source[:2], width, height)
        else:
            getattr(self._driver, way.run)(destination[0], source[0], width, lane.stream)

    def _await_room(self, command: Command, lane: Lane, count: int) -> None:
        """Wait until the driver's queue is short. A full queue blocks the caller, and the whole stream with it."""
        while command.ticket - lane.finished > max(1, DRIVER_LIMIT // (4 * count)):
            time.sleep(_POLL_SECONDS)

    def _copy_rows(
        self, lane: Lane, way: _Way, destination: tuple[int, int], source: tuple[int, int], width: int, height: int
    ) -> None:
        """Copy `height` rows of `width` bytes; each side is an address and a pitch."""
        shape = self._driver.CUDA_MEMCPY2D()
        _describe(shape, way, destination, source)
        shape.WidthInBytes, shape.Height = width, height
        self._driver.cuMemcpy2DAsync(byref(shape), lane.stream)

    def _copy_planes(
        self,
        lane: Lane,
        way: _Way,
        destination: tuple[int, int, int],
        source: tuple[int, int, int],
        extent: tuple[int, int, int],
    ) -> None:
        """Copy planes of rows. Each side is an address, a pitch, and the number of rows from one plane to the next."""
        shape = self._driver.CUDA_MEMCPY3D()
        _describe(shape, way, destination[:2], source[:2])
        shape.dstHeight, shape.srcHeight = destination[2], source[2]
        shape.WidthInBytes, shape.Height, shape.Depth = extent
        self._driver.cuMemcpy3DAsync(byref(shape), lane.stream)

    # Pinned memory of the host.

    def staged(self, place: int) -> int:
        """Return the address of a place in host memory, from a ``staging`` field."""
        return self._host_address(place >> AREA_SHIFT) + (place & OFFSET_MASK)

    def _host_address(self, area: int) -> int:
        address = self._addresses.get(area)
        if address is None:
            raise self._refused[area]
        return address

    def _register_host(self, command: Command, lane: Lane) -> None:
        area, size = REGISTER_HOST.struct.unpack_from(command.payload)
        with self._registering:  # each lane that uses the area asks for it
            try:
                descriptor = command.take_descriptor()
                if area in self._areas:
                    os.close(descriptor)
                else:
                    self._add_area(area, descriptor, size)
                    self._refused.pop(area, None)
            except (OSError, self._services.cuda_error) as refusal:
                self._refused[area] = refusal.with_traceback(None)  # the copy fails with the same text
                raise

    def _add_area(self, area: int, descriptor: int, size: int) -> None:
        memory = SharedMemory.adopt(descriptor, size)
        address = addressof(c_char.from_buffer(memory.map))
        try:
            self._driver.cuMemHostRegister(address, size, cuda.CU_MEMHOSTREGISTER_DEVICEMAP)
        except BaseException:
            memory.close()
            raise
        self._areas[area], self._addresses[area] = memory, address

    def _unregister_host(self, command: Command, lane: Lane) -> None:
        (area,) = UNREGISTER_HOST.struct.unpack_from(command.payload)
        with self._registering:
            self._refused.pop(area, None)
            if area in self._areas:  # or its registration had failed
                self._drop_area(area)

    def _drop_area(self, area: int) -> None:
        memory, address = self._areas.pop(area), self._addresses.pop(area)
        self._services.forget_hot()  # some may have the address
        self._giving_back.make([partial(self._unregister, memory, address)])

    def _unregister(self, memory: SharedMemory, address: int) -> None:
        self._driver.cuMemHostUnregister(address)
        memory.close()

    # Fills.

    def _fill(self, command: Command, lane: Lane) -> None:
        address, pitch, itemsize, width, height, pattern = FILL.struct.unpack_from(command.payload)
        lane.weigh(command.ticket, self._entries_of_fill(itemsize, width, height))
        self._fill_rows(lane, address, pitch, itemsize, width, height, pattern)

    def _fill_rows(
        self, lane: Lane, address: int, pitch: int, itemsize: int, width: int, height: int, pattern: bytes
    ) -> None:
        if itemsize <= 4:
            self._fill_narrow(lane, address, pitch, itemsize, width, height, pattern)
            return
        self._fill_doubling(lane, address, itemsize, width, pattern)
        done = 1
        while done < height:
            step = min(done, height - done)
            target = (address + done * pitch, pitch)
            self._copy_rows(lane, _ON_DEVICE, target, (address, pitch), width * itemsize, step)
            done += step

    @staticmethod
    def _entries_of_fill(itemsize: int, width: int, height: int) -> int:
        """Return the most entries that a fill makes in the stream's queue."""
        if itemsize <= 4:
            return 1 if height == 1 else _ENTRIES_OF_A_2D_FILL
        doublings = max(0, width * itemsize // SEED_BYTES).bit_length() + (height - 1).bit_length()
        return _ENTRIES_OF_A_2D_FILL * (itemsize // 4) + doublings

    def _fill_narrow(
        self, lane: Lane, address: int, pitch: int, itemsize: int, width: int, height: int, pattern: bytes
    ) -> None:
        driver = self._driver
        value = int.from_bytes(pattern[:itemsize], "little")
        if height == 1:
            self._memsets[itemsize](address, value, width, lane.stream)
        else:
            rows = {1: driver.cuMemsetD2D8Async, 2: driver.cuMemsetD2D16Async, 4: driver.cuMemsetD2D32Async}[itemsize]
            rows(address, pitch, value, width, height, lane.stream)

    def _fill_wide(self, lane: Lane, itemsize: int, words: Any) -> int:
        """Make a fill that was made ready, with items above 4 bytes. Raises the error of a call that is refused."""
        address, width, pattern = words
        lane.weigh(lane.made_now, self._entries_of_fill(itemsize, width, 1))
        self._fill_doubling(lane, address, itemsize, width, pattern.to_bytes(WORD_BYTES, "little"))
        return 0

    def _fill_doubling(self, lane: Lane, address: int, itemsize: int, count: int, pattern: bytes) -> None:
        """Fill with a wide pattern. The driver sets at most four bytes at a time: a first part is written word by word,
        then doubled."""
        driver = self._driver
        total = count * itemsize
        seed = min(total, SEED_BYTES // itemsize * itemsize)
        for offset in range(0, itemsize, 4):
            word = int.from_bytes(pattern[offset : offset + 4], "little")
            driver.cuMemsetD2D32Async(address + offset, itemsize, word, 1, seed // itemsize, lane.stream)
        done = seed
        while done < total:
            step = min(done, total - done)
            driver.cuMemcpyDtoDAsync(address + done, address, step, lane.stream)
            done += step

    def close(self) -> None:
        """Give every area of the host and every chunk back to the driver."""
        for area in list(self._areas):
            self._drop_area(area)
        self.peers.close()
        self._chunks.drop_all()

    def memory_info(self) -> tuple[int, int]:
        """Return the free and total bytes of the device, from ``cuMemGetInfo``."""
        free, total = c_size_t(), c_size_t()
        self._driver.cuMemGetInfo(byref(free), byref(total))
        return free.value, total.value
