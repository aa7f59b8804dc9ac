"""Interrupts and lost workers, again and again, while several threads work: nothing is lost, left or held for ever."""

from __future__ import annotations

import random
import signal
import threading
import time

import numpy as np
import pytest
import trio

import atomr_trio
from atomr_trio import ContextLost, RestartPolicy, StaleArray, plain, testing
from support import chosen_backend

pytestmark = pytest.mark.soak

SECONDS = 30.0
FEWEST = 20
"""So many rounds end well at least, however long that takes."""
THREADS = 3
HOST = np.arange(8, dtype=np.float32)
SOURCE = """extern "C" __global__ void add(const float *x, float *y) { y[threadIdx.x] += x[threadIdx.x]; }"""


class Storm:
    """Sends the main thread interrupts while it is armed."""

    def __init__(self) -> None:
        self.is_armed = False
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._send)
        self._random = random.Random(9)

    def _send(self) -> None:
        while not self.over.wait(self._random.random() * 0.04):
            if self.is_armed:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def work(dev: plain.Device, kernel: plain.Kernel, number: random.Random) -> None:
    """Batches, launches, copies and calls of a library, with results that are known."""
    x, y = dev.to_device(HOST), dev.zeros(8, np.float32)
    launches = number.randrange(60)
    with dev.batch() as batch:
        for _ in range(launches):
            batch.launch(kernel, 1, 8, atomr_trio.read_only(x), y)
        host = batch.to_host(y)
    assert host.tolist() == (HOST * launches).tolist()
    kernel.launch(1, 8, x, y)
    kernel.launch_nowait(1, 8, x, y)
    assert y.to_host().tolist() == (HOST * (launches + 2)).tolist()
    assert float(dev.blas.dot(x, x)) == float(HOST @ HOST)


def test_interrupts_and_losses_leave_a_device_whole():
    begun = time.monotonic()
    storm, errors = Storm(), []
    interrupts, rounds = 0, 0
    policy = RestartPolicy(intensity=1000)
    with atomr_trio.start(0, backend=chosen_backend(), standby=1, restart_policy=policy) as dev:
        kernel = dev.nvrtc.compile(SOURCE, "add")

        async def kill(device: atomr_trio.Device) -> None:
            testing.kill_worker(device)

        def serve(seed: int) -> None:
            number = random.Random(seed)
            while not storm.over.is_set():
                try:
                    work(dev, kernel, number)
                except (ContextLost, StaleArray, trio.WouldBlock):
                    dev.wait_generation(after=0)
                except BaseException as error:
                    errors.append(error)
                    raise

        def once(*, is_disturbed: bool) -> None:
            nonlocal rounds
            storm.is_armed = is_disturbed
            try:
                work(dev, kernel, random.Random(rounds))
                rounds += 1
                if rounds % 5 == 0:
                    dev.run(kill, dev)
            except (ContextLost, StaleArray, trio.WouldBlock):
                pass
            finally:
                storm.is_armed = False

        threads = [threading.Thread(target=serve, args=(seed,)) for seed in range(THREADS)]
        for thread in (*threads, storm.thread):
            thread.start()
        begin = 0
        while time.monotonic() - begun < SECONDS or rounds < FEWEST:
            begin += 1
            try:
                once(is_disturbed=begin % 2 == 0)  # a slow machine does not end a round between two interrupts
                storm.is_armed = False
            except KeyboardInterrupt:
                storm.is_armed = False
                interrupts += 1
        storm.over.set()
        for thread in (*threads, storm.thread):
            thread.join()
        dev.wait_generation(after=0)
        assert errors == []
        assert interrupts > 10
        assert dev.generation > 1
        assert dev.to_device(HOST).tolist() == HOST.tolist()
        assert dev._session.loop.calls == set()
        statistics = dev.statistics()
        assert [(each.name, each.unsettled) for each in statistics.actors if each.unsettled] == []
        assert [(each.name, each.unfinished) for each in statistics.lanes if each.unfinished] == []
