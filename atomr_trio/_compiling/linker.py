"""Linking of device code by nvJitLink: several images to one that a driver loads. It blocks the calling thread.

nvJitLink needs neither a GPU nor a CUDA context, so this file does not depend on devices, tasks or workers.

It is strict before the call, because nvJitLink 12 and 13 are not: of a name that two cubins define they take one, with
a line on the standard error and no status; a cubin that was not compiled for linking they leave out, and say that all
is well. Both are refused here, as far as PTX and cubins show what they define.

Each link has a process of its own (``_worker/linker.py``). nvJitLink is not safe against what it is given: 12.9 crashes
on damaged LTO-IR; a link that fails can make a later one crash (13.5, in the same thread) or hang (13.0, in another).
None of that may take the user's process along.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NoReturn

import attrs

from atomr_cuda import CudaError, LibraryMissing, nvjitlink
from atomr_cuda.nvjitlink import nvJitLinkInputType

from .._values.errors import CompileError, ErrorContext, InvalidArgument, LibraryNotFound
from .._values.signatures import parse_signatures
from .._wire.starting import command, end_of, environment
from .architectures import ARCH, SmArch, dotted, virtual
from .compiler import CompiledProgram
from .link_options import CONTAINERS, Linkable, LinkInput, LinkKind, LinkOptions, refuse
from .nvrtc_library import not_found
from .ptx_versions import Version, ptx_version, reads_ptx, too_new

__all__ = ["LinkInput", "LinkOptions", "bridge_ptx", "cubin_from_ptx", "link", "link_program"]

_INPUT_TYPES: Final[Mapping[LinkKind, nvJitLinkInputType]] = MappingProxyType(
    {
        "ptx": nvJitLinkInputType.NVJITLINK_INPUT_PTX,
        "cubin": nvJitLinkInputType.NVJITLINK_INPUT_CUBIN,
        "ltoir": nvJitLinkInputType.NVJITLINK_INPUT_LTOIR,
        "fatbin": nvJitLinkInputType.NVJITLINK_INPUT_FATBIN,
        "object": nvJitLinkInputType.NVJITLINK_INPUT_OBJECT,
        "library": nvJitLinkInputType.NVJITLINK_INPUT_LIBRARY,
    }
)
_ONLY_LTO: Final = (
    *("ftz", "prec_div", "prec_sqrt", "fmad"),
    *("kernels_used", "variables_used", "optimize_unused_variables"),
)
"""Options that only the compiler of LTO-IR uses; without LTO-IR nvJitLink ignores them silently."""

_DEFAULTS: Final = LinkOptions()
_UNSUPPORTED_PTX: Final = 222


_UPDATE: Final = "update nvJitLink (the package nvidia-nvjitlink), or compile with an older NVRTC."

# -------------------------------------------------------------------------------------------------------------- checks


def _inputs(values: Iterable[Linkable]) -> list[LinkInput]:
    """Make inputs of all that `link` takes."""
    if isinstance(values, (str, bytes, LinkInput, os.PathLike)) or not isinstance(values, Iterable):
        refuse(f"expected a list of inputs, got {type(values).__name__}")
    inputs = [LinkInput._of(value, number) for number, value in enumerate(values, 1)]
    if not inputs:
        refuse("there is nothing to link: the list of inputs is empty")
    return inputs


def _uses_lto(inputs: list[LinkInput], options: LinkOptions, arch: str) -> bool:
    """Return whether to optimise at link time. Raises `InvalidArgument` where inputs, options and output disagree."""
    kinds = {each.kind for each in inputs}
    lto = "ltoir" in kinds if options.lto is None else options.lto
    if not lto and "ltoir" in kinds:
        refuse("lto=False, and there is LTO-IR among the inputs", "leave lto out.")
    if lto and kinds.isdisjoint(("ltoir", *CONTAINERS)):
        refuse("lto=True, and there is no LTO-IR among the inputs", "compile them with `NvrtcOptions(lto=True)`.")
    idle = [name for name in _ONLY_LTO if getattr(options, name) != getattr(_DEFAULTS, name)]
    if idle and not lto:
        refuse(f"{', '.join(idle)}: only link-time optimisation obeys this, and there is no LTO-IR among the inputs")
    if arch.startswith("compute_") and not (lto and kinds <= {"ltoir", *CONTAINERS}):
        advice = f'arch="{arch.replace("compute_", "sm_")}" gives a cubin.'
        refuse(f"{arch!r} asks for PTX, which is only made where all inputs are LTO-IR", advice)
    return lto


def _check_inputs(inputs: list[LinkInput], arch: str) -> None:
    """Refuse inputs that nvJitLink would accept and link wrongly, or refuse with a less helpful message."""
    version = _version()
    defined: dict[str, str] = {}
    for each in inputs:
        _check_version(each, version)
        _check_image(each, arch)
        for name in each._shown.definitions if each._shown else ():
            if name in defined:
                refuse(f"{name!r} is defined in the input {defined[name]!r} and in {each.name!r}")
            defined[name] = each.name


def _check_version(each: LinkInput, version: Version) -> None:
    if each.kind == "ptx" and not reads_ptx(version, ptx_version(each.image)):
        refuse(f"the input {each.name!r}: {too_new(ptx_version(each.image), 'nvJitLink', version)}", _UPDATE)
    if each.compiler_version is not None and each.compiler_version > version:
        refuse(_ltoir_too_new(each, version), _UPDATE)


def _check_image(each: LinkInput, arch: str) -> None:
    if each._shown is None:
        return
    if not each._shown.relocatable:
        advice = "compile it with relocatable device code: `--relocatable-device-code=true`."
        refuse(f"the input {each.name!r} is a cubin that is linked already, which nvJitLink would leave out", advice)
    problem = _misfit(each.kind, each._shown.target, arch)
    if problem:
        refuse(f"the input {each.name!r} is for {each._shown.target}, and {problem}; the output is for {arch}")


def _misfit(kind: LinkKind, target: str | None, arch: str) -> str:
    """Return the reason why code for an architecture cannot go into an output for another; nothing when it can."""
    made_for, wanted = ARCH.fullmatch(target or ""), ARCH.fullmatch(arch)
    if made_for is None or wanted is None:
        return ""
    if int(made_for[2]) > int(wanted[2]):
        return "code does not run on older architectures"
    if kind == "cubin" and made_for[2][:-1] != wanted[2][:-1]:
        return "a cubin runs on its own family alone"
    if made_for[3] == "a" and made_for.groups()[1:] != wanted.groups()[1:]:
        return "an 'a' variant runs on its own architecture alone"
    return ""


def _ltoir_too_new(each: LinkInput, version: Version) -> str:
    """Return the message that LTO-IR is of a newer compiler, as far as the versions are known."""
    made_by = f"CUDA {dotted(each.compiler_version)}" if each.compiler_version else f"a format {_ltoir_format(each)}"
    return f"the LTO-IR {each.name!r} is of {made_by}, which nvJitLink {dotted(version)} does not read"


def _ltoir_format(each: LinkInput) -> str:
    """Return the versions that LTO-IR states, of its container and of the code in it: "1.67, 2.131"."""
    return "{}.{}, {}.{}".format(*each.image[4:8])


# ------------------------------------------------------------------------------------------------------------ one link


def link(inputs: Iterable[Linkable], *, arch: str | SmArch, options: LinkOptions | None = None) -> bytes:
    """Link device code and return the image. Synchronous; needs no GPU.

    `inputs` are `LinkInput` values, or images (bytes; PTX also as a string), or paths of files, in any mixture: LTO-IR,
    PTX and cubins compiled with relocatable device code, fatbins, objects and libraries. `arch` is the architecture to
    link for, a name or an `SmArch`: "sm_90" gives a cubin for that GPU, "compute_90" gives PTX, which needs all inputs
    to be LTO-IR. `options` say how. The functions are ``nvJitLinkAddData`` and ``nvJitLinkComplete``.

    Raises `CompileError` with the linker's log for inputs that do not link, `OSError` for a file that cannot be read,
    and `LibraryNotFound` when there is no nvJitLink. Raises `InvalidArgument` for errors that are found before the
    linker runs: nothing to link, an unknown kind of input, a name that two inputs define, code for another architecture
    or of a newer compiler.
    """
    options = LinkOptions() if options is None else options
    return _link(_inputs(inputs), str(arch), options).image


def link_program(inputs: Iterable[Linkable], options: LinkOptions, target: str) -> CompiledProgram:
    """Link as `link` does for `arch` being `target`, to the result that a compile has. Blocks the calling thread.

    Where all is LTO-IR there is PTX too, and with it the kernels' parameters. The version is the linker's.
    """
    read = _inputs(inputs)
    linked = _link(read, target, options)
    ptx = linked.image if target.startswith("compute_") else b""
    if not ptx and all(each.kind == "ltoir" for each in read):
        ptx = _link(read, virtual(target), options).image
    cubin = linked.image if target.startswith("sm_") else None
    entries = MappingProxyType(parse_signatures(ptx.decode()))
    return CompiledProgram(
        ptx=ptx,
        cubin=cubin,
        lowered_names=MappingProxyType({}),
        entries=entries,
        log=linked.log,
        target=target,
        nvrtc_version=linked.version,
    )


@attrs.frozen
class _Linked:
    """The result of one link."""

    image: bytes
    log: str
    version: Version


def _link(inputs: list[LinkInput], arch: str, options: LinkOptions) -> _Linked:
    if ARCH.fullmatch(arch) is None:
        refuse(f'arch: expected a name such as "sm_90" or "compute_80", got {arch!r}')
    lto = _uses_lto(inputs, options, arch)
    with _nvjitlink_errors():
        _check_inputs(inputs, arch)
        return _run(inputs, arch, options.flags(arch, lto=lto))


def _run(inputs: list[LinkInput], arch: str, flags: tuple[str, ...]) -> _Linked:
    """Run the link in its own process, and raise its errors."""
    images = [each.image + b"\0" if each.kind == "ptx" else each.image for each in inputs]
    request = {
        "flags": flags,
        "ptx": arch.startswith("compute_"),
        "inputs": [
            (_INPUT_TYPES[each.kind], each.name, len(image)) for each, image in zip(inputs, images, strict=True)
        ],
    }
    answer, image = _asked(request, images)
    if "missing" in answer:
        raise LibraryNotFound(answer["missing"], library="nvjitlink", operation="link")
    if answer["status"]:
        _refuse(answer, inputs, flags)
    return _Linked(image.rstrip(b"\0") if request["ptx"] else image, answer["log"], _version())


_CHILD: Final = "atomr_trio._worker.linker"


def _asked(request: Mapping[str, object], images: list[bytes]) -> tuple[dict[str, Any], bytes]:
    """The answer of the linking process: a line of JSON, and the image after it."""
    try:
        done = subprocess.run(
            command(_CHILD, str(os.getpid())),
            input=b"".join((json.dumps(request).encode(), b"\n", *images)),
            capture_output=True,
            env=environment(),
            process_group=0,  # the terminal's Ctrl-C is for the parent alone
            check=False,
        )
    except OSError as error:
        raise CompileError(
            f"the process in which nvJitLink links could not be started: {error}", library="nvjitlink", operation="link"
        ) from error
    head, _, image = done.stdout.partition(b"\n")
    answer = json.loads(head) if head.endswith(b"}") else {}
    # Asked as well as the status, which is 0 too when something else in this program has reaped the process.
    if done.returncode or answer.get("size") != len(image):
        raise CompileError(
            f"the process in which nvJitLink linked {end_of(done.returncode)}"
            + ("" if done.returncode else ", and its answer is not whole"),
            log=done.stderr.decode(errors="replace"),
            library="nvjitlink",
            operation="link",
            advice="an input may be damaged; otherwise " + _UPDATE,
        )
    return answer, image


def _refuse(answer: Mapping[str, Any], inputs: list[LinkInput], flags: tuple[str, ...]) -> NoReturn:
    """Raise the library's error of a failed link; `input` is the number of the input that it was about."""
    log, number = answer["log"], answer["input"]
    error = nvjitlink.library.error(answer["status"], answer["function"])
    about = ""
    if number is not None:
        each = inputs[number]
        too_new_ltoir = each.kind == "ltoir" and _NEWER in log
        about = f"{_ltoir_too_new(each, _version())}: " if too_new_ltoir else f"the input {each.name!r}: "
    elif answer["function"] == "nvJitLinkCreate":
        about = f"the options {' '.join(flags)}: "
    advice = next((advice for phrase, advice in _ADVICE.items() if phrase in log), None)
    raise CompileError(about + (_first_error(log) or str(error)), log=log, **_context(error, advice)) from error


@contextlib.contextmanager
def _nvjitlink_errors() -> Iterator[None]:
    """Raise a failure of the library as an exception of this package. This is the only place that does so."""
    try:
        yield
    except LibraryMissing as error:
        raise not_found(error, library="nvjitlink", operation="link") from error
    except CudaError as error:
        raise CompileError(f"{error.function} failed", **_context(error)) from error


def _context(error: CudaError, advice: str | None = None) -> ErrorContext:
    known: ErrorContext = {"status": error.status, "status_name": error.name, "library": "nvjitlink"}
    return {**known, "operation": "link", "advice": advice}


def _version() -> Version:
    major, minor = ctypes.c_uint(), ctypes.c_uint()
    nvjitlink.nvJitLinkVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


_NEWER: Final = "newer version of nvJitLink"
"""The words of the log for LTO-IR that is too new; the status is that of an internal error."""

_ADVICE: Final[Mapping[str, str]] = MappingProxyType(
    {
        _NEWER: _UPDATE,
        "newer than target arch": "compile inputs for an architecture no newer than the output's.",
        "LTO not enabled": "there is LTO-IR inside an input: pass lto=True.",
        "without LTO enabled": "there is LTO-IR inside an input: pass lto=True.",
        "-ptx requires": "an input holds something else than LTO-IR: link for a real architecture.",
    }
)
"""By a phrase of the log: the statuses for the same failures differ between versions."""


def _first_error(log: str) -> str:
    """Return the first line that says more than which function failed; those begin with a shouted ERROR."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if not line.startswith("ERROR ")), lines[0] if lines else "")


# ------------------------------------------------------------------------------------------- PTX newer than the driver


def cubin_from_ptx(ptx: str | bytes, arch: str) -> bytes:
    """Compile PTX to a cubin for `arch`, "sm_90", by nvJitLink. Raises as `link` does."""
    return link([LinkInput(ptx, "the PTX")], arch=arch)


def bridge_ptx(ptx: str | bytes, capability: Version, driver_version: Version) -> bytes:
    """Make a cubin, for a device of a `capability`, of PTX that its driver is too old for (status 222).

    `driver_version` is the CUDA version of the driver, which the error names beside that of the PTX. PTX for a variant
    of an architecture ("sm_90a") gives a cubin for that variant.

    Raises `CompileError` with that status when there is no nvJitLink that could do it.
    """
    source = LinkInput(ptx, "the PTX")
    made_for = ARCH.fullmatch((source._shown and source._shown.target) or "")
    try:
        _check_driver(driver_version)
        return link([source], arch=f"sm_{capability[0]}{capability[1]}{made_for[3] if made_for else ''}")
    except (LibraryNotFound, InvalidArgument) as error:
        reason = "there is no nvJitLink to make a cubin of it" if isinstance(error, ImportError) else error.message
        reason = reason.removeprefix("link: ")
        raise CompileError(
            f"{too_new(ptx_version(ptx), 'the driver', driver_version)}; {reason}",
            status=_UNSUPPORTED_PTX,
            status_name="CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
            library="cuda",
            operation="module.load",
            advice="update the driver, compile with an older NVRTC, or install nvJitLink of the PTX's version: "
            'pip install "atomr-trio[cu13]".',
        ) from error


def _check_driver(driver_version: Version) -> None:
    """Refuse to make a cubin that a driver need not load: it promises to load those of its own major version."""
    with _nvjitlink_errors():
        version = _version()
    if version[0] > driver_version[0]:
        refuse(f"a cubin of nvJitLink {dotted(version)} is not for a driver of CUDA {dotted(driver_version)}")
