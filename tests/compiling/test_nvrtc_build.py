"""Which NVRTC a file is: by its build ID where it has one."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess

import pytest
from hypothesis import given, strategies as st

from atomr_cuda import nvrtc
from atomr_trio._compiling import identity
from atomr_trio._compiling.build import nvrtc_build

ID = bytes(range(20))


def elf(*notes: bytes, segment: int = 4) -> bytes:
    """An ELF file with one segment per note, as far as a reader of notes looks."""
    start = 64 + 56 * len(notes)
    headers, bodies = b"", b""
    for note in notes:
        headers += struct.pack("<IIQQQQQQ", segment, 4, start + len(bodies), 0, 0, len(note), len(note), 4)
        bodies += note
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 0, 0, 64, 56, len(notes), 0, 0, 0)
    return head + headers + bodies


def note(content: bytes, name: bytes = b"GNU\0", kind: int = 3) -> bytes:
    padded = [text + bytes(-len(text) % 4) for text in (name, content)]
    return struct.pack("<III", len(name), len(content), kind) + b"".join(padded)


@pytest.mark.parametrize(
    "content",
    [
        elf(note(ID)),
        elf(note(b"other", kind=1) + note(b"x", name=b"Linux\0") + note(ID)),
        elf(note(b"other", kind=1), note(ID)),
    ],
)
def test_the_build_id_tells_and_nothing_else(tmp_path, content):
    library = tmp_path / "libnvrtc.so.13"
    library.write_bytes(content)
    os.utime(library, (1, 1))
    first = nvrtc_build(str(library))
    library.write_bytes(content + b"more")
    assert nvrtc_build(str(library)) == first == ID.hex()


@pytest.mark.parametrize("content", [b"", b"text", elf(), elf(note(ID), segment=1), elf(note(ID, kind=4)), elf(b"x")])
def test_without_a_build_id_size_and_time_tell(tmp_path, content):
    library = tmp_path / "libnvrtc.so.13"
    seen = set()
    for moment, text in ((1, content), (2, content), (1, content + b"\0")):
        library.write_bytes(text)
        os.utime(library, (moment, moment))
        seen.add(nvrtc_build(str(library)))
    assert len(seen) == 3


@given(cut=st.integers(0, 200), flips=st.lists(st.tuples(st.integers(0, 150), st.integers(0, 255)), max_size=5))
def test_a_broken_file_is_no_trouble(tmp_path_factory, cut, flips):
    broken = bytearray(elf(note(b"other", kind=1) + note(ID)))
    for position, value in flips:
        broken[position % len(broken)] = value
    library = tmp_path_factory.mktemp("broken") / "libnvrtc.so.13"
    library.write_bytes(broken[:cut])
    assert isinstance(nvrtc_build(str(library)), str)


def test_the_functions_that_come_beside_the_compiler_count(tmp_path):
    library, builtins = tmp_path / "libnvrtc.so.13", tmp_path / "libnvrtc-builtins.so.13.5"
    library.write_bytes(elf(note(ID)))
    alone = nvrtc_build(str(library))
    builtins.write_bytes(elf(note(b"1" * 20)))
    first = nvrtc_build(str(library))
    builtins.write_bytes(elf(note(b"2" * 20)))
    assert len({alone, first, nvrtc_build(str(library))}) == 3


def test_a_link_is_the_file_that_it_leads_to(tmp_path):
    real = tmp_path / "lib" / "libnvrtc.so.13.5"
    real.parent.mkdir()
    real.write_bytes(elf(note(ID)))
    (real.parent / "libnvrtc-builtins.so.13.5").write_bytes(elf(note(b"1" * 20)))
    (tmp_path / "libnvrtc.so").symlink_to(real)
    assert nvrtc_build(str(tmp_path / "libnvrtc.so")) == nvrtc_build(str(real))


def test_what_lies_beside_a_link_counts_too(tmp_path):
    """A library that is loaded by a link opens what lies beside the link."""
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "libnvrtc-builtins.so.13.5").write_bytes(elf(note(name.encode() * 20)))
    (tmp_path / "a/libnvrtc.so.13").write_bytes(elf(note(ID)))
    links = tmp_path / "links"
    links.mkdir()
    (links / "libnvrtc.so.13").symlink_to(tmp_path / "a/libnvrtc.so.13")
    alone = nvrtc_build(str(links / "libnvrtc.so.13"))
    (links / "libnvrtc-builtins.so.13.5").symlink_to(tmp_path / "b/libnvrtc-builtins.so.13.5")
    assert nvrtc_build(str(links / "libnvrtc.so.13")) != alone


def test_a_record_ends_when_the_folder_of_links_has_another_library(tmp_path):
    """The search would take libnvrtc.so.13 there before libnvrtc.so.12."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real/libnvrtc.so.12").write_bytes(elf(note(ID)))
    links = tmp_path / "links"
    links.mkdir()
    (links / "libnvrtc.so.12").symlink_to(tmp_path / "real/libnvrtc.so.12")
    files = identity._files_of(str(links / "libnvrtc.so.12"))
    before = identity._times(files)
    os.utime(links, (1, 1))
    (links / "libnvrtc.so.13").symlink_to(tmp_path / "real/libnvrtc.so.12")
    assert identity._times(files) != before


def test_a_link_that_leads_elsewhere_than_when_it_was_loaded_names_no_build(tmp_path, monkeypatch):
    nvrtc.library.load()
    link = tmp_path / "libnvrtc.so.13"
    link.symlink_to(os.path.realpath(nvrtc.library.path))
    identify = identity._loaded.__wrapped__
    assert identify(str(link)).build.split()[0] == nvrtc_build(nvrtc.library.path).split()[0]
    link.unlink()
    link.write_bytes(elf(note(ID)))
    assert identify(str(link)).build.startswith("of one process: ")


def test_no_file_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        nvrtc_build(str(tmp_path / "libnvrtc.so"))


def test_the_installed_compiler_has_build_ids():
    nvrtc.library.load()
    assert nvrtc.library.path is not None
    build = nvrtc_build(nvrtc.library.path).split()
    assert build
    assert all(len(bytes.fromhex(each)) == 20 for each in build)
    if shutil.which("readelf"):
        said = subprocess.run(["readelf", "-n", nvrtc.library.path], capture_output=True, text=True, check=True)
        assert f"Build ID: {build[0]}" in said.stdout
