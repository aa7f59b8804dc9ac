"""Writes ``bindings/atomr_cuda/constants`` from the macros and enumerations of the tables: `make constants`."""

from __future__ import annotations

import enum
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from atomr_cuda import _driver_enums
from atomr_cuda._tables import TABLES

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "bindings" / "atomr_cuda" / "constants"
LIBRARIES = (*TABLES, "library_types")

HEAD = '"""The numbers of ``atomr_cuda.{name}``. Made by `make constants`: not to be edited."""\n'


def modules(name: str) -> list[ModuleType]:
    """The modules in which the enumerations of a table are."""
    if name != "driver":
        return [importlib.import_module(f"atomr_cuda.{name}")]
    files = pkgutil.iter_modules(_driver_enums.__path__, f"{_driver_enums.__name__}.")
    return [importlib.import_module(file.name) for file in files]


def enumerations(name: str) -> Iterator[type[enum.IntEnum]]:
    """The enumerations of a table, in the order of its text."""
    for module in modules(name):
        for each in vars(module).values():
            if inspect.isclass(each) and issubclass(each, enum.IntEnum) and each.__module__ == module.__name__:
                yield each


def text_of(name: str) -> str:
    """The text of the file for a table."""
    parts = [HEAD.format(name=name)]
    table = vars(importlib.import_module(f"atomr_cuda.{name}"))
    macros = [f"{macro} = {value}\n" for macro, value in table.items() if macro.isupper() and type(value) is int]
    parts += ["\n# macros\n", *macros] if macros else []
    for each in enumerations(name):
        parts.append(f"\n# {each.__name__}\n")
        parts += [f"{member} = {value.value}\n" for member, value in each.__members__.items()]
    return "".join(parts)


if __name__ == "__main__":
    for library in LIBRARIES:
        (FOLDER / f"{library}.py").write_text(text_of(library), encoding="utf-8")
