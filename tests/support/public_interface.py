"""What a user can name, found by walking the public modules: functions, classes and their members, with what is said.

This file reads signatures, sources and docstrings; what must hold for them is in test_public_interface.py.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import attrs
import trio

import atomr_trio
import atomr_trio.testing
from atomr_trio._calls.recorded import Recorded
from atomr_trio._calls.verbs import Batched

FACES = (atomr_trio, atomr_trio.testing)
MADE_BY_USERS = ("NvrtcCache", "NvrtcOptions", "RestartPolicy", "testing.WorkerPool")
"""The classes that users call and that refuse what cannot be."""

GIVEN_ANYWAY = ("self", "cls", "dev")
"""Parameters that need no word: the object or the device that something is done to."""


@attrs.frozen
class Member:
    """Something that a user can name: a function, a class, and of that a method, a property, a field."""

    name: str
    """As a user writes it: `Device.empty`."""
    value: Any
    """The object; for a field its annotation."""
    doc: str = ""
    owner: type | None = None
    """The class that it is a member of."""

    @property
    def function(self) -> Callable[..., Any] | None:
        """What runs when the member is used; None for a class and a field."""
        value = getattr(self.value, "fget", self.value)
        value = inspect.unwrap(getattr(value, "__func__", value))
        return value if inspect.isfunction(value) else None

    @property
    def parameters(self) -> list[inspect.Parameter]:
        """What a caller gives."""
        called = self.value if self.name in MADE_BY_USERS else self.function
        every = inspect.signature(called).parameters.values() if called is not None else ()
        return [each for each in every if each.name not in GIVEN_ANYWAY and not each.name.startswith("_")]

    @property
    def result(self) -> str:
        """The annotation of what a call returns, or of the field."""
        if self.function is None:
            return self.value if isinstance(self.value, str) else ""
        return spelled(inspect.signature(self.function).return_annotation)

    def says_of(self, name: str) -> str:
        """What is said of a parameter: by the docstring, by the one that it refers to, or below the field."""
        if self.name in MADE_BY_USERS:
            return next((each.doc for each in PUBLIC if each.name == f"{self.name}.{name}"), "")
        said = said_of(name, self.doc)
        referred = re.search(r"\b(?:is|are) those of `([\w.]+)`", said)
        return f"{said} {described(referred[1], self.owner).says_of(name)}" if referred else said


def spelled(annotation: object) -> str:
    """An annotation as text."""
    if annotation is inspect.Parameter.empty:
        return ""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def said_of(name: str, doc: str) -> str:
    """The sentences of a docstring, or their parts between semicolons, that have a name in backticks."""
    parts = re.split(r"(?<=[.;])\s+", " ".join(doc.split()))
    return " ".join(part for part in parts if f"`{name}`" in part)


# ---------------------------------------------------------------------------------------------------- reading sources


def _modules() -> list[ModuleType]:
    """The loaded modules of this distribution, where everything public is made."""
    return [module for name, module in list(sys.modules.items()) if name.partition(".")[0].startswith("atomr_")]


@functools.cache
def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def _assigned(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """The public names that are declared or assigned: name, annotation, and the string that follows."""
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign):
            target, annotation = ast.unparse(node.target), ast.unparse(node.annotation)
        elif isinstance(node, ast.Assign):
            target, annotation = ast.unparse(node.targets[0]), ""
        else:
            continue
        name = target.removeprefix(prefix)
        if target.startswith(prefix) and name.isidentifier() and not name.startswith("_"):
            described = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            yield name, annotation, inspect.cleandoc(str(following.value.value)) if described else ""


@functools.cache
def _fields(cls: type) -> list[tuple[str, str, str]]:
    """The public attributes that a class declares or sets when it is made, as `_assigned` gives them."""
    body = _definition(cls).body
    makers = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    return [*_assigned(body), *(field for maker in makers for field in _assigned(maker.body, "self."))]


def _definition(cls: type) -> ast.ClassDef:
    for module in _modules():
        if vars(module).get(cls.__name__) is cls:  # its `__module__` says where it is shown
            for node in _tree(module).body:
                if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
                    return node
    raise AssertionError(f"{cls} is defined nowhere")


def _doc_of_alias(name: str, value: object) -> str:
    """The string that follows the assignment of a type alias."""
    places = [module for module in _modules() if vars(module).get(name) is value]
    assigned = [each for module in places for each in _assigned(_tree(module).body)]
    return next((doc for shown, _, doc in assigned if shown == name and doc), "")


# ---------------------------------------------------------------------------------------------------- the walk


def _ours(cls: type) -> list[type]:
    """The class and those of its bases that are written here."""
    return [base for base in cls.__mro__ if base.__module__.partition(".")[0].startswith("atomr_")]


def _members(prefix: str, cls: type) -> Iterator[Member]:
    docs: dict[str, str] = {}
    annotations: dict[str, str] = {}
    for base in _ours(cls):
        for name, annotation, doc in _fields(base):
            # A class may narrow the type of a field that another one describes, or describe all of them together.
            docs[name] = docs.get(name) or doc or said_of(name, inspect.getdoc(base) or "")
            annotations.setdefault(name, annotation)
    yield from (Member(f"{prefix}.{name}", annotations[name], doc, cls) for name, doc in docs.items())
    for name in dir(cls):
        member = Member(f"{prefix}.{name}", inspect.getattr_static(cls, name), owner=cls)
        if not name.startswith("_") and name not in docs and member.function in _written_here(cls):
            yield attrs.evolve(member, doc=inspect.getdoc(member.value) or "")


def _written_here(cls: type) -> set[Callable[..., Any] | None]:
    """The functions of a class, less those that it has from elsewhere."""
    own = [value for base in _ours(cls) for value in vars(base).values()]
    return {Member("", value).function for value in own} - {None}


def _public() -> Iterator[Member]:
    for face in FACES:
        prefix = face.__name__.partition(".")[2]
        for name in face.__all__:
            value = getattr(face, name)
            shown = f"{prefix}.{name}" if prefix else name
            if inspect.isclass(value):
                yield Member(shown, value, inspect.getdoc(value) or "")
                if not issubclass(value, Batched | Recorded):  # which have the verbs of the other form, word for word
                    yield from _members(shown, value)
            else:
                doc = inspect.getdoc(value) if inspect.isfunction(value) else _doc_of_alias(name, value)
                yield Member(shown, value, doc or "")


PUBLIC = list(_public())
CALLABLES = [member for member in PUBLIC if member.function is not None]


# ---------------------------------------------------------------------------------------------------- references

_SPELLED_OUT = SimpleNamespace(trio=trio, atomr_trio=atomr_trio)


def resolve(name: str, owner: type | None) -> Any:
    """What a name in a docstring stands for: seen from its class, from the package, built in, or with its module."""
    for place in (owner, *FACES, builtins, _SPELLED_OUT):
        try:
            return functools.reduce(getattr, name.split("."), place)
        except AttributeError:
            continue
    return None


def described(name: str, owner: type | None) -> Member:
    """The function or method that a docstring refers to."""
    function = Member(name, resolve(name, owner)).function
    [member] = [each for each in CALLABLES if each.function is function]
    return member
