"""The simulated GPU's address space: what is accessible, what faults, and loads and stores over many lanes."""

from __future__ import annotations

import mmap
import threading

import numpy as np
import pytest

from atomr_sim.engine.memory import Access, AddressSpace, DeviceFault

U32 = np.dtype(np.uint32)
U64 = np.dtype(np.uint64)


@pytest.fixture
def block() -> np.ndarray:
    """4096 zero bytes that begin at a multiple of 4096."""
    return np.frombuffer(mmap.mmap(-1, 4096), np.uint8)


def address_of(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def lanes(*addresses: int) -> np.ndarray:
    return np.array(addresses, np.uint64)


def test_only_what_was_added_can_be_seen(block: np.ndarray) -> None:
    space, base = AddressSpace(), address_of(block)
    with pytest.raises(DeviceFault) as fault:
        space.view(base, 1)
    assert fault.value.status == 700
    assert hex(base) in fault.value.message
    space.add(base + 16, 32)
    view = space.view(base + 16, 32)
    view[:] = 7
    assert block[16:48].tolist() == [7] * 32
    assert not block[:16].any()
    for at, size in ((15, 1), (47, 2), (48, 1), (16, 33), (0, 4096)):
        with pytest.raises(DeviceFault):
            space.view(base + at, size)
    space.remove(base + 16)
    with pytest.raises(DeviceFault):
        space.view(base + 16, 1)


def test_regions_that_touch_can_be_crossed_and_come_apart_again(block: np.ndarray) -> None:
    space, base = AddressSpace(), address_of(block)
    space.add(base, 64)
    space.add(base + 128, 64)
    with pytest.raises(DeviceFault):
        space.view(base + 32, 128)
    space.add(base + 64, 64)
    space.view(base, 192)[:] = 1
    access = Access(space, lanes(base + 60, base + 124))
    assert access.load(0, U32, 4).tolist() == [0x01010101] * 2
    space.remove(base + 64)
    space.view(base, 64)
    space.view(base + 128, 64)
    with pytest.raises(DeviceFault):
        space.view(base + 60, 8)


@pytest.mark.parametrize("address_and_size", [(0, 16), (64, 0), (64, -1)])
def test_a_region_needs_an_address_and_a_size(address_and_size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="not a region"):
        AddressSpace().add(*address_and_size)


def test_regions_may_not_overlap_and_only_whole_ones_go(block: np.ndarray) -> None:
    space, base = AddressSpace(), address_of(block)
    space.add(base + 64, 64)
    for at, size in ((0, 65), (64, 64), (127, 1), (0, 4096), (100, 8)):
        with pytest.raises(ValueError, match="overlaps"):
            space.add(base + at, size)
    with pytest.raises(KeyError):
        space.remove(base + 65)
    space.add(base, 64)
    space.add(base + 128, 64)


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_adding_and_removing_gives_the_same_map(block: np.ndarray, seed: int) -> None:
    """Against a plain set of accessible bytes."""
    rng = np.random.default_rng(seed)
    space, base = AddressSpace(), address_of(block)
    present: set[int] = set()
    for _ in range(120):
        cell = int(rng.integers(32))
        if cell in present:
            space.remove(base + cell * 16)
            present.remove(cell)
        else:
            space.add(base + cell * 16, 16)
            present.add(cell)
        start, length = int(rng.integers(512)), int(rng.integers(1, 64))
        allowed = all(byte // 16 in present for byte in range(start, start + length))
        try:
            space.view(base + start, length)
            seen = True
        except DeviceFault:
            seen = False
        assert seen == allowed


def test_loads_and_stores_of_scattered_lanes(block: np.ndarray) -> None:
    space, base = AddressSpace(), address_of(block)
    space.add(base, 4096)
    words = block.view(np.uint32)
    words[:] = np.arange(1024)
    index = np.array([5, 900, 5, 0, 1000])
    access = Access(space, (base + 4 * index).astype(np.uint64))
    np.testing.assert_array_equal(access.load(0, U32, 4), index)
    np.testing.assert_array_equal(access.load(20, U32, 4), index + 5)
    np.testing.assert_array_equal(
        Access(space, (base + 4 * index[:2]).astype(np.uint64)).load(-20, U32, 4), index[:2] - 5
    )
    access.store(4, np.array([1, 2, 3, 4, 5], np.uint32), U32, 4)
    assert [words[at + 1] for at in (5, 900, 0, 1000)] == [3, 2, 4, 5], "the last lane wins"
    access.store(0, np.uint32(77), U32, 4)
    assert [words[at] for at in (5, 900, 0, 1000)] == [77] * 4


def test_a_load_is_a_copy_and_every_load_looks_again(block: np.ndarray) -> None:
    space, base = AddressSpace(), address_of(block)
    space.add(base, 4096)
    access = Access(space, base + 4 * np.arange(8, dtype=np.uint64))
    before = access.load(0, U32, 4)
    block[:] = 1
    assert not before.any()
    assert access.load(0, U32, 4).tolist() == [0x01010101] * 8


@pytest.mark.parametrize(
    ("offset", "align", "status"),
    [(2, 4, 716), (0, 8, None), (4, 8, 716), (4096, 4, 700), (-4, 4, 700), (-8192, 4, 700)],
)
def test_offsets_are_checked_for_range_and_alignment(
    block: np.ndarray, offset: int, align: int, status: int | None
) -> None:
    space, base = AddressSpace(), address_of(block)
    space.add(base, 4096)
    access = Access(space, lanes(base, base + 16))
    if status is None:
        access.load(offset, U32, align)
        return
    with pytest.raises(DeviceFault) as fault:
        access.load(offset, U32, align)
    assert fault.value.status == status
    with pytest.raises(DeviceFault) as fault:
        access.store(offset, np.uint32(9), U32, align)
    assert fault.value.status == status
    if status == 700:
        assert not block.any()


def test_a_misaligned_store_lands_rounded_down_before_it_faults(block: np.ndarray) -> None:
    """As on an H200: `*(volatile int *)(p + 1) = 1` leaves a 1 in the word at p and reports 716."""
    space, base = AddressSpace(), address_of(block)
    space.add(base, 4096)
    with pytest.raises(DeviceFault) as fault:
        Access(space, lanes(base + 1, base + 9)).store(0, np.uint32(7), U32, 4)
    assert fault.value.status == 716
    assert block.view(np.uint32)[:4].tolist() == [7, 0, 7, 0]
    with pytest.raises(DeviceFault) as fault:
        space.store(base + 21, np.uint32(9), U32, 4)
    assert fault.value.status == 716
    assert block.view(np.uint32)[5] == 9
    with pytest.raises(DeviceFault) as fault:
        Access(space, lanes(base + 5001)).store(0, np.uint32(7), U32, 4)
    assert fault.value.status == 716


def test_a_misaligned_lane_is_named(block: np.ndarray) -> None:
    space, base = AddressSpace(), address_of(block)
    space.add(base, 4096)
    with pytest.raises(DeviceFault, match=hex(base + 102)) as fault:
        Access(space, lanes(base, base + 100, base + 102)).load(0, U32, 4)
    assert fault.value.status == 716


def test_an_offset_can_make_addresses_aligned(block: np.ndarray) -> None:
    space, base = AddressSpace(), address_of(block)
    space.add(base, 4096)
    block.view(np.uint32)[:] = np.arange(1024)
    assert Access(space, lanes(base + 2, base + 42)).load(2, U32, 4).tolist() == [1, 11]


def test_lanes_in_several_spans(block: np.ndarray) -> None:
    space, base = AddressSpace(), address_of(block)
    for at in (0, 256, 1024):
        space.add(base + at, 64)
    block.view(np.uint32)[:] = np.arange(1024)
    access = Access(space, lanes(base + 1024, base + 4, base + 300, base + 60, base + 256))
    assert access.load(0, U32, 4).tolist() == [256, 1, 75, 15, 64]
    access.store(0, np.arange(5, dtype=np.uint32), U32, 4)
    assert access.load(0, U32, 4).tolist() == [0, 1, 2, 3, 4]
    wild = Access(space, lanes(base + 1024, base + 4, base + 128))
    with pytest.raises(DeviceFault, match=hex(base + 128)):
        wild.store(0, np.uint32(99), U32, 4)
    assert block.view(np.uint32)[256] == 0, "nothing is written when one lane is wild"


@pytest.mark.parametrize("far", [2**63, 2**64 - 4, 2**63 - 4])
def test_addresses_at_the_other_end_of_memory(block: np.ndarray, far: int) -> None:
    space, base = AddressSpace(), address_of(block)
    space.add(base, 4096)
    with pytest.raises(DeviceFault) as fault:
        Access(space, lanes(base, far)).load(0, U32, 4)
    assert fault.value.status == 700


def test_an_item_may_not_stick_out(block: np.ndarray) -> None:
    space, base = AddressSpace(), address_of(block)
    space.add(base, 12)
    assert Access(space, lanes(base)).load(0, U64, 8).size == 1
    for access in (lambda: Access(space, lanes(base + 8)).load(0, U64, 8), lambda: space.load(base + 8, U64, 8)):
        with pytest.raises(DeviceFault) as fault:
            access()
        assert fault.value.status == 700


def test_one_address_for_all_lanes(block: np.ndarray) -> None:
    space, base = AddressSpace(), address_of(block)
    space.add(base + 8, 64)
    space.store(base + 8, np.array([1, 2, 3], np.uint32), U32, 4)
    assert space.load(base + 8, U32, 4) == 3
    with pytest.raises(DeviceFault) as fault:
        space.load(base + 9, U32, 4)
    assert fault.value.status == 716


def test_strings_end_at_zero_or_fault(block: np.ndarray) -> None:
    space, base = AddressSpace(), address_of(block)
    block[:6] = np.frombuffer(b"hello\0", np.uint8)
    block[32:64] = 65
    space.add(base, 64)
    assert space.text(base) == b"hello"
    with pytest.raises(DeviceFault):
        space.text(base + 40)


def test_lookups_while_other_threads_change_the_map(block: np.ndarray) -> None:
    space, base = AddressSpace(), address_of(block)
    space.add(base, 64)
    block[:64] = 5
    stop, errors = threading.Event(), []

    def churn(cell: int) -> None:
        while not stop.is_set():
            space.add(base + cell, 64)
            space.remove(base + cell)

    def look() -> None:
        try:
            for _ in range(3000):
                assert Access(space, lanes(base, base + 60)).load(0, U32, 4).tolist() == [0x05050505] * 2
        except BaseException as error:
            errors.append(error)
        finally:
            stop.set()

    threads = [threading.Thread(target=churn, args=(cell,)) for cell in (64, 1024)] + [threading.Thread(target=look)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
