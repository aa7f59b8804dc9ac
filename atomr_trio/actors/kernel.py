"""Kernels: what a launch takes, how it is checked, and how it becomes a record of the module engine."""

from __future__ import annotations

import operator
import struct
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, final

import trio

from .._arrays import DeviceArray
from .._errors import InvalidArgument, StaleKernel
from .._mailbox import RequestState
from .._parameters import KernelSignature, Parameter
from .._requests import CommandRequest
from .._timeline import Operand
from .._util import NoPublicConstructor, check_seconds, shown
from ..worker.engines.module import LAUNCH
from ..worker.protocol import Role
from ..worker.ring import NUMBERED_HEADER
from .module import Module

if TYPE_CHECKING:
    from .._generation import Generation
    from .._lanes import Lane

Dimensions = SupportsIndex | Sequence[SupportsIndex]

_RECORD_FIELDS = NUMBERED_HEADER.format + "Q24sI4x"
_SIX = struct.Struct("<6I")
_MOST_CHECKED = 1024


class _Marked:
    """An array with what a kernel does to it."""

    __slots__ = ("array", "role")

    array: DeviceArray
    """The array, of any shape and dtype."""
    role: Role
    """What the kernel does to it."""

    def __init__(self, array: DeviceArray, role: Role) -> None:
        if not isinstance(array, DeviceArray):
            raise InvalidArgument(f"expected a device array, not {type(array).__name__}")
        self.array = array
        self.role = role

    def __repr__(self) -> str:
        return f"<{self.role.value} {self.array!r}>"


@final
class ReadOnly(_Marked):
    """An argument that a kernel only reads; what `read_only` returns."""

    __slots__ = ()


@final
class Overwrites(_Marked):
    """An argument that a kernel overwrites whole; what `overwrites` returns."""

    __slots__ = ()


def read_only(array: DeviceArray) -> ReadOnly:
    """Say that a kernel only reads `array`, an argument of its launch.

    Such an array survives a fault in the kernel, and kernels that read it may run beside copies of it. It is a promise:
    a kernel that writes it all the same is not stopped.

    Raises `InvalidArgument` for what is no device array.
    """
    return ReadOnly(array, Role.READ)


def overwrites(array: DeviceArray) -> Overwrites:
    """Say that a kernel writes every element of `array`, an argument, and reads none: even a torn one may be given.

    Raises `InvalidArgument` for what is no device array.
    """
    return Overwrites(array, Role.OVERWRITE)


class LaunchRequest(CommandRequest):
    """One launch."""

    __slots__ = ("_kernel",)

    def __init__(
        self,
        kernel: Kernel,
        payload: bytes,
        operands: Sequence[Operand],
        keep: object,
        hang_timeout: float | None,
        lane: int,
    ) -> None:
        super().__init__(
            LAUNCH, payload, operands, keep=keep, lane=lane, operation=kernel._operation, hang_timeout=hang_timeout
        )
        self._kernel = kernel

    @property
    def kernel(self) -> Kernel:
        """What is launched."""
        return self._kernel

    def start(self, generation: Generation) -> None:
        module = self._kernel._module
        if module.device._strict and module.born != generation.number:
            raise StaleKernel(
                f'the kernel belongs to generation {module.born} and the device was opened with on_fault="stale"',
                device=generation.device,
                generation=generation.number,
                operation=self.operation,
                advice="compile it again",
            )
        self._publish(generation, requires=module.require(generation))
        self.state = RequestState.STARTED


@final
class Kernel(metaclass=NoPublicConstructor):
    """A kernel that can be launched, made by `dev.nvrtc.compile`. It stays valid when a generation is lost."""

    __slots__ = (
        "__weakref__",
        "_checked_dimensions",
        "_facts",
        "_module",
        "_number",
        "_operation",
        "_record",
        "_record_bytes",
        "name",
        "signature",
    )

    name: str
    """The name that it was asked for by."""
    signature: KernelSignature
    """Its parameters, as the compiler laid them out."""

    _made_by = "`await dev.nvrtc.compile(source, name)`"

    def __init__(self, module: Module, name: str) -> None:
        lowered = module.program.lowered(name)
        self._module = module
        self._facts = module.facts[lowered]
        self._number = module.kernel_numbers[lowered]
        self._operation = f"launch of {name}"
        self.name = name
        self.signature = module.program.signature(name)
        self._checked_dimensions: dict[Hashable, bytes] = {}
        """What `_check_dimensions` has let through, for the next launch with the same."""
        self._record_bytes = LAUNCH.struct.size + self.signature.bytes
        self._record = struct.Struct(_RECORD_FIELDS + self.signature.layout)
        """A whole record of a launch, from its number in the ring on."""

    def __repr__(self) -> str:
        return f"<Kernel {self.name} with {len(self.signature.parameters)} parameters, {self._module.program.target}>"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters, in the order of the declaration."""
        return self.signature.parameters

    @property
    def max_threads_per_block(self) -> int:
        """Most threads that a block of this kernel can have, given its registers (``cuFuncGetAttribute``)."""
        return int(self._facts["max_threads_per_block"])

    @property
    def static_shared_bytes(self) -> int:
        """Bytes of shared memory that the kernel declares (``cuFuncGetAttribute``)."""
        return int(self._facts["static_shared_bytes"])

    @property
    def local_bytes(self) -> int:
        """Bytes of local memory of each thread (``cuFuncGetAttribute``)."""
        return int(self._facts["local_bytes"])

    @property
    def registers(self) -> int:
        """Registers of each thread (``cuFuncGetAttribute``)."""
        return int(self._facts["registers"])

    @property
    def ptx(self) -> str:
        """The PTX that the compiler made."""
        return self._module.program.ptx.decode()

    @property
    def cubin(self) -> bytes | None:
        """The machine code that the compiler made; None when it was asked for PTX alone."""
        return self._module.program.cubin

    @property
    def log(self) -> str:
        """What the compiler said, for example warnings."""
        return self._module.program.log

    async def launch(
        self,
        grid: Dimensions,
        block: Dimensions,
        *arguments: object,
        shared_bytes: int = 0,
        touches: Iterable[DeviceArray | ReadOnly | Overwrites] = (),
        hang_timeout: float | None = None,
        lane: Lane | None = None,
    ) -> None:
        """Launch the kernel and wait until it has run (``cuLaunchKernelEx``).

        `grid` (blocks) and `block` (threads) are an int or up to three; `shared_bytes` is each block's dynamic shared
        memory, in bytes. `arguments` are checked against the kernel's real parameters: device arrays where it takes
        pointers, Python and numpy numbers that fit, bytes for structs. Every array counts as written unless it is
        wrapped in `read_only`; `touches` names arrays that the kernel reaches only through other memory. `hang_timeout`
        is how many seconds this launch may run before its worker is killed; by default what `open_device` was given.
        `lane` is one of `Device.lane`; by default the one that all kernels share.

        Raises `InvalidArgument` before anything is sent; `StaleArray` for an array that a fault has torn;
        `ContextLost` if the context is lost while the kernel runs, which is what a faulty kernel gives.
        """
        device = self._module.device
        if lane is None and hang_timeout is None and not touches:
            await trio.lowlevel.checkpoint_if_cancelled()
            launched = device._launched_shortly(self, grid, block, shared_bytes, arguments)
            if launched is not None:
                await launched.wait()
                return
        number = device._lanes.chosen(lane)._number
        request = self._request(grid, block, arguments, shared_bytes, touches, hang_timeout, number)
        await device._module_mailbox.ask(request)
        device._learn_launch(request, number)

    def launch_nowait(
        self,
        grid: Dimensions,
        block: Dimensions,
        *arguments: object,
        shared_bytes: int = 0,
        touches: Iterable[DeviceArray | ReadOnly | Overwrites] = (),
        hang_timeout: float | None = None,
        lane: Lane | None = None,
    ) -> None:
        """Have the kernel launched, and do not wait for it.

        It is submitted before this returns, so whatever the caller does next with its arrays is ordered after it. How
        it ends is seen in `dev.statistics()` alone. `grid`, `block`, `arguments`, `shared_bytes`, `touches`,
        `hang_timeout` and `lane` are those of `launch`.

        Raises `trio.WouldBlock` when too much is unfinished on the device or the device is just being rebuilt, and what
        `launch` raises before anything is sent.
        """
        number = self._module.device._lanes.chosen(lane)._number
        self._begin_nowait(self._request(grid, block, arguments, shared_bytes, touches, hang_timeout, number))

    def _begin_nowait(self, request: LaunchRequest) -> None:
        device = self._module.device
        device._check_running()
        device._module_actor.begin_nowait(request, device._generation)

    def _request(
        self,
        grid: Dimensions,
        block: Dimensions,
        arguments: Sequence[object],
        shared_bytes: int,
        touches: Iterable[DeviceArray | ReadOnly | Overwrites],
        hang_timeout: float | None,
        lane: int,
    ) -> LaunchRequest:
        payload, operands, keep = self._checked(grid, block, arguments, shared_bytes, touches)
        if hang_timeout is not None:
            check_seconds("hang_timeout", hang_timeout)
        return LaunchRequest(self, payload, operands, keep, hang_timeout, lane)

    def _checked(
        self,
        grid: Dimensions,
        block: Dimensions,
        arguments: Sequence[object],
        shared_bytes: int,
        touches: Iterable[DeviceArray | ReadOnly | Overwrites],
    ) -> tuple[bytes, list[Operand], object]:
        """The payload of a launch's record, what it does to which memory, and what must be kept alive meanwhile."""
        device = self._module.device
        operands: list[Operand] = []

        def address_of(argument: object) -> int | None:
            if isinstance(argument, DeviceArray):
                array, role = argument, Role.WRITE
            elif isinstance(argument, _Marked):
                array, role = argument.array, argument.role
            else:
                return None
            if array._storage.device is not device:
                raise InvalidArgument(
                    f"an argument of {self.name} belongs to another device than the kernel: {array!r}"
                )
            block = array._storage.block
            if block.freed:
                raise InvalidArgument(f"an argument of {self.name} was freed: {array!r}")
            if role is Role.OVERWRITE and not array._covers_block:
                role = Role.WRITE
            operands.append((block, role))
            return block.address + array._offset

        device._check_open()
        block_of_parameters = self.signature.pack(arguments, address_of)
        touched_arrays = _tuple_of_touched(touches)
        for touched in touched_arrays:
            if address_of(touched) is None:
                raise InvalidArgument(f"touches names device arrays, not {type(touched).__name__}")
        dimensions = self._check_dimensions(grid, block, shared_bytes)
        payload = LAUNCH.struct.pack(self._number, *dimensions, 0) + block_of_parameters
        return payload, operands, (arguments, touched_arrays)

    def _describe(self, arguments: Iterable[object]) -> tuple[str, list[Operand]]:
        """What a launch was called, and what it did to which memory, once its arguments were checked."""
        operands: list[Operand] = []
        for argument in arguments:
            if isinstance(argument, DeviceArray):
                operands.append((argument._block, Role.WRITE))
            elif isinstance(argument, _Marked):
                operands.append((argument.array._block, argument.role))
        return self._operation, operands

    def _check_dimensions(self, grid: Dimensions, block: Dimensions, shared_bytes: object) -> tuple[int, ...]:
        info = self._module.device.info
        blocks = _three("grid", grid, info.max_grid, "blocks")
        threads = _three("block", block, info.max_block, "threads")
        count = threads[0] * threads[1] * threads[2]
        limit = min(info.max_threads_per_block, self.max_threads_per_block)
        if count > limit:
            whose = "the device" if limit == info.max_threads_per_block else f"{self.name}, given its registers,"
            raise InvalidArgument(f"block {threads} has {count} threads; {whose} takes at most {limit}")
        shared = _byte_count("shared_bytes", shared_bytes)
        room = info.max_shared_bytes - self.static_shared_bytes
        if shared > room:
            raise InvalidArgument(
                f"shared_bytes={shown(shared)} is more than the {room} bytes that the device has left for a block of "
                f"{self.name}, which declares {self.static_shared_bytes} itself"
            )
        if len(self._checked_dimensions) >= _MOST_CHECKED:
            self._checked_dimensions.clear()
        key = exact_key(grid, block, shared_bytes)
        if key is not None:
            self._checked_dimensions[key] = _SIX.pack(*blocks, *threads)
        return (*blocks, *threads, shared)

    def _known_dimensions(self, grid: object, block: object, shared_bytes: object) -> bytes | None:
        """What `_check_dimensions` has let through before, as a launch's record has it."""
        return self._checked_dimensions.get(exact_key(grid, block, shared_bytes))

    def prepare(self, grid: Dimensions, block: Dimensions, *arguments: object, shared_bytes: int = 0) -> PreparedLaunch:
        """A launch with everything bound, to be made again and again, alone or in a batch.

        `grid`, `block`, `arguments` and `shared_bytes` are those of `launch`, and are checked now; an argument can be
        changed in place, ``prepared[0] = 3.0``. It stays valid when a generation is lost.

        Raises `InvalidArgument` as `launch` does.
        """
        return PreparedLaunch._create(self, grid, block, arguments, shared_bytes)


@final
class PreparedLaunch(metaclass=NoPublicConstructor):
    """A launch of a kernel with its grid, its block and its arguments bound, made by `Kernel.prepare`."""

    __slots__ = (
        "__weakref__",
        "_arguments",
        "_block",
        "_blocks",
        "_grid",
        "_operands",
        "_payload",
        "_reads",
        "_shared_bytes",
        "_writes",
        "kernel",
    )

    kernel: Kernel
    """The kernel that it launches."""

    _made_by = "`kernel.prepare(grid, block, ...)`"

    def __init__(
        self, kernel: Kernel, grid: Dimensions, block: Dimensions, arguments: tuple[object, ...], shared_bytes: int
    ) -> None:
        self.kernel = kernel
        self._grid = grid
        self._block = block
        self._shared_bytes = shared_bytes
        self._bind(arguments)

    def __repr__(self) -> str:
        return f"<PreparedLaunch of {self.kernel.name}, grid {self._grid}, block {self._block}>"

    def _bind(self, arguments: tuple[object, ...]) -> None:
        checked = self.kernel._checked(self._grid, self._block, arguments, self._shared_bytes, ())
        self._payload, self._operands, _ = checked
        self._arguments = arguments
        # One that is overwritten whole is no matter for the short way: it may be torn.
        self._blocks = tuple(block for block, _ in self._operands)
        self._reads = tuple(block for block, role in self._operands if role is Role.READ)
        self._writes = tuple(block for block, role in self._operands if role is not Role.READ)

    @property
    def arguments(self) -> tuple[object, ...]:
        """The arguments as they are now."""
        return self._arguments

    def __len__(self) -> int:
        """How many arguments there are."""
        return len(self._arguments)

    def __getitem__(self, index: SupportsIndex) -> object:
        """One of the arguments. Raises `IndexError`."""
        return self._arguments[index]

    def __setitem__(self, index: SupportsIndex, argument: object) -> None:
        """Change an argument for the launches to come; those that were made keep the old one.

        Raises `IndexError`, and `InvalidArgument` for what the parameter does not take; then nothing is changed.
        """
        arguments = list(self._arguments)
        arguments[index] = argument
        self._bind(tuple(arguments))

    async def launch(self, *, hang_timeout: float | None = None, lane: Lane | None = None) -> None:
        """Make the launch and wait until it has run (``cuLaunchKernelEx``).

        `hang_timeout` and `lane` are those of `Kernel.launch`. Raises as `Kernel.launch` does.
        """
        device = self.kernel._module.device
        if lane is None and hang_timeout is None:
            await trio.lowlevel.checkpoint_if_cancelled()
            launched = device._launched_shortly(self, 0, 0, 0, ())
            if launched is not None:
                await launched.wait()
                return
        number = device._lanes.chosen(lane)._number
        request = self._request(hang_timeout, number)
        await device._module_mailbox.ask(request)
        device._learn_launch(request, number, self)

    def launch_nowait(self, *, hang_timeout: float | None = None, lane: Lane | None = None) -> None:
        """Have the launch made, and do not wait for it; see `Kernel.launch_nowait`.

        `hang_timeout` and `lane` are those of `Kernel.launch`. Raises as `Kernel.launch_nowait` does.
        """
        number = self.kernel._module.device._lanes.chosen(lane)._number
        self.kernel._begin_nowait(self._request(hang_timeout, number))

    def _request(self, hang_timeout: float | None, lane: int) -> LaunchRequest:
        self.kernel._module.device._check_open()
        if hang_timeout is not None:
            check_seconds("hang_timeout", hang_timeout)
        return LaunchRequest(self.kernel, self._payload, self._operands, self._arguments, hang_timeout, lane)


def exact_key(grid: object, block: object, shared_bytes: object) -> Hashable:
    """A key for dimensions that are ints or tuples of ints; None for others, since True and 1.0 equal 1."""
    parts = (grid, block, shared_bytes)
    flat = [each for part in parts for each in (part if type(part) is tuple else (part,))]
    if all(type(each) is int for each in flat):
        return parts
    return None


def _tuple_of_touched(touches: object) -> tuple[object, ...]:
    """What `touches` names, held by the tuple: an iterator would have let go of its arrays. One array is no list."""
    if isinstance(touches, Iterable) and not isinstance(touches, DeviceArray | str | bytes):
        return tuple(touches)
    raise InvalidArgument(f"touches is a list or a tuple of device arrays, not {type(touches).__name__}")


def _integer(value: Any) -> int:
    """An int of what stands for one, which a bool does not. Raises `TypeError`."""
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def _byte_count(what: str, value: object) -> int:
    """A number of bytes as an int."""
    try:
        count = value if type(value) is int else _integer(value)
    except TypeError:
        count = -1
    if count < 0:
        raise InvalidArgument(f"{what} is a number of bytes, not {shown(value)}")
    return count


def _three(what: str, value: Dimensions, limits: tuple[int, int, int], unit: str) -> tuple[int, int, int]:
    """Dimensions as three ints, each from 1 to its limit."""
    if type(value) is int:
        given: tuple[int, ...] = (value,)
    else:
        parts = value if isinstance(value, Sequence) else (value,)
        try:
            if isinstance(value, str | bytes):
                raise TypeError
            given = tuple(map(_integer, parts))
        except TypeError:
            raise InvalidArgument(f"{what} is an int or a tuple of up to three, not {shown(value)}") from None
    if not 1 <= len(given) <= 3:
        raise InvalidArgument(f"{what} has one to three dimensions, not {len(given)}")
    x, y, z = (*given, 1, 1)[:3]
    for axis, length, limit in zip("xyz", (x, y, z), limits, strict=True):
        if not 1 <= length <= limit:
            raise InvalidArgument(f"{what}.{axis} is {shown(length)}; the device takes 1 to {limit} {unit} there")
    return x, y, z
