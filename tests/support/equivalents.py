"""What stands in the columns of ours in the tables of docs/coming-from, and whether it is true.

A code span there is an expression, an assignment, or the head of a ``with``. Each name of it is looked up in the public
interface: attributes must exist, calls must bind to the signature, and in a trio program exactly what has to be awaited
is awaited. Names like `x` and `dev` stand for objects of the classes below; other names may be anything.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import numpy as np

import atomr_trio
from atomr_trio import plain
from atomr_trio._calls.verbs import Awaited, is_verb
from atomr_trio._values.habits import Habit

FACES: dict[str, ModuleType] = {"in a plain program": plain, "in a trio program": atomr_trio}
"""The columns of ours, by their heads, and where their classes are."""

STANDS_FOR = {
    "dev": "Device",
    "devices": "Devices",
    **dict.fromkeys(("x", "y", "a", "b", "bias"), "DeviceArray"),
    "kernel": "Kernel",
    "program": "Program",
    "batch": "Batch",
    "lane": "Lane",
    **dict.fromkeys(("event", "begun", "done"), "Event"),
    "graph": "Graph",
    "generator": "RandomGenerator",
}
ANYTHING = (
    "block",
    "body",
    "dtype",
    "file",
    "grid",
    "host",
    "image",
    "n",
    "name",
    "nbytes",
    "node",
    "options",
    "parts",
)
ANYTHING += ("record", "seed", "shape", "source", "t", "value")


@attrs.frozen
class Cell:
    """A code span in a column of ours."""

    page: Path
    face: ModuleType
    text: str


def cells(page: Path) -> Iterator[Cell]:
    """All code spans in the columns of ours on a page."""
    columns: dict[int, ModuleType] = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("|--"):
            continue
        if not line.startswith("|"):
            columns = {}
            continue
        row = [part.strip() for part in line.strip("|").split(" | ")]
        if not columns:
            columns = {number: FACES[head] for number, head in enumerate(row) if head in FACES} or {-1: plain}
            continue
        for number, face in columns.items():
            if number >= 0:
                yield from (Cell(page, face, text) for text in re.findall(r"`([^`]+)`", row[number]))


class Untrue(Exception):
    """A span names what is not there, or is not called so."""


@attrs.frozen
class Instance:
    """An object of a class; of one that is not known, if it is None."""

    cls: type | None


@attrs.frozen
class Awaitable:
    """What has to be awaited."""

    result: Instance


UNKNOWN = Instance(None)


class Reader:
    """Finds out what an expression is, by the annotations of the public interface."""

    def __init__(self, face: ModuleType) -> None:
        self._face = face

    def check(self, text: str) -> None:
        """Raise `Untrue` if a span says what is not so."""
        with_block = text.startswith(("with ", "async with "))
        code = f"async def f():\n    {text}{': pass' if with_block else ''}"
        try:
            [function] = ast.parse(code).body
        except SyntaxError as error:
            raise Untrue(f"it is no Python: {error}") from None
        assert isinstance(function, ast.AsyncFunctionDef)
        [statement] = function.body
        match statement:
            case ast.Expr(value=value) | ast.Assign(value=value):
                self._done(value)
                for target in getattr(statement, "targets", ()):
                    if not isinstance(target, ast.Name):
                        self._done(target)
            case ast.AsyncWith(items=[item]) if self._face is atomr_trio:
                self._has(self._done(item.context_expr), "__aenter__", text)
            case ast.With(items=[item]) if self._face is plain:
                self._has(self._done(item.context_expr), "__enter__", text)
            case _:
                raise Untrue("it is neither an expression nor the head of such a block")

    def _done(self, node: ast.expr) -> Instance:
        """What a whole expression is; it must not be left unawaited."""
        value = self._read(node)
        if isinstance(value, Awaitable):
            raise Untrue(f"{ast.unparse(node)} has to be awaited")
        return value if isinstance(value, Instance) else UNKNOWN

    def _read(self, node: ast.expr) -> Any:
        match node:
            case ast.Name(id="atomr_trio"):
                return atomr_trio
            case ast.Name(id="np"):
                return np
            case ast.Name(id=name) if name in STANDS_FOR:
                return Instance(getattr(self._face, STANDS_FOR[name]))
            case ast.Name(id="float") | ast.Constant():
                return UNKNOWN
            case ast.Name(id=name):
                if name not in ANYTHING:
                    raise Untrue(f"{name} stands for nothing")
                return UNKNOWN
            case ast.Attribute(value=value, attr=name):
                return self._member(self._read(value), name)
            case ast.Await(value=value):
                awaited = self._read(value)
                if not isinstance(awaited, Awaitable) or self._face is plain:
                    raise Untrue(f"{ast.unparse(value)} is not awaited")
                return awaited.result
            case ast.Call(func=function, args=arguments, keywords=keywords):
                for each in (*arguments, *(keyword.value for keyword in keywords)):
                    self._done(each)
                return self._called(function, arguments, keywords)
            case ast.Subscript(value=value):
                return self._item(self._read(value), ast.unparse(node))
            case ast.BinOp() | ast.UnaryOp() | ast.List() | ast.Dict() | ast.Slice() | ast.Tuple():
                return UNKNOWN
        raise Untrue(f"{ast.unparse(node)} cannot be read")

    def _has(self, value: Instance, name: str, text: str) -> None:
        if value.cls is not None and not hasattr(value.cls, name):
            raise Untrue(f"{text}: {value.cls} has no {name}")

    def _item(self, value: Any, text: str) -> Instance:
        if not isinstance(value, Instance):
            raise Untrue(f"{text} has no items")
        self._has(value, "__getitem__", text)
        return value if value.cls is not None and value.cls.__name__ == "DeviceArray" else UNKNOWN

    def _member(self, value: Any, name: str) -> Any:
        if isinstance(value, ModuleType):
            if value is atomr_trio and name not in atomr_trio.__all__:
                raise Untrue(f"atomr_trio has no {name}")
            return getattr(value, name)
        if not isinstance(value, Instance):
            raise Untrue(f"{value} has no attributes")
        if value.cls is None:
            return UNKNOWN
        annotation = _annotation(value.cls, name)
        if annotation is None:
            member = inspect.getattr_static(value.cls, name, None)
            if member is None or isinstance(member, Habit) or name.startswith("_"):
                raise Untrue(f"{value.cls.__name__} has no {name}")
            return member
        return self._instance(annotation)

    def _instance(self, annotation: object) -> Instance:
        """An object of the class that an annotation names, if that is a public one."""
        name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        name = name.rpartition(".")[2]
        cls = getattr(self._face, name, None) or getattr(atomr_trio, name, None)
        return Instance(cls if inspect.isclass(cls) else None)

    def _called(self, node: ast.expr, arguments: list[ast.expr], keywords: list[ast.keyword]) -> Any:
        function = self._read(node)
        if isinstance(function, Instance):
            if function.cls is not None:
                raise Untrue(f"{ast.unparse(node)} is no function")
            return UNKNOWN
        if not callable(function):
            raise Untrue(f"{ast.unparse(node)} is no function")
        if function is np.asarray:
            return UNKNOWN
        owner = self._read(node.value) if isinstance(node, ast.Attribute) else None
        of_class = isinstance(node, ast.Attribute) and not isinstance(owner, ModuleType)
        signature = inspect.signature(function)
        places = [None] * (len(arguments) + of_class)
        try:
            signature.bind(*places, **{str(keyword.arg): None for keyword in keywords})
        except TypeError as wrong:
            raise Untrue(f"{ast.unparse(node)} is not called so: {wrong}") from None
        if inspect.isclass(function):
            return Instance(function)
        result = self._instance(signature.return_annotation)
        is_library = isinstance(owner, Instance) and owner.cls is not None and issubclass(owner.cls, Awaited)
        is_awaited = inspect.iscoroutinefunction(function) or (is_verb(function) and is_library)
        return Awaitable(result) if is_awaited else result


def _annotation(cls: type, name: str) -> object:
    """The annotation of an attribute or a property; None if there is none."""
    for base in cls.__mro__:
        member = vars(base).get(name)
        getter = getattr(member, "fget", None) or getattr(member, "func", None)
        if getter is not None:
            return inspect.signature(getter).return_annotation
        if name in vars(base).get("__annotations__", {}):
            return vars(base)["__annotations__"][name]
    return None
