"""Modules: images that each generation loads, and what is in them: kernels, and variables of their own.

A module is remembered by its image, so it outlives the worker that loaded it: the first launch in a new generation
brings the load along, ordered before itself. One that has variables is loaded before the generation is in service,
since the driver gives them other addresses: each variable then has a block of its own for each generation. The old one
is lost, so whatever was made of its address is refused; the new one begins torn if the old one had been written, and
until that is made good the module's kernels are refused too. What a kernel writes into a variable that is not among its
arguments nobody sees: such a variable begins anew without a word.
"""

from __future__ import annotations

import contextlib
import json
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, final

import attrs
import numpy as np
import numpy.typing as npt
import outcome
import trio

from .._arrays import DeviceArray, ModuleStorage
from .._compiling.compiler import CompiledProgram
from .._compiling.images import Image, ImageKind, read_image, variables_of
from .._dtypes import check_dtype
from .._errors import AtomrInternalError, CommandFailed, DeviceError, InvalidArgument, OutOfHostMemory, StaleKernel
from .._mailbox import Request, RequestState
from .._memory import Block, Chunk, ChunkState
from .._ownership import check_own
from .._parameters import KernelSignature, signature_of_layout
from .._shortage import host_limits
from .._timeline import Command, CommandOwner, Operand
from .._util import NoPublicConstructor, known, shown
from ..worker.engines.module import LOAD, UNLOAD, kernel_number
from ..worker.protocol import LANE_COMPUTE

if TYPE_CHECKING:
    from .._device import Device
    from .._generation import Generation
    from .kernel import Kernel

S = TypeVar("S")
T = TypeVar("T")

_VARIABLE_MARK = "&"
"""What stands before a variable's name, in the answer to a load and in the name expressions of CUDA C++."""

_UNSUPPORTED_PTX_VERSION = 222

_LARGE_IMAGE = 1 << 18
"""An image of so many bytes is read and stored in another thread."""


def _stale(generation: Generation, operation: str, reason: str, advice: str) -> StaleKernel:
    number = generation.number
    return StaleKernel(reason, device=generation.device, generation=number, operation=operation, advice=advice)


# ----------------------------------------------------------------------------------------------------------- variables


async def placed(device: Device, arguments: Iterable[object]) -> None:
    """Wait, if there are variables of modules among a call's arguments, until it is known where those are.

    Raises `InvalidArgument` for arrays of another device, which nobody is to wait for.
    """
    for argument in arguments:
        array = getattr(argument, "array", argument)
        if isinstance(array, DeviceArray):
            check_own(device, array)
            await array._storage.placed()


class _Variable:
    """A variable that somebody has asked for: the memory that it has in the generation in service."""

    __slots__ = ("block", "name", "nbytes", "storage", "was_written")

    def __init__(self, name: str, nbytes: int) -> None:
        self.name = name
        self.nbytes = nbytes
        self.was_written: str | None = None
        """What its block is torn by, if what had been written to it went with its generation."""
        self.storage: weakref.ref[ModuleStorage] | None = None
        """Where its arrays find the block, while there are any."""
        self.block = _block_at(0, nbytes)
        self.block.lost = "its module is not loaded in this generation"

    @property
    def stale(self) -> bool:
        """Whether it has not been made good since its generation was lost."""
        return self.was_written is not None and self.block.torn == self.was_written

    def place(self, address: int) -> None:
        """Have the memory of a new generation."""
        self.block = _block_at(address, self.nbytes)
        self.block.torn = self.was_written
        storage = None if self.storage is None else self.storage()
        if storage is not None:
            storage.block = self.block

    def leave(self, number: int, why: str) -> None:
        """Generation `number` was lost; `why` the memory is not to be used, until there is other."""
        block = self.block
        if block.written:
            self.was_written = f"it is a variable of a module, and what was written to it went with generation {number}"
        elif not self.stale:
            self.was_written = None
        self.end(why)

    def end(self, why: str) -> None:
        """The memory is gone."""
        self.block.lost = why
        self.block.fast = 0


def check_name(what: str, name: object) -> None:
    """Raise `InvalidArgument` for what cannot be a name."""
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"a {what}'s name is a string that is not empty, not {shown(name)}")


def _block_at(address: int, nbytes: int) -> Block:
    """Memory that the driver has, and the arena knows nothing of."""
    chunk = Chunk(address, nbytes)
    chunk.state = ChunkState.READY
    return Block(address, nbytes, nbytes, chunk)


# ------------------------------------------------------------------------------------------------------------- modules


class Module(metaclass=NoPublicConstructor):
    """A loaded image: a mapping of the names of its kernels to `Kernel`s, made by `dev.module.load`.

    It stays valid when a generation is lost: the next one loads the image again. Its variables begin anew there; see
    `global_`. It is unloaded by `unload`, at the end of ``async with module:``, or when it is collected, which the
    kernels and arrays made of it prevent.
    """

    device: Device
    """The device it belongs to."""
    name: str
    """What messages call it."""

    _made_by = "`await dev.module.load(image)`"

    def __init__(
        self,
        device: Device,
        image: Image,
        name: str | None,
        more_variables: Sequence[str] = (),
        stored: tuple[int, int] | None = None,
    ) -> None:
        self.device = device
        self._number = device._next_number()
        self.name = f"module {self._number}" if name is None else name
        self._image = image
        self._born = 0
        """The generation that it was first loaded in."""
        self._facts: dict[str, dict[str, Any]] = {}
        """What the driver tells about each kernel."""
        self._kernel_numbers: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        """The bytes of each variable that the driver knows."""
        self._variables: dict[str, _Variable] = {}
        """Those that somebody has asked for."""
        self._kernels: weakref.WeakValueDictionary[str, Kernel] = weakref.WeakValueDictionary()
        self._unloaded = False
        self._descriptor, self._image_bytes = stored or _store(device, image, more_variables)
        device._modules.add(self)

    def __repr__(self) -> str:
        state = "unloaded" if self._unloaded else f"{self.image_kind.value} with {', '.join(self) or 'no kernels'}"
        return f"<{type(self).__name__} {self.name!r}, {state}>"

    def __del__(self) -> None:
        descriptor = getattr(self, "_descriptor", -1)
        if descriptor >= 0:
            os.close(descriptor)
            self.device._orphan_modules.append(self._number)

    # --- what is in it ------------------------------------------------------------------------------------------------

    @property
    def image_kind(self) -> ImageKind:
        """What it was loaded from. An LTO image has become a cubin by then, and so has PTX newer than the driver."""
        return self._image.kind

    @property
    def target(self) -> str | None:
        """What the image is for: "compute_80" for PTX, "sm_90" for machine code; None where it does not tell."""
        return self._image.target

    @property
    def globals(self) -> Mapping[str, int]:
        """Bytes of each variable in global or constant memory, by its name in the image.

        A fatbin does not tell their names: of those it has the ones that `load` was asked for.
        """
        return MappingProxyType(self._sizes)

    @property
    def ptx(self) -> str | None:
        """The PTX text; None where there is machine code alone."""
        return self._image.data.rstrip(b"\0").decode() if self.image_kind is ImageKind.PTX else None

    @property
    def cubin(self) -> bytes | None:
        """The machine code; None where the driver makes it of PTX, or chooses it out of a fatbin."""
        return self._image.data if self.image_kind is ImageKind.CUBIN else None

    @property
    def log(self) -> str:
        """What the compiler said; nothing where an image was loaded."""
        return ""

    def __len__(self) -> int:
        """How many kernels there are."""
        return len(self._names())

    def __iter__(self) -> Iterator[str]:
        """The names of the kernels."""
        return iter(self._names())

    def __contains__(self, name: object) -> bool:
        """Whether a kernel of this name is there."""
        return name in self._names()

    def _names(self) -> Sequence[str]:
        return tuple(self._facts)

    def __getitem__(self, name: str) -> Kernel:
        """The kernel of this name, as `function` gives it. Raises `InvalidArgument` for one that is not there."""
        return self.function(name)

    def function(self, name: str) -> Kernel:
        """The kernel called `name` in the image (``cuModuleGetFunction``): for C++ the mangled name.

        With PTX, arguments are checked by the types that it declares. Without, their sizes are all that is known
        (``cuFuncGetParamInfo``): an 8-byte parameter takes device arrays, and every one takes ints and numpy scalars of
        its size; a Python float has to be wrapped, ``np.float32(x)``.

        Raises `InvalidArgument` for a kernel that is not there, and once the module is unloaded.
        """
        from .kernel import Kernel

        self.device._home.check_thread()
        self._check_loaded()
        check_name("kernel", name)
        kernel = self._kernels.get(name)
        if kernel is None:
            kernel = Kernel._create(self, name)
            self._kernels[name] = kernel
        return kernel

    def global_(self, name: str, dtype: npt.DTypeLike = np.uint8) -> DeviceArray:
        """The variable `name` of the module, ``__device__`` or ``__constant__``, as an array (``cuModuleGetGlobal``).

        `name` is that in the image, for C++ the mangled one. The array has one axis, of all elements of the given
        `dtype` that the variable holds; `DeviceArray.reshape` gives it another shape. It is used like any other, and
        keeps the module alive. But its memory is the module's: it cannot be freed or shared with another library, and
        has another address in each generation, which begins with the variable as the image has it. If the array had
        been written, by a copy, a fill or a kernel that it was an argument of, using it after a fault raises
        `StaleArray`, and launching the module's kernels `StaleKernel`, until it is written again whole. A kernel that
        writes the variable by its own name is not noticed.

        Raises `InvalidArgument` for a variable that is not there, a dtype that does not divide its bytes, and once the
        module is unloaded; `LibraryNotFound` for a dtype of ml_dtypes that is not installed.
        """
        self.device._home.check_thread()
        self._check_loaded()
        checked = check_dtype(dtype)
        check_name("variable", name)
        size = self._sizes.get(name)
        if size is None:
            raise InvalidArgument(
                f"{self.name} has no variable {shown(name)}; it has: {', '.join(self._sizes) or 'none'}",
                advice="C++ names are mangled, but for those outside of namespaces; what no kernel uses is left out.",
            )
        if size % checked.itemsize:
            raise InvalidArgument(f"{name} has {size} bytes, which {checked.name} does not divide")
        shape, strides = (size // checked.itemsize,), (checked.itemsize,)
        return DeviceArray._create(self._storage_of(name, size), 0, shape, strides, checked)

    def _storage_of(self, name: str, size: int) -> ModuleStorage:
        variable = self._variables.get(name)
        if variable is None:
            variable = self._variables[name] = _Variable(name, size)
            generation = self.device._generation
            if generation is not None and generation.loss is None:
                self._place(generation, [variable])
        storage = None if variable.storage is None else variable.storage()
        if storage is None:
            storage = ModuleStorage(self.device, variable.block, self)
            variable.storage = weakref.ref(storage)
        return storage

    # --- the end ------------------------------------------------------------------------------------------------------

    async def unload(self) -> None:
        """Unload the module once all work that was submitted before is done (``cuModuleUnload``).

        From then on its kernels raise `InvalidArgument` when they are launched, prepared, in a graph or not, and its
        arrays `StaleArray`. Doing it twice does nothing, and neither does a generation that is lost meanwhile.

        Raises `DeviceClosed` or `DeviceFailed` once the device takes no requests.
        """
        self.device._home.check_task()
        if self._unloaded:
            await trio.lowlevel.checkpoint()
        else:
            await self.device._module_mailbox.ask(_UnloadRequest(self))

    async def __aenter__(self) -> Self:
        """The module itself."""
        self.device._home.check_task()
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
        self.device._home.check_task()
        if not self._unloaded:
            with contextlib.suppress(trio.WouldBlock, DeviceError):  # what the block has raised goes on
                self.device._module_actor.begin_nowait(_UnloadRequest(self), self.device._generation)
        await trio.lowlevel.cancel_shielded_checkpoint()

    def _end(self, generation: Generation) -> None:
        """From now on nothing uses it any more; what was submitted goes on."""
        self._unloaded = True
        self._forget()
        for variable in self._variables.values():
            variable.end(f"its module, {self.name!r}, was unloaded")
        for path in generation.launch_paths:
            path.forget(self)
        self.device._modules.discard(self)

    def _forget(self) -> None:
        """In a forked child, or when the device is closed: close the descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    # --- for kernels and graphs ---------------------------------------------------------------------------------------

    def _lowered(self, name: str) -> str:
        """The name in the image of the kernel that is called `name`."""
        if name in self._facts:
            return name
        kernels = ", ".join(map(repr, self)) or "none"
        raise InvalidArgument(f"{self.name} has no kernel {name!r}; it has: {kernels}")

    def _signature(self, lowered: str) -> KernelSignature:
        if self._image.entries is not None:
            return self._image.entries[lowered]
        return signature_of_layout(lowered, self._facts[lowered]["parameters"])

    def _check_loaded(self) -> None:
        if self._unloaded:
            raise InvalidArgument(f"{self.name!r} was unloaded", advice="load it again.")

    def _check_usable(self, generation: Generation, operation: str, operands: Sequence[Operand]) -> None:
        """Raise unless its kernels may be launched in `generation`, on `operands`."""
        self._check_loaded()
        if self.device._strict and self._born != generation.number:
            reason = f'the kernel belongs to generation {self._born} and the device was opened with on_fault="stale"'
            raise _stale(generation, operation, reason, "compile it again, or load it")
        stale = [variable for variable in self._variables.values() if variable.stale]
        if stale:
            given = {block for block, _ in operands}  # what a kernel itself is to write is checked with its operands
            names = [variable.name for variable in stale if variable.block not in given]
            if names:
                reason = f"the kernel's module had {', '.join(names)} written, and that went with a lost generation"
                advice = "write the whole of it again, with `copy_from` or `fill` of `module.global_(...)`"
                raise _stale(generation, operation, reason, advice)

    # --- loading ------------------------------------------------------------------------------------------------------

    def _require(self, generation: Generation) -> tuple[int, ...]:
        """The ticket of the load, if a launch in `generation` must still ask whether it succeeded."""
        self._check_loaded()
        if self._number not in generation.modules:
            self._load(generation)
        ticket = generation.modules[self._number]
        return (ticket,) if ticket else ()

    def _load(self, generation: Generation, owner: CommandOwner | None = None) -> None:
        """Publish the load. `owner` hears how it ended, and tells `_loaded`; without one, nobody else needs to know."""
        self.device._unload_orphans(generation)
        payload = LOAD.struct.pack(self._number, self._image_bytes)
        owner = owner or _Load(self, generation)
        command = generation.publish(LANE_COMPUTE, LOAD, payload, (), owner, descriptors=(self._descriptor,))
        generation.modules[self._number] = command.ticket

    def _warm(self, standby: Generation) -> None:
        """Have a standby load the module, so that its first launch there finds it loaded."""
        missing = self._number not in standby.modules
        if standby.ready and not self.device._strict and missing and self._descriptor >= 0:
            with contextlib.suppress(OutOfHostMemory):  # then its first launch there loads it, or is told why not
                self._load(standby)

    def _loaded(self, generation: Generation, error: DeviceError | None, facts: dict[str, Any] | None) -> None:
        """The load has ended; one that failed is tried again by the next launch."""
        if self._unloaded:  # a standby was still at it, and has its unload behind it
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
            self._born = generation.number
        if generation is self.device._generation:
            self._settle_in(generation)

    def _begins_anew(self, generation: Generation) -> bool:
        """Whether it has to be loaded before `generation` is in service: it has variables, and they have moved."""
        return bool(self._sizes) and not self.device._strict and generation.modules.get(self._number) != 0

    def _settle_in(self, generation: Generation) -> None:
        """The generation is in service."""
        if not self._unloaded and (self._born == generation.number or not self.device._strict):
            self._place(generation, list(self._variables.values()))

    def _place(self, generation: Generation, variables: Sequence[_Variable]) -> None:
        addresses = generation.variables.get(self._number, {})
        for variable in variables:
            if variable.name in addresses:
                variable.place(addresses[variable.name])

    def _generation_lost(self, number: int) -> None:
        """The memory of its variables went with generation `number`."""
        if self.device._strict:
            why = f'generation {number} was lost and the device was opened with on_fault="stale"'
        else:
            why = f"its address was that of generation {number}, which was lost; use it again in the next one"
        for variable in self._variables.values():
            variable.leave(number, why)

    def _check_layouts(self) -> None:
        """Raise if the driver lays parameters out otherwise than the PTX: launches would give them wrong bytes."""
        for name, signature in (self._image.entries or {}).items():
            layout = [[parameter.offset, parameter.size] for parameter in signature.parameters]
            told = self._facts[name]["parameters"]
            if told != layout:
                raise AtomrInternalError(f"the driver lays the parameters of {name} out as {told}, its PTX as {layout}")


@final
class Program(Module):
    """A compiled program that is loaded, by its names in CUDA C++; made by `dev.nvrtc.compile_program`.

    ``program["my_kernel<float, 256>"]`` is a kernel and ``program["&symbol"]`` the bytes of a variable, if the name is
    among the name expressions of the options; ``extern "C"`` names need not be.
    """

    _made_by = "`await dev.nvrtc.compile_program(source)`"

    def __init__(self, device: Device, image: Image, program: CompiledProgram) -> None:
        self._program = program
        super().__init__(device, image, None)

    @property
    def target(self) -> str:
        """What it was compiled for: "compute_80", "sm_90a"."""
        return self._program.target

    @property
    def ptx(self) -> str | None:
        """The PTX that the compiler made; None when it was asked for something else."""
        return self._program.ptx.decode() or None

    @property
    def cubin(self) -> bytes | None:
        """The machine code that the compiler made; None when it was asked for PTX alone."""
        return self._program.cubin

    @property
    def ltoir(self) -> bytes | None:
        """What link-time optimisation can be given; None when the compiler was not asked for it."""
        return self._program.ltoir

    @property
    def log(self) -> str:
        """What the compiler said, for example warnings."""
        return self._program.log

    def __getitem__(self, name: str) -> Any:
        """A kernel by its name, or behind an ampersand a variable, as an array of its bytes.

        Raises `InvalidArgument` for what is not there.
        """
        check_name("kernel", name)
        return self.global_(name) if name.startswith(_VARIABLE_MARK) else self.function(name)

    def global_(self, name: str, dtype: npt.DTypeLike = np.uint8) -> DeviceArray:
        """The variable `name` as an array of `dtype` and of one axis: `DeviceArray.reshape` gives it another shape.

        The name is a name expression, ``"&ns::symbol"``, or that in the image. Otherwise as `Module.global_`.

        Raises as `Module.global_` does.
        """
        check_name("variable", name)
        if name.startswith(_VARIABLE_MARK):
            name = self._program.lowered_names.get(name, name[1:])
        return super().global_(name, dtype)

    def _names(self) -> Sequence[str]:
        """The kernels' names as the source has them, where it was asked for them by such."""
        written = {lowered: name for name, lowered in self._program.lowered_names.items() if lowered in self._facts}
        return tuple(written.get(lowered, lowered) for lowered in self._facts)

    def _lowered(self, name: str) -> str:
        if self._program.ltoir is not None:  # which tells no names: those that the linker has left are known by now
            return super()._lowered(self._program.lowered_names.get(name, name))
        self._program.signature(name)
        return self._program.lowered(name)


def _image_of(program: CompiledProgram) -> Image:
    """The image of a program; what its kernels take is known from the compile."""
    entries, kernels = program.entries, tuple(program.entries)
    if program.cubin is not None:
        return attrs.evolve(read_image(program.cubin), entries=entries, kernels=kernels)
    variables = variables_of(program.ptx.decode(errors="replace"))
    return Image(ImageKind.PTX, program.image, program.target, entries, kernels, variables)


# ------------------------------------------------------------------------------------------------------------ commands


class _Load:
    """A load that a launch brought along, that keeps a standby warm, or that comes before a generation's service."""

    def __init__(self, module: Module, generation: Generation) -> None:
        self._module = module
        self._generation = generation

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Whoever required it gets the same error."""
        self._module._loaded(self._generation, error, value)

    def command_lost(self, command: Command, error: DeviceError) -> None:
        """The next generation loads it again."""


class LoadRequest(Request):
    """Loads a module for the first time."""

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
        """Settle; the standbys load the module too."""
        generation = known(self._generation, "a load has ended that was not begun")
        self._module._loaded(generation, error, value)
        if error is None:
            for standby in generation.standbys:
                self._module._warm(standby)
        if self.open:
            self.settle(outcome.Value(None) if error is None else outcome.Error(error))

    def command_lost(self, command: Command, error: DeviceError) -> None:
        """Settle with the loss."""
        if self.open:
            self.settle(outcome.Error(error))


class _UnloadRequest(Request):
    """Unloads a module, behind all that was submitted before it on every lane."""

    __slots__ = ("_module",)

    def __init__(self, module: Module) -> None:
        super().__init__("module.unload")
        self._module = module

    def start(self, generation: Generation) -> None:
        """Refuse what comes later, and publish."""
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


class UnloadOwner:
    """Nobody waits for an unload."""

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Nothing to do."""

    def command_lost(self, command: Command, error: DeviceError) -> None:
        """Nothing to do: the worker is gone, and the module with it."""


def publish_unload(generation: Generation, number: int) -> None:
    """Tell the worker that nobody has the module any more."""
    generation.publish(LANE_COMPUTE, UNLOAD, UNLOAD.struct.pack(number), (), UnloadOwner())


async def load_program(device: Device, program: CompiledProgram) -> Program:
    """The module of a program that everybody shares, loaded at least once so that its facts are known."""
    module = device._programs.get(id(program))
    if module is None or module._unloaded or (device._strict and module._born != device.generation):
        module = await load_apart(device, program)
        device._programs[id(program)] = module
    else:
        await trio.lowlevel.checkpoint()
    return module


async def load_apart(device: Device, program: CompiledProgram) -> Program:
    """A module of a program with variables of its own."""
    if program.ltoir is None:
        image = await _in_thread_if_large(len(program.image), _image_of, program)
    else:
        image = await _linked(device, program.ltoir, "the program")
    module = Program._create(device, image, program)
    await device._module_mailbox.ask(LoadRequest(module))
    module._check_layouts()
    return module


# ------------------------------------------------------------------------------------------------------- for the users


@final
class ModuleLoader:
    """Loads images that were compiled elsewhere, as `dev.module`."""

    def __init__(self, device: Device) -> None:
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
        path. `name` is what messages call the module, by default the file's name. `variables` are names to look up
        beside those that the image tells, which a fatbin does not. The image is held against its own headers here, and
        loaded by ``cuModuleLoadDataEx`` in the worker. PTX newer than the driver is made a cubin by nvJitLink.

        Raises `InvalidArgument` for bytes that are no image or not all of one, and for a file that cannot be read;
        `CommandFailed` with the log of the driver's compiler for an image that it refuses, for example one for another
        architecture; `CompileError` and `LibraryNotFound` where it has to be linked and cannot be; `ContextLost` if the
        context is lost meanwhile.
        """
        device = self._device
        device._home.check_task()
        device._check_open()
        if isinstance(variables, str) or not isinstance(variables, Sequence):
            raise InvalidArgument(f"variables is a list of names, not {shown(variables)}", device=device.index)
        for variable in variables:
            check_name("variable", variable)
        await trio.lowlevel.checkpoint_if_cancelled()  # the path may be code of the caller's
        from .._compiling.linker import bridge_ptx

        data, file_name = await _content_of(image)
        read = await _read(data)
        name = file_name if name is None else name
        if read.kind is ImageKind.LTOIR:
            read = await _linked(device, read.data, name or "image")
        try:
            return await self._load(read, name, variables)
        except CommandFailed as refused:
            if refused.status != _UNSUPPORTED_PTX_VERSION or device.backend == "sim":
                raise
            text, info = read.data.rstrip(b"\0"), device.info
            with host_limits("the PTX cannot be made a cubin", device=device.index, operation=LOAD.operation):
                cubin = await trio.to_thread.run_sync(bridge_ptx, text, info.capability, info.driver_version)
            return await self._load(await _read(cubin), name, variables)

    async def _load(self, image: Image, name: str | None, variables: Sequence[str]) -> Module:
        device = self._device
        stored = await _in_thread_if_large(len(image.data), lambda each: _store(device, each, variables), image)
        module: Module = Module._create(self._device, image, name, variables, stored)
        await self._device._module_mailbox.ask(LoadRequest(module))
        module._check_layouts()
        return module


async def _linked(device: Device, ltoir: bytes, name: str) -> Image:
    """What nvJitLink makes of LTO-IR: a cubin, and PTX for the simulator."""
    from .._compiling.link_options import LinkOptions
    from .._compiling.linker import LinkInput, link

    source, (major, minor) = LinkInput(ltoir, name), device.info.capability
    arch = f"{'compute' if device.backend == 'sim' else 'sm'}_{major}{minor}"
    options = LinkOptions(lineinfo=bool(device._checks))
    with host_limits("the image cannot be linked", device=device.index, operation=LOAD.operation):
        return await trio.to_thread.run_sync(lambda: read_image(link([source], arch=arch, options=options)))


def _store(device: Device, image: Image, more_variables: Sequence[str]) -> tuple[int, int]:
    """Where workers find an image, and what they are to look up in it: a descriptor, and the bytes of the image."""
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
    """What some work on an image comes to, done in another thread if the image is a large one."""
    if size < _LARGE_IMAGE:
        return work(image)
    with contextlib.suppress(RuntimeError):  # the system has no thread left: then here
        return await trio.to_thread.run_sync(work, image)
    return work(image)


async def _read(data: bytes) -> Image:
    return await _in_thread_if_large(len(data), read_image, data)


async def _content_of(image: object) -> tuple[bytes, str | None]:
    """The bytes of an image, and the name of the file that they were read from."""
    if isinstance(image, bytes):
        return image, None
    if isinstance(image, bytearray | memoryview):
        return await _in_thread_if_large(memoryview(image).nbytes, bytes, image), None
    if isinstance(image, str) and "\n" in image:
        content = await _in_thread_if_large(len(image), lambda text: text.encode(errors="replace"), image)
        return content, None
    if not isinstance(image, str | os.PathLike):
        raise InvalidArgument(f"an image is bytes, the text of PTX or the path of a file, not {type(image).__name__}")
    path = trio.Path(image)
    try:
        with host_limits("the image cannot be read"):
            return await path.read_bytes(), path.name
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"the image cannot be read: {error}") from error
