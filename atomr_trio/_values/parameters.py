"""The parameters of a kernel: read from the header of its PTX entry, and packed from Python values.

`parse_signatures` reads what NVRTC wrote about each kernel; `KernelSignature.pack` turns the arguments of one launch
into the bytes that the kernel reads, or refuses them with `InvalidArgument` before anything is sent.

This file knows PTX headers, Python numbers and numpy scalars. It does not know what a device array is: the caller
gives `pack` a function that returns the address of one. It may not know devices, tasks, modules or how a launch works.

The sizes and offsets come from the PTX text alone. Both dialects of NVRTC (typed registers up to compute_90, untyped
ones from compute_100 on) declare the parameters of an entry with the same types; only pointers look different
(`.u64 p` and `.u64 .ptr .global .align 1 p`).
"""

from __future__ import annotations

import enum
import functools
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NoReturn, Protocol, SupportsIndex, TypeAlias

import attrs
import numpy as np

from atomr_trio._values.dtypes import NARROW_FLOATS, is_of_ml_dtypes, narrow_floats, number_kind
from atomr_trio._values.errors import InvalidArgument
from atomr_trio._values.util import shown

__all__ = [
    "Dimensions",
    "KernelSignature",
    "Parameter",
    "ParameterKind",
    "code_of",
    "parse_signatures",
    "signature_of_layout",
]

Dimensions: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
"""The lengths of a grid or a block: one, or up to three."""

AddressOf: TypeAlias = Callable[[object], "int | None"]
"""A function that returns the address of a device array, and None for every other object. Its errors pass through."""


class ParameterKind(enum.Enum):
    """The kind of values that a parameter takes."""

    FLOAT = "float"
    """A floating-point number of the parameter's size."""
    INTEGER = "integer"
    """An integer of 1, 2 or 4 bytes, signed or unsigned: PTX does not say which."""
    POINTER_OR_INTEGER = "8-byte integer or device array"
    """An integer of 8 bytes: a number, an address or a device array."""
    STRUCT = "struct"
    """Bytes laid out by the C++ compiler: a struct, a vector type such as float4, a complex, a half or a bfloat16."""
    BYTES = "bytes"
    """A value of the parameter's size; the image has no PTX, so its type is unknown."""


@attrs.frozen
class Parameter:
    """One parameter of a kernel, as the entry header declares it."""

    index: int
    """Its place in the parameter list, from 0."""
    kind: ParameterKind
    """The kind of values that it takes."""
    size: int
    """Bytes."""
    alignment: int
    """Bytes."""
    offset: int
    """Its offset in the parameter block, in bytes."""
    type_name: str
    """The type as PTX spells it: ".f32", ".u64", ".b8[24]"."""

    @property
    def description(self) -> str:
        """A text that says what a caller must give."""
        words = {
            ParameterKind.FLOAT: f"a float of {self.size} bytes",
            ParameterKind.INTEGER: _plural(self.size, "an integer of {} byte"),
            ParameterKind.POINTER_OR_INTEGER: "a device array or an integer of 8 bytes",
            ParameterKind.STRUCT: _plural(self.size, "a struct of {} byte"),
            ParameterKind.BYTES: _plural(self.size, "a value of exactly {} byte"),
        }
        return f"{words[self.kind]} ({self.type_name})"


@attrs.frozen
class KernelSignature:
    """The parameters of one kernel."""

    name: str
    """The name in the image (the lowered name of a C++ kernel)."""
    parameters: tuple[Parameter, ...]
    """The parameters, in the order of the declaration."""
    bytes: int
    """Size of the parameter block, in bytes."""

    def pack(self, arguments: Sequence[object], address_of: AddressOf) -> _Bytes:
        """Return the parameter block for `arguments`, which is `self.bytes` long.

        `address_of` returns the device address of a device array, and None for everything else.

        Raises `InvalidArgument` that names the argument, the values that its parameter takes, and the given value.
        """
        converters, block = self._packer
        if len(arguments) != len(converters):
            self._refuse_count(len(arguments))
        values = [convert(argument, address_of) for convert, argument in zip(converters, arguments)]  # noqa: B905
        try:
            return block(*values)
        except OverflowError:  # only a finite float that a narrower parameter cannot hold
            self._refuse_overflow(arguments)

    @functools.cached_property
    def layout(self) -> str:
        """The `struct` format of the parameter block, with its padding and without a byte order."""
        return _layout(self.parameters)[1:]

    @functools.cached_property
    def _packer(self) -> tuple[tuple[_Converter, ...], Callable[..., _Bytes]]:
        """The converters of the parameters, and the function that packs their results."""
        converters = tuple(_CONVERTERS[parameter.kind](self.name, parameter) for parameter in self.parameters)
        return converters, struct.Struct(_layout(self.parameters)).pack

    def _refuse_count(self, count: int) -> NoReturn:
        expected = "; ".join(parameter.description for parameter in self.parameters)
        raise InvalidArgument(
            f"kernel {self.name!r} takes {_plural(len(self.parameters), '{} argument')}, got {count}",
            advice=f"it takes: {expected}." if expected else None,
        )

    def _refuse_overflow(self, arguments: Sequence[object]) -> NoReturn:
        """Find the float that did not fit and refuse it."""
        for parameter, argument in zip(self.parameters, arguments, strict=True):
            if isinstance(argument, float):
                try:
                    struct.pack("<" + _FORMATS[parameter.kind](parameter), argument)
                except OverflowError:
                    _refuse(self.name, parameter, argument, "it is finite and does not fit")
        raise AssertionError("a parameter block overflowed without a float that does")


def _plural(count: int, text: str) -> str:
    """Return `text` with `count` filled in, and with an s for a plural."""
    return text.format(count) + ("" if count == 1 else "s")


# ---------------------------------------------------------------------------------------------------- reading headers

_SIZES: Final[Mapping[str, int]] = MappingProxyType(
    {
        **{f".{letter}{bits}": bits // 8 for letter in "usb" for bits in (8, 16, 32, 64)},
        ".f16": 2,
        ".f32": 4,
        ".f64": 8,
        ".b128": 16,
    }
)

_NOT_CODE = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
"""Strings and comments: a file name in them may contain anything, an entry header included."""

_ENTRY = re.compile(r"\.entry\s+([\w$%]+)\s*(?:\(([^)]*)\))?")

_PARAMETER = re.compile(
    r"""\.param \s+ (?: \.align \s+ (?P<alignment>\w+) \s+ )?
        (?P<type>\.\w+) \s+
        (?: \.ptr\b \s* (?: \.(?:const|global|local|shared|param|generic)\b \s* )? (?: \.align \s+ \w+ \s+ )? )?
        (?P<name>[\w$%]+) \s* (?: \[ \s* (?P<length>\w+) \s* \] )?""",
    re.VERBOSE,
)


def parse_signatures(ptx: str) -> dict[str, KernelSignature]:
    """Return the signature of every kernel in a PTX text, by name, in the order of the text.

    Raises `InvalidArgument` for a header that cannot be parsed: a guess would launch with a wrong parameter block.
    """
    return {match[1]: _signature(match[1], match[2] or "") for match in _ENTRY.finditer(code_of(ptx))}


def code_of(ptx: str) -> str:
    """Return a PTX text without its strings and comments."""
    return _NOT_CODE.sub(" ", ptx)


def signature_of_layout(name: str, layout: Sequence[Sequence[int]]) -> KernelSignature:
    """Return the signature of a kernel from the offset and size of each parameter, in bytes."""
    parameters = tuple(
        Parameter(index, ParameterKind.BYTES, size, _alignment_at(offset, size), offset, f".b8[{size}]")
        for index, (offset, size) in enumerate(layout)
    )
    return KernelSignature(name, parameters, max((each.offset + each.size for each in parameters), default=0))


def _alignment_at(offset: int, size: int) -> int:
    """Return the largest alignment that a parameter of this offset and size can have."""
    together = offset | size | 16
    return together & -together


def _signature(name: str, header: str) -> KernelSignature:
    parameters: list[Parameter] = []
    offset = 0
    for index, text in enumerate(header.split(",") if header.strip() else ()):
        parameter = _parameter(name, index, text.strip(), offset)
        parameters.append(parameter)
        offset = parameter.offset + parameter.size
    return KernelSignature(name, tuple(parameters), offset)


def _parameter(kernel: str, index: int, text: str, end_of_previous: int) -> Parameter:
    match = _PARAMETER.fullmatch(text)
    if match is None or match["type"] not in _SIZES:
        raise InvalidArgument(f"kernel {kernel!r} declares parameter {index} as {text!r}, which cannot be parsed")
    type_name, element = match["type"], _SIZES[match["type"]]
    size, alignment = element, _number(match["alignment"]) or element
    if match["length"]:
        size = element * _number(match["length"])
        type_name = f"{type_name}[{_number(match['length'])}]"
    offset = -(-end_of_previous // alignment) * alignment
    return Parameter(index, _kind(type_name, size), size, alignment, offset, type_name)


def _number(text: str | None) -> int:
    """Return an integer from PTX text: decimal or 0x, perhaps with a U."""
    return int(text.rstrip("U"), 0) if text else 0


def _kind(type_name: str, size: int) -> ParameterKind:
    if type_name.endswith("]") or size > 8:
        return ParameterKind.STRUCT
    if type_name.startswith(".f"):
        return ParameterKind.FLOAT
    return ParameterKind.POINTER_OR_INTEGER if size == 8 else ParameterKind.INTEGER


# ---------------------------------------------------------------------------------------------------- packing
#
# A launch packs its arguments every time, so each parameter gets a closure that returns at once for the exact types
# int and float (and for device arrays), and otherwise calls the slow function for all other types.

_Bytes: TypeAlias = bytes  # for the class above, which has a field named bytes
_Packed: TypeAlias = int | float | bytes


class _Converter(Protocol):
    """Turn one argument into the value that `struct` packs for its parameter."""

    def __call__(self, value: object, address_of: AddressOf, /) -> _Packed: ...


# Always used behind "<": in native mode struct packs a float that is too large as inf without an error.
_FLOAT_CODES: Final[Mapping[int, str]] = MappingProxyType({2: "e", 4: "f", 8: "d"})
_INTEGER_CODES: Final[Mapping[int, str]] = MappingProxyType({1: "B", 2: "H", 4: "I", 8: "Q"})

_FORMATS: Final[Mapping[ParameterKind, Callable[[Parameter], str]]] = MappingProxyType(
    {
        ParameterKind.FLOAT: lambda parameter: _FLOAT_CODES[parameter.size],
        ParameterKind.INTEGER: lambda parameter: _INTEGER_CODES[parameter.size],
        ParameterKind.POINTER_OR_INTEGER: lambda parameter: _INTEGER_CODES[parameter.size],
        ParameterKind.STRUCT: lambda parameter: f"{parameter.size}s",
        ParameterKind.BYTES: lambda parameter: f"{parameter.size}s",
    }
)


def _layout(parameters: tuple[Parameter, ...]) -> str:
    """Return the `struct` format of a parameter block, with its padding."""
    parts, end = ["<"], 0
    for parameter in parameters:
        parts.append(f"{parameter.offset - end}x" if parameter.offset > end else "")
        parts.append(_FORMATS[parameter.kind](parameter))
        end = parameter.offset + parameter.size
    return "".join(parts)


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
            address = address_of(value)
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
            address = address_of(value)
            if address is not None:
                return address.to_bytes(size, "little")
        if size in _INTEGER_CODES and isinstance(value, int):
            return _slow_integer(kernel, parameter, value, _no_array).to_bytes(size, "little")
        if isinstance(value, float) and not isinstance(value, np.generic):
            advice = "np.float32(x) has 4 bytes, np.float64(x) 8."
            _refuse(kernel, parameter, value, "the image has no PTX, so its type is not known", advice)
        if isinstance(value, np.generic):
            if value.itemsize != size or value.dtype.hasobject or not value.dtype.isnative:
                _refuse(kernel, parameter, value, f"it is a {value.dtype} of {_plural(value.itemsize, '{} byte')}")
            return value.tobytes()
        return _slow_struct(kernel, parameter, value, address_of)

    return convert


_ADDRESS_BYTES: Final = 8

_CONVERTERS: Final[Mapping[ParameterKind, Callable[[str, Parameter], _Converter]]] = MappingProxyType(
    {
        ParameterKind.FLOAT: _float_converter,
        ParameterKind.INTEGER: _integer_converter,
        ParameterKind.POINTER_OR_INTEGER: _address_converter,
        ParameterKind.STRUCT: _struct_converter,
        ParameterKind.BYTES: _bytes_converter,
    }
)


def _no_array(value: object) -> None:
    """Return None, in place of the caller's function, which was called already."""
    return


def _slow_integer(kernel: str, parameter: Parameter, value: object, address_of: AddressOf) -> int:
    if not isinstance(value, (int, np.integer, np.bool_)):
        _refuse_other(kernel, parameter, value, address_of)
    number, bits = int(value), 8 * parameter.size
    if not -(1 << (bits - 1)) <= number < 1 << bits:
        _refuse(kernel, parameter, value, f"it is outside of -2**{bits - 1} ... 2**{bits} - 1")
    return number & ((1 << bits) - 1)


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
    reason = f"a {value.dtype} of {_plural(value.itemsize, '{} byte')} does not fit"
    _refuse(kernel, parameter, value, reason, advice)


def _exact_float(kernel: str, parameter: Parameter, value: int | np.integer | np.bool_) -> float:
    """Convert an integer that the parameter's type can represent exactly."""
    code = "<" + _FLOAT_CODES[parameter.size]
    try:
        rounded: float = struct.unpack(code, struct.pack(code, float(int(value))))[0]
    except OverflowError:
        rounded = float("inf")
    if rounded != int(value):
        _refuse(kernel, parameter, value, "it cannot be represented exactly", "pass float(x) to round it.")
    return rounded


def _slow_struct(kernel: str, parameter: Parameter, value: object, address_of: AddressOf) -> bytes:
    if isinstance(value, np.generic):
        data = _bytes_of_scalar(kernel, parameter, value)
    elif isinstance(value, complex):
        data = struct.pack("<dd", value.real, value.imag)
    else:
        if isinstance(value, np.ndarray) or address_of(value) is not None:
            _refuse_other(kernel, parameter, value, address_of)
        try:
            data = memoryview(value).tobytes()  # type: ignore[arg-type]
        except (TypeError, BufferError):
            _refuse_other(kernel, parameter, value, address_of)
    if len(data) != parameter.size:
        advice = "np.complex64(x) has 8 bytes." if isinstance(value, complex) else None
        _refuse(kernel, parameter, value, f"it has {_plural(len(data), '{} byte')}", advice)
    return data


def _bytes_of_scalar(kernel: str, parameter: Parameter, value: np.generic) -> bytes:
    """Return the bytes of a numpy scalar that is a struct in C++: complex, narrow float, structured (or void)."""
    dtype = value.dtype
    if dtype.kind not in "cV" and dtype.name not in NARROW_FLOATS:
        reason = f"a struct takes structured and complex scalars, and {', '.join(NARROW_FLOATS)}"
        _refuse(kernel, parameter, value, reason, _struct_advice(parameter))
    if dtype.hasobject or not dtype.isnative:
        _refuse(kernel, parameter, value, f"its dtype {dtype} holds Python objects or swapped bytes")
    return value.tobytes()


def _struct_advice(parameter: Parameter) -> str:
    """Return the advice for a struct. A small one may be a float that is a class in C++, and PTX does not say which."""
    floats = narrow_floats(parameter.size)
    general = "pass a numpy structured scalar, a ctypes.Structure or bytes of exactly that size."
    return f"{floats}; else {general}" if floats else general


_ADVICE: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (np.ndarray, "copy it to the device with `await dev.to_device(array)`, or take one element with `.item()`."),
    (float, "pass int(x) if the kernel takes an integer here."),
    (np.floating, "pass int(x) if the kernel takes an integer here."),
    (type(None), "a null pointer is the integer 0."),
)
"""The default advice for a value whose type the parameter does not take."""


def _refuse_other(kernel: str, parameter: Parameter, value: object, address_of: AddressOf) -> NoReturn:
    """Raise `InvalidArgument` for a value whose type the parameter does not take."""
    if parameter.kind is not ParameterKind.POINTER_OR_INTEGER and address_of(value) is not None:
        _refuse(kernel, parameter, value, "a device array can only go where the kernel takes a pointer")
    advice = next((advice for types, advice in _ADVICE if isinstance(value, types)), None)
    if parameter.kind is ParameterKind.STRUCT and not isinstance(value, np.ndarray):
        advice = _struct_advice(parameter)
    _refuse(kernel, parameter, value, "", advice)


def _refuse(kernel: str, parameter: Parameter, value: object, reason: str, advice: str | None = None) -> NoReturn:
    message = f"argument {parameter.index} of kernel {kernel!r}: expected {parameter.description}, got {_shown(value)}"
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
