"""The files for those who come to the repository: they say what is true of it."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
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


LICENCES = (ROOT / "docs" / "guide" / "licences.md").read_text(encoding="utf-8")


def dependencies() -> set[str]:
    """The packages that an installation brings, with any extra but those for work on this package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ours = {"dev", "docs", "abi"}
    extras = (each for extra, each in project["optional-dependencies"].items() if extra not in ours)
    return {re.split(r"[<>=;\[ ]", each)[0] for part in (project["dependencies"], *extras) for each in part}


def test_the_page_of_licences_names_each_package_that_is_installed_with_this_one():
    named = {
        name for row in re.findall(r"^\| ([^|]+) \|", LICENCES, re.MULTILINE) for name in re.split(r"[ ,()]+", row)
    }
    assert dependencies() - named == set()


@pytest.mark.parametrize("package", ["trio", "attrs", "platformdirs", "cuda-pathfinder", "ml-dtypes", "numpy"])
def test_the_page_of_licences_says_what_the_package_says_of_itself(package):
    try:
        said = metadata.metadata(package)["License-Expression"]
    except metadata.PackageNotFoundError:
        pytest.skip("not installed")
    if said is None:
        pytest.skip("this version has no such field")
    written = re.findall(rf"^\| {package} [^|]*\| [^|]+ \| ([^|]+) \|", LICENCES, re.MULTILINE)
    assert {row.partition(";")[0] for row in written} == {said.split(" AND ")[0].replace(" OR ", " or ")}


def test_the_licence_stands_in_the_metadata_and_at_the_root():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["license"] == "Apache-2.0"
    assert project["license-files"] == ["LICENSE"]
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
