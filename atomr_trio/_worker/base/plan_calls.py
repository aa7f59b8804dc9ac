"""The calls of a plan's executions: each a function with its arguments, to be called by Python or by native code."""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._wire.programs import Address, Argument, BadProgram, Number, RoomOf, Words
from ..._wire.records.plans import WORD
from .calls import converted
from .lanes import Target
from .native_calls import Word, native_call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .lanes import NativeCall


class Given(NamedTuple):
    """What comes with one execution, and where its workspace is."""

    addresses: Sequence[int]
    scalars: Any
    """A buffer of the host; None without any."""
    room: tuple[int, ...]
    """The addresses of the workspace's pieces."""


class Changing(NamedTuple):
    """The words that come with each record of an execution."""

    addresses: Mapping[int, int]
    """By the number of an address, that of its word."""
    scalars: Sequence[tuple[int, int]]
    """The words in the scalars, with their offsets there."""

    def decides(self, argument: Argument) -> bool:
        """Return whether an argument depends on them, and is no pointer to a scalar."""
        if isinstance(argument, Address):
            return argument.number in self.addresses
        if isinstance(argument, Words):
            return any(isinstance(each, Address) and each.number in self.addresses for each in argument.words)
        if not isinstance(argument, Number):
            return False
        size = struct.calcsize(argument.format)
        return any(offset < argument.offset + size and argument.offset < offset + WORD for _, offset in self.scalars)


class PlanCall(NamedTuple):
    """A function of a program, and how each of its arguments is found."""

    call: Callable[..., int]
    symbol: str
    library: Any
    """Whose function it is."""
    resolve: tuple[Callable[[Given], Any], ...]
    places: tuple[Callable[[Given], int], ...]
    """How the addresses among its arguments are found; nothing else of them changes, but scalars."""
    kinds: tuple[Any, ...] = ()
    """The types of its arguments; none for a kernel of our own."""
    varying: tuple[int, ...] = ()
    """Its arguments, by their indices, that depend on the addresses or the scalars of an execution."""
    outs: tuple[tuple[int, Any], ...] = ()
    """The slots that it fills, and the types of what is there."""
    destroy: Callable[[Any], int] | None = None
    """What gives its object back when the execution has been made."""
    choices: tuple[Any, ...] = ()
    """The functions of which one is called instead, the one at the place that `resolve` finds."""
    function: Any = None
    """Its declaration; None for a kernel of our own."""
    given: tuple[Argument, ...] = ()
    """Its arguments as the program has them."""

    def of(self, given: Given) -> PlanCall:
        """Return the function that is called. Raises `BadProgram` if none is chosen."""
        if not self.choices:
            return self
        (place,) = self.arguments(given)
        if place >= len(self.choices):
            raise BadProgram(f"{place} is none of {len(self.choices)} calls")
        chosen: PlanCall = self.choices[place]
        return chosen

    def arguments(self, given: Given) -> tuple[Any, ...]:
        return tuple([resolve(given) for resolve in self.resolve])

    def ready_arguments(self, given: Given) -> list[Any]:
        """Return the same for a call that is made again and again."""
        arguments = self.arguments(given)
        return converted(arguments, self.kinds) if self.kinds else list(arguments)

    def native(
        self, given: Given, changing: Changing, example: Sequence[int], give_up: Callable[[BaseException], object]
    ) -> NativeCall | None:
        """Return the call for native code, with words of a record among its arguments; None if that cannot be."""
        if self.function is None:
            return None
        words: list[Any] = []
        pointed: list[Target] = []
        for argument, resolve in zip(self.given, self.resolve, strict=True):
            if isinstance(argument, Address) and argument.number in changing.addresses:
                if not _stays_an_address(argument, example):
                    return None
                words.append(Word(changing.addresses[argument.number], argument.offset))
            elif isinstance(argument, Words) and changing.decides(argument):
                behind = resolve(given)
                for place, each in enumerate(argument.words):
                    if isinstance(each, Address) and each.number in changing.addresses:
                        if not _stays_an_address(each, example):
                            return None
                        word = changing.addresses[each.number]
                        pointed.append(Target(word, ctypes.addressof(behind) + WORD * place, each.offset))
                words.append(behind)
            elif changing.decides(argument):
                return None
            else:
                words.append(resolve(given))
        call = native_call(self.function, words, None, give_up)
        return None if call is None else call._replace(targets=[*call.targets, *pointed])


def _stays_an_address(argument: Address, example: Sequence[int]) -> bool:
    """Return whether native code may add the offset: an address that is 0 stays that."""
    return not argument.offset or bool(example[argument.number])


def place_of(argument: Address | RoomOf) -> Callable[[Given], int]:
    """Return what finds an address; one that is 0 stays that."""
    index, offset = argument
    if type(argument) is Address:
        return lambda given: given.addresses[index] + offset if given.addresses[index] else 0
    return lambda given: given.room[index] + offset if given.room[index] else 0


def varies(argument: object) -> bool:
    """Return whether an argument depends on the addresses of an execution, or on the numbers among its scalars."""
    if isinstance(argument, Words):
        return any(isinstance(each, Address) for each in argument.words)
    return isinstance(argument, Address | Number)
