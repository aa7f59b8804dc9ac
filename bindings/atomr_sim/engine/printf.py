"""The output of kernels: `printf` and `assert`, in the format of CUDA."""

from __future__ import annotations

import re
import struct

from .memory import AddressSpace

_DIRECTIVE = re.compile(rb"%([-+ #0]*)(\*|\d*)(?:\.(\*|\d*))?(hh|h|ll|l|j|z|t|L)?([diouxXcsfFeEgGaAp%])")
_SIZES = {b"hh": 1, b"h": 2, b"": 4, b"l": 8, b"ll": 8, b"j": 8, b"z": 8, b"t": 8, b"L": 8}


class Arguments:
    """The buffer that a kernel gives to `vprintf`: values one after another, each aligned to its own size."""

    def __init__(self, memory: AddressSpace, address: int) -> None:
        self.memory = memory
        self.address: int = address
        self.count: int = 0

    def take(self, layout: str) -> int | float:
        """Return the next value, in a `struct` format."""
        size = struct.calcsize(layout)
        self.address += -self.address % size
        data = self.memory.view(self.address, size).tobytes()
        self.address += size
        self.count += 1
        value: int | float = struct.unpack("<" + layout, data)[0]
        return value


def format_text(memory: AddressSpace, pattern: bytes, address: int) -> tuple[bytes, int]:
    """Return the text that one lane prints, and the number of its arguments."""
    arguments = Arguments(memory, address)
    text = _DIRECTIVE.sub(lambda found: _directive(memory, arguments, found), pattern)
    return text, arguments.count


def _directive(memory: AddressSpace, arguments: Arguments, found: re.Match[bytes]) -> bytes:
    flags, width, precision, length, kind = (part if part is not None else b"" for part in found.groups())
    if kind == b"%":
        return b"%"
    if width == b"*":
        width = b"%d" % int(arguments.take("i"))
    if precision == b"*":
        precision = b"%d" % int(arguments.take("i"))
    dotted = b"." + precision if found[3] is not None else b""
    pattern = b"%" + flags + width + dotted
    if kind in b"di":
        return (pattern + b"d") % _integer(arguments, length, True)
    if kind in b"ouxX":
        if kind == b"u":
            kind = b"d"
        return _c_octal((pattern + kind) % _integer(arguments, length, False), flags, kind)
    if kind == b"c":
        return (b"%" + flags + width + b"c") % (int(arguments.take("i")) & 255)
    if kind == b"s":
        where = int(arguments.take("Q"))
        return (pattern + b"s") % (memory.text(where) if where else b"(null)")
    if kind == b"p":
        return (b"%" + flags + width + b"s") % (b"0x%x" % int(arguments.take("Q")))
    value = float(arguments.take("d"))
    return value.hex().encode() if kind in b"aA" else (pattern + kind) % value


def _integer(arguments: Arguments, length: bytes, signed: bool) -> int:
    """Return the next integer. A type shorter than int was promoted to int, and is cut to its length again."""
    size = _SIZES[length]
    layout = "q" if size == 8 else "i"
    value = int(arguments.take(layout)) & ((1 << (8 * size)) - 1)
    return value - (1 << (8 * size)) if signed and value >> (8 * size - 1) else value


def _c_octal(text: bytes, flags: bytes, kind: bytes) -> bytes:
    """C writes the alternative form of an octal number with one zero, Python with `0o`."""
    return text.replace(b"0o", b"0", 1) if kind == b"o" and b"#" in flags else text


def assertion_text(
    message: bytes, file: bytes, line: int, function: bytes, block: list[int], thread: list[int]
) -> bytes:
    """Return the line that CUDA prints for a lane whose assertion failed."""
    at = ",".join(map(str, block)), ",".join(map(str, thread))
    return b"%s:%d: %s: block: [%s], thread: [%s] Assertion `%s` failed.\n" % (
        file, line, function, at[0].encode(), at[1].encode(), message,
    )  # fmt: skip
