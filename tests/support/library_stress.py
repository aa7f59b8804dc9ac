"""Products and transforms under random losses: every array is held against a numpy model that is exact.

The arrays are of complex64, of 4 by 4 elements that are small multiples of a quarter. Products of such numbers, their
sums, and transforms of four points, which only add, subtract and exchange parts, are exact in single precision. So a
wrong byte is seen whatever the order of the sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from support.stress import ARRAYS, Player, Step

SHAPE = (4, 4)
LARGEST = 32
SOURCE = r"""
extern "C" __global__ void negate(float2 *x) { x[threadIdx.x].x *= -1; x[threadIdx.x].y *= -1; }
"""


def is_small(model: np.ndarray) -> bool:
    """Whether a step with these numbers is exact."""
    return bool(np.abs(model.view(np.float32)).max() <= LARGEST and (model * 4 == np.round(model * 4)).all())


class LibraryPlayer(Player):
    """One task with its matrices, and what they must hold."""

    def __init__(self, dev: Any, kernels: dict[str, Any], lanes: list[Any], seed: tuple[int, int]) -> None:
        self.dev = dev
        self.kernels = kernels
        self.lanes = lanes
        self.rng = np.random.default_rng(seed)
        self.models = [np.full(SHAPE, index, np.complex64) for index in range(ARRAYS)]
        self.arrays = [dev.full(SHAPE, index, np.complex64) for index in range(ARRAYS)]
        self.graphs = [None] * ARRAYS
        self.moments = [[] for _ in range(ARRAYS)]
        self.count = 0
        self.losses = 0

    def host(self) -> np.ndarray:
        """What an array may hold next."""
        parts: Any = self.rng.integers(-2, 3, (2, *SHAPE)).astype(np.float32)
        return (parts[0] + 1j * parts[1]).astype(np.complex64)

    async def renew(self, index: int) -> None:
        """Give an array back, and take another."""
        self.arrays[index].free()
        self.models[index] = self.host()
        self.moments[index] = [np.zeros(SHAPE, np.complex64), self.models[index]]
        self.arrays[index] = x = self.dev.zeros(SHAPE, np.complex64)
        await x.copy_from(self.models[index])

    def step(self, lane: Any) -> Step:
        """Any call on any array whose numbers are small."""
        index, other = (int(each) for each in self.rng.permutation(ARRAYS)[:2])
        make = self.steps[int(self.rng.integers(len(self.steps)))]
        if not (is_small(self.models[index]) and is_small(self.models[other])):
            make = LibraryPlayer.copy_in
        return make(self, lane, index, other, int(self.rng.integers(-2, 3)))

    def called(
        self, lane: Any, name: str, index: int, becomes: np.ndarray, call: Callable[[Any], Any], *, reads: bool = False
    ) -> Step:
        """A verb of a library. Awaited verbs are on the compute lane; on another one it is a batch of one."""

        async def awaited() -> Any:
            if lane is None:
                return await call(self.dev)
            async with self.dev.batch(lane=lane) as batch:
                return call(batch)

        return Step(name, awaited, call, index, becomes.astype(np.complex64), reads)

    def gemm(self, lane: Any, index: int, other: int, number: int) -> Step:
        x, y = self.arrays[index], self.arrays[other]
        third = ARRAYS - index - other
        if not is_small(self.models[third]):
            return self.copy_in(lane, index, other, number)
        z = self.arrays[third]
        becomes = self.models[other] @ self.models[third] + number * self.models[index]
        return self.called(lane, "gemm", index, becomes, lambda face: face.blas.gemm(y, z, out=x, beta=number))

    def matmul(self, lane: Any, index: int, other: int, number: int) -> Step:
        x, y = self.arrays[index], self.arrays[other]
        becomes = self.models[other] @ self.models[other].T
        return self.called(lane, "matmul", index, becomes, lambda face: face.blaslt.matmul(y, y, op_b="T", out=x))

    def axpy(self, lane: Any, index: int, other: int, number: int) -> Step:
        x, y = self.arrays[index], self.arrays[other]
        becomes = self.models[index].copy()
        becomes[1] += number * self.models[other][2]
        return self.called(lane, "axpy", index, becomes, lambda face: face.blas.axpy(y[2], x[1], number))

    def transform(self, lane: Any, index: int, other: int, number: int) -> Step:
        x, y = self.arrays[index], self.arrays[other]
        axis = number % 2
        becomes = np.fft.fft(self.models[other], axis=axis)
        return self.called(lane, "fft", index, becomes, lambda face: face.fft.fft(y, axis=axis, out=x))

    def transform_back(self, lane: Any, index: int, other: int, number: int) -> Step:
        x = self.arrays[index]
        if not (self.models[index] == np.round(self.models[index])).all():
            return self.copy_in(lane, index, other, number)
        becomes = np.fft.ifft(self.models[index])
        return self.called(lane, "ifft", index, becomes, lambda face: face.fft.ifft(x, out=x))

    def negate(self, lane: Any, index: int, other: int, number: int) -> Step:
        kernel, x = self.kernels["negate"], self.arrays[index]
        return Step(
            "negate",
            lambda: kernel.launch(1, 16, x, lane=lane),
            lambda batch: batch.launch(kernel, 1, 16, x),
            index,
            -self.models[index],
        )


LibraryPlayer.steps = (
    LibraryPlayer.gemm,
    LibraryPlayer.gemm,
    LibraryPlayer.matmul,
    LibraryPlayer.matmul,
    LibraryPlayer.axpy,
    LibraryPlayer.transform,
    LibraryPlayer.transform,
    LibraryPlayer.transform_back,
    LibraryPlayer.negate,
    LibraryPlayer.copy_in,
    LibraryPlayer.copy_across,
    LibraryPlayer.copy_out,
)
