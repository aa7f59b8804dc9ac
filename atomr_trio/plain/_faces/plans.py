"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._twins import Twin

if TYPE_CHECKING:
    from typing import Any, ClassVar

    import numpy as np

    import atomr_trio

    from ...libraries.fft.callbacks import FftCallback
    from .._types import AnyArray
    from .arrays import DeviceArray


class FftPlan(Twin):
    """A transform that is known before its arrays are: made by `dev.fft.plan`, called like a verb, ``plan(x)``.

    It is a description, and holds nothing of the GPU but the arrays of its callbacks. It never changes, and stays valid
    after a fault.
    """

    __slots__ = ()

    _made_by: ClassVar[str] = "`dev.fft.plan(...)`"

    @property
    def awaited(self) -> atomr_trio.FftPlan:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.FftPlan = self._awaited
        return value

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the input along its axes."""
        value: tuple[int, ...] = self._awaited.shape
        return value

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the input."""
        value: np.dtype[Any] = self._awaited.dtype
        return value

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides of the input, in bytes."""
        value: tuple[int, ...] = self._awaited.strides
        return value

    @property
    def out_strides(self) -> tuple[int, ...]:
        """The strides of the output, in bytes."""
        value: tuple[int, ...] = self._awaited.out_strides
        return value

    @property
    def overwrite_x(self) -> bool:
        """True if the input may be destroyed."""
        value: bool = self._awaited.overwrite_x
        return value

    @property
    def load(self) -> FftCallback | None:
        """The callback that reads the input; None without one."""
        value: FftCallback | None = self._awaited.load
        return value

    @property
    def store(self) -> FftCallback | None:
        """The callback that writes the output; None without one."""
        value: FftCallback | None = self._awaited.store
        return value

    @property
    def kind(self) -> str:
        """The name of the transform, such as "rfft"."""
        value: str = self._awaited.kind
        return value

    @property
    def out_shape(self) -> tuple[int, ...]:
        """The lengths of the output along its axes."""
        value: tuple[int, ...] = self._awaited.out_shape
        return value

    @property
    def out_dtype(self) -> np.dtype[Any]:
        """The dtype of the output."""
        value: np.dtype[Any] = self._awaited.out_dtype
        return value

    def __call__(self, x: AnyArray, out: AnyArray | None = None) -> DeviceArray:
        """Transform `x`, and return the result: `out`, or a new array (``cufftExecC2C`` and its like).

        `x` and `out` have the shapes and dtypes of the plan. In a batch, ``batch.fft.run(plan, x)`` does it.

        Raises `InvalidArgument` if an array has another shape, dtype or layout than the plan, or is on another device.
        """
        result: DeviceArray = self._wait(self._awaited.__call__, (x, out))
        return result
