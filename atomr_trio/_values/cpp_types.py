"""C++ types, as the Itanium ABI writes them in the names of functions.

`parameters_of` reads the types of a kernel's parameters from a mangled name. It knows the types that a kernel can take,
and raises `Unreadable` for everything else: a type that is guessed would let nonsense pass. The grammar is that of the
Itanium C++ ABI, section 5.1 (Mangling). Names of typedefs do not occur in it: ``size_t`` is ``unsigned long`` here.

This file knows texts alone. What a type takes in a launch is decided in ``argument_rules.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NoReturn, TypeAlias

import attrs

__all__ = [
    "Array",
    "Builtin",
    "CppType",
    "Function",
    "Named",
    "Pointer",
    "Qualified",
    "Unreadable",
    "function_type_of",
    "integers_of",
    "parameters_of",
    "spelled",
    "unqualified",
]


class Unreadable(Exception):
    """A mangled name that cannot be read, or that holds a type that no kernel's argument has; the text says which."""


@attrs.frozen
class Builtin:
    """A type that C++ brings itself."""

    code: str
    """The letters of the ABI: "f", "Ds"."""


@attrs.frozen
class Named:
    """A class, a union or an enumeration; which of them, a mangled name does not tell."""

    parts: tuple[str, ...]
    """The name with its namespaces, without arguments of templates: ("cuda", "std", "complex")."""
    arguments: tuple[CppType | str, ...] = ()
    """The arguments of the template that comes last: types, and other arguments as text."""
    text: str = ""
    """The name as C++ spells it, with all arguments."""


@attrs.frozen
class Pointer:
    """A pointer."""

    target: CppType


@attrs.frozen
class Qualified:
    """A type with ``const``, ``volatile``, or both."""

    target: CppType
    words: tuple[str, ...]


@attrs.frozen
class Array:
    """An array with a length, which only occurs behind a pointer."""

    target: CppType
    length: int


@attrs.frozen
class Function:
    """A function, which only occurs behind a pointer."""

    result: CppType
    parameters: tuple[CppType, ...]


CppType: TypeAlias = Builtin | Named | Pointer | Qualified | Array | Function

NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "v": "void",
        "b": "bool",
        "c": "char",
        "a": "signed char",
        "h": "unsigned char",
        "s": "short",
        "t": "unsigned short",
        "i": "int",
        "j": "unsigned int",
        "l": "long",
        "m": "unsigned long",
        "x": "long long",
        "y": "unsigned long long",
        "n": "__int128",
        "o": "unsigned __int128",
        "f": "float",
        "d": "double",
        "w": "wchar_t",
        "Ds": "char16_t",
        "Di": "char32_t",
        "Du": "char8_t",
    }
)
"""The builtin types by their code, but for those whose size is not the same on a GPU and on its host."""


def spelled(kind: CppType, inner: str = "") -> str:
    """Return a type as C++ spells it, around the text of its declarator: "const float *", "float (*)[4]"."""
    match kind:
        case Builtin(code):
            return NAMES[code] + (f" {inner}" if inner else "")
        case Named(text=text):
            return text + (f" {inner}" if inner else "")
        case Qualified(Pointer(target), words):
            return spelled(target, f"*{' '.join(words)}{' ' if inner else ''}{inner}")
        case Qualified(target, words):
            return f"{' '.join(words)} {spelled(target, inner)}"
        case Pointer(target):
            compound = isinstance(unqualified(target), Array | Function)
            return spelled(target, f"(*{inner})" if compound else f"*{inner}")
        case Array(target, length):
            return spelled(target, f"{inner}[{length}]")
        case Function(result, parameters):
            return spelled(result, f"{inner}({', '.join(map(spelled, parameters))})")


def unqualified(kind: CppType) -> CppType:
    """Return a type without ``const`` and ``volatile``."""
    return kind.target if isinstance(kind, Qualified) else kind


def parameters_of(mangled: str) -> tuple[CppType, ...]:
    """Return the types of the parameters of a function that is no instance of a template, from its mangled name.

    Raises `Unreadable` for every other text.
    """
    reader = _Reader(mangled)
    reader.expect("_Z")
    reader.function_name()
    types = reader.bare_parameters()
    reader.expect_end()
    return types


def function_type_of(mangled: str, template: str) -> tuple[CppType, ...]:
    """Return the types of the parameters of ``void (*)(...)``, from the mangled name of ``template<that type>``.

    `template` is the name of a function template without parameters. Raises `Unreadable` for every other text.
    """
    reader = _instance(mangled, template)
    kind = reader.type_()
    reader.expect("Evv")
    reader.expect_end()
    match kind:
        case Pointer(Function(Builtin("v"), parameters)):
            return parameters
    raise Unreadable(f"{mangled!r} names no pointer to a function that returns nothing")


def integers_of(mangled: str, template: str, holder: str) -> tuple[int, ...]:
    """Return the numbers of ``holder<numbers...>``, from the mangled name of ``template<holder<numbers...>>``.

    Raises `Unreadable` for every other text.
    """
    reader = _instance(mangled, template)
    reader.expect(f"{len(holder)}{holder}IJ")
    numbers = []
    while not reader.take("E"):
        numbers.append(reader.number_of_literal())
    reader.expect("EEvv")
    reader.expect_end()
    return tuple(numbers)


def _instance(mangled: str, template: str) -> _Reader:
    reader = _Reader(mangled)
    reader.expect(f"_Z{len(template)}{template}")
    reader.remember(Named((template,), (), template))
    reader.expect("I")
    return reader


_QUALIFIERS: Final = MappingProxyType({"r": "__restrict__", "V": "volatile", "K": "const"})
_ORDER: Final = ("const", "volatile")
_INLINE_NAMESPACE: Final = re.compile(r"__\d+|_V_\w+|(?:THRUST|CUB)_\d\w*_NS")
"""Namespaces that a program does not write: those of libcu++'s and Thrust's versions."""
_ANONYMOUS: Final = "_GLOBAL__N_"
_MOST_DEPTH: Final = 64


class _Reader:
    """Reads one mangled name from left to right; the components that ``S_`` and its kin may name are remembered."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._seen: list[CppType] = []

    # --- the text -----------------------------------------------------------------------------------------------------

    def refuse(self) -> NoReturn:
        raise Unreadable(f"{self._text!r} cannot be read from character {self._at} on")

    def take(self, word: str) -> bool:
        """Return whether the text goes on with this word, and step over it then."""
        if not self._text.startswith(word, self._at):
            return False
        self._at += len(word)
        return True

    def expect(self, word: str) -> None:
        """Step over a word that must be there."""
        if not self.take(word):
            self.refuse()

    def expect_end(self) -> None:
        """Check that nothing is left."""
        if self._at != len(self._text):
            self.refuse()

    def remember(self, kind: CppType) -> CppType:
        """Add a component that may be named again."""
        self._seen.append(kind)
        return kind

    def _matched(self, pattern: str) -> str:
        match = re.compile(pattern, re.ASCII).match(self._text, self._at)
        if match is None:
            self.refuse()
        self._at = match.end()
        return match[0]

    # --- types --------------------------------------------------------------------------------------------------------

    def type_(self) -> CppType:
        """Read one type."""
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            self.refuse()
        kind = self._type()
        self._depth -= 1
        return kind

    def _type(self) -> CppType:
        words = set()
        while self._text[self._at : self._at + 1] in _QUALIFIERS:
            words.add(_QUALIFIERS[self._text[self._at]])
            self._at += 1
        if words:
            target = self.type_()
            kept = tuple(word for word in _ORDER if word in words)
            return self.remember(Qualified(target, kept) if kept else target)
        if self.take("P"):
            return self.remember(Pointer(self.type_()))
        if self.take("A"):
            length = int(self._matched(r"\d+"))
            self.expect("_")
            return self.remember(Array(self.type_(), length))
        if self.take("F"):
            result = self.type_()
            parameters = self.bare_parameters()
            self.expect("E")
            return self.remember(Function(result, parameters))
        if self.take("Do"):  # noexcept, which is a part of the type since C++17
            if not self._text.startswith("F", self._at):
                self.refuse()
            return self.type_()
        builtin = self._builtin()
        return self._named() if builtin is None else builtin

    def _builtin(self) -> CppType | None:
        if self._text.startswith("D", self._at):
            return Builtin(self._matched("D[siu]"))
        letter = self._text[self._at : self._at + 1]
        if letter and letter in NAMES:
            self._at += 1
            return Builtin(letter)
        return None

    def bare_parameters(self) -> tuple[CppType, ...]:
        """Read the types of parameters up to an E or the end; ``v`` stands for none."""
        types: list[CppType] = []
        while self._at < len(self._text) and not self._text.startswith("E", self._at):
            types.append(self.type_())
        if types == [Builtin("v")]:
            return ()
        if not types or Builtin("v") in types:
            self.refuse()
        return tuple(types)

    # --- names --------------------------------------------------------------------------------------------------------

    def function_name(self) -> None:
        """Step over the name of a function that is no instance of a template."""
        if self.take("N"):
            parts: list[str] = []
            while True:
                parts.append(self._identifier())
                if self.take("E"):
                    return
                self.remember(_of_parts(tuple(parts)))
        self._identifier()

    def _named(self) -> CppType:
        if self.take("N"):
            return self._nested()
        if self._text.startswith("S", self._at) and not self._text.startswith("St", self._at):
            found = self._substitution()
            return self._with_arguments(found) if self._text.startswith("I", self._at) else found
        parts = ("std",) if self.take("St") else ()
        named = self.remember(_of_parts((*parts, self._identifier())))
        return self._with_arguments(named)

    def _nested(self) -> CppType:
        kind: CppType | None = None
        while not self.take("E"):
            if self.take("St"):
                if kind is not None:
                    self.refuse()
                kind = _of_parts(("std",))
                continue  # `std` is never remembered
            if self._text.startswith("S", self._at):
                if kind is not None:
                    self.refuse()
                kind = self._substitution()
            elif self._text.startswith("I", self._at):
                kind = self._with_arguments(kind)
            else:
                kind = self.remember(_inside(kind, self._identifier(), self))
        if not isinstance(kind, Named):
            self.refuse()
        return kind

    def _with_arguments(self, kind: CppType | None) -> CppType:
        if not self.take("I"):
            if kind is None:
                self.refuse()
            return kind
        if not isinstance(kind, Named) or kind.arguments:
            self.refuse()
        arguments = self._arguments()
        text = ", ".join(each if isinstance(each, str) else spelled(each) for each in arguments)
        return self.remember(Named(kind.parts, arguments, f"{kind.text}<{text}>"))

    def _arguments(self) -> tuple[CppType | str, ...]:
        found: list[CppType | str] = []
        while not self.take("E"):
            if self.take("J"):
                found += self._arguments()
            elif self._text.startswith("L", self._at):
                found.append(str(self.number_of_literal()))
            else:
                found.append(self.type_())
        return tuple(found)

    def number_of_literal(self) -> int:
        """Read a literal that is a number: ``Li4E``, ``Lb1E``; a value of an enumeration is one too."""
        self.expect("L")
        self.type_()
        text = self._matched(r"n?\d+")
        self.expect("E")
        return -int(text[1:]) if text.startswith("n") else int(text)

    def _substitution(self) -> CppType:
        self.expect("S")
        digits = self._matched(r"[0-9A-Z]*_")[:-1]
        index = 0 if not digits else int(digits, 36) + 1
        if index >= len(self._seen):
            self.refuse()
        return self._seen[index]

    def _identifier(self) -> str:
        self.take("L")  # internal linkage
        length = int(self._matched(r"[1-9]\d*"))
        name = self._text[self._at : self._at + length]
        if len(name) != length:
            self.refuse()
        self._at += length
        while self.take("B"):  # a tag of the ABI
            tag = int(self._matched(r"[1-9]\d*"))
            self._at += tag
        return name


def _of_parts(parts: tuple[str, ...]) -> Named:
    return Named(parts, (), "::".join(shown for part in parts if (shown := _shown(part))))


def _inside(outer: CppType | None, name: str, reader: _Reader) -> Named:
    if outer is None:
        return _of_parts((name,))
    if not isinstance(outer, Named):
        reader.refuse()
    shown = _shown(name)
    text = f"{outer.text}::{shown}" if outer.text and shown else outer.text or shown
    return Named((*outer.parts, name), (), text)


def _shown(part: str) -> str:
    """Return a part of a name as a program knows it: the names of anonymous namespaces hold a hash."""
    if part.startswith(_ANONYMOUS):
        return "(anonymous namespace)"
    return "" if _INLINE_NAMESPACE.fullmatch(part) else part
