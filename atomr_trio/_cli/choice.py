"""The device that a command uses: the one that the user wrote after --device, or the best one that works.

It finds out by opening devices, as any program would.
"""

from __future__ import annotations

import argparse
import os
from typing import Literal

import attrs
import trio

import atomr_trio

Backend = Literal["cuda", "sim"]

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
    """Read `0`, `1`, ..., `sim` or `sim:1`, as argparse wants it."""
    name, colon, number = text.partition(":")
    backend: Backend = "sim" if name == "sim" else "cuda"
    index = text if backend == "cuda" else number if colon else "0"
    if not index.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a device; write the number of a GPU, or sim")
    return Choice(int(index), backend)


async def choose(wanted: Choice | None) -> tuple[Choice, str | None]:
    """Return the device to use, and the reason why it is the simulator if the user named none."""
    if wanted is not None:
        return wanted, None
    match os.environ.get("ATOMR_TRIO_BACKEND"):
        case "sim" | "cuda" as backend:
            return Choice(0, backend), None
        case None | "":
            pass
        case other:
            raise atomr_trio.InvalidArgument(f'ATOMR_TRIO_BACKEND is {other!r}; it must be "cuda" or "sim"')
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
