"""Which parameters a kernel provably only reads, for every way that leads around a `const`.

Each kernel gets `x`, which it may only read or not, and `y`, which it writes. Compiled as usual and with debug
information, for which all goes through the stack: there nothing may be proven that is not true.
"""

from __future__ import annotations

import pytest

from atomr_trio import NvrtcOptions
from atomr_trio._compiling.caching import CachingCompiler, Job
from atomr_trio._compiling.nvrtc_library import supported_architectures
from atomr_trio._compiling.reads import proven_reads

PRELUDE = """
struct Pair { int *first, *second; };
struct Held { mutable int value; };
__device__ int *kept;
__device__ int sum;
__device__ __noinline__ void store(int *p, int v) { *p = v; }
__device__ __noinline__ int load(const int *p) { return *p; }
__device__ int *through(const int *p) { return const_cast<int *>(p) + 1; }
"""

READS = {
    "a load": "y[0] = x[threadIdx.x];",
    "a loaded index": "y[x[threadIdx.x]] = 1;",
    "a null check": "if (x) y[0] = 1;",
    "a comparison": "y[0] = x < y;",
    "a select of values": "y[0] = threadIdx.x ? x[0] : x[1];",
    "a loop": "for (int i = 0; i < 10; ++i) y[i] += x[i] * i;",
    "a pointer that moves": "const int *p = x; while (*p) y[0] += *p++;",
    "an inlined callee": "y[0] = *through(x);",
    "shared memory for its values": """
        __shared__ int s[32]; s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); y[0] = s[3];""",
    "a local array of its values": "int t[4] = {x[0], x[1], x[2], x[3]}; y[0] = t[y[1] & 3];",
    "an atomic on another": "atomicAdd(y, x[0]);",
    "the read-only cache": "y[0] = __ldg(x);",
    "a cast to an address": "y[0] = *(const int *)((unsigned long long)x + 4);",
    "inline assembly that loads": 'int v; asm("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(x)); y[0] = v;',
    "a write of the whole program's variable": "sum = x[0];",
    "a printed value": 'printf("%d", x[0]); y[0] = 1;',
    "an assertion": "assert(x[0] == 1); y[0] = 1;",
    "no use at all": "y[0] = 1;",
}
"""Bodies that only read `x`, and for which that is proven in optimised code."""

WRITES = {
    "a store": "x[0] = 1;",
    "a cast of a const": "const int *p = x; *(int *)p = 1;",
    "a cast to an integer and back": "*(int *)((unsigned long long)x + 8) = 1;",
    "a mutable member": "const Held *p = (const Held *)x; p->value = 1;",
    "an atomic": "atomicAdd(x, 1);",
    "an atomic whose result is kept": "y[0] = atomicExch(x, 2);",
    "a compare and swap": "atomicCAS(x, 1, 2);",
    "inline assembly": 'asm volatile("st.global.u32 [%0], %1;" :: "l"(x), "r"(7) : "memory");',
    "inline assembly with registers of its own": """
        asm volatile("{ .reg .u64 a; add.u64 a, %0, 4; st.global.u32 [a], %1; }" :: "l"(x), "r"(7) : "memory");""",
    "inline assembly with numbered registers": """
        asm volatile("{ .reg .u64 a<3>; add.u64 a2, %0, 4; st.global.u32 [a2], %1; }" :: "l"(x), "r"(7) : "memory");""",
    "a struct": "Pair p = {y, x}; p.second[0] = 1;",
    "a callee that is inlined": "*through(x) = 1;",
    "a callee that is not": "store(x, 1);",
    "a select": "int *p = n ? x : y; *p = 1;",
    "a select without a branch": "int *p = y; p = n > 3 ? x : p; p[threadIdx.x] = 1;",
    "a loop that exchanges them": """
        int *p = x, *q = y; for (int i = 0; i < n; ++i) { int *t = p; p = q; q = t; } *p = 1;""",
    "a local array": "int *p[2] = {y, x}; *p[n & 1] = 1;",
    "shared memory": "__shared__ int *s; if (!threadIdx.x) s = x; __syncthreads(); *s = 1;",
    "a variable": "kept = x; __threadfence(); *kept = 1;",
    "a generic address": "*(int *)__cvta_global_to_generic(__cvta_generic_to_global(x)) = 1;",
    "an asynchronous copy to it": """
        __shared__ __align__(16) int s[4]; s[threadIdx.x & 3] = 1; __syncthreads();
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 16;"
                     :: "l"(x), "r"((unsigned)__cvta_generic_to_shared(s)) : "memory");""",
    "halves of an address": """
        unsigned lo = (unsigned)(unsigned long long)x, hi = (unsigned)((unsigned long long)x >> 32);
        *(int *)(((unsigned long long)hi << 32) | lo) = 1;""",
    "a shuffle of addresses": "*(int *)__shfl_xor_sync(~0u, (unsigned long long)x, 1) = 1;",
    "an address that is given away": "*(const int **)y = x;",
    "a vector store": "*(int4 *)x = make_int4(1, 2, 3, 4);",
    "a reduction": 'asm volatile("red.global.add.u32 [%0], 1;" :: "l"(x) : "memory");',
    "an instruction that is discarding": 'asm volatile("discard.global.L2 [%0], 128;" :: "l"(x) : "memory");',
}
"""Bodies that write `x`, or that let something else do so."""

UNPROVABLE = {
    "a store through a loaded address": "*(int *)((unsigned long long *)y)[1] = x[0];",
    "a store through a number": "*(int *)number = x[0];",
    "a callee whose code is not followed": "y[0] = load(x);",
    "an instruction of which nothing is known": """
        asm volatile("tensormap.replace.tile.global_address.global.b1024.b64 [%0], %1;" :: "l"(y), "l"(number));
        y[0] = x[0];""",
}
"""Bodies that read `x`, which is not proven: there is a write that may lead anywhere."""

NEEDS_90 = ("an asynchronous copy to it", "an instruction of which nothing is known")
ARCHITECTURES = ("compute_80", "compute_100")


def reads_of(body: str, arch: str, *, debug: bool) -> frozenset[int]:
    """Which of x, y, n and number the kernel with this body provably only reads; those that arrays may be given for."""
    source = f"""{PRELUDE}
    extern "C" __global__ void k(int *x, int *y, int n, unsigned long long number) {{ {body} }}"""
    if int(arch.removeprefix("compute_")) > supported_architectures()[-1]:
        pytest.skip(f"this NVRTC does not compile for {arch}")
    target = f"{arch}a" if "tensormap" in body else arch
    options = NvrtcOptions(arch=target, debug=debug)
    program = CachingCompiler().answer(Job(source, options, target)).program
    signature = program.entries["k"]
    assert signature.typed
    return frozenset(each.index for each in signature.parameters if each.reads)


def cases(bodies: dict[str, str]) -> list[object]:
    archs = {name: ("compute_90",) if name in NEEDS_90 else ARCHITECTURES for name in bodies}
    return [pytest.param(body, arch, id=f"{name}-{arch}") for name, body in bodies.items() for arch in archs[name]]


@pytest.mark.parametrize(("body", "arch"), cases(READS))
def test_what_a_kernel_only_reads_is_proven(body: str, arch: str) -> None:
    assert 0 in reads_of(body, arch, debug=False)
    assert 1 not in reads_of(body, arch, debug=False) or "y[" not in body


@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
@pytest.mark.parametrize(("body", "arch"), cases(WRITES))
def test_what_a_kernel_writes_is_no_read_however_it_comes_there(body: str, arch: str, debug: bool) -> None:
    assert 0 not in reads_of(body, arch, debug=debug)


@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
@pytest.mark.parametrize(("body", "arch"), cases(UNPROVABLE))
def test_a_write_that_may_lead_anywhere_ends_the_proof(body: str, arch: str, debug: bool) -> None:
    assert reads_of(body, arch, debug=debug) == frozenset()


HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"


def proven(body: str, parameters: str = ".param .u64 a, .param .u64 b") -> frozenset[int]:
    """Of a kernel written in PTX by hand."""
    return proven_reads(f"{HEAD}.entry k({parameters}) {{ {body} }}", {"k": frozenset({0, 1})})["k"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("ld.param.u64 %rd1, [a]; ret;", {0, 1}),
        (".reg .u64 p<4>; ld.param.u64 p3, [a]; st.global.u32 [p3], 1; ret;", {1}),
        ("{ .reg .u64 p; ld.param.u64 p, [a]; { st.global.u32 [p], 1; } }", {1}),
        ("L1: ld.param.u64 %p1, [b]; @%q bra L1; L2:L3: @!%q st.global.u32 [%p1+4], %r1;", {0}),
        ("ld.param.u64 %p1, [a]; .loc 1 2 3\nst.u32 [%p1], 0;", {1}),
        ("ld.param.u64 %p1, [a]; .loc 1 2 3 st.u32 [%p1], 0;", {1}),
        ("ld.param.u64 %p1, [a]; .loc 1 2 3, function_name f+4, inlined_at 1 2 3 st.u32 [%p1], 0;", {1}),
        ("ld.param.u64 %p1, [a]; .directive 5 st.u32 [%p1], 0;", set()),
        ('ld.param.u64 %p1, [a]; // "\nst.u32 [%p1], 0; /* */', {1}),
        ("mov.u64 %p1, a; ld.param.u64 %p2, [%p1]; ret;", {1}),
        ("mov.u64 %p1, a; ld.param.u64 %p2, [%p1]; st.u32 [%p2], 0;", set()),
        ("ld.param.v2.u64 {%p1, %p2}, [a]; st.u32 [%p2], 0;", set()),
        ("ld.param.b128 %q1, [a]; ret;", set()),
        ("ld.param.u64 %p1, [a+8]; st.u32 [%p1], 0;", set()),
        ("ld.param.u64 %p1, [a + 0x4]; ret;", set()),
        ("ld.param.u64 %p1, [a+0]; st.u32 [%p1], 0;", {1}),
        ("ld.param.v2.u32 {%r1, %r2}, [a]; mov.b64 %p1, {%r1, %r2}; st.u32 [%p1], 0;", {1}),
        ("ld.param.u32 %r1, [a+4]; ld.param.u8 %r2, [a+7]; ret;", {0, 1}),
        ("ld.param.u64 %p1, [b+-8]; st.u32 [%p1], 0;", set()),
        ("ld.param.strange %p1, [a]; ret;", set()),
        ("ld.param.u64 %p1, [a]; mov.b64 {%r1, %r2}, %p1; mov.b64 %p2, {%r1, %r2}; st.u32 [%p2], 0;", {1}),
        ("ld.param.u64 %p1, [a]; mov.u32 %r1, %tid.x; add.u64 %p2, %r1, %p3; st.u32 [%p2], 0;", set()),
        ("ld.param.u64 %p1, [a]; frobnicate.u64 %p2, %p1;", set()),
        ("call.uni somewhere;", set()),
        ("call.uni (r), vprintf, (p, q);", {0, 1}),
        ("ld.param.u64 %p1, [a]; st.param.b64 [p], %p1; call.uni (r), vprintf, (p, q);", {1}),
        ("st.shared.u32 [%r1], 0;", {0, 1}),
        ("st.u32 [%r1], 0;", set()),
        ("st;", set()),
        ("ld.param.u64;", set()),
    ],
)
def test_ptx_that_was_written_by_hand_is_read_too(body: str, expected: set[int]) -> None:
    assert proven(body) == expected
