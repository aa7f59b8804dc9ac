"""The order of the streams of other libraries and our lanes.

A *fence* orders one stream and our lanes:

- The stream waits for our commands by ``cuStreamWaitValue64`` on the counters of their lanes. The page of counters is
  registered here once for each generation. When a worker is gone, a thread sets its counters to `RELEASED`. So a
  program that blocks in the other library while its generation is lost goes on too.
- A lane waits for the stream by a word that the stream writes (``cuStreamWriteValue64``) at the moment when a command
  on a shared array is published, ordered before that command by a record of its own (``interop.wait``). That record
  has a time limit even on a device without one, so a stream that never reaches the write costs a generation.

Every wait is for work that was submitted earlier, so there is no deadlock.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from ctypes import byref, c_int
from typing import TYPE_CHECKING, Any, Final

from atomr_cuda.constants.driver import CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_INVALID_HANDLE

from ..._generation.timeline import Command
from ..._values.errors import CommandFailed, DeviceError
from ..._wire.channel import SharedMemory
from ..._wire.protocol import CELL, MAX_LANES, counter_word
from .consumer import PER_THREAD_STREAM, Consumer

if TYPE_CHECKING:
    from ..._generation.generation import Generation


RELEASED: Final = 1 << 62
"""The value of the counters of a dead generation. The comparison of ``cuStreamWaitValue64`` is cyclic, so 2^64 - 1
would be less than every ticket."""

WAIT_SECONDS: Final = 60.0
"""Seconds that a lane waits for another library's stream on a device without a `hang_timeout`."""

MARKS_AHEAD: Final = 256
"""The most pending marks of a stream: a driver blocks the caller at about a thousand pending operations."""


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
        self._context = consumer.context_of(stream)

    def renew(self) -> None:
        """Note that its stream exists now, as an array is shared with it: one with the same handle may have ended."""
        self._context = self._consumer.context_of(self.stream)

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
            with self._consumer.bound(self._context):
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
            if error.status not in (CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_CONTEXT_IS_DESTROYED):
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
