"""What a process holds, counted by itself: the library's objects by their types, and the sizes of all its tables.

The parent calls `tally`; a worker is made to tell its own by a signal (`Witness`), so this is the standard library
alone. A table that grows is found without being named, also one that is added later.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import json
import os
import signal
import sys
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGES = ("atomr_trio", "atomr_cuda", "atomr_sim")


def collect() -> None:
    """Have everything dropped that nobody has."""
    for _ in range(2):  # what one collection has ended may have let go of more
        gc.collect()


def tally() -> dict[str, int]:
    """How many objects of each of our types there are, and how much is in each of their tables and of our modules'."""
    counts: dict[str, int] = {}
    kinds: dict[type, _Kind | None] = {}

    def add(name: str, value: object) -> None:
        if isinstance(value, _TABLES):
            counts[name] = counts.get(name, 0) + len(value)

    for item in gc.get_objects():
        kind = type(item)
        if kind is types.FunctionType:
            if _is_ours(item.__module__):
                name = f"function {item.__module__}.{item.__qualname__}"
                counts[name] = counts.get(name, 0) + 1
            continue
        if kind not in kinds:
            kinds[kind] = _Kind(kind) if _is_ours(kind.__module__) and not issubclass(kind, type) else None
        known = kinds[kind]
        if known is not None:
            counts[known.name] = counts.get(known.name, 0) + 1
            for attribute, value in known.attributes(item):
                add(f"{known.name}.{attribute}", value)
    for name, module in list(sys.modules.items()):
        if _is_ours(name):
            for attribute, value in list(vars(module).items()):
                add(f"{name}.{attribute}", range(value.cache_info().currsize) if _is_cache(value) else value)
    return counts


def _is_ours(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in PACKAGES


def _is_cache(value: object) -> bool:
    return hasattr(value, "cache_info") and not isinstance(value, type)


_TABLES = (
    dict,
    list,
    set,
    frozenset,
    bytearray,
    range,
    collections.deque,
    weakref.WeakSet,
    weakref.WeakKeyDictionary,
    weakref.WeakValueDictionary,
)


class _Kind:
    """One of our types: what it is called, and where its objects keep their attributes."""

    def __init__(self, kind: type) -> None:
        self.name = f"{kind.__module__}.{kind.__qualname__}"
        self._members = [
            (name, member)
            for base in kind.__mro__
            for name, member in vars(base).items()
            if isinstance(member, types.MemberDescriptorType)
        ]

    def attributes(self, item: object) -> Iterator[tuple[str, Any]]:
        yield from list(getattr(item, "__dict__", {}).items())
        for name, member in self._members:
            with contextlib.suppress(AttributeError):  # it is not set
                yield name, member.__get__(item)


TELL = """
import json, os, signal, sys

def tell(*_):
    sys.path.append({tests!r})
    from support import held
    with open({path!r} + ".new", "w") as file:
        held.collect()
        json.dump(held.tally(), file)
    os.rename({path!r} + ".new", {path!r})

signal.signal(signal.SIGUSR1, tell)
"""


class Witness:
    """Makes workers tell what they hold: those that are started while `folder` is in the module path."""

    def __init__(self, folder: Path) -> None:
        self._answer = folder / "held.json"
        tests = str(Path(__file__).parent)
        (folder / "sitecustomize.py").write_text(TELL.format(tests=tests, path=str(self._answer)))

    def ask(self, worker: int) -> None:
        """Ask a worker, which answers a little later."""
        self._answer.unlink(missing_ok=True)
        os.kill(worker, signal.SIGUSR1)

    @property
    def answered(self) -> bool:
        """Whether it has answered."""
        return self._answer.exists()

    def answer(self) -> dict[str, int]:
        """What it holds."""
        counts: dict[str, int] = json.loads(self._answer.read_text())
        return counts


def descriptors(process: int) -> int:
    """How many files a process has open."""
    return len(os.listdir(f"/proc/{process}/fd"))


def mappings(process: int) -> int:
    """How many mappings a process has of memory that has a file: shared memory, images, libraries."""
    return sum(len(line.split()) > 5 for line in Path(f"/proc/{process}/maps").read_text().splitlines())


def private_bytes(process: int) -> int:
    """Memory of a process that is nobody else's."""
    status = Path(f"/proc/{process}/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1])
