"""References of `simulate.cu`."""

from __future__ import annotations

import math

import numpy as np

from .case import Arguments, Family, Given, Result, equals, near

Generator = np.random.Generator

family = Family("simulate.cu")
uncontracted = Family("simulate.cu", {"fmad": False}, "simulate-uncontracted")


@uncontracted.case(grid=(4, 7), block=(16, 8))
def mandelbrot(rng: Generator) -> Arguments:
    width, height, limit = 60, 50, 40
    y, x = np.indices((height, width)).astype(np.float32)
    re = np.float32(-2) + np.float32(2.75) * x / np.float32(width)
    im = np.float32(-1.25) + np.float32(2.5) * y / np.float32(height)
    a, b, counts = np.zeros_like(re), np.zeros_like(re), np.zeros((height, width), np.int32)
    for _ in range(limit):
        inside = a * a + b * b < 4
        counts += inside
        a, b = np.where(inside, a * a - b * b + re, a), np.where(inside, np.float32(2) * a * b + im, b)
    return Result(np.zeros_like(counts), equals(counts)), width, height, limit


@family.case(grid=3, block=64)
def gravity(rng: Generator) -> Arguments:
    n = 150
    bodies = rng.uniform(0, 1, (n, 4)).astype(np.float32)
    wide = bodies.astype(np.float64)
    apart = wide[None, :, :3] - wide[:, None, :3]
    pull = wide[None, :, 3] / ((apart**2).sum(axis=2) + 0.01) ** 1.5
    forces = np.pad((apart * pull[:, :, None]).sum(axis=1), ((0, 0), (0, 1)))
    scale = (np.abs(apart) * pull[:, :, None]).sum(axis=1).max()
    check = near(forces, absolute=scale * 2e-5, why="150 sums of products of some ten roundings each")
    return Given(bodies), Result(np.zeros((n, 4), np.float32), check), n


@family.case(grid=2, block=16)
def pendulum(rng: Generator) -> Arguments:
    angles, steps, step = rng.uniform(-2, 2, 32), 60, 0.05
    angle, speed = angles.copy(), np.zeros(32)
    for _ in range(steps):
        speed -= 0.5 * step * np.sin(angle)
        angle += step * speed
        speed -= 0.5 * step * np.sin(angle)
    check = near(np.stack([angle, speed], axis=1), absolute=1e-12, why="60 steps of a few roundings, hardly amplified")
    return Given(angles), Result(np.zeros((32, 2)), check), steps, step


@family.case(grid=3, block=128)
def black_scholes(rng: Generator) -> Arguments:
    n, rate, volatility = 333, 0.03, 0.3
    price, strike, years = (rng.uniform(*ends, n).astype(np.float32) for ends in ((5, 30), (1, 100), (0.25, 10)))
    s, k, t = (values.astype(np.float64) for values in (price, strike, years))
    spread = volatility * np.sqrt(t)
    d1 = (np.log(s / k) + (rate + volatility**2 / 2) * t) / spread
    later = k * np.exp(-rate * t)
    below = np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)))
    call = s * below(d1) - later * below(d1 - spread)
    put = later * below(spread - d1) - s * below(-d1)
    why = "differences of terms below 100, each with some ten roundings"
    checks = [near(value, absolute=2e-4, why=why) for value in (call, put)]
    results = (Result(np.zeros(n, np.float32), check) for check in checks)
    return Given(price), Given(strike), Given(years), rate, volatility, *results, n


def splitmix(seed: np.ndarray) -> np.ndarray:
    z = seed + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)


@family.case(grid=2, block=128)
def xorshift(rng: Generator) -> Arguments:
    x = splitmix(np.arange(256, dtype=np.uint64))
    for _ in range(20):
        x = x ^ x << np.uint64(13)
        x = x ^ x >> np.uint64(7)
        x = x ^ x << np.uint64(17)
    return Result(np.zeros(256, np.uint64), equals(x)), 20


def philox_4x32_10(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011); a row for each counter."""
    words = [column.astype(np.uint64) for column in counter.T]
    low_half, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for round_ in range(10):
        keys = [np.uint64((k + round_ * w) % 2**32) for k, w in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True)]
        first, second = np.uint64(0xD2511F53) * words[0], np.uint64(0xCD9E8D57) * words[2]
        words = [second >> half ^ words[1] ^ keys[0], second & low_half, first >> half ^ words[3] ^ keys[1],
                 first & low_half]  # fmt: skip
    return np.stack(words, axis=1).astype(np.uint32)


@family.case(grid=4, block=64)
def philox(rng: Generator) -> Arguments:
    seed, offset = 0x0123456789ABCDEF, 2**32 - 100  # the counter carries into its second word
    at = offset + np.arange(256, dtype=np.uint64)
    counter = np.stack([at & np.uint64(2**32 - 1), at >> np.uint64(32), np.full_like(at, 7), np.zeros_like(at)], axis=1)
    expected = philox_4x32_10(counter, (seed & 0xFFFFFFFF, seed >> 32))
    return Result(np.zeros((256, 4), np.uint32), equals(expected)), seed, offset


@family.case(grid=4, block=64)
def monte_carlo_pi(rng: Generator) -> Arguments:
    threads, points = 256, 16
    k, i = np.indices((points, threads)).reshape(2, -1)
    draws = philox_4x32_10(np.stack([i, k, 0 * i, 0 * i], axis=1), (42, 43)) >> np.uint32(16)
    inside = (draws[:, :2].astype(np.uint64) ** 2).sum(axis=1) < 2**32
    assert abs(4 * inside.mean() - math.pi) < 0.1
    return Result(np.zeros(1, np.uint64), equals(np.array([inside.sum()], np.uint64))), points


@family.case(grid=3, block=128)
def complex_product(rng: Generator) -> Arguments:
    a, b = ((rng.standard_normal(300) + 1j * rng.standard_normal(300)).astype(np.complex64) for _ in range(2))
    exact = (a.astype(np.complex128) * b * 1j).view(np.float64)
    why = "two products of numbers below 5, each rounded once or not at all, and a sum"
    check = near(exact, absolute=8e-6, why=why)
    return Given(a), Given(b), Result(np.zeros(600, np.float32), check), 300


def transform(rng: Generator, sign: int) -> Arguments:
    x = (rng.standard_normal((3, 256)) + 1j * rng.standard_normal((3, 256))).astype(np.complex64)
    wide = x.astype(np.complex128)
    exact = (np.fft.fft(wide) if sign < 0 else np.fft.ifft(wide, norm="forward")).view(np.float64)
    check = near(
        exact, absolute=1e-4, why="eight stages; each adds an error of some units of 2 ** -24 to values below 80"
    )
    return Given(x), Result(np.zeros((3, 512), np.float32), check), sign


@family.case(grid=3, block=128, kernel="fft_256")
def fft_forward(rng: Generator) -> Arguments:
    return transform(rng, -1)


@family.case(grid=3, block=128, kernel="fft_256")
def fft_backward(rng: Generator) -> Arguments:
    return transform(rng, 1)
