"""Modules and kernels: load an image, launch a function of it."""

from __future__ import annotations

import functools
import json
import mmap
import os
import struct
from ctypes import addressof, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p, cast, create_string_buffer
from typing import TYPE_CHECKING, Any, NoReturn

from atomr_cuda.constants import driver as cuda

from ..._wire.records.module import (
    LAUNCH,
    LOAD,
    MODULE,
    OCCUPANCY,
    PORTABLE_CLUSTER,
    SUGGEST_BLOCK,
    UNLOAD,
    LaunchOptions,
    kernel_number,
)
from ..._worker.base.giving_back import GivingBack
from ..._worker.base.lanes import NativeLaunch

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..._worker.base.lanes import Command, Lane, WorkerServices

_LOG_BYTES = 8192

_FUNCTION_ATTRIBUTES = {
    "max_threads_per_block": cuda.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
    "static_shared_bytes": cuda.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
    "constant_bytes": cuda.CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES,
    "local_bytes": cuda.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
    "registers": cuda.CU_FUNC_ATTRIBUTE_NUM_REGS,
    "ptx_version": cuda.CU_FUNC_ATTRIBUTE_PTX_VERSION,
    "binary_version": cuda.CU_FUNC_ATTRIBUTE_BINARY_VERSION,
    "cache_mode_ca": cuda.CU_FUNC_ATTRIBUTE_CACHE_MODE_CA,
    "cluster_x": cuda.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
    "cluster_y": cuda.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
    "cluster_z": cuda.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH,
}
"""The ``CUfunction_attribute`` numbers of a kernel's attributes."""

_DEFAULT_DYNAMIC_SHARED = 48 * 1024


_DIMENSIONS = struct.Struct("<6I")
_LAUNCH_FIELDS = struct.Struct(f"<Q{_DIMENSIONS.size}sII")
"""A launch's fields, with the dimensions as one piece of bytes."""

_MOST_PREPARED = 4096


def _unless(answer: int, function: Any, *arguments: Any) -> bool:
    """Call a function for which one status means no. Every other status that is not 0 is raised."""
    status = function.status(*arguments)
    if status not in (0, answer):
        raise function.library.error(status, function.symbol)
    return not status


_FATBIN = b"\x50\xed\x55\xba"
"""The first bytes of a fatbin."""


def may_print(image: bytes) -> bool:
    """Tell whether kernels of an image may print. Such a kernel calls ``vprintf``; a fatbin may be compressed."""
    return b"vprintf" in image or image.startswith(_FATBIN)


class _LoadedKernel:
    """A function, and the prepared data of its launches, for each lane: lanes run in their own threads."""

    __slots__ = ("function", "non_portable", "parameter_bytes", "parameter_offsets", "prepared", "shared_granted")

    def __init__(self, function: int | None, layout: list[tuple[int, int]]) -> None:
        self.function = function
        self.parameter_offsets = [offset for offset, _ in layout]
        self.parameter_bytes = max((offset + width for offset, width in layout), default=0)
        self.prepared: dict[tuple[int, bytes, int, int], _PreparedLaunch] = {}
        """The configurations, by the lane, the dimensions, the dynamic shared memory and the options."""
        self.shared_granted = _DEFAULT_DYNAMIC_SHARED
        self.non_portable = False
        """True if it may have clusters that only some devices support."""


class _PreparedLaunch:
    """A launch without its parameters: the configuration, and the array from which the driver reads their address."""

    __slots__ = ("_extra", "_size", "attributes", "config", "config_address", "extra", "extra_address")

    def __init__(
        self, driver: Any, stream: Any, kernel: _LoadedKernel, dimensions: bytes, shared: int, attributes: Any
    ) -> None:
        config = driver.CUlaunchConfig()
        (
            config.gridDimX,
            config.gridDimY,
            config.gridDimZ,
            config.blockDimX,
            config.blockDimY,
            config.blockDimZ,
        ) = _DIMENSIONS.unpack(dimensions)
        config.sharedMemBytes = shared
        config.hStream = stream
        config.numAttrs = len(attributes)
        if attributes:
            config.attrs = attributes
        self.config: Any = config
        self.attributes: Any = attributes
        self._size = c_size_t(kernel.parameter_bytes)
        marks = (cuda.CU_LAUNCH_PARAM_BUFFER_POINTER, 0, cuda.CU_LAUNCH_PARAM_BUFFER_SIZE, addressof(self._size), 0)
        self._extra = (c_uint64 * len(marks))(*marks)
        self.config_address: int = addressof(config)
        self.extra: memoryview = memoryview(self._extra).cast("B").cast("Q")
        """Its second word is the address of the parameter block."""
        self.extra_address: int | None = addressof(self._extra) if kernel.parameter_bytes else None


class ModuleEngine:
    """The calls behind the verbs above."""

    table = MODULE

    def __init__(self, services: WorkerServices) -> None:
        from atomr_cuda import driver

        self._driver = driver
        self._attribute = driver.CUlaunchAttributeID  # now; otherwise the first launch would make the enumeration
        self._services = services
        self._modules: dict[int, tuple[Any, list[int]]] = {}
        self._kernels: dict[int, _LoadedKernel] = {}
        self._giving_back = GivingBack(services.cuda_error)
        self.calls: dict[int, Callable[[Command, Lane], Any]] = {
            LOAD.number: self._load,
            UNLOAD.number: self._unload,
            LAUNCH.number: self._launch,
            OCCUPANCY.number: self._occupancy,
            SUGGEST_BLOCK.number: self._suggest_block,
        }
        self._launch_kernel = driver.cuLaunchKernelEx.bind()

    def _load(self, command: Command, lane: Lane) -> dict[str, Any]:
        module_id, image_bytes = LOAD.struct.unpack_from(command.payload)
        content = self._read(command.take_descriptor())
        image, wanted = content[:image_bytes], json.loads(content[image_bytes:])
        if may_print(image):
            self._services.prints = True
        module = self._load_image(image)
        kernels: dict[int, _LoadedKernel] = {}
        facts: dict[str, Any] = {}
        try:
            names = self._kernel_names(module) if wanted["kernels"] is None else wanted["kernels"]
            for index, name in enumerate(names):
                function = self._driver.CUfunction()
                self._driver.cuModuleGetFunction(byref(function), module, name.encode())
                layout = self._layout(function)
                kernels[kernel_number(module_id, index)] = _LoadedKernel(function.value, layout)
                facts[name] = {**self._attributes(function), "parameters": layout}
            facts.update(self._variables(module, wanted["globals"]))
        except BaseException:
            self._driver.cuModuleUnload.status(module)
            raise
        self._modules[module_id] = (module, list(kernels))
        self._kernels.update(kernels)
        return facts

    def _kernel_names(self, module: Any) -> list[str]:
        """Return the names of all kernels, in the same order for every load of the image."""
        driver, count = self._driver, c_uint()
        driver.cuModuleGetFunctionCount(byref(count), module)
        functions = (driver.CUfunction * count.value)()
        driver.cuModuleEnumerateFunctions(functions, count, module)
        name = c_char_p()
        names = []
        for function in functions:
            driver.cuFuncGetName(byref(name), function)
            names.append((name.value or b"").decode())
        return sorted(names)

    def _variables(self, module: Any, names: list[str]) -> dict[str, tuple[int, int]]:
        """Return address and bytes of the variables that the driver knows by name. An unused variable may be gone."""
        address, size = self._driver.CUdeviceptr(), c_size_t()
        found = {}
        for name in names:
            arguments = byref(address), byref(size), module, name.encode()
            if _unless(cuda.CUDA_ERROR_NOT_FOUND, self._driver.cuModuleGetGlobal, *arguments):
                found[f"&{name}"] = (address.value or 0, size.value)
        return found

    def _read(self, descriptor: int) -> bytes:
        try:
            size = os.fstat(descriptor).st_size
            with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as view:
                return bytes(view)
        finally:
            os.close(descriptor)

    def _load_image(self, image: bytes) -> Any:
        """Load the image with ``cuModuleLoadDataEx``; a refusal carries the log of the driver's own compiler."""
        driver = self._driver
        log = create_string_buffer(_LOG_BYTES)
        options = (c_int * 2)(cuda.CU_JIT_ERROR_LOG_BUFFER, cuda.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
        values = (c_void_p * 2)(addressof(log), _LOG_BYTES)
        module = driver.CUmodule()
        data = create_string_buffer(image, len(image) + 1)
        try:
            driver.cuModuleLoadDataEx(byref(module), cast(data, c_void_p), 2, options, values)
        except self._services.cuda_error as error:
            text = log.value.decode(errors="replace").strip()
            if text:
                error.text = f"{error.text}: {text}"
            raise
        return module

    def _layout(self, function: Any) -> list[tuple[int, int]]:
        """Return the offset and size of each parameter. The driver refuses the index after the last one."""
        layout: list[tuple[int, int]] = []
        offset, size = c_size_t(), c_size_t()
        call = self._driver.cuFuncGetParamInfo
        while _unless(cuda.CUDA_ERROR_INVALID_VALUE, call, function, len(layout), byref(offset), byref(size)):
            layout.append((offset.value, size.value))
        return layout

    def _attributes(self, function: Any) -> dict[str, int]:
        value = c_int()
        facts = {}
        for name, number in _FUNCTION_ATTRIBUTES.items():
            self._driver.cuFuncGetAttribute(byref(value), number, function)
            facts[name] = value.value
        return facts

    def _unload(self, command: Command, lane: Lane) -> None:
        (module_id,) = UNLOAD.struct.unpack_from(command.payload)
        module, kernels = self._modules.pop(module_id, (None, []))
        for kernel_id in kernels:
            del self._kernels[kernel_id]
        self._services.forget_hot()
        if module is not None:
            self._giving_back.make([functools.partial(self._unload_idle, module)])

    def _unload_idle(self, module: Any) -> None:
        self._services.synchronize()
        self._driver.cuModuleUnload(module)

    def _launch(self, command: Command, lane: Lane) -> None:
        payload = command.payload
        kernel, prepared = self._prepare(payload, lane)
        if len(payload) != LAUNCH.struct.size + kernel.parameter_bytes:
            raise ValueError(f"a launch has {len(payload)} bytes")
        block = create_string_buffer(payload[LAUNCH.struct.size :], max(kernel.parameter_bytes, 1))
        prepared.extra[1] = addressof(block)
        status = self._launch_kernel(prepared.config_address, kernel.function, None, prepared.extra_address)
        if status:
            raise self.launch_error(status)

    def _prepare(self, fields: bytes, lane: Lane) -> tuple[_LoadedKernel, _PreparedLaunch]:
        kernel_id, dimensions, shared, word = _LAUNCH_FIELDS.unpack_from(fields)
        kernel = self._kernels[kernel_id]
        key = (lane.index, dimensions, shared, word)
        prepared = kernel.prepared.get(key)
        if prepared is None:
            if len(kernel.prepared) >= _MOST_PREPARED:
                kernel.prepared.clear()
            prepared = self._configured(kernel, lane.stream, dimensions, shared, word)
            kernel.prepared[key] = prepared
        return kernel, prepared

    def _configured(
        self, kernel: _LoadedKernel, stream: Any, dimensions: bytes, shared: int, word: int
    ) -> _PreparedLaunch:
        self._grant_shared(kernel, shared)
        options = LaunchOptions.decode(word)
        prepared = _PreparedLaunch(self._driver, stream, kernel, dimensions, shared, self._attributes_of(options))
        if options.cluster is not None:
            self._check_cluster(kernel, prepared.config, options.cluster)
        if options.cooperative:
            self._check_cooperative(kernel, prepared.config)
        return prepared

    def _attributes_of(self, options: LaunchOptions) -> Any:
        """Return the options in the driver's form: an array of ``CUlaunchAttribute``."""
        identity = self._attribute
        asked = {
            identity.CU_LAUNCH_ATTRIBUTE_COOPERATIVE: ("cooperative", options.cooperative or None),
            identity.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: (
                "programmaticStreamSerializationAllowed",
                options.programmatic or None,
            ),
            identity.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: ("clusterDim", options.cluster),
            identity.CU_LAUNCH_ATTRIBUTE_PRIORITY: ("priority", options.priority),
        }
        given = [(number, field, value) for number, (field, value) in asked.items() if value is not None]
        attributes = (self._driver.CUlaunchAttribute * len(given))()
        for attribute, (number, field, value) in zip(attributes, given, strict=True):
            attribute.id = number
            setattr(attribute.value, field, value)
        return attributes

    def _check_cluster(self, kernel: _LoadedKernel, config: Any, cluster: tuple[int, int, int]) -> None:
        """Allow clusters with more blocks than every device supports; the device has its own limit."""
        blocks = cluster[0] * cluster[1] * cluster[2]
        if blocks <= PORTABLE_CLUSTER:
            return
        if not kernel.non_portable:
            self._driver.cuFuncSetAttribute(
                kernel.function, cuda.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1
            )
            kernel.non_portable = True
        most = c_int()
        self._driver.cuOccupancyMaxPotentialClusterSize(byref(most), kernel.function, byref(config))
        if blocks > most.value:
            self._refuse(
                cuda.CUDA_ERROR_INVALID_CLUSTER_SIZE,
                f"a cluster has {blocks} blocks; the device allows at most {most.value} for this kernel and launch",
            )

    def _check_cooperative(self, kernel: _LoadedKernel, config: Any) -> None:
        """Refuse, with the limit, a launch that the driver would refuse without an explanation."""
        blocks = config.gridDimX * config.gridDimY * config.gridDimZ
        threads = config.blockDimX * config.blockDimY * config.blockDimZ
        each, device, multiprocessors = self._resident(kernel, threads, config.sharedMemBytes), c_int(), c_int()
        self._driver.cuCtxGetDevice(byref(device))
        self._driver.cuDeviceGetAttribute(byref(multiprocessors), cuda.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device)
        if blocks > each * multiprocessors.value:
            self._refuse(
                cuda.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
                f"the grid has {blocks} blocks; a cooperative one has at most {each * multiprocessors.value}, "
                f"{each} on each of {multiprocessors.value} multiprocessors",
            )

    def _refuse(self, status: int, text: str) -> NoReturn:
        error = self.launch_error(status)
        error.text = text  # type: ignore[attr-defined]
        raise error

    def _resident(self, kernel: _LoadedKernel, threads: int, shared: int) -> int:
        """Return the number of blocks that a multiprocessor holds at a time."""
        blocks = c_int()
        self._grant_shared(kernel, shared)
        self._driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(byref(blocks), kernel.function, threads, shared)
        return blocks.value

    def _occupancy(self, command: Command, lane: Lane) -> dict[str, int]:
        number, threads, shared = OCCUPANCY.struct.unpack(command.payload)
        return {"blocks": self._resident(self._kernels[number], threads, shared)}

    def _suggest_block(self, command: Command, lane: Lane) -> dict[str, int]:
        number, shared = SUGGEST_BLOCK.struct.unpack(command.payload)
        kernel, grid, block = self._kernels[number], c_int(), c_int()
        self._grant_shared(kernel, shared)
        self._driver.cuOccupancyMaxPotentialBlockSize(
            byref(grid), byref(block), kernel.function, self._driver.CUoccupancyB2DSize(), shared, 0
        )
        return {"threads": block.value}

    def hot_launch(
        self, fields: bytes, length: int, lane: Lane
    ) -> tuple[Callable[[int], int], NativeLaunch | None] | None:
        """Return a function that launches as `fields` say, with the parameter block at an address, and returns the
        status; and the same for native code.

        Return None if a record of `length` bytes is not a launch of that kernel. It is then refused like any other
        command.
        """
        if _LAUNCH_FIELDS.unpack_from(fields)[0] not in self._kernels:
            return None
        try:
            kernel, prepared = self._prepare(fields, lane)
        except self._services.cuda_error:
            return None  # the general way refuses it too, and explains why
        if length != LAUNCH.struct.size + kernel.parameter_bytes:
            return None
        launch_kernel, extra = self._launch_kernel, prepared.extra
        config, function, where = prepared.config_address, kernel.function, prepared.extra_address

        # What the addresses point to lives as long as the function does.
        def launch(address: int, _keep: _PreparedLaunch = prepared) -> int:
            extra[1] = address
            status: int = launch_kernel(config, function, None, where)
            return status

        native = None if function is None else NativeLaunch(config, function, kernel.parameter_bytes, prepared)
        return launch, native

    def launch_error(self, status: int) -> Exception:
        """Return the exception for a launch that was refused."""
        function = self._driver.cuLaunchKernelEx
        return function.library.error(status, function.symbol)

    def forget_lane(self, index: int) -> tuple[()]:
        """Drop the launch configurations made for a lane."""
        for kernel in list(self._kernels.values()):  # other threads change both meanwhile
            for key in [key for key in list(kernel.prepared) if key[0] == index]:
                kernel.prepared.pop(key, None)
        return ()

    def _grant_shared(self, kernel: _LoadedKernel, shared: int) -> None:
        if shared > kernel.shared_granted:
            self._driver.cuFuncSetAttribute(
                kernel.function, cuda.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared
            )
            kernel.shared_granted = shared

    def for_graph(self, payload: bytes) -> tuple[int | None, list[int], Any]:
        """Return the function of a launch that becomes a node of a graph, the start of its parameters, and its
        attributes."""
        number, dimensions, shared, word = _LAUNCH_FIELDS.unpack_from(payload)
        kernel = self._kernels[number]
        attributes = self._configured(kernel, None, dimensions, shared, word).attributes
        return kernel.function, kernel.parameter_offsets, attributes

    def close(self) -> None:
        """Unload every module."""
        unload = self._driver.cuModuleUnload
        self._giving_back.make([functools.partial(unload, module) for module, _kernels in self._modules.values()])
        self._modules.clear()
        self._kernels.clear()
