"""What a library says about itself, once: its `Registration`.

Everything that lists the libraries is made from these: the engines of a worker, the actors and properties of a device,
the public names. Classes are strings, loaded when they are used. Standard library alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .status import StatusClass


class Registration(NamedTuple):
    """One library, in ``libraries/<folder>/registration.py``."""

    name: str
    """The name of its engine in records, and for one with verbs of its actor and of the property of a device."""
    number: int
    """The number of its engine in records."""
    engine: str
    """The function or class in its ``engine.py`` that makes the engine. It takes the services of the worker, and the
    engines of the libraries that it requires."""
    requires: tuple[str, ...] = ()
    """The folders of the libraries whose engines it uses, and so their records."""
    uses: tuple[str, ...] = ()
    """The folders of other libraries whose records or types it uses."""
    library: str = ""
    """The library of CUDA that it needs beside the driver: the name of its table in ``atomr_cuda``."""
    statuses: Mapping[StatusClass, tuple[int, ...]] | None = None
    """What the statuses of that library mean for the context; see `StatusClass`. Any other is taken to harm it."""
    verbs: str = ""
    """The class in its ``verbs.py`` that is the property of a device. One without has verbs of other kinds."""
    batch_verbs: str = ""
    """The class there that is the property of a batch."""
    recorded_verbs: str = ""
    """The class there that is the property of a recorder of graphs, for a library whose calls can be captured."""
    summary: str = ""
    """What it is for, in the words of the property's documentation."""
    example: str = ""
    """A call of one of its verbs."""
