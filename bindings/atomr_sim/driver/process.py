"""The state of the simulated GPUs in one process: devices, contexts, handles, and injected faults.

A context owns its objects, and they end with it. This file does not depend on the driver's functions; ``functions`` is
written on top of it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from atomr_cuda.driver import CUlimit

from .._environment import CHECKS, PEERS
from .._status import (
    CONTEXT_IS_DESTROYED,
    INVALID_CONTEXT,
    INVALID_DEVICE,
    INVALID_HANDLE,
    Refused,
    require,
)
from ..engine.memory import AddressSpace
from .captures import IMPLICIT, KERNEL_NODE, UNSUPPORTED, Captures, NodeForm
from .faults import Faults
from .regions import Regions
from .streams import DefaultStream, Fate, Stream

if TYPE_CHECKING:
    from ..checks import Checks
    from ..engine.simt import KernelFunction, LoadedModule

_DEFAULT_MEMORY = 2 << 30
HANDLES = 0x5200_0000_0000
"""All handles are larger than this. A library whose handles have 32 bits gives the difference to its callers."""
PRINTF_BYTES = 7 << 20
"""The bytes of kernels' unread output that are kept, unless the limit is set; the oldest output is lost first."""
_LEGACY_STREAM = 1

# The line of a failed device assertion. The driver writes it to stderr, and other output to stdout.
_ASSERTION = re.compile(rb": block: \[\d+,\d+,\d+\], thread: \[\d+,\d+,\d+\] Assertion ")

_Object = TypeVar("_Object")


class Module:
    """A loaded module, its functions by name, and their handles."""

    def __init__(self, loaded: LoadedModule, context: Context) -> None:
        self.loaded = loaded
        self.context = context
        self.handles: dict[str, int] = {}


class Function:
    """A kernel of a module, and the attributes that the caller has set for it."""

    def __init__(self, kernel: KernelFunction, module: Module) -> None:
        self.kernel = kernel
        self.module = module
        self.dynamic_shared_limit: int | None = None
        self.carveout = -1
        self.non_portable_clusters = False

    @property
    def process(self) -> Process:
        """The process that the module was loaded in."""
        return self.module.context.process


class Handles:
    """Objects by the numbers that stand for them in C; no number is used twice. ``owner`` is a context's number."""

    def __init__(self, first: int) -> None:
        self._numbers = itertools.count(first, 16)
        self._objects: dict[int, tuple[Any, int]] = {}

    def add(self, thing: object, owner: int = 0) -> int:
        """Keep an object; return the number that stands for it."""
        number = next(self._numbers)
        self._objects[number] = (thing, owner)
        return number

    def get(self, number: int | None, kind: type[_Object], refusal: int = INVALID_HANDLE) -> _Object:
        """Return the object behind a number, or refuse it."""
        thing, _ = self._objects.get(number or 0, (None, 0))
        if not isinstance(thing, kind):
            raise Refused(refusal)
        return thing

    def owner(self, number: int) -> int:
        """Return the context that a number belongs to; 0 for none."""
        return self._objects[number][1]

    def pop(self, number: int | None) -> None:
        """Forget a number."""
        self._objects.pop(number or 0, None)

    def pop_owned(self, owner: int) -> list[Any]:
        """Forget everything that a context owns, and return it."""
        numbers = [number for number, (_, whose) in list(self._objects.items()) if whose == owner]
        return [self._objects.pop(number)[0] for number in numbers]

    def all(self, kind: type[_Object]) -> list[_Object]:
        """Return all objects of one kind."""
        return [thing for thing, _ in list(self._objects.values()) if isinstance(thing, kind)]


class Context:
    """A context of one device. A primary context can end and begin again under the same number."""

    def __init__(self, process: Process, device: int, *, primary: bool) -> None:
        self.process = process
        self.device = device
        self.primary = primary
        self.handle = 0
        self.retained = 0
        self.flags = 0
        self.active: bool = False
        self.limits: dict[int, int] = {}
        self._default_stream: DefaultStream | None = None
        self.lifetime: threading.RLock = threading.RLock()
        self._lock = threading.RLock()
        self._streams: list[Stream] = []
        self._output: deque[bytes] = deque()
        self._output_bytes = 0

    def end(self) -> None:
        """Wait for all work, as the driver does, then give back everything that the context owns."""
        if not self.active:
            return
        status = self.synchronize()
        self.active = False
        require(not status, status)
        for thing in self.process.handles.pop_owned(self.handle):
            if isinstance(thing, Stream):
                self.process.captures.destroyed(thing)
                thing.close()
            elif isinstance(thing, Module):
                thing.loaded.unload()
        if self._default_stream is not None:
            self._default_stream.close()
            self._default_stream = None
        self.process.regions.free_all(self.handle)

    def new_stream(self, *, blocking: bool) -> Stream:
        """Make a stream of this context."""
        stream = Stream(self.process.fate, blocking=blocking)
        with self._lock:
            self._streams = [*self.streams(), stream]
        return stream

    def streams(self) -> list[Stream]:
        """Return all streams but the default one, including destroyed ones that still have work."""
        with self._lock:
            self._streams = [stream for stream in self._streams if not stream.gone]
            return list(self._streams)

    def blocking_streams(self) -> list[Stream]:
        """Return the streams that keep order with the default stream."""
        return [stream for stream in self.streams() if stream.blocking]

    def default_stream(self) -> DefaultStream:
        """Return the stream with handle 0, which is made at its first use."""
        with self._lock:
            if self._default_stream is None:
                self._default_stream = DefaultStream(self.process.fate, self.blocking_streams)
            return self._default_stream

    def hold_back(self, stream: Stream) -> None:
        """Make a blocking stream wait for the earlier work of the default stream."""
        if stream.blocking and self._default_stream is not None:
            self._default_stream.hold_back(stream)

    def synchronize(self) -> int:
        """Wait for all streams; return the status."""
        streams = self.streams()
        if self._default_stream is not None:
            streams.append(self._default_stream)
        for stream in streams:
            status = stream.synchronize()
            if status:
                return status
        self.flush_output()
        return self.process.fate.status

    def say(self, text: bytes) -> None:
        """Take the output of a kernel. Assertions are written at once, the rest when the host synchronises."""
        if _ASSERTION.search(text):
            _write(2, text if text.endswith(b"\n") else text + b"\n")
        else:
            self._keep(text)

    def _keep(self, text: bytes) -> None:
        """Keep the output until the host synchronises. If there is no room, the newest replaces the oldest."""
        room = self.limits.get(CUlimit.CU_LIMIT_PRINTF_FIFO_SIZE, PRINTF_BYTES)
        with self._lock:
            self._output.append(text[-room:])
            self._output_bytes += len(self._output[-1])
            while self._output_bytes > room:
                self._output_bytes -= len(self._output.popleft())

    def flush_output(self) -> None:
        """Write the output of kernels since the last time."""
        with self._lock:
            text = b"".join(self._output)
            self._output.clear()
            self._output_bytes = 0
        _write(1, text)


def _write(descriptor: int, text: bytes) -> None:
    """Write to a descriptor of the process, past Python's own buffers, as a C library does."""
    while text:
        try:
            text = text[os.write(descriptor, text) :]
        except OSError:
            return  # nobody reads: the driver loses such text too


class Process:
    """The simulated driver's state in this process."""

    def __init__(
        self,
        device_count: int,
        memory: int,
        capability: tuple[int, int] = (8, 0),
        checks: Checks | None = None,
        pairs: frozenset[frozenset[int]] | None = None,
    ) -> None:
        self.fate: Fate = Fate()
        self.initialised = False
        self.device_count = device_count
        self.capability = capability
        """The compute capability of the devices."""
        self.checks = checks
        """The checks of launches; None if there are none."""
        self._pairs = pairs
        """The pairs of devices that can access each other's memory; None for all."""
        # The checks know one space; a worker, for which they are, uses one device only.
        spaces = [checks.space] * device_count if checks else [AddressSpace() for _ in range(device_count)]
        for space in spaces[1:]:
            space.atomic_lock = spaces[0].atomic_lock  # kernels of several devices may update one word
        self.regions: Regions = Regions(spaces, [memory] * device_count, self.can_access)
        self.handles: Handles = Handles(HANDLES + 16)
        self.faults: Faults = Faults(self.fate)
        self.captures: Captures = Captures()
        self.calls: Counter[str] = Counter()
        """The number of calls of each function of a library besides the driver, by its C symbol."""
        self.has_workspace = False
        """True if there was a cooperative launch."""
        self._thread = threading.local()
        self.primaries: list[Context] = [self._new_context(device, primary=True) for device in range(device_count)]

    @classmethod
    def from_environment(cls) -> Process:
        """As many devices, of what memory, capability and peers, and what checks, as the environment says."""
        devices = _whole_number("ATOMR_TRIO_SIM_DEVICES", 1, 0, "a number of devices, such as 2")
        memory = _whole_number("ATOMR_TRIO_SIM_MEMORY", _DEFAULT_MEMORY, 1, "a number of bytes, such as 2147483648")
        return cls(devices, memory, _capability(), _checks(), _pairs(devices))

    @property
    def has_clusters(self) -> bool:
        """True if the devices have clusters of blocks, and programmatic launches."""
        return self.capability >= (9, 0)

    def can_access(self, device: int, peer: int) -> bool:
        """Tell whether a device can access the memory of another one; a device is no peer of itself."""
        return device != peer and (self._pairs is None or {device, peer} in self._pairs)

    @property
    def space(self) -> AddressSpace:
        """The memory that the device of the calling thread's context can access; without a context nothing runs."""
        return self.regions.spaces[self.stack[-1].device if self.stack else 0]

    def _new_context(self, device: int, *, primary: bool) -> Context:
        context = Context(self, device, primary=primary)
        context.handle = self.handles.add(context)
        return context

    def create_context(self, device: int) -> Context:
        """Make a context besides the primary one."""
        context = self._new_context(device, primary=False)
        context.active = True
        return context

    def primary(self, device: int) -> Context:
        """Return the primary context of a device."""
        require(0 <= device < self.device_count, INVALID_DEVICE)
        return self.primaries[device]

    # The stack of current contexts, which each thread has for itself.

    @property
    def stack(self) -> list[Context]:
        found: list[Context] | None = getattr(self._thread, "stack", None)
        if found is None:
            found = self._thread.stack = []
        return found

    def current(self) -> Context:
        """Return the context of the calling thread; refuse if there is none, or if it has ended."""
        stack = self.stack
        if not stack:
            raise Refused(INVALID_CONTEXT)
        if not stack[-1].active:
            raise Refused(CONTEXT_IS_DESTROYED)
        return stack[-1]

    def synchronize_context(self) -> int:
        """Wait for all streams of the current context; return the status. One that is captured is void, and refuses."""
        context = self.current()
        self.captures.forbid(context.streams(), UNSUPPORTED)
        return context.synchronize()

    def synchronize_all(self) -> int:
        """Wait for all work of all contexts; return the status."""
        for context in self.handles.all(Context):
            status = context.synchronize() if context.active else 0
            if status:
                return status
        return self.fate.status

    # Streams.

    def stream(self, handle: int | None) -> Stream:
        """Return the stream behind a handle; 0 is the default stream of the current context."""
        if not handle or handle == _LEGACY_STREAM:
            return self.current().default_stream()
        return self.handles.get(handle, Stream)

    def enter(self, stream: Stream) -> None:
        """Refuse to use the default stream while one is captured that would have to wait for it."""
        if isinstance(stream, DefaultStream):
            self.captures.forbid(self.current().blocking_streams(), IMPLICIT)

    def submit(
        self,
        handle: int | None,
        work: Callable[[], None],
        *,
        kernel: bool = False,
        entries: int = 1,
        form: NodeForm = KERNEL_NODE,
    ) -> int:
        """Queue work on the stream behind a handle; returns its place there.

        A stream that is captured takes it as a node of this ``form``, which must be able to run several times.
        """
        stream, context = self.stream(handle), self.current()
        if stream.capture is not None:
            stream.capture.record(stream, form, work)
            return 0
        self.enter(stream)
        context.hold_back(stream)
        return stream.submit(work, kernel=kernel, entries=entries)


def _whole_number(variable: str, default: int, least: int, wanted: str) -> int:
    text = os.environ.get(variable)
    if not text:
        return default
    with contextlib.suppress(ValueError):
        if (number := int(text)) >= least:
            return number
    raise ValueError(f"{variable} is {text!r}; it is {wanted}")


def _capability() -> tuple[int, int]:
    text = os.environ.get("ATOMR_TRIO_SIM_CAPABILITY") or "8.0"
    found = re.fullmatch(r"(\d+)\.(\d)", text)
    if not found:
        raise ValueError(f"ATOMR_TRIO_SIM_CAPABILITY is {text!r}; it must be a compute capability such as 9.0")
    return int(found[1]), int(found[2])


def _pairs(devices: int) -> frozenset[frozenset[int]] | None:
    """Return the pairs of devices that can access each other's memory; None if the environment names none."""
    text = os.environ.get(PEERS)
    if not text:
        return None
    if text == "0":
        return frozenset()
    found = [re.fullmatch(r"(\d+)-(\d+)", part.strip()) for part in text.split(",")]
    pairs = frozenset(frozenset((int(pair[1]), int(pair[2]))) for pair in found if pair)
    if None in found or any(len(pair) == 1 or max(pair) >= devices for pair in pairs):
        raise ValueError(
            f"{PEERS} is {text!r}; it must be 0 for no access between devices, or pairs of the {devices} devices "
            "that have access to each other, such as 0-1,2-3"
        )
    return pairs


def _checks() -> Checks | None:
    """Return the checks that the environment asks for; their modules are imported only then."""
    if not os.environ.get(CHECKS):
        return None
    from ..checks import Checks

    return Checks.from_environment(os.environ)
