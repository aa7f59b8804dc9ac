"""Records of cuFFT: its plans, and what they are known by: the operations of a transform, and how its arrays lie."""

from __future__ import annotations

from typing import NamedTuple

from ..._wire.records.plans import PlanTable
from .registration import REGISTRATION


class Side(NamedTuple):
    """An array as a plan sees it, without its address."""

    dtype: str
    """Its name. A pair of halves is one element, of "complex_float16" or "complex_bfloat16"."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In bytes."""
    base: int
    """Bytes from the lowest address to the first element: not 0 if a stride is negative."""
    aligned: bool
    """True if its first element is aligned as cuFFT wants it: as a complex number of its precision."""


class Operation(NamedTuple):
    """A transform along one axis: "c" from complex to complex, "r" from real to complex, "h" from complex to real."""

    kind: str
    axis: int
    length: int
    """The points of the transform: the complex side of "r" and "h" has half of them, and one."""
    inverse: bool

    @property
    def given(self) -> int:
        """The length of the axis before."""
        return self.length // 2 + 1 if self.kind == "h" else self.length

    @property
    def result(self) -> int:
        """The length of the axis behind."""
        return self.length // 2 + 1 if self.kind == "r" else self.length


class Callback(NamedTuple):
    """A function that cuFFT calls for each element. Its name, and its code as LTO-IR."""

    name: str
    image: bytes
    dtype: str
    """That of an element."""
    info: int
    """The address of the array that it is given, 0 for none: cuFFT reads it when it plans."""


class Problem(NamedTuple):
    """A transform, with all that its plan depends on."""

    operations: tuple[Operation, ...]
    """In the order in which they are done."""
    source: Side
    target: Side
    scale: float
    conjugated: str
    """"source" or "target" if that side is conjugated, else ""."""
    in_place: bool = False
    """True if both sides are the same array."""
    overwrites: bool = False
    """True if the source may be destroyed."""
    load: Callback | None = None
    store: Callback | None = None


class Shift(NamedTuple):
    """A copy that moves elements along axes, round the ends."""

    source: Side
    target: Side
    shifts: tuple[int, ...]


class Convolution(NamedTuple):
    """A convolution: two arrays, padded to `lengths` along `axes`, and the part of the result from `starts` on."""

    first: Side
    second: Side
    target: Side
    axes: tuple[int, ...]
    lengths: tuple[int, ...]
    starts: tuple[int, ...]


FFT = PlanTable(
    REGISTRATION.name,
    REGISTRATION.number,
    (
        *("cufftCreate", "cufftDestroy", "cufftSetAutoAllocation", "cufftMakePlanMany64"),
        *("cufftXtMakePlanMany", "cufftXtExec", "cufftXtSetJITCallback", "cufftSetStream", "cufftSetWorkArea"),
        *("cufftExecC2C", "cufftExecR2C", "cufftExecC2R", "cufftExecZ2Z", "cufftExecD2Z", "cufftExecZ2D"),
    ),
)
