"""Compiling with the real NVRTC: options, targets, one compile; and the service that shares compiles."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import outcome
import pytest
import trio

from atomr_cuda import CudaError, LibraryMissing, nvrtc
from atomr_trio import _compiler
from atomr_trio._compiler import (
    CompiledProgram,
    CompileService,
    NvrtcOptions,
    compile_program,
    compile_to_cubin,
    compile_to_ptx,
    depends_on_files,
    resolve_target,
)
from atomr_trio._errors import AtomrInternalError, CompileError, DeviceError, InvalidArgument, LibraryNotFound

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

# ---------------------------------------------------------------------------------------------------- options


def test_the_default_options_are_native_cplusplus_17() -> None:
    assert NvrtcOptions().arch == "native"
    assert NvrtcOptions().flags("compute_80") == (
        "--gpu-architecture=compute_80",
        "--no-source-include",
        "--modify-stack-limit=false",
        "--std=c++17",
    )


def test_flags_show_every_option(tmp_path: Path) -> None:
    options = NvrtcOptions(
        defines={"N": 4, "BARE": None, "EMPTY": "", "F(x)": "(x) + 1", "ON": True},
        include_paths=[tmp_path, "relative"],
        cpp_std=20,
        ftz=True,
        prec_div=False,
        prec_sqrt=True,
        fmad=False,
        max_registers=64,
        debug=True,
        lineinfo=True,
        extra_options=["--device-int128", "-w"],
    )
    assert options.flags("sm_90")[3:] == (
        "--std=c++20",
        "--device-debug",
        "--generate-line-info",
        "--ftz=true",
        "--prec-div=false",
        "--prec-sqrt=true",
        "--fmad=false",
        "--maxrregcount=64",
        "--define-macro=BARE",
        "--define-macro=EMPTY=",
        "--define-macro=F(x)=(x) + 1",
        "--define-macro=N=4",
        "--define-macro=ON=1",
        f"--include-path={tmp_path}",
        f"--include-path={Path.cwd() / 'relative'}",
        "--device-int128",
        "-w",
    )
    assert "--std" not in " ".join(NvrtcOptions(cpp_std=None).flags("sm_90"))
    assert "--use_fast_math" in NvrtcOptions(use_fast_math=True, ftz=True).flags("sm_90")


def test_nvrtc_takes_every_flag_that_the_fields_can_make() -> None:
    options = NvrtcOptions(
        defines={"N": 4, "BARE": None, "EMPTY": "", "F(x)": "(x) + 1", "TEXT": '"two words"'},
        cpp_std=20,
        use_fast_math=True,
        ftz=True,
        prec_div=False,
        prec_sqrt=False,
        fmad=True,
        max_registers=64,
        debug=True,
        lineinfo=True,
    )
    source = """
    static_assert(N == 4 && BARE == 1 && F(2) == 3 && sizeof(TEXT) == 10 && __cplusplus == 202002L EMPTY);
    extern "C" __global__ void k() {}
    """
    assert "k" in compile_program(source, options, "compute_80").entries


def test_options_are_values_whatever_they_were_made_of() -> None:
    one = NvrtcOptions(defines={"A": 1, "B": "2"}, include_paths=["/a"], headers={"y.h": "", "x.h": ""})
    other = NvrtcOptions(defines={"B": "2", "A": "1"}, include_paths=(Path("/a"),), headers={"x.h": "", "y.h": ""})
    assert one == other
    assert hash(one) == hash(other)
    assert attrs.evolve(one, cpp_std=20) == NvrtcOptions(
        defines={"A": 1, "B": "2"}, include_paths=["/a"], headers={"x.h": "", "y.h": ""}, cpp_std=20
    )
    assert attrs.evolve(one, cpp_std=20) != one


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"defines": {"1A": "2"}}, "defines: '1A' is not the name of a macro"),
        ({"defines": {"": "2"}}, "defines: '' is not the name"),
        ({"defines": {"A=1": "2"}}, "defines: 'A=1' is not the name"),
        ({"defines": {"A": "1\n#error"}}, "defines['A']: a definition is one line"),
        ({"defines": {"A": "1\0"}}, "defines['A']: '1\\x00' contains a NUL"),
        ({"defines": {"A": 1.5}}, "defines['A']: expected a string, got float"),
        ({"defines": {"A": "1", "A(x)": "x"}}, "macro 'A' is defined twice"),
        ({"defines": ["A"]}, "defines: expected a dictionary, got list"),
        ({"include_paths": "/usr/include"}, "write include_paths=['/usr/include']"),
        ({"include_paths": [3]}, "include_paths: expected paths, got int"),
        ({"include_paths": [""]}, "include_paths: an empty string"),
        ({"arch": "sm90"}, 'arch: expected "native" or a name'),
        ({"arch": "SM_90"}, "got 'SM_90'"),
        ({"arch": 90}, "arch: expected a string, got int"),
        ({"name_expressions": "scale<float>"}, "write name_expressions=['scale<float>']"),
        ({"name_expressions": [" "]}, "name_expressions: an empty string is not a name"),
        ({"name_expressions": [None]}, "name_expressions: expected a string, got NoneType"),
        ({"cpp_std": 18}, "cpp_std: expected one of 3, 11, 14, 17, 20, 23, got 18"),
        ({"cpp_std": "c++17"}, "cpp_std: expected one of"),
        ({"use_fast_math": 1}, "use_fast_math: expected True or False, got 1"),
        ({"debug": None}, "debug: expected True or False, got None"),
        ({"ftz": "yes"}, "ftz: expected True or False, got 'yes'"),
        ({"use_fast_math": True, "ftz": False}, "ftz: False contradicts use_fast_math=True"),
        ({"use_fast_math": True, "prec_div": True}, "prec_div: True contradicts use_fast_math=True"),
        ({"use_fast_math": True, "fmad": False}, "fmad: False contradicts"),
        ({"max_registers": 0}, "max_registers: expected a number of registers from 1 to 255, got 0"),
        ({"max_registers": 256}, "got 256"),
        ({"max_registers": True}, "got True"),
        ({"headers": {"": "x"}}, "headers: a header needs a name"),
        ({"headers": {"a.h": b"x"}}, "headers['a.h']: expected a string, got bytes"),
        ({"extra_options": "-w"}, "write extra_options=['-w']"),
        ({"extra_options": ["-arch=sm_90"]}, "'-arch=sm_90' is not accepted: use arch="),
        ({"extra_options": ["--gpu-architecture", "sm_90"]}, "use arch="),
        ({"extra_options": ["--std=c++20"]}, "use cpp_std="),
        ({"extra_options": ["--ftz=true"]}, "use ftz="),
        ({"extra_options": ["-dlto"]}, "its output is neither PTX nor a cubin"),
        ({"extra_options": ["\ud800"]}, "is not valid Unicode"),
    ],
)
def test_a_bad_option_is_refused_when_it_is_written(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        NvrtcOptions(**arguments)  # type: ignore[arg-type]
    assert said in str(caught.value)


# ---------------------------------------------------------------------------------------------------- targets


@pytest.mark.parametrize(
    ("arch", "capability", "accepts_cubin", "target"),
    [
        ("native", (9, 0), True, "sm_90"),
        ("native", (12, 0), True, "sm_120"),
        ("native", (8, 0), False, "compute_80"),
        ("compute_75", (8, 0), False, "compute_75"),
        ("compute_80", (9, 0), True, "compute_80"),
        ("sm_80", (8, 6), True, "sm_80"),
        ("sm_90a", (9, 0), True, "sm_90a"),
        ("compute_100f", (10, 3), True, "compute_100f"),
    ],
)
def test_a_target_follows_from_the_architecture_and_the_device(
    arch: str, capability: tuple[int, int], accepts_cubin: bool, target: str
) -> None:
    assert resolve_target(arch, capability, accepts_cubin) == target


@pytest.mark.parametrize(
    ("arch", "capability", "accepts_cubin", "said"),
    [
        ("sm_80", (8, 0), False, "the simulator only runs PTX"),
        ("compute_90", (8, 0), False, "does not run on this device of capability 8.0: it is code for 9.0 and newer"),
        ("sm_90", (8, 9), True, "it is code for 9.0 and newer"),
        ("sm_86", (8, 0), True, "it is code for 8.6 and newer"),
        ("sm_80", (9, 0), True, "it runs on 8.x devices only"),
        ("compute_90a", (10, 0), True, "an 'a' variant runs on 9.0 alone"),
        ("compute_100f", (12, 0), True, "it runs on 10.x devices only"),
        ("fermi", (9, 0), True, 'expected "native"'),
    ],
)
def test_code_that_the_device_cannot_run_is_refused(
    arch: str, capability: tuple[int, int], accepts_cubin: bool, said: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        resolve_target(arch, capability, accepts_cubin)
    assert said in str(caught.value)


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


# ---------------------------------------------------------------------------------------------------- many compiles


class Outcomes(list["outcome.Outcome[CompiledProgram]"]):
    """Collects what is delivered, and lets a test wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self._more = trio.Event()

    def deliver(self, result: outcome.Outcome[CompiledProgram]) -> None:
        self.append(result)
        self._more.set()
        self._more = trio.Event()

    async def wait(self, count: int) -> None:
        with trio.fail_after(60):
            while len(self) < count:
                await self._more.wait()


class Gate:
    """A compiler that waits for permission, so that tests decide who is compiling when."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Semaphore(0)
        self.started: list[str] = []
        self.error: Exception | None = None

    def __call__(self, source: str, options: NvrtcOptions, target: str) -> CompiledProgram:
        self.started.append(source)
        self.entered.release()
        assert self.open.wait(20)
        if self.error is not None:
            raise self.error
        return CompiledProgram(b"", None, {}, {}, "", target, (13, 0))


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


async def test_the_service_compiles_and_then_answers_from_its_cache_at_once() -> None:
    service, outcomes = CompileService(), Outcomes()
    service.submit(SAXPY, NvrtcOptions(), "compute_80", outcomes.deliver)
    assert outcomes == []
    await outcomes.wait(1)
    service.submit(SAXPY, NvrtcOptions(), "compute_80", outcomes.deliver)
    assert len(outcomes) == 2
    first, second = (result.unwrap() for result in outcomes)
    assert first is second
    assert "saxpy" in first.entries
    service.clear()
    service.submit(SAXPY, NvrtcOptions(), "compute_80", outcomes.deliver)
    assert len(outcomes) == 2
    await outcomes.wait(3)
    assert (service.statistics().hits, service.statistics().misses) == (1, 2)


async def test_the_same_source_with_other_options_is_another_program() -> None:
    service, outcomes = CompileService(), Outcomes()
    source = '__device__ int n = N; extern "C" __global__ void k() {}'
    for count, n in enumerate((1, 2, 1), start=1):
        service.submit(source, NvrtcOptions(defines={"N": n}), "compute_80", outcomes.deliver)
        await outcomes.wait(count)
    service.submit(source, NvrtcOptions(defines={"N": 1}), "compute_90", outcomes.deliver)
    await outcomes.wait(4)
    one, two, again, newer = (result.unwrap() for result in outcomes)
    assert b"n = 1" in one.ptx
    assert b"n = 2" in two.ptx
    assert again is one
    assert newer.target == "compute_90"


async def test_one_compile_serves_everyone_who_asks_for_the_same(gate: Gate) -> None:
    service, outcomes = CompileService(compile_with=gate), Outcomes()
    for _ in range(10):
        service.submit("same", NvrtcOptions(), "compute_80", outcomes.deliver)
    gate.open.set()
    await outcomes.wait(10)
    assert gate.started == ["same"]
    assert len({id(result.unwrap()) for result in outcomes}) == 1
    assert (service.statistics().misses, service.statistics().joined) == (1, 9)


async def test_threads_are_limited_and_the_rest_wait_in_order(gate: Gate) -> None:
    service, outcomes = CompileService(threads=1, compile_with=gate), Outcomes()
    for index in range(5):
        service.submit(str(index), NvrtcOptions(), "compute_80", outcomes.deliver)
    statistics = service.statistics()
    assert (statistics.in_flight, statistics.waiting, statistics.cached) == (1, 4, 0)
    gate.open.set()
    await outcomes.wait(5)
    assert gate.started == ["0", "1", "2", "3", "4"]
    statistics = service.statistics()
    assert (statistics.in_flight, statistics.waiting, statistics.cached) == (0, 0, 5)


async def test_the_limit_is_reached_and_not_passed(gate: Gate) -> None:
    service, outcomes = CompileService(threads=3, compile_with=gate), Outcomes()
    for index in range(7):
        service.submit(str(index), NvrtcOptions(), "compute_80", outcomes.deliver)
    for _ in range(3):
        assert await trio.to_thread.run_sync(gate.entered.acquire, True, 20)
    assert (service.statistics().in_flight, service.statistics().waiting) == (3, 4)
    assert len(gate.started) == 3
    gate.open.set()
    await outcomes.wait(7)


async def test_a_failure_reaches_every_waiter_as_its_own_exception_and_is_not_cached(gate: Gate) -> None:
    service, outcomes = CompileService(compile_with=gate), Outcomes()
    cause = ValueError("the cause")
    gate.error = CompileError("kernel.cu(1): error: no", log="the log")
    gate.error.__cause__ = cause
    for _ in range(3):
        service.submit("bad", NvrtcOptions(), "compute_80", outcomes.deliver)
    gate.open.set()
    await outcomes.wait(3)
    errors = [result.error for result in outcomes if isinstance(result, outcome.Error)]
    assert len({id(error) for error in errors}) == 3
    assert all(isinstance(error, CompileError) and error.log == "the log" for error in errors)
    assert all(error.__cause__ is cause for error in errors)
    gate.error = None
    service.submit("bad", NvrtcOptions(), "compute_80", outcomes.deliver)
    await outcomes.wait(4)
    assert isinstance(outcomes[3], outcome.Value)
    assert gate.started == ["bad", "bad"]


@pytest.mark.parametrize("source", ["?", "a\0", 3, ["x"]])
async def test_bad_input_is_delivered_not_raised(source: str) -> None:
    service, outcomes = CompileService(), Outcomes()
    service.submit(source, NvrtcOptions(), "compute_80", outcomes.deliver)
    await outcomes.wait(1)
    with pytest.raises(DeviceError):
        outcomes[0].unwrap()


async def test_a_bug_in_the_compiler_is_delivered_as_an_internal_error(gate: Gate) -> None:
    service, outcomes = CompileService(compile_with=gate), Outcomes()
    gate.error = ZeroDivisionError()
    gate.open.set()
    service.submit("x", NvrtcOptions(), "compute_80", outcomes.deliver)
    await outcomes.wait(1)
    with pytest.raises(AtomrInternalError) as caught:
        outcomes[0].unwrap()
    assert caught.value.__cause__ is gate.error


async def test_results_are_delivered_in_the_trio_thread(gate: Gate) -> None:
    service, seen, done = CompileService(compile_with=gate), list[int](), trio.Event()
    gate.open.set()

    def deliver(result: outcome.Outcome[CompiledProgram]) -> None:
        seen.append(threading.get_ident())
        done.set()

    service.submit("x", NvrtcOptions(), "compute_80", deliver)
    with trio.fail_after(60):
        await done.wait()
    assert seen == [threading.get_ident()]


async def test_a_receiver_that_fails_harms_nobody_else(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    service, outcomes = CompileService(compile_with=gate), Outcomes()

    def fail(result: outcome.Outcome[CompiledProgram]) -> None:
        raise RuntimeError("receiver")

    service.submit("x", NvrtcOptions(), "compute_80", fail)
    service.submit("x", NvrtcOptions(), "compute_80", outcomes.deliver)
    gate.open.set()
    await outcomes.wait(1)
    assert "a receiver of a compiled program failed" in caplog.text


async def test_a_receiver_may_submit_again(gate: Gate) -> None:
    service, outcomes = CompileService(threads=1, compile_with=gate), Outcomes()
    gate.open.set()

    def again(result: outcome.Outcome[CompiledProgram]) -> None:
        service.submit("second", NvrtcOptions(), "compute_80", outcomes.deliver)

    service.submit("first", NvrtcOptions(), "compute_80", again)
    await outcomes.wait(1)
    assert gate.started == ["first", "second"]


async def test_the_cache_forgets_what_was_used_longest_ago(gate: Gate) -> None:
    service, outcomes = CompileService(capacity=2, compile_with=gate), Outcomes()
    gate.open.set()
    for count, source in enumerate(("a", "b", "a", "c", "a", "b"), start=1):
        service.submit(source, NvrtcOptions(), "compute_80", outcomes.deliver)
        await outcomes.wait(count)
    assert gate.started == ["a", "b", "c", "b"]
    assert service.statistics().cached == 2


def test_a_compile_that_outlives_the_run_is_dropped(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    delivered, threads = list[object](), list[tuple[Callable[..., object], Callable[..., object]]]()
    gate.open.set()

    async def main() -> None:
        service = CompileService(compile_with=gate)
        with monkeypatch.context() as patch:
            patch.setattr(trio.lowlevel, "start_thread_soon", lambda fn, done, name: threads.append((fn, done)))
            service.submit("x", NvrtcOptions(), "compute_80", delivered.append)

    trio.run(main)
    ((compile_, done),) = threads
    done(outcome.capture(compile_))
    assert gate.started == ["x"]
    assert delivered == []


async def test_the_service_starts_when_the_system_has_threads_again(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, outcomes = CompileService(compile_with=gate), Outcomes()
    gate.open.set()

    def none_left(*arguments: object, **named: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(trio.lowlevel, "start_thread_soon", none_left)
        service.submit("x", NvrtcOptions(), "compute_80", outcomes.deliver)
        assert outcomes == []
        await outcomes.wait(1)
    with pytest.raises(AtomrInternalError, match="can't start new thread"):
        outcomes[0].unwrap()
    service.submit("x", NvrtcOptions(), "compute_80", outcomes.deliver)
    await outcomes.wait(2)
    assert isinstance(outcomes[1], outcome.Value)


async def test_an_edited_header_is_seen(tmp_path: Path) -> None:
    service, outcomes = CompileService(), Outcomes()
    source = '#include "value.h"\n__device__ int n = VALUE; extern "C" __global__ void k() {}'
    options = NvrtcOptions(include_paths=[tmp_path])
    for value in (1, 2):
        (tmp_path / "value.h").write_text(f"#define VALUE {value}\n")
        service.submit(source, options, "compute_80", outcomes.deliver)
        await outcomes.wait(value)
        assert f"n = {value}".encode() in outcomes[-1].unwrap().ptx


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        (SAXPY, {}, False),
        (SAXPY, {"include_paths": ["/usr/include"]}, False),
        ("// an include would be #pragma", {}, False),
        ('#include "a.h"', {}, True),
        ("  # /* odd */ include <a.h>", {}, True),
        ("#inc\\\nlude <a.h>", {}, True),
        ("%:include <a.h>", {}, True),
        ("#define A <a.h>\n#include A", {"headers": {"A": ""}}, True),
        ("#if __has_include(<a.h>)\n#endif", {}, True),
        ('#include "a.h"', {"headers": {"a.h": ""}}, False),
        ('#include "a.h"', {"headers": {"a.h": "#include <b.h>"}}, True),
        ('#include "a.h"', {"headers": {"a.h": "#include <b.h>", "b.h": ""}}, False),
        (SAXPY, {"extra_options": ["-w", "--device-int128"]}, False),
        (SAXPY, {"extra_options": ["-I/usr/include"]}, True),
        (SAXPY, {"extra_options": ["-include=a.h"]}, True),
        (SAXPY, {"extra_options": ["--pre-include=a.h"]}, True),
        (SAXPY, {"extra_options": ["--use-bundled-headers=/tmp/x"]}, True),
        (SAXPY, {"extra_options": ["--pch"]}, True),
        (SAXPY, {"extra_options": ["--time=-"]}, True),
    ],
)
def test_only_what_depends_on_no_file_is_cached(source: str, options: dict[str, object], expected: bool) -> None:
    assert depends_on_files(source, NvrtcOptions(**options)) is expected  # type: ignore[arg-type]
