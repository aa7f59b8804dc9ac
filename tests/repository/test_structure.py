"""The drawing of the folders and the walk of a call are made from the code, and are what the code says."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from support import ROOT, child_environment
from support.structure import structure

DOCS = ROOT / "docs"


def test_the_drawing_is_that_of_the_code():
    """`make structure` draws it anew."""
    assert (DOCS / "architecture" / "structure.svg").read_text(encoding="utf-8") == structure().drawing()


def test_the_page_of_records_says_what_the_code_declares():
    assert (DOCS / "architecture" / "records.md").read_text(encoding="utf-8") == structure().records()


@pytest.mark.long
@pytest.mark.sim_only
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions of Python make other calls")
def test_the_walk_of_a_call_is_that_of_the_code():
    """In the source tree, which may not be what this process has imported: in one of its own."""
    program = (
        "import importlib.util, sys, trio\n"
        f"found = importlib.util.spec_from_file_location('structure', {str(DOCS / 'structure.py')!r})\n"
        "module = importlib.util.module_from_spec(found)\n"
        "found.loader.exec_module(module)\n"
        "print(trio.run(module.walk), end='')\n"
    )
    environment = child_environment(PYTHONPATH=f"{ROOT}:{ROOT / 'bindings'}")
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    # A first call may find another task at work, or not.
    first = re.compile(r"time 1: (\d+) calls")
    drawn = (DOCS / "architecture" / "walk.txt").read_text(encoding="utf-8")
    assert first.sub("time 1: some calls", done.stdout) == first.sub("time 1: some calls", drawn)
    for now, then in zip(first.findall(done.stdout), first.findall(drawn), strict=True):
        assert abs(int(now) - int(then)) < 10
