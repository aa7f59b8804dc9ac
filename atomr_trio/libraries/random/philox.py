"""The stateless form: numbers as a function of a key and a position, by kernels of our own.

Nothing here knows cuRAND. `PhiloxVerbs` has the verb, and what other verbs need to plan the same:

- ``drawing = drawing_of(name, dtype, parameters)`` checks parameters (``distributions.py``);
- ``image = self._compile_philox(drawing)`` makes its kernel ready;
- ``self._plan_philox(drawing, image, key, position, result, operation=name)`` plans the draws into any array;
- ``drawing.advanced(position, draws)`` is the position behind them; an element of `result` is a draw, but of
  `multinomial`, where a row is one.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, SupportsIndex

import numpy.typing as npt

from ..._arrays.arrays import DeviceArray, check_shape, check_usable
from ..._calls.linear import check_array
from ..._calls.recorded import Recorded
from ..._calls.verbs import Library, verb
from ..._generation.core import DeviceCore
from ..._values.errors import InvalidArgument
from ..._values.util import shown
from ..._wire.programs import OF_LANE, Address, Launch, Number, Program, Room, RoomOf, Step
from .distributions import DISTRIBUTIONS, MOST, OWN, SOURCE_OF, Drawing, drawing_of, index_of
from .images import Images
from .records import RANDOM

_HEAD: Final = struct.Struct("<QQQQ")
"""The first scalars of an execution: threads, draws, key and position."""
PLACES_OF_NUMBERS: Final = (_HEAD.size - 16, _HEAD.size - 8)
"""Where the key and the position are among them."""
_WORD: Final = 8
_FILLED: Final = 32
"""The numbers that one launch of ``philox_fill`` writes."""
_MOST_FILLED: Final = 256
"""The most numbers of a table that come with the execution. A larger table is uploaded before."""


class PhiloxVerbs(Library):
    """The verb, in all forms."""

    __slots__ = ()

    _table = RANDOM

    @verb
    def philox(
        self,
        /,
        key: SupportsIndex,
        counter: SupportsIndex,
        size: SupportsIndex | Sequence[SupportsIndex] | None = None,
        distribution: str = "bits",
        *,
        dtype: npt.DTypeLike | None = None,
        out: DeviceArray | None = None,
        **parameters: Any,
    ) -> DeviceArray:
        """Numbers that depend on nothing but the arguments: Philox4x32-10 of a key and a counter (``cuLaunchKernel``).

        `key` and `counter` are integers from 0 to 2**64 - 1: the seed, and the position of the first number. `size` is
        the shape of the result, a single number by default. `distribution` is the name of a verb of `Random`, and
        `parameters` are those of that verb, by name. `dtype` is that of the result, by default that of the verb. `out`
        is an array for the result, of its shape and dtype and of any strides; without it, the result is new.

        The same arguments give the same numbers in every call, batch and graph, after a loss, and on both backends but
        for the last bits of logarithms and roots. A draw in two parts gives the numbers of one, if the second begins
        where the first ended: each number takes one position, and of bits in uint64 two.

        bits, uniform, normal and lognormal are cuRAND's numbers of its Philox generator with that seed and offset. In
        float64 the last three take two words each, and positions are the generator's slots: a draw of n numbers from
        ``p`` on ends at ``(p // T + 2 * c) * T + q`` with ``T = 262144`` and ``c, q = divmod(p % T + n, T)``. From an
        offset that is a multiple of T, the numbers are those of a cuRAND generator with this offset. uniform is open at
        `low` and closed at `high`, but for rounding.

        The others, and poisson, use counters that cuRAND never does:

        - exponential and cauchy by inversion; bernoulli by one comparison;
        - gamma by Marsaglia and Tsang (2000), for shapes below 1 by the power of a uniform number; beta and standard_t
          from gamma variables;
        - integers by Lemire (2019), all equally likely;
        - poisson by summation below a mean of 10, and by PTRS of Hoermann (1993) from there on; binomial by summation
          and BTRS of Hoermann (1993) in the same way; multinomial by conditional binomials; with the probabilities of
          Loader (2000);
        - discrete by the alias table of Walker (1977).

        `lam`, `shape`, `scale` and `sigma` may be 0, as in numpy. `pvals` are at most 65,536 probabilities on the host
        whose sum is 1. More than 128 of them for discrete, and 256 for multinomial, are not possible in a graph.

        The first call of a kind compiles a kernel: awaited, or, in a batch and in a graph, while the task is blocked
        for about half a second; `Random.load` does so before.

        Raises `InvalidArgument` for anything else: unknown names, parameters and dtypes, numbers that are not finite or
        out of range, arrays as parameters, a counter that would pass 2**64, and an `out` that does not fit. Raises
        `LibraryNotFound` when there is no NVRTC.
        """
        drawing = drawing_of(distribution, _dtype_of(dtype, out), parameters)
        seed, position = index_of(key, "key", 0, MOST), index_of(counter, "counter", 0, MOST)
        shape = shape_of(drawing, size, out)
        draws = math.prod(shape) // (math.prod(drawing.tail) or 1)
        if drawing.advanced(position, draws) > MOST + 1:
            raise InvalidArgument(f"from counter {position} on there are not {draws} numbers left before 2**64")
        image = self._compile_philox(drawing)
        result = self._empty(shape, drawing.dtype) if out is None else out
        self._plan_philox(drawing, image, seed, position, result, operation=f"philox {distribution}")
        return result

    # For other verbs.

    def _compile_philox(self, drawing: Drawing) -> bytes:
        """Return the image with the kernel of a drawing, which is compiled at once if it is not there.

        Raises `LibraryNotFound` when there is no NVRTC. A verb calls this before it changes anything.
        """
        if drawing.table is not None and len(drawing.table) > _MOST_FILLED and isinstance(self, Recorded):
            raise InvalidArgument(
                f"{drawing.distribution} with so many probabilities cannot be captured: their table has "
                f"{len(drawing.table)} numbers, and comes from the host if it has more than {_MOST_FILLED}"
            )
        return self._device.part(Images).now(drawing.source)

    def _plan_philox(
        self, drawing: Drawing, image: bytes, key: int, position: int, result: DeviceArray, *, operation: str
    ) -> None:
        """Plan the draws of all elements of `result`, in C order, from a position on, by the kernel of an image.

        `result` has the drawing's dtype, and any shape and strides; the last axes are the `tail` of the drawing. All is
        checked before.
        """
        check_usable(self._device, result)
        if not result.size:
            return
        target = result
        if not result.contiguous or result.address % result.itemsize:
            target = self._empty(result.shape, result.dtype)
        draws = result.size // math.prod(drawing.tail)
        operands = self._operands()
        operands.writes(target, keeps=False)
        addresses, fills, table = [target.address], 0, b""
        if drawing.table is not None and len(drawing.table) <= _MOST_FILLED:
            fills = -(-len(drawing.table) // _FILLED)
            table = drawing.table.tobytes().ljust(fills * _FILLED * _WORD, b"\0")
        elif drawing.table is not None:
            uploaded = self._upload(drawing.table)
            operands.reads(uploaded)
            addresses.append(uploaded.address)
        head = _HEAD.pack(drawing.threads(draws), draws * drawing.units, key, position)
        request = self._execution(
            ("philox", drawing.kernel, fills),
            lambda: philox_program(drawing.kernel, drawing.formats, image, fills),
            addresses,
            head + drawing.values + table,
            operands,
            operation=operation,
        )
        self._requests.append(request)
        if target is not result:
            self._copy(target, result)

    async def _begin_verb(
        self, plan: Callable[..., object], arguments: Sequence[object], keywords: dict[str, Any]
    ) -> None:
        await super()._begin_verb(plan, arguments, keywords)
        distribution: object = plan.__name__
        if distribution == "philox":
            distribution = keywords.get("distribution", arguments[3] if len(arguments) > 3 else "bits")
        elif distribution not in OWN:
            return
        if isinstance(distribution, str) and distribution in SOURCE_OF:
            await self._device.part(Images).load((SOURCE_OF[distribution],))


async def load_kernels(device: DeviceCore, names: Sequence[str]) -> None:
    """Compile the kernels of these distributions, of all if there are no names. Raises `InvalidArgument`.

    Raises `LibraryNotFound` when there is no NVRTC.
    """
    given: Sequence[object] = names
    for name in given:
        if not isinstance(name, str) or name not in DISTRIBUTIONS:
            raise InvalidArgument(f"a distribution is one of {', '.join(DISTRIBUTIONS)}, not {shown(name)}")
    device.home.check_task()
    device.check_open()
    await device.part(Images).load(dict.fromkeys(SOURCE_OF[name] for name in names or DISTRIBUTIONS))


def _dtype_of(dtype: npt.DTypeLike | None, out: object) -> npt.DTypeLike | None:
    return check_array(out, "out").dtype if dtype is None and out is not None else dtype


def shape_of(
    drawing: Drawing, size: SupportsIndex | Sequence[SupportsIndex] | None, out: DeviceArray | None
) -> tuple[int, ...]:
    """Return the shape of a result, from `size`, or that of `out` if there is none. Raises `InvalidArgument`."""
    tail = drawing.tail
    if out is None:
        return (*check_shape(() if size is None else size, drawing.dtype.itemsize), *tail)
    array = check_array(out, "out")
    shape = array.shape if size is None else (*check_shape(size, drawing.dtype.itemsize), *tail)
    if array.dtype != drawing.dtype or array.shape != shape:
        raise InvalidArgument(
            f"out has shape {array.shape} and dtype {array.dtype.name}, and the result has {shape} and "
            f"{drawing.dtype.name}"
        )
    if tail and array.shape[-len(tail) :] != tail:
        raise InvalidArgument(f"the last axis of out has length {tail[0]}; its shape is {array.shape}")
    if any(length > 1 and not stride for length, stride in zip(array.shape, array.strides, strict=True)):
        raise InvalidArgument(f"elements of out are at one place: its strides are {array.strides}")
    return shape


def philox_program(kernel: str, formats: str, image: bytes, fills: int) -> Program:
    """Return the program of a kernel. `fills` is the number of launches that write a table before, of the lane.

    Its scalars are the threads, the draws, the key and the position, then the kernel's parameters, then the table.
    """
    head, steps = _HEAD.size, list[Step]()
    words: list[Address | RoomOf | Number | int] = [Address(0), *(Number(at, "Q") for at in range(_WORD, head, _WORD))]
    at = head
    for form in formats:
        if form == "P":
            words.append(RoomOf(0) if fills else Address(1))
        else:
            words.append(Number(at, form))
            at += _WORD
    for fill in range(fills):
        numbers = [Number(at + _WORD * each, "Q") for each in range(_FILLED)]
        steps.append(Launch("philox_fill", (RoomOf(0, fill * _FILLED * _WORD), *numbers), 1))
        at += _FILLED * _WORD
    kernels = {kernel: len(words)} | ({"philox_fill": _FILLED + 1} if fills else {})
    return Program(
        make=(Room((fills * _FILLED * _WORD,), OF_LANE),) if fills else (),
        execute=(*steps, Launch(kernel, tuple(words), Number(0, "Q"))),
        addresses=2 if "P" in formats and not fills else 1,
        scalars=at,
        image=image,
        kernels=kernels,
    )
