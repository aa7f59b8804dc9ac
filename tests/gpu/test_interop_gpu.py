"""PyTorch and CuPy on the same memory as we: whoever is importable plays the consumer.

Nothing waits by sleeping: kernels spin on words of pinned host memory that the test sets.
"""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
import trio

from atomr_trio import ContextLost, InvalidArgument, StaleArray, read_only
from atomr_trio._device.device import core_of
from support.programs import run_program

SOURCE = """
extern "C" __global__ void wait_and_add(const volatile int *flag, int *x, int n, int value) {
    if (threadIdx.x == 0) while (*flag == 0) { }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] += value;
}
extern "C" __global__ void wait(const volatile int *flag) { while (*flag == 0) { } }
extern "C" __global__ void copy(const int *from, int *to, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = from[i];
}
extern "C" __global__ void wild(int *x) { *(volatile int *)16 = 1; }
"""
N = 1 << 20


@attrs.frozen
class Consumer:
    """Another library, by the few things that the tests ask of it."""

    from_dlpack: Callable[[Any], Any]
    from_interface: Callable[[Any], Any]
    full: Callable[[int, int], Any]
    """A tensor of its own: length and value, int32."""
    to_numpy: Callable[[Any], np.ndarray]
    side_stream: Callable[[], Any]
    """A context manager in which a stream of its own is current."""
    synchronize: Callable[[], None]
    spin: Callable[[Any], None]
    """Have the current stream wait until a number of a shared tensor is not 0."""


def of_torch() -> Consumer:
    """PyTorch; its spinning kernel is CuPy's."""
    torch, cupy = pytest.importorskip("torch"), pytest.importorskip("cupy")
    kernel = cupy.RawKernel(SOURCE, "wait")

    def spin(flag: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # what replaces it asks more of PyTorch's streams
            stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
        with stream:
            kernel((1,), (1,), (np.uint64(flag.data_ptr()),))

    return Consumer(
        torch.from_dlpack,
        lambda array: torch.as_tensor(array, device="cuda"),
        lambda n, value: torch.full((n,), value, dtype=torch.int32, device="cuda"),
        lambda tensor: tensor.cpu().numpy(),
        lambda: torch.cuda.stream(torch.cuda.Stream()),
        torch.cuda.synchronize,
        spin,
    )


def of_cupy() -> Consumer:
    cupy = pytest.importorskip("cupy")
    kernel = cupy.RawKernel(SOURCE, "wait")
    kept: list[Any] = []

    def side_stream() -> Any:
        kept.append(cupy.cuda.Stream(non_blocking=True))
        return kept[-1]

    return Consumer(
        cupy.from_dlpack,
        cupy.asarray,
        lambda n, value: cupy.full(n, value, dtype=cupy.int32),
        cupy.asnumpy,
        side_stream,
        lambda: cupy.cuda.Device().synchronize(),
        lambda flag: kernel((1,), (1,), (flag,)),
    )


@pytest.fixture(params=[of_torch, of_cupy], ids=["torch", "cupy"])
def consumer(request: pytest.FixtureRequest) -> Consumer:
    """Warm: a kernel's first launch may wait for all that runs, and here something may run until the test goes on."""
    made = request.param()
    for context in (contextlib.nullcontext, made.side_stream):
        with context():
            tensor = made.full(N, 1)
            tensor += 5
            tensor *= 3
            tensor %= 1000
            made.spin(tensor)
            assert (made.to_numpy(tensor + 1) == 19).all()
    made.synchronize()
    return made


class Flag:
    """A number on the GPU that the test raises by a copy on the driver's own terms: a stream that nothing holds up."""

    def __init__(self, array: Any, raw: Any) -> None:
        self.array = array
        self._raw = raw

    def raise_(self) -> None:
        import cupy

        stream = cupy.cuda.Stream(non_blocking=True)
        one = np.ones(1, np.int32)
        cupy.cuda.runtime.memcpyAsync(self._raw.data.ptr, one.ctypes.data, 4, 1, stream.ptr)
        stream.synchronize()


async def flag_on(dev: Any) -> Flag:
    """A flag that both sides see. It is taken without order, since it is what breaks the order."""
    import cupy

    array = await dev.to_device(np.zeros(1, np.int32))

    class Unordered:
        def __dlpack_device__(self) -> tuple[int, int]:
            return array.__dlpack_device__()

        def __dlpack__(self, **arguments: Any) -> Any:
            return array.__dlpack__(**{**arguments, "stream": -1})

    return Flag(array, cupy.from_dlpack(Unordered()))


async def kernel(dev: Any, name: str) -> Any:
    return await dev.nvrtc.compile(SOURCE, name)


async def test_both_see_what_the_other_writes(dev, consumer):
    x = await dev.to_device(np.arange(N, dtype=np.int32))
    tensor = consumer.from_dlpack(x)
    assert np.array_equal(consumer.to_numpy(tensor), np.arange(N))
    tensor += 5
    assert np.array_equal(await x.to_host(), np.arange(N) + 5)
    await x.fill(7)
    assert (consumer.to_numpy(tensor) == 7).all()


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"])
async def test_dtypes_go_both_ways(dev, consumer, dtype):
    host = np.arange(24).reshape(4, 6).astype(dtype)
    x = await dev.to_device(host)
    tensor = consumer.from_dlpack(x[::2, 1:])
    assert np.array_equal(consumer.to_numpy(tensor), host[::2, 1:])
    assert np.array_equal(await (await dev.to_device(tensor)).to_host(), host[::2, 1:])


async def test_bfloat16_goes_both_ways(dev):
    torch, ml_dtypes = pytest.importorskip("torch"), pytest.importorskip("ml_dtypes")
    host = np.arange(64).astype(ml_dtypes.bfloat16)
    tensor = torch.from_dlpack(await dev.to_device(host))
    assert tensor.dtype is torch.bfloat16
    assert tensor.sum().item() == 2016
    back = await dev.to_device(tensor * 2)
    assert np.array_equal((await back.to_host()).astype(np.float32), 2.0 * np.arange(64))


async def test_the_array_interface_shares_as_well(dev, consumer):
    x = await dev.to_device(np.arange(N, dtype=np.int32))
    tensor = consumer.from_interface(x)
    tensor += 1
    assert (await x.to_host())[-1] == N
    del x
    gc.collect()
    others = [dev.zeros(N, np.int32) for _ in range(4)]
    for other in others:
        await other.fill(0)
    assert consumer.to_numpy(tensor)[-1] == N


@pytest.mark.parametrize("side", [False, True])
async def test_a_stream_waits_for_our_kernel(dev, consumer, side):
    flag, x = await flag_on(dev), await dev.to_device(np.zeros(N, np.int32))
    add = await kernel(dev, "wait_and_add")
    with consumer.side_stream() if side else contextlib.nullcontext():
        earlier = consumer.from_dlpack(x)
        add.launch_nowait(1, 1024, read_only(flag.array), x, N, 3)
        later = consumer.from_dlpack(x)
        results = [earlier + 1, later + 1]
        flag.raise_()
        consumer.synchronize()
    for result in results:
        assert (consumer.to_numpy(result) == 4).all()


@pytest.mark.parametrize("side", [False, True])
async def test_our_kernel_waits_for_a_stream(dev, consumer, side):
    flag, x, y = await flag_on(dev), await dev.to_device(np.zeros(N, np.int32)), dev.zeros(N, np.int32)
    copy = await kernel(dev, "copy")
    with consumer.side_stream() if side else contextlib.nullcontext():
        tensor = consumer.from_dlpack(x)
        consumer.spin(consumer.from_dlpack(await dev.share(flag.array)))
        tensor += 9
    copy.launch_nowait(1, 1024, read_only(x), y, N)
    assert "interop.wait" in core_of(dev).current.timeline.in_flight()
    flag.raise_()
    assert (await y.to_host() == 9).all()


def named_stream(library: str) -> tuple[Any, int]:
    """A stream of a library, as it is given to `share`, and its handle."""
    if library == "torch":
        handle = pytest.importorskip("torch").cuda.Stream().cuda_stream
        return handle, handle
    if library == "cupy":
        stream = pytest.importorskip("cupy").cuda.Stream(non_blocking=True)
        return stream, stream.ptr
    if library == "numba":
        stream = pytest.importorskip("numba.cuda").stream()
        return stream, int(getattr(stream.handle, "value", stream.handle))
    device = pytest.importorskip("cuda.core").Device(0)
    device.set_current()
    stream = device.create_stream()
    return stream, int(stream.handle)


@attrs.frozen
class OfHandle:
    """A stream as CuPy takes it from others."""

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


@pytest.mark.parametrize("library", ["torch", "cupy", "numba", "cuda.core"])
async def test_our_kernel_waits_for_a_stream_that_was_named_when_the_array_was_shared(dev, library):
    cupy = pytest.importorskip("cupy")
    stream, handle = named_stream(library)
    flag, x, y = await flag_on(dev), await dev.to_device(np.zeros(N, np.int32)), dev.zeros(N, np.int32)
    theirs, ours = cupy.RawKernel(SOURCE, "wait_and_add"), await kernel(dev, "copy")
    theirs.compile()
    assert await dev.share(x, stream=stream) is x
    tensor = cupy.asarray(x)
    with cupy.cuda.Stream.from_external(OfHandle(handle)):
        theirs((1,), (1024,), (flag._raw, tensor, np.int32(N), np.int32(9)))
    ours.launch_nowait(1, 1024, read_only(x), y, N)
    assert "interop.wait" in core_of(dev).current.timeline.in_flight()
    flag.raise_()
    assert (await y.to_host() == 9).all()
    with cupy.cuda.Stream.from_external(OfHandle(handle)) as current:  # and the other way round: it waits for ours
        ours.launch_nowait(1, 1024, read_only(await dev.to_device(np.full(N, 4, np.int32))), x, N)
        after = tensor + 1
        current.synchronize()
    assert (cupy.asnumpy(after) == 5).all()


GONE = """
import cupy, numpy as np, atomr_trio

with atomr_trio.start(0) as dev:
    for _ in range(20):
        x = dev.to_device(np.arange(1000, dtype=np.int32))
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            tensor = cupy.from_dlpack(x)
            tensor += 1
        stream.synchronize()
        del stream  # cupy destroys it
        x.fill(7)
        del tensor
        assert x.tolist() == [7] * 1000
print("the process lives")
"""


def test_a_stream_that_is_gone_does_not_take_the_process_with_it(tmp_path):
    pytest.importorskip("cupy")
    assert run_program(GONE, tmp_path).strip() == "the process lives"


async def test_many_turns_stay_in_order(dev, consumer):
    x = await dev.to_device(np.zeros(N, np.int32))
    go = await flag_on(dev)
    go.raise_()
    add = await kernel(dev, "wait_and_add")
    tensor = consumer.from_dlpack(x)
    expected = 0
    for turn in range(100):
        add.launch_nowait(1, 1024, read_only(go.array), x, N, turn)
        tensor *= 3
        tensor %= 1000
        expected = (expected + turn) * 3 % 1000
    assert (await x.to_host() == expected).all()


async def test_tensors_outlive_a_fault(dev, consumer):
    x, torn = await dev.to_device(np.arange(N, dtype=np.int32)), await dev.to_device(np.zeros(N, np.int32))
    tensor, other = consumer.from_dlpack(x), consumer.from_dlpack(torn)
    wild = await kernel(dev, "wild")
    with pytest.raises(ContextLost):
        await wild.launch(1, 1, torn)
    tensor += 1
    await dev.wait_generation(after=1)
    assert np.array_equal(await x.to_host(), np.arange(N) + 1)
    with pytest.raises(StaleArray):
        consumer.from_dlpack(torn)
    await torn.fill(4)
    assert (consumer.to_numpy(other) == 4).all()


async def test_a_program_that_blocks_in_the_other_library_survives_our_fault(dev, consumer):
    x = await dev.to_device(np.zeros(N, np.int32))
    tensor = consumer.from_dlpack(x)
    (await kernel(dev, "wild")).launch_nowait(1, 1, x)
    result = tensor + 1
    consumer.synchronize()
    assert consumer.to_numpy(result).shape == (N,)
    await dev.wait_generation(after=1)
    assert x.state == "torn"


async def test_memory_is_reused_after_the_consumer_has_let_go(dev, consumer):
    x = await dev.to_device(np.zeros(N, np.int32))
    address, tensor = x.address, consumer.from_dlpack(x)
    x.free()
    assert dev.empty(N, np.int32).address != address
    tensor += 1
    del tensor
    gc.collect()
    others = [dev.empty(N, np.int32)]  # puts a mark behind what the other library's stream still has to do
    consumer.synchronize()
    others += [dev.empty(N, np.int32) for _ in range(4)]
    assert address in [other.address for other in others]


async def test_their_tensors_are_copied_after_their_work(dev, consumer):
    flag = await flag_on(dev)
    tensor = consumer.full(N, 2)
    consumer.spin(consumer.from_dlpack(flag.array))
    tensor += 40
    results: list[Any] = []

    async def copy() -> None:
        results.append(await dev.to_device(tensor))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(copy)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not results
        flag.raise_()
    assert (await results[0].to_host() == 42).all()


async def test_memory_of_another_gpu_is_refused(dev, consumer):
    place = dev.empty(1).__dlpack_device__()

    class Elsewhere:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (place[0], place[1] + 1)

        def __dlpack__(self, **arguments: Any) -> Any:
            from atomr_trio._arrays.sharing import dlpack as _dlpack

            tensor = _dlpack.Tensor(4096, self.__dlpack_device__(), (1,), (1,), 0, 32)
            return _dlpack.give(tensor, lambda: None, versioned=True)

    with pytest.raises(InvalidArgument, match=f"on GPU {place[1] + 1}"):
        await dev.to_device(Elsewhere())
