"""Compiling CUDA C++: the verbs of the NVRTC actor.

NVRTC needs no GPU and no context. Its compiles run in threads of this process, shared by the whole device
(``_compiler.py``), so neither a slow compile nor a lost generation stands in the way of the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import outcome

from .._compiler import CompiledProgram, check_source
from .._errors import DeviceError, InvalidArgument
from .._mailbox import Request, RequestState
from .._nvrtc_options import NvrtcOptions, resolve_target
from .kernel import Kernel
from .module import load_program

if TYPE_CHECKING:
    from .._device import Device
    from .._generation import Generation


class _CompileRequest(Request):
    """One compile. It belongs to no generation: a loss does not touch it."""

    __slots__ = ("_device", "_options", "_source", "_target")

    def __init__(self, device: Device, source: str, options: NvrtcOptions, target: str) -> None:
        super().__init__("nvrtc.compile", lane=None)
        self._device = device
        self._source = source
        self._options = options
        self._target = target

    def start(self, generation: Generation) -> None:
        self.state = RequestState.STARTED
        self._device._compiling.add(self)
        self._device._compiler.submit(self._source, self._options, self._target, self._deliver)

    def _deliver(self, result: outcome.Outcome[CompiledProgram]) -> None:
        # A device that was closed meanwhile has settled it already.
        if self.open:
            self.settle(result)

    def ended(self, *, delivered: bool) -> None:
        self._device._compiling.discard(self)


@final
class Nvrtc:
    """NVIDIA's run-time compiler, as `dev.nvrtc`."""

    def __init__(self, device: Device) -> None:
        self._device = device

    async def compile(self, source: str, name: str, options: NvrtcOptions | None = None) -> Kernel:
        """Compile CUDA C++ and load the kernel called `name`: an ``extern "C"`` name or one of the name expressions.

        `source` is the text of the program, and `options` say how to compile it, by default for the open device.
        ``nvrtcCompileProgram`` runs in a thread here, ``cuModuleLoadDataEx`` in the worker. The same source with the
        same options is compiled once, however many ask; cancelling leaves the compile to finish for the others.

        Raises `CompileError` with the compiler's log, `InvalidArgument` for a name that is not there,
        `LibraryNotFound` when there is no NVRTC, `ContextLost` if the context is lost while the image is loaded.
        """
        device = self._device
        device._check_open()
        options = NvrtcOptions() if options is None else options
        if not isinstance(options, NvrtcOptions):
            raise InvalidArgument(f"options is an NvrtcOptions, not {type(options).__name__}")
        check_source(source)
        _check_name(name)
        info = device.info
        target = resolve_target(options.arch, info.capability, info.backend != "sim")
        request = _CompileRequest(device, source, options, target)
        try:
            program: CompiledProgram = await device._nvrtc_mailbox.ask(request)
        except DeviceError as error:
            error.device = device.index if error.device is None else error.device
            error.generation = device.generation if error.generation is None else error.generation
            raise
        program.signature(name)
        module = await load_program(device, program)
        return Kernel._create(module, name)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"a kernel's name is a string that is not empty, not {name!r}")
