"""The cache of compiled kernels: what its keys tell apart, that what comes out went in, and who may share it."""

from __future__ import annotations

import json
import logging
import os
import pwd
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
import platformdirs
import pytest
from hypothesis import given, settings, strategies as st

import support
from atomr_trio import InvalidArgument, NvrtcCache, NvrtcCacheKey, NvrtcOptions
from atomr_trio._compiling import cache as _nvrtc_cache, cache_folder
from atomr_trio._compiling.compiler import CompiledProgram, compile_program
from atomr_trio._values.parameters import ParameterKind
from atomr_trio._values.signatures import KernelSignature, parse_signatures
from support import set_constant

PTX = """
.visible .entry _Z5scaleIfEvPT_S0_(
    .param .u64 .ptr .global .align 1 _Z5scaleIfEvPT_S0__param_0,
    .param .f32 _Z5scaleIfEvPT_S0__param_1,
    .param .align 4 .b8 _Z5scaleIfEvPT_S0__param_2[12]
)
{ ret; }
"""


def program_of(**fields: Any) -> CompiledProgram:
    """A program such as a compile gives."""
    every = {
        "ptx": PTX.encode(),
        "cubin": b"\x7fELF\0machine code",
        "ltoir": None,
        "lowered_names": MappingProxyType({"scale<float>": "_Z5scaleIfEvPT_S0_"}),
        "entries": MappingProxyType(parse_signatures(PTX)),
        "log": "kernel.cu(1): warning\n",
        "target": "sm_90",
        "nvrtc_version": (13, 5),
    }
    return CompiledProgram(**{**every, **fields})


def contents(program: CompiledProgram) -> dict[str, Any]:
    return {**attrs.asdict(program, recurse=False), "_ptx": program.ptx}


def key_of(number: int) -> NvrtcCacheKey:
    return NvrtcCacheKey(number.to_bytes(32, "big"))


KEY = key_of(1)
PROGRAM = program_of()


@pytest.fixture
def cache(tmp_path):
    return NvrtcCache(tmp_path / "cache")


@pytest.fixture
def warnings(caplog, monkeypatch):
    """The texts of the warnings so far, as a function, in a process that has warned of nothing yet."""
    monkeypatch.setattr(cache_folder, "_warned", set())
    caplog.set_level(logging.WARNING, "atomr_trio.nvrtc")
    return lambda: [record.getMessage() for record in caplog.records]


def again(cache: NvrtcCache) -> NvrtcCache:
    """What another process sees."""
    return NvrtcCache(cache.directory, max_bytes=cache.max_bytes)


def file_of(cache: NvrtcCache, key: NvrtcCacheKey = KEY):
    assert cache.directory is not None
    return cache.directory / f"{key}.kernel"


# -- keys --------------------------------------------------------------------------------------------------------------

COMPILE: dict[str, Any] = {
    "source": "text",
    "options": NvrtcOptions(defines={"N": "1"}),
    "target": "sm_90",
    "nvrtc_version": (13, 5),
    "nvrtc_build": "abc",
    "headers": (("a.h", b"1" * 32), ("b.h", b"2" * 32)),
}

CHANGES: list[dict[str, Any]] = [
    {},
    {"source": "text "},
    {"options": NvrtcOptions(defines={"N": "2"})},
    {"options": NvrtcOptions(defines={"N": "1"}, name_expressions=["f<1>", "f<2>"])},
    {"options": NvrtcOptions(defines={"N": "1"}, name_expressions=["f<2>", "f<1>"])},
    {"options": NvrtcOptions(defines={"N": "1"}, name_expressions=["f<1>,f<2>"])},
    {"options": NvrtcOptions(defines={"N": "1"}, headers={"c.h": "text"})},
    {"options": NvrtcOptions(defines={"N": "1"}, headers={"c.h": "text2"})},
    {"options": NvrtcOptions(defines={"N": "1"}, include_paths=["/a", "/b"])},
    {"options": NvrtcOptions(defines={"N": "1"}, include_paths=["/b", "/a"])},
    {"options": NvrtcOptions(defines={"N": "1"}, fmad=True)},
    {"options": NvrtcOptions(defines={"N": "1"}, fmad=False)},
    {"options": NvrtcOptions(defines={"N": "1"}, extra_options=["--display-error-number", "-w"])},
    {"options": NvrtcOptions(defines={"N": "1"}, extra_options=["-w", "--display-error-number"])},
    {"target": "compute_90"},
    {"target": "sm_90a"},
    {"nvrtc_version": (13, 3)},
    {"nvrtc_version": (1, 35)},
    {"nvrtc_build": "abd"},
    {"headers": (("a.h", b"1" * 32), ("b.h", b"3" * 32))},
    {"headers": (("a.h", b"1" * 32),)},
    {"headers": (("b.h", b"1" * 32), ("a.h", b"2" * 32))},
    {"headers": ()},
]


def test_everything_that_decides_the_result_makes_another_key():
    keys = [NvrtcCacheKey.of(**{**COMPILE, **change}) for change in CHANGES]
    assert len({key.digest for key in keys}) == len(CHANGES)
    assert {len(key.digest) for key in keys} == {32}


def test_the_same_compile_has_the_same_key_in_every_process():
    code = (
        "from atomr_trio import NvrtcCacheKey, NvrtcOptions\n"
        "options = NvrtcOptions(defines={'B': '2', 'A': '1'}, headers={'y': '', 'x': ''})\n"
        "print(NvrtcCacheKey.of('text', options, 'sm_90', (13, 5), 'abc'))"
    )
    here = NvrtcCacheKey.of(
        "text", NvrtcOptions(defines={"A": "1", "B": "2"}, headers={"x": "", "y": ""}), "sm_90", (13, 5), "abc"
    )
    assert [child(code, PYTHONHASHSEED=seed).strip() for seed in ("1", "2")] == [str(here)] * 2


def test_another_format_has_other_keys(monkeypatch):
    before = NvrtcCacheKey.of(**COMPILE)
    set_constant(monkeypatch, _nvrtc_cache, "_FORMAT", _nvrtc_cache._FORMAT + 1)
    assert NvrtcCacheKey.of(**COMPILE) != before


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.text('\ud83d\ude00\udc80"\\,', max_size=5),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=10,
)


@given(values, values)
@settings(max_examples=300 if support.SWEEP else 120)
def test_no_two_values_share_their_bytes(first, second):
    same = _nvrtc_cache._as_bytes([first]) == _nvrtc_cache._as_bytes([second])
    assert same == (repr(first) == repr(second))


@given(st.text(max_size=6), st.text(max_size=6), st.integers(0, 6))
def test_neighbours_cannot_lend_each_other_characters(first, second, cut):
    joined = first + second
    other = [joined[:cut], joined[cut:]]
    same = _nvrtc_cache._as_bytes([first, second]) == _nvrtc_cache._as_bytes(other)
    assert same == ([first, second] == other)


def test_two_halves_of_a_character_are_not_that_character():
    halves, whole = "\ud83d\ude00", "\U0001f600"
    assert _nvrtc_cache._as_bytes([halves]) != _nvrtc_cache._as_bytes([whole])


@pytest.mark.parametrize("target", [{1, 2}, ParameterKind.FLOAT])
def test_what_has_no_text_of_its_own_cannot_be_part_of_a_key(target):
    with pytest.raises(TypeError, match="not JSON serializable"):
        NvrtcCacheKey.of(**{**COMPILE, "target": target})


# -- what comes out went in --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [{}, {"cubin": None}, {"ptx": b"", "cubin": None, "ltoir": b"\0\1"}, {"cubin": b"", "ltoir": b"x" * 100_000}],
)
def test_another_process_gets_what_this_one_compiled(cache, fields):
    program = program_of(**fields)
    inserted = cache.insert(KEY, program)
    found = again(cache).get(KEY)
    assert contents(found.program) == contents(program)
    assert (found.key, found.nbytes, found.created) == (inserted.key, inserted.nbytes, inserted.created)
    signature = found.program.signature("scale<float>")
    arguments = (7, 2.5, b"x" * 12)
    assert signature.pack(arguments, lambda _: None) == PROGRAM.signature("scale<float>").pack(
        arguments, lambda _: None
    )


@given(
    images=st.tuples(*[st.none() | st.binary(max_size=50)] * 2),
    ptx=st.binary(max_size=50),
    names=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    log=st.text(max_size=20),
)
def test_any_program_reads_back(images, ptx, names, log):
    cubin, ltoir = images
    program = program_of(ptx=ptx, cubin=cubin, ltoir=ltoir, lowered_names=MappingProxyType(names), log=log)
    parts = _nvrtc_cache._encode(program, 1.5)
    kernel = _nvrtc_cache._decode(KEY, parts)
    assert contents(kernel.program) == contents(program)
    assert (kernel.nbytes, kernel.created) == (sum(map(len, parts)), 1.5)


def test_a_real_compile_reads_back_and_works(cache):
    source = """
    struct Pair { float a; int b; };
    template <typename T> __global__ void f(T *x, Pair p, double d) { *x = p.a + p.b + d; }
    __device__ int counter;
    """
    options = NvrtcOptions(name_expressions=["f<float>", "f<int>", "&counter"])
    for number, target in enumerate(("compute_80", "sm_90")):
        program = compile_program(source, options, target)
        cache.insert(key_of(number), program)
        found = again(cache).get(key_of(number)).program
        assert contents(found) == contents(program)
        assert found.image == program.image
        assert found.lowered("&counter") == program.lowered("&counter")
        assert isinstance(found.signature("f<int>"), KernelSignature)


def test_parameters_that_kernels_have_alike_are_written_once(cache):
    alike = "(.param .u64 x, .param .f32 a)"
    ptx = f".entry f{alike} {{}} .entry g(.param .u64 x, .param .f64 a) {{}} .entry h{alike} {{}}"
    program = program_of(ptx=ptx.encode(), entries=MappingProxyType(parse_signatures(ptx)))
    table = json.loads(_nvrtc_cache._encode(program, 1.5)[0])
    assert len(table["parameters"]) == 3
    cache.insert(KEY, program)
    entries = again(cache).get(KEY).program.entries
    assert entries == program.entries
    assert all(mine is its for mine, its in zip(entries["f"].parameters, entries["h"].parameters, strict=True))


def test_an_entry_that_names_a_parameter_it_lacks_is_a_miss(cache):
    text, *images = _nvrtc_cache._encode(PROGRAM, 1.5)
    table = json.loads(text)
    table["parameters"].pop()
    cache._folder.write(f"{KEY}.kernel", json.dumps(table).encode(), *images)
    assert cache.get(KEY) is None


def test_what_is_not_there_is_nothing(cache, warnings):
    assert cache.get(KEY) is None
    cache.insert(key_of(2), PROGRAM)
    assert cache.get(KEY) is None
    assert warnings() == []


def test_a_damaged_entry_is_compiled_again_and_replaced(cache, warnings):
    cache.insert(KEY, PROGRAM)
    file_of(cache).write_bytes(file_of(cache).read_bytes()[:-1])
    other = again(cache)
    assert other.get(KEY) is None
    other.insert(KEY, PROGRAM)
    assert again(cache).get(KEY) is not None
    assert len(warnings()) == 1


tables = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["missing", "entries", "created", "ptx", "x", "parameters"]), inner)
    ),
    max_leaves=8,
)


@given(st.binary(max_size=40) | tables.map(lambda table: json.dumps(table).encode()))
def test_a_whole_file_that_is_no_entry_is_a_miss(tmp_path_factory, text):
    cache = NvrtcCache(tmp_path_factory.mktemp("strange") / "cache")
    cache._folder.write(f"{KEY}.kernel", text)
    assert cache.get(KEY) is None
    assert list(cache.entries()) == []
    assert list(cache.verify()) == [file_of(cache)]


def test_an_entry_without_one_of_its_fields_is_a_miss(cache):
    text, *images = _nvrtc_cache._encode(PROGRAM, 1.5)
    table = json.loads(text)
    for missing in table:
        rest = {name: value for name, value in table.items() if name != missing}
        cache._folder.write(f"{KEY}.kernel", json.dumps(rest).encode(), *images)
        assert cache.get(KEY) is None, missing


# -- memory ------------------------------------------------------------------------------------------------------------


def test_what_is_in_memory_needs_no_disk(cache):
    inserted = cache.insert(KEY, PROGRAM)
    file_of(cache).unlink()
    assert cache.get(KEY) is inserted
    cache.clear_in_memory()
    assert cache.get(KEY) is None


def test_what_was_read_stays_in_memory(cache):
    cache.insert(KEY, PROGRAM)
    other = again(cache)
    assert other.get(KEY) is other.get(KEY)
    found = other.get(KEY)
    other.clear_in_memory()
    assert other.get(KEY) is not found


def test_memory_forgets_the_longest_unused(cache, monkeypatch):
    set_constant(monkeypatch, _nvrtc_cache, "_MEMORY_KERNELS", 3)
    kernels = [cache.insert(key_of(number), PROGRAM) for number in range(3)]
    assert cache.get(key_of(0)) is kernels[0]
    cache.insert(key_of(3), PROGRAM)
    same = [cache.get(key_of(number)) is kernels[number] for number in (0, 2, 1)]
    assert same == [True, True, False]


def test_memory_is_limited_in_bytes(monkeypatch):
    cache = NvrtcCache(max_bytes=0)
    size = cache.insert(KEY, PROGRAM).nbytes
    set_constant(monkeypatch, _nvrtc_cache, "_MEMORY_BYTES", 5 * size // 2)
    for number in (1, 1, 2, 2, 3):
        cache.insert(key_of(number), PROGRAM)
    assert [number for number in range(5) if cache.get(key_of(number))] == [2, 3]
    cache.insert(key_of(4), program_of(cubin=bytes(3 * size)))
    assert [number for number in range(5) if cache.get(key_of(number))] == []
    assert cache._recent_bytes == 0


# -- where it is, and where there is none ------------------------------------------------------------------------------


@pytest.fixture
def home(monkeypatch, tmp_path):
    for name in ("XDG_CACHE_HOME", "ATOMR_TRIO_CACHE_DIR", "ATOMR_TRIO_CACHE_MAX_BYTES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_the_folder_is_the_users_cache_folder(home, monkeypatch):
    assert NvrtcCache.default_directory() == home / ".cache" / "atomr_trio" / "nvrtc"
    assert NvrtcCache().directory == NvrtcCache.default_directory()
    assert NvrtcCache().max_bytes == 1 << 30
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg"))
    assert NvrtcCache.default_directory() == home / "xdg" / "atomr_trio" / "nvrtc"
    assert list(home.iterdir()) == []


def test_the_environment_names_another_folder(home, monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_CACHE_DIR", str(home / "mine"))
    assert NvrtcCache().directory == home / "mine"
    monkeypatch.setenv("ATOMR_TRIO_CACHE_DIR", "~/other")
    assert NvrtcCache().directory == home / "other"
    monkeypatch.chdir(home)
    monkeypatch.setenv("ATOMR_TRIO_CACHE_DIR", "relative")
    assert NvrtcCache().directory == home / "relative"
    assert NvrtcCache(home / "named").directory == home / "named"


@pytest.mark.parametrize("value", ["", "0"])
def test_the_cache_on_disk_can_be_switched_off(home, monkeypatch, warnings, value):
    monkeypatch.setenv("ATOMR_TRIO_CACHE_DIR", value)
    cache = NvrtcCache()
    inserted = cache.insert(KEY, PROGRAM)
    cache.put_manifest(bytes(32), b"text")
    assert (cache.directory, cache.get(KEY), cache.get_manifest(bytes(32))) == (None, inserted, None)
    assert (list(cache.entries()), cache.verify(), cache.clear(), cache.get(KEY)) == ([], {}, 0, None)
    assert list(home.iterdir()) == []
    assert warnings() == []


@pytest.mark.parametrize("finder", ["old", "new"])
def test_a_user_without_a_home_has_no_cache_on_disk_and_one_warning(home, monkeypatch, warnings, finder):
    """An old platformdirs gives the path as it is, a new one raises."""

    def nobody(_uid: int) -> None:
        raise KeyError("nobody")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.chdir(home)
    if finder == "old":
        monkeypatch.setattr(platformdirs, "user_cache_path", lambda name, **_: Path("~/.cache") / name)
    for _ in range(2):
        cache = NvrtcCache()
        assert cache.directory is None
        cache.insert(KEY, PROGRAM)
        assert cache.get(KEY) is not None
    assert len(warnings()) == 1
    assert "ATOMR_TRIO_CACHE_DIR" in warnings()[0]
    assert list(home.iterdir()) == []


def test_a_home_that_is_no_folder_is_one_warning(home, monkeypatch, warnings):
    (home / "file").touch()
    monkeypatch.setenv("HOME", str(home / "file"))
    cache = NvrtcCache()
    for number in range(3):
        cache.insert(key_of(number), PROGRAM)
    assert again(cache).get(KEY) is None
    assert len(warnings()) == 1


def test_a_system_without_owners_of_files_has_no_cache_on_disk(home, monkeypatch):
    set_constant(monkeypatch, _nvrtc_cache, "SUPPORTED", False)
    assert NvrtcCache(home / "cache").directory is None


def test_the_environment_sets_the_limit(home, monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_CACHE_MAX_BYTES", "5000")
    assert NvrtcCache().max_bytes == 5000
    assert NvrtcCache(max_bytes=7).max_bytes == 7
    monkeypatch.setenv("ATOMR_TRIO_CACHE_MAX_BYTES", "")
    assert NvrtcCache().max_bytes == 1 << 30


@pytest.mark.parametrize("value", ["1G", "-1", "1.5"])
def test_a_limit_that_is_no_number_is_refused(home, monkeypatch, value):
    monkeypatch.setenv("ATOMR_TRIO_CACHE_MAX_BYTES", value)
    with pytest.raises(InvalidArgument, match="ATOMR_TRIO_CACHE_MAX_BYTES"):
        NvrtcCache()


@pytest.mark.parametrize("value", [-1, 1.5, True, "7"])
def test_a_limit_in_bytes_is_a_whole_number(tmp_path, value):
    with pytest.raises(InvalidArgument, match="max_bytes"):
        NvrtcCache(tmp_path, max_bytes=value)


def test_without_room_nothing_is_written(tmp_path):
    cache = NvrtcCache(tmp_path / "cache", max_bytes=0)
    cache.insert(KEY, PROGRAM)
    assert cache.directory is None
    assert list(tmp_path.iterdir()) == []


# -- looking after it --------------------------------------------------------------------------------------------------


def test_the_entries_are_read_the_last_used_first(cache):
    for number in range(3):
        cache.insert(key_of(number), program_of(log=str(number)))
        os.utime(file_of(cache, key_of(number)), (100 + number, 100 + number))
    cache.put_manifest(bytes(32), b"text")
    file_of(cache, key_of(1)).write_bytes(b"damaged")
    assert [kernel.program.log for kernel in cache.entries()] == ["2", "0"]


def test_verifying_names_what_is_not_good_and_says_how_far_it_is(cache):
    for number in range(4):
        cache.insert(key_of(number), PROGRAM)
    for number in range(2):
        cache.put_manifest(bytes([number]) * 32, b"text")
    manifest = cache.directory / (bytes(32).hex() + ".manifest")
    damaged, foreign = file_of(cache, key_of(1)), file_of(cache, key_of(2))
    assert cache.verify() == {}
    damaged.write_bytes(b"")
    foreign.chmod(0o606)
    manifest.write_bytes(b"x")
    calls = []
    problems = cache.verify(lambda *call: calls.append(call))
    assert problems == {damaged: "is damaged", foreign: "can be written by others (mode 606)", manifest: "is damaged"}
    assert calls == [(done, 6) for done in range(1, 7)]


def test_a_folder_that_is_not_safe_is_what_verifying_finds(cache):
    cache.insert(KEY, PROGRAM)
    cache.directory.chmod(0o777)
    assert cache.verify() == {cache.directory: "can be written by others (mode 777)"}


def test_a_file_that_is_gone_when_it_is_verified_is_no_trouble(cache):
    for number in range(2):
        cache.insert(key_of(number), PROGRAM)
    assert cache.verify(lambda done, total: cache.clear()) == {}


def test_clearing_leaves_nothing(cache):
    cache.insert(KEY, PROGRAM)
    cache.put_manifest(bytes(32), b"text")
    assert cache.clear() == 2
    assert cache.get(KEY) is None
    assert list(cache.directory.iterdir()) == []
    assert cache.clear() == 0


def test_a_manifest_is_kept_beside_the_kernels_and_as_safely(cache):
    digest = KEY.digest
    assert cache.get_manifest(digest) is None
    cache.insert(KEY, PROGRAM)
    cache.put_manifest(digest, b"first")
    cache.put_manifest(digest, b"second")
    assert again(cache).get_manifest(digest) == b"second"
    assert again(cache).get(KEY) is not None
    (cache.directory / f"{KEY}.manifest").chmod(0o666)
    assert again(cache).get_manifest(digest) is None


@pytest.mark.parametrize("digest", [b"", bytes(31), bytes(33)])
def test_a_digest_of_another_length_is_refused(cache, digest):
    for call in (lambda: cache.get_manifest(digest), lambda: cache.put_manifest(digest, b"")):
        with pytest.raises(InvalidArgument, match="32 bytes"):
            call()


# -- many processes ----------------------------------------------------------------------------------------------------

WRITER = """
import logging, sys
from types import MappingProxyType
from atomr_trio import NvrtcCache
from compiling.test_nvrtc_cache import KEY, PROGRAM, contents, key_of, program_of

logging.basicConfig(stream=sys.stdout, format="%(message)s")
directory, limit, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for turn in range(50):
    cache = NvrtcCache(directory, max_bytes=limit)
    key = KEY if number < 0 else key_of(1000 * number + turn)
    cache.insert(key, PROGRAM)
    cache.clear_in_memory()
    found = cache.get(key)
    assert found is not None or number >= 0  # others may have evicted it
    assert found is None or contents(found.program) == contents(PROGRAM)
print("done")
"""


def child(code: str, *arguments: str, **variables: str) -> str:
    """Run code in a fresh interpreter; what it printed."""
    command = [sys.executable, "-c", code, *arguments]
    environment = {**support.child_environment(**variables), **support.coverage_environment()}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


WRITERS = 4 if support.SWEEP else 3


def run_writers(cache: NvrtcCache, numbers: list[int]) -> list[str]:
    """Let processes write at the same time; what each printed after its start."""
    environment = {**support.child_environment(), **support.coverage_environment()}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    commands = [
        [sys.executable, "-c", WRITER, str(cache.directory), str(cache.max_bytes), str(number)] for number in numbers
    ]
    writers = [subprocess.Popen(command, env=environment, **pipes) for command in commands]
    assert [writer.stdout.readline() for writer in writers] == ["ready\n"] * len(writers)
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    return [writer.communicate(timeout=100)[0] for writer in writers]


@pytest.mark.long
def test_processes_that_compile_the_same_leave_one_good_entry(cache):
    assert run_writers(cache, [-1] * WRITERS) == ["done\n"] * WRITERS
    assert [each.name for each in cache.directory.iterdir()] == [f"{KEY}.kernel"]
    assert cache.verify() == {}
    assert contents(cache.get(KEY).program) == contents(PROGRAM)


@pytest.mark.long
def test_processes_that_evict_at_the_same_time_keep_the_limit(tmp_path):
    size = NvrtcCache(max_bytes=0).insert(KEY, PROGRAM).nbytes
    cache = NvrtcCache(tmp_path / "cache", max_bytes=10 * (size + 100))
    assert run_writers(cache, list(range(WRITERS))) == ["done\n"] * WRITERS
    cache.insert(KEY, PROGRAM)
    files = list(cache.directory.iterdir())
    assert 0 < sum(file.stat().st_size for file in files) <= cache.max_bytes
    assert {file.suffix for file in files} == {".kernel"}
    assert cache.verify() == {}
