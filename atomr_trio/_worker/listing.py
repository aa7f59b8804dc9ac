"""`python -m atomr_trio._worker.listing BACKEND`: print the UUID of every device, in the order of their indices.

A program that names devices by anything but indices needs them, and must not load the driver itself. It makes no
context. Of a part of a divided GPU (MIG) it is the part's.
"""

from __future__ import annotations

import json
import sys
from ctypes import byref, c_int
from typing import Any

from .failing import failure_message


def uuids(driver: Any) -> list[str]:
    """Return the UUIDs, as 32 digits in five groups."""
    driver.cuInit(0)
    count = c_int()
    driver.cuDeviceGetCount(byref(count))
    found = []
    for index in range(count.value):
        device, uuid = driver.CUdevice(), driver.CUuuid()
        driver.cuDeviceGet(byref(device), index)
        driver.cuDeviceGetUuid_v2(byref(uuid), device)
        digits = bytes(uuid.bytes).hex()
        found.append("-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])))
    return found


def main(backend: str) -> None:
    """Print one line of JSON: the UUIDs, or the message of a failure."""
    try:
        from atomr_cuda import driver

        if backend == "sim":
            import atomr_sim

            atomr_sim.install()
        answer: dict[str, Any] = {"uuids": uuids(driver)}
    except Exception as error:
        from .._wire.machine import of_failed_start

        answer = failure_message(error, of_failed_start(backend, 0, error))
    print(json.dumps(answer), end="", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
