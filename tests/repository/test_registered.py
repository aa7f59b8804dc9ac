"""A library that is registered has all seven parts that docs/adding-a-library.md lists.

What a verb cannot work without shows in its own tests; here is what would be missed by nobody.
"""

from __future__ import annotations

import importlib
import pkgutil
import tomllib

import pytest

import atomr_cuda
import atomr_trio
from abi.libraries import LIBRARIES as WITH_HEADERS
from atomr_cuda import __main__ as facts
from atomr_cuda.injection import SIMULATED
from atomr_trio._calls.verbs import Awaited, Batched
from atomr_trio._wire import status
from atomr_trio.libraries.registered import ACTORS as LIBRARIES, BatchLibraries, DeviceLibraries
from support import ROOT, describe_registered_statuses
from support.registered import FOLDER, registrations

MODULES = {
    each.name: importlib.import_module(f"atomr_cuda.{each.name}")
    for each in pkgutil.iter_modules(atomr_cuda.__path__)
    if not each.ispkg
}
TABLES = {name: module for name, module in MODULES.items() if hasattr(module, "library")}


def test_every_table_but_those_of_the_compilers_is_simulated():
    assert set(TABLES) == {"driver", *SIMULATED} | status._HOST_ONLY


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_held_against_headers_and_its_library_can_be_asked_for(name):
    assert name in WITH_HEADERS
    assert TABLES[name].library in [library for library, _ in facts._KNOWN]


@pytest.mark.parametrize("name", SIMULATED)
def test_a_simulated_library_has_the_name_of_its_table_and_statuses_of_its_own(name):
    describe_registered_statuses()
    assert TABLES[name].library.name == name
    assert importlib.import_module(f"atomr_sim.libraries.{name}.functions").counterpart.library is TABLES[name].library
    assert name in status._TABLES


@pytest.mark.parametrize("word", LIBRARIES)
def test_the_verbs_of_a_library_are_public_in_both_forms(word):
    for getter, form in (
        (vars(DeviceLibraries)[word].func, Awaited),
        (vars(BatchLibraries)[word].fget, Batched),
    ):
        name = getter.__annotations__["return"]
        assert name in atomr_trio.__all__
        assert issubclass(getattr(atomr_trio, name), form)
        assert getattr(atomr_trio, name)._table.engine == word


REGISTERED = {folder: each for folder, each in registrations().items() if each.verbs}


@pytest.mark.parametrize("folder", REGISTERED)
def test_a_registered_library_has_every_part(folder):
    each = REGISTERED[folder]
    parts = {path.stem for path in (FOLDER / folder).glob("*.py")}
    assert parts >= {"__init__", "records", "engine", "verbs", "registration"}, "its folder"
    assert each.library in TABLES, "its table"
    assert (ROOT / "bindings" / "atomr_sim" / "libraries" / each.library).is_dir(), "its counterpart"
    verbs = [path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "libraries" / folder).glob("test_*.py")]
    assert any(f"dev.{each.name}." in text for text in verbs), "tests of its verbs"
    tests = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    assert any(f"atomr_cuda import {each.library}" in text or f'"{each.library}"' in text for text in tests)
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md")]
    for name in filter(None, (each.verbs, each.batch_verbs, each.recorded_verbs)):
        assert any(f"autoclass:: atomr_trio.{name}" in text for text in pages), "its page of the reference"
    guide = [path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "guide").glob("*.md")]
    assert any(f"dev.{each.name}." in text for text in guide), "its page of the guide"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert extras[TABLES[each.library].library.extra], "its line of extras"
