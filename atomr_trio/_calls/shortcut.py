"""Requests that their callers begin themselves, past the mailboxes, because they would be the actor's next."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

import trio

from .._generation.actor import Actor
from .._supervision.mailbox import Looker, Request

if TYPE_CHECKING:
    from .._generation.core import DeviceCore
    from .._generation.generation import Generation
    from .._generation.requests import CommandRequest


class Shortcut:
    """Begins requests of one actor in their callers' tasks, while it has none of its own."""

    def __init__(self, device: DeviceCore, actor: Actor) -> None:
        self._device = device
        self._actor = actor

    def begin(self, request: Request) -> Looker | None:
        """Begin the request; return None if it has to wait for something. Raises the error that refuses it."""
        generation = self._device.serving
        if generation is None or not self._actor.would_begin(request, generation):
            return None
        looks = generation.settler.begin_looking()
        try:
            self._actor.begin_nowait(request, generation)
        except BaseException:
            if looks:
                generation.settler.end_looking()
            raise
        return generation.settler if looks else _NOBODY


def begin_in_turn(
    device: DeviceCore, waiting: collections.deque[CommandRequest]
) -> tuple[list[CommandRequest], Looker | None]:
    """Begin requests of any actors, one after the other, as many as can begin now.

    They are removed from `waiting`. None begins after a request whose answer may refuse later ones. Returns them, and
    the looker for the end of the last. Raises the error that refuses the next one; then no task waits for those that
    were begun.
    """
    begun: list[CommandRequest] = []
    generation = device.serving
    if generation is None:
        return begun, None
    looks = generation.settler.begin_looking()
    try:
        while waiting and (not begun or not begun[-1].decides) and _begins(device, waiting[0], generation):
            begun.append(waiting.popleft())
    except BaseException:
        if looks:
            generation.settler.end_looking()
        for request in begun:
            request.drop()
        raise
    if looks and not begun:
        generation.settler.end_looking()
    return begun, generation.settler if looks else _NOBODY


def _begins(device: DeviceCore, request: CommandRequest, generation: Generation) -> bool:
    actor = device.actor_of(request.verb)
    if not actor.would_begin(request, generation) or not request.is_ready(device):
        return False
    try:
        actor.begin_nowait(request, generation)
    except BaseException:
        request.drop()
        raise
    return True


class _Nobody:
    """A looker that does nothing: another task looks already."""

    async def look_for(self, request: Request) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()


_NOBODY = _Nobody()
