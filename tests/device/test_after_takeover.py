"""Who goes first when the next generation serves: those who have waited for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import trio

from atomr_trio._arrays import memory
from atomr_trio._generation.actor import Actor
from support import open_test_device
from support.rogue import compile_rogue, kill_worker, next_generation, until

DEADLINE = 60


async def test_actors_start_some_turns_behind_those_who_have_waited(monkeypatch):
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            (touch,) = await compile_rogue(dev, "touch")
            x, runs, run = await dev.to_device(np.zeros(10, np.int32)), [], Actor.run

            async def ran(actor: Actor, generation: Any) -> None:
                runs.append(actor.name)
                await run(actor, generation)

            with monkeypatch.context() as patch:
                patch.setattr(Actor, "run", ran)
                kill_worker(dev)
                await dev.wait_generation(after=1)
                for _ in range(4):
                    await trio.lowlevel.checkpoint()
                assert runs == []
                await touch.launch(1, 32, x, 10)
                await until(lambda: len(runs) > 1)
            assert (await x.to_host() == 1).all()


async def test_what_was_queued_meanwhile_has_its_actor_at_once():
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev, trio.open_nursery() as nursery:
            (touch,) = await compile_rogue(dev, "touch")
            x = await dev.to_device(np.zeros(10, np.int32))
            kill_worker(dev)
            await until(lambda: dev.state.value == "rebuilding")
            nursery.start_soon(touch.launch, 1, 32, x, 10)
            await next_generation(dev, after=1)
        assert dev.generation == 2


async def test_no_thread_is_woken_when_there_is_nothing_to_close(monkeypatch):
    closed: list[Any] = []
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            x = await dev.to_device(np.arange(10))
            with monkeypatch.context() as patch:
                patch.setattr(memory, "close_in_thread", lambda *arguments: closed.append(arguments))
                kill_worker(dev)
                await next_generation(dev, after=1)
            assert (await x.to_host() == np.arange(10)).all()
    assert closed == []
