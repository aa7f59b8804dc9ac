"""The programs that a page of the documentation shows."""

from __future__ import annotations

import re
from pathlib import Path

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def programs(page: Path) -> list[tuple[str, str]]:
    """The programs of a page, each with the output that stands below it."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    followed_by = [*blocks[1:], ("", "")][: len(blocks)]
    return [
        (code, next_text if next_language == "text" else "")
        for (language, code), (next_language, next_text) in zip(blocks, followed_by, strict=True)
        if language == "python"
    ]
