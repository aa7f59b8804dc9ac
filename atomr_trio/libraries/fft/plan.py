"""Plans that users hold: a transform, with the layout of its input and its output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np

from ..._arrays.arrays import DeviceArray
from ..._arrays.layout import contiguous_strides
from ..._calls.library_types import name_of
from ..._values.dtypes import check_dtype
from ..._values.errors import InvalidArgument
from ..._values.util import NoPublicConstructor
from .axes import Transform, integers
from .callbacks import CallbackKind, FftCallback, Hook, described
from .programs import transform_program
from .records import Problem
from .sides import paired, side

if TYPE_CHECKING:
    from ..._generation.core import DeviceCore
    from .verbs import Fft


@final
class FftPlan(metaclass=NoPublicConstructor):
    """A transform that is known before its arrays are: made by `dev.fft.plan`, called like a verb, ``await plan(x)``.

    It is a description, and holds nothing of the GPU but the arrays of its callbacks. It never changes, and stays valid
    after a fault.
    """

    __slots__ = (
        *("__weakref__", "_fft", "_hooks", "_transform"),
        *("dtype", "out_strides", "overwrite_x", "shape", "strides"),
    )

    _made_by = "`dev.fft.plan(...)`"
    _is_key = True

    shape: tuple[int, ...]
    """The lengths of the input along its axes."""
    dtype: np.dtype[Any]
    """The dtype of the input."""
    strides: tuple[int, ...]
    """The strides of the input, in bytes."""
    out_strides: tuple[int, ...]
    """The strides of the output, in bytes."""
    overwrite_x: bool
    """True if the input may be destroyed."""

    def __init__(
        self,
        fft: Fft,
        transform: Transform,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        strides: object,
        out_strides: object,
        overwrite_x: bool,
        hooks: Mapping[CallbackKind, Hook],
    ) -> None:
        self._fft = fft
        self._transform = transform
        self.shape = shape
        self.dtype = dtype
        self.strides = _strides(strides, shape, dtype.itemsize, "strides")
        self.out_strides = _strides(out_strides, self.out_shape, self.out_dtype.itemsize, "out_strides")
        if transform.takes_pairs:
            paired(dtype.name, shape, self.strides, "the plan")
        if transform.makes_pairs:
            paired(self.out_dtype.name, self.out_shape, self.out_strides, "the plan's result")
        self.overwrite_x = overwrite_x
        self._hooks = hooks
        """Its callbacks."""
        if hooks and 0 not in transform.shape:
            transform_program(self._problem())  # which refuses what callbacks cannot see

    @property
    def load(self) -> FftCallback | None:
        """The callback that reads the input; None without one."""
        return self._hooks["load"].callback if "load" in self._hooks else None

    @property
    def store(self) -> FftCallback | None:
        """The callback that writes the output; None without one."""
        return self._hooks["store"].callback if "store" in self._hooks else None

    @property
    def kind(self) -> str:
        """The name of the transform, such as "rfft"."""
        return self._transform.name

    @property
    def out_shape(self) -> tuple[int, ...]:
        """The lengths of the output along its axes."""
        return self._transform.array_shape

    @property
    def out_dtype(self) -> np.dtype[Any]:
        """The dtype of the output."""
        return check_dtype(self._transform.array_dtype)

    def __repr__(self) -> str:
        return f"<FftPlan {self.kind} of {self.shape} {self.dtype.name}, to {self.out_shape} {self.out_dtype.name}>"

    async def __call__(self, x: DeviceArray, out: DeviceArray | None = None) -> DeviceArray:
        """Transform `x`, and return the result: `out`, or a new array (``cufftExecC2C`` and its like).

        `x` and `out` have the shapes and dtypes of the plan. In a batch, ``batch.fft.run(plan, x)`` does it.

        Raises `InvalidArgument` if an array has another shape, dtype or layout than the plan, or is on another device.
        """
        return await self._fft.run(self, x, out)

    @property
    def _owner(self) -> DeviceCore:
        return self._fft._device

    def _problem(self) -> Problem:
        """Return what it does with two arrays that are aligned."""
        transform = self._transform
        return Problem(
            transform.operations,
            side(name_of(self.dtype), self.shape, self.strides),
            side(transform.dtype, transform.shape, self.out_strides),
            transform.scale,
            transform.conjugated,
            False,
            self.overwrite_x and transform.reads_half,
            *described(self._hooks),
        )

    def _check(self, x: DeviceArray, out: DeviceArray | None) -> Transform:
        """Return the transform. Raises `InvalidArgument` for arrays that the plan is not for."""
        if x.shape != self.shape or x.dtype != self.dtype:
            raise InvalidArgument(
                f"the plan is for shape {self.shape} and dtype {self.dtype.name}; x has {x.shape}, {x.dtype.name}"
            )
        _check_strides("x", x, self.strides)
        if out is not None and (out.shape, out.dtype) == (self.out_shape, self.out_dtype):
            _check_strides("out", out, self.out_strides)
        return self._transform


def _check_strides(name: str, array: DeviceArray, strides: tuple[int, ...]) -> None:
    for length, found, wanted in zip(array.shape, array.strides, strides, strict=True):
        if length > 1 and found != wanted:
            raise InvalidArgument(f"the plan is for strides of {strides} bytes; {name} has {array.strides}")


def _strides(given: object, shape: tuple[int, ...], itemsize: int, name: str) -> tuple[int, ...]:
    if given is None:
        return contiguous_strides(shape, itemsize)
    strides = integers(given, name)
    if len(strides) != len(shape):
        raise InvalidArgument(f"{name} has {len(strides)} numbers; an array of shape {shape} has {len(shape)} axes")
    return strides
