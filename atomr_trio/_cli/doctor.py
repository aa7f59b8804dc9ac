"""`python -m atomr_trio doctor`: what was found, what is missing and how to install it, and whether each device works.

Libraries are loaded in a child process, and facts about a device come from its worker. So a crash of either does not
end the doctor.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import trio

import atomr_trio
from atomr_trio._cli.choice import Choice, device_argument
from atomr_trio._wire import machine
from atomr_trio._wire.starting import command, environment

if TYPE_CHECKING:
    from atomr_trio import Device, DeviceInfo

_LIBRARY_PATIENCE = 30.0
_SELF_TEST_PATIENCE = 60.0
_GIB = 1 << 30
_NO_DEVICE = "CUDA_ERROR_NO_DEVICE"
_FEW_DESCRIPTORS = 1024
_FEW_PROCESSES = 256
_LITTLE_DISK = 256 << 20
_SHARED_FOLDER = Path("/dev/shm")
_LITTLE_SHARED = 512 << 20
_FOR_SEVERAL_GPUS = ("nccl",)
_SUPPORTED_MACHINES = ("x86_64", "aarch64")

_SELF_TEST_SOURCE = """
extern "C" __global__ void square(const float *x, float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * x[i];
}
"""


_ADVICE = {
    "platform": "Devices can be opened on Linux ({machines}) only; elsewhere the package can be imported and no more. "
    "Run the program on Linux; on Windows, in WSL2.",
    "install": "Install {name}: {command}, or name its file in {override}.",
    "scipy": "The simulator's linear algebra and Fourier transforms need scipy: {command}.",
    "no driver": "{advice}",
    "mps": "MPS is on, so a fault reaches every client of its GPU: `echo quit | nvidia-cuda-mps-control` stops it.",
    "not durable": "{name} cannot export its memory, as on WSL2: a fault loses its arrays.",
    "exclusive": "{name} admits one process, so no standby worker: `sudo nvidia-smi -i {bus} -c DEFAULT` admits more.",
    "descriptors": "Only {hard} file descriptors can be had: raise the hard limit (`ulimit -Hn 65536`, systemd's "
    "`LimitNOFILE=`, docker's `--ulimit nofile=65536`).",
    "addresses": "Addresses are limited, and a CUDA context takes more than a TiB of them: `ulimit -v unlimited`.",
    "processes": "Few processes and threads can be had: raise `ulimit -u`, or docker's `--pids-limit`.",
    "file size": "Shared memory counts as a file, and opening a device takes 100 MiB of it: `ulimit -f unlimited`.",
    "cores": "A worker that crashes inside a library writes a core file first, and recovery waits: `ulimit -c 0`.",
    "memory": "Little host memory is left; each device takes about 1 GiB with its worker.",
    "disk": "The cache of compiled kernels has no room or cannot be written: free the disk, or name another folder in "
    "ATOMR_TRIO_CACHE_DIR.",
    "shared": "{folder} has {size} MiB in all, and NCCL, by which several GPUs compute together, has buffers there: "
    "raise it (docker's `--shm-size=1g`, or an `emptyDir` with `medium: Memory` at {folder} in Kubernetes).",
    "broken": "{device} does not work; the reason stands above.",
}


@attrs.define
class Report:
    """Prints the report, and collects the advice and the broken parts."""

    advice: list[str] = attrs.Factory(list)
    broken: bool = False

    def heading(self, text: str) -> None:
        print(f"\n{text}", flush=True)

    def line(self, label: str, text: str) -> None:
        print(f"  {label:<12} {text}", flush=True)

    def advise(self, case: str, **facts: object) -> None:
        text = _ADVICE[case].format(**facts)
        if text not in self.advice:
            self.advice.append(text)


# -- the machine -------------------------------------------------------------------------------------------------------


def describe_machine(report: Report) -> None:
    """Print the versions that a bug report should name."""
    report.heading("machine")
    libc = " ".join(platform.libc_ver()).strip() or "not glibc"
    report.line("system", f"{platform.system()} {platform.release()}, {platform.machine()}, {libc}")
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    free = "" if has_lock else ", free-threaded, without the GIL"
    report.line("python", f"{platform.python_version()}, {sys.executable}{free}")
    packages = ("atomr-trio", "trio", "numpy", "cuda-pathfinder")
    report.line("packages", ", ".join(f"{name} {version_of(name)}" for name in packages))


def is_supported() -> bool:
    """Return whether devices can be opened on a system and a machine like this."""
    return sys.platform == "linux" and platform.machine() in _SUPPORTED_MACHINES


def version_of(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "(not installed)"


# -- libraries ---------------------------------------------------------------------------------------------------------


def ask_libraries() -> list[dict[str, Any]]:
    """Let a child process load each library that this package knows, and print the results."""
    answer = subprocess.run(
        command("atomr_cuda"), env=environment(), capture_output=True, text=True, timeout=_LIBRARY_PATIENCE
    )
    if answer.returncode != 0:
        last_words = answer.stderr.strip().rpartition("\n")[2]
        raise OSError(f"the process that loads the libraries ended with status {answer.returncode}: {last_words}")
    facts: list[dict[str, Any]] = json.loads(answer.stdout)
    return facts


def describe_libraries(report: Report, libraries: list[dict[str, Any]]) -> None:
    """Print one line for each library; add advice for a missing one, if this machine has a use for it."""
    report.heading("libraries")
    several = has_several(libraries)
    for library in libraries:
        name = library["name"]
        if "missing" in library:
            if machine.needless(library["extra"]):
                report.line(name, "not found, and not needed without a GPU")
                continue
            if name in _FOR_SEVERAL_GPUS and not several:
                report.line(name, "not found, and not needed with one GPU")
                continue
            report.line(name, "not found; looked at:")
            for place in library["looked"]:
                print(f"  {'':<14} {place}")
            if library["extra"] is None:
                report.advise("no driver", advice=capitalised(machine.without_driver(lacking(libraries))))
            else:
                report.advise("install", command=machine.install(library["extra"]), **library)
            continue
        version = library.get("version", "version unknown")
        report.line(name, f"{version}, {library['path']}, found by {library['found_by']}")
        if "trouble" in library:
            print(f"  {'':<14} {library['trouble']}")
            if name == "cuda" and _NO_DEVICE in library["trouble"]:
                report.advise("no driver", advice=capitalised(machine.without_gpu(lacking(libraries))))
    if not machine.has_scipy():
        report.line("scipy", "not installed")
        report.advise("scipy", command=machine.install(machine.SIMULATOR_EXTRA))


def has_several(libraries: list[dict[str, Any]]) -> bool:
    """Return whether the driver counts several GPUs."""
    return any(library.get("devices", 0) > 1 for library in libraries)


def lacking(libraries: list[dict[str, Any]]) -> list[str]:
    """Return the libraries that the simulator needs and that are missing."""
    missing = [library["name"] for library in libraries if "missing" in library]
    return machine.lacking_of(missing)


def capitalised(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[:1].upper() + text[1:]


# -- what the environment changes --------------------------------------------------------------------------------------


def describe_environment(report: Report) -> None:
    """Print variables that change what is found, and a running MPS daemon."""
    noted = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith("ATOMR_TRIO_") or name in ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_PATH")
    }
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    mps = (pipes / "control").exists()
    if not noted and not mps:
        return
    report.heading("environment")
    for name, value in noted.items():
        report.line(name, value)
    if mps:
        report.line("MPS", f"its control pipe is at {pipes / 'control'}")
        report.advise("mps")


# -- limits ------------------------------------------------------------------------------------------------------------


def describe_limits(report: Report, libraries: list[dict[str, Any]]) -> None:
    """Print the limits of this process that a device depends on. See the guide's page on limits."""
    import resource

    from atomr_trio._wire.limits import available_memory, in_words

    def soft(which: int) -> int:
        return resource.getrlimit(which)[0]

    report.heading("limits")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = f"{in_words(soft(resource.RLIMIT_NOFILE))}; {in_words(hard)} once a device is opened"
    report.line("descriptors", f"{opened} (RLIMIT_NOFILE)")
    if hard != resource.RLIM_INFINITY and hard < _FEW_DESCRIPTORS:
        report.advise("descriptors", hard=in_words(hard))
    for label, name in (("addresses", "RLIMIT_AS"), ("file size", "RLIMIT_FSIZE")):
        limit = soft(getattr(resource, name))
        report.line(label, f"{in_words(limit, bytes_=True)} ({name})")
        if limit != resource.RLIM_INFINITY:
            report.advise(label)
    processes = soft(resource.RLIMIT_NPROC)
    report.line("processes", f"{in_words(processes)} (RLIMIT_NPROC), threads included")
    if processes != resource.RLIM_INFINITY and processes < _FEW_PROCESSES:
        report.advise("processes")
    locked = in_words(soft(resource.RLIMIT_MEMLOCK), bytes_=True)
    report.line("locked", f"{locked} (RLIMIT_MEMLOCK); the NVIDIA driver pins memory without it")
    report.line("core files", f"{in_words(soft(resource.RLIMIT_CORE), bytes_=True)} (RLIMIT_CORE)")
    if soft(resource.RLIMIT_CORE):
        report.advise("cores")
    available = available_memory()
    report.line("host memory", f"{available / _GIB:.1f} GiB available")
    if available < _GIB:
        report.advise("memory")
    describe_shared(report, several=has_several(libraries))
    describe_disk(report)


def describe_shared(report: Report, *, several: bool) -> None:
    """Print the size of the folder in which NCCL has memory that its ranks share. Containers often have little."""
    if not _SHARED_FOLDER.is_dir():
        return
    usage = shutil.disk_usage(_SHARED_FOLDER)
    report.line(str(_SHARED_FOLDER), f"{usage.free / _GIB:.1f} GiB free of {usage.total / _GIB:.1f} GiB")
    if several and usage.total < _LITTLE_SHARED:
        report.advise("shared", folder=_SHARED_FOLDER, size=usage.total >> 20)


def describe_disk(report: Report) -> None:
    """Print the folder of compiled kernels, and its free space."""
    folder = atomr_trio.NvrtcCache.default_directory()
    if folder is None:
        report.line("kernel cache", "none on disk")
        return
    # A folder that may not be searched does not exist, to os.path; Path.exists raises for it, on some Pythons.
    existing = next(place for place in (folder, *folder.parents) if os.path.exists(place))
    free = shutil.disk_usage(existing).free
    writable = os.access(existing, os.W_OK)
    report.line("kernel cache", f"{folder}, {free / _GIB:.1f} GiB free{'' if writable else ', NOT writable'}")
    if free < _LITTLE_DISK or not writable:
        report.advise("disk")


# -- devices -----------------------------------------------------------------------------------------------------------


def devices_of(libraries: list[dict[str, Any]]) -> Iterator[Choice]:
    """Examine every GPU that the driver counts, and every simulated one."""
    for library in libraries:
        for index in range(library.get("devices", 0)):
            yield Choice(index, "cuda")
    text = os.environ.get(machine.DEVICES_VARIABLE, "")
    for index in range(max(1, int(text)) if text.isdecimal() else 1):
        yield Choice(index, "sim")


async def examine(report: Report, choice: Choice) -> DeviceInfo | None:
    """Open a device, describe it, and let it compute. Returns what it says of itself; None if it cannot be opened."""
    report.heading(str(choice))
    started, info = time.perf_counter(), None
    try:
        with trio.fail_after(_SELF_TEST_PATIENCE):
            async with atomr_trio.open_device(choice.index, backend=choice.backend) as dev:
                opened = time.perf_counter()
                info = dev.info
                describe_device(report, info)
                await self_test(dev)
                tested = time.perf_counter()
                await describe_standby(report, choice, dev)
    except (atomr_trio.DeviceError, AssertionError) as error:
        fail(report, choice, str(error))
    except trio.TooSlowError:
        fail(report, choice, f"no result within {_SELF_TEST_PATIENCE:.0f} s")
    else:
        report.line(
            "self-test", f"passed: opened in {opened - started:.2f} s, compiled and computed in {tested - opened:.2f} s"
        )
    return info


def fail(report: Report, choice: Choice, text: str) -> None:
    report.broken = True
    report.line("self-test", "FAILED: " + text.replace("\n", "\n" + " " * 15))
    report.advise("broken", device=choice)


def describe_device(report: Report, info: DeviceInfo) -> None:
    """Print the facts that the worker reported."""
    major, minor = info.capability
    report.line("name", f"{info.name}, at {info.pci_bus_id}" if info.pci_bus_id else info.name)
    report.line("capability", f"{major}.{minor}, {info.multiprocessors} multiprocessors")
    report.line(
        "memory",
        f"{info.total_memory / _GIB:.1f} GiB, {'durable: survives a fault' if info.durable else 'NOT durable'}",
    )
    report.line("compute mode", info.compute_mode)
    report.line("worker's loop", "native" if info.python_loop is None else f"Python: {info.python_loop}")
    report.line("host's arrays", "read by the worker" if info.no_reading is None else f"copied: {info.no_reading}")
    if not info.durable:
        report.advise("not durable", name=info.name)
    if info.compute_mode == "exclusive-process":
        report.advise("exclusive", name=info.name, bus=info.pci_bus_id)


def describe_peers(report: Report, devices: Iterable[DeviceInfo]) -> None:
    """Print which device has access to whose memory, for each backend that has several devices."""
    by_backend: dict[str, list[DeviceInfo]] = {}
    for info in devices:
        by_backend.setdefault(info.backend, []).append(info)
    for backend, found in by_backend.items():
        if len(found) > 1:
            report.heading(f"direct access to memory of other {'GPUs' if backend == 'cuda' else 'simulated GPUs'}")
            report.line("", "".join(f"{other.index:>5}" for other in found))
            for info in found:
                cells = ("-" if other is info else "yes" if other.index in info.peers else "no" for other in found)
                report.line(f"device {info.index}", "".join(f"{cell:>5}" for cell in cells))


async def describe_standby(report: Report, choice: Choice, dev: Device) -> None:
    """Measure what one more worker on the device costs, by starting one."""
    if dev.info.compute_mode != "default":
        return
    async with atomr_trio.open_device(choice.index, backend=choice.backend) as other:
        cost = dev.info.free_memory - dev.statistics().memory.reserved - other.info.free_memory
    report.line("standby", f"possible; each takes {max(0, cost) / _GIB:.2f} GiB of device memory")


async def self_test(dev: Device) -> None:
    """Compile, launch and compare: everything that a program needs, once."""
    numbers = np.arange(100_000, dtype=np.float32)
    kernel = await dev.nvrtc.compile(_SELF_TEST_SOURCE, "square")
    x, y = await dev.to_device(numbers), dev.zeros(numbers.size, np.float32)
    await kernel.launch(-(-numbers.size // 256), 256, atomr_trio.read_only(x), y, numbers.size)
    result = await y.to_host()
    if not np.array_equal(result, numbers * numbers):
        wrong = int(np.argmax(result != numbers * numbers))
        raise AssertionError(f"element {wrong} came back as {result[wrong]}, not {numbers[wrong] ** 2}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", type=device_argument, metavar="0|sim", help="examine this device only; default: all of them"
    )


async def main(arguments: argparse.Namespace) -> int:
    """Print the report; return 1 when a device or library does not work."""
    report = Report()
    print(f"atomr_trio {version_of('atomr-trio')}")
    describe_machine(report)
    if not is_supported():
        report.heading("what to do")
        print(f"  - {_ADVICE['platform'].format(machines=', '.join(_SUPPORTED_MACHINES))}")
        return 1
    libraries = await trio.to_thread.run_sync(ask_libraries)
    describe_libraries(report, libraries)
    describe_environment(report)
    describe_limits(report, libraries)
    opened = [
        await examine(report, choice) for choice in ([arguments.device] if arguments.device else devices_of(libraries))
    ]
    describe_peers(report, [info for info in opened if info is not None])
    report.heading("what to do" if report.advice else "nothing to do: everything works")
    for advice in report.advice:
        print(f"  - {advice}")
    return 1 if report.broken else 0
