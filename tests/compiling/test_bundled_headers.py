"""CUDA's own headers: those that NVRTC carries, and those of wheels."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atomr_cuda import nvrtc
from atomr_trio._compiling import bundled_headers as _bundled_headers, cache_folder, compiler, whole_folder
from atomr_trio._compiling.bundled_headers import bundled_header_folders, headers_in_use
from atomr_trio._compiling.cache import NvrtcCache
from atomr_trio._compiling.caching import CachingCompiler, Job
from atomr_trio._compiling.compiler import compile_program, compile_to_cubin
from atomr_trio._compiling.identity import installed_nvrtc
from atomr_trio._compiling.nvrtc_library import nvrtc_version
from atomr_trio._compiling.options import NvrtcOptions
from atomr_trio._values.errors import CompileError, LibraryNotFound

carried = pytest.mark.skipif(nvrtc_version() < (13, 3), reason="this NVRTC carries no headers")

COOPERATIVE = """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
extern "C" __global__ void k(int* p) {
    auto warp = cooperative_groups::tiled_partition<32>(cooperative_groups::this_thread_block());
    *p = cooperative_groups::reduce(warp, *p, cooperative_groups::plus<int>());
}
"""
CORE = """
#include <cub/block/block_reduce.cuh>
#include <cuda/std/type_traits>
#include <cuda_fp16.h>
#include <mma.h>
static_assert(cuda::std::is_same_v<decltype(half() + half()), half>);
extern "C" __global__ void k(int* p) {
    __shared__ cub::BlockReduce<int, 128>::TempStorage storage;
    *p = cub::BlockReduce<int, 128>(storage).Sum(p[threadIdx.x]);
}
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test alone, in which nothing is unpacked yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("ATOMR_TRIO_CACHE_DIR", str(folder))
    monkeypatch.setattr(_bundled_headers, "_kept", {})
    monkeypatch.setattr(cache_folder, "_warned", set())
    return folder


# ---------------------------------------------------------------------------------------------------- carried by NVRTC


@carried
@pytest.mark.parametrize("source", [COOPERATIVE, CORE], ids=["cooperative groups", "core libraries"])
@pytest.mark.long
def test_the_headers_of_cuda_are_found_with_one_option(source: str) -> None:
    assert compile_to_cubin(source, options=NvrtcOptions(bundled_headers=True, arch="sm_90")).startswith(b"\x7fELF")


CUDAS_OWN = (
    *("cub/block/block_reduce.cuh", "cuda/std/type_traits", "cuda/atomic", "nv/target", "thrust/tuple.h"),
    *("cooperative_groups.h", "cooperative_groups/reduce.h", "cuda_fp16.h", "cuda_bf16.h", "mma.h"),
    *("cuda_tf32.h", "cuda_fp8.h", "cuda_pipeline.h", "cuda_awbarrier.h"),
    *("vector_types.h", "math_constants.h", "cuComplex.h"),
)


@pytest.mark.parametrize("name", CUDAS_OWN)
def test_the_error_of_a_missing_header_of_cuda_names_the_option_that_adds_it(name: str) -> None:
    with pytest.raises(CompileError, match="could not open source file") as caught:
        compile_program(f"#include <{name}>\n", NvrtcOptions(), "sm_90")
    assert f"`{name}` is one of CUDA's own headers" in str(caught.value.advice)
    assert "`NvrtcOptions(bundled_headers=True)`" in str(caught.value.advice)


@carried
@pytest.mark.parametrize(
    "name", [*CUDAS_OWN[::2], *(pytest.param(name, marks=pytest.mark.long) for name in CUDAS_OWN[1::2])]
)
@pytest.mark.long
def test_that_option_does_add_it(name: str) -> None:
    assert any(Path(folder, name).is_file() for folder in bundled_header_folders())


@carried
def test_other_missing_headers_have_no_such_advice() -> None:
    bundled = NvrtcOptions(bundled_headers=True)
    for name, options in (("mine.h", NvrtcOptions()), ("cuda_mine.h", NvrtcOptions()), ("cub/no_such.cuh", bundled)):
        with pytest.raises(CompileError, match="not open source file") as caught:
            compile_program(f"#include <{name}>\n", options, "sm_90")
        assert caught.value.advice is None


@carried
def test_flags_show_the_folders_after_those_of_the_user(cache: Path, tmp_path: Path) -> None:
    options = NvrtcOptions(bundled_headers=True, include_paths=[tmp_path])
    paths = [flag.partition("=")[2] for flag in options.flags("sm_90") if flag.startswith("--include-path=")]
    assert paths == [str(tmp_path), *bundled_header_folders()]
    assert Path(paths[1]).parent == cache
    assert Path(paths[1]).name.startswith(f"headers-{nvrtc_version()[0]}.{nvrtc_version()[1]}-")
    assert Path(paths[1], "cooperative_groups.h").is_file()
    assert Path(paths[2], "cub").is_dir()
    assert cache.stat().st_mode & 0o777 == 0o700


@pytest.mark.long
@carried
def test_headers_are_kept_once_and_again_when_they_are_gone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    install = nvrtc.nvrtcInstallBundledHeaders.status

    class Counting:
        @staticmethod
        def status(*arguments: object) -> int:
            calls.append(arguments)
            return install(*arguments)

    monkeypatch.setattr(nvrtc, "nvrtcInstallBundledHeaders", Counting)
    first = bundled_header_folders()
    assert bundled_header_folders() == first
    assert len(calls) == 1
    shutil.rmtree(cache)
    assert bundled_header_folders() == first
    assert Path(first[0], "cuda_fp16.h").is_file()
    assert len(calls) == 2


@carried
@pytest.mark.parametrize("trouble", ["switched off", "cannot be made", "open to everybody", "another user's files"])
def test_without_a_safe_cache_folder_the_headers_are_this_processes_own(
    trouble: str, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A header that somebody else could write would be code of theirs in our kernels."""
    match trouble:
        case "switched off":
            monkeypatch.setenv("ATOMR_TRIO_CACHE_DIR", "")
        case "cannot be made":
            monkeypatch.setenv("ATOMR_TRIO_CACHE_DIR", "/proc/nowhere")
        case "open to everybody":
            cache.mkdir()
            cache.chmod(0o777)
        case _:
            folder = Path(bundled_header_folders()[0])
            folder.chmod(0o777)
            monkeypatch.setattr(_bundled_headers, "_kept", {})
    with caplog.at_level(logging.WARNING):
        folders = bundled_header_folders()
        assert bundled_header_folders() == folders
    assert not Path(folders[0]).is_relative_to(cache)
    assert Path(folders[0]).stat().st_mode & 0o777 == 0o700
    assert Path(folders[0], "cuda_fp16.h").is_file()
    assert len(caplog.records) == (trouble != "switched off")


@carried
def test_what_nvrtc_cannot_unpack_anywhere_is_an_error_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bundled_headers, "_install", lambda folder: "no space left")
    with pytest.raises(LibraryNotFound, match="there is no folder for CUDA's headers: no space left") as caught:
        NvrtcOptions(bundled_headers=True).flags("sm_90")
    assert "ATOMR_TRIO_CACHE_DIR" in str(caught.value)


# ---------------------------------------------------------------------------------------------------- wheels


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """What cuda-pathfinder finds for an NVRTC 12.9: the folders of two wheels, by name."""
    runtime, core = tmp_path / "runtime", tmp_path / "cccl"
    (core / "cuda" / "std").mkdir(parents=True)
    (core / "cuda" / "std" / "version").write_text("#define CORE 1\n")
    runtime.mkdir()
    (runtime / "cuda_runtime_api.h").write_text("#define CUDART_VERSION  12080\n")
    found: dict[str, str | None] = {"cudart": str(runtime), "cccl": str(core)}
    monkeypatch.setattr(_bundled_headers, "nvrtc_version", lambda: (12, 9))
    monkeypatch.setattr("cuda.pathfinder.find_nvidia_header_directory", found.get, raising=False)
    return found


def test_an_nvrtc_without_headers_gets_those_of_the_wheels(wheels: dict[str, str | None]) -> None:
    runtime, core = map(Path, bundled_header_folders())
    assert (runtime.name, core.name, runtime.parent) == ("runtime", "cccl", core.parent)
    assert runtime.parent.name.startswith("headers-12.8-")
    source = (
        "#include <cuda_runtime_api.h>\n#include <cuda/std/version>\nstatic_assert(CUDART_VERSION + CORE == 12081);"
    )
    assert compile_program(source, NvrtcOptions(bundled_headers=True), "compute_80").entries == {}


def test_headers_of_wheels_are_copied_when_they_are_installed_and_not_when_they_are_edited(
    wheels: dict[str, str | None], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a cached kernel was compiled with is then known by a name, whatever becomes of the wheels."""
    mark = Path(wheels["cccl"] or "", "cuda", "std", "version")
    extra = mark.with_name("extra")
    first = bundled_header_folders()
    extra.write_text("#define EXTRA 1\n")
    assert bundled_header_folders() == first
    mark.unlink()
    mark.write_text("#define CORE 2\n")
    second = bundled_header_folders()
    assert second[1] != first[1]
    assert Path(second[1], "cuda", "std", "extra").read_text() == "#define EXTRA 1\n"
    assert Path(first[1], "cuda", "std", "version").read_text() == "#define CORE 1\n"
    assert NvrtcCache(cache).clear() == 0
    assert list(cache.iterdir()) == []


def test_a_folder_inside_of_another_is_copied_once(wheels: dict[str, str | None]) -> None:
    """CUDA 13 has one folder for the headers of all packages, and those of the core libraries inside of it."""
    inside = Path(wheels["cudart"] or "", "cccl")
    shutil.move(wheels["cccl"] or "", inside)
    wheels["cccl"] = str(inside)
    runtime, core = map(Path, bundled_header_folders())
    assert (core / "cuda" / "std" / "version").is_file()
    assert [path.name for path in runtime.iterdir()] == ["cuda_runtime_api.h"]


def test_two_processes_may_copy_the_headers_of_wheels_at_once(
    wheels: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def replace_after_the_other(unfinished: str, target: str) -> None:
        shutil.copy2(unfinished, target)  # as the other process does meanwhile
        replace(unfinished, target)

    monkeypatch.setattr(os, "replace", replace_after_the_other)
    runtime, core = map(Path, bundled_header_folders())
    assert (runtime / "cuda_runtime_api.h").is_file()
    assert sorted(path.name for path in core.parent.iterdir() if path.name[0] != ".") == ["cccl", "runtime"]
    assert whole_folder.problem_of(str(core.parent), by_content=True) == ""


# ---------------------------------------------------------------------------------------------------- a set is whole

FROM_WHEELS = (
    "#include <cuda/std/version>\n#if __has_include(<cuda/std/extra>)\n#define X 10\n#else\n#define X 0\n#endif\n"
)
FROM_WHEELS += '__device__ int n = CORE + X; extern "C" __global__ void k() {}'


def number(cache: Path) -> bytes:
    """What a compile gives that is not in the cache."""
    compiles = CachingCompiler(lambda: NvrtcCache(cache, max_bytes=0))
    program = compiles.answer(Job(FROM_WHEELS, NvrtcOptions(bundled_headers=True), "compute_80")).program
    return program.ptx.partition(b"n = ")[2].partition(b";")[0]


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a deleted header": lambda core: (core / "cuda/std/version").unlink(),
    "a deleted folder": lambda core: shutil.rmtree(core / "cuda"),
    "an edited header": lambda core: (core / "cuda/std/version").write_text("#define CORE 7\n"),
    "a header that does not belong there": lambda core: (core / "cuda/std/extra").write_text(""),
    "a deleted list": lambda core: (core.parent / ".whole").unlink(),
}


@pytest.mark.usefixtures("wheels")
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("process", ["the same process", "a new one"])
def test_a_set_that_is_not_whole_is_made_whole(
    damage: str, process: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert number(cache) == b"1"
    core = Path(bundled_header_folders()[1])
    DAMAGES[damage](core)
    assert list(NvrtcCache(cache).verify()) == [core.parent]
    if process == "a new one":
        monkeypatch.setattr(_bundled_headers, "_kept", {})
        monkeypatch.setattr(whole_folder, "_seen", {})
    elif damage in ("an edited header", "a deleted list"):
        return  # a process looks at the contents when it first uses them
    assert number(cache) == b"1"
    assert NvrtcCache(cache).verify() == {}


def test_verifying_says_which_header_is_wrong(wheels: dict[str, str | None], cache: Path) -> None:
    core = Path(bundled_header_folders()[1])
    (core / "cuda/std/version").unlink()
    assert NvrtcCache(cache).verify() == {core.parent: "cccl/cuda/std/version is missing"}


def test_a_set_that_was_copied_is_whole_without_unpacking(
    wheels: dict[str, str | None], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a container or CI keeps it."""
    bundled_header_folders()
    shutil.copytree(cache, tmp_path / "copy")
    monkeypatch.setenv("ATOMR_TRIO_CACHE_DIR", str(tmp_path / "copy"))
    monkeypatch.setattr(_bundled_headers, "_kept", {})
    monkeypatch.setattr(shutil, "copytree", None)
    assert Path(bundled_header_folders()[0]).is_relative_to(tmp_path / "copy")


@pytest.mark.usefixtures("wheels")
def test_a_set_is_not_deleted_while_somebody_compiles_with_it(cache: Path) -> None:
    with headers_in_use() as headers:
        assert NvrtcCache(cache).clear() == 0
        assert whole_folder.problem_of(headers.folder, by_content=True) == ""
    assert NvrtcCache(cache).clear() == 0
    assert list(cache.iterdir()) == []
    assert number(cache) == b"1"


@pytest.mark.usefixtures("wheels")
@pytest.mark.parametrize("times", [1, 3])
def test_what_was_compiled_while_a_header_vanished_is_compiled_again(
    times: int, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cleaner of old files asks nobody."""
    compile_once = compiler._compile
    compiles = 0

    def cleaned_meanwhile(*arguments: Any) -> str:
        nonlocal compiles
        compiles += 1
        if compiles <= times:
            Path(bundled_header_folders()[1], "cuda/std/version").unlink()
        return compile_once(*arguments)

    monkeypatch.setattr(compiler, "_compile", cleaned_meanwhile)
    if times == 1:
        assert number(cache) == b"1"
    else:
        with pytest.raises(CompileError, match="were changed while they were compiled"):
            number(cache)
    assert compiles == min(times + 1, 3)


def test_headers_of_wheels_that_cannot_be_copied_are_an_error_that_says_why(
    wheels: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(LibraryNotFound, match=r"there is no folder for CUDA's headers: .*No space left"):
        bundled_header_folders()


def test_what_is_on_record_counts_until_the_wheels_are_installed_anew(
    wheels: dict[str, str | None], cache: Path
) -> None:
    kept = NvrtcCache(cache)
    name = installed_nvrtc(kept, headers=True).headers
    found = dict(wheels)
    wheels.clear()  # nobody is asked again
    assert installed_nvrtc(kept, headers=True).headers == name
    mark = Path(found["cudart"] or "", "cuda_runtime_api.h")
    mark.write_text("#define CUDART_VERSION  12090\n")
    wheels.update(found)
    assert (installed_nvrtc(kept, headers=True).headers or "").startswith("headers-12.9-")


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        (["cccl"], "no cccl headers are installed.*pip install 'nvidia-cuda-cccl-cu12==12.9.\\*'"),
        (
            ["cudart", "cccl"],
            "no runtime and no cccl headers.*'nvidia-cuda-runtime-cu12==12.9.\\*' 'nvidia-cuda-cccl-cu12==12.9.\\*'",
        ),
    ],
)
def test_without_the_wheels_the_error_names_them(wheels: dict[str, str | None], gone: list[str], said: str) -> None:
    for name in gone:
        wheels[name] = None
    with pytest.raises(LibraryNotFound, match=f"(?s)NVRTC 12.9 carries no CUDA headers, and {said}"):
        NvrtcOptions(bundled_headers=True).flags("sm_90")


def test_the_wheels_of_another_cuda_are_not_used(wheels: dict[str, str | None]) -> None:
    Path(wheels["cudart"] or "", "cuda_runtime_api.h").write_text("#define CUDART_VERSION 13050\n")
    with pytest.raises(LibraryNotFound, match=r"the installed headers are of CUDA 13\.5"):
        bundled_header_folders()


def test_a_folder_that_was_found_and_is_empty_counts_as_missing(wheels: dict[str, str | None]) -> None:
    Path(wheels["cccl"] or "", "cuda", "std", "version").unlink()
    with pytest.raises(LibraryNotFound, match="no cccl headers are installed"):
        bundled_header_folders()
