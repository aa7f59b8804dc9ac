"""The functions by which launches of kernels go the short way into the ring.

They begin and end with the lines of that of a repeated call (``repeating.py``). In between stand the lines for the
arguments of the kernel (``encoder.py``): to call a function for them took a fifth of a launch.
"""

from __future__ import annotations

import struct
from types import CodeType
from typing import TYPE_CHECKING, Final, cast

from .._wire.protocol import Role
from .._wire.records.module import LAUNCH
from .._wire.ring import NEW_IN_EACH, SAME_IN_ALL, record_struct
from .encoder import encoding
from .repeating import NOTES_OF_FIXED, function_of_kernel, kernel_launcher_of, notes_of_call

if TYPE_CHECKING:
    from .launching import LaunchedKernel, LaunchedRecord, Launcher, LaunchPath

_FIELDS: Final = struct.Struct("<Q24sI4x")
"""The fields of an ordinary launch: its kernel, grid and block, and the dynamic shared memory."""

_BEGIN = """
def again(call, grid, block, shared, given, owner):
    return path.admit_all(given, parameters) and launch(call, grid, block, shared, given, owner, True)

def launch(call, grid, block, shared, given, owner, is_again=False):
    global last_grid, last_block, last_shared, head
"""
_LEAVE: Final = "return not is_again and again(call, grid, block, shared, given, owner)"
_DIMENSIONS = """\
    if grid is not last_grid or block is not last_block or shared is not last_shared:
        known = call._known_dimensions(grid, block, shared)
        if known is None:
            return False
        last_grid, last_block, last_shared = grid, block, shared
        head = header + pack_fields(kernel, known, shared)
"""
_BEGIN_OF_PREPARED = """
def launch(call, grid, block, shared, given, owner):
    try:
        if grid or block or shared or given:
            return False
    except Exception:  # nobody can tell of an array whether it is true; the general way refuses it
        return False
    given = call._arguments
"""
_CHECKS_OF_MANY = """\
    for used in call._blocks:
        if used.fast != token:
            if not path.admit(call._operands):
                return False
            sent = sender.sent + 1  # fills of new arrays may have been sent
            break
    writes, reads = call._writes, call._reads
"""
_CHECKS_OF_FEW = """\
    {blocks} = call._blocks
    if {different}:
        if not path.admit(call._operands):
            return False
        sent = sender.sent + 1  # fills of new arrays may have been sent
"""
_FEW: Final = 8
"""For so many blocks at most there is no loop."""


def _code_of_prepared(writes: int, reads: int) -> CodeType:
    """Return the function of prepared launches that write so many blocks, and read so many."""
    count = writes + reads
    checks, notes = (_CHECKS_OF_MANY, NOTES_OF_FIXED) if count else ("", "")
    if 0 < count <= _FEW:
        checks = _CHECKS_OF_FEW.format(
            blocks="".join(f"b{i}, " for i in range(count)),
            different=" or ".join(f"b{i}.fast != token" for i in range(count)),
        )
        notes = notes_of_call(tuple([(i, Role.WRITE if i < writes else Role.READ) for i in range(count)]))
    return function_of_kernel(_BEGIN_OF_PREPARED, checks, notes, "header, call._payload")


def kernel_launcher(path: LaunchPath, kernel: LaunchedKernel) -> Launcher:
    """Return the function of a kernel for the lane of a path. It does not hold the kernel."""
    takes, notes, values, names = encoding(kernel.signature, _LEAVE)
    more = {
        **names,
        "head": b"",
        "header": _header(path, kernel._record_bytes),
        "kernel": kernel._number,
        "last_block": None,
        "last_grid": None,
        "last_shared": None,
        "pack_fields": _FIELDS.pack,
        "pack_into": kernel._record.pack_into,
        "parameters": kernel.signature.parameters,
    }
    code = function_of_kernel(_BEGIN, _DIMENSIONS + takes, notes, f"head, {values}")
    return cast("Launcher", kernel_launcher_of(path, code, more))


def prepared_launcher(path: LaunchPath, prepared: LaunchedRecord, length: int) -> Launcher:
    """Return the function of a launch with its arguments bound, whose payload has so many bytes."""
    code = _code_of_prepared(len(prepared._writes), len(prepared._reads))
    pack_into = record_struct(f"{NEW_IN_EACH}{SAME_IN_ALL.size}s{length}s").pack_into
    more = {"header": _header(path, length), "pack_into": pack_into}
    return cast("Launcher", kernel_launcher_of(path, code, more))


def _header(path: LaunchPath, length: int) -> bytes:
    return SAME_IN_ALL.pack(path.book.index, LAUNCH.engine_number, path.verb, 0, length)
