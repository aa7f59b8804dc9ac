"""Kernels that are declared in Python: a signature there, and a body in CUDA C++.

The source is put together without a compiler, so wrong declarations are refused when a module is imported. Each piece
of it is preceded by a `#line` with the place that the user wrote it in. That place is found in the syntax tree of the
file: the literal whose value is the body. Where it is not found, because a program has put the body together, lines
are counted in the body itself.

The compiler is reached through the device that a kernel is used on, by `Nvrtc.kernel`, so that this file works for both
faces and knows neither.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import linecache
import os
import sys
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeVar, Unpack, final, overload

import attrs
import numpy as np

from ..._arrays.access import DeclaredArray
from ..._calls.compiling import options_of
from ..._compiling.compiler import check_source
from ..._compiling.options import NvrtcOptions
from ..._generation.core import DeviceCore, DevicePart
from ..._values.dtypes import NARROW_FLOATS, check_dtype
from ..._values.errors import InvalidArgument, LibraryNotFound
from ..._values.parameters import Dimensions
from ..._values.util import shown
from ..._wire.protocol import Role

if TYPE_CHECKING:
    from ..modules.kernel import AwaitedLaunchKeywords, Kernel

_T_co = TypeVar("_T_co", covariant=True)

_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bool": "bool",
        "int8": "signed char",
        "uint8": "unsigned char",
        "int16": "short",
        "uint16": "unsigned short",
        "int32": "int",
        "uint32": "unsigned int",
        "int64": "long long",
        "uint64": "unsigned long long",
        "float32": "float",
        "float64": "double",
        "complex64": "float2",
        "complex128": "double2",
        **{name: each.cuda_name for name, each in NARROW_FLOATS.items()},
    }
)
"""The type in CUDA C++ for each dtype, by its name."""

_HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "float16": "cuda_fp16.h",
        "bfloat16": "cuda_bf16.h",
        "float8_e4m3fn": "cuda_fp8.h",
        "float8_e5m2": "cuda_fp8.h",
    }
)
"""The header of CUDA for each dtype whose type is a class."""

_NAME_BY_DEFAULT: Final = NvrtcOptions().name
_KINDS_WITH_PLACES: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_USE: Final = "write @atomr_trio.kernel(...) above a function without a body: `def f(a: np.float32, x: ...): ...`"
_ARRAY_ADVICE: Final = (
    "say what the kernel does with an array: ReadOnly[np.float32], Writes[np.float32] or Overwrites[np.float32]; "
    "a number is np.float32, np.int32, ..."
)


@attrs.frozen
class _Parameter:
    """One parameter of a declaration."""

    text: str
    """The parameter in CUDA C++."""
    role: Role | None
    """The access to an array; None for a number."""
    header: str | None
    """The header that its type needs."""


class _Compiler(Protocol[_T_co]):
    def kernel(self, declared: DeclaredKernel) -> _T_co:
        """Compile it."""


class DeviceOfKernels(Protocol[_T_co]):
    """A device of either face. What its `nvrtc` returns, awaited or not, is what the verbs of a declaration return."""

    @property
    def nvrtc(self) -> _Compiler[_T_co]:
        """The compiler."""


class _Waits(Protocol):
    def launch(self, grid: Dimensions, block: Dimensions, *arguments: object) -> None:
        """Launch it, and wait."""


@final
class DeclaredKernel:
    """A kernel with a signature in Python and a body in CUDA C++, made by `kernel`. It belongs to no device."""

    def __init__(
        self, function: FunctionType, scope: Mapping[str, Any], body: str | None, file: Any, preamble: str, options: Any
    ) -> None:
        functools.update_wrapper(self, function)
        self.name: str = function.__name__
        """The name of the function, and of the kernel in the image."""
        self.signature: inspect.Signature = inspect.signature(function)
        """The signature in Python."""
        self._parameters = _parameters_of(function, self.signature, scope)
        self._code = function.__code__
        self._file: str | None = None
        self._body = body or ""
        if body is None:
            self._file, self._body = _read(function, file)
        self._preamble = preamble
        self.options: NvrtcOptions = self._own_options(options_of(options))
        """The options of the compile."""

    def __repr__(self) -> str:
        return f"<DeclaredKernel {self.name}({', '.join(each.text for each in self._parameters)})>"

    def __call__(self, *_arguments: object, **_keywords: object) -> NoReturn:
        raise TypeError(
            f"{self.name} is a kernel: launch it by `await {self.name}.launch(dev, grid, block, ...)`, or without "
            "await on a device of `atomr_trio.start`"
        )

    @functools.cached_property
    def source(self) -> str:
        """The whole program in CUDA C++, as it is compiled."""
        headers = dict.fromkeys(each.header for each in self._parameters if each.header is not None)
        lines = [f"#include <{header}>\n" for header in headers]
        if self._preamble:
            lines += [self._line_of(self._preamble, "preamble"), self._preamble, "\n"]
        parameters = ", ".join(each.text for each in self._parameters)
        lines.append(_line(self._code.co_firstlineno, self._place or f"<signature of {self.name}>"))
        lines.append(f'extern "C" __global__ void {self.name}({parameters})\n{{\n')
        lines.append(self._line_of(self._body, "body") if self._file is None else _line(1, self._file))
        lines += [self._body, "\n}\n"]
        return "".join(lines)

    def on(self, dev: DeviceOfKernels[_T_co]) -> _T_co:
        """Return the kernel on a device, compiled when it is asked for the first time: ``await saxpy.on(dev)``.

        `dev` is a device of either face: of `start` the result is there at once, without await. The device keeps the
        kernel as long as this declaration exists.

        Raises as `Nvrtc.kernel` does.
        """
        compiler = getattr(dev, "nvrtc", None)
        if compiler is None:
            raise InvalidArgument(f"dev is a device, not {shown(dev)}")
        made: _T_co = compiler.kernel(self)
        return made

    @overload
    def launch(
        self,
        dev: DeviceOfKernels[Awaitable[Kernel]],
        grid: Dimensions,
        block: Dimensions,
        *arguments: object,
        **options: Unpack[AwaitedLaunchKeywords],
    ) -> Coroutine[Any, Any, None]: ...

    @overload
    def launch(
        self,
        dev: DeviceOfKernels[_Waits],
        grid: Dimensions,
        block: Dimensions,
        *arguments: object,
        **options: Any,
    ) -> None: ...

    def launch(
        self, dev: Any, grid: Dimensions, block: Dimensions, *arguments: object, **options: Any
    ) -> Coroutine[Any, Any, None] | None:
        """Launch the kernel on `dev`, a device of either face, and wait: ``await saxpy.launch(dev, 4, 256, ...)``.

        `grid`, `block`, the `arguments` and the `options` are those of `Kernel.launch`. In a loop, take the kernel
        once, by `on`.

        Raises as `DeclaredKernel.on` does, and as `Kernel.launch` does.
        """
        made: Any = self.on(dev)
        if inspect.isawaitable(made):
            return _launched(made, grid, block, arguments, options)
        made.launch(grid, block, *arguments, **options)
        return None

    def grid_for(self, n: Dimensions, block: Dimensions) -> int | tuple[int, ...]:
        """Return the grid with a thread for each of `n` elements, in blocks of `block` threads. It needs no device.

        `n` and `block` are those of `Kernel.grid_for`.

        Raises `InvalidArgument` for a block and a grid that no device takes. What this kernel or one device takes
        beyond that is checked by the launch.
        """
        from ..modules.kernel import grid_on_any_device

        return grid_on_any_device(n, block)

    # --- the text -----------------------------------------------------------------------------------------------------

    @property
    def _roles(self) -> tuple[Role | None, ...]:
        return tuple(each.role for each in self._parameters)

    def _own_options(self, options: NvrtcOptions) -> NvrtcOptions:
        if options.name == _NAME_BY_DEFAULT:
            options = attrs.evolve(options, name=f"{self.name}.cu")
        if any(each.header for each in self._parameters):
            options = attrs.evolve(options, bundled_headers=True)
        return options

    @property
    def _place(self) -> str | None:
        """The Python file, or the cell of a notebook, which has another file name in each process; None for neither."""
        path = self._code.co_filename
        if not linecache.getlines(path):
            return None
        return path if os.path.exists(path) else f"<cell of {self.name}>"

    def _line_of(self, text: str, what: str) -> str:
        """Return the `#line` for a text that stands as a literal in the Python file."""
        found = _lines_of_literal("".join(linecache.getlines(self._code.co_filename)), text)
        if not found or self._place is None:
            return _line(1, f"<{what} of {self.name}>")
        before = [line for line in found if line <= self._code.co_firstlineno + 1]
        return _line(max(before) if before else min(found), self._place)


async def _launched(
    made: Awaitable[Any], grid: Dimensions, block: Dimensions, arguments: tuple[object, ...], options: dict[str, Any]
) -> None:
    kernel = await made
    await kernel.launch(grid, block, *arguments, **options)


def kernel(
    body: str | None = None,
    *,
    file: str | os.PathLike[str] | None = None,
    preamble: str = "",
    options: NvrtcOptions | None = None,
) -> Callable[[Callable[..., object]], DeclaredKernel]:
    """Declare a kernel: its signature is that of a Python function without a body, and its body is CUDA C++.

    `body` is the text between the braces, or `file` the path of a file with that text, relative to the module of the
    function. `preamble` is text before the kernel: includes, and functions that it calls. `options` say how to compile
    it, by default for the device that it is used on.

    Each parameter of the function is annotated with a numpy scalar type (``np.float32``), or for an array with
    ``ReadOnly[np.float32]``, ``Writes[np.float32]`` or ``Overwrites[np.float32]``. These say what `read_only`, `writes`
    and `overwrites` say, for each launch that gives the array without a mark. Reads become pointers to const.

    Raises `InvalidArgument` for both or neither of `body` and `file`, a file that cannot be read, a function that has a
    body, defaults or parameters by keyword alone, and annotations that are none of these; `LibraryNotFound` for a dtype
    of ml_dtypes that is not installed.
    """
    given: object = body
    if callable(given):
        raise InvalidArgument("the body of the kernel is missing", advice=_USE)
    if (body is None) == (file is None):
        raise InvalidArgument("a kernel has a body or a file, and not both", advice=_USE)
    for what, text in (("body", body), ("preamble", preamble)):
        if text is not None and not isinstance(text, str):
            raise InvalidArgument(f"{what} is a string of CUDA C++, not {shown(text)}")
        check_source("" if text is None else text)
    options_of(options)

    def declare(function: Callable[..., object]) -> DeclaredKernel:
        if not isinstance(function, FunctionType):
            raise InvalidArgument(f"a kernel is declared by a function, not {shown(function)}", advice=_USE)
        return DeclaredKernel(function, sys._getframe(1).f_locals, body, file, preamble, options)

    return declare


# ------------------------------------------------------------------------------------------------- the declaration


def _nothing() -> None:
    """Do nothing."""


_WITHOUT_EFFECT: Final = frozenset({"COPY_FREE_VARS", *(each.opname for each in dis.get_instructions(_nothing))})
"""The instructions of a function without a body."""


def _has_body(function: FunctionType) -> bool:
    return any(
        each.opname not in _WITHOUT_EFFECT or ("CONST" in each.opname and each.argval is not None)
        for each in dis.get_instructions(function)
    )


def _parameters_of(
    function: FunctionType, signature: inspect.Signature, scope: Mapping[str, Any]
) -> tuple[_Parameter, ...]:
    """Return the parameters of a declaration. Raises `InvalidArgument`, and `LibraryNotFound` for a dtype's package."""
    name = function.__name__
    if not name.isascii() or not name.isidentifier():
        raise InvalidArgument(f"{name!r} cannot be the name of a kernel", advice="use a function with an ASCII name.")
    if _has_body(function):
        raise InvalidArgument(
            f"{name} has a body in Python, and a kernel has one in C++ alone",
            advice="write a docstring or `...` below the signature.",
        )
    try:
        annotations = inspect.get_annotations(function, locals={**scope}, eval_str=True)
    except (InvalidArgument, LibraryNotFound):
        raise
    except Exception as error:
        raise InvalidArgument(f"the annotations of {name} cannot be evaluated: {error}") from error
    if annotations.get("return") is not None:
        raise InvalidArgument(f"{name} is annotated to return something, and a kernel returns nothing")
    return tuple(_parameter(name, each, annotations) for each in signature.parameters.values())


def _parameter(kernel: str, parameter: inspect.Parameter, annotations: Mapping[str, object]) -> _Parameter:
    name = parameter.name
    place = f"parameter {name!r} of {kernel}"
    if parameter.kind not in _KINDS_WITH_PLACES or parameter.default is not parameter.empty:
        raise InvalidArgument(f"{place} has no place of its own or a default; a launch gives every argument in order")
    if not name.isascii():
        raise InvalidArgument(f"{place} cannot have this name in C++", advice="use an ASCII name.")
    annotation = annotations.get(name)
    if annotation is None:
        raise InvalidArgument(f"{place} has no annotation", advice=_ARRAY_ADVICE)
    if isinstance(annotation, DeclaredArray):
        dtype, role = annotation.dtype, annotation.role
        declarator = f"{'const ' if role is Role.READ else ''}{_TYPES[dtype.name]} *{name}"
        return _Parameter(declarator, role, _HEADERS.get(dtype.name))
    if isinstance(annotation, type) and (issubclass(annotation, np.generic) or annotation.__module__ == "ml_dtypes"):
        try:
            dtype = check_dtype(annotation)
        except InvalidArgument as error:
            raise InvalidArgument(f"{place} cannot be a number of {annotation.__name__}: {error.message}") from None
        return _Parameter(f"{_TYPES[dtype.name]} {name}", None, _HEADERS.get(dtype.name))
    advice = (
        "a number has a width: np.float32, np.int64." if annotation in (int, float, complex, bool) else _ARRAY_ADVICE
    )
    raise InvalidArgument(f"{place} is annotated with {shown(annotation)}, which is no type of a kernel", advice=advice)


def _read(function: FunctionType, file: object) -> tuple[str, str]:
    """Return the path of a file and its text."""
    if not isinstance(file, str | os.PathLike):
        raise InvalidArgument(f"file is the path of a file, not {shown(file)}")
    home = getattr(sys.modules.get(function.__module__), "__file__", None)
    path = Path(os.path.dirname(os.path.abspath(home)) if home else os.getcwd(), file)
    try:
        return str(path), check_source(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(f"the body of {function.__name__} cannot be read from {path}: {error}") from error


def _line(number: int, name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'#line {number} "{escaped}"\n'


def _lines_of_literal(source: str, text: str) -> list[int]:
    """Return the lines that literals of this value begin in, of those whose lines are the lines of the value."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # a cell of a notebook with more than Python in it
        return []
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and node.value == text
        and (node.end_lineno or 0) - node.lineno == text.count("\n")
    ]


# --------------------------------------------------------------------------------------------------- on a device


class Declarations(DevicePart):
    """The kernels of an open device that were declared, as long as their declarations exist."""

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self.kernels: weakref.WeakKeyDictionary[DeclaredKernel, Kernel] = weakref.WeakKeyDictionary()

    def found(self, declared: DeclaredKernel) -> Kernel | None:
        """Return the kernel of a declaration, if it was compiled and can still be launched."""
        kernel = self.kernels.get(declared)
        return kernel if kernel is not None and kernel.module._serves() else None
