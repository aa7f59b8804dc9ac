"""The cases that an ordinary run leaves to `make sweep` are the black squares of a chessboard."""

from __future__ import annotations

import itertools

import pytest

from support.halves import is_black

SIDES = [
    pytest.mark.parametrize("size", [1, 2]).mark,
    pytest.mark.parametrize(("name", "letter"), [("one", "s"), pytest.param("two", "d"), ("two", "s")]).mark,
    pytest.mark.parametrize("form", [None, "new", pytest.param("old", marks=pytest.mark.sweep), "own"]).mark,
]
VALUES = [
    [{"size": 1}, {"size": 2}],
    [{"name": "one", "letter": "s"}, {"name": "two", "letter": "d"}, {"name": "two", "letter": "s"}],
    [{"form": None}, {"form": "new"}, {"form": "old"}, {"form": "own"}],
]


@pytest.mark.parametrize("count", [2, 3])
def test_neighbours_are_of_two_colours(count: int) -> None:
    board = itertools.product(*map(enumerate, VALUES[:count]))
    for squares in board:
        values = {name: value for _, each in squares for name, value in each.items()}
        assert is_black(SIDES[:count], values) == (sum(at for at, _ in squares) % 2 == 1)


def test_a_test_of_one_parameter_has_no_black_square_unless_it_is_asked_for() -> None:
    assert not any(is_black(SIDES[:1], each) for each in VALUES[0])
    assert [is_black(SIDES[:1], each, fewest=1) for each in VALUES[0]] == [False, True]


def test_a_value_that_is_none_of_the_parameters_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"\[3\] are no values of size"):
        is_black(SIDES[:2], {"size": 3, "name": "one", "letter": "s"})
