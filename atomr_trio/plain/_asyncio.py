"""The bridge for programs of asyncio: a verb of the blocking face, awaited in a task of asyncio."""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from .._values.errors import InvalidArgument, OutsideRun
from .._values.util import known, shown
from ._call import Call
from ._twins import Session, Twin, bare

_LOOK_AGAIN: Final = 0.1
"""Seconds after which a waiting loop looks around. The handler by which a notebook cancels a cell only notes a call for
the loop, and does not wake it."""
_RUN_IT = "call the verb itself, which blocks; or await this in a task of asyncio"


async def awaited_in_asyncio(
    session: Session,
    verb: Callable[..., Any],
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    own: Mapping[object, Callable[..., Any]],
) -> Any:
    """Await a verb in a task of asyncio; see `Device.in_asyncio`.

    `own` has an awaited function for each method that only the blocking form has.
    """
    loop = _running_loop()
    awaited = _awaited_form(session, verb, arguments, keywords, own)
    given = [bare(each) for each in arguments]
    named = {key: bare(value) for key, value in keywords.items()}

    async def call() -> Any:
        result = awaited(*given, **named)
        if hasattr(result, "__await__"):
            return await result
        if hasattr(result, "__aenter__"):
            raise _is_a_block(verb, result)
        return result

    done = loop.create_future()

    def tell(_job: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed, and nobody waits
            loop.call_soon_threadsafe(_set, done)

    made = Call(session.loop, call, (), {}, tell)
    session.loop.begin(made)
    interrupt: BaseException | None = None
    while made.outcome is None:
        try:
            await _until(done)
        except BaseException as error:
            interrupt = interrupt or error
            session.loop.post(made.cancel)
    if interrupt is not None:
        raise interrupt
    return session.twin(known(made.outcome, "it was told").unwrap())


def _awaited_form(
    session: Session,
    verb: object,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    own: Mapping[object, Callable[..., Any]],
) -> Callable[..., Any]:
    """Return the function of the awaited face for a verb. Raises `InvalidArgument` that says what to write instead."""
    if verb is next and arguments and hasattr(getattr(arguments[0], "_awaited", None), "__anext__"):
        _check_session(session, arguments[0], "next")
        return anext
    owner: object = getattr(verb, "__self__", None)
    name: str = getattr(verb, "__name__", "")
    if not isinstance(owner, Twin):
        if not callable(verb) or not _is_of_a_declared_kernel(owner):
            raise _is_no_verb(verb)
        device = arguments[0] if arguments else keywords.get("dev")
        if isinstance(device, Twin):
            _check_session(session, device, name)
        return verb
    _check_session(session, owner, name)
    awaited: Callable[..., Any] | None = (
        own.get(getattr(verb, "__func__", None))
        or getattr(owner._awaited, name, None)
        or getattr(owner._awaited, f"a{name}", None)
    )
    if awaited is None:
        raise InvalidArgument(
            f"{name} of {type(owner).__name__} has no awaited form",
            advice="for the next item of an iterator await `dev.in_asyncio(next, iterator)`"
            if name == "__next__"
            else f"await `asyncio.to_thread(verb, ...)`, which calls {name} in a thread",
        )
    return awaited


def _is_of_a_declared_kernel(owner: object) -> bool:
    """Return whether a method takes the device of either face: it belongs to no device itself."""
    from ..libraries.nvrtc.declared import DeclaredKernel

    return isinstance(owner, DeclaredKernel)


def _check_session(session: Session, twin: Twin, name: str) -> None:
    if twin._session is not session:
        raise InvalidArgument(
            f"{name} was given an object of another `start`: {twin!r}",
            advice="await it by `in_asyncio` of the device that the object belongs to",
        )


def _is_no_verb(given: object) -> InvalidArgument:
    """Return the error for what is no method of an object of a device."""
    if inspect.iscoroutine(given):
        name = given.__name__
        given.close()  # or Python would warn that nobody has awaited it
        return InvalidArgument(
            f"in_asyncio takes a function and its arguments, and {name} was called already",
            advice=f"await `dev.in_asyncio(dev.run, {name}, ...)`",
        )
    if not callable(given):
        return InvalidArgument(
            f"in_asyncio takes a verb and its arguments, and no result of one: {shown(given)}",
            advice="pass the verb without calling it: `in_asyncio(x.to_host)` instead of `in_asyncio(x.to_host())`, "
            "which has already blocked the loop",
        )
    name = getattr(given, "__qualname__", None) or shown(given)
    if inspect.iscoroutinefunction(given):
        return InvalidArgument(
            f"in_asyncio takes a verb of this device, and {name} is an async function",
            advice="use `in_asyncio(dev.run, function, dev)`, which awaits it in the device's run: there it gets the "
            "awaited face, and may use trio, not asyncio",
        )
    return InvalidArgument(
        f"in_asyncio takes a verb of this device, and {name} is none",
        advice="a verb is a method of the device or of an object of it, as in `in_asyncio(x.to_host)`; await another "
        "function that blocks by `asyncio.to_thread(function, ...)`",
    )


def _is_a_block(verb: object, block: object) -> InvalidArgument:
    """Return the error for a verb that has made what is entered by `with`."""
    name: str = getattr(verb, "__name__", "")
    return InvalidArgument(
        f"{name} waits for nothing, and returns a {type(block).__name__}, which is entered by `with`",
        advice=f"enter it directly, `with dev.{name}(...) as {name}:`, and await `dev.in_asyncio(next, {name})` in it"
        if hasattr(block, "__anext__")
        else "write an async function of the awaited face that enters it by `async with`, and await "
        "`dev.in_asyncio(dev.run, function, dev)`",
    )


def _set(done: Any) -> None:
    if not done.done():
        done.set_result(None)


async def _until(done: Any) -> None:
    """Wait for a future, which goes on if this is cancelled; or for a while, see `_LOOK_AGAIN`."""
    import asyncio

    await asyncio.wait((done,), timeout=_LOOK_AGAIN)


def _running_loop() -> Any:
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None:
        with contextlib.suppress(RuntimeError):
            return asyncio.get_running_loop()
    raise OutsideRun(
        "in_asyncio was awaited where no loop of asyncio runs",
        caller="another thread",
        thread=threading.current_thread().name,
        advice=_RUN_IT,
    )
