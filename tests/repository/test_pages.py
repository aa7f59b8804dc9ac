"""The pages for newcomers: their programs run, their tables name what exists, the messages that they quote are raised.

The programs run in this process, where a worker starts in a tenth of the time; in `make sweep` each has an interpreter
of its own, as those of the guide always have.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import atomr_trio
import support
from atomr_trio import plain
from support import ROOT
from support.equivalents import Cell, Reader, Untrue, cells
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
@pytest.mark.long
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


CELLS = [cell for page in PAGES for cell in cells(page)]


def test_the_tables_of_equivalents_name_many_things_of_ours():
    pages = {cell.page.stem for cell in CELLS}
    assert pages == {"cupy", "pytorch", "cuda-core", "numba"}
    assert len(CELLS) > 200


@pytest.mark.parametrize("page", sorted({cell.page.stem for cell in CELLS}))
def test_what_a_table_of_equivalents_says_of_ours_is_true(page: str):
    wrong = []
    for cell in CELLS:
        if cell.page.stem == page:
            try:
                check_cell(cell)
            except Untrue as error:
                wrong.append(f"{cell.text}: {error}")
    assert not wrong, "\n".join(wrong)


def check_cell(cell: Cell) -> None:
    """Raise `Untrue` if a code span in a column of ours is not true."""
    command = re.fullmatch(r"python -m atomr_trio (\w+)", cell.text)
    if command is not None:
        assert importlib.util.find_spec(f"atomr_trio._cli.{command[1]}") is not None
    else:
        Reader(cell.face).check(cell.text)


@pytest.mark.parametrize(
    ("face", "text"),
    [
        (atomr_trio, "dev.to_device(host)"),
        (atomr_trio, "await dev.empty(shape, dtype)"),
        (atomr_trio, "with dev.lane() as lane"),
        (atomr_trio, "await dev.blas.gemm(a)"),
        (atomr_trio, "dev.blas.gemm(a, b)"),
        (atomr_trio, "dev.statistics().memory.used"),
        (atomr_trio, "atomr_trio.NvrtcOptions(std=17)"),
        (atomr_trio, "atomr_trio.begin(0)"),
        (plain, "await dev.to_device(host)"),
        (plain, "dev.synchronize()"),
        (plain, "x.astype(dtype)"),
        (atomr_trio, "await x.get()"),
        (atomr_trio, "await batch.blas.gemm(a, b)"),
        (atomr_trio, "kernel(grid, block, x)"),
        (plain, "async with dev.lane() as lane"),
        (plain, "kernel.launch(grid, block, x, shared=nbytes)"),
        (plain, "dev.info()"),
        (plain, "unknown.fill(value)"),
        (plain, "dev.info free"),
    ],
)
def test_what_is_not_true_is_found(face: ModuleType, text: str):
    with pytest.raises(Untrue):
        Reader(face).check(text)


@pytest.mark.long
def test_each_message_that_is_explained_is_one_of_the_sources():
    quoted = re.findall(r"^### (.*)$", (DOCS / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(quoted) >= 25
    assert len(quoted) == len(set(quoted))
    assert not [each for each in quoted if not re.fullmatch(r"`[^`]+`", each)]
    assert not [each for each in quoted if not is_said(each.strip("`"), messages())]


@functools.cache
def messages() -> list[str]:
    """The texts in the sources, with a NUL in the place of each value; docstrings are none."""
    return list(_texts())


def _texts() -> Iterator[str]:
    for path in [*(ROOT / "atomr_trio").rglob("*.py"), ROOT / "bindings" / "atomr_cuda" / "_library.py"]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
                yield re.sub(r"\{[^}]*\}", "\0", node.value)


def is_said(quoted: str, texts: list[str]) -> bool:
    """Whether one of the texts has the fixed parts of a quoted message in their order."""
    parts = quoted.split("...")
    assert len(max(parts, key=len)) > 8, f"too little of {quoted!r} is fixed"
    return any(in_order(parts, text) for text in texts)


def in_order(parts: list[str], text: str) -> bool:
    """Whether a text has all of the parts, one behind the other."""
    place = 0
    for part in parts:
        place = text.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return True


@pytest.mark.parametrize("quoted", ["there is no such message anywhere", "the device was closed by ... and nobody"])
def test_a_message_that_nothing_says_is_found(quoted: str):
    assert not is_said(quoted, messages())


def test_a_quote_without_words_of_its_own_is_refused():
    with pytest.raises(AssertionError, match="too little"):
        is_said("the ... of ...", ["the array of x"])


def test_there_is_a_recipe_for_each_of_many_tasks_and_each_has_a_program():
    recipes = (DOCS / "recipes.md").read_text(encoding="utf-8").split("\n## ")[1:]
    assert len(recipes) >= 15
    assert not [each.partition("\n")[0] for each in recipes if "```python\n" not in each]
