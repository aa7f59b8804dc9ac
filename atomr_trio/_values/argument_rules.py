"""What a parameter takes, by its type in C++.

`typed` puts the types that the compiler told of a kernel beside the sizes that PTX declares. Where the two do not agree
in every parameter, the kernel stays untyped: then arguments are checked by sizes alone, as PTX allows.

The rules for pointers: a pointer to a number takes arrays of its dtype, one to a vector type (``float4``) those of its
elements, one to a complex those of the complex dtype; ``void *`` takes all. A pointer to a type that no dtype stands
for, as to a struct, takes arrays of bytes, ``uint8``, whose size is a multiple of the type's.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import attrs

from atomr_trio._values.cpp_types import Array, Builtin, CppType, Function, Named, Pointer, spelled, unqualified
from atomr_trio._values.dtypes import NARROW_FLOATS
from atomr_trio._values.parameters import Elements, Parameter, ParameterKind
from atomr_trio._values.signatures import KernelSignature

__all__ = ["UNTOLD", "Extent", "typed"]


@attrs.frozen
class Extent:
    """The size of a class or an enumeration that a parameter has, or points to."""

    size: int
    """Bytes; 0 if it is neither, or incomplete."""
    alignment: int
    """Bytes; 0 likewise."""
    signed: bool | None = None
    """For an enumeration, whether its underlying integer has a sign; None for a class."""


UNTOLD: Final = Extent(0, 0)
"""The extent of all other types."""


@attrs.frozen
class _Number:
    kind: ParameterKind
    size: int
    dtypes: tuple[str, ...]


_CHAR_IS_SIGNED: Final = platform.machine() not in ("aarch64", "arm64")
"""Whether a plain char has a sign: NVRTC follows the compilers of the host."""


def _integers(codes: str, size: int) -> dict[str, _Number]:
    """The numbers of a signed and an unsigned code."""
    return {
        codes[0]: _Number(ParameterKind.SIGNED, size, (f"int{8 * size}",)),
        codes[1]: _Number(ParameterKind.UNSIGNED, size, (f"uint{8 * size}",)),
    }


_NUMBERS: Final[Mapping[str, _Number]] = MappingProxyType(
    {
        **_integers("ah", 1),
        **_integers("st", 2),
        **_integers("ij", 4),
        **_integers("lm", 8),
        **_integers("xy", 8),
        "b": _Number(ParameterKind.BOOL, 1, ("bool",)),
        "c": _Number(ParameterKind.SIGNED if _CHAR_IS_SIGNED else ParameterKind.UNSIGNED, 1, ("int8", "uint8")),
        "n": _Number(ParameterKind.SIGNED, 16, ()),
        "o": _Number(ParameterKind.UNSIGNED, 16, ()),
        "w": _Number(ParameterKind.SIGNED, 4, ("int32",)),
        "Ds": _Number(ParameterKind.UNSIGNED, 2, ("uint16",)),
        "Di": _Number(ParameterKind.UNSIGNED, 4, ("uint32",)),
        "Du": _Number(ParameterKind.UNSIGNED, 1, ("uint8",)),
        "f": _Number(ParameterKind.FLOAT, 4, ("float32",)),
        "d": _Number(ParameterKind.FLOAT, 8, ("float64",)),
    }
)
"""Builtin types by their code in mangled names."""


def _vectors() -> dict[str, Elements]:
    """CUDA's vector types (``vector_types.h``) by name."""
    bases = {
        "char": ("int8", 1),
        "uchar": ("uint8", 1),
        "short": ("int16", 2),
        "ushort": ("uint16", 2),
        "int": ("int32", 4),
        "uint": ("uint32", 4),
        "long": ("int64", 8),
        "ulong": ("uint64", 8),
        "longlong": ("int64", 8),
        "ulonglong": ("uint64", 8),
        "float": ("float32", 4),
        "double": ("float64", 8),
    }
    complexes = {"float2": ("complex64",), "double2": ("complex128",)}
    found = {}
    for base, (dtype, item) in bases.items():
        for count in (1, 2, 3, 4):
            alignment = item if count == 3 else min(16, item * count)
            name = f"{base}{count}"
            found[name] = Elements((dtype, *complexes.get(name, ())), item * count, alignment)
        if item == 8:
            for alignment in (16, 32):  # since CUDA 13
                found[f"{base}4_{alignment}a"] = Elements((dtype,), 4 * item, alignment)
    return found


_CLASSES: Final[Mapping[str, Elements]] = MappingProxyType(
    {
        **_vectors(),
        **{each.cuda_name: Elements((name,), each.itemsize, each.itemsize) for name, each in NARROW_FLOATS.items()},
        "__half2": Elements(("float16",), 4, 4),
        "__nv_bfloat162": Elements(("bfloat16",), 4, 4),
        "__nv_fp8x2_e4m3": Elements(("float8_e4m3fn",), 2, 2),
        "__nv_fp8x4_e4m3": Elements(("float8_e4m3fn",), 4, 4),
        "__nv_fp8x2_e5m2": Elements(("float8_e5m2",), 2, 2),
        "__nv_fp8x4_e5m2": Elements(("float8_e5m2",), 4, 4),
        "dim3": Elements(("uint32",), 12, 4),
    }
)
"""The classes that stand for numbers of a dtype, or for several of them, by name."""

_SCALARS: Final = ("float2", "double2", *(each.cuda_name for each in NARROW_FLOATS.values()))
"""Those of them that one number stands for: the last dtype of each."""

_OF_COMPLEX: Final[Mapping[CppType, Elements]] = MappingProxyType(
    {Builtin("f"): Elements(("complex64",), 8, 8), Builtin("d"): Elements(("complex128",), 16, 16)}
)
_COMPLEX_OF: Final = ("cuda", "thrust", "std")
"""The namespaces of a template called complex."""

_ANY: Final = Elements((), 1, 1)
_BYTES: Final = ("uint8",)
_ADDRESSES: Final = Elements(("uint64",), 8, 8)


def typed(
    signature: KernelSignature,
    types: Sequence[CppType],
    extents: Sequence[Extent] | None = None,
    names: Sequence[str] = (),
) -> KernelSignature | None:
    """Return the signature with the types of its parameters; None if they do not agree with its sizes.

    `extents` are those of the classes and enumerations among the types; None where nobody could tell. `names` are the
    parameters' own, and only shown: empty if they are unknown.
    """
    if len(types) != len(signature.parameters):
        return None
    parameters = []
    for index, (parameter, kind) in enumerate(zip(signature.parameters, types, strict=True)):
        rules = _rules(parameter, unqualified(kind), None if extents is None else extents[index])
        if rules is None:
            return None
        declaration = spelled(kind, names[index] if names else "")
        parameters.append(attrs.evolve(rules, declaration=declaration))
    return attrs.evolve(signature, parameters=tuple(parameters))


def _rules(parameter: Parameter, kind: CppType, extent: Extent | None) -> Parameter | None:
    """Return the parameter as its type has it; None for a type that its size or its kind in PTX contradicts."""
    match kind:
        case Builtin(code):
            return _number(parameter, _NUMBERS.get(code))
        case Pointer(target):
            return _pointer(parameter, unqualified(target), extent)
        case Named():
            return _class(parameter, kind, extent)
    return None


_UNKNOWN: Final = (ParameterKind.BYTES,)
_WHOLE: Final = (ParameterKind.INTEGER, ParameterKind.POINTER_OR_INTEGER, *_UNKNOWN)


def _number(parameter: Parameter, number: _Number | None) -> Parameter | None:
    if number is None or number.size != parameter.size:
        return None
    expected = (ParameterKind.FLOAT, *_UNKNOWN) if number.kind is ParameterKind.FLOAT else _WHOLE
    if number.size > 8:
        expected = (ParameterKind.STRUCT, *_UNKNOWN)
    return attrs.evolve(parameter, kind=number.kind) if parameter.kind in expected else None


def _pointer(parameter: Parameter, target: CppType, extent: Extent | None) -> Parameter | None:
    if parameter.kind not in (ParameterKind.POINTER_OR_INTEGER, *_UNKNOWN) or parameter.size != 8:
        return None
    if isinstance(target, Function):  # no array holds code
        return attrs.evolve(parameter, kind=ParameterKind.UNSIGNED)
    elements = _elements(target, extent)
    return None if elements is None else attrs.evolve(parameter, kind=ParameterKind.POINTER, elements=elements)


def _elements(target: CppType, extent: Extent | None) -> Elements | None:
    match target:
        case Builtin("v"):
            return _ANY
        case Builtin(code):
            number = _NUMBERS.get(code)
            return None if number is None else Elements(number.dtypes or _BYTES, number.size, number.size)
        case Pointer():
            return _ADDRESSES
        case Array(inner, length):
            each = _elements(unqualified(inner), extent)
            return None if each is None else attrs.evolve(each, size=each.size * length)
        case Named():
            return _elements_of_class(target, extent)
    return None


def _elements_of_class(target: Named, extent: Extent | None) -> Elements:
    known = _known_class(target)
    if known is not None:
        return _as_told(known, extent)
    if extent is None:  # it may be an enumeration as well
        return _ANY
    if extent.signed is not None:
        return Elements((f"{'int' if extent.signed else 'uint'}{8 * extent.size}",), extent.size, extent.size)
    return Elements(_BYTES, max(1, extent.size), max(1, extent.alignment))


def _as_told(known: Elements, extent: Extent | None) -> Elements:
    """Return the elements of a class of CUDA, but as bytes if a program's own class of that name has another size."""
    if extent is None or not extent.size or (extent.size == known.size and extent.signed is None):
        return known if extent is None or not extent.size else attrs.evolve(known, alignment=extent.alignment)
    return Elements(_BYTES, extent.size, max(1, extent.alignment))


def _known_class(named: Named) -> Elements | None:
    if len(named.parts) == 1 and not named.arguments:
        return _CLASSES.get(named.parts[0])
    if named.parts[-1] == "complex" and named.parts[0] in _COMPLEX_OF and len(named.arguments) == 1:
        argument = named.arguments[0]
        return None if isinstance(argument, str) else _OF_COMPLEX.get(argument)
    return None


def _class(parameter: Parameter, named: Named, extent: Extent | None) -> Parameter | None:
    if parameter.kind in (ParameterKind.INTEGER, ParameterKind.POINTER_OR_INTEGER):
        return _enumeration(parameter, extent)
    if extent is not None and extent.size not in (0, parameter.size):
        return None
    if parameter.kind not in (ParameterKind.STRUCT, *_UNKNOWN):
        return None
    if parameter.kind is ParameterKind.BYTES and extent is None:
        return attrs.evolve(parameter)  # a class or an enumeration: its size is all that is known
    if extent is not None and extent.signed is not None:
        return _enumeration(parameter, extent)
    return attrs.evolve(parameter, kind=ParameterKind.STRUCT, scalars=_scalars(named))


def _scalars(named: Named) -> tuple[str, ...]:
    """Return the dtypes of the numbers that have the layout of a class."""
    known = _known_class(named)
    if known is None or (named.parts[-1] not in _SCALARS and not named.arguments):
        return ()
    return known.dtypes[-1:]


def _enumeration(parameter: Parameter, extent: Extent | None) -> Parameter | None:
    if extent is None:
        return parameter
    if extent.signed is None or extent.size != parameter.size:
        return None
    return attrs.evolve(parameter, kind=ParameterKind.SIGNED if extent.signed else ParameterKind.UNSIGNED)
