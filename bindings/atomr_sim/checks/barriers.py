"""Barriers of checked launches: the order that they give, and the check that all lanes of a block meet at the same one.

A barrier instruction that is *aligned* (`bar.sync`, `barrier.sync.aligned`, from `__syncthreads`) must be the same one
for all lanes of a warp. If it is for the whole block, it must be the same one for all lanes of the block. No lane waits
for lanes that have exited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..engine.activation import Activation, Lanes
from ..engine.execution import Barrier, Chunk, Parked
from ..engine.memory import LAUNCH_FAILED, Array, DeviceFault
from ..ptx.text import Instruction
from .races import Scope

if TYPE_CHECKING:
    from .running import CheckedLaunch


class Meetings:
    """The instructions of a launch at which lanes wait for each other, by the block in which they continue."""

    def __init__(self) -> None:
        self._of_function: dict[str, dict[int, Instruction]] = {}

    def before(self, activation: Activation, target: int) -> Instruction:
        """Return the instruction after which lanes go on in the block `target`."""
        name = activation.code.function.name
        if name not in self._of_function:
            ends = (block.end for block in activation.code.flow.blocks)
            waits = (end for end in ends if end and end.kind in ("barrier", "warp"))
            self._of_function[name] = {end.targets[0]: end.instruction for end in waits if end.instruction}
        return self._of_function[name][target]


def _aligned(instruction: Instruction) -> bool:
    """Tell whether all lanes of a warp must be at this barrier instruction together."""
    return instruction.opcode == "bar" or "aligned" in instruction.modifiers


def _for_all(instruction: Instruction) -> bool:
    """Tell whether a barrier is for the whole block."""
    return len(instruction.operands) == 1


class WatchedChunk(Chunk):
    """The blocks of a checked launch, whose barriers are checked."""

    launch: CheckedLaunch

    def grid_lanes(self, lanes: Array) -> Array:
        """Return lanes of the chunk by their numbers in the grid."""
        return lanes + self.first * self.launch.threads

    def synchronised(self, lanes: Array, scope: Scope, *, release: bool = False, acquire: bool = False) -> None:
        """Lanes of the chunk release their accesses, acquire what others have released, or both."""
        if self.launch.watch.races:
            self.launch.watch.races.synchronised(self.grid_lanes(lanes), scope, release=release, acquire=acquire)

    # What happens at barriers

    def barrier(
        self, activation: Activation, number: Any, count: Any, waits: bool, lanes: Lanes, target: int
    ) -> int | None:
        """Lanes arrive at a barrier, as in `Chunk`."""
        mine = activation.chunk_lanes(activation.indices(lanes))
        self.synchronised(mine, Scope.BLOCK, release=True)
        if "barriers" in self.launch.watch.modes:
            self._compare(self.launch.meetings.before(activation, target), number, mine)
        following = super().barrier(activation, number, count, waits, lanes, target)
        if following is not None and waits:
            self._met(activation, target, mine)
        return following

    def meet(self, activation: Activation, mask: Any, lanes: Lanes, target: int) -> int | None:
        """Lanes arrive at a warp-wide instruction, as in `Chunk`."""
        following = super().meet(activation, mask, lanes, target)
        if following is not None:
            self._met(activation, target, activation.chunk_lanes(activation.indices(lanes)))
        return following

    def resume(self, activation: Activation, target: int, lanes: Array) -> None:
        """Lanes that have waited go on, as in `Chunk`."""
        self._met(activation, target, activation.chunk_lanes(lanes))
        super().resume(activation, target, lanes)

    def _met(self, activation: Activation, target: int, lanes: Array) -> None:
        """Lanes go on after a barrier, or after another instruction at which the lanes of a warp meet."""
        instruction = self.launch.meetings.before(activation, target)
        if instruction.opcode in ("bar", "barrier"):
            of_warp = "warp" in instruction.modifiers
            self.synchronised(lanes, Scope.WARP if of_warp else Scope.BLOCK, release=of_warp, acquire=True)
        elif self.launch.watch.races:
            self.launch.watch.races.met(self.grid_lanes(lanes))

    def retire(self, lanes: Lanes) -> None:
        """Lanes have exited: no barrier waits for them, and each later barrier counts as after their accesses."""
        gone = np.arange(self.layout.lanes) if lanes is None else np.asarray(lanes)
        self.synchronised(gone, Scope.BLOCK, release=True)
        super().retire(lanes)

    # Divergent barriers

    def _compare(self, instruction: Instruction, numbers: Any, lanes: Array) -> None:
        """Report lanes that arrive at a barrier instruction while lanes that must be with them wait at another one."""
        if not _aligned(instruction):
            return
        arriving = np.broadcast_to(numbers, lanes.shape)
        for number, barrier in self.barriers.items():
            for parked in barrier.parked:
                there = self.launch.meetings.before(parked.activation, parked.target)
                if there is instruction or not _aligned(there):
                    continue
                together = _for_all(instruction) and _for_all(there)
                self._compare_lanes(instruction, there, lanes[arriving == number], parked, together)
                self._compare_lanes(instruction, there, lanes, parked, together=False)

    def _compare_lanes(
        self, instruction: Instruction, there: Instruction, lanes: Array, parked: Parked, together: bool
    ) -> None:
        """Report two lanes that wait at different barriers, and are of one block, or of one warp if not `together`."""
        group = self.layout.block_of if together else self.layout.warps.index
        waiting = parked.activation.chunk_lanes(parked.lanes)
        found = np.flatnonzero(np.isin(group[lanes], group[waiting]))
        if found.size:
            lane = int(lanes[found[0]])
            other = int(waiting[group[waiting] == group[lane]][0])
            self._report(lane, instruction, "divergent barrier", other, there, found.size)

    def _report(
        self, lane: int, instruction: Instruction, what: str, other: int, there: Instruction, times: int = 1
    ) -> None:
        watch, sites = self.launch.watch, self.launch.sites
        other, lane = (int(self.grid_lanes(np.array(each))) for each in (other, lane))
        place = sites.number(there.line)
        text = f"{what}: thread {list(watch.position(other)[1])} of the block waits at {sites[place]}"
        watch.report("barriers", sites.number(instruction.line), lane, text, 0, (other, place, "barrier"), times)

    def stuck(self) -> DeviceFault:
        """Return the fault of lanes that wait at a barrier for others that never arrive."""
        if "barriers" not in self.launch.watch.modes:
            return super().stuck()
        barrier = next(barrier for barrier in self.barriers.values() if barrier.parked)
        parked = barrier.parked[0]
        lane = int(parked.activation.chunk_lanes(parked.lanes)[0])
        self._report_stuck(barrier, parked, lane)
        return DeviceFault(LAUNCH_FAILED, self.launch.watch.findings.summary)

    def _report_stuck(self, barrier: Barrier, parked: Parked, lane: int) -> None:
        """Report a lane that waits at a barrier, how many lanes have arrived, and one that waits somewhere else."""
        block = self.layout.block_of[lane]
        instruction = self.launch.meetings.before(parked.activation, parked.target)
        came, wanted = int(self._arrived(barrier)[block]), int(barrier.wanted[block] or self.live[block])
        what = f"barrier that never opens: {came} of {wanted} threads have come"
        for elsewhere in (each for other in self.barriers.values() if other is not barrier for each in other.parked):
            waiting = elsewhere.activation.chunk_lanes(elsewhere.lanes)
            others = waiting[self.layout.block_of[waiting] == block]
            if others.size:
                there = self.launch.meetings.before(elsewhere.activation, elsewhere.target)
                self._report(lane, instruction, what, int(others[0]), there)
                return
        site = self.launch.sites.number(instruction.line)
        text = f"{what}, and no other thread of the block is waiting"
        self.launch.watch.report("barriers", site, int(self.grid_lanes(np.array(lane))), text, 0)
