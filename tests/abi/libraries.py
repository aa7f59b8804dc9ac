"""Which header every table is held against, and what a table declares.

A library gets its conformance test by one line of ``LIBRARIES``, and by ``make abi``, which reads the headers.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from ctypes import Structure, Union
from dataclasses import dataclass, field
from enum import IntEnum
from types import ModuleType
from typing import Any

from atomr_cuda._library import Symbol


@dataclass(frozen=True)
class Header:
    """The headers of one library, in the wheels of each CUDA generation.

    ``wheels`` maps a generation to requirements, of which the first one's version is the library's.
    ``legacy`` is a macro under which the header also declares the symbols of older versions, which the library exports
    all the same. ``complete`` matches the names of functions of which the table must declare every one. ``majors`` are
    the library's major versions in those generations.
    """

    paths: tuple[str, ...]
    wheels: Mapping[str, tuple[str, ...]]
    legacy: str | None = None
    complete: str | None = None
    majors: tuple[int, ...] = (12, 13)


LIBRARIES = {
    "driver": Header(
        ("cuda.h", "cudaProfiler.h"),
        {
            "cu12": ("nvidia-cuda-runtime-cu12", "nvidia-cuda-profiler-api-cu12"),
            "cu13": ("nvidia-cuda-runtime<14", "nvidia-cuda-profiler-api<14"),
        },
        legacy="__CUDA_API_VERSION_INTERNAL",
    ),
    "nvrtc": Header(
        ("nvrtc.h",),
        {"cu12": ("nvidia-cuda-nvrtc-cu12",), "cu13": ("nvidia-cuda-nvrtc<14",)},
        complete=r"nvrtc(?!GetNVVM)",  # nvrtcGetNVVM and its size are deprecated in 12 and gone in 13
    ),
    "nvjitlink": Header(
        ("nvJitLink.h",),
        {"cu12": ("nvidia-nvjitlink-cu12",), "cu13": ("nvidia-nvjitlink<14",)},
        complete=r"nvJitLink",  # and not what they are mapped to, which has the library's version in its name
    ),
    "cublas": Header(
        ("cublas_v2.h",),
        {
            "cu12": ("nvidia-cublas-cu12", "nvidia-cuda-runtime-cu12"),
            "cu13": ("nvidia-cublas<14", "nvidia-cuda-runtime<14"),
        },
    ),
    "cublaslt": Header(
        ("cublas_v2.h", "cublasLt.h"),
        {
            "cu12": ("nvidia-cublas-cu12", "nvidia-cuda-runtime-cu12"),
            "cu13": ("nvidia-cublas<14", "nvidia-cuda-runtime<14"),
        },
        # Not the inline functions that tell Init_internal a size, and not what no library exports.
        complete=r"cublasLt(?!\w+(Layout|Desc|Preference)Init$|DisableCpuInstructionsSetMask)",
    ),
    "cusolver": Header(
        ("cusolverDn.h",),
        {
            "cu12": ("nvidia-cusolver-cu12", "nvidia-cublas-cu12", "nvidia-cuda-runtime-cu12"),
            "cu13": ("nvidia-cusolver<13", "nvidia-cublas<14", "nvidia-cuda-runtime<14"),
        },
        # Not cusolverDnPotrf and its like, deprecated in 11 and gone in 12, and not what nobody asked for: refinement
        # with parameters, the logger, condensed forms and what works on them.
        complete=r"cusolver(?!Dn((Po|Ge|Sy)[a-z]{3}|IRS|Logger|Xstedc|[SDCZ]\w*(brd|trd|gbr|gtr|mtr|lauum|laswp)))",
        majors=(11, 12),
    ),
    "cufft": Header(
        ("cufftXt.h",),
        {
            "cu12": ("nvidia-cufft-cu12", "nvidia-cuda-runtime-cu12"),
            "cu13": ("nvidia-cufft<13", "nvidia-cuda-runtime<14"),
        },
        # Not what is for several GPUs, and not the callbacks that only the static library has.
        complete=r"cufft(?!Xt(SetGPUs|Malloc|Memcpy|Free|SetWorkArea$|ExecDescriptor|QueryPlan|(Set|Clear)Callback))",
        majors=(11, 12),
    ),
    "curand": Header(
        ("curand.h",),
        {
            "cu12": ("nvidia-curand-cu12", "nvidia-cuda-runtime-cu12"),
            "cu13": ("nvidia-curand<11", "nvidia-cuda-runtime<14"),
        },
        complete=r"curand(?!GenerateBinomial|\w+Method$)",  # no library exports the one; the other is internal
        majors=(10, 10),
    ),
    "nccl": Header(
        ("nccl.h",),
        # The oldest and the newest version, and one between: the configuration has another layout in each.
        {
            "cu12": ("nvidia-nccl-cu12==2.21.5", "nvidia-cuda-runtime-cu12"),
            "cu13-2.28": ("nvidia-nccl-cu13==2.28.9", "nvidia-cuda-runtime<14"),
            "cu13": ("nvidia-nccl-cu13<3", "nvidia-cuda-runtime<14"),
        },
        # Not what the table leaves out by its own words, and not two deprecated functions.
        complete=r"nccl(?!Mem|Comm(Register|Deregister|Window|InitAll|Suspend|Resume|Grow|GetUniqueId)|Win|Bcast"
        r"|ResetDebugInit|(?!CommInit)\w+Config$|(Put|Wait)?Signal|GroupSimulateEnd|Param|SetEncryption)",
        majors=(2, 2, 2),
    ),
}


@dataclass(frozen=True)
class Table:
    """What the module of a library declares, each thing under its name in the module."""

    functions: dict[str, Symbol] = field(default_factory=dict)
    structures: dict[str, type[Structure | Union]] = field(default_factory=dict)
    enums: dict[str, type[IntEnum]] = field(default_factory=dict)
    aliases: dict[str, type[Any]] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)


def read_table(library: str) -> Table:
    """The table of a library, by its module's name in ``atomr_cuda``."""
    return table_of(importlib.import_module(f"atomr_cuda.{library}"))


def table_of(module: ModuleType) -> Table:
    """Everything public in a module that is a function, a structure, an enumeration, a type or a number."""
    table = Table()
    for name in dir(module):
        value = getattr(module, name)
        kept = None if name.startswith("_") else _section(table, name, value)
        if kept is not None:
            kept[name] = value
    return table


def _section(table: Table, name: str, value: Any) -> dict[str, Any] | None:
    """The part of a table that a value belongs to; None for what comes from ctypes and elsewhere."""
    if isinstance(value, Symbol):
        return table.functions
    if type(value) is int:
        return table.constants
    if not isinstance(value, type):
        return None
    if issubclass(value, IntEnum):
        return table.enums if value is not IntEnum else None
    if issubclass(value, (Structure, Union)):
        return table.structures if value not in (Structure, Union) else None
    # What is left and has the protocol of ctypes is a name for a ctypes type; ctypes' own names are not ours.
    return table.aliases if hasattr(value, "from_param") and not name.startswith("c_") else None
