"""Modules: images that each generation loads, with their kernels and variables.

This process keeps a module's image, so the module outlives the worker that loaded it: the first launch in a new
generation sends the load before itself. A module with variables is loaded before the generation is in service, since
the driver gives the variables other addresses. Each variable then has its own block for each generation. The old block
is lost, so commands that use its address are refused. The new one begins torn if the old one had been written, and
until it is overwritten the module's kernels are refused too. A kernel's writes to a variable that is not among its
arguments cannot be seen: such a variable begins again without an error.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, final

import attrs
import numpy as np
import numpy.typing as npt
import outcome
import trio

from atomr_cuda.constants.driver import CUDA_ERROR_UNSUPPORTED_PTX_VERSION

from ..._arrays.arrays import DeviceArray, Storage
from ..._arrays.memory import DeviceMemory
from ..._calls.launching import AwaitedLaunches
from ..._compiling.compiler import CompiledProgram
from ..._compiling.images import Image, ImageKind, read_image, variables_of
from ..._compiling.told import Told, with_types
from ..._generation.core import DeviceCore, DevicePart
from ..._generation.timeline import Command, CommandOwner, Operand, Unwatched
from ..._memory.arena import Block, Chunk, ChunkState
from ..._supervision.mailbox import Request
from ..._supervision.states import RequestState
from ..._supervision.threads import in_thread_if
from ..._values.dtypes import check_dtype
from ..._values.errors import (
    AtomrInternalError,
    CommandFailed,
    DeviceError,
    InvalidArgument,
    OutOfHostMemory,
    StaleKernel,
)
from ..._values.habits import BLOCK, refuse_habits
from ..._values.long_texts import copied, encoded
from ..._values.shortage import host_limits
from ..._values.signatures import KernelSignature, signature_of_layout
from ..._values.util import Living, NoPublicConstructor, known, shown
from ..._wire.protocol import LANE_COMPUTE, Role
from ..._wire.records.module import LOAD, UNLOAD, kernel_number

if TYPE_CHECKING:
    from ... import Device
    from ..._generation.generation import Generation
    from .kernel import Kernel

S = TypeVar("S")
T = TypeVar("T")

_VARIABLE_MARK = "&"
"""The mark before a variable's name, in the answer to a load and in the name expressions of CUDA C++."""


_LARGE_IMAGE = 1 << 18
"""An image of at least this many bytes is read and stored in another thread."""


def _stale(generation: Generation, operation: str, reason: str, advice: str) -> StaleKernel:
    number = generation.number
    return StaleKernel(reason, device=generation.device, generation=number, operation=operation, advice=advice)


# ----------------------------------------------------------------------------------------------------------- variables


class ModuleStorage(Storage):
    """Holds a variable of a module. It lives as long as the module does, in another block in each generation."""

    __slots__ = ("__weakref__", "module")

    def __init__(self, block: Block, module: Module) -> None:
        super().__init__(module._device.part(DeviceMemory), block)
        self.module: Module = module

    def __del__(self) -> None:
        """Do nothing: there is nothing to give back."""

    def free(self) -> None:
        raise InvalidArgument("a variable of a module cannot be freed alone: use `await module.unload()`")

    def check_shareable(self) -> None:
        raise InvalidArgument(
            "a variable of a module cannot be shared with another library: copy it to an array of its own first"
        )

    async def placed(self) -> None:
        generation = self.device.current
        if self.block.lost is not None or generation is None or generation.refusing:
            await self.device.running_generation()


class _Variable:
    """A variable that was requested: its memory in the generation in service."""

    __slots__ = ("block", "name", "nbytes", "storage", "was_written")

    def __init__(self, name: str, nbytes: int) -> None:
        self.name = name
        self.nbytes = nbytes
        self.was_written: str | None = None
        """The reason why its block is torn, if its written contents were lost with its generation."""
        self.storage: weakref.ref[ModuleStorage] | None = None
        """The storage by which its arrays find the block, while there are any."""
        self.block = _block_at(0, nbytes)
        self.block.lost = "its module is not loaded in this generation"

    @property
    def stale(self) -> bool:
        """True if it was not overwritten since its generation was lost."""
        return self.was_written is not None and self.block.torn == self.was_written

    def place(self, address: int) -> None:
        """Take the memory of a new generation."""
        self.block = _block_at(address, self.nbytes)
        self.block.torn = self.was_written
        storage = None if self.storage is None else self.storage()
        if storage is not None:
            storage.block = self.block

    def spoil(self, why: str) -> None:
        """Note that a kernel of the module, which may write it by its own name, has run on garbage."""
        self.was_written = why
        self.block.tear(why)

    def leave(self, number: int, why: str) -> None:
        """Drop the memory of generation `number`, which was lost; `why` is the error until there is new memory."""
        block = self.block
        if block.written:
            self.was_written = f"it is a variable of a module, and its contents were lost with generation {number}"
        elif not self.stale:
            self.was_written = None
        self.end(why)

    def end(self, why: str) -> None:
        """Drop the memory for good."""
        self.block.lost = why
        self.block.fast = 0


def check_name(what: str, name: object) -> None:
    """Raise `InvalidArgument` unless `name` is a string that is not empty."""
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"a {what}'s name is a string that is not empty, not {shown(name)}")


def _block_at(address: int, nbytes: int) -> Block:
    """Return a block of memory that the driver has allocated, outside of the arena."""
    chunk = Chunk(address, nbytes)
    chunk.state = ChunkState.READY
    return Block(address, nbytes, nbytes, chunk)


# ------------------------------------------------------------------------------------------------------------- modules


class Module(metaclass=NoPublicConstructor):
    """A loaded image: a mapping of the names of its kernels to `Kernel`s, made by `dev.module.load`.

    It stays valid when a generation is lost: the next one loads the image again. Its variables are set anew there; see
    `global_`. It is unloaded by `unload`, at the end of ``async with module:``, or when it is collected. Its kernels
    and arrays keep it alive.
    """

    name: str
    """Its name in messages."""

    _made_by = "`await dev.module.load(image)`"

    def __init__(
        self,
        device: DeviceCore,
        image: Image,
        name: str | None,
        more_variables: Sequence[str] = (),
        stored: tuple[int, int] | None = None,
    ) -> None:
        self._device = device
        self._modules = device.part(Modules)
        self._launches = device.part(AwaitedLaunches)
        self._number = device.next_number()
        self.name = f"module {self._number}" if name is None else name
        self._image = image
        self._born = 0
        """The generation that it was first loaded in."""
        self._facts: dict[str, dict[str, Any]] = {}
        """The driver's facts about each kernel."""
        self._kernel_numbers: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        """The bytes of each variable that the driver knows."""
        self._variables: dict[str, _Variable] = {}
        """The variables that were requested."""
        self._kernels: weakref.WeakValueDictionary[str, Kernel] = weakref.WeakValueDictionary()
        self._unloaded = False
        self._descriptor, self._image_bytes = stored or _store(device, image, more_variables)
        self._modules.living.add(self)

    def __repr__(self) -> str:
        state = "unloaded" if self._unloaded else f"{self.image_kind.value} with {', '.join(self) or 'no kernels'}"
        return f"<{type(self).__name__} {self.name!r}, {state}>"

    def __del__(self) -> None:
        descriptor = getattr(self, "_descriptor", -1)
        if descriptor >= 0:
            os.close(descriptor)
            self._device.dropped.append(functools.partial(_unload_unused, self._number))

    # --- what is in it ------------------------------------------------------------------------------------------------

    @property
    def device(self) -> Device:
        """The device it belongs to."""
        device: Device = self._device.face
        return device

    @property
    def image_kind(self) -> ImageKind:
        """The kind of the loaded image. LTO-IR was made a cubin before, and so was PTX newer than the driver."""
        return self._image.kind

    @property
    def target(self) -> str | None:
        """The target of the image: "compute_80" for PTX, "sm_90" for machine code; None if the image does not say."""
        return self._image.target

    @property
    def globals(self) -> Mapping[str, int]:
        """Bytes of each variable in global or constant memory, by its name in the image.

        A fatbin does not contain their names: it has only those that were given to `load`.
        """
        return MappingProxyType(self._sizes)

    @property
    def ptx(self) -> str | None:
        """The PTX text; None if there is only machine code."""
        return self._image.data.rstrip(b"\0").decode() if self.image_kind is ImageKind.PTX else None

    @property
    def cubin(self) -> bytes | None:
        """The machine code; None if the driver makes it from PTX, or chooses it from a fatbin."""
        return self._image.data if self.image_kind is ImageKind.CUBIN else None

    @property
    def log(self) -> str:
        """The messages of the compiler; empty for a loaded image."""
        return ""

    def __len__(self) -> int:
        """Return the number of kernels."""
        return len(self._names())

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the kernels."""
        return iter(self._names())

    def __contains__(self, name: object) -> bool:
        """Return whether the module has a kernel of this name."""
        return name in self._names()

    def _names(self) -> Sequence[str]:
        return tuple(self._facts)

    def __getitem__(self, name: str) -> Kernel:
        """Return the kernel of this name, as `function` does. Raises `InvalidArgument` for an unknown name."""
        return self.function(name)

    def function(self, name: str) -> Kernel:
        """Return the kernel called `name` in the image (``cuModuleGetFunction``): for C++ the mangled name.

        With PTX, arguments are checked by the types that it declares. Without PTX, only their sizes are known
        (``cuFuncGetParamInfo``): an 8-byte parameter takes device arrays, and every parameter takes ints and numpy
        scalars of its size; a Python float must be wrapped, ``np.float32(x)``.

        Raises `InvalidArgument` for an unknown kernel, and once the module is unloaded.
        """
        from .kernel import Kernel

        self._device.home.check_thread()
        self._check_loaded()
        check_name("kernel", name)
        kernel = self._kernels.get(name)
        if kernel is None:
            kernel = Kernel._create(self, name)
            self._kernels[name] = kernel
        return kernel

    def _declared(self, name: str, roles: Sequence[Role | None]) -> Kernel:
        """Return the kernel called `name`, of whose arrays a declaration says more than its code proves."""
        from .kernel import Kernel

        kernel: Kernel = Kernel._create(self, name, roles)
        self._kernels[name] = kernel
        return kernel

    def _serves(self) -> bool:
        """Return whether its kernels can be launched: it is loaded, and not of a lost generation in the strict mode."""
        return not self._unloaded and not (self._device.strict and self._born != self._device.generation)

    def global_(self, name: str, dtype: npt.DTypeLike = np.uint8) -> DeviceArray:
        """Return the variable `name`, ``__device__`` or ``__constant__``, as an array (``cuModuleGetGlobal``).

        `name` is the name in the image, for C++ the mangled one. The array has one axis, of all elements of the given
        `dtype` that the variable holds; `DeviceArray.reshape` gives it another shape. It is used like any other array,
        and keeps the module alive. But its memory is the module's: it cannot be freed or shared with another library,
        and has another address in each generation. Each generation begins with the variable's value in the image. If
        a copy, a fill or a kernel with the array as an argument has written it, using it after a fault raises
        `StaleArray`, and launching the module's kernels raises `StaleKernel`, until all of it is written again. Writes
        of a kernel to the variable by its own name are not noticed.

        Raises `InvalidArgument` for an unknown variable, a dtype whose size does not divide the variable's, and once
        the module is unloaded; `LibraryNotFound` for a dtype of ml_dtypes that is not installed.
        """
        self._device.home.check_thread()
        self._check_loaded()
        checked = check_dtype(dtype)
        check_name("variable", name)
        size = self._sizes.get(name)
        if size is None:
            raise InvalidArgument(
                f"{self.name} has no variable {shown(name)}; it has: {', '.join(self._sizes) or 'none'}",
                advice="C++ names in namespaces are mangled; variables that no kernel uses are left out of the image.",
            )
        if size % checked.itemsize:
            raise InvalidArgument(f"{name} has {size} bytes, not a multiple of the size of {checked.name}")
        shape, strides = (size // checked.itemsize,), (checked.itemsize,)
        return DeviceArray._create(self._storage_of(name, size), 0, shape, strides, checked)

    def _storage_of(self, name: str, size: int) -> ModuleStorage:
        variable = self._variables.get(name)
        if variable is None:
            variable = self._variables[name] = _Variable(name, size)
            generation = self._device.current
            if generation is not None and generation.loss is None:
                self._place(generation, [variable])
        storage = None if variable.storage is None else variable.storage()
        if storage is None:
            storage = ModuleStorage(variable.block, self)
            variable.storage = weakref.ref(storage)
        return storage

    # --- the end ------------------------------------------------------------------------------------------------------

    async def unload(self) -> None:
        """Unload the module once all work that was submitted before is done (``cuModuleUnload``).

        From then on every launch of its kernels raises `InvalidArgument`, prepared or in a graph too, and its arrays
        raise `StaleArray`. Unloading twice does nothing. It also succeeds if the generation is lost meanwhile.

        Raises `DeviceClosed` or `DeviceFailed` once the device takes no requests.
        """
        self._device.home.check_task()
        if self._unloaded:
            await trio.lowlevel.checkpoint()
        else:
            await self._device.module_actor.mailbox.ask(_UnloadRequest(self))

    async def __aenter__(self) -> Self:
        """Return the module itself."""
        self._device.home.check_task()
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Unload it as `unload` does; if the block was left by an exception, do not wait for that.

        A module that cannot be unloaded at once then, since its device is being rebuilt, say, is when it is collected.
        """
        if error is None:
            await self.unload()
            return
        self._device.home.check_task()
        if not self._unloaded:
            with contextlib.suppress(trio.WouldBlock, DeviceError):  # what the block has raised goes on
                self._device.module_actor.begin_nowait(_UnloadRequest(self), self._device.current)
        await trio.lowlevel.cancel_shielded_checkpoint()

    def _end(self, generation: Generation) -> None:
        """Refuse every use from now on; submitted work goes on."""
        self._unloaded = True
        self._forget()
        for variable in self._variables.values():
            variable.end(f"its module, {self.name!r}, was unloaded")
        for path in generation.sender.short_ways:
            path.forget(self)
        self._modules.living.discard(self)
        self._modules.moving.discard(self)

    def _forget(self) -> None:
        """Close the descriptor, in a forked child or when the device is closed."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    # --- for kernels and graphs ---------------------------------------------------------------------------------------

    def _lowered(self, name: str) -> str:
        """Return the name in the image of the kernel called `name`."""
        if name in self._facts:
            return name
        kernels = ", ".join(map(repr, self)) or "none"
        raise InvalidArgument(f"{self.name} has no kernel {name!r}; it has: {kernels}")

    def _signature(self, lowered: str) -> KernelSignature:
        entries, told = self._image.entries, self._told().get(lowered)
        if entries is None:
            return with_types(signature_of_layout(lowered, self._facts[lowered]["parameters"]), told)
        return entries[lowered] if told is None else with_types(entries[lowered], told)

    def _told(self) -> Mapping[str, Told]:
        """Return what the compiler told of kernels that were linked since."""
        return MappingProxyType({})

    def _hidden(self) -> list[Block]:
        """Return the memory that its kernels may use without naming it: that of the variables that were asked for."""
        return [variable.block for variable in self._variables.values() if variable.block.lost is None]

    def _spoil(self, why: str) -> None:
        """Note that one of its kernels has run on garbage: what may be in its variables is not to be used."""
        for variable in self._variables.values():
            if variable.block.lost is None:
                variable.spoil(why)

    def _check_loaded(self) -> None:
        if self._unloaded:
            raise InvalidArgument(f"{self.name!r} was unloaded", advice="load it again.")

    def _check_usable(self, generation: Generation, operation: str, operands: Sequence[Operand]) -> None:
        """Raise an error unless its kernels may be launched in `generation`, on `operands`."""
        self._check_loaded()
        if self._device.strict and self._born != generation.number:
            reason = f'the kernel belongs to generation {self._born} and the device was opened with on_fault="stale"'
            raise _stale(generation, operation, reason, "compile it again, or load it")
        stale = [variable for variable in self._variables.values() if variable.stale]
        if stale:
            given = {block for block, _ in operands}  # the operands of the launch itself are checked elsewhere
            names = [variable.name for variable in stale if variable.block not in given]
            if names:
                reason = f"the contents of {', '.join(names)}, of the kernel's module, went with a lost generation"
                advice = "write all of it again, with `copy_from` or `fill` of `module.global_(...)`"
                raise _stale(generation, operation, reason, advice)

    # --- loading ------------------------------------------------------------------------------------------------------

    def _require(self, generation: Generation) -> tuple[int, ...]:
        """Return the ticket of the load, if a launch in `generation` must still check it."""
        self._check_loaded()
        if self._number not in generation.modules:
            self._load(generation)
        ticket = generation.modules[self._number]
        return (ticket,) if ticket else ()

    def _load(self, generation: Generation, owner: CommandOwner | None = None) -> None:
        """Publish the load. `owner` is told of its end, and calls `_loaded`; without one, only the module is told."""
        self._device.release_dropped(generation)
        payload = LOAD.struct.pack(self._number, self._image_bytes)
        owner = owner or _Load(self, generation)
        command = generation.publish(LANE_COMPUTE, LOAD, payload, (), owner, descriptors=(self._descriptor,))
        generation.modules[self._number] = command.ticket

    def _warm(self, standby: Generation) -> None:
        """Make a standby load the module, so that its first launch there finds it loaded."""
        missing = self._number not in standby.modules
        if standby.ready and not self._device.strict and missing and self._descriptor >= 0:
            with contextlib.suppress(OutOfHostMemory):  # then its first launch there loads it, or raises the error
                self._load(standby)

    def _loaded(self, generation: Generation, error: DeviceError | None, facts: dict[str, Any] | None) -> None:
        """Handle the end of a load. After a failed one, the next launch tries again."""
        if self._unloaded:  # a standby was still loading it; its unload follows
            return
        if error is not None:
            generation.modules.pop(self._number, None)
            for variable in self._variables.values():
                variable.end(f"its module, {self.name!r}, could not be loaded again: {error.message}")
            return
        generation.modules[self._number] = 0
        answers = facts or {}
        variables = {name[1:]: tuple(answers.pop(name)) for name in list(answers) if name.startswith(_VARIABLE_MARK)}
        generation.variables[self._number] = {name: address for name, (address, _) in variables.items()}
        if not self._born:
            self._facts = answers
            self._kernel_numbers = {name: kernel_number(self._number, at) for at, name in enumerate(answers)}
            self._sizes = {name: size for name, (_, size) in variables.items()}
            if variables:
                self._modules.moving.add(self)
            self._born = generation.number
        if generation is self._device.current:
            self._settle_in(generation)

    def _begins_anew(self, generation: Generation) -> bool:
        """Return whether it must be loaded before `generation` is in service: its variables have moved."""
        return bool(self._sizes) and not self._device.strict and generation.modules.get(self._number) != 0

    def _settle_in(self, generation: Generation) -> None:
        """Note that the generation is in service."""
        if not self._unloaded and (self._born == generation.number or not self._device.strict):
            self._place(generation, list(self._variables.values()))

    def _place(self, generation: Generation, variables: Sequence[_Variable]) -> None:
        addresses = generation.variables.get(self._number, {})
        for variable in (each for each in variables if each.name in addresses):
            variable.place(addresses[variable.name])

    def _generation_lost(self, number: int) -> None:
        """Drop the memory of its variables, which went with generation `number`."""
        if self._device.strict:
            why = f'generation {number} was lost and the device was opened with on_fault="stale"'
        else:
            why = f"its address was that of generation {number}, which was lost; use it again in the next one"
        for variable in self._variables.values():
            variable.leave(number, why)

    def _check_layouts(self) -> None:
        """Raise `AtomrInternalError` if the driver's layout of parameters is not the PTX's: launches would be wrong."""
        for name, signature in (self._image.entries or {}).items():
            layout = [[parameter.offset, parameter.size] for parameter in signature.parameters]
            told = self._facts[name]["parameters"]
            if told != layout:
                raise AtomrInternalError(f"the driver lays the parameters of {name} out as {told}, its PTX as {layout}")


refuse_habits(Module, BLOCK)


@final
class Program(Module):
    """A compiled and loaded program, with its names in CUDA C++; made by `dev.nvrtc.compile_program`.

    ``program["my_kernel<float, 256>"]`` is a kernel and ``program["&symbol"]`` the bytes of a variable, if the name is
    among the name expressions of the options; ``extern "C"`` names need not be.
    """

    _made_by = "`await dev.nvrtc.compile_program(source)`"

    def __init__(self, device: DeviceCore, image: Image, program: CompiledProgram) -> None:
        self._program = program
        super().__init__(device, image, None)

    @property
    def target(self) -> str:
        """The target that it was compiled for: "compute_80", "sm_90a"."""
        return self._program.target

    @property
    def ptx(self) -> str | None:
        """The PTX that the compiler made; None if something else was requested."""
        return self._program.ptx.decode() or None

    @property
    def cubin(self) -> bytes | None:
        """The machine code that the compiler made; None if only PTX was requested."""
        return self._program.cubin

    @property
    def ltoir(self) -> bytes | None:
        """The LTO-IR for link-time optimisation; None if it was not requested."""
        return self._program.ltoir

    @property
    def log(self) -> str:
        """The messages of the compiler, for example warnings."""
        return self._program.log

    def __getitem__(self, name: str) -> Any:
        """Return a kernel by its name, or, with an ampersand before the name, a variable as an array of its bytes.

        Raises `InvalidArgument` for an unknown name.
        """
        check_name("kernel", name)
        return self.global_(name) if name.startswith(_VARIABLE_MARK) else self.function(name)

    def global_(self, name: str, dtype: npt.DTypeLike = np.uint8) -> DeviceArray:
        """Return the variable `name` as an array of `dtype` with one axis; `DeviceArray.reshape` changes its shape.

        The name is a name expression, ``"&ns::symbol"``, or that in the image. Otherwise it works as `Module.global_`.

        Raises as `Module.global_` does.
        """
        check_name("variable", name)
        if name.startswith(_VARIABLE_MARK):
            name = self._program.lowered_names.get(name, name[1:])
        return super().global_(name, dtype)

    def _told(self) -> Mapping[str, Told]:
        return self._program.told

    def _names(self) -> Sequence[str]:
        """Return the kernels' names in the source, if they were requested by those."""
        written = {lowered: name for name, lowered in self._program.lowered_names.items() if lowered in self._facts}
        return tuple(written.get(lowered, lowered) for lowered in self._facts)

    def _lowered(self, name: str) -> str:
        if self._program.ltoir is not None:  # LTO-IR has no names: the names that the linker has kept are known by now
            return super()._lowered(self._program.lowered_names.get(name, name))
        self._program.signature(name)
        return self._program.lowered(name)


def _image_of(program: CompiledProgram) -> Image:
    """Return the image of a program, with its kernels' parameters from the compilation."""
    entries, kernels = program.entries, tuple(program.entries)
    if program.cubin is not None:
        return attrs.evolve(read_image(program.cubin), entries=entries, kernels=kernels)
    variables = variables_of(program.ptx.decode(errors="replace"))
    return Image(ImageKind.PTX, program.image, program.target, entries, kernels, variables)


# ------------------------------------------------------------------------------------------------------------ commands


class _Load:
    """The owner of a load for a launch, for a standby, or before a generation's service."""

    def __init__(self, module: Module, generation: Generation) -> None:
        self._module = module
        self._generation = generation

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Note the outcome. Commands that require the load get the same error."""
        self._module._loaded(self._generation, error, value)

    def command_lost(self, command: Command, error: DeviceError) -> None:
        """Do nothing: the next generation loads it again."""


class LoadRequest(Request):
    """The first load of a module."""

    __slots__ = ("_generation", "_module")

    def __init__(self, module: Module) -> None:
        super().__init__("module.load")
        self._module = module
        self._generation: Generation | None = None

    def start(self, generation: Generation) -> None:
        """Load the module."""
        self._generation = generation
        self._module._load(generation, self)
        self.state = RequestState.STARTED

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Settle, and let the standbys load the module too."""
        generation = known(self._generation, "a load has ended that was not begun")
        self._module._loaded(generation, error, value)
        for standby in generation.standbys if error is None else ():
            self._module._warm(standby)
        if self.open:
            self.settle(outcome.Value(None) if error is None else outcome.Error(error))

    def command_lost(self, command: Command, error: DeviceError) -> None:
        """Settle with the loss."""
        if self.open:
            self.settle(outcome.Error(error))


class _UnloadRequest(Request):
    """The unload of a module, after all work that was submitted before it on every lane."""

    __slots__ = ("_module",)

    def __init__(self, module: Module) -> None:
        super().__init__("module.unload")
        self._module = module

    def start(self, generation: Generation) -> None:
        """Refuse later uses, and publish."""
        module = self._module
        module._end(generation)
        generation.drop_module(module._number)
        after = [(book.index, book.issued) for book in generation.timeline.lanes if book.busy]
        generation.publish(LANE_COMPUTE, UNLOAD, UNLOAD.struct.pack(module._number), (), self, after=after)
        for standby in generation.standbys:
            if standby.drop_module(module._number):
                publish_unload(standby, module._number)
        self.state = RequestState.STARTED

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Settle."""
        if self.open:
            self.settle(outcome.Value(None) if error is None else outcome.Error(error))

    def command_lost(self, command: Command, error: DeviceError) -> None:
        """Settle: the module went with the worker."""
        if self.open:
            self.settle(outcome.Value(None))


def _unload_unused(number: int, generation: Generation) -> None:
    """Make a worker unload a module that was collected, if it was told to load it."""
    if generation.drop_module(number):
        publish_unload(generation, number)


def publish_unload(generation: Generation, number: int) -> None:
    """Make a worker unload a module."""
    generation.publish(LANE_COMPUTE, UNLOAD, UNLOAD.struct.pack(number), (), Unwatched())


class Modules(DevicePart):
    """The modules of an open device. Each is loaded again in every generation."""

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self.living: Living[Module] = Living()
        self.moving: Living[Module] = Living()  # those with variables: a takeover looks at these alone
        self.programs: weakref.WeakValueDictionary[int, Program] = weakref.WeakValueDictionary()
        """The shared module of each compiled program, by the program's identity."""

    def warm(self, standby: Generation) -> None:
        """Make a new standby load all of them."""
        for module in self.living:
            module._warm(standby)

    async def restore(self, generation: Generation) -> None:
        """Load the modules with variables, which have new addresses, and wait for that."""
        moving = [module for module in self.moving if module._begins_anew(generation)]
        for module in moving:
            if module._number not in generation.modules:
                module._load(generation)
        while generation.loss is None and any(generation.modules.get(module._number) for module in moving):
            await generation.admission.wait_room(None)

    def settle_in(self, generation: Generation) -> None:
        """Give the variables their addresses in the generation."""
        for module in self.moving:
            module._settle_in(generation)

    def generation_lost(self, number: int) -> None:
        """Drop the memory of the variables."""
        for module in self.moving:
            module._generation_lost(number)

    def close(self) -> None:
        """Close the descriptors of the images."""
        for module in self.living:
            module._forget()

    forget = close


async def load_program(device: DeviceCore, program: CompiledProgram) -> Program:
    """Return the shared module of a program, loaded at least once so that its facts are known."""
    programs = device.part(Modules).programs
    module = programs.get(id(program))
    if module is None or not module._serves():
        module = await load_apart(device, program)
        programs[id(program)] = module
    else:
        await trio.lowlevel.checkpoint()
    return module


async def load_apart(device: DeviceCore, program: CompiledProgram) -> Program:
    """Return a new module of a program, with its own variables."""
    if program.ltoir is None:
        image = await _in_thread_if_large(len(program.image), _image_of, program)
    else:
        image = await _linked(device, program.ltoir, "the program")
    module = Program._create(device, image, program)
    await device.module_actor.mailbox.ask(LoadRequest(module))
    module._check_layouts()
    return module


# ------------------------------------------------------------------------------------------------------- for the users


@final
class ModuleLoader:
    """Loads images that were compiled elsewhere, as `dev.module`."""

    def __init__(self, device: DeviceCore) -> None:
        self._device = device

    async def load(
        self,
        image: bytes | bytearray | memoryview | str | os.PathLike[str],
        *,
        name: str | None = None,
        variables: Sequence[str] = (),
    ) -> Module:
        """Load an image: PTX, a cubin, a fatbin, or LTO-IR, which is linked for this device first.

        `image` is its bytes, the text of PTX, or the path of a file; a string with a line break is PTX, any other a
        path. `name` is the module's name in messages, by default the file's name. `variables` are further names of
        variables to look up; a fatbin contains none. The image is checked by its own headers here, and loaded by
        ``cuModuleLoadDataEx`` in the worker. nvJitLink makes a cubin of PTX that is newer than the driver.

        Raises `InvalidArgument` for bytes that are not an image, or not complete, and for a file that cannot be read;
        `CommandFailed` with the log of the driver's compiler for an image that it refuses, for example one for another
        architecture; `CompileError` and `LibraryNotFound` where it has to be linked and cannot be; `ContextLost` if the
        context is lost meanwhile.
        """
        device = self._device
        device.home.check_task()
        device.check_open()
        if isinstance(variables, str) or not isinstance(variables, Sequence):
            raise InvalidArgument(f"variables is a list of names, not {shown(variables)}", device=device.index)
        for variable in variables:
            check_name("variable", variable)
        await trio.lowlevel.checkpoint_if_cancelled()  # the path's `__fspath__` may run the caller's code
        from ..._compiling.linker import bridge_ptx

        data, file_name = await _content_of(image)
        read = await _read(data)
        name = file_name if name is None else name
        if read.kind is ImageKind.LTOIR:
            read = await _linked(device, read.data, name or "image")
        try:
            return await self._load(read, name, variables)
        except CommandFailed as refused:
            if refused.status != CUDA_ERROR_UNSUPPORTED_PTX_VERSION or device.backend == "sim":
                raise
            text, info = read.data.rstrip(b"\0"), device.info
            with host_limits("the PTX cannot be made a cubin", device=device.index, operation=LOAD.operation):
                cubin = await trio.to_thread.run_sync(bridge_ptx, text, info.capability, info.driver_version)
            return await self._load(await _read(cubin), name, variables)

    async def _load(self, image: Image, name: str | None, variables: Sequence[str]) -> Module:
        device = self._device
        stored = await _in_thread_if_large(len(image.data), lambda each: _store(device, each, variables), image)
        module: Module = Module._create(self._device, image, name, variables, stored)
        await self._device.module_actor.mailbox.ask(LoadRequest(module))
        module._check_layouts()
        return module


async def _linked(device: DeviceCore, ltoir: bytes, name: str) -> Image:
    """Return the image that nvJitLink makes of LTO-IR: a cubin, or PTX for the simulator."""
    from ..._compiling.link_options import LinkOptions
    from ..._compiling.linker import LinkInput, link

    source, (major, minor) = LinkInput(ltoir, name), device.info.capability
    arch = f"{'compute' if device.backend == 'sim' else 'sm'}_{major}{minor}"
    options = LinkOptions(lineinfo=bool(device.options.checks))
    with host_limits("the image cannot be linked", device=device.index, operation=LOAD.operation):
        return await trio.to_thread.run_sync(lambda: read_image(link([source], arch=arch, options=options)))


def _store(device: DeviceCore, image: Image, more_variables: Sequence[str]) -> tuple[int, int]:
    """Return a descriptor of an image and the names to look up in it, and the size of the image."""
    wanted = {"kernels": image.kernels, "globals": list(dict.fromkeys((*image.variables, *more_variables)))}
    with host_limits("the image cannot be handed to a worker", device=device.index, operation=LOAD.operation):
        descriptor = os.memfd_create("atomr-trio-image", os.MFD_CLOEXEC)
        try:
            with open(descriptor, "wb", closefd=False) as file:
                size = file.write(image.data)
                file.write(json.dumps(wanted).encode())
        except BaseException:
            os.close(descriptor)
            raise
    return descriptor, size


async def _in_thread_if_large(size: int, work: Callable[[S], T], image: S) -> T:
    """Return the result of `work` on an image, done in another thread if the image is large."""
    return await in_thread_if(size >= _LARGE_IMAGE, work, image)


async def _read(data: bytes) -> Image:
    return await _in_thread_if_large(len(data), read_image, data)


async def _content_of(image: object) -> tuple[bytes, str | None]:
    """Return the bytes of an image, and the name of the file that they were read from."""
    if isinstance(image, bytes):
        return image, None
    if isinstance(image, bytearray | memoryview):
        return await _in_thread_if_large(memoryview(image).nbytes, copied, image), None
    if isinstance(image, str) and "\n" in image:
        content = await _in_thread_if_large(len(image), lambda text: encoded(text, errors="replace"), image)
        return content, None
    if not isinstance(image, str | os.PathLike):
        raise InvalidArgument(f"an image is bytes, the text of PTX or the path of a file, not {type(image).__name__}")
    path = trio.Path(image)
    try:
        with host_limits("the image cannot be read"):
            return await path.read_bytes(), path.name
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"the image cannot be read: {error}") from error
