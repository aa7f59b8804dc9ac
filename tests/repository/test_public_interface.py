"""Every public name says what it takes, gives, raises and calls, and docs/reference shows all of them.

What can be checked without understanding the text is checked here: each name is described and stands in the reference;
each parameter is spoken of; errors are told, by names that exist; numbers have units, arrays shapes and dtypes; and the
C functions that are named are in the tables of the bindings.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atomr_cuda.injection import SIMULATED
from atomr_trio._calls.verbs import is_verb
from support import ROOT
from support.public_interface import CALLABLES, FACES, PUBLIC, Member, described, resolve, spelled

REFERENCE = ROOT / "docs" / "reference"
TAKERS = [member for member in PUBLIC if member.parameters]


def test_the_walk_finds_what_is_public():
    names = {member.name for member in PUBLIC}
    assert len(names) == len(PUBLIC)
    assert names > {"open_device", "Device.zeros", "DeviceArray.shape", "DeviceState.CLOSED", "ContextLost.generation"}
    assert names > {"ReadOnly.array", "NvrtcOptions.arch", "KernelAttributes.registers", "testing.inject"}
    assert not [name for name in names if "._" in name or name.endswith((".add_note", ".name.name"))]


def defined(tree: ast.Module) -> set[str]:
    """The names that a module gives a meaning to, other than by importing them."""
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)}
    assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    targets = [target for node in assigned for target in getattr(node, "targets", [getattr(node, "target", None)])]
    return names | {target.id for target in targets if isinstance(target, ast.Name)}


def test_a_public_name_that_is_no_class_has_one_meaning_in_the_package():
    """The reference finds the description of such a name by the name alone, wherever in the package it stands."""
    package = Path(inspect.getfile(FACES[0])).parent
    meanings = {path: defined(ast.parse(path.read_text(encoding="utf-8"))) for path in package.rglob("*.py")}
    named = {name: getattr(face, name) for face in FACES for name in face.__all__}
    public = {name for name, value in named.items() if not (inspect.isclass(value) or inspect.isfunction(value))}
    assert "Check" in public
    homes = {name: sorted(path.name for path, names in meanings.items() if name in names) for name in public}
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


# ---------------------------------------------------------------------------------------------------- descriptions


def test_every_public_name_is_described_by_a_sentence():
    first = {member.name: member.doc.partition("\n\n")[0].strip() for member in PUBLIC}
    assert {name: text for name, text in first.items() if not re.fullmatch(r'[A-Z`"0-9].*[.:]', text, re.DOTALL)} == {}


def test_a_docstring_speaks_of_every_parameter():
    pairs = [(member, each.name) for member in TAKERS for each in member.parameters]
    assert [f"{member.name}({name})" for member, name in pairs if not member.says_of(name)] == []


# ---------------------------------------------------------------------------------------------------- errors

NAME = re.compile(r"`([A-Za-z_][\w.]*)`")
AS_ANOTHER = re.compile(r"\bas `([\w.]+)` does|what `([\w.]+)` raises")


def told_by(member: Member) -> str:
    """The part of a docstring that tells the errors: from the word Raises to the end of its paragraph."""
    return " ".join(re.findall(r"\bRaises\s(.*?)(?:\n\n|\Z)", member.doc, re.DOTALL))


def errors_of(member: Member) -> set[type[BaseException]]:
    """The exceptions that the docstring of a member tells, with those of the member that it refers to."""
    named = {resolve(name, member.owner) for name in NAME.findall(told_by(member))}
    errors = {each for each in named if inspect.isclass(each) and issubclass(each, BaseException)}
    for names in AS_ANOTHER.findall(told_by(member)):
        errors |= errors_of(described("".join(names), member.owner))
    return errors


def test_whoever_takes_something_tells_the_errors():
    silent = [m.name for m in TAKERS if not errors_of(m) and not told_by(m).startswith("nothing")]
    assert silent == []


def test_the_errors_that_are_told_exist():
    named = [(member, name) for member in PUBLIC for name in NAME.findall(told_by(member)) if name[0].isupper()]
    assert len(named) > len(TAKERS)
    assert [f"{member.name}: {name}" for member, name in named if resolve(name, member.owner) is None] == []


def raised_by(function: Callable[..., Any]) -> set[str]:
    """The names of the exceptions that a function raises in its own lines, less those that mean a defect of ours."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    raised = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc is not None]
    called = [node.func if isinstance(node, ast.Call) else node for node in raised]
    names = {ast.unparse(node).removeprefix("trio.") for node in called}
    return {name for name in names if name[0].isupper()} - {"AssertionError", "AtomrInternalError"}


def test_an_error_that_the_code_raises_is_told():
    raised = {member: raised_by(member.function) for member in CALLABLES if member.function is not None}
    assert any(raised.values())
    secret = {member.name: raised[member] - {error.__name__ for error in errors_of(member)} for member in raised}
    assert {name: errors for name, errors in secret.items() if errors} == {}


# ---------------------------------------------------------------------------------------------------- units

UNITS = {
    r".*_timeout|timeout|.*period|seconds|uptime|backoff_m\w+|delay": r"\bseconds?\b",
    r".*bytes|memory_limit|itemsize|strides|total_memory|in_use|cached|reserved|staging|limit|alignment": r"\bbytes?\b",
    r"shape": r"\b(elements|lengths)\b",
}
"""What is said of numbers that are called so."""

COUNTED = (
    r"\b(seconds?|bytes?|index|numbers?|how (many|often)|status|version|capability|generation|standard|address|share|"
    r"(element|axe?|thread|block|register|request|command|actor|event|time|restart|standby|worker|parameter|length|"
    r"failure|call|process(es)?)s?)\b"
)
"""What is said of every other number: what it counts, or that it is a name which is a number."""

NUMERIC = re.compile(r"\b(int|float|SupportsIndex)\b")
NO_NUMBER = re.compile(r"\b(Callable|Mapping|dict)\b")


def numbers() -> dict[str, tuple[str, str]]:
    """Everything public that is a number: its own name, and what is said of it."""
    found = {}
    for member in PUBLIC:
        given = [
            (f"({each.name})", each.name, each.annotation, member.says_of(each.name)) for each in member.parameters
        ]
        for shown, name, annotation, said in [*given, ("", member.name.rpartition(".")[2], member.result, member.doc)]:
            if NUMERIC.search(spelled(annotation)) and not NO_NUMBER.search(spelled(annotation)):
                found[member.name + shown] = name, said
    return found


def test_a_number_has_a_unit():
    def unit(name: str) -> str:
        return next((unit for pattern, unit in UNITS.items() if re.fullmatch(pattern, name)), COUNTED)

    assert {"Device.empty(shape)", "LaneStatistics.unfinished", "RestartPolicy.period"} < numbers().keys()
    bare = {what: said for what, (name, said) in numbers().items() if not re.search(unit(name), said, re.IGNORECASE)}
    assert bare == {}


# ---------------------------------------------------------------------------------------------------- arrays

ARRAYS = re.compile(r"npt\.|DeviceArray\b")
AS_THEY_ARE = {"read_only", "writes", "overwrites", "strided", "Kernel.launch", "Kernel.launch_nowait", "Batch.launch"}
"""They take arrays of every shape and dtype."""


def handles_arrays(member: Member) -> bool:
    """Whether arrays go in or come out."""
    annotations = [*(spelled(each.annotation) for each in member.parameters), member.result]
    return member.name not in AS_THEY_ARE and any(map(ARRAYS.search, annotations))


def test_whoever_takes_or_gives_an_array_says_which_shape_and_dtype():
    handlers = [member for member in CALLABLES if handles_arrays(member)]
    assert len(handlers) >= 8
    assert [f"{m.name}: {word}" for m in handlers for word in ("shape", "dtype") if word not in m.doc] == []


# ---------------------------------------------------------------------------------------------------- sources

C_FUNCTION = re.compile(rf"``((?:cu[A-Z]|nvrtc|nvJitLink|{'|'.join(SIMULATED)})\w*)``")
TABLES = [importlib.import_module(f"atomr_cuda.{name}") for name in ("driver", "nvrtc", "nvjitlink", *SIMULATED)]
DECLARED = {re.sub(r"(_v\d+)?(_64)?$", "", name) for table in TABLES for name in table.library.functions}
WAITS_ALONE = {
    *("Device.map_memory", "Devices.map"),
    *("Device.wait_generation", "Device.wait_standby", "Device.restart"),
    *("Batch.flush", "Event.wait", "Lane.synchronize"),
    "World.wait_epoch",
}
"""Coroutines that no function of a CUDA library stands behind."""


def is_awaited(member: Member) -> bool:
    return is_verb(member.value) or inspect.iscoroutinefunction(member.function)


def test_the_c_functions_that_are_named_exist():
    named = {(member.name, function) for member in PUBLIC for function in C_FUNCTION.findall(member.doc)}
    assert named
    assert [f"{name}: {function}" for name, function in sorted(named) if function not in DECLARED] == []


def test_a_verb_names_the_c_function_behind_it():
    verbs = {m.name: m.doc for m in CALLABLES if is_awaited(m) and "testing." not in m.name}
    assert {name for name, doc in verbs.items() if not C_FUNCTION.search(doc)} == WAITS_ALONE


# ---------------------------------------------------------------------------------------------------- the reference

DIRECTIVE = re.compile(r"^\.\. auto(\w+):: (atomr_trio\.[\w.]+)$", re.MULTILINE)


def shown() -> list[tuple[str, str]]:
    """Every name of the reference, after the kind of directive that shows it."""
    return [found for page in REFERENCE.glob("*.md") for found in DIRECTIVE.findall(page.read_text(encoding="utf-8"))]


def directive_of(value: object) -> str:
    """How Sphinx shows such a thing."""
    if not inspect.isclass(value):
        return "function" if inspect.isfunction(value) else "data"
    return "exception" if issubclass(value, BaseException) else "class"


def test_the_reference_shows_every_public_name_once_and_no_other():
    public = [f"{face.__name__}.{name}" for face in FACES for name in face.__all__]
    assert sorted(name for _, name in shown()) == sorted(public)


def test_the_reference_shows_each_name_as_what_it_is():
    for kind, name in shown():
        module, _, attribute = name.rpartition(".")
        assert kind == directive_of(getattr(importlib.import_module(module), attribute)), name
