"""Which files a compile reads, and that what was cached is used exactly as long as none of them says otherwise.

The compiler is the real one, and files are edited as a user edits them. Only the clock is ours: files that were written
a moment ago are ten seconds old, unless a test is about those that are not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from atomr_trio._compiling import bundled_headers as _bundled_headers, headers as _headers
from atomr_trio._compiling.bundled_headers import bundled_header_folders
from atomr_trio._compiling.cache import NvrtcCache
from atomr_trio._compiling.caching import CachingCompiler, Job
from atomr_trio._compiling.compiler import CompiledProgram, compile_program
from atomr_trio._compiling.headers import Dependence, Snapshot, dependence, pack, unpack
from atomr_trio._compiling.identity import NvrtcIdentity, installed_nvrtc
from atomr_trio._compiling.listing import Account, Unknowable
from atomr_trio._compiling.nvrtc_library import nvrtc_version
from atomr_trio._compiling.options import NvrtcOptions
from atomr_trio._values.errors import CompileError, LibraryNotFound
from support import SWEEP

SAXPY = 'extern "C" __global__ void saxpy(float a, const float* x, float* y) { y[threadIdx.x] += a * x[threadIdx.x]; }'
KERNEL = '\n__device__ int n = VALUE; extern "C" __global__ void k() {}'


class Clock:
    """The time of day, ahead of the real one."""

    def __init__(self) -> None:
        self.ahead = 10.0
        self._real = time.time_ns

    def __call__(self) -> int:
        return self._real() + int(self.ahead * 1e9)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "time_ns", clock)
    return clock


class Workshop:
    """A folder with headers, and a cache that every compile finds as a new process would."""

    def __init__(self, folder: Path, compile_with: Any = compile_program) -> None:
        self.folder = folder
        self.compiled = 0
        self._compile_with = compile_with
        self.identify: Any = installed_nvrtc
        self._kept_compiler: CachingCompiler | None = None

    def same_process(self) -> Workshop:
        """The same with one compiler that remembers, as a process has it."""
        other = Workshop(self.folder, self._compile_with)
        other._kept_compiler = other._compiler()
        return other

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def compile(self, source: str, *paths: str, **options: Any) -> CompiledProgram:
        return self.compile_with_options(
            source, NvrtcOptions(include_paths=[self.folder / path for path in paths], **options)
        )

    def compile_with_options(self, source: str, options: NvrtcOptions) -> CompiledProgram:
        compiler = self._kept_compiler or self._compiler()
        return compiler.answer(Job(source, options, "compute_80")).program

    def _compiler(self) -> CachingCompiler:
        cache = NvrtcCache(self.folder / "cache")
        return CachingCompiler(lambda: cache, self._compile, self.identify)

    def fresh(self, source: str, *paths: str, **options: Any) -> int:
        """The number that the compiler gives now."""
        given = NvrtcOptions(include_paths=[self.folder / path for path in paths], **options)
        return _number(self._compile_with(source + KERNEL, given, "compute_80"))

    def value(self, source: str, *paths: str, **options: Any) -> int:
        """The number that a program was compiled with."""
        return _number(self.compile(source + KERNEL, *paths, **options))

    def _compile(self, *arguments: Any, **named: Any) -> CompiledProgram:
        self.compiled += 1
        program: CompiledProgram = self._compile_with(*arguments, **named)
        return program


def _number(program: CompiledProgram) -> int:
    return int(program.ptx.decode().partition("n = ")[2].partition(";")[0])


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


# ---------------------------------------------------------------------------------------------------- what counts


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        (SAXPY, {}, Dependence.NOTHING),
        (SAXPY, {"include_paths": ["/usr/include"]}, Dependence.NOTHING),
        ("// an include would be #pragma", {}, Dependence.NOTHING),
        ('#include "a.h"', {}, Dependence.HEADERS),
        ("  # /* odd */ include <a.h>", {}, Dependence.HEADERS),
        ("/* // */ #include/**/<a.h>", {}, Dependence.HEADERS),
        ("#inc\\\nlude <a.h>", {}, Dependence.HEADERS),
        ("#inc??/\nlude <a.h>", {}, Dependence.HEADERS),
        ("%:include <a.h>", {}, Dependence.HEADERS),
        ("?\N{ZERO WIDTH SPACE}?=include <a.h>".replace("\N{ZERO WIDTH SPACE}", ""), {}, Dependence.HEADERS),
        ("#include_next <a.h>", {}, Dependence.HEADERS),
        ("#define A <a.h>\n#include A", {"headers": {"A": ""}}, Dependence.HEADERS),
        ("#if __has_include(<a.h>)\n#endif", {}, Dependence.HEADERS),
        ("#if __has_include(<a.h>)\n#endif", {"headers": {"a.h": ""}}, Dependence.HEADERS),
        ("#define HAS __has_include\n#if HAS(<a.h>)\n#endif", {}, Dependence.HEADERS),
        ('#include "a.h"', {"headers": {"a.h": ""}}, Dependence.NOTHING),
        ('#include "a.h"', {"headers": {"a.h": "#include <b.h>"}}, Dependence.HEADERS),
        ('#include "a.h"', {"headers": {"a.h": "#include <b.h>", "b.h": ""}}, Dependence.NOTHING),
        (SAXPY, {"extra_options": ["-w", "--device-int128"]}, Dependence.NOTHING),
        (SAXPY, {"extra_options": ["--pch"]}, Dependence.UNKNOWN),
        (SAXPY, {"extra_options": ["-I/usr/include"]}, Dependence.UNKNOWN),
        (SAXPY, {"extra_options": ["--pre-include=a.h"]}, Dependence.UNKNOWN),
        (SAXPY, {"extra_options": ["--use-bundled-headers=/tmp"]}, Dependence.UNKNOWN),
        (SAXPY, {"extra_options": ["--time=-"]}, Dependence.UNKNOWN),
    ],
)
def test_what_a_compile_depends_on(source: str, options: dict[str, Any], expected: Dependence) -> None:
    assert dependence(source, NvrtcOptions(**options)) is expected


# ---------------------------------------------------------------------------------------------------- edits


def test_what_reads_headers_is_compiled_once(shop: Workshop) -> None:
    shop.write("i/a.h", '#include "b.h"\n')
    shop.write("i/b.h", "#define VALUE 7\n")
    assert [shop.value("#include <a.h>", "i") for _ in range(3)] == [7, 7, 7]
    assert shop.compiled == 1


ASK = "#if {}\n#define VALUE 1\n#else\n#define VALUE 2\n#endif\n"
SEARCHES: dict[str, tuple[dict[str, str], str, dict[str, Any], Callable[[Path], object]]] = {
    "a macro of another folder": (
        {"i/sub/a.h": ASK.format("HAS")},
        '#define HAS __has_include("x.h")\n#include <sub/a.h>\n',
        {},
        lambda folder: (folder / "i/sub/x.h").write_text(""),
    ),
    "a macro that renames it": (
        {"i/a.h": "#define HAS /**/__has_include\n"},
        "#include <a.h>\n" + ASK.format("HAS(<x.h>)"),
        {},
        lambda folder: (folder / "i/x.h").write_text(""),
    ),
    "pasted tokens": (
        {"i/a.h": "#define JOIN(a, b) a##b\n"},
        "#include <a.h>\n" + ASK.format("JOIN(__has_, include)(<x.h>)"),
        {},
        lambda folder: (folder / "i/x.h").write_text(""),
    ),
    "quotes in comments between pasted tokens": (
        {"i/a.h": "#define JOIN(a, b) a##b\n"},
        "#include <a.h>\n" + ASK.format('JOIN(__has_ /* " */, include /* " */)(<x.h>)'),
        {},
        lambda folder: (folder / "i/x.h").write_text(""),
    ),
    "quotes as characters between pasted tokens": (
        {"i/a.h": "#define JOIN(a, b) a##b\n"},
        "#include <a.h>\n" + ASK.format("'\"' && JOIN(__has_, include)(<x.h>) && '\"'"),
        {},
        lambda folder: (folder / "i/x.h").write_text(""),
    ),
    "comments between the tokens": (
        {"i/a.h": ""},
        ASK.format("__has_include /**/ ( /**/ <x.h> /**/ )"),
        {},
        lambda folder: (folder / "i/x.h").write_text(""),
    ),
    "a condition of two lines": (
        {"i/a.h": ""},
        ASK.format("1 \\\n && __has_include(<x.h>)"),
        {},
        lambda folder: (folder / "i/x.h").write_text(""),
    ),
    "a definition": (
        {"i/a.h": ""},
        ASK.format("HAS(<x.h>)"),
        {"defines": {"HAS": "__has_include"}},
        lambda folder: (folder / "i/x.h").write_text(""),
    ),
    "a wrapper": (
        {"i/a.h": "#define HAS(x) __has_include(x)\n"},
        "#include <a.h>\n" + ASK.format("1 && HAS(<x.h>) // HAS"),
        {},
        lambda folder: (folder / "i/x.h").write_text(""),
    ),
    "a wrapper that is asked beside another file": (
        {"i/a.h": "#define HAS(x) __has_include(x)\n", "i/sub/b.h": ASK.format('HAS("x.h")')},
        "#include <a.h>\n#include <sub/b.h>\n",
        {},
        lambda folder: (folder / "i/sub/x.h").write_text(""),
    ),
    "a wrapper in an #elif": (
        {"i/a.h": ""},
        "#define HAS(x) __has_include(x)\n#if 0\n#elif HAS(<x.h>)\n#define VALUE 1\n#else\n#define VALUE 2\n#endif\n",
        {},
        lambda folder: (folder / "i/x.h").write_text(""),
    ),
    "a macro in what a wrapper is given": (
        {"i/x.h": "", "i/a.h": "#define h hpp\n"},
        "#define HAS(x) __has_include(x)\n#include <a.h>\n" + ASK.format("HAS(<x.h>)"),
        {},
        lambda folder: (folder / "i/x.hpp").write_text(""),
    ),
    "a macro of the options in what a wrapper is given": (
        {"i/x.h": ""},
        "#define HAS(x) __has_include(x)\n" + ASK.format("HAS(<x.h>)"),
        {"extra_options": ["-Dh=hpp"]},
        lambda folder: (folder / "i/x.hpp").write_text(""),
    ),
    "a wrapper that is pasted": (
        {"i/a.h": "#define HAS(x) __has_include(x)\n#define JOIN(a, b) a##b\n"},
        "#include <a.h>\n" + ASK.format("JOIN(HA, S)(<x.h>)"),
        {},
        lambda folder: (folder / "i/x.h").write_text(""),
    ),
    "a wrapper that a macro is given": (
        {"i/a.h": "#define HAS(x) __has_include(x)\n#define CALL(f, x) f(x)\n"},
        "#include <a.h>\n" + ASK.format("CALL(HAS, <x.h>)"),
        {},
        lambda folder: (folder / "i/x.h").write_text(""),
    ),
    "a wrapper after a comment": (
        {"i/a.h": "#define HAS(x) __has_include(x)\n"},
        "#include <a.h>\n" + "/*\n*/ " + ASK.format("HAS(<x.h>)"),
        {},
        lambda folder: (folder / "i/x.h").write_text(""),
    ),
    "a form feed before the mark": (
        {"i/a.h": ""},
        "\f" + ASK.format("__has_include(<x.h>)"),
        {},
        lambda folder: (folder / "i/x.h").write_text(""),
    ),
    "a form feed before an #elif": (
        {"i/a.h": ""},
        "#if 0\n\f#elif __has_include(<x.h>)\n#define VALUE 1\n#else\n#define VALUE 2\n#endif\n",
        {},
        lambda folder: (folder / "i/x.h").write_text(""),
    ),
    "an #elif that was asked": (
        {"i/a.h": ""},
        "#if 0\n#elif __has_include(<x.h>)\n#define VALUE 1\n#else\n#define VALUE 2\n#endif\n",
        {},
        lambda folder: (folder / "i/x.h").write_text(""),
    ),
    "a macro names a guarded file": (
        {"i/sub/g.h": "#ifndef G\n#define G\n#define VALUE 1\n#endif\n", "j/b.h": ""},
        "#include <sub/g.h>\n#define NAME <g.h>\n#include NAME\n",
        {"include_paths": ["j", "i/sub"]},
        lambda folder: (folder / "j/g.h").write_text("#undef VALUE\n#define VALUE 2\n"),
    ),
    "not beside the includer": (
        {"i/sub/a.h": '#include "b.h"\n', "i/sub/b.h": "#define VALUE 1\n", "j/b.h": "#define VALUE 2\n"},
        "#include <sub/a.h>\n",
        {"extra_options": ["--no-source-include"]},
        lambda folder: (folder / "i/b.h").write_text("#define VALUE 3\n"),
    ),
    "a link that becomes a copy": (
        {"i/a.h": "#pragma once\n#ifdef VALUE\n#undef VALUE\n#define VALUE 2\n#else\n#define VALUE 1\n#endif\n"},
        "#include <a.h>\n#include <b.h>\n",
        {},
        lambda folder: shutil.copy2(folder / "i/b.h", folder / "i/c.h").replace(folder / "i/b.h"),
    ),
    "a copy that becomes a link": (
        {
            "i/a.h": "#pragma once\n#ifdef VALUE\n#undef VALUE\n#define VALUE 2\n#else\n#define VALUE 1\n#endif\n",
            "i/c.h": "#pragma once\n#ifdef VALUE\n#undef VALUE\n#define VALUE 2\n#else\n#define VALUE 1\n#endif\n",
        },
        "#include <a.h>\n#include <c.h>\n",
        {},
        lambda folder: ((folder / "i/c.h").unlink(), os.link(folder / "i/a.h", folder / "i/c.h")),
    ),
}


@pytest.mark.parametrize("case", SEARCHES)
def test_whatever_decides_about_a_file_the_next_answer_is_that_of_a_fresh_compile(shop: Workshop, case: str) -> None:
    files, source, options, edit = SEARCHES[case]
    for name, text in files.items():
        shop.write(name, text)
    (shop.folder / "j").mkdir(exist_ok=True)
    if case == "a link that becomes a copy":
        os.link(shop.folder / "i/a.h", shop.folder / "i/b.h")
    paths = options.get("include_paths", ["j"])
    options = {name: value for name, value in options.items() if name != "include_paths"}
    same_process = shop.same_process()
    values = []
    for step in range(2):
        if step:
            edit(shop.folder)
        fresh = shop.fresh(source, "i", *paths, **options)
        cached = [shop.value(source, "i", *paths, **options) for _ in range(2)]
        cached += [same_process.value(source, "i", *paths, **options) for _ in range(2)]
        assert cached == [fresh] * 4
        values.append(fresh)
    assert values[0] != values[1]


@pytest.mark.parametrize("way", ["/", "/../", "bundled"])
def test_an_odd_way_to_a_header_is_a_way(shop: Workshop, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOMR_TRIO_CACHE_DIR", str(shop.folder / "cuda"))
    monkeypatch.setattr(_bundled_headers, "_kept", {})
    here = str(shop.folder).lstrip("/")
    source = f"#include <{here}/i/a.h>\n" if way == "/" else f"#include <../{shop.folder.name}/i/a.h>\n"
    options: dict[str, Any] = {"include_paths": [way if way == "/" else shop.folder]}
    if way == "bundled":
        try:
            folder = bundled_header_folders()[0]
        except LibraryNotFound as problem:
            pytest.skip(str(problem))
        source, options = f"#include <{os.path.relpath(shop.folder, folder)}/i/a.h>\n", {"bundled_headers": True}
    for value in (1, 2):
        shop.write("i/a.h", f"#define VALUE {value}\n")
        for _ in range(2):
            ptx = shop.compile_with_options(source + KERNEL, NvrtcOptions(**options)).ptx
            assert f"n = {value};".encode() in ptx
    assert shop.compiled == 2


UNREADABLE = """
import os, sys
from pathlib import Path
from atomr_trio._compiling import headers
os.seteuid(65534) if os.geteuid() == 0 else None
path = Path(sys.argv[1])
path.write_text("")
path.chmod(0)
print(headers._place(str(path)).name, end=" ")
path.chmod(0o600)
print(headers._place(str(path)).name)
"""


def test_a_file_that_cannot_be_read_is_not_the_file_that_it_becomes() -> None:
    """The compiler goes on where it cannot read, by `#include` and by `__has_include`."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        command = [sys.executable, "-c", UNREADABLE, f"{folder}/a.h"]
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert said.stdout == "UNREADABLE FILE\n"


@pytest.mark.parametrize("name", ["i/a.h", "i/b.h"])
def test_an_edited_header_is_compiled_anew(shop: Workshop, name: str) -> None:
    shop.write("i/a.h", '#include "b.h"\n')
    shop.write("i/b.h", "#define VALUE 1\n")
    assert shop.value("#include <a.h>", "i") == 1
    shop.write(name, "#define VALUE 2\n")
    assert shop.value("#include <a.h>", "i") == 2
    assert shop.compiled == 2


def test_an_edit_that_keeps_size_and_time_is_seen(shop: Workshop) -> None:
    path = shop.write("i/a.h", "#define VALUE 1\n")
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    assert shop.value("#include <a.h>", "i") == 1
    shop.write("i/a.h", "#define VALUE 2\n")
    os.utime(path, ns=times)
    assert shop.value("#include <a.h>", "i") == 2


def test_a_header_that_was_only_touched_is_read_once_more(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shop.write("i/a.h", "#define VALUE 1\n")
    shop.value("#include <a.h>", "i")
    os.utime(path)
    read = list[str]()
    real = _headers._read
    monkeypatch.setattr(_headers, "_read", lambda path: read.append(path) or real(path))
    for _ in range(3):
        assert shop.value("#include <a.h>", "i") == 1
    assert read == [str(path)]
    assert shop.compiled == 1


def test_going_back_and_forth_between_two_states_compiles_each_once(shop: Workshop) -> None:
    values = [1, 2, 1, 2, 1]
    for value in values:
        shop.write("i/a.h", f"#define VALUE {value}\n")
        assert shop.value("#include <a.h>", "i") == value
    assert shop.compiled == 2


def test_a_header_that_vanished_fails_as_it_would_have_without_a_cache(shop: Workshop) -> None:
    path = shop.write("i/a.h", "#define VALUE 1\n")
    shop.value("#include <a.h>", "i")
    path.unlink()
    with pytest.raises(CompileError, match=r"a\.h"):
        shop.value("#include <a.h>", "i")


# ---------------------------------------------------------------------------------------------------- new files


def test_a_header_that_appears_earlier_in_the_order_is_taken(shop: Workshop) -> None:
    shop.write("first/other.h", "")
    shop.write("second/a.h", "#define VALUE 2\n")
    assert shop.value("#include <a.h>", "first", "second") == 2
    shop.write("first/other2.h", "")
    assert shop.value("#include <a.h>", "first", "second") == 2
    assert shop.compiled == 1
    shop.write("first/a.h", "#define VALUE 1\n")
    assert shop.value("#include <a.h>", "first", "second") == 1


def test_a_folder_that_appears_earlier_in_the_order_is_looked_into(shop: Workshop) -> None:
    shop.write("first/other.h", "")
    shop.write("second/sub/deep/a.h", "#define VALUE 2\n")
    assert shop.value("#include <sub/deep/a.h>", "first", "second") == 2
    shop.write("first/sub/deep/a.h", "#define VALUE 1\n")
    assert shop.value("#include <sub/deep/a.h>", "first", "second") == 1


def test_a_new_neighbour_of_the_including_header_is_taken(shop: Workshop) -> None:
    shop.write("i/sub/a.h", '#include "b.h"\n')
    shop.write("i/b.h", "#define VALUE 2\n")
    assert shop.value("#include <sub/a.h>", "i") == 2
    shop.write("i/sub/b.h", "#define VALUE 1\n")
    assert shop.value("#include <sub/a.h>", "i") == 1


def test_a_file_that_is_asked_for_and_not_read_counts(shop: Workshop) -> None:
    source = "#if __has_include(<maybe.h>)\n#define VALUE 1\n#else\n#define VALUE 2\n#endif"
    shop.write("i/other.h", "")
    assert shop.value(source, "i") == 2
    path = shop.write("i/maybe.h", "never read")
    assert shop.value(source, "i") == 1
    path.unlink()
    assert shop.value(source, "i") == 2
    assert shop.compiled == 2


def test_include_next_goes_on_where_it_was(shop: Workshop) -> None:
    shop.write("first/a.h", "#include_next <a.h>\n")
    shop.write("second/other.h", "")
    shop.write("third/a.h", "#define VALUE 3\n")
    assert shop.value("#include <a.h>", "first", "second", "third") == 3
    shop.write("second/a.h", "#define VALUE 2\n")
    assert shop.value("#include <a.h>", "first", "second", "third") == 2


def test_a_header_that_a_macro_names_is_followed(shop: Workshop, clock: Clock) -> None:
    clock.ahead = 100.0  # what is not looked at before the compile has to be older than a minute
    source = "#define PLACE(x) <x/a.h>\n#include PLACE(sub)"
    shop.write("first/other.h", "")
    shop.write("second/sub/a.h", "#define VALUE 2\n")
    assert [shop.value(source, "first", "second") for _ in range(2)] == [2, 2]
    assert shop.compiled == 1
    shop.write("second/sub/a.h", "#define VALUE 3\n")
    assert shop.value(source, "first", "second") == 3
    shop.write("first/sub/a.h", "#define VALUE 1\n")
    assert shop.value(source, "first", "second") == 1


def test_a_second_name_of_a_guarded_header_counts(shop: Workshop) -> None:
    """The front end knows the file, and does not say that it was named once more."""
    shop.write("i/sub/g.h", "#ifndef G\n#define G\n#define VALUE 1\n#endif\n")
    shop.write("first/other.h", "")
    source = "#include <sub/g.h>\n#include <g.h>"
    assert shop.value(source, "i", "first", "i/sub") == 1
    shop.write("first/g.h", "#undef VALUE\n#define VALUE 2\n")
    assert shop.value(source, "i", "first", "i/sub") == 2


def test_a_header_in_memory_hides_the_disk_and_counts_by_its_text(shop: Workshop) -> None:
    shop.write("i/a.h", "#define VALUE 1\n")
    shop.write("i/b.h", "#include <a.h>\n")
    for value in (5, 6, 5):
        assert shop.value("#include <b.h>", "i", headers={"a.h": f"#define VALUE {value}\n"}) == value
    assert shop.compiled == 2
    shop.write("i/a.h", "#error never read\n")
    assert shop.value("#include <b.h>", "i", headers={"a.h": "#define VALUE 5\n"}) == 5
    assert shop.compiled == 2


def test_odd_names_are_followed(shop: Workshop) -> None:
    for name in ('q"uote.h', "back\\slash.h", "é.h", "s p.h"):
        shop.write(f"i/{name}", "#define VALUE 1\n")
        assert shop.value(f"#include <{name}>", "i") == 1
        shop.write(f"i/{name}", "#define VALUE 2\n")
        assert shop.value(f"#include <{name}>", "i") == 2


# ---------------------------------------------------------------------------------------------------- what is not kept


def test_a_file_that_changes_while_it_is_compiled_is_not_trusted(shop: Workshop, clock: Clock) -> None:
    shop.write("i/a.h", "#define VALUE 1\n")
    clock.ahead = -10
    assert [shop.value("#include <a.h>", "i") for _ in range(2)] == [1, 1]
    assert shop.compiled == 2
    clock.ahead = 10
    assert [shop.value("#include <a.h>", "i") for _ in range(2)] == [1, 1]
    assert shop.compiled == 3


SUM = """
#include <a.h>
#include <b.h>
#if __has_include(<x.h>)
#define X 10
#else
#define X 0
#endif
#if __has_include(<y.h>)
#define Y 20
#else
#define Y 0
#endif
#define VALUE (A + B + X + Y)
"""
MEANWHILE: dict[str, tuple[str, str | None, bool]] = {
    "a header that is edited": ("i/a.h", "#define A 2\n", False),
    "a header that hides another": ("i/b.h", "#define B 80\n", False),
    "a file that appears": ("i/x.h", "", False),
    "a file that vanishes": ("i/y.h", None, False),
    "a file that is there while it is asked for": ("i/x.h", "", True),
    "a header that is another while it is read": ("i/a.h", "#define A 2\n", True),
}


@pytest.mark.parametrize("case", MEANWHILE)
def test_what_changes_while_nvrtc_compiles_counts_whatever_its_time_says(tmp_path: Path, case: str) -> None:
    """The clock of the files is ten seconds behind ours, as that of a file server may be."""
    name, text, for_a_moment = MEANWHILE[case]
    path = tmp_path / name

    def edit(text: str | None) -> None:
        path.unlink(missing_ok=True) if text is None else path.write_text(text)

    def edited_meanwhile(*arguments: Any, **named: Any) -> CompiledProgram:
        if shop.compiled > 1:
            return compile_program(*arguments, **named)
        old = path.read_text() if path.exists() else None
        if for_a_moment:
            edit(text)
        program = compile_program(*arguments, **named)
        edit(old if for_a_moment else text)
        return program

    shop = Workshop(tmp_path, edited_meanwhile)
    for file, content in (("i/a.h", "#define A 1\n"), ("j/b.h", "#define B 40\n"), ("i/y.h", "")):
        shop.write(file, content)
    shop.value(SUM, "i", "j")
    cached = shop.value(SUM, "i", "j")
    assert (shop.compiled, cached) == (2, shop.fresh(SUM, "i", "j"))


def test_a_young_file_is_read_again_until_it_is_older(
    shop: Workshop, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.write("i/a.h", "#define VALUE 1\n")
    clock.ahead = 1
    shop.value("#include <a.h>", "i")
    read = list[str]()
    real = _headers._read
    monkeypatch.setattr(_headers, "_read", lambda path: read.append(path) or real(path))
    reads = []
    for clock.ahead in (1, 1, 10, 10):
        read.clear()
        assert shop.value("#include <a.h>", "i") == 1
        reads.append(len(read))
    assert reads == [1, 1, 1, 0]
    assert shop.compiled == 1


@pytest.mark.parametrize(
    "source",
    [
        "#define A <a.h>\n#if __has_include(A)\n#endif\n#define VALUE 1",
        "#define HAS __has_include\n#if HAS(<a.h>)\n#endif\n#define VALUE 1",
        "#define HAS(x) __has_include(x) && 1\n#if HAS(<a.h>)\n#endif\n#define VALUE 1",
        "#define HAS(x) __has_include(x)\n#define A <a.h>\n#if HAS(A)\n#endif\n#define VALUE 1",
        "#define HAS(x) __has_include(x)\n#define OTHER HAS\n#if OTHER(<a.h>)\n#endif\n#define VALUE 1",
        "#define HAS(x) __has_include(x)\n#define h x\n#if HAS(<a.h>)\n#endif\n#define VALUE 1",
        "#define HAS(x) __has_include(x)\n#if HAS(<__a.h>)\n#endif\n#define VALUE 1",
        "#define HAS(x) __has_include(x)\n#if HAS( <a.h >)\n#endif\n#define VALUE 1",
        "#define HAS(x) __has_include(x)\n#define JOIN(a, b) a##b\n#if JOIN(HA, S)(<a.h>)\n#endif\n#define VALUE 1",
        "#define HAS(x) __has_include(x)\n#define CALL(f, x) f(x)\n#if CALL(HAS, <a.h>)\n#endif\n#define VALUE 1",
        "#define HAS(x, y) __has_include(x)\n#if HAS(<a.h>, 1)\n#endif\n#define VALUE 1",
        "#if __has_include /**/ (<a.h>)\n#endif\n#define VALUE 1",
        "#if __has_include( /**/ <a.h>)\n#endif\n#define VALUE 1",
        "#if /*\n*/ __has_include(<a.h>)\n#endif\n#define VALUE 1",
        "#define A <b.h>\n#include_next A\n#define VALUE 1",
        "#define A(x) __has_##x\n#if A(include)(<a.h>)\n#endif\n#define VALUE 1",
        "#define A(x, y) x##y\n#if A(__has_, include)(<a.h>)\n#endif\n#define VALUE 1",
        "#define TIME sizeof(__TIME__)\n#include <b.h>\n#define VALUE 1",
    ],
)
def test_what_cannot_be_known_is_compiled_each_time(
    shop: Workshop, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "atomr_trio.nvrtc")
    shop.write("i/b.h", "")
    assert [shop.value(source, "i") for _ in range(2)] == [1, 1]
    assert shop.compiled == 2
    assert ("is not cached: " in caplog.text) == (dependence(source, NvrtcOptions()) is Dependence.HEADERS)


OWN = """L 1 "k.cu"
N#include <own.h>
L 1 "/own/own.h" 1
N#define HAS(X) __has_include(X)
N#if HAS(<own.h>)
X#if 1
N#endif
L 2 "k.cu" 2
"""
"""What a front end lists for a header of CUDA 13.0 that tests for another one."""


@pytest.mark.parametrize(
    ("program", "macros", "asked"),
    [
        ("Nint x;", (), {("/own/own.h", "own.h")}),
        ("N#if HAS(<a.h>)\nX#if 0\nN#endif", (), {("/own/own.h", "own.h"), ("k.cu", "a.h")}),
        ("N#define own mine", (), None),
        ("N#define NEW HAS", (), None),
        ("N#define A(x, y) x##y\nN#if A(HA, S)(<a.h>)\nN#endif", (), None),
        ("Nint x;", ("own mine",), None),
        ("Nint x;", ("NEW HAS",), None),
    ],
)
def test_what_a_macro_of_cudas_own_headers_is_asked(
    program: str, macros: tuple[str, ...], asked: set[tuple[str, str]] | None
) -> None:
    listing = f"{OWN}{program}\n".encode()
    if asked is None:
        with pytest.raises(Unknowable, match="__has_include"):
            Account.of(listing, lambda name: name.startswith("/own/"), macros)
        return
    account = Account.of(listing, lambda name: name.startswith("/own/"), macros)
    assert {(file, include.name) for file, include in account.probes} == asked


@pytest.mark.parametrize(
    "use",
    [
        "#if HAS(<a.h>) && defined(HAS)\n#endif",
        '#ifdef HAS // HAS\n#if HAS( "sub/a-b.h" ) || HAS(<../c>)\n#endif\n#endif /* HAS */',
        "/* HAS */\n/*\n * HAS */\n#undef HAS",
        "#if 0\n#elif HAS(<a.h>)\n#endif",
        "#if HAS(<12>)\n#endif",
        "#define J(a, b) a##b\n#define K(H, A, S) H\n#if HAS(<a.h>) && !J(HA, T)\n#endif",
    ],
)
def test_a_macro_that_hands_a_name_to_has_include_is_understood(shop: Workshop, use: str) -> None:
    """As the headers of CUDA 12.9 and 13.0 have it."""
    shop.write(
        "i/b.h", "#ifdef __has_include\n#  define HAS(X) __has_include(X) // HAS\n#else\n#  define HAS(X) 0\n#endif"
    )
    source = f"#include <b.h>\n{use}\n#define VALUE 1"
    assert [shop.value(source, "i") for _ in range(2)] == [1, 1]
    assert shop.compiled == 1


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("#if HAS(<a.h>)\n#endif\n#define VALUE 1", {"defines": {"HAS(x)": "__has_include(x)"}}),
        ("#if HAS\n#endif\n#define VALUE 1", {"defines": {"HAS": "__has_include(<a.h>)"}}),
        ("#if HAS(<a.h>)\n#endif\n#define VALUE 1", {"extra_options": ["-DHAS(x)=__has_include(x)"]}),
        ("#if HAS(<a.h>)\n#endif\n#define VALUE 1", {"extra_options": ["-D", "HAS=__has_include"]}),
        ("#define VALUE (sizeof(__DATE__) > 1)", {}),
        ("#define J(x, y) x##y\n#define VALUE (sizeof(J(__TI, ME__)) > 1)", {}),
        ("#define VALUE (sizeof(NOW) > 1)", {"defines": {"NOW": "__TIME__"}}),
    ],
)
def test_what_the_listing_need_not_be_asked_for_is_compiled_each_time(
    shop: Workshop, source: str, options: dict[str, Any]
) -> None:
    shop.write("i/b.h", "")
    assert [shop.value(source, "i", **options) for _ in range(2)] == [1, 1]
    assert shop.compiled == 2


def test_an_nvrtc_that_tells_nothing_compiles_each_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def silent(*arguments: Any, extra_flags: tuple[str, ...] = (), **named: Any) -> CompiledProgram:
        return compile_program(*arguments, **named)

    caplog.set_level("INFO", "atomr_trio.nvrtc")
    shop = Workshop(tmp_path, silent)
    shop.write("i/a.h", "#define VALUE 1\n")
    assert [shop.value("#include <a.h>", "i") for _ in range(2)] == [1, 1]
    assert shop.compiled == 2
    assert "does not tell which files it reads" in caplog.text


def test_an_nvrtc_that_refuses_to_tell_compiles_without_being_asked(tmp_path: Path) -> None:
    def stubborn(*arguments: Any, extra_flags: tuple[str, ...] = (), **named: Any) -> CompiledProgram:
        if extra_flags:
            raise CompileError("no", log=f"nvrtc: error: unrecognized option {extra_flags[0]} found")
        return compile_program(*arguments, **named)

    shop = Workshop(tmp_path, stubborn)
    shop.write("i/a.h", "#define VALUE 1\n")
    assert shop.value("#include <a.h>", "i") == 1
    assert shop.compiled == 2


def test_a_source_that_does_not_compile_is_compiled_once_per_request(shop: Workshop) -> None:
    shop.write("i/a.h", "#error no\n")
    with pytest.raises(CompileError, match="#error"):
        shop.value("#include <a.h>", "i")
    assert shop.compiled == 1


# ---------------------------------------------------------------------------------------------------- real headers


@pytest.mark.long
def test_the_headers_of_a_library_are_all_found(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOMR_TRIO_CACHE_DIR", str(shop.folder / "cuda"))
    source = '#include <cuda/std/array>\nextern "C" __global__ void k(cuda::std::array<int, 4>* a) { (*a)[0] = 1; }'
    snapshots = list[Snapshot]()
    take: Callable[..., Snapshot] = _headers.take_snapshot
    monkeypatch.setattr(_headers, "take_snapshot", lambda *given: snapshots.append(take(*given)) or snapshots[-1])
    folders = bundled_header_folders()
    for name, folder in (("a", folders[0]), ("b", folders[1])):
        shutil.copytree(folder, shop.folder / name)
    for _ in range(2):
        shop.compile_with_options(source, NvrtcOptions(include_paths=[shop.folder / "a", shop.folder / "b"]))
    assert shop.compiled == 1
    (snapshot,) = snapshots
    assert len(snapshot.paths) > 100
    assert any(path.endswith("/cuda/std/array") for path in snapshot.paths)
    assert len(snapshot.places) < len(snapshot.paths)


CORE = '#include <cuda/std/version>\nextern "C" __global__ void k(int* a) { *a = CCCL_VERSION; }'


def bundled(shop: Workshop, *paths: str) -> CompiledProgram:
    options = NvrtcOptions(include_paths=[shop.folder / path for path in paths], bundled_headers=True)
    return shop.compile_with_options(CORE, options)


@pytest.fixture
def kept(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> list[Snapshot]:
    """CUDA's own headers beside the cache of the test, and the snapshots that are taken."""
    monkeypatch.setenv("ATOMR_TRIO_CACHE_DIR", str(shop.folder / "cuda"))
    monkeypatch.setattr(_bundled_headers, "_kept", {})
    snapshots = list[Snapshot]()
    take: Callable[..., Snapshot] = _headers.take_snapshot
    monkeypatch.setattr(_headers, "take_snapshot", lambda *given: snapshots.append(take(*given)) or snapshots[-1])
    return snapshots


def test_the_headers_of_cuda_are_known_by_the_name_of_their_set(shop: Workshop, kept: list[Snapshot]) -> None:
    """Also at once after they were unpacked: nobody else writes there."""
    for _ in range(2):
        bundled(shop)
    assert shop.compiled == 1
    assert (kept[0].paths, kept[0].places) == ((), ())


@pytest.mark.usefixtures("kept")
def test_another_set_of_the_headers_of_cuda_makes_another_key(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("headers-one", "headers-another"):
        identity = NvrtcIdentity(nvrtc_version(), "the same build", name)
        monkeypatch.setattr(shop, "identify", lambda cache, identity=identity, **asked: identity)
        bundled(shop)
    assert shop.compiled == 2


@pytest.mark.usefixtures("kept")
def test_a_header_that_hides_one_of_cuda_is_noticed(shop: Workshop) -> None:
    (shop.folder / "i").mkdir()
    for _ in range(2):
        bundled(shop, "i")
    assert shop.compiled == 1
    shop.write("i/cuda/std/version", "")
    with pytest.raises(CompileError, match="CCCL_VERSION"):
        bundled(shop, "i")


# ---------------------------------------------------------------------------------------------------- any headers


NAMES = ("a.h", "b.h", "c.h")
FOLDERS = ("x", "y", "y/z")
LINES = (
    *('#include "{}"', "#include <{}>", "#include <z/{}>", "#include_next <{}>"),
    "#define NAME_{1} <{0}>\n#include NAME_{1}",
    "  # /* odd */ include /* */ <{}> // c",
    "#inc\\\nlude <{}>",
    "%:include <{}>",
)
ASKED = (
    *("__has_include(<{}>)", '__has_include("{}")', "__has_include( <z/{}> )", "1 \\\n && __has_include(<{}>)"),
    *("__has_include /**/ (<{}>)", "HAS(<{}>)", 'HAS("{}")', "HAS(<z/{}>)", "JOIN(__has_, include)(<{}>)", "HAS_{1}"),
    "defined(__has_include) && __has_include(<{}>) // __has_include",
)


@st.composite
def texts(draw: st.DrawFn, name: str) -> str:
    """A header that says a number of its own, and includes headers whose names come after its own."""
    lines = ["#pragma once"] if draw(st.booleans()) else []
    lines.append(f"{draw(st.integers(10, 13))},")
    for other in (each for each in NAMES if each > name):
        stem = f"{name}{other}".replace(".", "_")
        chosen = draw(st.lists(st.sampled_from(LINES), max_size=2, unique=True))
        lines += [f"#if __has_include(<{other}>)\n{line.format(other, stem)}\n#endif" for line in chosen]
        for asked in draw(st.lists(st.sampled_from(ASKED), max_size=1)):
            where = draw(st.sampled_from(("#if {}", "#if 0\n#elif {}")))
            lines.append(f"{where.format(asked.format(other, other[0]))}\n14,\n#else\n15,\n#endif")
    return "\n".join(lines) + "\n"


@st.composite
def edits(draw: st.DrawFn) -> tuple[str, str | None]:
    """A file in one of the folders, and what becomes of it; None deletes it."""
    name = draw(st.sampled_from(NAMES))
    return f"{draw(st.sampled_from(FOLDERS))}/{name}", draw(st.none() | texts(name))


# The numbers tell which texts were read, and in which order.
ANY = """
#define JOIN(a, b) a##b
#define HAS(x) __has_include(x)
#define HAS_b __has_include("b.h")
#define HAS_c HAS(<z/c.h>)
__device__ int n[] = { 1,
#if __has_include(<a.h>)
#include <a.h>
#endif
2,
#if __has_include(<b.h>)
#include <b.h>
#endif
3 };
extern "C" __global__ void k() {}
"""
PLAIN = "".join(
    line for line in ANY.splitlines(keepends=True) if not line.startswith("#define HAS") and "JOIN" not in line
)
"""The same without what makes each compile of it one that is not kept."""
WRAPPED = "#define HAS(x) __has_include(x)\n" + PLAIN
REPLACED = "#define z y\n" + WRAPPED


@hypothesis.settings(max_examples=200 if SWEEP else 16)
@hypothesis.given(
    st.sampled_from((ANY, PLAIN, WRAPPED, REPLACED)),
    st.lists(edits(), min_size=3, max_size=3),
    st.lists(edits(), min_size=1, max_size=5),
    st.sampled_from(((), ("--no-source-include",))),
)
@pytest.mark.long
def test_the_cache_never_answers_what_the_compiler_would_not(
    tmp_path_factory: pytest.TempPathFactory,
    source: str,
    first: list[tuple[str, str | None]],
    then: list[tuple[str, str | None]],
    extra: tuple[str, ...],
) -> None:
    """Neither to a new process nor to one that has asked before."""
    shop = Workshop(tmp_path_factory.mktemp("headers"))
    for folder in FOLDERS:
        (shop.folder / folder).mkdir(exist_ok=True)
    same_process = shop.same_process()
    options = NvrtcOptions(include_paths=[shop.folder / "x", shop.folder / "y"], extra_options=extra)
    for step in (first, *([edit] for edit in then)):
        for name, text in step:
            path = shop.folder / name
            if text is None:
                path.unlink(missing_ok=True)
            else:
                path.write_text(text)
        fresh = _result(lambda: compile_program(source, options, "compute_80"))
        for other in (shop, same_process):
            answer = other.compile_with_options
            assert _result(lambda answer=answer: answer(source, options)) == fresh  # type: ignore[misc]


def _result(compile_it: Callable[[], CompiledProgram]) -> bytes | str:
    try:
        return compile_it().ptx
    except CompileError as error:
        return error.log


# ---------------------------------------------------------------------------------------------------- records

_PATHS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1)
_STAMPS = st.tuples(*[st.integers(0, 2**63)] * 5)
_FILES = st.lists(st.tuples(_PATHS, _STAMPS, st.binary(min_size=32, max_size=32)))
_PLACES = st.lists(st.tuples(_PATHS, st.sampled_from(_headers._Place)))


def _snapshot(files: list[tuple[str, _headers._Stamp, bytes]], places: list[tuple[str, int]]) -> Snapshot:
    paths, stamps, hashes = zip(*files, strict=True) if files else ((), (), ())
    twins = tuple(index // 2 for index in range(len(paths)))
    empty = tuple(path for path, _ in places)
    return Snapshot(paths, stamps, b"".join(hashes), twins, empty, bytes(at for _, at in places))


SNAPSHOTS = st.builds(_snapshot, _FILES, _PLACES)


@hypothesis.given(st.lists(SNAPSHOTS))
def test_a_record_holds_what_it_was_made_of(snapshots: list[Snapshot]) -> None:
    assert unpack(pack(snapshots)) == tuple(snapshots)


@hypothesis.given(SNAPSHOTS, st.data())
def test_a_record_that_is_cut_off_is_refused(snapshot: Snapshot, data: st.DataObject) -> None:
    content = pack([snapshot])
    with pytest.raises(ValueError, match="record of headers"):
        unpack(content[: data.draw(st.integers(1, len(content) - 1))])


def test_a_record_that_is_not_one_is_passed_over(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.write("i/a.h", "#define VALUE 1\n")
    monkeypatch.setattr(NvrtcCache, "get_manifest", lambda self, digest: b"something else")
    assert shop.value("#include <a.h>", "i") == 1
