"""What the users of other libraries write out of habit, and the errors that say what to write here.

`refuse_habits` gives a class names that it does not have: reading one raises an AttributeError with the words of the
table. A ``__getattr__`` would do so too, but until Python 3.12 it makes every other attribute slower. Type checkers see
nothing of this, and `dir` shows nothing of it, so that no editor offers such a name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NoReturn

import numpy as np

__all__ = [
    "ARRAY",
    "BLOCK",
    "DEVICE",
    "KERNEL",
    "OPERATORS",
    "Habit",
    "refuse_habits",
    "refuse_operators",
    "without_await",
]

_HOST: Final = "copy it with `await x.to_host()` and use numpy's"
_REDUCTION: Final = f"reduce it in a kernel (recipe *Sum, maximum, scan*), or {_HOST}"
_COPY: Final = "`await dev.to_device(x)` copies an array on the device"
_CONVERT: Final = "convert in a kernel, or a host copy: `await dev.to_device((await x.to_host()).astype(dtype))`"

ARRAY: Final[Mapping[str, str]] = MappingProxyType(
    {
        "get": "`await x.to_host()`, or `await x.copy_to(host)`",
        "numpy": "`await x.to_host()`",
        "cpu": "`await x.to_host()`",
        "copy_to_host": "`await x.to_host()`, or `await x.copy_to(host)`",
        "set": "`await x.copy_from(host)`",
        "copy_to_device": "`await x.copy_from(other)`",
        "copy": _COPY,
        "clone": _COPY,
        "astype": _CONVERT,
        "item": "`(await x.to_host()).item()`",
        "tolist": "`(await x.to_host()).tolist()`",
        "data": "`x.address` is the device address",
        "ptr": "`x.address` is the device address",
        "flatten": "`x.reshape(-1)` is a view",
        "ravel": "`x.reshape(-1)` is a view",
        "dot": "`await dev.blas.dot(x, y)` or `await dev.blas.gemm(a, b)`",
        "sort": f"sort it in a kernel, or {_HOST}",
        **dict.fromkeys(("sum", "mean", "max", "min", "prod", "std", "var", "cumsum"), _REDUCTION),
        **dict.fromkeys(("argmax", "argmin", "any", "all"), _REDUCTION),
    }
)
"""What an array has elsewhere, and what to write instead."""

_NEW: Final = "`await dev.to_device(...)` copies what numpy has made"

DEVICE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "asarray": "`await dev.to_device(host)`",
        "array": "`await dev.to_device(host)`",
        "asnumpy": "`await x.to_host()`",
        "arange": f"{_NEW}: `np.arange`",
        "linspace": f"{_NEW}: `np.linspace`",
        "ones": "`dev.full(shape, 1, dtype)`",
        "empty_like": "`dev.empty(x.shape, x.dtype)`",
        "zeros_like": "`dev.zeros(x.shape, x.dtype)`",
        "synchronize": "a verb returns when its work is done; to wait for a lane there is `await lane.synchronize()`",
        "stream": "`dev.lane()`",
        "use": "there is no current device: call the verbs of `dev`",
        "RawKernel": "`await dev.nvrtc.compile(source, name)`",
        "RawModule": "`await dev.nvrtc.compile_program(source)`",
    }
)
"""The same of a device, or of the module that stands for it."""

KERNEL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "__call__": "a kernel is not called: launch it, `await kernel.launch(grid, block, *arguments)`",
        "__getitem__": "a kernel has no configuration: launch it, `await kernel.launch(grid, block, *arguments)`",
    }
)
"""What Python does with a kernel elsewhere, and the whole error."""

BLOCK: Final[Mapping[str, str]] = MappingProxyType(
    dict.fromkeys(("__enter__", "__exit__"), "this block is entered by `async with`, not by `with`")
)
"""What Python does with a context manager of which entering or leaving waits."""

OPERATORS: Final = (
    *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "divmod"),
    *("and", "or", "xor", "lshift", "rshift"),
)
_SIGNS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "add": "+",
        "sub": "-",
        "mul": "*",
        "matmul": "@",
        "truediv": "/",
        "floordiv": "//",
        "mod": "%",
        "pow": "**",
        "divmod": "divmod",
        "and": "&",
        "or": "|",
        "xor": "^",
        "lshift": "<<",
        "rshift": ">>",
        "neg": "-",
        "pos": "+",
        "abs": "abs",
        "invert": "~",
    }
)

_AWAIT: Final = re.compile(r"\bawait (?=[\w.]+[\[(])|\basync (?=(with|for) )")
"""What stands before a call that is awaited, where an error names one."""


def without_await(text: str) -> str:
    """Return a text with its calls as they are written in a program without trio."""
    return _AWAIT.sub("", text)


class Habit:
    """A name that a class does not have."""

    __slots__ = ("_instead", "_name")

    def __init__(self, name: str, instead: str) -> None:
        self._name = name
        self._instead = instead

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return self
        # Without the keyword `name` Python adds no guess of its own.
        raise AttributeError(f"{type(instance).__name__!r} object has no attribute {self._name!r}: {self._instead}")


def refuse_habits(cls: type, *tables: Mapping[str, str], words: Callable[[str], str] = str) -> None:
    """Have the names of the tables refused by a class, but for those that it has. `words` is applied to each text."""
    for table in tables:
        for name, instead in table.items():
            if name.startswith("__"):
                setattr(cls, name, _refusing(words(instead)))
            elif not hasattr(cls, name):
                setattr(cls, name, Habit(name, words(instead)))
    cls.__dir__ = _dir_without_habits  # type: ignore[method-assign,assignment]


def _dir_without_habits(self: object) -> Iterable[str]:
    cls = type(self)
    return [name for name in object.__dir__(self) if not isinstance(getattr(cls, name, None), Habit)]


def _refusing(text: str) -> Callable[..., NoReturn]:
    def refuse(self: object, *_arguments: object, **_keywords: object) -> NoReturn:
        raise TypeError(text)

    return refuse


def refuse_operators(cls: type, *, numpy_copies: bool, words: Callable[[str], str] = str) -> None:
    """Have a class refuse the operators of arithmetic.

    With `numpy_copies` those with an object of numpy are left to numpy, which makes a host copy of the array.
    """
    for name in (*OPERATORS, "neg", "pos", "abs", "invert"):
        text = words(
            f"arrays on the device have no operator {_SIGNS[name]}: write it as a kernel (`@atomr_trio.kernel`, "
            "`await dev.nvrtc.compile(...)`), call a library (`await dev.blas.axpy(x, y)`, `scal`, `gemm`), or compute "
            "with host copies, `await x.to_host()`"
        )
        if name not in OPERATORS:
            setattr(cls, f"__{name}__", _refusing(text))
            continue
        for method in (f"__{name}__", f"__r{name}__"):
            setattr(cls, method, _refusing_of_two(text, numpy_copies=numpy_copies))


def _refusing_of_two(text: str, *, numpy_copies: bool) -> Callable[..., Any]:
    def refuse(self: object, other: object, *_modulo: object) -> Any:
        if numpy_copies and isinstance(other, np.ndarray | np.generic):
            return NotImplemented
        raise TypeError(text)

    return refuse
