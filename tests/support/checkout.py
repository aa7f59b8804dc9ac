"""The files of the repository, where the tests run in a checkout of it."""

from __future__ import annotations

import subprocess

import pytest

from . import ROOT


def tracked() -> list[str]:
    """The files that git keeps; the test that asks is skipped where this is no checkout."""
    try:
        asked = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("there is no git here")
    if asked.returncode or not asked.stdout:
        pytest.skip("this is no checkout of the repository")
    return [name for name in asked.stdout.split("\0") if name]
