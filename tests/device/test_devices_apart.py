"""A thing of one device is refused by every verb of another one, in every form, and nothing is sent.

The verbs are found by walking the public face. Each has right calls in `CALLS`; those of the libraries are in `LINEAR`,
since a call of theirs is no more than shapes. In the place of each array, kernel, graph, event, lane or prepared launch
of a right call the same thing of another device is then given, and anything at all in the place of every argument. A
verb, or a parameter, that is not known here fails the first test, which says what to add.

Both devices are openings of device 0, so that this runs on a machine with one GPU. That is the hardest case, too: their
arrays have the same addresses and their kernels the same numbers, so that whatever is let through works on the other
device's memory without a word.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import attrs
import numpy as np
import pytest
import trio

import atomr_trio
from atomr_trio import (
    Batch,
    Device,
    DeviceArray,
    Event,
    FftPlan,
    Graph,
    GraphNode,
    GraphRecorder,
    InvalidArgument,
    Kernel,
    Lane,
    NvrtcOptions,
    PreparedLaunch,
    Program,
    RandomGenerator,
    ReadOnly,
    RequestError,
    overwrites,
    read_only,
    strided,
    writes,
)
from atomr_trio._calls.verbs import is_verb
from atomr_trio._values import habits
from atomr_trio._values.util import NoPublicConstructor
from support import open_test_device
from support.linear import find
from support.places import leaves, put
from support.public_interface import CALLABLES, Member, spelled
from support.strategies import sent
from support.verbs import VERBS, dtype_of, noting, numbered

pytestmark = pytest.mark.used_workers

N = 32
SOURCE = f"""
__device__ float spare[{N}];
extern "C" __global__ void add(float *x, const float *y, int n)
{{ int i = threadIdx.x; if (i < n) x[i] += y[i] + spare[i]; }}
"""

CALLBACK = """
__device__ float load(void *data, unsigned long long offset, void *info, void *shared) { return 0; }
"""

# --- the walk ---------------------------------------------------------------------------------------------------------


@atomr_trio.kernel("x[0] += 1;")
def add_one(x: atomr_trio.Writes[np.float32]) -> None: ...


PLAIN = {
    *("int", "float", "complex", "str", "bool", "bytes", "bytearray", "memoryview", "None", "Sequence", "Iterable"),
    *("SupportsIndex", "Dimensions", "Literal", "EllipsisType", "slice", "Index", "npt.DTypeLike", "npt.NDArray"),
    *(
        "np.generic",
        "tuple",
        "os.PathLike",
        "NvrtcOptions",
        "Operation",
        "Compute",
        "MathMode",
        "Epilogue",
        "FftKind",
        "FftNorm",
        "ConvolutionMode",
        "BackendName",
    ),
    *("Size", "OnFault", "Check", "Collection", "RestartPolicy", "WorkerSource", "SmArch", "LinkOptions", "Path"),
    *("Placement", "DeviceSnapshot", "Strategy", "OnDeviceFailed"),
}
"""The words of annotations of what belongs to no device."""

BELONGS_TO_NONE = {
    "DeclaredKernel.launch(arguments)": "they are given to `Kernel.launch`",
    "DeclaredKernel.launch(options)": "they are given to `Kernel.launch`",
    "Nvrtc.kernel(declared)": "a declaration, which is for every device",
    "Devices.map(function)": "a function; what it does is done by the verbs of the devices",
    "Devices.map(items)": "anything; only the function uses it",
    **dict.fromkeys(
        ("Devices.pick(near)", "Devices.reserve(near)"),
        "these devices have no group; `test_group_placement.py` gives it what belongs to another device",
    ),
    "Device.share(stream)": "a stream of this process, which no device of this library has: a lane is refused as none",
    "Device.capture(record)": "a function; what it does is done by the verbs of the recorder",
    "KernelSignature.pack(arguments)": "the caller's function knows what belongs to what",
    "KernelSignature.pack(address_of)": "that function",
    "Module.__contains__(name)": "anything may be asked for",
    "Program.__contains__(name)": "anything may be asked for",
    "Random.philox(parameters)": "numbers; arrays among them are refused on any device",
    "RandomGenerator.seek(state)": "plain data, which is for every device",
    "retry(saving)": "`test_retry.py` gives it an array of another device",
    "link(inputs)": "images, which are for every device",
    "overwrites(array)": "the launch that it is given to refuses it",
    **dict.fromkeys(("Fft.plan(load)", "Fft.plan(store)"), "code, which is for every device"),
    **dict.fromkeys(
        ("Fft.plan(load_info)", "Fft.plan(store_info)"),
        "the simulator has no right call; `libraries/fft/test_fft_callbacks.py` gives it arrays of another device",
    ),
    **dict.fromkeys(
        ("read_only(array)", "strided(array)", "writes(array)"), "the launch that it is given to refuses it"
    ),
}
"""Parameters that any object may be given to as far as their annotations say, and why they are of no device."""

NO_VERBS = re.compile(
    r"Nvrtc(Cache|CacheKey|Options)\.|RestartPolicy\.|testing\.|DeviceArray\.__c?array|\w+\.__dlpack"
    r"|World(Batch)?\.|Sharded\.|Devices\.world|premultiplied_sum"
)
"""What stands beside the devices: caches and policies know none, and tests are programs that use these verbs. Worlds
need several devices: libraries/nccl/test_world_arguments.py has their verbs."""

OF_PYTHON = {"__init__", "__exit__", "__aexit__", "__getattr__", "__reduce_ex__"}
"""Operators that only Python itself gives something to."""

REFUSED = {*(f"DeviceArray.__{word}__" for word in ("eq", "ne", "lt", "le", "gt", "ge", "contains"))}
"""Operators that refuse whatever they are given, as do those of habits; ``arrays/test_operators.py`` holds them."""


def operators() -> Iterator[Member]:
    """The operators of public classes, which take arguments as verbs do: ``prepared[0] = x``."""
    for name in atomr_trio.__all__:
        cls = getattr(atomr_trio, name)
        for base in cls.__mro__ if isinstance(cls, NoPublicConstructor) else ():
            for method, value in vars(base).items() if base.__module__.startswith("atomr_") else ():
                if re.fullmatch("__.*__", method) and method not in OF_PYTHON and inspect.isfunction(value):
                    if f"{name}.{method}" in REFUSED or value.__module__ == habits.__name__:
                        continue
                    yield Member(f"{name}.{method}", value, owner=cls)


def words_of(annotation: object) -> set[str]:
    """The words of an annotation, less the strings of a `Literal`."""
    return set(re.findall(r"[A-Za-z_][\w.]*", re.sub(r"Literal\[[^]]*\]|\[Any\]", "", spelled(annotation))))


def places() -> dict[str, list[str]]:
    """By the name of each verb, the parameters that may be given what belongs to a device."""
    found: dict[str, list[str]] = {}
    for member in [*CALLABLES, *operators()]:
        if NO_VERBS.match(member.name):
            continue
        for each in member.parameters:
            place = f"{member.name}({each.name})"
            if words_of(each.annotation) - PLAIN and place not in BELONGS_TO_NONE:
                found.setdefault(member.name, []).append(each.name)
    return found


# --- right calls ------------------------------------------------------------------------------------------------------

Arguments = dict[str, Any]
"""By the names of parameters; those behind the star as a tuple, or as a dict behind two."""


@attrs.frozen
class World:
    """A device, and one of everything that can belong to it."""

    dev: Device
    batch: Batch
    program: Program
    kernel: Kernel
    prepared: PreparedLaunch
    graph: Graph
    lane: Lane
    event: Event
    plan: FftPlan
    """Of transforms from an array like x to one like y."""
    generator: RandomGenerator
    x: DeviceArray
    y: DeviceArray
    spare: DeviceArray
    """A variable of a module."""
    is_other: bool
    """Whether its arrays are only given where they do not belong, so that nobody looks into them."""

    def owner(self, cls: type) -> Any:
        """The object that a verb is called on."""
        for each in (
            *attrs.astuple(self, recurse=False),
            self.dev.module,
            self.dev.nvrtc,
            self.dev.fft,
            self.dev.random,
        ):
            if type(each) is cls:
                return each
        raise AssertionError(f"a World has no {cls.__name__}: add one, to call the verbs of that on")

    async def array(self, given: Any) -> DeviceArray:
        """A new array of ones, or with ones on its diagonal, of the shape or the shape and dtype that stand for it."""
        shape, dtype = dtype_of(given)
        if self.is_other:
            return self.dev.empty(shape, dtype)
        return await self.dev.to_device(np.eye(*shape, dtype=dtype) if len(shape) == 2 else np.ones(shape, dtype))

    def in_place_of(self, thing: object) -> list[Any]:
        """What takes the place of an argument of this device, or of another one."""
        views = [self.x, self.x[1:], self.spare]
        marked = [read_only(self.x), overwrites(self.x), strided(writes(self.x[1:])), read_only(self.spare)]
        stand_ins: dict[type, list[Any]] = {
            DeviceArray: views,
            ReadOnly: views + marked,
            Kernel: [self.kernel],
            PreparedLaunch: [self.prepared],
            Graph: [self.graph],
            GraphNode: [self.graph.nodes[0]],
            Lane: [self.lane, self.dev.compute_lane],
            Event: [self.event],
            FftPlan: [self.plan],
            RandomGenerator: [self.generator],
        }
        return stand_ins.get(type(thing), [])


@contextlib.asynccontextmanager
async def world(*, is_other: bool = False) -> AsyncIterator[World]:
    async with open_test_device() as dev, dev.lane() as lane:
        program = await dev.nvrtc.compile_program(SOURCE, NvrtcOptions(name_expressions=["&spare"]))
        x, y = await dev.to_device(np.ones(N, np.float32)), await dev.to_device(np.ones(N, np.float32))
        kernel = program.function("add")
        spare = program.global_("&spare", np.float32)

        def record(recorder: GraphRecorder) -> None:
            recorder.launch(kernel, 1, N, x, y, N)
            recorder.copy(y, x)
            recorder.fill(x, 0)
            recorder.blas.axpy(x, y)

        graph = await dev.capture(record)
        await kernel.launch(1, N, x, y, N, lane=lane)
        event = lane.record()
        await event.wait()
        plan = dev.fft.plan("hfft", N, np.float32, n=N)
        generator = dev.random.generator(seed=1)
        async with dev.batch() as batch:
            prepared = kernel.prepare(1, N, x, y, N)
            yield World(
                dev, batch, program, kernel, prepared, graph, lane, event, plan, generator, x, y, spare, is_other
            )


def launches(w: World) -> tuple[Any, ...]:
    """The arguments of the kernel, one of which is marked."""
    return w.x, read_only(w.y), N


OPTIONS: Arguments = {"cooperative": False, "cluster": None, "programmatic": False, "priority": None}


def given_more(w: World) -> Arguments:
    """What else a launch may be given."""
    return {"shared_bytes": 0, "touches": [read_only(w.y)], "hang_timeout": 60.0, "lane": w.lane, **OPTIONS}


VECTOR = (4,)
DRAWS: dict[str, dict[str, Any]] = {
    "bits": {},
    "uniform": {"low": 1.0, "high": 2.0},
    "normal": {"loc": 1.0, "scale": 2.0},
    "lognormal": {"mean": 1.0, "sigma": 2.0},
    "poisson": {"lam": 2.0},
    "integers": {"low": 3, "high": 9, "endpoint": True},
    "exponential": {"scale": 2.0},
    "gamma": {"shape": 2.0, "scale": 2.0},
    "beta": {"a": 2.0, "b": 2.0},
    "cauchy": {"loc": 1.0, "scale": 2.0},
    "binomial": {"n": 9, "p": 0.5},
    "standard_t": {"df": 3.0},
    "multinomial": {"n": 9, "pvals": [0.5, 0.5]},
    "bernoulli": {"p": 0.5},
    "discrete": {"pvals": [0.5, 0.5]},
}
"""The verbs that draw, with what each is given beside the array for the result."""
DRAWN = {"bits": "uint32", **dict.fromkeys(("poisson", "integers", "binomial", "multinomial", "discrete"), "int64")}
DRAWN["bernoulli"] = "bool"


def result_of(draw: str) -> Any:
    """What stands for the result of a draw of four, or of two of two outcomes each."""
    return (2, 2) if draw == "multinomial" else VECTOR, DRAWN.get(draw, "float64")


def result_on(w: World, draw: str) -> DeviceArray:
    """An array for that."""
    return w.dev.zeros(*result_of(draw))


CALLS: dict[str, list[Callable[[World], Arguments]]] = {
    **{
        f"RandomGenerator.{name}": [
            lambda w, name=name, given=given: {  # type: ignore[misc]
                **given,
                "size": 2 if name == "multinomial" else 4,
                "dtype": DRAWN.get(name, "float64"),
                "out": result_on(w, name),
            }
        ]
        for name, given in DRAWS.items()
    },
    "Kernel.launch": [
        lambda w: {"grid": 1, "block": N, "arguments": launches(w)},
        lambda w: {"grid": 1, "block": N, "arguments": launches(w), **given_more(w)},
    ],
    "Kernel.launch_nowait": [
        lambda w: {"grid": 1, "block": N, "arguments": launches(w)},
        lambda w: {"grid": 1, "block": N, "arguments": launches(w), **given_more(w)},
    ],
    "Kernel.prepare": [lambda w: {"grid": 1, "block": N, "arguments": launches(w), "shared_bytes": 0, **OPTIONS}],
    "PreparedLaunch.launch": [lambda w: {"hang_timeout": 60.0, "lane": w.lane}],
    "PreparedLaunch.launch_nowait": [lambda w: {"hang_timeout": 60.0, "lane": w.lane}],
    "PreparedLaunch.__setitem__": [
        lambda w: {"index": 0, "argument": w.x},
        lambda w: {"index": 1, "argument": read_only(w.y)},
    ],
    "Batch.launch": [
        lambda w: {"kernel": w.kernel, "grid": 1, "block": N, "arguments": launches(w)},
        lambda w: {
            "kernel": w.kernel,
            "grid": 1,
            "block": N,
            "arguments": launches(w),
            "shared_bytes": 0,
            "options": {"touches": [read_only(w.y)], "hang_timeout": 60.0, **OPTIONS},
        },
        lambda w: {"kernel": w.prepared},
    ],
    "Batch.launch_graph": [lambda w: {"graph": w.graph}],
    "Batch.fill": [lambda w: {"array": w.x, "value": 1.0}],
    "Batch.copy_from": [
        lambda w: {"array": w.x, "source": w.y},
        lambda w: {"array": w.x, "source": np.ones(N, np.float32)},
    ],
    "Batch.copy_to": [lambda w: {"array": w.x, "out": np.ones(N, np.float32)}],
    "Batch.to_device": [lambda w: {"source": w.y}],
    "Batch.to_host": [lambda w: {"array": w.x}],
    "Device.batch": [lambda w: {"lane": w.lane}],
    "Device.share": [lambda w: {"array": w.x}],
    "Device.to_device": [lambda w: {"source": w.y}],
    "DeviceArray.copy_from": [lambda w: {"source": w.y}],
    "Event.elapsed_since": [lambda w: {"earlier": w.event}],
    "Lane.wait_for": [lambda w: {"event": w.event}],
    "Graph.update": [
        lambda w: {"node": w.graph.nodes[0], "arguments": launches(w)},
        lambda w: {"node": w.graph.nodes[1], "arguments": (w.y, w.x)},
        lambda w: {"node": w.graph.nodes[2], "arguments": (w.x, 1.0)},
        lambda w: {"node": w.graph.nodes[3], "arguments": (w.x,), "keywords": {"y": w.y, "alpha": 2.0}},
    ],
    "GraphRecorder.launch": [
        lambda w: {"kernel": w.kernel, "grid": 1, "block": N, "arguments": launches(w), "touches": [read_only(w.y)]}
    ],
    "FftPlan.__call__": [lambda w: {"x": w.x, "out": w.y}],
    "GraphRecorder.copy": [lambda w: {"source": w.x, "target": w.y}],
    "GraphRecorder.fill": [lambda w: {"array": w.x, "value": 1.0}],
}

MATRIX, COMPLEX = (4, 4), ((4, 4), "complex64")
HALF = (4, 3), "complex64"
BYTES = (16, 16), "float8_e4m3fn"
PAIR, TRIPLE = {"out": [VECTOR, MATRIX]}, {"out": [MATRIX, VECTOR, MATRIX]}
LINEAR: dict[str, tuple[Any, ...]] = {
    **VERBS,
    "blas.hemm": (COMPLEX, COMPLEX, {"out": COMPLEX}),
    "blas.herk": (COMPLEX, {"out": COMPLEX}),
    "blas.her2k": (COMPLEX, COMPLEX, {"out": COMPLEX}),
    "blas.axpy with a scalar there": (VECTOR, VECTOR, ()),
    "blas.scal with a scalar there": (VECTOR, ()),
    "blas.rot with scalars there": (VECTOR, VECTOR, (), ()),
    "blaslt.matmul with scales": (BYTES, BYTES, {"op_b": "T", **dict.fromkeys(("scale_a", "scale_b"), ())}),
    "blaslt.matmul with more scales": (
        BYTES,
        BYTES,
        {
            "op_b": "T",
            "c": ((16, 16), "bfloat16"),
            "beta": 1.0,
            "out": BYTES,
            **dict.fromkeys(("scale_c", "scale_out", "amax"), ()),
        },
    ),
    **{f"fft.{name}": (MATRIX, {"out": COMPLEX}) for name in ("fft", "ifft", "fft2", "ifft2", "fftn", "ifftn")},
    **{f"fft.{name}": (MATRIX, {"out": HALF}) for name in ("rfft", "rfft2", "rfftn", "ihfft")},
    **{f"fft.{name}": (MATRIX, {"out": (4, 6)}) for name in ("irfft", "irfft2", "irfftn", "hfft")},
    "fft.fftshift": (MATRIX,),
    "fft.ifftshift": (MATRIX,),
    "fft.fftconvolve": (MATRIX, MATRIX, "same"),
    "fft.run": (lambda w: w.plan, (N,), {"out": (N,)}),
    **{
        f"random.{name}": ({**given, "out": result_of(name), "generator": lambda w: w.generator},)
        for name, given in DRAWS.items()
    },
    "random.philox": (1, 2, {"out": (VECTOR, "uint32")}),
    "solver.getri with out": (MATRIX, (VECTOR, "int64"), {"out": MATRIX}),
    "solver.gels with out": (MATRIX, MATRIX, {"out": MATRIX}),
    "solver.solve with out": (MATRIX, MATRIX, {"out": MATRIX}),
    "solver.inv with out": (MATRIX, {"out": MATRIX}),
    "solver.lstsq with out": (MATRIX, MATRIX, {"out": MATRIX}),
    "solver.cholesky with out": (MATRIX, {"out": MATRIX}),
    "solver.qr with out": (MATRIX, {"out": [MATRIX, MATRIX]}),
    "solver.eigh with out": (MATRIX, PAIR),
    "solver.eigvalsh with out": (MATRIX, {"out": VECTOR}),
    "solver.svd with out": (MATRIX, TRIPLE),
    "solver.syevd with out": (MATRIX, PAIR),
    "solver.syevdx with out": (MATRIX, 0, 2, {"out": [(2,), (4, 2)]}),
    "solver.syevj with out": (MATRIX, PAIR),
    "solver.sygvd with out": (MATRIX, MATRIX, PAIR),
    "solver.gesvd with out": (MATRIX, TRIPLE),
    "solver.gesvdj with out": (MATRIX, TRIPLE),
    "solver.gesvda with out": (MATRIX, 2, {"out": [(4, 2), (2,), (4, 2)]}),
}
"""Right calls as in `VERBS`, with arrays in the places that those leave out. Lists of results are tuples."""


@attrs.frozen
class Call:
    """A right call of a verb: how its arguments are made on a device, and how it is called there."""

    name: str
    arguments: Callable[[World], Awaitable[Arguments]]
    make: Callable[[World, Arguments], Awaitable[None]]
    is_linear: bool = False


def bound(function: Callable[..., Any], arguments: Arguments) -> Callable[[], Any]:
    """A verb with all its arguments."""
    given = inspect.BoundArguments(inspect.signature(function), arguments)  # type: ignore[arg-type]
    return functools.partial(function, *given.args, **given.kwargs)


async def called(function: Callable[..., Any], arguments: Arguments) -> None:
    """Call a verb, and wait if it is to be awaited."""
    result = bound(function, arguments)()
    if inspect.isawaitable(result):
        await result


def call_of(name: str, arguments: Callable[[World], Arguments]) -> Call:
    """A call as in `CALLS`."""
    owner, _, method = name.rpartition(".")
    cls = getattr(atomr_trio, owner, None)

    async def given(w: World) -> Arguments:
        return arguments(w)

    async def make(w: World, arguments: Arguments) -> None:
        await called(getattr(atomr_trio if cls is None else w.owner(cls), method), arguments)

    async def make_recorded(w: World, arguments: Arguments) -> None:
        await w.dev.capture(lambda recorder: bound(getattr(recorder, method), arguments)())

    return Call(name, given, make_recorded if cls is GraphRecorder else make)


def as_called(name: str) -> str:
    """How a program writes a verb of a library: `blas.gemm` for `Blas.gemm`."""
    library, _, method = name.partition(".")
    return f"{library.lower()}.{method}"


LIBRARY_VERBS = {as_called(member.name): member for member in CALLABLES if is_verb(member.value)}


def by_name(path: str, given: tuple[Any, ...]) -> Arguments:
    """What stands for the arguments of a verb of a library, each with the name of its parameter."""
    names = [each.name for each in LIBRARY_VERBS[path].parameters]
    return {names[place] if isinstance(place, int) else place: each for place, each in numbered(given)}


def linear_calls(name: str, given: tuple[Any, ...]) -> Iterator[Call]:
    """A call as in `LINEAR`, in its two forms."""
    path = name.split()[0]

    async def put(w: World, value: Any) -> Any:
        if isinstance(value, list):
            return tuple([await put(w, each) for each in value])
        if callable(value):
            return value(w)
        return await w.array(value) if isinstance(value, tuple) else value

    async def arguments(w: World) -> Arguments:
        return {place: await put(w, each) for place, each in by_name(path, given).items()}

    async def awaited(w: World, arguments: Arguments) -> None:
        await called(find(w.dev, path), arguments)

    async def batched(w: World, arguments: Arguments) -> None:
        await called(find(w.batch, path), arguments)

    yield Call(f"{name}, awaited", arguments, awaited, is_linear=True)
    yield Call(f"{name}, in a batch", arguments, batched, is_linear=True)


def every_call() -> Iterator[Call]:
    for name, variants in CALLS.items():
        yield from (call_of(name, each) for each in variants)
    for name, given in LINEAR.items():
        yield from linear_calls(name, given)


# --- the refusals -----------------------------------------------------------------------------------------------------


async def test_all_verbs_are_known_and_all_that_each_may_be_given():
    async with world() as w:
        given = {
            (name, place[0])
            for name, variants in CALLS.items()
            for arguments in variants
            for place, value in leaves(arguments(w))
            if w.in_place_of(value)
        }
    for name, stand_ins in LINEAR.items():
        path = name.split()[0]
        by_place = by_name(path, stand_ins).items()
        arrays = [place for place, each in by_place if isinstance(each, tuple | list) or callable(each)]
        given |= {(LIBRARY_VERBS[path].name, place) for place in arrays}
    assert {"Batch.fill", "Kernel.launch", "Blas.gemm", "PreparedLaunch.__setitem__"} <= places().keys()
    missing = [f"{name}({each})" for name, found in places().items() for each in found if (name, each) not in given]
    assert missing == [], (
        "what these parameters are given may belong to another device: give something there in a right call of CALLS, "
        "or of LINEAR for a verb of a library. If nothing can belong to a device there, say so in PLAIN or "
        "BELONGS_TO_NONE."
    )


def with_foreign(call: Call, right: Arguments, theirs: Arguments, other: World) -> Iterator[tuple[str, Arguments]]:
    """The call with a thing of another device in each place, and with nothing else."""
    counterparts = dict(leaves(theirs))
    for place, thing in leaves(right):
        stand_ins = other.in_place_of(thing)
        if stand_ins:
            for foreign in (counterparts[place], *(() if call.is_linear else stand_ins)):
                yield f"{foreign!r} at {place}", put(right, place, foreign)
    yield "everything", theirs


NAMES_BOTH = re.compile(r"belongs to another device: it is of device 0, opened apart, and was given to device 0")


@pytest.mark.long
async def test_what_belongs_to_another_device_is_refused_by_every_verb_and_nothing_is_sent():
    async with world() as mine, world(is_other=True) as other:
        for call in every_call():
            right, theirs = await call.arguments(mine), await call.arguments(other)
            for turn in ("new", "made before"):
                if turn == "made before":
                    with noting(call.name):
                        await call.make(mine, right)
                before = sent(mine.dev), sent(other.dev)
                for what, wrong in with_foreign(call, right, theirs, other):
                    with noting(f"{call.name}, {turn}, is given {what}"):
                        with trio.fail_after(60), pytest.raises(InvalidArgument, match=NAMES_BOTH):
                            await call.make(mine, wrong)
                assert (sent(mine.dev), sent(other.dev)) == before, f"{call.name}: something was sent"
            await mine.batch.flush()


# --- anything at all --------------------------------------------------------------------------------------------------

PLAIN_CALLS: dict[str, Callable[[World], Arguments]] = {
    "Device.capture": lambda w: {"record": lambda recorder: recorder.fill(w.x, 0)},
    "Device.empty": lambda w: {"shape": N, "dtype": np.float32, "guarded": False},
    "Device.events": lambda w: {"buffer": 8},
    "Device.full": lambda w: {"shape": N, "value": 1.0, "dtype": np.float32, "guarded": False},
    "Device.lane": lambda w: {"priority": 0, "ordered": True},
    "Device.pinned_empty": lambda w: {"shape": N, "dtype": np.float32},
    "Device.trim": lambda w: {"keep": 1 << 40},
    "Device.wait_generation": lambda w: {"after": 0},
    "Device.wait_standby": lambda w: {"count": 0},
    "Device.zeros": lambda w: {"shape": N, "dtype": np.float32, "guarded": False},
    "DeviceArray.__getitem__": lambda w: {"index": 0},
    "DeviceArray.copy_to": lambda w: {"out": np.ones(N, np.float32)},
    "DeviceArray.fill": lambda w: {"value": 1.0},
    "DeviceArray.reshape": lambda w: {"shape": (N,)},
    "DeviceArray.transpose": lambda w: {"axes": (0,)},
    "Fft.callback": lambda w: {"source": CALLBACK, "name": "load", "options": NvrtcOptions()},
    "Fft.fftfreq": lambda w: {"n": 8, "d": 0.5},
    "Fft.next_fast_len": lambda w: {"n": 11},
    "Fft.plan": lambda w: {
        "kind": "rfftn",
        "shape": (4, 8),
        "dtype": np.float32,
        "s": (4, 8),
        "axes": (0, 1),
        "norm": "ortho",
        "overwrite_x": False,
        "strides": (64, 8),
        "out_strides": (64, 8),
    },
    "Random.generator": lambda w: {
        "kind": "sobol32",
        "seed": None,
        "ordering": "default",
        "dims": 3,
        "offset": 7,
    },
    "Random.load": lambda w: {"names": ("bits",)},
    "Random.seed": lambda w: {"seed": 3},
    "RandomGenerator.seek": lambda w: {"state": w.generator.state},
    "RandomGenerator.spawn": lambda w: {"n_children": 2},
    "Fft.rfftfreq": lambda w: {"n": 8, "d": 0.5},
    "Graph.launch": lambda w: {"hang_timeout": 60.0},
    "Graph.launch_nowait": lambda w: {"hang_timeout": 60.0},
    "Kernel.grid_for": lambda w: {"n": N, "block": N},
    "Kernel.occupancy": lambda w: {"block": N, "shared_bytes": 0},
    "Kernel.suggest_block": lambda w: {"shared_bytes": 0},
    "ModuleLoader.load": lambda w: {"image": w.program.ptx or w.program.cubin, "name": "again", "variables": ["spare"]},
    "Nvrtc.compile": lambda w: {"source": SOURCE, "name": "add", "options": NvrtcOptions()},
    "Nvrtc.compile_program": lambda w: {"source": SOURCE, "options": NvrtcOptions()},
    "Nvrtc.kernel": lambda w: {"declared": add_one},
    "PreparedLaunch.__getitem__": lambda w: {"index": 0},
    "Program.__getitem__": lambda w: {"name": "add"},
    "Program.function": lambda w: {"name": "add"},
    "Program.global_": lambda w: {"name": "&spare", "dtype": np.float32},
    "overwrites": lambda w: {"array": w.x},
    "DeviceArray.view": lambda w: {"dtype": np.int32},
    "read_only": lambda w: {"array": w.x},
    "strided": lambda w: {"array": w.x},
    "writes": lambda w: {"array": w.x},
}
"""Right calls of the verbs that are given nothing of a device."""

CALLED_ELSEWHERE = {
    *("compile_to_cubin", "compile_to_ltoir", "compile_to_ptx", "kept_findings", "kernel", "link"),
    *(
        *("DeclaredKernel.grid_for", "DeclaredKernel.launch"),
        "Device.restart",
        *("Devices.__getitem__", "Devices.events", "Devices.map", "Devices.pick", "Devices.reserve", "open_devices"),
        *("LeastLoaded.choose", "MostFree.choose", "Placement.choose", "RoundRobin.choose"),
        "Graph.update",
        "KernelSignature.pack",
        "KernelSignature.described",
        "LinkInput.read",
        "LinkOptions.flags",
        *("open_device", "retry", "start", "start_devices"),
    ),
}
"""What knows no device, or costs a generation."""

JUNK = (object(), None, "?", -1, 2.5, [object()])


def test_every_verb_is_given_junk():
    verbs = {m.name for m in [*CALLABLES, *operators()] if m.parameters and not NO_VERBS.match(m.name)}
    verbs -= {"Module.__contains__", "Program.__contains__", *(member.name for member in LIBRARY_VERBS.values())}
    known = {*CALLS, *PLAIN_CALLS, *CALLED_ELSEWHERE}
    unknown = {name.replace("Module.", "Program.") for name in verbs} - known
    assert unknown == set(), "add right calls of them to CALLS or PLAIN_CALLS"


def with_junk(right: Arguments) -> Iterator[tuple[str, Arguments]]:
    """The arguments with anything at all in the place of each."""
    whole = [(name,) for name, given in right.items() if not isinstance(given, tuple | dict)]
    every = [*whole, *(place for place, _ in leaves(right))]
    for place, junk in itertools.product(dict.fromkeys(every), JUNK):
        # To a kernel an int is an address.
        if not (isinstance(junk, int) and place[0] in ("argument", "arguments")):
            yield f"{junk!r} at {place}", put(right, place, junk)


INDICES_OF_PYTHON = {"PreparedLaunch.__getitem__", "PreparedLaunch.__setitem__"}
"""They are indexed as tuples and lists are."""


@pytest.mark.long
async def test_whatever_a_verb_is_given_it_takes_or_refuses_by_an_error_that_says_so():
    async with world() as w:
        calls = [call_of(name, each) for name, variants in CALLS.items() for each in variants]
        calls += [call_of(name, each) for name, each in PLAIN_CALLS.items()]
        for call in calls:
            refusals = (RequestError, IndexError, *((TypeError,) if call.name in INDICES_OF_PYTHON else ()))
            right = await call.arguments(w)
            for what, wrong in with_junk(right):
                with noting(f"{call.name} is given {what}"), contextlib.suppress(*refusals), trio.fail_after(60):
                    await call.make(w, wrong)
            with noting(call.name):
                await call.make(w, right)
                await w.batch.flush()
        assert w.dev.generation == 1
