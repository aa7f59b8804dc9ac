"""Kernels beside cuRAND, which turn its numbers into those that were asked for.

``scale_float32`` and ``scale_float64`` turn uniform numbers into those of another interval: low + x (high - low),
rounded once, and not above high. ``widen`` turns words of 32 bits into such of 64, with the same value. ``halve_...``
rounds float32 to a type of 16 bits, to nearest, the even one of two. Each reads and writes contiguous arrays.
"""

from __future__ import annotations

from typing import Final

from ..._worker.base.kernels import Kernel

_NARROW: Final = """    mov.b32 %bits, %x;
    shr.u32 %round, %bits, 16;
    and.b32 %round, %round, 1;
    add.u32 %round, %round, 0x7FFF;
    add.u32 %round, %round, %bits;
    setp.nan.f32 %p, %x, %x;
    or.b32 %bits, %bits, 0x400000;
    selp.b32 %bits, %bits, %round, %p;
    shr.u32 %bits, %bits, 16;
    cvt.u16.u32 %h, %bits;
"""
"""A float32 as a bfloat16, which PTX of this version does not have."""


def _kernel(name: str, sizes: tuple[int, int], body: str, more: tuple[str, ...] = (), bits: int = 32) -> Kernel:
    """Return a kernel that does `body` with the element at `%from`, and puts another to `%to`.

    `sizes` are those of the elements in bytes. Behind the addresses and the number of elements come the words `more`.
    """
    words = ("source", "target", "count", *more)
    loads = "".join(f"    ld.param.u64 %{each}, [{each}_];\n" for each in words)
    numbers = "".join(
        f"    mov.b64 %f{each}, %{each};\n"
        if bits == 64
        else f"    cvt.u32.u64 %bits, %{each};\n    mov.b32 %f{each}, %bits;\n"
        for each in more
    )
    floats = ", ".join(["%x", *(f"%f{each}" for each in more)])
    text = f""".version 6.3
.target sm_75
.address_size 64
.visible .entry {name}({", ".join(f".param .u64 {each}_" for each in words)})
{{
    .reg .pred %p, %done;
    .reg .b16 %h;
    .reg .b32 %block, %threads, %thread, %bits, %round;
    .reg .b64 %i, %n, %step, %from, %to, %wide;
    .reg .b64 {", ".join(f"%{each}" for each in words)};
    .reg .f{bits} {floats};
{loads}{numbers}    mov.u32 %block, %ctaid.x;
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
    mad.lo.u64 %from, %i, {sizes[0]}, %source;
    mad.lo.u64 %to, %i, {sizes[1]}, %target;
{body}    add.u64 %i, %i, %step;
    bra NEXT;
END:
    ret;
}}
"""
    return Kernel(text, len(words))


def _scale(bits: int) -> Kernel:
    body = f"""    ld.global.f{bits} %x, [%from];
    fma.rn.f{bits} %x, %x, %fspan, %flow;
    min.f{bits} %x, %x, %fhigh;
    st.global.f{bits} [%to], %x;
"""
    return _kernel(f"scale_float{bits}", (bits // 8, bits // 8), body, ("low", "span", "high"), bits)


KERNELS: Final = {
    "scale_float32": _scale(32),
    "scale_float64": _scale(64),
    "widen": _kernel(
        "widen",
        (4, 8),
        "    ld.global.u32 %bits, [%from];\n    cvt.u64.u32 %wide, %bits;\n    st.global.u64 [%to], %wide;\n",
    ),
    "halve_float16": _kernel(
        "halve_float16",
        (4, 2),
        "    ld.global.f32 %x, [%from];\n    cvt.rn.f16.f32 %h, %x;\n    st.global.u16 [%to], %h;\n",
    ),
    "halve_bfloat16": _kernel(
        "halve_bfloat16", (4, 2), f"    ld.global.f32 %x, [%from];\n{_NARROW}    st.global.u16 [%to], %h;\n"
    ),
}
"""The kernels by their names."""
