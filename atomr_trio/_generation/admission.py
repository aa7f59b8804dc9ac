"""Whether a request may begin, and the actors that wait until it may."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from .._supervision.mailbox import Request
from .._wire.protocol import BATCH_COMMANDS, LANE_COMPUTE, LANE_LIMIT, MAX_LANES
from .chunks import Chunks
from .life import Life
from .loss import BEING_REBUILT
from .sender import Sender
from .timeline import Timeline, the_lane

if TYPE_CHECKING:
    from .peers import Wish
    from .services import PeerOrder

OUTBOX_BYTES = 192 << 20
"""Batches send no more while this many bytes of records wait here: 4096 launches of the largest kind."""

COMPUTE_LIMIT = LANE_LIMIT + LANE_LIMIT // 2
"""Unfinished commands of the compute lane, those of batches apart, with which other lanes take no more either."""


class Admission:
    """The room of the lanes of one generation."""

    def __init__(self, life: Life, timeline: Timeline, chunks: Chunks, sender: Sender) -> None:
        self._life = life
        self._timeline = timeline
        self._chunks = chunks
        self._sender = sender
        self._waiting = [0] * MAX_LANES
        self.peers: PeerOrder | None = None
        """Tells what waits for other devices; None for a device without a group."""
        self.waiters: list[trio.Event] = []
        """Set when the lanes may have room again; one for each actor that waits."""
        life.tell(self.wake)

    def __repr__(self) -> str:
        return f"<Admission: {sum(self._waiting)} wait for room>"

    @trio.lowlevel.enable_ki_protection
    async def admit(self, request: Request) -> None:
        """Wait until a request can begin: its lane has room, and no lost worker may still touch its memory."""
        while not self.takes(request):
            if self.peers is not None and self.peers.blocked(request.accesses()):
                await self._admit_in_turn(request, self.peers)
                return
            await self.wait_room(request.lane)

    @trio.lowlevel.enable_ki_protection
    async def _admit_in_turn(self, request: Request, peers: PeerOrder) -> None:
        with peers.wishing(request.accesses()) as wish:
            while not self.takes(request, wish):
                peers.press(request.accesses())
                await self.wait_room(request.lane)

    @trio.lowlevel.enable_ki_protection
    async def wait_room(self, lane: int | None) -> None:
        """Wait until the lane may have room for a request, or until the generation is lost."""
        if lane is not None:
            self._waiting[lane] += 1
        event = trio.Event()
        self.waiters.append(event)
        try:
            await event.wait()
        finally:
            if lane is not None:
                self._waiting[lane] -= 1

    def waiting(self, lane: int) -> int:
        """Return the number of actors that wait for room on a lane."""
        return self._waiting[lane]

    def wake(self) -> None:
        """Make every actor check its condition again."""
        if self.waiters:
            waiters, self.waiters = self.waiters, []
            for event in waiters:
                event.set()

    def takes(self, request: Request, wish: Wish | None = None) -> bool:
        """Return whether a request can begin right now; `wish` is its own among those that wait for other devices."""
        if self._life.loss is not None or not (request.lane is None or self._has_room(request.lane)):
            return False
        arena = self._chunks.arena
        if arena.quarantine and any(map(arena.quarantined, request.blocks())):
            return False
        return self.peers is None or not self.peers.blocked(request.accesses(), wish)

    def refusal(self, request: Request) -> trio.WouldBlock:
        """Return the error that says why a request cannot begin right now, for a caller that does not wait."""
        if self._life.loss is not None:
            return trio.WouldBlock(BEING_REBUILT)
        lane = request.lane
        if self.waits_for_peers(request):
            return trio.WouldBlock(
                f"{request.operation} works on memory that another device of the group still uses: use the awaited "
                "form, which waits for that, or flush the other device's batch first"
            )
        if lane is None or self._has_room(lane):
            return trio.WouldBlock(
                f"{request.operation} works on memory that a lost worker may still write until it is gone: use the "
                "awaited form, which waits for that"
            )
        full, most = (lane, LANE_LIMIT) if self._is_full(lane) else (LANE_COMPUTE, COMPUTE_LIMIT)
        return trio.WouldBlock(
            f"{self._timeline.book(full).admitted} commands of {the_lane(full)} are unfinished that are not a batch's; "
            f"without waiting it takes one more while they are fewer than {most}: use the awaited form, which waits "
            "for room, or a batch, which takes more"
        )

    def waits_for_peers(self, request: Request) -> bool:
        """Return whether a request has to wait for another device; if so, the end of its work there is heard of."""
        if self.peers is None or not self.peers.blocked(request.accesses()):
            return False
        self.peers.press(request.accesses())
        return True

    def has_room_for_batch(self, lane: int, count: int) -> bool:
        """Return whether a lane takes `count` more commands of batches."""
        most, compute = BATCH_COMMANDS - count, self._timeline.lanes[LANE_COMPUTE]
        if len(compute.in_flight) + len(compute.launches) > most or self._sender.outbox_bytes > OUTBOX_BYTES:
            return False
        return lane == LANE_COMPUTE or self._timeline.book(lane).unfinished <= most

    def _is_full(self, lane: int) -> bool:
        return self._timeline.book(lane).admitted >= LANE_LIMIT

    def _has_room(self, lane: int) -> bool:
        if self._is_full(lane):
            return False
        # A command of another lane may bring along a chunk or a fill, and those run on the compute lane.
        return lane == LANE_COMPUTE or self._timeline.lanes[LANE_COMPUTE].admitted < COMPUTE_LIMIT
