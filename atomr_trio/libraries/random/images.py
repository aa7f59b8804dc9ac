"""The kernels of our own: their sources, and their images as a device's compiler makes them.

A source is compiled when it is first needed: awaited by a verb that is awaited, and at once, which blocks, by one of a
batch or of a recorder. Nothing is compiled twice, because images are kept here for the device, and on disk.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ..._calls.compiling import compiled, compiled_now
from ..._compiling.compiler import CompiledProgram
from ..._compiling.options import NvrtcOptions
from ..._generation.core import DeviceCore, DevicePart

_FOLDER: Final = Path(__file__).parent / "kernels"

SOURCES: Final = MappingProxyType(
    {
        "uniform": ("philox.cuh", "words.cuh", "uniform.cu"),
        "normal": ("philox.cuh", "words.cuh", "normal.cu"),
        "inversion": ("philox.cuh", "inversion.cu"),
        "integers": ("philox.cuh", "fill.cuh", "integers.cu"),
        "gamma": ("philox.cuh", "gamma.cuh", "gamma.cu"),
        "beta": ("philox.cuh", "gamma.cuh", "beta.cu"),
        "standard_t": ("philox.cuh", "gamma.cuh", "standard_t.cu"),
        "poisson": ("philox.cuh", "counts.cuh", "poisson.cu"),
        "binomial": ("philox.cuh", "fill.cuh", "counts.cuh", "binomial.cu"),
    }
)
"""The files of each source, one after the other."""


@functools.cache
def source_of(name: str) -> str:
    """Return a source as one text."""
    return "".join(f'#line 1 "{file}"\n{(_FOLDER / file).read_text()}' for file in SOURCES[name])


@functools.cache
def _options_of(name: str) -> NvrtcOptions:
    # Without contraction, the bits depend on the source alone, and not on what a compiler puts together.
    return NvrtcOptions(name=f"random_{name}.cu", fmad=False, signatures=False)


class Images(DevicePart):
    """The images of one device."""

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self._found: dict[str, bytes] = {}

    def now(self, name: str) -> bytes:
        """Return the image of a source. If it is not there, this waits for the compiler, and blocks the task.

        Raises `LibraryNotFound` when there is no NVRTC.
        """
        image = self._found.get(name)
        if image is None:
            image = self._keep(name, compiled_now(self.device, source_of(name), _options_of(name)))
        return image

    async def load(self, names: Iterable[str]) -> None:
        """Compile these sources, unless they are there. Raises as `now` does."""
        for name in names:
            if name not in self._found:
                self._keep(name, await compiled(self.device, source_of(name), _options_of(name)))

    def _keep(self, name: str, program: CompiledProgram) -> bytes:
        image = self._found[name] = program.image
        return image
