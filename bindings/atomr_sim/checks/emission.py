"""Generated code that reports each access to memory before it is made: the instruction, the lanes, the addresses.

Everything else is as in `codegen`. The reports go to the activation (`running`).
"""

from __future__ import annotations

from typing import Any

from ..ptx.codegen import BlockEmitter
from ..ptx.emit import Place
from ..ptx.flow import Block
from ..ptx.text import WIDTHS, Address, Immediate, Instruction, Register
from .sites import Sites

_STRONG = frozenset({"volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"})
"""Modifiers of loads and stores that hardware makes whole and visible to others, like atomics."""


class CheckedEmitter(BlockEmitter):
    """Writes one block's function so that its accesses are reported to `CheckedActivation`."""

    def __init__(self, sites: Sites, owner: Any, block: Block) -> None:
        super().__init__(owner, block)
        self.sites = sites

    @property
    def site(self) -> int:
        """The number of the place in the source from which the present instruction comes."""
        assert self.instruction
        return self.sites.number(self.instruction.line)

    def place(self, address: Address, instruction: Instruction) -> Place:
        """Return the place of the instruction's access to memory."""
        self.manner: str = "strong " if _STRONG & set(instruction.modifiers) or instruction.opcode == "mbarrier" else ""
        self.updates: str = "strong write" if self._only_writes(instruction) else "atomic"
        if instruction.modifiers[-1] in WIDTHS:
            self.sites.granule = min(self.sites.granule, WIDTHS[instruction.modifiers[-1]] // 8)
        return super().place(address, instruction)

    def _only_writes(self, instruction: Instruction) -> bool:
        """True if an atomic operation does not read the old value."""
        exchange = "exch" in instruction.modifiers
        return "init" in instruction.modifiers or (exchange and not self.wanted(instruction.operands[0]))

    def copy(self, function: str, to: str, source: str, *sizes: str) -> None:
        """Copy bytes in each lane for which they may be read and written."""
        self.statement(f"{function}(M, *A.copies(L, {self.site}, {', '.join((to, source, *sizes))}))")

    def _plain_place(self, address: Address) -> Place:
        base = address.base
        if isinstance(base, Immediate):
            return self._checked(f"A.reach(u64({(base.bits + address.offset) % 2**64}), L)", 0, one=True)
        value = self.use(base, "u64")
        one = not isinstance(base, Register) or value in self.scalars
        return self._checked(f"A.reach({value}, L)", address.offset, one=one)

    def _shared_place(self, address: Address) -> Place:
        base = address.base
        width = self.width(base) if isinstance(base, Register) else 32
        value = self.use(base, f"u{width}")
        return self._checked(f"A.reach_shared({value}, L)", address.offset, one=False)

    def _checked(self, reached: str, offset: int, *, one: bool) -> Place:
        access = self._once(reached)
        if not one:
            self.vector()
        manner, site = self.manner, self.site
        return Place(
            f"{access}.load({offset} + {{offset}}, d_{{kind}}, {{align}}, '{manner}read', {site}){'[0]' * one}",
            f"{access}.store({offset} + {{offset}}, {{value}}, d_{{kind}}, {{align}}, '{manner}write', {site})",
            f"{access}.target({offset}, d_{{kind}}, '{self.updates}', {site})",
            one,
        )
