"""The control flow of one PTX function: basic blocks, the order in which they run, and which registers cross them.

It uses the targets of branches and the operands that are read and written, but not what any instruction computes.
Blocks are numbered in reverse postorder: the engine runs the group of lanes at the lowest number first, so that lanes
meet again where their paths do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from .emit import CARRY, unsupported
from .instructions import OPCODES
from .text import (
    Address,
    Function,
    Group,
    Immediate,
    Instruction,
    Label,
    Operand,
    Pair,
    PtxError,
    Register,
    Special,
    Symbol,
)  # fmt: skip

BARRIER_VALUE = Register("%bar")
"""The predicate of a lane for `bar.red`, kept until the whole block has arrived."""

UNIFORM_SPECIALS = frozenset(
    {f"{name}.{axis}" for name in ("ntid", "nctaid", "nclusterid", "cluster_nctaid") for axis in "xyz"}
    | {"nwarpid", "nsmid", "gridid", "dynamic_smem_size", "total_smem_size", "cluster_nctarank", "envreg1", "envreg2"}
    | {f"reserved_smem_offset_{name}" for name in ("begin", "end", "cap", "0", "1")}
)
BUILTINS = frozenset({"vprintf", "__assertfail", "malloc", "free"})
_SYNCHRONIZING = frozenset({"shfl", "vote", "match", "redux", "elect"})


@dataclass(slots=True)
class End:
    """The end of a block: `kind` is jump, branch, switch, leave, exit, trap, call, barrier or warp."""

    kind: str
    targets: list[int] = field(default_factory=list)
    operand: Operand | None = None
    instruction: Instruction | None = None


@dataclass(slots=True)
class Block:
    """Instructions that run one after the other, and the end of the block."""

    number: int
    body: list[Instruction] = field(default_factory=list)
    end: End | None = None


@dataclass(slots=True)
class Flow:
    """A function's blocks in running order, and the results of dataflow analysis about its registers."""

    blocks: list[Block]
    live_in: list[set[str]]
    live_out: list[set[str]]
    uniform: set[str]
    computed: dict[str, str]
    """Registers with only results of float arithmetic: the type of float, by name."""


def analyse(function: Function) -> Flow:
    """Cut a function into blocks, and find which registers live across them and which are the same in all lanes."""
    blocks = _ordered(_Builder(function).build())
    function.registers[CARRY.name] = 1
    function.registers[BARRIER_VALUE.name] = 1
    live_in, live_out = _liveness(blocks)
    return Flow(blocks, live_in, live_out, _uniform(function, blocks), _computed(function, blocks))


class _Builder:
    """Cuts a function's instructions into blocks.  A guarded instruction becomes a branch around it."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.blocks: list[Block] = []
        self.labels: dict[str, int] = {}
        self.waiting: list[tuple[End, list[str]]] = []
        self.tables: dict[str, list[str]] = {}

    def build(self) -> list[Block]:
        current = self._new()
        for item in self.function.body:
            if isinstance(item, Label):
                following = self._new()
                current.end = current.end or End("jump", [following.number])
                current = following
                self.labels[item.name] = current.number
            elif item.opcode == "branchtargets":
                self.tables[item.modifiers[0]] = [part.name for part in item.operands if isinstance(part, Symbol)]
            else:
                current = self._add(current, item)
        current.end = current.end or End("leave")
        for end, names in self.waiting:
            if end.kind == "switch":
                names = self._table(names[0], end)
            end.targets = [self.labels[name] for name in names] + end.targets
        return self.blocks

    def _table(self, name: str, end: End) -> list[str]:
        """Return the labels of a `.branchtargets` list; they are those of the function's outermost scope."""
        names = self.tables.get(name, [])
        if not names or any(label not in self.labels for label in names):
            raise PtxError(f"the table {name} of an indirect branch is not declared")
        return names

    def _add(self, block: Block, instruction: Instruction) -> Block:
        try:
            return self._append(block, instruction)
        except (ValueError, TypeError, LookupError) as error:
            raise PtxError(f"'{instruction.text}' is malformed", instruction.line) from error

    def _new(self) -> Block:
        self.blocks.append(Block(len(self.blocks)))
        return self.blocks[-1]

    def _append(self, block: Block, instruction: Instruction) -> Block:
        """Add one instruction; return the block in which the next one goes."""
        if block.end:
            block = self._new()
        if instruction.guard and instruction.opcode == "bra":
            return self._branch(block, instruction)
        if instruction.guard:
            guarded = self._new()
            block.end = End("branch", [guarded.number], instruction.guard)
            last = self._append(guarded, replace(instruction, guard=None))
            following = self._new()
            block.end.targets.append(following.number)
            last.end = last.end or End("jump", [following.number])
            return following
        handler = getattr(self, f"_on_{instruction.opcode}", None)
        if handler:
            following = handler(block, instruction)
            assert isinstance(following, Block)
            return following
        if instruction.opcode in _SYNCHRONIZING and "sync" in instruction.modifiers:
            block = self._meet(block, instruction.operands[-1], instruction)
        elif (
            instruction.opcode not in OPCODES
            or instruction.opcode == "bar_result"
            or instruction.opcode in _SYNCHRONIZING
        ):
            raise unsupported(instruction)
        block.body.append(instruction)
        return block

    def _ended(self, block: Block, end: End) -> Block:
        block.end = end
        return block

    def _branch(self, block: Block, instruction: Instruction) -> Block:
        following = self._new()
        block.end = End("branch", [following.number], instruction.guard)
        self.waiting.append((block.end, [_name(instruction.operands[0], instruction)]))
        return following

    def _on_bra(self, block: Block, instruction: Instruction) -> Block:
        block.end = End("jump")
        self.waiting.append((block.end, [_name(instruction.operands[0], instruction)]))
        return block

    def _on_brx(self, block: Block, instruction: Instruction) -> Block:
        block.end = End("switch", [], instruction.operands[0])
        self.waiting.append((block.end, [_name(instruction.operands[1], instruction)]))
        return block

    def _on_ret(self, block: Block, instruction: Instruction) -> Block:
        return self._ended(block, End("leave"))

    def _on_exit(self, block: Block, instruction: Instruction) -> Block:
        return self._ended(block, End("exit"))

    def _on_trap(self, block: Block, instruction: Instruction) -> Block:
        return self._ended(block, End("trap", instruction=instruction))

    # Without a debugger a breakpoint is a trap.
    _on_brkpt = _on_trap

    def _on_call(self, block: Block, instruction: Instruction) -> Block:
        following = self._new()
        block.end = End("call", [following.number], instruction=instruction)
        return following

    def _on_bar(self, block: Block, instruction: Instruction) -> Block:
        """`bar.sync`, `bar.arrive`, `bar.red`, `bar.warp.sync`: the block ends, and its lanes wait for the others."""
        modifiers, operands = instruction.modifiers, instruction.operands
        if "warp" in modifiers:
            return self._meet(block, operands[0], instruction)
        if "red" in modifiers:
            return self._reduction(block, instruction)
        if "cluster" in modifiers or not {"sync", "arrive"} & set(modifiers) or not 1 <= len(operands) <= 2:
            raise unsupported(instruction)
        following = self._new()
        block.end = End("barrier", [following.number], instruction=instruction)
        return following

    _on_barrier = _on_bar

    def _reduction(self, block: Block, instruction: Instruction) -> Block:
        operands = instruction.operands
        if not 3 <= len(operands) <= 4:
            raise unsupported(instruction)
        target, *barrier, value = operands
        block.body.append(replace(instruction, opcode="mov", modifiers=("pred",), operands=[BARRIER_VALUE, value]))
        following = self._new()
        block.end = End("barrier", [following.number], instruction=replace(instruction, operands=barrier))
        following.body.append(replace(instruction, opcode="bar_result", operands=[target, BARRIER_VALUE, barrier[0]]))
        return following

    def _meet(self, block: Block, mask: Operand, instruction: Instruction) -> Block:
        following = self._new()
        block.end = End("warp", [following.number], mask, instruction)
        return following


def _name(operand: Operand, instruction: Instruction) -> str:
    if not isinstance(operand, Symbol):
        raise PtxError(f"'{instruction.text}' has no target", instruction.line)
    return operand.name


def _ordered(blocks: list[Block]) -> list[Block]:
    """Return the reachable blocks in reverse postorder, with new numbers.

    Of two successors the one that is later in the text is visited first. It gets the higher number, so a loop's body
    comes before the code after the loop.
    """
    postorder: list[int] = []
    seen = {0}
    stack: list[tuple[int, Iterator[int]]] = [(0, _successors(blocks[0]))]
    while stack:
        number, successors = stack[-1]
        following = next((target for target in successors if target not in seen), None)
        if following is None:
            postorder.append(number)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, _successors(blocks[following])))
    order = {number: at for at, number in enumerate(reversed(postorder))}
    chosen = [blocks[number] for number in reversed(postorder)]
    for block in chosen:
        block.number = order[block.number]
        assert block.end
        block.end.targets = [order[target] for target in block.end.targets]
    return chosen


def _successors(block: Block) -> Iterator[int]:
    assert block.end
    return iter(sorted(set(block.end.targets), reverse=True))


def reads(instruction: Instruction) -> tuple[Register, ...]:
    """Return the registers whose values the instruction needs."""
    if instruction.reading is None:
        instruction.reading = tuple(_reads(instruction))
    return instruction.reading


def writes(instruction: Instruction) -> tuple[Register, ...]:
    """Return the registers that the instruction gives a value."""
    if instruction.writing is None:
        instruction.writing = tuple(_writes(instruction))
    return instruction.writing


def _reads(instruction: Instruction) -> Iterator[Register]:
    operands = instruction.operands
    first = 1 if OPCODES[instruction.opcode].writes else 0
    for operand in operands[first:]:
        yield from registers(operand)
    if first and operands and isinstance(operands[0], Address):
        yield from registers(operands[0])
    if instruction.opcode in ("addc", "subc", "madc"):
        yield CARRY


def _writes(instruction: Instruction) -> Iterator[Register]:
    operands = instruction.operands
    if OPCODES[instruction.opcode].writes and operands and not isinstance(operands[0], Address):
        yield from registers(operands[0])
    if "cc" in instruction.modifiers:
        yield CARRY


def registers(operand: Operand | None) -> Iterator[Register]:
    """Return the registers of an operand."""
    if isinstance(operand, Register):
        yield operand
    elif isinstance(operand, Address):
        yield from registers(operand.base)
    elif isinstance(operand, Group):
        for item in operand.items:
            yield from registers(item)
    elif isinstance(operand, Pair):
        yield from registers(operand.first)
        yield from registers(operand.second)


def end_reads(end: End) -> Iterator[Register]:
    """Return the registers that a block's end reads."""
    yield from registers(end.operand)
    if end.kind in ("call", "barrier") and end.instruction:
        for operand in end.instruction.operands:
            if isinstance(operand, Register):
                yield operand


def _liveness(blocks: list[Block]) -> tuple[list[set[str]], list[set[str]]]:
    """Return for each block the registers that are needed at its beginning, and at its end."""
    needs: list[set[str]] = []
    gives: list[set[str]] = []
    for block in blocks:
        need: set[str] = set()
        give: set[str] = set()
        for instruction in block.body:
            need.update(register.name for register in reads(instruction) if register.name not in give)
            give.update(register.name for register in writes(instruction))
        assert block.end
        need.update(register.name for register in end_reads(block.end) if register.name not in give)
        needs.append(need)
        gives.append(give)
    live_in = [set(need) for need in needs]
    live_out: list[set[str]] = [set() for _ in blocks]
    changed = True
    while changed:
        changed = False
        for at in range(len(blocks) - 1, -1, -1):
            end = blocks[at].end
            assert end
            out = set().union(*(live_in[target] for target in end.targets))
            if out != live_out[at]:
                live_out[at] = out
                live_in[at] = needs[at] | (out - gives[at])
                changed = True
    return live_in, live_out


def _uniform(function: Function, blocks: list[Block]) -> set[str]:
    """Return registers that hold one value for all lanes of a launch, in every block and at every time.

    Such a register is written by one instruction, which depends only on other such values.
    """
    writers: dict[str, int] = {}
    candidates: list[Instruction] = []
    for block in blocks:
        for instruction in block.body:
            for register in writes(instruction):
                writers[register.name] = writers.get(register.name, 0) + 1
            if OPCODES[instruction.opcode].pure or _reads_parameter(function, instruction):
                candidates.append(instruction)
    possible = [
        instruction
        for instruction in candidates
        if writes(instruction) and all(writers[register.name] == 1 for register in writes(instruction))
    ]
    found: set[str] = set()
    while True:
        waiting: list[Instruction] = []
        for instruction in possible:
            if _all_uniform(function, instruction, found):
                found.update(register.name for register in writes(instruction))
            else:
                waiting.append(instruction)
        if len(waiting) == len(possible):
            return found
        possible = waiting


def _computed(function: Function, blocks: list[Block]) -> dict[str, str]:
    """Return registers that hold only results of float arithmetic, numbers, and copies of such registers."""
    sources: dict[str, set[str]] = {}
    """For each register, the source of its values: a type of float, another register, or "" for anything else."""
    for block in blocks:
        for instruction in block.body:
            for register in writes(instruction):
                sources.setdefault(register.name, set()).update(_float_sources(function, register, instruction))
    good = {name for name in sources if "" not in sources[name]}
    while lost := {name for name in good if not sources[name] <= good | _NAN_BITS.keys()}:
        good -= lost
    found: dict[str, str] = {}
    while fresh := {
        name: kind
        for name in good - found.keys()
        for source in sources[name]
        if (kind := found.get(source, source)) in _NAN_BITS
    }:
        found |= fresh
    return found


_NAN_BITS = {"f16": 0x7C00, "f32": 0x7F800000}
"""The bits above which a positive number is NaN."""


def _float_sources(function: Function, target: Register, instruction: Instruction) -> set[str]:
    """Return the source of a register's value, in the form of `_computed`; nothing for a number."""
    if OPCODES[instruction.opcode].computes:
        kinds = instruction.modifiers[-2:] if instruction.opcode == "cvt" else instruction.modifiers[-1:]
        # A NaN that was an f64 or a bf16 keeps its own bits.
        return {kinds[0] if kinds and kinds[0] in _NAN_BITS and kinds[-1] not in ("f64", "bf16") else ""}
    value = instruction.operands[-1] if instruction.opcode == "mov" else None
    width = function.registers.get(target.name, 0)
    if isinstance(value, Register) and function.registers.get(value.name) == width:
        return {value.name}
    infinity = _NAN_BITS.get(f"f{width}", 0)
    is_number = isinstance(value, Immediate) and value.bits & ((1 << (width - 1)) - 1) <= infinity
    return set() if is_number else {""}


def _reads_parameter(function: Function, instruction: Instruction) -> bool:
    if not function.entry or instruction.opcode != "ld" or "param" not in instruction.modifiers:
        return False
    address = instruction.operands[-1] if instruction.operands else None
    return isinstance(address, Address) and isinstance(address.base, Symbol) and _is_parameter(function, address.base)


def _is_parameter(function: Function, symbol: Symbol) -> bool:
    return any(parameter.name == symbol.name for parameter in function.parameters)


def _all_uniform(function: Function, instruction: Instruction, found: set[str]) -> bool:
    if instruction.opcode == "cvta" and "shared" in instruction.modifiers:
        return False
    if any(register.name not in found for register in reads(instruction)):
        return False
    return all(_uniform_operand(function, operand) for operand in instruction.operands[1:])


def _uniform_operand(function: Function, operand: Operand) -> bool:
    if isinstance(operand, Special):
        return operand.name in UNIFORM_SPECIALS
    if isinstance(operand, Group):
        return all(_uniform_operand(function, item) for item in operand.items)
    name = operand if isinstance(operand, Symbol) else operand.base if isinstance(operand, Address) else None
    if isinstance(name, Symbol):
        variable = function.variables.get(name.name)
        in_frame = variable is not None and variable.space in ("local", "param")
        return not in_frame or (function.entry and _is_parameter(function, name))
    return True
