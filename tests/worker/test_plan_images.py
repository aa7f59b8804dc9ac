"""Kernels of an image that a program carries: how they are loaded, given scalars, and unloaded again."""

from __future__ import annotations

import struct
from ctypes import POINTER, c_char_p, c_size_t, c_uint64, c_void_p, string_at
from typing import Any

import pytest

from atomr_cuda._library import CudaError
from atomr_trio._wire.programs import Address, BadProgram, Launch, Number, Program, Step
from atomr_trio._wire.records.plans import pack_addresses
from atomr_trio._worker.base.kernels import Kernels
from support.toy_library import Bench, Memory


class Launching(Memory):
    """A driver with modules: each has the kernels `sub`, of two parameters, and `wide`, of one with 16 bytes."""

    SIZES = ((b"sub", (8, 4)), (b"wide", (16,)))

    def __init__(self) -> None:
        super().__init__()
        self.loaded: dict[int, bytes] = {}
        self.launched: list[tuple[Any, ...]] = []
        self.status = 0
        pointer = POINTER(c_void_p)
        self.CUmodule = self.CUfunction = c_void_p
        self.cuModuleLoadData = self.library("cuModuleLoadData", pointer, c_void_p)
        self.cuModuleUnload = self.library("cuModuleUnload", c_void_p)
        self.cuModuleGetFunction = self.library("cuModuleGetFunction", pointer, c_void_p, c_char_p)
        sizes = POINTER(c_size_t)
        self.cuFuncGetParamInfo = self.library("cuFuncGetParamInfo", c_void_p, c_size_t, sizes, sizes)
        self.library.replace(
            {
                "cuModuleLoadData": self._load,
                "cuModuleUnload": lambda module: self.loaded.pop(module) and 0,
                "cuModuleGetFunction": self._get,
                "cuFuncGetParamInfo": self._ask,
                "cuLaunchKernel": self._launch,
            }
        )

    def _load(self, out: Any, content: int) -> int:
        out[0] = max(self.loaded, default=0) + 16
        self.loaded[out[0]] = string_at(content)
        return 0

    def _get(self, out: Any, module: int, name: bytes) -> int:
        found = [at for at, (known, _) in enumerate(self.SIZES) if known == name]
        out[0] = module + found[0] + 1 if found else 0
        return 0 if found else 500

    def _ask(self, function: int, index: int, offset: Any, size: Any) -> int:
        sizes = self.SIZES[function % 16 - 1][1]
        if index >= len(sizes):
            return 1
        size[0] = sizes[index]
        return 0

    def _launch(self, function: int, *given: Any) -> int:
        blocks, stream, parameters = given[0], given[7], given[8]
        pointers = (c_void_p * 2).from_address(parameters)
        words = tuple(c_uint64.from_address(each).value for each in pointers)
        self.launched.append((function, blocks, *words, stream))
        return self.status


IMAGE: dict[str, Any] = {"image": b"image", "kernels": {"sub": 2}}


def imaged(*steps: Step, **more: Any) -> Program:
    return Program((), steps, 1, 20, **{**IMAGE, **more})


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def launching(bench: Bench) -> Launching:
    driver = Launching()
    bench.memory = bench.engine.driver = driver
    bench.engine.kernels = Kernels(driver, {})
    return driver


def numbers(count: int, factor: float, word: int) -> bytes:
    return struct.pack("<QdI", count, factor, word)


def test_a_kernel_of_an_image_is_given_scalars_as_they_are_and_its_threads_by_one(
    bench: Bench, launching: Launching
) -> None:
    steps = (
        Launch("sub", (Address(0, 8), Number(8, "d")), Number(0, "Q")),
        Launch("sub", (Number(16, "i"), 7), 600),
    )
    bench.define(imaged(*steps), example=(512,))
    assert launching.loaded == {16: b"image"}
    bench.execute(addresses=(1024,), scalars=numbers(1000, 1.5, 0xFFFF_FFFE))
    bench.execute(addresses=(1024,), scalars=numbers(0, -0.0, 3))
    assert launching.launched == [
        (17, 4, 1032, 0x3FF8_0000_0000_0000, 0x51),
        (17, 3, 0xFFFF_FFFE, 7, 0x51),
        (17, 1, 1032, 1 << 63, 0x51),
        (17, 3, 3, 7, 0x51),
    ]
    payload = bench.table.execute.struct.pack(1) + pack_addresses((2048,)) + numbers(1 << 62, 0.0, 0)
    again, *_ = bench.engine.hot_call(bench.table.execute.number, payload, bench.lane)
    launching.launched.clear()
    for _ in range(2):
        assert again(0) == 0
    assert launching.launched == [(17, 4096, 2056, 0, 0x51), (17, 3, 0, 7, 0x51)] * 2


def test_plans_of_one_image_share_its_module_and_the_last_unloads_it(bench: Bench, launching: Launching) -> None:
    bench.define(imaged(Launch("sub", (1, 2), 3)), 1, example=(512,))
    bench.define(imaged(Launch("sub", (1, 2), 4)), 2, example=(512,))
    bench.define(imaged(Launch("sub", (1, 2), 3), image=b"other"), 3, example=(512,))
    assert launching.loaded == {16: b"image", 32: b"other"}
    bench.lane.finished = 9
    bench.drop(1)
    assert 16 in launching.loaded
    bench.drop(2)
    assert launching.loaded == {32: b"other"}
    bench.define(imaged(Launch("sub", (1, 2), 3)), 4, example=(512,))
    assert launching.loaded == {32: b"other", 48: b"image"}
    bench.engine.close()
    assert launching.loaded == {}


@pytest.mark.parametrize(
    ("match", "kernel", "kernels"),
    [
        ("sub has 2 parameters, not 3", Launch("sub", (1, 2, 3), 1), {"sub": 3}),
        ("sub has 2 parameters, not 1", Launch("sub", (1,), 1), {"sub": 1}),
        ("parameter 0 of wide has 16 bytes", Launch("wide", (1,), 1), {"wide": 1}),
    ],
)
def test_a_kernel_that_is_not_what_the_program_says_is_refused_and_its_image_given_back(
    bench: Bench, launching: Launching, match: str, kernel: Launch, kernels: dict[str, int]
) -> None:
    with pytest.raises(BadProgram, match=match):
        bench.define(imaged(kernel, kernels=kernels), example=(512,))
    assert (launching.loaded, launching.launched) == ({}, [])


def test_a_kernel_that_the_image_lacks_is_the_drivers_error_and_the_image_is_given_back(
    bench: Bench, launching: Launching
) -> None:
    with pytest.raises(CudaError) as caught:
        bench.define(imaged(Launch("mul", (1,), 1), kernels={"mul": 1}), example=(512,))
    assert (caught.value.status, caught.value.function) == (500, "cuModuleGetFunction")
    assert launching.loaded == {}
