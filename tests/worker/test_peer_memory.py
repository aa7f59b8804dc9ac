"""Memory of another device in a worker: mapped at its own address, copied, given back; and what a refusal costs.

The workers are driven by their channel alone, without a generation, so that each record is sent by itself. A test needs
two devices; on a machine with one GPU it is skipped.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from atomr_trio._generation.process import ADDRESS_EXTENT, WorkerProcess, address_range
from atomr_trio._wire import channel, host_reading
from atomr_trio._wire.channel import SharedMemory, TimelinePage
from atomr_trio._wire.protocol import CONTROL_LANE, HEADER, HOST_SHORTAGE, LANE_COMPUTE, Verb, encode_wait
from atomr_trio._wire.records import context as context_records
from atomr_trio._wire.records.memory import (
    BOX,
    COPY,
    COPY_OUT,
    CREATE_CHUNK,
    FILL,
    MAP_PEER,
    RELEASE_CHUNK,
    UNMAP_PEER,
)
from support import ON_GPU, skip_without
from support.sim_process import until

CHUNK = 2 << 20
THEIRS, _ = address_range(0)
OURS, _ = address_range(1)
INVALID_VALUE, OUT_OF_MEMORY, INVALID_DEVICE = 1, 2, 101
Start = Callable[..., "HandWorker"]


class HandWorker:
    """A worker that is driven by hand: it has no ring, so each record is a message."""

    def __init__(self, backend: str, device: int) -> None:
        self.device = device
        self.process = WorkerProcess(backend, device)
        self.process.sock.setblocking(True)
        self.process.sock.settimeout(60)
        self._buffer = bytearray(channel.MAX_MESSAGE)
        self._wake, self._bell = os.eventfd(0), os.eventfd(0)
        self.page: Any = None
        self.staging: Any = None
        self.descriptors: list[int] = []
        """Those that have come, in order."""
        self.ready: dict[str, Any] = {}
        self._ticket = 0
        assert self.hear() == {"kind": "hello"}

    def adopt(self, peers: Sequence[int | tuple[int, int]] = ()) -> HandWorker:
        """Hand over new shared memory, and the ranges of other devices."""
        self._drop_memory()
        self.page, self.staging, self._ticket = TimelinePage.new(), SharedMemory.create("staging", 1 << 16), 0
        ranges = [address_range(peer) if isinstance(peer, int) else peer for peer in peers]
        message = {"staging_bytes": 1 << 16, "durable": True, "ring": False, "spin_seconds": 0, "chunks": []}
        message["beacon"] = host_reading.beacon().described()
        given = [self.page.descriptor, self.staging.descriptor, self._wake, self._bell]
        channel.send_message(self.process.sock, message | {"peers": ranges}, given)
        self.ready = self.hear()
        assert self.ready["kind"] == "ready"
        return self

    def hear(self) -> dict[str, Any]:
        """The next message."""
        data, descriptors = channel.receive_bytes(self.process.sock, self._buffer)
        self.descriptors += descriptors
        message: dict[str, Any] = json.loads(data)
        return message

    def control(self, verb: Verb, payload: bytes = b"", descriptors: Sequence[int] = ()) -> None:
        header = HEADER.pack(0, CONTROL_LANE, verb.engine_number, verb.number, 0, len(payload))
        channel.send_bytes(self.process.sock, header + payload, descriptors)

    def send(self, verb: Verb, payload: bytes, descriptors: Sequence[int] = (), requires: Sequence[int] = ()) -> int:
        """Send a command of the compute lane; returns its ticket."""
        self._ticket += 1
        header = HEADER.pack(self._ticket, LANE_COMPUTE, verb.engine_number, verb.number, len(requires), len(payload))
        words = b"".join(encode_wait(LANE_COMPUTE, each, required=True).to_bytes(8, "little") for each in requires)
        channel.send_bytes(self.process.sock, header + words + payload, descriptors)
        return self._ticket

    def run(self, verb: Verb, payload: bytes, descriptors: Sequence[int] = (), requires: Sequence[int] = ()) -> int:
        """Send a command, and wait for its end; returns its status."""
        ticket = self.send(verb, payload, descriptors, requires)
        until(lambda: self.page.finished(LANE_COMPUTE) >= ticket)
        status: int = self.page.status(LANE_COMPUTE, ticket)
        return status

    # Short forms.

    def create(self, at: int = 0) -> int:
        """Make a chunk at this place of its own range; returns its descriptor."""
        assert self.run(CREATE_CHUNK, CREATE_CHUNK.struct.pack(address_range(self.device)[0] + at, CHUNK)) == 0
        assert self.hear()["kind"] == "chunk"
        return self.descriptors[-1]

    def map(self, address: int, descriptor: int) -> int:
        return self.run(MAP_PEER, MAP_PEER.struct.pack(address, CHUNK), [descriptor])

    def unmap(self, address: int) -> int:
        return self.run(UNMAP_PEER, UNMAP_PEER.struct.pack(address))

    def fill(self, address: int, byte: int, count: int = 256) -> int:
        return self.run(FILL, FILL.struct.pack(address, 0, 1, count, 1, bytes([byte])))

    def copy(self, to: int, source: int, count: int = 256, requires: Sequence[int] = ()) -> int:
        return self.run(COPY, BOX.pack(to, 0, 0, source, 0, 0, count, 1, 1), requires=requires)

    def read(self, address: int, count: int = 256) -> bytes:
        assert self.run(COPY_OUT, COPY_OUT.struct.pack(address, 0, count)) == 0
        return bytes(self.staging.bytes[:count])

    def maps(self, device: int) -> bool:
        """Tell whether any address of a device's range is taken in the process."""
        base, extent = address_range(device)
        lines = Path(f"/proc/{self.process.pid}/maps").read_text().splitlines()
        return any(base <= int(line.split("-")[0], 16) < base + extent for line in lines)

    def close(self) -> None:
        self.process.kill()
        until(self.process.reap)
        self.process.close()
        self._drop_memory()
        for descriptor in (*self.descriptors, self._wake, self._bell):
            os.close(descriptor)

    def _drop_memory(self) -> None:
        for memory in (self.page, self.staging):
            if memory is not None:
                memory.close()


@pytest.fixture
def start(backend: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a worker of one of two devices that can access each other's memory, and adopts it."""
    skip_without(2)
    monkeypatch.setenv("ATOMR_TRIO_SIM_DEVICES", "2")
    started: list[HandWorker] = []

    def begin(device: int, peers: Sequence[int | tuple[int, int]] = ()) -> HandWorker:
        started.append(HandWorker(backend, device))
        return started[-1].adopt(peers)

    yield begin
    for worker in started:
        worker.close()


def test_the_worker_of_one_device_copies_and_fills_memory_of_another(start: Start):
    first, second = start(0), start(1, [0])
    assert (first.ready["peers"], second.ready["peers"]) == ([1], [0])
    descriptor, _ = first.create(), second.create()
    assert first.fill(THEIRS, 7) == 0
    assert second.map(THEIRS, descriptor) == 0
    assert second.copy(OURS, THEIRS) == 0
    assert second.read(OURS) == second.read(THEIRS) == bytes([7]) * 256
    assert second.fill(OURS, 9) == 0
    assert second.copy(THEIRS + 100, OURS, 50) == 0
    assert second.fill(THEIRS + 200, 5, 10) == 0
    assert first.read(THEIRS) == bytes([*[7] * 100, *[9] * 50, *[7] * 50, *[5] * 10, *[7] * 46])


def test_memory_stays_with_a_peer_when_its_own_worker_is_killed(start: Start):
    first, second = start(0), start(1, [0])
    assert second.map(THEIRS, first.create()) == 0
    assert first.fill(THEIRS, 3) == 0
    first.process.kill()
    until(first.process.reap)
    assert second.read(THEIRS) == bytes([3]) * 256
    assert second.fill(THEIRS, 4, 128) == 0
    heir = start(0, [1])
    heir.control(context_records.MAP_CHUNK, context_records.MAP_CHUNK.struct.pack(THEIRS, CHUNK), first.descriptors[:1])
    assert heir.read(THEIRS) == bytes([*[4] * 128, *[3] * 128])


def test_a_chunk_makes_way_for_what_comes_to_its_addresses_and_can_be_mapped_again(start: Start):
    first, second = start(0), start(1, [0])
    old, other = first.create(), first.create(at=CHUNK)
    assert (first.fill(THEIRS, 1), first.fill(THEIRS + CHUNK, 2)) == (0, 0)
    assert (second.map(THEIRS, old), second.map(THEIRS + CHUNK, other)) == (0, 0)
    assert first.run(RELEASE_CHUNK, RELEASE_CHUNK.struct.pack(THEIRS)) == 0
    new = first.create()
    assert first.fill(THEIRS, 3) == 0
    assert second.read(THEIRS) == bytes([1]) * 256, "the old memory lives while it is mapped"
    for _ in range(2):
        assert second.map(THEIRS, new) == 0
        assert second.read(THEIRS) == bytes([3]) * 256
    assert second.read(THEIRS + CHUNK) == bytes([2]) * 256, "its neighbour has stayed"


def test_an_unmapped_chunk_is_out_of_reach_and_one_that_is_not_mapped_can_be_unmapped(start: Start):
    first, second = start(0), start(1, [0])
    descriptor, _ = first.create(), second.create()
    assert second.unmap(THEIRS) == 0
    assert second.map(THEIRS, descriptor) == 0
    assert second.unmap(THEIRS) == 0
    assert second.unmap(THEIRS) == 0
    if not ON_GPU:  # a copy there may be a fault
        assert second.copy(OURS, THEIRS) == INVALID_VALUE
        assert second.hear()["name"] == "CUDA_ERROR_INVALID_VALUE"
    assert second.fill(OURS, 1) == 0


def test_a_worker_without_commands_maps_and_unmaps_by_control_records(start: Start):
    first, second = start(0), start(1, [0])
    descriptor = first.create()
    record, unmap = context_records.MAP_PEER_CHUNK, context_records.UNMAP_PEER_CHUNK
    assert first.fill(THEIRS, 8) == 0
    for _ in range(2):
        second.control(record, record.struct.pack(THEIRS, CHUNK), [descriptor])
        assert second.hear() == {"kind": "peer_chunk", "address": THEIRS, "error": None}
    second.control(unmap, unmap.struct.pack(THEIRS + CHUNK))
    assert second.read(THEIRS) == bytes([8]) * 256
    second.control(unmap, unmap.struct.pack(THEIRS))
    assert second.map(THEIRS, descriptor) == 0, "now it is asked for by a command"


def test_a_reset_gives_the_addresses_of_other_devices_back(start: Start):
    first, second = start(0), start(1, [0])
    assert second.map(THEIRS, first.create()) == 0
    assert second.maps(0) or ON_GPU, "a driver may keep its reservations where the system does not show them"
    second.control(context_records.RESET)
    assert second.hear() == {"kind": "hello"}
    assert ON_GPU or not second.maps(0)
    second.adopt()
    assert ON_GPU or not second.maps(0), "nobody has told it of peers"
    second.control(context_records.RESET)
    second.hear()
    second.adopt([0])
    assert second.map(THEIRS, first.descriptors[0]) == 0


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_worker_without_room_for_a_descriptor_says_so_and_goes_on(start: Start):
    first, second = start(0), start(1, [0])
    descriptor, record = first.create(), context_records.MAP_PEER_CHUNK
    limits = resource.prlimit(second.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(second.process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    second.control(record, record.struct.pack(THEIRS, CHUNK), [descriptor])
    answer = second.hear()
    assert second.map(THEIRS, descriptor) == HOST_SHORTAGE
    refused = second.hear()
    for error in (answer["error"], refused):
        assert (error["status"], error["class"], error["name"]) == (HOST_SHORTAGE, "request", "OSError")
        assert error["text"] == "no file descriptor is left: RLIMIT_NOFILE (`ulimit -n`) is 3"
    resource.prlimit(second.process.pid, resource.RLIMIT_NOFILE, limits)
    assert second.map(THEIRS, descriptor) == 0


@pytest.mark.sim_only
def test_what_requires_a_chunk_that_cannot_be_accessed_fails_with_it_and_nothing_else_does(
    start: Start, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ATOMR_TRIO_SIM_PEERS", "0")
    first, second = start(0), start(1, [0])
    assert second.ready["peers"] == []
    descriptor, _ = first.create(), second.create()
    ticket = second.send(MAP_PEER, MAP_PEER.struct.pack(THEIRS, CHUNK), [descriptor])
    assert second.copy(OURS, THEIRS, requires=[ticket]) == INVALID_DEVICE
    refused, skipped = second.hear(), second.hear()
    assert refused["class"] == "request", "the same status of another call says that the device is gone"
    assert refused["text"] == "cuMemSetAccess: invalid device ordinal"
    assert skipped == refused | {"ticket": ticket + 1}
    assert second.fill(OURS, 1) == 0
    record = context_records.MAP_PEER_CHUNK
    second.control(record, record.struct.pack(THEIRS, CHUNK), [descriptor])
    answer = second.hear()
    assert (answer["address"], answer["error"]["status"]) == (THEIRS, INVALID_DEVICE)
    assert answer["error"] == {key: refused[key] for key in answer["error"]}
    assert second.read(OURS) == bytes([1]) * 256


@pytest.mark.sim_only
@pytest.mark.parametrize(
    "function",
    ["cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuCtxSynchronize"],
)
def test_a_call_that_is_refused_fails_the_mapping_alone_and_it_can_be_repeated(start: Start, function: str):
    """It takes the place of another chunk, so that what gives that back is among the calls."""
    first, second = start(0), start(1, [0])
    old, new = first.create(), first.create(at=CHUNK)
    assert (first.fill(THEIRS, 1), first.fill(THEIRS + CHUNK, 2)) == (0, 0)
    assert second.map(THEIRS, old) == 0
    faults = json.dumps({"faults": f"{function}:{OUT_OF_MEMORY}", "instead": False}).encode()
    second.control(context_records.INJECT, faults)
    assert second.map(THEIRS, new) == OUT_OF_MEMORY
    assert second.hear()["text"].startswith(f"{function}: ")
    assert second.map(THEIRS, new) == 0
    assert second.read(THEIRS) == bytes([2]) * 256
    assert second.unmap(THEIRS) == 0
    memory = [line for line in Path(f"/proc/{second.process.pid}/maps").read_text().splitlines() if "gpu-0" in line]
    held = [os.readlink(each) for each in Path(f"/proc/{second.process.pid}/fd").iterdir()]
    assert (memory, [each for each in held if "gpu-0" in each]) == ([], []), "it holds nothing of the other device"


@pytest.mark.sim_only
def test_addresses_that_are_refused_at_the_adoption_are_asked_for_again(start: Start, monkeypatch: pytest.MonkeyPatch):
    first = start(0)
    descriptor = first.create()
    monkeypatch.setenv("ATOMR_TRIO_SIM_FAULTS", f"cuMemAddressReserve:{OUT_OF_MEMORY}:2*2")  # the first are its own
    second = start(1, [0])
    assert second.map(THEIRS, descriptor) == OUT_OF_MEMORY
    assert second.hear()["text"].startswith("cuMemAddressReserve: ")
    assert second.map(THEIRS, descriptor) == 0


@pytest.mark.sim_only
def test_addresses_that_something_else_has_taken_are_told(start: Start):
    first = start(0)
    second = start(1, [address_range(1)])
    assert second.map(OURS, first.create()) == INVALID_VALUE
    refused = second.hear()
    assert refused["class"] == "request"
    taken = f"the addresses {OURS:#x} + {ADDRESS_EXTENT:#x} of another device are taken in the worker's process"
    assert refused["text"] == taken
    second.create()
    assert second.fill(OURS, 1) == 0


@pytest.mark.sim_only
def test_a_lost_context_is_told_by_a_mapping_too(start: Start):
    first, second = start(0), start(1, [0])
    faults = json.dumps({"faults": "cuMemMap:700", "instead": False}).encode()
    second.control(context_records.INJECT, faults)
    record = context_records.MAP_PEER_CHUNK
    second.control(record, record.struct.pack(THEIRS, CHUNK), [first.create()])
    lost = second.hear()
    assert (lost["kind"], lost["status"], lost["operation"]) == ("lost", 700, "context.map_peer_chunk")


@pytest.mark.sim_only
async def test_a_device_knows_whose_memory_it_can_access(
    open_test_device: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ATOMR_TRIO_SIM_DEVICES", "3")
    monkeypatch.setenv("ATOMR_TRIO_SIM_PEERS", "0-2,1-2")
    async with open_test_device(2) as dev:
        assert dev.info.peers == (0, 1)
