"""Kernels that misbehave, or wait for a sign, and how a test handles them. Used by the tests of faults and of order.

What `atomr_trio.testing` offers to everybody is taken from there; here is what only this suite needs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import trio

from atomr_trio import ContextLost, DeviceClosed
from atomr_trio._device.device import core_of
from atomr_trio.testing import _workers, endless_kernel, kill_worker, worker_pid
from atomr_trio.testing._faults import SOURCE as FAULTY, WILD
from support import template

if TYPE_CHECKING:
    from atomr_trio import Device, DeviceArray, Kernel, Lane

__all__ = [
    "WILD",
    "Gate",
    "compile_rogue",
    "endless_kernel",
    "gated",
    "hang",
    "kill_worker",
    "limit_commands",
    "next_generation",
    "process_exists",
    "until",
    "until_full",
    "worker_pid",
]

SOURCE = (
    FAULTY
    + r"""
extern "C" __global__ void touch(void *x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) ((int *)x)[i] += 1;
}
extern "C" __global__ void say(int first) { printf("line %d\n", first + (int)threadIdx.x); }
"""
)


async def compile_rogue(dev: Device, *names: str) -> list[Kernel]:
    """Some of the kernels above, and of those that fault; `spin` runs until the word at an address is not 0."""
    return [await dev.nvrtc.compile(SOURCE, name) for name in names]


async def hang(dev: Device, *touches: Any, seconds: float = 0.2) -> None:
    """Lose the context to a kernel that never ends, on a device of any `hang_timeout`."""
    (spin,) = await compile_rogue(dev, "spin")
    with dev.zeros(1, np.int32) as word:
        await word.to_host()
        with pytest.raises(ContextLost, match="launch of spin ran longer than hang_timeout"):
            await spin.launch(1, 1, word.address, touches=touches, hang_timeout=seconds)


def limit_commands(dev: Device, seconds: float) -> None:
    """Have the generation in service lose its context to a command that runs longer, from now on.

    A device that was opened with so short a `hang_timeout` would have it for its first module too, and to load that may
    take as long while others use the processor.
    """
    generation = core_of(dev).current
    generation.hang_timeout = generation.watch._hang_timeout = seconds


class Gate:
    """A kernel that holds up a lane until the gate is opened, which a lane of its own does, past all that waits."""

    def __init__(self, spin: Kernel, word: DeviceArray, key: Lane) -> None:
        self._spin = spin
        self._word = word
        self._key = key

    def close(self, lane: Lane | None = None) -> None:
        """Hold up what the lane is given from now on."""
        self._spin.launch_nowait(1, 1, self._word.address, lane=lane)

    async def open(self) -> None:
        """Let it go on."""
        async with self._word.device.batch(lane=self._key) as batch:
            batch.fill(self._word, 1)


@contextlib.asynccontextmanager
async def gated(dev: Device, lane: Lane | None = None) -> AsyncIterator[Gate]:
    """A gate at a lane, by default the compute lane, that is opened at the end of the block if it was not before."""
    (spin,) = await compile_rogue(dev, "spin")
    word = dev.zeros(1, np.int32)
    await word.to_host()
    async with dev.lane() as key:
        gate = Gate(spin, word, key)
        gate.close(lane)
        try:
            yield gate
        finally:
            with contextlib.suppress(ContextLost, DeviceClosed), trio.fail_after(60, shield=True):
                await gate.open()


def children() -> set[int]:
    """The child processes of this one, but for the template of workers (see ``support/template.py``)."""
    return {*_workers.children()} - template.own()


def process_exists(pid: int) -> bool:
    """Whether there is a process of this number, a zombie included."""
    return os.path.exists(f"/proc/{pid}")


async def next_generation(dev: Device, after: int, seconds: float = 300) -> int:
    """Wait for the generation that follows `after`."""
    with trio.fail_after(seconds):
        return await dev.wait_generation(after=after)


def until_full(launch: Callable[[], None]) -> int:
    """Launch until there is no room; how many there was room for."""
    for count in itertools.count():
        try:
            launch()
        except trio.WouldBlock:
            return count
    raise AssertionError("there is always room")


async def until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Wait until a condition holds that nothing announces."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.002)
