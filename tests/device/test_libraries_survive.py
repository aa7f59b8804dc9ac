"""Products, transforms and kernels in random order while workers are lost: no array ever holds a wrong byte."""

from __future__ import annotations

import os
from typing import Any

import pytest

from support import ON_GPU
from support.library_stress import SOURCE, LibraryPlayer
from support.stress import keep_accounts

LOSSES = 60 if ON_GPU else 300
KERNELS = (SOURCE, ("negate",))


@pytest.mark.parametrize("standby", [0, 1])
async def test_calls_of_libraries_survive_losses(open_test_device: Any, standby: int) -> None:
    await keep_accounts(open_test_device, standby, 3, standby, player=LibraryPlayer, kernels=KERNELS)


@pytest.mark.soak
@pytest.mark.parametrize("standby", [0, 1])
async def test_calls_of_libraries_survive_hundreds_of_losses(open_test_device: Any, standby: int) -> None:
    await keep_accounts(
        open_test_device,
        int.from_bytes(os.urandom(4)),
        seconds=60,
        standby=standby,
        between_losses=0.35,
        losses=LOSSES // 2,
        player=LibraryPlayer,
        kernels=KERNELS,
    )
