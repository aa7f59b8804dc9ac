"""Three bodies on their figure of eight, with a graph.

A step of this integrator is two small kernels. A graph holds many steps, is recorded once, and is launched as one
command. Three equal masses can chase each other on one curve (Moore 1993, Chenciner and Montgomery 2000): after a
period each is back where it began, which is what this program checks.

    python examples/nbody.py --backend sim --picture nbody.png
"""

import argparse
import importlib.util
import sys

import numpy as np
import trio
from numpy.typing import NDArray

import atomr_trio
from atomr_trio import GraphRecorder, read_only

SOURCE = """
extern "C" __global__ void drift(double2 *x, const double2 *v, double dt)
{
    x[threadIdx.x].x += dt * v[threadIdx.x].x;
    x[threadIdx.x].y += dt * v[threadIdx.x].y;
}
extern "C" __global__ void kick(const double2 *x, double2 *v, double dt, int bodies)
{
    int i = threadIdx.x;
    for (int j = 0; j < bodies; j++) {
        double dx = x[j].x - x[i].x, dy = x[j].y - x[i].y, squared = dx * dx + dy * dy;
        double weight = j == i ? 0 : dt / (squared * sqrt(squared));
        v[i].x += weight * dx;
        v[i].y += weight * dy;
    }
}
"""
Vectors = NDArray[np.float64]
PERIOD = 6.32591398
POSITIONS = np.array([(0.97000436, -0.24308753), (-0.97000436, 0.24308753), (0, 0)])
VELOCITIES = np.array([(0.46620368, 0.43236573), (0.46620368, 0.43236573), (-0.93240737, -0.86473146)])
# The sub-steps of Forest and Ruth (1990): positions and velocities take turns, and errors are of fourth order.
THETA = 1 / (2 - 2 ** (1 / 3))
SUBSTEPS = [(THETA / 2, THETA), ((1 - THETA) / 2, 1 - 2 * THETA), ((1 - THETA) / 2, THETA), (THETA / 2, 0)]


def energy(x: Vectors, v: Vectors) -> float:
    """The kinetic energy and that of each pair."""
    return float((v**2).sum() / 2 - sum(1 / np.linalg.norm(x[i] - x[i - 1]) for i in range(3)))


async def simulate(options: argparse.Namespace) -> tuple[list[Vectors], Vectors]:
    """The positions before each launch of the graph and at the end, and the velocities at the end."""
    dt = PERIOD / (options.steps * options.launches)
    async with atomr_trio.open_device(backend=options.backend) as dev:
        drift, kick = [await dev.nvrtc.compile(SOURCE, name) for name in ("drift", "kick")]
        x, v = await dev.to_device(POSITIONS), await dev.to_device(VELOCITIES)

        def record(graph: GraphRecorder) -> None:
            for _ in range(options.steps):
                for drifted, kicked in SUBSTEPS:
                    graph.launch(drift, 1, 3, x, read_only(v), drifted * dt)
                    if kicked:
                        graph.launch(kick, 1, 3, read_only(x), v, kicked * dt, 3)

        graph = await dev.capture(record)
        async with dev.batch() as batch:
            path = []
            for _ in range(options.launches):
                path.append(batch.to_host(x))
                batch.launch_graph(graph)
            path.append(batch.to_host(x))
            last = batch.to_host(v)
    return path, last


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["sim", "cuda"], help="default: ATOMR_TRIO_BACKEND, else cuda")
    parser.add_argument("--steps", type=int, default=3, help="steps in the graph")
    parser.add_argument("--launches", type=int, default=40, help="launches of the graph in a period")
    parser.add_argument("--picture", metavar="PNG", help="draw the path to this file; needs matplotlib")
    options = parser.parse_args()
    if options.picture and not importlib.util.find_spec("matplotlib"):
        sys.exit("--picture needs matplotlib: pip install matplotlib")
    path, velocities = trio.run(simulate, options)
    missed = np.abs(path[-1] - POSITIONS).max()
    change = energy(path[-1], velocities) / energy(POSITIONS, VELOCITIES) - 1
    print(f"after a period the bodies are {missed:.1e} from where they began; the energy changed by {change:.1e}")
    if missed > 1e-3 or abs(change) > 1e-5:
        sys.exit("this is not the figure of eight")
    if options.picture:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5, 2.2), layout="constrained")
        axes = figure.subplots(subplot_kw={"aspect": "equal"})
        for x, y in np.array(path[: len(path) // 3 + 1]).transpose(1, 2, 0):
            axes.plot(x, y, marker="o", markevery=[0])
        figure.savefig(options.picture, dpi=100)
