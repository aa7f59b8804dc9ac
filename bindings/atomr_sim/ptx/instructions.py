"""The meaning of each PTX instruction: a table from opcode to a handler that writes one instruction as numpy.

The handlers that compute are in `arithmetic`; those that move, convert, load, store and communicate between lanes are
here.
"""

from __future__ import annotations

import re
from dataclasses import replace

from . import arithmetic
from .arithmetic import APPROXIMATE, COUNTS, LOGIC, float_result
from .emit import Emitter, Opcode, is_float, is_packed, kind_of, need, unsupported
from .numeric import FLOAT8
from .text import WIDTHS, Address, Group, Immediate, Instruction, Operand, Pair, PtxError, Symbol

# Moving and converting


def move(emit: Emitter, instruction: Instruction) -> None:
    """`mov`: a copy, several registers packed into one, or one unpacked into several."""
    need(instruction, 2)
    target, source = instruction.operands
    kind = kind_of(instruction)
    bits = WIDTHS[kind]
    if isinstance(target, Group):
        part = bits // len(target.items)
        value = emit.use(source, f"u{bits}")
        pieces = [emit.temp(f"({value} >> u{bits}({at * part})).astype(u{part})") for at in range(len(target.items))]
        for item, piece in zip(target.items, pieces, strict=True):
            emit.define(item, f"u{part}", piece)
    elif isinstance(source, Group):
        part = bits // len(source.items)
        pieces = [
            f"({emit.use(item, f'u{part}')}.astype(u{bits}) << u{bits}({at * part}))"
            for at, item in enumerate(source.items)
        ]
        emit.define(target, f"u{bits}", " | ".join(pieces))
    else:
        emit.alias(target, kind, source)


def address_space(emit: Emitter, instruction: Instruction) -> None:
    """`cvta`: all spaces but `.shared` are host addresses already."""
    need(instruction, 2)
    target, source = instruction.operands
    if "shared" not in instruction.modifiers:
        emit.alias(target, "u64", source)
        return
    emit.vector()
    value = emit.use(source, "u64")
    sign = "-" if "to" in instruction.modifiers else "+"
    emit.define(target, "u64", f"{value} {sign} A.shared_window(L)")


def in_space(emit: Emitter, instruction: Instruction) -> None:
    """`isspacep`: tell whether an address is in the named space."""
    need(instruction, 2)
    emit.vector()
    emit.define(
        instruction.operands[0],
        "pred",
        f"A.in_space({instruction.modifiers[0]!r}, {emit.use(instruction.operands[1], 'u64')}, L)",
    )


def convert(emit: Emitter, instruction: Instruction) -> None:
    """`cvt` between every pair of integers and floats."""
    modifiers = instruction.modifiers
    special = next((_CONVERSIONS[part] for part in modifiers if part in _CONVERSIONS), None)
    if special:
        special(emit, instruction)
        return
    if len(modifiers) < 2 or modifiers[-1] not in WIDTHS or modifiers[-2] not in WIDTHS:
        raise unsupported(instruction)
    to, source = modifiers[-2:]
    if any(
        part not in ("rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "sat", "ftz", "relu", "satfinite")
        for part in modifiers[:-2]
    ):
        raise unsupported(instruction)
    mode = next((part for part in modifiers[:-2] if part.startswith("r") and part != "relu"), "")
    if is_packed(to):
        _convert_packed(emit, instruction, to, mode)
        return
    need(instruction, 2)
    if to == "f64" and source in ("f16", "f32"):
        # The only conversion for which the bits of a NaN make a difference.
        value = f"{emit.use(instruction.operands[1], f'u{WIDTHS[source]}')}.view({source})"
    else:
        value = emit.use(instruction.operands[1], source)
    if "ftz" in modifiers and source == "f32":
        value = f"flush({value})"
    if to != "f32":
        # Only f32 are flushed: a subnormal f16 result is kept.
        instruction = replace(instruction, modifiers=tuple(part for part in modifiers if part != "ftz"))
    pair = (is_float(source), is_float(to))
    if pair == (False, False):
        saturating = "sat" in modifiers
        emit.define(
            instruction.operands[0],
            to,
            f"clamp({value}, {_numpy(to)})" if saturating else f"{value}.astype({_numpy(to)})",
        )
    elif pair == (True, False):
        emit.define(instruction.operands[0], to, f"to_integer({value}, {_integral(mode)!r}, {_numpy(to)})")
    elif to in ("f16", "bf16") and not mode.endswith("i"):
        half = f"to_half({value}, {to!r}, {mode or 'rn'!r})"
        float_result(emit, instruction, to, f"finite({half}, {to!r})" if "satfinite" in modifiers else half)
    elif pair == (False, True):
        float_result(emit, instruction, to, f"integer_to_float({value}, {to}, {mode or 'rn'!r})")
    else:
        _convert_float(emit, instruction, to, source, mode, value)


def _numpy(kind: str) -> str:
    return kind.replace("b", "u") if kind[0] == "b" else kind


def _integral(mode: str) -> str:
    """Return the rounding to an integer, whether the `i` is written or not."""
    return mode if mode.endswith("i") else f"{mode or 'rz'}i"


def _convert_float(emit: Emitter, instruction: Instruction, to: str, source: str, mode: str, value: str) -> None:
    if mode.endswith("i"):
        expression = f"ROUNDINGS[{mode!r}]({value}).astype({'f32' if to == 'bf16' else to})"
    elif (to, source) == ("f32", "f64"):
        expression = f"narrow({value}, {mode or 'rn'!r})"
    elif (to, source) == ("f64", "f16"):
        expression = f"{value}.astype(f64) * f64(1)"  # numpy keeps a signalling NaN as it is
    else:
        expression = f"{value}.astype({to})"
    float_result(emit, instruction, to, expression)


def _to_float8(emit: Emitter, instruction: Instruction) -> None:
    """Two f32, or the two halves of an f16x2, as two 8-bit floats."""
    kind, source = instruction.modifiers[-2:]
    if kind not in FLOAT8 or not {"rn", "satfinite"} <= set(instruction.modifiers):
        raise unsupported(instruction)
    if source == "f32":
        need(instruction, 3)
        values = [emit.use(operand, "f32") for operand in instruction.operands[1:]]
    elif source == "f16x2":
        need(instruction, 2)
        both = emit.use(instruction.operands[1], "u32")
        values = [f"({both} >> u32({shift})).astype(u16).view(f16)" for shift in (16, 0)]
    else:
        raise unsupported(instruction)
    if "relu" in instruction.modifiers:
        values = [f"relu({value})" for value in values]
    emit.define(instruction.operands[0], "u16", f"to_float8({kind!r}, {', '.join(values)})")


def _convert_float8(emit: Emitter, instruction: Instruction) -> None:
    """Pairs of 8-bit floats, in the direction that the last two types give."""
    to, source = instruction.modifiers[-2:]
    if (to, source in FLOAT8) != ("f16x2", True):
        _to_float8(emit, instruction)
        return
    need(instruction, 2)
    pair = emit.temp(f"from_float8({source!r}, {emit.use(instruction.operands[1], 'u16')})")
    halves = [f"relu({pair}[{at}])" if "relu" in instruction.modifiers else f"{pair}[{at}]" for at in range(2)]
    emit.define(instruction.operands[0], "u32", f"pack_halves('f16x2', {', '.join(halves)})")


def _convert_tf32(emit: Emitter, instruction: Instruction) -> None:
    need(instruction, 2)
    mode = instruction.modifiers[0]
    if mode not in ("rna", "rn", "rz") or instruction.modifiers[-2:] != ("tf32", "f32"):
        raise unsupported(instruction)
    value = f"to_tf32({emit.use(instruction.operands[1], 'f32')}, {mode!r})"
    if "satfinite" in instruction.modifiers:
        value = f"finite_tf32({value})"
    emit.define(instruction.operands[0], "f32", f"relu({value})" if "relu" in instruction.modifiers else value)


def _convert_pack(emit: Emitter, instruction: Instruction) -> None:
    """`cvt.pack`: two integers, clamped, in one register; shorter ones are put below the bits of a third operand."""
    need(instruction, 3, 4)
    found = re.fullmatch(r"([us])(2|4|8|16)", instruction.modifiers[2])
    if not found or instruction.modifiers[1] != "sat" or instruction.modifiers[3] != "s32":
        raise unsupported(instruction)
    high, low = (emit.use(operand, "s32") for operand in instruction.operands[1:3])
    above = emit.use(instruction.operands[3], "u32") if len(instruction.operands) == 4 else emit.constant(0, "u32")
    emit.define(instruction.operands[0], "u32", f"pack_integers({high}, {low}, {above}, {found[2]}, {found[1] == 's'})")


_CONVERSIONS = {
    **dict.fromkeys(FLOAT8, _convert_float8),
    "tf32": _convert_tf32,
    "pack": _convert_pack,
}
"""Conversions with their own form, by the modifier that identifies them."""


def _convert_packed(emit: Emitter, instruction: Instruction, to: str, mode: str) -> None:
    """`cvt.rn.f16x2.f32`: the first source goes to the upper half."""
    need(instruction, 3)
    if instruction.modifiers[-1] != "f32" or mode not in ("rn", "rz") or not is_float(to):
        raise unsupported(instruction)
    halves = []
    for operand in instruction.operands[1:]:
        kind = to.removesuffix("x2")
        half = f"to_half({emit.use(operand, 'f32')}, {kind!r}, {mode!r})"
        half = f"finite({half}, {kind!r})" if "satfinite" in instruction.modifiers else half
        halves.append(f"relu({half})" if "relu" in instruction.modifiers else half)
    emit.define(instruction.operands[0], "u32", f"pack_halves({to!r}, {', '.join(halves)})")


# Memory


def load(emit: Emitter, instruction: Instruction) -> None:
    """`ld`, of one value or a vector."""
    target, source = _access_operands(instruction)
    kind, target, address = _memory_operands(instruction, target, source)
    place = emit.place(address, instruction)
    size = WIDTHS[kind] // 8
    items = target.items if isinstance(target, Group) else (target,)
    loaded = []
    for at in range(len(items)):
        align = size * len(items) if not at else size
        loaded.append(emit.temp(place.load.format(offset=at * size, kind=_raw(kind), align=align)))
    for item, name in zip(items, loaded, strict=True):
        if not place.one:
            emit.vector()
        if kind[0] == "s":
            emit.define(item, kind, f"{name}.view({kind})")
        else:
            emit.define(item, _raw(kind), name)


def store(emit: Emitter, instruction: Instruction) -> None:
    """`st`, of one value or a vector."""
    target, source = _access_operands(instruction)
    kind, source, address = _memory_operands(instruction, source, target)
    place = emit.place(address, instruction)
    size = WIDTHS[kind] // 8
    items = source.items if isinstance(source, Group) else (source,)
    values = [emit.use(item, _raw(kind)) for item in items]
    for at, value in enumerate(values):
        align = size * len(items) if not at else size
        emit.statement(place.store.format(offset=at * size, kind=_raw(kind), align=align, value=value))


def _access_operands(instruction: Instruction) -> list[Operand]:
    """Return the two operands of a load or a store; the cache policy has no effect here."""
    if {"async", "bulk"} & set(instruction.modifiers):
        raise unsupported(instruction)
    operands = _without_hint(instruction)
    if len(operands) != 2:
        raise PtxError(f"'{instruction.text}' has the wrong number of operands", instruction.line)
    return operands


def _without_hint(instruction: Instruction) -> list[Operand]:
    """Return the operands without the cache policy at the end."""
    return instruction.operands[:-1] if "cache_hint" in instruction.modifiers else instruction.operands


def _raw(kind: str) -> str:
    """Memory is read and written as unsigned bits."""
    return f"u{WIDTHS[kind]}"


def _memory_operands(instruction: Instruction, data: Operand, address: Operand) -> tuple[str, Operand, Address]:
    kind = kind_of(instruction)
    if not isinstance(address, Address) or kind == "pred":
        raise PtxError(f"'{instruction.text}' has no address", instruction.line)
    count = next((int(part[1:]) for part in instruction.modifiers if part in ("v2", "v4", "v8")), 1)
    if count != (len(data.items) if isinstance(data, Group) else 1):
        raise PtxError(f"'{instruction.text}' has the wrong number of values", instruction.line)
    return kind, data, address


_ATOMICS = {
    "add": ("u32", "s32", "u64", "s64", "f16", "f32", "f64", "f16x2", "bf16", "bf16x2"),
    "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"),
    "inc": ("u32",),
    "dec": ("u32",),
    "exch": ("b32", "b64", "u32", "u64"),
    "cas": ("b16", "b32", "b64", "u32", "u64"),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
}

_HELD_AS = {"f16x2": "u32", "bf16": "u16", "bf16x2": "u32"}
"""Types that numpy lacks: their sums are separate operations, on the bits."""


def atomic(emit: Emitter, instruction: Instruction) -> None:
    """`atom`, and `red`, which has no result. A vector is one atomic for each of its elements."""
    operands = _without_hint(instruction)
    if instruction.opcode == "red":
        operands = [Symbol("_"), *operands]
    operation = next((part for part in instruction.modifiers if part in _ATOMICS), "")
    kind = kind_of(instruction)
    if kind not in _ATOMICS.get(operation, ()) or "async" in instruction.modifiers:
        raise unsupported(instruction)
    target, address, *values = operands
    if not isinstance(address, Address) or len(values) != (2 if operation == "cas" else 1):
        raise PtxError(f"'{instruction.text}' has the wrong operands", instruction.line)
    items = values[0].items if isinstance(values[0], Group) else None
    if items is None:
        _atomic(emit, instruction, operation, kind, target, address, values)
        return
    targets = target.items if isinstance(target, Group) else [Symbol("_")] * len(items)
    for at, (into, item) in enumerate(zip(targets, items, strict=True)):
        element = replace(address, offset=address.offset + at * WIDTHS[kind] // 8)
        _atomic(emit, instruction, operation, kind, into, element, [item])


def _atomic(
    emit: Emitter,
    instruction: Instruction,
    operation: str,
    kind: str,
    target: Operand,
    address: Address,
    values: list[Operand],
) -> None:
    if kind in _HELD_AS:
        operation, kind = f"{operation}.{kind}", _HELD_AS[kind]
    kind = _numpy(kind)
    place = emit.place(address, instruction)
    arguments = ", ".join(emit.use(value, kind) for value in values)
    keep = emit.wanted(target)
    call = f"atomic(M, {place.target.format(kind=kind)}, {operation!r}, {kind}, {keep}, {arguments})"
    if keep:
        emit.vector()
        emit.define(target, kind, call)
    else:
        emit.statement(call)


def memory_barrier(emit: Emitter, instruction: Instruction) -> None:
    """`mbarrier`: atomic operations on its word, and queries of it."""
    operation, operands = instruction.modifiers[0], instruction.operands
    if operation == "pending_count":
        need(instruction, 2)
        emit.define(operands[0], "u32", f"mbarrier.pending_count({emit.use(operands[1], 'u64')})")
    elif operation in ("test_wait", "try_wait"):
        _ask_memory_barrier(emit, instruction)
    elif operation in ("arrive", "arrive_drop"):
        need(instruction, 2, 3)
        count = emit.use(operands[2], "u32") if len(operands) == 3 else emit.constant(1, "u32")
        announces = "expect_tx" in instruction.modifiers
        numbers = (emit.constant(1, "u32"), count) if announces else (count, emit.constant(0, "u32"))
        _change_memory_barrier(emit, instruction, operation, operands[0], operands[1], *numbers)
    elif operation in ("init", "inval", "expect_tx", "complete_tx"):
        need(instruction, 1 if operation == "inval" else 2)
        number = emit.use(operands[-1], "u32") if len(operands) == 2 else emit.constant(0, "u32")
        _change_memory_barrier(emit, instruction, operation, Symbol("_"), operands[0], number)
    else:
        raise unsupported(instruction)


def _change_memory_barrier(
    emit: Emitter, instruction: Instruction, operation: str, target: Operand, address: Operand, *numbers: str
) -> None:
    if not isinstance(address, Address):
        raise PtxError(f"'{instruction.text}' has no address", instruction.line)
    words = emit.place(address, instruction).target.format(kind="u64")
    keep = emit.wanted(target)
    call = f"atomic(M, {words}, 'mbarrier.{operation}', u64, {keep}, {', '.join(numbers)})"
    if keep:
        emit.vector()
        emit.define(target, "u64", call)
    else:
        emit.statement(call)


def _ask_memory_barrier(emit: Emitter, instruction: Instruction) -> None:
    """`test_wait`, and `try_wait`, which does not wait here either: the program asks again."""
    need(instruction, 3, 4)
    target, address, phase = instruction.operands[:3]
    if not isinstance(address, Address):
        raise PtxError(f"'{instruction.text}' has no address", instruction.line)
    now = emit.temp(emit.place(address, instruction).load.format(offset=0, kind="u64", align=8))
    by_parity = "parity" in instruction.modifiers
    question, kind = ("parity_ended", "u32") if by_parity else ("phase_ended", "u64")
    emit.vector()
    emit.define(target, "pred", f"mbarrier.{question}({now}, {emit.use(phase, kind)})")


def _generic(emit: Emitter, address: Operand, space: str, size: str) -> str:
    """Return the addresses of an operand in all of memory; for this many bytes of shared memory they are checked."""
    assert isinstance(address, Address)
    width = emit.width(address.base) if space == "shared" else 64
    kind = "u32" if width == 64 and isinstance(address.base, Symbol) and space == "shared" else f"u{width}"
    value = f"{emit.use(address.base, kind)} + {emit.constant(address.offset, kind)}"
    return f"A.shared_addresses({value}, {size}, L)" if space == "shared" else value


def copy_async(emit: Emitter, instruction: Instruction) -> None:
    """`cp.async`: the copy is done at once, so committing and waiting have nothing to do."""
    operands, modifiers = _without_hint(instruction), instruction.modifiers
    if modifiers[0] != "async" or "tensor" in modifiers:
        raise unsupported(instruction)
    if {"commit_group", "wait_group", "wait_all", "prefetch"} & set(modifiers):
        return
    if "bulk" in modifiers:
        _copy_bulk(emit, instruction, operands)
    elif "mbarrier" in modifiers:
        need(instruction, 1)
        # Otherwise the instruction first adds the arrival that it makes later.
        if "noinc" in modifiers:
            none, one = emit.constant(0, "u32"), emit.constant(1, "u32")
            _change_memory_barrier(emit, instruction, "arrive", Symbol("_"), operands[0], one, none)
    else:
        _copy_some(emit, instruction, operands)


def _copy_some(emit: Emitter, instruction: Instruction, operands: list[Operand]) -> None:
    """Copy 4, 8 or 16 bytes: as many as a fourth operand gives, or none if it is a true predicate, and then zeros."""
    to, source, size, *rest = operands
    if not isinstance(to, Address) or not isinstance(source, Address) or len(rest) > 1:
        raise unsupported(instruction)
    if not isinstance(size, Immediate) or size.bits not in (4, 8, 16):
        raise unsupported(instruction)
    if rest and rest[0] != size:
        whole = emit.constant(size.bits, "u32")
        if emit.width(rest[0]) == 1:
            given = f"np.where({emit.use(rest[0], 'pred')}, u32(0), {whole})"
        else:
            given = emit.use(rest[0], "u32")
        places = _generic(emit, to, "shared", whole), _generic(emit, source, "global", whole)
        emit.copy("copy_each", *places, whole, given)
        return
    read = emit.place(source, replace(instruction, opcode="ld", modifiers=("global",)))
    write = emit.place(to, replace(instruction, opcode="st", modifiers=("shared",)))
    for at in range(0, size.bits, 4):
        align = 4 if at else size.bits
        value = emit.temp(read.load.format(offset=at, kind="u32", align=align))
        emit.statement(write.store.format(offset=at, kind="u32", align=align, value=value))


def _copy_bulk(emit: Emitter, instruction: Instruction, operands: list[Operand]) -> None:
    """`cp.async.bulk` between shared and global memory; it reports the number of bytes to an `mbarrier`."""
    to, source, size, *barrier = operands
    spaces = [part for part in instruction.modifiers if part in ("shared", "global")]
    if sorted(spaces) != ["global", "shared"] or {"multicast", "cp_mask", "ignore_oob"} & set(instruction.modifiers):
        raise unsupported(instruction)
    count = emit.use(size, "u32")
    places = [_generic(emit, end, space, count) for end, space in zip((to, source), spaces, strict=True)]
    emit.copy("copy_bulk", *places, count)
    if barrier:
        shared = replace(instruction, modifiers=("shared",))
        _change_memory_barrier(emit, shared, "complete_tx", Symbol("_"), barrier[0], count)


def cache_policy(emit: Emitter, instruction: Instruction) -> None:
    """`createpolicy`: there is no cache, so all policies are one."""
    emit.define(instruction.operands[0], "u64", emit.constant(0, "u64"))


def nothing(emit: Emitter, instruction: Instruction) -> None:
    """Fences, prefetches and sleeps: lanes access memory, and streams run their launches, in program order anyway."""


# Warps and blocks


def shuffle(emit: Emitter, instruction: Instruction) -> None:
    """`shfl.sync`: the value of another lane of the warp."""
    need(instruction, 5)
    target, value, lane, clamp, _mask = instruction.operands
    mode = instruction.modifiers[1]
    arguments = ", ".join((emit.use(value, "u32"), emit.use(lane, "u32"), emit.use(clamp, "u32")))
    found = emit.temp(f"A.shuffle({mode!r}, {arguments}, L)")
    emit.vector()
    if isinstance(target, Pair):
        emit.define(target.first, "u32", f"{found}[0]")
        emit.vector()
        emit.define(target.second, "pred", f"{found}[1]")
    else:
        emit.define(target, "u32", f"{found}[0]")


def vote(emit: Emitter, instruction: Instruction) -> None:
    """`vote.sync`: all, any, uniform, or the ballot itself."""
    need(instruction, 3)
    target, value, mask = instruction.operands
    mode = instruction.modifiers[1]
    expression = f"A.vote({mode!r}, {emit.use(value, 'pred')}, {emit.use(mask, 'u32')}, L)"
    emit.vector()
    emit.define(target, "u32" if mode == "ballot" else "pred", expression)


def match(emit: Emitter, instruction: Instruction) -> None:
    """`match.sync`: the lanes that hold the same value."""
    need(instruction, 3)
    target, value, mask = instruction.operands
    kind = f"u{WIDTHS[kind_of(instruction)]}"
    mode = instruction.modifiers[0]
    found = emit.temp(f"A.match({mode!r}, {emit.use(value, kind)}, {emit.use(mask, 'u32')}, L)")
    emit.vector()
    if isinstance(target, Pair):
        emit.define(target.first, "u32", f"{found}[0]")
        emit.vector()
        emit.define(target.second, "pred", f"{found}[1]")
    else:
        emit.define(target, "u32", f"{found}[0]")


def reduce_warp(emit: Emitter, instruction: Instruction) -> None:
    """`redux.sync`: one value from those of the warp."""
    need(instruction, 3)
    kind = _numpy(kind_of(instruction))
    mode = instruction.modifiers[1]
    if kind not in ("u32", "s32") or mode not in ("add", "min", "max", "and", "or", "xor"):
        raise unsupported(instruction)
    expression = (
        f"A.redux({mode!r}, {emit.use(instruction.operands[1], kind)}, {emit.use(instruction.operands[2], 'u32')}, L)"
    )
    emit.vector()
    emit.define(instruction.operands[0], kind, expression)


def active_mask(emit: Emitter, instruction: Instruction) -> None:
    """`activemask`: the lanes that run together now."""
    need(instruction, 1)
    emit.vector()
    emit.define(instruction.operands[0], "u32", "A.active_mask(L)")


def elect(emit: Emitter, instruction: Instruction) -> None:
    """`elect.sync`: the first lane of the mask is the leader."""
    need(instruction, 2)
    target = instruction.operands[0]
    if not isinstance(target, Pair):
        raise unsupported(instruction)
    mask = emit.use(instruction.operands[1], "u32")
    emit.define(target.first, "u32", f"np.bitwise_count(({mask} & -{mask}) - u32(1)).astype(u32)")
    emit.vector()
    emit.define(target.second, "pred", f"({mask} & A.special('lanemask_lt', L)) == u32(0)")


def reduce_block(emit: Emitter, instruction: Instruction) -> None:
    """The result of `bar.red` when all lanes of a block have arrived."""
    target, value, number = instruction.operands
    mode = next(part for part in instruction.modifiers if part in ("popc", "and", "or"))
    expression = f"A.block_vote({mode!r}, {emit.use(value, 'pred')}, {emit.use(number, 'u32')}, L)"
    emit.vector()
    emit.define(target, "u32" if mode == "popc" else "pred", expression)


_NOTHING_TO_DO = ("membar", "fence", "prefetch", "prefetchu", "nanosleep", "discard", "pmevent", "griddepcontrol",
                  "applypriority", "setmaxnreg")  # fmt: skip
_MEMORY = Opcode(load, pure=False)
_SILENT = Opcode(nothing, pure=False, writes=False)
_WARP = {
    "shfl": shuffle,
    "vote": vote,
    "match": match,
    "redux": reduce_warp,
    "activemask": active_mask,
    "elect": elect,
    "bar_result": reduce_block,
}

OPCODES: dict[str, Opcode] = {
    **dict.fromkeys(("add", "addc", "sub", "subc"), Opcode(arithmetic.add_or_subtract, computes=True)),
    "mul": Opcode(arithmetic.multiply, computes=True),
    **dict.fromkeys(("mad", "madc"), Opcode(arithmetic.multiply_add, computes=True)),
    **dict.fromkeys(("mul24", "mad24"), Opcode(arithmetic.multiply_24)),
    **dict.fromkeys(("div", "rem"), Opcode(arithmetic.divide, computes=True)),
    "fma": Opcode(arithmetic.fused, computes=True),
    **dict.fromkeys(("sqrt", "rcp"), Opcode(arithmetic.root, computes=True)),
    **dict.fromkeys(APPROXIMATE, Opcode(arithmetic.approximate, computes=True)),
    **dict.fromkeys(("min", "max"), Opcode(arithmetic.extreme, computes=True)),
    **dict.fromkeys(("abs", "neg"), Opcode(arithmetic.sign_change, computes=True)),
    "copysign": Opcode(arithmetic.copy_sign),
    **dict.fromkeys(LOGIC, Opcode(arithmetic.logic)),
    **dict.fromkeys(("shl", "shr"), Opcode(arithmetic.shift)),
    "shf": Opcode(arithmetic.funnel),
    **dict.fromkeys(COUNTS, Opcode(arithmetic.bit_count)),
    "bfind": Opcode(arithmetic.find_bit),
    "fns": Opcode(arithmetic.find_nth_bit),
    **dict.fromkeys(("bfe", "bfi"), Opcode(arithmetic.bit_field)),
    "bmsk": Opcode(arithmetic.bit_mask),
    "szext": Opcode(arithmetic.extend),
    "prmt": Opcode(arithmetic.permute),
    "lop3": Opcode(arithmetic.logic3),
    **dict.fromkeys(("dp4a", "dp2a"), Opcode(arithmetic.dot)),
    "sad": Opcode(arithmetic.absolute_difference),
    **dict.fromkeys(("vabsdiff2", "vabsdiff4"), Opcode(arithmetic.part_differences)),
    "setp": Opcode(arithmetic.set_predicate),
    "set": Opcode(arithmetic.set_value),
    "selp": Opcode(arithmetic.select),
    "slct": Opcode(arithmetic.select_by_sign),
    "testp": Opcode(arithmetic.test_property),
    "mov": Opcode(move),
    "cvta": Opcode(address_space),
    "isspacep": Opcode(in_space, pure=False),
    "cvt": Opcode(convert, computes=True),
    **dict.fromkeys(("ld", "ldu"), _MEMORY),
    "st": Opcode(store, pure=False, writes=False),
    "atom": Opcode(atomic, pure=False),
    "red": Opcode(atomic, pure=False, writes=False),
    **dict.fromkeys(_NOTHING_TO_DO, _SILENT),
    "cp": Opcode(copy_async, pure=False, writes=False),
    "createpolicy": Opcode(cache_policy),
    "mbarrier": Opcode(memory_barrier, pure=False),
    **{name: Opcode(handler, pure=False) for name, handler in _WARP.items()},
}
