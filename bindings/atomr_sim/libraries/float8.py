"""Floating point numbers of 8 bits, as tensor cores read and write them: E4M3 and E5M2.

Every code widens to one number of a table. Rounding is to the nearest number, ties to the even code, and saturates: a
number that is too large, or an infinity, becomes the largest finite number. NaN stays NaN.
"""

from __future__ import annotations

import numpy as np

from ..ptx import minifloat
from .dense import Element


def _element(form: minifloat.Format) -> Element:
    return Element(np.dtype(np.uint8), np.dtype(np.float32), form.widen, form.round)


E4M3: Element = _element(minifloat.E4M3)
E5M2: Element = _element(minifloat.E5M2)
