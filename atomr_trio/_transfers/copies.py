"""Copies between arrays and numpy, and between arrays of one device or one group: verbs of the memory actor.

Only memcpy touches ordinary host memory, never DMA, so its owner may be cancelled at any moment. A copy goes through
slots of the staging area, several at a time. Helpers copy in one half of the slots while the GPU copies in the other.

``copy_plan.py`` says how a copy is cut into commands. A copy that is larger than a slot, and one run of bytes in the
device's memory, is made of *streams* (``copy_stream.py``): one command, whose pieces pass through a few slots in turn.
The caller's own task drives any other copy (``copy_flow.py``): a command and a memcpy for each piece. Pinned memory
needs none of this: there the GPU does everything.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import trio

from .._arrays.arrays import check_usable
from .._arrays.peers import block_of, check_of_group, prepare, why_out_of_reach
from .._values.errors import DeviceError
from .._values.util import known
from .copy_flow import _Flow, _Incoming, _Outgoing
from .copy_plan import TO_DEVICE, TO_HOST, CopyRequest, Way, _Plan, plan_copy
from .copy_stream import _StreamFlow
from .memory import ask_all, tear
from .reading import tear_unread, was_not_read
from .short_copies import ShortCopy
from .short_ways import ShortCopies, ShortWay
from .staging import Slot
from .transfers import Transfers, transfers_of

if TYPE_CHECKING:
    from .._arrays.arrays import DeviceArray
    from .._generation.core import DeviceCore


PART_BYTES = 1 << 20
"""The bytes that a helper takes of a larger command of a batch, so that several helpers take one together."""

_THROUGH_HOST_BYTES = 64 << 20
"""The most bytes of a copy between two arrays that are on the host at a time."""


class _Taking:
    """Copies bytes of one settled command to the host's array, in a helper's thread: all of them, or a part."""

    __slots__ = ("_part", "_plan", "_request", "_rest", "_slot", "_told", "done", "failed")
    tells = True

    def __init__(
        self, request: CopyRequest, slot: Slot, part: tuple[int, int] | None, rest: list[None], told: Callable[[], None]
    ) -> None:
        """`part` is where the bytes begin and end in the piece, None for all; `rest` has an item for each part that is
        not taken."""
        self.done: bool = False
        self.failed: bool = False
        self._request = request
        self._plan = request._plan
        self._slot = slot
        self._part = part
        self._rest = rest
        self._told = told

    def run(self) -> None:
        """Copy, in a helper's thread. An error here is left to `take`, which fails in the same way."""
        try:
            if self._part is None:
                self._plan.store(self._request.piece, self._slot.bytes)
            else:
                self._plan.store_part(self._request.piece, self._slot.bytes, *self._part)
        except Exception:
            self.failed = True

    def ended(self) -> None:
        """Note the end. With that of the last part there is nothing left to take."""
        self.done = True
        if not self.failed:
            self._rest.pop()
            if not self._rest:
                self._request.release()
        self._told()


def _parts_of(request: CopyRequest) -> Sequence[tuple[int, int] | None]:
    """Return where the parts begin and end that several helpers take; a single None for what is taken as a whole."""
    size, part = request.piece.size, PART_BYTES
    if size < 2 * part or request.burden != size:  # what is scattered on the host has no parts
        return (None,)
    return [(begin, min(begin + part, size)) for begin in range(0, size, part)]


async def take_by_helpers(requests: Iterable[object]) -> None:
    """Let helpers do the work of `take` for the first of these requests, and for those of the same copy behind it.

    Other copies are not included: two copies to one array must arrive in order. A cancelled caller waits for the
    working helpers. Work that they have not begun, or failed to do, is left to `take`.
    """
    those = _of_one_copy(requests)
    if not those:
        return
    crew, bell = transfers_of(those[0]._plan.array).crew, trio.Event()
    takings: list[_Taking] = []

    def ring() -> None:
        if all(each.done for each in takings):
            bell.set()

    for request in those:
        parts = _parts_of(request)
        slot, rest = known(request._slot, "it has bytes"), [None] * len(parts)
        try:
            for part in parts:
                taking = _Taking(request, slot, part, rest, ring)
                crew.submit(taking)
                takings.append(taking)
        except RuntimeError:  # the system has no thread
            break
    ring()
    try:
        await bell.wait()
    except BaseException:
        takings = [each for each in takings if not (each.done or crew.withdraw(each))]
        ring()
        with trio.CancelScope(shield=True):  # for a memcpy of one piece
            await bell.wait()
        raise


def _of_one_copy(requests: Iterable[object]) -> list[CopyRequest]:
    """Return the first of these requests, and those behind it that are of the same copy and have bytes to take."""
    found: list[CopyRequest] = []
    for request in requests:
        if not (isinstance(request, CopyRequest) and request.burden and request.answered and request.error is None):
            break
        if found and request._plan is not found[0]._plan:
            break
        found.append(request)
    return found


def _flow(plan: _Plan, through_slots: type[_Flow]) -> _Flow:
    if plan.pinned is not None:
        return _Flow(plan)
    return _StreamFlow(plan) if plan.streams else through_slots(plan)


async def _by_one_command(plan: _Plan) -> None:
    """Make a copy of one command, without helpers: starting them would take longer than the copy."""
    device, (piece,) = plan.array._storage.device, plan.pieces
    slot = None if plan.pinned else await device.part(Transfers).staging.acquire(piece.size)
    request = plan.request(piece, slot)
    try:
        if slot is not None and plan.way is TO_DEVICE:
            plan.load(piece, slot.bytes)
        await device.memory_actor.mailbox.ask(request)
        request.take()
    except BaseException:
        request.drop()
        raise


class HostCopies:
    """The copies between the arrays of a device and the host. The caller has asked `Home.check_task`."""

    def __init__(self, device: DeviceCore) -> None:
        self._device = device
        self._short = device.part(ShortCopies)

    @trio.lowlevel.enable_ki_protection
    def copy_in(self, array: DeviceArray, host: npt.NDArray[Any]) -> Coroutine[Any, Any, None]:
        """Return the copy to an array, to be awaited at once; see `DeviceArray.copy_from`."""
        if self._device.ended is not None or array._storage.block.freed:
            check_usable(self._device, array)
        copy = self._short.begin(array, host, TO_DEVICE)
        if copy is None:
            return self._generally(array, host, TO_DEVICE, _Incoming)
        return self._reading(copy, array, host) if copy.reads else copy.run()

    @trio.lowlevel.enable_ki_protection
    async def _reading(self, copy: ShortWay, array: DeviceArray, host: npt.NDArray[Any]) -> None:
        """Copy, and once more in the general way if the worker could not read the host's array."""
        try:
            await copy.run()
        except DeviceError as error:
            if not was_not_read(error):
                raise
        else:
            return
        self._short.stop_reading()
        try:
            await self._generally(array, host, TO_DEVICE, _Incoming)
        except BaseException:
            if isinstance(copy, ShortCopy):  # other pieces have arrived
                tear_unread(array)
            raise

    @trio.lowlevel.enable_ki_protection
    def copy_out(self, array: DeviceArray, host: npt.NDArray[Any]) -> Coroutine[Any, Any, None]:
        """Return the copy of an array to the host, to be awaited at once; see `DeviceArray.copy_to`."""
        if self._device.ended is not None or array._storage.block.freed:
            check_usable(self._device, array)
        copy = self._short.begin(array, host, TO_HOST)
        return self._generally(array, host, TO_HOST, _Outgoing) if copy is None else copy.run()

    @trio.lowlevel.enable_ki_protection
    async def _generally(
        self, array: DeviceArray, host: npt.NDArray[Any], way: Way, through_slots: type[_Flow]
    ) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        plan = _Plan(array, host, way)
        if not plan.pieces:
            await trio.lowlevel.checkpoint()
            return
        if plan.is_one_command:
            await _by_one_command(plan)
        else:
            flow = _flow(plan, through_slots)
            try:
                await flow.run()
            except BaseException as error:
                begun = flow.abandon()
                if way is TO_DEVICE:
                    tear(array._block, error, begun=begun, pieces=len(plan.pieces))
                else:
                    await flow.still()
                raise
        self._short.learn(way)


@trio.lowlevel.enable_ki_protection
async def copy_on_device(source: DeviceArray, target: DeviceArray) -> None:
    """Copy between two arrays of one device or of one group, of the same shape and dtype. See `DeviceArray.copy_from`.

    The target's device copies: from another device's memory over what connects the two.
    """
    device = target._storage.device
    check_usable(device, target)
    if source._storage.device is device:
        check_usable(device, source)
        requests = plan_copy(source, target)
    else:
        check_of_group(device, source)
        requests = None
        if source.size and why_out_of_reach(device, source) is None:
            await prepare(source)
            requests = plan_copy(source, target, account=block_of(device, source))
    if requests is None:
        await _through_host(source, target)
    else:
        await ask_all(target, requests)


async def _through_host(source: DeviceArray, target: DeviceArray) -> None:
    """Copy between arrays one of which the copy engine cannot reach, or would walk backwards or across its rows.

    The host reorders faster than it. Large arrays go in pieces, along their first axis.
    """
    length = target.shape[0] if target.ndim else 1
    rows = max(1, length * _THROUGH_HOST_BYTES // max(1, target.nbytes))
    read, write = transfers_of(source).copy_out, transfers_of(target).copy_in
    if rows >= length:
        host = np.empty(target.shape, target.dtype)
        await read(source, host)
        await write(target, host)
        return
    begun = 0
    try:
        for first in range(0, length, rows):
            host = np.empty((min(rows, length - first), *target.shape[1:]), target.dtype)
            await read(source[first : first + rows], host)
            begun += 1
            await write(target[first : first + rows], host)
    except BaseException as error:
        tear(target._block, error, begun=begun, pieces=-(-length // rows))
        raise
