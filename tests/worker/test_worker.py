"""The worker's process: what crosses to it, how it starts, what it holds, and that it never outlives its parent."""

from __future__ import annotations

import array
import collections
import gc
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from atomr_trio import ContextLost, DeviceFailed, RestartPolicy, testing
from atomr_trio._device.device import core_of
from atomr_trio._generation import out_of_memory
from atomr_trio._generation.process import ADDRESS_EXTENT, WorkerProcess, address_range
from atomr_trio._wire import channel, protocol
from atomr_trio._wire.channel import SharedMemory, TimelinePage
from atomr_trio._wire.protocol import HEADER, LANES, MAX_LANES, Mode, Role, VerbTable
from atomr_trio._wire.records.memory import COPY_IN, MEMORY
from atomr_trio._wire.records.module import MODULE
from support import child_environment, next_event, open_test_device, set_constant
from support.descriptors import open_descriptors
from support.rogue import children, compile_rogue, next_generation, process_exists, until, worker_pid

pytestmark = pytest.mark.program_starts

DEADLINE = 300

# --- records ----------------------------------------------------------------------------------------------------------


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """One message from either end."""
    return channel.receive_bytes(sock, bytearray(channel.MAX_MESSAGE))


def test_waits_are_encoded_and_decoded_without_loss():
    for lane in range(MAX_LANES):
        for ticket in (0, 1, 2**32, 2**56 - 1):
            for required in (False, True):
                word = protocol.encode_wait(lane, ticket, required=required)
                assert 0 <= word < 2**64
                assert protocol.decode_wait(word) == (lane, ticket, required)


def test_a_header_is_packed_without_holes_and_read_back():
    values = (2**60, 2, 1, 7, 255, 70_000)
    assert HEADER.unpack(HEADER.pack(*values)) == values
    assert HEADER.size == 16


def test_every_word_of_the_timeline_page_has_a_place_and_the_busy_ones_a_cache_line():
    words = [value for name, value in vars(protocol).items() if name.endswith("_WORD")]
    assert len(words) == 8
    words += [protocol.counter_word(lane) for lane in range(MAX_LANES)]
    words += [protocol.failures_word(lane) for lane in range(MAX_LANES)]
    statuses = range(protocol.STATUSES_PER_LANE)
    slots = {protocol.status_place(lane, ticket) for lane in range(MAX_LANES) for ticket in statuses}
    assert len(slots) == MAX_LANES * protocol.STATUSES_PER_LANE
    lines = [word * 8 // 64 for word in words]
    assert len(set(lines)) == len(lines)
    assert (max(lines) + 1) * 64 <= min(slots) * protocol.STATUS_BYTES
    assert (max(slots) + 1) * protocol.STATUS_BYTES == protocol.PAGE_BYTES
    assert LANES <= MAX_LANES


def test_every_verb_has_a_number_of_its_own_and_a_record_of_fixed_size():
    for table in (MEMORY, MODULE):
        assert [verb.number for verb in table.verbs] == list(range(len(table.verbs)))
        assert {verb.engine for verb in table.verbs} == {table.engine}
    assert COPY_IN.struct.size == 24
    assert COPY_IN.roles == {"destination": Role.OVERWRITE}
    assert repr(COPY_IN) == "<Verb memory.copy_in enqueues>"


def test_a_verb_cannot_give_a_role_to_a_field_it_has_not():
    with pytest.raises(ValueError, match="nowhere"):
        VerbTable("test", 9).verb("bad", Mode.ENQUEUES, {"somewhere": "Q"}, {"nowhere": Role.READ})


# --- the channel ------------------------------------------------------------------------------------------------------


def test_messages_keep_their_borders_and_their_descriptors():
    ours, theirs = channel.open_pair()
    with ours, theirs:
        reader, writer = os.pipe()
        channel.send_bytes(ours, b"first")
        channel.send_bytes(ours, b"second", [writer])
        channel.send_message(ours, {"kind": "third", "text": "\u00e4"})
        os.close(writer)
        assert receive(theirs) == (b"first", [])
        data, (passed,) = receive(theirs)
        assert data == b"second"
        assert not os.get_inheritable(passed)
        os.write(passed, b"x")
        assert os.read(reader, 1) == b"x"
        assert json.loads(receive(theirs)[0]) == {"kind": "third", "text": "\u00e4"}
        os.close(passed)
        os.close(reader)
        ours.close()
        assert receive(theirs) == (b"", [])


def test_a_full_channel_says_so_and_the_largest_message_fits():
    ours, theirs = channel.open_pair()
    with ours, theirs:
        ours.setblocking(False)
        channel.send_bytes(ours, bytes(channel.MAX_MESSAGE))
        assert len(receive(theirs)[0]) == channel.MAX_MESSAGE

        def fill() -> None:
            for _ in range(100_000):
                channel.send_bytes(ours, b"x" * 1000)

        with pytest.raises(BlockingIOError):
            fill()


def test_long_texts_are_cut_to_what_a_message_holds():
    assert channel.clip("short") == "short"
    assert len(channel.clip("x" * 10**6)) < channel.MAX_TEXT + 10


def test_shared_memory_is_seen_through_its_descriptor_and_gone_after_close():
    memory = SharedMemory.create("atomr-test", 4096)
    memory.bytes[:5] = b"hello"
    assert os.pread(memory.descriptor, 5, 0) == b"hello"
    descriptor = memory.descriptor
    memory.close()
    memory.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_both_sides_see_each_others_words_of_the_timeline_page():
    page = TimelinePage.new()
    other = TimelinePage(os.dup(page.descriptor))
    other.words[protocol.counter_word(1)] = 2**40
    other.set_status(2, 1500, -1)
    page.set_asleep(True)
    assert page.finished(1) == 2**40
    assert page.status(2, 1500) == -1
    assert other.words[protocol.ASLEEP_WORD] == 1
    assert page.heartbeat() == 0
    page.close()
    other.close()


# --- the process ------------------------------------------------------------------------------------------------------


def test_address_ranges_of_devices_do_not_meet():
    ranges = [address_range(device) for device in range(14)]
    assert all(extent == ADDRESS_EXTENT for _, extent in ranges)
    ends = [base + extent for base, extent in ranges]
    assert all(end <= base for end, (base, _) in zip(ends, ranges[1:], strict=False))
    assert ends[-1] < 2**47, "user space ends there"


def wait_for_end(process: WorkerProcess, seconds: float = 30) -> None:
    poll = select.poll()
    poll.register(process.pidfd, select.POLLIN)
    assert poll.poll(seconds * 1000), "the process was meant to end"


def test_a_worker_says_hello_before_it_is_given_anything_and_ends_with_its_channel(backend):
    process = WorkerProcess(backend, 0)
    process.sock.setblocking(True)
    process.sock.settimeout(30)
    data, _ = receive(process.sock)
    assert json.loads(data) == {"kind": "hello"}
    assert not process.reap()
    assert "running" in repr(process)
    process.sock.shutdown(socket.SHUT_WR)
    wait_for_end(process)
    assert process.reap()
    assert process.end_text() == "exited with status 71: its channel was closed"
    process.close()
    process.close()
    assert not process_exists(process.pid)


GROUPS = {
    "v2": ("0::/app.slice/one\n", "app.slice/one/memory.events", "low 0\noom 3\noom_kill {}\noom_group_kill 7\n"),
    "v2 in a container": ("0::/../outside\n", "memory.events", "oom_kill {}\n"),
    "v1": ("5:cpu,memory:/one\n0::/\n", "memory/one/memory.oom_control", "oom_kill_disable 0\noom_kill {}\n"),
}


@pytest.fixture
def oom_counter(tmp_path, monkeypatch, request):
    """Have the counter of the control group be a file of this test; returns what sets it."""
    groups, name, text = GROUPS[getattr(request, "param", "v2")]
    (tmp_path / "cgroup").write_text(groups)
    file = tmp_path / "mount" / name
    file.parent.mkdir(parents=True)
    set_constant(monkeypatch, out_of_memory, "OWN_GROUPS", tmp_path / "cgroup")
    set_constant(monkeypatch, out_of_memory, "MOUNT", tmp_path / "mount")
    monkeypatch.setattr(out_of_memory.OomWatch, "attributed", set())

    def count(kills: int) -> Path:
        file.write_text(text.format(kills))
        return file

    return count


@pytest.mark.parametrize("oom_counter", GROUPS, indirect=True)
def test_the_counter_of_the_oom_killer_is_found_in_either_kind_of_control_group(oom_counter):
    assert out_of_memory.counter() is None
    file = oom_counter(4)
    assert out_of_memory.counter() == (file, 4)


def test_a_kill_by_the_oom_killer_explains_the_end_of_one_worker(oom_counter):
    oom_counter(4)
    first, second = out_of_memory.OomWatch(), out_of_memory.OomWatch()
    assert first.explained() is None
    file = oom_counter(5)
    third = out_of_memory.OomWatch()
    assert second.explained() == str(file)
    assert (first.explained(), second.explained(), third.explained()) == (None, None, None)
    oom_counter(6)
    assert third.explained() == str(file)
    file.unlink()
    assert out_of_memory.OomWatch().explained() is None


async def test_a_worker_that_the_oom_killer_has_ended_says_so_and_another_that_it_was_killed_from_outside(oom_counter):
    oom_counter(2)
    async with open_test_device() as dev:
        for kills, words in ((3, "OOM killer, for want of host memory"), (3, "was ended by SIGKILL from outside")):
            file, generation = oom_counter(kills), dev.generation
            async with dev.events() as events:
                testing.kill_worker(dev)
                event = await next_event(events)
            assert words in event.reason
            assert (str(file) in event.reason) is ("OOM" in words)
            await dev.wait_generation(after=generation)


async def test_a_worker_that_is_killed_from_outside_while_it_starts_says_so(oom_counter, monkeypatch):
    def started(self, *arguments: object) -> None:
        begin(self, *arguments)
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        oom_counter(next(counts))

    begin = WorkerProcess.__init__
    monkeypatch.setattr(WorkerProcess, "__init__", started)
    for kills, words in ((0, "was ended by SIGKILL from outside while"), (1, "OOM killer")):
        oom_counter(0)
        counts = iter([kills])
        with pytest.raises(DeviceFailed, match=words):
            async with open_test_device():
                raise AssertionError("the body must not run")


def test_a_killed_worker_is_reaped_and_killing_it_again_is_nothing(backend):
    process = WorkerProcess(backend, 0)
    process.kill()
    wait_for_end(process)
    assert process.reap()
    assert process.end_text() == "was ended by SIGKILL"
    process.kill()
    process.close()
    assert not process_exists(process.pid)


def test_a_worker_whose_device_does_not_exist_says_why(backend):
    process = WorkerProcess(backend, 13)
    process.sock.setblocking(True)
    process.sock.settimeout(30)
    message = json.loads(receive(process.sock)[0])
    assert message["kind"] == "failed"
    assert message["status"] == 101
    wait_for_end(process)
    process.reap()
    process.close()


TELL_MODULES = """
import os, signal, sys

def tell(*_):
    with open({path!r} + ".new", "w") as file:
        file.write("\\n".join(sys.modules))
    os.rename({path!r} + ".new", {path!r})

signal.signal(signal.SIGUSR1, tell)
"""


async def test_a_started_worker_has_neither_trio_nor_the_users_side_in_its_modules(
    open_test_device, backend, tmp_path, monkeypatch
):
    """Asked by a signal that a sitecustomize in its path answers."""
    answer = tmp_path / "modules"
    (tmp_path / "sitecustomize.py").write_text(TELL_MODULES.format(path=str(answer)))
    monkeypatch.syspath_prepend(str(tmp_path))
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            kernel, *_ = await compile_rogue(dev, "touch")
            await kernel.launch(1, 1, dev.zeros(1, np.int32), 1)
            os.kill(worker_pid(dev), signal.SIGUSR1)
            await until(answer.exists)
            modules = set(answer.read_text().split())
            assert dev.generation == 1
    assert "atomr_trio._worker.base.lanes" in modules, "the answer is no worker's"
    strangers = {
        "trio",
        "attrs",
        "attr",
        "outcome",
        "atomr_trio._device",
        "atomr_trio._memory.arena",
        "multiprocessing",
    }
    # The simulated GPU computes with numpy; a real worker has no use for it.
    strangers |= set() if backend == "sim" else {"numpy"}
    strangers -= {"multiprocessing"} if "coverage" in modules else set()  # `make worker-coverage` brings it along
    assert modules & strangers == set()


async def test_a_worker_ignores_what_the_terminal_sends(dev):
    (touch,) = await compile_rogue(dev, "touch")
    x = dev.zeros(1, np.int32)
    with trio.fail_after(DEADLINE):
        for _ in range(3):
            os.kill(worker_pid(dev), signal.SIGINT)
            await touch.launch(1, 1, x, 1)
        assert await x.to_host() == 3
        assert dev.generation == 1
        assert os.getpgid(worker_pid(dev)) != os.getpgid(0), "Ctrl-C goes to the process group of the user alone"


PARENT = """
import sys, trio, numpy as np, atomr_trio, atomr_trio.testing
from support.rogue import compile_rogue

async def main():
    async with atomr_trio.open_device(0, backend={backend!r}) as dev:
        (spin,) = await compile_rogue(dev, "spin")
        word = dev.zeros(1, np.int32)
        await word.to_host()
        if {busy!r}:
            spin.launch_nowait(1, 1, word.address)
        print(atomr_trio.testing.worker_pid(dev), flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


@pytest.mark.parametrize("how", ["idle", "busy", "stopped"])
def test_a_worker_dies_with_a_parent_that_is_killed(backend, how):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(backend=backend, busy=how == "busy")],
        stdout=subprocess.PIPE,
        env=child_environment(),
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        pidfd = os.pidfd_open(worker)
        try:
            if how == "stopped":
                os.kill(worker, signal.SIGSTOP)
            parent.kill()
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            assert poll.poll(20_000), "the worker has outlived its parent"
        finally:
            os.close(pidfd)


def kinds(descriptors: dict[str, str]) -> dict[str, int]:
    """How many there are of each sort."""
    return collections.Counter(target.partition(":[")[0] for target in descriptors.values())


def our_mappings() -> list[str]:
    """What this process has mapped, apart from the code of workers' loops that other tests run in it."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "atomr-trio" in line and "atomr-trio-native" not in line]


async def test_closing_leaves_no_descriptor_no_mapping_and_no_process_behind(open_test_device):
    async def use(lose: bool) -> None:
        async with open_test_device() as dev:
            touch, wild = await compile_rogue(dev, "touch", "wild")
            x = await dev.to_device(np.zeros(3 << 20, np.int32))
            await touch.launch(1, 32, x, 10)
            await x.to_host()
            if lose:
                with pytest.raises(ContextLost):
                    await wild.launch(1, 1, 16)
                await next_generation(dev, 1)
                await x.to_host()
            assert our_mappings()
            assert worker_pid(dev) in children()

    with trio.fail_after(DEADLINE):
        await use(True)
        before, processes = kinds(open_descriptors(collect=True)), children()
        for lose in (False, True, False):
            await use(lose)
            assert kinds(open_descriptors()) == before
            assert children() == processes
            gc.collect()  # a view of the staging area in a dead frame keeps the area mapped
            assert our_mappings() == []


async def test_the_worker_holds_no_descriptor_of_the_user(open_test_device):
    """A file, a socket or a pipe that the program has open must not be kept open by a worker."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    with trio.fail_after(DEADLINE):
        async with open_test_device():
            os.close(writer)
            assert os.read(reader, 1) == b"", "the worker holds the writing end"
    os.close(reader)


async def test_printed_lines_arrive_in_the_log_in_order(open_test_device, caplog):
    caplog.set_level(logging.INFO, "atomr_trio.device")

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "atomr_trio.device"]

    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            (say,) = await compile_rogue(dev, "say")
            for first in range(0, 96, 32):
                await say.launch(1, 32, first)
            await until(lambda: len(lines()) == 96)
            await say.launch(1, 32, 96)
            # The last ones are printed by the closing, if not before.
    assert [line for line in lines() if line.startswith("line")] == [f"line {number}" for number in range(128)]


async def test_what_a_dying_worker_prints_is_in_the_log(dev, caplog):
    caplog.set_level(logging.INFO, "atomr_trio.device")
    with trio.fail_after(DEADLINE):
        os.kill(worker_pid(dev), signal.SIGSEGV)
        await next_generation(dev, 1)
    assert any("Segmentation fault" in record.getMessage() for record in caplog.records)


GARBAGE = (
    b"x",
    bytes(16),
    HEADER.pack(1, 0, 1, 250, 0, 0),
    HEADER.pack(1, 0, 250, 0, 0, 0),
    HEADER.pack(1, 100, 1, 0, 0, 0),
    HEADER.pack(1, 0, 1, 2, 0, 999),
    HEADER.pack(9, 0, 1, 2, 9, 0),
    HEADER.pack(0, protocol.CONTROL_LANE, 0, 77, 0, 0),
    array.array("B", range(256)).tobytes() * 20,
)


async def test_a_garbled_record_costs_the_worker_and_nothing_else(open_test_device):
    async with open_test_device(restart_policy=RestartPolicy(intensity=100)) as dev:
        host = np.arange(1000)
        kept = await dev.to_device(host)
        for number, garbage in enumerate(GARBAGE, 1):
            if garbage == bytes(16):
                garbage = HEADER.pack(1, 0, 0, 0, 0, 0)
            core_of(dev).current.sender.send(garbage)
            with trio.fail_after(DEADLINE):  # each is a new worker, and other tests may be opening theirs
                await next_generation(dev, number)
            assert (await kept.to_host() == host).all()
            assert "exited with status 70" in (dev.statistics().last_error or "")


async def test_the_heartbeat_of_a_busy_worker_goes_on(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(close_timeout=0.1) as dev:
            (spin,) = await compile_rogue(dev, "spin")
            word = dev.zeros(1, np.int32)
            await word.to_host()
            spin.launch_nowait(1, 1, word.address)
            beats = core_of(dev).current.page.heartbeat()
            await until(lambda: core_of(dev).current.page.heartbeat() >= beats + 5)


def test_starting_a_worker_returns_at_once(backend):
    begun = time.monotonic()
    process = WorkerProcess(backend, 0)
    spent = time.monotonic() - begun
    process.kill()
    wait_for_end(process)
    process.reap()
    process.close()
    assert spent < 5, "it is started, not waited for"


def test_a_parent_that_is_gone_before_the_worker_looks_ends_it_at_once(backend):
    ours, theirs = channel.open_pair()
    base, extent = address_range(0)
    arguments = [str(theirs.fileno()), "1", backend, "0", str(base), str(extent)]
    with ours, theirs:
        command: list[Any] = [sys.executable, "-P", "-m", "atomr_trio._worker.main", *arguments]
        done = subprocess.run(command, pass_fds=[theirs.fileno()], env=child_environment(), timeout=30, check=False)
    assert done.returncode == 71
