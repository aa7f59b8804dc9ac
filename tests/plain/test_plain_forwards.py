"""Every member of a blocking form does what the same member of the awaited face does, with the same arguments.

Behind each form stands a recorder instead of a device. Each parameter gets a value of its own, by its name; what
arrives is bound to the signature of the awaited face, and has to have the same values under the same names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from atomr_trio import plain
from atomr_trio.plain._faces import starts
from atomr_trio.plain._twins import Session, _made
from support.plain import RENAMED, TWINS, function_of

ENTERED = {"__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__", "__next__": "__anext__"}
"""What is awaited behind a special method, where the awaited face has it."""
NAMED = {new: old for old, new in RENAMED.items()}


class Value:
    """A value that is like no other, and may be awaited."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __await__(self) -> Generator[None, None, Value]:
        return self
        yield


class Recorder:
    """In the place of an object of the awaited face: has every attribute, and records what is called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.results: list[Value] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Value:
            self.calls.append((name, arguments, keywords))
            self.results.append(Value(f"the result of {name}"))
            return self.results[-1]

        self.__dict__[name] = call  # the same at each look
        return call


class OwnThread:
    """In the place of a run: what it is given is done here and now."""

    making = None

    def begin_close(self) -> None:
        """Nothing is open."""

    def wait_here(self, verb: Callable[..., Any], arguments: list[Any], keywords: dict[str, Any]) -> Any:
        stops = verb(*arguments, **keywords).__await__()
        try:
            next(stops)
        except StopIteration as end:
            return end.value
        raise AssertionError("it waits for something else")

    def at_once(self, verb: Callable[..., Any], arguments: list[Any], keywords: dict[str, Any]) -> Any:
        return verb(*arguments, **keywords)


def members() -> Iterator[tuple[str, str]]:
    """Each member that is made, not written by hand, with the name of its form."""
    for name in plain.__all__:
        if name in TWINS:
            for base in getattr(plain, name).__mro__:
                for member, value in vars(base).items():
                    function = function_of(value)
                    if function is not None and "_faces" in str(inspect.unwrap(function).__code__.co_filename):
                        yield name, member


MEMBERS = sorted(set(members()))


def filled(function: Callable[..., Any], skip: int = 0) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of a call that gives each parameter a value of its own."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in list(inspect.signature(function).parameters.values())[skip:]:
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += [Value(f"{parameter.name} 0"), Value(f"{parameter.name} 1")]
        elif parameter.kind is parameter.VAR_KEYWORD:
            named["another"] = Value("another")
        elif parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = Value(parameter.name)
        else:
            positional.append(Value(parameter.name))
    return positional, named


def test_there_are_members_of_every_form():
    assert {name for name, _ in MEMBERS} >= {"Device", "Devices", "DeviceArray", "Blas", "BatchBlas", "Fft", "World"}
    assert len(MEMBERS) > 350


@pytest.mark.parametrize(("name", "member"), MEMBERS)
def test_a_member_is_that_of_the_awaited_face_with_the_same_arguments(name, member):
    form, awaited = getattr(plain, name), TWINS[name]
    recorder = Recorder()
    session = Session(OwnThread())  # type: ignore[arg-type]
    twin = _made(form, recorder, session)
    value = inspect.getattr_static(form, member)
    if not inspect.isfunction(value):
        behind = recorder if member == "awaited" else getattr(recorder, member)
        assert getattr(twin, member) is behind
        assert recorder.calls == []
        return
    arguments, keywords = filled(value, skip=1)
    result = getattr(twin, member)(*arguments, **keywords)
    if member == "__iter__" and not recorder.calls:  # an iterator of its own
        assert result is twin
        return
    ((called, got, got_named),) = recorder.calls
    assert called in {NAMED.get(member, member), ENTERED.get(member)}
    declared = inspect.getattr_static(awaited, called)
    of_object = [] if isinstance(declared, staticmethod) else [recorder]
    bound = list(inspect.signature(function_of(declared)).bind(*of_object, *got, **got_named).arguments.items())
    own = list(inspect.signature(value).bind(twin, *arguments, **keywords).arguments.items())[1:]
    if member == "__exit__":  # the names of its parameters are its own
        assert [each for _, each in bound[1:]] == [each for _, each in own]
    else:
        assert bound[len(of_object) :] == own
    assert result in (None, recorder.results[0], *([twin] if member == "__enter__" else []))
    if inspect.signature(value).return_annotation != "None":
        assert result is not None


@pytest.mark.parametrize("name", ["start", "start_devices"])
def test_a_start_opens_with_the_same_arguments(name, monkeypatch):
    opened: dict[str, Any] = {}
    awaited = {"start": "open_device", "start_devices": "open_devices"}[name]

    def begun(opening: Callable[[], Any], title: str) -> Any:
        opening()
        return title

    def opens(*arguments: Any, **keywords: Any) -> None:
        opened.update(inspect.signature(real).bind(*arguments, **keywords).arguments)

    from atomr_trio._device import open as opening
    from atomr_trio.plain import _twins

    real = getattr(opening, awaited)
    monkeypatch.setattr(opening, awaited, opens)
    monkeypatch.setattr(_twins, "begun", begun)
    function = getattr(starts, name)
    arguments, keywords = filled(function)
    assert function(*arguments, **keywords) == f"atomr_trio.{name}"
    assert opened == inspect.signature(function).bind(*arguments, **keywords).arguments
