"""The simulated NCCL: what collectives compute, between processes, held against numpy."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

from atomr_cuda.nccl import ncclDataType_t as Type, ncclRedOp_t as Op
from support.sim_ranks import Ranks

pytestmark = pytest.mark.sim_only

COUNT, RANKS = 40, 3
DTYPES = {
    Type.ncclInt8: np.int8,
    Type.ncclUint8: np.uint8,
    Type.ncclInt32: np.int32,
    Type.ncclUint32: np.uint32,
    Type.ncclInt64: np.int64,
    Type.ncclUint64: np.uint64,
    Type.ncclFloat16: np.float16,
    Type.ncclFloat32: np.float32,
    Type.ncclFloat64: np.float64,
    Type.ncclBfloat16: ml_dtypes.bfloat16,
    Type.ncclFloat8e4m3: ml_dtypes.float8_e4m3fn,
    Type.ncclFloat8e5m2: ml_dtypes.float8_e5m2,
}
FLOAT8 = (Type.ncclFloat8e4m3, Type.ncclFloat8e5m2)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Three processes, of a capability that can reduce 8-bit floats, and their communicator `comm`."""
    with Ranks(RANKS, ATOMR_TRIO_SIM_CAPABILITY="9.0") as started:
        started.join()
        yield started


def inputs(kind: Type) -> list[np.ndarray]:
    """Numbers of each rank; integers reach the ends of their type."""
    dtype = DTYPES[kind]
    random = np.random.default_rng(int(kind))
    if np.dtype(dtype).kind in "iu":
        limits = np.iinfo(dtype)
        return [random.integers(limits.min, limits.max, COUNT, dtype, endpoint=True) for _ in range(RANKS)]
    return [random.uniform(-4, 4, COUNT).astype(dtype) for _ in range(RANKS)]


def expected(kind: Type, op: Op, parts: list[np.ndarray]) -> np.ndarray:
    """In the order of the ranks, rounded after each step."""
    dtype = parts[0].dtype
    if op == Op.ncclAvg and dtype.kind not in "iu":
        reciprocal = np.float16(1 / RANKS) if kind in FLOAT8 else np.array(1 / RANKS, dtype)
        wide = np.float64 if kind == Type.ncclFloat64 else np.float32
        parts = [(part.astype(wide) * wide(reciprocal)).astype(dtype) for part in parts]
    step = {Op.ncclProd: np.multiply, Op.ncclMax: np.maximum, Op.ncclMin: np.minimum}.get(op, np.add)
    result = parts[0]
    for part in parts[1:]:
        result = step(result, part)
    if op == Op.ncclAvg and dtype.kind in "iu":
        quotients = [abs(int(each)) // RANKS * (-1 if each < 0 else 1) for each in result]
        return np.array(quotients, dtype)
    return result


@pytest.mark.parametrize("kind", DTYPES, ids=lambda kind: kind.name)
def test_a_reduction_is_numpys_in_the_order_of_the_ranks_and_has_the_same_bits_on_all(ranks: Ranks, kind: Type):
    parts = inputs(kind)
    answers = ranks.run(f"""
x = device(np.frombuffer(bytes.fromhex({[part.tobytes().hex() for part in parts]!r}[RANK]), np.uint8))
size = {parts[0].nbytes}
y = allocate(5 * size)
for op in range(5):
    ncclAllReduce(x, y + op * size, {COUNT}, {int(kind)}, op, comm, STREAM)
tell(finish(), *(read(y + op * size, size).hex() for op in range(5)))
""")  # fmt: skip
    assert answers[0] == answers[1] == answers[2]
    status, *results = answers[0]
    assert status == 0
    with np.errstate(all="ignore"):
        for op, result in zip(range(5), results, strict=True):
            wanted = expected(kind, Op(op), parts)
            got = np.frombuffer(bytes.fromhex(result), wanted.dtype)
            assert got.astype(np.float64).tolist() == wanted.astype(np.float64).tolist(), Op(op).name


def test_the_average_of_integers_is_cut_towards_zero_and_a_maximum_passes_over_nan(ranks: Ranks):
    answers = ranks.run("""
x = device([[-7, 7], [0, 0], [0, 1]][RANK], np.int32)
f = device([np.nan if RANK == 1 else RANK, np.nan], np.float32)
ncclAllReduce(x, x, 2, ncclDataType_t.ncclInt32, ncclRedOp_t.ncclAvg, comm, STREAM)
ncclAllReduce(f, f, 2, ncclDataType_t.ncclFloat32, ncclRedOp_t.ncclMax, comm, STREAM)
tell(finish(), host(x, 2, np.int32).tolist(), str(host(f, 2, np.float32).tolist()))
""")
    assert answers == [[0, [-2, 2], "[2.0, nan]"]] * 3


LAYOUT = """
T, SUM = ncclDataType_t.ncclInt32, ncclRedOp_t.ncclSum
base = 100 * (RANK + 1)
def run(function, source, room, *rest):
    y = device([-1] * room, np.int32)
    function(source, y, *rest, comm, STREAM)
    finish()
    tell(host(y, room, np.int32).tolist())
"""


@pytest.mark.parametrize(
    ("call", "results"),
    [
        ("run(ncclReduceScatter, device(base + np.arange(6), np.int32), 2, 2, T, SUM)",
         [[600, 603], [606, 609], [612, 615]]),
        ("run(ncclReduce, device([base], np.int32), 1, 1, T, SUM, 1)", [[-1], [600], [-1]]),
        ("run(ncclBroadcast, device([base, 1], np.int32), 2, 2, T, 2)", [[300, 1]] * 3),
        ("run(ncclAllGather, device([base, base + 1], np.int32), 6, 2, T)", [[100, 101, 200, 201, 300, 301]] * 3),
        ("run(ncclAlltoAll, device(base + np.arange(3), np.int32), 3, 1, T)",
         [[100, 200, 300], [101, 201, 301], [102, 202, 302]]),
        ("run(ncclGather, device([base], np.int32), 3, 1, T, 1)", [[-1] * 3, [100, 200, 300], [-1] * 3]),
        ("run(ncclScatter, device(base + np.arange(3), np.int32) if RANK == 1 else None, 1, 1, T, 1)",
         [[200], [201], [202]]),
    ],
    ids=["ReduceScatter", "Reduce", "Broadcast", "AllGather", "AlltoAll", "Gather", "Scatter"],
)  # fmt: skip
def test_each_rank_gets_its_part_and_nothing_else_is_written(ranks: Ranks, call: str, results: list[list[int]]):
    assert ranks.run(LAYOUT + call) == [[result] for result in results]


def test_collectives_in_place_read_before_they_write(ranks: Ranks):
    answers = ranks.run(LAYOUT + """
a = device([base, base, base], np.int32)
ncclAllGather(a + 4 * RANK, a, 1, T, comm, STREAM)
b = device(base + np.arange(3), np.int32)
ncclReduceScatter(b, b + 4 * RANK, 1, T, SUM, comm, STREAM)
c = device([base, 0, 0], np.int32)
ncclBroadcast(c, c, 3, T, 0, comm, STREAM)
finish()
tell(host(a, 3, np.int32).tolist(), host(b, 3, np.int32).tolist()[RANK], host(c, 3, np.int32).tolist())
""")  # fmt: skip
    assert answers == [[[100, 200, 300], 600 + 3 * rank, [100, 0, 0]] for rank in range(3)]


def test_arrays_larger_than_what_is_on_its_way_at_once_arrive_whole(ranks: Ranks):
    answers = ranks.run("""
n = 500_001
x = device(np.arange(n) * (RANK + 1), np.int64)
y = allocate(n * 8)
ncclAllReduce(x, y, n, ncclDataType_t.ncclInt64, ncclRedOp_t.ncclSum, comm, STREAM)
tell(finish(), bool((host(y, n, np.int64) == 6 * np.arange(n)).all()))
""")
    assert answers == [[0, True]] * 3


def test_no_elements_are_no_collective(ranks: Ranks):
    """One rank alone may call it, and its stream is done."""
    code = "ncclAllReduce(None, None, 0, 7, 0, comm, STREAM); tell(finish())"
    assert ranks.run(code, [1]) == [[0]]


# Sends ----------------------------------------------------------------------------------------------------------------


def test_sends_and_receives_of_a_group_move_at_once(ranks: Ranks):
    """A ring, and each to itself: one after the other would wait for ever."""
    answers = ranks.run("""
n = 300_000
x, y, z = device(np.full(n, RANK), np.int32), device(np.zeros(n), np.int32), device([0], np.int32)
T = ncclDataType_t.ncclInt32
ncclGroupStart()
ncclSend(x, n, T, (RANK + 1) % 3, comm, STREAM)
ncclSend(x, 1, T, RANK, comm, STREAM)
ncclRecv(z, 1, T, RANK, comm, STREAM)
ncclRecv(y, n, T, (RANK + 2) % 3, comm, STREAM)
ncclGroupEnd()
tell(finish(), sorted(set(host(y, n, np.int32).tolist())), host(z, 1, np.int32).tolist())
""")
    assert answers == [[0, [(rank + 2) % 3], [rank]] for rank in range(3)]


def test_messages_to_one_rank_arrive_in_their_order_beside_collectives(ranks: Ranks):
    answers = ranks.run("""
T = ncclDataType_t.ncclInt32
x, y, s = device([10, 20], np.int32), device([0, 0], np.int32), device([1], np.int32)
ncclGroupStart()
if RANK == 0:
    ncclSend(x, 1, T, 2, comm, STREAM)
    ncclAllReduce(s, s, 1, T, 0, comm, STREAM)
    ncclSend(x + 4, 1, T, 2, comm, STREAM)
else:
    ncclAllReduce(s, s, 1, T, 0, comm, STREAM)
if RANK == 2:
    ncclRecv(y + 4, 1, T, 0, comm, STREAM)
    ncclRecv(y, 1, T, 0, comm, STREAM)
ncclGroupEnd()
tell(finish(), host(y, 2, np.int32).tolist(), host(s, 1, np.int32).tolist())
""")
    assert answers == [[0, [0, 0], [3]], [0, [0, 0], [3]], [0, [20, 10], [3]]]


# Operations -----------------------------------------------------------------------------------------------------------


def test_a_premultiplied_sum_has_a_factor_of_each_rank_read_at_once_or_with_the_collective(ranks: Ranks):
    answers = ranks.run("""
F = ncclDataType_t.ncclFloat32
factor, late = np.array([RANK + 1], np.float32), device([0], np.float32)
now, then = c_int(), c_int()
ncclRedOpCreatePreMulSum(now, factor.ctypes.data, F, ncclScalarResidence_t.ncclScalarHostImmediate, comm)
ncclRedOpCreatePreMulSum(then, late, F, ncclScalarResidence_t.ncclScalarDevice, comm)
factor[0] = 1000
write(late, np.array([10 * (RANK + 1)], np.float32).tobytes())
x, y = device([1, 0.5], np.float32), device([0] * 4, np.float32)
ncclAllReduce(x, y, 2, F, now.value, comm, STREAM)
ncclAllReduce(x, y + 8, 2, F, then.value, comm, STREAM)
other = ncclAllReduce.status(x, y, 2, ncclDataType_t.ncclFloat64, now.value, comm, STREAM)
ncclRedOpDestroy(now.value, comm)
again = [ncclAllReduce.status(x, y, 2, F, now.value, comm, STREAM), ncclRedOpDestroy.status(now.value, comm)]
tell(finish(), host(y, 4, np.float32).tolist(), other, *again, ncclRedOpDestroy.status(0, comm))
""")
    assert answers == [[0, [6.0, 3.0, 60.0, 30.0], 4, 4, 4, 4]] * 3


# Groups and streams ---------------------------------------------------------------------------------------------------


def test_nothing_of_a_nested_group_begins_before_the_outer_end(ranks: Ranks):
    answers = ranks.run("""
x = device([RANK], np.int32)
ncclGroupStart()
ncclGroupStart()
ncclAllReduce(x, x, 1, 2, 0, comm, STREAM)
ncclGroupEnd()
tell(finish(), host(x, 1, np.int32).tolist())
ncclGroupEnd()
tell(finish(), host(x, 1, np.int32).tolist(), ncclGroupEnd.status())
""")
    assert answers == [[0, [rank], 0, [3], 5] for rank in range(3)]


def test_a_refusal_in_a_group_is_the_status_of_its_end_and_nothing_of_it_is_done(ranks: Ranks):
    """The group of another thread is another one."""
    answers = ranks.run("""
x = device([7], np.int32)
ncclGroupStart()
ncclAllReduce(x, x, 1, 2, 0, comm, STREAM)
tell(ncclAllReduce.status(x, x, 1, 99, 0, comm, STREAM))
elsewhere = threading.Thread(target=lambda: tell(ncclGroupEnd.status()))
elsewhere.start()
elsewhere.join()
tell(ncclGroupEnd.status(), finish(), host(x, 1, np.int32).tolist())
ncclGroupStart()
tell(ncclGroupEnd.status())
""")
    assert answers == [[4, 5, 4, 0, [7], 0]] * 3


def test_the_work_of_a_communicator_runs_in_the_order_of_its_calls_whatever_the_streams(ranks: Ranks):
    """One rank uses two streams where the others use one; the second call must not come first."""
    answers = ranks.run("""
x = device([1], np.int32)
more = stream()
streams = [more, STREAM, more, STREAM] if RANK == 0 else [STREAM] * 4
for each in streams:
    ncclAllReduce(x, x, 1, 2, 0, comm, each)
ncclGroupStart()
ncclAllReduce(x, x, 1, 2, 0, comm, STREAM)
y = device([RANK], np.int32)
ncclBroadcast(y, y, 1, 2, 2, comm, more)
ncclGroupEnd()
tell(finish(more), host(x, 1, np.int32).tolist(), host(y, 1, np.int32).tolist(), finish())
""")
    assert answers == [[0, [3**5], [2], 0]] * 3


def test_a_group_does_not_mix_the_default_stream_with_others(ranks: Ranks):
    """All names of the default stream are one."""
    answers = ranks.run("""
x = device([1], np.int32)
def group(*streams):
    ncclGroupStart()
    for each in streams:
        ncclAllReduce(x, x, 1, 2, 0, comm, each)
    return ncclGroupEnd.status()
tell(group(None, STREAM), group(None, 1), finish(None), host(x, 1, np.int32).tolist())
""")
    assert answers == [[5, 0, 0, [3]]] * 3


def test_a_captured_collective_runs_with_each_launch_of_the_graph(ranks: Ranks):
    answers = ranks.run("""
x, graph, made = device([1], np.int32), c_void_p(), c_void_p()
cuStreamBeginCapture(STREAM, 2)
ncclAllReduce(x, x, 1, 2, 0, comm, STREAM)
cuStreamEndCapture(STREAM, graph)
cuGraphInstantiate(made, graph, 0)
tell(host(x, 1, np.int32).tolist())
for _ in range(2):
    cuGraphLaunch(made, STREAM)
tell(finish(), host(x, 1, np.int32).tolist())
""")
    assert answers == [[[1], 0, [9]]] * 3


# Communicators from others --------------------------------------------------------------------------------------------


def test_a_split_orders_the_ranks_of_a_color_by_their_keys(ranks: Ranks):
    answers = ranks.run("""
part = c_void_p(99)
ncclCommSplit(comm, 0 if RANK != 1 else NCCL_SPLIT_NOCOLOR, -RANK, part, None)
tell(bool(part.value))
if part:
    x = device([RANK], np.int32)
    ncclAllReduce(x, x, 1, 2, 0, part, STREAM)
    tell(number(ncclCommUserRank, part), number(ncclCommCount, part), finish(), host(x, 1, np.int32).tolist())
    ncclCommDestroy(part)
""")
    assert answers == [[True, 1, 2, 0, [2]], [False], [True, 0, 2, 0, [2]]]


def test_communicators_of_one_group_are_made_at_once_in_any_order(ranks: Ranks):
    first, second = (ranks.run("tell(new_id())", [rank])[0][0] for rank in (0, 1))
    answers = ranks.run(textwrap.dedent(f"""
made, words = [c_void_p(), c_void_p()], [{first!r}, {second!r}]
ncclGroupStart()
for place in (0, 1) if RANK else (1, 0):
    words_of = ncclUniqueId.from_buffer_copy(bytes.fromhex(words[place]))
    ncclCommInitRank(made[place], 3, words_of, RANK)
tell(bool(made[0].value or made[1].value))
ncclGroupEnd()
tell(*(number(ncclCommUserRank, each) for each in made), number(ncclCommCuDevice, made[0]))
for each in made:
    ncclCommFinalize(each)
    tell(ncclAllReduce.status(1, 1, 1, 2, 0, each, STREAM))
    ncclCommDestroy(each)
"""))  # fmt: skip
    assert answers == [[False, rank, rank, rank, 5, 5] for rank in range(3)]


# What is refused ------------------------------------------------------------------------------------------------------


REFUSED = {
    "a type": "ncclAllReduce.status(x, x, 1, 12, 0, comm, STREAM)",
    "an operation": "ncclAllReduce.status(x, x, 1, 2, 77, comm, STREAM)",
    "a root": "ncclBroadcast.status(x, x, 1, 2, 3, comm, STREAM)",
    "a peer": "ncclSend.status(x, 1, 2, -1, comm, STREAM)",
    "a communicator": "ncclAllReduce.status(x, x, 1, 2, 0, 12345, STREAM)",
    "no communicator": "ncclAllReduce.status(x, x, 1, 2, 0, None, STREAM)",
    "a rank": "ncclCommInitRank.status(c_void_p(), 2, ncclUniqueId(), 2)",
    "an id": "ncclCommInitRank.status(c_void_p(), 2, ncclUniqueId(), 0)",
    "a configuration": "ncclCommInitRankConfig.status(c_void_p(), 1, ncclUniqueId(), 0, byref(ncclConfig_t()))",
    "a color": "ncclCommSplit.status(comm, -2, 0, c_void_p(), None)",
    "no place": "ncclCommCount.status(comm, None)",
    "flags": "ncclCommRevoke.status(comm, 1)",
    "excluded itself": "ncclCommShrink.status(comm, (c_int * 1)(1), 1, c_void_p(), None, 0)",
    "nobody excluded": "ncclCommShrink.status(comm, (c_int * 1)(0), 0, c_void_p(), None, 0)",
}


def test_wrong_arguments_are_refused_and_nothing_is_enqueued(ranks: Ranks):
    calls = ", ".join(REFUSED.values())
    [answer] = ranks.run(f"x = device([1], np.int32); tell(ready(), [{calls}], ready())", [1])
    assert dict(zip(REFUSED, answer[1], strict=True)) == dict.fromkeys(REFUSED, 4)
    assert (answer[0], answer[2]) == (0, 0)


def test_the_library_tells_its_version_its_words_and_what_it_lacks(ranks: Ranks):
    [answer] = ranks.run("""
from atomr_cuda import SymbolMissing
version = c_int()
ncclGetVersion(version)
texts = [ctypes.string_at(ncclGetErrorString(status)).decode() for status in (0, 6, 99)]
tell(version.value, *texts, ctypes.string_at(ncclGetLastError(None)).decode())
try:
    ncclCommMemStats(comm, 0, c_uint64())
except SymbolMissing as missing:
    tell(missing.function, missing.since)
""", [0])  # fmt: skip
    words = ["no error", "another rank has failed or is gone", "unknown status", ""]
    assert answer == [22809, *words, "ncclCommMemStats", [2, 29]]


# Everything together --------------------------------------------------------------------------------------------------

RANDOM = """
import random
random_ = random.Random(SEED)
streams = [STREAM, stream(), stream()]
n, T = 300, ncclDataType_t.ncclInt64
mine = np.arange(n) * (RANK + 3) % 1009
x, expected = [], []
inputs = [np.arange(n) * (rank + 3) % 1009 for rank in range(RANKS)]

def one(communicator, members, on):
    source, target = device(mine, np.int64), device(np.full(n, -1), np.int64)
    x.append(target)
    kind, root = random_.randrange(4), random_.randrange(len(members))
    theirs = [inputs[rank] for rank in members]
    wanted = np.full(n, -1)
    if kind == 0:
        ncclAllReduce(source, target, n, T, ncclRedOp_t.ncclSum, communicator, on)
        wanted = sum(theirs)
    elif kind == 1:
        ncclBroadcast(source, target, n, T, root, communicator, on)
        wanted = theirs[root]
    elif kind == 2:
        ncclReduce(source, target, n, T, ncclRedOp_t.ncclMax, root, communicator, on)
        if members[root] == RANK:
            wanted = np.max(theirs, axis=0)
    else:
        place = members.index(RANK)
        ncclGroupStart()
        ncclSend(source, n, T, (place + 1) % len(members), communicator, on)
        ncclRecv(target, n, T, (place - 1) % len(members), communicator, on)
        ncclGroupEnd()
        wanted = theirs[place - 1]
    expected.append(wanted)

pair = [0, 2] if RANK in (0, 2) else [1, 3]
part = c_void_p()
ncclCommSplit(comm, RANK % 2, RANK, part, None)
for _ in range(60):
    of_all = random_.random() < 0.5
    grouped = random_.random() < 0.3
    communicator, members = (comm, range(RANKS)) if of_all else (part, pair)
    if grouped:
        ncclGroupStart()
    on = random_.randrange(3)
    for _ in range(2):
        one(communicator, list(members), streams[on])
    if grouped:
        ncclGroupEnd()
tell(*(finish(each) for each in streams))
tell([at for at, (place, wanted) in enumerate(zip(x, expected)) if (host(place, n, np.int64) != wanted).any()])
ncclCommDestroy(part)
"""


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    """Four processes, and their communicator `comm`."""
    with Ranks(4) as started:
        started.join()
        yield started


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_random_programs_on_several_streams_and_communicators_end_with_the_right_numbers(seed: int, four: Ranks):
    assert four.run(RANDOM.replace("SEED", str(seed))) == [[0, 0, 0, []]] * 4
