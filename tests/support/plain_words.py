"""The words of the blocking face where they differ from those of the awaited one; for ``plain.py``."""

# ruff: noqa: E501

from __future__ import annotations

WORDS = (
    (r"made by `open_device` or `open_devices`", "made by `start`"),
    (r"Made by `open_device` or `open_devices`", "Made by `start` or `start_devices`"),
    (r"Made by `open_devices`", "Made by `start_devices`"),
    (r"async with atomr_trio\.open_device", "with atomr_trio.start"),
    (
        r"`OutsideRun` when the call does not come from the trio run that\s+opened the device",
        "`OutsideRun` in a task of trio",
    ),
    (r"Every method may raise `OutsideRun`", "Every method may raise `OutsideRun` in a task of trio"),
    (r"`open_device`('s| that| starts| raises)", r"`start`\1"),
    (r"\b(of|than|that|by|to) `open_device`", r"\1 `start`"),
    (r"\b(of|to) `open_devices`", r"\1 `start_devices`"),
    (r"as an async iterator", "as an iterator"),
    (r"is an async iterator", "is an iterator"),
    (r": an async iterator that", ": an iterator that"),
    (r": an async context manager", ": a context manager"),
    (
        r"\n\nBoth `with` and `async with` work\. Entering the latter is a checkpoint, and so is the iteration; leaving is none\.\n",
        "\n\n",
    ),
    (r"\s+an awaited\s+command", " a\ncommand that was waited for"),
    (
        r", and no other task runs meanwhile: for thousands use `await map_memory\(\)`",
        ". `map_memory` lets others use the device meanwhile",
    ),
    (r"with other tasks running meanwhile", "with other threads using the device meanwhile"),
    (r"another task may take", "another thread may take"),
    (r"aside for this task", "aside for this thread"),
    (r"that the task makes in the block", "that the thread makes in the block"),
    (r"so\s+are those of tasks that it starts there", "so\nare those of functions that it runs there"),
    (
        r"awaited, or, in a batch and in a graph, while the task is blocked",
        "waited for, or, in a batch and in a graph, while the device is blocked",
    ),
    (r"of\s+several tasks and batches", "of\nseveral threads and batches"),
    (r"blocks every task: some", "blocks the device: some"),
    (r"`launch` lets other tasks run", "`launch` lets other threads run"),
    (r"and no other task runs meanwhile", "and the device does nothing else meanwhile"),
    (
        r"``await array\.copy_from\(source\)``, outside of the batch or in its block, reads in other threads",
        "`DeviceArray.copy_from`, outside of the batch or in its block, reads in several threads",
    ),
    (r"\bAwait those\b", "Use those verbs outside of the batch"),
    (r"\baclose\b", "close"),
    (r"\bawait\s+", ""),
    (r"\basync with\b", "with"),
    (r"\basync for\b", "for"),
    (r"``await``", "waiting"),
)
"""What a docstring of the awaited face says, and what that of the blocking form says instead."""


STARTS = {
    "open_device": (
        "start",
        "Device",
        "Open a GPU for a program without trio. The verbs are those of `open_device`, and each waits for its end.",
        """The device has a trio run in a thread of its own, and every thread may use it. A fault costs what it costs there:
the calls that were running raise `ContextLost`, and the device goes on with its arrays intact. Ctrl-C ends a
wait at once, and the device lives.""",
    ),
    "open_devices": (
        "start_devices",
        "Devices",
        "Open several GPUs as one group, for a program without trio: `open_devices` with verbs that wait.",
        """The group has a trio run in a thread of its own, and every thread may use it. A fault of one device costs the
others nothing. If one cannot be opened, the others are closed, and its error is raised.""",
    ),
}
"""The functions that open devices: name, result, summary and description of the blocking form."""

START_END = """It is closed by `close`, at the end of a ``with`` block, when nothing refers to it or to an object of it any more, and at
the exit of the interpreter, however that ends. Forked children get `DeviceFailed` from every call.

Raises as `atomr_trio.{opens}` does, and `OutsideRun` in a task of trio: there use `{opens}`."""
