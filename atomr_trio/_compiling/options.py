"""The options of a compile of CUDA C++, and the target that follows from them and the device.

Everything here is decided before a compiler is searched: this file loads no library and uses no device. The only
exception is the headers that NVRTC carries: `NvrtcOptions.flags` must find their folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeAlias

import attrs

from atomr_trio._compiling.architectures import ARCH, SmArch, capability_of, dotted, virtual
from atomr_trio._compiling.flags import GivenFlag, check_contradictions, check_version, parse_flags, refuse

__all__ = ["ARCH", "NvrtcOptions", "check_options", "dotted", "refuse", "resolve_target"]

Path: TypeAlias = "str | os.PathLike[str]"
Define: TypeAlias = tuple[str, str | None]
Header: TypeAlias = tuple[str, str]

_MACRO = re.compile(r"([A-Za-z_]\w*)(\([\w\s,.]*\))?", re.ASCII)
_IN_NO_FILE_NAME = re.compile(r'["<>\\\x00-\x1f\x7f]')
"""Characters that cannot be in an `#include` and in line information."""
_STANDARDS: Final[Mapping[int, str]] = MappingProxyType(
    {3: "c++03", 11: "c++11", 14: "c++14", 17: "c++17", 20: "c++20", 23: "c++23"}
)
_STANDARD_CAME_WITH: Final[Mapping[int, tuple[int, int]]] = MappingProxyType({23: (13, 3)})
"""The versions of NVRTC that introduced the standards that the oldest one does not have."""
_MOST_REGISTERS: Final = 255

_FAST_MATH_IMPLIES: Final[Mapping[str, bool]] = MappingProxyType(
    {"ftz": True, "prec_div": False, "prec_sqrt": False, "fmad": True}
)

_FLAG_OF_SWITCH: Final[Mapping[str, str]] = MappingProxyType(
    {
        "use_fast_math": "--use_fast_math",
        "debug": "--device-debug",
        "lineinfo": "--generate-line-info",
        "lto": "--dlink-time-opt",
    }
)

_KEEP_STACK_LIMIT: Final = "--modify-stack-limit=false"
"""The option with which NVRTC does not raise the stack limit of the whole process while it compiles. A worker started
at that moment would inherit the limit."""

_DECIDED_BY_THE_LINKER: Final = ("prec_div", "fmad", "max_registers")
"""Options that NVRTC accepts, but that do not change the LTO-IR."""
_CONTRADICTS_LTO: Final = (
    "--device-w",
    "--extensible-whole-program",
    "--relocatable-device-code=false",
    "--ptxas-options",
)
_PART_OF_LTO: Final = "--gen-opt-lto"


def _text(option: str, value: object) -> str:
    """Check one string on its way to a C function."""
    if not isinstance(value, str):
        refuse(option, f"expected a string, got {type(value).__name__}")
    if "\0" in value:
        refuse(option, f"{value!r} contains a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        refuse(option, f"{value!r} is not valid Unicode: {error.reason}")
    return value


def _items(option: str, values: object) -> tuple[object, ...]:
    """Check for a sequence of things, and for the mistake of giving one string instead."""
    if isinstance(values, (str, bytes, os.PathLike)) or not isinstance(values, Iterable):
        refuse(option, f"expected a list, got {type(values).__name__} {values!r}", f"write {option}=[{values!r}].")
    return tuple(values)


def _words(option: str, values: object) -> tuple[str, ...]:
    """Check a list of strings that are not empty."""
    words = tuple(_text(option, value) for value in _items(option, values))
    if not all(word.strip() for word in words):
        refuse(option, "an empty string is not a name")
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
        refuse(option, f"expected a dictionary, got {type(values).__name__}")
    return [(_text(option, name), value) for name, value in values]


def _macro_name(define: str) -> str:
    """Return the name of a macro, without its parameters."""
    return define.partition("(")[0]


def _defines(values: Mapping[str, str | int | None] | tuple[Define, ...]) -> tuple[Define, ...]:
    defines: dict[str, Define] = {}
    for name, value in _pairs("defines", values):
        match = _MACRO.fullmatch(name)
        if match is None:
            refuse("defines", f"{name!r} is not the name of a macro")
        if match[1] in defines:
            refuse("defines", f"macro {match[1]!r} is defined twice")
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
        refuse(f"defines[{name!r}]", "a definition is one line")
    return text


def _headers(values: Mapping[str, str] | tuple[Header, ...]) -> tuple[Header, ...]:
    pairs = _pairs("headers", values)
    return tuple(sorted((_file_name("headers", name), _text(f"headers[{name!r}]", text)) for name, text in pairs))


def _paths(values: Iterable[Path]) -> tuple[str, ...]:
    paths = []
    for value in _items("include_paths", values):
        if not isinstance(value, (str, os.PathLike)):
            refuse("include_paths", f"expected paths, got {type(value).__name__}")
        path = _text("include_paths", os.fspath(value))
        if not path:
            refuse("include_paths", "an empty string is not a path")
        try:
            paths.append(os.path.abspath(path))
        except FileNotFoundError:
            refuse("include_paths", f"{path!r} is relative to the working directory, and that has been deleted")
    return tuple(paths)


def _extras(values: Iterable[str]) -> tuple[str, ...]:
    options = tuple(option.strip() for option in _words("extra_options", values))
    given = parse_flags(options)
    for each in given:
        if each.flag.refusal:
            refuse("extra_options", f"{each.text!r} is not accepted: {each.flag.refusal}")
    check_contradictions(given)
    return options


def _arch(value: str | SmArch) -> str:
    arch = value.value if isinstance(value, SmArch) else _text("arch", value)
    if arch != "native" and ARCH.fullmatch(arch) is None:
        _refuse_arch(arch)
    return arch


def _refuse_arch(arch: str) -> NoReturn:
    refuse("arch", f'expected "native", an SmArch or a name such as "compute_80" or "sm_90a", got {arch!r}')


def _name(value: str) -> str:
    return _file_name("name", _text("name", value))


def _file_name(option: str, name: str) -> str:
    if not name.strip() or _IN_NO_FILE_NAME.search(name):
        refuse(option, f"{name!r} cannot be the name of a file")
    return name


def _standard(value: int | None) -> int | None:
    if value is None:
        return None
    if not _is_whole(value) or value not in _STANDARDS:
        refuse("cpp_std", f"expected one of {', '.join(map(str, _STANDARDS))}, got {value!r}")
    return value


def _registers(value: int | None) -> int | None:
    if value is None:
        return None
    if not _is_whole(value) or not 1 <= value <= _MOST_REGISTERS:
        refuse("max_registers", f"expected a number of registers from 1 to {_MOST_REGISTERS}, got {value!r}")
    return value


def _check_switch(options: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, bool) and not (value is None and attribute.default is None):
        refuse(attribute.name, f"expected True or False, got {value!r}")


@attrs.frozen(kw_only=True)
class NvrtcOptions:
    """The options of a compile. A value: hashable, comparable, and checked when it is made.

    Headers are looked for among `headers`, then beside the header that includes them (a quoted `#include` in a file),
    then in the folders of `include_paths`, then in those of `bundled_headers`; never in the working directory.

    Raises `InvalidArgument` for values that no version of the compiler accepts, and for options that contradict each
    other. The compile refuses what the installed NVRTC does not have (a newer C++ standard, an option, an architecture)
    in the same way, before NVRTC runs.
    """

    defines: tuple[Define, ...] = attrs.field(default=(), converter=_defines)
    """Macros and their definitions, kept as pairs sorted by name. None defines the macro to 1."""
    include_paths: tuple[str, ...] = attrs.field(default=(), converter=_paths)
    """Folders to look for headers in, in this order; made absolute at once."""
    arch: str = attrs.field(default="native", converter=_arch)
    """ "native", a virtual architecture ("compute_80": PTX, runs on that GPU and newer ones), or a real one
    ("sm_90" or `SmArch.SM_90`: a cubin for that GPU). "native" is a cubin for the open device, PTX on the simulator."""
    name_expressions: tuple[str, ...] = attrs.field(default=(), converter=_name_expressions)
    """C++ names to make available by that spelling: "scale<float, 4>", "&table"."""
    name: str = attrs.field(default="kernel.cu", converter=_name)
    """The name of the source for the compiler: in messages, in line information, and (unless headers are precompiled)
    as `__FILE__`. No file is read."""
    cpp_std: int | None = attrs.field(default=17, converter=_standard)
    """The C++ standard; None is NVRTC's own default. 23 needs NVRTC 13.3."""
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
    lto: bool = attrs.field(default=False, validator=_check_switch)
    """Stop at LTO-IR, which nvJitLink optimises and compiles together with other parts. There is no PTX and no cubin
    then, and `arch` stands for the virtual architecture of its number."""
    debug: bool = attrs.field(default=False, validator=_check_switch)
    """Debug information for the device code, and no optimisation."""
    lineinfo: bool = attrs.field(default=False, validator=_check_switch)
    """Line numbers for profilers and sanitizers."""
    signatures: bool = attrs.field(default=True, validator=_check_switch)
    """Ask the compiler for the types of the kernels' parameters, by a second compile of the syntax alone beside the
    first; launches are checked by them. The image is the same without."""
    headers: tuple[Header, ...] = attrs.field(default=(), converter=_headers)
    """Headers in memory: the name as `#include` spells it, and the text. Found before any on disk."""
    bundled_headers: bool = attrs.field(default=False, validator=_check_switch)
    """Find CUDA's own headers (cuda_fp16.h, cooperative_groups.h, CUB, libcu++): those that NVRTC carries since 13.3,
    unpacked once into the cache folder; with an older one, those of the installed wheels for its version, copied there.
    To have edits of them count at once, name their folder in `include_paths`."""
    extra_options: tuple[str, ...] = attrs.field(default=(), converter=_extras)
    """More options, in NVRTC's documented spelling, passed on after those above."""

    def __attrs_post_init__(self) -> None:
        given = parse_flags(self.extra_options)
        self._check_fast_math()
        self._check_lto(given)
        for each in given:
            self._check_extra(each)

    def _check_fast_math(self) -> None:
        for name, implied in _FAST_MATH_IMPLIES.items():
            if self.use_fast_math and getattr(self, name) is (not implied):
                refuse(name, f"{not implied} contradicts use_fast_math=True, which means {name}={implied}")

    def _check_lto(self, given: Sequence[GivenFlag]) -> None:
        if not self.lto:
            lone = [each.text for each in given if each.means(_PART_OF_LTO)]
            if lone:
                refuse("extra_options", f"{lone[0]!r} says how to make LTO-IR, which lto=True asks for")
            return
        if self.debug:
            refuse("lto", "True contradicts debug=True, which is code that nothing optimises")
        for name in _DECIDED_BY_THE_LINKER:
            if getattr(self, name) is not None:
                refuse(name, "with lto=True this is decided when the parts are linked", "give it to the linker.")
        for each in given:
            if any(map(each.means, _CONTRADICTS_LTO)):
                refuse("extra_options", f"{each.text!r} contradicts lto=True")

    def _check_extra(self, given: GivenFlag) -> None:
        if self.bundled_headers and given.means("--use-bundled-headers"):
            refuse("extra_options", f"{given.text!r} contradicts bundled_headers=True, which chooses the folder")
        if given.flag.name in ("--define-macro", "--undefine-macro"):
            macro = _MACRO.match((given.value or "").strip())
            if macro and macro[1] in {_macro_name(define) for define, _ in self.defines}:
                refuse("extra_options", f"{given.text!r} contradicts defines, which has {macro[1]!r} too")

    def flags(self, target: str) -> tuple[str, ...]:
        """Return the options that NVRTC gets, for a `target` such as "compute_80" or "sm_90".

        Raises nothing, except with `bundled_headers`: `LibraryNotFound` when there are none. They are unpacked when
        they are not there yet.
        """
        flags = [f"--gpu-architecture={virtual(target) if self.lto else target}", _KEEP_STACK_LIMIT]
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
        flags += [f"--include-path={path}" for path in (*self.include_paths, *self._bundled_folders())]
        return (*flags, *self.extra_options)

    def _bundled_folders(self) -> tuple[str, ...]:
        if not self.bundled_headers:
            return ()
        from atomr_trio._compiling.bundled_headers import bundled_header_folders

        return bundled_header_folders()

    def identity(self) -> tuple[tuple[str, object], ...]:
        """Return all fields as pairs of name and value, made of tuples, strings, numbers and None alone.

        Two options have the same identity exactly when they are equal, in every process and on every machine.
        """
        return tuple((field.name, getattr(self, field.name)) for field in attrs.fields(type(self)))


def check_options(options: NvrtcOptions, version: tuple[int, int]) -> None:
    """Raise `InvalidArgument` for options that an NVRTC of this version does not have."""
    standard = options.cpp_std
    came = _STANDARD_CAME_WITH.get(standard, version) if standard is not None else version
    if came > version:
        refuse("cpp_std", f"C++{standard} came with NVRTC {dotted(came)}, and this one is {dotted(version)}")
    check_version(parse_flags(options.extra_options), version)


# ---------------------------------------------------------------------------------------------------- targets


def resolve_target(arch: str, capability: tuple[int, int], accepts_cubin: bool) -> str:
    """Return the target to compile for, given what the options ask and the device can load.

    Raises `InvalidArgument` for code that the device cannot run: newer than the device, a cubin for another family, an
    architecture-specific variant of another architecture, or a cubin where only PTX is understood.
    """
    number = f"{capability[0]}{capability[1]}"
    if arch == "native":
        return f"sm_{number}" if accepts_cubin else f"compute_{number}"
    match = ARCH.fullmatch(arch)
    if match is None:
        _refuse_arch(arch)
    form, wanted, variant = match[1], capability_of(arch), match[3]
    if form == "sm" and not accepts_cubin:
        refuse("arch", f"{arch!r} asks for a cubin, and the simulator only runs PTX", f'use "compute_{number}".')
    problem = _misfit(form, wanted, variant, capability)
    if problem:
        refuse("arch", f"{arch!r} does not run on this device of capability {dotted(capability)}: {problem}")
    return arch


def _misfit(form: str, wanted: tuple[int, int], variant: str, capability: tuple[int, int]) -> str:
    """Return the reason why a device cannot run code for an architecture; nothing when it can."""
    if variant == "a":
        return "" if wanted == capability else f"an 'a' variant runs on {dotted(wanted)} alone"
    if wanted > capability:
        return f"it is code for {dotted(wanted)} and newer"
    if wanted[0] != capability[0] and (form == "sm" or variant == "f"):
        return f"it runs on {wanted[0]}.x devices only; PTX for a virtual architecture would run on newer ones"
    return ""


# ---------------------------------------------------------------------------------------------------- one compile
