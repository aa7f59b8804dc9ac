"""The object of a checked launch to which all events of its lanes are reported.

Lanes are numbered over the whole grid here: the block's number times the threads of a block, plus the thread's number
in its block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .._environment import complain
from ..engine.affine import Array
from ..engine.memory import ILLEGAL_ADDRESS, LAUNCH_FAILED, SHARED, Access, AddressSpace, DeviceFault
from .arrays import Arrays, Extent, Index
from .findings import Finding, Findings, Party, Three
from .initialised import unwritten
from .races import DEEDS, Kind, Race, Races
from .sites import Site, Sites

if TYPE_CHECKING:
    from . import Checks
    from .running import CheckedLaunch

_VERBS: dict[Kind, str] = {
    "read": "read of",
    "strong read": "read of",
    "write": "write of",
    "strong write": "write of",
    "atomic": "atomic access to",
}
_CARELESS = "/cub/"
"""A folder of headers whose code reads shared memory beyond the part that it has filled, and drops the values."""
Other = tuple[int, int, str]
"""The other lane of a race: its number in the grid, the site, and its access."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in memory, in the words of a finding."""

    address: int
    array: str | None
    index: Index | None

    @classmethod
    def of(cls, extent: Extent | None, address: int, size: int) -> Spot:
        """An address in or near an extent, for an access of this many bytes."""
        return cls(address, str(extent), extent.index(address, size)) if extent else cls(address, None, None)

    @property
    def position(self) -> str:
        """The index as text."""
        return f"index {self.index:,}" if isinstance(self.index, int) else f"index {self.index}"


class Watch:
    """The data that the checks of one launch share."""

    def __init__(self, checks: Checks, launch: CheckedLaunch) -> None:
        self.modes: frozenset[str] = checks.modes
        self.arrays: Arrays = checks.arrays
        self.findings: Findings = Findings(checks.folder)
        self.sites: Sites = launch.sites
        self.memory: AddressSpace = launch.memory
        self.kernel: str = launch.name
        self.grid: Three = launch.grid
        self.block: Three = launch.block
        self.threads: int = launch.threads
        self.bounds: bool = "bounds" in checks.modes
        self.races: Races | None = None
        if "races" in checks.modes:
            self.races = self._new_races(launch)
        self._parameters: Array = launch.parameters

    def _new_races(self, launch: CheckedLaunch) -> Races | None:
        blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
        try:
            return Races(launch.threads, blocks, launch.sites.granule, self._raced)
        except MemoryError as error:
            complain(f"a launch of {launch.name} is not checked for races: {error}")
            return None

    # Events

    def access(
        self, kind: Kind, lanes: Array, addresses: Array, size: int, site: int, values: Array | None = None
    ) -> Array | None:
        """Lanes are about to access `size` bytes each, at generic addresses; `values` are the values to write.

        The result tells which of the accesses may be made; None means all of them.
        """
        table = self.arrays.table
        extent = table.find(int(addresses.min()), int(addresses.max()) + size)
        if extent is not None and extent.shares is None:
            self.note(extent, kind, lanes, addresses, size, site, values)
            return None
        places = table.places(addresses, size)
        inside = places >= 0
        for number in np.unique(places[inside]).tolist():
            extent, here = table.extents[number], np.flatnonzero(places == number)
            if extent.shares and self.bounds:
                own = extent.shares.owns(lanes[here], addresses[here], size)
                inside[here[~own]] = False
                here = here[own]
            if here.size:
                part = values[here] if values is not None else None
                self.note(extent, kind, lanes[here], addresses[here], size, site, part)
        if inside.all() or not self.bounds:
            return None
        self._outside(kind, lanes[~inside], addresses[~inside], size, site)
        return inside

    def outside_shared(self, kind: Kind, lanes: Array, offsets: Array, size: int, site: int, shared_bytes: int) -> None:
        """Lanes are about to access `.shared` memory beyond that of the block."""
        key, offset = ("bounds", site), int(offsets[0])
        if not self.bounds:
            message = f"{_VERBS[kind]} {size} bytes of shared memory at {offset}, of {shared_bytes}"
            raise DeviceFault(ILLEGAL_ADDRESS, message)
        if not self.findings.seen(key, lanes.size):
            spot = Spot(offset, f"{SHARED} of {shared_bytes:,} bytes", offset // size)
            what = f"{_VERBS[kind]} {size} bytes outside of the {spot.array}: offset {offset:,}"
            self._add(key, site, int(lanes[0]), what, spot, lanes.size)

    def note(
        self, extent: Extent, kind: Kind, lanes: Array, addresses: Array, size: int, site: int, values: Array | None
    ) -> None:
        """Lanes access memory that exists and belongs to them."""
        missing = unwritten(extent, kind, addresses, size)
        if missing is not None:
            self._uninitialised(extent, kind, lanes[missing], addresses[missing], size, site)
        if self.races and not extent.private:
            before = None if values is None else Access(self.memory, addresses).load(0, values.dtype, 1)
            self.races.access(kind, lanes, addresses, size, site, values, before, blank=extent.what == SHARED)

    # Findings

    def _outside(self, kind: Kind, lanes: Array, addresses: Array, size: int, site: int) -> None:
        """Lanes access memory outside of arrays. An access to unmapped memory ends the launch."""
        key = ("bounds", site)
        if not self.findings.seen(key, lanes.size):
            where, spot = self._described(int(addresses[0]), size)
            self._add(key, site, int(lanes[0]), f"{_VERBS[kind]} {size} bytes {where}", spot, lanes.size)
        for address in np.unique(addresses).tolist():
            self.memory.require(address, size, _VERBS[kind])

    def _described(self, address: int, size: int) -> tuple[str, Spot]:
        """Describe the error of an address, and the array that it belongs to, belonged to, or is nearest to."""
        freed = self.arrays.freed_at(address)
        if freed:
            spot = Spot.of(freed, address, size)
            return f"in freed memory, which was {freed}: {spot.position}", spot
        nearest = self.arrays.nearest(address, size, self._given())
        spot = Spot.of(nearest, address, size)
        if nearest is None:
            return f"at {address:#x}, which is not near any array", spot
        if nearest.shares and nearest.distance(address, size) == 0:
            return f"in {nearest.what} that is not the thread's own", spot
        return f"outside of {nearest}: {spot.position} of {nearest.size // nearest.item(size):,} items", spot

    def _given(self) -> list[Extent]:
        """Return the arrays to which the kernel's parameters point."""
        words = self._parameters[: self._parameters.size // 8 * 8].view(np.uint64)
        found = (self.arrays.table.find(int(word), int(word) + 1) for word in words)
        return [extent for extent in found if extent]

    def _uninitialised(self, extent: Extent, kind: Kind, lanes: Array, addresses: Array, size: int, site: int) -> None:
        """Lanes read memory that was never written."""
        if extent.what == SHARED and _CARELESS in f"/{self.sites[site].file}":
            return
        key = ("initialised", site)
        if not self.findings.seen(key, lanes.size):
            spot = Spot.of(extent, int(addresses[0]), size)
            what = f"{_VERBS[kind]} {size} bytes that were never written: {spot.position} of {extent}"
            self._add(key, site, int(lanes[0]), what, spot, lanes.size)

    def _raced(self, race: Race) -> None:
        """Two lanes access the same memory, and nothing orders the accesses."""
        block, thread = self.position(race.other_lane)
        what = (
            f"the {DEEDS[race.kind]} races with the {DEEDS[race.other_kind]} of block {list(block)}, "
            f"thread {list(thread)} at {self.sites[race.other_site]}"
        )
        other = (race.other_lane, race.other_site, DEEDS[race.other_kind])
        self.report("races", race.site, race.lane, what, race.address, other, race.times)

    def report(
        self,
        check: str,
        site: int,
        lane: int,
        what: str,
        address: int,
        other: Other | None = None,
        times: int = 1,
    ) -> None:
        """Take a finding at an address; findings of the same check at the same place (and other place) are one."""
        key = (check, site, other and other[1])
        if not self.findings.seen(key, times):
            spot = Spot.of(self.arrays.table.find(address, address + 1), address, self.sites.granule)
            self._add(key, site, lane, what, spot, times, other)

    def _add(
        self,
        key: tuple[str, int] | tuple[str, int, int | None],
        site: int,
        lane: int,
        what: str,
        spot: Spot,
        times: int,
        other: Other | None = None,
    ) -> None:
        """Take a finding that was not seen before; its key begins with the check."""
        where = self.sites[site]
        finding = Finding(
            key[0],
            self.kernel,
            *self.position(lane),
            where.file,
            where.line,
            what + _called(where),
            spot.address,
            spot.array,
            spot.index,
            self._party(*other) if other else None,
        )
        self.findings.add(key, finding, times)

    def _party(self, lane: int, site: int, what: str) -> Party:
        where = self.sites[site]
        return Party(*self.position(lane), where.file, where.line, what)

    def position(self, lane: int) -> tuple[Three, Three]:
        """Return block and thread of a lane of the grid."""
        number, thread = divmod(lane, self.threads)
        return _coordinates(number, self.grid), _coordinates(thread, self.block)

    def ended(self, fault: DeviceFault) -> DeviceFault:
        """Output the findings when a fault has ended the launch, and describe an illegal address further."""
        self.findings.report()
        if self.findings and fault.status == ILLEGAL_ADDRESS:
            return DeviceFault(fault.status, self.findings.summary)
        return fault

    def finish(self) -> None:
        """Output the findings at the end of the launch; it is a fault if there are any."""
        if self.findings:
            self.findings.report()
            bounds = any(finding.check == "bounds" for finding in self.findings.all)
            raise DeviceFault(ILLEGAL_ADDRESS if bounds else LAUNCH_FAILED, self.findings.summary)


def _called(site: Site) -> str:
    return "".join(f", called from {file}:{line}" for file, line in site.callers)


def _coordinates(number: int, extent: Three) -> Three:
    return number % extent[0], number // extent[0] % extent[1], number // (extent[0] * extent[1])
