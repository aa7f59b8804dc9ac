"""Groups of NCCL that are ready: what native code is told to call is what Python calls."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import CFUNCTYPE, c_int, c_size_t, c_uint64, c_void_p
from types import SimpleNamespace
from typing import Any

import pytest

from atomr_trio._worker.base.lanes import CommandRefused, NativeCall
from atomr_trio._worker.base.shared_words import MOST_ARGUMENTS
from atomr_trio.libraries.nccl import engine
from atomr_trio.libraries.nccl.records import ADDRESSES_AT, CALL, CALLS, RUN

COMMUNICATOR, HANDLE, STREAM = 9, 0x5500, 0x7700
SUM, FLOAT = 0, 7
CALL_TYPE = CFUNCTYPE(c_int, *(c_uint64,) * MOST_ARGUMENTS)


class Function:
    """A declared function of a library that notes its calls."""

    restype = c_int

    def __init__(self, nccl: Nccl, symbol: str, argtypes: Sequence[Any]) -> None:
        self._nccl, self.symbol, self.argtypes = nccl, symbol, argtypes
        self.library = SimpleNamespace(error=lambda status, function: RuntimeError(function, status))

    def status(self, *arguments: Any) -> int:
        plain = tuple(each.value if isinstance(each, c_void_p) else each for each in arguments)
        assert len(plain) == len(self.argtypes)
        self._nccl.effects.append((self.symbol, plain))
        return self._nccl.refused.pop(self.symbol, 0)

    def bind(self) -> Any:
        return self.status


class Nccl:
    """As much of the library as groups need."""

    def __init__(self) -> None:
        self.effects: list[tuple[str, tuple[int, ...]]] = []
        self.refused: dict[str, int] = {}
        rest = (c_size_t, c_int, c_int, c_void_p, c_void_p)
        self.ncclGroupStart = Function(self, "ncclGroupStart", ())
        self.ncclGroupEnd = Function(self, "ncclGroupEnd", ())
        self.ncclAllReduce = Function(self, "ncclAllReduce", (c_void_p, c_void_p, *rest))
        self.ncclSend = Function(self, "ncclSend", (c_void_p, *rest))
        self.ncclRecv = Function(self, "ncclRecv", (c_void_p, *rest))


def call(name: str, source: int, target: int, count: int = 5, root: int = 1) -> bytes:
    return CALL.pack(CALLS.index(name), FLOAT, SUM, root, count, source, target, bytes(8))


def place(number: int, which: int) -> int:
    """The place in the payload of an address of a call."""
    return RUN.struct.size + CALL.size * number + ADDRESSES_AT[which]


class Worker:
    """An engine with one communicator."""

    def __init__(self) -> None:
        self.nccl = Nccl()
        self.made: Any = engine._Communicator()
        self.made.handle, self.made.ready = c_void_p(HANDLE), True
        self.lane: Any = SimpleNamespace(stream=c_void_p(STREAM), made_now=3, weigh=self._weigh)
        self.weights: list[tuple[int, int]] = []
        self.engine: Any = engine.NcclEngine.__new__(engine.NcclEngine)
        self.engine._nccl = self.nccl
        self.engine._services = SimpleNamespace(give_up=self._give_up)
        self.engine._communicators = {COMMUNICATOR: self.made}

    def _weigh(self, ticket: int, entries: int) -> None:
        self.weights.append((ticket, entries))

    def _give_up(self, bug: BaseException) -> None:
        raise bug

    def ready(self, calls: Sequence[bytes], places: Sequence[int] = ()) -> Any:
        return self.engine.hot_call(RUN.number, RUN.struct.pack(COMMUNICATOR) + b"".join(calls), self.lane, places)


def natively(native: NativeCall, words: Sequence[int]) -> tuple[int, int]:
    """Do what native code does with a call. Returns the status, and the number of the last function."""
    assert ctypes.c_uint64.from_address(native.guard).value == native.expected
    assert sorted(target.word for target in native.targets) == [*range(len(words))]
    for target in native.targets:
        ctypes.c_uint64.from_address(target.address).value = words[target.word] + target.base
    parts = [(native.function, native.arguments), *((each.function, each.arguments) for each in native.then)]
    for number, (function, arguments) in enumerate(parts):
        if status := CALL_TYPE(function)(*arguments.view[:MOST_ARGUMENTS]):
            return status, number
    return 0, len(parts) - 1


GROUPS: dict[str, tuple[list[bytes], list[int], list[int]]] = {
    "constant": ([call("ncclAllReduce", 16, 32), call("ncclAllReduce", 48, 48, count=1)], [], []),
    "new outputs": (
        [call("ncclAllReduce", 16, 0), call("ncclAllReduce", 0, 0, count=7)],
        [place(1, 0), place(0, 1), place(1, 1)],
        [1 << 40, 2 << 40, 3 << 40],
    ),
    "both directions": ([call("ncclSend", 0, 0), call("ncclRecv", 0, 0)], [place(0, 0), place(1, 1)], [64, 128]),
    "one": ([call("ncclAllReduce", 0, 32)], [place(0, 0)], [96]),
}


@pytest.mark.parametrize("name", GROUPS)
def test_native_code_makes_the_calls_that_python_makes(name: str) -> None:
    calls, places, words = GROUPS[name]
    worker = Worker()
    ready = worker.ready(calls, places)
    assert ready.call(words) == 0
    by_python, worker.nccl.effects = worker.nccl.effects, []
    native = ready.native()
    for again in range(3):
        assert natively(native, words) == (0, len(calls) + 1)
        assert worker.nccl.effects == by_python
        worker.nccl.effects = []
        words = [word + 4096 for word in words]
        assert ready.call(words) == 0
        by_python, worker.nccl.effects = worker.nccl.effects, []
        assert len(by_python) == len(calls) + 2
        assert again + 2 == len(worker.weights)


def test_a_word_that_no_function_takes_is_left_to_python() -> None:
    worker = Worker()
    ready = worker.ready([call("ncclSend", 16, 0), call("ncclRecv", 0, 32)], [place(0, 1)])
    assert ready.native() is None
    assert ready.call([7]) == 0
    assert [symbol for symbol, _ in worker.nccl.effects] == ["ncclGroupStart", "ncclSend", "ncclRecv", "ncclGroupEnd"]


@pytest.mark.parametrize("function", ["ncclGroupStart", "ncclAllReduce", "ncclGroupEnd"])
def test_a_group_that_is_refused_is_ended_once(function: str) -> None:
    worker = Worker()
    ready = worker.ready(GROUPS["constant"][0])
    native = ready.native()
    worker.nccl.refused = {function: 3}
    status, part = natively(native, [])
    assert status == 3
    error = native.then[part - 1].refused(status) if part else ready.error(status)
    assert error.args == ("ncclGroupEnd", 3)
    symbols = [symbol for symbol, _ in worker.nccl.effects]
    assert symbols.count("ncclGroupEnd") == (part > 0), "a group that was not begun is not ended"
    assert natively(native, [])[0] == 0


def test_after_the_abort_neither_makes_a_group() -> None:
    worker = Worker()
    ready = worker.ready(GROUPS["constant"][0])
    native = ready.native()
    assert worker.made.end()
    assert ctypes.c_uint64.from_address(native.guard).value != native.expected
    assert isinstance(ready.error(ready.call([])), CommandRefused)
    assert worker.nccl.effects == []
