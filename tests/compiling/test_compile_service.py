"""Many compiles at once: threads, sharing, and what is remembered."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import outcome
import pytest
import trio

from atomr_cuda import nvrtc
from atomr_trio._compiling.cache import NvrtcCache
from atomr_trio._compiling.caching import Answer, CachingCompiler, Identify
from atomr_trio._compiling.cancellation import Cancellation
from atomr_trio._compiling.compiler import CompiledProgram, compile_program
from atomr_trio._compiling.identity import NvrtcIdentity
from atomr_trio._compiling.options import NvrtcOptions
from atomr_trio._compiling.service import CompileService, Waiter
from atomr_trio._values.errors import AtomrInternalError, CompileError, DeviceError, InvalidArgument, OutOfHostMemory
from support import SWEEP, child_environment

SAXPY = """
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""

# ---------------------------------------------------------------------------------------------------- many compiles


class Outcomes(list["outcome.Outcome[Answer]"]):
    """Collects what is delivered, and lets a test wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self._more = trio.Event()

    def deliver(self, result: outcome.Outcome[Answer]) -> None:
        self.append(result)
        self._more.set()
        self._more = trio.Event()

    async def wait(self, count: int) -> None:
        with trio.fail_after(60):
            while len(self) < count:
                await self._more.wait()


class Gate:
    """A compiler that waits for permission, so that tests decide who is compiling when."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Semaphore(0)
        self.started: list[str] = []
        self.error: Exception | None = None

    def __call__(
        self,
        source: str,
        options: NvrtcOptions,
        target: str,
        *,
        extra_flags: tuple[str, ...] = (),
        prepare: Callable[[Any], None] | None = None,
    ) -> CompiledProgram:
        self.started.append(source)
        self.entered.release()
        assert self.open.wait(20)
        if self.error is not None:
            raise self.error
        return a_program(target)


def a_program(target: str = "compute_80") -> CompiledProgram:
    return CompiledProgram(
        ptx=b"",
        cubin=None,
        ltoir=None,
        lowered_names={},
        entries={},
        log="",
        target=target,
        nvrtc_version=(13, 0),
    )


def service_with(
    compile_with: Any = compile_program, cache: NvrtcCache | None = None, **options: Any
) -> CompileService:
    """A service of its own, which keeps nothing on the disk unless it is given a cache."""
    cache = NvrtcCache(max_bytes=0) if cache is None else cache
    identity = NvrtcIdentity((13, 0), "a build")
    compiler = CachingCompiler(lambda: cache, compile_with, lambda cache, *, headers=False: identity)
    return CompileService(compiler=compiler, **options)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


async def test_the_service_compiles_and_then_answers_from_its_cache_at_once() -> None:
    service, outcomes = service_with(), Outcomes()
    service.submit(SAXPY, NvrtcOptions(), "compute_80", outcomes.deliver)
    assert outcomes == []
    await outcomes.wait(1)
    service.submit(SAXPY, NvrtcOptions(), "compute_80", outcomes.deliver)
    assert len(outcomes) == 2
    first, second = (result.unwrap().program for result in outcomes)
    assert first is second
    assert "saxpy" in first.entries
    service.clear()
    service.submit(SAXPY, NvrtcOptions(), "compute_80", outcomes.deliver)
    assert len(outcomes) == 2
    await outcomes.wait(3)
    assert (service.statistics().hits, service.statistics().misses) == (1, 2)


async def test_the_same_source_with_other_options_is_another_program() -> None:
    service, outcomes = service_with(), Outcomes()
    source = '__device__ int n = N; extern "C" __global__ void k() {}'
    for count, n in enumerate((1, 2, 1), start=1):
        service.submit(source, NvrtcOptions(defines={"N": n}), "compute_80", outcomes.deliver)
        await outcomes.wait(count)
    service.submit(source, NvrtcOptions(defines={"N": 1}), "compute_90", outcomes.deliver)
    await outcomes.wait(4)
    one, two, again, newer = (result.unwrap().program for result in outcomes)
    assert b"n = 1" in one.ptx
    assert b"n = 2" in two.ptx
    assert again is one
    assert newer.target == "compute_90"


async def test_one_compile_serves_everyone_who_asks_for_the_same(gate: Gate) -> None:
    service, outcomes = service_with(gate), Outcomes()
    for _ in range(10):
        service.submit("same", NvrtcOptions(), "compute_80", outcomes.deliver)
    gate.open.set()
    await outcomes.wait(10)
    assert gate.started == ["same"]
    assert len({id(result.unwrap().program) for result in outcomes}) == 1
    assert (service.statistics().misses, service.statistics().joined) == (1, 9)


async def test_threads_are_limited_and_the_rest_wait_in_order(gate: Gate) -> None:
    service, outcomes = service_with(gate, threads=1), Outcomes()
    for index in range(5):
        service.submit(str(index), NvrtcOptions(), "compute_80", outcomes.deliver)
    statistics = service.statistics()
    assert (statistics.in_flight, statistics.waiting, statistics.remembered) == (1, 4, 0)
    gate.open.set()
    await outcomes.wait(5)
    assert gate.started == ["0", "1", "2", "3", "4"]
    statistics = service.statistics()
    assert (statistics.in_flight, statistics.waiting, statistics.remembered) == (0, 0, 5)


async def test_the_limit_is_reached_and_not_passed(gate: Gate) -> None:
    service, outcomes = service_with(gate, threads=3), Outcomes()
    for index in range(7):
        service.submit(str(index), NvrtcOptions(), "compute_80", outcomes.deliver)
    for _ in range(3):
        assert await trio.to_thread.run_sync(gate.entered.acquire, True, 20)
    assert (service.statistics().in_flight, service.statistics().waiting) == (3, 4)
    assert len(gate.started) == 3
    gate.open.set()
    await outcomes.wait(7)


async def test_a_failure_reaches_every_waiter_as_its_own_exception_and_is_not_cached(gate: Gate) -> None:
    service, outcomes = service_with(gate), Outcomes()
    cause = ValueError("the cause")
    gate.error = CompileError("kernel.cu(1): error: no", log="the log")
    gate.error.__cause__ = cause
    for _ in range(3):
        service.submit("bad", NvrtcOptions(), "compute_80", outcomes.deliver)
    gate.open.set()
    await outcomes.wait(3)
    errors = [result.error for result in outcomes if isinstance(result, outcome.Error)]
    assert len({id(error) for error in errors}) == 3
    assert all(isinstance(error, CompileError) and error.log == "the log" for error in errors)
    assert all(error.__cause__ is cause for error in errors)
    gate.error = None
    service.submit("bad", NvrtcOptions(), "compute_80", outcomes.deliver)
    await outcomes.wait(4)
    assert isinstance(outcomes[3], outcome.Value)
    assert gate.started == ["bad", "bad"]


async def test_who_cannot_wait_has_it_compiled_at_once_and_everyone_has_it_then(gate: Gate) -> None:
    service, outcomes = service_with(gate), Outcomes()
    gate.open.set()
    first = service.compile_now("x", NvrtcOptions(), "compute_80")
    again = service.compile_now("x", NvrtcOptions(), "compute_80")
    service.submit("x", NvrtcOptions(), "compute_80", outcomes.deliver)
    assert (first.origin, again.origin) == (None, "memory")
    assert outcomes[0].unwrap().program is again.program is first.program
    assert gate.started == ["x"]
    statistics = service.statistics()
    assert (statistics.misses, statistics.hits, statistics.remembered) == (1, 2, 1)


async def test_what_depends_on_files_is_compiled_at_once_and_not_remembered(gate: Gate, tmp_path: Path) -> None:
    folder = tmp_path / "headers"
    folder.mkdir()
    service, options = service_with(gate), NvrtcOptions(include_paths=[folder])
    gate.open.set()
    service.compile_now("x", options, "compute_80")
    assert service.statistics().remembered == 0
    folder.rmdir()
    with pytest.raises(InvalidArgument, match="is not a folder"):
        service.compile_now("x", options, "compute_80")


async def test_what_cannot_be_compiled_at_once_is_the_error_that_is_delivered_otherwise(gate: Gate) -> None:
    service = service_with(gate)
    gate.open.set()
    for given, expected in (
        (CompileError("kernel.cu(1): error: no", log="the log"), CompileError),
        (ZeroDivisionError(), AtomrInternalError),
        (MemoryError(), OutOfHostMemory),
    ):
        gate.error = given
        with pytest.raises(expected) as caught:
            service.compile_now("bad", NvrtcOptions(), "compute_80")
        assert caught.value is not given
    for source in ("a\0", 3):
        with pytest.raises(InvalidArgument):
            service.compile_now(source, NvrtcOptions(), "compute_80")  # type: ignore[arg-type]
    assert service.statistics().remembered == 0


@pytest.mark.parametrize("source", ["?", "a\0", 3, ["x"]])
async def test_bad_input_is_delivered_not_raised(source: str) -> None:
    service, outcomes = service_with(), Outcomes()
    service.submit(source, NvrtcOptions(), "compute_80", outcomes.deliver)
    await outcomes.wait(1)
    with pytest.raises(DeviceError):
        outcomes[0].unwrap()


async def test_a_bug_in_the_compiler_is_delivered_as_an_internal_error(gate: Gate) -> None:
    service, outcomes = service_with(gate), Outcomes()
    gate.error = ZeroDivisionError()
    gate.open.set()
    service.submit("x", NvrtcOptions(), "compute_80", outcomes.deliver)
    await outcomes.wait(1)
    with pytest.raises(AtomrInternalError) as caught:
        outcomes[0].unwrap()
    assert caught.value.__cause__ is gate.error


async def test_results_are_delivered_in_the_trio_thread(gate: Gate) -> None:
    service, seen, done = service_with(gate), list[int](), trio.Event()
    gate.open.set()

    def deliver(result: outcome.Outcome[Answer]) -> None:
        seen.append(threading.get_ident())
        done.set()

    service.submit("x", NvrtcOptions(), "compute_80", deliver)
    with trio.fail_after(60):
        await done.wait()
    assert seen == [threading.get_ident()]


async def test_a_receiver_that_fails_harms_nobody_else(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    service, outcomes = service_with(gate), Outcomes()

    def fail(result: outcome.Outcome[Answer]) -> None:
        raise RuntimeError("receiver")

    service.submit("x", NvrtcOptions(), "compute_80", fail)
    service.submit("x", NvrtcOptions(), "compute_80", outcomes.deliver)
    gate.open.set()
    await outcomes.wait(1)
    assert "a receiver of a compiled program failed" in caplog.text


async def test_a_receiver_may_submit_again(gate: Gate) -> None:
    service, outcomes = service_with(gate, threads=1), Outcomes()
    gate.open.set()

    def again(result: outcome.Outcome[Answer]) -> None:
        service.submit("second", NvrtcOptions(), "compute_80", outcomes.deliver)

    service.submit("first", NvrtcOptions(), "compute_80", again)
    await outcomes.wait(1)
    assert gate.started == ["first", "second"]


async def test_what_the_loop_answers_by_itself_is_limited_to_what_was_used_last(gate: Gate) -> None:
    service, outcomes = service_with(gate, capacity=2), Outcomes()
    gate.open.set()
    at_once = list[bool]()
    for count, source in enumerate(("a", "b", "a", "c", "a", "b"), start=1):
        service.submit(source, NvrtcOptions(), "compute_80", outcomes.deliver)
        at_once.append(len(outcomes) == count)
        await outcomes.wait(count)
    assert at_once == [False, False, True, False, True, False]
    assert service.statistics().remembered == 2
    assert gate.started == ["a", "b", "c"]


def test_a_compile_that_outlives_the_run_is_dropped(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    delivered, threads = list[object](), list[tuple[Callable[..., object], Callable[..., object]]]()
    gate.open.set()

    async def main() -> None:
        service = service_with(gate)
        with monkeypatch.context() as patch:
            patch.setattr(trio.lowlevel, "start_thread_soon", lambda fn, done, name: threads.append((fn, done)))
            service.submit("x", NvrtcOptions(), "compute_80", delivered.append)

    trio.run(main)
    ((compile_, done),) = threads
    done(outcome.capture(compile_))
    assert gate.started == ["x"]
    assert delivered == []


async def test_the_service_starts_when_the_system_has_threads_again(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, outcomes = service_with(gate), Outcomes()
    gate.open.set()

    def none_left(*arguments: object, **named: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(trio.lowlevel, "start_thread_soon", none_left)
        service.submit("x", NvrtcOptions(), "compute_80", outcomes.deliver)
        assert outcomes == []
        await outcomes.wait(1)
    with pytest.raises(OutOfHostMemory, match="no thread can be started: RLIMIT_NPROC"):
        outcomes[0].unwrap()
    service.submit("x", NvrtcOptions(), "compute_80", outcomes.deliver)
    await outcomes.wait(2)
    assert isinstance(outcomes[1], outcome.Value)


async def test_who_joins_a_compile_that_may_have_read_its_headers_already_is_asked_for_again(gate: Gate) -> None:
    service, outcomes = service_with(gate), Outcomes()
    source = '#include "a.h"'
    service.submit(source, NvrtcOptions(), "compute_80", outcomes.deliver)
    await enter(gate)
    late = [service.submit(source, NvrtcOptions(), "compute_80", outcomes.deliver) for _ in range(3)]
    service.abandon(late[1])
    gate.open.set()
    await outcomes.wait(3)
    await idle(service)
    assert len(outcomes) == 3
    assert gate.started == [source, source]
    first, *others = (result.unwrap().program for result in outcomes)
    assert first is not others[0]
    assert others[0] is others[1]


async def test_who_joins_before_the_compile_begins_shares_it_whatever_it_reads(gate: Gate) -> None:
    service, outcomes = service_with(gate, threads=1), Outcomes()
    service.submit("first", NvrtcOptions(), "compute_80", outcomes.deliver)
    for _ in range(3):
        service.submit('#include "a.h"', NvrtcOptions(), "compute_80", outcomes.deliver)
    gate.open.set()
    await outcomes.wait(4)
    assert gate.started == ["first", '#include "a.h"']


# ---------------------------------------------------------------------------------------------------- giving up


async def enter(gate: Gate) -> None:
    """Wait until a compile has begun in a thread."""
    assert await trio.to_thread.run_sync(gate.entered.acquire, True, 20)


async def idle(service: CompileService) -> None:
    with trio.fail_after(20):
        while service.statistics().in_flight:
            await trio.lowlevel.checkpoint()


async def test_a_compile_that_nobody_waits_for_is_not_begun(gate: Gate) -> None:
    service, outcomes = service_with(gate, threads=1), Outcomes()
    service.submit("first", NvrtcOptions(), "compute_80", outcomes.deliver)
    await enter(gate)
    waiter = service.submit("second", NvrtcOptions(), "compute_80", outcomes.deliver)
    service.abandon(waiter)
    assert service.statistics().waiting == 0
    gate.open.set()
    await outcomes.wait(1)
    assert gate.started == ["first"]
    assert service.statistics().cancelled == 1


async def test_a_compile_goes_on_while_anybody_waits_for_it(gate: Gate) -> None:
    service, outcomes = service_with(gate), Outcomes()
    waiters = [service.submit("same", NvrtcOptions(), "compute_80", outcomes.deliver) for _ in range(3)]
    await enter(gate)
    for waiter in (*waiters[:2], waiters[0]):
        service.abandon(waiter)
    assert service.statistics().cancelled == 0
    gate.open.set()
    await outcomes.wait(1)
    await idle(service)
    assert len(outcomes) == 1


async def test_who_asks_after_the_last_has_left_gets_a_compile_of_his_own(gate: Gate) -> None:
    service, outcomes = service_with(gate), Outcomes()
    service.abandon(service.submit("same", NvrtcOptions(), "compute_80", outcomes.deliver))
    service.submit("same", NvrtcOptions(), "compute_80", outcomes.deliver)
    gate.open.set()
    await outcomes.wait(1)
    await idle(service)
    assert isinstance(outcomes[0], outcome.Value)
    assert len(outcomes) == 1


async def test_a_compile_that_nobody_waits_for_and_that_cannot_be_ended_fills_the_cache(gate: Gate) -> None:
    service, outcomes = service_with(gate), Outcomes()
    waiter = service.submit("x", NvrtcOptions(), "compute_80", outcomes.deliver)
    await enter(gate)
    service.abandon(waiter)
    gate.open.set()
    await idle(service)
    assert outcomes == []
    service.submit("x", NvrtcOptions(), "compute_80", outcomes.deliver)
    assert outcomes[0].unwrap().origin == "memory"
    assert gate.started == ["x"]


async def test_giving_up_after_the_delivery_is_harmless(gate: Gate) -> None:
    service, outcomes = service_with(gate), Outcomes()
    gate.open.set()
    waiters = [service.submit("x", NvrtcOptions(), "compute_80", outcomes.deliver)]
    await outcomes.wait(1)
    waiters.append(service.submit("x", NvrtcOptions(), "compute_80", outcomes.deliver))
    for waiter in waiters:
        service.abandon(waiter)
    assert service.statistics().cancelled == 0


async def test_a_receiver_may_make_another_one_give_up(gate: Gate) -> None:
    service, outcomes = service_with(gate), Outcomes()
    others: list[Waiter] = []

    def first(result: outcome.Outcome[Answer]) -> None:
        service.abandon(others[0])

    service.submit("x", NvrtcOptions(), "compute_80", first)
    others.append(service.submit("x", NvrtcOptions(), "compute_80", outcomes.deliver))
    service.submit("x", NvrtcOptions(), "compute_80", outcomes.deliver)
    gate.open.set()
    await outcomes.wait(1)
    await idle(service)
    assert len(outcomes) == 1


HEAVY = """
template <int N> struct Tree { static __device__ int value(int x) { return Tree<N - 1>::value(x * N) + x; } };
template <> struct Tree<0> { static __device__ int value(int x) { return x; } };
template <int N> __device__ int all(int x) { return Tree<N>::value(x) + all<N - 1>(x); }
template <> __device__ int all<0>(int x) { return x; }
extern "C" __global__ void k(int* p) { *p = all<180>(*p); }
"""


def test_nvrtc_ends_a_compile_that_is_cancelled() -> None:
    cancellation, asked = Cancellation(), list[int]()

    def cancel_then_attach(program: Any) -> None:
        cancellation.attach(program)
        asked.append(1)
        cancellation.request()

    with pytest.raises(CompileError) as caught:
        compile_program(HEAVY, NvrtcOptions(), "compute_80", prepare=cancel_then_attach)
    assert caught.value.status_name == "NVRTC_ERROR_CANCELLED"
    assert asked == [1]


def test_a_compile_that_is_not_cancelled_is_not_disturbed() -> None:
    cancellation = Cancellation()
    with_it = compile_program(SAXPY, NvrtcOptions(), "compute_80", prepare=cancellation.attach)
    assert with_it.ptx == compile_program(SAXPY, NvrtcOptions(), "compute_80").ptx
    assert not cancellation.requested


def test_the_compiler_asks_a_function_that_needs_no_interpreter() -> None:
    """A callback in Python would take the interpreter's lock thousands of times per compile, from NVRTC's threads."""
    cancellation = Cancellation()
    with mock.patch.object(nvrtc.nvrtcSetFlowCallback, "_bound", mock.Mock(return_value=0)) as bound:
        cancellation.attach(ctypes.c_void_p(1))
    ((_, function, payload), _) = bound.call_args
    assert ctypes.cast(function, ctypes.c_void_p).value == ctypes.cast(ctypes.CDLL(None).atoi, ctypes.c_void_p).value
    assert function(payload, None) == 0
    cancellation.request()
    assert function(payload, None) == 1


# ---------------------------------------------------------------------------------------------------- the disk


async def one_after_the_other(
    service: CompileService, *asked: tuple[str, NvrtcOptions]
) -> list[tuple[CompiledProgram, str | None]]:
    outcomes = Outcomes()
    for count, (source, options) in enumerate(asked, start=1):
        service.submit(source, options, "compute_80", outcomes.deliver)
        await outcomes.wait(count)
    return [(answer.program, answer.origin) for answer in (result.unwrap() for result in outcomes)]


N = '__device__ int n = N; extern "C" __global__ void k() {}'
ONE_TWO_ONE = [(N, NvrtcOptions(defines={"N": n})) for n in (1, 2, 1)]


async def test_a_define_makes_another_program_through_the_disk(tmp_path: Path) -> None:
    first = await one_after_the_other(service_with(cache=NvrtcCache(tmp_path)), *ONE_TWO_ONE)
    again = await one_after_the_other(service_with(cache=NvrtcCache(tmp_path)), *ONE_TWO_ONE)
    assert [origin for _, origin in first] == [None, None, "memory"]
    assert [origin for _, origin in again] == ["disk", "disk", "memory"]
    for program, n in zip((program for program, _ in (*first, *again)), (1, 2, 1, 1, 2, 1), strict=True):
        assert f"n = {n};".encode() in program.ptx


async def test_a_target_of_one_architecture_alone_is_another_program(tmp_path: Path) -> None:
    cache = NvrtcCache(tmp_path)
    outcomes = Outcomes()
    for count, target in enumerate(("sm_90", "sm_90a", "sm_90", "sm_90a"), start=1):
        service_with(cache=cache).submit(SAXPY, NvrtcOptions(), target, outcomes.deliver)
        await outcomes.wait(count)
    answers = [result.unwrap() for result in outcomes]
    assert [answer.program.target for answer in answers] == ["sm_90", "sm_90a"] * 2
    assert [answer.origin for answer in answers[:2]] == [None, None]
    assert None not in [answer.origin for answer in answers[2:]]


async def test_an_include_path_that_was_removed_is_refused_as_by_a_fresh_compile(gate: Gate, tmp_path: Path) -> None:
    """Whether the answer would come from the loop, from memory or from disk, and whether anything is read there."""
    gate.open.set()
    folder = tmp_path / "i"
    folder.mkdir()
    options = NvrtcOptions(include_paths=[folder])

    async def ask(service: CompileService) -> outcome.Outcome[Answer]:
        outcomes = Outcomes()
        service.submit("x", options, "compute_80", outcomes.deliver)
        await outcomes.wait(1)
        return outcomes[0]

    identify: Identify = lambda cache, *, headers=False: NvrtcIdentity((13, 0), "a build")  # noqa: E731
    services = [
        CompileService(compiler=CachingCompiler(lambda: NvrtcCache(tmp_path / "cache"), gate, identify))
        for _ in range(2)
    ]
    assert [(await ask(service)).unwrap().origin for service in services] == [None, "disk"]
    folder.rmdir()
    for service in services:
        with pytest.raises(InvalidArgument, match="is not a folder"):
            (await ask(service)).unwrap()


@pytest.mark.parametrize("other", [NvrtcIdentity((13, 1), "a build"), NvrtcIdentity((13, 0), "another build")])
async def test_another_nvrtc_does_not_use_what_the_one_before_made(
    gate: Gate, tmp_path: Path, other: NvrtcIdentity
) -> None:
    gate.open.set()
    for identity in (NvrtcIdentity((13, 0), "a build"), other, other):
        identify: Identify = lambda cache, *, headers=False, identity=identity: identity  # noqa: E731
        compiler = CachingCompiler(lambda: NvrtcCache(tmp_path), gate, identify)
        await one_after_the_other(CompileService(compiler=compiler), ("x", NvrtcOptions()))
    assert gate.started == ["x", "x"]


async def test_an_nvrtc_that_was_another_one_when_it_was_loaded_keeps_nothing_under_the_wrong_name(
    gate: Gate, tmp_path: Path
) -> None:
    gate.open.set()
    on_record, loaded = NvrtcIdentity((13, 0), "on record"), NvrtcIdentity((13, 1), "loaded")

    async def ask_when(identify: Identify) -> str | None:
        compiler = CachingCompiler(lambda: NvrtcCache(tmp_path), gate, identify)
        ((_, origin),) = await one_after_the_other(CompileService(compiler=compiler), ("x", NvrtcOptions()))
        return origin

    assert await ask_when(lambda cache, *, headers=False: loaded if gate.started else on_record) is None
    assert await ask_when(lambda cache, *, headers=False: on_record) is None
    assert await ask_when(lambda cache, *, headers=False: on_record) == "disk"
    assert gate.started == ["x", "x"]


ASK = """
import sys, trio
from atomr_trio._compiling.service import CompileService
from atomr_trio._compiling.options import NvrtcOptions

async def main():
    done = trio.Event()
    def deliver(result):
        answer = result.unwrap()
        print(answer.origin, b"n = %d;" % n in answer.program.ptx)
        done.set()
    for n in map(int, sys.argv[2:]):
        CompileService().submit(sys.argv[1], NvrtcOptions(defines={"N": n}), "compute_80", deliver)
        await done.wait()
        done = trio.Event()
    print("libnvrtc" in open("/proc/self/maps").read())

trio.run(main)
"""


def ask(folder: Path, *numbers: int) -> list[str]:
    """Compile in a process of its own; what it says."""
    environment = {**child_environment(), "ATOMR_TRIO_CACHE_DIR": str(folder)}
    command = [sys.executable, "-P", "-c", ASK, N, *map(str, numbers)]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.split()


@pytest.mark.long
def test_a_process_finds_what_another_compiled_and_loads_no_compiler_for_it(tmp_path: Path) -> None:
    assert ask(tmp_path, 1) == ["None", "True", "True"]
    assert ask(tmp_path, 1) == ["disk", "True", "False"]
    assert ask(tmp_path, 1, 2) == ["disk", "True", "None", "True", "True"]
    assert ask(tmp_path, 2, 1) == ["disk", "True", "disk", "True", "False"]


COMPILE_AGAIN_AND_AGAIN = """
import sys
from atomr_trio._compiling.caching import Identify, CachingCompiler, Job
from atomr_trio._compiling.options import NvrtcOptions

job = Job(sys.argv[1], NvrtcOptions(defines={"N": 7}), "compute_80")
answers = []
for _ in range(int(sys.argv[2])):
    compiler = CachingCompiler()
    compiler.forget()
    answers.append(compiler.answer(job))
print(len({answer.program.ptx for answer in answers}), answers[-1].origin, b"n = 7;" in answers[-1].program.ptx)
"""


@pytest.mark.long
def test_processes_that_compile_the_same_again_and_again_leave_one_good_entry(tmp_path: Path) -> None:
    count = 8 if SWEEP else 3
    environment = {**child_environment(), "ATOMR_TRIO_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-P", "-c", COMPILE_AGAIN_AND_AGAIN, N, str(50 if SWEEP else 20)]
    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    assert [process.communicate(timeout=120)[0] for process in processes] == ["1 disk True\n"] * count
    cache = NvrtcCache(tmp_path / "cache")
    (entry,) = cache.entries()
    assert b"n = 7;" in entry.program.ptx
    assert cache.verify() == {}
