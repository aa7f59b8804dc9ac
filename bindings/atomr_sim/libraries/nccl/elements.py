"""The types of elements of the simulated NCCL, and its reductions.

A reduction takes the ranks in their order and rounds after each step, so the bits are the same on every rank and in
every run. The real library adds in the order of its rings and trees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from atomr_cuda.library_types import cudaDataType
from atomr_cuda.nccl import ncclDataType_t as Type, ncclRedOp_t as Op

from ..dense import ELEMENTS as DENSE, Element
from ..float8 import E4M3, E5M2

if TYPE_CHECKING:
    from ...engine.memory import Array


def _plain(kind: type) -> Element:
    return Element(np.dtype(kind), np.dtype(kind))


ELEMENTS: dict[int, Element] = {
    Type.ncclInt8: _plain(np.int8),
    Type.ncclUint8: _plain(np.uint8),
    Type.ncclInt32: _plain(np.int32),
    Type.ncclUint32: _plain(np.uint32),
    Type.ncclInt64: _plain(np.int64),
    Type.ncclUint64: _plain(np.uint64),
    Type.ncclFloat16: DENSE[cudaDataType.CUDA_R_16F],
    Type.ncclFloat32: _plain(np.float32),
    Type.ncclFloat64: _plain(np.float64),
    Type.ncclBfloat16: DENSE[cudaDataType.CUDA_R_16BF],
    Type.ncclFloat8e4m3: E4M3,
    Type.ncclFloat8e5m2: E5M2,
}
FLOAT8 = (Type.ncclFloat8e4m3, Type.ncclFloat8e5m2)
_STEPS: dict[int, Callable[[Array, Array], Array]] = {
    Op.ncclSum: np.add,
    Op.ncclProd: np.multiply,
    Op.ncclMax: np.fmax,  # of a number and NaN, the number
    Op.ncclMin: np.fmin,
    Op.ncclAvg: np.add,
}


@dataclass(frozen=True)
class Factor:
    """The operation that multiplies inputs before it adds them. The factor is read when a collective runs, or now."""

    kind: int
    read: Callable[[], Array]
    """The factor as one number, of the type that numpy computes with."""


def _numbers(kind: int, raw: Array) -> Array:
    element = ELEMENTS[kind]
    return element.widen(raw.view(element.storage)).astype(element.number, copy=False)


def _stored(kind: int, numbers: Array) -> Array:
    element = ELEMENTS[kind]
    rounded: Array = element.round(numbers.astype(element.number, copy=False))
    return rounded.view(np.uint8)


def prepare(kind: int, op: int | Factor | None, ranks: int, raw: Array) -> Array:
    """What a rank contributes, as bytes: its input, multiplied where the operation says so.

    An average of floating-point numbers multiplies by the reciprocal of the number of ranks, as the real library does.
    """
    element = ELEMENTS[kind]
    if isinstance(op, Factor):
        return _stored(kind, _numbers(kind, raw) * op.read())
    if op == Op.ncclAvg and element.number.kind == "f":
        reciprocal = np.array([1 / ranks], element.number)
        if kind in FLOAT8:
            reciprocal = reciprocal.astype(np.float16).astype(element.number)
        else:
            reciprocal = element.widen(element.round(reciprocal)).astype(element.number)
        return _stored(kind, _numbers(kind, raw) * reciprocal)
    return raw


def reduce(kind: int, op: int | Factor, parts: Sequence[Array]) -> Array:
    """The reduction of what the ranks contribute, in the order of the ranks, as bytes.

    Integers wrap, and their average is cut towards zero. A float of 8 bits that is too large is the largest.
    """
    step = np.add if isinstance(op, Factor) else _STEPS[op]
    result = parts[0]
    for part in parts[1:]:
        result = _stored(kind, step(_numbers(kind, result), _numbers(kind, part)))
    number = ELEMENTS[kind].number
    if op == Op.ncclAvg and number.kind in "iu":
        total = _numbers(kind, result)
        count = number.type(len(parts))
        quotient = total // count
        if number.kind == "i":
            quotient = quotient + ((total < 0) & (total % count != 0)).astype(number)
        result = _stored(kind, quotient)
    return result
