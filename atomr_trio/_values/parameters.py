"""The parameters of a kernel: what each of them takes.

The sizes and offsets of parameters come from PTX, which knows no types of C++; where the compiler has told those, they
are held against the sizes (``argument_rules.py``). This file is the description that both lead to. It may not know
devices, arrays, modules or how a launch works.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import SupportsIndex, TypeAlias

import attrs

__all__ = ["AddressOf", "Dimensions", "Elements", "Parameter", "ParameterKind", "item_bytes", "plural"]

Dimensions: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
"""The lengths of a grid or a block: one, or up to three."""


class ParameterKind(enum.Enum):
    """The kind of values that a parameter takes."""

    BOOL = "bool"
    """A bool, or 0 or 1."""
    SIGNED = "signed integer"
    """An integer of the parameter's size with a sign."""
    UNSIGNED = "unsigned integer"
    """An integer of the parameter's size, at least 0."""
    FLOAT = "float"
    """A floating-point number of the parameter's size."""
    POINTER = "device array"
    """A device array whose elements are those that the pointer points to, or an address."""
    STRUCT = "struct"
    """Bytes laid out by the C++ compiler: a struct, a vector type such as float4, a complex, a half or a bfloat16."""
    INTEGER = "integer"
    """An integer of 1, 2 or 4 bytes whose type is unknown; PTX does not say whether it has a sign."""
    POINTER_OR_INTEGER = "8-byte integer or device array"
    """An integer of 8 bytes whose type is unknown: a number, an address or a device array."""
    BYTES = "bytes"
    """A value of the parameter's size, of unknown kind: the image has no PTX."""


@attrs.frozen
class Elements:
    """What a pointer points to, and so the arrays that it takes."""

    dtypes: tuple[str, ...]
    """The names of the dtypes that it takes, the usual one first; empty for any."""
    size: int
    """Bytes of one element: an array has a multiple of them."""
    alignment: int
    """The address of an array is a multiple of this number of bytes."""

    @property
    def description(self) -> str:
        """A text that says which arrays it takes."""
        text = f"an array of {' or '.join(self.dtypes)}" if self.dtypes else "an array of any dtype"
        if self.dtypes and self.size > item_bytes(self.dtypes[0]):
            text += f" with a multiple of {self.size} bytes"
        return text


_ITEM_BYTES = {
    **{f"{kind}{bits}": bits // 8 for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)},
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}


def item_bytes(dtype: str) -> int:
    """Return the bytes of an element of the dtype of this name."""
    return _ITEM_BYTES[dtype]


@attrs.frozen
class Parameter:
    """One parameter of a kernel."""

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
    declaration: str = ""
    """The parameter as C++ declares it, with its name if that is known: ``const float *x``; empty if it is untyped."""
    elements: Elements | None = None
    """What it points to, if it is a pointer of a known type."""
    scalars: tuple[str, ...] | None = None
    """For a struct of a known type, the dtypes of numpy's numbers that it takes; None if it may be any."""
    reads: bool = False
    """True if it is proven that the kernel writes nothing through this pointer, or if the declaration of it says so."""

    @property
    def description(self) -> str:
        """A text that says what a caller must give."""
        words = {
            ParameterKind.BOOL: "a bool, 0 or 1",
            ParameterKind.SIGNED: _range(-(1 << 8 * self.size - 1), 8 * self.size - 1),
            ParameterKind.UNSIGNED: _range(0, 8 * self.size),
            ParameterKind.FLOAT: f"a float of {self.size} bytes",
            ParameterKind.POINTER: "" if self.elements is None else self.elements.description,
            ParameterKind.STRUCT: plural(self.size, "a struct of {} byte"),
            ParameterKind.INTEGER: plural(self.size, "an integer of {} byte"),
            ParameterKind.POINTER_OR_INTEGER: "a device array or an integer of 8 bytes",
            ParameterKind.BYTES: plural(self.size, "a value of exactly {} byte"),
        }
        if self.declaration:
            return f"{words[self.kind]} for `{self.declaration}`"
        return f"{words[self.kind]} ({self.type_name})"


AddressOf: TypeAlias = Callable[[object, Parameter], "int | None"]
"""A function that returns the address of a device array for a parameter, and None for every other object. It raises the
error for an array that the parameter does not take."""


def plural(count: int, text: str) -> str:
    """Return `text` with `count` filled in, and with an s for a plural."""
    return text.format(count) + ("" if count == 1 else "s")


def _range(lowest: int, bits: int) -> str:
    most = f"2**{bits} - 1" if bits > 8 else str((1 << bits) - 1)
    least = f"-2**{bits}" if lowest and bits > 8 else str(lowest)
    return f"an integer from {least} to {most}"
