"""The actor of a world: it makes one epoch after the other, and publishes what waits.

It is a task of the group. A request is published by its caller when it is the next one and every member takes it; else
it waits in the queue, which outlives the epochs.
"""

from __future__ import annotations

import collections
import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs
import outcome
import trio

from ..._generation.core import DeviceCore, DevicePart
from ..._generation.settler import TURN_SECONDS, Settler, error_of
from ..._supervision.realtime import Patience
from ..._supervision.states import RequestState
from ..._values.errors import (
    CommandFailed,
    ContextLost,
    DeviceClosed,
    DeviceError,
    DeviceFailed,
    InvalidArgument,
    LibraryNotFound,
    RequestError,
    fresh,
)
from ..._values.events import EpochBegan
from ..._values.util import known, shown
from ..._wire.protocol import counter_word
from ..lanes.verbs import Lane, Lanes
from .epochs import Epoch
from .questions import Deadline, Question
from .ready import ReadyPart
from .records import ENVIRONMENT, INIT, UNIQUE_ID, WARM
from .registration import REGISTRATION

if TYPE_CHECKING:
    from ..._generation.generation import Generation
    from ..._generation.group import Group
    from ..._generation.peers import Wish
    from ..._generation.timeline import LaunchOwner
    from .collectives import Collective, Part, Published
    from .ready import ReadyCall

INIT_SECONDS = 60.0
"""The time that the members have to make a communicator, in seconds; then the attempt is given up."""
MOST_ATTEMPTS: Final = 5
"""So many attempts in a row may fail while no member is lost."""
GLANCE_SECONDS = 45e-6
"""The seconds for which a task that is alone looks for the end of a collective between two turns. The shortest one ends
20 to 35 µs after it was sent, on two GPUs. If the glance ended before, the turn behind it would see that 7 µs late."""
_LOOKS: Final = 5
"""How often a collective is looked at within the time that it may take."""
_FIRST_PAUSE: Final = 0.05
"""The pause behind the first of them, in seconds; each further one is twice as long."""


class WorldDevice(DevicePart):
    """What a device has because it is a member of worlds: a lane for collectives, and standbys that know NCCL."""

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self.environment: Environment | None = None
        """The variables that its workers set before they load NCCL; None before its first world."""
        self.worlds: list[WorldActor] = []
        """The open worlds that it is a member of."""
        self._lane: Lane | None = None

    @property
    def lane(self) -> int:
        """The number of the lane of all its collectives."""
        assert self._lane is not None
        return self._lane._number

    def enter(self, world: WorldActor) -> None:
        """Note a world. Raises `InvalidArgument` if no lane is left."""
        if self._lane is None:
            self._lane = self.device.part(Lanes).open(self.device.info.highest_priority, ordered=True)
        self.worlds.append(world)
        if len(self.worlds) == 1:
            for standby in self.device.standbys.generations:
                self.warm(standby)

    def leave(self, world: WorldActor) -> None:
        """Forget a world."""
        self.worlds.remove(world)
        self.device.announce()
        if not self.worlds and self._lane is not None:
            self._lane._close()
            self._lane = None

    @property
    def hurried(self) -> bool:
        """True while a world makes its next communicator: that takes three times as long beside a start."""
        return any(not world.epoch_up for world in self.worlds)

    @property
    def libraries(self) -> tuple[str, ...]:
        """NCCL, whose file is large."""
        return (REGISTRATION.name,) if self.worlds else ()

    def warm(self, standby: Generation) -> None:
        """Have a standby load NCCL, and make a communicator of itself alone."""
        if self.worlds and standby.ready:
            self.equip(standby)
            Question(standby, WARM)

    def equip(self, generation: Generation) -> None:
        """Give a worker the environment of NCCL."""
        environment = known(self.environment, "a member of a world has one")
        generation.sender.send_control(ENVIRONMENT, json.dumps(attrs.asdict(environment), sort_keys=True).encode())


class _NotMade(Exception):
    """An attempt to make a communicator has failed."""

    def __init__(self, error: DeviceError) -> None:
        super().__init__(str(error))
        self.error = error


class WorldActor:
    """A world, as the layers below its public face see it."""

    def __init__(self, group: Group, cores: Sequence[DeviceCore], name: str) -> None:
        self.group: Group = group
        self.cores: tuple[DeviceCore, ...] = tuple(cores)
        self.name: str = name
        self.number: int = 0
        """The number of the newest epoch that all members have begun."""
        self.ended: DeviceError | None = None
        """The error of every request, once the world takes none any more."""
        self._changed: trio.Event | None = None
        """What tasks wait for that wait for a change; None while there are none."""
        self._epoch: Epoch | None = None
        self._queue: collections.deque[Published] = collections.deque()
        self._work = trio.Event()
        self._scope = trio.CancelScope()
        self._entered = False

    @property
    def epoch_up(self) -> bool:
        """True if collectives can run right now."""
        return self.epoch is not None

    @property
    def epoch(self) -> Epoch | None:
        """The epoch in which collectives can run right now."""
        return self._epoch if self._epoch is not None and self._epoch.up else None

    @property
    def lanes(self) -> list[int]:
        """The lane of each member's collectives."""
        return [core.part(WorldDevice).lane for core in self.cores]

    def check_open(self) -> None:
        """Raise the error of a world that takes no requests."""
        for core in self.cores:
            core.check_open()
        if self.ended is not None:
            raise fresh(self.ended)

    # --- its life -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the actor. Raises `InvalidArgument` if a member has no lane left."""
        entered: list[WorldDevice] = []
        try:
            for core in self.cores:
                part = core.part(WorldDevice)
                part.enter(self)
                entered.append(part)
        except BaseException:
            for part in entered:
                part.leave(self)
            raise
        self._entered = True
        self.group.ends.append(self._block_left)
        self.group.start_soon(self._run, self.name)
        if self._limit is not None:
            self.group.start_soon(self._watch, f"{self.name}.watch")

    @property
    def _limit(self) -> float | None:
        """The shortest `hang_timeout` of the members, in seconds; None if none has one."""
        limits = [core.options.hang_timeout for core in self.cores if core.options.hang_timeout is not None]
        return min(limits, default=None)

    async def _watch(self) -> None:
        """End an epoch in which a collective hangs, though every member could have done its part."""
        limit = known(self._limit, "it was asked for")
        while self.ended is None:
            await Patience(min(1.0, limit / _LOOKS)).readable()
            if self._epoch is not None:
                self._epoch.watch(time.monotonic(), limit)

    def _block_left(self) -> None:
        self._end(DeviceClosed("the block of the group was left, and with it the world was closed"))

    def close(self) -> None:
        """End the world. What is under way is lost, what waits is refused."""
        self._end(InvalidArgument(f"{self.name} was closed"))
        if self._block_left in self.group.ends:
            self.group.ends.remove(self._block_left)

    def _end(self, error: DeviceError) -> None:
        if self.ended is not None:
            return
        self.ended = error
        epoch, self._epoch = self._epoch, None
        if epoch is not None and not self.group.ended:  # else its collectives may finish
            epoch.close()
        self._scope.cancel(reason=f"{self.name} was closed")
        while self._queue:
            collective = self._queue.popleft()
            if collective.open:
                collective.settle(outcome.Error(fresh(error)))
        if self._entered:
            self._entered = False
            for core in self.cores:
                core.part(WorldDevice).leave(self)
        self.announce()

    def announce(self) -> None:
        """Wake every task that waits for a change."""
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()

    async def wait_changed(self) -> None:
        """Wait until an epoch begins or ends, the world ends, or nothing waits or is under way any more."""
        if self._changed is None:
            self._changed = trio.Event()
        await self._changed.wait()

    @property
    def idle(self) -> bool:
        """True if nothing waits and nothing is under way."""
        return not self._queue and (self._epoch is None or self._epoch.idle)

    async def _run(self) -> None:
        with self._scope:
            try:
                failures = 0
                since = time.monotonic()
                while True:
                    generations = await self._running()
                    running = time.monotonic()
                    epoch = self._epoch = Epoch(
                        self.group, self.cores, generations, self.name, self.number + 1, self.announce
                    )
                    refused: DeviceError | None = None
                    with epoch.scope:
                        epoch.begin()
                        try:
                            await self._make(epoch)
                        except _NotMade as attempt:
                            refused = attempt.error
                        else:
                            failures = 0
                            self._tell(epoch, since, running)
                            await self._serve(epoch)
                    if epoch.number == self.number:
                        since = time.monotonic()
                    if refused is not None:
                        failures += 1
                        await self._give_up(epoch, refused, failures)
            except (DeviceClosed, DeviceFailed, LibraryNotFound, RequestError) as error:
                self._end(error)
            except Exception as bug:
                self._end(CommandFailed(f"the actor of {self.name} crashed: {bug!r}", operation="world"))
                raise

    def _tell(self, epoch: Epoch, since: float, running: float) -> None:
        """Tell that an epoch has begun, and how long that took since the last one."""
        seconds, members = time.monotonic() - since, running - since
        event = EpochBegan(world=self.name, epoch=epoch.number, seconds=seconds, members_seconds=members)
        self.group.publish(event)

    async def _running(self) -> list[Generation]:
        """Wait until every member has a generation in service, and return them."""
        while True:
            generations = [await core.running_generation() for core in self.cores]
            if not any(each.refusing for each in generations):
                return generations

    async def _give_up(self, epoch: Epoch, error: DeviceError, failures: int) -> None:
        """End an attempt that has failed, and wait before the next one. Raises its error if there is to be none."""
        epoch.close()
        await epoch.wait_aborted()
        if isinstance(error, LibraryNotFound) or failures >= MOST_ATTEMPTS:
            raise error
        await trio.sleep(_FIRST_PAUSE * 2 ** (failures - 1))

    # --- an epoch -----------------------------------------------------------------------------------------------------

    async def _make(self, epoch: Epoch) -> None:
        """Make the communicator. Raises `_NotMade`."""
        size = len(self.cores)
        if size > 1:
            for core, generation in zip(self.cores, epoch.generations, strict=True):
                core.part(WorldDevice).equip(generation)
            asked = Question(epoch.generations[0], UNIQUE_ID, told=self._teller(epoch))
            await self._answers(epoch, [asked])
            assert asked.answer is not None
            unique_id = bytes.fromhex(asked.answer["id"])
            questions = [
                Question(generation, INIT, epoch.communicator, rank, size, tail=unique_id, told=self._teller(epoch))
                for rank, generation in enumerate(epoch.generations)
            ]
            await self._answers(epoch, questions)
        self.number = epoch.number
        epoch.up = True
        self.announce()
        for core in self.cores:
            core.announce()

    def _teller(self, epoch: Epoch) -> Callable[[], None]:
        def tell() -> None:
            told, epoch.told = epoch.told, trio.Event()
            told.set()

        return tell

    async def _answers(self, epoch: Epoch, questions: Sequence[Question]) -> None:
        """Wait for all answers. Raises `_NotMade` for one that is a failure, and when the time is over."""
        late = False

        def missed() -> None:
            nonlocal late
            late = True
            self._teller(epoch)()

        deadline = Deadline(self.group, INIT_SECONDS, missed, f"{self.name}.deadline")
        try:
            while True:
                for question in questions:
                    if question.failure is not None:
                        raise _NotMade(error_of(question.generation, f"{self.name}.init", question.failure))
                if all(question.answer is not None for question in questions):
                    return
                if late:
                    silent = [each.generation.device for each in questions if each.answer is None]
                    text = f"devices {silent} have not made a communicator of NCCL within {INIT_SECONDS:g} s"
                    raise _NotMade(CommandFailed(text, operation=f"{self.name}.init"))
                await epoch.told.wait()
        finally:
            deadline.meet()

    async def _serve(self, epoch: Epoch) -> None:
        """Publish what waits, as long as the epoch lasts."""
        while True:
            while not self._queue:
                self._work = trio.Event()
                await self._work.wait()
            collective = self._queue[0]  # it stays there: the end of the epoch, which cancels this, loses no request
            if collective.state is RequestState.QUEUED:
                await self._begin(collective, epoch)
            self._queue.popleft()
            if not self._queue:
                self.announce()

    async def _begin(self, collective: Published, epoch: Epoch) -> None:
        try:
            await self._admit(collective, epoch)
            # Otherwise it was cancelled while it waited, and never runs.
            if collective.state is RequestState.QUEUED:
                collective.publish(epoch)
        except ContextLost:  # of a member, while its memory was made: the epoch has ended, or is about to
            await trio.sleep_forever()
        except DeviceError as refused:
            if collective.open:
                collective.settle(outcome.Error(refused))

    async def _admit(self, collective: Published, epoch: Epoch) -> None:
        """Wait until every member takes its part."""
        with contextlib.ExitStack() as turns:
            wishes: dict[Part, Wish] = {}
            while collective.state is RequestState.QUEUED:
                blocked = None
                for part in collective.commands:
                    if not part.exists:
                        await part.prepare()
                        break
                    if not epoch.generations[part.rank].admission.takes(part, wishes.get(part)):
                        blocked = part
                        break
                else:
                    return
                if blocked is not None:
                    self._take_turns(collective, epoch, wishes, turns)
                    await epoch.generations[blocked.rank].admission.wait_room(blocked.lane)

    def _take_turns(
        self, collective: Published, epoch: Epoch, wishes: dict[Part, Wish], turns: contextlib.ExitStack
    ) -> None:
        """Wait in turn for work of other devices, with all parts at once: else two could wait in a circle."""
        admissions = {part: epoch.generations[part.rank].admission for part in collective.commands}
        if not wishes and any(
            each.peers is not None and each.peers.blocked(part.accesses()) for part, each in admissions.items()
        ):
            for part, each in admissions.items():
                if each.peers is not None:
                    wishes[part] = turns.enter_context(each.peers.wishing(part.accesses()))
        for part in wishes:
            peers = admissions[part].peers
            if peers is not None:
                peers.press(part.accesses())

    # --- requests -----------------------------------------------------------------------------------------------------

    def begin_now(self, collective: Published) -> bool:
        """Publish a request if it is the next one and every member takes it. Raises what refuses it."""
        epoch = self._epoch
        if epoch is None or not epoch.up or self._queue or not collective.admitted(epoch):
            return False
        collective.publish(epoch)
        return True

    @trio.lowlevel.enable_ki_protection
    async def ask(self, collective: Published) -> None:
        """Publish a request, or let it wait for its turn, and wait for its end."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self.check_open()
        if self.begin_now(collective):
            await self._wait_for(collective)
        else:
            self._queue.append(collective)
            self._work.set()
            await collective.wait()

    def begin_ready(self, call: ReadyCall, given: tuple[object, ...], *, heard: bool) -> Collective | None:
        """Publish a call by the short way; return None, with no effect, if it must go the general way."""
        epoch = self._epoch
        if epoch is None or call.epoch is not epoch or not epoch.up or self._queue:
            return None
        return call.begin(given, heard=heard)

    @trio.lowlevel.enable_ki_protection
    async def ask_ready(self, call: ReadyCall, given: tuple[object, ...]) -> Collective | None:
        """Publish a call by the short way, and wait for its end. Returns None if it must go the general way."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if (collective := self.begin_ready(call, given, heard=True)) is not None:
            await self._wait_for(collective)
        return collective

    async def _wait_for(self, collective: Collective) -> None:
        """Wait for the end of a request that was just published, and poll for it as long as that is worthwhile.

        As `Settler.look` does it, for all members at once.
        """
        looking: list[_Looking] = []
        places = []
        for part in collective.parts:
            generation, (lane, ticket) = known(part.generation, "it was published"), part.place
            places.append((generation.page.words, counter_word(lane), ticket))
            settler = generation.settler
            if settler.begin_looking():
                looking.append((settler, part if isinstance(part, ReadyPart) else None, lane, *settler.alone(lane)))
        clock = time.perf_counter
        now = clock()
        until = now + min((each[0].patience for each in looking), default=0.0)
        try:
            while looking:
                before = now
                await trio.lowlevel.checkpoint()
                now = clock()
                if not collective.open or now > until or _all_reached(places):
                    break
                if now - before < TURN_SECONDS:
                    glances_until, reached = now + GLANCE_SECONDS, False
                    while now < glances_until and not reached:
                        reached = _all_reached(places)
                        now = clock()
                    if reached:
                        break
            else:
                await trio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            collective.give_up()
            raise
        finally:
            settled = _end_looking(collective, looking)
        if not settled and (collective.open or collective.answered):
            await collective.wait()

    def ask_nowait(self, collective: Published) -> None:
        """Publish a request now, whose end nobody waits for. Raises `trio.WouldBlock` if it would have to wait."""
        self.check_open()
        if not self.begin_now(collective):
            raise self._refusal(collective)
        collective.give_up()

    def _refusal(self, collective: Published) -> trio.WouldBlock:
        epoch = self._epoch
        if epoch is None or not epoch.up:
            return trio.WouldBlock(f"{self.name} is between two epochs: use the awaited form, which waits for the next")
        if self._queue:
            return trio.WouldBlock(f"other requests of {self.name} wait: use the awaited form, which waits behind them")
        for part in collective.commands:
            if not part.exists:
                return trio.WouldBlock("memory of the arrays must be made first: use the awaited form")
            admission = epoch.generations[part.rank].admission
            if not admission.takes(part):
                return admission.refusal(part)
        raise AssertionError("a request that every member takes was refused")


_Looking: TypeAlias = "tuple[Settler, ReadyPart | None, int, Callable[[LaunchOwner, int], bool], Callable[[], None]]"
"""What a task polls for: a part of a collective, the lane, and what `Settler.alone` returns for that."""


def _end_looking(collective: Collective, looking: Sequence[_Looking]) -> bool:
    """Settle what has ended. A collective that has ended on all members is settled at once, not part by part.

    Returns true if it was, and has nothing to tell.
    """
    if len(looking) == len(collective.parts) and not collective.lost:
        for _, part, _, ended, _ in looking:
            if part is None or part.borrowed or not ended(part, 1):
                break
        else:
            for _, part, _, _, end in looking:
                assert part is not None
                part.over = True
                end()
            return collective.over()
    for settler, part, lane, _, _ in looking:
        settler.end_looking(part, lane)
    return False


def _all_reached(places: Sequence[tuple[memoryview[int], int, int]]) -> bool:
    for words, counter, ticket in places:  # noqa: SIM110  no generator: it is asked again and again
        if words[counter] < ticket:
            return False
    return True


@attrs.frozen
class Environment:
    """Variables of the environment for NCCL, which reads them once in the life of a process."""

    defaults: dict[str, str]
    """Those that count unless the program's own environment has them."""
    given: dict[str, str]
    """Those that the program has given."""


def check_environment(settings: Mapping[str, object] | None, *, deterministic: object) -> Environment:
    """Return the variables for NCCL by `nccl=`, whose names have no prefix. Raises `InvalidArgument`."""
    if type(deterministic) is not bool:
        raise InvalidArgument(f"deterministic is True or False, not {shown(deterministic)}")
    defaults = {"NCCL_RAS_ENABLE": "0", "NCCL_RUNTIME_CONNECT": "0"}
    if deterministic:
        defaults |= {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
    return Environment(defaults, _given_environment(settings))


def _given_environment(settings: object) -> dict[str, str]:
    """Return the variables that a program has given. Raises `InvalidArgument`."""
    if settings is None:
        return {}
    if not isinstance(settings, Mapping):
        raise InvalidArgument(f'nccl is a mapping such as {{"SOCKET_IFNAME": "eth0"}}, not {settings!r}')
    given = {}
    for name, value in settings.items():
        if not isinstance(name, str):
            raise InvalidArgument(f"nccl has names of variables, not {shown(name)}")
        plain = name.isascii() and name.replace("_", "").isalnum() and name.isupper()
        if not plain or name.startswith("NCCL_"):
            raise InvalidArgument(
                f'nccl has names of variables without the prefix, such as "SOCKET_IFNAME", not {name!r}'
            )
        if isinstance(value, bool) or not isinstance(value, str | int) or "\0" in str(value):
            raise InvalidArgument(f"the variable NCCL_{name} is a str or an int, not {value!r}")
        given[f"NCCL_{name}"] = str(value)
    return given
