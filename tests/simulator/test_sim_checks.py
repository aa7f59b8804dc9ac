"""The simulator's checks of what kernels do to memory: planted mistakes are found, where they are and by whom.

At the level of the driver's bindings, each launch in a process of its own: a finding costs the context.
"""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atomr_sim import checks
from atomr_sim.checks.findings import MOST, Finding, Findings
from atomr_sim.checks.sites import PTX, Sites
from atomr_sim.engine.memory import DEVICE, DeviceFault
from atomr_sim.engine.simt import LoadedModule
from support.nvrtc import compile_ptx
from support.sim import Machine
from support.sim_process import run_in_process

pytestmark = pytest.mark.sim_only

ILLEGAL_ADDRESS, LAUNCH_FAILED = 700, 719

PRELUDE = """
import json
from support.nvrtc import compile_ptx
begin()
module = c_void_p()
source = open(os.environ["SOURCE"]).read()
driver.cuModuleLoadData(module, compile_ptx(source, "compute_80", "-lineinfo").encode())
def tell(**event):
    with open(os.path.join(os.environ["ATOMR_TRIO_SIM_CHECK_FOLDER"], "arrays"), "a") as file:
        file.write(json.dumps(event) + "\\n")
def array(address, shape, dtype="float32", size=4, **more):
    count = 1
    for extent in shape: count *= extent
    tell(allocated=address, size=count * size, dtype=dtype, shape=shape, place="app.py:7", **more)
    return c_uint64(address)
def go(*arguments, **extent):
    launch(function(module, "k"), None, *arguments, **extent)
    print("status", driver.cuCtxSynchronize.status())
"""


@dataclass(frozen=True)
class Planted:
    """A kernel with a mistake in the line that says so, how it is launched, and what must be found."""

    name: str
    source: str
    calls: str
    check: str
    what: str
    """A pattern for all of the sentence."""
    array: str | None
    index: Any
    block: tuple[int, int, int] = (0, 0, 0)
    thread: tuple[int, int, int] = (0, 0, 0)
    status: int = ILLEGAL_ADDRESS
    after: str = ""
    """What the process prints after the status."""


COPY = """
extern "C" __global__ void k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n)
        y[i] = x[i];  // planted
}
"""
PLANTED = (
    Planted(
        "a read and a write past the end of arrays in one mapping, which goes on",
        COPY,
        """
        base, _ = durable()
        write(base, bytes(range(256)) * 8)
        x, y = array(base, [256]), array(base + 1024, [256], written=True)
        go(x, y, c_int(256), grid=(5, 1, 1), block=(64, 1, 1))
        print((ctypes.c_char * 2052).from_address(base)[1024:] == bytes(range(256)) * 4 + bytes(4))
        """,
        "bounds",
        r"write of 4 bytes outside of array float32\[256\] of app\.py:7: index 256 of 256 items",
        "array float32[256] of app.py:7",
        256,
        (4, 0, 0),
        (0, 0, 0),
        after="True",
    ),
    Planted(
        "a read before the beginning of an array of two dimensions",
        """
        extern "C" __global__ void k(const double* x, double* y) {
            int row = threadIdx.y, column = threadIdx.x;
            double left = x[row * 8 + column - 1];  // planted
            y[row * 8 + column] = left;
        }
        """,
        """
        base, _ = durable()
        x = array(base + 4096, [4, 8], "float64", 8, written=True)
        y = array(base + 8192, [4, 8], "float64", 8)
        go(x, y, block=(8, 4, 1))
        """,
        "bounds",
        r"read of 8 bytes outside of array float64\[4, 8\] of app\.py:7: index -1 of 32 items",
        "array float64[4, 8] of app.py:7",
        -1,
    ),
    Planted(
        "a region of the driver, where there is no memory behind",
        COPY,
        """
        x, y = allocate(4096), allocate(8192)
        write(x, bytes(4096))
        go(c_uint64(x), c_uint64(y), c_int(1024), grid=(9, 1, 1), block=(128, 1, 1))
        """,
        "bounds",
        r"read of 4 bytes outside of device memory of 4,096 bytes: index 1,024 of 1,024 items",
        "device memory of 4,096 bytes",
        1024,
        (8, 0, 0),
    ),
    Planted(
        "shared memory",
        """
        extern "C" __global__ void k(int* out) {
            __shared__ int s[48];
            s[threadIdx.x] = threadIdx.x;
            __syncthreads();
            out[threadIdx.x] = s[threadIdx.x + 1];  // planted
        }
        """,
        "go(c_uint64(allocate(4096)), grid=(3, 1, 1), block=(48, 1, 1))",
        "bounds",
        r"read of 4 bytes outside of the shared memory of 192 bytes: offset 192 \(3 times in this launch\)",
        "shared memory of 192 bytes",
        48,
        (0, 0, 0),
        (47, 0, 0),
    ),
    Planted(
        "a variable of the module",
        """
        __device__ int table[4] = {1, 2, 3, 4};
        extern "C" __global__ void k(int* out) {
            out[threadIdx.x] =
                table[threadIdx.x];  // planted
        }
        """,
        "go(c_uint64(allocate(4096)), block=(5, 1, 1))",
        "bounds",
        r"read of 4 bytes outside of variable table of 16 bytes: index 4 of 4 items",
        "variable table of 16 bytes",
        4,
        (0, 0, 0),
        (4, 0, 0),
    ),
    Planted(
        "an atomic, of which those inside are done",
        """
        extern "C" __global__ void k(int* bins) {
            atomicAdd(&bins[threadIdx.x % 9], 1);  // planted
        }
        """,
        """
        base, _ = durable()
        go(array(base, [8], "int32", written=True), block=(90, 1, 1))
        print([*(ctypes.c_int * 10).from_address(base)])
        """,
        "bounds",
        r"atomic access to 4 bytes outside of array int32\[8\] of app\.py:7: index 8 of 8 items \(10 times .*\)",
        "array int32[8] of app.py:7",
        8,
        (0, 0, 0),
        (8, 0, 0),
        after="[10, 10, 10, 10, 10, 10, 10, 10, 0, 0]",
    ),
    Planted(
        "a function that was inlined names its caller",
        """
        __device__ __forceinline__ float next(const float* x, int i) {
            return x[i + 1];  // planted
        }
        extern "C" __global__ void k(const float* x, float* y) {
            y[threadIdx.x] = next(x, threadIdx.x);
        }
        """,
        """
        base, _ = durable()
        go(array(base, [32], written=True), array(base + 4096, [32]), block=(32, 1, 1))
        """,
        "bounds",
        r"read of 4 bytes outside of array float32\[32\] of app\.py:7: index 32 of 32 items, called from .*k\.cu:5",
        "array float32[32] of app.py:7",
        32,
        (0, 0, 0),
        (31, 0, 0),
    ),
    Planted(
        "a pointer to nowhere",
        """
        extern "C" __global__ void k(int* out, int* wild) {
            if (threadIdx.x == 5) *wild = 1;  // planted
            out[threadIdx.x] = 1;
        }
        """,
        "go(c_uint64(allocate(4096)), c_uint64(0x1000), block=(32, 1, 1))",
        "bounds",
        r"write of 4 bytes at 0x1000, which is not near any array",
        None,
        None,
        (0, 0, 0),
        (5, 0, 0),
    ),
    Planted(
        "an asynchronous copy of which a part is outside",
        """
        extern "C" __global__ void k(const float4* x, float* out, int n) {
            __shared__ float4 s[32];
            unsigned to = __cvta_generic_to_shared(&s[threadIdx.x]);
            const float4* from = x + threadIdx.x;
            asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(n));  // planted
            asm volatile("cp.async.wait_all;");
            out[threadIdx.x] = s[threadIdx.x].x;
        }
        """,
        """
        base, _ = durable()
        go(array(base, [31, 4], written=True), array(base + 4096, [32]), c_int(12), block=(32, 1, 1))
        """,
        "bounds",
        r"read of 12 bytes outside of array float32\[31, 4\] of app\.py:7: index 124 of 124 items",
        "array float32[31, 4] of app.py:7",
        124,
        (0, 0, 0),
        (31, 0, 0),
    ),
    Planted(
        "an array that was freed",
        COPY.replace("<=", "<"),
        """
        base, _ = durable()
        x, y = array(base, [16, 16], written=True), array(base + 1024, [256])
        tell(freed=base)
        go(x, y, c_int(256), grid=(2, 2, 1), block=(200, 1, 1))
        """,
        "bounds",
        r"read of 4 bytes in freed memory, which was array float32\[16, 16\] of app\.py:7: index \(0, 0\) \(512 .*",
        "array float32[16, 16] of app.py:7",
        [0, 0],
    ),
    Planted(
        "device memory that was freed",
        COPY.replace("<=", "<"),
        """
        x, y = allocate(4096), allocate(4096)
        driver.cuMemFree(x)
        go(c_uint64(x), c_uint64(y), c_int(8), block=(8, 1, 1))
        """,
        "bounds",
        r"read of 4 bytes in freed memory, which was device memory of 4,096 bytes: index 0 \(8 times.*",
        "device memory of 4,096 bytes",
        0,
    ),
    Planted(
        "memory that the kernel itself has freed",
        """
        extern "C" __global__ void k(int* out) {
            int* mine = (int*)malloc(64);
            mine[3] = 5;
            free(mine);
            out[threadIdx.x] = *(volatile int*)(mine + 3);  // planted
        }
        """,
        "go(c_uint64(allocate(4096)), block=(2, 1, 1))",
        "bounds",
        r"read of 4 bytes in freed memory, which was memory that a kernel allocated of 64 bytes: index 3 \(2 times.*",
        "memory that a kernel allocated of 64 bytes",
        3,
    ),
    Planted(
        "an array of which a part was filled",
        COPY.replace("<=", "<"),
        """
        base, _ = durable()
        x, y = array(base, [10, 10]), array(base + 1024, [100])
        driver.cuMemsetD32(base, 1, 93)
        go(x, y, c_int(100), block=(100, 1, 1))
        """,
        "initialised",
        r"read of 4 bytes that were never written: index \(9, 3\) of array float32\[10, 10\] of app\.py:7 \(7 times.*",
        "array float32[10, 10] of app.py:7",
        [9, 3],
        (0, 0, 0),
        (93, 0, 0),
        LAUNCH_FAILED,
    ),
    Planted(
        "shared memory that the block has not filled",
        """
        extern "C" __global__ void k(int* out) {
            extern __shared__ int s[];
            if (threadIdx.x != 7) s[threadIdx.x] = threadIdx.x;
            __syncthreads();
            out[threadIdx.x] = s[(threadIdx.x + 1) % 32];  // planted
        }
        """,
        "go(c_uint64(allocate(4096)), grid=(2, 1, 1), block=(32, 1, 1), shared=128)",
        "initialised",
        r"read of 4 bytes that were never written: index 7 of shared memory of 128 bytes \(2 times.*",
        "shared memory of 128 bytes",
        7,
        (0, 0, 0),
        (6, 0, 0),
        LAUNCH_FAILED,
    ),
    Planted(
        "memory from malloc, which is not empty",
        """
        extern "C" __global__ void k(int* out) {
            int* mine = (int*)malloc(64);
            mine[0] = 1;
            out[threadIdx.x] = mine[0] + mine[threadIdx.x];  // planted
            free(mine);
        }
        """,
        "go(c_uint64(allocate(4096)), block=(3, 1, 1))",
        "initialised",
        r"read of 4 bytes that were never written: index 1 of memory that a kernel allocated of 64 bytes.*",
        "memory that a kernel allocated of 64 bytes",
        1,
        (0, 0, 0),
        (1, 0, 0),
        LAUNCH_FAILED,
    ),
)


def marked(source: str) -> int:
    """The number of the line that says that the mistake is there."""
    (line,) = [number for number, text in enumerate(source.splitlines(), 1) if "// planted" in text]
    return line


class Run:
    """A process whose launches are checked, and what it left behind."""

    def __init__(self, folder: Path, source: str, calls: str, words: str) -> None:
        path = folder / "source.cu"
        path.write_text(source, encoding="utf-8")
        self._findings = folder / "findings"
        done = run_in_process(
            PRELUDE + textwrap.dedent(calls),
            SOURCE=str(path),
            ATOMR_TRIO_SIM_CHECK=words,
            ATOMR_TRIO_SIM_CHECK_FOLDER=str(folder),
        )
        self.complaints: list[str] = done.stderr.splitlines()
        status, _, self.rest = done.stdout.partition("\n")
        self.status = int(status.removeprefix("status "))

    @property
    def findings(self) -> list[dict[str, Any]]:
        assert self._findings.exists(), "\n".join(self.complaints)
        return [json.loads(line) for line in self._findings.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_mistake_is_found_where_it_is(tmp_path: Path, planted: Planted) -> None:
    source = textwrap.dedent(planted.source).strip()
    run = Run(tmp_path, source, planted.calls, planted.check)
    (found,) = run.findings
    assert re.fullmatch(planted.what, found["what"]), found["what"]
    assert (found["check"], found["kernel"], found["other"]) == (planted.check, "k", None)
    assert Path(found["file"]).name == "k.cu"
    assert found["line"] == marked(source)
    assert (found["array"], found["index"]) == (planted.array, planted.index)
    assert (tuple(found["block"]), tuple(found["thread"])) == (planted.block, planted.thread)
    assert run.status == planted.status
    assert run.rest.strip() == planted.after
    told = f"k.cu:{found['line']}: {planted.check}: {found['what']} (kernel k, block {found['block']}, "
    assert sum(told in line for line in run.complaints) == 2, "once as a finding, once as what the launch failed of"


# What is no mistake.


class CheckedMachine(Machine):
    """A machine in this process whose launches are checked; its arrays are device memory that nobody has written."""

    def __init__(self, *modes: str) -> None:
        super().__init__()
        self.checks = checks.Checks(frozenset(modes))
        self.memory = self.checks.space

    def array(self, values: Any, dtype: Any = None) -> np.ndarray:
        result = super().array(values, dtype)
        self.memory.remove(result.ctypes.data)
        self.memory.add(result.ctypes.data, result.nbytes, DEVICE)
        return result

    def load(self, source: str, *options: str) -> LoadedModule:
        text = compile_ptx(textwrap.dedent(source).strip(), self.arch, "-lineinfo", *options)
        return LoadedModule(text, self.memory, self.checks.tools(text))


def test_a_kernel_that_stays_inside_and_reads_what_was_written_is_clean(capfd: pytest.CaptureFixture[str]) -> None:
    """Its accesses are of every kind: uniform, by vectors, to shared, local and constant memory, atomics, mallocs."""
    machine = CheckedMachine("bounds", "initialised")
    x = machine.array(np.arange(256, dtype=np.float32))
    machine.memory.written(x.ctypes.data, x.nbytes)
    y, total = machine.zeros(64, np.float32), machine.zeros(1, np.int32)
    machine.memory.written(total.ctypes.data, 4)
    source = """
        __constant__ float scale = 2;
        __device__ __noinline__ float last(const float* mine, int i) { return mine[i & 3]; }
        extern "C" __global__ void k(const float4* x, float* y, int* total) {
            __shared__ float s[64];
            float local[4];
            float4 four = x[threadIdx.x];
            for (int i = 0; i < 4; i++) local[(i + threadIdx.x) & 3] = (&four.x)[(i + threadIdx.x) & 3];
            s[threadIdx.x] = local[threadIdx.x & 3] + last(local, threadIdx.x + 1);
            __syncthreads();
            float* kept = (float*)malloc(8);
            kept[1] = s[63 - threadIdx.x] * scale;
            y[threadIdx.x] = kept[1];
            free(kept);
            atomicAdd(total, 1);
            *(volatile int*)total;
        }
    """
    machine.run(source, "k", 1, 64, x, y, total)
    i = np.arange(64)[::-1]
    assert (y == 2 * (x[4 * i + i % 4] + x[4 * i + (i + 1) % 4])).all()
    assert total[0] == 64
    assert capfd.readouterr().err == ""


def test_whatever_the_driver_copies_and_fills_counts_as_written(tmp_path: Path) -> None:
    source = """
        extern "C" __global__ void k(const int* const* parts, int n, int* out) {
            int sum = 0;
            for (int i = 0; i < n; i++) sum += parts[i][threadIdx.x];
            out[threadIdx.x] = sum;
        }
    """
    calls = """
        parts = [allocate(64) for _ in range(6)]
        table, out = allocate(48), allocate(64)
        write(parts[0], bytes(64))
        driver.cuMemcpyDtoD(parts[1], parts[0], 64)
        driver.cuMemsetD8(parts[2], 1, 64)
        driver.cuMemsetD2D32(parts[3], 32, 1, 8, 2)
        box = CUDA_MEMCPY2D(srcMemoryType=2, srcDevice=parts[0], srcPitch=32, dstMemoryType=2, dstDevice=parts[4],
                            dstPitch=32, WidthInBytes=32, Height=2)
        driver.cuMemcpy2DAsync(byref(box), None)
        for at in range(0, 64, 8):
            driver.cuStreamWriteValue64(None, parts[5] + at, 7, 0)
        driver.cuCtxSynchronize()
        write(table, b"".join(part.to_bytes(8, "little") for part in parts))
        go(c_uint64(table), c_int(6), c_uint64(out), block=(16, 1, 1))
    """
    run = Run(tmp_path, source, calls, "all")
    assert (run.status, run.complaints) == (0, [])


def test_a_word_that_is_written_in_part_may_be_read() -> None:
    machine = CheckedMachine("initialised")
    pairs, copies = (machine.zeros(64, np.int32) for _ in range(2))
    source = """
        struct Pair { int first; short second; };
        extern "C" __global__ void k(Pair* pairs, Pair* copies) {
            pairs[threadIdx.x].first = 1;
            pairs[threadIdx.x].second = 2;
            ((int2*)copies)[threadIdx.x] = ((volatile int2*)pairs, *(int2*)&pairs[threadIdx.x]);
        }
    """
    machine.run(source, "k", 1, 32, pairs, copies)
    assert copies.tolist() == [1, 2] * 32


def test_what_the_system_reserves_of_shared_memory_is_zero_at_first() -> None:
    """It is what `cooperative_groups` keeps the barriers of tiles of several warps in."""
    machine = CheckedMachine("initialised")
    out = machine.zeros(64, np.uint32)
    source = """
        extern "C" __global__ void k(unsigned* out) {
            unsigned at, old;
            asm("mov.u32 %0, %%reserved_smem_offset_1;" : "=r"(at));
            asm volatile("atom.shared.add.u32 %0, [%1], 1;" : "=r"(old) : "r"(at));
            out[blockIdx.x * 32 + threadIdx.x] = old;
        }
    """
    machine.run(source, "k", 2, 32, out)
    assert sorted(out) == sorted([*range(32)] * 2)


# Where, and how much.


def fault(machine: CheckedMachine, source: str, *arguments: Any, block: Any = 32) -> DeviceFault:
    """What a launch of one block fails of."""
    with pytest.raises(DeviceFault) as failed:
        machine.run(source, "k", 1, block, *arguments)
    return failed.value


def test_a_launch_says_its_first_finding_and_how_many_more_there_are() -> None:
    source = """
        extern "C" __global__ void k(const int* x, int* y) {
            __shared__ int s[32];
            s[threadIdx.x] = x[threadIdx.x];
            y[threadIdx.x] = s[threadIdx.x ^ 32];
            s[threadIdx.x + 1] = 1;
        }
    """
    machine = CheckedMachine("bounds", "initialised")
    failed = fault(machine, source, machine.zeros(32, np.int32), machine.zeros(32, np.int32))
    assert failed.status == ILLEGAL_ADDRESS
    assert re.search(r"k\.cu:3: initialised: .*; 2 more findings$", failed.message)


def test_the_memory_of_another_thread_is_not_ones_own() -> None:
    source = """
        extern "C" __global__ void k(int* out) {
            __shared__ int* pointer;
            int mine[2] = {(int)threadIdx.x, 7};
            if (threadIdx.x == 3) pointer = mine;
            __syncthreads();
            out[threadIdx.x] = pointer[threadIdx.x & 1] + mine[threadIdx.x & 1];
        }
    """
    machine = CheckedMachine("bounds")
    failed = fault(machine, source, machine.zeros(32, np.int32))
    assert re.search(r"k\.cu:6: bounds: read of 4 bytes in local memory that is not the thread's own", failed.message)


def test_without_line_information_the_place_is_the_line_of_the_ptx() -> None:
    text = compile_ptx(COPY)
    machine = CheckedMachine("bounds")
    kernel = LoadedModule(text, machine.memory, machine.checks.tools(text)).functions["k"]
    x, y = machine.zeros(32, np.float32), machine.zeros(33, np.float32)
    with pytest.raises(DeviceFault) as failed:
        machine.launch(kernel, 1, 64, x, y, 32)
    (line,) = [at for at, words in enumerate(text.splitlines(), 1) if "ld.global" in words]
    assert f"{PTX}:{line}: bounds: read" in failed.value.message


def test_sites_come_from_the_nearest_directive_of_the_same_function() -> None:
    text = textwrap.dedent("""
        .entry a()
        {
        \t.loc 2 10 3
        \tld.u32 a;
        \t.loc\t1 5 1, function_name $L__info_string0, inlined_at 2 10 3
        \tld.u32 b;
        \t.loc 3 7 9, function_name $L__info_string0+4, inlined_at 1 5 1
        \tld.u32 c;
        \t.loc 1 0 0
        \tld.u32 d;
        }
        .visible .func b()
        {
        \tld.u32 e;
        }
        \t.file 1 "inner.h"
        \t.file 2 "app.cu", 1234, 567
        \t.file 3 "innermost.h"
    """)
    sites = Sites(text)
    lines = {words[-2]: at for at, words in enumerate(text.splitlines(), 1) if "ld.u32" in words}
    assert [str(sites[sites.number(lines[name])]) for name in "abcde"] == [
        "app.cu:10",
        "inner.h:5, called from app.cu:10",
        "innermost.h:7, called from inner.h:5, called from app.cu:10",
        f"{PTX}:{lines['d']}",
        f"{PTX}:{lines['e']}",
    ]
    assert sites.number(lines["a"]) == sites.number(lines["a"]) != sites.number(lines["b"])


# The two files, and what is off.


def finding(line: int) -> Finding:
    return Finding("bounds", "k", (0, 0, 0), (1, 2, 3), "app.cu", line, "wrong", 4096, "array", (1, 2))


def test_findings_of_one_place_are_one_and_of_many_places_at_most_a_hundred(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    findings = Findings(tmp_path)
    for line in (*range(MOST + 5), 3):
        if not findings.seen(line, 2):
            findings.add(line, finding(line), 2)
    assert (len(findings.all), findings.omitted) == (MOST, 5)
    assert findings.summary == f"{findings.all[0]}; {MOST + 4} more findings"
    findings.report()
    told = [json.loads(line) for line in (tmp_path / "findings").read_text().splitlines()]
    assert [each["what"] for each in told[2:5]] == [f"wrong ({n} times in this launch)" for n in (2, 4, 2)]
    assert told[0]["index"] == [1, 2]
    assert len(capfd.readouterr().err.splitlines()) == MOST + 1


def test_half_a_line_about_an_array_waits_for_its_other_half(tmp_path: Path) -> None:
    arrays = checks.Arrays(tmp_path)
    line = json.dumps({"allocated": 4096, "size": 24, "dtype": "int16", "shape": [3, 4], "place": None}) + "\n"
    with (tmp_path / "arrays").open("a") as file:
        for piece in (line[:9], line[9:] + json.dumps({"freed": 4096})[:7], '": 4096}\n'):
            file.write(piece)
            file.flush()
            arrays.refresh()
            known = arrays.table.find(4096, 4120)
            assert str(known) == ("array int16[3, 4]" if piece.startswith(line[9:]) else "None")
    freed = arrays.freed_at(4119)
    assert freed is not None
    assert (str(freed), freed.index(4119, 1)) == ("array int16[3, 4]", (2, 3))
    assert arrays.freed_at(4120) is None


def test_unknown_words_are_refused() -> None:
    assert checks.modes_in(" races,bounds, ") == {"races", "bounds"}
    assert checks.modes_in("all") == {"bounds", "initialised", "races", "barriers"}
    with pytest.raises(ValueError, match="there is no check 'bound'; there are bounds, initialised, races, barriers"):
        checks.modes_in("races,bound")


def test_nothing_of_it_is_there_unless_it_is_asked_for() -> None:
    done = run_in_process(
        """
        begin()
        module = load('extern "C" __global__ void k(int* x) { *x = 5; }')
        x = allocate(4)
        assert launch(function(module, "k"), None, c_uint64(x)) == driver.cuCtxSynchronize.status() == 0
        print(read(x, 4)[0], [name for name in sys.modules if "checks" in name])
        """,
        ATOMR_TRIO_SIM_CHECK="",
    )
    assert done.stdout == "5 []\n"


@pytest.mark.parametrize("index", [32, -1])
@pytest.mark.parametrize(
    ("mode", "words"), [("initialised", "bytes of shared memory at"), ("bounds", "outside of the shared memory of 128")]
)
def test_shared_memory_has_its_end_also_where_bounds_are_not_checked(mode: str, words: str, index: int) -> None:
    source = """
        extern "C" __global__ void k(int* out, long long at) {
            __shared__ int s[32];
            s[threadIdx.x] = 1;
            out[threadIdx.x] = s[at];
        }
    """
    machine = CheckedMachine(mode)
    failed = fault(machine, source, machine.zeros(32, np.int32), index)
    assert failed.status == ILLEGAL_ADDRESS
    assert words in failed.message


@pytest.mark.parametrize(("file", "found"), [("app.cu", True), ("/cccl/cub/block/sort.cuh", False)])
def test_what_cub_reads_of_shared_memory_and_throws_away_is_no_finding(file: str, found: bool) -> None:
    machine = CheckedMachine("initialised")
    out = machine.zeros(32, np.int32)
    source = f"""
        extern "C" __global__ void k(int* out) {{
            __shared__ int s[32];
            if (threadIdx.x > 3) s[threadIdx.x] = 1;
            __syncthreads();
        #line 1 "{file}"
            out[threadIdx.x] = s[threadIdx.x];
        }}
    """
    if found:
        assert "app.cu:1: initialised: read of 4 bytes" in fault(machine, source, out).message
    else:
        machine.run(source, "k", 1, 32, out)
        assert out.sum() == 28
