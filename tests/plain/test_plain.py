"""Programs without trio: `start`, `start_devices`, and the verbs that wait, from every thread."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio
import trio.lowlevel

import atomr_trio
from atomr_trio import (
    ContextLost,
    DeviceClosed,
    DeviceFailed,
    InvalidArgument,
    ItemsLost,
    OutsideRun,
    RestartPolicy,
    plain,
    testing,
)
from atomr_trio._generation import process
from atomr_trio.plain import _interrupts, _turn
from atomr_trio.plain._loop import Loop
from support import FRESH, ON_GPU, chosen_backend, gpu_count, template

SOURCE = """
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n)
{ int i = threadIdx.x; if (i < n) y[i] += a * x[i]; }
extern "C" __global__ void spin(volatile int *x) { while (*x == 0); }
"""
LENGTH = 8
HOST = np.arange(LENGTH, dtype=np.float32)


def start(**options: Any) -> plain.Device:
    return atomr_trio.start(0, **{"backend": chosen_backend(), **options})


@pytest.fixture(scope="module")
def stage() -> Iterator[Any]:
    """A device of this thread, and a kernel on it. Its worker is a copy, as those of single tests are."""
    copied = None if ON_GPU or FRESH else template.template()
    if copied is not None:
        process.start_child = copied.start_child
    try:
        dev = start()
    finally:
        process.start_child = template.start_program
    with dev:
        program = dev.nvrtc.compile_program(SOURCE)
        yield SimpleNamespace(dev=dev, saxpy=program["saxpy"], spin=program["spin"])


@pytest.fixture
def dev(stage: Any) -> plain.Device:
    device: plain.Device = stage.dev
    return device


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[plain.Devices]:
    if ON_GPU and gpu_count() < 2:
        pytest.skip("needs 2 GPUs")
    monkeypatch.setenv("ATOMR_TRIO_SIM_DEVICES", "2")
    with atomr_trio.start_devices([0, 1], backend=chosen_backend()) as devices:
        yield devices


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def in_a_thread(work: Callable[[], Any]) -> Any:
    """What a function returns, or the exception that it raises, in a new thread."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


# --------------------------------------------------------------------------------------------------- the verbs


def test_the_verbs_of_a_device_wait_for_their_results(stage):
    dev = stage.dev
    x, y = dev.to_device(HOST), dev.zeros(LENGTH, np.float32)
    stage.saxpy.launch(1, LENGTH, 2.0, atomr_trio.read_only(x), y, LENGTH)
    assert y.to_host().tolist() == (2 * HOST).tolist()
    assert float(dev.blas.dot(x, x)) == float(HOST @ HOST)
    assert np.allclose(dev.fft.rfft(x).to_host(), np.fft.rfft(HOST))
    assert dev.random.generator("philox", 7).normal(size=3).shape == (3,)
    with dev.lane() as lane:
        stage.saxpy.launch(1, LENGTH, 1.0, x, y, LENGTH, lane=lane)
        event = lane.record()
        event.wait()
        assert event.reached
        assert event.lane is lane
    assert y.to_host().tolist() == (3 * HOST).tolist()


def test_a_batch_is_sent_at_once_and_waited_for_at_its_end(stage):
    x, y = stage.dev.to_device(HOST), stage.dev.zeros(LENGTH, np.float32)
    prepared = stage.saxpy.prepare(1, LENGTH, 1.0, x, y, LENGTH)
    with stage.dev.batch() as batch:
        for _ in range(5):
            batch.launch(stage.saxpy, 1, LENGTH, 1.0, x, y, LENGTH)
            batch.launch(prepared)
        z = batch.blas.copy(y, batch.to_device(np.zeros(LENGTH, np.float32)))
        host = batch.to_host(z)
    assert host.tolist() == (10 * HOST).tolist()
    assert isinstance(z, plain.DeviceArray)


def test_an_exception_in_a_batch_is_raised_as_it_is_and_the_batch_is_over(stage):
    with pytest.raises(KeyError, match="mine"):
        with stage.dev.batch() as batch:
            raise KeyError("mine")
    with pytest.raises(InvalidArgument):
        batch.fill(stage.dev.zeros(1), 1)


def test_the_short_way_of_launches_is_taken_in_the_thread_of_the_caller(stage, monkeypatch):
    """Else a launch would cost ten times as much."""
    x, y = stage.dev.to_device(HOST), stage.dev.to_device(HOST)
    slow: list[object] = []
    original = atomr_trio.Batch._launch_slowly

    def launch_slowly(*given: Any, **named: Any) -> None:
        slow.append(given)
        original(*given, **named)

    monkeypatch.setattr(atomr_trio.Batch, "_launch_slowly", launch_slowly)
    with stage.dev.batch() as batch:
        for _ in range(10):
            batch.launch(stage.saxpy, 1, LENGTH, 1.0, x, y, LENGTH)
    assert len(slow) < 3
    assert y.to_host().tolist() == (11 * HOST).tolist()


def test_a_graph_is_recorded_in_the_thread_of_the_caller(stage):
    x, y = stage.dev.to_device(HOST), stage.dev.zeros(LENGTH, np.float32)
    threads = []

    def record(graph: plain.GraphRecorder) -> None:
        threads.append(threading.current_thread())
        graph.fill(y, 3)
        graph.launch(stage.saxpy, 1, LENGTH, 1.0, x, y, LENGTH)

    graph = stage.dev.capture(record)
    graph.launch()
    assert threads == [threading.current_thread()]
    assert y.to_host().tolist() == (HOST + 3).tolist()
    assert len(graph) == 2
    assert [node.after for node in graph.nodes] == [(), (0,)]


def test_what_the_recording_function_raises_is_raised_and_an_async_one_is_refused(dev):
    def record(graph: plain.GraphRecorder) -> None:
        raise KeyError("mine")

    async def awaited(graph: plain.GraphRecorder) -> None:
        raise AssertionError

    async def nothing() -> None:
        raise AssertionError

    coroutine = nothing()

    with pytest.raises(KeyError, match="mine"):
        dev.capture(record)
    with pytest.raises(InvalidArgument, match="no async one"):
        dev.capture(awaited)
    with pytest.raises(InvalidArgument, match="no generator or async one"):
        dev.capture(lambda graph: coroutine)
    coroutine.close()


def test_errors_are_those_of_the_awaited_face(dev):
    x = dev.zeros(3)
    with pytest.raises(InvalidArgument, match="shapes differ"):
        x.copy_from(np.zeros(4))
    with pytest.raises(InvalidArgument, match="a shape is"):
        dev.zeros("three")
    x.free()
    with pytest.raises(InvalidArgument, match="was freed"):
        x.to_host()


def test_a_device_that_cannot_be_opened_shows_no_frames_of_its_run():
    with pytest.raises(DeviceFailed) as refused:
        atomr_trio.start(13, backend=chosen_backend())
    assert len(traceback.extract_tb(refused.value.__traceback__)) <= 4
    assert "index" in str(refused.value)


def test_errors_name_calls_as_this_face_has_them(group):
    x = group[0].zeros(LENGTH, np.int8)
    with pytest.raises(InvalidArgument, match=r"in the first|multiples of") as refused:
        x[1:5].view(np.float32)
    assert "`y.copy_from(x)`" in str(refused.value)
    with start() as other, pytest.raises(InvalidArgument, match="another device") as foreign:
        other.blas.scal(group[0].zeros(3), 2)
    assert "`dev.to_device(array.to_host())`" in str(foreign.value)


def test_a_loss_costs_one_exception_and_the_arrays_live():
    with start() as dev:
        x = dev.to_device(HOST)
        kernel = dev.nvrtc.compile(SOURCE, "saxpy")
        with pytest.raises(ContextLost) as lost:
            kernel.launch(1, LENGTH, 1.0, atomr_trio.read_only(x), 0xBAD0, LENGTH)
        assert dev.wait_generation(after=lost.value.generation) == 2
        assert x.to_host().tolist() == HOST.tolist()


def test_events_are_iterated_over(dev):
    with dev.events() as events:
        generation = dev.restart("a test")
        found = next(each for each in events if isinstance(each, atomr_trio.ContextRebuilt))
    assert found.generation == generation


# --------------------------------------------------------------------------------------------------- twins


def test_an_object_has_one_blocking_form_as_long_as_that_lives(dev):
    x = dev.to_device(HOST)
    assert type(x).__module__ == "atomr_trio.plain"
    assert x.device is dev
    assert dev.blas is dev.blas
    assert dev.compute_lane is dev.compute_lane
    assert dev.blas.scal(x, 1) is x
    address = id(x.awaited)
    y = dev.run(_same, x)
    assert y is x
    assert id(y.awaited) == address


async def _same(array: atomr_trio.DeviceArray) -> atomr_trio.DeviceArray:
    assert isinstance(array, atomr_trio.DeviceArray)
    return array


def test_arrays_of_both_faces_may_be_given(stage):
    x, y = stage.dev.to_device(HOST), stage.dev.zeros(LENGTH, np.float32)
    stage.saxpy.launch(1, LENGTH, 1.0, x.awaited, y, LENGTH)
    stage.saxpy.launch(1, LENGTH, 1.0, atomr_trio.read_only(x), atomr_trio.writes(y.awaited), LENGTH)
    assert stage.dev.blas.gemm_batched([y.reshape(2, 4)], [x.awaited.reshape(4, 2)])[0].shape == (2, 2)
    assert y.to_host().tolist() == (2 * HOST).tolist()


def test_a_function_of_the_awaited_face_runs_in_the_run_of_the_device(dev):
    async def both(device: atomr_trio.Device, factor: int) -> list[atomr_trio.DeviceArray]:
        arrays: list[atomr_trio.DeviceArray] = []

        async def one(value: int) -> None:
            arrays.append(await device.to_device(np.full(2, value)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, factor)
            nursery.start_soon(one, factor)
        return arrays

    assert [array.tolist() for array in dev.run(both, dev, 3)] == [[3, 3], [3, 3]]
    with pytest.raises(InvalidArgument, match="an async function"):
        dev.run(len, [])
    with pytest.raises(InvalidArgument, match="an async function"):
        dev.run(3)  # type: ignore[arg-type]


def test_a_blocking_form_is_neither_made_nor_copied_by_its_user(dev):
    import copy

    with pytest.raises(TypeError, match="no public constructor"):
        plain.DeviceArray()
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(dev.zeros(1))


# --------------------------------------------------------------------------------------------------- numpy's access


def test_numpy_gets_copies_of_the_elements(dev):
    x = dev.to_device(HOST)
    assert np.asarray(x).tolist() == HOST.tolist()
    assert np.asarray(x, np.int32).dtype == np.int32
    assert (np.array(x) + 1).tolist() == (HOST + 1).tolist()
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(x, copy=False)
    assert x.tolist() == HOST.tolist()
    assert list(x) == list(HOST)
    assert [row.tolist() for row in x.reshape(2, 4)] == HOST.reshape(2, 4).tolist()
    assert 3.0 in x
    assert 99.0 not in x


def test_an_array_of_one_element_is_a_number(dev):
    x = dev.to_device(HOST)
    assert (float(x[3]), int(x[3]), complex(x[3]), bool(x[0]), x[3:4].item()) == (3.0, 3, 3, False, 3.0)
    assert list(range(9))[dev.to_device(np.int32(4))] == 4
    for number in (float, int, complex, bool, lambda array: array.item()):
        with pytest.raises(ValueError, match="one element"):
            number(x)
    with pytest.raises(TypeError, match="index"):
        [1][x[0]]
    with pytest.raises(TypeError, match="without axes"):
        iter(x[0])


def test_elements_are_set_through_views(dev):
    x = dev.to_device(HOST)
    x[1:3] = -1
    x[5] = 9.5
    x[6:] = [7, 8]
    assert x.tolist() == [0, -1, -1, 3, 4, 9.5, 7, 8]
    x[...] = dev.to_device(HOST)
    x.reshape(2, 4)[:, ::2] = np.array([[1], [2]])
    assert x.tolist() == [1, 1, 1, 3, 2, 5, 2, 7]
    with pytest.raises(InvalidArgument, match="does not spread"):
        x[:3] = [1, 2]
    x[3:3] = 1


@pytest.mark.sim_only
def test_other_libraries_get_the_memory_of_an_array_when_it_is_written(dev):
    x = dev.full((2, 3), 7, np.float32)
    shared = np.from_dlpack(x)
    assert shared.tolist() == [[7, 7, 7], [7, 7, 7]]
    x[0] = 1
    assert shared[0].tolist() == [1, 1, 1]
    with pytest.raises(BufferError):
        x.__dlpack__(copy=True)


@pytest.mark.parametrize("operator", ["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"])
def test_arrays_are_not_compared(dev, operator):
    x = dev.zeros(1)
    with pytest.raises(TypeError, match="not compared"):
        getattr(x, operator)(1)
    assert len({x, x}) == 1


def test_what_is_a_habit_from_elsewhere_is_refused_with_the_words_of_this_face(dev):
    x, host = dev.zeros(3), np.ones(3)
    kernel = dev.nvrtc.compile('extern "C" __global__ void k() {}', "k")
    habits = {
        "`x.to_host()`": lambda: x.get(),
        "`x.copy_from(host)`": lambda: x.set(host),
        "`dev.to_device(host)`": lambda: dev.asarray(host),
        "`kernel.launch(grid, block, *arguments)`": lambda: kernel((1,), (1,), ()),
        "`dev.blas.axpy(x, y)`": lambda: x + x,
        "no operator *": lambda: 2 * x,
        "no operator @": lambda: x @ x,
        "no operator -": lambda: -x,
    }
    for said, habit in habits.items():
        with pytest.raises((AttributeError, TypeError)) as caught:
            habit()
        assert said in str(caught.value)
        assert "await" not in str(caught.value)
    assert not {"get", "set"} & set(dir(x))
    assert x.item is not None  # which this face has
    np.testing.assert_array_equal(host + x, host)  # numpy copies it to the host, as for each of its functions
    np.testing.assert_array_equal(x + host, host)


def test_the_block_of_an_array_frees_it(dev):
    with dev.zeros(3) as x:
        assert x.state == "ready"
    assert x.state == "freed"


# --------------------------------------------------------------------------------------------------- threads


def test_every_thread_may_use_a_device_and_every_request_is_settled(stage):
    dev = stage.dev

    def work() -> float:
        x, y = dev.to_device(HOST), dev.zeros(LENGTH, np.float32)
        for _ in range(10):
            stage.saxpy.launch(1, LENGTH, 1.0, x, y, LENGTH)
            with dev.batch() as batch:
                batch.launch(stage.saxpy, 1, LENGTH, 1.0, x, y, LENGTH)
            dev.statistics()
        return float(y.to_host()[1])

    found: list[float] = []
    threads = [threading.Thread(target=lambda: found.append(work())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [20.0] * 4
    assert [(each.name, each.unsettled) for each in dev.statistics().actors if each.unsettled] == []
    assert dev._session.loop.calls == set()


def test_a_thread_that_enqueues_all_the_time_lets_others_wait_for_results(dev):
    done = threading.Event()

    def enqueue() -> None:
        while not done.is_set():
            dev.zeros(4)

    thread = threading.Thread(target=enqueue)
    thread.start()
    try:
        assert [dev.to_device(HOST).to_host()[1] for _ in range(10)] == [1.0] * 10
    finally:
        done.set()
        thread.join()


def test_verbs_cross_to_the_run_where_trio_does_not_say_where_that_is(monkeypatch):
    monkeypatch.setattr(_turn, "CONTEXT", None)
    with start() as dev:
        assert not dev._session.loop._turn.is_taken
        x = dev.zeros(3)
        with dev.batch() as batch:
            batch.fill(x, 2)
        assert x.tolist() == [2, 2, 2]


def test_the_thread_that_has_started_a_device_may_end():
    dev = in_a_thread(start)
    with dev:
        x = dev.to_device(HOST)
        assert in_a_thread(x.tolist) == HOST.tolist()
        assert dev.generation == 1


def test_a_reservation_is_of_the_thread_that_has_entered_it(group):
    reservation = group.reserve(1 << 20)
    with reservation as dev:
        assert dev in list(group)
        arrays = [dev.zeros(1 << 10, np.uint8), dev.to_device(np.zeros(512, np.uint8))]
        assert reservation.left == (1 << 20) - 1024 - 512
        arrays.append(in_a_thread(lambda: dev.zeros(512, np.uint8)))
        assert reservation.left == (1 << 20) - 1024 - 512
    assert [array.state for array in arrays] == ["ready"] * 3


# --------------------------------------------------------------------------------------------------- groups


def test_a_group_is_a_sequence_of_devices(group):
    assert [each.index for each in group] == [0, 1]
    assert group[0] is group[:1][0]
    assert len(group) == 2
    assert group.pick().index in (0, 1)
    x = group[0].to_device(HOST)
    assert group[1].to_device(x).tolist() == HOST.tolist()
    with pytest.raises(InvalidArgument, match="close the group"):
        group[0].close()


def test_map_calls_a_function_in_threads_for_every_item(group):
    def total(dev: plain.Device, item: int) -> float:
        assert threading.current_thread() is not threading.main_thread()
        return float(dev.to_device(HOST * item).to_host().sum())

    assert group.map(total, iter(range(6))) == [float(HOST.sum()) * item for item in range(6)]
    assert group.map(lambda dev, item: item, []) == []


def test_map_raises_what_the_function_raises_and_reports_lost_items(group):
    def fail(dev: plain.Device, item: int) -> None:
        raise KeyError(item)

    def lose(dev: plain.Device, item: int) -> None:
        dev.awaited
        raise ContextLost("lost", reason="a test")

    async def awaited(dev: plain.Device, item: int) -> None:
        raise AssertionError

    with pytest.raises(KeyError):
        group.map(fail, [1])
    with pytest.raises(ItemsLost):
        group.map(lose, [1, 2])
    for function, items, at_once in ((awaited, [1], 1), (fail, 3, 1), (fail, [1], 0)):
        with pytest.raises(InvalidArgument):
            group.map(function, items, at_once=at_once)  # type: ignore[arg-type]


def test_a_world_of_a_group_waits_for_its_sums(group):
    with group.world() as world:
        assert world.members == (group[0], group[1])
        parts = world.shard(HOST)
        summed = world.all_reduce(parts)
        assert [part.tolist() for part in summed] == [(HOST[:4] + HOST[4:]).tolist()] * 2
        with world.batch() as batch:
            batch.broadcast(parts)
        assert parts.to_host().tolist() == [*HOST[:4], *HOST[:4]]
        assert parts[1].device is group[1]
    with pytest.raises(InvalidArgument, match="closed"):
        world.all_reduce(parts)


# --------------------------------------------------------------------------------------------------- interrupts


def interrupt(begun: threading.Event) -> threading.Thread:
    """Send the main thread a SIGINT, as Ctrl-C does, once an event is set."""

    def send() -> None:
        begun.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_an_interrupt_ends_a_wait_cancels_its_call_and_the_device_lives(dev):
    begun, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    thread = interrupt(begun)
    with pytest.raises(KeyboardInterrupt):
        dev.run(wait)
    thread.join()
    assert ended.is_set()
    assert dev._session.loop.calls == set()
    assert dev.to_device(HOST).tolist() == HOST.tolist()


def test_an_interrupted_launch_is_abandoned_and_its_lane_goes_on(stage):
    dev = stage.dev
    word = dev.zeros(1, np.int32)
    word.fill(0)
    begun = threading.Event()

    def submitted() -> int:
        return sum(each.submitted for each in dev.statistics().lanes)

    before = submitted()

    def watch() -> None:
        while submitted() == before:
            pass
        begun.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    thread = interrupt(begun)
    with pytest.raises(KeyboardInterrupt):
        stage.spin.launch(1, 1, word)
    thread.join()
    watcher.join()
    dev.restart("it spins for ever")
    assert dev.to_device(HOST).tolist() == HOST.tolist()
    assert [(each.name, each.unsettled) for each in dev.statistics().actors if each.unsettled] == []


def test_an_interrupt_in_the_middle_of_a_verb_comes_behind_it(dev):
    done: list[object] = []

    def verb() -> None:
        signal.raise_signal(signal.SIGINT)
        done.append(dev.awaited.zeros(3))

    with pytest.raises(KeyboardInterrupt):
        dev._enqueue(verb)
    assert len(done) == 1
    assert dev.to_device(HOST).tolist() == HOST.tolist()


def test_an_interrupt_in_a_destructor_comes_behind_the_verb(dev):
    class Dropped:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)
            steps.append("dropped")

    def drop() -> None:
        Dropped()
        steps.append("went on")

    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        dev._session.loop.at_once(drop, (), {})
    assert steps == ["dropped", "went on"]


def test_an_interrupt_while_a_graph_is_recorded_ends_the_recording(dev):
    def record(graph: plain.GraphRecorder) -> None:
        graph.fill(dev.zeros(1), 1)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        dev.capture(record)
    assert dev.awaited._core.recording == []


def test_an_interrupt_while_a_device_is_opened_ends_the_opening():
    begun, sent = threading.Event(), threading.Event()

    class Workers:
        """A source that has no worker, and finds that out when the interrupt was sent."""

        def take(self, backend: str, index: int) -> object:
            begun.set()
            sent.wait()
            raise OSError("none is left")

        def give_back(self, process: object) -> None:
            raise AssertionError

    def send() -> None:
        begun.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        sent.set()

    threads = set(threading.enumerate())
    thread = threading.Thread(target=send)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        start(workers=Workers())
    thread.join()
    assert [each for each in set(threading.enumerate()) - threads if each.name == "atomr_trio.start"] == []


def test_a_block_whose_entering_is_interrupted_is_left(dev, monkeypatch):
    lane = dev.lane()
    real = lane.awaited.__aenter__
    left: list[object] = []
    begun = threading.Event()

    class Thing:
        async def __aenter__(self) -> object:
            await real()
            begun.set()
            with trio.CancelScope(shield=True):
                while not stopped.is_set():
                    await trio.lowlevel.checkpoint()
            return self

        async def __aexit__(self, *error: object) -> None:
            left.append(error[0])

    stopped = threading.Event()
    monkeypatch.setattr(lane, "_awaited", Thing())
    posted = dev._session.loop.post

    def post(function: Callable[[], object]) -> bool:
        if function.__name__ == "cancel":
            stopped.set()
        return posted(function)

    monkeypatch.setattr(dev._session.loop, "post", post)
    thread = interrupt(begun)
    with pytest.raises(KeyboardInterrupt):
        lane.__enter__()
    thread.join()
    assert left == [KeyboardInterrupt]


def test_a_reservation_whose_entering_is_interrupted_is_given_back(group, monkeypatch):
    reservation = group.reserve(1 << 20)
    real = atomr_trio.Reservation.__enter__

    def enter(entered: atomr_trio.Reservation) -> atomr_trio.Device:
        device = real(entered)
        signal.raise_signal(signal.SIGINT)
        return device

    monkeypatch.setattr(atomr_trio.Reservation, "__enter__", enter)
    with pytest.raises(KeyboardInterrupt):
        reservation.__enter__()
    assert reservation.left == 0


def test_the_handler_of_python_is_back_behind_each_verb_and_another_one_is_left_alone(dev):
    seen = []

    def see() -> None:
        seen.append(signal.getsignal(signal.SIGINT))

    def see_all() -> list[Any]:
        seen.clear()
        dev._enqueue(see)
        dev.capture(lambda graph: (see(), graph.fill(dev.zeros(1), 1)))
        see()
        return seen

    before = signal.getsignal(signal.SIGINT)
    assert before is signal.default_int_handler
    assert see_all() == [_interrupts._handle, _interrupts._handle, before]

    def mine(number: int, frame: object) -> None:
        raise AssertionError

    signal.signal(signal.SIGINT, mine)
    try:
        assert see_all() == [mine] * 3
    finally:
        signal.signal(signal.SIGINT, before)
    in_a_thread(lambda: dev._enqueue(see))
    assert seen[-1] is before


# --------------------------------------------------------------------------------------------------- wrong places


def test_a_task_of_trio_is_refused_and_told_what_to_do(dev):
    x = dev.zeros(1)

    async def main() -> list[OutsideRun]:
        found = []
        for call in (x.to_host, lambda: dev.zeros(1), dev.close, start):
            with pytest.raises(OutsideRun) as refused:
                call()
            found.append(refused.value)
        await trio.to_thread.run_sync(x.to_host)
        return found

    errors = trio.run(main)
    assert {error.caller for error in errors} == {"another trio run"}
    assert "open_device" in str(errors[0])
    assert dev.zeros(1).tolist() == [0]


def test_the_run_of_the_device_is_refused_and_told_what_to_do(dev):
    x = dev.zeros(1)

    async def wrong() -> None:
        x.to_host()

    with pytest.raises(OutsideRun, match="awaited face") as refused:
        dev.run(wrong)
    assert refused.value.caller == "the device's own run"
    with pytest.raises(OutsideRun, match="would wait for"):
        dev._enqueue(x.to_host)


def test_in_a_function_of_the_run_verbs_that_do_not_wait_may_be_called(dev):
    async def right() -> str:
        return type(dev.zeros(1)).__name__

    assert dev.run(right) == "DeviceArray"


def test_a_closed_device_says_so():
    dev = start()
    x, batch = dev.zeros(1), dev.batch()
    dev.close()
    dev.close()
    for call in (x.to_host, lambda: dev.zeros(1), dev.statistics, dev.__enter__, batch.__enter__, lambda: dev.events()):
        with pytest.raises(DeviceClosed, match="closed"):
            call()
    assert x.shape == (1,)
    x.free()


def test_a_device_that_cannot_be_opened_raises_and_leaves_no_thread(monkeypatch):
    """Also where the thread is slow to end: it ends when it is joined here, or after a long time."""
    main, join, joined = Loop._main, threading.Thread.join, threading.Event()

    def slow(loop):
        main(loop)
        joined.wait(60)
        joined.clear()

    def joining(thread, *arguments):
        joined.set()
        join(thread, *arguments)

    monkeypatch.setattr(Loop, "_main", slow)
    monkeypatch.setattr(threading.Thread, "join", joining)
    threads = set(threading.enumerate())
    with pytest.raises(InvalidArgument, match="standby"):
        start(standby=77)
    with pytest.raises(InvalidArgument):
        atomr_trio.start_devices([0, 0], backend=chosen_backend())
    assert [each for each in set(threading.enumerate()) - threads if each.name.startswith("atomr_trio.start")] == []


# --------------------------------------------------------------------------------------------------- ends


def test_a_device_that_nothing_refers_to_is_closed():
    dev = start()
    loop, pid = dev._session.loop, testing.worker_pid(dev)
    x = dev.zeros(3)
    del dev
    gc.collect()
    assert x.tolist() == [0, 0, 0]
    assert x.device.index == 0
    del x
    gc.collect()
    loop.thread.join()
    assert loop.is_over
    assert not is_there(pid)


def test_a_device_that_was_given_up_says_so_once():
    dev = start(restart_policy=RestartPolicy(intensity=0))

    async def kill(device: atomr_trio.Device) -> None:
        testing.kill_worker(device)
        await trio.sleep_forever()

    with pytest.raises(DeviceFailed):
        dev.run(kill, dev)
    with pytest.raises(DeviceFailed):
        dev.zeros(1).to_host()
    with pytest.raises(DeviceFailed):
        dev.close()
    dev.close()


def test_leaving_the_block_by_an_exception_closes_and_raises_it():
    dev = start()
    pid = testing.worker_pid(dev)
    with pytest.raises(KeyError, match="mine"), dev:
        raise KeyError("mine")
    assert not is_there(pid)
    assert dev.state is atomr_trio.DeviceState.CLOSED


def test_calls_of_other_threads_end_with_the_device():
    dev = start()
    begun = threading.Event()

    async def wait() -> None:
        begun.set()
        await trio.sleep_forever()

    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(in_a_thread(lambda: dev.run(wait))))
    thread.start()
    begun.wait()
    dev.close()
    thread.join()
    assert [type(each) for each in found] == [DeviceClosed]


# --------------------------------------------------------------------------------------------------- asyncio


def test_asyncio_awaits_verbs_without_blocking_its_loop(dev):
    async def main() -> tuple[list[float], str]:
        x = await dev.in_asyncio(dev.to_device, HOST)
        several = await asyncio.gather(*(dev.in_asyncio(x.to_host) for _ in range(5)))
        return [float(each.sum()) for each in several], type(await dev.in_asyncio(dev.zeros, 3)).__name__

    assert asyncio.run(main()) == ([float(HOST.sum())] * 5, "DeviceArray")


def test_cancelling_the_task_of_asyncio_cancels_the_verb(stage):
    dev = stage.dev

    async def main() -> int:
        task = asyncio.ensure_future(dev.in_asyncio(dev.wait_generation, after=1000))
        await asyncio.sleep(0)  # it begins
        assert len(dev._session.loop.calls) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return len(dev._session.loop.calls)

    assert asyncio.run(main()) == 0


def test_the_bridge_refuses_what_is_no_verb_and_where_no_loop_runs(dev):
    async def main() -> None:
        for verb in (len, np.zeros, dev.zeros(1).tolist):
            with pytest.raises(InvalidArgument):
                await dev.in_asyncio(verb)
        with pytest.raises(InvalidArgument, match="shapes differ"):
            await dev.in_asyncio(dev.zeros(1).copy_from, np.zeros(3))

    asyncio.run(main())
    awaited = dev.in_asyncio(dev.trim)
    with pytest.raises(OutsideRun, match="no loop of asyncio"):
        awaited.send(None)
    assert inspect.iscoroutine(awaited)
