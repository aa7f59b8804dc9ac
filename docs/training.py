"""Draws the training of docs/guide/worlds.md, which loses a GPU in the middle, and one that loses none: `make picture`.

The program is the page's own. The picture shows the distance of the weights from the right ones over the time.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import trio

PAGE = Path(__file__).parent / "guide" / "worlds.md"
PICTURE = PAGE.with_name("training.png")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
START = "\ntrio.run(main)\n"
COLOURS = {"no loss": "#3a7d5c", "a worker is killed": "#b5483a"}


def program() -> dict[str, Any]:
    """The names of the page's program, which is not started."""
    (text,) = [block for block in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if "async def train(" in block]
    names: dict[str, Any] = {}
    exec(compile(text.removesuffix(START), str(PAGE), "exec"), names)
    return names


def draw(curves: dict[str, tuple[list[float], list[float]]], killed_at: float, path: Path) -> None:
    """Draw the distance of the weights over the time, in milliseconds."""
    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
    for (name, (times, distances)), width in zip(curves.items(), (3.5, 1.5), strict=True):
        label = f"{name}: ends at {distances[-1]:.7f}"
        axes.plot(times, distances, color=COLOURS[name], linewidth=width, marker=".", label=label)
    axes.axvline(killed_at, color=COLOURS["a worker is killed"], linewidth=0.8, linestyle="--")
    axes.set(xlabel="milliseconds since the first step", ylabel="distance from the right weights", yscale="log")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main() -> None:
    """Train twice, and draw both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    path = parser.parse_args().picture
    names = program()
    right = np.arange(names["N"])
    curves, weights, kill_at = {}, [], names["STEPS"] // 2
    for name, when in zip(COLOURS, (None, kill_at), strict=True):
        _, _, seen = trio.run(names["train"], when)
        first = seen[0][0]
        times = [1e3 * (at - first) for at, _ in seen]
        curves[name] = times, [float(np.linalg.norm(each - right)) for _, each in seen]
        weights.append([each.tobytes() for _, each in seen])
    if weights[0] != weights[1]:
        raise SystemExit("the training that lost a worker has other bits")
    draw(curves, curves["a worker is killed"][0][kill_at - 1], path)
    print(f"{path}: the weights have the same bits after each of {names['STEPS']} steps")


if __name__ == "__main__":
    main()
