"""What a device does with the memory of the other devices of its group.

A command that touches another device's block is published to one worker alone. The workers do not wait for each other:
a command is admitted once the unfinished work of other devices that must not overlap with it is over, and until then
its request waits here, in the user's process. What it waits for was published before, so nobody waits in a circle.
(A wait on the GPU, for a counter of the other worker, would go on when that worker dies, with what it left behind.)

A worker maps a peer's chunk at the address that it has everywhere, by a command before the first use. Its standbys map
it as well. The parent holds the descriptor, so neither worker's death takes the memory from the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from .._memory.arena import Block, Chunk, ChunkState
from .._memory.peers import PeerBlock, PeerChunk, accounts, drop_accounts, home_of
from .._wire.protocol import Role
from .._wire.records.event import MARK
from .core import DeviceCore, DevicePart
from .process import address_range
from .requests import CommandRequest
from .timeline import Operand, Unwatched

if TYPE_CHECKING:
    from .._values.errors import DeviceError
    from .generation import Generation
    from .group import Group


class Wish:
    """A request of one device that waits for work of others."""

    __slots__ = ("_accesses", "party")

    def __init__(self, party: Peers, operands: Sequence[Operand]) -> None:
        self.party: Peers = party
        self._accesses = [(home_of(block), role) for block, role in operands if block.peers]

    def excludes(self, operands: Iterable[Operand]) -> bool:
        """Return whether a command of another device on these must come behind it."""
        return any(
            home is home_of(block) and not (mine is Role.READ and role is Role.READ)
            for block, role in operands
            if block.peers
            for home, mine in self._accesses
        )


class Peers(DevicePart):
    """The accounts that one member of a group has of the others' blocks, and what its workers have mapped of them."""

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self.group.woken.append(self._free_held)
        self.unreachable: set[int] = set()
        """The indices of devices whose memory does not arrive here, though the driver grants access."""
        self._chunks: dict[Chunk, PeerChunk] = {}
        self._held: list[Block] = []
        """Own blocks that were freed while another device was working on them."""
        self._pressed: dict[int, int] = {}
        """By lane, the last ticket of the generation in service that was sent so that others hear of the end."""

    @property
    def group(self) -> Group:
        """The group."""
        group = self.device.group
        if group is None:
            raise AssertionError("a device without a group has no peers")
        return group

    def introduce(self, generation: Generation) -> None:
        """Make a generation, or a standby, that was not started yet keep the rules of this file."""
        generation.order.peers = generation.admission.peers = generation.chunks.peers = self
        generation.settler.neighbours = self.group

    # --- accounts -------------------------------------------------------------------------------------------------

    def account(self, block: Block, owner: DeviceCore) -> PeerBlock:
        """Return this device's account of another device's block."""
        for each in block.peers:
            if each.party is self:
                return each
        chunk = self._chunks.get(block.chunk)
        if chunk is None:
            chunk = self._chunks[block.chunk] = PeerChunk(block.chunk)
        account = PeerBlock(block, chunk, owner.part(Peers), self)
        block.peers = (*block.peers, account)
        return account

    def is_busy(self, account: Block, role: Role) -> bool:
        """Return whether unfinished work of this device on a block may not overlap with such an access by another."""
        generation = self.device.current
        if generation is None:
            return False
        if generation.arena.quarantine and generation.arena.quarantined(account):
            return True
        if account.epoch != generation.number or (generation.loss is not None and generation.timeline.idle):
            return False
        reached = generation.timeline.reached
        if account.writer is not None and not reached(account.writer):
            return True
        return role is not Role.READ and not all(map(reached, account.all_readers.items()))

    def overlaps(self, operands: Iterable[Operand]) -> bool:
        """Return whether unfinished work of another device must not overlap with a command of this one."""
        for block, role in operands:
            if block.peers:
                for party, account in accounts(block):
                    if party is not self and party.is_busy(account, role):
                        return True
        return False

    def blocked(self, operands: Sequence[Operand], wish: Wish | None = None) -> bool:
        """Return whether a command of this device has to wait for another device. If so, `Group.wake` tells of it.

        It waits behind the requests of others that wait already, but for those behind its own `wish`.
        """
        if self.overlaps(operands) or self._wished_by_others(operands, wish):
            self.group.watched = True
            return True
        return False

    def _wished_by_others(self, operands: Sequence[Operand], wish: Wish | None) -> bool:
        for other in self.group.wishes:
            if other is wish:
                return False
            if other.party is not self and other.excludes(operands):
                return True
        return False

    @contextlib.contextmanager
    def wishing(self, operands: Sequence[Operand]) -> Iterator[Wish]:
        """Wait in turn, in this block: what others submit from now on waits behind it.

        Otherwise work that another device renews all the time would keep it waiting for ever.
        """
        wish = Wish(self, operands)
        self.group.wishes.append(wish)
        for block, _ in operands:
            self._revoke(block)
        try:
            yield wish
        finally:
            self.group.wishes.remove(wish)
            if self.group.watched:
                self.group.wake()

    def takes_alone(self, block: Block) -> bool:
        """Return whether no other device has work on a block; then each of them will ask before its next."""
        if self.blocked(((block, Role.WRITE),)):
            return False
        self._revoke(block)
        return True

    def _revoke(self, block: Block) -> None:
        for party, account in accounts(block):
            if party is not self:
                account.fast = 0

    def press(self, operands: Iterable[Operand]) -> None:
        """See to it that the work of others on these is heard of. That of a batch need not have a ticket of its own."""
        for block, role in operands:
            for party, account in accounts(block):
                if party is not self and isinstance(party, Peers) and party.is_busy(account, role):
                    party._sign(account)

    def _sign(self, account: Block) -> None:
        generation = self.device.current
        if generation is None or generation.refusing:
            return
        for lane, ticket in account.last_uses().items():
            launches = generation.timeline.book(lane).launches
            room = generation.admission.has_room_for_batch(lane, 1)
            if launches and launches[-1][0] >= ticket > self._pressed.get(lane, 0) and room:
                self._pressed[lane] = generation.publish(lane, MARK, b"", (), Unwatched(), aside=True).ticket

    async def prepare(self, block: Block) -> None:
        """Make an own block exist, with its first contents, before another device uses it.

        Raises what a command of this device raises that reads the block.
        """
        if block.chunk.state is not ChunkState.READY or block.recipe is not None:
            operands = ((block, Role.READ),)
            await self.device.memory_actor.mailbox.ask(CommandRequest(MARK, b"", operands, operation="memory.share"))

    # --- blocks that were freed meanwhile ---------------------------------------------------------------------------

    def hold(self, block: Block) -> bool:
        """Drop the others' accounts of an own block that is being freed; true if they still work on it.

        The block is then freed once they do not.
        """
        if not self._in_use(block):
            drop_accounts(block)
            return False
        block.freed = True
        block.fast = 0
        block.warn_peers()
        self._held.append(block)
        return True

    def _in_use(self, block: Block) -> bool:
        if self.overlaps(((block, Role.WRITE),)):
            self.group.watched = True
            return True
        return False

    def _free_held(self) -> None:
        """Free the blocks on which no other device works any more."""
        held, self._held = self._held, []
        for block in held:
            if self._in_use(block):
                self._held.append(block)
            elif self.device.current is not None:
                block.freed = False
                drop_accounts(block)
                self.device.current.arena.free(block)

    # --- chunks -----------------------------------------------------------------------------------------------------

    def ranges(self) -> list[tuple[int, int]]:
        """Return the addresses of the other members' memory: the base and the extent of each."""
        return [address_range(other.index) for other in self.group.others(self.device)]

    def wanted(self) -> list[PeerChunk]:
        """Return the others' chunks that a new worker is to map before it is used."""
        return [chunk for chunk in self._chunks.values() if chunk.home.descriptor >= 0]

    def settle_in(self, generation: Generation) -> None:
        """Note which of the others' chunks the next worker has; the rest are mapped again when they are used."""
        self._pressed.clear()
        for chunk in self._chunks.values():
            chunk.ticket = 0
            chunk.state = ChunkState.READY if generation.chunks.has_peer(chunk) else ChunkState.PLANNED
        for each in (generation, *self.device.standbys.generations):
            each.chunks.release_other_peers(self._chunks.values(), each.order)
        generation.arena.held_by_peers = self.hold

    def generation_lost(self, number: int) -> None:
        """Forget what the arena has dropped; it decides before this."""
        generation = self.device.current
        if generation is not None:
            self._end_chunks(lambda home: home not in generation.arena.chunks)

    def chunk_ended(self, chunk: Chunk) -> None:
        """Note that an own chunk exists no more: the other members' workers release it."""
        self._end_chunks(lambda home: home is chunk)

    def settle_queued(self, make_error: Callable[[], DeviceError]) -> None:
        """Have the other members release the memory of a device that takes no requests any more."""
        self._end_chunks(lambda _: True)

    def share(self, block: Block) -> bool:
        """Note that an own block will be used by another library; false if another device still works on it."""
        if self.overlaps(((block, Role.WRITE),)):
            return False
        drop_accounts(block)
        return True

    def _end_chunks(self, ended: Callable[[Chunk], bool]) -> None:
        base, extent = address_range(self.device.index)
        for other in self.group.others(self.device):
            theirs = other.part(Peers)
            for home in [each for each in theirs._chunks if base <= each.address < base + extent and ended(each)]:
                theirs._let_go(home)

    def _let_go(self, home: Chunk) -> None:
        chunk = self._chunks.pop(home)
        for account in chunk.accounts:
            account.fast = 0
        current = self.device.current
        if current is not None and not current.refusing:
            for generation in (current, *self.device.standbys.generations):
                generation.chunks.release_peer(chunk, generation.order)
        chunk.state = ChunkState.PLANNED
