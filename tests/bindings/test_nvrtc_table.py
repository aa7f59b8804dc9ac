"""NVRTC's table against the real library. No GPU is needed.

Widths and numbers are held against the headers in ``bindings/test_abi.py``.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager

import pytest

from atomr_cuda import CudaError, nvrtc

SOURCE = b"""
template <typename T> __global__ void twice(T* data) { data[threadIdx.x] *= 2; }
extern "C" __global__ void plain(float* data) { data[threadIdx.x] += 1; }
"""


@contextmanager
def program(source: bytes):
    handle = nvrtc.nvrtcProgram()
    nvrtc.nvrtcCreateProgram(handle, source, b"kernel.cu", 0, None, None)
    try:
        yield handle
    finally:
        nvrtc.nvrtcDestroyProgram(handle)


def compile_program(handle, *options: bytes) -> None:
    nvrtc.nvrtcCompileProgram(handle, len(options), (ctypes.c_char_p * len(options))(*options))


def text(size_function, function, handle) -> bytes:
    size = ctypes.c_size_t()
    size_function(handle, size)
    buffer = ctypes.create_string_buffer(size.value)
    function(handle, buffer)
    return buffer.raw


def test_the_library_is_found_and_says_its_version():
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(major, minor)
    assert (major.value, minor.value) >= (12, 0)
    assert nvrtc.library.path is not None
    assert os.path.exists(nvrtc.library.path)


def test_the_library_has_every_function_of_its_version():
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(major, minor)
    for function in nvrtc.library:
        if function.since is None or function.since <= (major.value, minor.value):
            function.bind()


def test_a_program_compiles_to_ptx_and_to_a_cubin():
    with program(SOURCE) as handle:
        nvrtc.nvrtcAddNameExpression(handle, b"twice<int>")
        compile_program(handle, b"--gpu-architecture=sm_80")
        lowered = ctypes.c_char_p()
        nvrtc.nvrtcGetLoweredName(handle, b"twice<int>", lowered)
        assert lowered.value is not None
        ptx = text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, handle)
        assert b".entry plain(" in ptx
        assert lowered.value in ptx
        assert text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, handle).startswith(b"\x7fELF")


def test_a_wrong_program_is_an_error_with_the_name_of_the_status_and_leaves_a_log():
    with program(b"__global__ void broken( {") as handle:
        with pytest.raises(CudaError) as caught:
            compile_program(handle)
        assert caught.value.status == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION
        assert str(caught.value).startswith("nvrtcCompileProgram: NVRTC_ERROR_COMPILATION (6)")
        assert b"kernel.cu(1)" in text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, handle)


def test_unknown_options_are_refused():
    with program(SOURCE) as handle, pytest.raises(CudaError, match="NVRTC_ERROR_INVALID_OPTION"):
        compile_program(handle, b"--no-such-option")


def test_a_flow_callback_cancels_a_compilation():
    payloads = []

    @nvrtc.nvrtcFlowCallback
    def cancel(payload, reserved):
        payloads.append(payload)
        return 1

    with program(SOURCE) as handle:
        nvrtc.nvrtcSetFlowCallback(handle, cancel, 0xABC)
        status = nvrtc.nvrtcCompileProgram.status(handle, 0, None)
    assert status == nvrtc.nvrtcResult.NVRTC_ERROR_CANCELLED
    assert set(payloads) == {0xABC}


def test_error_strings_are_values_not_statuses():
    assert nvrtc.nvrtcGetErrorString(6) == b"NVRTC_ERROR_COMPILATION"


def test_supported_architectures_are_listed():
    count = ctypes.c_int()
    nvrtc.nvrtcGetNumSupportedArchs(count)
    architectures = (ctypes.c_int * count.value)()
    nvrtc.nvrtcGetSupportedArchs(architectures)
    assert 80 in list(architectures)
