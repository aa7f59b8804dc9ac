"""The part with the GPU: three filters, one of which has a bug."""

import numpy as np
import trio
from numpy.typing import NDArray

import atomr_trio
from atomr_trio import overwrites, read_only

SOURCE = """
#define FILTER(name, value)                                                                       \\
    extern "C" __global__ void name(const unsigned char *in, unsigned char *out, int w, int n)    \\
    {                                                                                             \\
        int i = blockIdx.x * blockDim.x + threadIdx.x;                                            \\
        if (i >= n) return;                                                                       \\
        bool inside = i % w > 0 && i % w < w - 1;  /* the first and the last column stay */       \\
        out[i] = inside ? value : in[i];                                                          \\
    }

FILTER(blur, (in[i - 1] + in[i] + in[i + 1]) / 3)
FILTER(edges, abs(in[i + 1] - in[i - 1]))
FILTER(sharpen, in[i] + (in[i] - in[i * 1000000007LL]) / 2)  // far outside of the image
"""
NAMES = "blur", "edges", "sharpen"
Image = NDArray[np.uint8]


class BrokenFilter(Exception):
    """The kernel of a filter ends the CUDA context."""


class Filters:
    """A device with the kernels. Any number of tasks may use it."""

    def __init__(self, dev: atomr_trio.Device, kernels: dict[str, atomr_trio.Kernel]) -> None:
        self.dev, self.kernels = dev, kernels
        self.turn = trio.Lock()

    @classmethod
    async def compiled(cls, dev: atomr_trio.Device) -> "Filters":
        """Compile all kernels."""
        return cls(dev, {name: await dev.nvrtc.compile(SOURCE, name) for name in NAMES})

    async def apply(self, name: str, image: Image) -> Image:
        """Return the filtered image, or raise `BrokenFilter`."""
        losses = 0
        while losses < 2:
            try:
                return await self._try(name, image)
            except BrokenFilter:
                losses += 1  # once is no proof, since a worker can be lost by itself
            except atomr_trio.ContextLost:
                pass  # the kernel of another request has lost the device under this one's copies: begin again
        raise BrokenFilter(name)

    async def _try(self, name: str, image: Image) -> Image:
        source, target = await self.dev.to_device(image), self.dev.empty(image.shape, np.uint8)
        kernel = self.kernels[name]
        # One kernel at a time, so that a fault has one author. Copies of other requests go on.
        async with self.turn:
            try:
                arrays = read_only(source), overwrites(target)
                await kernel.launch(kernel.grid_for(image.size, 128), 128, *arrays, image.shape[1], image.size)
            except atomr_trio.ContextLost as lost:
                raise BrokenFilter(name) from lost
        return await target.to_host()


def by_numpy(name: str, image: Image) -> Image:
    """The same on the host."""
    result, wide = image.copy(), image.astype(int)
    left, middle, right = wide[:, :-2], wide[:, 1:-1], wide[:, 2:]
    result[:, 1:-1] = (left + middle + right) // 3 if name == "blur" else np.abs(right - left)
    return result
