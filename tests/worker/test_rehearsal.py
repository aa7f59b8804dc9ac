"""Calls of libraries that a standby makes ahead of time, by the driver of this process: nothing runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import atomr_sim
from atomr_cuda import CudaError, driver
from atomr_cuda._library import LibraryMissing
from atomr_trio._wire.protocol import WORKSPACES_WORD, Mode, VerbTable
from atomr_trio._wire.records.rehearsal import REHEARSE
from atomr_trio._worker.base import rehearsal
from atomr_trio._worker.base.capture_turns import CaptureTurns
from atomr_trio._worker.base.giving_back import GivingBackLater
from atomr_trio._worker.base.lanes import Command
from atomr_trio._worker.base.rehearsal import RehearsalEngine
from atomr_trio._worker.base.workspaces import Workspaces
from support import sim_process

pytestmark = pytest.mark.sim_only

STUB = VerbTable("stub", 99)
SET = STUB.verb("set", Mode.ENQUEUES, {"address": "Q", "value": "I"})
N = 4
REFUSED, MISSING, UNKNOWN, DEFECT, LOST = 71, 72, 73, 74, 75


class StubEngine:
    """Sets words of memory, and notes what it is asked for."""

    table = STUB

    def __init__(self, services: Any) -> None:
        self.services = services
        self.seen: list[tuple[str, int]] = []
        self.allowed: list[tuple[int, bool]] = []
        self.calls = {SET.number: self._set}

    def prepare_capture(self, verb: int, payload: bytes, lane: Any, allowed: int, *, launches: bool = True) -> None:
        assert not self.services.capture_turns.is_capturing
        self.allowed.append((allowed, launches))
        self.seen.append(("prepare", lane.index))
        if SET.struct.unpack(payload)[1] == UNKNOWN:
            raise LookupError("there is no such plan")

    def _set(self, command: Command, lane: Any) -> None:
        assert self.services.capture_turns.is_capturing
        address, value = SET.struct.unpack(command.payload)
        self.seen.append(("call", lane.index))
        if value == REFUSED:
            raise CudaError(1, "CUDA_ERROR_INVALID_VALUE", "no", "cuda", "f")
        if value == LOST:
            raise CudaError(700, "CUDA_ERROR_ILLEGAL_ADDRESS", "no", "cuda", "f")
        if value == MISSING:
            raise LibraryMissing("stub", None, ("nowhere",))
        if value == DEFECT:
            raise ZeroDivisionError
        driver.cuMemsetD32Async(address, value, N, lane.stream)

    def forget_lane(self, index: int) -> list[Any]:
        return [lambda: self.seen.append(("forget", index))]

    def close(self) -> None:
        """Nothing is left."""


@pytest.fixture
def services() -> Iterator[Any]:
    context = sim_process.begin()
    later = GivingBackLater(started, lambda calls: [call() for call in calls] and None)
    made = SimpleNamespace(
        cuda_error=CudaError,
        library_missing=LibraryMissing,
        capture_turns=CaptureTurns(),
        workspaces=Workspaces([0] * (WORKSPACES_WORD + 1)),
        give_back=later.make,
        wait_given_back=later.join,
        rehearses=True,
        lost=lambda error, operation: made.losses.append((error.status, operation)),
        losses=[],
        engines={},
    )
    made.stub = made.engines[STUB.number] = StubEngine(made)
    made.engine = RehearsalEngine(made)
    made.engines[made.engine.table.number] = made.engine
    yield made
    later.join()
    atomr_sim.withdraw()
    driver.cuCtxSetCurrent(context)
    driver.cuDevicePrimaryCtxRelease(0)
    driver.cuCtxSetCurrent(None)


def started(work: Any) -> threading.Thread:
    """A thread that works in the caller's context."""
    context = driver.CUcontext()
    driver.cuCtxGetCurrent(context)

    def run() -> None:
        driver.cuCtxSetCurrent(context)
        work()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.fixture
def memory() -> int:
    sim_process.free_memory()
    address = sim_process.allocate(4 * N)
    driver.cuMemsetD32(address, 5, N)
    return address


def rehearse(services: Any, address: int, value: int, *, ends: bool) -> None:
    payload = REHEARSE.struct.pack(STUB.number, SET.number, ends) + SET.struct.pack(address, value)
    engine = services.engine
    nothing: Any = None
    engine.calls[REHEARSE.number](Command(REHEARSE, engine.calls[REHEARSE.number], 1, (), payload, []), nothing)


def test_what_a_call_needs_on_its_own_lane_is_made_there_before(services: Any, memory: int, monkeypatch: Any) -> None:
    def prepare_ahead(engine: StubEngine, *told: Any) -> None:
        engine.seen.append(("ahead", told))
        if len(engine.seen) > 1:
            raise CudaError(2, "CUDA_ERROR_OUT_OF_MEMORY", "no", "cuda", "f")

    monkeypatch.setattr(StubEngine, "prepare_ahead", prepare_ahead, raising=False)
    rehearse(services, memory, 9, ends=False)
    assert [what for what, _ in services.stub.seen] == ["ahead", "prepare", "call"]
    assert services.stub.seen[0][1] == (SET.number, SET.struct.pack(memory, 9), None, rehearsal.MOST_ROOM)
    rehearse(services, memory, 9, ends=True)  # one that cannot be made is no error
    assert services.losses == []


def words(address: int) -> list[int]:
    host = np.zeros(N, np.int32)
    driver.cuMemcpyDtoH(host.ctypes.data, address, host.nbytes)
    return host.tolist()


def test_a_rehearsed_call_is_made_and_has_no_effect(services: Any, memory: int) -> None:
    services.workspaces.take(1000, 1 << 30)
    rehearse(services, memory, 9, ends=True)
    services.wait_given_back()
    (index,) = {index for _, index in services.stub.seen}
    assert services.stub.seen == [("prepare", index), ("call", index), ("forget", index)]
    assert services.stub.allowed == [(1000 + rehearsal.MOST_ROOM, False)]
    driver.cuCtxSynchronize()
    assert words(memory) == [5] * N


def test_calls_up_to_the_last_share_a_lane_and_the_next_have_another(services: Any, memory: int) -> None:
    for ends in (False, False, True, True):
        rehearse(services, memory, 9, ends=ends)
    services.wait_given_back()
    calls = [index for what, index in services.stub.seen if what == "call"]
    assert calls[0] == calls[1] == calls[2] != calls[3]
    assert [index for what, index in services.stub.seen if what == "forget"] == [calls[0], calls[3]]


@pytest.mark.parametrize("value", [REFUSED, MISSING, UNKNOWN])
def test_a_call_that_cannot_be_made_is_no_error_and_the_next_is_made(services: Any, memory: int, value: int) -> None:
    rehearse(services, memory, value, ends=False)
    rehearse(services, memory, 9, ends=True)
    services.wait_given_back()
    assert [what for what, _ in services.stub.seen if what != "call"] == ["prepare", "prepare", "forget"]
    assert services.stub.seen[-2][0] == "call"
    assert services.losses == []
    assert words(memory) == [5] * N


def test_a_defect_of_an_engine_is_one(services: Any, memory: int) -> None:
    with pytest.raises(ZeroDivisionError):
        rehearse(services, memory, DEFECT, ends=True)


def test_a_context_that_is_lost_meanwhile_is_reported(services: Any, memory: int, monkeypatch: Any) -> None:
    """The libraries say so of calls that a capture forbids as well: only the driver's own word counts."""
    rehearse(services, memory, LOST, ends=False)
    assert services.losses == []
    monkeypatch.setattr(driver.cuStreamQuery, "_bound", lambda *_: 700)
    rehearse(services, memory, LOST, ends=False)
    assert services.losses == [(700, REHEARSE.operation)]


def test_a_worker_in_service_rehearses_no_more_and_gives_back_what_it_took(services: Any, memory: int) -> None:
    rehearse(services, memory, 9, ends=False)
    services.rehearses = False
    seen = len(services.stub.seen)
    rehearse(services, memory, 9, ends=False)
    services.wait_given_back()
    assert [what for what, _ in services.stub.seen[seen:]] == ["forget"]
    rehearse(services, memory, 9, ends=True)
    assert len(services.stub.seen) == seen + 1


def test_what_a_rehearsal_has_taken_is_given_back_when_the_worker_closes(services: Any, memory: int) -> None:
    rehearse(services, memory, 9, ends=False)
    services.engine.close()
    assert services.stub.seen[-1][0] == "forget"
    services.engine.close()
    assert services.engine.forget_lane(0) == ()
