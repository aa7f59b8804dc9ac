"""The pages for newcomers: their programs run, their tables name what exists, the messages that they quote are raised.

The programs run in this process, where a worker starts in a tenth of the time; in `make sweep` each has an interpreter
of its own, as those of the guide always have.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import support
from support import ROOT
from support.programs import Program, marked_programs, pattern, run_here, run_program

DOCS = ROOT / "docs"
PAGES = [
    DOCS / "index.md",
    DOCS / "tutorial-plain.md",
    *sorted((DOCS / "coming-from").glob("*.md")),
    DOCS / "recipes.md",
    DOCS / "faq.md",
    DOCS / "troubleshooting.md",
    DOCS / "promises.md",
]
PROGRAMS = [program for page in PAGES for program in marked_programs(page)]
RUN = [
    pytest.param(each, id=each.name, marks=[pytest.mark.sim_only] if each.mark == "simulator only" else [])
    for each in PROGRAMS
    if each.mark != "not run"
]
NOT_RUN = [each for each in PROGRAMS if each.mark == "not run"]


@pytest.fixture
def page_environment(kept_compiles: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend of this run, for programs that do not name one."""
    monkeypatch.setenv("ATOMR_TRIO_BACKEND", support.chosen_backend())
    monkeypatch.setenv("ATOMR_TRIO_SIM_DEVICES", os.environ.get("ATOMR_TRIO_SIM_DEVICES", "2"))


@pytest.mark.parametrize("program", RUN)
def test_a_program_of_a_page_prints_what_the_page_says(program: Program, tmp_path: Path, page_environment: None):
    if support.SWEEP:
        for name, text in program.files.items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        printed = run_program(program.code, tmp_path).strip()
    else:
        printed = run_here(program, tmp_path).strip()
    assert pattern(program.expected).fullmatch(printed), printed


@pytest.mark.parametrize("program", NOT_RUN, ids=[each.name for each in NOT_RUN])
def test_a_program_that_is_not_run_compiles_and_says_why(program: Program):
    compile(program.code, program.name, "exec", dont_inherit=True)
    assert len(program.reason) > 10


def test_a_program_that_is_run_says_what_it_prints():
    assert not [each.name for each in PROGRAMS if each.mark != "not run" and not each.expected]
