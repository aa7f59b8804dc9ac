"""The accounts that a device keeps of another device's memory.

A device of a group may copy from, and let kernels use, the arrays of the others. A block has an account of its own with
each device that works on it: its owner's is the `Block`, any other's a `PeerBlock`. An account has the tickets of one
device, by that device's generations, so all that is said of a block's dependencies, of tearing and of quarantine holds
for each account by itself. What is true of the bytes, such as that they are torn, is kept by the owner's alone.

No ticket can be compared with one of another device, and no worker waits for another. So a command is admitted only
when the work of the other devices that it must not overlap with is over (`_generation/peers.py`). An account may be
used without that question only while no other has work on the block: at most one of them has a token (`Block.fast`).

Pure bookkeeping: imports neither trio nor ctypes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from .._wire.protocol import Role
from .arena import Block, Chunk, Recipe, Ticket


class Party(Protocol):
    """A device that has accounts of blocks."""

    def is_busy(self, account: Block, role: Role) -> bool:
        """Return whether its unfinished work on a block may not overlap with another device's access of this kind."""


class PeerChunk(Chunk):
    """A chunk of another device as one device's workers have it: mapped at its own address."""

    __slots__ = ("accounts", "home")

    def __init__(self, home: Chunk) -> None:
        super().__init__(home.address, home.size, home.guard, home.damaged)
        self.home: Chunk = home
        """The chunk itself, which has the descriptor."""
        self.accounts: set[PeerBlock] = set()
        """The accounts of blocks in it."""


class PeerBlock(Block):
    """A block of another device as one device works on it."""

    __slots__ = ("accounts", "home", "owner", "party")

    def __init__(self, home: Block, chunk: PeerChunk, owner: Party, party: Party) -> None:
        self.home: Block = home
        """The account of its owner."""
        self.owner: Party = owner
        """The device that owns the block."""
        self.party: Party = party
        """The device whose account this is."""
        self.accounts: set[PeerBlock] = chunk.accounts
        """Those of the same chunk and device."""
        self.address: int = home.address
        self.size: int = home.size
        self.chunk: Chunk = chunk
        self.accounts.add(self)
        self.epoch: int = 0
        self.fast: int = 0
        self.born: tuple[int, ...] | None = None
        self.writer: Ticket | None = None
        self.reader: Ticket | None = None
        self.readers: dict[int, int] = {}

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        """The requested bytes."""
        return self.home.nbytes

    @property
    def peers(self) -> tuple[PeerBlock, ...]:  # type: ignore[override]
        """All accounts of the block but its owner's."""
        return self.home.peers

    @property
    def recipe(self) -> Recipe | None:
        """Its first contents, which its owner writes."""
        return self.home.recipe

    @recipe.setter
    def recipe(self, recipe: Recipe | None) -> None:
        self.home.recipe = recipe

    @property
    def written(self) -> bool:
        """True if a command has written it."""
        return self.home.written

    @written.setter
    def written(self, written: bool) -> None:
        self.home.written = written

    @property
    def freed(self) -> bool:  # type: ignore[override]
        """True if its last array was given back, or this account was dropped."""
        return self.home.freed or self not in self.home.peers

    @property
    def torn(self) -> str | None:
        """The command that was writing it when a generation was lost."""
        return self.home.torn

    @torn.setter
    def torn(self, torn: str | None) -> None:
        self.home.torn = torn

    @property
    def lost(self) -> str | None:  # type: ignore[override]
        """The reason why its memory is lost for ever."""
        return self.home.lost

    def tear(self, why: str) -> None:
        """Note that an unfinished command was writing it."""
        self.home.fast = 0
        self.home.tear(why)

    def lose(self, why: str) -> None:
        """Note that its memory is lost for ever."""
        self.home.fast = 0
        self.home.lose(why)

    def claim(self, role: Role, lane: int, ticket: int, epoch: int, waits: set[Ticket]) -> None:
        """Note that a command of its device touches the block; see `Block.claim`."""
        self.home.fast = 0
        super().claim(role, lane, ticket, epoch, waits)


def drop_accounts(block: Block) -> None:
    """Forget the accounts that other devices have of a block, which must not work on it."""
    for each in block.peers:
        each.fast = 0
        each.accounts.discard(each)
    block.peers = ()


def home_of(block: Block) -> Block:
    """Return the account of a block's owner."""
    return block.home if isinstance(block, PeerBlock) else block


def accounts(block: Block) -> Iterator[tuple[Party, Block]]:
    """Yield every account of a block that has more than one, each with its device."""
    home = home_of(block)
    for number, each in enumerate(home.peers):
        if not number:
            yield each.owner, home
        yield each.party, each
