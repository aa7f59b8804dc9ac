"""The simulated cuBLASLt through the public table, against numpy in double precision.

Every matrix lies in a buffer of NaN, with room around and between its columns that must stay as it was.
"""

from __future__ import annotations

import ctypes
import itertools
from ctypes import byref, c_float, c_int, c_int8, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

import ml_dtypes
import numpy as np
import pytest

import atomr_sim
from atomr_cuda import SymbolMissing, cublas, cublaslt as lt, driver
from atomr_cuda.cublaslt import (
    cublasComputeType_t as Compute,
    cublasLtEpilogue_t as Epilogue,
    cublasLtMatmulDescAttributes_t as Desc,
    cublasLtMatrixLayoutAttribute_t as Layout,
    cublasLtMatrixTransformDescAttributes_t as Transform,
    cublasLtPointerMode_t as PointerMode,
    cublasStatus_t as Status,
)
from atomr_cuda.library_types import cudaDataType as Type
from atomr_sim.libraries import float8
from support import sim_process as helper
from support.sim_process import run_in_process

pytestmark = pytest.mark.sim_only

INVALID, NOT_SUPPORTED = Status.CUBLAS_STATUS_INVALID_VALUE, Status.CUBLAS_STATUS_NOT_SUPPORTED
NOT_INITIALIZED = Status.CUBLAS_STATUS_NOT_INITIALIZED
N, T, C, CONJG = 0, 1, 2, 3
COL, ROW = 0, 1
GUARD = 256

DTYPES = {
    Type.CUDA_R_16F: np.float16,
    Type.CUDA_R_16BF: ml_dtypes.bfloat16,
    Type.CUDA_R_32F: np.float32,
    Type.CUDA_R_64F: np.float64,
    Type.CUDA_C_32F: np.complex64,
    Type.CUDA_C_64F: np.complex128,
    Type.CUDA_R_8I: np.int8,
    Type.CUDA_R_32I: np.int32,
    Type.CUDA_R_8F_E4M3: ml_dtypes.float8_e4m3fn,
    Type.CUDA_R_8F_E5M2: ml_dtypes.float8_e5m2,
}
F16, BF16, F32, F64 = Type.CUDA_R_16F, Type.CUDA_R_16BF, Type.CUDA_R_32F, Type.CUDA_R_64F
C32, C64, I8, I32 = Type.CUDA_C_32F, Type.CUDA_C_64F, Type.CUDA_R_8I, Type.CUDA_R_32I
E4M3, E5M2 = Type.CUDA_R_8F_E4M3, Type.CUDA_R_8F_E5M2
FP8 = (E4M3, E5M2)

# Arithmetic, scale, A, B, C, D.
HALF = (Compute.CUBLAS_COMPUTE_16F, F16, F16, F16, F16, F16)
SINGLE = (Compute.CUBLAS_COMPUTE_32F, F32, F32, F32, F32, F32)
DOUBLE = (Compute.CUBLAS_COMPUTE_64F, F64, F64, F64, F64, F64)
BRAIN = (Compute.CUBLAS_COMPUTE_32F, F32, BF16, BF16, BF16, BF16)
INTEGER = (Compute.CUBLAS_COMPUTE_32I, I32, I8, I8, I32, I32)
FLOATS = [
    HALF,
    SINGLE,
    DOUBLE,
    BRAIN,
    (Compute.CUBLAS_COMPUTE_32F, F32, F16, F16, F16, F16),
    (Compute.CUBLAS_COMPUTE_32F, F32, F16, F16, F32, F32),
    (Compute.CUBLAS_COMPUTE_32F, F32, BF16, BF16, F32, F32),
    (Compute.CUBLAS_COMPUTE_32F, F32, I8, I8, F32, F32),
    (Compute.CUBLAS_COMPUTE_32F, C32, C32, C32, C32, C32),
    (Compute.CUBLAS_COMPUTE_64F, C64, C64, C64, C64, C64),
]
NARROW = [
    (Compute.CUBLAS_COMPUTE_32F, F32, a, b, c, d)
    for a, b in ((E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3))
    for c, d in ((BF16, BF16), (F16, F16), (F32, F32), (BF16, E4M3), (F16, E4M3))
]


FORMS = list(itertools.product((N, T, C), repeat=2))
ORDERS = list(itertools.product((COL, ROW), repeat=3))


def short(epilogue: Epilogue) -> str:
    return epilogue.name.removeprefix("CUBLASLT_EPILOGUE_")


def name(types) -> str:
    return "-".join(Type(each).name[5:] for each in types[1:]) + "-" + Compute(types[0]).name[15:]


@pytest.fixture(autouse=True)
def context():
    handle = helper.begin()
    yield handle
    driver.cuCtxSetCurrent(handle)
    while driver.cuDevicePrimaryCtxRelease.status(0) == 0:
        pass
    driver.cuCtxSetCurrent(None)


@pytest.fixture
def handle(context):
    made = c_void_p()
    lt.cublasLtCreate(made)
    return made


@pytest.fixture
def rng(request):
    seed = np.random.SeedSequence().entropy % 2**32
    print(f"{request.node.name}: seed {seed}")
    return np.random.default_rng(seed)


def upload(array: np.ndarray) -> int:
    """A copy on the device, at an address that is a multiple of 512."""
    address = helper.allocate(max(array.nbytes, 1))
    helper.write(address, array.tobytes())
    return address


def download(address: int, like: np.ndarray) -> np.ndarray:
    return np.frombuffer(helper.read(address, like.nbytes), like.dtype).reshape(like.shape)


class Buffer:
    """An array on the device, of any strides, in a buffer of NaN (integers: -1) that is larger at both ends."""

    def __init__(self, kind: int, shape, strides, values=None) -> None:
        self.kind, self.dtype = kind, np.dtype(DTYPES[kind])
        self.shape, self.strides = shape, [stride * self.dtype.itemsize for stride in strides]
        room = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True)) + 1
        self.host = np.full(room * self.dtype.itemsize + 2 * GUARD, 0xFF, np.uint8)
        if values is not None:
            self.view(self.host)[...] = values
        self.base = upload(self.host)
        self.address = self.base + GUARD

    def view(self, memory: np.ndarray) -> np.ndarray:
        return np.ndarray(self.shape, self.dtype, memory, GUARD, self.strides)

    @staticmethod
    def wide(values: np.ndarray) -> np.ndarray:
        return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)

    @property
    def values(self) -> np.ndarray:
        """What was put there, as it was rounded."""
        return self.wide(self.view(self.host))

    def raw(self) -> np.ndarray:
        """What is there now, after a check that nothing else was written."""
        now = download(self.base, self.host).copy()
        found = self.view(now).copy()
        self.view(now)[...] = self.view(self.host)
        assert np.array_equal(now, self.host), "bytes outside of the array were written"
        return found

    def result(self) -> np.ndarray:
        return self.wide(self.raw())


class Matrix(Buffer):
    """Matrices of one layout: an array of matrix, row, column, with room between columns and between matrices."""

    def __init__(self, kind, shape, values=None, *, order=COL, pad=16, gap=32, ld=None, stride=None) -> None:
        batch, rows, cols = shape
        inner, outer = (rows, cols) if order == COL else (cols, rows)
        self.ld = inner + pad if ld is None else ld
        self.stride = self.ld * outer + gap if stride is None else stride
        steps = (1, self.ld) if order == COL else (self.ld, 1)
        super().__init__(kind, shape, (self.stride, *steps), values)
        self.layout = c_void_p()
        lt.cublasLtMatrixLayoutCreate(self.layout, kind, rows, cols, self.ld)
        self.set(Layout.CUBLASLT_MATRIX_LAYOUT_ORDER, c_int32(order))
        self.set(Layout.CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, c_int32(batch))
        self.set(Layout.CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, c_int64(self.stride))

    def set(self, number, value) -> None:
        lt.cublasLtMatrixLayoutSetAttribute(self.layout, number, byref(value), ctypes.sizeof(value))


def random(rng, kind, shape) -> np.ndarray:
    if kind == I8:
        return rng.integers(-9, 10, shape)
    if kind == I32:
        return rng.integers(-1000, 1000, shape)
    values = rng.uniform(-1, 1, shape)
    return values + 1j * rng.uniform(-1, 1, shape) if kind in (C32, C64) else values


WIDTHS = {
    Desc.CUBLASLT_MATMUL_DESC_EPILOGUE: c_uint32,
    Desc.CUBLASLT_MATMUL_DESC_FAST_ACCUM: c_int8,
}


def width(number: Desc):
    wide = ("_POINTER", "_STRIDE", "_AUX_LD", "_EMULATION_DESCRIPTOR")
    return WIDTHS.get(number, c_uint64 if number.name.endswith(wide) else c_int32)


class Product:
    """A product of random matrices, with everything that one may want to change before it is computed."""

    def __init__(self, handle, rng, types=SINGLE, shape=(48, 32, 64), form=(N, N), orders=(COL,) * 4, batch=1) -> None:
        self.handle, self.types, self.form = handle, types, form
        self.m, self.n, self.k = m, n, k = shape
        self.batch = batch
        shapes = [(m, k), (k, n), (m, n), (m, n)]
        shapes[:2] = [each if op == N else each[::-1] for each, op in zip(shapes[:2], form, strict=True)]
        shapes = [(batch, *each) for each in shapes]
        self.a, self.b, self.c = (
            Matrix(kind, each, random(rng, kind, each), order=order)
            for kind, each, order in zip(types[2:5], shapes[:3], orders[:3], strict=True)
        )
        self.d = Matrix(types[5], shapes[3], order=orders[3])
        self.real = np.dtype(DTYPES[types[1]])
        self.alpha, self.beta = self.scalar(1), self.scalar(0)
        self.mode = PointerMode.CUBLASLT_POINTER_MODE_HOST
        self.desc = c_void_p()
        lt.cublasLtMatmulDescCreate(self.desc, types[0], types[1])
        self.set("TRANSA", form[0])
        self.set("TRANSB", form[1])
        self.algorithm, self.workspace, self.workspace_size = None, None, 0

    def scalar(self, value) -> np.ndarray:
        return np.array(value, self.real)

    def set(self, what: str, value: int) -> None:
        number = Desc[f"CUBLASLT_MATMUL_DESC_{what}"]
        held = width(number)(value)
        lt.cublasLtMatmulDescSetAttribute(self.desc, number, byref(held), ctypes.sizeof(held))

    @property
    def layouts(self):
        return [each.layout for each in (self.a, self.b, self.c, self.d)]

    def status(self, stream=None, **changed) -> int:
        a, b, c, d = (changed.get(each, getattr(self, each).address) for each in "abcd")
        alpha, beta = self.alpha, self.beta
        return lt.cublasLtMatmul.status(
            *(self.handle, self.desc),
            *(alpha.ctypes.data if isinstance(alpha, np.ndarray) else alpha, a, self.a.layout, b, self.b.layout),
            *(beta.ctypes.data if isinstance(beta, np.ndarray) else beta, c, self.c.layout, d, self.d.layout),
            *(self.algorithm, self.workspace, self.workspace_size, stream),
        )

    def run(self) -> np.ndarray:
        assert self.status() == 0
        assert driver.cuCtxSynchronize.status() == 0
        return self.d.result()

    @property
    def product(self) -> np.ndarray:
        return operated(self.form[0], self.a.values) @ operated(self.form[1], self.b.values)

    def tolerance(self, values: np.ndarray) -> float:
        """Rounding errors of the sums, and one when the result is stored."""
        if self.types[5] == I32:
            return 0.0
        scale = np.float32 if self.types[1] == F16 else DTYPES[self.types[1]]
        sums = 4 * self.k * np.finfo(scale).eps
        # A sum of half precision is rounded too, or two of them are where it is cut.
        stored = (3 if self.types[1] == F16 else 1) * float(ml_dtypes.finfo(DTYPES[self.types[5]]).eps)
        return float((sums + stored) * max(1.0, np.nanmax(np.abs(values))))

    def check(self, expected: np.ndarray) -> None:
        found = self.run()
        assert np.abs(found - expected).max() <= self.tolerance(expected)

    def heuristic(self, room=4, **wanted):
        """Status, number of results, results."""
        preference, count = c_void_p(), c_int(-1)
        lt.cublasLtMatmulPreferenceCreate(preference)
        for what, value in wanted.items():
            number = lt.cublasLtMatmulPreferenceAttributes_t[f"CUBLASLT_MATMUL_PREF_{what}"]
            lt.cublasLtMatmulPreferenceSetAttribute(preference, number, byref(value), ctypes.sizeof(value))
        results = (lt.cublasLtMatmulHeuristicResult_t * max(room, 1))()
        status = lt.cublasLtMatmulAlgoGetHeuristic.status(
            self.handle, self.desc, *self.layouts, preference, room, results, count
        )
        lt.cublasLtMatmulPreferenceDestroy(preference)
        return status, count.value, results

    def refused(self, status: Status) -> None:
        """Neither the heuristics nor the product take it, and nothing is written."""
        assert self.heuristic()[:2] == (status, 0)
        assert self.status() == status
        driver.cuCtxSynchronize()
        assert np.array_equal(self.d.raw().view(np.uint8), self.d.view(self.d.host).copy().view(np.uint8))


def operated(operation: int, values: np.ndarray) -> np.ndarray:
    if operation == N:
        return values
    return values.swapaxes(1, 2).conj() if operation == C else values.swapaxes(1, 2)


# Products.


@pytest.mark.parametrize("types", FLOATS, ids=name)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: "".join("NTC"[each] for each in form))
def test_products_of_every_type_and_form(handle, rng, types, form):
    for batch, orders in ((1, (COL,) * 4), (3, (COL,) * 4), (2, (ROW,) * 4), (1, (ROW, COL, ROW, ROW))):
        if C in form and types[1] in (C32, C64) and len(set(orders)) > 1:
            continue
        product = Product(handle, rng, types, (19, 7, 33), form, orders, batch)
        product.alpha, product.beta = product.scalar(0.75), product.scalar(-1.25)
        alpha, beta = complex(product.alpha), complex(product.beta)
        product.check(alpha * product.product + beta * product.c.values)


@pytest.mark.parametrize("orders", ORDERS, ids=lambda orders: "".join("CR"[each] for each in orders))
def test_every_mixture_of_orders(handle, rng, orders):
    product = Product(handle, rng, SINGLE, (5, 9, 13), (T, N), (*orders, orders[2]))
    product.check(product.product)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 5, 3), (17, 1, 2), (64, 65, 1)])
def test_small_and_odd_sizes(handle, rng, shape):
    product = Product(handle, rng, DOUBLE, shape)
    product.check(product.product)


@pytest.mark.parametrize("types", NARROW, ids=name)
def test_products_of_8_bit_floats(handle, rng, types):
    for batch in (1, 2):
        product = Product(handle, rng, types, form=(T, N), batch=batch)
        product.alpha, product.beta = product.scalar(0.5), product.scalar(0.25)
        product.check(0.5 * product.product + 0.25 * product.c.values)


def test_integers_are_exact(handle, rng):
    product = Product(handle, rng, INTEGER, form=(T, N), batch=2)
    product.beta = product.scalar(1)
    product.check(product.product + product.c.values)


def test_integers_of_8_bits_are_the_nearest_and_saturate(handle, rng):
    types = (Compute.CUBLAS_COMPUTE_32I, F32, I8, I8, I8, I8)
    product = Product(handle, rng, types, form=(T, N))
    product.alpha, product.beta = product.scalar(0.5), product.scalar(1)
    expected = np.clip(np.rint(0.5 * product.product + product.c.values), -128, 127)
    assert np.abs(expected).max() >= 127
    assert np.array_equal(product.run(), expected)


def tf32(x):
    """Eleven significant bits, ties away from zero."""
    fraction, exponent = np.frexp(x)
    return np.copysign(np.ldexp(np.floor(np.abs(fraction) * 2**11 + 0.5), exponent - 11), x)


FAST = {
    Compute.CUBLAS_COMPUTE_32F_FAST_16F: lambda x: x.astype(np.float16).astype(np.float64),
    Compute.CUBLAS_COMPUTE_32F_FAST_16BF: lambda x: x.astype(ml_dtypes.bfloat16).astype(np.float64),
    Compute.CUBLAS_COMPUTE_32F_FAST_TF32: lambda x: tf32(x),
    Compute.CUBLAS_COMPUTE_32F_EMULATED_16BFX9: lambda x: x,
}


@pytest.mark.parametrize("compute", FAST, ids=lambda compute: compute.name[15:])
def test_fast_arithmetics_round_their_inputs(handle, rng, compute):
    product = Product(handle, rng, (compute, *SINGLE[1:]))
    rounded = FAST[compute]
    expected = rounded(product.a.values) @ rounded(product.b.values)
    product.check(expected)
    differs = np.abs(expected - product.product).max() > product.tolerance(expected)
    assert differs == (compute != Compute.CUBLAS_COMPUTE_32F_EMULATED_16BFX9)
    product = Product(handle, rng, (compute, C32, C32, C32, C32, C32), (8, 8, 8))
    a, b = (rounded(each.values.real) + 1j * rounded(each.values.imag) for each in (product.a, product.b))
    product.check(a @ b)


def test_tf32_takes_ties_away_from_zero(handle, rng):
    product = Product(handle, rng, (Compute.CUBLAS_COMPUTE_32F_FAST_TF32, *SINGLE[1:]), (1, 3, 1))
    helper.write(product.a.address, np.float32(1).tobytes())
    tie = np.float32(1 + 2.0**-11)
    for column, value in enumerate((tie, -tie, np.inf)):
        helper.write(product.b.address + column * product.b.ld * 4, np.float32(value).tobytes())
    assert product.run().tolist() == [[[1 + 2.0**-10, -1 - 2.0**-10, np.inf]]]


def test_a_complex_infinity_stays_itself_where_the_factor_is_one(handle, rng):
    product = Product(handle, rng, FLOATS[-1], (1, 1, 1))
    helper.write(product.a.address, np.complex128(complex(np.inf, 0)).tobytes())
    helper.write(product.b.address, np.complex128(1).tobytes())
    assert product.run().real.tolist() == [[[np.inf]]]


# C and D.


def test_c_may_be_d(handle, rng):
    for batch in (1, 2):
        product = Product(handle, rng, batch=batch)
        product.alpha, product.beta = product.scalar(2), product.scalar(3)
        expected = 2 * product.product + 3 * product.c.values
        product.d = product.c
        product.check(expected)


def test_c_is_not_read_where_beta_is_zero(handle, rng):
    product = Product(handle, rng)
    product.c = product.d  # which is all NaN
    product.check(product.product)
    assert product.status(c=None) == 0
    product.beta = product.scalar(1)
    assert product.status(c=None) == INVALID


def test_c_may_be_one_column_for_all(handle, rng):
    product = Product(handle, rng)
    column = random(rng, F32, (1, product.m, 1))
    product.c = Matrix(F32, (1, product.m, product.n), column, ld=0, stride=0)
    product.beta = product.scalar(2)
    product.check(product.product + 2 * product.c.values)


def test_c_lies_as_d_does_where_it_has_no_layout(handle, rng):
    product = Product(handle, rng)
    product.c.layout = None
    product.check(product.product)


def test_one_matrix_may_serve_the_whole_batch(handle, rng):
    product = Product(handle, rng, batch=4)
    product.b = Matrix(F32, (4, product.k, product.n), random(rng, F32, (1, product.k, product.n)), stride=0)
    product.check(product.product)


# Alpha and beta.


def test_factors_on_the_device_are_read_when_the_work_runs(handle, rng):
    product = Product(handle, rng)
    product.set("POINTER_MODE", PointerMode.CUBLASLT_POINTER_MODE_DEVICE)
    product.alpha, product.beta = (upload(np.float32([x])) for x in (7, 9))
    stream, gate = helper.stream(), helper.allocate(8)
    driver.cuMemsetD32(gate, 0, 1)
    driver.cuStreamWaitValue32(stream, gate, 1, driver.CU_STREAM_WAIT_VALUE_EQ)
    assert product.status(stream) == 0
    for address, value in ((product.alpha, 2), (product.beta, 0.5)):
        helper.write(address, np.float32(value).tobytes())
    assert driver.cuStreamQuery.status(stream) == driver.CUresult.CUDA_ERROR_NOT_READY
    c_uint32.from_address(gate).value = 1
    driver.cuStreamSynchronize(stream)
    expected = 2 * product.product + 0.5 * product.c.values
    assert np.abs(product.d.result() - expected).max() <= product.tolerance(expected)


def test_what_lies_on_the_host_is_read_at_the_call(handle, rng):
    product = Product(handle, rng)
    product.alpha = product.scalar(3)
    stream, gate = helper.stream(), helper.allocate(8)
    driver.cuMemsetD32(gate, 0, 1)
    driver.cuStreamWaitValue32(stream, gate, 1, driver.CU_STREAM_WAIT_VALUE_EQ)
    assert product.status(stream) == 0
    product.alpha[...] = 100
    product.set("EPILOGUE", Epilogue.CUBLASLT_EPILOGUE_RELU)
    product.d.set(Layout.CUBLASLT_MATRIX_LAYOUT_LD, c_int64(1000))
    c_uint32.from_address(gate).value = 1
    driver.cuStreamSynchronize(stream)
    expected = 3 * product.product
    assert np.abs(product.d.result() - expected).max() <= product.tolerance(expected)


@pytest.mark.parametrize("mode", [2, 3, 4], ids=["vectors", "alpha-vector-beta-zero", "alpha-vector-beta-host"])
@pytest.mark.parametrize("order", [COL, ROW])
def test_alpha_and_beta_may_differ_by_row(handle, rng, mode, order):
    product = Product(handle, rng, orders=(COL, COL, order, order), batch=2)
    product.set("POINTER_MODE", mode)
    alpha, beta = random(rng, F32, (2, product.m)).astype(np.float32), random(rng, F32, product.m).astype(np.float32)
    beta[::2] = 0
    if mode == 4:
        product.set("ALPHA_VECTOR_BATCH_STRIDE", product.m)
    else:
        alpha = alpha[:1]
    product.alpha = upload(alpha)
    product.beta = {2: upload(beta), 3: None, 4: product.scalar(-2)}[mode]
    by_row = {2: beta[:, None], 3: 0, 4: -2}[mode]
    product.check(alpha[:, :, None] * product.product + by_row * product.c.values)


def test_a_beta_of_zero_on_the_device_does_not_read_c(handle, rng):
    product = Product(handle, rng)
    product.set("POINTER_MODE", PointerMode.CUBLASLT_POINTER_MODE_DEVICE_VECTOR)
    beta = np.zeros(product.m, np.float32)
    beta[0] = 1
    product.alpha, product.beta = upload(np.ones(product.m, np.float32)), upload(beta)
    product.c = Matrix(F32, product.d.shape)  # all NaN
    found = product.run()
    assert np.isnan(found[:, 0]).all()
    assert np.abs(found[:, 1:] - product.product[:, 1:]).max() < 1e-4


# Epilogues.


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_gradient(x, h=1e-30):
    """By a step along the imaginary axis, which cancels nothing."""
    return gelu(x + h * 1j).imag / h


EPILOGUE_TYPES = {
    HALF: F16,
    SINGLE: F32,
    DOUBLE: F64,
    BRAIN: BF16,
    (Compute.CUBLAS_COMPUTE_32F, F32, BF16, BF16, F32, F32): F32,
    (Compute.CUBLAS_COMPUTE_32F, F32, E4M3, E4M3, F32, F32): BF16,
    (Compute.CUBLAS_COMPUTE_32F, F32, E4M3, E5M2, BF16, BF16): BF16,
}
ACTIVATIONS = {"RELU": lambda x: np.maximum(x, 0), "GELU": gelu}


class Aux(Buffer):
    """Room for the activation's arguments, or for their signs as bits."""

    def __init__(self, product: Product, bits: bool, values=None) -> None:
        batch, m, n = product.d.shape
        self.ld = (m // 128 + 2) * 128 if bits else m + 8
        self.step = self.ld * n + 128
        if bits:
            steps = (self.step // 8, self.ld // 8, 1)
            packed = None if values is None else np.packbits(values.swapaxes(1, 2), axis=-1, bitorder="little")
            super().__init__(I8, (batch, n, m // 8), steps, None if packed is None else packed.view(np.int8))
        else:
            super().__init__(product.types[5], (batch, m, n), (self.step, 1, self.ld), values)
        product.set("EPILOGUE_AUX_POINTER", self.address)
        product.set("EPILOGUE_AUX_LD", self.ld)
        product.set("EPILOGUE_AUX_BATCH_STRIDE", self.step)

    def bits(self) -> np.ndarray:
        """The mask, as matrix, row, column."""
        return np.unpackbits(self.raw().view(np.uint8), axis=-1, bitorder="little").swapaxes(1, 2).astype(bool)


def bias_of(product: Product, length: int, values=None) -> Buffer:
    bias = Buffer(EPILOGUE_TYPES[product.types], (product.batch, length), (length + 8, 1), values)
    product.set("BIAS_POINTER", bias.address)
    product.set("BIAS_BATCH_STRIDE", length + 8)
    return bias


def prepared(handle, rng, types, epilogue: Epilogue, batch=2) -> Product:
    product = Product(handle, rng, types, form=(T, N), batch=batch)
    product.set("EPILOGUE", epilogue)
    product.alpha, product.beta = product.scalar(0.5), product.scalar(0.5)
    return product


@pytest.mark.parametrize("types", EPILOGUE_TYPES, ids=name)
@pytest.mark.parametrize("epilogue", [each for each in Epilogue if each & (2 | 4 | 32)], ids=short)
def test_activations(handle, rng, types, epilogue):
    product = prepared(handle, rng, types, epilogue)
    expected = 0.5 * product.product + 0.5 * product.c.values
    if epilogue & 4:
        expected = expected + bias_of(product, product.m, random(rng, F32, (2, product.m))).values[:, :, None]
    aux = Aux(product, bits=bool(epilogue & 2)) if epilogue & 128 else None
    argument = expected
    for each, activation in ACTIVATIONS.items():
        expected = activation(expected) if each in epilogue.name else expected
    product.check(expected)
    if aux is not None and epilogue & 2:
        sure = np.abs(argument) > product.tolerance(argument)
        assert np.array_equal(aux.bits()[sure], (argument > 0)[sure])
        assert sure.mean() > 0.9
    elif aux is not None:
        assert np.abs(aux.result() - argument).max() <= product.tolerance(argument)


@pytest.mark.parametrize("types", [each for each in EPILOGUE_TYPES if each[2] not in FP8], ids=name)
@pytest.mark.parametrize("epilogue", [each for each in Epilogue if each & (8 | 64)], ids=short)
def test_gradients_of_activations(handle, rng, types, epilogue):
    product = prepared(handle, rng, types, epilogue)
    arguments = random(rng, F32, product.d.shape) * 3
    if epilogue & 8:
        Aux(product, bits=True, values=arguments > 0)
        slope = (arguments > 0).astype(float)
    else:
        slope = gelu_gradient(Aux(product, bits=False, values=arguments).values)
    bias = bias_of(product, product.m) if epilogue & 16 else None
    expected = slope * (0.5 * product.product + 0.5 * product.c.values)
    product.check(expected)
    if bias is not None:
        sums = expected.sum(axis=2)
        assert np.abs(bias.result() - sums).max() <= 2 * product.tolerance(sums)


@pytest.mark.parametrize("types", [each for each in EPILOGUE_TYPES if each[2] not in FP8], ids=name)
@pytest.mark.parametrize("epilogue", [Epilogue.CUBLASLT_EPILOGUE_BGRADA, Epilogue.CUBLASLT_EPILOGUE_BGRADB])
def test_gradients_of_the_bias_from_a_factor(handle, rng, types, epilogue):
    product = prepared(handle, rng, types, epilogue)
    of_a = epilogue == Epilogue.CUBLASLT_EPILOGUE_BGRADA
    bias = bias_of(product, product.m if of_a else product.n)
    product.check(0.5 * product.product + 0.5 * product.c.values)
    sums = operated(T, product.a.values).sum(axis=2) if of_a else product.b.values.sum(axis=1)
    assert np.abs(bias.result() - sums).max() <= product.tolerance(sums)


@pytest.mark.parametrize("epilogue", [2, 4, 32])
def test_epilogues_by_rows_of_memory(handle, rng, epilogue):
    product = Product(handle, rng, orders=(ROW,) * 4)
    product.set("EPILOGUE", epilogue)
    expected = product.product
    if epilogue == 4:
        vector = random(rng, F32, product.m).astype(np.float32)
        product.set("BIAS_POINTER", upload(vector))
        expected = expected + vector[:, None]
    product.check({2: ACTIVATIONS["RELU"], 4: lambda x: x, 32: gelu}[epilogue](expected))


def test_one_bias_may_serve_the_whole_batch(handle, rng):
    product = Product(handle, rng, batch=3)
    product.set("EPILOGUE", Epilogue.CUBLASLT_EPILOGUE_BIAS)
    vector = random(rng, F32, product.m).astype(np.float32)
    product.set("BIAS_POINTER", upload(vector))
    product.check(product.product + vector[:, None])


# Floats of 8 bits.


@pytest.mark.parametrize(
    ("element", "dtype"), [(float8.E4M3, ml_dtypes.float8_e4m3fn), (float8.E5M2, ml_dtypes.float8_e5m2)]
)
def test_every_8_bit_float(element, dtype, rng):
    codes = np.arange(256, dtype=np.uint8)
    numbers = codes.view(dtype).astype(np.float32)
    assert np.array_equal(element.widen(codes), numbers, equal_nan=True)
    finite = np.sort(numbers[np.isfinite(numbers)])
    ties = (finite[1:] + finite[:-1]) / 2
    many = np.ldexp(rng.normal(size=100_000), rng.integers(-20, 20, 100_000))
    values = np.concatenate([finite, ties, np.nextafter(ties, np.float32(np.inf)), many]).astype(np.float32)
    largest = float(ml_dtypes.finfo(dtype).max)
    assert np.array_equal(element.round(values), np.clip(values, -largest, largest).astype(dtype).view(np.uint8))
    edges = np.float32([np.inf, -np.inf, 1e9, -1e9])
    assert element.widen(element.round(edges)).tolist() == [largest, -largest] * 2
    assert np.isnan(element.widen(element.round(np.float32([np.nan]))))[0]


def test_scales_and_maxima_of_8_bit_floats(handle, rng):
    types = (Compute.CUBLAS_COMPUTE_32F, F32, E4M3, E4M3, F16, E4M3)
    product = Product(handle, rng, types, form=(T, N))
    product.beta = product.scalar(0.5)
    product.set("EPILOGUE", Epilogue.CUBLASLT_EPILOGUE_GELU_AUX)
    aux = Aux(product, bits=False)
    for what, value in {"A_": 3, "B_": 0.25, "C_": 2, "D_": 400, "EPILOGUE_AUX_": 16}.items():
        product.set(f"{what}SCALE_POINTER", upload(np.float32([value])))
    maxima = {what: upload(np.float32([-1])) for what in ("AMAX_D_POINTER", "EPILOGUE_AUX_AMAX_POINTER")}
    for what, address in maxima.items():
        product.set(what, address)
    argument = 0.75 * product.product + 0.5 * 2 * product.c.values
    largest = float(ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).max)
    found = product.run()
    assert np.abs(found).max() == largest
    for stored, exact in ((found, 400 * gelu(argument)), (aux.result(), 16 * argument)):
        exact = np.clip(exact, -largest, largest)
        assert (np.abs(stored - exact) <= 0.07 * np.abs(exact) + 2.0**-9).all()
    for address, exact in zip(maxima.values(), (gelu(argument), argument), strict=True):
        assert download(address, np.zeros(1, np.float32))[0] == pytest.approx(np.abs(exact).max(), rel=1e-5)


def test_scales_by_row_and_column(handle, rng):
    product = Product(handle, rng, (Compute.CUBLAS_COMPUTE_32F, F32, E5M2, E4M3, BF16, BF16), form=(T, N))
    a, b = (rng.uniform(-2, 2, length).astype(np.float32) for length in (product.m, product.n))
    for what, scale in (("A", a), ("B", b)):
        product.set(f"{what}_SCALE_POINTER", upload(scale))
        product.set(f"{what}_SCALE_MODE", lt.cublasLtMatmulMatrixScale_t.CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F)
    product.check(a[:, None] * b * product.product)


# What is refused.

TN = (T, N)
NARROWEST = NARROW[0]
STORED = (Compute.CUBLAS_COMPUTE_32F, F32, E4M3, E4M3, F16, E4M3)


def changed(**attributes):
    def change(product: Product) -> None:
        for what, value in attributes.items():
            product.set(what, value)

    return change


def relaid(matrix: str, number: str, value):
    return lambda product: getattr(product, matrix).set(Layout[f"CUBLASLT_MATRIX_LAYOUT_{number}"], value)


def with_aux(**attributes):
    def change(product: Product) -> None:
        Aux(product, bits=attributes.pop("bits", False))
        changed(**attributes)(product)

    return change


# Types, form, what is changed (None: it is refused as it is), the status.
REFUSED = {
    "rows of A and of D": (SINGLE, (N, N), relaid("a", "ROWS", c_uint64(47)), INVALID),
    "sums of two lengths": (SINGLE, (N, N), relaid("b", "ROWS", c_uint64(63)), INVALID),
    "nothing to add": (SINGLE, (N, N), relaid("a", "COLS", c_uint64(0)), INVALID),
    "D too narrow": (SINGLE, (N, N), relaid("d", "COLS", c_uint64(31)), INVALID),
    "columns overlap": (SINGLE, (N, N), relaid("a", "LD", c_int64(47)), INVALID),
    "columns of D overlap": (SINGLE, (N, N), relaid("d", "LD", c_int64(0)), INVALID),
    "two batches": (SINGLE, (N, N), relaid("b", "BATCH_COUNT", c_int32(2)), INVALID),
    "no batch": (SINGLE, (N, N), relaid("b", "BATCH_COUNT", c_int32(0)), INVALID),
    "C by rows": (SINGLE, (N, N), relaid("c", "ORDER", c_int32(ROW)), INVALID),
    "matrices backwards": (SINGLE, (N, N), relaid("a", "STRIDED_BATCH_OFFSET", c_int64(-4096)), INVALID),
    "tiles": (SINGLE, (N, N), relaid("a", "ORDER", c_int32(2)), NOT_SUPPORTED),
    "planes": (SINGLE, (N, N), relaid("a", "PLANE_OFFSET", c_int64(4096)), NOT_SUPPORTED),
    "arrays of pointers": (SINGLE, (N, N), relaid("a", "BATCH_MODE", c_uint32(1)), NOT_SUPPORTED),
    "two types of factors": (SINGLE, (N, N), relaid("a", "TYPE", c_uint32(F16)), NOT_SUPPORTED),
    "a type that nobody has": (SINGLE, (N, N), relaid("a", "TYPE", c_uint32(99)), NOT_SUPPORTED),
    "half scale": (SINGLE, (N, N), changed(SCALE_TYPE=F16), NOT_SUPPORTED),
    "half sums": (BRAIN, (N, N), changed(COMPUTE_TYPE=Compute.CUBLAS_COMPUTE_16F), NOT_SUPPORTED),
    "conjugate alone": (SINGLE, (N, N), changed(TRANSA=CONJG), NOT_SUPPORTED),
    "transposed C": (SINGLE, (N, N), changed(TRANSC=T), NOT_SUPPORTED),
    "half of D": (SINGLE, (N, N), changed(FILL_MODE=0), NOT_SUPPORTED),
    "pointer mode": (SINGLE, (N, N), changed(POINTER_MODE=9), INVALID),
    "stride of no vector": (SINGLE, (N, N), changed(ALPHA_VECTOR_BATCH_STRIDE=48), INVALID),
    "no epilogue at all": (SINGLE, (N, N), changed(EPILOGUE=0), NOT_SUPPORTED),
    "parts of epilogues": (SINGLE, (N, N), changed(EPILOGUE=2 | 32), NOT_SUPPORTED),
    "activated integers": (INTEGER, TN, changed(EPILOGUE=2), NOT_SUPPORTED),
    "type of bias": (SINGLE, (N, N), changed(EPILOGUE=4, BIAS_DATA_TYPE=F16), NOT_SUPPORTED),
    "type of bias of fp8": (STORED, TN, changed(EPILOGUE=4, BIAS_DATA_TYPE=E4M3), NOT_SUPPORTED),
    "bias that lies askew": (SINGLE, (N, N), changed(EPILOGUE=4, BIAS_POINTER=0x1002), NOT_SUPPORTED),
    "bias backwards": (SINGLE, (N, N), changed(EPILOGUE=4, BIAS_BATCH_STRIDE=-64), INVALID),
    "bits too short": (SINGLE, (N, N), with_aux(bits=True, EPILOGUE=130, EPILOGUE_AUX_LD=0), NOT_SUPPORTED),
    "bits off the boundary": (SINGLE, (N, N), with_aux(bits=True, EPILOGUE=130, EPILOGUE_AUX_LD=192), NOT_SUPPORTED),
    "aux off the boundary": (SINGLE, (N, N), with_aux(EPILOGUE=160, EPILOGUE_AUX_LD=52), NOT_SUPPORTED),
    "aux stride off the boundary": (SINGLE, (N, N), with_aux(EPILOGUE=160, EPILOGUE_AUX_BATCH_STRIDE=4), NOT_SUPPORTED),
    "aux backwards": (SINGLE, (N, N), with_aux(EPILOGUE=160, EPILOGUE_AUX_BATCH_STRIDE=-128), NOT_SUPPORTED),
    "aux that lies askew": (SINGLE, (N, N), with_aux(EPILOGUE=160, EPILOGUE_AUX_POINTER=0x1008), NOT_SUPPORTED),
    "type of aux": (SINGLE, (N, N), with_aux(EPILOGUE=160, EPILOGUE_AUX_DATA_TYPE=F16), INVALID),
    "type of bits": (SINGLE, (N, N), with_aux(bits=True, EPILOGUE=130, EPILOGUE_AUX_DATA_TYPE=F32), INVALID),
    "type of aux of fp8": (STORED, TN, with_aux(EPILOGUE=164, EPILOGUE_AUX_DATA_TYPE=F16), INVALID),
    "scale of single": (SINGLE, (N, N), changed(A_SCALE_POINTER=0x1000), INVALID),
    "scale of C alone": (SINGLE, (N, N), changed(C_SCALE_POINTER=0x1000), INVALID),
    "scale of a wide D": (NARROWEST, TN, changed(D_SCALE_POINTER=0x1000), INVALID),
    "maximum of a wide D": (NARROWEST, TN, changed(AMAX_D_POINTER=0x1000), INVALID),
    "maximum of no aux": (STORED, TN, changed(EPILOGUE_AUX_AMAX_POINTER=0x1000), INVALID),
    "scales out": (STORED, TN, changed(D_OUT_SCALE_POINTER=0x1000), INVALID),
    "scales of D by row": (NARROWEST, TN, changed(D_SCALE_MODE=3), NOT_SUPPORTED),
    "scales by block": (NARROWEST, TN, changed(A_SCALE_MODE=2, B_SCALE_MODE=2), NOT_SUPPORTED),
    "scales of one factor by row": (NARROWEST, TN, changed(A_SCALE_MODE=3), NOT_SUPPORTED),
    "scales by row of a narrow D": (STORED, TN, changed(A_SCALE_MODE=3, B_SCALE_MODE=3), NOT_SUPPORTED),
    "scales by row of single": (SINGLE, (N, N), changed(A_SCALE_MODE=3, B_SCALE_MODE=3), NOT_SUPPORTED),
    "fp8, not transposed": (NARROWEST, (N, N), None, NOT_SUPPORTED),
    "fp8, both transposed": (NARROWEST, (T, T), None, NOT_SUPPORTED),
    "fp8 in half sums": (NARROWEST, TN, changed(COMPUTE_TYPE=Compute.CUBLAS_COMPUTE_16F), NOT_SUPPORTED),
    "fp8 in fast sums": (NARROWEST, TN, changed(COMPUTE_TYPE=Compute.CUBLAS_COMPUTE_32F_FAST_TF32), NOT_SUPPORTED),
    "fp8 off the boundary": (NARROWEST, TN, relaid("a", "LD", c_int64(72)), NOT_SUPPORTED),
    "fp8 by rows": (NARROWEST, TN, relaid("a", "ORDER", c_int32(ROW)), NOT_SUPPORTED),
    "gradient of fp8 A": (NARROWEST, TN, changed(EPILOGUE=256), NOT_SUPPORTED),
    "two wide factors": ((Compute.CUBLAS_COMPUTE_32F, F32, E5M2, E5M2, F16, F16), TN, None, NOT_SUPPORTED),
    "integers, not transposed": (INTEGER, (N, N), None, NOT_SUPPORTED),
    "integers off the boundary": (INTEGER, TN, relaid("b", "LD", c_int64(65)), NOT_SUPPORTED),
    "integers by vectors": (INTEGER, TN, changed(POINTER_MODE=2), NOT_SUPPORTED),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_listed_is_refused(handle, rng, case):
    types, form, change, status = REFUSED[case]
    product = Product(handle, rng, types, form=form)
    if change is not None:
        assert product.heuristic()[0] == 0
        change(product)
    product.refused(status)


@pytest.mark.parametrize("empty", ["rows", "columns", "sums"])
def test_empty_matrices_are_refused(handle, rng, empty):
    product = Product(handle, rng)
    number = {"a": {"rows": "ROWS", "sums": "COLS"}, "b": {"sums": "ROWS", "columns": "COLS"}}
    number["c"] = number["d"] = {"rows": "ROWS", "columns": "COLS"}
    for matrix, names in number.items():
        if empty in names:
            relaid(matrix, names[empty], c_uint64(0))(product)
    product.refused(INVALID)


@pytest.mark.parametrize("epilogue", [6, 36, 130, 136, 152, 160, 192])
def test_activations_with_more_beside_them_are_not_for_rows_of_memory(handle, rng, epilogue):
    product = Product(handle, rng, orders=(ROW,) * 4)
    Aux(product, bits=bool(epilogue & 10))
    product.set("EPILOGUE", epilogue)
    product.refused(NOT_SUPPORTED)


def test_conjugates_are_not_for_mixed_orders(handle, rng):
    types = FLOATS[-1]
    Product(handle, rng, types, form=(C, N), orders=(ROW,) * 4).run()
    Product(handle, rng, types, form=(T, N), orders=(ROW, COL, COL, COL)).run()
    Product(handle, rng, types, form=(C, N), orders=(ROW, COL, COL, COL)).refused(NOT_SUPPORTED)


def test_results_of_a_batch_need_places_of_their_own(handle, rng):
    product = Product(handle, rng, batch=2)
    product.d.set(Layout.CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, c_int64(0))
    product.refused(INVALID)
    product = prepared(handle, rng, SINGLE, Epilogue.CUBLASLT_EPILOGUE_BGRADA)
    bias_of(product, product.m)
    product.set("BIAS_BATCH_STRIDE", 0)
    product.refused(NOT_SUPPORTED)
    product = prepared(handle, rng, SINGLE, Epilogue.CUBLASLT_EPILOGUE_GELU_AUX)
    Aux(product, bits=False)
    product.set("EPILOGUE_AUX_BATCH_STRIDE", 0)
    product.refused(NOT_SUPPORTED)


def test_addresses_are_checked_at_the_call(handle, rng):
    product = Product(handle, rng)
    assert product.status(a=None) == product.status(d=None) == product.status(b=product.b.address + 2) == INVALID
    product.d.set(Layout.CUBLASLT_MATRIX_LAYOUT_LD, c_int64(product.d.ld + 1))
    assert product.status(c=product.d.address) == INVALID  # in place, in another layout
    narrow = Product(handle, rng, NARROWEST, form=TN)
    assert narrow.status(a=narrow.a.address + 8) == NOT_SUPPORTED
    for epilogue in (4, 160):
        product = Product(handle, rng)
        Aux(product, bits=False)
        product.set("EPILOGUE_AUX_POINTER", 0)
        product.set("EPILOGUE", epilogue)
        assert (product.heuristic()[0], product.status()) == (0, INVALID)


def test_factors_are_checked_at_the_call(handle, rng):
    product = Product(handle, rng)
    product.alpha = None
    assert product.status() == INVALID
    product = Product(handle, rng, INTEGER, form=TN)
    product.alpha = product.scalar(2)
    assert product.status() == NOT_SUPPORTED


# Heuristics and algorithms.


def test_the_heuristics_propose_what_fits_the_workspace(handle, rng):
    product = Product(handle, rng, batch=2)
    assert product.heuristic()[:2] == (0, 1)
    status, count, results = product.heuristic(MAX_WORKSPACE_BYTES=c_uint64(1 << 20))
    needed = 2 * 2 * product.m * product.n * 4
    assert (status, count) == (0, 2)
    assert [(each.workspaceSize, each.state) for each in results[:2]] == [(needed, 0), (0, 0)]
    assert results[0].wavesCount == 2 * results[1].wavesCount > 0
    assert product.heuristic(1, MAX_WORKSPACE_BYTES=c_uint64(1 << 20))[1] == 1
    assert product.heuristic(MAX_WORKSPACE_BYTES=c_uint64(needed - 1))[1] == 1
    whole = {"MAX_WORKSPACE_BYTES": c_uint64(needed), "REDUCTION_SCHEME_MASK": c_uint32(1)}
    assert product.heuristic(**whole)[2][0].workspaceSize == 0


def test_the_heuristics_refuse_preferences_that_nothing_fits(handle, rng):
    product = Product(handle, rng)
    flags = lt.CUBLASLT_NUMERICAL_IMPL_FLAGS_HMMA | lt.CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_TYPE_MASK
    for wanted in (
        {"MIN_ALIGNMENT_A_BYTES": c_uint32(2)},
        {"SEARCH_MODE": c_uint32(1)},
        {"IMPL_MASK": c_uint64(flags)},
        {"MAX_WAVES_COUNT": c_float(0.5)},
    ):
        assert product.heuristic(**wanted)[:2] == (NOT_SUPPORTED, 0)
    assert product.heuristic(MIN_ALIGNMENT_A_BYTES=c_uint32(4))[:2] == (0, 1)
    assert Product(handle, rng, NARROWEST, form=TN).heuristic(MIN_ALIGNMENT_B_BYTES=c_uint32(8))[0] == NOT_SUPPORTED
    assert product.heuristic(0)[0] == INVALID


@pytest.mark.parametrize("types", [SINGLE, HALF, INTEGER, DOUBLE], ids=name)
def test_an_algorithm_uses_the_workspace_that_it_asks_for(handle, rng, types):
    product = Product(handle, rng, types, form=TN, batch=2)
    found = product.heuristic(MAX_WORKSPACE_BYTES=c_uint64(1 << 20))[2][0]
    room = np.full(found.workspaceSize + 512, 0xFF, np.uint8)
    product.algorithm, product.workspace = ctypes.addressof(found.algo), upload(room)
    product.workspace_size = found.workspaceSize
    product.check(product.product)
    used = download(product.workspace, room)
    assert (used[-512:] == 0xFF).all()
    assert not (used[: found.workspaceSize] == 0xFF).all()
    product.workspace_size -= 1
    assert product.status() == INVALID
    product.workspace_size += 1
    product.workspace += 128
    assert product.status() == INVALID
    product.workspace = None
    assert product.status() == INVALID


def test_algorithms_by_their_numbers(handle, rng):
    numbers, count, algorithm = (c_int * 8)(), c_int(), lt.cublasLtMatmulAlgo_t()
    lt.cublasLtMatmulAlgoGetIds(handle, *SINGLE, 8, numbers, count)
    assert count.value == 1
    lt.cublasLtMatmulAlgoInit(handle, *SINGLE, numbers[0], algorithm)
    product = Product(handle, rng)
    product.algorithm = ctypes.addressof(algorithm)
    product.check(product.product)
    result = lt.cublasLtMatmulHeuristicResult_t()
    splits = c_int32(4)
    config = lt.cublasLtMatmulAlgoConfigAttributes_t
    lt.cublasLtMatmulAlgoConfigSetAttribute(byref(algorithm), config.CUBLASLT_ALGO_CONFIG_SPLITK_NUM, byref(splits), 4)
    check = (handle, product.desc, *product.layouts, algorithm, result)
    assert lt.cublasLtMatmulAlgoCheck.status(*check) == INVALID  # and no way to add the parts
    scheme = c_uint32(lt.cublasLtReductionScheme_t.CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
    number = config.CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME
    lt.cublasLtMatmulAlgoConfigSetAttribute(byref(algorithm), number, byref(scheme), 4)
    lt.cublasLtMatmulAlgoCheck(*check)
    assert result.workspaceSize == 4 * product.m * product.n * 4
    assert product.status() == INVALID
    assert lt.cublasLtMatmulAlgoConfigSetAttribute.status(byref(algorithm), 0, byref(splits), 4) == INVALID
    for wrong in (0, product.k + 1):
        number = config.CUBLASLT_ALGO_CONFIG_SPLITK_NUM
        lt.cublasLtMatmulAlgoConfigSetAttribute(byref(algorithm), number, byref(c_int32(wrong)), 4)
        assert lt.cublasLtMatmulAlgoCheck.status(*check) == INVALID
    assert lt.cublasLtMatmulAlgoCheck.status(*check[:-1], None) == INVALID
    assert lt.cublasLtMatmulAlgoGetIds.status(handle, *SINGLE, 0, numbers, count) == INVALID
    assert lt.cublasLtMatmulAlgoInit.status(handle, *SINGLE, 5, algorithm) == INVALID
    assert lt.cublasLtMatmulAlgoInit.status(handle, *SINGLE[:5], F16, 0, algorithm) == NOT_SUPPORTED
    lt.cublasLtMatmulAlgoGetIds(handle, *SINGLE[:5], F16, 8, numbers, count)
    assert count.value == 0


def test_an_algorithm_is_for_its_types_and_may_be_copied(handle, rng):
    product, other = Product(handle, rng), Product(handle, rng, DOUBLE)
    algorithm = lt.cublasLtMatmulAlgo_t.from_buffer_copy(product.heuristic()[2][0].algo)
    product.algorithm = other.algorithm = ctypes.addressof(algorithm)
    product.check(product.product)
    assert other.status() == INVALID
    other.algorithm = ctypes.addressof(lt.cublasLtMatmulAlgo_t())
    assert other.status() == INVALID


def capability(algorithm, what: str, kind=c_uint32) -> int:
    value, written = kind(), c_size_t()
    number = lt.cublasLtMatmulAlgoCapAttributes_t[f"CUBLASLT_ALGO_CAP_{what}"]
    lt.cublasLtMatmulAlgoCapGetAttribute(byref(algorithm), number, byref(value), ctypes.sizeof(value), written)
    assert written.value == ctypes.sizeof(value)
    return value.value


def test_what_an_algorithm_can(handle):
    algorithm = lt.cublasLtMatmulAlgo_t()
    lt.cublasLtMatmulAlgoInit(handle, *NARROWEST, 0, algorithm)
    assert capability(algorithm, "STRIDED_BATCH_SUPPORT") == capability(algorithm, "SPLITK_SUPPORT") == 1
    assert capability(algorithm, "POINTER_ARRAY_BATCH_SUPPORT") == capability(algorithm, "TILE_IDS") == 0
    assert capability(algorithm, "MIN_ALIGNMENT_A_BYTES") == 16
    assert capability(algorithm, "POINTER_MODE_MASK") == 31
    assert all(capability(algorithm, "EPILOGUE_MASK") & each == each for each in Epilogue)
    flags = capability(algorithm, "NUMERICAL_IMPL_FLAGS", c_uint64)
    assert flags == (
        lt.CUBLASLT_NUMERICAL_IMPL_FLAGS_HMMA
        | lt.CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_32F
        | lt.CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_8F_E4M3
    )
    assert lt.cublasLtMatmulAlgoCapGetAttribute.status(byref(algorithm), 99, byref(c_int()), 4, None) == INVALID


# Changes of layout.


def transformed(handle, scale, matrices, factors, form=(N, N), mode=0) -> int:
    """The status of a change of layout; a factor or a matrix of None has no address."""
    *terms, result = matrices
    desc = c_void_p()
    lt.cublasLtMatrixTransformDescCreate(desc, scale)
    for what, value in zip(("TRANSA", "TRANSB", "POINTER_MODE"), (*form, mode), strict=True):
        number = Transform[f"CUBLASLT_MATRIX_TRANSFORM_DESC_{what}"]
        lt.cublasLtMatrixTransformDescSetAttribute(desc, number, byref(c_int32(value)), 4)
    given = [None if each is None else np.array(each, DTYPES[scale]) for each in factors]
    place = upload if mode == 1 else lambda factor: factor.ctypes.data
    addresses = [None if each is None else place(each) for each in given]
    a, b = ((None, None) if each is None else (each.address, each.layout) for each in terms)
    status = lt.cublasLtMatrixTransform.status(
        handle, desc, addresses[0], *a, addresses[1], *b, result.address, result.layout, None
    )
    lt.cublasLtMatrixTransformDescDestroy(desc)
    driver.cuCtxSynchronize()
    return status


@pytest.mark.parametrize("kind", [F32, F64, F16, BF16, C64, I8, I32], ids=lambda kind: Type(kind).name)
@pytest.mark.parametrize("orders", ORDERS, ids=lambda orders: "".join("CR"[each] for each in orders))
def test_layouts_change(handle, rng, kind, orders):
    scale = {F64: F64, C64: C64}.get(kind, F32)
    for form, mode, batch in (((N, N), 0, 1), ((T, N), 1, 2), ((C, T), 0, 2)):
        shapes = [(batch, 9, 5) if op == N else (batch, 5, 9) for op in (*form, N)]
        a, b = (Matrix(kind, shapes[i], random(rng, kind, shapes[i]), order=orders[i]) for i in (0, 1))
        c = Matrix(kind, shapes[2], order=orders[2])
        assert transformed(handle, scale, (a, b, c), (2, -3), form, mode) == 0
        expected = 2 * operated(form[0], a.values) - 3 * operated(form[1], b.values)
        tolerance = 0 if kind in (I8, I32) else 8 * float(ml_dtypes.finfo(DTYPES[kind]).eps)
        assert np.abs(c.result() - expected).max() <= tolerance


def test_a_layout_changes_without_a_second_matrix(handle, rng):
    a, c = Matrix(F32, (1, 4, 6), random(rng, F32, (1, 4, 6))), Matrix(F16, (1, 6, 4), order=ROW)
    assert transformed(handle, F32, (a, None, c), (1, 0), (T, N)) == 0
    assert np.array_equal(c.raw()[0], a.values[0].T.astype(np.float16))
    assert transformed(handle, F32, (a, None, c), (1, 1), (T, N)) == INVALID
    assert transformed(handle, F32, (a, None, c), (1, 0)) == INVALID
    assert transformed(handle, F64, (a, None, c), (1, 0), (T, N)) == NOT_SUPPORTED
    assert transformed(handle, F32, (a, None, c), (1, 0), (T, N), mode=2) == NOT_SUPPORTED


def test_integers_of_other_sizes(handle, rng):
    a, c = Matrix(I32, (1, 4, 6), random(rng, I32, (1, 4, 6))), Matrix(I8, (1, 4, 6))
    assert transformed(handle, I32, (a, None, c), (3, 0)) == 0
    assert np.array_equal(c.result(), np.clip(3 * a.values, -128, 127))
    back = Matrix(I32, (1, 4, 6))
    assert transformed(handle, F32, (c, a, back), (2.5, -1)) == 0
    assert np.array_equal(back.result(), np.rint(2.5 * np.clip(3 * a.values, -128, 127) - a.values))


def test_changes_of_layout_that_are_refused(handle, rng):
    a, b, c = (Matrix(F32, (2, 4, 6), random(rng, F32, (2, 4, 6))) for _ in range(3))
    assert transformed(handle, F32, (a, b, c), (1, 2)) == 0
    assert transformed(handle, F32, (a, b, c), (1, None)) == INVALID
    assert transformed(handle, F32, (a, None, c), (1, None)) == 0
    assert transformed(handle, F32, (a, None, c), (1, 0), mode=1) == INVALID  # the library cannot see that it is 0
    assert transformed(handle, F32, (a, Matrix(F32, (1, 4, 6)), c), (1, 1)) == INVALID
    assert transformed(handle, F32, (a, Matrix(F64, (2, 4, 6)), c), (1, 1)) == NOT_SUPPORTED
    assert transformed(handle, F32, (a, b, Matrix(F64, (2, 4, 6))), (1, 1)) == NOT_SUPPORTED
    assert transformed(handle, F16, (a, b, c), (1, 1)) == NOT_SUPPORTED
    assert transformed(handle, F32, (a, b, c), (1, 1), (CONJG, N)) == NOT_SUPPORTED
    nowhere = Matrix(F32, (2, 4, 6))
    nowhere.address = None
    assert transformed(handle, F32, (a, b, nowhere), (1, 1)) == INVALID
    a.set(Layout.CUBLASLT_MATRIX_LAYOUT_ORDER, c_int32(2))
    assert transformed(handle, F32, (a, b, c), (1, 1)) == NOT_SUPPORTED


# Descriptors.

DESCRIPTORS = {
    "MatrixLayout": ((F32, 3, 5, 7), lt.cublasLtMatrixLayoutOpaque_t, 4, c_int64, 7),
    "MatmulDesc": ((Compute.CUBLAS_COMPUTE_32F, F32), lt.cublasLtMatmulDescOpaque_t, 7, c_uint32, 1),
    "MatrixTransformDesc": ((F64,), lt.cublasLtMatrixTransformDescOpaque_t, 0, c_int32, F64),
    "MatmulPreference": ((), lt.cublasLtMatmulPreferenceOpaque_t, 5, c_uint32, 256),
    "EmulationDesc": ((), lt.cublasLtEmulationDescOpaque_t, 1, c_int32, 0xFFFF),
}
OF_13_1 = [number for number in Desc if number < 39 and "ATOMIC_SYNC" not in number.name]


@pytest.mark.parametrize("what", DESCRIPTORS)
def test_descriptors_in_memory_of_the_library_and_of_the_caller(what):
    values, opaque, number, width, default = DESCRIPTORS[what]
    create, initialise, destroy, set_attribute, get_attribute = (
        getattr(lt, f"cublasLt{what}{verb}")
        for verb in ("Create", "Init_internal", "Destroy", "SetAttribute", "GetAttribute")
    )
    made, room = c_void_p(), opaque()
    create(made, *values)
    initialise(byref(room), ctypes.sizeof(room), *values)
    size = ctypes.sizeof(width)
    for descriptor in (made, byref(room)):
        found, written = width(), c_size_t()
        get_attribute(descriptor, number, None, 0, written)
        assert written.value == size
        get_attribute(descriptor, number, byref(found), size, written)
        assert (found.value, written.value) == (default, size)
        set_attribute(descriptor, number, byref(width(77)), size)
        get_attribute(descriptor, number, byref(found), size, None)
        assert found.value == 77
        for wrong in ((None, size), (byref(found), size + 1), (byref(found), 0)):
            assert set_attribute.status(descriptor, number, *wrong) == INVALID
        for wrong in ((None, 0, None), (None, size, written), (byref(found), size - 1, written)):
            assert get_attribute.status(descriptor, number, *wrong) == INVALID
        assert set_attribute.status(descriptor, 1000, byref(found), size) == INVALID
        assert get_attribute.status(descriptor, 1000, byref(found), size, written) == INVALID
    assert initialise.status(byref(room), 16, *values) == Status.CUBLAS_STATUS_ALLOC_FAILED
    assert set_attribute.status(byref(opaque()), number, byref(found), size) == INVALID
    assert create.status(None, *values) == INVALID
    destroy(made)
    destroy(None)


@pytest.mark.parametrize("number", OF_13_1, ids=lambda number: number.name)
def test_every_attribute_of_a_product_has_the_size_that_the_header_says(number):
    desc, written = c_void_p(), c_size_t()
    lt.cublasLtMatmulDescCreate(desc, Compute.CUBLAS_COMPUTE_32F, F32)
    lt.cublasLtMatmulDescGetAttribute(desc, number, None, 0, written)
    assert written.value == ctypes.sizeof(width(number))
    lt.cublasLtMatmulDescDestroy(desc)


def test_a_descriptor_is_not_taken_for_another(handle, rng):
    product = Product(handle, rng)
    product.desc = product.a.layout
    assert product.status() == INVALID
    product = Product(handle, rng)
    product.b.layout = None
    assert product.status() == INVALID


# Handles, streams, faults.


def test_handles(handle, rng):
    product = Product(handle, rng)
    lt.cublasLtDestroy(handle)
    assert product.status() == product.heuristic()[0] == lt.cublasLtDestroy.status(handle) == NOT_INITIALIZED
    assert lt.cublasLtCreate.status(None) == INVALID
    product.handle = helper.stream()
    assert product.status() == NOT_INITIALIZED
    product.handle = c_void_p()
    cublas.cublasCreate(product.handle)
    product.check(product.product)
    assert lt.cublasLtDestroy.status(product.handle) == NOT_INITIALIZED
    driver.cuCtxSetCurrent(None)
    assert lt.cublasLtCreate.status(c_void_p()) == NOT_INITIALIZED


def test_the_library_says_who_it_is():
    part = c_int()
    version = []
    for each in lt.libraryPropertyType:
        lt.cublasLtGetProperty(each, part)
        version.append(part.value)
    major, minor, patch = version
    assert lt.cublasLtGetVersion() == major * 10000 + minor * 100 + patch
    assert lt.cublasLtGetCudartVersion() // 1000 == major
    assert lt.cublasLtGetStatusName(15) == b"CUBLAS_STATUS_NOT_SUPPORTED"
    assert lt.cublasLtGetStatusString(0) == b"no error"
    assert lt.cublasLtGetProperty.status(3, part) == INVALID


def test_what_is_not_simulated_is_missing():
    with pytest.raises(SymbolMissing):
        lt.cublasLtLoggerSetLevel(1)


def test_calls_are_counted(handle, rng):
    product = Product(handle, rng)
    before = atomr_sim.calls()["cublasLtMatmul"]
    product.run()
    assert atomr_sim.calls()["cublasLtMatmul"] == before + 1


def test_a_wild_pointer_costs_the_context():
    done = run_in_process("""
        import numpy as np
        from atomr_cuda import cublaslt as lt
        begin()
        handle, desc, layout = c_void_p(), c_void_p(), c_void_p()
        lt.cublasLtCreate(handle)
        lt.cublasLtMatmulDescCreate(desc, 68, 0)
        lt.cublasLtMatrixLayoutCreate(layout, 0, 4, 4, 4)
        here = allocate(64)
        one = ctypes.c_float(1)
        call = lambda a: lt.cublasLtMatmul.status(
            handle, desc, ctypes.addressof(one), a, layout, here, layout, ctypes.addressof(one), here, layout, here,
            layout, None, None, 0, None)
        print(call(here), driver.cuCtxSynchronize.status(), call(0xBAD00), driver.cuCtxSynchronize.status(), call(here))
    """)
    execution_failed = Status.CUBLAS_STATUS_EXECUTION_FAILED
    assert done.stdout.split() == ["0", "0", "0", "700", str(int(execution_failed))]
