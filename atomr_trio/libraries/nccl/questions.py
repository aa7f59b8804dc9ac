"""Questions to workers about communicators, and the deadlines of their answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio

from ..._supervision.realtime import Patience
from ..._wire.protocol import Verb

if TYPE_CHECKING:
    from ..._generation.generation import Generation
    from ..._generation.group import Group

_NUMBERS = itertools.count(1)


class Question:
    """A question to one worker. A worker that is lost answers nothing more, which its generation tells."""

    def __init__(
        self,
        generation: Generation,
        verb: Verb,
        *fields: int,
        tail: bytes = b"",
        told: Callable[[], None] | None = None,
    ) -> None:
        self.generation: Generation = generation
        self.answer: dict[str, Any] | None = None
        self._told = told
        number = next(_NUMBERS)
        generation.inbox.questions[number] = self._take
        generation.sender.send_control(verb, verb.struct.pack(number, *fields) + tail)

    def _take(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        if self._told is not None:
            self._told()

    @property
    def failure(self) -> dict[str, Any] | None:
        """The failure that was answered; None if there is none, or no answer yet."""
        return None if self.answer is None else self.answer.get("failure")


class Deadline:
    """Calls a function after some seconds of real time, unless it is met before."""

    def __init__(self, group: Group, seconds: float, missed: Callable[[], None], name: str) -> None:
        self._seconds = seconds
        self._missed = missed
        self._scope = trio.CancelScope()
        group.start_soon(self._run, name)

    @trio.lowlevel.enable_ki_protection
    async def _run(self) -> None:
        with self._scope:
            await Patience(self._seconds).readable()
            self._missed()

    def meet(self) -> None:
        """Call nothing."""
        self._scope.cancel(reason="it was in time")
