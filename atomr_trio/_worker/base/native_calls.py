"""Calls for native code from a declared function and its arguments."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from .lanes import Following, NativeCall, Target
from .pointers import FLOATS, address_of_pointer, pointer_to
from .shared_words import MOST_ARGUMENTS, MOST_FLOATS, Arguments

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
    function: Any, arguments: Sequence[Any], words: int | None, give_up: Callable[[BaseException], object]
) -> NativeCall | None:
    """Return a call of a declared function. An argument is a number, an object of ctypes, or a `Word` of the record.

    Each of so many `words` of a record is one of the arguments, unless that is None. Return None if native code cannot
    make the call.
    """
    pointer = pointer_to(function, give_up)
    if pointer is None:
        return None
    given: list[int] = []
    floats: list[int] = []
    words_at: list[tuple[int, Word]] = []
    for each, kind in zip(arguments, function.argtypes, strict=True):
        form = getattr(kind, "_type_", None)
        number = 0 if isinstance(each, Word) else number_of(each)
        if isinstance(form, str) and form in FLOATS:
            if isinstance(each, Word) or not isinstance(number, int | float):
                return None
            floats.append(int.from_bytes(struct.pack(f"<{form}", number), "little"))
        elif not isinstance(number, int):
            return None
        else:
            if isinstance(each, Word):
                words_at.append((len(given), each))
            given.append(number)
    if len(given) > MOST_ARGUMENTS or len(floats) > MOST_FLOATS:
        return None
    made = Arguments(given, floats)
    targets = [Target(each.number, made.address + _BYTES * place, each.base, each.most) for place, each in words_at]
    if words is not None and {target.word for target in targets} != set(range(words)):
        raise ValueError(f"not every one of {words} words is an argument of {function.symbol}: {arguments}")
    return NativeCall(address_of_pointer(pointer), made, targets, keep=(pointer, arguments))


def number_of(argument: Any) -> int | float | None:
    """Return an argument as a number, an address too; None for what is none."""
    if isinstance(argument, int | float):
        return argument
    if argument is None:
        return 0
    if isinstance(argument, bytes):
        return ctypes.cast(ctypes.c_char_p(argument), ctypes.c_void_p).value
    if isinstance(argument, ctypes.Array):
        return ctypes.addressof(argument)
    value = getattr(argument, "value", None) if isinstance(argument, ctypes._SimpleCData) else None
    if isinstance(argument, ctypes.c_void_p):
        return value or 0
    if isinstance(value, int | float):
        return value
    target = getattr(argument, "_obj", None)  # of `byref`, which does not tell its offset
    return None if target is None else ctypes.cast(argument, ctypes.c_void_p).value


class NativeStep(NamedTuple):
    """One function of several that are one command."""

    call: NativeCall
    """Its words are those of the command, whether they are words of the record or not."""
    refused: Callable[[int], Exception]
    """Returns the error for a status."""


def native_steps(
    steps: Sequence[NativeStep], constants: Sequence[int], places: Mapping[int, int], entries: int
) -> NativeCall:
    """Return functions that are called one after the other as one command that puts so many `entries` into the stream.

    `places` has, for each word of the command that the record brings, its number there. The others are the `constants`.
    """
    targets: list[Target] = []
    for call, _ in steps:
        for target in call.targets:
            if target.word in places:
                targets.append(target._replace(word=places[target.word]))
            else:
                number = constants[target.word] + target.base
                ctypes.c_uint64.from_address(target.address).value = number
    first, *others = (call for call, _ in steps)
    refused = [each.refused for each in steps[1:]]
    return first._replace(
        targets=targets,
        then=[
            Following(call.function, call.arguments, error, call.guard, call.expected)
            for call, error in zip(others, refused, strict=True)
        ],
        keep=steps,
        entries=entries,
    )
