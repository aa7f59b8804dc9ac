"""The limits of the machine: which limit is behind an error of the operating system, and the limit that is raised.

Both sides of the process boundary use this module, so it imports the standard library alone.

A lack of descriptors, memory or threads is an `OSError`, a `MemoryError` or, for a thread, a plain `RuntimeError`. Only
`shortage` distinguishes these errors from defects, and names the limit in words.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import Final

if sys.platform != "win32":  # where this package can be imported, and devices cannot be opened
    import resource

_UNITS: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_MEMORY_FACTS: Final = "/proc/meminfo"
_DESCRIPTORS: Final = "/proc/self/fd"
_TRIED: Final = 1 << 14
"""A descriptor is the lowest that is free, so that programs seldom have one above."""
_NO_THREAD: Final = "can't start new thread"
"""The message of CPython's `RuntimeError`, which has no number."""
FEW_DESCRIPTORS: Final = 512
"""The limit of descriptors below which a driver or a library may fail, with any message."""
FEW_PROCESSES: Final = 256
"""The same limit for processes and threads."""
OF_A_WORKER: Final = 16
"""Descriptors of this process for one worker: its socket, pipe, process, ring, page and bells, and some to spare."""
OF_A_DEVICE: Final = 16
"""The same for a device, apart from its workers and its chunks of memory."""
OF_THE_PROGRAM: Final = 64
"""Descriptors that a program with several devices may still open itself."""
FEWEST_CHUNKS: Final = 8
"""The fewest chunks with which a device of a group is of use: they hold all memory, if arrays are large."""


def in_words(value: int, *, bytes_: bool = False) -> str:
    """Return a limit's value as text: a number, or a number of bytes."""
    if value == resource.RLIM_INFINITY:
        return "unlimited"
    if bytes_:
        for size, unit in _UNITS:
            if value >= size:
                return f"{value / size:.4g} {unit}"
    return f"{value:,}"


def occupy_standard_streams() -> None:
    """Have descriptors 0 to 2 lead to the null device where a program has closed them.

    Whatever prints would else write into a file of ours that got one of these numbers. (``mmap`` takes one too.)
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            if null != number:  # another thread was quicker, and the number is taken now
                os.close(null)


def soft_limit(which: int) -> int:
    """Return the present value of a limit for this process."""
    return resource.getrlimit(which)[0]


def _descriptors() -> str:
    return f"RLIMIT_NOFILE (`ulimit -n`) is {in_words(soft_limit(resource.RLIMIT_NOFILE))}"


def _memory() -> str:
    return f"RLIMIT_AS (`ulimit -v`) is {in_words(soft_limit(resource.RLIMIT_AS), bytes_=True)}"


def _processes() -> str:
    limit = in_words(soft_limit(resource.RLIMIT_NPROC))
    return f"RLIMIT_NPROC (`ulimit -u`) is {limit}, and a container may have a limit of its own (`pids.max`)"


def shortage(error: BaseException) -> str | None:
    """Describe which resource is used up, and the limit behind it; None for an error about something else."""
    if isinstance(error, MemoryError):
        return f"there is no host memory left: {_memory()}"
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return f"no thread can be started: {_processes()}"
    match error.errno if isinstance(error, OSError) else None:
        case errno.EMFILE:
            return f"no file descriptor is left: {_descriptors()}"
        case errno.ETOOMANYREFS:
            return f"too many file descriptors are being sent to other processes: {_descriptors()}"
        case errno.ENFILE:
            return "the whole system has no file descriptor left: `sysctl fs.file-max` is its limit"
        case errno.ENOMEM | errno.ENOBUFS:
            return f"there is no host memory left: {_memory()}"
        case errno.EAGAIN:
            return f"no process can be started: {_processes()}"
        case errno.EFBIG:
            return f"a file or shared memory would exceed its limit: RLIMIT_FSIZE (`ulimit -f`) is {_file_size()}"
        case errno.ENOSPC | errno.EDQUOT:
            return "no space is left on the disk, or in its quota"
    return None


def _file_size() -> str:
    return in_words(soft_limit(resource.RLIMIT_FSIZE), bytes_=True)


def reason_of(error: BaseException) -> str:
    """Return the text of an error, which names the limit behind it, if there is one."""
    return shortage(error) or str(error) or type(error).__name__


def no_descriptor_left() -> OSError | None:
    """Return the error that opening a descriptor would raise now; None while one is free."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error
    return None


def available_memory() -> int:
    """Return the bytes of available memory. More shared memory is not refused: the system ends processes later.

    Where /proc does not tell (a sandbox may have none), these are the bytes that the machine has at all.
    """
    with contextlib.suppress(OSError), open(_MEMORY_FACTS, encoding="ascii") as facts:
        for line in facts:
            name, value = line.split(":", 1)
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def low_limits() -> str:
    """Describe the limits of this process that are low enough to make a start fail; empty for none."""
    low = []
    descriptors = soft_limit(resource.RLIMIT_NOFILE)
    if descriptors != resource.RLIM_INFINITY and descriptors < FEW_DESCRIPTORS:
        low.append(_descriptors())
    if soft_limit(resource.RLIMIT_AS) != resource.RLIM_INFINITY:
        low.append(_memory())
    processes = soft_limit(resource.RLIMIT_NPROC)
    if processes != resource.RLIM_INFINITY and processes < FEW_PROCESSES:
        low.append(_processes())
    return " and ".join(low)


def raise_descriptor_limit() -> None:
    """Raise this process's soft limit of descriptors to the hard one, where that is allowed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # a sandbox may refuse it, and then the limit stays
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def open_descriptors(limit: int) -> int:
    """Return how many descriptors below `limit` are open. Where /proc does not tell, each of the lowest is tried."""
    try:
        return len(os.listdir(_DESCRIPTORS))
    except FileNotFoundError:
        return sum(map(_is_open, range(min(limit, _TRIED))))


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def chunks_within_limit(devices: int, workers: int, most: int) -> int:
    """Return the chunks that each of several devices may have, `most` if the limit of descriptors allows it.

    `workers` are those of one device at rest, its standbys included; a lost one may remain beside them for a while.
    Raises `OSError` (EMFILE) if not even a few chunks would be left.
    """
    limit = soft_limit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return most
    taken = open_descriptors(limit) + OF_THE_PROGRAM
    fixed = OF_A_DEVICE + (workers + 1) * OF_A_WORKER
    room = (limit - taken) // devices - fixed
    if room < FEWEST_CHUNKS:
        needed = taken + devices * (fixed + FEWEST_CHUNKS)
        text = f"{devices} devices with {workers} workers each need {needed:,} file descriptors, and {_descriptors()}"
        raise OSError(errno.EMFILE, text)
    return min(most, room)
