"""Devices by index, by UUID, as parts of a divided GPU, and all of them: what each name means."""

from __future__ import annotations

import os
import sys
import types

import pytest
import trio

import atomr_trio
from atomr_trio import DeviceFailed, InvalidArgument
from atomr_trio._device import naming
from atomr_trio._device.naming import check_names, indices_of, listed, resolved
from support import ON_GPU, child_environment, chosen_backend, gpu_count, set_constant

FIRST, SECOND, THIRD = (
    "8932f937-d72c-4106-c12f-20bd9faed9f6",
    "8932f9aa-0000-1111-2222-333344445555",
    "c6a1b2c3-0000-1111-2222-333344445555",
)
UUIDS = (FIRST, SECOND, THIRD)


@pytest.mark.parametrize(
    ("names", "count", "indices"),
    [
        ("all", None, (0, 1, 2)),
        ("all", 2, (0, 1)),
        ([f"GPU-{SECOND}"], None, (1,)),
        ([f"GPU-{THIRD}", 0], None, (2, 0)),
        ([f"MIG-{THIRD}"], None, (2,)),
        (["GPU-c6"], None, (2,)),
        (["GPU-8932F937"], None, (0,)),
        ([f"GPU-{THIRD}", f"GPU-{FIRST}"], 1, (2,)),
    ],
)
def test_a_name_means_the_device_with_that_uuid_or_its_beginning(names, count, indices):
    assert resolved(check_names(names, count), count, UUIDS) == indices


@pytest.mark.parametrize(
    ("names", "count", "text"),
    [
        ("all", 4, "count is 4, and 3 devices are there"),
        (["GPU-"], None, f"no device here is GPU-; 3 devices are there (0: {FIRST}, 1: {SECOND}, 2: {THIRD})"),
        (["GPU-77"], None, f"no device here is GPU-77; 3 devices are there (0: {FIRST}, 1: {SECOND}, 2: {THIRD})"),
        (["GPU-8932f9"], None, "GPU-8932f9 is the beginning of several names: of devices 0, 1"),
        ([0, f"GPU-{FIRST}"], None, f"device 0 is named twice: as 0 and as GPU-{FIRST}"),
        (["GPU-c6", f"MIG-{THIRD}"], None, f"device 2 is named twice: as GPU-c6 and as MIG-{THIRD}"),
    ],
)
def test_a_name_that_means_no_single_device_is_refused(names, count, text):
    with pytest.raises(InvalidArgument) as refused:
        resolved(check_names(names, count), count, UUIDS)
    assert refused.value.message == text


def test_more_devices_than_a_group_can_have_are_refused_unless_count_says_fewer():
    many = [f"{number:08x}" for number in range(16)]
    with pytest.raises(InvalidArgument, match="16 devices are there, and one group has at most 14"):
        resolved("all", None, many)
    assert resolved("all", 14, many) == tuple(range(14))


async def test_indices_alone_need_no_list(monkeypatch):
    async def nobody(backend):
        raise AssertionError("nothing is to be listed")

    set_constant(monkeypatch, naming, "listed", nobody)
    assert await indices_of(check_names((3, 1), None), None, "sim") == (3, 1)


@pytest.mark.sim_only
async def test_without_a_name_every_device_that_the_driver_shows_is_opened(monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_SIM_DEVICES", "2")
    lists = []

    async def noted(backend):
        lists.append(await listed(backend))
        return lists[-1]

    set_constant(monkeypatch, naming, "listed", noted)
    with trio.fail_after(60):
        async with atomr_trio.open_devices(backend="sim") as devices:
            assert [device.index for device in devices] == [0, 1]
    (uuids,) = lists
    digits = b"atomr-simulated".hex()
    assert [uuid.replace("-", "") for uuid in uuids] == [f"{digits}00", f"{digits}01"]
    assert [len(part) for part in uuids[0].split("-")] == [8, 4, 4, 4, 12]


@pytest.mark.sim_only
async def test_without_a_device_the_driver_is_quoted(monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_SIM_DEVICES", "0")
    with trio.fail_after(60), pytest.raises(DeviceFailed, match="could not be listed: no simulated GPU") as failed:
        async with atomr_trio.open_devices(backend="sim"):
            raise AssertionError("the body must not run")
    assert failed.value.status_name == "CUDA_ERROR_NO_DEVICE"


def standing_in(monkeypatch, code):
    """Have another program run in the place of the one that lists devices."""
    set_constant(monkeypatch, naming, "command", lambda *arguments: [sys.executable, "-c", code])


async def test_a_list_that_does_not_come_is_said_with_the_last_words_of_its_process(monkeypatch):
    standing_in(monkeypatch, "import sys; print('no library', file=sys.stderr); sys.exit(3)")
    with pytest.raises(DeviceFailed, match="could not be listed: the process that lists them exited with status 3"):
        await listed("sim")
    standing_in(monkeypatch, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(DeviceFailed, match="SIGKILL"):
        await listed("sim")


async def test_a_driver_that_hangs_is_not_waited_for_without_end(monkeypatch):
    standing_in(monkeypatch, "import signal; signal.pause()")
    set_constant(monkeypatch, naming, "LISTING_SECONDS", 0.01)
    with pytest.raises(DeviceFailed, match=r"not listed its devices within 0\.01 s"):
        await listed("sim")


async def test_a_process_that_cannot_be_started_is_said(monkeypatch):
    set_constant(monkeypatch, naming, "command", lambda *arguments: ["/nowhere/python"])
    with pytest.raises(DeviceFailed, match=r"could not be listed: .*No such file"):
        await listed("sim")


async def test_a_caller_that_is_cancelled_does_not_wait_for_the_list(monkeypatch):
    standing_in(monkeypatch, "import signal; signal.pause()")
    real, children = naming._start_listing, []

    def start(backend):
        children.append(real(backend))
        return children[0]

    set_constant(monkeypatch, naming, "_start_listing", start)
    with trio.fail_after(60), trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listed, "sim")
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught
    assert await trio.to_thread.run_sync(children[0].wait) == -9


async def test_a_part_of_a_gpu_has_the_uuid_that_the_driver_gives_it():
    """The parts of a divided GPU cannot be made here, so a driver of a few lines has one."""
    from atomr_trio._worker import listing

    class Uuid:
        bytes = bytes(16)

    def no_call(*arguments):
        return None

    def give_count(pointer):
        pointer._obj.value = 2

    def give_device(pointer, index):
        pointer._obj.value = index

    from ctypes import Structure, c_int, c_ubyte

    class CUuuid(Structure):
        _fields_ = [("bytes", c_ubyte * 16)]

    def give_uuid(pointer, device):
        pointer._obj.bytes[:] = [device.value] * 16

    driver = types.SimpleNamespace(
        cuInit=no_call,
        cuDeviceGetCount=give_count,
        cuDeviceGet=give_device,
        cuDeviceGetUuid_v2=give_uuid,
        CUdevice=c_int,
        CUuuid=CUuuid,
    )
    assert listing.uuids(driver) == [f"{'0' * 8}-0000-0000-0000-{'0' * 12}", f"{'01' * 4}-0101-0101-0101-{'01' * 6}"]


@pytest.mark.skipif(not ON_GPU, reason="the simulator shows all of its devices")
@pytest.mark.parametrize("order", [[0], [1, 0], [1]], ids=str)
async def test_names_and_indices_are_of_the_visible_devices(order):
    """A program that sees some GPUs, in an order: index 0 is the first of them, and others have no name."""
    if gpu_count() < 2:
        pytest.skip("needs 2 GPUs")
    uuids, before = await listed(chosen_backend()), os.environ.get("CUDA_VISIBLE_DEVICES")
    code = (
        "import trio, atomr_trio\n"
        "async def main():\n"
        "    async with atomr_trio.open_devices(backend='cuda') as devices:\n"
        "        print(len(devices), [device.info.pci_bus_id for device in devices])\n"
        "trio.run(main)\n"
    )
    visible = ",".join(f"GPU-{uuids[index]}" for index in order)
    done = await trio.run_process(
        [sys.executable, "-c", code],
        env={**child_environment(), "CUDA_VISIBLE_DEVICES": visible},
        capture_stdout=True,
    )
    async with atomr_trio.open_devices(order, backend="cuda") as devices:
        expected = f"{len(order)} {[device.info.pci_bus_id for device in devices]}"
    assert done.stdout.decode().strip() == expected
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == before
