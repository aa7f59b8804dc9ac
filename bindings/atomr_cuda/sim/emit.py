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

    def use(self, operand: Operand, kind: str) -> str:
        """An expression for the value of an operand, read as the given type."""

    def define(self, operand: Operand, kind: str, expression: str) -> None:
        """Give a register the value of an expression of the given type."""

    def alias(self, operand: Operand, kind: str, source: Operand) -> None:
        """Give a register the value of another operand, unchanged."""

    def temp(self, expression: str) -> str:
        """Keep the value of an expression; returns the name it is kept by."""

    def statement(self, text: str) -> None:
        """Add a line to the code of the block."""

    def constant(self, bits: int, kind: str) -> str:
        """The name of a typed literal, given by its bits."""

    def width(self, operand: Operand) -> int:
        """The width of an operand in bits; 64 for whatever is not a register."""

    def wanted(self, operand: Operand) -> bool:
        """Whether anything reads this result."""

    def vector(self) -> None:
        """Say that the result differs from lane to lane, whatever the operands are."""

    def copy(self, function: str, to: str, source: str, *sizes: str) -> None:
        """Copy bytes in each lane, by a function of `copies`: how many are written, and how many of them are read."""

    def place(self, address: Address, instruction: Instruction) -> Place:
        """Where the instruction's memory is."""


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
    """How an opcode is translated, and what dataflow analysis may take for granted about it."""

    handler: Handler
    pure: bool = True
    """The result depends on the operands alone: equal operands in all lanes give equal results in all lanes."""
    writes: bool = True
    """The first operand is where the result goes."""
    computes: bool = False
    """A result that is an f16 or an f32 is a number that arithmetic made, and its NaN the one that hardware makes."""


def kind_of(instruction: Instruction) -> str:
    """The type that the instruction ends in."""
    kind = instruction.modifiers[-1] if instruction.modifiers else ""
    if kind not in WIDTHS:
        raise unsupported(instruction)
    return kind


def unsupported(instruction: Instruction) -> UnsupportedPtx:
    """The error for an instruction that the simulator cannot run."""
    return UnsupportedPtx(f"instruction '{instruction.text}' is not simulated", instruction.line)


def need(instruction: Instruction, *counts: int) -> None:
    """Raise `PtxError` unless the number of operands is one of these."""
    if len(instruction.operands) not in counts:
        raise PtxError(f"'{instruction.text}' has the wrong number of operands", instruction.line)


def allow(instruction: Instruction, *modifiers: str) -> None:
    """Every modifier but the type at the end must be one of these."""
    if any(modifier not in modifiers for modifier in instruction.modifiers[:-1]):
        raise unsupported(instruction)


def is_float(kind: str) -> bool:
    """Whether a type is a floating-point one, packed pairs among them."""
    return "f" in kind


def is_packed(kind: str) -> bool:
    """Whether a type is a pair of 16-bit values in one register."""
    return kind.endswith("x2")
