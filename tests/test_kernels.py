"""Every kernel of `kernels/`, compiled for four architectures and run through the public interface, against numpy.

One device serves all cases of an architecture. On the simulator the device for `compute_90` reports capability 9.0.
Behind the table stand kernels that print, and images that are no kernels.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Self

import attrs
import numpy as np
import pytest
import trio

from atomr_trio import (
    CommandFailed,
    Device,
    DeviceArray,
    InvalidArgument,
    Kernel,
    LibraryNotFound,
    NvrtcOptions,
    compile_to_cubin,
    read_only,
)
from atomr_trio.actors.module import load_program
from kernels.case import FOLDER, Case, Family, Given, Launch, Result
from kernels.collection import CASES
from rogue import until
from support import ON_GPU, open_test_device

ARCHITECTURES = {"compute_75": (7, 5), "compute_80": (8, 0), "compute_90": (9, 0), "compute_100": (10, 0)}

DEADLINE = 60
"""Seconds for one case, of which compiling takes most."""


class DeviceThread:
    """An open device, and trio in a thread of its own that serves it: tests that share a device are plain functions."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="device")
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._opened.wait()
        if self._failure:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(self, *exception: object) -> None:
        trio.from_thread.run_sync(self._closing.set, trio_token=self._token)
        self._thread.join()
        if self._failure:
            raise self._failure

    def run(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """Call an async function with the device and wait for its answer."""
        return trio.from_thread.run(function, self.device, *arguments, trio_token=self._token)

    def _serve(self) -> None:
        try:
            trio.run(self._hold)
        except BaseException as failure:
            self._failure = failure
        finally:
            self._opened.set()

    async def _hold(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._closing = trio.Event()
        async with open_test_device() as self.device:
            self._opened.set()
            await self._closing.wait()


class Bench:
    """A device and an architecture; compiles a family once and runs its cases."""

    def __init__(self, thread: DeviceThread, arch: str, headers: dict[str, Any] | None) -> None:
        self.arch = arch
        self._headers = headers
        self._kept: dict[Family, Kernel] = {}
        self._thread = thread

    def run(self, case: Case) -> None:
        """Launch what the case says, and look at every array that its kernels wrote."""
        if case.family.headers and self._headers is None:
            pytest.skip("this NVRTC carries no headers of CUDA, and none are installed beside it")
        if ARCHITECTURES[self.arch] < case.since:
            pytest.skip(f"its instructions came with capability {case.since}")
        for result, values in self._thread.run(self._run, case.family, case.launches()):
            result.check(values)

    async def _run(self, device: Device, family: Family, launches: Sequence[Launch]) -> list[tuple[Result, np.ndarray]]:
        arrays: dict[Given | Result, DeviceArray] = {}
        with trio.fail_after(DEADLINE):
            for launch in launches:
                kernel = await self._kernel(device, family, launch.kernel)
                arguments = [await self._argument(device, arrays, argument) for argument in launch.arguments]
                await kernel.launch(
                    *(launch.grid, launch.block, *arguments),
                    shared_bytes=launch.shared,
                    cooperative=launch.cooperative,
                )
            return [(item, await array.to_host()) for item, array in arrays.items() if isinstance(item, Result)]

    async def _kernel(self, device: Device, family: Family, name: str) -> Kernel:
        """A module is loaded as long as somebody has a kernel of it, so one of each family is kept.

        The device remembers what it has compiled, unless headers on disk were asked for, which might have changed.
        """
        kept = self._kept.get(family)
        if kept and family.headers:
            return Kernel._create(kept._module, name)
        headers = (self._headers or {}) if family.headers else {}
        options = NvrtcOptions(arch=self.arch, name_expressions=family.expressions, **family.options, **headers)
        kernel = await device.nvrtc.compile(family.source, name, options)
        self._kept.setdefault(family, kernel)
        return kernel

    async def _argument(self, device: Device, arrays: dict[Given | Result, DeviceArray], argument: Any) -> Any:
        match argument:
            case Given(values):
                return read_only(await self._array(device, arrays, argument, values))
            case Result(start):
                return await self._array(device, arrays, argument, start)
        return argument

    async def _array(
        self, device: Device, arrays: dict[Given | Result, DeviceArray], key: Given | Result, values: np.ndarray
    ) -> DeviceArray:
        if key not in arrays:
            arrays[key] = await device.to_device(values)
        return arrays[key]


@pytest.fixture(scope="session")
def headers() -> dict[str, Any] | None:
    """The option by which NVRTC finds the headers of CUDA; None where there are none."""
    carried = NvrtcOptions(bundled_headers=True)
    try:
        carried.flags("compute_80")
    except LibraryNotFound:
        assert ON_GPU, "the NVRTC that the simulator needs carries headers"
        return None
    return {"bundled_headers": True}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def bench(request: pytest.FixtureRequest, headers: dict[str, Any] | None) -> Iterator[Bench]:
    """A device that runs the architecture's code. The environment is put back as soon as it is open."""
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            simulate_capability(patch, request.param)
            thread = stack.enter_context(DeviceThread())
        capability = thread.device.info.capability
        if capability < ARCHITECTURES[request.param]:
            pytest.skip(f"a device of capability {capability} runs no code for {request.param}")
        yield Bench(thread, request.param, headers)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_kernel_does_what_numpy_does(bench: Bench, case: Case) -> None:
    bench.run(case)


def passes_untouched(result: Result) -> bool:
    """Whether the check is content with what the array holds before the first launch."""
    try:
        result.check(result.start)
    except AssertionError:
        return False
    return True


def test_no_case_passes_when_its_kernels_do_nothing() -> None:
    for case in CASES:
        results = {item for launch in case.launches() for item in launch.arguments if isinstance(item, Result)}
        assert not all(map(passes_untouched, results)), case


# --- printing ---------------------------------------------------------------------------------------------------------


def simulate_capability(monkeypatch: pytest.MonkeyPatch, arch: str) -> None:
    """Have the simulated devices that are opened from now on report the capability that the architecture needs."""
    monkeypatch.setenv("ATOMR_TRIO_SIM_CAPABILITY", ".".join(map(str, ARCHITECTURES[arch])))


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
            await load_program(dev, attrs.evolve(program, ptx=ptx))
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
    (lambda ptx: ptx.replace(b"sm_80", b"sm_90"), 218, r"for sm_90, the simulated GPU has capability 8\.0"),
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
            await load_program(dev, attrs.evolve(program, ptx=change(program.ptx)))
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
