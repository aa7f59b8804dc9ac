"""Every program in the tutorial, in the guides and in the README runs, and prints what its page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import support
from support import ROOT
from support.programs import programs


def pattern(expected: str) -> re.Pattern[str]:
    """The expected output as a pattern in which `...` stands for anything."""
    return re.compile(".*".join(re.escape(part) for part in expected.strip().split("...")), re.DOTALL)


def run_program(code: str, folder: Path) -> str:
    """Run a program in a fresh interpreter, on the backend of this run; what it printed."""
    script = folder / "program.py"
    script.write_text(code, encoding="utf-8")
    if "open_devices([0, 1]" in code:
        support.skip_without(2)
    environment = support.child_environment(
        ATOMR_TRIO_BACKEND=support.chosen_backend(),
        ATOMR_TRIO_SIM_DEVICES=os.environ.get("ATOMR_TRIO_SIM_DEVICES", "2"),
    )
    answer = subprocess.run(
        [sys.executable, str(script)], env=environment, cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


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
def test_a_program_of_a_guide_prints_what_the_page_says(stem, code, expected, tmp_path):
    printed = run_program(code, tmp_path).strip()
    assert pattern(expected).fullmatch(printed), printed


def test_the_program_of_the_readme_survives_its_fault(tmp_path):
    [(code, _)] = programs(ROOT / "README.md")
    assert run_program(code, tmp_path).strip() == "2 [0. 2. 4. 6.]"
