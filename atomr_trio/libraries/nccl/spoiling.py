"""What a lost collective leaves behind: torn outputs, and everything that was made of them.

When a communicator is aborted, its kernels leave and the streams go on. What was queued behind a lost collective then
runs on whatever is in the outputs, and its ticket comes as if nothing had happened. So before the abort is asked for,
all of that is found by the accounts of unfinished commands. It ends with an error when its ticket comes, and not
before: until then it uses its memory. What it writes is torn at once.

A command is taken to be spoiled if it was published behind the collective and touches a block that the collective, or
another spoiled command, was writing. Two commands that were both published behind the collective are not told apart by
their order: rather too much is torn than too little. A spoiled collective of another world spoils its outputs on all of
its members, and what was published behind it there.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._generation.timeline import with_new
from ..._memory.arena import Block
from ..._memory.peers import home_of
from ..._wire.protocol import Role
from .collectives import Collective, Member, Part
from .ready import ReadyPart

if TYPE_CHECKING:
    from ..._generation.generation import Generation
    from ..._generation.timeline import Operand
    from ..._memory.arena import Ticket
    from ..._values.errors import DeviceError


class _Unfinished(NamedTuple):
    """A command, or a launch of a batch."""

    ticket: Ticket
    operation: str
    operands: Sequence[Operand]
    owner: object
    module: Any = None
    """The module of a kernel that has variables."""


def spoil(lost: Iterable[Collective], epoch: int, make_error: Callable[[], DeviceError]) -> None:
    """Tear the outputs of lost collectives on all members, and everything that was published behind and used them.

    `epoch` is the number of the epoch that has ended; `make_error` makes the error of a command that is spoiled.
    """
    ahead = collections.deque(lost)
    seen = set(ahead)
    while ahead:
        collective = ahead.popleft()
        for part in collective.parts:
            torn = _tear(part.operation, part.roles.items(), epoch)
            generation = part.generation
            if generation is None or generation.loss is not None:
                continue  # what it had not finished is lost with it
            for follower in _followers(generation, part, torn):
                torn.update(_tear(follower.operation, follower.operands, epoch))
                if follower.module is not None:
                    follower.module._spoil(_why(follower.operation, epoch))
                if isinstance(follower.owner, Part | ReadyPart):
                    other = follower.owner.collective
                    if other not in seen:
                        seen.add(other)
                        ahead.append(other)
                        other.spoiled = make_error
                else:
                    generation.settler.spoiled[follower.ticket] = make_error


def _why(operation: str, epoch: int) -> str:
    return f"{operation} was writing it when epoch {epoch} of its world ended"


def _tear(operation: str, operands: Iterable[Operand], epoch: int) -> set[Block]:
    """Tear what a command was writing. Returns those blocks, as their owners know them."""
    why = _why(operation, epoch)
    torn = set()
    for block, role in operands:
        if role is not Role.READ:
            torn.add(home_of(block))
            if not block.freed and block.lost is None:
                block.tear(why)
    return torn


def _followers(generation: Generation, part: Member, torn: set[Block]) -> Iterator[_Unfinished]:
    """Yield every unfinished command behind a part that touches one of these blocks. More may be added meanwhile."""
    left = list(_unfinished(generation, part))
    found = True
    while found:
        found = False
        rest = []
        for each in left:
            if any(home_of(block) in torn for block, _ in each.operands):
                found = True
                yield each
            else:
                rest.append(each)
        left = rest


def _unfinished(generation: Generation, part: Member) -> Iterator[_Unfinished]:
    described: dict[tuple[object, ...], tuple[str, Sequence[Operand]]] = {}
    born = functools.cache(functools.partial(generation.arena.born, generation.number))
    for book in generation.timeline.lanes:
        before = part.after[book.index] if book.index < len(part.after) else 0
        for command in book.in_flight:
            if command.ticket > before:
                ticket = book.index, command.ticket
                yield _with_variables(
                    _Unfinished(ticket, command.operation, command.operands, command.owner), command.owner
                )
        for launch in book.launches:
            if launch[0] > before:
                number, owner, launched, arguments = with_new(launch, book.index, born)
                key = (launched, *map(id, arguments))
                if key not in described:  # of thousands of launches many are the same
                    described[key] = launched._describe(arguments)
                yield _with_variables(_Unfinished((book.index, number), *described[key], owner), launched)


def _with_variables(unfinished: _Unfinished, launched: object) -> _Unfinished:
    """Add the variables of its module, if it is a launch of a kernel: that may use them by their own names."""
    module = getattr(getattr(launched, "kernel", launched), "_module", None)
    hidden = [] if module is None else module._hidden()
    if not hidden:
        return unfinished
    operands = (*unfinished.operands, *((block, Role.WRITE) for block in hidden))
    return unfinished._replace(operands=operands, module=module)
