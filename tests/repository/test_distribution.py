"""What a release consists of: the sdist, wheels of equal bytes, the change log, and the check of the tag."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

import atomr_trio
import support
from support import ROOT
from support.checkout import tracked

FRAGMENT = re.compile(r"(\+[a-z0-9-]+|\d+)\.(added|changed|removed|fixed|security)\.md")
BUILD = """
import sys
from hatchling import build
print(getattr(build, "build_" + sys.argv[1])(sys.argv[2]))
"""


def built(kind: str, source: Path, folder: Path, **environment: str) -> Path:
    """The sdist or wheel of a tree, made in a new process."""
    pytest.importorskip("hatchling")
    folder.mkdir()
    asked = subprocess.run(
        [sys.executable, "-c", BUILD, kind, str(folder)],
        cwd=source,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert asked.returncode == 0, asked.stderr
    return folder / asked.stdout.strip()


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("sdist", ROOT, tmp_path_factory.mktemp("sdist") / "made")


def unpacked(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    [tree] = folder.iterdir()
    return tree


def test_the_sdist_holds_every_file_of_the_repository(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert "PKG-INFO" in names
    assert {name for name in tracked() if (ROOT / name).exists()} <= names


@pytest.mark.long
def test_two_wheels_of_the_same_sources_have_the_same_bytes(sdist, tmp_path):
    tree = unpacked(sdist, tmp_path / "one")
    other = tmp_path / "another" / "and deeper"
    shutil.copytree(tree, other, copy_function=shutil.copyfile)  # with the time of now
    for path in other.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    first = built("wheel", tree, tmp_path / "first")
    second = built("wheel", other, tmp_path / "second", TZ="Pacific/Auckland", LC_ALL="C", PYTHONHASHSEED="1")
    assert first.name == second.name == f"atomr_trio-{atomr_trio.__version__}-py3-none-any.whl"
    assert first.read_bytes() == second.read_bytes()
    if support.WHEEL:
        assert Path(support.WHEEL).read_bytes() == first.read_bytes()


# -- the change log ----------------------------------------------------------------------------------------------------


def fragments(root: Path = ROOT) -> list[Path]:
    return sorted(path for path in (root / "changes").iterdir() if path.name != "template.md")


def test_each_fragment_of_the_change_log_has_a_kind_and_a_text():
    kinds = {kind["directory"] for kind in project()["tool"]["towncrier"]["type"]}
    for path in fragments():
        found = FRAGMENT.fullmatch(path.name)
        assert found, path.name
        assert found[2] in kinds
        text = path.read_text(encoding="utf-8")
        assert text.rstrip("\n").endswith("."), path.name
        assert text.count("\n") == 1, f"{path.name}: one line"


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what a release looks at, with one fragment of our own."""
    for name in ("Makefile", "pyproject.toml", "CITATION.cff", "CHANGELOG.md", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "atomr_trio").mkdir()
    (tmp_path / "bindings").mkdir()
    shutil.copy(ROOT / "atomr_trio" / "__init__.py", tmp_path / "atomr_trio")
    shutil.copytree(ROOT / "changes", tmp_path / "changes")
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    (tmp_path / "changes" / "+of-this-test.fixed.md").write_text("A fragment of this test.\n", encoding="utf-8")
    return tmp_path


def make(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make there, with the tools of this environment."""
    if shutil.which("make") is None:
        pytest.skip("there is no make here")
    command = [
        "make",
        "VENV=.venv",
        "-o",
        ".venv/.dev-ready",
        "-o",
        ".venv/.builder-ready",
        f"RUN={sys.executable}",
        *arguments,
    ]
    inherited = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return subprocess.run(command, cwd=tree, env=inherited, capture_output=True, text=True, timeout=60)


def test_the_change_log_is_made_from_fragments_and_a_release_takes_them(tree):
    pytest.importorskip("towncrier")
    pytest.importorskip("hatchling")
    log = tree / "CHANGELOG.md"
    assert "of this test" not in log.read_text(encoding="utf-8")
    for _ in range(2):  # the second time, what was there is made anew
        made = make(tree, "changelog")
        assert made.returncode == 0, made.stderr
        text = log.read_text(encoding="utf-8")
        assert text.count("## Unreleased") == 1
        for fragment in fragments(tree):
            assert text.count(fragment.read_text(encoding="utf-8").strip()) == 1, fragment.name
    assert make(tree, "release-check", f"TAG=v{atomr_trio.__version__}").returncode != 0
    made = make(tree, "changelog", "RELEASE=yes")
    assert made.returncode == 0, made.stderr
    text = log.read_text(encoding="utf-8")
    assert "Unreleased" not in text.partition("<!--")[2]
    assert re.search(rf"^## {re.escape(atomr_trio.__version__)} \(\d+-\d\d-\d\d\)$", text, re.MULTILINE)
    assert text.count("A fragment of this test.") == 1
    assert fragments(tree) == []
    checked = make(tree, "release-check", f"TAG=v{atomr_trio.__version__}")
    assert checked.returncode == 0, checked.stdout + checked.stderr


# -- the check of a release --------------------------------------------------------------------------------------------


def disagreements(root: Path, tag: str) -> list[str]:
    spec = importlib.util.spec_from_file_location("release_of_ci", ROOT / ".ci" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.disagreements(root, tag)


def test_whatever_disagrees_with_the_version_is_named(tree):
    version = atomr_trio.__version__
    (tree / "CHANGELOG.md").write_text(f"## {version} (2026-01-01)\n", encoding="utf-8")
    for fragment in fragments(tree):
        fragment.unlink()
    assert disagreements(tree, f"v{version}") == []
    [wrong] = disagreements(tree, "v9.9")
    assert "v9.9" in wrong
    assert version in wrong
    [missing] = disagreements(tree, "")
    assert "the tag is missing" in missing
    (tree / "changes" / "+late.added.md").write_text("Late.\n", encoding="utf-8")
    (tree / "CITATION.cff").write_text("cff-version: 1.2.0\n", encoding="utf-8")
    (tree / "CHANGELOG.md").write_text("# Changes\n", encoding="utf-8")
    cited, unlogged, left = disagreements(tree, f"v{version}")
    assert "CITATION" in cited
    assert "has no section" in unlogged
    assert "+late.added.md" in left
