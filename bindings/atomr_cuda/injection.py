"""Faults of a simulated library: their kinds, and their text form.

This is the only description of the text form. The simulator reads it from ``ATOMR_TRIO_SIM_FAULTS`` when it is
installed, and from ``atomr_sim.inject`` while it runs. Several faults are separated by commas.

    fault   = function ":" action [":" calls] [":sticky"] ["@" workers]
    action  = status | "return=" status | "poison=" status | "hang" | "crash=" signal | "exit=" status
            | "delay=" seconds | "nomemory"
    calls   = first ["*" [times]]                which calls, counted from 1; without it the first
    workers = first "-" [last]                   which worker processes, counted from 1; without it every process

``cuMemCreate:2`` is the first call, ``cuMemCreate:2:3`` the third, ``cuMemCreate:2:3*2`` the third and the fourth,
``cuMemCreate:2:3*`` every one from the third on. A status alone is short for ``return=``; with ``:sticky`` after the
calls it is short for ``poison=``. ``cuInit:999:1@2-3`` is for the second and the third worker that a program starts.
Each of them finds its number in ``ATOMR_TRIO_SIM_WORKER``; a process without a number is not a worker.

``*:1:7`` is for the seventh call of any function of any library. Calls of the functions in `WATCHING` are not counted,
because threads that only watch others make them at any time.

This file knows words, numbers and the names of functions. The effects of faults are in ``atomr_sim.driver.faults``.
"""

from __future__ import annotations

import importlib
import math
import re
import signal as _signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ._library import Function
from ._tables import SIMULATED

__all__ = [
    "ANY",
    "FAULTS_VARIABLE",
    "SIMULATED",
    "WATCHING",
    "WORKER_VARIABLE",
    "Action",
    "Crash",
    "Delay",
    "Exit",
    "Hang",
    "Injection",
    "NoHostMemory",
    "Poison",
    "ReturnStatus",
    "asked_for",
    "parse",
]

ANY = "*"
"""The name for every function that is not in `WATCHING`."""
WATCHING = frozenset({"cuStreamQuery", "cuStreamWriteValue64_v2", "cuCtxSetCurrent"})
"""Functions that threads of a worker call without a request, or to find out that a command is done."""

FAULTS_VARIABLE = "ATOMR_TRIO_SIM_FAULTS"
WORKER_VARIABLE = "ATOMR_TRIO_SIM_WORKER"


@dataclass(frozen=True)
class ReturnStatus:
    """The call returns `status` and does nothing else. With 0 it claims to have succeeded."""

    status: int

    def __post_init__(self) -> None:
        _require(self.status >= 0, f"status is {self.status}; it must be 0 or greater")


@dataclass(frozen=True)
class Poison:
    """The call returns `status`. So does every later call that a process with a lost context refuses."""

    status: int

    def __post_init__(self) -> None:
        _require(self.status > 0, f"status is {self.status}; a status that poisons must be greater than 0")


@dataclass(frozen=True)
class Hang:
    """The call never returns; it ends with its process."""


@dataclass(frozen=True)
class Crash:
    """The process is ended by `signal`, from inside the call."""

    signal: _signal.Signals = _signal.SIGSEGV


@dataclass(frozen=True)
class Exit:
    """The process ends from inside the call, with `status` (0 to 255) as its exit status."""

    status: int

    def __post_init__(self) -> None:
        _require(0 <= self.status <= 255, f"status is {self.status}; an exit status must be from 0 to 255")


@dataclass(frozen=True)
class Delay:
    """The call sleeps for `seconds`, and then does its usual work."""

    seconds: float

    def __post_init__(self) -> None:
        _require(0 <= self.seconds < math.inf, f"seconds is {self.seconds}; a delay must be a finite number of seconds")


@dataclass(frozen=True)
class NoHostMemory:
    """The call does nothing and raises `MemoryError` in its caller."""


Action: TypeAlias = ReturnStatus | Poison | Hang | Crash | Exit | Delay | NoHostMemory
"""The actions that a call can be made to do."""


@dataclass(frozen=True)
class Injection:
    """An action, and the calls of a function to which it applies.

    `function` is a name of the table or a C symbol. The calls are `times` in a row (`math.inf`: all), from the one with
    number `call` on, counted from 1. `first_worker` and `last_worker` limit it to some workers, in the order of their
    start. Without `first_worker` it applies to every process.

    Raises `ValueError` for numbers out of range.
    """

    function: str
    action: Action
    call: int = 1
    times: float = 1
    first_worker: int | None = None
    last_worker: float = math.inf

    def __post_init__(self) -> None:
        _require(isinstance(self.action, Action), f"{self.action!r} is not an action; give one, such as Hang()")
        every = self.function == ANY and isinstance(self.action, NoHostMemory)
        _require(not every, "NoHostMemory needs the name of a function, not '*'")
        _require(self.call >= 1, f"call is {self.call}; calls are counted from 1")
        times = self.times
        _require(times == math.inf or times == int(times) >= 1, f"times must be a whole number from 1 on, not {times}")
        first, last = self.first_worker, self.last_worker
        _require(first is None or 1 <= first <= last, f"workers are counted from 1 upwards, not from {first} to {last}")

    def __str__(self) -> str:
        """Return the text form."""
        text = f"{self.function}:{_write_action(self.action)}:{self.call}"
        if self.times != 1:
            text += f"*{_write_limit(self.times)}"
        if self.first_worker is not None:
            text += f"@{self.first_worker}-{_write_limit(self.last_worker)}"
        return text

    def declared(self) -> Function:
        """Return the function of a table to which it applies. Raises `ValueError` if there is none."""
        for name in ("driver", *SIMULATED):
            table = importlib.import_module(f".{name}", __package__)
            found = getattr(table, self.function, None) or table.library.functions.get(self.function)
            if isinstance(found, Function):
                return found
        raise ValueError(f"the tables have no function {self.function!r}; give a C function's name")

    def is_for(self, worker: int | None) -> bool:
        """Tell whether it applies to the worker with this number; None is a process without one."""
        if self.first_worker is None:
            return True
        return worker is not None and self.first_worker <= worker <= self.last_worker

    @classmethod
    def parse(cls, text: str) -> Injection:
        """Read the text form of one fault. Raises `ValueError`."""
        found = _FAULT.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"{text!r} is not a fault to inject; write function:action:calls")
        action = _read_action(found["word"], found["value"])
        if found["sticky"]:
            _require(isinstance(action, ReturnStatus), f"{text!r}: only a status can be sticky")
            action = Poison(action.status)
        first = found["first_worker"]
        return cls(
            found["function"],
            action,
            call=int(found["call"] or 1),
            times=_read_limit(found["times"]) if found["repeated"] else 1,
            first_worker=int(first) if first else None,
            last_worker=_read_limit(found["last_worker"]),
        )


def parse(text: str) -> tuple[Injection, ...]:
    """Read the text form of any number of faults. Raises `ValueError`."""
    return tuple(Injection.parse(item) for item in text.split(",") if item.strip())


def asked_for(environment: Mapping[str, str]) -> tuple[Injection, ...]:
    """Return the injections in the environment of this process that apply to it. Raises `ValueError`."""
    number = environment.get(WORKER_VARIABLE)
    worker = int(number) if number else None
    return tuple(each for each in parse(environment.get(FAULTS_VARIABLE, "")) if each.is_for(worker))


_FAULT = re.compile(
    r"(?P<function>\w+|\*):(?P<word>[a-z]+|\d+)(=(?P<value>[\w.+-]+))?"
    r"(:(?P<call>\d+)(?P<repeated>\*(?P<times>\d+)?)?)?(?P<sticky>:sticky)?"
    r"(@(?P<first_worker>\d+)-(?P<last_worker>\d+)?)?"
)

# The word of each action, and the reader of its value; None for an action without a value.
_WORDS: dict[str, tuple[type[Any], Callable[[str], Any] | None]] = {
    "return": (ReturnStatus, int),
    "poison": (Poison, int),
    "hang": (Hang, None),
    "crash": (Crash, lambda name: _signal.Signals[name]),
    "exit": (Exit, int),
    "delay": (Delay, float),
    "nomemory": (NoHostMemory, None),
}
_WORD_OF = {kind: word for word, (kind, _) in _WORDS.items()}


def _read_action(word: str, value: str | None) -> Any:
    if word.isdecimal() and value is None:
        word, value = "return", word
    kind, read = _WORDS.get(word, (None, None))
    if kind is None or (read is None) != (value is None):
        given = word if value is None else f"{word}={value}"
        raise ValueError(f"{given!r} is not an action; write one of {', '.join(_WORDS)}")
    if read is None or value is None:
        return kind()
    try:
        return kind(read(value))
    except KeyError:
        raise ValueError(f"there is no signal {value!r}; give a name, such as SIGKILL, or a number") from None


def _write_action(action: Action) -> str:
    values = [_signal.Signals(value).name if field == "signal" else str(value) for field, value in vars(action).items()]
    return "=".join((_WORD_OF[type(action)], *values))


def _read_limit(text: str | None) -> float:
    return int(text) if text else math.inf


def _write_limit(limit: float) -> str:
    return "" if limit == math.inf else str(int(limit))


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise ValueError(text)
