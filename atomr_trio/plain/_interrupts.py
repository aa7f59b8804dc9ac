"""Ctrl-C in a program without trio: never in the middle of a change of a device's state, and never lost.

A verb that only enqueues runs in the caller's thread, and Python raises `KeyboardInterrupt` in the main thread between
any two instructions. Half a record in the ring would cost the device. So during a verb this file's handler stands in
the place of Python's own; trio does the same during its runs. It looks at the frames that are running: in those of
`guarded` functions it only notes the signal, and `end` raises it when they have returned. Elsewhere it raises
`KeyboardInterrupt` as Python does. Any other handler, of the program, of trio or of asyncio, is left alone; it should
not raise.

What takes one of Python's own conditions or events in the main thread is guarded too: an exception between two of their
instructions leaves their lock locked, and the run would wait for it for ever. So are destructors and the callbacks of
weak references: Python drops an exception there, and the interrupt would be lost.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_guarded: Final[set[CodeType]] = set()
_this: Final = threading.get_ident
_main = threading.main_thread().ident
"""The main thread's identity: to compare two of them takes four tenths of the time that two threads take."""
_DEFAULT: Final = signal.default_int_handler
_DESTRUCTOR: Final = "__del__"
_SIGINT: Final = int(signal.SIGINT)
_handler_of: Final[Callable[[int], object]] = importlib.import_module("_signal").getsignal
_set_handler: Final[Callable[[int, object], object]] = importlib.import_module("_signal").signal
"""Those of `signal` look for the handler among an enumeration first, for 2 us."""
_is_noted = False


def guarded(function: Function) -> Function:
    """Mark a function that no `KeyboardInterrupt` may cut off, if it is called between `begin` and `end`."""
    _guarded.add(function.__code__)
    return function


def begin() -> bool:
    """Put this file's handler in the place of Python's, if that is there and this is the main thread.

    Returns whether it did. `end` must be called then.
    """
    if _handler_of(_SIGINT) is _DEFAULT and _this() == _main:
        _set_handler(_SIGINT, _handle)
        return True
    return False


def may_be_cut_off() -> bool:
    """Return whether a handler of the program might raise an exception here, between any two instructions."""
    return _this() == _main and callable(handler := _handler_of(_SIGINT)) and handler is not _handle


def end(has_begun: bool) -> None:
    """Put Python's handler back. Raises the `KeyboardInterrupt` that came in a guarded function."""
    if has_begun and _handler_of(_SIGINT) is _handle:
        _set_handler(_SIGINT, _DEFAULT)
    if _is_noted:
        raise_noted()


def raise_noted() -> None:
    """Raise the `KeyboardInterrupt` that came in a guarded function."""
    global _is_noted
    if _is_noted and _this() == _main:
        _is_noted = False
        raise KeyboardInterrupt


def forget_noted() -> None:
    """Drop what was noted: a `KeyboardInterrupt` is being raised anyway."""
    global _is_noted
    if _is_noted and _this() == _main:
        _is_noted = False


def _handle(_number: int, frame: FrameType | None) -> None:
    global _is_noted
    while frame is not None:
        if frame.f_code in _guarded or frame.f_code.co_name == _DESTRUCTOR:
            _is_noted = True
            return
        frame = frame.f_back
    # Here too, because this may come before `end` knows that it has to.
    _set_handler(_SIGINT, _DEFAULT)
    raise KeyboardInterrupt


def _note_main() -> None:
    """Note the main thread of a forked child."""
    global _main
    _main = threading.main_thread().ident


if hasattr(os, "register_at_fork"):  # not on every system that can import this package
    os.register_at_fork(after_in_child=_note_main)
