"""Small helpers."""

from __future__ import annotations

import reprlib
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, SupportsIndex, TypeVar

from .errors import InvalidArgument

T = TypeVar("T")


class _ShortRepr(reprlib.Repr):
    """A `repr` for error messages. Python raises an error for ints of more than some thousand digits; this does not."""

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() < 1024 else f"<int of {x.bit_length()} bits>"


shown: Final = _ShortRepr().repr
"""Returns a short text for a caller's value in an error message; never raises."""


def refuse_to_copy(self: object, protocol: SupportsIndex) -> NoReturn:
    """Stands for ``__reduce_ex__`` of what belongs to one device. Raises `TypeError`."""
    raise TypeError(
        f"a {type(self).__name__} belongs to its device, in this process: it cannot be copied by `copy`, "
        f"nor pickled for another process; send numpy arrays instead, `await array.to_host()`"
    )


class NoPublicConstructor(type):
    """The metaclass of classes whose objects only this library makes, by `_create`.

    Trio does the same for its nurseries: an object that users cannot construct cannot be constructed wrongly. For the
    same reason no object is copied or pickled: two objects would release one resource.
    """

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> NoPublicConstructor:
        return super().__new__(mcs, name, bases, {"__reduce_ex__": refuse_to_copy, **namespace})

    def __call__(cls, *_args: object, **_kwargs: object) -> None:
        made_by = getattr(cls, "_made_by", "the library")
        raise TypeError(f"{cls.__name__} has no public constructor: it is made by {made_by}")

    if TYPE_CHECKING:

        def _create(cls: type[T], *args: Any, **kwargs: Any) -> T: ...

    else:
        _create = type.__call__  # not a Python function: arrays are made often


class Living(Generic[T]):
    """A set of objects that keeps none of them alive.

    The last reference to an object may be dropped in any thread, even while another thread iterates over the set.
    `weakref.WeakSet` does not support that before Python 3.14: its iteration then raises. Here the copy for the
    iteration and the removal are each one step of the interpreter.
    """

    def __init__(self) -> None:
        self._references: set[weakref.ref[T]] = set()

    def __iter__(self) -> Iterator[T]:
        """Iterate over the objects that are alive at this moment."""
        return iter([each for each in [reference() for reference in self._references.copy()] if each is not None])

    def add(self, each: T) -> None:
        """Add an object."""
        self._references.add(weakref.ref(each, self._references.discard))

    def discard(self, each: T) -> None:
        """Remove an object, if it is in the set."""
        self._references.discard(weakref.ref(each))


def known(value: T | None, why: str) -> T:
    """Return a value that cannot be None here; `why` is the reason, for the internal error if it is."""
    if value is None:
        raise AssertionError(why)
    return value


def named(table: Mapping[Any, T], value: object) -> T | None:
    """Return a table's entry for a name or for None; None for anything else, which need not even be hashable."""
    return table.get(value) if value is None or isinstance(value, str) else None


def check_seconds(name: str, value: object) -> None:
    """Raise `InvalidArgument` for anything but a number of seconds greater than 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidArgument(f"{name} is a number of seconds greater than 0, not {value!r}")
