"""One generation, with a worker that the test plays itself: what is sent, in which order, and how commands settle."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Iterator

import numpy as np
import pytest
import trio
import trio.testing

from atomr_trio._generation import adoption as _adoption, generation as _generation
from atomr_trio._generation.adoption import reap
from atomr_trio._generation.generation import Generation
from atomr_trio._generation.life import TRANSITIONS, Event, Life, State
from atomr_trio._generation.loss import Loss, LossKind, StartFailed
from atomr_trio._generation.timeline import Command
from atomr_trio._memory.arena import Chunk, ChunkState, Recipe
from atomr_trio._supervision.mailbox import Request
from atomr_trio._values.errors import (
    ActorCrashed,
    AtomrInternalError,
    CommandFailed,
    DeviceError,
    InvalidArgument,
    OutOfDeviceMemory,
    StaleArray,
)
from atomr_trio._wire import channel
from atomr_trio._wire.protocol import (
    ENGINE_BUG,
    LANE_COMPUTE,
    LANE_COPY_IN,
    LANE_COPY_OUT,
    LANE_LIMIT,
    Role,
    counter_word,
)
from atomr_trio._wire.records.context import MAP_CHUNK, SERVE, UNMAP_CHUNK
from atomr_trio._wire.records.memory import COPY_IN, COPY_OUT, CREATE_CHUNK, FILL, RELEASE_CHUNK
from atomr_trio._wire.records.module import LAUNCH, LOAD
from atomr_trio._wire.status import StatusClass, classify
from support import set_constant
from support.descriptors import open_descriptors
from support.rogue import compile_rogue, endless_kernel, until
from support.stage import Owner, Stage

MIB = 1 << 20


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()


# --- order ------------------------------------------------------------------------------------------------------------


def test_copy_in_launch_and_copy_out_of_one_array_wait_for_each_other(stage):
    block = stage.ready_block()
    stage.publish(LANE_COPY_IN, COPY_IN, (block, Role.OVERWRITE))
    stage.publish(LANE_COMPUTE, LAUNCH, (block, Role.WRITE))
    stage.publish(LANE_COPY_OUT, COPY_OUT, (block, Role.READ))
    stage.publish(LANE_COPY_IN, COPY_IN, (block, Role.OVERWRITE))
    copy_in, launch, copy_out, again = stage.records()
    assert (copy_in.ticket, launch.ticket, copy_out.ticket, again.ticket) == (1, 1, 1, 2)
    assert copy_in.waits == set()
    assert launch.waits == {(LANE_COPY_IN, 1, False)}
    assert copy_out.waits == {(LANE_COMPUTE, 1, False)}
    assert again.waits == {(LANE_COMPUTE, 1, False), (LANE_COPY_OUT, 1, False)}


def test_commands_on_different_arrays_wait_for_nothing(stage):
    for lane in (LANE_COPY_IN, LANE_COMPUTE, LANE_COPY_OUT):
        stage.publish(lane, COPY_IN, (stage.ready_block(), Role.WRITE))
    assert [record.waits for record in stage.records()] == [set(), set(), set()]


def test_commands_that_only_read_one_array_do_not_wait_for_each_other(stage):
    block = stage.ready_block()
    stage.publish(LANE_COMPUTE, LAUNCH, (block, Role.READ))
    stage.publish(LANE_COPY_OUT, COPY_OUT, (block, Role.READ))
    assert [record.waits for record in stage.records()] == [set(), set()]


def test_what_is_finished_already_is_not_waited_for(stage):
    block = stage.ready_block()
    owner = stage.publish(LANE_COPY_IN, COPY_IN, (block, Role.OVERWRITE))
    stage.finish(LANE_COPY_IN, 1)
    assert owner.heard == [("value", None)]
    stage.publish(LANE_COMPUTE, LAUNCH, (block, Role.WRITE))
    assert stage.records()[-1].waits == set()


def test_the_next_owner_of_freed_memory_waits_for_what_still_runs_on_it(stage):
    block = stage.ready_block()
    stage.publish(LANE_COMPUTE, LAUNCH, (block, Role.WRITE))
    stage.arena.free(block)
    heir = stage.ready_block()
    assert heir.address == block.address
    stage.publish(LANE_COPY_IN, COPY_IN, (heir, Role.OVERWRITE))
    assert stage.records()[-1].waits == {(LANE_COMPUTE, 1, False)}


def test_records_that_the_socket_has_no_room_for_arrive_later_and_in_order(stage):
    stage.process.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    owners = [stage.publish(LANE_COMPUTE, LAUNCH) for _ in range(300)]
    sent = [record.ticket for record in stage.records()]
    assert len(sent) < 300, "the socket was meant to be full"

    async def drain() -> None:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stage.generation.sender.run)
                while len(sent) < 300:
                    await trio.lowlevel.wait_readable(stage.process.worker_end)
                    sent.extend(record.ticket for record in stage.records())
                nursery.cancel_scope.cancel()

    trio.run(drain)
    assert sent == list(range(1, 301))
    assert all(owner.heard == [] for owner in owners)


def test_a_worker_that_is_gone_swallows_records_until_its_end_is_noticed(stage):
    stage.process.worker_end.close()
    owner = stage.publish(LANE_COMPUTE, LAUNCH)
    assert owner.heard == []
    stage.lose()
    assert [kind for kind, _ in owner.heard] == ["lost"]


# --- chunks and recipes -----------------------------------------------------------------------------------------------


def test_the_first_use_of_a_chunk_brings_its_creation_along_and_requires_it(stage):
    block = stage.arena.allocate(100)
    stage.publish(LANE_COPY_IN, COPY_IN, (block, Role.OVERWRITE))
    create, copy = stage.records()
    assert create.verb is CREATE_CHUNK
    assert CREATE_CHUNK.struct.unpack(create.payload) == (block.chunk.address, block.chunk.size)
    assert copy.waits == {(LANE_COMPUTE, create.ticket, True)}
    stage.publish(LANE_COPY_OUT, COPY_OUT, (block, Role.READ))
    (out,) = stage.records()
    assert out.waits == {(LANE_COMPUTE, create.ticket, True), (LANE_COPY_IN, 1, False)}


def test_zeros_are_written_by_a_fill_before_the_first_command_that_does_not_overwrite_them(stage):
    block = stage.ready_block()
    block.recipe = Recipe(4, 16, b"\0" * 4)
    stage.publish(LANE_COPY_OUT, COPY_OUT, (block, Role.READ))
    fill, copy = stage.records()
    assert fill.verb is FILL
    assert (LANE_COMPUTE, fill.ticket) in {(lane, ticket) for lane, ticket, _ in copy.waits}
    stage.publish(LANE_COPY_OUT, COPY_OUT, (block, Role.READ))
    assert [record.verb for record in stage.records()] == [COPY_OUT], "filled once"


def test_zeros_that_are_overwritten_whole_are_never_filled(stage):
    block = stage.ready_block()
    block.recipe = Recipe(4, 16, b"\0" * 4)
    stage.publish(LANE_COPY_IN, COPY_IN, (block, Role.OVERWRITE))
    assert [record.verb for record in stage.records()] == [COPY_IN]


def test_a_chunk_that_cannot_be_made_fails_its_requests_and_the_next_one_tries_again(stage):
    block = stage.arena.allocate(100)
    owner = stage.publish(LANE_COPY_IN, COPY_IN, (block, Role.OVERWRITE))
    create, copy = stage.records()
    stage.fail(LANE_COMPUTE, create.ticket, 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")
    stage.fail(LANE_COPY_IN, copy.ticket, 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")
    stage.finish(LANE_COMPUTE, create.ticket)
    stage.finish(LANE_COPY_IN, copy.ticket)
    assert isinstance(owner.error, OutOfDeviceMemory)
    assert owner.error.status == 2
    assert block.chunk.state is ChunkState.PLANNED
    owner = stage.publish(LANE_COPY_IN, COPY_IN, (block, Role.OVERWRITE))
    create, copy = stage.records()
    assert create.verb is CREATE_CHUNK
    stage.finish(LANE_COMPUTE, create.ticket)
    stage.finish(LANE_COPY_IN, copy.ticket)
    assert owner.heard == [("value", None)]
    assert block.chunk.state is ChunkState.READY


def test_a_failed_fill_leaves_its_recipe_for_the_next_use(stage):
    block = stage.ready_block()
    block.recipe = Recipe(4, 16, b"\0" * 4)
    stage.publish(LANE_COMPUTE, LAUNCH, (block, Role.READ))
    fill, launch = stage.records()
    assert (LANE_COMPUTE, fill.ticket, True) in launch.waits, "memory that was not filled is not worked on"
    stage.fail(LANE_COMPUTE, fill.ticket, 1)
    stage.finish(LANE_COMPUTE, fill.ticket)
    stage.publish(LANE_COMPUTE, LAUNCH, (block, Role.READ))
    again, _ = stage.records()
    assert (again.verb, again.payload) == (FILL, fill.payload)


def test_the_descriptor_of_a_new_chunk_is_kept_even_if_the_worker_dies_before_its_ticket(stage):
    block = stage.arena.allocate(100)
    stage.publish(LANE_COPY_IN, COPY_IN, (block, Role.OVERWRITE))
    descriptor = os.memfd_create("atomr-test-chunk")
    stage.tell({"kind": "chunk", "address": block.chunk.address}, [descriptor])
    os.close(descriptor)
    stage.lose()
    stage.arena.generation_lost(durable=True, strict=False, number=3)
    assert block.chunk.descriptor >= 0
    assert block.chunk.state is ChunkState.READY


def test_a_descriptor_for_a_chunk_that_nobody_has_is_closed(stage):
    reader, writer = os.pipe()
    stage.tell({"kind": "chunk", "address": 12345}, [writer])
    os.close(writer)
    stage.generation.inbox.drain()
    assert os.read(reader, 1) == b"", "the last writing end was closed"
    os.close(reader)


# --- how commands settle ----------------------------------------------------------------------------------------------


def test_a_failed_command_tells_its_own_owner_alone(stage):
    owners = [stage.publish(LANE_COMPUTE, LAUNCH, operation=f"launch {number}") for number in range(3)]
    stage.fail(LANE_COMPUTE, 2, 701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources")
    stage.finish(LANE_COMPUTE, 3)
    assert owners[0].heard == owners[2].heard == [("value", None)]
    assert isinstance(owners[1].error, CommandFailed)
    assert owners[1].error.status_name == "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
    assert owners[1].error.operation == "launch 1"
    assert (owners[1].error.device, owners[1].error.generation) == (0, 3)
    assert stage.generation.loss is None


def test_a_bug_in_the_workers_engine_is_an_actor_crash(stage):
    owner = stage.publish(LANE_COMPUTE, LAUNCH)
    stage.fail(LANE_COMPUTE, 1, ENGINE_BUG, "ZeroDivisionError", "Traceback: division by zero")
    stage.finish(LANE_COMPUTE, 1)
    assert isinstance(owner.error, ActorCrashed)
    assert "division by zero" in str(owner.error)


def test_the_result_of_a_load_arrives_with_its_ticket(stage):
    owner = stage.publish(LANE_COMPUTE, LOAD)
    stage.tell({"kind": "result", "lane": LANE_COMPUTE, "ticket": 1, "value": {"k": 1}})
    stage.finish(LANE_COMPUTE, 1)
    assert owner.heard == [("value", {"k": 1})]


def test_a_slot_is_clean_when_its_number_comes_round_again(stage):
    first = stage.publish(LANE_COMPUTE, LAUNCH)
    stage.fail(LANE_COMPUTE, 1, 701)
    stage.finish(LANE_COMPUTE, 1)
    assert first.error.status == 701
    for ticket in range(2, 1026):
        owner = stage.publish(LANE_COMPUTE, LAUNCH)
        stage.finish(LANE_COMPUTE, ticket)
        stage.records()
    assert owner.heard == [("value", None)]


def test_commands_whose_ticket_was_reached_before_the_reap_succeed_and_the_rest_is_lost(stage):
    blocks = [stage.ready_block() for _ in range(4)]
    done = stage.publish(LANE_COPY_IN, COPY_IN, (blocks[0], Role.OVERWRITE))
    writing = stage.publish(LANE_COPY_IN, COPY_IN, (blocks[1], Role.WRITE), operation="the copy that was cut off")
    reading = stage.publish(LANE_COMPUTE, LAUNCH, (blocks[2], Role.READ), (blocks[3], Role.OVERWRITE))
    stage.generation.page.words[counter_word(LANE_COPY_IN)] = 1
    stage.lose()
    assert done.heard == [("value", None)]
    assert [kind for kind, _ in writing.heard + reading.heard] == ["lost", "lost"]
    assert [block.state for block in blocks] == ["ready", "torn", "ready", "torn"]
    assert "the copy that was cut off" in blocks[1].torn
    assert "generation 3" in blocks[1].torn
    assert stage.generation.timeline.idle


def test_each_lost_request_gets_an_exception_of_its_own(stage):
    owners = [stage.publish(LANE_COMPUTE, LAUNCH) for _ in range(3)]
    stage.lose()
    errors = [error for owner in owners for _, error in owner.heard]
    assert len({id(error) for error in errors}) == 3


def test_a_torn_array_is_refused_before_anything_is_sent_and_healed_by_overwriting(stage):
    block = stage.ready_block()
    block.torn = "launch of rogue of generation 2"
    for role in (Role.READ, Role.WRITE):
        with pytest.raises(StaleArray, match="launch of rogue of generation 2"):
            stage.publish(LANE_COMPUTE, LAUNCH, (block, role))
    assert stage.records() == []
    stage.publish(LANE_COMPUTE, LAUNCH, (block, Role.OVERWRITE))
    assert block.state == "ready"
    stage.publish(LANE_COPY_OUT, COPY_OUT, (block, Role.READ))


def test_an_overwriting_command_that_failed_has_healed_nothing(stage):
    block = stage.ready_block()
    block.torn = "launch of rogue of generation 2"
    owner = stage.publish(LANE_COMPUTE, LAUNCH, (block, Role.OVERWRITE))
    stage.fail(LANE_COMPUTE, 1, 701)
    stage.finish(LANE_COMPUTE, 1)
    assert isinstance(owner.error, CommandFailed)
    assert block.torn == "launch of rogue of generation 2"


def test_lost_and_freed_arrays_are_refused_even_for_overwriting(stage):
    lost, freed = stage.ready_block(), stage.ready_block()
    lost.lost = "it was not durable"
    stage.arena.free(freed)
    with pytest.raises(StaleArray, match="not durable"):
        stage.publish(LANE_COMPUTE, LAUNCH, (lost, Role.OVERWRITE))
    with pytest.raises(InvalidArgument, match="freed"):
        stage.publish(LANE_COMPUTE, LAUNCH, (freed, Role.OVERWRITE))
    assert stage.records() == []


def test_zeros_whose_fill_was_cut_off_are_zeros_again(stage):
    block = stage.ready_block()
    block.recipe = Recipe(4, 16, b"\0" * 4)
    stage.publish(LANE_COMPUTE, LAUNCH, (block, Role.READ))
    fill, _ = stage.records()
    stage.lose()
    assert block.state == "ready"
    stage.publish(LANE_COMPUTE, LAUNCH, (block, Role.READ))
    again, _ = stage.records()
    assert (again.verb, again.payload) == (FILL, fill.payload)


def test_zeros_that_a_kernel_was_writing_are_torn_though_their_fill_was_cut_off_too(stage):
    block = stage.ready_block()
    block.recipe = Recipe(4, 16, b"\0" * 4)
    stage.publish(LANE_COMPUTE, LAUNCH, (block, Role.WRITE), operation="launch of rogue")
    stage.lose()
    assert "launch of rogue" in block.torn
    assert block.recipe is not None, "which the next overwriting command drops"


# --- limits -----------------------------------------------------------------------------------------------------------


async def test_a_full_lane_makes_the_actor_wait_and_other_lanes_go_on(stage):
    for _ in range(LANE_LIMIT):
        stage.publish(LANE_COMPUTE, LAUNCH)
    admitted = trio.Event()

    async def wait_for_room() -> None:
        await stage.generation.admission.admit(Request("work", LANE_COMPUTE))
        admitted.set()

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_room)
            await stage.generation.admission.admit(Request("copy", LANE_COPY_IN))
            await trio.testing.wait_all_tasks_blocked()
            assert not admitted.is_set()
            assert stage.generation.admission.waiting(LANE_COMPUTE) == 1
            stage.finish(LANE_COMPUTE, 1)
            await admitted.wait()
    assert stage.generation.admission.waiting(LANE_COMPUTE) == 0


async def test_a_generation_that_is_lost_admits_nothing_any_more(stage):
    stage.generation.lose(Loss(LossKind.EXIT, "gone", "the reader"))
    with trio.move_on_after(0.05) as scope:
        await stage.generation.admission.admit(Request("work", LANE_COMPUTE))
    assert scope.cancelled_caught


def test_only_the_first_reason_of_a_loss_counts(stage):
    stage.generation.lose(Loss(LossKind.FAULT, "an illegal address", "the driver", status=700))
    stage.generation.lose(Loss(LossKind.EXIT, "the worker ended", "the system"))
    assert stage.generation.loss.reason == "an illegal address"
    assert stage.generation.scope.cancel_called


def test_a_copy_that_needs_a_chunk_behind_a_slow_kernel_does_not_hang(stage):
    """The ticket of the chunk's creation is reached behind the kernel: that is no time of the copy's own."""
    stage.publish(LANE_COMPUTE, LAUNCH, operation="a slow kernel")
    block = stage.arena.allocate(100)
    stage.publish(LANE_COPY_IN, COPY_IN, (block, Role.OVERWRITE), operation="a copy")
    timeline = stage.generation.timeline
    stage.generation.settler.settle_finished()
    timeline.overdue(100.0, 1.0)
    stage.finish(LANE_COMPUTE, 1)
    assert timeline.overdue(100.9, 1.0) is None
    assert timeline.overdue(101.5, 1.0) is None, "neither the copy nor the creation has had its second"


async def test_the_settler_is_woken_by_the_workers_descriptor(stage):
    owner = stage.publish(LANE_COMPUTE, LAUNCH)
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.generation.settler.run)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert owner.heard == []
            stage.generation.page.words[counter_word(LANE_COMPUTE)] = 1
            os.eventfd_write(stage.generation._wake, 1)
            while not owner.heard:
                await trio.lowlevel.checkpoint()
            await stage.generation.settler.wait_idle()
            nursery.cancel_scope.cancel()
    assert owner.heard == [("value", None)]


async def test_the_settler_is_woken_when_another_task_has_settled_the_last_command(stage):
    """As the watch does. Otherwise it would sleep until the next ticket, and the next caller could not poll for it."""
    owner, settler = stage.publish(LANE_COMPUTE, LAUNCH), stage.generation.settler
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(settler.run)
            await trio.testing.wait_all_tasks_blocked(0.01)
            stage.generation.page.words[counter_word(LANE_COMPUTE)] = 1
            assert settler.settle_finished()
            assert owner.heard == [("value", None)]
            while not settler.begin_looking():
                await trio.testing.wait_all_tasks_blocked(0.01)
            settler.end_looking()
            nursery.cancel_scope.cancel()


async def test_probes_of_two_actors_at_once_are_both_answered(stage):
    answered = []

    async def probe(name: str) -> None:
        await stage.generation.inbox.probe()
        answered.append(name)

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(probe, "one")
            nursery.start_soon(probe, "two")
            await trio.testing.wait_all_tasks_blocked()
            stage.tell({"kind": "probed"})
            stage.tell({"kind": "probed"})
            stage.generation.inbox.drain()
    assert sorted(answered) == ["one", "two"]


# --- messages and starts ----------------------------------------------------------------------------------------------


def test_a_fault_report_is_a_loss_with_everything_the_worker_said(stage):
    stage.tell(
        {
            "kind": "lost",
            "status": 700,
            "class": "poisons",
            "name": "CUDA_ERROR_ILLEGAL_ADDRESS",
            "text": "an illegal memory access",
        }
        | {"library": "cuda", "operation": "stream query"}
    )
    stage.generation.inbox.drain()
    loss = stage.generation.loss
    assert (loss.kind, loss.status, loss.gone) == (LossKind.FAULT, 700, False)
    error = loss.error(0, 3)
    assert (error.status, error.status_name, error.generation) == (700, "CUDA_ERROR_ILLEGAL_ADDRESS", 3)
    assert error.reason == "an illegal memory access"


def test_hardware_that_is_gone_is_a_loss_that_no_restart_helps(stage):
    assert Loss(LossKind.FAULT, "ecc", "the driver", status=214, status_class=StatusClass.GONE).gone
    assert not Loss(LossKind.FAULT, "trap", "the driver", status=719, status_class=StatusClass.POISONS).gone
    assert not Loss(LossKind.EXIT, "killed", "the system").gone


@pytest.mark.parametrize(
    ("message", "gone"),
    [
        (
            {
                "text": "no device",
                "type": "CudaError",
                "status": 100,
                "class": "gone",
                "library": "cuda",
                "function": "cuInit",
            },
            True,
        ),
        ({"text": "no memory", "type": "CudaError", "status": 2, "class": "out of memory", "library": "cuda"}, False),
        ({"text": "no libcuda", "type": "LibraryMissing", "looked": ["/here", "/there"]}, True),
        ({"text": "the range is taken", "type": "StartFailed"}, False),
    ],
)
def test_a_worker_that_cannot_start_says_why_and_whether_trying_again_helps(stage, message, gone):
    stage.tell({"kind": "failed", **message})
    with pytest.raises(StartFailed) as caught:
        stage.generation.inbox.drain()
    assert caught.value.gone is gone
    assert message["text"] in str(caught.value.error)
    for place in message.get("looked", ()):
        assert place in str(caught.value.error)


def test_the_printed_lines_of_a_worker_are_logged_one_by_one_and_whole(stage, caplog):
    caplog.set_level("INFO", "atomr_trio.device")
    for piece in (b"first\nsec", b"ond\n\xff broken\n", b"no newline at the end"):
        os.write(stage.process.output_end, piece)
        assert stage.generation.output.turn()
    assert [record.getMessage() for record in caplog.records] == ["first", "second", "\ufffd broken"]
    os.close(stage.process.output_end)
    assert not stage.generation.output.turn()
    stage.process.output_end = os.open("/dev/null", os.O_RDONLY)
    assert caplog.records[-1].getMessage() == "no newline at the end"
    assert {(record.device, record.generation) for record in caplog.records} == {(0, 3)}


@pytest.mark.parametrize("garbage", [b"\x80\x04N.", b"[]", b"{}", b'{"kind": "nonsense"}', b'{"kind": "probed"}'])
def test_a_message_that_makes_no_sense_costs_the_worker_and_nothing_is_unpickled(stage, garbage):
    stage.process.worker_end.send(garbage)
    stage.generation.inbox.drain()
    assert stage.generation.loss.kind is LossKind.EXIT
    assert "cannot be read" in stage.generation.loss.reason


async def test_a_worker_that_ends_while_it_starts_is_told_with_its_last_words(stage):
    os.write(stage.process.output_end, b"Fatal Python error\n")
    stage.process.worker_end.close()
    with pytest.raises(StartFailed, match="exited with status 70 while it started; its last words: Fatal Python error"):
        await stage.generation.start()


async def test_a_worker_that_goes_away_before_it_is_handed_anything_is_a_failed_start(stage):
    stage.tell({"kind": "hello"})
    stage.generation.inbox.drain()
    stage.process.worker_end.close()
    with pytest.raises(StartFailed, match="the worker exited with status 70 while it started"):
        await stage.generation.start()


async def test_a_worker_that_says_nothing_is_a_failed_start(stage, monkeypatch):
    set_constant(monkeypatch, _adoption, "START_TIMEOUT", 0.02)
    with pytest.raises(StartFailed, match=r"the worker was not ready within 0\.02 s"):
        await stage.generation.start()


@pytest.mark.parametrize(("status", "gone"), [(719, False), (214, True)])
async def test_a_context_that_is_lost_in_the_self_test_is_a_failed_start(stage, status, gone):
    told = {
        "kind": "lost",
        "status": status,
        "class": classify(status).value,
        "name": "CUDA_ERROR",
        "text": "the first kernel trapped",
    }
    stage.tell({"kind": "hello"})
    stage.tell({**told, "library": "cuda", "operation": "self-test"})
    with pytest.raises(StartFailed) as caught:
        await stage.generation.start()
    assert (caught.value.gone, caught.value.error.status) == (gone, status)
    assert "the first kernel trapped" in str(caught.value.error)


def test_without_room_for_a_page_there_is_no_generation_and_no_descriptor_is_left(stage, monkeypatch):
    def no_room() -> None:
        raise OSError(errno.EMFILE, "too many open files")

    before = open_descriptors(collect=True)
    monkeypatch.setattr(_generation.TimelinePage, "new", no_room)
    with pytest.raises(OSError, match="too many"):
        Generation(0, 4, stage.process, stage.arena, stage.staging, None)
    assert open_descriptors() == before


def test_the_arena_is_not_used_before_the_first_worker_has_told_its_size(stage):
    first = Generation(0, 1, stage.process, None, stage.staging, None)
    with pytest.raises(AssertionError, match="before the first worker is ready"):
        first.arena
    first.let_worker_go()
    first.let_worker_go()


def test_a_generation_says_how_it_is(stage):
    assert repr(stage.generation) == "<Generation 3 of device 0, worker 0, running>"
    stage.generation.lose(Loss(LossKind.EXIT, "it was killed", "the system"))
    assert repr(stage.generation) == "<Generation 3 of device 0, worker 0, lost: it was killed>"


def test_a_status_that_came_without_a_message_is_told_by_its_number(stage):
    owner = stage.publish(LANE_COMPUTE, LAUNCH, (stage.ready_block(), Role.WRITE))
    stage.generation.page.set_status(LANE_COMPUTE, 1, 1)
    stage.finish(LANE_COMPUTE, 1)
    assert isinstance(owner.error, CommandFailed)
    assert "the worker did not say why" in str(owner.error)
    assert owner.error.status == 1


# --- what cannot be sent ----------------------------------------------------------------------------------------------


def test_a_command_that_waits_for_too_many_others_is_refused(stage):
    with pytest.raises(CommandFailed, match="cannot wait for 1000 others"):
        stage.publish(LANE_COMPUTE, LAUNCH, requires=range(1, 1001))
    assert stage.records() == []


def test_nothing_is_let_through_to_memory_that_a_lost_worker_may_still_write(stage):
    block = stage.ready_block()
    stage.publish(LANE_COMPUTE, LAUNCH, (block, Role.WRITE))
    stage.arena.begin_quarantine(3, (0,) * 8)
    with pytest.raises(AtomrInternalError, match="memory that a lost worker may still write"):
        stage.publish(LANE_COMPUTE, LAUNCH, (block, Role.READ))
    stage.arena.end_quarantine(3)
    stage.publish(LANE_COMPUTE, LAUNCH, (block, Role.READ))


def test_a_record_that_the_system_does_not_send_costs_the_generation(stage):
    """It has a ticket already."""
    owner = Owner()
    stage.generation.publish(LANE_COMPUTE, LAUNCH, bytes(1 << 22), (), owner)
    assert stage.generation.loss.kind is LossKind.EXIT
    assert "could not be sent to the worker: [Errno 90] Message too long" in stage.generation.loss.reason
    stage.lose()
    assert [kind for kind, _ in owner.heard] == ["lost"]


async def test_the_writer_ends_with_the_worker_whose_exit_tells_the_rest(stage):
    while not stage.generation.sender.outbox:
        stage.publish(LANE_COMPUTE, LAUNCH)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.generation.sender.run)
        await trio.testing.wait_all_tasks_blocked()
        stage.process.worker_end.close()
    assert stage.generation.loss is None


async def test_a_request_without_a_lane_waits_for_a_generation_that_takes_it(stage):
    stage.generation.lose(Loss(LossKind.EXIT, "it was killed", "the system"))
    with trio.move_on_after(0) as scope:
        await stage.generation.admission.admit(Request("nvrtc.compile", lane=None))
    assert scope.cancelled_caught
    assert [stage.generation.admission.waiting(lane) for lane in range(3)] == [0, 0, 0]


# --- as a standby -----------------------------------------------------------------------------------------------------


def test_a_standby_maps_one_chunk_at_an_address_and_lets_go_of_what_it_has(stage):
    standby, base = stage.generation, stage.arena.base
    old, new, elsewhere = Chunk(base, 4 * MIB), Chunk(base + 2 * MIB, 4 * MIB), Chunk(base + 8 * MIB, 2 * MIB)
    for chunk in (old, elsewhere, new):
        chunk.descriptor = os.open("/dev/null", os.O_RDONLY)
        standby.chunks.mirror(chunk)
    standby.chunks.unmirror(old)
    told = [(record.verb, int.from_bytes(record.payload[:8], "little")) for record in stage.records()]
    assert told == [
        (MAP_CHUNK, old.address),
        (MAP_CHUNK, elsewhere.address),
        (UNMAP_CHUNK, old.address),
        (MAP_CHUNK, new.address),
    ]
    stage.arena.chunks.append(new)
    standby.take_over(9)
    assert [(record.verb, record.payload) for record in stage.records()] == [
        (SERVE, b""),
        (UNMAP_CHUNK, UNMAP_CHUNK.struct.pack(elsewhere.address)),
    ]
    assert standby.number == 9
    old.close()
    elsewhere.close()


# --- the end of a worker ----------------------------------------------------------------------------------------------


def test_an_owner_that_fails_does_not_keep_the_others_from_their_answers(stage, caplog):
    class Broken(Owner):
        def command_lost(self, command: Command, error: DeviceError) -> None:
            raise RuntimeError("a defect of ours")

    stage.generation.publish(LANE_COMPUTE, LAUNCH, b"", (), Broken())
    owner = stage.publish(LANE_COMPUTE, LAUNCH)
    stage.lose()
    assert [kind for kind, _ in owner.heard] == ["lost"]
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]


def test_a_chunk_whose_release_was_lost_is_closed_all_the_same(stage):
    chunk = Chunk(stage.arena.base + 64 * MIB, 2 * MIB)
    chunk.descriptor = os.open("/dev/null", os.O_RDONLY)
    stage.arena.retired.append(chunk)
    stage.publish(LANE_COMPUTE, LAUNCH, (stage.arena.allocate(512), Role.WRITE))
    assert stage.records()[0].verb is RELEASE_CHUNK
    stage.lose()
    assert chunk.descriptor == -1


@pytest.mark.parametrize("end", ["failed", "lost", "channel"])
async def test_a_worker_that_does_not_greet_again_is_not_reset(stage, end):
    stage.tell({"kind": "hello"})
    stage.generation.inbox.drain()
    stage.generation.adoption.hand_over()
    if end == "channel":
        stage.process.worker_end.close()
    else:
        more = {
            "status": 719,
            "class": "poisons",
            "name": "CUDA_ERROR",
            "text": "no",
            "library": "cuda",
            "operation": "reset",
        }
        stage.tell({"kind": end, **more})
    assert not await stage.generation.adoption.reset(time.monotonic() + 10)


async def test_a_worker_that_the_system_does_not_reap_is_a_defect(stage, monkeypatch):
    """In a driver that hangs, for example."""
    set_constant(monkeypatch, _adoption, "REAP_TIMEOUT", 0.01)
    monkeypatch.setattr(stage.process, "reap", lambda: False)
    silent, other = os.pipe()
    monkeypatch.setattr(stage.process, "pidfd", silent, raising=False)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, silent)
        stack.callback(os.close, other)
        with pytest.raises(AtomrInternalError, match=r"killed and not reaped within 0\.01 s"):
            await reap(stage.process)


# --- with a real worker -----------------------------------------------------------------------------------------------


async def test_seven_hundred_launches_behind_an_endless_kernel_do_not_hold_up_a_copy(dev):
    """The lane takes 512 commands, the mailbox holds the next 256, and copies have lanes of their own."""
    (touch,) = await compile_rogue(dev, "touch")
    touched = dev.zeros(1, np.int32)
    host = np.arange(1000)
    with trio.fail_after(60):
        array = await dev.to_device(host)
        async with endless_kernel(dev) as kernel, trio.open_nursery() as nursery:
            for _ in range(700):
                nursery.start_soon(touch.launch, 1, 1, touched, 1)
            await until(lambda: dev.statistics().lanes[LANE_COMPUTE].waiting)
            assert dev.statistics().lanes[LANE_COMPUTE].unfinished >= LANE_LIMIT
            assert (await array.to_host() == host).all()
            await array.copy_from(host + 1)
            assert (await array.to_host() == host + 1).all()
            assert dev.statistics().lanes[LANE_COMPUTE].unfinished >= LANE_LIMIT
            await kernel.end()
        assert await touched.to_host() == 700
        assert dev.generation == 1


async def test_copies_and_launches_of_one_array_take_effect_in_the_order_of_their_calls(dev):
    (touch,) = await compile_rogue(dev, "touch")
    seen = []
    with trio.fail_after(30):
        array = await dev.to_device(np.zeros(1000, np.int32))
        async with endless_kernel(dev, array) as kernel, trio.open_nursery() as nursery:
            # Everything below waits for the endless kernel, across three lanes; nothing may overtake.
            for _ in range(5):
                touch.launch_nowait(8, 128, array, array.size)

                async def read() -> None:
                    seen.append((await array.to_host()).tolist())

                before = dev.statistics().lanes[LANE_COPY_OUT].submitted
                nursery.start_soon(read)
                await until(lambda was=before: dev.statistics().lanes[LANE_COPY_OUT].submitted > was)
                touch.launch_nowait(8, 128, array, array.size)
            assert seen == []
            await kernel.end()
        assert sorted(values[0] for values in seen) == [1, 3, 5, 7, 9]
        assert all(len(set(values)) == 1 for values in seen), "a copy saw half a launch"
        assert set((await array.to_host()).tolist()) == {10}


# --- checked first, committed afterwards ------------------------------------------------------------------------------


def test_what_is_checked_leaves_no_trace_until_it_is_committed(stage):
    block, owner, order = stage.ready_block(), Owner(), stage.generation.order
    checked = order.check(LANE_COMPUTE, LAUNCH, b"", ((block, Role.WRITE),), owner)
    assert stage.generation.timeline.idle
    assert (block.writer, stage.generation.sender.sent) == (None, 0)
    command = order.commit(checked)
    assert (block.writer, command.ticket, stage.generation.sender.sent) == ((LANE_COMPUTE, 1), 1, 1)


def test_two_commands_that_were_checked_together_are_in_the_order_of_their_commit(stage):
    block, order = stage.ready_block(), stage.generation.order
    first, second = (
        order.check(lane, verb, b"", ((block, Role.WRITE),), Owner())
        for lane, verb in ((LANE_COMPUTE, LAUNCH), (LANE_COPY_IN, COPY_IN))
    )
    assert order.commit(second).waits == ()
    assert order.commit(first).waits == ((LANE_COPY_IN, 1),)


def test_a_command_that_was_checked_and_is_withdrawn_keeps_no_descriptor(stage):
    reader, writer = os.pipe()
    checked = stage.generation.order.check(LANE_COMPUTE, LOAD, b"", (), Owner(), descriptors=(writer,))
    os.close(writer)
    os.set_blocking(reader, False)
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    checked.withdraw()
    assert os.read(reader, 1) == b""  # the copy was the last one that could write
    os.close(reader)
    assert stage.generation.timeline.idle


def test_a_command_whose_block_is_torn_is_refused_by_the_check(stage):
    block = stage.ready_block()
    block.tear("a test did it")
    with pytest.raises(StaleArray, match="a test did it"):
        stage.generation.order.check(LANE_COMPUTE, LAUNCH, b"", ((block, Role.WRITE),), Owner())


# --- its states -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_a_generation_changes_its_state_as_the_table_says_and_not_otherwise(state, event):
    life = Life(0, 1, greeted=False)
    life.state = state
    following = TRANSITIONS[state].get(event)
    if following is None:
        with pytest.raises(ValueError, match=f"event {event.name} is not legal in state {state.name}"):
            life.move(event)
        assert life.state is state
    else:
        life.move(event)
        assert life.state is following


def test_every_state_of_a_generation_is_reached_and_ends():
    reached, ahead = set(), [State.SPAWNED]
    while ahead:
        state = ahead.pop()
        if state not in reached:
            reached.add(state)
            ahead += TRANSITIONS[state].values()
    assert reached == set(State)
    assert all(TRANSITIONS[state][Event.RELEASED] is State.RELEASED for state in State)


def test_a_worker_that_greets_twice_is_not_believed_any_more(stage):
    for _ in range(2):
        channel.send_message(stage.process.worker_end, {"kind": "hello"})
    stage.generation.inbox.drain()
    assert stage.generation.loss is not None
    assert "cannot be read" in stage.generation.loss.reason
