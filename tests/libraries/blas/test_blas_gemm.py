"""Products of general matrices: `gemm` of one, of stacks, `gemm_batched` of lists, and what they refuse."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from atomr_trio import Device
from atomr_trio._calls.verbs import CallRequest
from atomr_trio.libraries.blas.records import BLAS
from support.blas import (
    DTYPES,
    MATRICES,
    SCATTERED,
    Caller,
    Layout,
    assert_close,
    assert_refused,
    exact,
    fresh_random,
    place,
    place_poisoned,
    random,
    shared,
    submitted,
)

Array = npt.NDArray[Any]

BACKWARDS = Layout("backwards", lambda m, n: (m, n), lambda m, n: lambda w: w[::-1])
ANY = (*MATRICES, *SCATTERED, BACKWARDS)
BY_ROWS, BY_COLUMNS, ROWS_OF_MORE, COLUMNS_OF_MORE = MATRICES

BFLOAT16 = ml_dtypes.bfloat16.__name__
EPSILONS = {
    "tf32": 2.0**-10,
    "fast_float16": 2.0**-10,
    "fast_bfloat16": 2.0**-7,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "int32": 0.0,
}
"""The distance of 1 from its neighbour, by the arithmetic or by the dtype of the result."""


@pytest.fixture
def rng() -> np.random.Generator:
    return fresh_random()


def some(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Random numbers of any dtype that is multiplied."""
    if dtype.startswith("int"):
        return rng.integers(-100, 100, shape).astype(dtype)
    if dtype == BFLOAT16:
        return random(rng, shape, "float32").astype(ml_dtypes.bfloat16)
    return random(rng, shape, dtype)


def after(operation: str, matrix: Array) -> Array:
    """What "N", "T" and "C" mean, for stacks, too."""
    turned = matrix if operation == "N" else np.swapaxes(matrix, -1, -2)
    return turned.conj() if operation == "C" and turned.dtype.kind == "c" else turned


def check_product(
    result: Array, a: Array, b: Array, alpha: complex = 1, beta: complex = 0, c: Array | None = None, how: str = ""
) -> None:
    a, b = exact(a), exact(b)
    wanted, size = alpha * (a @ b), np.abs(alpha) * (np.abs(a) @ np.abs(b))
    if c is not None:
        wanted, size = wanted + beta * exact(c), size + np.abs(beta) * np.abs(exact(c))
    epsilon = EPSILONS.get(how, EPSILONS.get(result.dtype.name))
    assert_close(result, wanted, size, a.shape[-1] + 2, epsilon=epsilon)


def shape_before(operation: str, rows: int, columns: int) -> tuple[int, int]:
    return (rows, columns) if operation == "N" else (columns, rows)


# ---------------------------------------------------------------------------------------------------- one product


@pytest.mark.parametrize("dtype", DTYPES)
async def test_a_product_of_matrices_that_lie_in_any_way(dev: Device, rng: np.random.Generator, dtype: str) -> None:
    call, (m, k, n) = Caller(dev), (5, 7, 3)
    beta = 0.5 - 2j if dtype.startswith("c") else 0.5
    for left, out in shared(itertools.product(ANY, MATRICES), dtype):
        a, b, c = random(rng, (m, k), dtype), random(rng, (k, n), dtype), random(rng, (m, n), dtype)
        first, second, result = (
            await place(dev, left, a),
            await place(dev, rng.choice(ANY), b),
            await place(dev, out, c),
        )
        returned = await call("gemm", first.array, second.array, alpha=-1.5, beta=beta, out=(view := result.array))
        assert returned is view
        check_product(await result.read(), a, b, -1.5, beta, c)


@pytest.mark.parametrize("dtype", DTYPES)
async def test_operations_on_the_operands(dev: Device, rng: np.random.Generator, dtype: str) -> None:
    m, k, n = 4, 6, 9
    ways = list(itertools.product("NTC", (BY_ROWS, COLUMNS_OF_MORE)))
    lefts = [(op, await place(dev, way, random(rng, shape_before(op, m, k), dtype))) for op, way in ways]
    rights = [(op, await place(dev, way, random(rng, shape_before(op, k, n), dtype))) for op, way in ways]
    outs = [await place_poisoned(dev, way, (m, n), dtype) for way in (ROWS_OF_MORE, BY_COLUMNS)]
    for (op_a, a), (op_b, b), c in shared(itertools.product(lefts, rights, outs), dtype):
        await dev.blas.gemm(a.array, b.array, op_a=op_a, op_b=op_b, out=c.array)
        check_product(await c.read(), after(op_a, a.view(a.before)), after(op_b, b.view(b.before)))


@pytest.mark.parametrize("dtype", DTYPES)
async def test_sizes_of_nothing_and_of_one(dev: Device, rng: np.random.Generator, dtype: str) -> None:
    call = Caller(dev)
    for m, k, n in shared(itertools.product((0, 1, 3), (0, 1, 5), (0, 1, 4)), dtype):
        a, b, c = random(rng, (m, k), dtype), random(rng, (k, n), dtype), random(rng, (m, n), dtype)
        left, right = await dev.to_device(a), await dev.to_device(b)
        result = await (await call("gemm", left, right)).to_host()
        assert result.shape == (m, n)
        check_product(result, a, b)
        out = await place(dev, COLUMNS_OF_MORE, c)
        await call("gemm", left, right, beta=2, out=out.array)
        check_product(await out.read(), a, b, 1, 2, c)


async def test_a_product_without_a_sum_overwrites_what_is_there(dev: Device) -> None:
    c = await place_poisoned(dev, ROWS_OF_MORE, (3, 4), "float32")
    await dev.blas.gemm(dev.zeros((3, 0), np.float32), dev.zeros((0, 4), np.float32), out=c.array)
    assert not (await c.read()).any()


async def test_an_empty_result_sends_nothing(dev: Device) -> None:
    a, b = dev.zeros((0, 5), np.float32), dev.zeros((5, 4), np.float32)
    sent = submitted(dev)
    assert (await dev.blas.gemm(a, b)).shape == (0, 4)
    assert submitted(dev) == sent


NARROW = [
    *(("float16", "float16"), ("float16", "float32"), (BFLOAT16, BFLOAT16), (BFLOAT16, "float32")),
    *(("int8", "int32"), ("int8", "float32")),
]


@pytest.mark.parametrize(("inputs", "results"), NARROW)
async def test_narrow_types(dev: Device, rng: np.random.Generator, inputs: str, results: str) -> None:
    call, (alpha, beta) = Caller(dev), (2, -3) if results == "int32" else (0.5, -1.5)
    shapes = ((8, 12, 4), (5, 7, 3), (1, 6, 1), (4, 4, 5), (3, 0, 2))
    for (m, k, n), (op_a, op_b) in itertools.product(shapes, ("NN", "TC", "CN")):
        a, b = some(rng, shape_before(op_a, m, k), inputs), some(rng, shape_before(op_b, k, n), inputs)
        c = some(rng, (m, n), results)
        left, right = await place(dev, rng.choice(ANY), a), await place(dev, rng.choice(ANY), b)
        out = await place(dev, rng.choice(MATRICES), c)
        words: Any = {"alpha": alpha, "beta": beta, "op_a": op_a, "op_b": op_b}
        await call("gemm", left.array, right.array, out=out.array, **words)
        check_product(await out.read(), after(op_a, a), after(op_b, b), alpha, beta, c)


async def test_bytes_are_multiplied_in_fours(dev: Device) -> None:
    """Some GPUs take no other sizes, leading dimensions and addresses; what is added is zero."""
    for m, k, n in ((5, 7, 3), (4, 8, 4), (4, 4, 1)):
        planner = dev.blas._planner()
        type(planner).gemm.plan(planner, dev.zeros((m, k), np.int8), dev.zeros((k, n), np.int8))
        (call,) = [request for request in planner._requests if isinstance(request, CallRequest)]
        _, _, *sizes, _, a, _, lda, b, _, ldb, _, c, _, ldc, _, _ = np.frombuffer(call._written.words, np.int64, 18)
        assert not any(number % 4 for number in (*sizes, a, lda, b, ldb, c, ldc))
        assert list(sizes) == [-(-length // 4) * 4 for length in (n, m, k)]


async def test_the_dtype_of_a_new_result(dev: Device) -> None:
    for inputs, asked, given in (
        ("int8", None, "int32"),
        ("float16", None, "float16"),
        ("float16", "float32", "float32"),
        ("int8", "float32", "float32"),
    ):
        a = dev.full((4, 4), 3, inputs)
        result = await dev.blas.gemm(a, a, dtype=asked)
        assert result.dtype == given
        assert ((await result.to_host()) == 36).all()


COMPUTES = [
    *itertools.product(["float32"], ["pedantic", "tf32", "fast_float16", "fast_bfloat16", "emulated"]),
    *itertools.product(["float64"], ["pedantic", "emulated"]),
    *itertools.product(["complex64"], ["pedantic", "tf32"]),
    ("complex128", "pedantic"),
]


@pytest.mark.parametrize(("dtype", "compute"), COMPUTES)
async def test_how_it_is_computed(dev: Device, rng: np.random.Generator, dtype: str, compute: Any) -> None:
    a, b = random(rng, (9, 17), dtype), random(rng, (17, 6), dtype)
    result = await dev.blas.gemm(await dev.to_device(a), await dev.to_device(b), compute=compute)
    check_product(await result.to_host(), a, b, how=compute)


# ---------------------------------------------------------------------------------------------------- stacks

STACKS = [
    *(((3,), (3,)), ((3,), ()), ((), (2, 3)), ((2, 1), (1, 3)), ((2, 3), (3,))),
    *(((1, 1), (1,)), ((0,), (0,)), ((2, 0), (1,))),
]


@pytest.mark.parametrize("dtype", [*DTYPES, "float16", "int8"])
async def test_stacks_are_broadcast_as_numpy_does(dev: Device, rng: np.random.Generator, dtype: str) -> None:
    call, (m, k, n) = Caller(dev), (3, 5, 2)
    for (first, second), (op_a, op_b) in itertools.product(STACKS, ("NN", "CT")):
        a = some(rng, (*first, *shape_before(op_a, m, k)), dtype)
        b = some(rng, (*second, *shape_before(op_b, k, n)), dtype)
        result = await call("gemm", await dev.to_device(a), await dev.to_device(b), op_a=op_a, op_b=op_b)
        check_product(await result.to_host(), after(op_a, a), after(op_b, b))


@pytest.mark.parametrize("dtype", ["float32", "complex128", "float16", "int8"])
async def test_stacks_of_views(dev: Device, rng: np.random.Generator, dtype: str) -> None:
    """In part, interleaved, transposed, backwards: some are no stack of equal distances."""
    views = (
        lambda frame: frame[:2, :3, :4, :5],
        lambda frame: frame.transpose(1, 0, 2, 3)[:2, :3, 1:5, 2:7],
        lambda frame: frame.transpose(1, 0, 3, 2)[:2, :3, :4, :5],
        lambda frame: frame[4::-4, :3, :4, :5],
        lambda frame: frame[:2, 4::-2, :4, :5],
    )
    for number, (first, second) in enumerate(itertools.product(views, repeat=2)):
        view = views[number % 3]
        left, right = some(rng, (6, 5, 7, 8), dtype), some(rng, (6, 5, 7, 8), dtype)
        frame = some(rng, (6, 5, 7, 8), "int32" if dtype == "int8" else dtype)
        on_device = await dev.to_device(frame)
        operands = first(await dev.to_device(left)), second(await dev.to_device(right))
        await dev.blas.gemm(*operands, op_b="T", beta=2, out=view(on_device)[..., :4])
        now = await on_device.to_host()
        result, before = view(now)[..., :4], view(frame)[..., :4]
        check_product(result, first(left), after("T", second(right)), 1, 2, before)
        result[...] = before
        assert now.tobytes() == frame.tobytes()


async def test_a_stack_without_sums_is_zero(dev: Device) -> None:
    result = await dev.blas.gemm(dev.zeros((3, 4, 0), np.float64), dev.zeros((3, 0, 2), np.float64))
    assert result.shape == (3, 4, 2)
    assert not (await result.to_host()).any()


# ---------------------------------------------------------------------------------------------------- lists


@pytest.mark.parametrize("dtype", [*DTYPES, "float16", BFLOAT16, "int8"])
async def test_lists_of_matrices(dev: Device, rng: np.random.Generator, dtype: str) -> None:
    call, results = Caller(dev), "int32" if dtype == "int8" else dtype
    for (op_a, op_b), (m, k, n) in itertools.product(("NN", "TC", "CN"), ((4, 5, 3), (1, 1, 7), (2, 0, 3))):
        left, way = rng.choice(ANY), rng.choice(MATRICES)
        a = [some(rng, shape_before(op_a, m, k), dtype) for _ in range(3)]
        b = [some(rng, shape_before(op_b, k, n), dtype) for _ in range(3)]
        c = [some(rng, (m, n), results) for _ in range(3)]
        first = [(await place(dev, left, each)).array for each in a]
        second = [(await place(dev, rng.choice(ANY), each)).array for each in b]
        outs = [await place(dev, way, each) for each in c]
        arrays = [out.array for out in outs]
        returned = await call("gemm_batched", first, second, op_a=op_a, op_b=op_b, beta=2, out=arrays)
        assert all(mine is theirs for mine, theirs in zip(returned, arrays, strict=True))
        for index, out in enumerate(outs):
            check_product(await out.read(), after(op_a, a[index]), after(op_b, b[index]), 1, 2, c[index])


async def test_narrow_elements_at_odd_addresses(dev: Device, rng: np.random.Generator) -> None:
    """They are multiplied one by one: the function for many may take an address for a multiple of four."""
    frame = random(rng, (3, 40), "float16")

    def pick(whole: Any) -> list[Any]:
        return [whole[row, start : start + 8].reshape(2, 4) for row, start in ((0, 1), (1, 6), (2, 3))]

    on_device = pick(await dev.to_device(frame))
    planner = dev.blas._planner()
    type(planner).gemm_batched.plan(planner, on_device, on_device, op_b="T")
    functions = [request._function for request in planner._requests if isinstance(request, CallRequest)]
    assert functions == [BLAS.numbers["cublasGemmEx_64"]] * 3
    for result, one in zip(await dev.blas.gemm_batched(on_device, on_device, op_b="T"), pick(frame), strict=True):
        check_product(await result.to_host(), one, one.T)


async def test_one_array_may_be_in_a_list_many_times(dev: Device, rng: np.random.Generator) -> None:
    a, b = random(rng, (3, 3), "float64"), random(rng, (3, 3), "float64")
    left, right = await dev.to_device(a), await dev.to_device(b)
    results = await dev.blas.gemm_batched([left] * 3, [right, left, right])
    for result, other in zip(results, (b, a, b), strict=True):
        check_product(await result.to_host(), a, other)


# ---------------------------------------------------------------------------------------------------- together


@pytest.mark.parametrize("dtype", ["float32", "complex64", "int8"])
async def test_products_in_a_batch(dev: Device, rng: np.random.Generator, dtype: str) -> None:
    a, b = some(rng, (4, 5, 6), dtype), some(rng, (4, 6, 3), dtype)
    left, right = await dev.to_device(a), await dev.to_device(b)
    async with dev.batch() as batch:
        one = batch.blas.gemm(left[0], right[0])
        many = batch.blas.gemm(left, right)
        listed = batch.blas.gemm_batched([left[1], left[3]], [right[1], right[3]])
    check_product(await one.to_host(), a[0], b[0])
    check_product(await many.to_host(), a, b)
    for result, index in zip(listed, (1, 3), strict=True):
        check_product(await result.to_host(), a[index], b[index])


async def test_blocks_of_one_matrix_are_multiplied_into_a_third(dev: Device, rng: np.random.Generator) -> None:
    """As a factorization by blocks does: they lie beside each other in the same rows."""
    whole = random(rng, (8, 8), "float64")
    on_device = await dev.to_device(whole)
    await dev.blas.gemm(on_device[4:, :4], on_device[:4, 4:], alpha=-1, beta=1, out=on_device[4:, 4:])
    now = await on_device.to_host()
    check_product(now[4:, 4:], whole[4:, :4], whole[:4, 4:], -1, 1, whole[4:, 4:])
    assert (now[:4] == whole[:4]).all()
    assert (now[4:, :4] == whole[4:, :4]).all()


async def test_complex_operands_are_conjugated_where_no_call_says_it(dev: Device, rng: np.random.Generator) -> None:
    """More columns than the copy engine would turn round."""
    for dtype in ("complex64", "complex128"):
        a, b = random(rng, (2, 300), dtype).T, random(rng, (300, 3), dtype)
        for left in ((await dev.to_device(a.T)).T, await dev.to_device(np.ascontiguousarray(a))):
            result = await dev.blas.gemm(left, await dev.to_device(b), op_a="C")
            check_product(await result.to_host(), a.conj().T, b)


# ---------------------------------------------------------------------------------------------------- what is refused


async def test_wrong_products_are_refused_and_nothing_is_sent(dev: Device) -> None:
    def zeros(*shape: int, dtype: str = "float32") -> Any:
        return dev.zeros(shape, dtype)

    a, b, out, freed, whole = zeros(3, 4), zeros(4, 5), zeros(3, 5), zeros(3, 4), zeros(6, 10)
    freed.free()
    calls: dict[str, tuple[Any, ...]] = {
        "sums of two lengths": ("gemm", a, a),
        "sums of two lengths after op_a": ("gemm", a, b, {"op_a": "T"}),
        "a vector": ("gemm", a[0], b),
        "numpy's array": ("gemm", np.zeros((3, 4), np.float32), b),
        "no operation": ("gemm", a, b, {"op_b": "H"}),
        "two dtypes": ("gemm", a, zeros(4, 5, dtype="float64")),
        "no product of int32": ("gemm", zeros(3, 4, dtype="int32"), zeros(4, 5, dtype="int32")),
        "no product to float64": ("gemm", a, b, {"dtype": "float64"}),
        "an out of another shape": ("gemm", a, b, {"out": zeros(5, 3)}),
        "an out that is no matrix of BLAS": ("gemm", a, b, {"out": whole[::2, ::2]}),
        "an out that shares memory": ("gemm", whole[:3, :4], b, {"out": whole[2:5, 3:8]}),
        "an out that was freed": ("gemm", zeros(3, 2), zeros(2, 4), {"out": freed}),
        "no such compute": ("gemm", a, b, {"compute": "fast"}),
        "a factor of nothing": ("gemm", a, b, {"beta": 2}),
        "a factor of nothing in lists": ("gemm_batched", [a], [b], {"beta": 2}),
        "a complex factor": ("gemm", a, b, {"alpha": 1j}),
        "a factor that is an array": ("gemm", a, b, {"beta": out}),
        "freed": ("gemm", freed, b),
        "stacks that do not fit": ("gemm", zeros(2, 3, 4), zeros(3, 4, 5)),
        "lists of two lengths": ("gemm_batched", [a, a], [b]),
        "lists of nothing": ("gemm_batched", [], []),
        "a stack for a list": ("gemm_batched", zeros(2, 3, 4), [b, b]),
        "a list of two shapes": ("gemm_batched", [a, b], [b, b]),
        "a list of two dtypes": ("gemm_batched", [a, a], [b, zeros(4, 5, dtype="float64")]),
        "too many results": ("gemm_batched", [a], [b], {"out": [out, zeros(3, 5)]}),
        "one result twice": ("gemm_batched", [a, a], [b, b], {"out": [out, out]}),
        "results that share memory": ("gemm_batched", [a, a], [b, b], {"out": [whole[:3, :5], whole[:3, 4:9]]}),
        "results that lie differently": ("gemm_batched", [a, a], [b, b], {"out": [out, whole[:3, :5]]}),
        "a result in an input": ("gemm_batched", [a, whole[2:5, 6:]], [b, b], {"out": [whole[:3, :5], whole[:3, 5:]]}),
    }
    await assert_refused(dev, calls)


async def test_results_may_lie_beside_each_other(dev: Device, rng: np.random.Generator) -> None:
    a, b = [random(rng, (3, 4), "float32") for _ in range(2)], [random(rng, (4, 5), "float32") for _ in range(2)]
    whole = dev.zeros((3, 10), np.float32)
    given = [[await dev.to_device(each) for each in some] for some in (a, b)]
    await dev.blas.gemm_batched(*given, out=[whole[:, :5], whole[:, 5:]])
    now = await whole.to_host()
    check_product(now[:, :5], a[0], b[0])
    check_product(now[:, 5:], a[1], b[1])
