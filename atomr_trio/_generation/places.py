"""Places for descriptors in this process's table."""

from __future__ import annotations

import contextlib
import os


class Places:
    """Descriptors that reserve places in this process's table for others that are on their way from the worker.

    The kernel drops a descriptor if the receiver's table has no place for it, and then the memory would not outlive its
    worker. So a place is reserved before memory is requested. If there is none, the caller gets an error, and nothing
    was requested.
    """

    def __init__(self, descriptor: int) -> None:
        self._copied = descriptor
        self._awaited: set[int] = set()
        self.held: list[int] = []
        """The reserved places."""

    def hold(self, address: int) -> None:
        """Reserve a place for the descriptor of the chunk at an address. Raises `OSError` if there is none."""
        self.held.append(os.dup(self._copied))
        self._awaited.add(address)

    def awaits(self, address: int) -> bool:
        """Return whether the descriptor of the chunk at an address is awaited."""
        return address in self._awaited

    def __enter__(self) -> None:
        """Free one of the places for the descriptor that is received in this block."""
        os.close(self.held.pop())

    def __exit__(self, *_exc_info: object) -> None:
        self._balance()

    def give_up(self, address: int) -> None:
        """Note that a descriptor has come, or is not awaited any more."""
        self._awaited.discard(address)
        self._balance()

    def _balance(self) -> None:
        """Hold as many places as descriptors are awaited, or as many as the system has."""
        while len(self.held) > len(self._awaited):
            os.close(self.held.pop())
        with contextlib.suppress(OSError):  # another thread took the place: the worker can send the descriptor again
            while len(self.held) < len(self._awaited):
                self.held.append(os.dup(self._copied))

    def close(self) -> None:
        """Release every place: nothing is awaited any more."""
        self._awaited.clear()
        self._balance()
