"""Verbs of several calls that are ready to be made by native code: what is called, and what their errors say."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import atomr_sim
from atomr_cuda import driver
from atomr_cuda._library import CudaError
from atomr_trio._calls.verbs import Address, Answer, _write
from atomr_trio._wire.ready import with_holes
from atomr_trio._wire.records.calls import HEAD, STAGING_AT, WORD
from atomr_trio._wire.records.sequences import Content, Hole, Step, pack_words
from atomr_trio._worker.base.capture_turns import CaptureTurns
from atomr_trio.libraries.solver import records_finite as finite
from atomr_trio.libraries.solver.engine import solver_engine
from atomr_trio.libraries.solver.records import FUNCTIONS, NONDETERMINISTIC, SOLVER
from atomr_trio.libraries.solver.types import LOWER, arguments_of
from support import native_forms, sim_process

pytestmark = pytest.mark.sim_only
ORDER = 4
SLOT, SOURCE, FACTOR, FOUND = range(4)
"""The words of the sequence."""
POTRF = "cusolverDnXpotrf"


def step(function: str, arguments: Sequence[Any], words: dict[int, int], *, answer: int | None = None) -> Step:
    """A call with addresses that are words of the sequence, and a place for its answer."""
    written = _write(arguments)
    size = 0 if answer is None else 4
    payload = HEAD.pack(SOLVER.numbers[function], 0, written.scalars, written.answers, size, 0) + written.words
    holes = [Hole(HEAD.size + WORD * place, word, 0) for place, word in words.items()]
    holes += [] if answer is None else [Hole(STAGING_AT, SLOT, answer)]
    return Step(SOLVER.number, SOLVER.call.number, payload, tuple(holes))


def cholesky() -> Content:
    """What the verb of this name plans for one small matrix."""
    shape = (ORDER, ORDER, ORDER, ORDER * ORDER)
    potrf = arguments_of(FUNCTIONS[POTRF], np.dtype("f4"), {"uplo": LOWER, "n": ORDER, "A": Address(0), "lda": ORDER})
    return Content(
        [
            step("look", (0, 0, *shape, finite.BELOW, 1, Answer(), 0, 0), {1: FACTOR, 9: FOUND, 10: SOURCE}, answer=0),
            step(POTRF, potrf, {FUNCTIONS[POTRF].words.index("A"): FACTOR}, answer=16),
            step("clear", (0, 0, *shape, 1, finite.ABOVE, 0, 0, finite.NAN), {1: FACTOR, 8: FOUND}),
        ]
    )


class Bench:
    """The engine of the solver, and a lane on which the sequence was made once."""

    def __init__(self) -> None:
        sim_process.begin()
        self.host = ctypes.create_string_buffer(64)
        self.bugs: list[BaseException] = []
        self.forgotten = 0
        services: Any = SimpleNamespace(
            cuda_error=CudaError,
            rehearses=False,
            capture_turns=CaptureTurns(),
            give_up=self.bugs.append,
            staged=lambda place: ctypes.addressof(self.host) + place,
            forget_hot=self._forget,
        )
        self.lane: Any = SimpleNamespace(
            index=0, stream=sim_process.stream(), calling=threading.Lock(), made_now=2, weigh=self._weigh
        )
        self.weighed: list[int] = []
        self.engine = solver_engine(services)
        services.engines = {SOLVER.number: self.engine}
        self.source, *self.targets, self.found = (sim_process.allocate(1024) for _ in range(4))
        content = cholesky().encode()
        command: Any = SimpleNamespace(ticket=1, payload=SOLVER.define.struct.pack(1, 0, len(content)) + content)
        self.engine.calls[SOLVER.define.number](command, self.lane)

    def _forget(self) -> None:
        self.forgotten += 1

    def _weigh(self, ticket: int, entries: int) -> None:
        self.weighed.append(entries)

    def payload(self, target: int) -> bytes:
        return SOLVER.enqueue.struct.pack(1) + pack_words((0, self.source, target, self.found))

    def give(self, matrix: np.ndarray[Any, Any]) -> None:
        sim_process.write(self.source, np.asarray(matrix, np.float32).tobytes())

    def make(self) -> None:
        command: Any = SimpleNamespace(ticket=1, payload=self.payload(self.targets[0]))
        self.engine.calls[SOLVER.execute.number](command, self.lane)

    def ready(self) -> Any:
        """The sequence with two words that differ: the place of the slot, and the address of the factor."""
        places = tuple(SOLVER.enqueue.struct.size + WORD * word for word in (SLOT, FACTOR))
        payload = with_holes(self.payload(self.targets[0]), places)
        return self.engine.hot_call(SOLVER.enqueue.number, payload, self.lane, places)

    def answers(self, slot: int) -> tuple[int, int]:
        driver.cuStreamSynchronize(self.lane.stream)
        return struct.unpack_from("<i12xi", self.host, slot)

    def factor(self, target: int) -> np.ndarray[Any, Any]:
        """As numpy has it: the library's lower triangle, column by column."""
        content = sim_process.read(target, 4 * ORDER * ORDER)
        return np.frombuffer(content, np.float32).reshape(ORDER, ORDER).T


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.engine.close()


def positive(seed: int) -> np.ndarray[Any, Any]:
    matrix = np.random.default_rng(seed).random((ORDER, ORDER))
    return np.asarray(matrix @ matrix.T + np.eye(ORDER), np.float32)


def test_native_code_makes_a_cholesky_factorization_of_four_functions_and_asks_for_nothing(bench: Bench) -> None:
    bench.give(positive(1))
    assert bench.ready().native() is None, "it has to be made once, which asks for the workspace"
    bench.make()
    form = bench.ready().native()
    assert 1 + len(form.then) == 4, "the copy that is looked at, the library, the other triangle, the answers"
    assert form.entries == sum(bench.weighed)
    before = atomr_sim.calls()
    for turn, target in enumerate(bench.targets, start=1):
        matrix = positive(turn)
        bench.give(matrix)
        assert native_forms.made(form, (16, target)) == 0
        assert bench.answers(16) == (0, 0)
        np.testing.assert_allclose(bench.factor(target), np.linalg.cholesky(matrix), rtol=1e-5, atol=1e-6)
        assert sim_process.read(bench.source, matrix.nbytes) == matrix.tobytes(), "the input is kept"
    after = atomr_sim.calls()
    assert {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)} == {
        POTRF: 2
    }
    assert bench.bugs == []


def test_its_answers_say_which_minor_is_not_positive_and_whether_there_is_nan(bench: Bench) -> None:
    bench.make()
    form = bench.ready().native()
    matrix = positive(3)
    matrix[2, 2] = -1
    bench.give(matrix)
    assert native_forms.made(form, (0, bench.targets[1])) == 0
    assert bench.answers(0) == (0, 3)
    matrix[1, 3] = matrix[3, 1] = np.nan
    bench.give(matrix)
    assert native_forms.made(form, (0, bench.targets[1])) == 0
    assert bench.answers(0)[0] == finite.NAN
    factor = bench.factor(bench.targets[1])
    assert np.isnan(np.tril(factor)[np.tril_indices(ORDER)]).all()
    assert (np.triu(factor, 1) == 0).all()


def test_python_and_native_code_make_it_in_turns(bench: Bench) -> None:
    """Each has arguments of its own."""
    bench.make()
    ready = bench.ready()
    form = ready.native()
    for turn in range(6):
        matrix, target = positive(turn), bench.targets[turn % 2]
        bench.give(matrix)
        made = native_forms.made(form, (0, target)) if turn % 3 else ready.call((0, target))
        assert made == 0
        assert bench.answers(0) == (0, 0)
        np.testing.assert_allclose(bench.factor(target), np.linalg.cholesky(matrix), rtol=1e-5, atol=1e-6)


def test_the_error_of_each_step_has_its_number(bench: Bench) -> None:
    bench.make()
    ready = bench.ready()
    form = ready.native()
    steps = [ready.error(1), *(each.refused(1) for each in form.then)]
    names = ["cuLaunchKernel", POTRF, "cuLaunchKernel", "cuMemcpyDtoHAsync_v2"]
    assert [(error.function, getattr(error, "part", None)) for error in steps] == [
        *zip(names, (0, 1, 2, None), strict=True)
    ]


def test_a_handle_that_is_set_otherwise_is_left_to_python(bench: Bench) -> None:
    bench.make()
    ready = bench.ready()
    form = ready.native()
    assert native_forms.takes(form)
    handle = bench.engine._lanes[0]
    bench.engine._set(handle, NONDETERMINISTIC)
    assert not native_forms.takes(form)
    assert ready.call((0, bench.targets[0])) == 0
    assert native_forms.takes(form)


def test_a_workspace_that_grows_ends_what_native_code_knows(bench: Bench) -> None:
    bench.make()
    handle, before = bench.engine._lanes[0], bench.forgotten
    bench.engine._room(handle, handle.room_bytes, bench.lane)
    assert bench.forgotten == before
    bench.engine._room(handle, handle.room_bytes + 1, bench.lane)
    assert bench.forgotten == before + 1
