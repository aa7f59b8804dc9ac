"""Small things that have no better home."""

from __future__ import annotations

import reprlib
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, SupportsIndex, TypeVar

from ._errors import InvalidArgument

T = TypeVar("T")


class _ShortRepr(reprlib.Repr):
    """Python refuses to write ints of more than some thousand digits, and an error message must not fail by that."""

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() < 1024 else f"<int of {x.bit_length()} bits>"


shown: Final = _ShortRepr().repr
"""Shows a value that a caller gave, shortly, in an error message; never raises."""


def _refuse_to_copy(self: object, protocol: SupportsIndex) -> NoReturn:
    raise TypeError(
        f"a {type(self).__name__} stands for something of its device, in this process: it cannot be copied by `copy`, "
        f"nor pickled for another process; send that numpy arrays, `await array.to_host()`"
    )


class NoPublicConstructor(type):
    """The metaclass of classes whose objects only this library makes, by `_create`.

    Trio does the same to its nurseries: what cannot be made by hand cannot be made wrongly. For the same reason no
    object is copied or pickled: two would give back one thing.
    """

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> NoPublicConstructor:
        return super().__new__(mcs, name, bases, {"__reduce_ex__": _refuse_to_copy, **namespace})

    def __call__(cls, *_args: object, **_kwargs: object) -> None:
        made_by = getattr(cls, "_made_by", "the library")
        raise TypeError(f"{cls.__name__} has no public constructor: it is made by {made_by}")

    if TYPE_CHECKING:

        def _create(cls: type[T], *args: Any, **kwargs: Any) -> T: ...

    else:
        _create = type.__call__  # not by a function of ours: arrays are made often


class Living(Generic[T]):
    """A set of objects as long as anybody has them; it keeps none of them alive.

    The last reference to one may go in any thread, also while another one walks over the set. `weakref.WeakSet` is not
    made for that before Python 3.14: its walk then raises. Here both the walk's copy and the removal are one step of
    the interpreter.
    """

    def __init__(self) -> None:
        self._references: set[weakref.ref[T]] = set()

    def __iter__(self) -> Iterator[T]:
        """Those that there are at this moment."""
        return iter([each for each in [reference() for reference in self._references.copy()] if each is not None])

    def add(self, each: T) -> None:
        """Take one in."""
        self._references.add(weakref.ref(each, self._references.discard))

    def discard(self, each: T) -> None:
        """Leave one out, if it is in."""
        self._references.discard(weakref.ref(each))


def known(value: T | None, why: str) -> T:
    """A value that cannot be None here; `why` not, for the defect of ours that it would be."""
    if value is None:
        raise AssertionError(why)
    return value


def named(table: Mapping[Any, T], value: object) -> T | None:
    """What a table has for a name or for None; None for anything else, which need not even be hashable."""
    return table.get(value) if value is None or isinstance(value, str) else None


def check_seconds(name: str, value: object) -> None:
    """Raise `InvalidArgument` for what is no number of seconds greater than 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidArgument(f"{name} is a number of seconds greater than 0, not {value!r}")
