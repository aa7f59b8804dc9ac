"""Compiles for a device: requests of the NVRTC actor.

NVRTC needs no GPU and no context. Its compiles run in threads of this process, shared by all devices
(``_compiling/service.py``), so a slow compile does not delay a rebuild, and a lost generation does not delay a compile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import outcome

from .._compiling.caching import Answer, Origin
from .._compiling.compiler import CompiledProgram
from .._compiling.options import NvrtcOptions, resolve_target
from .._compiling.service import CompileService, Waiter, digest_of_long, is_long
from .._generation.core import DeviceCore, DevicePart
from .._supervision.mailbox import Request
from .._supervision.states import RequestState
from .._supervision.threads import in_thread_if
from .._values.errors import DeviceError, InvalidArgument
from .._values.events import CompileFinished, CompileStarted

if TYPE_CHECKING:
    from .._generation.generation import Generation


class Compiling(DevicePart):
    """The compiles of an open device that are under way."""

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self.service: CompileService = CompileService.of_this_run()
        self.requests: set[Request] = set()

    def settle_queued(self, make_error: Callable[[], DeviceError]) -> None:
        """Settle them: the device takes no requests any more."""
        for request in list(self.requests):
            request.settle(outcome.Error(make_error()))


class _CompileRequest(Request):
    """One compile. It belongs to no generation: a loss does not affect it."""

    __slots__ = ("_began", "_compiling", "_device", "_digest", "_options", "_source", "_target", "_waiter")

    def __init__(
        self, device: DeviceCore, source: str, options: NvrtcOptions, target: str, digest: bytes | None
    ) -> None:
        super().__init__("nvrtc.compile", lane=None)
        self._device = device
        self._compiling = device.part(Compiling)
        self._source = source
        self._digest = digest
        self._options = options
        self._target = target
        self._began = 0.0
        self._waiter: Waiter | None = None

    def start(self, generation: Generation) -> None:
        self.state = RequestState.STARTED
        self._began = time.monotonic()
        self._compiling.requests.add(self)
        self._device.events.publish(CompileStarted(program=self._options.name, target=self._target))
        service = self._compiling.service
        self._waiter = service.submit(self._source, self._options, self._target, self._deliver, self._digest)

    def give_up(self) -> None:
        """Abandon the compile. It ends as well, unless other requests wait for it."""
        super().give_up()
        if self.abandoned:
            self._tell(None, "cancelled")
            self.settle(outcome.Value(None))

    def _deliver(self, result: outcome.Outcome[Answer]) -> None:
        # A device that was closed meanwhile has settled it already.
        if not self.open:
            return
        if isinstance(result, outcome.Value):
            self._tell(result.value.origin, None)
            self.settle(outcome.Value(result.value.program))
        else:
            assert isinstance(result, outcome.Error)
            self._tell(None, str(result.error))
            self.settle(result)

    def _tell(self, origin: Origin | None, error: str | None) -> None:
        self._device.events.publish(
            CompileFinished(
                program=self._options.name,
                target=self._target,
                seconds=time.monotonic() - self._began,
                cached=origin,
                error=error,
            )
        )

    def ended(self, *, delivered: bool) -> None:
        self._compiling.requests.discard(self)
        if self._waiter is not None:
            self._compiling.service.abandon(self._waiter)


async def compiled(device: DeviceCore, source: str, options: NvrtcOptions) -> CompiledProgram:
    """Compile CUDA C++ for a device, by the threads and the caches that all devices share.

    Raises as `Nvrtc.compile` does, but for what it raises of names.
    """
    device.home.check_task()
    device.check_open()
    digest = await in_thread_if(is_long(source), digest_of_long, source)
    info = device.info
    target = resolve_target(options.arch, info.capability, info.backend != "sim")
    request = _CompileRequest(device, source, options, target, digest)
    try:
        program: CompiledProgram = await device.actor("nvrtc").mailbox.ask(request)
    except DeviceError as error:
        error.device = device.index if error.device is None else error.device
        error.generation = device.generation if error.generation is None else error.generation
        raise
    return program


def compiled_now(device: DeviceCore, source: str, options: NvrtcOptions) -> CompiledProgram:
    """Compile as `compiled` does, at once: the caller's task waits for NVRTC, and no other runs meanwhile.

    Raises as `compiled` does.
    """
    device.home.check_task()
    device.check_open()
    target = resolve_target(options.arch, device.info.capability, device.info.backend != "sim")
    device.events.publish(CompileStarted(program=options.name, target=target))
    began = time.monotonic()
    origin: Origin | None = None
    text: str | None = None
    try:
        answer = device.part(Compiling).service.compile_now(source, options, target)
        origin = answer.origin
    except DeviceError as error:
        text = str(error)
        error.device = device.index if error.device is None else error.device
        error.generation = device.generation if error.generation is None else error.generation
        raise
    finally:
        seconds = time.monotonic() - began
        device.events.publish(
            CompileFinished(program=options.name, target=target, seconds=seconds, cached=origin, error=text)
        )
    return answer.program


def options_of(options: NvrtcOptions | None) -> NvrtcOptions:
    """Return the options that a caller gives, or the defaults for None. Raises `InvalidArgument` for anything else."""
    given: object = NvrtcOptions() if options is None else options
    if not isinstance(given, NvrtcOptions):
        raise InvalidArgument(
            f"options is an NvrtcOptions, not {type(given).__name__}",
            advice='"-DN=4 -std=c++17" is `atomr_trio.NvrtcOptions(defines={"N": 4}, cpp_std=17)`; '
            'flags for which it has no field go into `extra_options=["..."]`.',
        )
    return given
