"""Arrays shared with other libraries of this process: DLPack and ``__cuda_array_interface__``, both ways.

This is the one file of the trio side that calls the CUDA driver, and only when a program shares an array. A chunk of
device memory is then mapped into this process too, from the descriptor that this process holds anyway, so the other
library works on the same bytes. On the simulator a chunk is a memory file, and is mapped as host memory.

Order. A *fence* orders one stream of another library and our lanes:

- The stream waits for our commands by ``cuStreamWaitValue64`` on the counters of their lanes. The page of counters is
  registered here once for each generation. When a worker is gone, a thread sets its counters to `RELEASED`. So a
  program that blocks in the other library while its generation is lost goes on too.
- A lane waits for the stream by a word that the stream writes (``cuStreamWriteValue64``) at the moment when a command
  on a shared array is published, ordered before that command by a record of its own (``interop.wait``). That record
  has a time limit even on a device without one, so a stream that never reaches the write costs a generation.

Every wait is for work that was submitted earlier, so there is no deadlock.

A *use* is one export. It holds the array's memory until the consumer's deleter has run and its stream has done all
work submitted by then. A deleter runs in any thread at any time, so it only notes that it ran; the next call of the
device does the rest.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import mmap
import os
import select
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from ctypes import byref, c_char, c_int
from typing import TYPE_CHECKING, Any, Final

import attrs
import numpy as np
import trio

from .._generation.requests import CommandRequest
from .._generation.timeline import Command, Operand
from .._memory.arena import Block, Chunk, Ticket
from .._values.dtypes import check_dtype, dlpack_type, is_of_ml_dtypes, of_dlpack
from .._values.errors import CommandFailed, DeviceError, InvalidArgument, LibraryNotFound, OutOfHostMemory, StaleArray
from .._values.shortage import host_limits
from .._values.util import shown
from .._wire.channel import SharedMemory
from .._wire.protocol import CELL, LANE_COMPUTE, MAX_LANES, Role, counter_word
from .._wire.records.interop import ATTACH, SETTLE, WAIT
from . import dlpack as _dlpack, layout as _layout
from .arrays import DeviceArray, Storage, check_usable
from .checked_memory import CheckedArena
from .dlpack import DeviceType

if TYPE_CHECKING:
    from .._generation.core import DeviceCore
    from .._generation.generation import Generation
    from .memory import DeviceMemory

RELEASED: Final = 1 << 62
"""The value of the counters of a dead generation. The comparison of ``cuStreamWaitValue64`` is cyclic, so 2^64 - 1
would be less than every ticket."""

WAIT_SECONDS: Final = 60.0
"""Seconds that a lane waits for another library's stream on a device without a `hang_timeout`."""

CLOSE_SECONDS = 2.0
"""Seconds that the end of a device waits for other libraries' streams. Memory that they still use is released later."""

MARKS_AHEAD: Final = 256
"""The most pending marks of a stream: a driver blocks the caller at about a thousand pending operations."""

STREAMS: Final = 1024
"""The most streams of other libraries that one device keeps order with."""

LEGACY_STREAM: Final = 1
PER_THREAD_STREAM: Final = 2
NO_ORDER: Final = -1
"""Numbers that stand for streams in DLPack; larger ones are handles."""

_INVALID_HANDLE = 400
_CONTEXT_IS_DESTROYED = 709
_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1
_ACCESS_READWRITE = 3
_LOCATION_DEVICE = 1
_MEMHOSTREGISTER_PORTABLE_DEVICEMAP = 3
_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9
_MEMORYTYPE_DEVICE = 2

# --- the GPU, as this process sees it ---------------------------------------------------------------------------------


@contextlib.contextmanager
def _refusals(operation: str, device: DeviceCore) -> Iterator[None]:
    """Turn an error of the driver in this process into the error of one request."""
    from atomr_cuda._library import CudaError, LibraryMissing

    try:
        with host_limits("another library cannot have the array", device=device.index, operation=operation):
            yield
    except LibraryMissing as missing:
        raise LibraryNotFound(str(missing), device=device.index, operation=operation) from missing
    except CudaError as error:
        raise CommandFailed(
            f"the driver refused it in this process: {error.text}",
            device=device.index,
            status=error.status,
            status_name=error.name,
            library="cuda",
            operation=operation,
        ) from error


class Consumer:
    """A GPU in this process: its primary context, which the other libraries use too."""

    def __init__(self, pci_bus_id: str) -> None:
        from atomr_cuda import driver

        self.driver = driver
        driver.cuInit(0)
        ordinal = driver.CUdevice()
        driver.cuDeviceGetByPCIBusId(byref(ordinal), pci_bus_id.encode())
        self.ordinal: int = ordinal.value
        """Its number in this process, which may differ from the worker's."""
        self._context = driver.CUcontext()
        with contextlib.ExitStack() as undo:
            driver.cuDevicePrimaryCtxRetain(byref(self._context), self.ordinal)
            undo.callback(driver.cuDevicePrimaryCtxRelease.status, self.ordinal)
            self.words: SharedMemory = SharedMemory.create("atomr-trio-interop", STREAMS * CELL)
            """A word for each stream of another library, which writes it."""
            undo.callback(self.words.close)
            self.words_address: int = self.register(self.words)
            undo.pop_all()
        self.view: memoryview[int] = self.words.bytes.cast("Q")

    @contextlib.contextmanager
    def bound(self, stream: int = LEGACY_STREAM) -> Iterator[None]:
        """Make the context of a stream current inside the block, and restore the caller's afterwards."""
        driver = self.driver
        context = self._context
        if stream > PER_THREAD_STREAM:
            with self.bound():
                context = driver.CUcontext()
                driver.cuStreamGetCtx(stream, byref(context))
        driver.cuCtxPushCurrent(context)
        try:
            yield
        finally:
            driver.cuCtxPopCurrent.status(byref(driver.CUcontext()))

    def new_stream(self) -> int:
        """Return a new stream in this process, in order with no other."""
        stream = self.driver.CUstream()
        with self.bound():
            self.driver.cuStreamCreate(byref(stream), self.driver.CU_STREAM_NON_BLOCKING)
        return stream.value or 0

    def destroy_stream(self, stream: int) -> None:
        """Destroy the stream; its submitted work is still done."""
        with self.bound():
            self.driver.cuStreamDestroy(stream)

    def register(self, memory: SharedMemory) -> int:
        """Let the GPU see shared memory; returns its device address. If that is refused, nothing of it is left."""
        host = _host_address(memory.map)
        address = self.driver.CUdeviceptr()
        with self.bound():
            self.driver.cuMemHostRegister(host, memory.size, _MEMHOSTREGISTER_PORTABLE_DEVICEMAP)
            try:
                self.driver.cuMemHostGetDevicePointer(byref(address), host, 0)
            except BaseException:
                self.driver.cuMemHostUnregister.status(host)
                raise
        return int(address.value)

    def unregister(self, memory: SharedMemory) -> None:
        """Undo `register`, and unmap."""
        with self.bound():
            self.driver.cuMemHostUnregister(_host_address(memory.map))
        memory.close()

    def close(self) -> None:
        """Release everything; no stream may be waiting for anything here."""
        self.view.release()
        self.unregister(self.words)
        self.driver.cuDevicePrimaryCtxRelease(self.ordinal)


class CudaWindow:
    """A chunk of device memory, mapped into this process: at its own address if that is free here."""

    def __init__(self, chunk: Chunk, consumer: Consumer) -> None:
        self._driver = driver = consumer.driver
        self._size = chunk.size
        self._consumer = consumer
        with contextlib.ExitStack() as undo, consumer.bound():
            handle = driver.CUmemGenericAllocationHandle()
            driver.cuMemImportFromShareableHandle(
                byref(handle), chunk.descriptor, _MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
            )
            # The mapping keeps the memory: nothing needs the handle afterwards, however this ends.
            undo.callback(driver.cuMemRelease.status, handle.value)
            address = driver.CUdeviceptr()
            driver.cuMemAddressReserve(byref(address), chunk.size, 0, chunk.address, 0)
            self.address: int = address.value
            with contextlib.ExitStack() as failed:
                failed.callback(driver.cuMemAddressFree.status, self.address, self._size)
                driver.cuMemMap(self.address, self._size, 0, handle.value, 0)
                failed.callback(driver.cuMemUnmap.status, self.address, self._size)
                access = driver.CUmemAccessDesc()
                access.location.type = _LOCATION_DEVICE
                access.location.id = consumer.ordinal
                access.flags = _ACCESS_READWRITE
                driver.cuMemSetAccess(self.address, self._size, byref(access), 1)
                failed.pop_all()

    def close(self) -> None:
        """Unmap it."""
        with self._consumer.bound():
            self._driver.cuMemUnmap(self.address, self._size)
            self._driver.cuMemAddressFree(self.address, self._size)


class HostWindow:
    """A chunk of the simulator, mapped into this process as host memory."""

    def __init__(self, chunk: Chunk) -> None:
        self._map = mmap.mmap(chunk.descriptor, chunk.size)
        self.address: int = _host_address(self._map)

    def close(self) -> None:
        """Unmap it."""
        self._map.close()


def _host_address(memory: mmap.mmap) -> int:
    return ctypes.addressof(c_char.from_buffer(memory))


# --- order ------------------------------------------------------------------------------------------------------------


class Fence:
    """The order between one stream of another library and our lanes."""

    def __init__(self, consumer: Consumer, stream: int, cell: int) -> None:
        self.stream = stream
        self.offset: int = cell * CELL
        """The offset of its word in the consumer's page."""
        self._consumer = consumer
        self._thread = threading.get_ident()
        self._word = self.offset // 8
        self._given = 0

    def mark(self) -> int:
        """Make the stream write its word once its work so far is done; returns the value that it writes.

        Raises `CommandFailed` for a stream that is recording a graph, or that is too far behind.
        """
        if not self.reached(self._given - MARKS_AHEAD + 1):
            raise CommandFailed(
                f"the other library's stream is {MARKS_AHEAD} commands behind",
                operation="interop.order",
                advice="await some of the commands on the shared array, or let that library catch up.",
            )
        mark = self._given + 1
        address = self._consumer.words_address + self.offset
        if not self._tell(self._consumer.driver.cuStreamWriteValue64, address, mark):
            # Its work may still run, and is over when its context is idle.
            self.synchronize()
            self._consumer.view[self._word] = mark
        self._given = mark
        return mark

    def follow(self, counters: Counters, lane: int, ticket: int) -> None:
        """Make the stream's work from now on wait until a lane reaches the ticket."""
        self._tell(self._consumer.driver.cuStreamWaitValue64, counters.address(lane), ticket)
        counters.awaited.setdefault(self, {})[lane] = ticket

    def _tell(self, call: Any, address: int, value: int) -> bool:
        """Submit an operation on a word to the stream; returns false if the stream does not exist any more."""
        from atomr_cuda._library import CudaError

        if self.stream == PER_THREAD_STREAM and threading.get_ident() != self._thread:
            return False
        try:
            with self._consumer.bound(self.stream):
                recording = c_int()
                self._consumer.driver.cuStreamIsCapturing(self.stream, byref(recording))
                if recording.value:
                    raise CommandFailed(
                        "the other library's stream is recording a graph, so nothing can be in order with it",
                        operation="interop.order",
                        advice="use the shared array on this device before or after the recording.",
                    )
                call(self.stream, address, value, 0)
        except CudaError as error:
            if error.status not in (_INVALID_HANDLE, _CONTEXT_IS_DESTROYED):
                raise
            return False
        return True

    def reached(self, mark: int) -> bool:
        """Return whether the stream has written the mark."""
        return self._consumer.view[self._word] >= mark

    def synchronize(self) -> None:
        """Block until everything in this process's context is done: the stream may not exist any more."""
        with self._consumer.bound():
            self._consumer.driver.cuCtxSynchronize()


class Counters:
    """The counters of one generation, as streams of this process wait for them.

    A thread watches the worker: once it is gone it writes no counter any more, so every wait must end. The thread does
    not depend on trio's thread, which may be blocked in the other library because of such a wait.
    """

    def __init__(self, consumer: Consumer, generation: Generation) -> None:
        self.ticket: int = 0
        """The compute lane's ticket of the command that makes the consumer's words known to the worker."""
        self.awaited: dict[Fence, dict[int, int]] = {}
        """The last ticket of each lane that a stream was told to wait for."""
        self._timeline = generation.page
        self._released = False
        self._lock = threading.Lock()
        with contextlib.ExitStack() as undo:
            self._page = SharedMemory.adopt(os.dup(generation.page.descriptor), generation.page.size)
            undo.callback(self._page.close)
            self._end = os.eventfd(0, os.EFD_CLOEXEC)
            undo.callback(os.close, self._end)
            pidfd = os.dup(generation.process.pidfd)
            undo.callback(os.close, pidfd)
            self._address = consumer.register(self._page)
            undo.push(lambda *_: consumer.unregister(self._page))
            name = f"atomr-trio-counters-{generation.number}"
            threading.Thread(target=self._watch, args=(pidfd, self._end), name=name, daemon=True).start()
            undo.pop_all()

    def address(self, lane: int) -> int:
        """Return the device address of a lane's counter."""
        return self._address + 8 * counter_word(lane)

    def _watch(self, pidfd: int, end: int) -> None:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.register(end, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll()}
        if end not in ready:
            self._release()
        os.close(pidfd)

    def release(self) -> None:
        """End every wait: the generation has ended, and its commands are settled."""
        self._release()
        if self._end >= 0:
            os.eventfd_write(self._end, 1)

    def _release(self) -> None:
        with self._lock:
            if self._released:
                return
            self._released = True
            self._timeline.freeze()
            words = self._page.bytes.cast("Q")
            for lane in range(MAX_LANES):
                words[counter_word(lane)] = RELEASED
            words.release()

    def close(self, consumer: Consumer) -> None:
        """Release the page; no stream waits for it any more."""
        consumer.unregister(self._page)
        os.close(self._end)


class _Unheard:
    """The owner of commands that no task waits for: work that depends on them is ordered after them."""

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Do nothing: commands that require it get the failure."""

    def command_lost(self, command: Command, error: DeviceError) -> None:
        """Do nothing: work that was ordered after it is lost too."""


_UNHEARD = _Unheard()

# --- what is shared ---------------------------------------------------------------------------------------------------


class Use:
    """One export of an array."""

    __slots__ = ("_interop", "block", "fence", "mark", "released", "storage")

    def __init__(self, interop: Interop, block: Block, storage: Storage | None, fence: Fence | None) -> None:
        self._interop = interop
        self.block: Block = block
        self.storage: Storage | None = storage
        """Keeps the block allocated; None if the export lasts only as long as the array's own storage."""
        self.fence: Fence | None = fence
        self.released: bool = False
        self.mark: int | None = None
        """The value that the stream writes when it has done its work up to the release of the use."""

    def release(self) -> None:
        """Note that the consumer does not need the memory any more. Any thread, any time; calling it twice is fine."""
        if not self.released:
            self.released = True
            self._interop.note_release(self)


class Interop:
    """The arrays of one device that other libraries of this process use."""

    def __init__(self, memory: DeviceMemory, *, cuda: bool) -> None:
        self._memory = memory
        self._device = memory.device
        self._cuda = cuda
        self._process_id = os.getpid()
        self._consumer: Consumer | None = None
        self._uses: dict[Block, list[Use]] = {}
        self._windows: dict[Chunk, CudaWindow | HostWindow] = {}
        self._fences: dict[int, Fence] = {}
        self._counters: weakref.WeakKeyDictionary[Generation, Counters] = weakref.WeakKeyDictionary()
        self._ended: list[Counters] = []
        self._closer: threading.Thread | None = None
        """The last thread that was started to release unneeded resources."""
        self._released: collections.deque[Use] = collections.deque()
        self._leaving: list[Use] = []
        self._lock = threading.RLock()
        self._closed = False
        self._noticed = False
        """True if a thread was started for releases after the end, and has not handled them yet."""

    @property
    def consumer(self) -> Consumer:
        """The GPU in this process. It is opened on first use, which takes as long as making a context."""
        if self._consumer is None:
            with self._lock, _refusals("interop.open", self._device):
                if self._consumer is None:  # another thread may have been faster
                    self._consumer = Consumer(self._device.info.pci_bus_id)
        return self._consumer

    @property
    def opened(self) -> bool:
        """True if the context exists already, so that an export need not make it."""
        return self._consumer is not None or not self._cuda

    @property
    def place(self) -> tuple[int, int]:
        """The device's type and number in DLPack."""
        return (DeviceType.CUDA, self.consumer.ordinal) if self._cuda else (DeviceType.CPU, 0)

    # --- giving out ---------------------------------------------------------------------------------------------------

    def export(self, array: DeviceArray, stream: int, *, owned: bool) -> tuple[int, Use]:
        """Return the address of an array's first element in this process, and the use that holds it.

        With `owned` the use keeps the array's storage; otherwise it lasts as long as that. The stream is in order with
        our lanes from now on. Raises as `DeviceArray.__dlpack__` does.
        """
        block = array._block
        self.collect()
        generation = self._check(array)
        pending = generation.timeline.still_open(set(_last_uses(block, generation.number)))
        if pending and not self._cuda:
            raise BufferError(f"commands on the array are unfinished: {_REMEDY}")
        fence = self._fence(stream) if self._cuda and stream != NO_ORDER else None
        with self._lock, _refusals("interop.export", self._device):
            window = self._window(block.chunk)
            use = Use(self, block, array._storage if owned else None, fence)
            arena = self._memory.maybe_arena
            if isinstance(arena, CheckedArena):
                arena.shown(block)
            self._uses.setdefault(block, []).append(use)
            block.fast = 0  # from now on every command on it must pass through `order`
            try:
                if fence is not None:
                    for lane, ticket in pending:
                        fence.follow(self._counters_of(generation), lane, ticket)
            except BaseException:
                use.release()
                raise
        return window.address + array.address - block.chunk.address, use

    def _check(self, array: DeviceArray) -> Generation:
        """Return the generation in service. Raises an error if the array's memory is missing, torn or lost."""
        device, block = self._device, array._block
        check_usable(device, array)
        array._storage.check_shareable()
        if block.lost is not None or block.torn is not None:
            raise StaleArray(f"the array is {block.state}: {block.lost or block.torn}", device=device.index)
        if not device.info.durable:
            raise BufferError("memory of this device cannot be shared: it has no descriptors")
        generation = device.current
        if generation is None or generation.loss is not None or generation.arena.quarantined(block):
            raise BufferError(f"the device is recovering from a fault: {_REMEDY}")
        if block.chunk.descriptor < 0:
            generation.inbox.drain()  # it arrives before the end of the command that first used the memory
        if block.recipe is not None or block.chunk.descriptor < 0:
            raise BufferError(f"the array's memory does not exist yet: {_REMEDY}")
        return generation

    def _window(self, chunk: Chunk) -> CudaWindow | HostWindow:
        window = self._windows.get(chunk)
        if window is None:
            window = CudaWindow(chunk, self.consumer) if self._cuda else HostWindow(chunk)
            self._windows[chunk] = window
        return window

    def _fence(self, stream: int) -> Fence:
        fence = self._fences.get(stream)
        if fence is None:
            if len(self._fences) == STREAMS:
                raise BufferError(f"the device keeps order with {STREAMS} streams already, the most: use fewer streams")
            fence = self._fences[stream] = Fence(self.consumer, stream, len(self._fences))
        return fence

    # --- order --------------------------------------------------------------------------------------------------------

    def order(self, generation: Generation, lane: int, operands: Sequence[Operand], required: set[int]) -> None:
        """Order the command that is about to be published on `lane` with the streams that use its operands.

        The streams will wait for the lane's next ticket after those that are published here. A stream whose use of an
        operand was released is only waited for. Adds to `required` the tickets of the compute lane that the command
        requires. Raises `CommandFailed`, and then nothing may be published.
        """
        self.collect()
        uses = [use for block, _ in operands for use in self._uses.get(block, ())]
        marks = {use.fence: use.mark for use in uses if use.fence is not None and use.mark is not None}
        fences = {use.fence for use in uses if use.fence is not None and use.mark is None}
        if not marks and not fences:
            return
        with self._lock, _refusals("interop.order", self._device):
            counters = self._counters_of(generation)
            required.add(counters.ticket)
            marks.update((fence, fence.mark()) for fence in fences)
            for fence, mark in marks.items():
                if not fence.reached(mark):
                    self._wait(generation, lane, fence, mark, counters)
            ticket = generation.timeline.book(lane).issued + 1
            try:
                for fence in fences:
                    fence.follow(counters, lane, ticket)
            except BaseException:
                # A stream may wait for the ticket already, so no other command may use it.
                generation.publish(lane, SETTLE, b"", (), _UNHEARD)
                raise

    def _wait(self, generation: Generation, lane: int, fence: Fence, mark: int, counters: Counters) -> None:
        # Only after the commands that the stream itself waits for. Otherwise a call that waits for all lanes, such as
        # unmapping memory, would wait for this one, and this one for commands queued behind that call.
        generation.publish(
            lane,
            WAIT,
            WAIT.struct.pack(fence.offset, mark),
            (),
            _UNHEARD,
            requires=(counters.ticket,),
            after=tuple(counters.awaited.get(fence, {}).items()),
            hang_timeout=generation.hang_timeout or WAIT_SECONDS,
        )

    def _counters_of(self, generation: Generation) -> Counters:
        counters = self._counters.get(generation)
        if counters is None:
            counters = Counters(self.consumer, generation)
            words = self.consumer.words
            payload = ATTACH.struct.pack(words.size)
            descriptors = (words.descriptor,)
            try:
                attach = generation.publish(LANE_COMPUTE, ATTACH, payload, (), _UNHEARD, descriptors=descriptors)
            except BaseException:
                counters.release()
                self._ended.append(counters)
                raise
            counters.ticket = attach.ticket
            self._counters[generation] = counters
        return counters

    def generation_over(self, generation: Generation) -> None:
        """End every wait for a generation whose worker is gone or idle, and whose commands are settled."""
        if os.getpid() != self._process_id:  # in a forked child its counters are the parent's
            return
        counters = self._counters.pop(generation, None)
        if counters is not None:
            counters.release()
            self._ended.append(counters)
            self._close_ended()

    def uses(self, block: Block) -> bool:
        """Return whether another library uses the block, or used it until the last `collect`."""
        return block in self._uses

    # --- taking back --------------------------------------------------------------------------------------------------

    def hold(self, block: Block) -> bool:
        """Note that an array was freed. Returns true if another library holds its memory until `collect` frees it."""
        self.collect()
        if block in self._uses:
            block.freed = True
            return True
        return False

    def note_release(self, use: Use) -> None:
        """Note the release of a use. Called by `Use.release` in any thread; see the module's docstring.

        Once the device is closed no call of it would handle the note, so a thread does.
        """
        self._released.append(use)
        if self._closed and not self._noticed and os.getpid() == self._process_id and not sys.is_finalizing():
            self._noticed = True
            try:
                threading.Thread(target=self._end_noticed, name="atomr-trio-interop", daemon=True).start()
            except RuntimeError:  # the system has no thread left: the next release finds the note
                self._noticed = False

    def _end_noticed(self) -> None:
        self._noticed = False
        self._end()

    def collect(self) -> None:
        """Take back memory that other libraries have released, once their streams have finished with it.

        If the driver refuses, because a kernel of the other library has lost this process's context, the memory stays.
        """
        if not self._released and not self._leaving:
            return
        from atomr_cuda._library import CudaError

        with self._lock:
            while self._released:
                use = self._released.popleft()
                if use.fence is not None:
                    try:
                        use.mark = use.fence.mark()
                    except (CommandFailed, CudaError):  # it may be recording, or behind, for the moment
                        self._released.append(use)
                        break
                self._leaving.append(use)
            gone = [use for use in self._leaving if use.fence is None or use.fence.reached(use.mark or 0)]
            self._leaving = [use for use in self._leaving if use not in gone]
            for use in gone:
                self._drop(use)

    def _drop(self, use: Use) -> None:
        block = use.block
        uses = self._uses[block]
        uses.remove(use)
        use.fence = None
        if not uses:
            del self._uses[block]
            self._give_back(block, use.storage is None)
        use.storage = None
        from atomr_cuda._library import CudaError

        with contextlib.suppress(CudaError):  # then it stays mapped until this process ends
            if not any(other.chunk is block.chunk for other in self._uses):
                window = self._windows.pop(block.chunk)
                if self._closed:
                    self._in_the_background(window.close)
                else:  # at once: the next export needs the same addresses
                    window.close()
            self._close_ended()

    def _close_ended(self) -> None:
        """Close the counters of ended generations. Without a use, every stream has passed all of its waits."""
        if self._ended and not self._uses:
            consumer, ended, self._ended = self.consumer, self._ended, []

            def close() -> None:
                for counters in ended:
                    counters.close(consumer)

            self._in_the_background(close)

    def _in_the_background(self, work: Callable[[], None]) -> None:
        """Do work that waits for every stream of the process in a thread that nothing waits for, in this order."""
        from atomr_cuda._library import CudaError

        before = self._closer

        def run() -> None:
            if before is not None:
                before.join()
            with contextlib.suppress(CudaError):  # the context is lost, and its mappings with it
                work()

        thread = threading.Thread(target=run, name="atomr-trio-interop", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left: do it here, though it may take long
            run()
        else:
            self._closer = thread

    def _give_back(self, block: Block, orphaned: bool) -> None:
        """Return a block that no other library uses any more: its array's freeing meanwhile takes effect now."""
        if self._closed:
            return
        if block.freed:
            block.freed = False  # it was only held, and the arena was not told of it
            self._memory.free_now(block)
        elif orphaned:
            self._memory.orphans.append(block)

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the sharing of a closed device. Exported memory stays mapped until its consumers release it."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        """Take back memory that streams have finished with; a thread waits for the other streams and takes the rest."""
        with self._lock:
            self.collect()
            fences = [use.fence for use in (*self._released, *self._leaving) if use.fence is not None]
            if fences:
                name = "atomr-trio-interop"
                with contextlib.suppress(RuntimeError):  # without a thread it stays mapped until this process ends
                    threading.Thread(target=self._end_late, args=(fences[0],), name=name, daemon=True).start()
            elif not self._uses and self._consumer is not None:
                self._fences.clear()
                self._close_ended()
                consumer, self._consumer = self._consumer, None
                self._in_the_background(consumer.close)
            closer = self._closer
        # Not with the lock held, nor by that thread: a consumer's deleter may run in either and take the lock.
        if closer is not None and closer is not threading.current_thread():
            closer.join(CLOSE_SECONDS)

    def _end_late(self, fence: Fence) -> None:
        from atomr_cuda._library import CudaError

        with contextlib.suppress(CudaError):  # the context has ended or is lost, and its mappings with it
            fence.synchronize()
            self._end()


_REMEDY = "`await dev.share(array)` first, which waits for that"


def _last_uses(block: Block, generation: int) -> Iterator[Ticket]:
    """Yield the last writer of a block and its readers since, in this generation."""
    if block.epoch == generation:
        yield from block.readers.items()
        if block.writer is not None:
            yield block.writer


class _Settle(CommandRequest):
    """A request that creates an array's memory, and is answered when all work submitted on it is done."""

    __slots__ = ("_block",)

    def __init__(self, array: DeviceArray) -> None:
        super().__init__(SETTLE, b"", ((array._block, Role.READ),), keep=array, operation="interop.share")
        self._block = array._block

    def _publish(self, generation: Generation, requires: Any = ()) -> None:
        # Reading waits for the last writer; another library may write, so the readers count as well.
        after = tuple(_last_uses(self._block, generation.number))
        generation.publish(
            LANE_COMPUTE, SETTLE, b"", self.operands, self, requires=requires, after=after, operation=self.operation
        )


@trio.lowlevel.enable_ki_protection
async def share(memory: DeviceMemory, array: DeviceArray) -> None:
    """Make an array ready to be exported. See `Device.share`."""
    device = memory.device
    check_usable(device, array)
    array._storage.check_shareable()
    await device.memory_actor.mailbox.ask(_Settle(array))
    interop = memory.shared()
    if not interop.opened:
        with host_limits("the GPU cannot be opened in this process", device=device.index, operation="interop.open"):
            await trio.to_thread.run_sync(lambda: interop.consumer)


# --- the protocols ----------------------------------------------------------------------------------------------------


def give_dlpack(
    array: DeviceArray,
    stream: int | None,
    max_version: tuple[int, int] | None,
    dl_device: tuple[int, int] | None,
    copy: bool | None,
) -> object:
    """Return a capsule of an array's memory. See `DeviceArray.__dlpack__`."""
    interop = array._storage.memory.shared()
    place = interop.place
    if copy:
        raise BufferError("the array is shared without a copy: copy it with `await array.to_host()` or `copy_from`")
    if dl_device is not None and tuple(dl_device) != place:
        raise BufferError(f"the array is on the device that DLPack calls {place}, not on {tuple(dl_device)}")
    address, release = 0, _nothing
    if array.size:
        address, use = interop.export(array, _checked_stream(stream), owned=True)
        release = use.release
    strides = tuple(stride // array.itemsize for stride in array.strides)
    tensor = _dlpack.Tensor(address, place, array.shape, strides, *dlpack_type(array.dtype))
    return _dlpack.give(tensor, release, versioned=max_version is not None and max_version[0] >= 1)


def _nothing() -> None:
    """Do nothing: there is no memory to release."""


def _checked_stream(stream: object) -> int:
    if stream is None:
        return LEGACY_STREAM
    if isinstance(stream, bool) or not isinstance(stream, int) or stream == 0 or stream < NO_ORDER:
        raise InvalidArgument(
            f"a stream is -1 for no order, 1 for the default stream, 2 for that of the thread, or a handle, "
            f"not {shown(stream)}"
        )
    return stream


def array_interface(array: DeviceArray) -> dict[str, Any]:
    """Return the dictionary of `DeviceArray.__cuda_array_interface__`."""
    memory = array._storage.memory
    if memory.device.backend == "sim" and (memory.interop is None or not memory.interop._cuda):
        raise AttributeError("memory of the simulator is not CUDA memory: use np.from_dlpack(array)")
    if is_of_ml_dtypes(array.dtype):
        raise AttributeError(f"the interface does not support {array.dtype.name}: use DLPack")
    address, storage = 0, array._storage
    if array.size:
        address, use = memory.shared().export(array, LEGACY_STREAM, owned=False)
        # One use is enough, and it must last: a consumer keeps the array, not this dictionary.
        if storage.use is None:
            storage.use = use
        else:
            use.release()
    return {
        "shape": array.shape,
        "typestr": array.dtype.str,
        "data": (address, False),
        "strides": None if array.contiguous else array.strides,
        "version": 3,
        "stream": LEGACY_STREAM,
    }


# --- from the other library -------------------------------------------------------------------------------------------


@attrs.frozen
class _Foreign:
    """Memory of another library on this GPU."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    keep: Any
    """The object to keep alive while the memory is needed; it may have a `close`."""

    def close(self) -> None:
        """Release the memory."""
        if isinstance(self.keep, _dlpack.Taken):
            self.keep.close()


_ON_GPU = (DeviceType.CUDA, DeviceType.CUDA_MANAGED)


def is_foreign(source: object) -> bool:
    """Return whether another library's object says that its elements are on a GPU."""
    if hasattr(source, "__dlpack_device__"):
        return source.__dlpack_device__()[0] in _ON_GPU
    return hasattr(source, "__cuda_array_interface__")


def from_host(source: Any) -> Any:
    """Return a numpy array of host memory that only DLPack describes; else the source. Raises `InvalidArgument`."""
    if hasattr(source, "__array__") or not hasattr(source, "__dlpack__"):
        return source
    try:
        return np.from_dlpack(source)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgument(f"numpy cannot read the memory of this {type(source).__name__}: {error}") from error


@trio.lowlevel.enable_ki_protection
async def copy_foreign(memory: DeviceMemory, source: Any) -> DeviceArray:
    """Return a new array with a copy of another library's elements on this GPU. See `Device.to_device`."""
    device, interop = memory.device, memory.shared()
    if not interop._cuda:
        raise InvalidArgument("memory of a real GPU cannot be copied to the simulator: copy it to the host first")
    consumer = interop.consumer
    with contextlib.ExitStack() as undo:
        with _refusals("interop.copy", device):
            stream = consumer.new_stream()
            undo.callback(consumer.destroy_stream, stream)
            with consumer.bound():
                foreign = _described(source, stream, consumer)
        undo.callback(foreign.close)
        array = memory.empty(foreign.shape, foreign.dtype)
        undo.callback(array.free)
        await share(memory, array)
        address, use = interop.export(array, NO_ORDER, owned=True) if array.size else (0, None)
        await trio.lowlevel.checkpoint_if_cancelled()
        undo.pop_all()

    begun = False

    def let_go() -> None:
        foreign.close()
        consumer.destroy_stream(stream)
        if use is not None:
            use.release()

    def copy() -> None:
        # In a thread that ends with the copy, even if no task waits any more: both memories are held until then.
        nonlocal begun
        begun = True
        try:
            with _refusals("interop.copy", device), consumer.bound():
                for box in _layout.boxes(foreign.shape, array.itemsize, array.strides, foreign.strides):
                    _copy_box(consumer.driver, stream, address, foreign.address, box)
                consumer.driver.cuStreamSynchronize(stream)
        finally:
            let_go()

    try:
        # With its own limiter, it fails to start only on a system that has no thread left.
        with host_limits("the copy cannot be made", device=device.index, operation="interop.copy"):
            await trio.to_thread.run_sync(copy, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1))
    except BaseException as error:
        if isinstance(error, OutOfHostMemory) and not begun:
            let_go()
        array.free()
        raise
    return array


def _copy_box(driver: Any, stream: Any, target: int, origin: int, box: _layout.Box) -> None:
    shape = driver.CUDA_MEMCPY2D()
    shape.dstMemoryType = shape.srcMemoryType = _MEMORYTYPE_DEVICE
    shape.dstPitch, shape.srcPitch = box.pitch, box.other_pitch
    shape.WidthInBytes, shape.Height = box.width, box.height
    for plane in range(box.depth):
        to = target + box.offset + plane * box.plane
        origin_of_plane = origin + box.other_offset + plane * box.other_plane
        if box.height == 1:
            driver.cuMemcpyDtoDAsync(to, origin_of_plane, box.width, stream)
        else:
            shape.dstDevice, shape.srcDevice = to, origin_of_plane
            driver.cuMemcpy2DAsync(byref(shape), stream)


def _described(source: Any, stream: int, consumer: Consumer) -> _Foreign:
    """Return the memory of an object, ready for the next work of `stream`. Raises `InvalidArgument`."""
    try:
        if hasattr(source, "__dlpack_device__"):
            return _of_dlpack(source, stream, consumer)
        return _of_interface(source, stream, consumer)
    except (ValueError, KeyError, TypeError, BufferError) as error:
        raise InvalidArgument(f"the memory of this {type(source).__name__} cannot be read: {error}") from error


def _of_dlpack(source: Any, stream: int, consumer: Consumer) -> _Foreign:
    taken = _dlpack.take(source, stream)
    try:
        tensor = taken.tensor
        if tensor.device[1] != consumer.ordinal:
            raise ValueError(f"it is on GPU {tensor.device[1]} and the device is GPU {consumer.ordinal}")
        dtype = of_dlpack(tensor.code, tensor.bits)
    except BaseException:
        taken.close()
        raise
    strides = tuple(stride * dtype.itemsize for stride in tensor.strides)
    return _Foreign(tensor.address, tensor.shape, strides, dtype, taken)


def _of_interface(source: Any, stream: int, consumer: Consumer) -> _Foreign:
    interface = source.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise ValueError("it has a mask")
    dtype = check_dtype(interface["typestr"])
    shape = tuple(interface["shape"])
    address = interface["data"][0]
    if address:
        ordinal = c_int()
        attribute = _POINTER_ATTRIBUTE_DEVICE_ORDINAL
        consumer.driver.cuPointerGetAttribute(ctypes.addressof(ordinal), attribute, address)
        if ordinal.value != consumer.ordinal:
            raise ValueError(f"it is on GPU {ordinal.value} and the device is GPU {consumer.ordinal}")
    _follow_stream(consumer, interface.get("stream") or LEGACY_STREAM, stream)
    strides = interface.get("strides") or _layout.contiguous_strides(shape, dtype.itemsize)
    return _Foreign(address, shape, tuple(strides), dtype, source)


def _follow_stream(consumer: Consumer, theirs: int, ours: int) -> None:
    """Make `ours` wait for the work of `theirs` so far."""
    driver = consumer.driver
    event = driver.CUevent()
    with consumer.bound(theirs):
        driver.cuEventCreate(byref(event), driver.CU_EVENT_DISABLE_TIMING)
        driver.cuEventRecord(event, theirs)
    driver.cuStreamWaitEvent(ours, event, 0)
    driver.cuEventDestroy(event)
