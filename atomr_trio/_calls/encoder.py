"""The short way from a launch's arguments to numbers, written for each kernel.

A batch launches in about a microsecond, and a loop over the arguments would take as long by itself. So this file
generates, for a kernel's parameters, the function that one would write by hand. It converts the usual types without a
call, and returns None for all others, which `KernelSignature.pack` then converts or refuses. The text of the function
contains only the numbers of the parameters; it contains no name from a user or a compiler.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from .._arrays.access import ReadOnly
from .._arrays.arrays import DeviceArray
from .._values.parameters import KernelSignature, ParameterKind

Encode = Callable[[tuple[object, ...], int, tuple[int, int]], "tuple[object, ...] | None"]
"""A function of the arguments, the token that their blocks must have (see `Block.fast`), and the launch's lane and
ticket, which it notes in the blocks. It returns the value that `struct` packs for each parameter; or None, with no
effect."""

_FLOAT = """
    if type(a{i}) is not float:
        return None
"""
_NARROW = """
    if type(a{i}) is not float or a{i} > {largest} or a{i} < -{largest}:
        return None
"""
_LARGEST = {2: 65504.0, 4: (2 - 2**-23) * 2.0**127}
"""The largest float by its size in bytes. A number that does not fit must be found before a block is changed."""
_INTEGER = """
    if type(a{i}) is not int or not {low} <= a{i} <= {mask}:
        return None
    a{i} &= {mask}
"""
_ADDRESS = """
    block{i} = None
    kind = type(a{i})
    if kind is DeviceArray:
        block{i}, reads{i}, offset = a{i}._storage.block, False, a{i}._offset
    elif kind is ReadOnly:
        a{i} = a{i}.array
        block{i}, reads{i}, offset = a{i}._storage.block, True, a{i}._offset
    elif kind is not int or not {low} <= a{i} <= {mask}:
        return None
    if block{i} is None:
        a{i} &= {mask}
    elif block{i}.fast != token:
        return None
    else:
        a{i} = block{i}.address + offset
"""
_STRUCT = """
    if type(a{i}) is not bytes or len(a{i}) != {size}:
        return None
"""
_UNKNOWN = """
    return None
"""
_CLAIM = """
    if block{i} is not None:
        if reads{i}:
            block{i}.readers[me[0]] = me[1]
        else:
            block{i}.writer = me
            if block{i}.readers:
                block{i}.readers = {{}}
"""
_PARTS = {
    ParameterKind.FLOAT: _FLOAT,
    ParameterKind.INTEGER: _INTEGER,
    ParameterKind.POINTER_OR_INTEGER: _ADDRESS,
    ParameterKind.STRUCT: _STRUCT,
    ParameterKind.BYTES: _UNKNOWN,
}


def encoder(signature: KernelSignature) -> Encode:
    """Return the function for the parameters of a kernel; kernels with the same kinds of parameters share one."""
    return _written(tuple((parameter.kind, parameter.size) for parameter in signature.parameters))


@functools.lru_cache(maxsize=1024)
def _written(parameters: tuple[tuple[ParameterKind, int], ...]) -> Encode:
    names = [f"a{index}" for index in range(len(parameters))]
    listed = "".join(f"{name}, " for name in names)
    text = f"def encode(arguments, token, me):\n    if len(arguments) != {len(names)}:\n        return None\n"
    if names:
        text += f"    {listed} = arguments\n"
    addresses = [i for i, (kind, _) in enumerate(parameters) if kind is ParameterKind.POINTER_OR_INTEGER]
    for i, (kind, size) in enumerate(parameters):
        part = _NARROW if kind is ParameterKind.FLOAT and size in _LARGEST else _PARTS[kind]
        numbers = {"low": -(1 << 8 * size - 1), "mask": (1 << 8 * size) - 1, "largest": _LARGEST.get(size)}
        text += part.format(i=i, size=size, **numbers)
    text += "".join(_CLAIM.format(i=i) for i in addresses)
    text += f"    return ({listed})\n"
    names_of_function: dict[str, Encode] = {}
    exec(text, {"DeviceArray": DeviceArray, "ReadOnly": ReadOnly}, names_of_function)
    return names_of_function["encode"]
