"""How to compile CUDA C++: the options of NVRTC, and the architectures that code is compiled for.

Everything here is decided before a compiler is looked for: this file loads no library and knows no device.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeAlias

import attrs

from atomr_trio._errors import InvalidArgument

__all__ = ["ARCH", "NvrtcOptions", "dotted", "refuse", "resolve_target"]

Path: TypeAlias = "str | os.PathLike[str]"
Define: TypeAlias = tuple[str, str | None]
Header: TypeAlias = tuple[str, str]

ARCH = re.compile(r"(compute|sm)_(\d{2,3})([af]?)", re.ASCII)
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


def refuse(option: str, problem: str, advice: str | None = None) -> NoReturn:
    raise InvalidArgument(f"NvrtcOptions: {option}: {problem}", advice=advice)


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
    headers = [(name, _text(f"headers[{name!r}]", text)) for name, text in _pairs("headers", values)]
    if not all(name.strip() for name, _ in headers):
        refuse("headers", "a header needs a name")
    return tuple(sorted(headers))


def _paths(values: Iterable[Path]) -> tuple[str, ...]:
    paths = []
    for value in _items("include_paths", values):
        if not isinstance(value, (str, os.PathLike)):
            refuse("include_paths", f"expected paths, got {type(value).__name__}")
        path = _text("include_paths", os.fspath(value))
        if not path:
            refuse("include_paths", "an empty string is not a path")
        paths.append(os.path.abspath(path))
    return tuple(paths)


def _extras(values: Iterable[str]) -> tuple[str, ...]:
    options = _words("extra_options", values)
    for option in options:
        name = option.lstrip("-").partition("=")[0].strip()
        if option.startswith("-") and name in _REFUSED_EXTRAS:
            refuse("extra_options", f"{option!r} is not accepted: {_REFUSED_EXTRAS[name]}")
    return options


def _arch(value: str) -> str:
    arch = _text("arch", value)
    if arch != "native" and ARCH.fullmatch(arch) is None:
        refuse("arch", f'expected "native" or a name such as "compute_80" or "sm_90a", got {arch!r}')
    return arch


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
                refuse(name, f"{not implied} contradicts use_fast_math=True, which means {name}={implied}")

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


def dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


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
        refuse("arch", f'expected "native" or a name such as "compute_80" or "sm_90a", got {arch!r}')
    form, wanted, variant = match[1], _capability(match[2]), match[3]
    if form == "sm" and not accepts_cubin:
        refuse("arch", f"{arch!r} asks for a cubin, and the simulator only runs PTX", f'use "compute_{number}".')
    problem = _misfit(form, wanted, variant, capability)
    if problem:
        refuse("arch", f"{arch!r} does not run on this device of capability {dotted(capability)}: {problem}")
    return arch


def _misfit(form: str, wanted: tuple[int, int], variant: str, capability: tuple[int, int]) -> str:
    """Say why a device cannot run code for an architecture; nothing when it can."""
    if variant == "a":
        return "" if wanted == capability else f"an 'a' variant runs on {dotted(wanted)} alone"
    if wanted > capability:
        return f"it is code for {dotted(wanted)} and newer"
    if wanted[0] != capability[0] and (form == "sm" or variant == "f"):
        return f"it runs on {wanted[0]}.x devices only; PTX for a virtual architecture would run on newer ones"
    return ""


# ---------------------------------------------------------------------------------------------------- one compile
