"""What a collective is given: arrays by member, operations, roots. Everything is checked before anything is published.

A member is named by its rank, its place in the world. An array belongs to the member whose device it is on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, final

import attrs
import numpy as np

from atomr_cuda.constants import nccl

from ..._arrays.arrays import DeviceArray, Storage, check_usable
from ..._values.dtypes import spelling
from ..._values.errors import InvalidArgument
from ..._values.util import shown
from .records import PREMULTIPLIED

if TYPE_CHECKING:
    from ..._generation.core import DeviceCore

Op = Literal["sum", "prod", "min", "max", "avg"]
"""The operations of a reduction, beside `PremultipliedSum`."""

OPS: Final[dict[str, int]] = {
    "sum": nccl.ncclSum,
    "prod": nccl.ncclProd,
    "max": nccl.ncclMax,
    "min": nccl.ncclMin,
    "avg": nccl.ncclAvg,
}

KINDS: Final[dict[str, int]] = {
    "int8": nccl.ncclInt8,
    "uint8": nccl.ncclUint8,
    "int32": nccl.ncclInt32,
    "uint32": nccl.ncclUint32,
    "int64": nccl.ncclInt64,
    "uint64": nccl.ncclUint64,
    "float16": nccl.ncclFloat16,
    "float32": nccl.ncclFloat32,
    "float64": nccl.ncclFloat64,
    "bfloat16": nccl.ncclBfloat16,
    "float8_e4m3fn": nccl.ncclFloat8e4m3,
    "float8_e5m2": nccl.ncclFloat8e5m2,
}
"""The ``ncclDataType_t`` of a dtype."""
_PAIRS: Final = {"complex64": "float32", "complex128": "float64"}
"""Complex numbers are reduced as pairs of floats, where that gives the same."""
_OF_PAIRS: Final = ("sum", "avg")
_FLOAT8: Final = ("float8_e4m3fn", "float8_e5m2")
_FLOAT8_CAPABILITY: Final = (9, 0)


@final
@attrs.frozen
class PremultipliedSum:
    """An operation of `World`: the sum of what the members give, each multiplied by a factor before it is added.

    The factor is converted to the dtype of the arrays. ``ncclRedOpCreatePreMulSum`` makes it.
    """

    factor: float
    """The factor, a number."""

    def __attrs_post_init__(self) -> None:
        if isinstance(self.factor, bool) or not isinstance(self.factor, int | float | np.integer | np.floating):
            raise InvalidArgument(f"factor is a real number, not {shown(self.factor)}")


def premultiplied_sum(factor: float) -> PremultipliedSum:
    """Return the operation that multiplies by `factor` before it adds, for `World.all_reduce` and the like.

    `factor` is a real number that the dtype of the arrays can hold. Raises `InvalidArgument` for anything else.
    """
    return PremultipliedSum(factor)


@attrs.frozen
class Reduction:
    """A checked operation, in the words of a record."""

    kind: int
    """The ``ncclDataType_t``."""
    operation: int
    factor: bytes
    per_element: int
    """The elements of that type in one of the array."""


def reduction(op: object, dtype: np.dtype[Any], cores: Sequence[DeviceCore]) -> Reduction:
    """Return what an operation is for a dtype. Raises `InvalidArgument` if there is no such operation for it."""
    name = dtype.name
    if not isinstance(op, PremultipliedSum) and (not isinstance(op, str) or op not in OPS):
        names = ", ".join(map(repr, OPS))
        raise InvalidArgument(f"op is one of {names}, or premultiplied_sum(factor), not {shown(op)}")
    pairs = name in _PAIRS
    if pairs and not (isinstance(op, PremultipliedSum) or op in _OF_PAIRS):
        raise InvalidArgument(f"complex numbers have no {op!r} of NCCL; they have 'sum', 'avg' and premultiplied_sum")
    real = np.dtype(_PAIRS[name]) if pairs else dtype
    if real.name not in KINDS:
        raise InvalidArgument(
            f"NCCL does not reduce {spelling(dtype)}; it reduces {', '.join([*KINDS, *_PAIRS])}",
            advice="convert the array to a dtype that it reduces.",
        )
    if name in _FLOAT8:
        for core in cores:
            if core.info.capability < _FLOAT8_CAPABILITY:
                have = ".".join(map(str, core.info.capability))
                raise InvalidArgument(
                    f"8-bit floats are reduced from compute capability 9.0 on, and device {core.index} has {have}",
                    device=core.index,
                )
    if not isinstance(op, PremultipliedSum):
        return Reduction(KINDS[real.name], OPS[op], b"", 1 + pairs)
    return Reduction(KINDS[real.name], PREMULTIPLIED, _factor(op.factor, real), 1 + pairs)


def _factor(factor: float, dtype: np.dtype[Any]) -> bytes:
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if factor != int(factor) or not limits.min <= factor <= limits.max:
            raise InvalidArgument(f"the factor {factor!r} is not a number of dtype {dtype.name}")
        return np.array(int(factor), dtype).tobytes()
    return np.array(factor).astype(dtype).tobytes()


def moved(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the ``ncclDataType_t`` by which elements are moved as they are, and how many of it an element has."""
    if dtype.name in KINDS:
        return KINDS[dtype.name], 1
    return nccl.ncclUint8, dtype.itemsize


def check_rank(rank: object, size: int, what: str = "root") -> int:
    """Return a checked rank. Raises `InvalidArgument`."""
    if type(rank) is not int or not 0 <= rank < size:
        raise InvalidArgument(f"{what} is the rank of a member, from 0 to {size - 1}, not {shown(rank)}")
    return rank


def check_array(core: DeviceCore, array: object, rank: int, what: str) -> DeviceArray:
    """Return a checked array of a member. Raises `InvalidArgument` if it is of another device, or not contiguous."""
    if not isinstance(array, DeviceArray):
        raise InvalidArgument(f"{what} of rank {rank} is an array of device {core.index}, not {shown(array)}")
    owner = array._storage.device
    if owner is not core:
        raise InvalidArgument(
            f"{what} of rank {rank} is on device {owner.index}, and rank {rank} is device {core.index}: "
            "give the arrays in the order of the members",
            device=core.index,
        )
    check_usable(core, array)
    if type(array._storage) is not Storage:
        raise InvalidArgument(
            f"{what} of rank {rank} is a variable of a module, whose memory does not outlive a generation",
            device=core.index,
            advice="copy it to an array: `await array.copy_from(variable)`.",
        )
    if not array.contiguous:
        raise InvalidArgument(
            f"{what} of rank {rank} is not contiguous: its shape is {array.shape}, its strides are {array.strides}",
            device=core.index,
            advice="copy it to an array of its own: `await y.copy_from(x)`.",
        )
    return array


def check_arrays(cores: Sequence[DeviceCore], arrays: object, what: str) -> list[DeviceArray]:
    """Return the checked arrays of all members, in the order of the ranks, all of one shape and dtype.

    Raises `InvalidArgument`.
    """
    if isinstance(arrays, DeviceArray) or not isinstance(arrays, Sequence) or len(arrays) != len(cores):
        given = f"{len(arrays)} of them" if isinstance(arrays, Sequence) else shown(arrays)
        raise InvalidArgument(f"{what} is a sequence with one array for each of {len(cores)} members, not {given}")
    checked = [
        check_array(core, array, rank, what) for rank, (core, array) in enumerate(zip(cores, arrays, strict=True))
    ]
    first = checked[0]
    for rank, array in enumerate(checked):
        check_form(array, first.shape, first.dtype, f"{what} of rank {rank}", "that of rank 0 has {}")
    return checked


def check_form(array: DeviceArray, shape: tuple[int, ...], dtype: np.dtype[Any], what: str, other: str) -> None:
    """Raise `InvalidArgument` unless an array has this shape and dtype. `other` says whose they are, with a place."""
    if array.dtype != dtype:
        raise InvalidArgument(f"{what} has dtype {array.dtype.name}, and {other.format('dtype ' + dtype.name)}")
    if array.shape != shape:
        raise InvalidArgument(f"{what} has shape {array.shape}, and {other.format(f'shape {shape}')}")


def first_axis(shape: tuple[int, ...], size: int, verb: str) -> tuple[int, ...]:
    """Return the shape of one of `size` equal parts along the first axis. Raises `InvalidArgument`."""
    if not shape or shape[0] % size:
        raise InvalidArgument(
            f"{verb} splits the first axis into {size} equal parts, and the shape is {shape}",
            advice="pad the array to a multiple, or use all_to_all_v for parts of different sizes.",
        )
    return (shape[0] // size, *shape[1:])


def check_place(source: DeviceArray, target: DeviceArray, shift: int | None, rank: int) -> None:
    """Raise `InvalidArgument` if input and output of a member overlap, but not as the same elements.

    They may be the same array, or for verbs of parts the member's own part of it: `shift` bytes from the beginning of
    the output to that of the input. With None they must not overlap at all.
    """
    if source._block is not target._block or not source.nbytes or not target.nbytes:
        return
    begin, other = source.address, target.address
    if begin + source.nbytes <= other or other + target.nbytes <= begin:
        return
    if shift is not None and begin == other + shift:
        return
    raise InvalidArgument(
        f"the output of rank {rank} overlaps with its input"
        + ("" if shift is None else ", and not as the same elements"),
        device=source._storage.device.index,
        advice="give an output with memory of its own."
        if shift is None
        else "give an output with memory of its own, or the input itself as `out` to work in place.",
    )
