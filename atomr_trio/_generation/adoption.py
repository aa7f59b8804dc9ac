"""How a worker process becomes the worker of a generation, and how it leaves it: hello, memory, ready; reset, end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

import trio

from .._supervision.realtime import Patience
from .._values.errors import AtomrInternalError, DeviceFailed
from .._wire import channel
from .._wire.channel import SharedMemory
from .._wire.host_reading import beacon
from .._wire.limits import reason_of
from .._wire.records import context as context_records
from .chunks import Chunks
from .inbox import Inbox
from .life import Event, Life, State
from .loss import StartFailed, start_failure
from .output import OutputLog, WorkerOutput
from .process import WorkerProcess
from .sender import Sender
from .settler import Settler
from .timeline import Timeline

START_TIMEOUT = 60.0
END_TIMEOUT = 1.0  # of a process whose socket has ended; what is still there is killed
REAP_TIMEOUT = 30.0
"""Seconds of real time, as for all of the above: a test's clock must not make a healthy worker look dead."""


class Adoption:
    """The beginning and the orderly end of one generation's worker."""

    def __init__(
        self,
        life: Life,
        process: WorkerProcess,
        timeline: Timeline,
        sender: Sender,
        chunks: Chunks,
        inbox: Inbox,
        settler: Settler,
        output: WorkerOutput,
        log: OutputLog,
        *,
        staging: SharedMemory,
        wake: int,
        bell: int,
        spin: float,
    ) -> None:
        self._life = life
        self._process = process
        self._timeline = timeline
        self._sender = sender
        self._chunks = chunks
        self._inbox = inbox
        self._settler = settler
        self._output = output
        self._log = log
        self._staging = staging
        self._wake = wake
        self._bell = bell
        self._spin = spin

    def __repr__(self) -> str:
        return f"<Adoption of worker {self._process.pid} by generation {self._life.number}, {self._life.state.value}>"

    @trio.lowlevel.enable_ki_protection
    async def run(self, show: Callable[[], None]) -> None:
        """Wait until the worker is ready for records. Raises `StartFailed`, at the latest after `START_TIMEOUT`.

        From the moment that `show` is called, the generation must be told of every chunk that is added or removed.
        """
        patience = Patience(START_TIMEOUT)
        while self._life.state is State.SPAWNED:
            await self._wait_message(patience)
        self._process.moments["greeting read"] = time.monotonic()
        try:
            self.hand_over()
        except ConnectionError:
            await self._ended_while_starting()
        except OSError as error:
            text = f"the worker could not be handed its memory: {reason_of(error)}"
            raise self._failure(text) from None
        show()
        self._process.moments["memory handed over"] = time.monotonic()
        while self._life.state is State.ADOPTED or (self._life.state is State.READY and self._chunks.peers_asked):
            await self._wait_message(patience)
        self._process.moments |= self._inbox.started.get("moments", {})
        self._process.moments["ready read"] = time.monotonic()

    def hand_over(self) -> None:
        """Hand over the page, the staging area and every chunk. The worker says `ready` after its self-test."""
        ring, chunks = self._sender.ring, self._chunks.given()
        message = {
            "staging_bytes": self._staging.size,
            "durable": True,
            "ring": ring is not None,
            "spin_seconds": self._spin,
            "beacon": beacon().described(),
            "chunks": [(chunk.address, chunk.size) for chunk in chunks],
        }
        if self._chunks.peers is not None:
            message["peers"] = self._chunks.peers.ranges()
        descriptors = [self._timeline.page.descriptor, self._staging.descriptor, self._wake, self._bell]
        if ring is not None:
            descriptors.append(ring.descriptor)
        descriptors += [chunk.descriptor for chunk in chunks]
        channel.send_message(self._process.sock, message, descriptors)
        self._life.move(Event.ADOPTED)
        self._chunks.map_peers()

    async def _wait_message(self, patience: Patience) -> None:
        if not await self._hears(self._process.sock.fileno(), patience):
            await self._output.rest()
            raise self._failure(f"the worker was not ready within {START_TIMEOUT:g} s")
        self._inbox.drain()
        if self._inbox.ended:
            await self._ended_while_starting()
        loss = self._life.loss
        if loss is not None:
            await self._output.rest()
            reason = loss.reason + self._log.last_words()
            raise StartFailed(DeviceFailed(reason, device=self._life.device, status=loss.status), gone=loss.gone)

    async def _ended_while_starting(self) -> NoReturn:
        self._inbox.drain()  # they may contain the reason
        if not self._process.reap():  # it is about to end by itself, and then its end tells who has ended it
            await Patience(END_TIMEOUT).readable(self._process.pidfd)
        await reap(self._process)
        await self._output.rest()
        raise self._failure(f"the worker {self._process.end_text()} while it started")

    def _failure(self, text: str) -> StartFailed:
        return start_failure(self._life.device, {"text": text}, self._log.last_words())

    @trio.lowlevel.enable_ki_protection
    async def end(self, deadline: float) -> None:
        """Ask the worker to release everything and exit, and wait for that until `deadline`.

        `deadline` is on the clock of `time.monotonic`, here and in `reset`.
        """
        self._sender.send_control(context_records.CLOSE)
        await self._hears(self._process.pidfd, Patience(deadline - time.monotonic()))

    @trio.lowlevel.enable_ki_protection
    async def reset(self, deadline: float) -> bool:
        """Make the worker release everything but its context. Returns whether it has done so by `deadline`.

        Unfinished work must end by itself. The process can then be adopted again, as another generation; a process that
        was never adopted can be adopted at once.
        """
        if self._life.state not in (State.SPAWNED, State.GREETED):
            self._life.move(Event.RESET)
            self._sender.send_control(context_records.RESET)
            if not await self._is_greeted_again(Patience(deadline - time.monotonic())):
                return False
            self._settler.settle_finished()
        await self._output.rest()
        self._process.greeted = self._life.state is State.GREETED
        return self._timeline.idle

    async def _is_greeted_again(self, patience: Patience) -> bool:
        while self._life.state is not State.GREETED:
            if self._sender.outbox or not await self._hears(self._process.sock.fileno(), patience):
                return False
            try:
                self._inbox.drain()
            except StartFailed:
                return False
            if self._inbox.ended or self._life.loss is not None:
                return False
        return True

    async def _hears(self, descriptor: int, patience: Patience) -> bool:
        """Wait for a descriptor of the worker, and read its output meanwhile. Returns whether it is readable."""
        watched = {descriptor, self._process.output}
        while ready := await patience.readable(*watched):
            if self._process.output in ready and not self._output.turn() and self._output.ended:
                watched.remove(self._process.output)
            if descriptor in ready:
                return True
            if patience.left <= 0:  # a worker that prints without end is not read for ever
                break
        return False


@trio.lowlevel.enable_ki_protection
async def reap(process: WorkerProcess) -> None:
    """Kill a worker and wait until the kernel has reaped it. From then on it touches no memory."""
    process.kill()
    patience = Patience(REAP_TIMEOUT)
    while not process.reap():
        # A process that is readable and not reaped is held by a debugger, or one will reap it first.
        if not await patience.readable(process.pidfd) or patience.left <= 0:
            raise AtomrInternalError(f"worker {process.pid} was killed and not reaped within {REAP_TIMEOUT:g} s")


@trio.lowlevel.enable_ki_protection
async def discard(process: WorkerProcess) -> None:
    """End a worker that never served. It may have ended before."""
    with trio.CancelScope(shield=True):  # bounded by `reap` itself
        await reap(process)
    process.close()
