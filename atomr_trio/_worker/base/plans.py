"""Plans of libraries: one interpreter for the programs of all of them.

A program (``_wire/programs.py``) names functions of one library's table. Before anything is called, every step is held
against the declarations in the bindings: the function is one that programs may call, the number and the kinds of its
arguments fit, every slot is filled before it is used. So a program that went astray is an error, and no wild call.

A plan belongs to one lane, whose stream its objects are bound to. Executions of a lane follow each other, so all plans
of a lane may share one workspace. It grows when a plan is made, never in an execution; then every call that was made
ready with its address is forgotten. A plan that is dropped is destroyed when the GPU has reached its last execution:
one with memory of its own by a thread that waits for that, any other when the next is defined or dropped.
"""

from __future__ import annotations

import functools
import struct
import threading
from ctypes import addressof, byref, c_uint, c_void_p, create_string_buffer
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from atomr_cuda._library import Function, Library, Variable

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
from ..._wire.records.plans import PLACE_OF_ADDRESSES, RESTORED, WORD, PlanTable, unpack_addresses
from ..._wire.status import StatusClass, classify
from . import workspaces
from .arrange import ArrangeKernels, Prepared
from .calls import ENTRIES_OF_A_CALL, Handles, made_ready, refusal
from .kernels import Image, Kernel, Kernels
from .lane_plans import LanePlans
from .lanes import Target
from .native_calls import NativeStep, native_steps
from .plan_calls import Changing, Given, PlanCall, place_of, varies
from .program_check import INTEGERS, ProgramCheck
from .shared_words import Words as SharedWords

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .lanes import Command, Lane, NativeCall, Ready, RecordWords, WorkerServices

ALIGNMENT: Final = 256
"""Of each piece of a workspace."""
_SCALAR: Final = struct.Struct("<Q")
_UNSIGNED: Final = {4: "I", 8: "Q"}
"""How the bits of a scalar are read, by its bytes."""


# --- a plan -----------------------------------------------------------------------------------------------------------


class _Workspace(NamedTuple):
    """What one `Room` step has taken."""

    sizes: tuple[int, ...]
    """The bytes of its pieces."""
    own: Any = None
    """The memory, if it is the plan's; None for that of the lane, which may move."""
    own_bytes: int = 0


class _Plan:
    """The objects of one plan on one lane."""

    def __init__(self, engine: PlanEngine, program: Program, lane: Lane, kept: LanePlans) -> None:
        self.program: Program = program
        self._engine = engine
        self._lane = lane
        self._kept = kept
        self._slots: dict[int, Any] = {}
        self._destroyers: dict[int, Callable[[], int]] = {}
        """The calls that give the objects back, in the order in which those were made."""
        self._workspaces: list[_Workspace] = []
        self.may_be_hot: bool = False
        """True once an execution was made ready to be made again."""
        self.settings: tuple[tuple[int, ...], ...] | None = None
        """The addresses in the `Set` steps as these were called last; None if one of those calls has failed, or if
        native code makes them."""
        self.settings_word: SharedWords = SharedWords(1)
        """The number of these settings for native code; 0 for any that it does not know."""
        self._known_settings: dict[tuple[tuple[int, ...], ...], int] = {}
        self._is_set_anew: bool = False
        """True once native code makes its `Set` steps in each execution: nobody else knows the settings then."""
        self._last: Any = None
        """The function that was called last."""
        self._told: list[tuple[Any, ...]] = []
        """The arguments of the calls that make it: a library may read what is behind a pointer in a later one."""
        self.sets: tuple[PlanCall, ...] = ()
        self.calls: tuple[PlanCall, ...] = ()
        self.restoring: tuple[PlanCall, ...] = ()
        self.entries: int = 0
        self.answers: tuple[int, ...] = ()
        self.failed: Any = None
        """The function of an execution that was refused last."""
        self._anew: set[int] = set()
        """The slots that each execution fills."""
        self.example: tuple[int, ...] = ()
        """The addresses that it was made with."""
        self._image: Image | None = None

    def make(self, addresses: tuple[int, ...], allowed: int) -> None:
        """Run the steps that make it. Raises the error of the first that fails; `destroy` gives back what was made."""
        self.example = addresses
        self.take_steps(self.program.make, allowed)
        self.answers = tuple(map(self._number, self.program.answers))
        if self.program.image:
            self._image = self._engine.kernels.load(self.program.image)
            self.program = self.program._replace(image=self._image.content)
        steps = self.program.execute
        self._anew = {slot for step in steps if isinstance(step, Create | Query) for slot in slots_of(step.arguments)}
        self.sets = tuple(self._bind(step.function, step.arguments) for step in steps if isinstance(step, Set))
        self.calls = tuple(self._bind_step(step) for step in steps if not isinstance(step, Set))
        self.restoring = tuple(self._bind(each.function, each.arguments) for each in self.program.restore)
        self.entries = self.program.entries or ENTRIES_OF_A_CALL * len(self.calls)

    def take_steps(self, steps: Sequence[Step], allowed: int = 0) -> None:
        """Run steps. Raises the error of the first that fails."""
        given = Given(self.example, None, self.places())
        for step in steps:
            match step:
                case Create(function, arguments, destroy):
                    self._call(function, arguments, given)
                    (slot,) = slots_of(arguments)
                    self._destroyers[slot] = functools.partial(self._engine.bound(destroy), self._slots[slot])
                case Query(function, arguments) | Call(function, arguments):
                    self._call(function, arguments, given)
                case Repeat(function, arguments, times):
                    self._call(function, arguments, given, times)
                case Room(pieces, owner):
                    self._take_room(tuple(map(self._size, pieces)), owner, allowed)
                    given = given._replace(room=self.places())
                case Require(value, least, most, status):
                    found = self._number(value)
                    if not least <= found <= most:
                        raise self._engine.refused(self, status or found, self._last, self._lane)
                case Destroy(slot):
                    self._destroy(self._destroyers.pop(slot))
                    del self._slots[slot]
        self._told.clear()

    def _call(self, function: str, arguments: Sequence[Argument], given: Given, times: int = 1) -> None:
        for slot, kind in self._outs(function, arguments):
            self._slots[slot] = kind()
        bound = self._bind(function, arguments)
        self._last = bound
        self._told.append(bound.arguments(given))
        self._make(bound, self._told[-1], times)

    def _bind(self, name: str, arguments: Sequence[Argument]) -> PlanCall:
        function = self._engine.function(name)
        resolve = tuple(map(self._resolve, arguments, function.argtypes))
        words = [word for each in arguments for word in (each.words if type(each) is Words else (each,))]
        places = tuple(place_of(each) for each in words if isinstance(each, Address | RoomOf))
        varying = tuple(index for index, each in enumerate(arguments) if varies(each))
        kinds = tuple(function.argtypes)
        return PlanCall(
            self._engine.bound(name),
            function.symbol,
            function.library,
            resolve,
            places,
            kinds,
            varying,
            function=function,
            given=tuple(arguments),
        )

    def _bind_step(self, step: Step) -> PlanCall:
        match step:
            case Arrange() | Launch():
                return self._bind_kernel(step)
            case Create(function, arguments, destroy):
                bound = self._bind(function, arguments)
                return bound._replace(outs=self._outs(function, arguments), destroy=self._engine.bound(destroy))
            case Query(function, arguments):
                return self._bind(function, arguments)._replace(outs=self._outs(function, arguments))
            case Call(function, arguments):
                return self._bind(function, arguments)
            case Choose(place, calls):
                choices = tuple(self._bind(*each) for each in calls)
                return choices[0]._replace(resolve=(self._resolve(place, c_uint),), choices=choices)
        raise BadProgram(f"{step!r} in an execution")

    def _outs(self, function: str, arguments: Sequence[Argument]) -> tuple[tuple[int, Any], ...]:
        given = zip(arguments, self._engine.function(function).argtypes, strict=True)
        return tuple((argument.slot, kind._type_) for argument, kind in given if isinstance(argument, Out))

    def _bind_kernel(self, step: Arrange | Launch) -> PlanCall:
        call: Callable[..., int]
        words: tuple[Address | RoomOf | Number | int, ...]
        if isinstance(step, Arrange):
            call, words = self._engine.arranged(step.copy).launch, (step.source, step.target)
        else:
            call, words = self._launch(step), step.words
        resolve = [*map(self._launch_word, words), self._resolve(Stream(), c_void_p)]
        varying = [index for index, word in enumerate(words) if varies(word)]
        if isinstance(step, Launch) and isinstance(step.threads, Number):
            resolve.insert(0, self._resolve(step.threads, c_void_p))
            varying = [0, *(index + 1 for index in varying)]
        places = tuple(place_of(word) for word in words if isinstance(word, Address | RoomOf))
        launch = self._engine.driver.cuLaunchKernel
        return PlanCall(call, launch.symbol, launch.library, tuple(resolve), places, varying=tuple(varying))

    def _launch(self, step: Launch) -> Callable[..., int]:
        kernels, parameters = self._engine.kernels, self.program.kernels.get(step.kernel)
        threads = None if isinstance(step.threads, Number) else step.threads
        if parameters is None or self._image is None:
            return kernels.prepare(step.kernel, threads)
        return kernels.prepare_of(self._image, step.kernel, parameters, threads)

    def _launch_word(self, word: Address | RoomOf | Number | int) -> Callable[[Given], int]:
        if isinstance(word, Number):
            # A parameter of fewer bits takes the first bytes of its word.
            offset, form = word.offset, _UNSIGNED[struct.calcsize(word.format)]
            return lambda given: int(struct.unpack_from(form, given.scalars, offset)[0])
        return self._resolve(word, c_void_p)

    def _resolve(self, argument: Argument, kind: Any) -> Callable[[Given], Any]:
        match argument:
            case Address() | RoomOf() as address:
                return place_of(address)
            case Words(words):
                parts = [self._word(each) for each in words]
                return lambda given: (c_void_p * len(parts))(*(part(given) for part in parts))
            case Scalars(offset):
                return lambda given: byref(given.scalars, offset)
            case Number(offset, form):
                return lambda given: struct.unpack_from(form, given.scalars, offset)[0]
        if isinstance(argument, Slot | Ref | Out) and argument.slot in self._anew:
            return lambda _given: self._constant(argument, kind)
        constant = self._constant(argument, kind)
        return lambda _given: constant

    def _word(self, argument: Address | RoomOf | Slot) -> Callable[[Given], int]:
        if not isinstance(argument, Slot):
            return place_of(argument)
        slot = argument.slot
        return lambda _given: self._slots[slot].value or 0

    def _constant(self, argument: Argument, kind: Any) -> Any:
        match argument:
            case Slot(slot, ""):
                held = self._slots[slot]
                return held.value if type(held) in INTEGERS else held
            case Slot(slot, field):
                return getattr(self._slots[slot], field)
            case Ref(slot, "") | Out(slot):
                return byref(self._slots[slot])
            case Ref(slot, field):
                held = self._slots[slot]
                return byref(held, getattr(type(held), field).offset)
            case Bytes(content):
                return content
            case Values(values):
                return (kind._type_ * len(values))(*values)
            case Exported(name):
                return self._engine.exported(name)
            case Stream():
                return self._lane.stream
            case Handle():
                return self._engine.handle(self._lane)
        return argument

    def _number(self, place: Slot) -> int:
        held = self._slots[place.slot]
        return int(getattr(held, place.field) if place.field else held.value)

    # The state.

    def restore(self, count: int, content: bytes) -> None:
        """Make these calls of those by which it is brought to another state, each with the scalars behind it.

        Raises `BadProgram`, before any call, if they are none; and the error of the first that fails.
        """
        size, room, calls = RESTORED.size + self.program.restore_scalars, self.places(), []
        if len(content) != count * size:
            raise BadProgram(f"{count} calls have {count * size} bytes, not {len(content)}")
        for at in range(0, len(content), size):
            place, times = RESTORED.unpack_from(content, at)
            if place >= len(self.restoring):
                raise BadProgram(f"{place} is none of the {len(self.restoring)} calls that bring it to a state")
            scalars = create_string_buffer(content[at + RESTORED.size : at + size], self.program.restore_scalars)
            bound = self.restoring[place]
            calls.append((bound, bound.arguments(Given((), scalars, room)), times, scalars))
        for bound, arguments, times, _ in calls:
            self._make(bound, arguments, times)

    def _make(self, bound: PlanCall, arguments: tuple[Any, ...], times: int) -> None:
        """Make a call that may block. Raises the error of its status."""
        for _ in range(times):
            with self._engine.services.capture_turns.synchronize():
                status = bound.call(*arguments)
            if status:
                raise self._engine.refused(self, status, bound, self._lane)

    # The workspace.

    def _size(self, piece: int | Slot | Most) -> int:
        if isinstance(piece, Most):
            return max(map(self._size, piece.sizes))
        return self._number(piece) if isinstance(piece, Slot) else piece

    def _take_room(self, sizes: tuple[int, ...], owner: str, allowed: int) -> None:
        size = sum(map(_rounded, sizes))
        taken = _Workspace(sizes)
        if owner == OF_LANE:
            self._kept.grow(size, allowed, self._lane)
        elif size:
            taken = _Workspace(sizes, self._engine.allocate(size, size, allowed), size)
        self._workspaces.append(taken)

    @property
    def has_memory(self) -> bool:
        """True if a workspace is its own."""
        return any(each.own is not None for each in self._workspaces)

    def places(self) -> tuple[int, ...]:
        """Return the addresses of the workspaces' pieces, as things are now; 0 for one of no bytes."""
        found = []
        for sizes, own, _ in self._workspaces:
            room = self._kept.room if own is None else own
            at = 0 if room is None else room.value
            for size in sizes:
                found.append(at if size else 0)
                at += _rounded(size)
        return tuple(found)

    # Executions.

    def given(self, payload: bytes) -> Given:
        """Return what the record of an execution gives. Raises `BadProgram` if it is not of this plan."""
        count, scalars = self.program.addresses, self.program.scalars
        behind = PLACE_OF_ADDRESSES + WORD * count
        if len(payload) != behind + scalars:
            raise BadProgram(f"an execution has {len(payload)} bytes, not {behind + scalars}")
        addresses = unpack_addresses(payload, PLACE_OF_ADDRESSES, count)
        return Given(addresses, create_string_buffer(payload[behind:], scalars) if scalars else None, self.places())

    def settings_of(self, given: Given) -> tuple[tuple[int, ...], ...]:
        """Return the addresses in its `Set` steps."""
        return tuple([tuple([place(given) for place in bound.places]) for bound in self.sets])

    def set(self, settings: tuple[tuple[int, ...], ...], given: Given) -> None:
        """Call those functions whose addresses have changed. Raises the error of the first that fails."""
        before = self.settings
        if before == settings:
            return
        self.settings, self.settings_word.view[0] = None, 0
        for at, bound in enumerate(self.sets):
            if before is None or before[at] != settings[at]:
                status = bound.call(*bound.arguments(given))
                if status:
                    raise self._engine.refused(self, status, bound, self._lane)
        if not self._is_set_anew:
            self.settings, self.settings_word.view[0] = settings, self._known_settings.get(settings, 0)

    def number_of(self, settings: tuple[tuple[int, ...], ...]) -> int:
        """Return the number of settings for native code."""
        number = self._known_settings.setdefault(settings, len(self._known_settings) + 1)
        if self.settings == settings:
            self.settings_word.view[0] = number
        return number

    def sets_anew(self, changing: Changing) -> bool:
        """Return whether native code makes the `Set` steps in each execution: their addresses are words of it."""
        return any(changing.decides(each) for bound in self.sets for each in bound.given)

    @property
    def makes_anew(self) -> bool:
        """True if each execution makes objects of its own."""
        return bool(self._anew)

    def run(self, given: Given) -> int:
        """Make the calls of an execution. Returns the status of the first that is refused, which `failed` then is."""
        made: list[Callable[[], int]] = []
        try:
            for each in self.calls:
                bound = each.of(given)
                for slot, kind in bound.outs:
                    self._slots[slot] = kind()
                status = bound.call(*bound.arguments(given))
                if status:
                    self.failed = bound
                    return status
                if bound.destroy is not None:
                    ((slot, _),) = bound.outs
                    made.append(functools.partial(bound.destroy, self._slots[slot]))
            return 0
        finally:
            while made:
                made.pop()()

    def bound(self, given: Given) -> Callable[[], int]:
        """Return a function that does the same as `run`, and looks nothing up any more."""
        chosen = [bound.of(given) for bound in self.calls]
        calls = [functools.partial(bound.call, *bound.ready_arguments(given)) for bound in chosen]
        if len(calls) == 1 and chosen[0] is self.calls[0]:
            return calls[0]

        def run() -> int:
            for place, call in enumerate(calls):
                status = call()
                if status:
                    self.failed = chosen[place]
                    return status
            return 0

        return run

    def varied(self, given: Given, change: Callable[[RecordWords], object]) -> Callable[[RecordWords], int]:
        """Return a function that makes the calls of an execution with words that come with it.

        `change` writes the words into the addresses and scalars of `given`. No word may be the scalar that decides
        which function is called.
        """
        if self.makes_anew:

            def run_anew(words: RecordWords) -> int:
                change(words)
                self.set(self.settings_of(given), given)
                return self.run(given)

            return run_anew
        calls = []
        for each in self.calls:
            bound = each.of(given)
            varying = [(index, bound.resolve[index]) for index in bound.varying]
            calls.append((bound, bound.call, bound.ready_arguments(given), varying))

        def run(words: RecordWords) -> int:
            change(words)
            if self.sets:
                self.set(self.settings_of(given), given)
            for bound, call, arguments, varying in calls:
                for index, resolve in varying:
                    arguments[index] = resolve(given)
                status = call(*arguments)
                if status:
                    self.failed = bound
                    return status
            return 0

        return run

    def native(
        self,
        given: Given,
        changing: Changing,
        refused: Callable[[PlanCall, int], Exception],
        give_up: Callable[[BaseException], object],
    ) -> NativeCall | None:
        """Return the calls of an execution for native code; None if that cannot make them.

        Words that are scalars are written where `given` has these.
        """
        if self.makes_anew or not self.calls:
            return None
        sets_anew = self.sets_anew(changing)
        steps: list[NativeStep] = []
        for each in (*self.sets, *self.calls) if sets_anew else self.calls:
            bound = each.of(given)
            call = bound.native(given, changing, self.example, give_up)
            if call is None:
                return None
            steps.append(NativeStep(call, functools.partial(refused, bound)))
        words = {word: word for word in (*changing.addresses.values(), *(word for word, _ in changing.scalars))}
        made = native_steps(steps, (), words, self.entries if self.entries > ENTRIES_OF_A_CALL else 0)
        scalars = [Target(word, addressof(given.scalars) + offset) for word, offset in changing.scalars]
        made = made._replace(targets=[*made.targets, *scalars], keep=(made.keep, given, self.settings_word))
        if sets_anew:
            self.settings, self.settings_word.view[0], self._is_set_anew = None, 0, True
        if sets_anew or not self.sets:
            return made
        return made._replace(guard=self.settings_word.address, expected=self.number_of(self.settings_of(given)))

    def destroy(self) -> None:
        """Give everything back, the last first. Its executions are done, or were never made."""
        while self._destroyers:
            _, call = self._destroyers.popitem()
            self._destroy(call)
        while self._workspaces:
            _, own, size = self._workspaces[-1]
            if own is not None:
                self._engine.release(own, size)
            self._workspaces.pop()
        if self._image is not None:
            image, self._image = self._image, None
            self._destroy(functools.partial(self._engine.kernels.release, image))

    def _destroy(self, call: Callable[[], object]) -> None:
        with self._engine.services.capture_turns.synchronize():
            call()


def _content_of(command: Command) -> bytes:
    """Return what a definition has in a file."""
    with open(command.take_descriptor(), "rb") as file:
        file.seek(0)  # the writer's place in the file is shared
        return file.read()


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


# --- the engine -------------------------------------------------------------------------------------------------------


class PlanEngine:
    """Defines, executes and drops the plans of one library.

    `handles` makes its handles: one for each lane, or one for all if `shared`; None for a library without. `kernels`
    are those of its own that its programs may launch. `companions` are libraries that the library itself looks for when
    a function is used; they are loaded before, so that they are found.
    """

    def __init__(
        self,
        services: WorkerServices,
        table: PlanTable,
        bindings: Any,
        handles: Handles | None = None,
        *,
        shared: bool = False,
        kernels: Mapping[str, Kernel] | None = None,
        companions: Mapping[str, Library] | None = None,
    ) -> None:
        from atomr_cuda import driver

        self.table = table
        self.services = services
        self.driver: Any = driver
        self._bindings = bindings
        self._companions = companions or {}
        self._handles = handles
        self._shared = shared
        self._handle: Any = None
        self._arranging: ArrangeKernels | None = None
        self.kernels: Kernels = Kernels(driver, kernels or {})
        self._making_handle = threading.Lock()
        self._lanes: dict[int, LanePlans] = {}
        self._calls: dict[str, Callable[..., int]] = {}
        self.calls: dict[int, Callable[[Command, Lane], Any]] = {
            table.define.number: self._define,
            table.first_execute.number: self._execute,
            table.execute.number: self._execute,
            table.drop.number: self._drop,
            table.open.number: self._open_ahead,
            table.restore.number: self._restore,
        }

    # For plans.

    def function(self, name: str) -> Function:
        """Return the declaration of a function."""
        function: Function = getattr(self._bindings, name)
        return function

    def bound(self, name: str) -> Callable[..., int]:
        """Return the function itself, which returns its status. Raises `LibraryMissing`."""
        call = self._calls.get(name)
        if call is None:
            if name in self._companions:
                self._companions[name].load()
            call = self._calls[name] = self.function(name).bind()
        return call

    def exported(self, name: str) -> int | None:
        """Return the pointer that a variable of the library holds. Raises `SymbolMissing`."""
        variable: Variable = getattr(self._bindings, name)
        return variable.value

    def handle(self, lane: Lane) -> Any:
        """Return the handle that calls of this lane take. It is made at its first use."""
        if self._handles is None:
            return None
        if not self._shared:
            kept = self._kept(lane)
            if kept.handle is None:
                kept.handle = self._handles.create(lane)
            return kept.handle
        with self._making_handle:
            if self._handle is None:
                self._handle = self._handles.create(lane)
        return self._handle

    def allocate(self, size: int, more: int, allowed: int) -> Any:
        """Return device memory for a workspace, with which all workspaces take so many bytes `more`.

        Raises the driver's error for a lack of memory if that would be more than `allowed`.
        """
        return workspaces.allocate(self.services, self.driver, "the plan", size, more, allowed)

    def release(self, room: Any, less: int) -> None:
        """Give such memory back; all workspaces take so many bytes less then."""
        workspaces.release(self.services, self.driver, room, less)

    def arranged(self, copy: object) -> Prepared:
        """Return a copy by a kernel of our own, ready to be launched. Raises `BadProgram`."""
        with self._making_handle:
            if self._arranging is None:
                self._arranging = ArrangeKernels(self.driver)
        try:
            return self._arranging.prepare(copy)
        except ValueError as error:
            raise BadProgram(str(error)) from None

    def refused(self, plan: _Plan, status: int, bound: PlanCall, lane: Lane) -> Exception:
        """Return the error of a status, with what the program says about it."""
        library = bound.library
        error: Any = refusal(self.driver, library, status, bound.symbol, lane)
        if error.library == self._bindings.library.name and status in plan.program.texts:
            text = f"{error.text}: {plan.program.texts[status]}"
            error = self.services.cuda_error(status, error.name, text, error.library, error.function)
        found: Exception = error
        return found

    # Records.

    def _kept(self, lane: Lane) -> LanePlans:
        return self._lanes.get(lane.index) or self._lanes.setdefault(lane.index, LanePlans(self))

    def _define(self, command: Command, lane: Lane) -> dict[str, Any]:
        number, allowed, length = self.table.define.struct.unpack_from(command.payload)
        kept = self._kept(lane)
        kept.collect(lane.finished)
        kept.failed.pop(number, None)
        try:
            content = command.payload[self.table.define.struct.size :] or _content_of(command)
            program = Program.read(content[:length])
            if len(content) != length + WORD * program.addresses:
                raise BadProgram("the example has another number of addresses")
            self._check_of(program).check()
            addresses = unpack_addresses(content, length, program.addresses)
            plan = self._made_at_last(program, addresses, allowed, lane)
        except Exception as error:
            kept.failed[number] = error
            raise
        kept.plans[number] = plan
        return {"answers": plan.answers}

    def _restore(self, command: Command, lane: Lane) -> None:
        head = self.table.restore.struct
        number, count = head.unpack_from(command.payload)
        kept, plan = self._kept(lane), self._plan(command.payload, lane)
        try:
            content = command.payload[head.size :]
            plan.restore(count, _content_of(command) if count and not content else content)
        except Exception as error:
            kept.failed[number] = error
            kept.dropped.append((command.ticket, kept.plans.pop(number)))
            raise

    def _check_of(self, program: Program) -> ProgramCheck:
        known, has_handle = self.kernels.known, self._handles is not None
        return ProgramCheck(program, self.table, self._bindings, known, has_handle=has_handle)

    def _made_at_last(self, program: Program, addresses: tuple[int, ...], allowed: int, lane: Lane) -> _Plan:
        """Make a plan; once more if there is too little memory while plans are about to give theirs back."""
        try:
            return self._made(program, addresses, allowed, lane)
        except self.services.cuda_error as error:
            out_of_memory = classify(error.status, error.library) is StatusClass.OUT_OF_MEMORY
            if not out_of_memory or not self.services.wait_given_back():
                raise
            return self._made(program, addresses, allowed, lane)

    def _made(self, program: Program, addresses: tuple[int, ...], allowed: int, lane: Lane) -> _Plan:
        plan = _Plan(self, program, lane, self._kept(lane))
        try:
            plan.make(addresses, allowed)
        except BaseException:
            plan.destroy()
            raise
        return plan

    def prepare_capture(self, verb: int, payload: bytes, lane: Lane, allowed: int, *, launches: bool = True) -> None:
        """Make a plan for the lane of a graph, as it was defined for another lane; see `CapturableEngine`."""
        kept = self._kept(lane)
        kept.is_captured = True
        (number,) = self.table.execute.struct.unpack_from(payload)
        if number not in kept.plans:
            for other in list(self._lanes.values()):
                if number in other.failed:
                    raise other.failed[number].with_traceback(None)
            known = next((other.plans[number] for other in list(self._lanes.values()) if number in other.plans), None)
            if known is None:
                raise LookupError(f"plan {number} of {self.table.engine} is not defined")
            kept.plans[number] = self._made(known.program, known.example, allowed, lane)
        plan = kept.plans[number]
        given = plan.given(payload)
        plan.set(plan.settings_of(given), given)

    def _plan(self, payload: bytes, lane: Lane) -> _Plan:
        (number,) = self.table.execute.struct.unpack_from(payload)
        kept = self._kept(lane)
        if number in kept.failed:
            raise kept.failed[number].with_traceback(None)
        return kept.plans[number]

    def _execute(self, command: Command, lane: Lane) -> None:
        plan = self._plan(command.payload, lane)
        given = plan.given(command.payload)
        plan.set(plan.settings_of(given), given)
        lane.weigh(command.ticket, plan.entries)
        with lane.calling:
            status = plan.run(given)
        if status:
            failed, plan.failed = plan.failed, None
            raise self._note_failed(plan, self.refused(plan, status, failed, lane), command.payload, lane)

    def _note_failed(self, plan: _Plan, error: Exception, payload: bytes, lane: Lane) -> Exception:
        """Return the error of an execution. If the plan has a state, all later executions get it too."""
        if plan.program.moves:
            (number,) = self.table.execute.struct.unpack_from(payload)
            self._kept(lane).failed[number] = error
            if plan.may_be_hot:
                self.services.forget_hot()
        return error

    def hot_call(self, verb: int, payload: bytes, lane: Lane, places: Sequence[int] = ()) -> Ready | None:
        """Return an execution of a plan that exists, ready to be made; see `RepeatingEngine`."""
        kept = self._lanes.get(lane.index)
        (number,) = self.table.execute.struct.unpack_from(payload)
        plan = None if kept is None else kept.plans.get(number)
        if verb != self.table.execute.number or kept is None or plan is None or number in kept.failed:
            return None
        given = plan.given(payload)
        changing = self._changing(plan, places)
        if changing is None or (changing.scalars and any(each.choices for each in plan.calls)):
            return None
        call = self._with_words(plan, given, changing) if places else self._unchanged(plan, given)
        plan.may_be_hot = True
        weighs = plan.entries > ENTRIES_OF_A_CALL

        def prepare() -> None:
            if number in kept.failed:
                raise kept.failed[number].with_traceback(None)
            if weighs:
                lane.weigh(lane.made_now, plan.entries)

        def refused(bound: PlanCall, status: int) -> Exception:
            return self._note_failed(plan, self.refused(plan, status, bound, lane), payload, lane)

        def error_of(status: int) -> Exception:
            first = plan.sets[0] if plan.sets_anew(changing) else plan.calls[0].of(given)
            failed, plan.failed = plan.failed or first, None
            return refused(failed, status)

        def native() -> NativeCall | None:
            return plan.native(given, changing, refused, self.services.give_up)

        return made_ready(prepare, call, error_of, alone=weighs)._replace(native=native, bounded=True)

    def _unchanged(self, plan: _Plan, given: Given) -> Callable[[RecordWords], int]:
        """Return an execution that is the same each time."""
        settings = plan.settings_of(given)
        call = functools.partial(plan.run, given) if plan.makes_anew else plan.bound(given)

        def execute(_words: RecordWords) -> int:
            if plan.settings != settings:
                plan.set(settings, given)
            return call()

        return execute

    def _changing(self, plan: _Plan, places: Sequence[int]) -> Changing | None:
        """Return what the words at these places of a record are; None if one is not a whole address, nor a scalar."""
        count = plan.program.addresses
        addresses: dict[int, int] = {}
        scalars: list[tuple[int, int]] = []
        for index, place in enumerate(places):
            at, rest = divmod(place - PLACE_OF_ADDRESSES, WORD)
            if at >= count:
                scalars.append((index, place - PLACE_OF_ADDRESSES - WORD * count))
            elif at < 0 or rest:
                return None
            else:
                addresses[at] = index
        return Changing(addresses, scalars)

    def _with_words(self, plan: _Plan, constant: Given, changing: Changing) -> Callable[[RecordWords], int]:
        """Return an execution whose addresses and scalars are, in part, the words that come with each."""
        addresses = list(constant.addresses)
        given = constant._replace(addresses=addresses)

        def change(words: RecordWords) -> None:
            for at, index in changing.addresses.items():
                addresses[at] = words[index]
            for index, offset in changing.scalars:
                _SCALAR.pack_into(given.scalars, offset, words[index])

        return plan.varied(given, change)

    def _drop(self, command: Command, lane: Lane) -> None:
        (number,) = self.table.drop.struct.unpack(command.payload)
        kept = self._kept(lane)
        kept.failed.pop(number, None)
        plan = kept.plans.pop(number, None)
        if plan is not None:  # or it could not be made
            if plan.may_be_hot:
                self.services.forget_hot()
            if plan.has_memory:  # at once, but not here: the driver may wait for what runs in other lanes
                wait = functools.partial(lane.ask, self.driver.cuStreamSynchronize.status)
                self.services.give_back([wait, plan.destroy])
            else:
                kept.dropped.append((command.ticket - 1, plan))
        kept.collect(lane.finished)

    def _open_ahead(self, command: Command, lane: Lane) -> None:
        self.bound(min(self.table.functions))
        self.handle(lane)

    def forget_lane(self, index: int) -> list[Callable[[], object]]:
        """Forget what a lane has that is closed, and return the calls that give it back."""
        kept = self._lanes.pop(index, None)
        if kept is None:
            return []
        calls = kept.close()
        if kept.handle is not None and self._handles is not None:
            calls.append(functools.partial(self._destroy, kept.handle))
        return calls

    def _destroy(self, handle: Any) -> None:
        assert self._handles is not None
        with self.services.capture_turns.synchronize():
            self._handles.destroy(handle)

    def close(self) -> None:
        """Give everything back."""
        for index in list(self._lanes):
            for call in self.forget_lane(index):
                call()
        if self._handle is not None:
            self._destroy(self._handle)
            self._handle = None
        if self._arranging is not None:
            self._arranging.close()
        self.kernels.close()
