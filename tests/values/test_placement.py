"""The choice of a device of a group: tables of snapshots in, a place out."""

import pytest

from atomr_trio import DeviceSnapshot, DeviceState, InvalidArgument, LeastLoaded, MostFree, Placement, RoundRobin
from atomr_trio._values.placement import choose

STATES = {
    "run": DeviceState.RUNNING,
    "rebuild": DeviceState.REBUILDING,
    "fail": DeviceState.FAILED,
    "closing": DeviceState.CLOSING,
}


def group(*rows):
    """Snapshots, each given as (state, free bytes, unfinished, major of the capability); later ones may be left out."""
    usual = ("run", 100, 0, 9)
    return [
        DeviceSnapshot(
            position=place,
            index=place + 4,
            state=STATES[state],
            free_bytes=free,
            unfinished=unfinished,
            compute_capability=(major, 0),
        )
        for place, (state, free, unfinished, major) in enumerate((*row, *usual[len(row) :]) for row in rows)
    ]


LIKE = [(), (), ()]

# Each row: the policy, the snapshots, the place that was picked last, what is asked for, and the place picked.
CASES = {
    "round robin begins with the first": (RoundRobin(), LIKE, None, {}, 0),
    "round robin takes the next": (RoundRobin(), LIKE, 0, {}, 1),
    "round robin begins again": (RoundRobin(), LIKE, 2, {}, 0),
    "round robin leaves out one that is gone": (RoundRobin(), [(), ("fail",), ()], 0, {}, 2),
    "round robin goes on behind one that is gone": (RoundRobin(), [(), ("fail",), ()], 1, {}, 2),
    "round robin does not look at load": (RoundRobin(), [("run", 1, 9), ("run", 9, 0)], None, {}, 0),
    "the least loaded": (LeastLoaded(), [("run", 9, 3), ("run", 1, 1), ("run", 9, 2)], None, {}, 1),
    "equally loaded ones in turn": (LeastLoaded(), [("run", 9, 1), ("run", 1, 1), ("run", 9, 2)], 0, {}, 1),
    "the most free": (MostFree(), [("run", 8, 0), ("run", 9, 7), ("run", 7, 0)], None, {}, 1),
    "equally free ones in turn": (MostFree(), [("run", 9), ("run", 8), ("run", 9)], 0, {}, 2),
    "one that runs goes before one that is being rebuilt": (
        LeastLoaded(),
        [("rebuild", 9, 0), ("run", 1, 9)],
        None,
        {},
        1,
    ),
    "one that is being rebuilt, if there is no other": (RoundRobin(), [("fail",), ("rebuild",)], None, {}, 1),
    "one that is being rebuilt, if the others lack memory": (
        MostFree(),
        [("run", 5), ("rebuild", 50)],
        None,
        {"min_free_bytes": 6},
        1,
    ),
    "none, if all have failed or close": (RoundRobin(), [("fail",), ("closing",)], None, {}, None),
    "only those with memory enough": (RoundRobin(), [("run", 5), ("run", 6)], None, {"min_free_bytes": 6}, 1),
    "none has memory enough": (RoundRobin(), [("run", 5), ("run", 6)], None, {"min_free_bytes": 7}, None),
    "only those with the capability": (
        LeastLoaded(),
        [("run", 9, 0, 8), ("run", 9, 5, 9)],
        None,
        {"min_compute_capability": (8, 1)},
        1,
    ),
    "none has the capability": (LeastLoaded(), LIKE, None, {"min_compute_capability": (9, 1)}, None),
    "near goes before the policy": (LeastLoaded(), [("run", 9, 0), ("run", 9, 5)], None, {"near": 1}, 1),
    "near one that lacks memory": (MostFree(), [("run", 9), ("run", 5)], None, {"near": 1, "min_free_bytes": 6}, 0),
    "near one that is being rebuilt": (MostFree(), [("run", 1), ("rebuild", 5)], None, {"near": 1}, 0),
    "near one that has failed": (RoundRobin(), [("run",), ("fail",)], None, {"near": 1}, 0),
}


@pytest.mark.parametrize(("policy", "rows", "last", "asked", "place"), CASES.values(), ids=CASES)
def test_the_place_that_is_picked(policy, rows, last, asked, place):
    chosen = choose(policy, group(*rows), last, **asked)
    assert (None if chosen is None else chosen.position) == place


def test_a_policy_of_the_program_chooses_among_what_has_what_is_asked_for():
    seen = []

    class Last:
        def choose(self, candidates, last):
            seen.append((tuple(each.position for each in candidates), last))
            return candidates[-1]

    assert isinstance(Last(), Placement)
    chosen = choose(Last(), group(("run", 9), ("run", 9), ("run", 1)), 0, min_free_bytes=2)
    assert chosen.position == 1
    assert seen == [((0, 1), 0)]


@pytest.mark.parametrize("answer", [None, 1, group(())[0]], ids=["None", "a place", "another snapshot"])
def test_a_policy_that_returns_no_candidate_is_refused(answer):
    class Wrong:
        def choose(self, candidates, last):
            return answer

    with pytest.raises(InvalidArgument, match="none of the candidates"):
        choose(Wrong(), group((), ()), None)
