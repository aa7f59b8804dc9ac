"""The arrays of one device that other libraries use: what is exported, and until when.

A *use* is one export. It holds the array's memory until the consumer's deleter has run and its stream has done all
work submitted by then. A deleter runs in any thread at any time, so it only notes that it ran; the next call of the
device does the rest.
"""

from __future__ import annotations

import collections
import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..._generation.peers import Peers
from ..._generation.timeline import Operand
from ..._memory.arena import Block, Chunk, Ticket
from ..._values.errors import CommandFailed, stale_array
from ..._wire.protocol import LANE_COMPUTE
from ..._wire.records.interop import ATTACH, SETTLE, WAIT
from ..arrays import DeviceArray, Storage, check_usable
from ..checked_memory import CheckedArena
from .consumer import NO_ORDER, STREAMS, Consumer, CudaWindow, HostWindow, _refusals
from .dlpack import DeviceType
from .fences import _UNHEARD, WAIT_SECONDS, Counters, Fence

if TYPE_CHECKING:
    from ..._generation.generation import Generation
    from ..memory import DeviceMemory


CLOSE_SECONDS = 2.0
"""Seconds that the end of a device waits for other libraries' streams. Memory that they still use is released later."""


class Use:
    """One export of an array."""

    __slots__ = ("_interop", "_stream_owner", "block", "fence", "mark", "released", "storage")

    def __init__(
        self, interop: Interop, block: Block, storage: Storage | None, fence: Fence | None, stream_owner: object
    ) -> None:
        self._interop = interop
        self.block: Block = block
        self.storage: Storage | None = storage
        """Keeps the block allocated; None if the export lasts only as long as the array's own storage."""
        self.fence: Fence | None = fence
        self._stream_owner = stream_owner
        self.released: bool = False
        self.mark: int | None = None
        """The value that the stream writes when it has done its work up to the release of the use."""

    def keep(self, stream_owner: object) -> None:
        """Keep what owns the stream, if it was named by a number before."""
        if self._stream_owner is None:
            self._stream_owner = stream_owner

    def end(self) -> None:
        """Let go of everything: the stream has done all its work on the memory."""
        self.fence = self.storage = self._stream_owner = None

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
        self.in_order: bool = cuda
        """True if a stream can be put in order with commands; a host has none."""
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
        return self._consumer is not None or not self.in_order

    @property
    def place(self) -> tuple[int, int]:
        """The device's type and number in DLPack."""
        return (DeviceType.CUDA, self.consumer.ordinal) if self.in_order else (DeviceType.CPU, 0)

    # --- giving out ---------------------------------------------------------------------------------------------------

    def export(self, array: DeviceArray, stream: int, *, owned: bool, stream_owner: object = None) -> tuple[int, Use]:
        """Return the address of an array's first element in this process, and the use that holds it.

        With `owned` the use keeps the array's storage; otherwise it lasts as long as that. The stream is in order with
        our lanes from now on. `stream_owner` is what it was named by: an object of the other library may destroy it
        at its end, and is kept as long as the use lasts. Raises as `DeviceArray.__dlpack__` does.
        """
        block = array._block
        self.collect()
        generation = self._check(array)
        pending = generation.timeline.still_open(set(_last_uses(block, generation.number)))
        if pending and not self.in_order:
            raise BufferError(f"commands on the array are unfinished: {_REMEDY}")
        with self._lock, _refusals("interop.export", self._device):
            fence = self._fence(stream) if self.in_order and stream != NO_ORDER else None
            window = self._window(block.chunk)
            use = Use(self, block, array._storage if owned else None, fence, stream_owner)
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
            raise stale_array(block.torn, block.lost, device=device.index)
        if not device.info.durable:
            raise BufferError("memory of this device cannot be shared: it has no descriptors")
        generation = device.current
        if generation is None or generation.loss is not None or generation.arena.quarantined(block):
            raise BufferError(f"the device is recovering from a fault: {_REMEDY}")
        if block.chunk.descriptor < 0:
            generation.inbox.drain()  # it arrives before the end of the command that first used the memory
        if block.recipe is not None or block.chunk.descriptor < 0:
            raise BufferError(f"the array's memory does not exist yet: {_REMEDY}")
        if block.peers and not device.part(Peers).share(block):
            raise BufferError("another device of the group still works on the array: wait for that first")
        return generation

    def _window(self, chunk: Chunk) -> CudaWindow | HostWindow:
        window = self._windows.get(chunk)
        if window is None:
            window = CudaWindow(chunk, self.consumer) if self.in_order else HostWindow(chunk)
            self._windows[chunk] = window
        return window

    def _fence(self, stream: int) -> Fence:
        fence = self._fences.get(stream)
        if fence is None:
            if len(self._fences) == STREAMS:
                raise BufferError(f"the device keeps order with {STREAMS} streams already, the most: use fewer streams")
            fence = self._fences[stream] = Fence(self.consumer, stream, len(self._fences))
        else:
            fence.renew()
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
        if not uses:
            del self._uses[block]
            self._give_back(block, use.storage is None)
        use.end()
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
        yield from block.all_readers.items()
        if block.writer is not None:
            yield block.writer
