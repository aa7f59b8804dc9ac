"""What a kernel only reads, proven from its PTX.

``const`` in the source proves nothing: a cast, an atomic, inline assembly or a pointer kept in memory leads around it.
So the proof is a taint over the registers of the machine code. Each register has the set of the parameters that its
value may be computed from; the sets only grow, until nothing changes, whatever way control takes. A parameter is *read*
if it is in no set of an address that is written, nor of a value that is stored or handed to a function: what was stored
may come back, and be written through. A value that is loaded from memory is not computed from the address that it was
loaded from. A comparison yields one bit and no address.

Three things end the proof for the whole kernel. A write to an address that is computed from no pointer parameter and
from no variable, such as a pointer that was loaded: it may lead to any array. A call of a function whose code is
elsewhere. And an instruction that is not in the lists below: what is new is not harmless.

The source is the PTX ISA. This file knows texts; a mistake in it would be a silent one, so the tests hold it against
what the simulator sees kernels write.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from atomr_trio._values.signatures import code_of

__all__ = ["proven_reads"]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_COMPUTES: Final = _words(
    """
    abs activemask add addc and bfe bfi bfind bmsk brev bswap clz cnot copysign cos cvt cvta div dp2a
    dp4a elect ex2 fma fns getctarank lg2 lop3 mad mad24 madc mapa match max min mma mov movmatrix mul
    mul24 neg not or pack popc prmt rcp redux rem rsqrt sad selp shf shfl shl shr sin slct sqrt sub subc
    szext tanh testp unpack vabsdiff vabsdiff2 vabsdiff4 vadd vadd2 vadd4 vavrg2 vavrg4 vmad vmax vmax2
    vmax4 vmin vmin2 vmin4 vote vset vset2 vset4 vshl vshr vsub vsub2 vsub4 xor
    """
)
"""Instructions whose result depends on their operands alone."""
_COMPARES: Final = _words("isspacep set setp")
_LOADS: Final = _words("ld ldmatrix ldu suld tex tld4 txq")
_STORES: Final = _words("atom discard red st stmatrix")
_DOES_NOTHING: Final = _words(
    """
    applypriority bar barrier bra brkpt brx createpolicy exit fence griddepcontrol membar nanosleep
    pmevent prefetch prefetchu ret setmaxnreg stackrestore trap
    """
)
_ALLOCATES: Final = _words("alloca stacksave")
_COPIES: Final = re.compile(r"cp\.async\.(?:ca|cg)\.|cp\.async\.bulk\.(?:global|shared|prefetch)")
_WAITS: Final = re.compile(r"cp\.async\.(?:bulk\.)?(?:commit|wait|mbarrier)|wgmma\.(?:fence|commit|wait)")
_WMMA: Final = re.compile(r"(?:wmma|wgmma)\.(load|store|mma|mma_async)\b")
_HARMLESS_CALLS: Final = frozenset(("vprintf", "__assertfail", "free"))
"""Functions of CUDA's that write no array of the program's, whatever they are given."""

_ENTRY = re.compile(r"\.entry\s+([\w$%]+)\s*(?:\(([^)]*)\))?")
_NO_STATEMENT = re.compile(
    r"\.loc\s+\d+\s+\d+\s+\d+(?:\s*,\s*function_name\s+[\w$%]+(?:\s*\+\s*\w+)?\s*,\s*inlined_at\s+\d+\s+\d+\s+\d+)?"
)
"""A place in the source, which no semicolon ends."""
_DIRECTIVE = re.compile(r"\.(?:reg|local|shared|param|global|const|branchtargets|calltargets|callprototype|pragma)\b")
_BEFORE_STATEMENT = re.compile(r"(?:\s|[{}]|[\w$%]+\s*:(?!:))+")
_PREDICATE = re.compile(r"@!?\s*[\w$%]+\s+")
_STATEMENT = re.compile(r"([\w.:]+)\s*(.*)", re.DOTALL)
_NAME = re.compile(r"(?<![\w$.%])(?:%[\w$]+(?:\.\w+)?|[A-Za-z_$][\w$]*)")
_LAST_NAME = re.compile(r"([\w$%]+)\s*(?:\[[^\]]*\]\s*)?$")
_DECLARED = re.compile(r"\.reg\s+(?:\.v[24]\s+)?\.\w+\s+(.*)", re.DOTALL)
_NUMBERED = re.compile(r"([\w$%]+)<(\d+)>")
_NOT_GLOBAL = re.compile(r"\.(?:shared|local|param)\b")
"""Spaces in which no array lies."""
_NO_ADDRESS: Final = "WARP_SZ"
_OFFSET = re.compile(r"\+\s*(\w+)\s*\]")
_WIDTH = re.compile(r"(?:\.v(\d))?\.[a-z]+(\d+)$")
_POINTER_BYTES: Final = 8
_CALLED = re.compile(r"(?:\([^)]*\)\s*,\s*)?([\w$%]+)")

_BASE: Final = 1
"""In a set: the address of a variable, of the stack or of shared memory."""
_FIRST: Final = 1
"""The bit of the first parameter; `_BASE` is below."""


@attrs.define
class _Step:
    """One instruction."""

    to: tuple[str, ...] = ()
    """The registers that it sets."""
    taint: int = 0
    """What their values are computed from, apart from registers."""
    of: tuple[str, ...] = ()
    """The registers that their values are computed from."""
    writes: tuple[tuple[str, ...], ...] = ()
    """The registers and names in each address that it writes."""
    elsewhere: int = 0
    """`_BASE` if those addresses are of a space in which no array lies."""
    stores: tuple[str, ...] = ()
    """The registers whose values it stores or hands on."""


class _Unprovable(Exception):
    """Nothing can be proven of this kernel."""


def proven_reads(ptx: str, pointers: Mapping[str, frozenset[int]]) -> dict[str, frozenset[int]]:
    """Return the parameters through which each kernel of a PTX text provably writes nothing.

    `pointers` says for each kernel by its name which parameters arrays may be given for; kernels that are not in it are
    left out. Raises nothing.
    """
    code = _NO_STATEMENT.sub("", code_of(ptx))
    found = {}
    for match in _ENTRY.finditer(code):
        name = match[1]
        if pointers.get(name):
            parameters = [_LAST_NAME.search(text.strip()) for text in (match[2] or "").split(",")]
            names = [each[1] if each else "" for each in parameters]
            try:
                found[name] = _Kernel(names, pointers[name], _body(code, match.end())).reads()
            except (_Unprovable, IndexError):  # fewer operands than any instruction has
                found[name] = frozenset()
    return found


def _body(code: str, at: int) -> str:
    """Return what stands between the braces that open next."""
    start = code.find("{", at)
    if start < 0:
        raise _Unprovable
    depth = 0
    for match in re.compile(r"[{}]").finditer(code, start):
        depth += 1 if match[0] == "{" else -1
        if not depth:
            return code[start + 1 : match.start()]
    raise _Unprovable


class _Kernel:
    """The proof for one kernel."""

    def __init__(self, parameters: list[str], pointers: frozenset[int], body: str) -> None:
        self._pointers = pointers
        self._parameters = {name: index for index, name in enumerate(parameters)}
        self._registers: set[str] = set()
        self._taints: dict[str, int] = {}
        self._written = 0
        statements = list(_statements(body))
        for statement in statements:
            self._note_registers(statement)
        self._steps = [step for statement in statements if (step := self._step(statement)) is not None]

    def reads(self) -> frozenset[int]:
        """Spread the taints until nothing changes, and return the parameters that reach no write."""
        taints = self._taints
        changed = True
        while changed:
            changed = False
            for step in self._steps:
                taint = step.taint
                for name in step.of:
                    taint |= taints.get(name, 0)
                for name in step.to:
                    before = taints.get(name, 0)
                    if taint | before != before:
                        taints[name] = taint | before
                        changed = True
        written = self._written
        for step in self._steps:
            for address in step.writes:
                reached = self._reached(address) | step.elsewhere
                if not reached:
                    raise _Unprovable
                written |= reached
            for name in step.stores:
                written |= taints.get(name, 0)
        return frozenset(index for index in self._pointers if not written >> index + _FIRST & 1)

    def _reached(self, address: tuple[str, ...]) -> int:
        taint = 0
        for name in address:
            taint |= self._taints.get(name, 0) if self._is_register(name) else _BASE
        return taint

    def _is_register(self, name: str) -> bool:
        return name.startswith("%") or name in self._registers

    def _note_registers(self, statement: str) -> None:
        match = _DECLARED.fullmatch(statement)
        if match is not None:
            self._registers.update(_NAME.findall(match[1]))
            for name, count in _NUMBERED.findall(match[1]):
                if not name.startswith("%"):
                    self._registers.update(f"{name}{index}" for index in range(int(count)))

    def _step(self, statement: str) -> _Step | None:
        """Read one statement; None for a declaration and for what does nothing here."""
        if statement.startswith("."):
            if _DIRECTIVE.match(statement):
                return None
            raise _Unprovable
        match = _STATEMENT.fullmatch(_PREDICATE.sub("", statement, count=1))
        if match is None:
            raise _Unprovable
        opcode, operands = match[1], _operands(match[2])
        word = opcode.partition(".")[0]
        if word in _COMPUTES:
            return self._computed(operands)
        if word in _LOADS:
            return self._loaded(opcode, operands)
        if word in _STORES:
            return self._stored(word, opcode, operands)
        if word in _COMPARES or word in _DOES_NOTHING or _WAITS.match(opcode):
            return None
        if word in _ALLOCATES:
            return _Step(to=self._in(operands[0]), taint=_BASE)
        if word == "call":
            self._check_call(match[2])
            return None
        if word == "mbarrier":
            return _Step(writes=tuple(map(self._names, _addresses(operands))), elsewhere=_elsewhere(opcode))
        if _COPIES.match(opcode):
            return self._copied(opcode, operands)
        kind = _WMMA.match(opcode)
        if kind is None:
            raise _Unprovable
        if kind[1] == "store":
            return self._stored("st", opcode, operands)
        return self._loaded(opcode, operands) if kind[1] == "load" else self._computed(operands)

    def _names(self, text: str) -> tuple[str, ...]:
        return tuple(_NAME.findall(text))

    def _in(self, *texts: str) -> tuple[str, ...]:
        """The registers in operands."""
        return tuple(name for text in texts for name in _NAME.findall(text) if self._is_register(name))

    def _computed(self, operands: list[str]) -> _Step:
        taint = 0
        for name in _NAME.findall(" ".join(operands[1:])):
            if not self._is_register(name) and name != _NO_ADDRESS:
                self._take_address(name)
                taint |= _BASE
        return _Step(to=self._in(operands[0]), taint=taint, of=self._in(*operands[1:]))

    def _take_address(self, name: str) -> None:
        """Note that the place of a parameter is used, through which its value may be read."""
        index = self._parameters.get(name)
        if index is not None:
            self._written |= 1 << index + _FIRST

    def _loaded(self, opcode: str, operands: list[str]) -> _Step:
        taint = 0
        if opcode.startswith("ld.param"):
            for name in _NAME.findall(operands[1]):
                index = self._parameters.get(name)
                if index is not None and index in self._pointers:
                    _check_inside(opcode, operands[1])
                    taint |= 1 << index + _FIRST
        else:
            for name in self._names(" ".join(operands[1:])):
                self._take_address(name)
        return _Step(to=self._in(operands[0]), taint=taint)

    def _stored(self, word: str, opcode: str, operands: list[str]) -> _Step:
        addresses = _addresses(operands)
        if not addresses:
            raise _Unprovable
        values = [each for each in operands if "[" not in each]
        to: tuple[str, ...] = ()
        if word == "atom":
            to, values = self._in(operands[0]), values[1:]
        for name in self._names(addresses[0]):
            self._take_address(name)
        written = (self._names(addresses[0]),)
        return _Step(to=to, writes=written, elsewhere=_elsewhere(opcode), stores=self._in(*values))

    def _copied(self, opcode: str, operands: list[str]) -> _Step | None:
        """An asynchronous copy: to the first address, from the second, with a barrier at the third."""
        if ".prefetch" in opcode:
            return None
        addresses = _addresses(operands)
        if len(addresses) < 2:
            raise _Unprovable
        return _Step(writes=tuple(map(self._names, (addresses[0], *addresses[2:]))))

    def _check_call(self, rest: str) -> None:
        """Give up for a function that may write an array. What a call is given was stored before, and counts there."""
        match = _CALLED.match(rest)
        if match is None or match[1] not in _HARMLESS_CALLS:
            raise _Unprovable


def _check_inside(opcode: str, place: str) -> None:
    """Give up where more is loaded than the one pointer: another parameter may lie behind it."""
    offset, width = _OFFSET.search(place), _WIDTH.search(opcode)
    if width is None or (offset is None and re.search(r"[+-]", place)):
        raise _Unprovable
    count, bits = int(width[1] or 1), int(width[2])
    if (int(offset[1], 0) if offset else 0) + count * bits // 8 > _POINTER_BYTES:
        raise _Unprovable


def _elsewhere(opcode: str) -> int:
    return _BASE if _NOT_GLOBAL.search(opcode) else 0


def _statements(body: str) -> Iterator[str]:
    for text in body.split(";"):
        match = _BEFORE_STATEMENT.match(text)
        statement = text[match.end() :] if match else text
        if statement.strip():
            yield statement.strip()


def _operands(text: str) -> list[str]:
    """Split operands at the commas between them."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        if letter in "{[(":
            depth += 1
        elif letter in "}])":
            depth -= 1
        elif letter == "," and not depth:
            parts.append(text[start:index])
            start = index + 1
    parts.append(text[start:])
    return parts


def _addresses(operands: list[str]) -> list[str]:
    return [each for each in operands if "[" in each]
