"""PTX functions as Python: each basic block becomes a function of straight-line numpy over the lanes that are in it.

A generated function is called as `block(A, L)`: `A` is the activation (see `activation`), `L` the indices of the active
lanes, or None when they are all active. Registers that a block needs are gathered once at its top; those that later
blocks need are scattered once at its end. A value that is the same for all lanes stays a numpy scalar. The result is
the number of the next block, or None when the activation has taken the lanes.

This file handles operands, registers and frames. The instructions are in `instructions`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import numeric
from .emit import Place, unsupported
from .flow import BUILTINS, UNIFORM_SPECIALS, Block, End, Flow, analyse, end_reads, reads, writes
from .instructions import OPCODES
from .text import (
    WIDTHS,
    Address,
    Function,
    Group,
    Immediate,
    Instruction,
    LoadError,
    Operand,
    PtxError,
    PtxModule,
    Register,
    Special,
    Symbol,
    UnsupportedPtx,
    Variable,
)  # fmt: skip

TYPES: dict[str, Any] = {
    **{f"u{bits}": getattr(np, f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"s{bits}": getattr(np, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"f{bits}": getattr(np, f"float{bits}") for bits in (16, 32, 64)},
    "pred": np.bool_,
}
DTYPES = {f"d_{name}": np.dtype(kind) for name, kind in TYPES.items()}

Namespace = dict[str, Any]


def namespace() -> Namespace:
    """The names that generated code may use: numpy, the types, and every helper of `numeric`."""
    helpers = {name: value for name, value in vars(numeric).items() if not name.startswith("_") and callable(value)}
    return (
        helpers | TYPES | DTYPES | {"np": np, "ROUNDINGS": numeric.ROUNDINGS, "one": lambda value: value.dtype.type(1)}
    )


@dataclass(slots=True)
class Frame:
    """The places of a function's `.local` and `.param` variables in the memory of each lane."""

    offsets: dict[str, int] = field(default_factory=dict)
    size: int = 0
    exposed: bool = False
    """True if the function takes an address in it, so it must be accessible memory."""

    def add(self, variable: Variable) -> None:
        """Give a variable its place, with the alignment that it asks for."""
        align = max(variable.align, 1)
        self.offsets[variable.name] = -(-self.size // align) * align
        self.size = self.offsets[variable.name] + variable.size


@dataclass(slots=True)
class Symbols:
    """The meaning of names from outside of a function."""

    addresses: dict[str, int]
    shared: dict[str, Variable]
    functions: dict[str, Function]


@dataclass(slots=True)
class Code:
    """A function, translated: the Python text of its blocks, and the data for its activations."""

    function: Function
    flow: Flow
    frame: Frame
    text: str = ""
    constants: Namespace = field(default_factory=dict)
    varying: dict[str, int] = field(default_factory=dict)
    """Registers that cross blocks: their place in the activation, by name."""
    uniform: dict[str, int] = field(default_factory=dict)
    dtypes: list[Any] = field(default_factory=list)
    shared: set[str] = field(default_factory=set)
    """The `.shared` variables that it names itself."""
    callees: set[str] = field(default_factory=set)
    indirect: bool = False
    parameters: dict[str, int] = field(default_factory=dict)
    """Offset of each parameter of a kernel in the launch's buffer."""
    parameter_bytes: int = 0
    blocks: list[Any] = field(default_factory=list)

    def ready(self, helpers: Namespace) -> list[Any]:
        """The blocks as Python functions; the text is compiled at their first use."""
        if not self.blocks:
            names = helpers | self.constants
            exec(compile(self.text, f"<ptx {self.function.name}>", "exec"), names)
            self.blocks = [names[f"block_{number}"] for number in range(len(self.flow.blocks))]
        return self.blocks


def translate(function: Function, module: PtxModule, symbols: Symbols, emitter: Writer) -> Code:
    """Return the code of one function; a `LoadError` names the instruction that cannot be run."""
    try:
        return Translator(function, module, symbols, emitter).run()
    except LoadError as error:
        raise error.inside(function.entry, function.name) from None


class Translator:
    """Translates one function: places its variables, then writes its blocks one after the other."""

    def __init__(self, function: Function, module: PtxModule, symbols: Symbols, emitter: Writer) -> None:
        self.emitter = emitter
        self.function = function
        self.module = module
        self.symbols = symbols
        self.code: Code = Code(function, analyse(function), Frame())

    def run(self) -> Code:
        """Return the translated function."""
        code, flow = self.code, self.code.flow
        self._place_variables()
        crossing = sorted(set().union(*flow.live_in, *flow.live_out))
        for name in crossing:
            if name in flow.uniform:
                code.uniform[name] = len(code.uniform)
            else:
                code.varying[name] = len(code.varying)
                code.dtypes.append(storage(self.function.registers[name]))
        code.text = "\n".join(self.emitter(self, block).run() for block in flow.blocks)
        return code

    def _place_variables(self) -> None:
        """Place the parameters of a kernel in the launch's buffer, and all other `.local` and `.param` variables in the
        frame."""
        code = self.code
        if self.function.entry:
            buffer = Frame()
            for parameter in self.function.parameters:
                buffer.add(parameter)
            code.parameters, code.parameter_bytes = buffer.offsets, buffer.size
        for variable in self.function.variables.values():
            if variable.space in ("local", "param") and variable.name not in code.parameters:
                code.frame.add(variable)
        for variable in self.module.variables.values():
            if variable.space == "local":
                raise UnsupportedPtx(f"the module's .local variable {variable.name} is not simulated", variable.line)

    def constant(self, bits: int, kind: str) -> str:
        """Return the name of a typed literal in the generated code's namespace."""
        width = WIDTHS[kind]
        name = f"k_{kind}_{bits & ((1 << width) - 1):x}"
        if name not in self.code.constants:
            raw = TYPES[f"u{width}"](bits & ((1 << width) - 1))
            self.code.constants[name] = raw.view(TYPES[kind])
        return name


_TEMPORARY = re.compile(r"\bt\d+\b")


def _forgetting(body: list[str], rest: list[str]) -> Iterator[str]:
    """Return the lines of a body, with each temporary deleted after its last use.

    The next array then takes the same memory, which the processor's cache still holds.
    """
    used = [set(_TEMPORARY.findall(line)) for line in body]
    still = set(_TEMPORARY.findall("\n".join(rest)))
    dead = []
    for names in reversed(used):
        dead.append(sorted(names - still))
        still |= names
    for line, names in zip(body, reversed(dead), strict=True):
        yield line
        if names:
            yield f"del {', '.join(names)}"


def shared_key(function: Function, name: str) -> str:
    """Return the name of a `.shared` variable in a kernel's layout: two functions may use the same name."""
    return f"{function.name}:{name}" if name in function.variables else name


def storage(width: int) -> Any:
    """Return the numpy type in which a register of that width is kept."""
    return np.bool_ if width == 1 else TYPES[f"u{width}"]


def _as_unsigned(kind: str) -> str:
    return kind if kind[0] not in "b" or kind == "bf16" else f"u{kind[1:]}"


class BlockEmitter:
    """Writes one block's function.  Implements what `emit.Emitter` asks for."""

    def __init__(self, owner: Translator, block: Block) -> None:
        self.owner = owner
        self.code: Code = owner.code
        self.function: Function = owner.function
        self.block = block
        self.body: list[str] = []
        self.gathered: dict[str, str] = {}
        self.common: list[str] = []
        self.values: dict[str, dict[str, str]] = {}
        """For each register with a value here, the variables that hold it, by type."""
        self.scalars: set[str] = set()
        self.origin: dict[str, str] = {}
        """The array behind a variable that is only another view of it."""
        self.foreign: set[str] = set()
        """Arrays with another owner, which must be copied before a register owns them."""
        self.changed: set[str] = set()
        self.once: dict[str, str] = {}
        self.touched_vector: bool = False
        self.counter: int = 0
        self.instruction: Instruction | None = None
        self.wanted_names: set[str] | None = None

    # What handlers use

    def use(self, operand: Operand, kind: str) -> str:
        """Return a variable or expression that holds the operand as `kind`."""
        if kind == "bf16":
            return f"bf16_to_f32({self.use(operand, 'u16')})"
        kind = _as_unsigned(kind)
        if isinstance(operand, Register):
            name = self._bits(operand, kind) if kind[0] in "us" else self._register(operand, kind)
            self.touched_vector |= name.lstrip("~") not in self.scalars
            return name
        if isinstance(operand, Immediate):
            return self._literal(operand, kind)
        if isinstance(operand, Special):
            return self._special(operand.name, kind)
        if isinstance(operand, Symbol):
            return self._symbol(operand, kind)
        if isinstance(operand, Address) and isinstance(operand.base, Symbol):
            return f"({self._symbol(operand.base, 'u64')} + {self.constant(operand.offset, 'u64')})"
        raise self._error(f"operand {operand} cannot be read")

    def define(self, operand: Operand, kind: str, expression: str) -> None:
        """Give the register the value of `expression`, which is of type `kind`."""
        if operand == Symbol("_"):
            self.statement(expression)
            return
        if not isinstance(operand, Register):
            raise self._error("the result does not go to a register")
        width = self.function.registers[operand.name]
        if kind == "bf16":
            kind, expression = "u16", f"f32_to_bf16({expression})"
        kind = _as_unsigned(kind)
        if WIDTHS[kind] > width:
            raise self._error(f"register {operand.name} is too narrow")
        if WIDTHS[kind] < width:
            if kind[0] == "f":
                expression, kind = f"({expression}).view(u{WIDTHS[kind]})", f"u{WIDTHS[kind]}"
            kind = f"{kind[0]}{width}"
            expression = f"({expression}).astype({kind})"
        name = expression if expression in self.origin else self.temp(expression)
        if not self.touched_vector:
            self.scalars.add(name)
        self._assign(operand.name, {kind: name})

    def alias(self, operand: Operand, kind: str, source: Operand) -> None:
        """A plain copy: the register takes over the source's variables."""
        plain = isinstance(source, Register) and isinstance(operand, Register) and not source.negated
        if plain and self.width(source) == self.width(operand):
            assert isinstance(source, Register)
            assert isinstance(operand, Register)
            if source.name in self.code.flow.computed and operand.name not in self.code.flow.computed:
                self.define(operand, f"u{self.width(source)}", self.use(source, f"u{self.width(source)}"))
                return
            self._load(source.name)
            self._assign(operand.name, dict(self.values[source.name]))
        else:
            self.define(operand, kind, self.use(source, kind))

    def temp(self, expression: str) -> str:
        """Keep the value of an expression; return the name of its variable."""
        self.counter += 1
        name = f"t{self.counter}"
        self.body.append(f"{name} = {expression}")
        self.origin[name] = name
        return name

    def statement(self, text: str) -> None:
        """Add a line to the code of the block."""
        self.body.append(text)

    def constant(self, bits: int, kind: str) -> str:
        """Return the name of a typed literal, given by its bits."""
        return self.owner.constant(bits, kind)

    def width(self, operand: Operand) -> int:
        """Return the width of an operand in bits; 64 for an operand that is not a register."""
        return self.function.registers[operand.name] if isinstance(operand, Register) else 64

    def wanted(self, operand: Operand) -> bool:
        """Tell whether this result is read later."""
        assert self.wanted_names is not None, "only instructions that touch memory ask"
        return isinstance(operand, Register) and operand.name in self.wanted_names

    def vector(self) -> None:
        """Note that the result differs from lane to lane, whatever the operands are."""
        self.touched_vector = True

    def copy(self, function: str, to: str, source: str, *sizes: str) -> None:
        """Copy bytes in each lane, by a function of `copies`."""
        self.statement(f"{function}(M, {', '.join((to, source, *sizes))})")

    def place(self, address: Address, instruction: Instruction) -> Place:
        """Return the place of the instruction's access to memory."""
        spaces = [part for part in instruction.modifiers if part in ("global", "shared", "local", "const", "param")]
        base = address.base
        if spaces == ["shared"]:
            return self._shared_place(address)
        if isinstance(base, Symbol) and base.name in self.code.parameters:
            at = self.code.parameters[base.name] + address.offset
            return Place(f"A.parameter({at} + {{offset}}, d_{{kind}})", self._read_only(instruction), "", True)
        if isinstance(base, Symbol) and base.name in self.code.frame.offsets:
            return self._frame_place(base, address.offset)
        return self._plain_place(address)

    # Memory

    def _read_only(self, instruction: Instruction) -> str:
        if instruction.opcode not in ("ld", "ldu"):
            raise self._error("the parameters of a kernel cannot be written")
        return ""

    def _frame_place(self, base: Symbol, offset: int) -> Place:
        at = self.code.frame.offsets[base.name] + offset
        column = f"{at} + {{offset}}, d_{{kind}}, L"
        addresses = f"Access(M, {self._symbol(base, 'u64')} + {self.constant(offset, 'u64')})"
        return Place(
            f"A.frame_load({column})",
            f"A.frame_store({column}, {{value}})",
            f"{addresses}.target(0, d_{{kind}})",
            False,
        )

    def _plain_place(self, address: Address) -> Place:
        base = address.base
        if isinstance(base, Immediate):
            base = Immediate(base.bits + address.offset)
        value = self.use(base, "u64")
        offset = 0 if isinstance(base, Immediate) else address.offset
        if isinstance(base, Register) and value not in self.scalars:
            access = self._once(f"Access(M, {value})")
            self.touched_vector = True
            common = f"({offset} + {{offset}}, "
            return Place(
                f"{access}.load{common}d_{{kind}}, {{align}})",
                f"{access}.store{common}{{value}}, d_{{kind}}, {{align}})",
                f"{access}.target({offset}, d_{{kind}})",
                False,
            )
        number = f"int({value}) + {offset}"
        return Place(
            f"M.load({number} + {{offset}}, d_{{kind}}, {{align}})",
            f"M.store({number} + {{offset}}, {{value}}, d_{{kind}}, {{align}})",
            f"Access(M, np.full({self._count()}, {number}, u64)).target(0, d_{{kind}})",
            True,
        )

    def _shared_place(self, address: Address) -> Place:
        """`.shared` addresses are offsets in the block's own memory, and wrap in the register's width."""
        base = address.base
        width = self.width(base) if isinstance(base, Register) else 32
        value = self.use(base, f"u{width}")
        offset = address.offset
        if offset < 0:
            value, offset = f"{value} + {self.constant(offset, f'u{width}')}", 0
        access = self._once(f"A.shared_access({value}, L)")
        self.touched_vector = True
        return Place(
            f"{access}.load({offset} + {{offset}}, d_{{kind}}, {{align}})",
            f"{access}.store({offset} + {{offset}}, {{value}}, d_{{kind}}, {{align}})",
            f"{access}.target({offset}, d_{{kind}})",
            False,
        )

    def _once(self, expression: str) -> str:
        """Variables are written once, so an expression over them needs no second evaluation in a block."""
        if expression not in self.once:
            self.once[expression] = self.temp(expression)
        return self.once[expression]

    def _count(self) -> str:
        return self._once("A.count if L is None else L.size")

    # Operands

    def _register(self, register: Register, kind: str) -> str:
        self._load(register.name)
        held = self.values[register.name]
        width = self.function.registers[register.name]
        if kind == "pred" or width == 1:
            if kind != "pred" or width != 1:
                raise self._error(f"{register.name} is used with a wrong type")
            return f"~{held['pred']}" if register.negated else held["pred"]
        if kind not in held:
            if WIDTHS[kind] == width:
                held[kind] = self._view(next(iter(held.values())), kind)
            elif WIDTHS[kind] < width:
                part = f"u{WIDTHS[kind]}"
                raw = self._register(register, f"u{width}")
                held[part] = held.get(part) or self._derived(f"{raw}.astype({part})", raw)
                if part != kind:
                    held[kind] = self._view(held[part], kind)
            else:
                raise self._error(f"register {register.name} is too narrow")
        return held[kind]

    def _bits(self, register: Register, kind: str) -> str:
        """A register's bits. A result of float arithmetic gets the hardware's NaN here, and not before."""
        computed = self.code.flow.computed.get(register.name)
        if computed is None:
            return self._register(register, kind)
        number = self._register(register, computed)
        held, key = self.values[register.name], f"bits as {kind}"
        if key not in held:
            clean = self._derived(f"one_nan({number})", number)
            self.origin[clean] = self.origin[number]
            if WIDTHS[kind] == WIDTHS[computed]:
                held[key] = self._view(clean, kind)
            else:
                held[key] = self._derived(f"{clean}.view(u{WIDTHS[computed]}).astype({kind})", clean)
        return held[key]

    def _view(self, name: str, kind: str) -> str:
        view = self._derived(f"{name}.view({kind})", name)
        self.origin[view] = self.origin[name]
        return view

    def _derived(self, expression: str, name: str) -> str:
        result = self.temp(expression)
        if name in self.scalars:
            self.scalars.add(result)
        return result

    def _load(self, name: str) -> None:
        """Make sure that the register has a variable; a value from another block is gathered at the top."""
        if name in self.values:
            return
        width = self.function.registers[name]
        kind = "pred" if width == 1 else f"u{width}"
        if name in self.code.uniform:
            variable = f"u{self.code.uniform[name]}_"
            self.common.append(f"{variable} = U[{self.code.uniform[name]}]")
            self.scalars.add(variable)
        elif name in self.code.varying:
            variable = f"r{self.code.varying[name]}"
            self.gathered[name] = variable
            self.foreign.add(variable)
        else:
            variable = self.constant(0, kind) if kind != "pred" else "np.False_"
            self.scalars.add(variable)
        self.origin[variable] = variable
        self.values[name] = {kind: variable}

    def _assign(self, name: str, held: dict[str, str]) -> None:
        self.values[name] = held
        self.changed.add(name)

    def _literal(self, operand: Immediate, kind: str) -> str:
        if kind == "pred":
            return "np.True_" if operand.bits else "np.False_"
        if kind[0] != "f":
            return self.constant(operand.bits, kind)
        width = WIDTHS[kind]
        if operand.kind == kind:
            return self.constant(operand.bits, kind)
        if operand.kind == "int" and width == 16:
            return self.constant(operand.bits, kind)
        number = TYPES[kind](operand.number)
        return self.constant(int(number.view(TYPES[f"u{width}"])), kind)

    def _special(self, name: str, kind: str) -> str:
        if name in UNIFORM_SPECIALS:
            return f"{kind}(A.shape[{name!r}])"
        native = "u64" if name in ("clock64", "globaltimer") else "u32"
        if name.startswith(("clock", "globaltimer")):
            value = self.temp(f"A.clock({name!r})")
            self.scalars.add(value)
        else:
            self.touched_vector = True
            value = self._once(f"A.special({name!r}, L)")
            self.foreign.add(value)
        if kind == native:
            return value
        if WIDTHS[kind] == WIDTHS[native]:
            return self._view(value, kind)
        return self._derived(f"{value}.astype({kind})", value)

    def _symbol(self, symbol: Symbol, kind: str) -> str:
        """Return a symbol's address."""
        name = symbol.name
        if name in self.code.parameters:
            return f"u64(A.parameter_base + {self.code.parameters[name]})"
        if name in self.code.frame.offsets:
            self.code.frame.exposed = True
            self.touched_vector = True
            return self._once(f"A.frame_address({self.code.frame.offsets[name]}, L)")
        local = self.function.variables.get(name)
        if (local and local.space == "shared") or name in self.owner.symbols.shared:
            key = shared_key(self.function, name)
            self.code.shared.add(key)
            return f"{kind}(A.shared[{key!r}])"
        if name in self.owner.symbols.addresses:
            if name in self.owner.symbols.functions:
                self.code.callees.add(name)
            return self.constant(self.owner.symbols.addresses[name], "u64")
        raise self._error(f"{name} is not declared")

    def _error(self, message: str) -> PtxError:
        instruction = self.instruction
        text = f"{message}: '{instruction.text}'" if instruction else message
        return PtxError(text, instruction.line if instruction else 0)

    # The function

    def run(self) -> str:
        """Return the Python text of the block."""
        needed = self._needed()
        for instruction, wanted in zip(self.block.body, needed, strict=True):
            self.instruction, self.wanted_names = instruction, wanted
            self.touched_vector = False
            self._handle(instruction)
        end = self.block.end
        assert end
        self.instruction = end.instruction
        finish = getattr(self, f"_end_{end.kind}")(end)
        rest = [*self._repetition(end), *self._stores(), *finish]
        lines = [f"def block_{self.block.number}(A, L):", " R = A.R; U = A.U; M = A.memory"]
        lines += [f" {line}" for line in self.common]
        if self.gathered:
            whole = [f"{variable} = R[{self.code.varying[name]}]" for name, variable in self.gathered.items()]
            part = [f"{variable} = A.gather({self.code.varying[name]}, L)" for name, variable in self.gathered.items()]
            lines += [f" if L is None: {'; '.join(whole)}", f" else: {'; '.join(part)}"]
        if self.block.number in end.targets:
            lines += [" alive = np.True_", " while True:"]
        indent = "  " if self.block.number in end.targets else " "
        return "\n".join([*lines, *(f"{indent}{line}" for line in (*_forgetting(self.body, rest), *rest))]) + "\n"

    def _handle(self, instruction: Instruction) -> None:
        try:
            OPCODES[instruction.opcode].handler(self, instruction)
        except (ValueError, TypeError, LookupError, StopIteration) as error:
            # Handlers assume the form of an instruction; an instruction of another form is not PTX.
            raise PtxError(f"'{instruction.text}' is malformed", instruction.line) from error

    def _needed(self) -> list[set[str] | None]:
        """Return for each instruction that does more than compute the registers that are read after it."""
        live = set(self.code.flow.live_out[self.block.number])
        assert self.block.end
        live.update(register.name for register in end_reads(self.block.end))
        result: list[set[str] | None] = []
        for instruction in reversed(self.block.body):
            result.append(None if OPCODES[instruction.opcode].pure else set(live))
            live.difference_update([register.name for register in writes(instruction)])
            live.update([register.name for register in reads(instruction)])
        return result[::-1]

    def _repetition(self, end: End) -> list[str]:
        """In a block that branches to itself, the lanes that stay keep their registers in variables.

        Lanes that leave put theirs back, and wait at their next block. If the block uses only registers, the others go
        on as if all were still there, until enough have left.
        """
        number = self.block.number
        if end.kind != "branch" or end.operand is None or end.targets.count(number) != 1:
            return []
        predicate, (taken, other) = self.use(end.operand, "pred"), end.targets
        test = predicate.lstrip("~")
        if test in self.scalars:
            return []
        if taken != number:
            predicate, other = f"~{predicate}", taken
        changed = self.changed & self.code.varying.keys()
        stored = sorted(changed & self.code.flow.live_out[number])
        carried = [name for name in self.gathered if name in changed]
        pure = all(OPCODES[instruction.opcode].pure for instruction in self.block.body)
        lines = [f"P = {predicate} & alive", f"if A.repeats(P, {number}):"]
        lines.append(f" gone, G, S = A.part(P, alive, L, {other}, {pure})")
        if stored:
            # All values are taken first: one of them may be the array of a register that is changed before.
            values = [f"{self._vector(name)}[G]" for name in stored]
            puts = [f"A.put({self.code.varying[name]}, gone, V[{at}])" for at, name in enumerate(stored)]
            lines.append(f" if G.size: V = {', '.join(values)},; {'; '.join(puts)}")
        if carried:
            variables = ", ".join(self.gathered[name] for name in carried)
            lines.append(f" {variables} = {', '.join(map(self._vector, carried))}")
        narrowed = "".join(f"; {variable} = {variable}.take(S, mode='clip')" for variable in self.gathered.values())
        lines += [" if S is None: alive = P", f" else: L = A.among(L, S); alive = np.True_{narrowed}", " continue"]
        if pure:
            lines += ["if alive is not np.True_:", " S = np.flatnonzero(alive); L = A.among(L, S)"]
            left = {test, *map(self._vector, stored)}
            lines += [f" {variable} = {variable}[S]" for variable in sorted(left) if variable.isidentifier()]
        return lines

    def _vector(self, name: str) -> str:
        """Return a register's value in each lane of a group of which some stay in the block: one for each item of P."""
        width = self.function.registers[name]
        kind = "pred" if width == 1 else f"u{width}"
        variable = self._register(Register(name), kind)
        return f"np.full(P.size, {variable}, {kind})" if variable in self.scalars else variable

    def _stores(self) -> list[str]:
        """Put back the registers that later blocks read. A register never shares its array: the next block may write
        parts of it."""
        whole, part, common = [], [], []
        copied = []
        """A gathered array may be visible through a register that is put back: it is copied before any of them is."""
        owned: set[str] = set()
        live = self.code.flow.live_out[self.block.number]
        for name in sorted(self.changed & live):
            width = self.function.registers[name]
            variable = self._register(Register(name), "pred" if width == 1 else f"u{width}")
            if name in self.code.uniform:
                common.append(f"U[{self.code.uniform[name]}] = {variable}")
                continue
            at = self.code.varying[name]
            root = self.origin.get(variable, variable)
            if root in self.foreign and variable not in self.scalars:
                copied.append(f"c{at} = {variable}.copy()")
                part.append(f"A.put({at}, L, c{at})")
            else:
                part.append(f"A.put({at}, L, {variable})")
            if variable in self.scalars:
                dtype = "pred" if width == 1 else f"u{width}"
                whole.append(f"R[{at}] = A.same({variable}, {dtype})")
            elif root in owned or root in self.foreign:
                whole.append(f"R[{at}] = {variable}.copy()")
            else:
                owned.add(root)
                whole.append(f"R[{at}] = {variable}")
        if part:
            part = [*copied, *part]
            common += ["if L is None:", *(f" {line}" for line in whole), "else:", *(f" {line}" for line in part)]
        return common

    # Ends of blocks

    def _end_jump(self, end: End) -> list[str]:
        return [f"return {end.targets[0]}"]

    def _end_branch(self, end: End) -> list[str]:
        assert end.operand
        predicate = self.use(end.operand, "pred")
        taken, other = end.targets
        if predicate.lstrip("~") in self.scalars:
            test = f"not {predicate[1:]}" if predicate[0] == "~" else predicate
            return [f"return {taken} if {test} else {other}"]
        if predicate[0] == "~":
            predicate, taken, other = predicate[1:], other, taken
        # Some lanes may have left a block that branches to itself, so its lanes are not those with which it was called.
        verb = "scatter" if self.block.number in end.targets else "split"
        return [f"return A.{verb}({predicate}, L, {taken}, {other})"]

    def _end_switch(self, end: End) -> list[str]:
        assert end.operand
        return [f"return A.switch({self.use(end.operand, 'u32')}, L, {tuple(end.targets)})"]

    def _end_leave(self, end: End) -> list[str]:
        return ["return A.leave(L)"]

    def _end_exit(self, end: End) -> list[str]:
        return ["return A.exit(L)"]

    def _end_trap(self, end: End) -> list[str]:
        return ["return A.trap(L)"]

    def _end_barrier(self, end: End) -> list[str]:
        assert end.instruction
        number, *counts = (self.use(operand, "u32") for operand in end.instruction.operands)
        waits = "arrive" not in end.instruction.modifiers
        return [f"return A.barrier({number}, {counts[0] if counts else None}, {waits}, L, {end.targets[0]})"]

    def _end_warp(self, end: End) -> list[str]:
        assert end.operand
        return [f"return A.meet({self.use(end.operand, 'u32')}, L, {end.targets[0]})"]

    def _end_call(self, end: End) -> list[str]:
        """Arguments and results are in, or go to, `.param` variables of the caller's frame."""
        assert end.instruction
        results, target, arguments = _call_parts(end.instruction)
        given = [self._frame_offset(item) for item in arguments]
        taken = [self._frame_offset(item) for item in results]
        if isinstance(target, Register):
            self.code.indirect = True
            return [f"return A.call_through({self.use(target, 'u64')}, {given}, {taken}, L, {end.targets[0]})"]
        assert isinstance(target, Symbol)
        called = self.owner.symbols.functions.get(target.name)
        if called is None:
            raise self._error(f"function {target.name} is not declared")
        if "cudaCDP" in target.name:
            raise unsupported(end.instruction)  # a launch by the device
        if not called.defined and target.name not in BUILTINS:
            raise self._error(f"function {target.name} is declared but not defined")
        if not called.defined:
            return [f"return A.builtin({target.name!r}, {given}, {taken}, L, {end.targets[0]})"]
        if len(given) != len(called.parameters) or len(taken) > len(called.returns):
            raise self._error(f"{target.name} takes {len(called.parameters)} arguments")
        self.code.callees.add(target.name)
        return [f"return A.call({target.name!r}, {given}, {taken}, L, {end.targets[0]})"]

    def _frame_offset(self, operand: Operand) -> int:
        if isinstance(operand, Symbol) and operand.name in self.code.frame.offsets:
            return self.code.frame.offsets[operand.name]
        raise self._error("only .param variables can be passed")


Writer = Callable[[Translator, Block], BlockEmitter]
"""The class that writes a block's function."""


def _call_parts(instruction: Instruction) -> tuple[tuple[Operand, ...], Operand, tuple[Operand, ...]]:
    """Return the results, the callee and the arguments of a call."""
    operands = list(instruction.operands)
    results: tuple[Operand, ...] = ()
    first = operands.pop(0) if operands else None
    if isinstance(first, Group):
        results = first.items
        first = operands.pop(0) if operands else None
    if not isinstance(first, Register | Symbol):
        raise PtxError(f"'{instruction.text}' names no function to call", instruction.line)
    arguments = operands[0].items if operands and isinstance(operands[0], Group) else ()
    return results, first, arguments
