"""A library that plans and does not exist, for tests of the engine of plans: it notes its calls, no more."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from ctypes import (
    POINTER,
    Structure,
    addressof,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_int64,
    c_size_t,
    c_uint,
    c_uint64,
    c_void_p,
    cast,
    string_at,
)
from types import SimpleNamespace
from typing import Any

from atomr_cuda._library import CudaError, Library
from atomr_trio._wire.programs import Program
from atomr_trio._wire.protocol import WORKSPACES_WORD
from atomr_trio._wire.records.plans import PlanTable, pack_addresses
from atomr_trio._worker.base.calls import Handles
from atomr_trio._worker.base.capture_turns import CaptureTurns
from atomr_trio._worker.base.plans import PlanEngine
from atomr_trio._worker.base.workspaces import Workspaces


class Info(Structure):
    _fields_ = (("state", c_int), ("bytes", c_size_t), ("name", c_char * 8))


class Toy:
    """The library's table, and what was done with it."""

    Info = Info

    def __init__(self) -> None:
        self.library = library = Library(
            "toy", sonames=("libtoy.so",), describe=lambda status: (f"TOY_{status}", "a toy")
        )
        self.toyOpen = library("toyOpen", POINTER(c_void_p))
        self.toyClose = library("toyClose", c_void_p)
        self.toyCreate = library("toyCreate", POINTER(c_void_p), c_int)
        self.toyDestroy = library("toyDestroy", c_void_p)
        self.toyNumber = library("toyNumber", POINTER(c_int), c_void_p)
        self.toyHook = library("toyHook", c_void_p, c_char_p, c_void_p, c_size_t, POINTER(c_void_p))
        self.toyForget = library("toyForget", c_int)
        self.toySet = library("toySet", c_void_p, c_int, c_void_p, c_size_t)
        self.toyShape = library("toyShape", c_void_p, POINTER(c_int64), c_int)
        self.toyAsk = library("toyAsk", c_void_p, POINTER(Info), POINTER(c_size_t))
        self.toyRun = library(
            "toyRun", c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_double, c_size_t, c_void_p, c_size_t, c_void_p
        )
        self.toySecret = library("toySecret", c_void_p)
        self.TOY_WORD = library.variable("TOY_WORD")
        self.TOY_NULL = library.variable("TOY_NULL")
        self.TOY_NEW = library.variable("TOY_NEW", since=(13, 9))
        self.TOY_SECRET = library.variable("TOY_SECRET")
        self.calls: list[tuple[Any, ...]] = []
        self.alive: dict[int, str] = {}
        self.statuses: dict[str, int] = {}
        """The status with which a function answers its next call."""
        self.answers: dict[str, int] = {"state": 0, "bytes": 1000, "count": 3}
        self._hook: Callable[[], tuple[Any, ...]] | None = None
        self._next = 0
        variables = {"TOY_WORD": 0xF00D, "TOY_NULL": 0, "TOY_SECRET": 0xBAD}
        library.replace({name: self._entry(name) for name in library.functions} | variables)

    def _entry(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            told = [each if isinstance(each, int | float) or each is None else "..." for each in arguments]
            self.calls.append((name, *told))
            status = self.statuses.pop(name, 0)
            if not status:
                getattr(self, f"_{name}", lambda *_: None)(*arguments)
            return status

        return call

    def names(self) -> list[str]:
        """The functions that were called since this was asked."""
        names = [name for name, *_ in self.calls]
        self.calls.clear()
        return names

    def _make(self, out: Any, what: str) -> None:
        self._next += 1
        out[0] = self._next
        self.alive[self._next] = what

    def _toyOpen(self, out: Any) -> None:
        self._make(out, "handle")

    def _toyClose(self, handle: int) -> None:
        del self.alive[handle]

    def _toyCreate(self, out: Any, size: int) -> None:
        self._make(out, f"object of {size}")

    def _toyDestroy(self, thing: int) -> None:
        del self.alive[thing]

    def _toyNumber(self, out: Any, thing: int) -> None:
        self._make(out, "number")

    def _toyForget(self, number: int) -> None:
        del self.alive[number]

    def _toyAsk(self, thing: int, info: Any, count: Any) -> None:
        if self._hook is not None:
            self.calls.append(("hooked", *self._hook()))
        info[0].state, info[0].bytes = self.answers["state"], self.answers["bytes"]
        count[0] = self.answers["count"]

    def _toySet(self, thing: int, attribute: int, value: int, size: int) -> None:
        self.calls[-1] = ("toySet", attribute, string_at(value, size))

    def _toyHook(self, thing: int, name: bytes, image: int, size: int, words: Any) -> None:
        """What it is given is read when the toy is asked, as cuFFT does with callbacks."""
        self._hook = lambda: (name, string_at(image, size), *words[:2])

    def _toyShape(self, thing: int, values: Any, count: int) -> None:
        numbers = cast(values, POINTER(c_int64))  # native code gives an address
        self.calls[-1] = ("toyShape", *(numbers[at] for at in range(count)))

    def _toyRun(self, *arguments: Any) -> None:
        *head, scalars, number, length, room, size, stream = arguments
        self.calls[-1] = ("toyRun", *head, string_at(scalars, 4), number, length, room, size, stream)


PROGRAMS = ("toyCreate", "toyDestroy", "toyNumber", "toyForget", "toySet", "toyShape", "toyAsk", "toyRun", "toyHook")
VARIABLES = ("TOY_WORD", "TOY_NULL", "TOY_NEW", "toyCreate")


class _Handles(Handles):
    def __init__(self, toy: Toy) -> None:
        self._toy = toy

    def create(self, lane: Any) -> Any:
        handle = c_void_p()
        self._toy.toyOpen(handle)
        return handle

    def destroy(self, handle: Any) -> None:
        self._toy.toyClose(handle)


class Memory:
    """Stands for the driver, as far as the engine of plans uses it."""

    def __init__(self, size: int = 1 << 20) -> None:
        self.library = Library(
            "cuda", sonames=("libcuda.so.1",), describe=lambda status: (f"CUDA_{status}", "no memory")
        )
        self.allocated: dict[int, int] = {}
        self.synchronized = 0
        self.fault = 0
        """The status of the stream, when it is asked."""
        self._size = size
        self._next = 1 << 12
        self.cuMemAlloc = self.library("cuMemAlloc", POINTER(c_uint64), c_size_t)
        self.cuMemFree = self.library("cuMemFree", c_uint64)
        self.cuStreamSynchronize = self.library("cuStreamSynchronize", c_void_p)
        self.cuStreamQuery = self.library("cuStreamQuery", c_void_p)
        self.cuLaunchKernel = self.library("cuLaunchKernel", c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p)
        self.CUdeviceptr = c_uint64
        self.library.replace(
            {
                "cuMemAlloc": self._allocate,
                "cuMemFree": self._free,
                "cuStreamSynchronize": self._synchronize,
                "cuStreamQuery": lambda stream: self.fault,
            }
        )

    def _allocate(self, out: Any, size: int) -> int:
        if sum(self.allocated.values()) + size > self._size:
            return 2
        out[0] = self._next
        self.allocated[self._next] = size
        self._next += -(-size // 512) * 512
        return 0

    def _free(self, address: int) -> int:
        del self.allocated[address]
        return 0

    def _synchronize(self, stream: int) -> int:
        self.synchronized += 1
        return 0


class Bench:
    """An engine of plans for the toy, and a lane."""

    def __init__(self, *, shared: bool = False, memory: int = 1 << 20) -> None:
        self.toy = Toy()
        self.memory = Memory(memory)
        self.forgotten = 0
        self.bugs: list[BaseException] = []
        """What functions have raised to native code."""
        self.later: list[Any] = []
        """What a worker would give back in a thread."""
        self.words = [0] * (WORKSPACES_WORD + 1)
        self.services = SimpleNamespace(
            cuda_error=CudaError,
            forget_hot=self._forget,
            workspaces=Workspaces(self.words),
            capture_turns=CaptureTurns(),
            give_back=self.later.extend,
            wait_given_back=self.give_back,
            give_up=self.bugs.append,
        )
        self.table = PlanTable("toy", 99, PROGRAMS, variables=VARIABLES)
        self.engine = PlanEngine(self.services, self.table, self.toy, _Handles(self.toy), shared=shared)
        self.engine.driver = self.memory
        self.lane = self.new_lane(0)

    def new_lane(self, index: int) -> Any:
        weighed: list[tuple[int, int]] = []
        lane = SimpleNamespace(
            index=index, stream=c_void_p(0x51 + index), calling=threading.Lock(), finished=0, made_now=8
        )
        lane.weighed, lane.weigh = weighed, lambda *what: weighed.append(what)
        lane.ask = lambda call: call(lane.stream)
        return lane

    def _forget(self) -> None:
        self.forgotten += 1

    def give_back(self) -> bool:
        """Make the calls that a worker would make in a thread. Returns whether there were any."""
        calls = list(self.later)
        self.later.clear()
        for call in calls:
            call()
        return bool(calls)

    def define(
        self,
        program: Program | bytes,
        number: int = 1,
        *,
        example: tuple[int, ...] = (512, 1024),
        allowed: int = 1 << 20,
        lane: Any = None,
        ticket: int = 1,
        by_file: bool = False,
    ) -> dict[str, int]:
        content = program if isinstance(program, bytes) else program.encode()
        head = self.table.define.struct.pack(number, allowed, len(content))
        content += pack_addresses(example)
        if not by_file:
            return self._call(self.table.define, head + content, lane, ticket)
        descriptor = os.memfd_create("toy")
        os.write(descriptor, content)
        return self._call(self.table.define, head, lane, ticket, descriptor)

    def payload(self, number: int = 1, addresses: tuple[int, ...] = (512, 1024), scalars: bytes = b"") -> bytes:
        return self.table.execute.struct.pack(number) + pack_addresses(addresses) + scalars

    def execute(
        self,
        number: int = 1,
        addresses: tuple[int, ...] = (512, 1024),
        scalars: bytes = b"",
        *,
        lane: Any = None,
        ticket: int = 1,
    ) -> None:
        self._call(self.table.execute, self.payload(number, addresses, scalars), lane, ticket)

    def restore(self, *calls: bytes, count: int | None = None, ticket: int = 1, by_file: bool = False) -> None:
        content = b"".join(calls)
        head = self.table.restore.struct.pack(1, len(calls) if count is None else count)
        if not by_file:
            self._call(self.table.restore, head + content, None, ticket)
            return
        descriptor = os.memfd_create("toy")
        os.write(descriptor, content)
        self._call(self.table.restore, head, None, ticket, descriptor)

    def drop(self, number: int = 1, *, lane: Any = None, ticket: int = 1) -> None:
        self._call(self.table.drop, self.table.drop.struct.pack(number), lane, ticket)

    def _call(self, verb: Any, payload: bytes, lane: Any, ticket: int, *descriptors: int) -> Any:
        command = SimpleNamespace(payload=payload, ticket=ticket, take_descriptor=lambda: descriptors[0])
        return self.engine.calls[verb.number](command, lane or self.lane)


def address_of(content: Any) -> int:
    """The address of a ctypes object."""
    return addressof(content)
