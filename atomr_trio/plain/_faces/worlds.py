"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from .._access import PartsAccess
from .._twins import Twin

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Any, ClassVar

    import numpy as np
    import numpy.typing as npt

    import atomr_trio

    from ...libraries.nccl.arguments import Op, PremultipliedSum
    from .._types import AnyArray
    from .arrays import DeviceArray


class World(Twin):
    """Several devices of a group that compute together, by NCCL. Made by `Devices.world`.

    A member has a rank, its place in the world. Arrays are given as a sequence with one for each member, in the order
    of the ranks. They are contiguous, and of one shape and dtype, unless a verb says something else. Outputs are `out`,
    which may be the inputs themselves where a verb says so; without it they are new arrays.

    Every verb is one request. It is published to all members at once, in order with all other work on its arrays, and
    ends when every member is done. If a member is lost before that, it raises `WorldLost`: inputs are intact on every
    member, outputs are torn on every member. The world then begins its next *epoch* by itself, as soon as all members
    run again; requests that come meanwhile wait for it.

    A form with ``_nowait`` publishes and returns at once; nobody is told of its end but who uses its outputs. It raises
    `trio.WouldBlock` when it would have to wait: between two epochs, behind other requests, or for memory.

    Every verb raises `InvalidArgument` for arguments that are not valid, before anything is published, and if the world
    was closed; `StaleArray` if an input is torn; `DeviceClosed` or `DeviceFailed` if a member takes no requests.
    """

    __slots__ = ()

    _made_by: ClassVar[str] = "`devices.world()`"

    @property
    def awaited(self) -> atomr_trio.World:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.World = self._awaited
        return value

    def __len__(self) -> int:
        """Return the number of members."""
        result: int = self._read(self._awaited.__len__)
        return result

    @property
    def members(self) -> tuple[Any, ...]:
        """The devices, in the order of the ranks."""
        value: tuple[Any, ...] = self._seen(self._awaited.members)
        return value

    @property
    def epoch(self) -> int:
        """The number of the newest epoch. The first is 1; each that had to be made anew adds 1."""
        value: int = self._awaited.epoch
        return value

    def wait_epoch(self, *, after: int) -> int:
        """Wait until an epoch newer than `after` has begun, and return its number.

        Raises `InvalidArgument` if `after` is not an int or the world is closed, and the error of the world if there
        will be no such epoch: `DeviceFailed` or `DeviceClosed` of a member, or what NCCL refuses.
        """
        result: int = self._wait(self._awaited.wait_epoch, (), {"after": after})
        return result

    def close(self) -> None:
        """Close the world when all of its requests are over (``ncclCommAbort``). Its devices and their arrays stay.

        If this is cancelled, the world is closed at once, and requests that are under way raise `WorldLost`. A closed
        world stays closed; closing it again does nothing.
        """
        self._wait(self._awaited.aclose)

    def batch(self) -> WorldBatch:
        """Return a context manager whose verbs are collected, and published as one request when it is left.

        `with world.batch() as batch:` has the same verbs, without waiting; the calls are one group of NCCL, and run at
        the same time, so none may use what another one writes. Leaving the block waits for the end, and raises what a
        verb raises. If the block is left by an exception, nothing is published.
        """
        result: WorldBatch = self._enqueue(self._awaited.batch)
        return result

    def shard(self, array: npt.ArrayLike, *, axis: int = 0) -> Sharded:
        """Split a numpy array into equal parts, and give each member one (``cuMemcpyHtoDAsync``).

        - `array`: an array of any shape and dtype that arrays of a device can have.
        - `axis`: the number of the axis that is split.

        Returns the parts, which every verb takes in the place of a sequence of arrays. Raises `InvalidArgument` if the
        axis cannot be split, `OutOfDeviceMemory` if a member has no room, `ContextLost` if one is lost meanwhile.
        """
        result: Sharded = self._wait(self._awaited.shard, (array,), {"axis": axis})
        return result

    def all_reduce(
        self, arrays: Sequence[AnyArray], out: Sequence[AnyArray] | None = None, *, op: Op | PremultipliedSum = "sum"
    ) -> tuple[DeviceArray, ...]:
        """Reduce the arrays element by element, and give every member the result (``ncclAllReduce``).

        - `arrays`: one array of each member, of any shape and one dtype: 8-, 32- and 64-bit integers, floats; complex
          numbers for "sum", "avg" and pre-multiplied sums.
        - `out`: arrays of the same shape and dtype, or `arrays` itself to work in place; by default new ones.
        - `op`: "sum", "prod", "min", "max", "avg", or `premultiplied_sum`. With the world's default settings a sum of
          floats has the same bits each time.

        Returns the outputs. Raises `InvalidArgument`, and `WorldLost` if a member is lost meanwhile.
        """
        result: tuple[DeviceArray, ...] = self._wait(self._awaited.all_reduce, (arrays, out), {"op": op})
        return result

    def all_reduce_nowait(
        self, arrays: Sequence[AnyArray], out: Sequence[AnyArray] | None = None, *, op: Op | PremultipliedSum = "sum"
    ) -> tuple[DeviceArray, ...]:
        """Publish `all_reduce` of `arrays` of one shape and dtype, with its `out` and `op`, without waiting.

        Raises `InvalidArgument`, and `trio.WouldBlock` if it would have to wait.
        """
        result: tuple[DeviceArray, ...] = self._enqueue(self._awaited.all_reduce_nowait, (arrays, out), {"op": op})
        return result

    def reduce(
        self,
        arrays: Sequence[AnyArray],
        out: AnyArray | None = None,
        *,
        root: int = 0,
        op: Op | PremultipliedSum = "sum",
    ) -> DeviceArray:
        """Reduce the arrays element by element, and give the root the result (``ncclReduce``).

        - `arrays`: one array of each member, of one shape and dtype, as for `all_reduce`.
        - `out`: an array of the root, of the same shape and dtype, or its array among `arrays`; by default a new one.
        - `root`: the number of the rank that has the result.
        - `op`: as for `all_reduce`.

        Returns the output. Raises `InvalidArgument`, and `WorldLost` if a member is lost meanwhile.
        """
        result: DeviceArray = self._wait(self._awaited.reduce, (arrays, out), {"root": root, "op": op})
        return result

    def broadcast(self, arrays: Sequence[AnyArray], *, root: int = 0) -> tuple[DeviceArray, ...]:
        """Overwrite the arrays of all members with that of the root (``ncclBroadcast``).

        - `arrays`: one array of each member, of any shape and one dtype. That of the root is read, all others are
          written.
        - `root`: the number of the rank whose array is read.

        Returns the arrays. Raises `InvalidArgument`, and `WorldLost` if a member is lost meanwhile.
        """
        result: tuple[DeviceArray, ...] = self._wait(self._awaited.broadcast, (arrays,), {"root": root})
        return result

    def all_gather(self, arrays: Sequence[AnyArray], out: Sequence[AnyArray] | None = None) -> tuple[DeviceArray, ...]:
        """Give every member the arrays of all members, one after the other (``ncclAllGather``).

        - `arrays`: one array of each member, of any shape and one dtype.
        - `out`: arrays with one more axis in front, whose length is the number of members, and of the same dtype; by
          default new ones. To work in place, an input is its own part of the output: `out[rank][rank]`.

        Returns the outputs. Raises `InvalidArgument`, and `WorldLost` if a member is lost meanwhile.
        """
        result: tuple[DeviceArray, ...] = self._wait(self._awaited.all_gather, (arrays, out))
        return result

    def reduce_scatter(
        self, arrays: Sequence[AnyArray], out: Sequence[AnyArray] | None = None, *, op: Op | PremultipliedSum = "sum"
    ) -> tuple[DeviceArray, ...]:
        """Reduce the arrays element by element, and give every member its part of the result (``ncclReduceScatter``).

        - `arrays`: one array of each member, of one shape and dtype, as for `all_reduce`. The first axis is split into
          as many equal parts as there are members.
        - `out`: arrays of the shape and dtype of a part; by default new ones. To work in place, an output is the
          member's own part of its input.
        - `op`: as for `all_reduce`.

        Returns the outputs. Raises `InvalidArgument`, and `WorldLost` if a member is lost meanwhile.
        """
        result: tuple[DeviceArray, ...] = self._wait(self._awaited.reduce_scatter, (arrays, out), {"op": op})
        return result

    def gather(self, arrays: Sequence[AnyArray], out: AnyArray | None = None, *, root: int = 0) -> DeviceArray:
        """Give the root the arrays of all members, one after the other (``ncclSend``, ``ncclRecv``).

        - `arrays`: one array of each member, of any shape and one dtype.
        - `out`: an array of the root with one more axis in front, whose length is the number of members, and of the
          same dtype; by default a new one.
        - `root`: the number of the rank that has the result.

        Returns the output. Raises `InvalidArgument`, and `WorldLost` if a member is lost meanwhile.
        """
        result: DeviceArray = self._wait(self._awaited.gather, (arrays, out), {"root": root})
        return result

    def scatter(
        self, array: AnyArray, out: Sequence[AnyArray] | None = None, *, root: int = 0
    ) -> tuple[DeviceArray, ...]:
        """Give every member its part of an array of the root (``ncclSend``, ``ncclRecv``).

        - `array`: an array of the root, of any dtype. The first axis of its shape is split into as many equal parts as
          there are members.
        - `out`: arrays of the shape and dtype of a part; by default new ones.
        - `root`: the number of the rank whose array is read.

        Returns the outputs. Raises `InvalidArgument`, and `WorldLost` if a member is lost meanwhile.
        """
        result: tuple[DeviceArray, ...] = self._wait(self._awaited.scatter, (array, out), {"root": root})
        return result

    def all_to_all(self, arrays: Sequence[AnyArray], out: Sequence[AnyArray] | None = None) -> tuple[DeviceArray, ...]:
        """Give every member its part of each member's array (``ncclSend``, ``ncclRecv``).

        - `arrays`: one array of each member, of one shape and dtype. The first axis is split into as many equal parts
          as there are members: part j of rank i becomes part i of rank j.
        - `out`: arrays of the same shape and dtype, with memory of their own; by default new ones.

        Returns the outputs. Raises `InvalidArgument`, and `WorldLost` if a member is lost meanwhile.
        """
        result: tuple[DeviceArray, ...] = self._wait(self._awaited.all_to_all, (arrays, out))
        return result

    def all_to_all_v(
        self, arrays: Sequence[AnyArray], counts: Sequence[Sequence[int]], out: Sequence[AnyArray] | None = None
    ) -> tuple[DeviceArray, ...]:
        """Give every member its part of each member's array, where the parts have different sizes (``ncclSend``).

        - `arrays`: one array of each member, of shape (n,) and one dtype: the parts for rank 0, rank 1, ... in a row.
        - `counts`: `counts[i][j]` is the number of elements from rank i to rank j.
        - `out`: arrays of the shapes that follow and of the same dtype, with memory of their own; by default new ones.

        Returns the outputs: the parts of rank 0, rank 1, ... in a row. Raises `InvalidArgument`, and `WorldLost` if a
        member is lost meanwhile.
        """
        result: tuple[DeviceArray, ...] = self._wait(self._awaited.all_to_all_v, (arrays, counts, out))
        return result

    def exchange(self, pairs: Sequence[tuple[AnyArray, AnyArray]]) -> None:
        """Copy arrays between members, all at the same time (``ncclSend``, ``ncclRecv``).

        - `pairs`: each is a source and a target, arrays of members, of one shape and dtype. No target shares memory
          with a source or another target.

        Raises `InvalidArgument`, and `WorldLost` if a member is lost meanwhile.
        """
        self._wait(self._awaited.exchange, (pairs,))

    def send(self, source: AnyArray, target: AnyArray) -> None:
        """Copy an array of one member to an array of another one (``ncclSend``, ``ncclRecv``).

        - `source`: an array of any shape and dtype.
        - `target`: an array of the same shape and dtype, of another member or the same, with memory of its own.

        Raises `InvalidArgument`, and `WorldLost` if a member is lost meanwhile; what other members do goes on then.
        """
        self._wait(self._awaited.send, (source, target))

    def recv(self, target: AnyArray, source: AnyArray) -> None:
        """Do the same as `send`, seen from the other end (``ncclRecv``, ``ncclSend``).

        `target` and `source` are of one shape and dtype.

        Raises `InvalidArgument`, and `WorldLost` if a member is lost meanwhile.
        """
        self._wait(self._awaited.recv, (target, source))

    def barrier(self) -> None:
        """Wait until all work that was submitted to any member before is done (``ncclAllReduce`` of one element).

        Raises `WorldLost` if a member is lost meanwhile.
        """
        self._wait(self._awaited.barrier)

    def reduce_nowait(
        self,
        arrays: Sequence[AnyArray],
        out: AnyArray | None = None,
        *,
        root: int = 0,
        op: Op | PremultipliedSum = "sum",
    ) -> DeviceArray:
        """Publish `reduce` without waiting.

        The arguments are `arrays`, `out`, the number `root`, `op`, of one shape and dtype as there.

        Raises `InvalidArgument`, and `trio.WouldBlock` if it would have to wait.
        """
        result: DeviceArray = self._enqueue(self._awaited.reduce_nowait, (arrays, out), {"root": root, "op": op})
        return result

    def broadcast_nowait(self, arrays: Sequence[AnyArray], *, root: int = 0) -> tuple[DeviceArray, ...]:
        """Publish `broadcast` without waiting.

        The arguments are `arrays`, the number `root`, of one shape and dtype as there.

        Raises `InvalidArgument`, and `trio.WouldBlock` if it would have to wait.
        """
        result: tuple[DeviceArray, ...] = self._enqueue(self._awaited.broadcast_nowait, (arrays,), {"root": root})
        return result

    def all_gather_nowait(
        self, arrays: Sequence[AnyArray], out: Sequence[AnyArray] | None = None
    ) -> tuple[DeviceArray, ...]:
        """Publish `all_gather` without waiting.

        The arguments are `arrays`, `out`, of one shape and dtype as there.

        Raises `InvalidArgument`, and `trio.WouldBlock` if it would have to wait.
        """
        result: tuple[DeviceArray, ...] = self._enqueue(self._awaited.all_gather_nowait, (arrays, out))
        return result

    def reduce_scatter_nowait(
        self, arrays: Sequence[AnyArray], out: Sequence[AnyArray] | None = None, *, op: Op | PremultipliedSum = "sum"
    ) -> tuple[DeviceArray, ...]:
        """Publish `reduce_scatter` without waiting.

        The arguments are `arrays`, `out`, `op`, of one shape and dtype as there.

        Raises `InvalidArgument`, and `trio.WouldBlock` if it would have to wait.
        """
        result: tuple[DeviceArray, ...] = self._enqueue(self._awaited.reduce_scatter_nowait, (arrays, out), {"op": op})
        return result

    def gather_nowait(self, arrays: Sequence[AnyArray], out: AnyArray | None = None, *, root: int = 0) -> DeviceArray:
        """Publish `gather` without waiting.

        The arguments are `arrays`, `out`, the number `root`, of one shape and dtype as there.

        Raises `InvalidArgument`, and `trio.WouldBlock` if it would have to wait.
        """
        result: DeviceArray = self._enqueue(self._awaited.gather_nowait, (arrays, out), {"root": root})
        return result

    def scatter_nowait(
        self, array: AnyArray, out: Sequence[AnyArray] | None = None, *, root: int = 0
    ) -> tuple[DeviceArray, ...]:
        """Publish `scatter` without waiting.

        The arguments are `array`, `out`, the number `root`, of one shape and dtype as there.

        Raises `InvalidArgument`, and `trio.WouldBlock` if it would have to wait.
        """
        result: tuple[DeviceArray, ...] = self._enqueue(self._awaited.scatter_nowait, (array, out), {"root": root})
        return result

    def all_to_all_nowait(
        self, arrays: Sequence[AnyArray], out: Sequence[AnyArray] | None = None
    ) -> tuple[DeviceArray, ...]:
        """Publish `all_to_all` without waiting.

        The arguments are `arrays`, `out`, of one shape and dtype as there.

        Raises `InvalidArgument`, and `trio.WouldBlock` if it would have to wait.
        """
        result: tuple[DeviceArray, ...] = self._enqueue(self._awaited.all_to_all_nowait, (arrays, out))
        return result

    def all_to_all_v_nowait(
        self, arrays: Sequence[AnyArray], counts: Sequence[Sequence[int]], out: Sequence[AnyArray] | None = None
    ) -> tuple[DeviceArray, ...]:
        """Publish `all_to_all_v` without waiting.

        The arguments are `arrays`, the numbers `counts`, `out`, of one shape and dtype as there.

        Raises `InvalidArgument`, and `trio.WouldBlock` if it would have to wait.
        """
        result: tuple[DeviceArray, ...] = self._enqueue(self._awaited.all_to_all_v_nowait, (arrays, counts, out))
        return result

    def exchange_nowait(self, pairs: Sequence[tuple[AnyArray, AnyArray]]) -> None:
        """Publish `exchange` without waiting.

        The arguments are `pairs`, of one shape and dtype as there.

        Raises `InvalidArgument`, and `trio.WouldBlock` if it would have to wait.
        """
        self._enqueue(self._awaited.exchange_nowait, (pairs,))

    def send_nowait(self, source: AnyArray, target: AnyArray) -> None:
        """Publish `send` of `source` to `target`, of one shape and dtype, without waiting.

        Raises `InvalidArgument`, and `trio.WouldBlock` if it would have to wait.
        """
        self._enqueue(self._awaited.send_nowait, (source, target))

    def recv_nowait(self, target: AnyArray, source: AnyArray) -> None:
        """Publish `recv` to `target` from `source`, of one shape and dtype, without waiting.

        Raises `InvalidArgument`, and `trio.WouldBlock` if it would have to wait.
        """
        self._enqueue(self._awaited.recv_nowait, (target, source))

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave(kind, error, traceback)


class WorldBatch(Twin):
    """Calls of a world that are published together, as one group of NCCL. Made by `World.batch`.

    They run at the same time, so no call may use what another one writes. Outputs are returned at once, and written
    when the block is left.
    """

    __slots__ = ()

    _made_by: ClassVar[str] = "`world.batch()`"

    @property
    def awaited(self) -> atomr_trio.WorldBatch:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.WorldBatch = self._awaited
        return value

    def all_reduce(
        self, arrays: Sequence[AnyArray], out: Sequence[AnyArray] | None = None, *, op: Op | PremultipliedSum = "sum"
    ) -> tuple[DeviceArray, ...]:
        """Do `World.all_reduce` at the end of the batch, with its `arrays`, `out` and `op`, of one shape and dtype.

        Raises `InvalidArgument`.
        """
        result: tuple[DeviceArray, ...] = self._enqueue(self._awaited.all_reduce, (arrays, out), {"op": op})
        return result

    def reduce(
        self,
        arrays: Sequence[AnyArray],
        out: AnyArray | None = None,
        *,
        root: int = 0,
        op: Op | PremultipliedSum = "sum",
    ) -> DeviceArray:
        """Do `World.reduce` at the end of the batch.

        The arguments are `arrays`, `out`, the number `root`, `op`, of one shape and dtype as there.

        Raises `InvalidArgument`.
        """
        result: DeviceArray = self._enqueue(self._awaited.reduce, (arrays, out), {"root": root, "op": op})
        return result

    def broadcast(self, arrays: Sequence[AnyArray], *, root: int = 0) -> tuple[DeviceArray, ...]:
        """Do `World.broadcast` at the end of the batch.

        The arguments are `arrays`, the number `root`, of one shape and dtype as there.

        Raises `InvalidArgument`.
        """
        result: tuple[DeviceArray, ...] = self._enqueue(self._awaited.broadcast, (arrays,), {"root": root})
        return result

    def all_gather(self, arrays: Sequence[AnyArray], out: Sequence[AnyArray] | None = None) -> tuple[DeviceArray, ...]:
        """Do `World.all_gather` at the end of the batch.

        The arguments are `arrays`, `out`, of one shape and dtype as there.

        Raises `InvalidArgument`.
        """
        result: tuple[DeviceArray, ...] = self._enqueue(self._awaited.all_gather, (arrays, out))
        return result

    def reduce_scatter(
        self, arrays: Sequence[AnyArray], out: Sequence[AnyArray] | None = None, *, op: Op | PremultipliedSum = "sum"
    ) -> tuple[DeviceArray, ...]:
        """Do `World.reduce_scatter` at the end of the batch.

        The arguments are `arrays`, `out`, `op`, of one shape and dtype as there.

        Raises `InvalidArgument`.
        """
        result: tuple[DeviceArray, ...] = self._enqueue(self._awaited.reduce_scatter, (arrays, out), {"op": op})
        return result

    def gather(self, arrays: Sequence[AnyArray], out: AnyArray | None = None, *, root: int = 0) -> DeviceArray:
        """Do `World.gather` at the end of the batch.

        The arguments are `arrays`, `out`, the number `root`, of one shape and dtype as there.

        Raises `InvalidArgument`.
        """
        result: DeviceArray = self._enqueue(self._awaited.gather, (arrays, out), {"root": root})
        return result

    def scatter(
        self, array: AnyArray, out: Sequence[AnyArray] | None = None, *, root: int = 0
    ) -> tuple[DeviceArray, ...]:
        """Do `World.scatter` at the end of the batch.

        The arguments are `array`, `out`, the number `root`, of one shape and dtype as there.

        Raises `InvalidArgument`.
        """
        result: tuple[DeviceArray, ...] = self._enqueue(self._awaited.scatter, (array, out), {"root": root})
        return result

    def all_to_all(self, arrays: Sequence[AnyArray], out: Sequence[AnyArray] | None = None) -> tuple[DeviceArray, ...]:
        """Do `World.all_to_all` at the end of the batch.

        The arguments are `arrays`, `out`, of one shape and dtype as there.

        Raises `InvalidArgument`.
        """
        result: tuple[DeviceArray, ...] = self._enqueue(self._awaited.all_to_all, (arrays, out))
        return result

    def all_to_all_v(
        self, arrays: Sequence[AnyArray], counts: Sequence[Sequence[int]], out: Sequence[AnyArray] | None = None
    ) -> tuple[DeviceArray, ...]:
        """Do `World.all_to_all_v` at the end of the batch.

        The arguments are `arrays`, the numbers `counts`, `out`, of one shape and dtype as there.

        Raises `InvalidArgument`.
        """
        result: tuple[DeviceArray, ...] = self._enqueue(self._awaited.all_to_all_v, (arrays, counts, out))
        return result

    def exchange(self, pairs: Sequence[tuple[AnyArray, AnyArray]]) -> None:
        """Do `World.exchange` at the end of the batch.

        The arguments are `pairs`, of one shape and dtype as there.

        Raises `InvalidArgument`.
        """
        self._enqueue(self._awaited.exchange, (pairs,))

    def send(self, source: AnyArray, target: AnyArray) -> None:
        """Do `World.send` of `source` to `target`, of one shape and dtype, at the end of the batch.

        Raises `InvalidArgument`.
        """
        self._enqueue(self._awaited.send, (source, target))

    def recv(self, target: AnyArray, source: AnyArray) -> None:
        """Do `World.recv` to `target` from `source`, of one shape and dtype, at the end of the batch.

        Raises `InvalidArgument`.
        """
        self._enqueue(self._awaited.recv, (target, source))

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave(kind, error, traceback)


class Sharded(PartsAccess, Twin):
    """An array that is split along one axis, with a part on each member of a world. Made by `World.shard`.

    It is a sequence of the parts, in the order of the ranks, and every verb of the world takes it as that.
    """

    __slots__ = ()

    _made_by: ClassVar[str] = "`world.shard(array)`"

    @property
    def awaited(self) -> atomr_trio.Sharded:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.Sharded = self._awaited
        return value

    @property
    def axis(self) -> int:
        """The number of the axis that is split, from 0 on."""
        value: int = self._awaited.axis
        return value

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes of the whole array."""
        value: tuple[int, ...] = self._awaited.shape
        return value

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an element."""
        value: np.dtype[Any] = self._awaited.dtype
        return value

    def to_host(self) -> npt.NDArray[Any]:
        """Return a new numpy array with all elements, of the same shape and dtype (``cuMemcpyDtoHAsync``).

        Raises `InvalidArgument` if a part was freed, `StaleArray` if one is torn or lost, `ContextLost` if a context is
        lost meanwhile.
        """
        result: npt.NDArray[Any] = self._wait(self._awaited.to_host)
        return result
