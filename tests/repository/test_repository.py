"""What lies at the root of the repository, and what messages say of how the package is installed."""

from __future__ import annotations

import re
import tomllib

from support import ROOT
from support.checkout import tracked

FILES = {
    ".gitignore",
    "LICENSE",
    "Makefile",
    "README.md",
    "pyproject.toml",
    "CHANGELOG.md",
    "CITATION.cff",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
}
FOLDERS = {".ci", "atomr_trio", "bindings", "changes", "docs", "examples", "tests", ".github"}
EXTRA = re.compile(r"atomr-trio\[([^]{}]*)\]")
NAMED_EXTRA = re.compile(r"""\bextra\w*=["']([\w-]+)["']|\binstall\(["'](\w+)["']\)""")


def test_the_root_of_the_repository_holds_these_files_and_folders_and_no_others():
    names = tracked()
    assert {name for name in names if "/" not in name} == FILES
    assert {name.partition("/")[0] for name in names if "/" in name} == FOLDERS


def test_every_extra_that_is_named_exists():
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    texts = {
        path: path.read_text(encoding="utf-8")
        for folder, pattern in (("atomr_trio", "*.py"), ("bindings", "*.py"), ("docs", "*.md"), (".", "README.md"))
        for path in ((ROOT / folder).rglob(pattern) if folder != "." else [ROOT / pattern])
    }
    named = {
        (path.name, extra)
        for path, text in texts.items()
        for match in [*EXTRA.findall(text), *("".join(groups) for groups in NAMED_EXTRA.findall(text))]
        for extra in match.split(",")
    }
    assert {extra for _, extra in named} >= {"cu13", "sim", "bfloat16"}
    assert {(name, extra) for name, extra in named if extra not in extras} == set()
