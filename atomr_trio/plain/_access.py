"""What the blocking forms have and the awaited face has not: numpy's access to arrays, and the life of a device."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, overload

import numpy as np
import numpy.typing as npt
import trio

from .._values.errors import InvalidArgument
from .._values.habits import ARRAY, DEVICE, KERNEL, refuse_habits, refuse_operators, without_await
from .._values.util import shown
from ._asyncio import awaited_in_asyncio
from ._errors import drop_frames, prepare
from ._twins import Twin, bare

if TYPE_CHECKING:
    from .._arrays.arrays import Index
    from ._faces.arrays import DeviceArray
    from ._faces.devices import Device
    from ._faces.graphs import Graph, GraphRecorder
    from ._types import AnyArray

Item = TypeVar("Item")
Result = TypeVar("Result")


def _not_compared(operator: str) -> TypeError:
    return TypeError(
        f"arrays on the device are not compared by {operator}: compare copies, `array.to_host()`, or write `a is b` to "
        "ask whether they are the same object"
    )


class ArrayAccess(Twin):
    """An array in the memory of a device, made by `Device.empty`, `zeros`, `full` or `to_device`.

    It has a shape and a dtype and is row-major, like a numpy array. It has no arithmetic: that is what kernels are
    for. Slicing and `reshape` give views that share the memory. Where numpy needs the elements, they are copied to the
    host, and the call waits for the work on them: ``numpy.asarray(x)``, ``float(x)``, ``x.item()``, ``value in x``.
    ``x[1:3] = 0`` and ``x[...] = y`` write to the device. It survives the loss of a generation, except where work that
    was writing it was cut off (see `state`). `with array:` or `free()` give the memory back at a known place; if
    neither is used, it goes back when the last array that shares it is collected.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def shape(self) -> tuple[int, ...]: ...
        @property
        def dtype(self) -> np.dtype[Any]: ...
        def to_host(self) -> npt.NDArray[Any]: ...
        def free(self) -> None: ...

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return a new numpy array with the elements, as `to_host` does: for ``numpy.asarray(array)``.

        Elements of another `dtype` are converted. The copy is made in any case.

        Raises as `to_host` does, and `ValueError` for a `copy` that is False.
        """
        if copy is False:
            raise ValueError("the elements are on the device: numpy cannot have them without a copy")
        host = self.to_host()
        return host if dtype is None else host.astype(dtype, copy=False)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Return a DLPack capsule of the array's memory in this process: ``torch.from_dlpack(array)``. No copy.

        It waits as `Device.share` does, so that the memory exists and all commands submitted on it are done. `stream`,
        `max_version`, `dl_device` and `copy` are those of the standard; `atomr_trio.DeviceArray.__dlpack__` tells what
        they mean here.

        Raises as `Device.share` does, and `BufferError` for the requests that the standard names.
        """
        array = self._awaited
        self._wait(array.device.share, (array,))
        keywords = {"stream": stream, "max_version": max_version, "dl_device": dl_device, "copy": copy}
        return self._enqueue(array.__dlpack__, (), keywords)

    def item(self) -> Any:
        """Return the only element as a Python number (``numpy.ndarray.item``).

        Raises `ValueError` for an array of any other size than 1, and as `to_host` does.
        """
        return self._only("item").item()

    def tolist(self) -> Any:
        """Return the elements as Python numbers, in nested lists (``numpy.ndarray.tolist``).

        Raises as `to_host` does.
        """
        return self.to_host().tolist()

    def _only(self, what: str) -> npt.NDArray[Any]:
        if self._awaited.size != 1:
            raise ValueError(f"{what} takes an array of one element, and this one has shape {self.shape}")
        return self.to_host().reshape(())

    def __bool__(self) -> bool:
        return bool(self._only("bool"))

    def __int__(self) -> int:
        return int(self._only("int"))

    def __index__(self) -> int:
        if self.shape or self.dtype.kind not in "iu":
            raise TypeError("only an array of integers without axes is an index")
        return operator.index(self.to_host()[()])

    def __float__(self) -> float:
        return float(self._only("float"))

    def __complex__(self) -> complex:
        return complex(self._only("complex"))

    def __contains__(self, value: object) -> bool:
        return value in self.to_host()

    def __iter__(self) -> Iterator[Any]:
        """Iterate over views along the first axis; of an array of one axis, over its elements in a copy."""
        if not self.shape:
            raise TypeError("an array without axes cannot be iterated over")
        if len(self.shape) == 1:
            return iter(self.to_host())
        return (self._read(self._awaited.__getitem__, (place,)) for place in range(self.shape[0]))

    def __setitem__(self, index: Index | tuple[Index, ...], value: npt.ArrayLike | AnyArray) -> None:
        """Write to the elements of a view: a number, an array of its shape on the device, or numpy's, which may spread.

        Values from the host are converted to the dtype, as numpy does. Arrays on the device are copied as by
        `DeviceArray.copy_from`.

        Raises as `DeviceArray.copy_from` and `DeviceArray.fill` do, and `InvalidArgument` for a shape that does not
        spread.
        """
        view = self._awaited[index]
        given = bare(value)
        if isinstance(given, type(self._awaited)):
            self._wait(view.copy_from, (given,))
            return
        host = np.asarray(given)
        if not host.shape:
            if view.size:
                self._wait(view.fill, (host.astype(self.dtype)[()] if host.dtype != self.dtype else host[()],))
            return
        try:
            spread = np.broadcast_to(host.astype(self.dtype, copy=False), view.shape)
        except ValueError:
            raise InvalidArgument(f"an array of shape {host.shape} does not spread to {view.shape}") from None
        self._wait(view.copy_from, (np.ascontiguousarray(spread),))

    # Without these Python would compare identities.

    def __eq__(self, other: object) -> NoReturn:
        raise _not_compared("==")

    def __ne__(self, other: object) -> NoReturn:
        raise _not_compared("!=")

    def __lt__(self, other: object) -> NoReturn:
        raise _not_compared("<")

    def __le__(self, other: object) -> NoReturn:
        raise _not_compared("<=")

    def __gt__(self, other: object) -> NoReturn:
        raise _not_compared(">")

    def __ge__(self, other: object) -> NoReturn:
        raise _not_compared(">=")

    def __hash__(self) -> int:
        """Return the hash of the object's identity: a dictionary key is the object, not its elements."""
        return object.__hash__(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.free()


refuse_habits(ArrayAccess, ARRAY, words=without_await)
refuse_operators(ArrayAccess, numpy_copies=True, words=without_await)


class KernelAccess(Twin):
    """What a kernel refuses."""

    __slots__ = ()


refuse_habits(KernelAccess, KERNEL, words=without_await)


class _Opened(Twin):
    """What `start` and `start_devices` return: it can be closed, and runs functions of the awaited face."""

    __slots__ = ()

    def close(self) -> None:
        """Close what was started, and wait until its workers are gone. Closing twice does nothing.

        Started work is waited for, for `close_timeout` seconds at most. It need not be called: what nobody refers to
        any more is closed in the background, and everything at the exit of the interpreter.

        Raises `DeviceFailed` if the supervision has given the device up, once; `InvalidArgument` for one device of a
        group; `OutsideRun` in a task of trio.
        """
        loop = self._session.loop
        if loop.face is not self._awaited:
            raise InvalidArgument("the device is one of a group: close the group")
        loop.close()

    def __enter__(self) -> Self:
        if self._session.loop.is_over:
            raise self._session.loop.error()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def run(self, function: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
        """Await ``function(*arguments)`` in the trio run of the device, and return its result.

        `function` is an async function that uses the awaited face: it may open nurseries and cancel scopes. Of its
        `arguments`, each object of a device is given as the one that it is the blocking form of, `awaited`; of the
        result the other way round.

        Raises what `function` raises; `InvalidArgument` for anything that is no async function; `OutsideRun` as `close`
        does.
        """
        session = self._session
        try:
            result: Result = session.twin(
                session.loop.wait(_awaited_here, (function, *[bare(each) for each in arguments]), {})
            )
        except Exception as error:
            prepare(error)
            raise
        return result

    async def in_asyncio(self, verb: Callable[..., Result], *arguments: Any, **keywords: Any) -> Result:
        """Await a `verb` in a task of asyncio, without blocking its loop: ``await dev.in_asyncio(x.to_host)``.

        `verb` is a method of an object of this device, which is given the `arguments` and `keywords`. It may be `run`,
        for an async function that uses the awaited face; `on` or `launch` of a declared kernel, with this device; and
        Python's `next`, for an iterator of this device. Cancelling the task of asyncio cancels the verb, and is over
        when the verb is.

        Raises what the verb raises; `InvalidArgument` for anything but such a method; `StopAsyncIteration` at the end
        of an iterator; `OutsideRun` where no loop of asyncio runs.
        """
        own: dict[object, Callable[..., Any]] = {_Opened.run: _awaited_here}
        try:
            result: Result = await awaited_in_asyncio(self._session, verb, arguments, keywords, own)
        except Exception as error:
            drop_frames(error)
            raise
        return result


async def _awaited_here(function: Callable[..., Any], *arguments: Any) -> Any:
    """Await an async function, in the run of the device."""
    given: object = function
    result = function(*arguments) if callable(given) else None
    if not inspect.isawaitable(result):
        raise InvalidArgument(f"function is an async function, and {shown(function)} is not")
    return await result


class DeviceAccess(_Opened):
    """The life of one device, and the verbs that call back."""

    def capture(self, record: Callable[[GraphRecorder], object]) -> Graph:
        """Record launches, copies, fills and calls of cuBLAS, and build one graph (``cuGraphInstantiateWithFlags``).

        `record` is a function that is called once, at once, in this thread, with a `GraphRecorder`; nothing runs before
        the graph is launched. The order of recording matters only between nodes that touch the same array, if one of
        them writes it. A node costs about 10 us.

        Raises what the recorder's verbs and `record` itself raise, and `InvalidArgument` for an async function and for
        a recording without nodes. `atomr_trio.Device.capture` has the errors of building it.
        """
        given: object = record
        if not callable(given) or inspect.iscoroutinefunction(record):
            raise InvalidArgument(f"record is a function, and no async one, not {shown(record)}")
        session, device = self._session, self._awaited

        def recorded(recorder: Any) -> None:
            result = record(session.twin(recorder))
            if inspect.isawaitable(result) or inspect.isgenerator(result):
                raise InvalidArgument(f"record is a function, and no generator or async one, not {shown(record)}")

        async def capture(ask: Callable[..., Awaitable[Any]]) -> Any:
            async def record_there(recorder: Any) -> None:
                await ask(recorded, recorder)

            return await device.capture(record_there)

        try:
            graph: Graph = session.twin(session.loop.wait_asking(capture))
        except Exception as error:
            prepare(error)
            raise
        return graph


refuse_habits(DeviceAccess, DEVICE, words=without_await)


class GroupAccess(_Opened, Sequence["Device"]):
    """The life of a group, the sequence of its devices, and the verb that calls back."""

    @overload
    def __getitem__(self, place: int) -> Device: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Device, ...]: ...

    def __getitem__(self, place: int | slice) -> Device | tuple[Device, ...]:
        """Return the device at a place from 0 on, or those of a slice. The place is not the index of the device.

        Raises `IndexError` for a place that the group does not have.
        """
        devices: Device | tuple[Device, ...] = self._read(self._awaited.__getitem__, (place,))
        return devices

    def __len__(self) -> int:
        return len(self._awaited)

    def map(
        self, function: Callable[[Device, Item], Result], items: Iterable[Item], *, at_once: int = 1, retry: int = 0
    ) -> list[Result]:
        """Call ``function(device, item)`` for every item, on all devices at a time; return the results in order.

        A device takes the next item whenever it runs and is done with one, so the faster devices take more of them.

        - `function`: a function, which is called in threads, one for each device and each of `at_once`. It uses the
          blocking verbs of the given device alone.
        - `items`: an iterable, which is read to its end first.
        - `at_once`: the number of items that one device works on at a time.
        - `retry`: how often an item may be started again after its device was lost under it.

        A loss is handled as `atomr_trio.Devices.map` does. A function that is running when this is interrupted, or when
        another one raises, is not waited for: it goes on in its thread, and its result is dropped.

        Raises `ItemsLost` if items were lost, `InvalidArgument` for arguments that are not valid, what `function`
        raises, and `DeviceFailed` or `DeviceClosed` if every device has ended before the last item was started.
        """
        called: object = function
        if not callable(called) or inspect.iscoroutinefunction(called):
            raise InvalidArgument(f"function is a function of a device and an item, no async one: {shown(function)}")
        if not isinstance(items, Iterable):
            raise InvalidArgument(f"items is an iterable, not {shown(items)}")
        session = self._session
        given = list(items)

        async def map_all() -> Any:
            limiter = trio.CapacityLimiter(max(1, len(self._awaited) * (at_once if type(at_once) is int else 1)))

            async def in_thread(device: Any, item: Any) -> Any:
                return await trio.to_thread.run_sync(
                    function, session.twin(device), item, abandon_on_cancel=True, limiter=limiter
                )

            return await self._awaited.map(in_thread, given, at_once=at_once, retry=retry)

        try:
            results: list[Result] = session.loop.wait(map_all, (), {})
        except Exception as error:
            prepare(error)
            raise
        return results


class PartsAccess(Twin, Sequence["DeviceArray"]):
    """The sequence of the parts of an array that is split over the members of a world."""

    __slots__ = ()

    @overload
    def __getitem__(self, rank: int) -> DeviceArray: ...

    @overload
    def __getitem__(self, rank: slice) -> tuple[DeviceArray, ...]: ...

    def __getitem__(self, rank: int | slice) -> DeviceArray | tuple[DeviceArray, ...]:
        """Return the part of a rank, an array of the shape and dtype of all parts, or those of a slice.

        Raises `IndexError` for a number that is no rank.
        """
        parts: DeviceArray | tuple[DeviceArray, ...] = self._read(self._awaited.__getitem__, (rank,))
        return parts

    def __len__(self) -> int:
        """Return the number of parts."""
        return len(self._awaited)
