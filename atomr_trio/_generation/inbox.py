"""What comes from the worker by its socket: each message is handed to the part that it concerns."""

from __future__ import annotations

import collections
import contextlib
import json
from collections.abc import Callable
from typing import Any

import trio

from .._memory.arena import Ticket
from .._values.findings import in_short, read_findings
from .._wire import channel
from .._wire.channel import NO_DESCRIPTOR
from .._wire.records import context as context_records
from .._wire.status import StatusClass
from .chunks import Chunks
from .life import Event, Life, State
from .loss import Loss, LossKind, start_failure
from .output import OutputLog
from .process import WorkerProcess
from .sender import Sender

_NO_PLACES = contextlib.nullcontext()


class Inbox:
    """The messages of one worker."""

    def __init__(self, life: Life, process: WorkerProcess, sender: Sender, chunks: Chunks, log: OutputLog) -> None:
        self.ended: bool = False
        """True if the socket has ended: the worker can say nothing any more."""
        self.started: dict[str, Any] = {}
        """What the worker has said of its device when it became ready."""
        self.failures: dict[Ticket, dict[str, Any]] = {}
        """The errors of commands, which belong to tickets that are not settled yet."""
        self.results: dict[Ticket, Any] = {}
        """The results of commands, likewise."""
        self.questions: dict[int, Callable[[dict[str, Any]], None]] = {}
        """What takes the answers to questions about what belongs to no lane, by the number of the question."""
        self._life = life
        self._process = process
        self._sender = sender
        self._chunks = chunks
        self._log = log
        self._buffer = bytearray(channel.MAX_MESSAGE)
        self._probes: collections.deque[trio.Event] = collections.deque()

    def __repr__(self) -> str:
        return f"<Inbox {'ended' if self.ended else 'open'}, of generation {self._life.number}>"

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Read the worker's messages; a fault that it reports ends the generation."""
        while not self.ended:
            await trio.lowlevel.wait_readable(self._process.sock)
            self.drain()

    @trio.lowlevel.enable_ki_protection
    async def probe(self) -> None:
        """Ask the worker whether the context is healthy; if it is not, the generation is lost and this is cancelled."""
        answered = trio.Event()
        self._probes.append(answered)  # two actors may ask at the same time; the answers come in order
        self._sender.send_control(context_records.PROBE)
        await answered.wait()

    def drain(self) -> None:
        """Handle every message that has arrived; none any more once another generation has taken over."""
        while not self.ended and self._life.state is not State.BURIED:
            try:
                with self._chunks.places if self._chunks.places.held else _NO_PLACES:
                    data, descriptors = channel.receive_bytes(self._process.sock, self._buffer)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # it left records unread; the kernel reports that once, before the messages that it had sent
            if not data:
                self.ended = True
                return
            try:
                self._handle(json.loads(data), descriptors)
            except (ValueError, KeyError, IndexError, TypeError) as garbled:
                # The worker's memory was overwritten: not an internal error here, but the end of that worker.
                reason = f"the worker sent a message that cannot be read: {garbled!r}"
                self._life.lose(Loss(LossKind.EXIT, reason, reported_by="the reader"))

    def _handle(self, message: dict[str, Any], descriptors: list[int]) -> None:
        kind = message.pop("kind")
        match kind:
            case "error":
                self.failures[message["lane"], message["ticket"]] = message
            case "result":
                # A long answer comes in parts.
                self.results.setdefault((message["lane"], message["ticket"]), {}).update(message["value"])
            case "lost":
                self._life.lose(self._fault(message))
            case "answer":
                take = self.questions.pop(message.pop("question"), None)
                if take is not None:  # or the question was that of an earlier generation of the same process
                    take(message)
            case "chunk":
                self._chunks.came(message["address"], descriptors.pop())
            case "exported":
                self._chunks.exported(message["address"], descriptors.pop() if descriptors else NO_DESCRIPTOR)
            case "peer_chunk":
                self._chunks.peer_answered(mapped=message["error"] is None)
            case "released":
                self._chunks.released(message["chunks"])
            case "probed":
                self._probes.popleft().set()
            case "room":
                self._sender.drain()
            case "hello":
                self._life.move(Event.HELLO)
            case "ready":
                self.started = message
                self._life.move(Event.STARTED)
            case "failed":
                raise start_failure(self._life.device, message, self._log.last_words())
            case _:
                raise ValueError(f"there is no message of kind {kind!r}")

    def _fault(self, message: dict[str, Any]) -> Loss:
        findings = read_findings(self._process.findings())
        reason = in_short(findings) if findings else message["text"] or message["name"]
        return Loss(
            LossKind.FAULT,
            reason,
            status=message["status"],
            status_class=StatusClass(message["class"]),
            status_name=message["name"],
            library=message["library"],
            operation=message["operation"],
            findings=findings,
            reported_by=f"the driver, to {message['operation']}",
        )
