"""Find, load and declare a shared library of C functions.

A ``Library`` is a table of declared functions and variables. Nothing is searched, loaded or bound at import. The shared
object is found when one of them is first needed, and each is bound at its own first use. So a library that lacks one
function can still be used for all the others.

This file finds libraries and turns a status into an exception. It knows no CUDA library by name.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

__all__ = [
    "CudaError",
    "Function",
    "Library",
    "LibraryMissing",
    "SymbolMissing",
    "ValueFunction",
    "Variable",
    "gpu_is_here",
]

Describe = Callable[[int], "tuple[str, str]"]
Table = Mapping[str, "Callable[..., int] | int"]
"""What stands in the place of a library: a Python function for each C function, and a pointer for each variable."""
Version = tuple[int, int]


class CudaError(Exception):
    """A function of a CUDA library returned a status other than success.

    ``name`` and ``text`` are the library's own words for the status.
    """

    def __init__(self, status: int, name: str, text: str, library: str, function: str) -> None:
        super().__init__(status, name, text, library, function)
        self.status = status
        self.name = name
        self.text = text
        self.library = library
        self.function = function

    def __str__(self) -> str:
        return f"{self.function}: {self.name} ({self.status}): {self.text}"


GPU_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvmap")
"""One of them is there where programs can reach an NVIDIA GPU: the driver's, that of WSL2, and that of Tegra."""


def gpu_is_here() -> bool:
    """Return whether this machine has a GPU that programs can reach. It asks no driver."""
    return any(map(os.path.exists, GPU_FILES))


class LibraryMissing(ImportError):
    """A shared library could not be found or loaded.

    ``extra`` is the optional dependency set of the distribution that contains it, or None when it comes with the NVIDIA
    driver. ``looked`` lists every place that was tried, with the error there. If the library was found and only a
    function or variable is missing, ``SymbolMissing`` is raised instead.
    """

    def __init__(self, library: str, extra: str | None, looked: tuple[str, ...]) -> None:
        super().__init__(library, extra, looked)
        self.library = library
        self.extra = extra
        self.looked = looked

    def __str__(self) -> str:
        if self.extra is not None:
            remedy = f'Install it with: pip install "atomr-trio[{self.extra}]"'
        else:
            remedy = 'It comes with the NVIDIA driver; a machine without a GPU has the simulator, backend="sim".'
        places = "".join(f"\n  - {place}" for place in self.looked)
        return f"the library {self.library!r} was not found. {remedy}\nPlaces looked at:{places}"


class SymbolMissing(LibraryMissing):
    """The library was loaded, but it lacks a function or variable: it is older or newer than that.

    ``function`` is the C symbol, ``path`` the shared object that lacks it, ``since`` the version that introduced it,
    ``what`` is "function" or "variable".
    """

    def __init__(
        self,
        library: str,
        extra: str | None,
        looked: tuple[str, ...],
        function: str,
        path: str,
        since: Version | None = None,
        what: str = "function",
    ) -> None:
        super().__init__(library, extra, looked)
        # The arguments with which pickling and copying call the class.
        self.args: tuple[Any, ...] = (library, extra, looked, function, path, since, what)
        self.what: str = what
        self.function = function
        self.path: str = path
        self.since: Version | None = since

    def __str__(self) -> str:
        reason = "the installed version is too old or too new; install another one"
        if self.since is not None:
            reason = "it needs version {}.{} or newer".format(*self.since)
        return f"the library {self.library!r} ({self.path}) has no {self.what} {self.function}: {reason}"


class Symbol:
    """One declared C function, bound at its first use.

    ``since`` is the version of the library that introduced it, as (major, minor); None for the oldest supported
    version.
    """

    __slots__ = ("_bound", "argtypes", "library", "restype", "since", "symbol")

    def __init__(
        self, library: Library, symbol: str, argtypes: tuple[Any, ...], restype: Any, since: Version | None = None
    ) -> None:
        self.library: Library = library
        self.symbol: str = symbol
        self.argtypes: tuple[Any, ...] = argtypes
        self.restype: Any = restype
        self.since: Version | None = since
        self._bound: Callable[..., Any] | None = None

    def __repr__(self) -> str:
        arguments = ", ".join(kind.__name__ for kind in self.argtypes)
        return f"<{type(self).__name__} {self.library.name}.{self.symbol}({arguments})>"

    def bind(self) -> Callable[..., Any]:
        """The raw ctypes function, for the fastest loops; its result is not checked.

        A caller that keeps it does not notice a later ``Library.replace``.
        """
        bound = self._bound
        if bound is None:
            bound = self._bound = self.library._bind(self)
        return bound

    def _forget(self) -> None:
        self._bound = None


class Function(Symbol):
    """A C function that returns a status. Calling it raises ``CudaError`` unless the status is 0."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> None:
        status = (self._bound or self.bind())(*arguments)
        if status:
            raise self.library.error(status, self.symbol)

    def status(self, *arguments: Any) -> int:
        """Call the function and return its status unchecked."""
        result: int = (self._bound or self.bind())(*arguments)
        return result


class ValueFunction(Symbol):
    """A C function whose result is a value, not a status. Calling it returns that value."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> Any:
        return (self._bound or self.bind())(*arguments)


class Variable:
    """A variable that the library exports: a pointer, whose meaning only the library knows.

    ``value`` looks it up at its first use, and reads it each time. None is a null pointer.
    """

    __slots__ = ("_bound", "library", "since", "symbol")

    def __init__(self, library: Library, symbol: str, since: Version | None = None) -> None:
        self.library: Library = library
        self.symbol: str = symbol
        self.since: Version | None = since
        self._bound: ctypes.c_void_p | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.library.name}.{self.symbol}>"

    @property
    def value(self) -> int | None:
        """The address in it. Raises ``LibraryMissing``, or ``SymbolMissing`` if the library lacks it."""
        bound = self._bound
        if bound is None:
            bound = self._bound = self.library._bind_variable(self)
        return bound.value

    def _forget(self) -> None:
        self._bound = None


def nested(kind: Any, **fields: Any) -> Any:
    """A ``Structure`` or ``Union`` for a member whose type the header declares in place.

    The fields of a member named ``_`` are fields of the structure around it, like those of an unnamed member in C.
    """
    anonymous = [name for name in fields if name == "_"]
    return type(kind)("nested", (kind,), {"_anonymous_": anonymous, "_fields_": list(fields.items())})


_SymbolType = TypeVar("_SymbolType", Function, ValueFunction, Variable)


class _NotHere(Exception):
    """Raised when one step of the search did not find the library; the arguments are the places that it searched."""


# A step of the search takes the library and returns the object that it loaded, its path, and a word for how it was
# found. It returns None when it does not apply, and raises _NotHere with the places that it tried.
_Found = tuple[ctypes.CDLL, str, str]


def _override(library: Library) -> _Found | None:
    """Search by the environment variable of this library: a file, or a folder that holds one of its names."""
    chosen = os.environ.get(library.override_variable)
    if not chosen:
        return None
    candidates = [chosen]
    if os.path.isdir(chosen):
        candidates = [os.path.join(chosen, name) for name in library.sonames]
    tried = []
    for path in candidates:
        try:
            return ctypes.CDLL(path), path, library.override_variable
        except OSError as error:
            tried.append(f"{library.override_variable}={path}: {error}")
    # The user asked for exactly this library: silently taking another one would be worse than failing.
    raise LibraryMissing(library.name, library.extra, tuple(tried))


def _pathfinder(library: Library) -> _Found | None:
    """Search site-packages, conda, the loader's path and CUDA_PATH, as NVIDIA's own finder does."""
    if library.pathfinder_name is None:
        return None
    try:
        from cuda.pathfinder import (  # type: ignore[import-untyped, unused-ignore]
            DynamicLibNotFoundError,
            load_nvidia_dynamic_lib,
        )
    except ImportError as error:
        raise _NotHere(f"cuda-pathfinder: {error}") from None
    try:
        found = load_nvidia_dynamic_lib(library.pathfinder_name)
    except (DynamicLibNotFoundError, RuntimeError, OSError) as error:
        raise _NotHere(
            *(f"cuda-pathfinder: {line.strip()}" for line in str(error).splitlines() if line.strip())
        ) from None
    if found.abs_path is None:
        raise _NotHere("cuda-pathfinder: loaded the library but could not say from where")
    # cuda-pathfinder keeps its own handle; this one only adds a reference to the loaded object.
    return ctypes.CDLL(found.abs_path), found.abs_path, found.found_via


def _system(library: Library) -> _Found | None:
    """Search with the dynamic loader: LD_LIBRARY_PATH, the loader's cache, the default folders, and further known
    files."""
    tried = []
    for name in (*library.sonames, *library.known_files):
        try:
            handle = ctypes.CDLL(name)
        except OSError as error:
            tried.append(f"system loader: {error}")
        else:
            return handle, _mapped_path(name), "system"
    raise _NotHere(*tried)


_SEARCH: tuple[Callable[[Library], _Found | None], ...] = (_override, _pathfinder, _system)


def _mapped_path(name: str) -> str:
    """Return the file behind a library that was loaded by its bare name, following links (to libcuda.so.580.159.04,
    say)."""
    if os.path.isabs(name):
        return name
    stem = name.partition(".so")[0] + ".so"
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                path = line.rstrip("\n").partition("/")[2]
                if os.path.basename(path).startswith(stem):
                    return "/" + path
    except OSError:
        pass
    return name


_stand_ins: dict[str, Callable[[], Table]] = {}


def stand_in(name: str, make_table: Callable[[], Table]) -> None:
    """Replace the library with this name by Python functions, when one of its functions is first needed.

    See ``Library.replace``; the library need not be declared yet.
    """
    _stand_ins[name] = make_table


class Library:
    """A shared library: how it is found, and the functions declared from it.

    ``describe`` turns a status into (name, text) for errors. ``pathfinder_name`` is the library's name in
    cuda-pathfinder's catalogue (None: the system loader alone), ``sonames`` its names for the loader, newest first,
    ``known_files`` absolute paths worth a try after those. ``extra`` is the optional dependency set that brings it, and
    ``extra_without_gpu`` the one for machines without a GPU, where that is another one.
    """

    def __init__(
        self,
        name: str,
        *,
        sonames: tuple[str, ...],
        describe: Describe,
        pathfinder_name: str | None = None,
        known_files: tuple[str, ...] = (),
        extra: str | None = None,
        extra_without_gpu: str | None = None,
        companions: str | None = None,
    ) -> None:
        self.name = name
        self.sonames = sonames
        self.pathfinder_name = pathfinder_name
        self.known_files = known_files
        self.companions = companions
        """A pattern of files in the same folder that the library opens later, by names that no other search finds."""
        self.override_variable: str = f"ATOMR_TRIO_{name.upper()}_PATH"
        self.functions: dict[str, Symbol] = {}
        self.variables: dict[str, Variable] = {}
        self.path: str | None = None
        self.found_by: str | None = None
        self._extra = extra
        self._extra_without_gpu = extra_without_gpu
        self._describe = describe
        self._handle: ctypes.CDLL | None = None
        self._table: Table | None = None
        self._lock = threading.RLock()

    @property
    def extra(self) -> str | None:
        """The optional dependency set that brings the library on this machine; None for a library of the driver."""
        return self._extra if self._extra_without_gpu is None or gpu_is_here() else self._extra_without_gpu

    def __repr__(self) -> str:
        return f"<Library {self.name} at {self.path}>" if self.path else f"<Library {self.name}, not loaded>"

    def __call__(
        self, symbol: str, *argtypes: Any, restype: Any = ctypes.c_int, since: Version | None = None
    ) -> Function:
        """Declare a function that returns a status (0 is success)."""
        return self._declare(Function(self, symbol, argtypes, restype, since), self.functions)

    def value(self, symbol: str, *argtypes: Any, restype: Any, since: Version | None = None) -> ValueFunction:
        """Declare a function that returns something other than a status."""
        return self._declare(ValueFunction(self, symbol, argtypes, restype, since), self.functions)

    def variable(self, symbol: str, *, since: Version | None = None) -> Variable:
        """Declare a variable that holds a pointer."""
        return self._declare(Variable(self, symbol, since), self.variables)

    def _declare(self, declared: _SymbolType, place: dict[str, Any]) -> _SymbolType:
        if declared.symbol in self.functions or declared.symbol in self.variables:
            raise ValueError(f"{declared.symbol} is declared twice")
        place[declared.symbol] = declared
        return declared

    def load(self) -> ctypes.CDLL:
        """Find and load the shared object; later calls return the same one. Raises ``LibraryMissing``.

        Raises ``OSError`` when this process has no file descriptor left for the search.
        """
        with self._lock:
            if self._handle is None:
                try:
                    self._handle, self.path, self.found_by = self._search()
                except LibraryMissing:
                    os.close(os.open(os.devnull, os.O_RDONLY))  # without a free descriptor nothing can be found
                    raise
                self._load_companions()
            return self._handle

    def _load_companions(self) -> None:
        if self.companions is not None and self.path is not None and os.path.isabs(self.path):
            for path in glob.glob(os.path.join(glob.escape(os.path.dirname(self.path)), self.companions)):
                with contextlib.suppress(OSError):  # the library will report what it misses
                    ctypes.CDLL(path)

    def _search(self) -> _Found:
        looked: list[str] = []
        for step in _SEARCH:
            try:
                found = step(self)
            except _NotHere as nothing:
                looked.extend(nothing.args)
                continue
            if found is not None:
                return found
        raise LibraryMissing(self.name, self.extra, (f"{self.override_variable}: not set", *looked))

    def replace(self, table: Table, *, found_by: str = "replaced") -> None:
        """Replace the shared object, which is then never loaded, by Python functions.

        Each entry gets the arguments of the C function, and returns its status; that of a variable is the pointer in
        it, 0 for a null pointer. Functions that were already bound are bound again. What is not in the table is
        missing, as from a library of another version.
        """
        unknown = [
            name for name, entry in table.items() if name not in (self.functions if callable(entry) else self.variables)
        ]
        if unknown:
            raise ValueError(f"{self.name} declares no function or variable {', '.join(sorted(unknown))}")
        with self._lock:
            self._table = table
            self.path = None
            self.found_by = found_by
            for function in self.functions.values():
                function._forget()
            for variable in self.variables.values():
                variable._forget()

    @property
    def replaced(self) -> bool:
        """True when Python functions replace the library."""
        return self._table is not None

    def error(self, status: int, function: str) -> CudaError:
        """Return the exception for a status that a function returned."""
        name, text = self._describe(status)
        return CudaError(status, name, text, self.name, function)

    def _stand_in(self) -> Table | None:
        if self._table is None and self.name in _stand_ins:
            self.replace(_stand_ins[self.name](), found_by="simulator")
        return self._table

    def _bind(self, function: Symbol) -> Callable[..., Any]:
        with self._lock:
            table = self._stand_in()
            if table is not None:
                return self._thunk(function, table)
            handle = self.load()
            try:
                bound = getattr(handle, function.symbol)
            except AttributeError:
                raise self._lacks(function) from None
            bound.argtypes = function.argtypes
            bound.restype = function.restype
            return bound

    def _bind_variable(self, variable: Variable) -> ctypes.c_void_p:
        with self._lock:
            table = self._stand_in()
            try:
                if table is None:
                    return ctypes.c_void_p.in_dll(self.load(), variable.symbol)
                return ctypes.c_void_p(cast("int", table[variable.symbol]))
            except (ValueError, KeyError):
                raise self._lacks(variable) from None

    def _thunk(self, function: Symbol, table: Table) -> Callable[..., Any]:
        """Wrap an entry of the table in a C function pointer, so that arguments are converted as in a real call."""
        try:
            entry = table[function.symbol]
        except KeyError:
            raise self._lacks(function) from None
        thunk = ctypes.CFUNCTYPE(function.restype, *function.argtypes)(entry)
        return thunk

    def _lacks(self, missing: Symbol | Variable) -> SymbolMissing:
        path, what = self.path or f"{self.found_by}", "variable" if isinstance(missing, Variable) else "function"
        return SymbolMissing(self.name, self.extra, (path,), missing.symbol, path, missing.since, what)

    def __iter__(self) -> Iterator[Symbol]:
        return iter(self.functions.values())
