"""Arrays on the device: a block of memory, a shape, strides and a dtype.

An array is an object of the user's process; its bytes are on the GPU, at an address that stays the same in every
generation. Everything that moves bytes is a request to the memory actor (``_transfers/copies.py``); everything else
here is synchronous and sends nothing.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, SupportsIndex, final

import numpy as np
import numpy.typing as npt
import trio

from .._memory.arena import Block
from .._values.dtypes import check_dtype, spelling
from .._values.errors import InvalidArgument
from .._values.habits import ARRAY, refuse_habits, refuse_operators
from .._values.html import table
from .._values.util import NoPublicConstructor, shown
from . import layout as _layout
from .ownership import check_own, foreign

if TYPE_CHECKING:
    from .. import Device
    from .._generation.core import DeviceCore
    from .memory import DeviceMemory
    from .sharing.exports import Use

Index = SupportsIndex | slice | EllipsisType | None


def check_shape(shape: SupportsIndex | Sequence[SupportsIndex], itemsize: int) -> tuple[int, ...]:
    """Return a shape as a tuple of non-negative ints; raises `InvalidArgument`. An element has `itemsize` bytes."""
    try:
        if isinstance(shape, Sequence):
            checked = tuple(operator.index(length) for length in shape)
        else:
            checked = (operator.index(shape),)
    except TypeError:
        raise InvalidArgument(f"a shape is an int or a sequence of ints, not {shown(shape)}") from None
    if any(length < 0 for length in checked):
        raise InvalidArgument(f"the lengths of a shape are at least 0, not {shown(checked)}")
    # A shape that is only too large for the device is refused by the arena. numpy refuses it even without elements.
    largest = max(checked, default=0)
    if 0 in checked:
        largest = itemsize * math.prod(length for length in checked if length)
    if len(checked) > _layout.MAX_AXES or largest > sys.maxsize:
        raise InvalidArgument(f"numpy does not support this shape of {len(checked)} axes: {shown(checked)}")
    return checked


def contiguous(
    shape: SupportsIndex | Sequence[SupportsIndex], itemsize: int
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return the shape, strides and bytes of a C-contiguous array; raises `InvalidArgument` as `check_shape` does."""
    # Arrays are made often, so an exact int or tuple of ints takes this fast path.
    if type(shape) is int and 0 <= shape <= sys.maxsize:
        return (shape,), (itemsize,), shape * itemsize
    if type(shape) is tuple and len(shape) <= _layout.MAX_AXES:
        strides = []
        step = itemsize
        for length in reversed(shape):
            if type(length) is not int or length <= 0:
                break
            strides.append(step)
            step *= length
        else:
            if step <= sys.maxsize:
                return shape, tuple(reversed(strides)), step
    checked = check_shape(shape, itemsize)
    return checked, _layout.contiguous_strides(checked, itemsize), math.prod(checked) * itemsize


def as_host(source: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return `source` as a numpy array; raises `InvalidArgument` if numpy cannot convert it."""
    try:
        return np.asarray(source)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"numpy cannot convert this {type(source).__name__} to an array: {error}") from None


def _check_index(part: object) -> Index:
    """Return one part of an index, with ints as plain ints. numpy must never be given an array here."""
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    # numpy arrays have an `__index__` too, and would be read as a list of elements to pick.
    if not isinstance(part, bool | np.bool_ | np.ndarray) and hasattr(part, "__index__"):
        return operator.index(part)
    raise InvalidArgument(f"an index is made of ints, slices, ... and None, not {shown(part)}")


_ALIGNMENT_MASK: Final = 511
"""No call depends on more of an address than this, because new arrays are aligned to 512 bytes."""
_MOST_FORMS: Final = 4096
_FORMS: Final[dict[Hashable, object]] = {}
"""What stands for a form, by what it is: an object that is equal only to itself is looked up faster."""


_Shape = tuple[int, ...]
_RESHAPED: Final[dict[tuple[_Shape, _Shape, int], tuple[_Shape, _Shape]]] = {}
"""The shape and the strides of a view that `reshape` returns, by the shape of a C-contiguous array, the wanted one of
ints, and the bytes of an element."""


def _find_reshaped(shape: _Shape, wanted: Sequence[object], itemsize: int) -> tuple[_Shape, _Shape] | None:
    """Return the shape and the strides of a view, and remember them; None if numpy has to decide."""
    lengths = _layout.reshaped(math.prod(shape), wanted)
    if lengths is None:
        return None
    found = lengths, _layout.contiguous_strides(lengths, itemsize)
    if type(wanted) is tuple:
        if len(_RESHAPED) >= _MOST_FORMS:
            _RESHAPED.clear()
        _RESHAPED[shape, wanted, itemsize] = found
    return found


class Storage:
    """Holds a block for an array and its views, and gives it back with the last of them."""

    # `new_array` sets the same attributes as `__init__`.

    __slots__ = ("block", "device", "memory", "uses")

    def __init__(self, memory: DeviceMemory, block: Block) -> None:
        self.memory: DeviceMemory = memory
        self.device: DeviceCore = memory.device
        self.block: Block = block
        self.uses: dict[int, Use] | None = None
        """The exports that last as long as this does, by the consumer's stream; the block goes back when they have
        ended too."""

    def __del__(self) -> None:
        # Any thread, any time: only note it. The arena takes it back with its next call.
        if self.uses is not None:
            for use in self.uses.values():
                use.release()
        elif not self.block.freed:
            self.memory.orphans.append(self.block)

    def free(self) -> None:
        """Give the block back now."""
        self.memory.free(self.block)

    def check_shareable(self) -> None:
        """Raise `InvalidArgument` if the memory cannot be given to another library."""

    async def placed(self) -> None:
        """Wait until the address of the memory is known."""


class ArrayTransfers(Protocol):
    """Moves the bytes of arrays. The arguments are checked; each raises as the method of `DeviceArray` of its name."""

    def copy_in(self, array: DeviceArray, host: npt.NDArray[Any]) -> Awaitable[None]:
        """Overwrite an array with host memory."""

    def copy_out(self, array: DeviceArray, host: npt.NDArray[Any]) -> Awaitable[None]:
        """Copy an array to host memory."""

    def copy_on_device(self, source: DeviceArray, target: DeviceArray) -> Awaitable[None]:
        """Overwrite an array with another."""

    def fill(self, array: DeviceArray, value: complex | np.generic) -> Awaitable[None]:
        """Set every element."""


def _not_compared(operator: str) -> TypeError:
    return TypeError(
        f"arrays on the device are not compared by {operator}: copy them with `await array.to_host()`, or write "
        "`a is b` to ask whether they are the same object"
    )


def _not_a_number(kind: str) -> TypeError:
    return TypeError(f"the array is on the device: use `{kind}(await array.to_host())` for an array of one element")


@final
class DeviceArray(metaclass=NoPublicConstructor):
    """An array in the memory of a device, made by `Device.empty`, `zeros`, `full` or `to_device`.

    It has a shape and a dtype and is row-major, like a numpy array. It has no arithmetic: that is what kernels are
    for. Slicing and `reshape` give views that share the memory. It survives the loss of a generation, except where work
    that was writing it was cut off (see `state`). `with array:` or `free()` give the memory back at a known place; if
    neither is used, it goes back when the last array that shares it is collected.
    """

    __slots__ = ("__weakref__", "_form", "_offset", "_plain", "_storage", "dtype", "shape", "strides")

    shape: tuple[int, ...]
    """Lengths of the axes."""
    strides: tuple[int, ...]
    """Bytes from one element to the next, for each axis."""
    dtype: np.dtype[Any]
    """The type of an element."""

    _made_by = "dev.empty, dev.zeros, dev.full or `await dev.to_device(...)`"

    def __init__(
        self,
        storage: Storage,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: np.dtype[Any],
        contiguous: bool = False,
    ) -> None:
        # `view_of`, `reshape` and `new_array` set the same attributes.
        self._storage = storage
        self._offset = offset
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self._plain = dtype if contiguous or _layout.is_contiguous(shape, strides, dtype.itemsize) else None
        """Its dtype if it is C-contiguous; what a launch looks at."""
        self._form: object | None = None
        """What `_find_form` returns, once it was asked."""

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def device(self) -> Device:
        """The device it belongs to."""
        device: Device = self._storage.device.face
        return device

    @property
    def generation(self) -> int:
        """The generation that the array belongs to: the device's present one, as long as its bytes are good."""
        return self._storage.device.generation

    @property
    def state(self) -> str:
        """`"ready"`; `"torn"` after a fault while work was writing it; `"lost"` if its memory is; or `"freed"`."""
        return self._storage.block.state

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    @property
    def address(self) -> int:
        """The device address of the first element; the same in every generation, but for a variable of a module."""
        return self._storage.block.address + self._offset

    @property
    def contiguous(self) -> bool:
        """True if the elements are contiguous in C order, as a kernel that takes a pointer expects."""
        return self._plain is not None

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without axes has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        device = self._storage.device
        return (
            f"<DeviceArray {self.shape} {self.dtype.name}, {self.state}, "
            f"on device {device.index}, generation {self.generation}>"
        )

    def _repr_html_(self) -> str:
        """Return a table of what is known of the array, for a notebook. Its elements are not copied for that."""
        device = self._storage.device
        rows = (
            *(("shape", self.shape), ("dtype", self.dtype.name), ("bytes", f"{self.nbytes:,}")),
            ("strides", None if self.contiguous else self.strides),
            *(("state", self.state), ("device", device.index), ("generation", self.generation)),
        )
        return table("DeviceArray", rows)

    def __array__(self, *_args: object, **_kwargs: object) -> npt.NDArray[Any]:
        # Without this numpy would make an array that contains this object.
        raise TypeError("the array is on the device: copy it with `await array.to_host()`")

    # --- what it refuses ----------------------------------------------------------------------------------------------

    # Without these Python would compare identities, and call every array true.

    def __eq__(self, other: object) -> NoReturn:
        raise _not_compared("==")

    def __ne__(self, other: object) -> NoReturn:
        raise _not_compared("!=")

    def __lt__(self, other: object) -> NoReturn:
        raise _not_compared("<")

    def __le__(self, other: object) -> NoReturn:
        raise _not_compared("<=")

    def __gt__(self, other: object) -> NoReturn:
        raise _not_compared(">")

    def __ge__(self, other: object) -> NoReturn:
        raise _not_compared(">=")

    def __hash__(self) -> int:
        """Return the hash of the object's identity: a dictionary key is the object, not its elements."""
        return object.__hash__(self)

    def __contains__(self, value: object) -> NoReturn:
        raise TypeError("the elements are on the device: search a copy, `value in await array.to_host()`")

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "an array on the device is neither true nor false: use `array is not None`, `array.size`, or a copy, "
            "`(await array.to_host()).any()`"
        )

    def __int__(self) -> NoReturn:
        raise _not_a_number("int")

    def __float__(self) -> NoReturn:
        raise _not_a_number("float")

    def __complex__(self) -> NoReturn:
        raise _not_a_number("complex")

    # --- in the hands of other libraries ------------------------------------------------------------------------------

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Return a DLPack capsule of the array's memory in this process, for ``from_dlpack`` elsewhere. No copy.

        `stream` is the consumer's stream: the standard's number (None and 1: the default stream, 2: that of the thread,
        -1: no order is kept), its handle, or an object that has ``__cuda_stream__``. From now on the array's commands
        and that stream's work run in order. The memory stays as it is until the consumer's deleter has run, even if the
        array is freed or the device closed. `max_version` is the newest version that the consumer knows. `dl_device`
        and `copy` can only ask for the array's own device and no copy. The chunk's descriptor is imported by
        ``cuMemImportFromShareableHandle``.

        Raises `BufferError` if the array has not been written yet, during the recovery from a fault, and on the
        simulator while commands on it are unfinished; `Device.share` waits for all three. It is also raised for the
        requests that the standard names. Raises `StaleArray` if the array is torn or lost; `InvalidArgument` if it
        was freed or `stream` is not a stream; `CommandFailed` if the driver refuses it in this process.
        """
        from .sharing.protocols import give_dlpack

        return give_dlpack(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's device type and number: kDLCUDA (2) with this process's index; on the simulator kDLCPU (1).

        Raises `LibraryNotFound` or `CommandFailed` if this process cannot reach the GPU.
        """
        return self._storage.memory.shared().place

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The array's memory in this process as a dictionary of the CUDA array interface, version 3. No copy.

        As `__dlpack__` with the default stream: the interface does not name the consumer's stream. It has no deleter
        either, so the memory stays until the array and its views are gone, which a consumer keeps.

        Raises as `__dlpack__` does, and `AttributeError` on the simulator and for dtypes of ml_dtypes.
        """
        from .sharing.protocols import array_interface

        return array_interface(self)

    # --- views --------------------------------------------------------------------------------------------------------

    def __getitem__(self, index: Index | tuple[Index, ...]) -> DeviceArray:
        """Return a view for ints, slices, ``...`` and ``None``, with numpy's meaning. An int removes its axis.

        Raises `IndexError` where numpy would, and `InvalidArgument` for index arrays and masks, which need a kernel.
        """
        shape, strides, dtype = self.shape, self.strides, self.dtype
        lengths: tuple[int, ...]
        steps: tuple[int, ...]
        if type(index) is slice and shape:  # the most common index
            start, stop, step = index.indices(shape[0])
            if step == 1:
                length = stop - start
                if length <= 0:
                    start = length = 0  # as numpy does
                lengths = (length,) if len(shape) == 1 else (length, *shape[1:])
                plain = _plain_of(lengths, strides, dtype) if self._plain is None else dtype
                return view_of(self._storage, self._offset + start * strides[0], lengths, strides, dtype, plain)
            # As `indexed` does for all kinds of parts, in more than twice the time.
            length = (stop - start + step + (-1 if step > 0 else 1)) // step
            if length <= 0:
                start, length, step = 0, 0, 1
            first = strides[0]
            stride = step * first
            if len(shape) == 1:
                lengths, steps = (length,), (stride,)
                plain = dtype if length <= 1 or stride == dtype.itemsize else None
            else:
                lengths, steps = (length, *shape[1:]), (stride, *strides[1:])
                plain = _plain_of(lengths, steps, dtype)
            return view_of(self._storage, self._offset + start * first, lengths, steps, dtype, plain)
        elif type(index) is int and shape and -shape[0] <= index < shape[0]:
            offset = self._offset + (index + shape[0] if index < 0 else index) * strides[0]
            lengths, steps = shape[1:], strides[1:]
            plain = _plain_of(lengths, steps, dtype) if self._plain is None else dtype
            return view_of(self._storage, offset, lengths, steps, dtype, plain)
        found = _layout.indexed(shape, strides, index if type(index) is tuple else (index,))
        if found is not None:
            offset, lengths, steps = found
            plain = _plain_of(lengths, steps, dtype)
            return view_of(self._storage, self._offset + offset, lengths, steps, dtype, plain)
        parts = tuple(_check_index(part) for part in (index if isinstance(index, tuple) else (index,)))
        shadow = _layout.shadow(self.shape, self.strides, self.itemsize)
        if not any(part is Ellipsis for part in parts):
            parts = (*parts, Ellipsis)  # or numpy would read an element
        view = shadow[parts]
        offset = self._offset + _layout.offset_of(view, shadow)
        return DeviceArray._create(self._storage, offset, view.shape, view.strides, self.dtype)

    def reshape(self, *shape: SupportsIndex | Sequence[SupportsIndex]) -> DeviceArray:
        """Return a view with another shape of the same size, of the same dtype. `shape` is its lengths, one may be -1.

        Raises `InvalidArgument` if the sizes differ, or if the strides of the array allow no view of that shape.
        """
        wanted: Any = shape
        if len(shape) == 1 and (type(shape[0]) is tuple or isinstance(shape[0], Sequence)):
            wanted = shape[0]
        plain = self._plain
        if plain is not None:
            found = None
            if type(wanted) is tuple:
                for length in wanted:
                    if type(length) is not int:  # 1.0 and True are equal to 1
                        break
                else:
                    found = _RESHAPED.get((self.shape, wanted, plain.itemsize))
            found = found or _find_reshaped(self.shape, wanted, plain.itemsize)
            if found is not None:
                # As `view_of` does, whose call takes a tenth of the time.
                array: DeviceArray = _bare(DeviceArray)
                array._storage = self._storage
                array._offset = self._offset
                array.shape, array.strides = found
                array.dtype = array._plain = plain
                array._form = None
                return array
        shadow = _layout.shadow(self.shape, self.strides, self.itemsize)
        try:
            view = np.reshape(shadow, tuple(operator.index(length) for length in wanted), copy=False)
        except (ValueError, TypeError) as error:
            raise InvalidArgument(
                f"an array of shape {self.shape} cannot be seen as {shown(wanted)}: {error}"
            ) from None
        return DeviceArray._create(self._storage, self._offset, view.shape, view.strides, self.dtype)

    def transpose(self, *axes: SupportsIndex) -> DeviceArray:
        """Return a view of the same dtype with its axes in another order, by default reversed.

        `axes` are the numbers of the axes in their new order; the shape follows them.

        Raises `InvalidArgument` if `axes` does not name each axis of the array once.
        """
        if not axes:
            lengths, strides = self.shape[::-1], self.strides[::-1]
            plain = _plain_of(lengths, strides, self.dtype)
            return view_of(self._storage, self._offset, lengths, strides, self.dtype, plain)
        shadow = _layout.shadow(self.shape, self.strides, self.itemsize)
        try:
            view = np.transpose(shadow, tuple(operator.index(axis) for axis in axes) or None)
        except (ValueError, TypeError) as error:
            raise InvalidArgument(
                f"an array of shape {self.shape} has no axes in the order {shown(axes)}: {error}"
            ) from None
        return DeviceArray._create(self._storage, self._offset, view.shape, view.strides, self.dtype)

    def view(self, dtype: npt.DTypeLike) -> DeviceArray:
        """Return the same bytes as elements of another `dtype`, with numpy's meaning (``numpy.ndarray.view``). No copy.

        If an element has another size, the elements along the last axis must be contiguous, and the length of that axis
        changes: the shape (3, 8) of float32 becomes (3, 4) of float64. An array without axes keeps its size.

        Raises `InvalidArgument` where numpy would, for a dtype that arrays cannot have, and for a view whose elements
        would not lie at multiples of their size, which a GPU cannot read; `LibraryNotFound` for a dtype of ml_dtypes
        that is not installed.
        """
        checked = check_dtype(dtype)
        shadow = _layout.shadow(self.shape, self.strides, self.itemsize)
        try:
            view = shadow.view(f"V{checked.itemsize}")
        except ValueError as error:
            raise InvalidArgument(
                f"an array of shape {self.shape} and dtype {self.dtype.name} cannot be seen as {checked.name}: {error}"
            ) from None
        steps = (stride for stride, length in zip(view.strides, view.shape, strict=True) if length > 1)
        if any(each % checked.itemsize for each in (self._offset, *steps)) and view.size:
            raise InvalidArgument(
                f"elements of {checked.name} lie at multiples of {checked.itemsize} bytes; the array begins at byte "
                f"{self._offset} of its memory and has strides {self.strides}",
                advice="copy the elements into an array of their own: `await y.copy_from(x)`.",
            )
        return DeviceArray._create(self._storage, self._offset, view.shape, view.strides, checked)

    @property
    def T(self) -> DeviceArray:
        """A view of the same dtype with its axes in reverse order: of shape (n, m) for an array of shape (m, n)."""
        return self.transpose()

    # --- moving bytes -------------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def to_host(self) -> npt.NDArray[Any]:
        """Return a new C-contiguous numpy array with the elements, of the same shape and dtype (``cuMemcpyDtoHAsync``).

        Raises `InvalidArgument` if the array was freed, `StaleArray` if it is torn or lost, `ContextLost` if the
        context is lost meanwhile.
        """
        storage = self._storage
        storage.device.home.check_task()
        host = np.empty(self.shape, self.dtype)
        if type(storage) is not Storage:
            await storage.placed()
        await storage.memory.transfers.copy_out(self, host)
        return host

    @trio.lowlevel.enable_ki_protection
    async def copy_to(self, out: npt.NDArray[Any]) -> None:
        """Copy the elements into a writable numpy array of the same shape and dtype (``cuMemcpyDtoHAsync``).

        Ordinary memory is not written any more once this has returned or raised. Pinned memory (`Device.pinned_empty`)
        is written by the GPU itself, which continues if the caller is cancelled.

        Raises as `to_host` does, and `InvalidArgument` for an `out` of another shape or dtype, or a read-only one.
        """
        storage = self._storage
        storage.device.home.check_task()
        if not _may_overwrite(self, out):
            check_host(self, out, writable=True)
            out = np.asarray(out)  # np.matrix has its own rules for shapes
        if type(storage) is not Storage:
            await storage.placed()
        await storage.memory.transfers.copy_out(self, out)

    @trio.lowlevel.enable_ki_protection
    async def copy_from(self, source: npt.ArrayLike | DeviceArray) -> None:
        """Overwrite the elements with those of `source`: same shape, same dtype, on the host or on a device.

        A device array may be of this device, or of another one of the same `open_devices`. This device copies then,
        over what connects the two, and after the other's work on the array; through the host if it cannot access the
        other's memory.

        Overwriting a whole array makes a torn one good again. A copy of more than 4 MiB from the host, or of elements
        that do not lie in regular rows, may be made in pieces: if such a copy is cancelled or fails half way, the array
        is torn. From pinned memory (`Device.pinned_empty`) it is one command up to 256 MiB, and a caller that is
        cancelled leaves it running. The commands are ``cuMemcpyHtoDAsync`` and ``cuMemcpyDtoDAsync``,
        ``cuMemcpy2DAsync`` for rows and ``cuMemcpy3DAsync`` for boxes.

        Raises `InvalidArgument` if shapes or dtypes differ, the two share memory, one was freed, or the devices are not
        of one group; `StaleArray` if the source is torn or lost; `OutOfDeviceMemory` if this is the first use of the
        array's memory and the GPU has no more; `ContextLost` if the context is lost meanwhile.
        """
        storage = self._storage
        storage.device.home.check_task()
        if type(source) is np.ndarray:
            host = source
        else:
            if isinstance(source, DeviceArray):
                if source._storage.device is not storage.device and storage.device.group is None:
                    raise foreign(storage.device, source)
                check_same_form(self, source)
                await source._storage.placed()
                await storage.placed()
                await storage.memory.transfers.copy_on_device(source, self)
                return
            await trio.lowlevel.checkpoint_if_cancelled()  # converting the source may run the caller's code
            host = as_host(source)
        if host.shape != self.shape or host.dtype is not self.dtype:
            check_host(self, host)
        if type(storage) is not Storage:
            await storage.placed()
        await storage.memory.transfers.copy_in(self, host)

    async def fill(self, value: complex | np.generic) -> None:
        """Set every element to `value` (``cuMemsetD32Async`` and its kin). Makes a torn array good again.

        Raises `InvalidArgument` for a value that the dtype cannot hold or an array that was freed; `OutOfDeviceMemory`
        if this is the first use of the array's memory and the GPU has no more; `ContextLost` if the context is lost
        meanwhile.
        """
        self._storage.device.home.check_task()
        await self._storage.placed()
        await self._storage.memory.transfers.fill(self, value)

    # --- the end ------------------------------------------------------------------------------------------------------

    def free(self) -> None:
        """Give the memory back now, for this array and every view of it. Freeing twice does nothing.

        Work that still runs on it goes on undisturbed: the next owner of the memory waits for that work.

        Raises `InvalidArgument` for a variable of a module (`Module.global_`).
        """
        storage = self._storage
        if type(storage) is Storage:
            storage.memory.free(storage.block)
        else:
            storage.free()

    def __enter__(self) -> DeviceArray:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.free()

    # --- for the actors -----------------------------------------------------------------------------------------------

    @property
    def _owner(self) -> DeviceCore:
        return self._storage.device

    @property
    def _block(self) -> Block:
        return self._storage.block

    def _find_form(self) -> object | None:
        """Return what stands for all of the array but its place; None for a variable of a module, which moves.

        Arrays of one form have the same shape, strides and dtype, are aligned alike, and cover their blocks alike.
        """
        storage = self._storage
        if type(storage) is not Storage:
            return None
        block = storage.block
        lies = block.address + self._offset & _ALIGNMENT_MASK
        how = (self.shape, self.strides, self.dtype, lies, self._covers_block)
        if len(_FORMS) >= _MOST_FORMS:
            _FORMS.clear()  # equal arrays that come later have another form, which costs a plan
        form = self._form = _FORMS.setdefault(how, object())
        return form

    @property
    def _covers_block(self) -> bool:
        """True if overwriting the array overwrites every byte that was requested of its block."""
        return self.nbytes == self._storage.block.nbytes


_bare: Final[Callable[[type[Any]], Any]] = object.__new__
"""Makes an object without attributes. Arrays are made often, and a call of `__init__` takes half as long again."""


def view_of(
    storage: Storage,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: np.dtype[Any],
    plain: np.dtype[Any] | None,
) -> DeviceArray:
    """Return an array of memory that is held for it; `plain` is its dtype if it is C-contiguous."""
    array: DeviceArray = _bare(DeviceArray)
    array._storage = storage
    array._offset = offset
    array.shape = shape
    array.strides = strides
    array.dtype = dtype
    array._plain = plain
    array._form = None
    return array


Layout = tuple[tuple[int, ...], tuple[int, ...], int, "np.dtype[Any]"]
"""The shape, strides, bytes and dtype of a C-contiguous array. A named tuple would be slower to take apart."""


def layout_of(array: DeviceArray) -> Layout:
    """Return the layout of a C-contiguous array."""
    return array.shape, array.strides, array.nbytes, array.dtype


def new_array(memory: DeviceMemory, block: Block, layout: Layout, form: object | None) -> DeviceArray:
    """Return an array of a new block, which goes back with the last array that shares it.

    `form` is what `_find_form` would return, if that is known.
    """
    storage: Storage = _bare(Storage)
    storage.memory = memory
    storage.device = memory.device
    storage.block = block
    storage.uses = None
    array: DeviceArray = _bare(DeviceArray)
    array._storage = storage
    array._offset = 0
    array.shape, array.strides, _, dtype = layout
    array.dtype = array._plain = dtype
    array._form = form
    return array


def _plain_of(shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    return dtype if _layout.is_contiguous(shape, strides, dtype.itemsize) else None


def check_host(array: DeviceArray, host: npt.NDArray[Any], *, writable: bool = False) -> None:
    """Raise `InvalidArgument` unless `host` is a numpy array of the same shape and dtype, and writable if needed."""
    if not isinstance(host, np.ndarray):
        raise InvalidArgument(f"expected a numpy array, not {type(host).__name__}")
    if host.shape != array.shape:
        raise InvalidArgument(f"shapes differ: the numpy array has {host.shape}, the device array {array.shape}")
    if host.dtype != array.dtype:
        raise InvalidArgument(
            f"dtypes differ: the numpy array has {host.dtype}, the device array {array.dtype}; "
            f"convert with .astype({spelling(array.dtype)})"
        )
    if writable and not host.flags.writeable:
        raise InvalidArgument("the numpy array to copy to is read-only: give a writable one")


def _may_overwrite(array: DeviceArray, host: npt.NDArray[Any]) -> bool:
    """Return whether `check_host` would find nothing, for the most usual arrays."""
    return type(host) is np.ndarray and host.shape == array.shape and host.dtype is array.dtype and host.flags.writeable


def check_usable(device: DeviceCore, array: DeviceArray) -> None:
    """Raise `InvalidArgument` unless this is an array of the device that was not freed."""
    device.check_open()
    if not isinstance(array, DeviceArray):
        raise InvalidArgument(f"expected a device array, not {type(array).__name__}", device=device.index)
    storage = array._storage
    if storage.device is not device:
        raise foreign(device, array)
    if storage.block.freed:
        raise InvalidArgument(f"the array was freed: {array!r}", device=device.index, generation=device.generation)


refuse_habits(DeviceArray, ARRAY)
refuse_operators(DeviceArray, numpy_copies=False)


def check_like(array: DeviceArray, source: DeviceArray) -> None:
    """Raise `InvalidArgument` for arrays of different devices, shapes or dtypes."""
    check_own(array._storage.device, source)
    check_same_form(array, source)


def check_same_form(array: DeviceArray, source: DeviceArray) -> None:
    """Raise `InvalidArgument` for arrays of different shapes or dtypes."""
    if source.shape != array.shape:
        raise InvalidArgument(f"shapes differ: the source has {source.shape}, the target {array.shape}")
    if source.dtype != array.dtype:
        raise InvalidArgument(f"dtypes differ: the source has {source.dtype}, the target {array.dtype}")


async def placed(device: DeviceCore, arguments: Iterable[object]) -> None:
    """Wait until the addresses of a call's arguments are known, if variables of modules are among them.

    Raises `InvalidArgument` for arrays of another device, without waiting for them.
    """
    for array in arrays_among(arguments):
        check_own(device, array)
        await array._storage.placed()


def arrays_among(arguments: Iterable[object]) -> Iterator[DeviceArray]:
    """Yield the arrays among the arguments of a call, marked ones too."""
    for argument in arguments:
        array = getattr(argument, "array", argument)
        if isinstance(array, DeviceArray):
            yield array
