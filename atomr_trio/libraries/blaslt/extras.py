"""The operands of a product beside its matrices: biases, their gradients, auxiliary matrices, scales."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

import attrs

from ..._arrays.arrays import DeviceArray
from ..._calls.linear import Matrix, broadcast, check_array, layout_refusal, matrix_of, strides_text
from ..._values.errors import InvalidArgument
from ..._values.util import shown
from . import types
from .types import FLOAT8

Shape = tuple[int, ...]

_MASK_GRANULE, _AUX_GRANULE = 128, 8
"""The multiples for the leading dimension and the distance of an auxiliary matrix: bits for a mask, else elements."""
_AUX_ALIGNMENT = 16

_TAKEN_WITH: Final[Mapping[str, int]] = MappingProxyType(
    {"bias": types.BIAS, "aux": types.AUX, "bias_gradient": types.BGRAD | types.BGRADA | types.BGRADB}
)
"""The parts of an epilogue that use an argument, by its name."""


def stack_of(array: DeviceArray, by_rows: bool | None = None) -> Matrix | None:
    """Return an array as matrices at one distance; None if no library takes it in its place."""
    seen = matrix_of(array, by_rows)
    return None if seen is None or seen.distance is None or seen.distance < 0 else seen


@attrs.frozen
class Extras:
    """The arguments of a caller beside the matrices; None for those that were not given."""

    bias: DeviceArray | None
    aux: DeviceArray | None
    bias_gradient: DeviceArray | None
    scales: Mapping[str, DeviceArray | None]
    """The scales by the names of their arguments."""
    amax: DeviceArray | None

    def check(self, epilogue: int, name: str | None) -> None:
        """Raise `InvalidArgument` for arguments that the epilogue does not use, and for missing ones."""
        for argument, parts in _TAKEN_WITH.items():
            given = getattr(self, argument)
            if given is not None and not epilogue & parts:
                raise InvalidArgument(f"epilogue={shown(name)} has no {argument}")
            if given is None and epilogue & parts:
                raise InvalidArgument(f"epilogue={shown(name)} needs {argument}=")
            if given is not None:
                check_array(given, argument)

    def check_scales(self, inputs: str, output: str, *, adds: bool) -> None:
        """Raise `InvalidArgument` for scales of elements that are not scaled, and for anything but float32 scalars."""
        scaled = {
            "scale_a": inputs in FLOAT8,
            "scale_b": inputs in FLOAT8,
            "scale_c": inputs in FLOAT8 and adds,
            "scale_out": output in FLOAT8,
            "amax": output in FLOAT8,
        }
        for name, array in {**self.scales, "amax": self.amax}.items():
            if array is None:
                continue
            if check_array(array, name, 0).dtype.name != "float32":
                raise InvalidArgument(f"{name} has dtype {array.dtype.name}, and must have float32")
            if not scaled[name]:
                raise InvalidArgument(
                    f"{name} is for elements of 8 bits ({', '.join(FLOAT8)}) only: "
                    f"the inputs have {inputs}, the output {output}"
                )

    def inputs(self, epilogue: int) -> Iterator[DeviceArray]:
        """Yield the arrays that are read."""
        aux = self.aux if epilogue & (types.DRELU | types.DGELU) else None
        return (each for each in (self.bias, aux, *self.scales.values()) if each is not None)

    def outputs(self, epilogue: int) -> Iterator[DeviceArray]:
        """Yield the arrays that are written."""
        aux = None if epilogue & (types.DRELU | types.DGELU) else self.aux
        return (each for each in (aux, self.bias_gradient, self.amax) if each is not None)


def vector_of(array: DeviceArray, name: str, batch: Shape, length: int, dtype: str | None) -> Matrix:
    """Return a bias or its gradient, as matrices of one row each. Raises `InvalidArgument`."""
    if array.dtype.name != dtype:
        raise InvalidArgument(f"{name} has dtype {array.dtype.name}, and must have {dtype}")
    whole = (*batch, 1, length)
    if name == "bias":
        fits = array.shape in ((length,), whole)
        expected = f"({length},)" if not batch else f"({length},) or {whole}"
    else:
        fits = array.shape == (*batch, length)
        expected = f"{(*batch, length)}"
    if not fits:
        raise InvalidArgument(f"{name} has shape {array.shape}, and must have {expected}")
    row = broadcast(array if array.shape == whole else array[..., None, :], whole)
    seen = stack_of(row, by_rows=True)
    if seen is None:
        text = layout_refusal(array, "its elements must lie one behind the other", written=name != "bias")
        raise InvalidArgument(f"{name} is not contiguous: {text}")
    return seen


def aux_of(array: DeviceArray, epilogue: int, output: DeviceArray) -> Matrix:
    """Return an auxiliary matrix. Its leading dimension and its distance are in elements, or in bits for a mask."""
    (*batch, m, n), dtype = output.shape, output.dtype.name
    bits = 8 if epilogue & (types.RELU | types.DRELU) else 1
    granule = _MASK_GRANULE if bits > 1 else _AUX_GRANULE
    padded = -(-n // granule) * granule
    dtypes: tuple[str, ...] = ("uint8", "int8")
    shape, hint = (*batch, m, padded // bits), ""
    if bits == 1:
        made = f"dev.empty({(*batch, m, padded)}, {dtype!r})" + ("" if padded == n else f"[..., :{n}]")
        shape, dtypes, hint = (*batch, m, n), (dtype,), f": take {made}"
    if array.shape != shape or array.dtype.name not in dtypes:
        wanted = " or ".join(dtypes)
        raise InvalidArgument(f"aux has {array.dtype.name} {array.shape}, and must have {wanted} {shape}{hint}")
    seen = stack_of(array, by_rows=True)
    leading = padded if m == 1 else 0 if seen is None else seen.leading * bits
    distance = 0 if seen is None or seen.distance is None else seen.distance * bits
    if seen is None or math.gcd(leading, distance) % granule or array.address % _AUX_ALIGNMENT:
        raise InvalidArgument(
            f"aux must lie row by row, its rows multiples of {granule // bits} elements apart, at an address that is a "
            f"multiple of {_AUX_ALIGNMENT}, not with {strides_text(array)}{hint}"
        )
    return attrs.evolve(seen, leading=leading, distance=distance)
