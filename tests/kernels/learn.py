"""References of `learn.cu`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .case import Arguments, Family, Given, Launch, Result, equals, near

Generator = np.random.Generator

family = Family("learn.cu")


def normal(rng: Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@family.case(grid=4, block=128)
def softmax(rng: Generator) -> Arguments:
    x = 4 * normal(rng, 4, 300)
    powers = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    check = near(
        powers / powers.sum(axis=1, keepdims=True),
        relative=5e-6,
        why="exponents below 40 rounded once, ten sums, a quotient",
    )
    return Given(x), Result(np.zeros_like(x), check), 300


@family.case(grid=5, block=96)
def layer_norm(rng: Generator) -> Arguments:
    x, gain, bias = 3 + 2 * normal(rng, 5, 250), normal(rng, 250), normal(rng, 250)
    wide = x.astype(np.float64)
    scaled = (wide - wide.mean(axis=1, keepdims=True)) / np.sqrt(wide.var(axis=1, keepdims=True) + 1e-5)
    check = near(scaled * gain + bias, absolute=2e-5, why="a dozen roundings of values below 12")
    return Given(x), Given(gain), Given(bias), Result(np.zeros_like(x), check), 250


@family.case(grid=3, block=128)
def gelu(rng: Generator) -> Arguments:
    x = np.linspace(-4, 4, 333).astype(np.float32)
    exact = [0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x.tolist()]
    check = near(exact, absolute=2e-6, why="erff to two units, cancelled against 1, times at most 4")
    return Given(x), Result(np.zeros_like(x), check), x.size


@family.case(grid=5, block=64)
def attention(rng: Generator) -> Arguments:
    q, k, v = normal(rng, 10, 32), normal(rng, 47, 32), normal(rng, 47, 32)
    scores = np.exp(q.astype(np.float64) @ k.T.astype(np.float64) / math.sqrt(32))
    exact = scores / scores.sum(axis=1, keepdims=True) @ v
    check = near(exact, absolute=2e-5, why="47 steps with a handful of roundings each, of values below 4")
    return Given(q), Given(k), Given(v), Result(np.zeros((10, 32), np.float32), check), 47


@family.case(grid=4, block=128, shared=9 * 8)
def nearest_centre(rng: Generator) -> Arguments:
    points = rng.integers(-64, 64, (500, 2)).astype(np.float32)  # whole numbers: distances are exact, ties too
    centres = rng.integers(-64, 64, (9, 2)).astype(np.float32)
    labels = ((points[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1).astype(np.int32)
    sizes = np.bincount(labels, minlength=9).astype(np.int32)
    results = Result(np.full(500, -1, np.int32), equals(labels)), Result(np.zeros(9, np.int32), equals(sizes))
    return Given(points), 500, Given(centres), 9, *results


@family.program
def adam(rng: Generator) -> Sequence[Launch]:
    n, rate = 200, 0.01
    start, gradients = normal(rng, n), [normal(rng, n) for _ in range(3)]
    w, m, v = start.astype(np.float64), np.zeros(n), np.zeros(n)
    for step, g in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g.astype(np.float64) ** 2
        w = w - rate * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
    why = "three steps below 0.03 each; 1 - 0.999 keeps 14 of 24 bits"
    weights = Result(start, near(w, absolute=1e-5, why=why))
    first = Result(np.zeros(n, np.float32), near(m, absolute=1e-6, why="six roundings below 1"))
    second = Result(np.zeros(n, np.float32), near(v, absolute=1e-7, why="nine roundings below 0.1"))
    return [
        Launch("adam", 2, 128, [weights, Given(g), first, second, rate, step, n]) for step, g in enumerate(gradients, 1)
    ]
