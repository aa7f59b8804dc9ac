"""Arguments as they are nested: every one of them, and the same with another in its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Place = tuple[Any, ...]
"""The name of a parameter, and in a list or a dict that is given there the way to one of its elements."""


def leaves(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every argument; of a list or a dict every element."""
    if isinstance(value, dict | list | tuple):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(each, (*place, key))
    else:
        yield place, value


def put(value: Any, place: Place, other: object) -> Any:
    """The same arguments, with another one in one place."""
    if not place:
        return other
    key, *rest = place
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[key] = put(value[key], tuple(rest), other)
    return tuple(changed) if isinstance(value, tuple) else changed
