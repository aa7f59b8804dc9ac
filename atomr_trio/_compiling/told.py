"""What the compiler told of the kernels of a program, and the signatures that follow from it.

Two things are known of a kernel beyond its PTX's sizes: the types of its parameters, as the probe was told them
(``probe.py``) or as its own mangled name has them; and which arrays it only reads (``reads.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import attrs

from atomr_trio._compiling.reads import proven_reads
from atomr_trio._values.argument_rules import UNTOLD, Extent, typed
from atomr_trio._values.cpp_types import Unreadable, function_type_of, integers_of, parameters_of
from atomr_trio._values.long_texts import in_turn
from atomr_trio._values.parameters import ParameterKind
from atomr_trio._values.signatures import KernelSignature

__all__ = ["NUMBERS", "SIGNED", "TEMPLATE", "UNSIGNED", "Told", "of_plain", "plain", "with_reads", "with_types"]

TEMPLATE: Final = "__atomr_signature"
"""The template of a kernel whose instances' names are asked for."""
NUMBERS: Final = "__atomr_numbers"
"""The template that holds the extents, in the name of such an instance: all sizes, and then all alignments."""
SIGNED: Final = -1
UNSIGNED: Final = -2
"""What stands for the alignment of an enumeration, by the sign of its integer."""


@attrs.frozen
class Told:
    """What the compiler told of one kernel, as it told it."""

    lowered: str
    """The kernel's name in the image."""
    signature: str
    """The mangled name that spells its type."""
    extents: str
    """The mangled name that spells the sizes of its parameters' types; empty if they could not be had."""
    names: tuple[str, ...]
    """The names of its parameters in the source; empty if they are unknown."""


def with_types(signature: KernelSignature, told: Told | None) -> KernelSignature:
    """Return a signature with the types of its parameters, from what was told or from its own mangled name.

    It stays as it is if neither says them, or if they contradict its sizes.
    """
    with contextlib.suppress(Unreadable):
        if told is None:
            return typed(signature, parameters_of(signature.name)) or signature
        types = function_type_of(told.signature, TEMPLATE)
        names = told.names if len(told.names) == len(types) else ()
        return typed(signature, types, _extents(told.extents, len(types)), names) or signature
    return signature


def _extents(mangled: str, count: int) -> list[Extent] | None:
    """Return the extents that a mangled name spells: all sizes, and then all alignments."""
    numbers = integers_of(mangled, TEMPLATE, NUMBERS) if mangled else ()
    if len(numbers) != 2 * count:
        return None
    return [_extent(size, align) for size, align in zip(numbers[:count], numbers[count:], strict=True)]


def _extent(size: int, align: int) -> Extent:
    if align in (SIGNED, UNSIGNED):
        return Extent(size, size, signed=align == SIGNED)
    return Extent(size, align) if size else UNTOLD


def with_reads(entries: Mapping[str, KernelSignature], codes: Iterable[str]) -> Mapping[str, KernelSignature]:
    """Return the kernels of a PTX text, whose parts these are, with what is proven of the arrays that they read."""
    pointers = {name: _pointers(signature) for name, signature in entries.items()}
    proven: dict[str, frozenset[int]] = {}
    for code in in_turn(codes):
        proven |= proven_reads(code, pointers)
    return MappingProxyType(
        {name: _reading(signature, proven.get(name, frozenset())) for name, signature in entries.items()}
    )


def _pointers(signature: KernelSignature) -> frozenset[int]:
    """Return the parameters that arrays may be given for."""
    kinds = (ParameterKind.POINTER, ParameterKind.POINTER_OR_INTEGER)
    return frozenset(each.index for each in signature.parameters if each.kind in kinds)


def _reading(signature: KernelSignature, reads: frozenset[int]) -> KernelSignature:
    if not reads:
        return signature
    parameters = (attrs.evolve(each, reads=each.index in reads) for each in signature.parameters)
    return attrs.evolve(signature, parameters=tuple(parameters))


def plain(told: Mapping[str, Told]) -> dict[str, Any]:
    """Return what was told as lists and texts, for the cache."""
    return {name: [each.signature, each.extents, list(each.names)] for name, each in told.items()}


def of_plain(fields: Mapping[str, Any]) -> dict[str, Told]:
    """Return what `plain` was given."""
    return {name: Told(name, each[0], each[1], tuple(each[2])) for name, each in fields.items()}
