"""Control records about the chunks of memory. Nobody waits for them, and they hold in a standby too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from .._wire import channel
from .._wire.limits import reason_of
from .._wire.protocol import HOST_SHORTAGE, Verb
from .._wire.records import context as records
from .._wire.records.memory import MEMORY
from .._wire.status import StatusClass, classify
from .base.lanes import CommandRefused, WorkerServices
from .base.memory import MemoryEngine
from .base.peers import refused_by


class ChunkRecords:
    """Does what the control records about chunks ask for."""

    def __init__(self, services: WorkerServices, memory: MemoryEngine) -> None:
        self._services = services
        self._memory = memory
        self.calls: dict[Verb, Callable[[bytes, list[int]], None]] = {
            records.MAP_CHUNK: self._map,
            records.UNMAP_CHUNK: self._unmap,
            records.EXPORT_CHUNK: self._export,
            records.MAP_PEER_CHUNK: self._map_peer,
            records.UNMAP_PEER_CHUNK: self._unmap_peer,
        }
        """The functions behind the records: of the payload, and of the descriptors that have come with it."""

    def _map(self, payload: bytes, descriptors: list[int]) -> None:
        address, size = records.MAP_CHUNK.struct.unpack(payload)
        with self._or_lost(records.MAP_CHUNK):
            channel.check_all_came(descriptors)
            self._memory.adopt_chunk(address, size, descriptors.pop())

    def _unmap(self, payload: bytes, descriptors: list[int]) -> None:
        (address,) = records.UNMAP_CHUNK.struct.unpack(payload)
        with self._or_lost(records.UNMAP_CHUNK):
            self._memory.drop_chunk(address)

    def _export(self, payload: bytes, descriptors: list[int]) -> None:
        (address,) = records.EXPORT_CHUNK.struct.unpack(payload)
        self._memory.export_again(address)

    def _map_peer(self, payload: bytes, descriptors: list[int]) -> None:
        """The worker can do without: the answer says whether it has the chunk."""
        address, size = records.MAP_PEER_CHUNK.struct.unpack(payload)
        failure = None
        with self._or_lost(records.MAP_PEER_CHUNK):
            try:
                channel.check_all_came(descriptors)
                self._memory.peers.map(address, size, descriptors.pop())
            except CommandRefused as refused:
                failure = refused.failure
            except OSError as error:
                text = reason_of(error)
                failure = CommandRefused(HOST_SHORTAGE, type(error).__name__, text, MEMORY.engine).failure
            except self._services.cuda_error as error:
                if classify(error.status) in (StatusClass.POISONS, StatusClass.GONE):
                    raise
                failure = refused_by(error).failure
        if not self._services.poisoned:
            self._services.post({"kind": "peer_chunk", "address": address, "error": failure})

    def _unmap_peer(self, payload: bytes, descriptors: list[int]) -> None:
        (address,) = records.UNMAP_PEER_CHUNK.struct.unpack(payload)
        with self._or_lost(records.UNMAP_PEER_CHUNK):
            self._memory.peers.unmap(address)

    @contextlib.contextmanager
    def _or_lost(self, verb: Verb) -> Iterator[None]:
        """Say what the driver refuses, since the worker cannot do without it."""
        try:
            yield
        except self._services.cuda_error as error:
            self._services.lost(error, verb.operation)
