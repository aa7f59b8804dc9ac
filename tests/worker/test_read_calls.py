"""Copies for which the worker reads the bytes of the user's process: what it calls, in either loop."""

from __future__ import annotations

import ctypes
import os
from types import SimpleNamespace
from typing import Any

import pytest

from atomr_cuda import driver
from atomr_trio._wire.records.memory import COPY_IN_READ, NOT_READ, OFFSET_MASK
from atomr_trio._worker.base.lanes import CommandRefused, NativeCall, Ready
from atomr_trio._worker.base.memory import MemoryEngine
from atomr_trio._worker.base.shared_words import MOST_ARGUMENTS
from support.noted import NotedFunction

ARRAY, STREAM, REFUSED = 0x100_0000, 0x55, 3
CONTENT = bytes(range(256)) * 32
OFFSET = 4096
PLACES = (0, 8, 16, 24)


class Bench:
    """The engine of memory in the process whose memory it reads, with a driver that only notes its calls."""

    def __init__(self) -> None:
        self.source = ctypes.create_string_buffer(CONTENT, len(CONTENT))
        self.staging = ctypes.create_string_buffer(OFFSET + len(CONTENT))
        self.base = ctypes.addressof(self.staging)
        services: Any = SimpleNamespace(
            staging_address=self.base, user_process=os.getpid(), cuda_error=ValueError, give_up=None
        )
        self.engine, self.copy = MemoryEngine(services), NotedFunction(driver.cuMemcpyHtoDAsync)
        self.engine._reading._copy = self.copy
        lane: Any = SimpleNamespace(stream=ctypes.c_void_p(STREAM))
        ready = self.engine.hot_call(COPY_IN_READ.number, bytes(COPY_IN_READ.struct.size), lane, PLACES)
        assert isinstance(ready, Ready)
        self.ready, self.lane = ready, lane
        self.words = ARRAY, OFFSET, len(CONTENT), ctypes.addressof(self.source)
        self.expected = [(ARRAY, self.base + OFFSET, len(CONTENT), STREAM)]

    def arrived(self) -> bool:
        return self.staging.raw[OFFSET:] == CONTENT


def call(function: int, arguments: Any) -> int:
    kind = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_uint64,) * MOST_ARGUMENTS)
    status: int = kind(function)(*arguments.view[:MOST_ARGUMENTS])
    return status


def test_python_reads_and_copies():
    bench = Bench()
    assert bench.ready.call(bench.words) == 0
    assert bench.arrived()
    assert bench.copy.made == bench.expected


def test_the_general_way_does_the_same():
    bench = Bench()
    command: Any = SimpleNamespace(payload=COPY_IN_READ.struct.pack(*bench.words))
    bench.engine.calls[COPY_IN_READ.number](command, bench.lane)
    assert bench.arrived()
    assert bench.copy.made == bench.expected


def test_native_code_does_the_same():
    bench = Bench()
    assert bench.ready.native is not None
    native = bench.ready.native()
    assert isinstance(native, NativeCall)
    assert {target.word: target.most for target in native.targets}[1] == OFFSET_MASK
    for target in native.targets:
        ctypes.c_uint64.from_address(target.address).value = bench.words[target.word] + target.base
    assert native.returned is not None
    assert call(native.function, native.arguments) == bench.words[native.returned] == len(CONTENT)
    assert bench.arrived()
    (copy,) = native.then
    assert call(copy.function, copy.arguments) == 0
    assert bench.copy.made == bench.expected


def test_bytes_that_cannot_be_read_are_refused_with_their_own_name_and_nothing_is_copied():
    bench = Bench()
    status = bench.ready.call((*bench.words[:3], 64))
    assert status
    error = bench.ready.error(status)
    assert isinstance(error, CommandRefused)
    assert error.failure["name"] == NOT_READ
    assert error.failure["text"].endswith("bytes of the user's process: Bad address")
    assert bench.copy.made == []
    assert bench.ready.again  # native code leaves it to Python, which says why


def test_a_copy_that_the_driver_refuses_has_its_status():
    bench = Bench()
    bench.copy.answer = REFUSED
    assert bench.ready.call(bench.words) == REFUSED
    assert bench.ready.error(REFUSED) == (REFUSED, bench.copy.symbol)


def test_a_copy_with_other_words_is_not_made_ready():
    bench = Bench()
    lane: Any = bench.lane
    assert bench.engine.hot_call(COPY_IN_READ.number, bytes(COPY_IN_READ.struct.size), lane, PLACES[:3]) is None


@pytest.mark.parametrize("missing", [1, 4096])
def test_a_part_that_could_be_read_is_not_enough(missing):
    bench = Bench()
    words = ARRAY, OFFSET, len(CONTENT), ctypes.addressof(bench.source)
    page = os.sysconf("SC_PAGESIZE")
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    begin = libc.mmap(None, 8 * page, 3, 0x22, -1, 0)
    libc.munmap(begin + 4 * page, 4 * page)
    address = begin + 4 * page - len(CONTENT) + missing
    assert bench.ready.call((*words[:3], address))
    assert bench.copy.made == []
    libc.munmap(begin, 4 * page)
