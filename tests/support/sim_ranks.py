"""Several simulated processes, one for each rank, that run pieces of code which a test sends them."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from typing import Any, Self

from support.sim_process import Child

_LOOP = '''
import json, threading, traceback
import numpy as np
from atomr_cuda import CudaError, nccl
from atomr_cuda.nccl import *

_told = []
RANK, RANKS = int(os.environ["TEST_RANK"]), int(os.environ["TEST_RANKS"])
CONTEXT = begin(RANK)
STREAM = stream()

def tell(*values):
    _told.extend(values)

def thread(work):
    """A thread that has begun work, with the context."""
    begun = threading.Thread(target=lambda: (cuCtxSetCurrent(CONTEXT), work()), daemon=True)
    begun.start()
    return begun

def new_id():
    made = ncclUniqueId()
    ncclGetUniqueId(made)
    return bytes(made).hex()

def joined(words, rank=RANK, ranks=RANKS, config=None):
    """A communicator of the ranks that are given these words."""
    made = c_void_p()
    ncclCommInitRankConfig(made, ranks, ncclUniqueId.from_buffer_copy(bytes.fromhex(words)), rank, config)
    return made

def device(values, dtype=None):
    """The address of a copy of an array on the device."""
    data = np.ascontiguousarray(values, dtype)
    address = allocate(max(1, data.nbytes))
    write(address, data.tobytes())
    return address

def host(address, count, dtype):
    """The numbers at an address of the device."""
    return np.frombuffer(read(address, count * np.dtype(dtype).itemsize), dtype)

def ready(on=STREAM):
    return cuStreamQuery.status(on)

def finish(on=STREAM):
    return cuStreamSynchronize.status(on)

def number(function, communicator):
    found = c_int(-1)
    function(communicator, found)
    return found.value

print("[]", flush=True)
while line := sys.stdin.readline():
    _told = []
    try:
        exec(compile(json.loads(line), "the_test.py", "exec"), globals())
    except BaseException:
        traceback.print_exc()
        _told = ["failed"]
    print(json.dumps(_told), flush=True)
'''
"""A program that runs what it is sent, and prints what that tells. It sees `sim_process`, and the table of NCCL."""


class Ranks:
    """Processes that share no memory but what NCCL gives them; rank n uses device n. They are killed in the end."""

    def __init__(self, ranks: int, **variables: str) -> None:
        environment = {"ATOMR_TRIO_SIM_DEVICES": str(ranks), "TEST_RANKS": str(ranks), **variables}
        self._children = [Child(_LOOP, **environment, TEST_RANK=str(rank)) for rank in range(ranks)]
        for child in self._children:
            assert child.hear() == "[]"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        for child in self._children:
            child.__exit__()

    def send(self, code: str, ranks: Iterable[int] | None = None) -> None:
        """Let ranks, all unless some are named, begin to run code."""
        line = json.dumps(textwrap.dedent(code))
        for rank in range(len(self._children)) if ranks is None else ranks:
            self._children[rank].tell(line)

    def answers(self, ranks: Iterable[int] | None = None) -> list[Any]:
        """What the code that was sent has told, of each rank, when it has ended; `["failed"]` after an exception."""
        chosen = range(len(self._children)) if ranks is None else ranks
        return [json.loads(self._children[rank].hear()) for rank in chosen]

    def run(self, code: str, ranks: Iterable[int] | None = None) -> list[Any]:
        """Run code on ranks, and return what each has told."""
        chosen = None if ranks is None else list(ranks)
        self.send(code, chosen)
        return self.answers(chosen)

    def join(self, name: str = "comm", ranks: Iterable[int] | None = None) -> None:
        """Make a communicator of all ranks, or of some in this order; it has this name in the code of later runs."""
        members = list(range(len(self._children)) if ranks is None else ranks)
        [[words]] = self.run("tell(new_id())", members[:1])
        code = f"{name} = joined({words!r}, {members}.index(RANK), {len(members)})"
        assert self.run(code, members) == [[]] * len(members)

    def kill(self, rank: int) -> None:
        """End the process of a rank, and wait until it is gone."""
        self._children[rank].kill()
        assert self._children[rank].hear() == ""
