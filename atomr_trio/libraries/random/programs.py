"""What cuRAND does, as programs of plans: generators that stand somewhere, and what becomes of their numbers."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from ..._calls.stateful import StatePrograms, restoring
from ..._wire.programs import (
    OF_LANE,
    Address,
    Argument,
    Arrange,
    Call,
    Choose,
    Create,
    Launch,
    Number,
    Out,
    Program,
    Repeat,
    Room,
    RoomOf,
    Slot,
    Step,
    Stream,
)
from .positions import (
    KINDS,
    LONG,
    NORMAL32,
    NORMAL64,
    POISSON,
    UNIFORM32,
    UNIFORM64,
    WORDS,
    Entry,
    Place,
    recorded,
)

_GENERATOR: Final = Slot(0)
_SEEDS: Final = Call("curandGenerateSeeds", (_GENERATOR,))
"""Makes the settings of a generator take effect."""
_SCRATCH: Final = 1 << 21
"""The most bytes that are drawn at a time to be thrown away."""
_FEW: Final = 2
"""Numbers that are drawn ahead of time: normals come in pairs."""

_SCALARS: Final = struct.Struct("<I4xQddff")
"""Which function is called, how many numbers it makes, and its parameters as doubles and as floats."""
_COUNT: Final = Number(8, "Q")
_DOUBLES: Final = (Number(16, "d"), Number(24, "d"))
_FLOATS: Final = (Number(32, "f"), Number(36, "f"))


class Function(NamedTuple):
    """A function of cuRAND that draws."""

    place: int
    """Its place among those that a generator chooses from."""
    name: str
    draw: str
    """What it is in a record of draws."""
    dtype: str
    """The dtype of its numbers."""
    parameters: tuple[Number, ...] = ()


FUNCTIONS: Final[Mapping[str, Function]] = MappingProxyType(
    {
        name: Function(place, f"curandGenerate{function}", draw, dtype, parameters)
        for place, (name, function, draw, dtype, parameters) in enumerate(
            (
                ("bits_uint32", "", WORDS, "uint32", ()),
                ("bits_uint64", "LongLong", LONG, "uint64", ()),
                ("uniform_float32", "Uniform", UNIFORM32, "float32", ()),
                ("uniform_float64", "UniformDouble", UNIFORM64, "float64", ()),
                ("normal_float32", "Normal", NORMAL32, "float32", _FLOATS),
                ("normal_float64", "NormalDouble", NORMAL64, "float64", _DOUBLES),
                ("lognormal_float32", "LogNormal", NORMAL32, "float32", _FLOATS),
                ("lognormal_float64", "LogNormalDouble", NORMAL64, "float64", _DOUBLES),
                ("poisson_uint32", "Poisson", POISSON, "uint32", _DOUBLES[:1]),
            )
        )
    }
)
"""The functions by the verb and the dtype."""
_OF_DRAW: Final = {each.draw: each for each in reversed(list(FUNCTIONS.values()))}
_RECORDED: Final = tuple(each for draw, each in _OF_DRAW.items() if draw != LONG)
"""The functions that make the draws of records once more."""
_RESTORED: Final = struct.Struct("<Qd")
"""The scalars of a call that brings a generator to a place: a seed, an offset or a number of numbers, and a lambda."""
_SIZES: Final = {"uint32": 4, "float32": 4, "uint64": 8, "float64": 8}


def function_of(entry: Entry) -> Function:
    """Return the function that makes the draws of a record once more."""
    return _OF_DRAW[entry.draw]


def bytes_of(entry: Entry) -> int:
    """Return the bytes of its numbers."""
    return entry.numbers * _SIZES[function_of(entry).dtype]


def scalars_of(function: Function, count: int, parameters: tuple[float, ...]) -> bytes:
    """Return the scalars of a draw. `parameters` are one or two numbers that float32 can hold, if it is of that."""
    first, second = (*parameters, 0.0, 0.0)[:2]
    floats = (first, second) if function.dtype == "float32" else (0.0, 0.0)
    return _SCALARS.pack(function.place, count, first, second, *floats)


def generator_program(place: Place) -> Program:
    """The program of a generator that stands at a place. Its address is where the numbers go."""
    drawn = [step for entry in place.record for step in _drawn_again(entry)]
    room = [Room((min(_SCRATCH, max(map(bytes_of, place.record))),), OF_LANE)] if drawn else []
    return _drawing((*_created(place), *_set(place), *room, *drawn))


def generator_ahead(place: Place) -> Program:
    """The program of a generator that can be brought to a place, and to those behind it.

    It has the workspace for that, and has loaded the kernels: it has drawn a few numbers of each kind that a record can
    have. Poisson numbers take a table for each mean.
    """
    draws = () if KINDS[place.kind].is_quasi else (WORDS, UNIFORM64, NORMAL32, NORMAL64)
    few = dict.fromkeys(recorded(place.kind, draw, _FEW, 0.0) for draw in draws)
    drawn = [step for entry in few for step in _drawn_again(entry)]
    room = [Room((_SCRATCH,), OF_LANE)] if drawn else []
    program = _drawing((*_created(place), *_set(place), *room, *drawn))
    if not _returns(place):
        return program
    return program._replace(restore=_restoring(place), restore_scalars=_RESTORED.size)


def generator_restored(place: Place) -> list[bytes]:
    """The calls that bring such a generator to a place."""
    settings = _settings(place)
    calls = [restoring(number, _RESTORED.pack(value, 0.0)) for number, (_, _, value) in enumerate(settings)]
    calls.append(restoring(len(settings), _RESTORED.pack(0, 0.0)))
    for entry in place.record:
        number = len(settings) + 1 + _RECORDED.index(function_of(entry))
        for count, times in _parts(entry):
            calls.append(restoring(number, _RESTORED.pack(count, entry.lam), times))
    return calls


def _restoring(place: Place) -> tuple[Call, ...]:
    """The calls of which those are some. Places of one kind of generators have the same."""
    settings = [Call(name, (_GENERATOR, Number(0, form))) for name, form, _ in _settings(place)]
    draws = [] if KINDS[place.kind].is_quasi else [_draw(each, Number(0, "Q"), Number(8, "d")) for each in _RECORDED]
    return (*settings, _SEEDS, *draws)


def _returns(place: Place) -> bool:
    """Return whether a generator that has drawn is brought to a place by its seed and its offset.

    Those of Mersenne twisters have no offset, and keep their place in the state of the twister: on a GPU, ``mtgp32``
    goes on as many numbers later as it has drawn before it was seeded anew.
    """
    return KINDS[place.kind].has_offset


GENERATOR: Final = StatePrograms(generator_program, generator_ahead, generator_restored, _returns)


def _drawing(made: tuple[Step, ...]) -> Program:
    return Program(
        make=made,
        execute=(
            Choose(
                Number(0, "I"),
                tuple((each.name, (_GENERATOR, Address(0), _COUNT, *each.parameters)) for each in FUNCTIONS.values()),
            ),
        ),
        addresses=1,
        scalars=_SCALARS.size,
        moves=True,
    )


def _created(place: Place) -> tuple[Step, ...]:
    create = Create("curandCreateGenerator", (Out(0), KINDS[place.kind].number), "curandDestroyGenerator")
    return create, Call("curandSetStream", (_GENERATOR, Stream()))


def _settings(place: Place) -> list[tuple[str, str, int]]:
    """The functions that bring a generator to the offset of a place, each with the format and the value of a number."""
    kind = KINDS[place.kind]
    settings = [
        ("curandSetQuasiRandomGeneratorDimensions", "I", place.dims)
        if kind.is_quasi
        else ("curandSetPseudoRandomGeneratorSeed", "Q", place.seed),
        ("curandSetGeneratorOrdering", "i", kind.orderings[place.ordering]),
    ]
    if kind.has_offset:
        settings.append(("curandSetGeneratorOffset", "Q", place.offset))
    return settings


def _set(place: Place) -> list[Step]:
    """The steps that bring a generator to the offset of a place."""
    return [*(Call(name, (_GENERATOR, value)) for name, _, value in _settings(place)), _SEEDS]


def _drawn_again(entry: Entry) -> list[Step]:
    """The steps that draw numbers and throw them away, some at a time."""
    drawn = [(_draw(function_of(entry), count, entry.lam), times) for count, times in _parts(entry)]
    return [call if times == 1 else Repeat(*call, times) for call, times in drawn]


def _parts(entry: Entry) -> list[tuple[int, int]]:
    """How many numbers of an entry are drawn at a time, and how often."""
    most = _SCRATCH // _SIZES[function_of(entry).dtype]
    times, rest = divmod(entry.numbers, most)
    return [(count, often) for count, often in ((most, times), (rest, 1)) if count and often]


def _draw(function: Function, count: Argument, lam: Argument) -> Call:
    """The call that draws so many numbers, to be thrown away."""
    parameters = (lam,) if function.draw == POISSON else (0.0, 1.0)[: len(function.parameters)]
    return Call(function.name, (_GENERATOR, RoomOf(0), count, *parameters))


class Conversion(NamedTuple):
    """A kernel that makes other numbers out of those that cuRAND has drawn."""

    kernel: str
    words: tuple[Number, ...] = ()
    """Its parameters behind the number of elements."""


def conversion_program(conversion: Conversion) -> Program:
    """The program of such a kernel. Its addresses are those of the source and of the target, its first scalar the
    number of elements.
    """
    count, size = Number(0, "Q"), struct.calcsize("<Q" + "".join(each.format for each in conversion.words))
    launch = Launch(conversion.kernel, (Address(0), Address(1), count, *conversion.words), count)
    return Program((), (launch,), addresses=2, scalars=size)


SCALES: Final[Mapping[str, Conversion]] = MappingProxyType(
    {
        "float32": Conversion("scale_float32", tuple(Number(8 + 4 * place, "f") for place in range(3))),
        "float64": Conversion("scale_float64", tuple(Number(8 + 8 * place, "d") for place in range(3))),
    }
)
"""How uniform numbers of a dtype come into another interval."""


class Spread(NamedTuple):
    """A copy from a contiguous array to one of another layout."""

    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    target_strides: tuple[int, ...]


def spread_program(spread: Spread) -> Program:
    """The program of such a copy. Its addresses are those of the source and of the target."""
    bits = f"bits{spread.itemsize}"
    copy = (bits, bits, spread.shape, spread.shape, spread.strides, spread.target_strides, (), 1.0, False)
    return Program((), (Arrange(Address(0), Address(1), copy),), addresses=2)
