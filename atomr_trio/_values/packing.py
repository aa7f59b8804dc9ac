"""Packing: the arguments of one launch become the bytes that a kernel reads, or are refused.

Each parameter has a function that converts one argument. It knows Python's numbers and numpy's scalars. It does not
know what a device array is: the caller gives it a function that returns the address of one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NoReturn, Protocol, TypeAlias

import numpy as np

from atomr_trio._values.dtypes import NARROW_FLOATS, is_of_ml_dtypes, narrow_floats, number_kind
from atomr_trio._values.errors import InvalidArgument
from atomr_trio._values.parameters import AddressOf, Parameter, ParameterKind, plural
from atomr_trio._values.util import shown

__all__ = ["converter", "format_of", "integer_limits", "layout_of", "refuse"]

# A launch packs its arguments every time, so each parameter gets a closure that returns at once for the exact types
# int and float (and for device arrays), and otherwise calls the slow function for all other types.

_Packed: TypeAlias = int | float | bytes


class _Converter(Protocol):
    """Turn one argument into the value that `struct` packs for its parameter."""

    def __call__(self, value: object, address_of: AddressOf, /) -> _Packed: ...


# Always used behind "<": in native mode struct packs a float that is too large as inf without an error.
_FLOAT_CODES: Final[Mapping[int, str]] = MappingProxyType({2: "e", 4: "f", 8: "d"})
_SIGNED_CODES: Final[Mapping[int, str]] = MappingProxyType({1: "b", 2: "h", 4: "i", 8: "q"})
_INTEGER_CODES: Final[Mapping[int, str]] = MappingProxyType({1: "B", 2: "H", 4: "I", 8: "Q"})

_FORMATS: Final[Mapping[ParameterKind, Callable[[Parameter], str]]] = MappingProxyType(
    {
        ParameterKind.BOOL: lambda parameter: "?",
        ParameterKind.SIGNED: lambda parameter: _SIGNED_CODES.get(parameter.size, f"{parameter.size}s"),
        ParameterKind.UNSIGNED: lambda parameter: _INTEGER_CODES.get(parameter.size, f"{parameter.size}s"),
        ParameterKind.FLOAT: lambda parameter: _FLOAT_CODES[parameter.size],
        ParameterKind.POINTER: lambda parameter: "Q",
        ParameterKind.INTEGER: lambda parameter: _INTEGER_CODES[parameter.size],
        ParameterKind.POINTER_OR_INTEGER: lambda parameter: _INTEGER_CODES[parameter.size],
        ParameterKind.STRUCT: lambda parameter: f"{parameter.size}s",
        ParameterKind.BYTES: lambda parameter: f"{parameter.size}s",
    }
)


def format_of(parameter: Parameter) -> str:
    """Return the `struct` code of a parameter, without a byte order."""
    return _FORMATS[parameter.kind](parameter)


def layout_of(parameters: tuple[Parameter, ...]) -> str:
    """Return the `struct` format of a parameter block, with its padding."""
    parts, end = ["<"], 0
    for parameter in parameters:
        parts.append(f"{parameter.offset - end}x" if parameter.offset > end else "")
        parts.append(format_of(parameter))
        end = parameter.offset + parameter.size
    return "".join(parts)


def integer_limits(parameter: Parameter) -> tuple[int, int]:
    """Return the least and the largest integer that a parameter takes."""
    bits = 8 * parameter.size
    if parameter.kind is ParameterKind.BOOL:
        return 0, 1
    if parameter.kind is ParameterKind.SIGNED:
        return -(1 << bits - 1), (1 << bits - 1) - 1
    if parameter.kind in (ParameterKind.UNSIGNED, ParameterKind.POINTER):
        return 0, (1 << bits) - 1
    return -(1 << bits - 1), (1 << bits) - 1


def _typed_converter(kernel: str, parameter: Parameter) -> _Converter:
    """Return the converter of an integer whose sign is known."""
    lowest, highest = integer_limits(parameter)

    def convert(value: object, address_of: AddressOf, /) -> int:
        if type(value) is int and lowest <= value <= highest:
            return value
        return _slow_typed(kernel, parameter, value, address_of)

    return convert


def _wide_converter(kernel: str, parameter: Parameter) -> _Converter:
    """Return the converter of an integer that `struct` has no code for: one of 128 bits."""

    def convert(value: object, address_of: AddressOf, /) -> bytes:
        if isinstance(value, bytes) and len(value) == parameter.size:
            return value
        number = _slow_typed(kernel, parameter, value, address_of)
        return number.to_bytes(parameter.size, "little", signed=parameter.kind is ParameterKind.SIGNED)

    return convert


def _signed_or_unsigned(kernel: str, parameter: Parameter) -> _Converter:
    return (_typed_converter if parameter.size in _INTEGER_CODES else _wide_converter)(kernel, parameter)


def _pointer_converter(kernel: str, parameter: Parameter) -> _Converter:
    highest = integer_limits(parameter)[1]

    def convert(value: object, address_of: AddressOf, /) -> int:
        if type(value) is int:
            if 0 <= value <= highest:
                return value
        else:
            address = address_of(value, parameter)
            if address is not None:
                return address
        return _slow_typed(kernel, parameter, value, _no_array)

    return convert


def _integer_converter(kernel: str, parameter: Parameter) -> _Converter:
    lowest, mask = -(1 << (8 * parameter.size - 1)), (1 << 8 * parameter.size) - 1

    def convert(value: object, address_of: AddressOf, /) -> int:
        if type(value) is int and lowest <= value <= mask:
            return value & mask
        return _slow_integer(kernel, parameter, value, address_of)

    return convert


def _address_converter(kernel: str, parameter: Parameter) -> _Converter:
    lowest, mask = -(1 << 63), (1 << 64) - 1

    def convert(value: object, address_of: AddressOf, /) -> int:
        if type(value) is int:
            if lowest <= value <= mask:
                return value & mask
        else:
            address = address_of(value, parameter)
            if address is not None:
                return address
        return _slow_integer(kernel, parameter, value, _no_array)

    return convert


def _float_converter(kernel: str, parameter: Parameter) -> _Converter:
    def convert(value: object, address_of: AddressOf, /) -> float:
        if type(value) is float:
            return value
        return _slow_float(kernel, parameter, value, address_of)

    return convert


def _struct_converter(kernel: str, parameter: Parameter) -> _Converter:
    def convert(value: object, address_of: AddressOf, /) -> bytes:
        if type(value) is bytes and len(value) == parameter.size:
            return value
        return _slow_struct(kernel, parameter, value, address_of)

    return convert


def _bytes_converter(kernel: str, parameter: Parameter) -> _Converter:
    """Return the converter of a parameter of unknown kind: the type of the argument must define its bytes."""
    size = parameter.size

    def convert(value: object, address_of: AddressOf, /) -> bytes:
        if size == _ADDRESS_BYTES:
            address = address_of(value, parameter)
            if address is not None:
                return address.to_bytes(size, "little")
        if size in _INTEGER_CODES and isinstance(value, int):
            return _slow_integer(kernel, parameter, value, _no_array).to_bytes(size, "little")
        if isinstance(value, float) and not isinstance(value, np.generic):
            advice = "np.float32(x) has 4 bytes, np.float64(x) 8."
            refuse(kernel, parameter, value, "the image has no PTX, so its type is not known", advice)
        if isinstance(value, np.generic):
            if value.itemsize != size or value.dtype.hasobject or not value.dtype.isnative:
                refuse(kernel, parameter, value, f"it is a {value.dtype} of {plural(value.itemsize, '{} byte')}")
            return value.tobytes()
        return _slow_struct(kernel, parameter, value, address_of)

    return convert


_ADDRESS_BYTES: Final = 8

_CONVERTERS: Final[Mapping[ParameterKind, Callable[[str, Parameter], _Converter]]] = MappingProxyType(
    {
        ParameterKind.BOOL: _typed_converter,
        ParameterKind.SIGNED: _signed_or_unsigned,
        ParameterKind.UNSIGNED: _signed_or_unsigned,
        ParameterKind.FLOAT: _float_converter,
        ParameterKind.POINTER: _pointer_converter,
        ParameterKind.INTEGER: _integer_converter,
        ParameterKind.POINTER_OR_INTEGER: _address_converter,
        ParameterKind.STRUCT: _struct_converter,
        ParameterKind.BYTES: _bytes_converter,
    }
)


def converter(kernel: str, parameter: Parameter) -> _Converter:
    """Return the function that converts an argument for a parameter of the kernel of this name."""
    return _CONVERTERS[parameter.kind](kernel, parameter)


def _no_array(value: object, parameter: Parameter) -> None:
    """Return None, in place of the caller's function, which was called already."""
    return


def _slow_integer(kernel: str, parameter: Parameter, value: object, address_of: AddressOf) -> int:
    if not isinstance(value, (int, np.integer, np.bool_)):
        _refuse_other(kernel, parameter, value, address_of)
    number, bits = int(value), 8 * parameter.size
    if not -(1 << (bits - 1)) <= number < 1 << bits:
        refuse(kernel, parameter, value, f"it is outside of -2**{bits - 1} ... 2**{bits} - 1")
    return number & ((1 << bits) - 1)


def _slow_typed(kernel: str, parameter: Parameter, value: object, address_of: AddressOf) -> int:
    if not isinstance(value, (int, np.integer, np.bool_)):
        _refuse_other(kernel, parameter, value, address_of)
    number, (lowest, highest) = int(value), integer_limits(parameter)
    if not lowest <= number <= highest:
        refuse(kernel, parameter, value, "it is outside of that")
    return number


def _slow_float(kernel: str, parameter: Parameter, value: object, address_of: AddressOf) -> float:
    if isinstance(value, np.floating):  # before float: a np.float64 is one
        if value.itemsize > parameter.size:
            _refuse_float(kernel, parameter, value)
        return float(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, np.generic) and is_of_ml_dtypes(value.dtype):
        if value.itemsize == parameter.size:  # it is narrower, or another type of the same size
            _refuse_float(kernel, parameter, value)
        return float(value)
    if not isinstance(value, (int, np.integer, np.bool_)):
        _refuse_other(kernel, parameter, value, address_of)
    return _exact_float(kernel, parameter, value)


def _refuse_float(kernel: str, parameter: Parameter, value: np.generic) -> NoReturn:
    advice = f"np.float{8 * parameter.size}(x) rounds it; float(x) lets the launch round it."
    reason = f"a {value.dtype} of {plural(value.itemsize, '{} byte')} does not fit"
    refuse(kernel, parameter, value, reason, advice)


def _exact_float(kernel: str, parameter: Parameter, value: int | np.integer | np.bool_) -> float:
    """Convert an integer that the parameter's type can represent exactly."""
    code = "<" + _FLOAT_CODES[parameter.size]
    try:
        rounded: float = struct.unpack(code, struct.pack(code, float(int(value))))[0]
    except OverflowError:
        rounded = float("inf")
    if rounded != int(value):
        refuse(kernel, parameter, value, "it cannot be represented exactly", "pass float(x) to round it.")
    return rounded


def _slow_struct(kernel: str, parameter: Parameter, value: object, address_of: AddressOf) -> bytes:
    if isinstance(value, np.generic):
        data = _bytes_of_scalar(kernel, parameter, value)
    elif isinstance(value, complex):
        if parameter.scalars is not None and "complex128" not in parameter.scalars:
            refuse(kernel, parameter, value, "", _struct_advice(parameter))
        data = struct.pack("<dd", value.real, value.imag)
    else:
        if isinstance(value, np.ndarray) or address_of(value, parameter) is not None:
            _refuse_other(kernel, parameter, value, address_of)
        try:
            data = memoryview(value).tobytes()  # type: ignore[arg-type]
        except (TypeError, BufferError):
            _refuse_other(kernel, parameter, value, address_of)
    if len(data) != parameter.size:
        advice = "np.complex64(x) has 8 bytes." if isinstance(value, complex) else None
        refuse(kernel, parameter, value, f"it has {plural(len(data), '{} byte')}", advice)
    return data


def _bytes_of_scalar(kernel: str, parameter: Parameter, value: np.generic) -> bytes:
    """Return the bytes of a numpy scalar that is a struct in C++: complex, narrow float, structured (or void)."""
    dtype = value.dtype
    if parameter.scalars is not None and dtype.type is not np.void and dtype.name not in parameter.scalars:
        refuse(kernel, parameter, value, "it is of another type", _struct_advice(parameter))
    if dtype.kind not in "cV" and dtype.name not in NARROW_FLOATS:
        reason = f"a struct takes structured and complex scalars, and {', '.join(NARROW_FLOATS)}"
        refuse(kernel, parameter, value, reason, _struct_advice(parameter))
    if dtype.hasobject or not dtype.isnative:
        refuse(kernel, parameter, value, f"its dtype {dtype} holds Python objects or swapped bytes")
    return value.tobytes()


def _struct_advice(parameter: Parameter) -> str:
    """Return the advice for a struct. A small one may be a float that is a class in C++, and PTX does not say which."""
    floats = narrow_floats(parameter.size)
    if parameter.scalars is not None:
        floats = " or ".join(f"{_package_of(name)}.{name}(x)" for name in parameter.scalars)
    general = "pass a numpy structured scalar, a ctypes.Structure or bytes of exactly that size."
    return f"{floats}; else {general}" if floats else general


def _package_of(dtype: str) -> str:
    return NARROW_FLOATS[dtype].package if dtype in NARROW_FLOATS else "numpy"


TO_DEVICE: Final = "copy it to the device with `await dev.to_device(array)`"
"""The advice for an array of the host that is given where one on the device is needed."""

_ADVICE: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (np.ndarray, f"{TO_DEVICE}, or take one element with `.item()`."),
    (float, "pass int(x) if the kernel takes an integer here."),
    (np.floating, "pass int(x) if the kernel takes an integer here."),
    (type(None), "a null pointer is the integer 0."),
)
"""The default advice for a value whose type the parameter does not take."""


def _refuse_other(kernel: str, parameter: Parameter, value: object, address_of: AddressOf) -> NoReturn:
    """Raise `InvalidArgument` for a value whose type the parameter does not take."""
    takes_arrays = parameter.kind in (ParameterKind.POINTER, ParameterKind.POINTER_OR_INTEGER)
    if not takes_arrays and address_of(value, parameter) is not None:
        number = parameter.kind in (ParameterKind.SIGNED, ParameterKind.UNSIGNED) and parameter.size == _ADDRESS_BYTES
        advice = "for its address as a number pass `x.address`, and name the array in `touches`." if number else None
        refuse(kernel, parameter, value, "a device array can only go where the kernel takes a pointer", advice)
    advice = next((advice for types, advice in _ADVICE if isinstance(value, types)), None)
    if parameter.kind is ParameterKind.STRUCT and not isinstance(value, np.ndarray):
        advice = _struct_advice(parameter)
    refuse(kernel, parameter, value, "", advice)


def refuse(
    kernel: str, parameter: Parameter, value: object, reason: str, advice: str | None = None, got: str | None = None
) -> NoReturn:
    """Raise `InvalidArgument` for an argument; `got` describes it, if its type and its number would not do."""
    given = _shown(value) if got is None else got
    message = f"argument {parameter.index} of kernel {kernel!r}: expected {parameter.description}, got {given}"
    raise InvalidArgument(f"{message}: {reason}" if reason else message, advice=advice)


def _shown(value: object) -> str:
    """Return a short description of a value. Only numbers and strings are shown: another repr may be long."""
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, np.ndarray):
        return f"{name} of {value.dtype}, shape {value.shape}"
    if isinstance(value, np.generic) and number_kind(value.dtype) in "biufc":
        return f"{name}({value.item()})"
    return f"{name} {shown(value)}" if isinstance(value, (int, float, complex, str)) else name
