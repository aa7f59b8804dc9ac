"""A simulated communicator: one rank's end of it, the order of its work, and its messages to the other ranks."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from atomr_cuda.nccl import ncclResult_t as Result

from ..._status import Refused, require
from . import meeting
from .meeting import Kind, Shared, as_bytes

if TYPE_CHECKING:
    from ...engine.memory import Array
    from .elements import Factor

_NOTE = 256
"""The bytes of a message from host to host."""


class Stopped(Exception):
    """Raised where a rank waits for others and its communicator is stopped meanwhile."""


def _pause(looks: int) -> None:
    """Let others run, the longer the more often nothing was there."""
    if looks < 20:
        os.sched_yield()
    else:
        time.sleep(min(1e-3, 2e-5 * (looks - 19)))


def _wait(done: Callable[[], bool], leave: Callable[[], bool]) -> None:
    """Look until something holds; raise `Stopped` when this rank must leave before that."""
    looks = 0
    while not done():
        if leave():
            raise Stopped
        looks += 1
        _pause(looks)


class Reception:
    """Bytes that are expected from another rank: the head, and then what the head says.

    `follow` takes the head, and returns the number of bytes that follow it.
    """

    def __init__(self, head: int, follow: Callable[[Array], int] | None = None) -> None:
        self.head: Array = np.empty(head, np.uint8)
        self.data: Array = np.empty(0, np.uint8)
        """What follows the head."""
        self._follow = follow
        self._filled = 0

    def take(self, pull: Callable[[Array], int]) -> int:
        """Take what has come; return the number of bytes."""
        before = self._filled
        if self._filled < len(self.head):
            self._filled += pull(self.head[self._filled :])
        if self._filled >= len(self.head):
            if self._follow is not None:
                self.data, self._follow = np.empty(self._follow(self.head), np.uint8), None
            at = self._filled - len(self.head)
            if at < len(self.data):
                self._filled += pull(self.data[at:])
        return self._filled - before

    @property
    def complete(self) -> bool:
        """Tell whether all of it has come."""
        return self._follow is None and self._filled == len(self.head) + len(self.data)


class Exchange:
    """Messages of one rank to others and from others, which all move at once."""

    def __init__(self, shared: Shared, rank: int) -> None:
        self._shared = shared
        self._rank = rank
        self._outgoing: dict[tuple[Kind, int], deque[Array]] = defaultdict(deque)
        self._incoming: dict[tuple[Kind, int], deque[Reception]] = defaultdict(deque)

    def send(self, kind: Kind, peer: int, *pieces: Array) -> None:
        """Send bytes to another rank, behind those that were sent before."""
        self._outgoing[kind, peer].extend(piece for piece in pieces if len(piece))

    def receive(self, kind: Kind, peer: int, reception: Reception) -> Reception:
        """Expect bytes from another rank, behind those that were expected before."""
        self._incoming[kind, peer].append(reception)
        return reception

    def run(self, leave: Callable[[], bool]) -> None:
        """Move everything. Raises `Stopped`."""
        looks = 0
        while any(self._outgoing.values()) or any(self._incoming.values()):
            if leave():
                raise Stopped
            moved = self._push() + self._pull()
            looks = 0 if moved else looks + 1
            if not moved:
                _pause(looks)

    def _push(self) -> int:
        """Send what there is room for; return the number of bytes."""
        moved = 0
        for (kind, peer), pieces in self._outgoing.items():
            ring = self._shared.ring(kind, self._rank, peer)
            while pieces and (count := ring.push(pieces[0])):
                moved += count
                if count == len(pieces[0]):
                    pieces.popleft()
                else:
                    pieces[0] = pieces[0][count:]
        return moved

    def _pull(self) -> int:
        """Take what has come; return the number of bytes."""
        moved = 0
        for (kind, peer), receptions in self._incoming.items():
            ring = self._shared.ring(kind, peer, self._rank)
            while receptions:
                moved += receptions[0].take(ring.pull)
                if not receptions[0].complete:
                    break
                receptions.popleft()
        return moved


class Communicator:
    """One rank's end of a communicator.

    Its work runs in the order in which it was launched, on whatever streams. `stop` lets work that runs leave, and
    later work do nothing.
    """

    def __init__(self, rank: int, ranks: int, device: int) -> None:
        self.rank = rank
        self.ranks = ranks
        self.device = device
        self.state: int = Result.ncclInProgress
        """The status of its beginning."""
        self.factors: dict[int, Factor] = {}
        self.sequence = 0
        """The number of collectives that it has run."""
        self.launching: threading.Lock = threading.Lock()
        """Held from the turn of a piece of work until it is in its stream."""
        self._id = b""
        self._shared: Shared | None = None
        self._stopped = False
        self._closed = False
        self._finalized = False
        self._launched = 0
        self._done = 0
        self._running = 0
        self._changed = threading.Condition()

    # Its beginning.

    def begin(self, unique_id: bytes) -> None:
        """Meet the other ranks. Blocks until all have come, or it is closed. Refuses what cannot be a communicator."""
        self._id = unique_id
        try:
            shared = meeting.join(unique_id, self.rank, self.ranks)
            shared.arrive(self.rank, _device_number(self.device))
            _wait(shared.everybody_is_here, self._has_closed)
            require(not shared.share_a_device(), Result.ncclInvalidUsage)
        except Stopped:
            self.state = Result.ncclInternalError
        except Refused as refused:
            self.state = refused.status
        else:
            self._shared = shared
            self.state = Result.ncclSuccess

    def require_usable(self) -> None:
        """Refuse where it has not begun yet, or can be used no more."""
        require(self.state != Result.ncclInProgress, Result.ncclInvalidArgument)
        require(not self.state, self.state)
        require(not (self._finalized or self._stopped), Result.ncclInvalidUsage)

    # Its work.

    def take_turn(self) -> int:
        """Return the place of the next piece of work. It keeps those behind it waiting until it has run."""
        with self._changed:
            self._launched += 1
            return self._launched - 1

    def perform(self, turn: int, work: Callable[[], None]) -> None:
        """Run a piece of work when it is its turn; nothing where the communicator is stopped, also meanwhile."""
        with self._changed:
            while self._done < turn and not self._stopped:
                self._changed.wait()
            if self._stopped:
                return
            self._running += 1
        try:
            work()
        except Stopped:
            pass
        finally:
            with self._changed:
                self._running -= 1
                self._done = turn + 1
                self._changed.notify_all()

    def wait(self, done: Callable[[], bool]) -> None:
        """Wait inside a piece of work. Raises `Stopped`."""
        _wait(done, self.has_stopped)

    def exchange(self) -> Exchange:
        """Messages to the other ranks."""
        assert self._shared is not None
        return Exchange(self._shared, self.rank)

    def has_stopped(self) -> bool:
        """Tell whether its work must leave."""
        return self._stopped

    def _has_closed(self) -> bool:
        return self._closed

    # Talks of its ranks on the host.

    def tell(self, notes: dict[int, bytes], listen_to: Iterable[int]) -> dict[int, bytes]:
        """Send each rank a note of at most 256 bytes, and return those of others. Refuses where it is closed meanwhile.

        Blocks until all of them have sent one.
        """
        exchange = self.exchange()
        for rank, note in notes.items():
            exchange.send(Kind.CONTROL, rank, as_bytes(note.ljust(_NOTE, b"\0")))
        awaited = {rank: exchange.receive(Kind.CONTROL, rank, Reception(_NOTE)) for rank in listen_to}
        try:
            exchange.run(self._has_closed)
        except Stopped:
            raise Refused(Result.ncclInternalError) from None
        return {rank: reception.head.tobytes() for rank, reception in awaited.items()}

    def finalize(self) -> None:
        """Wait for all work that was launched, and for all other ranks to do the same."""
        with self._changed:
            while self._done < self._launched and not self._stopped:
                self._changed.wait()
        everybody = range(self.ranks)
        self.tell(dict.fromkeys(everybody, b""), everybody)
        self._finalized = True

    @property
    def flushed(self) -> bool:
        """Tell whether there is nothing that `finalize` would wait for."""
        return self._finalized or self._stopped or bool(self.state)

    # Its end.

    def stop(self) -> None:
        """Let work that runs leave, wait until it has, and let all later work do nothing."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            while self._running:
                self._changed.wait()

    def close(self) -> None:
        """Stop, and let calls of other threads that wait for other ranks return."""
        self._closed = True
        meeting.withdraw(self._id)
        self.stop()


def _device_number(device: int) -> int:
    """A number for a device of this host. As for the real library, `NCCL_HOSTID` tells hosts apart."""
    text = f"{os.environ.get('NCCL_HOSTID', '')}/{device}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
