"""Data races in one launch: two lanes access the same memory, one of them writes, and nothing orders the two accesses.

Every event gets a **time**, a number that rises. For each granule of memory three accesses are remembered: the last
write, the last read, and the last read by a different lane. Two accesses conflict when they are of different lanes, at
least one of them writes, and not both are *strong*: atomic, volatile, relaxed, acquire or release.

Lanes order their accesses by synchronising, in a **scope**: the warp, the block or the device. For each lane and scope
two times are remembered: when the lane last *released* its accesses to others of the scope, and when it last *acquired*
what they had released. An access at a time `t` comes before one that another lane makes now under two conditions, in
the narrowest scope that holds both: the former lane has released, and the latter has acquired, at `t` or later. It is
not checked that the release was before the acquisition, or that the two were about the same word. So races can be
missed, but none is reported wrongly.

Lanes act for each other. A lane that releases in a scope also releases what its warp and its block had released to it.
A lane that acquires in a scope also acquires what others there had acquired from wider scopes. So a single lane may act
for its block, between two barriers. Synchronising in a scope includes the narrower ones.

Shuffles and similar instructions make the lanes of a warp wait for each other, and do not order writes. But a lane's
reads before one come before other lanes' writes after it: NVIDIA's own collectives rely on that.

A write of the value that is already there is not a race, since the order makes no difference. The content of shared
memory before the first write does not count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np

from ..engine.memory import Array
from .shadow import Shadow

Kind = Literal["read", "write", "atomic", "strong read", "strong write"]
"""The kinds of accesses. The strong ones are volatile, relaxed, acquire and release loads and stores."""

DEEDS: dict[Kind, str] = {
    "read": "read",
    "write": "write",
    "atomic": "atomic operation",
    "strong read": "volatile or atomic read",
    "strong write": "volatile or atomic write",
}
"""The names of the kinds in findings."""

_Event = tuple[Kind, int]
"""The kind and the site of an access."""
_NO_ACCESS: _Event = ("read", -1)

WARP_LANES = 32
MOST_LANES = 1 << 31
MOST_TIMES = 1 << 31

_TIME = np.int64(32)
"""The first bit of the time in a remembered access, which is one number: time, then `_STRONG`, then the lane."""
_STRONG = np.int64(1 << 31)
_LANE = np.int64((1 << 31) - 1)


class Scope(IntEnum):
    """The lanes that a synchronisation is for."""

    WARP = 0
    BLOCK = 1
    DEVICE = 2


@dataclass(frozen=True, slots=True)
class Race:
    """Conflicting accesses of one instruction with earlier ones of another, by the first pair of lanes that was seen.

    Lanes are numbered over the whole grid; `times` is the number of lanes with such a conflict.
    """

    kind: Kind
    site: int
    lane: int
    address: int
    other_kind: Kind
    other_site: int
    other_lane: int
    times: int


class Races:
    """The accesses of the lanes of one launch, and their synchronisation.

    `granule` is the smallest number of bytes that an instruction of the kernel accesses: a power of two.
    Raises MemoryError for a grid of too many lanes.
    """

    def __init__(self, threads: int, blocks: int, granule: int, report: Callable[[Race], None]) -> None:
        self._threads = threads
        self._lanes: int = threads * blocks
        if self._lanes > MOST_LANES:
            raise MemoryError(f"a grid of {self._lanes} lanes is too large to be checked for races")
        self._granule = granule
        self._report = report
        self._shadow: Shadow = Shadow(granule, 3)
        self._events: list[_Event] = [_NO_ACCESS]
        """The event of each time."""
        self._known: dict[_Event, _Event] = {}
        self._released: Array = np.zeros((len(Scope), self._lanes), np.int32)
        self._acquired: Array = np.zeros((len(Scope), self._lanes), np.int32)
        self._used: set[Scope] = set()
        """The scopes in which lanes have synchronised."""
        self._apart: set[Scope] = set()
        """The scopes in which some lanes synchronised while others of their block did not."""
        self._met: Array = np.zeros(self._lanes, np.int32)
        """The time when each lane last met others of its warp without releasing or acquiring anything."""

    # Accesses

    def access(
        self,
        kind: Kind,
        lanes: Array,
        addresses: Array,
        size: int,
        site: int,
        values: Array | None = None,
        before: Array | None = None,
        *,
        blank: bool = False,
    ) -> None:
        """Lanes access `size` bytes each. A write may give the values that it writes, and the old ones.

        `blank` memory has no content when a launch begins: the first write changes it, whatever it writes.
        """
        if values is not None and kind == "write":
            self._compare_together(lanes, addresses, values, site)
        if values is not None and before is not None:
            changing = values != before
            if blank:
                changing |= self._unwritten(addresses)
            lanes, addresses = lanes[changing], addresses[changing]
        if not lanes.size or len(self._events) >= MOST_TIMES:
            return
        if size > self._granule:
            steps = np.arange(0, size, self._granule, dtype=np.uint64)
            lanes = np.tile(lanes, steps.size)
            addresses = (addresses + steps[:, None]).ravel()
        self._take(kind, lanes, addresses, site)

    def _unwritten(self, addresses: Array) -> Array:
        """Return the places that no lane has written yet."""
        places = self._shadow.find(addresses)
        return self._shadow.columns[0][places] == 0

    def _take(self, kind: Kind, lanes: Array, addresses: Array, site: int) -> None:
        """Compare accesses of one granule each with those before, and remember them."""
        places = self._shadow.find(addresses)
        written, read, read_too = self._shadow.columns
        strong = kind not in ("read", "write")
        marks = lanes | np.int64(len(self._events)) << _TIME | _STRONG * strong
        self._compare(kind, marks, addresses, site, written[places], of_reads=False)
        if kind.endswith("read"):
            self._remember_reads(places, marks)
        else:
            for column in (read, read_too):
                self._compare(kind, marks, addresses, site, column[places], of_reads=True)
            written[places] = marks
        event = (kind, site)
        self._events.append(self._known.setdefault(event, event))

    def _remember_reads(self, places: Array, marks: Array) -> None:
        """Of the lanes that read one granule now, remember the last one, and one of the others, if there are any."""
        _, read, read_too = self._shadow.columns
        earlier = read[places]
        read[places] = marks
        of_others = np.flatnonzero((earlier != 0) & ((earlier ^ marks) & _LANE != 0))
        read_too[places[of_others]] = earlier[of_others]
        also_now = np.flatnonzero(read[places] != marks)
        read_too[places[also_now]] = marks[also_now]

    def _compare(
        self, kind: Kind, marks: Array, addresses: Array, site: int, earlier: Array, *, of_reads: bool
    ) -> None:
        """Report the earlier accesses that conflict with the present ones."""
        suspect = (earlier != 0) & ((earlier ^ marks) & _LANE != 0) & (earlier & marks & _STRONG == 0)
        at = np.flatnonzero(suspect)
        if not at.size:
            return
        lanes, others, times = marks[at] & _LANE, earlier[at] & _LANE, earlier[at] >> _TIME
        racing = np.flatnonzero(~self._ordered(times, others, lanes, of_reads))
        if racing.size:
            self._tell(kind, lanes[racing], addresses[at[racing]], site, others[racing], times[racing])

    def _ordered(self, times: Array, others: Array, lanes: Array, of_reads: bool) -> Array:
        """Tell whether what other lanes did at some times comes before what these lanes do now."""
        (block, warp), (other_block, other_warp) = self._position(lanes), self._position(others)
        same_block = block == other_block
        same_warp = same_block & (warp == other_warp)
        scope = Scope.DEVICE - same_block.astype(np.int64) - same_warp
        ordered: Array = times <= np.minimum(self._released[scope, others], self._acquired[scope, lanes])
        if of_reads:
            ordered |= same_warp & (times <= np.minimum(self._met[others], self._met[lanes]))
        return ordered

    def _compare_together(self, lanes: Array, addresses: Array, values: Array, site: int) -> None:
        """Report lanes of one instruction that write different values to one place."""
        if (addresses[1:] > addresses[:-1]).all():
            return
        order = np.argsort(addresses, kind="stable")
        places, held = addresses[order], values[order]
        racing = np.flatnonzero((places[1:] == places[:-1]) & (held[1:] != held[:-1]))
        if racing.size:
            first, second = order[racing], order[racing + 1]
            race = Race("write", site, int(lanes[second[0]]), int(addresses[second[0]]), "write", site,
                        int(lanes[first[0]]), racing.size)  # fmt: skip
            self._report(race)

    def _tell(self, kind: Kind, lanes: Array, addresses: Array, site: int, others: Array, times: Array) -> None:
        """Report conflicts, those with one instruction together."""
        found: dict[_Event, tuple[int, int]] = {}
        for time, first, count in zip(*np.unique(times, return_index=True, return_counts=True), strict=True):
            event = self._events[time]
            known, before = found.get(event, (int(first), 0))
            found[event] = known, before + int(count)
        for (other_kind, other_site), (at, count) in found.items():
            race = Race(kind, site, int(lanes[at]), int(addresses[at]), other_kind, other_site, int(others[at]), count)
            self._report(race)

    def forgotten(self, address: int, size: int) -> None:
        """A range of memory is given back, and may be given to others."""
        self._shadow.clear(address, size)

    # Synchronisation

    def met(self, lanes: Array) -> None:
        """Lanes of a warp have waited for each other: what each has read comes before what any of them writes now."""
        if lanes.size and len(self._events) < MOST_TIMES:
            self._met[lanes] = len(self._events)
            self._events.append(_NO_ACCESS)

    def synchronised(self, lanes: Array, scope: Scope, *, release: bool, acquire: bool) -> None:
        """Lanes release their accesses to the others of a scope, acquire what those have released, or both."""
        if not lanes.size or len(self._events) >= MOST_TIMES:
            return
        self._used.add(scope)
        if not self._whole_blocks(lanes):
            self._apart.add(scope)
        now = len(self._events)
        if release:
            self._release_for_others(lanes, scope)
            self._released[: scope + 1, lanes] = now
        if acquire:
            self._acquired[: scope + 1, lanes] = now
            self._acquire_from_others(lanes, scope)
        self._events.append(_NO_ACCESS)

    def _release_for_others(self, lanes: Array, scope: Scope) -> None:
        """Release to the scope what others have released to these lanes in narrower ones."""
        for narrower in Scope:
            if narrower >= scope or narrower not in self._used:
                continue
            groups, group = np.unique(self._groups(lanes, narrower), return_inverse=True)
            members = self._members(groups, narrower)
            if members.size == lanes.size:
                continue  # all of them release now
            acquired: Array = np.zeros(groups.size, np.int32)
            np.maximum.at(acquired, group, self._acquired[narrower, lanes])
            passed = np.minimum(self._released[narrower, members], acquired[:, None])
            for wider in range(narrower + 1, scope + 1):
                self._released[wider, members] = np.maximum(self._released[wider, members], passed)

    def _acquire_from_others(self, lanes: Array, scope: Scope) -> None:
        """Acquire what others have acquired from wider scopes before they released to these lanes."""
        if not any(wider > scope for wider in self._apart):
            return
        groups, group = np.unique(self._groups(lanes, scope), return_inverse=True)
        members = self._members(groups, scope)
        for wider in range(scope + 1, len(Scope)):
            passed = np.minimum(self._acquired[wider, members], self._released[scope, members]).max(axis=1)
            self._acquired[wider, lanes] = np.maximum(self._acquired[wider, lanes], passed[group])

    def _whole_blocks(self, lanes: Array) -> bool:
        """Tell whether these are all lanes of some neighbouring blocks."""
        first = int(lanes.min())
        return first % self._threads == lanes.size % self._threads == 0 and int(lanes.max()) - first + 1 == lanes.size

    def _position(self, lanes: Array) -> tuple[Array, Array]:
        """Return each lane's block, and its warp in the block."""
        blocks = lanes // self._threads
        return blocks, (lanes - blocks * self._threads) // WARP_LANES

    def _groups(self, lanes: Array, scope: Scope) -> Array:
        """Return the warp or block of the grid that each lane is in."""
        blocks, warps = self._position(lanes)
        return blocks if scope is Scope.BLOCK else blocks * -(-self._threads // WARP_LANES) + warps

    def _members(self, groups: Array, scope: Scope) -> Array:
        """Return the lanes of each of these groups, a row for each; a warp with fewer lanes has its last one again."""
        if scope is Scope.BLOCK:
            return groups[:, None] * self._threads + np.arange(self._threads)
        block, warp = np.divmod(groups, -(-self._threads // WARP_LANES))
        within = warp[:, None] * WARP_LANES + np.arange(WARP_LANES)
        return block[:, None] * self._threads + np.minimum(within, self._threads - 1)
