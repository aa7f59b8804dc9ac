"""Atomic instructions over many lanes: lanes at the same word take turns, all others go at once.

The order among lanes is that of their numbers; hardware does not guarantee it. A lock keeps out launches on other
streams of this process, but not other processes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..ptx.numeric import bf16_to_f32, f32_to_bf16, halves, one_nan
from .mbarrier import OPERATIONS
from .memory import AddressSpace, Array

Combine = Callable[[Any, Any, Any], Any]


def _increment(old: Any, bound: Any, _: Any) -> Any:
    return np.where(old >= bound, old.dtype.type(0), old + old.dtype.type(1))


def _decrement(old: Any, bound: Any, _: Any) -> Any:
    return np.where((old == 0) | (old > bound), bound, old - old.dtype.type(1))


def _add(old: Any, value: Any, _: Any) -> Any:
    return _as_hardware(old + value)


def _as_hardware(numbers: Any) -> Any:
    """Return sums with the NaN of a GPU; for f64 it keeps the bits, as numpy does."""
    return one_nan(numbers) if numbers.dtype.kind == "f" and numbers.dtype.itemsize < 8 else numbers


COMBINE: dict[str, Combine] = {
    "add": _add,
    "min": lambda old, value, _: np.minimum(old, value),
    "max": lambda old, value, _: np.maximum(old, value),
    "and": lambda old, value, _: old & value,
    "or": lambda old, value, _: old | value,
    "xor": lambda old, value, _: old ^ value,
    "exch": lambda old, value, _: value,
    "cas": lambda old, expected, new: np.where(old == expected, new, old),
    "inc": _increment,
    "dec": _decrement,
    "add.f16x2": lambda old, value, _: halves(np.add, "f16x2", old, value),
    "add.bf16x2": lambda old, value, _: halves(np.add, "bf16x2", old, value),
    "add.bf16": lambda old, value, _: f32_to_bf16(bf16_to_f32(old) + bf16_to_f32(value)),
    **OPERATIONS,
}
"""The new value in memory for each operation, from the old one and its one or two operands."""

_UNORDERED = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
"""Operations that numpy can do with repeated indices when the old values are not needed."""


def atomic(
    space: AddressSpace,
    targets: list[tuple[Any, Array, Array]],
    operation: str,
    dtype: Any,
    keep: bool,
    first: Any,
    second: Any = None,
) -> Array | None:
    """Do one atomic instruction for all lanes; with `keep`, return the value that each lane found."""
    count = sum(index.size for _, _, index in targets)
    old: Array | None = np.empty(count, dtype) if keep else None
    first = np.broadcast_to(np.asarray(first, dtype), (count,))
    second = first if second is None else np.broadcast_to(np.asarray(second, dtype), (count,))
    with space.atomic_lock:
        for lanes, view, index in targets:
            found = _on_one_view(view, index, operation, keep, first[lanes], second[lanes])
            if old is not None:
                old[lanes] = found
    return old


def _on_one_view(view: Array, index: Array, operation: str, keep: bool, first: Array, second: Array) -> Array | None:
    if not keep and operation in _UNORDERED:
        _UNORDERED[operation].at(view, index, first)
        if view.dtype.kind == "f":
            view[index] = _as_hardware(view[index])
        return None
    order = np.argsort(index, kind="stable")
    places = index[order]
    starts = np.flatnonzero(np.concatenate(([True], places[1:] != places[:-1])))
    if starts.size == index.size:
        found = view[index]
        view[index] = COMBINE[operation](found, first, second)
        return found
    if operation == "add" and view.dtype.kind != "f":
        return _add_in_order(view, places, order, starts, first)
    return _in_turns(view, places, order, starts, COMBINE[operation], first, second)


def _add_in_order(view: Array, places: Array, order: Array, starts: Array, values: Array) -> Array:
    """Integer sums do not depend on their grouping: each lane finds the old value plus the sum before it."""
    values = values[order]
    sums = np.cumsum(values, dtype=values.dtype)
    lengths = np.diff(np.append(starts, places.size))
    before = sums - values
    found = view[places] + (before - np.repeat(before[starts], lengths))
    ends = starts + lengths - 1
    view[places[starts]] = found[ends] + values[ends]
    result = np.empty_like(found)
    result[order] = found
    return result


def _in_turns(
    view: Array, places: Array, order: Array, starts: Array, combine: Combine, first: Array, second: Array
) -> Array:
    """Yield the first lane at each word, then the second one at each word, and so on."""
    lengths = np.diff(np.append(starts, places.size))
    turn = np.arange(places.size) - np.repeat(starts, lengths)
    by_turn = np.argsort(turn, kind="stable")
    bounds = np.concatenate(([0], np.cumsum(np.bincount(turn))))
    lanes, places = order[by_turn], places[by_turn]
    first, second = first[lanes], second[lanes]
    found = np.empty(places.size, view.dtype)
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        at = places[begin:end]
        here = view[at]
        found[begin:end] = here
        view[at] = combine(here, first[begin:end], second[begin:end])
    result = np.empty_like(found)
    result[lanes] = found
    return result
