"""The inputs of a link, and its options.

Everything here is decided before a linker is searched: this file loads no library and uses no device.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NoReturn, TypeAlias, final, get_args

import attrs

from .._values.errors import InvalidArgument
from .images import Image, read_image

__all__ = ["CONTAINERS", "LinkInput", "LinkKind", "LinkOptions", "Linkable", "refuse"]

LinkKind: TypeAlias = Literal["ptx", "cubin", "ltoir", "fatbin", "object", "library"]
Linkable: TypeAlias = "LinkInput | bytes | str | os.PathLike[str]"

CONTAINERS: Final = ("fatbin", "object", "library")
"""The kinds that can contain LTO-IR without a sign of it."""


def refuse(problem: str, advice: str | None = None) -> NoReturn:
    raise InvalidArgument(f"link: {problem}", advice=advice)


# -------------------------------------------------------------------------------------------------------------- inputs

_ELF, _ARCHIVE = b"\x7fELF", b"!<arch>\n"
_MACHINE: Final = slice(18, 20)
_HOST_MACHINES: Final = ((62).to_bytes(2, "little"), (183).to_bytes(2, "little"))
"""x86-64 and AArch64, as the header of an ELF file has them."""


def _image(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    refuse(f"an image is bytes, or a string of PTX; got {type(value).__name__}", "a file: LinkInput.read(path).")


def _name(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        refuse(f"the name of an input has to be a string without NUL, got {value!r}")
    return value


@final
@attrs.frozen
class LinkInput:
    """A piece of device code to link. A value, made by a user or by `LinkInput.read`.

    Raises `InvalidArgument` for code of an unknown kind, for truncated code, and for code of another kind than `kind`.
    """

    image: bytes = attrs.field(converter=_image, repr=lambda image: f"<{len(image)} bytes>")
    """The code. A string is PTX, as `compile_to_ptx` gives it."""
    name: str = attrs.field(default="", converter=_name)
    """The name in messages; an input without a name gets its number."""
    kind: LinkKind = attrs.field(default=attrs.Factory(lambda self: self._detected(), takes_self=True))
    """"ptx", "cubin", "ltoir", "fatbin", "object" (of a host compiler, with device code in it) or "library" (an archive
    of those); known by the first bytes."""
    compiler_version: tuple[int, int] | None = None
    """The version of the compiler that made LTO-IR, where it is known: an older linker is refused at once."""

    def __attrs_post_init__(self) -> None:
        if self.kind not in get_args(LinkKind):
            refuse(f"there is no kind {self.kind!r} of input", f"the kinds are {', '.join(get_args(LinkKind))}.")
        if self.kind != self._detected():
            refuse(f"the input {self.name!r} is said to be of kind {self.kind!r} and is of kind {self._detected()!r}")

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> LinkInput:
        """Read the file at `path`; its name is the input's.

        Raises `OSError` when the file cannot be read, and `InvalidArgument` when it is not device code.
        """
        path = Path(path)
        return cls(path.read_bytes(), path.name)

    @classmethod
    def _of(cls, value: Linkable, number: int) -> LinkInput:
        """Make an input of what `link` takes, which is the one of this `number`. Raises as `LinkInput.read` does."""
        if isinstance(value, os.PathLike) or (isinstance(value, str) and "\n" not in value):
            return cls.read(value)
        if not isinstance(value, LinkInput):
            return cls(value, f"input {number}")
        return value if value.name else attrs.evolve(value, name=f"input {number}")

    @functools.cached_property
    def _shown(self) -> Image | None:
        """The data that can be read from the image; None for objects and libraries of a host compiler."""
        if self.image.startswith(_ARCHIVE) or (self.image.startswith(_ELF) and self.image[_MACHINE] in _HOST_MACHINES):
            return None
        try:
            return read_image(self.image)
        except InvalidArgument as error:
            refuse(f"the input {self.name!r}: {error.message}", error.advice)

    def _detected(self) -> LinkKind:
        if self._shown is not None:
            return self._shown.kind.value
        return "library" if self.image.startswith(_ARCHIVE) else "object"


# ------------------------------------------------------------------------------------------------------------- options

_REFUSED_EXTRAS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "arch": "use arch=",
        "ptx": 'use arch="compute_90", which gives PTX',
        "lto": "use lto=",
        "O": "use optimization_level=",
        "O0": "use optimization_level=",
        "O3": "use optimization_level=",
        "g": "use debug=",
        "lineinfo": "use lineinfo=",
        "maxrregcount": "use max_registers=",
        "ftz": "use ftz=",
        "prec-div": "use prec_div=",
        "prec-sqrt": "use prec_sqrt=",
        "fma": "use fmad=",
        "kernels-used": "use kernels_used=",
        "variables-used": "use variables_used=",
        "optimize-unused-variables": "use optimize_unused_variables=",
        "r": "its output is not loadable",
    }
)
"""Extra options (without dash and value) that would contradict a field or leave nothing to load."""

_FLAG_OF_SWITCH: Final[Mapping[str, str]] = MappingProxyType(
    {"debug": "-g", "lineinfo": "-lineinfo", "optimize_unused_variables": "-optimize-unused-variables"}
)
_FLAG_OF_VALUE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "optimization_level": "-O",
        "max_registers": "-maxrregcount=",
        "ftz": "-ftz=",
        "prec_div": "-prec-div=",
        "prec_sqrt": "-prec-sqrt=",
        "fmad": "-fma=",
    }
)
_FLAG_OF_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {"kernels_used": "-kernels-used=", "variables_used": "-variables-used="}
)
_LEVELS: Final = (0, 3)
_MOST_REGISTERS: Final = 255


def _refuse_option(option: str, problem: str) -> NoReturn:
    raise InvalidArgument(f"LinkOptions: {option}: {problem}")


def _check_switch(options: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, bool) and not (value is None and attribute.default is None):
        _refuse_option(attribute.name, f"expected True or False, got {value!r}")


def _whole_number_of(accepted: Sequence[int], text: str) -> Callable[[object, attrs.Attribute[Any], object], None]:
    def check(options: object, attribute: attrs.Attribute[Any], value: object) -> None:
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (whole and value in accepted):
            _refuse_option(attribute.name, f"expected {text}, got {value!r}")

    return check


def _tuple(values: Iterable[str]) -> Any:
    """Keep a list as a tuple; anything else is left to `_check_words`."""
    return values if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__") else tuple(values)


def _check_words(options: object, attribute: attrs.Attribute[Any], values: object) -> None:
    if not isinstance(values, tuple):
        _refuse_option(attribute.name, f"expected a list of strings, got {values!r}")
    for word in values:
        if not isinstance(word, str) or not word.strip() or "\0" in word:
            _refuse_option(attribute.name, f"expected strings that are not empty and have no NUL, got {word!r}")


def _check_extras(options: object, attribute: attrs.Attribute[Any], values: tuple[str, ...]) -> None:
    _check_words(options, attribute, values)
    for option in values:
        name = option.lstrip("-").partition("=")[0].strip()
        if name in _REFUSED_EXTRAS:
            _refuse_option(attribute.name, f"{option!r} is not accepted: {_REFUSED_EXTRAS[name]}")


@final
@attrs.frozen(kw_only=True)
class LinkOptions:
    """The options of a link. A value: hashable, comparable, and checked when it is made.

    Raises `InvalidArgument` for errors that can be found without a linker. Errors that only nvJitLink can find (an
    extra option that it does not have) are raised by the link, as `CompileError`.
    """

    lto: bool | None = attrs.field(default=None, validator=_check_switch)
    """Link-time optimisation. None is: when any input is LTO-IR. True is needed for LTO-IR inside fatbins, objects and
    libraries."""
    optimization_level: int | None = attrs.field(
        default=None, validator=_whole_number_of(_LEVELS, "one of the levels 0 and 3")
    )
    """The level number, 0 or 3; None is nvJitLink's own default, 3."""
    debug: bool = attrs.field(default=False, validator=_check_switch)
    """Debug information for the device code."""
    lineinfo: bool = attrs.field(default=False, validator=_check_switch)
    """Line numbers for profilers and sanitizers."""
    max_registers: int | None = attrs.field(
        default=None,
        validator=_whole_number_of(range(1, _MOST_REGISTERS + 1), f"a number of registers from 1 to {_MOST_REGISTERS}"),
    )
    """Registers a thread may have at most, for what is compiled here: PTX and LTO-IR."""
    ftz: bool | None = attrs.field(default=None, validator=_check_switch)
    """Flush float denormals to zero. Link-time optimisation only, as all that follow; None is the default."""
    prec_div: bool | None = attrs.field(default=None, validator=_check_switch)
    """Divide floats to the last bit."""
    prec_sqrt: bool | None = attrs.field(default=None, validator=_check_switch)
    """Take square roots of floats to the last bit."""
    fmad: bool | None = attrs.field(default=None, validator=_check_switch)
    """Contract multiply and add to one operation."""
    kernels_used: tuple[str, ...] = attrs.field(default=(), converter=_tuple, validator=_check_words)
    """The kernels that will be launched, by their names in the image; the others can be left out."""
    variables_used: tuple[str, ...] = attrs.field(default=(), converter=_tuple, validator=_check_words)
    """The variables that the host will use, by their names in the image; the others can be left out."""
    optimize_unused_variables: bool = attrs.field(default=False, validator=_check_switch)
    """Leave out variables that no kernel uses, if `variables_used` does not name them."""
    extra_options: tuple[str, ...] = attrs.field(default=(), converter=_tuple, validator=_check_extras)
    """More options, in nvJitLink's spelling, passed on after those above."""

    def __attrs_post_init__(self) -> None:
        if self.debug and self.lineinfo:
            _refuse_option("lineinfo", "debug=True includes it, and nvJitLink would ignore it")

    def flags(self, arch: str, *, lto: bool = False) -> tuple[str, ...]:
        """Return the options that nvJitLink gets, for an `arch` such as "sm_90" (or "compute_90", which gives PTX),
        with or without `lto`. Raises nothing.
        """
        flags = [f"-arch={arch}"]
        if lto:
            flags.append("-lto")
        if arch.startswith("compute_"):
            flags.append("-ptx")
        flags += [flag for name, flag in _FLAG_OF_SWITCH.items() if getattr(self, name)]
        values = {flag: getattr(self, name) for name, flag in _FLAG_OF_VALUE.items()}
        flags += [f"{flag}{int(value)}" for flag, value in values.items() if value is not None]
        flags += [f"{flag}{word}" for name, flag in _FLAG_OF_NAMES.items() for word in getattr(self, name)]
        return (*flags, *self.extra_options)
