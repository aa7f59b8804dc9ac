"""Hold a table against what the vendors' headers say. Reads the files that ``extract.py`` wrote, and nothing else."""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from ctypes import Structure, Union, c_char_p, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from abi.libraries import LIBRARIES, Table
from atomr_cuda._library import Symbol, nested

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Facts:
    """What one generation's headers say; see ``extract.py`` for the grammar of types."""

    generation: str
    version: tuple[int, ...]
    names: Mapping[str, str]
    functions: Mapping[str, str]
    structures: Mapping[str, Mapping[str, Any]]
    enums: Mapping[str, Mapping[str, int]]
    aliases: Mapping[str, str]
    constants: Mapping[str, int]


def read_facts(library: str) -> list[Facts]:
    """The facts of every generation, oldest first."""
    return [_read(library, generation) for generation in LIBRARIES[library].wheels]


def _read(library: str, generation: str) -> Facts:
    data = json.loads((HERE / f"{library}-{generation}.json").read_text(encoding="utf-8"))
    del data["wheels"]
    version = tuple(map(int, data.pop("version").split(".")))
    return Facts(generation=generation, version=version, **data)


# Types ---------------------------------------------------------------------------------------------------------------

_KINDS = {**dict.fromkeys("bhilq", "i"), **dict.fromkeys("BHILQ", "u"), **dict.fromkeys("fd", "f")}
_WORDS = {"c": "char", "?": "bool"}

# How a table may write what C leaves open: the signedness of an enumeration and that of char.
_ALSO = {"enum": {"i32", "u32"}, "char": {"char", "i8", "u8"}}


def scalar(kind: type[Any]) -> str | None:
    """A scalar of ctypes in the grammar of the facts; None for anything else."""
    code = getattr(kind, "_type_", None)
    if code in _KINDS:
        return f"{_KINDS[code]}{8 * ctypes.sizeof(kind)}"
    return _WORDS.get(code) if isinstance(code, str) else None


def agrees(kind: Any, text: str, tags: Mapping[str, str]) -> bool:
    """Whether a ctypes type is what the header says. ``tags`` maps the table's structures to their tags."""
    if kind is None or text == "void":
        return kind is None and text == "void"
    if text.endswith("*"):
        return _pointer_agrees(kind, text[:-1], tags)
    if text.endswith("]"):
        element, _, count = text[:-1].rpartition("[")
        return issubclass(kind, ctypes.Array) and kind._length_ == int(count) and agrees(kind._type_, element, tags)
    if issubclass(kind, (Structure, Union)):
        return tags.get(kind.__name__) == text
    return scalar(kind) in _ALSO.get(text, {text})


def _pointer_agrees(kind: Any, target: str, tags: Mapping[str, str]) -> bool:
    """``c_void_p`` is good for every pointer, since it also takes plain addresses; any other type names its target."""
    if kind is c_void_p:
        return True
    if kind is c_char_p:
        return target == "char"
    if issubclass(kind, ctypes._CFuncPtr):
        return target.endswith(")") and not _signature(kind._restype_, kind._argtypes_, target, tags)
    return issubclass(kind, ctypes._Pointer) and agrees(kind._type_, target, tags)


def _signature(result: Any, arguments: Iterable[Any], text: str, tags: Mapping[str, str]) -> list[str]:
    """What is wrong with a function of this result and these arguments, against ``R(A, B)``."""
    header_result, header_arguments = split_signature(text)
    ours = list(arguments)
    wrong = [] if agrees(result, header_result, tags) else [f"the result is {_word(result)}, not {header_result}"]
    if len(ours) != len(header_arguments):
        return [*wrong, f"{len(ours)} arguments, not {len(header_arguments)}"]
    return wrong + [
        f"argument {number} is {_word(kind)}, not {header}"
        for number, (kind, header) in enumerate(zip(ours, header_arguments, strict=True), 1)
        if not agrees(kind, header, tags)
    ]


def split_signature(text: str) -> tuple[str, list[str]]:
    """``R(A, B(C, D)*)`` as R and [A, B(C, D)*]."""
    result, _, rest = text.partition("(")
    arguments, depth = [""], 0
    for character in rest[:-1]:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            arguments.append("")
        else:
            arguments[-1] += character
    return result, [argument.strip() for argument in arguments if argument]


def _word(kind: Any) -> str:
    return "None" if kind is None else str(kind.__name__)


def _tags(table: Table, facts: Facts) -> dict[str, str]:
    """The tags of the table's structures. One that this header lacks keeps its name, which is nobody's tag."""
    known = {name: facts.structures[name]["tag"] for name in table.structures if name in facts.structures}
    return {kind.__name__: known.get(name, name) for name, kind in table.structures.items()}


# Names and functions -------------------------------------------------------------------------------------------------


def check_declared(table: Table, facts: list[Facts]) -> Iterator[str]:
    """Facts about what the table does not declare: the table lost it, or must be complete and lacks it."""
    declared = {
        "functions": {function.symbol for function in table.functions.values()},
        "structures": set(table.structures),
        "enums": set(table.enums),
        "aliases": set(table.aliases),
        "constants": set(table.constants),
    }
    for header in facts:
        for section, names in declared.items():
            for name in sorted(set(getattr(header, section)) - names):
                yield f"{name}: is not declared ({header.generation})"


def check_names(table: Table, facts: list[Facts]) -> Iterator[str]:
    """A plain name stands for the symbol that every header maps it to; a name that is the symbol stands for itself,
    unless every header has given the name to a later symbol."""
    for name, function in table.functions.items():
        stands_for = {header.names.get(name, name) for header in facts if _knows(header, name, function)}
        wrong = function.symbol not in stands_for if name == function.symbol else stands_for != {function.symbol}
        if stands_for and wrong:
            yield f"{name}: stands for {function.symbol}, the headers say {' or '.join(sorted(stands_for))}"


def _knows(header: Facts, name: str, function: Symbol) -> bool:
    return name in header.names or function.symbol in header.functions


def check_functions(table: Table, facts: list[Facts]) -> Iterator[str]:
    for function in table.functions.values():
        for header in facts:
            text = header.functions.get(function.symbol)
            for wrong in _function(function, text, header, _tags(table, header)):
                yield f"{function.symbol}: {wrong} ({header.generation})"


def _function(function: Symbol, text: str | None, header: Facts, tags: Mapping[str, str]) -> list[str]:
    since = function.since or (0,)
    if text is None:
        return [] if since > header.version else ["the header has no such function"]
    if since > header.version:
        return [f"is said to be newer than {'.'.join(map(str, header.version))}, and the header has it"]
    return _signature(function.restype, function.argtypes, text, tags)


# Structures ----------------------------------------------------------------------------------------------------------


def fields(kind: type[Any], path: str = "", base: int = 0) -> Iterator[tuple[str, tuple[int, Any]]]:
    """The fields of a structure with offset and type; those of a member declared in place as ``member.field``."""
    for name, member in kind._fields_:
        offset = base + getattr(kind, name).offset
        if member.__name__ == nested.__name__:
            inner = path if name in getattr(kind, "_anonymous_", ()) else f"{path}{name}."
            yield from fields(member, inner, offset)
        else:
            yield path + name, (offset, member)


def check_structures(table: Table, facts: list[Facts]) -> Iterator[str]:
    for name, kind in table.structures.items():
        known = [header for header in facts if name in header.structures]
        if not known:
            yield f"{name}: no header has such a structure"
            continue
        ours = dict(fields(kind))
        for field in sorted(set(ours).difference(*(header.structures[name]["fields"] for header in known))):
            yield f"{name}.{field}: no header has such a field"
        for header in known:
            structure, tags = header.structures[name], _tags(table, header)
            if _grown(kind, structure, newest=header is known[-1]):
                continue
            if ctypes.sizeof(kind) != structure["size"]:
                yield f"{name}: {ctypes.sizeof(kind)} bytes, not {structure['size']} ({header.generation})"
            for field, offset, text in _expected(kind, structure, newest=header is known[-1]):
                wrong = _field(ours.get(field), offset, text, tags)
                if wrong is not None:
                    yield f"{name}.{field}: {wrong} ({header.generation})"


def _grown(kind: type[Any], structure: Mapping[str, Any], *, newest: bool) -> bool:
    """Whether an older header has less of a structure that says in words that it only grows: room for a library, which
    is told the size and needs no more of it than it knows."""
    return getattr(kind, "_grows_", False) and not newest and structure["size"] < ctypes.sizeof(kind)


def _expected(kind: type[Any], structure: Mapping[str, Any], *, newest: bool) -> Iterator[tuple[str, int, str]]:
    """The fields that a table must have: all but those that it leaves out in words, and what an older header reserves,
    since a newer one may have spent it."""
    for field, text in structure["fields"].items():
        if field not in getattr(kind, "_left_out_", ()) and (newest or not field.startswith("reserved")):
            offset, _, type_text = text.partition(" ")
            yield field, int(offset), type_text


def _field(ours: tuple[int, Any] | None, offset: int, text: str, tags: Mapping[str, str]) -> str | None:
    if ours is None:
        return "is missing"
    if ours[0] != offset:
        return f"at offset {ours[0]}, not {offset}"
    return None if agrees(ours[1], text, tags) else f"is {_word(ours[1])}, not {text}"


# Enumerations, aliases, constants ------------------------------------------------------------------------------------


def is_sentinel(member: str, members: Mapping[str, int]) -> bool:
    """Whether an enumerator only counts or bounds the others: it moves with every version, and nobody passes it. One
    that is reserved may stand above it."""
    largest = max(value for name, value in members.items() if not name.endswith("_RESERVED"))
    return members[member] == largest and re.search(r"_(MAX|END)$|_NUM_[A-Z_]+$|^ncclNum", member) is not None


def check_enums(table: Table, facts: list[Facts]) -> Iterator[str]:
    for name, kind in table.enums.items():
        known = [header for header in facts if name in header.enums]
        if not known:
            yield f"{name}: no header has such an enumeration"
            continue
        ours = {member: value.value for member, value in kind.__members__.items()}
        for header in known:
            for member, value in header.enums[name].items():
                if member not in ours and not is_sentinel(member, header.enums[name]):
                    yield f"{name}.{member}: is missing, it is {value} ({header.generation})"
                elif ours.get(member, value) != value:
                    yield f"{name}.{member}: is {ours[member]}, not {value} ({header.generation})"
        for member in sorted(set(ours).difference(*(header.enums[name] for header in known))):
            yield f"{name}.{member}: no header has such a member"


def check_aliases(table: Table, facts: list[Facts]) -> Iterator[str]:
    """A name of a type that no header has is the table's own, and held by the functions that use it."""
    for name, kind in table.aliases.items():
        for header in facts:
            text = header.aliases.get(name)
            if text is not None and not agrees(kind, text, _tags(table, header)):
                yield f"{name}: is {_word(kind)}, not {text} ({header.generation})"


def check_constants(table: Table, facts: list[Facts]) -> Iterator[str]:
    for name, value in table.constants.items():
        known = [header for header in facts if name in header.constants]
        if not known:
            yield f"{name}: no header has such a constant"
        for header in known:
            if header.constants[name] != value:
                yield f"{name}: is {value}, not {header.constants[name]} ({header.generation})"


CHECKS: tuple[Callable[[Table, list[Facts]], Iterator[str]], ...] = (
    check_declared,
    check_names,
    check_functions,
    check_structures,
    check_enums,
    check_aliases,
    check_constants,
)


def mismatches(table: Table, facts: list[Facts]) -> list[str]:
    """Everything in which a table disagrees with the headers; each line begins with the name that it is about."""
    return sorted({line for check in CHECKS for line in check(table, facts)})
