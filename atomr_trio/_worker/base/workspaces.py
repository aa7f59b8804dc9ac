"""Workspaces: device memory that a worker gives to libraries. It counts for the user's ``memory_limit``."""

from __future__ import annotations

import threading
from ctypes import byref
from typing import TYPE_CHECKING, Any

from atomr_cuda.constants.driver import CUDA_ERROR_OUT_OF_MEMORY

from ..._wire.protocol import WORKSPACES_WORD

if TYPE_CHECKING:
    from .lanes import WorkerServices


class Workspaces:
    """The bytes of device memory that the workspaces of a worker take, of all libraries and lanes.

    They are a word of the timeline page, so that the user's process sees them.
    """

    def __init__(self, words: Any) -> None:
        self._words = words
        self._taken = 0
        self._lock = threading.Lock()

    @property
    def taken(self) -> int:
        """The bytes that they take now."""
        return self._taken

    def take(self, size: int, allowed: int) -> int | None:
        """Count so many bytes more. Returns None; or how many are left, if it would be more than `allowed` in all."""
        with self._lock:
            if self._taken + size > allowed:
                return max(0, allowed - self._taken)
            self._taken = self._words[WORKSPACES_WORD] = self._taken + size
            return None

    def give(self, size: int) -> None:
        """Count so many bytes less."""
        with self._lock:
            self._taken = self._words[WORKSPACES_WORD] = self._taken - size


def allocate(services: WorkerServices, driver: Any, user: str, size: int, more: int, allowed: int) -> Any:
    """Return device memory for a workspace, with which all workspaces take so many bytes `more`.

    Raises the driver's error for a lack of memory if that would be more than `allowed`; `user` says what needs it.
    """
    left = services.workspaces.take(more, allowed)
    if left is not None:
        error = driver.cuMemAlloc.library.error(CUDA_ERROR_OUT_OF_MEMORY, driver.cuMemAlloc.symbol)
        text = (
            f"{user} needs {more:,} bytes for its workspace, and the memory limit leaves {left:,}: free arrays, "
            "and `await dev.trim()` to give cached memory back"
        )
        raise services.cuda_error(error.status, error.name, text, error.library, error.function)
    room = driver.CUdeviceptr()
    try:
        driver.cuMemAlloc(byref(room), size)
    except BaseException:
        services.workspaces.give(more)
        raise
    return room


def release(services: WorkerServices, driver: Any, room: Any, less: int) -> None:
    """Give such memory back; all workspaces take so many bytes less then."""
    driver.cuMemFree(room)
    services.workspaces.give(less)
