"""The faults that a test has injected, and their effects on the calls to which they apply.

``injection`` has their text form; ``table`` calls this file before each call. It identifies functions by their C
symbols alone.
"""

from __future__ import annotations

import os
import signal
import threading
import time

from atomr_cuda.injection import (
    ANY,
    WATCHING,
    Action,
    Crash,
    Delay,
    Exit,
    Hang,
    Injection,
    NoHostMemory,
    Poison,
    ReturnStatus,
)

from .._status import UNKNOWN
from .streams import Fate


class _Armed:
    """An injection, and the number of calls that it has seen."""

    def __init__(self, injection: Injection) -> None:
        self.injection = injection
        self.calls = 0

    @property
    def due(self) -> bool:
        return self.calls >= self.injection.call

    @property
    def spent(self) -> bool:
        return self.calls >= self.injection.call + self.injection.times - 1


class Faults:
    """The injections of this process, by C symbol."""

    def __init__(self, fate: Fate) -> None:
        self._fate = fate
        self._armed: dict[str, list[_Armed]] = {}
        self._lock = threading.Lock()
        self._thread = threading.local()

    def add(self, symbol: str, injection: Injection) -> None:
        """Begin to count the calls of a function for an injection."""
        with self._lock:
            self._armed.setdefault(symbol, []).append(_Armed(injection))

    def withdraw(self) -> None:
        """Forget every injection: later calls are not affected."""
        with self._lock:
            self._armed.clear()

    def strike(self, symbol: str) -> int | None:
        """Count a call of a function. Return the status that it must return at once, or None to let it do its work."""
        if symbol not in self._armed and ANY not in self._armed:
            return None
        action = self._due(symbol)
        return None if action is None else self._perform(symbol, action)

    def _due(self, symbol: str) -> Action | None:
        """Return the action of this call; the oldest, if several injections apply to it."""
        due: list[Action] = []
        with self._lock:
            for name in (symbol,) if symbol in WATCHING else (symbol, ANY):
                armed = self._armed.get(name, [])
                for each in armed:
                    each.calls += 1
                due += [each.injection.action for each in armed if each.due]
                self._armed[name] = [each for each in armed if not each.spent]
        return due[0] if due else None

    def _perform(self, symbol: str, action: Action) -> int | None:
        match action:
            case ReturnStatus(status):
                return status
            case Poison(status):
                self._fate.lose(status, f"{symbol}: injected status {status}")
                return status
            case Delay(seconds):
                time.sleep(seconds)
            case Hang():
                threading.Event().wait()
            case Crash(number):
                signal.raise_signal(number)
            case Exit(status):
                os._exit(status)
            case NoHostMemory():
                self._thread.pending = MemoryError(f"{symbol}: injected lack of host memory")
                return UNKNOWN
        return None

    def raise_pending(self, result: int, function: object, arguments: object) -> int:
        """Raise in the caller an exception that cannot cross the C frame of the call. A ctypes ``errcheck``."""
        pending: MemoryError | None = self._thread.__dict__.pop("pending", None)
        if pending is not None:
            raise pending
        return result
