"""The tables of this package, by their names: a new one is found by its file."""

from __future__ import annotations

import pkgutil
from typing import Final

COMPILERS: Final = ("nvrtc", "nvjitlink")
"""Libraries that work on the host alone, without a context: nothing of them is simulated."""
_NO_TABLES: Final = frozenset({"__main__", "constants", "injection", "library_types"})


def _found() -> tuple[str, ...]:
    from . import __path__ as folders

    names = {module.name for module in pkgutil.iter_modules(folders) if not module.name.startswith("_")} - _NO_TABLES
    first = ("driver", *COMPILERS)
    return (*first, *sorted(names - {*first}))


TABLES: Final = _found()
"""The names of the modules that are tables, the driver first, then the compilers."""
SIMULATED: Final = tuple(name for name in TABLES if name not in ("driver", *COMPILERS))
"""The simulated libraries besides libcuda: modules here, and packages of the same names in ``atomr_sim.libraries``."""
