"""Affine values do what the arrays do that they stand for; kernels leave the same bytes whether lanes know of them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from atomr_sim.engine import execution as engine
from atomr_sim.engine.affine import Affine, Box, Cut, Lazy
from atomr_sim.engine.layout import blocks_in_rows, blocks_together
from atomr_sim.engine.memory import DeviceFault
from atomr_sim.engine.simt import LoadedModule
from atomr_trio import NvrtcOptions
from atomr_trio._compiling.compiler import compile_program
from support import set_constant
from support.kernel_generator import random_kernel, translation_unit
from support.sim import Machine

DTYPES = [np.uint32, np.int32, np.uint64, np.int64]
SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)
NUMBERS = st.one_of(st.integers(-9, 9), st.sampled_from([2**31 - 3, -(2**31), 2**32 - 2, 2**63 - 1]))


@st.composite
def affine_values(draw: st.DrawFn, shape: tuple[int, ...], dtype: Any) -> Affine:
    strides = tuple(draw(st.one_of(st.just(0), NUMBERS)) for _ in shape)
    return Affine(shape, draw(NUMBERS), strides, dtype)


def scalar(number: int, dtype: Any) -> Any:
    bits = 8 * np.dtype(dtype).itemsize
    return np.array(number % 2**bits, f"u{bits // 8}").view(dtype)[()]


def same(lazy: Any, expected: np.ndarray) -> None:
    assert np.asarray(lazy).dtype == expected.dtype
    assert np.array_equal(np.broadcast_to(lazy, expected.shape), expected)


@given(st.data(), SHAPES, st.sampled_from(DTYPES))
def test_what_is_computed_with_affine_values_is_what_their_arrays_give(
    data: st.DataObject, shape: tuple[int, ...], dtype: Any
) -> None:
    a, b = data.draw(affine_values(shape, dtype)), data.draw(affine_values(shape, dtype))
    number = scalar(data.draw(NUMBERS), dtype)
    with np.errstate(all="ignore"):
        for operation in (operator.add, operator.sub, operator.mul, operator.and_, operator.xor, *COMPARISONS):
            same(operation(a, b), operation(a.array, b.array))
            same(operation(a, number), operation(a.array, number))
            same(operation(number, a), operation(number, a.array))
        same(-a, -a.array)
        same(~a, ~a.array)
        same(a << dtype(5), a.array << dtype(5))
        same(a >> dtype(3), a.array >> dtype(3))
        same(np.where(a < b, a, b), np.where(a.array < b.array, a.array, b.array))
        for to in (*DTYPES, np.uint8, np.float64):
            same(a.astype(to), a.array.astype(to))
        for other in {4: (np.uint32, np.int32, np.float32), 8: (np.uint64, np.int64, np.float64)}[a.dtype.itemsize]:
            assert np.asarray(a.view(other)).tobytes() == a.array.tobytes()


COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)


@pytest.mark.parametrize("compare", COMPARISONS)
@pytest.mark.parametrize("stride", [-3, -1, 1, 2])
def test_a_comparison_along_one_axis_cuts_a_box(compare: Callable[[Any, Any], Any], stride: int) -> None:
    shape = (3, 6, 2)
    value = Affine(shape, 4, (0, stride, 0), np.int32)
    box = Box((4, 8, 5), (1, 2, 3), shape)
    kinds = set()
    for number in range(-20, 21):
        cut = compare(value, np.int32(number))
        kinds.add(type(cut))
        expected = compare(value.array, np.int32(number))
        same(cut, expected)
        same(~cut, ~expected)
        if isinstance(cut, Cut):
            for boxes, held in zip(cut.boxes(box), (expected, ~expected), strict=True):
                assert sorted(np.concatenate([part.array for part in boxes])) == box.array[held].tolist()
    assert kinds == {Affine, Cut}


@given(st.data(), SHAPES)
def test_a_box_has_the_lanes_between_its_corners(data: st.DataObject, whole: tuple[int, ...]) -> None:
    starts = tuple(data.draw(st.integers(0, count - 1)) for count in whole)
    shape = tuple(data.draw(st.integers(1, count - start)) for count, start in zip(whole, starts, strict=True))
    box, lanes = Box(whole, starts, shape), np.arange(int(np.prod(whole)))
    ranges = tuple(slice(start, start + count) for start, count in zip(starts, shape, strict=True))
    same(box, lanes.reshape(whole)[ranges].reshape(-1))
    value = data.draw(affine_values(whole, np.uint32))
    same(value.part(box), value.array[box.array])
    same(box.of(lanes * 7), box.array * 7)
    changed = lanes.copy()
    box.put(changed, -np.arange(box.size))
    expected = lanes.copy()
    expected[box.array] = -np.arange(box.size)
    assert changed.tolist() == expected.tolist()


@given(st.data(), SHAPES, st.sampled_from([1, 4, 8]))
def test_items_that_are_called_distinct_do_not_overlap(data: st.DataObject, shape: tuple[int, ...], size: int) -> None:
    value = data.draw(affine_values(shape, np.int64))
    value = Affine(shape, 0, tuple(stride % 64 for stride in value.strides), np.int64)
    if value.distinct(size):
        places = np.sort(value.array)
        assert (np.diff(places) >= size).all()


def test_the_array_that_something_lazy_stands_for_cannot_be_changed() -> None:
    value = Affine((4,), 0, (1,), np.uint32)
    assert isinstance(value, Lazy)
    with pytest.raises(ValueError, match="read-only"):
        value.array[0] = 9
    assert value.view(np.float32).flags.writeable  # a register may become its owner


GRIDS = [(1, 1, 1), (7, 1, 1), (3, 5, 2), (130, 4, 1), (2, 2, 40), (1, 9, 1), (5, 1, 7)]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("most", [1, 2, 7, 64, 1000])
def test_every_chunk_is_a_box_of_the_grid(grid: tuple[int, int, int], most: int) -> None:
    each, line = blocks_together(grid, most)
    total, first = int(np.prod(grid)), 0
    numbers = np.arange(total).reshape(grid[::-1])
    while first < total:
        blocks = min(each, line - first % line)
        assert 1 <= blocks <= most
        extent, begin = blocks_in_rows(grid, first, blocks)
        assert begin is not None
        box = tuple(slice(start, start + count) for start, count in zip(begin[::-1], extent[::-1], strict=True))
        assert numbers[box].reshape(-1).tolist() == list(range(first, first + blocks))
        first += blocks
    assert first == total


# --- kernels ----------------------------------------------------------------------------------------------------------

PLACES = """
__global__ void kernel(const int *in, int *out, int n) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    int z = blockIdx.z * blockDim.z + threadIdx.z, wide = gridDim.x * blockDim.x, high = gridDim.y * blockDim.y;
    int at = (z * high + y) * wide + x;
    out[at] = in[at] * 3 + x * 1000 + y * 100 + z * 10 + (int)(x - 3u > 7u) + (-x) / 3 + (at << 28 >> 28);
}
"""
TRANSPOSE = """
__global__ void kernel(const int *in, int *out, int n) {
    __shared__ int tile[8][9];
    int x = blockIdx.x * 8 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y;
    tile[threadIdx.y][threadIdx.x] = in[y * gridDim.x * 8 + x];
    __syncthreads();
    out[(blockIdx.x * 8 + threadIdx.y) * gridDim.y * 8 + blockIdx.y * 8 + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}
"""
CUTS = """
__global__ void kernel(const int *in, int *out, int n) {
    __shared__ int s[64];
    int t = threadIdx.x, i = blockIdx.x * 64 + t, sum = 0;
    if (i >= n) { out[i] = -1; return; }
    s[t] = in[i];
    for (int half = 32; half; half >>= 1) {
        __syncthreads();
        if (t < half) s[t] += s[t + half];
    }
    __syncthreads();
    if (t == 5) sum = s[0];
    else if (t > 40) { for (int k = 0; k < t - 40; ++k) sum += in[i - k]; }
    else if (t <= 3) sum = blockIdx.x < 2 ? 7 : atomicAdd(&out[0], 0) * 0 + 8;
    if (t != 9) out[i] = sum + (blockIdx.x == 1 ? 100 : 200);
    else out[i] = in[63 - t];
}
"""
LAST_WINS = """
__global__ void kernel(const int *in, int *out, int n) {
    __shared__ int s[4];
    out[threadIdx.x / 7] = threadIdx.x;
    out[100] = in[threadIdx.x];
    s[threadIdx.x & 3] = threadIdx.x + blockIdx.x;
    __syncthreads();
    out[200 + blockIdx.x * blockDim.x + threadIdx.x] = s[threadIdx.x & 3] + s[1];
}
"""
STRIDED = """
__global__ void kernel(const int *in, int *out, int n) {
    int at = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x, sum = 0;
    float kept = 0;
    for (int i = at; i < n; i += step) { sum += in[n - 1 - i] * (i + 1); kept += 0.5f; }
    out[at] = sum + (int)(kept * 4);
    if (threadIdx.x >= 16 && blockIdx.x) out[at] ^= __shfl_sync(0xFFFF0000u, sum, 20);
}
"""
SWAP = """
__global__ void kernel(const int *in, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, a = in[i], b = in[i + 1], turns = in[0] * 0 + 5;
    if (threadIdx.x < 40) {
        while (turns > 0) { int c = a; a = b + turns; b = c; if (in[turns] < 0) break; --turns; }
    }
    out[2 * i] = a;
    out[2 * i + 1] = b;
}
"""
RUNS = [
    (PLACES, (3, 2, 2), (5, 4, 3)), (PLACES, (7, 1, 1), (64, 1, 1)), (PLACES, (1, 1, 5), (1, 33, 1)),
    (TRANSPOSE, (4, 6, 1), (8, 8, 1)), (CUTS, (5, 1, 1), (64, 1, 1)), (LAST_WINS, (2, 1, 1), (96, 1, 1)),
    (STRIDED, (3, 1, 1), (32, 1, 1)), (SWAP, (4, 1, 1), (64, 1, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("source", "grid", "block"), RUNS)
def test_a_kernel_leaves_the_same_bytes_whether_it_knows_what_is_affine(
    source: str, grid: tuple[int, int, int], block: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for limit in (1, 1 << 40):
        set_constant(monkeypatch, engine, "AFFINE_LANES", limit)
        machine = Machine()
        given, out = machine.array(np.arange(5000, dtype=np.int32) ** 2 % 1013), machine.zeros(5000, np.int32)
        machine.run(f'extern "C" {source.strip()}', "kernel", grid, block, given, out, 299)
        results.append(out.tobytes())
    assert results[0] == results[1]
    assert any(results[0])


@pytest.mark.long
def test_random_kernels_do_what_they_say_with_few_lanes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    set_constant(monkeypatch, engine, "AFFINE_LANES", 1)
    kernels = [random_kernel(seed) for seed in range(7000, 7016)]
    options = NvrtcOptions(fmad=False, bundled_headers=True)
    program = compile_program(translation_unit(kernels), options, "compute_80")
    machine = Machine()
    module = LoadedModule(program.ptx.decode(), machine.memory)
    for kernel in kernels:
        given, out = machine.array(kernel.inputs), machine.array(kernel.start)
        machine.launch(module.functions[kernel.name], kernel.grid, kernel.block, given, out, *kernel.scalars)
        assert (out == kernel.expected).all(), kernel.name


FAULTS = {
    "out[(int)threadIdx.x - 2] = 1": 700,
    "out[threadIdx.x * 400] = in[0]": 700,
    "*(int *)((char *)out + 2 * threadIdx.x) = 1": 716,
    "out[0] = *(long long *)(in + threadIdx.x)": 716,
    "s[threadIdx.x * 2] = 1; out[0] = s[1]": 700,
}


@pytest.mark.parametrize("statement", FAULTS)
def test_affine_addresses_that_are_wrong_are_the_same_fault(statement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = f'extern "C" __global__ void kernel(const int *in, int *out) {{ __shared__ int s[32]; {statement}; }}'
    messages = []
    for limit in (1, 1 << 40):
        set_constant(monkeypatch, engine, "AFFINE_LANES", limit)
        machine = Machine()
        given, out = machine.zeros(64, np.int32), machine.zeros(64, np.int32)
        with pytest.raises(DeviceFault) as failed:
            machine.run(source, "kernel", 1, 32, given, out)
        messages.append(failed.value.message.split(" at ")[0])
        assert failed.value.status == FAULTS[statement]
    assert messages[0] == messages[1]
