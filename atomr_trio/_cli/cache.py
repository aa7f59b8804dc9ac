"""`python -m atomr_trio cache`: list, check or delete the cache of compiled kernels.

It works without a device and without a compiler.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import atomr_trio
from atomr_trio._cli.progress import Progress

_MANY: Final = 100
"""The number of files above which progress is shown."""

_UNITS: Final = ("B", "KiB", "MiB", "GiB")
_AGES: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=tuple(_ACTIONS),
        help="list what is there, delete it, print the folder, or read everything and name what is damaged",
    )


def size(count: int) -> str:
    """Return a number of bytes as text: 512 B, 3.4 MiB."""
    scaled = float(count)
    for unit in _UNITS:
        if scaled < 1024 or unit == _UNITS[-1]:
            break
        scaled /= 1024
    return f"{scaled:.0f} {unit}" if unit == "B" else f"{scaled:.1f} {unit}"


def age(seconds: float) -> str:
    """Return a time span in its largest unit."""
    length, unit = next(((length, unit) for length, unit in _AGES if seconds >= length), _AGES[-1])
    return f"{max(0.0, seconds) // length:.0f} {unit}"


def described(kernel: atomr_trio.CachedKernel, now: float) -> str:
    """Return one line: the kernels by the names that the user knows, the target, the compiler, the size, the age."""
    program = kernel.program
    lowered = set(program.lowered_names.values())
    names = ", ".join([*program.lowered_names, *(name for name in program.entries if name not in lowered)])
    images = {"PTX": program.ptx, "cubin": program.cubin, "LTO-IR": program.ltoir}
    sizes = ", ".join(f"{name} {size(len(image))}" for name, image in images.items() if image)
    version = ".".join(map(str, program.nvrtc_version))
    return f"{names or '(no kernels)'}  {program.target}  NVRTC {version}  {sizes}  {age(now - kernel.created)} old"


def list_entries(cache: atomr_trio.NvrtcCache) -> int:
    """Print a line for each good entry, and their sum."""
    count = total = 0
    now = time.time()
    for kernel in cache.entries():
        count, total = count + 1, total + kernel.nbytes
        print(described(kernel, now))
    print(f"{count} {'entry' if count == 1 else 'entries'}, {size(total)} of {size(cache.max_bytes)}")
    return 0


def clear(cache: atomr_trio.NvrtcCache) -> int:
    """Delete everything and print the number of files."""
    deleted = cache.clear()
    print(f"{deleted} {'file' if deleted == 1 else 'files'} deleted")
    return 0


def print_path(cache: atomr_trio.NvrtcCache) -> int:
    """Print the folder alone, for scripts."""
    print(cache.directory)
    return 0


def verify(cache: atomr_trio.NvrtcCache) -> int:
    """Read everything; return 1 when a file is damaged."""
    bars: list[Progress] = []

    def show(done: int, total: int) -> None:
        if total >= _MANY and not bars:
            bars.append(Progress("verifying", total, unit="file"))
        for bar in bars:
            bar.update(done)

    problems = cache.verify(show)
    for bar in bars:
        bar.finish()
    for path, problem in problems.items():
        print(f"{path}: {problem}")
    print(f"{len(problems)} bad" if problems else "all good")
    return 1 if problems else 0


_ACTIONS: Final[Mapping[str, Callable[[atomr_trio.NvrtcCache], int]]] = MappingProxyType(
    {"list": list_entries, "clear": clear, "path": print_path, "verify": verify}
)


async def main(arguments: argparse.Namespace) -> int:
    """Run the action on the cache that programs use by default."""
    cache = atomr_trio.NvrtcCache()
    if cache.directory is None:
        print("there is no cache on disk")
        return 0
    return _ACTIONS[arguments.action](cache)
