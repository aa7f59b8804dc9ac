"""References of `grids.cu`."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from .case import Arguments, Family, Given, Launch, Result, equals, near

Generator = np.random.Generator

family = Family("grids.cu")


@family.case(grid=6, block=128)
def stencil_1d(rng: Generator) -> Arguments:
    n = 700
    x = rng.integers(-500, 500, n).astype(np.float32)  # small whole numbers: all sums are exact
    padded = np.pad(x, 3, mode="edge")
    sums = sum(weight * padded[k : k + n] for k, weight in enumerate((1, 2, 3, 4, 3, 2, 1)))
    return Given(x), Result(np.zeros(n, np.float32), equals(sums)), n


FILTER = np.array([[1, 4, 7, 4, 1], [4, 16, 26, 16, 4], [7, 26, 41, 26, 7], [4, 16, 26, 16, 4], [1, 4, 7, 4, 1]])


@family.case(grid=(4, 3), block=(16, 16))
def convolve(rng: Generator) -> Arguments:
    height, width = 39, 55
    image = rng.integers(0, 256, (height, width)).astype(np.float32)
    padded = np.pad(image, 2)
    sums = sum(FILTER[v, u] * padded[v : v + height, u : u + width] for v in range(5) for u in range(5))
    expected = sums.astype(np.float32) / np.float32(273)  # the sums are whole numbers below 2 ** 24, so exact
    return Given(image), Result(np.zeros_like(image), equals(expected)), width, height


@family.program
def game_of_life(rng: Generator) -> Sequence[Launch]:
    height, width, steps = 33, 50, 6
    cells = (rng.random((height, width)) < 0.35).astype(np.uint8)
    boards = [cells]
    for _ in range(steps):
        now = boards[-1]
        around = sum(np.roll(now, (v, u), (0, 1)) for v in (-1, 0, 1) for u in (-1, 0, 1)) - now
        boards.append(((around == 3) | ((around == 2) & (now == 1))).astype(np.uint8))
    even, odd = Result(cells, equals(boards[-1])), Result(np.zeros_like(cells), equals(boards[-2]))
    pairs = [(even, odd), (odd, even)] * (steps // 2)
    return [Launch("life", (7, 5), (8, 8), [old, new, width, height]) for old, new in pairs]


@family.program
def heat_in_three_dimensions(rng: Generator) -> Sequence[Launch]:
    shape, rate = (9, 12, 14), 0.1
    fields = [rng.uniform(0, 100, shape)]
    for _ in range(4):
        now = fields[-1]
        moved = now.copy()
        inner = now[1:-1, 1:-1, 1:-1]
        across = [np.roll(now, shift, axis)[1:-1, 1:-1, 1:-1] for axis in (2, 1, 0) for shift in (1, -1)]
        moved[1:-1, 1:-1, 1:-1] = inner + rate * (sum(across) - 6 * inner)
        fields.append(moved)
    why = "nine roundings a step of numbers below 600, four steps"
    even = Result(fields[0], near(fields[4], absolute=5e-12, why=why))
    odd = Result(np.zeros(shape), near(fields[3], absolute=5e-12, why=why))
    size = struct.pack("<3i", *shape[::-1])
    pairs = [(even, odd), (odd, even)] * 2
    return [Launch("heat", (4, 4, 3), (4, 4, 4), [old, new, size, rate]) for old, new in pairs]


@family.case(grid=5, block=32, shared=3 * 61 * 4)
def edit_distance(rng: Generator) -> Arguments:
    stride = 60
    words = rng.integers(97, 101, (2, 5, stride)).astype(np.int8)
    lengths = np.array([[60, 60], [60, 1], [0, 33], [40, 57], [59, 23]], np.int32)
    pairs = [(a[:m].tolist(), b[:n].tolist()) for a, b, (m, n) in zip(*words, lengths, strict=True)]
    distances = np.array([_distance(a, b) for a, b in pairs], np.int32)
    return Given(words[0]), Given(words[1]), Given(lengths), stride, Result(np.zeros(5, np.int32), equals(distances))


def _distance(a: list[int], b: list[int]) -> int:
    """Levenshtein's distance, row by row."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(above[j - 1] + (x != y), above[j] + 1, row[-1] + 1))
    return row[-1]
