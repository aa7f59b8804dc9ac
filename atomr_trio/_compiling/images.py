"""The images from which modules are loaded: their kind, their content, and the check that they are complete.

``cuModuleLoadData`` takes an address and no length. It trusts the sizes that an image states, so it would read past the
end of a truncated one. So every image is compared with its own length here, before it is sent. The PTX ISA describes
the text; the ELF specification and the tables of ``elf.h`` describe a cubin. NVIDIA's own marks in it are the machine
number 190, the bit of a symbol for a kernel, and the capability in the header's flags.
"""

from __future__ import annotations

import enum
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NoReturn

import attrs

from .._values.errors import InvalidArgument
from .._values.long_texts import PTX_PIECE, in_turn, joined, pieces
from .._values.signatures import KernelSignature, codes_of, parse_signatures, unclosed
from .told import with_reads, with_types

__all__ = ["Image", "ImageKind", "read_image", "variables_of"]


class ImageKind(enum.Enum):
    """The kind of an image."""

    PTX = "ptx"
    """PTX text, which the driver compiles for its GPU."""
    CUBIN = "cubin"
    """Machine code for one architecture, an ELF file."""
    FATBIN = "fatbin"
    """NVIDIA's container of several of the others, of which the driver chooses one."""
    LTOIR = "ltoir"
    """The intermediate code of link-time optimisation, from which nvJitLink makes a cubin."""


@attrs.frozen(eq=False)
class Image:
    """A complete image, and the data that can be read from it."""

    kind: ImageKind
    data: bytes
    """The bytes for the driver; those of PTX end with a NUL."""
    target: str | None
    """The target, "compute_80" or "sm_80"; None if the image does not state it."""
    entries: Mapping[str, KernelSignature] | None
    """The parameters of each kernel, where the image is PTX."""
    kernels: tuple[str, ...] | None
    """The names of the kernels; None where only the driver can tell."""
    variables: tuple[str, ...]
    """The names of the variables in global and constant memory, as far as the image tells."""
    definitions: tuple[str, ...] = ()
    """The names that only one of the images linked together may define, as far as the image tells."""
    relocatable: bool = True
    """True if a linker accepts it; False for a cubin that is a whole program."""


def read_image(data: bytes) -> Image:
    """Read an image. Raises `InvalidArgument` for bytes that are not an image, or not a complete one."""
    for magic, read in _READERS.items():
        if data.startswith(magic):
            return read(data)
    return _read_ptx(data)


def _refuse(problem: str, advice: str | None = None) -> NoReturn:
    raise InvalidArgument(f"the image cannot be loaded: {problem}", advice=advice)


# ----------------------------------------------------------------------------------------------------------------- PTX

_HEADER = re.compile(r"\s*\.version\s+(\d+)\.(\d+)\s.*?\.target\s+(\w+)", re.DOTALL)
_VARIABLE = re.compile(
    r"\.(?<![\w.]\.)(?:global|const)\s+(?:\.(?:align\s+\w+|attribute\s*\([^)]*\)|v[24])\s+)*\.\w+\s+([A-Za-z_$%][\w$]*)"
)

_OF_COMPILER: Final = ("$", "__unnamed_")
"""The prefixes of the compiler's own variables, which hold the strings of a source and those of `assert`."""

_VISIBLE = re.compile(
    r"""\.visible\s+ (?: \.entry\s+ | \.func\s+ (?:\([^)]*\)\s*)? | \.(?:global|const|shared)\s
        (?:\s*\.(?:align\s+\w+|attribute\s*\([^)]*\)|\w+)\s)* \s*) ([A-Za-z_$%][\w$]*)""",
    re.VERBOSE,
)


def _read_ptx(data: bytes) -> Image:
    text = data.rstrip(b"\0") if data.endswith(b"\0") else data
    if not text or text.isspace():
        _refuse("it is empty")
    try:
        codes = codes_of(piece.decode() for piece in pieces(text, PTX_PIECE))
    except UnicodeDecodeError:
        codes = [""]
    header = _HEADER.match(codes[0])
    if header is None or any("\0" in code for code in in_turn(codes)):
        _refuse("it is neither PTX nor a cubin, a fatbin or LTO-IR, by its first bytes")
    if sum(map(unclosed, in_turn(codes))):
        _refuse("it is PTX that ends in the middle of a function, or of a list of values")
    found = (each for code in in_turn(codes) for each in parse_signatures(code).items())
    entries = with_reads({name: with_types(each, None) for name, each in found}, codes)
    target = header[3].replace("sm_", "compute_")
    definitions = tuple(dict.fromkeys(name for code in in_turn(codes) for name in _VISIBLE.findall(code)))
    whole = data if len(data) == len(text) + 1 else joined(text, b"\0")
    return Image(ImageKind.PTX, whole, target, entries, tuple(entries), _variables_in(codes), definitions)


def variables_of(ptx: str) -> tuple[str, ...]:
    """Return the names of the variables that a PTX text declares in global and constant memory."""
    return _variables_in(codes_of(pieces(ptx, PTX_PIECE)))


def _variables_in(codes: Iterable[str]) -> tuple[str, ...]:
    names = dict.fromkeys(name for code in in_turn(codes) for name in _VARIABLE.findall(code))
    return tuple(name for name in names if not name.startswith(_OF_COMPILER))


# --------------------------------------------------------------------------------------------------------------- cubin

_ELF_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")

_ELF64_LITTLE: Final = b"\x02\x01"
_MACHINE_CUDA: Final = 190
_RELOCATABLE: Final = 1
_GLOBAL: Final = 1
_SYMBOLS, _NO_BITS, _NO_SECTION = 2, 8, 0
_OBJECT, _FUNCTION, _KERNEL = 1, 2, 0x10
_CAPABILITY_SHIFT: Final = MappingProxyType({7: 0, 8: 8})
"""By the version of NVIDIA's ABI, the place of the capability in the header's flags."""

_VARIABLE_SECTIONS: Final = (".nv.global", ".nv.constant3")
"""The names of the sections of variables in global memory, initialised or not, and of ``__constant__`` variables."""


@attrs.frozen
class _Section:
    name: str
    kind: int
    content: bytes
    link: int


def _read_cubin(data: bytes) -> Image:
    if len(data) < _ELF_HEADER.size:
        _refuse(f"it has {len(data)} bytes, fewer than the header of a cubin")
    (
        mark,
        elf_type,
        machine,
        _,
        _,
        segments,
        sections,
        flags,
        _,
        segment_bytes,
        segment_count,
        section_bytes,
        *rest,
    ) = _ELF_HEADER.unpack_from(data)
    if mark[4:6] != _ELF64_LITTLE or machine != _MACHINE_CUDA:
        _refuse("it is an ELF file, and not one with code for NVIDIA GPUs")
    _check_segments(data, segments, segment_bytes, segment_count)
    symbols = list(_symbols(_sections(data, sections, section_bytes, *rest)))
    shift = _CAPABILITY_SHIFT.get(mark[8])
    target = None if shift is None else f"sm_{flags >> shift & 0xFF}"
    kernels = tuple(sorted(name for name, kind, other, _, _ in symbols if kind == _FUNCTION and other & _KERNEL))
    variables = tuple(
        name
        for name, kind, _, section, _ in symbols
        if kind == _OBJECT and section.startswith(_VARIABLE_SECTIONS) and not name.startswith(_OF_COMPILER)
    )
    definitions = tuple(name for name, _, _, _, binding in symbols if binding == _GLOBAL)
    return Image(ImageKind.CUBIN, data, target, None, kernels, variables, definitions, elf_type == _RELOCATABLE)


def _check_segments(data: bytes, at: int, size: int, count: int) -> None:
    for fields in _table(data, _SEGMENT, at, size, count):
        _, _, offset, _, _, length, *_ = fields
        _check_extent(data, offset, length)


def _sections(data: bytes, at: int, size: int, count: int, names_index: int) -> list[_Section]:
    raw = list(_table(data, _SECTION, at, size, count))
    for _, kind, _, _, offset, length, *_ in raw:
        if kind != _NO_BITS:
            _check_extent(data, offset, length)
    contents = [b"" if fields[1] == _NO_BITS else data[fields[4] : fields[4] + fields[5]] for fields in raw]
    names = contents[names_index] if names_index < len(contents) else b""
    return [
        _Section(_string(names, fields[0]), fields[1], content, fields[6])
        for fields, content in zip(raw, contents, strict=True)
    ]


def _symbols(sections: list[_Section]) -> Iterator[tuple[str, int, int, str, int]]:
    """Yield name, kind, the other flags, the section's name and the binding of each symbol."""
    for table in sections:
        if table.kind != _SYMBOLS or table.link >= len(sections):
            continue
        names = sections[table.link].content
        whole = len(table.content) // _SYMBOL.size * _SYMBOL.size
        for name, info, other, section, _, _ in _SYMBOL.iter_unpack(table.content[:whole]):
            if _NO_SECTION < section < len(sections):
                yield _string(names, name), info & 0xF, other, sections[section].name, info >> 4


def _table(data: bytes, form: struct.Struct, at: int, size: int, count: int) -> Iterator[tuple[Any, ...]]:
    if count and size != form.size:
        _refuse("the tables of the cubin have entries of another size than ELF's")
    _check_extent(data, at, size * count)
    return form.iter_unpack(data[at : at + size * count])


def _check_extent(data: bytes, offset: int, length: int) -> None:
    if offset + length > len(data):
        _refuse(
            f"its headers speak of {offset + length:,} bytes and it has {len(data):,}",
            "it was cut short on its way, or damaged: copy it again.",
        )


def _string(names: bytes, at: int) -> str:
    return names[at : max(at, names.find(b"\0", at))].decode(errors="replace")


# --------------------------------------------------------------------------------------------------------- the others

_FATBIN_HEADER: Final = struct.Struct("<IHHQ")


def _read_fatbin(data: bytes) -> Image:
    if len(data) < _FATBIN_HEADER.size:
        _refuse(f"it has {len(data)} bytes, fewer than the header of a fatbin")
    _, _, header_bytes, length = _FATBIN_HEADER.unpack_from(data)
    _check_extent(data, header_bytes, length)
    return Image(ImageKind.FATBIN, data, None, None, None, ())


def _read_ltoir(data: bytes) -> Image:
    return Image(ImageKind.LTOIR, data, None, None, None, ())


_READERS: Final = MappingProxyType(
    {
        b"\x7fELF": _read_cubin,
        b"\x50\xed\x55\xba": _read_fatbin,
        b"\xed\x43\x4e\x7f": _read_ltoir,
    }
)
"""The first bytes of images that are not text."""
