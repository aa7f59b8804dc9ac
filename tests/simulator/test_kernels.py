"""What is true of the table of kernels itself; kernels that print, and images that are no kernels.

The table is run by `test_kernels_75.py` and its like, one for each architecture.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

import attrs
import numpy as np
import pytest

from atomr_trio import CommandFailed, Device, InvalidArgument, NvrtcOptions, compile_to_cubin, read_only
from atomr_trio._device.device import core_of
from atomr_trio.libraries.modules.module import load_program
from kernels.case import FOLDER, Result
from kernels.collection import CASES
from support import open_test_device
from support.kernel_bench import ARCHITECTURES, simulate_capability
from support.rogue import until


def passes_untouched(result: Result) -> bool:
    """Whether the check is content with what the array holds before the first launch."""
    try:
        result.check(result.start)
    except AssertionError:
        return False
    return True


@pytest.mark.long
def test_no_case_passes_when_its_kernels_do_nothing() -> None:
    for case in CASES:
        results = {item for launch in case.launches() for item in launch.arguments if isinstance(item, Result)}
        assert not all(map(passes_untouched, results)), case


# --- printing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHITECTURES)
async def test_a_kernel_prints_as_c_does(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, arch: str
) -> None:
    simulate_capability(monkeypatch, arch)
    caplog.set_level(logging.INFO, "atomr_trio.device")
    source, x, big = (FOLDER / "say.cu").read_text(encoding="utf-8"), 3.14159, 0x123456789ABC
    lines = [
        f"-5 {x:5.2f}|ab    |z|4000000000|{big:x}|{-big}",
        f"{x:e} {1e10 * x:g} {x:.0f}%|00042|+7| 7|010|0XFF|   abc|",
        "-3 123456789012     99",
        "no more",
        *(f"block {block}, thread {100 + t:2}" for block in range(2) for t in range(1, 8, 2)),
    ]

    def printed() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "atomr_trio.device"]

    async with open_test_device() as dev:
        if dev.info.capability < ARCHITECTURES[arch]:
            pytest.skip(f"a device of capability {dev.info.capability} runs no code for {arch}")
        options = NvrtcOptions(arch=arch)
        formats, everyone = [await dev.nvrtc.compile(source, name, options) for name in ("formats", "everyone")]
        counts = dev.zeros(4, np.int32)
        await formats.launch(1, 1, x, big, counts)
        await everyone.launch(2, (4, 2), 100)
        assert (await counts.to_host()).tolist() == [7, 9, 4, 0], "printf returns the number of its arguments"
        await until(lambda: len(printed()) >= len(lines))
    assert printed()[:4] == lines[:4]
    assert sorted(printed()[4:]) == sorted(lines[4:]), "the order of threads is the hardware's to choose"


# --- images that are no kernels ---------------------------------------------------------------------------------------

SAXPY = """extern "C" __global__ void saxpy(float a, const float *x, float *y, int n)
{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] += a * x[i]; }"""


async def test_an_image_that_cannot_be_loaded_is_one_plain_error_and_harms_nothing(dev: Device) -> None:
    saxpy = await dev.nvrtc.compile(SAXPY, "saxpy", NvrtcOptions(arch="compute_80"))
    program = saxpy._module._program
    x = await dev.to_device(np.arange(4, dtype=np.float32))
    for ptx in (b"", b"this is no PTX", b"\0\1\2\3" * 99, program.ptx[: program.ptx.index(b"ret;")], program.ptx[:200]):
        with pytest.raises(CommandFailed) as failed:
            await load_program(core_of(dev), attrs.evolve(program, ptx=ptx))
        assert failed.value.status in IMAGE_ERRORS
        assert failed.value.operation == "module.load"
    assert dev.generation == 1
    await saxpy.launch(1, 32, 2.0, read_only(x), x, 4)
    assert (await x.to_host()).tolist() == [0, 3, 6, 9]


IMAGE_ERRORS = (200, 201, 209, 218, 222, 300, 500)
"""What drivers say of an image that is none, or that ends before the kernel that is looked for."""


REFUSED: tuple[tuple[Callable[[bytes], bytes], int, str], ...] = (
    (lambda ptx: b"", 218, r"a \.version directive was expected"),
    (lambda ptx: b"this is no PTX", 218, r"line 1: a \.version directive was expected at 'this is no PTX'"),
    (lambda ptx: ptx[: ptx.index(b"ret;")], 218, r"the text ends inside of a function .*\(in kernel saxpy\)"),
    (lambda ptx: ptx.replace(b"fma.rn.f32", b"fma.xx.f32"), 801, r"line \d+: instruction 'fma.xx.f32.*not simulated"),
    (lambda ptx: re.sub(rb"\.version \S+", b".version 99.9", ptx), 222, r"PTX 99\.9 is newer than \d"),
    (lambda ptx: ptx.replace(b"sm_80", b"sm_90"), 218, r"for sm_90, but the simulated GPU has capability 8\.0"),
    (lambda ptx: compile_to_cubin(SAXPY, options=NvrtcOptions(arch="sm_80")), 209, "it takes PTX"),
    (lambda ptx: b"\x50\xed\x55\xba" + bytes(60), 209, "it takes PTX"),
)
"""What becomes of good PTX, the status that it is refused with, and words of the message. The last is a fatbin."""


@pytest.mark.sim_only
async def test_the_simulator_says_why_it_refuses_an_image(dev: Device) -> None:
    saxpy = await dev.nvrtc.compile(SAXPY, "saxpy")
    program = saxpy._module._program
    for change, status, words in REFUSED:
        with pytest.raises(CommandFailed, match=words) as failed:
            await load_program(core_of(dev), attrs.evolve(program, ptx=change(program.ptx)))
        assert failed.value.status == status
    for arch, words in (
        ("compute_90", "code for 9.0 and newer"),
        ("sm_80", "only runs PTX"),
        ("sm_90a", "only runs PTX"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            await dev.nvrtc.compile(SAXPY, "saxpy", NvrtcOptions(arch=arch))
    assert dev.generation == 1


@pytest.mark.sim_only
async def test_the_simulated_device_has_capability_8_unless_told_otherwise(
    dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dev.info.capability == (8, 0)
    simulate_capability(monkeypatch, "compute_90")
    async with open_test_device() as newer:
        assert newer.info.capability == (9, 0)
        assert "sm_90" in (await newer.nvrtc.compile(SAXPY, "saxpy")).ptx
