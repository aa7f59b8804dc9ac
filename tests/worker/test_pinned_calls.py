"""Copies of pinned memory that a worker has prepared: what it calls, in either loop, and what it prepares no longer."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from atomr_trio._transfers.copy_plan import TO_DEVICE, TO_HOST, Way
from atomr_trio._wire.ready import filled, with_holes
from atomr_trio._wire.records.memory import BOX, OFFSET_MASK, PLACES_OF_PINNED, UNREGISTER_HOST
from atomr_trio._worker.base.lanes import NativeCall, Ready
from atomr_trio._worker.base.memory import MemoryEngine
from atomr_trio._worker.base.shared_words import MOST_ARGUMENTS, MOST_FLOATS

AREA, BASE, STREAM = 5, 0x7F00_0000_0000, 0x55
ARRAY, OFFSET, SIZE = 0x100_0000, 4096, 300


class Function:
    """A function of the driver that notes how it is called."""

    argtypes = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)
    restype = ctypes.c_int
    symbol = "cuMemcpy"

    def __init__(self, made: list[Any], name: str) -> None:
        self._made, self._name = made, name

    def status(self, *arguments: Any) -> int:
        self._made.append((self._name, *(getattr(each, "value", each) for each in arguments)))
        return 0

    __call__ = status

    def bind(self) -> Any:
        return self.status


class Bench:
    """The engine of memory with a driver that only notes its calls."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.forgotten = 0
        services: Any = SimpleNamespace(
            staging_address=0x1000, cuda_error=ValueError, forget_hot=self._forget, give_up=None, give_back=None
        )
        self.engine = MemoryEngine(services)
        names = ("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync")
        self.engine._driver = SimpleNamespace(**{name: Function(self.made, name) for name in names})  # type: ignore[assignment]
        self.engine._addresses[AREA] = BASE
        self.lane: Any = SimpleNamespace(stream=ctypes.c_void_p(STREAM))

    def _forget(self) -> None:
        self.forgotten += 1

    def payload(self, way: Way, area: int = AREA, height: int = 1) -> bytes:
        return way.box.struct.pack(area) + BOX.pack(0, 0, 0, 0, 0, 0, 0, height, 1)

    def ready(self, way: Way, **rest: Any) -> Ready | None:
        places = PLACES_OF_PINNED[way.box.number]
        return self.engine.hot_call(way.box.number, with_holes(self.payload(way, **rest), places), self.lane, places)


EXPECTED = {
    TO_DEVICE: ("cuMemcpyHtoDAsync", ARRAY, BASE + OFFSET, SIZE, STREAM),
    TO_HOST: ("cuMemcpyDtoHAsync", BASE + OFFSET, ARRAY, SIZE, STREAM),
}
WAYS = pytest.mark.parametrize("way", [TO_DEVICE, TO_HOST], ids=["in", "out"])


@pytest.fixture
def bench() -> Bench:
    return Bench()


@WAYS
def test_a_prepared_copy_and_the_general_way_make_the_same_call(bench, way):
    ready, words = bench.ready(way), (ARRAY, OFFSET, SIZE)
    assert ready.call(words) == 0
    payload = filled(bench.payload(way), PLACES_OF_PINNED[way.box.number], words)
    bench.engine.calls[way.box.number](SimpleNamespace(verb=way.box, payload=payload, ticket=1), bench.lane)
    assert bench.made == [EXPECTED[way]] * 2


@WAYS
def test_native_code_gets_the_address_of_the_area_and_takes_no_larger_offset(bench, way):
    native = bench.ready(way).native()
    assert isinstance(native, NativeCall)
    targets = {target.word: target for target in native.targets}
    assert len(targets) == len(native.targets) == 3
    assert targets[1].most == OFFSET_MASK
    for number, word in enumerate((ARRAY, OFFSET, SIZE)):
        ctypes.c_uint64.from_address(targets[number].address).value = word + targets[number].base
    assert tuple(native.arguments.view[:4]) == EXPECTED[way][1:]
    assert len(native.arguments.view) == MOST_ARGUMENTS + MOST_FLOATS


@WAYS
def test_a_copy_of_an_area_that_is_not_known_is_left_to_the_general_way(bench, way):
    assert bench.ready(way, area=AREA + 1) is None


@WAYS
def test_a_rectangle_is_not_taken_for_a_run(bench, way):
    assert bench.ready(way, height=2) is None


def test_what_was_prepared_for_an_area_is_forgotten_with_it(bench, monkeypatch):
    monkeypatch.setattr(bench.engine._giving_back, "make", lambda calls: None)
    bench.engine._areas[AREA] = SimpleNamespace()
    command: Any = SimpleNamespace(payload=UNREGISTER_HOST.struct.pack(AREA))
    bench.engine.calls[UNREGISTER_HOST.number](command, bench.lane)
    assert bench.forgotten == 1
    assert bench.ready(TO_DEVICE) is None
