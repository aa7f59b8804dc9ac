"""The short way from a launch's arguments to numbers, written for each kernel.

A batch launches in about a microsecond, and a loop over the arguments would take as long by itself. So this file
generates, for a kernel's parameters, the lines that one would write by hand. They convert the usual types without a
call, and leave for all others, which `KernelSignature.pack` then converts or refuses. A number that is the same object
as with the last launch is not looked at again. They contain only the numbers of the parameters, and no name from a user
or a compiler.
"""

from __future__ import annotations

import functools
import sys
import textwrap
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from .._arrays.access import ReadOnly, Strided, Writes
from .._arrays.arrays import DeviceArray
from .._values.dtypes import NARROW_FLOATS
from .._values.packing import integer_limits
from .._values.parameters import Elements, Parameter, ParameterKind, item_bytes
from .._values.signatures import KernelSignature


class Encoding(NamedTuple):
    """The lines of a function that encode a kernel's arguments, `given`."""

    takes: str
    """They take the arguments apart, and change nothing. The blocks of arrays must have the `token` (`Block.fast`)."""
    notes: str
    """They note in the blocks the launch's lane and ticket, which are `me`."""
    values: str
    """The values that `struct` packs for the parameters, each with a comma."""
    names: Mapping[str, Any]
    """The names in these lines."""


_FLOAT = """
    if a{i} is not last{i}:
        if type(a{i}) is float:
            last{i} = a{i}
        elif type(a{i}) in REALS{size}:
            a{i} = float(a{i})
        else:
            {leave}
"""
_NARROW = """
    if a{i} is not last{i}:
        if type(a{i}) is float:
            if a{i} > {largest} or a{i} < -{largest}:
                {leave}
            last{i} = a{i}
        elif type(a{i}) in REALS{size}:
            a{i} = float(a{i})
            if a{i} > {largest} or a{i} < -{largest}:
                {leave}
        else:
            {leave}
"""
_NO_NUMBER: Final = object()
"""What stands for the number that a parameter was last found to take, as long as there is none."""
_LARGEST = {2: 65504.0, 4: (2 - 2**-23) * 2.0**127}
"""The largest float by its size in bytes. A number that does not fit must be found before a block is changed."""
_BOOL = """
    if a{i} is not True and a{i} is not False:
        {leave}
"""
_TYPED = """
    if a{i} is not last{i}:
        if type(a{i}) is int:
            if not {low} <= a{i} <= {high}:
                {leave}
            last{i} = a{i}
        elif type(a{i}) in INTEGERS:
            a{i} = int(a{i})
            if not {low} <= a{i} <= {high}:
                {leave}
        else:
            {leave}
"""
_INTEGER = (
    _TYPED
    + """\
    a{i} &= {high}
"""
)
_ARRAY = """
    if type(a{i}) is DeviceArray:
        {unless_plain}
        block{i} = a{i}._storage.block
        if block{i}.fast != token:
            {leave}
        reads{i} = {reads}
        a{i} = block{i}.address + a{i}._offset if a{i}._offset else block{i}.address
    elif (kind := type(a{i})) is int:
        if not {low} <= a{i} <= {high_address}:
            {leave}
        block{i} = None
        all_plain = False
        a{i} &= {mask}
    elif kind is ReadOnly or kind is Writes or kind is Strided:
        all_plain = False
        role, strided, a{i} = a{i}.role, a{i}.strided, a{i}.array
        {unless_fits}
        block{i} = a{i}._storage.block
        if block{i}.fast != token:
            {leave}
        reads{i} = {reads} if role is None else kind is ReadOnly
        a{i} = block{i}.address + a{i}._offset if a{i}._offset else block{i}.address
    else:
        {leave}
"""
_OF_PLAIN = """\
    try:
        {given} = given
        all_plain = tries_plain and {plain}
        if all_plain:
{blocks}\
            all_plain = {free}
    except Exception:  # something is no array and has no `_plain`; it may raise anything
        if len(given) != {count}:
            {leave}
        all_plain = tries_plain = False
    if all_plain:
{addresses}\
    else:
        all_plain = True
{general}\
"""
"""The lines for several arguments that are given arrays without marks, as with most launches, and in front of those for
all others. Such an array shows by its `_plain` that it is one, so its type need not be asked for: that takes a twelfth
of a launch of sixteen arguments. An integer in the place of an array has none. An exception takes longer than all of
this, so a kernel that was once given such an argument has its launches go through the other lines from then on."""
_STRUCT = """
    if type(a{i}) is not bytes or len(a{i}) != {size}:
        {leave}
"""
_UNKNOWN = """
    {leave}
"""
_CLAIM = """
        if block{i} is not None:
            if reads{i}:
                block{i}.reader = me
            else:
                block{i}.writer = me
                if block{i}.readers:
                    block{i}.readers = {{}}
"""
_CLAIM_READ = """
        block{i}.reader = me
"""
_CLAIM_WRITTEN = """
        block{i}.writer = me
        if block{i}.readers:
            block{i}.readers = {{}}
"""
_PARTS = {
    ParameterKind.BOOL: _BOOL,
    ParameterKind.SIGNED: _TYPED,
    ParameterKind.UNSIGNED: _TYPED,
    ParameterKind.FLOAT: _FLOAT,
    ParameterKind.POINTER: _ARRAY,
    ParameterKind.STRUCT: _STRUCT,
    ParameterKind.INTEGER: _INTEGER,
    ParameterKind.POINTER_OR_INTEGER: _ARRAY,
    ParameterKind.BYTES: _UNKNOWN,
}
_SCALARS: dict[str, Any] = {
    "INTEGERS": frozenset(np.dtype(letter).type for letter in "bBhHiIlLqQ"),
    "REALS2": frozenset({np.float16}),
    "REALS4": frozenset({np.float16, np.float32}),
    "REALS8": frozenset({np.float16, np.float32, np.float64}),
}
"""numpy's scalars that a parameter takes as it takes those of Python, by the names in the text; floats by its bytes."""
_OF_ARRAYS = (ParameterKind.POINTER, ParameterKind.POINTER_OR_INTEGER)


def encoding(signature: KernelSignature, leave: str) -> Encoding:
    """Return the lines for the parameters of a kernel, which `leave` by this statement where they do not know a type.

    Kernels that take the same share them.
    """
    return _written(tuple(map(_without_names, signature.parameters)), leave)


def _without_names(parameter: Parameter) -> Parameter:
    """Return what decides the text of the function alone."""
    kind, size, elements, reads = parameter.kind, parameter.size, parameter.elements, parameter.reads
    return Parameter(parameter.index, kind, size, 0, 0, "", elements=elements, reads=reads)


@functools.lru_cache(maxsize=1024)
def _written(parameters: tuple[Parameter, ...], leave: str) -> Encoding:
    values = [f"a{index}" for index in range(len(parameters))]
    listed = "".join(f"{value}, " for value in values)
    classes = {"DeviceArray": DeviceArray, "ReadOnly": ReadOnly, "Writes": Writes, "Strided": Strided}
    names: dict[str, Any] = {**classes, **_SCALARS}
    proven = any(parameter.reads for parameter in parameters)
    parts = [_part(i, parameter, names, leave, proven=proven) for i, parameter in enumerate(parameters)]
    arrays = [(i, each) for i, each in enumerate(parameters) if each.kind in _OF_ARRAYS]
    others = "".join(part for part, each in zip(parts, parameters, strict=True) if each.kind not in _OF_ARRAYS)
    if arrays:
        general = textwrap.indent("".join(parts[i] for i, _ in arrays), "    ")
        text = _of_plain(arrays, listed, len(values), leave, general) + others
        names["tries_plain"] = True
    else:
        text = f"    if len(given) != {len(values)}:\n        {leave}\n"
        text += f"    {listed} = given\n{others}" if values else ""
    kept = [f"last{i}" for i in range(len(parameters)) if f"last{i}" in text]
    named = [*kept, *(["tries_plain"] if arrays else [])]
    if named:
        text = f"    global {', '.join(named)}\n{text}"
    names |= dict.fromkeys(kept, _NO_NUMBER)
    return Encoding(text, _notes(arrays), listed, MappingProxyType(names))


def _of_plain(arrays: Sequence[tuple[int, Parameter]], given: str, count: int, leave: str, general: str) -> str:
    """Return the lines for arguments of which these are given arrays, most often without marks; see `_OF_PLAIN`."""
    address = "        a{i} = block{i}.address + a{i}._offset if a{i}._offset else block{i}.address\n"
    return _OF_PLAIN.format(
        given=given,
        plain=" and ".join(_is_plain(i, each) for i, each in arrays),
        blocks="".join(f"            block{i} = a{i}._storage.block\n" for i, _ in arrays),
        free=" and ".join(f"block{i}.fast == token" for i, _ in arrays),
        count=count,
        leave=leave,
        addresses="".join(address.format(i=i) for i, _ in arrays),
        general=general,
    )


def _is_plain(i: int, parameter: Parameter) -> str:
    """Return whether an argument is an array without a mark that the parameter takes.

    Only such an array has a dtype for its `_plain`. Where that does not matter, or may be any, its type is asked for.
    """
    taken = _takes_plain(i, parameter)
    if parameter.elements is not None and parameter.elements.dtypes and taken:
        return taken
    return f"type(a{i}) is DeviceArray{' and ' * bool(taken)}{taken}"


def _takes_plain(i: int, parameter: Parameter) -> str:
    """Return whether the parameter takes an array without a mark; nothing if it takes any."""
    elements = parameter.elements
    if parameter.kind is ParameterKind.POINTER_OR_INTEGER or elements is None:
        return ""
    if not elements.dtypes:
        return f"a{i}._plain is not None"
    taken = f"a{i}._plain is D{i}" if len(elements.dtypes) == 1 else f"(a{i}._plain is D{i} or a{i}._plain is E{i})"
    return " and ".join([taken, *_parts_of_larger(i, elements)])


def _parts_of_larger(i: int, elements: Elements) -> list[str]:
    """Return what must be true of an array whose numbers are parts of the elements that the parameter points to."""
    if elements.size == item_bytes(elements.dtypes[0]):
        return []
    return [f"not a{i}.address % {elements.alignment}", f"not a{i}.nbytes % {elements.size}"]


def _notes(arrays: Sequence[tuple[int, Parameter]]) -> str:
    """Return the lines that note a launch in the blocks of the parameters that may be arrays.

    Most launches are given arrays without marks for all of them, and then it is known what each is for.
    """
    if not arrays:
        return ""
    plain = "".join((_CLAIM_READ if each.reads else _CLAIM_WRITTEN).format(i=i) for i, each in arrays)
    return f"    if all_plain:{plain}    else:{''.join(_CLAIM.format(i=i) for i, _ in arrays)}"


def _part(i: int, parameter: Parameter, known: dict[str, Any], leave: str, *, proven: bool) -> str:
    """Return the lines for one parameter, and add the dtypes that they name to `known`."""
    kind, size = parameter.kind, parameter.size
    part = _NARROW if kind is ParameterKind.FLOAT and size in _LARGEST else _PARTS[kind]
    if kind in (ParameterKind.SIGNED, ParameterKind.UNSIGNED) and size > 8:
        part = _UNKNOWN
    low, high = integer_limits(parameter)
    # A number may be the address of any array, so then nothing that is proven of the others counts.
    high_address = 0 if proven and not parameter.reads else high
    plain, fits = _checks(i, parameter, known, leave)
    return part.format(
        i=i,
        leave=leave,
        size=size,
        low=0 if high_address == 0 and kind in _OF_ARRAYS else low,
        high=high,
        mask=(1 << 8 * size) - 1,
        high_address=high_address,
        largest=_LARGEST.get(size),
        reads=parameter.reads,
        unless_plain=plain,
        unless_fits=fits,
    )


def _checks(i: int, parameter: Parameter, known: dict[str, Any], leave: str) -> tuple[str, str]:
    """Return the lines that leave for an array that a parameter does not take: without a mark, and with one."""
    taken, elements = _takes_plain(i, parameter), parameter.elements
    if not taken or elements is None:
        return "pass", "pass"
    known |= {f"{letter}{i}": _dtype(name) for letter, name in zip("DE", elements.dtypes, strict=False)}
    fits = f"(a{i}._plain is not None or strided)"
    if elements.dtypes:
        fits = " and ".join([f"a{i}.dtype is D{i}", fits, *_parts_of_larger(i, elements)])
    return f"if not ({taken}): {leave}", f"if not ({fits}): {leave}"


def _dtype(name: str) -> object:
    """Return the dtype of this name; another object if its package is not imported, since no array has it then."""
    package = NARROW_FLOATS[name].package if name in NARROW_FLOATS else "numpy"
    if package == "numpy":
        return np.dtype(name)
    module = sys.modules.get(package)
    return object() if module is None else np.dtype(getattr(module, name))
