"""The questions of calls (``known.py``), asked by functions that are generated for the kinds of their arguments.

A program calls a verb with the same kinds of arguments again and again: two arrays and a float, perhaps an ``out``. For
these kinds the key of a call is one expression, without a loop over the arguments. The function compares the kinds, and
everything else is left to `form_of`, which gives the same keys. The texts contain only numbers.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any, Final

from .._arrays.arrays import DeviceArray
from .known import PLAIN, Question, form_of, is_stateful

Ask = Callable[[Sequence[object], Mapping[str, object]], "Question | None"]
"""Returns the question of a verb's call, or None, as `form_of` does."""

_MOST_ARRAYS: Final = 4
"""Among more arrays, too many pairs would have to be compared."""
_LEARNS_EVERY: Final = 64
"""A function is generated for other kinds at the first call that has them, and at every 64th that is general: where two
kinds take turns, it would otherwise be generated with each call."""
_EXACT: Final = PLAIN | {float, type}
"""The kinds whose values are a part of a key as they are."""

_Kinds = tuple[type, ...]


class _Asks(dict[Callable[..., object], Ask]):
    """The functions by the plans of verbs."""

    def __missing__(self, plan: Callable[..., object]) -> Ask:
        ask = self[plan] = _nothing if is_stateful(plan) else _General(plan)
        return ask


ASKS: Final = _Asks()


def _nothing(_arguments: Sequence[object], _keywords: Mapping[str, object]) -> None:
    """No call of a stateful verb is repeated from memory."""


class _General:
    """Asks for calls of one verb in the general way, and has a function generated for their kinds now and then."""

    def __init__(self, plan: Callable[..., object]) -> None:
        self._plan = plan
        self._asked = 0

    def __call__(self, arguments: Sequence[object], keywords: Mapping[str, object]) -> Question | None:
        question = form_of(self._plan, arguments, keywords)
        if question is not None:
            if self._asked % _LEARNS_EVERY == 0:
                self._learn(arguments, keywords)
            self._asked += 1
        return question

    def _learn(self, arguments: Sequence[object], keywords: Mapping[str, object]) -> None:
        kinds = tuple(map(type, (*arguments, *keywords.values())))
        if kinds.count(DeviceArray) <= _MOST_ARRAYS and all(kind is DeviceArray or kind in _EXACT for kind in kinds):
            names: dict[str, Any] = {"DeviceArray": DeviceArray, "general": self, "plan": self._plan}
            names |= {f"K{number}": kind for number, kind in enumerate(kinds)}
            names |= {f"N{number}": name for number, name in enumerate(keywords)}
            exec(_written(len(arguments), len(keywords), kinds), names)
            ASKS[self._plan] = names["ask"]


@functools.lru_cache(maxsize=256)
def _written(positional: int, named: int, kinds: _Kinds) -> CodeType:
    """Return the function for so many arguments, and so many with a name, of these kinds."""
    numbers = range(len(kinds))
    arrays = [i for i in numbers if kinds[i] is DeviceArray]
    text = taken_apart(positional, named)
    differs = [f"n{i} != N{i}" for i in range(named)]
    for i in numbers:
        differs.append(f"type(a{i}) is not {'DeviceArray' if i in arrays else f'K{i}'}")
        if kinds[i] is float:
            differs.append(f"not a{i}")  # 0.0 and -0.0 are equal
    if differs:
        text += f"    if {' or '.join(differs)}:\n{LEAVE}"
    shares = [f"b{one} is b{two}" for one, two in itertools.combinations(arrays, 2)]
    if shares:
        text += "".join(f"    b{i} = a{i}._storage.block\n" for i in arrays)
        text += f"    if {' or '.join(shares)}:\n{LEAVE}"
    text += "".join(f"    f{i} = a{i}._form or a{i}._find_form()\n" for i in arrays)
    if arrays:
        text += f"    if {' or '.join(f'f{i} is None' for i in arrays)}:\n        return None\n"
    parts = "".join(f"f{i}, " if i in arrays else f"K{i}, a{i}, " for i in numbers)
    listed = "".join(f"a{i}, " for i in arrays)
    text += f"    return (plan, {''.join(f'N{i}, ' for i in range(named))}{parts}), ({listed})\n"
    return compile(text, "<the question of a call>", "exec")


def taken_apart(positional: int, named: int) -> str:
    """Return the lines that begin a question: they give each argument and name its own, and leave for other numbers."""
    given = "".join(f"a{i}, " for i in range(positional))
    text = f"def ask(arguments, keywords):\n    if len(arguments) != {positional} or len(keywords) != {named}:\n{LEAVE}"
    text += f"    {given} = arguments\n" if given else ""
    if named:
        text += f"    {''.join(f'n{i}, ' for i in range(named))} = keywords\n"
        text += f"    {''.join(f'a{positional + i}, ' for i in range(named))} = keywords.values()\n"
    return text


LEAVE: Final = "        return general(arguments, keywords)\n"
"""The line by which a question leaves for the general way."""
