"""A call that is made again has its new result's address where the first call had the first result's, and nowhere else.

The eight bytes of an address also occur across neighbouring words of a record: of sizes and other addresses. So the
results are made to lie where that happens, near the first address of the arena, and each repeated record is held
against the one that planning the call anew makes.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import attrs
import hypothesis.strategies as st
import numpy as np
import pytest

from atomr_trio import DeviceArray, InvalidArgument
from atomr_trio._calls.known import _repeatable, form_of
from atomr_trio._calls.verbs import Address, Library, Scalar, is_verb
from atomr_trio._device.device import core_of
from atomr_trio._memory.arena import ALIGNMENT
from atomr_trio._wire.protocol import LANE_COMPUTE
from atomr_trio.libraries.blas.verbs import Blas
from atomr_trio.libraries.blaslt.verbs import BlasLt
from atomr_trio.libraries.solver.verbs import Solver
from support.linear import FORMS, find
from support.strategies import check_on_device

LIBRARIES: dict[str, type[Library]] = {"blas": Blas, "blaslt": BlasLt, "solver": Solver}


def matrix(rows: int, columns: int, seed: int) -> np.ndarray:
    """Small whole numbers, so that products are exact."""
    return np.random.default_rng(seed).integers(-3, 4, (rows, columns)).astype(np.float32)


# --- what went wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("verb_name", ["blas.gemm", "blaslt.matmul"])
@pytest.mark.parametrize("sizes", [(15, 15, 15), (16, 16, 16), (32, 32, 32), (48, 48, 48), (64, 64, 64), (5, 3, 7)])
async def test_a_repeated_product_is_right_whatever_address_its_first_result_had(dev, form, verb_name, sizes):
    rows, inner, columns = sizes
    hosts = matrix(rows, inner, 1), matrix(inner, columns, 2)
    seats = [dev.empty((rows, columns), np.float32)]  # at the first address of the arena
    gap = dev.empty(-seats[0]._block.size % 4096 or 4096, np.uint8)
    seats.append(dev.empty((rows, columns), np.float32))  # at an address that ends in 0x000
    for seat in seats:
        a, b = [await dev.to_device(host) for host in hosts]
        seat.free()
        results = []
        for _ in range(3):
            if FORMS[form]:
                async with dev.batch() as batch:
                    results.append(find(batch, verb_name)(a, b))
            else:
                results.append(await find(dev, verb_name)(a, b))
        assert results[0].address == seat.address
        for result in results:
            np.testing.assert_array_equal(await result.to_host(), hosts[0] @ hosts[1])
        for array, host in zip((a, b), hosts, strict=True):
            np.testing.assert_array_equal(await array.to_host(), host)
        for array in (a, b, *results):
            array.free()
    gap.free()


# --- any call ---------------------------------------------------------------------------------------------------------

ARGUMENTS = {
    "blas.asum": "x",
    "blas.axpy": "x y alpha",
    "blas.copy": "x y",
    "blas.dgmm": "a x",
    "blas.dot": "x y",
    "blas.gbmv": "band x one one",
    "blas.geam": "a b",
    "blas.gemm": "a b",
    "blas.gemm_batched": "list list",
    "blas.gemv": "a x",
    "blas.ger": "x y a alpha",
    "blas.hbmv": "band x",
    "blas.hemm": "a b",
    "blas.hemv": "a x",
    "blas.her": "x a",
    "blas.her2": "x y a alpha",
    "blas.her2k": "a b",
    "blas.herk": "a",
    "blas.iamax": "x",
    "blas.iamin": "x",
    "blas.nrm2": "x",
    "blas.rot": "x y real real",
    "blas.rotg": "scalar scalar",
    "blas.rotm": "x y five",
    "blas.rotmg": "scalar scalar scalar scalar",
    "blas.sbmv": "band x",
    "blas.scal": "x alpha",
    "blas.swap": "x y",
    "blas.symm": "a b",
    "blas.symv": "a x",
    "blas.syr": "x a alpha",
    "blas.syr2": "x y a alpha",
    "blas.syr2k": "a b",
    "blas.syrk": "a",
    "blas.trmm": "a b",
    "blas.trmv": "a x",
    "blas.trsm": "a b",
    "blas.trsm_batched": "list list",
    "blas.trsv": "a x",
    "blaslt.matmul": "a b",
    "solver.cholesky": "a",
    "solver.det": "a",
    "solver.eigh": "a",
    "solver.eigvalsh": "a",
    "solver.gels": "a b",
    "solver.geqrf": "a",
    "solver.gesvd": "a",
    "solver.gesvda": "a one",
    "solver.gesvdj": "a",
    "solver.getrf": "a",
    "solver.getri": "a pivots",
    "solver.getrs": "a pivots b",
    "solver.inv": "a",
    "solver.lstsq": "a b",
    "solver.orgqr": "a x",
    "solver.ormqr": "a x b",
    "solver.potrf": "a",
    "solver.potri": "a",
    "solver.potrs": "a b",
    "solver.qr": "a",
    "solver.slogdet": "a",
    "solver.solve": "a b",
    "solver.svd": "a",
    "solver.syevd": "a",
    "solver.syevdx": "a one one",
    "solver.syevj": "a",
    "solver.sygvd": "a b",
}
"""What each verb is given, by the names of `Stage.given`. A verb that is added is added here too."""

OPTIONS: dict[str, tuple[Any, ...]] = {
    "alpha": (1, 2, -0.5, 16, 2.0**-1022),
    "beta": (0, 1, 16),
    "op_a": ("N", "T", "C"),
    "op_b": ("N", "T", "C"),
    "lower": (True, False),
    "left": (True, False),
    "unit_diagonal": (False, True),
    "compute": (None, "pedantic"),
    "epilogue": (None, "relu"),
    "conjugate": (False, True),
}
"""Values of options, of which each verb gets those that it has."""

REPEATED_WITH_NEW_RESULTS = {
    *("blas.dgmm", "blas.geam", "blas.gemm", "blas.gemv", "blas.hemm", "blas.hemv", "blas.symm", "blas.symv"),
    *("blas.trmm", "blaslt.matmul"),
}
"""Verbs that are one command with a new result, so that a repetition is not planned."""


def plan_of(name: str) -> Any:
    library, called = name.split(".")
    return inspect.getattr_static(LIBRARIES[library], called).plan


def test_every_verb_of_the_libraries_is_among_those_that_are_drawn():
    found = {
        f"{name}.{member}"
        for name, library in LIBRARIES.items()
        for member in dir(library)
        if is_verb(inspect.getattr_static(library, member))
    }
    assert found == set(ARGUMENTS)


@attrs.frozen
class Drawn:
    """A call: the verb, the sizes of what it is given, how that lies, and the options."""

    verb: str
    order: int
    dtype: str
    layout: str
    stack: tuple[int, ...]
    options: dict[str, Any]
    to_out: bool
    """Whether the result goes to the first array that it may overwrite, or to an array of its own."""
    apart: bool = True
    """Whether each array has memory of its own."""


@st.composite
def calls(draw: st.DrawFn) -> Drawn:
    name = draw(st.sampled_from(sorted({*ARGUMENTS})) | st.sampled_from(sorted(REPEATED_WITH_NEW_RESULTS)))
    takes = inspect.signature(plan_of(name)).parameters
    given = ARGUMENTS[name].split()
    options = {
        option: draw(st.sampled_from(values))
        for option, values in OPTIONS.items()
        if option in takes and option not in given and draw(st.booleans())
    }
    return Drawn(
        verb=name,
        order=draw(st.sampled_from([16, 1, 2, 3, 4, 5, 8, 15, 17, 32, 48, 64, 256, 4096 // 8])),
        dtype=draw(st.sampled_from(["float32", "float64", "complex64", "complex128"])),
        layout=draw(st.sampled_from(["by rows", "by columns", "wide", "behind"])),
        stack=draw(st.sampled_from([(), (), (2,)])),
        options=options,
        to_out=draw(st.booleans()) and "out" in takes and draw(st.booleans()),
        apart=draw(st.booleans()),
    )


class Stage:
    """Makes what a call is given, on a device to which nothing is ever sent."""

    def __init__(self, dev: Any, drawn: Drawn) -> None:
        self._dev = dev
        self._drawn = drawn
        self._pools: dict[tuple[int, ...], tuple[DeviceArray, Iterator[int]]] = {}
        self.arrays: list[DeviceArray] = []

    def empty(self, shape: tuple[int, ...], dtype: Any = None) -> DeviceArray:
        array: DeviceArray = self._dev.empty(shape, dtype or self._drawn.dtype)
        self.arrays.append(array)
        return array

    def part(self, shape: tuple[int, ...]) -> DeviceArray:
        """Return an array of its own, or one of several that are in one piece of memory."""
        if self._drawn.apart:
            return self.empty(shape)
        if shape not in self._pools:
            self._pools[shape] = self.empty((4, *shape)), itertools.cycle(range(4))
        pool, numbers = self._pools[shape]
        return pool[next(numbers)]

    def matrix(self) -> DeviceArray:
        order, stack = self._drawn.order, self._drawn.stack
        if self._drawn.layout == "wide":
            return self.part((*stack, order, order + 3))[..., :order]
        if self._drawn.layout == "behind":
            return self.part((*stack, order + 1, order))[..., 1:, :]
        array = self.part((*stack, order, order))
        axes = range(array.ndim)
        return array if self._drawn.layout == "by rows" else array.transpose(*axes[:-2], axes[-1], axes[-2])

    def given(self, word: str) -> Any:
        order, dtype = self._drawn.order, self._drawn.dtype
        match word:
            case "a" | "b":
                return self.matrix()
            case "list":
                return [self.empty((order, order)) for _ in range(2)]
            case "band":
                return self.empty((3, order))
            case "x" | "y":
                return self.part((order,))
            case "five":
                return self.empty((5,))
            case "pivots":
                return self.empty((order,), np.int32)
            case "scalar":
                return self.empty(())
            case "real":
                return 0.5
            case "alpha":
                return self.empty((), dtype) if self._drawn.to_out else 2
            case "one":
                return 1
        raise KeyError(word)

    def free(self) -> None:
        for array in self.arrays:
            array.free()
        self.arrays.clear()


class Planned:
    """A call that was planned, and is never sent."""

    def __init__(self, dev: Any, drawn: Drawn, arguments: list[Any], keywords: dict[str, Any]) -> None:
        library, _ = drawn.verb.split(".")
        self._planner = getattr(dev, library)._planner()
        self.result = plan_of(drawn.verb)(self._planner, *arguments, **keywords)
        self.requests = self._planner._requests
        self.made = self._planner._made

    def known(self, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """What is kept of it, if it is kept."""
        arrays = tuple(each for each in (*arguments, *keywords.values()) if isinstance(each, DeviceArray))
        return _repeatable(arrays, self.requests, self.made, self.result), arrays

    def free(self) -> None:
        for array in self.made:
            array.free()


def arguments_of(stage: Stage, drawn: Drawn) -> tuple[list[Any], dict[str, Any]]:
    arguments = [stage.given(word) for word in ARGUMENTS[drawn.verb].split()]
    return arguments, {**drawn.options, **({"out": stage.matrix()} if drawn.to_out else {})}


def record(request: Any) -> tuple[Any, ...]:
    """All that is sent of a command, and what it is said to do to which memory."""
    return (request.payload, dict(request.operands), request.operation, request.lane)


def described(result: Any) -> list[tuple[Any, ...]]:
    """Where the arrays of a result are, and what they are."""
    several = result if isinstance(result, tuple) else (result,)
    return [(each.address, each.shape, each.dtype) for each in several]


def bytes_of_result(dev: Any, drawn: Drawn) -> int | None:
    """How much memory a call takes for its new result; None if it is refused, or is not kept with a new one."""
    stage, planned = Stage(dev, drawn), None
    try:
        arguments, keywords = arguments_of(stage, drawn)
        planned = Planned(dev, drawn, arguments, keywords)
        kept, _ = planned.known(arguments, keywords)
        if kept is None or kept.answer is not None:
            return None
        return 0 if kept.new is None else planned.result.nbytes
    except InvalidArgument:
        return None
    finally:
        stage.free()
        if planned is not None:
            planned.free()


@check_on_device(4, calls(), st.integers(0, 40))
async def test_a_repeated_record_is_what_planning_it_anew_would_make(dev, drawn, gap):
    """The repetition is on other arrays of the same forms. `gap` is how many units of the arena lie before them."""
    if bytes_of_result(dev, drawn) is None:
        return
    with contextlib.ExitStack() as undo:
        stage = Stage(dev, drawn)
        undo.callback(stage.free)
        given = arguments_of(stage, drawn)
        first = Planned(dev, drawn, *given)
        undo.callback(first.free)
        kept, before = first.known(*given)
        undo.callback(dev.empty((gap + 1) * ALIGNMENT, np.uint8).free)
        elsewhere = Stage(dev, drawn)
        undo.callback(elsewhere.free)
        again = arguments_of(elsewhere, drawn)
        plan = plan_of(drawn.verb)
        question, other = form_of(plan, *given), form_of(plan, *again)
        assert question is not None
        assert other is not None
        assert question[0] == other[0]
        arrays = other[1]
        assert not {array.address for array in arrays} & {array.address for array in before}
        request, result = kept.again(core_of(dev), arrays, LANE_COMPUTE)
        is_new, address = kept.new is not None, 0
        if is_new:
            address = result.address
            assert address != first.result.address
            assert result._form == first.result._find_form()
            result.free()
        anew = Planned(dev, drawn, *again)
        undo.callback(anew.free)
        assert described(anew.result) == described(result)
        (expected,) = anew.requests
        sent, planned = record(request), record(expected)
        if is_new:  # the block of a result is its own, and the same is done to it
            sent, planned = (
                (each[0], {block: role for block, role in each[1].items() if not block.holds(address)}, *each[2:])
                for each in (sent, planned)
            )
        assert sent == planned
        assert (kept.kind.later, kept.kind.number) == (expected.kind.later, expected.kind.number)


async def test_verbs_of_one_command_are_repeated_with_new_results(dev):
    kept = {
        name
        for name in ARGUMENTS
        for dtype in ("float32", "complex64")
        if bytes_of_result(dev, Drawn(name, 16, dtype, "by rows", (), {}, to_out=False))
    }
    assert kept == REPEATED_WITH_NEW_RESULTS


@pytest.mark.parametrize("behind", [0, 8])
async def test_a_call_is_not_kept_if_it_has_another_word_that_points_into_its_result(dev, behind):
    """Such a word may be an address that nobody has declared to be one, or a number that looks like one."""
    x = dev.zeros(4, np.float64)

    class Strange(Library):
        __slots__ = ()
        _table = Blas._table

        def plan(self) -> Any:
            out = self._empty((4,), np.float64)
            operands = self._operands()
            operands.reads(x)
            operands.writes(out, keeps=False)
            words = (4, Scalar.of(1, np.float64), Address(x.address), out.address + behind, Address(out.address), 1)
            self._call("cublasDaxpy_64", *words, operation="strange", operands=operands)
            return out

    planner = Strange(core_of(dev))
    result = planner.plan()
    (request,) = planner._requests
    assert request.addresses() is None
    assert _repeatable((x,), planner._requests, planner._made, result) is None
