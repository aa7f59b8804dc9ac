"""The questions of calls by generated functions: they are those of the general way, whatever the arguments are."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from atomr_trio._calls.forms import _LEARNS_EVERY, ASKS
from atomr_trio._calls.known import form_of, stateful

VARIABLE = 'extern "C" __device__ float held[8]; extern "C" __global__ void keep(float *x) { *x = held[0]; }'


class _Key:
    _is_key = True


def _same(asked: Any, general: Any) -> bool:
    """Whether two questions are equal: their keys, of the same types, and the arrays by identity."""
    if asked is None or general is None:
        return asked is general
    alike = [repr(each) for each in asked[0]] == [repr(each) for each in general[0]]
    return alike and asked[0] == general[0] and list(map(id, asked[1])) == list(map(id, general[1]))


async def test_generated_questions_are_those_of_the_general_way(dev):
    x, y, z = (dev.zeros(8, np.float32) for _ in range(3))
    view, matrix = x[2:6], dev.zeros((4, 2), np.float32)
    values = [x, y, view, matrix, 2.0, 0.0, -0.0, math.nan, 1, True, None, "upper", np.float32, np.float32(2), (2, 3)]
    values += [np.dtype("f4"), 1j, [x], object(), _Key(), 1 << 70]
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((one, two), {}) for one in values for two in values[:9]]
    calls += [((x,), {"out": each}) for each in values] + [((x,), {"alpha": each}) for each in values]
    calls += [((), {"alpha": 2.0, "out": y}), ((), {"out": y, "alpha": 2.0}), ((), {}), ((x, y, z), {"out": view})]
    calls += [((x, y, z, matrix), {"out": dev.zeros(3, np.float32)}), ((x, y, z, matrix), {"out": x}), ((x,), {})]
    for first in calls:

        def plan() -> None:
            """The plan of a verb that is called with `first` before all others."""

        try:
            for arguments, keywords in (first, *calls):
                assert _same(ASKS[plan](arguments, keywords), form_of(plan, arguments, keywords)), (first, arguments)
        finally:
            del ASKS[plan]


async def test_a_function_is_generated_for_other_kinds_now_and_then(dev):
    def plan() -> None:
        """The plan of a verb."""

    x, y = (dev.zeros(8, np.float32) for _ in range(2))
    seen = []
    for _, number in itertools.product(range(2 * _LEARNS_EVERY), (1, 2.5)):
        ASKS[plan]((x, y), {"alpha": number})
        if not seen or seen[-1] is not ASKS[plan]:
            seen.append(ASKS[plan])
    del ASKS[plan]
    assert 2 <= len(seen) <= 4


def test_calls_of_a_stateful_verb_have_no_question():
    @stateful
    def plan() -> None:
        """The plan of a verb that draws."""

    assert ASKS[plan]((1,), {}) is None
    assert ASKS[plan]((1,), {"size": 3}) is None
    del ASKS[plan]


async def test_a_variable_of_a_module_has_no_question(dev):
    def plan() -> None:
        """The plan of a verb."""

    keep = await dev.nvrtc.compile(VARIABLE, "keep")
    variable, x = keep.module.global_("held", np.float32), dev.zeros(8, np.float32)
    assert ASKS[plan]((x, x[1:2]), {}) is not None
    assert ASKS[plan]((x, dev.zeros(8, np.float32)), {}) is not None
    assert ASKS[plan]((x, variable), {}) is None
    assert ASKS[plan]((variable, x), {}) is None
    del ASKS[plan]
