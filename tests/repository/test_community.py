"""The files for those who come to the repository: they say what is true of it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import atomr_trio

ROOT = Path(__file__).parents[2]
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "README.md")
TARGETS = set(re.findall(r"^#   make ([\w-]+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def test_the_citation_is_of_this_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {atomr_trio.__version__}\n" in citation
    assert f"\nlicense: {project['license']}\n" in citation


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (ROOT / target).exists(), target


def test_targets_that_a_newcomer_is_told_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`?make ([\w-]+)", text))
    assert {"test", "lint", "docs"} <= named
    assert named <= TARGETS | {"help"}
