"""References of `indexing.cu`."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from .case import Arguments, Family, Given, Result, equals, satisfies

Generator = np.random.Generator

family = Family("indexing.cu")


def normal(rng: Generator, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


@family.case(grid=5, block=96)
def saxpy(rng: Generator) -> Arguments:
    n = 10_007
    x, y = normal(rng, n), normal(rng, n)
    fused = 2.5 * x.astype(np.float64) + y  # the product is exact, so that this rounds as one operation does
    return 2.5, Given(x), Result(y, equals(fused.astype(np.float32))), n


@family.case(grid=(2, 3), block=(16, 4))
def plane(rng: Generator) -> Arguments:
    height, width = 37, 53
    y, x = np.indices((height, width), np.int32)
    return Result(np.zeros((height, width), np.int32), equals((x ^ y) * 3 + 1)), width, height


@family.case(grid=(2, 1, 3), block=(4, 3, 2))
def volume(rng: Generator) -> Arguments:
    z, y, x = np.indices((13, 7, 11), np.int32)
    out = Result(np.zeros((13, 7, 11), np.int32), equals(x + 100 * y + 10000 * z))
    return out, struct.pack("<3i", 11, 7, 13)


@family.case(grid=3, block=128)
def wide_index(rng: Generator) -> Arguments:
    width, height = 3_000_000_019, 2_500_000_001
    expected = [(((t << 20) * height + t * 40503) * width + t * 65537) % 2**64 for t in range(384)]
    return Result(np.zeros(384, np.uint64), equals(np.array(expected, np.uint64))), width, height


@family.case(grid=4, block=64)
def backwards(rng: Generator) -> Arguments:
    x = rng.integers(-999, 999, 250).astype(np.int32)
    return Given(x), Result(np.zeros_like(x), equals(x[::-1])), x.size


@family.case(grid=8, block=128)
def gather(rng: Generator) -> Arguments:
    table, index = normal(rng, 300), rng.integers(0, 300, 1000).astype(np.int32)
    out = Result(np.zeros(1000, np.float32), equals(table[index] + table[index[::-1]]))
    return Given(table), Given(index), out, 1000


@family.case(grid=2, block=64)
def wide_loads(rng: Generator) -> Arguments:
    x, d = normal(rng, 128, 4), normal(rng, 128, 2, dtype=np.float64)
    p, c = rng.integers(-99, 99, (128, 2)).astype(np.int32), rng.integers(0, 255, (128, 4)).astype(np.uint8)
    swapped = np.stack([x[:, 3], x[:, 2] + x[:, 0], x[:, 1], -x[:, 0]], axis=1)
    turned = c[:, ::-1].copy()
    turned[:, 2] = c[:, 1] + np.uint8(1)
    return (
        *(Given(x), Result(np.zeros_like(x), equals(swapped))),
        *(Given(p), Result(np.zeros_like(p), equals(p[:, ::-1]))),
        *(Given(d), Result(np.zeros(128), equals(d[:, 0] - d[:, 1]))),
        *(Given(c), Result(np.zeros_like(c), equals(turned))),
    )


@family.case(grid=1, block=256)
def narrow_types(rng: Generator) -> Arguments:
    a, b = rng.integers(-128, 128, 256).astype(np.int8), rng.integers(-(2**15), 2**15, 256).astype(np.int16)
    c = rng.integers(0, 2, 256).astype(np.bool_)
    wide = np.where(c, a.astype(np.int32) * b, a.astype(np.int32) - b)
    out = Result(np.zeros(256, np.int16), equals(wide.astype(np.int16)))
    return Given(a), Given(b), Given(c), out, Result(np.zeros(256, np.bool_), equals((a > 0) != c))


@family.case(grid=2, block=50)
def unaligned_words(rng: Generator) -> Arguments:
    data = rng.integers(0, 256, 901).astype(np.uint8)
    words = [int.from_bytes(data[i * 9 + 1 : i * 9 + 9].tobytes(), "little") for i in range(100)]
    return Given(data), Result(np.zeros(100, np.uint64), equals(np.array(words, np.uint64)))


@family.case(grid=4, block=64)
def struct_by_value(rng: Generator) -> Arguments:
    n = 201
    x = rng.integers(-50, 50, n).astype(np.float64)
    offsets = (-7, 5, 1000)
    settings = struct.pack("<c7xd3h2x2f", b"c", 0.5, *offsets, -12.5, 900.0)
    clamped = np.clip(x * 0.5 + np.array(offsets)[np.arange(n) % 3], -12.5, 900.0)
    return settings, Given(x), Result(np.zeros(n, np.float32), equals(clamped.astype(np.float32))), n


PARTICLE = np.dtype(
    [("position", "f4", 3), ("velocity", "f4", 3), ("hits", "i4"), ("alive", "u1"), ("padding", "V3")]
)  # fmt: skip


@family.case(grid=3, block=32)
def array_of_structs(rng: Generator) -> Arguments:
    n, step = 90, np.float32(0.375)
    particles = np.zeros(n, PARTICLE)
    particles["position"] = rng.uniform(-1, 1, (n, 3))
    particles["velocity"] = rng.uniform(-2, 2, (n, 3))
    particles["hits"], particles["alive"] = rng.integers(0, 2, n), rng.integers(0, 4, n) > 0
    moved = particles.copy()
    for living in moved:
        if living["alive"]:
            _step(living, step)
    return Result(particles.view(np.uint8), equals(moved.view(np.uint8))), n, float(step)


def _step(p: Any, step: np.float32) -> None:
    """Move one particle, in single precision."""
    for k in range(3):
        p["position"][k] += p["velocity"][k] * step
        if abs(p["position"][k]) > 1:
            p["velocity"][k] *= -1
            p["hits"] += 1
            p["alive"] = p["hits"] < 2


@family.case(grid=4, block=64)
def local_array(rng: Generator) -> Arguments:
    numbers = np.append(rng.integers(0, 2**32, 198), [0, 4_000_000_000]).astype(np.uint32)
    ordered = [int("".join(sorted(str(number), reverse=True))) % 2**32 for number in numbers]
    return Given(numbers), Result(np.zeros_like(numbers), equals(np.array(ordered, np.uint32))), numbers.size


@family.case(grid=4, block=128)
def early_return(rng: Generator) -> Arguments:
    x = rng.integers(0, 9999, 450).astype(np.int32)
    turned = np.concatenate([x[start : start + 128][::-1] for start in range(0, 450, 128)])
    return Given(x), Result(np.zeros_like(x), equals(turned)), x.size


@family.case(grid=3, block=96, shared=96 * 8)
def two_shared_arrays(rng: Generator) -> Arguments:
    x = rng.integers(0, 40, (3, 96)).astype(np.float32)  # whole numbers: their sums are exact in any order
    sums = Result(np.zeros(3, np.float32), equals(x.sum(axis=1)))
    order = Result(np.zeros((3, 96), np.int32), equals(np.argsort(x, axis=1, kind="stable").astype(np.int32)))
    return Given(x), sums, order, 96


@family.case(grid=1, block=256, shared=96 * 1024)
def much_shared_memory(rng: Generator) -> Arguments:
    n = 24 * 1024
    x = rng.integers(0, 2**31, n).astype(np.int32)
    moved = np.empty_like(x)
    moved[np.arange(n) * 7919 % n] = x
    return Given(x), Result(np.zeros_like(x), equals(moved)), n


@family.case(grid=1, block=64, since=(8, 0))
def asynchronous_copies(rng: Generator) -> Arguments:
    x = rng.integers(-999, 999, (3, 64, 4)).astype(np.int32)
    sums = np.zeros(64, np.int32)
    for tile in x[:, ::-1]:
        sums = sums * np.int32(3) + tile @ np.array([1, -1, 2, 1], np.int32)
    return Given(x), Result(np.zeros(64, np.int32), equals(sums))


@family.case(grid=2, block=32)
def volatile_counter(rng: Generator) -> Arguments:
    start = rng.integers(0, 99, 64).astype(np.int32)
    return Result(start, equals(start + 190)), 20


@family.case(grid=2, block=64)
def clocks(rng: Generator) -> Arguments:
    i, x = np.arange(128, dtype=np.int32), np.arange(128, dtype=np.int32)
    for _ in range(50):
        x = x * np.int32(1103515245) + np.int32(12345)
    assert x.dtype == i.dtype
    return (
        Result(np.full(128, -1), satisfies("clock64 never goes back", lambda ticks: ticks >= 0)),
        Result(np.zeros(128, np.uint64), satisfies("globaltimer never goes back", lambda passed: passed < 10**12)),
        Result(np.zeros(128, np.int32), equals(x)),
    )


@family.case(grid=(2, 3, 2), block=(8, 3, 2))
def identity(rng: Generator) -> Arguments:
    block, t = np.indices((12, 48))
    columns = [t % 32, t % 32, np.full_like(t, 3 * 1000 + 2 * 100 + 32), block]
    return (Result(np.zeros((12, 48, 4), np.uint32), equals(np.stack(columns, axis=2).astype(np.uint32))),)
