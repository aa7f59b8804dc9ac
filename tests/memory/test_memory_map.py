"""The picture of the arena: what it says of every byte, and that it can be read as text and as SVG."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest
import trio
import trio.testing

from atomr_trio import InvalidArgument, MemoryMap, MemoryPiece
from atomr_trio._memory.arena import CHUNK_GRANULARITY, FIRST_CHUNK, MIB, Arena, ChunkState
from atomr_trio._memory.map import map_of
from atomr_trio._wire.protocol import LANE_COMPUTE, LANES, Role
from support import open_test_device

BASE = 16 << 40
DEADLINE = 300


@pytest.fixture
def arena() -> Arena:
    return Arena(BASE, 1 << 40, 1 << 37)


def states(picture: MemoryMap, chunk: int = 0) -> list[tuple[int, str]]:
    return [(piece.size // MIB, piece.state) for piece in picture.chunks[chunk].pieces]


def test_every_byte_of_a_chunk_is_in_one_piece(arena):
    blocks = [arena.allocate(size * MIB) for size in (16, 8, 4, 2)]
    arena.free(blocks[1])
    picture = map_of(3, arena)
    assert (picture.device, len(picture.chunks)) == (3, 1)
    (chunk,) = picture.chunks
    assert (chunk.address, chunk.size, chunk.state, chunk.in_use) == (BASE, FIRST_CHUNK, "planned", 22 * MIB)
    assert states(picture) == [(16, "ready"), (8, "free"), (4, "ready"), (2, "ready"), (34, "free")]
    assert chunk.pieces[1] == MemoryPiece(BASE + 16 * MIB, 8 * MIB, "free")


def test_memory_that_a_fault_has_touched_is_told_apart(arena):
    whole, torn, lost, haunted = (arena.allocate(FIRST_CHUNK // 4) for _ in range(4))
    torn.torn, lost.lost = "a launch", "for a reason"
    for block in (torn, lost, haunted):
        block.claim(Role.WRITE, LANE_COMPUTE, 1, 1, set())
    arena.begin_quarantine(1, (0,) * LANES)
    assert [state for _, state in states(map_of(0, arena))] == ["ready", "torn", "lost", "quarantined"]
    whole.chunk.state = ChunkState.READY
    assert str(map_of(0, arena).chunks[0]).endswith(
        "ready    100.0 % [" + "#" * 16 + "~" * 16 + "x" * 16 + "?" * 16 + "]"
    )


def test_a_guarded_array_leaves_memory_that_nobody_can_use(arena):
    arena.allocate(CHUNK_GRANULARITY // 2, guarded=True)
    assert states(map_of(0, arena)) == [(1, "unusable"), (1, "ready")]


def test_an_empty_guarded_array_is_no_piece_and_moves_none(arena):
    arena.allocate(0, guarded=True)
    arena.allocate(CHUNK_GRANULARITY, guarded=True)
    picture = map_of(0, arena)
    assert [states(picture, chunk) for chunk in (0, 1)] == [[(2, "unusable")], [(2, "ready")]]


def test_an_arena_without_chunks_is_a_picture_too(arena):
    picture = map_of(0, arena)
    assert str(picture).startswith("device 0: 0 B in use of 0 B in 0 chunks\n")
    ElementTree.fromstring(picture.svg())


def test_the_text_is_a_line_for_each_chunk_and_shows_what_is_small(arena):
    arena.allocate(48 * MIB)
    arena.allocate(512)
    arena.allocate(FIRST_CHUNK)
    title, first, second, legend = str(map_of(0, arena)).splitlines()
    assert title == "device 0: 112 MiB in use of 192 MiB in 2 chunks"
    assert first == f"{BASE:#x}    64 MiB planned   75.0 % [{'#' * 49}{'.' * 15}]"
    assert second.endswith(f"[{'#' * 32}{'.' * 32}]")
    assert "# ready" in legend
    assert ". free" in legend


def test_the_svg_has_a_bar_for_each_piece_that_is_not_free(arena):
    blocks = [arena.allocate(FIRST_CHUNK // 4) for _ in range(3)]
    arena.free(blocks[1])
    drawing = ElementTree.fromstring(map_of(0, arena).svg())
    bars = [each for each in drawing.iter("{http://www.w3.org/2000/svg}rect") if each.get("fill") == "#3f8f6b"]
    x = [float(bar.get("x")) for bar in bars if bar.get("width") != "12"]
    width = [float(bar.get("width")) for bar in bars if bar.get("width") != "12"]
    assert width == [175, 175]
    assert x[1] - x[0] == 350


def test_the_svg_of_thousands_of_arrays_is_small_and_shows_those_that_are_torn(arena):
    blocks = [arena.allocate(512) for _ in range(5000)]
    blocks[2500].torn = "a launch"
    drawing = map_of(0, arena).svg()
    assert len(drawing) < 5000
    bars = ElementTree.fromstring(drawing).iter("{http://www.w3.org/2000/svg}rect")
    colours = [bar.get("fill") for bar in bars if bar.get("height") == "16"]
    assert colours == ["#3f8f6b", "#c4513f", "#3f8f6b", "none"]


# --- on a device ------------------------------------------------------------------------------------------------------


async def test_a_device_shows_its_memory_counts_its_runs_and_gives_unused_chunks_back():
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            kept = await dev.to_device(np.arange(1000))
            large = dev.zeros(100 * MIB, np.uint8)
            assert (await large[-3:].to_host()).tolist() == [0, 0, 0]
            first, second = dev.memory_map().chunks
            assert (first.state, second.state) == ("ready", "ready")
            assert [piece.state for piece in second.pieces] == ["ready", "free"]
            assert await dev.trim() == 0
            before = dev.statistics().memory
            assert (before.free_runs, before.largest_free) == (2, FIRST_CHUNK - 8192)
            large.free()
            await kept.fill(3)
            assert await dev.trim(keep=second.size) == 0
            assert await dev.trim() == second.size
            after = dev.statistics().memory
            assert after.reserved == before.reserved - second.size == first.size
            assert (after.free_runs, after.fragmentation) == (1, 0.0)
            assert (await kept.to_host()).tolist() == [3] * 1000
            assert (await dev.zeros(100 * MIB, np.uint8)[:2].to_host()).tolist() == [0, 0]


async def test_memory_is_given_back_only_after_what_still_runs_on_it():
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            array = dev.zeros(2 * FIRST_CHUNK, np.uint8)
            await array.fill(1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(array.fill, 7)
                await trio.testing.wait_all_tasks_blocked()
                array.free()
                assert await dev.trim() == 2 * FIRST_CHUNK
            assert dev.memory_map().chunks == ()


async def test_a_chunk_that_a_standby_has_mapped_is_given_back_by_it_too():
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1) as dev:
            array = dev.zeros(1000, np.uint8)
            await array.fill(7)
            await dev.wait_standby()
            array.free()
            assert await dev.trim() == FIRST_CHUNK
            generation = await dev.restart("to see that the standby serves as well")
            assert (generation, dev.memory_map().chunks) == (2, ())
            assert (await dev.full(3, 9, np.uint8).to_host()).tolist() == [9] * 3


@pytest.mark.parametrize("keep", [-1, 1.5, True, None, "all"])
async def test_what_is_no_number_of_bytes_is_refused(dev, keep):
    with pytest.raises(InvalidArgument, match="keep is a number of bytes"):
        await dev.trim(keep)


async def test_a_trim_that_is_cancelled_before_it_begins_gives_nothing_back():
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            array = dev.zeros(1000, np.uint8)
            await array.fill(7)
            array.free()
            with trio.CancelScope() as scope:
                scope.cancel()
                await dev.trim()
            assert scope.cancelled_caught
            assert dev.statistics().memory.reserved == FIRST_CHUNK
            assert await dev.trim() == FIRST_CHUNK
            assert (await dev.zeros(3, np.uint8).to_host()).tolist() == [0] * 3
