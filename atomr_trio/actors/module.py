"""Modules: images that each generation loads when it first needs them.

A module is remembered by its image, so it outlives the worker that loaded it: the first launch in a new generation
brings the load along, ordered before itself.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import outcome
import trio

from .._compiler import CompiledProgram
from .._errors import AtomrInternalError, DeviceError
from .._mailbox import Request, RequestState
from .._timeline import Command, CommandOwner
from .._util import known
from ..worker.engines.module import LOAD, UNLOAD
from ..worker.protocol import LANE_COMPUTE

if TYPE_CHECKING:
    from .._device import Device
    from .._generation import Generation


class Module:
    """An image that is loaded into each generation when it is first needed there."""

    def __init__(self, device: Device, number: int, program: CompiledProgram) -> None:
        self.device = device
        self.number = number
        self.program = program
        self.born = 0
        """The generation that it was first loaded in."""
        self.facts: dict[str, dict[str, Any]] = {}
        """What the driver tells about each kernel."""
        self.kernel_numbers: dict[str, int] = {name: device._next_number() for name in program.entries}
        self._image = os.memfd_create("atomr-trio-image", os.MFD_CLOEXEC)
        with open(self._image, "wb", closefd=False) as file:
            self._image_bytes = file.write(program.image)
            file.write(json.dumps([(number, name) for name, number in self.kernel_numbers.items()]).encode())

    def __repr__(self) -> str:
        return f"<Module {self.number} with {', '.join(self.program.entries)}>"

    def __del__(self) -> None:
        image = getattr(self, "_image", -1)
        if image >= 0:
            os.close(image)
            self.device._orphan_modules.append(self.number)

    def forget(self) -> None:
        """In a forked child, or when the device is closed: close the descriptor."""
        if self._image >= 0:
            os.close(self._image)
            self._image = -1

    def require(self, generation: Generation) -> tuple[int, ...]:
        """The ticket of the load, if a launch in `generation` must still ask whether it succeeded."""
        if self.number not in generation.modules:
            self.load(generation)
        ticket = generation.modules[self.number]
        return (ticket,) if ticket else ()

    def load(self, generation: Generation, owner: CommandOwner | None = None) -> None:
        """Publish the load. `owner` hears how it ended, and tells `loaded`; without one, nobody else needs to know."""
        self.device._unload_orphans(generation)
        payload = LOAD.struct.pack(self.number, self._image_bytes)
        owner = owner or _Load(self, generation)
        command = generation.publish(LANE_COMPUTE, LOAD, payload, (), owner, descriptors=(self._image,))
        generation.modules[self.number] = command.ticket

    def warm(self, standby: Generation) -> None:
        """Have a standby load the module, so that its first launch there finds it loaded."""
        if standby.ready and not self.device._strict and self.number not in standby.modules and self._image >= 0:
            self.load(standby)

    def loaded(self, generation: Generation, error: DeviceError | None) -> None:
        """The load has ended; one that failed is tried again by the next launch."""
        if error is None:
            generation.modules[self.number] = 0
        else:
            generation.modules.pop(self.number, None)


class _Load:
    """A load that a launch brought along, or that keeps a standby warm."""

    def __init__(self, module: Module, generation: Generation) -> None:
        self._module = module
        self._generation = generation

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Whoever required it gets the same error."""
        self._module.loaded(self._generation, error)

    def command_lost(self, command: Command, error: DeviceError) -> None:
        """The next generation loads it again."""


class LoadRequest(Request):
    """Loads a module for the first time; its answer is what the driver tells about the kernels."""

    __slots__ = ("_generation", "_module")

    def __init__(self, module: Module) -> None:
        super().__init__("module.load")
        self._module = module
        self._generation: Generation | None = None

    def start(self, generation: Generation) -> None:
        """Load the module."""
        self._generation = generation
        self._module.load(generation, self)
        self.state = RequestState.STARTED

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Settle with the kernels' facts; the standbys load the module too."""
        generation = known(self._generation, "a load has ended that was not begun")
        self._module.loaded(generation, error)
        if error is None:
            for standby in generation.standbys:
                self._module.warm(standby)
        if self.open:
            self.settle(outcome.Value(value) if error is None else outcome.Error(error))

    def command_lost(self, command: Command, error: DeviceError) -> None:
        """Settle with the loss."""
        if self.open:
            self.settle(outcome.Error(error))


class UnloadOwner:
    """Nobody waits for an unload."""

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Nothing to do."""

    def command_lost(self, command: Command, error: DeviceError) -> None:
        """Nothing to do: the worker is gone, and the module with it."""


def publish_unload(generation: Generation, number: int) -> None:
    """Tell the worker that nobody has the module any more."""
    generation.publish(LANE_COMPUTE, UNLOAD, UNLOAD.struct.pack(number), (), UnloadOwner())


async def load_program(device: Device, program: CompiledProgram) -> Module:
    """The module of a program, loaded at least once so that its facts are known."""
    module = device._modules.get(id(program))
    if module is None or (device._strict and module.born != device.generation):
        module = Module(device, device._next_number(), program)
        facts = await device._module_mailbox.ask(LoadRequest(module))
        for name, signature in program.entries.items():
            layout = [[parameter.offset, parameter.size] for parameter in signature.parameters]
            if facts[name]["parameters"] != layout:
                raise AtomrInternalError(
                    f"the driver lays the parameters of {name} out as {facts[name]['parameters']}, its PTX as {layout}"
                )
        module.facts = facts or {}
        module.born = device.generation
        device._modules[id(program)] = module
    else:
        await trio.lowlevel.checkpoint()
    return module
