"""The price of an option by many random paths, with cuRAND.

An Asian option pays what the mean price of a share in a year exceeds the strike by. With the geometric mean, its price
has a formula, which the result is held against; the usual one, with the arithmetic mean, has none.

    python examples/monte_carlo.py --backend sim --paths 100000
"""

import argparse
import math
import sys

import numpy as np
import trio

import atomr_trio
from atomr_trio import overwrites, read_only

NOW, STRIKE, RATE, VOLATILITY, YEARS, MONTHS = 100.0, 100.0, 0.05, 0.3, 1.0, 12
SOURCE = """
// A thread follows one path of the price, month by month. noise[month * paths + path] are normal numbers.
extern "C" __global__ void payoff(const float *noise, float *geometric, float *arithmetic, int paths, int months,
                                  float now, float strike, float drift, float spread)
{
    int path = blockIdx.x * blockDim.x + threadIdx.x;
    if (path >= paths) return;
    float logarithm = logf(now), logarithms = 0, prices = 0;
    for (int month = 0; month < months; month++) {
        logarithm += drift + spread * noise[month * paths + path];
        logarithms += logarithm;
        prices += expf(logarithm);
    }
    geometric[path] = fmaxf(expf(logarithms / months) - strike, 0);
    arithmetic[path] = fmaxf(prices / months - strike, 0);
}
"""


async def simulate(options: argparse.Namespace) -> list[tuple[float, float]]:
    """The price and its standard error, for the geometric and for the arithmetic mean."""
    month, paths = YEARS / MONTHS, options.paths
    numbers = NOW, STRIKE, (RATE - VOLATILITY**2 / 2) * month, VOLATILITY * math.sqrt(month)
    async with atomr_trio.open_device(backend=options.backend) as dev:
        payoff = await dev.nvrtc.compile(SOURCE, "payoff")
        payoffs = [dev.empty(paths, np.float32) for _ in range(2)]
        async with dev.batch() as batch:
            generator = dev.random.generator(seed=options.seed)
            noise = batch.random.normal(size=(MONTHS, paths), dtype=np.float32, generator=generator)
            outputs = [overwrites(each) for each in payoffs]
            batch.launch(payoff, payoff.grid_for(paths, 256), 256, read_only(noise), *outputs, paths, MONTHS, *numbers)
            # Payoffs are not negative, so the sum of their absolute values is their sum.
            sums = [(batch.blas.asum(each), batch.blas.dot(each, each)) for each in payoffs]
    # Numbers have their values at the end of the batch.
    results = []
    for total, squares in sums:
        mean = float(total) / paths
        error = math.sqrt((float(squares) / paths - mean**2) / paths)
        results.append((math.exp(-RATE * YEARS) * mean, math.exp(-RATE * YEARS) * error))
    return results


def geometric_price() -> float:
    """The formula: the geometric mean of lognormal prices is lognormal too (Kemna and Vorst, 1990)."""
    mean = math.log(NOW) + (RATE - VOLATILITY**2 / 2) * YEARS * (MONTHS + 1) / (2 * MONTHS)
    variance = VOLATILITY**2 * YEARS * (MONTHS + 1) * (2 * MONTHS + 1) / (6 * MONTHS**2)
    d = (mean - math.log(STRIKE)) / math.sqrt(variance)
    below = [(1 + math.erf(each / math.sqrt(2))) / 2 for each in (d + math.sqrt(variance), d)]
    return math.exp(-RATE * YEARS) * (math.exp(mean + variance / 2) * below[0] - STRIKE * below[1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["sim", "cuda"], help="default: ATOMR_TRIO_BACKEND, else cuda")
    parser.add_argument("--paths", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=2026)
    options = parser.parse_args()
    (geometric, error), (arithmetic, _) = trio.run(simulate, options)
    print(f"geometric mean: {geometric:.3f} +- {error:.3f}, by the formula {geometric_price():.3f}")
    print(f"arithmetic mean: {arithmetic:.3f}")
    if abs(geometric - geometric_price()) > 4 * error:
        sys.exit("the estimate is more than four standard errors away from the formula")
    if arithmetic <= geometric:
        sys.exit("an arithmetic mean is never less than a geometric one")
