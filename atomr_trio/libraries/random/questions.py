"""The questions of draws: by what a draw that was made before is recognised.

As those of other calls (``_calls/forms.py``), they are asked by functions that are generated for the kinds of the
arguments of a verb. The generator is no part of the key, because each has the draws that it has made itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import CodeType
from typing import Any, Final

import numpy as np

from ..._arrays.arrays import DeviceArray
from ..._calls.forms import LEAVE, taken_apart
from ..._calls.known import PLAIN, is_stateful
from .generator import RandomGenerator

Question = tuple[Hashable, RandomGenerator | None, tuple[DeviceArray, ...]]
"""The arguments of a draw: a key, its generator, if it was given one, and its `out`, if it was given one."""
Ask = Callable[[Sequence[object], Mapping[str, object]], "Question | None"]
"""Returns the question of a draw; None for arguments that may be equal but mean different things."""

_EXACT: Final = PLAIN | {type}
"""The kinds whose values are a part of a key as they are."""
_MOST_IN_TURN: Final = 4
"""The most functions of a verb, each of which is asked if the kinds are not those of the one before."""
_LEARNS_EVERY: Final = 64
"""So many draws are general, once a verb has all its functions, until one begins anew."""
_MOST_HEADS: Final = 4096
_HEADS: Final[dict[Hashable, object]] = {}
"""What stands for a verb and the names and kinds of its arguments in a key: one object takes less time than all."""


class _Asks(dict[Callable[..., object], Ask | None]):
    """The functions by the plans of verbs; None for those that draw from no generator."""

    def __missing__(self, plan: Callable[..., object]) -> Ask | None:
        ask = self[plan] = _General(plan) if is_stateful(plan) else None
        return ask


ASKS: Final = _Asks()


class _General:
    """Asks for draws of one verb in the general way, and has functions generated for the kinds that it has seen."""

    def __init__(self, plan: Callable[..., object]) -> None:
        self._plan = plan
        self._learned = 0
        """How many functions come before it."""
        self._asked = 0
        """How often it was asked since there are as many as there may be."""

    def __call__(self, arguments: Sequence[object], keywords: Mapping[str, object]) -> Question | None:
        question = question_of(self._plan, arguments, keywords)
        if question is not None:
            if self._learned == _MOST_IN_TURN:
                self._asked += 1
                if self._asked == _LEARNS_EVERY:
                    self._learned = self._asked = 0
            if self._learned < _MOST_IN_TURN:
                self._learn(arguments, keywords)
        return question

    def _learn(self, arguments: Sequence[object], keywords: Mapping[str, object]) -> None:
        kinds = _kinds_of(arguments, keywords)
        names: dict[str, Any] = {f"K{number}": kind for number, kind in enumerate(kinds)}
        names |= {f"N{number}": name for number, name in enumerate(keywords)}
        names |= {
            "general": ASKS[self._plan] if self._learned else self,
            "head": _head(self._plan, len(arguments), keywords, kinds),
            "are_ints": _are_ints,
        }
        exec(_written(len(arguments), len(keywords), kinds), names)
        ASKS[self._plan] = names["ask"]
        self._learned += 1


def question_of(
    plan: Callable[..., object], arguments: Sequence[object], keywords: Mapping[str, object]
) -> Question | None:
    """Return the question of a draw in the general way; see `Ask`."""
    kinds = _kinds_of(arguments, keywords)
    parts: list[Hashable] = [_head(plan, len(arguments), keywords, kinds)]
    generator: RandomGenerator | None = None
    arrays: tuple[DeviceArray, ...] = ()
    for name, value in (*((None, each) for each in arguments), *keywords.items()):
        part: Hashable
        if isinstance(value, RandomGenerator) and name == "generator":
            generator = value
        elif isinstance(value, DeviceArray) and name == "out":
            part = value._form or value._find_form()
            if part is None:
                return None
            arrays = (value,)
            parts.append(part)
        elif name != "generator" or value is None:
            part = _part_of(value)
            if part is _NO_PART:
                return None
            parts.append(part)
        else:
            return None
    return tuple(parts), generator, arrays


_NO_PART: Final = object()


def _part_of(value: Any) -> Hashable:
    """Return the part of a key for an argument, whose kind is another part; `_NO_PART` if there is none."""
    kind = type(value)
    if kind is float:
        return value or repr(value)  # 0.0 and -0.0 are equal
    is_plain = kind in _EXACT or (kind is tuple and _are_ints(value)) or isinstance(value, np.dtype)
    return value if is_plain else _NO_PART


def _are_ints(values: tuple[object, ...]) -> bool:
    return all(type(each) is int for each in values)


def _kinds_of(arguments: Sequence[object], keywords: Mapping[str, object]) -> tuple[type, ...]:
    return tuple(map(type, (*arguments, *keywords.values())))


def _head(
    plan: Callable[..., object], positional: int, keywords: Mapping[str, object], kinds: tuple[type, ...]
) -> object:
    if len(_HEADS) >= _MOST_HEADS:
        _HEADS.clear()  # equal draws that come later have another head, which costs a plan
    return _HEADS.setdefault((plan, positional, *keywords, *kinds), object())


@functools.lru_cache(maxsize=256)
def _written(positional: int, named: int, kinds: tuple[type, ...]) -> CodeType:
    """Return the function for so many arguments, and so many with a name, of these kinds, which have a question.

    Its text contains only numbers. Only those with a name can be a generator or an array.
    """
    numbers = range(len(kinds))
    text = taken_apart(positional, named)
    differs = [f"n{i} != N{i}" for i in range(named)]
    for i in numbers:
        differs.append(f"type(a{i}) is not K{i}")
        if kinds[i] is tuple:
            differs.append(f"not are_ints(a{i})")
    text += f"    if {' or '.join(differs)}:\n{LEAVE}" if differs else ""
    parts, generator, arrays = "head, ", "None", ""
    for i in numbers:
        if kinds[i] is RandomGenerator:
            generator = f"a{i}"
        elif kinds[i] is DeviceArray:
            text += f"    f{i} = a{i}._form or a{i}._find_form()\n    if f{i} is None:\n        return None\n"
            parts += f"f{i}, "
            arrays += f"a{i}, "
        else:
            parts += f"a{i} or repr(a{i}), " if kinds[i] is float else f"a{i}, "
    text += f"    return ({parts}), {generator}, ({arrays})\n"
    return compile(text, "<the question of a draw>", "exec")
