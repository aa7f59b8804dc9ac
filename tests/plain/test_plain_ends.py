"""However a plain program ends, it ends at once and leaves no worker: each way in a process of its own."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from support import child_environment, chosen_backend, coverage_environment

BEGINNING = """
import gc, os, signal, sys, threading
import numpy as np
import trio
import atomr_trio
from atomr_trio import testing

dev = atomr_trio.start(0, backend={backend!r})
x = dev.to_device(np.arange(4))
begun = threading.Event()


async def wait():
    begun.set()
    await trio.sleep_forever()


print(testing.worker_pid(dev), flush=True)
"""
SECONDS = 60
"""The longest that a program may take; a program that hangs would take for ever."""

ENDS = {
    "an exception, while a thread waits and a batch is open": (
        """
threading.Thread(target=lambda: dev.run(wait), daemon=True).start()
begun.wait()
dev.batch().__enter__().fill(x, 1)
raise KeyError("mine")
""",
        1,
        "KeyError: 'mine'",
    ),
    "an exit inside the block, beside a thread that computes for ever": (
        """
def compute():
    try:
        while True:
            x.to_host()
            begun.set()
    except atomr_trio.DeviceClosed:
        pass


threading.Thread(target=compute, daemon=True).start()
begun.wait()
with dev:
    sys.exit(5)
""",
        5,
        "",
    ),
    "an exit that runs no code of Python": ("os._exit(3)", 3, ""),
    "the normal end, behind that of the thread that opened it, and of its last reference": (
        """
opened = []
thread = threading.Thread(target=lambda: opened.append(atomr_trio.start(0, backend={backend!r})))
thread.start()
thread.join()
y = opened[0].zeros(3)
assert y.tolist() == [0, 0, 0]
second, run = testing.worker_pid(opened[0]), opened[0]._session.loop.thread
del y
opened.clear()
gc.collect()
run.join()
assert not run.is_alive()
assert x.tolist() == [0, 1, 2, 3]
try:
    os.kill(second, 0)
except ProcessLookupError:
    print("its worker has ended")
""",
        0,
        "its worker has ended",
    ),
    "a kill": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
    "an interrupt that nobody handles": (
        "threading.Thread(target=lambda: (begun.wait(), os.kill(os.getpid(), signal.SIGINT))).start(); dev.run(wait)",
        -signal.SIGINT,
        "KeyboardInterrupt",
    ),
    "the exit of a forked child, and then verbs at the exit of the interpreter": (
        """
child = os.fork()
if child == 0:
    for call in (x.to_host, lambda: x[1:].to_host(), lambda: dev.zeros(3), dev.statistics, dev.close):
        try:
            call()
        except atomr_trio.DeviceFailed as error:
            assert "forked" in str(error), error
        else:
            raise AssertionError(call)
    del dev, x
    gc.collect()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7

import atexit
class Late:
    def __del__(self):
        try:
            x.to_host()
        except atomr_trio.DeviceClosed as error:
            os.write(1, b"late")
late = Late()
gc.disable()
late.cycle = late
atexit.register(lambda: os.write(1, f"{x.tolist()}".encode()))
sys.stdout.flush()
""",
        0,
        "[0, 1, 2, 3]",
    ),
}
"""Ways to end: the rest of the program, its exit status, and what it writes at its end."""


def ended(pid: int) -> bool:
    """Whether a process ends within a bounded time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], SECONDS)[0])
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("way", ENDS)
def test_a_program_ends_and_leaves_no_worker(way):
    code, status, said = ENDS[way]
    program = (BEGINNING + code).replace("{backend!r}", repr(chosen_backend()))
    environment = child_environment(ATOMR_TRIO_CACHE_DIR="", **coverage_environment())
    command = [sys.executable, "-P", "-W", "error", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == status, done.stderr
    pid, _, rest = done.stdout.partition("\n")
    assert said in done.stderr + rest
    assert done.stderr == "" or said in done.stderr
    assert ended(int(pid))
