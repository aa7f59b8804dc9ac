"""The interface between an instruction's handler and the code generator.

A handler asks the emitter for the values of its operands (`use`), and gives it the expression for its result
(`define`).  It does not know which lanes are active, where registers live, or how blocks follow each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .text import WIDTHS, Address, Instruction, Operand, PtxError, Register, UnsupportedPtx

CARRY = Register("%cc")
"""The carry flag, as one more predicate register."""


class Emitter(Protocol):
    """The functions of the code generator for a handler. Every `str` is the name of a variable or an expression."""

    def use(self, operand: Operand, kind: str) -> str:
        """Return an expression for the value of an operand, read as the given type."""

    def define(self, operand: Operand, kind: str, expression: str) -> None:
        """Give a register the value of an expression of the given type."""

    def alias(self, operand: Operand, kind: str, source: Operand) -> None:
        """Give a register the value of another operand, unchanged."""

    def temp(self, expression: str) -> str:
        """Keep the value of an expression; return the name of its variable."""

    def statement(self, text: str) -> None:
        """Add a line to the code of the block."""

    def constant(self, bits: int, kind: str) -> str:
        """Return the name of a typed literal, given by its bits."""

    def width(self, operand: Operand) -> int:
        """Return the width of an operand in bits; 64 for an operand that is not a register."""

    def wanted(self, operand: Operand) -> bool:
        """Tell whether this result is read later."""

    def vector(self) -> None:
        """Note that the result differs from lane to lane, whatever the operands are."""

    def copy(self, function: str, to: str, source: str, *sizes: str) -> None:
        """Copy bytes in each lane, by a function of `copies`: the number that is written, and the number of them that
        is read."""

    def place(self, address: Address, instruction: Instruction) -> Place:
        """Return the place of the instruction's access to memory."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of an access to memory: source text of a load, of a store and of an atomic's targets.

    `{offset}`, `{kind}`, `{align}` and `{value}` are filled in by the handler.
    """

    load: str
    store: str
    target: str
    one: bool
    """True if all lanes access the same address."""


Handler = Callable[[Emitter, Instruction], None]


@dataclass(frozen=True, slots=True)
class Opcode:
    """The translation of an opcode, and the facts about it for dataflow analysis."""

    handler: Handler
    pure: bool = True
    """True if the result depends on the operands alone: equal operands in all lanes give equal results in all lanes."""
    writes: bool = True
    """True if the first operand is the destination of the result."""
    computes: bool = False
    """True if a result that is an f16 or an f32 comes from arithmetic, so its NaN is the hardware's."""


def kind_of(instruction: Instruction) -> str:
    """Return the type at the end of the instruction."""
    kind = instruction.modifiers[-1] if instruction.modifiers else ""
    if kind not in WIDTHS:
        raise unsupported(instruction)
    return kind


def unsupported(instruction: Instruction) -> UnsupportedPtx:
    """Return the error for an instruction that the simulator cannot run."""
    return UnsupportedPtx(f"instruction '{instruction.text}' is not simulated", instruction.line)


def need(instruction: Instruction, *counts: int) -> None:
    """Raise `PtxError` unless the number of operands is one of these."""
    if len(instruction.operands) not in counts:
        raise PtxError(f"'{instruction.text}' has the wrong number of operands", instruction.line)


def allow(instruction: Instruction, *modifiers: str) -> None:
    """Check that every modifier but the type at the end is one of these."""
    if any(modifier not in modifiers for modifier in instruction.modifiers[:-1]):
        raise unsupported(instruction)


def is_float(kind: str) -> bool:
    """Tell whether a type is a floating-point one, packed pairs among them."""
    return "f" in kind


def is_packed(kind: str) -> bool:
    """Tell whether a type is a pair of 16-bit values in one register."""
    return kind.endswith("x2")
