"""Kernels: the arguments of a launch, their checks, and the record of the module engine that they become."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, SupportsIndex, TypedDict, final

import attrs
import numpy as np
import trio

from ..._arrays.access import Marked
from ..._arrays.arrays import DeviceArray, Storage, arrays_among
from ..._arrays.peers import check_operand, operand_block, prepare
from ..._generation.requests import CommandRequest
from ..._generation.timeline import Operand
from ..._supervision.states import RequestState
from ..._values.errors import InvalidArgument
from ..._values.habits import KERNEL, refuse_habits
from ..._values.html import table
from ..._values.info import KernelAttributes, Occupancy
from ..._values.parameters import Dimensions, Parameter, ParameterKind
from ..._values.signatures import KernelSignature, repacked
from ..._values.util import NoPublicConstructor, check_seconds, shown
from ..._wire.protocol import Role, Verb
from ..._wire.records.module import LAUNCH, OCCUPANCY, PORTABLE_CLUSTER, SUGGEST_BLOCK, LaunchOptions
from ..._wire.ring import NEW_IN_EACH, SAME_IN_ALL, record_struct
from ..lanes.verbs import Lane, Lanes
from .elements import check_elements, plain_dtype
from .module import Module

if TYPE_CHECKING:
    from ..._generation.core import DeviceCore
    from ..._generation.generation import Generation
    from ..._memory.arena import Block

_RECORD_FIELDS = f"{NEW_IN_EACH}{SAME_IN_ALL.size + LAUNCH.struct.size}s"
_SIX = struct.Struct("<6I")
_MOST_CHECKED = 1024
_LARGEST_CLUSTER = 16
_BLOCK_ANYWHERE, _THREADS_ANYWHERE, _GRID_ANYWHERE = (1024, 1024, 64), 1024, (2**31 - 1, 65535, 65535)
"""The limits of a block and of a grid that CUDA has for every compute capability."""
_ADDRESSES = (ParameterKind.POINTER, ParameterKind.POINTER_OR_INTEGER)
_INTEGERS = (int, np.integer)
_CLUSTER_CAPABILITY = _PROGRAMMATIC_CAPABILITY = (9, 0)


class AttributeKeywords(TypedDict, total=False):
    """The attributes of a launch, as keywords; `Kernel.launch` describes them."""

    cooperative: bool
    cluster: Dimensions | None
    programmatic: bool
    priority: int | None


class LaunchKeywords(AttributeKeywords, total=False):
    """The further options of a launch in a batch."""

    touches: Iterable[DeviceArray | Marked]
    hang_timeout: float | None


class AwaitedLaunchKeywords(LaunchKeywords, total=False):
    """The options of `Kernel.launch`."""

    shared_bytes: int
    lane: Lane | None


_FIXED: Final = frozenset({int, float, bytes})
"""Types of arguments that are no arrays and never change."""


class GivenOptions(NamedTuple):
    """The options of a launch as the caller gave them; `Kernel.launch` describes them."""

    cooperative: object
    cluster: object
    programmatic: object
    priority: object


ORDINARY = GivenOptions(False, None, False, None)


class KernelRequest(CommandRequest):
    """One command that needs a kernel's module to be loaded: a launch, or a question."""

    __slots__ = ("_kernel",)

    def __init__(
        self, kernel: Kernel, verb: Verb, payload: bytes, operands: Sequence[Operand] = (), **rest: Any
    ) -> None:
        super().__init__(verb, payload, operands, **rest)
        self._kernel = kernel

    @property
    def kernel(self) -> Kernel:
        """The kernel of the command."""
        return self._kernel

    def start(self, generation: Generation) -> None:
        module = self._kernel._module
        module._check_usable(generation, self.operation, self.operands)
        self._publish(generation, requires=module._require(generation))
        self.state = RequestState.STARTED


class LaunchRequest(KernelRequest):
    """One launch."""

    __slots__ = ()

    def __init__(
        self,
        kernel: Kernel,
        payload: bytes,
        operands: Sequence[Operand],
        keep: object,
        hang_timeout: float | None,
        lane: int,
    ) -> None:
        operation = kernel._operation
        super().__init__(
            kernel, LAUNCH, payload, operands, keep=keep, lane=lane, operation=operation, hang_timeout=hang_timeout
        )


@final
class Kernel(metaclass=NoPublicConstructor):
    """A kernel that can be launched, made by `dev.nvrtc.compile`. It stays valid when a generation is lost."""

    __slots__ = (
        "__weakref__",
        "_checked_dimensions",
        "_key",
        "_module",
        "_number",
        "_operation",
        "_plain",
        "_promised",
        "_proves",
        "_record",
        "_record_bytes",
        "_resident",
        "_written",
        "attributes",
        "name",
        "signature",
    )

    name: str
    """The name that it was requested by."""
    signature: KernelSignature
    """Its parameters, as the compiler laid them out."""
    attributes: KernelAttributes
    """The resources that it takes of the device: registers, memory, threads."""

    _made_by = "`await dev.nvrtc.compile(source, name)`"
    _engine = LAUNCH.engine

    def __init__(self, module: Module, name: str, roles: Sequence[Role | None] = ()) -> None:
        """Make it. `roles` are what its declaration says of its arrays, one for each parameter, if it has one."""
        lowered = module._lowered(name)
        self._module = module
        self._key = object()
        """The key of launch paths for it; see ``_calls/launching.py``."""
        self._number = module._kernel_numbers[lowered]
        self._operation = f"launch of {name}"
        self.name = name
        self.signature = _as_declared(module._signature(lowered), roles)
        self._promised = {index: role for index, role in enumerate(roles) if role in (Role.READ, Role.OVERWRITE)}
        """What its declaration promises of the arrays of parameters, unless a launch says something else."""
        self.attributes = KernelAttributes._from_worker(module._facts[lowered])
        self._checked_dimensions: dict[Hashable, bytes] = {}
        """The results of `_check_dimensions`, for later launches with the same dimensions."""
        self._resident: dict[tuple[int, int], int] = {}
        """The number of blocks that fit on a multiprocessor, by their threads and bytes; filled on demand."""
        self._plain = tuple(map(plain_dtype, self.parameters))
        """For each parameter, the dtype of contiguous arrays that need no further check."""
        self._proves = any(parameter.reads for parameter in self.parameters)
        """Whether there is something that is proven to be read."""
        self._written = tuple(each.index for each in self.parameters if each.kind in _ADDRESSES and not each.reads)
        """The parameters that an address may be given for, through which it may be written."""
        self._record_bytes = LAUNCH.struct.size + self.signature.bytes
        self._record = record_struct(_RECORD_FIELDS + self.signature.layout)
        """A whole record of a launch, from its number in the ring on."""

    def __repr__(self) -> str:
        return f"<Kernel {self.signature.described(self.name)}, {self._module.target}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: a table of what is known of it here. Asks the device nothing."""
        rows = [("target", self._module.target), ("log", self.log.strip() or None)]
        return table(f"Kernel {self.signature.described(self.name)}", rows)

    @property
    def _owner(self) -> DeviceCore:
        return self._module._device

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters, in the order of the declaration."""
        return self.signature.parameters

    @property
    def module(self) -> Module:
        """The module that holds it: its own `Program`, or the `Module` that it is a function of."""
        return self._module

    @property
    def ptx(self) -> str | None:
        """The PTX that the compiler made; None if it made none."""
        return self._module.ptx

    @property
    def cubin(self) -> bytes | None:
        """The machine code that the compiler made; None when only PTX was requested."""
        return self._module.cubin

    @property
    def log(self) -> str:
        """The messages of the compiler, for example warnings."""
        return self._module.log

    async def launch(
        self,
        grid: Dimensions,
        block: Dimensions,
        *arguments: object,
        shared_bytes: int = 0,
        touches: Iterable[DeviceArray | Marked] = (),
        hang_timeout: float | None = None,
        lane: Lane | None = None,
        cooperative: bool = False,
        cluster: Dimensions | None = None,
        programmatic: bool = False,
        priority: int | None = None,
    ) -> None:
        """Launch the kernel and wait until it has run (``cuLaunchKernelEx``).

        `grid` (blocks) and `block` (threads) are an int or up to three; `shared_bytes` is each block's dynamic shared
        memory, in bytes. `arguments` are checked against the kernel's parameters in C++, or by their sizes where those
        are unknown: C-contiguous device arrays of the right dtype where it takes pointers (`DeviceArray.view` and
        `strided` are the ways out), Python and numpy numbers that fit, bytes for structs. Every array counts as
        written, unless the kernel's PTX proves that it is only read (`Parameter.reads`), or one of `read_only`,
        `writes` and `overwrites` says what is done; `touches` names arrays that the kernel reaches only through other
        memory.
        `hang_timeout` is the time in seconds that this launch may run before its worker is killed; by default that of
        `open_device`. `lane` is one of `Device.lane`; by default the compute lane, which all kernels share.

        The attributes of a launch: `cooperative` puts all blocks on the device at once, so that they may wait for each
        other (``grid.sync()`` of ``cooperative_groups``); such a grid has at most `Occupancy.device_blocks` blocks.
        `cluster` is the number of neighbouring blocks that share their shared memory, an int or up to three; it divides
        the grid. `programmatic` lets the kernel begin before the previous kernel of its lane has ended. The kernel
        itself waits, by ``cudaGridDependencySynchronize()``, before it touches memory that earlier kernels write. This
        can save time among launches of a batch; elsewhere the lane's own work lies between two kernels. The lane counts
        a launch as done only when it and all before it have ended, so the order of all other work stays the same.
        `priority` is that of its blocks, from `DeviceInfo.highest_priority` to `DeviceInfo.lowest_priority`; by default
        the lane's. Clusters and programmatic launches need compute capability 9.0.

        Raises `InvalidArgument` before anything is sent, and names the limit that was exceeded; `StaleArray` for an
        array that a fault has torn; `ContextLost` if the context is lost while the kernel runs, as by a faulty kernel.
        """
        device = self._module._device
        device.home.check_task()
        bare = cluster is None and priority is None and cooperative is False and programmatic is False
        await trio.lowlevel.checkpoint_if_cancelled()
        if bare and lane is None and hang_timeout is None and names_nothing(touches):
            launched = self._module._launches.begin(self, grid, block, shared_bytes, arguments, device.module_actor)
            if launched is not None:
                await launched.wait()
                return
        await self._placed(arguments)
        number = device.part(Lanes).chosen(lane)._number
        options = options_of(cooperative, cluster, programmatic, priority)
        if cooperative is True:
            await self.occupancy(block, shared_bytes)
        request = self._request(grid, block, arguments, shared_bytes, touches, hang_timeout, number, options)
        await device.module_actor.mailbox.ask(request)
        self._module._launches.learn(self, request)

    def launch_nowait(
        self,
        grid: Dimensions,
        block: Dimensions,
        *arguments: object,
        shared_bytes: int = 0,
        touches: Iterable[DeviceArray | Marked] = (),
        hang_timeout: float | None = None,
        lane: Lane | None = None,
        cooperative: bool = False,
        cluster: Dimensions | None = None,
        programmatic: bool = False,
        priority: int | None = None,
    ) -> None:
        """Launch the kernel, and do not wait for it.

        It is submitted before this returns, so the caller's next work on its arrays is ordered after it. Its outcome
        is seen only in `dev.statistics()`. `grid`, `block`, `arguments`, `shared_bytes`, `touches`,
        `hang_timeout`, `lane`, `cooperative`, `cluster`, `programmatic` and `priority` are those of `launch`. A
        cooperative grid that is too large is refused here if `occupancy` was asked for its blocks before. Otherwise the
        worker refuses it, and the statistics count the launch as failed.

        Raises `trio.WouldBlock` while the device is being rebuilt, and when 512 commands of the lane, without those of
        batches, are unfinished; and the errors that `launch` raises before anything is sent.
        """
        number = self._module._device.part(Lanes).chosen(lane)._number
        options = options_of(cooperative, cluster, programmatic, priority)
        self._begin_nowait(self._request(grid, block, arguments, shared_bytes, touches, hang_timeout, number, options))

    async def _placed(self, arguments: Sequence[object]) -> None:
        """Wait until the memory of a launch's arguments has its address, and exists if it is of another device."""
        device = self._module._device
        for array in arrays_among(arguments):
            if array._storage.device is not device:
                check_operand(device, array)
                await prepare(array)
            await array._storage.placed()

    def _begin_nowait(self, request: LaunchRequest) -> None:
        device = self._module._device
        device.check_running()
        device.module_actor.begin_nowait(request, device.current)

    def _request(
        self,
        grid: Dimensions,
        block: Dimensions,
        arguments: Sequence[object],
        shared_bytes: int,
        touches: Iterable[DeviceArray | Marked],
        hang_timeout: float | None,
        lane: int,
        options: GivenOptions,
    ) -> LaunchRequest:
        payload, operands, keep = self._checked(grid, block, arguments, shared_bytes, touches, options)
        if hang_timeout is not None:
            check_seconds("hang_timeout", hang_timeout)
        return LaunchRequest(self, payload, operands, keep, hang_timeout, lane)

    def _checked(
        self,
        grid: Dimensions,
        block: Dimensions,
        arguments: Sequence[object],
        shared_bytes: int,
        touches: Iterable[DeviceArray | Marked],
        options: GivenOptions,
    ) -> tuple[bytes, list[Operand], object]:
        """Return the payload of a launch's record, its access to memory, and the objects to keep alive meanwhile."""
        device = self._module._device
        operands: list[Operand] = []
        proven, plain = self._proven(arguments), self._plain

        def address_of(argument: object, parameter: Parameter | None) -> int | None:
            if isinstance(argument, DeviceArray):
                array, role, strided = argument, None, False
            elif isinstance(argument, Marked):
                array, role, strided = argument.array, argument.role, argument.strided
            else:
                return None
            block = array._storage.block if array._storage.device is device else operand_block(device, array)
            if block.freed:
                place = _place_of(argument, arguments)
                raise InvalidArgument(f"{place} of {self.name} was freed, give another: {array!r}")
            if parameter is None:
                operands.append((block, _role_of(array, role, Role.WRITE)))
                return 0
            if array._plain is not plain[parameter.index] and parameter.elements is not None:
                check_elements(self.name, parameter, parameter.elements, array, strided=strided)
            if role is None:
                role = self._promised.get(parameter.index)
            if role is None:
                # A variable of a module may be written by its own name as well.
                reads = parameter.reads and type(array._storage) is Storage
                operands.append((block, proven if reads else Role.WRITE))
            else:
                operands.append((block, _role_of(array, role, Role.WRITE)))
            return block.address + array._offset

        device.check_open()
        block_of_parameters = self.signature.pack(arguments, address_of)
        touched_arrays = tuple_of_touched(touches)
        for touched in touched_arrays:
            if address_of(touched, None) is None:
                raise InvalidArgument(f"touches names device arrays, not {type(touched).__name__}")
        dimensions = self._check_dimensions(grid, block, shared_bytes)
        word = 0 if options is ORDINARY else self._check_options(options, dimensions)
        payload = LAUNCH.struct.pack(self._number, *dimensions, word) + block_of_parameters
        return payload, operands, (arguments, touched_arrays)

    def _repacked(self, payload: bytes, before: Sequence[object], arguments: Sequence[object]) -> bytes | None:
        """Return the payload of a launch, given that of one with the arguments `before`.

        Returns None, so that the arguments are to be checked, unless nothing but numbers has changed.
        """
        at = LAUNCH.struct.size
        block = repacked(self.signature, payload[at:], before, arguments, _is_same)
        return None if block is None else payload[:at] + block

    def _of(self, module: Module) -> bool:
        return self._module is module

    def _is_loaded(self, generation: Generation) -> bool:
        module = self._module
        return generation.modules.get(module._number) == 0 and not module._device.strict

    def _describe(self, arguments: Iterable[object]) -> tuple[str, list[Operand]]:
        """Return the name of a launch and its access to memory, from arguments that were checked."""
        given = tuple(arguments)
        operands: list[Operand] = []
        proven = self._proven(given)
        for argument, parameter in zip(given, self.signature.parameters, strict=False):
            role = proven if parameter.reads else Role.WRITE
            if isinstance(argument, DeviceArray):
                operands.append((argument._block, role))
            elif isinstance(argument, Marked):
                array = argument.array
                operands.append((array._block, _role_of(array, argument.role, role)))
        return self._operation, operands

    def _proven(self, arguments: Sequence[object]) -> Role:
        """Return the access to an array that the kernel is proven to read only, with these arguments.

        An address that is given as a number may be that of any array. Where the kernel may write through it, each of
        the others may be what it writes.
        """
        if self._proves:
            for index in self._written:
                if index < len(arguments):
                    given = arguments[index]
                    if isinstance(given, _INTEGERS) and given != 0:
                        return Role.MAY_WRITE
        return Role.READ

    def _check_dimensions(self, grid: Dimensions, block: Dimensions, shared_bytes: object) -> tuple[int, ...]:
        blocks = _three("grid", grid, self._module._device.info.max_grid, "blocks")
        threads = self._check_block(block)
        shared = self._check_shared(shared_bytes)
        if self.attributes.cluster is not None:
            _check_divides(self.attributes.cluster, blocks)
        if len(self._checked_dimensions) >= _MOST_CHECKED:
            self._checked_dimensions.clear()
        key = exact_key(grid, block, shared_bytes)
        if key is not None:
            self._checked_dimensions[key] = _SIX.pack(*blocks, *threads)
        return (*blocks, *threads, shared)

    def _check_block(self, block: Dimensions) -> tuple[int, int, int]:
        info = self._module._device.info
        threads = _three("block", block, info.max_block, "threads")
        count = math.prod(threads)
        limit = min(info.max_threads_per_block, self.attributes.max_threads_per_block)
        if count > limit:
            whose = "the device" if limit == info.max_threads_per_block else f"{self.name}, given its registers,"
            raise InvalidArgument(f"block {threads} has {count} threads; {whose} takes at most {limit}")
        return threads

    def _check_shared(self, shared_bytes: object) -> int:
        shared, static = _byte_count("shared_bytes", shared_bytes), self.attributes.static_shared_bytes
        room = self._module._device.info.max_shared_bytes - static
        if shared > room:
            raise InvalidArgument(
                f"shared_bytes={shown(shared)} is more than the {room} bytes that the device has left for a block of "
                f"{self.name}, which declares {static} itself"
            )
        return shared

    def _check_options(self, options: GivenOptions, dimensions: tuple[int, ...]) -> int:
        """Return the options as a record has them."""
        for name in ("cooperative", "programmatic"):
            if type(getattr(options, name)) is not bool:
                raise InvalidArgument(f"{name} is True or False, not {shown(getattr(options, name))}")
        if options.programmatic:
            self._check_capability("a programmatic launch needs", _PROGRAMMATIC_CAPABILITY)
        cluster = None if options.cluster is None else self._check_cluster(options.cluster, dimensions[:3])
        if options.cooperative:
            self._check_cooperative(math.prod(dimensions[:3]), math.prod(dimensions[3:6]), dimensions[6])
        priority = None if options.priority is None else self._check_priority(options.priority)
        return LaunchOptions(bool(options.cooperative), bool(options.programmatic), cluster, priority).encode()

    def _check_capability(self, what: str, needed: tuple[int, int]) -> None:
        major, minor = self._module._device.info.capability
        if (major, minor) < needed:
            raise InvalidArgument(f"{what} compute capability {needed[0]}.{needed[1]}; the device has {major}.{minor}")

    def _check_cluster(self, given: Any, blocks: tuple[int, ...]) -> tuple[int, int, int]:
        self._check_capability("clusters need", _CLUSTER_CAPABILITY)
        cluster, own = _three("cluster", given, (_LARGEST_CLUSTER,) * 3, "blocks"), self.attributes.cluster
        if own is not None and own != cluster:
            raise InvalidArgument(f"cluster={cluster} was given for {self.name}, which declares clusters of {own}")
        count = math.prod(cluster)
        if count > _LARGEST_CLUSTER:
            raise InvalidArgument(
                f"cluster {cluster} has {count} blocks; every device with clusters takes {PORTABLE_CLUSTER}, and none "
                f"more than {_LARGEST_CLUSTER}"
            )
        _check_divides(cluster, blocks)
        return cluster

    def _check_cooperative(self, blocks: int, threads: int, shared: int) -> None:
        """Raise `InvalidArgument` for a grid that is too large for the device at once. If unknown, the worker does."""
        resident = self._resident.get((threads, shared))
        if resident is None:
            return
        multiprocessors = self._module._device.info.multiprocessors
        if blocks > resident * multiprocessors:
            raise InvalidArgument(
                f"the grid has {blocks} blocks; a cooperative one has at most {resident * multiprocessors}, {resident} "
                f"on each of {multiprocessors} multiprocessors"
            )

    def _check_priority(self, priority: Any) -> int:
        info = self._module._device.info
        try:
            number = _integer(priority)
        except TypeError:
            raise InvalidArgument(f"priority is an int, not {shown(priority)}") from None
        if not info.highest_priority <= number <= info.lowest_priority:
            raise InvalidArgument(
                f"priority is {shown(number)}; the device takes {info.highest_priority}, the most urgent, to "
                f"{info.lowest_priority}"
            )
        return number

    def _known_dimensions(self, grid: object, block: object, shared_bytes: object) -> bytes | None:
        """Return an earlier result of `_check_dimensions`, as a launch's record has it; None if there is none."""
        return self._checked_dimensions.get(exact_key(grid, block, shared_bytes))

    def prepare(
        self,
        grid: Dimensions,
        block: Dimensions,
        *arguments: object,
        shared_bytes: int = 0,
        cooperative: bool = False,
        cluster: Dimensions | None = None,
        programmatic: bool = False,
        priority: int | None = None,
    ) -> PreparedLaunch:
        """Return a launch with everything bound, to be made again and again, alone or in a batch.

        `grid`, `block`, `arguments`, `shared_bytes`, `cooperative`, `cluster`, `programmatic` and `priority` are those
        of `launch`, and are checked now, a cooperative grid as by `launch_nowait`; an argument can be changed in place,
        ``prepared[0] = 3.0``. It stays valid when a generation is lost.

        Raises `InvalidArgument` as `launch` does.
        """
        options = options_of(cooperative, cluster, programmatic, priority)
        return PreparedLaunch._create(self, grid, block, arguments, shared_bytes, options)

    # --- shapes -------------------------------------------------------------------------------------------------------

    async def occupancy(self, block: Dimensions, shared_bytes: int = 0) -> Occupancy:
        """Return how much of the device the kernel's blocks fill (``cuOccupancyMaxActiveBlocksPerMultiprocessor``).

        `block` (threads, an int or up to three) and `shared_bytes` (bytes of dynamic shared memory) are those of
        `launch`. The device is asked once for each.

        Raises `InvalidArgument` for a block that cannot be launched; `ContextLost` if the context is lost meanwhile.
        """
        device = self._module._device
        device.home.check_task()
        threads, shared = math.prod(self._check_block(block)), self._check_shared(shared_bytes)
        if (threads, shared) in self._resident:
            device.check_open()
            await trio.lowlevel.checkpoint()
        else:
            answer = await self._ask(OCCUPANCY, threads, shared)
            if len(self._resident) >= _MOST_CHECKED:
                self._resident.clear()
            self._resident[threads, shared] = answer["blocks"]
        return Occupancy._of(self._resident[threads, shared], threads, device.info)

    async def suggest_block(self, shared_bytes: int = 0) -> int:
        """Return the threads of a block that give the most warps on the device (``cuOccupancyMaxPotentialBlockSize``).

        `shared_bytes` is the dynamic shared memory of each block in bytes, whatever the size of the block.

        Raises `InvalidArgument` for more than the device has; `ContextLost` if the context is lost meanwhile.
        """
        self._module._device.home.check_task()
        answer = await self._ask(SUGGEST_BLOCK, self._check_shared(shared_bytes))
        return int(answer["threads"])

    async def _ask(self, verb: Verb, *fields: int) -> Any:
        device = self._module._device
        device.check_open()
        return await device.module_actor.mailbox.ask(KernelRequest(self, verb, verb.struct.pack(self._number, *fields)))

    def grid_for(self, n: Dimensions, block: Dimensions) -> int | tuple[int, ...]:
        """Return the grid with a thread for each of `n` elements, in blocks of `block` threads, an int or up to three.

        An int `n` gives the number of blocks, rounded up. Up to three lengths, along x, y and z, give as many numbers;
        each is divided by the block's length there. The last blocks may reach beyond the end, so the kernel must
        compare its index with `n`. A grid has at least one block, even for no elements.

        Raises `InvalidArgument` for a block that the kernel cannot have, and for more blocks than the device takes.
        """
        return grid_of(n, self._check_block(block), self._module._device.info.max_grid)


refuse_habits(Kernel, KERNEL)


@final
class PreparedLaunch(metaclass=NoPublicConstructor):
    """A launch of a kernel with its grid, its block and its arguments bound, made by `Kernel.prepare`."""

    __slots__ = (
        "__weakref__",
        "_arguments",
        "_block",
        "_blocks",
        "_grid",
        "_key",
        "_operands",
        "_options",
        "_payload",
        "_reads",
        "_shared_bytes",
        "_writes",
        "kernel",
    )

    kernel: Kernel
    """The kernel that it launches."""

    _made_by = "`kernel.prepare(grid, block, ...)`"
    _engine = LAUNCH.engine

    def __init__(
        self,
        kernel: Kernel,
        grid: Dimensions,
        block: Dimensions,
        arguments: tuple[object, ...],
        shared_bytes: int,
        options: GivenOptions,
    ) -> None:
        self.kernel = kernel
        self._key = object()
        """The key of launch paths for it, as that of a kernel."""
        self._reads: tuple[Block, ...] = ()
        self._writes: tuple[Block, ...] = ()
        self._grid = grid
        self._block = block
        self._shared_bytes = shared_bytes
        self._options = options
        self._bind(arguments)

    def __repr__(self) -> str:
        return f"<PreparedLaunch of {self.kernel.name}, grid {self._grid}, block {self._block}>"

    @property
    def _owner(self) -> DeviceCore:
        return self.kernel._module._device

    def _of(self, module: Module) -> bool:
        return self.kernel._module is module

    def _describe(self, arguments: Iterable[object]) -> tuple[str, list[Operand]]:
        return self.kernel._describe(arguments)

    def _bind(self, arguments: tuple[object, ...]) -> None:
        checked = self.kernel._checked(self._grid, self._block, arguments, self._shared_bytes, (), self._options)
        self._payload, self._operands, _ = checked
        self._arguments = arguments
        # The short way takes no torn array, so a torn one that is overwritten completely goes the general way.
        writes = tuple(dict.fromkeys(block for block, role in self._operands if role is not Role.READ))
        reads = tuple({block: role for block, role in self._operands if block not in writes})
        if (len(reads), len(writes)) != (len(self._reads), len(self._writes)):
            self._key = object()  # the function of the short way is for these numbers
        self._reads, self._writes, self._blocks = reads, writes, (*writes, *reads)

    @property
    def arguments(self) -> tuple[object, ...]:
        """The arguments as they are now."""
        return self._arguments

    def __len__(self) -> int:
        """Return the number of arguments."""
        return len(self._arguments)

    def __getitem__(self, index: SupportsIndex) -> object:
        """Return one of the arguments. Raises `IndexError`."""
        return self._arguments[index]

    def __setitem__(self, index: SupportsIndex, argument: object) -> None:
        """Change an argument for later launches; earlier launches keep the old one.

        Raises `IndexError`, and `InvalidArgument` for a value that the parameter does not take. Then nothing changes.
        """
        arguments = list(self._arguments)
        arguments[index] = argument
        self._bind(tuple(arguments))

    async def launch(self, *, hang_timeout: float | None = None, lane: Lane | None = None) -> None:
        """Make the launch and wait until it has run (``cuLaunchKernelEx``).

        `hang_timeout` and `lane` are those of `Kernel.launch`. Raises as `Kernel.launch` does.
        """
        device = self.kernel._module._device
        device.home.check_task()
        if lane is None and hang_timeout is None:
            await trio.lowlevel.checkpoint_if_cancelled()
            launched = self.kernel._module._launches.begin(self, 0, 0, 0, (), device.module_actor)
            if launched is not None:
                await launched.wait()
                return
        await self.kernel._placed(self._arguments)
        number = device.part(Lanes).chosen(lane)._number
        request = self._request(hang_timeout, number)
        await device.module_actor.mailbox.ask(request)
        self.kernel._module._launches.learn(self.kernel, request, self)

    def launch_nowait(self, *, hang_timeout: float | None = None, lane: Lane | None = None) -> None:
        """Make the launch, and do not wait for it; see `Kernel.launch_nowait`.

        `hang_timeout` and `lane` are those of `Kernel.launch`. Raises as `Kernel.launch_nowait` does.
        """
        number = self.kernel._module._device.part(Lanes).chosen(lane)._number
        self.kernel._begin_nowait(self._request(hang_timeout, number))

    def _request(self, hang_timeout: float | None, lane: int) -> LaunchRequest:
        self.kernel._module._device.check_open()
        if any(block.lost is not None or block.freed for block in self._blocks):
            self._bind(self._arguments)  # a variable of a module has moved; an array that was freed is named
        if hang_timeout is not None:
            check_seconds("hang_timeout", hang_timeout)
        return LaunchRequest(self.kernel, self._payload, self._operands, self._arguments, hang_timeout, lane)


def options_of(
    cooperative: object = False, cluster: object = None, programmatic: object = False, priority: object = None
) -> GivenOptions:
    """Return the options of a launch; `ORDINARY` itself if none were given."""
    if cluster is None and priority is None and cooperative is False and programmatic is False:
        return ORDINARY
    return GivenOptions(cooperative, cluster, programmatic, priority)


def exact_key(grid: object, block: object, shared_bytes: object) -> Hashable:
    """Return a key for dimensions that are ints or tuples of ints; None for others, since True and 1.0 equal 1."""
    parts = (grid, block, shared_bytes)
    flat = [each for part in parts for each in (part if type(part) is tuple else (part,))]
    if all(type(each) is int for each in flat):
        return parts
    return None


def _as_declared(signature: KernelSignature, roles: Sequence[Role | None]) -> KernelSignature:
    """Return the signature with what a declaration says in place of what is proven: reads, and writes."""
    said = {Role.READ: True, Role.WRITE: False}
    if said.keys().isdisjoint(roles):
        return signature
    parameters = tuple(
        attrs.evolve(each, reads=each.reads if role is None else said.get(role, each.reads))
        for each, role in zip(signature.parameters, roles, strict=True)
    )
    return attrs.evolve(signature, parameters=parameters)


def _role_of(array: DeviceArray, given: Role | None, otherwise: Role) -> Role:
    """Return the access of a kernel to an array: the one that the caller has given, or else the other."""
    if given is None:
        return otherwise
    if given is Role.OVERWRITE and not array._covers_block:
        return Role.WRITE
    return given


def _is_same(before: object, argument: object) -> bool:
    """Return whether an argument is the same bytes as the one before, and the same access to the same memory."""
    if isinstance(argument, Marked):
        if not isinstance(before, Marked) or (argument.role, argument.strided) != (before.role, before.strided):
            return False
        before, argument = before.array, argument.array
    if argument is not before:
        return False
    # A variable of a module may lie elsewhere now.
    return type(argument._storage) is Storage if type(argument) is DeviceArray else type(argument) in _FIXED


def _place_of(argument: object, arguments: Sequence[object]) -> str:
    """Which of the arguments one is, in words; what is none of them was named by `touches`."""
    index = next((index for index, each in enumerate(arguments) if each is argument), None)
    return "an array that `touches` names" if index is None else f"argument {index}"


def names_nothing(touches: object) -> bool:
    """Return whether `touches` is an empty tuple or list, as it is by default."""
    return type(touches) in (tuple, list) and not touches


def tuple_of_touched(touches: object) -> tuple[object, ...]:
    """Return the arrays of `touches` as a tuple, which keeps them alive. A single array is refused."""
    if isinstance(touches, Iterable) and not isinstance(touches, DeviceArray | str | bytes):
        return tuple(touches)
    raise InvalidArgument(f"touches is a list or a tuple of device arrays, not {type(touches).__name__}")


def _integer(value: Any) -> int:
    """Return `value` as an int. Raises `TypeError`, also for a bool."""
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def _byte_count(what: str, value: object) -> int:
    """Return a number of bytes as an int. Raises `InvalidArgument`."""
    try:
        count = value if type(value) is int else _integer(value)
    except TypeError:
        count = -1
    if count < 0:
        raise InvalidArgument(f"{what} is a number of bytes, not {shown(value)}")
    return count


def _three(what: str, value: Dimensions, limits: tuple[int, int, int], unit: str) -> tuple[int, int, int]:
    """Return dimensions as three ints, each from 1 to its limit. Raises `InvalidArgument`."""
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


def _check_divides(cluster: tuple[int, ...], blocks: Sequence[int]) -> None:
    for axis, size, length in zip("xyz", cluster, blocks, strict=True):
        if length % size:
            raise InvalidArgument(f"grid.{axis} is {length}, which is not a multiple of the {size} blocks of a cluster")


def grid_of(n: Dimensions, threads: tuple[int, int, int], most: tuple[int, int, int]) -> int | tuple[int, ...]:
    """Return the grid for `n` elements, see `Kernel.grid_for`; `most` are the blocks that the device takes."""
    flat = not isinstance(n, Sequence)
    lengths = _lengths(n)
    each = (math.prod(threads),) if flat else threads
    grid = tuple(max(1, -(-length // size)) for length, size in zip(lengths, each, strict=False))
    _three("grid", grid, most, "blocks")
    return grid[0] if flat else grid


def grid_on_any_device(n: Dimensions, block: Dimensions) -> int | tuple[int, ...]:
    """Return the grid for `n` elements, with the limits that all devices have, see `DeclaredKernel.grid_for`."""
    threads = _three("block", block, _BLOCK_ANYWHERE, "threads")
    if math.prod(threads) > _THREADS_ANYWHERE:
        raise InvalidArgument(
            f"block {threads} has {math.prod(threads)} threads; a device takes at most {_THREADS_ANYWHERE}"
        )
    return grid_of(n, threads, _GRID_ANYWHERE)


def _lengths(n: Dimensions) -> tuple[int, ...]:
    """Return the number of elements along each axis. Raises `InvalidArgument`."""
    parts = n if isinstance(n, Sequence) else (n,)
    try:
        if isinstance(n, str | bytes):
            raise TypeError
        lengths = tuple(map(_integer, parts))
    except TypeError:
        lengths = ()
    if not 1 <= len(lengths) <= 3 or min(lengths) < 0:
        raise InvalidArgument(f"n is a number of elements, or a tuple of up to three, not {shown(n)}")
    return lengths
