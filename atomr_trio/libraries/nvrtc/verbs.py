"""Compiling CUDA C++: the verbs of `dev.nvrtc`. The requests are in ``_calls/compiling.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import trio

from ..._calls.compiling import Compiling, compiled, options_of
from ..._compiling.compiler import CompiledProgram
from ..._compiling.options import NvrtcOptions
from ..._compiling.service import CompileStatistics
from ..._generation.core import DeviceCore
from ..._values.errors import InvalidArgument
from ..._values.util import shown
from ..modules.module import Program, check_name, load_apart, load_program
from .declared import Declarations, DeclaredKernel

if TYPE_CHECKING:
    from ..modules.kernel import Kernel


def _with_lines(options: NvrtcOptions) -> NvrtcOptions:
    """Return the options with line information, which findings need for their place. Debug information has it too."""
    return options if options.lineinfo or options.debug else attrs.evolve(options, lineinfo=True)


@final
class Nvrtc:
    """NVIDIA's run-time compiler, as `dev.nvrtc`."""

    def __init__(self, device: DeviceCore) -> None:
        self._device = device

    async def compile(self, source: str, name: str, options: NvrtcOptions | None = None) -> Kernel:
        """Compile CUDA C++ and load the kernel called `name`: an ``extern "C"`` name or one of the name expressions.

        `source` is the text of the program, and `options` say how to compile it, by default for the open device.
        ``nvrtcCompileProgram`` runs in a thread here, ``cuModuleLoadDataEx`` in the worker. The same source with the
        same options and headers is compiled once for all callers, and kept on disk for other processes. Cancelling
        ends the compile if no other caller waits for it and NVRTC is 12.8 or newer; otherwise it goes on, to be kept.

        Raises `CompileError` with the compiler's log, `InvalidArgument` for an unknown name,
        `LibraryNotFound` when there is no NVRTC, `ContextLost` if the context is lost while the image is loaded.
        """
        check_name("kernel", name)
        program = await self._compiled(source, options)
        if program.ltoir is None:
            program.signature(name)
        module = await load_program(self._device, program)
        return module.function(name)

    async def compile_program(self, source: str, options: NvrtcOptions | None = None) -> Program:
        """Compile CUDA C++ and load all of it: kernels and variables by their names in the source.

        `source` and `options` are those of `compile`, and so are the functions, ``nvrtcCompileProgram`` and
        ``cuModuleLoadDataEx``. Each call loads a new module with its own variables, which can be unloaded. Modules of
        the kernels that `compile` returns are shared by all callers that compile the same.

        Raises as `compile` does.
        """
        return await load_apart(self._device, await self._compiled(source, options))

    async def kernel(self, declared: DeclaredKernel) -> Kernel:
        """Return a kernel that was declared by `atomr_trio.kernel`; `DeclaredKernel.on` is a shorter way to say it.

        `declared` is compiled and loaded as by `compile` when the device is given it for the first time, into a module
        of its own (``nvrtcCompileProgram``, ``cuModuleLoadDataEx``). The device keeps it as long as the declaration
        exists.

        Raises as `compile` does, and `InvalidArgument` for anything but a declared kernel.
        """
        device = self._device
        device.home.check_task()
        device.check_open()
        given: object = declared
        if not isinstance(given, DeclaredKernel):
            raise InvalidArgument(f"expected a kernel that was declared by atomr_trio.kernel, not {shown(given)}")
        declarations = device.part(Declarations)
        found = declarations.found(declared)
        if found is not None:
            await trio.lowlevel.checkpoint()
            return found
        module = await load_apart(device, await self._compiled(declared.source, declared.options))
        # Another task may have been faster. Both of them get the same kernel.
        kernel = declarations.found(declared)
        if kernel is None:
            kernel = module._declared(declared.name, declared._roles)
            declarations.kernels[declared] = kernel
        return kernel

    def statistics(self) -> CompileStatistics:
        """Return what the compiler's threads and caches are doing and have done, for all devices of this run."""
        return self._device.part(Compiling).service.statistics()

    async def _compiled(self, source: str, options: NvrtcOptions | None) -> CompiledProgram:
        device = self._device
        device.home.check_task()
        device.check_open()
        options = options_of(options)
        return await compiled(device, source, _with_lines(options) if device.options.checks else options)
