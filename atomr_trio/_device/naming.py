"""The devices that a program names: by index, by UUID, as parts of a divided GPU (MIG), or all of them.

An index counts the devices that the driver shows to this program, which ``CUDA_VISIBLE_DEVICES`` may restrict and
reorder. Names are compared with what the driver says of the same devices, so they are restricted alike.

This process never loads the driver. A list of the devices comes from a process of its own, and is made only for a
program that asks for more than indices.
"""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Sequence
from typing import Any, Literal

import trio

from .._generation.loss import start_failure
from .._generation.process import MAX_DEVICES
from .._values.errors import DeviceFailed, InvalidArgument
from .._values.util import shown
from .._wire.backends import Backend
from .._wire.limits import reason_of
from .._wire.starting import command, end_of, environment

LISTING_SECONDS = 60.0
"""Seconds of real time to wait for the list, as for a worker's start."""
PREFIXES = ("GPU-", "MIG-")
_VISIBLE = "names and indices are of the devices that CUDA_VISIBLE_DEVICES shows to this program, and all without it"

Named = Literal["all"] | Sequence[int | str]
"""The devices as a program names them."""


def check_names(devices: object, count: object) -> Named:
    """Return the names, if they can be names. Raises `InvalidArgument`."""
    if count is not None and (type(count) is not int or count < 1):
        raise InvalidArgument(f"count is a number of devices, 1 or more, not {shown(count)}")
    if devices == "all" and isinstance(devices, str):
        return "all"
    if isinstance(devices, str | bytes) or not isinstance(devices, Sequence):
        raise InvalidArgument(
            f'devices is "all" or a sequence of indices and names, not {shown(devices)}',
            advice="write [0, 1], or open a single device by open_device",
        )
    names: list[int | str] = []
    for name in devices:
        if not isinstance(name, int | str) or not _may_name(name):
            raise InvalidArgument(
                f"a device is named by an index from 0 to {MAX_DEVICES - 1}, or by a UUID, "
                f'"GPU-..." or "MIG-...", not by {shown(name)}'
            )
        names.append(name)
    if not names:
        raise InvalidArgument("devices is empty; it names at least one device")
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"device {name} is named twice")
    if count is not None and count > len(names):
        raise InvalidArgument(f"count is {count}, and only {len(names)} devices are named")
    return names[:count]


def _may_name(name: int | str) -> bool:
    if isinstance(name, str):
        return name.startswith(PREFIXES)
    return type(name) is int and 0 <= name < MAX_DEVICES


async def indices_of(devices: Named, count: int | None, backend: Backend) -> tuple[int, ...]:
    """Return the index of each device, of names that `check_names` has returned.

    Raises `InvalidArgument` for a name that no device has, `DeviceFailed` or `LibraryNotFound` if the devices cannot be
    listed.
    """
    if devices != "all" and all(isinstance(name, int) for name in devices):
        return tuple(name for name in devices if isinstance(name, int))
    return resolved(devices, count, await listed(backend))


def resolved(devices: Named, count: int | None, uuids: Sequence[str]) -> tuple[int, ...]:
    """Return the index of each named device, given the UUIDs of all, without a prefix. Raises `InvalidArgument`.

    As for the driver, the beginning of a UUID names a device if no other has the same.
    """
    if devices == "all":
        wanted = len(uuids) if count is None else count
        if wanted > len(uuids):
            raise InvalidArgument(f"count is {wanted}, and {_number(uuids)} there", advice=_VISIBLE)
        if wanted > MAX_DEVICES:
            raise InvalidArgument(
                f"{_number(uuids)} there, and one group has at most {MAX_DEVICES}", advice="give count, or name them"
            )
        return tuple(range(wanted))
    found: dict[int, int | str] = {}
    for name in devices:
        index = name if isinstance(name, int) else _index_of(name, uuids)
        if index in found:
            raise InvalidArgument(f"device {index} is named twice: as {found[index]} and as {name}")
        found[index] = name
    return tuple(found)


def _index_of(name: str, uuids: Sequence[str]) -> int:
    part = name[len(PREFIXES[0]) :].lower()
    meant = [index for index, uuid in enumerate(uuids) if part and uuid.startswith(part)]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise InvalidArgument(f"{name} is the beginning of several names: of devices {', '.join(map(str, meant))}")
    known = ", ".join(f"{index}: {uuid}" for index, uuid in enumerate(uuids))
    raise InvalidArgument(
        f"no device here is {name}; {_number(uuids)} there ({known})",
        advice=f"{_VISIBLE}. Of a divided GPU (MIG), the driver shows one part to a program: set CUDA_VISIBLE_DEVICES "
        "to its name.",
    )


def _number(uuids: Sequence[str]) -> str:
    return "1 device is" if len(uuids) == 1 else f"{len(uuids)} devices are"


def _start_listing(backend: Backend) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command("atomr_trio._worker.listing", backend),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )


def _answer_of(child: subprocess.Popen[bytes], seconds: float) -> tuple[bytes, bytes]:
    """Return what a process has printed when it has ended and is reaped. Raises `subprocess.TimeoutExpired`."""
    with child:
        try:
            return child.communicate(timeout=seconds)
        except BaseException:
            child.kill()
            raise


@trio.lowlevel.enable_ki_protection
async def listed(backend: Backend) -> list[str]:
    """Return the UUIDs of all devices that the driver shows, in the order of their indices.

    Raises `DeviceFailed` or `LibraryNotFound`.
    """
    try:
        child = _start_listing(backend)
    except OSError as error:
        raise DeviceFailed(f"the devices could not be listed: {reason_of(error)}") from error
    try:
        output, errors = await trio.to_thread.run_sync(
            functools.partial(_answer_of, child, LISTING_SECONDS),
            abandon_on_cancel=True,
            limiter=trio.CapacityLimiter(1),  # threads of the program do not delay it
        )
    except subprocess.TimeoutExpired:
        raise DeviceFailed(f"the driver has not listed its devices within {LISTING_SECONDS:g} s") from None
    finally:
        child.kill()  # if this was cancelled, the thread goes on to reap it
    last_words = errors.decode(errors="replace").strip().rpartition("\n")[2]
    try:
        answer: dict[str, Any] = json.loads(output.decode().rpartition("\n")[2])
    except ValueError:
        answer = {"text": f"the process that lists them {end_of(child.returncode)}"}
        last_words = f": {last_words}" if last_words else ""
    if "uuids" in answer:
        return list(answer["uuids"])
    raise start_failure(None, answer, last_words, "the devices could not be listed").error
