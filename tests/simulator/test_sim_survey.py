"""What NVRTC makes of ordinary CUDA C++ is known to the simulator; what is refused is refused by name.

Each kernel of `survey/` shows one feature of the language, of the device's functions, or of CUDA's headers.
"""

from __future__ import annotations

import re

import pytest

from atomr_sim.engine.memory import AddressSpace
from atomr_sim.engine.simt import LoadedModule
from atomr_sim.ptx.text import UnsupportedPtx
from atomr_trio import CommandFailed, NvrtcOptions
from support import ROOT, open_test_device
from support.nvrtc import compile_ptx

pytestmark = pytest.mark.sim_only

FILES = {
    "language": ("compute_75", "compute_80", "compute_90", "compute_100"),
    "headers": ("compute_75", "compute_90"),  # `kernels/` has many more of them
}
"""The files of the survey, and what they are compiled for."""
FOLDER = ROOT / "tests" / "survey"

_KERNEL = re.compile(r"^KERNEL (?:__launch_bounds__\([^)]*\) )?(\w+)\(", re.MULTILINE)


@pytest.fixture(scope="module")
def headers() -> tuple[str, ...]:
    """The compiler's options by which the headers that it carries are found."""
    flags = NvrtcOptions(bundled_headers=True).flags("compute_80")
    return tuple(flag for flag in flags if not flag.startswith("--gpu-architecture"))


def kernels_of(file: str) -> list[str]:
    """The names of the kernels that a file of the survey defines."""
    return _KERNEL.findall((FOLDER / f"{file}.cu").read_text(encoding="utf-8"))


def test_the_survey_is_wide() -> None:
    assert len(set(kernels_of("language"))) >= 60
    assert len(set(kernels_of("headers"))) >= 15


@pytest.mark.parametrize(
    ("file", "arch"),
    [
        pytest.param(
            file, arch, marks=[] if arch == archs[-1] else pytest.mark.long if arch == archs[0] else pytest.mark.sweep
        )
        for file, archs in FILES.items()
        for arch in archs
    ],
)
@pytest.mark.long
def test_no_opcode_is_unknown(file: str, arch: str, headers: tuple[str, ...]) -> None:
    """Not an opcode, not a form of one, and not a special register: all kernels are translated."""
    source = (FOLDER / f"{file}.cu").read_text(encoding="utf-8")
    module = LoadedModule(compile_ptx(source, arch, "--device-int128", *headers), AddressSpace())
    assert module.functions.keys() == set(kernels_of(file))
    blocks = [block for code in module.codes.values() for block in code.flow.blocks]
    opcodes = {instruction.opcode for block in blocks for instruction in block.body}
    assert len(opcodes) > (55 if file == "language" else 35), "the survey uses a large part of the instruction set"


# What is refused

REFUSED = {
    "wmma.load.a.sync.aligned.row.m16n16k16": """
        #include <mma.h>
        using namespace nvcuda::wmma;
        extern "C" __global__ void refused(const __half *a, float *c) {
            fragment<matrix_a, 16, 16, 16, __half, row_major> x;
            fragment<matrix_b, 16, 16, 16, __half, col_major> y;
            fragment<accumulator, 16, 16, 16, float> z;
            fill_fragment(z, 0.0f);
            load_matrix_sync(x, a, 16);
            load_matrix_sync(y, a, 16);
            mma_sync(z, x, y, z);
            store_matrix_sync(c, z, 16, mem_row_major);
        }""",
    "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32": """
        extern "C" __global__ void refused(int *c, const unsigned *a) {
            asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
                : "+r"(c[0]), "+r"(c[1]) : "r"(a[0]), "r"(a[1]));
        }""",
    "ldmatrix.sync.aligned": """
        extern "C" __global__ void refused(unsigned *c) {
            __shared__ unsigned s[64];
            asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                         : "=r"(c[0]) : "r"((unsigned)__cvta_generic_to_shared(s)));
        }""",
    "tex.2d": """
        extern "C" __global__ void refused(cudaTextureObject_t image, float *c) {
            c[0] = tex2D<float>(image, 0.5f, 0.5f);
        }""",
    "sust.b.2d": """
        extern "C" __global__ void refused(cudaSurfaceObject_t image) { surf2Dwrite(1.0f, image, 0, 0); }""",
    "barrier.cluster.arrive": """
        extern "C" __global__ void __cluster_dims__(2) refused() {
            asm volatile("barrier.cluster.arrive.aligned;");
        }""",
    "mapa.shared::cluster.u32": """
        extern "C" __global__ void refused(unsigned *c) {
            __shared__ unsigned s;
            asm("mapa.shared::cluster.u32 %0, %1, 1;" : "=r"(c[0]) : "r"((unsigned)__cvta_generic_to_shared(&s)));
        }""",
    "cp.async.bulk.tensor.1d": """
        extern "C" __global__ void refused(const char *map) {
            __shared__ alignas(128) int s[64];
            __shared__ unsigned long long arrived;
            asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                         " [%0], [%1, {%2}], [%3];" :: "r"((unsigned)__cvta_generic_to_shared(s)), "l"(map), "r"(0),
                         "r"((unsigned)__cvta_generic_to_shared(&arrived)) : "memory");
        }""",
    "stmatrix.sync.aligned": """
        extern "C" __global__ void refused(unsigned *c) {
            __shared__ unsigned s[64];
            asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%1], {%0};"
                         :: "r"(c[0]), "r"((unsigned)__cvta_generic_to_shared(s)));
        }""",
    "multimem.red.add.f32": """
        extern "C" __global__ void refused(float *c) {
            asm volatile("multimem.red.add.f32 [%0], %1;" :: "l"(c), "f"(1.0f));
        }""",
    "wgmma.fence": """extern "C" __global__ void refused() { asm volatile("wgmma.fence.sync.aligned;"); }""",
    "tcgen05.wait": """extern "C" __global__ void refused() { asm volatile("tcgen05.wait::ld.sync.aligned;"); }""",
    "call.uni (retval0), __cudaCDP2GetParameterBufferV2": """
        extern "C" __global__ void child(int *c) { c[0] = 1; }
        extern "C" __global__ void refused(int *c) { child<<<1, 1>>>(c); }""",
}
"""How the instruction begins that the simulator stops at, and what the compiler makes it of."""

SPECIFIC = {"wgmma.fence": "compute_90a", "tcgen05.wait": "compute_100a"}
"""The architecture that an instruction is for, if it is for no other; the others are shown on 9.0."""
SHOWN = ("wmma.load.a.sync.aligned.row.m16n16k16", "tex.2d", "mapa.shared::cluster.u32", "cp.async.bulk.tensor.1d")
"""Some of them, which a device is asked for, too."""
LINKED = "--relocatable-device-code=true"
"""What a kernel that launches kernels has to be compiled with."""


@pytest.mark.parametrize("instruction", REFUSED)
def test_what_is_not_simulated_is_named_with_its_line_and_kernel(instruction: str, headers: tuple[str, ...]) -> None:
    source, arch = REFUSED[instruction], SPECIFIC.get(instruction, "compute_90")
    ptx = compile_ptx(source, arch, *headers, *([LINKED] if "<<<" in source else []))
    with pytest.raises(UnsupportedPtx) as refused:
        LoadedModule(ptx, AddressSpace())
    message, lines = str(refused.value), ptx.splitlines()
    assert f"instruction '{instruction}" in message
    assert message.endswith("is not simulated (in kernel refused)")
    line = int(message.removeprefix("line ").partition(":")[0])
    assert instruction.split()[0].split(".")[0] in lines[line - 1]


async def test_a_refusal_is_an_error_of_the_compile_and_harms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOMR_TRIO_SIM_CAPABILITY", "9.0")
    async with open_test_device() as dev:
        options = NvrtcOptions(arch="compute_90", bundled_headers=True)
        for instruction in SHOWN:
            with pytest.raises(CommandFailed, match=r"is not simulated \(in kernel refused\)") as refused:
                await dev.nvrtc.compile(REFUSED[instruction], "refused", options)
            assert refused.value.status == 801
            assert f"instruction '{instruction}" in str(refused.value)
        assert dev.generation == 1
