"""Records of modules and launches."""

from __future__ import annotations

from typing import NamedTuple

from ..protocol import Mode, VerbTable

MODULE = VerbTable("module", 2)

LOAD = MODULE.verb("load", Mode.BLOCKS, {"module": "Q", "image_bytes": "Q"}, answers=True)
"""Load the image in the record's descriptor. The descriptor also holds JSON. `kernels` is a list of names, or null for
all that the driver can list; `globals` is a list of variables. The answer has the attributes of each kernel by its
name. It has the address and bytes of each variable by its name after an ampersand. A variable that does not exist has
no answer."""

UNLOAD = MODULE.verb("unload", Mode.BLOCKS, {"module": "Q"})

LAUNCH = MODULE.verb(
    "launch",
    Mode.ENQUEUES,
    {
        "kernel": "Q",
        "grid_x": "I",
        "grid_y": "I",
        "grid_z": "I",
        "block_x": "I",
        "block_y": "I",
        "block_z": "I",
        "shared": "I",
        "options": "I",
    },
    capturable=True,
)
"""Launch a kernel of a loaded module. The tail is the parameter block; each launch names the roles of its arrays.

`options` is the result of `LaunchOptions.encode`; 0 is an ordinary launch. It is the same in every launch of a kind, so
the worker decodes it once.
"""

OCCUPANCY = MODULE.verb("occupancy", Mode.BLOCKS, {"kernel": "Q", "threads": "I", "shared": "I"}, answers=True)
"""Answer with the number of blocks of this size that a multiprocessor holds at a time."""

SUGGEST_BLOCK = MODULE.verb("suggest_block", Mode.BLOCKS, {"kernel": "Q", "shared": "I"}, answers=True)
"""Answer with the number of threads of a block that gives the most warps on a multiprocessor."""


class LaunchOptions(NamedTuple):
    """The options of a launch besides its shape: the attributes of ``cuLaunchKernelEx``."""

    cooperative: bool = False
    """All blocks of the grid are on the device at the same time, so they may wait for each other."""
    programmatic: bool = False
    """The kernel may begin before the kernel ahead of it in its stream has ended."""
    cluster: tuple[int, int, int] | None = None
    """The blocks of a cluster in each direction, each less than 32."""
    priority: int | None = None
    """The priority; a smaller number is more urgent; from -128 to 127."""

    def encode(self) -> int:
        """Return the options as the 32 bits of a launch's record; 0 if no option is set."""
        word = self.cooperative | self.programmatic << 1
        if self.priority is not None:
            word |= 1 << 2 | (self.priority & 0xFF) << 8
        for place, size in enumerate(self.cluster or ()):
            word |= size << 16 + 5 * place
        return word

    @classmethod
    def decode(cls, word: int) -> LaunchOptions:
        """Return the options that `encode` has written."""
        x, y, z = (word >> 16 + 5 * place & 31 for place in range(3))
        priority = (word >> 8 & 0xFF ^ 0x80) - 0x80 if word & 4 else None
        return cls(bool(word & 1), bool(word & 2), (x, y, z) if x else None, priority)


_KERNEL_BITS = 20
"""The bits of a kernel's number: a module has fewer kernels than these can count."""


def kernel_number(module: int, index: int) -> int:
    """Return the number of the kernel with this index in the list of names of a load."""
    return module << _KERNEL_BITS | index


PORTABLE_CLUSTER = 8
"""The blocks of a cluster that every device with clusters supports."""
