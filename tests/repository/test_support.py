"""What the tests' own helpers promise, where a test would prove nothing if they did not keep it."""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

import support
from atomr_trio import start
from support import set_constant, template

TEXTS = {
    "home_of_a_constant": """
LIMIT = 3
def limit():
    return LIMIT
""",
    "reader_of_a_constant": """
from home_of_a_constant import LIMIT
class Reader:
    def limit(self):
        return [LIMIT for _ in range(1)]
""",
    "bystander_of_a_constant": """
from home_of_a_constant import LIMIT
def limit(value=LIMIT):
    return value
""",
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[ModuleType]:
    """Where a constant is at home, where a method reads it too, and where nothing but the import does."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in TEXTS.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        monkeypatch.setitem(sys.modules, name, None)  # so that it is forgotten at the end
        del sys.modules[name]
    return [importlib.import_module(name) for name in TEXTS]


def test_a_constant_is_set_in_the_module_whose_functions_read_it_and_put_back(modules: list[ModuleType]) -> None:
    home, reader, _ = modules
    with pytest.MonkeyPatch.context() as patch:
        set_constant(patch, home, "LIMIT", 4)
        assert (home.limit(), reader.Reader().limit()) == (4, [3])
        set_constant(patch, reader, "LIMIT", 5)
        assert (home.limit(), reader.Reader().limit()) == (4, [5])
    assert (home.limit(), reader.Reader().limit()) == (3, [3])


def test_a_constant_that_no_function_of_the_module_reads_cannot_be_set_there(modules: list[ModuleType]) -> None:
    *_, bystander = modules
    for name in ("LIMIT", "UNHEARD_OF"):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(AssertionError, match=f"no function .* reads {name}"):
            set_constant(patch, bystander, name, 4)
        assert bystander.limit() == 3


def test_the_template_of_workers_ends_with_the_tests_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[template.Template] = []

    @functools.cache
    def one() -> template.Template:
        made.append(template.Template())
        return made[-1]

    monkeypatch.setattr(template, "template", one)
    template.end()
    assert made == []
    pid = one().pid
    assert template.own() == {pid}
    template.end()
    assert made[0]._process.returncode is not None
    assert made[0]._sock.fileno() == -1
    template.end()
    assert len(made) == 1


@pytest.mark.sim_only
@pytest.mark.skipif(support.FRESH, reason="every worker of this run is started as users start it")
def test_the_workers_of_the_suite_are_copies_of_the_template() -> None:
    """Else it takes twice as long, as it did when a variable of each worker was none that a copy is told."""
    with start(0, backend="sim") as dev:
        serving = dev.awaited._core.serving
        assert serving is not None
        assert b"support.template" in Path(f"/proc/{serving.process.pid}/cmdline").read_bytes()
