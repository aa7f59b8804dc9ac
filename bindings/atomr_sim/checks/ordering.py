"""The instructions, besides barriers, that order the accesses of lanes, and generated code that reports them."""

from __future__ import annotations

import functools
from dataclasses import replace

from ..ptx.emit import Place
from ..ptx.text import Address, Instruction
from .emission import CheckedEmitter
from .races import Scope

_LOOKING = frozenset({"volatile", "relaxed", "acquire", "mmio"})
"""Modifiers of loads that see what others have written before."""
_SHOWING = frozenset({"release", "acq_rel"})
_SHOWING_PHASES = frozenset({"arrive", "arrive_drop", "expect_tx", "complete_tx"})
"""Operations on an `mbarrier` that release something for others; below, those that wait for it."""
_LOOKING_PHASES = frozenset({"test_wait", "try_wait"})


def releases(instruction: Instruction) -> Scope | None:
    """Return the scope in which an instruction releases what its lane has done before; None if it does not."""
    opcode, modifiers = instruction.opcode, set(instruction.modifiers)
    if opcode in ("fence", "membar") or (opcode in ("atom", "red", "st") and _SHOWING & modifiers):
        return _scope(modifiers)
    if opcode == "mbarrier" and instruction.modifiers[0] in _SHOWING_PHASES:
        return _phase_scope(modifiers)
    return None


def acquires(instruction: Instruction) -> Scope | None:
    """Return the scope in which the lane acquires others' released work after an instruction; None if it does not.

    An atomic is assumed to do so whatever its modifiers are, since many programs put a fence after it or rely on there
    being none.
    """
    opcode, modifiers = instruction.opcode, set(instruction.modifiers)
    if opcode in ("fence", "membar", "atom") or (opcode == "ld" and _LOOKING & modifiers):
        return _scope(modifiers)
    if opcode == "mbarrier" and instruction.modifiers[0] in _LOOKING_PHASES:
        return _phase_scope(modifiers)
    return None


def shows_copies(instruction: Instruction) -> bool:
    """Tell whether an instruction reports copies to an `mbarrier`."""
    return instruction.opcode == "cp" and bool({"mbarrier", "complete_tx"} & set(instruction.modifiers))


def _scope(modifiers: set[str]) -> Scope:
    return Scope.BLOCK if "cta" in modifiers else Scope.DEVICE


def _phase_scope(modifiers: set[str]) -> Scope:
    return Scope.DEVICE if "cluster" in modifiers else Scope.BLOCK


class OrderedEmitter(CheckedEmitter):
    """Generated code that reports fences too, and every instruction that works like one."""

    def place(self, address: Address, instruction: Instruction) -> Place:
        """Return the place of the instruction's access to memory.

        A load before a compare-and-swap of the same address may see any value: the swap tells whether it was right. So
        it counts as relaxed; the loops in NVIDIA's manual are meant this way, although they are not written so.
        """
        if instruction.opcode == "ld" and address in self._swapped:
            instruction = replace(instruction, modifiers=("relaxed", *instruction.modifiers))
        return super().place(address, instruction)

    @functools.cached_property
    def _swapped(self) -> set[Address]:
        """Return the addresses at which the function compares and swaps."""
        body = (instruction for block in self.code.flow.blocks for instruction in block.body)
        swaps = (each.operands[1] for each in body if each.opcode == "atom" and "cas" in each.modifiers)
        return {address for address in swaps if isinstance(address, Address)}

    def _handle(self, instruction: Instruction) -> None:
        """Write an instruction: it releases what was done before it, and what it acquires is visible after it.

        A copy is done at once here, so its bytes are released after it.
        """
        released, acquired = releases(instruction), acquires(instruction)
        if released is not None:
            self.statement(f"A.synchronised(L, {int(released)}, release=True)")
        super()._handle(instruction)
        if shows_copies(instruction):
            self.statement(f"A.synchronised(L, {int(Scope.BLOCK)}, release=True)")
        if acquired is not None:
            self.statement(f"A.synchronised(L, {int(acquired)}, acquire=True)")
