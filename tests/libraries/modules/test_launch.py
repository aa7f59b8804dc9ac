"""Launching a kernel: what is refused before anything is sent, and that what is sent is what the kernel sees."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import attrs
import numpy as np
import pytest
import trio

import atomr_trio
from atomr_trio import (
    AtomrInternalError,
    CommandFailed,
    DeviceClosed,
    InvalidArgument,
    StaleArray,
    overwrites,
    read_only,
)
from atomr_trio._compiling.compiler import compile_program
from atomr_trio._device.device import core_of
from atomr_trio._wire.protocol import Role
from atomr_trio.libraries.modules.module import load_program
from support.rogue import endless_kernel, until

pytestmark = pytest.mark.used_workers

SOURCE = r"""
typedef unsigned char u8;
typedef unsigned long long u64;

extern "C" __global__ void nothing() { }

extern "C" __global__ void add(float *x, float a, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += a;
}

// Where each thread is, written at a place that only it has.
extern "C" __global__ void where(int *out)
{
    int width = gridDim.x * blockDim.x, height = gridDim.y * blockDim.y;
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    int z = blockIdx.z * blockDim.z + threadIdx.z;
    out[(z * height + y) * width + x] += x + 1000 * y + 1000000 * z;
}

struct Point { char tag; double x; short y[3]; };

extern "C" __global__ void scalars(double *floats, long long *ints, u8 *bytes, bool flag, signed char small,
    unsigned short middle, int whole, unsigned int natural, long long large, u64 huge, float single, double twice,
    struct Point point)
{
    floats[0] = single; floats[1] = twice; floats[2] = point.x;
    ints[0] = flag; ints[1] = small; ints[2] = middle; ints[3] = whole; ints[4] = natural; ints[5] = large;
    ints[6] = (long long)huge; ints[7] = point.tag; ints[8] = point.y[0]; ints[9] = point.y[1]; ints[10] = point.y[2];
    bytes[0] = flag;
}

struct __align__(2) __half { unsigned short bits; };
extern "C" __global__ void halves(unsigned short *out, __half h) { out[0] = h.bits; }

extern "C" __global__ void complexes(float2 *out, float2 z, double2 w)
{
    out[0] = z; out[1] = make_float2((float)w.x, (float)w.y);
}

extern "C" __global__ void reverse(int *x)
{
    extern __shared__ int shared[];
    shared[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void sum(int *out, int count)
{
    extern __shared__ int shared[];
    for (int i = threadIdx.x; i < count; i += blockDim.x) shared[i] = i;
    __syncthreads();
    if (threadIdx.x == 0) { int s = 0; for (int i = 0; i < count; i++) s += shared[i] == i; out[0] = s; }
}

struct Lists { int *left; int *right; };
extern "C" __global__ void through(struct Lists lists) { lists.right[threadIdx.x] = lists.left[threadIdx.x] + 1; }

extern "C" __global__ void through_pointers(u64 *pointers) { ((int *)pointers[0])[threadIdx.x] += 1; }

extern "C" __global__ void __launch_bounds__(64) at_most_64() { }

extern "C" __global__ void copy(const int *from, int *to) { to[threadIdx.x] = from[threadIdx.x]; }
"""


async def compiled(dev: Any, *names: str) -> Any:
    kernels = [await dev.nvrtc.compile(SOURCE, name) for name in names]
    return kernels if len(kernels) > 1 else kernels[0]


def settled(dev: Any) -> int:
    """How many requests the module actor has been given so far."""
    return next(actor.accepted for actor in dev.statistics().actors if actor.name == "module")


# --- bad input --------------------------------------------------------------------------------------------------------

BAD_DIMENSIONS: tuple[Any, ...] = (
    *(math.nan, 1.0, 2.5, math.inf, np.float32(1), "1", "abc", None, {1}, object()),
    *((1, 2, 3, 4), (), (1, 2.0), (1, "2"), (1, None), [[1]], (math.nan, 1), range(0)),
    *(0, -1, (1, 0), (1, 1, -1), (0,), 2**31, 2**64, 10**5000, (1, 65536), (1, 1, 65536)),
    *(np.array([1, 2]), iter([1])),
)


async def test_a_bad_grid_or_block_is_refused_before_anything_is_sent(dev):
    nothing = await compiled(dev, "nothing")
    before = settled(dev)
    for bad in BAD_DIMENSIONS:
        for grid, block, word in ((bad, 1, "grid"), (1, bad, "block")):
            with pytest.raises(InvalidArgument, match=word):
                await nothing.launch(grid, block)
            with pytest.raises(InvalidArgument, match=word):
                nothing.launch_nowait(grid, block)
    assert settled(dev) == before
    assert dev.generation == 1
    await nothing.launch(1, 1)


async def test_what_is_refused_names_the_limit_of_the_device(dev):
    nothing, bounded = await compiled(dev, "nothing", "at_most_64")
    info = dev.info
    for axis, limit in enumerate(info.max_grid):
        grid = [1, 1, 1]
        grid[axis] = limit + 1
        with pytest.raises(InvalidArgument, match=rf"grid\.{'xyz'[axis]} is {limit + 1}.* 1 to {limit} blocks"):
            await nothing.launch(tuple(grid), 1)
    for axis, limit in enumerate(info.max_block):
        block = [1, 1, 1]
        block[axis] = limit + 1
        with pytest.raises(InvalidArgument, match=rf"block\.{'xyz'[axis]} is {limit + 1}.* 1 to {limit} threads"):
            await nothing.launch(1, tuple(block))
    too_many = (32, info.max_threads_per_block // 32, 2)
    most = info.max_threads_per_block
    with pytest.raises(InvalidArgument, match=rf"{2 * most} threads.* at most {most}"):
        await nothing.launch(1, too_many)
    assert bounded.attributes.max_threads_per_block == 64
    with pytest.raises(InvalidArgument, match=r"65 threads.*at_most_64.*at most 64"):
        await bounded.launch(1, 65)
    await bounded.launch(1, 64)
    await nothing.launch(1, (32, info.max_threads_per_block // 32, 1))


async def test_bad_shared_bytes_are_refused_before_anything_is_sent(dev):
    nothing = await compiled(dev, "nothing")
    before = settled(dev)
    for bad in (-1, 1.0, math.nan, "1", None, True, dev.info.max_shared_bytes + 1, 2**40, 10**5000, (1,)):
        with pytest.raises(InvalidArgument, match="shared_bytes"):
            await nothing.launch(1, 1, shared_bytes=bad)
    assert settled(dev) == before
    for good in (0, dev.info.max_shared_bytes, np.int64(1024), np.array(16)):
        await nothing.launch(1, 1, shared_bytes=good)


async def test_wrong_arguments_are_refused_before_anything_is_sent(dev):
    add, nothing, where = await compiled(dev, "add", "nothing", "where")
    x = dev.zeros(8, np.float32)
    freed = dev.zeros(8, np.float32)
    view = freed[2:]
    freed.free()
    host = np.zeros(8, np.float32)
    before = settled(dev)
    cases = [
        ((), "3 arguments, got 0"),
        ((x, 1.0), "3 arguments, got 2"),
        ((x, 1.0, 8, 9), "3 arguments, got 4"),
        ((host, 1.0, 8), "to_device"),
        ((x, 1.0, host), "numpy"),
        ((x, x, 8), "pointer"),
        ((x, 1.0, x), "pointer"),
        ((x, 1.0, read_only(x)), "pointer"),
        ((1.5, 1.0, 8), "argument 0"),
        ((None, 1.0, 8), "null pointer is the integer 0"),
        (("x", 1.0, 8), "argument 0"),
        (([x], 1.0, 8), "argument 0"),
        ((x, "1", 8), "argument 1"),
        ((x, 1j, 8), "argument 1"),
        ((x, None, 8), "argument 1"),
        ((x, np.float64(1), 8), "8 bytes"),
        ((x, 1e300, 8), "does not fit"),
        ((x, 2**24 + 1, 8), "exactly"),
        ((x, 1.0, 8.0), "int"),
        ((x, 1.0, 2**32), "outside"),
        ((x, 1.0, -(2**31) - 1), "outside"),
        ((x, 1.0, np.int64(2**40)), "outside"),
        ((x, 1.0, 10**5000), "outside"),
        ((x, 10**5000, 8), "exactly"),
        ((x, 1.0, math.nan), "argument 2"),
        ((2**64, 1.0, 8), "outside"),
        ((-(2**63) - 1, 1.0, 8), "outside"),
        ((freed, 1.0, 8), "freed"),
        ((view, 1.0, 8), "freed"),
        ((read_only(freed), 1.0, 8), "freed"),
    ]
    for arguments, words in cases:
        with pytest.raises(InvalidArgument, match=words):
            await add.launch(1, 8, *arguments)
        with pytest.raises(InvalidArgument, match=words):
            add.launch_nowait(1, 8, *arguments)
    with pytest.raises(InvalidArgument, match="0 arguments, got 1"):
        await nothing.launch(1, 1, x)
    with pytest.raises(InvalidArgument, match="1 argument, got 0"):
        await where.launch(1, 1)
    assert settled(dev) == before
    assert dev.generation == 1
    await add.launch(1, 8, x, 1.5, 8)
    assert (await x.to_host() == 1.5).all()


async def test_bad_touches_are_refused_before_anything_is_sent(dev):
    nothing = await compiled(dev, "nothing")
    x, freed = dev.zeros(4, np.int32), dev.zeros(4, np.int32)
    freed.free()
    before = settled(dev)
    for bad in ((np.zeros(4),), (1,), ("x",), (None,), None, 1, x, read_only(x), (freed,), [x, 2]):
        with pytest.raises(InvalidArgument):
            await nothing.launch(1, 1, touches=bad)
    for mark in (read_only, overwrites):
        for bad in (np.zeros(4), 3, None):
            with pytest.raises(InvalidArgument, match="device array"):
                mark(bad)
    assert settled(dev) == before
    await nothing.launch(1, 1, touches=(x,))


async def test_arrays_and_kernels_of_another_device_are_refused(open_test_device):
    async with open_test_device() as one, open_test_device() as two:
        add = await compiled(one, "add")
        theirs = two.zeros(8, np.float32)
        for argument in (theirs, read_only(theirs), overwrites(theirs), theirs[2:]):
            with pytest.raises(InvalidArgument, match="another device"):
                await add.launch(1, 8, argument, 1.0, 8)
        with pytest.raises(InvalidArgument, match="another device"):
            await add.launch(1, 8, one.zeros(8, np.float32), 1.0, 8, touches=(theirs,))
        assert settled(two) == 0


async def test_a_kernel_of_a_closed_device_says_so(open_test_device):
    async with open_test_device() as device:
        nothing = await compiled(device, "nothing")
    with pytest.raises(DeviceClosed):
        await nothing.launch(1, 1)
    with pytest.raises(DeviceClosed):
        nothing.launch_nowait(1, 1)


async def test_an_array_freed_while_its_launch_was_queued_fails_that_launch_alone(dev):
    add = await compiled(dev, "add")
    x, y = dev.zeros(8, np.float32), dev.zeros(8, np.float32)
    failures = []

    async def launch() -> None:
        try:
            await add.launch(1, 8, x, 1.0, 8)
        except InvalidArgument as error:
            failures.append(error)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(launch)
            await trio.lowlevel.cancel_shielded_checkpoint()
            x.free()
        await add.launch(1, 8, y, 1.0, 8)
        assert (await y.to_host() == 1).all()
    assert len(failures) <= 1, "it may have been started before"
    assert dev.generation == 1


# --- grids ------------------------------------------------------------------------------------------------------------


async def test_grids_of_one_two_and_three_dimensions_reach_every_index_once(dev):
    where = await compiled(dev, "where")
    shapes: list[tuple[Any, Any]] = [
        (5, 7),
        ((5,), [7]),
        ((3, 2), (4, 5)),
        ((2, 3, 2), (3, 2, 4)),
        (np.int64(4), (np.uint8(3), 2)),
        ((1, 1, 3), (1, 1, 5)),
    ]
    for grid, block in shapes:
        blocks, threads = ((*np.atleast_1d(np.array(size)).tolist(), 1, 1)[:3] for size in (grid, block))
        width, height, depth = (count * size for count, size in zip(blocks, threads, strict=True))
        out = dev.zeros((depth, height, width), np.int32)
        await where.launch(grid, block, out)
        z, y, x = np.indices((depth, height, width))
        assert (await out.to_host() == x + 1000 * y + 1000000 * z).all(), (grid, block)


# --- parameters -------------------------------------------------------------------------------------------------------


class Point(ctypes.Structure):
    _fields_ = (("tag", ctypes.c_byte), ("x", ctypes.c_double), ("y", ctypes.c_short * 3))


POINT = np.dtype([("tag", "i1"), ("x", "f8"), ("y", "i2", 3)], align=True)


async def test_scalars_of_every_kind_reach_the_kernel_unchanged(dev):
    scalars = await compiled(dev, "scalars")
    points = (
        np.array((-5, 0.1, (1, -2, 32767)), POINT)[()],
        Point(-5, 0.1, (ctypes.c_short * 3)(1, -2, 32767)),
        np.array((-5, 0.1, (1, -2, 32767)), POINT).tobytes(),
    )
    # flag, small, middle, whole, natural, large, huge, single, twice
    rows: list[tuple[Any, ...]] = [
        (True, -128, 65535, -(2**31), 2**32 - 1, -(2**63), 2**64 - 1, 0.1, 0.1),
        (False, 127, 0, 2**31 - 1, 0, 2**63 - 1, 0, -math.inf, 5e-324),
        (np.True_, np.int8(-7), np.uint16(9), np.int32(-1), np.uint32(1), np.int64(-1), np.uint64(2**63), 2, 3),
        (1, 5, np.uint8(200), np.int8(-3), np.uint8(3), True, np.int32(7), np.float32(0.1), np.float32(0.1)),
        (0, np.int64(-128), 1, np.int64(-5), 1, np.int8(-1), 1, np.float16(0.1), np.float64(1e300)),
    ]
    for number, row in enumerate(rows):
        point = points[number % len(points)]
        floats, ints, flag = dev.zeros(3, np.float64), dev.zeros(11, np.int64), dev.full(4, 255, np.uint8)
        await scalars.launch(1, 1, floats, ints, flag, *row[:7], *row[7:], point)
        expected = [int(value) for value in row[:6]] + [int(np.uint64(int(row[6])).astype(np.int64)), -5, 1, -2, 32767]
        assert (await ints.to_host()).tolist() == expected, row
        assert (await floats.to_host()).tolist() == [float(np.float32(row[7])), float(row[8]), 0.1], row
        assert (await flag.to_host()).tolist() == [int(row[0]), 255, 255, 255]


async def test_nan_and_infinity_are_values_that_a_float_parameter_takes(dev):
    add = await compiled(dev, "add")
    x = dev.zeros(3, np.float32)
    await add.launch(1, 3, x, math.inf, 3)
    assert (await x.to_host() == math.inf).all()
    await add.launch(1, 3, x, math.nan, 3)
    assert np.isnan(await x.to_host()).all()


async def test_halves_and_complex_numbers_reach_the_kernel_bit_for_bit(dev):
    halves, complexes = await compiled(dev, "halves", "complexes")
    bits = dev.zeros(1, np.uint16)
    for value in (np.float16(1.5), np.float16(-0.1), np.float16(np.inf), np.uint16(0x1234).tobytes()):
        await halves.launch(1, 1, bits, value)
        assert (await bits.to_host()).tobytes() == (value if isinstance(value, bytes) else value.tobytes())
    z = dev.zeros(2, np.complex64)
    await complexes.launch(1, 1, z, np.complex64(1 - 2j), 3 + 4j)
    assert (await z.to_host()).tolist() == [1 - 2j, 3 + 4j]
    with pytest.raises(InvalidArgument, match="complex64"):
        await complexes.launch(1, 1, z, 1 - 2j, 3 + 4j)


async def test_a_view_is_passed_as_the_address_of_its_first_element(dev):
    add = await compiled(dev, "add")
    x = dev.zeros(10, np.float32)
    await add.launch(1, 3, x[4:7], 1.0, 3)
    await add.launch(1, 2, x.address, 5.0, 2)
    assert (await x.to_host()).tolist() == [5, 5, 0, 0, 1, 1, 1, 0, 0, 0]


# --- shared memory ----------------------------------------------------------------------------------------------------


async def test_dynamic_shared_memory_is_there_also_beyond_the_default_of_48_kib(dev):
    reverse, total = await compiled(dev, "reverse", "sum")
    x = await dev.to_device(np.arange(256, dtype=np.int32))
    await reverse.launch(1, 256, x, shared_bytes=1024)
    assert (await x.to_host() == np.arange(256)[::-1]).all()
    out = dev.zeros(1, np.int32)
    for count in (100, dev.info.max_shared_bytes // 4, 12 * 1024, dev.info.max_shared_bytes // 4):
        await total.launch(1, 128, out, count, shared_bytes=4 * count)
        assert await out.to_host() == count


# --- arrays behind pointers, and marks --------------------------------------------------------------------------------


async def test_touches_orders_a_launch_with_arrays_it_reaches_through_other_memory(dev):
    through, pointers_kernel = await compiled(dev, "through", "through_pointers")
    left, right = await dev.to_device(np.arange(32, dtype=np.int32)), dev.zeros(32, np.int32)
    await left.to_host()
    await right.to_host()
    pointers = await dev.to_device(np.array([right.address], np.uint64))
    lists = np.array([left.address, right.address], np.uint64).tobytes()
    with trio.fail_after(30):
        async with endless_kernel(dev) as kernel:
            through.launch_nowait(1, 32, lists, touches=[read_only(left), overwrites(right)])
            pointers_kernel.launch_nowait(1, 32, read_only(pointers), touches=iter((right,)))
            before = dev.statistics().lanes[0].submitted
            result: list[Any] = []

            async def read() -> None:
                result.append(await right.to_host())

            async with trio.open_nursery() as nursery:
                await until(lambda: dev.statistics().lanes[0].submitted >= max(before, 3))
                assert (await left.to_host() == np.arange(32)).all(), "only read, so a copy of it goes on beside"
                nursery.start_soon(read)
                await until(lambda: dev.statistics().lanes[2].unfinished)
                assert result == []
                await kernel.end()
        assert (result[0] == np.arange(32) + 2).all()


async def test_what_touches_names_is_kept_while_the_launch_is_queued(dev):
    """Also when it is an iterator: nobody else holds the arrays, and their memory must not go to others meanwhile."""
    through = await compiled(dev, "through")
    left = await dev.to_device(np.arange(32, dtype=np.int32))

    def only_here() -> Any:
        return dev.zeros(32, np.int32)

    right = only_here()
    lists = np.array([left.address, right.address], np.uint64).tobytes()
    through.launch_nowait(1, 32, lists, touches=(each for each in [read_only(left), right]))
    del right
    # If it was freed while queued, the launch is refused and the count of failed requests goes up.
    await left.to_host()
    await until(lambda: dev.statistics().lanes[0].unfinished == 0)
    counts = next(actor for actor in dev.statistics().actors if actor.name == "module").settled
    assert counts["failed"] == 0


async def test_zeros_given_to_a_kernel_are_zeros_and_overwritten_arrays_may_be_unset(dev):
    copy = await compiled(dev, "copy")
    source, target = dev.full(32, 7, np.int32), dev.empty(32, np.int32)
    await copy.launch(1, 32, read_only(source), overwrites(target))
    assert (await target.to_host() == 7).all()
    # Overwriting a part is no overwriting: the rest must keep its zeros.
    target = dev.zeros(64, np.int32)
    await copy.launch(1, 32, read_only(source), overwrites(target[32:]))
    assert (await target.to_host()).tolist() == [0] * 32 + [7] * 32


# --- launching without waiting ----------------------------------------------------------------------------------------


async def test_launch_nowait_is_ordered_before_what_follows_on_its_arrays(dev):
    add = await compiled(dev, "add")
    x = dev.zeros(100, np.float32)
    for _ in range(50):
        add.launch_nowait(1, 128, x, 1.0, 100)
    assert (await x.to_host() == 50).all()


async def test_launch_nowait_raises_wouldblock_when_the_lane_is_full_and_loses_nothing(dev):
    add = await compiled(dev, "add")
    x = dev.zeros(4, np.float32)
    with trio.fail_after(30):
        async with endless_kernel(dev) as kernel:
            accepted = launch_until_full(add, x)
            assert 1 <= accepted <= 512
            await kernel.end()
        await add.launch(1, 4, x, 1.0, 4)
        assert (await x.to_host() == accepted + 1).all()


def launch_until_full(add: Any, x: Any) -> int:
    for accepted in range(10_000):
        try:
            add.launch_nowait(1, 4, x, 1.0, 4)
        except trio.WouldBlock:
            return accepted
    raise AssertionError("a lane took ten thousand launches")


async def test_launch_nowait_refuses_a_torn_array_at_once(dev):
    add = await compiled(dev, "add")
    x = dev.zeros(4, np.float32)
    await x.to_host()
    x._block.torn = "a command of a test"
    with pytest.raises(StaleArray, match="a command of a test"):
        add.launch_nowait(1, 4, x, 1.0, 4)
    counts = next(actor for actor in dev.statistics().actors if actor.name == "module")
    assert counts.unsettled == 0
    await x.fill(1)
    add.launch_nowait(1, 4, x, 1.0, 4)
    assert (await x.to_host() == 2).all()


@pytest.mark.sim_only
async def test_a_launch_that_the_driver_refuses_fails_alone(open_test_device, monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_SIM_FAULTS", "cuLaunchKernelEx:701:2")
    async with open_test_device() as device:
        add = await compiled(device, "add")
        x = device.zeros(4, np.float32)
        await add.launch(1, 4, x, 1.0, 4)
        with pytest.raises(CommandFailed) as caught:
            await add.launch(1, 4, x, 1.0, 4)
        assert caught.value.status == 701
        assert caught.value.operation == "launch of add"
        assert (await x.to_host() == 1).all()
        await add.launch(1, 4, x, 1.0, 4)
        assert (await x.to_host() == 2).all()
        assert device.generation == 1


async def test_concurrent_launches_all_take_effect(dev):
    add = await compiled(dev, "add")
    x = dev.zeros(16, np.float32)
    async with trio.open_nursery() as nursery:
        for _ in range(300):
            nursery.start_soon(add.launch, 1, 16, x, 1.0, 16)
    assert (await x.to_host() == 300).all()


async def test_a_kernel_says_what_it_is(dev):
    add, reverse = await compiled(dev, "add", "reverse")
    assert repr(add) == f"<Kernel {add.signature.described('add')}, {add.module.target}>"
    assert add.signature.described("add") == "add(float *x, float a, int n)"
    assert [parameter.type_name for parameter in add.parameters][1:] == [".f32", ".u32"]
    assert add.attributes.static_shared_bytes == 0
    assert add.attributes.max_threads_per_block == dev.info.max_threads_per_block
    assert ".entry add" in add.ptx
    assert (add.cubin is None) == (dev.backend == "sim")
    assert add.log == ""
    assert reverse.attributes.registers > 0
    assert reverse.attributes.local_bytes == 0
    assert repr(add.module).startswith(f"<Program 'module {add.module._number}', ")
    x = dev.empty(3)
    assert repr(read_only(x)) == f"<{Role.READ.value} {x!r}>"
    assert repr(overwrites(x)) == f"<{Role.OVERWRITE.value} {x!r}>"
    with pytest.raises(TypeError, match="no public constructor"):
        atomr_trio.Kernel()


async def test_a_driver_that_sees_other_parameters_than_the_ptx_is_not_trusted(dev):
    program = compile_program(SOURCE, atomr_trio.NvrtcOptions(), "compute_80")
    wrong = {name: attrs.evolve(each, parameters=each.parameters[1:]) for name, each in program.entries.items()}
    with pytest.raises(AtomrInternalError, match=r"lays the parameters of \w+ out"):
        await load_program(core_of(dev), attrs.evolve(program, entries=wrong))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((SOURCE, ""), "a string that is not empty"),
        ((SOURCE, b"add"), "a string that is not empty"),
        ((SOURCE, "add", {"arch": "compute_80"}), "options is an NvrtcOptions, not dict"),
        ((SOURCE, "add", ("-DN=4",)), r"not tuple.*\s.*NvrtcOptions\(defines=\{\"N\": 4\}, cpp_std=17\)"),
        ((b"", "add"), "has to be a string"),
    ],
)
async def test_what_cannot_be_compiled_is_refused_at_once(dev, arguments, says):
    with pytest.raises(InvalidArgument, match=says):
        await dev.nvrtc.compile(*arguments)
    assert sum(actor.accepted for actor in dev.statistics().actors) == 0
