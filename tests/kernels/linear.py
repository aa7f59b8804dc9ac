"""References of `linear.cu`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .case import Arguments, Family, Given, Launch, Result, anything, equals, near

Generator = np.random.Generator

family = Family("linear.cu")


@family.case(grid=(3, 4), block=(16, 16), kernel=family.instance("multiply<float, 16>"))
def multiply_floats(rng: Generator) -> Arguments:
    m, n, k = 61, 45, 37
    a, b = rng.uniform(0, 1, (m, k)).astype(np.float32), rng.uniform(0, 1, (k, n)).astype(np.float32)
    check = near(a.astype(np.float64) @ b, relative=37 * 2.0**-24, why="37 fused steps of positive sums")
    return Given(a), Given(b), Result(np.zeros((m, n), np.float32), check), m, n, k


@family.case(grid=(4, 3), block=(8, 8), kernel=family.instance("multiply<long long, 8>"))
def multiply_integers(rng: Generator) -> Arguments:
    m, n, k = 20, 30, 17
    a, b = rng.integers(-(2**40), 2**40, (m, k)), rng.integers(-(2**40), 2**40, (k, n))
    return Given(a), Given(b), Result(np.zeros((m, n), np.int64), equals(a @ b)), m, n, k


@family.case(grid=(4, 3), block=(16, 4), kernel=family.instance("transpose<float>"))
def transpose_floats(rng: Generator) -> Arguments:
    x = rng.standard_normal((41, 53)).astype(np.float32)
    return Given(x), Result(np.zeros((53, 41), np.float32), equals(x.T)), 53, 41


@family.case(grid=(2, 4), block=(16, 16), kernel=family.instance("transpose<double2>"))
def transpose_complex_numbers(rng: Generator) -> Arguments:
    x = rng.standard_normal((50, 32)) + 1j * rng.standard_normal((50, 32))
    return Given(x), Result(np.zeros((32, 50), np.complex128), equals(x.T)), 32, 50


@family.case(grid=10, block=128)
def sparse_times_vector(rng: Generator) -> Arguments:
    rows, width = 37, 200
    dense = rng.uniform(0, 1, (rows, width)) * (rng.random((rows, width)) < rng.uniform(0, 0.6, (rows, 1)))
    dense = dense.astype(np.float32)
    x = rng.uniform(0, 1, width).astype(np.float32)
    begins = np.append(0, np.cumsum((dense != 0).sum(axis=1))).astype(np.int32)
    columns = np.nonzero(dense)[1].astype(np.int32)
    exact = dense.astype(np.float64) @ x
    check = near(exact, relative=12 * 2.0**-24, why="seven fused steps and five sums, all positive")
    values = dense[dense != 0]
    return rows, Given(begins), Given(columns), Given(values), Given(x), Result(np.ones(rows, np.float32), check)


@family.program
def jacobi(rng: Generator) -> Sequence[Launch]:
    n = 60
    a = rng.uniform(-1, 1, (n, n)) + np.diag(np.full(n, 2.0 * n))
    b = rng.uniform(-1, 1, n)
    solved = near(np.linalg.solve(a, b), absolute=1e-12, why="each step halves the error at least, and there are 42")
    matrix, right = Given(a), Given(b)
    x, y = Result(np.zeros(n), solved), Result(np.zeros(n), solved)
    pairs = [(x, y), (y, x)] * 21
    return [Launch("jacobi_step", 1, 64, [matrix, right, old, new, n]) for old, new in pairs]


@family.case(grid=2, block=32)
def tridiagonal(rng: Generator) -> Arguments:
    n, systems = 30, 50
    lower, upper, right = (rng.uniform(-1, 1, (n, systems)) for _ in range(3))
    middle = rng.uniform(3, 4, (n, systems))
    x = np.empty((n, systems))
    for s in range(systems):
        matrix = np.diag(middle[:, s]) + np.diag(lower[1:, s], -1) + np.diag(upper[:-1, s], 1)
        x[:, s] = np.linalg.solve(matrix, right[:, s])
    check = near(x, absolute=1e-14, why="well-conditioned systems, whose solutions are below 1")
    bands = (Given(lower), Given(middle), Given(upper), Given(right))
    return *bands, Result(np.zeros((n, systems)), anything), Result(np.zeros((n, systems)), check), n, systems


@family.case(grid=3, block=32, kernel=family.instance("cholesky<6>"))
def cholesky(rng: Generator) -> Arguments:
    roots = rng.uniform(-1, 1, (90, 6, 6))
    matrices = roots @ roots.transpose(0, 2, 1) + 3 * np.eye(6)
    factors = np.linalg.cholesky(matrices)
    check = near(factors, absolute=1e-14, why="well-conditioned matrices, whose factors are below 4")
    return Given(matrices), Result(np.zeros_like(matrices), check), 90


@family.case(grid=7, block=32, shared=20 * 20 * 8)
def determinant(rng: Generator) -> Arguments:
    matrices = rng.uniform(-1, 1, (7, 20, 20))
    exact = np.linalg.det(matrices)
    check = near(exact, relative=1e-11, why="both eliminate with row exchanges; the condition is some thousand")
    return Given(matrices), Result(np.zeros(7), check), 20
