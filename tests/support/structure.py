"""The program that draws the folders of the package and walks calls through them; it knows their order."""

from __future__ import annotations

import importlib.util
from types import ModuleType

from support import ROOT


def structure() -> ModuleType:
    """``docs/structure.py`` as a module."""
    found = importlib.util.spec_from_file_location("structure", ROOT / "docs" / "structure.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
