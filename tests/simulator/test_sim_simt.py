"""Kernels compiled by the real NVRTC, run on the simulator's engine, against numpy."""

from __future__ import annotations

import mmap
import threading
from typing import Any

import numpy as np
import pytest

from atomr_sim.engine.memory import DeviceFault
from atomr_sim.engine.simt import LoadedModule
from support.sim import Machine

ARCHITECTURES = ("compute_80", pytest.param("compute_90", marks=pytest.mark.sweep), "compute_120")


@pytest.fixture(params=ARCHITECTURES)
def gpu(request: pytest.FixtureRequest) -> Machine:
    """One simulated GPU for each dialect of PTX that the compiler writes."""
    return Machine(request.param)


@pytest.fixture
def plain() -> Machine:
    """One dialect, where the dialect does not matter."""
    return Machine("compute_80")


def random(seed: int, n: Any, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n).astype(dtype)


# Whole kernels


def test_saxpy_with_a_grid_stride_loop(gpu: Machine) -> None:
    n = 10_007
    x, y = gpu.array(random(1, n)), gpu.array(random(2, n))
    expected = (np.float64(np.float32(2.5)) * x + y).astype(np.float32)
    source = """
    extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = a * x[i] + y[i];
    }"""
    gpu.run(source, "saxpy", 5, 96, 2.5, x, y, n)
    np.testing.assert_array_equal(y, expected)


GRAY_SCOTT = """
extern "C" __global__ void step(const float* u, const float* v, float* un, float* vn, int w, int h,
                                float du, float dv, float f, float k) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= w || y >= h) return;
    int l = (x + w - 1) % w, r = (x + 1) % w, t = (y + h - 1) % h, b = (y + 1) % h, i = y * w + x;
    float lu = u[y * w + l] + u[y * w + r] + u[t * w + x] + u[b * w + x] - 4.0f * u[i];
    float lv = v[y * w + l] + v[y * w + r] + v[t * w + x] + v[b * w + x] - 4.0f * v[i];
    float uvv = u[i] * v[i] * v[i];
    un[i] = u[i] + du * lu - uvv + f * (1.0f - u[i]);
    vn[i] = v[i] + dv * lv + uvv - (f + k) * v[i];
}"""


def test_a_gray_scott_step_in_two_dimensions(gpu: Machine) -> None:
    h, w = 37, 53
    rng = np.random.default_rng(3)
    u, v = gpu.array(rng.random((h, w), np.float32)), gpu.array(rng.random((h, w), np.float32))
    un, vn = gpu.zeros((h, w), np.float32), gpu.zeros((h, w), np.float32)
    gpu.run(GRAY_SCOTT, "step", (4, 10), (16, 4), u, v, un, vn, w, h, 0.16, 0.08, 0.035, 0.065)

    def laplace(a: np.ndarray) -> np.ndarray:
        return np.roll(a, 1, 0) + np.roll(a, -1, 0) + np.roll(a, 1, 1) + np.roll(a, -1, 1) - 4 * a

    u64, v64 = u.astype(np.float64), v.astype(np.float64)
    np.testing.assert_allclose(un, u64 + 0.16 * laplace(u64) - u64 * v64**2 + 0.035 * (1 - u64), rtol=0, atol=1e-6)
    np.testing.assert_allclose(vn, v64 + 0.08 * laplace(v64) + u64 * v64**2 - 0.1 * v64, rtol=0, atol=1e-6)


def test_a_reduction_in_static_and_dynamic_shared_memory(gpu: Machine) -> None:
    source = """
    extern "C" __global__ void reduce(const int* x, int* y, int n) {
        __shared__ int fixed[128];
        extern __shared__ int moving[];
        int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
        fixed[t] = i < n ? x[i] : 0;
        moving[t] = i < n ? -x[i] : 0;
        for (int k = blockDim.x / 2; k; k >>= 1) {
            __syncthreads();
            if (t < k) { fixed[t] += fixed[t + k]; moving[t] += moving[t + k]; }
        }
        if (!t) { y[2 * blockIdx.x] = fixed[0]; y[2 * blockIdx.x + 1] = moving[0]; }
    }"""
    n = 1000
    x, y = gpu.array(np.random.default_rng(4).integers(-99, 99, n), np.int32), gpu.zeros(16, np.int32)
    kernel = gpu.kernel(source, "reduce")
    assert kernel.static_shared_bytes == 512
    gpu.launch(kernel, 8, 128, x, y, n, shared=512)
    sums = np.add.reduceat(x, np.arange(0, n, 128))
    np.testing.assert_array_equal(y[0::2], sums)
    np.testing.assert_array_equal(y[1::2], -sums)


def test_dynamic_shared_memory_that_was_not_asked_for_is_out_of_range(gpu: Machine) -> None:
    source = """extern "C" __global__ void k(int* y) { extern __shared__ int s[]; s[threadIdx.x] = 1; y[0] = s[0]; }"""
    with pytest.raises(DeviceFault) as fault:
        gpu.run(source, "k", 1, 32, gpu.zeros(1, np.int32), shared=64)
    assert fault.value.status == 700


def test_a_register_of_an_inner_scope_is_another_one_than_its_namesake(plain: Machine) -> None:
    """The compiler writes such scopes for `__syncthreads_and`: their names are those of its own numbered registers."""
    text = """.version 8.0\n.target sm_80\n.address_size 64
    .visible .entry k(.param .u64 out) {
        .reg .pred %p<2>; .reg .b32 %r<3>; .reg .b64 %rd<3>;
        mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 3;
        { .reg .pred %p1; setp.ne.u32 %p1, %r1, 3; }
        selp.u32 %r2, 9, 1, %p1;
        ld.param.u64 %rd1, [out]; mad.wide.u32 %rd2, %r1, 4, %rd1; st.global.u32 [%rd2], %r2;
        ret;
    }"""
    out = plain.zeros(5, np.int32)
    plain.launch(LoadedModule(text, plain.memory).functions["k"], 1, 5, out)
    assert out.tolist() == [1, 1, 1, 9, 1]


# Divergence


def test_a_barrier_in_loops_with_different_trip_counts_for_each_block(gpu: Machine) -> None:
    source = """
    extern "C" __global__ void k(int* out) {
        __shared__ int s[64];
        int t = threadIdx.x;
        s[t] = t;
        for (int round = 0; round < (int)blockIdx.x + 1; ++round) {
            __syncthreads();
            int next = s[(t + 1) % 64];
            __syncthreads();
            s[t] = next;
        }
        out[blockIdx.x * 64 + t] = s[t];
    }"""
    out = gpu.zeros((9, 64), np.int32)
    gpu.run(source, "k", 9, 64, out)
    expected = (np.arange(64)[None, :] + np.arange(1, 10)[:, None]) % 64
    np.testing.assert_array_equal(out, expected)


def test_lanes_that_exit_before_a_barrier_count_as_arrived(gpu: Machine) -> None:
    source = """
    extern "C" __global__ void k(int* out) {
        __shared__ int s[64];
        int t = threadIdx.x;
        s[t] = t * t;
        if (t >= 40 + (int)blockIdx.x) return;
        __syncthreads();
        out[blockIdx.x * 64 + t] = s[t ^ 1];
    }"""
    out = gpu.array(np.full((3, 64), -1), np.int32)
    gpu.run(source, "k", 3, 64, out)
    for block in range(3):
        lanes = np.arange(64)
        np.testing.assert_array_equal(out[block], np.where(lanes < 40 + block, (lanes ^ 1) ** 2, -1))


def test_a_rare_branch_that_the_compiler_lays_after_the_barrier(gpu: Machine) -> None:
    source = """
    extern "C" __global__ void k(int* out, const int* rare) {
        __shared__ int s[32];
        int t = threadIdx.x;
        s[t] = 1;
        if (__builtin_expect(rare[t], 0)) { int a = 0; for (int i = 0; i < t; ++i) a += rare[i] * i; s[t] = 100 + a; }
        __syncthreads();
        out[t] = s[31 - t];
    }"""
    rare = gpu.array((np.arange(32) % 7 == 3).astype(np.int32))
    out = gpu.zeros(32, np.int32)
    gpu.run(source, "k", 1, 32, out, rare)
    s = [100 + sum(i for i in range(t) if rare[i]) if rare[t] else 1 for t in range(32)]
    np.testing.assert_array_equal(out, s[::-1])


def test_barriers_in_both_arms_of_a_branch_on_the_block(gpu: Machine) -> None:
    source = """
    extern "C" __global__ void k(int* out) {
        __shared__ int s[32];
        int t = threadIdx.x;
        s[t] = t;
        if (blockIdx.x & 1) { __syncthreads(); out[blockIdx.x * 32 + t] = s[31 - t]; }
        else { __syncthreads(); out[blockIdx.x * 32 + t] = s[t ^ 3] * 2; }
    }"""
    out = gpu.zeros((4, 32), np.int32)
    gpu.run(source, "k", 4, 32, out)
    lanes = np.arange(32)
    np.testing.assert_array_equal(out, [(lanes ^ 3) * 2, 31 - lanes] * 2)


def test_nested_divergence_meets_again(gpu: Machine) -> None:
    source = """
    extern "C" __global__ void collatz(const int* start, int* steps, int* most) {
        int i = threadIdx.x + blockIdx.x * blockDim.x, n = start[i], count = 0, top = n;
        while (n != 1) {
            if (n & 1) { if (n % 3 == 0) n = 3 * n + 1; else { n = 3 * n; n += 1; } if (n > top) top = n; }
            else { do { n >>= 1; ++count; if (n == 1) break; } while (!(n & 1)); --count; }
            ++count;
        }
        steps[i] = count; most[i] = top;
    }"""
    start = gpu.array(np.arange(1, 257), np.int32)
    steps, most = gpu.zeros(256, np.int32), gpu.zeros(256, np.int32)
    gpu.run(source, "collatz", 4, 64, start, steps, most)
    for n, count, top in zip(range(1, 257), steps, most, strict=True):
        taken, highest = 0, n
        while n != 1:
            n = 3 * n + 1 if n % 2 else n // 2
            taken, highest = taken + 1, max(highest, n)
        assert (count, top) == (taken, highest)


def test_counting_barriers(gpu: Machine) -> None:
    source = """
    extern "C" __global__ void k(int* out) {
        int t = threadIdx.x, odd = (t % 3 == 1) && blockIdx.x == 1;
        int count = __syncthreads_count(odd), all = __syncthreads_and(t < 96), any = __syncthreads_or(odd);
        out[(blockIdx.x * 96 + t)] = count * 4 + (all != 0) * 2 + (any != 0);
    }"""
    out = gpu.zeros((2, 96), np.int32)
    gpu.run(source, "k", 2, 96, out)
    np.testing.assert_array_equal(out, [[2] * 96, [32 * 4 + 3] * 96])


def test_a_spinlock_between_lanes_makes_progress(plain: Machine) -> None:
    source = """
    extern "C" __global__ void k(int* lock, volatile int* sum) {
        bool done = false;
        while (!done) {
            if (atomicCAS(lock, 0, 1) == 0) {
                sum[0] = sum[0] + (int)threadIdx.x; __threadfence(); atomicExch(lock, 0); done = true; }
        }
    }"""
    lock, total = plain.zeros(1, np.int32), plain.zeros(1, np.int32)
    plain.run(source, "k", 2, 16, lock, total)
    assert (lock[0], total[0]) == (0, 240)


def test_blocks_of_different_chunks_may_wait_for_each_other(plain: Machine) -> None:
    source = """
    extern "C" __global__ void k(volatile int* arrived, int* out) {
        if (threadIdx.x == 0) { atomicAdd((int*)arrived, 1); while (*arrived < gridDim.x) { } }
        __syncthreads();
        out[blockIdx.x * blockDim.x + threadIdx.x] = *arrived;
    }"""
    blocks = 40
    arrived, out = plain.zeros(1, np.int32), plain.zeros(blocks * 1024, np.int32)
    plain.run(source, "k", blocks, 1024, arrived, out)
    assert (out == blocks).all()


def test_a_lane_that_waits_for_another_thread_of_the_host(gpu: Machine) -> None:
    source = """extern "C" __global__ void k(volatile int* flag, int* out) { while (*flag == 0) { } *out = *flag; }"""
    page = mmap.mmap(-1, 4096)
    flag = np.frombuffer(page, np.int32)
    gpu.memory.add(flag.ctypes.data, 4096)
    out = gpu.zeros(1, np.int32)
    kernel = gpu.kernel(source, "k")
    thread = threading.Thread(target=gpu.launch, args=(kernel, 1, 32, flag, out), daemon=True)
    thread.start()
    assert out[0] == 0
    flag[0] = 42
    thread.join(30)
    assert not thread.is_alive()
    assert out[0] == 42


# Faults


@pytest.mark.parametrize(
    ("expression", "status"),
    [
        ("out[1 << 20] = 1", 700),
        ("out[-1] = 1", 700),
        ("*(volatile int*)0 = 1", 700),
        ("out[threadIdx.x == 7 ? 1 << 28 : threadIdx.x] = 1", 700),
        ("out[0] = *(int*)0xdead0000ull", 700),
        ("*(int*)((char*)out + 2) = 1", 716),
        ("out[0] = *(volatile int*)((char*)out + threadIdx.x)", 716),
        ("*(volatile long long*)((char*)out + 4) = 1", 716),
        ("atomicAdd(out + (1 << 20), 1)", 700),
        ("if (threadIdx.x == 3) __trap()", 719),
    ],
)
def test_what_a_kernel_may_not_do(gpu: Machine, expression: str, status: int) -> None:
    out = gpu.zeros(32, np.int32)
    source = (
        f"""extern "C" __global__ void bad(volatile int* done, int* out) {{ done[threadIdx.x] = 1; {expression}; }}"""
    )
    done = gpu.zeros(32, np.int32)
    with pytest.raises(DeviceFault) as fault:
        gpu.run(source, "bad", 1, 32, done, out)
    assert fault.value.status == status
    assert "bad" in fault.value.message
    assert (done == 1).all(), "what was written before the fault stays"


def test_a_write_far_behind_the_end_reaches_nothing_even_with_the_highest_addresses(plain: Machine) -> None:
    source = """extern "C" __global__ void k(int* out, unsigned long long step) {
        *(int*)((unsigned long long)out + threadIdx.x * step) = 5; }"""
    out = plain.zeros(4, np.int32)
    with pytest.raises(DeviceFault) as fault:
        plain.run(source, "k", 1, 2, out, 1 << 63)
    assert fault.value.status == 700
    assert not out.any()


def test_an_assertion_names_its_place_as_cuda_does(gpu: Machine) -> None:
    source = """extern "C" __global__ void check(int* x, int bad) {
        assert(threadIdx.x != bad && "never");
        x[threadIdx.x] = 1; }"""
    with pytest.raises(DeviceFault) as fault:
        gpu.run(source, "check", (1, 2), (4, 2), gpu.zeros(8, np.int32), 3)
    assert fault.value.status == 710
    lines = gpu.text.splitlines()
    assert len(lines) == 4
    assert lines[0] == (
        "k.cu:2: void check(int *, int): block: [0,0,0], thread: [3,0,0] "
        'Assertion `threadIdx.x != bad && "never"` failed.'
    )
    assert "block: [0,1,0], thread: [3,1,0]" in lines[-1]


def test_printf_formats_as_c_does(gpu: Machine) -> None:
    source = r"""extern "C" __global__ void say(double x, long long big) {
        if (threadIdx.x < 2)
            printf("%d|%5.2f|%-6s|%c|%u|%llx|%lld|%e|%%|%05d|%#o|%hhd\n",
                   -(int)threadIdx.x, x, "ab", 'z', 4000000000u, big, -big, x, 42, 8, 300);
        int n = printf("");
        if (threadIdx.x == 31) printf("%d %s\n", n, (char*)0); }"""
    gpu.run(source, "say", 1, 32, 3.14159, 0x123456789ABC)
    expected = "| 3.14|ab    |z|4000000000|123456789abc|-20015998343868|3.141590e+00|%|00042|010|44"
    assert gpu.text.splitlines() == [f"0{expected}", f"-1{expected}", "0 (null)"]


# Calls, memory, atomics


def test_recursive_functions_and_structs_by_value(gpu: Machine) -> None:
    source = """
    struct Mix { int a; double b; float c[3]; };
    __noinline__ __device__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
    __noinline__ __device__ Mix twice(Mix m, int i) { m.a *= 2; m.b += i; m.c[i % 3] = -1; return m; }
    extern "C" __global__ void k(int* out, double* doubles, Mix m) {
        int i = threadIdx.x;
        Mix n = twice(m, i);
        out[i] = fib(i % 11) + n.a + (int)n.c[(i + 1) % 3];
        doubles[i] = n.b;
    }"""
    import struct

    out, doubles = gpu.zeros(32, np.int32), gpu.zeros(32, np.float64)
    mix = struct.pack("<i4xd3f4x", 21, 0.5, 10.0, 20.0, 30.0)
    gpu.run(source, "k", 1, 32, out, doubles, mix)
    fib = [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55]
    c = [10, 20, 30]
    np.testing.assert_array_equal(out, [fib[i % 11] + 42 + c[(i + 1) % 3] for i in range(32)])
    np.testing.assert_array_equal(doubles, 0.5 + np.arange(32))


def test_a_barrier_inside_of_a_device_function(gpu: Machine) -> None:
    source = """
    __noinline__ __device__ int turn(int* s, int by) {
        int t = threadIdx.x;
        __syncthreads(); int x = s[(t + by) % 64]; __syncthreads(); s[t] = x; return x; }
    extern "C" __global__ void k(int* out) {
        __shared__ int s[64]; int t = threadIdx.x; s[t] = t;
        int x = t < 20 ? turn(s, 1) : turn(s, 1);
        if (t == 63) return;
        out[blockIdx.x * 64 + t] = x + 1000 * (t < 20);
    }"""
    out = gpu.zeros((2, 64), np.int32)
    gpu.run(source, "k", 2, 64, out)
    lanes = np.arange(64)
    expected = np.where(lanes == 63, 0, (lanes + 1) % 64 + 1000 * (lanes < 20))
    np.testing.assert_array_equal(out, [expected, expected])


def test_function_pointers_and_virtual_calls(gpu: Machine) -> None:
    source = """
    typedef int (*fn)(int);
    __device__ int f0(int x) { return x + 1; }
    __device__ int f1(int x) { return x * x; }
    __device__ int f2(int x) { return -x; }
    __device__ fn table[3] = {f0, f1, f2};
    struct Base { __device__ virtual int get(int) = 0; };
    struct A : Base { int k; __device__ A(int k) : k(k) {} __device__ int get(int x) { return x + k; } };
    struct B : Base { __device__ int get(int x) { return x * 100; } };
    extern "C" __global__ void k(int* out, int* more) {
        int i = threadIdx.x;
        A a(7); B b; Base* p = i & 1 ? (Base*)&a : (Base*)&b;
        out[i] = table[i % 3](i); more[i] = p->get(i);
    }"""
    out, more = gpu.zeros(32, np.int32), gpu.zeros(32, np.int32)
    gpu.run(source, "k", 1, 32, out, more)
    i = np.arange(32)
    np.testing.assert_array_equal(out, np.choose(i % 3, [i + 1, i * i, -i]))
    np.testing.assert_array_equal(more, np.where(i & 1, i + 7, i * 100))


def test_module_variables_constants_and_pointers_to_them(gpu: Machine) -> None:
    source = """
    __constant__ float table[4] = {1, 2, 4, 8};
    __device__ int counter = 7;
    __device__ int* where = &counter;
    __device__ double grid[2][3];
    extern "C" __global__ void k(float* out) {
        int i = threadIdx.x; out[i] = table[i & 3] * *where + grid[i % 2][i % 3]; }
    extern "C" __global__ void bump() { atomicAdd(&counter, 3); }"""
    module = gpu.load(source)
    address, size = module.globals["table"]
    assert size == 16
    assert module.globals["grid"][1] == 48
    np.testing.assert_array_equal(gpu.memory.view(address, size).view("f4"), [1, 2, 4, 8])
    gpu.memory.view(address, size).view("f4")[3] = 100
    gpu.memory.view(*module.globals["grid"]).view("f8")[:] = np.arange(6)
    gpu.launch(module.functions["bump"], 2, 4)
    assert gpu.memory.view(*module.globals["counter"]).view("i4")[0] == 31
    out = gpu.zeros(8, np.float32)
    gpu.launch(module.functions["k"], 1, 8, out)
    i = np.arange(8)
    np.testing.assert_array_equal(out, np.array([1, 2, 4, 100])[i & 3] * 31 + (i % 2) * 3 + i % 3)
    module.unload()
    with pytest.raises(DeviceFault):
        gpu.memory.view(address, size)
    module.unload()


def test_local_arrays_and_generic_pointers(gpu: Machine) -> None:
    source = """
    __noinline__ __device__ void fill(int* p, int n, int v) { for (int i = 0; i < n; ++i) p[i] = v + i; }
    extern "C" __global__ void k(int* out, const int* pick) {
        __shared__ int s[64]; int local[8]; int t = threadIdx.x;
        fill(local, 8, t * 10);
        fill(&s[t], 1, t * 7);
        int* p = t & 1 ? &s[t] : &local[pick[t] & 7];
        out[t] = *p + (__isShared(p) ? 1000 : 0) + (__isLocal(p) ? 2000 : 0) + (__isGlobal(out) ? 4000 : 0);
    }"""
    pick, out = gpu.array(np.arange(64) * 3, np.int32), gpu.zeros(64, np.int32)
    kernel = gpu.kernel(source, "k")
    assert kernel.local_bytes >= 32
    gpu.launch(kernel, 1, 64, out, pick)
    t = np.arange(64)
    np.testing.assert_array_equal(out, np.where(t & 1, t * 7 + 1000, t * 10 + (t * 3 & 7) + 2000) + 4000)


def test_vector_loads_and_their_alignment(gpu: Machine) -> None:
    source = """extern "C" __global__ void k(const float4* x, float4* y, const char* raw, int shift) {
        int i = threadIdx.x; float4 v = x[i]; y[i] = make_float4(v.w, v.z, v.y, *(const float*)(raw + 16 * i));
        if (shift) y[i] = *(const float4*)(raw + 16 * i + shift); }"""
    x, y = gpu.array(np.arange(64), "f4"), gpu.zeros(64, "f4")
    gpu.run(source, "k", 1, 16, x, y, x, 0)
    np.testing.assert_array_equal(y.reshape(-1, 4), x.reshape(-1, 4)[:, [3, 2, 1, 0]])
    with pytest.raises(DeviceFault) as fault:
        gpu.run(source, "k", 1, 8, x, y, x, 4)
    assert fault.value.status == 716


def test_atomics_without_and_with_results(gpu: Machine) -> None:
    source = """
    typedef unsigned long long ull;
    extern "C" __global__ void k(int* sums, ull* wide, float* floats, double* doubles, int* tickets, unsigned* misc) {
        __shared__ int local[4];
        int i = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.x;
        if (t < 4) local[t] = 0;
        __syncthreads();
        atomicAdd(&sums[i % 5], i); atomicMax(&sums[5], i); atomicMin(&sums[6], -i);
        atomicAdd(wide, (ull)i << 20); atomicOr(wide + 1, 1ull << (i % 64)); atomicXor(wide + 2, (ull)i);
        atomicAdd(floats, 0.5f); atomicAdd(doubles, 0.25);
        tickets[i] = atomicAdd(&sums[7], 2);
        atomicAdd(&local[i & 3], 1);
        misc[16 + i] = atomicInc(misc, 6); atomicDec(misc + 1, 9); atomicAnd(misc + 2, ~(1u << (i & 31)));
        __syncthreads();
        if (t < 4) atomicAdd(&sums[8 + t], local[t]);
        misc[16 + 512 + i] = atomicExch(misc + 3, i);
        misc[16 + 1024 + i] = atomicCAS(misc + 4, i, i + 1);
    }"""
    n = 512
    sums, wide, misc = gpu.zeros(12, np.int32), gpu.zeros(3, np.uint64), gpu.zeros(16 + 3 * n, np.uint32)
    floats, doubles, tickets = gpu.zeros(1, np.float32), gpu.zeros(1, np.float64), gpu.zeros(n, np.int32)
    misc[2] = 0xFFFFFFFF
    gpu.run(source, "k", 4, 128, sums, wide, floats, doubles, tickets, misc)
    i = np.arange(n)
    np.testing.assert_array_equal(sums[:5], [i[i % 5 == r].sum() for r in range(5)])
    assert (sums[5], sums[6], sums[7]) == (511, -511, 1024)
    np.testing.assert_array_equal(sums[8:], [128] * 4)
    assert wide.tolist() == [int(i.sum()) << 20, 2**64 - 1, int(np.bitwise_xor.reduce(i))]
    assert (floats[0], doubles[0]) == (256.0, 128.0)
    np.testing.assert_array_equal(np.sort(tickets), 2 * i)
    np.testing.assert_array_equal(np.bincount(misc[16 : 16 + n]), np.bincount(i % 7))
    assert misc[0] == n % 7
    assert misc[1] == (0 - n) % 10
    assert misc[2] == 0
    exchanged = misc[16 + n : 16 + 2 * n]
    np.testing.assert_array_equal(np.sort(np.append(exchanged, misc[3])), np.sort(np.append(i, 0)))
    assert misc[4] >= 1
    old = misc[16 + 2 * n :]
    assert (old == i).sum() == misc[4], "each success moves the word by one"


def test_atomic_sums_of_16_bit_floats_and_of_vectors() -> None:
    source = """
    extern "C" __global__ void k(unsigned* pairs, unsigned short* single, float4* four, unsigned* old, float4* before) {
        int t = threadIdx.x;
        unsigned one_two = 0x40003c00u, brain = 0x40003f80u, o;  // the pairs (1, 2) in both formats
        asm volatile("atom.global.add.noftz.f16x2 %0, [%1], %2;" : "=r"(o) : "l"(pairs), "r"(one_two));
        old[t] = o;
        asm volatile("red.global.add.noftz.bf16x2 [%0], %1;" :: "l"(pairs + 1), "r"(brain));
        asm volatile("red.global.add.noftz.bf16 [%0], %1;" :: "l"(single), "h"((unsigned short)0x3f80));
        before[t] = atomicAdd(four, make_float4(1, 2, 0.5f, t));
    }"""
    gpu, n = Machine("compute_90"), 40
    pairs, single, four = gpu.zeros(2, np.uint32), gpu.zeros(2, np.uint16), gpu.zeros(4, np.float32)
    old, before = gpu.zeros(n, np.uint32), gpu.zeros((n, 4), np.float32)
    gpu.run(source, "k", 1, n, pairs, single, four, old, before)
    assert pairs[:1].view(np.float16).tolist() == [n, 2 * n]
    brains = (np.append(pairs[1:].view(np.uint16), single[:1]).astype(np.uint32) << np.uint32(16)).view(np.float32)
    assert brains.tolist() == [n, 2 * n, n]
    found = np.sort(old.view(np.float16).reshape(n, 2).astype(np.float64), axis=0)
    np.testing.assert_array_equal(found, np.stack([np.arange(n), 2 * np.arange(n)], axis=1))
    assert four.tolist() == [n, 2 * n, n / 2, n * (n - 1) / 2]
    np.testing.assert_array_equal(np.sort(before[:, 0]), np.arange(n))


def test_the_first_lane_of_a_mask_is_elected() -> None:
    source = """
    __device__ int elected(unsigned mask, unsigned* leader) {
        int r;
        asm volatile("{ .reg .pred p; elect.sync %1|p, %2; selp.s32 %0, 1, 0, p; }"
                     : "=r"(r), "=r"(*leader) : "r"(mask));
        return r; }
    extern "C" __global__ void k(int* out, unsigned* leaders) {
        int t = threadIdx.x, lane = t % 32;
        asm volatile("griddepcontrol.wait;");
        out[t] = lane < 12 ? elected(0x00000fffu, &leaders[t]) : elected(0xfffff000u, &leaders[t]); }"""
    gpu = Machine("compute_90")
    out, leaders = gpu.zeros(64, np.int32), gpu.zeros(64, np.uint32)
    gpu.run(source, "k", 1, 64, out, leaders)
    lane = np.arange(64) % 32
    np.testing.assert_array_equal(out, (lane == 0) | (lane == 12))
    np.testing.assert_array_equal(leaders, np.where(lane < 12, 0, 12))


def test_shuffles_votes_and_matches(gpu: Machine) -> None:
    source = """
    extern "C" __global__ void k(int* out, const int* in) {
        int t = threadIdx.x, v = in[t];
        int* o = out + t * 10;
        o[0] = __shfl_down_sync(~0u, v, 3); o[1] = __shfl_up_sync(~0u, v, 2); o[2] = __shfl_xor_sync(~0u, v, 5, 8);
        o[3] = __shfl_sync(~0u, v, 9); o[4] = __ballot_sync(~0u, v > 0);
        o[5] = __any_sync(~0u, v == 3) * 2 + __all_sync(~0u, v < 100);
        o[6] = __match_any_sync(~0u, v & 3);
        int sum = v;
        for (int k = 16; k; k >>= 1) sum += __shfl_xor_sync(~0u, sum, k);
        o[7] = sum;
        o[8] = -1;
        if (t % 2) o[8] = __shfl_down_sync(0xaaaaaaaau, v, 2);
        else o[8] = __popc(__activemask());
        o[9] = __reduce_max_sync(~0u, v);
    }"""
    values = np.random.default_rng(8).integers(-9, 9, 64).astype(np.int32)
    out = gpu.zeros((64, 10), np.int32)
    gpu.run(source, "k", 1, 64, out, gpu.array(values))
    for t in range(64):
        warp, lane = values[t // 32 * 32 :][:32], t % 32
        odd = warp[lane + 2] if lane + 2 < 32 else warp[lane]
        ballot = sum(1 << j for j in range(32) if warp[j] > 0)
        same = sum(1 << j for j in range(32) if warp[j] & 3 == warp[lane] & 3)
        expected = [
            warp[lane + 3] if lane + 3 < 32 else warp[lane],
            warp[lane - 2] if lane >= 2 else warp[lane],
            warp[lane ^ 5],
            warp[9],
            np.uint32(ballot).view(np.int32),
            2 * bool((warp == 3).any()) + 1,
            np.uint32(same).view(np.int32),
            warp.sum(),
            odd if lane % 2 else 16,
            warp.max(),
        ]
        assert out[t].tolist() == [int(value) for value in expected], t


def test_a_warp_that_lost_lanes_still_shuffles(gpu: Machine) -> None:
    source = """extern "C" __global__ void k(int* out) {
        int t = threadIdx.x; if (t % 4 == 3) return;
        int sum = 1; for (int i = 0; i < t % 3; ++i) sum += t;
        out[t] = __ballot_sync(~0u, sum > 1); }"""
    out = gpu.zeros(64, np.uint32)
    gpu.run(source, "k", 1, 64, out)
    expected = (
        sum(1 << lane for lane in range(32) if lane % 4 != 3 and lane % 3 and lane),
        sum(1 << lane for lane in range(32) if lane % 4 != 3 and (lane + 32) % 3),
    )
    for t in range(64):
        assert out[t] == (0 if t % 4 == 3 else expected[t // 32])


def test_switches(gpu: Machine) -> None:
    source = """extern "C" __global__ void k(int* out, const int* in) { int i = threadIdx.x, r = 0;
        switch (in[i]) {
            case 0: r = 5; break; case 1: r = in[i + 1] * 3; break; case 2: r = -in[i + 2]; break; case 3: r = i; break;
            case 4: r = i * i; break; case 5: r = 9 / (i + 1); break; case 6: r = i ^ 77; break; case 9: r = 1; break;
            default: r = -1; }
        out[i] = r; }"""
    values = np.random.default_rng(9).integers(0, 12, 66).astype(np.int32)
    out = gpu.zeros(64, np.int32)
    gpu.run(source, "k", 1, 64, out, gpu.array(values))
    for i in range(64):
        cases = {0: 5, 1: values[i + 1] * 3, 2: -values[i + 2], 3: i, 4: i * i, 5: 9 // (i + 1), 6: i ^ 77, 9: 1}
        assert out[i] == cases.get(int(values[i]), -1)


def test_device_malloc(plain: Machine) -> None:
    source = """extern "C" __global__ void k(int* out) { int t = threadIdx.x; int* p = (int*)malloc(4 * (t + 1));
        for (int i = 0; i <= t; ++i) p[i] = i; int s = 0; for (int i = 0; i <= t; ++i) s += p[i]; out[t] = s; free(p);
        if (t == 0) out[40] = malloc(1ull << 40) == 0; }"""
    out = plain.zeros(41, np.int32)
    plain.run(source, "k", 1, 40, out)
    np.testing.assert_array_equal(out, [*(t * (t + 1) // 2 for t in range(40)), 1])


def test_clocks_move_forward_and_special_registers_are_right(gpu: Machine) -> None:
    source = """extern "C" __global__ void k(long long* out, unsigned* ids) {
        long long a = clock64(); long long b = clock64();
        int t = threadIdx.x + threadIdx.y * blockDim.x + threadIdx.z * blockDim.x * blockDim.y;
        int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
        int i = block * blockDim.x * blockDim.y * blockDim.z + t;
        out[i] = b - a; unsigned lane; asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
        ids[i] = lane + 100 * threadIdx.z + 1000 * blockIdx.z + 10000 * blockIdx.y; }"""
    out, ids = gpu.zeros(2 * 3 * 2 * 24, np.int64), gpu.zeros(2 * 3 * 2 * 24, np.uint32)
    gpu.run(source, "k", (2, 3, 2), (4, 3, 2), out, ids)
    assert (out >= 0).all()
    assert out.any()
    t, block = np.arange(24), np.arange(12)[:, None]
    expected = t + 100 * (t // 12) + 1000 * (block // 6) + 10000 * (block // 2 % 3)
    np.testing.assert_array_equal(ids.reshape(12, 24), expected)


def test_launch_bounds_and_parameter_layout(gpu: Machine) -> None:
    source = """struct P { char c; long long l; };
    extern "C" __global__ void __launch_bounds__(128) k(char a, double b, short c, P p, int* out) {
        out[0] = a + (int)b + c + p.c + (int)p.l; }"""
    import struct

    kernel = gpu.kernel(source, "k")
    assert kernel.parameters == ((0, 1), (8, 8), (16, 2), (24, 16), (40, 8))
    assert (kernel.parameter_bytes, kernel.max_threads_per_block) == (48, 128)
    assert kernel.registers > 0
    out = gpu.zeros(1, np.int32)
    gpu.launch(kernel, 1, 1, -3, 1000.0, 20, struct.pack("<b7xq", 5, 70000), out)
    assert out[0] == -3 + 1000 + 20 + 5 + 70000
    with pytest.raises(ValueError, match="48 bytes"):
        kernel.launch((1, 1, 1), (1, 1, 1), 0, b"", print)


def test_two_launches_at_once_share_atomics(plain: Machine) -> None:
    source = """extern "C" __global__ void k(int* sum) { for (int i = 0; i < 20; ++i) atomicAdd(sum, 1); }"""
    total = plain.zeros(1, np.int32)
    kernel = plain.kernel(source, "k")
    threads = [threading.Thread(target=plain.launch, args=(kernel, 8, 64, total)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total[0] == 4 * 20 * 512


def test_nothing_stays_accessible_after_a_launch_nor_after_a_fault(plain: Machine) -> None:
    source = """
    __noinline__ __device__ int sum(const int* p) { int s = 0; for (int i = 0; i < 9; ++i) s += p[i]; return s; }
    extern "C" __global__ void k(int* out, int bad) {
        __shared__ int s[32]; int local[9]; int t = threadIdx.x;
        for (int i = 0; i < 9; ++i) local[i] = out[i] + t;
        s[t] = sum(local); __syncthreads();
        out[t] = sum(s) + (t == bad ? *(int*)8 : 0);
    }"""
    out = plain.zeros(32, np.int32)
    kernel = plain.kernel(source, "k")
    before = dict(plain.memory._regions)
    plain.launch(kernel, 3, 32, out, 99)
    assert out.any()
    assert plain.memory._regions == before
    with pytest.raises(DeviceFault):
        plain.launch(kernel, 3, 32, out, 5)
    assert plain.memory._regions == before


def test_recursion_without_end_is_a_stack_error(plain: Machine) -> None:
    source = """
    __noinline__ __device__ int down(int n, volatile int* p) { return *p ? n : down(n + 1, p) + *p; }
    extern "C" __global__ void k(int* out) { out[1] = down(0, out); }"""
    with pytest.raises(DeviceFault) as fault:
        plain.run(source, "k", 1, 1, plain.zeros(2, np.int32))
    assert fault.value.status == 714


def test_lanes_that_exit_inside_of_a_function_do_not_return(gpu: Machine) -> None:
    source = """
    __noinline__ __device__ int half(int t) { if (t & 1) asm volatile("exit;"); return t * 2; }
    extern "C" __global__ void k(int* out) {
        int t = threadIdx.x, r = half(t); __syncthreads(); out[t] = r + __popc(__activemask()); }"""
    out = gpu.array(np.full(64, -1), np.int32)
    gpu.run(source, "k", 1, 64, out)
    t = np.arange(64)
    np.testing.assert_array_equal(out, np.where(t & 1, -1, t * 2 + 16))


def test_asynchronous_copies_into_shared_memory(gpu: Machine) -> None:
    source = """
    extern "C" __global__ void k(int* out, const int* in) {
        __shared__ __align__(16) int s[128];
        unsigned to = (unsigned)__cvta_generic_to_shared(s + 4 * threadIdx.x);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(to), "l"(in + 4 * threadIdx.x));
        asm volatile("cp.async.commit_group;"); asm volatile("cp.async.wait_group 0;");
        __syncthreads();
        for (int i = threadIdx.x; i < 128; i += 32) out[i] = s[127 - i];
    }"""
    values = np.random.default_rng(10).integers(0, 999, 128)
    out = gpu.zeros(128, np.int32)
    gpu.run(source, "k", 1, 32, out, gpu.array(values, np.int32))
    np.testing.assert_array_equal(out, values[::-1])


@pytest.mark.parametrize("option", ["--device-debug", "--generate-line-info", "--relocatable-device-code=true"])
def test_other_compiler_options_write_ptx_that_runs_too(gpu: Machine, option: str) -> None:
    source = """
    struct Point { float x, y; };
    __device__ Point turn(Point p) { Point q = {-p.y, p.x}; return q; }
    extern "C" __global__ void k(Point* p, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x; for (int k = 0; i < n && k < 3; ++k) p[i] = turn(p[i]); }"""
    p = random(13, (100, 2))
    points = gpu.array(p)
    gpu.launch(gpu.kernel(source, "k", option), 4, 32, points, 100)
    np.testing.assert_array_equal(points, np.stack([p[:, 1], -p[:, 0]], axis=1))
