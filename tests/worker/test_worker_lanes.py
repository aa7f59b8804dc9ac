"""A lane in the worker, driven directly: its stream goes while others still ask after it; and threads that fail."""

from __future__ import annotations

import ast
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atomr_cuda import driver
from atomr_sim.driver.streams import Fate, Stream
from atomr_trio import _worker as worker
from atomr_trio._wire.protocol import EXIT_BUG, GROUP_LIMIT, Mode
from atomr_trio._worker.base import lanes
from atomr_trio._worker.base.lanes import GROUP_ENTRIES, Command, HotCall, Lane
from atomr_trio.libraries.fft.records import FFT
from support import sim_process as helper

pytestmark = pytest.mark.sim_only
DEADLINE = 30


@pytest.fixture
def lane() -> Iterator[Lane]:
    handle = helper.begin()
    page: Any = SimpleNamespace(finished=lambda lane: 0, words=[0] * 512)
    services: Any = None
    opened = Lane(3, page, 0, None, services)
    opened.open()
    yield opened
    driver.cuCtxSetCurrent(handle)
    driver.cuDevicePrimaryCtxRelease(0)
    driver.cuCtxSetCurrent(None)


def close_stream(lane: Lane) -> None:
    for call in lane.close():
        call()


def test_a_stream_is_not_given_back_while_somebody_asks_after_it(lane: Lane) -> None:
    """A driver that is asked about a stream which goes at that moment takes the worker down."""
    asked, answer = threading.Event(), threading.Event()
    statuses: list[int] = []
    lane_context = driver.CUcontext()
    driver.cuCtxGetCurrent(lane_context)

    def slow(stream: Any) -> int:
        driver.cuCtxSetCurrent(lane_context)
        asked.set()
        assert answer.wait(DEADLINE)
        return driver.cuStreamQuery.status(stream)

    def close() -> None:
        driver.cuCtxSetCurrent(lane_context)
        close_stream(lane)

    asking = threading.Thread(target=lambda: statuses.append(lane.ask(slow)))
    asking.start()
    assert asked.wait(DEADLINE)
    closing = threading.Thread(target=close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    answer.set()
    for thread in (asking, closing):
        thread.join(DEADLINE)
        assert not thread.is_alive()
    assert statuses == [0], "the stream was there when it was asked after"


def test_a_stream_that_was_given_back_is_asked_nothing(lane: Lane) -> None:
    close_stream(lane)
    calls: list[Any] = []
    assert lane.ask(lambda stream: calls.append(stream) or 1) == 0
    assert not calls


def test_without_a_thread_to_be_had_the_loops_own_does_the_lanes_work(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = driver.CUcontext()
    driver.cuCtxGetCurrent(context)
    lane._services = SimpleNamespace(poisoned=False, bind_thread=lambda: driver.cuCtxSetCurrent(context))
    lane._write_value = lambda stream, address, ticket, flags: 0
    verb: Any = SimpleNamespace(mode=Mode.BLOCKS, operation="a command")
    ran: list[threading.Thread] = []

    def give(ticket: int) -> None:
        lane.accept(Command(verb, lambda command, lane: ran.append(threading.current_thread()), ticket, [], b"", []))

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse_thread)
        for ticket in (1, 2):
            give(ticket)
            assert (lane.submitted, lane.pending) == (ticket, 0)
    give(3)
    lane.finish()
    assert ran[:2] == [threading.current_thread()] * 2
    assert ran[2].name == "lane-3"
    close_stream(lane)


def test_a_call_that_was_made_ready_is_made_as_the_command_that_it_is(lane: Lane) -> None:
    """The loop thread has accepted others meanwhile, whose tickets are not those that the call's entries belong to."""
    weighed: list[tuple[int, bool]] = []
    status = 0

    def call(_address: int) -> int:
        weighed.append((lane.made_now, lane.calling.locked()))
        return status

    hot = HotCall(FFT.execute, lane, call, lambda status: ValueError(str(status)), unsigned=True)
    lane.accepted = 9
    lane.repeat(4, hot)
    assert weighed == [(4, True)]
    status = 7
    with pytest.raises(ValueError, match="7"):
        lane.repeat(5, hot)
    assert (lane.made_now, lane.calling.locked()) == (10, False)


def refuse_thread(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_other_lanes_hear_of_a_command_when_it_is_signed(lane: Lane) -> None:
    """What they sign behind it would be seen first otherwise: of a command that failed by this one, say."""
    seen: list[tuple[int, int]] = []
    lane._services = SimpleNamespace(poisoned=False)
    lane._write_value = lambda stream, address, ticket, flags: seen.append((ticket, lane.submitted)) or 0
    verb: Any = SimpleNamespace(operation="a command")
    lane._made(verb, 1, unsigned=False)
    assert (seen, lane.submitted) == ([(1, 0)], 1)
    lane._made(verb, 2, unsigned=True)
    assert (seen, lane.submitted) == ([(1, 0)], 2), "this one shares the ticket of a later one"
    lane._made(verb, 3, unsigned=False)
    assert (seen, lane.submitted) == ([(1, 0), (3, 2)], 3)
    close_stream(lane)


@pytest.mark.parametrize("hot", [False, True])
def test_a_group_is_full_when_its_commands_take_much_of_the_stream(lane: Lane, hot: bool) -> None:
    """Room is seen to be free only at the end of a group."""
    signed: list[int] = []
    lane._services = SimpleNamespace(poisoned=False)
    lane._write_value = lambda stream, address, ticket, flags: signed.append(ticket) or 0
    verb: Any = SimpleNamespace(operation="a command")
    entries = [1, GROUP_ENTRIES + 1, 1, GROUP_ENTRIES // 2 + 1, GROUP_ENTRIES // 2 + 1, 1, 1, GROUP_ENTRIES, 2]
    for ticket, count in enumerate(entries, 1):
        lane.weigh(ticket, count)
        if hot:
            lane.made_hot(ticket, signs=False)
        else:
            lane._made(verb, ticket, unsigned=True)
    assert signed == [2, 5, 9]
    close_stream(lane)


def test_a_group_is_not_signed_for_its_age_while_the_gpu_has_another_before_it(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ticket is a pause between two kernels, and nobody would see it earlier."""
    clock, signed = itertools.count(0, lanes.GROUP_SECONDS), list[int]()
    monkeypatch.setattr(lanes.time, "perf_counter", lambda: next(clock))
    lane._services = SimpleNamespace(poisoned=False)
    lane._write_value = lambda stream, address, ticket, flags: signed.append(ticket) or 0
    verb: Any = SimpleNamespace(operation="a command")
    for ticket in range(1, 1 + 4 * GROUP_LIMIT):  # each is older than a group may be; the GPU has reached none
        lane._made(verb, ticket, unsigned=True)
    ahead = range(2, GROUP_LIMIT + 1, 2)
    assert signed == [*ahead, 2 * GROUP_LIMIT, 3 * GROUP_LIMIT, 4 * GROUP_LIMIT]
    lane._words[lane._counter] = 4 * GROUP_LIMIT
    for ticket in (1, 2):
        lane._made(verb, 4 * GROUP_LIMIT + ticket, unsigned=True)
    assert signed[-1] == 4 * GROUP_LIMIT + 2
    close_stream(lane)


# --- threads that fail ------------------------------------------------------------------------------------------------


def test_a_lanes_thread_that_fails_gives_the_worker_up(lane: Lane) -> None:
    """Were it to end alone, everything that is queued on the lane would wait for ever."""
    given_up = threading.Event()
    bugs: list[BaseException] = []

    def give_up(bug: BaseException) -> None:
        bugs.append(bug)
        given_up.set()

    lane._services = SimpleNamespace(poisoned=False, bind_thread=lambda: None, give_up=give_up)
    broken: Any = SimpleNamespace(verb=SimpleNamespace(mode=Mode.BLOCKS), ticket=1, waits=None)
    lane.accept(broken)
    assert given_up.wait(DEADLINE)
    assert isinstance(bugs[0], TypeError)
    close_stream(lane)


def test_a_worker_that_gives_up_ends_even_if_it_cannot_say_why() -> None:
    code = """
    from atomr_trio._worker.main import _guarded
    import threading, time

    def fail():
        raise ValueError("a bug")

    os.close(2)
    sys.stderr.close()
    threading.Thread(target=_guarded, args=(fail,)).start()
    time.sleep(60)
    """
    assert helper.run_in_process(code, check=False).returncode == EXIT_BUG


def test_every_thread_of_a_worker_ends_it_when_it_fails() -> None:
    """A thread is begun with `_guarded`, or is a lane's, which gives the worker up by itself."""
    targets = []
    for path in (Path(worker.__file__).parent).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("Thread", "Timer", "start_new_thread")):
                targets += [(path.name, ast.unparse(each.value)) for each in node.keywords if each.arg == "target"]
    assert sorted(set(targets)) == [("lanes.py", "self._serve"), ("main.py", "_guarded")]


def test_a_simulated_stream_whose_work_fails_is_lost_even_if_nobody_reads_why(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unread:
        def write(self, text: str) -> None:
            raise OSError("nobody reads")

    fate = Fate()
    stream = Stream(fate)
    monkeypatch.setattr("sys.stderr", Unread())
    stream.submit(lambda: 1 // 0)
    assert stream.synchronize() == fate.status != 0
    stream.close()
