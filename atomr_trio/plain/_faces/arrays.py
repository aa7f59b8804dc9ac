"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._access import ArrayAccess
from .._twins import Twin

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, ClassVar, SupportsIndex

    import numpy as np
    import numpy.typing as npt

    import atomr_trio

    from ..._arrays.arrays import Index
    from .._types import AnyArray
    from .devices import Device


class DeviceArray(ArrayAccess, Twin):
    __slots__ = ()

    _made_by: ClassVar[str] = "dev.empty, dev.zeros, dev.full or `dev.to_device(...)`"

    @property
    def awaited(self) -> atomr_trio.DeviceArray:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.DeviceArray = self._awaited
        return value

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        value: tuple[int, ...] = self._awaited.shape
        return value

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next, for each axis."""
        value: tuple[int, ...] = self._awaited.strides
        return value

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an element."""
        value: np.dtype[Any] = self._awaited.dtype
        return value

    @property
    def device(self) -> Device:
        """The device it belongs to."""
        value: Device = self._seen(self._awaited.device)
        return value

    @property
    def generation(self) -> int:
        """The generation that the array belongs to: the device's present one, as long as its bytes are good."""
        value: int = self._awaited.generation
        return value

    @property
    def state(self) -> str:
        """`"ready"`; `"torn"` after a fault while work was writing it; `"lost"` if its memory is; or `"freed"`."""
        value: str = self._awaited.state
        return value

    @property
    def ndim(self) -> int:
        """Number of axes."""
        value: int = self._awaited.ndim
        return value

    @property
    def size(self) -> int:
        """Number of elements."""
        value: int = self._awaited.size
        return value

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        value: int = self._awaited.itemsize
        return value

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        value: int = self._awaited.nbytes
        return value

    @property
    def address(self) -> int:
        """The device address of the first element; the same in every generation, but for a variable of a module."""
        value: int = self._awaited.address
        return value

    @property
    def contiguous(self) -> bool:
        """True if the elements are contiguous in C order, as a kernel that takes a pointer expects."""
        value: bool = self._awaited.contiguous
        return value

    def __len__(self) -> int:
        result: int = self._read(self._awaited.__len__)
        return result

    def _repr_html_(self) -> str:
        """Return a table of what is known of the array, for a notebook. Its elements are not copied for that."""
        result: str = self._read(self._awaited._repr_html_)
        return result

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's device type and number: kDLCUDA (2) with this process's index; on the simulator kDLCPU (1).

        Raises `LibraryNotFound` or `CommandFailed` if this process cannot reach the GPU.
        """
        result: tuple[int, int] = self._enqueue(self._awaited.__dlpack_device__)
        return result

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The array's memory in this process as a dictionary of the CUDA array interface, version 3. No copy.

        As `__dlpack__` with the default stream: the interface does not name the consumer's stream. It has no deleter
        either, so the memory stays until the array and its views are gone, which a consumer keeps.

        Raises as `__dlpack__` does, and `AttributeError` on the simulator and for dtypes of ml_dtypes.
        """
        value: dict[str, Any] = self._enqueue(lambda: self._awaited.__cuda_array_interface__)
        return value

    def __getitem__(self, index: Index | tuple[Index, ...]) -> DeviceArray:
        """Return a view for ints, slices, ``...`` and ``None``, with numpy's meaning. An int removes its axis.

        Raises `IndexError` where numpy would, and `InvalidArgument` for index arrays and masks, which need a kernel.
        """
        result: DeviceArray = self._read(self._awaited.__getitem__, (index,))
        return result

    def reshape(self, *shape: SupportsIndex | Sequence[SupportsIndex]) -> DeviceArray:
        """Return a view with another shape of the same size, of the same dtype. `shape` is its lengths, one may be -1.

        Raises `InvalidArgument` if the sizes differ, or if the strides of the array allow no view of that shape.
        """
        result: DeviceArray = self._read(self._awaited.reshape, (*shape,))
        return result

    def transpose(self, *axes: SupportsIndex) -> DeviceArray:
        """Return a view of the same dtype with its axes in another order, by default reversed.

        `axes` are the numbers of the axes in their new order; the shape follows them.

        Raises `InvalidArgument` if `axes` does not name each axis of the array once.
        """
        result: DeviceArray = self._read(self._awaited.transpose, (*axes,))
        return result

    def view(self, dtype: npt.DTypeLike) -> DeviceArray:
        """Return the same bytes as elements of another `dtype`, with numpy's meaning (``numpy.ndarray.view``). No copy.

        If an element has another size, the elements along the last axis must be contiguous, and the length of that axis
        changes: the shape (3, 8) of float32 becomes (3, 4) of float64. An array without axes keeps its size.

        Raises `InvalidArgument` where numpy would, for a dtype that arrays cannot have, and for a view whose elements
        would not lie at multiples of their size, which a GPU cannot read; `LibraryNotFound` for a dtype of ml_dtypes
        that is not installed.
        """
        result: DeviceArray = self._read(self._awaited.view, (dtype,))
        return result

    @property
    def T(self) -> DeviceArray:
        """A view of the same dtype with its axes in reverse order: of shape (n, m) for an array of shape (m, n)."""
        value: DeviceArray = self._seen(self._awaited.T)
        return value

    def to_host(self) -> npt.NDArray[Any]:
        """Return a new C-contiguous numpy array with the elements, of the same shape and dtype (``cuMemcpyDtoHAsync``).

        Raises `InvalidArgument` if the array was freed, `StaleArray` if it is torn or lost, `ContextLost` if the
        context is lost meanwhile.
        """
        result: npt.NDArray[Any] = self._wait(self._awaited.to_host)
        return result

    def copy_to(self, out: npt.NDArray[Any]) -> None:
        """Copy the elements into a writable numpy array of the same shape and dtype (``cuMemcpyDtoHAsync``).

        Ordinary memory is not written any more once this has returned or raised. Pinned memory (`Device.pinned_empty`)
        is written by the GPU itself, which continues if the caller is cancelled.

        Raises as `to_host` does, and `InvalidArgument` for an `out` of another shape or dtype, or a read-only one.
        """
        self._wait(self._awaited.copy_to, (out,))

    def copy_from(self, source: npt.ArrayLike | AnyArray) -> None:
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
        self._wait(self._awaited.copy_from, (source,))

    def fill(self, value: complex | np.generic) -> None:
        """Set every element to `value` (``cuMemsetD32Async`` and its kin). Makes a torn array good again.

        Raises `InvalidArgument` for a value that the dtype cannot hold or an array that was freed; `OutOfDeviceMemory`
        if this is the first use of the array's memory and the GPU has no more; `ContextLost` if the context is lost
        meanwhile.
        """
        self._wait(self._awaited.fill, (value,))

    def free(self) -> None:
        """Give the memory back now, for this array and every view of it. Freeing twice does nothing.

        Work that still runs on it goes on undisturbed: the next owner of the memory waits for that work.

        Raises `InvalidArgument` for a variable of a module (`Module.global_`).
        """
        self._enqueue(self._awaited.free)
