"""The chunks of device memory of one worker: made, mapped, released, and their descriptors kept here.

Memory outlives its worker by the descriptor of its chunk. The worker sends it when it has made the chunk; each standby
gets a copy of it and maps the chunk too.
"""

from __future__ import annotations

import collections
import contextlib
import os
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from .._memory.arena import Arena, Chunk, ChunkState
from .._memory.peers import PeerChunk
from .._supervision.closing import close_in_thread
from .._values.errors import CommandFailed, DeviceError, OutOfHostMemory
from .._wire.channel import NO_DESCRIPTOR
from .._wire.protocol import LANE_COMPUTE
from .._wire.records import context as context_records
from .._wire.records.memory import CREATE_CHUNK, MAP_PEER, RELEASE_CHUNK, UNMAP_PEER
from .life import Life, State
from .loss import Loss, LossKind
from .places import Places
from .sender import Sender, close_all
from .timeline import Command, CommandOwner, Unwatched

if TYPE_CHECKING:
    from .services import PeerMemory, Publisher


class Mirror(Protocol):
    """A standby, which has every chunk too."""

    @property
    def chunks(self) -> Chunks:
        """Its chunks."""


class Chunks:
    """The chunks of one generation."""

    def __init__(
        self, life: Life, sender: Sender, arena: Arena | None, standbys: Sequence[Mirror], any_descriptor: int
    ) -> None:
        self.durable: bool = True
        """True if chunks have descriptors, and so outlive the worker."""
        self.places: Places = Places(any_descriptor)
        """The places for descriptors that the worker was asked for."""
        self._life = life
        self._sender = sender
        self._arena = arena
        self._standbys = standbys
        self._mapped: dict[int, Chunk] = {}
        """The chunks that the worker was given, by address."""
        self._unkept: dict[int, Chunk] = {}
        """Chunks, by address, whose descriptor was dropped because this process had no place for it."""
        self.peers: PeerMemory | None = None
        """The memory of the other devices of the group; None for a device without a group."""
        self._peer_chunks: dict[int, PeerChunk] = {}
        """The chunks of other devices that the worker has mapped, by address."""
        self._peers_asked: collections.deque[PeerChunk | None] = collections.deque()
        """Those that it was asked for ahead of time, and has not answered; None for one that is not wanted any more."""

    def __repr__(self) -> str:
        return f"<Chunks: {len(self._mapped)} given, {len(self._unkept)} without a descriptor>"

    @property
    def arena(self) -> Arena:
        """The device's arena; it exists once the first worker has reported the size of the memory."""
        if self._arena is None:
            raise AssertionError("the arena is used before the first worker is ready")
        return self._arena

    @arena.setter
    def arena(self, arena: Arena) -> None:
        self._arena = arena

    def collect(self, most: int) -> bool:
        """Free some blocks of collected arrays. Returns false if there were none."""
        if self._arena is None or not self._arena.orphans:
            return False
        self._arena.collect(most)
        return True

    # --- made and released by commands ----------------------------------------------------------------------------

    def require(self, chunk: Chunk, required: set[int], publisher: Publisher) -> None:
        """Create a chunk that does not exist yet, and add the ticket of its creation to `required`.

        Raises `OutOfHostMemory`, before anything is published.
        """
        if chunk.state is not ChunkState.READY:
            if chunk.state is ChunkState.PLANNED:
                if isinstance(chunk, PeerChunk):
                    self._map_peer(chunk, publisher)
                else:
                    self._create(chunk, publisher)
            required.add(chunk.ticket)

    def _create(self, chunk: Chunk, publisher: Publisher) -> None:
        if self.durable:
            with self._life.host_limits("a descriptor of new device memory has no place", CREATE_CHUNK.operation):
                self.places.hold(chunk.address)
        self.release_retired(publisher)
        spare = self.arena.offer_unused()
        payload = CREATE_CHUNK.struct.pack(chunk.address, chunk.size)
        payload += b"".join(each.address.to_bytes(8, "little") for each in spare)
        chunk.state = ChunkState.CREATING
        owner = _ChunkOwner(self, chunk, spare)
        after = [ticket for each in spare for ticket in each.last_use(self._life.number)]
        command = publisher.publish(LANE_COMPUTE, CREATE_CHUNK, payload, (), owner, after=after)
        chunk.ticket = command.ticket

    def release_retired(self, publisher: Publisher, then: CommandOwner | None = None) -> int:
        """Release the chunks that the arena has dropped to the GPU. Returns their bytes; `then` is told of the end."""
        retired, self.arena.retired = self.arena.retired, []
        for number, chunk in enumerate(retired, 1):
            owner = _ReleaseOwner(self, chunk, then if number == len(retired) else None)
            payload = RELEASE_CHUNK.struct.pack(chunk.address)
            after = chunk.last_use(self._life.number)
            publisher.publish(LANE_COMPUTE, RELEASE_CHUNK, payload, (), owner, after=after)
        return sum(chunk.size for chunk in retired)

    # --- their descriptors ----------------------------------------------------------------------------------------

    def came(self, address: int, descriptor: int) -> None:
        """Keep the descriptor of a chunk that the worker has made, or `NO_DESCRIPTOR` if there was no place for it."""
        self.places.give_up(address)
        chunk = next((each for each in self.arena.chunks if each.address == address), None)
        if chunk is None:
            close_all(each for each in (descriptor,) if each != NO_DESCRIPTOR)
        elif descriptor == NO_DESCRIPTOR:
            self._unkept[address] = chunk
        else:
            self._keep(chunk, descriptor)

    def exported(self, address: int, descriptor: int) -> None:
        """Keep a descriptor that was asked for again."""
        self.places.give_up(address)
        if descriptor != NO_DESCRIPTOR:
            chunk = self._unkept.pop(address, None)
            if chunk is None:  # it was given back meanwhile
                os.close(descriptor)
            else:
                self._keep(chunk, descriptor)

    def released(self, addresses: list[int]) -> None:
        """Drop the spare chunks that the worker has released to make room for another."""
        for chunk in [each for each in self.arena.chunks if each.address in addresses]:
            self.arena.drop(chunk)
            self.let_go(chunk)

    def ask_for_unkept(self) -> None:
        """Make the worker send the dropped descriptors again: memory outlives it only with its descriptor."""
        for address in self._unkept:
            if not self.places.awaits(address):
                with contextlib.suppress(OSError):  # there is no place yet
                    self.places.hold(address)
                    payload = context_records.EXPORT_CHUNK.struct.pack(address)
                    self._sender.send_control(context_records.EXPORT_CHUNK, payload)

    def await_no_more(self, chunk: Chunk) -> None:
        """Note that a chunk's descriptor has come, or never will."""
        if self._unkept.get(chunk.address) is not chunk:
            self.places.give_up(chunk.address)

    def let_go(self, chunk: Chunk, then: Callable[[], None] | None = None) -> None:
        """Close a chunk that the arena and the worker no longer have, here and in the standbys; then call `then`."""
        if self._unkept.get(chunk.address) is chunk:
            del self._unkept[chunk.address]
        for standby in self._standbys:
            standby.chunks.unmirror(chunk)
        if self.peers is not None:
            self.peers.chunk_ended(chunk)
        close_in_thread(chunk.part_with_descriptor(), [], then)

    def close(self) -> None:
        """Release the places of descriptors: none will come."""
        self.places.close()

    def _keep(self, chunk: Chunk, descriptor: int) -> None:
        chunk.close()
        chunk.descriptor = descriptor
        for standby in self._standbys:
            standby.chunks.mirror(chunk)

    # --- those of a standby ---------------------------------------------------------------------------------------

    def given(self) -> list[Chunk]:
        """Return the chunks to give a worker that is being adopted, and note that it has them."""
        chunks = [] if self._arena is None else [chunk for chunk in self._arena.chunks if chunk.descriptor >= 0]
        self._mapped = {chunk.address: chunk for chunk in chunks}
        return chunks

    def mirror(self, chunk: Chunk) -> None:
        """Make a standby's worker map a chunk, whose descriptor has just come."""
        for other in [each for each in self._mapped.values() if _overlap(each, chunk)]:
            self.unmirror(other)
        self._mapped[chunk.address] = chunk
        try:
            copies = self._sender.copies_of((chunk.descriptor,), context_records.MAP_CHUNK.operation)
        except OutOfHostMemory as refused:  # it can be started again
            self._life.lose(Loss(LossKind.EXIT, refused.message, reported_by="the writer"))
            return
        payload = context_records.MAP_CHUNK.struct.pack(chunk.address, chunk.size)
        self._sender.send_control(context_records.MAP_CHUNK, payload, copies)

    def unmirror(self, chunk: Chunk) -> None:
        """Make a standby's worker release a chunk, if it has it."""
        if self._mapped.get(chunk.address) is chunk:
            del self._mapped[chunk.address]
            payload = context_records.UNMAP_CHUNK.struct.pack(chunk.address)
            self._sender.send_control(context_records.UNMAP_CHUNK, payload)

    def unmirror_dropped(self) -> None:
        """Make a standby's worker release the chunks that exist no more."""
        for chunk in list(self._mapped.values()):
            if chunk not in self.arena.chunks:
                self.unmirror(chunk)

    # --- those of other devices -----------------------------------------------------------------------------------

    def _map_peer(self, chunk: PeerChunk, publisher: Publisher) -> None:
        """Make the worker in service map a chunk of another device. Raises `CommandFailed` or `OutOfHostMemory`."""
        descriptor = chunk.home.descriptor
        if descriptor < 0:
            raise CommandFailed(
                "the other device's memory has no descriptor in this process, and cannot be mapped",
                device=self._life.device,
                generation=self._life.number,
                operation=MAP_PEER.operation,
                advice="copy the array through the host",
            )
        payload = MAP_PEER.struct.pack(chunk.address, chunk.size)
        owner = _PeerOwner(self, chunk)
        command = publisher.publish(LANE_COMPUTE, MAP_PEER, payload, (), owner, descriptors=(descriptor,))
        chunk.state = ChunkState.CREATING
        chunk.ticket = command.ticket

    def map_peers(self) -> None:
        """Make a worker that was just adopted map what the device uses of others."""
        for chunk in () if self.peers is None else self.peers.wanted():
            self.mirror_peer(chunk)

    def mirror_peer(self, chunk: PeerChunk) -> None:
        """Make a worker without commands map a chunk of another device. If it cannot, the first use tries again."""
        with contextlib.suppress(OutOfHostMemory):
            copies = self._sender.copies_of((chunk.home.descriptor,), context_records.MAP_PEER_CHUNK.operation)
            self._peers_asked.append(chunk)
            payload = context_records.MAP_PEER_CHUNK.struct.pack(chunk.address, chunk.size)
            self._sender.send_control(context_records.MAP_PEER_CHUNK, payload, copies)

    @property
    def peers_asked(self) -> bool:
        """True if the worker has not answered yet for a chunk that it was asked for ahead of time."""
        return bool(self._peers_asked)

    def peer_answered(self, *, mapped: bool) -> None:
        """Note that the worker has mapped the next of the chunks that it was asked for ahead of time, or cannot."""
        chunk = self._peers_asked.popleft()
        if chunk is not None and mapped:
            self._peer_chunks[chunk.address] = chunk

    def peer_mapped(self, chunk: PeerChunk) -> None:
        """Note that the worker in service has mapped a chunk of another device; the standbys follow."""
        self._peer_chunks[chunk.address] = chunk
        for standby in self._standbys:
            standby.chunks.mirror_peer(chunk)

    def has_peer(self, chunk: PeerChunk) -> bool:
        """Return whether the worker has mapped this chunk of another device."""
        return self._peer_chunks.get(chunk.address) is chunk

    def release_peer(self, chunk: PeerChunk, publisher: Publisher) -> None:
        """Make the worker release a chunk of another device, if it has it, or was asked for it."""
        asked = chunk in self._peers_asked
        self._peers_asked = collections.deque(None if each is chunk else each for each in self._peers_asked)
        has = self.has_peer(chunk)
        if has:
            del self._peer_chunks[chunk.address]
        if not (has or asked or chunk.state is ChunkState.CREATING) or self._life.loss is not None:
            return
        if self._life.state is State.SERVING:
            publisher.publish(LANE_COMPUTE, UNMAP_PEER, UNMAP_PEER.struct.pack(chunk.address), (), Unwatched())
        else:
            payload = context_records.UNMAP_PEER_CHUNK.struct.pack(chunk.address)
            self._sender.send_control(context_records.UNMAP_PEER_CHUNK, payload)

    def release_other_peers(self, wanted: Collection[PeerChunk], publisher: Publisher) -> None:
        """Make the worker release what it has of other devices but these."""
        has = {*self._peer_chunks.values(), *(each for each in self._peers_asked if each is not None)}
        for chunk in has.difference(wanted):
            self.release_peer(chunk, publisher)


def _overlap(first: Chunk, second: Chunk) -> bool:
    return first.address < second.address + second.size and second.address < first.address + first.size


class _ChunkOwner:
    """The owner of the creation of a chunk."""

    def __init__(self, chunks: Chunks, chunk: Chunk, spare: list[Chunk]) -> None:
        self._chunks = chunks
        self._arena = chunks.arena
        self._chunk = chunk
        self._spare = spare

    def _take_back(self) -> None:
        for chunk in self._spare:
            chunk.offered = False

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        self._take_back()
        self._chunks.await_no_more(self._chunk)
        if self._chunk.ticket == command.ticket:
            if error is None:
                self._chunk.state = ChunkState.READY
            else:
                self._arena.creation_failed(self._chunk)

    def command_lost(self, command: Command, error: DeviceError) -> None:
        self._take_back()


class _PeerOwner:
    """The owner of the mapping of another device's chunk."""

    def __init__(self, chunks: Chunks, chunk: PeerChunk) -> None:
        self._chunks = chunks
        self._chunk = chunk

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        if self._chunk.ticket == command.ticket and self._chunk.state is ChunkState.CREATING:
            self._chunk.state = ChunkState.PLANNED if error is not None else ChunkState.READY
            if error is None:
                self._chunks.peer_mapped(self._chunk)

    def command_lost(self, command: Command, error: DeviceError) -> None:
        """Nothing to do: the next generation begins with what its worker has."""


class _ReleaseOwner:
    """The owner of the release of a chunk that the arena has dropped."""

    def __init__(self, chunks: Chunks, chunk: Chunk, then: CommandOwner | None) -> None:
        self._chunks = chunks
        self._chunk = chunk
        self._then = then

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        then = self._then
        self._chunks.let_go(self._chunk, None if then is None else lambda: then.command_finished(command, error, value))

    def command_lost(self, command: Command, error: DeviceError) -> None:
        close_in_thread(self._chunk.part_with_descriptor(), [])
        if self._then is not None:
            self._then.command_lost(command, error)
