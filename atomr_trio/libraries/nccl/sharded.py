"""An array that is split over the members of a world."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final, overload

import numpy as np
import numpy.typing as npt

from ..._arrays.arrays import DeviceArray, as_host
from ..._values.errors import InvalidArgument
from ..._values.util import NoPublicConstructor, shown

if TYPE_CHECKING:
    from ..._generation.core import DeviceCore


class _ShardedType(NoPublicConstructor, abc.ABCMeta):
    """The metaclass of a sequence that only this library makes."""


@final
class Sharded(Sequence[DeviceArray], metaclass=_ShardedType):
    """An array that is split along one axis, with a part on each member of a world. Made by `World.shard`.

    It is a sequence of the parts, in the order of the ranks, and every verb of the world takes it as that.
    """

    _made_by = "`await world.shard(array)`"

    def __init__(self, parts: Sequence[DeviceArray], axis: int) -> None:
        self._parts = tuple(parts)
        self.axis: int = axis
        """The number of the axis that is split, from 0 on."""

    def __repr__(self) -> str:
        return f"<Sharded {self.shape} {self.dtype.name}, {len(self)} parts along axis {self.axis}>"

    def __len__(self) -> int:
        """Return the number of parts."""
        return len(self._parts)

    @overload
    def __getitem__(self, rank: int) -> DeviceArray: ...

    @overload
    def __getitem__(self, rank: slice) -> tuple[DeviceArray, ...]: ...

    def __getitem__(self, rank: int | slice) -> DeviceArray | tuple[DeviceArray, ...]:
        """Return the part of a rank, an array of the shape and dtype of all parts, or those of a slice.

        Raises `IndexError` for a number that is no rank.
        """
        return self._parts[rank]

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes of the whole array."""
        shape = list(self._parts[0].shape)
        shape[self.axis] *= len(self._parts)
        return tuple(shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an element."""
        return self._parts[0].dtype

    async def to_host(self) -> npt.NDArray[Any]:
        """Return a new numpy array with all elements, of the same shape and dtype (``cuMemcpyDtoHAsync``).

        Raises `InvalidArgument` if a part was freed, `StaleArray` if one is torn or lost, `ContextLost` if a context is
        lost meanwhile.
        """
        return np.concatenate([await part.to_host() for part in self._parts], self.axis)


async def shard(cores: Sequence[DeviceCore], array: npt.ArrayLike, axis: object) -> Sharded:
    """Split an array of the host: the work of `World.shard`."""
    host = as_host(array)
    if type(axis) is not int or not -host.ndim <= axis < host.ndim:
        raise InvalidArgument(f"axis is the number of an axis of an array with {host.ndim} axes, not {shown(axis)}")
    place = axis % host.ndim
    if host.shape[place] % len(cores):
        raise InvalidArgument(
            f"axis {place} of shape {host.shape} cannot be split into {len(cores)} equal parts",
            advice="pad the array to a multiple of the number of members.",
        )
    parts = np.split(host, len(cores), place)
    return Sharded._create([await core.face.to_device(part) for core, part in zip(cores, parts, strict=True)], place)
