"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from .._twins import Twin

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import ClassVar

    import numpy as np

    import atomr_trio

    from ..._arrays.access import Marked
    from ..._values.parameters import Dimensions
    from ...libraries.graphs.nodes import GraphNode
    from .._types import AnyArray
    from .kernels import Kernel
    from .lib_blas import RecordedBlas
    from .lib_blaslt import RecordedBlasLt
    from .lib_fft import RecordedFft
    from .lib_random import RecordedRandom


class Graph(Twin):
    """Launches, copies, fills and calls of libraries that are launched together, made by `dev.capture(record)`.

    It stays valid when a generation is lost: it is built again from the recording. It keeps its arrays and kernels
    alive. Nodes that touch the same array run in the order of the recording if one of them writes it; others may run
    side by side.
    """

    __slots__ = ()

    _made_by: ClassVar[str] = "`dev.capture(record)`"

    @property
    def awaited(self) -> atomr_trio.Graph:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.Graph = self._awaited
        return value

    def __len__(self) -> int:
        result: int = self._read(self._awaited.__len__)
        return result

    @property
    def nodes(self) -> Sequence[GraphNode]:
        """The operations, in the order of recording, as they are now.

        A later update does not change this sequence. Each node is made when you first look at it, so a look at a few
        nodes of a large graph costs no more than those.
        """
        value: Sequence[GraphNode] = self._awaited.nodes
        return value

    def launch(self, *, hang_timeout: float | None = None) -> None:
        """Launch the graph and wait until all of it has run (``cuGraphLaunch``).

        It is one command: it waits for all work that is under way on its arrays, and later work on them waits for all
        of it. `hang_timeout` is the time in seconds that this launch may run before its worker is killed; by default
        that of `start`.

        Raises `InvalidArgument` for an array that was freed; `StaleArray` for one that is lost, or torn, unless the
        graph overwrites all of it first; `StaleKernel` after a fault if the device was opened with
        ``on_fault="stale"``; `ContextLost` if the context is lost while it runs: its outputs are then torn.
        """
        self._wait(self._awaited.launch, (), {"hang_timeout": hang_timeout})

    def launch_nowait(self, *, hang_timeout: float | None = None) -> None:
        """Launch the graph, and do not wait for it. `hang_timeout` is that of `launch`, in seconds.

        It is submitted before this returns, so the caller's next work on its arrays is ordered after it. Its outcome is
        seen only in `dev.statistics()`. Launches in quick succession may share the ticket that reports their end, as in
        a batch: if a fault interrupts them, the arrays of all of them are torn.

        Raises `trio.WouldBlock` while the device is being rebuilt, and when 512 commands of the lane, without those of
        batches, are unfinished; and the errors that `launch` raises before anything is sent.
        """
        self._enqueue(self._awaited.launch_nowait, (), {"hang_timeout": hang_timeout})

    def update(self, node: GraphNode, *arguments: object, **keywords: object) -> None:
        """Give a node other arguments, from the next launch on. Sends nothing: the launch sends the change.

        `node` comes from the recording or from `nodes`. `arguments` are those of the kernel for a launch, whose grid,
        block and `touches` stay; the source and the target for a copy; the array and the value for a fill. A call of a
        library takes all `arguments` and `keywords` of its verb anew; without an ``out`` its result goes to the array
        that the recording has returned, and must be of that shape and dtype. Earlier launches run with the arguments at
        that time. The change is made in place if the driver can do it (``cuGraphExecKernelNodeSetParams`` and its kin).
        If the arrays bring other dependencies, or a copy is not contiguous, the graph is built again. An update costs
        the same in a graph of any size; other numbers for the same arrays of a kernel cost least, some microseconds
        with the launch. The next launch finds other dependencies, at some 3 us a node; `launch` lets other threads run
        meanwhile.

        Raises `InvalidArgument` as the verb itself does, and for a node of another graph; the graph is then unchanged.
        """
        self._enqueue(self._awaited.update, (node, *arguments), {**keywords})

    def clone(self) -> Graph:
        """Return another graph with the same nodes and arguments, which is updated separately. Sends nothing.

        It is built with its first launch; launches of a graph never overlap each other on the device, and those of a
        clone may. The nodes of this graph are valid for the clone too.

        Raises `DeviceClosed` or `DeviceFailed` once the device takes no requests.
        """
        result: Graph = self._enqueue(self._awaited.clone)
        return result


class GraphRecorder(Twin):
    """Records the operations of a graph; `dev.capture(record)` passes one to `record`.

    It has the verbs that can be captured. Each checks its arguments and sends nothing. Its own verbs return their node;
    those of a library, such as ``graph.blas.gemm(a, b)``, return their result, and `last` is their node. The name of
    any other verb of a device or an array raises `InvalidArgument`.
    """

    _made_by: ClassVar[str] = "`dev.capture(record)`"

    @property
    def awaited(self) -> atomr_trio.GraphRecorder:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.GraphRecorder = self._awaited
        return value

    @property
    def last(self) -> GraphNode:
        """The node of the verb that was called last. Raises `InvalidArgument` if there was none."""
        value: GraphNode = self._awaited.last
        return value

    def launch(
        self,
        kernel: Kernel,
        grid: Dimensions,
        block: Dimensions,
        *arguments: object,
        shared_bytes: int = 0,
        touches: Iterable[AnyArray | Marked] = (),
        cooperative: bool = False,
        cluster: Dimensions | None = None,
        programmatic: bool = False,
        priority: int | None = None,
    ) -> GraphNode:
        """Record the launch of a `kernel` (``cuGraphAddKernelNode``).

        `grid`, `block`, `arguments`, `shared_bytes`, `touches`, `cooperative`, `cluster`, `programmatic` and `priority`
        are those of `Kernel.launch`, a cooperative grid is checked as by `Kernel.launch_nowait`; arrays may have any
        shape and dtype. The node keeps its options when `Graph.update` changes its arguments.

        Raises `InvalidArgument` as `Kernel.launch` does, for a kernel of another device, and for a programmatic launch:
        a node of a graph begins only when those before it have ended.
        """
        result: GraphNode = self._enqueue(
            self._awaited.launch,
            (kernel, grid, block, *arguments),
            {
                "shared_bytes": shared_bytes,
                "touches": touches,
                "cooperative": cooperative,
                "cluster": cluster,
                "programmatic": programmatic,
                "priority": priority,
            },
        )
        return result

    def copy(self, source: AnyArray, target: AnyArray) -> GraphNode:
        """Record that the elements of `target` are overwritten with those of `source` (``cuGraphAddMemcpyNode``).

        Both are arrays of the graph's device, of one shape and dtype, contiguous or not. It is one node of the graph,
        even if it takes several on the device.

        Raises `InvalidArgument` if shapes, dtypes or devices differ, the two share memory, one was freed, or the
        elements are too scattered for a copy engine; and for a numpy array, since copies with the host cannot be
        captured.
        """
        result: GraphNode = self._enqueue(self._awaited.copy, (source, target))
        return result

    def fill(self, array: AnyArray, value: complex | np.generic) -> GraphNode:
        """Record that every element of `array`, of any shape and dtype, is set to `value` (``cuGraphAddMemsetNode``).

        `value` is a Python or numpy number.

        Raises `InvalidArgument` for a value that the dtype cannot hold, and for an array of another device or one that
        was freed.
        """
        result: GraphNode = self._enqueue(self._awaited.fill, (array, value))
        return result

    @functools.cached_property
    def blas(self) -> RecordedBlas:
        """Dense linear algebra (cuBLAS): `graph.blas.gemm(a, b)`, done with each launch of the graph."""
        value: RecordedBlas = self._enqueue(lambda: self._awaited.blas)
        return value

    @functools.cached_property
    def blaslt(self) -> RecordedBlasLt:
        """Products of matrices with epilogues (cuBLASLt): `graph.blaslt.matmul(a, b, ...)`, done with each launch of
        the graph.
        """
        value: RecordedBlasLt = self._enqueue(lambda: self._awaited.blaslt)
        return value

    @functools.cached_property
    def fft(self) -> RecordedFft:
        """Fourier transforms (cuFFT): `graph.fft.rfft(x)`, done with each launch of the graph."""
        value: RecordedFft = self._enqueue(lambda: self._awaited.fft)
        return value

    @functools.cached_property
    def random(self) -> RecordedRandom:
        """Random numbers (cuRAND): `graph.random.normal(size=1000)`, done with each launch of the graph."""
        value: RecordedRandom = self._enqueue(lambda: self._awaited.random)
        return value
