"""The exceptions a user of the library can get, and the one place where a CUDA status becomes one of them.

This file knows status codes by class and trio's own exceptions; it knows neither devices nor arrays nor processes.

    DeviceError                  abstract
      RequestError               this request only; everything else works on
        InvalidArgument            also a ValueError; nothing was sent
        OutOfDeviceMemory          also a MemoryError
        OutOfHostMemory            also a MemoryError
        CompileError               .log
        StaleArray                 the array's bytes cannot be trusted
        StaleKernel                the kernel's module state cannot be trusted
        CommandFailed              any other status that harms only this request
      ItemsLost                  .lost, .results; of `Devices.map`
      WorldLost                  .epoch, .causes; a collective, and what was made of its results
      OutsideRun                 also a RuntimeError; .caller, .thread, .home
        SingularMatrixError        .pivot
        NotPositiveDefiniteError   .minor
        ConvergenceError           .unconverged
          NotFiniteError             .operand, .found
      ActorCrashed               .actor; an internal error of this library
      ContextLost                .status, .reason, .findings, .in_flight; may or may not have run
      DeviceFailed               also a trio.BrokenResourceError; leaves `async with open_device()`
      DeviceClosed               also a trio.ClosedResourceError
      LibraryNotFound            also an ImportError
    AtomrInternalError           an internal error of this library, not tied to a request

Two rules hold for all of them. Every field but the message has a default, so that pickling and copying need no code of
their own. An exception object belongs to one waiter. Code that settles several waiters gives each a copy made by
`fresh`, because raising an exception writes a traceback and a context into it.
"""

from __future__ import annotations

import collections
import copy
import itertools
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, TypedDict, TypeVar, Unpack

import trio

from atomr_trio._wire.status import StatusClass, classify

if TYPE_CHECKING:
    from atomr_trio._values.findings import Finding

__all__ = [
    "ActorCrashed",
    "AtomrInternalError",
    "CommandFailed",
    "CompileError",
    "ContextLost",
    "ConvergenceError",
    "DeviceClosed",
    "DeviceError",
    "DeviceFailed",
    "ErrorContext",
    "InvalidArgument",
    "ItemsLost",
    "LibraryNotFound",
    "NotFiniteError",
    "NotPositiveDefiniteError",
    "OutOfDeviceMemory",
    "OutOfHostMemory",
    "OutsideRun",
    "RequestError",
    "SingularMatrixError",
    "StaleArray",
    "StaleKernel",
    "WorldLost",
    "advice_on_simulator",
    "error_from_status",
    "fresh",
    "in_flight_in_words",
    "stale_array",
]

_REPORT: Final = "this is an internal error: please report it together with the traceback of the cause."

_CUDA_ADVICE: Final[Mapping[int, str]] = MappingProxyType(
    {
        1: "compare sizes, alignment and launch dimensions with the limits in `dev.info`.",
        2: "free arrays, lower `memory_limit`, or see who else uses the GPU with `nvidia-smi`.",
        3: "the driver could not start in the worker process: run `python -m atomr_trio doctor`.",
        34: "a stub libcuda was loaded: remove the toolkit's `stubs` folder from LD_LIBRARY_PATH.",
        36: "update the NVIDIA driver, or use a library built for an older CUDA version.",
        46: "another process holds the GPU exclusively: see `nvidia-smi -q -d COMPUTE`.",
        100: 'no GPU is visible: check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or use `backend="sim"`.',
        101: "the device index does not exist: check CUDA_VISIBLE_DEVICES and `python -m atomr_trio doctor`.",
        200: "the image is neither PTX nor a cubin nor a fatbin, or it was truncated.",
        209: 'the image has no code for this GPU: recompile with `arch="native"`, or load PTX.',
        214: "the GPU's memory is defective: stop using the GPU until `nvidia-smi -q -d ECC` is clean.",
        218: "the PTX was rejected by the driver's compiler: compare its `.target` with the GPU's capability.",
        221: "install the NVIDIA driver's PTX compiler (libnvidia-ptxjitcompiler), or load a cubin.",
        222: 'the PTX is newer than the driver: update the driver, or compile to a cubin with `arch="native"`.',
        500: 'the name is not in the module: declare the kernel `extern "C"`, or ask for its name expression.',
        700: "a kernel accessed memory outside its arrays: check its index arithmetic and the sizes passed to it; "
        "`compute-sanitizer` names the line.",
        701: "use a smaller block, less shared memory or fewer registers per thread (`__launch_bounds__`).",
        702: "the GPU has a run time limit: shorten the kernel, or use a GPU that drives no display.",
        710: "a device-side assert failed: its text is in the log `atomr_trio.device`.",
        714: "a kernel ran out of call stack: avoid deep recursion and large local arrays.",
        715: 'the kernel holds an instruction this GPU does not know: recompile with `arch="native"`.',
        716: "a kernel used an address that is not aligned to its element: check casts between pointer types.",
        717: "a kernel used a shared or local pointer as a global one, or the other way round.",
        718: "a kernel jumped to a wild address: check function pointers and overwritten local arrays.",
        719: "a kernel trapped or failed: look for `__trap()`, bad shared memory accesses and stack overflows with "
        "`compute-sanitizer`.",
        720: "launch fewer blocks: a cooperative grid has to fit on the GPU at once.",
        801: "this GPU, driver or backend does not support it: `python -m atomr_trio doctor` shows what each offers.",
        802: "the system is still starting: check that the NVIDIA fabric manager runs.",
        803: "the driver's kernel module and its library differ in version: restart the machine after a driver update.",
        804: "CUDA's compatibility package does not support this GPU: update the driver instead.",
        999: "look for Xid messages of the driver in the system log (`dmesg`).",
    }
)

_SANITIZER: Final = "`compute-sanitizer`"
_SIMULATED_ADVICE: Final[Mapping[int, str]] = MappingProxyType(
    {
        status: text.replace(_SANITIZER, "`python -m atomr_trio check program.py`")
        for status, text in _CUDA_ADVICE.items()
        if _SANITIZER in text
    }
)


def advice_on_simulator(status: int | None) -> str | None:
    """Return the advice for a status of the driver where the simulator has another than a GPU; else None."""
    return None if status is None else _SIMULATED_ADVICE.get(status)


class ErrorContext(TypedDict, total=False):
    """The origin of an error: the keyword arguments that every `DeviceError` takes."""

    device: int | None
    generation: int | None
    status: int | None
    status_name: str | None
    library: str | None
    operation: str | None
    advice: str | None


class DeviceError(Exception):
    """The base class of every error of a device or of a request to it.

    Abstract: catch it to catch all of them; it is never raised itself.
    """

    _fields: ClassVar[tuple[str, ...]] = tuple(ErrorContext.__annotations__)
    _default_advice: ClassVar[str | None] = None

    message: str
    """A sentence that says what happened."""
    device: int | None
    """Index of the device, as given to `open_device`."""
    generation: int | None
    """The generation the error belongs to; for `ContextLost` the one that was lost."""
    status: int | None
    """The status code that `library` returned."""
    status_name: str | None
    """The name of that code, for example "CUDA_ERROR_ILLEGAL_ADDRESS"."""
    library: str | None
    """The library that returned the status; "cuda" is the driver."""
    operation: str | None
    """The verb whose call reported the status, for example "module.launch"; not always the one that caused it."""
    advice: str | None
    """A way to solve the problem. Known status codes have their own."""
    position: dict[str, object] | None = None
    """Where a random generator stood before the draw that has failed or was lost, for its `seek`; None for others."""
    part: int = 0
    """The number of the call that was refused, from 0 on, where a verb makes several by one command."""

    def __init__(
        self,
        message: str,
        *,
        device: int | None = None,
        generation: int | None = None,
        status: int | None = None,
        status_name: str | None = None,
        library: str | None = None,
        operation: str | None = None,
        advice: str | None = None,
    ) -> None:
        if type(self) is DeviceError:
            raise TypeError("DeviceError is abstract: raise one of its subclasses")
        super().__init__(message)
        self.message = message
        self.device = device
        self.generation = generation
        self.status = status
        self.status_name = status_name
        self.library = library
        self.operation = operation
        self.advice = self._advice() if advice is None else advice

    def __str__(self) -> str:
        origin = self._origin()
        first_line = f"{self.message} [{origin}]" if origin else self.message
        return f"{first_line}\nWhat to do: {self.advice}" if self.advice else first_line

    def __repr__(self) -> str:
        values = ((field, getattr(self, field)) for field in self._fields)
        fields = "".join(f", {field}={value!r}" for field, value in values if value is not None and value != ())
        return f"{type(self).__name__}({self.message!r}{fields})"

    def _advice(self) -> str | None:
        if self.status is not None and self.library in (None, "cuda"):
            return _CUDA_ADVICE.get(self.status, self._default_advice)
        return self._default_advice

    def _origin(self) -> str:
        """Return the status, the operation, the device and the generation, as far as they are known."""
        where = (
            f"on device {self.device}" if self.device is not None else "",
            f"generation {self.generation}" if self.generation is not None else "",
        )
        parts = (
            self._status_text(),
            f"reported by {self.operation}" if self.operation else "",
            ", ".join(filter(None, where)),
        )
        return " ".join(filter(None, parts))

    def _status_text(self) -> str:
        if self.status is None:
            return self.status_name or ""
        text = f"{self.status_name} ({self.status})" if self.status_name else f"status {self.status}"
        return text if self.library in (None, "cuda") else f"{text} of {self.library}"


class RequestError(DeviceError):
    """Only this request failed; the device, its memory and every other request go on.

    Catch it to handle every error of a single request. Only its subclasses are raised.
    When the request failed together with everything else that was running, the error is `ContextLost`.
    """


class InvalidArgument(RequestError, ValueError):
    """An argument was refused before anything was sent: a shape, a dtype, a range, a limit, a freed array.

    When the driver refuses an argument that passed the checks, the error is `CommandFailed`. When a fault made the
    array unusable, it is `StaleArray`.
    """


class OutOfDeviceMemory(RequestError, MemoryError):
    """There is not enough device memory: the budget of `memory_limit` is spent, or the GPU itself has no more.

    Before this is raised, cached memory was released and the request was tried once more.
    When a launch wants more registers or shared memory than a multiprocessor has, the error is `CommandFailed`.
    """


class OutOfHostMemory(RequestError, MemoryError):
    """The host has no memory, file descriptor, process or thread left for this; the message names the limit.

    Nothing was lost, and the same request succeeds once there is room again.
    When the GPU has no memory, the error is `OutOfDeviceMemory`.
    """

    _default_advice: ClassVar[str | None] = (
        "raise the limit that is named, or release what it counts: files, kernels, pinned and shared arrays, threads."
    )


class CompileError(RequestError):
    """The CUDA C++ source, or the options that go with it, did not compile; `log` holds the compiler's messages.

    When the compiled image does not load on this device, the error is `CommandFailed`; when there is no compiler, it is
    `LibraryNotFound`.
    """

    _fields: ClassVar[tuple[str, ...]] = (*DeviceError._fields, "log")

    log: str
    """The compiler's messages, each with file and line."""

    def __init__(self, message: str, *, log: str = "", **context: Unpack[ErrorContext]) -> None:
        super().__init__(message, **context)
        self.log = log

    def __str__(self) -> str:
        text, log = super().__str__(), self.log.strip()
        log = log.removeprefix(self.message).lstrip("\n")  # with which it mostly begins
        return f"{text}\n{log}" if log else text


class StaleArray(RequestError):
    """The array's bytes cannot be trusted: unfinished work was writing it when its generation was lost.

    Overwriting the whole array makes it good again, unless its memory itself was lost; the message says which.
    The request that was *running* at the fault gets `ContextLost`; an array that you freed gives `InvalidArgument`.
    """


_WHOLE_AGAIN: Final = (
    "write all of it: `copy_from`, `fill`, or a launch with `overwrites(x)`. If a launch only reads it, `read_only(x)` "
    "says so, and then no fault of that launch tears it."
)
_NEW_ARRAY: Final = "make a new array: this one has no memory any more."


def stale_array(torn: str | None, lost: str | None, **context: Unpack[ErrorContext]) -> StaleArray:
    """Return the error of an array. `torn` and `lost` are what its block says: of its bytes, and of its memory."""
    if lost is not None:
        context["advice"] = _NEW_ARRAY
        return StaleArray(f"the array's memory is lost: {lost}", **context)
    context["advice"] = _WHOLE_AGAIN
    return StaleArray(f"the array is torn: {torn}", **context)


class StaleKernel(RequestError):
    """The kernel needs module globals or constants that were lost with their generation; write them again first.

    Kernels without such state are loaded again automatically. With `on_fault="stale"` no kernel is: compile or load it
    again yourself.
    """


class CommandFailed(RequestError):
    """The driver or a library refused this one command, with a status that harms nothing else.

    When the status means that the context is lost, the error is `ContextLost`; when memory is missing, it is
    `OutOfDeviceMemory`.
    """


class ItemsLost(RequestError):
    """Some items of a `Devices.map` were lost with their devices; all others are done.

    A lost item may have run, in part or to its end. Each was started once, and again as often as `retry` allowed.
    A function that handles its own `ContextLost` loses no item. Another exception of the function leaves `Devices.map`
    instead.
    """

    _fields: ClassVar[tuple[str, ...]] = (*DeviceError._fields, "lost")
    _default_advice: ClassVar[str | None] = (
        "run the items that `lost` names again, or give `retry` if running an item twice does no harm."
    )

    lost: Mapping[int, Exception]
    """The error of every lost item, by its place among the items: a `ContextLost`, a `DeviceFailed`, or a group of
    them."""
    results: tuple[object, ...]
    """The results, in the order of the items; None for those that were lost."""

    def __init__(
        self,
        message: str,
        *,
        lost: Mapping[int, Exception] = MappingProxyType({}),
        results: tuple[object, ...] = (),
        **context: Unpack[ErrorContext],
    ) -> None:
        super().__init__(message, **context)
        self.lost = dict(lost)
        self.results = results


class WorldLost(RequestError):
    """A collective was not finished by every member, because an epoch of its world has ended under it.

    Its inputs are intact on every member, and its outputs are torn on every member, also on those that had finished.
    An array that is both is torn. Work that was submitted behind the collective and used its outputs gets this error
    too, and what that work was writing is torn. All other work goes on. The world begins its next epoch by itself, and
    takes requests meanwhile: they run in it. Work of a lost member alone gets `ContextLost` instead.
    """

    _fields: ClassVar[tuple[str, ...]] = (*DeviceError._fields, "epoch", "causes")
    _default_advice: ClassVar[str | None] = (
        "call it again with the same inputs; `await world.wait_epoch(after=error.epoch)` waits for the next epoch."
    )

    epoch: int
    """The number of the epoch that has ended."""
    causes: Mapping[int, Exception]
    """The error of each member that was lost or has failed, by its rank: a `ContextLost`, for example."""

    def __init__(
        self,
        message: str,
        *,
        epoch: int = 0,
        causes: Mapping[int, Exception] = MappingProxyType({}),
        **context: Unpack[ErrorContext],
    ) -> None:
        super().__init__(message, **context)
        self.epoch = epoch
        self.causes = dict(causes)


class OutsideRun(RequestError, RuntimeError):
    """The call did not come from the trio run that opened the device: nothing was sent, and the device goes on.

    A device belongs to one thread and to the trio run in it. Call verbs without await in that thread, and awaited verbs
    in a task of that run. Another thread, another run, and a task of asyncio are refused.
    The blocking verbs of `start` may be called in every thread, but not in a task of trio, which they would block.
    When that run has ended, or the device was closed, the error is `DeviceClosed`; after a fork `DeviceFailed`.
    """

    _fields: ClassVar[tuple[str, ...]] = (*DeviceError._fields, "caller", "thread", "home")

    caller: str | None
    """The place of the call: "another thread", "another trio run", "asyncio", "no task", or "the device's own run"."""
    thread: str | None
    """The name of the thread that the call came from."""
    home: str | None
    """The name of the thread that the device belongs to. None from `open_device`."""

    def __init__(
        self,
        message: str,
        *,
        caller: str | None = None,
        thread: str | None = None,
        home: str | None = None,
        **context: Unpack[ErrorContext],
    ) -> None:
        super().__init__(message, **context)
        self.caller = caller
        self.thread = thread
        self.home = home


class SingularMatrixError(RequestError):
    """The matrix has no inverse as computed: a pivot of its factorization is exactly zero, or its rank is not full.

    The outputs of the call hold what the library left in them; a factorization itself is complete.
    A nearly singular matrix raises no error, as in numpy. When a matrix is not square, the error is `InvalidArgument`;
    when it has no Cholesky factor, it is `NotPositiveDefiniteError`.
    """

    _fields: ClassVar[tuple[str, ...]] = (*DeviceError._fields, "pivot", "matrix")
    _default_advice: ClassVar[str | None] = "solve it as a least-squares problem, or by the singular values (`svd`)."

    pivot: int | None
    """The index of the pivot on the diagonal, counted from 0."""
    matrix: tuple[int, ...] | None
    """The matrix's place in a stack: the index of its leading axes. None where there is one matrix."""

    def __init__(
        self,
        message: str,
        *,
        pivot: int | None = None,
        matrix: tuple[int, ...] | None = None,
        **context: Unpack[ErrorContext],
    ) -> None:
        super().__init__(message, **context)
        self.pivot = pivot
        self.matrix = matrix


class NotPositiveDefiniteError(RequestError):
    """The matrix is not positive definite, so it has no Cholesky factor. Only one of its triangles was read.

    The outputs of the call hold what the library left in them.
    When a factorization that takes any square matrix meets a zero, the error is `SingularMatrixError`.
    """

    _fields: ClassVar[tuple[str, ...]] = (*DeviceError._fields, "minor", "matrix")
    _default_advice: ClassVar[str | None] = (
        "check that the matrix is Hermitian and that `lower` names the right triangle; or use `eigh` or `solve`."
    )

    minor: int | None
    """The order of the first leading minor that is not positive: its number of rows, 1 for the first element alone."""
    matrix: tuple[int, ...] | None
    """The matrix's place in a stack: the index of its leading axes. None where there is one matrix."""

    def __init__(
        self,
        message: str,
        *,
        minor: int | None = None,
        matrix: tuple[int, ...] | None = None,
        **context: Unpack[ErrorContext],
    ) -> None:
        super().__init__(message, **context)
        self.minor = minor
        self.matrix = matrix


class ConvergenceError(RequestError):
    """An iteration for eigenvalues or singular values did not converge.

    The outputs of the call hold what the library left in them.
    When a generalized problem fails because its second matrix is not positive definite, the error is
    `NotPositiveDefiniteError`.
    """

    _fields: ClassVar[tuple[str, ...]] = (*DeviceError._fields, "unconverged", "matrix")
    _default_advice: ClassVar[str | None] = "check the matrix for NaN and infinities, or allow more Jacobi sweeps."

    unconverged: int | None
    """The number of off-diagonal elements that are left; None for the Jacobi methods, which do not report it."""
    matrix: tuple[int, ...] | None
    """The matrix's place in a stack: the index of its leading axes. None where there is one matrix."""

    def __init__(
        self,
        message: str,
        *,
        unconverged: int | None = None,
        matrix: tuple[int, ...] | None = None,
        **context: Unpack[ErrorContext],
    ) -> None:
        super().__init__(message, **context)
        self.unconverged = unconverged
        self.matrix = matrix


class NotFiniteError(ConvergenceError):
    """An operand holds NaN, or an infinity where that too has no answer; without the check there could be a finite one.

    What the call was to write is left as the library leaves it, as after every `ConvergenceError`: no iteration
    converges on such a matrix, and that is the error by which ``numpy.linalg`` reports it.
    """

    _fields: ClassVar[tuple[str, ...]] = (*ConvergenceError._fields, "operand", "found")
    _default_advice: ClassVar[str | None] = (
        "look for the call that made the NaN or infinity, or replace it; check_finite=False leaves the check out."
    )

    operand: str | None
    """The name of the operand, as the verb's signature has it."""
    found: str | None
    """The values found: "NaN", "infinity", or "NaN and infinity"."""

    def __init__(
        self,
        message: str,
        *,
        operand: str | None = None,
        found: str | None = None,
        matrix: tuple[int, ...] | None = None,
        **context: Unpack[ErrorContext],
    ) -> None:
        super().__init__(message, matrix=matrix, **context)
        self.operand = operand
        self.found = found


class ActorCrashed(DeviceError):
    """The library actor that held this request failed with an internal error, which is `__cause__`. Please report it.

    The request may or may not have taken effect, and is not retried; the actor has been restarted.
    When the context did not survive the crash, the error is `ContextLost`; when the argument was at fault, it is
    `InvalidArgument`.
    """

    _fields: ClassVar[tuple[str, ...]] = (*DeviceError._fields, "actor")
    _default_advice: ClassVar[str | None] = _REPORT

    actor: str | None
    """The name of the actor, for example "blas"."""

    def __init__(self, message: str, *, actor: str | None = None, **context: Unpack[ErrorContext]) -> None:
        super().__init__(message, **context)
        self.actor = actor


class ContextLost(DeviceError):
    """The context was lost while this request was started: it may or may not have run, and is not retried.

    `generation` is the generation that was lost. `status` is the driver's status (None when the worker was killed or
    hung), and `reason` says why. Wait for the next generation with `dev.wait_generation(after=lost.generation)`.
    The fault may have been caused by another request that ran at the same time.
    A request that was still queued is not lost: it runs in the next generation. It gets `StaleArray` there if it needs
    an array that the fault has torn. When no next generation will come, the error is `DeviceFailed`.
    """

    _fields: ClassVar[tuple[str, ...]] = (*DeviceError._fields, "reason", "findings")

    reason: str | None
    """The cause of the loss, in words."""
    findings: tuple[Finding, ...]
    """The simulator's findings about the kernel, if the device was opened with `check`; else empty."""
    in_flight: tuple[str, ...]
    """The requests that were started and not finished at the loss, as `ContextWasLost` has them. One of them is the
    likely cause. The message names the first few."""

    # Always set here, so a user may pass it to `wait_generation` without a check for None.
    generation: int

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        findings: tuple[Finding, ...] = (),
        in_flight: tuple[str, ...] = (),
        **context: Unpack[ErrorContext],
    ) -> None:
        self.findings = findings
        super().__init__(message, **context)
        self.in_flight = in_flight
        self.reason = message if reason is None else reason

    def _advice(self) -> str | None:
        if not self.findings:
            return super()._advice()
        place = self.findings[0].place
        return f"look at {place}; `findings` of this error has the threads, blocks and arrays of all that was found."


class DeviceFailed(DeviceError, trio.BrokenResourceError):
    """The device is given up: the restart budget is spent, or the hardware is gone. Also raised in a forked child.

    Every waiting request gets it, and `async with open_device()` raises it; `__cause__` is the last failure.
    While restarts are left, a fault gives `ContextLost`; after you left the block, requests get `DeviceClosed`.
    """


class DeviceClosed(DeviceError, trio.ClosedResourceError):
    """The block of `open_device` was left, or its trio run has ended, so this device takes no requests any more.

    When the device went away by itself, or the process was forked, the error is `DeviceFailed`.
    """


class LibraryNotFound(DeviceError, ImportError):
    """A library that this call needs is not installed, or is too old: one of CUDA's, or ml_dtypes for its dtypes.

    The message names the extra to install and every place that was searched.
    When the library was found and there is no GPU, the error is `DeviceFailed`.
    """


class AtomrInternalError(Exception):
    """An internal error of this library. Please report it with its traceback.

    When it fails only one request, the error is `ActorCrashed`.
    """

    def __str__(self) -> str:
        return f"{super().__str__()}\nWhat to do: {_REPORT}"


def _context_lost(message: str, text: str, context: ErrorContext) -> ContextLost:
    return ContextLost(f"the context was lost: {message}", reason=text, **context)


def _device_failed(message: str, text: str, context: ErrorContext) -> DeviceFailed:
    return DeviceFailed(f"the device cannot be used: {message}", **context)


_BY_CLASS: Final[Mapping[StatusClass, Callable[[str, str, ErrorContext], DeviceError]]] = MappingProxyType(
    {
        StatusClass.REQUEST: lambda message, text, context: CommandFailed(message, **context),
        StatusClass.UNCERTAIN: lambda message, text, context: CommandFailed(message, **context),
        StatusClass.OUT_OF_MEMORY: lambda message, text, context: OutOfDeviceMemory(message, **context),
        StatusClass.POISONS: _context_lost,
        StatusClass.GONE: _device_failed,
    }
)


def error_from_status(
    status: int,
    name: str,
    text: str,
    *,
    operation: str,
    device: int | None,
    generation: int | None,
    library: str = "cuda",
    status_class: StatusClass | None = None,
) -> DeviceError:
    """Return the exception for a failing status; this is the only place where a status is mapped to a type.

    `name`, `text` and `status_class` are the library's own, as the worker sent them; without a class it is that of the
    driver's table. The exception is returned, not raised.
    """
    context: ErrorContext = {
        "device": device,
        "generation": generation,
        "status": status,
        "status_name": name or None,
        "library": library,
        "operation": operation,
    }
    reason = text or name or f"status {status}"
    return _BY_CLASS[status_class or classify(status, library)](reason, reason, context)


_NAMED_IN_FLIGHT: Final = 3
"""The number of different requests that a text about a loss names."""


def in_flight_in_words(in_flight: Iterable[str]) -> str:
    """Return a short text for the requests that were in flight: each once, and a number for those beyond the first."""
    counts = collections.Counter(in_flight)
    names = [name if count == 1 else f"{name} ({count} times)" for name, count in counts.items()]
    others = sum(itertools.islice(counts.values(), _NAMED_IN_FLIGHT, None))
    shown = ", ".join(names[:_NAMED_IN_FLIGHT]) or "nothing"
    return f"{shown}, and {others} more" if others else shown


_ErrorT = TypeVar("_ErrorT", bound=BaseException)


def fresh(error: _ErrorT) -> _ErrorT:
    """Return a new exception object with the type, the fields, the notes and the cause of `error`.

    It has no traceback and no context, so that each waiter gets its own; the cause object is shared by all of them.
    """
    twin = copy.copy(error)
    twin.__traceback__ = twin.__context__ = None
    if error.__cause__ is not None:
        twin.__cause__ = error.__cause__
    notes = getattr(error, "__notes__", None)
    if notes is not None:
        twin.__notes__ = list(notes)
    return twin


for _value in tuple(globals().values()):  # an error is seen that the program has never named
    if isinstance(_value, type) and issubclass(_value, BaseException) and _value.__module__ == __name__:
        _value.__module__ = "atomr_trio"
del _value
