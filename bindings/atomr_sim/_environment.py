"""What every part of the simulator may use: names of variables of the environment, and the words for stderr."""

from __future__ import annotations

import sys

CHECKS = "ATOMR_TRIO_SIM_CHECK"
"""The environment variable that names the checks."""
PEERS = "ATOMR_TRIO_SIM_PEERS"
"""The environment variable that says which devices can access each other's memory."""


def complain(text: str) -> None:
    """Write a message of the simulator to stderr."""
    print(f"atomr simulated GPU: {text}", file=sys.stderr, flush=True)
