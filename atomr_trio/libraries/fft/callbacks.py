"""Callbacks: functions in CUDA C++ by which cuFFT reads the input of a transform, and writes its output.

cuFFT links LTO-IR into its kernels, and generates C++ that declares the function. So the function has a plain C++ name,
and its mangled name tells the types of its parameters. It is looked for in PTX of the same source, and the type that it
returns in PTX of a line that is added. So a function that does not fit is an error of this process; from cuFFT it would
be a status without words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, final

import attrs
import numpy as np

from ..._arrays.access import Marked
from ..._arrays.arrays import DeviceArray, Storage, check_usable
from ..._calls.compiling import compiled, options_of
from ..._calls.linear import check_array
from ..._compiling.architectures import virtual
from ..._compiling.flags import parse_flags
from ..._compiling.images import read_image
from ..._compiling.options import NvrtcOptions, resolve_target
from ..._values.errors import CompileError, InvalidArgument
from ..._values.util import NoPublicConstructor, known, shown
from ..._wire.protocol import Role
from .records import Callback

if TYPE_CHECKING:
    from ..._generation.core import DeviceCore

CallbackKind = Literal["load", "store"]

_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_TYPES: Final = MappingProxyType(
    {"float32": "float", "float64": "double", "complex64": "float2", "complex128": "double2"}
)
_MANGLED: Final = MappingProxyType({"f": "float32", "d": "float64", "6float2": "complex64", "7double2": "complex128"})
"""The dtype of an element by its type in a mangled name."""
_RELOCATABLE: Final = "--relocatable-device-code"
_ANSWER: Final = "atomr_trio_element"
_ASKED: Final = f"""
#line 1 "the type of a callback"
__device__ void {_ANSWER}(decltype(::%s((void *)0, 0ull, (void *)0, (void *)0)) *) {{}}
"""
"""A function whose mangled name tells what a load callback returns."""
_EXPECTED: Final = (
    "a load callback is `__device__ T name(void *data, unsigned long long offset, void *info, void *shared)`, a store "
    "callback `__device__ void name(void *data, unsigned long long offset, T element, void *info, void *shared)`, with "
    "float, double, float2 or double2 for T"
)


@final
class FftCallback(metaclass=NoPublicConstructor):
    """A function through which cuFFT reads or writes the elements of a transform; made by `dev.fft.callback`.

    It is compiled code by value, and holds nothing of the GPU. It never changes, and may be used in several plans.
    """

    __slots__ = ("__weakref__", "_defines", "_image", "dtype", "kind", "name")

    _made_by = "`await dev.fft.callback(source, name)`"

    name: str
    """The name of the function in its source."""
    kind: CallbackKind
    """ "load" for one that returns an element of the input, "store" for one that takes an element of the output."""
    dtype: np.dtype[Any]
    """The dtype of an element."""

    def __init__(self, name: str, kind: CallbackKind, dtype: str, image: bytes, defines: frozenset[str]) -> None:
        self.name = name
        self.kind = kind
        self.dtype = np.dtype(dtype)
        self._image = image
        self._defines = defines

    def __repr__(self) -> str:
        return f"<FftCallback {self.name}: {self.kind}s {self.dtype.name}>"


async def make_callback(device: DeviceCore, source: str, name: str, options: NvrtcOptions | None) -> FftCallback:
    """Compile a callback. See `Fft.callback`."""
    named: object = name
    if not isinstance(named, str) or not _NAME.fullmatch(named):
        raise InvalidArgument(f"a callback has a plain C++ name, as cuFFT declares it, not {shown(name)}")
    given = options_of(options)
    extra = given.extra_options
    if not any(each.flag.name == _RELOCATABLE for each in parse_flags(extra)):
        extra = (*extra, f"{_RELOCATABLE}=true")
    linked = attrs.evolve(given, lto=True, signatures=False, extra_options=extra)
    target = virtual(resolve_target(given.arch, device.info.capability, device.backend != "sim"))
    shown_as = attrs.evolve(linked, lto=False, arch=target, extra_options=_without_lto(extra))
    image = known((await compiled(device, source, linked)).ltoir, "it was asked for")
    defines = frozenset(read_image((await compiled(device, source, shown_as)).ptx).definitions)
    kind, dtype = _found(name, defines)
    if dtype is None:
        try:
            answer = await compiled(device, source + _ASKED % name, shown_as)
        except CompileError as error:
            raise InvalidArgument(f"{name} cannot be called as a load callback: {error.message}") from None
        dtype = _returned(name, read_image(answer.ptx).definitions)
    return FftCallback._create(name, kind, dtype, image, defines)


def _without_lto(extra: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(each.text for each in parse_flags(extra) if each.flag.name != "--gen-opt-lto")


def _found(name: str, defines: frozenset[str]) -> tuple[CallbackKind, str | None]:
    """Return what kind of callback a function is, and the dtype of its elements: None for a load callback."""
    mangled = f"_Z{len(name)}{name}"
    found: list[tuple[CallbackKind, str | None]] = []
    if f"{mangled}PvyS_S_" in defines:
        found.append(("load", None))
    found += [("store", dtype) for code, dtype in _MANGLED.items() if f"{mangled}Pvy{code}S_S_" in defines]
    if len(found) == 1:
        return found[0]
    if found:
        raise InvalidArgument(f"{name} is the name of {len(found)} callbacks: give each a name of its own")
    if name in defines:
        raise InvalidArgument(f'{name} is declared extern "C": leave that out, cuFFT declares it as C++')
    if any(each.startswith(mangled) for each in defines):
        raise InvalidArgument(f"{name} has other parameters than a callback: {_EXPECTED}")
    others = sorted(match[2][: int(match[1])] for each in defines if (match := re.fullmatch(r"_Z(\d+)(\w+)", each)))
    raise InvalidArgument(
        f"the source has no function {name} that others may call; it has {', '.join(others) or 'none'}",
        advice=f"it must not be static, a template or in a namespace: {_EXPECTED}.",
    )


def _returned(name: str, definitions: tuple[str, ...]) -> str:
    prefix = f"_Z{len(_ANSWER)}{_ANSWER}P"
    for each in definitions:
        if each.startswith(prefix) and each.removeprefix(prefix) in _MANGLED:
            return _MANGLED[each.removeprefix(prefix)]
    raise InvalidArgument(f"{name} returns no element: {_EXPECTED}")


# --- in plans ---------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Hook:
    """A callback of a plan, with the array that it is given as `info`."""

    callback: FftCallback
    info: DeviceArray | None
    role: Role
    """What it does with that array."""


def described(hooks: Mapping[CallbackKind, Hook]) -> tuple[Callback | None, Callback | None]:
    """Return the load and the store callback as the description of a plan has them."""
    return _described(hooks.get("load")), _described(hooks.get("store"))


def _described(hook: Hook | None) -> Callback | None:
    if hook is None:
        return None
    callback, address = hook.callback, 0 if hook.info is None else hook.info.address
    return Callback(callback.name, callback._image, callback.dtype.name, address)


def check_hooks(
    device: DeviceCore, given: Mapping[CallbackKind, tuple[object, object]], dtypes: Mapping[CallbackKind, str]
) -> dict[CallbackKind, Hook]:
    """Return the callbacks of a plan from its arguments, each with its info. Raises `InvalidArgument`."""
    hooks = {}
    for kind, (callback, info) in given.items():
        hook = _hook_of(device, kind, callback, info, dtypes[kind])
        if hook is not None:
            hooks[kind] = hook
    if hooks and device.backend == "sim":
        raise InvalidArgument(
            "the simulator has no callbacks of cuFFT (cufftXtSetJITCallback): they need a GPU", device=device.index
        )
    if len(hooks) == len(given):
        common = sorted(hooks["load"].callback._defines & hooks["store"].callback._defines)
        if common:
            raise InvalidArgument(
                f"load and store both define {', '.join(common)}, and cuFFT links them together: compile each from a "
                "source of its own, with helpers that are static"
            )
    return hooks


def _hook_of(device: DeviceCore, kind: CallbackKind, callback: object, info: object, dtype: str) -> Hook | None:
    if callback is None:
        if info is not None:
            raise InvalidArgument(f"{kind}_info is for a callback: give {kind} too")
        return None
    if not isinstance(callback, FftCallback):
        raise InvalidArgument(f"{kind} is made by dev.fft.callback, it is not {shown(callback)}")
    if callback.kind != kind:
        raise InvalidArgument(f"{callback.name} is a {callback.kind} callback, and was given as {kind}")
    if callback.dtype.name != dtype:
        side = "input" if kind == "load" else "output"
        raise InvalidArgument(
            f"the {side} has dtype {dtype}, and {callback.name} {kind}s {callback.dtype.name}: it must have the type "
            f"{_TYPES.get(dtype, 'of elements that cuFFT knows')}"
        )
    if info is None:
        return Hook(callback, None, Role.READ)
    marked = info if isinstance(info, Marked) else None
    array = check_array(info if marked is None else marked.array, f"{kind}_info")
    check_usable(device, array)
    if type(array._storage) is not Storage:
        raise InvalidArgument(f"{kind}_info is an array of its own: the address of a module's variable changes")
    if not (array.contiguous or (marked is not None and marked.strided)):
        raise InvalidArgument(
            f"{kind}_info is not contiguous: mark it by `strided` if {callback.name} knows its strides"
        )
    return Hook(callback, array, Role.READ if marked is None or marked.role is None else marked.role)
