"""Compiling CUDA C++ with NVRTC: options, one compile, and the service that shares compiles among tasks.

NVRTC needs neither a GPU nor a CUDA context, so this file knows no device, no mailbox and no worker. It uses trio for
one thing only: `CompileService` runs compiles in threads and hands their results back in the trio thread.

What decides the result of a compile is the source, the options, the target and nothing else, with one exception:
headers on disk. NVRTC is kept from finding headers by itself (`--no-source-include`), so they come from
`NvrtcOptions.headers`, from `include_paths`, or from an absolute `#include`. A source that includes nothing from disk
is cached by its text; a source that does is compiled again each time, because a header may have been edited since.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NoReturn, TypeAlias

import attrs
import outcome
import trio

from atomr_cuda import CudaError, LibraryMissing, nvrtc
from atomr_trio._errors import (
    AtomrInternalError,
    CompileError,
    DeviceError,
    ErrorContext,
    InvalidArgument,
    LibraryNotFound,
    fresh,
)
from atomr_trio._parameters import KernelSignature, parse_signatures

__all__ = [
    "CompileService",
    "CompileStatistics",
    "CompiledProgram",
    "NvrtcOptions",
    "check_source",
    "compile_program",
    "compile_to_cubin",
    "compile_to_ptx",
    "resolve_target",
]

_log = logging.getLogger("atomr_trio.nvrtc")

# ---------------------------------------------------------------------------------------------------- options

Path: TypeAlias = "str | os.PathLike[str]"
Define: TypeAlias = tuple[str, str | None]
Header: TypeAlias = tuple[str, str]

_ARCH = re.compile(r"(compute|sm)_(\d{2,3})([af]?)", re.ASCII)
_MACRO = re.compile(r"([A-Za-z_]\w*)(\([\w\s,.]*\))?", re.ASCII)
_STANDARDS: Final[Mapping[int, str]] = MappingProxyType(
    {3: "c++03", 11: "c++11", 14: "c++14", 17: "c++17", 20: "c++20", 23: "c++23"}
)
_MOST_REGISTERS: Final = 255

_NO_IMAGE: Final = "its output is neither PTX nor a cubin"
_REFUSED_EXTRAS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "gpu-architecture": "use arch=",
        "arch": "use arch=",
        "std": "use cpp_std=",
        "use_fast_math": "use use_fast_math=",
        "ftz": "use ftz=",
        "prec-div": "use prec_div=",
        "prec-sqrt": "use prec_sqrt=",
        "fmad": "use fmad=",
        "maxrregcount": "use max_registers=",
        "device-debug": "use debug=",
        "G": "use debug=",
        "generate-line-info": "use lineinfo=",
        "lineinfo": "use lineinfo=",
        "dlink-time-opt": _NO_IMAGE,
        "dlto": _NO_IMAGE,
        "gen-opt-lto": _NO_IMAGE,
        "optix-ir": _NO_IMAGE,
        "fdevice-syntax-only": _NO_IMAGE,
        "tile-only": _NO_IMAGE,
    }
)
"""Extra options (without dashes and value) that would contradict a field or leave nothing to load."""

_FAST_MATH_IMPLIES: Final[Mapping[str, bool]] = MappingProxyType(
    {"ftz": True, "prec_div": False, "prec_sqrt": False, "fmad": True}
)

_FLAG_OF_SWITCH: Final[Mapping[str, str]] = MappingProxyType(
    {"use_fast_math": "--use_fast_math", "debug": "--device-debug", "lineinfo": "--generate-line-info"}
)

_HERMETIC: Final = ("--no-source-include", "--modify-stack-limit=false")
"""The first keeps NVRTC from finding headers in the working directory. The second keeps it from raising the stack
limit of the whole process while it compiles, which a worker started at that moment would inherit."""


def _refuse(option: str, problem: str, advice: str | None = None) -> NoReturn:
    raise InvalidArgument(f"NvrtcOptions: {option}: {problem}", advice=advice)


def _text(option: str, value: object) -> str:
    """Check one string on its way to a C function."""
    if not isinstance(value, str):
        _refuse(option, f"expected a string, got {type(value).__name__}")
    if "\0" in value:
        _refuse(option, f"{value!r} contains a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        _refuse(option, f"{value!r} is not valid Unicode: {error.reason}")
    return value


def _items(option: str, values: object) -> tuple[object, ...]:
    """Check for a sequence of things, and for the mistake of giving one string instead."""
    if isinstance(values, (str, bytes, os.PathLike)) or not isinstance(values, Iterable):
        _refuse(option, f"expected a list, got {type(values).__name__} {values!r}", f"write {option}=[{values!r}].")
    return tuple(values)


def _words(option: str, values: object) -> tuple[str, ...]:
    """Check a list of strings that are not empty."""
    words = tuple(_text(option, value) for value in _items(option, values))
    if not all(word.strip() for word in words):
        _refuse(option, "an empty string is not a name")
    return words


def _name_expressions(values: Iterable[str]) -> tuple[str, ...]:
    return _words("name_expressions", values)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _pairs(option: str, values: object) -> list[tuple[str, object]]:
    """Accept a mapping, or the pairs that an earlier conversion made of one."""
    if isinstance(values, Mapping):
        values = tuple(values.items())
    if not isinstance(values, tuple) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in values):
        _refuse(option, f"expected a dictionary, got {type(values).__name__}")
    return [(_text(option, name), value) for name, value in values]


def _defines(values: Mapping[str, str | int | None] | tuple[Define, ...]) -> tuple[Define, ...]:
    defines: dict[str, Define] = {}
    for name, value in _pairs("defines", values):
        match = _MACRO.fullmatch(name)
        if match is None:
            _refuse("defines", f"{name!r} is not the name of a macro")
        if match[1] in defines:
            _refuse("defines", f"macro {match[1]!r} is defined twice")
        defines[match[1]] = (name, _definition(name, value))
    return tuple(sorted(defines.values(), key=lambda define: define[0]))


def _definition(name: str, value: object) -> str | None:
    """Return the text of a macro; numbers are written as C++ has them, None means a macro defined to 1."""
    if isinstance(value, (bool, int)):
        return str(int(value))
    if value is None:
        return None
    text = _text(f"defines[{name!r}]", value)
    if "\n" in text or "\r" in text:
        _refuse(f"defines[{name!r}]", "a definition is one line")
    return text


def _headers(values: Mapping[str, str] | tuple[Header, ...]) -> tuple[Header, ...]:
    headers = [(name, _text(f"headers[{name!r}]", text)) for name, text in _pairs("headers", values)]
    if not all(name.strip() for name, _ in headers):
        _refuse("headers", "a header needs a name")
    return tuple(sorted(headers))


def _paths(values: Iterable[Path]) -> tuple[str, ...]:
    paths = []
    for value in _items("include_paths", values):
        if not isinstance(value, (str, os.PathLike)):
            _refuse("include_paths", f"expected paths, got {type(value).__name__}")
        path = _text("include_paths", os.fspath(value))
        if not path:
            _refuse("include_paths", "an empty string is not a path")
        paths.append(os.path.abspath(path))
    return tuple(paths)


def _extras(values: Iterable[str]) -> tuple[str, ...]:
    options = _words("extra_options", values)
    for option in options:
        name = option.lstrip("-").partition("=")[0].strip()
        if option.startswith("-") and name in _REFUSED_EXTRAS:
            _refuse("extra_options", f"{option!r} is not accepted: {_REFUSED_EXTRAS[name]}")
    return options


def _arch(value: str) -> str:
    arch = _text("arch", value)
    if arch != "native" and _ARCH.fullmatch(arch) is None:
        _refuse("arch", f'expected "native" or a name such as "compute_80" or "sm_90a", got {arch!r}')
    return arch


def _standard(value: int | None) -> int | None:
    if value is None:
        return None
    if not _is_whole(value) or value not in _STANDARDS:
        _refuse("cpp_std", f"expected one of {', '.join(map(str, _STANDARDS))}, got {value!r}")
    return value


def _registers(value: int | None) -> int | None:
    if value is None:
        return None
    if not _is_whole(value) or not 1 <= value <= _MOST_REGISTERS:
        _refuse("max_registers", f"expected a number of registers from 1 to {_MOST_REGISTERS}, got {value!r}")
    return value


def _check_switch(options: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, bool) and not (value is None and attribute.default is None):
        _refuse(attribute.name, f"expected True or False, got {value!r}")


@attrs.frozen(kw_only=True)
class NvrtcOptions:
    """How to compile a source. A value: hashable, comparable, and checked when it is made.

    Raises `InvalidArgument` for what can be known without a compiler; what only this NVRTC can know (an extra option it
    does not have, a C++ standard newer than itself) comes as `CompileError` from the compile.
    """

    defines: tuple[Define, ...] = attrs.field(default=(), converter=_defines)
    """Macros and their definitions, kept as pairs sorted by name. None defines the macro to 1."""
    include_paths: tuple[str, ...] = attrs.field(default=(), converter=_paths)
    """Folders to look for headers in, in this order; made absolute at once."""
    arch: str = attrs.field(default="native", converter=_arch)
    """ "native", a virtual architecture ("compute_80": PTX, runs on that GPU and newer ones), or a real one
    ("sm_90": a cubin for that GPU). "native" is a cubin for the open device, PTX on the simulator."""
    name_expressions: tuple[str, ...] = attrs.field(default=(), converter=_name_expressions)
    """C++ names to make available by that spelling: "scale<float, 4>", "&table"."""
    cpp_std: int | None = attrs.field(default=17, converter=_standard)
    """The C++ standard; None is NVRTC's own default."""
    use_fast_math: bool = attrs.field(default=False, validator=_check_switch)
    """Faster and less exact float arithmetic; implies ftz, fmad, and neither prec_div nor prec_sqrt."""
    ftz: bool | None = attrs.field(default=None, validator=_check_switch)
    """Flush float denormals to zero. None, here and below, is NVRTC's own default."""
    prec_div: bool | None = attrs.field(default=None, validator=_check_switch)
    """Divide floats to the last bit."""
    prec_sqrt: bool | None = attrs.field(default=None, validator=_check_switch)
    """Take square roots of floats to the last bit."""
    fmad: bool | None = attrs.field(default=None, validator=_check_switch)
    """Contract multiply and add to one operation."""
    max_registers: int | None = attrs.field(default=None, converter=_registers)
    """Registers a thread may have at most."""
    debug: bool = attrs.field(default=False, validator=_check_switch)
    """Debug information for the device code, and no optimisation."""
    lineinfo: bool = attrs.field(default=False, validator=_check_switch)
    """Line numbers for profilers and sanitizers."""
    headers: tuple[Header, ...] = attrs.field(default=(), converter=_headers)
    """Headers in memory: the name as `#include` spells it, and the text. Found before any on disk."""
    extra_options: tuple[str, ...] = attrs.field(default=(), converter=_extras)
    """More options, as NVRTC spells them, passed on after ours."""

    def __attrs_post_init__(self) -> None:
        if not self.use_fast_math:
            return
        for name, implied in _FAST_MATH_IMPLIES.items():
            if getattr(self, name) is (not implied):
                _refuse(name, f"{not implied} contradicts use_fast_math=True, which means {name}={implied}")

    def flags(self, target: str) -> tuple[str, ...]:
        """Return the options that NVRTC gets, for a `target` such as "compute_80" or "sm_90". Raises nothing."""
        flags = [f"--gpu-architecture={target}", *_HERMETIC]
        if self.cpp_std is not None:
            flags.append(f"--std={_STANDARDS[self.cpp_std]}")
        flags += [flag for name, flag in _FLAG_OF_SWITCH.items() if getattr(self, name)]
        for name in _FAST_MATH_IMPLIES:
            value = getattr(self, name)
            if value is not None:
                flags.append(f"--{name.replace('_', '-')}={'true' if value else 'false'}")
        if self.max_registers is not None:
            flags.append(f"--maxrregcount={self.max_registers}")
        flags += [f"--define-macro={name}" + ("" if text is None else f"={text}") for name, text in self.defines]
        flags += [f"--include-path={path}" for path in self.include_paths]
        return (*flags, *self.extra_options)


# ---------------------------------------------------------------------------------------------------- targets


def _capability(digits: str) -> tuple[int, int]:
    return int(digits[:-1]), int(digits[-1])


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def resolve_target(arch: str, capability: tuple[int, int], accepts_cubin: bool) -> str:
    """Return the target to compile for, given what the options ask and the device can load.

    Raises `InvalidArgument` for code that the device cannot run: newer than the device, a cubin for another family, an
    architecture-specific variant of another architecture, or a cubin where only PTX is understood.
    """
    number = f"{capability[0]}{capability[1]}"
    if arch == "native":
        return f"sm_{number}" if accepts_cubin else f"compute_{number}"
    match = _ARCH.fullmatch(arch)
    if match is None:
        _refuse("arch", f'expected "native" or a name such as "compute_80" or "sm_90a", got {arch!r}')
    form, wanted, variant = match[1], _capability(match[2]), match[3]
    if form == "sm" and not accepts_cubin:
        _refuse("arch", f"{arch!r} asks for a cubin, and the simulator only runs PTX", f'use "compute_{number}".')
    problem = _misfit(form, wanted, variant, capability)
    if problem:
        _refuse("arch", f"{arch!r} does not run on this device of capability {_dotted(capability)}: {problem}")
    return arch


def _misfit(form: str, wanted: tuple[int, int], variant: str, capability: tuple[int, int]) -> str:
    """Say why a device cannot run code for an architecture; nothing when it can."""
    if variant == "a":
        return "" if wanted == capability else f"an 'a' variant runs on {_dotted(wanted)} alone"
    if wanted > capability:
        return f"it is code for {_dotted(wanted)} and newer"
    if wanted[0] != capability[0] and (form == "sm" or variant == "f"):
        return f"it runs on {wanted[0]}.x devices only; PTX for a virtual architecture would run on newer ones"
    return ""


# ---------------------------------------------------------------------------------------------------- one compile


@attrs.frozen(eq=False)
class CompiledProgram:
    """What one compile gave. Two of them are equal only when they are the same object."""

    ptx: bytes
    """The PTX text, without the NUL at its end."""
    cubin: bytes | None
    """The machine code; None when the target was a virtual architecture."""
    lowered_names: Mapping[str, str]
    """Name expression to the name in the image."""
    entries: Mapping[str, KernelSignature]
    """The parameters of each kernel, by its name in the image."""
    log: str
    """NVRTC's messages; warnings, since it succeeded."""
    target: str
    """What it was compiled for: "compute_80", "sm_90"."""
    nvrtc_version: tuple[int, int]
    """The compiler's version."""

    @property
    def image(self) -> bytes:
        """What a driver loads: the cubin when there is one, else the PTX with the NUL that it needs."""
        return self.ptx + b"\0" if self.cubin is None else self.cubin

    def lowered(self, name: str) -> str:
        """Return the name in the image of a name expression, or of a kernel given by its name in the image."""
        if name in self.lowered_names:
            return self.lowered_names[name]
        if name in self.entries:
            return name
        known = ", ".join(map(repr, (*self.lowered_names, *self.entries))) or "none"
        raise InvalidArgument(
            f"there is no kernel {name!r}; the program has: {known}", advice=self._naming_advice(name)
        )

    def signature(self, name: str) -> KernelSignature:
        """Return the parameters of a kernel by the name that `lowered` takes; a variable is refused."""
        lowered = self.lowered(name)
        if lowered not in self.entries:
            raise InvalidArgument(f"{name!r} is not a kernel", advice="kernels are `__global__` functions.")
        return self.entries[lowered]

    def _naming_advice(self, name: str) -> str:
        plain = name.partition("<")[0].rpartition("::")[2].strip()
        if name and any(f"{len(plain)}{plain}" in entry for entry in self.entries):
            return f'its C++ name is mangled: declare it `extern "C"`, or pass name_expressions=[{name!r}].'
        return 'a template needs its instance in name_expressions; another kernel `extern "C"` or the same.'


def check_source(source: object, file_name: object = "kernel.cu") -> str:
    """Return `source`, or raise `InvalidArgument` for what cannot be a source text."""
    for what, value in (("the source", source), ("file_name", file_name)):
        if not isinstance(value, str):
            raise InvalidArgument(f"{what} has to be a string, got {type(value).__name__}")
        if "\0" in value:
            raise InvalidArgument(f"{what} contains a NUL character at position {value.index(chr(0))}")
    if not file_name:
        raise InvalidArgument("file_name is empty")
    assert isinstance(source, str)
    try:
        source.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"the source is not valid Unicode: {error}") from error
    return source


def compile_program(
    source: str, options: NvrtcOptions, target: str, *, file_name: str = "kernel.cu"
) -> CompiledProgram:
    """Compile `source` for `target` and return the result. Blocks the calling thread, and needs no GPU.

    Raises `CompileError` with the log when NVRTC refuses source or options, `InvalidArgument` for what is wrong before
    NVRTC runs, `LibraryNotFound` when there is no NVRTC.
    """
    check_source(source, file_name)
    for path in options.include_paths:
        if not os.path.isdir(path):
            _refuse("include_paths", f"{os.fspath(path)!r} is not a folder")
    with _nvrtc_errors():
        version = _version()
        _check_target(target, version)
        with _program(source, options, file_name) as program:
            log = _compile(program, options, target)
            ptx = _output(program, "PTX").rstrip(b"\0")
            cubin = _output(program, "CUBIN") or None
            lowered = {name: _lowered_name(program, name) for name in options.name_expressions}
    if not ptx or (cubin is None and target.startswith("sm_")):
        raise CompileError(
            f"NVRTC made nothing to load for {target}; the options were {options.flags(target)}", log=log
        )
    entries = MappingProxyType(parse_signatures(ptx.decode()))
    return CompiledProgram(ptx, cubin, MappingProxyType(lowered), entries, log, target, version)


@contextlib.contextmanager
def _nvrtc_errors() -> Iterator[None]:
    """The only place where a failure of the NVRTC library becomes one of our exceptions."""
    try:
        yield
    except LibraryMissing as error:
        raise LibraryNotFound(str(error), library="nvrtc", operation="nvrtc.compile") from error
    except CudaError as error:
        raise CompileError(f"{error.function} failed", **_context(error)) from error


def _context(error: CudaError) -> ErrorContext:
    return {"status": error.status, "status_name": error.name, "library": "nvrtc", "operation": "nvrtc.compile"}


def _version() -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def _supported() -> list[int]:
    """Return the architectures this NVRTC compiles for, ascending: 75, 80, ..."""
    count = ctypes.c_int()
    nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    numbers = (ctypes.c_int * count.value)()
    nvrtc.nvrtcGetSupportedArchs(numbers)
    return sorted(numbers)


def _check_target(target: str, version: tuple[int, int]) -> None:
    match = _ARCH.fullmatch(target)
    supported = _supported()
    if match is None or int(match[2]) not in supported:
        advice = f'arch="compute_{supported[-1]}" gives PTX, which the driver of a newer GPU compiles further.'
        numbers = ", ".join(map(str, supported))
        problem = f"NVRTC {_dotted(version)} does not compile for {target!r}; it knows {numbers}"
        _refuse("arch", problem, advice if match and int(match[2]) > supported[-1] else None)


@contextlib.contextmanager
def _program(source: str, options: NvrtcOptions, file_name: str) -> Iterator[ctypes.c_void_p]:
    """Create an NVRTC program, and destroy it in any case."""
    program = nvrtc.nvrtcProgram()
    count = len(options.headers)
    names = _strings(name for name, _ in options.headers)
    texts = _strings(text for _, text in options.headers)
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), file_name.encode(), count, texts, names)
    try:
        for name in options.name_expressions:
            nvrtc.nvrtcAddNameExpression(program, name.encode())
        yield program
    finally:
        nvrtc.nvrtcDestroyProgram.status(ctypes.byref(program))


def _strings(values: Iterable[str]) -> ctypes.Array[ctypes.c_char_p]:
    encoded = [value.encode() for value in values]
    return (ctypes.c_char_p * len(encoded))(*encoded)


def _compile(program: ctypes.c_void_p, options: NvrtcOptions, target: str) -> str:
    """Run the compiler and return its log."""
    flags = options.flags(target)
    status = nvrtc.nvrtcCompileProgram.status(program, len(flags), _strings(flags))
    log = _output(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
    if status:
        error = nvrtc.library.error(status, "nvrtcCompileProgram")
        raise CompileError(_first_error(log) or str(error), log=log, **_context(error)) from error
    return log


def _output(program: ctypes.c_void_p, what: Literal["PTX", "CUBIN", "ProgramLog"]) -> bytes:
    """Copy one of the program's outputs out of NVRTC; the bytes are exactly those it reports."""
    size = ctypes.c_size_t()
    size_of, get = _OUTPUTS[what]
    size_of(program, ctypes.byref(size))
    if not size.value:
        return b""
    buffer = ctypes.create_string_buffer(size.value)
    get(program, buffer)
    return buffer.raw


_OUTPUTS: Final = MappingProxyType(
    {
        "PTX": (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX),
        "CUBIN": (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN),
        "ProgramLog": (nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog),
    }
)


def _lowered_name(program: ctypes.c_void_p, name: str) -> str:
    lowered = ctypes.c_char_p()
    nvrtc.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(lowered))
    return (lowered.value or b"").decode()


_NAME_MAP = re.compile(r"__nv_name_map\(\d+\): error: ")
"""How NVRTC reports a name expression: as an error in a file that the user never wrote."""

_ERROR_LINE = re.compile(r"^.*\berror\b[^:\n]*:.*$", re.MULTILINE)


def _first_error(log: str) -> str:
    """Return the first error line of a log, which names file and line: `kernel.cu(3): error: ...`."""
    match = _ERROR_LINE.search(log)
    return _NAME_MAP.sub("a name expression is not valid: ", match[0].strip()) if match else ""


def compile_to_ptx(source: str, *, options: NvrtcOptions | None = None, file_name: str = "kernel.cu") -> str:
    """Compile `source` to PTX and return its text. Synchronous; needs no GPU.

    `options` say how. Their `arch="native"` names no device here, so it stands for the oldest architecture this NVRTC
    supports: its PTX runs on every GPU that the compiler knows. Name an architecture to use the instructions of a newer
    one; "sm_90" gives what "compute_90" does, since PTX is written for virtual architectures. `file_name` is what the
    compiler calls the source in its messages. The functions are ``nvrtcCompileProgram`` and ``nvrtcGetPTX``.

    Raises `CompileError` with the compiler's log, `InvalidArgument` for what cannot be a source, and `LibraryNotFound`
    when there is no NVRTC.
    """
    options = NvrtcOptions() if options is None else options
    with _nvrtc_errors():
        target = f"compute_{_supported()[0]}" if options.arch == "native" else options.arch.replace("sm_", "compute_")
    return compile_program(source, options, target, file_name=file_name).ptx.decode()


def compile_to_cubin(source: str, *, options: NvrtcOptions, file_name: str = "kernel.cu") -> bytes:
    """Compile `source` to a cubin for one real architecture and return its bytes. Synchronous; needs no GPU.

    The architecture is the one that `options` name by `arch` ("sm_90"); `file_name` is what the compiler calls the
    source in its messages. The functions are ``nvrtcCompileProgram`` and ``nvrtcGetCUBIN``.

    Raises as `compile_to_ptx` does, and `InvalidArgument` when `options` name no real architecture.
    """
    if not options.arch.startswith("sm_"):
        problem = f"a cubin is for one real architecture, and {options.arch!r} does not name one"
        _refuse("arch", problem, 'name the GPU\'s, for example arch="sm_90".')
    cubin = compile_program(source, options, options.arch, file_name=file_name).cubin
    assert cubin is not None
    return cubin


# ---------------------------------------------------------------------------------------------------- many compiles

Compile: TypeAlias = Callable[[str, NvrtcOptions, str], CompiledProgram]
Deliver: TypeAlias = Callable[["outcome.Outcome[CompiledProgram]"], None]
_Key: TypeAlias = tuple[str, NvrtcOptions, str]

_FILE_OPTIONS: Final = ("I", "include", "pre-include", "use-bundled-headers", "pch", "create-pch", "use-pch")
_OUTPUT_OPTIONS: Final = ("time", "fdevice-time-trace")
"""How the names of extra options begin that read files, and that write them."""

_LINE_SPLICE = re.compile(r"\\[ \t]*\r?\n")
_DIRECTIVE = re.compile(
    r"""(?:\#|%:|\?\?=) (?:\s|/\*.*?\*/)* (?:include|include_next|import|embed)\b [ \t]* (?:[<"]([^>"\n]+)[>"])?
        | __has_(?:include|embed)""",
    re.VERBOSE | re.DOTALL,
)


def depends_on_files(source: str, options: NvrtcOptions) -> bool:
    """Tell whether a compile may read or write a file, so that its key does not say all about it.

    Errs on the safe side: an `#include` in a comment counts.
    """
    if any(option.lstrip("-").startswith(_FILE_OPTIONS + _OUTPUT_OPTIONS) for option in options.extra_options):
        return True
    in_memory = {name for name, _ in options.headers}
    texts = (source, *(text for _, text in options.headers))
    directives = (match for text in texts for match in _DIRECTIVE.finditer(_LINE_SPLICE.sub("", text)))
    return any(match[1] not in in_memory for match in directives)


@attrs.frozen
class CompileStatistics:
    """What a `CompileService` is doing and has done."""

    in_flight: int
    """Compiles that run in a thread now."""
    waiting: int
    """Compiles that wait for a thread."""
    cached: int
    """Programs in the cache."""
    hits: int
    """Requests answered from the cache."""
    joined: int
    """Requests that joined a compile of the same key."""
    misses: int
    """Requests that started a compile of their own."""


@attrs.define(eq=False)
class _Flight:
    """One compile that runs or waits, and everyone who wants its result."""

    key: _Key
    token: trio.lowlevel.TrioToken
    waiters: list[Deliver]
    cacheable: bool


class CompileService:
    """Compiles in threads of its own; asks NVRTC once per key however many ask, and remembers what came out.

    It outlives the generations of a device, since what it holds depends on no context. A caller that is cancelled just
    ignores what is delivered: the compile goes on and fills the cache. All methods belong to the trio thread.
    """

    def __init__(
        self, *, threads: int | None = None, capacity: int = 256, compile_with: Compile = compile_program
    ) -> None:
        self._compile = compile_with
        self._threads = min(4, os.cpu_count() or 1) if threads is None else threads
        self._capacity = capacity
        self._cache: OrderedDict[_Key, CompiledProgram] = OrderedDict()
        self._flights: dict[_Key, _Flight] = {}
        self._queue: deque[_Flight] = deque()
        self._running = self._hits = self._joined = self._misses = 0

    @trio.lowlevel.enable_ki_protection
    def submit(self, source: str, options: NvrtcOptions, target: str, deliver: Deliver) -> None:
        """Have `source` compiled and `deliver` called with the outcome, in the trio thread.

        `deliver` is called before `submit` returns when the result is in the cache or `source` is no source text, and
        later otherwise. Failures of every kind are delivered, not raised, each waiter getting an exception object of
        its own; they are not cached.
        """
        try:
            check_source(source)
        except InvalidArgument as error:
            deliver(outcome.Error(error))
            return
        key = (source, options, target)
        program = self._cache.get(key)
        if program is not None:
            self._hits += 1
            self._cache.move_to_end(key)
            deliver(outcome.Value(program))
            return
        flight = self._flights.get(key)
        if flight is not None:
            self._joined += 1
            flight.waiters.append(deliver)
            return
        self._misses += 1
        token = trio.lowlevel.current_trio_token()
        flight = _Flight(key, token, [deliver], not depends_on_files(source, options))
        self._flights[key] = flight
        self._queue.append(flight)
        self._start_waiting()

    def statistics(self) -> CompileStatistics:
        """Return what the service is doing and has done."""
        return CompileStatistics(
            self._running, len(self._queue), len(self._cache), self._hits, self._joined, self._misses
        )

    def clear(self) -> None:
        """Forget every cached program; compiles under way are not touched."""
        self._cache.clear()

    def _start_waiting(self) -> None:
        """Give threads to the compiles that wait, first come first served."""
        while self._queue and self._running < self._threads:
            flight = self._queue.popleft()
            self._running += 1
            try:
                self._start(flight)
            except RuntimeError as error:  # the system has no thread left
                flight.token.run_sync_soon(self._finish, flight, outcome.Error(error))

    def _start(self, flight: _Flight) -> None:
        def compile_it() -> CompiledProgram:
            return self._compile(*flight.key)

        def done(result: outcome.Outcome[CompiledProgram]) -> None:
            # Runs in the thread. When the run is over, nobody is left to tell.
            with contextlib.suppress(trio.RunFinishedError):
                flight.token.run_sync_soon(self._finish, flight, result)

        trio.lowlevel.start_thread_soon(compile_it, done, name="nvrtc")

    @trio.lowlevel.enable_ki_protection
    def _finish(self, flight: _Flight, result: outcome.Outcome[CompiledProgram]) -> None:
        """Settle everyone who waits for a compile. It may not raise: trio would end the whole run."""
        self._running -= 1
        del self._flights[flight.key]
        if isinstance(result, outcome.Value) and flight.cacheable:
            self._remember(flight.key, result.value)
        for deliver in flight.waiters:
            try:
                deliver(_own_copy(result))
            except Exception:
                _log.exception("a receiver of a compiled program failed")
        self._start_waiting()

    def _remember(self, key: _Key, program: CompiledProgram) -> None:
        self._cache[key] = program
        while len(self._cache) > self._capacity:
            self._cache.popitem(last=False)


def _own_copy(result: outcome.Outcome[CompiledProgram]) -> outcome.Outcome[CompiledProgram]:
    """Return an outcome for one waiter: a value can be unwrapped once, and an exception belongs to one task."""
    if isinstance(result, outcome.Value):
        return outcome.Value(result.value)
    assert isinstance(result, outcome.Error)
    if isinstance(result.error, DeviceError):
        return outcome.Error(fresh(result.error))
    error = AtomrInternalError(f"a compile failed in an unforeseen way: {result.error!r}")
    error.__cause__ = result.error
    return outcome.Error(error)
