"""Descriptors that come with messages, and limits of sizes, as one process sees them."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from atomr_trio._wire import limits
from atomr_trio._wire.channel import (
    MAX_MESSAGE,
    MAX_TEXT,
    NO_DESCRIPTOR,
    check_all_came,
    clip,
    receive_bytes,
    send_bytes,
    set_size,
)


def test_descriptors_come_with_their_message_and_are_not_inherited():
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine, theirs:
        reading, writing = os.pipe()
        send_bytes(mine, b"with two", [reading, writing])
        send_bytes(mine, b"with none")
        buffer = bytearray(MAX_MESSAGE)
        data, came = receive_bytes(theirs, buffer)
        assert data == b"with two"
        assert len(came) == 2
        assert not any(map(os.get_inheritable, came))
        check_all_came(came)
        os.write(came[1], b"x")
        assert os.read(reading, 1) == b"x"
        assert receive_bytes(theirs, buffer) == (b"with none", [])
        for descriptor in (reading, writing, *came):
            os.close(descriptor)


def test_a_descriptor_that_was_dropped_costs_those_that_came():
    reading, writing = os.pipe()
    with pytest.raises(OSError) as caught:
        check_all_came([reading, NO_DESCRIPTOR, writing])
    assert caught.value.errno == errno.EMFILE
    for descriptor in (reading, writing):
        with pytest.raises(OSError):
            os.fstat(descriptor)


def test_a_long_text_is_cut():
    assert clip("short") == "short"
    assert clip("x" * (MAX_TEXT + 1)) == "x" * MAX_TEXT + "..."


@pytest.mark.parametrize(("number", "says"), [(errno.EFBIG, "RLIMIT_FSIZE"), (errno.ENOSPC, "no room")])
def test_a_size_that_is_refused_names_the_limit_if_it_is_one(monkeypatch, number, says):
    def refuse(descriptor: int, size: int) -> None:
        raise OSError(number, "no room")

    monkeypatch.setattr(os, "ftruncate", refuse)
    with pytest.raises(OSError, match=says):
        set_size(3, 1 << 40)


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.EMFILE, "no file descriptor is left"),
        (errno.ETOOMANYREFS, "too many file descriptors are being sent"),
        (errno.ENFILE, "the whole system has no file descriptor left"),
    ],
)
def test_a_shortage_is_told_by_its_limit(number, says):
    text = limits.shortage(OSError(number, "?"))
    assert text is not None
    assert says in text


def test_limits_that_are_low_are_named(monkeypatch):
    few = {limits.resource.RLIMIT_NOFILE: 3, limits.resource.RLIMIT_AS: 1 << 30, limits.resource.RLIMIT_NPROC: 3}
    monkeypatch.setattr(limits, "soft_limit", lambda which: few.get(which, limits.resource.RLIM_INFINITY))
    assert all(name in limits.low_limits() for name in ("RLIMIT_NOFILE", "RLIMIT_AS", "RLIMIT_NPROC"))
    few.clear()
    assert limits.low_limits() == ""
