"""References of `fields.cu`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .case import Arguments, Family, Given, Launch, Result, anything, equals, near

Generator = np.random.Generator

family = Family("fields.cu")

DIRECTIONS = np.array([(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1)])
WEIGHTS = np.array([16, 4, 4, 4, 4, 1, 1, 1, 1]) / 36


def boltzmann_step(f: np.ndarray, rate: float) -> np.ndarray:
    """Axes: direction, y, x."""
    f = np.stack([np.roll(plane, (y, x), axis=(0, 1)) for plane, (x, y) in zip(f, DIRECTIONS, strict=True)])
    density = f.sum(axis=0)
    speed = np.tensordot(DIRECTIONS.T, f, axes=1) / density
    along = np.tensordot(DIRECTIONS, speed, axes=1)
    still = 1 + 3 * along + 4.5 * along**2 - 1.5 * (speed**2).sum(axis=0)
    return f + rate * (WEIGHTS[:, None, None] * density * still - f)


@family.program
def lattice_boltzmann(rng: Generator) -> Sequence[Launch]:
    width, height, rate = 20, 12, 0.8
    start = WEIGHTS[:, None, None] * rng.uniform(0.9, 1.1, (9, height, width))
    expected = start
    for _ in range(4):
        expected = boltzmann_step(expected, rate)
    check = near(expected, absolute=1e-14, why="4 steps of some twenty roundings of numbers below 1")
    first, second = Result(start, check), Result(np.zeros_like(start), anything)
    turns = [(first, second), (second, first)] * 2
    return [Launch("lattice_boltzmann", (2, 2), (16, 8), [*turn, width, height, rate]) for turn in turns]


@family.program
def red_and_black(rng: Generator) -> Sequence[Launch]:
    n = 30
    u = rng.uniform(0, 1, (n, n))
    x, y = np.meshgrid(np.arange(n), np.arange(n))
    inside = (x > 0) & (x < n - 1) & (y > 0) & (y < n - 1)
    expected = u.copy()
    for colour in (0, 1) * 3:
        mean = 0.25 * sum(np.roll(expected, by, axis) for axis in (0, 1) for by in (-1, 1))
        expected = np.where(inside & ((x + y) % 2 == colour), mean, expected)
    out = Result(u, near(expected, absolute=1e-14, why="six means of numbers below 1"))
    return [Launch("red_and_black", (4, 4), (8, 8), [out, n, colour]) for colour in (0, 1) * 3]


@family.case(grid=1, block=128)
def string_of_a_guitar(rng: Generator) -> Arguments:
    x = np.linspace(0, 1, 128)
    start = np.minimum(x / 0.3, (1 - x) / 0.7)
    start[-1] = 0
    before, now = start.copy(), start.copy()
    for _ in range(40):
        bend = np.pad(now[:-2] - 2 * now[1:-1] + now[2:], 1)
        before, now = now, np.where(np.isin(x, (0, 1)), now, 2 * now - before + 0.7 * bend)
    return Result(start, near(now, absolute=1e-12, why="40 steps, whose errors add up as waves do")), 40, 0.7


def ising_step(spins: np.ndarray, step: int, thresholds: np.ndarray) -> np.ndarray:
    n = len(spins)
    place = np.arange(n * n, dtype=np.uint32).reshape(n, n)
    chance = place + np.uint32(step * n * n)
    chance = (chance ^ chance >> np.uint32(16)) * np.uint32(0x7FEB352D)
    chance = (chance ^ chance >> np.uint32(15)) * np.uint32(0x846CA68B)
    chance ^= chance >> np.uint32(16)
    around = sum(np.roll(spins, by, axis) for axis in (0, 1) for by in (-1, 1))
    turned = np.where(chance < thresholds[around // 2 + 2], 1, -1)
    x, y = np.meshgrid(np.arange(n), np.arange(n))
    return np.where((x + y) % 2 == step % 2, turned, spins).astype(np.int8)


@family.program
def ising(rng: Generator) -> Sequence[Launch]:
    n, steps = 24, 8
    spins = rng.choice(np.array([-1, 1], np.int8), (n, n))
    thresholds = (2.0**32 / (1 + np.exp(-2 * 0.5 * np.arange(-4, 5, 2)))).astype(np.uint32)
    expected = spins
    for step in range(steps):
        expected = ising_step(expected, step, thresholds)
    out, given = Result(spins, equals(expected)), Given(thresholds)
    return [Launch("ising", (2, 3), (16, 8), [out, n, step, given]) for step in range(steps)]


@family.case(grid=1, block=128)
def sand_pile(rng: Generator) -> Arguments:
    start = rng.integers(0, 8, (14, 14)).astype(np.int32)
    grains = start.copy()
    while (grains > 3).any():
        many = np.pad(grains // 4, 1)
        grains = grains % 4 + many[:-2, 1:-1] + many[2:, 1:-1] + many[1:-1, :-2] + many[1:-1, 2:]
    return Result(start, equals(grains)), 14


@family.case(grid=2, block=16)
def lorenz(rng: Generator) -> Arguments:
    def slope(p: np.ndarray) -> np.ndarray:
        x, y, z = p
        return np.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])

    start, step = rng.uniform(-10, 10, (3, 32)), 0.01
    p = start
    for _ in range(50):
        a = slope(p)
        b = slope(p + step / 2 * a)
        c = slope(p + step / 2 * b)
        p = p + step / 6 * (a + 2 * b + 2 * c + slope(p + step * c))
    check = near(p.T, absolute=1e-10, why="half a unit of time, in which errors of 1e-14 grow by less than a thousand")
    return Result(np.ascontiguousarray(start.T), check), 50, step


@family.case(grid=1, block=64)
def conjugate_gradients(rng: Generator) -> Arguments:
    dense = np.where(rng.random((64, 64)) < 0.05, rng.uniform(-1, 1, (64, 64)), 0)
    dense = dense + dense.T + 10 * np.eye(64)
    places = np.nonzero(dense)
    begins = np.searchsorted(places[0], np.arange(65)).astype(np.int32)
    right = rng.standard_normal(64)
    check = near(np.linalg.solve(dense, right), absolute=1e-11, why="the residual is 1e-12 of the right side")
    return (
        *(Given(begins), Given(places[1].astype(np.int32)), Given(dense[places]), Given(right)),
        *(Result(np.zeros(64), check), Result(np.zeros(1, np.int32), anything)),
    )


@family.case(grid=2, block=32)
def eliminate(rng: Generator) -> Arguments:
    matrices, right = rng.standard_normal((64, 6, 6)) + 3 * np.eye(6)[::-1], rng.standard_normal((64, 6, 1))
    matrices[0] = np.eye(6)[::-1]
    exact = np.linalg.solve(matrices, right)
    condition = np.linalg.cond(matrices).max() * np.abs(exact).max()
    check = near(exact, absolute=1e-14 * condition, why="the rounding of a double, times the worst condition")
    return Given(np.concatenate([matrices, right], axis=2)), Result(np.zeros((64, 6)), check)


@family.case(grid=2, block=32)
def eigenvalues(rng: Generator) -> Arguments:
    matrices = rng.standard_normal((64, 4, 4))
    matrices = matrices + matrices.transpose(0, 2, 1)
    matrices[0] = np.diag([3.0, -1, 2, 0])
    check = near(np.linalg.eigvalsh(matrices), absolute=1e-13, why="some hundred rotations of numbers below 10")
    return Given(matrices), Result(np.zeros((64, 4)), check)


@family.case(grid=6, block=8)
def triangle_of_reflections(rng: Generator) -> Arguments:
    matrices = rng.standard_normal((6, 16, 8))
    check = near(np.linalg.qr(matrices)[1], absolute=1e-13, why="eight reflections of numbers below 10")
    return Given(matrices), Result(np.zeros((6, 8, 8)), check)


@family.case(grid=1, block=32)
def adaptive_quadrature(rng: Generator) -> Arguments:
    powers = rng.uniform(0.5, 6, 32)
    check = near(1 / (powers + 1), absolute=1e-7, why="the sum of what is granted to the intervals")
    return Given(powers), Result(np.zeros(32), check), 1e-7
