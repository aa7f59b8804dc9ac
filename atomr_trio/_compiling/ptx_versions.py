"""The PTX versions that a driver or a linker of some CUDA version reads.

Data and text: this file loads no library and uses no device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from .._values.errors import InvalidArgument
from .._values.signatures import code_of
from .architectures import dotted

__all__ = ["Version", "newest_ptx", "ptx_version", "reads_ptx", "too_new"]

Version: TypeAlias = tuple[int, int]

_NEWEST_PTX: Final[Mapping[Version, Version]] = MappingProxyType(
    {
        (11, 8): (7, 8),
        (12, 0): (8, 0),
        (12, 1): (8, 1),
        (12, 2): (8, 2),
        (12, 3): (8, 3),
        (12, 4): (8, 4),
        (12, 5): (8, 5),
        (12, 6): (8, 5),
        (12, 7): (8, 6),
        (12, 8): (8, 7),
        (12, 9): (8, 8),
        (13, 0): (9, 0),
        (13, 1): (9, 1),
        (13, 2): (9, 2),
        (13, 3): (9, 3),
        (13, 4): (9, 4),
        (13, 5): (9, 5),
    }
)
"""CUDA version to the newest PTX ISA that it reads: the release notes of the PTX ISA, "PTX Release History"."""

_VERSION = re.compile(r"\s*\.version\s+(\d+)\.(\d+)\s")


def ptx_version(ptx: str | bytes) -> Version:
    """Return the PTX ISA version that a PTX text states, (9, 5). Raises `InvalidArgument` when it states none."""
    text = ptx if isinstance(ptx, str) else ptx.decode(errors="replace")
    match = _VERSION.match(code_of(text))
    if match is None:
        raise InvalidArgument("this is not PTX: a PTX text begins with `.version`")
    return int(match[1]), int(match[2])


def newest_ptx(cuda_version: Version) -> Version | None:
    """Return the newest PTX ISA that a driver or a library of a CUDA version reads; None for a CUDA not known here."""
    return _NEWEST_PTX.get(cuda_version)


def reads_ptx(cuda_version: Version, version: Version) -> bool:
    """Tell whether a driver or a library of a CUDA version reads a PTX ISA version; True if that is not known."""
    newest = newest_ptx(cuda_version)
    return newest is None or version <= newest


def too_new(version: Version, reader: str, cuda_version: Version) -> str:
    """Return the message that a PTX is newer than its reader; `reader` is "the driver", say. It names both versions."""
    newest = newest_ptx(cuda_version)
    limit = f", which reads PTX up to {dotted(newest)}" if newest else ""
    made_by = next((f" (CUDA {dotted(cuda)})" for cuda, ptx in _NEWEST_PTX.items() if ptx == version), "")
    return (
        f"the PTX is of version {dotted(version)}{made_by}, too new for {reader} of CUDA {dotted(cuda_version)}{limit}"
    )
