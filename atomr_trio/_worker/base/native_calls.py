"""Calls for native code from a declared function and its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from .lanes import NativeCall, Target
from .pointers import address_of_pointer, pointer_to
from .shared_words import MOST_ARGUMENTS, Words

_BYTES = 8
LARGEST: Final = (1 << 64) - 1


class Word(NamedTuple):
    """An argument that is a word of the record."""

    number: int
    """Its number in the record."""
    base: int = 0
    """A number that is added to it."""
    most: int = LARGEST
    """The largest word that native code takes."""


def native_call(
    function: Any, arguments: Sequence[int | Word], words: int, give_up: Callable[[BaseException], object]
) -> NativeCall | None:
    """Return a call of a declared function, for records with so many words; each of them is one of the arguments.

    Return None if native code cannot make the call.
    """
    pointer = pointer_to(function, give_up)
    if pointer is None or len(arguments) > MOST_ARGUMENTS:
        return None
    given, targets = Words(MOST_ARGUMENTS), [Target(0)] * words
    given.set([0 if isinstance(each, Word) else each for each in arguments])
    for place, each in enumerate(arguments):
        if isinstance(each, Word):
            targets[each.number] = Target(given.address + _BYTES * place, each.base, each.most)
    if any(not target.address for target in targets):
        raise ValueError(f"not every one of {words} words is an argument of {function.symbol}: {arguments}")
    return NativeCall(address_of_pointer(pointer), given, targets, keep=pointer)
