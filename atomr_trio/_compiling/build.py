"""The identity of an NVRTC, read from its file without loading it.

The version is not enough: builds of one version differ. Loading the library takes a tenth of a second, and so does
hashing its 140 MB. The time of the file would distinguish builds too, but then the same wheel installed twice would be
two compilers, and no cache could be copied from one container to another. So the identity is the GNU build ID: a hash
of the content that the linker wrote into the file. If there is none, the size and the time are used.

This file knows ELF and the names of NVRTC's two libraries: the compiler, and beside it the built-in functions.
"""

from __future__ import annotations

import glob
import os
import struct
from collections.abc import Iterator
from typing import Final

__all__ = ["builtins_beside", "nvrtc_build"]

_ELF: Final = b"\x7fELF\x02\x01"
"""The first bytes: the magic, 64 bits, little endian. Both supported architectures have these."""
_MOST_NOTES: Final = 1 << 16
"""The limit in bytes of a segment of notes, which usually has less than a hundred."""
_ELF_HEADER = struct.Struct("<32xQ14xHH")
"""The fields of the file's header: the offset of the program headers, the size of one, and their number."""
_PROGRAM_HEADER = struct.Struct("<I4xQ16xQ")
"""The fields of a program header: type, offset and size in the file."""
_NOTE = struct.Struct("<III")
"""The fields of a note: length of its name, length of its content, type."""
_PT_NOTE: Final = 4
_NT_GNU_BUILD_ID: Final = 3


def nvrtc_build(path: str) -> str:
    """Return the identity of the NVRTC whose library is at `path`. Raises `OSError` for a file that cannot be read."""
    return " ".join(map(_identity, (path, *builtins_beside(path))))


def builtins_beside(path: str) -> tuple[str, ...]:
    """Return the files of built-in functions beside the library, and beside the file that a link in `path` leads to."""
    folders = dict.fromkeys((os.path.dirname(path), os.path.dirname(os.path.realpath(path))))
    found = (sorted(glob.glob(os.path.join(glob.escape(folder), "libnvrtc-builtins*.so*"))) for folder in folders)
    return tuple(dict.fromkeys(os.path.realpath(each) for beside in found for each in beside))


def _identity(path: str) -> str:
    with open(path, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        build = next(_build_ids(file.fileno(), status.st_size), b"")
    return build.hex() or f"{status.st_size}@{status.st_mtime_ns}"


def _build_ids(file: int, size: int) -> Iterator[bytes]:
    """Return the build IDs of an ELF file; none for every other file."""

    def read(at: int, length: int) -> bytes:
        return os.pread(file, length, at) if at + length <= size else bytes(length)

    head = read(0, _ELF_HEADER.size)
    if not head.startswith(_ELF):
        return
    table, step, count = _ELF_HEADER.unpack(head)
    for index in range(count):
        kind, at, length = _PROGRAM_HEADER.unpack(read(table + index * step, _PROGRAM_HEADER.size))
        if kind == _PT_NOTE:
            yield from _build_ids_of_notes(read(at, min(length, _MOST_NOTES)))


def _build_ids_of_notes(notes: bytes) -> Iterator[bytes]:
    while len(notes) >= _NOTE.size:
        name_length, length, kind = _NOTE.unpack_from(notes)
        name_end = _NOTE.size + -(-name_length // 4) * 4
        if kind == _NT_GNU_BUILD_ID and notes[_NOTE.size :][:name_length] == b"GNU\0":
            yield notes[name_end:][:length]
        notes = notes[name_end + -(-length // 4) * 4 :]
