"""Draws one recovery as a time line, from the events of a device that really loses its context: `make picture`.

A service of three tasks uses one GPU: one launches a kernel with a bug, one goes on reading an array of its own, and
one wants an array that the faulty kernel was writing. The figure shows what each of them sees, and what happens to the
workers meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Literal

import attrs
import numpy as np
import trio

import atomr_trio

SOURCE = r"""
extern "C" __global__ void wild(int *x) { *(volatile int *)16 = x[0]; }
"""
COUNT = 1 << 16
LEAD = 0.01
ROWS = (
    "worker of generation 1",
    "standby",
    "its successor",
    "task: faulty kernel",
    "task: other array",
    "task: torn array",
)
COLOURS = {"good": "#3a7d5c", "bad": "#b5483a", "waiting": "#c9a227", "starting": "#8aa0b8"}
WIDTH, LEFT, HEIGHT, TOP = 960, 190, 30, 64


@attrs.frozen
class Span:
    """A stretch of one row, in seconds on the monotonic clock."""

    row: int
    start: float
    end: float
    colour: str
    text: str = ""


@attrs.frozen
class Mark:
    """A moment, with a text above the rows."""

    at: float
    text: str


@attrs.define
class Story:
    """What has happened, in the order in which it was noticed."""

    spans: list[Span] = attrs.Factory(list)
    marks: list[Mark] = attrs.Factory(list)

    @contextlib.asynccontextmanager
    async def span(self, row: int, text: str = "") -> AsyncIterator[None]:
        """A stretch that is red if it ends with the loss of the context."""
        start, colour = time.monotonic(), "good"
        try:
            yield
        except atomr_trio.ContextLost:
            colour = "bad"
        self.spans.append(Span(row, start, time.monotonic(), colour, text))


async def watch(dev: atomr_trio.Device, story: Story, begun: float) -> None:
    """Turn the device's events into the rows of the workers."""
    lost_at = math.nan
    async with dev.events() as events:
        async for event in events:
            now = time.monotonic()
            match event:
                case atomr_trio.ContextWasLost():
                    lost_at = now
                    story.spans.append(Span(0, begun, now, "good", "in service"))
                    story.spans.append(Span(1, begun, now, "waiting", "stands by"))
                    story.marks.append(Mark(now, f"{event.reason.split(':')[0]} ({event.status})"))
                case atomr_trio.ContextRebuilt():
                    story.marks.append(Mark(now, f"generation {event.generation} after {event.seconds * 1e3:.1f} ms"))
                    rebuilt_at = now
                case atomr_trio.WorkerReaped():
                    story.spans.append(Span(0, lost_at, now, "bad", "killed, dying"))
                    story.marks.append(Mark(now, f"reaped after {event.seconds * 1e3:.0f} ms"))
                    reaped_at = now
                case atomr_trio.StandbyReady():
                    story.spans.append(Span(1, rebuilt_at, now, "good", "in service as generation 2"))
                    story.spans.append(Span(2, reaped_at, now, "starting", "starts, maps memory, loads modules"))
                    return


async def tell(backend: Literal["cuda", "sim"]) -> tuple[Story, str]:
    """Lose a context and note everything."""
    story = Story()
    async with atomr_trio.open_device(0, backend=backend, standby=1) as dev:
        wild = await dev.nvrtc.compile(SOURCE, "wild")
        own, torn = [await dev.to_device(np.zeros(COUNT, np.int32)) for _ in range(2)]
        await dev.wait_standby()
        done = trio.Event()

        async def read() -> None:
            while not done.is_set():
                async with story.span(4):
                    await own.to_host()
                await trio.sleep(0.004)

        async def want_the_torn_array() -> None:
            async with story.span(5, "copy_from: waits for the reap, then heals it"):
                await torn.copy_from(np.ones(COUNT, np.int32))

        async with trio.open_nursery() as nursery:
            begun = time.monotonic()
            nursery.start_soon(read)
            nursery.start_soon(watch_then, dev, story, begun, done)
            await trio.sleep(LEAD)
            async with story.span(3, "launch: ContextLost"):
                await wild.launch(1, 1, torn)
            await want_the_torn_array()
        return story, dev.info.name


async def watch_then(dev: atomr_trio.Device, story: Story, begun: float, done: trio.Event) -> None:
    await watch(dev, story, begun)
    done.set()


def draw(story: Story, device: str) -> Iterator[str]:
    """The story as SVG."""
    first = min(span.start for span in story.spans)
    last = max(span.end for span in story.spans)
    scale = (WIDTH - LEFT - 20) / (last - first)

    def x(moment: float) -> float:
        return LEFT + (moment - first) * scale

    bottom = TOP + HEIGHT * len(ROWS)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 40}" '
        'font-family="sans-serif" font-size="12">'
    )
    yield f'<rect width="{WIDTH}" height="{bottom + 40}" fill="#ffffff"/>'
    for row, name in enumerate(ROWS):
        y = TOP + HEIGHT * row
        yield f'<text x="8" y="{y + 19}" fill="#333">{name}</text>'
        yield f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y + HEIGHT}" y2="{y + HEIGHT}" stroke="#e4e4e4"/>'
    for span in story.spans:
        y, width = TOP + HEIGHT * span.row + 6, max((span.end - span.start) * scale, 1.5)
        yield f'<rect x="{x(span.start):.1f}" y="{y}" width="{width:.1f}" height="18" fill="{COLOURS[span.colour]}"/>'
        if span.text:
            inside = width > 7 * len(span.text)
            at, colour = (x(span.start) + 5, "#fff") if inside else (x(span.start) + width + 5, "#333")
            yield f'<text x="{at:.1f}" y="{y + 13}" fill="{colour}">{span.text}</text>'
    for level, mark in enumerate(sorted(story.marks, key=lambda each: each.at)):
        at, y = x(mark.at), 16 + 15 * (level % 3)
        yield f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{y + 3}" y2="{bottom}" stroke="#555" stroke-dasharray="3 3"/>'
        yield f'<text x="{at + 4:.1f}" y="{y}" fill="#333">{mark.text}</text>'
    step = 10 ** math.floor(math.log10(last - first))
    for tick in range(int((last - first) / step) + 1):
        yield f'<text x="{x(first + tick * step):.1f}" y="{bottom + 20}" fill="#777">{tick * step * 1e3:.0f} ms</text>'
    yield f'<text x="8" y="{bottom + 20}" fill="#777">{device}</text>'
    yield "</svg>"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw one recovery, from real events.")
    parser.add_argument("--backend", choices=("cuda", "sim"), default="sim")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "guide" / "recovery.svg")
    arguments = parser.parse_args()
    told, device_name = trio.run(tell, arguments.backend)
    arguments.out.write_text("\n".join(draw(told, device_name)) + "\n", encoding="utf-8")
    print(f"picture: {arguments.out}")
