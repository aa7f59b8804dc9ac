"""Which PTX is too new for whom."""

from __future__ import annotations

import pytest

from atomr_trio import InvalidArgument, compile_to_ptx
from atomr_trio._compiling.linker import _version as linker_version
from atomr_trio._compiling.ptx_versions import newest_ptx, ptx_version, reads_ptx, too_new


def test_the_version_is_what_the_text_states():
    assert ptx_version("// .version 1.0\n\n.version 8.7\n.target sm_90\n") == (8, 7)
    assert ptx_version(b".version 10.12 .target sm_90\0") == (10, 12)


@pytest.mark.parametrize("text", ["", "hello", ".target sm_90\n", ".version nine\n", b"\xff\xfe"])
def test_what_states_no_version_is_refused(text):
    with pytest.raises(InvalidArgument, match="this is not PTX"):
        ptx_version(text)


@pytest.mark.parametrize(
    ("cuda", "newest"), [((12, 4), (8, 4)), ((12, 6), (8, 5)), ((12, 9), (8, 8)), ((13, 0), (9, 0)), ((99, 0), None)]
)
def test_each_cuda_version_reads_ptx_up_to_its_own(cuda, newest):
    assert newest_ptx(cuda) == newest
    assert reads_ptx(cuda, (8, 4))
    assert reads_ptx(cuda, (9, 5)) == (newest is None)


def test_the_installed_compiler_and_linker_agree_with_the_table():
    """NVRTC writes the newest PTX of its version, and nvJitLink of the same version reads it."""
    written = ptx_version(compile_to_ptx('extern "C" __global__ void k() {}'))
    assert reads_ptx(linker_version(), written)
    assert newest_ptx(linker_version()) in (written, None)


def test_the_text_has_both_versions_as_far_as_they_are_known():
    assert too_new((9, 5), "the driver", (12, 8)) == (
        "the PTX is of version 9.5 (CUDA 13.5), too new for the driver of CUDA 12.8, which reads PTX up to 8.7"
    )
    assert too_new((99, 1), "the driver", (98, 0)) == "the PTX is of version 99.1, too new for the driver of CUDA 98.0"
