"""The channel between the processes: a socket that keeps message boundaries, and the timeline page.

Both sides use this module, so it imports the standard library alone. Nothing is ever unpickled. Records have the binary
form of ``protocol.py``; the few messages that a worker sends back are JSON.
"""

from __future__ import annotations

import array
import errno
import json
import mmap
import os
import socket
from collections.abc import Sequence
from typing import Any

from .limits import occupy_standard_streams
from .protocol import (
    ASLEEP_WORD,
    HEARTBEAT_WORD,
    MAX_LANES,
    PAGE_BYTES,
    RECORDS_READ_WORD,
    counter_word,
    failures_word,
    status_place,
)

MAX_MESSAGE = 192 * 1024
MAX_DESCRIPTORS = 160
MAX_TEXT = 16 * 1024
NO_DESCRIPTOR = -1
_LARGEST_STATUS = (1 << 15) - 1
_DESCRIPTOR_ROOM = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)


def open_pair() -> tuple[socket.socket, socket.socket]:
    """The two ends of a channel. Messages keep their boundaries and their order, and may carry descriptors."""
    occupy_standard_streams()
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send_message(sock: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one JSON message, blocking while the socket is full."""
    send_bytes(sock, json.dumps(message).encode(), descriptors)


def send_bytes(sock: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send one message. Raises `BlockingIOError` on a non-blocking socket that is full."""
    if descriptors:
        socket.send_fds(sock, [data], list(descriptors))
    else:
        sock.send(data)


def receive_bytes(sock: socket.socket, buffer: bytearray) -> tuple[bytes, list[int]]:
    """Return one message and its descriptors; no bytes mean the end of the channel. Descriptors are close-on-exec.

    The kernel drops descriptors for which this process has no room; `NO_DESCRIPTOR` at the end replaces them. `buffer`
    has `MAX_MESSAGE` bytes and belongs to the caller: a new one for each message would cost 16 us.
    """
    # Not by socket.recv_fds: it drops the flags, and the user's children would inherit a chunk's descriptor.
    size, ancillary, flags, _address = sock.recvmsg_into([buffer], _DESCRIPTOR_ROOM, socket.MSG_CMSG_CLOEXEC)
    data = bytes(memoryview(buffer)[:size])
    dropped = [NO_DESCRIPTOR] if flags & socket.MSG_CTRUNC else []
    if not ancillary:
        return data, dropped
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    return data, [*descriptors, *dropped]


def check_all_came(descriptors: Sequence[int]) -> None:
    """Raise `OSError` if this process had no room for a descriptor of a message; the other descriptors are closed."""
    if NO_DESCRIPTOR in descriptors:
        for descriptor in descriptors:
            if descriptor != NO_DESCRIPTOR:
                os.close(descriptor)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def clip(text: str) -> str:
    """Return the beginning of a text, short enough for one message."""
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "..."


def set_size(descriptor: int, size: int) -> None:
    """Give shared memory its size in bytes. Raises `OSError`, which names the limit that forbids the size."""
    try:
        os.ftruncate(descriptor, size)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        text = f"{size:,} bytes of shared memory exceed the limit for a file, RLIMIT_FSIZE (`ulimit -f`)"
        raise OSError(errno.EFBIG, text) from None


class SharedMemory:
    """Anonymous shared memory behind a descriptor, mapped into this process until `close`."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor: int = descriptor
        self.size = size
        self.map: mmap.mmap = mmap.mmap(descriptor, size)
        self.bytes: memoryview[int] = memoryview(self.map)

    @classmethod
    def adopt(cls, descriptor: int, size: int) -> SharedMemory:
        """Map the shared memory behind a received descriptor, which is closed if this fails."""
        try:
            return cls(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def create(cls, name: str, size: int) -> SharedMemory:
        """Make new zeroed memory of `size` bytes."""
        occupy_standard_streams()
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        try:
            set_size(descriptor, size)
            return cls(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise

    def part(self) -> tuple[int, mmap.mmap]:
        """Return the descriptor and the mapping, for the caller to close; views keep the mapping."""
        parts = self.descriptor, self.map
        self.descriptor = -1
        del self.bytes, self.map
        return parts

    def close(self) -> None:
        """Unmap and close; no view may be left. Can be called twice."""
        if self.descriptor >= 0:
            self.bytes.release()
            os.close(self.descriptor)
            self.descriptor = -1
            self.map.close()


# The settler asks for two of these words after each command; a call for each would take longer than reading it.
_COUNTERS = tuple(map(counter_word, range(MAX_LANES)))
_FAILURES = tuple(map(failures_word, range(MAX_LANES)))


class TimelinePage(SharedMemory):
    """The page that parent, worker and GPU share: a counter for each lane, the heartbeat, and the statuses.

    Each word is written at once, through a view of 64-bit words. ``struct`` with an explicit byte order would write
    byte by byte.
    """

    def __init__(self, descriptor: int, size: int = PAGE_BYTES) -> None:
        super().__init__(descriptor, size)
        self.words: memoryview[int] = self.bytes.cast("Q")
        self._statuses: memoryview[int] = self.bytes.cast("h")
        self.frozen: tuple[int, ...] | None = None
        """The counters of a worker that is gone, whatever their words say."""

    @classmethod
    def new(cls) -> TimelinePage:
        """Make a page of zeros for a new generation."""
        descriptor = os.memfd_create("atomr-trio-timeline", os.MFD_CLOEXEC)
        try:
            set_size(descriptor, PAGE_BYTES)
            return cls(descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def finished(self, lane: int) -> int:
        """Return the highest ticket of `lane` that the GPU has reached."""
        return self.words[_COUNTERS[lane]] if self.frozen is None else self.frozen[lane]

    def freeze(self) -> None:
        """Keep the counters of a worker that is gone: what waits on the GPU for them is about to be released."""
        self.frozen = tuple(self.finished(lane) for lane in range(MAX_LANES))

    def heartbeat(self) -> int:
        """Return a number that grows while the worker is not stopped."""
        return self.words[HEARTBEAT_WORD]

    def records_read(self) -> int:
        """Return the number of records that the worker has read."""
        return self.words[RECORDS_READ_WORD]

    def failures(self, lane: int) -> int:
        """Return the number of commands of `lane` that have failed in the worker so far."""
        return self.words[_FAILURES[lane]]

    def set_asleep(self, asleep: bool) -> None:
        """Tell the worker whether it must wake the parent through the descriptor."""
        self.words[ASLEEP_WORD] = int(asleep)

    def status(self, lane: int, ticket: int) -> int:
        """Return the status of a finished command: 0, a library's status, or `protocol.ENGINE_BUG`."""
        return self._statuses[status_place(lane, ticket)]

    def set_status(self, lane: int, ticket: int, status: int) -> None:
        """Write a command's status, before its ticket is reached. A status that is too large for the page goes in a
        message."""
        self._statuses[status_place(lane, ticket)] = max(-_LARGEST_STATUS, min(status, _LARGEST_STATUS))

    def close(self) -> None:
        """Unmap the page."""
        if self.descriptor >= 0:
            self.words.release()
            self._statuses.release()
        super().close()
