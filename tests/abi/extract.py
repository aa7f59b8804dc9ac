"""Read the facts that the tables are held against from the vendors' own headers: ``make abi``.

For every line of ``LIBRARIES`` and every CUDA generation this fetches the wheels, lets libclang read the headers, and
writes ``<library>-<generation>.json``: for each name that the table declares what the header says of it, and nothing
of the rest. Types are written in a small grammar, which ``conformance.py`` reads again:

    i32 u64 f32 char bool void      scalars; a number is the width in bits
    enum                            an enumeration, of 32 bits
    T*   T[16]                      pointer, array
    struct X   union X              by value, X being the tag
    opaque X                        a type that the header does not define, the target of a handle
    R(A, B)                         a function; with a * it is a callback
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clang.cindex import Cursor, CursorKind, Index, TranslationUnit, Type, TypeKind

from abi.libraries import LIBRARIES, Header, Table, read_table

HERE = Path(__file__).resolve().parent

_SCALARS = {
    TypeKind.VOID: "void",
    TypeKind.BOOL: "bool",
    TypeKind.CHAR_S: "char",
    TypeKind.SCHAR: "i8",
    TypeKind.UCHAR: "u8",
    TypeKind.SHORT: "i16",
    TypeKind.USHORT: "u16",
    TypeKind.INT: "i32",
    TypeKind.UINT: "u32",
    TypeKind.LONG: "i64",
    TypeKind.ULONG: "u64",
    TypeKind.LONGLONG: "i64",
    TypeKind.ULONGLONG: "u64",
    TypeKind.FLOAT: "f32",
    TypeKind.DOUBLE: "f64",
}

# The C library's headers as far as the vendors' need them, so that no compiler has to be installed and every machine
# reads the same. Its inline functions are skipped, so nothing is called.
_C_LIBRARY = {
    "stddef.h": "typedef __SIZE_TYPE__ size_t;\n#define NULL ((void *)0)\n",
    "stdint.h": "".join(
        f"typedef __{sign.upper()}INT{bits}_TYPE__ {sign}int{bits}_t;\n"
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    )
    + "typedef __UINTPTR_TYPE__ uintptr_t;\ntypedef __INTPTR_TYPE__ intptr_t;\n",
    "stdbool.h": "#define bool _Bool\n",
    "inttypes.h": "#include <stdint.h>\n",
    "stdlib.h": "#include <stddef.h>\n",
    "stdio.h": "#include <stddef.h>\ntypedef struct _IO_FILE FILE;\n",
    "string.h": "#include <stddef.h>\n",
    "limits.h": "#define INT_MAX __INT_MAX__\n#define INT_MIN (-INT_MAX - 1)\n",
    "math.h": "",
}

# What only CUDA's own compiler needs of the headers that come with it and with CCCL: attributes, which say nothing here
# but for the alignment of vectors.
_COMPILER = {
    "crt/host_defines.h": "".join(
        f"#define {word}\n"
        for word in (
            *("__host__", "__device__", "__forceinline__", "CUDARTAPI"),
            *("__cudart_builtin__", "__device_builtin__"),
            *("__device_builtin_surface_type__", "__device_builtin_texture_type__"),
        )
    )
    + "#define __builtin_align__(n) __attribute__((aligned(n)))\n#define __align__(n) __builtin_align__(n)\n",
    "crt/host_config.h": "",
    "nv/target": "",
}

_RECORDS = (CursorKind.STRUCT_DECL, CursorKind.UNION_DECL)
_OPTIONS = TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD | TranslationUnit.PARSE_SKIP_FUNCTION_BODIES


class Reader:
    """One set of headers, read with libclang for x86-64 Linux; aarch64 has the same layouts."""

    def __init__(self, header: Header, folders: Iterable[Path]) -> None:
        self.header = header
        self._folders = list(folders)

    def parse(self, code: str = "", *macros: str) -> TranslationUnit:
        """All headers in one piece, followed by ``code``. Raises ``ValueError`` for what clang calls an error."""
        main = "".join(f"#include <{path}>\n" for path in self.header.paths) + code
        files = [
            ("main.c", main),
            *((f"/c_library/{name}", text) for name, text in {**_C_LIBRARY, **_COMPILER}.items()),
        ]
        arguments = ["-xc", "-std=c11", "--target=x86_64-linux-gnu", "-nostdinc", "-isystem/c_library"]
        arguments += [f"-isystem{folder}" for folder in self._folders] + [f"-D{macro}" for macro in macros]
        unit = Index.create().parse("main.c", arguments, files, _OPTIONS)
        errors = [str(diagnostic) for diagnostic in unit.diagnostics if diagnostic.severity >= diagnostic.Error]
        if errors:
            raise ValueError("\n".join(errors))
        return unit


@dataclass
class Declarations:
    """What a translation unit declares, by name."""

    functions: dict[str, Type] = field(default_factory=dict)
    typedefs: dict[str, Type] = field(default_factory=dict)
    enumerators: dict[str, int] = field(default_factory=dict)
    macros: set[str] = field(default_factory=set)


def declarations(unit: TranslationUnit) -> Declarations:
    found = Declarations()
    for cursor in unit.cursor.get_children():
        if cursor.kind is CursorKind.FUNCTION_DECL:
            found.functions[cursor.spelling] = cursor.type
        elif cursor.kind is CursorKind.TYPEDEF_DECL:
            found.typedefs[cursor.spelling] = cursor.underlying_typedef_type.get_canonical()
        elif cursor.kind is CursorKind.ENUM_DECL:
            found.enumerators.update(enumerators(cursor))
        elif cursor.kind is CursorKind.MACRO_DEFINITION:
            found.macros.add(cursor.spelling)
    return found


def enumerators(declaration: Cursor) -> dict[str, int]:
    return {child.spelling: child.enum_value for child in declaration.get_children()}


# Types ---------------------------------------------------------------------------------------------------------------


def encode(kind: Type) -> str:
    """A type in the grammar of this file."""
    kind = kind.get_canonical()
    if kind.kind in _SCALARS:
        return _SCALARS[kind.kind]
    if kind.kind is TypeKind.ENUM:
        if kind.get_size() != 4:
            raise ValueError(f"{kind.spelling} has {kind.get_size()} bytes")
        return "enum"
    if kind.kind is TypeKind.POINTER:
        return encode(kind.get_pointee()) + "*"
    if kind.kind is TypeKind.CONSTANTARRAY:
        return f"{encode(kind.element_type)}[{kind.element_count}]"
    if kind.kind is TypeKind.FUNCTIONPROTO:
        return f"{encode(kind.get_result())}({', '.join(map(encode, kind.argument_types()))})"
    if kind.kind is TypeKind.FUNCTIONNOPROTO:  # a C header may leave out the void of (void)
        return f"{encode(kind.get_result())}()"
    if kind.kind is TypeKind.RECORD:
        return encode_record(kind)
    raise ValueError(f"no words for {kind.spelling} ({kind.kind})")


def encode_record(kind: Type) -> str:
    tag = re.sub(r"^(const |volatile )*(struct |union )?", "", kind.spelling)
    declaration = kind.get_declaration()
    if declaration.get_definition() is None:
        return f"opaque {tag}"
    return f"{'union' if declaration.kind is CursorKind.UNION_DECL else 'struct'} {tag}"


def layout(kind: Type) -> dict[str, Any]:
    """Tag, size and fields of a structure; a field is its offset and its type."""
    fields = {path: f"{offset} {encode(member)}" for path, offset, member in members(kind)}
    return {"tag": encode_record(kind), "size": kind.get_size(), "fields": fields}


def members(kind: Type, path: str = "", base: int = 0) -> Iterator[tuple[str, int, Type]]:
    """The fields of a structure, with their offsets in bytes.

    A member whose type is declared in place is taken apart: its fields stand as ``member.field``, or among the others
    where the member has no name.
    """
    for child in kind.get_fields():
        if child.is_bitfield():
            raise ValueError(f"{kind.spelling}.{child.spelling} is a bit field")
        member, offset = child.type.get_canonical(), base + child.get_field_offsetof() // 8
        if member.kind is TypeKind.RECORD and member.get_declaration().lexical_parent.kind in _RECORDS:
            # libclang gives a member without a name a description for a name.
            yield from members(member, f"{path}{child.spelling}." if child.spelling.isidentifier() else path, offset)
        else:
            yield path + child.spelling, offset, member


# Facts ---------------------------------------------------------------------------------------------------------------


def facts(reader: Reader, table: Table) -> dict[str, Any]:
    """What the headers say of the names that a table declares."""
    current = declarations(reader.parse())
    types = current.typedefs
    return {
        "names": mapped_names(reader, sorted(current.macros & set(table.functions))),
        "functions": functions(reader, table, current),
        "structures": {name: layout(types[name]) for name in table.structures if name in types},
        "enums": {name: enumerators(types[name].get_declaration()) for name in table.enums if name in types},
        "aliases": {name: encode(types[name]) for name in table.aliases if name in types},
        "constants": constants(reader, current, sorted(table.constants)),
    }


def functions(reader: Reader, table: Table, current: Declarations) -> dict[str, str]:
    """The signatures of the declared functions, and of all that a complete table must declare."""
    header, known = reader.header, current.functions
    if header.legacy is not None:
        known = declarations(reader.parse("", header.legacy)).functions | known
    wanted = {function.symbol for function in table.functions.values()}
    if header.complete is not None:
        wanted.update(name for name in current.functions if re.match(header.complete, name))
    return {name: encode(known[name]) for name in sorted(wanted & set(known))}


def mapped_names(reader: Reader, names: list[str]) -> dict[str, str]:
    """What the preprocessor makes of each function name, where that is another name."""
    text = "#define TEXT_(x) #x\n#define TEXT(x) TEXT_(x)\n"
    code = text + "".join(f"const char *mapped_{index} = TEXT({name});\n" for index, name in enumerate(names))
    literals = [
        child.spelling.strip('"')
        for cursor in reader.parse(code).cursor.walk_preorder()
        if cursor.kind is CursorKind.VAR_DECL and cursor.spelling.startswith("mapped_")
        for child in cursor.walk_preorder()
        if child.kind is CursorKind.STRING_LITERAL
    ]
    return {name: symbol for name, symbol in zip(names, literals, strict=True) if name != symbol}


def constants(reader: Reader, current: Declarations, names: list[str]) -> dict[str, int]:
    """Enumerators and macros of these names, as numbers; a macro that is an address counts as the address."""
    known = [name for name in names if name in current.enumerators or name in current.macros]
    code = "enum values {\n" + "".join(f"value_{name} = (long long)({name}),\n" for name in known) + "};\n"
    found = declarations(reader.parse(code)).enumerators if known else {}
    return {name: found[f"value_{name}"] for name in known}


# Wheels --------------------------------------------------------------------------------------------------------------


def fetch(requirements: tuple[str, ...], folder: Path) -> list[Path]:
    """The wheels that fit, one a requirement: the one that is named, or the newest."""
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    wheels = []
    for requirement in requirements:
        name, _, pinned = requirement.partition("==")
        name = re.split(r"[<>]", name)[0].replace("-", "_")
        subprocess.run([*pip, "--no-deps", "--only-binary=:all:", "--dest", str(folder), requirement], check=True)
        wheels.append(max(folder.glob(f"{name}-{pinned or '*'}-*.whl"), key=version))
    return wheels


def version(wheel: Path) -> tuple[int, ...]:
    return tuple(map(int, wheel.name.split("-")[1].split(".")))


def unpack(wheel: Path, folder: Path) -> list[Path]:
    """Unpack the headers of a wheel and return the folders that hold them."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if "/include/" in name]
        archive.extractall(folder, names)
    return sorted({folder / name.partition("/include/")[0] / "include" for name in names})


def extract(library: str, generation: str, downloads: Path) -> dict[str, Any]:
    header = LIBRARIES[library]
    wheels = fetch(header.wheels[generation], downloads)
    folders = [found for wheel in wheels for found in unpack(wheel, downloads / wheel.stem)]
    found = facts(Reader(header, folders), read_table(library))
    return {
        "wheels": [" ".join(wheel.name.split("-")[:2]) for wheel in wheels],
        "version": ".".join(map(str, version(wheels[0])[:2])),
        **found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--downloads", type=Path, required=True, help="where wheels are kept; anything outside git")
    parser.add_argument("libraries", nargs="*", default=[*LIBRARIES], help="those to read; all by default")
    arguments = parser.parse_args()
    downloads = arguments.downloads
    for library in arguments.libraries:
        for generation in LIBRARIES[library].wheels:
            path = HERE / f"{library}-{generation}.json"
            path.write_text(json.dumps(extract(library, generation, downloads), indent=1) + "\n", encoding="utf-8")
            print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
