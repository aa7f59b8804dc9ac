"""The kernel's OOM killer, and whether it has ended a child: the counter of the control group, before and after.

A child begins in the control group of its parent, so that the parent's own tells of it. With cgroup v2 the counter is
``oom_kill`` in ``memory.events``, with v1 in ``memory.oom_control``; the kernel raises it before it sends the signal,
so whoever sees the child gone sees the count (Linux, mm/oom_kill.c, __oom_kill_process). Where the group of the whole
machine runs out of memory there may be no such file, and then nothing is known.

A kill explains the end of one child: what has been attributed to one counts for no other. These are pseudo files of a
few bytes, which no disk holds up, and none stays open. Imports the standard library alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

OWN_GROUPS = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")
_COUNTER = "oom_kill"
_V1_FILE = "memory.oom_control"
_V2_FILE = "memory.events"


def counter() -> tuple[Path, int] | None:
    """The file that counts the kills in the control group of this process, and the count; None where there is none."""
    for path in _candidates():
        count = _count_in(path)
        if count is not None:
            return path, count
    return None


def _candidates() -> list[Path]:
    """Return the paths where the counter may be. Of v1 and v2, the one counts that has the memory controller."""
    first, second = [], []
    try:
        lines = OWN_GROUPS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        # In a container, what is mounted may be the folder of the group itself, whatever its path is outside.
        folders = (group.lstrip("/"), "")
        if "memory" in controllers.split(","):
            first = [MOUNT / "memory" / folder / _V1_FILE for folder in folders]
        elif not controllers:
            second = [MOUNT / folder / _V2_FILE for folder in folders]
    return first + second


def _count_in(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    counts = [int(value) for name, _, value in (line.partition(" ") for line in lines) if name == _COUNTER]
    return counts[0] if counts else None


class OomWatch:
    """The counter as it was when a child was started."""

    attributed: ClassVar[set[int]] = set()
    """Kills that were the end of a child of this process, by the count that each has made."""

    def __init__(self) -> None:
        found = counter()
        self._path: Path | None = None if found is None else found[0]
        self._before: int = 0 if found is None else found[1]

    def explained(self) -> str | None:
        """The file in which a kill was counted that explains the end of the child, which is then attributed to it."""
        now = None if self._path is None else _count_in(self._path)
        kills = set() if now is None else set(range(self._before + 1, now + 1)) - OomWatch.attributed
        if not kills:
            return None
        OomWatch.attributed.add(min(kills))
        return str(self._path)
