"""Many compiles at once: threads, sharing, and what is remembered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import outcome
import pytest
import trio

from atomr_trio._compile_service import CompileService, depends_on_files
from atomr_trio._compiler import CompiledProgram
from atomr_trio._errors import AtomrInternalError, CompileError, DeviceError
from atomr_trio._nvrtc_options import NvrtcOptions

SAXPY = """
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""

# ---------------------------------------------------------------------------------------------------- many compiles


class Outcomes(list["outcome.Outcome[CompiledProgram]"]):
    """Collects what is delivered, and lets a test wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self._more = trio.Event()

    def deliver(self, result: outcome.Outcome[CompiledProgram]) -> None:
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

    def __call__(self, source: str, options: NvrtcOptions, target: str) -> CompiledProgram:
        self.started.append(source)
        self.entered.release()
        assert self.open.wait(20)
        if self.error is not None:
            raise self.error
        return CompiledProgram(b"", None, {}, {}, "", target, (13, 0))


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


async def test_the_service_compiles_and_then_answers_from_its_cache_at_once() -> None:
    service, outcomes = CompileService(), Outcomes()
    service.submit(SAXPY, NvrtcOptions(), "compute_80", outcomes.deliver)
    assert outcomes == []
    await outcomes.wait(1)
    service.submit(SAXPY, NvrtcOptions(), "compute_80", outcomes.deliver)
    assert len(outcomes) == 2
    first, second = (result.unwrap() for result in outcomes)
    assert first is second
    assert "saxpy" in first.entries
    service.clear()
    service.submit(SAXPY, NvrtcOptions(), "compute_80", outcomes.deliver)
    assert len(outcomes) == 2
    await outcomes.wait(3)
    assert (service.statistics().hits, service.statistics().misses) == (1, 2)


async def test_the_same_source_with_other_options_is_another_program() -> None:
    service, outcomes = CompileService(), Outcomes()
    source = '__device__ int n = N; extern "C" __global__ void k() {}'
    for count, n in enumerate((1, 2, 1), start=1):
        service.submit(source, NvrtcOptions(defines={"N": n}), "compute_80", outcomes.deliver)
        await outcomes.wait(count)
    service.submit(source, NvrtcOptions(defines={"N": 1}), "compute_90", outcomes.deliver)
    await outcomes.wait(4)
    one, two, again, newer = (result.unwrap() for result in outcomes)
    assert b"n = 1" in one.ptx
    assert b"n = 2" in two.ptx
    assert again is one
    assert newer.target == "compute_90"


async def test_one_compile_serves_everyone_who_asks_for_the_same(gate: Gate) -> None:
    service, outcomes = CompileService(compile_with=gate), Outcomes()
    for _ in range(10):
        service.submit("same", NvrtcOptions(), "compute_80", outcomes.deliver)
    gate.open.set()
    await outcomes.wait(10)
    assert gate.started == ["same"]
    assert len({id(result.unwrap()) for result in outcomes}) == 1
    assert (service.statistics().misses, service.statistics().joined) == (1, 9)


async def test_threads_are_limited_and_the_rest_wait_in_order(gate: Gate) -> None:
    service, outcomes = CompileService(threads=1, compile_with=gate), Outcomes()
    for index in range(5):
        service.submit(str(index), NvrtcOptions(), "compute_80", outcomes.deliver)
    statistics = service.statistics()
    assert (statistics.in_flight, statistics.waiting, statistics.cached) == (1, 4, 0)
    gate.open.set()
    await outcomes.wait(5)
    assert gate.started == ["0", "1", "2", "3", "4"]
    statistics = service.statistics()
    assert (statistics.in_flight, statistics.waiting, statistics.cached) == (0, 0, 5)


async def test_the_limit_is_reached_and_not_passed(gate: Gate) -> None:
    service, outcomes = CompileService(threads=3, compile_with=gate), Outcomes()
    for index in range(7):
        service.submit(str(index), NvrtcOptions(), "compute_80", outcomes.deliver)
    for _ in range(3):
        assert await trio.to_thread.run_sync(gate.entered.acquire, True, 20)
    assert (service.statistics().in_flight, service.statistics().waiting) == (3, 4)
    assert len(gate.started) == 3
    gate.open.set()
    await outcomes.wait(7)


async def test_a_failure_reaches_every_waiter_as_its_own_exception_and_is_not_cached(gate: Gate) -> None:
    service, outcomes = CompileService(compile_with=gate), Outcomes()
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


@pytest.mark.parametrize("source", ["?", "a\0", 3, ["x"]])
async def test_bad_input_is_delivered_not_raised(source: str) -> None:
    service, outcomes = CompileService(), Outcomes()
    service.submit(source, NvrtcOptions(), "compute_80", outcomes.deliver)
    await outcomes.wait(1)
    with pytest.raises(DeviceError):
        outcomes[0].unwrap()


async def test_a_bug_in_the_compiler_is_delivered_as_an_internal_error(gate: Gate) -> None:
    service, outcomes = CompileService(compile_with=gate), Outcomes()
    gate.error = ZeroDivisionError()
    gate.open.set()
    service.submit("x", NvrtcOptions(), "compute_80", outcomes.deliver)
    await outcomes.wait(1)
    with pytest.raises(AtomrInternalError) as caught:
        outcomes[0].unwrap()
    assert caught.value.__cause__ is gate.error


async def test_results_are_delivered_in_the_trio_thread(gate: Gate) -> None:
    service, seen, done = CompileService(compile_with=gate), list[int](), trio.Event()
    gate.open.set()

    def deliver(result: outcome.Outcome[CompiledProgram]) -> None:
        seen.append(threading.get_ident())
        done.set()

    service.submit("x", NvrtcOptions(), "compute_80", deliver)
    with trio.fail_after(60):
        await done.wait()
    assert seen == [threading.get_ident()]


async def test_a_receiver_that_fails_harms_nobody_else(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    service, outcomes = CompileService(compile_with=gate), Outcomes()

    def fail(result: outcome.Outcome[CompiledProgram]) -> None:
        raise RuntimeError("receiver")

    service.submit("x", NvrtcOptions(), "compute_80", fail)
    service.submit("x", NvrtcOptions(), "compute_80", outcomes.deliver)
    gate.open.set()
    await outcomes.wait(1)
    assert "a receiver of a compiled program failed" in caplog.text


async def test_a_receiver_may_submit_again(gate: Gate) -> None:
    service, outcomes = CompileService(threads=1, compile_with=gate), Outcomes()
    gate.open.set()

    def again(result: outcome.Outcome[CompiledProgram]) -> None:
        service.submit("second", NvrtcOptions(), "compute_80", outcomes.deliver)

    service.submit("first", NvrtcOptions(), "compute_80", again)
    await outcomes.wait(1)
    assert gate.started == ["first", "second"]


async def test_the_cache_forgets_what_was_used_longest_ago(gate: Gate) -> None:
    service, outcomes = CompileService(capacity=2, compile_with=gate), Outcomes()
    gate.open.set()
    for count, source in enumerate(("a", "b", "a", "c", "a", "b"), start=1):
        service.submit(source, NvrtcOptions(), "compute_80", outcomes.deliver)
        await outcomes.wait(count)
    assert gate.started == ["a", "b", "c", "b"]
    assert service.statistics().cached == 2


def test_a_compile_that_outlives_the_run_is_dropped(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    delivered, threads = list[object](), list[tuple[Callable[..., object], Callable[..., object]]]()
    gate.open.set()

    async def main() -> None:
        service = CompileService(compile_with=gate)
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
    service, outcomes = CompileService(compile_with=gate), Outcomes()
    gate.open.set()

    def none_left(*arguments: object, **named: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(trio.lowlevel, "start_thread_soon", none_left)
        service.submit("x", NvrtcOptions(), "compute_80", outcomes.deliver)
        assert outcomes == []
        await outcomes.wait(1)
    with pytest.raises(AtomrInternalError, match="can't start new thread"):
        outcomes[0].unwrap()
    service.submit("x", NvrtcOptions(), "compute_80", outcomes.deliver)
    await outcomes.wait(2)
    assert isinstance(outcomes[1], outcome.Value)


async def test_an_edited_header_is_seen(tmp_path: Path) -> None:
    service, outcomes = CompileService(), Outcomes()
    source = '#include "value.h"\n__device__ int n = VALUE; extern "C" __global__ void k() {}'
    options = NvrtcOptions(include_paths=[tmp_path])
    for value in (1, 2):
        (tmp_path / "value.h").write_text(f"#define VALUE {value}\n")
        service.submit(source, options, "compute_80", outcomes.deliver)
        await outcomes.wait(value)
        assert f"n = {value}".encode() in outcomes[-1].unwrap().ptx


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        (SAXPY, {}, False),
        (SAXPY, {"include_paths": ["/usr/include"]}, False),
        ("// an include would be #pragma", {}, False),
        ('#include "a.h"', {}, True),
        ("  # /* odd */ include <a.h>", {}, True),
        ("#inc\\\nlude <a.h>", {}, True),
        ("%:include <a.h>", {}, True),
        ("#define A <a.h>\n#include A", {"headers": {"A": ""}}, True),
        ("#if __has_include(<a.h>)\n#endif", {}, True),
        ('#include "a.h"', {"headers": {"a.h": ""}}, False),
        ('#include "a.h"', {"headers": {"a.h": "#include <b.h>"}}, True),
        ('#include "a.h"', {"headers": {"a.h": "#include <b.h>", "b.h": ""}}, False),
        (SAXPY, {"extra_options": ["-w", "--device-int128"]}, False),
        (SAXPY, {"extra_options": ["-I/usr/include"]}, True),
        (SAXPY, {"extra_options": ["-include=a.h"]}, True),
        (SAXPY, {"extra_options": ["--pre-include=a.h"]}, True),
        (SAXPY, {"extra_options": ["--use-bundled-headers=/tmp/x"]}, True),
        (SAXPY, {"extra_options": ["--pch"]}, True),
        (SAXPY, {"extra_options": ["--time=-"]}, True),
    ],
)
def test_only_what_depends_on_no_file_is_cached(source: str, options: dict[str, object], expected: bool) -> None:
    assert depends_on_files(source, NvrtcOptions(**options)) is expected  # type: ignore[arg-type]
