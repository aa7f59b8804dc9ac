"""What every part of the simulator may use: the variable that asks for checks, and the words for stderr."""

from __future__ import annotations

import sys

CHECKS = "ATOMR_TRIO_SIM_CHECK"
"""The environment variable that names the checks."""


def complain(text: str) -> None:
    """Write a message of the simulator to stderr."""
    print(f"atomr simulated GPU: {text}", file=sys.stderr, flush=True)
