"""The types of a kernel's parameters in C++, told by a second compile that checks the syntax alone.

PTX knows the sizes of parameters, and the name of an ``extern "C"`` kernel holds no types. But the compiler tells the
mangled name of any instance of a template. So the same source is compiled once more, with ``--fdevice-syntax-only``,
which makes no code. A header that comes before everything else declares a template of a kernel, and for the kernel E
two of its instances are asked for by name: ``__atomr_signature<decltype(&E)>``, whose name spells the type of E, and
one that spells sizes and alignments of the classes and enumerations among its parameters. In a header of its own the
template changes no line of the source, and breaks no source as text behind it might.

The answer counts only for a kernel whose name in the image is that of E: another one of that name may have been meant.
What cannot be had leaves a kernel untyped. Nothing fails for it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from atomr_trio._compiling.bundled_headers import headers_in_use
from atomr_trio._compiling.compiler import NOWHERE, CompiledProgram, Prepare, compile_names
from atomr_trio._compiling.flags import parse_flags
from atomr_trio._compiling.nvrtc_library import nvrtc_errors, nvrtc_version
from atomr_trio._compiling.options import NvrtcOptions
from atomr_trio._compiling.parameter_names import kernels_in, parameter_names
from atomr_trio._compiling.told import NUMBERS, SIGNED, TEMPLATE, UNSIGNED, Told
from atomr_trio._values.errors import RequestError

__all__ = ["can_probe", "likely_kernels", "probe", "probe_rest"]

_log = logging.getLogger("atomr_trio.nvrtc")

_SINCE: Final = (12, 4)
"""The NVRTC that has ``--fdevice-syntax-only``."""
_EXTENTS: Final = "__atomr_extents"

_HEADER_NAME: Final = f"{NOWHERE}atomr_signature.h"
_HEADER: Final = f"""
template <class T> __global__ void {TEMPLATE}() {{}}
template <int...> struct {NUMBERS};
template <class T, class = void> struct __atomr_class {{ enum {{ size = 0, align = 0 }}; }};
template <class T> struct __atomr_class<T, decltype(void(sizeof(T)))> {{
  enum {{ size = sizeof(T), align = alignof(T) }};
}};
template <class T, bool = __is_class(T) || __is_union(T), bool = __is_enum(T)> struct __atomr_extent {{
  enum {{ size = 0, align = 0 }};
}};
template <class T> struct __atomr_extent<T, true, false> : __atomr_class<T> {{}};
template <class T> struct __atomr_extent<T, false, true> {{
  enum {{ size = sizeof(T), align = __underlying_type(T)(-1) < __underlying_type(T)(1) ? {SIGNED} : {UNSIGNED} }};
}};
template <class T> struct __atomr_bare : __atomr_extent<T> {{}};
template <class T> struct __atomr_bare<const T> : __atomr_bare<T> {{}};
template <class T> struct __atomr_bare<volatile T> : __atomr_bare<T> {{}};
template <class T> struct __atomr_bare<const volatile T> : __atomr_bare<T> {{}};
template <class T, decltype(sizeof(0)) N> struct __atomr_bare<T[N]> : __atomr_bare<T> {{}};
template <class T, decltype(sizeof(0)) N> struct __atomr_bare<const T[N]> : __atomr_bare<T> {{}};
template <class T, decltype(sizeof(0)) N> struct __atomr_bare<volatile T[N]> : __atomr_bare<T> {{}};
template <class T> struct __atomr_target : __atomr_bare<T> {{}};
template <class T> struct __atomr_target<T *> : __atomr_bare<T> {{}};
template <class F> struct {_EXTENTS} {{ typedef {NUMBERS}<> type; }};
template <class... A> struct {_EXTENTS}<void (*)(A...)> {{
  typedef {NUMBERS}<int(__atomr_target<A>::size)..., int(__atomr_target<A>::align)...> type;
}};
"""
"""Declares the template, and what looks up sizes: that of a class, of an enumeration, or of what a pointer leads to."""

_NOT_FOR_SYNTAX: Final = (
    *("--pch", "--create-pch", "--use-pch", "--pch-dir", "--pch-verbose", "--pch-messages"),
    *("--instantiate-templates-in-pch", "--fdevice-time-trace", "--time", "--split-compile", "--optimization-info"),
    *("--ptxas-options", "--gen-opt-lto", "--dlink-time-opt", "--warning-as-error", "--dopt", "--Ofast-compile"),
    *("--maxrregcount", "--generate-line-info", "--fmax-errors"),
)
"""Options of the image, of precompiled headers and of reports, which a check of the syntax does not need."""

_BAD_NAME = re.compile(r"#pragma nv_mangled_name (.*)")
"""The line that NVRTC shows of a name expression that is wrong."""
_MOST_ALONE: Final = 8
"""The most kernels that are asked for one by one, when something that is not told is wrong with one of them."""


def can_probe(options: NvrtcOptions) -> bool:
    """Return whether a compile with these options is to be asked for types: C++03 has none of what it takes."""
    return options.signatures and options.cpp_std != 3


def likely_kernels(source: str, options: NvrtcOptions) -> tuple[str, ...]:
    """Return the kernels of a source by the expressions that name them, before it was compiled.

    They are the program's name expressions, and what its text declares as ``extern "C"``.
    """
    named = [name for name in options.name_expressions if not name.lstrip().startswith("&")]
    return tuple(dict.fromkeys((*named, *(f"::{name}" for name in kernels_in(source)))))


def probe(
    source: str, options: NvrtcOptions, target: str, kernels: Sequence[str], prepare: Prepare, over: Callable[[], bool]
) -> dict[str, Told]:
    """Return what the compiler tells of the kernels that these expressions name, by their names in the image.

    Blocks the calling thread. Kernels that it tells nothing of are left out. `prepare` gets each program before
    it is compiled, and `over` tells whether nobody wants the answer any more. Raises nothing.
    """
    try:
        with nvrtc_errors():
            if nvrtc_version() < _SINCE or not kernels:
                return {}
            with headers_in_use(options.bundled_headers):
                return _Probe(source, options, target, prepare, over).told(kernels)
    except (RequestError, OSError) as failure:
        _log.debug("the types of %s are not known: %s", options.name, failure)
    except Exception:
        _log.warning("the types of %s are not known", options.name, exc_info=True)
    return {}


class _Probe:
    """The syntax-only compiles of one source."""

    def __init__(
        self, source: str, options: NvrtcOptions, target: str, prepare: Prepare, over: Callable[[], bool]
    ) -> None:
        self._source = source
        self._options = options
        self._flags = (f"--pre-include={_HEADER_NAME}", *_flags(options, target), "--fdevice-syntax-only")
        self._prepare = prepare
        self._over = over

    def told(self, kernels: Sequence[str]) -> dict[str, Told]:
        """Ask for all at once; where that fails, without the wrong ones, without sizes, and at last one by one."""
        found, bad = self._ask(kernels, sizes=True)
        if bad and found is None:
            kernels = [each for each in kernels if each not in bad]
            found, _ = self._ask(kernels, sizes=True)
        if found is None:
            found, _ = self._ask(kernels, sizes=False)
        if found is None and len(kernels) > 1:
            alone = (self._ask((each,), sizes=False)[0] or {} for each in kernels[:_MOST_ALONE])
            found = {name: told for each in alone for name, told in each.items()}
        return found or {}

    def _ask(self, kernels: Sequence[str], *, sizes: bool) -> tuple[dict[str, Told] | None, set[str]]:
        """Return what was told; or None, and the kernels whose names are known to be wrong."""
        if self._over() or not kernels:
            return {}, set()
        asked = {each: _expressions(each, sizes=sizes) for each in kernels}
        expressions = [expression for each in asked.values() for expression in each]
        lowered, log = compile_names(
            *(self._source, self._options, self._flags, expressions),
            headers={_HEADER_NAME: _HEADER},
            prepare=self._prepare,
        )
        if lowered is None:
            wrong = {_dense(match[1]) for match in _BAD_NAME.finditer(log)}
            return None, {each for each, names in asked.items() if wrong & set(map(_dense, names))}
        told = (self._of(each, [lowered[name] for name in names]) for each, names in asked.items())
        return {each.lowered: each for each in told}, set()

    def _of(self, kernel: str, lowered: Sequence[str]) -> Told:
        name, signature, *extents = lowered
        return Told(name, signature, extents[0] if extents else "", parameter_names(self._source, kernel))


def _dense(text: str) -> str:
    return "".join(text.split())


def _expressions(kernel: str, *, sizes: bool) -> list[str]:
    pointer = f"decltype(&{kernel})"
    extents = [f"{TEMPLATE}<typename {_EXTENTS}<{pointer}>::type>"] if sizes else []
    return [kernel, f"{TEMPLATE}<{pointer}>", *extents]


def _flags(options: NvrtcOptions, target: str) -> Iterator[str]:
    for given in parse_flags(options.flags(target)):
        if given.flag.name not in _NOT_FOR_SYNTAX:
            yield given.flag.name if given.value is None else f"{given.flag.name}={given.value}"


def probe_rest(program: CompiledProgram, told: Mapping[str, Told]) -> list[str]:
    """Return the expressions for the kernels of a program that nothing was told of, and whose names hold no types."""
    rest: Iterable[str] = (name for name in program.entries if name not in told and not name.startswith("_Z"))
    return [f"::{name}" for name in rest]
