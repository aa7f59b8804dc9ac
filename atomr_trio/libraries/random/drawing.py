"""How a draw of cuRAND's generators is planned: which arrays, which calls, and what becomes of the numbers.

The numbers go right into the result where it lies as the library wants it. Otherwise they go to an array between, and
are converted, or copied, from there: normals that do not come in pairs, results of another dtype or layout.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._arrays.arrays import DeviceArray, check_shape, check_usable
from ..._arrays.ownership import check_own
from ..._calls.library_types import name_of
from ..._calls.linear import check_array
from ..._calls.stateful import StatefulRequest
from ..._generation.requests import CommandRequest
from ..._values.dtypes import check_dtype
from ..._values.errors import InvalidArgument
from ..._values.util import shown
from ..._wire.protocol import LANE_COMPUTE
from .distributions import drawing_of
from .generator import DefaultGenerator, RandomGenerator
from .philox import PLACES_OF_NUMBERS, PhiloxVerbs, shape_of
from .positions import END, KINDS, POISSON, Place, drawn, even
from .programs import (
    FUNCTIONS,
    Conversion,
    Function,
    Spread,
    conversion_program,
    scalars_of,
    spread_program,
)
from .records import RANDOM
from .repeated import Drawing, OwnDrawing
from .states import State

Converting = tuple[Conversion, tuple[float, ...]]
"""A conversion with its parameters."""

_ALIGNMENT = 16
"""Of where the library writes: kernels store several numbers at a time."""
_MOST_AXES = 8
"""Of a copy by a kernel of our own."""
_ITEMS = {"uint32": 4, "float32": 4, "uint64": 8, "float64": 8}


class DrawingVerbs(PhiloxVerbs):
    """What the verbs that draw have in common."""

    _began: tuple[RandomGenerator, State] | None = None
    """The generator of this call, and where it stood; no slot, because its forms have others."""
    _drawing: Drawing | OwnDrawing | None = None
    """What this call takes of its generator."""

    def _generator_of(self, generator: object) -> RandomGenerator:
        """Return the generator of a call, by default that of the device. Raises `InvalidArgument`."""
        if generator is None:
            self._device.check_open()
            return self._device.part(DefaultGenerator).get()
        if not isinstance(generator, RandomGenerator):
            raise InvalidArgument(f"generator is made by `dev.random.generator(...)`; this is {shown(generator)}")
        self._device.check_open()
        check_own(self._device, generator)
        return generator

    def _target(
        self, size: Any, dtype: npt.DTypeLike | None, out: object, names: Sequence[str]
    ) -> tuple[tuple[int, ...], str, DeviceArray | None]:
        """Return the shape of a result, the name of its dtype, the first of `names` by default, and `out`."""
        wanted = None if dtype is None else name_of(check_dtype(dtype))
        target = None
        if out is not None:
            target = check_array(out, "out")
            check_usable(self._device, target)
            found = name_of(target.dtype)
            if wanted not in (None, found):
                raise InvalidArgument(f"out has dtype {found}, and dtype= is {wanted}: give only one of the two")
            if any(stride == 0 and length > 1 for length, stride in zip(target.shape, target.strides, strict=True)):
                raise InvalidArgument(f"out has elements that lie in one place: its strides are {target.strides}")
            wanted = found
        wanted = names[0] if wanted is None else wanted
        if wanted not in names:
            raise InvalidArgument(f"dtype is one of {', '.join(names)}, not {wanted}")
        if target is None:
            return check_shape(() if size is None else size, check_dtype(wanted).itemsize), wanted, None
        if size is not None and check_shape(size, target.itemsize) != target.shape:
            raise InvalidArgument(f"out has shape {target.shape}, and size is {shown(size)}: give only one of the two")
        return target.shape, wanted, target

    def _drawn(
        self,
        generator: RandomGenerator,
        name: str,
        parameters: tuple[float, ...],
        target: tuple[tuple[int, ...], str, DeviceArray | None],
        conversions: Sequence[Converting] = (),
        per_element: int = 1,
    ) -> DeviceArray:
        """Plan a draw by the function of this name, and return the result. The generator moves when all is planned.

        The last of `conversions` makes elements of the result out of the numbers; those before change the numbers in
        their place. With none the numbers are the elements, byte by byte, `per_element` for each.
        """
        if self._batch is not None and not self._batch.ordered:
            raise InvalidArgument(
                "generators draw on the compute lane, and an unordered lane would not wait for that",
                advice="draw in a batch of an ordered lane; or await the draw, and then use its numbers there",
            )
        shape, dtype, out = target
        function, count = FUNCTIONS[name], math.prod(shape) * per_element
        kind, dims = generator.kind, generator.dims
        if count % dims:
            raise InvalidArgument(f"{kind} of {dims} dimensions gives multiples of {dims} numbers, not {count:,}")
        result = self._empty(shape, dtype) if out is None else out
        if not count:
            return result
        self._lane = LANE_COMPUTE
        lies_well = result.contiguous and not result.address % _ALIGNMENT
        needed = even(kind, function.draw, count)
        same_size = _ITEMS[function.dtype] * per_element == result.itemsize
        numbers = result
        if not (lies_well and same_size and needed == count):
            numbers = self._empty((needed,), function.dtype)
        last = result
        if conversions and not lies_well:
            last = self._empty(shape, dtype)
        place = self._plan_call(generator, function, numbers, needed, parameters)
        for each in conversions[:-1]:
            self._convert(*each, numbers, numbers, count)
        if conversions:
            self._convert(*conversions[-1], numbers, last, count)
            if last is not result:
                self._spread(last, result)
        elif numbers is not result:
            self._spread(_seen(numbers, count, shape, dtype), result)
        state = generator._state
        self._move(generator, State(place, state.own, state.spawned))
        if function.draw == POISSON:
            generator._lam = parameters[0]
        return result

    def _own(
        self,
        name: str,
        generator: object,
        size: Any,
        dtype: npt.DTypeLike | None,
        out: DeviceArray | None,
        **parameters: object,
    ) -> DeviceArray:
        """Plan a draw by a kernel of our own, and return the result."""
        drawer = self._generator_of(generator)
        if KINDS[drawer.kind].is_quasi:
            raise InvalidArgument(f"{name} is not there for {drawer.kind}: use a kind whose numbers look random")
        if out is not None:
            check_usable(self._device, check_array(out, "out"))
        drawing = drawing_of(name, out.dtype if dtype is None and out is not None else dtype, parameters)
        shape = shape_of(drawing, size, out)
        draws, before = math.prod(shape) // (math.prod(drawing.tail) or 1), drawer._state
        behind = drawing.advanced(before.own, draws)
        if behind >= END:
            raise InvalidArgument(f"{drawer!r} has come to the end of its numbers for {name}, or this draw would")
        image = self._compile_philox(drawing)
        result = self._empty(shape, drawing.dtype) if out is None else out
        self._plan_philox(drawing, image, drawer.seed, before.own, result, operation=name)
        self._drawing = OwnDrawing(drawing.advanced, draws, 0 if drawing.halves else drawing.units, PLACES_OF_NUMBERS)
        self._move(drawer, State(before.place, behind, before.spawned))
        return result

    def _move(self, generator: RandomGenerator, behind: State) -> None:
        """Move the generator on, behind the call; the errors of its commands say where it stood before."""
        before = generator._state
        for request in self._requests:
            if isinstance(request, CommandRequest):
                request.position = before.plain
        self._began = generator, before
        generator._state = behind

    def _plan_call(
        self,
        generator: RandomGenerator,
        function: Function,
        numbers: DeviceArray,
        count: int,
        parameters: tuple[float, ...],
    ) -> Place:
        """Plan the call of the library, and return the place where the next one begins."""
        before = generator._state
        lam = parameters[0] if function.draw == POISSON else 0.0
        self._drawing = Drawing(function.draw, count, lam)
        try:
            draw = drawn(before.place, function.draw, count, lam, generator._bounds)
        except OverflowError:
            raise InvalidArgument(f"{generator!r} has come to the end of its sequence, or this draw would") from None
        operands = self._operands()
        operands.writes(numbers, keeps=False)
        request = StatefulRequest(
            generator._plan,
            before.place,
            draw.drawn,
            (numbers.address,),
            scalars_of(function, count, parameters),
            operands.roles(),
            lane=self._lane,
            operation=f"{RANDOM.engine}.draw",
            keep=(generator, operands.arrays),
            blocks=function.draw == POISSON and generator._lam != lam,
            variant=function.place,
        )
        self._requests.append(request)
        return draw.place

    def _convert(
        self, conversion: Conversion, words: tuple[float, ...], source: DeviceArray, target: DeviceArray, count: int
    ) -> None:
        """Plan the kernel of a conversion."""
        operands = self._operands()
        if target is not source:
            operands.reads(source)
        operands.writes(target, keeps=target is source)
        scalars = struct.pack("<Q" + "".join(each.format for each in conversion.words), count, *words)
        addresses = (source.address, target.address)
        self._requests.append(
            self._execution(
                conversion,
                lambda: conversion_program(conversion),
                addresses,
                scalars,
                operands,
                operation="convert",
            )
        )

    def _spread(self, source: DeviceArray, target: DeviceArray) -> None:
        """Plan a copy of a contiguous array to one of the same shape and dtype."""
        if target.contiguous or target.ndim > _MOST_AXES or target.address % target.itemsize:
            self._copy(source, target)
            return
        operands = self._operands()
        operands.reads(source)
        operands.writes(target, keeps=False)
        spread = Spread(target.itemsize, target.shape, source.strides, target.strides)
        addresses = (source.address, target.address)
        self._requests.append(
            self._execution(spread, lambda: spread_program(spread), addresses, b"", operands, operation="copy")
        )


def _seen(numbers: DeviceArray, count: int, shape: tuple[int, ...], dtype: str) -> DeviceArray:
    """Return the first numbers as an array of another shape and dtype."""
    return numbers[:count].view(np.dtype(dtype)).reshape(shape)
