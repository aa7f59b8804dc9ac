"""Checked devices: how checks are asked for, what workers are told of arrays, and how what they find reaches a program.

What the checks themselves find is tested in test_sim_checks.py and test_sim_races.py.
"""

from __future__ import annotations

import _thread
import collections
import copy
import json
import math
import os
import pickle
import queue
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio

import atomr_trio
from atomr_trio import (
    ContextLost,
    ContextWasLost,
    Finding,
    InvalidArgument,
    NvrtcOptions,
    OtherThread,
    RestartPolicy,
    kept_findings,
)
from atomr_trio._arrays import checked_memory
from atomr_trio._arrays.checked_memory import BETWEEN_ARRAYS, CheckedArena
from atomr_trio._arrays.memory import DeviceMemory
from atomr_trio._compiling.compiler import compile_program
from atomr_trio._device.device import core_of
from atomr_trio._generation.timeline import LaneBook
from atomr_trio._memory.arena import MIB, ArenaFull
from atomr_trio._values.findings import EVERY, VARIABLE, chosen_checks, from_here, read_findings
from atomr_trio._wire.checking import KEEP_VARIABLE, CheckFolder
from atomr_trio.testing import Fault, WorkerPool, cause, endless_kernel, launch_once, worker_pid
from support import next_event
from support.rogue import next_generation, until

pytestmark = pytest.mark.sim_only
DEADLINE = 60
ANY_NUMBER = RestartPolicy(intensity=math.inf)

SOURCE = """extern "C" __global__ void twice(float *x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    x[i] *= 2;  // planted
}
extern "C" __global__ void set(float *x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 1; }
extern "C" __global__ void trap() { __trap(); }
"""
PLANTED = next(number for number, line in enumerate(SOURCE.splitlines(), 1) if "planted" in line)
NAMED = NvrtcOptions(name="app.cu")
HERE = from_here(__file__)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(0, "sim", check="all") as made:
        yield made


@pytest.fixture
async def dev(pool: WorkerPool) -> AsyncIterator[atomr_trio.Device]:
    """A device that checks everything, with a worker that may have served another one."""
    with trio.fail_after(DEADLINE):
        async with open_checked(workers=pool) as device:
            folder = folder_of(device).path
            _told_before[folder] = len((folder / "arrays").read_text().splitlines())
            yield device


_told_before: dict[Path, int] = {}
"""How many lines the file of a worker had when the present device got it."""


def open_checked(**options: Any) -> Any:
    return atomr_trio.open_device(0, backend="sim", **{"check": "all", "restart_policy": ANY_NUMBER, **options})


def folder_of(dev: atomr_trio.Device) -> CheckFolder:
    """The folder of the worker in service."""
    assert core_of(dev).current is not None
    folder = core_of(dev).current.process.check_folder
    assert folder is not None
    return folder


def told(dev: atomr_trio.Device) -> list[dict[str, Any]]:
    """What the worker in service has been told of arrays."""
    folder = folder_of(dev).path
    lines = (folder / "arrays").read_text().splitlines()
    return [json.loads(line) for line in lines[_told_before.get(folder, 0) :]]


def freed(events: list[dict[str, Any]]) -> list[int]:
    return [event["freed"] for event in events if "freed" in event]


def line_of(words: str) -> int:
    """The number of the only line of this file that ends in a comment with these words."""
    [number] = [n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith(f"  # {words}")]
    return number


# -- what is asked for -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "variable", "expected"),
    [
        (None, None, ()),
        (None, "", ()),
        (None, " races, bounds ,", ("bounds", "races")),
        (None, "all", EVERY),
        ("races", "bounds", ("races",)),
        ((), "all", ()),
        ({"barriers", "initialised"}, None, ("initialised", "barriers")),
        (["races", "races", "all"], None, EVERY),
    ],
)
def test_checks_are_words_of_the_call_or_else_of_the_environment(monkeypatch, check, variable, expected):
    monkeypatch.delenv(VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(VARIABLE, variable)
    assert chosen_checks(check, "sim") == expected


@pytest.mark.parametrize(
    ("check", "says"),
    [
        ("everything", "not 'everything'"),
        ("races,bounds", "not 'races,bounds'"),
        (["races", 3], "not 3"),
        (7, "the name of a check or a collection of names, not 7"),
    ],
)
async def test_other_words_are_refused(check, says):
    with pytest.raises(InvalidArgument, match=says):
        async with open_checked(check=check):
            pass


async def test_other_words_of_the_environment_are_refused_by_its_name(monkeypatch):
    monkeypatch.setenv(VARIABLE, "bounds,racing")
    with pytest.raises(InvalidArgument, match=f"variable {VARIABLE} .* not 'racing'"):
        async with open_checked(check=None):
            pass


@pytest.mark.parametrize("check", ["races", None])
async def test_a_gpu_checks_nothing_and_the_error_names_what_does(monkeypatch, check):
    monkeypatch.setenv(VARIABLE, "all")
    with pytest.raises(InvalidArgument, match="needs the simulator") as caught:
        async with atomr_trio.open_device(0, backend="cuda", check=check):
            pass
    assert "compute-sanitizer" in caught.value.advice


async def test_a_device_says_what_it_checks(monkeypatch):
    monkeypatch.setenv(VARIABLE, "races,bounds")
    async with open_checked(check=None) as dev:
        assert dev.checks == ("bounds", "races")
    async with open_checked(check=()) as dev:
        assert dev.checks == ()
        assert core_of(dev).current is not None
        assert core_of(dev).current.process.check_folder is None
        assert type(core_of(dev).part(DeviceMemory).arena) is not CheckedArena


# -- the folder --------------------------------------------------------------------------------------------------------


def environment_of(pid: int) -> dict[str, str]:
    words = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(word.split("=", 1) for word in words if word)


@pytest.mark.program_starts
async def test_each_worker_has_a_folder_that_goes_with_it():
    with trio.fail_after(DEADLINE):
        async with open_checked(check=("initialised", "bounds"), standby=1) as dev:
            await dev.wait_standby()
            processes = [generation.process for generation in core_of(dev).all_generations()]
            folders = [process.check_folder for process in processes]
            for process, folder in zip(processes, folders, strict=True):
                environment = environment_of(process.pid)
                assert environment["ATOMR_TRIO_SIM_CHECK"] == "bounds,initialised"
                assert environment["ATOMR_TRIO_SIM_CHECK_FOLDER"] == str(folder.path)
                assert folder.path.is_dir()
            assert len({folder.path for folder in folders}) == 2
            async with dev.events() as events:
                lost = await cause(dev, Fault.TRAP)
                await dev.wait_generation(after=lost.generation)
                while not isinstance(await next_event(events), atomr_trio.WorkerReaped):
                    pass
            await until(lambda: not core_of(dev).dying)
            assert [folder.path.is_dir() for folder in folders] == [False, True]
            assert folder_of(dev).path == folders[1].path
        assert not folders[1].path.exists()


def test_a_folder_takes_no_more_events_once_it_is_closed():
    folder = CheckFolder(["bounds"])
    folder.tell({"freed": 1}, {"freed": 2})
    assert (folder.path / "arrays").read_text() == '{"freed": 1}\n{"freed": 2}\n'
    folder.close()
    folder.tell({"freed": 3})
    folder.close()
    assert not folder.path.exists()


def test_half_a_line_is_read_when_the_rest_is_there():
    folder = CheckFolder(["bounds"])
    assert folder.findings() == []
    with open(folder.path / "findings", "a") as file:
        file.write('{"check": "bounds"}\n{"check": ')
        file.flush()
        assert folder.findings() == [{"check": "bounds"}]
        file.write('"races"}\n')
        file.flush()
        assert folder.findings() == [{"check": "races"}]
    folder.close()


def test_findings_stay_where_the_environment_asks_for_them(tmp_path, monkeypatch):
    monkeypatch.setenv(KEEP_VARIABLE, str(tmp_path))
    with_findings, without = CheckFolder(["bounds"]), CheckFolder(["bounds"])
    (with_findings.path / "findings").write_text(json.dumps(BOUNDS) + '\n{"check": "rac')
    for folder in (with_findings, without):
        folder.close()
    assert {path.name for folder in (with_findings, without) for path in folder.path.iterdir()} == {"findings"}
    assert (without.path / "findings").read_text() == "", "which says that something was checked"
    assert kept_findings(tmp_path) == read_findings([BOUNDS])


def test_a_forked_child_leaves_the_folder_to_its_parent():
    folder = CheckFolder(["bounds"])
    folder.forget()
    assert folder.path.is_dir()
    folder.close()
    assert not folder.path.exists()


# -- what a worker is told of arrays -----------------------------------------------------------------------------------


async def test_an_array_is_made_known_with_its_dtype_shape_and_place(dev):
    arrays = [
        dev.empty(3, np.int16),  # made by empty
        dev.zeros((2, 5), "float32"),  # made by zeros
        await dev.to_device(np.ones((4, 1), np.complex64)),  # made by to_device
    ]
    events = told(dev)
    assert [event["allocated"] for event in events] == [array.address for array in arrays]
    assert [(event["size"], event["dtype"], event["shape"]) for event in events] == [
        (6, "int16", [3]),
        (40, "float32", [2, 5]),
        (32, "complex64", [4, 1]),
    ]
    names = ("made by empty", "made by zeros", "made by to_device")
    assert [event["place"] for event in events] == [f"{HERE}:{line_of(name)}" for name in names]


async def test_what_a_verb_of_a_library_makes_is_known_by_the_place_of_the_call(dev):
    a = await dev.to_device(np.eye(4))
    async with dev.batch() as batch:
        c = batch.blas.gemm(a, a)  # made by gemm
    [made] = [event for event in told(dev) if event["allocated"] == c.address]
    assert (made["shape"], made["place"]) == ([4, 4], f"{HERE}:{line_of('made by gemm')}")
    assert np.array_equal(await c.to_host(), np.eye(4))


def test_an_array_that_nobody_on_the_stack_asked_for_has_no_place():
    places: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    ours = {"find": checked_memory._users_place, "places": places}
    exec(compile("def work(): places.put(find())", checked_memory.__file__, "exec"), ours)
    _thread.start_new_thread(ours["work"], ())  # whose stack begins there
    assert places.get(timeout=DEADLINE) is None


async def test_a_free_is_told_when_nothing_that_was_sent_before_can_use_the_memory(dev):
    idle = dev.zeros(10, np.float32)
    idle.free()
    assert freed(told(dev)) == [idle.address]
    used, other = dev.zeros(4, np.float32), dev.zeros(4, np.float32)
    async with endless_kernel(dev, used) as kernel:
        used.free()
        other.free()
        assert freed(told(dev)) == [idle.address]
        await kernel.end()
        await until(lambda: not any(lane.unfinished for lane in dev.statistics().lanes))
    dev.empty(1).free()
    assert freed(told(dev))[1:3] == [used.address, other.address]


async def test_freed_memory_is_not_given_out_at_once(dev):
    addresses = []
    for _ in range(20):
        with dev.zeros(100) as array:
            addresses.append(array.address)
    assert len(set(addresses)) == 20
    assert dev.statistics().memory.in_use == 0


async def test_the_next_worker_is_told_of_what_there_is_and_what_may_have_been_written(dev):
    written, untouched, gone = await dev.to_device(np.ones(4)), dev.empty(5), dev.empty(6)
    gone.free()
    await lose_with(dev)
    assert [(each.get("allocated") or each.get("freed"), each.get("written")) for each in told(dev)] == [
        (written.address, True),
        (untouched.address, False),
        (gone.address, False),
        (gone.address, None),
    ]


async def test_an_array_that_the_program_can_write_itself_counts_as_written(dev):
    array = dev.empty(4, np.float32)
    await dev.share(array)
    assert [event.get("written") for event in told(dev)] == [None]
    seen = np.from_dlpack(array)
    assert [(event["allocated"], event.get("written")) for event in told(dev)] == [
        (array.address, None),
        (array.address, True),
    ]
    del seen


# -- the arena ---------------------------------------------------------------------------------------------------------


class Folder:
    """In the place of a worker's folder."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def tell(self, *events: dict[str, Any]) -> None:
        self.events += events

    @property
    def freed(self) -> list[int]:
        return freed(self.events)


class Lanes:
    """In the place of a timeline: lanes with commands that a test begins and ends."""

    def __init__(self, count: int = 2) -> None:
        self.lanes = [LaneBook(number) for number in range(count)]

    def begin(self, lane: int) -> None:
        book = self.lanes[lane]
        book.issued += 1
        book.begin(SimpleNamespace(ticket=book.issued, batched=False))  # type: ignore[arg-type]

    def begin_launch(self, lane: int) -> None:
        book = self.lanes[lane]
        book.issued += 1
        book.launches.append((book.issued, None, None, ()))  # type: ignore[arg-type]

    def end(self, lane: int) -> None:
        book = self.lanes[lane]
        (book.launches if book.next_launch else book.in_flight).popleft()


@pytest.fixture
def lanes() -> Lanes:
    return Lanes()


@pytest.fixture
def folder() -> Folder:
    return Folder()


@pytest.fixture
def arena(folder: Folder, lanes: Lanes) -> CheckedArena:
    arena = CheckedArena(1 << 44, 1 << 40, 64 * MIB)
    arena.serve(folder, lanes)  # type: ignore[arg-type]
    return arena


def block_of(arena: CheckedArena, size: int = 512) -> Any:
    block = arena.allocate(size)
    arena.describe(block, (size,), np.dtype(np.uint8))
    return block


def test_a_free_waits_for_every_lane_and_for_launches_of_batches(arena, folder, lanes):
    block = block_of(arena)
    lanes.begin(0)
    lanes.begin_launch(0)
    lanes.begin(1)
    arena.free(block)
    for lane in (0, 1):
        lanes.end(lane)
        block_of(arena)
        assert folder.freed == []
    lanes.begin(1)  # what comes later is not waited for
    lanes.end(0)
    block_of(arena)
    assert folder.freed == [block.address]


def test_frees_are_told_in_their_order(arena, folder, lanes):
    first, second = block_of(arena), block_of(arena)
    lanes.begin(0)
    arena.free(first)
    lanes.begin(1)
    arena.free(second)
    lanes.end(0)
    block_of(arena)
    assert folder.freed == [first.address]
    lanes.end(1)
    block_of(arena)
    assert folder.freed == [first.address, second.address]


def test_a_block_is_freed_once_and_belongs_to_nobody_meanwhile(arena, folder):
    block = block_of(arena)
    assert (arena.in_use, block in arena.blocks) == (512 + BETWEEN_ARRAYS, True)
    arena.free(block)
    arena.free(block)
    assert folder.freed == [block.address]
    assert (block.state, arena.in_use, block in arena.blocks) == ("freed", 0, False)


def test_freed_memory_is_given_out_oldest_first_when_the_program_needs_it(arena):
    size = 16 * MIB - BETWEEN_ARRAYS
    blocks = [block_of(arena, size) for _ in range(4)]
    for block in blocks:
        arena.free(block)
    for block in blocks:
        assert block_of(arena, size).address == block.address
    with pytest.raises(ArenaFull):
        arena.allocate(1)


def test_memory_that_commands_may_still_use_is_not_given_out_however_short_it_is(arena, lanes):
    block = block_of(arena, 64 * MIB - BETWEEN_ARRAYS)
    lanes.begin(0)
    arena.free(block)
    with pytest.raises(ArenaFull):
        arena.allocate(1)
    lanes.end(0)
    assert block_of(arena).address == block.address


@pytest.mark.parametrize(("limit", "value"), [("MOST_WAITING", 3), ("MOST_WAITING_BYTES", 3 * (512 + BETWEEN_ARRAYS))])
def test_no_more_memory_waits_than_there_may(arena, folder, monkeypatch, limit, value):
    monkeypatch.setattr(checked_memory, limit, value)
    blocks = [block_of(arena) for _ in range(5)]
    for block in blocks:
        arena.free(block)
    assert folder.freed == [block.address for block in blocks]
    assert [block_of(arena).address for _ in range(2)] == [blocks[1].address, blocks[0].address]
    assert block_of(arena).address not in [block.address for block in blocks]


def test_trimming_lets_nothing_wait(arena):
    block = block_of(arena)
    arena.free(block)
    assert arena.reserved > 0
    arena.trim(0)
    assert arena.reserved == 0


def test_arrays_that_are_collected_are_freed_in_the_same_way(arena, folder, lanes):
    block = block_of(arena)
    lanes.begin(0)
    arena.orphans.append(block)
    block_of(arena)
    assert (block.freed, folder.freed) == (True, [])
    lanes.end(0)
    block_of(arena)
    assert folder.freed == [block.address]


def test_guarded_memory_waits_too(arena, folder):
    block = arena.allocate(100, guarded=True)
    arena.describe(block, (100,), np.dtype(np.uint8))
    arena.free(block)
    assert block.chunk in arena.chunks
    assert folder.freed == [block.address]
    arena.trim(0)
    assert block.chunk not in arena.chunks


def test_with_the_generation_ends_what_its_commands_could_use(arena, folder, lanes):
    block, kept = block_of(arena), block_of(arena)
    lanes.begin(0)
    arena.free(block)
    arena.generation_lost(durable=True, strict=False, number=1)
    assert folder.freed == []  # its worker is gone
    following = Folder()
    arena.serve(following, Lanes())  # type: ignore[arg-type]
    assert [(each.get("allocated"), each.get("freed")) for each in following.events] == [
        (block.address, None),
        (None, block.address),
        (kept.address, None),
    ]


def test_between_two_generations_nobody_is_told(arena, folder):
    arena.generation_lost(durable=True, strict=False, number=1)
    before = list(folder.events)
    arena.free(block_of(arena))
    assert folder.events == before


def test_a_worker_that_goes_back_to_its_pool_forgets_every_array(arena, folder, lanes):
    blocks = [block_of(arena) for _ in range(3)]
    arena.free(blocks[0])
    lanes.begin(0)
    arena.free(blocks[1])
    arena.dismiss()
    assert sorted(folder.freed) == sorted(block.address for block in blocks)


# -- lines of the source -----------------------------------------------------------------------------------------------


async def ptx_of(dev: atomr_trio.Device, options: NvrtcOptions | None) -> str:
    program = await dev.nvrtc.compile_program(SOURCE, options)
    assert program.ptx is not None
    return program.ptx


def files_of(ptx: str) -> set[str]:
    return set(re.findall(r'\.file\s+\d+\s+"(.*)"', ptx))


async def test_a_checked_device_compiles_with_lines_under_the_name_that_was_given(dev):
    assert files_of(await ptx_of(dev, None)) == {"kernel.cu"}
    assert files_of(await ptx_of(dev, NAMED)) == {"app.cu"}
    assert files_of(await ptx_of(dev, NvrtcOptions(name="/src/app.cu", lineinfo=True))) == {"/src/app.cu"}
    with_debug = await ptx_of(dev, NvrtcOptions(debug=True))
    assert files_of(with_debug) == {"kernel.cu"}
    assert ".target sm_80, debug" in with_debug


async def test_a_device_that_checks_nothing_compiles_as_it_is_told():
    async with open_checked(check=()) as dev:
        assert files_of(await ptx_of(dev, None)) == set()


async def test_what_is_linked_has_lines_too(dev):
    program = await dev.nvrtc.compile_program(SOURCE, NvrtcOptions(name="app.cu", lto=True))
    assert {Path(name).name for name in files_of(program._image.data.decode())} == {"app.cu"}


def test_the_names_in_line_information_do_not_depend_on_the_working_directory(tmp_path, monkeypatch):
    header = {"shared.h": "__device__ float half_of(float x) { return x / 2; }"}
    source = '#include "shared.h"\nextern "C" __global__ void k(float *x) { *x = half_of(*x); }'
    options = NvrtcOptions(name="app.cu", lineinfo=True, headers=header)
    here = compile_program(source, options, "compute_80").ptx
    monkeypatch.chdir(tmp_path)
    assert compile_program(source, options, "compute_80").ptx == here
    assert files_of(here.decode()) == {"app.cu", "shared.h"}
    tmp_path.rmdir()
    assert "app.cu" in compile_program(source, options, "compute_80").ptx.decode()


# -- findings ----------------------------------------------------------------------------------------------------------

RACE = {
    "check": "races",
    "kernel": "sum",
    "block": [1, 0, 0],
    "thread": [2, 3, 0],
    "file": "/src/sum.cu",
    "line": 12,
    "what": "two threads write here",
    "address": 4096,
    "array": "array float32[4, 5] of app.py:3",
    "index": [1, 2],
    "other": {"block": [1, 0, 0], "thread": [0, 0, 0], "file": "/src/sum.cu", "line": 9, "what": "the other write"},
}
BOUNDS = {
    "check": "bounds",
    "kernel": "sum",
    "block": [0, 0, 0],
    "thread": [0, 0, 0],
    "file": "sum.cu",
    "line": 3,
    "what": "read past the end",
    "address": 4096,
    "array": None,
    "index": 8,
    "other": None,
}


def test_a_finding_is_read_as_the_worker_writes_it():
    race, bounds = read_findings([RACE, BOUNDS])
    assert race == Finding(
        check="races",
        kernel="sum",
        block=(1, 0, 0),
        thread=(2, 3, 0),
        file="/src/sum.cu",
        line=12,
        what="two threads write here",
        address=4096,
        array="array float32[4, 5] of app.py:3",
        index=(1, 2),
        other=OtherThread((1, 0, 0), (0, 0, 0), "/src/sum.cu", 9, "the other write"),
    )
    assert (bounds.index, bounds.array, bounds.other) == (8, None, None)
    assert [str(race), str(bounds)] == [
        "/src/sum.cu:12: race: two threads write here",
        "sum.cu:3: bounds: read past the end",
    ]
    assert race.other is not None
    assert race.other.place == "/src/sum.cu:9"


def test_a_finding_in_a_file_of_the_working_directory_is_named_from_there():
    [finding] = read_findings([{**BOUNDS, "file": os.path.join(os.getcwd(), "src/sum.cu")}])
    assert finding.place == "src/sum.cu:3"


def test_a_finding_may_have_no_place():
    [finding] = read_findings([{**BOUNDS, "file": None, "line": None}])
    assert str(finding) == "<unknown>: bounds: read past the end"


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_with_findings_can_be_copied(again):
    error = ContextLost("gone", findings=read_findings([RACE, BOUNDS]), generation=3)
    twin = again(error)
    assert (twin.findings, str(twin), repr(twin)) == (error.findings, str(error), repr(error))


def test_an_error_without_findings_speaks_of_none():
    assert ContextLost("gone", generation=3).findings == ()
    assert "findings" not in repr(ContextLost("gone", generation=3))
    assert "compute-sanitizer" in str(ContextLost("gone", status=700))


async def lose_with(dev: atomr_trio.Device, *findings: dict[str, Any]) -> ContextLost:
    """What a program gets when its kernel has failed and the worker has written findings down."""
    text = "".join(json.dumps(finding) + "\n" for finding in findings)
    (folder_of(dev).path / "findings").write_text(text)
    trap = await dev.nvrtc.compile(SOURCE, "trap")
    with pytest.raises(ContextLost) as caught:
        await trap.launch(1, 1)
    await next_generation(dev, caught.value.generation)
    return caught.value


async def test_what_a_worker_has_found_is_in_the_error_and_in_the_event(dev):
    async with dev.events() as events:
        lost = await lose_with(dev, RACE, BOUNDS)
        assert lost.findings == read_findings([RACE, BOUNDS])
        assert lost.status == 719
        assert lost.reason == "/src/sum.cu:12: race: two threads write here (and 1 more)"
        assert str(lost).startswith(lost.reason)
        assert lost.advice is not None
        assert "look at /src/sum.cu:12" in lost.advice
        assert "compute-sanitizer" not in str(lost)
        event = await next_event(events)
        assert isinstance(event, ContextWasLost)
        assert (event.findings, event.reason) == (lost.findings, lost.reason)
        assert (await lose_with(dev)).findings == ()


async def test_findings_cost_nothing_of_the_restart_budget():
    policy = RestartPolicy(intensity=1)
    with trio.fail_after(DEADLINE):
        async with open_checked(check="bounds", restart_policy=policy) as dev:
            await lose_with(dev, BOUNDS)
            assert dev.statistics().restarts_left == 1
            await lose_with(dev)
            assert dev.statistics().restarts_left == 0
            await lose_with(dev, BOUNDS)
            assert dev.state is atomr_trio.DeviceState.RUNNING


async def test_an_access_past_the_end_is_found_with_its_line_and_the_array_lives_on(dev):
    x = await dev.to_device(np.arange(30, dtype=np.float32))  # the array
    twice = await dev.nvrtc.compile(SOURCE, "twice", NAMED)
    with pytest.raises(ContextLost) as caught:
        await twice.launch(1, 32, atomr_trio.read_only(x), 30)
    [*_, finding] = caught.value.findings
    assert (finding.check, finding.kernel, finding.place) == ("bounds", "twice", f"app.cu:{PLANTED}")
    assert (finding.block, finding.thread, finding.index) == ((0, 0, 0), (30, 0, 0), 30)
    assert finding.array is not None
    assert f"{HERE}:{line_of('the array')}" in finding.array
    assert caught.value.status == 700
    await next_generation(dev, caught.value.generation)
    await twice.launch(1, 30, x, 30)
    assert (await x.to_host())[29] == 4 * 29


async def test_an_access_just_past_an_array_is_found_whatever_lies_behind_it(dev):
    x = dev.zeros(1024, np.float32)
    _behind = dev.zeros(1024, np.float32)
    source = 'extern "C" __global__ void past(float *x)\n{\n    x[threadIdx.x + 1] = 1;\n}\n'
    past = await dev.nvrtc.compile(source, "past", NvrtcOptions(name="past.cu"))
    with pytest.raises(atomr_trio.ContextLost) as lost:
        await past.launch(1, 1024, x)
    (finding,) = lost.value.findings
    assert (finding.check, finding.place, finding.thread, finding.index) == ("bounds", "past.cu:3", (1023, 0, 0), 1024)


async def test_a_kernel_that_uses_freed_memory_is_caught(dev):
    x = await dev.to_device(np.ones(32, np.float32))
    kept = await dev.to_device(np.ones(32, np.float32))
    twice = await dev.nvrtc.compile(SOURCE, "twice", NAMED)
    address = x.address
    x.free()
    with pytest.raises(ContextLost) as caught:
        await twice.launch(1, 32, address, 32, touches=[kept])
    assert "freed" in caught.value.findings[0].what


async def test_what_was_written_before_a_fault_is_not_uninitialised_after_it(dev):
    filled, copied, untouched = dev.zeros(32, np.float32), dev.empty(32, np.float32), dev.empty(32, np.float32)
    twice = await dev.nvrtc.compile(SOURCE, "twice", NAMED)
    await copied.copy_from(np.ones(32, np.float32))
    await twice.launch(1, 32, filled, 32)
    await lose_with(dev)
    for array in (filled, copied):
        await twice.launch(1, 32, array, 32)
    with pytest.raises(ContextLost) as caught:
        await twice.launch(1, 32, untouched, 32)
    assert [finding.check for finding in caught.value.findings] == ["initialised"]


async def test_an_array_that_numpy_has_written_is_not_uninitialised(dev):
    array = await dev.share(dev.empty(32, np.float32))
    np.from_dlpack(array)[:] = 3
    twice = await dev.nvrtc.compile(SOURCE, "twice", NAMED)
    await twice.launch(1, 32, array, 32)
    assert (await array.to_host()).tolist() == [6.0] * 32


async def test_commands_that_were_sent_before_a_free_may_use_the_memory(dev):
    x, y = dev.zeros(32, np.float32), dev.zeros(32, np.float32)
    fill = await dev.nvrtc.compile(SOURCE, "set", NAMED)
    async with dev.batch() as batch:
        for _ in range(20):
            batch.launch(fill, 1, 32, x, 32)
            batch.launch(fill, 1, 32, y, 32)
            x.free()
            x = dev.empty(32, np.float32)
    assert dev.generation == 1


async def test_libraries_work_on_a_checked_device(dev):
    matrix = np.array([[4.0, 1.0], [1.0, 3.0]])
    a, b = await dev.to_device(matrix), await dev.to_device(np.ones((2, 1)))
    x = await dev.solver.solve(a, b)
    product = await dev.blas.gemm(a, x)
    assert np.allclose(await product.to_host(), 1)
    assert dev.generation == 1


# -- pools -------------------------------------------------------------------------------------------------------------


async def test_a_worker_of_a_pool_checks_for_one_device_after_the_other():
    with trio.fail_after(DEADLINE), WorkerPool(0, "sim", spares=0, check="bounds") as pool:
        async with open_checked(check="bounds", workers=pool) as dev:
            first, pid, folder = dev.zeros(30, np.float32), worker_pid(dev), folder_of(dev)
            await launch_once(dev)
            del first
        async with open_checked(check="bounds", workers=pool) as dev:
            assert (worker_pid(dev), folder_of(dev)) == (pid, folder)
            live = collections.Counter(event.get("allocated") or -event["freed"] for event in told(dev))
            assert all(live[-address] == count for address, count in live.items() if address > 0)
            x = dev.zeros(30, np.float32)
            twice = await dev.nvrtc.compile(SOURCE, "twice", NAMED)
            with pytest.raises(ContextLost) as caught:
                await twice.launch(1, 31, x, 30)
            assert [finding.index for finding in caught.value.findings] == [30]
            await next_generation(dev, caught.value.generation)
            assert core_of(dev).current is not None
            assert core_of(dev).current.process.checks == ("bounds",)
        assert not folder.path.exists()


async def test_a_device_and_its_pool_have_to_check_the_same():
    with trio.fail_after(DEADLINE), WorkerPool(0, "sim", spares=0, check=("races", "bounds")) as pool:
        with pytest.raises(InvalidArgument, match=r"opened with check=nothing, and .* with check=bounds, races"):
            async with open_checked(check=(), workers=pool):
                pass
        assert pool.statistics().taken == 0


async def test_a_pool_has_its_default_from_the_environment_too(monkeypatch):
    monkeypatch.setenv(VARIABLE, "barriers")
    with trio.fail_after(DEADLINE), WorkerPool(0, "sim", spares=0) as pool:
        async with open_checked(check=None, workers=pool) as dev:
            assert dev.checks == ("barriers",)
            await launch_once(dev)


def test_a_pool_refuses_what_open_device_refuses():
    with pytest.raises(InvalidArgument, match="compute-sanitizer"):
        WorkerPool(0, "cuda", check="races")
