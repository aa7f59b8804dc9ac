"""Verbs that are recorded: planned once, and made with each launch of a graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import attrs
import numpy as np
import numpy.typing as npt

from .._arrays.arrays import DeviceArray
from .._arrays.memory import DeviceMemory
from .._generation.requests import CommandRequest
from .._values.errors import InvalidArgument
from .._values.util import known
from .outgoing import Outgoing, number_of
from .verbs import Library, flat

if TYPE_CHECKING:
    from .._generation.core import DeviceCore

T = TypeVar("T")


@attrs.frozen(eq=False)
class Planned:
    """A call of a verb that was planned and not sent."""

    operation: str
    """Its name, such as ``"blas.gemm"``."""
    requests: Sequence[CommandRequest]
    """Its commands, in order."""
    made: Sequence[DeviceArray]
    """The new arrays, for results and for intermediate values, whose contents nobody has set."""
    zeros: Sequence[DeviceArray]
    """The new arrays that are zero before the first command."""
    result: object
    again: Callable[..., Planned]
    """A function that plans the same verb with other arguments. Its results are in the same arrays, unless the
    arguments name others."""


class CallRecorder(Protocol):
    """Keeps planned calls, to be made later and repeatedly."""

    def _check_open(self) -> None:
        """Raise `InvalidArgument` if it takes no more."""

    def _add_call(self, planned: Planned) -> None:
        """Keep a call. Raises `InvalidArgument` if one of its commands cannot be made later."""


MOST_CALLS = 256
"""The most commands of one verb that is recorded. All are planned at once, which blocks the caller's task."""


class _NotedMemory:
    """Makes the arrays of a verb and notes them. The arrays in `given` stand for new ones, by the number of those."""

    def __init__(self, memory: DeviceMemory, given: Mapping[int, DeviceArray]) -> None:
        self._memory = memory
        self._given = given
        self.arrays: list[DeviceArray] = []
        self.zero: list[bool] = []

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        return self._note(shape, dtype, self._memory.empty, is_zero=False)

    def zeros(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        return self._note(shape, dtype, self._memory.zeros, is_zero=True)

    def _note(
        self, shape: tuple[int, ...], dtype: npt.DTypeLike, make: Callable[..., DeviceArray], *, is_zero: bool
    ) -> DeviceArray:
        array = self._given.get(len(self.arrays))
        if array is None:
            array = make(shape, dtype)
        elif array.shape != tuple(shape) or array.dtype != np.dtype(dtype):
            raise InvalidArgument(
                f"the result would have shape {tuple(shape)} and dtype {np.dtype(dtype).name}, and the node's has "
                f"{array.shape} and {array.dtype.name}: give out, or arguments with the same result"
            )
        self.arrays.append(array)
        self.zero.append(is_zero)
        return array


class Recorded(Library):
    """The form of the `blas` of a recorder: its verbs are recorded, and done with each launch of the graph."""

    __slots__ = ("_recorder",)

    _is_form = True
    _is_awaited = False
    _form = " of a recorder"

    def __init__(self, device: DeviceCore, recorder: CallRecorder | None = None) -> None:
        super().__init__(device)
        self._recorder = recorder

    def _send(self, plan: Callable[..., T], arguments: Sequence[object], keywords: dict[str, Any]) -> T:
        recorder = known(self._recorder, "it is not the object of a single call")
        recorder._check_open()
        planned, result = type(self)(self._device)._planned(plan, arguments, keywords)
        recorder._add_call(planned)
        return result

    # By an object that knows no recorder, which would keep all that was recorded.

    def _planned(
        self,
        plan: Callable[..., T],
        arguments: Sequence[object],
        keywords: dict[str, Any],
        results: Sequence[DeviceArray] | None = None,
    ) -> tuple[Planned, T]:
        """Plan a verb whose new results are these arrays; by default, new ones."""
        noted, planner, result = self._plan_once(plan, arguments, keywords, {})
        if results is not None and (places := _places_of_results(noted.arrays, result)):
            if len(places) != len(results):
                raise InvalidArgument("the node has no array for the result: give out")
            for array in noted.arrays:
                array.free()
            noted, planner, result = self._plan_once(plan, arguments, keywords, dict(zip(places, results, strict=True)))
        if results is None:
            results = [noted.arrays[place] for place in _places_of_results(noted.arrays, result)]
        count = number_of(planner._requests)
        operation = f"{self._table.engine}.{plan.__name__}"
        if count > MOST_CALLS:
            raise InvalidArgument(
                f"{operation} cannot be captured here: it takes {count} commands, and a node at most {MOST_CALLS}",
                advice="record it for a part of the arrays at a time",
            )
        planned = Planned(
            operation,
            Outgoing(planner._requests).take(),
            [array for array, is_zero in zip(noted.arrays, noted.zero, strict=True) if not is_zero],
            [array for array, is_zero in zip(noted.arrays, noted.zero, strict=True) if is_zero],
            result,
            functools.partial(self._planned_again, plan, tuple(results)),
        )
        return planned, result

    def _planned_again(
        self, plan: Callable[..., object], results: Sequence[DeviceArray], *arguments: object, **keywords: Any
    ) -> Planned:
        planned, _ = self._planned(plan, arguments, keywords, results)
        return planned

    def _plan_once(
        self,
        plan: Callable[..., T],
        arguments: Sequence[object],
        keywords: dict[str, Any],
        given: Mapping[int, DeviceArray],
    ) -> tuple[_NotedMemory, Self, T]:
        planner = type(self)(self._device)
        planner._memory = noted = _NotedMemory(self._device.part(DeviceMemory), given)
        return noted, planner, plan(planner, *arguments, **keywords)


def _places_of_results(arrays: Sequence[DeviceArray], result: object) -> list[int]:
    """Return the numbers of those arrays that a verb returns, itself or a part of them."""
    blocks = {each._block for each in flat([result]) if isinstance(each, DeviceArray)}
    return [number for number, array in enumerate(arrays) if array._block in blocks]
