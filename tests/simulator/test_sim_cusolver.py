"""The simulated cuSOLVER through its table: every family against float64, what is touched and what is refused."""

from __future__ import annotations

import ctypes
import itertools
import zlib
from ctypes import byref, c_double, c_float, c_int, c_int64, c_size_t, c_void_p

import numpy as np
import pytest

from atomr_cuda import CudaError, SymbolMissing, cusolver, driver
from atomr_cuda.cusolver import cusolverEigRange_t, cusolverStatus_t
from atomr_cuda.library_types import cudaDataType
from atomr_sim.driver.functions import calls
from support import sim_process as helper
from support.sim_process import run_in_process

pytestmark = [pytest.mark.sim_only, pytest.mark.halved]

DTYPES = {"S": np.float32, "D": np.float64, "C": np.complex64, "Z": np.complex128}
CUDA_TYPES = {
    np.dtype(np.float32): cudaDataType.CUDA_R_32F,
    np.dtype(np.float64): cudaDataType.CUDA_R_64F,
    np.dtype(np.complex64): cudaDataType.CUDA_C_32F,
    np.dtype(np.complex128): cudaDataType.CUDA_C_64F,
}
LETTERS = pytest.mark.parametrize("letter", "SDCZ")
UPLOS = pytest.mark.parametrize("uplo", [0, 1], ids=["lower", "upper"])
WIDE = pytest.mark.parametrize("wide", [False, True], ids=["32-bit", "64-bit"])
INVALID_VALUE = cusolverStatus_t.CUSOLVER_STATUS_INVALID_VALUE
NOT_INITIALIZED = cusolverStatus_t.CUSOLVER_STATUS_NOT_INITIALIZED
NOT_SUPPORTED = cusolverStatus_t.CUSOLVER_STATUS_NOT_SUPPORTED
ALL, INDICES, INTERVAL = cusolverEigRange_t
POISON = 0xA5


@pytest.fixture(autouse=True)
def context():
    handle = helper.begin()
    yield handle
    driver.cuCtxSetCurrent(handle)
    while driver.cuDevicePrimaryCtxRelease.status(0) == 0:
        pass
    driver.cuCtxSetCurrent(None)


class Solver:
    """A handle with a stream of its own, and calls with workspaces of exactly the size that was told."""

    def __init__(self) -> None:
        self.stream, self.handle, self.params = helper.stream(), c_void_p(), c_void_p()
        cusolver.cusolverDnCreate(self.handle)
        cusolver.cusolverDnSetStream(self.handle, self.stream)
        cusolver.cusolverDnCreateParams(self.params)

    def function(self, name: str):
        return cusolver.library.functions[f"cusolverDn{name}"]

    def size(self, name: str, *arguments, kind=c_int) -> int:
        size = kind()
        self.function(f"{name}_bufferSize")(self.handle, *arguments, byref(size))
        assert size.value > 0
        return size.value

    def plain(self, name: str, *arguments):
        """Call a function that needs no workspace."""
        self.function(name)(self.handle, *arguments)
        driver.cuStreamSynchronize(self.stream)

    def worked(self, name: str, dtype, *arguments, query=None, behind=(), rest=()) -> int | list[int]:
        """Ask for the size, call with a workspace, and return the info, or those of a batch.

        ``query`` are the arguments of the query where they are others; ``behind`` follows the size in the query and the
        info in the call, ``rest`` stands between length and info.
        """
        length = c_int()
        asked = arguments if query is None else query
        self.function(f"{name}_bufferSize")(self.handle, *asked, byref(length), *behind)
        assert length.value > 0
        work, info = Array.filled(length.value, dtype), Array.filled(self.problems(behind), np.int32)
        self.plain(name, *arguments, work.address, length.value, *rest, info.address, *behind)
        work.fetch()
        return info.scalars()

    def problems(self, behind) -> int:
        return behind[-1] if behind and isinstance(behind[-1], int) else 1

    def wide(self, name: str, *arguments, query=None, behind=(), params=True) -> int | list[int]:
        """As ``worked``, for the functions with 64-bit sizes."""
        first = (self.params,) if params else ()
        device, host = c_size_t(), c_size_t()
        batch = behind if behind and isinstance(behind[-1], int) else ()
        asked = arguments if query is None else query
        self.function(f"{name}_bufferSize")(self.handle, *first, *asked, byref(device), byref(host), *batch)
        assert device.value > 0
        assert host.value > 0
        work, info = Array.filled(device.value, np.uint8), Array.filled(self.problems(batch), np.int32)
        buffer = ctypes.create_string_buffer(host.value)
        works = (work.address, device.value, ctypes.cast(buffer, c_void_p), host.value)
        self.plain(name, *first, *arguments, *works, info.address, *behind)
        work.fetch()
        return info.scalars()


class Array:
    """Arrays of a batch on the device: column-major, columns ``ld`` elements apart, between guards that must stay."""

    GUARD = 24

    def __init__(self, values, ld: int | None = None, gap: int = 0) -> None:
        values = np.asarray(values)
        self.shape = values.shape
        self.batch, self.rows, self.columns = (1,) * (3 - values.ndim) + values.shape if values.ndim > 1 else (1, 1, 0)
        if values.ndim == 1:
            self.rows, self.columns = values.size, 1
        self.ld = max(1, self.rows) if ld is None else ld
        self.stride = self.ld * self.columns + gap
        self.dtype = values.dtype
        count = self.batch * self.stride + 2 * self.GUARD
        self._image = np.full(count * self.dtype.itemsize, POISON, np.uint8).view(self.dtype)
        self._part(self._image)[...] = values.reshape(self.batch, self.rows, self.columns)
        start = helper.allocate(self._image.nbytes)
        helper.write(start, self._image.tobytes())
        self._start, self.address = start, start + self.GUARD * self.dtype.itemsize

    @classmethod
    def filled(cls, shape, dtype, ld: int | None = None, gap: int = 0) -> Array:
        """An array of bytes that no result is likely to have: NaN where there are fractions."""
        count = int(np.prod(shape))
        values = np.full(count * np.dtype(dtype).itemsize, 0xFF, np.uint8).view(dtype).reshape(shape)
        return cls(values, ld, gap)

    def _part(self, image: np.ndarray) -> np.ndarray:
        strides = tuple(each * self.dtype.itemsize for each in (self.stride, 1, self.ld))
        shape = (self.batch, self.rows, self.columns)
        return np.lib.stride_tricks.as_strided(image[self.GUARD :], shape, strides)

    @property
    def of_each(self) -> Array:
        """The addresses of the arrays, on the device."""
        size = self.stride * self.dtype.itemsize
        return Array(np.array([self.address + i * size for i in range(self.batch)], np.int64))

    def fetch(self) -> np.ndarray:
        """The values; whatever lies around them must be as it was."""
        found = np.frombuffer(helper.read(self._start, self._image.nbytes), self.dtype).copy()
        values = self._part(found).copy()
        expected = self._image.copy()
        self._part(expected)[...] = values
        assert found.tobytes() == expected.tobytes(), "something was written outside of the array"
        return values.reshape(self.shape)

    def scalars(self) -> int | list[int]:
        values = self.fetch().tolist()
        return values[0] if len(values) == 1 else values


@pytest.fixture
def solver(context) -> Solver:
    return Solver()


@pytest.fixture
def rng(request) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


def random(rng, letter: str, *shape: int) -> np.ndarray:
    dtype = np.dtype(DTYPES[letter])
    values = rng.standard_normal(shape)
    if dtype.kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def real(letter: str) -> np.dtype:
    return np.dtype(DTYPES[letter]).type(0).real.dtype


def hermitian(rng, letter: str, n: int) -> np.ndarray:
    a = random(rng, letter, n, n)
    return (a + a.conj().T) / 2


def positive(rng, letter: str, n: int) -> np.ndarray:
    a = random(rng, letter, n, n).astype(np.complex128 if letter in "CZ" else np.float64)
    return (a @ a.conj().T + n * np.eye(n)).astype(DTYPES[letter])


def half(a: np.ndarray, uplo: int) -> np.ndarray:
    """One triangle of a matrix, the other poisoned."""
    keep = np.tri(a.shape[-1], dtype=bool)
    return np.where(keep.T if uplo else keep, a, np.nan).astype(a.dtype)


def triangular(a: np.ndarray, uplo: int) -> np.ndarray:
    return np.triu(a) if uplo else np.tril(a)


def other_half_is_poison(a: np.ndarray, uplo: int) -> bool:
    return bool(np.isnan(a[~np.tri(len(a), dtype=bool).T if uplo else ~np.tri(len(a), dtype=bool)]).all())


def adjoint(a: np.ndarray) -> np.ndarray:
    return np.swapaxes(a, -1, -2).conj()


def close(found, expected, letter: str, growth: float = 200.0) -> None:
    """Agreement in the norm, to a multiple of the precision of the type. Nothing may be NaN."""
    found, expected = (np.asarray(each, np.complex128) for each in (found, expected))
    assert found.shape == expected.shape
    scale = max(1.0, float(np.linalg.norm(expected))) if expected.size else 1.0
    assert np.linalg.norm(found - expected) <= growth * max(1, *expected.shape, 1) * np.finfo(real(letter)).eps * scale


def doubled(a: np.ndarray) -> np.ndarray:
    return a.astype(np.complex128)


def cuda_type(array: Array) -> int:
    return CUDA_TYPES[array.dtype]


def typed(array: Array) -> tuple[int, int, int]:
    return cuda_type(array), array.address, array.ld


def typed_vector(array: Array) -> tuple[int, int]:
    return cuda_type(array), array.address


def matrix(array: Array) -> tuple[int, int]:
    return array.address, array.ld


# The library, handles and options.


def test_the_library_says_which_one_it_is_and_lacks_what_came_later():
    version, parts = c_int(), []
    for part in range(3):
        cusolver.cusolverGetProperty(part, version)
        parts.append(version.value)
    cusolver.cusolverGetVersion(version)
    assert parts[:2] == [12, 0]
    assert version.value == parts[0] * 1000 + parts[1] * 100 + parts[2]
    assert cusolver.cusolverGetProperty.status(3, version) == INVALID_VALUE
    later = [function for function in cusolver.library if (function.since or (0, 0)) > (12, 0)]
    assert later
    for function in later:
        with pytest.raises(SymbolMissing):
            function.bind()


def test_a_handle_keeps_its_stream_and_options_until_it_is_destroyed():
    handle, stream, found = c_void_p(), helper.stream(), c_void_p(1)
    cusolver.cusolverDnCreate(handle)
    cusolver.cusolverDnGetStream(handle, found)
    assert found.value is None
    cusolver.cusolverDnSetStream(handle, stream)
    cusolver.cusolverDnGetStream(handle, found)
    assert found.value == stream.value
    value = c_int()
    for name, first, second in (("DeterministicMode", 1, 2), ("MathMode", 1, 6), ("EmulationStrategy", 0, 2)):
        setter, getter = (cusolver.library.functions[f"cusolverDn{verb}{name}"] for verb in ("Set", "Get"))
        getter(handle, value)
        assert value.value == first
        setter(handle, second)
        getter(handle, value)
        assert value.value == second
        assert setter.status(handle, 77) == INVALID_VALUE
    cusolver.cusolverDnDestroy(handle)
    assert cusolver.cusolverDnDestroy.status(handle) == NOT_INITIALIZED
    assert cusolver.cusolverDnGetStream.status(handle, found) == NOT_INITIALIZED
    assert cusolver.cusolverDnDpotrf_bufferSize.status(handle, 0, 1, None, 1, c_int()) == NOT_INITIALIZED
    assert cusolver.cusolverDnDpotrf_bufferSize.status(None, 0, 1, None, 1, c_int()) == NOT_INITIALIZED


def test_handles_end_with_their_context_and_none_is_made_without_one(context, solver):
    while driver.cuDevicePrimaryCtxRelease.status(0) == 0:
        pass
    assert cusolver.cusolverDnDestroy.status(solver.handle) == NOT_INITIALIZED
    driver.cuCtxSetCurrent(None)
    assert cusolver.cusolverDnCreate.status(c_void_p()) == NOT_INITIALIZED


def test_options_are_objects_of_their_kind(solver):
    made = {}
    for kind in ("Params", "SyevjInfo", "GesvdjInfo"):
        made[kind] = c_void_p()
        cusolver.library.functions[f"cusolverDnCreate{kind}"](made[kind])
    cusolver.cusolverDnSetAdvOptions(made["Params"], 0, 1)
    assert cusolver.cusolverDnSetAdvOptions.status(made["Params"], 99, 0) == INVALID_VALUE
    cusolver.cusolverDnXsyevjSetTolerance(made["SyevjInfo"], 1e-3)
    cusolver.cusolverDnXsyevjSetSortEig(made["SyevjInfo"], 0)
    assert cusolver.cusolverDnXsyevjSetTolerance.status(made["SyevjInfo"], -1.0) == INVALID_VALUE
    assert cusolver.cusolverDnXsyevjSetMaxSweeps.status(made["GesvdjInfo"], 5) == INVALID_VALUE
    assert cusolver.cusolverDnXgesvdjSetMaxSweeps.status(made["GesvdjInfo"], 0) == INVALID_VALUE
    for kind, number in made.items():
        destroy = cusolver.library.functions[f"cusolverDnDestroy{kind}"]
        destroy(number)
        assert destroy.status(number) == INVALID_VALUE


def test_every_call_is_counted():
    before = calls().get("cusolverDnGetStream", 0)
    assert cusolver.cusolverDnGetStream.status(None, c_void_p()) == NOT_INITIALIZED
    assert calls()["cusolverDnGetStream"] == before + 1


# Cholesky.


@WIDE
@UPLOS
@LETTERS
@pytest.mark.parametrize("n", [0, 1, 2, 7, 33])
def test_potrf_potrs_and_potri(solver, rng, letter, uplo, wide, n):
    original = positive(rng, letter, n)
    a = Array(half(original, uplo), ld=n + 3)
    if wide:
        info = solver.wide("Xpotrf", uplo, n, *typed(a), cuda_type(a))
    else:
        info = solver.worked(f"{letter}potrf", a.dtype, uplo, n, *matrix(a))
    assert info == 0
    found = a.fetch()
    assert other_half_is_poison(found, uplo)
    factor = doubled(triangular(found, uplo))
    close(adjoint(factor) @ factor if uplo else factor @ adjoint(factor), original, letter)

    right = random(rng, letter, n, 3)
    b, info = Array(right, ld=n + 1), Array.filled(1, np.int32)
    if wide:
        solver.plain("Xpotrs", solver.params, uplo, n, 3, *typed(a), *typed(b), info.address)
    else:
        solver.plain(f"{letter}potrs", uplo, n, 3, *matrix(a), *matrix(b), info.address)
    assert info.scalars() == 0
    close(doubled(original) @ b.fetch(), right, letter)

    if not wide:
        assert solver.worked(f"{letter}potri", a.dtype, uplo, n, *matrix(a)) == 0
        found = a.fetch()
        assert other_half_is_poison(found, uplo)
        close(triangular(found, uplo), triangular(np.linalg.inv(doubled(original)), uplo), letter)


@UPLOS
@LETTERS
def test_potrf_names_the_leading_minor(solver, rng, letter, uplo):
    original = positive(rng, letter, 6)
    original[4, 4] = -1
    a = Array(half(original, uplo))
    assert solver.worked(f"{letter}potrf", a.dtype, uplo, 6, *matrix(a)) == 5
    a.fetch()


@UPLOS
@LETTERS
def test_potri_of_a_zero_on_the_diagonal_is_no_number_and_no_error(solver, letter, uplo):
    a = Array(half(np.diag([1, 2, 0, 4]).astype(DTYPES[letter]), uplo), ld=5)
    assert solver.worked(f"{letter}potri", a.dtype, uplo, 4, *matrix(a)) == 0
    assert np.isnan(a.fetch()).any()


@UPLOS
@LETTERS
def test_batched_cholesky_has_an_info_for_each(solver, rng, letter, uplo):
    originals = np.stack([positive(rng, letter, 5) for _ in range(4)])
    originals[2, 1, 1] = -3
    a = Array(half(originals, uplo), ld=6, gap=7)
    addresses, infos = a.of_each, Array.filled(4, np.int32)
    solver.plain(f"{letter}potrfBatched", uplo, 5, addresses.address, a.ld, infos.address, 4)
    assert infos.scalars() == [0, 0, 2, 0]
    factors = a.fetch()
    for each in (0, 1, 3):
        factor = doubled(triangular(factors[each], uplo))
        close(adjoint(factor) @ factor if uplo else factor @ adjoint(factor), originals[each], letter)
        assert np.isnan(triangular(factors[each], 1 - uplo)).sum() == 10  # the library works there
    right = random(rng, letter, 4, 5, 1)
    b, info = Array(right, ld=8, gap=3), Array.filled(1, np.int32)
    pointers = b.of_each
    arguments = (uplo, 5, 1, addresses.address, a.ld, pointers.address, b.ld, info.address, 4)
    solver.plain(f"{letter}potrsBatched", *arguments)
    assert info.scalars() == 0
    for each in (0, 1, 3):
        close(doubled(originals[each]) @ b.fetch()[each], right[each], letter)
    two = (uplo, 5, 2, *arguments[3:])
    assert solver.function(f"{letter}potrsBatched").status(solver.handle, *two) == INVALID_VALUE


@UPLOS
@LETTERS
@pytest.mark.parametrize("unit", [0, 1])
def test_trtri_inverts_one_triangle(solver, rng, letter, uplo, unit):
    original = positive(rng, letter, 6)
    a = Array(half(original, uplo), ld=8)
    assert solver.wide("Xtrtri", uplo, unit, 6, *typed(a), params=False) == 0
    triangle = doubled(triangular(original, uplo))
    found = a.fetch()
    assert other_half_is_poison(found, uplo)
    if unit:
        assert (found.diagonal() == original.diagonal()).all()
        for each in (triangle, found):
            np.fill_diagonal(each, 1)
    # The entries of a unit triangle's inverse grow with the order.
    close(triangular(found, uplo), np.linalg.inv(triangle), letter)
    if not unit:
        a = Array(np.diag([1, 0, 3]).astype(DTYPES[letter]))
        assert solver.wide("Xtrtri", uplo, unit, 3, *typed(a), params=False) == 2


# LU.


def rebuilt(factors: np.ndarray, pivots: np.ndarray) -> np.ndarray:
    """P^T L U."""
    m, n = factors.shape
    k = min(m, n)
    product = doubled(np.tril(factors[:, :k], -1) + np.eye(m, k)) @ np.triu(factors[:k])
    for row in reversed(range(k)):
        product[[row, pivots[row] - 1]] = product[[pivots[row] - 1, row]]
    return product


def getrf(solver, letter, a, m, n, pivots, wide) -> int:
    if wide:
        typed_a = typed(a)
        asked, told = (m, n, *typed_a, cuda_type(a)), (m, n, *typed_a, pivots, cuda_type(a))
        return solver.wide("Xgetrf", *told, query=asked)
    length = solver.size(f"{letter}getrf", m, n, *matrix(a))
    work, info = Array.filled(length, a.dtype), Array.filled(1, np.int32)
    solver.plain(f"{letter}getrf", m, n, *matrix(a), work.address, pivots, info.address)
    work.fetch()
    return info.scalars()


@WIDE
@LETTERS
@pytest.mark.parametrize("shape", [(0, 0), (1, 1), (4, 0), (7, 4), (4, 7), (33, 33)])
def test_getrf_with_and_without_pivots(solver, rng, letter, wide, shape):
    m, n = shape
    original = random(rng, letter, m, n)
    a, pivots = Array(original, ld=m + 2), Array.filled(min(m, n), np.int64 if wide else np.int32)
    assert getrf(solver, letter, a, m, n, pivots.address, wide) == 0
    order = pivots.fetch()
    assert ((order > np.arange(min(m, n))) & (order <= m)).all()
    close(rebuilt(a.fetch(), order), original, letter)
    original += m * n * np.eye(m, n, dtype=original.dtype)
    a = Array(original, ld=m + 2)
    assert getrf(solver, letter, a, m, n, None, wide) == 0
    close(rebuilt(a.fetch(), np.arange(1, min(m, n) + 1)), original, letter)


@WIDE
@LETTERS
@pytest.mark.parametrize("trans", [0, 1, 2])
@pytest.mark.parametrize("n", [0, 1, 9])
def test_getrs_solves_with_every_form_of_the_matrix(solver, rng, letter, wide, trans, n):
    original = random(rng, letter, n, n) + n * np.eye(n, dtype=DTYPES[letter])
    right = random(rng, letter, n, 2)
    operator = (doubled(original), doubled(original).T, adjoint(doubled(original)))[trans]
    for pivoting in (True, False):
        a, b = Array(original, ld=n + 1), Array(right, ld=n + 4)
        pivots, info = Array.filled(n, np.int64 if wide else np.int32), Array.filled(1, np.int32)
        address = pivots.address if pivoting else None
        assert getrf(solver, letter, a, n, n, address, wide) == 0
        if wide:
            solver.plain("Xgetrs", solver.params, trans, n, 2, *typed(a), address, *typed(b), info.address)
        else:
            solver.plain(f"{letter}getrs", trans, n, 2, *matrix(a), address, *matrix(b), info.address)
        assert info.scalars() == 0
        close(operator @ b.fetch(), right, letter)


@WIDE
@LETTERS
@pytest.mark.parametrize("pivoting", [True, False])
def test_getrf_names_the_pivot_that_is_zero(solver, rng, letter, wide, pivoting):
    original = np.triu(random(rng, letter, 5, 5))
    original[3, 3] = 0
    a, pivots = Array(original), Array.filled(5, np.int64 if wide else np.int32)
    assert getrf(solver, letter, a, 5, 5, pivots.address if pivoting else None, wide) == 4


@LETTERS
@UPLOS
def test_symmetric_indefinite_matrices(solver, rng, letter, uplo):
    n = 7
    original = random(rng, letter, n, n)
    original = original + original.T
    np.fill_diagonal(original, 0)
    a, pivots = Array(half(original, uplo), ld=9), Array.filled(n, np.int32)
    name = f"{letter}sytrf"
    length = solver.size(name, n, *matrix(a))
    work, info = Array.filled(length, a.dtype), Array.filled(1, np.int32)
    solver.plain(name, uplo, n, *matrix(a), pivots.address, work.address, length, info.address)
    assert info.scalars() == 0
    assert (pivots.fetch() < 0).any()
    right = random(rng, letter, n, 2)
    b, wide = Array(right, ld=8), Array(pivots.fetch().astype(np.int64))
    assert solver.wide("Xsytrs", uplo, n, 2, *typed(a), wide.address, *typed(b), params=False) == 0
    close(doubled(original) @ b.fetch(), right, letter, 1e4)
    assert solver.worked(f"{letter}sytri", a.dtype, uplo, n, *matrix(a), pivots.address) == 0
    found = a.fetch()
    assert other_half_is_poison(found, uplo)
    close(triangular(found, uplo), triangular(np.linalg.inv(doubled(original)), uplo), letter, 1e4)


PAIRS = (
    *(f"{outer}{lowest}" for outer, lowests in (("S", "SXBH"), ("D", "DSXBH")) for lowest in lowests),
    *(f"{outer}{lowest}" for outer, lowests in (("C", "CYEK"), ("Z", "ZCYEK")) for lowest in lowests),
)


def refined(solver, name, a, *arguments) -> tuple[int, int]:
    length = solver.size(name, *arguments, None, kind=c_size_t)
    work, info, iterations = Array.filled(length, np.uint8), Array.filled(1, np.int32), c_int(77)
    solver.plain(name, *arguments, work.address, length, byref(iterations), info.address)
    work.fetch()
    return info.scalars(), iterations.value


@pytest.mark.parametrize("pair", PAIRS)
def test_gesv_solves_and_leaves_the_matrix_unless_it_is_singular(solver, rng, pair):
    letter, n = pair[0], 6
    original, right = random(rng, letter, n, n), random(rng, letter, n, 2)
    a, b, x = Array(original, ld=8), Array(right, ld=7), Array.filled((n, 2), DTYPES[letter], ld=9)
    pivots = Array.filled(n, np.int32)
    arguments = (n, 2, *matrix(a), pivots.address, *matrix(b), *matrix(x))
    assert refined(solver, f"{pair}gesv", a, *arguments) == (0, 0)
    close(doubled(original) @ x.fetch(), right, letter, 1e3)
    assert (a.fetch() == original).all()
    assert (b.fetch() == right).all()
    original[:, 2] = 0
    a, x = Array(original, ld=8), Array.filled((n, 2), DTYPES[letter], ld=9)
    arguments = (n, 2, *matrix(a), pivots.address, *matrix(b), *matrix(x))
    info, iterations = refined(solver, f"{pair}gesv", a, *arguments)
    assert info == 3
    assert iterations < 0
    assert np.isnan(x.fetch()).all()


@pytest.mark.parametrize("pair", PAIRS)
def test_gels_finds_the_least_squares_solution(solver, rng, pair):
    letter, m, n = pair[0], 9, 4
    original, right = random(rng, letter, m, n), random(rng, letter, m, 2)
    a, b, x = Array(original, ld=m + 1), Array(right, ld=m), Array.filled((n, 2), DTYPES[letter], ld=n + 3)
    arguments = (m, n, 2, *matrix(a), *matrix(b), *matrix(x))
    assert refined(solver, f"{pair}gels", a, *arguments) == (0, 0)
    close(x.fetch(), np.linalg.lstsq(doubled(original), doubled(right))[0], letter)
    query = solver.function(f"{pair}gels_bufferSize")
    turned = (n, m, 2, a.address, m, b.address, m, x.address, m, None, c_size_t())
    assert query.status(solver.handle, *turned) == INVALID_VALUE
    original[:, 1] = 0
    a = Array(original, ld=m + 1)
    info, iterations = refined(solver, f"{pair}gels", a, m, n, 2, *matrix(a), *matrix(b), *matrix(x))
    assert info == 2
    assert iterations < 0


# QR.


def un(letter: str, name: str) -> str:
    return f"{letter}{'un' if letter in 'CZ' else 'or'}{name}"


@WIDE
@LETTERS
@pytest.mark.parametrize("shape", [(1, 1), (6, 0), (8, 5), (5, 8), (34, 33)])
def test_geqrf_orgqr_and_ormqr(solver, rng, letter, wide, shape):
    m, n = shape
    k = min(m, n)
    original = random(rng, letter, m, n)
    a, tau = Array(original, ld=m + 2), Array.filled(k, DTYPES[letter])
    if wide:
        assert solver.wide("Xgeqrf", m, n, *typed(a), *typed_vector(tau), cuda_type(a)) == 0
    else:
        name = f"{letter}geqrf"
        length = solver.size(name, m, n, *matrix(a))
        work, info = Array.filled(length, a.dtype), Array.filled(1, np.int32)
        solver.plain(name, m, n, *matrix(a), tau.address, work.address, length, info.address)
        work.fetch()
        assert info.scalars() == 0
    r = doubled(np.triu(a.fetch()[:k]))

    reflectors = a.fetch()[:, :k]
    q = Array(reflectors, ld=m + 1)
    name = un(letter, "gqr")
    assert solver.worked(name, a.dtype, m, k, k, *matrix(q), tau.address) == 0
    thin = doubled(q.fetch())
    close(thin @ r, original, letter)
    close(adjoint(thin) @ thin, np.eye(k), letter)

    if k:
        whole = Array(np.concatenate([reflectors, np.zeros((m, m - k), a.dtype)], axis=1))
        assert solver.worked(name, a.dtype, m, m, k, *matrix(whole), tau.address) == 0
        check_products(solver, rng, letter, whole.fetch(), reflectors, tau)


def check_products(solver, rng, letter, q, reflectors, tau):
    m, k = reflectors.shape
    a, operators = Array(reflectors, ld=m + 3), {0: doubled(q), (2 if letter in "CZ" else 1): adjoint(doubled(q))}
    for side, (trans, operator) in itertools.product((0, 1), operators.items()):
        original = random(rng, letter, *((4, m) if side else (m, 4)))
        c = Array(original, ld=len(original) + 2)
        arguments = (side, trans, *original.shape, k, *matrix(a), tau.address, *matrix(c))
        assert solver.worked(un(letter, "mqr"), a.dtype, *arguments) == 0
        close(c.fetch(), original @ operator if side else operator @ original, letter)
    refused = (side, 1 if letter in "CZ" else 2, *original.shape, k, *matrix(a), tau.address, *matrix(c), c_int())
    assert solver.function(f"{un(letter, 'mqr')}_bufferSize").status(solver.handle, *refused) == INVALID_VALUE


@LETTERS
def test_orgqr_of_no_reflectors_is_the_identity(solver, letter):
    a, tau = Array.filled((5, 3), DTYPES[letter]), Array.filled(0, DTYPES[letter])
    assert solver.worked(un(letter, "gqr"), a.dtype, 5, 3, 0, *matrix(a), tau.address) == 0
    assert (a.fetch() == np.eye(5, 3)).all()


# Singular values.


JOBS = [pair for pair in itertools.product("ASON", repeat=2) if pair != ("O", "O")]


@WIDE
@LETTERS
@pytest.mark.parametrize("jobs", JOBS, ids="".join)
@pytest.mark.parametrize("shape", [(4, 4), (7, 4)])
def test_gesvd_gives_what_its_jobs_ask_for(solver, rng, letter, wide, jobs, shape):
    m, n = shape
    original = random(rng, letter, m, n)
    columns = m if jobs[0] == "A" else n
    a, s = Array(original, ld=m + 1), Array.filled(n, real(letter))
    u, vt = Array.filled((m, columns), DTYPES[letter], ld=m + 2), Array.filled((n, n), DTYPES[letter], ld=n + 3)
    letters = tuple(map(ord, jobs))
    if wide:
        arguments = (*letters, m, n, *typed(a), *typed_vector(s), *typed(u), *typed(vt), cuda_type(a))
        assert solver.wide("Xgesvd", *arguments) == 0
    else:
        arguments = (*letters, m, n, *matrix(a), s.address, *matrix(u), *matrix(vt))
        assert solver.worked(f"{letter}gesvd", a.dtype, *arguments, query=(m, n), rest=(None,)) == 0
    values = s.fetch()
    close(values, np.linalg.svd(doubled(original), compute_uv=False), letter)
    left, right = u.fetch(), vt.fetch()
    overwritten = a.fetch()
    if jobs[0] == "O":
        assert np.isnan(left).all()
        left = overwritten
    if jobs[1] == "O":
        assert np.isnan(right).all()
        right = overwritten[:n]
    for job, vectors in zip(jobs, (left, right), strict=True):
        if job == "N":
            assert np.isnan(vectors).all()
    if "N" not in jobs:
        close(doubled(left[:, :n]) * values @ right, original, letter)
        close(adjoint(doubled(left)) @ left, np.eye(left.shape[1]), letter)
        close(doubled(right) @ adjoint(right), np.eye(n), letter)


@LETTERS
def test_gesvd_refuses_wide_matrices_and_overwriting_twice(solver, letter):
    a = Array.filled((3, 5), DTYPES[letter])
    size = solver.function(f"{letter}gesvd_bufferSize")
    assert size.status(solver.handle, 3, 5, c_int()) == INVALID_VALUE
    square = (5, 5, a.address, 5, a.address, a.address, 5, a.address, 5, a.address, 10**6, None, a.address)
    function = solver.function(f"{letter}gesvd")
    assert function.status(solver.handle, ord("O"), ord("O"), *square) == INVALID_VALUE
    assert function.status(solver.handle, ord("A"), -1, *square) == INVALID_VALUE


def new_jacobi(kind: str) -> c_void_p:
    info = c_void_p()
    cusolver.library.functions[f"cusolverDnCreate{kind}"](info)
    return info


def check_svd(letter, original, values, left, right, count):
    """Values and vectors; ``right`` is V."""
    left, right = doubled(left), doubled(right)
    close(values, np.linalg.svd(doubled(original), compute_uv=False)[:count], letter)
    close(adjoint(left) @ left, np.eye(left.shape[1]), letter)
    close(adjoint(right) @ right, np.eye(right.shape[1]), letter)
    close(doubled(original) @ right[:, :count], left[:, :count] * values, letter)


@WIDE
@LETTERS
@pytest.mark.parametrize("econ", [0, 1])
@pytest.mark.parametrize("jobz", [0, 1])
@pytest.mark.parametrize("shape", [(1, 1), (7, 4), (4, 7)])
def test_gesvdj_and_gesvdp_give_v(solver, rng, letter, wide, econ, jobz, shape):
    m, n = shape
    k = min(m, n)
    original = random(rng, letter, m, n)
    a, s = Array(original, ld=m + 1), Array.filled(k, real(letter))
    u = Array.filled((m, k if econ else m), DTYPES[letter], ld=m + 2)
    v = Array.filled((n, k if econ else n), DTYPES[letter], ld=n + 3)
    if wide:
        error = c_double(-1)
        arguments = (jobz, econ, m, n, *typed(a), *typed_vector(s), *typed(u), *typed(v), cuda_type(a))
        assert solver.wide("Xgesvdp", *arguments, behind=(byref(error),)) == 0
        assert error.value >= 0
    else:
        arguments = (jobz, econ, m, n, *matrix(a), s.address, *matrix(u), *matrix(v))
        info = new_jacobi("GesvdjInfo")
        assert solver.worked(f"{letter}gesvdj", a.dtype, *arguments, behind=(info,)) == 0
        residual, sweeps = c_double(-1), c_int(-1)
        cusolver.cusolverDnXgesvdjGetResidual(solver.handle, info, residual)
        cusolver.cusolverDnXgesvdjGetSweeps(solver.handle, info, sweeps)
        assert 0 <= residual.value < 1e-3
        assert 1 <= sweeps.value <= 100
    assert np.isnan(a.fetch()).all()
    if jobz:
        check_svd(letter, original, s.fetch(), u.fetch(), v.fetch(), k)
    else:
        close(s.fetch(), np.linalg.svd(doubled(original), compute_uv=False), letter)
        assert np.isnan(u.fetch()).all()
        assert np.isnan(v.fetch()).all()


@LETTERS
@pytest.mark.parametrize("shape", [(5, 3), (3, 5)])
def test_gesvdj_batched(solver, rng, letter, shape):
    m, n = shape
    k, count = min(m, n), 3
    original = random(rng, letter, count, m, n)
    a, s = Array(original, ld=m + 1), Array.filled((count, k, 1), real(letter))
    u, v = (Array.filled((count, order, order), DTYPES[letter], ld=order + 1) for order in shape)
    info = new_jacobi("GesvdjInfo")
    arguments = (1, m, n, *matrix(a), s.address, *matrix(u), *matrix(v))
    assert solver.worked(f"{letter}gesvdjBatched", a.dtype, *arguments, behind=(info, count)) == [0] * count
    for values, left, right, each in zip(s.fetch(), u.fetch(), v.fetch(), original, strict=True):
        check_svd(letter, each, values.ravel(), left, right, k)
    getters = (cusolver.cusolverDnXgesvdjGetResidual, c_double()), (cusolver.cusolverDnXgesvdjGetSweeps, c_int())
    for getter, result in getters:
        assert getter.status(solver.handle, info, byref(result)) == NOT_SUPPORTED
    large = (1, 33, 4, a.address, 33, s.address, u.address, 33, v.address, 4, c_int(), info, count)
    query = solver.function(f"{letter}gesvdjBatched_bufferSize")
    assert query.status(solver.handle, *large) == INVALID_VALUE


@LETTERS
@pytest.mark.parametrize("asks", [True, False])
def test_gesvda_gives_a_part_of_each_and_what_is_left(solver, rng, letter, asks):
    m, n, rank, count = 8, 5, 2, 3
    original = random(rng, letter, count, m, n)
    a, s = Array(original, ld=m + 1, gap=5), Array.filled((count, rank, 1), real(letter), gap=3)
    u = Array.filled((count, m, rank), DTYPES[letter], ld=m + 2, gap=1)
    v = Array.filled((count, n, rank), DTYPES[letter], ld=n, gap=2)
    strided = (*matrix(a), a.stride, s.address, s.stride, *matrix(u), u.stride, *matrix(v), v.stride)
    name = f"{letter}gesvdaStridedBatched"
    length = c_int()
    solver.function(f"{name}_bufferSize")(solver.handle, 1, rank, m, n, *strided, length, count)
    work, infos, residuals = Array.filled(length.value, a.dtype), Array.filled(count, np.int32), (c_double * count)()
    told = residuals if asks else None
    solver.plain(name, 1, rank, m, n, *strided, work.address, length.value, infos.address, told, count)
    assert infos.scalars() == [0] * count
    assert (a.fetch() == original).all()
    for values, left, right, each in zip(s.fetch(), u.fetch(), v.fetch(), original, strict=True):
        check_svd(letter, each, values.ravel(), left, right, rank)
    rest = [np.linalg.norm(np.linalg.svd(doubled(each), compute_uv=False)[rank:]) for each in original]
    close(list(residuals), rest if asks else [0] * count, letter)
    query = solver.function(f"{name}_bufferSize")
    assert query.status(solver.handle, 1, n + 1, m, n, *strided, c_int(), count) == INVALID_VALUE
    tight = (*matrix(a), a.ld * n - 1, *strided[3:])
    assert query.status(solver.handle, 1, rank, m, n, *tight, c_int(), count) == INVALID_VALUE


@LETTERS
@pytest.mark.parametrize("jobs", ["SS", "SN", "NS", "NN"])
def test_gesvdr_gives_the_largest(solver, rng, letter, jobs):
    m, n, k = 9, 6, 2
    original = random(rng, letter, m, n)
    a, s = Array(original, ld=m + 1), Array.filled(k, real(letter))
    u, v = Array.filled((m, k), DTYPES[letter], ld=m + 2), Array.filled((n, k), DTYPES[letter], ld=n + 3)
    operands = (*typed(a), *typed_vector(s), *typed(u), *typed(v), cuda_type(a))
    assert solver.wide("Xgesvdr", *map(ord, jobs), m, n, k, 2, 3, *operands) == 0
    if jobs == "SS":
        check_svd(letter, original, s.fetch(), u.fetch(), v.fetch(), k)
    for job, vectors in zip(jobs, (u, v), strict=True):
        assert np.isnan(vectors.fetch()).all() == (job == "N")
    query = solver.function("Xgesvdr_bufferSize")
    sizes = (byref(c_size_t()), byref(c_size_t()))
    for jobu, p in (("A", 2), ("S", 5)):
        arguments = (ord(jobu), ord("S"), m, n, k, p, 3, *operands)
        assert query.status(solver.handle, solver.params, *arguments, *sizes) == INVALID_VALUE


# Eigenvalues.


def ev(letter: str, name: str) -> str:
    return f"{letter}{'he' if letter in 'CZ' else 'sy'}{name}"


def check_eigen(letter, original, found, values, jobz):
    close(values, np.linalg.eigvalsh(doubled(original)), letter)
    if jobz:
        vectors = doubled(found)
        close(adjoint(vectors) @ vectors, np.eye(len(original)), letter)
        close(doubled(original) @ vectors, vectors * values, letter)
    else:
        assert np.isnan(found).all()


@WIDE
@LETTERS
@UPLOS
@pytest.mark.parametrize("jobz", [0, 1])
@pytest.mark.parametrize("n", [0, 1, 6, 33])
def test_syevd_reads_one_triangle(solver, rng, letter, wide, uplo, jobz, n):
    original = hermitian(rng, letter, n)
    a, w = Array(half(original, uplo), ld=n + 2), Array.filled(n, real(letter))
    if wide:
        assert solver.wide("Xsyevd", jobz, uplo, n, *typed(a), *typed_vector(w), cuda_type(a)) == 0
    else:
        assert solver.worked(ev(letter, "evd"), a.dtype, jobz, uplo, n, *matrix(a), w.address) == 0
    check_eigen(letter, original, a.fetch(), w.fetch(), jobz)


@LETTERS
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_iteration_on_what_is_not_finite_ends_without_an_answer(solver, letter, value):
    """LAPACK's own may take for ever: it is not asked."""
    numbers = np.eye(5, dtype=DTYPES[letter])[None]
    numbers[0, 2, 0] = value
    w, info = Array.filled(5, real(letter)), new_jacobi("GesvdjInfo")
    a = Array(numbers, ld=5)
    assert solver.worked(ev(letter, "evd"), a.dtype, 1, 0, 5, *matrix(a), w.address) == 4
    assert np.isnan(w.fetch()).all()
    a, s, u, v = (
        Array(numbers, ld=5),
        Array.filled((1, 5, 1), real(letter)),
        *(Array.filled((1, 5, 5), DTYPES[letter], ld=5) for _ in range(2)),
    )
    arguments = (1, 5, 5, *matrix(a), s.address, *matrix(u), *matrix(v))
    found = solver.worked(f"{letter}gesvdjBatched", a.dtype, *arguments, behind=(info, 1))
    assert np.isnan(s.fetch()).all()
    assert np.isnan(u.fetch()).all()
    assert found in (0, [0])


@LETTERS
@UPLOS
@pytest.mark.parametrize("jobz", [0, 1])
def test_syevj_tells_of_its_run(solver, rng, letter, uplo, jobz):
    n, info = 6, new_jacobi("SyevjInfo")
    original = hermitian(rng, letter, n)
    a, w = Array(half(original, uplo), ld=n + 2), Array.filled(n, real(letter))
    arguments = (jobz, uplo, n, *matrix(a), w.address)
    assert solver.worked(ev(letter, "evj"), a.dtype, *arguments, behind=(info,)) == 0
    check_eigen(letter, original, a.fetch(), w.fetch(), jobz)
    residual, sweeps = c_double(-1), c_int(-1)
    cusolver.cusolverDnXsyevjGetResidual(solver.handle, info, residual)
    cusolver.cusolverDnXsyevjGetSweeps(solver.handle, info, sweeps)
    assert 0 <= residual.value < 1e-3
    assert sweeps.value > 1


def test_a_jacobi_method_that_may_not_turn_often_enough_does_not_converge(solver, rng):
    syevj, gesvdj = new_jacobi("SyevjInfo"), new_jacobi("GesvdjInfo")
    cusolver.cusolverDnXsyevjSetMaxSweeps(syevj, 1)
    cusolver.cusolverDnXgesvdjSetMaxSweeps(gesvdj, 1)
    a, w = Array(hermitian(rng, "D", 5)), Array.filled(5, np.float64)
    assert solver.worked("Dsyevj", a.dtype, 1, 0, 5, *matrix(a), w.address, behind=(syevj,)) == 6
    diagonal = Array(np.diag([3.0, 1.0, 2.0, 5.0, 4.0]))
    assert solver.worked("Dsyevj", a.dtype, 1, 0, 5, *matrix(diagonal), w.address, behind=(syevj,)) == 0
    assert w.fetch().tolist() == [1, 2, 3, 4, 5]
    tall, u, v = Array(random(rng, "D", 5, 3)), Array.filled((5, 5), np.float64), Array.filled((3, 3), np.float64)
    arguments = (1, 0, 5, 3, *matrix(tall), w.address, *matrix(u), *matrix(v))
    assert solver.worked("Dgesvdj", a.dtype, *arguments, behind=(gesvdj,)) == 4


@LETTERS
@UPLOS
@pytest.mark.parametrize("wide", [False, True], ids=["syevjBatched", "XsyevBatched"])
def test_batched_eigenvalues(solver, rng, letter, uplo, wide):
    n, count = 5, 3
    original = np.stack([hermitian(rng, letter, n) for _ in range(count)])
    a, w = Array(half(original, uplo), ld=n + 1), Array.filled((count, n, 1), real(letter))
    if wide:
        arguments = (1, uplo, n, *typed(a), *typed_vector(w), cuda_type(a))
        assert solver.wide("XsyevBatched", *arguments, behind=(count,)) == [0] * count
    else:
        info = new_jacobi("SyevjInfo")
        arguments = (1, uplo, n, *matrix(a), w.address)
        assert solver.worked(ev(letter, "evjBatched"), a.dtype, *arguments, behind=(info, count)) == [0] * count
        assert cusolver.cusolverDnXsyevjGetSweeps.status(solver.handle, info, byref(c_int())) == NOT_SUPPORTED
    for each, vectors, values in zip(original, a.fetch(), w.fetch(), strict=True):
        check_eigen(letter, each, vectors, values.ravel(), 1)


def interval(letter: str, low: float, high: float, first: int, last: int, count, wide: bool) -> tuple:
    """vl, vu, il, iu and meig as either interface takes them."""
    kind = c_float if real(letter) == np.float32 else c_double
    bounds = (kind(low), kind(high))
    return (*(map(byref, bounds) if wide else bounds), first, last, byref(count))


@WIDE
@LETTERS
@UPLOS
@pytest.mark.parametrize("jobz", [0, 1])
@pytest.mark.parametrize("which", [ALL, INDICES, INTERVAL])
def test_syevdx_gives_a_part(solver, rng, letter, wide, uplo, jobz, which):
    n = 7
    original = hermitian(rng, letter, n)
    exact = np.linalg.eigvalsh(doubled(original))
    low, high = (exact[1] + exact[2]) / 2, (exact[4] + exact[5]) / 2
    wanted = {ALL: slice(0, n), INDICES: slice(2, 6), INTERVAL: slice(2, 5)}[which]
    a, w = Array(half(original, uplo), ld=n + 2), Array.filled(n, real(letter))
    count = (c_int64 if wide else c_int)(-1)
    part = interval(letter, low, high, 3, 6, count, wide)
    if wide:
        arguments = (jobz, which, uplo, n, *typed(a), *part, *typed_vector(w), cuda_type(a))
        assert solver.wide("Xsyevdx", *arguments) == 0
    else:
        arguments = (jobz, which, uplo, n, *matrix(a), *part, w.address)
        assert solver.worked(ev(letter, "evdx"), a.dtype, *arguments) == 0
    m = count.value
    assert m == wanted.stop - wanted.start
    values, vectors = w.fetch(), a.fetch()
    close(values[:m], exact[wanted], letter)
    assert np.isnan(values[m:]).all()
    if jobz:
        close(doubled(original) @ vectors[:, :m], doubled(vectors[:, :m]) * values[:m], letter)
        close(adjoint(doubled(vectors[:, :m])) @ vectors[:, :m], np.eye(m), letter)
    assert np.isnan(vectors[:, m if jobz else 0 :]).all()


@pytest.mark.parametrize(
    ("which", "bad"), [(INDICES, (0.0, 1.0, 0, 2)), (INDICES, (0.0, 1.0, 3, 2)), (INDICES, (0.0, 1.0, 1, 6))]
)
def test_a_part_that_cannot_be_is_refused(solver, which, bad):
    a, count = Array.filled((5, 5), np.float64), c_int()
    arguments = (1, which, 0, 5, *matrix(a), *interval("D", *bad, count, False), a.address, byref(c_int()))
    assert solver.function("Dsyevdx_bufferSize").status(solver.handle, *arguments) == INVALID_VALUE
    empty = interval("D", 1.0, 1.0, 1, 2, count, False)
    arguments = (1, INTERVAL, 0, 5, *matrix(a), *empty, a.address, byref(c_int()))
    assert solver.function("Dsyevdx_bufferSize").status(solver.handle, *arguments) == INVALID_VALUE


def check_generalized(letter, itype, a, b, vectors, values):
    a, b, x = doubled(a), doubled(b), doubled(vectors)
    left, right = {1: (a @ x, b @ x), 2: (a @ b @ x, x), 3: (b @ a @ x, x)}[itype]
    close(left, right * values, letter)


@LETTERS
@UPLOS
@pytest.mark.parametrize("itype", [1, 2, 3])
@pytest.mark.parametrize("jacobi", [False, True], ids=["sygvd", "sygvj"])
def test_generalized_eigenvalues(solver, rng, letter, uplo, itype, jacobi):
    n = 6
    first, second = hermitian(rng, letter, n), positive(rng, letter, n) / n
    a, b = Array(half(first, uplo), ld=n + 1), Array(half(second, uplo), ld=n + 2)
    w = Array.filled(n, real(letter))
    behind = (new_jacobi("SyevjInfo"),) if jacobi else ()
    name = ev(letter, "gvj" if jacobi else "gvd")
    arguments = (itype, 1, uplo, n, *matrix(a), *matrix(b), w.address)
    assert solver.worked(name, a.dtype, *arguments, behind=behind) == 0
    check_generalized(letter, itype, first, second, a.fetch(), w.fetch())
    assert (np.diff(w.fetch()) >= 0).all()
    factor = b.fetch()
    assert other_half_is_poison(factor, uplo)
    factor = doubled(triangular(factor, uplo))
    close(adjoint(factor) @ factor if uplo else factor @ adjoint(factor), second, letter)


@LETTERS
@UPLOS
def test_sygvdx_gives_a_part(solver, rng, letter, uplo):
    n, count = 6, c_int(-1)
    first, second = hermitian(rng, letter, n), positive(rng, letter, n) / n
    a, b, w = Array(half(first, uplo)), Array(half(second, uplo)), Array.filled(n, real(letter))
    part = interval(letter, 0.0, 0.0, 2, 4, count, False)
    arguments = (1, 1, INDICES, uplo, n, *matrix(a), *matrix(b), *part, w.address)
    assert solver.worked(ev(letter, "gvdx"), a.dtype, *arguments) == 0
    assert count.value == 3
    check_generalized(letter, 1, first, second, a.fetch()[:, :3], w.fetch()[:3])


@LETTERS
@UPLOS
def test_sygvd_names_the_minor_of_the_second_matrix(solver, rng, letter, uplo):
    n = 5
    first, second = hermitian(rng, letter, n), positive(rng, letter, n)
    second[2, 2] = -1
    a, b, w = Array(half(first, uplo)), Array(half(second, uplo)), Array.filled(n, real(letter))
    assert solver.worked(ev(letter, "gvd"), a.dtype, 1, 1, uplo, n, *matrix(a), *matrix(b), w.address) == n + 3
    assert np.isnan(w.fetch()).all()


def test_published_cases(solver):
    """Singular values of diag(3, 5) and eigenvalues of [[2, 1], [1, 2]]."""
    a, s = Array(np.diag([3.0, 5.0])), Array.filled(2, np.float64)
    arguments = (*map(ord, "NN"), 2, 2, *matrix(a), s.address, None, 2, None, 2)
    assert solver.worked("Dgesvd", a.dtype, *arguments, query=(2, 2), rest=(None,)) == 0
    close(s.fetch(), [5, 3], "D")
    a, w = Array(np.array([[2.0, 1.0], [1.0, 2.0]])), Array.filled(2, np.float64)
    assert solver.worked("Dsyevd", a.dtype, 0, 0, 2, *matrix(a), w.address) == 0
    close(w.fetch(), [1, 3], "D")


def test_nothing_to_compute_is_done_at_once(solver):
    a, x = Array.filled((0, 0), np.float64), Array.filled((4, 4), np.float64)
    empty, four = (a.address, 1), (x.address, 4)
    assert (
        solver.worked(
            "Dgesvd", a.dtype, *map(ord, "AA"), 4, 0, *four, a.address, *four, *empty, query=(4, 0), rest=(None,)
        )
        == 0
    )
    assert (
        solver.worked(
            "Dgesvdj", a.dtype, 1, 0, 0, 4, *empty, a.address, *empty, *four, behind=(new_jacobi("GesvdjInfo"),)
        )
        == 0
    )
    for name in ("DDgesv", "DSgesv"):
        assert refined(solver, name, a, 0, 2, *empty, a.address, *empty, *empty) == (0, 0)
        assert refined(solver, name, a, 4, 0, *four, a.address, *four, *four) == (0, 0)
    count = c_int(-1)
    part = interval("D", 0.0, 1.0, 1, 0, count, False)
    assert solver.worked("Dsyevdx", a.dtype, 1, INDICES, 0, 0, *empty, *part, a.address) == 0
    assert count.value == 0
    assert solver.worked("Dsygvd", a.dtype, 1, 1, 0, 0, *empty, *empty, a.address) == 0
    solver.plain("DpotrfBatched", 0, 4, x.address, 4, a.address, 0)
    assert np.isnan(x.fetch()).all()


# What is refused, and what a fault costs.


BAD_POTRF = {
    "uplo": (2, 4, 4, 1000),
    "order": (0, -1, 4, 1000),
    "leading dimension": (0, 4, 3, 1000),
    "workspace": (0, 4, 4, -1),
}


@pytest.mark.parametrize("wrong", BAD_POTRF)
def test_a_wrong_argument_is_refused_and_nothing_is_touched(solver, rng, wrong):
    uplo, n, ld, length = BAD_POTRF[wrong]
    original = positive(rng, "D", 4)
    a, info, size = Array(original), Array.filled(1, np.int32), c_int()
    cusolver.cusolverDnDpotrf_bufferSize(solver.handle, 0, 4, a.address, 4, size)
    work = Array.filled(size.value, np.float64)
    length = size.value - 1 if length < 0 else length
    function = cusolver.cusolverDnDpotrf
    arguments = (uplo, n, a.address, ld, work.address, length, info.address)
    assert function.status(solver.handle, *arguments) == INVALID_VALUE
    driver.cuStreamSynchronize(solver.stream)
    assert (a.fetch() == original).all()
    assert info.scalars() == -1
    if wrong != "workspace":
        query = cusolver.cusolverDnDpotrf_bufferSize
        assert query.status(solver.handle, uplo, n, a.address, ld, size) == INVALID_VALUE
    with pytest.raises(CudaError, match="cusolverDnDpotrf: CUSOLVER_STATUS_INVALID_VALUE"):
        function(solver.handle, 0, 4, a.address, 4, None, size.value, info.address)


def test_types_that_do_not_belong_together_are_refused(solver):
    single, double = cudaDataType.CUDA_R_32F, cudaDataType.CUDA_R_64F
    sizes = (byref(c_size_t()), byref(c_size_t()))
    query, complex_double = cusolver.cusolverDnXsyevd_bufferSize, cudaDataType.CUDA_C_64F

    def ask(params, of_a, of_w, compute):
        return query.status(solver.handle, params, 1, 0, 3, of_a, None, 3, of_w, None, compute, *sizes)

    assert ask(solver.params, complex_double, double, complex_double) == 0
    for wrong in (
        (single, double, single),
        (double, double, single),
        (complex_double, complex_double, complex_double),
        (cudaDataType.CUDA_R_16F, cudaDataType.CUDA_R_16F, cudaDataType.CUDA_R_16F),
    ):
        assert ask(solver.params, *wrong) == INVALID_VALUE
    assert ask(None, double, double, double) == INVALID_VALUE


@pytest.mark.parametrize("short", ["device", "host"])
def test_both_workspaces_must_have_the_size_that_was_told(solver, short):
    a, info, device, host = Array(np.eye(3)), Array.filled(1, np.int32), c_size_t(), c_size_t()
    arguments = (solver.params, 0, 3, *typed(a), cuda_type(a))
    cusolver.cusolverDnXpotrf_bufferSize(solver.handle, *arguments, device, host)
    work, buffer = Array.filled(device.value, np.uint8), ctypes.create_string_buffer(host.value)
    lengths = (device.value - (short == "device"), host.value - (short == "host"))
    works = (work.address, lengths[0], ctypes.cast(buffer, c_void_p), lengths[1])
    assert cusolver.cusolverDnXpotrf.status(solver.handle, *arguments, *works, info.address) == INVALID_VALUE


def test_a_workspace_does_not_keep_what_it_held(solver):
    a, work, info, size = Array(np.eye(3)), Array(np.ones(4096)), Array.filled(1, np.int32), c_int()
    cusolver.cusolverDnDpotrf_bufferSize(solver.handle, 0, 3, a.address, 3, size)
    assert size.value < 4096
    solver.plain("Dpotrf", 0, 3, *matrix(a), work.address, 4096, info.address)
    held = work.fetch()
    assert np.isnan(held[: size.value]).all()
    assert (held[size.value :] == 1).all()


def test_work_waits_for_its_place_in_the_stream(solver, rng):
    original = positive(rng, "D", 4)
    a, gate, info, size = Array(original), Array(np.zeros(1, np.int32)), Array.filled(1, np.int32), c_int()
    cusolver.cusolverDnDpotrf_bufferSize(solver.handle, 0, 4, a.address, 4, size)
    work = Array.filled(size.value, np.float64)
    driver.cuStreamWaitValue32(solver.stream, gate.address, 1, driver.CU_STREAM_WAIT_VALUE_EQ)
    cusolver.cusolverDnDpotrf(solver.handle, 0, 4, a.address, 4, work.address, size.value, info.address)
    assert driver.cuStreamQuery.status(solver.stream) == driver.CUresult.CUDA_ERROR_NOT_READY
    assert (a.fetch() == original).all()
    assert info.scalars() == -1
    helper.write(gate.address, (1).to_bytes(4, "little"))
    driver.cuStreamSynchronize(solver.stream)
    assert info.scalars() == 0
    close(np.tril(a.fetch()), np.linalg.cholesky(original), "D")


FAULT = """
    from atomr_cuda import cusolver
    begin()
    stream, handle, memory = stream(), c_void_p(), allocate(4096)
    cusolver.cusolverDnCreate(handle)
    cusolver.cusolverDnSetStream(handle, stream)
    statuses = [{call}]
    statuses.append(cuStreamSynchronize.status(stream))
    statuses.append(cusolver.cusolverDnDpotrs.status(handle, 0, 1, 1, memory, 1, memory, 1, memory))
    statuses.append(cusolver.cusolverDnCreate.status(c_void_p()))
    statuses.append(cusolver.cusolverDnDestroy.status(handle))
    print(*statuses)
"""

FAULTS = {
    "an address that is none": "cusolver.cusolverDnDpotrs.status(handle, 0, 2, 1, 64, 2, memory, 2, memory)",
    "a matrix that leaves its memory": "cusolver.cusolverDnDpotrs.status("
    "handle, 0, 64, 1, memory, 64, memory, 64, memory)",
    "no info": "cusolver.cusolverDnDpotrs.status(handle, 0, 2, 1, memory, 2, memory, 2, None)",
    "a workspace that is too short": "cusolver.cusolverDnDpotrf.status("
    "handle, 0, 2, memory, 2, memory + 4000, 1000, memory)",
    "pivots that name no row": "cusolver.cusolverDnDgetrs.status("
    "handle, 0, 2, 1, memory, 2, memory, memory, 2, memory + 256)",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wild_address_costs_the_context(fault):
    done = run_in_process(FAULT.format(call=FAULTS[fault]))
    failed = int(cusolverStatus_t.CUSOLVER_STATUS_EXECUTION_FAILED)
    assert list(map(int, done.stdout.split())) == [0, 700, failed, NOT_INITIALIZED, 0]


def test_a_misaligned_matrix_costs_the_context():
    call = "cusolver.cusolverDnDpotrs.status(handle, 0, 2, 1, memory + 4, 2, memory, 2, memory)"
    assert run_in_process(FAULT.format(call=call)).stdout.split()[:2] == ["0", "716"]


def test_a_call_that_waits_for_its_result_reports_the_fault():
    call = """cusolver.cusolverDnDDgesv.status(
        handle, 2, 1, 64, 2, memory, memory, 2, memory, 2, memory + 1024, 2048, c_int(), memory)"""
    failed = int(cusolverStatus_t.CUSOLVER_STATUS_EXECUTION_FAILED)
    assert list(map(int, run_in_process(FAULT.format(call=call)).stdout.split()))[:2] == [failed, 700]
