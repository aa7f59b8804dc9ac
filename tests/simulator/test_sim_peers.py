"""Several simulated devices: which of them can access each other's memory, and what a device without access is told.

The simulator is installed once in a process, so a test that needs several devices runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

from atomr_cuda import CudaError, driver
from atomr_sim.driver.process import Process
from support import sim_process as helper
from support.nvrtc import compile_ptx
from support.sim_process import run_in_process

pytestmark = pytest.mark.sim_only

INVALID_VALUE, INVALID_DEVICE, ILLEGAL_ADDRESS = 1, 101, 700
SOURCE = """
extern "C" __global__ void copy(const long long *from, long long *to) { *to = *from + 1; }
"""
PRELUDE = """
import json
def can(device, peer):
    answer = c_int(-1)
    status = cuDeviceCanAccessPeer.status(byref(answer), device, peer)
    return status or -answer.value
def of_pair(attribute, device, peer):
    answer = c_int(-1)
    status = cuDeviceGetP2PAttribute.status(byref(answer), attribute, device, peer)
    return (status, answer.value)
def context(device):
    found = c_void_p()
    cuDevicePrimaryCtxRetain(found, device)
    cuCtxSetCurrent(found)
def refusal(call, *arguments):
    try:
        call(*arguments)
    except Exception as error:
        return error.status
    return 0
def kernel_copies(source, target):
    module = c_void_p()
    cuModuleLoadData(module, PTX)
    on = stream()
    launch(function(module, "copy"), on, c_uint64(source), c_uint64(target))
    return cuStreamSynchronize.status(on)
def tell(*values):
    print(json.dumps(values), flush=True)
"""


@pytest.fixture(scope="module")
def ptx() -> bytes:
    return compile_ptx(SOURCE).encode()


def told(code: str, *, ptx: bytes = b"", descriptors: tuple[int, ...] = (), devices: int = 2, **variables: str) -> Any:
    """What a process tells, which has several devices and runs this code; one value for each `tell`."""
    begun = "\n".join((PRELUDE, f"PTX = {ptx!r}", "atomr_sim.install()", "cuInit(0)", code))
    done = run_in_process(begun, descriptors=descriptors, ATOMR_TRIO_SIM_DEVICES=str(devices), **variables)
    return [value for line in done.stdout.splitlines() for value in json.loads(line)]


def test_every_device_has_access_to_every_other_one_and_none_is_a_peer_of_itself():
    answers, link, refused = told("""
tell([[can(device, peer) for peer in range(3)] for device in range(3)])
tell([of_pair(attribute, 0, 2) for attribute in range(1, 6)])
tell([can(0, 3), can(-1, 0), of_pair(2, 1, 1)[0], of_pair(2, 0, 3)[0], of_pair(0, 0, 1)[0], of_pair(6, 0, 1)[0]])
""", devices=3)  # fmt: skip
    assert answers == [[0, -1, -1], [-1, 0, -1], [-1, -1, 0]]
    assert link == [[0, 0], [0, 1], [0, 0], [0, 0], [0, 0]], "access, but neither native atomics nor arrays"
    assert refused == [*[INVALID_DEVICE] * 4, *[INVALID_VALUE] * 2]


ALL = {(0, 1), (0, 2), (1, 2)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, ALL), ("", ALL), ("0", set()), ("0-1", {(0, 1)}), (" 2-1, 0-2", {(0, 2), (1, 2)})],
)
def test_the_environment_says_which_pairs_have_access(
    text: str | None, expected: set[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
):
    process = of_environment(monkeypatch, 3, text)
    answers = {(device, peer) for device in range(3) for peer in range(3) if process.can_access(device, peer)}
    assert answers == expected | {(peer, device) for device, peer in expected}


@pytest.mark.parametrize("text", ["1", "0-1;1-2", "0-2", "1-1", "0-1,", "all"])
def test_a_text_that_names_no_pairs_of_devices_is_refused(text: str, monkeypatch: pytest.MonkeyPatch):
    wanted = f"ATOMR_TRIO_SIM_PEERS is {text!r}; it must be 0 for no access between devices, or pairs of the 2 devices"
    with pytest.raises(ValueError, match=re.escape(wanted)):
        of_environment(monkeypatch, 2, text)


def of_environment(monkeypatch: pytest.MonkeyPatch, devices: int, peers: str | None) -> Process:
    """The simulated driver of a process with this environment; nothing is installed."""
    monkeypatch.setenv("ATOMR_TRIO_SIM_DEVICES", str(devices))
    if peers is None:
        monkeypatch.delenv("ATOMR_TRIO_SIM_PEERS", raising=False)
    else:
        monkeypatch.setenv("ATOMR_TRIO_SIM_PEERS", peers)
    return Process.from_environment()


def test_access_to_mapped_memory_is_given_to_each_device_alone(ptx: bytes):
    values = told("""
context(0)
address, _ = durable()
write(address, (41).to_bytes(8, "little") * 2)
tell([access(address, device) for device in (0, 1)])
context(1)
own = allocate(8)
tell(refusal(cuMemcpyDtoD, own, address, 8), refusal(cuMemcpyDtoD, address, own, 8), refusal(read, address, 8))
allow(address, GRANULE, device=1)
tell([access(address, device) for device in (0, 1)])
cuMemcpyDtoD(own, address, 8)
tell(kernel_copies(own, address), word(address), kernel_copies(address, own), word(own))
allow(address, GRANULE, flags=0, device=0)
tell([access(address, device) for device in (0, 1)], refusal(read, address, 8))
context(0)
tell(refusal(read, address, 8))
""", ptx=ptx)  # fmt: skip
    assert values == [
        [3, 0],
        *[INVALID_VALUE] * 3,
        [3, 3],
        *(0, 42, 0, 43),
        *([0, 3], 0),
        INVALID_VALUE,
    ]


@pytest.mark.parametrize("kind", ["mapped", "plain", "not mapped here"])
def test_a_kernel_that_touches_memory_of_a_device_without_access_is_lost(ptx: bytes, kind: str):
    address = {
        "mapped": "durable()[0]",
        "plain": "allocate(8)",
        "not mapped here": "reserve(GRANULE, BASE)",
    }[kind]
    assert told(f"""
context(0)
address = {address}
context(1)
tell(kernel_copies(address, allocate(8)))
""", ptx=ptx) == [ILLEGAL_ADDRESS]  # fmt: skip


def test_copies_reach_plain_memory_of_other_devices_and_kernels_host_memory(ptx: bytes):
    assert told("""
context(0)
theirs, host = allocate(16), c_void_p()
write(theirs, b"0123456789abcdef")
cuMemAllocHost(host, 4096)
context(1)
own = allocate(16)
cuMemcpyDtoD(own, theirs, 16)
tell(read(own, 16).decode(), refusal(cuMemcpyDtoD, own, theirs + 8, 16))
write(own, bytes(8))
tell(kernel_copies(own, host.value), word(host.value))
cuMemFreeHost(host)
tell(refusal(cuMemHostGetDevicePointer, c_uint64(), host, 0))
""", ptx=ptx) == ["0123456789abcdef", INVALID_VALUE, 0, 1, INVALID_VALUE]  # fmt: skip


@pytest.fixture
def chunk() -> Iterator[int]:
    """A descriptor of physical memory of device 0 that another process made."""
    helper.begin()
    handle = helper.create(helper.GRANULE)
    descriptor = helper.export(handle)
    driver.cuMemRelease(handle)
    yield descriptor
    os.close(descriptor)


IMPORTED = """
context(1)
assert reserve(64 * GRANULE, BASE) == BASE
handle = import_descriptor(DESCRIPTOR)
before = free_memory()
cuMemMap(BASE, GRANULE, 0, handle, 0)
"""


def test_a_process_of_another_device_maps_a_chunk_by_its_descriptor_at_its_own_address(chunk: int, ptx: bytes):
    """The descriptor is all that crosses, and the memory is charged to its own device."""
    os.pwrite(chunk, (6).to_bytes(8, "little"), 0)
    values = told(f"DESCRIPTOR = {chunk}\n" + IMPORTED + """
tell(refusal(read, BASE, 8), free_memory() - before)
allow(BASE, GRANULE, device=1)
ordinal = c_int(-1)
cuPointerGetAttribute(byref(ordinal), CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, BASE)
tell(kernel_copies(BASE, BASE + 8), word(BASE + 8), ordinal.value)
cuMemUnmap(BASE, GRANULE)
cuMemRelease(handle)
cuMemAddressFree(BASE, 64 * GRANULE)
""", ptx=ptx, descriptors=(chunk,))  # fmt: skip
    assert values == [INVALID_VALUE, 0, 0, 7, 0]
    assert os.pread(chunk, 16, 0) == (6).to_bytes(8, "little") + (7).to_bytes(8, "little")


def test_a_device_without_peer_access_is_refused_it_and_the_mapping_can_be_taken_back(chunk: int):
    values = told(f"DESCRIPTOR = {chunk}\n" + IMPORTED + """
tell(refusal(allow, BASE, GRANULE, 3, 1), access(BASE, 1), refusal(allow, BASE, GRANULE, 3, 0), access(BASE, 0))
tell(refusal(allow, BASE, GRANULE, 0, 1))
cuMemUnmap(BASE, GRANULE)
cuMemRelease(handle)
cuMemAddressFree(BASE, 64 * GRANULE)
tell(cuCtxSynchronize.status())
""", descriptors=(chunk,), ATOMR_TRIO_SIM_PEERS="0")  # fmt: skip
    assert values == [INVALID_DEVICE, 0, 0, 3, 0, 0]


def test_memory_of_a_device_that_this_process_does_not_have_is_refused():
    helper.begin()
    memory = os.memfd_create("atomr-simulated-gpu-7", os.MFD_CLOEXEC)
    os.ftruncate(memory, helper.GRANULE)
    with pytest.raises(CudaError) as refused:
        helper.import_descriptor(memory)
    os.close(memory)
    assert refused.value.status == INVALID_DEVICE
