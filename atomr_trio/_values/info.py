"""Facts about a device and its kernels, which its worker has read from the driver."""

from __future__ import annotations

from typing import Any

import attrs


@attrs.frozen
class DeviceInfo:
    """Facts about an open device. Sources: ``cuDeviceGetAttribute`` and its kin, called by the worker."""

    index: int
    """The index that `open_device` was given."""
    backend: str
    """``"cuda"`` or ``"sim"``."""
    name: str
    """The device's own name."""
    pci_bus_id: str
    """PCI address, as ``cuDeviceGetPCIBusId`` writes it."""
    capability: tuple[int, int]
    """Compute capability, major and minor."""
    driver_version: tuple[int, int]
    """The newest CUDA version that the driver supports."""
    total_memory: int
    """Bytes of device memory."""
    free_memory: int
    """Bytes of device memory that were free when the device was opened, its own context counted as taken."""
    multiprocessors: int
    """Number of streaming multiprocessors."""
    warp_size: int
    """Threads of a warp."""
    max_threads_per_block: int
    """Most threads of one block."""
    max_block: tuple[int, int, int]
    """Most threads of a block in each dimension."""
    max_grid: tuple[int, int, int]
    """Most blocks of a grid in each dimension."""
    max_shared_bytes: int
    """Most shared memory of one block, in bytes, when a kernel asks for it."""
    max_threads_per_multiprocessor: int
    """Most threads that a multiprocessor has at a time."""
    compute_mode: str
    """``"default"``, ``"prohibited"`` or ``"exclusive-process"``."""
    lowest_priority: int
    """The number of the least urgent priority that a lane can have."""
    highest_priority: int
    """The number of the most urgent priority that a lane can have: less is more urgent."""
    durable: bool
    """True if arrays survive a lost context, because memory can be held by a descriptor."""
    python_loop: str | None
    """The reason why the worker's loop is the one of Python; None if it is the native one, which is faster."""
    no_reading: str | None
    """The reason why the worker does not read the host's arrays itself; None if it does, which makes larger copies to
    the device faster."""
    peers: tuple[int, ...]
    """The index of each other device whose memory this one can access directly, as ``cuDeviceCanAccessPeer`` says."""

    @classmethod
    def _from_worker(cls, index: int, backend: str, facts: dict[str, Any]) -> DeviceInfo:
        """Read the worker's ready message."""
        version = facts["driver_version"]
        modes = {0: "default", 2: "prohibited", 3: "exclusive-process"}
        return cls(
            index=index,
            backend=backend,
            name=facts["name"],
            pci_bus_id=facts["pci_bus_id"],
            capability=(facts["capability_major"], facts["capability_minor"]),
            driver_version=(version // 1000, version % 1000 // 10),
            total_memory=facts["total_memory"],
            free_memory=facts["free_memory"],
            multiprocessors=facts["multiprocessors"],
            warp_size=facts["warp_size"],
            max_threads_per_block=facts["max_threads_per_block"],
            max_block=(facts["max_block_x"], facts["max_block_y"], facts["max_block_z"]),
            max_grid=(facts["max_grid_x"], facts["max_grid_y"], facts["max_grid_z"]),
            max_shared_bytes=facts["max_shared_bytes"],
            max_threads_per_multiprocessor=facts["max_threads_per_multiprocessor"],
            compute_mode=modes.get(facts["compute_mode"], str(facts["compute_mode"])),
            lowest_priority=facts["lowest_priority"],
            highest_priority=facts["highest_priority"],
            durable=facts["durable"],
            python_loop=facts["python_loop"],
            no_reading=facts["no_reading"],
            peers=tuple(facts["peers"]),
        )


@attrs.frozen
class KernelAttributes:
    """The resources that a kernel takes of its device. Source: ``cuFuncGetAttribute``, called by the worker."""

    registers: int
    """Registers of each thread."""
    max_threads_per_block: int
    """Most threads that a block can have, given its registers and its launch bounds."""
    static_shared_bytes: int
    """Bytes of shared memory that it declares for each block."""
    constant_bytes: int
    """Bytes of constant memory that its module declares."""
    local_bytes: int
    """Bytes of local memory of each thread."""
    ptx_version: tuple[int, int]
    """The compute capability that its PTX was compiled for, major and minor."""
    binary_version: tuple[int, int]
    """The compute capability that its machine code is for, major and minor."""
    caches_globals: bool
    """True if it was compiled to cache global loads in L1 (``-Xptxas -dlcm=ca``)."""
    cluster: tuple[int, int, int] | None
    """The clusters of blocks that it was compiled for (``__cluster_dims__``); None if it leaves that to the launch."""

    @classmethod
    def _from_worker(cls, facts: dict[str, Any]) -> KernelAttributes:
        """Read the engine's facts about a function."""
        cluster = facts["cluster_x"], facts["cluster_y"], facts["cluster_z"]
        return cls(
            registers=facts["registers"],
            max_threads_per_block=facts["max_threads_per_block"],
            static_shared_bytes=facts["static_shared_bytes"],
            constant_bytes=facts["constant_bytes"],
            local_bytes=facts["local_bytes"],
            ptx_version=divmod(facts["ptx_version"], 10),
            binary_version=divmod(facts["binary_version"], 10),
            caches_globals=bool(facts["cache_mode_ca"]),
            cluster=cluster if cluster[0] else None,
        )


@attrs.frozen
class Occupancy:
    """The share of a device that the blocks of a kernel fill, as `Kernel.occupancy` returns it."""

    blocks_per_multiprocessor: int
    """Blocks that a multiprocessor holds at a time."""
    device_blocks: int
    """Blocks that the whole device holds at a time: the largest cooperative grid."""
    fraction: float
    """The share of a multiprocessor's warps that those blocks use, from 0 to 1."""

    @classmethod
    def _of(cls, blocks: int, threads: int, info: DeviceInfo) -> Occupancy:
        """Return the occupancy for `blocks` blocks of `threads` threads on a multiprocessor."""
        warps = -(-threads // info.warp_size)
        most = info.max_threads_per_multiprocessor // info.warp_size
        return cls(blocks, blocks * info.multiprocessors, blocks * warps / most)
