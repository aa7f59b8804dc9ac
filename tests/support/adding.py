"""A copy of the package to which the libraries of docs/adding-a-library.md were added."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from support import ROOT, child_environment

PAGE = ROOT / "docs" / "adding-a-library.md"
BLOCK = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def add_libraries(folder: Path) -> Iterable[str]:
    """Make the copy, and return the names of the files that the page has added."""
    parts = dict(BLOCK.findall(PAGE.read_text(encoding="utf-8")))
    no_caches = shutil.ignore_patterns("__pycache__")
    for name in ("atomr_trio", "bindings"):
        shutil.copytree(ROOT / name, folder / name, ignore=no_caches)
    (folder / "tests" / "support").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "support" / "registered.py", folder / "tests" / "support")
    for name, text in parts.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if path.parent.name in ("vector", "cuvector", "running", "curunning"):
            (path.parent / "__init__.py").write_text('"""A library of the page."""\n')
        path.write_text(f"from __future__ import annotations\n\n{text}", encoding="utf-8")
    run_there(folder, "tests/support/registered.py")
    return parts


def run_there(folder: Path, *command: str) -> str:
    """Run Python with the copy, and return what it has printed."""
    places = (folder, folder / "bindings", ROOT / "tests")
    environment = child_environment(PYTHONPATH=":".join(map(str, places)))
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
