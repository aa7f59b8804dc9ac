"""Sphinx: Markdown through MyST, and the reference from the docstrings of the package that is installed."""

import inspect
import sys
from typing import Any

from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.inspect import stringify_signature

import atomr_cuda.injection
import atomr_trio.testing
from atomr_trio._calls.verbs import Awaited, is_verb

project = "atomr_trio"
author = "The atomr_trio authors"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["deflist", "smartquotes"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "atomr_trio"

default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True

# What a user makes; everything else is made by the library, and how is nobody's business.
MADE_BY_USERS = {"NvrtcOptions", "RestartPolicy", "WorkerPool", *atomr_cuda.injection.__all__}


def _show_signature(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str, returned: str
) -> tuple[str, str | None] | None:
    """Show annotations as they are written, and the arguments of a class only where it is for users to make."""
    if not signature:
        return None
    if what in ("class", "exception") and name.rpartition(".")[2] not in MADE_BY_USERS:
        return "", None
    if what not in ("function", "method"):
        return None
    written = inspect.signature(value)
    own = [each for each in written.parameters.values() if each.name not in ("self", "cls")]
    given = written.replace(parameters=own, return_annotation=inspect.Signature.empty)
    return stringify_signature(given, unqualified_typehints=True), str(written.return_annotation)


def _read_fields(face: Any) -> None:
    """Let Sphinx find the strings below fields: it looks for them where a public class is shown, not where it is."""
    shown = ModuleAnalyzer.for_module(face.__name__)
    shown.analyze()
    for name in face.__all__:
        getattr(face, name)  # loads the module that it is made in
    for name in [name for name in sys.modules if name.startswith(f"{face.__name__}.")]:
        home = ModuleAnalyzer.for_module(name)
        home.analyze()
        # Another module may have a variable of the same name, which is not what users see.
        own = {key for key in home.attr_docs | home.annotations if key[0] or _is_shown(face, name, key[1])}
        shown.attr_docs.update({key: text for key, text in home.attr_docs.items() if key in own})
        shown.annotations.update({key: text for key, text in home.annotations.items() if key in own})
        shown.tagorder.update(home.tagorder)


def _is_shown(face: Any, module: str, name: str) -> bool:
    """Tell whether a variable of a module is the one that the public module has by this name."""
    return name in face.__all__ and getattr(sys.modules[module], name, None) is getattr(face, name)


def _show_verbs(cls: type) -> None:
    """Let Sphinx see the verbs of a library as the methods that they are to a user."""
    for base in cls.__mro__:
        for name, value in list(vars(base).items()):
            if is_verb(value):
                setattr(base, name, value.plan)


def setup(app: Sphinx) -> None:
    """Connect what is above."""
    for name in atomr_trio.__all__:
        if inspect.isclass(library := getattr(atomr_trio, name)) and issubclass(library, Awaited):
            _show_verbs(library)
    app.connect("autodoc-process-signature", _show_signature)
    for face in (atomr_trio, atomr_trio.testing):
        _read_fields(face)
