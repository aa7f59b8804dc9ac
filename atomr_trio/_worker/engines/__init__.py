"""The engines: one file for each library. A file declares its verbs, then turns records into calls of its C library.

An engine may import its own bindings, and nothing of the trio side. The facade in ``atomr_trio/actors`` imports the
verbs that are declared here, so importing an engine must not load a library.
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
"""The modules of the engines. To add a library, add one line here."""


def build(services: WorkerServices) -> dict[int, Engine]:
    """Every engine by its number."""
    modules = ModuleEngine(services)
    engines = (*(make(services) for make in ENGINES), modules, GraphEngine(services, modules))
    return {engine.table.number: engine for engine in engines}
