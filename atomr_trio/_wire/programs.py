"""Programs: what a plan of a library does in the worker, as data.

A library that plans makes objects first, and then calls functions with them, again and again. Which objects and which
functions depends on the library; how they are made, kept and given back does not. So a plan is a program of a few kinds
of steps. `Create` makes an object, `Query` asks for a number, `Call` calls a function, `Repeat` calls one several
times, `Choose` one of several, `Set` calls one if its arguments are not those of the last time, `Room` takes a
workspace, `Require` ends the plan with a status, `Destroy` gives an object back early, `Arrange` copies elements to
another layout, and `Launch` launches a kernel: one of the engine's own, or of an image that the program carries. One
interpreter runs the programs of all libraries (``_worker/base/plans.py``).

The steps of `make` are run once, when the plan is defined for a lane; they may block. Those of `execute` are run with
each execution; they only enqueue. Objects are in numbered slots, from `Create` or `Query` on until the plan is dropped.
What an execution itself makes lasts as long as the execution. The calls of `restore` bring the objects to another
state: which of them are made, how often and with which scalars, comes with a record.

A program crosses as JSON, with its image behind that as it is: JSON has no zero bytes, and so ends at the first one.
`read` checks its form; the worker checks every function and argument against the bindings before it calls anything.
Standard library alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

__all__ = [
    "OF_LANE",
    "OF_PLAN",
    "Address",
    "Argument",
    "Arrange",
    "BadProgram",
    "Bytes",
    "Call",
    "Choose",
    "Create",
    "Destroy",
    "Exported",
    "Handle",
    "Launch",
    "Most",
    "Number",
    "Out",
    "Program",
    "Query",
    "Ref",
    "Repeat",
    "Require",
    "Room",
    "RoomOf",
    "Scalars",
    "Set",
    "Slot",
    "Step",
    "Stream",
    "Values",
    "Words",
]


class BadProgram(ValueError):
    """A program that is none, or whose steps do not fit the library's functions; the text says where."""


# --- arguments --------------------------------------------------------------------------------------------------------


class Slot(NamedTuple):
    """The object or number in a slot, or a field of the structure there."""

    slot: int
    field: str = ""


class Ref(NamedTuple):
    """The address of what is in a slot, or of a field of the structure there."""

    slot: int
    field: str = ""


class Out(NamedTuple):
    """The address of a new object of the type that the function declares, which the slot holds from then on."""

    slot: int


class Bytes(NamedTuple):
    """The address of these bytes on the host: an attribute's value, say."""

    content: bytes


class Values(NamedTuple):
    """The address of an array on the host, of the type that the function declares."""

    values: tuple[int, ...]


class Address(NamedTuple):
    """One of the addresses that come with an execution, and bytes behind it.

    While a plan is made, it is that of an example: all executions of a plan have the same alignments, and the same
    addresses are 0.
    """

    number: int
    offset: int = 0


class Words(NamedTuple):
    """The address of an array of pointers on the host: addresses of an execution, and objects."""

    words: tuple[Address | RoomOf | Slot, ...]


class Scalars(NamedTuple):
    """The address on the host of the scalars that come with an execution, or with a call of `restore`, from `offset`
    bytes on.

    There are none while a plan is made: `Bytes` stand for them there.
    """

    offset: int


class Number(NamedTuple):
    """One of those scalars by value: its place, and its ``struct`` format, a letter."""

    offset: int
    format: str


class RoomOf(NamedTuple):
    """The address of one piece of the plan's workspaces, and bytes behind it."""

    piece: int
    offset: int = 0


class Stream(NamedTuple):
    """The stream of the lane."""


class Handle(NamedTuple):
    """The handle of the library."""


class Exported(NamedTuple):
    """The pointer that a variable of the library holds."""

    variable: str


_Pointer: TypeAlias = Ref | Out | Bytes | Values | Address | Words | Scalars | RoomOf | Stream | Handle | Exported
_Special: TypeAlias = Slot | Number | _Pointer
Argument: TypeAlias = int | float | _Special | None
"""An argument of a function: a number by value, None for a null pointer, or one of the classes above."""


# --- steps ------------------------------------------------------------------------------------------------------------


class Create(NamedTuple):
    """Call a function whose `Out` argument is a new object. The function `destroy` gives it back."""

    function: str
    arguments: tuple[Argument, ...]
    destroy: str


class Query(NamedTuple):
    """Call a function whose `Out` arguments are its answers: numbers, or a structure."""

    function: str
    arguments: tuple[Argument, ...]


class Call(NamedTuple):
    """Call a function."""

    function: str
    arguments: tuple[Argument, ...]


class Repeat(NamedTuple):
    """Call a function so many times, one after the other, while the plan is made."""

    function: str
    arguments: tuple[Argument, ...]
    times: int


class Choose(NamedTuple):
    """Call one of several functions in an execution, the one whose place among them is a scalar of 32 bits."""

    place: Number
    calls: tuple[tuple[str, tuple[Argument, ...]], ...]
    """Each with its arguments, none of which is an `Out`."""


class Set(NamedTuple):
    """Call a function in an execution, unless its arguments are those of the plan's execution before."""

    function: str
    arguments: tuple[Argument, ...]


OF_LANE: Final = "lane"
"""A workspace that all plans of the lane use, one after the other: what is in it does not last."""
OF_PLAN: Final = "plan"
"""A workspace of the plan alone, which keeps its contents from one execution to the next."""


class Most(NamedTuple):
    """The largest of these sizes: of a piece that several objects use, one after the other."""

    sizes: tuple[int | Slot, ...]


class Room(NamedTuple):
    """Take a workspace of several pieces, each of so many bytes.

    A program may have several that are its own, the size of one an answer that the one before was needed for. It has at
    most one of the lane. The pieces of all are counted on.
    """

    pieces: tuple[int | Slot | Most, ...]
    owner: str


class Require(NamedTuple):
    """End with a status unless a number in a slot is at least `least` and at most `most`.

    The status is the number itself if `status` is 0.
    """

    value: Slot
    least: int
    most: int
    status: int


class Destroy(NamedTuple):
    """Give an object back before the plan is dropped."""

    slot: int


class Arrange(NamedTuple):
    """Copy elements to another layout in an execution, by a kernel of our own that also converts, pads and scales."""

    source: Address | RoomOf
    target: Address | RoomOf
    copy: tuple[Any, ...]
    """The fields of an `Arrange` of ``_worker/base/arrange.py``, in their order."""


class Launch(NamedTuple):
    """Launch a kernel in an execution: one of the program's image, or of the engine's own.

    Each of its parameters has at most 64 bits. A `Number` is given as it is, a float as a float.
    """

    kernel: str
    words: tuple[Address | RoomOf | Number | int, ...]
    threads: int | Number
    """The number of threads that are useful; more are not launched, fewer may be."""


Step: TypeAlias = Create | Query | Call | Repeat | Choose | Set | Room | Require | Destroy | Arrange | Launch


class Program(NamedTuple):
    """What a plan does."""

    make: tuple[Step, ...]
    execute: tuple[Step, ...]
    addresses: int
    """The number of addresses that come with an execution."""
    scalars: int = 0
    """The bytes of scalars that come with an execution."""
    entries: int = 0
    """Entries of a stream's queue that an execution makes at most; 0 for a few with each call."""
    texts: Mapping[int, str] = {}
    """What to say beside a status: why the library may have answered it."""
    answers: tuple[Slot, ...] = ()
    """Numbers that the definition answers: sizes that are known only when the plan was made."""
    image: bytes = b""
    """Machine code or PTX, which is loaded with the plan, and once for all plans that have the same."""
    kernels: Mapping[str, int] = {}
    """The kernels of the image that are launched, and the number of parameters of each."""
    moves: bool = False
    """True if its objects have a state that each execution moves on. Behind one that fails there is none any more."""
    restore: tuple[Call, ...] = ()
    """The calls by which its objects can be brought to another state."""
    restore_scalars: int = 0
    """The bytes of scalars that come with each of those calls."""

    def encode(self) -> bytes:
        """Return the program as it crosses. Equal programs are equal bytes."""
        fields = {
            "make": [_step(each) for each in self.make],
            "execute": [_step(each) for each in self.execute],
            "addresses": self.addresses,
            "scalars": self.scalars,
            "entries": self.entries,
            "texts": {str(status): text for status, text in self.texts.items()},
            "answers": [_plain(each) for each in self.answers],
            "image": len(self.image),
            "kernels": dict(self.kernels),
            "moves": self.moves,
            "restore": [_step(each) for each in self.restore],
            "restore_scalars": self.restore_scalars,
        }
        text = json.dumps(fields, separators=(",", ":")).encode()
        return text + _END + self.image if self.image else text

    @classmethod
    def read(cls, data: bytes) -> Program:
        """Return the program that `encode` wrote. Raises `BadProgram` for anything else."""
        text, _, image = data.partition(_END)
        try:
            fields = json.loads(text)
            if len(image) != _count(fields["image"]):
                raise BadProgram(f"the image has {len(image)} bytes, not {fields['image']}")
            return cls(
                tuple(map(_read_step, _list(fields["make"]))),
                tuple(map(_read_step, _list(fields["execute"]))),
                _count(fields["addresses"]),
                _count(fields["scalars"]),
                _count(fields["entries"]),
                {int(status): str(text) for status, text in fields["texts"].items()},
                tuple(map(_read_answer, _list(fields["answers"]))),
                image,
                {str(name): _count(parameters) for name, parameters in fields["kernels"].items()},
                _flag(fields["moves"]),
                tuple(map(_read_call, _list(fields["restore"]))),
                _count(fields["restore_scalars"]),
            )
        except BadProgram:
            raise
        except Exception as error:
            raise BadProgram(f"not a program: {type(error).__name__}: {error}") from None


# --- as JSON ----------------------------------------------------------------------------------------------------------

_END: Final = b"\0"
"""Stands between the text and the image."""
_ARGUMENTS: Final[Mapping[str, type[Any]]] = {
    kind.__name__: kind
    for kind in (Slot, Ref, Out, Bytes, Values, Address, Words, Scalars, Number, RoomOf, Stream, Handle, Exported, Most)
}
_STEPS: Final[Mapping[str, type[Any]]] = {
    kind.__name__: kind for kind in (Create, Query, Call, Repeat, Choose, Set, Room, Require, Destroy, Arrange, Launch)
}


def _step(step: Step) -> list[Any]:
    return [type(step).__name__, *map(_plain, step)]


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind is Bytes:
        return [kind.__name__, value.content.hex()]
    if kind is Values:
        return [kind.__name__, *value.values]
    if kind.__name__ in _ARGUMENTS:
        return [kind.__name__, *map(_plain, value)]
    return ["", *map(_plain, value)] if kind is tuple else value


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise BadProgram(f"a list was expected, not {value!r}")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise BadProgram(f"a number from 0 on was expected, not {value!r}")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise BadProgram(f"a truth was expected, not {value!r}")
    return value


def _read_answer(fields: Any) -> Slot:
    answer = _read_value(fields)
    if type(answer) is not Slot or not _is_field(*answer):
        raise BadProgram(f"not an answer: {fields!r}")
    return answer


def _read_step(fields: Any) -> Step:
    name, *values = _list(fields)
    kind = _STEPS.get(name)
    if kind is None or len(values) != len(kind._fields):
        raise BadProgram(f"not a step: {fields!r}")
    step: Step = kind(*map(_read_value, values))
    for field, value in zip(step._fields, step, strict=True):
        if not _FORMS[field](value):
            raise BadProgram(f"not the field {field} of {name}: {value!r}")
    return step


def _read_call(fields: Any) -> Call:
    step = _read_step(fields)
    if type(step) is not Call:
        raise BadProgram(f"not a call: {fields!r}")
    return step


def _read_value(value: Any) -> Any:
    if type(value) is not list:
        return value
    name, *values = value
    if name == "":
        return tuple(map(_read_value, values))
    kind = _ARGUMENTS.get(name)
    if kind is Bytes:
        return Bytes(bytes.fromhex(values[0]))
    if kind is Values:
        return Values(tuple(values))
    if kind is None:
        raise BadProgram(f"not an argument: {value!r}")
    return kind(*map(_read_value, values))


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_argument(value: Any) -> bool:
    if value is None or type(value) in (int, float):
        return True
    check = _ARGUMENT_FORMS.get(type(value))
    return check is not None and check(*value)


def _is_call(value: Any) -> bool:
    if type(value) is not tuple or len(value) != len(Call._fields):
        return False
    function, arguments = value
    return type(function) is str and _all(_is_argument)(arguments)


def _all(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: type(value) is tuple and all(map(check, value))


def _is_place(first: Any, second: Any) -> bool:
    return _is_count(first) and _is_count(second)


def _is_field(slot: Any, field: Any) -> bool:
    return _is_count(slot) and (field == "" or (type(field) is str and field.isidentifier()))


def _is_number(offset: Any, form: Any) -> bool:
    return _is_count(offset) and form in ("f", "d", "i", "I", "q", "Q")


def _is_word(value: Any) -> bool:
    return _is_field(*value) if type(value) is Slot else type(value) in (Address, RoomOf) and _is_place(*value)


_ARGUMENT_FORMS: Final[Mapping[type[Any], Callable[..., bool]]] = {
    Slot: _is_field,
    Ref: _is_field,
    Out: _is_count,
    Bytes: lambda content: bool(content),
    Values: lambda values: _all(lambda each: type(each) is int)(values),
    Address: _is_place,
    Words: lambda words: _all(_is_word)(words),
    Scalars: _is_count,
    Number: _is_number,
    RoomOf: _is_place,
    Stream: lambda: True,
    Handle: lambda: True,
    Exported: lambda variable: type(variable) is str,
}


def _is_size(value: Any) -> bool:
    return _is_count(value) or (type(value) is Slot and _is_field(*value))


def _is_piece(value: Any) -> bool:
    return _is_size(value) or (type(value) is Most and bool(value.sizes) and _all(_is_size)(value.sizes))


def _is_launch_word(value: Any) -> bool:
    if type(value) is Number:
        return _is_number(*value)
    return (_is_count(value) and value < 1 << 64) or (type(value) in (Address, RoomOf) and _is_place(*value))


_FORMS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "function": lambda value: type(value) is str,
    "destroy": lambda value: type(value) is str,
    "arguments": _all(_is_argument),
    "times": _is_count,
    "place": lambda value: type(value) is Number and _is_number(*value) and value.format == "I",
    "calls": lambda value: bool(value) and _all(_is_call)(value),
    "pieces": _all(_is_piece),
    "owner": lambda value: value in (OF_LANE, OF_PLAN),
    "value": lambda value: type(value) is Slot and _is_field(*value),
    "least": lambda value: type(value) is int,
    "most": lambda value: type(value) is int,
    "status": lambda value: type(value) is int,
    "slot": _is_count,
    "source": lambda value: type(value) in (Address, RoomOf) and _is_place(*value),
    "target": lambda value: type(value) in (Address, RoomOf) and _is_place(*value),
    "copy": lambda value: type(value) is tuple,
    "kernel": lambda value: type(value) is str,
    "words": _all(_is_launch_word),
    "threads": lambda value: (
        _is_count(value) or (type(value) is Number and _is_number(*value) and value.format in "IQ")
    ),
}
"""What each field of a step may hold."""


def slots_of(arguments: Sequence[Argument]) -> list[int]:
    """Return the slots that a call fills."""
    return [each.slot for each in arguments if type(each) is Out]
