"""Compile CUDA C++ to PTX for the simulator's tests: the NVRTC wheel through plain ctypes, nothing of ours in between.

It knows nothing of `atomr_cuda`, so that a mistake in our own bindings cannot hide a mistake in the simulator.
"""

from __future__ import annotations

import ctypes
import functools

from cuda.pathfinder import load_nvidia_dynamic_lib


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(load_nvidia_dynamic_lib("nvrtc").abs_path or "libnvrtc.so")
    program, size = ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)
    text, texts = ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p)
    library.nvrtcCreateProgram.argtypes = [ctypes.POINTER(program), text, text, ctypes.c_int, texts, texts]
    library.nvrtcCompileProgram.argtypes = [program, ctypes.c_int, texts]
    library.nvrtcDestroyProgram.argtypes = [ctypes.POINTER(program)]
    for name in ("ProgramLog", "PTX"):
        getattr(library, f"nvrtcGet{name}Size").argtypes = [program, size]
        getattr(library, f"nvrtcGet{name}").argtypes = [program, text]
    return library


def _get(library: ctypes.CDLL, name: str, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    assert getattr(library, f"nvrtcGet{name}Size")(program, ctypes.byref(size)) == 0
    buffer = ctypes.create_string_buffer(size.value)
    assert getattr(library, f"nvrtcGet{name}")(program, buffer) == 0
    return buffer.value.decode()


@functools.cache
def compile_ptx(source: str, arch: str = "compute_80", *options: str, name: str = "k.cu") -> str:
    """The PTX of `source`; an assertion error with the compiler's log when it does not compile."""
    library, program = _library(), ctypes.c_void_p()
    created = library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
    assert created == 0, f"nvrtcCreateProgram returned {created}"
    try:
        arguments = [option.encode() for option in (f"--gpu-architecture={arch}", *options)]
        status = library.nvrtcCompileProgram(program, len(arguments), (ctypes.c_char_p * len(arguments))(*arguments))
        assert status == 0, _get(library, "ProgramLog", program)
        return _get(library, "PTX", program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
