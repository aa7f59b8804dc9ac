"""The bridge for programs of asyncio: a verb of the blocking face, awaited in a task of asyncio."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from .._values.errors import InvalidArgument, OutsideRun
from .._values.util import known, shown
from ._loop import Call
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
    twin: object = getattr(verb, "__self__", None)
    name: str = getattr(verb, "__name__", "")
    if not isinstance(twin, Twin) or twin._session is not session:
        raise InvalidArgument(f"expected a method of an object of this device, not {shown(verb)}")
    awaited = (
        own.get(getattr(verb, "__func__", None))
        or getattr(twin._awaited, name, None)
        or getattr(twin._awaited, f"a{name}", None)
    )
    if awaited is None:
        raise InvalidArgument(
            f"{name} of {type(twin).__name__} has no awaited form", advice="call it by `asyncio.to_thread`"
        )
    given = [bare(each) for each in arguments]
    named = {key: bare(value) for key, value in keywords.items()}

    async def call() -> Any:
        result = awaited(*given, **named)
        return await result if hasattr(result, "__await__") else result

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
