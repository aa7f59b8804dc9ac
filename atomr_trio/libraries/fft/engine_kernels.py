"""Kernels beside cuFFT: ``hermitian`` and ``real_ends``, for every precision, and ``multiply``, for single and double.

``hermitian`` makes half a spectrum one of real numbers, in place. A transform from complex to real reads half a
spectrum: the other half is implied by z(-k) = conj(z(k)). Along the halved axis, the elements at 0, and at the half of
an even length, have their partners -k in the same plane. If those do not agree, cuFFT's result is not defined, and not
that of numpy, which transforms the other axes first, and then ignores the imaginary parts at both places. The result
of that depends on the planes by the means (z(k) + conj(z(-k))) / 2 alone. So the kernel writes these, and then both
agree. In a transform of one axis each element is its own partner, and loses its imaginary part: ``real_ends`` does just
that, without divisions. (An H100 ignores these parts for all lengths that were tried, but for 8192 and 16384 in single
precision, of which every number is wrong then.)

``multiply`` multiplies an array with another, element by element.
"""

from __future__ import annotations

from typing import Final

from ..._worker.base.kernels import Kernel

_HEAD = ".version 6.3\n.target sm_75\n.address_size 64\n"

_LOOP = """    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mul.wide.u32 %i, %block, %threads;
    cvt.u64.u32 %n, %thread;
    add.u64 %i, %i, %n;
    mov.u32 %block, %nctaid.x;
    mul.wide.u32 %step, %block, %threads;
NEXT:
    setp.ge.u64 %done, %i, %count;
    @%done bra END;
"""
"""The beginning of a loop over `%i` from 0 up to `%count`."""

_HERMITIAN_WORDS = ("at", "columns", "column", "n0", "s0", "n1", "s1", "batch", "distance")
"""The address, the number of planes and their distance, the lengths and strides of the other axes, and those of the
batch. Distances and strides are in bytes."""


def _read(kind: str, into: str, place: str) -> str:
    """Return the instructions that read a complex number into two registers."""
    first, second = f"%{into}0", f"%{into}1"
    if kind.startswith("f") and kind != "f16":
        return f"    ld.global.v2.{kind} {{{first}, {second}}}, [{place}];\n"
    widen = {
        "f16": f"    cvt.f32.f16 {first}, %h0;\n    cvt.f32.f16 {second}, %h1;\n",
        "bf16": "".join(
            f"    cvt.u32.u16 %bits, %h{number};\n    shl.b32 %bits, %bits, 16;\n    mov.b32 {each}, %bits;\n"
            for number, each in enumerate((first, second))
        ),
    }[kind]
    return f"    ld.global.v2.u16 {{%h0, %h1}}, [{place}];\n{widen}"


def _write(kind: str, place: str) -> str:
    """Return the instructions that write the complex number in `%x` and `%y`, rounded to nearest."""
    if kind.startswith("f") and kind != "f16":
        return f"    st.global.v2.{kind} [{place}], {{%x, %y}};\n"
    narrow = {
        "f16": "    cvt.rn.f16.f32 %h0, %x;\n    cvt.rn.f16.f32 %h1, %y;\n",
        "bf16": "".join(map(_narrowed, ("x", "y"), ("h0", "h1"))),
    }[kind]
    return f"{narrow}    st.global.v2.u16 [{place}], {{%h0, %h1}};\n"


def _narrowed(number: str, half: str) -> str:
    """Return the instructions that round a float32 to a bfloat16, the even one of two; see ``base/arrange.py``."""
    return f"""    mov.b32 %bits, %{number};
    shr.u32 %round, %bits, 16;
    and.b32 %round, %round, 1;
    add.u32 %round, %round, 0x7FFF;
    add.u32 %round, %round, %bits;
    setp.nan.f32 %p, %{number}, %{number};
    or.b32 %bits, %bits, 0x400000;
    selp.b32 %bits, %bits, %round, %p;
    shr.u32 %bits, %bits, 16;
    cvt.u16.u32 %{half}, %bits;
"""


def _hermitian(name: str, kind: str) -> str:
    bits = 64 if kind == "f64" else 32
    half = "0d3FE0000000000000" if bits == 64 else "0f3F000000"
    loads = "".join(f"    ld.param.u64 %{each}, [{each}_];\n" for each in _HERMITIAN_WORDS)
    partner = "".join(
        f"""    rem.u64 %k{axis}, %rest, %n{axis};
    div.u64 %rest, %rest, %n{axis};
    sub.u64 %m{axis}, %n{axis}, %k{axis};
    setp.eq.u64 %p, %k{axis}, 0;
    selp.u64 %m{axis}, 0, %m{axis}, %p;
    mad.lo.u64 %first, %k{axis}, %s{axis}, %first;
    mad.lo.u64 %second, %m{axis}, %s{axis}, %second;
"""
        for axis in (1, 0)
    )
    part = int(kind.strip("bf")) // 8
    return f"""{_HEAD}.visible .entry {name}({", ".join(f".param .u64 {each}_" for each in _HERMITIAN_WORDS)})
{{
    .reg .pred %p, %self, %done;
    .reg .b16 %h0, %h1;
    .reg .b32 %block, %threads, %thread, %bits, %round;
    .reg .b64 %i, %n, %step, %count, %rest, %first, %second, %k0, %k1, %m0, %m1, %b, %from, %to;
    .reg .b64 {", ".join(f"%{each}" for each in _HERMITIAN_WORDS)};
    .reg .f{bits} %a0, %a1, %b0, %b1, %x, %y;
{loads}    mul.lo.u64 %count, %n0, %n1;
    mul.lo.u64 %count, %count, %batch;
    mul.lo.u64 %count, %count, %columns;
{_LOOP}    mov.u64 %rest, %i;
    mov.u64 %first, %at;
    mov.u64 %second, %at;
{partner}    rem.u64 %b, %rest, %batch;
    div.u64 %rest, %rest, %batch;
    mul.lo.u64 %b, %b, %distance;
    mad.lo.u64 %b, %rest, %column, %b;
    mad.lo.u64 %from, %k0, %n1, %k1;
    mad.lo.u64 %to, %m0, %n1, %m1;
    setp.gt.u64 %p, %from, %to;
    @%p bra AGAIN;
    setp.eq.u64 %self, %from, %to;
    add.u64 %first, %first, %b;
    add.u64 %second, %second, %b;
{_read(kind, "a", "%first")}{_read(kind, "b", "%second")}    mul.rn.f{bits} %x, %a0, {half};
    fma.rn.f{bits} %x, %b0, {half}, %x;
    mul.rn.f{bits} %y, %b1, {half};
    neg.f{bits} %y, %y;
    fma.rn.f{bits} %y, %a1, {half}, %y;
    @%self bra ALONE;
{_write(kind, "%first")}    neg.f{bits} %y, %y;
{_write(kind, "%second")}    bra AGAIN;
ALONE:
    mov.b64 %n, 0;
    st.global.u{8 * part} [%first+{part}], %n;
AGAIN:
    add.u64 %i, %i, %step;
    bra NEXT;
END:
    ret;
}}
"""


_ENDS_WORDS = ("at", "columns", "column", "count", "distance")
"""The address, the number of elements and their distance, and the number and distance of the transforms. Distances are
in bytes."""


def _real_ends(name: str, kind: str) -> str:
    part = int(kind.strip("bf")) // 8
    loads = "".join(f"    ld.param.u64 %{each}, [{each}_];\n" for each in _ENDS_WORDS)
    return f"""{_HEAD}.visible .entry {name}({", ".join(f".param .u64 {each}_" for each in _ENDS_WORDS)})
{{
    .reg .pred %single, %done;
    .reg .b32 %block, %threads, %thread;
    .reg .b64 %i, %n, %step, %to, %zero;
    .reg .b64 {", ".join(f"%{each}" for each in _ENDS_WORDS)};
{loads}    mov.b64 %zero, 0;
    setp.lt.u64 %single, %columns, 2;
{_LOOP}    mad.lo.u64 %to, %i, %distance, %at;
    st.global.u{8 * part} [%to+{part}], %zero;
    add.u64 %to, %to, %column;
    @!%single st.global.u{8 * part} [%to+{part}], %zero;
    add.u64 %i, %i, %step;
    bra NEXT;
END:
    ret;
}}
"""


def _multiply(name: str, bits: int) -> str:
    size = bits // 4
    return f"""{_HEAD}.visible .entry {name}(.param .u64 target_, .param .u64 source_, .param .u64 count_)
{{
    .reg .pred %done;
    .reg .b32 %block, %threads, %thread;
    .reg .b64 %i, %n, %step, %count, %source, %target, %from, %to;
    .reg .f{bits} %a0, %a1, %b0, %b1, %x, %y;
    ld.param.u64 %target, [target_];
    ld.param.u64 %source, [source_];
    ld.param.u64 %count, [count_];
{_LOOP}    mad.lo.u64 %from, %i, {size}, %source;
    mad.lo.u64 %to, %i, {size}, %target;
    ld.global.v2.f{bits} {{%a0, %a1}}, [%to];
    ld.global.v2.f{bits} {{%b0, %b1}}, [%from];
    mul.rn.f{bits} %x, %a1, %b1;
    neg.f{bits} %x, %x;
    fma.rn.f{bits} %x, %a0, %b0, %x;
    mul.rn.f{bits} %y, %a1, %b0;
    fma.rn.f{bits} %y, %a0, %b1, %y;
    st.global.v2.f{bits} [%to], {{%x, %y}};
    add.u64 %i, %i, %step;
    bra NEXT;
END:
    ret;
}}
"""


_KINDS: Final = {"complex64": "f32", "complex128": "f64", "complex_float16": "f16", "complex_bfloat16": "bf16"}
"""The types of the components."""

KERNELS: Final = {
    **{
        f"hermitian_{name}": Kernel(_hermitian(f"hermitian_{name}", kind), len(_HERMITIAN_WORDS))
        for name, kind in _KINDS.items()
    },
    **{
        f"real_ends_{name}": Kernel(_real_ends(f"real_ends_{name}", kind), len(_ENDS_WORDS))
        for name, kind in _KINDS.items()
    },
    "multiply_complex64": Kernel(_multiply("multiply_complex64", 32), 3),
    "multiply_complex128": Kernel(_multiply("multiply_complex128", 64), 3),
}
"""The kernels by their names."""
