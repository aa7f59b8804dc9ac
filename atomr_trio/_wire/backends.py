"""The backends by name: which there are, and which one is meant. Imports the standard library alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

Backend: TypeAlias = Literal["cuda", "sim"]
"""A backend as `Device.backend` names it."""

BackendName: TypeAlias = Literal["cuda", "gpu", "sim"]
"""A backend as a user may name it."""

BACKENDS: Final[Mapping[str, Backend]] = MappingProxyType({"cuda": "cuda", "gpu": "cuda", "sim": "sim"})
"""The backend for every name that is accepted; `"gpu"` is another name of `"cuda"`."""

VARIABLE: Final = "ATOMR_TRIO_BACKEND"
LIBRARIES_VARIABLE: Final = "ATOMR_TRIO_WORKER_LIBRARIES"
"""The variable by which a worker is told the folders of the libraries that it loads while it starts, with commas
between."""
NATIVE_VARIABLE: Final = "ATOMR_TRIO_NATIVE"
"""The variable that turns the worker's native loop off (``0``), or on for a simulated device as well (``1``)."""
READ_VARIABLE: Final = "ATOMR_TRIO_READ"
"""The variable by which workers do not read the arrays of the user's process themselves (``0``)."""


def named_backend(name: object, origin: str = "backend") -> Backend:
    """The backend with this name. Raises `ValueError`, whose text says by `origin` where the other name stands."""
    if isinstance(name, str) and name in BACKENDS:
        return BACKENDS[name]
    raise ValueError(f'{origin} is "cuda" (or "gpu", which means the same) or "sim", not {name!r}')


def backend_of_environment() -> Backend | None:
    """The backend that ``ATOMR_TRIO_BACKEND`` names, None where it is not set or empty. Raises `ValueError`."""
    name = os.environ.get(VARIABLE)
    return named_backend(name, f"the environment variable {VARIABLE}") if name else None


def native_loop_wanted() -> bool | None:
    """Return what ``ATOMR_TRIO_NATIVE`` says of the native loop; None if it says nothing. Raises `ValueError`."""
    return _switch(NATIVE_VARIABLE)


def reading_wanted() -> bool:
    """Return false if ``ATOMR_TRIO_READ`` says that workers are not to read arrays. Raises `ValueError`."""
    return _switch(READ_VARIABLE) is not False


def _switch(variable: str) -> bool | None:
    value = os.environ.get(variable) or None
    if value not in (None, "0", "1"):
        raise ValueError(f"the environment variable {variable} is 0 (off) or 1 (on), not {value!r}")
    return None if value is None else value == "1"
