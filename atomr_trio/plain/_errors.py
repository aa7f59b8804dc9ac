"""What an error of the awaited face becomes before it reaches the caller of a blocking verb.

The verbs have run in another thread or in a task that the caller does not have, and dozens of frames of this library
lie between. So the errors that the library raises on purpose leave those frames behind, and keep the frames of the
program's own functions, such as the one that `Device.run` awaits. Everything else is a defect, and keeps its frames.
"""

from __future__ import annotations

import dis
from types import TracebackType
from typing import Final

from .._values.errors import ActorCrashed, DeviceError, OutsideRun
from .._values.habits import without_await

_PACKAGES: Final = frozenset({"atomr_trio", "atomr_cuda", "trio", "outcome", "contextlib"})
"""Whose frames say nothing to a program: they are the way from its call to the error."""
_BUILT_IN: Final = (TypeError, ValueError, IndexError)
"""What verbs raise for wrong arguments beside `DeviceError`, and what a defect raises too."""
_RAISE: Final = dis.opmap["RAISE_VARARGS"]


def is_meant(error: Exception) -> bool:
    """Return whether the library has raised an error on purpose, by a `raise` of its own."""
    if isinstance(error, DeviceError):
        return not isinstance(error, ActorCrashed)
    if type(error) not in _BUILT_IN:
        return False
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    if frames is None or _package(frames) != "atomr_trio":
        return False
    return frames.tb_frame.f_code.co_code[frames.tb_lasti] == _RAISE


def prepare(error: Exception) -> None:
    """Make an error ready for the caller of a verb, which raises it again without naming it."""
    if isinstance(error, DeviceError) and not isinstance(error, OutsideRun):  # whose advice is for other faces
        error.message = without_await(error.message)
        if error.advice is not None:
            error.advice = without_await(error.advice)
    drop_frames(error)


def drop_frames(error: Exception) -> None:
    """Take the frames of this library from the traceback of an error that it has raised on purpose."""
    if not is_meant(error):
        return
    context = error.__context__
    if context is not None and _of_the_program(context.__traceback__) is None:
        error.__suppress_context__ = True
    cause = error.__cause__
    if cause is not None and type(cause).__module__.partition(".")[0] == "atomr_cuda":  # the status of a vendor's call
        cause.__traceback__ = _of_the_program(cause.__traceback__)
    error.__traceback__ = _of_the_program(error.__traceback__)


def _of_the_program(frames: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this library."""
    kept: list[TracebackType] = []
    while frames is not None:
        if _package(frames) not in _PACKAGES:
            kept.append(frames)
        frames = frames.tb_next
    found: TracebackType | None = None
    for each in reversed(kept):
        found = TracebackType(found, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return found


def _package(frame: TracebackType) -> str:
    name: object = frame.tb_frame.f_globals.get("__name__")
    return name.partition(".")[0] if isinstance(name, str) else ""
