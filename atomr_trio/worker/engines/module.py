"""Modules and kernels: load an image, launch a function of it."""

from __future__ import annotations

import json
import mmap
import os
import struct
from ctypes import addressof, byref, c_int, c_size_t, c_uint64, c_void_p, cast, create_string_buffer
from typing import TYPE_CHECKING, Any

from ..protocol import Mode, VerbTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..lanes import Command, Lane, WorkerServices

# --- the records ------------------------------------------------------------------------------------------------------

MODULE = VerbTable("module", 2)

LOAD = MODULE.verb("load", Mode.BLOCKS, {"module": "Q", "image_bytes": "Q"})
"""Load the image in the record's descriptor. Behind it is JSON: the kernels wanted, as pairs of number and name."""

UNLOAD = MODULE.verb("unload", Mode.BLOCKS, {"module": "Q"})

LAUNCH = MODULE.verb(
    "launch",
    Mode.ENQUEUES,
    {
        "kernel": "Q",
        "grid_x": "I",
        "grid_y": "I",
        "grid_z": "I",
        "block_x": "I",
        "block_y": "I",
        "block_z": "I",
        "shared": "I",
        "padding": "I",
    },
)
"""Launch a kernel of a loaded module. The tail is the parameter block; each launch names the roles of its arrays."""

# --- the calls --------------------------------------------------------------------------------------------------------

_CU_JIT_ERROR_LOG_BUFFER = 5
_CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6
_LOG_BYTES = 8192

_FUNCTION_ATTRIBUTES = {
    "max_threads_per_block": 0,
    "static_shared_bytes": 1,
    "constant_bytes": 2,
    "local_bytes": 3,
    "registers": 4,
    "binary_version": 6,
}
"""``CUfunction_attribute`` numbers of what a kernel tells about itself."""

_CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
_DEFAULT_DYNAMIC_SHARED = 48 * 1024


_DIMENSIONS = struct.Struct("<6I")
_LAUNCH_FIELDS = struct.Struct(f"<Q{_DIMENSIONS.size}sI")
"""A launch's fields but the last, with the dimensions as one piece."""

_CU_LAUNCH_PARAM_BUFFER_POINTER = 1
_CU_LAUNCH_PARAM_BUFFER_SIZE = 2
_MOST_PREPARED = 4096


class _LoadedKernel:
    """A function, and what a launch of it needs, prepared once for each lane: lanes run in threads of their own."""

    __slots__ = ("function", "parameter_bytes", "prepared", "shared_granted")

    def __init__(self, function: int | None, layout: list[tuple[int, int]]) -> None:
        self.function = function
        self.parameter_bytes = max((offset + width for offset, width in layout), default=0)
        self.prepared: dict[tuple[int, bytes, int], _PreparedLaunch] = {}
        """By the lane, the dimensions and the dynamic shared memory."""
        self.shared_granted = _DEFAULT_DYNAMIC_SHARED


class _PreparedLaunch:
    """Everything of a launch but its parameters: the configuration, and where the driver is told to find those."""

    __slots__ = ("_config", "_extra", "_size", "config_address", "extra", "extra_address")

    def __init__(self, driver: Any, stream: Any, kernel: _LoadedKernel, dimensions: bytes, shared: int) -> None:
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
        self._config = config
        self._size = c_size_t(kernel.parameter_bytes)
        marks = (_CU_LAUNCH_PARAM_BUFFER_POINTER, 0, _CU_LAUNCH_PARAM_BUFFER_SIZE, addressof(self._size), 0)
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
        self._services = services
        self._modules: dict[int, tuple[Any, list[int]]] = {}
        self._kernels: dict[int, _LoadedKernel] = {}
        self.calls: dict[int, Callable[[Command, Lane], Any]] = {
            LOAD.number: self._load,
            UNLOAD.number: self._unload,
            LAUNCH.number: self._launch,
        }
        self._launch_kernel = driver.cuLaunchKernelEx.bind()

    def _load(self, command: Command, lane: Lane) -> dict[str, Any]:
        module_id, image_bytes = LOAD.struct.unpack_from(command.payload)
        content = self._read(command.descriptors.pop())
        image, wanted = content[:image_bytes], json.loads(content[image_bytes:])
        if b"vprintf" in image:
            self._services.prints = True
        module = self._load_image(image)
        kernels: dict[int, _LoadedKernel] = {}
        facts: dict[str, Any] = {}
        try:
            for kernel_id, name in wanted:
                function = self._driver.CUfunction()
                self._driver.cuModuleGetFunction(byref(function), module, name.encode())
                layout = self._layout(function)
                kernels[kernel_id] = _LoadedKernel(function.value, layout)
                facts[name] = {**self._attributes(function), "parameters": layout}
        except BaseException:
            self._driver.cuModuleUnload.status(module)
            raise
        self._modules[module_id] = (module, list(kernels))
        self._kernels.update(kernels)
        return facts

    def _read(self, descriptor: int) -> bytes:
        try:
            size = os.fstat(descriptor).st_size
            with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as view:
                return bytes(view)
        finally:
            os.close(descriptor)

    def _load_image(self, image: bytes) -> Any:
        """``cuModuleLoadDataEx``; a refusal carries the log of the driver's own compiler."""
        driver = self._driver
        log = create_string_buffer(_LOG_BYTES)
        options = (c_int * 2)(_CU_JIT_ERROR_LOG_BUFFER, _CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
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
        """Offset and size of each parameter; the driver ends the list by refusing the index after the last."""
        layout: list[tuple[int, int]] = []
        offset, size = c_size_t(), c_size_t()
        while self._driver.cuFuncGetParamInfo.status(function, len(layout), byref(offset), byref(size)) == 0:
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
        kernel_id, dimensions, shared = _LAUNCH_FIELDS.unpack_from(fields)
        kernel = self._kernels[kernel_id]
        key = (lane.index, dimensions, shared)
        prepared = kernel.prepared.get(key)
        if prepared is None:
            self._grant_shared(kernel, shared)
            if len(kernel.prepared) >= _MOST_PREPARED:
                kernel.prepared.clear()
            prepared = _PreparedLaunch(self._driver, lane.stream, kernel, dimensions, shared)
            kernel.prepared[key] = prepared
        return kernel, prepared

    def hot_launch(self, fields: bytes, length: int, lane: Lane) -> Callable[[int], int] | None:
        """A function that launches what `fields` say with the parameter block at an address, and returns the status.

        None if a record of `length` bytes is no launch of that kernel: it is then refused like any other command.
        """
        if _LAUNCH_FIELDS.unpack_from(fields)[0] not in self._kernels:
            return None
        kernel, prepared = self._prepare(fields, lane)
        if length != LAUNCH.struct.size + kernel.parameter_bytes:
            return None
        launch_kernel, extra = self._launch_kernel, prepared.extra
        config, function, where = prepared.config_address, kernel.function, prepared.extra_address

        def launch(address: int) -> int:
            extra[1] = address
            status: int = launch_kernel(config, function, None, where)
            return status

        return launch

    def launch_error(self, status: int) -> Exception:
        """The exception for a launch that was refused."""
        function = self._driver.cuLaunchKernelEx
        return function.library.error(status, function.symbol)

    def forget_lane(self, index: int) -> None:
        """Drop the launch configurations made for a lane."""
        for kernel in self._kernels.values():
            for key in [key for key in kernel.prepared if key[0] == index]:
                del kernel.prepared[key]

    def _grant_shared(self, kernel: _LoadedKernel, shared: int) -> None:
        if shared > kernel.shared_granted:
            self._driver.cuFuncSetAttribute(kernel.function, _CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
            kernel.shared_granted = shared

    def function_for(self, number: int, shared: int) -> int | None:
        """The function of a kernel, which may be given so much dynamic shared memory."""
        kernel = self._kernels[number]
        self._grant_shared(kernel, shared)
        return kernel.function

    def close(self) -> None:
        """Unload every module."""
        for module, _kernels in self._modules.values():
            self._driver.cuModuleUnload(module)
        self._modules.clear()
        self._kernels.clear()
