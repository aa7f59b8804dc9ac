"""Programs of the documentation that only a GPU can run, with the other libraries that they name.

A program of another library stands above the same one for this library, and prints the same.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from support import ROOT
from support.programs import Program, marked_programs, pattern, run_program

DOCS = ROOT / "docs"
PAGES = [DOCS / "recipes.md", *sorted((DOCS / "coming-from").glob("*.md"))]


def foreign() -> list[Program]:
    """The programs that are not run elsewhere, each with the output that stands below it or the next one."""
    found = []
    for page in PAGES:
        programs = marked_programs(page)
        for place, program in enumerate(programs):
            if program.mark == "not run":
                expected = next(each.expected for each in programs[place:] if each.expected)
                found.append(Program(page, program.number, program.code, expected, program.mark, program.reason))
    return found


def packages(code: str) -> set[str]:
    """The packages that a program imports."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
    return found


def skip_if_broken(package: str) -> None:
    """Skip the running test if a package that is there cannot do anything: numba with a numpy that is too new."""
    if package == "numba":
        try:
            pytest.importorskip("numba.cuda").jit("void()")(lambda: None)
        except AttributeError as error:
            pytest.skip(f"numba does not go with this numpy: {error}")


@pytest.mark.parametrize("program", foreign(), ids=lambda program: program.name)
def test_what_only_a_gpu_can_run_prints_what_the_page_says(program: Program, tmp_path: Path) -> None:
    for package in packages(program.code) - {"atomr_trio"}:
        pytest.importorskip(package)
        skip_if_broken(package)
    printed = run_program(program.code, tmp_path)
    assert pattern(program.expected).fullmatch(printed.strip()), printed
