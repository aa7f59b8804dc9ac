"""The most important page of a small web, by power iteration with cuBLAS.

python examples/pagerank.py --backend sim --pages 300
"""

import argparse

import numpy as np
import trio
from numpy.typing import NDArray

import atomr_trio

STAYS = 0.85  # how often a visitor follows a link; else the next page is any page


def a_web(pages: int) -> NDArray[np.float64]:
    """What part of the visitors of page j goes to page i next. Low numbers are linked more often."""
    numbers = np.random.default_rng(11)
    links = numbers.random((pages, pages)) < 0.4 / np.sqrt(1 + np.arange(pages))[:, None]
    np.fill_diagonal(links, False)
    links[0, ~links.any(0)] = True  # who links to nobody, links to page 0
    web: NDArray[np.float64] = STAYS * links / links.sum(0) + (1 - STAYS) / pages
    return web


async def rank(
    options: argparse.Namespace, web: NDArray[np.float64], tolerance: float
) -> tuple[NDArray[np.float64], int]:
    """The part of all visitors that is at each page, and the number of steps."""
    async with atomr_trio.open_device(backend=options.backend) as dev:
        matrix = await dev.to_device(web)
        now, steps = dev.full(len(web), 1 / len(web)), 0
        while True:
            # Ten steps are sent at once. A result of one is the operand of the next, which waits for it on the GPU.
            async with dev.batch() as batch:
                for _ in range(10):
                    before, now = now, batch.blas.gemv(matrix, now)
                batch.blas.axpy(now, before, -1)  # before -= now
                change = batch.blas.asum(before)
            steps += 10
            if float(change) < tolerance:
                visitors: NDArray[np.float64] = await now.to_host()
                return visitors, steps


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["sim", "cuda"], help="default: ATOMR_TRIO_BACKEND, else cuda")
    parser.add_argument("--pages", type=int, default=200)
    options = parser.parse_args()
    web = a_web(options.pages)
    visitors, steps = trio.run(rank, options, web, 1e-12)
    values, vectors = np.linalg.eig(web)
    leading = np.real(vectors[:, np.argmax(np.real(values))])
    np.testing.assert_allclose(visitors, leading / leading.sum(), atol=1e-10)
    best = ", ".join(f"{page} ({visitors[page]:.1%})" for page in np.argsort(-visitors)[:3])
    print(f"after {steps} steps, as by numpy's eigenvectors: most visitors are at the pages {best}")
