"""What the simulator does at once for lanes that go together.

Loops of one block, addresses at equal distances, shared memory at fixed distances from a register, and sums of which
few need a second look.
"""

from __future__ import annotations

import numpy as np
import pytest

from atomr_sim.engine.memory import MISALIGNED_ADDRESS, DeviceFault
from atomr_sim.engine.simt import LoadedModule
from atomr_sim.ptx import numeric
from support.sim import Machine

HEADER = """.version 8.0
.target sm_80
.address_size 64
"""
NUMBER = """
    .reg .pred %p<4>;
    .reg .b16 %h<4>;
    .reg .b32 %r<12>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [out];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mad.lo.s32 %r1, %r2, %r3, %r1;
"""


@pytest.fixture
def gpu() -> Machine:
    return Machine()


def words(gpu: Machine, body: str, threads: int, blocks: int = 1) -> np.ndarray:
    """Run a kernel of PTX that leaves a word of each thread in %r9; its number is in %r1."""
    out = gpu.zeros(threads * blocks, np.uint32)
    text = f"""{HEADER}
    .visible .entry k(.param .u64 out) {{ {NUMBER} {body}
    mul.wide.u32 %d2, %r1, 4; add.u64 %d2, %d1, %d2; st.global.u32 [%d2], %r9; ret; }}"""
    gpu.launch(LoadedModule(text, gpu.memory).functions["k"], blocks, threads, out)
    return out


# --- loops of one block -----------------------------------------------------------------------------------------------


ROUNDS = "rem.u32 %r4, %r1, 150; add.u32 %r4, %r4, 1;"
"""How often a thread goes round: from once to more often than groups take turns."""


def rounds(threads: int) -> np.ndarray:
    return np.arange(threads, dtype=np.uint32) % 150 + 1


def test_lanes_leave_a_loop_in_their_own_time_and_registers_that_change_places_do_so_in_each_lane(gpu):
    loop = """mov.u32 %r5, 0; mov.u32 %r6, 1;
    LOOP: add.u32 %r7, %r5, %r6; mov.u32 %r5, %r6; mov.u32 %r6, %r7;
    sub.u32 %r4, %r4, 1; setp.ne.u32 %p1, %r4, 0; @%p1 bra LOOP;
    mov.u32 %r9, %r5;"""
    fibonacci = [0, 1]
    while len(fibonacci) < 152:
        fibonacci.append(sum(fibonacci[-2:]) % 2**32)
    assert words(gpu, ROUNDS + loop, 300, 5).tolist() == [fibonacci[count] for count in rounds(1500)]


def test_two_registers_are_exchanged_as_often_as_a_lane_goes_round(gpu):
    loop = """mov.u32 %r5, %r1; add.u32 %r6, %r1, 1000;
    LOOP: mov.u32 %r7, %r5; mov.u32 %r5, %r6; mov.u32 %r6, %r7;
    sub.u32 %r4, %r4, 1; setp.ne.u32 %p1, %r4, 0; @%p1 bra LOOP;
    mad.lo.u32 %r9, %r6, 65536, %r5;"""
    number, odd = np.arange(640, dtype=np.uint32), rounds(640) % 2 == 1
    first, second = np.where(odd, number + 1000, number), np.where(odd, number, number + 1000)
    np.testing.assert_array_equal(words(gpu, ROUNDS + loop, 64, 10), second * 65536 + first)


def test_what_a_register_held_before_its_last_change_is_still_known_behind_the_loop(gpu):
    loop = """mov.u32 %r5, 0;
    LOOP: mov.u32 %r6, %r5; add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, %r4; @%p1 bra LOOP;
    mad.lo.u32 %r9, %r6, 1000, %r5;"""
    np.testing.assert_array_equal(words(gpu, ROUNDS + loop, 320), (rounds(320) - 1) * 1000 + rounds(320))


def test_a_register_that_a_round_sets_to_a_constant_has_it_in_the_next_round(gpu):
    loop = """mov.u32 %r5, 100; mov.u32 %r9, 0;
    LOOP: add.u32 %r9, %r9, %r5; mov.u32 %r5, 7;
    sub.u32 %r4, %r4, 1; setp.eq.u32 %p1, %r4, 0; @!%p1 bra LOOP;"""
    np.testing.assert_array_equal(words(gpu, ROUNDS + loop, 320), 100 + 7 * (rounds(320) - 1))


def test_a_predicate_goes_from_one_round_to_the_next(gpu):
    loop = """mov.u32 %r9, 0; setp.eq.u32 %p2, %r9, 0;
    LOOP: selp.u32 %r5, 3, 5, %p2; add.u32 %r9, %r9, %r5; not.pred %p2, %p2;
    sub.u32 %r4, %r4, 1; setp.ne.u32 %p1, %r4, 0; @%p1 bra LOOP;"""
    count = rounds(320)
    np.testing.assert_array_equal(words(gpu, ROUNDS + loop, 320), (count + 1) // 2 * 3 + count // 2 * 5)


def test_all_lanes_go_round_equally_often(gpu):
    loop = """mov.u32 %r4, 200; add.u32 %r4, %r4, %r2; mov.u32 %r9, %r1;
    LOOP: mad.lo.u32 %r9, %r9, 3, 1; sub.u32 %r4, %r4, 1; setp.ne.u32 %p1, %r4, 0; @%p1 bra LOOP;"""
    expected = np.arange(96, dtype=np.uint64)
    for _ in range(200):
        expected = (expected * 3 + 1) % 2**32
    np.testing.assert_array_equal(words(gpu, loop, 96), expected)


def test_what_a_lane_writes_in_a_loop_ends_with_its_last_round(gpu):
    loop = """mul.wide.u32 %d3, %r1, 4; add.u64 %d3, %d1, %d3;
    LOOP: ld.global.u32 %r9, [%d3]; add.u32 %r9, %r9, 2; st.global.u32 [%d3], %r9;
    sub.u32 %r4, %r4, 1; setp.ne.u32 %p1, %r4, 0; @%p1 bra LOOP;"""
    np.testing.assert_array_equal(words(gpu, ROUNDS + loop, 320, 3), 2 * rounds(960))


def test_a_lane_that_waits_in_a_loop_does_not_keep_the_one_that_it_waits_for(gpu):
    source = """
    extern "C" __global__ void relay(volatile int* turn, int* order, int n) {
        int t = threadIdx.x;
        while (*turn != t) { }
        order[t] = *turn * 10;
        *turn = t + 1;
    }"""
    turn, order = gpu.zeros(1, np.int32), gpu.zeros(40, np.int32)
    gpu.run(source, "relay", 1, 40, turn, order, 40)
    np.testing.assert_array_equal(order, np.arange(40) * 10)


# --- addresses at equal distances -------------------------------------------------------------------------------------


COPY = """
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64;
extern "C" __global__ void copy(const {kind}* x, {kind}* y, int step, int first) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[first + i * step];
}}
extern "C" __global__ void spread(const {kind}* x, {kind}* y, int step, int first) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[first + i * step] = x[i];
}}"""


@pytest.mark.parametrize("kind", ["u8", "u16", "u32", "u64"])
@pytest.mark.parametrize("step", [-2, -1, 0, 1, 2, 3, 4, 8, 16])
def test_lanes_read_and_write_items_at_equal_distances(gpu, kind, step):
    n = 200
    dtype = np.dtype({"u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64}[kind])
    first = 2 * n if step < 0 else 3
    values = np.random.default_rng(step + 20).integers(0, 256, 17 * n).astype(dtype)
    places = first + np.arange(n) * step
    module = gpu.load(COPY.format(kind=kind))
    x, y = gpu.array(values), gpu.zeros(n, dtype)
    gpu.launch(module.functions["copy"], 2, n // 2, x, y, step, first)
    np.testing.assert_array_equal(y, values[places])
    if step:
        y = gpu.zeros(17 * n, dtype)
        gpu.launch(module.functions["spread"], 2, n // 2, x, y, step, first)
        expected = np.zeros(17 * n, dtype)
        expected[places] = values[:n]
        np.testing.assert_array_equal(y, expected)


def test_addresses_that_are_nearly_at_equal_distances_are_each_their_own(gpu):
    source = """
    extern "C" __global__ void k(const int* x, int* y) {
        int i = threadIdx.x;
        y[i] = x[i == 5 ? 6 : i == 6 ? 5 : i];
    }"""
    x, y = gpu.array(np.arange(64) * 3, np.int32), gpu.zeros(64, np.int32)
    gpu.run(source, "k", 1, 64, x, y)
    assert y[:8].tolist() == [0, 3, 6, 9, 12, 18, 15, 21]
    np.testing.assert_array_equal(np.sort(y), x)


@pytest.mark.parametrize(("step", "first"), [(1, 0), (2, 0), (4, 2), (8, 1)])
def test_items_at_equal_distances_of_which_some_are_misaligned(gpu, step, first):
    source = """
    extern "C" __global__ void k(const char* x, int* y, int step, int first) {
        y[threadIdx.x] = *(const int*)(x + first + threadIdx.x * step);
    }"""
    x, y = gpu.zeros(1024, np.uint8), gpu.zeros(32, np.int32)
    with pytest.raises(DeviceFault) as caught:
        gpu.run(source, "k", 1, 32, x, y, step, first)
    assert caught.value.status == MISALIGNED_ADDRESS


def test_a_vector_of_which_only_the_first_lanes_is_aligned(gpu):
    source = """
    extern "C" __global__ void k(const int* x, int2* y) { y[threadIdx.x] = *(const int2*)(x + threadIdx.x); }"""
    with pytest.raises(DeviceFault) as caught:
        gpu.run(source, "k", 1, 8, gpu.zeros(64, np.int32), gpu.zeros((8, 2), np.int32))
    assert caught.value.status == MISALIGNED_ADDRESS


# --- shared memory ----------------------------------------------------------------------------------------------------


SHARED = """.shared .align 16 .b8 s[256];
    mov.u32 %r8, s; mad.lo.u32 %r8, %r1, 4, %r8; add.u32 %r7, %r1, 500; st.shared.u32 [%r8], %r7; bar.sync 0;
"""
"""Word i of shared memory holds 500 + i."""


@pytest.mark.parametrize(
    ("register", "distance", "word"),
    [(0, 0, 0), (0, 8, 2), (12, -8, 1), (2, 2, 1), (6, -2, 1), (0xFFFFFFFC, 8, 1), (0xFFFFFFFE, 2, 0), (4, 244, 62)],
)
def test_a_distance_from_a_register_in_shared_memory(gpu, register, distance, word):
    """The sum wraps in the register's width; what counts for alignment is the sum."""
    body = f"{SHARED} mov.u32 %r6, {register}; add.u32 %r6, %r6, s; ld.shared.u32 %r9, [%r6+{distance}];"
    assert set(words(gpu, body, 64).tolist()) == {500 + word}
    # The same, with a register that differs between the lanes: odd ones read the next word.
    varying = f"""{SHARED} and.b32 %r6, %r1, 1; mad.lo.u32 %r6, %r6, 4, {register}; add.u32 %r6, %r6, s;
    ld.shared.u32 %r9, [%r6+{distance}];"""
    np.testing.assert_array_equal(words(gpu, varying, 64), 500 + word + np.arange(64) % 2)


@pytest.mark.parametrize(("register", "distance"), [(0, 2), (2, 0), (1, 4), (0xFFFFFFFF, 2)])
def test_a_misaligned_word_of_shared_memory(gpu, register, distance):
    body = f"{SHARED} mov.u32 %r6, {register}; add.u32 %r6, %r6, s; ld.shared.u32 %r9, [%r6+{distance}];"
    with pytest.raises(DeviceFault) as caught:
        words(gpu, body, 64)
    assert caught.value.status == MISALIGNED_ADDRESS


@pytest.mark.parametrize(("register", "distance"), [(0, 256), (256, 0), (252, 4), (0, -4), (0xFFFFFFF8, 4), (4, -8)])
def test_shared_memory_ends_where_it_ends(gpu, register, distance):
    body = f"{SHARED} mov.u32 %r6, {register}; add.u32 %r6, %r6, s; ld.shared.u32 %r9, [%r6+{distance}];"
    with pytest.raises(DeviceFault, match="shared memory"):
        words(gpu, body, 64)


# --- sums -------------------------------------------------------------------------------------------------------------


def test_a_product_and_sum_half_way_between_two_numbers_in_some_lanes_is_rounded_once_in_all():
    """The operands are such that the sum is exact in double precision, which the reference rounds once."""
    rng = np.random.default_rng(3)
    a, b, c = (rng.integers(-4095, 4096, 500).astype(np.float32) for _ in range(3))
    c = np.where(rng.integers(0, 2, 500) > 0, c * np.float32(2.0**-18), np.float32(3 * 2.0**24) + 64 * c)
    for fixed in ((), (0,), (1,), (2,), (0, 1), (0, 1, 2)):
        operands = [value[7] if at in fixed else value for at, value in enumerate((a, b, c))]
        x, y, z = (np.float64(value) for value in operands)
        got = numeric.fma_f32(*operands)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, (x * y + z).astype(np.float32), strict=True)
