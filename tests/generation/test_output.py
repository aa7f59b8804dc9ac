"""What a worker prints: in lines of bounded length, a bounded piece at a time, whatever it prints."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import struct
import termios
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from atomr_trio._generation import adoption as _adoption
from atomr_trio._generation.loss import StartFailed
from atomr_trio._generation.output import LAST_WORDS, LINE_BYTES, TURN_BYTES, TURN_LINES, WorkerOutput
from support import set_constant
from support.stage import Stage

DEADLINE = 300


class Printer:
    """A process of which nothing is there but the pipe that it prints to."""

    def __init__(self) -> None:
        self.output, self.end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.heard: list[str] = []

    def print(self, data: bytes) -> None:
        """As much of it as there is room for."""
        with contextlib.suppress(BlockingIOError):
            os.write(self.end, data)

    def close(self) -> None:
        for descriptor in (self.output, self.end):
            with contextlib.suppress(OSError):
                os.close(descriptor)


@pytest.fixture
def printer() -> Iterator[Printer]:
    made = Printer()
    yield made
    made.close()


@pytest.fixture
def output(printer: Any) -> WorkerOutput:
    return WorkerOutput(printer, printer.heard.append)


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()


def hear_all(output: WorkerOutput) -> None:
    while output.turn():
        pass


def test_lines_come_one_by_one_and_a_partial_one_when_its_end_has_come(printer, output):
    printer.print(b"first\nsec")
    hear_all(output)
    assert printer.heard == ["first"]
    printer.print(b"ond\n\nlast")
    hear_all(output)
    assert printer.heard == ["first", "second", ""]
    os.close(printer.end)
    hear_all(output)
    assert output.ended
    assert printer.heard == ["first", "second", "", "last"]


def test_a_line_that_does_not_end_comes_in_parts_and_nothing_longer_is_kept(printer, output):
    printed = 0
    for _ in range(100):
        printer.print(b"." * TURN_BYTES)
        printed += TURN_BYTES
        assert output.turn()
        assert printed - sum(map(len, printer.heard)) <= LINE_BYTES
    printer.print(b"end\n")
    hear_all(output)
    assert "".join(printer.heard) == "." * printed + "end"
    assert max(map(len, printer.heard)) == LINE_BYTES


@pytest.mark.parametrize("ahead", range(4))
@pytest.mark.parametrize("character", ["e", "\u00e4", "\u20ac", "\U0001f600"])
def test_no_character_is_cut_in_two_where_a_line_is(printer, output, character, ahead):
    text = "x" * ahead + character * (2 * LINE_BYTES // len(character.encode()))
    printer.print(text.encode() + b"\n")
    hear_all(output)
    assert "".join(printer.heard) == text
    assert all(len(part.encode()) <= LINE_BYTES for part in printer.heard)


def test_a_character_that_comes_in_two_reads_is_whole(printer, output):
    first, *rest = "\U0001f600".encode()
    printer.print(bytes([first]))
    hear_all(output)
    printer.print(bytes(rest) + b"\n")
    hear_all(output)
    assert printer.heard == ["\U0001f600"]


def test_bytes_that_are_no_text_are_cut_too(printer, output):
    printer.print(b"\x80" * 3 * LINE_BYTES)
    hear_all(output)
    assert printer.heard == ["\ufffd" * LINE_BYTES] * 2


@pytest.mark.parametrize("printed", [b"\n", b"a line of some length\n", b"."])
def test_a_turn_reads_little_and_logs_few_lines(printer, output, printed):
    printer.print((printed * 65536)[:65536])
    while True:
        before, unread = len(printer.heard), left_in(printer)
        if not output.turn():
            break
        assert len(printer.heard) - before <= TURN_LINES
        assert unread - left_in(printer) <= TURN_BYTES
    output.end_line()
    assert sum(len(line) + (printed != b".") for line in printer.heard) >= 65536


def left_in(printer: Printer) -> int:
    """How many bytes nobody has read yet."""
    return int(struct.unpack("i", fcntl.ioctl(printer.output, termios.FIONREAD, bytes(4)))[0])


async def test_the_rest_is_all_that_was_printed_and_gives_way_to_others(printer, output):
    turns = itertools.count()

    async def count_turns() -> None:
        while True:
            next(turns)
            await trio.lowlevel.checkpoint()

    printer.print(b"line\n" * 13000 + b"and a half")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        await output.rest()
        nursery.cancel_scope.cancel()
    assert printer.heard == ["line"] * 13000 + ["and a half"]
    assert next(turns) >= 13000 // TURN_LINES


async def test_the_rest_of_a_printer_that_never_stops_has_an_end(printer):
    """What a worker has started may outlive it, and holds the pipe."""
    heard = []

    def hear(line: str) -> None:
        heard.append(line)
        printer.print(b"more\n" * 10)

    printer.print(b"first\n")
    with trio.fail_after(DEADLINE):
        await WorkerOutput(printer, hear).rest()
    assert heard[:2] == ["first", "more"]


# --- a worker that starts ---------------------------------------------------------------------------------------------


async def test_a_worker_that_is_not_ready_in_time_is_told_with_its_last_words(stage, monkeypatch):
    set_constant(monkeypatch, _adoption, "START_TIMEOUT", 0.02)
    os.write(stage.process.output_end, b"importing\nstill importing numpy")
    with pytest.raises(StartFailed, match=r"its last words: importing \| still importing numpy"):
        await stage.generation.start()


async def test_a_context_that_is_lost_in_the_self_test_is_told_with_the_last_words(stage):
    os.write(stage.process.output_end, b"NVRM: something\n")
    stage.tell({"kind": "hello"})
    told = {"kind": "lost", "status": 719, "class": "poisons", "name": "CUDA_ERROR", "text": "the first kernel trapped"}
    stage.tell({**told, "library": "cuda", "operation": "self-test"})
    with pytest.raises(StartFailed, match=r"trapped; its last words: NVRM: something"):
        await stage.generation.start()


async def test_the_last_words_of_a_start_are_few_however_long_its_lines_are(stage):
    for _ in range(3):
        os.write(stage.process.output_end, b"x" * 20000 + b"\n")
    stage.process.worker_end.close()
    with pytest.raises(StartFailed, match=r"last words: \.\.\.x+ \[on device 0\]") as caught:
        await stage.generation.start()
    assert len(str(caught.value)) < 2 * LAST_WORDS


async def test_a_worker_that_prints_for_ever_and_does_not_start_is_given_up(stage, monkeypatch):
    set_constant(monkeypatch, _adoption, "START_TIMEOUT", 0.05)
    log_line = stage.generation.log.line

    def print_more(text: str) -> None:
        log_line(text)
        with contextlib.suppress(BlockingIOError):
            os.write(stage.process.output_end, b"more\n")

    monkeypatch.setattr(stage.generation.output, "_log_line", print_more)
    os.write(stage.process.output_end, b"first\n")
    with trio.fail_after(DEADLINE), pytest.raises(StartFailed, match=r"not ready within 0.05 s; .* more \| more"):
        await stage.generation.start()


async def test_what_a_worker_says_of_its_end_before_it_is_handed_anything_is_the_reason(stage):
    stage.tell({"kind": "hello"})
    stage.generation.inbox.drain()
    stage.tell({"kind": "failed", "text": "the device fell off the bus", "type": "CudaError"})
    stage.process.worker_end.close()
    with pytest.raises(StartFailed, match="could not be started: the device fell off the bus"):
        await stage.generation.start()


# --- a worker that ends -----------------------------------------------------------------------------------------------


async def test_what_a_worker_said_last_is_heard_although_it_left_records_unread(stage):
    """The kernel reports the unread records first, as a reset connection."""
    stage.generation.request_faults("")
    told = {"kind": "lost", "status": 700, "class": "poisons", "name": "CUDA_ERROR", "text": "the kernel ran wild"}
    stage.tell({**told, "library": "cuda", "operation": "module.launch"})
    stage.process.worker_end.close()
    stage.generation.inbox.drain()
    assert stage.generation.loss is not None
    assert stage.generation.loss.reason == "the kernel ran wild"
