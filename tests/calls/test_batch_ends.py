"""The ends of batches on the short way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_trio import ContextLost
from atomr_trio._calls.batch_ends import OPERATION, AwaitedEnd
from atomr_trio._calls.batch_sender import _Mark
from atomr_trio._device.device import core_of
from support.rogue import compile_rogue, gated, kill_worker, next_generation

N = 16
SHAPE = (1, 128)
NUMBERS = np.arange(N, dtype=np.int32)
DEADLINE = 60


class Ends:
    """How many ends went each way."""

    def __init__(self) -> None:
        self.short = self.general = 0


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    counted = Ends()
    sent, init = AwaitedEnd.sent, _Mark.__init__

    def sends(path: Any) -> AwaitedEnd | None:
        end = sent(path)
        counted.short += end is not None
        return end

    def begins(mark: Any, lane: int) -> None:
        counted.general += 1
        init(mark, lane)

    monkeypatch.setattr(AwaitedEnd, "sent", staticmethod(sends))
    monkeypatch.setattr(_Mark, "__init__", begins)
    return counted


async def touching(dev: Any) -> tuple[Any, Any]:
    (touch,) = await compile_rogue(dev, "touch")
    x = await dev.to_device(NUMBERS)
    await touch.launch(*SHAPE, x, N)
    async with dev.batch() as batch:
        batch.launch(touch, *SHAPE, x, N)  # the first one goes the general way, and has a ticket of its own
    await x.copy_from(NUMBERS)
    return touch, x


async def test_a_batch_takes_one_turn_at_its_end_and_its_end_is_short(dev: Any, ends: Ends) -> None:
    touch, x = await touching(dev)
    for count in (0, 1, 40):
        before = ends.short
        with trio.testing.assert_checkpoints():
            async with dev.batch() as batch:
                for _ in range(count):
                    batch.launch(touch, *SHAPE, x, N)
        assert ends.short - before == (count > 0)
        assert not core_of(dev).current.timeline.book(0).busy
    assert ends.general == 0
    assert (await x.to_host() == NUMBERS + 41).all()


async def test_the_end_of_another_lane_is_short_once_the_lane_is_open(dev: Any, ends: Ends) -> None:
    touch, x = await touching(dev)
    async with dev.lane() as lane:
        for _ in range(3):
            async with dev.batch(lane=lane) as batch:
                for _ in range(2):
                    batch.launch(touch, *SHAPE, x, N)
            assert not core_of(dev).current.timeline.book(lane._number).busy
        assert (ends.short, ends.general) == (3, 0)
        assert (await x.to_host() == NUMBERS + 6).all()
    async with dev.lane() as lane:  # its batch sends to the compute lane alone
        generator = dev.random.generator("philox", 1)
        await generator.normal(size=4)
        async with dev.batch(lane=lane) as batch:
            batch.random.normal(4, generator=generator)


async def test_a_flush_that_was_cancelled_can_be_called_again_and_waits_for_all(dev: Any, ends: Ends) -> None:
    touch, x = await touching(dev)
    flushed: list[int] = []
    with trio.fail_after(DEADLINE):
        async with dev.batch() as batch, gated(dev) as gate:
            batch.launch(touch, *SHAPE, x, N)

            async def flush(number: int) -> None:
                await batch.flush()
                flushed.append(number)

            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(flush, 1)
                    await trio.testing.wait_all_tasks_blocked(0.005)
                    scope.cancel()
            async with trio.open_nursery() as nursery:
                for number in (2, 3):  # two at a time wait for one end each
                    nursery.start_soon(flush, number)
                await trio.testing.wait_all_tasks_blocked(0.005)
                assert flushed == []
                await gate.open()
            assert sorted(flushed) == [2, 3]
            assert not core_of(dev).current.timeline.book(0).busy
    assert ends.short >= 3
    assert (await x.to_host() == NUMBERS + 1).all()


async def test_a_flush_behind_one_that_was_cancelled_waits_also_if_its_own_end_cannot_be_short(
    dev: Any, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch, x = await touching(dev)
    flushed: list[str] = []
    with trio.fail_after(DEADLINE):
        async with dev.batch() as batch, gated(dev) as gate:
            for _ in range(2):
                batch.launch(touch, *SHAPE, x, N)
            before = ends.short
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(batch.flush)
                    await trio.testing.wait_all_tasks_blocked(0.005)
                    scope.cancel()
            assert ends.short == before + 1
            monkeypatch.setattr(AwaitedEnd, "sent", lambda path: None)  # as where the ring has no room

            async def flush() -> None:
                await batch.flush()
                flushed.append("done")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(flush)
                await trio.testing.wait_all_tasks_blocked(0.005)
                assert flushed == []
                await gate.open()
            assert flushed == ["done"]
            assert not core_of(dev).current.timeline.book(0).busy
    assert ends.general >= 1
    assert (await x.to_host() == NUMBERS + 2).all()


async def test_a_loss_is_raised_once_by_who_waits_for_the_end(open_test_device: Any, ends: Ends) -> None:
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            touch, x = await touching(dev)
            lost: list[ContextLost] = []

            async def flush(batch: Any) -> None:
                with pytest.raises(ContextLost) as caught:
                    await batch.flush()
                lost.append(caught.value)

            before = ends.short
            with pytest.raises(ContextLost, match="SIGKILL"):  # noqa: PT012
                async with dev.batch() as batch, gated(dev):
                    for _ in range(3):
                        batch.launch(touch, *SHAPE, x, N)
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(flush, batch)
                        await trio.testing.wait_all_tasks_blocked(0.005)
                        assert OPERATION in core_of(dev).current.timeline.in_flight()
                        kill_worker(dev)
            assert len(lost) == 1
            assert "SIGKILL" in str(lost[0])
            assert ends.short > before
            await next_generation(dev, 1)
            touch, x = await touching(dev)
            async with dev.batch() as batch:
                batch.launch(touch, *SHAPE, x, N)
            assert (await x.to_host() == NUMBERS + 1).all()


async def test_the_end_is_no_call_of_an_actor(dev: Any, ends: Ends) -> None:
    touch, x = await touching(dev)

    def accepted() -> int:
        return sum(actor.accepted for actor in dev.statistics().actors)

    async with dev.batch() as batch:
        before = accepted()
        batch.launch(touch, *SHAPE, x, N)
    assert accepted() == before + 1
    assert ends.short == 1
