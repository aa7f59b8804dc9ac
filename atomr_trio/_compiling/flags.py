"""The command line of NVRTC: every documented option, its first version, and its values.

The table was tested with every release from 12.0 to 13.5, since the header's documentation differs from their behaviour
in places. An option is spelled in exactly two ways (`--relocatable-device-code`, `-rdc`), and some options take their
value only after an equals sign. This file handles texts; it loads no library and compiles nothing.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Final, NoReturn

import attrs

from atomr_trio._compiling.architectures import dotted
from atomr_trio._values.errors import InvalidArgument

__all__ = ["Flag", "GivenFlag", "check_contradictions", "check_version", "parse_flags", "refuse"]

_SWITCH: Final = "true|false"
_NUMBER: Final = r"\d+"
_POSITIVE: Final = r"0*[1-9]\d*"
_NUMBERS: Final = rf"{_POSITIVE}(,{_POSITIVE})*"
_TEXT: Final = r"(?s:.+)"
_WARNINGS: Final = "all-warnings|reorder|deprecated-declarations|conversion"

_OUR_OWN: Final = "every compile decides that for itself"
_NO_IMAGE: Final = "its output is neither PTX nor a cubin nor LTO-IR"


@attrs.frozen
class Flag:
    """One option of NVRTC."""

    name: str
    """The long spelling, with its dashes."""
    short: str
    """The other spelling; if there is no shorter one, the same word with one dash."""
    value: str | None = None
    """A pattern for its value; None for an option that takes none."""
    since: tuple[int, int] = (12, 0)
    """The version of NVRTC that introduced it; 12.0 stands for all supported versions."""
    separable: bool = True
    """True if the value may be the next string instead of following an equals sign."""
    joined: bool = False
    """True if the value may follow the short spelling directly, as in -DN=4."""
    repeatable: bool = False
    """True if it may be given more than once."""
    refusal: str = ""
    """The reason why it is not accepted among the extra options; empty for accepted ones."""


_FLAGS: Final = (
    Flag("--gpu-architecture", "-arch", _TEXT, refusal="use arch="),
    Flag("--device-c", "-dc"),
    Flag("--device-w", "-dw"),
    Flag("--relocatable-device-code", "-rdc", _SWITCH),
    Flag("--extensible-whole-program", "-ewp"),
    Flag("--tile-preview", "-tile-preview", _TEXT, (13, 5), separable=False),
    Flag("--enable-tile", "-enable-tile", since=(13, 3)),
    Flag("--tile-only", "-tile-only", since=(13, 3), refusal=_NO_IMAGE),
    Flag("--simt-only", "-simt-only", since=(13, 3)),
    Flag("--tile-as-default-execution-space", "-default-tile", since=(13, 3)),
    Flag("--diagnose-implicit-tile-var", "-diagnose-implicit-tile-var", since=(13, 3)),
    Flag("--device-debug", "-G", refusal="use debug="),
    Flag("--generate-line-info", "-lineinfo", refusal="use lineinfo="),
    Flag("--dopt", "-dopt", "on"),
    Flag("--Ofast-compile", "-Ofc", "0|min|mid|max", (12, 5)),
    Flag("--ptxas-options", "-Xptxas", _TEXT, repeatable=True),
    Flag("--maxrregcount", "-maxrregcount", _NUMBER, refusal="use max_registers="),
    Flag("--ftz", "-ftz", _SWITCH, refusal="use ftz="),
    Flag("--prec-sqrt", "-prec-sqrt", _SWITCH, refusal="use prec_sqrt="),
    Flag("--prec-div", "-prec-div", _SWITCH, refusal="use prec_div="),
    Flag("--fmad", "-fmad", _SWITCH, refusal="use fmad="),
    Flag("--fno-signed-zeros", "-fno-signed-zeros", since=(13, 4)),
    Flag("--ffinite-math-only", "-ffinite-math-only", since=(13, 4)),
    Flag("--use_fast_math", "-use_fast_math", refusal="use use_fast_math="),
    Flag("--extra-device-vectorization", "-extra-device-vectorization"),
    Flag("--modify-stack-limit", "-modify-stack-limit", _SWITCH, refusal=_OUR_OWN),
    Flag("--dlink-time-opt", "-dlto", refusal="use lto="),
    Flag("--gen-opt-lto", "-gen-opt-lto"),
    Flag("--optix-ir", "-optix-ir", refusal=_NO_IMAGE),
    Flag("--jump-table-density", "-jtd", r"\d{1,2}|10[01]", (12, 3)),
    Flag("--device-stack-protector", "-device-stack-protector", _SWITCH, (12, 6)),
    Flag("--no-cache", "-no-cache", since=(12, 9)),
    Flag("--frandom-seed", "-frandom-seed", _TEXT, (12, 9), separable=False),
    Flag("--define-macro", "-D", _TEXT, joined=True, repeatable=True),
    Flag("--undefine-macro", "-U", _TEXT, joined=True, repeatable=True),
    Flag("--include-path", "-I", _TEXT, joined=True, repeatable=True),
    Flag("--use-bundled-headers", "--use-bundled-headers", _TEXT, (13, 3), separable=False),
    Flag("--pre-include", "-include", _TEXT, repeatable=True),
    Flag("--no-source-include", "-no-source-include"),
    Flag("--std", "-std", _TEXT, separable=False, refusal="use cpp_std="),
    Flag("--builtin-move-forward", "-builtin-move-forward", _SWITCH),
    Flag("--builtin-initializer-list", "-builtin-initializer-list", _SWITCH),
    Flag("--pch", "-pch", since=(12, 8)),
    Flag("--create-pch", "-create-pch", _TEXT, (12, 8), separable=False),
    Flag("--use-pch", "-use-pch", _TEXT, (12, 8), separable=False),
    Flag("--pch-dir", "-pch-dir", _TEXT, (12, 8), separable=False),
    Flag("--pch-verbose", "-pch-verbose", _SWITCH, (12, 8)),
    Flag("--pch-messages", "-pch-messages", _SWITCH, (12, 8)),
    Flag("--instantiate-templates-in-pch", "-instantiate-templates-in-pch", _SWITCH, (12, 8)),
    Flag("--disable-warnings", "-w"),
    Flag("--Wreorder", "-Wreorder", since=(13, 1)),
    Flag("--Wconversion", "-Wconversion", since=(13, 4)),
    Flag("--warning-as-error", "-Werror", rf"({_WARNINGS})(,({_WARNINGS}))*", (13, 1), repeatable=True),
    Flag("--fmax-errors", "-fmax-errors", _POSITIVE, (13, 4)),
    Flag("--restrict", "-restrict"),
    Flag("--device-as-default-execution-space", "-default-device"),
    Flag("--device-int128", "-device-int128"),
    Flag("--device-float128", "-device-float128", since=(12, 6)),
    Flag("--optimization-info", "-opt-info", "inline", separable=False),
    Flag("--display-error-number", "-err-no"),
    Flag("--no-display-error-number", "-no-err-no"),
    Flag("--diag-error", "-diag-error", _NUMBERS, repeatable=True),
    Flag("--diag-suppress", "-diag-suppress", _NUMBERS, repeatable=True),
    Flag("--diag-warn", "-diag-warn", _NUMBERS, repeatable=True),
    Flag("--brief-diagnostics", "-brief-diag", _SWITCH, (12, 1)),
    Flag("--time", "-time", _TEXT, (12, 1), separable=False),
    Flag("--split-compile", "-split-compile", _NUMBER),
    Flag("--fdevice-syntax-only", "-fdevice-syntax-only", since=(12, 4), refusal=_NO_IMAGE),
    Flag("--minimal", "-minimal", since=(12, 4)),
    Flag("--fdevice-time-trace", "-fdevice-time-trace", _TEXT, (12, 5), separable=False),
    Flag("--utf-8", "-utf-8", since=(13, 4), refusal="sources are UTF-8 already, and NVRTC on Linux fails with it"),
)

_BY_SPELLING: Final = MappingProxyType({spelling: flag for flag in _FLAGS for spelling in (flag.name, flag.short)})

_CONTRADICTIONS: Final = (
    ("--device-c", "--device-w"),
    ("--device-c", "--extensible-whole-program"),
    ("--device-c", "--relocatable-device-code=false"),
    ("--device-w", "--relocatable-device-code=true"),
    ("--extensible-whole-program", "--relocatable-device-code=true"),
    ("--display-error-number", "--no-display-error-number"),
    ("--disable-warnings", "--warning-as-error"),
    ("--pch", "--create-pch"),
    ("--pch", "--use-pch"),
    ("--create-pch", "--use-pch"),
)
"""Pairs of options that contradict each other. Without a value an option stands for every value, else for the named
one."""


@attrs.frozen
class GivenFlag:
    """An option in the form in which it was written."""

    flag: Flag
    """The option."""
    value: str | None
    """Its value; None for an option that takes none."""
    text: str
    """The text that was written."""

    def means(self, what: str) -> bool:
        """Tell whether this is the option `--name`, or `--name=value`."""
        return what in (self.flag.name, f"{self.flag.name}={self.value}")


def refuse(option: str, problem: str, advice: str | None = None) -> NoReturn:
    """Raise the error for a field of `NvrtcOptions`."""
    raise InvalidArgument(f"NvrtcOptions: {option}: {problem}", advice=advice)


def parse_flags(options: Sequence[str]) -> tuple[GivenFlag, ...]:
    """Read strings as NVRTC reads its options. Raises `InvalidArgument` for strings that NVRTC would refuse.

    `options` are the strings, without spaces around them.
    """
    return tuple(_given(iter(options)))


def _given(rest: Iterator[str]) -> Iterator[GivenFlag]:
    for option in rest:
        joined = _BY_SPELLING.get(option[:2])
        if joined is not None and joined.joined:
            spelling, value = option[:2], option[2:].strip().removeprefix("=")
        else:
            spelling, _, value = option.partition("=")
        flag = _BY_SPELLING.get(spelling) or _refuse_unknown(option, spelling)
        if flag.value is None and "=" in option:
            refuse("extra_options", f"{option!r}: {spelling} takes no value")
        if flag.value is not None and not value and flag.separable:
            value = next(rest, "")
        if flag.value is not None and re.fullmatch(flag.value, value) is None:
            refuse("extra_options", f"{option!r}: {_expected(flag, value)}")
        yield GivenFlag(flag, value if flag.value is not None else None, option)


def _expected(flag: Flag, value: str) -> str:
    choices = f" that matches {flag.value}" if flag.value != _TEXT else ""
    got = f", not {value!r}" if value else ""
    return f"write {flag.name}=VALUE with a value{choices}{got}"


def _refuse_unknown(option: str, spelling: str) -> NoReturn:
    near = difflib.get_close_matches(spelling, _BY_SPELLING, n=1)
    advice = f"did you mean {near[0]!r}?" if near else None
    refuse("extra_options", f"{option!r} is no option of NVRTC", advice)


def check_contradictions(given: Sequence[GivenFlag]) -> None:
    """Raise `InvalidArgument` for an option that is given twice, or together with one that it contradicts."""
    seen: dict[str, str] = {}
    for each in given:
        if each.flag.name in seen and not each.flag.repeatable:
            refuse("extra_options", f"{each.text!r}: {seen[each.flag.name]!r} was given before")
        seen[each.flag.name] = each.text
    for pair in _CONTRADICTIONS:
        one, other = ([each.text for each in given if each.means(what)] for what in pair)
        if one and other:
            refuse("extra_options", f"{one[0]!r} contradicts {other[0]!r}")


def check_version(given: Sequence[GivenFlag], version: tuple[int, int]) -> None:
    """Raise `InvalidArgument` for an option that an NVRTC of this version does not have yet."""
    for each in given:
        if each.flag.since > version:
            came = dotted(each.flag.since)
            refuse("extra_options", f"{each.text!r} came with NVRTC {came}, and this one is {dotted(version)}")
