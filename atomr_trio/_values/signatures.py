"""The signature of a kernel: read from the header of its PTX entry, and used to pack the arguments of a launch.

`parse_signatures` reads what NVRTC wrote about each kernel; `KernelSignature.pack` turns the arguments of one launch
into the bytes that the kernel reads, or refuses them with `InvalidArgument` before anything is sent.

The sizes and offsets come from the PTX text alone. Both dialects of NVRTC (typed registers up to compute_90, untyped
ones from compute_100 on) declare the parameters of an entry with the same types; only pointers look different
(`.u64 p` and `.u64 .ptr .global .align 1 p`).
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeAlias

import attrs

from atomr_trio._values.errors import InvalidArgument
from atomr_trio._values.packing import converter, format_of, layout_of, refuse
from atomr_trio._values.parameters import AddressOf, Parameter, ParameterKind, plural

__all__ = [
    "KernelSignature",
    "code_of",
    "codes_of",
    "parse_signatures",
    "repacked",
    "signature_of_layout",
    "unclosed",
]


_Bytes: TypeAlias = bytes  # for the class below, which has a field named bytes


_KINDS_OF_NUMBERS: Final = frozenset(
    {ParameterKind.BOOL, ParameterKind.SIGNED, ParameterKind.UNSIGNED, ParameterKind.FLOAT, ParameterKind.INTEGER}
)
_NUMBERS: Final = frozenset({int, float, bool})


def _no_address(value: object, parameter: Parameter) -> None:
    """Return None: no number is an array."""


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

        `address_of` returns the device address of a device array for a parameter, and None for everything else.

        Raises `InvalidArgument` that names the argument, the values that its parameter takes, and the given value.
        """
        converters, block = self._packer
        if len(arguments) != len(converters):
            self._refuse_count(arguments)
        values = [convert(argument, address_of) for convert, argument in zip(converters, arguments)]  # noqa: B905
        try:
            return block(*values)
        except OverflowError:  # only a finite float that a narrower parameter cannot hold
            self._refuse_overflow(arguments)

    @property
    def typed(self) -> bool:
        """True if the types of its parameters in C++ are known, so that arguments are checked by them."""
        return all(parameter.declaration for parameter in self.parameters)

    def described(self, name: str) -> str:
        """Return the signature of a kernel called `name` as text: ``saxpy(float a, const float *x, float *y, int n)``.

        `name` is only shown. Where the types in C++ are unknown, they are those of PTX. Raises nothing.
        """
        return f"{name}({', '.join(each.declaration or each.type_name for each in self.parameters)})"

    @functools.cached_property
    def layout(self) -> str:
        """The `struct` format of the parameter block, with its padding and without a byte order."""
        return layout_of(self.parameters)[1:]

    @functools.cached_property
    def _packer(self) -> tuple[tuple[Callable[[object, AddressOf], Any], ...], Callable[..., _Bytes]]:
        """The converters of the parameters, and the function that packs their results."""
        converters = tuple(converter(self.name, parameter) for parameter in self.parameters)
        return converters, struct.Struct(layout_of(self.parameters)).pack

    @functools.cached_property
    def _numbers(self) -> tuple[tuple[Callable[[object, AddressOf], Any], Callable[..., None], int] | None, ...]:
        """For each parameter that is a number: its converter, the function that packs it, and its offset."""
        return tuple(
            (convert, struct.Struct("<" + format_of(parameter)).pack_into, parameter.offset)
            if parameter.kind in _KINDS_OF_NUMBERS
            else None
            for convert, parameter in zip(self._packer[0], self.parameters, strict=True)
        )

    def _refuse_count(self, arguments: Sequence[object]) -> NoReturn:
        expected = "; ".join(parameter.description for parameter in self.parameters)
        advice = f"it takes: {expected}." if expected else None
        if len(arguments) == 1 and isinstance(arguments[0], tuple | list):
            kind = type(arguments[0]).__name__
            unpacked = f"arguments are not packed into a {kind}: `launch(grid, block, x, y)`"
            advice = f"{unpacked}; {advice}" if advice else f"{unpacked}."
        raise InvalidArgument(
            f"kernel {self.name!r} takes {plural(len(self.parameters), '{} argument')}, got {len(arguments)}",
            advice=advice,
        )

    def _refuse_overflow(self, arguments: Sequence[object]) -> NoReturn:
        """Find the float that did not fit and refuse it."""
        for parameter, argument in zip(self.parameters, arguments, strict=True):
            if isinstance(argument, float):
                try:
                    struct.pack("<" + format_of(parameter), argument)
                except OverflowError:
                    refuse(self.name, parameter, argument, "it is finite and does not fit")
        raise AssertionError("a parameter block overflowed without a float that does")


def repacked(
    signature: KernelSignature,
    block: bytes,
    before: Sequence[object],
    arguments: Sequence[object],
    is_same: Callable[[object, object], bool],
) -> bytes | None:
    """Return the parameter block of a kernel for `arguments`, given the block for those `before`.

    Returns None unless only numbers have changed, each to one that its parameter takes. `is_same` tells of two
    arguments of any other parameter whether they are the same bytes.
    """
    if len(arguments) != len(before):
        return None
    content = bytearray(block)
    for old, new, number in zip(before, arguments, signature._numbers, strict=True):
        if number is None:
            if not is_same(old, new):
                return None
            continue
        if new is old:
            continue
        if type(new) not in _NUMBERS:
            return None
        convert, pack_into, offset = number
        try:
            pack_into(content, offset, convert(new, _no_address))
        except (InvalidArgument, OverflowError):
            return None
    return bytes(content)


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


def codes_of(pieces: Iterable[str]) -> list[str]:
    """Return a PTX text without its strings and comments, in parts that end behind functions; none is in two of them.

    The text comes in `pieces` of whole lines.
    """
    codes: list[str] = []
    held: list[str] = []
    depth = 0
    for piece in pieces:
        code = code_of(piece)
        if not held and not code.strip():
            continue
        depth += unclosed(code)
        end = _end_of_last_function(code, depth)
        if end:
            codes.append("".join((*held, code[:end])))
            held.clear()
        if not end or code[end:].strip():
            held.append(code[end:])
    return [*codes, "".join(held)] if held or not codes else codes


def _end_of_last_function(code: str, depth: int) -> int:
    """Return the place behind the last brace that closes everything; 0 if there is none. `depth` is that of the end."""
    end = len(code)
    while (brace := code.rfind("}", 0, end)) >= 0:
        depth -= unclosed(code[brace + 1 : end])
        if not depth:
            return brace + 1
        depth += 1
        end = brace
    return 0


def unclosed(code: str) -> int:
    """Return how many braces a text opens and does not close."""
    return code.count("{") - code.count("}")


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
