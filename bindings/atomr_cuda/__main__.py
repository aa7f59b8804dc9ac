"""`python -m atomr_cuda`: print one line of JSON: the libraries that can be loaded, their paths and versions.

It runs in its own process, so that a library that crashes while it is loaded ends nothing else. For the driver it also
counts the devices, which needs no context.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from ctypes import byref, c_int, c_uint
from functools import partial
from importlib import import_module
from typing import Any

from . import driver, nccl, nvjitlink, nvrtc
from ._library import CudaError, Function, Library, LibraryMissing
from ._tables import SIMULATED
from .library_types import libraryPropertyType


def _driver_facts() -> dict[str, Any]:
    version, devices = c_int(), c_int()
    driver.cuDriverGetVersion(byref(version))
    facts: dict[str, Any] = {"version": f"{version.value // 1000}.{version.value % 1000 // 10}"}
    try:
        driver.cuInit(0)
        driver.cuDeviceGetCount(byref(devices))
    except CudaError as error:
        facts["trouble"] = str(error)
    return facts | {"devices": devices.value}


def _nvrtc_facts() -> dict[str, Any]:
    major, minor = c_int(), c_int()
    nvrtc.nvrtcVersion(byref(major), byref(minor))
    return {"version": f"{major.value}.{minor.value}"}


def _nvjitlink_facts() -> dict[str, Any]:
    major, minor = c_uint(), c_uint()
    nvjitlink.nvJitLinkVersion(byref(major), byref(minor))
    return {"version": f"{major.value}.{minor.value}"}


def _nccl_facts() -> dict[str, Any]:
    version = c_int()
    nccl.ncclGetVersion(byref(version))
    return {"version": nccl.version_text(version.value)}


def _property_facts(get_property: Function) -> dict[str, Any]:
    """Return the version of a library that has a function for each part of it; no GPU is needed."""
    pieces = (libraryPropertyType.MAJOR_VERSION, libraryPropertyType.MINOR_VERSION, libraryPropertyType.PATCH_LEVEL)
    values = [c_int() for _ in pieces]
    for piece, value in zip(pieces, values, strict=True):
        get_property(piece, byref(value))
    return {"version": ".".join(str(value.value) for value in values)}


def _tables_of(names: tuple[str, ...]) -> list[Any]:
    return [import_module(f".{name}", __package__) for name in names]


def _get_property(table: Any) -> Function:
    """Return the function of a library that tells a part of its version, such as ``cublasGetProperty``."""
    found: Function = next(value for name, value in vars(table).items() if name.endswith("GetProperty"))
    return found


_KNOWN: tuple[tuple[Library, Callable[[], dict[str, Any]]], ...] = (
    (driver.library, _driver_facts),
    (nvrtc.library, _nvrtc_facts),
    (nvjitlink.library, _nvjitlink_facts),
    (nccl.library, _nccl_facts),
    *(
        (table.library, partial(_property_facts, _get_property(table)))
        for table in _tables_of(SIMULATED)
        if table is not nccl
    ),
)


def facts_about(library: Library, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what is known of one library. If it is missing, `looked` has the places that were searched."""
    facts: dict[str, Any] = {"name": library.name, "extra": library.extra, "override": library.override_variable}
    try:
        library.load()
        facts |= {"path": library.path, "found_by": library.found_by}
        facts |= ask()
    except LibraryMissing as error:
        facts |= {"missing": str(error).partition("\n")[0], "looked": list(error.looked)}
    except CudaError as error:
        facts["trouble"] = str(error)
    return facts


if __name__ == "__main__":
    print(json.dumps([facts_about(library, ask) for library, ask in _KNOWN]))
