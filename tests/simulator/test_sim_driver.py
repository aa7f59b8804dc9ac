"""The simulated driver through the public table: everything but kernels, and nothing that loses the process."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p, create_string_buffer

import numpy as np
import pytest

import atomr_sim
from atomr_cuda import CudaError, SymbolMissing, driver
from atomr_cuda.driver import CUdevice_attribute, CUmemorytype, CUresult
from support import child_environment, sim_process as helper
from support.sim_process import GRANULE, MIB, run_in_process

pytestmark = pytest.mark.sim_only


@pytest.fixture(autouse=True)
def context():
    """A current primary context that nothing survives in."""
    handle = helper.begin()
    yield handle
    driver.cuCtxSetCurrent(handle)
    while driver.cuDevicePrimaryCtxRelease.status(0) == 0:
        pass
    driver.cuCtxSetCurrent(None)


def attribute(name: str) -> int:
    value = c_int()
    driver.cuDeviceGetAttribute(value, CUdevice_attribute[f"CU_DEVICE_ATTRIBUTE_{name}"], 0)
    return value.value


# Devices, errors, contexts.


def test_the_device_says_what_it_is():
    count, name, bus = c_int(), create_string_buffer(64), create_string_buffer(16)
    driver.cuDeviceGetCount(count)
    driver.cuDeviceGetName(name, 64, 0)
    driver.cuDeviceGetPCIBusId(bus, 16, 0)
    assert (count.value, name.value, bus.value) == (1, b"atomr simulated GPU", b"0000:00:00.0")
    found = c_int(-1)
    driver.cuDeviceGetByPCIBusId(found, bus.value)
    assert found.value == 0
    assert driver.cuDeviceGetByPCIBusId.status(found, b"0000:07:00.0") == CUresult.CUDA_ERROR_INVALID_DEVICE
    assert (attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")) == (8, 0)
    assert (attribute("MAX_GRID_DIM_X"), attribute("MAX_BLOCK_DIM_Z"), attribute("WARP_SIZE")) == (2**31 - 1, 64, 32)
    assert attribute("HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED") == 1
    assert attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN") == 166912
    assert driver.cuDeviceGetAttribute.status(c_int(), 100_000, 0) == CUresult.CUDA_ERROR_INVALID_VALUE
    assert driver.cuDeviceGet.status(c_int(), 1) == CUresult.CUDA_ERROR_INVALID_DEVICE


def test_a_stream_knows_its_context_and_records_nothing(context):
    stream, found, recording = helper.stream(), c_void_p(), c_int(-1)
    driver.cuStreamGetCtx(stream, found)
    driver.cuStreamIsCapturing(stream, recording)
    assert (found.value, recording.value) == (context.value, 0)
    driver.cuStreamDestroy(stream)
    assert driver.cuStreamGetCtx.status(stream, found) == CUresult.CUDA_ERROR_INVALID_HANDLE


def test_errors_carry_the_drivers_own_words():
    with pytest.raises(CudaError) as caught:
        driver.cuMemAlloc(c_uint64(), 1 << 40)
    assert str(caught.value) == "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"
    assert driver.cuGetErrorName.status(12345, byref(c_char_p())) == 1


def test_calls_before_init_and_without_a_context_are_refused():
    done = run_in_process("""
        atomr_sim.install()
        print(cuDeviceGetCount.status(c_int()), cuMemAlloc.status(c_uint64(), 64))
        cuInit(0)
        print(cuMemAlloc.status(c_uint64(), 64), cuStreamCreate.status(c_void_p(), 1), cuCtxSynchronize.status())
    """)
    assert done.stdout.split() == ["3", "3", "201", "201", "201"]


def test_a_thread_has_a_current_context_of_its_own(context):
    statuses = []

    def other():
        statuses.append(driver.cuCtxSynchronize.status())
        driver.cuCtxSetCurrent(context)
        statuses.append(driver.cuCtxSynchronize.status())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert statuses == [CUresult.CUDA_ERROR_INVALID_CONTEXT, 0]


def test_the_primary_context_is_counted_and_comes_back_under_its_number(context):
    again, active = c_void_p(), c_int()
    driver.cuDevicePrimaryCtxRetain(again, 0)
    assert again.value == context.value
    address, on = helper.allocate(64), helper.stream()
    driver.cuDevicePrimaryCtxRelease(0)
    driver.cuStreamSynchronize(on)
    driver.cuDevicePrimaryCtxRelease(0)
    driver.cuDevicePrimaryCtxGetState(0, c_uint(), active)
    assert active.value == 0
    assert driver.cuStreamCreate.status(c_void_p(), 1) == CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED
    assert driver.cuDevicePrimaryCtxRelease.status(0) == CUresult.CUDA_ERROR_INVALID_CONTEXT
    driver.cuDevicePrimaryCtxRetain(again, 0)
    assert again.value == context.value
    assert driver.cuStreamSynchronize.status(on) == CUresult.CUDA_ERROR_INVALID_HANDLE
    assert driver.cuMemFree.status(address) == CUresult.CUDA_ERROR_INVALID_VALUE


def test_a_reset_gives_back_what_the_context_owned():
    free = helper.free_memory()
    helper.allocate(MIB)
    assert helper.free_memory() == free - MIB
    driver.cuDevicePrimaryCtxReset(0)
    assert helper.free_memory() == free


def test_contexts_beside_the_primary_one(context):
    other, current = c_void_p(), c_void_p()
    driver.cuCtxCreate_v2(other, 0, 0)
    driver.cuCtxGetCurrent(current)
    assert current.value == other.value != context.value
    driver.cuCtxPopCurrent(None)
    driver.cuCtxGetCurrent(current)
    assert current.value == context.value
    driver.cuCtxDestroy(other)
    assert driver.cuCtxSetCurrent.status(other) == CUresult.CUDA_ERROR_INVALID_CONTEXT


def test_the_environment_decides_devices_and_memory():
    done = run_in_process(
        """
        begin(1)
        count = c_int(); cuDeviceGetCount(count)
        print(count.value, free_memory(), cuMemAlloc.status(c_uint64(), 5 << 20))
        """,
        ATOMR_TRIO_SIM_DEVICES="2",
        ATOMR_TRIO_SIM_MEMORY=str(4 * MIB),
    )
    assert done.stdout.split() == ["2", str(4 * MIB), "2"]
    done = run_in_process("atomr_sim.install(); print(cuInit.status(0))", ATOMR_TRIO_SIM_DEVICES="0")
    assert done.stdout.split() == ["100"]


# Plain memory, copies, fills.


def test_bytes_go_to_the_device_and_back():
    address = helper.allocate(1000)
    data = bytes(range(250)) * 4
    helper.write(address, data)
    other = helper.allocate(1000)
    driver.cuMemcpyDtoD(other, address, 1000)
    assert helper.read(other, 1000) == data
    assert helper.read(other + 10, 5) == data[10:15]


def test_new_memory_is_accounted_and_ranges_are_checked():
    free = helper.free_memory()
    address = helper.allocate(1000)
    assert helper.free_memory() == free - 1024
    invalid = CUresult.CUDA_ERROR_INVALID_VALUE
    assert driver.cuMemsetD8.status(address, 0, 1001) == invalid
    assert driver.cuMemcpyHtoD.status(address + 999, b"ab", 2) == invalid
    assert driver.cuMemcpyDtoH.status(create_string_buffer(8), 0x1234, 8) == invalid
    assert driver.cuMemFree.status(address + 1) == invalid
    assert driver.cuMemAlloc.status(c_uint64(), 0) == invalid
    driver.cuMemFree(0)
    driver.cuMemFree(address)
    assert driver.cuMemFree.status(address) == invalid
    assert driver.cuMemsetD8.status(address, 0, 1) == invalid
    assert helper.free_memory() == free


@pytest.mark.parametrize(("bits", "value"), [(8, 0xA5), (16, 0xA55A), (32, 0xDEADBEEF)])
def test_fills_of_every_width(bits, value):
    address, on = helper.allocate(64 * 64), helper.stream()
    getattr(driver, f"cuMemsetD{bits}")(address, value, 8)
    item = np.dtype(f"u{bits // 8}")
    assert list(np.frombuffer(helper.read(address, 9 * item.itemsize), item)) == [value] * 8 + [0]
    getattr(driver, f"cuMemsetD2D{bits}Async")(address + 64, 64, value, 3, 4, on)
    driver.cuStreamSynchronize(on)
    rows = np.frombuffer(helper.read(address + 64, 64 * 5), item).reshape(5, -1)
    assert (rows[:4, :3] == value).all()
    assert not rows[:4, 3:].any()
    assert not rows[4:].any()


def test_a_misaligned_fill_is_refused():
    assert driver.cuMemsetD32.status(helper.allocate(64) + 2, 0, 1) == CUresult.CUDA_ERROR_INVALID_VALUE


def test_rectangles_are_copied_between_pitches():
    address = helper.allocate(32 * 10)
    source = np.arange(6 * 8, dtype=np.uint8).reshape(6, 8)
    copy = driver.CUDA_MEMCPY2D()
    copy.srcMemoryType, copy.srcHost, copy.srcPitch = CUmemorytype.CU_MEMORYTYPE_HOST, source.ctypes.data, 8
    copy.srcXInBytes, copy.srcY = 2, 1
    copy.dstMemoryType, copy.dstDevice, copy.dstPitch = CUmemorytype.CU_MEMORYTYPE_DEVICE, address, 32
    copy.WidthInBytes, copy.Height = 5, 4
    driver.cuMemcpy2DAsync(copy, None)
    driver.cuStreamSynchronize(None)
    got = np.frombuffer(helper.read(address, 320), np.uint8).reshape(10, 32)
    assert (got[:4, :5] == source[1:5, 2:7]).all()
    assert got.sum() == source[1:5, 2:7].sum()
    copy.Height = 11
    assert driver.cuMemcpy2DAsync.status(copy, None) == CUresult.CUDA_ERROR_INVALID_VALUE


def test_pageable_memory_is_read_before_an_asynchronous_copy_returns():
    address, on, flag = helper.allocate(16), helper.stream(), helper.allocate(8)
    source = create_string_buffer(b"as it was then..", 16)
    driver.cuStreamWaitValue64(on, flag, 1, 0)
    driver.cuMemcpyHtoDAsync(address, source, 16, on)
    source.raw = b"changed since.  "
    driver.cuMemsetD32(flag, 1, 1)
    driver.cuStreamSynchronize(on)
    assert helper.read(address, 16) == b"as it was then.."


def test_registered_memory_is_the_devices_at_the_same_address():
    buffer = create_string_buffer(8192)
    at, device_address = ctypes.addressof(buffer), c_uint64()
    driver.cuMemHostRegister(buffer, 8192, driver.CU_MEMHOSTREGISTER_DEVICEMAP)
    driver.cuMemHostGetDevicePointer(device_address, buffer, 0)
    assert device_address.value == at
    taken = CUresult.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
    assert driver.cuMemHostRegister.status(at + 4096, 16, 0) == taken
    driver.cuMemsetD8(at, 7, 100)
    assert buffer.raw[:101] == b"\7" * 100 + b"\0"
    driver.cuMemHostUnregister(buffer)
    assert driver.cuMemsetD8.status(at, 7, 1) == CUresult.CUDA_ERROR_INVALID_VALUE
    assert driver.cuMemHostUnregister.status(buffer) == CUresult.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
    assert driver.cuMemHostRegister.status(0x10, 4096, 0) == CUresult.CUDA_ERROR_INVALID_VALUE


def test_pinned_memory_and_what_a_pointer_is():
    pinned, kind, size = c_void_p(), c_uint(), c_size_t()
    driver.cuMemAllocHost(pinned, 4096)
    attributes = driver.CUpointer_attribute
    assert pinned.value is not None
    memory_type = attributes.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    driver.cuPointerGetAttribute(byref(kind), memory_type, pinned.value)
    driver.cuPointerGetAttribute(byref(size), attributes.CU_POINTER_ATTRIBUTE_RANGE_SIZE, pinned.value + 5)
    assert (kind.value, size.value) == (CUmemorytype.CU_MEMORYTYPE_HOST, 4096)
    driver.cuPointerGetAttribute(byref(kind), memory_type, helper.allocate(64))
    assert kind.value == CUmemorytype.CU_MEMORYTYPE_DEVICE
    driver.cuMemFreeHost(pinned)
    assert driver.cuPointerGetAttribute.status(byref(kind), memory_type, pinned.value) == 1


# Streams and events.


def test_a_stream_keeps_order_and_says_when_it_is_busy():
    on, flag, data = helper.stream(), helper.allocate(8), helper.allocate(8)
    driver.cuStreamWaitValue64(on, flag, 5, driver.CU_STREAM_WAIT_VALUE_GEQ)
    driver.cuStreamWriteValue64(on, data, 77, 0)
    assert driver.cuStreamQuery.status(on) == CUresult.CUDA_ERROR_NOT_READY
    assert helper.word(data) == 0
    driver.cuMemsetD32(flag, 5, 1)
    driver.cuStreamSynchronize(on)
    assert helper.word(data) == 77
    assert driver.cuStreamQuery.status(on) == 0


def test_a_word_written_by_the_host_releases_a_stream():
    on = helper.stream()
    page = np.zeros(512, np.uint64)
    driver.cuMemHostRegister(page.ctypes.data, page.nbytes, 0)
    for step in (1, 2, 3):
        driver.cuStreamWaitValue64(on, page.ctypes.data, step, driver.CU_STREAM_WAIT_VALUE_GEQ)
        driver.cuStreamWriteValue64(on, page.ctypes.data + 64, step, 0)
    for step in (1, 2, 3):
        page[0] = step
        helper.until(lambda step=step: page[8] == step)
    driver.cuMemHostUnregister(page.ctypes.data)


@pytest.mark.parametrize(
    ("flags", "wanted", "holds", "fails"),
    [
        (driver.CU_STREAM_WAIT_VALUE_GEQ, 3, 4, 2),
        (driver.CU_STREAM_WAIT_VALUE_GEQ, 1, 5, 2**32 - 1),
        (driver.CU_STREAM_WAIT_VALUE_EQ, 3, 3, 4),
        (driver.CU_STREAM_WAIT_VALUE_AND, 6, 2, 9),
        (driver.CU_STREAM_WAIT_VALUE_NOR, 2**32 - 2, 0, 1),
    ],
)
def test_the_comparisons_of_a_wait(flags, wanted, holds, fails):
    on, address, done = helper.stream(), helper.allocate(8), helper.allocate(8)
    driver.cuMemsetD32(address, fails, 1)
    driver.cuStreamWaitValue32(on, address, wanted, flags)
    driver.cuStreamWriteValue32(on, done, 1, 0)
    assert driver.cuStreamQuery.status(on) == CUresult.CUDA_ERROR_NOT_READY
    driver.cuMemsetD32(address, holds, 1)
    driver.cuStreamSynchronize(on)
    assert helper.word(done) == 1


def test_an_event_orders_two_streams():
    first, second, mark = helper.stream(), helper.stream(), helper.event()
    flag, order = helper.allocate(8), helper.allocate(16)
    driver.cuStreamWaitValue64(first, flag, 1, 0)
    driver.cuStreamWriteValue64(first, order, 1, 0)
    driver.cuEventRecord(mark, first)
    driver.cuStreamWaitEvent(second, mark, 0)
    driver.cuMemcpyDtoDAsync(order + 8, order, 8, second)
    assert driver.cuEventQuery.status(mark) == CUresult.CUDA_ERROR_NOT_READY
    assert driver.cuStreamQuery.status(second) == CUresult.CUDA_ERROR_NOT_READY
    driver.cuMemsetD32(flag, 1, 1)
    driver.cuEventSynchronize(mark)
    driver.cuStreamSynchronize(second)
    assert helper.word(order + 8) == 1


def test_an_event_never_recorded_holds_nobody_back():
    mark, on = helper.event(), helper.stream()
    driver.cuStreamWaitEvent(on, mark, 0)
    driver.cuStreamSynchronize(on)
    driver.cuEventSynchronize(mark)
    assert driver.cuEventQuery.status(mark) == 0


def test_events_measure_time_unless_told_not_to():
    on, start, end, elapsed = helper.stream(), helper.event(), helper.event(), c_float(-1)
    driver.cuEventRecord(start, on)
    driver.cuEventRecord(end, on)
    driver.cuEventSynchronize(end)
    driver.cuEventElapsedTime(elapsed, start, end)
    assert 0 <= elapsed.value < 10_000
    untimed = helper.event(driver.CU_EVENT_DISABLE_TIMING)
    driver.cuEventRecord(untimed, on)
    assert driver.cuEventElapsedTime.status(elapsed, start, untimed) == CUresult.CUDA_ERROR_INVALID_HANDLE


def test_the_default_stream_waits_for_blocking_streams_and_they_for_it():
    blocking, free, flag, order = helper.stream(0), helper.stream(), helper.allocate(8), helper.allocate(24)
    driver.cuStreamWaitValue64(blocking, flag, 1, 0)
    driver.cuStreamWriteValue64(blocking, order, 1, 0)
    driver.cuMemcpyDtoDAsync(order + 8, order, 8, None)
    driver.cuMemcpyDtoDAsync(order + 16, order + 8, 8, blocking)
    driver.cuStreamWriteValue64(free, flag, 1, 0)
    driver.cuStreamSynchronize(blocking)
    assert [helper.word(order + 8 * at) for at in range(3)] == [1, 1, 1]


def test_a_destroyed_stream_still_finishes_its_work():
    on, flag, data = helper.stream(), helper.allocate(8), helper.allocate(8)
    driver.cuStreamWaitValue64(on, flag, 1, 0)
    driver.cuStreamWriteValue64(on, data, 9, 0)
    driver.cuStreamDestroy(on)
    assert driver.cuStreamQuery.status(on) == CUresult.CUDA_ERROR_INVALID_HANDLE
    driver.cuMemsetD32(flag, 1, 1)
    helper.until(lambda: helper.word(data) == 9)


def test_a_word_is_written_by_one_store():
    on, address = helper.stream(), helper.allocate(8)
    values = {0, 0x1111_1111_1111_1111, 0xEEEE_EEEE_EEEE_EEEE}
    seen = set()
    for number in range(2000):
        driver.cuStreamWriteValue64(on, address, 0x1111_1111_1111_1111 if number % 2 else 0xEEEE_EEEE_EEEE_EEEE, 0)
        seen.add(helper.word(address))
    driver.cuStreamSynchronize(on)
    assert seen <= values
    assert driver.cuStreamWriteValue64.status(on, address + 4, 1, 0) == CUresult.CUDA_ERROR_INVALID_VALUE


def test_many_threads_may_call_at_once(context):
    failures = []

    def work(number: int):
        try:
            driver.cuCtxSetCurrent(context)
            on, address = helper.stream(), helper.allocate(4096)
            for step in range(50):
                driver.cuMemsetD8Async(address, number, 4096, on)
                driver.cuStreamWriteValue64(on, address, step, 0)
                driver.cuStreamSynchronize(on)
                assert helper.word(address) == step
            assert helper.read(address + 8, 4088) == bytes([number]) * 4088
            driver.cuMemFree(address)
            driver.cuStreamDestroy(on)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# Virtual memory and descriptors.


def test_a_reservation_is_granted_at_the_hint_while_it_is_free():
    hint = 0x1234_0000_0000
    first = helper.reserve(16 * MIB, hint)
    second = helper.reserve(16 * MIB, hint)
    assert first == hint
    assert second != hint
    assert second % GRANULE == 0
    driver.cuMemAddressFree(first, 16 * MIB)
    assert helper.reserve(16 * MIB, hint) == hint
    driver.cuMemAddressFree(hint, 16 * MIB)
    driver.cuMemAddressFree(second, 16 * MIB)


def test_a_range_of_sixteen_tebibytes_can_be_reserved():
    # In a process of its own, as a worker is: what other tests have left in this one may have a place in the range.
    code = """
import ctypes
import atomr_sim
from atomr_cuda import driver
atomr_sim.install()
driver.cuInit(0)
context, address = driver.CUcontext(), driver.CUdeviceptr()
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
driver.cuCtxSetCurrent(context)
driver.cuMemAddressReserve(ctypes.byref(address), 1 << 44, 0, 1 << 44, 0)
print(address.value)
driver.cuMemAddressFree(address, 1 << 44)
"""
    done = subprocess.run([sys.executable, "-c", code], env=child_environment(), capture_output=True, check=True)
    assert int(done.stdout) == 1 << 44


def test_memory_is_mapped_made_accessible_and_taken_away():
    free = helper.free_memory()
    address, handle = helper.reserve(8 * MIB), helper.create(4 * MIB)
    assert helper.free_memory() == free - 4 * MIB
    driver.cuMemMap(address, 4 * MIB, 0, handle, 0)
    invalid = CUresult.CUDA_ERROR_INVALID_VALUE
    assert driver.cuMemsetD8.status(address, 1, 1) == invalid
    helper.allow(address, 4 * MIB)
    driver.cuMemsetD8(address, 1, 4 * MIB)
    assert driver.cuMemsetD8.status(address, 1, 4 * MIB + 1) == invalid
    assert driver.cuMemMap.status(address + GRANULE, 2 * MIB, 0, handle, 0) == invalid
    assert driver.cuMemAddressFree.status(address, 8 * MIB) == invalid
    driver.cuMemRelease(handle)
    assert driver.cuMemRelease.status(handle) == invalid
    assert helper.read(address, 3) == b"\1\1\1"
    assert helper.free_memory() == free - 4 * MIB
    driver.cuMemUnmap(address, 4 * MIB)
    assert helper.free_memory() == free
    assert driver.cuMemsetD8.status(address, 1, 1) == invalid
    driver.cuMemAddressFree(address, 8 * MIB)


def test_two_mappings_side_by_side_are_one_range_to_a_copy():
    address = helper.reserve(2 * GRANULE)
    for number in (0, 1):
        handle = helper.create(GRANULE)
        driver.cuMemMap(address + number * GRANULE, GRANULE, 0, handle, 0)
        driver.cuMemRelease(handle)
    helper.allow(address, 2 * GRANULE)
    helper.write(address + GRANULE - 3, b"across")
    assert helper.read(address + GRANULE - 3, 6) == b"across"
    driver.cuMemUnmap(address, 2 * GRANULE)
    driver.cuMemAddressFree(address, 2 * GRANULE)


def test_sizes_must_be_multiples_of_the_granularity():
    granularity = c_size_t()
    driver.cuMemGetAllocationGranularity(granularity, helper.properties(), 0)
    assert granularity.value == GRANULE
    invalid = CUresult.CUDA_ERROR_INVALID_VALUE
    assert driver.cuMemCreate.status(c_uint64(), GRANULE + 1, helper.properties(), 0) == invalid
    assert driver.cuMemAddressReserve.status(c_uint64(), 4096, 0, 0, 0) == invalid
    assert driver.cuMemCreate.status(c_uint64(), GRANULE, helper.properties(3), 0) == 101


def test_physical_memory_runs_out():
    assert driver.cuMemCreate.status(c_uint64(), 1 << 40, helper.properties(), 0) == CUresult.CUDA_ERROR_OUT_OF_MEMORY


def test_a_descriptor_is_the_callers_and_the_same_memory_counts_once():
    free = helper.free_memory()
    handle = helper.create(GRANULE)
    descriptor = helper.export(handle)
    again = helper.import_descriptor(descriptor)
    assert helper.free_memory() == free - GRANULE
    driver.cuMemRelease(handle)
    driver.cuMemRelease(again)
    assert helper.free_memory() == free
    assert os.fstat(descriptor).st_size == GRANULE
    third = helper.import_descriptor(descriptor)
    os.close(descriptor)
    driver.cuMemRelease(third)
    with open(os.devnull, "rb") as wrong:
        status = driver.cuMemImportFromShareableHandle.status(c_uint64(), wrong.fileno(), 1)
    assert status == CUresult.CUDA_ERROR_INVALID_VALUE


def test_memory_survives_the_process_that_wrote_it_at_the_same_address():
    address, descriptor = helper.durable()
    helper.write(address, b"written here")
    code = f"""
        begin()
        address = reserve(GRANULE, {address})
        assert address == {address}
        cuMemMap(address, GRANULE, 0, import_descriptor({descriptor}), 0)
        allow(address, GRANULE)
        print(read(address, 12).decode(), free_memory() == (2 << 30) - GRANULE, flush=True)
        write(address, b"and by another")
        os.kill(os.getpid(), 9)
    """
    done = run_in_process(code, descriptors=(descriptor,), check=False)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == ["written", "here", "True"]
    assert helper.read(address, 14) == b"and by another"
    os.close(descriptor)
    driver.cuMemUnmap(address, GRANULE)
    driver.cuMemAddressFree(address, GRANULE)


# What the simulator does not do, and faults on request.


def test_an_unsupported_function_says_so_once():
    done = run_in_process("""
        begin()
        print([cuMemPrefetchAsync.status(0, 0, 0, None) for _ in range(3)])
    """)
    assert done.stdout.strip() == "[801, 801, 801]"
    assert done.stderr.count("cuMemPrefetchAsync is not supported") == 1


def test_every_function_that_is_not_simulated_says_so_by_name():
    done = run_in_process("""
        from atomr_sim.driver import table
        begin()
        absent = [function for function in driver.library if function.symbol not in table.implemented()]
        for function in absent:
            print(function.symbol, function.status(*(kind() for kind in function.argtypes)))
    """)
    answers = dict(line.split() for line in done.stdout.splitlines())
    assert {"cuGraphClone", "cuIpcOpenMemHandle_v2", "cuLibraryLoadData"} <= set(answers)
    assert set(answers.values()) == {str(int(CUresult.CUDA_ERROR_NOT_SUPPORTED))}
    assert re.findall(r"(\w+) is not supported", done.stderr) == list(answers)


def test_an_injected_fault_comes_at_the_call_that_was_asked_for():
    atomr_sim.inject("cuMemAlloc:2:2")
    statuses = [driver.cuMemAlloc.status(c_uint64(), 64) for _ in range(3)]
    assert statuses == [0, 2, 0]
    atomr_sim.inject("cuStreamQuery:999")
    assert [driver.cuStreamQuery.status(None) for _ in range(2)] == [999, 0]


def test_injection_refuses_what_does_not_exist():
    with pytest.raises(ValueError, match="cuNothing"):
        atomr_sim.inject("cuNothing:1")
    with pytest.raises(ValueError, match="counted from 1"):
        atomr_sim.inject("cuMemAlloc:1:0")


def test_faults_come_from_the_environment_too():
    code = """
        atomr_sim.install()
        print([cuInit.status(0) for _ in range(3)], cuDevicePrimaryCtxRetain.status(c_void_p(), 0))
        print(cuDevicePrimaryCtxRetain.status(c_void_p(), 0))
    """
    faults = "cuInit:100:1,cuInit:3:2,cuDevicePrimaryCtxRetain:719:1:sticky"
    done = run_in_process(code, ATOMR_TRIO_SIM_FAULTS=faults)
    assert done.stdout.splitlines() == ["[100, 3, 0] 719", "719"]


def test_a_mistake_inside_a_function_is_reported_not_swallowed():
    done = run_in_process("""
        from atomr_sim.driver import regions
        begin()
        regions.Regions.allocate = None
        print(cuMemAlloc.status(c_uint64(), 64), cuMemAlloc.status(c_uint64(), 64))
    """)
    assert done.stdout.split() == ["999", "999"]
    assert "TypeError" in done.stderr


def test_null_pointers_for_results_are_invalid_values():
    assert driver.cuMemAlloc.status(None, 64) == CUresult.CUDA_ERROR_INVALID_VALUE
    assert driver.cuStreamCreate.status(None, 0) == CUresult.CUDA_ERROR_INVALID_VALUE


def test_every_declared_function_can_be_called_in_the_simulator():
    for name in driver.library.functions:
        driver.library.functions[name].bind()
    with pytest.raises(SymbolMissing):
        driver.library("cuNotInAnyTable")()
    del driver.library.functions["cuNotInAnyTable"]


def test_installing_does_not_look_for_the_driver():
    code = """
import atomr_sim
from atomr_cuda import driver
atomr_sim.install()
driver.cuInit(0)
print(driver.library.found_by)
"""
    environment = {**os.environ, "ATOMR_TRIO_CUDA_PATH": "/nowhere"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "simulator"
