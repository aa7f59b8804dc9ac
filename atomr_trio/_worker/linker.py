"""One link by nvJitLink, in its own process: a crash or hang of the library ends this process alone.

It reads a line of JSON and the images after it from the standard input. The JSON has the library's options (`flags`),
`ptx` if PTX is wanted, and the kind, name and size of each input. The answer on the standard output has the same form:
the library's status (`status`), the function and the input that it is about, the log, and the image's size. The image
follows.

Its argument is the number of the process that it must not outlive. Imports the standard library and the bindings alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any, BinaryIO

from atomr_cuda import CudaError, LibraryMissing, nvjitlink

from .parent import die_with_parent


class _Failed(Exception):
    """A status that a function of the library returned; `number` is that of the input that it is about."""

    def __init__(self, function: str, status: int, number: int | None = None) -> None:
        super().__init__(function, status, number)
        self.function = function
        self.status = status
        self.number = number


def linked(request: dict[str, Any], source: BinaryIO) -> tuple[dict[str, Any], bytes]:
    """Make the requested link; the images are read from `source`."""
    handle = nvjitlink.nvJitLinkHandle()
    try:
        image = _image(handle, request, source)
        return {"status": 0, "log": _log(handle, "InfoLog")}, image
    except LibraryMissing as missing:
        return {"missing": str(missing)}, b""
    except CudaError as error:  # an error of an output: no input is at fault
        failed = _Failed(error.function, error.status)
    except _Failed as error:
        failed = error
    log = _log(handle, "ErrorLog") if handle.value else ""
    return {"status": failed.status, "function": failed.function, "input": failed.number, "log": log}, b""


def _image(handle: ctypes.c_void_p, request: dict[str, Any], source: BinaryIO) -> bytes:
    flags = [flag.encode() for flag in request["flags"]]
    options = (ctypes.c_char_p * len(flags))(*flags)
    _check("nvJitLinkCreate", nvjitlink.nvJitLinkCreate.status(ctypes.byref(handle), len(flags), options))
    # The linker reads names, and perhaps images, again when it completes.
    inputs = [(kind, source.read(size), size, name.encode(errors="replace")) for kind, name, size in request["inputs"]]
    for number, each in enumerate(inputs):
        _check("nvJitLinkAddData", nvjitlink.nvJitLinkAddData.status(handle, *each), number)
    _check("nvJitLinkComplete", nvjitlink.nvJitLinkComplete.status(handle))
    return _output(handle, "LinkedPtx" if request["ptx"] else "LinkedCubin")


def _check(function: str, status: int, number: int | None = None) -> None:
    if status:
        raise _Failed(function, status, number)


def _output(handle: ctypes.c_void_p, what: str) -> bytes:
    """Copy one of the outputs of a link, exactly as many bytes as the library reports."""
    size = ctypes.c_size_t()
    getattr(nvjitlink, f"nvJitLinkGet{what}Size")(handle, ctypes.byref(size))
    if not size.value:
        return b""
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvjitlink, f"nvJitLinkGet{what}")(handle, buffer)
    return buffer.raw


def _log(handle: ctypes.c_void_p, what: str) -> str:
    return _output(handle, what).rstrip(b"\0").decode(errors="replace")


def main(parent: int) -> None:
    """Read the request, make the link, write the answer."""
    die_with_parent(parent)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what the library prints must not mix with the answer
    source = sys.stdin.buffer
    answer, image = linked(json.loads(source.readline()), source)
    with answers:
        answers.write(json.dumps({**answer, "size": len(image)}).encode() + b"\n")
        answers.write(image)
        answers.flush()
    os._exit(0)  # an error of the library during exit does not matter


if __name__ == "__main__":
    main(int(sys.argv[1]))
