"""The engines: one file for each library. A file turns the records of its library into calls of the C library.

An engine may import its own bindings, and nothing of the trio side. The records are in ``_wire/records``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .blas import blas_engine
from .blaslt import BlasLtEngine
from .event import EventEngine
from .graph import GraphEngine
from .interop import InteropEngine
from .memory import MemoryEngine
from .module import ModuleEngine
from .solver import solver_engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..lanes import Engine, WorkerServices

ENGINES: tuple[Callable[[WorkerServices], Engine], ...] = (
    MemoryEngine,
    EventEngine,
    InteropEngine,
    blas_engine,
    BlasLtEngine,
    solver_engine,
)
"""The functions that make the engines. To add a library, add one line here."""


def build(services: WorkerServices) -> dict[int, Engine]:
    """Every engine by its number."""
    modules = ModuleEngine(services)
    engines = (*(make(services) for make in ENGINES), modules, GraphEngine(services, modules))
    return {engine.table.number: engine for engine in engines}
