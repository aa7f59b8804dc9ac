"""One compile with the real NVRTC."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import atomr_trio
from atomr_cuda import CudaError, LibraryMissing, nvrtc
from atomr_trio._compiling import compiler
from atomr_trio._compiling.compiler import compile_program, compile_to_cubin, compile_to_ltoir, compile_to_ptx
from atomr_trio._compiling.nvrtc_library import nvrtc_version
from atomr_trio._compiling.options import NvrtcOptions
from atomr_trio._values.errors import CompileError, InvalidArgument, LibraryNotFound
from support import set_constant

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


def test_lowered_names_are_the_compilers_and_not_the_names_that_were_asked_for() -> None:
    """A table of names that maps each name to itself would let templates compile, and never be found in the image."""
    options = NvrtcOptions(name_expressions=["scale<float, 3>", "scale<int, 2>", "inner::plain", "&table"])
    program = compile_program(CPLUSPLUS, options, "compute_80")
    lowered = [program.lowered(name) for name in options.name_expressions]
    assert len(set(lowered)) == 4
    assert set(lowered[:3]) == set(program.entries)
    assert lowered[3] == "table"
    assert program.lowered(lowered[0]) == lowered[0]
    assert program.signature("scale<float, 3>").name == lowered[0]
    assert program.signature("scale<float,3>") is program.signature(" scale< float, 3 > ")
    assert program.signature(lowered[0]) is program.signature("scale<float, 3>")
    with pytest.raises(InvalidArgument, match="'&table' is not a kernel"):
        program.signature("&table")


def test_spaces_in_a_name_count_where_they_are_part_of_a_character() -> None:
    names = ["f<' '>", "f<'\\''>", "f<1'000>"]
    source = "template <auto C> __global__ void f() {}"
    program = compile_program(source, NvrtcOptions(name_expressions=names), "compute_80")
    assert program.lowered("f< ' ' >") == program.lowered_names["f<' '>"]
    assert program.lowered("f < '\\'' >") == program.lowered_names["f<'\\''>"]
    assert program.lowered("f< 1'000 >") == program.lowered_names["f<1'000>"]
    for other in ("f<'  '>", "f<''>"):
        with pytest.raises(InvalidArgument, match="there is no kernel"):
            program.lowered(other)


def test_names_of_variables_are_lowered_wherever_they_are() -> None:
    source = """
    namespace inner { __device__ float weights[4]; }
    __constant__ int limits[2];
    static __device__ int hidden;
    template <class T> __device__ T value;
    """
    names = ["&inner::weights", "&limits", "&hidden", "&value<double>"]
    program = compile_program(source, NvrtcOptions(name_expressions=names), "compute_80")
    lowered = [program.lowered(name) for name in names]
    assert lowered[:2] == ["_ZN5inner7weightsE", "limits"]
    assert len({*lowered, *names}) == 8
    assert all(name.encode() in program.ptx for name in lowered)


def test_a_name_that_is_nearly_one_gets_the_right_one_for_advice() -> None:
    with pytest.raises(InvalidArgument, match=r"did you mean 'saxpy'\?"):
        compile_program(SAXPY, NvrtcOptions(), "compute_80").lowered("saxpyy")


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


def test_a_header_on_disk_finds_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "one.h").write_text('#include "two.h"\n')
    (tmp_path / "sub" / "two.h").write_text("#define TWO 2\n")
    source = "#include <sub/one.h>\nstatic_assert(TWO == 2);"
    assert compile_program(source, NvrtcOptions(include_paths=[tmp_path]), "compute_80").entries == {}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"name": "sub/kernel.cu"},
        {"headers": {"near.h": '#include "far.h"\n'}},
        {"headers": {"near.h": "", "sub/near.h": '#include "far.h"\n'}, "defines": {"SUB": None}},
    ],
)
def test_the_working_directory_is_not_searched_for_headers(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for the source nor for a header in memory, whose names look like paths that lead there."""
    for folder in (tmp_path, tmp_path / "sub"):
        folder.mkdir(exist_ok=True)
        (folder / "near.h").write_text("")
        (folder / "far.h").write_text("")
    monkeypatch.chdir(tmp_path)
    source = '#include "near.h"\n#ifdef SUB\n#include "sub/near.h"\n#endif\n'
    with pytest.raises(CompileError, match=r'open source file "(near|far)\.h"'):
        compile_program(source, NvrtcOptions(**options), "compute_80")


def test_messages_name_headers_in_memory_as_they_are_included() -> None:
    options = NvrtcOptions(headers={"sub/one.h": "\nbroken;\n"})
    with pytest.raises(CompileError) as caught:
        compile_program("#include <sub/one.h>", options, "compute_80")
    assert caught.value.message.startswith("sub/one.h(2): error: ")
    assert "/proc" not in caught.value.log


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
        compile_program(source, NvrtcOptions(name="waves.cu"), "compute_80")
    error = caught.value
    assert error.message == 'waves.cu(3): error: identifier "missing" is undefined'
    assert 'waves.cu(4): error: identifier "absent" is undefined' in error.log
    assert 'detected in the compilation of "waves.cu"' in error.log
    first, _, rest = error.log.rstrip().partition("\n")
    assert first == error.message
    assert str(error).endswith(f"\n{rest}")
    assert str(error).count(error.message) == 1, "with which the log begins too"
    assert (error.status, error.status_name) == (6, "NVRTC_ERROR_COMPILATION")
    assert isinstance(error.__cause__, CudaError)


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ("#error no way", {}, "kernel.cu(1): catastrophic error: #error directive: no way"),
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


def test_the_name_of_the_source_is_what_the_code_sees_of_it() -> None:
    source = "__device__ const char* f() { return __FILE__; }\n" + SAXPY
    program = compile_program(source, NvrtcOptions(name="a b/waves.cu", lineinfo=True), "compute_80")
    assert b'a b/waves.cu"' in program.ptx
    assert b"/proc/" not in program.ptx
    checked = 'extern "C" __global__ void k(int n) { assert(n); }'
    text = ", ".join(map(str, b"waves.cu"))
    assert text in compile_program(checked, NvrtcOptions(name="waves.cu"), "compute_80").ptx.decode()


def test_headers_are_precompiled_when_that_is_asked_for(tmp_path: Path) -> None:
    if nvrtc_version() < (12, 8):
        pytest.skip("this NVRTC does not precompile headers")
    (tmp_path / "large.h").write_text("template <int N> struct A {};\n")
    options = NvrtcOptions(
        include_paths=[tmp_path], headers={"one.h": "\n"}, extra_options=["--pch", f"--pch-dir={tmp_path}"]
    )
    source = '#include "large.h"\n#include <one.h>\n' + SAXPY
    created, used = (compile_program(source, options, "compute_80").log for _ in range(2))
    assert '"kernel.cu": creating precompiled header file' in created
    assert '"kernel.cu": using precompiled header file' in used


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (b"x", "the source has to be a string, got bytes"),
        (None, "the source has to be a string, got NoneType"),
        ("a\0b", "the source contains a NUL character at position 1"),
        ("\ud800", "the source is not valid Unicode"),
    ],
)
def test_what_is_no_source_is_refused(source: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        compile_program(source, NvrtcOptions(), "compute_80")


def test_what_this_nvrtc_does_not_have_is_refused_before_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "nvrtc_version", lambda: (12, 4))
    monkeypatch.setattr(nvrtc, "nvrtcCreateProgram", None)
    for options, said in (({"cpp_std": 23}, r"C\+\+23 came with NVRTC 13.3"), ({"extra_options": ["-pch"]}, "'-pch'")):
        with pytest.raises(InvalidArgument, match=f"{said}.*this one is 12.4"):
            compile_program(SAXPY, NvrtcOptions(**options), "compute_80")  # type: ignore[arg-type]


def test_an_include_path_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"include_paths: '.*/nowhere' is not a folder"):
        compile_program(SAXPY, NvrtcOptions(include_paths=[tmp_path / "nowhere"]), "compute_80")


@pytest.mark.parametrize("standard", [14, 17, 20, 23])
def test_a_standard_is_the_one_that_the_source_sees(standard: int) -> None:
    if standard == 23 and nvrtc_version() < (13, 3):
        pytest.skip("this NVRTC has no C++23")
    version = {14: 201402, 17: 201703, 20: 202002, 23: 202302}[standard]
    source = f'static_assert(__cplusplus == {version}L, "");'
    assert compile_program(source, NvrtcOptions(cpp_std=standard), "compute_80").entries == {}


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


@pytest.mark.parametrize(
    ("missing", "target", "lto"),
    [("PTX", "compute_80", False), ("CUBIN", "sm_80", False), ("LTOIR", "compute_80", True)],
)
def test_a_compile_that_leaves_nothing_to_load_is_an_error(
    monkeypatch: pytest.MonkeyPatch, missing: str, target: str, lto: bool
) -> None:
    def no_bytes(program: object, size: Any) -> None:
        size._obj.value = 0

    outputs = dict(compiler._OUTPUTS)
    set_constant(monkeypatch, compiler, "_OUTPUTS", {**outputs, missing: (no_bytes, outputs[missing][1])})
    with pytest.raises(CompileError, match=f"nothing to load for {target}; the options were .*--std"):
        compile_program(SAXPY, NvrtcOptions(lto=lto), target)


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
    assert ".target sm_89" in compile_to_ptx(SAXPY, options=NvrtcOptions(arch="compute_89"))


def test_compile_to_cubin_needs_a_real_architecture() -> None:
    assert compile_to_cubin(SAXPY, options=NvrtcOptions(arch="sm_90")).startswith(b"\x7fELF")
    for arch in ("native", "compute_90"):
        with pytest.raises(InvalidArgument, match=f"'{arch}' does not name one"):
            compile_to_cubin(SAXPY, options=NvrtcOptions(arch=arch))


@pytest.mark.parametrize("compile_", [compile_to_ptx, compile_to_cubin])
def test_lto_ir_is_no_ptx_and_no_cubin(compile_: Callable[..., object]) -> None:
    with pytest.raises(InvalidArgument, match="compile_to_ltoir"):
        compile_(SAXPY, options=NvrtcOptions(arch="sm_90", lto=True))


# ---------------------------------------------------------------------------------------------------- targets

SPECIFIC = """
extern "C" __global__ void k(int* p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    *p = 90;
#endif
}
"""
"""Code that uses what only sm_90a has, where it has it."""


def test_an_architecture_and_its_variant_are_two_targets() -> None:
    """Taking sm_90a for sm_90, which has the same capability, would run code that lacks the instructions asked for."""
    images = {arch: compile_program(SPECIFIC, NvrtcOptions(arch=arch), arch) for arch in ("sm_90", "sm_90a")}
    assert {arch: program.target for arch, program in images.items()} == {"sm_90": "sm_90", "sm_90a": "sm_90a"}
    assert b".target sm_90a" in images["sm_90a"].ptx
    assert b".target sm_90a" not in images["sm_90"].ptx
    assert (b", 90;" in images["sm_90a"].ptx, b", 90;" in images["sm_90"].ptx) == (True, False)
    assert images["sm_90"].cubin != images["sm_90a"].cubin
    assert NvrtcOptions(arch="sm_90").identity() != NvrtcOptions(arch="sm_90a").identity()


# ---------------------------------------------------------------------------------------------------- LTO-IR

HALVES = {
    "twice.cu": "__device__ int twice(int x) { return 2 * x; }",
    "main.cu": """
        __device__ int twice(int x);
        template <int N> __global__ void k(int* p) { *p = twice(*p) + N; }
    """,
}
"""A function, and a kernel that calls it: neither is a program without the other."""


def test_lto_ir_is_made_for_a_virtual_target_and_alone() -> None:
    options = NvrtcOptions(lto=True, name_expressions=["k<3>"])
    program = compile_program(HALVES["main.cu"], options, "sm_90")
    assert program.ltoir
    assert (program.ptx, program.cubin, program.image) == (b"", None, program.ltoir)
    assert (program.target, dict(program.entries)) == ("compute_90", {})
    assert program.lowered("k<3>") == "_Z1kILi3EEvPi"
    assert program.ltoir == compile_to_ltoir(
        HALVES["main.cu"], options=NvrtcOptions(arch="sm_90", name_expressions=["k<3>"])
    )
    with pytest.raises(InvalidArgument, match="'k<3>' has no parameters yet"):
        program.signature("k<3>")
    with pytest.raises(InvalidArgument, match="LTO-IR tells no names"):
        program.lowered("something else")


@pytest.mark.parametrize("flag", ["--prec-div=false", "--fmad=false", "--maxrregcount=16"])
def test_what_is_refused_with_lto_would_have_been_ignored(flag: str) -> None:
    source = """
    extern "C" __global__ void k(float* p) { *p = *p * p[1] + p[2] / sqrtf(p[3]); }
    """
    # Where there is a driver, NVRTC answers from a cache of its own, and the log lacks what ptxas said the first time.
    anew = ("--no-cache",) if nvrtc_version() >= (12, 9) else ()
    flags = (anew, (*anew, flag))
    plain, with_flag = (compile_program(source, NvrtcOptions(lto=True), "sm_90", extra_flags=f) for f in flags)
    assert plain.ltoir == with_flag.ltoir
    ptx, other = (compile_program(source, NvrtcOptions(), "sm_90", extra_flags=f) for f in flags)
    assert (ptx.ptx, ptx.log) != (other.ptx, other.log)


def test_lto_ir_is_something_that_the_linker_makes_a_cubin_of() -> None:
    """An option that gives LTO-IR nobody can use, while PTX and cubin are gone, would leave nothing to load."""
    parts = [
        compile_to_ltoir(source, options=NvrtcOptions(arch="sm_90", name=name, name_expressions=expressions))
        for (name, source), expressions in zip(HALVES.items(), ([], ["k<3>"]), strict=True)
    ]
    cubin = atomr_trio.link(parts, arch="sm_90")
    assert cubin.startswith(b"\x7fELF")
    assert b"_Z1kILi3EEvPi" in cubin
    assert b"twice" not in cubin.partition(b".strtab")[2], "it was inlined, which is what LTO-IR is for"
