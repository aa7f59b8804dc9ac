"""nvJitLink's table against the real library. No GPU is needed.

Widths and numbers are held against the headers in ``bindings/test_abi.py``.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from atomr_cuda import CudaError, SymbolMissing, nvjitlink
from support.nvrtc import compile_ptx

PTX = nvjitlink.nvJitLinkInputType.NVJITLINK_INPUT_PTX
SOURCE = 'extern "C" __global__ void k(int *x) { *x = 7; }'


@contextmanager
def linking(*options: bytes) -> Iterator[ctypes.c_void_p]:
    handle = nvjitlink.nvJitLinkHandle()
    nvjitlink.nvJitLinkCreate(handle, len(options), (ctypes.c_char_p * len(options))(*options))
    try:
        yield handle
    finally:
        nvjitlink.nvJitLinkDestroy(handle)


def add(handle: ctypes.c_void_p, image: bytes, name: bytes = b"input") -> None:
    nvjitlink.nvJitLinkAddData(handle, PTX, image, len(image), name)


def output(size_function, function, handle) -> bytes:
    size = ctypes.c_size_t()
    size_function(handle, size)
    buffer = ctypes.create_string_buffer(size.value)
    function(handle, buffer)
    return buffer.raw


def version() -> tuple[int, int]:
    major, minor = ctypes.c_uint(), ctypes.c_uint()
    nvjitlink.nvJitLinkVersion(major, minor)
    return major.value, minor.value


def test_the_library_is_found_and_says_its_version():
    assert version() >= (12, 0)
    assert nvjitlink.library.path is not None
    assert os.path.exists(nvjitlink.library.path)


def test_the_library_has_every_function_of_its_version_under_its_plain_name():
    for function in nvjitlink.library:
        if function.since is None or function.since <= version():
            function.bind()
        else:
            with pytest.raises(SymbolMissing, match=r"it needs version 13\.2 or newer"):
                function.bind()


def test_ptx_becomes_a_cubin():
    with linking(b"-arch=sm_90") as handle:
        add(handle, compile_ptx(SOURCE).encode() + b"\0")
        nvjitlink.nvJitLinkComplete(handle)
        cubin = output(nvjitlink.nvJitLinkGetLinkedCubinSize, nvjitlink.nvJitLinkGetLinkedCubin, handle)
    assert cubin.startswith(b"\x7fELF")


def test_a_wrong_input_is_an_error_with_the_name_of_the_status_and_leaves_a_log():
    wrong = compile_ptx(SOURCE).replace("st.global", "st.glabal").encode() + b"\0"
    with linking(b"-arch=sm_90") as handle:
        with pytest.raises(CudaError) as caught:
            add(handle, wrong, b"wrong.ptx")
        log = output(nvjitlink.nvJitLinkGetErrorLogSize, nvjitlink.nvJitLinkGetErrorLog, handle)
    assert caught.value.status == nvjitlink.nvJitLinkResult.NVJITLINK_ERROR_PTX_COMPILE
    assert str(caught.value) == "nvJitLinkAddData: NVJITLINK_ERROR_PTX_COMPILE (4): ptx compile"
    assert b"wrong.ptx" in log
    assert b".glabal" in log


def test_an_unknown_option_is_refused():
    with pytest.raises(CudaError, match="NVJITLINK_ERROR_UNRECOGNIZED_OPTION"), linking(b"-arch=sm_90", b"-no-such"):
        raise AssertionError("the link was created")


def test_a_status_that_is_not_in_the_header_has_a_name_too():
    assert str(nvjitlink.library.error(99, "nvJitLinkNew")) == "nvJitLinkNew: NVJITLINK_ERROR_UNKNOWN (99): unknown"


def test_a_file_is_read_by_the_library(tmp_path):
    path = tmp_path / "k.ptx"
    path.write_text(compile_ptx(SOURCE))
    with linking(b"-arch=sm_90") as handle:
        nvjitlink.nvJitLinkAddFile(handle, PTX, os.fsencode(path))
        nvjitlink.nvJitLinkComplete(handle)
