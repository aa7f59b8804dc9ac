"""Control records about the chunks of memory. Nobody waits for them, and they hold in a standby too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from .._wire import channel
from .._wire.protocol import Verb
from .._wire.records import context as records
from .base.lanes import WorkerServices
from .base.memory import MemoryEngine


class ChunkRecords:
    """Does what the control records about chunks ask for."""

    def __init__(self, services: WorkerServices, memory: MemoryEngine) -> None:
        self._services = services
        self._memory = memory
        self.calls: dict[Verb, Callable[[bytes, list[int]], None]] = {
            records.MAP_CHUNK: self._map,
            records.UNMAP_CHUNK: self._unmap,
            records.EXPORT_CHUNK: self._export,
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

    @contextlib.contextmanager
    def _or_lost(self, verb: Verb) -> Iterator[None]:
        """Say what the driver refuses, since the worker cannot do without it."""
        try:
            yield
        except self._services.cuda_error as error:
            self._services.lost(error, verb.operation)
