"""A wrong call of `dev.blas`, `dev.blaslt` or `dev.solver` is refused by a typed error and never reaches the library.

The worker of the simulator is asked how often it has called each function of the libraries, before and after. On a GPU
what the lanes were given stands for that.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import hypothesis.strategies as st
import numpy as np
import pytest

from atomr_trio import Batch, Device, DeviceArray, DeviceClosed, InvalidArgument
from atomr_trio._device.device import core_of
from atomr_trio._transfers.transfers import Transfers
from support import ON_GPU
from support.blas import submitted
from support.linear import find
from support.rogue import until, worker_pid
from support.strategies import check_on_device, sent
from support.verbs import VERBS, dtype_of, noting, numbered

# --- what comes of a call ---------------------------------------------------------------------------------------------

TELL_CALLS = """
import json, os, signal

def tell(*_):
    import atomr_sim
    with open({path!r} + ".new", "w") as file:
        json.dump(atomr_sim.calls(), file)
    os.rename({path!r} + ".new", {path!r})

signal.signal(signal.SIGUSR1, tell)
"""


@attrs.frozen
class Witness:
    """A device whose worker tells how often it has called each function of the libraries."""

    dev: Device
    answer: Path

    async def tell(self) -> tuple[dict[str, int], list[int]]:
        """The calls of each function, none of them on a GPU, and how many commands each lane was given."""
        calls: dict[str, int] = {}
        if not ON_GPU:
            self.answer.unlink(missing_ok=True)
            os.kill(worker_pid(self.dev), signal.SIGUSR1)
            await until(self.answer.exists)
            calls = json.loads(self.answer.read_text())
        return calls, submitted(self.dev)


@pytest.fixture
async def witness(open_test_device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Witness]:
    """Its worker is asked by a signal, which a sitecustomize in its path answers."""
    answer = tmp_path / "calls"
    (tmp_path / "sitecustomize.py").write_text(TELL_CALLS.format(path=str(answer)))
    monkeypatch.syspath_prepend(str(tmp_path))
    async with open_test_device() as dev:
        yield Witness(dev, answer)


class Stage:
    """Makes arrays, each full of a number of its own, and knows whether they still are."""

    def __init__(self, dev: Device) -> None:
        self.dev = dev
        self._made: list[tuple[DeviceArray, Any]] = []

    def __call__(self, *shape: int, dtype: Any = "float32") -> DeviceArray:
        number = np.dtype(dtype).type(len(self._made) % 100 + 1)
        array = self.dev.full(shape, number)
        self._made.append((array, number))
        return array

    async def check(self) -> None:
        """Read every array, which writes it too if nobody has used it so far."""
        for array, number in self._made:
            assert (await array.to_host() == number).all(), "an array was changed"


@attrs.frozen
class Call:
    """A call that must be refused, and what is said of it."""

    verb: str
    message: str | None
    arguments: dict[int | str, Any]
    """By their numbers, and those by name."""

    async def make(self, owner: Device | Batch) -> None:
        positional = [value for key, value in self.arguments.items() if isinstance(key, int)]
        named = {key: value for key, value in self.arguments.items() if isinstance(key, str)}
        result = find(owner, self.verb)(*positional, **named)
        if isinstance(owner, Device):
            await result


async def check_refused(witness: Witness, stage: Stage, calls: Iterable[Call]) -> None:
    """Make each call in both forms. It must be refused with its message, and nothing may come of it."""
    dev, wrong, matrix, vector = witness.dev, list(calls), stage(2, 2), stage(2)
    await stage.check()
    await dev.blas.gemv(matrix, vector)
    before = await witness.tell()
    assert ON_GPU or "gemv" in " ".join(before[0]), "the worker counts nothing"
    async with dev.batch() as batch:
        for call, owner in itertools.product(wrong, (dev, batch)):
            with noting(call), pytest.raises(InvalidArgument, match=call.message):
                await call.make(owner)
        assert await witness.tell() == before
        norm = batch.blas.nrm2(vector)  # the batch has taken no harm of what it refused
    await stage.check()
    assert norm > 0
    assert core_of(dev).part(Transfers).staging.idle


# --- one by one -------------------------------------------------------------------------------------------------------


def rows(stage: Stage, other: Device) -> Iterator[tuple[Any, ...]]:
    """Wrong calls: the verb, what is said of it, the arguments, and those by name last."""
    a, b, c = stage(3, 4), stage(4, 5), stage(3, 5)
    square, columns, wide = stage(4, 4), stage(4, 4).T, stage(6, 10)
    x, y, short, bias = stage(4), stage(4), stage(3), stage(5)
    double, doubles, integers = stage(4, 4, dtype="float64"), stage(4, dtype="float64"), stage(4, dtype="int32")
    z, zs = stage(4, 4, dtype="complex64"), stage(4, dtype="complex64")
    pivots, two, three = stage(4, dtype="int64"), stage(2, 4, 4), stage(3, 4, 4)
    number, mask = stage(), stage(3, 16, dtype="uint8")
    byte, bytes_ = stage(4, 6, dtype="int8"), stage(16, 32, dtype="float8_e4m3fn")
    gone, elsewhere = stage.dev.empty((4, 4), "float32"), other.full((4, 4), np.float32(1))
    gone.free()

    # Vectors.
    yield "blas.axpy", "x has 4 elements and y has 3", x, short
    yield "blas.axpy", "different dtypes: float32, float64", x, doubles
    yield "blas.axpy", "int32 is not supported", integers, integers
    yield "blas.axpy", "shares memory with an input", x, x
    yield "blas.axpy", "shares memory with an input", x[:3], x[1:]
    yield "blas.axpy", "cannot fill float32 elements with 'two'", x, y, "two"
    yield "blas.axpy", "cannot fill float32 elements with None", x, y, None
    yield "blas.axpy", "a complex number does not fit", x, y, 1j
    yield "blas.axpy", "out of range", x, y, 1e300
    yield "blas.axpy", "alpha is a contiguous array of shape .. and dtype float32", x, y, doubles[0]
    yield "blas.dot", r"y is an array on the device, not .*\s.*`await dev.to_device\(array\)`", x, [1.0, 2.0, 3.0, 4.0]
    yield "blas.dot", "out has 0 axes, not 1", x, y, {"out": short}
    yield "blas.nrm2", "x has 1 axes, not 2", square
    yield "blas.scal", "cannot fill float32 elements", x, np.zeros(4)
    yield "blas.iamax", "x is empty", x[:0]
    yield "blas.rot", "must all be numbers, or all be arrays on the device", x, y, number, 1
    yield "blas.rotm", r"param is a contiguous array of shape \(5,\)", x, y, short
    yield "blas.copy", "x is an array on the device, not", None, y
    yield "blas.swap", "the array was freed", gone[0], y
    yield "blas.swap", "belongs to another device", x, elsewhere[0]

    # A matrix and vectors.
    yield "blas.gemv", "x has 3 elements, and the matrix has 4", square, short
    yield "blas.gemv", "op_a is", square, x, {"op_a": "n"}
    yield "blas.gemv", "out has 3 elements, and the result has 4", square, x, {"out": short}
    yield "blas.gemv", "different dtypes", square, x, {"out": doubles}
    yield "blas.gemv", "shares memory with an input", square, x, {"out": square[0]}
    yield "blas.gemv", "beta is a factor of out", square, x, {"beta": 1}
    yield "blas.gbmv", "kl is an int of at least 0, not -1", a, x, -1, 3
    yield "blas.gbmv", "kl is an int of at least 0, not nan", a, x, math.nan, 1
    yield "blas.gbmv", "ku is an int of at least 0, not None", a, x, 1, None
    yield "blas.gbmv", "rows is an int of at least 0, not '4'", a, x, 1, 1, {"rows": "4"}
    yield "blas.gbmv", "ab has 3 rows, and the band has 4 diagonals", a, x, 1, 2
    yield "blas.sbmv", "complex64 is not supported", z[:2], zs
    yield "blas.symv", "a is square", a, x
    yield "blas.ger", r"a has shape \(4, 4\), and the update has shape \(4, 3\)", x, short, square
    yield "blas.ger", "shares memory with an input", square[0], x, square
    yield "blas.ger", "one of its axes must be contiguous", short, short, wide[::2, ::3][:, :3]
    yield "blas.ger", "axis 0 is negative.*`await array.copy_from", x, y, square[::-1]
    yield "blas.her", "a complex number does not fit", zs, z, 1j
    yield "blas.trsv", "x has 3 elements, and the matrix has 4", square, short

    # Matrices.
    yield "blas.gemm", "a has 4 columns and b has 3 rows", a, a
    yield "blas.gemm", "a has dtype float32 and b has float64", square, double
    yield "blas.gemm", "a is an array on the device, not", [[1.0, 2.0]], b
    yield "blas.gemm", "a has two axes or more, not 1", x, b
    yield "blas.gemm", "op_b is", a, b, {"op_b": "H"}
    yield "blas.gemm", "compute='tf64': .* support \"pedantic\"", a, b, {"compute": "tf64"}
    yield "blas.gemm", "compute='tf32'", double, double, {"compute": "tf32"}
    yield "blas.gemm", "product of float32 to float16 is not supported", a, b, {"dtype": "float16"}
    yield "blas.gemm", r"out has shape \(4, 5\), which must be \(3, 5\)", a, b, {"out": b}
    yield "blas.gemm", "product of float32 to float64 is not supported", square, square, {"out": double}
    yield "blas.gemm", "out is not a matrix that BLAS takes", a, b, {"out": wide[::2, ::2]}
    yield "blas.gemm", "axis 1 is negative, which .*`await array.copy_from", a, b, {"out": wide[:3, 4::-1]}
    yield "blas.gemm", "axes 0 and 1 are negative, which", a, b, {"out": wide[2::-1, 4::-1]}
    yield "blas.gemm", "shares memory with an input", wide[:3, :4], b, {"out": wide[2:5, 3:8]}
    yield "blas.gemm", "stacks of shapes .* do not fit together", two, three
    yield "blas.gemm", "the array was freed", gone, square
    yield "blas.gemm", "belongs to another device", square, elsewhere
    yield "blas.gemm_batched", "a has 2 arrays and b has 1", [a, a], [b]
    yield "blas.gemm_batched", "a is a list of arrays on the device", two, [square, square]
    yield "blas.gemm_batched", "another output", [a, a], [b, b], {"out": [c, c]}
    yield "blas.trsm", "cannot be on the left of b", square, a
    yield "blas.trsm", "stacks of shapes .* do not fit together", two, three
    yield "blas.trsm", "shares memory with an input", square, wide[:4, :4], {"out": wide[1:5, :4]}
    yield "blas.trmm", "a is square", a, b
    yield "blas.syrk", "op is T or N here, not C", z, {"op": "C"}
    yield "blas.herk", "use syrk", square
    yield "blas.symm", "cannot be on the left of b", square, a
    yield "blas.geam", r"a has shape \(3, 4\) and b has \(4, 5\)", a, b
    yield "blas.geam", "shares memory with an input", square, {"op_a": "T", "out": square}
    yield "blas.dgmm", "x has 3 elements, and a has shape", a, short

    # Products with more to them.
    yield "blaslt.matmul", "a has 4 columns and b has 3 rows", a, a
    yield "blaslt.matmul", "product of float32 and float64 .* is not supported", square, double
    yield "blaslt.matmul", "is not supported; use .*, or None", a, b, {"epilogue": "tanh"}
    yield "blaslt.matmul", "is not supported; use .*, or None", a, b, {"epilogue": ["relu"]}
    yield "blaslt.matmul", "needs bias=", a, b, {"epilogue": "bias"}
    yield "blaslt.matmul", "has no bias", a, b, {"bias": bias}
    yield "blaslt.matmul", "bias is an array on the device", a, b, {"epilogue": "bias", "bias": [0.0] * 5}
    yield "blaslt.matmul", "bias has shape .4,., and must have .5,.", a, b, {"epilogue": "bias", "bias": x}
    yield "blaslt.matmul", "bias has dtype float64", a, square, {"epilogue": "bias", "bias": doubles}
    yield "blaslt.matmul", "out lies column by column", square, b, {"out": wide[:5, :4].T, "epilogue": "bias",
                                                                    "bias": bias}  # fmt: skip
    yield "blaslt.matmul", "aux has uint8", a, square, {"epilogue": "relu_aux", "aux": mask[:, :8]}
    yield "blaslt.matmul", "compute='exact'", a, b, {"compute": "exact"}
    yield "blaslt.matmul", "c has shape", a, b, {"c": a, "beta": 1}
    yield "blaslt.matmul", "neither c nor out", a, b, {"beta": 1}
    yield "blaslt.matmul", "scale_a is for elements of 8 bits", a, b, {"scale_a": number}
    yield "blaslt.matmul", "multiples of 4 elements", byte, byte.T
    yield "blaslt.matmul", "does not fit a product of float8_e4m3fn", bytes_, bytes_.T[:, :16][::-1]
    yield "blaslt.matmul", "axis 0 is negative.*`await dev.to_device", bytes_, bytes_.T[:, :16][::-1]
    yield "blaslt.matmul", "axis 1 is negative.*`await array.copy_from", a, b, {"out": wide[:3, 4::-1]}
    yield "blaslt.matmul", "axis 0 is negative.*`await dev.to_device", a, b, {"epilogue": "bias", "bias": bias[::-1]}
    yield "blaslt.matmul", "the array was freed", square, square, {"c": gone}
    yield "blaslt.matmul", "the array was freed", square, square, {"c": gone, "beta": 1}
    yield "blaslt.matmul", "belongs to another device", square, square, {"c": elsewhere}
    yield "blaslt.matmul", "shares memory with an input", square, square, {"out": square}
    yield "blaslt.matmul", "the leading axes of a", two, three
    yield "blaslt.matmul", "the array was freed", gone, square
    yield "blaslt.matmul", "belongs to another device", elsewhere, square

    # Solvers.
    yield "solver.getrf", "int8 is not supported", byte
    yield "solver.getrf", "a cannot be overwritten: .* column by column", square, {"overwrite_a": True}
    yield "solver.getrf", "axis 0 is negative.*`await array.copy_from", columns[::-1], {"overwrite_a": True}
    yield "solver.getrf", "a has two axes or more, not 1", x
    yield "solver.getrs", "pivots has shape .* and dtype int32", square, integers, x
    yield "solver.getrs", "pivots has shape", square, pivots[:3], x
    yield "solver.getrs", "op is", square, pivots, x, {"op": "X"}
    yield "solver.potrf", "a is square", a
    yield "solver.potrs", "shares memory with an input", columns, columns, {"overwrite_b": True}
    yield "solver.orgqr", "tau has shape .* and dtype float64", square, doubles
    yield "solver.orgqr", "must be m >= n >= k", b, x
    yield "solver.ormqr", "tau has shape .* and dtype int64", square, pivots, b
    yield "solver.ormqr", 'not "T"', z, zs, z, {"op": "T"}
    yield "solver.gels", "m >= n", a, short
    yield "solver.gesvd", "m >= n", a
    yield "solver.gesvda", "rank is a number from 1 to 4, not 5", square, 5
    yield "solver.gesvda", "rank is a number from 1 to 4, not nan", square, math.nan
    yield "solver.gesvdj", "max_sweeps is a number from 1 to", square, {"max_sweeps": -1}
    yield "solver.syevj", "max_sweeps is a number from 1 to", square, {"max_sweeps": "many"}
    yield "solver.syevdx", r"no eigenvalues \[3:2\]|first is a number from 0 to 1", square, 3, 2
    yield "solver.syevdx", r"no eigenvalues \[-1:2\]|first is a number from 0 to 1", square, -1, 2
    yield "solver.sygvd", "kind is a number from 1 to 3", square, square, {"kind": 0}
    yield "solver.solve", "b has 3 rows, not 4", square, short
    yield "solver.solve", "different dtypes", square, doubles
    yield "solver.solve", "a is square", a, short
    yield "solver.solve", "stacks of shapes .* do not fit together", two, three
    yield "solver.solve", r"b is an array on the device, not .*\s.*dev.to_device", square, np.ones(4)
    yield "solver.inv", "the array was freed", gone
    yield "solver.inv", "belongs to another device", elsewhere
    yield "solver.lstsq", "b has 4 rows, not 3", a, x
    yield "solver.cholesky", "a is square", a
    yield "solver.qr", "mode is", a, {"mode": "full"}
    yield "solver.eigh", "float16 is not supported", stage(2, 2, dtype="float16")
    yield "solver.svd", "a is an array on the device, not", "a"
    yield "solver.det", "a is square", a
    yield "solver.slogdet", "a has two axes or more", x


async def test_each_wrong_call_says_what_is_wrong_and_never_reaches_the_library(witness, open_test_device):
    stage = Stage(witness.dev)
    async with open_test_device() as other:
        wrong = [Call(verb, message, dict(numbered(given))) for verb, message, *given in rows(stage, other)]
        await check_refused(witness, stage, wrong)


# --- in every place ---------------------------------------------------------------------------------------------------

NOTHING_OF_THE_KIND = ("x", [], {}, object(), np.zeros(4, np.float32))
NO_ARRAYS = (*NOTHING_OF_THE_KIND, [1.0], math.nan, 3)
JUNK: dict[type, tuple[Any, ...]] = {
    tuple: NO_ARRAYS,
    list: (*NO_ARRAYS, *([each] for each in NO_ARRAYS)),
    float: (*NOTHING_OF_THE_KIND, None, [1.0], 1j, 10**40),
    int: (*NOTHING_OF_THE_KIND, 1.5, math.nan, -1, 10**40),
    str: (*NOTHING_OF_THE_KIND, "n", b"N", 3),
    bool: (*NOTHING_OF_THE_KIND, None, 1, 0, 1.0),
}
"""By the type that stands for an argument in `VERBS`, what is none."""


Make = Callable[[tuple[int, ...], str], Any]


def argument(given: Any, make: Make) -> Any:
    """The argument that is stood for, with arrays that are made so."""
    if isinstance(given, list):
        return [argument(each, make) for each in given]
    return make(*dtype_of(given)) if isinstance(given, tuple) else given


def right_call(name: str, make: Make) -> Call:
    """A call of `VERBS`, with arrays that are made so."""
    given = {place: argument(each, make) for place, each in numbered(VERBS[name])}
    return Call(name.split()[0], None, given)


def in_every_place(stage: Stage, substitutes: dict[str, Make]) -> Iterator[Call]:
    """Each right call with one argument that is none, or with another array in the place of one."""
    for name in VERBS:
        right = right_call(name, lambda shape, dtype: stage(*shape, dtype=dtype))
        for place, given in numbered(VERBS[name]):
            bad: list[tuple[str | None, Any]] = [(None, each) for each in JUNK[type(given)]]
            if isinstance(place, int):  # by name, it says that nothing is given
                bad.append((None, None))
            if isinstance(given, tuple | list):
                bad += [(message, argument(given, make)) for message, make in substitutes.items()]
            for message, value in bad:
                if not is_taken(right.verb, place, value):
                    yield Call(right.verb, message, {**right.arguments, place: value})


def is_taken(verb: str, place: object, value: object) -> bool:
    """Whether a transform takes what no other verb takes in this place: other numbers, or nothing for a default."""
    if not verb.startswith("fft.") or not isinstance(place, int):
        return False
    if isinstance(value, DeviceArray):
        return value.dtype == np.float16 and not value._block.freed
    shifts = verb.endswith("shift")
    if value is None:  # as many points as there are, no norm, all axes
        return place == 3 or (place == 1 and verb != "fft.fftconvolve")
    return type(value) in (int, list) and value in (-1, []) and place == (1 if shifts else 2)


@pytest.mark.long
async def test_what_is_no_argument_is_refused_in_every_place_of_every_verb(witness, open_test_device):
    stage = Stage(witness.dev)

    def freed(shape: tuple[int, ...], dtype: str) -> DeviceArray:
        array = witness.dev.empty(shape, dtype)
        array.free()
        return array

    async with open_test_device() as other:
        substitutes: dict[str, Make] = {
            "dtype|float16": lambda shape, _: stage(*shape, dtype="float16"),
            "the array was freed": freed,
            "belongs to another device": lambda shape, dtype: other.full(shape, np.dtype(dtype).type(1)),
        }
        await check_refused(witness, stage, in_every_place(stage, substitutes))


async def possible_call(dev: Device, name: str) -> Call:
    """A call of `VERBS` with ones and identities, of which nothing is singular."""

    def ones(shape: tuple[int, ...], dtype: str) -> Any:
        return np.eye(*shape, dtype=dtype) if len(shape) == 2 else np.ones(shape, dtype)

    async def put(given: Any) -> Any:
        if isinstance(given, list):
            return [await put(each) for each in given]
        return await dev.to_device(given) if isinstance(given, np.ndarray) else given

    call = right_call(name, ones)
    return attrs.evolve(call, arguments={place: await put(given) for place, given in call.arguments.items()})


@pytest.mark.long
async def test_a_call_that_was_made_before_is_refused_when_an_array_is_freed(dev):
    for name in VERBS:
        for place in [place for place, given in numbered(VERBS[name]) if isinstance(given, tuple | list)]:
            call = await possible_call(dev, name)
            for _ in range(2):
                await call.make(dev)
            array = call.arguments[place]
            (array[0] if isinstance(array, list) else array).free()
            before = submitted(dev)
            async with dev.batch() as batch:
                for owner in (dev, batch):
                    with noting(call), pytest.raises(InvalidArgument, match="the array was freed"):
                        await call.make(owner)
            assert submitted(dev) == before


@pytest.mark.long
async def test_every_verb_of_a_closed_device_says_that_it_is_closed_whether_the_call_is_new_or_not(open_test_device):
    async with open_test_device() as dev:
        calls = [await possible_call(dev, name) for name in VERBS for _ in range(2)]
        for call in calls[::2]:
            for _ in range(2):
                await call.make(dev)
    for call in calls:
        with noting(call), pytest.raises(DeviceClosed):
            await call.make(dev)
    with pytest.raises(DeviceClosed):
        async with dev.batch():
            pass


# --- shapes -----------------------------------------------------------------------------------------------------------

Shape = tuple[int, ...]


def broadcast(*stacks: Shape) -> bool:
    """Whether leading axes fit together."""
    try:
        np.broadcast_shapes(*stacks)
    except ValueError:
        return False
    return True


def multiplies(a: Shape, b: Shape) -> bool:
    return min(len(a), len(b)) >= 2 and a[-1] == b[-2] and broadcast(a[:-2], b[:-2])


def is_square(a: Shape) -> bool:
    return len(a) >= 2 and a[-1] == a[-2]


def solves(a: Shape, b: Shape) -> bool:
    return is_square(a) and (b == a[-1:] if len(b) == 1 else multiplies(a, b))


FITS = {
    "blas.gemm": multiplies,
    "blas.trsm": lambda a, b: is_square(a) and multiplies(a, b),
    "blaslt.matmul": multiplies,
    "solver.solve": solves,
}

some_shapes = st.lists(st.sampled_from([2, 3, 1, 0]), max_size=4).map(tuple)
misfits = st.tuples(st.sampled_from(list(FITS)), some_shapes, some_shapes).filter(
    lambda each: not FITS[each[0]](*each[1:])
)


@check_on_device(1.5, misfits)
async def test_no_two_shapes_that_do_not_fit_are_ever_sent(dev, misfit):
    verb, *lengths = misfit
    before = sent(dev)
    with dev.empty(lengths[0]) as a, dev.empty(lengths[1]) as b:
        with pytest.raises(InvalidArgument):
            await find(dev, verb)(a, b)
        async with dev.batch() as batch:
            with pytest.raises(InvalidArgument):
                find(batch, verb)(a, b)
    assert sent(dev) == before


@st.composite
def wrong_outputs(draw: st.DrawFn) -> tuple[Shape, Shape, Shape]:
    """Shapes that have a product, and one that is not that of it."""
    m, k, n = (draw(st.sampled_from([2, 3, 1, 0])) for _ in range(3))
    stack = draw(some_shapes)
    fewer = stack[draw(st.integers(0, len(stack))) :]
    return (*stack, m, k), (*fewer, k, n), draw(some_shapes.filter(lambda out: out != (*stack, m, n)))


@check_on_device(1, st.sampled_from(["blas.gemm", "blaslt.matmul"]), wrong_outputs())
async def test_no_output_of_another_shape_is_ever_written(dev, verb, lengths):
    before = sent(dev)
    a, b, out = (dev.empty(each) for each in lengths)
    with a, b, out:
        with pytest.raises(InvalidArgument, match="out has shape"):
            await find(dev, verb)(a, b, out=out)
        async with dev.batch() as batch:
            with pytest.raises(InvalidArgument, match="out has shape"):
                find(batch, verb)(a, b, out=out)
    assert sent(dev) == before
