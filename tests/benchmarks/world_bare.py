"""One rank of a communicator by a process that has the driver and NCCL by ctypes: `world_bare.py WHO BACKEND`.

The first question is ``{"rank": ..., "size": ..., "environment": {...}, "most": bytes}``; rank 0 answers with an id.
The second one is ``{"id": ...}``. The others are ``{"nbytes": ..., "count": ..., "batch": ...}``, an all_reduce of so
many bytes of float32. The answer is the seconds of one call by way: single calls that are waited for, so many of them
with one wait, and groups of `batch` calls, each waited for.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_int
from typing import Any

from atomr_cuda import driver, nccl
from atomr_cuda.constants import nccl as constants

clock = time.perf_counter


class Rank:
    """One rank, with memory of its own."""

    def __init__(self, told: dict[str, Any]) -> None:
        os.environ.update(told["environment"])
        context, stream = driver.CUcontext(), driver.CUstream()
        driver.cuInit(0)
        driver.cuDevicePrimaryCtxRetain(byref(context), told["rank"])
        driver.cuCtxSetCurrent(context)
        driver.cuStreamCreate(byref(stream), driver.CU_STREAM_NON_BLOCKING)
        self._stream = stream.value
        self._rank, self._size = told["rank"], told["size"]
        self._source, self._target = (self._allocated(told["most"]) for _ in range(2))
        self._communicator = nccl.ncclComm_t()

    def _allocated(self, nbytes: int) -> int:
        address = driver.CUdeviceptr()
        driver.cuMemAlloc(byref(address), nbytes)
        driver.cuMemsetD8(address.value, 0, nbytes)
        return int(address.value)

    def new_id(self) -> str:
        """Make the id of the communicator."""
        made = nccl.ncclUniqueId()
        nccl.ncclGetUniqueId(byref(made))
        return bytes(made).hex()

    def join(self, told: str) -> None:
        """Make the communicator."""
        version = c_int()
        nccl.ncclGetVersion(byref(version))
        unique = nccl.ncclUniqueId.from_buffer_copy(bytes.fromhex(told))
        config = nccl.new_config(version.value)
        nccl.ncclCommInitRankConfig(byref(self._communicator), self._size, unique, self._rank, byref(config))

    def ways(self, nbytes: int, count: int, row: int, batch: int) -> dict[str, float]:
        """The seconds of one call, by way; a few more before each series are not timed."""
        call, wait = self._call(nbytes), driver.cuStreamSynchronize.bind()
        start, end, stream = nccl.ncclGroupStart.bind(), nccl.ncclGroupEnd.bind(), self._stream
        for _ in range(count // 3 + 1):
            check(call(0) or wait(stream))
        singles = []
        for _ in range(count):
            begun = clock()
            status = call(0) or wait(stream)
            singles.append(clock() - begun)
            check(status)
        begun, status = clock(), 0
        for _ in range(row):
            status = status or call(0)
        check(status or wait(stream))
        series = (clock() - begun) / row
        found = {"awaited": statistics.median(singles), "end to end": series}
        if batch:
            groups = []
            for _ in range(count):
                begun = clock()
                status = start()
                for place in range(batch):
                    status = status or call(place * nbytes)
                status = end() or status or wait(stream)
                groups.append((clock() - begun) / batch)
                check(status)
            found["in a batch"] = statistics.median(groups)
        return found

    def _call(self, nbytes: int) -> Callable[[int], int]:
        function, count = nccl.ncclAllReduce.bind(), nbytes // 4
        source, target, communicator, stream = self._source, self._target, self._communicator, self._stream
        kind, operation = constants.ncclFloat32, constants.ncclSum

        def call(offset: int) -> int:
            status: int = function(source + offset, target + offset, count, kind, operation, communicator, stream)
            return status

        return call


def check(status: int) -> None:
    """Raise an error for a status that is one."""
    if status:
        raise RuntimeError(f"the call returned {status}")


def main() -> None:
    """Answer questions until there are no more."""
    if sys.argv[2] == "sim":
        importlib.import_module("atomr_sim").install()
    told = json.loads(sys.stdin.readline())
    rank = Rank(told)
    print(json.dumps(rank.new_id() if told["rank"] == 0 else None), flush=True)
    rank.join(json.loads(sys.stdin.readline())["id"])
    print("null", flush=True)
    for question in sys.stdin:
        print(json.dumps(rank.ways(**json.loads(question))), flush=True)
    os._exit(0)  # whatever the other ranks do


if __name__ == "__main__":
    main()
