"""The stage of the failure matrix: a device, its arrays, and parties that want one thing each.

The compute lane can be held up by a kernel that waits at a gate, so that what is in flight when a fault strikes, and in
which order, is the same in every run.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import numpy as np
import trio

from atomr_trio import Device, DeviceArray, DeviceEvent, DeviceState, Kernel, read_only
from atomr_trio._calls.compiling import Compiling
from atomr_trio._compiling.service import CompileService
from atomr_trio._device.device import core_of
from atomr_trio._generation.generation import Generation
from atomr_trio._generation.process import WorkerProcess
from atomr_trio._transfers.staging import Slot
from atomr_trio._transfers.transfers import Transfers
from atomr_trio._wire.protocol import LANE_COPY_IN, LANE_COPY_OUT
from atomr_trio._wire.records.memory import COPY_IN
from support.rogue import SOURCE as ROGUE, until

SOURCE = (
    ROGUE
    + r"""
extern "C" __global__ void __launch_bounds__(64) narrow(int *x) { x[threadIdx.x] = 1; }
"""
)
KERNELS = ("touch", "spin", "narrow", "wild", "misaligned", "trap", "refuse")
NUMBERS = np.arange(1000, dtype=np.int32)
ONE = np.ones(1, np.int32)
ARRAYS = ("apart", "zeros", "struck", "watched", "written", "read", "other")
"""What is on the device: what nobody touches, what the victim writes and reads, what bystanders work on."""

_compiler = CompileService()
"""Shared by all devices of the matrix, so that each source is compiled once."""


@enum.unique
class Standing(enum.Enum):
    """Where a request stands when the fault strikes."""

    STARTED = "started"
    QUEUED = "queued"
    CANCELLED = "started, and its caller cancelled"
    REFUSED = "queued, and the device closing"


@attrs.define(eq=False)
class Party:
    """Somebody with one request, in a task of its own, and the answer."""

    standing: Standing
    call: Callable[..., Awaitable[Any]]
    arguments: tuple[Any, ...]
    reads: np.ndarray | None
    """What the request returns if it succeeds; None where that is nothing."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    answered: bool = False
    value: Any = None
    error: Exception | None = None

    async def run(self) -> None:
        """Make the request, and keep what comes of it."""
        try:
            with self.scope:
                self.value = await self.call(*self.arguments)
        except Exception as error:
            self.error = error
        finally:
            self.answered = True

    @property
    def saw(self) -> type[BaseException] | None:
        """The kind of exception that the request ended by; None when it succeeded."""
        if self.scope.cancelled_caught:
            return trio.Cancelled
        return None if self.error is None else type(self.error)


class Nobody:
    """The owner of a command that nobody waits for."""

    def command_finished(self, command: Any, error: Any, value: Any) -> None:
        """Nothing to do."""

    def command_lost(self, command: Any, error: Any) -> None:
        """Nothing to do."""


@attrs.define(eq=False)
class Scene:
    """One device, and everybody who wants something of it."""

    dev: Device
    nursery: trio.Nursery
    """Of the parties; it outlives the device."""
    first: Generation
    """The generation that the scene begins in."""
    kernels: dict[str, Kernel]
    arrays: dict[str, DeviceArray]
    hosts: dict[str, np.ndarray]
    """What each array holds, if it survives: every request that was begun has then done its work."""
    word: DeviceArray
    """What the kernel `spin` waits for; as long as it is 0, the gate is closed."""
    slot: Slot
    """What opens the gate."""
    parties: dict[str, Party] = attrs.field(factory=dict)
    events: list[DeviceEvent] = attrs.field(factory=list)
    held: contextlib.ExitStack = attrs.field(factory=contextlib.ExitStack)
    """What is held up, and how it is let go."""
    leave: trio.Event = attrs.field(factory=trio.Event)
    """Set when the block of the device is to be left."""
    spawned: list[WorkerProcess] = attrs.field(factory=list)

    @classmethod
    async def set(cls, dev: Device, nursery: trio.Nursery) -> Scene:
        """A scene with all in its place, so that nothing is sent to the worker later but what is asked for."""
        assert core_of(dev).current is not None
        core_of(dev).part(Compiling).service = _compiler
        kernels = {name: await dev.nvrtc.compile(SOURCE, name) for name in KERNELS}
        # The first launch of a kernel that asserts has the driver set something up, and copies wait for that behind
        # whatever is running: the one that opens the gate would wait for the gate.
        await kernels["refuse"].launch(1, 1, 42)
        hosts = {name: np.zeros_like(NUMBERS) if name == "zeros" else NUMBERS.copy() for name in ARRAYS}
        arrays = {name: await dev.to_device(host) for name, host in hosts.items() if name != "zeros"}
        arrays["zeros"] = dev.zeros(NUMBERS.shape, NUMBERS.dtype)
        word = await dev.to_device(np.zeros_like(ONE))
        slot = await core_of(dev).part(Transfers).staging.acquire(ONE.nbytes)
        slot.bytes[: ONE.nbytes] = ONE.view(np.uint8)
        scene = cls(dev, nursery, core_of(dev).current, kernels, arrays, hosts, word, slot)
        nursery.start_soon(scene._watch)
        await dev.wait_standby()
        return scene

    async def _watch(self) -> None:
        async with self.dev.events() as events:
            async for event in events:
                self.events.append(event)

    @property
    def rebuilding(self) -> bool:
        """Whether no generation is in service, and one is to come."""
        return self.dev.state is DeviceState.REBUILDING

    # --- requests -----------------------------------------------------------------------------------------------------

    async def touch(self, name: str) -> None:
        """Add 1 to every element of an array by a kernel, which counts as reading another array too."""
        self.hosts[name] += 1
        await self.kernels["touch"].launch(*self._touching(name), touches=[read_only(self.arrays["read"])])

    async def touch_in_batch(self, name: str, count: int) -> None:
        """The same many times in a batch, every other time by a launch that was prepared."""
        self.hosts[name] += 2 * count
        prepared = self.kernels["touch"].prepare(*self._touching(name))
        async with self.dev.batch() as batch:
            for _ in range(count):
                batch.launch(self.kernels["touch"], *self._touching(name))
                batch.launch(prepared)

    def _touching(self, name: str) -> tuple[Any, ...]:
        return 8, 128, self.arrays[name], NUMBERS.size

    async def copy_in(self, name: str) -> None:
        """Overwrite an array."""
        self.hosts[name] = NUMBERS[::-1].copy()
        await self.arrays[name].copy_from(self.hosts[name])

    async def copy_out(self, name: str) -> np.ndarray:
        """Read an array."""
        return await self.arrays[name].to_host()

    def ask(
        self,
        name: str,
        call: Callable[..., Awaitable[Any]],
        *arguments: Any,
        standing: Standing = Standing.STARTED,
        reads: np.ndarray | None = None,
    ) -> Party:
        """Have a party make a request."""
        party = self.parties[name] = Party(standing, call, arguments, reads)
        self.nursery.start_soon(party.run)
        return party

    async def start(self, name: str, call: Callable[..., Awaitable[Any]], *arguments: Any, **more: Any) -> None:
        """The same, and wait until the request is started."""
        before = self._sent()
        party = self.ask(name, call, *arguments, **more)
        await until(lambda: self._sent() > before or party.answered)

    def _sent(self) -> int:
        return sum(lane.submitted for lane in self.dev.statistics().lanes)

    # --- what is held up ----------------------------------------------------------------------------------------------

    def close_gate(self) -> None:
        """Have a kernel hold up the compute lane."""
        self.kernels["spin"].launch_nowait(1, 1, self.word.address)
        self.held.callback(self._open_gate)

    def _open_gate(self) -> None:
        """By a command past all that an ordinary copy may have to wait for: other copies, the end of the device."""
        if self.first.loss is not None:
            return
        busy = self.first.timeline.lanes[LANE_COPY_IN].in_flight
        record = COPY_IN.struct.pack(self.word.address, self.slot.offset, ONE.nbytes)
        self.first.publish(LANE_COPY_OUT if busy else LANE_COPY_IN, COPY_IN, record, (), Nobody())

    def let_go(self) -> None:
        """Let everything go on that is held up."""
        self.held.close()

    async def all_answered(self) -> None:
        """Wait until every party has its answer."""
        await until(lambda: all(party.answered for party in self.parties.values()))
