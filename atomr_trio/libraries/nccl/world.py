"""`World`: collectives of several devices of a group, by NCCL, which survive the loss of their members."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, final

import numpy.typing as npt
import trio

from ..._arrays.arrays import DeviceArray
from ..._arrays.memory import DeviceMemory
from ..._generation.core import DeviceCore
from ..._values.errors import InvalidArgument, fresh
from ..._values.habits import BLOCK, refuse_habits
from ..._values.util import NoPublicConstructor, shown
from . import plans
from .actor import Environment, WorldActor, WorldDevice, check_environment
from .arguments import Op, PremultipliedSum
from .remembered import Expected, Found, Memory, Remembered, find, nothing
from .sharded import Sharded, shard

if TYPE_CHECKING:
    from ..._generation.group import Group
    from .collectives import Part

T = TypeVar("T")

Arrays = Sequence[DeviceArray]
"""One array of each member, in the order of the ranks."""


@final
class World(metaclass=NoPublicConstructor):
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

    _made_by = "`await devices.world()`"

    def __init__(self, actor: WorldActor) -> None:
        self._actor = actor
        self._words: list[tuple[DeviceArray, DeviceArray]] = []
        self._memory = Memory()

    def __repr__(self) -> str:
        members = ", ".join(str(core.index) for core in self._actor.cores)
        state = "closed" if self._actor.ended is not None else "up" if self._actor.epoch_up else "being made"
        return f"<World of devices {members}, epoch {self.epoch}, {state}>"

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self._actor.cores)

    @property
    def members(self) -> tuple[Any, ...]:
        """The devices, in the order of the ranks."""
        return tuple(core.face for core in self._actor.cores)

    @property
    def epoch(self) -> int:
        """The number of the newest epoch. The first is 1; each that had to be made anew adds 1."""
        return self._actor.number

    @trio.lowlevel.enable_ki_protection
    async def wait_epoch(self, *, after: int) -> int:
        """Wait until an epoch newer than `after` has begun, and return its number.

        Raises `InvalidArgument` if `after` is not an int or the world is closed, and the error of the world if there
        will be no such epoch: `DeviceFailed` or `DeviceClosed` of a member, or what NCCL refuses.
        """
        actor = self._actor
        actor.cores[0].home.check_task()
        await trio.lowlevel.checkpoint()
        if type(after) is not int:
            raise InvalidArgument(f"after is the number of an epoch, not {shown(after)}")
        while actor.number <= after or not actor.epoch_up:
            if actor.ended is not None:
                raise fresh(actor.ended)
            await actor.wait_changed()
        return actor.number

    # --- the end ------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._actor.cores[0].home.check_task()
        try:
            await trio.lowlevel.checkpoint()
        except BaseException:
            self._actor.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the world, as `aclose` does."""
        await self.aclose()

    @trio.lowlevel.enable_ki_protection
    async def aclose(self) -> None:
        """Close the world when all of its requests are over (``ncclCommAbort``). Its devices and their arrays stay.

        If this is cancelled, the world is closed at once, and requests that are under way raise `WorldLost`.
        A closed world stays closed; closing it again does nothing.
        """
        actor = self._actor
        actor.cores[0].home.check_task()
        try:
            await trio.lowlevel.checkpoint()
            while actor.ended is None and not actor.idle:
                await actor.wait_changed()
        finally:
            actor.close()
            self._words = []
            self._memory.clear()

    # --- requests -----------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raise the error of a world, or a task, that takes no requests."""
        actor = self._actor
        actor.check_open()
        for core in actor.cores:
            if core.recording and trio.lowlevel.current_task() in core.recording:
                raise InvalidArgument("a collective cannot be captured in a graph", device=core.index)

    def _calls(self, name: str) -> plans.Calls:
        self._check()
        return plans.Calls(self._actor.cores, self._actor.lanes, f"world.{name}")

    async def _ask(self, plan: Callable[..., T], *arguments: object) -> T:
        actor = self._actor
        actor.cores[0].home.check_task()
        known, arrays, found = self._memory.recall(plan.__name__, arguments)
        if known is not None and known.ready is not None:
            collective = await actor.ask_ready(known.ready, arrays)
            if collective is not None:
                result: T = collective.result if known.new else known.result(arrays)
                return result
        calls, found = self._calls(plan.__name__), found or find(plan.__name__, arguments)
        made = self._plan(calls, plan, arguments, found, known)
        published = calls.finish()
        if commands := published.commands:
            await actor.ask(published)
            self._prepare(found, known, commands, made)
        else:
            await trio.lowlevel.checkpoint()
        return made

    @trio.lowlevel.enable_ki_protection
    def _begin(self, plan: Callable[..., T], *arguments: object) -> T:
        actor = self._actor
        actor.cores[0].home.check_task()
        known, arrays, found = self._memory.recall(plan.__name__, arguments)
        if known is not None and known.ready is not None:
            collective = actor.begin_ready(known.ready, arrays, heard=False)
            if collective is not None:
                collective.give_up()
                result: T = collective.result if known.new else known.result(arrays)
                return result
        calls, found = self._calls(plan.__name__), found or find(plan.__name__, arguments)
        made = self._plan(calls, plan, arguments, found, known)
        published = calls.finish()
        if commands := published.commands:
            actor.ask_nowait(published)
            self._prepare(found, known, commands, made)
        return made

    def _prepare(self, found: Found | None, known: Remembered | None, parts: Sequence[Part], made: Any) -> None:
        """Remember a call that was made, or make its short way if it is remembered."""
        if found is None:
            return
        if known is None:
            if found.new:
                self._memory.learn(found, None, parts[0].operation)
        elif found.new:
            known.prepare_new(self._actor, parts, found.arrays, made)
        else:
            known.prepare(self._actor)

    def _plan(
        self,
        calls: plans.Calls,
        plan: Callable[..., T],
        arguments: Sequence[object],
        found: Found | None,
        known: Remembered | None,
    ) -> T:
        """Add a call, and return its result. One with the arrays of an earlier one is not planned again."""
        if found is None or found.new:
            return plan(calls, *arguments)
        if known is None or known.template is None:
            operation = calls.collective.operation
            planned = plans.Calls(calls.cores, calls.lanes, operation)
            plan(planned, *arguments)
            known = self._memory.learn(found, planned.known(), operation)
        assert known.template is not None
        calls.repeat(known.template, found.arrays)
        result: T = known.result(found.arrays)
        return result

    def batch(self) -> WorldBatch:
        """Return a context manager whose verbs are collected, and published as one request when it is left.

        `async with world.batch() as batch:` has the same verbs, without ``await``; the calls are one group of NCCL, and
        run at the same time, so none may use what another one writes. Leaving the block waits for the end, and raises
        what a verb raises. If the block is left by an exception, nothing is published.
        """
        return WorldBatch._create(self)

    async def shard(self, array: npt.ArrayLike, *, axis: int = 0) -> Sharded:
        """Split a numpy array into equal parts, and give each member one (``cuMemcpyHtoDAsync``).

        - `array`: an array of any shape and dtype that arrays of a device can have.
        - `axis`: the number of the axis that is split.

        Returns the parts, which every verb takes in the place of a sequence of arrays. Raises `InvalidArgument` if the
        axis cannot be split, `OutOfDeviceMemory` if a member has no room, `ContextLost` if one is lost meanwhile.
        """
        self._actor.cores[0].home.check_task()
        self._actor.check_open()
        return await shard(self._actor.cores, array, axis)

    # --- verbs --------------------------------------------------------------------------------------------------------

    async def all_reduce(
        self, arrays: Arrays, out: Arrays | None = None, *, op: Op | PremultipliedSum = "sum"
    ) -> tuple[DeviceArray, ...]:
        """Reduce the arrays element by element, and give every member the result (``ncclAllReduce``).

        - `arrays`: one array of each member, of any shape and one dtype: 8-, 32- and 64-bit integers, floats; complex
          numbers for "sum", "avg" and pre-multiplied sums.
        - `out`: arrays of the same shape and dtype, or `arrays` itself to work in place; by default new ones.
        - `op`: "sum", "prod", "min", "max", "avg", or `premultiplied_sum`. With the world's default settings a sum of
          floats has the same bits each time.

        Returns the outputs. Raises `InvalidArgument`, and `WorldLost` if a member is lost meanwhile.
        """
        return await self._ask(plans.all_reduce, arrays, out, op)

    def all_reduce_nowait(
        self, arrays: Arrays, out: Arrays | None = None, *, op: Op | PremultipliedSum = "sum"
    ) -> tuple[DeviceArray, ...]:
        """Publish `all_reduce` of `arrays` of one shape and dtype, with its `out` and `op`, without waiting.

        Raises `InvalidArgument`, and `trio.WouldBlock` if it would have to wait.
        """
        return self._begin(plans.all_reduce, arrays, out, op)

    async def reduce(
        self, arrays: Arrays, out: DeviceArray | None = None, *, root: int = 0, op: Op | PremultipliedSum = "sum"
    ) -> DeviceArray:
        """Reduce the arrays element by element, and give the root the result (``ncclReduce``).

        - `arrays`: one array of each member, of one shape and dtype, as for `all_reduce`.
        - `out`: an array of the root, of the same shape and dtype, or its array among `arrays`; by default a new one.
        - `root`: the number of the rank that has the result.
        - `op`: as for `all_reduce`.

        Returns the output. Raises `InvalidArgument`, and `WorldLost` if a member is lost meanwhile.
        """
        return await self._ask(plans.reduce, arrays, out, root, op)

    async def broadcast(self, arrays: Arrays, *, root: int = 0) -> tuple[DeviceArray, ...]:
        """Overwrite the arrays of all members with that of the root (``ncclBroadcast``).

        - `arrays`: one array of each member, of any shape and one dtype. That of the root is read, all others are
          written.
        - `root`: the number of the rank whose array is read.

        Returns the arrays. Raises `InvalidArgument`, and `WorldLost` if a member is lost meanwhile.
        """
        return await self._ask(plans.broadcast, arrays, root)

    async def all_gather(self, arrays: Arrays, out: Arrays | None = None) -> tuple[DeviceArray, ...]:
        """Give every member the arrays of all members, one after the other (``ncclAllGather``).

        - `arrays`: one array of each member, of any shape and one dtype.
        - `out`: arrays with one more axis in front, whose length is the number of members, and of the same dtype; by
          default new ones. To work in place, an input is its own part of the output: `out[rank][rank]`.

        Returns the outputs. Raises `InvalidArgument`, and `WorldLost` if a member is lost meanwhile.
        """
        return await self._ask(plans.all_gather, arrays, out)

    async def reduce_scatter(
        self, arrays: Arrays, out: Arrays | None = None, *, op: Op | PremultipliedSum = "sum"
    ) -> tuple[DeviceArray, ...]:
        """Reduce the arrays element by element, and give every member its part of the result (``ncclReduceScatter``).

        - `arrays`: one array of each member, of one shape and dtype, as for `all_reduce`. The first axis is split into
          as many equal parts as there are members.
        - `out`: arrays of the shape and dtype of a part; by default new ones. To work in place, an output is the
          member's own part of its input.
        - `op`: as for `all_reduce`.

        Returns the outputs. Raises `InvalidArgument`, and `WorldLost` if a member is lost meanwhile.
        """
        return await self._ask(plans.reduce_scatter, arrays, out, op)

    async def gather(self, arrays: Arrays, out: DeviceArray | None = None, *, root: int = 0) -> DeviceArray:
        """Give the root the arrays of all members, one after the other (``ncclSend``, ``ncclRecv``).

        - `arrays`: one array of each member, of any shape and one dtype.
        - `out`: an array of the root with one more axis in front, whose length is the number of members, and of the
          same dtype; by default a new one.
        - `root`: the number of the rank that has the result.

        Returns the output. Raises `InvalidArgument`, and `WorldLost` if a member is lost meanwhile.
        """
        return await self._ask(plans.gather, arrays, out, root)

    async def scatter(self, array: DeviceArray, out: Arrays | None = None, *, root: int = 0) -> tuple[DeviceArray, ...]:
        """Give every member its part of an array of the root (``ncclSend``, ``ncclRecv``).

        - `array`: an array of the root, of any dtype. The first axis of its shape is split into as many equal parts as
          there are members.
        - `out`: arrays of the shape and dtype of a part; by default new ones.
        - `root`: the number of the rank whose array is read.

        Returns the outputs. Raises `InvalidArgument`, and `WorldLost` if a member is lost meanwhile.
        """
        return await self._ask(plans.scatter, array, out, root)

    async def all_to_all(self, arrays: Arrays, out: Arrays | None = None) -> tuple[DeviceArray, ...]:
        """Give every member its part of each member's array (``ncclSend``, ``ncclRecv``).

        - `arrays`: one array of each member, of one shape and dtype. The first axis is split into as many equal parts
          as there are members: part j of rank i becomes part i of rank j.
        - `out`: arrays of the same shape and dtype, with memory of their own; by default new ones.

        Returns the outputs. Raises `InvalidArgument`, and `WorldLost` if a member is lost meanwhile.
        """
        return await self._ask(plans.all_to_all, arrays, out)

    async def all_to_all_v(
        self, arrays: Arrays, counts: Sequence[Sequence[int]], out: Arrays | None = None
    ) -> tuple[DeviceArray, ...]:
        """Give every member its part of each member's array, where the parts have different sizes (``ncclSend``).

        - `arrays`: one array of each member, of shape (n,) and one dtype: the parts for rank 0, rank 1, ... in a row.
        - `counts`: `counts[i][j]` is the number of elements from rank i to rank j.
        - `out`: arrays of the shapes that follow and of the same dtype, with memory of their own; by default new ones.

        Returns the outputs: the parts of rank 0, rank 1, ... in a row. Raises `InvalidArgument`, and `WorldLost` if a
        member is lost meanwhile.
        """
        return await self._ask(plans.all_to_all_v, arrays, counts, out)

    async def exchange(self, pairs: Sequence[tuple[DeviceArray, DeviceArray]]) -> None:
        """Copy arrays between members, all at the same time (``ncclSend``, ``ncclRecv``).

        - `pairs`: each is a source and a target, arrays of members, of one shape and dtype. No target shares memory
          with a source or another target.

        Raises `InvalidArgument`, and `WorldLost` if a member is lost meanwhile.
        """
        await self._ask(plans.exchange, pairs)

    async def send(self, source: DeviceArray, target: DeviceArray) -> None:
        """Copy an array of one member to an array of another one (``ncclSend``, ``ncclRecv``).

        - `source`: an array of any shape and dtype.
        - `target`: an array of the same shape and dtype, of another member or the same, with memory of its own.

        Raises `InvalidArgument`, and `WorldLost` if a member is lost meanwhile; what other members do goes on then.
        """
        await self._ask(plans.exchange, ((source, target),))

    async def recv(self, target: DeviceArray, source: DeviceArray) -> None:
        """Do the same as `send`, seen from the other end (``ncclRecv``, ``ncclSend``).

        `target` and `source` are of one shape and dtype.

        Raises `InvalidArgument`, and `WorldLost` if a member is lost meanwhile.
        """
        await self._ask(plans.exchange, ((source, target),))

    async def barrier(self) -> None:
        """Wait until all work that was submitted to any member before is done (``ncclAllReduce`` of one element).

        Raises `WorldLost` if a member is lost meanwhile.
        """
        await self._ask(plans.barrier, self._barrier_words())

    def _barrier_words(self) -> list[tuple[DeviceArray, DeviceArray]]:
        """Two arrays of one element for each member. The first is only read, so no loss tears it."""
        if not self._words:
            memories = [core.part(DeviceMemory) for core in self._actor.cores]
            self._words = [(each.zeros((1,), "int32"), each.empty((1,), "int32")) for each in memories]
        return self._words

    # --- without waiting ----------------------------------------------------------------------------------------------

    def reduce_nowait(
        self, arrays: Arrays, out: DeviceArray | None = None, *, root: int = 0, op: Op | PremultipliedSum = "sum"
    ) -> DeviceArray:
        """Publish `reduce` without waiting.

        The arguments are `arrays`, `out`, the number `root`, `op`, of one shape and dtype as there.

        Raises `InvalidArgument`, and `trio.WouldBlock` if it would have to wait.
        """
        return self._begin(plans.reduce, arrays, out, root, op)

    def broadcast_nowait(self, arrays: Arrays, *, root: int = 0) -> tuple[DeviceArray, ...]:
        """Publish `broadcast` without waiting.

        The arguments are `arrays`, the number `root`, of one shape and dtype as there.

        Raises `InvalidArgument`, and `trio.WouldBlock` if it would have to wait.
        """
        return self._begin(plans.broadcast, arrays, root)

    def all_gather_nowait(self, arrays: Arrays, out: Arrays | None = None) -> tuple[DeviceArray, ...]:
        """Publish `all_gather` without waiting.

        The arguments are `arrays`, `out`, of one shape and dtype as there.

        Raises `InvalidArgument`, and `trio.WouldBlock` if it would have to wait.
        """
        return self._begin(plans.all_gather, arrays, out)

    def reduce_scatter_nowait(
        self, arrays: Arrays, out: Arrays | None = None, *, op: Op | PremultipliedSum = "sum"
    ) -> tuple[DeviceArray, ...]:
        """Publish `reduce_scatter` without waiting.

        The arguments are `arrays`, `out`, `op`, of one shape and dtype as there.

        Raises `InvalidArgument`, and `trio.WouldBlock` if it would have to wait.
        """
        return self._begin(plans.reduce_scatter, arrays, out, op)

    def gather_nowait(self, arrays: Arrays, out: DeviceArray | None = None, *, root: int = 0) -> DeviceArray:
        """Publish `gather` without waiting.

        The arguments are `arrays`, `out`, the number `root`, of one shape and dtype as there.

        Raises `InvalidArgument`, and `trio.WouldBlock` if it would have to wait.
        """
        return self._begin(plans.gather, arrays, out, root)

    def scatter_nowait(
        self, array: DeviceArray, out: Arrays | None = None, *, root: int = 0
    ) -> tuple[DeviceArray, ...]:
        """Publish `scatter` without waiting.

        The arguments are `array`, `out`, the number `root`, of one shape and dtype as there.

        Raises `InvalidArgument`, and `trio.WouldBlock` if it would have to wait.
        """
        return self._begin(plans.scatter, array, out, root)

    def all_to_all_nowait(self, arrays: Arrays, out: Arrays | None = None) -> tuple[DeviceArray, ...]:
        """Publish `all_to_all` without waiting.

        The arguments are `arrays`, `out`, of one shape and dtype as there.

        Raises `InvalidArgument`, and `trio.WouldBlock` if it would have to wait.
        """
        return self._begin(plans.all_to_all, arrays, out)

    def all_to_all_v_nowait(
        self, arrays: Arrays, counts: Sequence[Sequence[int]], out: Arrays | None = None
    ) -> tuple[DeviceArray, ...]:
        """Publish `all_to_all_v` without waiting.

        The arguments are `arrays`, the numbers `counts`, `out`, of one shape and dtype as there.

        Raises `InvalidArgument`, and `trio.WouldBlock` if it would have to wait.
        """
        return self._begin(plans.all_to_all_v, arrays, counts, out)

    def exchange_nowait(self, pairs: Sequence[tuple[DeviceArray, DeviceArray]]) -> None:
        """Publish `exchange` without waiting.

        The arguments are `pairs`, of one shape and dtype as there.

        Raises `InvalidArgument`, and `trio.WouldBlock` if it would have to wait.
        """
        self._begin(plans.exchange, pairs)

    def send_nowait(self, source: DeviceArray, target: DeviceArray) -> None:
        """Publish `send` of `source` to `target`, of one shape and dtype, without waiting.

        Raises `InvalidArgument`, and `trio.WouldBlock` if it would have to wait.
        """
        self._begin(plans.exchange, ((source, target),))

    def recv_nowait(self, target: DeviceArray, source: DeviceArray) -> None:
        """Publish `recv` to `target` from `source`, of one shape and dtype, without waiting.

        Raises `InvalidArgument`, and `trio.WouldBlock` if it would have to wait.
        """
        self._begin(plans.exchange, ((source, target),))


refuse_habits(World, BLOCK)


@final
class WorldBatch(metaclass=NoPublicConstructor):
    """Calls of a world that are published together, as one group of NCCL. Made by `World.batch`.

    They run at the same time, so no call may use what another one writes. Outputs are returned at once, and written
    when the block is left.
    """

    _made_by = "`world.batch()`"

    def __init__(self, world: World) -> None:
        self._world = world
        self._begun = self._left = False
        self._actor = world._actor
        self._here = world._actor.cores[0].home.here
        self._expected: Expected = nothing
        """The call that comes next, if it is that of last time, as long as all are known in their places."""
        self._collected: plans.Calls | None = None
        """The calls, once one of them is not known in its place; until then they are not looked at."""
        self._arrays: list[DeviceArray] = []
        """The arrays of the calls that are known in their places, which are the first ones."""
        self._node: Remembered | None = None
        """The last call, as one of a batch with all those before it."""
        self._learns = True
        """True as long as all calls can be remembered."""

    async def __aenter__(self) -> Self:
        if self._begun:
            raise InvalidArgument("a batch of a world is entered once")
        self._world._check()
        self._begun = True
        self._expected = self._world._memory.first
        await trio.lowlevel.checkpoint_if_cancelled()  # the turn is that of the end
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Publish the calls, and wait until all members are done."""
        self._left, self._expected = True, nothing
        if error is not None:
            return
        actor, node = self._actor, self._node
        if self._collected is None:
            if node is None:
                await trio.lowlevel.checkpoint()
                return
            if node.ready is not None and await actor.ask_ready(node.ready, tuple(self._arrays)) is not None:
                return
        calls = self._collected or self._repeated()
        calls.next()
        collective = calls.finish()
        if collective.commands:
            await actor.ask(collective)
            if node is not None:
                node.prepare(actor)
        else:
            await trio.lowlevel.checkpoint()

    def _repeated(self) -> plans.Calls:
        """Return the calls that are known in their places, to which others can be added."""
        calls = self._world._calls("batch")
        for template in () if self._node is None else self._node.templates():
            calls.next()
            calls.repeat(template, ())
        calls.collective.keep += self._arrays
        return calls

    def _add(self, plan: Callable[..., T], *arguments: object) -> T:
        node, arrays = self._expected(), None
        if node is not None and node.verb == plan.__name__ and self._actor.ended is None and self._here():
            arrays = node.fits(*arguments)
        if node is None or arrays is None:
            if not self._begun or self._left:
                raise InvalidArgument("the verbs of a batch are called inside of its `async with`")
            self._actor.check_open()
            found = find(plan.__name__, arguments)
            if found is not None and found.new:
                found = None  # the calls of a batch are remembered with their outputs
            node = None
            if found is not None and self._collected is None:
                node, arrays = self._world._memory.following(self._node, found), found.arrays
            if node is None or arrays is None:
                return self._collect(plan, arguments, found)
        self._arrays += arrays
        self._node = node
        self._expected = node.next
        result: T = node.result(arrays)
        return result

    def _collect(self, plan: Callable[..., T], arguments: tuple[object, ...], found: Found | None) -> T:
        """Add a call that is not known in its place."""
        if self._collected is None:
            self._collected, self._expected = self._repeated(), nothing
        calls, memory = self._collected, self._world._memory
        calls.next()
        known = None if found is None else memory.call(found)
        made = self._world._plan(calls, plan, arguments, found, known)
        if found is None:
            self._learns, self._node = False, None
        elif self._learns:
            self._node = memory.follow(self._node, found, calls.collective.operation)
        return made

    def all_reduce(
        self, arrays: Arrays, out: Arrays | None = None, *, op: Op | PremultipliedSum = "sum"
    ) -> tuple[DeviceArray, ...]:
        """Do `World.all_reduce` at the end of the batch, with its `arrays`, `out` and `op`, of one shape and dtype.

        Raises `InvalidArgument`.
        """
        return self._add(plans.all_reduce, arrays, out, op)

    def reduce(
        self, arrays: Arrays, out: DeviceArray | None = None, *, root: int = 0, op: Op | PremultipliedSum = "sum"
    ) -> DeviceArray:
        """Do `World.reduce` at the end of the batch.

        The arguments are `arrays`, `out`, the number `root`, `op`, of one shape and dtype as there.

        Raises `InvalidArgument`.
        """
        return self._add(plans.reduce, arrays, out, root, op)

    def broadcast(self, arrays: Arrays, *, root: int = 0) -> tuple[DeviceArray, ...]:
        """Do `World.broadcast` at the end of the batch.

        The arguments are `arrays`, the number `root`, of one shape and dtype as there.

        Raises `InvalidArgument`.
        """
        return self._add(plans.broadcast, arrays, root)

    def all_gather(self, arrays: Arrays, out: Arrays | None = None) -> tuple[DeviceArray, ...]:
        """Do `World.all_gather` at the end of the batch.

        The arguments are `arrays`, `out`, of one shape and dtype as there.

        Raises `InvalidArgument`.
        """
        return self._add(plans.all_gather, arrays, out)

    def reduce_scatter(
        self, arrays: Arrays, out: Arrays | None = None, *, op: Op | PremultipliedSum = "sum"
    ) -> tuple[DeviceArray, ...]:
        """Do `World.reduce_scatter` at the end of the batch.

        The arguments are `arrays`, `out`, `op`, of one shape and dtype as there.

        Raises `InvalidArgument`.
        """
        return self._add(plans.reduce_scatter, arrays, out, op)

    def gather(self, arrays: Arrays, out: DeviceArray | None = None, *, root: int = 0) -> DeviceArray:
        """Do `World.gather` at the end of the batch.

        The arguments are `arrays`, `out`, the number `root`, of one shape and dtype as there.

        Raises `InvalidArgument`.
        """
        return self._add(plans.gather, arrays, out, root)

    def scatter(self, array: DeviceArray, out: Arrays | None = None, *, root: int = 0) -> tuple[DeviceArray, ...]:
        """Do `World.scatter` at the end of the batch.

        The arguments are `array`, `out`, the number `root`, of one shape and dtype as there.

        Raises `InvalidArgument`.
        """
        return self._add(plans.scatter, array, out, root)

    def all_to_all(self, arrays: Arrays, out: Arrays | None = None) -> tuple[DeviceArray, ...]:
        """Do `World.all_to_all` at the end of the batch.

        The arguments are `arrays`, `out`, of one shape and dtype as there.

        Raises `InvalidArgument`.
        """
        return self._add(plans.all_to_all, arrays, out)

    def all_to_all_v(
        self, arrays: Arrays, counts: Sequence[Sequence[int]], out: Arrays | None = None
    ) -> tuple[DeviceArray, ...]:
        """Do `World.all_to_all_v` at the end of the batch.

        The arguments are `arrays`, the numbers `counts`, `out`, of one shape and dtype as there.

        Raises `InvalidArgument`.
        """
        return self._add(plans.all_to_all_v, arrays, counts, out)

    def exchange(self, pairs: Sequence[tuple[DeviceArray, DeviceArray]]) -> None:
        """Do `World.exchange` at the end of the batch.

        The arguments are `pairs`, of one shape and dtype as there.

        Raises `InvalidArgument`.
        """
        self._add(plans.exchange, pairs)

    def send(self, source: DeviceArray, target: DeviceArray) -> None:
        """Do `World.send` of `source` to `target`, of one shape and dtype, at the end of the batch.

        Raises `InvalidArgument`.
        """
        self._add(plans.exchange, ((source, target),))

    def recv(self, target: DeviceArray, source: DeviceArray) -> None:
        """Do `World.recv` to `target` from `source`, of one shape and dtype, at the end of the batch.

        Raises `InvalidArgument`.
        """
        self._add(plans.exchange, ((source, target),))


refuse_habits(WorldBatch, BLOCK)


async def open_world(
    group: Group, members: Sequence[DeviceCore], settings: Mapping[str, object] | None, *, deterministic: object
) -> World:
    """Make a world of devices of a group, and wait for its first epoch: the work of `Devices.world`."""
    environment = check_environment(settings, deterministic=deterministic)
    for core in members:
        _give_environment(core, environment)
    name = "world of devices " + ", ".join(str(core.index) for core in members)
    actor = WorldActor(group, members, name)
    actor.begin()
    world = World._create(actor)
    try:
        await world.wait_epoch(after=0)
    except BaseException:
        actor.close()
        raise
    return world


def _give_environment(core: DeviceCore, environment: Environment) -> None:
    part = core.part(WorldDevice)
    if part.environment not in (None, environment):
        raise InvalidArgument(
            f"device {core.index} has a world with other settings of NCCL, which reads them once: give the same nccl "
            "and deterministic",
            device=core.index,
        )
    part.environment = environment


def check_members(cores: Iterable[DeviceCore], group: Group) -> list[DeviceCore]:
    """Return the checked members of a world. Raises `InvalidArgument`."""
    members = list(cores)
    if not members:
        raise InvalidArgument("a world has one member at least")
    for place, core in enumerate(members):
        if core not in group.members:
            raise InvalidArgument(f"device {core.index} is not one of {group.name}", device=core.index)
        if core in members[:place]:
            raise InvalidArgument(f"device {core.index} is given twice: a member has one rank", device=core.index)
        core.check_open()
    return members
