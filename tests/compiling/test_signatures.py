"""The types of kernels' parameters, as the compiler tells them: by the installed NVRTC, and by that of CUDA 12."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

from atomr_trio import CompileError, NvrtcCache, NvrtcOptions
from atomr_trio._compiling.caching import CachingCompiler, Job
from atomr_trio._compiling.compiler import CompiledProgram, compile_program
from atomr_trio._compiling.nvrtc_library import nvrtc_version
from atomr_trio._compiling.parameter_names import kernels_in, parameter_names
from atomr_trio._compiling.probe import probe
from atomr_trio._values.parameters import ParameterKind as K
from atomr_trio._values.signatures import KernelSignature
from support import ROOT
from support.kernel_bench import NO_HEADERS, cuda_headers

TARGET = "compute_90"


def compiled(source: str, compiler: CachingCompiler | None = None, **options: Any) -> CompiledProgram:
    given = NvrtcOptions(arch=TARGET, **options)
    return (compiler or CachingCompiler()).answer(Job(source, given, TARGET)).program


def only(source: str, **options: Any) -> KernelSignature:
    (signature,) = compiled(source, **options).entries.values()
    return signature


DECLARED = """
struct Body { float x, y, z; double mass; };
struct Later;
union Either { int i; float f; };
enum Mode { NEAR, FAR };
enum class Small : unsigned char { ONE };
enum class Signed : short { ONE };
namespace ns { struct Inner { int a; }; namespace { struct Hidden { char c[3]; }; } enum Kind { A = 0xFFFFFFFF }; }
template <class T, int N> struct Vec { T v[N]; struct Part { T t; }; };
typedef unsigned long long u64;
using Real = float;
template <class T> struct Never { static_assert(sizeof(T) == 0, "it is never made"); };
"""

TYPES = {
    "bool a": "bool a",
    "char a": "char a",
    "signed char a": "signed char a",
    "unsigned char a": "unsigned char a",
    "short a": "short a",
    "unsigned short a": "unsigned short a",
    "int a": "int a",
    "unsigned a": "unsigned int a",
    "long a": "long a",
    "unsigned long a": "unsigned long a",
    "long long a": "long long a",
    "u64 a": "unsigned long long a",
    "size_t a": "unsigned long a",
    "float a": "float a",
    "Real a": "float a",
    "double a": "double a",
    "wchar_t a": "wchar_t a",
    "char16_t a": "char16_t a",
    "char32_t a": "char32_t a",
    "const int a": "int a",
    "float *a": "float *a",
    "const float *a": "const float *a",
    "const float *const a": "const float *a",
    "volatile float *a": "volatile float *a",
    "const volatile int *__restrict__ a": "const volatile int *a",
    "float a[]": "float *a",
    "float a[16]": "float *a",
    "float (*a)[16]": "float (*a)[16]",
    "const float (*a)[2][3]": "const float (*a)[2][3]",
    "float **a": "float **a",
    "const float *const *a": "const float *const *a",
    "void *a": "void *a",
    "const void *a": "const void *a",
    "void **a": "void **a",
    "int (*a)(float, const char *)": "int (*a)(float, const char *)",
    "float4 a": "float4 a",
    "float4 *a": "float4 *a",
    "dim3 a": "dim3 a",
    "Body a": "Body a",
    "struct Body *a": "Body *a",
    "Later *a": "Later *a",
    "Either a": "Either a",
    "Mode a": "Mode a",
    "Mode *a": "Mode *a",
    "Small a": "Small a",
    "Signed a": "Signed a",
    "ns::Kind a": "ns::Kind a",
    "ns::Inner a": "ns::Inner a",
    "const ns::Inner *a": "const ns::Inner *a",
    "ns::Hidden *a": "ns::(anonymous namespace)::Hidden *a",
    "Vec<float, 3> a": "Vec<float, 3> a",
    "Vec<Vec<ns::Inner, 2>, 3> *a": "Vec<Vec<ns::Inner, 2>, 3> *a",
    "Vec<const ns::Inner *, 2>::Part *a": "Vec<const ns::Inner *, 2>::Part *a",
    "Never<int> *a": "Never<int> *a",
    "__grid_constant__ const Body a": "Body a",
    "Body a, Body b, const Body *c, ns::Inner *d, ns::Inner *e": (
        "Body a, Body b, const Body *c, ns::Inner *d, ns::Inner *e"
    ),
}
"""Parameters as a source declares them, and as they are shown."""


@pytest.fixture(scope="module")
def together() -> CompiledProgram:
    """All of them in one source, but for the one whose size cannot be asked."""
    kernels = (
        f'extern "C" __global__ void k{at}({each}) {{}}\n' for at, each in enumerate(TYPES) if "Never" not in each
    )
    return compiled(DECLARED + "".join(kernels))


@pytest.mark.parametrize("declared", TYPES)
def test_a_type_is_shown_as_it_was_declared(declared: str, together: CompiledProgram) -> None:
    if "Never" in declared:
        signature = only(f'{DECLARED} extern "C" __global__ void k({declared}) {{}}')
    else:
        at = [each for each in TYPES if "Never" not in each].index(declared)
        signature = list(together.entries.values())[at]
    assert signature.typed
    assert signature.described("k") == f"k({TYPES[declared]})"


ORDINARY = {
    "extern C": ('extern "C" __global__ void k(float *x, int n) { x[n] = 1; }', {}),
    "a block of extern C": ('extern "C" { __global__ void k(float *x, int n) { x[n] = 1; } }', {}),
    "launch bounds": ('extern "C" __global__ void __launch_bounds__(64, 2) k(float *x, int n) { x[n] = 1; }', {}),
    "attributes first": ('extern "C" __launch_bounds__(64) __global__ void k(float *x, int n) { x[n] = 1; }', {}),
    "declared before": (
        'extern "C" __global__ void k(float *, int);\nextern "C" __global__ void k(float *x, int n) { x[n] = 1; }',
        {},
    ),
    "a mangled name": ("__global__ void k(float *x, int n) { x[n] = 1; }", {}),
    "a namespace": ("namespace a { __global__ void k(float *x, int n) { x[n] = 1; } }", {"name_expressions": ["a::k"]}),
    "a template": (
        "template <class T, int N> __global__ void k(T *x, int n) { x[n] = N; }",
        {"name_expressions": ["k< float , 3>"]},
    ),
    "a specialisation": (
        "template <class T> __global__ void k(T *x, int n) {}\n"
        "template <> __global__ void k(float *x, int n) { *x = 1; }",
        {"name_expressions": ["k<float>"]},
    ),
    "a variable beside it": (
        '__device__ int t[4]; extern "C" __global__ void k(float *x, int n) { x[n] = t[n]; }',
        {"name_expressions": ["&t"]},
    ),
    "a macro": ('#define KERNEL(name) extern "C" __global__ void name\nKERNEL(k)(float *x, int n) { x[n] = 1; }', {}),
    "a branch that is not taken": (
        '#if 0\nextern "C" __global__ void gone(int *x) {}\n#endif\n'
        'extern "C" __global__ void k(float *x, int n) { x[n] = 1; }',
        {},
    ),
    "macros of the template's words": (
        '#define T nonsense\n#define template nonsense\nextern "C" __global__ void k(float *x, int n) { x[n] = 1; }',
        {},
    ),
    "a comment at the end": ('extern "C" __global__ void k(float *x, int n) { x[n] = 1; } // the end', {}),
    "CUDA's headers": (
        '#include <cuda_fp16.h>\nextern "C" __global__ void k(float *x, int n) { x[n] = 1; }',
        {"bundled_headers": True},
    ),
    "debug information": ('extern "C" __global__ void k(float *x, int n) { x[n] = 1; }', {"debug": True}),
    "line information": ('extern "C" __global__ void k(float *x, int n) { x[n] = 1; }', {"lineinfo": True}),
    "fast math": ('extern "C" __global__ void k(float *x, int n) { x[n] = 1; }', {"use_fast_math": True}),
    "C++11": ('extern "C" __global__ void k(float *x, int n) { x[n] = 1; }', {"cpp_std": 11}),
    "C++20": ('extern "C" __global__ void k(float *x, int n) { x[n] = 1; }', {"cpp_std": 20}),
    "the compiler's own C++": ('extern "C" __global__ void k(float *x, int n) { x[n] = 1; }', {"cpp_std": None}),
    "precompiled headers": (
        'extern "C" __global__ void k(float *x, int n) { x[n] = 1; }',
        {"extra_options": ["--time=-", "--split-compile=1", "-w"]},
    ),
    "warnings as errors": (
        'extern "C" __global__ void k(float *x, int n) { int unused; x[n] = 1; }',
        {"extra_options": ["--restrict", "-dc"]},
    ),
    "a header in memory": (
        '#include "a.h"\nextern "C" __global__ void k(Real *x, int n) { x[n] = 1; }',
        {"headers": {"a.h": "typedef float Real;"}},
    ),
}
"""Ordinary kernels and options: all must be typed, by every NVRTC that is supported."""


@pytest.mark.parametrize(("source", "options"), ORDINARY.values(), ids=list(ORDINARY))
def test_an_ordinary_kernel_is_typed(source: str, options: dict[str, Any]) -> None:
    if "bundled_headers" in options and cuda_headers() is None:
        pytest.skip(NO_HEADERS)
    signature = only(source, **options)
    assert signature.typed
    assert [each.kind for each in signature.parameters] == [K.POINTER, K.SIGNED]
    assert signature.parameters[0].elements.dtypes == ("float32",)


UNTYPED = {
    "C++03": ('extern "C" __global__ void k(float *x) { *x = 1; }', {"cpp_std": 3}),
    "not wanted": ('extern "C" __global__ void k(float *x) { *x = 1; }', {"signatures": False}),
    "a reference": ('extern "C" __global__ void k(float &x) { x = 1; }', {}),
    "a type without a name": ('typedef struct { int a; } *P;\nextern "C" __global__ void k(P x) { x->a = 1; }', {}),
    "a type of the device alone": ('extern "C" __global__ void k(long double x, float *y) { *y = x; }', {}),
}


@pytest.mark.parametrize(("source", "options"), UNTYPED.values(), ids=list(UNTYPED))
def test_a_kernel_whose_types_cannot_be_had_is_untyped(source: str, options: dict[str, Any]) -> None:
    signature = only(source, **options)
    assert not signature.typed
    assert {each.kind for each in signature.parameters} <= {K.POINTER_OR_INTEGER, K.FLOAT, K.STRUCT}


def test_one_kernel_that_is_overloaded_leaves_the_others_typed() -> None:
    source = """
    __global__ void k(int *x) { *x = 1; }
    extern "C" __global__ void k(float *x) { *x = 2; }
    extern "C" __global__ void other(double *x) { *x = 3; }
    """
    entries = compiled(source).entries
    assert entries["other"].described("other") == "other(double *x)"
    assert entries["_Z1kPi"].described("k") == "k(int *)"
    assert not entries["k"].typed


def test_many_kernels_are_typed_at_once_and_one_that_is_odd_costs_only_itself() -> None:
    kernels = "".join(f'extern "C" __global__ void k{at}(float *x, int n{at}) {{ x[0] = {at}; }}\n' for at in range(60))
    odd = 'extern "C" __global__ void odd(float &x) { x = 1; }'
    entries = compiled(kernels + odd).entries
    assert [name for name, each in entries.items() if not each.typed] == ["odd"]
    assert entries["k59"].described("k59") == "k59(float *x, int n59)"


def test_the_extents_of_types_are_the_compilers() -> None:
    source = DECLARED + 'extern "C" __global__ void k(Body *b, Mode *m, Small s, Signed *n, ns::Kind k, Later *l) {}'
    body, mode, small, signed, kind, later = only(source).parameters
    assert (body.elements.dtypes, body.elements.size, body.elements.alignment) == (("uint8",), 24, 8)
    assert (mode.elements.dtypes, signed.elements.dtypes) == (("int32",), ("int16",))
    assert (small.kind, small.size, kind.kind, kind.size) == (K.UNSIGNED, 1, K.UNSIGNED, 4)
    assert (later.elements.dtypes, later.elements.size) == (("uint8",), 1)


def test_a_class_of_the_programs_own_with_a_name_of_cudas_is_held_by_its_size() -> None:
    source = (
        'namespace own { struct float4 { double d; }; }\nextern "C" __global__ void k(own::float4 *x) { x->d = 1; }'
    )
    (parameter,) = only(source).parameters
    assert parameter.elements.dtypes == ("uint8",)
    assert parameter.elements.size == 8


def test_the_image_and_the_messages_are_those_without_the_probe() -> None:
    source = '#warning look\nextern "C" __global__ void k(float *x) { x[0] = __LINE__; int unused; }'
    ours, plain = compiled(source, lineinfo=True), compile_program(source, NvrtcOptions(lineinfo=True), TARGET)
    assert (ours.ptx, ours.log) == (plain.ptx, plain.log)
    with pytest.raises(CompileError) as failed:
        compiled("syntax error", lineinfo=True)
    with pytest.raises(CompileError) as alone:
        compile_program("syntax error", NvrtcOptions(lineinfo=True), TARGET)
    assert failed.value.log == alone.value.log


def test_what_was_told_comes_back_from_the_disk(tmp_path: Path) -> None:
    source = DECLARED + 'extern "C" __global__ void k(float2 *f, Body b, const int *x, Mode m) { f[0].x = *x; }'
    asked: list[Any] = []

    def counted(*arguments: Any) -> Any:
        asked.append(arguments[3])
        return probe(*arguments)

    answers = []
    for _ in range(2):
        cache = NvrtcCache(tmp_path)
        compiler = CachingCompiler(cache=lambda cache=cache: cache, probe=counted)
        answers.append(compiler.answer(Job(source, NvrtcOptions(arch=TARGET), TARGET)))
    assert asked == [("::k",)]
    assert [each.origin for each in answers] == [None, "disk"]
    assert answers[0].program.entries == answers[1].program.entries
    assert [each.reads for each in answers[1].program.entries["k"].parameters] == [False, False, True, False]


def test_a_probe_that_finds_nothing_or_fails_costs_only_the_types() -> None:
    source = 'extern "C" __global__ void k(float *x) { x[0] = 1; }'
    for told in (lambda *_: {}, lambda *_: probe("not C++", *_[1:]), lambda *_: probe(_[0], _[1], "compute_1", *_[3:])):
        assert (
            not compiled(source, CachingCompiler(cache=lambda: NvrtcCache(max_bytes=0), probe=told)).entries["k"].typed
        )


def test_a_compile_that_is_cancelled_in_its_probe_is_not_kept_without_types(tmp_path: Path) -> None:
    if nvrtc_version() < (12, 8):
        pytest.skip("this NVRTC ends no compile: it goes on, and all of it is kept")
    source, options = 'extern "C" __global__ void k(float *x) { x[0] = 1; }', NvrtcOptions(arch=TARGET)
    job = Job(source, options, TARGET)

    def cut_off(*arguments: Any) -> Any:
        job.cancellation.request()
        return probe(*arguments)

    # The compile is over by then, so what it has made must not count.
    made = compile_program(source, options, TARGET)
    cache = NvrtcCache(tmp_path)
    compiler = CachingCompiler(cache=lambda: cache, compile_with=lambda *_, **__: made, probe=cut_off)
    with pytest.raises(CompileError, match="cancelled"):
        compiler.answer(job)
    assert list(cache.entries()) == []
    assert CachingCompiler(cache=lambda: cache).answer(Job(source, options, TARGET)).program.entries["k"].typed


def test_without_a_thread_the_types_are_asked_for_afterwards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    compiler = CachingCompiler(cache=lambda: NvrtcCache(tmp_path))
    source = "template <class T> __global__ void k(T *x) { *x = 1; }"
    assert compiled(source, compiler, name_expressions=["k<int>"], lto=True).told
    assert compiled('extern "C" __global__ void k(float *x) { *x = 1; }', compiler).entries["k"].typed


SHOWN = {
    "the demo": [ROOT / "atomr_trio" / "_cli" / "demo" / "gray_scott.cu"],
    "the tutorial": [ROOT / "docs" / "tutorial.md"],
    "the guide": sorted((ROOT / "docs" / "guide").glob("*.md")),
    "the front page": [ROOT / "README.md"],
}
_TEXT = re.compile(r'"""(.*?)"""', re.DOTALL)


@pytest.mark.parametrize("where", SHOWN)
def test_the_kernels_that_newcomers_meet_are_typed(where: str) -> None:
    texts = [path.read_text(encoding="utf-8") for path in SHOWN[where]]
    sources = texts if where == "the demo" else [each for text in texts for each in _TEXT.findall(text)]
    count = 0
    for source in sources:
        if "__global__" in source and "#include" not in source and "template" not in source:
            entries = compiled(source).entries
            assert [name for name, each in entries.items() if not each.typed] == []
            count += len(entries)
    print(f"{where}: {count} kernels")
    assert count


# --- names in the text ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "names"),
    [
        ("k(float *x, int n)", ("x", "n")),
        ("k()", ()),
        ("k(void)", ()),
        ("k(float *, int n)", ()),
        ("k(unsigned long)", ()),
        ("k(const Body)", ()),
        ("k(ns::Body)", ()),
        ("k(ns::Body b)", ("b",)),
        ("k(Map<int, float> m, int n = f(1, 2))", ("m", "n")),
        ("k(float (*rows)[16], void (*f)(int), int a[4][4])", ("rows", "f", "a")),
        ("k(const float *__restrict__ x /* in, out */, // more\n int n)", ("x", "n")),
        ("__launch_bounds__(32, MOST(1, 2)) k(int a)", ("a",)),
    ],
)
def test_the_names_of_parameters_are_those_in_the_text(head: str, names: tuple[str, ...]) -> None:
    assert parameter_names(f'extern "C" __global__ void {head} {{}}', "::k") == names


def test_names_that_are_not_clear_are_left_out() -> None:
    assert parameter_names("__global__ void k(int a); __global__ void k(int b) {}", "k") == ()
    assert parameter_names("__global__ void j(int a) {}", "k<int>") == ()
    assert parameter_names("__global__ void k(int a", "k") == ()


def test_the_kernels_of_a_text_are_those_that_c_names() -> None:
    source = """
    extern "C" __global__ void a(int x) {} // extern "C" __global__ void no()
    __global__ void b() {}
    template <class T> __global__ void c() {}
    extern "C" { __global__ void d() {} }
    """
    assert set(kernels_in(source)) >= {"a", "d"}
    assert "c" not in kernels_in(source)
    assert "no" not in kernels_in(source)
