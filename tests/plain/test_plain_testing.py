"""`atomr_trio.testing` with devices of the blocking face: what ends a worker, holds it, or makes its calls fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

import atomr_trio
from atomr_trio import CommandFailed, ContextLost, InvalidArgument, plain, testing
from support import chosen_backend


@pytest.fixture(scope="module")
def dev() -> Iterator[plain.Device]:
    with atomr_trio.start(0, backend=chosen_backend()) as device:
        yield device


def test_the_worker_of_either_face_is_the_same_and_killing_it_is_a_loss(dev):
    before, lost = testing.worker_pid(dev), dev.generation

    async def of_the_awaited(device: atomr_trio.Device) -> int:
        return testing.worker_pid(device)

    assert before == dev.run(of_the_awaited, dev)
    testing.kill_worker(dev)
    dev.wait_generation(after=lost)
    assert testing.worker_pid(dev) != before


def test_a_held_worker_answers_when_the_block_ends_or_is_lost_in_it(dev):
    x, lost = dev.to_device(np.arange(3)), dev.generation
    found: list[object] = []

    def copy() -> None:
        try:
            found.append(x.to_host().tolist())
        except ContextLost:
            found.append("lost")

    for kills, expected in ((False, [0, 1, 2]), (True, "lost")):
        thread = threading.Thread(target=copy)
        with testing.hold_worker(dev):
            thread.start()
            thread.join(0.1)
            assert thread.is_alive()
            if kills:
                testing.kill_worker(dev)
                thread.join()
        thread.join()
        assert found.pop() == expected
    dev.wait_generation(after=lost)


def test_a_rebuild_is_held_while_the_block_runs(dev):
    lost = dev.generation
    with testing.hold_rebuild(dev):
        testing.kill_worker(dev)
        waiting = threading.Thread(target=dev.wait_generation, kwargs={"after": lost})
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        assert dev.generation == lost
    waiting.join()
    assert dev.generation == lost + 1


@pytest.mark.sim_only
def test_a_call_of_the_driver_fails_on_request(dev):
    x = dev.to_device(np.arange(3))
    testing.inject(dev, "cuModuleLoadDataEx", testing.ReturnStatus(801))
    with pytest.raises(CommandFailed):
        dev.nvrtc.compile('extern "C" __global__ void fresh(int *x) { *x = 77; }', "fresh").launch(1, 1, x)


@pytest.mark.parametrize(
    "use", [testing.worker_pid, testing.kill_worker, lambda dev: testing.hold_worker(dev).__enter__()]
)
def test_what_is_no_device_is_refused(dev, use):
    for other in (7, None, dev.zeros(1)):
        with pytest.raises(InvalidArgument, match="dev is a device, not"):
            use(other)
