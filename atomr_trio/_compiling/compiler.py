"""One compile of CUDA C++ by NVRTC, in the calling thread.

NVRTC needs neither a GPU nor a CUDA context, so this file does not depend on devices, tasks or workers.

A compile must not depend on the working directory, which NVRTC searches for what a source or a header in memory
includes in quotes: it takes their names for relative paths. Its own option against that (`--no-source-include`) also
keeps a header on disk from including its neighbours, which CUDA's headers do. So source and headers get names in a
folder that never exists, and a `#line` that says what they are called.
"""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

import attrs

from atomr_cuda import nvrtc
from atomr_trio._compiling.architectures import ARCH, dotted, is_compiled_by, virtual
from atomr_trio._compiling.bundled_headers import headers_in_use
from atomr_trio._compiling.flags import parse_flags, refuse
from atomr_trio._compiling.nvrtc_library import error_context, nvrtc_errors, nvrtc_version, supported_architectures
from atomr_trio._compiling.options import NvrtcOptions, check_options
from atomr_trio._compiling.told import Told
from atomr_trio._values.errors import CompileError, InvalidArgument
from atomr_trio._values.long_texts import cuts, encoded
from atomr_trio._values.signatures import KernelSignature, parse_signatures

__all__ = [
    "NOWHERE",
    "CompiledProgram",
    "Prepare",
    "check_include_paths",
    "check_source",
    "compile_names",
    "compile_program",
    "compile_to_cubin",
    "compile_to_ltoir",
    "compile_to_ptx",
]

Prepare: TypeAlias = Callable[[ctypes.c_void_p], None]
"""A function that gets an NVRTC program before it is compiled."""

NOWHERE: Final = "/proc/0/"
"""The folder of the names of source and headers in memory: there is no process 0, so this folder has no files."""


@attrs.frozen
class CompressedText:
    """Compressed PTX from the cache with machine code beside it: it is seldom needed, and is the larger of the two."""

    compressed: bytes

    @classmethod
    def of(cls, text: bytes) -> CompressedText:
        """Return `text` compressed."""
        return cls(zlib.compress(text, _QUICKLY))

    def __bytes__(self) -> bytes:
        return zlib.decompress(self.compressed)


_QUICKLY: Final = 1


@attrs.frozen
class CompiledProgram:
    """The result of one compile."""

    _ptx: bytes | CompressedText = attrs.field(eq=bytes)
    cubin: bytes | None
    """The machine code; None when the target was a virtual architecture."""
    lowered_names: Mapping[str, str]
    """Name expression to the name in the image."""
    entries: Mapping[str, KernelSignature]
    """The parameters of each kernel, by its name in the image."""
    log: str
    """NVRTC's messages; warnings, since it succeeded."""
    target: str
    """The target of the compile: "compute_80", "sm_90"."""
    nvrtc_version: tuple[int, int]
    """The compiler's version."""
    ltoir: bytes | None = None
    """The intermediate code for the linker; None unless it was asked for, and then there are no other images."""
    told: Mapping[str, Told] = MappingProxyType({})
    """What the compiler told of the types of kernels that are not linked yet, by their names in the image."""

    @property
    def ptx(self) -> bytes:
        """The PTX text, without the NUL at its end; empty when LTO-IR was asked for."""
        return bytes(self._ptx)

    @property
    def image(self) -> bytes:
        """The image for a driver or a linker: cubin or LTO-IR if there is one, else PTX with a NUL at its end."""
        return self.cubin or self.ltoir or self.ptx + b"\0"

    def lowered(self, name: str) -> str:
        """Return the name in the image of a name expression, or of a kernel given by its name in the image.

        Spaces in a name expression do not matter, except in characters and texts.
        """
        if name in self.lowered_names:
            return self.lowered_names[name]
        if name in self.entries:
            return name
        for expression, lowered in self.lowered_names.items():
            if _without_spaces(expression) == _without_spaces(name):
                return lowered
        known = ", ".join(map(repr, self._names)) or "none"
        raise InvalidArgument(
            f"there is no kernel {name!r}; the program has: {known}", advice=self._naming_advice(name)
        )

    def signature(self, name: str) -> KernelSignature:
        """Return the parameters of a kernel by any name that `lowered` takes; a variable is refused."""
        lowered = self.lowered(name)
        if lowered in self.entries:
            return self.entries[lowered]
        if self.ltoir is not None:
            raise InvalidArgument(f"{name!r} has no parameters yet", advice="they are known once LTO-IR is linked.")
        raise InvalidArgument(f"{name!r} is not a kernel", advice="kernels are `__global__` functions.")

    @property
    def _names(self) -> tuple[str, ...]:
        return (*self.lowered_names, *self.entries)

    def _naming_advice(self, name: str) -> str:
        plain = name.partition("<")[0].rpartition("::")[2].strip()
        if name and any(f"{len(plain)}{plain}" in entry for entry in self.entries):
            return f'its C++ name is mangled: declare it `extern "C"`, or pass name_expressions=[{name!r}].'
        near = difflib.get_close_matches(name, self._names, n=1)
        if near:
            return f"did you mean {near[0]!r}?"
        if self.ltoir is not None:
            return "LTO-IR tells no names: pass those that are needed as name_expressions."
        return 'a template needs its instance in name_expressions; another kernel `extern "C"` or the same.'


_NUMBER_OR_TEXT_OR_SPACE = re.compile(r"""(\.?\d(?:'?[\w.])*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|\s+""")


def _without_spaces(name: str) -> str:
    return _NUMBER_OR_TEXT_OR_SPACE.sub(lambda match: match[1] or "", name)


def check_source(source: object) -> str:
    """Return `source`, or raise `InvalidArgument` if it cannot be a source text."""
    if not isinstance(source, str):
        raise InvalidArgument(f"the source has to be a string, got {type(source).__name__}")
    if "\0" in source:
        raise InvalidArgument(f"the source contains a NUL character at position {source.index(chr(0))}")
    try:
        if not source.isascii():
            for piece in cuts(source):
                piece.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"the source is not valid Unicode: {error}") from error
    return source


def check_include_paths(options: NvrtcOptions) -> None:
    """Raise `InvalidArgument` for an include path that is not a folder."""
    for path in options.include_paths:
        if not os.path.isdir(path):
            refuse("include_paths", f"{path!r} is not a folder")


def compile_program(
    source: str,
    options: NvrtcOptions,
    target: str,
    *,
    extra_flags: tuple[str, ...] = (),
    prepare: Prepare | None = None,
) -> CompiledProgram:
    """Compile `source` for `target` and return the result. Blocks the calling thread, and needs no GPU.

    A real target gives a cubin and the PTX it was made of, a virtual one PTX; `options.lto` gives LTO-IR alone.
    `extra_flags` are options that do not change the result. `prepare` is called with the NVRTC program before it is
    compiled.

    Raises `CompileError` with the log when NVRTC refuses the source, `InvalidArgument` for errors that are found before
    NVRTC runs, and `LibraryNotFound` when there is no NVRTC or when it has no headers to bundle.
    """
    check_source(source)
    check_include_paths(options)
    target = virtual(target) if options.lto else target
    with nvrtc_errors():
        version = nvrtc_version()
        check_options(options, version)
        _check_target(target, version)
        for _ in range(_ATTEMPTS):
            with headers_in_use(options.bundled_headers) as headers:
                try:
                    program = _compiled(source, options, target, version, extra_flags, prepare)
                except CompileError:
                    if headers.intact():
                        raise
                else:
                    if headers.intact():
                        return program
    raise CompileError(f"CUDA's headers in {headers.folder} were changed while they were compiled", log="")


_ATTEMPTS: Final = 3
"""How often a compile is begun of which a header of CUDA's own vanishes."""


def _compiled(
    source: str,
    options: NvrtcOptions,
    target: str,
    version: tuple[int, int],
    extra_flags: tuple[str, ...],
    prepare: Prepare | None,
) -> CompiledProgram:
    flags = options.flags(target)
    with _program(source, options, options.name_expressions) as program:
        if prepare is not None:
            prepare(program)
        log = _compile(program, (*flags, *extra_flags), options)
        images = {what: _output(program, what) for what in _IMAGES}
        lowered = {name: _lowered_name(program, name) for name in options.name_expressions}
    if not images["LTOIR" if options.lto else "CUBIN" if target.startswith("sm_") else "PTX"]:
        raise CompileError(f"NVRTC made nothing to load for {target}; the options were {flags}", log=log)
    ptx = _as_named(images["PTX"].rstrip(b"\0"), options)
    return CompiledProgram(
        ptx=ptx,
        cubin=images["CUBIN"] or None,
        ltoir=images["LTOIR"] or None,
        lowered_names=MappingProxyType(lowered),
        entries=MappingProxyType(parse_signatures(ptx.decode())),
        log=log,
        target=target,
        nvrtc_version=version,
    )


def _check_target(target: str, version: tuple[int, int]) -> None:
    supported = supported_architectures()
    if is_compiled_by(target, version, supported):
        return
    match = ARCH.fullmatch(target)
    advice = f'arch="compute_{supported[-1]}" gives PTX, which the driver of a newer GPU compiles further.'
    numbers = ", ".join(map(str, supported))
    problem = f"NVRTC {dotted(version)} does not compile for {target!r}; it knows {numbers}"
    refuse("arch", problem, advice if match and int(match[2]) > supported[-1] else None)


def compile_names(
    source: str,
    options: NvrtcOptions,
    flags: Sequence[str],
    expressions: Sequence[str],
    *,
    headers: Mapping[str, str],
    prepare: Prepare,
) -> tuple[Mapping[str, str] | None, str]:
    """Compile `source` for the lowered names of `expressions` alone; return them, or None, and the log.

    `flags` are all options that NVRTC gets, and `headers` further ones in memory, by the names that find them.

    Raises what the functions of NVRTC raise, but for the compile itself.
    """
    with _program(source, options, expressions, headers) as program:
        prepare(program)
        status = nvrtc.nvrtcCompileProgram.status(program, len(flags), _strings(flags))
        if status:
            return None, _output(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        return {name: _lowered_name(program, name) for name in expressions}, ""


@contextlib.contextmanager
def _program(
    source: str, options: NvrtcOptions, expressions: Sequence[str], more_headers: Mapping[str, str] | None = None
) -> Iterator[ctypes.c_void_p]:
    """Create an NVRTC program, and destroy it in any case."""
    program = nvrtc.nvrtcProgram()
    title = _no_title if _precompiles_headers(options) else _title
    headers = dict(_placed(options.headers, title)) | dict(more_headers or {})
    nvrtc.nvrtcCreateProgram(
        *(ctypes.byref(program), encoded(title(options.name), source), f"{NOWHERE}source".encode()),
        *(len(headers), _strings(headers.values()), _strings(headers)),
    )
    try:
        for name in expressions:
            nvrtc.nvrtcAddNameExpression(program, name.encode())
        yield program
    finally:
        nvrtc.nvrtcDestroyProgram.status(ctypes.byref(program))


def _placed(headers: Iterable[tuple[str, str]], title: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Move headers in memory to where they have no neighbours; under its own name, each leads there."""
    for name, text in headers:
        yield name, f"#include <{NOWHERE}{name}>\n"
        yield f"{NOWHERE}{name}", title(name) + text


def _title(name: str) -> str:
    """Return what stands before a text that states its own name."""
    return f'#line 1 "{name}"\n'


def _no_title(name: str) -> str:
    """Return what stands before a text that does not state its name. NVRTC precompiles no header after a `#line`;
    without one, `__FILE__` is wrong."""
    return ""


def _precompiles_headers(options: NvrtcOptions) -> bool:
    return any(each.flag.name in _PRECOMPILING for each in parse_flags(options.extra_options))


_PRECOMPILING: Final = ("--pch", "--create-pch", "--use-pch")


def _strings(values: Iterable[str]) -> ctypes.Array[ctypes.c_char_p]:
    encoded = [value.encode() for value in values]
    return (ctypes.c_char_p * len(encoded))(*encoded)


_MISSING_HEADER: Final = re.compile(r'(?:could not|cannot) open source file "([^"]+)"')
_CUDA_HEADER: Final = re.compile(
    r"(?:cub|thrust|cuda|nv|cooperative_groups)/"
    r"|(?:cooperative_groups|cuda_(?:[bt]?fp?\d+|awbarrier|pipeline)|cuComplex|mma|vector_types|math_constants)\.h"
)
"""The names of the headers that `bundled_headers` adds."""


def _advice_about(log: str, options: NvrtcOptions) -> str | None:
    """Return the advice for a header of CUDA's that was not found; None for every other error."""
    missing = _MISSING_HEADER.search(log)
    if missing is None or options.bundled_headers or not _CUDA_HEADER.match(missing[1]):
        return None
    return (
        f"`{missing[1]}` is one of CUDA's own headers: compile with `NvrtcOptions(bundled_headers=True)`, which adds "
        "CUB, libcu++, cooperative groups and `cuda_fp16.h` among them."
    )


def _compile(program: ctypes.c_void_p, flags: tuple[str, ...], options: NvrtcOptions) -> str:
    """Run the compiler and return its log."""
    status = nvrtc.nvrtcCompileProgram.status(program, len(flags), _strings(flags))
    log = _output(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
    log = log.replace(f"{NOWHERE}source", options.name).replace(NOWHERE, "")
    if status:
        error = nvrtc.library.error(status, "nvrtcCompileProgram")
        context = error_context(error)
        context["advice"] = _advice_about(log, options)
        raise CompileError(_first_error(log) or str(error), log=log, **context) from error
    return log


def _as_named(ptx: bytes, options: NvrtcOptions) -> bytes:
    """Return PTX whose line information has the given names, without the working directory that NVRTC adds."""
    if not (options.lineinfo or options.debug):
        return ptx
    with contextlib.suppress(FileNotFoundError):  # somebody has deleted the directory
        here = os.path.join(os.getcwd(), "")
        for name in (options.name, *(header for header, _ in options.headers)):
            ptx = ptx.replace(f'"{here}{name}"'.encode(), f'"{name}"'.encode())
    return ptx


def _output(program: ctypes.c_void_p, what: str) -> bytes:
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
        "LTOIR": (nvrtc.nvrtcGetLTOIRSize, nvrtc.nvrtcGetLTOIR),
        "ProgramLog": (nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog),
    }
)


_IMAGES: Final = ("PTX", "CUBIN", "LTOIR")


def _lowered_name(program: ctypes.c_void_p, name: str) -> str:
    lowered = ctypes.c_char_p()
    nvrtc.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(lowered))
    return (lowered.value or b"").decode()


_NAME_MAP = re.compile(r"__nv_name_map\(\d+\): error: ")
"""The form in which NVRTC reports a name expression: as an error in a file that the user did not write."""

_ERROR_LINE = re.compile(r"^.*\berror\b[^:\n]*:.*$", re.MULTILINE)


def _first_error(log: str) -> str:
    """Return the first error line of a log, which names file and line: `kernel.cu(3): error: ...`."""
    match = _ERROR_LINE.search(log)
    return _NAME_MAP.sub("a name expression is not valid: ", match[0].strip()) if match else ""


def compile_to_ptx(source: str, *, options: NvrtcOptions | None = None) -> str:
    """Compile `source` to PTX and return its text. Synchronous; needs no GPU.

    `options` say how. Their `arch="native"` names no device here, so it stands for the oldest architecture this NVRTC
    supports: its PTX runs on every GPU that the compiler knows. Name an architecture to use the instructions of a newer
    one; "sm_90" gives what "compute_90" does, since PTX is written for virtual architectures. The functions are
    ``nvrtcCompileProgram`` and ``nvrtcGetPTX``.

    Raises `CompileError` with the compiler's log, and `LibraryNotFound` when there is no NVRTC. Raises
    `InvalidArgument` for a text that cannot be a source, and for options that this NVRTC does not have or that ask for
    LTO-IR.
    """
    options = NvrtcOptions() if options is None else options
    if options.lto:
        refuse("lto", "True gives LTO-IR and no PTX", "call compile_to_ltoir.")
    return compile_program(source, options, _virtual_target(options)).ptx.decode()


def compile_to_ltoir(source: str, *, options: NvrtcOptions | None = None) -> bytes:
    """Compile `source` to LTO-IR, the linker's input, and return its bytes. Synchronous; needs no GPU.

    `options` say how; their `lto` need not be set. `arch` is read as `compile_to_ptx` reads it, and code is linked for
    that architecture or a newer one. The functions are ``nvrtcCompileProgram`` and ``nvrtcGetLTOIR``.

    Raises what `compile_to_ptx` raises, except that `InvalidArgument` is for options that contradict LTO-IR.
    """
    options = attrs.evolve(NvrtcOptions() if options is None else options, lto=True)
    ltoir = compile_program(source, options, _virtual_target(options)).ltoir
    assert ltoir is not None
    return ltoir


def compile_to_cubin(source: str, *, options: NvrtcOptions) -> bytes:
    """Compile `source` to a cubin for one real architecture and return its bytes. Synchronous; needs no GPU.

    The architecture is the one that `options` name by `arch` ("sm_90"). The functions are ``nvrtcCompileProgram`` and
    ``nvrtcGetCUBIN``.

    Raises as `compile_to_ptx` does, and `InvalidArgument` when `options` name no real architecture.
    """
    if options.lto:
        refuse("lto", "True gives LTO-IR and no cubin", "call compile_to_ltoir, and link its result.")
    if not options.arch.startswith("sm_"):
        problem = f"a cubin is for one real architecture, and {options.arch!r} does not name one"
        refuse("arch", problem, 'name the GPU\'s, for example arch="sm_90".')
    cubin = compile_program(source, options, options.arch).cubin
    assert cubin is not None
    return cubin


def _virtual_target(options: NvrtcOptions) -> str:
    """Return the virtual architecture that options name; the oldest one when they name none."""
    if options.arch != "native":
        return virtual(options.arch)
    with nvrtc_errors():
        return f"compute_{supported_architectures()[0]}"
