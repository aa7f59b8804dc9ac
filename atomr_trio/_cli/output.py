"""A check that a file can be written, made before the work whose result it is to hold."""

from __future__ import annotations

import os
from pathlib import Path


def what_hinders_writing(path: Path) -> str | None:
    """Say why a file cannot be written, or None; nothing is written, and an existing file is left alone."""
    if path.is_dir():
        return f"cannot write {path}: it is a folder"
    if not path.parent.is_dir():
        return f"cannot write {path}: there is no folder {path.parent}"
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        return f"cannot write {path}: permission denied"
    return None
