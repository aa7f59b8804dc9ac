"""Faults that a simulated library can be asked for: what they are, and how they are written down.

This page is the one description of the text form, which the simulator reads from ``ATOMR_TRIO_SIM_FAULTS`` when it is
installed, and while it runs from ``sim.inject``. Several faults are separated by commas.

    fault   = function ":" action [":" calls] [":sticky"] ["@" workers]
    action  = status | "return=" status | "poison=" status | "hang" | "crash=" signal | "exit=" status
            | "delay=" seconds | "nomemory"
    calls   = first ["*" [times]]                which calls, counted from 1; without it the first
    workers = first "-" [last]                   which worker processes, counted from 1; without it every process

``cuMemCreate:2`` is the first call, ``cuMemCreate:2:3`` the third, ``cuMemCreate:2:3*2`` the third and the fourth,
``cuMemCreate:2:3*`` every one from the third on. A status alone is short for ``return=``, and with ``:sticky`` behind
the calls for ``poison=``. ``cuInit:999:1@2-3`` is for the second and the third worker that a program starts; each of
them finds its number in ``ATOMR_TRIO_SIM_WORKER``, and a process that has no number is none of them.

``*:1:7`` is for the seventh call of any function, whatever its library: of those that do something for somebody. Calls
of the functions in `WATCHING` are not counted, because threads that only look after others make them at any time.

This file knows words, numbers and the names of functions; what a fault does is in ``sim/faults.py``.
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

__all__ = [
    "ANY",
    "FAULTS_VARIABLE",
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

SIMULATED = ("cublas", "cublaslt", "cusolver")
"""The libraries beside libcuda that are simulated; each has a module of its name here, and one in ``sim``."""

ANY = "*"
"""Stands for every function that is not in `WATCHING`."""
WATCHING = frozenset({"cuStreamQuery", "cuStreamWriteValue64_v2", "cuCtxSetCurrent"})
"""What threads of a worker call when nobody has asked for anything, and what tells that a command is done."""

FAULTS_VARIABLE = "ATOMR_TRIO_SIM_FAULTS"
WORKER_VARIABLE = "ATOMR_TRIO_SIM_WORKER"


@dataclass(frozen=True)
class ReturnStatus:
    """The call returns `status` and does nothing else. With 0 it claims to have succeeded."""

    status: int

    def __post_init__(self) -> None:
        _require(self.status >= 0, f"a status is not negative, as {self.status} is")


@dataclass(frozen=True)
class Poison:
    """The call returns `status`, and so does every later call that a process with a lost context refuses."""

    status: int

    def __post_init__(self) -> None:
        _require(self.status > 0, f"a status that poisons is greater than 0, not {self.status}")


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
        _require(0 <= self.status <= 255, f"an exit status is from 0 to 255, not {self.status}")


@dataclass(frozen=True)
class Delay:
    """The call sleeps for `seconds`, and then does what it always does."""

    seconds: float

    def __post_init__(self) -> None:
        _require(0 <= self.seconds < math.inf, f"a delay is a finite number of seconds, not {self.seconds}")


@dataclass(frozen=True)
class NoHostMemory:
    """The call does nothing and raises `MemoryError` in its caller."""


Action: TypeAlias = ReturnStatus | Poison | Hang | Crash | Exit | Delay | NoHostMemory
"""What a call can be made to do."""


@dataclass(frozen=True)
class Injection:
    """An action, and the calls of a function that it is for.

    `function` is a name of the table or a C symbol. The calls are `times` in a row (`math.inf` for all that follow)
    from the one with number `call` on, counted from 1. `first_worker` and `last_worker` limit it to some workers, by
    the order in which they are started; without `first_worker` it is for every process.

    Raises `ValueError` for numbers that cannot be.
    """

    function: str
    action: Action
    call: int = 1
    times: float = 1
    first_worker: int | None = None
    last_worker: float = math.inf

    def __post_init__(self) -> None:
        _require(isinstance(self.action, Action), f"not an action: {self.action!r}")
        every = self.function == ANY and isinstance(self.action, NoHostMemory)
        _require(not every, "host memory is wanting in a function that is named, not in any")
        _require(self.call >= 1, f"calls are counted from 1, not {self.call}")
        times = self.times
        _require(times == math.inf or times == int(times) >= 1, f"a fault comes a whole number of times, not {times}")
        first, last = self.first_worker, self.last_worker
        _require(first is None or 1 <= first <= last, f"no worker is counted from {first} to {last}")

    def __str__(self) -> str:
        """The text form."""
        text = f"{self.function}:{_write_action(self.action)}:{self.call}"
        if self.times != 1:
            text += f"*{_write_limit(self.times)}"
        if self.first_worker is not None:
            text += f"@{self.first_worker}-{_write_limit(self.last_worker)}"
        return text

    def declared(self) -> Function:
        """The function of a table that it is for. Raises `ValueError` if there is none."""
        for name in ("driver", *SIMULATED):
            table = importlib.import_module(f".{name}", __package__)
            found = getattr(table, self.function, None) or table.library.functions.get(self.function)
            if isinstance(found, Function):
                return found
        raise ValueError(f"the tables have no function {self.function!r}")

    def is_for(self, worker: int | None) -> bool:
        """Whether it is for the worker with this number; None is a process without one."""
        if self.first_worker is None:
            return True
        return worker is not None and self.first_worker <= worker <= self.last_worker

    @classmethod
    def parse(cls, text: str) -> Injection:
        """Read the text form of one fault. Raises `ValueError`."""
        found = _FAULT.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"not a fault to inject (function:action:calls): {text!r}")
        action = _read_action(found["word"], found["value"])
        if found["sticky"]:
            _require(isinstance(action, ReturnStatus), f"only a status can be sticky: {text!r}")
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
    """The injections that an environment has for the process that it is of. Raises `ValueError`."""
    number = environment.get(WORKER_VARIABLE)
    worker = int(number) if number else None
    return tuple(each for each in parse(environment.get(FAULTS_VARIABLE, "")) if each.is_for(worker))


_FAULT = re.compile(
    r"(?P<function>\w+|\*):(?P<word>[a-z]+|\d+)(=(?P<value>[\w.+-]+))?"
    r"(:(?P<call>\d+)(?P<repeated>\*(?P<times>\d+)?)?)?(?P<sticky>:sticky)?"
    r"(@(?P<first_worker>\d+)-(?P<last_worker>\d+)?)?"
)

# The word of each action, and how its value is read; None for an action that has no value.
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
        raise ValueError(f"not an action: {word if value is None else f'{word}={value}'!r}; one of {', '.join(_WORDS)}")
    if read is None or value is None:
        return kind()
    try:
        return kind(read(value))
    except KeyError:
        raise ValueError(f"there is no signal {value!r}") from None


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
