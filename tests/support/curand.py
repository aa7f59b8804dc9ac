"""Calls of cuRAND that need no GPU, and the status of each.

The library that is installed is asked on host generators (``bindings/test_curand_table.py``), and so is the simulator
on those of its device: they show what the library looks at first.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from ctypes import byref, c_float, c_int, c_uint, c_ulonglong, c_void_p
from typing import Any

from atomr_cuda import curand
from atomr_cuda.curand import curandOrdering_t as Ordering, curandRngType_t as Kind

MT19937 = Kind.CURAND_RNG_PSEUDO_MT19937
PSEUDO = tuple(each for each in Kind if 100 <= each < 200 and each is not MT19937)
QUASI = tuple(each for each in Kind if each >= 200)
WIDE = Kind.CURAND_RNG_QUASI_SOBOL64, Kind.CURAND_RNG_QUASI_SCRAMBLED_SOBOL64
_IN_PAIRS = (
    Kind.CURAND_RNG_PSEUDO_DEFAULT,
    Kind.CURAND_RNG_PSEUDO_XORWOW,
    Kind.CURAND_RNG_PSEUDO_MRG32K3A,
)

TYPE, RANGE, LENGTH = 103, 104, 105
NO_GENERATOR = 101

NORMALS = ("Normal", "NormalDouble", "LogNormal", "LogNormalDouble")


def _of_a_kind(kind: Kind) -> Iterator[tuple[str, tuple[Any, ...], int]]:
    """Function, arguments behind the generator, and status. The quasi kinds have three dimensions in the end.

    The place of the numbers is left out: a call of a function that draws begins with the count.
    """
    quasi = kind >= 200
    yield "curandSetPseudoRandomGeneratorSeed", (7,), TYPE if quasi else 0
    for dimensions, status in ((0, RANGE), (20_001, RANGE), (2**32 - 1, RANGE), (20_000, 0), (3, 0)):
        yield "curandSetQuasiRandomGeneratorDimensions", (dimensions,), status if quasi else TYPE
    twister = kind in (Kind.CURAND_RNG_PSEUDO_MTGP32, MT19937)
    yield "curandSetGeneratorOffset", (5,), TYPE if twister else 0
    usual = (Ordering.CURAND_ORDERING_PSEUDO_BEST, Ordering.CURAND_ORDERING_PSEUDO_DEFAULT)
    valid: tuple[int, ...] = (Ordering.CURAND_ORDERING_QUASI_DEFAULT,)
    if not quasi:
        valid = (*usual, Ordering.CURAND_ORDERING_PSEUDO_LEGACY)
    if kind in (Kind.CURAND_RNG_PSEUDO_DEFAULT, Kind.CURAND_RNG_PSEUDO_XORWOW):
        valid = (*valid, Ordering.CURAND_ORDERING_PSEUDO_SEEDED)
    for ordering in (0, 99, 100, 101, 102, 103, 105, 201, 202):
        yield "curandSetGeneratorOrdering", (ordering,), 0 if ordering in valid else RANGE
    if not quasi:
        yield "curandSetGeneratorOrdering", (Ordering.CURAND_ORDERING_PSEUDO_DEFAULT,), 0
    yield "curandGenerateSeeds", (), 0

    length = {count: LENGTH if quasi and count % 3 else 0 for count in (0, 1, 2, 3, 4, 6)}
    for count, status in length.items():
        wide = kind in WIDE
        yield "curandGenerate", (count,), TYPE if wide and count else status
        yield "curandGenerateLongLong", (count,), status if wide or not count else TYPE
        for name in ("Uniform", "UniformDouble"):
            yield f"curandGenerate{name}", (count,), status
        for name in NORMALS:
            odd = LENGTH if kind in _IN_PAIRS and count % 2 else 0
            yield f"curandGenerate{name}", (count, 0.0, 1.0), status or odd
        yield "curandGeneratePoisson", (count, 4.0), status
        yield "curandGeneratePoisson", (count, -1.0), RANGE if count else 0
    for mean, status in ((0.0, RANGE), (float("inf"), RANGE), (400_000.5, RANGE), (400_000.0, 0), (1e-9, 0)):
        yield "curandGeneratePoisson", (3, mean), status
    yield "curandGenerateNormal", (6, 0.0, -1.0), 0


def wrong_statuses(
    create: Callable[..., int], status: Callable[..., int], place: int, kinds: tuple[Kind, ...]
) -> list[str]:
    """Make all those calls for generators that ``create`` makes; return what was not as expected.

    ``status`` calls a function by its name. The numbers go to a place with room for 6 of 64 bits.
    """
    found = []
    for kind in kinds:
        number = c_void_p()
        if create(byref(number), kind):
            found.append(f"{kind.name} was not created")
            continue
        for name, arguments, expected in _of_a_kind(kind):
            draws = name.startswith("curandGenerate") and name != "curandGenerateSeeds"
            given = (number, place, *arguments) if draws else (number, *arguments)
            if (found_status := status(name, *given)) != expected:
                found.append(f"{kind.name}: {name}{arguments}: {found_status}, not {expected}")
        status("curandDestroyGenerator", number)
    for kind in (1, 99, 205, -1):
        number = c_void_p(7)
        if create(byref(number), kind) != TYPE or number.value != 7:
            found.append(f"kind {kind} was created")
    return found


def without_a_generator(status: Callable[..., int]) -> list[str]:
    """Every function of a generator with none; return what is not refused."""
    zeros = {c_float: 0.0}
    found = []
    for name, function in curand.library.functions.items():
        if function.argtypes[0] is c_void_p and name != "curandDestroyDistribution":
            arguments = [zeros.get(kind, 0) if kind is not c_void_p else None for kind in function.argtypes]
            if (answer := status(name, *arguments)) != NO_GENERATOR:
                found.append(f"{name}: {answer}")
    version = c_int()
    parts = [part for part in (-1, 3, 4) if status("curandGetProperty", part, byref(version)) != RANGE]
    return [*found, *(f"there is a part {part} of the version" for part in parts)]


def first_tables(call: Callable[..., int]) -> list[int]:
    """Pieces of the tables in host memory: direction vectors of two dimensions, and scramble constants."""
    words = ctypes.POINTER(curand.curandDirectionVectors32_t)()
    wide = ctypes.POINTER(curand.curandDirectionVectors64_t)()
    constants, wide_constants = ctypes.POINTER(c_uint)(), ctypes.POINTER(c_ulonglong)()
    assert call("curandGetDirectionVectors32", byref(words), 101) == 0
    assert call("curandGetDirectionVectors64", byref(wide), 103) == 0
    assert call("curandGetScrambleConstants32", byref(constants)) == 0
    assert call("curandGetScrambleConstants64", byref(wide_constants)) == 0
    assert call("curandGetDirectionVectors32", byref(words), 103) == RANGE
    assert call("curandGetDirectionVectors64", byref(wide), 101) == RANGE
    return [*words[0][:4], *words[1][:4], *wide[1][:4], *constants[:2], *wide_constants[:2]]
