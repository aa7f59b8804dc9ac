"""Each example runs and finds its result right, and the gallery shows all of them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import support
from support import ROOT

EXAMPLES, DOCS = ROOT / "examples", ROOT / "docs"
PAGE = (DOCS / "gallery.md").read_text(encoding="utf-8")
LINES_OF_A_FILE = 99
BYTES_OF_A_PICTURE = 60_000

# What each prints, among other lines; it has found the result right then.
PRINTED = {
    "data_parallel": ["generations of the devices: [1, 2]", "the weights are those of numpy"],
    "heat_equation": ["200 steps on 48 x 48 cells agree with numpy"],
    "image_service": ["25 requests, 0 wrong answers; 12 x blur: 200, 12 x edges: 200, 1 x sharpen: 500"],
    "kmeans": ["of the points joined the same centre as with numpy"],
    "linear_regression": ["a column too many: the matrix is not of full rank", "the model is that of numpy"],
    "mandelbrot": ["6144 points, 1622 of them in the set, as numpy finds too"],
    "monte_carlo": ["by the formula 8.025"],
    "nbody": ["from where they began"],
    "pagerank": ["as by numpy's eigenvectors: most visitors are at the pages 0 ("],
    "parameter_sweep": ["400 values of r; order ends near r = 3.57"],
    "pytest_project": ["10 passed"],
    "spectrogram": ["frames agree with numpy; the melody is C4 D4 E4 G4 A4 C5 E5 G5"],
    "state_through_faults": ["the array that it was writing                   torn"],
}
OFTEN = {"data_parallel", "image_service", "linear_regression", "pytest_project", "state_through_faults"}
"""Those that `make test` runs, which use most of the package; LONG=yes runs all."""
DEVICES = {"data_parallel": 2}
NEEDS = {"image_service": "h11"}
PLUGIN = "atomr_trio.pytest_plugin"
DRAWN = {"heat_equation", "mandelbrot"}
"""Those that draw their picture wherever they run; in `make sweep` all do: loading matplotlib takes half a second."""


def files(name: str) -> list[Path]:
    """The modules of an example: one, or those of a folder."""
    folder = EXAMPLES / name
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [EXAMPLES / f"{name}.py"]


def draws(name: str) -> bool:
    """Whether an example can draw its result."""
    return '"--picture"' in files(name)[0].read_text(encoding="utf-8")


def run(name: str, *arguments: str, folder: Path, first: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run an example in a fresh interpreter, in a folder of its own; modules in `first` are found before all others."""
    backend = support.chosen_backend()
    if name == "pytest_project":
        installed = any(each.value == PLUGIN for each in importlib.metadata.entry_points(group="pytest11"))
        plugin = [] if installed else ["-p", PLUGIN]
        command = ["-m", "pytest", "-p", "no:cacheprovider", *plugin, str(EXAMPLES / name), "--gpu-backend", backend]
    else:
        command = [str(EXAMPLES / name if (EXAMPLES / name).is_dir() else files(name)[0]), "--backend", backend]
    environment = support.child_environment(ATOMR_TRIO_SIM_DEVICES=os.environ.get("ATOMR_TRIO_SIM_DEVICES", "2"))
    if first:
        environment["PYTHONPATH"] = os.pathsep.join([str(first), environment["PYTHONPATH"]])
    return subprocess.run(
        [sys.executable, *command, *arguments], env=environment, cwd=folder, capture_output=True, text=True, timeout=120
    )


def section(name: str) -> str:
    """The part of the gallery that is about an example: from one heading to the next."""
    [found] = [each for each in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:] if f"../examples/{name}" in each]
    return found


def test_every_example_is_run_here_but_for_the_notebook():
    """``tests/notebook`` runs that."""
    found = {path.stem for path in EXAMPLES.iterdir() if path.name not in ("__pycache__", "notebook.ipynb")}
    assert found == set(PRINTED)
    assert len(found) >= 10


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in OFTEN else pytest.mark.long) for name in PRINTED]
)
def test_an_example_finds_its_result_right(name, tmp_path):
    support.skip_without(DEVICES.get(name, 1))
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    picture = draws(name) and (support.SWEEP or name in DRAWN) and importlib.util.find_spec("matplotlib")
    answer = run(name, *(["--picture", "drawn.png"] if picture else []), folder=tmp_path)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert [line for line in PRINTED[name] if line not in answer.stdout] == [], answer.stdout
    for shown in re.findall(r"```text\n(.*?)```", section(name), re.DOTALL):
        assert shown in answer.stdout
    drawn = [path.read_bytes()[:4] for path in tmp_path.iterdir() if path.is_file()]
    assert drawn == [b"\x89PNG"] * bool(picture)


def test_an_example_whose_result_is_wrong_fails(tmp_path):
    spoil = "A, right = atomr_trio.DeviceArray, atomr_trio.DeviceArray.to_host\n"
    spoil += "async def wrong(self):\n    return await right(self) * 1.01\nA.to_host = wrong\n"
    (tmp_path / "sitecustomize.py").write_text(f"import atomr_trio\n{spoil}", encoding="utf-8")
    answer = run("pagerank", folder=tmp_path, first=tmp_path)
    assert answer.returncode == 1
    assert "Not equal to tolerance" in answer.stderr


def test_a_picture_without_matplotlib_is_refused_before_anything_is_computed(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['matplotlib'] = None\n", encoding="utf-8")
    [*drawing] = filter(draws, PRINTED)
    assert len(drawing) >= 5
    answer = run(drawing[0], "--picture", "drawn.png", folder=tmp_path, first=tmp_path)
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr == "--picture needs matplotlib: pip install matplotlib\n"
    check = "if options.picture and not importlib.util.find_spec"
    assert [name for name in drawing if check not in files(name)[0].read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_is_short(name):
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in files(name)}
    assert {file: length for file, length in lengths.items() if length > LINES_OF_A_FILE} == {}


@pytest.mark.parametrize("name", PRINTED)
def test_the_gallery_shows_an_example(name):
    text = section(name)
    for path in files(name):
        assert f"(../{path.relative_to(ROOT).as_posix()})" in text
    [command] = re.findall(r"^    .*python (?:-m pytest )?(examples/.*)$", text, re.MULTILINE)
    assert (ROOT / command.split()[0]).exists()
    source = "".join(path.read_text(encoding="utf-8") for path in files(name))
    options = set(re.findall(r"--[\w-]+", command)) - {"--gpu-backend"}
    assert {option for option in options if f'"{option}"' not in source} == set()
    assert re.findall(r"!\[[^]]+\]\((.*?)\)", text) == ([f"gallery/{name}.png"] if draws(name) else [])


def test_the_pictures_of_the_gallery_are_small_and_all_shown():
    sizes = {path.stem: path.stat().st_size for path in (DOCS / "gallery").iterdir()}
    assert sorted(sizes) == sorted(filter(draws, PRINTED))
    assert max(sizes.values()) <= BYTES_OF_A_PICTURE


def test_make_gallery_draws_every_picture_by_the_command_of_the_page():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    made = re.findall(r"^\t.*-P (examples/\S+.*) --picture docs/gallery/(\w+)\.png$", makefile, re.MULTILINE)
    shown = [
        (command, Path(command.split()[0]).stem)
        for command in re.findall(r"^    .*python (examples/.*) --picture \w+\.png$", PAGE, re.MULTILINE)
    ]
    assert sorted(made) == sorted(shown)
    assert len(made) == sum(map(draws, PRINTED))
