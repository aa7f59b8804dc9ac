"""The programs that a page of the documentation shows, and how they are run.

A comment of HTML before a block says what is special about it:

- ``<!-- not run: reason -->``: nothing here can run it. It must compile.
- ``<!-- simulator only: reason -->``: it is not run on a GPU.
- ``<!-- file: name -->``: the block is a file that lies beside the programs of its page.
"""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import attrs

import support

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARKED = re.compile(r"(?:^<!-- (?P<mark>[a-z ]+): (?P<words>[^>]+) -->\n)?" + BLOCK.pattern, re.MULTILINE | re.DOTALL)
MARKS = ("not run", "simulator only", "file")


def programs(page: Path) -> list[tuple[str, str]]:
    """The programs of a page, each with the output that stands below it."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    followed_by = [*blocks[1:], ("", "")][: len(blocks)]
    return [
        (code, next_text if next_language == "text" else "")
        for (language, code), (next_language, next_text) in zip(blocks, followed_by, strict=True)
        if language == "python"
    ]


@attrs.frozen
class Program:
    """A block of Python on a page."""

    page: Path
    number: int
    """Its place among the programs of the page, from 1."""
    code: str
    expected: str
    """The output that stands below it."""
    mark: str
    """One of `MARKS`, or nothing."""
    reason: str
    """The words of the mark."""
    files: dict[str, str] = attrs.Factory(dict)
    """The files of the page, by name."""

    @property
    def name(self) -> str:
        """A name for a test's case."""
        return f"{self.page.stem}-{self.number}"


def marked_programs(page: Path) -> list[Program]:
    """The programs of a page with their marks."""
    found: list[Program] = []
    files: dict[str, str] = {}
    blocks = list(MARKED.finditer(page.read_text(encoding="utf-8")))
    for match, following in itertools.pairwise([*blocks, None]):
        assert match is not None
        mark, words = match["mark"] or "", match["words"] or ""
        language, text = match[3], match[4]
        assert not mark or mark in MARKS, f"{page.name}: no such mark: {mark}"
        if mark == "file":
            files[words.strip()] = text
        elif language == "python":
            expected = following[4] if following is not None and following[3] == "text" else ""
            found.append(Program(page, len(found) + 1, text, expected, mark, words, files))
    return found


def pattern(expected: str) -> re.Pattern[str]:
    """The expected output as a pattern in which `...` stands for anything."""
    return re.compile(".*".join(re.escape(part) for part in expected.strip().split("...")), re.DOTALL)


def run_program(code: str, folder: Path) -> str:
    """Run a program in a fresh interpreter, on the backend of this run; what it printed."""
    script = folder / "program.py"
    script.write_text(code, encoding="utf-8")
    _skip_without_devices(code)
    environment = support.child_environment(
        ATOMR_TRIO_BACKEND=support.chosen_backend(),
        ATOMR_TRIO_SIM_DEVICES=os.environ.get("ATOMR_TRIO_SIM_DEVICES", "2"),
    )
    answer = subprocess.run(
        [sys.executable, str(script)], env=environment, cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def run_here(program: Program, folder: Path) -> str:
    """Run a program in this process, which saves most of its time; what it printed.

    The caller has set the backend of this run in the environment.
    """
    _skip_without_devices(program.code)
    for name, text in program.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    script = folder / "program.py"
    script.write_text(program.code, encoding="utf-8")
    namespace = {"__name__": "__main__", "__file__": str(script)}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(program.code, str(script), "exec"), namespace)
    namespace.clear()
    gc.collect()
    return printed.getvalue()


def _skip_without_devices(code: str) -> None:
    """Skip the running test if its program opens more devices than there are."""
    if "([0, 1]" in code:
        support.skip_without(2)
