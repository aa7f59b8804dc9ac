"""The checks of the simulator while kernels run: accesses outside of arrays, reads of memory that was never written,
data races, and barriers that a part of a block does not reach.

All of it is off unless the environment asks for it (`ATOMR_TRIO_SIM_CHECK`) when the process begins. Then modules are
translated to other code (`emission`), which runs in other classes (`running`). The accesses of lanes are reported to
the launch's `Watch`, and an error becomes a `Finding`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from .._environment import CHECKS
from ..engine.simt import Tools
from .arrays import Arrays
from .emission import CheckedEmitter
from .findings import Finding, Findings
from .ordering import OrderedEmitter
from .running import CheckedLaunch
from .sites import Sites
from .space import CheckedSpace
from .watch import Watch

MODES = ("bounds", "initialised", "races", "barriers")
FOLDER = "ATOMR_TRIO_SIM_CHECK_FOLDER"
"""The environment variable with the folder of the files `arrays` and `findings`."""

__all__ = ["FOLDER", "MODES", "Arrays", "Checks", "Finding", "Findings", "Watch", "modes_in"]


def modes_in(text: str) -> frozenset[str]:
    """Return the modes in a text; raises `ValueError` for other words."""
    words = {word.strip() for word in text.split(",")} - {""}
    if unknown := sorted(words - {*MODES, "all"}):
        raise ValueError(f"{CHECKS}: there is no check {unknown[0]!r}; there are {', '.join(MODES)} and all")
    return frozenset(MODES if "all" in words else words)


class Checks:
    """The checks of one process: their modes, and the state of memory."""

    def __init__(self, modes: frozenset[str], folder: Path | None = None) -> None:
        self.modes = modes
        self.folder = folder
        self.arrays: Arrays = Arrays(folder, shadowed="initialised" in modes)
        self.space: CheckedSpace = CheckedSpace(self.arrays)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Checks:
        """Return the checks that the environment asks for."""
        folder = environment.get(FOLDER)
        return cls(modes_in(environment.get(CHECKS, "")), Path(folder) if folder else None)

    def tools(self, text: str) -> Tools:
        """Return the classes with which a module of this text is translated and launched."""
        sites = Sites(text)
        emitter = OrderedEmitter if "races" in self.modes else CheckedEmitter
        return Tools(functools.partial(emitter, sites), functools.partial(CheckedLaunch, checks=self, sites=sites))
