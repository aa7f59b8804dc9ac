"""Translates the native loop, checks the code, and writes ``atomr_trio/_worker/native_code.py``: `make native`.

The code is mapped into memory as it is: nothing relocates it, resolves a symbol for it, or gives it data. Code that
needs one of these is refused here. The translation needs llvmlite, in the version that the developers' tools pin:
another makes other bytes.
"""

from __future__ import annotations

import base64
import hashlib
import re
import struct
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from atomr_trio._worker import native_layout

SOURCE: Final = Path(__file__).with_name("loop.ll")
TARGET: Final = Path(native_layout.__file__).with_name("native_code.py")
TRIPLE: Final = "x86_64-unknown-linux-gnu"
ENTRY: Final = "run"

_OWN: Final = {"ZERO": 0, "EIGHT": 8, "SIXTEEN": 16, "TWENTY_FOUR": 24, "THIRTY_TWO": 32, "LOOKS": 16}
"""Numbers of the source alone: offsets in arrays of its own, and the looks for a record in one turn."""

HEAD: Final = '''"""The native loop as machine code for {triple}. Made by `make native`: not to be edited."""

GENERATOR = "{generator}"
SHA256 = "{digest}"
"""Of the code."""
LAYOUT = (
{layout}
)
"""The numbers that it was made with; see ``native_layout.py``."""
CODE = (
{code}
)
'''


class CheckFailed(Exception):
    """The code would need something that it does not get where it is mapped."""


# --- the source -------------------------------------------------------------------------------------------------------

_LOAD = re.compile(r"^  (%[\w.]+) = (word|shared|acquire) (%[\w.]+), (\d+)$")
_STORE = re.compile(r"^  (set|share|release) (\S+), (%[\w.]+), (\d+)$")
_NAME = re.compile(r"\b[A-Z][A-Z0-9_]+\b")
_LOADS = {"word": "load i64", "shared": "load atomic i64", "acquire": "load atomic i64"}
_STORES = {"set": "store i64", "share": "store atomic i64", "release": "store atomic i64"}
_ORDERS = {
    "word": "",
    "set": "",
    "shared": " monotonic",
    "share": " monotonic",
    "acquire": " acquire",
    "release": " release",
}


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _key_lines(count: int) -> dict[str, list[str]]:
    """The lines that hash the key of a record, and that compare it with an entry's, word by word."""
    hashing, comparing = ["  %hash.0 = add i64 0, 0"], ["  %differs.0 = add i64 0, 0"]
    for index in range(count):
        hashing += [
            f"  %key.{index}.p = getelementptr i8, ptr %slot, i64 KEY_OFFSET",
            f"  %key.{index} = word %key.{index}.p, {8 * index}",
            f"  %mixed.{index} = xor i64 %hash.{index}, %key.{index}",
            f"  %product.{index} = mul i64 %mixed.{index}, HASH_FACTOR",
            f"  %high.{index} = lshr i64 %product.{index}, HASH_SHIFT",
            f"  %hash.{index + 1} = xor i64 %product.{index}, %high.{index}",
        ]
        comparing += [
            f"  %known.{index} = word %entry, ENTRY_KEY_{index}",
            f"  %apart.{index} = xor i64 %known.{index}, %key.{index}",
            f"  %differs.{index + 1} = or i64 %differs.{index}, %apart.{index}",
        ]
    return {"KEY_HASH": hashing, "KEY_COMPARE": comparing}


def _argument_lines(count: int, floats: int) -> dict[str, list[str]]:
    """The lines that load the arguments of a call, of which every function takes the first ones of each kind."""
    loads = [f"  %argument.{index} = word %arguments, {8 * index}" for index in range(count)]
    for index in range(floats):
        loads += [
            f"  %float.{index}.p = getelementptr i8, ptr %arguments, i64 {8 * (count + index)}",
            f"  %float.{index} = load double, ptr %float.{index}.p, align 8",
        ]
    return {"ARGUMENT_LOADS": loads}


def _argument_list(count: int, floats: int) -> str:
    """The arguments: numbers of both kinds have registers of their own, so their order does not matter."""
    words = [f"i64 %argument.{index}" for index in range(count)]
    return ", ".join([*words, *(f"double %float.{index}" for index in range(floats))])


def _expanded(line: str, serial: int) -> list[str]:
    """A line of LLVM's language, or the two lines for a short form."""
    if load := _LOAD.match(line):
        result, form, base, offset = load.groups()
        pointer = f"%at.{serial}"
        access = f"  {result} = {_LOADS[form]}, ptr {pointer}{_ORDERS[form]}, align 8"
    elif store := _STORE.match(line):
        form, value, base, offset = store.groups()
        pointer = f"%at.{serial}"
        where = f", ptr {pointer}{_ORDERS[form]}, align 8"
        access = f"  {_STORES[form]} {value}{where}"
    else:
        return [line]
    return [f"  {pointer} = getelementptr i8, ptr {base}, i64 {offset}", access]


def expand(source: str, numbers: Mapping[str, int] = native_layout.NUMBERS) -> str:
    """Return the source in LLVM's own language, with numbers for the names. Raises `KeyError` for an unknown name."""
    known = {**numbers, **_OWN}
    lines: list[str] = []
    arguments = numbers["MOST_ARGUMENTS"], numbers["MOST_FLOATS"]
    written_out = {**_key_lines(numbers["KEY_WORDS"]), **_argument_lines(*arguments)}
    for line in source.replace("ARGUMENT_LIST", _argument_list(*arguments)).splitlines():
        lines += written_out.get(line, [line])
    result: list[str] = []
    for serial, line in enumerate(lines):
        if line.startswith(";"):
            continue
        result += _expanded(_NAME.sub(lambda name: str(_signed(known[name.group()])), line), serial)
    return "\n".join(result) + "\n"


# --- the translation --------------------------------------------------------------------------------------------------


class Translated(NamedTuple):
    """What LLVM has made: the object file, and the same as assembly."""

    object: bytes
    assembly: str


def generator() -> str:
    """Return the names and versions of what translates."""
    import llvmlite
    from llvmlite import binding

    return f"llvmlite {llvmlite.__version__}, LLVM {'.'.join(map(str, binding.llvm_version_info))}"


def translate(text: str) -> Translated:
    """Translate LLVM's language for the oldest processors of x86-64, to code that can be anywhere."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    module = binding.parse_assembly(text)
    module.triple = TRIPLE
    module.verify()
    options: dict[str, Any] = {"cpu": "x86-64", "features": "", "opt": 2, "reloc": "pic", "codemodel": "small"}
    machine = binding.Target.from_triple(TRIPLE).create_target_machine(**options)
    passes = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(module, passes)
    return Translated(machine.emit_object(module), machine.emit_assembly(module))


# --- the checks -------------------------------------------------------------------------------------------------------

_ENDBR64 = b"\xf3\x0f\x1e\xfa"
_PROPERTIES = ".note.gnu.property"
"""A section for linkers, which says that the code has marks where indirect calls lead."""
_ALLOCATED = 2
_SYMBOLS, _RELOCATIONS, _BITS, _NO_BITS = 2, (4, 9), 1, 8
_INDIRECT_JUMP = re.compile(r"^\s+(?:notrack\s+)?jmpq?\s+\*", re.MULTILINE)


class _Section(NamedTuple):
    name: str
    kind: int
    flags: int
    content: bytes
    size: int
    link: int


def _text_at(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode()


def _sections(object_file: bytes) -> list[_Section]:
    """The sections of an object file in the form of ELF, 64 bits."""
    (start,), (size, count, names) = (
        struct.unpack_from("<Q", object_file, 40),
        struct.unpack_from("<3H", object_file, 58),
    )
    headers = [struct.unpack_from("<IIQQQQIIQQ", object_file, start + size * index) for index in range(count)]
    contents = [b"" if kind == _NO_BITS else object_file[at : at + length] for _, kind, _, _, at, length, *_ in headers]
    return [
        _Section(_text_at(contents[names], name), kind, flags, content, length, link)
        for (name, kind, flags, _, _, length, link, *_), content in zip(headers, contents, strict=True)
    ]


def _symbols(sections: list[_Section]) -> Iterator[tuple[str, int, int, int]]:
    """The name, the section, the offset and the size of each symbol that has a name."""
    for section in sections:
        if section.kind == _SYMBOLS:
            strings = sections[section.link].content
            for name, _, _, where, value, size in struct.iter_unpack("<IBBHQQ", section.content):
                if name:
                    yield _text_at(strings, name), where, value, size


def checked(translated: Translated) -> bytes:
    """Return the code, after all checks. Raises `CheckFailed`."""
    sections = _sections(translated.object)
    for section in sections:
        if section.kind in _RELOCATIONS and section.size:
            raise CheckFailed(f"the code has relocations: {section.name}")
        if section.flags & _ALLOCATED and section.size and section.name not in (".text", _PROPERTIES):
            raise CheckFailed(f"the code has data of its own: {section.name}, {section.size} bytes")
    symbols = list(_symbols(sections))
    undefined = [name for name, where, _, _ in symbols if not where]
    if undefined:
        raise CheckFailed(f"the code needs symbols: {', '.join(undefined)}")
    if _INDIRECT_JUMP.search(translated.assembly):
        raise CheckFailed("the code has an indirect jump, as jump tables have")
    text = next(index for index, section in enumerate(sections) if section.name == ".text")
    functions = [(name, at, size) for name, where, at, size in symbols if where == text]
    code = sections[text].content
    if functions != [(ENTRY, 0, len(code))]:
        raise CheckFailed(f"the code is not the function {ENTRY} alone: {functions} in {len(code)} bytes")
    if not code.startswith(_ENDBR64):
        raise CheckFailed("the code does not begin with the mark of an indirect call's target")
    return code


# --- the file ---------------------------------------------------------------------------------------------------------


def _wrapped(text: str) -> str:
    parts = textwrap.wrap(text, 108, break_on_hyphens=False, drop_whitespace=False)
    return "\n".join(f'    "{part}"' for part in parts)


def text_of(code: bytes, made_by: str) -> str:
    """Return the text of the file with the code."""
    return HEAD.format(
        triple=TRIPLE,
        generator=made_by,
        digest=hashlib.sha256(code).hexdigest(),
        layout=_wrapped(native_layout.LAYOUT),
        code=_wrapped(base64.b64encode(code).decode()),
    )


if __name__ == "__main__":
    TARGET.write_text(text_of(checked(translate(expand(SOURCE.read_text()))), generator()), encoding="utf-8")
