"""What kernels cost on the simulated GPU: `make bench-sim`.

Each kernel's module is loaded and the kernel is run: by the engine in this process, and through the library, whose
worker is another process. Runs follow one another in turns, so that a machine that is busy for a while is so for both.
Both begin with the same arrays and must leave the same bytes, run after run.

The figures belong to this machine; only ratios within one run carry over to others.
"""

from __future__ import annotations

import argparse
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import attrs
import conclusion
import numpy as np
import targets
import trio
from simulator_kernels import KERNELS, Kernel
from speed_report import HEADER, OURS, Measure, Table, Verdict, line

import atomr_trio
from atomr_sim.engine.memory import AddressSpace
from atomr_sim.engine.simt import KernelFunction, LoadedModule
from atomr_trio import NvrtcOptions
from atomr_trio._cli.progress import Progress

ENGINE: Final = "engine"
ARCH: Final = "compute_80"
REPETITIONS: Final = 7


# --- the engine, in this process --------------------------------------------------------------------------------------


def placed(memory: AddressSpace, values: np.ndarray) -> np.ndarray:
    """A copy that kernels may touch, at an address that is aligned as those of a device are."""
    backing = np.zeros(values.nbytes + 512, np.uint8)
    start = 256 + -backing.ctypes.data % 256
    copy = backing[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    memory.add(copy.ctypes.data, copy.nbytes)
    return copy


def packed(function: KernelFunction, arguments: list[Any]) -> bytes:
    """The launch's buffer."""
    buffer = bytearray(function.parameter_bytes)
    for (offset, size), argument in zip(function.parameters, arguments, strict=True):
        if isinstance(argument, np.ndarray):
            argument = argument.ctypes.data
        form = "<f" if isinstance(argument, float) else {4: "<i", 8: "<Q"}[size]
        struct.pack_into(form, buffer, offset, argument)
    return bytes(buffer)


@attrs.define
class InProcess:
    """A kernel loaded by the engine itself."""

    kernel: Kernel
    text: str
    loads: list[float] = attrs.Factory(list)
    runs: list[float] = attrs.Factory(list)
    arrays: list[np.ndarray] = attrs.Factory(list)
    _function: KernelFunction | None = None
    _buffer: bytes = b""

    def load(self, repetitions: int) -> None:
        """Load the module several times over, and make the last one ready to be run."""
        memory = AddressSpace()
        for _ in range(repetitions):
            begun = time.perf_counter()
            module = LoadedModule(self.text, memory)
            self.loads.append(time.perf_counter() - begun)
        arguments = [placed(memory, each) if isinstance(each, np.ndarray) else each for each in self.kernel.arguments()]
        self.arrays = [each for each in arguments if isinstance(each, np.ndarray)]
        self._function = module.functions[self.kernel.name]
        self._buffer = packed(self._function, arguments)

    def run(self) -> float:
        """Run the kernel once; seconds."""
        assert self._function is not None
        begun = time.perf_counter()
        self._function.launch(self.kernel.grid, self.kernel.block, 0, self._buffer, lambda _: None)
        return time.perf_counter() - begun


# --- both, in turns ---------------------------------------------------------------------------------------------------


async def measured(device: atomr_trio.Device, kernel: Kernel, repetitions: int) -> list[Measure]:
    """Load and run a kernel in both ways. Raises `AssertionError` if they disagree about the result."""
    options = NvrtcOptions(arch=ARCH, fmad=kernel.contracted)
    engine = InProcess(kernel, atomr_trio.compile_to_ptx(kernel.source, options=options))
    engine.load(repetitions)
    ours = await device.nvrtc.compile(kernel.source, kernel.name, options)
    arguments = [await device.to_device(each) if isinstance(each, np.ndarray) else each for each in kernel.arguments()]
    runs: list[float] = []
    for repetition in range(repetitions + 1):
        begun = time.perf_counter()
        await ours.launch(kernel.grid, kernel.block, *arguments)
        library, alone = time.perf_counter() - begun, engine.run()
        if repetition:  # the first one warms up
            runs.append(library)
            engine.runs.append(alone)
    arrays = [each for each in arguments if isinstance(each, atomr_trio.DeviceArray)]
    for number, (here, there) in enumerate(zip(engine.arrays, arrays, strict=True)):
        same = here.tobytes() == (await there.to_host()).tobytes()
        assert same, f"{kernel.title}: the engine and the library differ in array {number}"
    return [
        Measure(load_row(kernel), ENGINE, engine.loads),
        Measure(kernel.title, ENGINE, engine.runs),
        Measure(kernel.title, OURS, runs),
    ]


def load_row(kernel: Kernel) -> str:
    """The row of the time that loading the module takes."""
    return f"{kernel.title}: load"


def verdicts(table: Table, kernels: list[Kernel]) -> Iterator[Verdict]:
    """What is aimed at: the best run of the engine, and the best load of each module."""
    best = {(each.what, each.who): min(each.values) for each in table.measures}
    for kernel in kernels:
        if kernel.aim is not None:
            figure = best[kernel.title, ENGINE]
            yield Verdict(kernel.title, figure <= kernel.aim, figure, kernel.aim)
        figure = best[load_row(kernel), ENGINE]
        yield Verdict(load_row(kernel), figure <= targets.LOAD_LIMIT, figure, targets.LOAD_LIMIT)


async def main(arguments: argparse.Namespace) -> int:
    """The exit status: 1 if something that is aimed at was missed and `--strict` asks for that."""
    kernels = [each for each in KERNELS if each.name in arguments.kernels]
    table = Table()
    progress = Progress("kernels", len(kernels), sys.stderr, unit="kernel")
    print(HEADER)
    async with atomr_trio.open_device(backend="sim") as device:
        for done, kernel in enumerate(kernels, 1):
            for each in await measured(device, kernel, arguments.repetitions):
                table.measures.append(each)
                print(line(each), flush=True)
            progress.update(done)
    progress.finish()
    judgements = list(verdicts(table, kernels))
    title = f"Kernels on the simulated GPU: medians of {arguments.repetitions} runs; judged by the best of each"
    return conclusion.conclude(arguments, "simulator", title, table, judgements)


if __name__ == "__main__":
    parser = conclusion.options(__doc__)
    parser.set_defaults(backend="sim")
    names = [each.name for each in KERNELS]
    parser.add_argument("--kernels", nargs="+", choices=names, default=names, help="only these; all by default")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help="of each measurement")
    sys.exit(trio.run(main, parser.parse_args()))
