"""How the ranks of a simulated communicator find each other, and the memory that they share.

An id names an abstract socket of the process that made it. Each rank connects and is given a memory file; the socket is
closed when all have come, so an id serves for one communicator. In the file there are two words for each rank, and
rings of bytes: one for each kind of message and each pair of ranks, in which one rank writes and the other reads. What
is in a ring stays there when the process that wrote it ends.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import socket
import struct
import threading
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from atomr_cuda.nccl import NCCL_UNIQUE_ID_BYTES, ncclResult_t as Result

from ..._status import Refused

if TYPE_CHECKING:
    from ...engine.memory import Array

_PREFIX = b"atomr-simulated-nccl-"
_REQUEST = struct.Struct("<ii")
_LINE = 64


class Kind(IntEnum):
    """The kinds of messages; those of different kinds do not wait for each other."""

    COLLECTIVE = 0
    PEER = 1
    CONTROL = 2


_ROOM = {Kind.COLLECTIVE: 1 << 18, Kind.PEER: 1 << 18, Kind.CONTROL: 1 << 12}
"""The bytes of a ring."""


class Ring:
    """The bytes that are on their way from one rank to another. The words count what was ever written, and read."""

    def __init__(self, memory: Array) -> None:
        self._words = memory[:16].view(np.uint64)
        self._data = memory[_LINE:]

    def push(self, piece: Array) -> int:
        """Write as much as there is room for; return the number of bytes."""
        written, room = int(self._words[0]), len(self._data)
        count = min(len(piece), room - (written - int(self._words[1])))
        if count:
            at = written % room
            first = min(count, room - at)
            self._data[at : at + first] = piece[:first]
            self._data[: count - first] = piece[first:count]
            self._words[0] = written + count
        return count

    def pull(self, piece: Array) -> int:
        """Read as much as there is, up to the length of the piece; return the number of bytes."""
        read, room = int(self._words[1]), len(self._data)
        count = min(len(piece), int(self._words[0]) - read)
        if count:
            at = read % room
            first = min(count, room - at)
            piece[:first] = self._data[at : at + first]
            piece[first:count] = self._data[: count - first]
            self._words[1] = read + count
        return count


class Shared:
    """The memory of a communicator, as one of its ranks has it mapped."""

    def __init__(self, descriptor: int, ranks: int) -> None:
        self.ranks = ranks
        self._memory: Array = np.frombuffer(mmap.mmap(descriptor, size_of(ranks)), np.uint8)
        self._rings: dict[tuple[Kind, int, int], Ring] = {}

    def arrive(self, rank: int, device: int) -> None:
        """Say that a rank has come, and on which device it is: a number that is another one for each device."""
        words = self._of_rank(rank)
        words[1] = device
        words[0] = 1

    def everybody_is_here(self) -> bool:
        """Tell whether all ranks have come."""
        return all(self._of_rank(rank)[0] for rank in range(self.ranks))

    def share_a_device(self) -> bool:
        """Tell whether two ranks are on one device."""
        return len({int(self._of_rank(rank)[1]) for rank in range(self.ranks)}) < self.ranks

    def ring(self, kind: Kind, source: int, target: int) -> Ring:
        """The ring from one rank to another, or to itself."""
        found = self._rings.get((kind, source, target))
        if found is None:
            size = _LINE + _ROOM[kind]
            start = _before(kind, self.ranks) + (source * self.ranks + target) * size
            found = self._rings[kind, source, target] = Ring(self._memory[start : start + size])
        return found

    def _of_rank(self, rank: int) -> Array:
        return self._memory[rank * _LINE : rank * _LINE + 16].view(np.uint64)


def _before(kind: int, ranks: int) -> int:
    return ranks * _LINE + sum(ranks * ranks * (_LINE + room) for each, room in _ROOM.items() if each < kind)


def size_of(ranks: int) -> int:
    """The bytes of the memory of so many ranks; the operating system gives those that are used."""
    return _before(len(Kind), ranks)


class _Host:
    """The socket of an id, in the process that made it."""

    def __init__(self, name: bytes) -> None:
        self._name = name
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(b"\0" + name)
        self._listener.listen(1024)
        threading.Thread(target=self._serve, name="simulated NCCL id", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # which wakes the thread

    def _serve(self) -> None:
        memory, size, here = -1, 0, set[int]()
        try:
            while memory < 0 or len(here) < size:
                caller, _ = self._listener.accept()
                with caller, contextlib.suppress(OSError, struct.error):
                    rank, ranks = _REQUEST.unpack(caller.recv(_REQUEST.size, socket.MSG_WAITALL))
                    if memory < 0:
                        memory, size = os.memfd_create("atomr-simulated-nccl", os.MFD_CLOEXEC), ranks
                        os.ftruncate(memory, size_of(ranks))
                    if ranks != size or rank in here:
                        caller.sendall(bytes([Result.ncclInvalidArgument]))
                        continue
                    here.add(rank)
                    socket.send_fds(caller, [b"\0"], [memory])
        except OSError:
            pass  # it was closed
        finally:
            self._listener.close()
            _hosts.pop(self._name, None)
            if memory >= 0:
                os.close(memory)


_hosts: dict[bytes, _Host] = {}


def new_id() -> bytes:
    """Make an id, and listen for the ranks that will be given it."""
    name = _PREFIX + secrets.token_hex(16).encode()
    try:
        _hosts[name] = _Host(name)
    except (OSError, RuntimeError):
        raise Refused(Result.ncclSystemError) from None
    return name.ljust(NCCL_UNIQUE_ID_BYTES, b"\0")


def withdraw(unique_id: bytes) -> None:
    """Let an id of this process find nobody any more."""
    host = _hosts.get(unique_id.rstrip(b"\0"))
    if host is not None:
        host.close()


def join(unique_id: bytes, rank: int, ranks: int) -> Shared:
    """Get the memory of the communicator of an id. Refuse with "system error" if its process is gone or has closed it,
    and with "invalid argument" for a rank that has come already, or another number of ranks."""
    name = unique_id.rstrip(b"\0")
    if not name.startswith(_PREFIX):
        raise Refused(Result.ncclInvalidArgument)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            caller.connect(b"\0" + name)
            caller.sendall(_REQUEST.pack(rank, ranks))
            answer, descriptors, _, _ = socket.recv_fds(caller, 1, 1)
    except OSError:
        raise Refused(Result.ncclSystemError) from None
    if not descriptors:
        raise Refused(answer[0] if answer else Result.ncclSystemError)
    try:
        return Shared(descriptors[0], ranks)
    finally:
        os.close(descriptors[0])


def as_bytes(data: bytes) -> Array:
    """Bytes as an array."""
    found: np.ndarray[Any, Any] = np.frombuffer(data, np.uint8)
    return found
