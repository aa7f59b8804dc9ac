"""The numbers that distributions depend on, checked before anything is sent."""

from __future__ import annotations

import math
import numbers
from typing import Final

import numpy as np

from ..._arrays.arrays import DeviceArray
from ..._values.errors import InvalidArgument
from ..._values.util import shown

_LARGEST: Final = {"float32": float(np.finfo(np.float32).max), "float64": float(np.finfo(np.float64).max)}


def scalar(value: object, name: str) -> float:
    """Return a finite number of the host. Raises `InvalidArgument` for anything else."""
    if type(value) is float and math.isfinite(value):
        return value
    if isinstance(value, DeviceArray) or (isinstance(value, np.ndarray) and value.ndim):
        raise InvalidArgument(f"{name} is a number, and no array: draw for each number, or scale the result")
    item = value.item() if isinstance(value, np.ndarray | np.generic) else value
    if isinstance(item, bool) or not isinstance(item, numbers.Real):
        raise InvalidArgument(f"{name} is a number, not {shown(value)}")
    try:
        found = float(item)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise InvalidArgument(f"{name} is a finite number, not {shown(value)}")
    return found


def held(value: float, name: str, dtype: str) -> float:
    """Return a number that `dtype` can hold. Raises `InvalidArgument` if it is too large."""
    if abs(value) > _LARGEST[dtype]:
        raise InvalidArgument(f"{name} is {value!r}, which {dtype} cannot hold")
    return value


def scale(value: object, name: str) -> float:
    """Return a number from 0 on. Raises `InvalidArgument` for anything else."""
    found = scalar(value, name)
    if found < 0:
        raise InvalidArgument(f"{name} is at least 0, not {shown(value)}")
    return found
