"""`Devices.pick` and `reserve` on open devices: what they know, what they keep, what they refuse."""

from __future__ import annotations

import re

import numpy as np
import pytest
import trio

import atomr_trio
from atomr_trio import InvalidArgument, LeastLoaded, MostFree, OutOfDeviceMemory, OutsideRun, RoundRobin
from atomr_trio._device.device import core_of
from support import open_test_device, open_test_devices

MIB = 1 << 20


@pytest.fixture(autouse=True)
def several(monkeypatch):
    """The simulator has four devices."""
    monkeypatch.setenv("ATOMR_TRIO_SIM_DEVICES", "4")


async def test_devices_are_picked_in_turn():
    async with open_test_devices([1, 0]) as devices:
        assert [devices.pick(RoundRobin()).index for _ in range(3)] == [1, 0, 1]
        assert [devices.pick().index for _ in range(2)] == [0, 1]


async def test_the_device_with_the_most_free_memory_is_picked():
    async with open_test_devices([0, 1], memory_limit=64 * MIB) as devices:
        array = devices[0].zeros(10 * MIB, np.uint8)
        assert [devices.pick(MostFree()).index for _ in range(2)] == [1, 1]
        devices[1].zeros(20 * MIB, np.uint8)
        kept = devices[1].empty(12 * MIB, np.uint8)
        assert devices.pick(MostFree()) is devices[0]
        array.free()
        kept.free()
        assert devices.pick(min_free_bytes=60 * MIB, near=array) is devices[0]


async def test_the_device_with_the_least_to_do_is_picked():
    async with open_test_devices([0, 1]) as devices:
        kernel = await devices[0].nvrtc.compile(
            'extern "C" __global__ void wait(unsigned long long flag) { while (*(volatile int *)flag == 0) { } }',
            "wait",
        )
        flag = await devices[0].to_device(np.zeros(1, np.int32))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kernel.launch, 1, 1, flag.address)
            with trio.fail_after(60):
                while not devices[0].statistics().lanes[0].unfinished:  # noqa: ASYNC110 (another process)
                    await trio.sleep(0.002)
            assert [devices.pick(LeastLoaded()).index for _ in range(3)] == [1, 1, 1]
            await flag.copy_from(np.ones(1, np.int32))


async def test_near_an_array_is_its_device():
    async with open_test_devices([0, 1]) as devices, open_test_device(0) as apart:
        array = devices[1].zeros(4)
        assert [devices.pick(near=array).index for _ in range(2)] == [1, 1]
        assert devices.pick(near=array[1:3]) is devices[1]
        assert devices.pick(near=devices[0]) is devices[0]
        for stranger in (apart.zeros(3), apart, np.zeros(3), 0):
            with pytest.raises(InvalidArgument, match="near is an array or a device of devices 0, 1"):
                devices.pick(near=stranger)


async def test_a_device_that_is_being_rebuilt_is_picked_only_if_there_is_no_other():
    with trio.fail_after(60):
        async with open_test_devices([0, 1]) as devices:
            for place in (0, 1):
                core = core_of(devices[place])
                core.rebuild_held = trio.Event()
                core.current.process.kill()
                while devices[place].state.value == "running":  # noqa: ASYNC110 (another process)
                    await trio.sleep(0.002)
                expected = [1, 1] if place == 0 else [0, 1]
                assert [devices.pick(RoundRobin()).index for _ in range(2)] == expected
            for device in devices:
                core_of(device).rebuild_held.set()


async def test_what_no_device_has_is_refused_with_what_each_has():
    async with open_test_devices([0, 1], memory_limit=64 * MIB) as devices:
        with pytest.raises(OutOfDeviceMemory) as full:
            devices.pick(min_free_bytes=64 * MIB + 1)
        for device in devices:
            assert f"device {device.index} ({device.info.name}) {64 * MIB:,}" in full.value.message
        with pytest.raises(InvalidArgument) as weak:
            devices.pick(min_compute_capability=(99, 0))
        capability = "{}.{}".format(*devices[1].info.capability)
        assert f"device 1 ({devices[1].info.name}) {capability}" in weak.value.message


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"policy": "LeastLoaded"}, "policy is a Placement"),
        ({"policy": LeastLoaded}, "policy is a Placement"),
        ({"min_free_bytes": -1}, "min_free_bytes is a number of bytes"),
        ({"min_free_bytes": 1.0}, "min_free_bytes is a number of bytes"),
        ({"min_compute_capability": 9}, "min_compute_capability is a tuple"),
        ({"min_compute_capability": (9,)}, "min_compute_capability is a tuple"),
        ({"min_compute_capability": (9, 0.5)}, "min_compute_capability is a tuple"),
    ],
)
async def test_an_argument_that_cannot_be_is_refused(options, text):
    async with open_test_devices([0]) as devices:
        with pytest.raises(InvalidArgument, match=text):
            devices.pick(**options)
        if "min_free_bytes" not in options:
            with pytest.raises(InvalidArgument, match=text):
                devices.reserve(1, **options)
        for nbytes in (0, -1, 1.0, True, None):
            with pytest.raises(InvalidArgument, match="nbytes is a number of bytes"):
                devices.reserve(nbytes)


async def test_another_thread_cannot_pick():
    async with open_test_devices([0]) as devices:
        with pytest.raises(OutsideRun):
            await trio.to_thread.run_sync(devices.pick)
        with pytest.raises(OutsideRun):
            await trio.to_thread.run_sync(devices.statistics)


# -- reservations ------------------------------------------------------------------------------------------------------


async def test_a_reservation_is_counted_as_taken_until_it_is_left():
    async with open_test_devices([0, 1], memory_limit=64 * MIB) as devices:
        reservation = devices.reserve(40 * MIB, near=devices[1])
        assert repr(reservation) == f"<Reservation of {40 * MIB:,} bytes, not entered>"
        assert devices.pick(near=devices[1], min_free_bytes=64 * MIB) is devices[1]
        with reservation as device:
            assert device is devices[1]
            assert repr(reservation) == f"<Reservation of {40 * MIB:,} bytes of device 1, {40 * MIB:,} left>"
            assert devices.pick(near=devices[1], min_free_bytes=25 * MIB) is devices[0]
            assert devices.pick(near=devices[1], min_free_bytes=24 * MIB) is devices[1]
            with pytest.raises(OutOfDeviceMemory), devices.reserve(30 * MIB, near=device), devices.reserve(40 * MIB):
                raise AssertionError("so much is not there")
        assert (reservation.left, reservation.nbytes) == (0, 40 * MIB)
        assert devices.pick(near=devices[1], min_free_bytes=64 * MIB) is devices[1]
        with pytest.raises(InvalidArgument, match="was entered before"), reservation:
            raise AssertionError("a reservation is entered once")


async def test_other_tasks_cannot_have_what_is_reserved_and_its_own_can():
    async with open_test_devices([0], memory_limit=64 * MIB) as devices:
        (device,) = devices
        entered, tried = trio.Event(), trio.Event()

        async def other():
            await entered.wait()
            device.empty(24 * MIB, np.uint8).free()
            with pytest.raises(OutOfDeviceMemory) as full:
                device.empty(25 * MIB, np.uint8)
            assert f"{40 * MIB:,} of the limit of {64 * MIB:,} are reserved for others" in full.value.message
            tried.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            with devices.reserve(40 * MIB):
                entered.set()
                await tried.wait()
                array = device.empty(40 * MIB, np.uint8)

                async def child():
                    with pytest.raises(OutOfDeviceMemory):
                        device.empty(25 * MIB, np.uint8)
                    array.free()
                    device.empty(50 * MIB, np.uint8).free()

                async with trio.open_nursery() as inner:
                    inner.start_soon(child)


@pytest.mark.parametrize("way", ["to_device", "zeros", "full", "gemm", "batch"])
async def test_arrays_of_every_origin_are_taken_off_the_reservation(way):
    size = 1 * MIB
    async with open_test_devices([0], memory_limit=64 * MIB) as devices:
        (device,) = devices
        square = device.full((512, 512), 1.0, np.float32)
        reservation = devices.reserve(8 * MIB)
        with reservation:
            if way == "to_device":
                array = await device.to_device(np.zeros(size, np.uint8))
            elif way == "zeros":
                array = device.zeros(size, np.uint8)
            elif way == "full":
                array = device.full(size, 1, np.uint8)
            elif way == "gemm":
                array = await device.blas.gemm(square, square)
            else:
                async with device.batch() as batch:
                    array = batch.blas.gemm(square, square)
            assert array.nbytes == size
            assert reservation.left == 7 * MIB
            array.free()
            assert reservation.left == 8 * MIB


async def test_a_reservation_outlives_a_loss_of_its_device():
    async with open_test_devices([0], memory_limit=64 * MIB) as devices:
        reservation = devices.reserve(32 * MIB)
        with reservation as device:
            array = await device.to_device(np.arange(MIB, dtype=np.uint8))
            await device.restart("to try it")
            assert reservation.left == 31 * MIB
            np.testing.assert_array_equal(await array.to_host(), np.arange(MIB, dtype=np.uint8))
            array.free()
            assert reservation.left == 32 * MIB


@pytest.mark.sim_only
async def test_a_checked_device_keeps_reservations_too():
    async with open_test_devices([0], memory_limit=64 * MIB, check="bounds") as devices:
        (device,) = devices
        with devices.reserve(32 * MIB) as reserved:
            array = reserved.empty(16 * MIB, np.uint8)
            assert array.device is device
            async with trio.open_nursery() as nursery:

                async def other():
                    device.empty(30 * MIB, np.uint8)

                nursery.start_soon(other)
        assert re.match("<Devices 0 running", repr(devices))
        assert atomr_trio.DeviceState.RUNNING is device.state
