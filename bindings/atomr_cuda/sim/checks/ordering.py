"""Which instructions, beside barriers, put the accesses of lanes in order, and generated code that tells of them."""

from __future__ import annotations

import functools
from dataclasses import replace

from ..emit import Place
from ..ptx import Address, Instruction
from .emission import CheckedEmitter
from .races import Scope

_LOOKING = frozenset({"volatile", "relaxed", "acquire", "mmio"})
"""Modifiers of loads that see what others have done lately."""
_SHOWING = frozenset({"release", "acq_rel"})
_SHOWING_PHASES = frozenset({"arrive", "arrive_drop", "expect_tx", "complete_tx"})
"""What those do with an `mbarrier` who have something for others, and below, those who wait for it."""
_LOOKING_PHASES = frozenset({"test_wait", "try_wait"})


def releases(instruction: Instruction) -> Scope | None:
    """To whom an instruction shows what its lane has done before; None if to nobody."""
    opcode, modifiers = instruction.opcode, set(instruction.modifiers)
    if opcode in ("fence", "membar") or (opcode in ("atom", "red", "st") and _SHOWING & modifiers):
        return _scope(modifiers)
    if opcode == "mbarrier" and instruction.modifiers[0] in _SHOWING_PHASES:
        return _phase_scope(modifiers)
    return None


def acquires(instruction: Instruction) -> Scope | None:
    """Whose work the lane can see after an instruction, if they have shown it; None if nobody's.

    An atomic is taken to do so whatever it says, since many programs put a fence behind it or rely on there being none.
    """
    opcode, modifiers = instruction.opcode, set(instruction.modifiers)
    if opcode in ("fence", "membar", "atom") or (opcode == "ld" and _LOOKING & modifiers):
        return _scope(modifiers)
    if opcode == "mbarrier" and instruction.modifiers[0] in _LOOKING_PHASES:
        return _phase_scope(modifiers)
    return None


def shows_copies(instruction: Instruction) -> bool:
    """Whether an instruction lets an `mbarrier` know of copies."""
    return instruction.opcode == "cp" and bool({"mbarrier", "complete_tx"} & set(instruction.modifiers))


def _scope(modifiers: set[str]) -> Scope:
    return Scope.BLOCK if "cta" in modifiers else Scope.DEVICE


def _phase_scope(modifiers: set[str]) -> Scope:
    return Scope.DEVICE if "cluster" in modifiers else Scope.BLOCK


class OrderedEmitter(CheckedEmitter):
    """Generated code that tells of fences too, and of whatever works like one."""

    def place(self, address: Address, instruction: Instruction) -> Place:
        """Where the instruction's memory is.

        A load that a compare-and-swap of the same address begins with may see anything: the swap says whether it was
        right.  So it is taken to be relaxed, as the loops in NVIDIA's manual are not written but meant.
        """
        if instruction.opcode == "ld" and address in self._swapped:
            instruction = replace(instruction, modifiers=("relaxed", *instruction.modifiers))
        return super().place(address, instruction)

    @functools.cached_property
    def _swapped(self) -> set[Address]:
        """The addresses at which the function compares and swaps."""
        body = (instruction for block in self.code.flow.blocks for instruction in block.body)
        swaps = (each.operands[1] for each in body if each.opcode == "atom" and "cas" in each.modifiers)
        return {address for address in swaps if isinstance(address, Address)}

    def _handle(self, instruction: Instruction) -> None:
        """Write an instruction: what it releases was done before it, and what it acquires can be seen after it.

        A copy is done at once here, so what it brought is released after it.
        """
        released, acquired = releases(instruction), acquires(instruction)
        if released is not None:
            self.statement(f"A.synchronised(L, {int(released)}, release=True)")
        super()._handle(instruction)
        if shows_copies(instruction):
            self.statement(f"A.synchronised(L, {int(Scope.BLOCK)}, release=True)")
        if acquired is not None:
            self.statement(f"A.synchronised(L, {int(acquired)}, acquire=True)")
