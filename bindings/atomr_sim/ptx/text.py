"""PTX text as data: a module of variables and functions, a function as a list of instructions and labels.

This file has the grammar and the scoping rules. It does not use the meaning of instructions; the search for an opcode's
handler decides whether the opcode is supported. Registers become untyped bits of a width, with names that are unique in
their function. So both dialects of the compiler (typed registers or not) give the same result.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

INVALID_PTX = 218
UNSUPPORTED_PTX_VERSION = 222
NOT_SUPPORTED = 801

SUPPORTED_VERSION = (9, 9)
"""The newest `.version` that is read. The instructions that a version adds are handled one by one."""

MOST_STATEMENTS = 1 << 18
MOST_VALUES = 1 << 21
"""The limits of semicolons and commas in a text, which bound the cost to read and translate it."""
DEEPEST_GROUP = 8

WIDTHS = {"pred": 1} | {f"{kind}{bits}": bits for kind in "busf" for bits in (8, 16, 32, 64)}
WIDTHS |= {"f16x2": 32, "bf16": 16, "bf16x2": 32, "f32x2": 64, "u16x2": 32, "s16x2": 32}


class LoadError(Exception):
    """A module that cannot be loaded; `status` is CUDA's number for the reason."""

    status = INVALID_PTX

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {message}" if line else message)
        self.message: str = str(self)
        self.line = line

    def inside(self, entry: bool, name: str) -> LoadError:
        """Return the same error, with the name of the function in which it was found."""
        found = type(self)(f"{self.message} (in {'kernel' if entry else 'function'} {name})")
        found.line = self.line
        return found


class PtxError(LoadError):
    """Text that is not PTX, is truncated, or refers to something that it does not declare."""


class UnsupportedPtxVersion(LoadError):
    """PTX of a version that is newer than this reader."""

    status = UNSUPPORTED_PTX_VERSION


class UnsupportedPtx(LoadError):
    """PTX that is valid, but that the simulator cannot run."""

    status = NOT_SUPPORTED


@dataclass(frozen=True, slots=True)
class Register:
    """A register as an operand; `negated` is the exclamation mark of a predicate."""

    name: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal: an integer, or the bits of an f32 or f64 (`kind` tells which)."""

    bits: int
    kind: str = "int"

    @property
    def number(self) -> float:
        """The literal as a floating-point number."""
        if self.kind == "f32":
            return float(struct.unpack("<f", struct.pack("<I", self.bits))[0])
        if self.kind == "f64":
            return float(struct.unpack("<d", struct.pack("<Q", self.bits))[0])
        return float(self.bits)


@dataclass(frozen=True, slots=True)
class Symbol:
    """The name of a variable, a function or a label."""

    name: str


@dataclass(frozen=True, slots=True)
class Special:
    """A register that the hardware sets, without its percent sign."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """An operand in brackets: a base and an offset in bytes."""

    base: Register | Symbol | Immediate
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """Operands in braces or in parentheses."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """The two destinations of `setp`: the result and its complement."""

    first: Operand
    second: Operand


Operand = Register | Immediate | Symbol | Special | Address | Group | Pair


@dataclass(slots=True)
class Instruction:
    """One instruction: `ld.global.f32` is the opcode `ld` with the modifiers `global` and `f32`."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: list[Operand]
    line: int
    text: str
    guard: Register | None = None
    reading: tuple[Register, ...] | None = field(default=None, init=False, repr=False, compare=False)
    """The registers that it reads, and those that it writes, when `flow` has found them."""
    writing: tuple[Register, ...] | None = field(default=None, init=False, repr=False, compare=False)


@dataclass(slots=True)
class Label:
    """A place in a function that branches refer to."""

    name: str
    line: int


@dataclass(slots=True)
class Variable:
    """A `.global`, `.const`, `.shared`, `.local` or `.param` variable, or a parameter."""

    name: str
    space: str
    kind: str
    align: int
    size: int
    values: list[Immediate | Address] | None = None
    extern: bool = False
    line: int = 0
    unsized: bool = False


@dataclass(slots=True)
class Function:
    """A kernel (`entry`) or a device function, with or without a body."""

    name: str
    entry: bool
    line: int
    parameters: list[Variable]
    returns: list[Variable]
    limits: dict[str, tuple[int, ...]] = field(default_factory=dict)
    registers: dict[str, int] = field(default_factory=dict)
    """Return the width in bits of each register that an instruction names."""
    variables: dict[str, Variable] = field(default_factory=dict)
    body: list[Instruction | Label] = field(default_factory=list)
    defined: bool = False


@dataclass(slots=True)
class PtxModule:
    """Everything that one PTX text declares and defines."""

    version: tuple[int, int] = (0, 0)
    target: str = ""
    variables: dict[str, Variable] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)


_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_LINE_DIRECTIVE = re.compile(r"^[ \t]*\.(?:loc|file)\b[^\n]*$", re.MULTILINE)
_SPACE = re.compile(r"\s*")
_NAME = r"[A-Za-z_$%][\w$]*"
_DIRECTIVE = re.compile(r"\.([a-z_0-9]+)")
_LABEL = re.compile(rf"({_NAME})\s*:(?!:)")
_INSTRUCTION = re.compile(rf"(?:@(!?)({_NAME})\s+)?([a-z][a-z0-9]*)((?:(?:\.|::)[A-Za-z0-9_]+)*)\s*(.*)", re.DOTALL)
_VARIABLE = re.compile(
    rf"""\s*(?P<attributes>(?:\.(?:attribute\s*\([^)]*\)|ptr|global|const|shared|local|param|managed|align\s+\d+)\s*)*)
    (?:\.(?P<vector>v2|v4)\s+)?\.(?P<kind>[a-z]+\d+(?:x2)?|texref|samplerref|surfref)\s+
    (?P<attributes2>(?:\.(?:ptr|global|const|shared|local|param|align\s+\d+)\s*)*)
    (?P<name>{_NAME})\s*(?P<array>(?:\[\s*\d*\s*\]\s*)*)(?:=\s*(?P<values>.*))?$""",
    re.DOTALL | re.VERBOSE,
)
_ALIGN = re.compile(r"\.align\s+(\d+)")
_REGISTERS = re.compile(rf"\.(\w+)\s+({_NAME}(?:\s*<\s*\d+\s*>)?(?:\s*,\s*{_NAME}(?:\s*<\s*\d+\s*>)?)*)\s*$")
_INTEGER = re.compile(r"(-?)(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_HEX_FLOAT = re.compile(r"(-?)0([fFdD])([0-9a-fA-F]+)$")
_DECIMAL = re.compile(r"-?\d+\.\d*(?:[eE][+-]?\d+)?$")
_COORDINATES = re.compile(r"\[[^\]]*[,{]")
"""An address followed by coordinates: only textures, surfaces and tensor maps have them."""
_PREDEFINED = {"WARP_SZ": Immediate(32)}
_NUMBERED = re.compile(r"%?[A-Za-z_$][\w$]*\d$")
_DIGITS = "0123456789"
_MOST_DIGITS = 10
"""The most digits of a register's number."""
_SUM = re.compile(rf"({_NAME}|-?\d\w*)\s*(?:([+-])\s*(-?\w+))?$")
_THREEFOLD = ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
_SPECIALS = frozenset(f"{name}.{axis}" for name in _THREEFOLD for axis in "xyz") | frozenset(
    [
        "cluster_ctarank",
        "cluster_nctarank",
        # The place of a cooperative launch's workspace, which cooperative_groups reads for its grid's barrier.
        "envreg1",
        "envreg2",
        "laneid",
        "warpid",
        "nwarpid",
        "smid",
        "nsmid",
        "gridid",
        "clock",
        "clock_hi",
        "clock64",
        "globaltimer",
        "globaltimer_lo",
        "globaltimer_hi",
        "lanemask_eq",
        "lanemask_lt",
        "lanemask_le",
        "lanemask_gt",
        "lanemask_ge",
        "dynamic_smem_size",
        "total_smem_size",
        "reserved_smem_offset_begin",
        "reserved_smem_offset_end",
        "reserved_smem_offset_cap",
        "reserved_smem_offset_0",
        "reserved_smem_offset_1",
    ]
)


def parse(text: str) -> PtxModule:
    """Return the module that `text` describes; raise a `LoadError` that names the line if the text is not valid."""
    reader = _Reader(text)
    try:
        return reader.module()
    except (ValueError, OverflowError) as error:
        # A number of thousands of digits in a declaration.
        raise PtxError(f"the text cannot be read: {error}", reader.cursor.line) from None


def literal(text: str, line: int) -> Immediate | None:
    """Return the number that `text` writes, or None when it is not a number."""
    if found := _INTEGER.match(text):
        digits = found[2]
        octal = len(digits) > 1 and digits.startswith("0") and digits.isdigit()
        try:
            value = int(digits, 8 if octal else 0)
        except ValueError:
            raise PtxError(f"not a number: {text}", line) from None
        return Immediate(-value if found[1] else value)
    if found := _HEX_FLOAT.match(text):
        kind, length = ("f32", 8) if found[2] in "fF" else ("f64", 16)
        if len(found[3]) != length:
            raise PtxError(f"not a floating-point literal: {text}", line)
        sign = 1 << (length * 4 - 1) if found[1] else 0
        return Immediate(int(found[3], 16) ^ sign, kind)
    if _DECIMAL.match(text):
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], "f64")
    return _PREDEFINED.get(text)


def split(text: str) -> list[str]:
    """Return the parts of an operand list: commas inside brackets of any kind do not count."""
    if not text:
        return []
    if "{" not in text and "(" not in text:
        return [part.strip() for part in text.split(",")]
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        if character in "{([":
            depth += 1
            if depth > DEEPEST_GROUP:
                raise PtxError(f"brackets are nested too deeply: {text[:60]!r}")
        elif character in "})]":
            depth -= 1
        elif character == "," and not depth:
            parts.append(text[start:at].strip())
            start = at + 1
    parts.append(text[start:].strip())
    return parts


class _Cursor:
    """A position in the text, with the number of its line."""

    def __init__(self, text: str) -> None:
        def blank(found: re.Match[str]) -> str:
            return "\n" * found[0].count("\n") or " "

        self.text = _LINE_DIRECTIVE.sub("", _COMMENT.sub(blank, text))
        self.at = 0
        self._counted = (0, 1)

    @property
    def line(self) -> int:
        at, line = self._counted
        line += self.text.count("\n", at, self.at)
        self._counted = (self.at, line)
        return line

    def peek(self) -> str:
        """Return the next character that is not a space; empty at the end."""
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return self.text[self.at : self.at + 1]

    def accept(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        self.peek()
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def until(self, stop: str) -> str:
        """Return everything up to the character `stop`, which is consumed too; strings are skipped."""
        begin, at = self.at, self.text.find(stop, self.at)
        # If a string has no end, each statement would search for a quote through the rest of the text again.
        while (quote := self.text.find('"', begin, max(at, 0))) >= 0:
            closing = self.text.find('"', quote + 1)
            if closing < 0:
                raise PtxError("a string has no end", self.line)
            begin = closing + 1
            at = self.text.find(stop, begin)
        if at < 0:
            raise PtxError(f"the text ends where '{stop}' is missing", self.line)
        piece = self.text[self.at : at]
        self.at = at + 1
        return piece.strip()

    def skip_block(self) -> None:
        """Skip a balanced pair of braces."""
        self.until("{")
        depth = 1
        while depth:
            found = self.accept(re.compile(r"[^{}]*([{}])"))
            if not found:
                raise PtxError("the text ends inside of a block", self.line)
            depth += 1 if found[1] == "{" else -1


class _Reader:
    def __init__(self, text: str) -> None:
        if "\0" in text:
            text = text[: text.index("\0")]
        self.cursor = _Cursor(text)
        self.result = PtxModule()

    def module(self) -> PtxModule:
        self._version()
        self._check_size()
        linkage: set[str] = set()
        while self.cursor.peek():
            line = self.cursor.line
            directive = self.cursor.accept(_DIRECTIVE)
            if not directive:
                raise PtxError(f"a directive was expected at {self._context()!r}", line)
            name = directive[1]
            if name in ("visible", "extern", "weak", "common"):
                linkage.add(name)
                continue
            self._top_level(name, line, linkage)
            linkage = set()
        if not self.result.target:
            raise PtxError("there is no .target directive", self.cursor.line)
        return self.result

    def _version(self) -> None:
        found = self.cursor.accept(re.compile(r"\.version\s+(\d+)\.(\d+)"))
        if not found:
            raise PtxError(f"a .version directive was expected at {self._context()!r}", self.cursor.line)
        self.result.version = (int(found[1]), int(found[2]))
        if self.result.version > SUPPORTED_VERSION:
            newest = ".".join(map(str, SUPPORTED_VERSION))
            raise UnsupportedPtxVersion(f"PTX {found[1]}.{found[2]} is newer than {newest}", self.cursor.line)

    def _check_size(self) -> None:
        for what, separator, most in (("statements", ";", MOST_STATEMENTS), ("values", ",", MOST_VALUES)):
            count = self.cursor.text.count(separator)
            if count > most:
                raise UnsupportedPtx(f"a module of {count} {what} is not simulated; the limit is {most}")

    def _context(self) -> str:
        return self.cursor.text[self.cursor.at : self.cursor.at + 30].split("\n")[0]

    def _top_level(self, name: str, line: int, linkage: set[str]) -> None:
        if name == "target":
            found = self.cursor.accept(re.compile(r"[^\n]+"))
            self.result.target = found[0].strip() if found else ""
        elif name == "address_size":
            found = self.cursor.accept(re.compile(r"\d+"))
            if not found or found[0] != "64":
                raise UnsupportedPtx("only 64-bit addresses are simulated", line)
        elif name in ("global", "const", "shared", "local"):
            variable = _variable(name, self.cursor.until(";"), line)
            variable.extern = "extern" in linkage
            self.result.variables[variable.name] = variable
        elif name in ("entry", "func"):
            self._function(name == "entry", line)
        elif name == "section":
            self.cursor.skip_block()
        elif name in ("pragma", "alias"):
            self.cursor.until(";")
        else:
            raise PtxError(f"unknown directive .{name}", line)

    def _function(self, entry: bool, line: int) -> None:
        cursor = self.cursor
        cursor.accept(re.compile(r"\.attribute\s*\([^)]*\)"))
        returns = self._parameters(line) if not entry else []
        name = cursor.accept(re.compile(_NAME))
        if not name:
            raise PtxError("a function has no name", line)
        function = Function(name[0], entry, line, self._parameters(line), returns)
        while cursor.peek() not in ("{", ";", ""):
            found = cursor.accept(re.compile(r"\.(\w+)\s*(\d+(?:\s*,\s*\d+)*)?"))
            if not found:
                raise PtxError(f"unexpected text {self._context()!r} after the header of {function.name}", line)
            function.limits[found[1]] = tuple(int(part) for part in (found[2] or "").split(",") if part)
        if cursor.peek() == "{":
            cursor.at += 1
            try:
                _Body(cursor, function).read()
            except LoadError as error:
                raise error.inside(entry, function.name) from None
            function.defined = True
        else:
            cursor.until(";")
        declared = self.result.functions.get(function.name)
        if declared is None or not declared.defined:
            self.result.functions[function.name] = function

    def _parameters(self, line: int) -> list[Variable]:
        if self.cursor.peek() != "(":
            return []
        self.cursor.at += 1
        found = self.cursor.accept(re.compile(r"((?:\([^()]*\)|[^()]++)*+)\)"))
        if not found:
            raise PtxError("a parameter list has no end", line)
        parameters = []
        for part in split(found[1].strip()):
            kept = re.match(r"\.(?:param|reg)\b(.*)", part, re.DOTALL)
            if not kept:
                raise PtxError(f"not a parameter: {part!r}", line)
            parameters.append(_variable("param", kept[1], line))
        return parameters


def _variable(space: str, text: str, line: int) -> Variable:
    """Read a declaration after its space: alignment, type, name, extents, values."""
    found = _VARIABLE.match(text)
    if not found:
        raise PtxError(f"not a variable: {text[:60]!r}", line)
    kind = found["kind"]
    if kind == "b128":
        item = 16
    elif kind in WIDTHS:
        item = WIDTHS[kind] // 8
    else:
        raise UnsupportedPtx(f"variables of type .{kind} are not simulated ({found['name']})", line)
    item *= int((found["vector"] or "v1")[1:])
    extents = re.findall(r"\[\s*(\d*)\s*\]", found["array"])
    values = _values(found["values"], line) if found["values"] else None
    count = 1
    for extent in extents:
        count *= int(extent) if extent else len(values or [])
    # After `.ptr` an alignment is that of the memory that the pointer points to.
    declared = _ALIGN.findall(found["attributes"].split(".ptr")[0])
    unsized = extents[:1] == [""] and not values
    align = int(declared[0]) if declared else item
    return Variable(found["name"], space, kind, align, item * count, values, line=line, unsized=unsized)


def _values(text: str, line: int) -> list[Immediate | Address]:
    """Return the values of an initialiser; a symbol is an address."""
    return [_value(part, line) for part in split(text.strip().replace("{", "").replace("}", "")) if part]


def _value(text: str, line: int) -> Immediate | Address:
    number = literal(text, line)
    if number is not None:
        return number
    generic = re.match(r"generic\s*\((.*)\)\s*(\+\s*\d+)?$", text)
    found = _SUM.match((generic[1] + (generic[2] or "")).strip() if generic else text)
    if not found:
        raise UnsupportedPtx(f"the initial value {text!r} is not simulated", line)
    return Address(Symbol(found[1]), _offset(found, line))


def _offset(found: re.Match[str], line: int) -> int:
    if not found[3]:
        return 0
    number = literal(found[3], line)
    if number is None:
        raise PtxError(f"not an offset: {found[0]}", line)
    return -number.bits if found[2] == "-" else number.bits


class _Body:
    """Reads one function's braces.  Names may be declared again in an inner scope, so each one is made unique."""

    def __init__(self, cursor: _Cursor, function: Function) -> None:
        self.cursor = cursor
        self.function = function
        self.scopes: list[dict[str, str]] = [{}]
        self.labels: list[dict[str, str]] = [{}]
        self.families: dict[str, tuple[int, int]] = {}
        self.known: dict[str, Register | None] = {}
        """The meaning of names as registers, found since a declaration or the end of a scope last changed any."""
        self.used: set[str] = set()
        for parameter in (*function.parameters, *function.returns):
            function.variables[parameter.name] = parameter
            self._declare(parameter.name)

    def _declare(self, name: str) -> str:
        taken = name in self.used or self._family(name) is not None
        unique = f"{name}#{len(self.used)}" if taken else name
        self.used.add(unique)
        self.scopes[-1][name] = unique
        self.known.clear()
        return unique

    def _find(self, name: str) -> str | None:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def read(self) -> None:
        """Read the statements up to the closing brace; then resolve labels."""
        waiting: list[tuple[Instruction, list[dict[str, str]]]] = []
        while True:
            character = self.cursor.peek()
            line = self.cursor.line
            if not character:
                raise PtxError("the text ends inside of a function", line)
            if character == "{":
                self.cursor.at += 1
                self.scopes.append({})
                self.labels.append({})
            elif character == "}":
                self.cursor.at += 1
                if self.scopes.pop():
                    self.known.clear()
                if not self.scopes:
                    break
                self.labels.pop()
            elif character == ".":
                self._directive(line)
            elif found := self.cursor.accept(_LABEL):
                self._label(found[1], line)
            else:
                instruction = self._instruction(self.cursor.until(";"), line)
                self.function.body.append(instruction)
                if instruction.opcode in ("bra", "brx"):
                    waiting.append((instruction, list(self.labels)))
        for instruction, labels in waiting:
            self._resolve(instruction, labels)

    def _directive(self, line: int) -> None:
        found = self.cursor.accept(_DIRECTIVE)
        name = found[1] if found else ""
        if name == "section":
            self.cursor.skip_block()
            return
        text = self.cursor.until(";")
        if name == "reg":
            self._registers(text, line)
        elif name in ("local", "shared", "param", "global", "const"):
            variable = _variable(name, text, line)
            unique = self._declare(variable.name)
            variable.name = unique
            self.function.variables[unique] = variable
        elif name == "branchtargets":
            self.function.body.append(Instruction("branchtargets", (), self._operands(text, line), line, text))
        elif name not in ("pragma", "maxnreg"):
            raise UnsupportedPtx(f"directive .{name} is not simulated", line)

    def _registers(self, text: str, line: int) -> None:
        found = _REGISTERS.match(text.strip())
        if not found or found[1] not in WIDTHS:
            raise UnsupportedPtx(f"registers '.reg {text}' are not simulated", line)
        width = WIDTHS[found[1]]
        for name in found[2].split(","):
            family = re.match(rf"({_NAME})\s*<\s*(\d+)\s*>", name.strip())
            if family:
                self.families[family[1]] = (width, int(family[2]))
                self.known.clear()
            else:
                self.function.registers[self._declare(name.strip())] = width

    def _label(self, name: str, line: int) -> None:
        rest = self.cursor.accept(re.compile(r"\.(callprototype|calltargets|branchtargets)\b"))
        if rest and rest[1] != "branchtargets":
            self.cursor.until(";")
            return
        unique = name if name not in self.used else f"{name}#{len(self.used)}"
        self.used.add(unique)
        self.labels[-1][name] = unique
        if rest:
            targets = [Symbol(part) for part in split(self.cursor.until(";"))]
            self.function.body.append(Instruction("branchtargets", (unique,), list(targets), line, name))
        else:
            self.function.body.append(Label(unique, line))

    def _instruction(self, text: str, line: int) -> Instruction:
        found = _INSTRUCTION.match(text)
        if not found:
            raise PtxError(f"not an instruction: {text[:60]!r}", line)
        guard = self._register(found[2], line) if found[2] else None
        if found[2] and guard is None:
            raise PtxError(f"{found[2]} is not a declared register", line)
        if guard and found[1]:
            guard = Register(guard.name, True)
        if _COORDINATES.search(found[5]):
            raise UnsupportedPtx(f"instruction '{' '.join(text.split())}' is not simulated", line)
        operands = self._operands(found[5].strip(), line)
        return Instruction(found[3], _modifiers(found[4]), operands, line, " ".join(text.split()), guard)

    def _operands(self, text: str, line: int) -> list[Operand]:
        return [self._operand(part, line) for part in split(text)]

    def _operand(self, text: str, line: int) -> Operand:
        register = self._register(text, line)
        if register:
            return register
        first = text[:1]
        if first == "[" and text.endswith("]"):
            return self._address(text[1:-1].strip(), line)
        if first in "{(" and text[-1:] in "})" and first:
            return Group(tuple(self._operands(text[1:-1].strip(), line)))
        if first == "!":
            inner = self._register(text[1:].strip(), line)
            if inner:
                return Register(inner.name, True)
        if "|" in text:
            left, right = text.split("|", 1)
            return Pair(self._operand(left.strip(), line), self._operand(right.strip(), line))
        if first == "%":
            if text[1:] in _SPECIALS:
                return Special(text[1:])
            raise _unknown_special(text, line)
        number = literal(text, line)
        if number is not None:
            return number
        if found := _SUM.match(text):
            symbol = Symbol(self._find(found[1]) or found[1])
            return Address(symbol, _offset(found, line)) if found[3] else symbol
        raise PtxError(f"not an operand: {text[:60]!r}", line)

    def _address(self, text: str, line: int) -> Address:
        found = _SUM.match(text)
        if not found:
            raise PtxError(f"not an address: [{text[:60]}]", line)
        base = self._register(found[1], line) or literal(found[1], line) or Symbol(self._find(found[1]) or found[1])
        return Address(base, _offset(found, line))

    def _register(self, text: str, line: int) -> Register | None:
        """Return the register of that name in the innermost scope, or of a numbered family such as `%r<9>`."""
        if text not in self.known:
            self.known[text] = self._named(text, line)
        return self.known[text]

    def _named(self, text: str, line: int) -> Register | None:
        declared = self._find(text)
        if declared is not None:
            return Register(declared) if declared in self.function.registers else None
        family = self._family(text)
        if family is None:
            return None
        width, count, number = family
        if number >= count:
            raise PtxError(f"register {text} is not declared", line)
        self.function.registers[text] = width
        return Register(text)

    def _family(self, text: str) -> tuple[int, int, int] | None:
        """Return width and size of the family that a name such as `%r9` belongs to, and its number there."""
        # The shortest prefix first: a family may itself end in a digit.
        for cut in range(max(len(text.rstrip(_DIGITS)), len(text) - _MOST_DIGITS), len(text)):
            family = self.families.get(text[:cut])
            if family:
                return *family, int(text[cut:])
        return None

    def _resolve(self, instruction: Instruction, labels: list[dict[str, str]]) -> None:
        """Replace the label in the text by its unique name."""
        at = 0 if instruction.opcode == "bra" else 1
        target = instruction.operands[at] if len(instruction.operands) > at else None
        if not isinstance(target, Symbol):
            raise PtxError(f"'{instruction.text}' has no target", instruction.line)
        for scope in reversed(labels):
            if target.name in scope:
                instruction.operands[at] = Symbol(scope[target.name])
                return
        raise PtxError(f"label {target.name} is not declared", instruction.line)


@functools.lru_cache(maxsize=1024)
def _modifiers(text: str) -> tuple[str, ...]:
    modifiers = tuple(part for part in re.split(r"\.|::", text) if part)
    if modifiers[-1:] == ("ftz",):  # after the type, which ptxas allows, and cuRAND's headers use
        modifiers = (*modifiers[:-2], "ftz", *modifiers[-2:-1])
    return modifiers


def _unknown_special(text: str, line: int) -> LoadError:
    """Return the error for an undeclared register; a special register of the hardware may only be missing here."""
    if _NUMBERED.match(text) and not text.startswith(("%envreg", "%pm", "%reserved")):
        return PtxError(f"register {text} is not declared", line)
    return UnsupportedPtx(f"the special register {text} is not simulated", line)


def instructions(function: Function) -> Iterator[Instruction]:
    """Return the instructions of a function without its labels."""
    return (item for item in function.body if isinstance(item, Instruction))
