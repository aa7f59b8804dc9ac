"""The commands of one verb: those of a long one are forgotten when they are done."""

from __future__ import annotations

from typing import Any

import pytest

from atomr_trio._calls.outgoing import AT_A_TIME, STRETCH, Outgoing
from atomr_trio._wire.protocol import Role


class Planned:
    """A command on some blocks."""

    sent = True

    def __init__(self, *blocks: object) -> None:
        self.operands = [(block, Role.WRITE) for block in blocks]


def planned(count: int) -> tuple[list[Any], list[object]]:
    blocks: list[object] = [object(), object()]
    return [Planned(blocks[number % 2]) for number in range(count)], blocks


@pytest.mark.parametrize("count", [1, AT_A_TIME, STRETCH - 1])
def test_a_short_verb_keeps_its_commands(count):
    commands, _ = planned(count)
    outgoing = Outgoing(commands)
    outgoing.take()
    assert outgoing.forget_done(count) == []
    assert outgoing.is_whole
    assert outgoing.made == commands


def test_a_long_verb_forgets_what_is_done_but_not_its_operands():
    commands, blocks = planned(STRETCH + 3)
    outgoing = Outgoing(commands)
    outgoing.take(STRETCH)
    assert outgoing.forget_done(5) == commands[:5]
    assert not outgoing.is_whole
    assert outgoing.made == commands[5:STRETCH]
    every = outgoing.all()
    assert every[5:] == commands[5:]
    assert [(list(each.operands), each.sent) for each in every[:5]] == [(each.operands, True) for each in commands[:5]]
    assert len({id(each) for each in every[:5]}) == len(blocks)
    outgoing.take()
    assert outgoing.forget_done(2) == commands[5:7], "also when few are left"
