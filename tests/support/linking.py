"""Device code of every kind that can be linked, made at test time from two sources that need each other."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import pytest
from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

from atomr_trio import NvrtcOptions
from atomr_trio._compiling.compiler import compile_program

KERNEL = """
extern __device__ float helper(float x);
extern "C" __global__ void apply(float *y) { y[threadIdx.x] = helper(y[threadIdx.x]); }
extern "C" __global__ void other(float *y) { *y = 3.0f; }
"""
HELPER = "__device__ float helper(float x) { return 3.0f * x + 1.0f; }"

_RELOCATABLE = NvrtcOptions(extra_options=["--relocatable-device-code=true"])


@functools.cache
def ltoir(source: str, target: str = "compute_80") -> bytes:
    """LTO-IR, which any architecture from that of `target` can be linked for."""
    image = compile_program(source, NvrtcOptions(lto=True), target).ltoir
    assert image
    return image


@functools.cache
def ptx(source: str, target: str = "compute_80") -> str:
    """PTX with relocatable device code."""
    return compile_program(source, _RELOCATABLE, target).ptx.decode()


@functools.cache
def cubin(source: str, target: str = "sm_90") -> bytes:
    """A cubin with relocatable device code."""
    image = compile_program(source, _RELOCATABLE, target).cubin
    assert image
    return image


def fatbin(source: str, number: str = "90") -> bytes:
    """A fatbin that holds one relocatable cubin."""
    return fatbin_of(cubin(source, f"sm_{number}"), number)


def fatbin_of(image: bytes, number: str) -> bytes:
    """A fatbin that holds this cubin, made by nvFatbin."""
    try:
        library = ctypes.CDLL(load_nvidia_dynamic_lib("nvfatbin").abs_path or "libnvfatbin.so")
    except DynamicLibNotFoundError:
        pytest.skip("there is no nvFatbin to make a fatbin with")
    handle, size = ctypes.c_void_p(), ctypes.c_size_t()
    library.nvFatbinAddCubin.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, *[ctypes.c_char_p] * 2]
    assert library.nvFatbinCreate(ctypes.byref(handle), None, ctypes.c_size_t(0)) == 0
    try:
        assert library.nvFatbinAddCubin(handle, image, len(image), number.encode(), b"helper") == 0
        assert library.nvFatbinSize(handle, ctypes.byref(size)) == 0
        buffer = ctypes.create_string_buffer(size.value)
        assert library.nvFatbinGet(handle, buffer) == 0
        return buffer.raw
    finally:
        library.nvFatbinDestroy(ctypes.byref(handle))


def device_runtime() -> Path:
    """The archive with which kernels launch kernels, of the CUDA runtime's wheel."""
    import nvidia

    found = [path for folder in nvidia.__path__ for path in Path(folder).rglob("libcudadevrt.a")]
    if not found:
        pytest.skip("there is no device runtime of CUDA to link")
    return found[0]
