"""Statistical tests of the words of our own Philox kernels: `make battery`.

Five streams of words are tested, each block by block. What a test found in the blocks adds up to one p-value; where
there are eight blocks or more, the p-values of each are compared with the uniform distribution too.

The verdict is by the smallest of all p-values times their number, the bound of Bonferroni: words that are random are
rejected with a probability of at most `REJECTED`, whatever the tests have in common. The keys are fixed, so a run with
the same number of words has the same outcome.

The words of the first stream can be given to another battery as well, such as Debian's dieharder:
`battery.py --blocks 10000 --write /dev/stdout | dieharder -a -g 200`.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
import trio
from evidence import Array, Evidence, uniformity
from word_tests import TESTS

import atomr_trio

REJECTED: Final = 1e-4
"""The most that the probability is with which random words are rejected."""
KEY: Final = 0x2026_1126_0123_4567
FEWEST_BLOCKS: Final = 8
"""So many blocks have p-values that are compared with the uniform distribution."""


# --- the streams ------------------------------------------------------------------------------------------------------


async def sequence(dev: Any, block: int, size: int) -> Array:
    """The words of one key, in their order: those of cuRAND's generator."""
    return await _words(dev, KEY, block * size, size)


async def own(dev: Any, block: int, size: int) -> Array:
    """Words with the counters of our own distributions: integers of 32 bits."""
    found = await dev.random.philox(
        KEY, block * size, size, distribution="integers", dtype=np.uint32, low=0, high=1 << 32
    )
    array: Array = await found.to_host()
    return array


async def keys(dev: Any, block: int, size: int) -> Array:
    """Words of 64 keys one after the other, at the same position: neighbours are those of neighbouring keys."""
    rows = [await _words(dev, KEY + 64 * block + key, 0, size // 64) for key in range(64)]
    return np.stack(rows, axis=1).ravel()


async def key_bits(dev: Any, block: int, size: int) -> Array:
    """How the words of a key differ from those of a key with one other bit, for each of the 64 bits."""
    part = size // 64
    base = await _words(dev, KEY, block * part, part)
    return np.concatenate([base ^ await _words(dev, KEY ^ (1 << bit), block * part, part) for bit in range(64)])


async def counter_bits(dev: Any, block: int, size: int) -> Array:
    """How words differ from those at a position with one other bit, for the upper 32 bits of the position."""
    part = size // 32
    base = await _words(dev, KEY, block * part, part)
    return np.concatenate([base ^ await _words(dev, KEY, (1 << bit) + block * part, part) for bit in range(32, 64)])


async def _words(dev: Any, key: int, position: int, count: int) -> Array:
    found = await dev.random.philox(key, position, count)
    array: Array = await found.to_host()
    return array


Stream = Callable[[Any, int, int], Awaitable[Array]]
STREAMS: Final[Mapping[str, Stream]] = {
    each.__name__.replace("_", " "): each for each in (sequence, own, keys, key_bits, counter_bits)
}

# --- what is measured -------------------------------------------------------------------------------------------------


@attrs.frozen
class Plan:
    """How many words are tested."""

    size: int
    """The words of a block: a power of two, from 2^16 on."""
    first: int
    """The blocks of the first stream."""
    others: int
    """The blocks of each of the others."""

    def blocks_of(self, stream: str) -> int:
        return self.first if stream == next(iter(STREAMS)) else self.others


PLANS: Final = {"cuda": Plan(1 << 24, 16, 8), "sim": Plan(1 << 17, 1, 1)}


@attrs.frozen
class Finding:
    """A p-value, and what it is of."""

    stream: str
    test: str
    p: float


async def findings_of(dev: Any, stream: str, plan: Plan, pool: ThreadPoolExecutor) -> list[Finding]:
    """Return the p-values of all tests of one stream."""
    total: dict[str, Evidence] = {}
    each: dict[str, list[float]] = {name: [] for name in TESTS}
    for block in range(plan.blocks_of(stream)):
        words = await STREAMS[stream](dev, block, plan.size)
        for name, found in await trio.to_thread.run_sync(tested, words, pool):
            each[name].append(found.p)
            total[name] = total[name].plus(found) if name in total else found
    return list(_told(stream, total, each))


def tested(words: Array, pool: ThreadPoolExecutor) -> list[tuple[str, Evidence]]:
    """What each test found in a block. They run side by side."""
    return list(zip(TESTS, pool.map(lambda test: test(words), TESTS.values()), strict=True))


def _told(stream: str, total: Mapping[str, Evidence], each: Mapping[str, list[float]]) -> Iterator[Finding]:
    for name, found in total.items():
        yield Finding(stream, name, found.p)
        if len(each[name]) >= FEWEST_BLOCKS:
            yield Finding(stream, f"{name}, of {len(each[name])} blocks", uniformity(np.array(each[name])))


# --- what must hold ---------------------------------------------------------------------------------------------------


def bound(findings: list[Finding]) -> float:
    """Return the most that the probability is with which random words have so small a p-value anywhere."""
    return min(1.0, len(findings) * min(finding.p for finding in findings))


def lines(findings: list[Finding]) -> Iterator[str]:
    """The p-values, and the verdict."""
    for finding in findings:
        yield f"{finding.stream:>14}  {finding.test:<32}  {finding.p:.3g}"
    found = bound(findings)
    worst = min(findings, key=lambda finding: finding.p)
    verdict = "REJECTED" if found < REJECTED else "not rejected"
    yield f"{verdict}: the smallest of {len(findings)} p-values is {worst.p:.3g} ({worst.stream}, {worst.test})"
    yield f"random words have as small a one with a probability of at most {found:.3g}; rejected below {REJECTED:g}"


async def measure(backend: str, plan: Plan) -> list[Finding]:
    """Return the p-values of all streams."""
    begun, findings = time.monotonic(), list[Finding]()
    with ThreadPoolExecutor() as pool:
        async with atomr_trio.open_device(0, backend=backend) as dev:  # type: ignore[arg-type]
            for stream in STREAMS:
                findings += await findings_of(dev, stream, plan, pool)
                words = plan.blocks_of(stream) * plan.size
                print(f"[{time.monotonic() - begun:.0f} s] {stream}: {words} words", file=sys.stderr, flush=True)
    return findings


def main() -> int:
    """The exit status: 1 if the words are rejected."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", choices=("cuda", "sim"), default="cuda")
    parser.add_argument("--write", type=Path, help="write the words of the first stream there instead, for other tests")
    parser.add_argument("--blocks", type=int, help="the blocks of the first stream, if not those of the plan")
    arguments = parser.parse_args()
    plan: Plan = PLANS[arguments.backend]
    if arguments.blocks is not None:
        plan = attrs.evolve(plan, first=arguments.blocks)
    if arguments.write is not None:
        trio.run(write, arguments.backend, plan, arguments.write)
        return 0
    findings = trio.run(measure, arguments.backend, plan)
    print(*lines(findings), sep="\n")
    return int(bound(findings) < REJECTED)


async def write(backend: str, plan: Plan, path: Path) -> None:
    """Write the words of the first stream to a file or pipe, such as /dev/stdout, until nobody reads them."""
    async with atomr_trio.open_device(0, backend=backend) as dev:  # type: ignore[arg-type]
        with contextlib.suppress(BrokenPipeError), path.open("wb") as file:
            for block in range(plan.first):
                file.write((await sequence(dev, block, plan.size)).astype("<u4").tobytes())


if __name__ == "__main__":
    sys.exit(main())
