"""How the cases of `kernels/` are run: compiled, launched through the public interface, and compared with numpy.

One device serves all cases of an architecture; on the simulator the device for `compute_90` reports capability 9.0.
The test files `test_kernels_75.py` and so on take from here what they have in common.
"""

from __future__ import annotations

import contextlib
import glob
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import trio
from cuda import pathfinder

from atomr_trio import Device, DeviceArray, Kernel, LibraryNotFound, NvrtcOptions, Parameter, read_only
from kernels.case import Case, Family, Given, Launch, Result
from kernels.collection import CASES, FAMILIES
from support import ON_GPU, WHEEL, open_test_device

ARCHITECTURES = {"compute_75": (7, 5), "compute_80": (8, 0), "compute_90": (9, 0), "compute_100": (10, 0)}

OLD = "ATOMR_TRIO_NVRTC_PATH" in os.environ
"""Whether the tests run with an NVRTC of CUDA 12, which carries no headers."""

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


Options = dict[str, Any]


class Bench:
    """A device and an architecture; compiles a family once and runs its cases."""

    def __init__(self, thread: DeviceThread, arch: str, headers: Options | None, curand: Options | None) -> None:
        self.arch = arch
        self._headers = headers
        self._curand = curand
        self._kept: dict[Family, Kernel] = {}
        self._thread = thread

    def run(self, case: Case) -> None:
        """Launch what the case says, and look at every array that its kernels wrote."""
        if case.family.headers and self._headers is None:
            pytest.skip(NO_HEADERS)
        if case.family.curand and self._curand is None:
            pytest.skip(f"no {CURAND} is installed: neither the wheel nvidia-curand, nor a toolkit in the usual places")
        if ARCHITECTURES[self.arch] < case.since:
            pytest.skip(f"its instructions came with capability {case.since}")
        for result, values in self._thread.run(self._run, case.family, case.launches()):
            result.check(values)

    async def _run(self, device: Device, family: Family, launches: Sequence[Launch]) -> list[tuple[Result, np.ndarray]]:
        arrays: dict[Given | Result, DeviceArray] = {}
        with trio.fail_after(DEADLINE):
            for launch in launches:
                kernel = await self._kernel(device, family, launch.kernel)
                given = zip(launch.arguments, kernel.parameters, strict=True)
                arguments = [await self._argument(device, arrays, each, parameter) for each, parameter in given]
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
        given = family.options | ((family.headers and self._headers) or {}) | ((family.curand and self._curand) or {})
        options = NvrtcOptions(arch=self.arch, name_expressions=family.expressions, **given)
        kernel = await device.nvrtc.compile(family.source, name, options)
        self._kept.setdefault(family, kernel)
        return kernel

    async def _argument(
        self, device: Device, arrays: dict[Given | Result, DeviceArray], argument: Any, parameter: Parameter
    ) -> Any:
        """numpy lacks some of the types, so the cases give their bits; here the array gets the kernel's own dtype."""
        match argument:
            case Given(values):
                return read_only(_viewed(await self._array(device, arrays, argument, values), parameter))
            case Result(start):
                return _viewed(await self._array(device, arrays, argument, start), parameter)
        return argument

    async def _array(
        self, device: Device, arrays: dict[Given | Result, DeviceArray], key: Given | Result, values: np.ndarray
    ) -> DeviceArray:
        if key not in arrays:
            arrays[key] = await device.to_device(values)
        return arrays[key]


def _viewed(array: DeviceArray, parameter: Parameter) -> DeviceArray:
    dtypes = () if parameter.elements is None else parameter.elements.dtypes
    return array if not dtypes or array.dtype.name in dtypes else array.view(dtypes[0])


NO_HEADERS = "this NVRTC carries no headers of CUDA, and none are installed beside it"


def cuda_headers() -> Options | None:
    """The option by which NVRTC finds the headers of CUDA; None where there are none."""
    carried = NvrtcOptions(bundled_headers=True)
    try:
        carried.flags("compute_80")
    except LibraryNotFound:
        assert ON_GPU or OLD, "the NVRTC that the simulator needs carries headers"
        return None
    return {"bundled_headers": True}


@pytest.fixture(scope="session")
def headers() -> Options | None:
    """What `cuda_headers` says."""
    return cuda_headers()


CURAND = "curand_kernel.h"
TOOLKITS = ("/usr/local/cuda*/include", "/usr/local/cuda*/targets/*/include", "/opt/cuda/include", "/usr/include")


@pytest.fixture(scope="session")
def curand() -> Options | None:
    """The option that hands NVRTC the headers of cuRAND; None where there are none.

    They lie beside headers of other parts of CUDA, which might not be of NVRTC's version: so no folder is named.
    """
    toolkits = [place for name in TOOLKITS for place in glob.glob(name)]
    places = [pathfinder.find_nvidia_header_directory("curand"), *toolkits]
    folder = next((Path(place) for place in places if place and Path(place, CURAND).exists()), None)
    if folder is None:
        assert ON_GPU or not WHEEL, "the packages of the extra `dev` have cuRAND's headers"
        return None
    return {"headers": {path.name: path.read_text(encoding="utf-8") for path in folder.glob("curand*.h")}}


def simulate_capability(monkeypatch: pytest.MonkeyPatch, arch: str) -> None:
    """Have the simulated devices that are opened from now on report the capability that the architecture needs."""
    monkeypatch.setenv("ATOMR_TRIO_SIM_CAPABILITY", ".".join(map(str, ARCHITECTURES[arch])))


@pytest.fixture(scope="module")
def bench(request: pytest.FixtureRequest, headers: Options | None, curand: Options | None) -> Iterator[Bench]:
    """A device that runs the code of the test file's `ARCHITECTURE`, also after a case that has cost its worker."""
    arch = request.module.ARCHITECTURE
    with contextlib.ExitStack() as stack:
        simulate_capability(stack.enter_context(pytest.MonkeyPatch.context()), arch)
        thread = stack.enter_context(DeviceThread())
        capability = thread.device.info.capability
        if capability < ARCHITECTURES[arch]:
            pytest.skip(f"a device of capability {capability} runs no code for {arch}")
        yield Bench(thread, arch, headers, curand)


ENDS = ("compute_75", "compute_100")
"""The oldest and the newest architecture, of which each family is compiled for one, a slow one with LONG=yes.

To compile a family takes longer than to run its cases. `make sweep` compiles each for every architecture.
"""
BETWEEN = ("compute_80", "compute_90")
"""Those between, of which each family is compiled for one, but for the slow ones.

To compile those takes longer than to run all the others.
"""
SLOW = tuple(family for family in FAMILIES if family.slow)
QUICK = tuple(family for family in FAMILIES if not family.slow)


def _is_rare(family: Family, arch: str) -> bool:
    """Whether the cases of a family are left to `make sweep` for this architecture."""
    number = (SLOW if family.slow else QUICK).index(family)
    if arch in ENDS:
        return number % 2 != ENDS.index(arch)
    return family.slow or number // 2 % 2 != BETWEEN.index(arch)


def _marks(family: Family, arch: str) -> list[pytest.MarkDecorator]:
    if _is_rare(family, arch):
        return [pytest.mark.sweep]
    return [pytest.mark.long] if family.slow else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give the test of a file that imports this the cases of its architecture."""
    if "case" not in metafunc.fixturenames:
        return
    arch = metafunc.module.ARCHITECTURE
    metafunc.parametrize("case", [pytest.param(each, marks=_marks(each.family, arch)) for each in CASES], ids=str)


def test_a_kernel_does_what_numpy_does(bench: Bench, case: Case) -> None:
    bench.run(case)
