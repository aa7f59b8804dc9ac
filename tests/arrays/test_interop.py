"""Arrays in the hands of other libraries: through numpy on the simulator, and through a consumer that calls a driver.

The second part installs the simulated driver in the test's own process too, which then plays PyTorch: it has streams of
its own, and gets device pointers. Nothing in it waits by sleeping: kernels and streams wait for words.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from ctypes import c_uint64, c_void_p
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest
import trio

import atomr_sim
import atomr_trio
from atomr_cuda import CudaError, LibraryMissing, driver
from atomr_trio import (
    CommandFailed,
    ContextLost,
    DeviceClosed,
    InvalidArgument,
    LibraryNotFound,
    RestartPolicy,
    StaleArray,
)
from atomr_trio._arrays.memory import DeviceMemory
from atomr_trio._arrays.sharing import consumer as _consumer, dlpack as _dlpack, exports as _exports, fences as _fences
from atomr_trio._arrays.sharing.consumer import STREAMS
from atomr_trio._arrays.sharing.dlpack import DeviceType
from atomr_trio._arrays.sharing.exports import Interop
from atomr_trio._arrays.sharing.fences import RELEASED, Fence
from atomr_trio._device.device import core_of
from atomr_trio._generation.loss import Loss, LossKind
from atomr_trio._values.dtypes import DTYPES, NARROW_FLOATS, check_dtype, dlpack_type, of_dlpack
from atomr_trio._wire.protocol import LANE_COMPUTE, LANE_COPY_IN
from atomr_trio.testing import WorkerPool
from support import child_environment, open_test_device, set_constant, sim_process as helper
from support.descriptors import open_descriptors
from support.rogue import limit_commands, next_generation, until

pytestmark = pytest.mark.sim_only
DEADLINE = 60
MEMORY_TYPE = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE

SOURCE = """
extern "C" __global__ void wait_and_set(const volatile int *flag, int *x, int value) {
    while (*flag == 0) { }
    x[0] = value;
}
extern "C" __global__ void step(int *x, int factor, int term) { x[0] = (x[0] * factor + term) % 1009; }
extern "C" __global__ void copy(const int *from, int *to) { to[0] = from[0]; }
extern "C" __global__ void set(int *x, int value) { x[0] = value; }
extern "C" __global__ void trap(int *x) { x[0] = 1; __trap(); }
"""


@pytest.fixture
async def dev(pool: WorkerPool) -> AsyncIterator[Any]:
    with trio.fail_after(DEADLINE):
        async with open_test_device(workers=pool, restart_policy=RestartPolicy(intensity=10)) as device:
            yield device


async def kernel(dev: Any, name: str) -> Any:
    return await dev.nvrtc.compile(SOURCE, name)


def free_addresses(dev: Any, like: Any, count: int = 64) -> list[int]:
    """Where the next arrays of this size would lie."""
    return [array.address for array in [dev.empty(like.shape, like.dtype) for _ in range(count)]]


def mapped_chunks() -> int:
    """How many mappings of simulated device memory this process has."""
    with open("/proc/self/maps") as maps:
        return sum("atomr-simulated-gpu" in line for line in maps)


# --- the structures ---------------------------------------------------------------------------------------------------


def test_the_structures_have_the_sizes_of_the_header():
    structures = (_dlpack.DLTensor, _dlpack.DLManagedTensor, _dlpack.DLManagedTensorVersioned)
    assert [ctypes.sizeof(each) for each in structures] == [48, 64, 80]
    assert _dlpack.DLManagedTensorVersioned.dl_tensor.offset == 32


@pytest.mark.parametrize("dtype", [*DTYPES, *map(check_dtype, NARROW_FLOATS)], ids=lambda dtype: dtype.name)
def test_every_dtype_has_a_code_of_its_own(dtype):
    assert of_dlpack(*dlpack_type(dtype)) == dtype


def test_elements_that_no_array_can_have_are_refused():
    with pytest.raises(InvalidArgument, match="type code 2 with 128 bits"):
        of_dlpack(2, 128)


@pytest.mark.parametrize("versioned", [False, True])
def test_a_capsule_releases_once_whether_it_is_consumed_or_not(versioned):
    released = []
    tensor = _dlpack.Tensor(64, (DeviceType.CUDA, 3), (2, 5), (5, 1), 2, 32)
    capsule = _dlpack.give(tensor, lambda: released.append("by the consumer"), versioned=versioned)
    taken = _dlpack.Taken(capsule)
    assert taken.tensor == tensor
    with pytest.raises(ValueError, match="a consumer has taken it"):
        _dlpack.Taken(capsule)
    del capsule
    assert released == []
    taken.close()
    taken.close()
    _dlpack.give(tensor, lambda: released.append("unconsumed"), versioned=versioned)
    assert released == ["by the consumer", "unconsumed"]


def test_a_version_that_is_not_known_is_not_read():
    capsule = _dlpack.give(_dlpack.Tensor(64, (2, 0), (1,), (1,), 2, 32), lambda: None, versioned=True)
    next(iter(_dlpack._given.values()))[0].version.major = 2
    with pytest.raises(ValueError, match="version 2"):
        _dlpack.Taken(capsule)


def test_elements_that_are_vectors_are_not_read():
    capsule = _dlpack.give(_dlpack.Tensor(64, (2, 0), (1,), (1,), 2, 32), lambda: None, versioned=True)
    taken = _dlpack.Taken(capsule)
    taken._managed.dl_tensor.dtype.lanes = 4
    with pytest.raises(ValueError, match="vectors of 4"):
        _ = taken.tensor
    taken.close()


@pytest.mark.parametrize("max_version", [None, (1, 0)])
def test_what_numpy_gives_is_read(max_version):
    host = np.arange(24, dtype=np.int16).reshape(4, 6)[::2, 1:]
    producer = host if max_version else SimpleNamespace(__dlpack__=lambda **_: host.__dlpack__())
    taken = _dlpack.take(producer, None)
    tensor = taken.tensor
    assert (tensor.address, tensor.device) == (host.ctypes.data, (DeviceType.CPU, 0))
    assert (tensor.shape, tensor.strides, tensor.code, tensor.bits) == ((2, 5), (12, 1), 0, 16)
    taken.close()


def test_a_producer_without_strides_is_packed_and_one_from_before_version_1_is_asked_again():
    class Old:
        def __dlpack__(self, *, stream: int) -> object:
            assert stream == 5
            capsule = _dlpack.give(_dlpack.Tensor(64, (2, 0), (2, 3), (3, 1), 2, 32), lambda: None, versioned=False)
            next(reversed(_dlpack._given.values()))[0].dl_tensor.strides = None
            return capsule

    taken = _dlpack.take(Old(), 5)
    assert taken.tensor.strides == (3, 1)
    taken.close()


def test_a_consumer_that_outlives_the_interpreter_calls_nothing_of_it():
    code = """
        import ctypes, atexit
        from atomr_trio._arrays.sharing import dlpack as _dlpack
        tensor = _dlpack.Tensor(64, (1, 0), (1,), (1,), 2, 32)
        capsule = _dlpack.give(tensor, lambda: print("released"), versioned=True)
        managed = _dlpack.Taken(capsule)._managed
        _dlpack._outlive_python()
        print(managed.deleter, managed.dl_tensor.data)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["None", "64"]


def test_a_capsule_that_is_left_at_the_end_of_the_interpreter_is_not_released_then():
    code = """
        from atomr_trio._arrays.sharing import dlpack as _dlpack
        tensor = _dlpack.Tensor(64, (1, 0), (1,), (1,), 2, 32)
        gone = _dlpack.give(tensor, lambda: print("gone"), versioned=True)
        del gone
        left = _dlpack.give(tensor, lambda: print("left"), versioned=False)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["gone"], "")


# --- numpy, on the simulator ------------------------------------------------------------------------------------------


async def test_numpy_sees_the_same_bytes_and_writes_them(dev):
    x = await dev.to_device(np.arange(6, dtype=np.int32))
    view = np.from_dlpack(x)
    assert view.tolist() == [0, 1, 2, 3, 4, 5]
    view[0] = 77
    assert (await x.to_host())[0] == 77
    await x.fill(5)
    assert view.tolist() == [5] * 6


async def test_views_keep_their_shape_and_strides(dev):
    host = np.arange(120, dtype=np.float64).reshape(4, 5, 6)
    x = await dev.to_device(host)
    for index in (np.s_[1:, ::-2, 3], np.s_[..., ::-1], np.s_[2, 3, 4], np.s_[:, None]):
        view = np.from_dlpack(x[index])
        assert np.array_equal(view, host[index])
        assert view.strides == host[index].strides


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
async def test_every_dtype_of_numpy_goes_through(dev, dtype):
    host = np.ones(3, dtype)
    view = np.from_dlpack(await dev.to_device(host))
    assert view.dtype == dtype
    assert np.array_equal(view, host)


async def test_an_array_without_elements_needs_no_memory(dev):
    assert np.from_dlpack(dev.zeros((3, 0), np.int8)).shape == (3, 0)


async def test_an_array_that_is_not_written_yet_is_shared_by_waiting(dev):
    x = dev.full(4, 3, np.int32)
    with pytest.raises(BufferError, match=r"does not exist yet: `await dev\.share"):
        np.from_dlpack(x)
    assert np.from_dlpack(await dev.share(x)).tolist() == [3] * 4


async def test_unfinished_commands_keep_an_array_from_the_host(dev):
    flag, x = await dev.to_device(np.zeros(1, np.int32)), await dev.to_device(np.zeros(1, np.int32))
    go = np.from_dlpack(flag)
    spin = await kernel(dev, "wait_and_set")
    spin.launch_nowait(1, 1, atomr_trio.read_only(flag), x, 9)
    for array in (flag, x):
        with pytest.raises(BufferError, match="unfinished"):
            np.from_dlpack(array)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dev.share, x)
        await trio.testing.wait_all_tasks_blocked(0.01)
        with pytest.raises(BufferError, match="unfinished"):
            np.from_dlpack(x)
        go[0] = 1
    assert np.from_dlpack(x)[0] == 9


async def test_sharing_waits_for_readers_too(dev):
    flag, x = await dev.to_device(np.zeros(1, np.int32)), await dev.to_device(np.zeros(1, np.int32))
    go = np.from_dlpack(flag)
    (await kernel(dev, "wait_and_set")).launch_nowait(1, 1, atomr_trio.read_only(flag), x, 9)
    shared = trio.Event()

    async def share() -> None:
        await dev.share(flag)
        shared.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(share)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not shared.is_set()
        go[0] = 1


async def test_memory_is_not_reused_before_the_consumer_has_released_it(dev):
    x = await dev.to_device(np.arange(1000))
    view = np.from_dlpack(x)
    address, in_use = x.address, dev.statistics().memory.in_use
    x.free()
    x.free()
    assert x.state == "freed"
    with pytest.raises(InvalidArgument, match="freed"):
        await x.fill(0)
    with pytest.raises(InvalidArgument, match="freed"):
        np.from_dlpack(x)
    assert address not in free_addresses(dev, view, 8)
    assert (view == np.arange(1000)).all()
    assert dev.statistics().memory.in_use >= in_use
    del view
    assert address in free_addresses(dev, x)


async def test_an_array_that_was_collected_stays_while_it_is_shared(dev):
    x = await dev.to_device(np.arange(1000))
    address = x.address
    view = np.from_dlpack(x)
    del x
    gc.collect()
    assert address not in free_addresses(dev, view, 8)
    assert (view == np.arange(1000)).all()
    del view
    assert address in free_addresses(dev, np.arange(1000))


async def test_a_chunk_is_mapped_while_an_array_of_it_is_shared(dev):
    x, y = await dev.to_device(np.arange(3)), await dev.to_device(np.arange(3))
    before = mapped_chunks()
    views = [np.from_dlpack(x), np.from_dlpack(x), np.from_dlpack(y)]
    assert mapped_chunks() == before + 1
    del views[1:]
    dev.empty(1)
    assert mapped_chunks() == before + 1
    del views[:]
    dev.empty(1)
    assert mapped_chunks() == before


async def test_a_consumer_may_release_in_any_thread(dev):
    x = await dev.to_device(np.arange(1000))
    address = x.address
    views = [np.from_dlpack(x)]
    x.free()
    thread = threading.Thread(target=views.clear)
    thread.start()
    thread.join()
    assert address in free_addresses(dev, x)


async def test_what_is_shared_outlives_the_device(pool):
    before = mapped_chunks()
    async with open_test_device(workers=pool) as dev:
        view = np.from_dlpack(await dev.to_device(np.arange(1000)))
        x = await dev.to_device(np.arange(5))
    assert (view == np.arange(1000)).all()
    assert mapped_chunks() == before + 1
    with pytest.raises(DeviceClosed):
        np.from_dlpack(x)
    del view
    helper.until(lambda: mapped_chunks() == before)


async def test_a_fault_leaves_shared_memory_where_it_is(dev):
    x, y = await dev.to_device(np.arange(3, dtype=np.int32)), await dev.to_device(np.arange(3, dtype=np.int32))
    views = np.from_dlpack(x), np.from_dlpack(y)
    trap, set_one = await kernel(dev, "trap"), await kernel(dev, "set")
    with pytest.raises(ContextLost):
        await trap.launch(1, 1, x)
    await next_generation(dev, 1)
    assert views[0].tolist() == [1, 1, 2]
    with pytest.raises(StaleArray, match="torn"):
        np.from_dlpack(x)
    with pytest.raises(StaleArray):
        await dev.share(x)
    await set_one.launch(1, 1, y, 50)
    assert views[1].tolist() == [50, 1, 2]
    await x.fill(8)
    assert views[0].tolist() == np.from_dlpack(x).tolist() == [8, 8, 8]


async def test_while_a_fault_is_recovered_from_nothing_is_exported(dev):
    x = await dev.to_device(np.arange(3))
    core_of(dev).current.process.kill()
    while core_of(dev).current is not None and core_of(dev).current.loss is None:
        await trio.lowlevel.checkpoint()
    with pytest.raises(BufferError, match="recovering from a fault"):
        np.from_dlpack(x)
    assert np.from_dlpack(await dev.share(x)).tolist() == [0, 1, 2]


async def test_what_the_standard_lets_a_consumer_ask_for(dev):
    x = await dev.to_device(np.arange(3, dtype=np.float32))
    assert x.__dlpack_device__() == (1, 0)
    for max_version, kind in ((None, "dltensor"), ((0, 8), "dltensor"), ((1, 0), "dltensor_versioned")):
        assert f'"{kind}"' in repr(x.__dlpack__(max_version=max_version))
    x.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(BufferError, match="without a copy"):
        x.__dlpack__(copy=True)
    with pytest.raises(BufferError, match=r"not on \(2, 0\)"):
        x.__dlpack__(dl_device=(2, 0))
    for stream in (0, -2, True, "1"):
        with pytest.raises(InvalidArgument, match="a stream is"):
            x.__dlpack__(stream=stream)


async def test_the_simulator_has_no_cuda_memory_to_describe(dev):
    x = await dev.to_device(np.arange(3))
    assert not hasattr(x, "__cuda_array_interface__")
    with pytest.raises(InvalidArgument, match="copy it to the host first"):
        await dev.to_device(SimpleNamespace(__cuda_array_interface__={}))


async def test_sharing_an_array_of_another_device_is_refused(dev, pool):
    async with open_test_device(workers=pool) as other:
        with pytest.raises(InvalidArgument, match="another device"):
            await dev.share(await other.to_device(np.arange(3)))


async def test_host_memory_of_another_library_goes_by_numpy(dev):
    host = np.arange(6, dtype=np.int16).reshape(2, 3)

    class Other:
        def __dlpack_device__(self) -> tuple[int, int]:
            return host.__dlpack_device__()

        def __dlpack__(self, **arguments: Any) -> Any:
            return host.__dlpack__(**arguments)

    assert np.array_equal(await (await dev.to_device(Other())).to_host(), host)
    host = host.astype(">i2")
    with pytest.raises(InvalidArgument, match="numpy cannot read the memory of this Other"):
        await dev.to_device(Other())


async def test_a_forked_child_lets_go_without_touching_the_parents(dev):
    x = await dev.to_device(np.arange(1000))
    views = [np.from_dlpack(x)]
    child = os.fork()
    if child == 0:
        try:
            views.clear()
            gc.collect()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = await trio.to_thread.run_sync(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (views[0] == np.arange(1000)).all()
    assert (await x.to_host() == np.arange(1000)).all()


# --- a consumer with a driver -----------------------------------------------------------------------------------------


class Library:
    """Another library of this process, which works on streams: the simulated driver, called directly."""

    def __init__(self, interop: Interop) -> None:
        self.interop = interop
        self._context = driver.CUcontext()
        driver.cuCtxGetCurrent(self._context)
        self.stream: int = helper.stream().value or 0
        words = c_void_p()
        driver.cuMemHostAlloc(words, 4096, 0)
        self.words = (c_uint64 * 512).from_address(words.value or 0)
        self.gate = words.value or 0

    def open_gate(self) -> None:
        self.words[0] = 1

    def wait_at_gate(self) -> None:
        """Whatever the stream is given from now on waits for `open_gate`."""
        driver.cuStreamWaitValue64(self.stream, self.gate, 1, 0)

    def write(self, address: int, value: int) -> None:
        driver.cuMemsetD32Async(address, value, 1, self.stream)

    def begin_read(self, address: int) -> None:
        """Copy a number to where `read` finds it."""
        self.words[1] = 0
        driver.cuMemcpyDtoHAsync(self.gate + 8, address, 4, self.stream)

    @property
    def read(self) -> int:
        return self.words[1]

    @property
    def busy(self) -> bool:
        return driver.cuStreamQuery.status(self.stream) == 600

    def synchronize(self) -> None:
        """Block, in any thread, until the stream has done all that it was given."""
        driver.cuCtxSetCurrent(self._context)
        driver.cuStreamSynchronize(self.stream)

    def take(self, array: Any, stream: int | None = None) -> _dlpack.Taken:
        return _dlpack.take(array, self.stream if stream is None else stream)


@pytest.fixture
def context() -> Iterator[None]:
    """A current primary context in this process that nothing survives in."""
    handle = helper.begin()
    yield
    for thread in threading.enumerate():
        if thread.name == "atomr-trio-interop":
            thread.join()
    driver.cuCtxSetCurrent(handle)
    while driver.cuDevicePrimaryCtxRelease.status(0) == 0:
        pass
    driver.cuCtxSetCurrent(None)


def play_library(dev: Any) -> Library:
    """Have a simulated device share its memory as a GPU does."""
    memory = core_of(dev).part(DeviceMemory)
    memory.interop = core_of(dev).current.interop = Interop(memory, cuda=True)
    return Library(memory.interop)


@pytest.fixture
async def library(context: None, dev: Any) -> AsyncIterator[Library]:
    made = play_library(dev)
    yield made
    made.open_gate()  # a test that failed must not hold up those after it


async def numbers(dev: Any, *values: int) -> list[Any]:
    return [await dev.to_device(np.array([value], np.int32)) for value in values]


async def test_a_consumer_gets_the_bytes_at_the_same_address(dev, library):
    (x,) = await numbers(dev, 41)
    assert x.__dlpack_device__() == (DeviceType.CUDA, 0)
    taken = library.take(x)
    tensor = taken.tensor
    assert (tensor.address, tensor.device, tensor.shape) == (x.address, (DeviceType.CUDA, 0), (1,))
    library.write(tensor.address, 42)
    assert (await x.to_host())[0] == 42
    await x.fill(43)
    library.begin_read(tensor.address)
    library.synchronize()
    assert library.read == 43
    taken.close()


async def test_a_chunk_goes_elsewhere_when_its_addresses_are_taken(dev, library):
    (x,) = await numbers(dev, 41)
    base = x._block.chunk.address
    assert helper.reserve(x._block.chunk.size, base) == base
    taken = library.take(x)
    address = taken.tensor.address
    assert address != x.address
    library.begin_read(address)
    library.synchronize()
    assert library.read == 41
    taken.close()
    driver.cuMemAddressFree(base, x._block.chunk.size)


async def test_the_consumers_stream_waits_for_commands_that_are_under_way(dev, library):
    flag, x = await numbers(dev, 0, 0)
    go = library.take(flag, -1)
    (await kernel(dev, "wait_and_set")).launch_nowait(1, 1, atomr_trio.read_only(flag), x, 7)
    taken = library.take(x)
    library.begin_read(taken.tensor.address)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert library.busy
    ctypes.c_int.from_address(go.tensor.address).value = 1
    library.synchronize()
    assert library.read == 7
    taken.close()
    go.close()


async def test_the_consumers_stream_waits_for_commands_that_come_later(dev, library):
    flag, x = await numbers(dev, 0, 0)
    go, taken = library.take(flag, -1), library.take(x)
    (await kernel(dev, "wait_and_set")).launch_nowait(1, 1, atomr_trio.read_only(flag), x, 7)
    library.begin_read(taken.tensor.address)
    ctypes.c_int.from_address(go.tensor.address).value = 1
    library.synchronize()
    assert library.read == 7
    taken.close()
    go.close()


@pytest.mark.parametrize("by", ["kernel", "copy_out", "copy_in"])
async def test_a_lane_waits_for_what_the_stream_was_given(dev, library, by):
    x, y = await numbers(dev, 0, 0)
    taken = library.take(x)
    copy = await kernel(dev, "copy")
    library.wait_at_gate()
    library.write(taken.tensor.address, 5)
    out = np.zeros(1, np.int32)

    async def use() -> None:
        if by == "kernel":
            await copy.launch(1, 1, atomr_trio.read_only(x), y)
            await y.copy_to(out)
        elif by == "copy_out":
            await x.copy_to(out)
        else:
            await x.copy_from(np.array([6], np.int32))
            library.begin_read(taken.tensor.address)
            library.synchronize()
            out[0] = library.read

    async with trio.open_nursery() as nursery:
        nursery.start_soon(use)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert "interop.wait" in core_of(dev).current.timeline.in_flight()
        assert out[0] == 0
        library.open_gate()
    assert out[0] == (6 if by == "copy_in" else 5)
    taken.close()


async def test_a_lane_waits_for_a_stream_only_after_what_the_stream_waits_for(dev, library):
    flag, x = await numbers(dev, 0, 0)
    go, taken = library.take(flag, -1), library.take(x)
    (await kernel(dev, "wait_and_set")).launch_nowait(1, 1, atomr_trio.read_only(flag), x, 7)
    lanes = core_of(dev).current.timeline.lanes
    launch = lanes[LANE_COMPUTE].in_flight[-1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(x.copy_from, np.array([8], np.int32))
        await trio.testing.wait_all_tasks_blocked(0.01)
        wait, _ = lanes[LANE_COPY_IN].in_flight
        assert wait.operation == "interop.wait"
        assert (LANE_COMPUTE, launch.ticket) in wait.waits
        ctypes.c_int.from_address(go.tensor.address).value = 1
    assert (await x.to_host())[0] == 8
    for each in (go, taken):
        each.close()


async def test_turns_of_two_libraries_and_three_lanes_stay_in_order(dev, library):
    (x,) = await numbers(dev, 1)
    second = Library(library.interop)
    taken = library.take(x), second.take(x)
    ours = await kernel(dev, "step")
    theirs = helper.function(helper.load(SOURCE), "step")
    expected = 1
    for turn in range(40):
        ours.launch_nowait(1, 1, x, 3, turn)
        expected = (expected * 3 + turn) % 1009
        if turn % 8 == 0:
            assert (await x.to_host())[0] == expected
        if turn % 8 == 4:
            await x.copy_from(np.array([turn], np.int32))
            expected = turn
        which = turn % 2
        arguments = c_uint64(taken[which].tensor.address), ctypes.c_int(5), ctypes.c_int(turn)
        assert helper.launch(theirs, (library, second)[which].stream, *arguments) == 0
        expected = (expected * 5 + turn) % 1009
    assert (await x.to_host())[0] == expected
    for each in taken:
        each.close()


async def test_turns_of_a_batch_and_another_library_stay_in_order(dev, library):
    (x,) = await numbers(dev, 1)
    ours = await kernel(dev, "step")
    prepared = ours.prepare(1, 1, x, 7, 1)
    theirs = helper.function(helper.load(SOURCE), "step")
    expected = 1
    async with dev.batch() as batch:
        for turn in range(4):  # what is launched the short way is waited for when the array is taken
            batch.launch(ours, 1, 1, x, 3, turn)
            batch.launch(prepared)
            expected = ((expected * 3 + turn) % 1009 * 7 + 1) % 1009
        await batch.flush()
        taken = library.take(x)
        for turn in range(20):
            batch.launch(ours, 1, 1, x, 3, turn)
            batch.launch(prepared)
            expected = ((expected * 3 + turn) % 1009 * 7 + 1) % 1009
            arguments = c_uint64(taken.tensor.address), ctypes.c_int(5), ctypes.c_int(turn)
            assert helper.launch(theirs, library.stream, *arguments) == 0
            expected = (expected * 5 + turn) % 1009
        seen = batch.to_host(x)
    assert seen[0] == expected
    taken.close()


async def test_other_arrays_are_not_held_up(dev, library):
    x, y = await numbers(dev, 0, 1)
    taken = library.take(x)
    library.wait_at_gate()
    assert (await y.to_host())[0] == 1
    library.open_gate()
    taken.close()


async def test_no_order_is_kept_where_none_is_wanted(dev, library):
    (x,) = await numbers(dev, 3)
    taken = library.take(x, -1)
    library.wait_at_gate()
    assert (await x.to_host())[0] == 3
    assert "interop" not in dev.statistics().lanes[0].name
    assert len(core_of(dev).part(DeviceMemory).interop._counters) == 0
    library.open_gate()
    taken.close()


async def test_a_loss_lets_the_streams_go_that_wait_for_it(dev, library):
    flag, x = await numbers(dev, 0, 0)
    taken = library.take(x)
    spin = await kernel(dev, "wait_and_set")
    spin.launch_nowait(1, 1, atomr_trio.read_only(flag), x, 7)
    library.begin_read(taken.tensor.address)
    await dev.restart("the kernel never ends")
    await trio.to_thread.run_sync(library.synchronize)
    assert x.state == "torn"
    # The next generation keeps order as well.
    await x.fill(4)
    library.begin_read(taken.tensor.address)
    library.synchronize()
    assert library.read == 4
    taken.close()


async def test_a_program_that_blocks_in_the_other_library_is_let_go_too(dev, library):
    flag, x, y = await numbers(dev, 0, 0, 1)
    taken = library.take(x)
    spin = await kernel(dev, "wait_and_set")
    await dev.share(y)
    spin.launch_nowait(1, 1, atomr_trio.read_only(flag), x, 7)
    os.kill(core_of(dev).current.process.pid, signal.SIGKILL)
    library.synchronize()  # the event loop stands still, so nobody but the thread can help
    assert await dev.wait_generation(after=1) == 2
    assert x.state == "torn"
    assert (await y.to_host())[0] == 1
    taken.close()


@pytest.mark.long
async def test_a_fault_under_a_program_that_blocks_in_the_other_library_lets_it_go(dev, library):
    x, y = await numbers(dev, 0, 0)
    taken = library.take(y)
    trap = await kernel(dev, "trap")
    trap.launch_nowait(1, 1, x, touches=[y])
    library.synchronize()  # the event loop cannot hear of the fault
    assert await dev.wait_generation(after=1) == 2
    assert (x.state, y.state) == ("torn", "torn")
    assert "LAUNCH_FAILED" in (dev.statistics().last_error or "") or "trap" in (dev.statistics().last_error or "")
    taken.close()


async def test_a_standby_keeps_order_too(context, pool):
    async with open_test_device(workers=pool, standby=1) as dev:
        library = play_library(dev)
        x, y = await numbers(dev, 0, 4)
        taken, other = library.take(x), library.take(y)
        await dev.wait_standby()
        (await kernel(dev, "trap")).launch_nowait(1, 1, x)
        library.begin_read(taken.tensor.address)
        await dev.wait_generation(after=1)
        await trio.to_thread.run_sync(library.synchronize)
        assert x.state == "torn"
        await x.fill(6)
        library.begin_read(taken.tensor.address)
        library.synchronize()
        assert library.read == 6
        library.write(other.tensor.address, 5)
        assert (await y.to_host())[0] == 5
        for each in (taken, other):
            each.close()


async def test_commands_that_were_done_count_as_done_when_the_streams_were_let_go_first(dev, library):
    (x,) = await numbers(dev, 0)
    taken = library.take(x)
    set_one = await kernel(dev, "set")
    set_one.launch_nowait(1, 1, x, 8)
    library.synchronize()
    page = core_of(dev).current.page
    core_of(dev).part(DeviceMemory).interop._counters[core_of(dev).current].release()
    assert page.words[64] == RELEASED
    assert page.finished(0) < 100
    await dev.restart("its counters are useless now")
    assert x.state == "ready"
    assert (await x.to_host())[0] == 8
    taken.close()


async def test_a_stream_that_never_gets_there_costs_a_generation_and_is_named(context, pool):
    async with open_test_device(workers=pool, hang_timeout=DEADLINE) as dev:
        library = play_library(dev)
        (x,) = await numbers(dev, 0)
        taken = library.take(x)
        library.wait_at_gate()
        limit_commands(dev, 0.3)
        with pytest.raises(ContextLost, match=r"interop\.wait ran longer than hang_timeout=0\.3"):
            await x.to_host()
        library.open_gate()
        library.synchronize()
        await dev.wait_generation(after=1)
        assert (await x.to_host())[0] == 0
        taken.close()


async def test_a_stream_that_is_stuck_does_not_hold_up_the_end_of_the_device(context, pool, monkeypatch):
    """The driver waits for every stream of the process when memory is unregistered, whatever that stream does."""
    set_constant(monkeypatch, _exports, "CLOSE_SECONDS", 0.05)
    async with open_test_device(workers=pool) as dev:
        library = play_library(dev)
        (x,) = await numbers(dev, 0)
        library.take(x).close()
        library.synchronize()
        await x.fill(1)
        library.wait_at_gate()
    try:
        waiting = [thread for thread in threading.enumerate() if thread.name == "atomr-trio-interop"]
        assert waiting
        assert library.busy
    finally:
        library.open_gate()
    for thread in waiting:
        thread.join(DEADLINE)
        assert not thread.is_alive()


async def test_memory_waits_for_what_the_consumer_had_given_its_stream(dev, library):
    x = await dev.to_device(np.zeros(1000, np.int32))
    address = x.address
    taken = library.take(x)
    library.wait_at_gate()
    library.write(taken.tensor.address, 5)
    taken.close()
    x.free()
    other = await dev.to_device(np.ones(1000, np.int32))
    assert other.address != address
    library.open_gate()
    library.synchronize()
    assert address in free_addresses(dev, x)
    assert (await other.to_host() == 1).all()


async def test_an_array_stays_in_order_with_a_consumer_that_has_released_it(dev, library):
    (x,) = await numbers(dev, 0)
    taken = library.take(x)
    library.wait_at_gate()
    library.write(taken.tensor.address, 5)
    taken.close()
    out = np.zeros(1, np.int32)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(x.copy_to, out)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert out[0] == 0
        library.open_gate()
    assert out[0] == 5
    assert (
        core_of(dev).part(DeviceMemory).interop._counters[core_of(dev).current].awaited == {}
    )  # the stream itself is not held up any more


async def test_the_stream_of_a_thread_is_waited_for_with_its_context_from_another_one(context, pool):
    async with open_test_device(workers=pool) as dev:
        library = play_library(dev)
        (x,) = await numbers(dev, 6)
        # The simulator has no such streams; what is asked of this one is only that it is never called.
        library.interop._fences[2] = Fence(library.interop.consumer, 2, 0)
        taken = library.take(x, 2)
        library.wait_at_gate()
        library.write(taken.tensor.address, 7)
    released = threading.Thread(target=taken.close)
    released.start()
    helper.until(lambda: library.busy)
    assert library.interop._consumer is not None
    library.open_gate()
    released.join()
    helper.until(lambda: library.interop._consumer is None)


async def test_a_stream_that_was_destroyed_is_waited_for_with_its_context(dev, library, monkeypatch):
    (x,) = await numbers(dev, 0)
    taken = library.take(x)
    library.write(taken.tensor.address, 5)
    driver.cuStreamDestroy(library.stream)
    with monkeypatch.context() as patch:  # the real one reads memory that is gone, and the process ends
        patch.setattr(driver, "cuStreamGetCtx", lambda *_: pytest.fail("a stream that is gone was asked"))
        assert (await x.to_host())[0] == 5
        taken.close()
        dev.empty(1)
    assert not core_of(dev).part(DeviceMemory).interop._uses


@pytest.mark.parametrize("way", ["share", "number first", "dlpack", "cupy"])
async def test_the_owner_of_a_named_stream_lives_as_long_as_the_array_is_shared(dev, library, way, monkeypatch):
    class Owner:
        ptr = library.stream

        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, library.stream

    (x,) = await numbers(dev, 0)
    owner = Owner()
    gone = weakref.ref(owner)
    if way in ("share", "number first"):
        for stream in (owner,) if way == "share" else (owner.ptr, owner, owner.ptr):
            await dev.share(x, stream=stream)
        del stream
    else:
        await dev.share(x)
        with monkeypatch.context() as patch:
            if way == "cupy":
                in_use = [None, owner]
                patch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(get_current_stream=in_use.pop)))
            capsule = x.__dlpack__(stream=owner.ptr if way == "cupy" else owner)
    del owner
    gc.collect()
    assert gone() is not None
    await x.fill(1)
    if way in ("share", "number first"):
        del x
    else:
        del capsule
    gc.collect()
    helper.until(lambda: dev.empty(1) is not None and gone() is None)


async def test_a_stream_that_is_too_far_behind_is_not_given_more(dev, library, monkeypatch):
    x, y = await numbers(dev, 0, 3)
    set_constant(monkeypatch, _fences, "MARKS_AHEAD", 20)
    taken = library.take(x)
    library.wait_at_gate()
    set_one = await kernel(dev, "set")
    for value in range(20):
        set_one.launch_nowait(1, 1, x, value)
    with pytest.raises(CommandFailed, match="20 commands behind"):
        set_one.launch_nowait(1, 1, x, 0)
    library.open_gate()
    await trio.to_thread.run_sync(library.synchronize)
    await x.fill(77)
    assert [int((await each.to_host())[0]) for each in (x, y)] == [77, 3]
    taken.close()


async def test_a_stream_that_records_a_graph_is_refused(dev, library, monkeypatch):
    (x,) = await numbers(dev, 0)
    taken = library.take(x)

    def recording(stream: int, status: Any) -> int:
        status._obj.value = 1
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(driver, "cuStreamIsCapturing", recording)
        with pytest.raises(CommandFailed, match="recording a graph"):
            await x.fill(1)
        taken.close()
        dev.empty(1)  # not even a release can be put in order now
        assert core_of(dev).part(DeviceMemory).interop._uses
    await x.fill(2)
    assert (await x.to_host())[0] == 2


async def test_there_is_an_end_to_the_streams_that_one_device_knows(dev, library, monkeypatch):
    (x,) = await numbers(dev, 0)
    library.interop._fences.update(dict.fromkeys(range(10**6, 10**6 + STREAMS)))  # type: ignore[arg-type]
    with pytest.raises(BufferError, match="1024 streams"):
        library.take(x)
    library.interop._fences.clear()


class OfAnotherLibrary:
    """A stream as another library has it."""

    def __init__(self, told: object) -> None:
        self.told = told

    def __cuda_stream__(self) -> object:
        return self.told


@pytest.mark.parametrize("by", ["handle", "protocol"])
async def test_an_array_is_shared_in_order_with_a_stream_that_its_interface_cannot_name(dev, library, by):
    x, y = await numbers(dev, 0, 0)
    stream = OfAnotherLibrary((0, library.stream)) if by == "protocol" else library.stream
    for _ in range(2):  # which is no more than once
        assert await dev.share(x, stream=stream) is x
    address = x.__cuda_array_interface__["data"][0]
    assert sorted(x._storage.uses) == sorted((library.stream, 1))
    assert sum(not use.released for use in library.interop._uses[x._block]) == 2
    library.wait_at_gate()
    library.write(address, 5)
    copy = await kernel(dev, "copy")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(copy.launch, 1, 1, atomr_trio.read_only(x), y)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert "interop.wait" in core_of(dev).current.timeline.in_flight()
        library.open_gate()
    assert (await y.to_host())[0] == 5
    block = x._block
    del x
    gc.collect()
    library.synchronize()
    helper.until(lambda: library.interop.collect() or not library.interop.uses(block))


async def test_a_stream_without_a_handle_is_the_default_one(dev, library):
    (x,) = await numbers(dev, 0)
    await dev.share(x, stream=OfAnotherLibrary((0, 0)))
    await dev.share(dev.zeros(0), stream=1)
    assert list(x._storage.uses) == [1]


@pytest.mark.parametrize(
    "stream",
    [
        "1",
        0,
        True,
        -2,
        1.0,
        *map(OfAnotherLibrary, (None, 5, (0,), (0, "1"), (0, None), (0, False), [0, 1], (0, 1, 2))),
    ],
)
async def test_what_is_no_stream_is_refused_before_anything_is_waited_for(dev, library, stream):
    (x,) = await numbers(dev, 0)
    with pytest.raises(InvalidArgument, match=r"a stream is -1 for no order, .* `__cuda_stream__` returns"):
        await dev.share(x, stream=stream)
    assert not library.interop.uses(x._block)


async def test_a_loss_while_an_array_is_shared_with_a_stream_is_waited_for(dev, library, monkeypatch):
    """The worker dies between the answer that all commands are done and the export."""
    (x,) = await numbers(dev, 3)
    export, generation = library.interop.export, dev.generation
    exported: list[int] = []

    def lose_first(array: Any, stream: int, **options: Any) -> Any:
        if not exported:
            exported.append(dev.generation)
            core_of(dev).current.lose(Loss(LossKind.EXIT, "lost by the test", reported_by="the test"))
        return export(array, stream, **options)

    monkeypatch.setattr(library.interop, "export", lose_first)
    await dev.share(x, stream=library.stream)
    assert (exported, dev.generation) == ([generation], generation + 1)
    assert list(x._storage.uses) == [library.stream]
    await dev.share(x, stream=library.stream)


async def test_too_many_streams_are_refused_when_an_array_is_shared(dev, library, monkeypatch):
    (x,) = await numbers(dev, 0)
    monkeypatch.setattr(_exports, "STREAMS", 0)
    with pytest.raises(BufferError, match="use fewer streams"):
        await dev.share(x, stream=library.stream)


async def test_on_the_simulator_there_is_no_stream_to_keep_order_with(dev):
    x = await dev.to_device(np.arange(3))
    assert await dev.share(x, stream=7) is x
    assert x._storage.uses is None
    assert np.from_dlpack(x).tolist() == [0, 1, 2]


async def test_the_array_interface_lasts_as_long_as_the_array(dev, library):
    x = await dev.to_device(np.arange(12, dtype=np.float32).reshape(3, 4))
    interface = x.__cuda_array_interface__
    assert interface == {
        "shape": (3, 4),
        "typestr": "<f4",
        "data": (x.address, False),
        "strides": None,
        "version": 3,
        "stream": 1,
    }
    assert x[:, ::2].__cuda_array_interface__["strides"] == (16, 8)
    assert dev.zeros(0).__cuda_array_interface__["data"] == (0, False)
    assert not hasattr(await dev.to_device(np.zeros(2, check_dtype("bfloat16"))), "__cuda_array_interface__")
    address = x.address
    view = x[1:]
    x.free()
    assert address not in free_addresses(dev, x, 8)
    like = np.empty(x.shape, x.dtype)
    del x, view
    gc.collect()
    dev.empty(1)
    driver.cuCtxSynchronize()
    assert address in free_addresses(dev, like)


async def test_an_exported_array_that_is_dropped_goes_back(dev, library):
    x = await dev.to_device(np.arange(1000))
    address, _ = x.address, x.__cuda_array_interface__
    del x
    gc.collect()
    dev.empty(1)
    driver.cuCtxSynchronize()
    assert address in free_addresses(dev, np.arange(1000))
    assert mapped_chunks() == 0


async def test_what_is_shared_outlives_the_device_for_a_driver_too(context, pool):
    async with open_test_device(workers=pool) as dev:
        library = play_library(dev)
        x, y = await numbers(dev, 6, 7)
        taken, early = library.take(x), library.take(y)
        library.write(early.tensor.address, 1)
        early.close()
        await x.fill(8)
    library.begin_read(taken.tensor.address)
    library.synchronize()
    assert library.read == 8
    taken.close()
    helper.until(lambda: library.interop._consumer is None and mapped_chunks() == 0)


async def test_closing_does_not_wait_for_a_stream_and_its_memory_does(context, pool):
    async with open_test_device(workers=pool) as dev:
        library = play_library(dev)
        (x,) = await numbers(dev, 6)
        taken = library.take(x)
        library.wait_at_gate()
        library.begin_read(taken.tensor.address)
        taken.close()
    assert mapped_chunks() == 1
    library.open_gate()
    library.synchronize()
    assert library.read == 6
    helper.until(lambda: library.interop._consumer is None and mapped_chunks() == 0)


async def test_a_generation_that_ends_with_nothing_shared_leaves_nothing_registered(dev, library):
    (x,) = await numbers(dev, 0)
    taken = library.take(x)
    await x.fill(1)
    taken.close()
    dev.empty(1)
    library.synchronize()
    dev.empty(1)
    assert not core_of(dev).part(DeviceMemory).interop._uses
    assert len(core_of(dev).part(DeviceMemory).interop._counters) == 1
    await dev.restart("for a test")
    assert len(core_of(dev).part(DeviceMemory).interop._counters) == 0
    assert not core_of(dev).part(DeviceMemory).interop._ended


async def test_without_descriptors_nothing_can_be_shared(dev, library, monkeypatch):
    (x,) = await numbers(dev, 0)
    monkeypatch.setattr(core_of(dev), "known_info", attrs.evolve(dev.info, durable=False))
    with pytest.raises(BufferError, match="cannot be shared"):
        library.take(x)


async def test_a_driver_that_refuses_is_the_error_of_one_request(dev, library):
    (x,) = await numbers(dev, 0)
    atomr_sim.inject("cuMemSetAccess:2:1")
    with pytest.raises(CommandFailed, match="refused it in this process"):
        library.take(x)
    assert mapped_chunks() == 0
    taken = library.take(x)
    atomr_sim.inject("cuStreamWaitValue64:801:1")
    with pytest.raises(CommandFailed) as caught:
        await x.fill(1)
    assert (caught.value.status, caught.value.operation) == (801, "interop.order")
    await x.fill(2)
    taken.close()
    atomr_sim.withdraw()


def host_addresses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where the host memory lies that is registered from now on."""
    seen: list[int] = []

    def noting(memory: Any, place: Any = _consumer._host_address) -> int:
        seen.append(place(memory))
        return seen[-1]

    monkeypatch.setattr(_consumer, "_host_address", noting)
    return seen


def is_registered(address: int) -> bool:
    kind = ctypes.c_uint()
    return driver.cuPointerGetAttribute.status(ctypes.byref(kind), MEMORY_TYPE, address) == 0


@pytest.mark.parametrize("function", ["cuMemHostRegister", "cuMemHostGetDevicePointer"])
async def test_a_consumer_that_is_refused_keeps_nothing(context, dev, function, monkeypatch):
    seen = host_addresses(monkeypatch)
    descriptors = open_descriptors(collect=True)
    atomr_sim.inject(f"{function}:2:1")
    with pytest.raises(CudaError):
        _consumer.Consumer(dev.info.pci_bus_id)
    assert not any(map(is_registered, seen))
    assert open_descriptors() == descriptors
    made = _consumer.Consumer(dev.info.pci_bus_id)
    assert is_registered(seen[-1])
    made.close()
    assert not is_registered(seen[-1])
    assert driver.cuDevicePrimaryCtxRelease.status(0) == 0
    assert driver.cuDevicePrimaryCtxRelease.status(0) != 0, "only the fixture had it any more"


@pytest.mark.parametrize("function", ["cuMemHostRegister", "cuMemHostGetDevicePointer"])
async def test_a_generation_whose_counters_are_refused_is_asked_again(dev, library, function, monkeypatch):
    x, y = await numbers(dev, 1, 2)
    taken = library.take(x)  # the consumer is there
    seen = host_addresses(monkeypatch)
    atomr_sim.inject(f"{function}:2:1")
    with pytest.raises(CommandFailed, match="refused it in this process"):
        await x.fill(3)
    assert seen
    assert not any(map(is_registered, seen))
    await x.copy_from(y)
    assert (await x.to_host())[0] == 2
    taken.close()
    atomr_sim.withdraw()


@pytest.mark.parametrize("function", ["cuMemHostRegister", "cuMemHostGetDevicePointer"])
async def test_a_worker_that_is_refused_the_page_of_words_gets_it_when_it_has_to_wait(dev, library, function):
    (x,) = await numbers(dev, 5)
    core_of(dev).current.request_faults(f"{function}:2")
    taken = library.take(x)
    await (await kernel(dev, "step")).launch(1, 1, x, 2, 1)
    assert (await x.to_host())[0] == 11
    taken.close()
    assert dev.generation == 1


async def test_an_export_that_cannot_be_put_in_order_is_none(dev, library):
    flag, x = await numbers(dev, 0, 0)
    go = library.take(flag, -1)
    (await kernel(dev, "wait_and_set")).launch_nowait(1, 1, atomr_trio.read_only(flag), x, 7)
    atomr_sim.inject("cuStreamWaitValue64:801:1")
    with pytest.raises(CommandFailed, match="refused it in this process"):
        library.take(x)
    ctypes.c_int.from_address(go.tensor.address).value = 1
    dev.empty(1)
    library.synchronize()
    dev.empty(1)
    assert list(core_of(dev).part(DeviceMemory).interop._uses) == [flag._block]
    assert (await x.to_host())[0] == 7
    go.close()
    atomr_sim.withdraw()


async def test_a_command_with_two_streams_leaves_neither_waiting_when_one_refuses(dev, library):
    x, y = await numbers(dev, 0, 0)
    second = Library(library.interop)
    taken = library.take(x), second.take(y)
    copy = await kernel(dev, "copy")
    atomr_sim.inject("cuStreamWaitValue64:801:2")
    with pytest.raises(CommandFailed, match="refused it in this process"):
        await copy.launch(1, 1, atomr_trio.read_only(x), y)
    library.synchronize()
    second.synchronize()
    await copy.launch(1, 1, atomr_trio.read_only(x), y)
    for each in taken:
        each.close()
    atomr_sim.withdraw()


async def test_without_a_driver_the_libraries_name_says_what_is_missing(dev, monkeypatch):
    def missing(flags: int) -> None:
        raise LibraryMissing("cuda", None, ("nowhere",))

    (x,) = await numbers(dev, 0)
    monkeypatch.setattr(driver, "cuInit", missing)
    core_of(dev).part(DeviceMemory).interop = Interop(core_of(dev).part(DeviceMemory), cuda=True)
    with pytest.raises(LibraryNotFound, match="nowhere"):
        np.from_dlpack(x)
    with pytest.raises(LibraryNotFound, match="nowhere"):
        await dev.share(x)


async def test_a_driver_that_refuses_to_take_back_keeps_the_memory_and_nothing_else(dev, library):
    x, y = await numbers(dev, 0, 1)
    taken, other = library.take(x), library.take(y)
    taken.close()
    atomr_sim.inject("cuStreamWriteValue64:999:1")
    dev.empty(1)
    assert x._block in core_of(dev).part(DeviceMemory).interop._uses
    other.close()
    dev.empty(1)
    library.synchronize()
    atomr_sim.inject("cuMemUnmap:999:1")
    dev.empty(1)
    assert not core_of(dev).part(DeviceMemory).interop._uses
    assert [int((await each.to_host())[0]) for each in (x, y)] == [0, 1]
    atomr_sim.withdraw()


# --- from another library ---------------------------------------------------------------------------------------------


class Tensor:
    """A tensor of another library."""

    def __init__(self, library: Library, host: np.ndarray) -> None:
        self._library = library
        self._address = helper.allocate(max(host.nbytes, 1))
        self._strides, self.shape, self.dtype = host.strides, host.shape, host.dtype
        self._offset = 0
        self.released = 0
        self.device = 0
        helper.write(self._address, host.tobytes())

    def view(self, index: Any) -> Tensor:
        shadow = np.lib.stride_tricks.as_strided(np.empty(1, self.dtype), self.shape, self._strides)
        view = shadow[index]
        self._offset = view.__array_interface__["data"][0] - shadow.__array_interface__["data"][0]
        self._strides, self.shape = view.strides, view.shape
        return self

    def __dlpack_device__(self) -> tuple[int, int]:
        return (DeviceType.CUDA, self.device)

    def __dlpack__(self, *, stream: int, max_version: tuple[int, int]) -> object:
        event = helper.event()
        driver.cuEventRecord(event, self._library.stream)
        driver.cuStreamWaitEvent(stream, event, 0)
        strides = tuple(stride // self.dtype.itemsize for stride in self._strides)
        place, kind = self.__dlpack_device__(), dlpack_type(self.dtype)
        tensor = _dlpack.Tensor(self._address + self._offset, place, self.shape, strides, *kind)
        return _dlpack.give(tensor, self.release, versioned=True)

    def release(self) -> None:
        self.released += 1

    @property
    def described(self) -> SimpleNamespace:
        interface = {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self._address + self._offset, False),
            "strides": self._strides,
            "version": 3,
            "stream": self._library.stream,
        }
        return SimpleNamespace(__cuda_array_interface__=interface, owner=self)


HOST = np.arange(120, dtype=np.int32).reshape(4, 5, 6)


PARTS = (np.s_[:], np.s_[1:, ::2, ::-1], np.s_[::2, 1:4, 2:5], np.s_[2, 3, 4, ...], np.s_[:0])


@pytest.mark.parametrize("index", PARTS)
@pytest.mark.parametrize("described", [False, True])
async def test_a_tensor_is_copied_whatever_its_strides(dev, library, index, described):
    tensor = Tensor(library, HOST).view(index)
    x = await dev.to_device(tensor.described if described else tensor)
    assert np.array_equal(await x.to_host(), HOST[index])
    assert x.contiguous
    assert tensor.released == (not described)
    assert not core_of(dev).part(DeviceMemory).interop._leaving
    dev.empty(1)
    assert not core_of(dev).part(DeviceMemory).interop._uses


@pytest.mark.parametrize("described", [False, True])
async def test_a_copy_comes_after_what_the_tensor_still_waits_for(dev, library, described):
    tensor = Tensor(library, np.zeros(1, np.int32))
    library.wait_at_gate()
    library.write(tensor._address, 12)
    result = []

    async def copy() -> None:
        result.append(await dev.to_device(tensor.described if described else tensor))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(copy)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not result
        library.open_gate()
    assert (await result[0].to_host())[0] == 12


async def test_a_cancelled_copy_holds_both_memories_until_it_is_over(dev, library):
    tensor = Tensor(library, np.full(1000, 9, np.int32))
    library.wait_at_gate()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dev.to_device, tensor)
            await until(lambda: bool(core_of(dev).part(DeviceMemory).interop._uses))  # a thread brings it that far
            await trio.testing.wait_all_tasks_blocked(0.01)
            scope.cancel()
    (held,) = core_of(dev).part(DeviceMemory).interop._uses
    assert held.freed
    assert tensor.released == 0
    like = np.empty(1000, np.int32)
    assert held.address not in free_addresses(dev, like, 8)
    library.open_gate()
    while not tensor.released or core_of(dev).part(DeviceMemory).interop._uses:
        await trio.lowlevel.checkpoint()
        core_of(dev).part(DeviceMemory).interop.collect()
    assert held.address in free_addresses(dev, like)


async def test_memory_that_cannot_be_copied_is_refused(dev, library):
    tensor = Tensor(library, HOST)
    tensor.device = 1
    with pytest.raises(InvalidArgument, match="on GPU 1"):
        await dev.to_device(tensor)
    assert tensor.released == 1
    for change, match in (
        ({"mask": tensor}, "it has a mask"),
        ({"typestr": "<M8[s]"}, "cannot have dtype"),
        ({"data": (1 << 40, False)}, "refused it in this process"),
    ):
        described = Tensor(library, HOST).described
        described.__cuda_array_interface__.update(change)
        with pytest.raises((InvalidArgument, CommandFailed), match=match):
            await dev.to_device(described)
