"""Kernels that copy elements from one layout to another, and convert, pad, shift, scale and conjugate them.

Libraries use them before and after calls that take fewer layouts and types than arrays have: cuFFT, for example. The
kernels are PTX of our own, which the driver compiles. So neither NVRTC nor a library is needed. The PTX is of the
oldest target that is supported, so every driver takes it.

An `Arrange` describes a copy by value. `ArrangeKernels.prepare` makes it ready, and `Prepared.launch` makes one launch
of it. The order is: read, or zero outside of the source; convert; multiply; conjugate; write.

- A conversion rounds once, to nearest, as numpy's `astype` does. A NaN stays a NaN.
- Bits are kept where the components of both sides have one type and the scale is 1: those of a NaN too.
- A complex number is scaled by components, so an infinity times a number makes no NaN.
- Source and target may share memory only if each element is written where it was read: nothing is shifted, and the
  extents, the strides and the sizes of the elements are the same.

How an element is found: each thread takes every n-th element, in the order of the target's memory, and takes its
number apart by the extents. Threads beside each other write beside each other. The axes are sorted by the target's
strides, and merged where they can be, because each axis but the outermost costs a division. A kernel divides by
multiplying: see `_division`.

A transpose reads memory in a bad order: threads beside each other read far from each other. A variant that turns tiles
in shared memory would be faster. There is none.
"""

from __future__ import annotations

import math
import struct
import threading
from ctypes import addressof, byref, c_char_p, c_uint64, c_void_p, cast
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MOST_AXES: Final = 8

_THREADS = 256
_MOST_BLOCKS = 4096
"""About twice what the largest GPU runs at once; each thread goes on until no element is left."""

_NARROW_MOST = 1 << 31
"""The largest number of elements for which a kernel counts in 32 bits; see `_division`."""


class _Element(NamedTuple):
    """A type of elements: one component, or two for a complex number."""

    kind: str
    """"bool", "s" and "u" for integers, "f" and "bf" for floats, "b" for bits that are only moved."""
    part: int
    """Bytes of a component, which are its alignment too."""
    parts: int = 1

    @property
    def size(self) -> int:
        return self.part * self.parts


SOURCES: Final[dict[str, _Element]] = {
    "bool": _Element("bool", 1),
    **{f"int{8 * part}": _Element("s", part) for part in (1, 2, 4, 8)},
    **{f"uint{8 * part}": _Element("u", part) for part in (1, 2, 4, 8)},
    "float16": _Element("f", 2),
    "bfloat16": _Element("bf", 2),
    "float32": _Element("f", 4),
    "float64": _Element("f", 8),
    "complex64": _Element("f", 4, 2),
    "complex128": _Element("f", 8, 2),
    # An element of 8 or 16 bytes may be a complex number, which needs the alignment of its components alone.
    **{f"bits{part}": _Element("b", part) for part in (1, 2, 4)},
    "bits8": _Element("b", 4, 2),
    "bits16": _Element("b", 8, 2),
}
"""The types of sources, by name. The number in the name of bits is that of bytes."""

TARGETS: Final = ("float32", "float64", "complex64", "complex128", "bits1", "bits2", "bits4", "bits8", "bits16")
"""The types of targets; a type of bits is for a source of the same type."""

HALVES: Final = ("float16", "bfloat16", "complex_float16", "complex_bfloat16")
"""Further types of both, the complex ones pairs of the others. None is converted; a real one may become a pair."""

_ELEMENTS: Final = {**SOURCES, "complex_float16": _Element("f", 2, 2), "complex_bfloat16": _Element("bf", 2, 2)}


class Arrange(NamedTuple):
    """One copy, described by value. `of` checks and simplifies it; strides are in bytes.

    The element at an index of the target is that of the source at the same index, shifted along each axis by `shifts`
    and taken modulo the extent. It is zero if the index is outside of the source.
    """

    source: str
    target: str
    extents: tuple[int, ...]
    """Those of the target."""
    source_extents: tuple[int, ...]
    source_strides: tuple[int, ...]
    target_strides: tuple[int, ...]
    shifts: tuple[int, ...] = ()
    """One for each axis, or none at all."""
    scale: float = 1.0
    """The real factor, rounded to the type of the target's components."""
    conjugate: bool = False
    """Has no effect on a real target."""

    @classmethod
    def of(cls, fields: object) -> Arrange:
        """Check the fields of a description, in a dictionary or in their order, and simplify it.

        Raises `ValueError`, whose text says what is wrong.
        """
        if isinstance(fields, dict):
            unknown = [name for name in fields if name not in cls._fields]
            missing = [name for name in cls._fields if name not in fields and name not in cls._field_defaults]
            _require(not unknown, f"a copy has no field {', '.join(map(repr, unknown))}")
            _require(not missing, f"a copy needs the field {', '.join(missing)}")
            given = cls(**fields)
        else:
            _require(
                isinstance(fields, list | tuple) and len(fields) == len(cls._fields),
                f"a copy is a dictionary, or a list of {len(cls._fields)} fields",
            )
            given = cls(*fields)  # type: ignore[misc]
        return _checked(given)

    @property
    def elements(self) -> int:
        """The number of elements of the target."""
        return math.prod(self.extents)


class _Axis(NamedTuple):
    """One axis of a copy."""

    extent: int
    inside: int
    """The number of indices, from zero on, that are inside of the source."""
    source_stride: int
    target_stride: int
    shift: int


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise ValueError(text)


def _checked(given: Arrange) -> Arrange:
    source, target = _types(given.source, given.target)
    scale = _scale(given, target)
    _require(type(given.conjugate) is bool, f"conjugate is {given.conjugate!r}; give True or False")
    _require(target.kind != "b" or not given.conjugate, f"{given.target} is moved bit by bit, and not conjugated")
    axes = _axes(given)
    if any(axis.extent == 0 for axis in axes):
        axes = [_Axis(0, 0, 0, 0, 0)]
    else:
        _require(math.prod(axis.extent for axis in axes) < 1 << 63, "the extents make 2**63 elements or more")
        axes = _merged(_without_needless(axes))
        _check_places(axes, source, target)
    return Arrange(
        given.source,
        given.target,
        extents=tuple(axis.extent for axis in axes),
        source_extents=tuple(axis.inside for axis in axes),
        source_strides=tuple(axis.source_stride for axis in axes),
        target_strides=tuple(axis.target_stride for axis in axes),
        shifts=tuple(axis.shift for axis in axes),
        scale=scale,
        conjugate=given.conjugate and target.parts == 2,
    )


def _types(source_name: object, target_name: object) -> tuple[_Element, _Element]:
    source = _ELEMENTS.get(source_name) if isinstance(source_name, str) else None
    _require(source is not None, f"{source_name!r} is not a type of a source; use one of {', '.join(SOURCES)}")
    _require(
        isinstance(target_name, str) and target_name in (*TARGETS, *HALVES),
        f"{target_name!r} is not a type of a target; use one of {', '.join(TARGETS)}",
    )
    assert source is not None
    target = _ELEMENTS[str(target_name)]
    if source_name in HALVES[2:] or target_name in HALVES:
        same = (source.kind, source.part) == (target.kind, target.part) and source.parts <= target.parts
        _require(same, f"{source_name} cannot become {target_name}: halves stay what they are")
    if "b" in (source.kind, target.kind):
        _require(source_name == target_name, f"{source_name} cannot become {target_name}: bits are moved as they are")
    elif source.parts > target.parts:
        raise ValueError(f"{source_name} cannot become {target_name}; a complex source needs a complex target")
    return source, target


def _scale(given: Arrange, target: _Element) -> float:
    """Return the factor, rounded to the type of the target's components."""
    scale = given.scale
    _require(type(scale) in (int, float), f"the scale is {scale!r}; give a real number")
    try:
        wide = float(scale)
    except OverflowError:
        wide = math.inf
    _require(math.isfinite(wide), f"the scale is {scale!r}; give a finite number")
    if target.kind == "b":
        _require(wide == 1, f"{given.target} is moved bit by bit, and not scaled")
        return wide
    if target.part == 8:
        return wide
    try:
        (rounded,) = struct.unpack("<f", struct.pack("<f", wide))
    except OverflowError:
        rounded = math.inf
    _require(
        math.isfinite(rounded) and (rounded != 0) == (wide != 0),
        f"the scale {scale!r} is beyond the range of float32, in which {given.target} is scaled",
    )
    return float(rounded)


def _axes(given: Arrange) -> list[_Axis]:
    """Return the axes as they were given, with numbers that are checked one by one."""
    extents = _numbers("extents", given.extents, lowest=0)
    _require(len(extents) <= MOST_AXES, f"there are {len(extents)} axes; at most {MOST_AXES} are possible")
    source_extents = _numbers("source_extents", given.source_extents, lowest=0, count=len(extents))
    source_strides = _numbers("source_strides", given.source_strides, count=len(extents))
    target_strides = _numbers("target_strides", given.target_strides, count=len(extents))
    shifts = _numbers("shifts", given.shifts) or [0] * len(extents)
    _require(len(shifts) == len(extents), f"shifts has {len(shifts)} numbers for {len(extents)} axes")
    axes = []
    for number, (extent, source_extent, source_stride, target_stride, shift) in enumerate(
        zip(extents, source_extents, source_strides, target_strides, shifts, strict=True)
    ):
        _require(
            shift == 0 or extent == source_extent,
            f"axis {number} is shifted, so its extents have to be equal; they are {source_extent} and {extent}",
        )
        inside = min(extent, source_extent)
        axes.append(_Axis(extent, inside, source_stride, target_stride, shift % extent if extent else 0))
    return axes


def _numbers(name: str, given: object, *, lowest: int = -(1 << 63), count: int | None = None) -> Sequence[int]:
    _require(isinstance(given, list | tuple), f"{name} is {type(given).__name__}; give a list of integers")
    assert isinstance(given, list | tuple)
    for number in given:
        _require(
            type(number) is int and lowest <= number < 1 << 63,
            f"{name} has {number!r}; give integers from {lowest} to 2**63 - 1",
        )
    _require(count in (None, len(given)), f"{name} has {len(given)} numbers for {count} axes")
    return given


def _without_needless(axes: list[_Axis]) -> list[_Axis]:
    """Return the axes without those of one index, and without strides that are never used."""
    if any(axis.inside == 0 for axis in axes):
        # Nothing is read, and one axis is enough to say so.
        rest = [axis._replace(inside=axis.extent, source_stride=0, shift=0) for axis in axes if axis.extent > 1]
        rest.sort(key=lambda axis: -abs(axis.target_stride))
        return [rest[0]._replace(inside=0), *rest[1:]] if rest else [_Axis(1, 0, 0, 0, 0)]
    kept = [axis if axis.inside > 1 else axis._replace(source_stride=0) for axis in axes if axis.extent > 1]
    return sorted(kept, key=lambda axis: -abs(axis.target_stride))


def _merged(axes: list[_Axis]) -> list[_Axis]:
    """Return fewer axes for the same copy.

    The second of two axes can be a part of the first if its whole extent is inside of the source, without a shift, and
    the strides fit in both arrays. Then the first may be padded or shifted: its borders are between two rows.
    """
    merged: list[_Axis] = []
    for axis in axes:
        extent, inside, source_stride, target_stride, shift = axis
        outer = merged[-1] if merged else None
        if (
            outer is not None
            and (inside, shift) == (extent, 0)
            and outer.source_stride == source_stride * extent
            and outer.target_stride == target_stride * extent
        ):
            merged[-1] = _Axis(
                outer.extent * extent, outer.inside * extent, source_stride, target_stride, outer.shift * extent
            )
        else:
            merged.append(axis)
    return merged


def _check_places(axes: list[_Axis], source: _Element, target: _Element) -> None:
    """Refuse strides with which an address wraps, an element of the target is misaligned, or two of them overlap."""
    reach = sum(abs(axis.source_stride) * max(axis.inside - 1, 0) for axis in axes) + source.size
    _require(reach < 1 << 63, "the source's strides reach over 2**63 bytes or more")
    reach = target.size
    for axis in reversed(axes):
        stride = abs(axis.target_stride)
        _require(
            stride % target.part == 0,
            f"the target has the stride {axis.target_stride}; it has to be a multiple of {target.part} bytes",
        )
        _require(
            axis.extent == 1 or stride >= reach,
            f"elements of the target overlap: its stride {axis.target_stride} is below {reach} bytes",
        )
        reach += stride * (axis.extent - 1)
    _require(reach < 1 << 63, "the target's strides reach over 2**63 bytes or more")


# The kernels


class _Key(NamedTuple):
    """What the text of a kernel depends on."""

    source: str
    target: str
    axes: int
    wide: bool
    """Whether it counts in 64 bits, and not in 32."""
    padded: bool
    shifted: bool
    scaled: bool
    conjugate: bool


# The parameters of a kernel are the two addresses, and the plan: words of 64 bits. These are the count of elements and
# the scale, and for each axis, from the outermost on:
_WORDS = ("extent", "magic", "down", "target_stride", "source_stride", "inside", "shift")
_HEAD_WORDS = 2


def _division(divisor: int, bits: int) -> tuple[int, int]:
    """Return m and s, so that n // divisor is n * m >> s for every n below 2**bits; the divisor is 2 to 2**bits.

    With L bits for the divisor less one, s is bits + L, and m is 2**s / divisor, rounded up. So m * divisor is 2**s + e
    with e < divisor <= 2**L, and n * m / 2**s is n / divisor + n * e / (divisor * 2**s). The last term is smaller than
    2**bits * 2**L / (divisor * 2**s), which is 1 / divisor, so it never reaches the next integer. As the divisor is
    larger than 2**(L - 1), m is smaller than 2**(bits + 1). So with 31 bits m is a word of 32 bits and n * m one of 64.
    """
    length = (divisor - 1).bit_length()
    return -(-(1 << (bits + length)) // divisor), bits + length


def _plan_words(copy: Arrange, key: _Key) -> list[int]:
    """Return the words of the plan, as integers of any sign."""
    width = 8 if _ELEMENTS[copy.target].part == 8 else 4
    words = [copy.elements, int.from_bytes(struct.pack("<d" if width == 8 else "<f", copy.scale), "little")]
    for extent, inside, source_stride, target_stride, shift in zip(*copy[2:7], strict=True):
        magic, down = _division(extent, 63 if key.wide else 31) if extent > 1 else (0, 64)
        # A kernel that counts in 64 bits takes the upper half of the product, so 64 places are done already.
        words += [extent, magic, down - 64 if key.wide else down, target_stride, source_stride, inside, shift]
    return words


def _place(key: _Key, axis: int) -> list[str]:
    """Return the instructions that add what the index of an axis, in `%n`, adds to the two addresses."""
    kind = "u64" if key.wide else "u32"
    widen, index = ([], "%n") if key.wide else (["cvt.u64.u32 %w, %n;"], "%w")
    lines = [*widen, f"mad.lo.u64 %to, {index}, %target_stride{axis}, %to;"]
    if key.padded:
        innermost = axis == key.axes - 1
        lines.append(f"setp.lt.{kind} {'%in' if innermost else '%p'}, %n, %inside{axis};")
        lines += [] if innermost else ["and.pred %in, %in, %p;"]
    if key.shifted:
        # Below zero the difference wraps, and is the larger of the two.
        lines += [
            f"add.{kind} %n, %n, %shift{axis};",
            f"sub.{kind} %q, %n, %extent{axis};",
            f"min.{kind} %n, %n, %q;",
            *widen,
        ]
    return [*lines, f"mad.lo.u64 %from, {index}, %source_stride{axis}, %from;"]


def _places(key: _Key) -> list[str]:
    """Return the instructions that take the number of an element apart, the innermost axis first."""
    kind = "u64" if key.wide else "u32"
    lines = [f"mov.{kind} %rest, %i;", "mov.u64 %from, %source;", "mov.u64 %to, %target;"]
    for axis in range(key.axes - 1, 0, -1):
        if key.wide:
            lines += [f"mul.hi.u64 %q, %rest, %magic{axis};", f"shr.u64 %q, %q, %down{axis};"]
        else:
            lines += [
                f"mul.wide.u32 %w, %rest, %magic{axis};",
                f"shr.u64 %w, %w, %down{axis};",
                "cvt.u32.u64 %q, %w;",
            ]
        lines += [
            f"mul.lo.{kind} %n, %q, %extent{axis};",
            f"sub.{kind} %n, %rest, %n;",
            f"mov.{kind} %rest, %q;",
            *_place(key, axis),
        ]
    return [*lines, f"mov.{kind} %n, %rest;", *_place(key, 0)] if key.axes else lines


def _load(source: _Element, access: str) -> list[str]:
    """Return the instructions that read the components of an element into `%a0` and `%a1`, whose upper bits are 0."""
    bits = 8 * source.part
    if access == "whole" and source.parts == 2:
        return [f"ld.global.v2.u{bits} {{%a0, %a1}}, [%from];"]
    lines = []
    for number in range(source.parts):
        at = number * source.part
        if access != "bytes":
            lines.append(f"ld.global.u{bits} %a{number}, [%from+{at}];")
            continue
        width = max(bits, 32)
        lines.append(f"ld.global.u8 %a{number}, [%from+{at}];")
        for byte in range(1, source.part):
            lines += [
                f"ld.global.u8 %byte, [%from+{at + byte}];",
                f"shl.b{width} %byte, %byte, {8 * byte};",
                f"or.b{width} %a{number}, %a{number}, %byte;",
            ]
    return lines


def _convert(source: _Element, target: _Element, number: int) -> list[str]:
    """Return the instructions that convert the component `%a` to one of the target in `%v`."""
    a, v = f"%a{number}", f"%v{number}"
    to = f"f{8 * target.part}"
    if source.kind == target.kind and source.part == target.part:
        return [f"mov.b{max(8 * source.part, 32)} {v}, {a};"]
    if source.kind == "bool":
        one = {4: "0x3F800000", 8: "0x3FF0000000000000"}[target.part]
        return [f"setp.ne.u32 %p, {a}, 0;", f"selp.b{8 * target.part} {v}, {one}, 0, %p;"]
    if source.kind in "su":
        narrow = source.part < 4 and source.kind == "s"
        extend = [f"cvt.s32.s{8 * source.part} {a}, {a};"] if narrow else []
        return [*extend, f"cvt.rn.{to}.{source.kind}{max(8 * source.part, 32)} {v}, {a};"]
    if source.kind == "bf":  # the upper half of a float32
        return [f"shl.b32 {a}, {a}, 16;", f"mov.b32 {v}, {a};" if to == "f32" else f"cvt.f64.f32 {v}, {a};"]
    if source.part == 2:
        return [f"cvt.u16.u32 %half, {a};", f"cvt.{to}.f16 {v}, %half;"]
    return [f"cvt.f64.f32 {v}, {a};" if to == "f64" else f"cvt.rn.f32.f64 {v}, {a};"]


def _finish(key: _Key, target: _Element, access: str) -> list[str]:
    """Return the instructions that scale the components, conjugate, and write."""
    bits = 8 * target.part
    values = [f"%v{number}" for number in range(target.parts)]
    lines = [line for value in values for line in _multiply(target, value)] if key.scaled else []
    lines += [f"xor.b{max(bits, 32)} %v1, %v1, {1 << (bits - 1):#x};"] if key.conjugate else []
    if access == "whole" and target.parts == 2:
        return [*lines, f"st.global.v2.u{bits} [%to], {{%v0, %v1}};"]
    return [*lines, *(f"st.global.u{bits} [%to+{at * target.part}], {value};" for at, value in enumerate(values))]


def _multiply(target: _Element, value: str) -> list[str]:
    """Return the instructions that multiply a component by the scale. Halves are float32 meanwhile."""
    if target.part > 2:
        return [f"mul.rn.f{8 * target.part} {value}, {value}, %scale;"]
    if target.kind == "f":
        return [
            *(f"cvt.u16.u32 %half, {value};", f"cvt.f32.f16 {value}, %half;", f"mul.rn.f32 {value}, {value}, %scale;"),
            *(f"cvt.rn.f16.f32 %half, {value};", f"cvt.u32.u16 {value}, %half;"),
        ]
    # To the nearest: 0x7FFF is added, and 1 more if the last bit that stays is odd. A NaN stays one.
    return [
        *(f"shl.b32 {value}, {value}, 16;", f"mul.rn.f32 {value}, {value}, %scale;"),
        *(f"shr.u32 %round, {value}, 16;", "and.b32 %round, %round, 1;", "add.u32 %round, %round, 0x7FFF;"),
        *(f"add.u32 %round, %round, {value};", f"setp.nan.f32 %p, {value}, {value};"),
        *(f"or.b32 {value}, {value}, 0x400000;", f"selp.b32 {value}, {value}, %round, %p;"),
        f"shr.u32 {value}, {value}, 16;",
    ]


_ACCESSES = ("whole", "parts", "bytes")
"""The ways to read and write, the fastest first: elements as a whole, by components, or a source byte by byte."""


def _accesses(source: _Element, target: _Element) -> list[str]:
    """Return the ways that differ for these types."""
    by_parts = source.parts + target.parts > 2
    return [way for way in _ACCESSES if way == "whole" or (by_parts if way == "parts" else source.part > 1)]


def _registers(key: _Key, source: _Element, target: _Element) -> list[str]:
    """Return the declarations of all registers, and the instructions that read the parameters."""
    index = "64" if key.wide else "32"
    families = {
        "pred": ["p", "in", "done"],
        "b16": ["half"],
        "b32": ["block", "threads", "thread"],
        "b64": ["source", "target", "from", "to", "w"],
    }
    widths = [(index, ("count", "i", "step", "rest", "n", "q")), (max(8 * source.part, 32), ("a0", "a1", "byte"))]
    widths += [(max(8 * target.part, 32), ("v0", "v1", "scale")), (32, ("round",))]
    for width, names in widths:
        families[f"b{width}"] += names
    loads = ["ld.param.u64 %source, [addresses];", "ld.param.u64 %target, [addresses+8];"]
    loads.append(f"ld.param.u{index} %count, [plan];")
    loads += [f"ld.param.f{max(8 * target.part, 32)} %scale, [plan+8];"] if key.scaled else []
    for axis in range(key.axes):
        for place, name in enumerate(_WORDS):
            width = "64" if name.endswith("stride") else "32" if name == "down" else index
            families[f"b{width}"].append(f"{name}{axis}")
            at = 8 * (_HEAD_WORDS + axis * len(_WORDS) + place)
            loads.append(f"ld.param.u{width} %{name}{axis}, [plan+{at}];")
    declared = [f".reg .{kind} {', '.join(f'%{name}' for name in names)};" for kind, names in families.items()]
    return declared + loads


def _entry(key: _Key, access: str) -> str:
    """Return the text of one kernel."""
    source, target = _ELEMENTS[key.source], _ELEMENTS[key.target]
    index = "u64" if key.wide else "u32"
    first = (
        ["mul.wide.u32 %i, %block, %threads;", "cvt.u64.u32 %n, %thread;", "add.u64 %i, %i, %n;"]
        if key.wide
        else ["mad.lo.u32 %i, %block, %threads, %thread;"]
    )
    zeros = [f"mov.b{max(8 * source.part, 32)} %a{number}, 0;" for number in range(source.parts)]
    imaginary = [f"mov.b{max(8 * target.part, 32)} %v1, 0;"] if source.parts < target.parts else []
    lines = [
        *_registers(key, source, target),
        "mov.u32 %block, %ctaid.x;",
        "mov.u32 %threads, %ntid.x;",
        "mov.u32 %thread, %tid.x;",
        *first,
        "mov.u32 %block, %nctaid.x;",
        "mul.wide.u32 %step, %block, %threads;" if key.wide else "mul.lo.u32 %step, %block, %threads;",
        "NEXT:",
        f"setp.ge.{index} %done, %i, %count;",
        "@%done bra END;",
        *_places(key),
        *([*zeros, "@!%in bra GIVE;"] if key.padded else []),
        *_load(source, access),
        *(["GIVE:"] if key.padded else []),
        *(line for number in range(source.parts) for line in _convert(source, target, number)),
        *imaginary,
        *_finish(key, target, access),
        f"add.{index} %i, %i, %step;",
        "bra NEXT;",
        "END:",
        "ret;",
    ]
    size = 8 * (_HEAD_WORDS + key.axes * len(_WORDS))
    body = "\n".join(line if line.endswith(":") else f"    {line}" for line in lines)
    parameters = f".param .align 8 .b8 addresses[16], .param .align 8 .b8 plan[{size}]"
    return f".visible .entry atomr_arrange_{access}({parameters})\n{{\n{body}\n}}\n"


def _text(key: _Key) -> str:
    """Return the PTX of a module: one kernel for each way to read and write."""
    ways = _accesses(_ELEMENTS[key.source], _ELEMENTS[key.target])
    head = ".version 6.3\n.target sm_75\n.address_size 64\n"
    return head + "".join(_entry(key, access) for access in ways)


# Preparing and launching

_Call = c_uint64 * 4
"""The addresses of the two parameters of a kernel, and behind them the first of these: source and target."""


class Prepared:
    """A copy that is ready to be launched, by any thread, until its kernels are closed."""

    __slots__ = ("_blocks", "_calls", "_launch", "_plan", "_plan_address", "_target_mask")

    def __init__(self, launch: Callable[..., int], functions: dict[str, Any], copy: Arrange, words: list[int]) -> None:
        source, target = _ELEMENTS[copy.source], _ELEMENTS[copy.target]
        self._launch = launch
        self._blocks = min(-(-copy.elements // _THREADS), _MOST_BLOCKS)
        self._plan = (c_uint64 * len(words))(*words)
        self._plan_address = addressof(self._plan)
        self._target_mask = target.part - 1
        # A way to read and write can be taken if no address has one of its bits, and none of the strides.
        masks = {
            "whole": (source.size - 1, target.size - 1),
            "parts": (source.part - 1, 0),
            "bytes": (0, 0),
        }
        reads, writes = (_low_bits(strides) for strides in (copy.source_strides, copy.target_strides))
        self._calls = [
            (function, *masks[access])
            for access, function in functions.items()
            if not (reads & masks[access][0] or writes & masks[access][1])
        ]

    def launch(self, source: int, target: int, stream: Any) -> int:
        """Launch the copy between two addresses, and return the driver's status.

        The target has to be aligned for its components: `ValueError` is raised otherwise, and nothing is launched.
        Nothing is launched for a target without elements, either.
        """
        if not self._blocks:
            return 0
        if target & self._target_mask:
            raise ValueError(f"the target's address {target:#x} is not a multiple of {self._target_mask + 1}")
        function, reads, writes = self._calls[0]
        if source & reads or target & writes:
            function = next(each for each, reads, writes in self._calls if not (source & reads or target & writes))
        call = _Call(0, self._plan_address, source, target)
        address = addressof(call)
        call[0] = address + 16
        return self._launch(function, self._blocks, 1, 1, _THREADS, 1, 1, 0, stream, address, None)


def _low_bits(strides: Sequence[int]) -> int:
    """Return the bits that are set in some stride."""
    bits = 0
    for stride in strides:
        bits |= abs(stride)
    return bits


class ArrangeKernels:
    """The kernels in this context: each is loaded when a copy first needs it, and unloaded at the end."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._lock = threading.Lock()  # lanes call from threads of their own
        self._modules: list[Any] = []
        self._functions: dict[_Key, dict[str, Any]] = {}

    def prepare(self, description: object) -> Prepared:
        """Make a copy ready. The description is an `Arrange`, or what `Arrange.of` takes.

        The driver compiles kernels of a new kind, which takes milliseconds. Raises `ValueError` for a description that
        is wrong, and the driver's error if it refuses the kernels.
        """
        copy = Arrange.of(description)
        key = _Key(
            copy.source,
            copy.target,
            len(copy.extents),
            wide=copy.elements > _NARROW_MOST,
            padded=copy.extents != copy.source_extents,
            shifted=any(copy.shifts),
            scaled=copy.scale != 1,
            conjugate=copy.conjugate,
        )
        functions = self._loaded(key) if copy.elements else {}
        return Prepared(self._driver.cuLaunchKernel.bind(), functions, copy, _plan_words(copy, key))

    def close(self) -> None:
        """Unload all kernels. What was prepared must not be launched any more."""
        with self._lock:
            modules, self._modules, self._functions = self._modules, [], {}
        for module in modules:
            self._driver.cuModuleUnload(module)

    def _loaded(self, key: _Key) -> dict[str, Any]:
        with self._lock:
            functions = self._functions.get(key)
            if functions is None:
                functions = self._functions[key] = self._load(key)
            return functions

    def _load(self, key: _Key) -> dict[str, Any]:
        driver, module = self._driver, self._driver.CUmodule()
        driver.cuModuleLoadData(byref(module), cast(c_char_p(_text(key).encode()), c_void_p))
        functions = {}
        try:
            for access in _accesses(_ELEMENTS[key.source], _ELEMENTS[key.target]):
                functions[access] = driver.CUfunction()
                driver.cuModuleGetFunction(byref(functions[access]), module, f"atomr_arrange_{access}".encode())
        except BaseException:
            driver.cuModuleUnload.status(module)
            raise
        self._modules.append(module)
        return functions
