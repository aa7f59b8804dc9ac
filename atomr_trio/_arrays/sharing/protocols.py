"""What an array says when another library asks for it: `Device.share`, ``__dlpack__``, ``__cuda_array_interface__``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import trio

from ..._generation.requests import CommandRequest
from ..._values.dtypes import dlpack_type, is_of_ml_dtypes
from ..._values.errors import InvalidArgument
from ..._values.shortage import host_limits
from ..._values.util import shown
from ..._wire.protocol import LANE_COMPUTE, Role
from ..._wire.records.interop import SETTLE
from ..arrays import DeviceArray, check_usable
from . import dlpack as _dlpack
from .consumer import LEGACY_STREAM, NO_ORDER, PER_THREAD_STREAM
from .exports import _last_uses

if TYPE_CHECKING:
    from ..._generation.generation import Generation
    from ..memory import DeviceMemory


_PROTOCOL_LENGTH = 2
"""Of what ``__cuda_stream__`` returns: the version of the protocol, 0 so far, and the handle."""


class _Settle(CommandRequest):
    """A request that creates an array's memory, and is answered when all work submitted on it is done."""

    __slots__ = ("_block",)

    def __init__(self, array: DeviceArray) -> None:
        super().__init__(SETTLE, b"", ((array._block, Role.READ),), keep=array, operation="interop.share")
        self._block = array._block

    def _publish(self, generation: Generation, requires: Any = ()) -> None:
        # Reading waits for the last writer; another library may write, so the readers count as well.
        after = tuple(_last_uses(self._block, generation.number))
        generation.publish(
            LANE_COMPUTE, SETTLE, b"", self.operands, self, requires=requires, after=after, operation=self.operation
        )


@trio.lowlevel.enable_ki_protection
async def share(memory: DeviceMemory, array: DeviceArray, stream: object = None) -> None:
    """Make an array ready to be exported. See `Device.share`."""
    device = memory.device
    check_usable(device, array)
    array._storage.check_shareable()
    handle = None if stream is None else _checked_stream(stream)
    await device.memory_actor.mailbox.ask(_Settle(array))
    interop = memory.shared()
    if not interop.opened:
        with host_limits("the GPU cannot be opened in this process", device=device.index, operation="interop.open"):
            await trio.to_thread.run_sync(lambda: interop.consumer)
    while handle is not None and interop.in_order and array.size:
        try:
            _lend(array, handle, _owner_of(stream, handle))
        except BufferError:
            if device.current is not None and device.current.loss is None:
                raise
            await device.memory_actor.mailbox.ask(_Settle(array))  # which waits for the next generation
        else:
            return


def _lend(array: DeviceArray, stream: int, stream_owner: object = None) -> int:
    """Export an array for as long as it or a view of it lasts, in order with a stream. Returns its address."""
    storage = array._storage
    address, use = storage.memory.shared().export(array, stream, owned=False, stream_owner=stream_owner)
    uses = storage.uses = storage.uses or {}
    kept = uses.setdefault(stream, use)
    if kept is not use:  # one is enough for each stream
        kept.keep(stream_owner)
        use.release()
    return address


def give_dlpack(
    array: DeviceArray,
    stream: object,
    max_version: tuple[int, int] | None,
    dl_device: tuple[int, int] | None,
    copy: bool | None,
) -> object:
    """Return a capsule of an array's memory. See `DeviceArray.__dlpack__`."""
    interop = array._storage.memory.shared()
    place = interop.place
    if copy:
        raise BufferError("the array is shared without a copy: copy it with `await array.to_host()` or `copy_from`")
    if dl_device is not None and tuple(dl_device) != place:
        raise BufferError(f"the array is on the device that DLPack calls {place}, not on {tuple(dl_device)}")
    address, release = 0, _nothing
    if array.size:
        handle = _checked_stream(stream)
        address, use = interop.export(array, handle, owned=True, stream_owner=_owner_of(stream, handle))
        release = use.release
    strides = tuple(stride // array.itemsize for stride in array.strides)
    tensor = _dlpack.Tensor(address, place, array.shape, strides, *dlpack_type(array.dtype))
    return _dlpack.give(tensor, release, versioned=max_version is not None and max_version[0] >= 1)


def _nothing() -> None:
    """Do nothing: there is no memory to release."""


def _checked_stream(stream: object) -> int:
    if stream is None:
        return LEGACY_STREAM
    given, handle = stream, stream
    if hasattr(type(stream), "__cuda_stream__"):
        told: object = stream.__cuda_stream__()  # type: ignore[attr-defined]
        handle = told[1] if isinstance(told, tuple) and len(told) == _PROTOCOL_LENGTH else None
        if handle == 0 and not isinstance(handle, bool):
            return LEGACY_STREAM
    if isinstance(handle, bool) or not isinstance(handle, int) or handle == 0 or handle < NO_ORDER:
        raise InvalidArgument(
            f"a stream is -1 for no order, 1 for the default stream, 2 for that of the thread, a handle, or an object "
            f"whose `__cuda_stream__` returns a version and a handle, not {shown(given)}"
        )
    return handle


def _owner_of(stream: object, handle: int) -> object:
    """Return what must live as long as the stream is used: the driver reads the memory of one that was destroyed.

    A library names its stream by a number in DLPack. PyTorch's streams live for ever; that of CuPy is destroyed with
    its object, which is the one in use then.
    """
    if stream is not handle:
        return stream
    if handle <= PER_THREAD_STREAM:
        return None
    cuda: Any = getattr(sys.modules.get("cupy"), "cuda", None)
    current = getattr(cuda, "get_current_stream", lambda: None)()
    return current if getattr(current, "ptr", None) == handle else None


def array_interface(array: DeviceArray) -> dict[str, Any]:
    """Return the dictionary of `DeviceArray.__cuda_array_interface__`."""
    memory = array._storage.memory
    if memory.device.backend == "sim" and (memory.interop is None or not memory.interop.in_order):
        raise AttributeError("memory of the simulator is not CUDA memory: use np.from_dlpack(array)")
    if is_of_ml_dtypes(array.dtype):
        raise AttributeError(f"the interface does not support {array.dtype.name}: use DLPack")
    return {
        "shape": array.shape,
        "typestr": array.dtype.str,
        # A consumer keeps the array, not this dictionary.
        "data": (_lend(array, LEGACY_STREAM) if array.size else 0, False),
        "strides": None if array.contiguous else array.strides,
        "version": 3,
        "stream": LEGACY_STREAM,
    }
