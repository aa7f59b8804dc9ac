"""The folder of a cache: what is trusted, what is a miss, and what is left whoever dies when."""

from __future__ import annotations

import errno
import logging
import os
import stat
import subprocess
import sys
import types
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

import support
from atomr_trio._compiling import cache_folder
from atomr_trio._compiling.cache_folder import CacheFolder, Unusable
from support import set_constant
from support.descriptors import open_descriptors

NAME = "0123456789abcdef" * 4 + ".kernel"
OTHER = "f" * 64 + ".kernel"
CONTENT = bytes(range(256))
HOUR = 3600


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def folder(path):
    return CacheFolder(path, 1 << 20)


@pytest.fixture
def warnings(caplog):
    """The texts of the warnings so far, as a function."""
    caplog.set_level(logging.WARNING, "atomr_trio.nvrtc")
    return lambda: [record.getMessage() for record in caplog.records]


def read(folder: CacheFolder, name: str = NAME) -> bytes | None:
    """The first part of a file."""
    parts = folder.read(name)
    assert parts is None or parts[1:] == [b""] * 3
    return None if parts is None else parts[0]


def aged(path: Path, seconds: float) -> None:
    """Make a file look as if it had last been used a while ago."""
    moment = path.lstat().st_mtime - seconds
    os.utime(path, (moment, moment), follow_symlinks=False)


def broken_os(monkeypatch, **functions: object) -> None:
    """Let the folder, and nobody else, see other functions of `os`."""
    monkeypatch.setattr(cache_folder, "os", types.SimpleNamespace(**{**vars(os), **functions}))


def fails(number: int):
    def call(*_arguments: object, **_options: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


# -- the ordinary case -------------------------------------------------------------------------------------------------


def test_what_was_written_is_read_again(folder, warnings):
    assert read(folder) is None
    folder.write(NAME, CONTENT)
    folder.write(OTHER, b"")
    assert (read(folder), read(folder, OTHER)) == (CONTENT, b"")
    folder.write(NAME, b"new")
    assert read(folder) == b"new"
    assert warnings() == []


@given(parts=st.lists(st.binary(max_size=30), max_size=4))
def test_the_parts_of_a_file_come_back_apart(tmp_path_factory, parts):
    folder = CacheFolder(tmp_path_factory.mktemp("parts") / "cache", 1 << 20)
    folder.write(NAME, *parts)
    assert folder.read(NAME) == parts + [b""] * (4 - len(parts))


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_folder_and_files_are_for_their_owner_alone_whatever_the_umask(path, umask):
    folder = CacheFolder(path / "deep" / "deeper", 1 << 20)
    before = os.umask(umask)
    try:
        folder.write(NAME, CONTENT)
    finally:
        os.umask(before)
    modes = {each: stat.S_IMODE(each.stat().st_mode) for each in (path, *path.rglob("*"))}
    assert modes == {
        path: 0o700,
        path / "deep": 0o700,
        path / "deep" / "deeper": 0o700,
        path / "deep" / "deeper" / NAME: 0o600,
    }


def test_a_folder_that_was_deleted_is_made_again(folder, path, warnings):
    folder.write(NAME, CONTENT)
    (path / NAME).unlink()
    path.rmdir()
    assert read(folder) is None
    folder.write(NAME, CONTENT)
    assert read(folder) == CONTENT
    assert warnings() == []


def test_a_folder_can_be_had_without_a_file_or_be_refused_by_an_error(folder, path):
    folder.ensure()
    folder.ensure()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    path.chmod(0o777)
    with pytest.raises(Unusable, match="can be written by others"):
        folder.ensure()


def test_clearing_deletes_what_a_cache_made_and_nothing_else(folder, path):
    folder.write(NAME, CONTENT)
    (path / "notes.txt").write_text("mine")
    (path / (cache_folder._TEMPORARY + "x")).touch()
    assert folder.clear() == 2
    assert [each.name for each in path.iterdir()] == ["notes.txt"]


def test_the_files_are_listed_by_their_last_use(folder, path):
    for name in (NAME, OTHER):
        folder.write(name, CONTENT)
    aged(path / OTHER, 10)
    (path / "notes.txt").write_text("mine")
    assert [file.name for file in folder.files()] == [NAME, OTHER]
    assert {file.bytes for file in folder.files()} == {(path / NAME).stat().st_size}


def test_a_file_that_vanishes_while_the_folder_is_listed_is_left_out(folder, path, monkeypatch):
    folder.write(NAME, CONTENT)
    folder.write(OTHER, CONTENT)

    class Listing(list):
        def __enter__(self):
            (path / OTHER).unlink()
            return self

        def __exit__(self, *_: object) -> None: ...

    broken_os(monkeypatch, scandir=lambda folder: Listing(os.scandir(folder)))
    assert [file.name for file in folder.files()] == [NAME]


# -- damage ------------------------------------------------------------------------------------------------------------


def test_a_file_cut_anywhere_is_a_miss(folder, path, warnings):
    folder.write(NAME, CONTENT)
    whole = (path / NAME).read_bytes()
    for length in range(len(whole)):
        os.truncate(path / NAME, length)
        assert read(folder) is None, length
        (path / NAME).write_bytes(whole)
    assert read(folder) == CONTENT
    assert len(warnings()) == 1
    assert "is damaged" in warnings()[0]


def test_a_flipped_bit_anywhere_is_a_miss(folder, path):
    folder.write(NAME, CONTENT)
    whole = (path / NAME).read_bytes()
    for bit in range(0, 8 * len(whole), 1 if support.SWEEP else 5):  # in each byte, and each of the eight
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        (path / NAME).write_bytes(flipped)
        assert read(folder) is None, bit


@given(data=st.data())
@settings(max_examples=200 if support.SWEEP else 80)
def test_no_damage_gives_other_bytes(tmp_path_factory, data):
    folder = CacheFolder(tmp_path_factory.mktemp("damage") / "cache", 1 << 20)
    content = data.draw(st.binary(max_size=200))
    folder.write(NAME, content)
    file = folder.path / NAME
    whole = file.read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    damaged = whole[:start] + data.draw(st.binary(max_size=100)) + whole[end:]
    file.write_bytes(damaged)
    assert read(folder) == (content if damaged == whole else None)


def test_a_file_under_the_name_of_another_is_a_miss(folder, path):
    folder.write(NAME, CONTENT)
    (path / NAME).rename(path / OTHER)
    assert read(folder, OTHER) is None


def test_a_file_of_another_format_is_a_miss_and_is_replaced(folder, path, monkeypatch):
    set_constant(monkeypatch, cache_folder, "_FORMAT", 2)
    folder.write(NAME, CONTENT)
    monkeypatch.undo()
    assert read(folder) is None
    folder.write(NAME, CONTENT)
    assert read(folder) == CONTENT


# -- who could have written it -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o777])
def test_a_file_that_others_can_write_is_a_miss(folder, path, warnings, mode):
    folder.write(NAME, CONTENT)
    (path / NAME).chmod(mode)
    assert read(folder) is None
    assert read(folder) is None
    assert len(warnings()) == 1
    assert f"can be written by others (mode {mode:o})" in warnings()[0]


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
def test_a_folder_that_others_can_write_is_neither_read_nor_written(folder, path, warnings, mode):
    folder.write(NAME, CONTENT)
    path.chmod(mode)
    assert read(folder) is None
    folder.write(OTHER, CONTENT)
    assert folder.files() == []
    assert folder.clear() == 0
    assert [each.name for each in path.iterdir()] == [NAME]
    assert len(warnings()) == 1
    assert list(folder.refusal()) == [path]


def test_a_folder_that_others_can_read_is_good(folder, path, warnings):
    path.mkdir(mode=0o755)
    folder.write(NAME, CONTENT)
    (path / NAME).chmod(0o644)
    assert read(folder) == CONTENT
    assert warnings() == []
    assert folder.refusal() == {}


def test_what_belongs_to_another_user_is_neither_read_nor_written(folder, path, warnings, monkeypatch):
    folder.write(NAME, CONTENT)
    broken_os(monkeypatch, geteuid=lambda: os.geteuid() + 1)
    assert read(folder) is None
    folder.write(OTHER, CONTENT)
    assert [each.name for each in path.iterdir()] == [NAME]
    assert warnings() == [f"the kernel cache: {path} belongs to another user; kernels are compiled again instead"]


def test_a_file_of_another_user_in_a_folder_of_ours_is_a_miss(folder, path, warnings, monkeypatch):
    folder.write(NAME, CONTENT)

    def fstat(descriptor: int) -> object:
        status = os.fstat(descriptor)
        owner = os.geteuid() + stat.S_ISREG(status.st_mode)
        return types.SimpleNamespace(st_mode=status.st_mode, st_uid=owner, st_size=status.st_size)

    broken_os(monkeypatch, fstat=fstat)
    assert read(folder) is None
    assert len(warnings()) == 1
    assert f"{path / NAME} belongs to another user" in warnings()[0]


def test_a_linked_folder_is_refused(path, folder, tmp_path, warnings):
    real = tmp_path / "real"
    CacheFolder(real, 1 << 20).write(NAME, CONTENT)
    path.symlink_to(real)
    assert read(folder) is None
    folder.write(OTHER, CONTENT)
    assert [each.name for each in real.iterdir()] == [NAME]
    assert len(warnings()) == 1
    assert "is no folder, or a symbolic link" in warnings()[0]


def test_a_folder_below_a_link_is_good(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    folder = CacheFolder(tmp_path / "link" / "cache", 1 << 20)
    folder.write(NAME, CONTENT)
    assert read(folder) == CONTENT


def test_a_linked_file_is_a_miss_and_is_replaced_without_touching_what_it_leads_to(folder, path, tmp_path, warnings):
    folder.write(NAME, CONTENT)
    elsewhere = tmp_path / "elsewhere"
    (path / NAME).rename(elsewhere)
    before = elsewhere.read_bytes()
    (path / NAME).symlink_to(elsewhere)
    assert read(folder) is None
    assert "is a symbolic link" in warnings()[0]
    folder.write(NAME, b"new")
    assert read(folder) == b"new"
    assert elsewhere.read_bytes() == before


def test_a_pipe_in_place_of_a_file_holds_nobody_up(folder, path, warnings):
    folder.write(OTHER, CONTENT)
    os.mkfifo(path / NAME, 0o600)
    assert read(folder) is None
    assert "is no regular file" in warnings()[0]


def test_what_is_refused_is_closed_again(folder, path):
    folder.write(NAME, CONTENT)
    before = open_descriptors(collect=True)
    for damage in (
        lambda file: file.chmod(0o666),
        lambda file: file.write_bytes(b""),
        lambda file: (file.unlink(), file.mkdir()),
        lambda file: (file.rmdir(), path.chmod(0o777)),
    ):
        damage(path / NAME)
        assert read(folder) is None
    assert open_descriptors() == before


def test_a_folder_in_place_of_a_file_is_a_miss_that_stays_one(folder, path, warnings):
    (path / NAME).mkdir(parents=True)
    path.chmod(0o700)
    assert read(folder) is None
    folder.write(NAME, CONTENT)
    assert read(folder) is None
    assert [each.name for each in path.iterdir()] == [NAME]
    assert len(warnings()) == 2


def test_a_place_that_everybody_can_take_away_is_refused_unless_it_is_sticky(tmp_path, warnings):
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    folder = CacheFolder(open_to_all / "between" / "cache", 1 << 20)
    folder.write(NAME, CONTENT)
    assert read(folder) is None
    assert len(warnings()) == 1
    assert f"everybody can write to {open_to_all}" in warnings()[0]
    open_to_all.chmod(0o1777)
    folder.write(NAME, CONTENT)
    assert read(folder) == CONTENT


# -- a disk that does not work -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["mkdir", "open", "write", "fsync", "close", "rename"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO, errno.EDQUOT])
def test_a_disk_that_cannot_be_written_is_one_warning(tmp_path, warnings, monkeypatch, call, number):
    folder = CacheFolder(tmp_path / call / "cache", 1 << 20)
    if call == "close":  # the descriptor is gone all the same

        def close(descriptor: int) -> None:
            os.close(descriptor)
            fails(number)()

        broken_os(monkeypatch, close=close)
    else:
        broken_os(monkeypatch, **{call: fails(number)})
    for _ in range(3):
        folder.write(NAME, CONTENT)
    assert len(warnings()) == 1
    assert os.strerror(number) in warnings()[0]
    monkeypatch.undo()
    assert folder.files() == []
    assert not folder.path.exists() or list(folder.path.iterdir()) == []


def test_a_file_system_that_says_that_nothing_is_there_is_one_warning(warnings):
    folder = CacheFolder(Path("/proc/nobody/cache"), 1 << 20)
    assert read(folder) is None
    assert (warnings(), folder.refusal()) == ([], {})
    for _ in range(2):
        folder.write(NAME, CONTENT)
    assert len(warnings()) == 1


def test_a_file_that_is_cut_while_it_is_read_is_a_miss(folder, path, monkeypatch):
    folder.write(NAME, CONTENT)
    whole = (path / NAME).read_bytes()

    def fstat(descriptor: int) -> os.stat_result:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            os.truncate(path / NAME, length)
        return status

    broken_os(monkeypatch, fstat=fstat)
    for length in range(len(whole)):
        (path / NAME).write_bytes(whole)
        assert read(folder) is None, length


def test_a_folder_that_cannot_be_flushed_is_good_all_the_same(folder, monkeypatch, warnings):
    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            fails(errno.EINVAL)()
        os.fsync(descriptor)

    broken_os(monkeypatch, fsync=fsync)
    folder.write(NAME, CONTENT)
    assert read(folder) == CONTENT
    assert warnings() == []


def test_a_disk_that_takes_little_at_a_time_gets_everything(folder, monkeypatch):
    broken_os(monkeypatch, write=lambda descriptor, content: os.write(descriptor, content[:5]))
    folder.write(NAME, CONTENT)
    assert read(folder) == CONTENT


def test_a_file_that_cannot_be_read_is_a_miss(folder, monkeypatch, warnings):
    folder.write(NAME, CONTENT)

    def open_unreadable(path: object, flags: int, *arguments: object, **options: object) -> int:
        if path == NAME:
            fails(errno.EACCES)()
        return os.open(path, flags, *arguments, **options)

    broken_os(monkeypatch, open=open_unreadable)
    assert read(folder) is None
    assert read(folder) is None
    assert len(warnings()) == 1
    with pytest.raises(OSError, match="Permission"):
        folder.load(NAME)


def test_a_folder_that_cannot_be_opened_says_so(folder, monkeypatch):
    folder.write(NAME, CONTENT)
    broken_os(monkeypatch, open=fails(errno.EACCES))
    assert list(folder.refusal()) == [folder.path]


def test_a_folder_that_may_not_be_opened_is_one_warning_for_reading_and_writing(folder, monkeypatch, warnings):
    folder.write(NAME, CONTENT)
    broken_os(monkeypatch, open=fails(errno.EACCES))
    assert read(folder) is None
    folder.write(NAME, CONTENT)
    assert folder.files() == []
    assert len(warnings()) == 1


def test_a_read_only_folder_is_read(folder, path, monkeypatch, warnings):
    folder.write(NAME, CONTENT)
    aged(path / NAME, 2 * HOUR)
    broken_os(monkeypatch, utime=fails(errno.EROFS))
    assert read(folder) == CONTENT
    assert warnings() == []


def test_a_real_limit_on_the_size_of_files_is_one_warning(path):
    code = (
        "import logging, resource, sys, pathlib\n"
        "from atomr_trio._compiling.cache_folder import CacheFolder\n"
        "logging.basicConfig(stream=sys.stdout, format='%(levelname)s')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "folder = CacheFolder(pathlib.Path(sys.argv[1]), 1 << 20)\n"
        f"for _ in range(3): folder.write({NAME!r}, bytes(1000))\n"
        f"print(folder.read({NAME!r}))\n"
    )
    assert child(code, str(path)).split() == ["WARNING", "None"]
    assert list(path.iterdir()) == []


def child(code: str, *arguments: str) -> str:
    """Run code in a fresh interpreter, whose branches are not counted: it may die; what it printed."""
    command = [sys.executable, "-c", code, *arguments]
    answer = subprocess.run(command, env=support.child_environment(), capture_output=True, text=True, timeout=100)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


# -- writers that die --------------------------------------------------------------------------------------------------

DYING_WRITERS = f"""
import os, pathlib, signal, sys
from atomr_trio._compiling.cache_folder import CacheFolder

NAME, OLD, NEW = {NAME!r}, b"old" * 50, b"new" * 60
folder = CacheFolder(pathlib.Path(sys.argv[1]), 1 << 20)
STEPS = ("mkdir", "open", "fstat", "stat", "write", "fsync", "close", "rename", "listdir", "scandir")

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def die_after_bytes(limit):
    left, write = limit, os.write
    if left > sealed_bytes:
        return
    def some(descriptor, content):
        nonlocal left
        left -= write(descriptor, content[:left])
        die()
    os.write = some

def die_before_call(number):
    left = number
    def counted(function):
        def call(*arguments, **options):
            nonlocal left
            left -= 1
            if left < 0:
                die()
            return function(*arguments, **options)
        return call
    for name in STEPS:
        setattr(os, name, counted(getattr(os, name)))

def dies(prepare, limit):
    child = os.fork()
    if not child:
        prepare(limit)
        folder.write(NAME, NEW)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])

def sweep(prepare, before, step):
    limit, seen = 0, set()
    while True:
        folder.clear()
        if before is None:
            if folder.path.exists():
                folder.path.rmdir()
        else:
            folder.write(NAME, before)
        died = dies(prepare, limit)
        found = (folder.read(NAME) or [None])[0]
        assert found in (before, NEW), (limit, found)
        assert died or found == NEW, limit
        seen.add(found)
        folder.write(NAME, NEW)
        assert folder.read(NAME)[0] == NEW, limit
        if not died:
            return limit, len(seen)
        limit += step

folder.write(NAME, NEW)
sealed_bytes = (folder.path / NAME).stat().st_size
for prepare, step in ((die_after_bytes, int(sys.argv[2])), (die_before_call, 1)):
    for before in (None, OLD):
        print(*sweep(prepare, before, step))
"""


@pytest.mark.long
def test_a_writer_killed_at_any_byte_or_call_leaves_a_good_cache(path):
    """For each way to die: where it lived, and how many outcomes (old content, new content) were seen.

    Every third byte, but each in `make sweep`.
    """
    step = 1 if support.SWEEP else 3
    lines = [tuple(map(int, line.split())) for line in child(DYING_WRITERS, str(path), str(step)).splitlines()]
    by_bytes, by_calls = lines[:2], lines[2:]
    sealed = (path / NAME).stat().st_size
    assert by_bytes == [(-(-(sealed + 1) // step) * step, 2)] * 2
    assert all(deaths >= 10 and outcomes == 2 for deaths, outcomes in by_calls)


def test_what_dead_writers_left_is_swept_after_an_hour(path):
    stale, fresh = (path / (cache_folder._TEMPORARY + name) for name in ("stale", "fresh"))
    path.mkdir(mode=0o700)
    for each in (stale, fresh):
        each.touch()
    aged(stale, HOUR + 60)
    CacheFolder(path, 1 << 20).write(NAME, CONTENT)
    assert sorted(each.name for each in path.iterdir()) == sorted([NAME, fresh.name])


# -- eviction ----------------------------------------------------------------------------------------------------------


def name_of(number: int) -> str:
    return f"{number:064x}.kernel"


def numbers(folder: CacheFolder) -> set[int]:
    return {int(file.name.partition(".")[0], 16) for file in folder.files()}


def test_the_longest_unused_files_are_evicted(path):
    content = bytes(1000)
    folder = CacheFolder(path, 8 * 1100)
    for number in range(8):
        folder.write(name_of(number), content)
        aged(path / name_of(number), (10 - number) * HOUR)
    assert numbers(folder) == set(range(8))
    assert folder.read(name_of(0)) is not None  # and with that it is the last used
    folder.write(name_of(8), content)
    assert numbers(folder) == {0, 3, 4, 5, 6, 7, 8}
    assert sum(file.bytes for file in folder.files()) <= 8 * 1100


def test_a_use_is_noted_once_an_hour(folder, path):
    folder.write(NAME, CONTENT)
    file = path / NAME
    for age, noted in ((HOUR / 2, False), (2 * HOUR, True), (-2 * HOUR, True)):
        aged(file, age)
        before = file.stat().st_mtime
        folder.read(NAME)
        assert (file.stat().st_mtime != before) == noted
        os.utime(file)


def test_looking_at_a_file_is_no_use(folder, path):
    folder.write(NAME, CONTENT)
    aged(path / NAME, 2 * HOUR)
    before = (path / NAME).stat().st_mtime
    folder.load(NAME)
    assert (path / NAME).stat().st_mtime == before


@pytest.mark.parametrize(("chance", "looks_expected"), [(0, 10), (9_999, 9)])
def test_the_folder_is_looked_through_once_in_a_while_not_at_each_write(path, monkeypatch, chance, looks_expected):
    """With files of 1000 bytes, after every tenth or so; when for the first time is left to chance."""
    monkeypatch.setattr(cache_folder.secrets, "randbelow", lambda limit: min(chance, limit - 1))
    folder = CacheFolder(path, 32 * 9_999)
    looks = []

    def scandir(descriptor: int):
        looks.append(descriptor)
        return os.scandir(descriptor)

    broken_os(monkeypatch, scandir=scandir)
    for number in range(99):
        folder.write(name_of(number), bytes(924))  # 1000 bytes with the head
    assert len(looks) == looks_expected


def test_what_is_larger_than_the_cache_is_not_written_and_not_read(path):
    folder = CacheFolder(path, 500)
    folder.write(NAME, bytes(1000))
    assert not path.exists()
    CacheFolder(path, 5000).write(NAME, bytes(1000))
    assert read(folder) is None
    with pytest.raises(Unusable, match="larger than the whole cache"):
        folder.load(NAME)


def test_two_that_evict_at_once_take_no_more_than_one(path, monkeypatch):
    """The other one deletes the same files first; what is gone counts as room."""
    content = bytes(1000)
    folder = CacheFolder(path, 8 * 1100)
    for number in range(8):
        folder.write(name_of(number), content)
        aged(path / name_of(number), (10 - number) * HOUR)

    def unlink(name: str, *, dir_fd: int) -> None:
        os.unlink(name, dir_fd=dir_fd)
        os.unlink(name, dir_fd=dir_fd)

    broken_os(monkeypatch, unlink=unlink)
    folder.write(name_of(8), content)
    assert numbers(folder) == {2, 3, 4, 5, 6, 7, 8}
