"""Modules, launches and faults of the simulated driver, through the public table.

A fault costs the process in which it happens, so that everything that faults runs in a process of its own.
"""

from __future__ import annotations

import ctypes
import threading
import time
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p, create_string_buffer

import numpy as np
import pytest

from atomr_cuda import CudaError, driver
from atomr_cuda.driver import CUfunction_attribute, CUjit_option, CUlimit, CUresult
from support import sim_process as helper
from support.nvrtc import compile_ptx
from support.sim_process import run_in_process

pytestmark = pytest.mark.sim_only

SAXPY = """
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""
VARIED = """
struct Pair { int first; double second; };
__device__ int counter = 40;
extern "C" __global__ void varied(char a, Pair pair, double* out) { out[0] = a + pair.first + pair.second; }
extern "C" __global__ void count() { counter += 2; }
extern "C" __global__ void __launch_bounds__(64) narrow(int* out) { *out = blockDim.x; }
extern "C" __global__ void tile(int* out, int bytes) {
    __shared__ int fixed[256];
    extern __shared__ int free_size[];
    fixed[threadIdx.x % 256] = 7;
    free_size[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = free_size[threadIdx.x] + fixed[0] + bytes;
}
extern "C" __global__ void speak(int n) { printf("speaking %d\\n", n); }
"""
# What the processes below load: kernels that go wrong, and some that do not.
ROGUE = '''
ROGUE = """
extern "C" __global__ void wild(int* p) { *p = 1; }
extern "C" __global__ void skewed(char* p) { *(int*)(p + 1) = 1; }
extern "C" __global__ void trap() { __trap(); }
extern "C" __global__ void spin(volatile int* flag) { while (*flag == 0) { } }
extern "C" __global__ void good(long long* p) { *p += 1; }
extern "C" __global__ void partial(int* p, int* wild) { *p = 5; __threadfence(); *wild = 1; }
"""
ASSERTING = """
extern "C" __global__ void checked(int n) { assert(n > 3); }
"""
'''


@pytest.fixture(autouse=True)
def context():
    handle = helper.begin()
    yield handle
    driver.cuCtxSetCurrent(handle)
    driver.cuDevicePrimaryCtxRelease(0)
    driver.cuCtxSetCurrent(None)


# Modules and functions.


def test_saxpy_runs_and_is_right():
    n = 10_000
    x, y = np.arange(n, dtype=np.float32), np.full(n, 3, np.float32)
    on = helper.stream()
    at_x, at_y = helper.allocate(x.nbytes), helper.allocate(y.nbytes)
    helper.write(at_x, x.tobytes())
    helper.write(at_y, y.tobytes())
    kernel = helper.function(helper.load(SAXPY), "saxpy")
    arguments = (c_float(2), c_uint64(at_x), c_uint64(at_y), c_int(n))
    assert helper.launch(kernel, on, *arguments, grid=(40, 1, 1), block=(256, 1, 1)) == 0
    driver.cuStreamSynchronize(on)
    assert (np.frombuffer(helper.read(at_y, y.nbytes), np.float32) == 2 * x + 3).all()


def test_parameters_are_read_when_the_launch_is_made():
    kernel = helper.function(helper.load(VARIED), "varied")
    on, flag, out = helper.stream(), helper.allocate(8), helper.allocate(8)
    offsets, sizes = [], []
    for index in range(3):
        offset, size = c_size_t(), c_size_t()
        driver.cuFuncGetParamInfo(kernel, index, offset, size)
        offsets.append(offset.value)
        sizes.append(size.value)
    assert (offsets, sizes) == ([0, 8, 24], [1, 16, 8])
    assert driver.cuFuncGetParamInfo.status(kernel, 3, c_size_t(), c_size_t()) == CUresult.CUDA_ERROR_INVALID_VALUE

    class Pair(ctypes.Structure):
        _fields_ = [("first", c_int), ("second", ctypes.c_double)]

    letter, pair = ctypes.c_byte(5), Pair(10, 0.25)
    driver.cuStreamWaitValue64(on, flag, 1, 0)
    assert helper.launch(kernel, on, letter, pair, c_uint64(out)) == 0
    letter.value, pair.first = 99, 99
    driver.cuMemsetD32(flag, 1, 1)
    driver.cuStreamSynchronize(on)
    assert np.frombuffer(helper.read(out, 8))[0] == 15.25


def test_parameters_may_come_as_one_buffer():
    kernel = helper.function(helper.load(VARIED), "varied")
    out = helper.allocate(8)
    block = create_string_buffer(32)
    block[0] = 1
    ctypes.memmove(byref(block, 8), byref(c_int(2)), 4)
    ctypes.memmove(byref(block, 16), byref(ctypes.c_double(0.5)), 8)
    ctypes.memmove(byref(block, 24), byref(c_uint64(out)), 8)
    size = c_size_t(32)
    extra = (c_void_p * 5)(1, ctypes.addressof(block), 2, ctypes.addressof(size), None)
    driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, byref(extra))
    driver.cuCtxSynchronize()
    assert np.frombuffer(helper.read(out, 8))[0] == 3.5
    size.value = 31
    launch = driver.cuLaunchKernel.status
    assert launch(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, byref(extra)) == CUresult.CUDA_ERROR_INVALID_VALUE
    assert launch(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None) == CUresult.CUDA_ERROR_INVALID_VALUE


def test_globals_are_memory_of_the_module():
    module = helper.load(VARIED)
    address, size = c_uint64(), c_size_t()
    driver.cuModuleGetGlobal(address, size, module, b"counter")
    assert size.value == 4
    assert helper.read(address.value, 4) == (40).to_bytes(4, "little")
    assert helper.launch(helper.function(module, "count"), None) == 0
    driver.cuCtxSynchronize()
    assert helper.read(address.value, 4) == (42).to_bytes(4, "little")
    assert driver.cuModuleGetGlobal.status(address, size, module, b"nothing") == CUresult.CUDA_ERROR_NOT_FOUND


def test_what_a_function_says_of_itself():
    kernel, value, name = helper.function(helper.load(VARIED), "narrow"), c_int(), c_char_p()
    attributes = CUfunction_attribute
    driver.cuFuncGetAttribute(value, attributes.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel)
    assert value.value == 64
    driver.cuFuncGetAttribute(value, attributes.CU_FUNC_ATTRIBUTE_BINARY_VERSION, kernel)
    assert value.value == 80
    driver.cuFuncGetName(name, kernel)
    assert name.value == b"narrow"
    driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(value, kernel, 64, 0)
    assert 1 <= value.value <= 32
    driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(value, kernel, 65, 0)
    assert value.value == 0


def test_shared_memory_has_a_limit_that_can_be_raised():
    kernel = helper.function(helper.load(VARIED), "tile")
    out, dynamic = helper.allocate(4 * 300), CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    arguments = (c_uint64(out), c_int(100))

    def run(shared: int) -> int:
        return helper.launch(kernel, None, *arguments, block=(300, 1, 1), shared=shared)

    assert run(49152 - 1024) == 0
    driver.cuCtxSynchronize()
    assert np.frombuffer(helper.read(out, 1200), np.int32).tolist() == [at + 107 for at in range(300)]
    assert run(49152 - 1023) == CUresult.CUDA_ERROR_INVALID_VALUE
    driver.cuFuncSetAttribute(kernel, dynamic, 100_000)
    assert run(100_000) == 0
    assert driver.cuFuncSetAttribute.status(kernel, dynamic, 166912) == CUresult.CUDA_ERROR_INVALID_VALUE
    driver.cuCtxSynchronize()


@pytest.mark.parametrize(
    ("image", "status"),
    [
        (b"\x7fELF and so on", CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU),
        (b"\x50\xed\x55\xba and so on", CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU),
        (b"this is no PTX", CUresult.CUDA_ERROR_INVALID_PTX),
        (b"", CUresult.CUDA_ERROR_INVALID_PTX),
        # Hand-written PTX:
        (b".version 99.9\n.target sm_80\n.address_size 64\n", CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION),
        (b".version 8.0\n.target sm_90\n.address_size 64\n", CUresult.CUDA_ERROR_INVALID_PTX),
    ],
)
def test_images_that_cannot_run_are_refused(image, status):
    assert driver.cuModuleLoadData.status(c_void_p(), image) == status


def test_ptx_cut_off_in_the_middle_is_refused():
    ptx = compile_ptx(SAXPY).encode()
    cut = ptx[: ptx.index(b"ret;")]
    assert driver.cuModuleLoadData.status(c_void_p(), cut) == CUresult.CUDA_ERROR_INVALID_PTX


def test_an_instruction_that_is_not_there_is_named_in_the_error_log(capfd):
    # Hand-written PTX: an instruction that does not exist.
    ptx = b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{\n.reg .b32 %r<3>;\n"
    ptx += b"frobnicate.b32 %r1, %r2;\nret;\n}\n"
    buffer = create_string_buffer(400)
    names = (c_int * 2)(CUjit_option.CU_JIT_ERROR_LOG_BUFFER, CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
    values = (c_void_p * 2)(ctypes.addressof(buffer), 400)
    status = driver.cuModuleLoadDataEx.status(c_void_p(), ptx, 2, names, values)
    assert status in (CUresult.CUDA_ERROR_NOT_SUPPORTED, CUresult.CUDA_ERROR_INVALID_PTX)
    assert b"frobnicate" in buffer.value
    assert values[1] == len(buffer.value)
    assert "frobnicate" in capfd.readouterr().err


def test_unloading_ends_a_modules_functions():
    module = helper.load(VARIED)
    kernel = helper.function(module, "count")
    driver.cuModuleUnload(module)
    assert helper.launch(kernel, None) == CUresult.CUDA_ERROR_INVALID_HANDLE
    assert driver.cuModuleUnload.status(module) == CUresult.CUDA_ERROR_INVALID_HANDLE


def test_a_function_that_is_not_there_is_not_found():
    with pytest.raises(CudaError, match="CUDA_ERROR_NOT_FOUND"):
        helper.function(helper.load(SAXPY), "sasquatch")


@pytest.mark.parametrize(
    ("grid", "block", "status"),
    [
        ((0, 1, 1), (1, 1, 1), 1),
        ((1, 65536, 1), (1, 1, 1), 1),
        ((2**31, 1, 1), (1, 1, 1), 1),
        ((1, 1, 1), (1025, 1, 1), 1),
        ((1, 1, 1), (1, 1, 65), 1),
        ((1, 1, 1), (32, 33, 1), 1),
        ((1, 1, 1), (65, 1, 1), 701),
        ((1, 1, 1), (64, 1, 1), 0),
    ],
)
def test_the_shape_of_a_launch_is_checked(grid, block, status):
    kernel = helper.function(helper.load(VARIED), "narrow")
    assert helper.launch(kernel, None, c_uint64(helper.allocate(4)), grid=grid, block=block) == status


def test_a_launch_on_nothing_is_refused():
    kernel = helper.function(helper.load(VARIED), "count")
    assert helper.launch(kernel, c_void_p(0x77)) == CUresult.CUDA_ERROR_INVALID_HANDLE
    assert helper.launch(c_void_p(0x77), None) == CUresult.CUDA_ERROR_INVALID_HANDLE


def test_printf_is_told_when_the_host_synchronises(capfd):
    kernel, on = helper.function(helper.load(VARIED), "speak"), helper.stream()
    assert helper.launch(kernel, on, c_int(7)) == 0
    helper.until(lambda: driver.cuStreamQuery.status(on) == 0)
    assert capfd.readouterr().out == ""
    driver.cuStreamSynchronize(on)
    assert capfd.readouterr().out == "speaking 7\n"


def test_of_more_printf_than_there_is_room_for_the_newest_is_told(capfd):
    kernel, on, room = helper.function(helper.load(VARIED), "speak"), helper.stream(), c_size_t()
    driver.cuCtxGetLimit(room, CUlimit.CU_LIMIT_PRINTF_FIFO_SIZE)
    assert room.value == 7 << 20
    driver.cuCtxSetLimit(CUlimit.CU_LIMIT_PRINTF_FIFO_SIZE, 60)
    try:
        for number in range(10, 30):
            assert helper.launch(kernel, on, c_int(number)) == 0
        driver.cuStreamSynchronize(on)
        assert capfd.readouterr().out == "".join(f"speaking {number}\n" for number in range(25, 30))
        assert helper.launch(kernel, on, c_int(30)) == 0
        driver.cuStreamSynchronize(on)
        assert capfd.readouterr().out == "speaking 30\n"
    finally:
        driver.cuCtxSetLimit(CUlimit.CU_LIMIT_PRINTF_FIFO_SIZE, room.value)


def test_memory_is_not_freed_under_a_kernel_whose_stream_was_destroyed(context):
    source = (
        'extern "C" __global__ void spin(volatile int* flag, int* out) { while (*flag == 0) flag[1] += 1; *out = 5; }'
    )
    flag, out, on = helper.allocate(8), helper.allocate(8), helper.stream()
    assert helper.launch(helper.function(helper.load(source), "spin"), on, c_uint64(flag), c_uint64(out)) == 0
    turns = ctypes.c_int.from_address(flag + 4)
    driver.cuStreamDestroy(on)
    entered = threading.Event()

    def free():
        driver.cuCtxSetCurrent(context)
        entered.set()
        driver.cuMemFree(out)

    thread = threading.Thread(target=free)
    thread.start()
    entered.wait()
    later = turns.value + 300
    helper.until(lambda: turns.value > later)
    assert thread.is_alive(), "the memory was freed before the kernel was done"
    ctypes.c_int.from_address(flag).value = 1
    thread.join()
    assert driver.cuCtxSynchronize.status() == 0


# Faults.


def faulty(code: str, **options):
    return run_in_process(ROGUE + helper.textwrap.dedent(code), **options)


@pytest.mark.parametrize(
    ("kernel", "arguments", "status"),
    [("wild", ", c_uint64(0x10000)", 700), ("skewed", ", c_uint64(allocate(64))", 716), ("trap", "", 719)],
)
def test_a_fault_loses_the_process_for_good(kernel, arguments, status):
    done = faulty(f"""
        begin()
        module = load(ROGUE)
        on, other, mark, good = stream(), stream(), event(), function(module, "good")
        address = allocate(8)
        context = c_void_p()
        assert launch(function(module, "{kernel}"), on{arguments}) == 0
        print(cuStreamSynchronize.status(on))
        print(cuStreamQuery.status(other), cuStreamQuery.status(None), cuEventQuery.status(mark),
              cuCtxSynchronize.status(), cuMemAlloc.status(c_uint64(), 64), cuMemFree.status(address),
              launch(good, other, c_uint64(address)), cuMemcpyHtoD.status(address, b"abcd", 4),
              cuMemCreate.status(c_uint64(), GRANULE, properties(), 0), cuModuleUnload.status(module),
              cuStreamCreate.status(c_void_p(), 1), cuStreamWriteValue64.status(other, address, 1, 0),
              cuDevicePrimaryCtxRetain.status(context, 0), cuDevicePrimaryCtxReset.status(0),
              cuDevicePrimaryCtxRelease.status(0), cuCtxCreate_v2.status(context, 0, 0))
        print(cuDriverGetVersion.status(c_int()), cuDeviceGetCount.status(c_int()))
    """)
    first, then, harmless = done.stdout.splitlines()
    assert first == str(status)
    assert set(then.split()) == {str(status)}
    assert harmless == "0 0"


def test_a_thread_that_waits_is_told_of_a_fault_on_another_stream():
    done = faulty("""
        import threading
        context = begin()
        module = load(ROGUE)
        on, other, flag = stream(), stream(), allocate(8)
        cuStreamWaitValue64(other, flag, 1, 0)
        answers = []
        def wait():
            cuCtxSetCurrent(context)
            answers.append(cuStreamSynchronize.status(other))
        thread = threading.Thread(target=wait)
        thread.start()
        assert launch(function(module, "wild"), on, c_uint64(8)) == 0
        thread.join()
        print(answers)
    """)
    assert done.stdout.strip() == "[700]"


def test_two_devices_are_lost_together():
    done = faulty(
        """
        begin(0)
        module = load(ROGUE)
        assert launch(function(module, "wild"), stream(), c_uint64(8)) == 0
        until(lambda: cuCtxSynchronize.status() == 700)
        context = c_void_p()
        print(cuDevicePrimaryCtxRetain.status(context, 1))
        """,
        ATOMR_TRIO_SIM_DEVICES="2",
    )
    assert done.stdout.split() == ["700"]


def test_behind_a_fault_the_stream_stands_still_and_copies_elsewhere_go_on():
    address, descriptor = helper.durable(hint=0x2000_0000_0000)
    done = faulty(
        f"""
        begin()
        address = reserve(GRANULE, {address})
        cuMemMap(address, GRANULE, 0, import_descriptor({descriptor}), 0)
        allow(address, GRANULE)
        module = load(ROGUE)
        flag = allocate(8)
        rogue, copies, kernels = stream(), stream(), stream()
        good, wild, partial = (function(module, name) for name in ("good", "wild", "partial"))
        for on in (rogue, copies, kernels):
            cuStreamWaitValue64(on, flag, 1, 0)
        # The faulting stream: a kernel that writes before it faults, then a counter.
        assert launch(partial, rogue, c_uint64(address), c_uint64(8)) == 0
        cuStreamWriteValue64(rogue, address + 64, 1, 0)
        # Another stream with copies: each of them waits for a word that is written after the fault.
        late = allocate(8)
        cuStreamWaitValue64(copies, late, 1, 0)
        cuMemsetD32Async(address + 128, 0x77, 2, copies)
        cuStreamWriteValue64(copies, address + 192, 2, 0)
        # A third one with a kernel behind the same word.
        cuStreamWaitValue64(kernels, late, 1, 0)
        cuMemsetD32Async(address + 320, 1, 1, kernels)
        assert launch(good, kernels, c_uint64(address + 256)) == 0
        cuStreamWriteValue64(kernels, address + 384, 3, 0)
        c_uint64.from_address(flag).value = 1
        until(lambda: cuStreamQuery.status(rogue) == 700)
        assert word(address + 192) == 0
        c_uint64.from_address(late).value = 1
        until(lambda: word(address + 192) == 2 and word(address + 320) == 1)
        import time
        for _ in range(50):
            time.sleep(0.001)
            assert word(address + 64) == word(address + 256) == word(address + 384) == 0
        print(cuStreamQuery.status(copies), flush=True)
        os.kill(os.getpid(), 9)
        """,
        descriptors=(descriptor,),
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (-9, ["700"]), done.stderr
    words = np.frombuffer(helper.read(address, 512), np.uint64)
    assert words[[0, 8, 16, 24, 32, 40, 48]].tolist() == [5, 0, 0x77_0000_0077, 2, 0, 1, 0]
    helper.os.close(descriptor)
    driver.cuMemUnmap(address, helper.GRANULE)
    driver.cuMemAddressFree(address, helper.GRANULE)


def test_a_failed_assertion_says_which():
    done = faulty("""
        begin()
        module = load(ASSERTING)
        on = stream()
        assert launch(function(module, "checked"), on, c_int(5)) == 0
        cuStreamSynchronize(on)
        assert launch(function(module, "checked"), on, c_int(3)) == 0
        print(cuStreamSynchronize.status(on))
    """)
    assert done.stdout.split() == ["710"]
    assert done.stderr.endswith(": block: [0,0,0], thread: [0,0,0] Assertion `n > 3` failed.\n")
    assert "checked" in done.stderr
    assert done.stderr.count("Assertion") == 1


def test_an_endless_kernel_ends_with_its_process():
    began = time.monotonic()
    done = faulty(
        """
        begin()
        module = load(ROGUE)
        on, other, flag = stream(), stream(), allocate(8)
        assert launch(function(module, "spin"), on, c_uint64(flag)) == 0
        cuMemsetD8Async(flag + 4, 1, 1, other)
        cuStreamSynchronize(other)
        print(cuStreamQuery.status(on), cuStreamQuery.status(other), flush=True)
        os.kill(os.getpid(), 9)
        """,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (-9, ["600", "0"]), done.stderr
    assert time.monotonic() - began < 30


def test_a_spinning_kernel_sees_a_flag_that_the_host_writes():
    flag, on = helper.allocate(8), helper.stream()
    source = 'extern "C" __global__ void spin(volatile int* flag) { while (*flag == 0) { } flag[1] = 5; }'
    assert helper.launch(helper.function(helper.load(source), "spin"), on, c_uint64(flag)) == 0
    assert driver.cuStreamQuery.status(on) == CUresult.CUDA_ERROR_NOT_READY
    ctypes.c_int.from_address(flag).value = 1
    driver.cuStreamSynchronize(on)
    assert ctypes.c_int.from_address(flag + 4).value == 5


def test_launching_blocks_when_a_thousand_launches_are_pending(context):
    kernel, on, other, flag = (
        helper.function(helper.load(VARIED), "count"),
        helper.stream(),
        helper.stream(),
        helper.allocate(8),
    )
    driver.cuStreamWaitValue64(on, flag, 1, 0)
    made = []

    def launch_many():
        driver.cuCtxSetCurrent(context)
        for number in range(1025):
            assert helper.launch(kernel, on) == 0
            made.append(number)

    thread = threading.Thread(target=launch_many)
    thread.start()
    helper.until(lambda: len(made) == 1021)
    assert helper.launch(kernel, other) == 0
    driver.cuStreamSynchronize(other)
    assert len(made) == 1021
    driver.cuMemsetD32(flag, 1, 1)
    thread.join()
    driver.cuStreamSynchronize(on)
    assert len(made) == 1025


def test_a_module_lists_its_functions():
    module, count = helper.load(VARIED), c_uint()
    driver.cuModuleGetFunctionCount(count, module)
    functions = (driver.CUfunction * (count.value + 1))()
    driver.cuModuleEnumerateFunctions(functions, 2, module)
    assert [bool(each) for each in functions] == [True, True] + [False] * (count.value - 1)
    driver.cuModuleEnumerateFunctions(functions, count.value + 1, module)
    assert functions[count.value] is None
    name, names = c_char_p(), []
    for function in functions[: count.value]:
        driver.cuFuncGetName(name, function)
        names.append((name.value or b"").decode())
        assert helper.function(module, names[-1]).value == function
    assert sorted(names) == ["count", "narrow", "speak", "tile", "varied"]


@pytest.mark.parametrize(
    ("size", "status"),
    [("9" * 14, CUresult.CUDA_ERROR_OUT_OF_MEMORY), ("9" * 23, CUresult.CUDA_ERROR_INVALID_PTX)],
)
def test_a_damaged_text_that_asks_for_all_memory_there_is_is_refused(size, status):
    text = compile_ptx('__constant__ int table[4]; extern "C" __global__ void get(int *x) { *x = table[*x]; }')
    assert "table[16]" in text
    module = c_void_p()
    assert driver.cuModuleLoadData.status(module, text.replace("table[16]", f"table[{size}]").encode()) == status
