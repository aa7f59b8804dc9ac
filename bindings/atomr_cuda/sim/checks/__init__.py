"""What the simulator can watch for while kernels run: accesses outside of arrays, reads of what nobody wrote, data
races, and barriers that a part of a block does not reach.

All of it is off unless the environment asks for it (`ATOMR_TRIO_SIM_CHECK`) when the process begins.  Then modules are
translated to other code (`emission`), which runs in other classes (`running`); what lanes do arrives at the launch's
`Watch`, and what is wrong becomes a `Finding`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from ..process import CHECKS
from ..simt import Tools
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
    """The modes that a text names; a `ValueError` for other words."""
    words = {word.strip() for word in text.split(",")} - {""}
    if unknown := sorted(words - {*MODES, "all"}):
        raise ValueError(f"{CHECKS}: there is no check {unknown[0]!r}; there are {', '.join(MODES)} and all")
    return frozenset(MODES if "all" in words else words)


class Checks:
    """The checks of one process: which there are, and what they know of memory."""

    def __init__(self, modes: frozenset[str], folder: Path | None = None) -> None:
        self.modes = modes
        self.folder = folder
        self.arrays: Arrays = Arrays(folder, shadowed="initialised" in modes)
        self.space: CheckedSpace = CheckedSpace(self.arrays)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Checks:
        """The checks that the environment asks for."""
        folder = environment.get(FOLDER)
        return cls(modes_in(environment.get(CHECKS, "")), Path(folder) if folder else None)

    def tools(self, text: str) -> Tools:
        """What a module of this text is translated and launched with."""
        sites = Sites(text)
        emitter = OrderedEmitter if "races" in self.modes else CheckedEmitter
        return Tools(functools.partial(emitter, sites), functools.partial(CheckedLaunch, checks=self, sites=sites))
