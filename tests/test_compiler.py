"""One compile with the real NVRTC."""

from __future__ import annotations

import resource
import threading
from pathlib import Path
from typing import Any

import pytest

from atomr_cuda import CudaError, LibraryMissing, nvrtc
from atomr_trio import _compiler
from atomr_trio._compiler import compile_program, compile_to_cubin, compile_to_ptx
from atomr_trio._errors import CompileError, InvalidArgument, LibraryNotFound
from atomr_trio._nvrtc_options import NvrtcOptions

SAXPY = """
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""
CPLUSPLUS = """
__device__ int table[4];
template <class T, int N> __global__ void scale(T* p) { *p *= N; }
namespace inner { __global__ void plain(int* p) { *p = table[0]; } }
"""
RECURSIVE = """
template <int N> struct Sum { static __device__ int f() { return Sum<N - 1>::f() + N; } };
template <> struct Sum<0> { static __device__ int f() { return 0; } };
extern "C" __global__ void k(int* p) { *p = Sum<190>::f(); }
"""

# ---------------------------------------------------------------------------------------------------- one compile


def test_a_virtual_target_gives_ptx_and_the_parameters() -> None:
    program = compile_program(SAXPY, NvrtcOptions(), "compute_80")
    assert b".target sm_80" in program.ptx
    assert program.cubin is None
    assert program.image == program.ptx + b"\0"
    assert b"\0" not in program.ptx
    assert (program.target, program.log) == ("compute_80", "")
    assert program.nvrtc_version >= (12, 0)
    assert [p.type_name for p in program.signature("saxpy").parameters] == [".f32", ".u64", ".u64", ".u32"]


def test_a_real_target_gives_a_cubin_and_the_parameters_of_the_same_compile() -> None:
    program = compile_program(SAXPY, NvrtcOptions(), "sm_90")
    assert program.cubin is not None
    assert program.image is program.cubin
    assert program.cubin.startswith(b"\x7fELF")
    assert program.signature("saxpy").bytes == 28


def test_name_expressions_select_instances_and_variables() -> None:
    options = NvrtcOptions(name_expressions=["scale<float, 3>", "scale<int, 2>", "inner::plain", "&table"])
    program = compile_program(CPLUSPLUS, options, "compute_80")
    lowered = [program.lowered(name) for name in options.name_expressions]
    assert len(set(lowered)) == 4
    assert set(lowered[:3]) == set(program.entries)
    assert lowered[3] == "table"
    assert program.lowered(lowered[0]) == lowered[0]
    assert program.signature("scale<float, 3>").name == lowered[0]
    with pytest.raises(InvalidArgument, match="'&table' is not a kernel"):
        program.signature("&table")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("saxpi", "there is no kernel 'saxpi'; the program has: 'scale<int, 2>', '_Z5scaleIiLi2EEvPT_'"),
        ("inner::plain", "name_expressions=['inner::plain']"),
        ("scale<float, 3>", "name_expressions=['scale<float, 3>']"),
        ("", "there is no kernel ''"),
    ],
)
def test_an_unknown_name_lists_what_there_is_and_says_how_to_get_it(name: str, said: str) -> None:
    program = compile_program(CPLUSPLUS, NvrtcOptions(name_expressions=["scale<int, 2>"]), "compute_80")
    with pytest.raises(InvalidArgument) as caught:
        program.lowered(name)
    assert said in str(caught.value)


def test_assert_and_printf_need_no_header() -> None:
    source = 'extern "C" __global__ void k(int n) { assert(n > 0); printf("%d\\n", n); }'
    assert "k" in compile_program(source, NvrtcOptions(), "compute_80").entries


def test_headers_come_from_memory_first_and_then_from_the_include_paths(tmp_path: Path) -> None:
    (tmp_path / "one.h").write_text("#define ONE 100\n")
    (tmp_path / "two.h").write_text("#define TWO 2\n")
    source = '#include "one.h"\n#include <two.h>\nstatic_assert(ONE == 1 && TWO == 2);'
    options = NvrtcOptions(include_paths=[tmp_path], headers={"one.h": "#define ONE 1\n"})
    assert compile_program(source, options, "compute_80").entries == {}


def test_the_working_directory_is_not_searched_for_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "near.h").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompileError, match=r"near\.h"):
        compile_program('#include "near.h"', NvrtcOptions(), "compute_80")


def test_compiling_leaves_the_stack_limit_of_the_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    seen = []
    compile_ = nvrtc.nvrtcCompileProgram.status

    class Watching:
        @staticmethod
        def status(*arguments: object) -> int:
            stop = threading.Event()

            def watch() -> None:
                while not stop.is_set():
                    seen.append(resource.getrlimit(resource.RLIMIT_STACK))

            thread = threading.Thread(target=watch)
            thread.start()
            try:
                return compile_(*arguments)
            finally:
                stop.set()
                thread.join()

    monkeypatch.setattr(nvrtc, "nvrtcCompileProgram", Watching)
    resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, hard))
    try:
        compile_program(RECURSIVE, NvrtcOptions(), "compute_80")
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
    assert set(seen) == {(8 << 20, hard)}


def test_an_error_is_shown_with_file_and_line_and_the_log_holds_all_of_them() -> None:
    source = "\n\n__device__ int f() { return missing; }\n__device__ int g() { return absent; }\n"
    with pytest.raises(CompileError) as caught:
        compile_program(source, NvrtcOptions(), "compute_80", file_name="waves.cu")
    error = caught.value
    assert error.message == 'waves.cu(3): error: identifier "missing" is undefined'
    assert 'waves.cu(4): error: identifier "absent" is undefined' in error.log
    assert error.log in str(error) or error.log.rstrip() in str(error)
    assert (error.status, error.status_name) == (6, "NVRTC_ERROR_COMPILATION")
    assert isinstance(error.__cause__, CudaError)


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ("#error no way", {}, "kernel.cu(1): catastrophic error: #error directive: no way"),
        (SAXPY, {"extra_options": ["--bogus"]}, "unrecognized option --bogus"),
        (SAXPY, {"name_expressions": ["nope"]}, 'a name expression is not valid: identifier "nope" is undefined'),
        ('#include "gone.h"', {}, 'source file "gone.h"'),
    ],
)
def test_what_nvrtc_refuses_is_a_compile_error(source: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(CompileError) as caught:
        compile_program(source, NvrtcOptions(**options), "compute_80")  # type: ignore[arg-type]
    assert said in caught.value.message


def test_a_warning_is_in_the_log_of_the_program() -> None:
    program = compile_program("#warning careful\n" + SAXPY, NvrtcOptions(), "compute_80")
    assert "careful" in program.log


@pytest.mark.parametrize(
    ("source", "file_name", "said"),
    [
        (b"x", "kernel.cu", "the source has to be a string, got bytes"),
        (None, "kernel.cu", "the source has to be a string, got NoneType"),
        ("a\0b", "kernel.cu", "the source contains a NUL character at position 1"),
        ("\ud800", "kernel.cu", "the source is not valid Unicode"),
        (SAXPY, "", "file_name is empty"),
        (SAXPY, "a\0", "file_name contains a NUL"),
        (SAXPY, Path("a.cu"), "file_name has to be a string"),
    ],
)
def test_what_is_no_source_is_refused(source: str, file_name: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        compile_program(source, NvrtcOptions(), "compute_80", file_name=file_name)


def test_an_include_path_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"include_paths: '.*/nowhere' is not a folder"):
        compile_program(SAXPY, NvrtcOptions(include_paths=[tmp_path / "nowhere"]), "compute_80")


@pytest.mark.parametrize("target", ["compute_20", "sm_999", "native"])
def test_a_target_that_this_nvrtc_does_not_have_is_refused_with_those_it_has(target: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"NVRTC \d+\.\d+ does not compile for '{target}'; it knows .*90"):
        compile_program(SAXPY, NvrtcOptions(), target)


def test_without_nvrtc_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: object) -> None:
        raise LibraryMissing("nvrtc", "cu13", ("/somewhere",))

    monkeypatch.setattr(nvrtc, "nvrtcVersion", missing)
    with pytest.raises(LibraryNotFound, match=r"atomr-trio\[cu13\]") as caught:
        compile_program(SAXPY, NvrtcOptions(), "compute_80")
    assert "/somewhere" in str(caught.value)


def test_a_library_that_fails_is_a_compile_error_with_the_name_of_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*arguments: object) -> None:
        raise CudaError(11, "NVRTC_ERROR_INTERNAL_ERROR", "internal error", "nvrtc", "nvrtcVersion")

    monkeypatch.setattr(nvrtc, "nvrtcVersion", failing)
    with pytest.raises(CompileError, match="nvrtcVersion failed") as caught:
        compile_program(SAXPY, NvrtcOptions(), "compute_80")
    assert (caught.value.status, caught.value.library) == (11, "nvrtc")


@pytest.mark.parametrize(("missing", "target"), [("PTX", "compute_80"), ("CUBIN", "sm_80")])
def test_a_compile_that_leaves_nothing_to_load_is_an_error(
    monkeypatch: pytest.MonkeyPatch, missing: str, target: str
) -> None:
    def no_bytes(program: object, size: Any) -> None:
        size._obj.value = 0

    outputs = dict(_compiler._OUTPUTS)
    monkeypatch.setattr(_compiler, "_OUTPUTS", {**outputs, missing: (no_bytes, outputs[missing][1])})
    with pytest.raises(CompileError, match=f"nothing to load for {target}; the options were .*--std"):
        compile_program(SAXPY, NvrtcOptions(), target)


def test_programs_are_destroyed_however_a_compile_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    destroyed = []
    original = nvrtc.nvrtcDestroyProgram.status

    class Counting:
        @staticmethod
        def status(*arguments: object) -> int:
            destroyed.append(status := original(*arguments))
            return status

    monkeypatch.setattr(nvrtc, "nvrtcDestroyProgram", Counting)
    compile_program(SAXPY, NvrtcOptions(), "compute_80")
    with pytest.raises(CompileError):
        compile_program("?", NvrtcOptions(), "compute_80")
    assert destroyed == [0, 0]


def test_compile_to_ptx_is_portable_unless_an_architecture_is_named() -> None:
    assert ".entry saxpy" in compile_to_ptx(SAXPY)
    oldest = min(int(line.split("_")[1]) for line in compile_to_ptx(SAXPY).splitlines() if line.startswith(".target"))
    assert oldest < 80
    assert ".target sm_90" in compile_to_ptx(SAXPY, options=NvrtcOptions(arch="sm_90"))
    assert ".target sm_120" in compile_to_ptx(SAXPY, options=NvrtcOptions(arch="compute_120"))


def test_compile_to_cubin_needs_a_real_architecture() -> None:
    assert compile_to_cubin(SAXPY, options=NvrtcOptions(arch="sm_90")).startswith(b"\x7fELF")
    for arch in ("native", "compute_90"):
        with pytest.raises(InvalidArgument, match=f"'{arch}' does not name one"):
            compile_to_cubin(SAXPY, options=NvrtcOptions(arch=arch))
