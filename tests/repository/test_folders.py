"""Tests lie in the folders of what they test, and share what they need through ``tests/support``."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from support import ROOT
from support.structure import structure

TESTS = ROOT / "tests"
LAYERS = {folder.lstrip("_") for layer in structure().LAYERS for folder in layer}
FACES = {"worker", "testing", "cli", "plain"}
"""What is no layer of the user's side, and a folder of the package."""
OTHERS = {
    "bindings": "the folder of that name, but for the simulator",
    "simulator": "bindings/atomr_sim",
    "repository": "what belongs to no folder of the package: documentation, wheel, benchmarks, and the layout itself",
    "notebook": "the package in a kernel of Jupyter, and the notebook among the examples",
    "examples": "the folder of that name",
    "gpu": "what only a GPU can be asked",
}
SHARED = {"support", "kernels", "survey", "abi", "benchmarks", "battery"}
"""Folders of helpers, programs and data."""

MODULES = sorted(TESTS.rglob("test_*.py"))


def test_each_folder_of_tests_has_the_name_of_what_it_tests():
    folders = {path.name for path in TESTS.iterdir() if path.is_dir() and any(path.rglob("*.*[!c]"))}
    assert folders - {"__pycache__"} == LAYERS | FACES | set(OTHERS) | SHARED
    for folder in LAYERS | FACES:
        assert any((ROOT / "atomr_trio" / name).is_dir() for name in (folder, f"_{folder}"))
    libraries = ROOT / "atomr_trio" / "libraries"
    assert {path.parent.name for path in TESTS.glob("libraries/*/test_*.py")} == {
        path.parent.name for path in libraries.glob("*/__init__.py")
    }


def test_every_test_lies_in_such_a_folder_and_has_a_name_of_its_own():
    assert [path.name for path in MODULES if path.relative_to(TESTS).parts[0] not in LAYERS | FACES | set(OTHERS)] == []
    assert len({path.name for path in MODULES}) == len(MODULES)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_no_module_of_tests_needs_another(path: Path):
    named = [
        module
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for module in ([node.module] if isinstance(node, ast.ImportFrom) else [])
        if module is not None and module.rpartition(".")[2].startswith("test_")
    ]
    assert named == []
