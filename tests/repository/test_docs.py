"""Every program in the tutorial, in the guides and in the README runs, and prints what its page says."""

from __future__ import annotations

import pytest

from support import ROOT
from support.programs import pattern, programs, run_program

TUTORIAL = programs(ROOT / "docs" / "tutorial.md")


def test_the_tutorial_has_programs_with_output():
    assert len(TUTORIAL) >= 5
    assert all(expected for _, expected in TUTORIAL)


@pytest.mark.parametrize(("code", "expected"), TUTORIAL, ids=map(str, range(1, len(TUTORIAL) + 1)))
def test_a_program_of_the_tutorial_prints_what_the_page_says(code, expected, tmp_path):
    printed = run_program(code, tmp_path).strip()
    assert pattern(expected).fullmatch(printed), printed


GUIDES = [(page.stem, *each) for page in sorted((ROOT / "docs" / "guide").glob("*.md")) for each in programs(page)]
"""A guide's block that begins with an import is a whole program; others show a few lines of one."""
WHOLE = [(stem, code, expected) for stem, code, expected in GUIDES if code.startswith("import ")]


def test_the_guides_have_programs_with_output():
    assert {"graphs", "testing"} <= {stem for stem, _, _ in WHOLE}


@pytest.mark.parametrize(("stem", "code", "expected"), WHOLE, ids=[stem for stem, _, _ in WHOLE])
@pytest.mark.long
def test_a_program_of_a_guide_prints_what_the_page_says(stem, code, expected, tmp_path):
    printed = run_program(code, tmp_path).strip()
    assert pattern(expected).fullmatch(printed), printed


def test_the_program_of_the_readme_survives_its_fault(tmp_path):
    [(code, _)] = programs(ROOT / "README.md")
    assert run_program(code, tmp_path).strip() == "2 [0. 2. 4. 6.]"
