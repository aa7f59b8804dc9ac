"""The device that a command uses: the one that the user wrote after --device, or the best one that works.

It finds out by opening devices, as any program would.
"""

from __future__ import annotations

import argparse

import attrs
import trio

import atomr_trio
from atomr_trio._wire.backends import BACKENDS, Backend, backend_of_environment

_PATIENCE = 60.0
"""Seconds that a device may take to open; a slower one counts as not working."""


@attrs.frozen
class Choice:
    """A device, by the two arguments of `open_device`."""

    index: int
    backend: Backend

    def __str__(self) -> str:
        return f"GPU {self.index}" if self.backend == "cuda" else f"simulated GPU {self.index}"


def device_argument(text: str) -> Choice:
    """Read `0`, `1`, ..., or a backend, `sim` or `cuda` or `gpu`, with or without a number: `sim:1`."""
    name, colon, number = ("cuda", ":", text) if text.isdecimal() else text.partition(":")
    index = number if colon else "0"
    if name not in BACKENDS or not index.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a device; write the number of a GPU, or sim")
    return Choice(int(index), BACKENDS[name])


async def choose(wanted: Choice | None) -> tuple[Choice, str | None]:
    """Return the device to use, and the reason why it is the simulator if the user named none."""
    if wanted is not None:
        return wanted, None
    try:
        backend = backend_of_environment()
    except ValueError as error:
        raise atomr_trio.InvalidArgument(str(error)) from None
    if backend is not None:
        return Choice(0, backend), None
    gpu = Choice(0, "cuda")
    trouble = await what_is_wrong_with(gpu)
    return (gpu, None) if trouble is None else (Choice(0, "sim"), trouble)


async def what_is_wrong_with(choice: Choice) -> str | None:
    """Open the device and close it again; return the first line of the error, or None."""
    try:
        with trio.fail_after(_PATIENCE):
            async with atomr_trio.open_device(choice.index, backend=choice.backend):
                return None
    except atomr_trio.DeviceError as error:
        return str(error).partition("\n")[0]
    except trio.TooSlowError:
        return f"{choice} did not open within {_PATIENCE:.0f} s"
