"""One compile of CUDA C++ by NVRTC, in the calling thread.

NVRTC needs neither a GPU nor a CUDA context, so this file knows no device, no task and no worker. NVRTC is kept from
finding headers by itself (`--no-source-include`), so they come from `NvrtcOptions.headers`, from `include_paths`, or
from an absolute `#include`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, Literal

import attrs

from atomr_cuda import CudaError, LibraryMissing, nvrtc
from atomr_trio._errors import CompileError, ErrorContext, InvalidArgument, LibraryNotFound
from atomr_trio._nvrtc_options import ARCH, NvrtcOptions, dotted, refuse
from atomr_trio._parameters import KernelSignature, parse_signatures

__all__ = ["CompiledProgram", "check_source", "compile_program", "compile_to_cubin", "compile_to_ptx"]


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
            refuse("include_paths", f"{os.fspath(path)!r} is not a folder")
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
    match = ARCH.fullmatch(target)
    supported = _supported()
    if match is None or int(match[2]) not in supported:
        advice = f'arch="compute_{supported[-1]}" gives PTX, which the driver of a newer GPU compiles further.'
        numbers = ", ".join(map(str, supported))
        problem = f"NVRTC {dotted(version)} does not compile for {target!r}; it knows {numbers}"
        refuse("arch", problem, advice if match and int(match[2]) > supported[-1] else None)


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
        refuse("arch", problem, 'name the GPU\'s, for example arch="sm_90".')
    cubin = compile_program(source, options, options.arch, file_name=file_name).cubin
    assert cubin is not None
    return cubin
