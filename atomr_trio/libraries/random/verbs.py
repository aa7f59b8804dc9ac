"""Random numbers, as verbs."""

from __future__ import annotations

from ..._calls.verbs import Awaited, Batched, Recorded
from .philox import PhiloxVerbs, load_kernels


class _RandomVerbs(PhiloxVerbs):
    """The verbs, in all forms."""

    __slots__ = ()


class Random(_RandomVerbs, Awaited):
    """Random numbers on the device's compute lane: `dev.random`."""

    __slots__ = ()

    async def load(self, *names: str) -> None:
        """Compile the kernels of these distributions, of all without `names` (``nvrtcCompileProgram``).

        `names` are names of verbs. What is there already costs nothing, so a batch or a recorder need not wait for the
        compiler afterwards.

        Raises `InvalidArgument` for a name that is none, and `LibraryNotFound` when there is no NVRTC.
        """
        await load_kernels(self._device, names)


class BatchRandom(_RandomVerbs, Batched):
    """The verbs of `Random` in a batch, without ``await``: `batch.random`."""

    __slots__ = ()


class RecordedRandom(_RandomVerbs, Recorded):
    """The stateless verbs of `Random` as nodes of a graph: `graph.random` of a `GraphRecorder`."""

    __slots__ = ()
