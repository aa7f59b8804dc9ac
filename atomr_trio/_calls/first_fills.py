"""The short way of a first fill: that of a `zeros` or `full` which a call is about to touch.

The general way sends the fill, and the call requires it. A ready record requires nothing. So the fill is a ready record
right before that of the call, on the same lane, and the order of the lane does the rest. What other lanes do with the
array goes the general way, and requires the fill as ever.

If the driver refuses the fill, calls behind it have already run on an array without its contents. All of them fail with
its error, and what they have written is torn (`Settler._spoil`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from .._generation.requests import CallKind
from .._wire.protocol import Role
from .._wire.ready import new_identity, ready_head
from .._wire.records.memory import FILL, FILL_WORDS

if TYPE_CHECKING:
    from .._generation.timeline import Launch, Operand
    from .._memory.arena import Block, Recipe, Ticket
    from .._values.errors import DeviceError


class FirstFill:
    """The fills with items of one size, as a launch path knows them. They are given the block that they fill."""

    __slots__ = ("__weakref__", "_key", "head", "kind", "payload", "places")

    _engine: ClassVar[str] = FILL.engine

    def __init__(self, itemsize: int) -> None:
        self._key: object = object()
        self.kind: CallKind = CallKind(FILL, FILL, FILL, 0)
        self.payload: bytes = FILL.struct.pack(0, 0, itemsize, 0, 1, b"")
        self.places: tuple[int, ...] = FILL_WORDS
        self.head: bytes = ready_head(new_identity(), FILL_WORDS)

    def _of(self, thing: Any) -> bool:
        return False

    def _describe(self, arguments: tuple[object, ...]) -> tuple[str, Sequence[Operand]]:
        return FILL.operation, tuple((cast("Block", block), Role.OVERWRITE) for block in arguments)


_FILLS: Final = {itemsize: FirstFill(itemsize) for itemsize in (1, 2, 4, 8)}


def first_fill(recipe: Recipe) -> tuple[FirstFill, int, int] | None:
    """Return the fill that a recipe asks for, the number of its items, and the bits of one.

    Returns None for one that was sent already, and for items of more than 8 bytes.
    """
    content = recipe.pattern[: recipe.itemsize]
    for size in (4, 8):  # the driver sets at most 4 bytes, so an item of 8 takes several calls
        items = {content[at : at + size] for at in range(0, len(content), size)}
        if len(items) == 1 and not recipe.ticket:
            item = items.pop()
            count = recipe.count * (len(content) // len(item))
            return _FILLS[len(item)], count, int.from_bytes(item, "little")
    return None


class FilledFirst:
    """The owner of a first fill."""

    __slots__ = ("_failed", "_recipe", "_ticket", "spoiled")

    def __init__(self, block: Block, recipe: Recipe, ticket: Ticket) -> None:
        self.spoiled: Block = block
        """The block without its contents, if the fill fails."""
        self._recipe = recipe
        self._ticket = ticket
        self._failed = False

    def launches_finished(self, count: int) -> None:
        """Drop the recipe, which was followed."""
        if not self._failed and self.spoiled.recipe is self._recipe:
            self.spoiled.recipe = None

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Let the next command fill the block, unless another one has overwritten all of it meanwhile."""
        self._failed = True
        self._again()

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """Do so, too. The block is whole if no command had written to it before the fill was lost."""
        if self.spoiled.writer == self._ticket:
            self.spoiled.torn = None
        self._again()

    def _again(self) -> None:
        block = self.spoiled
        block.fast = 0
        if block.recipe is self._recipe:
            block.recipe = self._recipe.anew()
