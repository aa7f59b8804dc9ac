"""The state machine of a group of devices: tables of events in, decisions out. No clock runs here."""

import ast
import inspect
import itertools
import math

import pytest
from hypothesis import given, strategies as st

from atomr_trio._supervision import groups
from atomr_trio._supervision.groups import (
    TRANSITIONS,
    DropMember,
    EndGroup,
    GoOn,
    GroupSupervision,
    MemberEvent,
    MemberState,
    RestartOthers,
    default_policy,
)
from atomr_trio._supervision.policy import GiveUp, RestartPolicy

RUNNING, REBUILDING, FAILED = MemberState.RUNNING, MemberState.REBUILDING, MemberState.FAILED
STATES = {"R": RUNNING, "B": REBUILDING, "F": FAILED}


def machine(strategy="one_for_one", members=3, on_device_failed="end", **policy):
    return GroupSupervision(members, strategy, RestartPolicy(**policy), on_device_failed)


def feed(group, event, now=0.0):
    """Send an event of the tables below; the reason is always "why"."""
    kind, member, *more = event.split()
    calls = {
        "lose": lambda: group.lost(int(member), now, "why", free="free" in more),
        "fail": lambda: group.start_failed(int(member), now, "why"),
        "start": lambda: group.started(int(member)),
        "give-up": lambda: group.failed(int(member)),
    }
    return calls[kind]()


def spent(intensity):
    budget = f"{intensity} restarts within 60 s"
    return GiveUp(f"the devices of the group together needed more than {budget}; the last reason: why", "group_policy")


# Each row: time, event, the answer, and the states of the members afterwards.
SEQUENCES = {
    "one for one: the others are left alone": (
        {},
        [(0, "lose 1", GoOn(), "RBR"), (1, "start 1", None, "RRR")],
    ),
    "all for one: every other member is restarted, whichever was lost": (
        {"strategy": "all_for_one"},
        [
            (0, "lose 1", RestartOthers((0, 2)), "BBB"),
            (0, "lose 0 free", GoOn(), "BBB"),
            (0, "lose 2 free", GoOn(), "BBB"),
            (1, "start 2", None, "BBR"),
            (1, "start 0", None, "RBR"),
            (1, "start 1", None, "RRR"),
            (2, "lose 2", RestartOthers((0, 1)), "BBB"),
        ],
    ),
    "rest for one: those listed after it are restarted": (
        {"strategy": "rest_for_one"},
        [
            (0, "lose 1", RestartOthers((2,)), "RBB"),
            (0, "lose 2 free", GoOn(), "RBB"),
            (1, "start 2", None, "RBR"),
            (1, "start 1", None, "RRR"),
            (2, "lose 2", GoOn(), "RRB"),
            (3, "lose 0", RestartOthers((1,)), "BBB"),
        ],
    ),
    "losses that come together are one: each member is restarted once": (
        {"strategy": "all_for_one"},
        [
            (0, "lose 0", RestartOthers((1, 2)), "BBB"),
            (0, "lose 1", GoOn(), "BBB"),
            (0, "lose 2 free", GoOn(), "BBB"),
            (1, "start 0", None, "RBB"),
            (1, "start 1", None, "RRB"),
            (1, "start 2", None, "RRR"),
        ],
    ),
    "a member that is back may be ordered again while others still rebuild": (
        {"strategy": "all_for_one"},
        [
            (0, "lose 0", RestartOthers((1, 2)), "BBB"),
            (1, "start 1", None, "BRB"),
            (2, "lose 1", GoOn(), "BBB"),
            (3, "start 2", None, "BBR"),
            (3, "start 1", None, "BRR"),
            (4, "lose 1", RestartOthers((2,)), "BBB"),
        ],
    ),
    "a deliberate restart is a loss for the strategy, and none for the budget": (
        {"strategy": "all_for_one", "intensity": 0},
        [(0, "lose 0 free", RestartOthers((1, 2)), "BBB"), (0, "lose 1 free", GoOn(), "BBB")],
    ),
    "the budget counts the losses of all members": (
        {"intensity": 2},
        [
            (0, "lose 0", GoOn(), "BRR"),
            (1, "start 0", None, "RRR"),
            (1, "lose 1", GoOn(), "RBR"),
            (2, "start 1", None, "RRR"),
            (2, "lose 2", spent(2), "RRB"),
            (2, "give-up 2", EndGroup(), "RRF"),
        ],
    ),
    "a restart that the strategy ordered costs nothing, and a failure of the same member counts": (
        {"strategy": "all_for_one", "members": 2, "intensity": 2},
        [
            (0, "lose 0", RestartOthers((1,)), "BB"),
            (0, "lose 1 free", GoOn(), "BB"),
            (1, "start 0", None, "RB"),
            (1, "start 1", None, "RR"),
            (2, "lose 1", RestartOthers((0,)), "BB"),
            (2, "lose 0 free", GoOn(), "BB"),
            (3, "start 0", None, "RB"),
            (3, "lose 0", spent(2), "BB"),
        ],
    ),
    "failed starts count too": (
        {"intensity": 2},
        [(0, "lose 0", GoOn(), "BRR"), (1, "fail 0", GoOn(), "BRR"), (2, "fail 0", spent(2), "BRR")],
    ),
    "failures are forgotten after the period": (
        {"intensity": 1},
        [
            (0, "lose 0", GoOn(), "BRR"),
            (1, "start 0", None, "RRR"),
            (60.5, "lose 1", GoOn(), "RBR"),
            (61, "start 1", None, "RRR"),
            (62, "lose 0", spent(1), "BRR"),
        ],
    ),
    "end: a member that is given up ends the group": (
        {},
        [(0, "lose 1", GoOn(), "RBR"), (1, "give-up 1", EndGroup(), "RFR")],
    ),
    "drop: the others go on, and the last one ends the group": (
        {"on_device_failed": "drop"},
        [
            (0, "lose 1", GoOn(), "RBR"),
            (0, "give-up 1", DropMember(), "RFR"),
            (1, "give-up 0", DropMember(), "FFR"),
            (2, "lose 2", GoOn(), "FFB"),
            (2, "give-up 2", EndGroup(), "FFF"),
        ],
    ),
    "drop: a dropped member is restarted no more": (
        {"strategy": "all_for_one", "on_device_failed": "drop"},
        [
            (0, "lose 1", RestartOthers((0, 2)), "BBB"),
            (0, "give-up 1", DropMember(), "BFB"),
            (1, "start 0", None, "RFB"),
            (1, "start 2", None, "RFR"),
            (2, "lose 0", RestartOthers((2,)), "BFB"),
        ],
    ),
    "drop: the budget of the group ends all of it": (
        {"on_device_failed": "drop", "intensity": 0},
        [(0, "lose 1", spent(0), "RBR"), (0, "give-up 1", EndGroup(), "RFR")],
    ),
    "a group of one is like its member": (
        {"strategy": "all_for_one", "members": 1, "on_device_failed": "drop"},
        [(0, "lose 0", GoOn(), "B"), (0, "give-up 0", EndGroup(), "F")],
    ),
}


@pytest.mark.parametrize(("options", "rows"), SEQUENCES.values(), ids=SEQUENCES)
def test_a_sequence_of_events(options, rows):
    group = machine(**options)
    for now, event, answer, states in rows:
        assert feed(group, event, now) == answer, event
        assert group.states == tuple(STATES[letter] for letter in states), event


@pytest.mark.parametrize(("state", "event"), [*itertools.product(MemberState, MemberEvent)])
def test_an_event_is_legal_exactly_where_the_table_has_it(state, event):
    group = machine()
    group._states[0] = state
    following = TRANSITIONS[state].get(event)
    if following is None:
        with pytest.raises(ValueError, match=f"event {event.name} is not legal in state {state.name} of member 0"):
            group._move(0, event)
        assert group.states[0] is state
    else:
        group._move(0, event)
        assert group.states[0] is following


def test_every_event_is_sent_by_a_method():
    tree = ast.parse(inspect.getsource(GroupSupervision))
    sent = {
        node.args[1].attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "_move"
    }
    assert sent == {event.name for event in MemberEvent}


def test_the_usual_budget_is_three_failures_a_minute_for_each_member():
    policy = default_policy(4)
    assert (policy.intensity, policy.period) == (12, 60.0)


def test_what_is_left_of_the_budget_is_told():
    group = machine(intensity=2)
    assert group.restarts_left(0) == 2
    group.lost(0, 0.0, "why")
    assert (group.restarts_left(1), group.restarts_left(61)) == (1, 2)
    assert machine(intensity=math.inf).restarts_left(0) == math.inf


def test_its_repr_has_strategy_states_and_budget():
    group = machine("rest_for_one", members=2)
    group.lost(1, 0.0, "why")
    assert repr(group) == "<GroupSupervision: rest_for_one, running, rebuilding, <RestartWindow: 1 of 3 in 60 s>>"


@given(
    strategy=st.sampled_from(groups.STRATEGIES),
    drops=st.booleans(),
    steps=st.lists(st.tuples(st.sampled_from(["lose", "lose free", "fail", "start"]), st.integers(0, 3)), max_size=60),
)
def test_whatever_happens_each_member_has_one_restart_for_each_order_or_loss(strategy, drops, steps):
    """A shadow of the members: who was ordered is lost once for it, and no order reaches one that is down."""
    group = machine(strategy, members=4, on_device_failed="drop" if drops else "end", intensity=math.inf)
    owed = set()  # members that were ordered, and whose loss was not reported yet
    for kind, member in steps:
        down = group.states[member] is REBUILDING
        if kind in ("fail", "start") and (not down or member in owed):
            continue
        if kind.startswith("lose"):
            decision = group.lost(member, 0.0, "why", free=kind.endswith("free") or member in owed)
            owed.discard(member)
            ordered = decision.members if isinstance(decision, RestartOthers) else ()
            assert not down or not ordered
            assert not owed & set(ordered)
            assert member not in ordered
            if strategy == "one_for_one":
                assert ordered == ()
            if strategy == "rest_for_one":
                assert all(other > member for other in ordered)
            owed |= set(ordered)
        else:
            feed(group, f"{kind} {member}")
        if strategy == "all_for_one" and kind.startswith("lose"):
            assert RUNNING not in group.states or down
