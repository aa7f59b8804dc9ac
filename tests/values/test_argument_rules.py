"""Types of parameters that what is known of the image contradicts: the parameter keeps what the image says."""

from __future__ import annotations

import pytest

from atomr_trio._values.argument_rules import Extent, typed
from atomr_trio._values.cpp_types import Array, Builtin, CppType, Function, Named, Pointer
from atomr_trio._values.parameters import Parameter, ParameterKind
from atomr_trio._values.signatures import KernelSignature


def parameter_of(kind: ParameterKind, size: int) -> Parameter:
    """Return the first parameter of a kernel, as PTX has it."""
    return Parameter(0, kind, size, size, 0, f"b{8 * size}")


INTEGER = parameter_of(ParameterKind.INTEGER, 4)
WIDE = parameter_of(ParameterKind.INTEGER, 16)
ADDRESS = parameter_of(ParameterKind.POINTER_OR_INTEGER, 8)
STRUCT = parameter_of(ParameterKind.STRUCT, 12)
MINE = Named(("Mine",))


def of(parameter: Parameter, kind: CppType, extent: Extent | None = None) -> Parameter | None:
    """Return the parameter as this type has it; None where they contradict each other."""
    signature = KernelSignature("k", (parameter,), parameter.size)
    found = typed(signature, [kind], None if extent is None else [extent])
    return None if found is None else found.parameters[0]


@pytest.mark.parametrize(
    ("parameter", "kind", "extent"),
    [
        (INTEGER, Builtin("d"), None),
        (INTEGER, Builtin("f"), None),
        (WIDE, Builtin("n"), None),
        (INTEGER, Builtin("no such code"), None),
        (INTEGER, Pointer(Builtin("f")), None),
        (ADDRESS, Pointer(Builtin("no such code")), None),
        (ADDRESS, Pointer(Array(Builtin("no such code"), 3)), None),
        (INTEGER, Array(Builtin("f"), 1), None),
        (ADDRESS, Pointer(Array(Function(Builtin("v"), ()), 2)), None),
        (STRUCT, MINE, Extent(8, 4)),
        (parameter_of(ParameterKind.FLOAT, 4), MINE, Extent(4, 4)),
        (INTEGER, MINE, Extent(4, 4)),
        (INTEGER, MINE, Extent(2, 2, signed=True)),
    ],
)
def test_a_type_that_contradicts_the_image_is_not_taken(
    parameter: Parameter, kind: CppType, extent: Extent | None
) -> None:
    assert of(parameter, kind, extent) is None


def test_types_of_another_number_of_parameters_are_not_taken() -> None:
    assert typed(KernelSignature("k", (INTEGER,), 4), []) is None


def test_a_pointer_to_code_is_a_number() -> None:
    found = of(ADDRESS, Pointer(Function(Builtin("v"), ())))
    assert found is not None
    assert found.kind is ParameterKind.UNSIGNED


def test_a_pointer_to_an_enumeration_has_its_integers_and_one_to_a_class_its_bytes() -> None:
    enumeration = of(ADDRESS, Pointer(MINE), Extent(2, 2, signed=False))
    assert enumeration is not None
    assert enumeration.elements is not None
    assert enumeration.elements.dtypes == ("uint16",)
    own = of(ADDRESS, Pointer(Named(("float4",))), Extent(12, 4))
    assert own is not None
    assert own.elements is not None
    assert own.elements.size == 12


def test_a_structure_that_is_an_enumeration_has_its_sign() -> None:
    found = of(parameter_of(ParameterKind.BYTES, 4), MINE, Extent(4, 4, signed=True))
    assert found is not None
    assert found.kind is ParameterKind.SIGNED


def test_a_named_type_of_unknown_extent_stays_what_the_image_says() -> None:
    assert of(INTEGER, MINE) is not None
    found = of(parameter_of(ParameterKind.BYTES, 4), MINE)
    assert found is not None
    assert found.kind is ParameterKind.BYTES
