"""Enumerations of the driver API about core dumps."""

from __future__ import annotations

from enum import IntEnum


class CUcoredumpSettings(IntEnum):
    """Settings of GPU core dumps."""

    CU_COREDUMP_ENABLE_ON_EXCEPTION = 1
    CU_COREDUMP_TRIGGER_HOST = 2
    CU_COREDUMP_LIGHTWEIGHT = 3
    CU_COREDUMP_ENABLE_USER_TRIGGER = 4
    CU_COREDUMP_FILE = 5
    CU_COREDUMP_PIPE = 6
    CU_COREDUMP_GENERATION_FLAGS = 7
