"""The check of a program before anything of it is run: every function and every argument against the bindings."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from ctypes import Structure, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_uint, c_uint64, c_void_p, sizeof
from typing import Any, Final

from atomr_cuda._library import Function, Variable

from ..._wire.programs import (
    OF_LANE,
    Address,
    Argument,
    Arrange,
    BadProgram,
    Bytes,
    Call,
    Choose,
    Create,
    Destroy,
    Exported,
    Handle,
    Launch,
    Most,
    Number,
    Out,
    Program,
    Query,
    Ref,
    Repeat,
    Require,
    Room,
    RoomOf,
    Scalars,
    Set,
    Slot,
    Step,
    Stream,
    Values,
    Words,
    slots_of,
)
from ..._wire.records.plans import PlanTable
from .kernels import Kernel

_NUMBERS: Final = {"f": (c_float,), "d": (c_double,), "i": (c_int,), "I": (c_uint,), "q": (c_int64,), "Q": (c_uint64,)}
INTEGERS: Final = frozenset((c_int, c_uint, c_int64, c_uint64, c_size_t))
"""The types of numbers that a slot may hold."""
_EXECUTES: Final = (Set, Choose, Arrange, Launch)
"""The steps of executions alone."""
_FLOATS: Final = frozenset((c_float, c_double))


class ProgramCheck:
    """The functions and slots of one program, as far as it was read."""

    def __init__(
        self,
        program: Program,
        table: PlanTable,
        bindings: Any,
        kernels: Mapping[str, Kernel],
        *,
        has_handle: bool,
    ) -> None:
        self._program = program
        self._table = table
        self._bindings = bindings
        self._kernels = kernels
        self._has_handle = has_handle
        self._types: dict[int, Any] = {}
        """The type in each slot that is filled so far."""
        self._makes_anew = False
        """True from the first step on that fills a slot in each execution."""
        self._owned: set[int] = set()
        self._pieces = 0
        self._has_lane_room = False
        self._addresses = program.addresses
        """The number of addresses that the steps are given."""
        self._scalars = 0
        """The bytes of scalars that they are given."""

    def check(self) -> None:
        """Raise `BadProgram` for the first thing that does not fit."""
        program = self._program
        if bool(program.image) != bool(program.kernels):
            raise BadProgram("an image without kernels" if program.image else "kernels without an image")
        twice = sorted(program.kernels.keys() & self._kernels.keys())
        if twice:
            raise BadProgram(f"{twice[0]} is a kernel of the image and of {self._table.engine}")
        for step in self._program.make:
            self._check_step(step, making=True)
        for answer in self._program.answers:
            self._check_number(answer)
        self._addresses, self._scalars = 0, program.restore_scalars
        for function, arguments in program.restore:
            self._check_call(function, arguments, outs=0)
        self._addresses, self._scalars = program.addresses, program.scalars
        for step in self._program.execute:
            self._check_step(step, making=False)

    def _check_step(self, step: Step, *, making: bool) -> None:
        kind = type(step)
        allowed = kind not in _EXECUTES if making else kind in _EXECUTES or kind in (Call, Create, Query)
        self._makes_anew |= not making and kind in (Create, Query)
        if not allowed or (kind is Set and self._makes_anew):
            raise BadProgram(f"{kind.__name__} in the wrong part of a program")
        match step:
            case Create(function, arguments, destroy):
                self._check_call(function, arguments, outs=1)
                (slot,) = slots_of(arguments)
                self._check_destroyer(destroy, self._types[slot])
                self._owned.add(slot)
            case Query(function, arguments):
                self._check_call(function, arguments, outs=None)
            case Call(function, arguments) | Set(function, arguments) | Repeat(function, arguments):
                self._check_call(function, arguments, outs=0)
            case Choose(place, calls):
                if not self._fits(place, c_uint):
                    raise BadProgram(f"the place of a choice, {place!r}, does not come with an execution")
                for function, arguments in calls:
                    self._check_call(function, arguments, outs=0)
            case Room(pieces, owner):
                if owner == OF_LANE and self._has_lane_room:
                    raise BadProgram("two workspaces of the lane")
                self._has_lane_room |= owner == OF_LANE
                for size in (size for piece in pieces for size in (piece.sizes if type(piece) is Most else (piece,))):
                    if type(size) is Slot:
                        self._check_number(size)
                self._pieces += len(pieces)
            case Require(value):
                self._check_number(value)
            case Arrange(source, target):
                if not (self._fits(source, c_void_p) and self._fits(target, c_void_p)):
                    raise BadProgram(f"a copy from {source!r} to {target!r}")
            case Launch():
                self._check_launch(step)
            case Destroy(slot):
                if slot not in self._owned:
                    raise BadProgram(f"slot {slot} is destroyed, and nothing was made there")
                self._owned.discard(slot)
                del self._types[slot]

    def _check_launch(self, step: Launch) -> None:
        kernel, words, threads = step
        own = self._kernels.get(kernel)
        parameters = self._program.kernels.get(kernel) if own is None else own.parameters
        if len(words) != parameters:
            raise BadProgram(f"{kernel} is no kernel of {self._table.engine} with {len(words)} parameters")
        for word in words:
            kind = _NUMBERS[word.format][0] if type(word) is Number else c_void_p
            if type(word) is not int and not self._fits(word, kind):
                raise BadProgram(f"a word of {kernel}, {word!r}, is no address and no scalar")
        if type(threads) is Number and not self._fits(threads, _NUMBERS[threads.format][0]):
            raise BadProgram(f"the threads of {kernel}, {threads!r}, do not come with an execution")

    def _function(self, name: str) -> Function:
        function = getattr(self._bindings, name, None) if name in self._table.functions else None
        if not isinstance(function, Function):
            raise BadProgram(f"{name} is no function that programs of {self._table.engine} may call")
        return function

    def _check_destroyer(self, name: str, made: Any) -> None:
        if self._function(name).argtypes != (made,):
            raise BadProgram(f"{name} does not take what it is to destroy")

    def _check_call(self, name: str, arguments: Sequence[Argument], outs: int | None) -> None:
        kinds = self._function(name).argtypes
        if len(kinds) != len(arguments):
            raise BadProgram(f"{name} takes {len(kinds)} arguments, not {len(arguments)}")
        slots = slots_of(arguments)
        if len(set(slots)) != len(slots) or set(slots) & self._types.keys():
            raise BadProgram(f"{name} fills a slot that is full")
        if (not slots) if outs is None else len(slots) != outs:
            raise BadProgram(f"{name} has {len(slots)} new slots")
        for place, (argument, kind) in enumerate(zip(arguments, kinds, strict=True)):
            if not self._fits(argument, kind):
                raise BadProgram(f"argument {place} of {name}, {argument!r}, is none of {kind.__name__}")
        for argument, kind in zip(arguments, kinds, strict=True):
            if type(argument) is Out:
                self._types[argument.slot] = kind._type_

    def _fits(self, argument: Argument, kind: Any) -> bool:
        pointed = getattr(kind, "_type_", None) if hasattr(kind, "contents") else None
        is_pointer = kind is c_void_p or pointed is not None
        match argument:
            case None:
                return is_pointer
            case int():
                return kind in INTEGERS and _holds(kind, argument)
            case float():
                return kind in _FLOATS
            case Slot():
                found = self._type_of(argument)
                return found is kind or (kind in INTEGERS and found in INTEGERS and sizeof(found) <= sizeof(kind))
            case Ref():
                return kind is c_void_p or self._type_of(argument) is pointed
            case Out():
                return pointed is not None
            case Values(values):
                return pointed in INTEGERS and all(_holds(pointed, each) for each in values)
            case Address(index):
                return kind is c_void_p and index < self._addresses
            case RoomOf(piece):
                return kind is c_void_p and piece < self._pieces
            case Words(words):
                return c_void_p in (kind, pointed) and all(self._fits(each, c_void_p) for each in words)
            case Scalars(offset):
                return kind is c_void_p and offset < self._scalars
            case Number(offset, form):
                return kind in _NUMBERS[form] and offset + struct.calcsize(form) <= self._scalars
            case Handle():
                return kind is c_void_p and self._has_handle
            case Exported(name):
                return kind is c_void_p and self._is_variable(name)
            case Bytes(content):
                return kind is c_void_p or (kind is c_char_p and content.endswith(b"\0"))
            case Stream():
                return kind is c_void_p

    def _is_variable(self, name: str) -> bool:
        return name in self._table.variables and isinstance(getattr(self._bindings, name, None), Variable)

    def _type_of(self, place: Slot | Ref) -> Any:
        found = self._types.get(place.slot)
        if found is not None and place.field:
            fields: dict[str, Any] = {}
            if isinstance(found, type) and issubclass(found, Structure):
                fields = {name: kind for name, kind, *_ in found._fields_}
            found = fields.get(place.field)
        if found is None:
            raise BadProgram(f"{place!r} has nothing in it")
        return found

    def _check_number(self, place: Slot) -> None:
        if self._type_of(place) not in INTEGERS:
            raise BadProgram(f"{place!r} is no number")


def _holds(kind: Any, value: int) -> bool:
    bits = 8 * sizeof(kind)
    return 0 <= value < 1 << bits if kind(-1).value > 0 else -1 << bits - 1 <= value < 1 << bits - 1
