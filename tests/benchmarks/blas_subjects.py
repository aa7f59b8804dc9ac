"""The subjects of the benchmark of products, one in each process: `blas_subjects.py WHO BACKEND`.

A subject makes a product ready (`take NUMBER`, by the place in the plan), and then computes it so many times
(`turn COUNT`).

All have the same numbers, drawn from the normal distribution: the power that a GPU draws depends on them, and so does
its clock. All work on memory that they hold, on a stream of their own. Of workspace the bare calls have what those of
atomr_trio have: that of a cuBLAS handle as the library makes it (32 MiB on the Hopper generation), and up to 32 MiB for
an algorithm of cuBLASLt.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from ctypes import byref, c_double, c_float, c_int, c_int32, c_uint64, c_void_p, sizeof
from typing import Any, Final, Protocol

import attrs
import numpy as np
from speed_report import CUPY, OURS, RAW, TORCH
from turns import Bare, Computing, Missing, OnCupy, OnTorch, answer_all, check_error, checked, refusal, serve, turn

# --- what is computed -------------------------------------------------------------------------------------------------


@attrs.frozen
class Arithmetic:
    """The types of a product, and how it is computed."""

    name: str
    dtype: str
    data_type: str
    """The member of ``cudaDataType``."""
    compute_type: str
    """The member of ``cublasComputeType_t``."""
    error: float
    """What a product may be wrong by, in shares of its largest element: no more than a wrong call is found by it."""
    compute: str | None = None
    """What atomr_trio calls the way it is computed, if it is not what the types say."""
    output: str | None = None
    """The type of the result, if it is another."""

    @property
    def narrow(self) -> bool:
        """Whether it is one of 8 bits: a product of cuBLASLt, with scales, and of a transposed second matrix."""
        return self.dtype.startswith("float8")


ARITHMETICS: Final = (
    Arithmetic("float32", "float32", "CUDA_R_32F", "CUBLAS_COMPUTE_32F", 1e-5),
    Arithmetic("TF32", "float32", "CUDA_R_32F", "CUBLAS_COMPUTE_32F_FAST_TF32", 1e-2, compute="tf32"),
    Arithmetic("bfloat16", "bfloat16", "CUDA_R_16BF", "CUBLAS_COMPUTE_32F", 1e-2),
    Arithmetic("float16", "float16", "CUDA_R_16F", "CUBLAS_COMPUTE_32F", 1e-2),
    Arithmetic("float8", "float8_e4m3fn", "CUDA_R_8F_E4M3", "CUBLAS_COMPUTE_32F", 1e-2, output="bfloat16"),
    Arithmetic("float64", "float64", "CUDA_R_64F", "CUBLAS_COMPUTE_64F", 1e-12),
)
SCALES: Final = (0.5, 2.0)
"""With which matrices of 8 bits are multiplied: a product that leaves out one of the two is wrong."""
CHECKED_SIZE: Final = 256
"""Products of matrices up to this size are compared with numpy's before they are timed."""


@attrs.frozen
class Product:
    """A product of square matrices, or a stack of them."""

    arithmetic: Arithmetic
    size: int
    count: int = 1

    @property
    def name(self) -> str:
        """Its row in the table."""
        stack = f"{self.count} of " if self.count > 1 else ""
        return f"gemm {self.arithmetic.name}, {stack}{self.size} x {self.size}"

    @property
    def shape(self) -> tuple[int, ...]:
        """That of each of its matrices."""
        square = (self.size, self.size)
        return square if self.count == 1 else (self.count, *square)

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.count * self.size**3


@attrs.frozen
class Plan:
    """What is computed, and how long."""

    sizes: tuple[int, ...]
    stack: tuple[int, int]
    """So many small matrices, of such a size."""
    seconds: float
    """About so long each turn computes."""
    repetitions: int

    @property
    def products(self) -> list[Product]:
        """In the order in which they are measured."""
        squares = [Product(arithmetic, size) for arithmetic in ARITHMETICS for size in self.sizes]
        count, size = self.stack
        return [*squares, Product(ARITHMETICS[0], size, count)]


PLANS: Final[Mapping[str, Plan]] = {
    "cuda": Plan((256, 1024, 2048, 4096, 8192), (4096, 64), 0.05, 15),
    "sim": Plan((16, 32), (8, 16), 0.0, 2),
}
"""The simulator shows that everything works, and says nothing of speed."""


# --- the numbers ------------------------------------------------------------------------------------------------------


@attrs.frozen
class Factors:
    """The matrices of a product on the host, and what comes out."""

    a: np.ndarray
    b: np.ndarray
    """Its transpose is what lies row by row, where the product is one of 8 bits."""
    output: np.dtype[Any]

    @classmethod
    def of(cls, product: Product, most: int) -> Factors:
        """Those of a product; `most` is the number of elements of the largest matrix that there will be."""
        arithmetic, elements = product.arithmetic, product.count * product.size**2
        a, b = (
            half[:elements].reshape(product.shape).astype(_dtype(arithmetic.dtype)) for half in normal_numbers(most)
        )
        return cls(a, b.T if arithmetic.narrow else b, _dtype(arithmetic.output or arithmetic.dtype))

    def error_of(self, result: np.ndarray) -> float:
        """How wrong a result is, in shares of the largest element."""
        exact = self.a.astype(np.float64) @ self.b.astype(np.float64)
        return float(abs(result.astype(np.float64) - exact).max() / abs(exact).max())


@functools.cache
def normal_numbers(most: int) -> np.ndarray:
    """Two rows of them, the same in every process."""
    return np.random.default_rng(7).standard_normal((2, most))


def _dtype(name: str) -> np.dtype[Any]:
    known: np.dtype[Any] = np.dtype(getattr(np if hasattr(np, name) else importlib.import_module("ml_dtypes"), name))
    return known


# --- the subjects -----------------------------------------------------------------------------------------------------


class Subject(Computing, Protocol):
    """A subject that multiplies matrices."""

    async def take(self, product: Product, factors: Factors) -> None:
        """Make everything ready that a product needs, and let go of the one before."""

    async def result(self) -> np.ndarray:
        """The product."""


class Ours:
    """atomr_trio, in a batch."""

    def __init__(self, dev: Any) -> None:
        self._dev = dev

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, backend: str) -> AsyncIterator[Ours]:
        import atomr_trio

        async with atomr_trio.open_device(0, backend=backend) as dev:  # type: ignore[arg-type]
            yield cls(dev)

    async def take(self, product: Product, factors: Factors) -> None:
        dev, self._arithmetic = self._dev, product.arithmetic
        self._out = dev.zeros(product.shape, factors.output)
        self._a = await dev.to_device(factors.a)
        if self._arithmetic.narrow:
            self._b = (await dev.to_device(factors.b.T)).T
            scales = [await dev.to_device(np.array(scale, np.float32)) for scale in SCALES]
            self._options = dict(zip(("scale_a", "scale_b"), scales, strict=True))
        else:
            self._b = await dev.to_device(factors.b)
            self._options = {"compute": self._arithmetic.compute}

    async def compute(self, count: int) -> None:
        a, b, options = self._a, self._b, {"out": self._out, **self._options}
        async with self._dev.batch() as batch:
            multiply = batch.blaslt.matmul if self._arithmetic.narrow else batch.blas.gemm
            for _ in range(count):
                multiply(a, b, **options)

    async def result(self) -> np.ndarray:
        found: np.ndarray = await self._out.to_host()
        return found


class Raw(Bare):
    """cuBLAS and cuBLASLt, called through ctypes as this library declares them.

    They think in columns: a matrix that lies row by row is its own transpose to them, so they are asked for the
    transposed product, of the factors in the other order.
    """

    def __init__(self) -> None:
        from atomr_cuda import cublas, cublaslt

        super().__init__()
        self._cublas, self._lt = cublas, cublaslt
        self._handle, self._lt_handle = cublas.cublasHandle_t(), cublaslt.cublasLtHandle_t()
        cublas.cublasCreate(byref(self._handle))
        cublas.cublasSetStream(self._handle, self._stream)
        cublaslt.cublasLtCreate(byref(self._lt_handle))

    async def take(self, product: Product, factors: Factors) -> None:
        self._free_all()
        arithmetic, b = product.arithmetic, factors.b.T if product.arithmetic.narrow else factors.b
        self._result = np.zeros(product.shape, factors.output)
        places = [self._upload(array) for array in (factors.a, b, self._result)]
        self._out = places[-1]
        self._call = checked((self._lt_matmul if arithmetic.narrow else self._gemm)(product, *places))
        self._settle()

    async def result(self) -> np.ndarray:
        return self._download(self._out, self._result)

    def _gemm(self, product: Product, a: int, b: int, out: int) -> functools.partial[int]:
        cublas, n, kind = self._cublas, product.size, self._data_type(product)
        form, distance, count = ("StridedBatched", (n * n,), (product.count,)) if product.count > 1 else ("", (), ())
        alpha, beta = _scalars(product)
        nothing = cublas.cublasOperation_t.CUBLAS_OP_N
        return functools.partial(
            getattr(cublas, f"cublasGemm{form}Ex_64").bind(),
            *(self._handle, nothing, nothing, n, n, n),
            *(alpha, b, kind, n, *distance, a, kind, n, *distance),
            *(beta, out, kind, n, *distance, *count),
            *(self._compute_type(product), cublas.cublasGemmAlgo_t.CUBLAS_GEMM_DEFAULT),
        )

    def _data_type(self, product: Product) -> int:
        number: int = self._lt.cudaDataType[product.arithmetic.data_type]
        return number

    def _compute_type(self, product: Product) -> int:
        number: int = self._lt.cublasComputeType_t[product.arithmetic.compute_type]
        return number

    def _lt_matmul(self, product: Product, a: int, b: int, out: int) -> functools.partial[int]:
        """What is first to the library is `b`, whose columns lie one behind the other, as those of `a` do to it."""
        from atomr_trio.libraries.blaslt.records import WORKSPACE_BYTES

        narrow, wide = self._data_type(product), self._lt.cudaDataType.CUDA_R_16BF
        first, second, added, result = (self._layout(kind, product.size) for kind in (narrow, narrow, wide, wide))
        problem = (self._lt_handle, self._description(product))
        proposed = self._proposed(WORKSPACE_BYTES, *problem, first, second, added, result)
        workspace = self._memory(proposed.workspaceSize) if proposed.workspaceSize else None
        alpha, beta = _scalars(product)
        return functools.partial(
            self._lt.cublasLtMatmul.bind(),
            *(*problem, alpha, b, first, a, second, beta, out, added, out, result),
            *(byref(proposed.algo), workspace, proposed.workspaceSize, self._stream),
        )

    def _layout(self, data_type: int, n: int) -> c_void_p:
        layout = c_void_p()
        self._lt.cublasLtMatrixLayoutCreate(byref(layout), data_type, n, n, n)
        return layout

    def _description(self, product: Product) -> c_void_p:
        lt, description = self._lt, c_void_p()
        lt.cublasLtMatmulDescCreate(byref(description), self._compute_type(product), lt.cudaDataType.CUDA_R_32F)
        scale_a, scale_b = (self._upload(np.array(scale, np.float32)) for scale in SCALES)
        of, operation = lt.cublasLtMatmulDescAttributes_t, self._cublas.cublasOperation_t
        attributes = {
            of.CUBLASLT_MATMUL_DESC_TRANSA: c_int32(operation.CUBLAS_OP_T),
            of.CUBLASLT_MATMUL_DESC_TRANSB: c_int32(operation.CUBLAS_OP_N),
            of.CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: c_void_p(scale_b),
            of.CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: c_void_p(scale_a),
        }
        for number, value in attributes.items():
            lt.cublasLtMatmulDescSetAttribute(description, number, byref(value), sizeof(value))
        return description

    def _proposed(self, workspace_bytes: int, *problem: Any) -> Any:
        """What the heuristics think best."""
        lt, preference, found, count = self._lt, c_void_p(), self._lt.cublasLtMatmulHeuristicResult_t(), c_int()
        limit = c_uint64(workspace_bytes)
        lt.cublasLtMatmulPreferenceCreate(byref(preference))
        lt.cublasLtMatmulPreferenceSetAttribute(
            preference,
            lt.cublasLtMatmulPreferenceAttributes_t.CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
            *(byref(limit), sizeof(limit)),
        )
        lt.cublasLtMatmulAlgoGetHeuristic(*problem, preference, 1, byref(found), byref(count))
        lt.cublasLtMatmulPreferenceDestroy(preference)
        if not count.value:
            raise Missing("cuBLASLt has no algorithm")
        return found


def _scalars(product: Product) -> Iterator[Any]:
    """One and zero, by address, in the type of the sums."""
    kind = c_double if product.arithmetic.dtype == "float64" else c_float
    return (byref(kind(value)) for value in (1, 0))


class Cupy(OnCupy):
    """CuPy, which multiplies no matrices of 8 bits."""

    def __init__(self) -> None:
        super().__init__()
        self._routines: Any = importlib.import_module("cupy._core._routines_linalg")

    async def take(self, product: Product, factors: Factors) -> None:
        arithmetic, cupy = product.arithmetic, self._cupy
        if arithmetic.narrow:
            raise Missing("CuPy has no such product")
        how = self._routines.COMPUTE_TYPE_TF32 if arithmetic.compute == "tf32" else self._routines.COMPUTE_TYPE_DEFAULT
        self._routines.set_compute_type(np.float32, how)
        a, b = cupy.asarray(factors.a), cupy.asarray(factors.b)
        self._out = cupy.zeros(product.shape, factors.output)
        self._call = functools.partial(cupy.matmul, a, b, out=self._out)

    async def result(self) -> np.ndarray:
        found: np.ndarray = self._out.get()
        return found


class Torch(OnTorch):
    """PyTorch."""

    async def take(self, product: Product, factors: Factors) -> None:
        torch, arithmetic = self._torch, product.arithmetic
        torch.backends.cuda.matmul.allow_tf32 = arithmetic.compute == "tf32"
        a = self._upload(factors.a)
        self._out = self._upload(np.zeros(product.shape, factors.output))
        if arithmetic.narrow:
            b = self._upload(factors.b.T).t()
            scale_a, scale_b = (torch.tensor(scale, device="cuda") for scale in SCALES)
            scales = {"scale_a": scale_a, "scale_b": scale_b, "out_dtype": self._out.dtype}
            self._call = functools.partial(torch._scaled_mm, a, b, **scales, out=self._out)
        else:
            multiply = torch.bmm if product.count > 1 else torch.mm
            self._call = functools.partial(multiply, a, self._upload(factors.b), out=self._out)

    def _upload(self, array: np.ndarray) -> Any:
        """A copy on the device; it has no way to take those numpy arrays that are not of numpy's own types."""
        bits = self._torch.from_numpy(array.view(f"i{array.itemsize}"))
        return bits.cuda().view(getattr(self._torch, array.dtype.name))

    async def result(self) -> np.ndarray:
        found: np.ndarray = self._out.double().cpu().numpy()
        return found


SUBJECTS: Final[Mapping[str, Callable[[str], AbstractAsyncContextManager[Subject]]]] = {
    OURS: Ours.opened,
    RAW: Raw.opened,
    CUPY: Cupy.opened,
    TORCH: Torch.opened,
}


# --- questions and answers --------------------------------------------------------------------------------------------


async def take(subject: Subject, plan: Plan, number: int) -> str | None:
    """Make a product ready; return why it cannot be measured, if that is so."""
    return await refusal(_take(subject, plan, plan.products[number]))


async def _take(subject: Subject, plan: Plan, product: Product) -> None:
    factors = Factors.of(product, max(each.count * each.size**2 for each in plan.products))
    await subject.take(product, factors)
    await subject.compute(1)
    if product.size <= CHECKED_SIZE:
        check_error(factors.error_of(await subject.result()), product.arithmetic.error)


async def answer(who: str, backend: str) -> None:
    """Answer questions until there are no more."""
    async with SUBJECTS[who](backend) as subject:
        await answer_all(
            {"take": functools.partial(take, subject, PLANS[backend]), "turn": functools.partial(turn, subject)}
        )


if __name__ == "__main__":
    serve(answer)
