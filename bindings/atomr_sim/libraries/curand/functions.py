"""The simulated cuRAND: generators and their settings, draws on streams, and tables in host memory.

The numbers are those of ``sources``, and of every kind and ordering those of a GPU, with these exceptions: normal
numbers differ in their last bits, and the dynamic ordering, which each device has for itself, is the default one here.
The library says that it is 10.4.0.

A draw takes its numbers when it is called; they come into memory when the stream comes to it. The state is made by the
first draw, by ``curandGenerateSeeds``, and by the first of them after a setting was changed, at the offset that was
set last. It allocates memory then, and waits for the stream; so does the first draw of Poisson numbers of another
lambda. What a GPU does where a seed or an ordering is set behind draws was not measured.

A draw that is captured takes the next numbers, which the first launch of the graph writes. The launches behind it give
others of their own order, which is not the GPU's; of the quasi kinds they give the same ones again, as there. Without a
state, or where something was set, it is refused and the capture is void.

A generator belongs to the context that is current when it is created, and ends with it.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from atomr_cuda import curand
from atomr_cuda.curand import curandRngType_t as Kind, curandStatus_t as Status

from ..._environment import complain
from ..._status import Refused, require
from ...driver.captures import UNSUPPORTED
from ...driver.process import Context
from ...driver.regions import Kind as Memory
from ...engine.memory import MISALIGNED_ADDRESS, DeviceFault
from .. import dense
from ..dense import Counterpart, Element, Statuses
from . import host, sources
from .kinds import (
    ALIASES,
    DRAWS,
    MOST_DIMENSIONS,
    NOT_SUPPORTED,
    OUT_OF_RANGE,
    TYPE_ERROR,
    Draw,
    Settings,
)

if TYPE_CHECKING:
    from ...driver.process import Process
    from ...driver.streams import Stream
    from ...engine.memory import AddressSpace, Array

VERSION = (10, 4, 0)

_NOT_INITIALIZED = int(Status.CURAND_STATUS_NOT_INITIALIZED)
_ALLOCATION_FAILED = int(Status.CURAND_STATUS_ALLOCATION_FAILED)
_LAUNCH_FAILURE = int(Status.CURAND_STATUS_LAUNCH_FAILURE)
_INITIALIZATION_FAILED = int(Status.CURAND_STATUS_INITIALIZATION_FAILED)

counterpart: Counterpart = Counterpart(
    curand.library,
    Statuses(
        not_initialized=_NOT_INITIALIZED,
        invalid_value=OUT_OF_RANGE,
        execution_failed=_LAUNCH_FAILURE,
        internal_error=Status.CURAND_STATUS_INTERNAL_ERROR,
        not_supported=NOT_SUPPORTED,
    ),
)
_entry = counterpart.entry


# The library itself.


@_entry(curand.curandGetVersion)
def _get_version(process: Process, result: Any) -> None:
    major, minor, patch = VERSION
    counterpart.give(result, major * 1000 + minor * 100 + patch)


@_entry(curand.curandGetProperty)
def _get_property(process: Process, part: int, result: Any) -> None:
    require(0 <= part < len(VERSION), OUT_OF_RANGE)
    counterpart.give(result, VERSION[part])


# Generators.


@dataclass
class Generator:
    """The object that curandCreateGenerator makes, or with no context curandCreateGeneratorHost."""

    settings: Settings
    context: Context | None
    stream: int | None = None
    memory: int = 0
    """The address of the state; 0 where there is none."""
    source: sources.Source | None = None
    """Where its numbers come from, once it has a state."""
    last_lambda: float | None = None
    drawn: int = 0
    """The numbers that it has drawn, if it is one of a GPU that keeps its place."""
    late: int = 0
    """The numbers that it leaves out when it begins anew."""

    @property
    def keeps_place(self) -> bool:
        """True for a Mersenne twister of a GPU: with a new seed it begins as many numbers late as it has drawn."""
        return self.context is not None and not self.settings.is_quasi and not self.settings.has_offset

    def change(self, settings: Settings) -> None:
        """Begin anew with other settings at the next draw."""
        self.settings = settings
        self.end()

    def end(self) -> None:
        """Give back the source."""
        if self.source is not None:
            self.source.close()
        self.source = None


def _settings(kind: int) -> Settings:
    """The settings of a new generator, whose kind the simulator has."""
    require(kind in tuple(Kind) and kind != Kind.CURAND_RNG_TEST, TYPE_ERROR)
    settings = Settings(ALIASES.get(kind, Kind(kind)))
    sources.check_kind(settings)
    return settings


@_entry(curand.curandCreateGenerator)
def _create(process: Process, result: Any, kind: int) -> None:
    require(result, OUT_OF_RANGE)
    require(process.stack and process.stack[-1].active and not process.fate.status, _INITIALIZATION_FAILED)
    context = process.stack[-1]
    generator = Generator(_settings(kind), context)
    if generator.settings.has_state_at_once:
        _allocate(process, generator, context)
    result[0] = process.handles.add(generator, context.handle)


@_entry(curand.curandCreateGeneratorHost)
def _create_on_host(process: Process, result: Any, kind: int) -> None:
    require(result, OUT_OF_RANGE)
    result[0] = process.handles.add(Generator(_settings(kind), None))


@_entry(curand.curandDestroyGenerator)
def _destroy(process: Process, number: int | None) -> None:
    generator = _generator(process, number)
    if generator.memory:
        counterpart.drop_handle(process, number)  # the state is freed, which waits
        process.regions.free(Memory.DEVICE, generator.memory)
    else:
        process.handles.pop(number)
    generator.end()


def _generator(process: Process, number: int | None) -> Generator:
    """The generator behind a number."""
    return counterpart.handle(process, number, Generator)


def _allocate(process: Process, generator: Generator, context: Context) -> None:
    """Allocate the memory of the state. "Allocation failed" too while a capture forbids to allocate."""
    try:
        process.captures.forbid_unsafe()
        generator.memory = process.regions.allocate(
            Memory.DEVICE, generator.settings.state_bytes, context.device, context.handle
        )
    except Refused:
        raise Refused(_ALLOCATION_FAILED) from None


# Settings.


@_entry(curand.curandSetStream)
def _set_stream(process: Process, number: int | None, stream: int | None) -> None:
    _generator(process, number).stream = stream


@_entry(curand.curandSetPseudoRandomGeneratorSeed)
def _set_seed(process: Process, number: int | None, seed: int) -> None:
    generator = _generator(process, number)
    require(not generator.settings.is_quasi, TYPE_ERROR)
    generator.change(replace(generator.settings, seed=seed))
    generator.late = generator.drawn


@_entry(curand.curandSetGeneratorOffset)
def _set_offset(process: Process, number: int | None, offset: int) -> None:
    generator = _generator(process, number)
    require(generator.settings.has_offset, TYPE_ERROR)
    generator.change(replace(generator.settings, offset=offset))


@_entry(curand.curandSetGeneratorOrdering)
def _set_ordering(process: Process, number: int | None, ordering: int) -> None:
    generator = _generator(process, number)
    require(generator.settings.takes(ordering), OUT_OF_RANGE)
    generator.change(replace(generator.settings, ordering=ordering))


@_entry(curand.curandSetQuasiRandomGeneratorDimensions)
def _set_dimensions(process: Process, number: int | None, dimensions: int) -> None:
    generator = _generator(process, number)
    require(generator.settings.is_quasi, TYPE_ERROR)
    require(1 <= dimensions <= MOST_DIMENSIONS, OUT_OF_RANGE)
    generator.change(replace(generator.settings, dimensions=dimensions))


# Draws.


def _stream(process: Process, generator: Generator) -> Stream:
    """The stream that it is set to, of its own context. "Launch failure" where it has none."""
    try:
        require(process.current() is generator.context and not process.fate.status)
        return process.stream(generator.stream)
    except Refused:
        raise Refused(_LAUNCH_FAILURE) from None


def _wait(process: Process, stream: Stream) -> None:
    """Wait for a stream. "Launch failure" where it is captured, which makes the capture void."""
    try:
        process.captures.forbid([stream], UNSUPPORTED)
    except Refused:
        raise Refused(_LAUNCH_FAILURE) from None
    require(not stream.synchronize(), _LAUNCH_FAILURE)


def _source(process: Process, generator: Generator) -> sources.Source:
    """The source of a generator, whose state is made if it has none. The tables of the quasi kinds need none."""
    if generator.source is None:
        if generator.context is not None and not generator.settings.is_quasi:
            stream = _stream(process, generator)
            if not generator.memory:
                _allocate(process, generator, generator.context)
            _wait(process, stream)
        generator.source = sources.begin(generator.settings)
        if generator.late:
            sources.draw(generator.source, generator.settings, DRAWS["curandGenerate"], generator.late, ())
    return generator.source


@_entry(curand.curandGenerateSeeds)
def _generate_seeds(process: Process, number: int | None) -> None:
    generator = _generator(process, number)
    if generator.source is None and generator.settings.kind == Kind.CURAND_RNG_PSEUDO_MT19937:
        generator.drawn = generator.late = 0
    _source(process, generator)


class _Result:
    """The numbers of one draw on their way into memory. It is the work of a stream, or of a node of a graph."""

    def __init__(self, address: int, draw: Draw, numbers: Array, alignment: int) -> None:
        self._address = address
        self._alignment = alignment
        self._place = dense.vector(Element(draw.dtype, draw.dtype), address, len(numbers))
        self._numbers = numbers

    def put(self, space: AddressSpace) -> None:
        if self._address % self._alignment:
            text = f"random numbers at {self._address:#x}, which is no multiple of {self._alignment}"
            raise DeviceFault(MISALIGNED_ADDRESS, text)
        self._place.write(space, self._numbers)


class _CapturedResult(_Result):
    """The numbers of a captured draw: the first launch writes those of the call, and each later one others.

    They come from a generator of its own, with a seed of its own. Launches may overlap.
    """

    _SALT = 0x9E3779B97F4A7C15

    def __init__(
        self, settings: Settings, address: int, draw: Draw, numbers: Array, parameters: tuple[float, ...]
    ) -> None:
        super().__init__(address, draw, numbers, settings.alignment(draw))
        self._settings = replace(settings, seed=settings.seed ^ self._SALT)
        self._draw = draw
        self._parameters = parameters
        self._source: sources.Source | None = None
        self._launched = False
        self._lock = threading.Lock()

    def put(self, space: AddressSpace) -> None:
        with self._lock:
            if self._launched and not self._settings.is_quasi:
                self._source = self._source or sources.begin(self._settings)
                self._numbers = self._source.draw(self._draw, len(self._numbers), self._parameters)
            self._launched = True
            super().put(space)


def _generate(
    process: Process, draw: Draw, number: int | None, address: int | None, count: int, *parameters: float
) -> None:
    generator = _generator(process, number)
    if not count:
        return
    settings = generator.settings
    require(not (status := settings.status(draw, count, parameters)), status)
    if generator.context is None:
        numbers = sources.draw(_source(process, generator), settings, draw, count, parameters)
        ctypes.memmove(address or 0, numbers.ctypes.data, numbers.nbytes)
        return
    stream, source = _stream(process, generator), _source(process, generator)
    if draw.is_poisson and generator.last_lambda != parameters[0]:
        _wait(process, stream)  # a table is made
    numbers = sources.draw(source, settings, draw, count, parameters)
    if generator.keeps_place:
        generator.drawn += count
    if draw.is_poisson:
        generator.last_lambda = parameters[0]
    result = (
        _CapturedResult(settings, address or 0, draw, numbers, parameters)
        if stream.capture is not None
        else _Result(address or 0, draw, numbers, settings.alignment(draw))
    )
    space = process.space
    counterpart.submit(process, generator.stream, lambda: result.put(space))


def _define(draw: Draw) -> None:
    @_entry(curand.library.functions[draw.name])
    def generate(process: Process, number: int | None, address: int | None, count: int, *parameters: float) -> None:
        _generate(process, draw, number, address, count, *parameters)


for _each in DRAWS.values():
    _define(_each)


# Tables. Those in host memory are the real library's; those in device memory are for kernels alone.


def _tables_of_the_library(symbol: str, *arguments: Any) -> int:
    library = host.installed()
    if library is None:
        complain(f"{symbol} is not supported, since cuRAND is not installed")
        return NOT_SUPPORTED
    return library[symbol](*arguments)


def _define_table(symbol: str) -> None:
    @_entry(curand.library.functions[symbol])
    def tell(process: Process, result: Any, *which: int) -> int:
        require(result, OUT_OF_RANGE)
        return _tables_of_the_library(symbol, result, *which)


for _width in (32, 64):
    _define_table(f"curandGetDirectionVectors{_width}")
    _define_table(f"curandGetScrambleConstants{_width}")


@_entry(curand.curandCreatePoissonDistribution)
def _create_distribution(process: Process, mean: float, result: Any) -> None:
    complain("curandCreatePoissonDistribution is not supported by the simulator")
    raise Refused(NOT_SUPPORTED)


@_entry(curand.curandDestroyDistribution)
def _destroy_distribution(process: Process, number: int | None) -> None:
    raise Refused(_NOT_INITIALIZED)
