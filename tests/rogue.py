"""Kernels that misbehave, or wait for a sign, and how a test handles them. Used by the tests of faults and of order.

`spin` waits until the word at an address is not 0. It is given the plain number of the address, so that no command is
ordered after it for that word's sake: whoever writes the word lets it end.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import numpy as np
import trio

if TYPE_CHECKING:
    from atomr_trio import Device, DeviceArray, Kernel

SOURCE = r"""
extern "C" __global__ void wild(unsigned long long where) { *(volatile int *)where = 1; }
extern "C" __global__ void misaligned(char *x) { *(volatile float *)(x + 1) = 1.0f; }
extern "C" __global__ void trap(int *x) { x[0] = 77; __trap(); }
extern "C" __global__ void refuse(int n) { assert(n == 42); }
extern "C" __global__ void spin(unsigned long long word) { while (*(volatile int *)word == 0) { } }
extern "C" __global__ void touch(int *x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += 1;
}
extern "C" __global__ void wild_after(int *x, int n) { if (x[0] == n) *(volatile int *)16 = 1; }
extern "C" __global__ void say(int first) { printf("line %d\n", first + (int)threadIdx.x); }
"""

WILD = 0x10
"""An address that nobody has."""


async def compile_rogue(dev: Device, *names: str) -> list[Kernel]:
    """Some of the kernels above."""
    return [await dev.nvrtc.compile(SOURCE, name) for name in names]


def worker_pid(dev: Device) -> int:
    """The process number of the worker in service."""
    return dev._generation.process.pid


def kill_worker(dev: Device, how: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to the worker in service."""
    os.kill(worker_pid(dev), how)


def process_exists(pid: int) -> bool:
    """Whether there is a process of this number, a zombie included."""
    return os.path.exists(f"/proc/{pid}")


async def next_generation(dev: Device, after: int, seconds: float = 20) -> int:
    """Wait for the generation that follows `after`."""
    with trio.fail_after(seconds):
        return await dev.wait_generation(after=after)


async def until(condition: Any, seconds: float = 20) -> None:
    """Wait until a condition holds that nothing announces."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.002)


@contextlib.asynccontextmanager
async def endless_kernel(dev: Device, *arrays: DeviceArray) -> AsyncIterator[DeviceArray]:
    """Keep a kernel running on the device for the length of the block; it holds up the compute lane.

    It counts as writing `arrays`. Gives the word that `let_go` ends it by; nobody else hears of its end.
    """
    (spin,) = await compile_rogue(dev, "spin")
    word = dev.zeros(1, np.int32)
    await word.to_host()
    spin.launch_nowait(1, 1, word.address, touches=arrays)
    await until(lambda: dev.statistics().lanes[0].unfinished)
    yield word


async def let_go(word: DeviceArray) -> None:
    """End an endless kernel."""
    await word.copy_from(np.ones(1, np.int32))
