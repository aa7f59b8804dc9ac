"""Copies to the device for which the worker reads the user's process itself; see ``_wire/host_reading.py``."""

from __future__ import annotations

from ctypes import addressof
from functools import partial
from typing import TYPE_CHECKING, Any

from ..._wire import host_reading
from ..._wire.records.memory import COPY_IN_READ, NOT_READ, OFFSET_MASK
from .calls import made_ready
from .lanes import CommandRefused, Following, NativeCall, Ready, Target
from .native_calls import Word, native_call
from .pointers import address_of_pointer
from .shared_words import Arguments

if TYPE_CHECKING:
    from collections.abc import Callable

    from .lanes import Command, Lane, RecordWords, WorkerServices


class Reading:
    """The call behind `COPY_IN_READ`."""

    def __init__(self, driver: Any, services: WorkerServices, staged: Callable[[int], int]) -> None:
        """`staged` returns the address of a place in host memory."""
        self._copy = driver.cuMemcpyHtoDAsync
        self._services = services
        self._staged = staged

    def copy(self, command: Command, lane: Lane) -> None:
        """Read the bytes, and have them copied. Raises `CommandRefused`, and the driver's error."""
        destination, place, size, address = COPY_IN_READ.struct.unpack_from(command.payload)
        self._read(address, place, size)
        self._copy(destination, self._staged(place), size, lane.stream)

    def _read(self, address: int, place: int, size: int) -> None:
        try:
            host_reading.read(self._services.user_process, address, self._staged(place), size)
        except OSError as error:
            text = f"the worker could not read {size} bytes of the user's process: {error.strerror or error}"
            raise CommandRefused(error.errno or 0, NOT_READ, text, "memory") from None

    def ready(self, lane: Lane) -> Ready:
        """Return the same ready to be made. All fields are words.

        What native code cannot read is tried once more by Python, which says why.
        """
        copy, stream = self._copy, lane.stream

        def call(words: RecordWords) -> int:
            destination, place, size, address = words
            self._read(address, place, size)
            status: int = copy.status(destination, self._staged(place), size, stream)
            return status

        def refused(status: int) -> Exception:
            error: Exception = copy.library.error(status, copy.symbol)
            return error

        made = made_ready(lambda: None, call, refused)
        return made._replace(native=partial(self._native, stream, refused), again=True)

    def _native(self, stream: Any, refused: Callable[[int], Exception]) -> NativeCall | None:
        """Return the same for native code: it reads, and copies if that has returned the number of the bytes."""
        base, services = self._staged(0), self._services
        copy = native_call(
            self._copy, (Word(0), Word(1, base, OFFSET_MASK), Word(2), stream.value), 3, services.give_up
        )
        if copy is None:
            return None
        here, there, function = host_reading.Span(), host_reading.Span(), host_reading.reader()
        begins = addressof(here), addressof(there)
        begin, size = host_reading.Span.begin.offset, host_reading.Span.size.offset
        targets = [
            *copy.targets,
            Target(1, begins[0] + begin, base, OFFSET_MASK),
            Target(2, begins[0] + size),
            Target(3, begins[1] + begin),
            Target(2, begins[1] + size),
        ]
        return NativeCall(
            address_of_pointer(function),
            Arguments((services.user_process, begins[0], 1, begins[1], 1, 0)),
            targets,
            then=[Following(copy.function, copy.arguments, refused)],
            keep=(copy.keep, here, there),
            returned=2,
        )
