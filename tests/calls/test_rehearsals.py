"""Which calls of libraries standbys rehearse, and that a takeover after them is like any other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import trio

from atomr_trio._calls import rehearsals as _rehearsals
from atomr_trio._calls.rehearsals import Rehearsals
from atomr_trio._device.device import core_of
from atomr_trio._generation.generation import Generation
from atomr_trio._wire.records.rehearsal import REHEARSE
from atomr_trio.testing import ReturnStatus, inject
from support import set_constant

DEADLINE = 90


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, str, bool]]:
    """Each rehearsal that was published: the generation, its name, and whether it is the last for now."""
    seen: list[tuple[Any, str, bool]] = []
    init = Generation.__init__

    def begin(generation: Generation, *arguments: Any, **keywords: Any) -> None:
        init(generation, *arguments, **keywords)
        publish = generation.publish

        def noted(lane: int, verb: Any, payload: bytes, *others: Any, **options: Any) -> Any:
            if verb is REHEARSE:
                ends = bool(REHEARSE.struct.unpack_from(payload)[2])
                seen.append((generation, options["operation"].removeprefix("the rehearsal of "), ends))
            return publish(lane, verb, payload, *others, **options)

        generation.publish = noted  # type: ignore[assignment, method-assign]

    monkeypatch.setattr(Generation, "__init__", begin)
    return seen


async def standby_of(dev: Any) -> Any:
    """The standby, when it has done all that it was told to do ahead of time."""
    await dev.wait_standby()
    (standby,) = core_of(dev).standbys.generations
    await standby.settler.wait_idle()
    return standby


def names(published: list[tuple[Any, str, bool]], generation: Any) -> list[str]:
    return [name for each, name, _ in published if each is generation]


async def test_each_call_that_the_program_makes_is_rehearsed_once_by_each_standby(open_test_device, published):
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1) as dev:
            standby = await standby_of(dev)
            a, b = [await dev.to_device(np.eye(4, dtype=np.float32)) for _ in range(2)]
            for _ in range(2):
                await dev.blas.gemm(a, b)
                await dev.blas.gemm(b, a)  # other addresses
                await dev.blas.dot(a[0], b[0])
            assert names(published, standby) == ["blas.gemm", "blas.dot"]
            await dev.blas.gemm(a[:2], b)  # other sizes
            await dev.blaslt.matmul(a, b)
            await dev.fft.fft(a[0])
            async with dev.batch() as batch:
                batch.blas.axpy(a[0], b[0])
            expected = ["blas.gemm", "blas.dot", "blas.gemm", "blaslt.matmul", "fft.fft", "blas.axpy"]
            assert names(published, standby) == expected
            assert all(ends for _, _, ends in published)
            await standby.settler.wait_idle()
            await dev.restart("for the test")
            assert core_of(dev).current is standby
            assert (await (await dev.blas.gemm(a, a)).to_host() == np.eye(4)).all()
            successor = await standby_of(dev)
            assert names(published, successor) == expected
            assert [ends for each, _, ends in published if each is successor] == [False] * 5 + [True]
            assert names(published, standby) == expected, "a worker in service rehearses nothing"


async def test_the_parts_of_calls_that_go_together_are_rehearsed_each(open_test_device, published):
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1) as dev:
            standby = await standby_of(dev)
            a = await dev.to_device(np.eye(4, dtype=np.float32))
            await dev.solver.solve(a, a)
            await standby.settler.wait_idle()
            assert {"solver.getrf", "solver.getrs"} <= set(names(published, standby))
            assert standby.loss is None


async def test_a_device_without_a_standby_notes_nothing(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            a = await dev.to_device(np.eye(4, dtype=np.float32))
            await dev.blas.gemm(a, a)
            assert not any(isinstance(part, Rehearsals) for part in core_of(dev).parts)


async def test_the_calls_that_were_noted_first_go_when_there_are_too_many(open_test_device, published, monkeypatch):
    set_constant(monkeypatch, _rehearsals, "_MOST", 2)
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1) as dev:
            a = await dev.to_device(np.eye(4, dtype=np.float32))
            for size in (1, 2, 3):
                await dev.blas.gemm(a[:size], a)
            part = core_of(dev).part(Rehearsals)
            assert repr(part) == "<Rehearsals: 2>"
            await standby_of(dev)
            await dev.restart("for the test")
            successor = await standby_of(dev)
            assert names(published, successor) == ["blas.gemm"] * 2


async def test_a_plan_that_a_standby_does_not_have_is_not_rehearsed(open_test_device, published):
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1, plan_cache=1) as dev:
            x = await dev.to_device(np.zeros(16, np.complex64))
            await dev.fft.fft(x)
            await dev.fft.fft(x[:8])
            await standby_of(dev)
            await dev.restart("for the test")
            successor = await standby_of(dev)
            assert names(published, successor) == ["fft.fft"]
            assert successor.loss is None


@pytest.mark.sim_only
@pytest.mark.parametrize("refused", ["cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphDestroy"])
async def test_a_driver_that_refuses_rehearsals_costs_no_standby(open_test_device, published, refused):
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1, workers=None) as dev:
            standby = await standby_of(dev)
            standby.request_faults(f"{refused}:801")
            a = await dev.to_device(np.eye(4, dtype=np.float32))
            await dev.blas.gemm(a, a)
            await standby.settler.wait_idle()
            assert names(published, standby) == ["blas.gemm"]
            assert standby.loss is None
            await dev.restart("for the test")
            assert core_of(dev).current is standby
            assert (await (await dev.blas.gemm(a, a)).to_host() == np.eye(4)).all()


async def test_draws_are_rehearsed_with_a_plan_of_their_own_and_go_on_in_their_order(open_test_device, published):
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1) as dev:
            standby = await standby_of(dev)
            generators = [dev.random.generator(kind, seed=5) for kind in ("xorwow", "xorwow", "mtgp32")]
            drawn = [[await (await generator.normal(size=8)).to_host() for generator in generators]]
            await generators[0].uniform(size=8)
            await standby.settler.wait_idle()
            assert len(names(published, standby)) >= 4
            assert standby.loss is None
            await dev.restart("for the test")
            assert core_of(dev).current is standby
            drawn.append([await (await generator.normal(size=8)).to_host() for generator in generators])
            assert not (drawn[0][1] == drawn[1][1]).any()
            # The second of the pair has drawn nothing else: what it draws is what came behind its first draw.
            reference = dev.random.generator("xorwow", seed=5)
            both = await (await reference.normal(size=16)).to_host()
            assert (both == np.concatenate([drawn[0][1], drawn[1][1]])).all()
            await standby_of(dev)


MADE_AHEAD = ("cuMemAlloc", "cusolverDnCreate", "cusolverDnCreateParams", "cusolverDnCreateGesvdjInfo")
"""What the first call of a library made, before standbys did."""


@pytest.mark.sim_only
async def test_a_takeover_leaves_nothing_to_be_made_for_the_calls_of_a_solver_that_were_made_before(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1, workers=None) as dev:
            standby = await standby_of(dev)
            half = np.random.default_rng(1).random((16, 16), np.float32)
            host = half @ half.T + np.eye(16, dtype=np.float32)
            s, b = await dev.to_device(host), await dev.to_device(half[:, :1])

            calls = {
                "solve": lambda: dev.solver.solve(s, b),
                "cholesky": lambda: dev.solver.cholesky(s),
                "qr": lambda: dev.solver.qr(s),
                "eigh": lambda: dev.solver.eigh(s),
                "svd": lambda: dev.solver.svd(s),
            }
            for call in calls.values():
                await call()
            await standby.settler.wait_idle()
            await dev.restart("for the test")
            assert core_of(dev).current is standby
            for function in MADE_AHEAD:
                inject(dev, function, ReturnStatus(2), times=math.inf)
            for call in calls.values():
                await call()
            np.testing.assert_allclose(
                await (await calls["solve"]()).to_host(), np.linalg.solve(host, half[:, :1]), 1e-2
            )


@pytest.mark.sim_only
async def test_what_a_standby_has_no_memory_for_is_made_by_the_first_call(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1, workers=None) as dev:
            standby = await standby_of(dev)
            s = await dev.to_device(np.eye(4, dtype=np.float32))
            standby.request_faults("cuMemAlloc:2")
            await dev.solver.cholesky(s)
            await standby.settler.wait_idle()
            assert standby.loss is None
            await dev.restart("for the test")
            assert core_of(dev).current is standby
            assert (await (await dev.solver.cholesky(s)).to_host() == np.eye(4)).all()
