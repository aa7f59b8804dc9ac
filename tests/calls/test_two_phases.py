"""Verbs whose result has a size that is known only after a first call, from end to end, through a library of a page.

The scenarios are those of tests/support/two_phases.py. One process runs them all, in a copy of the package.
"""

from __future__ import annotations

import json

import pytest

from support.adding import add_libraries, run_there
from support.two_phases import SCENARIOS

pytestmark = [pytest.mark.sim_only, pytest.mark.long]


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """How each scenario has ended."""
    folder = tmp_path_factory.mktemp("added")
    add_libraries(folder)
    found: dict[str, str] = json.loads(run_there(folder, "-m", "support.two_phases").splitlines()[-1])
    return found


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_verb_in_two_phases_stands(ends: dict[str, str], name: str) -> None:
    assert ends[name] == "ok", ends[name]
