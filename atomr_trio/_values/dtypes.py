"""The element types of arrays: numpy's own numbers, and the narrow floats that ml_dtypes adds to numpy.

A type of ml_dtypes is known here by its name alone. ml_dtypes is imported only when a program asks for one of them by
name: a program that gives such a dtype, scalar or array has imported it already.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from .errors import InvalidArgument, LibraryNotFound

DTYPES: Final = tuple(
    np.dtype(name) for name in ("?", "i1", "u1", "i2", "u2", "f2", "i4", "u4", "f4", "i8", "u8", "f8", "c8", "c16")
)
"""numpy's types that an array can have."""


@attrs.frozen
class NarrowFloat:
    """A float that is a class in CUDA C++, so that PTX declares it as bytes."""

    package: str
    """The Python package whose type it is."""
    itemsize: int
    """Bytes."""
    cuda_name: str
    """The name of its class in CUDA's headers."""
    dlpack_code: int
    """The ``DLDataTypeCode`` of the type; those of 8 bits came with DLPack 1.1."""


NARROW_FLOATS: Final[Mapping[str, NarrowFloat]] = MappingProxyType(
    {
        "float16": NarrowFloat("numpy", 2, "__half", 2),
        "bfloat16": NarrowFloat("ml_dtypes", 2, "__nv_bfloat16", 4),
        "float8_e4m3fn": NarrowFloat("ml_dtypes", 1, "__nv_fp8_e4m3", 10),
        "float8_e5m2": NarrowFloat("ml_dtypes", 1, "__nv_fp8_e5m2", 12),
    }
)
"""The narrow floats by the name of the dtype. Another type of ml_dtypes is one more line."""

DLPACK_CODES: Final[Mapping[str, int]] = MappingProxyType({"b": 6, "i": 0, "u": 1, "f": 2, "c": 5})
"""The ``DLDataTypeCode`` of numpy's own types, by numpy's letter for the kind of number."""

_OF_NUMPY = frozenset(DTYPES)
_AT_ONCE: Final[Mapping[object, np.dtype[Any]]] = {key: dtype for dtype in DTYPES for key in (dtype, dtype.type)}
"""The dtypes by their most common names. An object that equals a key, and has its hash, is that dtype to numpy too."""
_OF_ML_DTYPES = frozenset(name for name, each in NARROW_FLOATS.items() if each.package == "ml_dtypes")


def check_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return a dtype that arrays can have. Raises `InvalidArgument`, and `LibraryNotFound` without ml_dtypes."""
    try:
        return _AT_ONCE[dtype]
    except (KeyError, TypeError):  # an unhashable object is never a key
        pass
    if isinstance(dtype, str) and dtype in _OF_ML_DTYPES:
        return _imported(dtype)
    try:
        checked = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{dtype!r} is not a numpy dtype: {error}") from None
    if not checked.isnative or (checked not in _OF_NUMPY and not is_of_ml_dtypes(checked)):
        names = ", ".join(each.name for each in DTYPES)
        raise InvalidArgument(
            f"arrays cannot have dtype {checked.str!r}; they can have {names}, in native byte order, "
            f"and of ml_dtypes {', '.join(sorted(_OF_ML_DTYPES))}"
        )
    return checked


def _imported(name: str) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    except ImportError as error:
        raise LibraryNotFound(
            f"dtype {name!r} needs the Python package ml_dtypes: {error}",
            advice='pip install "atomr-trio[bfloat16]", or ml-dtypes itself.',
        ) from error
    return dtype


def is_of_ml_dtypes(dtype: np.dtype[Any]) -> bool:
    """Return whether an array can have this type of ml_dtypes. numpy sees most of them as opaque bytes."""
    return dtype.type.__module__ == "ml_dtypes" and dtype.type.__name__ in _OF_ML_DTYPES


def number_kind(dtype: np.dtype[Any]) -> str:
    """Return numpy's letter for a kind of number, "f" for a float of ml_dtypes too. Other types have other letters."""
    return "f" if is_of_ml_dtypes(dtype) else dtype.kind


def spelling(dtype: np.dtype[Any]) -> str:
    """Return the expression by which a program names this dtype."""
    return f"{'ml_dtypes' if is_of_ml_dtypes(dtype) else 'np'}.{dtype.name}"


def narrow_floats(itemsize: int) -> str:
    """Return a text that names the class floats of this size, as a launch takes them; empty if there are none."""
    return ", ".join(
        f"{each.package}.{name}(x) for {each.cuda_name}"
        for name, each in NARROW_FLOATS.items()
        if each.itemsize == itemsize
    )


def dlpack_type(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the ``DLDataTypeCode`` and the bits of an element."""
    narrow = NARROW_FLOATS.get(dtype.name)
    return DLPACK_CODES[dtype.kind] if narrow is None else narrow.dlpack_code, 8 * dtype.itemsize


def of_dlpack(code: int, bits: int) -> np.dtype[Any]:
    """Return the dtype for DLPack's code and bits. Raises as `check_dtype` does, and for unsupported elements."""
    for dtype in DTYPES:
        if dlpack_type(dtype) == (code, bits):
            return dtype
    for name, each in NARROW_FLOATS.items():
        if (each.dlpack_code, 8 * each.itemsize) == (code, bits):
            return check_dtype(name)
    raise InvalidArgument(f"arrays cannot have elements of DLPack's type code {code} with {bits} bits")
