"""Calls of the verbs that draw."""

from __future__ import annotations

DRAWS: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("bits", "cauchy", "exponential", "lognormal", "normal", "poisson", "uniform"), ()),
    "bernoulli": (0.5,),
    "beta": (1.0, 2.0),
    "binomial": (9, 0.5),
    "discrete": ([0.25, 0.75],),
    "gamma": (2.0,),
    "integers": (9,),
    "multinomial": (9, [0.25, 0.75]),
    "standard_t": (3.0,),
}
"""The verbs of a generator, and what they are given beside the size."""
