"""What the plans of cuFFT do: programs for the engine of plans, from the description of a transform.

A transform is done in passes. A pass is one layout of cuFFT with up to three axes, and goes from one array to another,
or is done in place: the arrays are the source, the target, and pieces of the lane's workspace. Where cuFFT cannot take
an array as it lies, it is copied to another layout, and that copy also converts, pads, conjugates and scales. If there
is no such copy, the result is scaled in place at the end. The source is only read.

A callback sees where an element lies in the array that cuFFT was given. So with callbacks a transform is one execution
of cuFFT, which begins at the source for a load callback, and ends at the target for a store callback; what cannot be
done so is refused (`_check_direct`). The kernel ``hermitian`` would see what a load callback has not read yet, and is
left out with one.

cuFFT destroys the input of a transform from complex to real, so it is given a copy. What it says about that copy is in
``engine_kernels``: the kernel ``hermitian`` runs before.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from atomr_cuda.constants import cufft, library_types

from ..._values.errors import InvalidArgument
from ..._values.util import known
from ..._wire.programs import (
    OF_LANE,
    Address,
    Bytes,
    Call,
    Create,
    Launch,
    Most,
    Out,
    Program,
    Query,
    Room,
    RoomOf,
    Set,
    Slot,
    Step,
    Stream,
    Values,
    Words,
)
from .axes import COMPLEX, HALVES, PAIRS
from .layouts import SIZES, Buffer, Fit, Layout, copies, fit
from .records import Callback, Convolution, Operation, Problem, Shift

_TYPES: Final = {
    ("complex64", "complex64"): (cufft.CUFFT_C2C, "cufftExecC2C"),
    ("float32", "complex64"): (cufft.CUFFT_R2C, "cufftExecR2C"),
    ("complex64", "float32"): (cufft.CUFFT_C2R, "cufftExecC2R"),
    ("complex128", "complex128"): (cufft.CUFFT_Z2Z, "cufftExecZ2Z"),
    ("float64", "complex128"): (cufft.CUFFT_D2Z, "cufftExecD2Z"),
    ("complex128", "float64"): (cufft.CUFFT_Z2D, "cufftExecZ2D"),
}
"""By the dtypes of both sides, the ``cufftType`` and the function that executes it."""
_HALF_TYPES: Final = {
    "float16": library_types.CUDA_R_16F,
    "bfloat16": library_types.CUDA_R_16BF,
    "complex_float16": library_types.CUDA_C_16F,
    "complex_bfloat16": library_types.CUDA_C_16BF,
}
"""The ``cudaDataType`` of half precision, which other functions take for each side."""
_REALS: Final = {name: real for real, name in COMPLEX.items()}

_MOST_TOGETHER: Final = 3
"""The most axes of one plan of cuFFT."""
_LEAST_WORK: Final = 256
"""A plan has a work area even if it needs none, so that its address is never null."""

_NOWHERE: Final = RoomOf(0)
"""The place of an array that is only considered: no array is in the work area."""

_SHORT: Final = 4096
_SMALL_FACTORS: Final = (2, 3, 5, 7, 11, 13)
_ENTRIES_OF_A_SHORT_AXIS: Final = 1
_ENTRIES_OF_A_LONG_AXIS: Final = 4
_ENTRIES_OF_BLUESTEIN: Final = 12
"""The kernels that cuFFT is taken to launch for one axis, at most."""

_TEXTS: Final = {
    cufft.CUFFT_INVALID_SIZE: "cuFFT does not support so many points, or so many transforms",
    cufft.CUFFT_NOT_SUPPORTED: "cuFFT does not support this layout",
}

_LOADS: Final = {
    "float32": cufft.CUFFT_CB_LD_REAL,
    "float64": cufft.CUFFT_CB_LD_REAL_DOUBLE,
    "complex64": cufft.CUFFT_CB_LD_COMPLEX,
    "complex128": cufft.CUFFT_CB_LD_COMPLEX_DOUBLE,
}
_STORES: Final = {
    "float32": cufft.CUFFT_CB_ST_REAL,
    "float64": cufft.CUFFT_CB_ST_REAL_DOUBLE,
    "complex64": cufft.CUFFT_CB_ST_COMPLEX,
    "complex128": cufft.CUFFT_CB_ST_COMPLEX_DOUBLE,
}
"""The kind of a callback by the dtype of its elements, as ``cufftXtCallbackType``."""
_NOT_LINKED: Final = (
    "cuFFT could not link the callbacks: nvJitLink must be at least as new as the NVRTC that compiled them, and what "
    "they call must be in their sources"
)
_TEXTS_OF_CALLBACKS: Final = {
    **_TEXTS,
    cufft.CUFFT_INTERNAL_ERROR: _NOT_LINKED,
    cufft.CUFFT_NVRTC_FAILURE: _NOT_LINKED,
    cufft.CUFFT_NVJITLINK_FAILURE: _NOT_LINKED,
    cufft.CUFFT_NOT_SUPPORTED: "cuFFT does not support this layout with callbacks",
}


class _Writer:
    """The steps of a program, as far as they are written."""

    def __init__(self, addresses: int, *callbacks: tuple[Callback, int]) -> None:
        self._addresses = addresses
        """The arrays; behind their addresses come those of what callbacks are given."""
        self._callbacks = callbacks
        """The callbacks of each plan of cuFFT, with their kinds."""
        self._make: list[Step] = []
        self._settings: list[Step] = []
        self._execute: list[Step] = []
        self._plans: dict[tuple[tuple[str, str], Layout], tuple[int, int]] = {}
        """The slots of a plan, and of the size of its work area."""
        self._pieces: list[int] = []
        self._held: set[int] = set()
        self._entries = 0

    @property
    def _loads(self) -> bool:
        return any(kind in _LOADS.values() for _, kind in self._callbacks)

    def program(self) -> Program:
        """Return the program."""
        make = self._make
        if self._plans:
            work = Most((_LEAST_WORK, *(Slot(size) for _, size in self._plans.values())))
            make = [*make, Room((work, *self._pieces), OF_LANE)]
        elif self._pieces:
            make = [*make, Room((0, *self._pieces), OF_LANE)]
        execute = (*self._settings, *self._execute)
        if not self._callbacks:
            return Program(tuple(make), execute, self._addresses, entries=self._entries, texts=_TEXTS)
        return Program(
            tuple(make),
            execute,
            self._addresses + len(self._callbacks),
            entries=self._entries,
            texts=_TEXTS_OF_CALLBACKS,
        )

    def room(self, dtype: str, shape: Sequence[int], order: Sequence[int], *apart: Buffer) -> Buffer:
        """Return a piece of the workspace for an array, which is none of those of `apart`, and none that is held."""
        taken = self._held | {each.place.piece for each in apart if isinstance(each.place, RoomOf)}
        piece = next(number for number in itertools.count(1) if number not in taken)
        array = Buffer.packed(RoomOf(piece), dtype, shape, order)
        self._pieces += [0] * (piece - len(self._pieces))
        self._pieces[piece - 1] = max(self._pieces[piece - 1], array.bytes)
        return array

    def hold(self, array: Buffer) -> Buffer:
        """Keep an array in its piece until the end of the program."""
        if isinstance(array.place, RoomOf):
            self._held.add(array.place.piece)
        return array

    def copy(
        self,
        source: Buffer,
        target: Buffer,
        *,
        scale: float = 1.0,
        conjugate: bool = False,
        shifts: Sequence[int] | None = None,
        starts: Sequence[int] | None = None,
    ) -> None:
        """Write a copy: see `copies`."""
        steps = list(copies(source, target, scale=scale, conjugate=conjugate, shifts=shifts, starts=starts))
        self._execute += steps
        self._entries += len(steps)

    def execute(self, found: Fit, source: Buffer, target: Buffer, *, inverse: bool) -> None:
        """Write a pass."""
        types, is_half = (source.dtype, target.dtype), source.dtype in _HALF_TYPES
        plan = self._plan(types, found.layout)
        function = "cufftXtExec" if is_half else _TYPES[types][1]
        has_direction = is_half or source.dtype == target.dtype
        direction = (cufft.CUFFT_INVERSE if inverse else cufft.CUFFT_FORWARD,) if has_direction else ()
        for read, written in found.offsets:
            if target.dtype in _REALS.values() and not self._loads:
                self._make_hermitian(found, source, read)
            self._execute.append(Call(function, (Slot(plan), source.at(read), target.at(written), *direction)))
            self._entries += sum(map(_entries_of, found.layout.lengths))

    def multiply(self, target: Buffer, source: Buffer) -> None:
        """Write the product of two packed arrays of the same shape."""
        count = math.prod(target.shape)
        self._execute.append(Launch(f"multiply_{target.dtype}", (target.place, source.place, count), count))
        self._entries += 1

    def _plan(self, types: tuple[str, str], layout: Layout) -> int:
        made = self._plans.get((types, layout))
        if made is not None:
            return made[0]
        plan, size = 2 * len(self._plans), 2 * len(self._plans) + 1
        self._plans[types, layout] = plan, size
        read = (Values(layout.source_embedding), layout.source_stride, layout.source_distance)
        written = (Values(layout.target_embedding), layout.target_stride, layout.target_distance)
        lengths = (len(layout.lengths), Values(layout.lengths))
        kinds: tuple[tuple[int, ...], tuple[int, ...]]
        if types in _TYPES:
            function, kinds = "cufftMakePlanMany64", ((), (_TYPES[types][0],))
        else:
            function, kinds = "cufftXtMakePlanMany", ((_HALF_TYPES[types[0]],), (_HALF_TYPES[types[1]],))
        computed = [_HALF_TYPES[each] for each in types if each in PAIRS][:1]
        sides = (*read, *kinds[0], *written, *kinds[1], layout.batch)
        self._make += [
            Create("cufftCreate", (Out(plan),), "cufftDestroy"),
            Call("cufftSetAutoAllocation", (Slot(plan), 0)),
            *self._hooks(plan),
            Query(function, (Slot(plan), *lengths, *sides, Out(size), *computed)),
            Call("cufftSetStream", (Slot(plan), Stream())),
        ]
        self._settings.append(Set("cufftSetWorkArea", (Slot(plan), RoomOf(0))))
        return plan

    def _hooks(self, plan: int) -> Iterator[Step]:
        """Yield the steps that give a plan its callbacks, which cuFFT takes before it plans."""
        for number, (callback, kind) in enumerate(self._callbacks):
            name, info = callback.name.encode() + b"\0", Words((Address(self._addresses + number),))
            content = Bytes(callback.image), len(callback.image)
            yield Call("cufftXtSetJITCallback", (Slot(plan), Bytes(name), *content, kind, info))

    def _make_hermitian(self, found: Fit, source: Buffer, offset: int) -> None:
        """Write the kernel that makes half a spectrum one of real numbers."""
        size, layout = SIZES[source.dtype], found.layout
        strides = (source.strides[axis] for axis in found.axes)
        *outer, (points, step) = zip(layout.lengths, strides, strict=True)
        planes = (1, 0) if points % 2 else (2, points // 2 * step)
        self._entries += 1
        if not outer:
            ends = (source.at(offset), *planes, layout.batch, layout.source_distance * size)
            self._execute.append(Launch(f"real_ends_{source.dtype}", ends, layout.batch))
            return
        others = [number for axis in [*[(1, 0)] * (2 - len(outer)), *outer] for number in axis]
        words = (source.at(offset), *planes, *others, layout.batch, layout.source_distance * size)
        threads = planes[0] * others[0] * others[2] * layout.batch
        self._execute.append(Launch(f"hermitian_{source.dtype}", words, threads))


def _entries_of(length: int) -> int:
    rest = length
    for factor in _SMALL_FACTORS:
        while rest % factor == 0:
            rest //= factor
    if rest > 1:
        return _ENTRIES_OF_BLUESTEIN
    return _ENTRIES_OF_A_SHORT_AXIS if length <= _SHORT else _ENTRIES_OF_A_LONG_AXIS


class _Pass(NamedTuple):
    """A choice: which transforms are done next, and to where."""

    operations: tuple[Operation, ...]
    target: Buffer
    found: Fit
    cost: float


class _Transformer:
    """Writes the steps of one transform."""

    def __init__(
        self,
        writer: _Writer,
        operations: Sequence[Operation],
        source: Buffer,
        target: Buffer,
        scale: float = 1.0,
        conjugated: str = "",
    ) -> None:
        self._writer = writer
        self._operations = operations
        self._target = target
        self._array = source
        """Where the elements are."""
        self._scale = scale
        """The factor that is left to be multiplied with."""
        self._conjugates_source = conjugated == "source"
        self._conjugates_target = conjugated == "target"

    def write(self) -> None:
        """Write all steps."""
        rounds = list(_rounds(self._operations))
        for each in rounds:
            self._round(each, is_last=each is rounds[-1])
        if not self._array.lies_at(self._target) or self._scale != 1 or self._conjugates_target:
            self._copy(self._target, conjugate=self._conjugates_target)

    def _copy(self, target: Buffer, *, conjugate: bool = False) -> None:
        self._writer.copy(self._array, target, scale=self._scale, conjugate=conjugate)
        self._scale = 1.0
        self._array = target

    def _round(self, operations: list[Operation], *, is_last: bool) -> None:
        """Write transforms along different axes."""
        shape = list(self._array.shape)
        for each in operations:
            shape[each.axis] = each.given
        self._array = self._array.cropped(shape)
        # A transform of one point changes nothing but the dtype.
        left = [each for each in operations if each.length > 1]
        becomes_real = any(each.kind == "h" for each in operations)
        halves = any(each.kind == "h" for each in left)
        real = _precision(self._target.dtype)
        dtype = real if any(each.kind == "r" for each in left) else COMPLEX[real]
        if becomes_real and not halves and not left:
            # Only the real parts are needed, and a real source is one.
            needs_copy = self._array.shape != tuple(shape)
        else:
            needs_copy = self._array.dtype != dtype or self._array.shape != tuple(shape)
        if left:
            # Halves have a small range: what is added up first may be infinite before it is multiplied.
            needs_copy |= self._scale != 1 and real in HALVES
            needs_copy |= not self._array.aligned or (halves and self._conjugates_source)
            needs_copy |= halves and not self._array.owned and len(left) <= _MOST_TOGETHER
        if needs_copy:
            self._bring(dtype, shape, left, is_last=is_last, conjugate=halves and self._conjugates_source)
        while left:
            chosen = self._best(self._array, left, is_last=is_last)
            if chosen is None:
                self._bring(self._array.dtype, shape, left, is_last=is_last)
                chosen = known(self._best(self._array, left, is_last=is_last), "the copy is laid out for a pass")
            self._run(chosen)
            left = [each for each in left if each not in chosen.operations]
            shape = list(self._array.shape)
        if becomes_real and not halves and self._array.dtype in _REALS:
            self._array = self._array._replace(dtype=real)

    def _run(self, chosen: _Pass) -> None:
        target = chosen.target
        if not (target.lies_at(self._target) or target.lies_at(self._array)):
            order = sorted(range(len(target.shape)), key=lambda axis: -target.strides[axis])
            target = self._writer.room(target.dtype, target.shape, order, self._array)
        self._writer.execute(chosen.found, self._array, target, inverse=chosen.operations[0].inverse)
        self._array = target

    def _bring(
        self, dtype: str, shape: Sequence[int], left: list[Operation], *, is_last: bool, conjugate: bool = False
    ) -> None:
        """Copy the elements to where the next pass can take them."""
        target, axes = self._target, range(len(shape))
        candidates = []
        if is_last and dtype == target.dtype and tuple(shape) == target.shape and not target.lies_at(self._array):
            candidates.append(target)
        candidates.append(Buffer.packed(_NOWHERE, dtype, shape, axes))
        for together in _groups(left):
            inner = _innermost(together)
            candidates.append(Buffer.packed(_NOWHERE, dtype, shape, [*(a for a in axes if a not in inner), *inner]))
        best, least = candidates[0], math.inf
        for each in candidates if left else ():
            chosen = self._best(each, left, is_last=is_last)
            if chosen is not None and chosen.cost < least:
                best, least = each, chosen.cost
        if best is not target:
            order = sorted(axes, key=lambda axis: -best.strides[axis])
            best = self._writer.room(dtype, shape, order, self._array)
        self._copy(best, conjugate=conjugate)

    def _best(self, array: Buffer, left: list[Operation], *, is_last: bool) -> _Pass | None:
        """Return the best of the next passes from an array; None if cuFFT can do none from there."""
        best = None
        for together in _groups(left):
            for cost, target in self._targets(array, together, left, is_last=is_last):
                found = fit(array, target, together)
                if found is not None:
                    cost += len(found.offsets) / len(together)
                    if best is None or cost < best.cost:
                        best = _Pass(together, target, found, cost)
        return best

    def _targets(
        self, array: Buffer, together: tuple[Operation, ...], left: list[Operation], *, is_last: bool
    ) -> Iterator[tuple[float, Buffer]]:
        """Yield the arrays to which a pass may go, each with what it costs that the elements come to lie there."""
        shape = list(array.shape)
        for each in together:
            shape[each.axis] = each.result
        is_final = is_last and len(together) == len(left)
        real = _precision(array.dtype)
        dtype = real if any(each.kind == "h" for each in together) else COMPLEX[real]
        if dtype == real and not array.owned:
            return
        will_fit = not any(each.kind == "h" for each in left if each not in together)
        if is_last and will_fit and dtype == self._target.dtype and tuple(shape) == self._target.shape:
            yield 0, self._target
        elsewhere = 2.0 if is_final else 0.5
        if array.owned and dtype == array.dtype:
            yield elsewhere, array
        axes, inner = range(len(shape)), _innermost(together)
        for order in (axes, [*(axis for axis in axes if axis not in inner), *inner]):
            yield elsewhere + 0.25, Buffer.packed(_NOWHERE, dtype, shape, order)


def _precision(dtype: str) -> str:
    return _REALS.get(dtype, dtype)


def _rounds(operations: Sequence[Operation]) -> Iterator[list[Operation]]:
    """Yield the transforms in parts, none of which names an axis twice. Their order does not matter inside a part."""
    part: list[Operation] = []
    for each in operations:
        if any(each.axis == other.axis for other in part):
            yield part
            part = []
        part.append(each)
    yield part


def _groups(left: list[Operation]) -> list[tuple[Operation, ...]]:
    """Return the sets of transforms that may be done next, in one: large ones first, and the last axes first."""
    complex_ones = sorted((each for each in left if each.kind == "c"), key=lambda each: -each.axis)
    first = [each for each in left if each.kind == "r"]
    last = [each for each in left if each.kind == "h"]
    found: list[tuple[Operation, ...]] = []
    if last and len(complex_ones) < _MOST_TOGETHER:
        found.append((*complex_ones, *last))
    for count in range(_MOST_TOGETHER - len(first), 0 if not first else -1, -1):
        found += [(*each, *first) for each in itertools.combinations(complex_ones, count)]
    return found


def _innermost(together: tuple[Operation, ...]) -> list[int]:
    """Return the axes of a pass in the order in which they should lie."""
    return [each.axis for each in sorted(together, key=lambda each: (each.kind != "c", each.axis))]


# --- the programs -----------------------------------------------------------------------------------------------------


@functools.lru_cache(256)
def transform_program(problem: Problem) -> Program:
    """Return the program of a transform. Raises `InvalidArgument` if the arrays have too many axes to be copied.

    Raises it too if there are callbacks, and the transform is not one execution of cuFFT between the arrays.
    """
    sides = (problem.load, _LOADS), (problem.store, _STORES)
    writer = _Writer(2, *((callback, kinds[callback.dtype]) for callback, kinds in sides if callback is not None))
    target = Buffer.given(1, problem.target, owned=True)
    source = target if problem.in_place else Buffer.given(0, problem.source, owned=problem.overwrites)
    _Transformer(writer, problem.operations, source, target, problem.scale, problem.conjugated).write()
    program = writer.program()
    if problem.load is not None or problem.store is not None:
        _check_direct(problem, [step for step in program.execute if type(step) is not Set])
    return program


def _check_direct(problem: Problem, steps: Sequence[Step]) -> None:
    """Raise `InvalidArgument` unless callbacks see the arrays themselves."""
    count = sum(type(step) is Call for step in steps)
    if count != 1:
        raise InvalidArgument(
            f"with callbacks a transform is one execution of cuFFT, and this one takes {count}: transform one to three "
            "axes of at least 2 points, the first or the last ones of contiguous arrays"
        )
    if problem.load is not None and type(steps[0]) is not Call:
        raise InvalidArgument(
            f"a load callback reads x where it lies, and {_why_copied_before(problem)}: do without a load callback, or "
            "give an x that cuFFT takes as it is"
        )
    if problem.store is not None and type(steps[-1]) is not Call:
        if problem.scale != 1:
            raise InvalidArgument(
                "a store callback writes the result, and nothing scales that behind it: multiply by "
                f'{problem.scale!r} in the callback, and give the norm that does not scale, "forward" for an inverse '
                'transform and "backward" for another'
            )
        reason = "it is conjugated" if problem.conjugated == "target" else "cuFFT cannot write to its layout"
        raise InvalidArgument(
            f"a store callback writes out where it lies, and the result would be copied there, since {reason}"
        )


def _why_copied_before(problem: Problem) -> str:
    source, first = problem.source, problem.operations
    real = _precision(problem.target.dtype)
    taken = real if any(each.kind == "r" for each in first) else COMPLEX[real]
    if source.dtype != taken:
        return f"x would be converted from {source.dtype} to {taken} before"
    if any(each.given > source.shape[each.axis] for each in first):
        return "x would be padded with zeros before"
    if problem.conjugated == "source":
        return "x would be conjugated before"
    if any(each.kind == "h" for each in first) and not problem.overwrites:
        return "x would be copied before, since cuFFT destroys the input of this transform: give overwrite_x=True"
    if not source.aligned:
        return "x would be copied before, since it is not aligned to a complex number"
    return "x would be copied before, since cuFFT cannot read its layout"


@functools.lru_cache(256)
def shift_program(problem: Shift) -> Program:
    """Return the program that copies and shifts elements. Raises `InvalidArgument` as `transform_program` does."""
    writer = _Writer(2)
    source, target = Buffer.given(0, problem.source, owned=False), Buffer.given(1, problem.target, owned=True)
    writer.copy(source, target, shifts=problem.shifts)
    return writer.program()


@functools.lru_cache(256)
def convolution_program(problem: Convolution) -> Program:
    """Return the program of a convolution. Raises `InvalidArgument` as `transform_program` does."""
    writer, target = _Writer(3), Buffer.given(2, problem.target, owned=True)
    real = _precision(target.dtype)
    is_real, last = target.dtype == real, len(problem.axes) - 1
    forward, inverse = (
        [
            Operation((kind if is_real else "c") if number == last else "c", axis, length, is_inverse)
            for number, (axis, length) in enumerate(zip(problem.axes, problem.lengths, strict=True))
        ]
        for kind, is_inverse in (("r", False), ("h", True))
    )
    shape = list(problem.first.shape)
    for each in forward:
        shape[each.axis] = each.length
    halved = [*shape]
    for each in forward:
        halved[each.axis] = each.result
    spectra = []
    for number, side in enumerate((problem.first, problem.second)):
        spectra.append(writer.hold(writer.room(COMPLEX[real], halved, range(len(halved)))))
        source = Buffer.given(number, side, owned=False)
        _Transformer(writer, [*reversed(forward)], source, spectra[number]).write()
    product, other = spectra
    writer.multiply(product, other)
    if not is_real:
        result = product
    elif forward:
        result = writer.hold(writer.room(real, shape, range(len(shape))))
    else:
        result = product._replace(dtype=real)
    if forward:
        _Transformer(writer, inverse, product, result).write()
    writer.copy(result, target, scale=1 / math.prod(problem.lengths), starts=problem.starts)
    return writer.program()
