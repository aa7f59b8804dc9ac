"""Where the microseconds of a launch go: one that is awaited, and one of a batch.

Everything is measured in one run, so the parts can be compared: the caller's part by calling its pieces, the way to the
worker and back by looking at the lane's counter without any scheduler, and the driver's part by the same calls made in
this process. Run on a machine with a GPU: ``make anatomy`` prints the table of docs/architecture/short-way.md.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable

import numpy as np
import trio

import atomr_trio
from atomr_trio import Kernel
from atomr_trio._calls.encoder import encoding
from atomr_trio._calls.launching import AwaitedLaunches
from atomr_trio._device.device import core_of
from atomr_trio._wire.records.module import LAUNCH
from atomr_trio._wire.ring import SAME_IN_ALL, fence

SOURCE = """
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
"""
N = 1024
ROUNDS = 2000


def show(part: str, seconds: list[float]) -> None:
    """One row: the median and the tenth and ninetieth percentile, in microseconds."""
    ordered = sorted(seconds)
    low, high = ordered[len(ordered) // 10], ordered[len(ordered) * 9 // 10]
    print(f"{part:62s} {statistics.median(ordered) * 1e6:8.2f}   ({low * 1e6:.2f} - {high * 1e6:.2f})", flush=True)


def timed(call: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """How long each of so many calls took."""
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return seconds


def per_call(call: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """How long a call takes, from groups of a hundred: for calls that are shorter than the clock is exact."""
    seconds = []
    for _ in range(rounds // 100):
        began = time.perf_counter()
        for _ in range(100):
            call()
        seconds.append((time.perf_counter() - began) / 100)
    return seconds


def encoder(kernel: Kernel) -> Callable[..., tuple[object, ...] | None]:
    """The lines of a launch that encode the arguments of a kernel, as a function; it returns the values."""
    takes, notes, values, names = encoding(kernel.signature, "return None")
    found = dict(names)
    exec(f"def encode(given, token, me):\n{takes}{notes}    return {values}\n", found)
    encode: Callable[..., tuple[object, ...] | None] = found["encode"]
    return encode


async def measure(backend: str) -> None:
    """Print the table."""
    async with atomr_trio.open_device(backend=backend) as dev:  # type: ignore[arg-type]
        print(f"{dev.info.name}, medians in microseconds (10 % - 90 %)")
        kernel = await dev.nvrtc.compile(SOURCE, "saxpy")
        x, y = await dev.to_device(np.ones(N, np.float32)), await dev.to_device(np.ones(N, np.float32))
        arguments = (2.0, atomr_trio.read_only(x), y, N)
        for _ in range(50):
            await kernel.launch(4, 256, *arguments)
        generation = core_of(dev).current
        assert generation is not None
        assert generation.ring is not None
        assert core_of(dev).part(AwaitedLaunches).path is not None
        words, counter = generation.page.words, core_of(dev).part(AwaitedLaunches).path.counter
        launcher, book = core_of(dev).part(AwaitedLaunches).path.launchers[kernel._key], generation.timeline.lanes[0]

        print("\nthe caller")
        encode, record = encoder(kernel), bytearray(256)
        token, me = core_of(dev).part(AwaitedLaunches).path.token, (0, book.issued)
        values = encode(arguments, token, me)
        assert values is not None
        show(
            "  take the arguments apart, note the ticket in the blocks", per_call(lambda: encode(arguments, token, me))
        )
        fields = (1, 1, bytes(SAME_IN_ALL.size + LAUNCH.struct.size), *values)
        show("  pack the record", per_call(lambda: kernel._record.pack_into(record, 0, *fields)))
        show("  the fence (in a batch: for every sixteenth)", per_call(fence))

        class Nobody:
            def launches_finished(self, count: int) -> None: ...
            def launch_failed(self, launch: object, error: object) -> None: ...
            def launches_lost(self, count: int, error: object) -> None: ...

        owner = Nobody()
        whole, way = [], []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            launched = launcher(kernel, 4, 256, 0, arguments, owner)
            sent = time.perf_counter()
            assert launched
            ticket = book.issued
            while words[counter] < ticket:
                pass
            way.append(time.perf_counter() - sent)
            whole.append(sent - began)
            generation.settler.settle_finished()
        show("  all of an awaited launch until it is sent", whole)
        print("\nthe worker and the GPU")
        show("  sent -> the GPU has written the ticket", way)
        if backend == "cuda":
            in_process()
        print("\nback")
        show("  look at the counters, and find nothing", per_call(generation.settler.settle_finished))
        seconds = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            await trio.lowlevel.checkpoint()
            seconds.append(time.perf_counter() - began)
        show("  one turn of trio's scheduler", seconds)
        seconds = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            await kernel.launch(4, 256, *arguments)
            seconds.append(time.perf_counter() - began)
        show("an awaited launch, all in all", seconds)
        print("\na batch of 1000")
        calls, ends = [], []
        for _ in range(15):
            async with dev.batch() as batch:
                launch = batch.launch
                launch(kernel, 4, 256, *arguments)
                await batch.flush()
                began = time.perf_counter()
                for _ in range(1000):
                    launch(kernel, 4, 256, *arguments)
                calls.append((time.perf_counter() - began) / 1000)
                await batch.flush()
                ends.append((time.perf_counter() - began) / 1000)
        show("  the caller, each launch", calls)
        show("  end to end, each launch", ends)


def in_process() -> None:
    """What the driver's own calls take in this process."""
    from atomr_cuda import driver

    driver.cuInit(0)
    device, context, stream = driver.CUdevice(), driver.CUcontext(), driver.CUstream()
    driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device.value)
    driver.cuCtxSetCurrent(context)
    driver.cuStreamCreate(ctypes.byref(stream), 1)
    page = ctypes.c_void_p()
    driver.cuMemHostAlloc(ctypes.byref(page), 4096, 2)
    word = ctypes.cast(page, ctypes.POINTER(ctypes.c_uint64))
    module, function = driver.CUmodule(), driver.CUfunction()
    data = ctypes.create_string_buffer(ptx())
    driver.cuModuleLoadData(ctypes.byref(module), ctypes.cast(data, ctypes.c_void_p))
    driver.cuModuleGetFunction(ctypes.byref(function), module, b"saxpy")
    x, y = driver.CUdeviceptr(), driver.CUdeviceptr()
    for array in (x, y):
        driver.cuMemAlloc(ctypes.byref(array), 4 * N)
    scale, count = ctypes.c_float(2), ctypes.c_int(N)
    pointers = (ctypes.c_void_p * 4)(*map(ctypes.addressof, (scale, x, y, count)))
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = 4, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = 256, 1, 1
    config.hStream = stream
    launch, write = driver.cuLaunchKernelEx.bind(), driver.cuStreamWriteValue64.bind()

    def one_launch() -> None:
        launch(ctypes.addressof(config), function, pointers, None)

    def to_the_end() -> None:
        ticket = word[0] + 1
        one_launch()
        write(stream, page.value, ticket, 0)
        while word[0] < ticket:
            pass

    one_launch()
    driver.cuStreamSynchronize(stream)
    show("  the same in one process: launch, ticket, until it is there", timed(to_the_end))
    show("    of which: cuLaunchKernelEx", timed(one_launch, 500))
    driver.cuStreamSynchronize(stream)
    show("    of which: cuStreamWriteValue64", timed(lambda: write(stream, page.value + 64, 1, 0), 500))
    driver.cuStreamSynchronize(stream)


def ptx() -> bytes:
    """The kernel, for any GPU from compute capability 8.0 on."""
    from atomr_cuda import nvrtc

    program, size = nvrtc.nvrtcProgram(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), SOURCE.encode(), b"saxpy.cu", 0, None, None)
    nvrtc.nvrtcCompileProgram(program, 1, (ctypes.c_char_p * 1)(b"--gpu-architecture=compute_80"))
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, text)
    return text.value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("cuda", "sim"), default="cuda")
    trio.run(measure, parser.parse_args().backend)
