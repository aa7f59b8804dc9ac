"""Products of matrices by cuBLASLt against numpy in double precision: dtypes, layouts, epilogues, batches, refusals.

Outputs are poisoned first, and lie among elements that must stay as they are. The data is new in each run; the seed is
printed with a failure, and ATOMR_TRIO_TEST_SEED brings the same data again.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import secrets
from collections.abc import Callable
from typing import Any

import attrs
import ml_dtypes
import numpy as np
import pytest
import trio
import trio.testing

from atomr_trio import CommandFailed, ContextLost, DeviceArray, InvalidArgument
from atomr_trio._device.device import core_of
from atomr_trio._wire.protocol import Mode, Role
from atomr_trio.libraries.blaslt import types
from atomr_trio.libraries.blaslt.records import BLASLT, Addresses, Layout, Problem, plan_key

pytestmark = pytest.mark.used_workers

M, N, K = 12, 40, 24
BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
DTYPES = {np.dtype(each).name: np.dtype(each) for each in (BF16, E4M3, E5M2)}


def dtype_of(name: str) -> np.dtype[Any]:
    return DTYPES.get(name) or np.dtype(name)


@pytest.fixture
def rng():
    seed = int(os.environ.get("ATOMR_TRIO_TEST_SEED") or secrets.randbits(32))
    print(f"ATOMR_TRIO_TEST_SEED={seed}")
    return np.random.default_rng(seed)


# --- arrays that lie in many ways -------------------------------------------------------------------------------------


def swapped(x: Any) -> Any:
    return x.transpose(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)


@attrs.frozen
class Way:
    """How matrices lie: the shape of what they lie in, and the view of that, on the host or on the device."""

    around: Callable[[tuple[int, ...]], tuple[int, ...]]
    view: Callable[[Any], Any]


WAYS = {
    "rows": Way(lambda shape: shape, lambda x: x),
    "columns": Way(lambda shape: (*shape[:-2], *shape[:-3:-1]), swapped),
    "rows apart": Way(lambda shape: (*shape[:-2], shape[-2] + 2, shape[-1] + 32), lambda x: x[..., 1:-1, 16:-16]),
    "columns apart": Way(
        lambda shape: (*shape[:-2], shape[-1] + 2, shape[-2] + 32), lambda x: swapped(x[..., 1:-1, 16:-16])
    ),
    "scattered": Way(lambda shape: (*shape[:-2], 2 * shape[-2], 3 * shape[-1]), lambda x: x[..., ::2, 1::3]),
    "backwards": Way(lambda shape: shape, lambda x: x[..., ::-1, :]),
}
MATRICES = ("rows", "columns", "rows apart", "columns apart")
"""Those that the library takes where they are."""


@attrs.frozen
class Placed:
    """Elements in the midst of others."""

    before: np.ndarray
    way: Way
    whole: DeviceArray

    @property
    def array(self) -> DeviceArray:
        return self.way.view(self.whole)

    @classmethod
    async def put(cls, dev: Any, values: np.ndarray, way: str = "rows") -> Placed:
        how = WAYS[way]
        before = np.full(how.around(values.shape), poison(values.dtype), values.dtype)
        how.view(before)[...] = values
        return cls(before, how, await dev.to_device(before))

    @classmethod
    async def poisoned(cls, dev: Any, shape: tuple[int, ...], dtype: Any, way: str = "rows") -> Placed:
        return await cls.put(dev, np.full(shape, poison(np.dtype(dtype)), dtype), way)

    async def read(self) -> np.ndarray:
        """The elements; those around them must be what they were."""
        after = await self.whole.to_host()
        values = self.way.view(after).copy()
        self.way.view(after)[...] = self.way.view(self.before)
        assert after.tobytes() == self.before.tobytes()
        return values


def poison(dtype: np.dtype[Any]) -> Any:
    return 77 if dtype.kind in "iu" else np.nan


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        return rng.integers(-9, 10, shape).astype(dtype)
    real = rng.uniform(-1, 1, shape)
    return (real + 1j * rng.uniform(-1, 1, shape) if kind.kind == "c" else real).astype(dtype)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


# --- what is expected -------------------------------------------------------------------------------------------------

GELU = math.sqrt(2 / math.pi)


def gelu(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + np.tanh(GELU * (x + 0.044715 * x**3)))


def gelu_slope(x: np.ndarray) -> np.ndarray:
    t = np.tanh(GELU * (x + 0.044715 * x**3))
    return (1 + t) / 2 + x / 2 * (1 - t * t) * GELU * (1 + 3 * 0.044715 * x * x)


def epsilon(dtype: np.dtype[Any]) -> float:
    return float(ml_dtypes.finfo(dtype).eps) if dtype.kind not in "iu" else 0.0


FAST_SUMS = 2.0**-13
"""What the sums of float8 have on Hopper."""
GELU_DIGITS = 1e-9
"""The constants of the library's GELU are those of float32, in float64 too."""


def check_close(got: np.ndarray, expected: np.ndarray, *, inputs: float = 0.0, terms: int = K) -> None:
    """One rounding to the dtype, and as many in the sums as there are terms; `inputs` is that of rounded inputs."""
    sums = max(np.finfo(np.float32).eps if got.dtype != np.float64 else 0, inputs, 1e-15)
    size = max(1.0, float(np.abs(expected).max(initial=0)))
    bound = size * (2 * epsilon(got.dtype) + 8 * math.sqrt(terms) * sums)
    assert got.shape == expected.shape
    worst = np.abs(wide(got) - expected).max(initial=0)
    assert worst <= bound, f"{worst} > {bound}"


OPERATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "N": lambda x: x,
    "T": swapped,
    "C": lambda x: swapped(x).conj(),
}


# --- dtypes, layouts, operations --------------------------------------------------------------------------------------

WIDE = [(a, out) for (a, b, c, out), product in types.PRODUCTS.items() if product.granule == 1]


@pytest.mark.parametrize(("dtype", "out"), WIDE)
async def test_every_dtype_in_every_layout(dev, rng, dtype, out):
    a, b = numbers(rng, (M, K), dtype_of(dtype)), numbers(rng, (K, N), dtype_of(dtype))
    expected = wide(a) @ wide(b)
    ways = list(WAYS)
    for index, way in enumerate(ways):
        left = await Placed.put(dev, a, way)
        right = await Placed.put(dev, b, ways[(2 * index + 1) % len(ways)])
        result = await Placed.poisoned(dev, (M, N), dtype_of(out), MATRICES[index % len(MATRICES)])
        assert await dev.blaslt.matmul(left.array, right.array, out=result.array) is not None
        check_close(await result.read(), expected)


@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
async def test_operations(dev, rng, dtype):
    for op_a, op_b in itertools.product(OPERATIONS, repeat=2):
        print(op_a, op_b)
        await check_operations(dev, rng, dtype, op_a, op_b)


async def check_operations(dev, rng, dtype, op_a, op_b):
    a = numbers(rng, (M, K) if op_a == "N" else (K, M), dtype)
    b = numbers(rng, (K, N) if op_b == "N" else (N, K), dtype)
    expected = OPERATIONS[op_a](wide(a)) @ OPERATIONS[op_b](wide(b))
    for way, where in (("rows", "rows"), ("columns", "rows"), ("rows", "columns"), ("columns apart", "columns apart")):
        left, right = await Placed.put(dev, a, way), await Placed.put(dev, b, way)
        result = await Placed.poisoned(dev, (M, N), dtype, where)
        await dev.blaslt.matmul(left.array, right.array, op_a=op_a, op_b=op_b, out=result.array)
        check_close(await result.read(), expected)


async def test_a_new_output_has_the_dtype_of_the_inputs_or_the_one_asked_for(dev, rng):
    for dtype, wanted, expected in (
        (np.float32, None, np.float32),
        (np.complex128, None, np.complex128),
        (BF16, None, BF16),
        (BF16, np.float32, np.float32),
        (np.int8, np.float32, np.float32),
    ):
        a = await dev.to_device(numbers(rng, (4, 4), dtype))
        assert (await dev.blaslt.matmul(a, a, dtype=wanted)).dtype == expected


COMPUTES = {
    ("float32", "pedantic"): 0,
    ("float32", "tf32"): 2**-10,
    ("float32", "fast_float16"): 2**-10,
    ("float32", "fast_bfloat16"): 2**-7,
    ("complex64", "tf32"): 2**-10,
    ("float64", "pedantic"): 0,
    ("float16", "pedantic"): 0,
    ("float16", "float16"): 2**-10,
    ("bfloat16", "pedantic"): 0,
}
"""What is lost by ways of computing."""


async def test_how_the_sums_are_made_can_be_chosen(dev, rng):
    for (dtype, compute), inputs in COMPUTES.items():
        print(dtype, compute)
        a, b = numbers(rng, (M, K), dtype_of(dtype)), numbers(rng, (K, N), dtype_of(dtype))
        left, right = await dev.to_device(a), await dev.to_device(b)
        got = await (await dev.blaslt.matmul(left, right, compute=compute)).to_host()
        check_close(got, wide(a) @ wide(b), inputs=inputs)


# --- alpha, beta, C ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "float16", "bfloat16"])
async def test_what_is_added_may_be_another_array_or_the_output(dev, rng, dtype):
    kind = dtype_of(dtype)
    a, b, c = (numbers(rng, shape, kind) for shape in ((M, K), (K, N), (M, N)))
    alpha, beta = (2 - 1j, 0.5j) if kind.kind == "c" else (-1.5, 0.25)
    expected = alpha * (wide(a) @ wide(b)) + beta * wide(c)
    left, right = await dev.to_device(a), await dev.to_device(b)
    call = functools.partial(dev.blaslt.matmul, left, right, alpha=alpha, beta=beta)
    for way in WAYS:
        for where in ("rows", "columns apart"):
            added, result = await Placed.put(dev, c, way), await Placed.poisoned(dev, (M, N), kind, where)
            await call(c=added.array, out=result.array)
            check_close(await result.read(), expected)
            assert (await added.read()).tobytes() == c.tobytes()
    for way in MATRICES:
        result = await Placed.put(dev, c, way)
        assert (await call(out=result.array)).address == result.array.address
        check_close(await result.read(), expected)
    result = await Placed.put(dev, c)
    await call(c=result.array, out=result.array)
    check_close(await result.read(), expected)


async def test_what_is_not_added_is_not_looked_at(dev, rng):
    a, b = numbers(rng, (M, K), np.float32), numbers(rng, (K, N), np.float32)
    left, right, poisoned = await dev.to_device(a), await dev.to_device(b), dev.full((M, N), np.nan, np.float32)
    result = await (await dev.blaslt.matmul(left, right, c=poisoned, beta=0)).to_host()
    check_close(result, wide(a) @ wide(b))


# --- inputs of 8 bits -------------------------------------------------------------------------------------------------

NARROW = [key for key, product in types.PRODUCTS.items() if product.granule == 16]


@pytest.mark.parametrize("inputs", sorted({key[:2] for key in NARROW}), ids="-".join)
async def test_float8_with_scales(dev, rng, inputs):
    for dtypes in NARROW:
        if dtypes[:2] == inputs:
            print(dtypes)
            await check_float8(dev, rng, dtypes)


async def check_float8(dev, rng, dtypes):
    a_type, b_type, c_type, out_type = map(dtype_of, dtypes)
    m, n, k = 16, 48, 32
    a, b, c = numbers(rng, (m, k), a_type), numbers(rng, (n, k), b_type), numbers(rng, (m, n), c_type)
    # float8 holds 1 to 1.125: what is scaled up must not leave its range.
    factors = {"scale_a": 0.5, "scale_b": 2.0, "scale_c": 0.25} | ({"scale_out": 4.0} if out_type.itemsize == 1 else {})
    scales = {name: dev.full((), factor, np.float32) for name, factor in factors.items()}
    amax = dev.full((), np.nan, np.float32) if out_type.itemsize == 1 else None
    sums = 0.5 * 0.5 * 2.0 * (wide(a) @ wide(b).T) + 2 * 0.25 * wide(c)
    for way, where in (("rows", "rows"), ("rows apart", "rows apart"), ("rows", "columns")):
        left, right = await Placed.put(dev, a, way), await Placed.put(dev, b, way)
        result = await Placed.poisoned(dev, (m, n), out_type, where)
        await dev.blaslt.matmul(
            left.array,
            right.array.T,
            c=await dev.to_device(c),
            alpha=0.5,
            beta=2,
            out=result.array,
            amax=amax,
            **scales,
        )
        check_close(await result.read(), sums * factors.get("scale_out", 1.0), terms=k, inputs=FAST_SUMS / 8)
        if amax is not None:
            assert await amax.to_host() == pytest.approx(np.abs(sums).max(), rel=1e-3)


async def test_float8_gives_bfloat16_and_takes_either_form_of_a_transposed_input(dev, rng):
    a, b = numbers(rng, (32, 16), E4M3), numbers(rng, (32, 48), E5M2)
    left, right = await dev.to_device(a), await dev.to_device(np.ascontiguousarray(b.T))
    transposed = await dev.to_device(np.ascontiguousarray(a.T))
    bias = numbers(rng, (48,), BF16)
    for first, op_a, second, op_b in ((transposed, "N", right.T, "N"), (transposed.T, "T", right, "T")):
        result = await dev.blaslt.matmul(
            first, second, op_a=op_a, op_b=op_b, epilogue="relu_bias", bias=await dev.to_device(bias)
        )
        assert result.dtype == BF16
        check_close(await result.to_host(), np.maximum(wide(a).T @ wide(b) + wide(bias), 0), terms=32)
    with pytest.raises(InvalidArgument, match="contiguous along the axis that is summed"):
        await dev.blaslt.matmul(left, right.T, op_a="T")


async def test_float8_to_float8_with_nothing_added(dev, rng):
    a, b = numbers(rng, (16, 32), E4M3), numbers(rng, (48, 32), E4M3)
    left, right, half = await dev.to_device(a), await dev.to_device(b), dev.full((), 0.25, np.float32)
    for bias_dtype in (BF16, np.float16):
        bias = numbers(rng, (48,), bias_dtype)
        result = await dev.blaslt.matmul(
            left,
            right.T,
            dtype="float8_e4m3fn",
            scale_b=half,
            epilogue="bias",
            bias=await dev.to_device(bias),
        )
        check_close(await result.to_host(), 0.25 * (wide(a) @ wide(b).T) + wide(bias), terms=32)


@pytest.mark.parametrize("out", ["int32", "int8"])
async def test_int8(dev, rng, out):
    a, b = rng.integers(-3, 4, (M, K)).astype(np.int8), rng.integers(-3, 4, (N, K)).astype(np.int8)
    left, right = await dev.to_device(a), await dev.to_device(b)
    for where in ("rows", "columns", "rows apart"):
        result = await Placed.poisoned(dev, (M, N), np.dtype(out), where)
        await dev.blaslt.matmul(left, right.T, out=result.array)
        expected = a.astype(np.int64) @ b.T.astype(np.int64)
        limits = np.iinfo(out)
        assert (await result.read() == np.clip(expected, limits.min, limits.max)).all()


async def test_int8_to_int32_is_the_default_and_exact(dev, rng):
    a, b = (rng.integers(-128, 128, (64, 64)).astype(np.int8) for _ in range(2))
    left, right = await dev.to_device(a), await dev.to_device(b)
    result = await dev.blaslt.matmul(left, right, op_b="T")
    assert result.dtype == np.int32
    assert (await result.to_host() == a.astype(np.int64) @ b.T.astype(np.int64)).all()


# --- epilogues --------------------------------------------------------------------------------------------------------


@attrs.frozen
class Trained:
    """What a layer's passes take and give, by the names of arguments; `expected` by the names of outputs."""

    given: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]


def padded_mask(positive: np.ndarray) -> np.ndarray:
    bits = np.zeros((*positive.shape[:-1], -(-positive.shape[-1] // 128) * 128), bool)
    bits[..., : positive.shape[-1]] = positive
    return np.packbits(bits, axis=-1, bitorder="little")


def trained(rng: np.random.Generator, epilogue: str, a: np.ndarray, b: np.ndarray, dtype: np.dtype[Any]) -> Trained:
    """Compute an epilogue from its name."""
    parts = epilogue.split("_")
    product = wide(a) @ wide(b)
    *batch, m, n = product.shape
    given: dict[str, np.ndarray] = {}
    expected: dict[str, np.ndarray] = {}
    if "bias" in parts:
        given["bias"] = numbers(rng, (n,), dtype)
        product = product + wide(given["bias"])
    if "aux" in parts:
        expected["aux"] = padded_mask(product > 0) if "relu" in parts else product
    if "drelu" in parts:
        positive = rng.random((*batch, m, n)) < 0.5
        given["aux"], product = padded_mask(positive), np.where(positive, product, 0)
    if "dgelu" in parts:
        given["aux"] = numbers(rng, (*batch, m, n), dtype)
        product = product * gelu_slope(wide(given["aux"]))
    product = np.maximum(product, 0) if "relu" in parts else gelu(product) if "gelu" in parts else product
    sums = {"bgrad": product.sum(-2), "bgrada": wide(a).sum(-1), "bgradb": wide(b).sum(-2)}
    for part in sums.keys() & parts:
        expected["bias_gradient"] = sums[part]
    return Trained(given, {"out": product, **expected})


NAMES = [name for name in types.EPILOGUES if name is not None]


@pytest.mark.parametrize("epilogue", NAMES)
async def test_every_epilogue(dev, rng, epilogue):
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        for batch, way in (((), "rows"), ((), "rows apart"), ((3,), "rows")):
            print(dtype, batch, way)
            await check_epilogue(dev, rng, epilogue, dtype_of(dtype), batch, way)


async def check_epilogue(dev, rng, epilogue, kind, batch, way):
    a, b = numbers(rng, (*batch, M, K), kind), numbers(rng, (*batch, K, N), kind)
    case = trained(rng, epilogue, a, b, kind)
    left, right = await Placed.put(dev, a), await Placed.put(dev, b, "columns")
    given = {name: await Placed.put(dev, values) for name, values in case.given.items()}
    results = {
        name: await Placed.poisoned(dev, values.shape, values.dtype if values.dtype == np.uint8 else kind, way)
        for name, values in case.expected.items()
        if values.ndim > 1 + len(batch)
    }
    results |= {
        name: await Placed.poisoned(dev, values.shape, kind)
        for name, values in case.expected.items()
        if name not in results
    }
    operands = {name: each.array for name, each in (given | results).items()}
    await dev.blaslt.matmul(left.array, right.array, epilogue=epilogue, **operands)
    for name, result in results.items():
        got, expected = await result.read(), case.expected[name]
        if expected.dtype == np.uint8:
            # The bits behind a row's elements are nobody's.
            got, expected = (np.unpackbits(x, axis=-1, count=N, bitorder="little") for x in (got, expected))
            assert (got != expected).mean() <= 0.01  # what is 0 but for rounding may be on either side
        else:
            digits = GELU_DIGITS if "gelu" in epilogue else 0.0
            check_close(got, expected, terms=K * M if name == "bias_gradient" else K, inputs=digits)


async def test_elementwise_epilogues_and_sums_of_inputs_take_an_output_by_columns(dev, rng):
    a, b = numbers(rng, (M, K), np.float32), numbers(rng, (K, N), np.float32)
    left, right = await dev.to_device(a), await dev.to_device(b)
    for epilogue in ("relu", "gelu", "bgrada", "bgradb"):
        case = trained(rng, epilogue, a, b, np.dtype(np.float32))
        results = {
            name: await Placed.poisoned(dev, values.shape, np.float32, "columns" if name == "out" else "rows")
            for name, values in case.expected.items()
        }
        operands = {name: each.array for name, each in results.items()}
        await dev.blaslt.matmul(left, right, epilogue=epilogue, **operands)
        for name, result in results.items():
            check_close(await result.read(), case.expected[name])


async def test_a_bias_for_each_matrix(dev, rng):
    a, b, bias = (numbers(rng, shape, np.float32) for shape in ((3, M, K), (3, K, N), (3, 1, N)))
    left, right, added = [await dev.to_device(x) for x in (a, b, bias)]
    result = await dev.blaslt.matmul(left, right, epilogue="bias", bias=added)
    check_close(await result.to_host(), wide(a) @ wide(b) + wide(bias))


async def test_gelu_keeps_its_argument_in_rows_that_are_apart_and_a_single_row_may_have_any_length(dev, rng):
    for m, n in ((M, 11), (1, 11)):
        a, b = numbers(rng, (m, K), np.float32), numbers(rng, (K, n), np.float32)
        left, right = await dev.to_device(a), await dev.to_device(b)
        aux = dev.empty((m, 16), np.float32)[:, :n] if m > 1 else dev.empty((m, n), np.float32)
        result = await dev.blaslt.matmul(left, right, epilogue="gelu_aux", aux=aux)
        check_close(await aux.to_host(), wide(a) @ wide(b))
        check_close(await result.to_host(), gelu(wide(a) @ wide(b)))


async def test_a_layer_is_trained_by_its_own_aux(dev, rng):
    """The mask of the forward pass is what the backward pass takes, as it is."""
    x, w, bias = (numbers(rng, shape, np.float32) for shape in ((M, K), (K, N), (N,)))
    y = wide(x) @ wide(w) + wide(bias)
    g, v = numbers(rng, (M, 8), np.float32), numbers(rng, (N, 8), np.float32)
    mask, gradient = dev.empty((M, 16), np.uint8), dev.empty(N, np.float32)
    arrays = [await dev.to_device(each) for each in (x, w, bias, g, v)]
    await dev.blaslt.matmul(arrays[0], arrays[1], epilogue="relu_aux_bias", bias=arrays[2], aux=mask)
    back = await dev.blaslt.matmul(
        arrays[3], arrays[4], op_b="T", epilogue="drelu_bgrad", aux=mask, bias_gradient=gradient
    )
    expected = np.where(y > 0, wide(g) @ wide(v).T, 0)
    check_close(await back.to_host(), expected)
    check_close(await gradient.to_host(), expected.sum(0), terms=K * M)


# --- batches ----------------------------------------------------------------------------------------------------------


STACKS = (
    ((3,), (3,)),
    ((3,), ()),
    ((), (3,)),
    ((2, 3), (2, 3)),
    ((2, 1), (3,)),
    ((2, 3), (3,)),
    ((1, 3), (2, 1)),
    ((1,), ()),
)


async def test_leading_axes_are_those_of_numpy(dev, rng):
    for (first, second), way in itertools.product(STACKS, WAYS):
        print(first, second, way)
        a, b = numbers(rng, (*first, M, K), np.float32), numbers(rng, (*second, K, N), np.float32)
        expected = np.matmul(wide(a), wide(b))
        left, right = await Placed.put(dev, a, way), await Placed.put(dev, b, way)
        result = await Placed.poisoned(dev, expected.shape, np.float32, "rows apart" if len(first) < 2 else "rows")
        await dev.blaslt.matmul(left.array, right.array, out=result.array)
        check_close(await result.read(), expected)


async def test_every_second_matrix_of_a_stack(dev, rng):
    a = numbers(rng, (6, M, M), np.float64)
    stack = await dev.to_device(a)
    check_close(await (await dev.blaslt.matmul(stack[::2], stack[1::2])).to_host(), wide(a)[::2] @ wide(a)[1::2])
    check_close(await (await dev.blaslt.matmul(stack[::-1], stack)).to_host(), wide(a)[::-1] @ wide(a))


# --- nothing, and sums of nothing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "complex128", "int8", "float8_e4m3fn"])
async def test_sums_of_nothing(dev, rng, dtype):
    a, b = dev.empty((16, 0), dtype), dev.empty((32, 0), dtype)
    assert not (await (await dev.blaslt.matmul(a, b.T)).to_host()).any()


async def test_sums_of_nothing_have_their_epilogue_and_what_is_added(dev, rng):
    c, bias = numbers(rng, (3, M, N), np.float32), numbers(rng, (N,), np.float32)
    a, b = dev.empty((3, M, 0), np.float32), dev.empty((0, N), np.float32)
    added, shift = await dev.to_device(c), await dev.to_device(bias)
    result = await dev.blaslt.matmul(a, b, c=added, beta=2, epilogue="relu_bias", bias=shift)
    check_close(await result.to_host(), np.maximum(2 * wide(c) + wide(bias), 0))


@pytest.mark.parametrize("shapes", [((0, K), (K, N)), ((M, K), (K, 0)), ((0, M, K), (K, N)), ((M, 0), (0, 0))])
async def test_products_without_elements(dev, shapes):
    first, second = (dev.empty(shape, np.float32) for shape in shapes)
    result = await dev.blaslt.matmul(first, second)
    assert result.shape == np.matmul(*(np.empty(shape) for shape in shapes)).shape


async def test_the_gradient_of_a_batch_without_rows_is_zero(dev):
    a, b, gradient = dev.empty((0, K), np.float32), dev.empty((K, N), np.float32), dev.full(N, np.nan, np.float32)
    aux = dev.empty((0, 16), np.uint8)
    await dev.blaslt.matmul(a, b, epilogue="drelu_bgrad", aux=aux, bias_gradient=gradient)
    assert not (await gradient.to_host()).any()
    with pytest.raises(InvalidArgument, match="the sums of its inputs are not computed"):
        await dev.blaslt.matmul(a, b, epilogue="bgradb", bias_gradient=gradient)


SIZES = (0, 1, 2, 3, 7, 8, 16, 33, 129)


async def test_products_of_any_size_in_any_layout(dev, rng):
    for _ in range(80):
        m, n, k = map(int, rng.choice(SIZES, 3))
        dtype = str(rng.choice(["float32", "float64", "complex64", "bfloat16"]))
        ways, op_a, op_b = rng.choice(list(WAYS), 3), *rng.choice(list(OPERATIONS), 2)
        where, beta = str(rng.choice(MATRICES)), float(rng.choice([0, 0.5]))
        epilogue = "relu" if dtype != "complex64" and rng.random() < 0.5 else None
        print(m, n, k, dtype, ways, op_a, op_b, where, beta, epilogue)
        a = numbers(rng, (m, k) if op_a == "N" else (k, m), dtype_of(dtype))
        b = numbers(rng, (k, n) if op_b == "N" else (n, k), dtype_of(dtype))
        c = numbers(rng, (m, n), dtype_of(dtype))
        left, right, added = [await place(dev, x, way) for x, way in zip((a, b, c), ways, strict=True)]
        result = await Placed.poisoned(dev, (m, n), dtype_of(dtype), where)
        await dev.blaslt.matmul(
            left, right, c=added, beta=beta, op_a=str(op_a), op_b=str(op_b), out=result.array, epilogue=epilogue
        )
        x = OPERATIONS[op_a](wide(a)) @ OPERATIONS[op_b](wide(b)) + beta * wide(c)
        check_close(await result.read(), np.maximum(x, 0) if epilogue else x, terms=max(k, 1))


async def place(dev: Any, values: np.ndarray, way: str) -> DeviceArray:
    """A copy on the device that lies so."""
    return (await Placed.put(dev, values, way)).array


# --- refusals ---------------------------------------------------------------------------------------------------------


def refused(dev: Any) -> dict[str, tuple[tuple[Any, Any], dict[str, Any]]]:
    """Wrong calls, by what their refusal says: two inputs, and the rest by name."""
    f4, i1, e4, c8 = np.dtype(np.float32), np.dtype(np.int8), np.dtype(E4M3), np.dtype(np.complex64)

    def empty(*shape: int, dtype: Any = f4) -> DeviceArray:
        return dev.empty(shape, dtype)

    a, b, bias, out = empty(M, K), empty(K, N), empty(N), empty(M, N)
    both = empty(M + K, K + N)
    narrow = empty(16, 32, dtype=e4), empty(48, 32, dtype=e4).T
    one, gone = empty(), empty(M, K)
    gone.free()
    return {
        # Shapes and arrays.
        "a is an array on the device": ((np.zeros((2, 2)), b), {}),
        "a has at least 2 axes, not 1": ((empty(K), b), {}),
        "a has 24 columns and b has 12 rows": ((a, empty(M, N)), {}),
        "a has 12 columns and b has 24 rows": ((a, b), {"op_a": "T"}),
        'op_b is "N", "T" or "C", not': ((a, b), {"op_b": "X"}),
        "leading axes of a, .* do not fit": ((empty(2, M, K), empty(3, K, N)), {}),
        "out has shape": ((a, b), {"out": empty(N, M)}),
        "c has shape": ((a, b), {"c": empty(N, M), "beta": 1}),
        "neither c nor out is given": ((a, b), {"beta": 1}),
        "the array was freed": ((gone, b), {}),
        "out is not a stack": ((a, b), {"out": empty(2 * M, 2 * N)[::2, ::2]}),
        # dtypes.
        "product of float32 and float64 .* is not supported": ((a, empty(K, N, dtype=np.float64)), {}),
        "product of float32 and float32 plus float64 to float64 is not supported": ((a, b), {"dtype": np.float64}),
        "product of float32 and float32 plus float16 to float32 is not": (
            (a, b),
            {"c": empty(M, N, dtype=np.float16)},
        ),
        "out has dtype float32, and dtype= is float16": ((a, b), {"out": out, "dtype": np.float16}),
        "product of uint8 and uint8 .* nothing at all": (
            (empty(M, K, dtype=np.uint8), empty(K, N, dtype=np.uint8)),
            {},
        ),
        "product of float8_e5m2 and float8_e5m2 .* is not supported": (
            (empty(16, 16, dtype=E5M2), empty(16, 16, dtype=E5M2).T),
            {},
        ),
        "compute='tf64': products of float32 to float32 support": ((a, b), {"compute": "tf64"}),
        "compute='tf32': products of bfloat16 .*pedantic": (
            (empty(M, K, dtype=BF16), empty(K, N, dtype=BF16)),
            {"compute": "tf32"},
        ),
        "cannot fill float32 elements with 1j": ((a, b), {"alpha": 1j}),
        "alpha is 0 or 1 for products of int8": ((empty(16, 16, dtype=i1), empty(16, 16, dtype=i1).T), {"alpha": 2}),
        # Epilogues.
        "epilogue='sigmoid' is not supported; use": ((a, b), {"epilogue": "sigmoid"}),
        "epilogue='bias' needs bias=": ((a, b), {"epilogue": "bias"}),
        "epilogue=None has no bias": ((a, b), {"bias": bias}),
        "epilogue='relu_aux' needs aux=": ((a, b), {"epilogue": "relu_aux"}),
        "epilogue='bgradb' needs bias_gradient=": ((a, b), {"epilogue": "bgradb"}),
        "epilogue='bias' has no bias_gradient": ((a, b), {"epilogue": "bias", "bias": bias, "bias_gradient": bias}),
        "bias has shape .24,., and must have .40,.": ((a, b), {"epilogue": "bias", "bias": empty(K)}),
        "bias has dtype float64, and must have float32": (
            (a, b),
            {"epilogue": "bias", "bias": empty(N, dtype=np.float64)},
        ),
        "bias is not contiguous": ((a, b), {"epilogue": "bias", "bias": empty(2 * N)[::2]}),
        "bias_gradient has shape .* and must have .12,.": ((a, b), {"epilogue": "bgrada", "bias_gradient": bias}),
        "support no epilogue; 'relu' was given": ((empty(M, K, dtype=c8), empty(K, N, dtype=c8)), {"epilogue": "relu"}),
        "out lies column by column": ((a, b), {"epilogue": "bias", "bias": bias, "out": empty(N, M).T}),
        "aux has uint8 .* and must have uint8 or int8 .12, 16.": (
            (a, b),
            {"epilogue": "relu_aux", "aux": empty(M, 5, dtype=np.uint8)},
        ),
        r"aux has float32 .* take dev.empty\(\(12, 40\), 'float32'\)": (
            (a, b),
            {"epilogue": "gelu_aux", "aux": empty(M, 48)},
        ),
        r"aux must lie row by row.* take dev.empty\(\(12, 16\), 'float32'\)\[..., :9\]": (
            (a, empty(K, 9)),
            {"epilogue": "gelu_aux", "aux": empty(M, 9)},
        ),
        "aux must lie row by row, its rows multiples of 16": (
            (a, b),
            {"epilogue": "relu_aux", "aux": empty(M, 24, dtype=np.uint8)[:, :16]},
        ),
        # Elements of 8 bits.
        "b does not fit a product of float8_e4m3fn": ((narrow[0], empty(32, 48, dtype=e4)), {}),
        "a does not fit a product of float8_e4m3fn": ((empty(32, 16, dtype=e4).T, narrow[1]), {}),
        "does not fit .* multiples of 16 bytes": ((empty(16, 24, dtype=e4), empty(48, 24, dtype=e4).T), {}),
        "out does not fit .* multiples of 16 bytes": ((narrow[0], narrow[1][:, :36]), {"dtype": np.float16}),
        "does not fit .* multiples of 4 elements": ((empty(4, 6, dtype=i1), empty(4, 6, dtype=i1).T), {}),
        "scale_a is for elements of 8 bits": ((a, b), {"scale_a": one}),
        "scale_out is for elements of 8 bits": (narrow, {"scale_out": one}),
        "amax is for elements of 8 bits": (narrow, {"amax": one}),
        "scale_c is for elements of 8 bits": (narrow, {"scale_c": one}),
        "scale_b has dtype float64": (narrow, {"scale_b": empty(dtype=np.float64)}),
        "scale_b has 0 axes, not 1": (narrow, {"scale_b": empty(1)}),
        # Memory in common.
        "shares memory with an input": ((both[:M, :K], both[M:, K:]), {"out": both[:M, :N]}),
        "output .* shares memory": ((a, b), {"c": both[1 : M + 1, :N], "out": both[:M, :N], "beta": 1}),
        "the output .* with an input": ((a, b), {"out": out, "epilogue": "gelu_aux", "aux": out}),
    }


async def test_wrong_calls_say_what_is_wrong_and_send_nothing(dev):
    cases = refused(dev)
    async with dev.batch() as batch:
        submitted = [lane.submitted for lane in dev.statistics().lanes]
        for message, (inputs, keywords) in cases.items():
            with pytest.raises(InvalidArgument, match=message):
                await dev.blaslt.matmul(*inputs, **keywords)
            with pytest.raises(InvalidArgument, match=message):
                batch.blaslt.matmul(*inputs, **keywords)
        assert [lane.submitted for lane in dev.statistics().lanes] == submitted


async def test_an_array_of_another_device_is_refused(dev, open_test_device):
    async with open_test_device(0) as other:
        with pytest.raises(InvalidArgument, match="belongs to another device"):
            await dev.blaslt.matmul(dev.empty((4, 4)), other.empty((4, 4)))


@pytest.mark.sim_only
async def test_what_the_library_has_no_algorithm_for_is_an_error_that_names_it(dev):
    """Nothing of what was asked for is left out: sums of inputs of 8 bits are not made."""
    a, b, gradient = dev.empty((16, 32), E4M3), dev.empty((48, 32), E4M3).T, dev.empty(48, BF16)
    for _ in range(2):
        with pytest.raises(CommandFailed) as caught:
            await dev.blaslt.matmul(a, b, epilogue="bgradb", bias_gradient=gradient)
        error = caught.value
        assert (error.status, error.status_name, error.library) == (15, "CUBLAS_STATUS_NOT_SUPPORTED", "cublaslt")
        assert error.operation == "blaslt.matmul"
        for words in ("CUBLASLT_EPILOGUE_BGRADA", "A CUDA_R_8F_E4M3 32 x 48 T", "batch 1", "CUBLAS_COMPUTE_32F"):
            assert words in str(error)
    assert await dev.blaslt.matmul(a, b) is not None


# --- the two forms, lanes, losses -------------------------------------------------------------------------------------


async def test_a_batch_gives_what_awaiting_gives(dev, rng):
    a, b, bias = [await dev.to_device(numbers(rng, shape, np.float32)) for shape in ((M, K), (K, N), (N,))]
    awaited = await (await dev.blaslt.matmul(a, b, epilogue="gelu_bias", bias=bias)).to_host()
    async with dev.batch() as batch:
        results = [batch.blaslt.matmul(a, b, epilogue="gelu_bias", bias=bias) for _ in range(20)]
        scattered = batch.blaslt.matmul(a, b[:, ::2])
    for result in results:
        assert (await result.to_host()).tobytes() == awaited.tobytes()
    check_close(await scattered.to_host(), wide(await a.to_host()) @ wide(await b.to_host())[:, ::2])


async def test_chains_of_products_on_several_lanes(dev, rng):
    a = numbers(rng, (M, M), np.float64)
    whole = await dev.to_device(a)
    async with dev.lane() as one, dev.lane() as two:
        async with dev.batch(lane=one) as first:
            square = first.blaslt.matmul(whole, whole)
            fourth = first.blaslt.matmul(square, square)
        async with dev.batch(lane=two) as second:
            fifth = second.blaslt.matmul(fourth, whole)
        check_close(await fifth.to_host(), np.linalg.matrix_power(a, 5), terms=M * M)
        lanes = {number for library, number, _ in core_of(dev).current.called if library == "blaslt"}
        assert lanes == {one._number, two._number}
    check_close(await (await dev.blaslt.matmul(whole, whole)).to_host(), a @ a)


async def test_only_the_first_product_of_a_plan_may_hold_its_lane(dev):
    assert (BLASLT.first_execute.mode, BLASLT.execute.mode) == (Mode.BLOCKS, Mode.ENQUEUES)
    a, b = dev.zeros((M, K), np.float32), dev.zeros((K, N), np.float32)

    def plans() -> int:
        return sum(library == "blaslt" for library, *_ in core_of(dev).current.called)

    for _ in range(3):
        await dev.blaslt.matmul(a, b)
        assert plans() == 1
    await dev.blaslt.matmul(b, a, op_a="T", op_b="T")
    assert plans() == 2


@pytest.mark.long
async def test_plans_are_made_anew_after_a_loss_and_give_the_same_bits(dev, rng):
    a, b = [await dev.to_device(numbers(rng, shape, np.float32)) for shape in ((M, K), (K, N))]
    before = await (await dev.blaslt.matmul(a, b, epilogue="gelu")).to_host()
    await dev.restart("a test")
    assert core_of(dev).current.called == set()
    after = await (await dev.blaslt.matmul(a, b, epilogue="gelu")).to_host()
    assert after.tobytes() == before.tobytes()


async def test_what_was_started_is_lost_and_what_comes_later_is_not(dev, rng):
    a = numbers(rng, (M, M), np.float64)
    whole = await dev.to_device(a)
    outcomes = []

    async def multiply() -> None:
        try:
            result = await dev.blaslt.matmul(whole, whole)
            check_close(await result.to_host(), a @ a)
            outcomes.append(True)
        except ContextLost as lost:
            outcomes.append(lost.generation == 1)

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(multiply)
        await trio.testing.wait_all_tasks_blocked()
        await dev.restart("a test")
    assert outcomes == [True] * 8
    check_close(await (await dev.blaslt.matmul(whole, whole)).to_host(), a @ a)


async def test_what_a_product_does_to_each_array(dev):
    """That decides what waits for it, and what a fault leaves half written."""
    read, write, whole = Role.READ, Role.WRITE, Role.OVERWRITE
    a, b, c, out = (dev.empty(shape, np.float32) for shape in ((M, K), (K, N), (M, N), (M, N)))
    part, gradient = dev.empty((M + 1, N), np.float32)[1:], dev.empty(N, np.float32)
    mask, kept = dev.empty((M, 16), np.uint8), dev.empty((M, N), np.float32)
    e, f = dev.empty((16, 16), E4M3), dev.empty((16, 16), E4M3)
    narrow, scale, amax = dev.empty((16, 16), E4M3), dev.empty((), np.float32), dev.empty((), np.float32)
    cases: list[tuple[dict[str, Any], dict[DeviceArray, Role]]] = [
        ({"out": out}, {out: whole}),
        ({"out": part}, {part: write}),
        ({"out": out, "beta": 1}, {out: write}),
        ({"out": out, "c": c, "beta": 1}, {out: whole, c: read}),
        ({"out": out, "c": c}, {out: whole}),
        ({"out": out, "epilogue": "bias", "bias": gradient}, {out: whole, gradient: read}),
        ({"out": out, "epilogue": "relu_aux", "aux": mask}, {out: whole, mask: write}),
        ({"out": out, "epilogue": "gelu_aux", "aux": kept}, {out: whole, kept: whole}),
        (
            {"out": out, "epilogue": "drelu_bgrad", "aux": mask, "bias_gradient": gradient},
            {out: whole, mask: read, gradient: whole},
        ),
    ]
    wide_inputs = [(a, b, keywords, roles | {a: read, b: read}) for keywords, roles in cases]
    scaled = {narrow: whole, scale: read, amax: whole, e: read, f: read}
    for first, second, keywords, roles in (
        *wide_inputs,
        (e, f.T, {"out": narrow, "scale_out": scale, "amax": amax}, scaled),
    ):
        planner = dev.blaslt._planner()
        type(planner).matmul.plan(planner, first, second, **keywords)
        (request,) = planner._requests
        assert dict(request.operands) == {array._block: role for array, role in roles.items()}


# --- records and plans ------------------------------------------------------------------------------------------------

PROBLEM = Problem(68, 0, 1, 0, 4, 0, 2, 3, 8, 16, tuple(Layout(0, 4, 5, 6 + i, 7) for i in range(4)))


def test_a_plan_is_known_by_all_that_matters_and_by_no_address():
    def key(problem: Problem = PROBLEM, **addresses: int) -> Any:
        places = {"a": 256, "b": 512, "c": 1024, "d": 1024}
        return plan_key(problem.pack(), Addresses(**(places | addresses)))

    assert key() == key(a=1 << 40, b=256, c=512, d=512)
    others = [key(a=16), key(b=128), key(c=512), key(c=0), key(bias=256), key(bias=4), key(aux=256), key(amax=256)]
    for field in Problem._fields:
        value = getattr(PROBLEM, field)
        changed = (*value[:3], value[3]._replace(leading=99)) if field == "layouts" else value + 1
        others.append(key(PROBLEM._replace(**{field: changed})))
    for field in Layout._fields:
        first = PROBLEM.layouts[0]
        changed = (first._replace(**{field: 99}), *PROBLEM.layouts[1:])
        others.append(key(PROBLEM._replace(layouts=changed)))
    assert len({key(), *others}) == 1 + len(others)
