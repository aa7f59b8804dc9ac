"""The real cuRAND, whose host generators need no GPU and give the numbers of a GPU.

The library is looked for as on a machine with a GPU (``ATOMR_TRIO_CURAND_PATH``, then the finders), once in a process.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable
from ctypes import c_void_p
from typing import TYPE_CHECKING, Any

import numpy as np

from atomr_cuda import curand
from atomr_cuda._library import Library, LibraryMissing
from atomr_cuda.curand import curandOrdering_t as Ordering

from ..._status import Refused

if TYPE_CHECKING:
    from ...engine.memory import Array
    from .kinds import Draw, Settings


class HostLibrary:
    """The functions of a loaded library; none of them needs a device. They return statuses."""

    def __init__(self, loaded: ctypes.CDLL) -> None:
        self._loaded = loaded
        self._bound: dict[str, Callable[..., int]] = {}

    def __getitem__(self, name: str) -> Callable[..., int]:
        found = self._bound.get(name)
        if found is None:
            declared = curand.library.functions[name]
            function = getattr(self._loaded, declared.symbol)
            function.argtypes, function.restype = declared.argtypes, declared.restype
            found = self._bound[name] = function
        return found


@functools.cache
def installed() -> HostLibrary | None:
    """The library, or None where there is none.

    It is loaded apart from ``atomr_cuda.curand``, whose functions are the simulator's.
    """
    declared = curand.library
    apart = Library(
        declared.name,
        pathfinder_name=declared.pathfinder_name,
        sonames=declared.sonames,
        extra="sim",
        describe=curand.describe_status,
    )
    try:
        return HostLibrary(apart.load())
    except LibraryMissing:
        return None


def _destroy(library: HostLibrary, number: int | None) -> None:
    library["curandDestroyGenerator"](number)


class HostGenerator:
    """A host generator of the library. Its numbers in the default ordering stand for those in the dynamic one."""

    def __init__(self, library: HostLibrary, settings: Settings) -> None:
        self._library = library
        self._number = c_void_p()
        self._call("curandCreateGeneratorHost", ctypes.byref(self._number), int(settings.kind))
        self.close: Callable[[], Any] = weakref.finalize(self, _destroy, library, self._number.value)
        self.close.atexit = False
        if settings.is_quasi:
            self._call("curandSetQuasiRandomGeneratorDimensions", self._number, settings.dimensions)
        else:
            self._call("curandSetPseudoRandomGeneratorSeed", self._number, settings.seed)
        if settings.ordering not in (None, Ordering.CURAND_ORDERING_PSEUDO_DYNAMIC):
            self._call("curandSetGeneratorOrdering", self._number, settings.ordering)
        if settings.has_offset and settings.offset:
            self._call("curandSetGeneratorOffset", self._number, settings.offset)

    def _call(self, name: str, *arguments: Any) -> None:
        status = self._library[name](*arguments)
        if status:
            raise Refused(status)

    @staticmethod
    def draws(draw: Draw) -> bool:
        """Tell whether it has a function: all of them."""
        return True

    def draw(self, draw: Draw, count: int, parameters: tuple[float, ...]) -> Array:
        """The next numbers, as an array of shape (count,)."""
        result: Array = np.empty(count, draw.dtype)
        self._call(draw.name, self._number, result.ctypes.data, count, *parameters)
        return result
