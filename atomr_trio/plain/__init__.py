"""Devices for programs without trio: the verbs of `atomr_trio`, blocking, from every thread.

`start` and `start_devices` open devices in a trio run of their own, in a thread of its own, and return their blocking
forms. The classes have the names of those of `atomr_trio`, and are made from their declarations by `make plain`.

- ``_turn``: verbs that only enqueue run in the caller's thread, with the turn of the run;
- ``_interrupts``: Ctrl-C, never in the middle of such a verb;
- ``_loop``: the run, blocking calls, and the end of all that, however it comes;
- ``_errors``: what an error becomes on its way out;
- ``_twins``: the objects of the two faces, back and forth;
- ``_access``: what only the blocking face has; ``_asyncio``: its bridge to asyncio;
- ``_faces``: the classes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._faces import HOMES as _HOMES

if TYPE_CHECKING:
    from ._faces import *
    from ._faces.starts import start as start, start_devices as start_devices
    from ._types import AnyArray as AnyArray

_HOME_OF = {name: f"_faces.{home}" for name, home in _HOMES.items()}
_HOME_OF |= {"start": "_faces.starts", "start_devices": "_faces.starts", "AnyArray": "_types"}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{home}", __name__), name)
    if isinstance(value, type):
        value.__module__ = __name__
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
