"""A generation whose worker the test plays itself: it sees what is sent, and says what has become of it."""

from __future__ import annotations

import os
from typing import Any

import pytest

from atomr_trio._generation.generation import Generation
from atomr_trio._generation.timeline import Command
from atomr_trio._memory.arena import Arena, Block, ChunkState
from atomr_trio._values.errors import (
    ContextLost,
    DeviceError,
)
from atomr_trio._wire import channel
from atomr_trio._wire.channel import SharedMemory
from atomr_trio._wire.protocol import (
    HEADER,
    Role,
    Verb,
    counter_word,
    decode_wait,
)
from atomr_trio._wire.records.context import CONTEXT
from atomr_trio._wire.records.memory import MEMORY
from atomr_trio._wire.records.module import MODULE
from atomr_trio._wire.ring import ORDERED_STORES
from atomr_trio._wire.status import classify

VERBS = {(table.number, verb.number): verb for table in (CONTEXT, MEMORY, MODULE) for verb in table.verbs}

needs_ring = pytest.mark.skipif(not ORDERED_STORES, reason="on this processor records go through the socket")
"""For tests of a worker that has a ring."""


class FakeProcess:
    """Stands for a worker process: a socket whose other end the test holds."""

    def __init__(self) -> None:
        self.sock, self.worker_end = channel.open_pair()
        self.sock.setblocking(False)
        self.worker_end.setblocking(False)
        self.output, self.output_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.pid = 0
        self.backend = "sim"
        self.greeted = False
        self.moments: dict[str, float] = {}

    def kill(self) -> None:
        """It has ended already."""

    def reap(self) -> bool:
        return True

    def end_text(self) -> str:
        return "exited with status 70"

    def findings(self) -> list[dict[str, object]]:
        return []

    def close(self) -> None:
        self.sock.close()
        self.worker_end.close()
        if self.output >= 0:
            os.close(self.output)
            os.close(self.output_end)
            self.output = -1


class Owner:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        self.heard.append(("error", error) if error is not None else ("value", value))

    def command_lost(self, command: Command, error: DeviceError) -> None:
        self.heard.append(("lost", error))

    @property
    def error(self) -> DeviceError:
        (kind, error), *more = self.heard
        assert kind == "error"
        assert not more
        return error


class Record:
    """One record as a worker reads it."""

    def __init__(self, data: bytes, descriptors: list[int]) -> None:
        self.ticket, self.lane, engine, verb, waits, length = HEADER.unpack_from(data)
        start = HEADER.size + 8 * waits
        assert len(data) == start + length
        self.verb: Verb = VERBS[engine, verb]
        self.waits = {decode_wait(int.from_bytes(data[at : at + 8], "little")) for at in range(16, start, 8)}
        self.payload = data[start:]
        self.descriptors = descriptors


class Stage:
    """A generation, and the hands of its worker."""

    def __init__(self, hang_timeout: float | None = None, *, with_ring: bool = False) -> None:
        self.process = FakeProcess()
        self.staging = SharedMemory.create("atomr-test-staging", 4096)
        self.arena = Arena(1 << 44, 1 << 40, 1 << 32)
        process: Any = self.process
        self.generation = Generation(0, 3, process, self.arena, self.staging, hang_timeout, with_ring=with_ring)

    def ready_block(self, size: int = 512) -> Block:
        """A block whose chunk exists."""
        block = self.arena.allocate(size)
        block.chunk.state = ChunkState.READY
        return block

    def publish(self, lane: int, verb: Verb, *operands: tuple[Block, Role], **more: Any) -> Owner:
        owner = Owner()
        self.generation.publish(lane, verb, b"", operands, owner, **more)
        return owner

    def records(self) -> list[Record]:
        """What has been sent since the last call."""
        found = []
        while True:
            try:
                data, descriptors = channel.receive_bytes(self.process.worker_end, bytearray(channel.MAX_MESSAGE))
            except BlockingIOError:
                return found
            found.append(Record(data, descriptors))

    def finish(self, lane: int, ticket: int) -> None:
        """The GPU reaches a ticket."""
        self.generation.page.words[counter_word(lane)] = ticket
        self.generation.settler.settle_finished()

    def fail(self, lane: int, ticket: int, status: int, name: str = "CUDA_ERROR", text: str = "no") -> None:
        """The worker says that one command failed; its ticket still has to be reached."""
        self.generation.page.set_status(lane, ticket, status)
        message = {"kind": "error", "lane": lane, "ticket": ticket}
        message |= {"status": status, "class": classify(status).value, "name": name, "text": text, "library": "cuda"}
        self.tell(message)

    def tell(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        channel.send_message(self.process.worker_end, message, descriptors or [])

    def lose(self) -> None:
        """The end of the worker, after its reap."""
        self.generation.settle_reaped(lambda: ContextLost("lost", device=0, generation=3))

    def close(self) -> None:
        self.generation.close()
        self.staging.close()
        self.arena.close()
