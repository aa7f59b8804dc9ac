"""Which arrays of a call share memory: no library says what it computes where an output is an input, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from ._arrays import DeviceArray
from ._errors import InvalidArgument
from ._matrices import strides_text
from .actors.memory import overlap, reach


def check_apart(output: DeviceArray, *inputs: DeviceArray) -> None:
    """Refuse an output that shares memory with an input, which the library would read while it writes."""
    for array in inputs:
        if array._block is output._block and overlap(array, output) and _meet(array, output):
            raise InvalidArgument(f"the output ({strides_text(output)}) shares memory with an input")


def check_all_apart(outputs: Sequence[DeviceArray], inputs: Sequence[DeviceArray]) -> None:
    """The same for many: no output may share memory with an input, nor with another output."""
    seen = {id(array): array for array in (*outputs, *inputs)}
    written = {id(array) for array in outputs}
    if len(written) < len(outputs) or any(id(array) in written for array in inputs):
        raise InvalidArgument("an array is there twice among the outputs, or an input, too")
    waiting: list[tuple[int, DeviceArray]] = []
    for (begin, end), array in sorted(((reach(array), array) for array in seen.values()), key=lambda each: each[0]):
        waiting = [(limit, earlier) for limit, earlier in waiting if limit > begin]
        for _, earlier in waiting:
            if id(array) in written or id(earlier) in written:
                check_apart(array, earlier)
        waiting.append((end, array))


_MEETING_WORK = 10_000
"""How long numpy may look for an element that two arrays share, before they are taken to share one."""


def _meet(first: DeviceArray, second: DeviceArray) -> bool:
    """Whether two views of one block share an element: columns of one matrix, say, do not."""
    try:
        # numpy's own annotations know the two extremes of max_work alone.
        return np.shares_memory(_Place.of(first), _Place.of(second), max_work=_MEETING_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


@attrs.frozen
class _Place:
    """What numpy needs to know of memory that it must never read."""

    __array_interface__: Mapping[str, object]

    @classmethod
    def of(cls, array: DeviceArray) -> npt.NDArray[Any]:
        """An array of numpy's with the address, shape and strides of one on the device."""
        place = {"data": (array.address, True), "shape": array.shape, "strides": array.strides}
        return np.asarray(cls({**place, "typestr": f"|V{array.itemsize}", "version": 3}))
