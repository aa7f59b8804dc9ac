"""The options of a lane."""

from __future__ import annotations

import attrs


@attrs.frozen
class LaneOptions:
    """The options that a program's lane was opened with."""

    priority: int = 0
    ordered: bool = True


ORDINARY = LaneOptions()
