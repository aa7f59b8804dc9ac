"""Copies of arrays of other libraries: `Device.to_device` of memory on the same GPU."""

from __future__ import annotations

import contextlib
import ctypes
from ctypes import byref, c_int
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import trio

from atomr_cuda.constants.driver import CU_MEMORYTYPE_DEVICE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL

from ..._values.dtypes import check_dtype, of_dlpack
from ..._values.errors import InvalidArgument, OutOfHostMemory
from ..._values.shortage import host_limits
from .. import layout as _layout
from ..arrays import DeviceArray
from . import dlpack as _dlpack
from .consumer import (
    LEGACY_STREAM,
    NO_ORDER,
    Consumer,
    _refusals,
)
from .dlpack import DeviceType
from .protocols import share

if TYPE_CHECKING:
    from ..memory import DeviceMemory


@attrs.frozen
class _Foreign:
    """Memory of another library on this GPU."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    keep: Any
    """The object to keep alive while the memory is needed; it may have a `close`."""

    def close(self) -> None:
        """Release the memory."""
        if isinstance(self.keep, _dlpack.Taken):
            self.keep.close()


_ON_GPU = (DeviceType.CUDA, DeviceType.CUDA_MANAGED)


def is_foreign(source: object) -> bool:
    """Return whether another library's object says that its elements are on a GPU."""
    if hasattr(source, "__dlpack_device__"):
        return source.__dlpack_device__()[0] in _ON_GPU
    return hasattr(source, "__cuda_array_interface__")


def from_host(source: Any) -> Any:
    """Return a numpy array of host memory that only DLPack describes; else the source. Raises `InvalidArgument`."""
    if hasattr(source, "__array__") or not hasattr(source, "__dlpack__"):
        return source
    try:
        return np.from_dlpack(source)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgument(f"numpy cannot read the memory of this {type(source).__name__}: {error}") from error


@trio.lowlevel.enable_ki_protection
async def copy_foreign(memory: DeviceMemory, source: Any) -> DeviceArray:
    """Return a new array with a copy of another library's elements on this GPU. See `Device.to_device`."""
    device, interop = memory.device, memory.shared()
    if not interop.in_order:
        raise InvalidArgument("memory of a real GPU cannot be copied to the simulator: copy it to the host first")
    consumer = interop.consumer
    with contextlib.ExitStack() as undo:
        with _refusals("interop.copy", device):
            stream = consumer.new_stream()
            undo.callback(consumer.destroy_stream, stream)
            with consumer.bound():
                foreign = _described(source, stream, consumer)
        undo.callback(foreign.close)
        array = memory.empty(foreign.shape, foreign.dtype)
        undo.callback(array.free)
        await share(memory, array)
        address, use = interop.export(array, NO_ORDER, owned=True) if array.size else (0, None)
        await trio.lowlevel.checkpoint_if_cancelled()
        undo.pop_all()

    begun = False

    def let_go() -> None:
        foreign.close()
        consumer.destroy_stream(stream)
        if use is not None:
            use.release()

    def copy() -> None:
        # In a thread that ends with the copy, even if no task waits any more: both memories are held until then.
        nonlocal begun
        begun = True
        try:
            with _refusals("interop.copy", device), consumer.bound():
                for box in _layout.boxes(foreign.shape, array.itemsize, array.strides, foreign.strides):
                    _copy_box(consumer.driver, stream, address, foreign.address, box)
                consumer.driver.cuStreamSynchronize(stream)
        finally:
            let_go()

    try:
        # With its own limiter, it fails to start only on a system that has no thread left.
        with host_limits("the copy cannot be made", device=device.index, operation="interop.copy"):
            await trio.to_thread.run_sync(copy, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1))
    except BaseException as error:
        if isinstance(error, OutOfHostMemory) and not begun:
            let_go()
        array.free()
        raise
    return array


def _copy_box(driver: Any, stream: Any, target: int, origin: int, box: _layout.Box) -> None:
    shape = driver.CUDA_MEMCPY2D()
    shape.dstMemoryType = shape.srcMemoryType = CU_MEMORYTYPE_DEVICE
    shape.dstPitch, shape.srcPitch = box.pitch, box.other_pitch
    shape.WidthInBytes, shape.Height = box.width, box.height
    for plane in range(box.depth):
        to = target + box.offset + plane * box.plane
        origin_of_plane = origin + box.other_offset + plane * box.other_plane
        if box.height == 1:
            driver.cuMemcpyDtoDAsync(to, origin_of_plane, box.width, stream)
        else:
            shape.dstDevice, shape.srcDevice = to, origin_of_plane
            driver.cuMemcpy2DAsync(byref(shape), stream)


def _described(source: Any, stream: int, consumer: Consumer) -> _Foreign:
    """Return the memory of an object, ready for the next work of `stream`. Raises `InvalidArgument`."""
    try:
        if hasattr(source, "__dlpack_device__"):
            return _of_dlpack(source, stream, consumer)
        return _of_interface(source, stream, consumer)
    except (ValueError, KeyError, TypeError, BufferError) as error:
        raise InvalidArgument(f"the memory of this {type(source).__name__} cannot be read: {error}") from error


def _of_dlpack(source: Any, stream: int, consumer: Consumer) -> _Foreign:
    taken = _dlpack.take(source, stream)
    try:
        tensor = taken.tensor
        if tensor.device[1] != consumer.ordinal:
            raise ValueError(f"it is on GPU {tensor.device[1]} and the device is GPU {consumer.ordinal}")
        dtype = of_dlpack(tensor.code, tensor.bits)
    except BaseException:
        taken.close()
        raise
    strides = tuple(stride * dtype.itemsize for stride in tensor.strides)
    return _Foreign(tensor.address, tensor.shape, strides, dtype, taken)


def _of_interface(source: Any, stream: int, consumer: Consumer) -> _Foreign:
    interface = source.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise ValueError("it has a mask")
    dtype = check_dtype(interface["typestr"])
    shape = tuple(interface["shape"])
    address = interface["data"][0]
    if address:
        ordinal = c_int()
        attribute = CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        consumer.driver.cuPointerGetAttribute(ctypes.addressof(ordinal), attribute, address)
        if ordinal.value != consumer.ordinal:
            raise ValueError(f"it is on GPU {ordinal.value} and the device is GPU {consumer.ordinal}")
    _follow_stream(consumer, interface.get("stream") or LEGACY_STREAM, stream)
    strides = interface.get("strides") or _layout.contiguous_strides(shape, dtype.itemsize)
    return _Foreign(address, shape, tuple(strides), dtype, source)


def _follow_stream(consumer: Consumer, theirs: int, ours: int) -> None:
    """Make `ours` wait for the work of `theirs` so far."""
    driver = consumer.driver
    event = driver.CUevent()
    with consumer.bound(consumer.context_of(theirs)):
        driver.cuEventCreate(byref(event), driver.CU_EVENT_DISABLE_TIMING)
        driver.cuEventRecord(event, theirs)
    driver.cuStreamWaitEvent(ours, event, 0)
    driver.cuEventDestroy(event)
