"""DLPack 1.x, the protocol by which array libraries of one process share memory, as ctypes structures and capsules.

A producer fills a structure and wraps its address in a capsule. The consumer renames the capsule, and calls the
structure's deleter, in any thread, when it does not need the memory any more. Structures and numbers are those of
``dlpack.h`` 1.1. This file knows neither devices nor arrays of this library.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import enum
from collections.abc import Callable, Sequence
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any, Final, Protocol

import attrs

VERSION: Final = (1, 1)


class DeviceType(enum.IntEnum):
    """``DLDeviceType``: the kind of device that the memory belongs to."""

    CPU = 1
    CUDA = 2
    CUDA_HOST = 3
    CUDA_MANAGED = 13


class DLDevice(Structure):
    """``DLDevice``."""

    _fields_ = (("device_type", c_int32), ("device_id", c_int32))


class DLDataType(Structure):
    """``DLDataType``; the codes are in ``_values/dtypes.py``."""

    _fields_ = (("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16))


class DLTensor(Structure):
    """``DLTensor``. Strides count elements; no strides mean C order."""

    _fields_ = (
        ("data", c_void_p),
        ("device", DLDevice),
        ("ndim", c_int32),
        ("dtype", DLDataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class DLManagedTensor(Structure):
    """``DLManagedTensor``, the structure before version 1."""

    _fields_ = (("dl_tensor", DLTensor), ("manager_ctx", c_void_p), ("deleter", c_void_p))


class DLPackVersion(Structure):
    """``DLPackVersion``."""

    _fields_ = (("major", c_uint32), ("minor", c_uint32))


class DLManagedTensorVersioned(Structure):
    """``DLManagedTensorVersioned``. Its beginning, up to the flags, is the same in every version to come."""

    _fields_ = (
        ("version", DLPackVersion),
        ("manager_ctx", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("dl_tensor", DLTensor),
    )


@attrs.frozen
class Tensor:
    """The contents of a structure as Python values."""

    address: int
    """The address of the first element."""
    device: tuple[int, int]
    """`DeviceType` and number."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    code: int
    bits: int


class SupportsDLPack(Protocol):
    """An object that can hand its memory to another library."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        """Return a capsule."""

    def __dlpack_device__(self) -> tuple[Any, int]:
        """Return the device type and number of the memory."""


class SupportsCudaArray(Protocol):
    """An object that describes its memory on a GPU."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """A dictionary of the interface."""


# --- capsules ---------------------------------------------------------------------------------------------------------

_PLAIN = b"dltensor"
_VERSIONED = b"dltensor_versioned"
_KINDS: tuple[tuple[bytes, bytes, type[Structure]], ...] = (
    (_VERSIONED, b"used_dltensor_versioned", DLManagedTensorVersioned),
    (_PLAIN, b"used_dltensor", DLManagedTensor),
)
"""The name of a fresh capsule, that of a consumed one, and the structure that they point to."""


def _python(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of Python's C API, declared for this file alone."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_capsule_new = _python("PyCapsule_New", ctypes.py_object, c_void_p, c_char_p, c_void_p)
_capsule_is_valid = _python("PyCapsule_IsValid", c_int, ctypes.py_object, c_char_p)
_capsule_pointer = _python("PyCapsule_GetPointer", c_void_p, ctypes.py_object, c_char_p)
_capsule_set_name = _python("PyCapsule_SetName", c_int, ctypes.py_object, c_char_p)
_capsule_set_destructor = _python("PyCapsule_SetDestructor", c_int, c_void_p, c_void_p)
# The same for a capsule that is being destroyed: it must not be made a Python object again.
_dying_is_valid = _python("PyCapsule_IsValid", c_int, c_void_p, c_char_p)
_dying_pointer = _python("PyCapsule_GetPointer", c_void_p, c_void_p, c_char_p)

_Deleter: Final = ctypes.CFUNCTYPE(None, c_void_p)


# --- giving -----------------------------------------------------------------------------------------------------------

_given: dict[int, tuple[Any, Callable[[], None]]] = {}
"""The structures that a consumer, or a fresh capsule, may still read: by address, with their release functions."""
_capsules: set[int] = set()
"""The addresses of the capsules that exist."""


def give(tensor: Tensor, release: Callable[[], None], *, versioned: bool) -> object:
    """Return a capsule for one consumer. `release` is called once, in any thread, by its deleter or its destructor."""
    managed: Any = DLManagedTensorVersioned() if versioned else DLManagedTensor()
    if versioned:
        managed.version.major, managed.version.minor = VERSION
    inner = managed.dl_tensor
    lengths = c_int64 * len(tensor.shape)
    inner.data = tensor.address
    inner.device.device_type, inner.device.device_id = tensor.device
    inner.ndim = len(tensor.shape)
    inner.dtype.code, inner.dtype.bits, inner.dtype.lanes = tensor.code, tensor.bits, 1
    inner.shape, inner.strides = lengths(*tensor.shape), lengths(*tensor.strides)
    managed.deleter = ctypes.cast(_deleter, c_void_p)
    address = ctypes.addressof(managed)
    _given[address] = (managed, release)
    capsule = _capsule_new(address, _VERSIONED if versioned else _PLAIN, ctypes.cast(_destructor, c_void_p))
    _capsules.add(id(capsule))
    return capsule


def _delete(address: int) -> None:
    found = _given.pop(address, None)
    if found is not None:
        found[1]()


def _destroy(capsule: int) -> None:
    _capsules.discard(capsule)
    for fresh, _used, _kind in _KINDS:
        if _dying_is_valid(capsule, fresh):
            _delete(_dying_pointer(capsule, fresh))


_deleter = _Deleter(_delete)
_destructor = _Deleter(_destroy)


@atexit.register
def _outlive_python() -> None:
    """Clear the deleters: a consumer must not call into the interpreter after its end, and a deleter may be missing.

    The same for the destructors of capsules, of which the last collection may be later than that of this module.
    """
    for capsule in _capsules:
        _capsule_set_destructor(capsule, None)
    _capsules.clear()
    for managed, _release in list(_given.values()):
        managed.deleter = None
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(managed))


# --- taking -----------------------------------------------------------------------------------------------------------


class Taken:
    """Memory of a producer, until `close`."""

    def __init__(self, capsule: object) -> None:
        for fresh, used, kind in _KINDS:
            if _capsule_is_valid(capsule, fresh):
                self._managed: Any = kind.from_address(_capsule_pointer(capsule, fresh))
                self._check_version()
                _capsule_set_name(capsule, used)
                break
        else:
            raise ValueError("not a DLPack capsule, or a consumer has taken it already: ask the producer for a new one")
        self._closed = False

    def _check_version(self) -> None:
        if isinstance(self._managed, DLManagedTensorVersioned) and self._managed.version.major != VERSION[0]:
            raise ValueError(f"DLPack version {self._managed.version.major} is not supported; version 1 is")

    @property
    def tensor(self) -> Tensor:
        """Return the contents of the structure. Raises `ValueError` for elements that are vectors."""
        inner = self._managed.dl_tensor
        if inner.dtype.lanes != 1:
            raise ValueError(f"its elements are vectors of {inner.dtype.lanes}; give an array of scalar elements")
        shape = tuple(inner.shape[: inner.ndim])
        return Tensor(
            (inner.data or 0) + inner.byte_offset,
            (inner.device.device_type, inner.device.device_id),
            shape,
            tuple(inner.strides[: inner.ndim]) if inner.strides else _packed(shape),
            inner.dtype.code,
            inner.dtype.bits,
        )

    def close(self) -> None:
        """Tell the producer that the memory is not needed any more. Calling it twice is fine."""
        if not self._closed:
            self._closed = True
            if self._managed.deleter:
                _Deleter(self._managed.deleter)(ctypes.addressof(self._managed))


def _packed(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def take(producer: Any, stream: int | None) -> Taken:
    """Ask an object for its memory by ``__dlpack__``, ordered before the next work of `stream`."""
    arguments = {} if stream is None else {"stream": stream}
    with contextlib.suppress(TypeError):  # a producer from before version 1 does not have the argument
        return Taken(producer.__dlpack__(**arguments, max_version=VERSION))
    return Taken(producer.__dlpack__(**arguments))
