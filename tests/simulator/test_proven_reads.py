"""What is proven of a kernel's reads, held against what the simulator sees it write.

Kernels of `kernels/` and random ones run here with each array that they provably only read in memory that cannot be
written: a store there raises an error. With LONG=yes there is one case of each family, and `make sweep` has all.
That a proof is missing costs little; that one is wrong loses data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from atomr_sim.engine.simt import LoadedModule
from atomr_trio import NvrtcOptions, Parameter
from atomr_trio._compiling.caching import CachingCompiler, Job
from atomr_trio._compiling.compiler import CompiledProgram
from atomr_trio._values.signatures import KernelSignature
from kernels.case import Case, Family, Given, Result
from kernels.collection import CASES
from support import SWEEP
from support.kernel_bench import ARCHITECTURES, Options, cuda_headers, curand
from support.kernel_generator import random_kernel, translation_unit
from support.sim import Machine

pytestmark = pytest.mark.sim_only

__all__ = ["curand"]

EVERY = list(ARCHITECTURES) if SWEEP else ["compute_80"]
RANDOM_KERNELS = 200 if SWEEP else 20


@contextlib.contextmanager
def unwritable(machine: Machine, arrays: list[np.ndarray]) -> Iterator[None]:
    """Have every store to one of these arrays raise `ValueError` meanwhile.

    numpy refuses a store to an array that is marked so, except ``ufunc.at``, by which atomics are done: what those
    change is seen afterwards.
    """
    before = [array.copy() for array in arrays]
    spans = [span for array in arrays if (span := machine.memory.find(array.ctypes.data)) is not None]
    try:
        for span in spans:
            span._views.clear()
            span.bytes.flags.writeable = False
        yield
    finally:
        for span in spans:
            span._views.clear()
            span.bytes.flags.writeable = True
    if any(array.tobytes() != copy.tobytes() for array, copy in zip(arrays, before, strict=True)):
        raise ValueError("what is read-only was changed")


class Runs:
    """A machine on which kernels run whose proven reads are held against it."""

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self._compiler = CachingCompiler()
        self.proven = 0
        self.arrays = 0

    def compiled(self, source: str, options: NvrtcOptions) -> CompiledProgram:
        return self._compiler.answer(Job(source, options, self.arch)).program

    def launch(
        self, machine: Machine, module: LoadedModule, signature: KernelSignature, launch: tuple[Any, ...], **how: Any
    ) -> None:
        """Launch with what is proven to be read where nothing can be written; arrays are those of the machine."""
        grid, block, *arguments = launch
        pairs = list(zip(signature.parameters, arguments, strict=True))
        given = [(parameter, each) for parameter, each in pairs if isinstance(each, np.ndarray)]
        written = {each.ctypes.data for parameter, each in given if not parameter.reads}
        read = [each for parameter, each in given if parameter.reads and each.ctypes.data not in written]
        self.proven += len(read)
        self.arrays += len(given)
        packed = [_bytes_of(parameter, each) for parameter, each in pairs]
        with unwritable(machine, read):
            machine.launch(module.functions[signature.name], grid, block, *packed, **how)


def _bytes_of(parameter: Parameter, argument: Any) -> Any:
    """An argument as the machine takes it: an array, or the bytes of anything else."""
    if isinstance(argument, np.ndarray):
        return argument
    return KernelSignature("k", (_alone(parameter),), parameter.size).pack((argument,), lambda *_: None)


def _alone(parameter: Parameter) -> Parameter:
    fields = {name: getattr(parameter, name) for name in Parameter.__slots__ if name not in ("__weakref__", "offset")}
    return Parameter(**{**fields, "index": 0, "offset": 0})


def options_of(family: Family, arch: str, curand: Options | None) -> NvrtcOptions | None:
    """The options that a family of cases is compiled with; None where its headers are missing."""
    if family.curand and curand is None:
        return None
    given = family.options | ((family.headers and cuda_headers()) or {}) | ((family.curand and curand) or {})
    return NvrtcOptions(arch=arch, name_expressions=family.expressions, **given)


def hold(runs: Runs, case: Case, options: NvrtcOptions) -> None:
    """Run a case, and look at its results."""
    machine, arrays, module = Machine(runs.arch), dict[Given | Result, np.ndarray](), None
    program = runs.compiled(case.family.source, options)
    for launch in case.launches():
        if module is None:
            module = LoadedModule(program.ptx.decode(), machine.memory)
        arguments = []
        for each in launch.arguments:
            if isinstance(each, Given | Result) and each not in arrays:
                arrays[each] = machine.array(each.values if isinstance(each, Given) else each.start)
            arguments.append(arrays[each] if isinstance(each, Given | Result) else each)
        signature = program.signature(launch.kernel)
        how = {"shared": launch.shared, "cooperative": launch.cooperative}
        runs.launch(machine, module, signature, (launch.grid, launch.block, *arguments), **how)
    for item, array in arrays.items():
        if isinstance(item, Result):
            item.check(array)


@pytest.mark.parametrize("arch", EVERY)
@pytest.mark.long
def test_no_kernel_writes_what_it_provably_only_reads(arch: str, curand: Options | None) -> None:
    runs, names, typed = Runs(arch), set[str](), 0
    for case in CASES if SWEEP else {case.family: case for case in CASES if not case.family.slow}.values():
        options = options_of(case.family, arch, curand)
        if options is not None and case.since <= ARCHITECTURES[arch]:
            hold(runs, case, options)
            for launch in case.launches():
                signature = runs.compiled(case.family.source, options).signature(launch.kernel)
                typed += signature.typed and signature.name not in names
                names.add(signature.name)
    print(f"{arch}: {typed} of {len(names)} kernels are typed; {runs.proven} of {runs.arrays} arrays are proven reads")
    assert typed == len(names) > 20
    assert runs.proven > 20


@pytest.mark.parametrize("arch", EVERY)
@pytest.mark.long
def test_no_random_kernel_writes_what_it_provably_only_reads(arch: str) -> None:
    runs = Runs(arch)
    for at in range(0, RANDOM_KERNELS, 10):
        kernels = [random_kernel(seed) for seed in range(at, at + 10)]
        options = NvrtcOptions(arch=arch, fmad=False, bundled_headers=True)
        program = runs.compiled(translation_unit(kernels), options)
        machine = Machine(arch)
        module = LoadedModule(program.ptx.decode(), machine.memory)
        for kernel in kernels:
            inputs, out = machine.array(kernel.inputs), machine.array(kernel.start)
            arguments = (kernel.grid, kernel.block, inputs, out, *kernel.scalars)
            runs.launch(machine, module, program.signature(kernel.name), arguments)
            assert (out == kernel.expected).all()
    print(f"{arch}: {runs.proven} of {runs.arrays} arrays are proven reads")
    assert runs.proven


def test_a_store_to_what_cannot_be_written_is_seen() -> None:
    """Or the tests above could not fail."""
    machine = Machine()
    x = machine.zeros(4, np.int32)
    kernels = {
        "stores": "x[threadIdx.x] = 1;",
        "stores_one": "x[2] = 1;",
        "adds": "atomicAdd(x, 1);",
        "adds_and_looks": "x[1] = atomicAdd(x, 1);",
    }
    source = "".join(f'extern "C" __global__ void {name}(int *x) {{ {body} }}\n' for name, body in kernels.items())
    module = machine.load(source)
    for name in kernels:
        with pytest.raises(ValueError, match="read-only"), unwritable(machine, [x]):
            machine.launch(module.functions[name], 1, 4, x)
        machine.launch(module.functions[name], 1, 4, x)
        assert x.any()
        x[...] = 0
