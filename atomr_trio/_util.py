"""Small things that have no better home."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


class NoPublicConstructor(type):
    """The metaclass of classes whose objects only this library makes, by `_create`.

    Trio does the same to its nurseries: what cannot be made by hand cannot be made wrongly.
    """

    def __call__(cls, *_args: object, **_kwargs: object) -> None:
        made_by = getattr(cls, "_made_by", "the library")
        raise TypeError(f"{cls.__name__} has no public constructor: it is made by {made_by}")

    def _create(cls: type[T], *args: Any, **kwargs: Any) -> T:
        made: T = super().__call__(*args, **kwargs)  # type: ignore[misc]
        return made
