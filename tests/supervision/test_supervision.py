"""The supervision state machine: tables of events in, decisions out. No clock runs here."""

import ast
import inspect
import itertools
import math
import random

import attrs
import pytest
from hypothesis import given, settings, strategies as st

from atomr_trio._supervision import policy
from atomr_trio._supervision.policy import (
    TRANSITIONS,
    Event,
    GiveUp,
    LoseContext,
    Rebuild,
    RestartActor,
    RestartPolicy,
    RestartWindow,
    StayDown,
    Supervision,
)
from atomr_trio._values.state import DeviceState

STARTING, RUNNING, REBUILDING = DeviceState.STARTING, DeviceState.RUNNING, DeviceState.REBUILDING
CLOSING, CLOSED, FAILED = DeviceState.CLOSING, DeviceState.CLOSED, DeviceState.FAILED


def machine(*, jitter=0.0, **policy):
    """A machine whose random number is always 0.5."""
    return Supervision(RestartPolicy(jitter=jitter, **policy), random=lambda: 0.5)


def feed(supervision, event, now=0.0):
    """Send an event of the table below; the reason is always "why"."""
    kind, *arguments = event.split()
    calls = {
        "start": lambda: supervision.started(now),
        "lose": lambda: supervision.lost(now, "why", gone=bool(arguments)),
        "fail": lambda: supervision.start_failed(now, "why", gone=bool(arguments)),
        "crash": lambda: supervision.actor_crashed(*(arguments or ["blas"]), now, "why"),
        "closing": supervision.closing,
        "closed": supervision.closed,
    }
    return calls[kind]()


SPENT = GiveUp("the context needed more than 3 restarts within 60 s; the last reason: why", "restart_policy")

# Each row: time, event, the answer, the state and the generation afterwards.
SEQUENCES = {
    "a quiet life": [
        (0, "start", 1, RUNNING, 1),
        (5, "closing", None, CLOSING, 1),
        (6, "closed", None, CLOSED, 1),
    ],
    "the first start fails: the caller gets the error, nothing is retried": [
        (0, "fail", GiveUp("why"), FAILED, 0),
        (0, "closed", None, FAILED, 0),
    ],
    "a running generation is rebuilt at once": [
        (0, "start", 1, RUNNING, 1),
        (10, "lose", Rebuild(0.0), REBUILDING, 1),
        (11, "start", 2, RUNNING, 2),
        (12, "lose", Rebuild(0.0), REBUILDING, 2),
        (13, "start", 3, RUNNING, 3),
    ],
    "failed starts wait longer each time and use up the budget": [
        (0, "start", 1, RUNNING, 1),
        (1, "lose", Rebuild(0.0), REBUILDING, 1),
        (2, "fail", Rebuild(0.1), REBUILDING, 1),
        (3, "fail", Rebuild(0.2), REBUILDING, 1),
        (
            4,
            "fail",
            SPENT,
            FAILED,
            1,
        ),
    ],
    "a start that works resets the wait, not the budget": [
        (0, "start", 1, RUNNING, 1),
        (1, "lose", Rebuild(0.0), REBUILDING, 1),
        (2, "fail", Rebuild(0.1), REBUILDING, 1),
        (3, "start", 2, RUNNING, 2),
        (4, "lose", Rebuild(0.0), REBUILDING, 2),
        (5, "fail", SPENT, FAILED, 2),
    ],
    "old restarts are forgotten": [
        (0, "start", 1, RUNNING, 1),
        *itertools.chain.from_iterable(
            [(now, "lose", Rebuild(0.0), REBUILDING, n), (now, "start", n + 1, RUNNING, n + 1)]
            for n, now in enumerate(range(0, 300, 21), start=1)
        ),
    ],
    "hardware that is gone is not tried again": [
        (0, "start", 1, RUNNING, 1),
        (1, "lose gone", GiveUp("why"), FAILED, 1),
    ],
    "hardware that goes during the rebuild is not tried again": [
        (0, "start", 1, RUNNING, 1),
        (1, "lose", Rebuild(0.0), REBUILDING, 1),
        (2, "fail gone", GiveUp("why"), FAILED, 1),
    ],
    "an actor restarts three times, then costs the context": [
        (0, "start", 1, RUNNING, 1),
        (1, "crash blas", RestartActor(), RUNNING, 1),
        (2, "crash blas", RestartActor(), RUNNING, 1),
        (3, "crash blas", RestartActor(), RUNNING, 1),
        (3, "crash fft", RestartActor(), RUNNING, 1),
        (
            4,
            "crash blas",
            LoseContext("actor blas needed more than 3 restarts within 60 s; the last reason: why"),
            RUNNING,
            1,
        ),
        (4, "lose", Rebuild(0.0), REBUILDING, 1),
        (5, "start", 2, RUNNING, 2),
        (6, "crash blas", RestartActor(), RUNNING, 2),
    ],
    "actors that crash apart in time never cost the context": [
        (0, "start", 1, RUNNING, 1),
        *[(now, "crash blas", RestartActor(), RUNNING, 1) for now in range(0, 300, 21)],
    ],
    "an actor that crashes on its way out of a lost generation is not restarted": [
        (0, "start", 1, RUNNING, 1),
        (1, "lose", Rebuild(0.0), REBUILDING, 1),
        *[(1, "crash blas", StayDown(), REBUILDING, 1)] * 9,
        (2, "start", 2, RUNNING, 2),
        (3, "crash blas", RestartActor(), RUNNING, 2),
    ],
    "whatever breaks while closing stays down": [
        (0, "start", 1, RUNNING, 1),
        (1, "closing", None, CLOSING, 1),
        (1, "crash blas", StayDown(), CLOSING, 1),
        (1, "lose gone", StayDown(), CLOSING, 1),
        (1, "fail", StayDown(), CLOSING, 1),
        (2, "closed", None, CLOSED, 1),
    ],
    "whatever breaks after giving up stays down, and the state still says failed": [
        (0, "start", 1, RUNNING, 1),
        (1, "lose gone", GiveUp("why"), FAILED, 1),
        (1, "lose", StayDown(), FAILED, 1),
        (1, "fail", StayDown(), FAILED, 1),
        (1, "crash", StayDown(), FAILED, 1),
        (2, "closing", None, FAILED, 1),
        (3, "closed", None, FAILED, 1),
    ],
    "closing while rebuilding": [
        (0, "start", 1, RUNNING, 1),
        (1, "lose", Rebuild(0.0), REBUILDING, 1),
        (2, "closing", None, CLOSING, 1),
        (3, "closed", None, CLOSED, 1),
    ],
}


@pytest.mark.parametrize("rows", SEQUENCES.values(), ids=SEQUENCES.keys())
def test_sequences(rows):
    supervision = machine()
    assert (supervision.state, supervision.generation) == (STARTING, 0)
    for now, event, answer, state, generation in rows:
        assert feed(supervision, event, now) == answer, (now, event)
        assert (supervision.state, supervision.generation) == (state, generation), (now, event)
    assert supervision.failed is (supervision.state is FAILED)


# How to come into each state, and which of the events above are legal there.
WAYS = {
    STARTING: [],
    RUNNING: ["start"],
    REBUILDING: ["start", "lose"],
    CLOSING: ["start", "closing"],
    CLOSED: ["start", "closing", "closed"],
    FAILED: ["start", "lose gone"],
}
LEGAL = {
    STARTING: {"start", "fail", "closing", "closed"},
    RUNNING: {"lose", "crash", "closing", "closed"},
    REBUILDING: {"start", "fail", "crash", "closing", "closed"},
    CLOSING: {"lose", "fail", "crash", "closed"},
    CLOSED: set(),
    FAILED: {"lose", "fail", "crash", "closing", "closed"},
}
NAMES = {
    "start": Event.STARTED,
    "lose": Event.LOST,
    "fail": Event.START_FAILED,
    "crash": Event.ACTOR_CRASHED,
    "closing": Event.CLOSING,
    "closed": Event.CLOSED,
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(DeviceState, NAMES)))
def test_an_event_is_taken_where_it_is_legal_and_refused_unchanged_elsewhere(state, event):
    supervision = machine()
    for step in WAYS[state]:
        feed(supervision, step)
    assert supervision.state is state
    if event in LEGAL[state]:
        feed(supervision, event)
        return
    before = (supervision.state, supervision.generation, supervision.reason, supervision.restarts_left(0.0))
    with pytest.raises(ValueError, match=f"event {NAMES[event].name} is not legal in state {state.name}"):
        feed(supervision, event)
    assert (supervision.state, supervision.generation, supervision.reason, supervision.restarts_left(0.0)) == before


def test_the_table_is_complete_and_every_state_can_be_reached_and_left():
    assert set(TRANSITIONS) == set(DeviceState)
    reached = {following for events in TRANSITIONS.values() for following in events.values()}
    assert reached == set(DeviceState) - {STARTING}
    for state in (STARTING, RUNNING, REBUILDING, CLOSING):
        assert set(TRANSITIONS[state].values()) - {state}


def test_giving_up_for_another_reason_is_possible_while_the_device_lives():
    supervision = machine()
    supervision.started(0)
    assert supervision.fail("a bug in the supervisor") == GiveUp("a bug in the supervisor")
    assert (supervision.state, supervision.reason) == (FAILED, "a bug in the supervisor")
    with pytest.raises(ValueError, match="GIVEN_UP is not legal in state FAILED"):
        supervision.fail("again")


def test_the_reason_is_that_of_the_newest_failure():
    supervision = machine()
    assert supervision.reason is None
    supervision.started(0)
    supervision.actor_crashed("blas", 1, "ZeroDivisionError")
    assert supervision.reason == "actor blas crashed: ZeroDivisionError"
    supervision.lost(2, "illegal address")
    assert supervision.reason == "illegal address"
    supervision.start_failed(3, "cuInit said no", gone=False)
    assert supervision.reason == "cuInit said no"


def test_restarts_left_counts_down_and_recovers():
    supervision = machine()
    supervision.started(0)
    assert supervision.restarts_left(0) == 3
    supervision.lost(0, "why")
    assert supervision.restarts_left(0) == 2
    supervision.start_failed(30, "why", gone=False)
    assert (supervision.restarts_left(30), supervision.restarts_left(61)) == (1, 2)
    assert supervision.restarts_left(91) == 3


def test_next_generation_is_the_number_that_the_start_then_returns():
    supervision = machine()
    assert supervision.next_generation == supervision.started(0) == 1
    supervision.lost(0, "why")
    supervision.start_failed(0, "why", gone=False)
    assert supervision.next_generation == supervision.started(0) == 2


def test_the_actors_have_a_policy_of_their_own():
    supervision = Supervision(RestartPolicy(), RestartPolicy(intensity=0))
    supervision.started(0)
    assert isinstance(supervision.actor_crashed("blas", 0), LoseContext)


def test_repr_says_where_the_device_is():
    supervision = machine()
    supervision.started(0)
    supervision.lost(0, "why")
    assert repr(supervision) == "<Supervision: rebuilding, generation 1, <RestartWindow: 1 of 3 in 60 s>>"


def test_backoff_doubles_to_the_maximum_with_jitter_on_top():
    policy = RestartPolicy(backoff_min=0.1, backoff_max=5.0, jitter=0.2)
    waits = [policy.backoff(n, lambda: 0.0) for n in range(1, 9)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
    assert policy.backoff(1, lambda: 0.5) == pytest.approx(0.11)
    assert policy.backoff(99, lambda: 1.0) == pytest.approx(6.0)


def test_a_device_that_never_gives_up_survives_very_many_failed_starts():
    supervision = machine(intensity=math.inf)
    supervision.started(0)
    supervision.lost(0, "why")
    for now in range(3000):
        answer = supervision.start_failed(now, "why", gone=False)
    assert answer == Rebuild(5.0)
    assert supervision.restarts_left(3000) == math.inf
    assert supervision.started(3001) == 2


BAD_POLICIES = [
    ({"intensity": -1}, ValueError),
    ({"intensity": 1.5}, ValueError),
    ({"intensity": math.nan}, ValueError),
    ({"intensity": -math.inf}, ValueError),
    ({"intensity": "3"}, TypeError),
    ({"period": 0}, ValueError),
    ({"period": -1.0}, ValueError),
    ({"period": math.nan}, ValueError),
    ({"backoff_min": -0.1}, ValueError),
    ({"backoff_max": math.inf}, ValueError),
    ({"backoff_min": 2.0, "backoff_max": 1.0}, ValueError),
    ({"jitter": -0.1}, ValueError),
    ({"jitter": 1.1}, ValueError),
    ({"jitter": None}, TypeError),
]


@pytest.mark.parametrize(("fields", "error"), BAD_POLICIES)
def test_a_policy_that_makes_no_sense_is_refused_by_the_name_of_its_field(fields, error):
    with pytest.raises(error, match=next(iter(fields))):
        RestartPolicy(**fields)


@pytest.mark.parametrize("fields", [{}, {"intensity": 0}, {"intensity": math.inf}, {"period": math.inf}, {"jitter": 0}])
def test_a_policy_that_makes_sense_is_taken_and_cannot_be_changed(fields):
    policy = RestartPolicy(**fields)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        policy.intensity = 5


def test_a_restart_exactly_one_period_old_still_counts():
    window = RestartWindow(RestartPolicy(intensity=1, period=60))
    assert window.allow(0.0)
    assert window.remaining(60.0) == 0
    assert window.remaining(60.1) == 1
    assert not window.allow(60.0)


def test_no_restart_is_allowed_with_an_intensity_of_zero():
    window = RestartWindow(RestartPolicy(intensity=0))
    assert window.remaining(0) == 0
    assert not window.allow(0)


steps = st.lists(st.floats(min_value=0, max_value=100, allow_nan=False), max_size=60)


@settings(derandomize=True)
@given(intensity=st.integers(0, 6), period=st.sampled_from([0.5, 10.0, 60.0, math.inf]), steps=steps)
def test_the_window_agrees_with_counting_the_whole_history(intensity, period, steps):
    window = RestartWindow(RestartPolicy(intensity=intensity, period=period))
    history = []
    for now in itertools.accumulate(steps):
        recent = sum(now - then <= period for then in history)
        assert window.remaining(now) == max(0, intensity - recent)
        history.append(now)
        assert window.allow(now) is (recent + 1 <= intensity)


@settings(derandomize=True)
@given(seed=st.integers(0, 2**32), length=st.integers(0, 80))
def test_any_legal_life_keeps_the_promises_of_the_machine(seed, length):
    choose = random.Random(seed)
    supervision = Supervision(RestartPolicy(intensity=choose.choice([0, 1, 3, math.inf])), random=choose.random)
    now, generation, ended = 0.0, 0, False
    for _ in range(length):
        now += choose.choice([0.0, 0.1, 10.0, 100.0])
        event = choose.choice(list(NAMES))
        before = supervision.state
        if event not in LEGAL[before]:
            continue
        answer = feed(supervision, event, now)
        # Generations count up by one, and only by a start.
        assert supervision.generation == generation + (event == "start")
        generation = supervision.generation
        # Nothing starts again once the device is ending.
        ended = ended or supervision.state in (CLOSING, CLOSED, FAILED)
        assert not (ended and isinstance(answer, Rebuild | RestartActor))
        assert not (ended and supervision.state in (STARTING, RUNNING, REBUILDING))
        # The rebuild of a running generation does not wait; every wait is within its bounds.
        if isinstance(answer, Rebuild):
            assert answer.delay == 0.0 if before is RUNNING else 0.1 <= answer.delay <= 6.0
        if isinstance(answer, GiveUp):
            assert supervision.failed


def test_the_machine_reads_no_clock_and_imports_neither_trio_nor_ctypes():
    tree = ast.parse(inspect.getsource(policy))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
    }
    assert imported <= {"attrs", "collections", "enum", "math", "random", "types", "typing"}
