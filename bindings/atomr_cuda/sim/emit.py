"""What an instruction's handler and the code generator say to each other.

A handler asks the emitter for the values of its operands (`use`), and gives it the expression for its result
(`define`).  It does not know which lanes are active, where registers live, or how blocks follow each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .ptx import WIDTHS, Address, Instruction, Operand, PtxError, Register, UnsupportedPtx

CARRY = Register("%cc")
"""The carry flag, as one more predicate register."""


class Emitter(Protocol):
    """What a handler may ask of the code generator.  Every `str` is the name of a variable or an expression."""

    def use(self, operand: Operand, kind: str) -> str: ...
    def define(self, operand: Operand, kind: str, expression: str) -> None: ...
    def alias(self, operand: Operand, kind: str, source: Operand) -> None: ...
    def temp(self, expression: str) -> str: ...
    def statement(self, text: str) -> None: ...
    def constant(self, bits: int, kind: str) -> str: ...
    def width(self, operand: Operand) -> int: ...
    def wanted(self, operand: Operand) -> bool: ...
    def vector(self) -> None: ...
    def place(self, address: Address, instruction: Instruction) -> Place: ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where a load or a store goes: source text of a load, of a store and of an atomic's targets.

    `{offset}`, `{kind}`, `{align}` and `{value}` are filled in by the handler.
    """

    load: str
    store: str
    target: str
    one: bool
    """All lanes go to the same address."""


Handler = Callable[[Emitter, Instruction], None]


@dataclass(frozen=True, slots=True)
class Opcode:
    handler: Handler
    pure: bool = True
    """The result depends on the operands alone: equal operands in all lanes give equal results in all lanes."""
    writes: bool = True
    """The first operand is where the result goes."""


def kind_of(instruction: Instruction) -> str:
    """The type that the instruction ends in."""
    kind = instruction.modifiers[-1] if instruction.modifiers else ""
    if kind not in WIDTHS:
        raise unsupported(instruction)
    return kind


def unsupported(instruction: Instruction) -> UnsupportedPtx:
    return UnsupportedPtx(f"instruction '{instruction.text}' is not simulated", instruction.line)


def need(instruction: Instruction, *counts: int) -> None:
    if len(instruction.operands) not in counts:
        raise PtxError(f"'{instruction.text}' has the wrong number of operands", instruction.line)


def allow(instruction: Instruction, *modifiers: str) -> None:
    """Every modifier but the type at the end must be one of these."""
    if any(modifier not in modifiers for modifier in instruction.modifiers[:-1]):
        raise unsupported(instruction)


def is_float(kind: str) -> bool:
    return "f" in kind


def is_packed(kind: str) -> bool:
    return kind.endswith("x2")
