"""How tests of `dev.blas`, `dev.blaslt` and `dev.solver` together call a verb: by its name, in either form."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from atomr_trio import Batch, Device

FORMS = {"awaited": False, "in a batch": True}
"""By name, whether a verb is called in a batch."""


def find(owner: Device | Batch, verb: str) -> Callable[..., Any]:
    """The verb of a device or of a batch that is called ``"blas.gemm"``, say."""
    found: Callable[..., Any] = operator.attrgetter(verb)(owner)
    return found


async def call(owner: Device | Batch, verb: str, *arguments: Any, **keywords: Any) -> None:
    """Call a verb by its name, of a device or of a batch; what is refused is refused here."""
    result = find(owner, verb)(*arguments, **keywords)
    if isinstance(owner, Device):
        await result


async def ask(dev: Device, batched: bool, verb: str, *arguments: Any, **keywords: Any) -> Any:
    """Call a verb by its name, and return what it returns when it is done."""
    if not batched:
        return await find(dev, verb)(*arguments, **keywords)
    async with dev.batch() as batch:
        return find(batch, verb)(*arguments, **keywords)
