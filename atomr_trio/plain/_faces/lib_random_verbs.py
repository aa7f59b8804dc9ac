"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._twins import Verbs

if TYPE_CHECKING:
    import numpy.typing as npt

    from ...libraries.random.generator import Size
    from .._types import AnyArray
    from .arrays import DeviceArray
    from .generators import RandomGenerator


class RandomVerbs(Verbs):
    """Verbs of `dev.random`, in all forms."""

    __slots__ = ()

    def bits(
        self,
        size: Size = None,
        dtype: npt.DTypeLike | None = None,
        *,
        out: AnyArray | None = None,
        generator: RandomGenerator | None = None,
    ) -> DeviceArray:
        """Draw integers all of whose bits are random (``curandGenerate``).

        The result has shape `size`, an integer or a sequence of lengths, () by default; and `dtype`, uint32 by default
        or uint64. It is `out` if that is given: an array of such a dtype, of any strides, whose shape is `size`.
        `generator` draws them, by default the one of the device.

        A uint64 is two words of a pseudo kind, the lower one first. Of the quasi kinds, those of 32 bits give uint32,
        and those of 64 bits uint64.

        Raises `InvalidArgument` for another dtype, for a `size` or `out` that does not fit, and for a `generator` of
        another device, at its end, or whose dimensions the number of elements is no multiple of.
        """
        result: DeviceArray = self._do(self._awaited.bits, (size, dtype), {"out": out, "generator": generator})
        return result

    def uniform(
        self,
        low: float = 0.0,
        high: float = 1.0,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: AnyArray | None = None,
        generator: RandomGenerator | None = None,
    ) -> DeviceArray:
        """Draw numbers of the interval from `low` to `high`, all equally likely (``curandGenerateUniform``).

        `low` is no result, and `high` is one: the other way round than with numpy. Other numbers than 0 and 1 are low +
        x (high - low), rounded, which may be `low` where that is large beside the difference.

        The result has shape `size`, an integer or a sequence of lengths, () by default; and `dtype`, float64 by
        default, float32, or float16 and bfloat16, which are rounded from float32 and may be 0. It is `out` if that is
        given: an array of such a dtype, of any strides, whose shape is `size`. `generator` draws them, by default the
        one of the device.

        Raises `InvalidArgument` for numbers `low` and `high` that are not finite or fall, for another dtype, for a
        `size` or `out` that does not fit, and for a `generator` of another device, at its end, or whose dimensions the
        number of elements is no multiple of.
        """
        result: DeviceArray = self._do(
            self._awaited.uniform, (low, high, size), {"dtype": dtype, "out": out, "generator": generator}
        )
        return result

    def normal(
        self,
        loc: float = 0.0,
        scale: float = 1.0,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: AnyArray | None = None,
        generator: RandomGenerator | None = None,
    ) -> DeviceArray:
        """Draw normal numbers of mean `loc` and standard deviation `scale` (``curandGenerateNormal``).

        The pseudo kinds make them in pairs, and an odd number of them moves the generator by one more.

        The result has shape `size`, an integer or a sequence of lengths, () by default; and `dtype`, float64 by
        default, float32, or float16 and bfloat16, which are rounded from float32. It is `out` if that is given: an
        array of such a dtype, of any strides, whose shape is `size`. `generator` draws them, by default the one of the
        device.

        Raises `InvalidArgument` for numbers `loc` and `scale` that are not finite, a negative `scale`, another dtype, a
        `size` or `out` that does not fit, and for a `generator` of another device, at its end, or whose dimensions the
        number of elements is no multiple of.
        """
        result: DeviceArray = self._do(
            self._awaited.normal, (loc, scale, size), {"dtype": dtype, "out": out, "generator": generator}
        )
        return result

    def lognormal(
        self,
        mean: float = 0.0,
        sigma: float = 1.0,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: AnyArray | None = None,
        generator: RandomGenerator | None = None,
    ) -> DeviceArray:
        """Draw numbers whose logarithms are normal, of mean `mean` and deviation `sigma` (``curandGenerateLogNormal``).

        `mean` and `sigma` are numbers. The pseudo kinds make them in pairs, and an odd number of them moves the
        generator by one more.

        The result has shape `size`, an integer or a sequence of lengths, () by default; and `dtype`, float64 by
        default, float32, or float16 and bfloat16, which are rounded from float32. It is `out` if that is given: an
        array of such a dtype, of any strides, whose shape is `size`. `generator` draws them, by default the one of the
        device.

        Raises `InvalidArgument` for numbers `mean` and `sigma` that are not finite, a negative `sigma`, another dtype,
        a `size` or `out` that does not fit, and for a `generator` of another device, at its end, or whose dimensions
        the number of elements is no multiple of.
        """
        result: DeviceArray = self._do(
            self._awaited.lognormal, (mean, sigma, size), {"dtype": dtype, "out": out, "generator": generator}
        )
        return result

    def poisson(
        self,
        lam: float = 1.0,
        size: Size = None,
        *,
        dtype: npt.DTypeLike | None = None,
        out: AnyArray | None = None,
        generator: RandomGenerator | None = None,
    ) -> DeviceArray:
        """Draw numbers of events, of which `lam` are expected (``curandGeneratePoisson``).

        The first draw of another `lam` makes a table, and waits for the draws before it.

        The result has shape `size`, an integer or a sequence of lengths, () by default; and `dtype`, int64 by default,
        int32, uint64 or uint32. It is `out` if that is given: an array of such a dtype, of any strides, whose shape is
        `size`. `generator` draws them, by default the one of the device.

        Raises `InvalidArgument` for a number `lam` that is not above 0 or above 400,000, for another dtype, for a
        `size` or `out` that does not fit, and for a `generator` of another device, at its end, or whose dimensions the
        number of elements is no multiple of.
        """
        result: DeviceArray = self._do(
            self._awaited.poisson, (lam, size), {"dtype": dtype, "out": out, "generator": generator}
        )
        return result
