"""The tables' numbers in ``atomr_cuda.constants``: that they are those of the tables, and cost next to nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support import child_environment
from support.constants import FOLDER, LIBRARIES, enumerations, text_of


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_numbers_are_those_of_the_table(name):
    """`make constants` writes them."""
    assert (FOLDER / f"{name}.py").read_text(encoding="utf-8") == text_of(name)
    assert [*enumerations(name)]


def test_every_table_has_its_numbers_and_there_are_no_others():
    assert {path.stem for path in Path(FOLDER).glob("*.py")} == {*LIBRARIES, "__init__"}


def test_the_numbers_load_no_table():
    program = (
        "import sys\n"
        f"for name in {LIBRARIES!r}: __import__('atomr_cuda.constants.' + name)\n"
        "print(*(name for name in sys.modules if name.startswith('atomr_cuda._driver')))"
    )
    command = [sys.executable, "-S", "-c", program]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
