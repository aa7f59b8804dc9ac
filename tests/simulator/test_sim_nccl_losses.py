"""The simulated NCCL: how communicators begin and end, ranks that are missing or gone, and calls that do not match."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.sim_ranks import Ranks

pytestmark = pytest.mark.sim_only

NOT_READY, ILLEGAL_ADDRESS, LAUNCH_FAILED = 600, 700, 719
IN_PROGRESS = 7


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Two processes that stay; a test makes its own communicator."""
    with Ranks(2) as started:
        yield started


# The beginning --------------------------------------------------------------------------------------------------------


def test_an_init_blocks_until_all_ranks_have_come(ranks: Ranks):
    [[words]] = ranks.run("tell(new_id())", [0])
    ranks.run(f"""
begun = thread(lambda: globals().update(comm=joined({words!r})))
""", [0])  # fmt: skip
    assert ranks.run("tell(begun.is_alive())", [0]) == [[True]]
    ranks.run(f"comm = joined({words!r})", [1])
    assert ranks.run("begun.join(); tell(number(ncclCommUserRank, comm))", [0]) == [[0]]


def test_an_init_that_blocks_ends_when_another_thread_aborts_its_handle(ranks: Ranks):
    [[words]] = ranks.run("tell(new_id())", [0])
    [[alive, aborted, ends, handle, again]] = ranks.run(f"""
early, ends, words = c_void_p(), [], ncclUniqueId.from_buffer_copy(bytes.fromhex({words!r}))
begun = thread(lambda: ends.append(ncclCommInitRank.status(early, 2, words, 0)))
until(lambda: early.value)
tell(begun.is_alive(), ncclCommAbort.status(early))
begun.join()
tell(ends, early.value, ncclCommAbort.status(early))
""", [0])  # fmt: skip
    assert (alive, aborted, handle, again) == (True, 0, None, 0)
    assert ends in ([2], [3]), "it may be connecting still, or wait for the others already"


def test_an_id_serves_once(ranks: Ranks):
    [[words]] = ranks.run("tell(new_id())", [0])
    assert ranks.run(f"comm = joined({words!r})") == [[], []]
    again = f"ncclCommInitRank.status(c_void_p(), 2, ncclUniqueId.from_buffer_copy(bytes.fromhex({words!r})), 1)"
    assert ranks.run(f"until(lambda: {again} == 2); tell({again})", [1]) == [[2]], "a system error: nobody listens"


def test_another_number_of_ranks_and_a_rank_that_has_come_are_refused(ranks: Ranks):
    [[words]] = ranks.run("tell(new_id())", [0])
    assert ranks.run(f"""
from atomr_sim.libraries.nccl import meeting
came = meeting.join(bytes.fromhex({words!r}), 0, 2)
words = ncclUniqueId.from_buffer_copy(bytes.fromhex({words!r}))
tell(*(ncclCommInitRank.status(c_void_p(), ranks, words, rank) for ranks, rank in ((3, 1), (2, 0))))
""", [1]) == [[4, 4]]  # fmt: skip


def test_an_init_that_does_not_block_can_be_aborted_while_a_rank_is_missing(ranks: Ranks):
    [[words]] = ranks.run("tell(new_id())", [0])
    assert ranks.run(f"""
config, early = new_config(22809), c_void_p()
config.blocking = 0
words = ncclUniqueId.from_buffer_copy(bytes.fromhex({words!r}))
tell(ncclCommInitRankConfig.status(early, 2, words, 0, byref(config)))
tell(number(ncclCommGetAsyncError, early), ncclAllReduce.status(None, None, 1, 2, 0, early, STREAM))
tell(ncclCommAbort.status(early), ncclCommAbort.status(early))
""", [0]) == [[IN_PROGRESS, IN_PROGRESS, 4, 0, 4]]  # fmt: skip


def test_an_init_that_does_not_block_says_when_all_have_come(ranks: Ranks):
    [[words]] = ranks.run("tell(new_id())", [1])
    assert ranks.run(f"""
config, comm = new_config(22809), c_void_p()
config.blocking = 0
words = ncclUniqueId.from_buffer_copy(bytes.fromhex({words!r}))
ncclCommInitRankConfig.status(comm, 2, words, RANK, byref(config))
until(lambda: number(ncclCommGetAsyncError, comm) != 7)
x = device([RANK + 1], np.int32)
ncclAllReduce(x, x, 1, 2, 0, comm, STREAM)
tell(number(ncclCommGetAsyncError, comm), finish(), host(x, 1, np.int32).tolist())
ncclCommDestroy(comm)
""") == [[0, 0, [3]]] * 2  # fmt: skip


@pytest.mark.parametrize(("hosts", "status"), [("same", 5), ("other", 0)])
def test_two_ranks_on_one_device_are_refused_unless_they_are_on_different_hosts(ranks: Ranks, hosts: str, status: int):
    [[words]] = ranks.run("tell(new_id())", [0])
    answers = ranks.run(f"""
context = c_void_p()
cuDevicePrimaryCtxRetain(context, 0)
cuCtxSetCurrent(context)
if {hosts!r} == "other":
    os.environ["NCCL_HOSTID"] = str(RANK)
comm = c_void_p()
tell(ncclCommInitRank.status(comm, 2, ncclUniqueId.from_buffer_copy(bytes.fromhex({words!r})), RANK))
os.environ.pop("NCCL_HOSTID", None)
ncclCommAbort(comm)
cuDevicePrimaryCtxRetain(context, RANK)
cuCtxSetCurrent(context)
""")  # fmt: skip
    assert answers == [[status]] * 2


def test_without_a_context_there_is_no_communicator(ranks: Ranks):
    [[words]] = ranks.run("tell(new_id())", [0])
    assert ranks.run(f"""
words = ncclUniqueId.from_buffer_copy(bytes.fromhex({words!r}))
bare = threading.Thread(target=lambda: tell(ncclCommInitRank.status(c_void_p(), 1, words, 0)))
bare.start()
bare.join()
""", [0]) == [[1]]  # fmt: skip


# Ranks that are late, and ranks that are gone -------------------------------------------------------------------------


def test_a_collective_is_not_ready_while_a_rank_is_missing_and_right_when_it_has_come(ranks: Ranks):
    ranks.join()
    call = "x = device([RANK + 5], np.int32); ncclAllReduce(x, x, 1, 2, 0, comm, STREAM)"
    ranks.run(call, [0])
    assert ranks.run("tell(ready(), number(ncclCommGetAsyncError, comm))", [0]) == [[NOT_READY, 0]]
    ranks.run(call, [1])
    assert ranks.run("tell(finish(), host(x, 1, np.int32).tolist())") == [[0, [11]]] * 2


def test_a_broadcast_waits_for_all_too(ranks: Ranks):
    """Its root as well, whose part is done as soon as it has sent."""
    ranks.join()
    ranks.run("x = device([1], np.int32); ncclBroadcast(x, x, 1, 2, 0, comm, STREAM)", [0])
    assert ranks.run("tell(ready())", [0]) == [[NOT_READY]]
    ranks.run("x = device([2], np.int32); ncclBroadcast(x, x, 1, 2, 0, comm, STREAM)", [1])
    assert ranks.run("tell(finish(), host(x, 1, np.int32).tolist())") == [[0, [1]]] * 2


def test_an_abort_lets_the_stream_go_on_and_ends_nothing_on_other_ranks(ranks: Ranks):
    ranks.join()
    assert ranks.run("""
x, behind = device([7], np.int32), device([1], np.int32)
ncclAllReduce(x, x, 1, 2, 0, comm, STREAM)
ncclAllReduce(x, x, 1, 2, 0, comm, STREAM)
cuMemsetD8Async(behind, 2, 4, STREAM)
tell(ready(), ncclCommAbort.status(comm), finish(), host(x, 1, np.int32).tolist(), read(behind, 4).hex())
tell(ncclAllReduce.status(x, x, 1, 2, 0, comm, STREAM), ncclCommCount.status(comm, c_int()))
""", [0]) == [[NOT_READY, 0, 0, [7], "02020202", 4, 4]]  # fmt: skip
    assert ranks.run("""
x = device([7], np.int32)
ncclAllReduce(x, x, 1, 2, 0, comm, STREAM)
ncclAllReduce(x, x, 1, 2, 0, comm, STREAM)
ncclAllReduce(x, x, 1, 2, 0, comm, STREAM)
tell(ready(), ncclCommAbort.status(comm), finish())
""", [1]) == [[NOT_READY, 0, 0]]  # fmt: skip


def test_an_abort_returns_a_call_of_another_thread_that_waits_for_ranks(ranks: Ranks):
    ranks.join()
    assert ranks.run("""
from atomr_sim.libraries.nccl.communicator import Communicator
ended, entered, original = [], threading.Event(), Communicator.tell
Communicator.tell = lambda *arguments: (entered.set(), original(*arguments))[1]
waiting = thread(lambda: ended.append(ncclCommSplit.status(comm, 0, 0, c_void_p(), None)))
entered.wait()
tell(waiting.is_alive(), ncclCommAbort.status(comm))
waiting.join()
Communicator.tell = original
tell(*ended)
""", [0]) == [[True, 0, 3]]  # fmt: skip
    ranks.run("ncclCommAbort(comm)", [1])


def test_the_ranks_that_are_left_go_on_without_one_that_was_killed():
    """By a shrink that aborts, and by a new communicator; both run behind the lost collective in the same stream."""
    with Ranks(3) as ranks:
        ranks.join()
        lost = "x, y = device([RANK + 1], np.int32), device([0], np.int32); ncclAllReduce(x, y, 1, 2, 0, comm, STREAM)"
        ranks.run(lost, [0, 2])
        ranks.kill(1)
        assert ranks.run("tell(ready(), number(ncclCommGetAsyncError, comm))", [0, 2]) == [[NOT_READY, 0]] * 2
        answers = ranks.run("""
less = c_void_p()
ncclCommShrink(comm, (c_int * 1)(1), 1, less, None, NCCL_SHRINK_ABORT)
ncclAllReduce(x, y, 1, 2, 0, less, STREAM)
tell(finish(), host(y, 1, np.int32).tolist(), number(ncclCommCount, less), number(ncclCommUserRank, less))
tell(ncclAllReduce.status(x, y, 1, 2, 0, comm, STREAM), ncclCommAbort.status(comm))
""", [0, 2])  # fmt: skip
        assert answers == [[0, [4], 2, rank, 5, 0] for rank in (0, 1)]
        ranks.join("anew", [2, 0])
        assert ranks.run("""
ncclAllReduce(x, y, 1, 2, ncclRedOp_t.ncclProd, anew, STREAM)
tell(finish(), host(y, 1, np.int32).tolist(), number(ncclCommUserRank, anew))
""", [0, 2]) == [[0, [3], 1], [0, [3], 0]]  # fmt: skip


def test_a_revoke_stops_the_work_and_leaves_the_communicator_for_a_shrink_or_its_end(ranks: Ranks):
    ranks.join()
    ranks.run("x = device([RANK], np.int32); ncclAllReduce(x, x, 1, 2, 0, comm, STREAM)", [0])
    assert ranks.run("""
ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT)
tell(finish(), number(ncclCommGetAsyncError, comm), ncclCommFinalize.status(comm))
tell(ncclBroadcast.status(None, None, 1, 2, 0, comm, STREAM), ncclCommDestroy.status(comm))
""") == [[0, 0, 5, 5, 0]] * 2  # fmt: skip


def test_the_end_of_a_communicator_waits_for_its_work_and_for_all_ranks(ranks: Ranks):
    ranks.join()
    ranks.run("""
x = device([RANK], np.int32)
ncclAllReduce(x, x, 1, 2, 0, comm, STREAM)
ended = thread(lambda: ncclCommDestroy(comm))
""", [0])  # fmt: skip
    assert ranks.run("tell(ended.is_alive(), ready())", [0]) == [[True, NOT_READY]]
    ranks.run("x = device([1], np.int32); ncclAllReduce(x, x, 1, 2, 0, comm, STREAM); ncclCommDestroy(comm)", [1])
    assert ranks.run("ended.join(); tell(finish(), ncclCommCount.status(comm, c_int()))", [0]) == [[0, 4]]


def test_eight_bit_floats_are_moved_on_every_device_and_reduced_from_9_0_on(ranks: Ranks):
    ranks.join()
    assert ranks.run("""
x = device([RANK], np.uint8)
T = ncclDataType_t.ncclFloat8e4m3
tell(ncclAllReduce.status(x, x, 1, T, 0, comm, STREAM))
ncclBroadcast(x, x, 1, T, 1, comm, STREAM)
tell(finish(), host(x, 1, np.uint8).tolist())
""") == [[4, 0, [1]]] * 2  # fmt: skip


# Faults ---------------------------------------------------------------------------------------------------------------


def test_faults_can_be_injected_by_name(ranks: Ranks):
    ranks.join()
    assert ranks.run("""
atomr_sim.inject("ncclAllReduce:6:2,ncclCommAbort:hang")
x = device([1], np.int32)
tell(*(ncclAllReduce.status(x, x, 1, 2, 0, comm, STREAM) for _ in range(3)), finish(), host(x, 1, np.int32).tolist())
before = atomr_sim.calls().get("ncclCommAbort", 0)
hung = thread(lambda: ncclCommAbort(comm))
until(lambda: atomr_sim.calls().get("ncclCommAbort", 0) > before)
tell(hung.is_alive(), ncclCommAbort.status(comm))
atomr_sim.withdraw()
""") == [[0, 6, 0, 0, [4], True, 0]] * 2  # fmt: skip


def test_an_address_that_the_device_cannot_reach_costs_the_process_and_no_other():
    with Ranks(2) as ranks:
        ranks.join()
        ranks.run("x = device([1], np.int32); ncclAllReduce(x, x, 1, 2, 0, comm, STREAM)", [0])
        assert ranks.run("""
ncclAllReduce(x := device([1], np.int32), 4096, 1, 2, 0, comm, STREAM)
tell(finish(), ncclAllReduce.status(x, x, 1, 2, 0, comm, STREAM))
""", [1]) == [[ILLEGAL_ADDRESS, 1]]  # fmt: skip
        assert ranks.run("tell(finish(), host(x, 1, np.int32).tolist())", [0]) == [[0, [2]]], "it had sent before"


# Calls that do not match ----------------------------------------------------------------------------------------------


MISMATCHES = {
    "operation": ("ncclAllReduce(x, x, 1, 2, RANK, comm, STREAM)", "ncclAllReduce(int32, sum, count 1)"),
    "type": ("ncclAllReduce(x, x, 1, 2 + RANK, 0, comm, STREAM)", "ncclAllReduce(int32, sum, count 1)"),
    "count": ("ncclAllReduce(x, x, 1 + RANK, 2, 0, comm, STREAM)", "ncclAllReduce(int32, sum, count 1)"),
    "root": ("ncclBroadcast(x, x, 1, 2, RANK, comm, STREAM)", "ncclBroadcast(int32, root 0, count 1)"),
    "function": (
        "(ncclAllGather if RANK else ncclAlltoAll)(x, x, 1, 2, comm, STREAM)",
        "ncclAlltoAll(int32, count 1)",
    ),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_calls_that_do_not_match_hang_until_an_abort(ranks: Ranks, name: str):
    ranks.join()
    ranks.run(f"x = device([5] * 4, np.int32); {MISMATCHES[name][0]}")
    assert (
        ranks.run("tell(ready(), ncclCommAbort.status(comm), finish(), host(x, 4, np.int32).tolist())")
        == [[NOT_READY, 0, 0, [5] * 4]] * 2
    )


@pytest.mark.parametrize(
    "name",
    ["operation", "root", *(pytest.param(name, marks=pytest.mark.sweep) for name in ("type", "count", "function"))],
)
def test_with_checks_calls_that_do_not_match_are_a_finding_that_names_both(tmp_path: Path, name: str):
    call, words = MISMATCHES[name]
    with Ranks(2, ATOMR_TRIO_SIM_CHECK="bounds", ATOMR_TRIO_SIM_CHECK_FOLDER=str(tmp_path)) as ranks:
        ranks.join()
        right = "x = device([5] * 4, np.int32)\nncclAllReduce(x, x, 1, 2, 0, comm, STREAM)\ntell(finish())"
        assert ranks.run(right) == [[0], [0]], "calls that match are no finding"
        assert ranks.run(f"\n{call}\ntell(finish())") == [[LAUNCH_FAILED]] * 2
    found = [json.loads(line) for line in (tmp_path / "findings").read_text().splitlines()]
    assert [(each["check"], each["file"], each["line"]) for each in found] == [("collectives", "the_test.py", 2)] * 2
    [mine] = [each["what"] for each in found if f"is {words} on rank 0" in each["what"]]
    assert mine.startswith("collective 2 of this communicator is ")
    assert mine.endswith("on rank 1 (the_test.py:2)")


def test_with_checks_a_receive_of_another_count_is_a_finding(tmp_path: Path):
    with Ranks(2, ATOMR_TRIO_SIM_CHECK="bounds", ATOMR_TRIO_SIM_CHECK_FOLDER=str(tmp_path)) as ranks:
        ranks.join()
        ranks.run("x = device([5, 6], np.int32); ncclSend(x, 2, 2, 1, comm, STREAM); tell(finish())", [0])
        code = "x = device([0, 0], np.int32); ncclRecv(x, 1, 2, 0, comm, STREAM); tell(finish())"
        assert ranks.run(code, [1]) == [[LAUNCH_FAILED]]
    [found] = (tmp_path / "findings").read_text().splitlines()
    what = "a message is ncclRecv(int32, count 1) on rank 1 and ncclSend(int32, count 2) on rank 0 (the_test.py:1)"
    assert json.loads(found)["what"] == what
