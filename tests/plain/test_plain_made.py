"""The blocking forms are those that `make plain` makes, and stand for every verb of the awaited face."""

from __future__ import annotations

import inspect
import re

import pytest

import atomr_trio
from atomr_trio import plain
from support.plain import BY_HAND, RENAMED, TARGET, TWINS, members_of, write
from support.public_interface import PUBLIC

FORMS = {name: getattr(plain, name) for name in plain.__all__ if name in TWINS}


@pytest.mark.long
def test_the_blocking_forms_are_what_the_declarations_say(tmp_path):
    """`make plain` writes them, by the developers' tools."""
    pytest.importorskip("ruff")
    write(tmp_path)
    made = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.py")}
    there = {path.name: path.read_text(encoding="utf-8") for path in TARGET.glob("*.py")}
    assert made == there


def verbs_of(cls: type) -> set[str]:
    return {name for name, value in inspect.getmembers(cls) if inspect.iscoroutinefunction(inspect.unwrap(value))}


def test_every_public_class_with_an_awaited_verb_has_a_blocking_form():
    public = {name: getattr(atomr_trio, name) for name in atomr_trio.__all__}
    awaited = {name for name, value in public.items() if inspect.isclass(value) and verbs_of(value)}
    assert awaited - FORMS.keys() == set()


def test_a_blocking_form_has_every_member_that_the_reference_shows():
    shown = {member.name.partition(".")[::2] for member in PUBLIC}
    wanted = {(name, RENAMED.get(member, member)) for name, member in shown if name in FORMS and member}
    assert len(wanted) > 100
    assert {(name, member) for name, member in wanted if not hasattr(FORMS[name], member)} == set()


@pytest.mark.parametrize("name", sorted(FORMS))
def test_a_blocking_form_has_every_member_and_awaits_none(name):
    form = FORMS[name]
    wanted = {member for member, _, _ in members_of(TWINS[name])}
    entered = {"__aenter__": "__enter__", "__aiter__": "__iter__", "__anext__": "__next__"}
    entered |= RENAMED
    assert {entered.get(each, each) for each in wanted} - set(dir(form)) == set()
    assert verbs_of(form) - {"in_asyncio"} == set()


def test_what_is_written_by_hand_is_declared():
    for name, (_, members) in BY_HAND.items():
        assert {each for each in members if not hasattr(TWINS[name], each)} == set()


def test_no_docstring_of_a_blocking_form_speaks_of_awaiting():
    words = re.compile(r"\b(await|awaited|async|asynchronous|checkpoint|tasks?)\b")
    allowed = re.compile(
        r"`await|``await dev|task of (trio|asyncio)|async (function|one)|awaited face|cancels the verb"
    )
    members = [(name, member, getattr(form, member)) for name, form in FORMS.items() for member in dir(form)]
    said = {
        f"{name}.{member}": line
        for name, member, value in [*members, *((name, "", form) for name, form in FORMS.items())]
        if not member.startswith("_")
        for line in (inspect.getdoc(value) or "").splitlines()
        if words.search(line) and not allowed.search(line)
    }
    assert said == {}
