"""What test files share: which backend this run is for, and a way to open a device of it.

A test does not know which backend runs.
It asks for the fixtures `dev` or `open_test_device` (see conftest.py), or imports the function of that name from here
when it has no fixtures at hand, as a `trio.run` of its own has not.
"""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atomr_trio import Device

VARIABLE = "ATOMR_TRIO_TEST_BACKEND"
CHOICES = {"sim": "sim", "gpu": "cuda"}

ON_GPU = os.environ.get(VARIABLE, "sim") == "gpu"
"""Whether this run of the suite is for a real GPU."""


def chosen_backend() -> str:
    """The value of `open_device`'s `backend` argument in this run: "sim" or "cuda"."""
    choice = os.environ.get(VARIABLE, "sim")
    if choice not in CHOICES:
        raise ValueError(f"{VARIABLE} is {choice!r}; it must be one of {', '.join(CHOICES)}")
    return CHOICES[choice]


def open_test_device(index: int = 0, **options: Any) -> AbstractAsyncContextManager[Device]:
    """`atomr_trio.open_device` on the backend of this run; any option may be given, the backend too."""
    import atomr_trio

    return atomr_trio.open_device(index, **{"backend": chosen_backend(), **options})
