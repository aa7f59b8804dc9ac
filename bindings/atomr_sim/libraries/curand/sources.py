"""Where the numbers of a simulated generator come from: the real library where it is installed, a model otherwise."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Protocol

from ..._environment import complain
from ..._status import Refused
from . import host
from .kinds import NOT_SUPPORTED, PHILOX, SOBOL32
from .philox import PhiloxModel
from .sobol import SobolModel

if TYPE_CHECKING:
    from ...engine.memory import Array
    from .kinds import Draw, Settings

_REMEDY = 'cuRAND is not installed. It comes with: pip install "atomr-trio[sim]"'


class Source(Protocol):
    """A generator that was begun with its settings. A draw is one that the settings allow."""

    def draws(self, draw: Draw) -> bool:
        """Tell whether it has a function."""

    def draw(self, draw: Draw, count: int, parameters: tuple[float, ...]) -> Array:
        """The next numbers."""

    def close(self) -> object:
        """Give back what it owns."""


def check_kind(settings: Settings) -> None:
    """Refuse a kind that there is no source of, by its name on stderr."""
    if host.installed() is not None or settings.kind is PHILOX:
        return
    if settings.kind is SOBOL32 and importlib.util.find_spec("scipy") is not None:
        return
    complain(f"{settings.kind.name} is not supported, since {_REMEDY}")
    raise Refused(NOT_SUPPORTED)


def begin(settings: Settings) -> Source:
    """A source of a kind that was checked."""
    library = host.installed()
    if library is not None:
        return host.HostGenerator(library, settings)
    return PhiloxModel(settings) if settings.kind is PHILOX else SobolModel(settings)


def draw(source: Source, settings: Settings, of: Draw, count: int, parameters: tuple[float, ...]) -> Array:
    """The next numbers of a source. A function that it lacks is refused, by its name on stderr."""
    if not source.draws(of):
        complain(f"{of.name} of {settings.kind.name} is not supported, since {_REMEDY}")
        raise Refused(NOT_SUPPORTED)
    return source.draw(of, count, parameters)
