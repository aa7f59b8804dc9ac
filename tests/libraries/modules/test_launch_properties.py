"""What a kernel is given is what it sees, for every type of parameter, every value and every grid, or it is refused.

The kernels are made up for the signatures that hypothesis draws: they store each parameter's bytes.
"""

from __future__ import annotations

import ctypes
import enum
import math
import struct
from collections.abc import Callable
from typing import Any

import attrs
import hypothesis.strategies as st
import numpy as np
import pytest

from atomr_trio import DeviceArray, InvalidArgument, overwrites, read_only, strided, writes
from atomr_trio._values.dtypes import DTYPES
from support.strategies import (
    FLOAT_CODES,
    Way,
    check_on_device,
    complexes,
    follow,
    numbers,
    reals,
    seeds,
    sent,
    steps,
    until_idle,
)

pytestmark = pytest.mark.used_workers


async def assert_refused(dev, kernel, *arguments):
    """Both ways to launch refuse, and nothing has been sent."""
    before = sent(dev)
    with pytest.raises(InvalidArgument):
        await kernel.launch(*arguments)
    with pytest.raises(InvalidArgument):
        kernel.launch_nowait(*arguments)
    assert sent(dev) == before


# --- kernel arguments -------------------------------------------------------------------------------------------------

SLOT = 32
"""Bytes between the places that a kernel stores its parameters at; each type fits there and is aligned."""


class Level(enum.IntEnum):
    HIGH = 7


@attrs.frozen
class OnDevice:
    """Stands for an argument that exists only once there is a device: a view of an array, perhaps with a mark."""

    way: Way
    mark: Callable[[DeviceArray], Any]

    def of(self, array: DeviceArray) -> tuple[Any, bytes]:
        """The argument, and the bytes of the pointer that the kernel gets."""
        view = follow(self.way, array)
        return self.mark(view), struct.pack("<Q", view.address)


@attrs.frozen
class Freed(OnDevice):
    """Stands for an array that was freed."""


SHARED = np.zeros((3, 4), np.int32)
"""The array that `OnDevice` takes views of."""

marks = st.sampled_from(
    [strided, *(lambda array, mark=mark: mark(strided(array)) for mark in (read_only, writes, overwrites))]
)
"""The views are of all kinds, so each has a mark that says so."""
on_device = st.builds(OnDevice, steps(SHARED), marks)
freed = st.builds(Freed, st.just([]), marks)
misfits = st.sampled_from([None, "1", b"", [1], (), object(), np.zeros(3), np.array(1), np.datetime64(1, "s")]) | freed


def scalars_of(kinds: str, most: int = 16) -> st.SearchStrategy[Any]:
    """numpy scalars with any bits, of the dtypes of some kinds and of at most so many bytes."""
    chosen = [dtype for dtype in DTYPES if dtype.kind in kinds and dtype.itemsize <= most]
    return st.builds(lambda dtype, seed: numbers((), dtype, seed)[()], st.sampled_from(chosen), seeds)


def integer_bytes(value: Any, dtype: np.dtype) -> bytes | None:
    """The number that the type holds; C++ says whether it has a sign."""
    limits = np.iinfo(dtype)
    if not isinstance(value, int | np.integer | np.bool_) or not limits.min <= int(value) <= limits.max:
        return None
    return int(value).to_bytes(dtype.itemsize, "little", signed=limits.min < 0)


def bool_bytes(value: Any, dtype: np.dtype) -> bytes | None:
    """A bool, or 0 or 1."""
    return bytes([int(value)]) if isinstance(value, int | np.integer | np.bool_) and int(value) in (0, 1) else None


def pointer_bytes(value: Any, dtype: np.dtype) -> bytes | OnDevice | None:
    """An array that is not freed, or an address."""
    if isinstance(value, OnDevice):
        return None if isinstance(value, Freed) else value
    return integer_bytes(value, dtype)


def float_bytes(value: Any, dtype: np.dtype) -> bytes | None:
    """A Python float is rounded; whatever has a type of its own must be held exactly."""
    code = FLOAT_CODES[dtype.itemsize]
    if isinstance(value, np.floating):
        return struct.pack(code, float(value)) if value.itemsize <= dtype.itemsize else None
    if not isinstance(value, int | float | np.integer | np.bool_):
        return None
    try:
        packed = struct.pack(code, value if isinstance(value, float) else float(int(value)))
    except OverflowError:
        return None
    return packed if isinstance(value, float) or struct.unpack(code, packed)[0] == int(value) else None


def struct_bytes(value: Any, dtype: np.dtype) -> bytes | None:
    """Whatever has as many bytes and is no number, except a complex one for a vector of two floats."""
    if isinstance(value, np.generic):
        raw = value.tobytes() if value.dtype.kind == "V" or value.dtype == COMPLEX_OF.get(dtype) else b""
    elif isinstance(value, complex):
        raw = struct.pack("<dd", value.real, value.imag) if COMPLEX_OF.get(dtype) == np.complex128 else b""
    else:
        raw = bytes(value) if isinstance(value, bytes | bytearray | memoryview) else b""
    return raw if len(raw) == dtype.itemsize else None


@attrs.frozen(eq=False)
class Type:
    """A C++ type of a parameter."""

    dtype: np.dtype
    """What lies in memory."""
    takes: st.SearchStrategy[Any]
    """Arguments that fit, nearly all of them."""
    refuses: st.SearchStrategy[Any]
    """Arguments that do not, nearly all of them."""
    rule: Callable[[Any, np.dtype], bytes | OnDevice | None]
    """The bytes that an argument becomes; None if it is to be refused."""

    @property
    def plain(self) -> Any:
        """An argument that fits."""
        return bytes(self.dtype.itemsize) if self.dtype.names else 1

    def bytes_of(self, argument: Any) -> bytes | OnDevice | None:
        return self.rule(argument, self.dtype)

    def fields(self, raw: bytes) -> list[bytes]:
        """The bytes that mean something; those between the fields of a struct do not."""
        value = np.frombuffer(raw, self.dtype, 1)
        return [value[name].tobytes() for name in self.dtype.names or [...]]


def integer(code: str) -> Type:
    dtype = np.dtype(code)
    lowest, highest = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    fit = st.integers(lowest, highest) | st.sampled_from([lowest, highest, Level.HIGH, np.True_]) | st.booleans()
    beyond = st.integers(highest + 1) | st.integers(None, lowest - 1) | st.sampled_from([highest + 1, lowest - 1])
    same = st.builds(lambda seed: numbers((), dtype, seed)[()], seeds)
    typed = same | st.integers(0, 127).map(np.int64)
    return Type(dtype, fit | typed, beyond | scalars_of("iufc") | complexes | on_device | misfits, integer_bytes)


def pointer(*, arrays: bool = True) -> Type:
    """A pointer, to what `SHARED` has or to anything; or to what it has not."""
    whole = integer("u8")
    if not arrays:
        return whole
    beyond = st.integers(1 << 64) | st.integers(None, -1)
    return Type(whole.dtype, whole.takes | on_device, beyond | scalars_of("fc") | complexes | misfits, pointer_bytes)


def floating(code: str) -> Type:
    dtype = np.dtype(code)
    digits = np.finfo(dtype).nmant + 1
    fit = st.floats(width=8 * dtype.itemsize) | st.floats(-1e38, 1e38) | scalars_of("f", most=dtype.itemsize)
    exact = st.integers(-(1 << digits), 1 << digits) | st.integers(-(1 << 9), 1 << 9).map(lambda n: n << digits)
    inexact = st.integers(1, 100).map(lambda odd: (odd << digits) + 1) | st.just(2**1100)
    wide = st.floats(1e39) | scalars_of("fc") | st.just(np.longdouble(1))
    other = inexact | wide | complexes | on_device | misfits
    return Type(dtype, fit | exact | exact.map(np.int64) | st.booleans() | st.just(np.True_), other, float_bytes)


def structure(*fields: tuple[Any, ...]) -> Type:
    dtype = np.dtype(list(fields), align=True)
    raw = st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize)
    scalar = raw.map(lambda data: np.frombuffer(data, dtype)[0])
    takes = raw | raw.map(bytearray) | raw.map(memoryview) | scalar
    every = [kind for kinds in COMPLEXES.values() for kind in kinds]
    if dtype in COMPLEX_OF:
        takes |= st.one_of(COMPLEXES[COMPLEX_OF[dtype]])
    other = st.one_of(st.binary(max_size=dtype.itemsize - 1), scalars_of("fiub"), *every, reals, on_device, misfits)
    return Type(dtype, takes, other, struct_bytes)


small_complexes = st.builds(complex, st.floats(width=32), st.floats(width=32))
COMPLEXES = {
    np.complex64: [small_complexes.map(np.complex64)],
    np.complex128: [complexes, complexes.map(np.complex128)],
}
"""Complex numbers by their dtype."""
COMPLEX_OF = {
    np.dtype([("x", code), ("y", code)], align=True): kind
    for code, kind in (("f4", np.complex64), ("f8", np.complex128))
}
"""The dtype of the complex number that has the layout of a vector type."""

TYPES = {
    "bool": Type(
        np.dtype("u1"),
        st.sampled_from([True, False, 0, 1, np.True_, np.uint64(1)]),
        misfits | st.sampled_from([2, -1, 255]),
        bool_bytes,
    ),
    "char": integer("i1"),
    "signed char": integer("i1"),
    "unsigned char": integer("u1"),
    "short": integer("i2"),
    "unsigned short": integer("u2"),
    "int": integer("i4"),
    "unsigned int": integer("u4"),
    "Level": integer("i4"),
    "long": integer("i8"),
    "unsigned long long": integer("u8"),
    "float": floating("f4"),
    "double": floating("f8"),
    "void *": pointer(),
    "const int *": pointer(),
    "struct Mixed **": pointer(arrays=False),
    "float2": structure(("x", "f4"), ("y", "f4")),
    "double2": structure(("x", "f8"), ("y", "f8")),
    "float4": structure(*((name, "f4") for name in "xyzw")),
    "uchar3": structure(*((name, "u1") for name in "xyz")),
    "struct Mixed": structure(("tag", "i1"), ("x", "f8"), ("y", "i2", 3)),
}
"""The C++ types that parameters are drawn from."""


EVERY_TYPE = list(TYPES)
rows_that_fit = st.tuples(*(each.takes for each in TYPES.values()))
"""An argument for a parameter of each type."""


@st.composite
def spoiled_rows(draw: st.DrawFn, names: list[str]) -> list[Any]:
    """Arguments for parameters of these types, of which one does not fit."""
    row = [TYPES[name].plain for name in names]
    spoiled = draw(st.integers(0, len(names) - 1))
    row[spoiled] = draw(TYPES[names[spoiled]].refuses)
    return row


@st.composite
def signatures(draw: st.DrawFn) -> tuple[list[str], int, tuple[Any, ...]]:
    """The types of a kernel's parameters, where among them the array of results comes, and arguments of a launch."""
    names = draw(st.lists(st.sampled_from(EVERY_TYPE), min_size=1, max_size=12))
    return names, draw(st.integers(0, len(names))), draw(st.tuples(*(TYPES[name].takes for name in names)))


def source_of(names: list[str], place: int) -> str:
    """A kernel that stores each of its parameters in a slot of its own."""
    declared = [f"{name} p{index}" for index, name in enumerate(names)]
    declared.insert(place, "unsigned char *out")
    stores = (f"*({name} *)(out + {SLOT * index}) = p{index};" for index, name in enumerate(names))
    return f"""
        struct Mixed {{ signed char tag; double x; short y[3]; }};
        enum Level {{ LOW, HIGH = {Level.HIGH} }};
        extern "C" __global__ void store({", ".join(declared)}) {{ {" ".join(stores)} }}
    """


async def check_launch(dev, names, row, place=0):
    """Launch a kernel with parameters of these types: it sees what it is given, or an argument is refused."""
    store = await dev.nvrtc.compile(source_of(names, place), "store")
    with await dev.to_device(SHARED) as shared, dev.zeros((len(names), SLOT), np.uint8) as out:
        gone = dev.empty(3)
        gone.free()
        expected = [TYPES[name].bytes_of(value) for name, value in zip(names, row, strict=True)]
        arguments: list[Any] = [*row]
        for index, value in enumerate(row):
            if isinstance(value, OnDevice):
                arguments[index], address = value.of(gone if isinstance(value, Freed) else shared)
                expected[index] = expected[index] and address
        arguments.insert(place, out)
        if None in expected:
            await assert_refused(dev, store, 1, 1, *arguments)
        else:
            await store.launch(1, 1, *arguments)
            for name, slot, raw in zip(names, await out.to_host(), expected, strict=True):
                assert TYPES[name].fields(slot.tobytes()) == TYPES[name].fields(raw), name
    await until_idle(dev)


@check_on_device(0.3, rows_that_fit)
async def test_a_kernel_sees_the_arguments_it_is_given(dev, row):
    await check_launch(dev, EVERY_TYPE, row)


@check_on_device(0.1, signatures())
async def test_a_kernel_sees_its_arguments_in_whatever_order_its_parameters_are_declared(dev, drawn):
    names, place, row = drawn
    await check_launch(dev, names, row, place)


@check_on_device(1.5, spoiled_rows(EVERY_TYPE))
async def test_an_argument_that_does_not_fit_is_refused_and_nothing_is_sent(dev, row):
    await check_launch(dev, EVERY_TYPE, row)


# --- structs ----------------------------------------------------------------------------------------------------------

SCALARS: dict[str, tuple[str, Any]] = {
    "signed char": ("i1", ctypes.c_int8),
    "unsigned char": ("u1", ctypes.c_uint8),
    "short": ("i2", ctypes.c_int16),
    "unsigned short": ("u2", ctypes.c_uint16),
    "int": ("i4", ctypes.c_int32),
    "unsigned int": ("u4", ctypes.c_uint32),
    "long long": ("i8", ctypes.c_int64),
    "unsigned long long": ("u8", ctypes.c_uint64),
    "float": ("f4", ctypes.c_float),
    "double": ("f8", ctypes.c_double),
    "void *": ("u8", ctypes.c_void_p),
}
"""C++ types of members and parameters, with what numpy and ctypes call them."""


@attrs.frozen
class Member:
    """A member of a struct, or a parameter of a kernel."""

    kind: str | Struct
    length: int = 0
    """Of an array; 0 for a single one."""
    alignas: int = 0

    @property
    def element(self) -> np.dtype:
        return np.dtype(SCALARS[self.kind][0]) if isinstance(self.kind, str) else self.kind.dtype

    @property
    def dtype(self) -> np.dtype:
        return np.dtype((self.element, (self.length,))) if self.length else self.element

    @property
    def alignment(self) -> int:
        own = self.element.itemsize if isinstance(self.kind, str) else self.kind.alignment
        return max(own, self.alignas)

    @property
    def ctype(self) -> Any:
        one = SCALARS[self.kind][1] if isinstance(self.kind, str) else self.kind.ctype
        return one * self.length if self.length else one

    def declared(self, name: str) -> str:
        kind = self.kind if isinstance(self.kind, str) else f"struct {{ {self.kind.body} }}"
        aligned = f"alignas({self.alignas}) " if self.alignas and self.alignas == self.alignment else ""
        return f"{aligned}{kind} {name}{f'[{self.length}]' if self.length else ''};"

    def leaves(self, path: str) -> list[str]:
        """C++ expressions for all numbers in it, in the order of memory."""
        paths = [f"{path}[{index}]" for index in range(self.length)] if self.length else [path]
        if isinstance(self.kind, str):
            return paths
        return [leaf for each in paths for leaf in self.kind.leaves(each)]


@attrs.frozen
class Struct:
    """A struct of C++, laid out by its rules: each member at the next multiple of its alignment."""

    members: tuple[Member, ...]

    @property
    def alignment(self) -> int:
        return max(member.alignment for member in self.members)

    @property
    def natural(self) -> bool:
        """Whether nothing in it is aligned more than it has to be: `ctypes` and numpy know no more than that."""
        return all(
            not member.alignas and (isinstance(member.kind, str) or member.kind.natural) for member in self.members
        )

    @property
    def dtype(self) -> np.dtype:
        offsets, end = [], 0
        for member in self.members:
            offsets.append(-(-end // member.alignment) * member.alignment)
            end = offsets[-1] + member.dtype.itemsize
        size = -(-end // self.alignment) * self.alignment
        names = [f"m{index}" for index in range(len(offsets))]
        formats = [member.dtype for member in self.members]
        return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})

    @property
    def ctype(self) -> type[ctypes.Structure]:
        fields = [(f"m{index}", member.ctype) for index, member in enumerate(self.members)]
        return type("Struct", (ctypes.Structure,), {"_fields_": fields})

    @property
    def body(self) -> str:
        return " ".join(member.declared(f"m{index}") for index, member in enumerate(self.members))

    def leaves(self, path: str) -> list[str]:
        return [leaf for index, member in enumerate(self.members) for leaf in member.leaves(f"{path}.m{index}")]


def values_in(value: Any) -> bytes:
    """The bytes of all numbers in a scalar, an array or a struct, without what lies between them."""
    if value.dtype.names:
        rows = value.reshape(-1) if isinstance(value, np.ndarray) else [value]
        return b"".join(values_in(row[name]) for row in rows for name in value.dtype.names)
    return value.tobytes()


scalar_members = st.builds(
    Member, st.sampled_from(list(SCALARS)), st.sampled_from([0, 0, 0, 2, 3]), st.sampled_from([0, 0, 0, 0, 8, 16])
)


def structs(members: st.SearchStrategy[Member], most: int) -> st.SearchStrategy[Struct]:
    return st.builds(Struct, st.lists(members, min_size=1, max_size=most).map(tuple))


inner_members = st.builds(Member, structs(scalar_members, 3), st.sampled_from([0, 0, 2]))
parameters = st.builds(Member, st.sampled_from(list(SCALARS)) | structs(scalar_members | inner_members, 4))


@attrs.frozen
class Echo:
    """A kernel that stores all numbers in its parameters, and how it is given them."""

    parameters: list[Member]
    seed: int
    forms: list[str]

    def source(self, name: str) -> str:
        structs = [
            (f"{name}_{index}", parameter.kind)
            for index, parameter in enumerate(self.parameters)
            if isinstance(parameter.kind, Struct)
        ]
        declared = " ".join(f"struct {struct} {{ {kind.body} }};" for struct, kind in structs)
        names = dict(structs)
        listed = ", ".join(
            f"{f'{name}_{index}' if f'{name}_{index}' in names else parameter.kind} p{index}"
            for index, parameter in enumerate(self.parameters)
        )
        leaves = [leaf for index, parameter in enumerate(self.parameters) for leaf in parameter.leaves(f"p{index}")]
        stores = " ".join(f"out = put(out, {leaf});" for leaf in leaves)
        return f'{declared}\nextern "C" __global__ void {name}({listed}, unsigned char *out) {{ {stores} }}'

    def arguments(self) -> tuple[list[Any], bytes]:
        """What the kernel is given, and what it is to store."""
        arguments, expected = [], b""
        for index, parameter in enumerate(self.parameters):
            value = numbers((), parameter.dtype, self.seed + index)[()]
            if isinstance(parameter.kind, str) and parameter.dtype.kind == "f":
                value = parameter.dtype.type(self.seed + index)  # a NaN need not keep its bits
            expected += values_in(value)
            arguments.append(self._given(parameter, value, self.forms[index]))
        return arguments, expected

    @staticmethod
    def _given(parameter: Member, value: Any, form: str) -> Any:
        if isinstance(parameter.kind, str):
            return value
        if form == "bytes":
            return value.tobytes()
        if form == "ctypes" and parameter.kind.natural:
            return parameter.kind.ctype.from_buffer_copy(value.tobytes())
        return value


def echoes_of(drawn: list[Member]) -> st.SearchStrategy[Echo]:
    forms = st.lists(st.sampled_from(["numpy", "ctypes", "bytes"]), min_size=len(drawn), max_size=len(drawn))
    return st.builds(Echo, st.just(drawn), seeds, forms)


echoes = st.lists(parameters, min_size=1, max_size=5).flatmap(echoes_of)

PUT = """
template <class T> __device__ unsigned char *put(unsigned char *out, const T &value)
{
    for (unsigned i = 0; i < sizeof(T); i++) out[i] = ((const unsigned char *)&value)[i];
    return out + sizeof(T);
}
"""


@pytest.mark.long
@check_on_device(0.25, st.lists(echoes, min_size=6, max_size=6))
async def test_structs_of_any_members_are_laid_out_as_the_compiler_lays_them_out(dev, drawn):
    source = PUT + "\n".join(echo.source(f"echo{index}") for index, echo in enumerate(drawn))
    for index, echo in enumerate(drawn):
        kernel = await dev.nvrtc.compile(source, f"echo{index}")
        arguments, expected = echo.arguments()
        with dev.zeros(len(expected) + 8, np.uint8) as out:
            await kernel.launch(1, 1, *arguments, out)
            assert (await out.to_host()).tobytes() == expected + bytes(8)


# --- grids and blocks -------------------------------------------------------------------------------------------------

SHAPE_OF_LAUNCH = r"""
extern "C" __global__ void shape_of_launch(int *out, int *count)
{
    if (blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x + threadIdx.y + threadIdx.z == 0) {
        out[0] = gridDim.x;  out[1] = gridDim.y;  out[2] = gridDim.z;
        out[3] = blockDim.x; out[4] = blockDim.y; out[5] = blockDim.z;
    }
    atomicAdd(count, 1);
}
"""

MOST_THREADS = 4096
"""Of launches that really run: the simulator takes its time."""

few = st.integers(1, 4)
lengths = few | few.map(np.uint8) | few.map(np.array) | st.sampled_from([16, 64, 65, 1024, 1025, 2**16 - 1, 2**16])
no_lengths = st.sampled_from(
    [0, -1, 2**31, 2**32 + 1, 2**64, math.nan, 1.0, "1", b"1", None, True, np.False_, np.float32(1), 1j, (), {1}]
)


@st.composite
def dimensions(draw: st.DrawFn) -> tuple[Any, tuple[int, ...]]:
    """A grid or a block as somebody may write it, and the three numbers that it means, or none that can be."""
    given_lengths = draw(st.lists(lengths, min_size=1, max_size=3))
    meant = tuple(map(int, (*given_lengths, 1, 1)))[:3]
    wrong = draw(st.sampled_from(["nothing"] * 4 + ["a length", "no lengths", "four lengths"]))
    if wrong != "nothing":
        meant = (0, 0, 0)
    if wrong == "a length":
        given_lengths[draw(st.integers(0, len(given_lengths) - 1))] = draw(no_lengths)
    elif wrong != "nothing":
        given_lengths = [] if wrong == "no lengths" else [*given_lengths, 1, 1, 1][:4]
    bare = given_lengths if len(given_lengths) == 1 else []
    return draw(st.sampled_from([tuple(given_lengths), given_lengths, *bare])), meant


@check_on_device(0.75, dimensions(), dimensions())
async def test_a_grid_and_a_block_are_what_was_written_or_refused(dev, grid, block):
    kernel = await dev.nvrtc.compile(SHAPE_OF_LAUNCH, "shape_of_launch")
    (grid, blocks), (block, threads) = grid, block
    limits = (*dev.info.max_grid, *dev.info.max_block)
    with dev.zeros(6, np.int32) as out, dev.zeros(1, np.int32) as count:
        total = math.prod(blocks + threads)
        if math.prod(threads) > dev.info.max_threads_per_block or not all(
            1 <= length <= limit for length, limit in zip(blocks + threads, limits, strict=True)
        ):
            await assert_refused(dev, kernel, grid, block, out, count)
        elif total <= MOST_THREADS:
            await kernel.launch(grid, block, out, count)
            assert (await out.to_host()).tolist() == [*blocks, *threads]
            assert await count.to_host() == total
    await until_idle(dev)
