"""The simulated cuBLAS through the public table: every function against numpy in double precision.

Operands lie in simulated memory among poison (every byte of it 0xFF, a NaN): what is read without being part of the
matrix spoils the result, and what is written there is seen. Each test draws its own data, the same in every run.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading
from collections.abc import Iterator
from ctypes import c_int, c_void_p
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

import atomr_sim
from atomr_cuda import cublas, driver
from atomr_cuda.cublas import cublasComputeType_t as C, cublasMath_t, cublasStatus_t as Status
from atomr_cuda.library_types import cudaDataType as T
from support import sim_process as helper
from support.sim_process import run_in_process

pytestmark = pytest.mark.sim_only

DTYPES = {
    "S": np.dtype(np.float32),
    "D": np.dtype(np.float64),
    "C": np.dtype(np.complex64),
    "Z": np.dtype(np.complex128),
}
REAL, COMPLEX, ALL = "SD", "CZ", "SDCZ"
WORDS, TRIANGLES, SIDES, DIAGONALS = range(3), range(2), range(2), range(2)
SIZES = (0, 1, 2, 3, 5, 8, 13)
GUARD = 16


SLAB = 64 << 20
_slab = [0, 0]


def place(size: int) -> int:
    """Device memory out of one piece for all of a test: thousands of allocations would take longer than the rest."""
    base, used = _slab
    _slab[1] = used + size + -size % 256
    assert _slab[1] <= SLAB
    return base + used


@pytest.fixture(autouse=True)
def context():
    """A current primary context that nothing survives in."""
    handle = helper.begin()
    _slab[:] = [helper.allocate(SLAB), 0]
    yield handle
    driver.cuCtxSetCurrent(handle)
    while driver.cuDevicePrimaryCtxRelease.status(0) == 0:
        pass
    driver.cuCtxSetCurrent(None)


def new_handle() -> c_void_p:
    cublas.cublasCreate(handle := c_void_p())
    return handle


# -- operands ----------------------------------------------------------------------------------------------------------


class Placed:
    """A vector, a matrix, or matrices at equal distances in device memory, with poison around and between."""

    def __init__(self, values: np.ndarray, step: int = 1, distance: int = 0) -> None:
        values = np.asarray(values)
        self.shape, self.dtype, self.step, self.distance = values.shape, values.dtype, step, distance
        size = self.dtype.itemsize
        strides = {1: (step,), 2: (1, step), 3: (distance, 1, step)}[values.ndim]
        reach = (
            [(length - 1) * stride for length, stride in zip(self.shape, strides, strict=True)] if values.size else [0]
        )
        before, after = -sum(each for each in reach if each < 0), sum(each for each in reach if each > 0)
        self._strides = tuple(stride * size for stride in strides)
        self._offset = (GUARD + before) * size
        self._original = np.full((2 * GUARD + before + after + 1) * size, 0xFF, np.uint8)
        self._view(self._original)[...] = values
        self._base = place(self._original.nbytes)
        helper.write(self._base, self._original.tobytes())
        self.address = self._base + GUARD * size
        """What BLAS calls the address: of a vector with a negative step, that of the last element."""

    def _view(self, raw: np.ndarray) -> np.ndarray:
        return np.ndarray(self.shape, self.dtype, raw, self._offset, self._strides)

    def get(self) -> np.ndarray:
        """The values as they are now; nothing beside them has changed."""
        raw = np.frombuffer(helper.read(self._base, self._original.nbytes), np.uint8).copy()
        values = self._view(raw).copy()
        now, before = raw.copy(), self._original.copy()
        self._view(now)[...] = self._view(before)[...] = 0
        assert np.array_equal(now, before), "something was written outside of the operand"
        return values


class Host:
    """Scalars in host memory."""

    def __init__(self, values: object, dtype: np.dtype) -> None:
        self._values = np.atleast_1d(np.asarray(values, dtype)).copy()
        self.address = self._values.ctypes.data

    def get(self) -> np.ndarray:
        return self._values if self._values.size > 1 else self._values[0]


class Device(Host):
    """Scalars in device memory."""

    def __init__(self, values: object, dtype: np.dtype) -> None:
        self._placed = Placed(np.atleast_1d(np.asarray(values, dtype)))
        self.address = self._placed.address

    def get(self) -> np.ndarray:
        values = self._placed.get()
        return values if values.size > 1 else values[0]


def flattened(arguments: tuple[object, ...]) -> Iterator[object]:
    for each in arguments:
        if isinstance(each, Placed):
            yield from (each.address, each.step)
        else:
            yield each.address if isinstance(each, Host) else each


class Case:
    """One draw of data: a letter, a pointer mode, and random operands."""

    def __init__(self, letter: str, device: bool, seed: int) -> None:
        self.letter, self.device = letter, device
        self.rng = np.random.default_rng([seed, ord(letter[0]), device])
        self.dtype = DTYPES[letter]
        self.real = np.dtype(self.dtype.char.lower())
        self.handle = new_handle()
        cublas.cublasSetPointerMode(self.handle, int(device))

    def size(self) -> int:
        return int(self.rng.choice(SIZES))

    def random(self, *shape: int, dtype: np.dtype | None = None) -> np.ndarray:
        dtype = dtype or self.dtype
        values = self.rng.standard_normal(shape)
        if dtype.kind == "c":
            values = values + 1j * self.rng.standard_normal(shape)
        return np.asarray(values, dtype)

    def vector(self, count: int, values: np.ndarray | None = None) -> Placed:
        step = int(self.rng.choice((-3, -1, 1, 1, 2)))
        return Placed(self.random(count) if values is None else values, step)

    def matrix(self, rows: int, columns: int, values: np.ndarray | None = None) -> Placed:
        leading = max(1, rows) + int(self.rng.integers(0, 4))
        return Placed(self.random(rows, columns) if values is None else values, leading)

    def scalar(self, value: object = None, dtype: np.dtype | None = None) -> Host:
        dtype = dtype or self.dtype
        chosen = self.random(dtype=dtype) if value is None else value
        return (Device if self.device else Host)(chosen, dtype)

    def factor(self, dtype: np.dtype | None = None) -> Host:
        """A factor: often zero, one, or a number."""
        return self.scalar((None, 0, 1)[int(self.rng.integers(0, 3))], dtype)

    def target(self, factor: Host, *shape: int) -> np.ndarray:
        """What is to be overwritten: not a number where its factor is zero."""
        return self.random(*shape) if factor.get() != 0 else np.full(shape, np.nan, self.dtype)

    def call(self, name: str, *arguments: object) -> None:
        function = getattr(cublas, name.format(self.letter))
        function(self.handle, *flattened(arguments))

    def close(self, got: np.ndarray, want: np.ndarray, growth: float = 40) -> None:
        """Equal but for rounding."""
        want = np.asarray(want)
        limit = growth * np.finfo(self.real).eps * (1 + np.max(np.abs(want), initial=0))
        assert np.asarray(got).dtype in (self.dtype, self.real, np.int64)
        np.testing.assert_allclose(got, want, rtol=0, atol=limit)


def cases(letters: str, count: int = 6) -> Iterator[Case]:
    for letter, device, seed in itertools.product(letters, (False, True), range(count)):
        yield Case(letter, device, seed)


def wide(values: object) -> np.ndarray:
    values = np.asarray(values.get() if isinstance(values, (Placed, Host)) else values)
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def op(matrix: np.ndarray, word: int) -> np.ndarray:
    return (matrix, matrix.T, matrix.conj().T)[word]


def total(alpha: Host, product: np.ndarray, beta: Host, target: np.ndarray) -> np.ndarray:
    """alpha product + beta target, in which a factor of zero wipes out what is no number."""
    terms = [wide(factor) * wide(term) for factor, term in ((alpha, product), (beta, target)) if factor.get() != 0]
    return sum(terms, np.zeros(np.shape(product)))


def half(matrix: np.ndarray, uplo: int) -> np.ndarray:
    return np.triu(matrix) if uplo else np.tril(matrix)


def in_half(order: int, uplo: int) -> np.ndarray:
    return half(np.ones((order, order)), uplo).astype(bool)


def poisoned(matrix: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The matrix with no number where the mask says that it is not looked at."""
    return np.where(mask, matrix, matrix.dtype.type(np.nan))


# -- handles -----------------------------------------------------------------------------------------------------------


def test_a_handle_is_known_until_it_is_destroyed():
    handle = new_handle()
    cublas.cublasGetVersion(handle, version := c_int())
    assert version.value == 130100
    cublas.cublasDestroy(handle)
    for call in (
        cublas.cublasDestroy.status(handle),
        cublas.cublasGetVersion.status(handle, version),
        cublas.cublasSetStream.status(None, None),
        cublas.cublasSnrm2_64.status(handle, 0, None, 1, None),
    ):
        assert call == Status.CUBLAS_STATUS_NOT_INITIALIZED


def test_a_handle_ends_with_its_context(context):
    handle = new_handle()
    driver.cuDevicePrimaryCtxRelease(0)
    assert cublas.cublasSetStream.status(handle, None) == Status.CUBLAS_STATUS_NOT_INITIALIZED
    assert cublas.cublasCreate.status(c_void_p()) == Status.CUBLAS_STATUS_NOT_INITIALIZED


def test_the_library_says_its_version_in_parts():
    parts = []
    for part in range(3):
        cublas.cublasGetProperty(part, number := c_int())
        parts.append(number.value)
    assert parts == [13, 1, 0]
    assert cublas.cublasGetProperty.status(3, number) == Status.CUBLAS_STATUS_INVALID_VALUE
    assert cublas.cublasGetCudartVersion() // 1000 == 13


@pytest.mark.parametrize(
    ("name", "default", "value", "wrong"),
    [
        ("PointerMode", 0, 1, 2),
        ("AtomicsMode", 0, 1, 2),
        ("MathMode", 0, 3 | 16, 5),
        ("SmCountTarget", 0, 7, -1),
        ("EmulationStrategy", 0, 2, 3),
        ("EmulationSpecialValuesSupport", 0xFFFF, 0, -1),
        ("FixedPointEmulationMantissaControl", 0, 1, 2),
        ("FixedPointEmulationMaxMantissaBitCount", 0, 55, -1),
        ("FixedPointEmulationMantissaBitOffset", 0, -3, 1000),
    ],
)
def test_a_mode_comes_back_as_it_was_set(name, default, value, wrong):
    handle, answer = new_handle(), c_int()
    put, get = getattr(cublas, f"cublasSet{name}"), getattr(cublas, f"cublasGet{name}")
    get(handle, answer)
    assert answer.value == default
    put(handle, value)
    assert put.status(handle, wrong) == Status.CUBLAS_STATUS_INVALID_VALUE
    get(handle, answer)
    assert answer.value == value


def test_a_stream_and_a_workspace_are_set():
    handle, stream, found = new_handle(), helper.stream(), c_void_p()
    cublas.cublasSetStream(handle, stream)
    cublas.cublasGetStream(handle, found)
    assert found.value == stream.value
    space = helper.allocate(1024)
    cublas.cublasSetWorkspace(handle, space, 1024)
    assert cublas.cublasSetWorkspace.status(handle, space + 8, 512) == Status.CUBLAS_STATUS_INVALID_VALUE


# -- level 1 -----------------------------------------------------------------------------------------------------------


def test_axpy():
    for case in cases(ALL):
        n, alpha = case.size(), case.factor()
        x, y = case.vector(n, case.target(alpha, n)), case.vector(n)
        want = total(alpha, wide(x), Host(1, case.dtype), wide(y))
        case.call("cublas{}axpy_64", n, alpha, x, y)
        case.close(y.get(), want)


@pytest.mark.parametrize(
    ("name", "letters", "conjugate"), [("dot", REAL, False), ("dotu", COMPLEX, False), ("dotc", COMPLEX, True)]
)
def test_dot(name, letters, conjugate):
    for case in cases(letters):
        n = case.size()
        x, y, result = case.vector(n), case.vector(n), case.scalar()
        case.call(f"cublas{{}}{name}_64", n, x, y, result)
        case.close(result.get(), (np.vdot if conjugate else np.dot)(wide(x), wide(y)), growth=200)


# What the functions are called whose result, or whose factor, is real.
NORMS = {"S": "S", "D": "D", "C": "Sc", "Z": "Dz"}
MIXED = {"C": "Cs", "Z": "Zd"}


def sizes_of(values: np.ndarray) -> np.ndarray:
    return np.abs(values.real) + np.abs(values.imag)


@pytest.mark.parametrize(("name", "norm"), [("nrm2", np.linalg.norm), ("asum", lambda x: sizes_of(x).sum())])
def test_norms(name, norm):
    for case in cases(ALL):
        x, result = Placed(case.random(case.size()), int(case.rng.integers(1, 4))), case.scalar(dtype=case.real)
        case.call(f"cublas{NORMS[case.letter]}{name}_64", x.shape[0], x, result)
        case.close(result.get(), norm(wide(x)))
        case.call(f"cublas{NORMS[case.letter]}{name}_64", x.shape[0], x.address, -1, result)
        assert result.get() == 0


def test_a_norm_neither_overflows_nor_vanishes():
    for case in cases(ALL, 1):
        for size in (np.finfo(case.real).max / 4, np.finfo(case.real).tiny):
            x, result = case.vector(4, np.full(4, size, case.dtype)), case.scalar(dtype=case.real)
            case.call(f"cublas{NORMS[case.letter]}nrm2_64", 4, x.address, 1, result)
            if x.step == 1:
                np.testing.assert_allclose(result.get(), 2 * size, rtol=1e-5)
        for values, want in (([1, np.inf], np.inf), ([np.nan, 1], np.nan)):
            x = Placed(np.array(values, case.dtype))
            case.call(f"cublas{NORMS[case.letter]}nrm2_64", 2, x, result)
            np.testing.assert_equal(float(result.get()), want)


@pytest.mark.parametrize(("name", "where"), [("amax", np.argmax), ("amin", np.argmin)])
def test_the_place_of_an_extreme_is_counted_from_one(name, where):
    for case in cases(ALL):
        n = case.size()
        x, result = Placed(case.random(n), int(case.rng.integers(1, 4))), case.scalar(dtype=np.dtype(np.int64))
        case.call(f"cublasI{case.letter.lower()}{name}_64", n, x, result)
        assert result.get() == (int(where(sizes_of(wide(x)))) + 1 if n else 0)


def test_of_equal_elements_the_first_is_the_extreme_and_what_is_no_number_is_none():
    case = Case("S", False, 0)
    x, result = Placed(np.array([np.nan, 2, -3, 3, -2], np.float32)), Host(0, np.dtype(np.int64))
    for name, want in (("amax", 3), ("amin", 2)):
        case.call(f"cublasIs{name}_64", 5, x, result)
        assert result.get() == want


def test_copy_and_swap():
    for case in cases(ALL):
        n = case.size()
        x, y = case.vector(n), case.vector(n)
        old_x, old_y = x.get(), y.get()
        case.call("cublas{}swap_64", n, x, y)
        assert np.array_equal(x.get(), old_y)
        assert np.array_equal(y.get(), old_x)
        case.call("cublas{}copy_64", n, x, y)
        assert np.array_equal(y.get(), old_y)


def test_scal():
    for case in cases(ALL):
        n = case.size()
        x, alpha = Placed(case.random(n), 2), case.scalar()
        want = wide(x) * wide(alpha)
        case.call("cublas{}scal_64", n, alpha, x)
        case.close(x.get(), want)
        case.call("cublas{}scal_64", n, alpha, x.address, -2)
        case.close(x.get(), want)
    for case in cases(COMPLEX):
        x, alpha = Placed(case.random(5)), case.scalar(dtype=case.real)
        want = wide(x) * wide(alpha)
        case.call(f"cublas{MIXED[case.letter]}scal_64", 5, alpha, x)
        case.close(x.get(), want)


@pytest.mark.parametrize(("names", "real_sine"), [(dict(zip(ALL, ALL, strict=True)), False), (MIXED, True)])
def test_rot(names, real_sine):
    for case in cases("".join(names)):
        n, dtype = case.size(), case.real if real_sine else case.dtype
        x, y, c, s = case.vector(n), case.vector(n), case.scalar(dtype=case.real), case.scalar(dtype=dtype)
        want_x = wide(c) * wide(x) + wide(s) * wide(y)
        want_y = wide(c) * wide(y) - wide(s).conj() * wide(x)
        case.call(f"cublas{names[case.letter]}rot_64", n, x, y, c, s)
        case.close(x.get(), want_x)
        case.close(y.get(), want_y)


def test_rotg_makes_the_second_number_zero():
    for case in cases(ALL, 4):
        for factors in ((1, 1), (0, 1), (1, 0), (0, 0), (1e-3, 1), (1, 1e-3)):
            a, b = (case.random() * case.dtype.type(factor) for factor in factors)
            scalars = [case.scalar(a), case.scalar(b), case.scalar(0, case.real), case.scalar(0)]
            case.call("cublas{}rotg", *scalars)
            r, z, c, s = (wide(scalar) for scalar in scalars)
            case.close(np.asarray(c * wide(a) + s * wide(b), case.dtype), r)
            case.close(np.asarray(-s.conj() * wide(a) + c * wide(b), case.dtype), 0)
            case.close(np.asarray(c**2 + abs(s) ** 2, case.real), 1)
            if case.letter in REAL and (a or b):
                again = (np.sqrt(1 - z**2), z) if abs(z) < 1 else (1 / z, np.sqrt(1 - 1 / z**2)) if z != 1 else (0, 1)
                np.testing.assert_allclose((abs(c), abs(s)), np.abs(again), atol=1e-3)


def rotation(param: np.ndarray) -> np.ndarray:
    """The matrix of a modified rotation."""
    flag, h11, h21, h12, h22 = wide(param)
    return np.array(
        {-1: [[h11, h12], [h21, h22]], 0: [[1, h12], [h21, 1]], 1: [[h11, 1], [-1, h22]]}.get(int(flag), np.eye(2))
    )


def test_rotm():
    for case in cases(REAL):
        for flag in (-2, -1, 0, 1):
            n, param = case.size(), np.array([flag, *case.random(4)], case.dtype)
            x, y = case.vector(n), case.vector(n)
            want = rotation(param) @ np.stack((wide(x), wide(y)))
            case.call("cublas{}rotm_64", n, x, y, case.scalar(param))
            case.close(x.get(), want[0])
            case.close(y.get(), want[1])


def test_rotmg_makes_the_second_number_zero_and_keeps_the_weighted_length():
    flags = set()
    for case in cases(REAL, 8):
        for scale in (1, 1e10, 1e-10, 0, -1):
            d1, d2, x1, y1 = (abs(case.random()) + case.dtype.type(0.1) for _ in range(4))
            d2 = case.dtype.type(d2 * scale)
            scalars = [case.scalar(d1), case.scalar(d2), case.scalar(x1), case.scalar(y1)]
            param = case.scalar(np.full(5, 7, case.dtype))
            case.call("cublas{}rotmg", *scalars, param)
            flags.add(int(param.get()[0]))
            new_d1, new_d2, new_x1, _ = (float(scalar.get()) for scalar in scalars)
            x, y = rotation(param.get()) @ np.array([float(x1), float(y1)])
            if int(param.get()[0]) == -2 or (new_d1, new_d2) == (0, 0):
                continue
            length = abs(d1) * x1**2 + abs(d2) * y1**2
            assert y**2 * abs(new_d2) <= 1e-4 * length
            np.testing.assert_allclose(x, new_x1, rtol=1e-4)
            np.testing.assert_allclose(
                new_d1 * new_x1**2, float(d1) * float(x1) ** 2 + float(d2) * float(y1) ** 2, rtol=1e-3
            )
    assert flags == {-2, -1, 0, 1}


# -- level 2 -----------------------------------------------------------------------------------------------------------


def test_gemv():
    for case, trans in itertools.product(cases(ALL), WORDS):
        m, n = case.size(), case.size()
        alpha, beta = case.factor(), case.factor()
        shape = (n, m) if trans == 0 else (m, n)
        a, x = case.matrix(m, n, case.target(alpha, m, n)), case.vector(shape[0])
        y = case.vector(shape[1], case.target(beta, shape[1]))
        want = total(alpha, op(wide(a), trans) @ wide(x), beta, y.get()) if m and n else y.get()
        case.call("cublas{}gemv_64", trans, m, n, alpha, a, x, beta, y)
        case.close(y.get(), want)


def banded(dense: np.ndarray, below: int, above: int) -> np.ndarray:
    """The band storage of a matrix: its corners hold no number."""
    stored = np.full((below + above + 1, dense.shape[1]), np.nan, dense.dtype)
    for i, j in np.ndindex(dense.shape):
        if -above <= i - j <= below:
            stored[above + i - j, j] = dense[i, j]
    return stored


def test_gbmv():
    for case, trans in itertools.product(cases(ALL), WORDS):
        m, n = case.size(), case.size()
        below, above = int(case.rng.integers(0, 4)), int(case.rng.integers(0, 4))
        alpha, beta = case.factor(), case.factor()
        dense = np.tril(np.triu(case.random(m, n), -below), above)
        a = case.matrix(below + above + 1, n, banded(dense, below, above))
        lengths = (n, m) if trans == 0 else (m, n)
        x, y = case.vector(lengths[0]), case.vector(lengths[1], case.target(beta, lengths[1]))
        want = total(alpha, op(wide(dense), trans) @ wide(x), beta, y.get()) if m and n else y.get()
        case.call("cublas{}gbmv_64", trans, m, n, below, above, alpha, a, x, beta, y)
        case.close(y.get(), want)


def whole(triangle: np.ndarray, uplo: int, hermitian: bool) -> np.ndarray:
    """The matrix of which a triangle is given."""
    strict = half(triangle, uplo) - np.diag(np.diag(triangle))
    diagonal = np.diag(triangle).real if hermitian else np.diag(triangle)
    return half(strict, uplo) + (strict.conj().T if hermitian else strict.T) + np.diag(diagonal)


SYMMETRIES = [("sy", ALL, False), ("he", COMPLEX, True)]


@pytest.mark.parametrize(("kind", "letters", "hermitian"), SYMMETRIES)
def test_symv(kind, letters, hermitian):
    for case, uplo in itertools.product(cases(letters), TRIANGLES):
        n, alpha, beta = case.size(), case.factor(), case.factor()
        full = case.random(n, n)
        a, x = case.matrix(n, n, poisoned(full, in_half(n, uplo))), case.vector(n)
        y = case.vector(n, case.target(beta, n))
        want = total(alpha, whole(wide(full), uplo, hermitian) @ wide(x), beta, y.get())
        case.call(f"cublas{{}}{kind}mv_64", uplo, n, alpha, a, x, beta, y)
        case.close(y.get(), want)


@pytest.mark.parametrize(("kind", "letters", "hermitian"), [("sb", REAL, False), ("hb", COMPLEX, True)])
def test_sbmv(kind, letters, hermitian):
    for case, uplo in itertools.product(cases(letters), TRIANGLES):
        n, k, alpha, beta = case.size(), int(case.rng.integers(0, 4)), case.factor(), case.factor()
        below, above = (0, k) if uplo else (k, 0)
        full = np.tril(np.triu(case.random(n, n), -below), above)
        a, x = case.matrix(k + 1, n, banded(full, below, above)), case.vector(n)
        y = case.vector(n, case.target(beta, n))
        want = total(alpha, whole(wide(full), uplo, hermitian) @ wide(x), beta, y.get())
        case.call(f"cublas{{}}{kind}mv_64", uplo, n, k, alpha, a, x, beta, y)
        case.close(y.get(), want)


@pytest.mark.parametrize(
    ("name", "letters", "conjugate"), [("ger", REAL, False), ("geru", COMPLEX, False), ("gerc", COMPLEX, True)]
)
def test_ger(name, letters, conjugate):
    for case in cases(letters):
        m, n, alpha = case.size(), case.size(), case.factor()
        x, y, a = case.vector(m), case.vector(n), case.matrix(m, n)
        other = wide(y).conj() if conjugate else wide(y)
        want = wide(alpha) * np.outer(wide(x), other) + wide(a)
        case.call(f"cublas{{}}{name}_64", m, n, alpha, x, y, a)
        case.close(a.get(), want)


def check_triangle(
    case: Case, got: np.ndarray, want: np.ndarray, before: np.ndarray, uplo: int, hermitian: bool
) -> None:
    """One triangle is what it should be, the other what it was; a Hermitian matrix has a real diagonal."""
    mask = in_half(len(got), uplo)
    case.close(got[mask], want[mask], growth=100)
    assert np.array_equal(got[~mask], before[~mask], equal_nan=True)
    assert not hermitian or not np.diag(got).imag.any()


@pytest.mark.parametrize(("kind", "letters", "hermitian"), SYMMETRIES)
def test_syr_and_syr2(kind, letters, hermitian):
    for case, uplo in itertools.product(cases(letters), TRIANGLES):
        n = case.size()
        x, y, alpha = case.vector(n), case.vector(n), case.scalar()
        real_alpha = case.scalar(dtype=case.real if hermitian else case.dtype)
        updates = {
            "r": wide(real_alpha) * np.outer(wide(x), wide(x).conj() if hermitian else wide(x)),
            "r2": wide(alpha) * np.outer(wide(x), wide(y).conj() if hermitian else wide(y)),
        }
        updates["r2"] = updates["r2"] + op(updates["r2"], 2 if hermitian else 1)
        for name, factor, vectors in (("r", real_alpha, (x,)), ("r2", alpha, (x, y))):
            before = poisoned(case.random(n, n), in_half(n, uplo))
            a = case.matrix(n, n, before)
            want = updates[name] + whole(np.where(in_half(n, uplo), wide(before), 0), uplo, hermitian)
            case.call(f"cublas{{}}{kind}{name}_64", uplo, n, factor, *vectors, a)
            check_triangle(case, a.get(), want, before, uplo, hermitian)


def triangular(case: Case, order: int) -> np.ndarray:
    """A matrix whose triangles are far from singular, with and without its diagonal."""
    values = case.random(order, order) / max(1, order)
    return values + np.diag(np.full(order, 2)).astype(case.dtype)


def only(full: np.ndarray, uplo: int, diag: int) -> np.ndarray:
    """The triangular matrix that is meant."""
    return half(full, uplo) if not diag else half(full, uplo) - np.diag(np.diag(full)) + np.eye(len(full))


def given(full: np.ndarray, uplo: int, diag: int) -> np.ndarray:
    """What is stored of it."""
    mask = in_half(len(full), uplo)
    return poisoned(full, mask & ~np.eye(len(full), dtype=bool) if diag else mask)


def solve(matrix: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.linalg.solve(matrix, values) if values.size else values


def test_trmv_and_trsv():
    for case, uplo, trans, diag in itertools.product(cases(ALL, 3), TRIANGLES, WORDS, DIAGONALS):
        n = case.size()
        full = triangular(case, n)
        a, x = case.matrix(n, n, given(full, uplo, diag)), case.vector(n)
        matrix, before = op(wide(only(full, uplo, diag)), trans), wide(x)
        case.call("cublas{}trmv_64", uplo, trans, diag, n, a, x)
        case.close(x.get(), matrix @ before)
        x = case.vector(n, before.astype(case.dtype))
        case.call("cublas{}trsv_64", uplo, trans, diag, n, a, x)
        case.close(x.get(), solve(matrix, before), growth=200)


def test_tbmv_and_tbsv():
    for case, uplo, trans, diag in itertools.product(cases(ALL, 3), TRIANGLES, WORDS, DIAGONALS):
        n, k = case.size(), int(case.rng.integers(0, 4))
        below, above = (0, k) if uplo else (k, 0)
        full = np.tril(np.triu(triangular(case, n), -below), above)
        stored = banded(full if not diag else full + np.diag(np.full(n, np.nan, case.dtype)), below, above)
        a, x = case.matrix(k + 1, n, stored), case.vector(n)
        matrix, before = op(wide(only(full, uplo, diag)), trans), wide(x)
        case.call("cublas{}tbmv_64", uplo, trans, diag, n, k, a, x)
        case.close(x.get(), matrix @ before)
        x = case.vector(n, before.astype(case.dtype))
        case.call("cublas{}tbsv_64", uplo, trans, diag, n, k, a, x)
        case.close(x.get(), solve(matrix, before), growth=200)


# -- level 3 -----------------------------------------------------------------------------------------------------------


def test_gemm():
    for case, transa, transb in itertools.product(cases(ALL), WORDS, WORDS):
        m, n, k = case.size(), case.size(), case.size()
        alpha, beta = case.factor(), case.factor()
        shape_a, shape_b = ((m, k) if not transa else (k, m)), ((k, n) if not transb else (n, k))
        a, b = case.matrix(*shape_a, case.target(alpha, *shape_a)), case.matrix(*shape_b)
        c = case.matrix(m, n, case.target(beta, m, n))
        want = total(alpha, op(wide(a), transa) @ op(wide(b), transb), beta, c.get())
        case.call("cublas{}gemm_64", transa, transb, m, n, k, alpha, a, b, beta, c)
        case.close(c.get(), want)


@pytest.mark.parametrize(("kind", "letters", "hermitian"), SYMMETRIES)
def test_symm(kind, letters, hermitian):
    for case, side, uplo in itertools.product(cases(letters), SIDES, TRIANGLES):
        m, n, alpha, beta = case.size(), case.size(), case.factor(), case.factor()
        order = n if side else m
        full = case.random(order, order)
        a, b = case.matrix(order, order, poisoned(full, in_half(order, uplo))), case.matrix(m, n)
        c = case.matrix(m, n, case.target(beta, m, n))
        matrix = whole(wide(full), uplo, hermitian)
        want = total(alpha, wide(b) @ matrix if side else matrix @ wide(b), beta, c.get())
        case.call(f"cublas{{}}{kind}mm_64", side, uplo, m, n, alpha, a, b, beta, c)
        case.close(c.get(), want)


RANK_K = [
    (f"{kind}{name}", letters, kind == "he", word)
    for name in ("rk", "r2k", "rkx")
    for kind, letters, words in (("sy", REAL, WORDS), ("sy", COMPLEX, (0, 1)), ("he", COMPLEX, (0, 2)))
    for word in words
]


@pytest.mark.parametrize(("name", "letters", "hermitian", "trans"), RANK_K)
def test_rank_k_updates(name, letters, hermitian, trans):
    flip = 2 if hermitian else 1
    for case, uplo in itertools.product(cases(letters), TRIANGLES):
        n, k = case.size(), case.size()
        alpha = case.factor(case.real if hermitian and name.endswith("rk") else case.dtype)
        beta = case.factor(case.real if hermitian else case.dtype)
        shape = (k, n) if trans else (n, k)
        a, b = case.matrix(*shape), case.matrix(*shape)
        factor_a, factor_b = op(wide(a), trans), op(wide(b), trans)
        if name.endswith("rk"):
            operands, update = (a,), wide(alpha) * factor_a @ op(factor_a, flip)
        else:
            operands, update = (a, b), wide(alpha) * factor_a @ op(factor_b, flip)
        if name.endswith("2k"):
            update = update + op(update, flip)
        before = poisoned(case.target(beta, n, n), in_half(n, uplo))
        c = case.matrix(n, n, before)
        rest = whole(np.where(in_half(n, uplo), wide(before), 0), uplo, hermitian)
        want = total(Host(1, case.dtype), update, beta, rest)
        case.call(f"cublas{{}}{name}_64", uplo, trans, n, k, alpha, *operands, beta, c)
        if hermitian:
            np.fill_diagonal(want, np.diag(want).real)  # herkx is for products that are Hermitian
        untouched = hermitian and beta.get() == 1 and (alpha.get() == 0 or k == 0)
        check_triangle(case, c.get(), before if untouched else want, before, uplo, hermitian and not untouched)


@pytest.mark.long
def test_trmm_and_trsm():
    for case, side, uplo, trans, diag in itertools.product(cases(ALL, 2), SIDES, TRIANGLES, WORDS, DIAGONALS):
        m, n, alpha = case.size(), case.size(), case.factor()
        full = triangular(case, n if side else m)
        a = case.matrix(*full.shape, given(full, uplo, diag))
        matrix, values = op(wide(only(full, uplo, diag)), trans), case.random(m, n)
        b, c = case.matrix(m, n, values), case.matrix(m, n, np.full((m, n), np.nan, case.dtype))
        words = (side, uplo, trans, diag, m, n)
        want = wide(alpha) * (wide(values) @ matrix if side else matrix @ wide(values))
        case.call("cublas{}trmm_64", *words, alpha, a, b, c)
        case.close(c.get(), want)
        case.call("cublas{}trmm_64", *words, alpha, a, b, b)
        case.close(b.get(), want)
        b = case.matrix(m, n, values)
        case.call("cublas{}trsm_64", *words, alpha, a, b)
        solution = solve(matrix.T, wide(values).T).T if side else solve(matrix, wide(values))
        case.close(b.get(), wide(alpha) * solution, growth=200)


def test_geam():
    for case, transa, transb in itertools.product(cases(ALL, 4), WORDS, WORDS):
        m, n, alpha, beta = case.size(), case.size(), case.factor(), case.factor()
        shape_a, shape_b = ((n, m) if transa else (m, n)), ((n, m) if transb else (m, n))
        a, b = case.matrix(*shape_a, case.target(alpha, *shape_a)), case.matrix(*shape_b, case.target(beta, *shape_b))
        c = case.matrix(m, n, np.full((m, n), np.nan, case.dtype))
        want = total(alpha, op(a.get(), transa), beta, op(b.get(), transb))
        case.call("cublas{}geam_64", transa, transb, m, n, alpha, a, beta, b, c)
        case.close(c.get(), want)


def test_dgmm():
    for case, side in itertools.product(cases(ALL), SIDES):
        m, n = case.size(), case.size()
        a, x, c = case.matrix(m, n), case.vector(n if side else m), case.matrix(m, n)
        want = wide(a) * (wide(x) if side else wide(x)[:, np.newaxis])
        case.call("cublas{}dgmm_64", side, m, n, a, x, c)
        case.close(c.get(), want)


# -- typed calls -------------------------------------------------------------------------------------------------------

NUMPY = {
    T.CUDA_R_16F: np.dtype(np.float16),
    T.CUDA_R_16BF: np.dtype(ml_dtypes.bfloat16),
    T.CUDA_R_32F: DTYPES["S"],
    T.CUDA_R_64F: DTYPES["D"],
    T.CUDA_C_32F: DTYPES["C"],
    T.CUDA_C_64F: DTYPES["Z"],
    T.CUDA_R_8I: np.dtype(np.int8),
    T.CUDA_R_32I: np.dtype(np.int32),
}
EPSILON = {T.CUDA_R_16F: 2**-11, T.CUDA_R_16BF: 2**-8, T.CUDA_R_64F: 2**-53, T.CUDA_C_64F: 2**-53}
EXACT = {T.CUDA_R_16F: T.CUDA_R_32F, T.CUDA_R_16BF: T.CUDA_R_32F}
FLOATS = [T.CUDA_R_16F, T.CUDA_R_16BF, T.CUDA_R_32F, T.CUDA_R_64F, T.CUDA_C_32F, T.CUDA_C_64F]
KINDS = [*FLOATS, T.CUDA_R_8I]
DOUBLES = (T.CUDA_R_64F, T.CUDA_C_64F)
LETTER = {T.CUDA_R_64F: "D", T.CUDA_C_32F: "C", T.CUDA_C_64F: "Z"}


def drawn(case: Case, kind: T, *shape: int) -> np.ndarray:
    """Random values of a type."""
    if NUMPY[kind].kind == "i":
        return case.rng.integers(-128, 128, shape).astype(NUMPY[kind])
    return case.random(*shape, dtype=np.result_type(NUMPY[kind], np.float64)).astype(NUMPY[kind])


def near(got: np.ndarray, want: np.ndarray, kind: T, growth: float = 4) -> None:
    limit = growth * EPSILON.get(kind, 2**-24) * (1 + np.max(np.abs(want), initial=0))
    np.testing.assert_allclose(wide(got), want, rtol=0, atol=limit)


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("kind", FLOATS)
def test_level_1_of_types_that_the_call_says(kind, device):
    case = Case(LETTER.get(kind, "S"), device, 1)
    exact, dtype = EXACT.get(kind, kind), NUMPY[kind]
    real = {T.CUDA_C_32F: T.CUDA_R_32F, T.CUDA_C_64F: T.CUDA_R_64F}.get(kind, kind)
    real_exact = EXACT.get(real, real)
    x, y = (case.vector(9, drawn(case, kind, 9)) for _ in range(2))
    alpha = case.scalar(dtype=NUMPY[exact])
    found, typed_x, typed_y = case.scalar(0, np.dtype(np.int64)), (x.address, kind, x.step), (y.address, kind, y.step)

    want = wide(alpha) * wide(x) + wide(y)
    case.call("cublasAxpyEx_64", 9, alpha, exact, *typed_x, *typed_y, exact)
    near(y.get(), want, kind)

    for name, product in (("Dot", np.dot), ("Dotc", np.vdot)):
        result, want = case.scalar(0, dtype), product(wide(x), wide(y))
        case.call(f"cublas{name}Ex_64", 9, *typed_x, *typed_y, result, kind, exact)
        near(result.get(), want, kind, growth=40)

    z = case.vector(9, drawn(case, kind, 9))
    z.step = abs(z.step)
    z = Placed(wide(z).astype(dtype), z.step)
    typed_z = (z.address, kind, z.step)
    for name, want in (("Nrm2", np.linalg.norm(wide(z))), ("Asum", sizes_of(wide(z)).sum())):
        result = case.scalar(0, NUMPY[real])
        case.call(f"cublas{name}Ex_64", 9, *typed_z, result, real, real_exact)
        near(result.get(), want, real)
    for name, where in (("Iamax", np.argmax), ("Iamin", np.argmin)):
        case.call(f"cublas{name}Ex_64", 9, *typed_z, found)
        assert found.get() == where(sizes_of(wide(z))) + 1
    want = wide(alpha) * wide(z)
    case.call("cublasScalEx_64", 9, alpha, exact, *typed_z, exact)
    near(z.get(), want, kind)

    old_x, old_y = x.get(), y.get()
    case.call("cublasSwapEx_64", 9, *typed_x, *typed_y)
    assert (x.get().tobytes(), y.get().tobytes()) == (old_y.tobytes(), old_x.tobytes())
    case.call("cublasCopyEx_64", 9, *typed_x, *typed_y)
    assert y.get().tobytes() == old_y.tobytes()

    c, s = case.scalar(0.5, NUMPY[real]), case.scalar(0.25, NUMPY[real])
    want = 0.5 * wide(x) + 0.25 * wide(y)
    case.call("cublasRotEx_64", 9, *typed_x, *typed_y, c, s, real, exact)
    near(x.get(), want, kind)


@pytest.mark.parametrize("kind", [T.CUDA_R_32F, T.CUDA_R_64F])
def test_rotations_of_types_that_the_call_says_are_those_of_the_letters(kind):
    case = Case(LETTER.get(kind, "S"), False, 2)
    plain, typed = ([case.scalar(value) for value in (0.6, 1.5, 0, 0)] for _ in range(2))
    case.call("cublas{}rotg", *plain)
    a, b, c, s = typed
    case.call("cublasRotgEx", a, b, kind, c, s, kind, kind)
    assert [each.get() for each in plain] == [each.get() for each in typed]
    plain, typed = ([case.scalar(value) for value in (0.6, 1.5, 2, 0.3, np.zeros(5))] for _ in range(2))
    case.call("cublas{}rotmg", *plain)
    case.call("cublasRotmgEx", *(each for scalar in typed for each in (scalar, kind)), kind)
    assert np.array_equal(plain[4].get(), typed[4].get())
    x, y = case.vector(5), case.vector(5)
    want = rotation(typed[4].get()) @ np.stack((wide(x), wide(y)))
    case.call("cublasRotmEx_64", 5, x.address, kind, x.step, y.address, kind, y.step, typed[4], kind, kind)
    case.close(x.get(), want[0])
    case.close(y.get(), want[1])


MULTIPLIED = {
    C.CUBLAS_COMPUTE_16F: [(T.CUDA_R_16F, T.CUDA_R_16F, T.CUDA_R_16F)],
    C.CUBLAS_COMPUTE_32I: [(T.CUDA_R_8I, T.CUDA_R_32I, T.CUDA_R_32I)],
    C.CUBLAS_COMPUTE_32F: [
        *((T.CUDA_R_16F, c, T.CUDA_R_32F) for c in (T.CUDA_R_16F, T.CUDA_R_32F)),
        *((T.CUDA_R_16BF, c, T.CUDA_R_32F) for c in (T.CUDA_R_16BF, T.CUDA_R_32F)),
        (T.CUDA_R_8I, T.CUDA_R_32F, T.CUDA_R_32F),
        (T.CUDA_R_32F, T.CUDA_R_32F, T.CUDA_R_32F),
        (T.CUDA_C_32F, T.CUDA_C_32F, T.CUDA_C_32F),
    ],
    C.CUBLAS_COMPUTE_64F: [(T.CUDA_R_64F,) * 3, (T.CUDA_C_64F,) * 3],
}
MULTIPLIED |= {C[f"{each.name}_PEDANTIC"]: rows for each, rows in list(MULTIPLIED.items())}
MULTIPLIED |= {C.CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT: MULTIPLIED[C.CUBLAS_COMPUTE_64F]}
SINGLE = [(T.CUDA_R_32F,) * 3, (T.CUDA_C_32F,) * 3]
FAST = {
    C.CUBLAS_COMPUTE_32F_FAST_16F: 2**-11,
    C.CUBLAS_COMPUTE_32F_FAST_16BF: 2**-8,
    C.CUBLAS_COMPUTE_32F_FAST_TF32: 2**-11,
    C.CUBLAS_COMPUTE_32F_EMULATED_16BFX9: 2**-24,
}
MULTIPLIED |= dict.fromkeys(FAST, SINGLE)
PRODUCTS = [(compute, *row) for compute, rows in MULTIPLIED.items() for row in rows]


@dataclass
class Product:
    """Operands of a product, what comes out of it, and how near to that."""

    alpha: Host
    beta: Host
    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    want: np.ndarray
    limit: float


def product(case: Case, row: tuple[C, T, T, T], sizes: tuple[int, int, int], words: tuple[int, int]) -> Product:
    compute, kind, result, factor = row
    m, n, k = sizes
    integers = NUMPY[factor].kind == "i"
    alpha, beta = (case.scalar(value if integers else None, NUMPY[factor]) for value in (3, -2))
    shape_a, shape_b = ((k, m) if words[0] else (m, k)), ((n, k) if words[1] else (k, n))
    a, b, c = drawn(case, kind, *shape_a), drawn(case, kind, *shape_b), drawn(case, result, m, n)
    factors = op(wide(a), words[0]), op(wide(b), words[1])
    want = wide(alpha) * (factors[0] @ factors[1]) + wide(beta) * wide(c)
    terms = abs(wide(alpha)) * (abs(factors[0]) @ abs(factors[1])) + abs(wide(beta) * wide(c))
    inner = FAST.get(compute, 2**-11 if "16F" in compute.name else 2**-24)
    outer = EPSILON.get(result, 2**-24)
    limit = 0 if integers else 8 * max(inner if result not in DOUBLES else outer, outer) * (1 + terms.max(initial=0))
    return Product(alpha, beta, a, b, c, want, limit)


@pytest.mark.parametrize(("compute", "kind", "result", "factor"), PRODUCTS)
def test_a_product_of_types_that_the_call_says(compute, kind, result, factor):
    for device, words in itertools.product((False, True), itertools.product(WORDS, WORDS)):
        case = Case("S", device, 3)
        m, n, k = case.size(), case.size(), case.size()
        it = product(case, (compute, kind, result, factor), (m, n, k), words)
        a, b, c = (Placed(values, len(values) + 4 + -len(values) % 4) for values in (it.a, it.b, it.c))
        operands = (it.alpha, a.address, kind, a.step, b.address, kind, b.step, it.beta, c.address, result, c.step)
        case.call("cublasGemmEx_64", *words, m, n, k, *operands, compute, -1)
        np.testing.assert_allclose(wide(c), it.want, rtol=0, atol=it.limit)


@pytest.mark.parametrize(("compute", "kind", "result", "factor"), PRODUCTS)
def test_products_in_batches(compute, kind, result, factor):
    case = Case("S", False, 4)
    m, n, k, count = 5, 3, 8, 4
    drawings = [product(case, (compute, kind, result, factor), (m, n, k), (0, 1)) for _ in range(count)]
    alpha, beta = drawings[0].alpha, drawings[0].beta
    wants = [wide(alpha) * (wide(it.a) @ op(wide(it.b), 1)) + wide(beta) * wide(it.c) for it in drawings]
    limit = max(it.limit for it in drawings) * 4
    columns = [[getattr(it, name) for it in drawings] for name in "abc"]
    a, b, c = (Placed(np.stack(column), 8, 8 * 9 + 4) for column in columns)
    operands = [(each.address, kind if each is not c else result, each.step) for each in (a, b, c)]
    strided = [(*operand, each.distance) for operand, each in zip(operands, (a, b, c), strict=True)]
    case.call(
        "cublasGemmStridedBatchedEx_64",
        *(0, 1, m, n, k, alpha, *strided[0], *strided[1], beta, *strided[2], count, compute, -1),
    )
    np.testing.assert_allclose(wide(c), wants, rtol=0, atol=limit)

    singles = [[Placed(values, 8) for values in column] for column in columns]
    tables = [Placed(np.array([each.address for each in column], np.uint64)) for column in singles]
    typed = [(table.address, *operand[1:]) for table, operand in zip(tables, operands, strict=True)]
    case.call(
        "cublasGemmBatchedEx_64",
        *(0, 1, m, n, k, alpha, *typed[0], *typed[1], beta, *typed[2], count, compute, -1),
    )
    np.testing.assert_allclose([wide(each) for each in singles[2]], wants, rtol=0, atol=limit)


def test_products_in_groups():
    case = Case("D", False, 5)
    groups = [(0, 1, 2, 3, 4, 2), (2, 0, 5, 1, 3, 1), (0, 0, 3, 3, 0, 3)]
    alphas, betas = Host(case.random(3), case.dtype), Host([0, 1, 0.5], case.dtype)
    operands: list[tuple[Placed, ...]] = []
    wants = []
    for at, (transa, transb, m, n, k, count) in enumerate(groups):
        for _ in range(count):
            a = Placed(case.random(*((k, m) if transa else (m, k))), 6)
            b = Placed(case.random(*((n, k) if transb else (k, n))), 6)
            c = Placed(case.random(m, n) if at else np.full((m, n), np.nan), 6)
            product = op(wide(a), transa) @ op(wide(b), transb)
            wants.append(total(Host(alphas.get()[at], case.dtype), product, Host(betas.get()[at], case.dtype), c.get()))
            operands.append((a, b, c))
    tables = [Placed(np.array([each.address for each in column], np.uint64)) for column in zip(*operands, strict=True)]
    words = [Host([group[at] for group in groups], np.dtype(np.int32)) for at in range(2)]
    sizes = [Host([group[at] for group in groups], np.dtype(np.int64)) for at in range(2, 6)]
    leading = Host([6, 6, 6], np.dtype(np.int64))
    typed = [(table.address, T.CUDA_R_64F, leading) for table in tables]
    arguments = (*words, *sizes[:3], alphas, *typed[0], *typed[1], betas, *typed[2], 3, sizes[3], C.CUBLAS_COMPUTE_64F)
    case.call("cublasGemmGroupedBatchedEx_64", *arguments)
    for (_, _, c), want in zip(operands, wants, strict=True):
        case.close(c.get(), want)


def test_types_that_are_not_in_the_tables_are_refused():
    case, at = Case("S", False, 6), place(256)
    scalar = Host(np.ones(4), np.dtype(np.float64))
    refused = 0
    for compute, a, b, c in itertools.product(C, KINDS, KINDS, FLOATS):
        operands = (scalar, at, a, 4, at, b, 4, scalar, at, c, 4)
        arguments = flattened((0, 0, 1, 1, 1, *operands, compute, -1))
        status = cublas.cublasGemmEx_64.status(case.handle, *arguments)
        listed = a == b and (a, c) in [row[:2] for row in MULTIPLIED[compute]]
        assert status == (Status.CUBLAS_STATUS_SUCCESS if listed else Status.CUBLAS_STATUS_NOT_SUPPORTED)
        refused += not listed
    assert refused > 1000
    vector = (at, T.CUDA_R_32F, 1)
    for status in (
        cublas.cublasAxpyEx_64.status(case.handle, 1, scalar.address, T.CUDA_R_16F, *vector, *vector, T.CUDA_R_32F),
        cublas.cublasDotEx_64.status(case.handle, 1, *vector, *vector, scalar.address, T.CUDA_R_64F, T.CUDA_R_32F),
        cublas.cublasScalEx_64.status(case.handle, 1, scalar.address, T.CUDA_R_32F, *vector, T.CUDA_R_64F),
    ):
        assert status == Status.CUBLAS_STATUS_NOT_SUPPORTED


def test_bytes_must_lie_in_fours():
    case, at, one = Case("S", False, 7), place(256), Host(1, np.dtype(np.int32))
    for offset, leading, want in ((0, 4, 0), (1, 4, 15), (0, 5, 15)):
        operands = (one.address, at + offset, T.CUDA_R_8I, leading, at, T.CUDA_R_8I, 4)
        result = (one.address, at + 128, T.CUDA_R_32I, 4)
        status = cublas.cublasGemmEx_64.status(case.handle, 0, 0, 4, 4, 4, *operands, *result, C.CUBLAS_COMPUTE_32I, -1)
        assert status == want


def one_product(handle: c_void_p, value: float, compute: C) -> float:
    a, b, c = (Placed(np.array([[each]], np.float32)) for each in (value, 1, 0))
    scalars = [Host(each, DTYPES["S"]) for each in (1, 0)]
    operands = [(each.address, T.CUDA_R_32F, 1) for each in (a, b, c)]
    factors = (scalars[0].address, *operands[0], *operands[1], scalars[1].address, *operands[2])
    cublas.cublasGemmEx_64(handle, 0, 0, 1, 1, 1, *factors, compute, -1)
    return float(c.get()[0, 0])


def test_tf32_rounds_to_nearest_and_from_the_middle_away_from_zero():
    handle = new_handle()
    middle, tf32 = 1 + 2.0**-11, C.CUBLAS_COMPUTE_32F_FAST_TF32
    assert one_product(handle, middle, tf32) == 1 + 2.0**-10
    assert one_product(handle, -middle, tf32) == -1 - 2.0**-10
    assert one_product(handle, middle - 2.0**-23, tf32) == 1
    assert one_product(handle, np.inf, tf32) == np.inf
    assert one_product(handle, middle, C.CUBLAS_COMPUTE_32F) == middle
    cublas.cublasSetMathMode(handle, cublasMath_t.CUBLAS_TF32_TENSOR_OP_MATH)
    assert one_product(handle, middle, C.CUBLAS_COMPUTE_32F) == 1 + 2.0**-10
    assert one_product(handle, middle, C.CUBLAS_COMPUTE_32F_PEDANTIC) == middle


@pytest.mark.parametrize(
    ("kind", "terms", "want"), [(T.CUDA_R_16F, [2048, 1, 1], 2050), (T.CUDA_R_16BF, [256, 1, 1, 1], 260)]
)
def test_half_precision_is_summed_in_single_and_rounded_once(kind, terms, want):
    """Were every sum rounded, the ones would be lost; 259 lies in the middle of 258 and 260, of which 260 is even."""
    case, dtype = Case("S", False, 8), NUMPY[kind]
    a, b = Placed(np.array([terms], dtype)), Placed(np.ones((len(terms), 1), dtype), 4)
    c, one, zero = Placed(np.zeros((1, 1), dtype)), case.scalar(1), case.scalar(0)
    typed = [(each.address, kind, each.step) for each in (a, b, c)]
    sizes = (0, 0, 1, 1, len(terms))
    case.call("cublasGemmEx_64", *sizes, one, *typed[0], *typed[1], zero, *typed[2], C.CUBLAS_COMPUTE_32F, -1)
    assert c.get()[0, 0] == want


# -- many small matrices -----------------------------------------------------------------------------------------------


class Batch:
    """Matrices that lie apart, and the table of their addresses."""

    def __init__(self, matrices: list[np.ndarray], leading: int = 16) -> None:
        self.each = [Placed(matrix, leading if matrix.ndim == 2 else 1) for matrix in matrices]
        self.table = Placed(np.array([each.address for each in self.each], np.uint64)).address
        self.pair = (self.table, leading)

    def get(self) -> list[np.ndarray]:
        return [each.get() for each in self.each]


def integers(count: int) -> Placed:
    return Placed(np.full(count, -7, np.int32))


def well_placed(case: Case, count: int, order: int) -> list[np.ndarray]:
    """Matrices far from singular whose rows are in disorder."""
    ordered = (case.random(order, order) + 2 * np.eye(order, dtype=case.dtype) * max(1, order) for _ in range(count))
    return [matrix[case.rng.permutation(order)] for matrix in ordered]


def test_lu_of_a_batch_its_solutions_and_its_inverse():
    for case, order, pivoting in itertools.product(cases(ALL, 1), (0, 1, 2, 7), (True, False)):
        count = 3
        matrices = well_placed(case, count, order)
        if not pivoting:
            matrices = [matrix + 20 * np.eye(order, dtype=case.dtype) for matrix in matrices]
        batch, pivots, infos = Batch(matrices), integers(count * order), integers(count)
        where = pivots.address if pivoting else None
        case.call("cublas{}getrfBatched", order, *batch.pair, where, infos.address, count)
        assert (infos.get() == 0).all()
        rows = pivots.get().reshape(count, order)
        for matrix, factors, exchanged in zip(matrices, batch.get(), rows, strict=True):
            permuted = matrix.copy()
            for at, other in enumerate(exchanged if pivoting else []):
                permuted[[at, other - 1]] = permuted[[other - 1, at]]
            lower = np.tril(wide(factors), -1) + np.eye(order)
            case.close(permuted, lower @ np.triu(wide(factors)), growth=200)
            assert not pivoting or (np.abs(np.tril(factors, -1)) <= np.sqrt(2) + 1e-3).all()
        for trans in WORDS:
            right = [case.random(order, 2) for _ in range(count)]
            solutions, info = Batch(right), c_int(-7)
            case.call("cublas{}getrsBatched", trans, order, 2, *batch.pair, where, *solutions.pair, info, count)
            assert info.value == 0
            for matrix, values, solution in zip(matrices, right, solutions.get(), strict=True):
                case.close(solution, solve(op(wide(matrix), trans), wide(values)), growth=400)
        inverses = Batch([np.full((order, order), np.nan, case.dtype)] * count)
        case.call("cublas{}getriBatched", order, *batch.pair, where, *inverses.pair, infos.address, count)
        for matrix, inverse in zip(matrices, inverses.get(), strict=True):
            case.close(inverse, np.linalg.inv(wide(matrix)), growth=400)


def test_the_info_of_a_singular_matrix_says_where_and_the_others_are_done():
    for case in cases(ALL, 1):
        good = well_placed(case, 1, 3)[0]
        bad = np.diag([1, 0, 2]).astype(case.dtype)
        batch, pivots, infos = Batch([good, bad, good]), integers(9), integers(3)
        inverses = Batch([np.full((3, 3), 7, case.dtype)] * 3)
        case.call("cublas{}matinvBatched", 3, *batch.pair, *inverses.pair, infos.address, 3)
        assert list(infos.get()) == [0, 2, 0]
        case.close(inverses.get()[2], np.linalg.inv(wide(good)), growth=400)
        assert all(np.array_equal(*pair) for pair in zip(batch.get(), [good, bad, good], strict=True))
        case.call("cublas{}getrfBatched", 3, *batch.pair, pivots.address, infos.address, 3)
        assert list(infos.get()) == [0, 2, 0]
        case.call("cublas{}getriBatched", 3, *batch.pair, pivots.address, *inverses.pair, infos.address, 3)
        assert list(infos.get()) == [0, 2, 0]


def test_a_batch_of_none_or_of_matrices_of_order_zero_is_no_work():
    case, info = Case("S", False, 9), c_int(-7)
    table, infos = Placed(np.zeros(2, np.uint64)).address, integers(2)
    for order, count in ((4, 0), (0, 2)):
        lead, where = max(1, order), infos.address if count else None
        case.call("cublas{}getrfBatched", order, table, lead, None, where, count)
        case.call("cublas{}getrsBatched", 0, order, 1, table, lead, None, table, lead, info, count)
        assert info.value == 0


def test_qr_of_a_batch():
    for case, (m, n) in itertools.product(cases(ALL, 1), ((0, 0), (3, 0), (5, 3), (3, 5), (4, 4))):
        matrices = [case.random(m, n) for _ in range(3)]
        batch, info = Batch(matrices), c_int(-7)
        tau = Batch([np.full(min(m, n), np.nan, case.dtype) for _ in range(3)])
        case.call("cublas{}geqrfBatched", m, n, *batch.pair, tau.table, info, 3)
        assert info.value == 0
        for matrix, factors, factor in zip(matrices, batch.get(), tau.get(), strict=True):
            q = np.eye(m, dtype=complex)
            for at in range(min(m, n)):
                reflector = np.r_[np.zeros(at), 1, wide(factors)[at + 1 :, at]]
                q = q @ (np.eye(m) - wide(factor)[at] * np.outer(reflector, reflector.conj()))
            case.close(matrix, q @ np.triu(wide(factors)), growth=200)


def test_least_squares_of_a_batch():
    for case, (m, n) in itertools.product(cases(ALL, 1), ((5, 3), (4, 4), (3, 0))):
        matrices, right = [case.random(m, n) for _ in range(3)], [case.random(m, 2) for _ in range(3)]
        batch, solutions, infos, info = Batch(matrices), Batch(right), integers(3), c_int(-7)
        arguments = (m, n, 2, *batch.pair, *solutions.pair, info, infos.address, 3)
        case.call("cublas{}gelsBatched", 0, *arguments)
        assert (info.value, list(infos.get())) == (0, [0, 0, 0])
        for matrix, values, solution in zip(matrices, right, solutions.get(), strict=True):
            want = np.linalg.lstsq(wide(matrix), wide(values), rcond=None)[0]
            case.close(solution[:n], want, growth=20000)
        function = getattr(cublas, f"cublas{case.letter}gelsBatched")
        assert function.status(case.handle, 1, *arguments) == Status.CUBLAS_STATUS_NOT_SUPPORTED


def test_trsm_of_a_batch():
    for case, side, uplo, trans, diag in itertools.product(cases(ALL, 1), SIDES, TRIANGLES, WORDS, DIAGONALS):
        m, n, count, alpha = 4, 3, 3, case.scalar()
        fulls = [triangular(case, n if side else m) for _ in range(count)]
        values = [case.random(m, n) for _ in range(count)]
        a, b = Batch([given(full, uplo, diag) for full in fulls]), Batch(values)
        case.call("cublas{}trsmBatched_64", side, uplo, trans, diag, m, n, alpha, *a.pair, *b.pair, count)
        for full, before, after in zip(fulls, values, b.get(), strict=True):
            matrix = op(wide(only(full, uplo, diag)), trans)
            solution = solve(matrix.T, wide(before).T).T if side else solve(matrix, wide(before))
            case.close(after, wide(alpha) * solution, growth=200)


# -- refusals, order and faults ----------------------------------------------------------------------------------------


def test_arguments_that_cannot_be_are_refused_and_nothing_happens():
    case = Case("S", False, 9)
    one, at = case.scalar(1).address, Placed(np.zeros((8, 8), np.float32), 8).address
    table, info = Placed(np.array([at], np.uint64)).address, c_int()
    # A function, arguments that are allowed, and which of them are words and sizes, leading dimensions, and scalars.
    calls = [
        (cublas.cublasSgemm_64, (0, 0, 4, 4, 4, one, at, 4, at, 4, one, at, 4), [0, 1, 2, 3, 4], [7, 9, 12], [5, 10]),
        (cublas.cublasSgemv_64, (0, 4, 4, one, at, 4, at, 1, one, at, 1), [0, 1, 2], [5], [3, 8]),
        (cublas.cublasSgbmv_64, (0, 4, 4, 1, 1, one, at, 3, at, 1, one, at, 1), [0, 1, 2, 3, 4], [7], [5, 10]),
        (cublas.cublasSsymm_64, (0, 0, 4, 4, one, at, 4, at, 4, one, at, 4), [0, 1, 2, 3], [6, 8, 11], [4, 9]),
        (cublas.cublasStrsm_64, (0, 0, 0, 0, 4, 4, one, at, 4, at, 4), [0, 1, 2, 3, 4, 5], [8, 10], [6]),
        (cublas.cublasSsyrk_64, (0, 0, 4, 4, one, at, 4, one, at, 4), [0, 1, 2, 3], [6, 9], [4, 7]),
        (cublas.cublasSger_64, (4, 4, one, at, 1, at, 1, at, 4), [0, 1], [8], [2]),
        (cublas.cublasSdgmm_64, (0, 4, 4, at, 4, at, 1, at, 4), [0, 1, 2], [4, 8], []),
        (cublas.cublasSaxpy_64, (4, one, at, 1, at, 1), [], [], [1]),
        (cublas.cublasSnrm2_64, (4, at, 1, one), [], [], [3]),
        (cublas.cublasSgetrfBatched, (4, table, 4, None, at, 1), [0, 5], [2], []),
        (cublas.cublasSgetrsBatched, (0, 4, 2, table, 4, None, table, 4, info, 1), [0, 1, 2, 9], [4, 7], []),
    ]
    for function, good, numbers, leading, scalars in calls:
        wrong = dict.fromkeys(numbers, -1) | {position: good[position] - 1 for position in leading}
        for position, value in (wrong | dict.fromkeys(scalars)).items():
            status = function.status(case.handle, *good[:position], value, *good[position + 1 :])
            assert status == Status.CUBLAS_STATUS_INVALID_VALUE, (function, position)
        assert function.status(case.handle, *good) == Status.CUBLAS_STATUS_SUCCESS
    for step in (7, 10):
        stuck = [0, 4, 4, one, at, 4, at, 1, one, at, 1]
        stuck[step] = 0
        assert cublas.cublasSgemv_64.status(case.handle, *stuck) == Status.CUBLAS_STATUS_INVALID_VALUE
    assert cublas.cublasSgemm_64.status(case.handle, 3, *([0] * 12)) == Status.CUBLAS_STATUS_INVALID_VALUE
    assert cublas.cublasSmatinvBatched.status(case.handle, 33, at, 33, at, 33, at, 1) == 7


def test_complex_rank_k_updates_know_their_own_transpositions_only():
    case = Case("C", False, 10)
    at, one = Placed(np.zeros((4, 4), np.complex64), 4).address, case.scalar(1).address
    for function, word in ((cublas.cublasCsyrk_64, 2), (cublas.cublasCherk_64, 1)):
        for trans in WORDS:
            status = function.status(case.handle, 0, trans, 4, 4, one, at, 4, one, at, 4)
            assert status == (Status.CUBLAS_STATUS_INVALID_VALUE if trans == word else 0)


def test_which_argument_is_wrong_is_said_in_host_memory():
    case, info = Case("S", False, 11), c_int(-7)
    status = cublas.cublasSgetrsBatched.status(case.handle, 0, -1, 1, None, 1, None, None, 1, info, 0)
    assert (status, info.value) == (Status.CUBLAS_STATUS_INVALID_VALUE, -2)
    cublas.cublasSgeqrfBatched(case.handle, 0, 0, None, 1, None, info, 0)
    assert info.value == 0


def test_calls_are_counted():
    case, x = Case("S", False, 12), Placed(np.zeros(4, np.float32))
    before = atomr_sim.calls().get("cublasSscal_v2_64", 0)
    case.call("cublasSscal_64", 4, case.scalar(2), x)
    assert cublas.cublasSscal_64.status(case.handle, 4, None, x.address, 1) == Status.CUBLAS_STATUS_INVALID_VALUE
    assert atomr_sim.calls()["cublasSscal_v2_64"] == before + 2


@contextlib.contextmanager
def held(stream: c_void_p) -> Iterator[None]:
    """Nothing that is queued on the stream inside is done before the end."""
    word, other = place(8), helper.stream()
    driver.cuStreamWaitValue64(stream, word, 1, driver.CU_STREAM_WAIT_VALUE_GEQ)
    try:
        yield
    finally:
        driver.cuStreamWriteValue64(other, word, 1, 0)
        driver.cuStreamSynchronize(stream)


def test_work_is_done_when_the_stream_comes_to_it():
    """A host factor is read at the call, a device factor and the operands when it runs."""
    stream, case = helper.stream(), Case("S", False, 13)
    x, y = Placed(np.ones(4, np.float32)), Placed(np.ones(4, np.float32))
    factor, device_factor, result = Host(2, case.dtype), Device(3, case.dtype), Device(0, case.dtype)
    cublas.cublasSetStream(case.handle, stream)
    with held(stream):
        case.call("cublasSscal_64", 4, factor, x)
        cublas.cublasSetPointerMode(case.handle, 1)
        case.call("cublasSscal_64", 4, device_factor, y)
        case.call("cublasSasum_64", 4, x, result)
        assert driver.cuStreamQuery.status(stream) == driver.CUresult.CUDA_ERROR_NOT_READY
        assert helper.read(x.address, 4) == np.float32(1).tobytes()
        ctypes.memmove(factor.address, np.float32(100).tobytes(), 4)
        helper.write(device_factor.address, np.float32(5).tobytes())
    assert (list(x.get()), list(y.get()), result.get()) == ([2] * 4, [5] * 4, 8)


def test_a_result_in_host_memory_is_there_when_the_call_returns(context):
    stream, case = helper.stream(), Case("S", False, 14)
    x, result = Placed(np.array([3, 4], np.float32)), Host(0, case.dtype)
    cublas.cublasSetStream(case.handle, stream)
    answers: list[float] = []

    def norm() -> None:
        driver.cuCtxSetCurrent(context)
        case.call("cublasSnrm2_64", 2, x, result)
        answers.append(float(result.get()))

    thread = threading.Thread(target=norm)
    before = atomr_sim.calls().get("cublasSnrm2_v2_64", 0)
    with held(stream):
        thread.start()
        helper.until(lambda: atomr_sim.calls().get("cublasSnrm2_v2_64", 0) > before)
        assert answers == []
    thread.join()
    assert answers == [5]


LOST = """
    import numpy as np
    from atomr_cuda import cublas
    begin()
    cublas.cublasCreate(handle := c_void_p())
    one, answer = (ctypes.c_float * 1)(1), ctypes.c_float(7)
    place = allocate(64)
"""


def test_a_wild_address_loses_the_context():
    done = run_in_process(
        LOST
        + """
    print(cublas.cublasSscal_64.status(handle, 4, ctypes.addressof(one), 4096, 1), cuCtxSynchronize.status())
    print(cublas.cublasSscal_64.status(handle, 4, ctypes.addressof(one), place, 1))
    print(cublas.cublasSnrm2_64.status(handle, 4, place, 1, ctypes.addressof(answer)), answer.value)
    print(cublas.cublasCreate.status(c_void_p()), cublas.cublasDestroy.status(handle))
    """
    )
    assert done.stdout.split() == ["0", "700", "13", "13", "7.0", "1", "0"]
    assert "0x1000" in done.stderr


def test_an_operand_that_leaves_its_memory_or_is_misaligned_loses_the_context():
    for count, offset, status in ((17, 0, "700"), (4, 2, "716")):
        done = run_in_process(
            LOST
            + f"""
    print(cublas.cublasSnrm2_64.status(handle, {count}, place + {offset}, 1, ctypes.addressof(answer)), answer.value)
    print(cuCtxSynchronize.status())
    """
        )
        assert done.stdout.split() == ["13", "7.0", status]


def test_a_pivot_that_names_no_row_loses_the_context():
    for pivot in (0, 3):
        done = run_in_process(
            LOST
            + f"""
    for at, value in ((16, place), (24, {pivot} << 32 | 1)):
        driver.cuMemcpyHtoD(place + at, ctypes.addressof(ctypes.c_uint64(value)), 8)
    words = (0, 2, 1, place + 16, 2, place + 24, place + 16, 2, ctypes.c_int(), 1)
    print(cublas.cublasSgetrsBatched.status(handle, *words), cuCtxSynchronize.status())
    """
        )
        assert done.stdout.split() == ["0", "700"]
        assert "not the number of a row" in done.stderr


def test_a_fault_can_be_injected_into_a_call():
    case, x = Case("S", False, 15), Placed(np.ones(4, np.float32))
    atomr_sim.inject("cublasSscal_64:14:2")
    try:
        arguments = (case.handle, 4, case.scalar(2).address, x.address, 1)
        assert [cublas.cublasSscal_64.status(*arguments) for _ in range(3)] == [0, 14, 0]
    finally:
        atomr_sim.withdraw()
    assert list(x.get()) == [4] * 4


def test_an_injected_loss_of_the_context_is_told_in_the_librarys_own_words():
    done = run_in_process(
        LOST
        + """
    atomr_sim.inject("cublasSscal_64:poison=719")
    print(cublas.cublasSscal_64.status(handle, 4, ctypes.addressof(one), place, 1), cuCtxSynchronize.status())
    """
    )
    assert done.stdout.split() == ["13", "719"]


def test_the_library_is_made_when_it_is_first_needed():
    done = run_in_process("""
        begin()
        from atomr_cuda import cublas
        print("atomr_sim.libraries.cublas.functions" in sys.modules, cublas.library.replaced)
        cublas.cublasCreate(c_void_p())
        print("atomr_sim.libraries.cublas.functions" in sys.modules, cublas.library.replaced, "scipy" in sys.modules)
    """)
    assert done.stdout.split() == ["False", "False", "True", "True", "False"]


# -- math modes --------------------------------------------------------------------------------------------------------


def to_tf32(values: np.ndarray) -> np.ndarray:
    """The same, or its parts if it is complex, with 10 bits behind the first one of each mantissa."""
    if values.dtype.kind == "c":
        return (to_tf32(values.real) + 1j * to_tf32(values.imag)).astype(values.dtype)
    mantissas, exponents = np.frexp(values)
    return np.ldexp(np.rint(mantissas * 2**11) / 2**11, exponents).astype(values.dtype)


ORDER = 4
LEVEL_3 = {
    "symm": "side uplo n n one A B zero C",
    "hemm": "side uplo n n one A B zero C",
    "syrk": "uplo trans n n one A zero C",
    "herk": "uplo trans n n real_one A real_zero C",
    "syr2k": "uplo trans n n one A B zero C",
    "her2k": "uplo trans n n one A B real_zero C",
    "syrkx": "uplo trans n n one A B zero C",
    "herkx": "uplo trans n n one A B real_zero C",
    "trmm": "side uplo trans diag n n one A B C",
    "trsm": "side uplo trans diag n n one A B",
    "gemm": "trans trans n n n one A B zero C",
    "geam": "trans trans n n one A one B C",
}
"""What each takes, in its order; what is not n, a scalar or a matrix is a word."""


def in_mode(case: Case, mode: cublasMath_t, name: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What a function makes of two matrices, where all words are zero: nothing transposed, the lower triangles."""
    matrices = [case.matrix(ORDER, ORDER, values) for values in (a, b, np.zeros_like(a))]
    scalars = [case.scalar(value, dtype) for dtype in (case.dtype, case.real) for value in (1, 0)]
    given = dict(zip(("A", "B", "C", "one", "zero", "real_one", "real_zero"), (*matrices, *scalars), strict=True))
    words = LEVEL_3[name].split()
    cublas.cublasSetMathMode(case.handle, mode)
    case.call(f"cublas{{}}{name}_64", *(ORDER if word == "n" else given.get(word, 0) for word in words))
    return given[words[-1]].get()


@pytest.mark.parametrize("name", LEVEL_3)
def test_the_math_mode_of_a_handle_rounds_what_is_multiplied(name):
    for case in cases(COMPLEX if name.startswith("he") else ALL, 2):
        a, b = case.random(ORDER, ORDER), case.random(ORDER, ORDER)
        a += 4 * np.eye(ORDER, dtype=case.dtype)
        exact = in_mode(case, cublasMath_t.CUBLAS_DEFAULT_MATH, name, a, b)
        rounded = in_mode(case, cublasMath_t.CUBLAS_DEFAULT_MATH, name, to_tf32(a), to_tf32(b))
        # numpy sums in another order where it knows that both operands are one matrix, on some processors.
        few = 64 * np.finfo(case.dtype).eps * np.abs(exact).max()
        assert np.abs(exact - rounded).max() > few
        is_rounded = case.letter in "SC" and name != "geam"
        fast = in_mode(case, cublasMath_t.CUBLAS_TF32_TENSOR_OP_MATH, name, a, b)
        assert np.abs(fast - (rounded if is_rounded else exact)).max() < few
        assert np.abs(in_mode(case, cublasMath_t.CUBLAS_PEDANTIC_MATH, name, a, b) - exact).max() < few
