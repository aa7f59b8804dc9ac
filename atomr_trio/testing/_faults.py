"""Faults that a device really has: kernels that misbehave, memory that runs out, a worker that is ended.

Nothing is simulated here: on a GPU it is the GPU that faults.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, final

import attrs
import numpy as np
import outcome
import trio

from .. import ContextLost, DeviceError, InvalidArgument, OutOfDeviceMemory
from .._arrays.memory import DeviceMemory
from .._device.device import core_of
from ._workers import generation_of, kill_worker, until

if TYPE_CHECKING:
    from .. import Device, DeviceArray, Kernel, Overwrites, ReadOnly

    Touched = DeviceArray | ReadOnly | Overwrites
    _Cause = Callable[[Device, tuple[Touched, ...]], Awaitable[None]]

SOURCE = r"""
extern "C" __global__ void wild(unsigned long long where) { *(volatile int *)where = 1; }
extern "C" __global__ void misaligned(void *x) { *(volatile float *)((char *)x + 1) = 1.0f; }
extern "C" __global__ void trap(void *x) { *(int *)x = 77; __trap(); }
extern "C" __global__ void refuse(int n) { assert(n == 42); }
extern "C" __global__ void hang(unsigned long long word) { while (*(volatile int *)word == 0) { } }
extern "C" __global__ void spin(unsigned long long word) { while (*(volatile int *)word == 0) { } }
"""
"""Kernels that fault, and two that run until the word at an address is not 0. `cause` waits for `hang`; a user starts
`spin`. They have two names so that they can be told apart."""

WILD = 0x10
"""An address that is never mapped."""

END_SECONDS = 1.0
"""Seconds to wait for the end of an endless kernel, on a device that may be in trouble."""


@attrs.frozen
class FaultSigns:
    """The signs by which a request that was running recognises a fault."""

    error: type[DeviceError]
    """The exception: `ContextLost`, unless the context outlives the fault."""

    status: int | None
    """The status that the driver reports; None if the driver reports nothing."""

    status_name: str | None
    """The name of that status."""

    words: str
    """Words that its `ContextLost.reason` contains, unless checks have found the fault, or the message of another
    exception."""

    def check(self, error: DeviceError) -> None:
        """Check that `error` has these signs. Raises `AssertionError` if it has not."""
        text = error.reason if isinstance(error, ContextLost) else error.message
        is_found = isinstance(error, ContextLost) and bool(error.findings)  # then the reason is a line of source
        seen = (type(error), error.status, error.status_name)
        if seen != (self.error, self.status, self.status_name) or not (is_found or self.words in (text or "")):
            raise AssertionError(f"expected {self}, but the request raised {error!r}") from error


@enum.unique
class Fault(enum.Enum):
    """The faults of a device, each with its signs. `cause` makes one happen."""

    ILLEGAL_ADDRESS = FaultSigns(ContextLost, 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "illegal memory access")
    """A kernel writes through a pointer that is not mapped."""

    MISALIGNED_ADDRESS = FaultSigns(ContextLost, 716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address")
    """A kernel writes a ``float`` to an odd address."""

    TRAP = FaultSigns(ContextLost, 719, "CUDA_ERROR_LAUNCH_FAILED", "launch fail")
    """A kernel traps."""

    DEVICE_ASSERT = FaultSigns(ContextLost, 710, "CUDA_ERROR_ASSERT", "assert")
    """An assertion in a kernel fails; its text is in the log ``atomr_trio.device``."""

    ENDLESS_KERNEL = FaultSigns(ContextLost, None, None, "hang_timeout")
    """A kernel never ends. For a device that was opened with `hang_timeout`."""

    OUT_OF_DEVICE_MEMORY = FaultSigns(OutOfDeviceMemory, 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")
    """An array that is larger than the device is used. This is the only fault that the context survives."""

    WORKER_KILLED = FaultSigns(ContextLost, None, None, "SIGKILL")
    """The worker is killed, as the system does when host memory is short."""

    WORKER_STOPPED = FaultSigns(ContextLost, None, None, "no sign of life")
    """The worker is stopped; the device waits 2 s for a sign of life."""

    WORKER_CRASHED = FaultSigns(ContextLost, None, None, "SIGSEGV")
    """The worker crashes, as by a defect of a library."""

    @property
    def signs(self) -> FaultSigns:
        """The signs of the fault."""
        return self.value

    @property
    def costs_context(self) -> bool:
        """Tell whether the device recovers by starting its next generation."""
        return self.signs.error is ContextLost


async def cause(dev: Device, fault: Fault, *touches: Touched) -> DeviceError:
    """Make `fault` happen to a device, and return the exception that the request that was running got.

    The request counts as writing `touches`, which are then torn (`read_only` arrays are not). Running out of memory
    touches none of them. When this returns, the generation is lost. The next one may not be ready: wait for it with
    ``await dev.wait_generation(after=error.generation)``.

    Raises `AssertionError` if nothing happened, or if the exception does not have the signs of `Fault.signs`. Raises
    `InvalidArgument` for `Fault.ENDLESS_KERNEL` on a device without `hang_timeout`. Other exceptions of the device,
    `DeviceFailed` for example, are raised unchanged. While the device is being rebuilt, `cause` waits for the next
    generation.
    """
    await core_of(dev).running_generation()
    try:
        await _CAUSES[fault](dev, touches)
    except fault.signs.error as error:
        fault.signs.check(error)
        return error
    raise AssertionError(f"{fault} was caused, but the running request raised nothing")


async def compile_faulty(dev: Device, name: str) -> Kernel:
    """Return one of the kernels above; the device's compiler compiles them once."""
    return await dev.nvrtc.compile(SOURCE, name)


async def _by_kernel(name: str, arguments: tuple[object, ...], dev: Device, touches: tuple[Touched, ...]) -> None:
    kernel = await compile_faulty(dev, name)
    await kernel.launch(1, 1, *arguments, touches=touches)


async def _by_kernel_in_memory(name: str, dev: Device, touches: tuple[Touched, ...]) -> None:
    with dev.zeros(8, np.int8) as scratch:
        await _by_kernel(name, (scratch,), dev, touches)


async def _by_hanging(dev: Device, touches: tuple[Touched, ...]) -> None:
    if core_of(dev).options.hang_timeout is None:
        raise InvalidArgument(
            "Fault.ENDLESS_KERNEL needs a device with a hang_timeout, and this device has none",
            device=dev.index,
            advice="open the device with `hang_timeout=seconds`",
        )
    await _hang(dev, touches)


async def _by_signal(how: signal.Signals, dev: Device, touches: tuple[Touched, ...]) -> None:
    """End the worker while a kernel runs, so that a request is there to report the loss."""

    def hangs() -> bool:
        generation = core_of(dev).current
        return generation is not None and "launch of hang" in generation.timeline.in_flight()

    async def end_worker() -> None:
        await until(hangs)
        with contextlib.suppress(trio.WouldBlock):  # the device was lost in another way meanwhile
            kill_worker(dev, how)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_worker)
            heard = await outcome.acapture(_hang, dev, touches)
            nursery.cancel_scope.cancel()
    finally:
        if hangs():  # this was cancelled, and nothing else would end the kernel
            with contextlib.suppress(trio.WouldBlock):
                kill_worker(dev, how)
    heard.unwrap()


async def _by_exhausting(dev: Device, touches: tuple[Touched, ...]) -> None:
    arena = core_of(dev).part(DeviceMemory).arena
    # The budget would refuse the array before the request reaches the device.
    limit, arena.limit = arena.limit, arena.extent
    try:
        array = dev.empty(dev.info.total_memory + 1, np.int8)
    finally:
        arena.limit = limit
    with array:
        await array.fill(0)


async def _hang(dev: Device, touches: tuple[Touched, ...]) -> None:
    with dev.zeros(1, np.int32) as word:
        await word.to_host()
        await _by_kernel("hang", (word.address,), dev, touches)


_CAUSES: Mapping[Fault, _Cause] = MappingProxyType(
    {
        Fault.ILLEGAL_ADDRESS: functools.partial(_by_kernel, "wild", (WILD,)),
        Fault.MISALIGNED_ADDRESS: functools.partial(_by_kernel_in_memory, "misaligned"),
        Fault.TRAP: functools.partial(_by_kernel_in_memory, "trap"),
        Fault.DEVICE_ASSERT: functools.partial(_by_kernel, "refuse", (41,)),
        Fault.ENDLESS_KERNEL: _by_hanging,
        Fault.OUT_OF_DEVICE_MEMORY: _by_exhausting,
        Fault.WORKER_KILLED: functools.partial(_by_signal, signal.SIGKILL),
        Fault.WORKER_STOPPED: functools.partial(_by_signal, signal.SIGSTOP),
        Fault.WORKER_CRASHED: functools.partial(_by_signal, signal.SIGSEGV),
    }
)


@final
class EndlessKernel:
    """A kernel that runs on the device; made by `endless_kernel`."""

    def __init__(self, word: DeviceArray) -> None:
        self._word = word

    async def end(self) -> None:
        """Let the kernel end. Raises what `DeviceArray.copy_from` raises. Can be called twice."""
        await self._word.copy_from(np.ones(1, np.int32))


@contextlib.asynccontextmanager
async def endless_kernel(dev: Device, *touches: Touched) -> AsyncIterator[EndlessKernel]:
    """Keep a kernel running on the device while the block runs. Other work on the compute lane waits for its end.

    Copies from and to the host and kernels on other lanes go on. The kernel counts as writing `touches`, so work on
    these arrays waits for it. Its loss raises nothing. It is ended when the block is left, if its worker is still
    there. The launch waits for room in the lane, and during a rebuild for the next generation.

    Raises what `Kernel.launch_nowait` raises otherwise.
    """
    spin = await compile_faulty(dev, "spin")
    word = dev.zeros(1, np.int32)
    await word.to_host()
    while True:
        with contextlib.suppress(trio.WouldBlock):
            spin.launch_nowait(1, 1, word.address, touches=touches)
            break
        await dev.compute_lane.synchronize()
    generation = generation_of(dev)
    kernel = EndlessKernel(word)
    try:
        yield kernel
    finally:
        if generation.loss is None:
            with trio.move_on_after(END_SECONDS, shield=True), contextlib.suppress(DeviceError):
                await kernel.end()
