"""What hypothesis draws for the tests of arrays and launches, and how a property of an open device is checked.

Nothing here knows how the library works: shapes, views and layouts are numpy's, and numpy is what every result is held
against. How many examples are drawn is a share of what the hypothesis profile says, so a profile makes all of them more
thorough at once (see conftest.py).
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import trio
from hypothesis import given, settings

from atomr_trio import Device, DeviceArray, RestartPolicy
from atomr_trio._device.device import core_of
from atomr_trio._transfers.transfers import Transfers
from atomr_trio._values.dtypes import DTYPES, NARROW_FLOATS
from support import open_test_device
from support.rogue import until

EXAMPLE_SECONDS = 30.0
"""How long one example may take before it counts as hung."""

EVERY_DTYPE = (
    *DTYPES,
    *(np.dtype(getattr(ml_dtypes, name)) for name, each in NARROW_FLOATS.items() if each.package == "ml_dtypes"),
)
"""The dtypes that an array can have, of numpy and of ml_dtypes."""

dtypes = st.sampled_from(EVERY_DTYPE)
numpy_dtypes = st.sampled_from(DTYPES)

seeds = st.integers(0, 2**16)
"""What `numbers` makes different elements of."""


# --- properties of a device -------------------------------------------------------------------------------------------


def examples(share: float, **options: Any) -> settings:
    """Settings for a property that gets this share of the profile's examples."""
    count = math.ceil(share * settings().max_examples)
    return settings(max_examples=count, print_blob=True, **options)


def check_on_device(share: float, *drawn: st.SearchStrategy[Any]) -> Callable[..., Callable[..., Awaitable[None]]]:
    """Turn ``async def test(dev, *values)`` into a test that draws the values again and again, on one open device.

    Hypothesis, which is synchronous, draws in a thread; each example runs in the test's own trio loop. So opening a
    device is paid for once, no thread outlives the test, and what ends the test early ends the drawing too.
    """

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        @functools.wraps(test)
        def run_example(dev: Any, **values: Any) -> None:
            trio.from_thread.run(in_time, functools.partial(test, dev, **values))

        checked = examples(share)(given(*drawn)(run_example))

        async def check() -> None:
            async with open_lasting_device() as dev:
                await trio.to_thread.run_sync(checked, dev)

        check.__name__, check.__doc__ = test.__name__, test.__doc__
        return check

    return decorate


def open_lasting_device() -> contextlib.AbstractAsyncContextManager[Device]:
    """A device that does not give up while a failing example, which is run often, is being shrunk."""
    return open_test_device(restart_policy=RestartPolicy(intensity=math.inf))


async def in_time(example: Callable[[], Awaitable[Any]]) -> Any:
    """Await something, and fail if it takes so long that it must be hanging."""
    with trio.fail_after(EXAMPLE_SECONDS):
        return await example()


def sent(dev: Device) -> tuple[Any, ...]:
    """How many requests each actor has taken and how many commands each lane was given."""
    counts = dev.statistics()
    accepted = ((actor.name, actor.accepted) for actor in counts.actors)
    submitted = ((lane.name, lane.submitted) for lane in counts.lanes)
    return (*accepted, *submitted, counts.generation)


async def until_idle(dev: Device) -> None:
    """Wait until everything accepted is settled and nothing is held. What a command brought along may end after it."""

    def idle() -> bool:
        counts = dev.statistics()
        busy = [actor.unsettled for actor in counts.actors] + [lane.unfinished for lane in counts.lanes]
        return not any(busy) and core_of(dev).part(Transfers).staging.idle

    await until(idle)


# --- arrays -----------------------------------------------------------------------------------------------------------


_BYTES = (np.arange(65521, dtype=np.uint64) * 2654435761 >> 7).astype(np.uint8)
"""They are repeated: a prime number of them, so that no two pieces of a copy are the same."""


def numbers(shape: Any, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    """Values that tell every element from its neighbours: any bits in any dtype, NaNs of every kind among them."""
    dtype = np.dtype(dtype)
    count = math.prod(shape) if isinstance(shape, tuple) else shape
    raw = np.resize(np.roll(_BYTES, -seed), count * dtype.itemsize)
    if dtype == np.bool_:
        raw &= 1
    return raw.view(dtype).reshape(shape)


def same(seen: np.ndarray, expected: np.ndarray) -> bool:
    """Bit for bit, with shape and dtype."""
    return seen.shape == expected.shape and seen.dtype == expected.dtype and seen.tobytes() == expected.tobytes()


FLOAT_CODES = {2: "<e", 4: "<f", 8: "<d"}
"""What `struct` calls a float of so many bytes."""

reals = st.floats(width=64) | st.floats(width=32) | st.floats(width=16) | st.sampled_from([65519.99, 65520.0, 3.5e38])
complexes = st.builds(complex, reals, reals)


@functools.cache
def sometimes(odds: int) -> st.SearchStrategy[bool]:
    """True about once in so many draws. Hypothesis draws the ends of a range too often for less than this."""
    return st.sampled_from([*[False] * (odds // 2), True, *[False] * (odds - 1 - odds // 2)])


@st.composite
def shapes(draw: st.DrawFn, max_axes: int = 5, max_length: int = 4) -> tuple[int, ...]:
    """No axes, axes of length 1, longer ones, and now and then one of length 0."""
    length = st.sampled_from([*range(2, max_length + 1), 1])
    lengths = [draw(length) for _ in range(draw(st.sampled_from([*range(1, max_axes + 1), 0])))]
    if lengths and draw(sometimes(12)):
        lengths[draw(st.integers(0, len(lengths) - 1))] = 0
    return tuple(lengths)


@st.composite
def hosts(draw: st.DrawFn, max_axes: int = 5, max_length: int = 4) -> np.ndarray:
    """A numpy array of any shape and any supported dtype, in C order."""
    return numbers(draw(shapes(max_axes, max_length)), draw(dtypes), draw(seeds))


class Tagged(np.ndarray):
    """A subclass with nothing of its own."""


def _spread(values: np.ndarray) -> np.ndarray:
    wide = np.zeros([2 * length for length in values.shape], values.dtype)[(*values.ndim * (np.s_[::2],), ...)]
    wide[...] = values
    return wide


def _unaligned(values: np.ndarray) -> np.ndarray:
    moved = np.ndarray(values.shape, values.dtype, bytearray(values.nbytes + 1), offset=1)
    moved[...] = values
    return moved


def _reversed(values: np.ndarray) -> np.ndarray:
    backwards = (*values.ndim * (np.s_[::-1],), ...)
    return values[backwards].copy()[backwards]


def _read_only(values: np.ndarray) -> np.ndarray:
    locked = values.copy()
    locked.flags.writeable = False
    return locked


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "C": lambda values: values.copy("C"),
    "Fortran": lambda values: values.copy("F"),
    "every other element": _spread,
    "backwards": _reversed,
    "unaligned": _unaligned,
    "a subclass": lambda values: values.copy("C").view(Tagged),
    "read-only": _read_only,
}
"""Ways to lay the same elements out in host memory."""

layouts = st.sampled_from(list(LAYOUTS))
writable_layouts = layouts.filter(lambda name: name != "read-only")


# --- views ------------------------------------------------------------------------------------------------------------


@functools.cache
def slices(length: int) -> st.SearchStrategy[slice]:
    """A slice of an axis, in either direction: mostly one with elements, but its ends may be anywhere."""
    bound = st.none() | st.integers(-length - 1, length + 1)
    walks = st.builds(slice, st.none(), st.none(), st.sampled_from([2, -1, -2, 3, -3]))
    heads = st.builds(slice, st.none(), st.integers(1, length + 1))
    tails = st.builds(slice, st.integers(-length - 1, -1), st.none())
    usual = [st.just(slice(None)), walks, heads, walks, tails, walks]
    unusual = st.builds(slice, bound, bound, st.sampled_from([None, 1, 2, 3, -1, -2, -3]))
    return st.one_of(*usual, unusual, *usual)


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """An index that numpy takes: a part for most of the axes, one ``...`` at any place, perhaps a new axis."""
    parts: list[Any] = [
        draw(st.integers(-length, length - 1) if length and draw(sometimes(8)) else slices(length)) for length in shape
    ]
    begin = draw(st.integers(0, len(parts)))
    end = draw(st.integers(begin, min(begin + 1, len(parts))))
    parts[begin:end] = [...]
    if draw(sometimes(4)):
        parts.insert(draw(st.integers(0, len(parts))), None)
    return tuple(parts)


@st.composite
def shapes_of_size(draw: st.DrawFn, size: int, max_axes: int = 5) -> tuple[int, ...]:
    """A shape of so many elements; one of its lengths may be given as -1."""
    lengths: list[int] = []
    if not size:
        lengths = draw(st.lists(st.integers(0, 4), max_size=max_axes - 1))
        lengths.insert(draw(st.integers(0, len(lengths))), 0)
        return tuple(lengths)
    while size > 1 and len(lengths) < max_axes - 1:
        lengths.append(draw(st.sampled_from([part for part in range(1, size + 1) if size % part == 0])))
        size //= lengths[-1]
    shape = [*lengths, size] if size > 1 or draw(st.booleans()) else lengths
    if shape and draw(st.booleans()):
        shape[draw(st.integers(0, len(shape) - 1))] = -1
    return tuple(shape)


@attrs.frozen
class Indexed:
    """A step from an array to a view of it, on the host or on the device: ``array[index]``."""

    index: tuple[Any, ...]

    def __call__(self, array: Any) -> Any:
        return array[self.index]


@attrs.frozen
class Reshaped:
    """A step from an array to a view of it: ``array.reshape(shape)``, which never copies."""

    shape: tuple[int, ...]

    def __call__(self, array: Any) -> Any:
        return array.reshape(self.shape) if isinstance(array, DeviceArray) else array.reshape(self.shape, copy=False)


Step = Indexed | Reshaped
Way = list[Step]


@st.composite
def steps(draw: st.DrawFn, host: np.ndarray, max_steps: int = 3) -> Way:
    """A way to a view of an array, or of a view of it, that numpy can go."""
    taken: Way = []
    for _ in range(draw(st.sampled_from([*range(1, max_steps + 1), 0, 1]))):
        step: Step = Indexed(draw(indices(host.shape)))
        if draw(sometimes(3)):
            step = Reshaped(draw(shapes_of_size(host.size)))
        try:
            host = step(host)
        except ValueError:  # not without a copy
            break
        taken.append(step)
    return taken


def follow(taken: Way, array: Any) -> Any:
    """The view that steps lead to."""
    for step in taken:
        array = step(array)
    return array


@st.composite
def views(draw: st.DrawFn, max_axes: int = 5) -> tuple[np.ndarray, Way]:
    """An array and a way to a view of it."""
    host = draw(hosts(max_axes))
    return host, draw(steps(host))


def have_common_parts(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether `common_parts` has something to draw: equal dtypes, and elements where there are axes too many."""
    return one.dtype == other.dtype and (one.ndim == other.ndim or 0 not in one.shape + other.shape)


@st.composite
def common_parts(draw: st.DrawFn, one: np.ndarray, other: np.ndarray) -> tuple[Way, Way]:
    """Ways to views of two arrays that have one shape, the axes walked in any direction."""
    axes = min(one.ndim, other.ndim)
    firsts = []
    for host in (one, other):
        surplus = host.ndim - axes
        parts = [draw(slices(length)) for length in host.shape[surplus:]]
        firsts.append(Indexed((*surplus * (0,), *parts, ...)))
    lengths = zip(firsts[0](one).shape, firsts[1](other).shape, strict=True)
    trim = Indexed((*(slice(min(both)) for both in lengths), ...))
    return [firsts[0], trim], [firsts[1], trim]
