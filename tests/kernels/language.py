"""References of `language.cu`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .case import Arguments, Family, Given, Launch, Result, equals, identical

Generator = np.random.Generator

family = Family("language.cu")

N = 96
I = np.arange(N)  # noqa: E741


def integers(rng: Generator, low: int, high: int, n: int = N) -> np.ndarray:
    return rng.integers(low, high, n).astype(np.int32)


def fresh(expected: np.ndarray) -> Result:
    """An array of zeros that must become this one."""
    return Result(np.zeros_like(expected), equals(expected))


# --- calls ------------------------------------------------------------------------------------------------------------


@family.case(grid=3, block=32)
def not_inlined(rng: Generator) -> Arguments:
    ints, doubles, floats = np.zeros(N, np.int32), np.zeros(N), np.zeros(N, np.float32)
    for i in range(N):
        a, b, c = i, 0.5, [1, 2, 3]
        for by in [i] if i % 2 else [2, i + 1]:
            a, b = a * by, b + by
            c[by % 3] = -1
        ints[i], doubles[i], floats[i] = a, b, c[0] * 100 + c[1] * 10 + c[2]
    return fresh(ints), fresh(doubles), fresh(floats)


@family.case(grid=3, block=32)
def recursion(rng: Generator) -> Arguments:
    m, n = I % 3, I // 8 % 4
    ackermann = np.choose(m, [n + 1, n + 2, 2 * n + 3]).astype(np.int32)
    return fresh(ackermann), fresh(I % 11 % 2 == 0)


@family.case(grid=3, block=32)
def function_pointers(rng: Generator) -> Arguments:
    which, x = integers(rng, 0, 4), rng.integers(-50, 50, N).astype(np.float32)

    def apply(number: int, a: float, b: float) -> float:
        return (a + b, a - b, a * b, max(a, b))[number]

    pairs = zip(which.tolist(), x.tolist(), strict=True)
    expected = [apply(number, value, apply(3 - number, value, 2)) for number, value in pairs]
    return Given(which), Given(x), fresh(np.array(expected, np.float32))


@family.case(grid=3, block=32)
def virtual_calls(rng: Generator) -> Arguments:
    x = rng.integers(0, 40, N) / 4
    areas = np.where(I % 3, x * I / 2, x * x)
    return Given(x), fresh(areas), fresh(np.where(I % 3, 3, 4).astype(np.int32))


@family.case(grid=3, block=32)
def lambdas(rng: Generator) -> Arguments:
    k, factor = np.arange(6), 9
    values = (k + 1) * factor + I[:, None] * k
    expected = np.stack([values.sum(axis=1), (values - k)[I, I % 6]], axis=1)
    return fresh(expected.astype(np.int32)), factor


# --- templates --------------------------------------------------------------------------------------------------------


@family.case(grid=3, block=32, kernel=family.instance("math::polynomial<int, 3>"))
def polynomial_of_integers(rng: Generator) -> Arguments:
    x = integers(rng, -20, 20)
    return Given(x), fresh((((4 * x + 3) * x + 2) * x + 1) * 2 + 6), 2


@family.case(grid=3, block=32, kernel=family.instance("math::polynomial<double, 5>"))
def polynomial_of_doubles(rng: Generator) -> Arguments:
    x = rng.integers(-8, 8, N) / 2  # exact in every order, contracted or not
    return Given(x), fresh(np.polyval([6, 5, 4, 3, 2, 1], x) * 0.5 + 20), 0.5


@family.case(grid=3, block=32, kernel=family.instance("variadic<signed char>"))
def variadic_bytes(rng: Generator) -> Arguments:
    x = rng.integers(-128, 128, N).astype(np.int8)
    return Given(x), fresh(x.astype(np.int64) + 1000000007 + 97)


@family.case(grid=3, block=32, kernel=family.instance("variadic<int>"))
def variadic_words(rng: Generator) -> Arguments:
    x = integers(rng, -(2**29), 2**29)
    return Given(x), fresh(3 * x.astype(np.int64) - 5 + 2**40)


# --- control ----------------------------------------------------------------------------------------------------------


@family.case(grid=2, block=32)
def switch_table(rng: Generator) -> Arguments:
    op, x = integers(rng, 0, 14, 64), integers(rng, 0, 1000, 64)
    start = np.append(integers(rng, 0, 99, 64), np.full(64, -7, np.int32)).astype(np.int32)
    expected = start.copy()
    for i in range(64):
        result = _switched(int(op[i]), int(x[i]), i, start)
        if result is not None:
            expected[64 + i] = result
    return Given(op), Given(x), Result(start, equals(expected))


def _switched(op: int, x: int, i: int, out: np.ndarray) -> int | None:
    """What each case of the switch leaves; None where the thread returns."""
    if op == 5:
        while x > 100:
            x //= 3
        return x
    table = {
        0: x + int(out[i]), 1: x * 7, 2: -x, 3: x << 2 ^ 0x55, 4: x ^ 0x55, 6: x % 13, 7: int(out[i * 3 % 64]),
        8: x + sum(k * k for k in range(i % 5)), 9: x | 0x700, 10: None, 11: x.bit_count(),
    }  # fmt: skip
    return table.get(op, -1)


@family.case(grid=3, block=32)
def interpreter(rng: Generator) -> Arguments:
    def word(operation: int, a: int = 0, b: int = 0, value: int = 0) -> tuple[int, int]:
        return operation, a | b << 2 | value << 4

    # r3 = 1 * 2 * ... * n, or n itself where n is not positive: r0 = n, r1 = 0, r2 = 1
    program = [
        *(word(5, 1, 0, 3), word(6, 3, 0), word(7)),  # if 0 < n go on at 3; else r3 = n and stop
        word(0, 3, 0, 1),
        *(word(3, 3, 0), word(2, 0, 2), word(4, 0, 0, 4)),  # r3 *= n; n -= 1; while n != 0
    ]
    inputs = integers(rng, -3, 11)
    results = [n if n <= 0 else int(np.prod(np.arange(1, n + 1))) for n in inputs.tolist()]
    return Given(np.array(program, np.int32)), len(program), Given(inputs), fresh(np.array(results, np.int32))


@family.case(grid=3, block=32)
def tangled(rng: Generator) -> Arguments:
    x = rng.integers(0, 500, N).astype(np.uint32)
    return Given(x), fresh(np.array([_tangled(v) for v in x.tolist()], np.int32))


def _tangled(v: int) -> int:
    """The same walk, with the jumps written as states."""
    count, skip_step = 0, v % 7 == 3
    while True:
        if not skip_step:
            if v <= 1:
                return count + 1000
            v = v * 3 + 1 if v % 2 else v // 2
        skip_step = False
        count += 1
        if count > 60:
            return count
        if v % 11 == 5:
            v += 2
            skip_step = v % 7 == 3
            continue
        for k in range(3):
            if v == 4:
                return count
            if k == 1 and v % 5 == 0:
                break
            count += k


# --- memory of the module ---------------------------------------------------------------------------------------------


@family.case(grid=3, block=32)
def constants(rng: Generator) -> Arguments:
    primes = np.array([2, 3, 5, 7, 11, 13, 17, 19])
    letters = np.array([list(name) for name in (b"iron", b"gold", b"neon")])
    expected = primes[I % 8] * primes[(I * 5 + 3) % 8] + letters[I % 3, I % 4]
    weights = np.array([55.845, 196.967, 20.18])[(I + 1) % 3] + np.array([0.5, 0.25, 0, 0])[I % 4]
    return fresh(expected.astype(np.int32)), fresh(weights)


@family.program
def state_between_launches(rng: Generator) -> Sequence[Launch]:
    additions = [Launch("remember", 2, 32, [by]) for by in (1, 10, -3)]
    return [*additions, Launch("recall", 1, 1, [fresh(np.array([100 + 64 * 8], np.int32))])]


@family.case(grid=3, block=32)
def bit_fields(rng: Generator) -> Arguments:
    x = rng.integers(0, 2**32, N).astype(np.uint32)
    floats = ((x & np.uint32(0x80FFFFFF)) | np.uint32(0x3F000000)).view(np.float32)
    high = ((x >> np.uint32(16)) + np.uint32(3)) & np.uint32(0xFFFF)
    middle = (x >> np.uint32(5) & np.uint32(2047)).astype(np.int64) - 1
    middle = (middle + 1024) % 2048 - 1024  # eleven bits with a sign
    words = np.stack([(x & np.uint32(31)) + np.uint32(100) * high, middle.astype(np.uint32)], axis=1)
    return Given(x), fresh(words), Result(np.zeros(N, np.float32), identical(floats))


@family.case(grid=3, block=32)
def holds_what_it_asserts(rng: Generator) -> Arguments:
    x = integers(rng, 0, 99)
    return Given(x), fresh(x + np.int32(1))


@family.case(grid=3, block=32)
def linked_lists(rng: Generator) -> Arguments:
    lengths = I % 7 + 1
    expected = [i * sum((length - k) * k for k in range(length)) for i, length in zip(I, lengths, strict=True)]
    return (fresh(np.array(expected, np.int32)),)
