"""What a device is: facts that its worker read from the driver."""

from __future__ import annotations

from typing import Any

import attrs


@attrs.frozen
class DeviceInfo:
    """Facts about an open device. Sources: ``cuDeviceGetAttribute`` and its kin, asked by the worker."""

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
    """The newest CUDA version that the driver serves."""
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
    compute_mode: str
    """``"default"``, ``"prohibited"`` or ``"exclusive-process"``."""
    lowest_priority: int
    """The number of the least urgent priority that a lane can have."""
    highest_priority: int
    """The number of the most urgent priority that a lane can have: less is more urgent."""
    durable: bool
    """Whether arrays survive a lost context: whether memory can be held by a descriptor."""

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
            compute_mode=modes.get(facts["compute_mode"], str(facts["compute_mode"])),
            lowest_priority=facts["lowest_priority"],
            highest_priority=facts["highest_priority"],
            durable=facts["durable"],
        )
