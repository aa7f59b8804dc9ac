"""Random kernels, compiled by the real NVRTC, do on the device what a direct evaluation of the same tree does.

The same file runs on the simulator and on a GPU.  There a kernel that differs is compiled again without optimisation,
and counts if it differs still: the compilers of CUDA 13.0 take a 16-bit negation for one that never wraps, and crash on
one kernel in some thousands.

Some kernels are the same in every run, some are new: the name of a kernel tells its seed, and a failure shows its text.
ATOMR_TRIO_FUZZ_KERNELS says how many new ones there are for each architecture, and ATOMR_TRIO_FUZZ_SEED which is the
first, to see one again or to look on where a run ended.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import attrs
import numpy as np
import pytest
import trio

from atomr_trio import ContextLost, Device, Kernel, NvrtcOptions, read_only
from support import ON_GPU, SWEEP, open_test_device
from support.kernel_bench import ARCHITECTURES, NO_HEADERS, cuda_headers, simulate_capability
from support.kernel_generator import RandomKernel, random_kernel, translation_unit
from support.kernel_operations import KINDS

FIXED = 30 if SWEEP else 5
"""Kernels of each architecture that are the same in every run; those of one architecture are no other's."""
FRESH = int(os.environ.get("ATOMR_TRIO_FUZZ_KERNELS", "100" if SWEEP else "3"))
TOGETHER = 10
"""Kernels that are compiled at once."""


def first_fresh_seed() -> int:
    given = os.environ.get("ATOMR_TRIO_FUZZ_SEED")
    return int(given) if given else random.SystemRandom().randrange(1 << 32)


def difference(kernel: RandomKernel, found: np.ndarray) -> str:
    """Where a result is not what it should be; empty if it is."""
    wrong = np.flatnonzero(found != kernel.expected)
    places = [
        f"{kernel.place(at)} is {found[at]:#x} and should be {kernel.expected[at]:#x}" for at in wrong[:5].tolist()
    ]
    return "\n".join([f"{kernel.name}: {len(wrong)} results differ", *places, kernel.source]) if wrong.size else ""


async def differences(dev: Device, arch: str, kernels: list[RandomKernel]) -> list[str]:
    """Compile some kernels at once, run each of them, and compare what they leave behind."""
    together, options = translation_unit(kernels), NvrtcOptions(arch=arch, fmad=False, bundled_headers=True)
    native = "sm_{}{}".format(*dev.info.capability)
    found, crash = [], ""
    held: list[Kernel] = []  # a module stays loaded as long as somebody has a kernel of it
    for kernel in kernels:
        try:
            text = crash or await found_wrong(dev, together, kernel, options, held)
        except ContextLost as lost:
            if not ON_GPU:
                raise
            # The driver's own compiler has crashed on one of them, and the worker with it.
            await dev.wait_generation(after=lost.generation)
            text = crash = str(lost)
        if text and ON_GPU:
            print(f"{kernel.name} is tried again without optimisation: {text.splitlines()[0]}")
            text = await found_wrong(
                dev, translation_unit([kernel]), kernel, attrs.evolve(options, arch=native, debug=True), []
            )
        found.append(text)
    return [text for text in found if text]


async def found_wrong(dev: Device, source: str, kernel: RandomKernel, options: NvrtcOptions, held: list[Kernel]) -> str:
    """Compile and run a kernel; where its result differs. `held` gets what was compiled."""
    compiled = await dev.nvrtc.compile(source, kernel.name, options)
    held.append(compiled)
    inputs, out = await dev.to_device(kernel.inputs), await dev.to_device(kernel.start)
    await compiled.launch(kernel.grid, kernel.block, read_only(inputs), out, *kernel.scalars)
    return difference(kernel, await out.to_host())


async def all_differences(dev: Device, arch: str, first: int, count: int) -> list[str]:
    """Those of as many kernels; while one lot of them runs, the next one is compiled."""
    found: list[str] = []
    firsts: Iterator[int] = iter(range(first, first + count, TOGETHER))

    async def take() -> None:
        for at in firsts:
            kernels = [random_kernel(seed) for seed in range(at, min(at + TOGETHER, first + count))]
            found.extend(await differences(dev, arch, kernels))

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(take)
    return found


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.long
async def test_random_kernels_do_what_they_say(monkeypatch: pytest.MonkeyPatch, arch: str) -> None:
    if cuda_headers() is None:
        pytest.skip(NO_HEADERS)
    fresh = first_fresh_seed()
    print(f"new kernels from ATOMR_TRIO_FUZZ_SEED={fresh}")
    simulate_capability(monkeypatch, arch)
    async with open_test_device() as dev:
        if dev.info.capability < ARCHITECTURES[arch]:
            pytest.skip(f"a device of capability {dev.info.capability} runs no code for {arch}")
        found = [
            *await all_differences(dev, arch, list(ARCHITECTURES).index(arch) * FIXED, FIXED),
            *await all_differences(dev, arch, fresh, FRESH),
        ]
    assert not found, f"{len(found)} kernels differ. {found[0]}"


# What the generator promises.


def test_a_seed_makes_the_same_kernel_whenever_it_is_asked_for() -> None:
    one, other = random_kernel(7), random_kernel(7)
    assert one.source == other.source
    assert (one.expected == other.expected).all()
    assert random_kernel(8).source.replace("k8", "k7") != one.source


CONSTRUCTS = (
    *("if (", "for (", "do {", "switch (", "default:", "break;", "continue;", "return;", "&&", "||", " ? "),
    *("__noinline__", "if (n <= 0) return", "z * ", "gridDim.x * blockIdx.y"),
    *("__syncthreads();", "__syncthreads_count(", "__syncthreads_and(", "__syncthreads_or("),
    *(f"__shfl{mode}_sync(" for mode in ("", "_up", "_down", "_xor")),
    *("__ballot_sync(", "__any_sync(", "__all_sync(", "__match_any_sync(~0u", "__match_any_sync(v"),
    *(f"reduced_{operation}(" for operation in ("add", "min", "max", "and", "or", "xor")),
    *(f"{operation}((({kind} *)" for operation in ("atomicAdd", "atomicMin") for kind in ("i32", "u32", "u64")),
    *(f"atomicAdd((({kind} *)" for kind in ("f16", "f32", "f64")),
    *("atomicMax(", "atomicAnd(", "atomicOr(", "atomicXor(", "atomicAdd(&s_"),
    *("__fmaf_rn(", "__fma_rn(", "sqrt(", "fmin(", "rint(", " / ", "quotient<i64>", "remains<u8>", "__float2ll_rz("),
    *("__hadd_rn(", "__hmul2_rn(", "fused(f16_", "fused(bf16_", "__hmin(", "__float2half_rn(", "__float2bfloat16_rn("),
    *("__byte_perm(", "__funnelshift_lc(", "__dp4a(", "__umul64hi(", "__brevll(", "__vadd4("),
    *(f"__shared__ {kind} " for kind in KINDS),
    *(f"    {kind} v" for kind in KINDS),
    *(f"((const {kind} *)(in" for kind in KINDS),
)


@pytest.mark.long
def test_all_that_is_meant_to_be_tried_occurs() -> None:
    sources = [random_kernel(seed).source for seed in range(100)]
    text = "\n".join(sources)
    assert [construct for construct in CONSTRUCTS if construct not in text] == []
    assert len({source.count("\n") for source in sources}) > 20


def test_kernels_leave_something_else_than_they_found() -> None:
    for kernel in map(random_kernel, range(20)):
        assert (kernel.expected != kernel.start).mean() > 0.5
        assert np.unique(kernel.expected).size > 50, "threads must not all do the same"


def test_a_wrong_result_is_found_and_named() -> None:
    kernel = random_kernel(3)
    found = kernel.expected.copy()
    assert difference(kernel, found) == ""
    for at in (0, len(found) - 1):
        wrong = found.copy()
        wrong[at] ^= np.uint64(1)
        assert "1 results differ" in difference(kernel, wrong)
        assert kernel.place(at) in difference(kernel, wrong)
    assert kernel.place(0) == "i8_0 of thread 0"
