"""The simulator's checks for data races and divergent barriers: planted ones are found, clean kernels say nothing."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atomr_sim.checks import MODES, Checks
from atomr_sim.checks.ordering import acquires, releases
from atomr_sim.checks.races import Race, Races, Scope
from atomr_sim.checks.shadow import Shadow
from atomr_sim.engine.memory import DeviceFault
from atomr_sim.engine.simt import LoadedModule
from atomr_sim.ptx.text import Instruction
from atomr_trio import NvrtcOptions
from atomr_trio._compiling.compiler import CompiledProgram, compile_program
from kernels.case import Case, Family, Given, Result
from kernels.collection import CASES
from support.nvrtc import compile_ptx
from support.sim import Machine

pytestmark = pytest.mark.sim_only

# The numbers of a shadow.


def test_a_shadow_keeps_numbers_by_granule_wherever_the_memory_is() -> None:
    shadow = Shadow(4, 2)
    addresses = np.array([0x7000_0000_0000, 0x7000_0000_0004, 0x10, 0x7FFF_FFFF_FFFC, 0x7000_0000_1000], np.uint64)
    at = shadow.find(addresses)
    assert np.unique(at).size == addresses.size
    assert (shadow.columns[0][at] == 0).all()
    shadow.columns[0][at] = np.arange(5) + 1
    shadow.columns[1][at] = -1
    assert (shadow.find(addresses[::-1]) == at[::-1]).all()
    assert (shadow.find(addresses + np.uint64(3)) == at).all(), "all bytes of a granule are one"
    many = np.arange(0x5000_0000_0000, 0x5000_0010_0000, 4, dtype=np.uint64)
    found = shadow.find(many)
    assert (shadow.columns[0][found] == 0).all(), "what was there before has not moved into new pages"
    assert shadow.columns[0][shadow.find(addresses)].tolist() == [1, 2, 3, 4, 5]


def test_a_cleared_range_is_zero_and_its_neighbours_are_not() -> None:
    shadow = Shadow(1, 1)
    start = 0x6000_0000_0FF0
    addresses = np.arange(start, start + 0x2020, dtype=np.uint64)
    shadow.columns[0][shadow.find(addresses)] = 7
    shadow.clear(start + 5, 0x2010)
    held = shadow.columns[0][shadow.find(addresses)]
    assert held[:5].tolist() == [7] * 5
    assert not held[5:0x2015].any()
    assert (held[0x2015:] == 7).all()
    shadow.clear(0x123456789, 4096)  # never touched


# Races on plain arrays.


class Watched:
    """Races of a grid of 4 blocks of 64 threads, that are collected."""

    def __init__(self, granule: int = 4) -> None:
        self.found: list[Race] = []
        self.races = Races(64, 4, granule, self.found.append)

    def __call__(
        self, kind: Any, lanes: Any, words: Any, site: int = 1, values: Any = None, before: Any = None, size: int = 4
    ) -> int:
        """Access words by number; returns how many lanes were in conflicts."""
        lanes = np.atleast_1d(np.asarray(lanes, np.int64))
        addresses = np.broadcast_to(np.uint64(0x4000_0000) + np.asarray(words, np.uint64) * np.uint64(4), lanes.shape)
        held = [None if each is None else np.broadcast_to(np.asarray(each), lanes.shape) for each in (values, before)]
        self.found.clear()
        self.races.access(kind, lanes, addresses.copy(), size, site, *held)
        return sum(race.times for race in self.found)

    def barrier(self, lanes: Any) -> None:
        self.sync(lanes, Scope.BLOCK)

    def sync(self, lanes: Any, scope: Scope, *, release: bool = True, acquire: bool = True) -> None:
        lanes = np.atleast_1d(np.asarray(lanes, np.int64))
        self.races.synchronised(lanes, scope, release=release, acquire=acquire)


FIRST, SECOND = np.arange(64), np.arange(64, 128)


def test_a_neighbours_read_races_with_a_write_unless_a_barrier_is_between() -> None:
    touch = Watched()
    assert touch("write", FIRST, FIRST, site=3) == 0
    assert touch("read", FIRST, FIRST, site=4) == 0, "everybody sees what it has written itself"
    assert touch("read", FIRST[:-1], FIRST[:-1] + 1, site=5) == 63
    assert touch.found == [Race("read", 5, 0, 0x4000_0004, "write", 3, 1, 63)]
    touch.barrier(FIRST)
    assert touch("read", FIRST, np.roll(FIRST, 7)) == 0
    assert touch("write", FIRST, FIRST, site=6) == 64
    assert (touch.found[0].other_kind, touch.found[0].other_site) == ("read", 1)
    touch.barrier(FIRST)
    assert touch("write", FIRST, np.roll(FIRST, 1)) == 0


def test_a_barrier_orders_nothing_for_another_block_or_for_those_who_were_not_there() -> None:
    touch = Watched()
    touch("write", FIRST, FIRST)
    touch.barrier(np.arange(128))
    assert touch("read", SECOND, FIRST) == 64
    touch("write", FIRST, FIRST)
    touch.barrier(FIRST[:32])
    assert touch("read", 40, 3) == 1
    assert touch("read", 2, 40) == 1
    assert touch("read", 2, 3) == 0


def test_what_is_read_by_many_races_with_a_write_by_any_of_them() -> None:
    for writer in (0, 31, 63):
        touch = Watched()
        assert touch("read", FIRST, 0) == 0
        assert touch("write", writer, 0) > 0
    touch = Watched()
    assert touch("read", 5, 0) == touch("read", 6, 0) == touch("read", 6, 0) == 0
    assert touch("write", 6, 0) == 1
    assert touch.found[0].other_lane == 5


def test_atomics_race_with_plain_accesses_alone() -> None:
    touch = Watched()
    assert touch("atomic", FIRST, 0) == touch("atomic", SECOND, 0) == 0
    assert touch("strong read", 3, 0) == touch("strong write", 4, 0) == 0
    assert touch("read", 7, 0) == 1
    assert touch("write", 7, 0) > 0
    touch = Watched()
    touch("read", FIRST, 0)
    assert touch("atomic", 3, 0) > 0
    assert touch("strong read", 3, 0) == 0


def test_bytes_of_one_word_belong_to_whoever_writes_them() -> None:
    touch = Watched(granule=1)
    addresses = np.arange(0x4000_0000, 0x4000_0040, dtype=np.uint64)
    touch.races.access("write", FIRST, addresses, 1, 1)
    assert touch.found == []
    assert touch("read", FIRST, FIRST // 4, site=2) == 64 * 3
    touch = Watched(granule=4)
    assert touch("write", FIRST[::2], FIRST[::2], size=8) == touch("read", 2, 2) == 0
    assert touch("read", 3, 1) == 1


def test_lanes_of_one_instruction_race_where_they_write_different_values() -> None:
    touch = Watched()
    assert touch("write", FIRST, 0, values=7) == 0
    assert touch("write", FIRST, FIRST // 2 + 1, values=FIRST // 2) == 0
    touch = Watched()
    assert touch("write", FIRST, FIRST // 2, values=FIRST) == 32
    race = touch.found[0]
    assert (race.lane, race.other_lane, race.address, race.site, race.other_site) == (1, 0, 0x4000_0000, 1, 1)


def test_writing_what_is_there_is_no_race() -> None:
    touch = Watched()
    touch("write", 0, 0, values=1, before=0)
    assert touch("write", 1, 0, values=1, before=1) == 0
    assert touch("write", 2, 0, values=2, before=1) == 1
    assert touch("write", 3, 0, values=2, before=2) == 0
    assert touch("read", 2, 0) == 0, "the last change was its own"


def test_the_first_write_to_blank_memory_changes_it() -> None:
    touch = Watched()
    address = np.array([0x4000_0000], np.uint64)
    zero = np.zeros(1, np.uint32)
    for lane in (0, 1):
        touch.races.access("write", np.array([lane]), address, 4, 7, zero, zero, blank=True)
    assert touch.found == [], "the second write is of what is there"
    assert touch("read", 1, 0) == 1
    assert touch.found[0].other_lane == 0


def test_a_warp_that_met_is_in_order_and_other_warps_are_not() -> None:
    touch = Watched()
    touch("write", FIRST, FIRST)
    touch.sync(FIRST, Scope.WARP)
    assert touch("read", FIRST, FIRST ^ 1) == 0
    assert touch("read", FIRST, FIRST ^ 32) == 64
    touch("write", 0, 0)
    touch.sync([0, 1, 2], Scope.WARP)
    assert touch("read", [1, 3], 0) == 1
    assert touch.found[0].lane == 3


def test_a_shuffle_is_behind_what_was_read_before_it_and_shows_nothing_that_was_written() -> None:
    touch = Watched()
    touch("read", FIRST[:33], 7)
    touch("write", 3, 3)
    touch.races.met(FIRST[:32])
    assert touch("read", 4, 3) == 1
    touch.races.met(FIRST[:32])
    assert touch("write", 4, 7) == 1, "a lane of another warp has read it"
    assert touch.found[0].other_lane == 32
    touch = Watched()
    touch("read", FIRST[:32], 7)
    touch.races.met(FIRST[:16])
    assert touch("write", 4, 7) == 2
    touch.races.met(FIRST[:32])
    assert touch("write", 4, 8) == touch("write", 5, 7) - 1 == 0


def test_a_fence_before_and_an_atomic_after_order_blocks() -> None:
    """The last block that counts itself reads what the others have written, if each has fenced."""
    touch = Watched()
    touch("write", FIRST, FIRST)
    touch.sync(FIRST, Scope.DEVICE)
    touch.barrier(FIRST)
    touch("atomic", 0, 99)
    touch("atomic", 64, 99)
    touch.sync(64, Scope.DEVICE, release=False)
    assert touch("read", 64, 5) == 0
    assert touch("read", 65, 5) == 1, "only one has looked at the counter"
    touch.barrier(SECOND)
    assert touch("read", SECOND, FIRST) == 0
    assert touch("read", 130, 5) == 1, "a third block knows nothing of it"
    touch("write", 5, 5, site=8)
    assert touch("read", SECOND, 5) == 64, "it was not released again"


def test_one_lane_releases_for_its_block_what_a_barrier_has_brought_to_it() -> None:
    touch = Watched()
    touch("write", FIRST, FIRST)
    touch.barrier(FIRST)
    touch("write", 9, 9)
    touch.sync(0, Scope.DEVICE, acquire=False)
    touch.sync(64, Scope.DEVICE, release=False)
    touch.barrier(SECOND)
    assert touch("read", SECOND[:9], FIRST[:9]) == 0
    assert touch("read", 70, 9) == 1


def test_one_lane_of_each_warp_speaks_for_its_warp() -> None:
    touch = Watched()
    touch("write", FIRST, FIRST)
    touch.sync(FIRST, Scope.WARP)
    touch.sync([0, 32], Scope.BLOCK)
    assert touch("read", 0, 33) == 0
    assert touch("read", 1, 33) == 1
    touch.sync(FIRST, Scope.WARP)
    assert touch("read", FIRST, FIRST ^ 33) == 0
    touch("write", 33, 33)
    assert touch("read", 1, 33) == 1


def test_memory_that_was_given_back_is_forgotten() -> None:
    touch = Watched()
    touch("write", FIRST, FIRST)
    touch.races.forgotten(0x4000_0000, 128)
    assert touch("read", SECOND, FIRST) == 32
    assert touch.found[0].lane == 64 + 32


def test_conflicts_with_one_instruction_are_reported_together() -> None:
    touch = Watched()
    for at in range(8):
        touch("write", at, at, site=10 + at % 2)
    assert touch("read", np.full(8, 20), range(8), site=5) == 8
    assert sorted((race.other_site, race.times) for race in touch.found) == [(10, 4), (11, 4)]


def test_too_many_lanes_are_refused() -> None:
    with pytest.raises(MemoryError, match="too large to be checked for races"):
        Races(1024, 1 << 31, 4, print)


# Kernels with planted mistakes.  A comment marks the lines that must be named.

RACES = r"""
extern "C" __global__ void no_barrier(const int *x, int *y)
{
    __shared__ int s[64];
    int t = threadIdx.x;
    s[t] = x[t];  // no_barrier: writes
    y[t] = s[63 - t];  // no_barrier: reads
}

extern "C" __global__ void missing_round(const int *x, int *y)
{
    __shared__ int s[256];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    for (int k = 128; k; k >>= 1) {
        if (t < k) s[t] += s[t + k];  // missing_round: reads, writes
        if (k != 64) __syncthreads();
    }
    if (!t) *y = s[0];
}

extern "C" __global__ void last_warp(const int *x, int *y)
{
    __shared__ int s[128];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    if (t < 64) s[t] += s[t + 64];
    __syncthreads();
    if (t < 32) {
        s[t] += s[t + 32];  // last_warp: writes
        for (int k = 16; k; k >>= 1)
            if (t < k) s[t] += s[t + k];  // last_warp: reads
    }
    if (!t) *y = s[0];
}

extern "C" __global__ void stencil_in_place(const int *x, int *y)
{
    __shared__ int s[66];
    int t = threadIdx.x + 1;
    s[t] = x[t];
    if (t == 1) s[0] = s[65] = 0;
    __syncthreads();
    int sum = s[t - 1] +  // stencil_in_place: reads
              s[t + 1];
    s[t] = sum;  // stencil_in_place: writes
    __syncthreads();
    y[t] = s[65 - t];
}

extern "C" __global__ void two_blocks(const int *x, int *y)
{
    __shared__ int s[64];
    int t = threadIdx.x;
    s[t] = x[blockIdx.x * 64 + t];
    __syncthreads();
    if (t == 0)
        for (int i = 0; i < 64; i++) y[0] += s[i];  // two_blocks: reads, writes
}

extern "C" __global__ void no_fence(const int *x, int *y, int *partial, int *count)
{
    __shared__ int s[64];
    int t = threadIdx.x, sum = 0;
    s[t] = x[blockIdx.x * 64 + t];
    __syncthreads();
    if (t) return;
    for (int i = 0; i < 64; i++) sum += s[i];
    partial[blockIdx.x] = sum;  // no_fence: writes
    FENCE
    if (atomicAdd(count, 1) < gridDim.x - 1) return;
    for (int i = 0; i < gridDim.x; i++) *y += partial[i];  // no_fence: reads
}

extern "C" __global__ void look_back(const int *x, int *y, int *sums, volatile int *ready)
{
    if (threadIdx.x) return;
    int b = blockIdx.x, sum = x[b];
    if (b) {
        while (!ready[b - 1]) { }
        sum += sums[b - 1];  // look_back: reads
    }
    sums[b] = sum;  // look_back: writes
    FENCE
    ready[b] = 1;
    y[b] = sum;
}

extern "C" __global__ void histogram(const int *x, int *y)
{
    __shared__ int bins[8];
    int t = threadIdx.x;
    if (t < 8) bins[t] = 0;
    __syncthreads();
    bins[x[t] & 7]++;  // histogram: reads, writes
    __syncthreads();
    if (t < 8) y[t] = bins[t];
}

extern "C" __global__ void cleared(int *y)
{
    __shared__ int s[64];
    int t = threadIdx.x;
    s[t] = 0;  // cleared: writes
    y[t] = s[t ^ 32];  // cleared: reads
}

extern "C" __global__ void one_place(int *y)
{
    y[threadIdx.x / 2] = threadIdx.x;  // one_place: writes
}

extern "C" __global__ void fence_of_a_block(int *y, int *flag)
{
    if (threadIdx.x) return;
    if (blockIdx.x == 0) {
        y[0] = 5;  // fence_of_a_block: writes
        __threadfence_block();
        atomicExch(flag, 1);
    } else {
        while (!atomicAdd(flag, 0)) { }
        __threadfence();
        y[1] = y[0];  // fence_of_a_block: reads
    }
}

__device__ int put(int *s, int t) { return s[t] = 7 * t; }  // called: writes

extern "C" __global__ void called(int *y)
{
    __shared__ int s[64];
    put(s, threadIdx.x);
    y[threadIdx.x] = s[threadIdx.x ^ 32];  // called: reads
}
"""

HARMLESS = r"""
extern "C" __global__ void bytes(const int *x, char *y)
{
    __shared__ char s[256];
    int t = threadIdx.x;
    s[t + 3] = x[t];
    __syncwarp();
    s[t + 3] += 1;
    __syncthreads();
    y[t] = s[(t ^ 1) + 3];
}

extern "C" __global__ void same_value(const int *x, int *found)
{
    if (x[blockIdx.x * blockDim.x + threadIdx.x] > 5) *found = 1;
}

extern "C" __global__ void producer_and_consumer(int *y)
{
    __shared__ int s[32];
    int t = threadIdx.x;
    for (int i = 0; i < 4; i++) {
        if (t < 32) {
            if (i) asm volatile("bar.sync 2, 64;" ::: "memory");
            s[t] = 100 * i + t;
            asm volatile("bar.arrive 1, 64;" ::: "memory");
        } else {
            asm volatile("bar.sync 1, 64;" ::: "memory");
            y[32 * i + t - 32] = s[63 - t];
            if (i < 3) asm volatile("bar.arrive 2, 64;" ::: "memory");
        }
    }
}

extern "C" __global__ void heap(int *y)
{
    for (int i = 0; i < 3; i++) {
        int *mine = (int *)malloc(64);
        for (int k = 0; k < 16; k++) mine[k] = threadIdx.x + k + i;
        y[blockIdx.x * blockDim.x + threadIdx.x] += mine[(threadIdx.x + i) % 16];
        free(mine);
    }
}

extern "C" __global__ void own_memory(const int *x, int *y)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, mine[8];
    for (int k = 0; k < 8; k++) mine[x[k] & 7] = i + k;
    y[i] = mine[x[i & 7] & 7];
}

extern "C" __global__ void in_turns(const int *x, int *y)
{
    __shared__ int s[64];
    int t = threadIdx.x;
    for (int i = blockIdx.x; i < 8; i += gridDim.x) {
        s[t] = x[t] + i;
        __syncthreads();
        y[i * 64 + t] = s[63 - t];
        __syncthreads();
    }
}

extern "C" __global__ void early_return(const int *x, int *y, int n)
{
    __shared__ int s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    if (t >= n) return;
    __syncthreads();
    y[t] = s[63 - t];
}
"""

BARRIERS = r"""
extern "C" __global__ void in_both_branches(int *y)
{
    __shared__ int s[64];
    int t = threadIdx.x;
    if (t % 2) {
        s[t] = 3 * t;
        __syncthreads();  // in_both_branches: one
        y[t] = s[t - 1];
    } else {
        s[t] = 5 * t;
        __syncthreads();  // in_both_branches: other
        y[t] = s[t + 1] + 2;
    }
}

extern "C" __global__ void in_one_branch(int *y)
{
    __shared__ int s[128];
    int t = threadIdx.x;
    if (t < 40) {
        s[t] = t;
        __syncthreads();  // in_one_branch: one
    }
    y[t] = t;
    s[t] = 2 * t;
    __syncthreads();  // in_one_branch: other
    y[t] += s[127 - t];
}

extern "C" __global__ void half_of_the_block(int *y)
{
    int t = threadIdx.x;
    y[t] = t;
    if (t < 64) asm volatile("bar.sync 1, 128;" ::: "memory");  // half_of_the_block: one
    y[t] += 1;
}

extern "C" __global__ void different_numbers(int *y)
{
    int t = threadIdx.x;
    y[t] = t;
    if (t < 64) asm volatile("bar.sync 1;" ::: "memory");  // different_numbers: one
    else asm volatile("bar.sync 2;" ::: "memory");  // different_numbers: other
    y[t] += 1;
}

extern "C" __global__ void one_warp_apart(int *y)
{
    int t = threadIdx.x;
    y[t] = t;
    if (t % 2) asm volatile("bar.sync 1, 32;" ::: "memory");  // one_warp_apart: one
    else asm volatile("bar.sync 2, 32;" ::: "memory");  // one_warp_apart: other
    y[t] += 1;
}
"""


def marked(source: str, mark: str) -> int:
    """The line that a comment says is for a kernel and a deed: `// kernel: deed, deed`."""
    kernel, deed = mark.split(": ")
    found = [
        number
        for number, line in enumerate(source.splitlines(), 1)
        if f"// {kernel}: " in line and deed in line.partition(f"// {kernel}: ")[2].split(", ")
    ]
    assert len(found) == 1, mark
    return found[0]


class CheckedMachine(Machine):
    """A simulated GPU whose launches are checked, and what was found."""

    def __init__(self, folder: Path, modes: frozenset[str] = frozenset(MODES), arch: str = "compute_80") -> None:
        super().__init__(arch)
        self.checks = Checks(modes, folder)
        self.memory = self.checks.space
        self._told = folder / "findings"

    def array(self, values: Any, dtype: Any = None) -> np.ndarray:
        result = super().array(values, dtype)
        self.checks.arrays.written(result.ctypes.data, result.nbytes)
        return result

    def load(self, source: str, *options: str) -> LoadedModule:
        text = compile_ptx(source, self.arch, "-lineinfo", *options)
        return LoadedModule(text, self.memory, self.checks.tools(text))

    def findings(self) -> list[dict[str, Any]]:
        """What was told of all launches."""
        lines = self._told.read_text(encoding="utf-8").splitlines() if self._told.exists() else []
        return [json.loads(line) for line in lines]


@pytest.fixture
def watched(tmp_path: Path) -> CheckedMachine:
    return CheckedMachine(tmp_path)


N = np.int32
PLANTED_RACES: dict[str, tuple[int, int, int, list[int]]] = {
    "no_barrier": (1, 64, 64, [64]),
    "missing_round": (1, 256, 256, [1]),
    "last_warp": (1, 128, 128, [1]),
    "stencil_in_place": (1, 64, 65, [66]),
    "two_blocks": (3, 64, 192, [1]),
    "no_fence": (4, 64, 256, [1, 4, 1]),
    "look_back": (8, 32, 8, [8, 8, 8]),
    "histogram": (1, 64, 64, [8]),
    "cleared": (1, 64, 0, [64]),
    "fence_of_a_block": (2, 32, 0, [2, 1]),
    "called": (1, 64, 0, [64]),
}
"""Grid, block, how many numbers from 1 on a kernel is given, if any, and the sizes of arrays of zeros."""


def planted_arguments(gpu: CheckedMachine, name: str) -> list[np.ndarray]:
    _, _, count, zeros = PLANTED_RACES[name]
    given = [gpu.array(np.arange(count) + 1, N)] if count else []
    return given + [gpu.zeros(size, N) for size in zeros]


@pytest.mark.parametrize("name", PLANTED_RACES)
def test_a_planted_race_is_found_with_both_lines(watched: CheckedMachine, name: str) -> None:
    grid, block, *_ = PLANTED_RACES[name]
    source = RACES.replace("FENCE", "")
    with pytest.raises(DeviceFault, match="races with") as failed:
        watched.run(source, name, grid, block, *planted_arguments(watched, name))
    assert failed.value.status == 719
    wanted = {marked(source, f"{name}: reads"), marked(source, f"{name}: writes")}
    found = watched.findings()
    assert {finding["check"] for finding in found} == {"races"}
    assert any({finding["line"], finding["other"]["line"]} == wanted for finding in found), found
    for finding in found:
        mine, other = finding["block"] + finding["thread"], finding["other"]["block"] + finding["other"]["thread"]
        assert mine != other
        assert Path(finding["file"]).name == Path(finding["other"]["file"]).name == "k.cu"
        assert finding["kernel"] == name


@pytest.mark.parametrize("name", ["no_fence", "look_back"])
def test_with_its_fence_the_same_kernel_is_clean(watched: CheckedMachine, name: str) -> None:
    grid, block, *_ = PLANTED_RACES[name]
    given = planted_arguments(watched, name)
    watched.run(RACES.replace("FENCE", "__threadfence();"), name, grid, block, *given)
    assert watched.findings() == []
    assert (given[1] == (np.cumsum(given[0]) if name == "look_back" else given[0].sum())).all()


def test_lanes_that_write_different_values_to_one_place_race(watched: CheckedMachine) -> None:
    y = watched.zeros(16, N)
    with pytest.raises(DeviceFault, match="write"):
        watched.run(RACES.replace("FENCE", ""), "one_place", 1, 32, y)
    (finding,) = watched.findings()
    line = marked(RACES, "one_place: writes")
    assert (finding["line"], finding["other"]["line"]) == (line, line)
    assert (finding["thread"], finding["other"]["thread"]) == ([1, 0, 0], [0, 0, 0])
    assert finding["address"] == y.ctypes.data
    assert finding["index"] == 0
    assert y.tolist() == list(range(1, 32, 2)), "the launch ran to its end"


T = np.arange(64)
HARMLESS_KERNELS: dict[str, tuple[int, int, list[Any], Any]] = {
    "bytes": (1, 64, [T, np.zeros(64, np.int8)], (T ^ 1) + 1),
    "same_value": (4, 64, [np.arange(256) % 9, np.zeros(1)], 1),
    "producer_and_consumer": (3, 64, [np.zeros(128)], np.add.outer(100 * T[:4], T[31::-1]).ravel()),
    "heap": (2, 64, [np.zeros(128)], np.tile(sum(T + i + (T + i) % 16 for i in range(3)), 2)),
    "own_memory": (2, 64, [T, np.zeros(128)], np.arange(128) + np.arange(128) % 8),
    "in_turns": (3, 64, [T, np.zeros(512)], np.add.outer(T[:8], T[::-1]).ravel()),
    "early_return": (1, 64, [T, np.zeros(64), 40], np.where(T < 40, T[::-1], 0)),
}
"""Grid, block, arguments and what the array that comes last in them must hold afterwards."""


@pytest.mark.parametrize("name", HARMLESS_KERNELS)
def test_what_looks_like_a_race_and_is_none_is_not_reported(watched: CheckedMachine, name: str) -> None:
    grid, block, given, expected = HARMLESS_KERNELS[name]
    arrays = [
        watched.array(value, value.dtype if value.dtype == np.int8 else N) if isinstance(value, np.ndarray) else value
        for value in given
    ]
    watched.run(HARMLESS, name, grid, block, *arrays)
    assert watched.findings() == []
    (*_, result) = (array for array in arrays if isinstance(array, np.ndarray))
    np.testing.assert_array_equal(result, expected)


# Divergent barriers.

DIVERGENT = {
    "in_both_branches": (64, "divergent barrier"),
    "in_one_branch": (128, "divergent barrier"),
    "half_of_the_block": (128, "never opens: 64 of 128 threads have come"),
    "different_numbers": (128, "never opens: 64 of 128 threads have come"),
    "one_warp_apart": (32, "divergent barrier"),
}
"""Threads of the block, and words of the finding."""


@pytest.mark.parametrize("name", DIVERGENT)
def test_a_divergent_barrier_is_found_with_both_lines(watched: CheckedMachine, name: str) -> None:
    threads, words = DIVERGENT[name]
    y = watched.zeros(128, N)
    with pytest.raises(DeviceFault, match=words) as failed:
        watched.run(BARRIERS, name, 1, threads, y)
    assert failed.value.status == 719
    (finding, *_) = (each for each in watched.findings() if each["check"] == "barriers")
    other = finding["other"]
    lines = {finding["line"], other["line"]} if other else {finding["line"]}
    assert lines == {marked(BARRIERS, f"{name}: {which}") for which in (("one", "other") if other else ("one",))}
    assert bool(other) == (name != "half_of_the_block")
    assert words in finding["what"]
    if other:
        assert finding["thread"] != other["thread"]


def test_where_only_races_are_looked_for_a_barrier_that_never_opens_is_the_fault_it_was(tmp_path: Path) -> None:
    gpu = CheckedMachine(tmp_path, frozenset({"races"}))
    with pytest.raises(DeviceFault, match="lanes wait at a barrier that the others never reach"):
        gpu.run(BARRIERS, "half_of_the_block", 1, 128, gpu.zeros(128, N))
    assert gpu.findings() == []


# Kernels without a mistake.

CLEAN = {
    "indexing": "two_shared_arrays much_shared_memory asynchronous_copies volatile_counter narrow_types",
    "warp": "warp_sum warp_scan warp_sort aggregated_count",
    "atomics": "add compare_and_swap float_extreme tickets shared_atomics spin_lock connected_components",
    "scan": "block_sum block_votes dot_by_the_last_block scan_blelloch scan_look_back segmented_scan histogram",
    "linear": "multiply_floats transpose_floats tridiagonal cholesky",
    "sort": "bitonic_sort odd_even_sort",
    "learn": "softmax attention",
    "language": "virtual_calls interpreter bit_fields linked_lists variadic_bytes",
    "graphs": "breadth_first union_find hash_table stack_of_nodes readers_and_writers",
    "fields": "red_and_black",
    "cooperative": "tiles_of_16 coalesced whole_grid",
    "cub": "reduce scan exchange device_scan",
    "library": "split_barrier semaphore_and_latch",
}
"""Cases of `kernels/`, by their families: those that have something to do with the order of accesses."""
LARGE = ("library", "cub")
"""Those that take longer than all others, which `make sweep` tries."""


@functools.cache
def compiled(family: Family) -> CompiledProgram:
    headers = {"bundled_headers": True} if family.headers else {}
    options = NvrtcOptions(name_expressions=family.expressions, lineinfo=True, **family.options, **headers)
    return compile_program(family.source, options, "compute_80")


def run_case(gpu: CheckedMachine, case: Case) -> None:
    """Launch what a case says, and look at the results."""
    program, arrays = compiled(case.family), {}
    text = program.ptx.decode()
    module = LoadedModule(text, gpu.memory, gpu.checks.tools(text))

    def given(argument: Any) -> Any:
        if isinstance(argument, Given | Result) and argument not in arrays:
            arrays[argument] = gpu.array(argument.values if isinstance(argument, Given) else argument.start)
        return arrays.get(argument, argument) if isinstance(argument, Given | Result) else argument

    for launch in case.launches():
        kernel = module.functions[program.lowered(launch.kernel)]
        arguments = [given(argument) for argument in launch.arguments]
        gpu.launch(
            *(kernel, launch.grid, launch.block, *arguments), shared=launch.shared, cooperative=launch.cooperative
        )
    for argument, array in arrays.items():
        if isinstance(argument, Result):
            argument.check(array)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.sweep if name in LARGE else []) for name in CLEAN]
)
@pytest.mark.long
def test_all_checks_find_nothing_in_clean_kernels(tmp_path: Path, name: str) -> None:
    cases = {case.name: case for case in CASES if case.family.name == name}
    for wanted in CLEAN[name].split():
        gpu = CheckedMachine(tmp_path)
        run_case(gpu, cases[wanted])
        assert gpu.findings() == [], wanted


# What the instructions do.

ORDERS = {
    "membar.gl": (Scope.DEVICE, Scope.DEVICE),
    "membar.cta": (Scope.BLOCK, Scope.BLOCK),
    "fence.acq_rel.cluster": (Scope.DEVICE, Scope.DEVICE),
    "fence.sc.cta": (Scope.BLOCK, Scope.BLOCK),
    "atom.global.add.u32": (None, Scope.DEVICE),
    "atom.acq_rel.cta.global.add.u32": (Scope.BLOCK, Scope.BLOCK),
    "red.release.gpu.global.add.u32": (Scope.DEVICE, None),
    "red.global.add.u32": (None, None),
    "ld.global.u32": (None, None),
    "ld.volatile.shared.u32": (None, Scope.DEVICE),
    "ld.relaxed.cta.u32": (None, Scope.BLOCK),
    "ld.acquire.sys.u32": (None, Scope.DEVICE),
    "st.release.gpu.u32": (Scope.DEVICE, None),
    "st.volatile.u32": (None, None),
    "mbarrier.init.shared.b64": (None, None),
    "mbarrier.arrive.shared.b64": (Scope.BLOCK, None),
    "mbarrier.arrive.release.cluster.shared.b64": (Scope.DEVICE, None),
    "mbarrier.try_wait.parity.shared.b64": (None, Scope.BLOCK),
}
"""To whom an instruction releases, and from whom it acquires."""


@pytest.mark.parametrize("text", ORDERS)
def test_an_instruction_orders_what_its_words_say(text: str) -> None:
    opcode, *modifiers = text.split(".")
    instruction = Instruction(opcode, tuple(modifiers), [], 1, text)
    assert (releases(instruction), acquires(instruction)) == ORDERS[text]
