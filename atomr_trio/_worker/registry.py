"""The engines of a worker: each turns the records of its library into calls of the C library.

Only ``main`` imports this file. The engines of libraries are found by their registrations.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import TYPE_CHECKING, Any

from .._wire import status
from ..libraries.registered import FOLDERS
from .base.interop import InteropEngine
from .base.memory import MemoryEngine
from .base.rehearsal import RehearsalEngine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._wire.registration import Registration
    from .base.lanes import Engine, WorkerServices

_LIBRARIES = "atomr_trio.libraries"


@functools.cache
def load() -> dict[str, tuple[Registration, Any]]:
    """Import the code of every engine, and the table of its library, while the driver makes the context.

    By folder, the registration of the library and the maker of its engine.
    """
    loaded: dict[str, tuple[Registration, Any]] = {}
    for folder in FOLDERS:
        registration: Registration = importlib.import_module(f"{_LIBRARIES}.{folder}.registration").REGISTRATION
        make = getattr(importlib.import_module(f"{_LIBRARIES}.{folder}.engine"), registration.engine)
        if registration.library:
            importlib.import_module(f"atomr_cuda.{registration.library}")
        loaded[folder] = registration, make
    return loaded


def load_libraries(folders: Sequence[str]) -> None:
    """Load the libraries of some folders, if they can be had. Where not, their first use says so."""
    for folder in folders:
        registration, _ = load()[folder]
        library: Any = importlib.import_module(f"atomr_cuda.{registration.library}").library
        with contextlib.suppress(Exception):
            next(iter(library.functions.values())).bind()


def build(services: WorkerServices) -> dict[int, Engine]:
    """Make every engine; by its number."""
    base: tuple[Engine, ...] = (MemoryEngine(services), InteropEngine(services), RehearsalEngine(services))
    built: dict[str, Engine] = {}
    for folder, (registration, make) in load().items():
        if registration.statuses is not None:
            status.describe(registration.library, registration.statuses)
        built[folder] = make(services, *(built[required] for required in registration.requires))
    return {engine.table.number: engine for engine in (*base, *built.values())}
