"""The arrays that a pointer takes: what a launch checks of an array, for a kernel whose types are known."""

from __future__ import annotations

import numpy as np

from ..._arrays.arrays import DeviceArray
from ..._values.dtypes import NARROW_FLOATS, spelling
from ..._values.packing import refuse
from ..._values.parameters import Elements, Parameter, item_bytes

_NONE = object()


def plain_dtype(parameter: Parameter) -> object:
    """Return the dtype whose contiguous arrays fit a parameter whatever their size; another object if there is none."""
    elements = parameter.elements
    if elements is None or len(elements.dtypes) != 1 or elements.size != item_bytes(elements.dtypes[0]):
        return _NONE
    name = elements.dtypes[0]
    return _NONE if name in NARROW_FLOATS and NARROW_FLOATS[name].package != "numpy" else np.dtype(name)


def check_elements(kernel: str, parameter: Parameter, elements: Elements, array: DeviceArray, *, strided: bool) -> None:
    """Raise `InvalidArgument` for an array whose elements are not those that the parameter points to."""
    problem, advice = "", None
    if elements.dtypes and array.dtype.name not in elements.dtypes:
        problem = f"its elements are of {array.dtype.name}"
        wanted = elements.dtypes[0]
        advice = (
            f"for the same bytes as {wanted} pass `x.view({wanted!r})`; for converted numbers copy and convert them."
        )
    elif not array.contiguous and not strided:
        problem = f"its elements do not lie one behind the other; its strides are {array.strides}"
        advice = "copy it to an array of its own, or pass `strided(x)` if the kernel knows the strides."
    elif array.nbytes % elements.size:
        problem = f"it has {array.nbytes} bytes, which is no multiple of {elements.size}"
    elif array.address % elements.alignment and array.size:
        problem = f"its address is no multiple of {elements.alignment}"
        advice = "begin the view at another element, or copy it."
    if problem:
        got = f"an array of {spelling(array.dtype)}, shape {array.shape}"
        refuse(kernel, parameter, array, problem, advice, got)
