"""The engines of a worker: each turns the records of its library into calls of the C library.

Only ``main`` imports this file, and only this file imports the engines of libraries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..libraries.blas.engine import blas_engine
from ..libraries.blaslt.engine import BlasLtEngine
from ..libraries.graphs.engine import GraphEngine
from ..libraries.lanes.engine import EventEngine
from ..libraries.modules.engine import ModuleEngine
from ..libraries.solver.engine import solver_engine
from .base.interop import InteropEngine
from .base.memory import MemoryEngine

if TYPE_CHECKING:
    from collections.abc import Callable

    from .base.lanes import Engine, WorkerServices

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
