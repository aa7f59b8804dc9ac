"""Shared memory that is populated by a thread: its pages exist, and no byte changes."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from atomr_trio._transfers import populating
from atomr_trio._transfers.populating import Populating
from atomr_trio._wire.channel import SharedMemory
from support.descriptors import open_descriptors

SIZE = (5 << 20) + 4096


def is_supported() -> bool:
    return tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (5, 14)


@pytest.mark.skipif(not is_supported(), reason="MADV_POPULATE_WRITE is of Linux 5.14")
def test_the_pages_exist_and_what_was_written_stays() -> None:
    before = open_descriptors(collect=True)
    memory = SharedMemory.create("populated", SIZE)
    memory.bytes[SIZE - 3 :] = b"end"
    assert os.fstat(memory.descriptor).st_blocks * 512 < SIZE / 2
    Populating(memory).wait()
    assert os.fstat(memory.descriptor).st_blocks * 512 >= SIZE
    assert bytes(memory.bytes[SIZE - 3 :]) == b"end"
    assert not any(memory.bytes[: 1 << 16])
    memory.close()
    assert open_descriptors() == before


def test_memory_may_be_closed_meanwhile() -> None:
    before = open_descriptors(collect=True)
    memory = SharedMemory.create("populated", SIZE)
    populating = Populating(memory)
    memory.close()
    populating.wait()
    assert open_descriptors() == before


def test_it_ends_at_once_with_nothing_left_when_that_is_asked() -> None:
    before = open_descriptors(collect=True)
    memory = SharedMemory.create("populated", 200 * SIZE)
    Populating(memory).end()
    assert os.fstat(memory.descriptor).st_blocks * 512 < 200 * SIZE
    memory.close()
    assert open_descriptors() == before


def test_an_old_system_that_refuses_it_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(populating, "_POPULATE_WRITE", 9999)
    memory = SharedMemory.create("populated", SIZE)
    Populating(memory).wait()
    assert os.fstat(memory.descriptor).st_blocks == 0
    memory.close()


def test_without_a_descriptor_or_a_thread_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SharedMemory.create("populated", SIZE)
    before = open_descriptors(collect=True)

    def no_thread(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def no_descriptor(_descriptor: int) -> int:
        raise OSError(errno.EMFILE, "none is left")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        Populating(memory).end()
    assert open_descriptors() == before
    with monkeypatch.context() as patched:
        patched.setattr(os, "dup", no_descriptor)
        Populating(memory).end()
    memory.close()
