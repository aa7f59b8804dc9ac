"""Copies of rows that a worker has prepared: what it calls, in either loop."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from atomr_cuda import driver
from atomr_trio._transfers.copy_plan import TO_DEVICE, TO_HOST, Way
from atomr_trio._wire.ready import with_holes
from atomr_trio._wire.records.memory import BOX, OFFSET_MASK, PLACES_OF_A_BOX, STAGING_AREA
from atomr_trio._worker.base.lanes import NativeCall, Ready
from atomr_trio._worker.base.memory import MemoryEngine
from support.noted import NotedFunction

BASE, STREAM, ARRAY, OFFSET, REFUSED = 0x7F00_0000_0000, 0x55, 0x100_0000, 4096, 3
PITCH, WIDTH, HEIGHT = 512, 100, 7
FIELDS = ("srcHost", "srcDevice", "srcPitch", "dstHost", "dstDevice", "dstPitch", "WidthInBytes", "Height")
EXPECTED = {
    TO_DEVICE: (BASE + OFFSET, None, WIDTH, None, ARRAY, PITCH, WIDTH, HEIGHT, STREAM),
    TO_HOST: (None, ARRAY, PITCH, BASE + OFFSET, None, WIDTH, WIDTH, HEIGHT, STREAM),
}
WAYS = pytest.mark.parametrize("way", [TO_DEVICE, TO_HOST], ids=["in", "out"])


class Function(NotedFunction):
    """``cuMemcpy2DAsync``, which notes what it is told to copy."""

    def noted(self, *arguments: Any) -> Any:
        shape, stream = arguments
        shape = getattr(shape, "_obj", shape)
        return (*(getattr(shape, field) or None for field in FIELDS), getattr(stream, "value", stream))


class Bench:
    """The engine of memory with a driver that only notes its calls."""

    def __init__(self) -> None:
        services: Any = SimpleNamespace(
            staging_address=BASE, cuda_error=ValueError, forget_hot=None, give_up=None, give_back=None
        )
        self.engine, self.function = MemoryEngine(services), Function(driver.cuMemcpy2DAsync)
        self.engine._driver = SimpleNamespace(  # type: ignore[assignment]
            cuMemcpy2DAsync=self.function, CUDA_MEMCPY2D=driver.CUDA_MEMCPY2D
        )
        self.lane: Any = SimpleNamespace(stream=ctypes.c_void_p(STREAM))

    def ready(self, way: Way, depth: int = 1) -> Ready | None:
        pitches = (PITCH, WIDTH) if way is TO_DEVICE else (WIDTH, PITCH)
        box = BOX.pack(0, pitches[0], 0, 0, pitches[1], 0, WIDTH, HEIGHT, depth)
        payload = with_holes(way.box.struct.pack(0) + box, PLACES_OF_A_BOX)
        return self.engine.hot_call(way.box.number, payload, self.lane, PLACES_OF_A_BOX)


def words(way: Way, area: int = STAGING_AREA) -> tuple[int, int, int]:
    return (area, ARRAY, OFFSET) if way is TO_DEVICE else (area, OFFSET, ARRAY)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@WAYS
def test_python_and_native_code_tell_the_driver_the_same(bench, way):
    ready = bench.ready(way)
    assert ready.call(words(way)) == 0
    native = ready.native()
    assert isinstance(native, NativeCall)
    for target in native.targets:
        word = words(way)[target.word]
        assert word <= target.most
        ctypes.c_uint64.from_address(target.address).value = word + target.base
    shape, stream = native.arguments.view[:2]
    bench.function.status(driver.CUDA_MEMCPY2D.from_address(shape), stream)
    assert bench.function.made == [EXPECTED[way]] * 2


@WAYS
def test_native_code_leaves_other_areas_and_larger_offsets_to_python(bench, way):
    most = {target.word: target.most for target in bench.ready(way).native().targets}
    assert most[0] == STAGING_AREA
    assert most[2 if way is TO_DEVICE else 1] == OFFSET_MASK
    bench.engine._addresses[5] = BASE + (1 << 30)
    assert bench.ready(way).call(words(way, area=5)) == 0
    (made,) = bench.function.made
    assert BASE + (1 << 30) + OFFSET in made


@WAYS
def test_a_status_is_returned_and_a_memory_that_is_not_known_is_an_error(bench, way):
    bench.function.answer = REFUSED
    ready = bench.ready(way)
    assert ready.call(words(way)) == REFUSED
    assert ready.error(REFUSED) == (REFUSED, bench.function.symbol)
    assert isinstance(ready.error(ready.call(words(way, area=9))), KeyError)


@WAYS
def test_boxes_of_several_planes_are_left_to_the_general_way(bench, way):
    assert bench.ready(way, depth=2) is None
