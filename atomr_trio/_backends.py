"""The backends by name: which there are, and which one is meant.

Imports the standard library alone, and what every user of the package has imported before an error is raised.
"""

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
"""By every name that is accepted, the backend; `"gpu"` is another name of `"cuda"`."""

VARIABLE: Final = "ATOMR_TRIO_BACKEND"


def chosen_backend(backend: str | None) -> Backend:
    """The backend that is named by the argument, else by ``ATOMR_TRIO_BACKEND``, else `"cuda"`.

    Raises `InvalidArgument`, which says where the other name stands.
    """
    return _known("backend", backend) if backend is not None else backend_of_environment() or "cuda"


def backend_of_environment() -> Backend | None:
    """The backend that ``ATOMR_TRIO_BACKEND`` names, None where it is not set or empty. Raises `InvalidArgument`."""
    name = os.environ.get(VARIABLE)
    return _known(f"the environment variable {VARIABLE}", name) if name else None


def _known(origin: str, name: object) -> Backend:
    if isinstance(name, str) and name in BACKENDS:
        return BACKENDS[name]
    from ._errors import InvalidArgument

    raise InvalidArgument(f'{origin} is "cuda" (or "gpu", which means the same) or "sim", not {name!r}')
