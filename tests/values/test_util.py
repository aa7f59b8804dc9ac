"""The small things: what is known, what is shown of a value in an error message, and who makes an object."""

from __future__ import annotations

import math

import pytest

from atomr_trio import InvalidArgument
from atomr_trio._values.util import NoPublicConstructor, check_seconds, known, shown


def test_what_is_known_is_passed_on_and_its_absence_is_a_defect_of_ours():
    assert known(0, "a number") == 0
    with pytest.raises(AssertionError, match="a device has a name"):
        known(None, "a device has a name")


@pytest.mark.parametrize(
    ("value", "text"),
    [(12, "12"), ("wild", "'wild'"), (1 << 16609, "<int of 16610 bits>"), ([1 << 16609], "[<int of 16610 bits>]")],
    ids=["an int", "a string", "a huge int", "a huge int inside"],
)
def test_every_value_can_be_shown(value, text):
    assert shown(value).startswith(text)
    assert len(shown(value)) < 100


class Made(metaclass=NoPublicConstructor):
    _made_by = "the workshop"

    def __init__(self, number: int) -> None:
        self.number = number


def test_only_the_library_makes_what_has_no_public_constructor():
    assert Made._create(3).number == 3
    with pytest.raises(TypeError, match="Made has no public constructor: it is made by the workshop"):
        Made(3)


@pytest.mark.parametrize("value", [0, -1, math.nan, True, None, "1", 1j])
def test_what_is_no_time_to_wait_is_refused_by_its_name(value):
    with pytest.raises(InvalidArgument, match="patience is a number of seconds greater than 0"):
        check_seconds("patience", value)


@pytest.mark.parametrize("value", [1, 0.5, math.inf])
def test_a_time_to_wait_is_accepted(value):
    check_seconds("patience", value)
