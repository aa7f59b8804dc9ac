"""A model of temperatures is fitted to measurements, with cuSOLVER, in a plain program.

The model has a constant, a trend, and two waves of a year: six numbers. They are found by QR (`lstsq`), and, faster
but less exact, by the Cholesky factors of the normal equations. A column that says nothing new is an error with a name.

    python examples/linear_regression.py --backend sim --picture fit.png
"""

import argparse
import importlib.util
import sys

import numpy as np
from numpy.typing import NDArray

import atomr_trio
from atomr_trio import plain


def columns(day: NDArray[np.float64]) -> NDArray[np.float64]:
    """A row for each day, a column for each number of the model."""
    year = 2 * np.pi * day / 365.25
    waves = np.cos(year), np.sin(year), np.cos(2 * year), np.sin(2 * year)
    return np.stack([np.ones_like(day), day / 3652.5, *waves], axis=1)


def by_cholesky(dev: plain.Device, a: plain.DeviceArray, b: plain.DeviceArray) -> NDArray[np.float64]:
    """The solution of a.T a x = a.T b."""
    lower = dev.solver.cholesky(dev.blas.gemm(a.T, a))
    right = dev.blas.gemv(a.T, b)
    return dev.blas.trsv(lower.T, dev.blas.trsv(lower, right, lower=True), lower=False).to_host()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["sim", "cuda"], help="default: ATOMR_TRIO_BACKEND, else cuda")
    parser.add_argument("--days", type=int, default=2000)
    parser.add_argument("--picture", metavar="PNG", help="draw to this file; needs matplotlib")
    options = parser.parse_args()
    if options.picture and not importlib.util.find_spec("matplotlib"):
        sys.exit("--picture needs matplotlib: pip install matplotlib")
    day = np.arange(options.days, dtype=np.float64)
    table = columns(day)
    measured = table @ (9.5, 0.4, -8.6, -3.1, 0.5, 0.2) + np.random.default_rng(8).normal(0, 3, len(day))

    with atomr_trio.start(backend=options.backend) as dev:
        a, b = dev.to_device(table), dev.to_device(measured)
        model = dev.solver.lstsq(a, b).to_host()  # numpy's lstsq returns more
        faster = by_cholesky(dev, a, b)
        superfluous = np.column_stack([table, table[:, 0] + table[:, 1]])
        try:
            dev.solver.lstsq(dev.to_device(superfluous), b)
        except atomr_trio.SingularMatrixError as error:
            print("a column too many:", str(error).splitlines()[0])
        else:
            sys.exit("lstsq should have refused columns that depend on each other")

    np.testing.assert_allclose(model, np.linalg.lstsq(table, measured)[0], rtol=1e-9)
    np.testing.assert_allclose(faster, model, rtol=1e-6)
    print(f"{model[1]:+.2f} degrees in ten years; the model is that of numpy")
    if options.picture:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 2.6), layout="constrained")
        axes = figure.subplots()
        axes.plot(day, measured, ",", color="grey")
        axes.plot(day, table @ model, color="tab:red")
        axes.set(xlabel="day", ylabel="degrees")
        figure.savefig(options.picture, dpi=100)
