"""A check that outputs of a call share no memory with its inputs: no library defines the result if they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from .._arrays.arrays import DeviceArray
from .._transfers.memory import overlap, reach
from .._values.errors import InvalidArgument
from .linear import strides_text


def check_apart(output: DeviceArray, *inputs: DeviceArray) -> None:
    """Raise `InvalidArgument` if the output shares memory with an input: the library would read it while it writes."""
    for array in inputs:
        if array._block is output._block and overlap(array, output) and _meet(array, output):
            raise InvalidArgument(
                f"the output ({strides_text(output)}) shares memory with an input: give an array with its own memory"
            )


def check_all_apart(outputs: Sequence[DeviceArray], inputs: Sequence[DeviceArray]) -> None:
    """Raise `InvalidArgument` if an output shares memory with an input or with another output."""
    seen = {id(array): array for array in (*outputs, *inputs)}
    written = {id(array) for array in outputs}
    if len(written) < len(outputs) or any(id(array) in written for array in inputs):
        raise InvalidArgument(
            "an output shares memory with an input or with another output: give each output its own memory"
        )
    waiting: list[tuple[int, DeviceArray]] = []
    for (begin, end), array in sorted(((reach(array), array) for array in seen.values()), key=lambda each: each[0]):
        waiting = [(limit, earlier) for limit, earlier in waiting if limit > begin]
        for _, earlier in waiting:
            if id(array) in written or id(earlier) in written:
                check_apart(array, earlier)
        waiting.append((end, array))


_MEETING_WORK = 10_000
"""The work that numpy may do to find an element that two arrays share. Beyond it they are taken to share one."""


def _meet(first: DeviceArray, second: DeviceArray) -> bool:
    """Return whether two views of one block share an element; two columns of one matrix, for example, do not."""
    try:
        # numpy's own annotations allow only the two extremes of max_work.
        return np.shares_memory(_Place.of(first), _Place.of(second), max_work=_MEETING_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


@attrs.frozen
class _Place:
    """An `__array_interface__` that describes memory to numpy, which must never read it."""

    __array_interface__: Mapping[str, object]

    @classmethod
    def of(cls, array: DeviceArray) -> npt.NDArray[Any]:
        """Return a numpy array with the address, shape and strides of a device array."""
        place = {"data": (array.address, True), "shape": array.shape, "strides": array.strides}
        return np.asarray(cls({**place, "typestr": f"|V{array.itemsize}", "version": 3}))
