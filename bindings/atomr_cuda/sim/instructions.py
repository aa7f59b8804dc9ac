"""What each PTX instruction means: a table from opcode to a handler that writes one instruction as numpy.

The handlers that compute are in `arithmetic`; those that move, convert, load, store and talk to other lanes are here.
"""

from __future__ import annotations

from dataclasses import replace

from . import arithmetic
from .arithmetic import APPROXIMATE, COUNTS, LOGIC, float_result
from .emit import Emitter, Opcode, is_float, is_packed, kind_of, need, unsupported
from .ptx import WIDTHS, Address, Group, Immediate, Instruction, Operand, Pair, PtxError, Symbol

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
    """`isspacep`: whether an address lies in the named space."""
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
    if len(modifiers) < 2 or modifiers[-1] not in WIDTHS or modifiers[-2] not in WIDTHS:
        raise unsupported(instruction)
    to, source = modifiers[-2:]
    if any(
        part not in ("rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "sat", "ftz", "relu")
        for part in modifiers[:-2]
    ):
        raise unsupported(instruction)
    mode = next((part for part in modifiers[:-2] if part.startswith("r") and part != "relu"), "")
    if is_packed(to):
        _convert_packed(emit, instruction, to, mode)
        return
    need(instruction, 2)
    value = emit.use(instruction.operands[1], source)
    if "ftz" in modifiers and source == "f32":
        value = f"flush({value})"
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
        float_result(emit, instruction, to, f"to_half({value}, {to!r}, {mode or 'rn'!r})")
    elif pair == (False, True):
        float_result(emit, instruction, to, f"integer_to_float({value}, {to}, {mode or 'rn'!r})")
    else:
        _convert_float(emit, instruction, to, source, mode, value)


def _numpy(kind: str) -> str:
    return kind.replace("b", "u") if kind[0] == "b" else kind


def _integral(mode: str) -> str:
    """The rounding to an integer, whether the `i` is written or not."""
    return mode if mode.endswith("i") else f"{mode or 'rz'}i"


def _convert_float(emit: Emitter, instruction: Instruction, to: str, source: str, mode: str, value: str) -> None:
    if mode.endswith("i"):
        expression = f"ROUNDINGS[{mode!r}]({value}).astype({'f32' if to == 'bf16' else to})"
    elif (to, source) == ("f32", "f64"):
        expression = f"narrow({value}, {mode or 'rn'!r})"
    else:
        expression = f"{value}.astype({to})"
    float_result(emit, instruction, to, expression)


def _convert_packed(emit: Emitter, instruction: Instruction, to: str, mode: str) -> None:
    """`cvt.rn.f16x2.f32`: the first source goes to the upper half."""
    need(instruction, 3)
    if instruction.modifiers[-1] != "f32" or mode not in ("rn", "rz") or not is_float(to):
        raise unsupported(instruction)
    halves = []
    for operand in instruction.operands[1:]:
        half = f"to_half({emit.use(operand, 'f32')}, {to.removesuffix('x2')!r}, {mode!r})"
        halves.append(f"relu({half})" if "relu" in instruction.modifiers else half)
    emit.define(instruction.operands[0], "u32", f"pack_halves({to!r}, {', '.join(halves)})")


# Memory


def load(emit: Emitter, instruction: Instruction) -> None:
    """`ld`, of one value or a vector."""
    need(instruction, 2)
    kind, target, address = _memory_operands(instruction, *instruction.operands)
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
    need(instruction, 2)
    kind, source, address = _memory_operands(instruction, instruction.operands[1], instruction.operands[0])
    place = emit.place(address, instruction)
    size = WIDTHS[kind] // 8
    items = source.items if isinstance(source, Group) else (source,)
    values = [emit.use(item, _raw(kind)) for item in items]
    for at, value in enumerate(values):
        align = size * len(items) if not at else size
        emit.statement(place.store.format(offset=at * size, kind=_raw(kind), align=align, value=value))


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
"""Types that numpy lacks: their sums are operations of their own, on the bits."""


def atomic(emit: Emitter, instruction: Instruction) -> None:
    """`atom`, and `red`, which has no result. A vector is as many atomics as it has elements."""
    operands = instruction.operands if instruction.opcode == "atom" else [Symbol("_"), *instruction.operands]
    operation = next((part for part in instruction.modifiers if part in _ATOMICS), "")
    kind = kind_of(instruction)
    if kind not in _ATOMICS.get(operation, ()):
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


def copy_async(emit: Emitter, instruction: Instruction) -> None:
    """`cp.async`: the copy is done at once, so committing and waiting have nothing left to do."""
    operands = instruction.operands
    if not operands or "bulk" in instruction.modifiers:
        if "bulk" in instruction.modifiers:
            raise unsupported(instruction)
        return
    if isinstance(operands[0], Immediate):
        return
    to, source, *sizes = operands
    size = sizes[0] if sizes else None
    if not isinstance(to, Address) or not isinstance(source, Address) or any(other != size for other in sizes):
        raise unsupported(instruction)
    if not isinstance(size, Immediate) or size.bits not in (4, 8, 16) or "mbarrier" in instruction.modifiers:
        raise unsupported(instruction)
    read = emit.place(source, replace(instruction, opcode="ld", modifiers=("global",)))
    write = emit.place(to, replace(instruction, opcode="st", modifiers=("shared",)))
    for at in range(0, size.bits, 4):
        align = 4 if at else size.bits
        value = emit.temp(read.load.format(offset=at, kind="u32", align=align))
        emit.statement(write.store.format(offset=at, kind="u32", align=align, value=value))


def nothing(emit: Emitter, instruction: Instruction) -> None:
    """Fences, prefetches and naps: lanes see memory, and streams their launches, in program order anyway."""


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
    """What `bar.red` gives once all lanes of a block have come."""
    target, value = instruction.operands
    mode = next(part for part in instruction.modifiers if part in ("popc", "and", "or"))
    expression = f"A.block_vote({mode!r}, {emit.use(value, 'pred')}, L)"
    emit.vector()
    emit.define(target, "u32" if mode == "popc" else "pred", expression)


_NOTHING_TO_DO = ("membar", "fence", "prefetch", "prefetchu", "nanosleep", "discard", "pmevent", "griddepcontrol")
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
    **dict.fromkeys(("add", "addc", "sub", "subc"), Opcode(arithmetic.add_or_subtract)),
    "mul": Opcode(arithmetic.multiply),
    **dict.fromkeys(("mad", "madc"), Opcode(arithmetic.multiply_add)),
    **dict.fromkeys(("mul24", "mad24"), Opcode(arithmetic.multiply_24)),
    **dict.fromkeys(("div", "rem"), Opcode(arithmetic.divide)),
    "fma": Opcode(arithmetic.fused),
    **dict.fromkeys(("sqrt", "rcp"), Opcode(arithmetic.root)),
    **dict.fromkeys(APPROXIMATE, Opcode(arithmetic.approximate)),
    **dict.fromkeys(("min", "max"), Opcode(arithmetic.extreme)),
    **dict.fromkeys(("abs", "neg"), Opcode(arithmetic.sign_change)),
    "copysign": Opcode(arithmetic.copy_sign),
    **dict.fromkeys(LOGIC, Opcode(arithmetic.logic)),
    **dict.fromkeys(("shl", "shr"), Opcode(arithmetic.shift)),
    "shf": Opcode(arithmetic.funnel),
    **dict.fromkeys(COUNTS, Opcode(arithmetic.bit_count)),
    "bfind": Opcode(arithmetic.find_bit),
    "fns": Opcode(arithmetic.find_nth_bit),
    **dict.fromkeys(("bfe", "bfi"), Opcode(arithmetic.bit_field)),
    "bmsk": Opcode(arithmetic.bit_mask),
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
    "cvt": Opcode(convert),
    **dict.fromkeys(("ld", "ldu"), _MEMORY),
    "st": Opcode(store, pure=False, writes=False),
    "atom": Opcode(atomic, pure=False),
    "red": Opcode(atomic, pure=False, writes=False),
    **dict.fromkeys(_NOTHING_TO_DO, _SILENT),
    "cp": Opcode(copy_async, pure=False, writes=False),
    **{name: Opcode(handler, pure=False) for name, handler in _WARP.items()},
}
