"""Writes ``atomr_trio/plain/_faces/`` from the declarations of the awaited face: `make plain`.

Each public class with verbs has a blocking form, with the same methods, signatures and docstrings. An awaited method
becomes one that waits, one without await one that is called at once, an attribute a property. The tool reads the
sources, so that annotations and defaults stay as they are written; in annotations a class stands for its form.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import atomr_trio
from atomr_trio._calls.verbs import Awaited, Library, is_verb

from .plain_words import START_END, STARTS, WORDS

ROOT = Path(__file__).resolve().parent.parent.parent
TARGET = ROOT / "atomr_trio" / "plain" / "_faces"
PACKAGE = "atomr_trio"

CLASSES = {
    "arrays": ("DeviceArray",),
    "batches": ("Batch",),
    "devices": ("Device", "Devices", "Reservation"),
    "events": ("Subscription",),
    "graphs": ("Graph", "GraphRecorder"),
    "kernels": ("Kernel", "PreparedLaunch"),
    "lanes": ("Event", "Lane"),
    "modules": ("Module", "Program", "ModuleLoader", "Nvrtc"),
    "plans": ("FftPlan",),
    "retries": ("Retry", "Attempt"),
    "generators": ("RandomGenerator",),
    "worlds": ("World", "WorldBatch", "Sharded"),
}
"""The classes of each file, without the libraries, which have files of their own."""

BY_HAND = {
    "DeviceArray": (
        "ArrayAccess",
        (
            *("__array__", "__contains__", "__bool__", "__int__", "__float__", "__complex__"),
            *("__dlpack__", "__enter__", "__hash__"),
        ),
    ),
    "Device": ("DeviceAccess", ("capture",)),
    "Kernel": ("KernelAccess", ()),
    "Devices": ("GroupAccess", ("__getitem__", "map")),
    "Sharded": ("PartsAccess", ("__getitem__", "__len__")),
}
"""The base class of a form for what is not generated, and the names of the declarations that it stands for."""

ANYWHERE = {
    "Device": ("_repr_html_",),
    "DeviceArray": ("__len__", "__getitem__", "_repr_html_", "reshape", "transpose", "view"),
    "Devices": ("__len__", "_repr_html_"),
    "Graph": ("__len__",),
    "Kernel": ("_repr_html_", "grid_for"),
    "Module": ("__contains__", "__iter__", "__len__"),
    "Nvrtc": ("statistics",),
    "PreparedLaunch": ("__getitem__", "__len__"),
    "Sharded": ("__len__", "__getitem__"),
    "World": ("__len__",),
    "Fft": ("fftfreq", "rfftfreq", "next_fast_len"),
}
"""Functions that may be called anywhere (``tests/device/test_outside_run.py``): they need no turn."""

RENAMED = {"aclose": "close"}
"""Methods of other names."""

SPECIAL = (
    *("__len__", "__iter__", "__contains__", "__getitem__", "__setitem__", "__call__"),
    *("__dlpack__", "__dlpack_device__", "__cuda_array_interface__", "__cuda_stream__", "_repr_html_"),
)


REFUSED = "atomr_trio._values.habits"
"""The module of what stands for a name that a class does not have."""


# --- what is declared -------------------------------------------------------------------------------------------------


@functools.cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(Path(str(sys.modules[module].__file__)).read_text(encoding="utf-8"))


def public_classes() -> dict[str, type]:
    """The awaited classes by name."""
    named = {name: getattr(atomr_trio, name) for names in CLASSES.values() for name in names}
    libraries = {
        name: value
        for name in atomr_trio.__all__
        if inspect.isclass(value := getattr(atomr_trio, name)) and issubclass(value, Library)
    }
    return named | libraries


TWINS = public_classes()


def home_of(cls: type) -> str:
    """The module that a class is defined in; its `__module__` may say where it is shown."""
    for name, module in list(sys.modules.items()):
        is_here = name.startswith(f"{PACKAGE}.") and vars(module).get(cls.__name__) is cls
        if is_here and any(isinstance(node, ast.ClassDef) and node.name == cls.__name__ for node in tree_of(name).body):
            return name
    raise AssertionError(cls)


def definition_of(function: Any) -> tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """The module and the definition of a function."""
    code = inspect.unwrap(function).__code__
    module = inspect.unwrap(function).__globals__["__name__"]
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if node.name == code.co_name and first == code.co_firstlineno:
                return module, node
    raise AssertionError(function)


def function_of(value: Any) -> Any:
    """The function behind a member of a class, or None."""
    if isinstance(value, property):
        return value.fget
    if isinstance(value, functools.cached_property):
        return value.func
    if is_verb(value):
        return value.plan
    return value if inspect.isfunction(value) else None


def members_of(cls: type) -> Iterator[tuple[str, Any, type]]:
    """The public members of a class that are written here: name, value, the class that declares it."""
    seen: set[str] = set()
    for base in cls.__mro__:
        if not base.__module__.startswith(PACKAGE) or base is Library:
            continue
        for name, value in vars(base).items():
            if getattr(value, "__module__", None) == REFUSED:
                continue
            if name not in seen and (
                not name.startswith("_") or name in SPECIAL or name in ("__enter__", "__aenter__", "__anext__")
            ):
                seen.add(name)
                yield name, value, base


# --- the text of one file ---------------------------------------------------------------------------------------------


class File:
    """A file under way: its classes, and the imports that they need."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.parts: list[str] = []
        self.real: dict[str, set[str]] = {}
        self.typing: dict[str, set[str]] = {}
        self.modules: dict[bool, set[str]] = {True: set(), False: set()}
        self.bases: set[tuple[str, str]] = set()

    def text(self, describes: str) -> str:
        head = [
            f'"""{describes} Made by `make plain`: not to be edited."""',
            "",
            "from __future__ import annotations",
            "",
        ]
        typing = {module: names - self.real.get(module, set()) for module, names in self.typing.items()}
        typing = {module: names for module, names in typing.items() if names}
        modules = self.modules[False] - self.modules[True]
        if typing or modules:
            self.real.setdefault("typing", set()).add("TYPE_CHECKING")
        head += sorted(self.modules[True])
        head += [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(self.real.items())]
        head += [f"from {module} import {name}" for module, name in sorted(self.bases)]
        if typing or modules:
            head += ["", "if TYPE_CHECKING:"]
            head += [f"    {line}" for line in sorted(modules)]
            head += [f"    from {module} import {', '.join(sorted(names))}" for module, names in sorted(typing.items())]
        return "\n".join([*head, "", "", *self.parts]) + "\n"

    def name_used(self, name: str, module: str, *, real: bool) -> None:
        """Import what a name stands for in a module of the package."""
        if name in vars(__builtins__ if inspect.ismodule(__builtins__) else importlib.import_module("builtins")):
            return
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        source = node.module or ""
                        if node.level:
                            base = module.split(".")[: -node.level] if not is_package(module) else module.split(".")
                            source = ".".join([*base, *([source] if source else [])])
                        shown = alias.name if alias.asname is None else f"{alias.name} as {alias.asname}"
                        (self.real if real else self.typing).setdefault(relative(source), set()).add(shown)
                        return
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if (alias.asname or alias.name.partition(".")[0]) == name:
                        self.modules[real].add(f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else ""))
                        return
        (self.real if real else self.typing).setdefault(relative(module), set()).add(name)


def is_package(module: str) -> bool:
    return Path(str(sys.modules[module].__file__)).name == "__init__.py"


def relative(module: str) -> str:
    """The name of a module as a file of `_faces` imports it."""
    return "..." + module.removeprefix(f"{PACKAGE}.") if module.startswith(f"{PACKAGE}.") else module


FILE_OF: dict[str, str] = {name: file for file, names in CLASSES.items() for name in names}
ALIASES = {"LaunchKeywords": "PlainLaunchKeywords"}
"""Types of the awaited face that name arrays, and their own forms in ``plain/_types.py``."""


class Rewriter(ast.NodeTransformer):
    """Puts the forms in the place of the classes, in the annotation of a parameter or of a result."""

    def __init__(self, file: File, module: str, *, given: bool) -> None:
        self.file = file
        self.module = module
        self.given = given

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and node.value.isidentifier() and node.value in vars(sys.modules[self.module]):
            return self.visit_Name(ast.Name(node.value))
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == "Literal":
            self.visit(node.value)
            return node
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        name = node.id
        if name == "DeviceArray" and self.given:
            self.file.typing.setdefault(".._types", set()).add("AnyArray")
            return ast.Name("AnyArray")
        if name in TWINS:
            if FILE_OF[name] != self.file.name:
                self.file.typing.setdefault(f".{FILE_OF[name]}", set()).add(name)
            return node
        if name in ALIASES:
            self.file.typing.setdefault(".._types", set()).add(ALIASES[name])
            return ast.Name(ALIASES[name])
        alias = self.alias(name)
        if alias is not None:
            return alias
        self.file.name_used(name, self.module, real=False)
        return node

    def alias(self, name: str) -> ast.AST | None:
        """What an alias stands for, if that names an array; else None."""
        value = vars(sys.modules[self.module]).get(name)
        if inspect.isclass(value) or value is None or "DeviceArray" not in str(value):
            return None
        for module in [self.module, *(each for each in sys.modules if each.startswith(f"{PACKAGE}."))]:
            if vars(sys.modules[module]).get(name) is not value:
                continue
            for node in tree_of(module).body:
                target = (
                    node.target
                    if isinstance(node, ast.AnnAssign)
                    else (node.targets[0] if isinstance(node, ast.Assign) else None)
                )
                if isinstance(target, ast.Name) and target.id == name:
                    assert isinstance(node, ast.AnnAssign | ast.Assign)
                    assert node.value is not None
                    expanded = ast.parse(ast.unparse(node.value), mode="eval").body
                    return Rewriter(self.file, module, given=self.given).visit(expanded)
        return None


def annotation(file: File, module: str, node: ast.expr | None, *, given: bool) -> str:
    if node is None:
        return ""
    return ast.unparse(Rewriter(file, module, given=given).visit(ast.parse(ast.unparse(node), mode="eval").body))


def signature(file: File, module: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, list[str], str]:
    """The parameters as they are declared, each as it is passed on, and the annotation of the result."""
    given, passed = ["self"], []
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)

    def declared(each: ast.arg, default: ast.expr | None, stars: str = "") -> str:
        text = f"{stars}{each.arg}"
        if each.annotation is not None:
            text += f": {annotation(file, module, each.annotation, given=True)}"
        if default is not None:
            for name in ast.walk(default):
                if isinstance(name, ast.Name):
                    file.name_used(name.id, module, real=True)
            text += f" = {ast.unparse(default)}"
        return text

    if len(arguments.posonlyargs) == 1:
        given.append("/")
    for place, (each, default) in enumerate(zip(positional, defaults, strict=True)):
        if place:
            given.append(declared(each, default))
            passed.append(each.arg)
            if place + 1 == len(arguments.posonlyargs):
                given.append("/")
    if arguments.vararg is not None:
        given.append(declared(arguments.vararg, None, "*"))
        passed.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        given.append("*")
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        given.append(declared(each, default))
        passed.append(f"{each.arg}={each.arg}")
    if arguments.kwarg is not None:
        given.append(declared(arguments.kwarg, None, "**"))
        passed.append(f"**{arguments.kwarg.arg}")
    return ", ".join(given), passed, annotation(file, module, node.returns, given=False)


def said(doc: str | None) -> str:
    """A docstring of the awaited face as that of the blocking form."""
    text = inspect.cleandoc(doc or "")
    for pattern, word in WORDS:
        text = re.sub(pattern, word, text)
    return text


def docstring(text: str, indent: str = "        ") -> str:
    if not text:
        return ""
    paragraphs: list[str] = []
    for paragraph in text.split("\n\n"):
        limit = 120 - len(indent) - (0 if paragraphs else 3)
        items = re.split(r"\n(?=- )", paragraph)
        filled = [
            textwrap.fill(
                " ".join(item.split()),
                limit,
                subsequent_indent="  " if item.startswith("- ") else "",
                break_long_words=False,
                break_on_hyphens=False,
            )
            for item in items
        ]
        paragraphs.append("\n".join(filled))
    body = "\n\n".join(paragraphs)
    closing = f"\n{indent}" if "\n" in body else ""
    return textwrap.indent(f'"""{body}', indent).replace(f"\n{indent}\n", "\n\n") + f'{closing}"""\n'


def packed(passed: list[str]) -> str:
    """Arguments as a tuple and a dictionary, behind a comma, as far as there are any.

    To pass them as arguments twice costs a launch of a batch a tenth of its time.
    """
    positional: list[str] = []
    keywords: list[str] = []
    for each in passed:
        name, equals, value = each.partition("=")
        if equals:
            keywords.append(f'"{name}": {value}')
        else:
            (keywords if each.startswith("**") else positional).append(each)
    arguments = f", ({', '.join(positional)}{',' * (len(positional) == 1)})" if passed else ""
    return f"{arguments}, {{{', '.join(keywords)}}}" if keywords else arguments


def method(file: File, name: str, function: Any, how: str) -> str:
    """A method that calls the declared one, by one of the methods of `Twin`."""
    module, node = definition_of(function)
    given, passed, returned = signature(file, module, node)
    doc = docstring(said(ast.get_docstring(node, clean=True)))
    called = f"self.{how}(self._awaited.{name}{packed(passed)})"
    head = f"    def {RENAMED.get(name, name)}({given}) -> {returned}:\n{doc}"
    if returned == "None":
        return f"{head}        {called}\n"
    if returned == "Any":
        return f"{head}        return {called}\n"
    return f"{head}        result: {returned} = {called}\n        return result\n"


def property_of(file: File, name: str, module: str, node: ast.expr | None, doc: str, form: str) -> str:
    """A property for an attribute: one that is read anywhere, one that needs the turn, or one that is made once."""
    returned = annotation(file, module, node, given=False)
    words = re.findall(r"\w+", re.sub(r"\b(np\.dtype|npt\.NDArray|dict)\[.*?Any\]", "", returned))
    has_twins = any(word in TWINS or word in ("object", "Any") for word in words)
    seen = f"self._seen(self._awaited.{name})" if has_twins else f"self._awaited.{name}"
    value = seen if form == "seen" else f"self._enqueue(lambda: self._awaited.{name})"
    decorator = "@functools.cached_property" if form == "once" else "@property"
    if form == "once":
        file.modules[True].add("import functools")
    text = docstring(said(doc))
    body = f"        value: {returned} = {value}\n        return value\n"
    return f"    {decorator}\n    def {name}(self) -> {returned}:\n{text}{body}"


def fields_of(cls: type) -> Iterator[tuple[str, str, ast.expr, str]]:
    """The attributes that a class declares: name, module, annotation, docstring."""
    for base in cls.__mro__:
        if not base.__module__.startswith(PACKAGE) or base is Library:
            continue
        module = home_of(base)
        [found] = [
            node for node in tree_of(module).body if isinstance(node, ast.ClassDef) and node.name == base.__name__
        ]
        makers = [node.body for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
        for body, prefix in ((found.body, ""), *((body, "self.") for body in makers)):
            for node, following in zip(body, [*body[1:], None], strict=True):
                target = ast.unparse(node.target) if isinstance(node, ast.AnnAssign) else ""
                name = target.removeprefix(prefix)
                if isinstance(node, ast.AnnAssign) and target.startswith(prefix) and name.isidentifier():
                    described = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
                    doc = str(following.value.value) if described else ""  # type: ignore[union-attr]
                    if not name.startswith("_"):
                        yield name, module, node.annotation, doc


AWAITED = '''    @property
    def awaited(self) -> atomr_trio.{name}:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.{name} = self._awaited
        return value
'''
ENTERS = """    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> {returned}:
        {leaves}
"""
LEAVES = {
    "None": "self._leave(kind, error, traceback)",
    "bool": "result: bool = self._leave(kind, error, traceback)\n        return result",
}
"""The end of a block, by what the end of the awaited one returns: for bool it may catch an exception."""
ENTERS_AT_ONCE = """    def __enter__(self) -> {returned}:
        result: {returned} = self._enter_at_once()
        return result

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._enqueue(self._awaited.__exit__, (kind, error, traceback))
"""
ITERATES = """    def __iter__(self) -> Self:
        return self

    def __next__(self) -> {item}:
        item: {item} = self._next()
        return item
"""


def class_text(file: File, cls: type, bases: list[str], *, own_only: bool = False, how: str = "") -> str:
    """The form of one class. With `own_only` the members of its bases are left out; `how` is the way of its verbs."""
    hand, skipped = BY_HAND.get(cls.__name__, ("", ()))
    if hand:
        bases = [hand, *bases]
        file.bases.add((".._access", hand))
    parts: list[str] = []
    names = {name for name, _, _ in members_of(cls)}
    file.modules[False].add("import atomr_trio")
    parts.append(AWAITED.format(name=cls.__name__))
    own_bases = {TWINS[each] for each in bases if each in TWINS}
    fields = {name: field for name, *field in sorted(fields_of(cls), key=lambda field: bool(field[3]))}
    for name, (module, node, doc) in fields.items():
        if name in skipped or any(name in {each for each, *_ in fields_of(base)} for base in own_bases):
            continue
        parts.append(property_of(file, name, module, node, doc, "seen"))
    for name, value, declared in members_of(cls):
        if name in skipped or any(issubclass(base, declared) for base in own_bases):
            continue
        if own_only and is_verb(inspect.getattr_static(cls, name)):
            continue
        function = function_of(value)
        if function is None or name in ("__enter__", "__aenter__", "__anext__"):
            continue
        if isinstance(value, property | functools.cached_property):
            module, node = definition_of(function)
            is_library = declared.__name__ in ("DeviceLibraries", "BatchLibraries", "RecorderLibraries")
            form = "once" if is_library else "turn" if name == "__cuda_array_interface__" else "seen"
            parts.append(property_of(file, name, module, node.returns, ast.get_docstring(node) or "", form))
            continue
        is_anywhere = any(name in ANYWHERE.get(each.__name__, ()) for each in cls.__mro__)
        chosen = (
            how
            if how and is_verb(value)
            else "_wait"
            if inspect.iscoroutinefunction(inspect.unwrap(function))
            else "_read"
            if is_anywhere
            else "_enqueue"
        )
        parts.append(method(file, name, function, chosen))
    if "__enter__" in names and "__enter__" not in skipped:
        function = inspect.unwrap(vars(cls)["__enter__"])
        module, node = definition_of(function)
        returned = annotation(file, module, node.returns, given=False)
        if returned == "Self":
            file.real.setdefault("typing", set()).add("Self")
        file.typing.setdefault("types", set()).add("TracebackType")
        parts.append(ENTERS_AT_ONCE.format(returned=returned))
    elif "__aenter__" in names and "Module" not in bases:
        file.real.setdefault("typing", set()).add("Self")
        file.typing.setdefault("types", set()).add("TracebackType")
        returned = ast.unparse(definition_of(inspect.unwrap(vars(cls)["__aexit__"]))[1].returns or ast.Constant(None))
        parts.append(ENTERS.format(returned=returned, leaves=LEAVES[returned]))
    if "__anext__" in names:
        module, node = definition_of(vars(cls)["__anext__"])
        item = annotation(file, module, node.returns, given=False)
        file.real.setdefault("typing", set()).add("Self")
        parts = [part for part in parts if "def __iter__" not in part and "def __aiter__" not in part]
        parts.append(ITERATES.format(item=item))
    has_dict = any("cached_property" in part for part in parts)
    slots = [] if has_dict else ["    __slots__ = ()\n"]
    made_by = vars(cls).get("_made_by")
    made = [f"    _made_by: ClassVar[str] = {said(made_by)!r}\n"] if made_by else []
    if made:
        file.typing.setdefault("typing", set()).add("ClassVar")
    doc = docstring(said(cls.__doc__), "    ")
    if hand == "ArrayAccess":
        doc = ""
    return f"class {cls.__name__}({', '.join(bases)}):\n{doc}\n" + "\n".join([*slots, *made, *parts]) + "\n"


def files() -> dict[str, str]:
    """Every file that is made, by its name."""
    made: dict[str, File] = {}
    libraries: dict[str, list[str]] = {}
    for name, cls in TWINS.items():
        if issubclass(cls, Library):
            libraries.setdefault(home_of(cls).split(".")[2], []).append(name)
            FILE_OF[name] = f"lib_{home_of(cls).split('.')[2]}"
    for file_name, names in CLASSES.items():
        file = made[file_name] = File(file_name)
        for name in names:
            base = next((each.__name__ for each in TWINS[name].__mro__[1:] if each.__name__ in names), "")
            if not base:
                file.bases.add((".._twins", "Twin"))
            file.parts.append(class_text(file, TWINS[name], [base or "Twin"]))
    for folder, names in libraries.items():
        forms = made[f"lib_{folder}"] = File(f"lib_{folder}")
        declaring = [
            base
            for base in TWINS[names[0]].__mro__
            if any(is_verb(value) for value in vars(base).values())
            and "_is_form" not in vars(base)
            and base.__name__ not in TWINS
        ]
        mixins = []
        for base in declaring:
            module = home_of(base).rpartition(".")[2]
            file = made.setdefault(f"lib_{folder}_{module}", File(f"lib_{folder}_{module}"))
            file.bases.add((".._twins", "Verbs"))
            mixin = base.__name__.removeprefix("_")
            verbs = [
                method(file, name, value.plan, "_do")
                for name, value in vars(base).items()
                if is_verb(value) and not name.startswith("_")
            ]
            file.parts.append(
                f'class {mixin}(Verbs):\n    """Verbs of `dev.{folder}`, in all forms."""\n\n    __slots__ = ()\n\n'
                + "\n".join(verbs)
                + "\n"
            )
            forms.bases.add((f".{file.name}", mixin))
            mixins.append(mixin)
        for name in names:
            form = "Awaits" if issubclass(TWINS[name], Awaited) else "Enqueues"
            forms.bases.add((".._twins", form))
            forms.parts.append(class_text(forms, TWINS[name], [form, *mixins], own_only=True))
    starts = made["starts"] = File("starts")
    starts.parts += [start_text(starts, opens) for opens in STARTS]
    described = {name: file.text("Blocking forms of the awaited face.") for name, file in made.items()}
    homes = dict(sorted(FILE_OF.items()))
    imports = "\n".join(f"    from .{file} import {name} as {name}" for name, file in homes.items())
    described["__init__"] = (
        '"""The blocking forms of the awaited face. Made by `make plain`: not to be edited."""\n\n'
        "from __future__ import annotations\n\nfrom typing import TYPE_CHECKING, Final\n\n"
        f"if TYPE_CHECKING:\n{imports}\n\n"
        f"__all__ = {list(homes)!r}\n\n"
        f"HOMES: Final[dict[str, str]] = {homes!r}\n" + '"""The file of each class."""\n'
    )
    return described


START = """
def {name}({given}) -> {returned}:
{doc}    from ..._device.open import {opens}
    from .._twins import begun

    device: {returned} = begun(lambda: {opens}({passed}), "atomr_trio.{name}")
    return device
"""


def start_text(file: File, opens: str) -> str:
    """A function that starts devices, from the declaration of the one that opens them."""
    name, returned, summary, description = STARTS[opens]
    module, node = definition_of(getattr(atomr_trio, opens))
    given, passed, _ = signature(file, module, node)
    first = node.args.args[0]
    default = ast.unparse(node.args.defaults[0])
    typed = annotation(file, module, first.annotation, given=True)
    given = given.replace("self, ", f"{first.arg}: {typed} = {default}, ", 1)
    options = said(ast.get_docstring(node, clean=True))
    bullets = options[options.index("- `") : options.rindex("\n\nEntering")]
    bullets = re.sub(r"leaving the block waits", "closing waits", bullets)
    bullets = re.sub(r"leaves\s+the block\b", "is raised by `close`", bullets)
    bullets = re.sub(r"leaves the block", "is raised by `close`", bullets)
    doc = "\n\n".join([summary, description, bullets, START_END.format(opens=opens)])
    file.typing.setdefault(".devices", set()).add(returned)
    started = ", ".join([first.arg, *passed])
    return START.format(
        name=name, given=given, returned=returned, doc=docstring(doc, "    "), opens=opens, passed=started
    )


def write(folder: Path) -> None:
    """Write every file into a folder, as ruff lays it out, without what is imported for nothing."""
    folder.mkdir(exist_ok=True)
    for name, text in files().items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    settings = ["--config", str(ROOT / "pyproject.toml"), "--quiet", str(folder)]
    for command in (["check", "--fix-only", "--select", "I,F401"], ["format"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, *settings], check=True, cwd=ROOT)


if __name__ == "__main__":
    for old in TARGET.glob("*.py"):
        old.unlink()
    write(TARGET)
