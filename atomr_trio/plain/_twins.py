"""Twins: each object of the awaited face has one blocking form, which holds it, and knows the run that it lives in.

A twin is made when an object first comes out of a verb, and as long as it lives the same object has the same twin. What
goes into a verb is taken out of its twin; an object of the awaited face may go in as it is. The classes are made by
`make plain`, and are found here by the name of the class that they are the form of.
"""

from __future__ import annotations

import contextlib
import importlib
import weakref
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import GeneratorType, TracebackType
from typing import Any, ClassVar, Final, NoReturn, SupportsIndex, TypeVar

import numpy as np

from .._values.util import refuse_to_copy
from ._errors import drop_frames, prepare
from ._interrupts import guarded
from ._loop import Loop

T = TypeVar("T", bound="Twin")

_remove_if_dead: Final[Callable[[dict[Any, Any], object], None]] = importlib.import_module(
    "_weakref"
)._remove_dead_weakref
"""Remove an entry if it is a reference to what is gone, in one step: what the dictionaries of `weakref` use."""

Arguments = tuple[Any, ...]
_NO_KEYWORDS: Final[dict[str, Any]] = {}
_CONTAINERS: Final = frozenset({list, tuple})
_PLAIN: Final = frozenset({int, float, bool, str, type, type(None), np.ndarray})
"""Types of most arguments that are values."""


class Session:
    """One `start`: its run, and the twins of its objects. The device is closed when the last twin is gone."""

    def __init__(self, loop: Loop) -> None:
        self.loop: Loop = loop
        """The run."""
        twins: dict[int, _TwinReference] = {}
        self._twins = twins

        @guarded
        def forget(reference: _TwinReference) -> None:  # in any thread, at any time; another twin may be there already
            _remove_if_dead(twins, reference.key)

        self._forget = forget
        self._end = weakref.finalize(self, loop.begin_close)
        self._end.atexit = False

    def twin(self, thing: Any) -> Any:
        """Return what a program without trio gets for a result: twins, also in lists and tuples; values as they are."""
        kind = type(thing)
        if kind in _CONTAINERS:
            return kind([self.twin(each) for each in thing])
        cls = _twin_of.get(kind)
        if cls is None:
            cls = _twin_of[kind] = _class_for(kind)
        if cls is Twin:  # of no class: a value
            return thing
        # By its address: an array refuses to be compared, and no other object has that while its twin holds it.
        key = id(thing)
        found = reference() if (reference := self._twins.get(key)) is not None else None
        if found is None:
            with self.loop.making:
                found = reference() if (reference := self._twins.get(key)) is not None else None
                if found is None:
                    found = _made(cls, thing, self)
                    reference = self._twins[key] = _TwinReference(found, self._forget)
                    reference.key = key
        return found


class _TwinReference(weakref.ref["Twin"]):
    """A reference to a twin. Those of `weakref.WeakValueDictionary` do the same in four times as long."""

    __slots__ = ("key",)

    key: int
    """The address of what it is the twin of."""


def _made(cls: type[T], thing: Any, session: Session) -> T:
    twin = object.__new__(cls)
    twin._awaited = thing
    twin._session = session
    return twin


class Twin:
    """The base class of the blocking forms."""

    __slots__ = ("__weakref__", "_awaited", "_session")

    _awaited: Any
    _session: Session
    _made_by: ClassVar[str] = "a verb of a device"

    def __init__(self, *_arguments: object, **_keywords: object) -> None:
        cls = type(self)
        raise TypeError(f"{cls.__name__} has no public constructor: it is made by {cls._made_by}")

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        refuse_to_copy(self, protocol)

    def __repr__(self) -> str:
        return repr(self._awaited)

    @property
    def awaited(self) -> Any:
        """The same object with verbs that are awaited, for functions that `Device.run` runs."""
        return self._awaited

    # What the generated methods do. The result is Any: each says what it is.

    def _wait(
        self, verb: Callable[..., Awaitable[Any]], arguments: Arguments = (), keywords: dict[str, Any] = _NO_KEYWORDS
    ) -> Any:
        """Await a verb of the library, which begins in this thread."""
        session = self._session
        try:
            result = session.loop.wait_here(verb, _bare_each(arguments), _bare_values(keywords))
        except Exception as error:
            prepare(error)
            raise
        return result if result is None else session.twin(result)

    def _enqueue(
        self, verb: Callable[..., Any], arguments: Arguments = (), keywords: dict[str, Any] = _NO_KEYWORDS
    ) -> Any:
        """Call a verb that does not wait."""
        session = self._session
        try:
            result = session.loop.at_once(verb, _bare_each(arguments), _bare_values(keywords))
        except Exception as error:
            prepare(error)
            raise
        return result if result is None else session.twin(result)

    def _read(
        self, verb: Callable[..., Any], arguments: Arguments = (), keywords: dict[str, Any] = _NO_KEYWORDS
    ) -> Any:
        """Call a function that may be called anywhere, because it neither changes the device nor waits."""
        try:
            result = verb(*_bare_each(arguments), **_bare_values(keywords))
        except Exception as error:
            prepare(error)
            raise
        return self._session.twin(result)

    def _seen(self, value: Any) -> Any:
        """Return the value of a property."""
        return self._session.twin(value)

    def _enter(self) -> Any:
        """Enter the block of something that is entered by ``async with``. If that is interrupted, the block is left."""
        thing = self._awaited
        entered: list[bool] = []

        async def enter() -> Any:
            value = await thing.__aenter__()
            entered.append(True)
            return value

        try:
            return self._wait(enter)
        except BaseException as error:
            if entered:
                with contextlib.suppress(Exception):
                    self._wait(thing.__aexit__, (type(error), error, error.__traceback__))
            raise

    def _enter_at_once(self) -> Any:
        """The same for what is entered by ``with``."""
        thing = self._awaited
        entered: list[bool] = []

        def enter() -> Any:
            value = thing.__enter__()
            entered.append(True)
            return value

        try:
            return self._enqueue(enter)
        except BaseException as error:
            if entered:
                self._enqueue(thing.__exit__, (type(error), error, error.__traceback__))
            raise

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Any:
        return self._wait(self._awaited.__aexit__, (kind, error, traceback))

    def _next(self) -> Any:
        """Wait for the next item of an iterator."""
        try:
            return self._wait(self._awaited.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None


class Verbs(Twin):
    """The base class of the verbs of a library, which are the same in all of its forms."""

    __slots__ = ()

    def _do(self, verb: Callable[..., Any], arguments: Arguments = (), keywords: dict[str, Any] = _NO_KEYWORDS) -> Any:
        raise NotImplementedError


class Awaits(Verbs):
    """The form of `dev.blas`: each verb waits for its end."""

    __slots__ = ()
    _do = Twin._wait


class Enqueues(Verbs):
    """The form of the `blas` of a batch and of a recorder: no verb waits."""

    __slots__ = ()
    _do = Twin._enqueue


def bare(value: Any) -> Any:
    """Return an argument as the awaited face takes it: what is in a twin, also in lists, tuples and generators."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, Twin):
        return value._awaited
    if kind in _CONTAINERS:
        return kind([bare(each) for each in value]) if _has_twins(value) else value
    if kind is GeneratorType:
        return [bare(each) for each in value]
    return value


def _has_twins(values: Any) -> bool:
    return any(isinstance(each, Twin) or (type(each) in _CONTAINERS and _has_twins(each)) for each in values)


def _bare_each(arguments: Arguments) -> list[Any]:
    return [each if type(each) in _PLAIN else bare(each) for each in arguments]


def _bare_values(keywords: dict[str, Any]) -> dict[str, Any]:
    """Take the keywords of one call out of their twins, in place."""
    for name, value in keywords.items():
        if type(value) not in _PLAIN:
            keywords[name] = bare(value)
    return keywords


# --- the classes ------------------------------------------------------------------------------------------------------

_twin_of: Final[dict[type, type[Twin]]] = {}
"""The twin's class for each class that was seen; `Twin` itself for one that has none."""


def _class_for(kind: type) -> type[Twin]:
    from ._faces import HOMES

    if kind.__name__ not in HOMES or kind.__module__.partition(".")[0] != "atomr_trio":
        return Twin
    cls: type[Twin] = getattr(importlib.import_module(__package__), kind.__name__)  # which shows its public module
    return cls


def begun(opening: Callable[[], AbstractAsyncContextManager[Any]], name: str) -> Any:
    """Open what `opening` opens, in a run of its own, and return its twin."""
    loop = Loop(opening, name)
    session = Session(loop)
    try:
        loop.open()
    except Exception as error:
        drop_frames(error)
        raise
    return session.twin(loop.face)
