"""Whatever a verb of a world is given: it takes it or refuses it by an error that says so, and nothing is sent."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
import trio

import atomr_trio
from atomr_trio import InvalidArgument, RequestError, World
from support import chosen_backend
from support.places import leaves, put as with_other
from support.worlds import SETTINGS, get, open_world, put

N = 8
JUNK = (object(), None, "?", -1, 2.5, [object()])
Arguments = dict[str, Any]

CALLS: dict[str, Callable[[Any], Arguments]] = {
    "all_gather": lambda a: {"arrays": a.x, "out": a.rows},
    "all_reduce": lambda a: {"arrays": a.x, "out": a.y, "op": "sum"},
    "all_to_all": lambda a: {"arrays": a.x, "out": a.y},
    "all_to_all_v": lambda a: {"arrays": a.x, "counts": ((3, 5), (5, 3)), "out": a.y},
    "broadcast": lambda a: {"arrays": a.x, "root": 0},
    "exchange": lambda a: {"pairs": [(a.x[0], a.y[1]), (a.x[1], a.y[0])]},
    "gather": lambda a: {"arrays": a.x, "out": a.rows[1], "root": 1},
    "recv": lambda a: {"target": a.y[1], "source": a.x[0]},
    "reduce": lambda a: {"arrays": a.x, "out": a.y[1], "root": 1, "op": "max"},
    "reduce_scatter": lambda a: {"arrays": a.x, "out": a.half, "op": "sum"},
    "scatter": lambda a: {"array": a.x[0], "out": a.half, "root": 0},
    "send": lambda a: {"source": a.x[0], "target": a.y[1]},
    "shard": lambda a: {"array": np.arange(N), "axis": 0},
    "wait_epoch": lambda a: {"after": 0},
}
"""Right calls of the verbs, with every parameter."""
ALONE = ("shard", "wait_epoch")
"""Those that have no form for a batch, and none that does not wait."""


class Arrays:
    """Arrays of several devices."""

    def __init__(self, x: list[Any], y: list[Any], half: list[Any], rows: list[Any]) -> None:
        self.x, self.y, self.half, self.rows = x, y, half, rows

    @classmethod
    async def made(cls, devices: Any) -> Arrays:
        shapes = (N, N, N // 2, (2, N))
        return cls(*[await put(devices, *[np.ones(shape, np.float32)] * 2) for shape in shapes])


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[tuple[Any, World, Arrays]]:
    async with open_world(2) as (devices, world):
        yield devices, world, await Arrays.made(devices)


async def refusals(world: World, name: str, arguments: Arguments) -> int:
    """How many forms refuse these arguments. Raises what is no refusal."""
    count = 0
    forms: list[Callable[[], Any]] = [lambda: getattr(world, name)(**arguments)]
    if name not in ALONE:
        forms += [lambda: getattr(world, f"{name}_nowait")(**arguments), lambda: batched(world, name, arguments)]
    for form in forms:
        try:
            result = form()
            if inspect.isawaitable(result):
                await result
        except RequestError:
            count += 1
        except trio.WouldBlock:
            pass
    return count


async def batched(world: World, name: str, arguments: Arguments) -> None:
    async with world.batch() as batch:
        getattr(batch, name)(**arguments)


def test_every_verb_with_arguments_is_here() -> None:
    taken = {
        name
        for name, method in inspect.getmembers(World, inspect.isfunction)
        if not name.startswith("_") and len(inspect.signature(method).parameters) > 1
    }
    assert taken == {*CALLS, *(f"{name}_nowait" for name in CALLS if name not in ALONE)}
    for name, make in CALLS.items():
        arguments = make(Arrays(*[[None] * 2] * 4))
        assert [*arguments] == [*inspect.signature(getattr(World, name)).parameters][1:], name


async def test_anything_at_all_is_taken_or_refused_by_an_error_that_says_so() -> None:
    async with opened() as (devices, world, arrays):
        for name, make in CALLS.items():
            right = make(arrays)
            places = dict.fromkeys([*((each,) for each in right), *(place for place, _ in leaves(right))])
            refused = 0
            for place, junk in itertools.product(places, JUNK):
                with trio.fail_after(60):
                    refused += await refusals(world, name, with_other(right, place, junk))
            assert refused > 0, name
            assert await refusals(world, name, right) == 0, name
        assert [dev.generation for dev in devices] == [1, 1]
        assert world.epoch == 1


async def test_arrays_of_other_devices_and_of_other_ranks_are_refused_and_nothing_is_sent() -> None:
    async with opened() as (_, world, arrays), atomr_trio.open_device(0, backend=chosen_backend()) as apart:
        theirs = await Arrays.made([apart, apart])
        await world.all_reduce(arrays.x, arrays.y)
        before = [await get(each) for each in (arrays.y, arrays.half, arrays.rows)]
        for name, make in CALLS.items():
            right, foreign = make(arrays), dict(leaves(make(theirs)))
            for place, value in leaves(right):
                if isinstance(value, atomr_trio.DeviceArray):
                    wrong = with_other(right, place, foreign[place])
                    assert await refusals(world, name, wrong) == 3, f"{name} at {place}"
            if "arrays" in right:
                assert await refusals(world, name, {**right, "arrays": right["arrays"][::-1]}) == 3, name
        after = [await get(each) for each in (arrays.y, arrays.half, arrays.rows)]
        assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize(
    "options",
    [
        *({"members": members} for members in (3, "0", [], [0, 0], [0, 2], [None], [0.5], object())),
        *({"deterministic": value} for value in (None, 1, "yes")),
        *({"nccl": value} for value in ("DEBUG", ["DEBUG"], {1: "x"}, {"NCCL_DEBUG": "INFO"}, {"DEBUG": object()})),
    ],
)
async def test_a_world_is_not_made_of_what_makes_no_sense(options: Arguments) -> None:
    async with open_world(2) as (devices, world):
        with pytest.raises(InvalidArgument):
            await devices.world(**{"nccl": SETTINGS, **options})
        assert world.epoch == 1
