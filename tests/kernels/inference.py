"""References of `inference.cu`, in doubles."""

from __future__ import annotations

import numpy as np
from scipy import signal, special

from .case import Arguments, Family, Given, Result, equals, near

Generator = np.random.Generator

family = Family("inference.cu")


def normal(rng: Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def wide(*arrays: np.ndarray) -> list[np.ndarray]:
    return [array.astype(np.float64) for array in arrays]


@family.case(grid=9, block=(32, 8))
def flash_attention(rng: Generator) -> Arguments:
    n = 72
    given = [normal(rng, n, 32) for _ in range(3)]
    q, k, v = wide(*given)
    scores = np.where(np.tri(n) > 0, q @ k.T / np.sqrt(32), -np.inf)
    check = near(special.softmax(scores, axis=1) @ v, absolute=1e-5, why="means of numbers below 4, of 72 terms")
    return *map(Given, given), Result(np.zeros((n, 32), np.float32), check), n


@family.case(grid=3, block=(32, 4))
def rms_norm(rng: Generator) -> Arguments:
    x, gain = normal(rng, 12, 64), normal(rng, 64)
    a, b = wide(x, gain)
    exact = a / np.sqrt((a**2).mean(axis=1, keepdims=True) + 1e-6) * b
    check = near(exact, relative=2e-6, why="a sum of 64 positive terms, a root and three products")
    return Given(x), Given(gain), Result(np.zeros_like(x), check)


@family.case(grid=20, block=16)
def rotary(rng: Generator) -> Arguments:
    x = normal(rng, 20, 16, 2)
    angles = np.arange(20)[:, None] * 10000.0 ** (-np.arange(16) / 16)
    turned = wide(x)[0].view(np.complex128)[..., 0] * np.exp(1j * angles)
    check = near(turned.view(np.float64), absolute=5e-5, why="angles below 20 are off by 2e-6 or less, numbers below 4")
    return Result(x, check), 16


@family.case(grid=6, block=32)
def cross_entropy(rng: Generator) -> Arguments:
    scores, labels = normal(rng, 6, 100) * np.float32(3), rng.integers(0, 100, 6).astype(np.int32)
    (x,) = wide(scores)
    one = np.arange(100) == labels[:, None]
    losses = special.logsumexp(x, axis=1) - x[one]
    why = "exponentials of differences below 20, to a few units"
    return (
        *(Given(scores), Given(labels), Result(np.zeros(6, np.float32), near(losses, absolute=5e-6, why=why))),
        Result(np.zeros((6, 100), np.float32), near(special.softmax(x, axis=1) - one, absolute=1e-6, why=why)),
    )


@family.case(grid=3, block=(6, 6))
def convolve_and_pool(rng: Generator) -> Arguments:
    image, weights, bias = normal(rng, 2, 12, 12), normal(rng, 3, 2, 3, 3), normal(rng, 3)
    x, w, b = wide(image, weights, bias)
    sums = [sum(signal.correlate2d(p, k, "same") for p, k in zip(x, kernels, strict=True)) for kernels in w]
    exact = np.maximum(np.stack(sums) + b[:, None, None], 0).reshape(3, 6, 2, 6, 2).max(axis=(2, 4))
    check = near(exact, absolute=1e-5, why="19 roundings of sums below 30")
    return Given(image), Given(weights), Given(bias), Result(np.zeros((3, 6, 6), np.float32), check), 2, 12


@family.case(grid=1, block=(16, 8))
def product_of_bytes(rng: Generator) -> Arguments:
    a, b = (rng.integers(-128, 128, (n, 40)).astype(np.int8) for n in (8, 16))
    shifts = rng.integers(6, 12, 8).astype(np.int32)
    sums = a.astype(np.int32) @ b.astype(np.int32).T
    expected = np.clip(sums + (1 << shifts[:, None] - 1) >> shifts[:, None], -128, 127).astype(np.int8)
    words = (Given(m.view(np.int32)) for m in (a, b))
    return *words, Given(shifts), Result(np.zeros((8, 16), np.int8), equals(expected)), 10


@family.case(grid=40, block=32)
def embedding_gradient(rng: Generator) -> Arguments:
    """Multiples of an eighth: sums of them are exact in any order."""
    words = rng.integers(0, 12, 40).astype(np.int32)
    gradients = (rng.integers(-99, 99, (40, 32)) / 8).astype(np.float32)
    table = np.zeros((12, 32), np.float32)
    np.add.at(table, words, gradients)
    return Given(words), Given(gradients), Result(np.zeros_like(table), equals(table))


@family.case(grid=1, block=64)
def lstm(rng: Generator) -> Arguments:
    steps = 7
    inputs, weights = normal(rng, steps, 64), normal(rng, 64, 16)
    x, w = wide(inputs, weights)
    state, memory, out = np.zeros(16), np.zeros(16), []
    for row in x:
        enter, forget, new, leave = (row + w @ state).reshape(4, 16)
        memory = special.expit(forget) * memory + special.expit(enter) * np.tanh(new)
        state = special.expit(leave) * np.tanh(memory)
        out.append(state)
    check = near(np.array(out), absolute=1e-5, why="7 steps of sums of 16 terms; the gates hold errors down")
    return Given(inputs), Given(weights), Result(np.zeros((steps, 16), np.float32), check), steps


@family.case(grid=5, block=32)
def four_bits(rng: Generator) -> Arguments:
    groups = 40
    numbers = rng.integers(0, 16, (5, groups, 4, 8))
    packed = (numbers << np.arange(0, 32, 4)).sum(axis=3).astype(np.uint32)
    scales, x = rng.uniform(0.1, 1, (5, groups)).astype(np.float32), normal(rng, groups * 32)
    weights = (numbers.reshape(5, groups, 32) - 8) * wide(scales)[0][:, :, None]
    exact = weights.reshape(5, -1) @ wide(x)[0]
    check = near(exact, absolute=1e-3, why="2,560 roundings of sums below 600, most of them small")
    return Given(packed), Given(scales), Given(x), Result(np.zeros(5, np.float32), check), groups
