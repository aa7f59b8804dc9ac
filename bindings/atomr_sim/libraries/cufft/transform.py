"""One execution of a plan: what it reads, computes by scipy, and writes.

It uses memory as the library does, at its worst: all of the work area is overwritten, before and after, and the input
of a transform from complex to real is lost, also out of place. (An H200 keeps it for one axis, and loses it for two and
three; the documentation promises nothing.) What is overwritten becomes NaN. Between and behind the elements that a
layout names nothing is written.

Half a spectrum stands for a whole one: z(-k) is the conjugate of z(k). For some elements both are in the half, along
the last axis at 0, and at the half of an even length. If they do not agree, the result of the library is not defined.
(numpy has one. The library's depends on the length; see pytorch/pytorch#154496 and jax-ml/jax#40143.) Here it differs
from numpy's: one of both is not read, and an imaginary part where there can be none counts as real.

Numbers in single and double precision are computed in double precision, and rounded once; half in single.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atomr_cuda.cufft import CUFFT_FORWARD

from ...engine.memory import MISALIGNED_ADDRESS, DeviceFault

if TYPE_CHECKING:
    from ...engine.memory import AddressSpace, Array
    from ..dense import Operand
    from .layout import Transform

_SPOILED = 0xFF  # a number of any precision that consists of such bytes is NaN


@dataclass(frozen=True)
class Execution:
    """A transform, and the addresses of its input, its output and its work area. No transform is scaled."""

    transform: Transform
    source: int
    target: int
    direction: int
    work: int

    def run(self, space: AddressSpace) -> None:
        """Compute it. All memory is checked before any is changed."""
        source, target = self.transform.sides(self.source == self.target)
        batch = self.transform.batch
        read, written = source.operand(self.source, batch), target.operand(self.target, batch)
        memory, _ = read.memory(space), written.memory(space)
        area = self._area(space)
        area[:] = _SPOILED
        values = _numbers(read, space, is_complex=source.complex)
        if source.complex and not target.complex:
            words = memory.view(f"u{read.element.size}")
            words[...] = np.iinfo(words.dtype).max
        result = np.ascontiguousarray(self._compute(values))
        written.write(space, result.view(result.real.dtype).reshape(written.shape))
        area[:] = _SPOILED

    def _area(self, space: AddressSpace) -> Array:
        size, granule = self.transform.work_bytes, self.transform.granule
        if not size:
            return np.empty(0, np.uint8)
        if self.work % granule:
            raise DeviceFault(MISALIGNED_ADDRESS, f"a work area at {self.work:#x}, which is no multiple of {granule}")
        return space.view(self.work, size)

    def _compute(self, values: Array) -> Array:
        from scipy import fft  # type: ignore[import-untyped, unused-ignore]

        axes = range(1, values.ndim)
        if not self.transform.source.complex:
            return fft.rfftn(values, axes=axes)
        if not self.transform.target.complex:
            _complete(values, self.transform.lengths)
            return fft.irfftn(values, self.transform.lengths, axes=axes, norm="forward")
        if self.direction == CUFFT_FORWARD:
            return fft.fftn(values, axes=axes)
        return fft.ifftn(values, axes=axes, norm="forward")


def _complete(values: Any, lengths: tuple[int, ...]) -> None:
    """Make half a spectrum one of real numbers, where it is none, in a way that numpy's result is not kept."""
    last, axes = lengths[-1], tuple(range(len(lengths) - 1))
    numbers = np.arange(math.prod(lengths[:-1])).reshape(lengths[:-1])
    partners = np.roll(np.flip(numbers, axes), 1, axes) if axes else numbers
    for place in {0, last // 2} if last % 2 == 0 else {0}:
        plane = values[..., place].reshape(len(values), -1)
        other = plane[:, partners.ravel()].conj()
        result = np.where(partners.ravel() < numbers.ravel(), other, plane)
        alone = np.flatnonzero(partners == numbers)
        result[:, alone] = plane[:, alone].real + plane[:, alone].imag
        values[..., place] = result.reshape(values.shape[:-1])


def _numbers(operand: Operand, space: AddressSpace, *, is_complex: bool) -> Any:
    """A copy of an operand in the precision of the computation."""
    computed = np.float32 if operand.element.size == 2 else np.float64
    values = np.ascontiguousarray(operand.read(space), computed)
    return values.view(np.result_type(computed, np.complex64))[..., 0] if is_complex else values
