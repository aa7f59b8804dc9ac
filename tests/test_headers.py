"""Which files a compile reads, and that what was cached is used exactly as long as none of them says otherwise.

The compiler is the real one, and files are edited as a user edits them. Only the clock is ours: files that were written
a moment ago are ten seconds old, unless a test is about those that are not.
"""

from __future__ import annotations

import os
import shutil
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
from atomr_trio._compiling.nvrtc_library import nvrtc_version
from atomr_trio._compiling.options import NvrtcOptions
from atomr_trio._errors import CompileError

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
        compiler = CachingCompiler(lambda: NvrtcCache(self.folder / "cache"), self._compile, self.identify)
        return compiler.answer(Job(source, options, "compute_80")).program

    def value(self, source: str, *paths: str, **options: Any) -> int:
        """The number that a program was compiled with."""
        ptx = self.compile(source + KERNEL, *paths, **options).ptx.decode()
        return int(ptx.partition("n = ")[2].partition(";")[0])

    def _compile(self, *arguments: Any, **named: Any) -> CompiledProgram:
        self.compiled += 1
        program: CompiledProgram = self._compile_with(*arguments, **named)
        return program


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


def test_a_header_that_a_macro_names_is_followed(shop: Workshop) -> None:
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


@pytest.mark.parametrize("quote", ["<maybe.h>", '"maybe.h"'])
def test_a_macro_that_hands_a_name_on_to_has_include_is_looked_through(shop: Workshop, quote: str) -> None:
    """libcu++ asks for every header so, by a macro of another header."""
    shop.write(
        "i/ask.h",
        "#ifdef __has_include\n#  define HAS( X ) __has_include( X ) // asks\n#else\n#define HAS(X) 0\n#endif",
    )
    source = f"#include <ask.h>\n#if HAS({quote}) && defined(HAS)\n#define VALUE 1\n#else\n#define VALUE 2\n#endif"
    assert [shop.value(source, "i") for _ in range(2)] == [2, 2]
    assert shop.compiled == 1
    shop.write("i/maybe.h", "")
    assert [shop.value(source, "i") for _ in range(2)] == [1, 1]
    assert shop.compiled == 2


@pytest.mark.parametrize(
    "source",
    [
        "#define A <a.h>\n#if __has_include(A)\n#endif\n#define VALUE 1",
        "#define HAS __has_include\n#if HAS(<a.h>)\n#endif\n#define VALUE 1",
        "#define HAS(x) __has_include(x) && 1\n#if HAS(<a.h>)\n#endif\n#define VALUE 1",
        "#define HAS(x) __has_include(x)\n#define A <a.h>\n#if HAS(A)\n#endif\n#define VALUE 1",
        "#define HAS(x) __has_include(x)\n#define OTHER HAS\n#if OTHER(<a.h>)\n#endif\n#define VALUE 1",
    ],
)
def test_what_cannot_be_known_is_compiled_each_time(
    shop: Workshop, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "atomr_trio.nvrtc")
    shop.write("i/b.h", "")
    assert [shop.value(source, "i") for _ in range(2)] == [1, 1]
    assert shop.compiled == 2
    assert "is not cached: a macro" in caplog.text


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


CORE = '#include <cuda/std/array>\nextern "C" __global__ void k(cuda::std::array<int, 4>* a) { (*a)[0] = 1; }'


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
    shop.write("i/cuda/std/array", "namespace cuda::std { template <class T, int N> struct array {}; }")
    with pytest.raises(CompileError, match="operator"):
        bundled(shop, "i")


# ---------------------------------------------------------------------------------------------------- any headers


NAMES = ("a.h", "b.h", "c.h")
FOLDERS = ("x", "y", "y/z")
LINES = ('#include "{}"', "#include <{}>", "#include <z/{}>", "#define NAME_{1} <{0}>\n#include NAME_{1}", "ASK")


@st.composite
def texts(draw: st.DrawFn, name: str) -> str:
    """A header that says a number of its own, and includes headers whose names come after its own."""
    further = [each for each in NAMES if each > name]
    lines = ["#pragma once"] if draw(st.booleans()) else []
    lines.append(f"SAY({draw(st.integers(0, 3))})")
    for other in further:
        for line in draw(st.lists(st.sampled_from(LINES), max_size=2, unique=True)):
            if line == "ASK":
                lines.append(f"#if __has_include(<{other}>)\nSAY(4)\n#else\nSAY(5)\n#endif")
            else:
                stem = f"{name}{other}".replace(".", "_")
                lines.append(f"#if __has_include(<{other}>)\n{line.format(other, stem)}\n#endif")
    return "\n".join(lines) + "\n"


@st.composite
def edits(draw: st.DrawFn) -> tuple[str, str | None]:
    """A file in one of the folders, and what becomes of it; None deletes it."""
    name = draw(st.sampled_from(NAMES))
    return f"{draw(st.sampled_from(FOLDERS))}/{name}", draw(st.none() | texts(name))


# Each SAY makes a variable, so that the code tells which texts were read, and in which order.
ANY = """
#define JOIN(a, b) a##b
#define NAMED(n) JOIN(v, n)
#define SAY(n) __device__ int NAMED(__COUNTER__) = n;
#if __has_include(<a.h>)
#include <a.h>
#endif
#if __has_include(<b.h>)
#include <b.h>
#endif
extern "C" __global__ void k() {}
"""


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(st.lists(edits(), min_size=3, max_size=3), st.lists(edits(), min_size=1, max_size=5))
def test_the_cache_never_answers_what_the_compiler_would_not(
    tmp_path_factory: pytest.TempPathFactory, first: list[tuple[str, str | None]], then: list[tuple[str, str | None]]
) -> None:
    shop = Workshop(tmp_path_factory.mktemp("headers"))
    for folder in FOLDERS:
        (shop.folder / folder).mkdir(exist_ok=True)
    options = NvrtcOptions(include_paths=[shop.folder / "x", shop.folder / "y"])
    for step in (first, *([edit] for edit in then)):
        for name, text in step:
            path = shop.folder / name
            if text is None:
                path.unlink(missing_ok=True)
            else:
                path.write_text(text)
        assert _result(lambda: shop.compile_with_options(ANY, options)) == _result(
            lambda: compile_program(ANY, options, "compute_80")
        )


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
    return Snapshot(paths, stamps, b"".join(hashes), tuple(path for path, _ in places), bytes(at for _, at in places))


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
