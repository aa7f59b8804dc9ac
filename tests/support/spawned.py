"""What tests have done in processes that ``multiprocessing`` spawns, which import it by this name."""

from __future__ import annotations

import numpy as np
import trio

import atomr_trio


def sum_in_a_child(backend: str, count: int) -> int:
    """Open a device there, and have it make so many threes."""

    async def run() -> int:
        async with atomr_trio.open_device(backend=backend) as dev:
            return int((await dev.full(count, 3, np.int32).to_host()).sum())

    return trio.run(run)
