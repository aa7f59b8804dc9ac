"""Handlers of the instructions that compute: floats, integers, bits, comparisons.

Families of opcodes share a handler; the differences between members are data. The expressions that they write use numpy
and the helpers of `numeric`.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from .emit import CARRY, Emitter, allow, is_float, is_packed, kind_of, need, unsupported
from .text import WIDTHS, Immediate, Instruction, Pair

_ROUNDINGS = ("rn", "rz", "rm", "rp")


def _rounding(instruction: Instruction) -> str:
    return next((mode for mode in instruction.modifiers if mode in _ROUNDINGS), "rn")


# Floating point


def _inputs(emit: Emitter, instruction: Instruction, kind: str) -> list[str]:
    """The operands after the first as floats; with `.ftz`, subnormals as zero."""
    values = [emit.use(operand, kind) for operand in instruction.operands[1:]]
    if "ftz" in instruction.modifiers and kind != "f64":
        values = [f"flush({value})" for value in values]
    return values


def float_result(emit: Emitter, instruction: Instruction, kind: str, expression: str) -> None:
    """Define the first operand, with the modifiers that apply to any float result."""
    if "ftz" in instruction.modifiers and kind != "f64":
        expression = f"flush({expression})"
    emit.define(instruction.operands[0], kind, _limited(instruction, expression))


def _limited(instruction: Instruction, expression: str) -> str:
    for modifier, function in (("sat", "saturate"), ("relu", "relu")):
        if modifier in instruction.modifiers:
            expression = f"{function}({expression})"
    return expression


# Of two NaN, a GPU keeps the second one and this processor the first.
_NEAREST = {"add": "{1} + {0}", "sub": "{0} - {1}", "mul": "{1} * {0}", "div": "{0} / {1}", "sqrt": "np.sqrt({0})",
            "rcp": "one({0}) / {0}"}  # fmt: skip
_DIRECTED = {"add": "add_directed({0}, {1}, {2!r})", "sub": "add_directed({0}, -{1}, {2!r})",
             "mul": "mul_directed({0}, {1}, {2!r})", "div": "div_directed({0}, {1}, {2!r})",
             "sqrt": "sqrt_directed({0}, {2!r})", "rcp": "div_directed(one({0}), {0}, {2!r})"}  # fmt: skip


_WITH_DIRECTIONS = ("f32", "f64", "f32x2")
"""Types that are rounded in other directions than to nearest, too."""


def _packed(emit: Emitter, instruction: Instruction, kind: str, expression: str) -> None:
    """Evaluate the expression for both halves of the operands."""
    word = f"b{WIDTHS[kind]}"
    values = [emit.use(operand, word) for operand in instruction.operands[1:]]
    names = "xyz"[: len(values)]
    flushed = "flush({})" if "ftz" in instruction.modifiers else "{}"
    body = _limited(instruction, flushed.format(expression.format(*map(flushed.format, names))))
    operation = f"lambda {', '.join(names)}: {body}"
    emit.define(instruction.operands[0], word, f"halves({operation}, {kind!r}, {', '.join(values)})")


def _float_arithmetic(emit: Emitter, instruction: Instruction, kind: str) -> None:
    allow(instruction, *_ROUNDINGS, "ftz", "sat", "approx", "full", "noftz")
    name, mode = instruction.opcode, _rounding(instruction)
    if mode != "rn" and kind not in _WITH_DIRECTIONS:
        raise unsupported(instruction)
    expression = _NEAREST[name] if mode == "rn" else _DIRECTED[name].format("{0}", "{1}", mode)
    if is_packed(kind):
        _packed(emit, instruction, kind, expression)
    else:
        values = _inputs(emit, instruction, kind)
        float_result(emit, instruction, kind, expression.format(values[0], values[-1]))


def root(emit: Emitter, instruction: Instruction) -> None:
    """`sqrt` and `rcp`: one operand."""
    need(instruction, 2)
    kind = kind_of(instruction)
    if kind == "f64" and "approx" in instruction.modifiers:
        value = emit.use(instruction.operands[1], kind)
        emit.define(instruction.operands[0], kind, f"high_word({_NEAREST[instruction.opcode].format(value)})")
    else:
        _float_arithmetic(emit, instruction, kind)


APPROXIMATE = {
    "ex2": "np.exp2({0})",
    "lg2": "np.log2({0})",
    "sin": "np.sin({0})",
    "cos": "np.cos({0})",
    "tanh": "np.tanh({0})",
    "rsqrt": "rsqrt_f32({0})",
}


def approximate(emit: Emitter, instruction: Instruction) -> None:
    """The functions that hardware approximates, such as `ex2.approx` and `rsqrt.approx`."""
    need(instruction, 2)
    allow(instruction, "approx", "ftz")
    name, kind = instruction.opcode, kind_of(instruction)
    if name == "rsqrt" and kind == "f64":
        value = emit.use(instruction.operands[1], kind)
        expression = f"one({value}) / np.sqrt({value})"
        emit.define(
            instruction.operands[0], kind, f"high_word({expression})" if "ftz" in instruction.modifiers else expression
        )
    elif is_packed(kind):
        _packed(emit, instruction, kind, APPROXIMATE[name])
    else:
        (value,) = _inputs(emit, instruction, kind)
        float_result(emit, instruction, kind, APPROXIMATE[name].format(value))


_FUSED = {"f16": "fma_f16", "bf16": "fma_bf16", "f32": "fma_f32", "f64": "fma_f64"}
_FUSED |= {f"{kind}x2": _FUSED[kind] for kind in ("f16", "bf16", "f32")}


def fused(emit: Emitter, instruction: Instruction) -> None:
    """`fma`, and `mad` on floats."""
    need(instruction, 4)
    allow(instruction, *_ROUNDINGS, "ftz", "sat", "relu")
    kind, mode = kind_of(instruction), _rounding(instruction)
    if mode != "rn" and kind not in _WITH_DIRECTIONS:
        raise unsupported(instruction)
    expression = (
        f"{_FUSED[kind]}({{0}}, {{1}}, {{2}})" if mode == "rn" else f"fma_directed({{0}}, {{1}}, {{2}}, {mode!r})"
    )
    if is_packed(kind):
        _packed(emit, instruction, kind, expression)
    else:
        float_result(emit, instruction, kind, expression.format(*_inputs(emit, instruction, kind)))


# Integers


def add_or_subtract(emit: Emitter, instruction: Instruction) -> None:
    """`add`, `sub` and their members with a carry, on every type."""
    need(instruction, 3)
    kind = kind_of(instruction)
    if is_float(kind):
        _float_arithmetic(emit, instruction, kind)
        return
    if is_packed(kind):
        allow(instruction)
        _packed(emit, instruction, kind, _NEAREST[instruction.opcode])
        return
    allow(instruction, "cc", "sat", "wrap")
    sign = "+" if instruction.opcode.startswith("add") else "-"
    if "sat" in instruction.modifiers:
        a, b = (emit.use(operand, kind) for operand in instruction.operands[1:])
        emit.define(instruction.operands[0], kind, f"clamp(s64({a}) {sign} s64({b}), s32)")
        return
    unsigned = f"u{WIDTHS[kind]}"
    a, b = (emit.use(operand, unsigned) for operand in instruction.operands[1:])
    with_carry = instruction.opcode.endswith("c")
    if not with_carry and "cc" not in instruction.modifiers:
        emit.define(instruction.operands[0], unsigned, f"{a} {sign} {b}")
        return
    _carry_chain(emit, instruction, unsigned, a, b, sign, with_carry)


def _carry_chain(
    emit: Emitter, instruction: Instruction, kind: str, a: str, b: str, sign: str, with_carry: bool
) -> None:
    """a ± b with the carry of the instruction before; `.cc` keeps the carry of this one.

    The hardware subtracts by adding: a - b is a + ~b + 1, and `subc` adds the carry instead of the 1. So after `sub.cc`
    the flag is set if there was no borrow. NVRTC's own code relies on that: it goes on with `addc`.
    """
    if sign == "-" and with_carry:
        b = emit.temp(f"~{b}")
        sign = "+"
    first = emit.temp(f"{a} {sign} {b}")
    out = f"({first} < {a})" if sign == "+" else f"({a} >= {b})"
    total = first
    if with_carry:
        total = emit.temp(f"{first} + {emit.use(CARRY, 'pred')}.astype({kind})")
        out += f" | ({total} < {first})"
    if "cc" in instruction.modifiers:
        out = emit.temp(out)
    emit.define(instruction.operands[0], kind, total)
    if "cc" in instruction.modifiers:
        emit.define(CARRY, "pred", out)


def _product(emit: Emitter, instruction: Instruction, kind: str) -> tuple[str, str]:
    """Return the type and the expression of an integer product, for `.lo`, `.hi` or `.wide`."""
    bits = WIDTHS[kind]
    if "wide" in instruction.modifiers:
        wide = f"{'s' if kind[0] == 's' else 'u'}{2 * bits}"
        a, b = (emit.use(operand, kind) for operand in instruction.operands[1:3])
        return wide, f"{a}.astype({wide}) * {b}.astype({wide})"
    if "hi" in instruction.modifiers:
        a, b = (emit.use(operand, kind) for operand in instruction.operands[1:3])
        return kind, f"multiply_high({a}, {b})"
    unsigned = f"u{bits}"
    a, b = (emit.use(operand, unsigned) for operand in instruction.operands[1:3])
    return unsigned, f"{a} * {b}"


def multiply(emit: Emitter, instruction: Instruction) -> None:
    """`mul`, of floats or of integers."""
    need(instruction, 3)
    kind = kind_of(instruction)
    if is_float(kind):
        _float_arithmetic(emit, instruction, kind)
        return
    allow(instruction, "lo", "hi", "wide")
    emit.define(instruction.operands[0], *_product(emit, instruction, kind))


def multiply_add(emit: Emitter, instruction: Instruction) -> None:
    """`mad` and `madc` on integers; on floats `mad` is `fma`."""
    need(instruction, 4)
    kind = kind_of(instruction)
    if is_float(kind):
        fused(emit, instruction)
        return
    allow(instruction, "lo", "hi", "wide", "cc")
    wide, product = _product(emit, instruction, kind)
    unsigned = f"u{WIDTHS[wide]}"
    with_carry = instruction.opcode == "madc"
    if with_carry or "cc" in instruction.modifiers:
        a = emit.temp(f"({product}).view({unsigned})")
        addend = emit.use(instruction.operands[3], unsigned)
        _carry_chain(emit, instruction, unsigned, a, addend, "+", with_carry)
    else:
        emit.define(instruction.operands[0], wide, f"{product} + {emit.use(instruction.operands[3], wide)}")


def multiply_24(emit: Emitter, instruction: Instruction) -> None:
    """`mul24` and `mad24`: the low 24 bits of 32-bit operands."""
    kind = kind_of(instruction)
    wide = f"{kind[0]}64"
    shift = "<< u32(8)" if kind == "u32" else "<< s32(8)"
    a, b = (
        f"(({emit.use(operand, kind)} {shift}) {shift.replace('<<', '>>')}).astype({wide})"
        for operand in instruction.operands[1:3]
    )
    product = f"({a} * {b} >> {wide}(16))" if "hi" in instruction.modifiers else f"({a} * {b})"
    expression = f"{product}.astype({kind})"
    if instruction.opcode == "mad24":
        expression += f" + {emit.use(instruction.operands[3], kind)}"
    emit.define(instruction.operands[0], kind, expression)


def divide(emit: Emitter, instruction: Instruction) -> None:
    """`div` and `rem`; integers divide as C++ does."""
    need(instruction, 3)
    kind = kind_of(instruction)
    if is_float(kind):
        _float_arithmetic(emit, instruction, kind)
        return
    a, b = (emit.use(operand, kind) for operand in instruction.operands[1:])
    function = "divide" if instruction.opcode == "div" else "remainder"
    emit.define(instruction.operands[0], kind, f"{function}({a}, {b})")


def extreme(emit: Emitter, instruction: Instruction) -> None:
    """`min` and `max`, of three f32 too; on integers, `.relu` follows the type."""
    need(instruction, 3, 4)
    bare = replace(instruction, modifiers=tuple(part for part in instruction.modifiers if part != "relu"))
    kind = kind_of(bare)
    allow(bare, "ftz", "NaN", "xorsign", "abs")
    if len(instruction.operands) == 4 and (kind != "f32" or "xorsign" in instruction.modifiers):
        raise unsupported(instruction)
    function = ("" if is_float(kind) else "np.") + ("minimum" if instruction.opcode == "min" else "maximum")
    names = [f"{{{at}}}" for at in range(len(instruction.operands) - 1)]
    terms = [f"np.abs({name})" for name in names] if "abs" in instruction.modifiers else names
    expression = functools.reduce(lambda a, b: f"{function}({a}, {b})", terms)
    if "NaN" in instruction.modifiers:
        expression = f"nan_if_any({expression}, {', '.join(names)})"
    if "xorsign" in instruction.modifiers:
        expression = f"xor_sign({expression}, {', '.join(names)})"
    if is_packed(kind):
        _packed(emit, instruction, kind, expression)
    else:
        values = _inputs(emit, instruction, kind)
        emit.define(instruction.operands[0], kind, _limited(instruction, expression.format(*values)))


def sign_change(emit: Emitter, instruction: Instruction) -> None:
    """`abs` and `neg`."""
    need(instruction, 2)
    kind = kind_of(instruction)
    allow(instruction, "ftz")
    expression = "np.abs({0})" if instruction.opcode == "abs" else "negated({0})" if kind == "f64" else "-{0}"
    if is_packed(kind):
        _packed(emit, instruction, kind, expression)
    else:
        value = emit.use(instruction.operands[1], kind)
        emit.define(instruction.operands[0], kind, expression.format(value))


def copy_sign(emit: Emitter, instruction: Instruction) -> None:
    """`copysign`: the sign of the first operand on the second."""
    need(instruction, 3)
    kind = kind_of(instruction)
    sign, magnitude = (emit.use(operand, kind) for operand in instruction.operands[1:])
    emit.define(instruction.operands[0], kind, f"np.copysign({magnitude}, {sign})")


# Bits

LOGIC = {"and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}", "not": "~{0}", "cnot": "({0} == 0).astype({kind})"}


def logic(emit: Emitter, instruction: Instruction) -> None:
    """`and`, `or`, `xor`, `not` and `cnot`."""
    kind = kind_of(instruction)
    kind = kind if kind == "pred" else f"u{WIDTHS[kind]}"
    values = [emit.use(operand, kind) for operand in instruction.operands[1:]]
    emit.define(instruction.operands[0], kind, LOGIC[instruction.opcode].format(*values, kind=kind))


def shift(emit: Emitter, instruction: Instruction) -> None:
    """Shifts clamp at the width.  A literal count needs no check."""
    need(instruction, 3)
    kind = kind_of(instruction)
    bits = WIDTHS[kind]
    kind = kind if kind[0] == "s" and instruction.opcode == "shr" else f"u{bits}"
    value, count = emit.use(instruction.operands[1], kind), instruction.operands[2]
    left = instruction.opcode == "shl"
    if isinstance(count, Immediate) and 0 <= count.bits < bits:
        expression = f"{value} {'<<' if left else '>>'} {emit.constant(count.bits, kind)}"
    else:
        expression = f"{'shift_left' if left else 'shift_right'}({value}, {emit.use(count, 'u32')})"
    emit.define(instruction.operands[0], kind, expression)


def funnel(emit: Emitter, instruction: Instruction) -> None:
    """`shf`: 32 bits out of the 64 of two registers, shifted."""
    need(instruction, 4)
    low, high, count = (emit.use(operand, "u32") for operand in instruction.operands[1:])
    left, wrap = "l" in instruction.modifiers, "wrap" in instruction.modifiers
    emit.define(instruction.operands[0], "u32", f"funnel({low}, {high}, {count}, {left}, {wrap})")


COUNTS = {
    "popc": "np.bitwise_count({0}).astype(u32)",
    "clz": "count_leading_zeros({0})",
    "brev": "reverse_bits({0})",
}


def bit_count(emit: Emitter, instruction: Instruction) -> None:
    """`popc`, `clz` and `brev`."""
    need(instruction, 2)
    kind = f"u{WIDTHS[kind_of(instruction)]}"
    value = emit.use(instruction.operands[1], kind)
    result = kind if instruction.opcode == "brev" else "u32"
    emit.define(instruction.operands[0], result, COUNTS[instruction.opcode].format(value))


def find_bit(emit: Emitter, instruction: Instruction) -> None:
    """`bfind`: the place of the highest bit that differs from the sign."""
    need(instruction, 2)
    value = emit.use(instruction.operands[1], kind_of(instruction))
    emit.define(instruction.operands[0], "u32", f"find_leading_bit({value}, {'shiftamt' in instruction.modifiers})")


def find_nth_bit(emit: Emitter, instruction: Instruction) -> None:
    """`fns`: the place of the n-th set bit."""
    need(instruction, 4)
    mask, base = (emit.use(operand, "u32") for operand in instruction.operands[1:3])
    offset = emit.use(instruction.operands[3], "s32")
    emit.define(instruction.operands[0], "u32", f"find_nth_bit({mask}, {base}, {offset})")


def bit_field(emit: Emitter, instruction: Instruction) -> None:
    """`bfe` and `bfi`."""
    kind = kind_of(instruction)
    values, counts = instruction.operands[1:-2], instruction.operands[-2:]
    kind = kind if instruction.opcode == "bfe" else f"u{WIDTHS[kind]}"
    arguments = [emit.use(value, kind) for value in values] + [emit.use(count, "u32") for count in counts]
    function = "extract_bits" if instruction.opcode == "bfe" else "insert_bits"
    emit.define(instruction.operands[0], kind, f"{function}({', '.join(arguments)})")


def bit_mask(emit: Emitter, instruction: Instruction) -> None:
    """`bmsk`: a run of ones."""
    need(instruction, 3)
    position, length = (emit.use(operand, "u32") for operand in instruction.operands[1:])
    emit.define(instruction.operands[0], "u32", f"bit_mask({position}, {length}, {'wrap' in instruction.modifiers})")


def extend(emit: Emitter, instruction: Instruction) -> None:
    """`szext`: the number of lowest bits that the second operand gives, as a signed or unsigned number."""
    need(instruction, 3)
    value, count = emit.use(instruction.operands[1], kind_of(instruction)), emit.use(instruction.operands[2], "u32")
    bits = f"{count} & u32(31)" if "wrap" in instruction.modifiers else f"np.minimum({count}, u32(32))"
    emit.define(instruction.operands[0], kind_of(instruction), f"extract_bits({value}, u32(0), {bits})")


def permute(emit: Emitter, instruction: Instruction) -> None:
    """`prmt`: four bytes chosen from the eight of two registers."""
    need(instruction, 4)
    a, b, selector = (emit.use(operand, "u32") for operand in instruction.operands[1:])
    mode = instruction.modifiers[-1]
    arguments = f"{a}, {b}, {selector}"
    expression = (
        f"permute({arguments})"
        if mode == "b32" or len(instruction.modifiers) == 1
        else f"permute_mode({arguments}, {mode!r})"
    )
    emit.define(instruction.operands[0], "u32", expression)


def logic3(emit: Emitter, instruction: Instruction) -> None:
    """`lop3`: any function of three bits, by its truth table."""
    need(instruction, 5, 6)
    target, table = instruction.operands[0], instruction.operands[4]
    if not isinstance(table, Immediate):
        raise unsupported(instruction)
    a, b, c = (emit.use(operand, "u32") for operand in instruction.operands[1:4])
    result = emit.temp(f"logic3({a}, {b}, {c}, {table.bits})")
    if isinstance(target, Pair):
        other = emit.use(instruction.operands[5], "pred")
        emit.define(target.second, "pred", f"({result} != 0) {_COMBINE[instruction.modifiers[0]]} {other}")
        target = target.first
    emit.define(target, "u32", result)


def dot(emit: Emitter, instruction: Instruction) -> None:
    """`dp4a`: four products of bytes; `dp2a`: two products of a half and a byte."""
    need(instruction, 4)
    a, b = (emit.use(operand, "u32") for operand in instruction.operands[1:3])
    c = emit.use(instruction.operands[3], "u32")
    first, second = instruction.modifiers[-2:]
    if instruction.opcode == "dp4a":
        pieces = [(at, 8, at, 8) for at in (0, 8, 16, 24)]
    else:
        start = 16 if "hi" in instruction.modifiers else 0
        pieces = [(0, 16, start, 8), (16, 16, start + 8, 8)]
    emit.define(instruction.operands[0], "u32", f"dot({a}, {b}, {c}, {first == 's32'}, {second == 's32'}, {pieces})")


def absolute_difference(emit: Emitter, instruction: Instruction) -> None:
    """`sad`: the absolute difference of two integers, added to a third."""
    need(instruction, 4)
    kind = kind_of(instruction)
    a, b, c = (emit.use(operand, kind) for operand in instruction.operands[1:])
    emit.define(instruction.operands[0], kind, f"np.maximum({a}, {b}) - np.minimum({a}, {b}) + {c}")


def part_differences(emit: Emitter, instruction: Instruction) -> None:
    """`vabsdiff2` and `vabsdiff4`: the absolute differences of halves or of bytes, side by side or summed up."""
    need(instruction, 4)
    result, *sources = instruction.modifiers[:3]
    if result != "u32" or instruction.modifiers[3:] not in ((), ("add",)):
        raise unsupported(instruction)
    bits = 32 // int(instruction.opcode[-1])
    a, b, c = (emit.use(operand, "u32") for operand in instruction.operands[1:])
    signed = tuple(kind == "s32" for kind in sources)
    add = "add" in instruction.modifiers
    emit.define(instruction.operands[0], "u32", f"part_differences({a}, {b}, {c}, {bits}, {signed}, {add})")


# Comparing and choosing

_COMPARISONS = {
    "eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}",
    "ge": "{0} >= {1}", "lo": "{0} < {1}", "ls": "{0} <= {1}", "hi": "{0} > {1}", "hs": "{0} >= {1}",
}  # fmt: skip
_FLOAT_COMPARISONS = _COMPARISONS | {
    "ne": "({0} < {1}) | ({0} > {1})",
    "equ": "~(({0} < {1}) | ({0} > {1}))",
    "neu": "{0} != {1}",
    "ltu": "~({0} >= {1})",
    "leu": "~({0} > {1})",
    "gtu": "~({0} <= {1})",
    "geu": "~({0} < {1})",
    "num": "~(np.isnan({0}) | np.isnan({1}))",
    "nan": "np.isnan({0}) | np.isnan({1})",
}
_COMBINE = {"and": "&", "or": "|", "xor": "^"}


def _comparison(emit: Emitter, instruction: Instruction, kind: str) -> str:
    """The comparison of the second and third operands as a predicate, before `.and`, `.or` or `.xor`."""
    operands = [emit.use(operand, kind) for operand in instruction.operands[1:3]]
    if "ftz" in instruction.modifiers and kind == "f32":
        operands = [f"flush({operand})" for operand in operands]
    return _test(instruction, kind).format(*operands)


def _test(instruction: Instruction, kind: str) -> str:
    table = _FLOAT_COMPARISONS if is_float(kind) else _COMPARISONS
    comparison = instruction.modifiers[0]
    if comparison not in table:
        raise unsupported(instruction)
    return table[comparison]


def _packed_comparison(emit: Emitter, instruction: Instruction, kind: str, true: int) -> str:
    """The comparison of both halves: a word with the bits `true` in each half for which it holds."""
    if not is_float(kind):
        raise unsupported(instruction)
    a, b = (emit.use(operand, "b32") for operand in instruction.operands[1:3])
    operation = f"lambda x, y: {_test(instruction, kind).format('x', 'y')}"
    return f"compare_halves({operation}, {kind!r}, {emit.constant(true, 'u32')}, {a}, {b})"


def set_predicate(emit: Emitter, instruction: Instruction) -> None:
    """`setp`: a comparison, and its complement where a second destination asks for it."""
    need(instruction, 3, 4)
    kind, target = kind_of(instruction), instruction.operands[0]
    if is_packed(kind):
        _set_predicates_of_halves(emit, instruction, kind)
        return
    result = emit.temp(_comparison(emit, instruction, kind))
    complement = f"~{result}"
    combine = next((_COMBINE[part] for part in instruction.modifiers[1:-1] if part in _COMBINE), None)
    if combine:
        other = emit.use(instruction.operands[3], "pred")
        result, complement = f"{result} {combine} {other}", f"{complement} {combine} {other}"
    if isinstance(target, Pair):
        result, complement = emit.temp(result), emit.temp(complement)
        emit.define(target.first, "pred", result)
        emit.define(target.second, "pred", complement)
    else:
        emit.define(target, "pred", result)


def _set_predicates_of_halves(emit: Emitter, instruction: Instruction, kind: str) -> None:
    """`setp` on two halves has a destination for each."""
    target = instruction.operands[0]
    if not isinstance(target, Pair):
        raise unsupported(instruction)
    bits = emit.temp(_packed_comparison(emit, instruction, kind, 1))
    combine = next((_COMBINE[part] for part in instruction.modifiers[1:-1] if part in _COMBINE), None)
    also = f" {combine} {emit.use(instruction.operands[3], 'pred')}" if combine else ""
    low, high = emit.temp(f"(({bits} & u32(1)) != 0){also}"), emit.temp(f"(({bits} >> u32(16)) != 0){also}")
    emit.define(target.first, "pred", low)
    emit.define(target.second, "pred", high)


_TRUE_HALVES = {"f16x2": 0x3C00, "bf16x2": 0x3F80, "u32": 0xFFFF, "s32": 0xFFFF}


def set_value(emit: Emitter, instruction: Instruction) -> None:
    """`set`: a comparison as all ones or zero, or as 1.0 or 0.0."""
    need(instruction, 3, 4)
    target, source = instruction.modifiers[-2:]
    if target not in WIDTHS:
        raise unsupported(instruction)
    if is_packed(source):
        if target not in _TRUE_HALVES or any(part in _COMBINE for part in instruction.modifiers):
            raise unsupported(instruction)
        emit.define(instruction.operands[0], "u32", _packed_comparison(emit, instruction, source, _TRUE_HALVES[target]))
        return
    result = emit.temp(_comparison(emit, instruction, source))
    combine = next((_COMBINE[part] for part in instruction.modifiers[1:-2] if part in _COMBINE), None)
    if combine:
        result = emit.temp(f"{result} {combine} {emit.use(instruction.operands[3], 'pred')}")
    if is_float(target):
        emit.define(instruction.operands[0], target, f"{result}.astype({'f32' if target == 'bf16' else target})")
    else:
        emit.define(instruction.operands[0], target, f"-({result}.astype(s{WIDTHS[target]}))")


def select(emit: Emitter, instruction: Instruction) -> None:
    """`selp`: one of two values, by a predicate."""
    need(instruction, 4)
    kind = kind_of(instruction)
    kind = kind if kind == "pred" else f"u{WIDTHS[kind]}"
    a, b = (emit.use(operand, kind) for operand in instruction.operands[1:3])
    emit.define(instruction.operands[0], kind, f"np.where({emit.use(instruction.operands[3], 'pred')}, {a}, {b})")


def select_by_sign(emit: Emitter, instruction: Instruction) -> None:
    """`slct`: one of two values, by the sign of a third."""
    need(instruction, 4)
    kind, source = f"u{WIDTHS[instruction.modifiers[-2]]}", kind_of(instruction)
    a, b = (emit.use(operand, kind) for operand in instruction.operands[1:3])
    emit.define(instruction.operands[0], kind, f"np.where({emit.use(instruction.operands[3], source)} >= 0, {a}, {b})")


def test_property(emit: Emitter, instruction: Instruction) -> None:
    """`testp`: a class of floats."""
    need(instruction, 2)
    kind = kind_of(instruction)
    value = emit.use(instruction.operands[1], kind)
    tiny = f"np.finfo({kind}).tiny"
    tests = {
        "finite": f"np.isfinite({value})",
        "infinite": f"np.isinf({value})",
        "number": f"~np.isnan({value})",
        "notanumber": f"np.isnan({value})",
        "normal": f"np.isfinite({value}) & (np.abs({value}) >= {tiny})",
        "subnormal": f"({value} != 0) & (np.abs({value}) < {tiny})",
    }
    if instruction.modifiers[0] not in tests:
        raise unsupported(instruction)
    emit.define(instruction.operands[0], "pred", tests[instruction.modifiers[0]])
