"""Modules, functions and launches of the simulated driver.

A module is PTX text, read by ``simt``; machine code for a GPU is refused. A launch is checked as in the driver. Its
parameters are read before the call returns, and the kernel runs when its stream comes to it.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from atomr_cuda import driver
from atomr_cuda.driver import CUfunction_attribute as F, CUjit_option, CUlaunchAttributeID, CUlaunchConfig

from .._environment import complain
from .._status import (
    COOPERATIVE_TOO_LARGE,
    INVALID_CLUSTER_SIZE,
    INVALID_PTX,
    INVALID_VALUE,
    NO_BINARY_FOR_GPU,
    NOT_FOUND,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    OUT_OF_RESOURCES,
    Refused,
    require,
)
from ..engine.shared import RESERVED_SHARED
from ..engine.simt import PLAIN, LoadedModule
from ..ptx.text import LoadError
from . import device
from .process import Function, Module, Process
from .table import entry, give

# The first bytes of images that hold machine code: ELF, and NVIDIA's container of several images.
_MACHINE_CODE = (b"\x7fELF", b"\x50\xed\x55\xba")

_TARGET = re.compile(r"^\s*\.target\s+sm_(\d+)", re.MULTILINE)


# Loading.


class _JitLog:
    """The error log for which a caller of cuModuleLoadDataEx may ask."""

    def __init__(self, count: int, options: Any, values: Any) -> None:
        given = {options[at]: (values, at) for at in range(count)} if count else {}
        self._buffer = self._value(given.get(CUjit_option.CU_JIT_ERROR_LOG_BUFFER))
        self._size = given.get(CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)

    @staticmethod
    def _value(place: tuple[Any, int] | None) -> int:
        return (place[0][place[1]] or 0) if place else 0

    def write(self, text: str) -> None:
        """Write the text, cut to the buffer, and its length instead of the size."""
        room = self._value(self._size)
        data = text.encode()[: max(0, room - 1)] + b"\0"
        if self._buffer and room:
            ctypes.memmove(self._buffer, data, len(data))
        if self._size:
            values, at = self._size
            values[at] = len(data) - 1 if room else 0


@entry(driver.cuModuleLoadData, unsafe=True)
def _module_load_data(process: Process, result: Any, image: int | None) -> None:
    _load(process, result, image, _JitLog(0, None, None))


@entry(driver.cuModuleLoadDataEx, unsafe=True)
def _module_load_data_ex(
    process: Process, result: Any, image: int | None, count: int, options: Any, values: Any
) -> None:
    require(count == 0 or (options and values))
    _load(process, result, image, _JitLog(count, options, values))


def _load(process: Process, result: Any, image: int | None, log: _JitLog) -> None:
    require(result and image)
    context = process.current()
    require(ctypes.string_at(image or 0, 4) not in _MACHINE_CODE, NO_BINARY_FOR_GPU)
    text = ctypes.string_at(image or 0).decode("utf-8", errors="replace")
    try:
        _check_target(process, text, log)
        tools = process.checks.tools(text) if process.checks else PLAIN
        loaded = LoadedModule(text, process.space, tools)
    except LoadError as error:
        log.write(str(error))
        complain(f"a module was refused: {error}")
        raise Refused(error.status) from None
    except Refused:
        raise
    except Exception as error:
        # No check finds every kind of damage in a text; a number in it may ask for any amount of memory.
        message = f"the PTX cannot be read: {error!r}"
        log.write(message)
        complain(f"a module was refused: {message}")
        raise Refused(OUT_OF_MEMORY if isinstance(error, MemoryError) else INVALID_PTX) from None
    context.flush_output()
    give(result, process.handles.add(Module(loaded, context), context.handle))


def _check_target(process: Process, text: str, log: _JitLog) -> None:
    """Check the target: a GPU runs only PTX of its own capability and of older ones."""
    major, minor = process.capability
    found = _TARGET.search(text)
    if found and int(found[1]) > major * 10 + minor:
        message = f"the PTX is for sm_{found[1]}, but the simulated GPU has capability {major}.{minor}"
        log.write(message)
        complain(f"a module was refused: {message}")
        raise Refused(INVALID_PTX)


@entry(driver.cuModuleUnload, unsafe=True)
def _module_unload(process: Process, handle: int | None) -> int | None:
    module = process.handles.get(handle, Module)
    status = module.context.synchronize()
    if status:
        return status
    for function in module.handles.values():
        process.handles.pop(function)
    process.handles.pop(handle)
    module.loaded.unload()
    return None


def _name(name: bytes | None) -> str:
    if name is None:
        raise Refused(INVALID_VALUE)
    return name.decode("utf-8", errors="replace")


@entry(driver.cuModuleGetFunction)
def _module_get_function(process: Process, result: Any, handle: int | None, name: bytes | None) -> None:
    require(result)
    wanted = _name(name)
    module = process.handles.get(handle, Module)
    require(wanted in module.loaded.functions, NOT_FOUND)
    give(result, _function(process, module, wanted))


def _function(process: Process, module: Module, name: str) -> int:
    """Return the handle of a kernel of the module."""
    if name not in module.handles:
        function = Function(module.loaded.functions[name], module)
        module.handles[name] = process.handles.add(function, module.context.handle)
    return module.handles[name]


@entry(driver.cuModuleGetFunctionCount)
def _module_get_function_count(process: Process, result: Any, handle: int | None) -> None:
    give(result, len(process.handles.get(handle, Module).loaded.functions))


@entry(driver.cuModuleEnumerateFunctions)
def _module_enumerate_functions(process: Process, result: Any, count: int, handle: int | None) -> None:
    module = process.handles.get(handle, Module)
    require(result)
    for at, name in enumerate(itertools.islice(module.loaded.functions, count)):
        result[at] = _function(process, module, name)


@entry(driver.cuModuleGetGlobal)
def _module_get_global(process: Process, address: Any, size: Any, handle: int | None, name: bytes | None) -> None:
    wanted = _name(name)
    module = process.handles.get(handle, Module)
    require(wanted in module.loaded.globals, NOT_FOUND)
    where, count = module.loaded.globals[wanted]
    if address:
        give(address, where)
    if size:
        give(size, count)


# Functions.


def _default_dynamic_shared(function: Function) -> int:
    return max(0, device.SHARED_PER_BLOCK - function.kernel.static_shared_bytes)


def _dynamic_shared(function: Function) -> int:
    """Return the dynamic shared memory that a launch may ask for."""
    limit = function.dynamic_shared_limit
    return _default_dynamic_shared(function) if limit is None else max(limit, _default_dynamic_shared(function))


def _version(function: Function) -> int:
    major, minor = function.process.capability
    return major * 10 + minor


_FUNCTION_ATTRIBUTES: dict[int, Any] = {
    F.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: lambda function: _thread_limit(function),
    F.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: lambda function: function.kernel.static_shared_bytes,
    F.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: lambda function: function.kernel.local_bytes,
    F.CU_FUNC_ATTRIBUTE_NUM_REGS: lambda function: function.kernel.registers,
    F.CU_FUNC_ATTRIBUTE_PTX_VERSION: _version,
    F.CU_FUNC_ATTRIBUTE_BINARY_VERSION: _version,
    F.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: _dynamic_shared,
    F.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: lambda function: function.carveout,
    F.CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET: lambda function: int(any(function.kernel.cluster)),
    F.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH: lambda function: function.kernel.cluster[0],
    F.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT: lambda function: function.kernel.cluster[1],
    F.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH: lambda function: function.kernel.cluster[2],
    F.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: lambda function: int(function.non_portable_clusters),
}
_KNOWN_ATTRIBUTES = frozenset(map(int, F))


def _thread_limit(function: Function) -> int:
    return min(device.MAX_THREADS_PER_BLOCK, function.kernel.max_threads_per_block)


@entry(driver.cuFuncGetAttribute)
def _func_get_attribute(process: Process, result: Any, attribute: int, handle: int | None) -> None:
    require(attribute in _KNOWN_ATTRIBUTES)
    function = process.handles.get(handle, Function)
    answer = _FUNCTION_ATTRIBUTES.get(attribute)
    give(result, answer(function) if answer else 0)


@entry(driver.cuFuncSetAttribute)
def _func_set_attribute(process: Process, handle: int | None, attribute: int, value: int) -> None:
    function = process.handles.get(handle, Function)
    if attribute == F.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        require(0 <= value <= device.SHARED_PER_BLOCK_OPTIN - function.kernel.static_shared_bytes)
        function.dynamic_shared_limit = value
    elif attribute == F.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        require(-1 <= value <= 100)
        function.carveout = value
    elif attribute == F.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        require(value in (0, 1))
        function.non_portable_clusters = bool(value)
    else:
        raise Refused(INVALID_VALUE)


@entry(driver.cuFuncGetParamInfo)
def _func_get_param_info(process: Process, handle: int | None, index: int, offset: Any, size: Any) -> None:
    parameters = process.handles.get(handle, Function).kernel.parameters
    require(index < len(parameters))
    give(offset, parameters[index][0])
    if size:
        give(size, parameters[index][1])


@entry(driver.cuFuncGetName)
def _func_get_name(process: Process, result: Any, handle: int | None) -> None:
    device.give_string(result, process.handles.get(handle, Function).kernel.name)


# Occupancy.

_REGISTER_UNIT = 256
"""The unit in which registers are given to a warp."""
_SHARED_UNIT = 128
"""The unit, in bytes, in which shared memory is given to a block."""
_PORTABLE_CLUSTER = 8
_LARGEST_CLUSTER = 16


def _pieces(amount: int, unit: int) -> int:
    return -(-amount // unit) * unit


def resident_blocks(function: Function, threads: int, shared: int) -> int:
    """Return how many blocks a multiprocessor holds.

    This is the number for which its slots, its threads, its shared memory and its registers are enough, by the limits
    of the device that is described. Registers are the simulator's estimate. The simulator itself runs any number of
    blocks at a time: the result is for programs that ask for it.
    """
    if threads > _thread_limit(function) or shared > _dynamic_shared(function):
        return 0
    warps = -(-threads // 32)
    used = _pieces(shared + function.kernel.static_shared_bytes, _SHARED_UNIT) + RESERVED_SHARED
    registers = _pieces(max(1, function.kernel.registers) * 32, _REGISTER_UNIT) * warps
    return min(
        device.BLOCKS_PER_MULTIPROCESSOR,
        device.THREADS_PER_MULTIPROCESSOR // (warps * 32),
        device.SHARED_PER_MULTIPROCESSOR // used,
        device.REGISTERS // registers,
    )


@entry(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor)
def _occupancy(process: Process, result: Any, handle: int | None, threads: int, shared: int) -> None:
    function = process.handles.get(handle, Function)
    require(threads > 0)
    give(result, resident_blocks(function, threads, shared))


@entry(driver.cuOccupancyMaxPotentialBlockSize)
def _potential_block(
    process: Process, grid: Any, block: Any, handle: int | None, dynamic: Any, shared: int, limit: int
) -> None:
    """Return the block size with which a multiprocessor has the most threads; of several, the largest."""
    function = process.handles.get(handle, Function)
    most = min(_thread_limit(function), limit or device.MAX_THREADS_PER_BLOCK)
    resident = {
        threads: resident_blocks(function, threads, dynamic(threads) if dynamic else shared)
        for threads in {most, *range(32, most + 1, 32)}
    }
    best = max(resident, key=lambda threads: (threads * resident[threads], threads))
    give(block, best)
    give(grid, resident[best] * device.MULTIPROCESSORS)


@entry(driver.cuOccupancyMaxPotentialClusterSize)
def _potential_cluster(process: Process, result: Any, handle: int | None, config: Any) -> None:
    require(config)
    give(result, _largest_cluster(process.handles.get(handle, Function)))


def _largest_cluster(function: Function) -> int:
    require(function.process.has_clusters, NOT_SUPPORTED)
    return _LARGEST_CLUSTER if function.non_portable_clusters else _PORTABLE_CLUSTER


# Launching.

Three = tuple[int, int, int]


@entry(driver.cuLaunchKernel)
def _launch_kernel(
    process: Process,
    handle: int | None,
    *rest: Any,
) -> None:
    *sizes, shared, stream, parameters, extra = rest
    kernel = prepared(process, handle, tuple(sizes[:3]), tuple(sizes[3:]), shared, parameters, extra)
    _submit(process, stream, kernel, Attributes())


@entry(driver.cuLaunchCooperativeKernel)
def _launch_cooperative_kernel(process: Process, handle: int | None, *rest: Any) -> None:
    *sizes, shared, stream, parameters = rest
    kernel = prepared(process, handle, tuple(sizes[:3]), tuple(sizes[3:]), shared, parameters, None)
    _submit(process, stream, kernel, Attributes(cooperative=True))


@entry(driver.cuLaunchKernelEx)
def _launch_kernel_ex(
    process: Process, config_address: int | None, handle: int | None, parameters: int | None, extra: int | None
) -> None:
    require(config_address)
    config = CUlaunchConfig.from_address(config_address or 0)
    attributes = Attributes()
    for at in range(config.numAttrs):
        attributes = attributes.having(config.attrs[at].id, config.attrs[at].value)
    grid = (config.gridDimX, config.gridDimY, config.gridDimZ)
    block = (config.blockDimX, config.blockDimY, config.blockDimZ)
    kernel = prepared(process, handle, grid, block, config.sharedMemBytes, parameters, extra)
    _submit(process, config.hStream, kernel, attributes)


def _submit(process: Process, stream: int | None, kernel: PreparedKernel, attributes: Attributes) -> None:
    """Queue a launch. After a cooperative launch, later ones in streams find its workspace, as on a GPU."""
    ready = kernel.with_attributes(replace(attributes, workspace=process.has_workspace or attributes.cooperative))
    process.has_workspace |= attributes.cooperative
    process.submit(stream, ready, kernel=True)


_HARMLESS_ATTRIBUTES = frozenset(
    {
        CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_IGNORE,
        CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
        CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY,
        CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PRIORITY,
        CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP,
        CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
        CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
    }
)


@dataclass(frozen=True)
class Attributes:
    """The properties of a launch that make a difference here."""

    cooperative: bool = False
    cluster: Three | None = None
    workspace: bool = False
    """True if the kernel gets the workspace for the barrier of a grid."""

    def having(self, number: int, value: Any) -> Attributes:
        """Return the attributes with one more: a ``CUlaunchAttributeID`` and a ``CUlaunchAttributeValue``."""
        if number == CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
            return replace(self, cooperative=bool(value.cooperative), workspace=bool(value.cooperative))
        if number == CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
            size = value.clusterDim
            return replace(self, cluster=(size.x, size.y, size.z))
        require(number in _HARMLESS_ATTRIBUTES, NOT_SUPPORTED)
        return self


@dataclass(frozen=True)
class PreparedKernel:
    """A kernel with its parameters as they were when it was prepared. Call it to run the kernel."""

    function: Function
    grid: Three
    block: Three
    shared: int
    data: bytes
    say: Callable[[bytes], None]
    in_one_buffer: bool = False
    """True if the parameters came as one buffer (``extra``)."""
    attributes: Attributes = Attributes()

    def __call__(self) -> None:
        attributes, cluster = self.attributes, self._cluster(self.attributes) or (1, 1, 1)
        kernel = self.function.kernel
        kernel.launch(self.grid, self.block, self.shared, self.data, self.say, cluster, attributes.workspace)

    def with_attributes(self, attributes: Attributes) -> PreparedKernel:
        """Return the same with other attributes; refuse invalid ones."""
        self._check_cluster(self._cluster(attributes))
        if attributes.cooperative:
            resident = resident_blocks(self.function, math.prod(self.block), self.shared) * device.MULTIPROCESSORS
            require(math.prod(self.grid) <= resident, COOPERATIVE_TOO_LARGE)
        return replace(self, attributes=attributes)

    def _cluster(self, attributes: Attributes) -> Three | None:
        x, y, z = self.function.kernel.cluster
        return attributes.cluster or ((x, y, z) if x else None)

    def _check_cluster(self, cluster: Three | None) -> None:
        if cluster in (None, (1, 1, 1)):
            return
        own = self.function.kernel.cluster
        require(self.function.process.has_clusters, NOT_SUPPORTED)
        require(min(cluster) >= 1 and (not any(own) or cluster == own))
        require(math.prod(cluster) <= _largest_cluster(self.function), INVALID_CLUSTER_SIZE)
        require(all(blocks % size == 0 for blocks, size in zip(self.grid, cluster, strict=True)))


def prepared(
    process: Process,
    handle: int | None,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    shared: int,
    parameters: int | None,
    extra: int | None,
) -> PreparedKernel:
    """Return a kernel ready to run; refuse an invalid launch."""
    function = process.handles.get(handle, Function)
    _check_shape(function, grid, block, shared)
    data = _parameter_block(function, parameters, extra)
    at, size = (grid[0], grid[1], grid[2]), (block[0], block[1], block[2])
    return PreparedKernel(function, at, size, shared, data, process.current().say, bool(extra))


def _check_shape(function: Function, grid: tuple[int, ...], block: tuple[int, ...], shared: int) -> None:
    require(all(1 <= size <= limit for size, limit in zip(grid, device.MAX_GRID, strict=True)))
    require(all(1 <= size <= limit for size, limit in zip(block, device.MAX_BLOCK, strict=True)))
    threads = block[0] * block[1] * block[2]
    require(threads <= device.MAX_THREADS_PER_BLOCK)
    require(threads <= _thread_limit(function), OUT_OF_RESOURCES)
    require(shared <= _dynamic_shared(function))


def _parameter_block(function: Function, parameters: int | None, extra: int | None) -> bytes:
    """Return the kernel's parameters, from an array of addresses or from one buffer, as they are now."""
    kernel = function.kernel
    if not kernel.parameters:
        return b""
    if not parameters:
        return _from_buffer(kernel.parameter_bytes, extra)
    block = bytearray(kernel.parameter_bytes)
    addresses = (ctypes.c_uint64 * len(kernel.parameters)).from_address(parameters)
    for (offset, size), address in zip(kernel.parameters, addresses, strict=True):
        require(address)
        block[offset : offset + size] = ctypes.string_at(address, size)
    return bytes(block)


def _from_buffer(size: int, extra: int | None) -> bytes:
    require(extra)
    given = dict(_pairs(extra or 0))
    address = given.get(driver.CU_LAUNCH_PARAM_BUFFER_POINTER)
    where = given.get(driver.CU_LAUNCH_PARAM_BUFFER_SIZE)
    require(address and where)
    require(ctypes.c_size_t.from_address(where or 0).value >= size)
    return ctypes.string_at(address or 0, size)


def _pairs(extra: int) -> Iterator[tuple[int, int]]:
    """Yield the (name, value) pairs of ``extra``, up to the end mark."""
    word = ctypes.sizeof(ctypes.c_void_p)
    while name := ctypes.c_uint64.from_address(extra).value:
        yield name, ctypes.c_uint64.from_address(extra + word).value
        extra += 2 * word
