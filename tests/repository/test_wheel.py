"""The wheel that `make test` builds: what is in it, and that it is what every test of this run has imported.

Elsewhere the package is the source tree, or whatever is installed, and this file is left out (see conftest.py).
"""

from __future__ import annotations

import email
import json
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

import atomr_cuda
import atomr_sim
import atomr_trio
import support
from support import ROOT
from support.rogue import worker_pid

INSTALLED = Path(sysconfig.get_path("purelib"))
SOURCES = {
    "atomr_trio": ROOT / "atomr_trio",
    "atomr_cuda": ROOT / "bindings" / "atomr_cuda",
    "atomr_sim": ROOT / "bindings" / "atomr_sim",
}
WHERE = "import atomr_cuda, atomr_sim, atomr_trio; print(*(m.__file__ for m in (atomr_cuda, atomr_sim, atomr_trio)))"


@pytest.fixture(scope="module")
def wheel():
    assert support.WHEEL is not None
    with zipfile.ZipFile(support.WHEEL) as archive:
        yield archive


def packaged_files(wheel: zipfile.ZipFile) -> dict[str, bytes]:
    """The files of the packages by their name in the wheel, without the wheel's own records."""
    return {name: wheel.read(name) for name in wheel.namelist() if ".dist-info/" not in name}


def record(wheel: zipfile.ZipFile, name: str) -> str:
    """One of the wheel's own records."""
    [path] = [path for path in wheel.namelist() if path.endswith(f".dist-info/{name}")]
    return wheel.read(path).decode()


def test_the_packages_under_test_are_the_installed_ones():
    assert Path(atomr_trio.__file__).parent == INSTALLED / "atomr_trio"
    assert Path(atomr_cuda.__file__).parent == INSTALLED / "atomr_cuda"
    assert Path(atomr_sim.__file__).parent == INSTALLED / "atomr_sim"
    direct_url = json.loads(distribution("atomr-trio").read_text("direct_url.json") or "{}")
    assert direct_url["url"] == Path(support.WHEEL or "").as_uri(), "installed from another wheel, or editable"


@pytest.mark.parametrize("environment", [None, support.child_environment()], ids=["ours", "a test's"])
def test_a_new_process_in_the_source_tree_imports_the_installed_ones(environment):
    command = [sys.executable, "-c", WHERE]
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert [Path(path).parent.parent for path in found.split()] == [INSTALLED] * len(SOURCES)


def python_path_of(pid: int) -> list[str]:
    """Where a process looks for modules first."""
    environment = dict(each.split("=", 1) for each in Path(f"/proc/{pid}/environ").read_text().split("\0") if each)
    return environment["PYTHONPATH"].split(":")


async def test_a_worker_has_no_source_tree_in_its_path(dev):
    paths = python_path_of(worker_pid(dev))
    assert str(INSTALLED) in paths
    assert not {str(ROOT), str(ROOT / "bindings")} & set(paths)


def test_the_wheel_holds_every_source_file_and_nothing_else(wheel):
    expected = {
        f"{package}/{path.relative_to(folder)}": path.read_bytes()
        for package, folder in SOURCES.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packaged = packaged_files(wheel)
    assert packaged.keys() == expected.keys()
    assert packaged == expected, "the wheel is older than the sources"


def test_what_is_installed_is_the_wheel(wheel):
    assert {name: (INSTALLED / name).read_bytes() for name in packaged_files(wheel)} == packaged_files(wheel)


@pytest.mark.parametrize(
    "name", [*(f"{package}/py.typed" for package in SOURCES), "atomr_trio/_cli/demo/gray_scott.cu"]
)
def test_the_wheel_holds_what_is_no_python(wheel, name):
    assert name in wheel.namelist()


def test_the_wheel_names_its_license_its_python_and_its_extras(wheel):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    metadata = email.message_from_string(record(wheel, "METADATA"))
    assert record(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Version"] == atomr_trio.__version__
    assert metadata["Requires-Python"] == project["requires-python"]
    assert set(metadata.get_all("Provides-Extra", [])) == set(project["optional-dependencies"])
    assert metadata.get_payload() == (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_wheel_is_for_every_python_3(wheel):
    assert support.WHEEL is not None
    assert support.WHEEL.endswith("-py3-none-any.whl")
    assert "Root-Is-Purelib: true" in record(wheel, "WHEEL")


def test_the_command_that_the_wheel_installs_runs():
    command = [str(Path(sys.executable).with_name("atomr-trio")), "--help"]
    assert "doctor" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
