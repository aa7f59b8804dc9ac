"""NaN and infinities in what `dev.solver` is given: numpy's answer where that is NaN, and else a typed error.

No finite answer comes of an input with NaN. What a GPU's library makes of an infinity in a linear system is its own
arithmetic, in an order of its own, so there only the simulator is held against numpy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from atomr_cuda import CudaError, driver
from atomr_trio import (
    ConvergenceError,
    Device,
    DeviceArray,
    DeviceError,
    NotFiniteError,
    NotPositiveDefiniteError,
    SingularMatrixError,
    link,
)
from atomr_trio._calls.outgoing import Outgoing
from atomr_trio._worker.base.capture_turns import CaptureTurns
from atomr_trio._worker.base.lanes import Command
from atomr_trio.libraries.solver.engine import solver_engine
from atomr_trio.libraries.solver.engine_kernels import PTX
from atomr_trio.libraries.solver.records import FUNCTIONS, SOLVER
from atomr_trio.testing import ReturnStatus, inject
from support import ON_GPU, sim_process
from support.blas import DTYPES, exact, fresh_random, random
from support.solver import Solving, assert_small, functions_of, half, hermitian, positive

Numbers = npt.NDArray[Any]

SIZES = (1, 2, 5, 33)
NAMES = {np.nan: "NaN", np.inf: "infinity", -np.inf: "infinity"}


@pytest.fixture
def rng() -> np.random.Generator:
    return fresh_random()


def spoilt(numbers: Numbers, value: float, *place: int) -> Numbers:
    """The same with such a number in one place: below the diagonal of a complex matrix in the imaginary part."""
    result = numbers.copy()
    result[place] = complex(1, value) if numbers.dtype.kind == "c" and place[-2] > place[-1] else value
    return result


def places(order: int) -> list[tuple[int, int]]:
    """Places in the lower triangle of a matrix."""
    return sorted({(0, 0), (order - 1, 0), (order - 1, order - 1)})


# --- where numpy answers NaN ------------------------------------------------------------------------------------------

ANSWERED = {"solve": True, "inv": False, "det": False, "slogdet": False, "qr": False, "cholesky": False}
"""Whether they take right-hand sides."""


def by_numpy(verb: str, *operands: Numbers) -> tuple[Numbers, ...] | None:
    """What numpy returns; None if it raises."""
    with np.errstate(all="ignore"):
        try:
            result = getattr(np.linalg, verb)(*operands)
        except np.linalg.LinAlgError:
            return None
    return tuple(map(np.asarray, result)) if isinstance(result, tuple) else (np.asarray(result),)


async def on_host(result: Any) -> tuple[Numbers, ...]:
    """What a verb of a batch has returned, when the batch is done."""
    parts = result if isinstance(result, tuple) else (result,)
    return tuple([await each.to_host() if isinstance(each, DeviceArray) else np.asarray(each) for each in parts])


def lost(reference: Numbers, result: Numbers) -> bool:
    """Whether something is a number where it must be NaN."""
    return bool((np.isnan(reference) & ~np.isnan(result)).any())


@pytest.mark.long
async def test_where_numpy_answers_nan_so_do_the_verbs_of_its_names(dev: Device, rng: np.random.Generator) -> None:
    for dtype, order in itertools.product(DTYPES, SIZES):
        good, b = square(rng, order, dtype), random(rng, (order, 2), dtype)
        with_nan = [spoilt(good, np.nan, *place) for place in places(order)[:2]]
        infinite = [spoilt(good, value, *place) for value, place in zip((np.inf, -np.inf), places(order), strict=False)]
        stack = np.stack([good, *with_nan, *infinite])
        x, sides = await dev.to_device(stack), await dev.to_device(b)
        results, operands, single = {}, {}, {}
        async with dev.batch() as batch:
            for verb, takes_sides in ANSWERED.items():
                count = 1 + len(with_nan) if verb == "cholesky" else len(stack)  # -inf is not positive
                operands[verb] = (stack[:count], *((b,) if takes_sides else ()))
                results[verb] = getattr(batch.solver, verb)(x[:count], *((sides,) if takes_sides else ()))
                single[verb] = getattr(batch.solver, verb)(x[1], *((sides,) if takes_sides else ()))
        for verb, result in single.items():
            assert all(np.isnan(each).any() for each in await on_host(result)), (verb, order)
        for verb, result in results.items():
            found = await on_host(result)
            clean = by_numpy(verb, exact(good), *map(exact, operands[verb][1:]))
            expected = by_numpy(verb, *map(exact, operands[verb]))
            assert clean is not None
            for index, each in enumerate(found):
                # Signs of columns are the library's choice.
                assert_small(np.abs(exact(each[0])) - np.abs(clean[index]), clean[index], dtype, 20 * order)
                for number in range(1, 1 + len(with_nan)):
                    assert np.isnan(each[number]).any(), (verb, order, number)
                    assert verb in ("cholesky", "qr") or np.isnan(each[number]).all()
                if expected is not None:
                    held = slice(None) if verb == "qr" or not ON_GPU else slice(1 + len(with_nan))
                    assert not lost(expected[index][held], each[held]), (verb, order)


async def test_only_what_belongs_to_a_matrix_with_nan_is_nan(dev: Device, rng: np.random.Generator) -> None:
    call = Solving(dev)
    a = positive(rng, (3, 1, 4, 4), "complex64")
    a[1, 0, 2, 3] = complex(0, np.nan)
    found = await call("solve", await dev.to_device(a), await dev.to_device(random(rng, (2, 4, 1), "complex64")))
    assert (np.isnan(found).all(axis=(-2, -1)) == [[False, False], [True, True], [False, False]]).all()
    assert np.isfinite(found[::2]).all()
    many = positive(rng, (1100, 2, 2), "float64")  # more than one call answers for
    many[1050, 1, 0] = np.nan
    given = await dev.to_device(many)
    out = dev.zeros((1100, 2, 2), np.float64)
    for result in (await call("det", given), await call("inv", given, out=out), await out.to_host()):
        has_nan = np.isnan(result).reshape(1100, -1)
        assert (has_nan.all(axis=1) == (np.arange(1100) == 1050)).all()
        assert (has_nan.any(axis=1) == has_nan.all(axis=1)).all()


async def test_without_the_check_the_calls_are_the_librarys_alone(dev: Device) -> None:
    square, sides = dev.zeros((4, 4), np.float64), dev.zeros(4, np.float64)
    for verb, operands in {"solve": (square, sides), **dict.fromkeys(("inv", "cholesky", "det"), (square,))}.items():
        checked = functions_of(dev, verb, *operands)
        assert checked.pop("look") == 1
        assert checked.pop("taint", 0) == (
            verb in ("solve", "inv")
        )  # the kernel that clears a triangle does it as well
        assert checked == functions_of(dev, verb, *operands, check_finite=False)


async def test_the_look_costs_no_command_and_no_wait(dev: Device) -> None:
    """It is a part of the call's own command, and decides nothing by itself: what follows is sent at once.

    Of a small matrix it even makes the copy that the library is to overwrite.
    """
    square, sides = dev.zeros((4, 4), np.float64), dev.zeros(4, np.float64)
    for verb in ("solve", "inv", "cholesky", "det", "qr", "lstsq", "svd", "eigh", "gesvdj", "getrf", "sygvd"):
        operands = {"solve": (square, sides), "lstsq": (square, sides), "sygvd": (square, square)}.get(verb, (square,))
        sent = []
        for check_finite in (True, False):
            planner = dev.solver._planner()
            getattr(type(planner), verb).plan(planner, *operands, check_finite=check_finite)
            requests = Outgoing(planner._requests).take()
            sent.append((len(requests), sum(request.decides for request in requests)))
        spared = verb in ("solve", "inv", "cholesky", "det")
        assert sent[0] == (sent[1][0] - spared, sent[1][1]), verb


async def test_complex_matrices_are_transposed_bit_by_bit(dev: Device) -> None:
    """cuBLAS multiplies by one on the way, which makes NaN of infinities, and drops the signs of zeros."""
    parts = (1.5, -0.0, np.inf, -np.inf, np.nan)
    special = [complex(real, imag) for real, imag in itertools.product(parts, parts)]
    for dtype, shape in itertools.product(
        ("complex64", "complex128"), ((1, 1), (5, 5), (16, 33), (40, 17), (3, 7, 20))
    ):
        a = np.resize(np.array(special, dtype), shape)
        x = await dev.to_device(a)
        turned = await dev.solver._ask(lambda planner, x=x: planner._copied(x).array, (), {})
        assert turned.strides[-2] == a.itemsize or min(shape[-2:]) == 1
        assert (await turned.to_host()).tobytes() == a.tobytes(), (dtype, shape)


# --- where it raises --------------------------------------------------------------------------------------------------

Make = Callable[[np.random.Generator, int, str], Numbers]


def right_side(rng: np.random.Generator, order: int, dtype: str) -> Numbers:
    return random(rng, (order, 2), dtype)


def square(rng: np.random.Generator, order: int, dtype: str) -> Numbers:
    """A positive definite matrix whose determinant no type is too small for."""
    return np.asarray(positive(rng, (order, order), dtype) / (4 * order), dtype)


def one_triangle(rng: np.random.Generator, order: int, dtype: str) -> Numbers:
    """NaN where nobody looks."""
    return half(square(rng, order, dtype), lower=True)


REFUSED: dict[str, tuple[dict[str, Make], tuple[Any, ...]]] = {
    "svd": ({"a": square}, ()),
    "eigh": ({"a": one_triangle}, ()),
    "eigvalsh": ({"a": one_triangle}, ()),
    "lstsq": ({"a": square, "b": right_side}, ()),
    "gesvd": ({"a": square}, ()),
    "gesvdj": ({"a": square}, ()),
    "gesvda": ({"a": square}, (1,)),
    "syevd": ({"a": one_triangle}, ()),
    "syevdx": ({"a": one_triangle}, (0, 1)),
    "syevj": ({"a": one_triangle}, ()),
    "sygvd": ({"a": one_triangle, "b": one_triangle}, ()),
}
"""Their operands, and the arguments behind: verbs that have no answer for an infinity either."""
REFUSED_FOR_NAN: dict[str, tuple[dict[str, Make], tuple[Any, ...]]] = {
    "getrf": ({"a": square}, ()),
    "potrf": ({"a": one_triangle}, ()),
    "geqrf": ({"a": square}, ()),
    "gels": ({"a": square, "b": right_side}, ()),
}
ITERATE = {
    **dict.fromkeys(("svd", "gesvd"), ("Xgesvd",)),
    **dict.fromkeys(("eigh", "eigvalsh", "syevd"), ("Xsyevd",)),
    "syevdx": ("Xsyevdx",),
}
"""The functions that verbs call, where their names differ."""
NOT_SUPPORTED = 9
NOT_LOOKED_AT = {("lstsq", "b"), ("gels", "b")}


async def test_what_has_no_answer_is_a_typed_error(dev: Device, rng: np.random.Generator) -> None:
    wrong = []
    for dtype, order, (verb, (makes, more)) in itertools.product(DTYPES, SIZES, (REFUSED | REFUSED_FOR_NAN).items()):
        operands = {name: make(rng, order, dtype) for name, make in makes.items()}
        arrays = {name: await dev.to_device(numbers) for name, numbers in operands.items()}
        for name, value in itertools.product(operands, (np.nan, -np.inf)):
            if (verb, name) in NOT_LOOKED_AT or (value != value) < (verb in REFUSED_FOR_NAN):
                continue
            row, column = places(order)[-1 if order == 5 else min(1, order - 1)]
            bad = await dev.to_device(spoilt(operands[name], value, row, column))
            with pytest.raises(NotFiniteError) as caught:
                await getattr(dev.solver, verb)(*{**arrays, name: bad}.values(), *more)
            error = caught.value
            says = f"{name} holds {NAMES[value]}; {verb} takes " in str(error)
            told = (error.operand, error.found, error.matrix, error.operation)
            if not says or told != (name, NAMES[value], None, f"solver.{verb}"):
                wrong.append((dtype, order, value, str(error).partition(";")[0], told))
    assert not wrong


@pytest.mark.sim_only
async def test_an_iteration_does_not_begin_with_what_is_not_finite(dev: Device, rng: np.random.Generator) -> None:
    """With NaN cuSOLVER's SVD of order 300 takes more than 12 s on an H200, and without it 40 ms."""
    for (verb, (makes, more)), value in itertools.product(REFUSED.items(), (np.nan, np.inf)):
        if verb == "lstsq":
            continue  # it does not iterate
        good = {name: await dev.to_device(make(rng, 5, "float64")) for name, make in makes.items()}
        bad = await dev.to_device(spoilt(makes["a"](rng, 5, "float64"), value, 3, 1))
        stack = await dev.to_device(np.stack([spoilt(makes["a"](rng, 5, "float64"), value, 3, 1)] * 3))
        for function in ITERATE.get(verb, (f"D{verb}", f"D{verb}Batched", f"D{verb}StridedBatched")):
            if f"cusolverDn{function}" in FUNCTIONS:
                inject(dev, f"cusolverDn{function}", ReturnStatus(NOT_SUPPORTED), times=math.inf)
        for a in (bad, stack):
            with pytest.raises(NotFiniteError):
                await getattr(dev.solver, verb)(a, *(a,) * (len(makes) - 1), *more)
        with pytest.raises(DeviceError, match="CUSOLVER_STATUS_NOT_SUPPORTED"):
            await getattr(dev.solver, verb)(*good.values(), *more)


async def test_the_error_names_the_matrix_of_a_stack_and_comes_once(dev: Device, rng: np.random.Generator) -> None:
    call = Solving(dev)
    stack = np.stack([square(rng, 3, "float64") for _ in range(6)]).reshape(2, 3, 3, 3)
    stack[1, 1, 2, 0] = np.nan
    stack[1, 2, 2, 2] = np.nan
    given, sides = await dev.to_device(stack), await dev.to_device(right_side(rng, 3, "float64"))
    for verb in ("svd", "syevj", "getrf", "potrf", "lstsq"):
        error = await call.fails(NotFiniteError, verb, *((given, sides) if verb == "lstsq" else (given,)))
        assert (error.operand, error.found, error.matrix) == ("a", "NaN", (1, 1))
        assert not getattr(error, "__notes__", ()), "the library's info of the same matrix is told as well"


async def test_matrices_at_uneven_distances_are_looked_at(dev: Device, rng: np.random.Generator) -> None:
    numbers = np.stack([square(rng, 4, "float32") for _ in range(6)]).reshape(2, 3, 4, 4)
    numbers[1, 1, 1, 3] = numbers[0, 2, 0, 0] = np.nan
    uneven = (await dev.to_device(numbers))[:, :2].transpose(0, 1, 3, 2)
    target = (await dev.to_device(np.zeros((2, 3, 4, 4), np.float32)))[:, :2].transpose(0, 1, 3, 2)
    found = await (await dev.solver.inv(uneven, out=target)).to_host()
    assert (np.isnan(found).all(axis=(-2, -1)) == [[False, False], [False, True]]).all()
    error = await Solving(dev).fails(NotFiniteError, "syevd", uneven, overwrite_a=True)
    assert error.matrix == (1, 1)


async def test_an_error_of_one_call_leaves_the_others_of_a_batch(dev: Device, rng: np.random.Generator) -> None:
    good = square(rng, 5, "float64")
    x, bad = await dev.to_device(good), await dev.to_device(spoilt(good, np.inf, 3, 1))
    inverses = []

    async def both() -> None:
        async with dev.batch() as batch:
            batch.solver.eigvalsh(bad)
            inverses.append(batch.solver.inv(x))

    with pytest.raises(NotFiniteError, match="a holds infinity"):
        await both()
    assert_small(good @ await inverses[0].to_host() - np.eye(5), 1, "float64", 20)


async def test_without_the_check_an_iteration_ends_all_the_same(dev: Device, rng: np.random.Generator) -> None:
    """numpy's own may go on for ever, as LAPACK's does for such a matrix."""
    call, refused = Solving(dev), []
    for verb, value in itertools.product(REFUSED, (np.nan, np.inf)):
        makes, more = REFUSED[verb]
        operands = [spoilt(hermitian(rng, (5, 5), "float64"), value, 0, 0)]
        operands += [make(rng, 5, "float64") for make in list(makes.values())[1:]]
        arrays = [await dev.to_device(each) for each in operands]
        found: Any = None
        try:
            found = await call.on_device(verb, *arrays, *more, check_finite=False)
        except (ConvergenceError, SingularMatrixError, NotPositiveDefiniteError) as error:
            refused.append(type(error))
        if found is not None and not ON_GPU:
            assert any(np.isnan(each).any() for each in await on_host(found)), verb
    assert NotFiniteError not in refused


# --- what is made of factors ------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_nan_travels_through_factors_and_right_hand_sides(dev: Device, rng: np.random.Generator) -> None:
    for dtype, order in itertools.product(DTYPES, SIZES):
        a, b = square(rng, order, dtype), random(rng, (order, 3), dtype)
        x, sides = await dev.to_device(a), await dev.to_device(b)
        lu, pivots = await dev.solver.getrf(x)
        factor, (qr, tau) = await dev.solver.potrf(x), await dev.solver.geqrf(x)
        corner = (order - 1, 0)
        bad_sides = await dev.to_device(spoilt(b, np.nan, order - 1, 1))
        bad_lu, bad_factor, bad_qr = [
            await dev.to_device(spoilt(await each.to_host(), np.nan, *corner)) for each in (lu, factor, qr)
        ]
        calls: dict[str, tuple[Any, ...]] = {
            "solve, b": ("solve", x, bad_sides),
            "lstsq, b": ("lstsq", x, bad_sides),
            "gels, b": ("gels", x, bad_sides),
            "getrs, lu": ("getrs", bad_lu, pivots, sides),
            "getrs, b": ("getrs", lu, pivots, bad_sides),
            "getri, lu": ("getri", bad_lu, pivots),
            "potrs, factor": ("potrs", bad_factor, sides),
            "potrs, b": ("potrs", factor, bad_sides),
            "potri, factor": ("potri", bad_factor),
            "ormqr, c": ("ormqr", qr, tau, bad_sides),
        }
        if order > 1:  # of one row there is no reflector
            calls["orgqr, qr"] = ("orgqr", bad_qr, tau)
            calls["ormqr, qr"] = ("ormqr", bad_qr, tau, sides)
        async with dev.batch() as batch:
            results = {name: getattr(batch.solver, verb)(*arrays) for name, (verb, *arrays) in calls.items()}
        for name, result in results.items():
            (found,) = await on_host(result)
            if name.endswith((", b", ", c")):
                assert np.isnan(found[:, 1]).any(), (name, order)
                # The refinement of gels may look at all columns to see whether it has converged.
                assert "gels" in name or np.isfinite(found[:, [0, 2]]).all(), (name, order)
            else:
                assert np.isnan(found).any(), (name, order)


# --- the kernels ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_100"])
def test_the_kernels_are_ptx_that_the_real_assembler_takes(arch: str) -> None:
    assert link([PTX.encode()], arch=arch).startswith(b"\x7fELF")


@pytest.mark.sim_only
def test_a_standby_has_the_kernels_ahead_of_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    sim_process.begin()
    load, loads = driver.cuModuleLoadData, []
    monkeypatch.setattr(driver, "cuModuleLoadData", lambda *arguments: loads.append(load(*arguments)))
    services: Any = SimpleNamespace(cuda_error=CudaError, capture_turns=CaptureTurns())
    lane: Any = SimpleNamespace(index=0, stream=sim_process.stream())
    engine, command = solver_engine(services), Command.__new__(Command)
    assert loads == []
    engine.calls[SOLVER.open.number](command, lane)
    assert len(loads) == 1
    address = sim_process.allocate(64)
    engine._kernels.look((0, address, 2, 2, 2, 4, 0, 1, address + 32, 0, 0)).make(lane.stream)
    assert len(loads) == 1
    engine.close()
