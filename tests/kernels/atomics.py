"""References of `atomics.cu`.

The order in which threads come is the hardware's to choose. Where it can be seen, the check asks for what every order
gives: each value once, a sum, a product of powers of two.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .case import Arguments, Family, Given, Launch, Result, anything, equals, near, same_items

Generator = np.random.Generator

family = Family("atomics.cu")

N = 384
I = np.arange(N)  # noqa: E741
GRID = {"grid": 3, "block": 128}


def by_remainder(values: np.ndarray, count: int, operation: np.ufunc = np.add) -> np.ndarray:
    """The values of the threads i with the same i % count, put together."""
    return np.array([operation.reduce(values[I % count == k]) for k in range(count)])


@family.case(**GRID)
def add(rng: Generator) -> Arguments:
    signed = np.append(by_remainder(np.where(I % 2, I, -3 * I), 5), -by_remainder(I, 2))
    unsigned = by_remainder(I * 0x01000001, 3).astype(np.uint32)
    wide = by_remainder((I.astype(np.uint64) << np.uint64(33)) | np.uint64(1), 3)
    quarters, fractions = by_remainder(0.25 * (I % 16), 4), by_remainder(I / 1024, 4)  # exact in any order
    return (
        Result(np.zeros(7, np.int32), equals(signed.astype(np.int32))),
        Result(np.zeros(3, np.uint32), equals(unsigned)),
        Result(np.zeros(3, np.uint64), equals(wide)),
        Result(np.zeros(4, np.float32), equals(quarters.astype(np.float32))),
        Result(np.zeros(4), equals(fractions)),
    )


@family.case(grid=8, block=128)
def add_in_any_order(rng: Generator) -> Arguments:
    x = rng.uniform(0.5, 1.5, 1000).astype(np.float32)
    y = rng.uniform(0.5, 1.5, 1000)
    why = "999 roundings of sums of positive numbers"
    return (
        *(Given(x), Given(y)),
        Result(np.zeros(1, np.float32), near([x.sum(dtype=np.float64)], relative=1000 * 2.0**-24, why=why)),
        Result(np.zeros(1), near([y.astype(np.longdouble).sum()], relative=1000 * 2.0**-53, why=why)),
        x.size,
    )


@family.case(**GRID)
def extremes(rng: Generator) -> Arguments:
    x = rng.integers(-(2**31), 2**31, N).astype(np.int32)
    y = rng.integers(-(2**63), 2**63 - 1, N)
    u, v = x.view(np.uint32), y.view(np.uint64)
    rows = [
        (np.full(3, 2**31 - 1, np.int32), by_remainder(x, 3, np.minimum)),
        (np.full(3, -(2**31), np.int32), by_remainder(x, 3, np.maximum)),
        (np.full(3, 2**32 - 1, np.uint32), by_remainder(u, 3, np.minimum)),
        (np.zeros(3, np.uint32), by_remainder(u, 3, np.maximum)),
        (np.array([2**63 - 1, -(2**63)]), np.array([y.min(), y.max()])),
        (np.array([2**64 - 1, 0], np.uint64), np.array([v.min(), v.max()])),
    ]
    return Given(x), Given(y), *(Result(start, equals(expected)) for start, expected in rows)


@family.case(**GRID)
def bits(rng: Generator) -> Arguments:
    u = I.astype(np.uint64)
    mixed = (u * np.uint64(2654435761)).astype(np.uint32)
    narrow = [0xE0000000, 0x7FFFFFFF, int(np.bitwise_xor.reduce(mixed))]
    wide = [0xE << 60, 2**63 - 1, int(np.bitwise_xor.reduce(u * np.uint64(11400714819323198485)))]
    return (
        Result(np.array([2**32 - 1, 0, 0], np.uint32), equals(np.array(narrow, np.uint32))),
        Result(np.array([2**64 - 1, 0, 0], np.uint64), equals(np.array(wide, np.uint64))),
    )


@family.case(**GRID)
def exchange(rng: Generator) -> Arguments:
    arrays = []
    for dtype, scale in ((np.int32, 1), (np.uint64, 2**32), (np.float32, 1)):
        numbers = (np.append(I, 777) * scale).astype(dtype)
        start = np.zeros(N + 1, dtype)
        start[N] = numbers[N]
        arrays.append(Result(start, same_items(numbers)))
    return *arrays, N


@family.case(grid=2, block=64)
def compare_and_swap(rng: Generator) -> Arguments:
    i = np.arange(128)
    sums = [i[0::2].sum() + 60_000, i[1::2].sum() + 60_000]
    return (
        Result(np.full(2, 60_000, np.uint16), equals((np.array(sums) % 2**16).astype(np.uint16))),
        Result(np.full(1, -5, np.int32), equals([int((i * i).sum()) - 5])),
        Result(np.full(1, 9, np.uint64), equals(np.array([(int(i.sum()) << 35) + 9], np.uint64))),
    )


@family.case(grid=2, block=64)
def float_extreme(rng: Generator) -> Arguments:
    x = rng.standard_normal(128).astype(np.float32)
    return (
        Given(x),
        Result(np.full(1, -100, np.float32), equals([x.max()])),
        Result(np.full(1, 3.0), equals([3.0])),  # as many doublings as halvings, each of them exact
    )


@family.case(**GRID)
def wrap_around(rng: Generator) -> Arguments:
    # The counter goes 0, 1, ... 9, 0, 1, ...; the other one 6, 5, ... 0, 6, 5, ...
    return (
        Result(np.zeros(1, np.uint32), equals([N % 10])),
        Result(np.full(1, 6, np.uint32), equals([6 - N % 7])),
        Result(np.zeros(N, np.uint32), same_items(I % 10)),
        Result(np.zeros(N, np.uint32), same_items(6 - I % 7)),
    )


@family.case(**GRID)
def scopes(rng: Generator) -> Arguments:
    return (
        Result(np.zeros(6, np.int32), equals(np.array([256] * 3 + [127, 255, 383], np.int32))),
        Result(np.zeros(3, np.int32), equals(np.array([3 * N, *by_remainder(I, 2)], np.int32))),
        Result(np.zeros(1, np.uint64), equals(np.array([2**40 - 1], np.uint64))),
        Result(np.zeros(1, np.int32), equals(np.array([(I * 37 % 1000).max()], np.int32))),
    )


@family.case(**GRID)
def tickets(rng: Generator) -> Arguments:
    counter = Result(np.full(1, 100, np.int32), equals([100 + 2 * N]))
    return counter, Result(np.zeros(N, np.int32), same_items(100 + 2 * I))


@family.case(**GRID)
def shared_atomics(rng: Generator) -> Arguments:
    counters = [64, (np.arange(128) * 77 % 101).max(), 5, 1000]
    return (
        Result(np.zeros((3, 4), np.int32), equals(np.array([counters] * 3, np.int32))),
        Result(np.zeros((3, 2), np.float32), equals(np.full((3, 2), 32, np.float32))),
        Result(np.ones((3, 2), np.uint32), equals(np.array([[0, 128]] * 3, np.uint32))),
        Result(np.zeros(1, np.int32), equals(np.array([3 * 64], np.int32))),
    )


@family.case(grid=6, block=32)
def spin_lock(rng: Generator) -> Arguments:
    count, mixed, rounds = 0, 1, 3
    for _ in range(6 * rounds):
        count, mixed = count + 1, mixed * 3 + 1
    guarded = np.array([count, mixed], np.int32)
    return Result(np.zeros(1, np.int32), equals([0])), Result(np.array([0, 1], np.int32), equals(guarded)), rounds


@family.program
def connected_components(rng: Generator) -> Sequence[Launch]:
    nodes, edges = 200, rng.integers(0, 200, (150, 2)).astype(np.int32)
    labels = np.arange(nodes, dtype=np.int32)
    for _ in range(nodes):
        before = labels.copy()
        for a, b in edges:
            labels[a] = labels[b] = min(labels[a], labels[b])
        if (before == labels).all():
            break
    parent = Result(np.arange(nodes, dtype=np.int32), anything)
    found = Result(np.full(nodes, -1, np.int32), equals(labels))
    return [
        Launch("unite", 2, 128, [Given(edges), len(edges), parent]),
        Launch("flatten", 2, 128, [parent, found, nodes]),
    ]
