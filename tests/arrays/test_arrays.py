"""Device arrays as a program sees them: making, copying, viewing, filling, freeing, and every way to get it wrong."""

from __future__ import annotations

import contextlib
import gc
import math
import struct

import numpy as np
import pytest
import trio

from atomr_trio import (
    ActorCrashed,
    CommandFailed,
    DeviceArray,
    DeviceClosed,
    DeviceError,
    InvalidArgument,
    OutOfDeviceMemory,
    StaleArray,
    read_only,
)
from atomr_trio._device.device import core_of
from atomr_trio._transfers.copy_stream import STREAM_SLOTS
from atomr_trio._transfers.memory import pattern_of
from atomr_trio._transfers.staging import LARGE_SLOT, LARGE_SLOTS, SMALL_SLOTS, TINY_SLOTS
from atomr_trio._transfers.transfers import Transfers
from atomr_trio._values.dtypes import DTYPES
from support import chosen_backend, open_test_device
from support.strategies import numbers, same

pytestmark = pytest.mark.used_workers

MIB = 1 << 20


async def until(condition):
    """Wait until something has become true; the test's own deadline is the limit."""
    while not condition():  # noqa: ASYNC110
        await trio.sleep(0.001)


@contextlib.asynccontextmanager
async def scenario(**options):
    """A device, and an end to everything that hangs."""
    with trio.fail_after(60):
        async with open_test_device(**options) as dev:
            yield dev


GATE = r"""
extern "C" __global__ void gate(unsigned long long flag, void *held, int count, int value)
{
    while (*(volatile int *)flag == 0) { }
    for (int i = 0; i < count; ++i) ((int *)held)[i] = value;
}
"""


class Gate:
    """A kernel that works on an array, and does not end before a lane of its own lets it, past all that waits."""

    def __init__(self, dev, flag, kernel):
        self._dev = dev
        self._flag = flag
        self._kernel = kernel

    @classmethod
    async def make(cls, dev):
        return cls(dev, await dev.to_device(np.zeros(1, np.int32)), await dev.nvrtc.compile(GATE, "gate"))

    async def hold(self, nursery, array, count=0, value=0):
        """Start the kernel on `array`; when this returns, everything else that touches the array waits for it."""
        # The flag's address is a plain number here, so a copy to the flag does not wait for the kernel.
        arguments = (self._flag.address, array, count, value)
        submitted = self._dev.statistics().lanes[0].submitted
        nursery.start_soon(lambda: self._kernel.launch(1, 1, *arguments))
        await until(lambda: self._dev.statistics().lanes[0].submitted > submitted)

    async def open(self):
        async with self._dev.lane() as key, self._dev.batch(lane=key) as batch:
            batch.fill(self._flag, 1)


# --- there and back ---------------------------------------------------------------------------------------------------


async def test_every_dtype_survives_the_round_trip_bit_for_bit():
    async with scenario() as dev:
        for dtype in DTYPES:
            host = numbers((3, 5), dtype)
            array = await dev.to_device(host)
            assert (array.shape, array.dtype, array.itemsize) == (host.shape, host.dtype, host.itemsize)
            assert (array.size, array.nbytes, array.ndim, len(array)) == (15, host.nbytes, 2, 3)
            assert array.strides == host.strides
            assert array.contiguous
            assert same(await array.to_host(), host), dtype


async def test_whatever_numpy_makes_an_array_of_can_be_copied():
    async with scenario() as dev:
        for source in (3, 2.5, True, 1j, [1, 2, 3], ((1.0, 2.0),), range(4), np.float16(1.5), [], memoryview(b"abc")):
            assert same(await (await dev.to_device(source)).to_host(), np.asarray(source))


@pytest.mark.parametrize("batched", [False, True])
async def test_an_array_of_the_device_is_copied_whatever_its_layout(batched):
    host = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
    async with scenario() as dev, dev.batch() as batch:

        async def copied(array):
            if not batched:
                return await dev.to_device(array)
            copy = batch.to_device(array)
            await batch.flush()
            return copy

        whole = await dev.to_device(host)
        views = [
            lambda x: x,
            lambda x: x[1],
            lambda x: x[1, 2, 3],
            lambda x: x[:, ::2, 1:4],
            lambda x: x[:0],
            lambda x: x.T,
        ]
        for view in views if batched else [*views, lambda x: x[::-1, :, ::-1], lambda x: x[..., ::-3]]:
            array, expected = view(whole), view(host)
            copy = await copied(array)
            assert (copy.shape, copy.dtype, copy.contiguous) == (expected.shape, np.int32, True)
            assert copy._block is not array._block
            assert same(await copy.to_host(), expected)
        promised = await copied(dev.full((2, 3), 7, np.int16))
        assert same(await promised.to_host(), np.full((2, 3), 7, np.int16))
        copy = await copied(whole)
        await whole.fill(0)
        assert same(await copy.to_host(), host)


async def test_an_array_of_the_device_that_cannot_be_copied_is_refused_and_takes_no_memory():
    async with scenario() as dev, dev.batch() as batch:
        good = await dev.to_device(np.arange(8))
        torn, freed, lost = dev.zeros(8), dev.zeros(8), dev.zeros(8)
        for array in (torn, freed, lost):
            await array.fill(1)
        torn._block.tear("a launch was writing it")
        lost._block.lose("for a reason")
        freed.free()
        in_use = dev.statistics().memory.in_use
        for array, error, text in (
            (torn, StaleArray, "the array is torn: a launch was writing it"),
            (lost, StaleArray, "the array's memory is lost: for a reason"),
            (freed, InvalidArgument, "the array was freed"),
        ):
            with pytest.raises(error, match=text):
                await dev.to_device(array)
            with pytest.raises(error, match=text):
                batch.to_device(array)
        assert dev.statistics().memory.in_use == in_use
        async with open_test_device() as other:
            for refuse in (other.to_device, copied_in_a_batch(other)):
                with pytest.raises(InvalidArgument, match=r"(?s)belongs to another device.*to_host\(\)"):
                    await refuse(good)
            assert other.statistics().memory.in_use == 0
            assert same(await (await other.to_device(await good.to_host())).to_host(), np.arange(8))


def copied_in_a_batch(dev):
    async def copied(array):
        async with dev.batch() as batch:
            return batch.to_device(array)

    return copied


async def test_shapes_with_no_axes_and_with_no_elements_work_everywhere():
    async with scenario() as dev:
        for shape in ((), (0,), (1,), (3, 0, 2), (0, 0), (1, 1, 1), 4, [2, 3], np.int64(3)):
            expected = np.full(shape, 7, np.int16)
            array = dev.full(shape, 7, np.int16)
            assert array.shape == expected.shape
            assert same(await array.to_host(), expected)
            await array.fill(8)
            assert same(await array.to_host(), np.full(shape, 8, np.int16))
            await array.copy_from(expected)
            other = dev.empty(shape, np.int16)
            await other.copy_from(array)
            out = np.zeros(shape, np.int16)
            await other.copy_to(out)
            assert same(out, expected)
            column = expected.reshape(expected.size, 1)
            assert same(await array.reshape(column.shape).to_host(), column)


async def test_new_arrays_hold_what_was_asked_for_before_anything_was_sent():
    async with scenario() as dev:
        before = dev.statistics().lanes
        zeros, full, empty = dev.zeros((2, 3)), dev.full(5, 1.5), dev.empty(4)
        assert dev.statistics().lanes == before
        assert zeros.dtype == full.dtype == empty.dtype == np.float64
        assert same(await zeros.to_host(), np.zeros((2, 3)))
        assert same(await full.to_host(), np.full(5, 1.5))
        for dtype in DTYPES:
            assert same(await dev.zeros(9, dtype).to_host(), np.zeros(9, dtype))
            assert same(await dev.full((3, 3), True, dtype).to_host(), np.ones((3, 3), dtype))


async def test_full_takes_numpys_type_for_the_value():
    async with scenario() as dev:
        for value in (1, 1.0, True, 1j, np.float16(2), np.uint8(3)):
            assert same(await dev.full(3, value).to_host(), np.full(3, value))


async def test_a_part_of_an_array_of_zeros_can_be_overwritten_first():
    async with scenario() as dev:
        array = dev.zeros(10, np.int32)
        await array[3:5].copy_from(np.array([1, 2], np.int32))
        assert (await array.to_host()).tolist() == [0, 0, 0, 1, 2, 0, 0, 0, 0, 0]


async def test_the_source_may_change_as_soon_as_the_copy_is_done():
    async with scenario() as dev:
        host = np.arange(5)
        array = await dev.to_device(host)
        host[:] = 0
        assert (await array.to_host()).tolist() == [0, 1, 2, 3, 4]


async def test_copies_larger_than_a_slot_arrive_whole():
    async with scenario() as dev:
        for count in (LARGE_SLOT - 1, LARGE_SLOT, LARGE_SLOT + 1, 5 * LARGE_SLOT + 12345):
            host = numbers(count, np.uint8)
            array = await dev.to_device(host)
            assert same(await array.to_host(), host)
            strided = array[1::3]
            assert same(await strided.to_host(), host[1::3])
            await strided.copy_from(np.zeros(strided.shape, np.uint8))
            expected = host.copy()
            expected[1::3] = 0
            assert same(await array.to_host(), expected)


async def test_rows_wider_than_a_slot_arrive_whole():
    async with scenario() as dev:
        host = numbers((3, LARGE_SLOT + 4096), np.uint8)
        array = await dev.to_device(host)
        view = array[:, 5 : LARGE_SLOT + 100]
        assert same(await view.to_host(), np.ascontiguousarray(host[:, 5 : LARGE_SLOT + 100]))


async def test_hosts_of_any_layout_are_read_and_written():
    async with scenario() as dev:
        base = numbers((6, 8, 4), np.int32)
        layouts = {
            "C": base,
            "Fortran": np.asfortranarray(base),
            "transposed": np.ascontiguousarray(base.T).T,
            "strided": np.repeat(base, 2, axis=1)[:, ::2],
            "reversed": np.ascontiguousarray(base[::-1, :, ::-1])[::-1, :, ::-1],
            "unaligned": np.frombuffer(b"x" + base.tobytes(), np.int32, offset=1).reshape(base.shape),
            "read-only": np.broadcast_to(base, base.shape),
        }
        array = dev.empty(base.shape, base.dtype)
        for name, host in layouts.items():
            await array.fill(0)
            await array.copy_from(host)
            assert same(await array.to_host(), base), name
            assert same(await (await dev.to_device(host)).to_host(), base), name
            if host.flags.writeable:
                host[...] = 0
                await array.copy_to(host)
                assert np.array_equal(host, array_values := await array.to_host()), name
                assert same(array_values, base)


async def test_large_hosts_that_are_not_contiguous_arrive_whole():
    async with scenario() as dev:
        base = numbers((1500, 1001), np.float32)
        fortran = np.asfortranarray(base)
        array = await dev.to_device(fortran)
        out = np.empty_like(fortran)
        assert out.flags.f_contiguous
        await array.copy_to(out)
        assert same(np.ascontiguousarray(out), base)


async def test_a_numpy_matrix_is_copied_as_the_array_it_is():
    async with scenario() as dev:
        out = np.zeros((3, 4)).view(np.matrix)
        array = await dev.to_device(np.arange(12.0).reshape(3, 4).view(np.matrix))
        await array.copy_to(out)
        assert np.asarray(out).tolist() == np.arange(12.0).reshape(3, 4).tolist()


async def test_copies_of_many_tasks_at_once_do_not_wait_for_each_other_for_ever():
    async with scenario() as dev:
        hosts = [np.full(4 * LARGE_SLOT // 4 + number, number, np.int32) for number in range(6)]
        arrays = [await dev.to_device(host) for host in hosts]
        seen = {}

        async def fetch(number):
            seen[number] = await arrays[number].to_host()

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for number in range(6):
                    nursery.start_soon(fetch, number)
        assert all(same(seen[number], hosts[number]) for number in range(6))
        assert core_of(dev).part(Transfers).staging.idle


async def test_more_small_copies_at_once_than_there_are_slots_all_arrive():
    async with scenario() as dev:
        count = TINY_SLOTS + 64
        array = dev.zeros(count, np.int32)
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(array[number].copy_from, np.int32(number))
        assert same(await array.to_host(), np.arange(count, dtype=np.int32))
        assert core_of(dev).part(Transfers).staging.idle


# --- views ------------------------------------------------------------------------------------------------------------

INDICES = [
    np.s_[2],
    np.s_[-1],
    np.s_[1, 2, 3],
    np.s_[np.int64(1)],
    np.s_[...],
    np.s_[..., 1],
    np.s_[1, ..., 2:4],
    np.s_[None],
    np.s_[:, None, 2],
    np.s_[()],
    np.s_[::2],
    np.s_[::-1],
    np.s_[1:4:2, ::-2, -1:0:-1],
    np.s_[:, 1:3],
    np.s_[:, :, ::3],
    np.s_[4:1],
    np.s_[10:20],
    np.s_[:, 2:2],
    np.s_[-100:100],
]


async def test_views_are_numpys_for_reading_and_writing():
    async with scenario() as dev:
        host = numbers((4, 5, 6), np.int32)
        for index in INDICES:
            array = await dev.to_device(host)
            expected = host.copy()
            view, wanted = (
                array[index],
                expected[(*index, ...) if isinstance(index, tuple) and ... not in index else index],
            )
            wanted = np.asarray(wanted)
            assert (view.shape, view.strides) == (wanted.shape, wanted.strides), index
            assert view.contiguous == wanted.flags.c_contiguous, index
            assert same(await view.to_host(), np.ascontiguousarray(wanted).reshape(wanted.shape)), index
            filler = numbers(wanted.shape, np.int32) ^ 0x55
            await view.copy_from(filler)
            np.copyto(expected[index if isinstance(index, tuple) else (index,)][...], filler) if wanted.ndim else (
                expected.__setitem__(index, filler)
            )
            assert same(await array.to_host(), expected), index
            await view.fill(-3)
            expected[index] = -3
            assert same(await array.to_host(), expected), index


async def test_views_of_views_share_the_memory():
    async with scenario() as dev:
        host = np.arange(24)
        array = await dev.to_device(host)
        view = array.reshape(4, 6)[::-1][1:3, ::2]
        assert (await view.to_host()).tolist() == host.reshape(4, 6)[::-1][1:3, ::2].tolist()
        assert view.address == array.address + 12 * 8
        assert array[5:].address == array.address + 40
        await view.fill(0)
        host.reshape(4, 6)[::-1][1:3, ::2] = 0
        assert same(await array.to_host(), host)


async def test_reshape_gives_numpys_views():
    async with scenario() as dev:
        host = np.arange(24, dtype=np.int16)
        array = await dev.to_device(host)
        for shape in ((24,), (2, 12), (-1, 6), (2, 3, 4), (24, 1, 1)):
            assert same(await array.reshape(shape).to_host(), host.reshape(shape))
            assert same(await array.reshape(*shape).to_host(), host.reshape(shape))
        assert same(await array[::2].reshape(3, 4).to_host(), host[::2].reshape(3, 4))
        assert same(await array[::-1].reshape(3, 8).to_host(), host[::-1].reshape(3, 8))
        assert array.reshape(2, 12)[0:0].reshape(0, 5).shape == (0, 5)
        one = array[3].reshape(())
        assert one.shape == ()
        assert await one.to_host() == 3
        for _ in range(2):
            assert (array.reshape(4, -1).shape, array.reshape((4, 6)).shape, array.reshape([2, 12]).shape) == (
                *((4, 6), (4, 6), (2, 12)),
            )
            assert array.reshape(True, 24).shape == (1, 24)
            assert type(array.reshape(True, 24).shape[0]) is int
            assert array.reshape(1, 24).view(np.int8).reshape(1, -1).strides[1] == 1
            with pytest.raises(InvalidArgument):
                array.reshape(4.0, -1)
            with pytest.raises(InvalidArgument):
                array.reshape((4.0, 6))
        for shape in ((5, 5), (-1, 7), (-1, -1), (2.5,), ("a",), (-2, -12), (10**5000,)):
            with pytest.raises(InvalidArgument):
                array.reshape(shape)
        with pytest.raises(InvalidArgument, match="cannot be seen as"):
            array.reshape(4, 6)[:, :3].reshape(12)


async def test_what_is_no_plain_index_is_refused():
    async with scenario() as dev:
        array = dev.zeros((4, 5))
        for index in (
            [0, 1],
            np.array([0, 1]),
            np.array(1),
            np.array([[True] * 5] * 4),
            True,
            np.True_,
            1.0,
            "a",
            (0, [1]),
            (slice(None), np.array([1])),
            array,
        ):
            with pytest.raises(InvalidArgument, match="an index is made of") as caught:
                array[index]
            assert len(str(caught.value)) < 120
        for index in (4, -5, (0, 5), (0, 0, 0), (..., 0, 0, 0), (..., ...)):
            with pytest.raises(IndexError):
                array[index]


async def test_an_array_can_be_walked_like_a_sequence_and_has_no_length_without_axes():
    async with scenario() as dev:
        host = np.arange(6).reshape(3, 2)
        array = await dev.to_device(host)
        assert [(await row.to_host()).tolist() for row in array] == host.tolist()
        with pytest.raises(TypeError):
            len(array[0, 0])
        with pytest.raises(TypeError, match="to_host"):
            np.asarray(array)
        with pytest.raises(TypeError, match=r"dev\.empty"):
            DeviceArray()


# --- on the device ----------------------------------------------------------------------------------------------------


async def test_arrays_are_copied_on_the_device_whatever_their_strides():
    async with scenario() as dev:
        source_host = numbers((6, 8, 5), np.int32)
        source = await dev.to_device(source_host)
        for to, origin in [
            (np.s_[:], np.s_[:]),
            (np.s_[::2], np.s_[:3]),
            (np.s_[:, 1:4], np.s_[:, 5:8]),
            (np.s_[:, :, ::2], np.s_[:, :, 1:4]),
            (np.s_[::-1], np.s_[:]),
            (np.s_[::-1, ::-1, ::-1], np.s_[::-1, ::-1, ::-1]),
            (np.s_[:, ::-1], np.s_[::-1]),
            (np.s_[2:2], np.s_[3:3]),
            (np.s_[1, 2], np.s_[3, 4]),
            (np.s_[1, 2, 3], np.s_[3, 4, 0]),
        ]:
            target = dev.zeros(source_host.shape, np.int32)
            await target[to].copy_from(source[origin])
            expected = np.zeros_like(source_host)
            expected[to] = source_host[origin]
            assert same(await target.to_host(), expected), (to, origin)
        assert same(await source.to_host(), source_host)


async def test_both_reversed_is_one_command():
    async with scenario() as dev:
        source, target = await dev.to_device(np.arange(1000)), dev.empty(1000, np.int64)
        await target.fill(0)
        submitted = dev.statistics().lanes[0].submitted
        await target[::-1].copy_from(source[::-1])
        assert dev.statistics().lanes[0].submitted == submitted + 1
        assert same(await target.to_host(), np.arange(1000))


async def test_parts_of_one_array_can_be_copied_to_each_other_unless_they_overlap():
    async with scenario() as dev:
        host = np.arange(20)
        array = await dev.to_device(host)
        await array[:5].copy_from(array[10:15])
        host[:5] = host[10:15]
        await array[15:].copy_from(array[14:9:-1])
        host[15:] = host[14:9:-1]
        await array[3:3].copy_from(array[3:3])
        assert same(await array.to_host(), host)
        for to, origin in (
            (np.s_[:5], np.s_[4:9]),
            (np.s_[:], np.s_[:]),
            (np.s_[::2], np.s_[1::2]),
            (np.s_[4::-1], np.s_[:5]),
        ):
            with pytest.raises(InvalidArgument, match="share memory"):
                await array[to].copy_from(array[origin])
        assert same(await array.to_host(), host)


# --- filling ----------------------------------------------------------------------------------------------------------


async def test_fill_writes_every_dtype_in_every_layout():
    async with scenario() as dev:
        for dtype in DTYPES:
            host = numbers((5, 9), dtype)
            array = await dev.to_device(host)
            value = np.dtype(dtype).type(1 if np.dtype(dtype).kind == "b" else 37)
            for index in (np.s_[1:3], np.s_[:, 1:4], np.s_[::2, ::-2], np.s_[:, ::3], np.s_[4, 8]):
                host[index] = value
                await array[index].fill(value)
                assert same(await array.to_host(), host), (dtype, index)
            await array.fill(value)
            assert same(await array.to_host(), np.full((5, 9), value, dtype))


async def test_long_fills_of_wide_items_reach_the_end():
    async with scenario() as dev:
        for dtype, value in ((np.complex128, 1 + 2j), (np.float64, math.pi), (np.int64, -(2**40) - 1)):
            array = dev.full(100_003, value, dtype)
            assert same(await array.to_host(), np.full(100_003, value, dtype))


FITS = [
    (0, "u1"), (255, "u1"), (-128, "i1"), (2**64 - 1, "u8"), (-(2**63), "i8"), (True, "i4"), (3, "f2"), (65504, "f2"),
    (2**70, "f4"), (10**30, "f8"), (-(2**65), "c8"), (1e38, "f4"), (math.inf, "f2"), (math.nan, "f4"), (1e-50, "f4"),
    (1.5, "c8"), (2j, "c16"), (np.float64(0.1), "f4"), (np.uint64(7), "i1"), (np.array(5), "i2"), (False, "?"),
]  # fmt: skip
DOES_NOT_FIT = [
    (256, "u1"), (-1, "u8"), (2**63, "i8"), (2**64, "u8"), (10**30, "i8"), (1.0, "i4"), (math.nan, "i4"), (1j, "f8"),
    (65520.0, "f2"), (70000, "f2"), (1e39, "f4"), (10**400, "f8"), (1e39j, "c8"), (0.5, "?"), ("1", "i4"), (None, "f4"),
    (complex("nan+1e39j"), "c8"), (complex("1e39+infj"), "c8"), ([1, 2], "i4"), (np.array([1]), "i4"),
    (b"x", "u1"), (object(), "f8"), (np.datetime64("2020-01-01"), "i8"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "dtype"), FITS)
def test_a_value_that_fits_becomes_numpys_bytes(value, dtype):
    with np.errstate(all="ignore"):
        expected = np.full((), float(value) if isinstance(value, int) and dtype[0] in "fc" else value, dtype)
    assert pattern_of(value, np.dtype(dtype)) == expected.tobytes()


@pytest.mark.parametrize(("value", "dtype"), DOES_NOT_FIT)
def test_a_value_that_does_not_fit_is_refused(value, dtype):
    with pytest.raises(InvalidArgument, match="cannot fill"):
        pattern_of(value, np.dtype(dtype))


async def test_a_refused_fill_changes_nothing():
    async with scenario() as dev:
        array = dev.full(3, 5, np.int8)
        for value in (300, 10**5000):  # the message must not fail by what Python does not print
            with pytest.raises(InvalidArgument):
                await array.fill(value)
        with pytest.raises(InvalidArgument):
            dev.full(3, 300, np.int8)
        with pytest.raises(InvalidArgument):
            await array.fill(array)
        assert (await array.to_host()).tolist() == [5, 5, 5]


# --- what is refused --------------------------------------------------------------------------------------------------


async def test_dtypes_that_a_gpu_has_no_use_for_are_refused():
    async with scenario() as dev:
        for dtype in (
            object,
            np.longdouble,
            np.clongdouble,
            ">f4",
            ">i8",
            "U3",
            "S2",
            "M8[s]",
            "V4",
            [("a", "i4")],
            "f3",
            "nonsense",
            3.5,
        ):
            for make in (lambda d: dev.empty(3, d), lambda d: dev.zeros(3, d), lambda d: dev.full(3, 0, d)):
                with pytest.raises(InvalidArgument):
                    make(dtype)
        for host in (np.array([None]), np.zeros(2, ">f4"), np.zeros(2, np.longdouble), np.array(["a"]), "text", None):
            with pytest.raises(InvalidArgument):
                await dev.to_device(host)
        assert dev.statistics().memory.in_use == 0


async def test_what_equals_a_known_shape_or_dtype_is_checked_like_any_other():
    async with scenario() as dev:
        for dtype in (np.float32, "float32", np.dtype(np.float32)):
            for shape in (3, (3, 1), (1, 3)):
                expected = (3,) if shape == 3 else shape
                for _ in range(2):
                    made = dev.empty(shape, dtype)
                    assert (made.shape, made.dtype, made.strides) == (expected, "f4", np.empty(shape, "f4").strides)
            for shape in (3.0, (3.0, 1), (1, np.float64(3)), "3"):
                with pytest.raises(InvalidArgument, match="a shape is an int or a sequence of ints"):
                    dev.empty(shape, dtype)
            for shape in (np.int64(3), [3], (np.int8(3),)):
                assert dev.empty(shape, dtype).shape == (3,)
            made = dev.empty((3, True), dtype)
            assert (made.shape, set(map(type, made.shape))) == ((3, 1), {int})
        for dtype in (">f4", "no", object):
            for _ in range(2):
                with pytest.raises(InvalidArgument, match="dtype"):
                    dev.empty(3, dtype)


async def test_more_layouts_than_are_remembered_are_all_right():
    async with scenario() as dev:
        for length in range(1000):
            assert dev.empty(length, np.uint8).nbytes == length
        assert dev.empty(7, np.uint8).shape == (7,)


async def test_shapes_that_cannot_be_are_refused():
    async with scenario() as dev:
        for shape in (
            *(-1, (2, -3), 2.0, (1, 2.5), "ab", None, ((1, 2),), (1,) * 65, 10**5000, (3, -(10**5000))),
            *((0, 2**70), (0, 2**60), (2**30, 0, 2**30)),  # without elements, and too large for numpy all the same
        ):
            with pytest.raises(InvalidArgument):
                dev.empty(shape)
        largest = dev.empty((0, 2**60 - 1))
        assert same(await largest.to_host(), np.empty((0, 2**60 - 1)))
        assert largest[0:0, ::-2].shape == (0, 2**59)
        largest.free()
        with pytest.raises(OutOfDeviceMemory):
            dev.empty((2**40, 2**40))
        assert dev.statistics().memory.in_use == 0


async def test_what_numpy_makes_no_array_of_is_refused_with_our_error():
    async with scenario() as dev:
        array = dev.zeros(3)
        for source in ([[1], [2, 3]], [array, array]):
            with pytest.raises(InvalidArgument):
                await dev.to_device(source)
        with pytest.raises(InvalidArgument):
            await array.copy_from([[1], [2, 3]])
        with pytest.raises(InvalidArgument):
            dev.full(3, [[1], [2, 3]])


async def test_copies_between_arrays_that_differ_are_refused_before_anything_is_sent():
    async with scenario() as dev:
        array = dev.zeros((2, 3), np.float32)
        before = dev.statistics()
        for host in (
            np.zeros((3, 2), np.float32),
            np.zeros((2, 3)),
            np.zeros(6, np.float32),
            np.zeros((2, 3), ">f4"),
            0.0,
        ):
            with pytest.raises(InvalidArgument, match="differ"):
                await array.copy_from(host)
            if isinstance(host, np.ndarray):
                with pytest.raises(InvalidArgument, match="differ"):
                    await array.copy_to(host)
        for other in (dev.zeros((3, 2), np.float32), dev.zeros((2, 3), np.float64)):
            with pytest.raises(InvalidArgument, match="differ"):
                await array.copy_from(other)
        with pytest.raises(InvalidArgument, match="read-only"):
            await array.copy_to(np.broadcast_to(np.float32(0), (2, 3)))
        for out in ([[0.0] * 3] * 2, None, array):
            with pytest.raises(InvalidArgument, match="expected a numpy array"):
                await array.copy_to(out)
        after = dev.statistics()
        assert (after.lanes, after.actors, after.generation) == (before.lanes, before.actors, 1)


@pytest.mark.sim_only
async def test_arrays_of_another_device_are_refused(monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_SIM_DEVICES", "2")
    async with scenario() as dev, open_test_device(1) as other:
        array, foreign = dev.zeros(3), other.zeros(3)
        assert foreign.device is other
        assert foreign.address != array.address
        with pytest.raises(InvalidArgument, match="of device 1, and was given to device 0"):
            await array.copy_from(foreign)


async def test_an_array_is_useless_after_its_device_was_closed():
    async with scenario() as dev:
        array = dev.zeros(3)
        await array.to_host()
    for use in (array.to_host, lambda: array.copy_from(np.zeros(3)), lambda: array.fill(0)):
        with pytest.raises(DeviceClosed):
            await use()
    with pytest.raises(DeviceClosed):
        dev.empty(3)
    array[1:].free()
    assert repr(array).startswith("<DeviceArray (3,) float64, freed")


# --- the end of an array ----------------------------------------------------------------------------------------------


async def test_a_freed_array_is_refused_and_so_are_its_views():
    async with scenario() as dev:
        array, other = dev.zeros((2, 2)), dev.zeros((2, 2))
        view = array[0]
        array.free()
        array.free()
        assert array.state == view.state == "freed"
        for use in (
            array.to_host,
            view.to_host,
            lambda: array.fill(0),
            lambda: array.copy_from(np.zeros((2, 2))),
            lambda: array.copy_to(np.zeros((2, 2))),
            lambda: array.copy_from(other),
            lambda: other.copy_from(array),
            array[0:0].to_host,
        ):
            with pytest.raises(InvalidArgument, match="freed"):
                await use()
        assert dev.generation == 1
        assert (await other.to_host()).tolist() == [[0, 0], [0, 0]]


async def test_a_with_block_frees_at_its_end_whatever_happens():
    async with scenario() as dev:
        with dev.zeros(3) as array:
            assert (await array.to_host()).tolist() == [0, 0, 0]
        assert array.state == "freed"
        with pytest.raises(ZeroDivisionError):
            with dev.zeros(3) as array:
                1 / 0
        assert array.state == "freed"
        assert dev.statistics().memory.in_use == 0


async def test_the_memory_goes_back_with_the_last_array_that_shares_it():
    async with scenario() as dev:
        array = dev.zeros(1000)
        view = array[10:20]
        used = dev.statistics().memory.in_use
        assert used >= 8000
        del array
        gc.collect()
        assert dev.statistics().memory.in_use == used
        assert (await view.to_host()).tolist() == [0] * 10
        del view
        gc.collect()
        assert dev.statistics().memory.in_use == 0


async def test_an_array_may_be_collected_in_another_thread():
    async with scenario() as dev:
        holder = [dev.zeros(1000)]
        await trio.to_thread.run_sync(holder.clear)
        gc.collect()
        assert dev.statistics().memory.in_use == 0


async def test_an_array_that_a_command_works_on_is_not_collected():
    async with scenario() as dev:
        gate = await Gate.make(dev)
        used = dev.statistics().memory.in_use
        async with trio.open_nursery() as nursery:
            await gate.hold(nursery, dev.zeros(1000, np.int32))
            gc.collect()
            assert dev.statistics().memory.in_use == used + 4096
            await gate.open()
        await until(lambda: gc.collect() is not None and dev.statistics().memory.in_use == used)


async def test_freed_memory_is_not_overwritten_before_the_work_on_it_is_done():
    async with scenario() as dev:
        gate = await Gate.make(dev)
        first = dev.zeros(1000, np.int32)
        await first.fill(0)
        async with trio.open_nursery() as nursery:
            await gate.hold(nursery, first, count=1000, value=-1)
            address = first.address
            first.free()
            second = dev.empty(1000, np.int32)
            assert second.address == address
            nursery.start_soon(second.copy_from, np.arange(1000, dtype=np.int32))
            await until(lambda: dev.statistics().lanes[1].unfinished)
            await gate.open()
        assert same(await second.to_host(), np.arange(1000, dtype=np.int32))


async def test_freed_memory_keeps_its_bytes_until_a_copy_out_of_it_is_done():
    async with scenario() as dev:
        gate = await Gate.make(dev)
        first = await dev.to_device(np.arange(1000, dtype=np.int32))
        seen = []

        async def fetch():
            seen.append(await first.to_host())

        async with trio.open_nursery() as nursery:
            await gate.hold(nursery, first)
            nursery.start_soon(fetch)
            await until(lambda: dev.statistics().lanes[2].unfinished)
            first.free()
            second = dev.zeros(1000, np.int32)
            assert second.address == first.address
            nursery.start_soon(second.fill, 7)
            await until(lambda: dev.statistics().lanes[0].unfinished > 1)
            await gate.open()
        assert same(seen[0], np.arange(1000, dtype=np.int32))
        assert (await second.to_host()).tolist() == [7] * 1000


async def cut_off(call, dev, lane):
    """Cancel a call when a command of it was sent; whether it was still waiting."""
    submitted = dev.statistics().lanes[lane].submitted
    scope = trio.CancelScope()

    async def run():
        with scope:
            await call()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await until(lambda: dev.statistics().lanes[lane].submitted > submitted)
        scope.cancel()
    return scope.cancelled_caught


# --- cancelling -------------------------------------------------------------------------------------------------------


async def test_a_caller_that_gives_up_a_copy_to_the_device_leaves_at_once():
    async with scenario() as dev:
        gate = await Gate.make(dev)
        array = await dev.to_device(np.zeros(1000, np.int32))
        async with trio.open_nursery() as nursery:
            await gate.hold(nursery, array)
            assert await cut_off(lambda: array.copy_from(np.ones(1000, np.int32)), dev, lane=1)
            assert array.state == "ready"  # one command, and it goes on
            await gate.open()
        assert (await array.to_host()).tolist() == [1] * 1000
        assert core_of(dev).part(Transfers).staging.idle


async def test_a_large_copy_that_is_cut_off_tears_the_array_until_it_is_overwritten():
    async with scenario() as dev:
        gate = await Gate.make(dev)
        # The last piece waits for a slot, and no slot comes back before the gate opens.
        host = np.ones((STREAM_SLOTS + 1) * LARGE_SLOT // 4, np.int32)
        array = await dev.to_device(host)
        async with trio.open_nursery() as nursery:
            await gate.hold(nursery, array)
            assert await cut_off(lambda: array.copy_from(host * 2), dev, lane=1)
            assert array.state == "torn"
            assert ", torn, " in repr(array[3:])
            await gate.open()
        for use in (array.to_host, array[5:6].to_host, lambda: array[:10].fill(1)):
            with pytest.raises(StaleArray, match="did not finish"):
                await use()
        assert dev.statistics().memory.torn >= array.nbytes
        await array.copy_from(host)
        assert array.state == "ready"
        assert same(await array.to_host(), host)
        assert core_of(dev).part(Transfers).staging.idle
        assert dev.statistics().memory.torn == 0


async def test_a_copy_that_never_began_tears_nothing():
    async with scenario() as dev:
        host = numbers(3 * LARGE_SLOT, np.uint8)
        array = await dev.to_device(host)
        with trio.CancelScope() as scope:
            scope.cancel()
            await array.copy_from(np.zeros_like(host))
        assert scope.cancelled_caught
        assert array.state == "ready"
        assert same(await array.to_host(), host)
        assert core_of(dev).part(Transfers).staging.idle


async def test_a_device_copy_of_several_commands_that_is_cut_off_tears_the_target():
    async with scenario() as dev:
        gate = await Gate.make(dev)
        source, target = await dev.to_device(np.arange(100)), dev.zeros(100, np.int64)
        await target.fill(-1)
        async with trio.open_nursery() as nursery:
            await gate.hold(nursery, target)
            assert await cut_off(lambda: target.copy_from(source[::-1]), dev, lane=0)
            assert target.state == "torn"
            assert source.state == "ready"
            await gate.open()
        await target.fill(3)
        assert (await target.to_host()).tolist() == [3] * 100


async def test_cancelled_copies_to_the_host_give_their_slots_back():
    async with scenario() as dev:
        gate = await Gate.make(dev)
        small, large = dev.zeros(1000, np.int32), dev.zeros(2 * LARGE_SLOTS * LARGE_SLOT // 4, np.int32)
        out = np.full(1000, 9, np.int32)
        async with trio.open_nursery() as nursery:
            await gate.hold(nursery, small)
            async with trio.open_nursery() as callers:
                for _ in range(SMALL_SLOTS // 2):
                    callers.start_soon(small.copy_to, out)
                await until(lambda: dev.statistics().lanes[2].unfinished == SMALL_SLOTS // 2)
                callers.start_soon(large.to_host)
                await until(
                    lambda: (
                        not core_of(dev).part(Transfers).staging.has_free(LARGE_SLOT)
                        or dev.statistics().lanes[2].unfinished > 32
                    )
                )
                callers.cancel_scope.cancel()
            assert not core_of(dev).part(Transfers).staging.idle
            await gate.open()
        await until(lambda: core_of(dev).part(Transfers).staging.idle)
        assert out.tolist() == [9] * 1000  # host memory is written by its own task alone
        assert not (await large.to_host()).any()
        assert (await small.to_host()).tolist() == [0] * 1000


async def test_work_on_one_array_does_not_hold_up_copies_of_another():
    async with scenario() as dev:
        gate = await Gate.make(dev)
        held, free = dev.zeros(10, np.int32), await dev.to_device(np.arange(10))
        async with trio.open_nursery() as nursery:
            await gate.hold(nursery, held)
            with trio.fail_after(10):
                assert (await free.to_host()).tolist() == list(range(10))
                await free.copy_from(np.zeros(10, np.int64))
                assert (await (await dev.to_device(np.ones(3))).to_host()).tolist() == [1, 1, 1]
            await gate.open()


# --- what it says of itself -------------------------------------------------------------------------------------------


async def test_the_repr_says_everything():
    async with scenario() as dev:
        array = dev.zeros((2, 3), np.float16)
        assert repr(array) == "<DeviceArray (2, 3) float16, ready, on device 0, generation 1>"
        assert repr(array[0, 0]) == "<DeviceArray () float16, ready, on device 0, generation 1>"
        array._block.torn = "a test"
        assert repr(array) == "<DeviceArray (2, 3) float16, torn, on device 0, generation 1>"
        array._block.lost = "a test"
        assert repr(array) == "<DeviceArray (2, 3) float16, lost, on device 0, generation 1>"
        array.free()
        assert repr(array) == "<DeviceArray (2, 3) float16, freed, on device 0, generation 1>"
        assert (array.device, array.generation) == (dev, 1)


async def test_statistics_count_bytes_by_state():
    async with scenario(memory_limit=256 * MIB) as dev:
        assert dev.statistics().memory.limit == 256 * MIB
        array = dev.zeros(MIB, np.uint8)
        memory = dev.statistics().memory
        assert memory.in_use == MIB
        assert memory.reserved == memory.in_use + memory.cached == 64 * MIB
        await array.to_host()
        array.free()
        memory = dev.statistics().memory
        assert (memory.in_use, memory.cached, memory.torn, memory.lost) == (0, 64 * MIB, 0, 0)


# --- no memory left ---------------------------------------------------------------------------------------------------


async def test_the_budget_is_refused_at_once_and_freed_memory_can_be_used_again():
    async with scenario(memory_limit=64 * MIB) as dev:
        kept = dev.full(MIB, 3, np.uint8)
        large = dev.empty(60 * MIB, np.uint8)
        for make in (lambda: dev.empty(10 * MIB, np.uint8), lambda: dev.zeros(2**60), lambda: dev.full(2**50, 1)):
            with pytest.raises(OutOfDeviceMemory, match="do not fit") as refused:
                make()
        assert isinstance(refused.value, MemoryError)
        assert "memory_limit" in str(refused.value)
        with pytest.raises(OutOfDeviceMemory):
            await dev.to_device(np.zeros(10 * MIB, np.uint8))
        await large.fill(1)
        large.free()
        again = dev.zeros(60 * MIB, np.uint8)
        assert again.address == large.address
        assert not (await again[-10:].to_host()).any()
        assert (await kept[:3].to_host()).tolist() == [3, 3, 3]
        assert dev.generation == 1


async def test_unused_chunks_are_released_for_an_array_that_none_of_them_holds():
    async with scenario(memory_limit=200 * MIB) as dev:
        kept = dev.empty(512, np.uint8)
        small, large = dev.empty(64 * MIB, np.uint8), dev.empty(10 * MIB, np.uint8)
        await kept.fill(5)
        for array in (small, large):
            await array.fill(1)
            array.free()
        whole = dev.zeros(130 * MIB, np.uint8)
        assert not (await whole[-1000:].to_host()).any()
        assert (await kept.to_host()).tolist() == [5] * 512
        assert dev.statistics().memory.reserved <= 200 * MIB


@pytest.mark.sim_only
async def test_a_chunk_that_cannot_be_made_fails_the_first_use_and_nothing_else(monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_SIM_FAULTS", "cuMemCreate:2:2,cuMemCreate:2:3")
    async with scenario() as dev:
        kept = await dev.to_device(np.arange(10))
        array = dev.full(64 * MIB, 7, np.uint8)
        with pytest.raises(OutOfDeviceMemory) as failed:
            await array[:10].to_host()
        assert failed.value.status == 2
        assert failed.value.generation == 1
        assert (await kept.to_host()).tolist() == list(range(10))
        assert (await array[-10:].to_host()).tolist() == [7] * 10  # the recipe was not lost
        assert dev.generation == 1


@pytest.mark.sim_only
async def test_everything_that_waits_for_a_chunk_that_cannot_be_made_fails_alike(monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_SIM_FAULTS", "cuMemCreate:2:1,cuMemCreate:2:2")
    async with scenario() as dev:
        array, other = dev.zeros(100), dev.empty(100)
        failures = []

        async def use(call):
            try:
                await call()
            except OutOfDeviceMemory as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for call in (array.to_host, lambda: array.copy_from(np.ones(100)), lambda: other.fill(1), array.to_host):
                nursery.start_soon(use, call)
        assert failures
        assert len(set(map(id, failures))) == len(failures)
        assert array.state == "ready"
        assert set((await array.to_host()).tolist()) <= {0.0, 1.0}
        assert dev.generation == 1


@pytest.mark.sim_only
async def test_a_failed_overwrite_leaves_an_array_of_zeros_what_it_was(monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_SIM_FAULTS", "cuMemcpyHtoDAsync:1:1")
    async with scenario() as dev:
        dirty = dev.empty(100, np.int32)
        await dirty.fill(9)
        dirty.free()
        array = dev.zeros(100, np.int32)
        with pytest.raises(CommandFailed):
            await array.copy_from(np.ones(100, np.int32))
        assert (await array.to_host()).tolist() == [0] * 100


@pytest.mark.sim_only
async def test_a_fill_of_zeros_that_fails_fails_what_needs_it(monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_SIM_FAULTS", "cuMemsetD32Async:1:2")
    async with scenario() as dev:
        dirty = dev.empty(100, np.int32)
        await dirty.fill(9)
        dirty.free()
        array = dev.zeros(100, np.int32)
        with pytest.raises(CommandFailed):
            await array.to_host()
        assert (await array.to_host()).tolist() == [0] * 100


@pytest.mark.sim_only
async def test_a_torn_array_stays_torn_when_the_overwrite_fails(monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_SIM_FAULTS", "cuMemcpyHtoDAsync:1:1")
    async with scenario() as dev:
        array = dev.empty(10)
        await array.fill(1)
        array._block.torn = "a test"
        with pytest.raises(CommandFailed):
            await array.copy_from(np.zeros(10))
        assert array.state == "torn"
        await array.copy_from(np.zeros(10))
        assert array.state == "ready"


@pytest.mark.sim_only
async def test_when_the_gpu_itself_is_full_cached_memory_is_released_and_small_arrays_still_fit(monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_SIM_MEMORY", str(160 * MIB))
    async with scenario(memory_limit=1 << 40) as dev:
        first = dev.zeros(60 * MIB, np.uint8)
        await first[:1].to_host()
        second = dev.zeros(20 * MIB, np.uint8)  # in a chunk of 128 MiB, which the GPU does not have
        with pytest.raises(OutOfDeviceMemory):
            await second[:1].to_host()
        assert (await second[-5:].to_host()).tolist() == [0] * 5  # planned anew, no larger than needed
        too_large = dev.zeros(100 * MIB, np.uint8)
        with pytest.raises(OutOfDeviceMemory):
            await too_large[:1].to_host()
        first.free()
        # The chunk of `first` is cached; now it is released, and the array fits.
        assert (await too_large[-5:].to_host()).tolist() == [0] * 5
        assert (await second[:5].to_host()).tolist() == [0] * 5
        assert dev.generation == 1


@pytest.mark.sim_only
async def test_a_bug_in_the_worker_costs_one_request(monkeypatch):
    async with scenario() as dev:
        array = dev.zeros(3)
        await array.to_host()
        with monkeypatch.context() as patch:
            patch.setattr("atomr_trio._transfers.memory.FILL.struct", struct.Struct("<QQQQQ8s"))
            with pytest.raises(ActorCrashed):
                await array.fill(1)
        assert (await array.to_host()).tolist() == [0, 0, 0]
        assert dev.generation == 1


# --- side by side -----------------------------------------------------------------------------------------------------


async def test_reading_does_not_keep_other_readers_waiting():
    async with scenario() as dev:
        source = r'extern "C" __global__ void take(const int *from, int *to) { to[0] = from[0]; }'
        take = await dev.nvrtc.compile(source, "take")
        gate = await Gate.make(dev)
        shared, target = await dev.to_device(np.array([5], np.int32)), dev.zeros(1, np.int32)
        held = dev.zeros(1, np.int32)
        async with trio.open_nursery() as nursery:
            await gate.hold(nursery, held)
            nursery.start_soon(lambda: take.launch(1, 1, read_only(shared), target))
            await until(lambda: dev.statistics().lanes[0].unfinished >= 2)
            with trio.fail_after(10):
                assert (await shared.to_host()).tolist() == [5]  # the queued kernel reads it too
            await gate.open()
        assert (await target.to_host()).tolist() == [5]


async def test_every_error_is_a_device_error():
    for error in (InvalidArgument, OutOfDeviceMemory, StaleArray, CommandFailed):
        assert issubclass(error, DeviceError)
    assert chosen_backend() in ("sim", "cuda")
