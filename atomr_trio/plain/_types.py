"""Types of arguments that the blocking forms take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from ..libraries.modules.kernel import AttributeKeywords

if TYPE_CHECKING:
    from .._arrays import arrays as awaited
    from .._arrays.access import Marked
    from ._faces.arrays import DeviceArray

AnyArray: TypeAlias = "DeviceArray | awaited.DeviceArray"
"""An array of either face."""


class PlainLaunchKeywords(AttributeKeywords, total=False):
    """The further options of a launch in a batch, as `Kernel.launch` describes them."""

    touches: Iterable[AnyArray | Marked]
    hang_timeout: float | None
